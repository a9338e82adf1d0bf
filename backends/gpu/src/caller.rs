//! Functions of the host's that a stream runs, on a thread of their own.
//!
//! A driver's own host functions are not enough: it may run those of all streams on one thread, so that a function that waits for another
//! stream's (a collective carried through pinned memory does) never ends, and after a failure it runs nothing. Here the stream records an event; the
//! thread waits for it, runs the function with its outcome, and gives the driver what the stream has put off meanwhile (`held.rs`).

use crate::device::Dev;
use crate::lock;
use crate::runtime::*;
use crate::stream::{Event, Line};
use crate::wait::{self, End};
use crossweave_plugin::{Code, HostCall, Result, fail};
use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

struct Call {
    /// Behind what comes before the function; `Err`: it could not be recorded.
    event: Result<Event>,
    f: HostCall,
}

#[derive(Default)]
struct Queue {
    calls: VecDeque<Call>,
    /// Events for the next calls.
    spare: Vec<Event>,
    stop: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// The thread.
pub(crate) struct Caller {
    shared: Arc<Shared>,
    ended: End,
}

impl Caller {
    pub(crate) fn new(line: &Arc<Line>) -> Result<Caller> {
        let shared = Arc::<Shared>::default();
        let (of_thread, line) = (shared.clone(), line.clone());
        let host = line.dev.api.host;
        let (ended, teller) = End::new();
        host.spawn(Box::new(move || {
            // Dropped last: who has waited may count on the thread holding nothing of the device's.
            let _teller = teller;
            let (shared, line) = (of_thread, line);
            serve(&shared, &line);
        }))?;
        Ok(Caller { shared, ended })
    }

    /// An event behind what the stream has been given.
    pub(crate) fn mark(&self, dev: &Arc<Dev>, stream: Handle) -> Result<Event> {
        dev.alive()?;
        let spare = lock(&self.shared.queue).spare.pop();
        let event = match spare {
            Some(e) => e,
            None => Event::new(dev, EVENT_NO_TIMES)?,
        };
        event.record_raw(stream)?;
        Ok(event)
    }

    /// Runs the function behind the event, whatever becomes of the stream.
    pub(crate) fn call(&self, event: Result<Event>, f: HostCall) {
        lock(&self.shared.queue).calls.push_back(Call { event, f });
        self.shared.changed.notify_all();
    }

    /// Ends the thread; a function whose turn has not come is run with `Aborted`.
    pub(crate) fn retire(self) {
        lock(&self.shared.queue).stop = true;
        self.shared.changed.notify_all();
        self.ended.wait();
    }
}

fn serve(shared: &Shared, line: &Arc<Line>) {
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
        let Call { event, f } = call;
        let reached = event.and_then(|event| {
            wait::until("the stream", None, || match lock(&shared.queue).stop {
                // Given up: nobody waits for what is still queued.
                true if !event.query()? => fail(Code::Aborted, "the stream was destroyed"),
                true => Ok(true),
                false => event.query(),
            })?;
            lock(&shared.queue).spare.push(event);
            Ok(())
        });
        // The function is the host's; a panic in it must not end the thread on which the stream waits.
        let told = reached.and_then(|()| line.fault.check());
        let _ = std::panic::catch_unwind(AssertUnwindSafe(|| f(told)));
        line.called();
    }
}
