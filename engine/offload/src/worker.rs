//! The executor's thread: it does, in the order in which they are given, what programs give the host.
//!
//! The thread owns all state that rests off the device. It runs the same kernels as the device would, on a second device (the host's),
//! over pinned memory of the first that is lent for the calls; so nothing is copied between the two and the bits are the same. A
//! caller that waits for it gets its failure instead.

use crate::file::{Files, PATIENCE};
use crate::room::{Adding, Held, Memory, unlend};
use crossweave_hal::{Buffer, Device, HostBuffer, Stream};
use crossweave_machine::Pinned;
use crossweave_program::{Brought, Decided};
use crossweave_store::Block;
use crossweave_tensor::{Error, Result, shape_error};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One thing to do.
pub(crate) enum Job {
    /// The words of the step whose updates follow.
    Begin(HostBuffer),
    Grad(usize, Pinned),
    /// The gradient of some micro-batches, to be added up; whether it is of the last.
    Add(usize, Pinned, bool),
    StateIn(usize),
    Update(usize, Decided),
    StateOut(usize),
    /// What the device is given, to the device: destination, and the byte where it goes.
    In((usize, Brought), Arc<Buffer>, u64),
    /// A part, and which of its bytes.
    Read(usize, usize, Range<u64>, SyncSender<Result<Vec<u8>>>),
    /// A part, its first byte, and bytes.
    Write(usize, usize, u64, Vec<u8>, SyncSender<Result<()>>),
    /// A step has failed: what it has given and not used is used no more.
    Forget,
}

/// What both sides see.
#[derive(Default)]
pub(crate) struct Progress {
    /// Copies to the device enqueued so far, by room.
    pub ins: Vec<u64>,
    /// Memory for gradients and words that nothing uses.
    pub grads: Vec<Option<HostBuffer>>,
    pub words: Vec<HostBuffer>,
    /// Memory in which gradients of micro-batches arrive.
    pub landings: Vec<HostBuffer>,
    pub failed: Option<Error>,
}

#[derive(Default)]
pub(crate) struct Shared {
    progress: Mutex<Progress>,
    changed: Condvar,
}

impl Job {
    /// The room that it is about.
    fn room(&self) -> Option<usize> {
        match self {
            Job::Grad(u, _)
            | Job::Add(u, ..)
            | Job::StateIn(u)
            | Job::Update(u, _)
            | Job::StateOut(u)
            | Job::In((u, _), ..)
            | Job::Read(u, ..)
            | Job::Write(u, ..) => Some(*u),
            Job::Begin(_) | Job::Forget => None,
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
    pub fn tell(&self, f: impl FnOnce(&mut Progress)) {
        f(&mut self.lock());
        self.changed.notify_all();
    }
    /// Waits until `get` finds something, or the thread has failed.
    pub fn wait<T>(&self, mut get: impl FnMut(&mut Progress) -> Option<T>) -> Result<T> {
        let mut p = self.lock();
        loop {
            if let Some(e) = &p.failed {
                return Err(e.clone());
            }
            if let Some(t) = get(&mut p) {
                return Ok(t);
            }
            p = self.changed.wait(p).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The thread's own.
pub(crate) struct Worker {
    pub host: Device,
    pub stream: Stream,
    /// A stream of the first device.
    pub copy_in: Stream,
    pub rooms: Vec<Held>,
    pub files: Option<Files>,
    pub shared: Arc<Shared>,
    pub words: Option<Arc<Buffer>>,
    pub jobs: Receiver<Job>,
    /// Jobs that were taken from the channel and not done yet.
    pub queue: VecDeque<Job>,
}

fn opened(files: &mut Option<Files>) -> Result<&mut Files> {
    match files {
        Some(f) => Ok(f),
        None => shape_error("the plan moves state to files and none are open"),
    }
}

impl Worker {
    /// Until the other side hangs up.
    pub fn run(mut self) {
        let done = self.serve();
        let e = match done {
            Ok(()) => return,
            Err(e) => e,
        };
        self.shared.tell(|p| p.failed = Some(e.clone()));
        // Later callers get the failure too, until there can be none.
        let Worker { jobs, queue, .. } = self;
        for job in queue.into_iter().chain(jobs) {
            match job {
                Job::Read(.., reply) => drop(reply.send(Err(e.clone()))),
                Job::Write(.., reply) => drop(reply.send(Err(e.clone()))),
                _ => {}
            }
        }
    }

    fn serve(&mut self) -> Result<()> {
        loop {
            let next = match self.queue.pop_front() {
                Some(job) => Ok(job),
                None => self.jobs.try_recv(),
            };
            let job = match next {
                Ok(job) => job,
                Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => {
                    // Nothing to do: blocks whose writes are over go back to the pool, where the other side may wait for one.
                    if let Some(files) = &mut self.files
                        && files.reap_one()?
                    {
                        continue;
                    }
                    match self.jobs.recv_timeout(Duration::from_secs(3600)) {
                        Ok(job) => job,
                        Err(RecvTimeoutError::Timeout) => continue,
                        Err(RecvTimeoutError::Disconnected) => break,
                    }
                }
            };
            self.run_job(job)?;
        }
        match &mut self.files {
            Some(files) => files.finish(),
            None => Ok(()),
        }
    }

    fn run_job(&mut self, job: Job) -> Result<()> {
        match job {
            Job::Begin(words) => {
                let lent = Arc::new(self.host.borrow_host(words)?);
                if let Some(old) = self.words.replace(lent) {
                    let old = unlend(old)?;
                    self.shared.tell(|p| p.words.push(old));
                }
            }
            Job::Grad(u, Pinned::Memory(memory)) => self.rooms[u].grad = Some(memory),
            Job::Grad(u, Pinned::Block(block)) => self.files()?.grad(u, block)?,
            Job::Add(u, Pinned::Memory(landing), last) => self.add(u, landing, last)?,
            Job::Add(u, Pinned::Block(block), last) => self.add_in_file(u, block, last)?,
            Job::StateIn(u) => {
                self.reserve(Some(u))?;
                self.files()?.state_in(u)?;
            }
            Job::StateOut(u) => self.files()?.state_out(u)?,
            Job::Update(u, decided) => self.update(u, &decided)?,
            Job::In((u, what), dest, at) => {
                match what {
                    Brought::Params => self.bring(u, &dest, at)?,
                    figure => self.bring_figure((u, figure), &dest, at)?,
                }
                // Dropped before the notification: the thread that waits for it frees the memory and must hold the last reference.
                drop(dest);
                self.shared.tell(|p| p.ins[u] += 1);
            }
            Job::Read(u, part, r, reply) => {
                let bytes = self.bytes(u, part, r, false, |all| all.to_vec());
                drop(reply.send(bytes));
            }
            Job::Write(u, part, at, bytes, reply) => {
                // What the device is given is made anew where it is not what was written.
                self.rooms[u].dirty |= part > 0;
                let r = at..at + bytes.len() as u64;
                let done = self.bytes(u, part, r, true, |all| all.copy_from_slice(&bytes));
                drop(reply.send(done));
            }
            Job::Forget => {
                if let Some(files) = &mut self.files {
                    files.forget()?;
                }
                for u in 0..self.rooms.len() {
                    self.grad_is_used(u);
                }
            }
        }
        Ok(())
    }

    /// The first job in line that gives a block back, and can be done before those ahead of it: none is of its room, nor is the job that
    /// is being done, of room `now`.
    fn gives_a_block(&self, now: Option<usize>) -> Option<usize> {
        let ahead = |at: usize, u: usize| {
            let mut before = self.queue.iter().take(at);
            now == Some(u) || before.any(|j| j.room() == Some(u))
        };
        self.queue.iter().enumerate().position(|(at, j)| match j {
            Job::Grad(_, Pinned::Block(_)) => true,
            Job::Add(u, Pinned::Block(_), _) => !ahead(at, *u),
            _ => false,
        })
    }

    /// A block for the next read, of a job of room `now`. Where all are gradients that wait in line behind this job, those are written
    /// first: nothing else would ever free one.
    fn reserve(&mut self, now: Option<usize>) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while !self.files()?.reserve()? {
            let at = self.gives_a_block(now);
            let here = at.is_some();
            let next = match at {
                Some(at) => self.queue.remove(at),
                None => match self.jobs.recv_timeout(Duration::from_millis(20)) {
                    Ok(job) => Some(job),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => return Ok(()),
                },
            };
            match next {
                Some(Job::Grad(u, Pinned::Block(block))) => self.files()?.grad(u, block)?,
                Some(Job::Add(u, Pinned::Block(block), last)) if here => {
                    self.add_in_file(u, block, last)?;
                }
                Some(job) => self.queue.push_back(job),
                // The other side has one in hand.
                None if Instant::now() > until => return Ok(()),
                None => {}
            }
        }
        Ok(())
    }

    fn files(&mut self) -> Result<&mut Files> {
        opened(&mut self.files)
    }

    /// The optimizer step of a room.
    fn update(&mut self, u: usize, decided: &Decided) -> Result<()> {
        let Worker {
            host,
            stream,
            rooms,
            files,
            words,
            ..
        } = self;
        let Held {
            memory,
            grad,
            calls,
            ..
        } = &mut rooms[u];
        let words = words.as_ref();
        match memory {
            Memory::Host(_) => {
                let lent = memory.lend(host, grad.take())?;
                let done = calls.update(stream, (&lent, words), decided);
                *grad = memory.take_back(lent)?;
                done?;
            }
            Memory::File => {
                let files = opened(files)?;
                files.lend(u, host, |lent| calls.update(stream, (lent, words), decided))?;
            }
            Memory::None => return shape_error(format!("nothing of room {u} is on the host")),
        }
        self.grad_is_used(u);
        Ok(())
    }

    /// Adds the gradient of some micro-batches to the sum in memory.
    fn add(&mut self, u: usize, landing: HostBuffer, last: bool) -> Result<()> {
        let Worker {
            host,
            stream,
            rooms,
            shared,
            ..
        } = self;
        let Held {
            grad, sum, calls, ..
        } = &mut rooms[u];
        let (Some(sum), Some(total)) = (sum, grad.take()) else {
            return shape_error(format!("room {u} adds up no gradients"));
        };
        let lend = |m: HostBuffer| -> Result<(Arc<Buffer>, u64)> {
            Ok((Arc::new(host.borrow_host(m)?), 0))
        };
        let (landing, total) = (lend(landing)?, lend(total)?);
        let figures = match last {
            true => sum.figures.take().map(lend).transpose()?,
            false => None,
        };
        let done = calls.add(
            stream,
            &Adding {
                landing: &landing,
                sum: &total,
                figures: figures.as_ref(),
                first: !std::mem::replace(&mut sum.begun, true),
            },
        );
        *grad = Some(unlend(total.0)?);
        if let Some((f, _)) = figures {
            sum.figures = Some(unlend(f)?);
        }
        let landing = unlend(landing.0)?;
        shared.tell(|p| p.landings.push(landing));
        done
    }

    /// The same where the sum rests in a file: it is read behind what has arrived, and written back.
    fn add_in_file(&mut self, u: usize, block: Block, last: bool) -> Result<()> {
        let Worker {
            host,
            stream,
            rooms,
            files,
            ..
        } = self;
        let Held { sum, calls, .. } = &mut rooms[u];
        let Some(sum) = sum else {
            return shape_error(format!("room {u} adds up no gradients"));
        };
        let first = !std::mem::replace(&mut sum.begun, true);
        let figures = match last {
            true => sum.figures.take(),
            false => None,
        };
        let figures = figures.map(|m| -> Result<_> { Ok((Arc::new(host.borrow_host(m)?), 0)) });
        let figures = figures.transpose()?;
        opened(files)?.add(u, (block, first), host, |landing, total| {
            let figures = figures.as_ref();
            calls.add(
                stream,
                &Adding {
                    landing,
                    sum: total,
                    figures,
                    first,
                },
            )
        })?;
        if let Some((f, _)) = figures {
            sum.figures = Some(unlend(f)?);
        }
        Ok(())
    }

    /// Copies a figure of a room's gradient to the device.
    fn bring_figure(&mut self, (u, what): (usize, Brought), dest: &Buffer, at: u64) -> Result<()> {
        let sum = self.rooms[u].sum.as_ref();
        let Some(figures) = sum.and_then(|s| s.figures.as_ref()) else {
            return shape_error(format!("room {u} has no figures of a gradient"));
        };
        let from = match what {
            Brought::SquaresLow => figures.buffer().region(4, 4),
            Brought::NonFinite => figures.buffer().region(8, 4),
            _ => figures.buffer().region(0, 4),
        };
        Ok(self.copy_in.copy(dest.region(at, 4), from)?)
    }

    /// The memory of a gradient is free for the next.
    fn grad_is_used(&mut self, u: usize) {
        if let Some(sum) = &mut self.rooms[u].sum {
            sum.begun = false;
            return;
        }
        if let Some(grad) = self.rooms[u].grad.take() {
            self.shared.tell(|p| p.grads[u] = Some(grad));
        }
    }

    /// Parts that were written from outside become what the device is given. The room is in memory.
    fn refresh(&mut self, u: usize) -> Result<()> {
        let Worker {
            host,
            stream,
            rooms,
            files,
            ..
        } = self;
        let Held { memory, calls, .. } = &mut rooms[u];
        match memory {
            Memory::Host(_) => {
                let lent = memory.lend(host, None)?;
                let done = calls.refresh(stream, &lent);
                memory.take_back(lent)?;
                done
            }
            Memory::File => opened(files)?.lend(u, host, |lent| calls.refresh(stream, lent)),
            Memory::None => Ok(()),
        }
    }

    /// Copies what the device is given of a room to the device.
    fn bring(&mut self, u: usize, dest: &Buffer, at: u64) -> Result<()> {
        let room = &mut self.rooms[u];
        let bytes = room.given;
        let stale = std::mem::take(&mut room.dirty) && room.calls.refreshes();
        let in_file = matches!(room.memory, Memory::File);
        // A block of the step's own update, or one read for this copy alone.
        let read_here = in_file && !self.files()?.holds(u);
        if read_here {
            self.reserve(Some(u))?;
            match stale {
                true => self.files()?.read_all(u)?,
                false => self.files()?.read_given(u)?,
            }
        }
        if stale {
            self.refresh(u)?;
        }
        let (to, copy_in) = (dest.region(at, bytes), &self.copy_in);
        match &self.rooms[u].memory {
            Memory::Host(_) => copy_in.copy(to, self.rooms[u].memory.given()?.region(0, bytes))?,
            Memory::File => {
                let files = opened(&mut self.files)?;
                files.copy_given(u, |from| Ok(copy_in.copy(to, from)?), bytes)?;
            }
            Memory::None => {}
        }
        if read_here {
            match stale {
                true => self.files()?.state_out(u)?,
                false => self.files()?.release(u),
            }
        }
        Ok(())
    }

    /// What `f` makes of bytes of a part; `back`: they are kept as it leaves them.
    fn bytes<T>(
        &mut self,
        u: usize,
        part: usize,
        r: Range<u64>,
        back: bool,
        f: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T> {
        let r = r.start as usize..r.end as usize;
        if !matches!(self.rooms[u].memory, Memory::File) {
            return Ok(f(&mut self.rooms[u].memory.bytes(part)?[r]));
        }
        self.reserve(Some(u))?;
        let files = self.files()?;
        files.read_all(u)?;
        let made = f(files.bytes(u, part, r)?);
        match back {
            true => files.state_out(u)?,
            false => files.release(u),
        }
        Ok(made)
    }
}
