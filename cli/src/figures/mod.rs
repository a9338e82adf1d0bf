//! What `plan`, `explain`, `estimate` and `probe` compute, as values with fields: nothing here prints, and no page is made here.

pub mod devices;
pub mod estimate;
pub mod explain;
pub mod plan;
pub mod probe;
pub mod probed;

use crossweave_words::scaled;

/// A count of parameters or tokens as people write it: `124M`, `7.5B`, `1T`, `1000`, `175e9`.
///
/// # Errors
/// Not such a count.
pub fn count(text: &str) -> Result<u64, String> {
    scaled(text, &[("K", 1e3), ("M", 1e6), ("B", 1e9), ("T", 1e12)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read() {
        assert_eq!(count("7.5B"), Ok(7_500_000_000));
        assert_eq!(count("1t"), Ok(1_000_000_000_000));
        assert_eq!(count("175e9"), Ok(175_000_000_000));
        assert_eq!(count("1000"), Ok(1000));
        for bad in ["", "B", "-1B", "nan", "1X", "inf", "1e30T", "é"] {
            assert!(count(bad).is_err(), "{bad}");
        }
    }
}
