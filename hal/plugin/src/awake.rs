//! A clock that stands still while the process does: deadlines count time in which the process ran.
//!
//! A job that a scheduler stops and continues (SIGSTOP and SIGCONT), or a machine that sleeps, comes back with every deadline in the past,
//! though nobody was late. So a wait looks at this clock again and again, and a look that comes long after the one before counts
//! as one short pause.

use std::time::{Duration, Instant};

/// Longest time between two looks that counts; a wait looks at least twice as often.
const LAPSE: Duration = Duration::from_secs(1);

/// Time since a wait began in which the process ran.
#[derive(Clone, Copy, Debug)]
pub struct Awake {
    timeout: Duration,
    lapse: Duration,
    last: Instant,
    ran: Duration,
}

impl Awake {
    /// A wait of at most `timeout` begins.
    pub fn new(timeout: Duration) -> Awake {
        Awake {
            timeout,
            // One stop must not use up a short timeout.
            lapse: LAPSE.min(timeout / 4).max(Duration::from_millis(1)),
            last: Instant::now(),
            ran: Duration::ZERO,
        }
    }

    /// Time the process ran since the wait began.
    pub fn ran(&mut self) -> Duration {
        self.at(Instant::now())
    }

    fn at(&mut self, now: Instant) -> Duration {
        self.ran += now.saturating_duration_since(self.last).min(self.lapse);
        self.last = now;
        self.ran
    }

    /// Is the time over?
    pub fn is_over(&mut self) -> bool {
        self.ran() >= self.timeout
    }

    /// Longest pause until the next look; zero when the time is over.
    pub fn pause(&mut self) -> Duration {
        let left = self.timeout.saturating_sub(self.ran());
        left.min(self.lapse / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_counts_as_one_short_pause() {
        let mut a = Awake::new(Duration::from_secs(10));
        let start = a.last;
        let after = |ms: u64| start + Duration::from_millis(ms);
        assert_eq!(a.at(after(400)), Duration::from_millis(400));
        // Stopped for an hour.
        assert_eq!(a.at(after(3_600_400)), Duration::from_millis(1400));
        assert_eq!(a.at(after(3_600_900)), Duration::from_millis(1900));
        for i in 1..=17 {
            a.at(after(3_600_900 + i * 500));
        }
        assert!(a.is_over() && a.pause().is_zero());
        // A stop does not use up a short wait.
        let mut a = Awake::new(Duration::from_millis(200));
        let late = a.last + Duration::from_secs(60);
        assert_eq!(a.at(late), Duration::from_millis(50));
        assert!(Awake::new(Duration::ZERO).is_over());
    }
}
