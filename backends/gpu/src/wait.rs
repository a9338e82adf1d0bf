//! Waiting with a timeout: ask, and sleep longer the longer it takes. The driver's own waits know no timeout. And the end of a thread.

use crate::lock;
use crossweave_plugin::{Code, Result, fail};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the processor is kept busy before the first sleep, so that a short wait is not made a long one by it.
const SPIN: Duration = Duration::from_micros(30);
/// Longest sleep, so that a long wait is late by little.
const LONGEST: Duration = Duration::from_micros(200);

/// The end of a thread of ours, for who waits for it.
pub(crate) struct End(Arc<(Mutex<bool>, Condvar)>);

/// The thread's side, which notifies when it is dropped. The thread drops it last: who has waited may count on it holding nothing of the device's.
pub(crate) struct Teller(Arc<(Mutex<bool>, Condvar)>);

impl Drop for Teller {
    fn drop(&mut self) {
        *lock(&self.0.0) = true;
        self.0.1.notify_all();
    }
}

impl End {
    pub(crate) fn new() -> (End, Teller) {
        let both = Arc::default();
        (End(Arc::clone(&both)), Teller(both))
    }

    pub(crate) fn wait(&self) {
        let mut ended = lock(&self.0.0);
        while !*ended {
            ended = self.0.1.wait(ended).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The next pause after waiting for `waited`: none while spinning, then a 32nd of the wait, within bounds.
pub(crate) fn pause(waited: Duration) -> Option<Duration> {
    (waited >= SPIN).then(|| (waited / 32).clamp(Duration::from_micros(5), LONGEST))
}

/// Waits until `ready` says so, fails, or `timeout` has passed (`None`: for ever; zero: one question).
pub(crate) fn until(
    what: &str,
    timeout: Option<Duration>,
    mut ready: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let start = Instant::now();
    loop {
        if ready()? {
            return Ok(());
        }
        let waited = start.elapsed();
        let left = match timeout {
            Some(t) if waited >= t => {
                return fail(
                    Code::Timeout,
                    format!("{what} has not finished within {:.3} s", t.as_secs_f64()),
                );
            }
            Some(t) => t - waited,
            None => Duration::MAX,
        };
        match pause(waited) {
            Some(p) => std::thread::sleep(p.min(left)),
            None => std::hint::spin_loop(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_from_none_to_the_longest() {
        assert_eq!(pause(Duration::ZERO), None);
        assert_eq!(pause(SPIN), Some(Duration::from_micros(5)));
        assert_eq!(
            pause(Duration::from_millis(1)),
            Some(Duration::from_nanos(31_250))
        );
        assert_eq!(pause(Duration::from_secs(9)), Some(LONGEST));
    }

    #[test]
    fn zero_asks_once_and_a_failure_ends_the_wait() {
        let mut asked = 0;
        let r = until("it", Some(Duration::ZERO), || {
            asked += 1;
            Ok(false)
        });
        assert_eq!((r.unwrap_err().code, asked), (Code::Timeout, 1));
        let r = until("it", None, || fail(Code::DeviceLost, "gone"));
        assert_eq!(r.unwrap_err().code, Code::DeviceLost);
        let mut n = 0;
        let third = || {
            n += 1;
            Ok(n == 3)
        };
        assert!(until("it", None, third).is_ok());
    }
}
