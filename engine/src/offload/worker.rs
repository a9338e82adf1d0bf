//! The host's side of an offloaded update: one thread per rank that does, in the order of the plan, what the plan gives the host.
//!
//! The thread owns all state that rests off the device. It runs the same optimizer kernel as the device would, on a second device (the
//! host's), over pinned memory of the first that is lent for the launch; so nothing is copied between the two and the bits are the
//! same. Whoever waits for it gets its failure instead.

use super::file::{Files, PATIENCE};
use super::memory::{Hosted, Memory, Pieces, piece};
use crate::pinned::Pinned;
use crate::scale::Decided;
use crate::state::StateKind;
use crossweave_hal::abi::op;
use crossweave_hal::{Buffer, DType, Device, HostBuffer, Stream};
use crossweave_tensor::{Decompositions, Result, Run};
use crossweave_zero::lower::HostShare;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One thing to do.
pub(super) enum Job {
    /// `[loss, squares, norm, coefficient, skip]` of the step whose updates follow.
    Begin(HostBuffer),
    Grad(usize, Pinned),
    StateIn(usize),
    Update(usize, Decided),
    StateOut(usize),
    /// Parameters to the device: destination, and the byte where they go.
    In(usize, Arc<Buffer>, u64),
    Read(usize, StateKind, Range<u64>, SyncSender<Result<Vec<u8>>>),
    /// First element, and f32 values.
    Write(usize, StateKind, u64, Vec<u8>, SyncSender<Result<()>>),
    /// First byte, and bytes of parameters that are never updated.
    Put(usize, u64, Vec<u8>, SyncSender<Result<()>>),
    Get(usize, Range<u64>, SyncSender<Result<Vec<u8>>>),
}

/// Bytes of the words that begin a step.
pub(super) const WORDS: u64 = 20;

/// What both sides see.
#[derive(Default)]
pub(super) struct Progress {
    /// Copies to the device enqueued so far, by unit.
    pub ins: Vec<u64>,
    /// Memory for gradients and words that nobody uses.
    pub grads: Vec<Option<HostBuffer>>,
    pub words: Vec<HostBuffer>,
    pub failed: Option<crossweave_tensor::Error>,
}

#[derive(Default)]
pub(super) struct Shared {
    progress: Mutex<Progress>,
    changed: Condvar,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, Progress> {
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
pub(super) struct Worker {
    pub host: Device,
    pub stream: Stream,
    /// A stream of the first device.
    pub copy_in: Stream,
    pub compute: DType,
    pub units: Vec<Hosted>,
    pub files: Option<Files>,
    pub shared: Arc<Shared>,
    pub words: Option<Arc<Buffer>>,
    pub jobs: Receiver<Job>,
    /// Jobs that were taken from the channel and not done yet.
    pub queue: VecDeque<Job>,
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
        // Whoever asks from now on is told too, until nobody can.
        let Worker { jobs, queue, .. } = self;
        for job in queue.into_iter().chain(jobs) {
            match job {
                Job::Read(.., reply) | Job::Get(.., reply) => drop(reply.send(Err(e.clone()))),
                Job::Write(.., reply) | Job::Put(.., reply) => drop(reply.send(Err(e.clone()))),
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
            Job::Grad(u, Pinned::Memory(memory)) => self.units[u].grad = Some(memory),
            Job::Grad(u, Pinned::Block(block)) => self.files()?.grad(u, block)?,
            Job::StateIn(u) => {
                self.reserve()?;
                self.files()?.state_in(u)?;
            }
            Job::StateOut(u) => self.files()?.state_out(u)?,
            Job::Update(u, decided) => self.update(u, &decided)?,
            Job::In(u, dest, at) => {
                self.params_in(u, &dest, at)?;
                // Dropped before the notification: the thread that waits for it frees the memory and must hold the last reference.
                drop(dest);
                self.shared.tell(|p| p.ins[u] += 1);
            }
            Job::Read(u, kind, r, reply) => {
                let bytes = self.read(u, kind, r);
                drop(reply.send(bytes));
            }
            Job::Write(u, kind, from, bytes, reply) => {
                let done = self.write(u, kind, from, &bytes);
                drop(reply.send(done));
            }
            Job::Put(u, at, bytes, reply) => {
                let at = at as usize..at as usize + bytes.len();
                let put = |all: &mut [u8]| all[at].copy_from_slice(&bytes);
                drop(reply.send(self.given(u, true, put)));
            }
            Job::Get(u, r, reply) => {
                let get = |all: &mut [u8]| all[r.start as usize..r.end as usize].to_vec();
                drop(reply.send(self.given(u, false, get)));
            }
        }
        Ok(())
    }

    /// A block for the next read. Where all are gradients that wait in line behind this job, those are written first: nothing else
    /// would ever free one.
    fn reserve(&mut self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while !self.files()?.reserve()? {
            let waits = |j: &Job| matches!(j, Job::Grad(_, Pinned::Block(_)));
            let next = match self.queue.iter().position(waits) {
                Some(at) => self.queue.remove(at),
                None => match self.jobs.recv_timeout(Duration::from_millis(20)) {
                    Ok(job) => Some(job),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => return Ok(()),
                },
            };
            match next {
                Some(Job::Grad(u, Pinned::Block(block))) => self.files()?.grad(u, block)?,
                Some(job) => self.queue.push_back(job),
                // The other side has one in hand.
                None if Instant::now() > until => return Ok(()),
                None => {}
            }
        }
        Ok(())
    }

    fn files(&mut self) -> Result<&mut Files> {
        match &mut self.files {
            Some(f) => Ok(f),
            None => {
                crossweave_tensor::shape_error("the plan moves state to files and none are open")
            }
        }
    }

    /// The optimizer step of what the host owns of a unit.
    fn update(&mut self, u: usize, decided: &Decided) -> Result<()> {
        let mut unit = std::mem::take(&mut self.units[u]);
        let done = self.lend(u, &mut unit, true, |w, unit, pieces| {
            w.launch(unit, pieces, decided)
        });
        if let Some(grad) = unit.grad.take() {
            self.shared.tell(|p| p.grads[u] = Some(grad));
        }
        self.units[u] = unit;
        done
    }

    /// Lends a unit's memory to the host device, runs `f`, and takes the memory back once the device has finished.
    fn lend(
        &mut self,
        u: usize,
        unit: &mut Hosted,
        with_grad: bool,
        f: impl FnOnce(&Worker, &mut Hosted, &Pieces) -> Result<()>,
    ) -> Result<()> {
        let host = self.host.clone();
        match &mut unit.memory {
            Memory::Host(_) => {
                let grad = match with_grad {
                    true => unit.grad.take(),
                    false => None,
                };
                let lent = unit.memory.lend(&host, grad)?;
                let done = f(self, unit, &lent);
                unit.grad = unit.memory.take_back(lent)?;
                done
            }
            Memory::File => {
                let (block, layout) = self.files()?.take_held(u)?;
                let lent = block.lend(&host).map_err(super::file::failed)?;
                let done = match lent.buffer() {
                    Some(b) => f(self, unit, &layout.pieces(b)),
                    None => Ok(()),
                };
                let block = lent.give_back().map_err(super::file::failed)?;
                self.files()?.hold(u, block);
                done
            }
            Memory::None => {
                crossweave_tensor::shape_error(format!("nothing of unit {u} is on the host"))
            }
        }
    }

    /// Runs the program of a unit's update over its memory.
    fn launch(&self, unit: &mut Hosted, pieces: &Pieces, decided: &Decided) -> Result<()> {
        let Some(update) = &mut unit.update else {
            return crossweave_tensor::shape_error("an update of what the host does not have");
        };
        let [moment1, moment2] = HostShare::MOMENTS;
        let lent = [
            (HostShare::WORDS, self.words.clone().map(|w| (w, 0))),
            (HostShare::GRAD, pieces.grad.clone()),
            (HostShare::VALUE, Some(pieces.value.clone())),
            (HostShare::PARAM, pieces.param.clone()),
            (moment1, pieces.moment1.clone()),
            (moment2, pieces.moment2.clone()),
        ];
        for (mem, piece) in lent {
            if let Some((buffer, at)) = piece {
                update.lend(mem, buffer, at);
            }
        }
        update.decide(|g| decided.get(g));
        update.run_alone(&self.stream, None)
    }

    /// Values that were written from outside become the parameters the device is given.
    fn refresh(&mut self, u: usize, unit: &mut Hosted) -> Result<()> {
        if !std::mem::take(&mut unit.dirty) || self.compute == DType::F32 {
            return Ok(());
        }
        self.lend(u, unit, false, |w, unit, pieces| {
            let Some(p) = &pieces.param else {
                return Ok(());
            };
            let all = 0..unit.numel;
            let (param, value) = (
                piece(p, w.compute, &all),
                piece(&pieces.value, DType::F32, &all),
            );
            let cache = Default::default();
            let run = Run::new(&w.stream, &Decompositions, &cache);
            let none = op::NoParams::default();
            run.launch(
                op::CAST,
                &[Some(&param), Some(&value)],
                none.as_bytes(),
                &[],
            )
        })
    }

    fn params_in(&mut self, u: usize, dest: &Buffer, at: u64) -> Result<()> {
        let mut unit = std::mem::take(&mut self.units[u]);
        let bytes = self.compute.bytes(unit.numel);
        let to = dest.region(at, bytes);
        let mut go = || -> Result<()> {
            let in_file = matches!(unit.memory, Memory::File);
            // A block of the step's own update, or one read for this copy alone.
            let read_here = in_file && !self.files()?.holds(u);
            if read_here {
                self.reserve()?;
                match unit.dirty {
                    true => self.files()?.read_all(u)?,
                    false => self.files()?.read_params(u)?,
                }
            }
            let dirty = unit.dirty;
            self.refresh(u, &mut unit)?;
            match &unit.memory {
                Memory::Host(_) => {
                    let Some(from) = unit.memory.params() else {
                        return crossweave_tensor::shape_error("a unit's memory is lent");
                    };
                    self.copy_in.copy(to, from.region(0, bytes))?;
                }
                Memory::File => {
                    let copy_in = &self.copy_in;
                    if let Some(files) = &self.files {
                        files.copy_params(u, |from| Ok(copy_in.copy(to, from)?), bytes)?;
                    }
                }
                Memory::None => {}
            }
            if read_here {
                match dirty {
                    true => self.files()?.state_out(u)?,
                    false => self.files()?.release(u),
                }
            }
            Ok(())
        };
        let done = go();
        self.units[u] = unit;
        done
    }

    /// What `f` makes of the bytes that the device is given of a unit; `back`: they are kept as it leaves them.
    fn given<T>(&mut self, u: usize, back: bool, f: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        if !matches!(self.units[u].memory, Memory::File) {
            return Ok(f(self.units[u].memory.given()?));
        }
        self.reserve()?;
        let files = self.files()?;
        files.read_all(u)?;
        let made = f(files.given(u)?);
        match back {
            true => files.state_out(u)?,
            false => files.release(u),
        }
        Ok(made)
    }

    fn read(&mut self, u: usize, kind: StateKind, r: Range<u64>) -> Result<Vec<u8>> {
        let bytes = 4 * r.start as usize..4 * r.end as usize;
        match &mut self.units[u].memory {
            Memory::File => {
                self.reserve()?;
                let files = self.files()?;
                files.read_all(u)?;
                let out = files.bytes(u, kind, bytes.clone())?.to_vec();
                files.release(u);
                Ok(out)
            }
            memory => Ok(memory.bytes(kind)?[bytes].to_vec()),
        }
    }

    fn write(&mut self, u: usize, kind: StateKind, from: u64, values: &[u8]) -> Result<()> {
        let bytes = 4 * from as usize..4 * from as usize + values.len();
        self.units[u].dirty |= kind == StateKind::Value;
        match &mut self.units[u].memory {
            Memory::File => {
                self.reserve()?;
                let files = self.files()?;
                files.read_all(u)?;
                files.bytes(u, kind, bytes)?.copy_from_slice(values);
                files.state_out(u)
            }
            memory => {
                memory.bytes(kind)?[bytes].copy_from_slice(values);
                Ok(())
            }
        }
    }
}

/// The memory behind a lent buffer nobody else holds.
pub(super) fn unlend(lent: Arc<Buffer>) -> Result<HostBuffer> {
    match Arc::into_inner(lent) {
        Some(b) => Ok(b.take_back()?),
        None => crossweave_tensor::shape_error("lent memory is still held elsewhere"),
    }
}
