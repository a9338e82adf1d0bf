//! What rests off the device: optimizer states and the update itself on the host, parameters between gathers, kept inputs between
//! forward and backward. The plan says when anything moves; this file is the device's side of each move, [`worker`] the host's.
//!
//! | what | where it rests | who moves it |
//! |---|---|---|
//! | states, masters | pinned memory, or a file through a bounded pool | never: the host's device computes on it in place |
//! | gradient | pinned memory, or beside its state in the file | `Give`, once a step |
//! | parameters | on the device; or with the states | `Bring`, once a step or before each gather |
//! | kept inputs | pinned memory | `Spill`, `Fetch` |

mod file;
mod memory;
mod spill;
mod worker;

pub(crate) use spill::Spilled;

use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::pinned::Pinned;
use crate::scale::{Decided, Scaling};
use crate::spec::RankSpec;
use crate::state::StateKind;
use crate::trainer::Trainer;
use crossweave_hal::{Buffer, DType, Device, HostBuffer, Stream, Tag, WaitLog};
use crossweave_program::{HostJob, HostMemory};
use crossweave_store::{NoFaults, Settings, Store};
use crossweave_tensor::{Decompositions, Run};
use crossweave_zero::Tier;
use crossweave_zero::lower::{HostShare, host_update};
use crossweave_zero::optim::Recipe;
use file::{Files, Layout, failed};
use memory::{Hosted, Memory};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use worker::{Job, Progress, Shared, WORDS, Worker};

use crate::spec::{OffloadSpec, OptimizerOffload};

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

/// The rank's way to its host thread.
pub(crate) struct Offload {
    jobs: Option<Sender<Job>>,
    shared: Arc<Shared>,
    /// Copies to the device asked for so far, by unit.
    ins: Vec<u64>,
    /// Elements on the host, by unit.
    hosted: Vec<u64>,
    /// Moments that are kept, by unit.
    moments: Vec<usize>,
    layouts: Vec<Layout>,
    store: Option<Arc<Store>>,
    out: Stream,
    /// The waits of the stream on which the host's thread copies to the device.
    copy_in: WaitLog,
    thread: Option<JoinHandle<()>>,
}

/// A unit as the host will hold it: elements, runs updated alike, and elements of base.
pub(crate) type Share = (u64, Vec<(Recipe, Range<u64>)>, u64);

/// What the host holds of one unit of its own count.
struct Room {
    grad: Option<HostBuffer>,
    file: file::Unit,
    unit: Hosted,
}

impl Room {
    /// The layout of what is trained, with so many moments; `types`: of parameters, and of gradients on their way.
    fn of_share(
        device: &Device,
        (compute, grad): (DType, DType),
        store: Option<&Arc<Store>>,
        numel: u64,
        layout: Layout,
        moments: usize,
    ) -> Tensors<Room> {
        let memory = match (store, numel) {
            (_, 0) => Memory::None,
            (Some(_), _) => Memory::File,
            (None, _) => Memory::host(device, compute, numel, moments)?,
        };
        let file = match store {
            Some(s) if numel > 0 => Some(s.file("state", layout.end).map_err(failed)?),
            _ => None,
        };
        Ok(Room {
            grad: match (store, numel) {
                (None, n) if n > 0 => Some(device.alloc_host(grad.bytes(n), Tag::Grad)?),
                _ => None,
            },
            file: file::Unit::new(layout, file),
            unit: Hosted {
                numel,
                memory,
                ..Hosted::default()
            },
        })
    }

    /// The layout of a base alone.
    fn of_base(
        device: &Device,
        compute: DType,
        store: Option<&Arc<Store>>,
        numel: u64,
        layout: Layout,
    ) -> Tensors<Room> {
        let memory = match (store, numel) {
            (_, 0) => Memory::None,
            (Some(_), _) => Memory::File,
            (None, n) => Memory::base(device, compute, n)?,
        };
        let file = match store {
            Some(s) if numel > 0 => Some(s.file("base", layout.end).map_err(failed)?),
            _ => None,
        };
        Ok(Room {
            grad: None,
            file: file::Unit::new(layout, file),
            unit: Hosted {
                numel,
                memory,
                ..Hosted::default()
            },
        })
    }
}

/// A run of elements as pieces of at most `most`.
fn cut(recipe: Recipe, run: Range<u64>, most: u64) -> impl Iterator<Item = (Recipe, Range<u64>)> {
    let pieces = (run.end - run.start).div_ceil(most);
    (0..pieces).map(move |k| {
        let from = run.start + k * most;
        (recipe, from..run.end.min(from.saturating_add(most)))
    })
}

/// Says so if the thread that should answer is gone.
struct Guard(Arc<Shared>);
impl Drop for Guard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let e = crossweave_tensor::Error::Shape("the host's update thread has panicked".into());
            self.0.tell(|p| p.failed = Some(e));
        }
    }
}

impl Offload {
    /// Allocates the host's side and starts its thread.
    pub fn start(
        device: &Device,
        spec: &RankSpec,
        offload: &OffloadSpec,
        how: OptimizerOffload,
        shares: Vec<Share>,
    ) -> Tensors<Offload> {
        let grad = how.wire(spec.compute);
        let mut all = shares.iter().flat_map(|s| &s.1);
        if let Some((r, _)) = all.find(|(r, _)| !r.optimizer.is_elementwise()) {
            return crossweave_tensor::shape_error(format!(
                "the host updates what looks at one element at a time, Adam, AdamW, Lion and SGD, and {} needs whole parameters or blocks; choose one of them, or set offload_optimizer.device to \"none\"",
                r.optimizer.name()
            ));
        }
        // A unit keeps as many moments as the hungriest of its optimizers.
        let kept = |s: &Share| {
            let each = s.1.iter().map(|(r, _)| r.optimizer.elementwise_states());
            each.max().unwrap_or(0)
        };
        let moments: Vec<usize> = shares.iter().map(kept).collect();
        let hosted: Vec<u64> = shares.iter().map(|s| s.0).collect();
        let bases: Vec<u64> = shares.iter().map(|s| s.2).collect();
        let layouts: Vec<Layout> = hosted
            .iter()
            .zip(&moments)
            .map(|(n, moments)| Layout::new(*n, spec.compute, grad, *moments))
            .chain(bases.iter().map(|n| Layout::of_base(*n, spec.compute)))
            .collect();
        let shared = Arc::new(Shared::default());
        let store = match how.tier {
            Tier::Host => None,
            Tier::Nvme => {
                let largest = layouts.iter().map(|l| l.end).max().unwrap_or(1);
                let settings = Settings {
                    buffer_bytes: largest.max(1),
                    ..offload.files.clone()
                };
                let faults = offload.faults.as_ref();
                let layer = faults.map_or_else(|| Arc::new(NoFaults) as _, |f| f.0.clone());
                let store = Store::open_with(&offload.folder, device, Tag::Moment, settings, layer);
                Some(Arc::new(store.map_err(failed)?))
            }
        };
        let mut grads = vec![];
        let mut units = vec![];
        let mut files = vec![];
        for ((share, layout), moments) in shares.into_iter().zip(&layouts).zip(&moments) {
            let types = (spec.compute, grad);
            let (numel, runs, _) = share;
            let room = Room::of_share(device, types, store.as_ref(), numel, *layout, *moments)?;
            let runs: Vec<_> = match how.group {
                Some(most) => {
                    let pieces = runs.into_iter().flat_map(|(r, of)| cut(r, of, most.max(1)));
                    pieces.collect()
                }
                None => runs,
            };
            grads.push(room.grad);
            files.push(room.file);
            let numel = room.unit.numel;
            let update = (numel > 0).then(|| HostShare {
                numel,
                runs: &runs,
                types,
                group: how.group.unwrap_or(u64::MAX),
                clip: spec.clip > 0.0,
                scaled: spec.precision.scaler.is_some(),
                rescaled: Scaling::rescales(spec),
            });
            let update = update.map(|u| Machine::new(&offload.host.0, host_update(&u)));
            units.push(Hosted {
                update: update.transpose()?,
                ..room.unit
            });
        }
        for (numel, layout) in bases.iter().zip(&layouts[hosted.len()..]) {
            let room = Room::of_base(device, spec.compute, store.as_ref(), *numel, *layout)?;
            grads.push(room.grad);
            files.push(room.file);
            units.push(room.unit);
        }
        // One in use, one on its way, one to spare.
        let words = (0..3)
            .map(|_| device.alloc_host(WORDS, Tag::Staging))
            .collect::<crossweave_hal::Result<Vec<_>>>()?;
        shared.tell(|p| {
            (p.ins, p.grads, p.words) = (vec![0; units.len()], grads, words);
        });
        let (jobs, todo) = channel();
        let host = offload.host.0.clone();
        let copy_in = device.stream("copy_in", 1)?;
        let in_log = copy_in.wait_log();
        let worker = Worker {
            stream: host.stream("host", 0)?,
            copy_in,
            host,
            compute: spec.compute,
            units,
            files: store.clone().map(|s| Files::new(s, files)),
            shared: shared.clone(),
            words: None,
            jobs: todo,
            queue: Default::default(),
        };
        let guard = Guard(shared.clone());
        let thread = std::thread::Builder::new().name(format!("host-{}", spec.job_rank()));
        let thread = thread.spawn(move || {
            let guard = guard;
            worker.run();
            drop(guard);
        });
        let thread = thread.map_err(|e| {
            crossweave_tensor::Error::Shape(format!("the host's update thread cannot start: {e}"))
        })?;
        Ok(Offload {
            jobs: Some(jobs),
            ins: vec![0; hosted.len() + bases.len()],
            shared,
            hosted,
            moments,
            layouts,
            store,
            out: device.stream("copy_out", 1)?,
            copy_in: in_log,
            thread: Some(thread),
        })
    }

    /// Elements of unit `u` on the host.
    pub fn hosted(&self, u: usize) -> u64 {
        self.hosted[u]
    }
    /// Whether what the host holds of a unit has a state of this kind.
    fn keeps(&self, u: usize, kind: StateKind) -> bool {
        match kind {
            StateKind::Value => true,
            StateKind::Moment1 => self.moments[u] > 0,
            StateKind::Moment2 => self.moments[u] > 1,
            StateKind::Rows | StateKind::Cols => false,
        }
    }

    /// Who waited for whom on the ways off the device and onto it.
    pub fn out_log(&self) -> WaitLog {
        self.out.wait_log()
    }
    pub fn in_log(&self) -> WaitLog {
        self.copy_in.clone()
    }
    /// Copies to the device asked for so far.
    pub fn copies_asked(&self) -> u64 {
        self.ins.iter().sum()
    }

    fn send(&self, job: Job) -> Tensors<()> {
        let sent = self.jobs.as_ref().is_some_and(|j| j.send(job).is_ok());
        match sent {
            true => self.shared.wait(|_| Some(())),
            false => self.shared.wait(|_| None),
        }
    }

    /// Every copy asked for of this unit's parameters has been enqueued: later work on them waits by itself.
    pub fn wait_params(&self, u: usize) -> Tensors<()> {
        [u, self.base_unit(u)]
            .into_iter()
            .try_for_each(|k| self.wait_room(k))
    }
    /// The same of what the host counts as `k`.
    pub fn wait_room(&self, k: usize) -> Tensors<()> {
        match self.ins[k] {
            0 => Ok(()),
            n => self.shared.wait(|p| (p.ins[k] >= n).then_some(())),
        }
    }
    /// The number under which the host knows the base of unit `u`: a unit of its own, behind the others.
    fn base_unit(&self, u: usize) -> usize {
        self.hosted.len() + u
    }

    /// Bytes that went through files.
    pub fn counters(&self) -> Option<crossweave_store::Counters> {
        self.store.as_ref().map(|s| s.counters())
    }

    /// Parameters of what is held as `room` come to the device.
    pub fn bring(&mut self, room: usize, (dest, at): (Arc<Buffer>, u64)) -> Tensors<()> {
        self.ins[room] += 1;
        self.send(Job::In(room, dest, at))
    }

    /// Where gradients and words leave.
    pub fn out(&self) -> &Stream {
        &self.out
    }

    /// Pinned memory that nobody uses, and the byte where what goes into it begins: of its own, or a block of the pool.
    pub fn take(&self, what: HostMemory) -> Tensors<(Pinned, u64)> {
        let own = |get: fn(&mut Progress, usize) -> Option<HostBuffer>, u: u32| {
            let memory = self.shared.wait(|p| get(p, u as usize))?;
            Ok((Pinned::Memory(memory), 0))
        };
        let (u, store) = match (what, &self.store) {
            (HostMemory::Words, _) => return own(|p, _| p.words.pop(), 0),
            (HostMemory::Grad(u), None) => return own(|p, u| p.grads[u].take(), u),
            (HostMemory::Grad(u), Some(store)) => (u, store),
        };
        // In short waits, so that a failure of the thread that frees blocks is heard.
        let until = Instant::now() + file::PATIENCE;
        loop {
            match store.pool().take(Duration::from_millis(50)) {
                Ok(b) => return Ok((Pinned::Block(b), self.layouts[u as usize].grad)),
                Err(e) if Instant::now() > until => return Err(failed(e)),
                Err(_) => self.shared.wait(|_| Some(()))?,
            }
        }
    }

    /// What was taken goes to the thread.
    pub fn give(&self, what: HostMemory, memory: Pinned) -> Tensors<()> {
        match (what, memory) {
            (HostMemory::Grad(u), memory) => self.send(Job::Grad(u as usize, memory)),
            (HostMemory::Words, Pinned::Memory(words)) => self.send(Job::Begin(words)),
            (HostMemory::Words, Pinned::Block(_)) => no_host("words in a block of files"),
        }
    }

    /// The thread is given something to do.
    pub fn host(&self, job: HostJob, room: u32, decided: Decided) -> Tensors<()> {
        let u = room as usize;
        self.send(match job {
            HostJob::StateIn => Job::StateIn(u),
            HostJob::Update => Job::Update(u, decided),
            HostJob::StateOut => Job::StateOut(u),
        })
    }

    fn read(&self, u: usize, kind: StateKind, r: Range<u64>) -> Tensors<Vec<u8>> {
        let (tx, rx) = sync_channel(1);
        self.send(Job::Read(u, kind, r, tx))?;
        rx.recv().unwrap_or_else(|_| self.shared.wait(|_| None))
    }

    /// Puts bytes of the base of unit `u`, in compute type, to where they rest.
    pub fn put_base(&self, u: usize, at: u64, bytes: &[u8]) -> Tensors<()> {
        let (tx, rx) = sync_channel(1);
        self.send(Job::Put(self.base_unit(u), at, bytes.to_vec(), tx))?;
        rx.recv().unwrap_or_else(|_| self.shared.wait(|_| None))
    }

    /// Bytes of the base of unit `u` from where they rest.
    pub fn get_base(&self, u: usize, r: Range<u64>) -> Tensors<Vec<u8>> {
        let (tx, rx) = sync_channel(1);
        self.send(Job::Get(self.base_unit(u), r, tx))?;
        rx.recv().unwrap_or_else(|_| self.shared.wait(|_| None))
    }

    fn write(&self, u: usize, kind: StateKind, from: u64, bytes: &[u8]) -> Tensors<()> {
        let (tx, rx) = sync_channel(1);
        self.send(Job::Write(u, kind, from, bytes.to_vec(), tx))?;
        rx.recv().unwrap_or_else(|_| self.shared.wait(|_| None))
    }
}

impl Drop for Offload {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}

/// The way to the host's thread, where there is one.
pub(crate) fn required(offload: &mut Option<Offload>) -> Tensors<&mut Offload> {
    match offload {
        Some(o) => Ok(o),
        None => no_host("the host's thread"),
    }
}

fn no_host<T>(what: &str) -> Tensors<T> {
    crossweave_tensor::shape_error(format!("the plan asks for {what} and nothing is offloaded"))
}

impl Trainer {
    /// Elements of unit `u` that the host updates.
    pub(crate) fn hosted(&self, u: usize) -> u64 {
        self.offload.as_ref().map_or(0, |o| o.hosted(u))
    }

    /// What the host was asked to do with this unit's parameters is enqueued.
    pub(crate) fn wait_params(&self, u: usize) -> Tensors<()> {
        self.offload.as_ref().map_or(Ok(()), |o| o.wait_params(u))
    }

    /// The same for every unit whose parameters unit `u` reads.
    pub(crate) fn wait_units(&self, u: usize) -> Tensors<()> {
        if self.offload.is_some() {
            self.wait_params(u)?;
            for (o, _) in &self.units[u].borrowed {
                self.wait_params(*o)?;
            }
        }
        Ok(())
    }

    /// Starting values of a unit whose state rests on the host: made on the device a parameter at a time, then moved.
    pub(crate) fn fill_hosted(&mut self, u: usize) -> Tensors<()> {
        for i in 0..self.state[u].decls.len() {
            let cache = Default::default();
            let Some((_, local)) = self.state[u].pieces(i) else {
                continue;
            };
            let run = Run::new(&self.compute, &Decompositions, &cache);
            let here = run.empty([local.end - local.start], DType::F32)?;
            crate::init::fill_one(&run, &self.state[u], i, self.spec.seed, &here)?;
            let mut bytes = vec![0u8; here.extent() as usize];
            self.compute.read(here.region(), &mut bytes)?;
            self.write_values(u, local.start, &bytes)?;
        }
        let zeros = vec![0u8; 4 * self.hosted(u) as usize];
        let kept = self.offload.as_ref().map_or(0, |o| o.moments[u]);
        let kinds = [StateKind::Moment1, StateKind::Moment2];
        for kind in kinds.into_iter().take(kept) {
            self.write_hosted(u, kind, 0, &zeros)?;
        }
        self.state[u].clear_moments(&self.compute)
    }

    /// Elements of a unit's state as f32 bytes, wherever they rest: local elements of what this rank owns.
    pub(crate) fn read_local(&self, u: usize, kind: StateKind, r: &Range<u64>) -> Tensors<Vec<u8>> {
        let k = self.hosted(u);
        let mut bytes = match &self.offload {
            Some(o) if r.start < k && o.keeps(u, kind) => o.read(u, kind, r.start..r.end.min(k))?,
            // Nothing the host holds of the unit has such a state (it is frozen, say), and what the device holds may.
            Some(_) if r.start < k => vec![0; 4 * (r.end.min(k) - r.start) as usize],
            _ => vec![],
        };
        let rest = r.start.max(k)..r.end;
        if rest.start < rest.end {
            bytes.resize(4 * (r.end - r.start) as usize, 0);
            let cache = Default::default();
            let run = Run::new(&self.compute, &Decompositions, &cache);
            for (t, at) in self.state_pieces(&run, &self.state[u], kind, &rest)? {
                let here = 4 * (at - r.start) as usize;
                let to = &mut bytes[here..here + t.extent() as usize];
                self.compute.read(t.region(), to)?;
            }
        }
        Ok(bytes)
    }

    /// Sets elements of the values from `from` on, wherever they rest.
    fn write_values(&self, u: usize, from: u64, bytes: &[u8]) -> Tensors<()> {
        let (k, end) = (self.hosted(u), from + bytes.len() as u64 / 4);
        let split = 4 * (k.clamp(from, end) - from) as usize;
        if split > 0 {
            self.write_hosted(u, StateKind::Value, from, &bytes[..split])?;
        }
        if split < bytes.len() {
            let here = self.state[u].value(&(from.max(k)..end));
            self.compute.write(here.region(), &bytes[split..])?;
        }
        Ok(())
    }

    /// Sets elements of a state on the host from `from` on.
    fn write_hosted(&self, u: usize, kind: StateKind, from: u64, bytes: &[u8]) -> Tensors<()> {
        match &self.offload {
            Some(o) => o.write(u, kind, from, bytes),
            None => no_host("a state on the host"),
        }
    }

    /// Puts values to elements `from..` of a parameter's state on the host, as far as they live here; how many did.
    pub(crate) fn put_hosted(
        &self,
        (u, i): (usize, usize),
        kind: StateKind,
        from: u64,
        bytes: &[u8],
    ) -> Result<u64> {
        let Some((part, local)) = self.state[u].hosted(i) else {
            return Ok(0);
        };
        if self.state_shape(u, i, kind).is_none() {
            return Ok(0);
        }
        let end = from.saturating_add(bytes.len() as u64 / 4);
        let (a, b) = (part.start.max(from), part.end.min(end));
        if a >= b {
            return Ok(0);
        }
        let bytes = &bytes[4 * (a - from) as usize..4 * (b - from) as usize];
        self.write_hosted(u, kind, local.start + a - part.start, bytes)
            .map_err(|e| self.error("loading a state", e))?;
        Ok(b - a)
    }

    /// Bytes this rank has moved through files, if state rests in any: (read, written).
    pub fn file_traffic(&self) -> Option<(u64, u64)> {
        let c = self.offload.as_ref()?.counters()?;
        Some((c.read, c.written))
    }

    /// Waits for what the host was given; its failure, if it has failed.
    ///
    /// # Errors
    /// A full or broken disk; the device.
    pub fn settle_offload(&self) -> Result<()> {
        let Some(o) = &self.offload else {
            return Ok(());
        };
        let all = || (0..o.hosted.len()).try_for_each(|u| o.wait_params(u));
        all().map_err(|e| -> Error { self.error("the update on the host", e) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossweave_zero::optim::{Adam, Optimizer, ParamGroups};

    #[test]
    fn a_run_is_cut_into_groups_that_cover_it_once() {
        let recipe = ParamGroups::all(Optimizer::Adam(Adam::default()), 0.0).base;
        let pieces =
            |from, to, most| -> Vec<_> { cut(recipe, from..to, most).map(|(_, r)| r).collect() };
        assert_eq!(pieces(3, 13, 4), [3..7, 7..11, 11..13]);
        assert_eq!(pieces(3, 13, u64::MAX), vec![Range { start: 3, end: 13 }]);
        assert_eq!(pieces(5, 5, 4), []);
    }
}
