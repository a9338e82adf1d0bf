//! Moments of the calendar as text, in UTC: what a run records and its report shows, without a table of time zones.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970.
pub fn unix() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}

/// `2026-11-24 03:12:07 UTC`; none beyond the year 9999.
pub fn utc(unix: u64) -> Option<String> {
    let (days, seconds) = (unix / 86_400, unix % 86_400);
    // Days are counted from 1 March of the year 0, so that a leap day is the last of its year; 400 years are always 146 097 days.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    (year <= 9999).then(|| {
        format!(
            "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC",
            seconds / 3600,
            seconds / 60 % 60,
            seconds % 60
        )
    })
}

/// `1h02m`, `3m05s`, `12s`.
pub fn clock(seconds: f64) -> String {
    let s = seconds.max(0.0).round() as u64;
    match (s / 3600, s / 60 % 60, s % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s:02}s"),
        (h, m, _) => format!("{h}h{m:02}m"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_of_leap_years_and_centuries_are_right() {
        for (unix, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_709_251_199, "2024-02-29 23:59:59 UTC"),
            (1_709_251_200, "2024-03-01 00:00:00 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
            (1_795_489_527, "2026-11-24 03:05:27 UTC"),
        ] {
            assert_eq!(utc(unix).as_deref(), Some(text));
        }
        assert_eq!(utc(u64::MAX), None);
    }

    #[test]
    fn times_read_well() {
        assert_eq!(clock(11.6), "12s");
        assert_eq!(clock(185.0), "3m05s");
        assert_eq!(clock(3725.0), "1h02m");
    }
}
