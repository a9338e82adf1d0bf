//! How a thread waits here: spin for a moment, yield, then park. Spinning is only worth it while there are cores to spare.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Counts the backend's threads that are not parked, to know when spinning would steal a core from work.
pub(crate) struct Pace {
    cores: usize,
    awake: AtomicUsize,
}

impl Pace {
    pub(crate) fn new() -> Pace {
        Pace {
            cores: std::thread::available_parallelism().map_or(1, |n| n.get()),
            awake: AtomicUsize::new(0),
        }
    }

    /// Cores this process may use.
    pub(crate) fn cores(&self) -> usize {
        self.cores
    }

    /// A thread of ours starts to run, or wakes.
    pub(crate) fn wake(&self) {
        self.awake.fetch_add(1, Ordering::Relaxed);
    }

    /// A thread of ours parks, or ends.
    pub(crate) fn park(&self) {
        self.awake.fetch_sub(1, Ordering::Relaxed);
    }

    /// More of our threads are awake than there are cores.
    pub(crate) fn crowded(&self) -> bool {
        self.awake.load(Ordering::Relaxed) > self.cores
    }

    /// Spins until `ready`, at most about `budget`; a crowded machine gets a yield or two instead. Answers whether it became ready.
    pub(crate) fn spin(&self, budget: Duration, ready: impl Fn() -> bool) -> bool {
        if ready() {
            return true;
        }
        if self.crowded() {
            for _ in 0..2 {
                std::thread::yield_now();
                if ready() {
                    return true;
                }
            }
            return false;
        }
        // The clock is not read while what is awaited may come at any moment.
        let look = || {
            (0..32).any(|_| {
                std::hint::spin_loop();
                ready()
            })
        };
        if look() {
            return true;
        }
        let start = Instant::now();
        loop {
            if look() {
                return true;
            }
            if start.elapsed() >= budget || self.crowded() {
                return ready();
            }
        }
    }
}

/// The moment a timeout ends; `None` = never.
pub(crate) fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|t| Instant::now().checked_add(t))
}
