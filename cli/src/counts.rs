//! Counts of parameters and tokens as people write them: `7.5B`.

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
    fn counts_are_shown() {
        assert_eq!(show_count(1.5e9), "1.5B");
        assert_eq!(show_count(1e12), "1T");
    }
}
