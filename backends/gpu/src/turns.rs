//! Threads that do something one after the other, in the order in which they drew: what a library takes once at a time.

use crate::lock;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// The order.
#[derive(Default)]
pub(crate) struct Turns {
    /// The next number to give, and the one whose turn it is.
    numbers: Mutex<(u64, u64)>,
    changed: Condvar,
}

/// A place in the order of [`Turns`], which the next has when this is dropped.
pub(crate) struct Turn(Arc<Turns>, u64);

impl Turns {
    /// The next place.
    pub(crate) fn draw(self: &Arc<Self>) -> Turn {
        let mut n = lock(&self.numbers);
        n.0 += 1;
        Turn(self.clone(), n.0 - 1)
    }
}

impl Turn {
    /// Waits until it has its turn.
    pub(crate) fn wait(&self) {
        let mut n = lock(&self.0.numbers);
        while n.1 != self.1 {
            n = self
                .0
                .changed
                .wait(n)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.wait();
        lock(&self.0.numbers).1 += 1;
        self.0.changed.notify_all();
    }
}
