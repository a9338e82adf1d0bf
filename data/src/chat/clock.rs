//! The time now, as a template asks for it by Python's `strftime`.

use chrono::{DateTime, Local};
use std::fmt::Write;

/// The conversions that `strftime` of Python and of `chrono` write alike, in the locale of C.
const ALIKE: &str = "aAbBhdemyYCHIklMSpPjUWwuVGgDFTRrntscxX%";
/// The longest format.
const MOST: usize = 1000;

/// The time now by a format.
///
/// # Errors
/// A format that is not Python's, in words.
pub(super) fn now(format: &str) -> Result<String, String> {
    written(format, Local::now())
}

fn written(format: &str, time: DateTime<Local>) -> Result<String, String> {
    let short: String = format.chars().take(100).collect();
    let refused = || Err(format!("strftime_now cannot write the time as {short:?}"));
    if format.len() > MOST {
        return refused();
    }
    let (mut out, mut chars) = (String::new(), format.chars());
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut item = String::from("%");
        let mut kind = chars.next();
        if let Some(flag) = kind.filter(|c| matches!(c, '-' | '_' | '0')) {
            item.push(flag);
            kind = chars.next();
        }
        match kind {
            // Python's time has no zone.
            Some('z' | 'Z') => continue,
            Some('f') => item = "%6f".into(),
            Some(kind) if ALIKE.contains(kind) => item.push(kind),
            _ => return refused(),
        }
        if write!(out, "{}", time.format(&item)).is_err() {
            return refused();
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::TimeZone;

    #[test]
    fn the_time_is_written_as_by_python() {
        let time = Local.with_ymd_and_hms(2024, 2, 5, 3, 4, 9).unwrap();
        let format =
            "%d %b %Y|%A, %B %-d|%a %e %m %y %H:%M:%S %I %p|%j %U %W %w|%f%Z%z|%F %T %c %x %X|%%";
        // By `datetime(2024, 2, 5, 3, 4, 9).strftime(format)`.
        let python = "05 Feb 2024|Monday, February 5|Mon  5 02 24 03:04:09 03 AM|036 05 06 1|000000|2024-02-05 03:04:09 Mon Feb  5 03:04:09 2024 02/05/24 03:04:09|%";
        assert_eq!(written(format, time).unwrap(), python);
        for bad in ["%!", "%", "%-", "%E", "%:z", "%3f"] {
            assert!(written(bad, time).unwrap_err().contains(bad), "{bad}");
        }
        assert!(written(&"a".repeat(2000), time).is_err());
    }
}
