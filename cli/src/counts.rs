//! Counts of parameters and tokens as people write them: `7.5B`.

use crossweave_words::scaled;

/// A count: `124M`, `7.5B`, `1T`, `1000`, `175e9`.
///
/// # Errors
/// Not such a count.
pub fn count(text: &str) -> Result<u64, String> {
    scaled(text, &[("K", 1e3), ("M", 1e6), ("B", 1e9), ("T", 1e12)])
}

/// `7.5B`.
pub fn show_count(n: f64) -> String {
    let units = [("", 1.0), ("K", 1e3), ("M", 1e6), ("B", 1e9), ("T", 1e12)];
    let fits = units.iter().rev().find(|(_, by)| n >= *by);
    let (name, by) = fits.copied().unwrap_or(("", 1.0));
    let text = format!("{:.3}", n / by);
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text}{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_and_shown() {
        assert_eq!(count("7.5B"), Ok(7_500_000_000));
        assert_eq!(count("1t"), Ok(1_000_000_000_000));
        assert_eq!(count("175e9"), Ok(175_000_000_000));
        assert_eq!(count("1000"), Ok(1000));
        for bad in ["", "B", "-1B", "nan", "1X", "inf", "1e30T", "é"] {
            assert!(count(bad).is_err(), "{bad}");
        }
        assert_eq!(show_count(1.5e9), "1.5B");
        assert_eq!(show_count(1e12), "1T");
    }
}
