//! Printing that outlives its reader: `crossweave … | head` must neither panic nor end a training run.

/// As `println!`; a closed standard output is no error.
macro_rules! say {
    () => { $crate::say::line(format_args!("")) };
    ($($arg:tt)*) => { $crate::say::line(format_args!($($arg)*)) };
}
pub(crate) use say;

/// Writes a line to standard output.
pub fn line(text: std::fmt::Arguments<'_>) {
    use std::io::Write;
    // Nobody is left to be told.
    let _ = writeln!(std::io::stdout(), "{text}");
}
