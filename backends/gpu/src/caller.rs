//! Host calls of a stream on a thread of its own.
//!
//! A driver's own host functions are not enough: it may run those of all streams on one thread, so that a call that waits for another
//! stream's call (a collective carried through pinned memory does) never ends, and after a failure it runs nothing. Here the stream records an
//! event and then waits for a word of pinned memory; the thread waits for the event, runs the function with its outcome, and writes the word.
//! Where the device cannot wait for words the stream's wait is a host function that sleeps until the thread is done.

use crate::device::Dev;
use crate::lock;
use crate::memory::Mem;
use crate::runtime::*;
use crate::stream::{Event, Fault};
use crate::wait::{self, End};
use crossweave_plugin::{Code, HostCall, Result, fail};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How long a destroyed stream may take to pass its last wait.
const GIVE_UP: Duration = Duration::from_secs(10);

struct Call {
    event: Event,
    /// What was given up on the stream, which lets it go on.
    fault: Arc<Fault>,
    ticket: u64,
    f: HostCall,
}

#[derive(Default)]
struct Queue {
    calls: VecDeque<Call>,
    /// Events for the next calls.
    spare: Vec<Event>,
    stop: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// The last call that has been run, in pinned memory.
    word: Mem,
    gate: Arc<Gate>,
}

/// The last call that has been run, for who sleeps in a host function: memory of the device's is nothing the driver's thread may let go.
#[derive(Default)]
struct Gate {
    done: Mutex<u64>,
    moved: Condvar,
}

impl Shared {
    fn finish(&self, ticket: u64) {
        if let Ok(word) = self.word.map() {
            // SAFETY: an aligned word of pinned memory that lives as long as `self`; the device only reads it.
            unsafe { &*word.cast::<AtomicU64>() }.store(ticket, Ordering::Release);
        }
        *lock(&self.gate.done) = ticket;
        self.gate.moved.notify_all();
    }
}

/// The thread, and what the stream shares with it.
pub(crate) struct Caller {
    dev: Arc<Dev>,
    shared: Arc<Shared>,
    ended: End,
    next: u64,
}

impl Caller {
    pub(crate) fn new(dev: &Arc<Dev>) -> Result<Caller> {
        let word = Mem::pinned(dev, 8, 64)?;
        // SAFETY: `pinned` memory is mapped and has room for the word.
        unsafe { word.map()?.cast::<u64>().write(0) };
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            changed: Condvar::new(),
            word,
            gate: Arc::default(),
        });
        let of_thread = shared.clone();
        let (ended, teller) = End::new();
        dev.api.host.spawn(Box::new(move || {
            // Dropped last.
            let _teller = teller;
            let shared = of_thread;
            serve(&shared);
        }))?;
        Ok(Caller {
            dev: dev.clone(),
            shared,
            ended,
            next: 0,
        })
    }

    /// `Err`: refused, and the function is not run. Otherwise it runs once, whatever becomes of the stream; inside, whether the stream
    /// waits for it.
    pub(crate) fn call(
        &mut self,
        stream: Handle,
        fault: &Arc<Fault>,
        f: HostCall,
    ) -> Result<Result<()>> {
        // A refusal comes before anything is queued: the function then still belongs to the host.
        self.dev.alive()?;
        let spare = lock(&self.shared.queue).spare.pop();
        let event = match spare {
            Some(e) => e,
            None => Event::new(&self.dev, EVENT_NO_TIMES)?,
        };
        event.record_raw(stream)?;
        self.next += 1;
        let ticket = self.next;
        let mut q = lock(&self.shared.queue);
        let fault = fault.clone();
        q.calls.push_back(Call {
            event,
            fault,
            ticket,
            f,
        });
        drop(q);
        self.shared.changed.notify_all();
        Ok(self.hold(stream, ticket))
    }

    /// The stream goes on when the call has been run.
    fn hold(&self, stream: Handle, ticket: u64) -> Result<()> {
        let _in = self.dev.enter()?;
        let rt = self.dev.rt();
        match self.dev.facts.mem_ops {
            true => {
                // SAFETY: the word lives until the stream is gone (`Drop`).
                self.dev
                    .check(unsafe { rt.wait_value(stream, self.shared.word.at, ticket) })
            }
            false => {
                let arg = Box::into_raw(Box::new((self.shared.gate.clone(), ticket)));
                // SAFETY: `sleep` takes the box, once.
                let o = unsafe { rt.host_func(stream, sleep, arg.cast()) };
                if !o.done() {
                    // SAFETY: the driver refused, so it never calls `sleep`.
                    drop(unsafe { Box::from_raw(arg) });
                }
                self.dev.check(o)
            }
        }
    }
}

/// Runs on the driver's thread, where no call of the driver is allowed.
unsafe extern "C" fn sleep(arg: *mut c_void) {
    // SAFETY: the box made in `hold`, handed over once.
    let (gate, ticket) = *unsafe { Box::from_raw(arg.cast::<(Arc<Gate>, u64)>()) };
    let mut done = lock(&gate.done);
    while *done < ticket {
        done = gate
            .moved
            .wait(done)
            .unwrap_or_else(PoisonError::into_inner);
    }
}

fn serve(shared: &Shared) {
    loop {
        let mut q = lock(&shared.queue);
        let call = loop {
            match q.calls.pop_front() {
                Some(c) => break c,
                None if q.stop => return,
                None => {
                    q = shared
                        .changed
                        .wait(q)
                        .unwrap_or_else(PoisonError::into_inner)
                }
            }
        };
        drop(q);
        let Call {
            event,
            fault,
            ticket,
            f,
        } = call;
        let reached = wait::until("the stream", None, || match lock(&shared.queue).stop {
            // Given up: nobody waits for what is still queued.
            true if !event.query()? => fail(Code::Aborted, "the stream was destroyed"),
            true => Ok(true),
            false => event.query(),
        });
        let failed = reached.is_err();
        // The function is the host's; a panic in it must not end the thread on which the stream waits.
        let told = reached.and_then(|()| fault.check());
        let _ = std::panic::catch_unwind(AssertUnwindSafe(|| f(told)));
        shared.finish(ticket);
        if !failed {
            lock(&shared.queue).spare.push(event);
        }
    }
}

impl Caller {
    /// Ends the thread; calls still queued whose turn has not come are run with `Aborted`. Then the stream is let go and `passed` asked until
    /// the stream no longer reads the word.
    pub(crate) fn retire(self, passed: impl FnMut() -> Result<bool>) {
        lock(&self.shared.queue).stop = true;
        self.shared.changed.notify_all();
        self.ended.wait();
        // Every call has been run, so the word is at the last ticket and nothing the stream still waits for is above it.
        self.shared.finish(self.next);
        let end = wait::until("the stream", Some(GIVE_UP), passed);
        if matches!(&end, Err(e) if e.code != Code::DeviceLost) {
            // Something else holds the stream, perhaps for good: a lost page of memory is better than a device that reads freed memory.
            std::mem::forget(self.shared);
        }
    }
}
