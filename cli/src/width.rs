//! How wide a line may be.

/// Columns where no terminal says how many it has.
const PLAIN: usize = 80;
/// A wider line is hard to read, a narrower one has no room for a key.
const LIMITS: std::ops::RangeInclusive<usize> = 40..=160;

/// Columns of the terminal that standard output is; 80 where it is none.
pub fn columns() -> usize {
    match console::Term::stdout().size_checked() {
        Some((_, columns)) => usize::from(columns).clamp(*LIMITS.start(), *LIMITS.end()),
        None => PLAIN,
    }
}
