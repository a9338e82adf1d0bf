//! Defects that show only where there are many: ops alive, launches in flight, threads.

use crossweave_plugin::{Code, Result, fail};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How many there are of what a plugin may run out of.
#[derive(Default)]
pub struct Crowd {
    alive: Arc<AtomicU64>,
    preparing: AtomicU64,
    flying: Arc<AtomicU64>,
    given: Mutex<Vec<u8>>,
}

/// An op's place among those alive.
pub struct Place {
    number: u64,
    alive: Arc<AtomicU64>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Relaxed);
    }
}

impl Place {
    /// Is the op beyond what a table of 512 holds?
    pub fn is_beyond(&self) -> bool {
        self.number >= 512
    }
}

impl Crowd {
    /// A place for an op that is prepared.
    pub fn place(&self) -> Place {
        let alive = self.alive.clone();
        let number = alive.fetch_add(1, Relaxed);
        Place { number, alive }
    }

    /// Prepares as a plugin that cannot from two threads at once.
    pub fn alone<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        let others = self.preparing.fetch_add(1, Relaxed);
        std::thread::sleep(Duration::from_micros(100));
        let done = match others {
            0 => f(),
            _ => fail(Code::Internal, "another thread prepares an op"),
        };
        self.preparing.fetch_sub(1, Relaxed);
        done
    }

    /// The struct of a launch, where a ring of 64 holds them: beyond it the one before stands for it. With it what is called when the
    /// stream comes to the launch.
    pub fn in_ring(&self, given: &[u8]) -> (Vec<u8>, impl FnOnce() + Send + 'static) {
        let ahead = self.flying.fetch_add(1, Relaxed);
        let mut last = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        if ahead < 64 || last.len() != given.len() {
            *last = given.to_vec();
        }
        let flying = self.flying.clone();
        (last.clone(), move || {
            flying.fetch_sub(1, Relaxed);
        })
    }
}
