//! What one rendering may use: steps, which bound its time, and bytes that are alive at once.
//!
//! Every value that a template makes takes its bytes from the budget when it is made and gives them back when it is dropped; everything
//! that makes a large one asks for room first. So the bounds hold whatever filter, method or operator makes a value.

use crate::error::{Result, fail};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Steps of a rendering of nothing: a fraction of a second. Published templates take some hundreds for a message.
const STEPS: u64 = 2_000_000;
/// Further steps for each byte of the messages.
const STEPS_PER_BYTE: u64 = 32;
/// Bytes alive at once in a rendering of nothing.
const BYTES: usize = 6 << 20;
/// Further bytes for each byte of the messages.
const BYTES_PER_BYTE: usize = 16;
/// Bytes that are copied, compared or searched in the time of one step.
const BYTES_PER_STEP: usize = 64;
/// The depth to which values may nest: lists in lists, and so on. Printing, comparing and dropping
/// a value recurse so deep.
pub(crate) const MAX_DEPTH: u16 = 200;
/// The depth to which expressions, blocks, calls of macros and filters within filters may nest
/// while a template runs.
const MAX_CALLS: u32 = 150;

/// The number of bytes that are alive.
#[derive(Debug, Default)]
struct Tally(AtomicUsize);

/// Bytes that a value holds, which go back to the budget when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Held {
    bytes: usize,
    tally: Option<Arc<Tally>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(tally) = &self.tally {
            tally.0.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

/// The budget of one rendering.
#[derive(Debug)]
pub(crate) struct Budget {
    steps: Cell<u64>,
    calls: Cell<u32>,
    limit: usize,
    tally: Arc<Tally>,
}

impl Budget {
    /// The budget for messages of so many bytes.
    pub(crate) fn new(input: usize) -> Budget {
        Budget {
            steps: Cell::new(STEPS.saturating_add(STEPS_PER_BYTE.saturating_mul(input as u64))),
            calls: Cell::new(0),
            limit: BYTES.saturating_add(BYTES_PER_BYTE.saturating_mul(input)),
            tally: Arc::default(),
        }
    }

    /// A budget for what is no rendering.
    pub(crate) fn unbounded() -> Budget {
        Budget {
            steps: Cell::new(u64::MAX),
            calls: Cell::new(0),
            limit: usize::MAX,
            tally: Arc::default(),
        }
    }

    /// Takes `n` steps.
    pub(crate) fn step(&self, n: u64) -> Result<()> {
        match self.steps.get().checked_sub(n) {
            Some(left) => {
                self.steps.set(left);
                Ok(())
            }
            None => {
                self.steps.set(0);
                fail(
                    "the template takes too long: more steps than any conversation of this size needs",
                )
            }
        }
    }

    /// Goes one level deeper, and takes a step. [`Budget::leave`] goes back.
    pub(crate) fn enter(&self) -> Result<()> {
        let calls = self.calls.get();
        if calls >= MAX_CALLS {
            return fail(
                "the template calls itself too deep: a macro or a recursive loop without an end?",
            );
        }
        self.step(1)?;
        self.calls.set(calls + 1);
        Ok(())
    }

    /// Goes back from where [`Budget::enter`] went.
    pub(crate) fn leave(&self) {
        self.calls.set(self.calls.get().saturating_sub(1));
    }

    /// Takes the steps of reading `bytes` bytes.
    pub(crate) fn scan(&self, bytes: usize) -> Result<()> {
        self.step(1 + (bytes / BYTES_PER_STEP) as u64)
    }

    /// Takes the steps of looking at every character of a text.
    pub(crate) fn read(&self, text: &str) -> Result<()> {
        let each = if text.is_ascii() { 2 } else { 8 };
        self.scan(text.len().saturating_mul(each))
    }

    /// Takes the steps of making `bytes` more bytes, and fails where there is no room for them.
    pub(crate) fn room(&self, bytes: usize) -> Result<()> {
        self.scan(bytes)?;
        self.fits(bytes)
    }

    /// Fails where there is no room for `bytes` more bytes.
    pub(crate) fn fits(&self, bytes: usize) -> Result<()> {
        let alive = self.tally.0.load(Ordering::Relaxed);
        match alive
            .checked_add(bytes)
            .is_some_and(|sum| sum <= self.limit)
        {
            true => Ok(()),
            false => fail(format!(
                "the template makes too much text or too large a list: more than {} bytes for a conversation of this size",
                self.limit
            )),
        }
    }

    /// Takes `bytes` bytes for a value.
    pub(crate) fn hold(&self, bytes: usize) -> Result<Held> {
        self.room(bytes)?;
        self.tally.0.fetch_add(bytes, Ordering::Relaxed);
        Ok(Held {
            bytes,
            tally: Some(self.tally.clone()),
        })
    }

    /// Takes `bytes` bytes without a value that gives them back: for output.
    pub(crate) fn take(&self, bytes: usize) -> Result<()> {
        self.room(bytes)?;
        self.tally.0.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Gives back what [`Budget::take`] took.
    pub(crate) fn give(&self, bytes: usize) {
        self.tally.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}
