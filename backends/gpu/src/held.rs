//! What a stream puts off while a function of the host's before it has not run: the driver gets it when its turn comes.
//!
//! The device itself never waits for the host. A stream that stands still on the device until a thread of the host lets it go holds up much that
//! has nothing to do with it: page-locked memory is freed only when the whole device stands still, a driver's queue takes about a thousand calls and
//! then blocks the caller, and streams share the device's queues. Ranks that share a GPU waited for each other for ever (ADR 0102).
//!
//! A stream that is held puts off every call. An event whose record is put off is not complete, and a stream that waits for it is held too, until the
//! record has been given to the driver.

use crate::lock;
use crate::stream::{Lane, Line, Mark};
use crossweave_plugin::{Code, Error, HostCall, Result};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// One call that is put off.
pub(crate) enum Item {
    Do(Box<dyn FnOnce(&Lane<'_>) -> Result<()> + Send>),
    Record(Arc<Mark>),
    Wait(Arc<Mark>),
    Call(HostCall),
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    /// A function of the host's is under way: nothing behind it may begin.
    calling: bool,
    /// A thread is giving the driver what was put off.
    flushing: bool,
    /// Something changed meanwhile: it looks again before it stops.
    again: bool,
    /// The stream is going away.
    dead: bool,
}

/// A stream's side of it.
#[derive(Default)]
pub(crate) struct Held {
    /// Calls are put off. Set by who calls the stream, which the host serialises; cleared under the lock.
    on: AtomicBool,
    queue: Mutex<Queue>,
}

impl Line {
    /// Are calls put off?
    pub(crate) fn held(&self) -> bool {
        self.held.on.load(Ordering::Acquire)
    }

    /// Gives the driver a call, now or when its turn comes. A failure then is the stream's.
    pub(crate) fn put(
        &self,
        f: impl FnOnce(&Lane<'_>) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        // What is captured does not run now.
        if !self.held() || self.captures() {
            return f(&self.lane());
        }
        // A lost device says so at once, as the driver would.
        self.dev.alive()?;
        match self.behind(Item::Do(Box::new(f))) {
            Some(Item::Do(f)) => f(&self.lane()),
            _ => Ok(()),
        }
    }

    /// Puts an item off, or gives it back: the stream is not held any more.
    pub(crate) fn behind(&self, item: Item) -> Option<Item> {
        let mut q = lock(&self.held.queue);
        if !self.held() {
            return Some(item);
        }
        q.items.push_back(item);
        None
    }

    /// A function of the host's is under way.
    pub(crate) fn calling(&self) {
        lock(&self.held.queue).calling = true;
        self.held.on.store(true, Ordering::Release);
    }

    /// It has run.
    pub(crate) fn called(self: &Arc<Self>) {
        lock(&self.held.queue).calling = false;
        self.flush();
    }

    /// The next call waits for a record that is put off.
    pub(crate) fn hold_for(&self, mark: &Arc<Mark>) {
        lock(&self.held.queue)
            .items
            .push_back(Item::Wait(mark.clone()));
        self.held.on.store(true, Ordering::Release);
    }

    /// Gives the driver what may go, of this stream and of those that waited for its events.
    pub(crate) fn flush(self: &Arc<Self>) {
        let mut ready = vec![self.clone()];
        while let Some(line) = ready.pop() {
            line.drain(&mut ready);
        }
    }

    fn drain(self: &Arc<Self>, ready: &mut Vec<Arc<Line>>) {
        {
            let mut q = lock(&self.held.queue);
            if q.flushing {
                q.again = true;
                return;
            }
            q.flushing = true;
        }
        // The lock is free while the driver is called, which may block.
        while let Some(item) = self.next() {
            let done = match item {
                // Not what is being captured.
                Item::Do(f) => f(&self.own_lane()),
                Item::Record(mark) => {
                    let done = mark.record(self.raw);
                    ready.append(&mut mark.issued());
                    done
                }
                Item::Wait(mark) => self.wait_raw(&mark),
                Item::Call(f) => {
                    self.call_next(f);
                    Ok(())
                }
            };
            if let Err(e) = done {
                self.fault.set(e);
            }
        }
    }

    /// The item whose turn it is; `None`: there is none, and who flushes has stopped.
    fn next(&self) -> Option<Item> {
        let mut q = lock(&self.held.queue);
        loop {
            if q.dead {
                // Work of a stream that is going away is dropped; functions run, and who waits for an event is let go.
                q.items
                    .retain(|i| matches!(i, Item::Call(_) | Item::Record(_)));
            }
            let blocked = q.calling
                || match q.items.front() {
                    Some(Item::Wait(mark)) => !mark.is_issued(),
                    Some(_) => false,
                    None => {
                        self.held.on.store(false, Ordering::Release);
                        true
                    }
                };
            if !blocked {
                return q.items.pop_front();
            }
            if !std::mem::take(&mut q.again) {
                q.flushing = false;
                return None;
            }
        }
    }

    /// Begins a function whose turn has come.
    fn call_next(self: &Arc<Self>, f: HostCall) {
        let back = {
            let mut q = lock(&self.held.queue);
            q.calling = !q.dead;
            q.dead
        };
        let back = match back {
            true => Some(f),
            false => self.hand_over(f),
        };
        if let Some(f) = back {
            lock(&self.held.queue).calling = false;
            gone(f);
        }
    }

    /// The stream is going away: functions whose turn has not come are run with `Aborted`.
    pub(crate) fn close(&self) {
        lock(&self.held.queue).dead = true;
    }

    /// The stream is destroyed and its functions have run: what is still put off is dropped, except that functions run and events are recorded.
    pub(crate) fn abandon(&self) {
        let items = loop {
            let mut q = lock(&self.held.queue);
            if !q.flushing {
                q.calling = false;
                self.held.on.store(false, Ordering::Release);
                break std::mem::take(&mut q.items);
            }
            drop(q);
            std::thread::yield_now();
        };
        for item in items {
            match item {
                Item::Call(f) => gone(f),
                Item::Record(mark) => {
                    if let Err(e) = mark.record(self.raw) {
                        self.fault.set(e);
                    }
                    mark.issued().iter().for_each(Line::flush);
                }
                Item::Do(_) | Item::Wait(_) => {}
            }
        }
    }
}

/// Runs a function whose stream is gone; a panic in it is the host's.
fn gone(f: HostCall) {
    let e = Error::new(Code::Aborted, "the stream was destroyed");
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f(Err(e))));
}
