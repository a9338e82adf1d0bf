//! How sizes are written for people and read from them, in one place, so that `plan`, `estimate`, `train` and every error write the
//! same number of bytes alike.
//!
//! Units are decimal, as on the data sheet of a device and in papers: 1 GB is 10^9 bytes. What must match to the byte (an offset, the
//! length of a file, an operand) is written as bytes and not as a [`Size`]; so is everything in JSON.
#![forbid(unsafe_code)]

use std::fmt;

/// Bytes as people read them, with two digits behind the point: `512 B`, `1.50 MB`, `85.90 GB`. Width and alignment of the format string
/// hold for the whole.
///
/// ```
/// use crossweave_words::Size;
/// assert_eq!(Size(24_000_000_000).to_string(), "24.00 GB");
/// assert_eq!(format!("{:>10}|", Size(1_536_000)), "   1.54 MB|");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

const UNITS: [(&str, u128); 6] = [
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("PB", 1_000_000_000_000_000),
    ("EB", 1_000_000_000_000_000_000),
];

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1000 {
            return f.pad(&format!("{} B", self.0));
        }
        let bytes = u128::from(self.0);
        // 999 999 bytes are 1.00 MB and not 1000.00 kB.
        let hundredths = |unit: u128| (bytes * 100 + unit / 2) / unit;
        let fits = UNITS.iter().find(|(_, u)| hundredths(*u) < 100_000);
        let (name, unit) = fits.copied().unwrap_or(UNITS[UNITS.len() - 1]);
        let h = hundredths(unit);
        f.pad(&format!("{}.{:02} {name}", h / 100, h % 100))
    }
}

/// What a number is multiplied by for each of these suffixes, in any case; a number without one is taken as it is. Whole, from 1 to 2^53.
///
/// # Errors
/// What was wanted.
pub fn scaled(text: &str, suffixes: &[(&str, f64)]) -> Result<u64, String> {
    let t = text.trim();
    let hit = suffixes
        .iter()
        .filter_map(|(suffix, by)| {
            let at = t.len().checked_sub(suffix.len())?;
            let (number, tail) = (t.get(..at)?, t.get(at..)?);
            tail.eq_ignore_ascii_case(suffix).then_some((number, *by))
        })
        .max_by_key(|(number, _)| t.len() - number.len());
    let (number, by) = hit.unwrap_or((t, 1.0));
    let value = number.trim().parse::<f64>().ok().map(|x| x * by);
    match value {
        Some(x) if (1.0..=9.007_199_254_740_992e15).contains(&x) => Ok(x.round() as u64),
        _ => Err(format!(
            "wanted a positive number with a suffix of {}",
            suffixes.iter().map(|s| s.0).collect::<Vec<_>>().join(", ")
        )),
    }
}

/// Bytes as people write them: `32GB`, `1.5TB`, `80GiB`, `1024`.
///
/// # Errors
/// Not such a size.
pub fn size(text: &str) -> Result<u64, String> {
    let k = 1024f64;
    scaled(
        text,
        &[
            ("B", 1.0),
            ("kB", 1e3),
            ("MB", 1e6),
            ("GB", 1e9),
            ("TB", 1e12),
            ("PB", 1e15),
            ("KiB", k),
            ("MiB", k * k),
            ("GiB", k * k * k),
            ("TiB", k * k * k * k),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_two_digits_and_the_unit_that_fits() {
        for (bytes, want) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.00 kB"),
            (1_234, "1.23 kB"),
            (999_994, "999.99 kB"),
            (999_995, "1.00 MB"),
            (24_000_000_000, "24.00 GB"),
            (80 << 30, "85.90 GB"),
            (999_999_999_999, "1.00 TB"),
            (2_800_000_000_000, "2.80 TB"),
            (u64::MAX, "18.45 EB"),
        ] {
            assert_eq!(Size(bytes).to_string(), want);
        }
        assert_eq!(
            format!("{:<9}|{:>9}", Size(1), Size(1)),
            "1 B      |      1 B"
        );
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, want) in [
            ("32GB", 32_000_000_000),
            ("32 GiB", 32 << 30),
            ("1.5tb", 1_500_000_000_000),
            ("77", 77),
            ("3 kb", 3000),
        ] {
            assert_eq!(size(text), Ok(want), "{text}");
        }
        for bad in ["", "B", "-1B", "nan", "1X", "inf", "1e30T", "é", "GB 3"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        // What is written is read again, to two digits.
        assert_eq!(size(&Size(85_899_345_920).to_string()), Ok(85_900_000_000));
    }
}
