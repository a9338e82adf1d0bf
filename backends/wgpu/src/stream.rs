//! A stream is an in-order queue served by its own thread: enqueue is a short lock, the thread records commands for the adapter.
//!
//! The producer appends to a batch (commands, operands and launch-time words in three vectors); the thread swaps the whole batch for an empty
//! one. The n-th command has sequence number n. A stream has two marks: `submitted`, up to which commands are in the adapter's queue, which
//! is one for all streams, so that who comes after it on any stream comes after it on the adapter; and `done`, up to which they have
//! ended. A failure is sticky: later commands are passed without being run, and every later call reports it.

use crate::device::{Fault, Shared, lock, panic_text};
use crate::dispatch::Ready;
use crate::encode::Encoder;
use crate::kernel::Words;
use crate::memory::{Place, Region};
use crossweave_plugin::{Code, Error, Host, HostCall, Result, fail};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long recorded commands wait for company while nobody waits for them.
const LINGER: Duration = Duration::from_micros(200);
/// How long a destroyed stream goes on waiting for others before it gives its work up.
const CLOSE_GRACE: Duration = Duration::from_secs(1);
/// A batch that grew beyond this is given back instead of kept.
const KEEP: usize = 4096;

/// Rows to copy: the pitches count bytes from row to row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub dpitch: u64,
    pub spitch: u64,
    pub width: u64,
    pub height: u64,
}

pub(crate) enum Cmd {
    /// Operands from `first` in [`Batch::regions`] (the workspace last), words at `words` in [`Batch::words`].
    Launch {
        op: Arc<Ready>,
        first: u32,
        words: u32,
    },
    /// Bytes made on this thread.
    Upload {
        dst: Region,
        make: Box<dyn FnOnce() -> Result<Vec<u8>> + Send>,
    },
    Copy {
        dst: Region,
        src: Region,
        rows: Rows,
    },
    Fill {
        dst: Region,
        bytes: u64,
        /// Repeated to eight bytes.
        pattern: u64,
    },
    Wait(Arc<Core>, u64),
    HostCall(HostCall),
}

impl Cmd {
    fn name(&self) -> &'static str {
        match self {
            Cmd::Launch { op, .. } => op.name,
            Cmd::Upload { .. } => "upload",
            Cmd::Copy { .. } => "copy",
            Cmd::Fill { .. } => "fill",
            Cmd::Wait(..) => "stream_wait_event",
            Cmd::HostCall(_) => "stream_host_call",
        }
    }
}

#[derive(Default)]
pub(crate) struct Batch {
    cmds: Vec<Cmd>,
    pub regions: Vec<Option<Region>>,
    pub words: Vec<Words>,
}

#[derive(Default)]
struct Queue {
    batch: Batch,
    pushed: u64,
    started: bool,
    /// Somebody waits: nothing lingers.
    hurry: bool,
    closing: Option<Instant>,
}

/// How far a stream has come.
#[derive(Default)]
pub(crate) struct Progress {
    marks: Mutex<Marks>,
    changed: Condvar,
    /// `Marks::done`, to look at without the lock.
    done: AtomicU64,
    /// Is there a `Marks::failure`? Every launch asks.
    failed: AtomicBool,
}

#[derive(Default)]
struct Marks {
    submitted: u64,
    done: u64,
    /// Sequence number and text of the first failure.
    failure: Option<(u64, Error)>,
    ended: bool,
}

impl Progress {
    /// Everything up to `seq` has ended.
    pub fn pass(&self, seq: u64) {
        let mut m = lock(&self.marks);
        m.done = m.done.max(seq);
        m.submitted = m.submitted.max(seq);
        self.done.store(m.done, Release);
        self.changed.notify_all();
    }

    /// Everything up to `seq` is in the adapter's queue.
    pub fn submit(&self, seq: u64) {
        let mut m = lock(&self.marks);
        m.submitted = m.submitted.max(seq);
        self.changed.notify_all();
    }

    pub fn passed(&self, seq: u64) -> bool {
        self.done.load(Acquire) >= seq
    }

    /// Until everything up to `seq` has ended.
    pub fn wait_all(&self, seq: u64) {
        self.wait(None, None, |m| m.done >= seq);
    }

    pub fn fail(&self, seq: u64, e: Error) {
        let mut m = lock(&self.marks);
        if m.failure.is_none() {
            m.failure = Some((seq, e.sticky()));
            self.failed.store(true, Release);
        }
    }

    /// The failure that reached command `seq`, if any.
    fn failure_before(&self, seq: u64) -> Option<Error> {
        if !self.failed.load(Acquire) {
            return None;
        }
        let m = lock(&self.marks);
        let f = m.failure.as_ref().filter(|(at, _)| *at <= seq);
        f.map(|(_, e)| e.clone())
    }

    /// Until `over`; `false` = the deadline passed, or `give_up` said so (asked every 20 ms).
    fn wait(
        &self,
        end: Option<Instant>,
        give_up: Option<&dyn Fn() -> bool>,
        over: impl Fn(&Marks) -> bool,
    ) -> bool {
        let mut m = lock(&self.marks);
        loop {
            if over(&m) {
                return true;
            }
            if give_up.is_some_and(|g| g()) {
                return false;
            }
            let left = end.map(|e| e.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return false;
            }
            let poll = give_up.map(|_| Duration::from_millis(20));
            m = match left.into_iter().chain(poll).min() {
                Some(d) => {
                    self.changed
                        .wait_timeout(m, d)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
                None => self.changed.wait(m).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

/// What a stream's handle, its thread and the events recorded on it share.
pub(crate) struct Core {
    queue: Mutex<Queue>,
    work: Condvar,
    pub progress: Arc<Progress>,
    thread: Mutex<Option<std::thread::ThreadId>>,
    fault: Arc<Fault>,
}

impl Core {
    pub fn new(fault: Arc<Fault>) -> Core {
        Core {
            queue: Mutex::default(),
            work: Condvar::new(),
            progress: Arc::default(),
            thread: Mutex::default(),
            fault,
        }
    }

    /// Somebody waits for what is recorded.
    fn hurry(&self) {
        let mut q = lock(&self.queue);
        q.hurry = true;
        drop(q);
        self.work.notify_one();
    }

    pub fn wait_done(&self, seq: u64, timeout: Option<Duration>) -> bool {
        if self.progress.passed(seq) {
            return true;
        }
        self.hurry();
        // A timeout beyond the clock's range is none.
        let end = timeout.and_then(|t| Instant::now().checked_add(t));
        self.progress.wait(end, None, |m| m.done >= seq)
    }

    /// The device's failure, or the stream's that reached command `seq`.
    pub fn failure_before(&self, seq: u64) -> Option<Error> {
        self.fault
            .get()
            .or_else(|| self.progress.failure_before(seq))
    }

    fn given_up(&self) -> bool {
        lock(&self.queue)
            .closing
            .is_some_and(|since| since.elapsed() > CLOSE_GRACE)
    }
}

/// An in-order queue of a device.
pub struct Stream {
    pub(crate) core: Arc<Core>,
    pub(crate) device: Arc<Shared>,
    host: Host,
}

impl Stream {
    pub(crate) fn new(device: &Arc<Shared>, host: Host) -> Result<Stream> {
        device.check()?;
        Ok(Stream {
            core: Arc::new(Core::new(device.fault.clone())),
            device: device.clone(),
            host,
        })
    }

    /// The device's failure or the stream's.
    pub(crate) fn sticky(&self) -> Result<()> {
        self.core.failure_before(u64::MAX).map_or(Ok(()), Err)
    }

    /// Appends a command; `build` writes its operands into the batch.
    pub(crate) fn push(&self, build: impl FnOnce(&mut Batch) -> Cmd) -> Result<()> {
        self.sticky()?;
        self.append(build)
    }

    fn append(&self, build: impl FnOnce(&mut Batch) -> Cmd) -> Result<()> {
        let mut q = lock(&self.core.queue);
        if !q.started {
            self.start(&mut q)?;
        }
        let cmd = build(&mut q.batch);
        q.batch.cmds.push(cmd);
        q.pushed += 1;
        let first = q.batch.cmds.len() == 1;
        drop(q);
        if first {
            self.core.work.notify_one();
        }
        Ok(())
    }

    fn start(&self, q: &mut Queue) -> Result<()> {
        let (core, device) = (self.core.clone(), self.device.clone());
        let encoder = Encoder::new(&device, core.progress.clone())?;
        self.host.spawn(Box::new(move || serve(&core, encoder)))?;
        q.started = true;
        Ok(())
    }

    /// Commands so far.
    pub(crate) fn pushed(&self) -> u64 {
        lock(&self.core.queue).pushed
    }

    pub(crate) fn query(&self) -> Result<bool> {
        let seq = self.pushed();
        let done = self.core.progress.passed(seq);
        self.sticky()?;
        if !done {
            self.core.hurry();
        }
        Ok(done)
    }

    pub(crate) fn sync(&self, timeout: Option<Duration>) -> Result<()> {
        let seq = self.pushed();
        if !self.core.wait_done(seq, timeout) {
            self.device.check()?;
            let at = self.core.progress.done.load(Acquire) + 1;
            return fail(
                Code::Timeout,
                format!("stream_sync: command {at} of {seq} not passed within {timeout:?}"),
            );
        }
        self.sticky()
    }

    /// Also after a failure, with the failure.
    pub(crate) fn host_call(&self, f: HostCall) -> Result<()> {
        self.append(|_| Cmd::HostCall(f))
    }
}

impl Drop for Stream {
    /// Runs what is queued to its end; only waits for others are cut short, after `CLOSE_GRACE`.
    fn drop(&mut self) {
        let mut q = lock(&self.core.queue);
        q.closing = Some(Instant::now());
        let started = q.started;
        drop(q);
        self.core.work.notify_one();
        let own = *lock(&self.core.thread) == Some(std::thread::current().id());
        // Dropped by its own host call: nobody is left to wait, the thread ends by itself.
        if started && !own {
            self.core.progress.wait(None, None, |m| m.ended);
        }
    }
}

/// The stream's thread.
fn serve(core: &Arc<Core>, mut encoder: Encoder) {
    *lock(&core.thread) = Some(std::thread::current().id());
    let mut seq = 0u64;
    let mut mine = Batch::default();
    let mut host_after: Vec<(Arc<Core>, u64)> = vec![];
    loop {
        let mut q = lock(&core.queue);
        while q.batch.cmds.is_empty() {
            if encoder.pending() {
                let lingers = !q.hurry && q.closing.is_none();
                if lingers {
                    let (guard, late) = core
                        .work
                        .wait_timeout(q, LINGER)
                        .unwrap_or_else(PoisonError::into_inner);
                    q = guard;
                    if !late.timed_out() || !q.batch.cmds.is_empty() {
                        continue;
                    }
                }
                drop(q);
                guarded(core, seq, "submit", || encoder.flush(seq));
                q = lock(&core.queue);
                continue;
            }
            q.hurry = false;
            if q.closing.is_some() {
                break;
            }
            q = core.work.wait(q).unwrap_or_else(PoisonError::into_inner);
        }
        if q.batch.cmds.is_empty() {
            break;
        }
        std::mem::swap(&mut q.batch, &mut mine);
        drop(q);
        let Batch {
            cmds,
            regions,
            words,
        } = &mut mine;
        for cmd in cmds.drain(..) {
            seq += 1;
            encoder.note(seq);
            let name = cmd.name();
            let dead = core.failure_before(u64::MAX);
            if let Some(e) = dead {
                // The first failure is the one to report; a second one in a callback adds nothing.
                if let Cmd::HostCall(f) = cmd {
                    forgiving(|| f(Err(e)));
                }
                continue;
            }
            guarded(core, seq, name, || {
                run(
                    core,
                    &mut encoder,
                    &mut host_after,
                    seq,
                    cmd,
                    regions,
                    words,
                )
            });
        }
        regions.clear();
        words.clear();
        if cmds.capacity() > KEEP || regions.capacity() > 16 * KEEP {
            mine = Batch::default();
        }
    }
    // Everything recorded was flushed above; the last of it must have ended before its buffers may go.
    core.progress.wait_all(seq);
    forgiving(|| drop(encoder));
    let mut m = lock(&core.progress.marks);
    m.ended = true;
    core.progress.changed.notify_all();
}

fn forgiving(f: impl FnOnce()) {
    if let Err(p) = catch_unwind(AssertUnwindSafe(f)) {
        panic_text(p);
    }
}

/// Runs a piece of a command; an error or a panic is the stream's failure.
fn guarded(core: &Core, seq: u64, name: &str, f: impl FnOnce() -> Result<()>) {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(())) => {}
        Ok(Err(e)) => core.progress.fail(seq, e),
        Err(p) => {
            let text = panic_text(p);
            let e = Error::new(Code::Panic, format!("{name} panicked: {text}"));
            core.progress.fail(seq, e);
        }
    }
}

fn run(
    core: &Arc<Core>,
    encoder: &mut Encoder,
    host_after: &mut Vec<(Arc<Core>, u64)>,
    seq: u64,
    cmd: Cmd,
    regions: &[Option<Region>],
    words: &[Words],
) -> Result<()> {
    match cmd {
        Cmd::Launch {
            op,
            first,
            words: w,
        } => {
            let n = op.regions();
            let operands = &regions[first as usize..first as usize + n];
            encoder.launch(&op, operands, &words[w as usize])
        }
        Cmd::Upload { dst, make } => match &dst.place {
            Place::Device(block) => {
                encoder.flush(seq - 1)?;
                encoder.upload(block, dst.offset, &make()?)
            }
            Place::Host(_) => fail(Code::Invalid, "upload into host memory"),
        },
        Cmd::Fill {
            dst,
            bytes,
            pattern,
        } => {
            if let Place::Host(h) = &dst.place {
                encoder.settle(seq - 1)?;
                join(core, host_after)?;
                let word = pattern.to_le_bytes();
                // SAFETY: the span was checked against the memory, which the region keeps alive; the host orders who touches it.
                let to = unsafe {
                    std::slice::from_raw_parts_mut(
                        h.ptr.as_ptr().add(dst.offset as usize),
                        bytes as usize,
                    )
                };
                to.iter_mut()
                    .enumerate()
                    .for_each(|(i, b)| *b = word[i % 8]);
                return Ok(());
            }
            encoder.fill(&dst, bytes, pattern)
        }
        Cmd::Copy { dst, src, rows } => match (&dst.place, &src.place) {
            (Place::Device(_), Place::Device(_)) => encoder.copy(&dst, &src, rows),
            (Place::Host(_), Place::Device(_)) => encoder.read(seq, &dst, &src, rows),
            (Place::Device(_), Place::Host(from)) => {
                encoder.settle_reads(seq - 1)?;
                join(core, host_after)?;
                let from = from.clone();
                encoder.write(seq, &dst, &from, src.offset, rows)
            }
            (Place::Host(to), Place::Host(from)) => {
                encoder.settle(seq - 1)?;
                join(core, host_after)?;
                for r in 0..rows.height {
                    // SAFETY: the spans were checked against their memories, which the regions keep alive; the host orders who touches
                    // them, and overlap is its error, which a move forgives.
                    unsafe {
                        std::ptr::copy(
                            from.ptr
                                .as_ptr()
                                .add((src.offset + r * rows.spitch) as usize),
                            to.ptr.as_ptr().add((dst.offset + r * rows.dpitch) as usize),
                            rows.width as usize,
                        );
                    }
                }
                Ok(())
            }
        },
        Cmd::Wait(other, at) => {
            // What this stream has recorded may be what the other waits for.
            encoder.flush(seq - 1)?;
            other.hurry();
            let give_up = || core.given_up();
            let arrived = other
                .progress
                .wait(None, Some(&give_up), |m| m.submitted >= at);
            if !arrived {
                return fail(
                    Code::Aborted,
                    "the stream was destroyed while it waited for an event",
                );
            }
            if let Some(e) = other.failure_before(at) {
                return Err(Error {
                    message: format!("waited for an event of a failed stream: {}", e.message),
                    ..e
                });
            }
            // The adapter's queue orders what follows there; what the host touches must wait for the end.
            remember(host_after, other, at);
            Ok(())
        }
        Cmd::HostCall(f) => {
            let ready = encoder
                .settle(seq - 1)
                .and_then(|_| join(core, host_after))
                .and_then(|_| encoder.device().check());
            match ready {
                Ok(()) => {
                    f(Ok(()));
                    Ok(())
                }
                Err(e) => {
                    f(Err(e.clone()));
                    Err(e)
                }
            }
        }
    }
}

/// Notes a point to wait for. One entry a stream and none of what has ended: who never touches host memory may wait for ever new events.
fn remember(host_after: &mut Vec<(Arc<Core>, u64)>, other: Arc<Core>, at: u64) {
    let mut last = at;
    host_after.retain(|(core, at)| {
        let same = Arc::ptr_eq(core, &other);
        if same {
            last = last.max(*at);
        }
        !same && !core.progress.passed(*at)
    });
    if !other.progress.passed(last) {
        host_after.push((other, last));
    }
}

/// Waits for what other streams had to end before this one touches host memory.
fn join(core: &Core, host_after: &mut Vec<(Arc<Core>, u64)>) -> Result<()> {
    for (other, at) in host_after.drain(..) {
        other.hurry();
        let give_up = || core.given_up();
        if !other.progress.wait(None, Some(&give_up), |m| m.done >= at) {
            return fail(
                Code::Aborted,
                "the stream was destroyed while it waited for an event",
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_waits_for_ever_new_events_remembers_each_other_stream_once() {
        let core = || Arc::new(Core::new(Arc::default()));
        let (a, b) = (core(), core());
        let mut after = vec![];
        for at in 1..100 {
            remember(&mut after, a.clone(), at);
            remember(&mut after, b.clone(), 100 - at);
        }
        let points: Vec<_> = after.iter().map(|(_, at)| *at).collect();
        assert_eq!(points, [99, 99], "the furthest point of each");
        a.progress.pass(99);
        remember(&mut after, b.clone(), 1);
        assert_eq!(after.len(), 1, "what has ended is forgotten");
        b.progress.pass(99);
        remember(&mut after, b, 1);
        assert!(after.is_empty());
    }
}
