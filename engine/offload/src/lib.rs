//! The host executor: a thread that owns what rests off the device (ZeRO-Offload, ZeRO-Infinity), and runs what programs ask of it.
//!
//! It knows no optimizer, model or plan. What rests under one number is a [`Room`]: parts, and calls over them. This file is the device's
//! side of each move, `worker` the host's.
//!
//! | what | where it rests | what moves it |
//! |---|---|---|
//! | parts of a room | pinned memory, or a file through a bounded pool | nothing: the host's device computes on them in place |
//! | gradient | pinned memory, or beside its room in the file | `Take`, copies, `Give`, once a step |
//! | gradients of micro-batches | two landings in pinned memory, or a block of the pool, until they are added to the sum beside the room | the same, once a micro-batch |
//! | what the device is given | the first part | `Bring`, once a step or before each gather |
//!
//! A failure of the thread reaches the next caller that gives it something or waits for it.
#![forbid(unsafe_code)]

mod file;
mod home;
mod room;
mod worker;

use crossweave_hal::{Buffer, Device, HostBuffer, MemoryReport, Stream, Tag, WaitLog};
use crossweave_machine::Pinned;
use crossweave_program::{Brought, Decided, HostJob, HostMemory, Room, Sums};
use crossweave_store::{Counters, Layer, Settings, Store};
use crossweave_tensor::{Error, Result, shape_error};
use file::{Files, Layout, failed};
use home::{Home, Unpinned};
use room::{Calls, Held, Memory, Sum};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use worker::{Job, Progress, Shared, Worker};

/// The key of configs that says how many blocks the pool has, and what helps where they cannot be page-locked.
const POOL: &str = "zero_optimization.offload_optimizer.buffer_count";
const SMALLER: &str = "the device copies from and to them; set it lower, or raise the limit of locked memory (`ulimit -l`)";

/// Files below pinned memory.
pub struct FileTier {
    /// Folder in which the files are.
    pub folder: PathBuf,
    /// How they are read and written; the size of a buffer is chosen here.
    pub settings: Settings,
    /// What stands before each transfer.
    pub layer: Arc<dyn Layer>,
}

/// The rank's way to its host thread.
pub struct Executor {
    jobs: Option<Sender<Job>>,
    shared: Arc<Shared>,
    /// Copies to the device asked for so far, by room.
    ins: Vec<u64>,
    /// Where a gradient begins in a block, by room.
    grads: Vec<u64>,
    /// Host memory that is not page-locked.
    unpinned: Unpinned,
    store: Option<Arc<Store>>,
    out: Stream,
    /// The waits of the stream on which the host's thread copies to the device.
    copy_in: WaitLog,
    thread: Option<JoinHandle<()>>,
}

/// Reports a thread that is gone without an answer.
struct Guard(Arc<Shared>);
impl Drop for Guard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let e = Error::Shape("the host's update thread has panicked".into());
            self.0.tell(|p| p.failed = Some(e));
        }
    }
}

impl Executor {
    /// Allocates the memory of rooms beside `device` and starts the thread of that name, which computes on `host`. The words of a step
    /// are `words` bytes. With `files` rooms rest in these. With `pin` all host memory is page-locked, else what the device copies.
    ///
    /// # Errors
    /// The devices; memory that cannot be page-locked; the disk.
    pub fn start(
        (device, host): (&Device, &Device),
        rooms: Vec<Room>,
        (words, pin): (u64, bool),
        files: Option<FileTier>,
        name: String,
    ) -> Result<Executor> {
        let layouts: Vec<Layout> = rooms.iter().map(Layout::new).collect();
        let grads = layouts.iter().map(|l| l.arrives).collect();
        let mut home = Home::new(device, host, pin);
        let store = match files {
            None => None,
            Some(f) => {
                let largest = layouts.iter().map(|l| l.block).max().unwrap_or(1);
                let settings = Settings {
                    buffer_bytes: largest.max(1),
                    ..f.settings
                };
                let blocks = format!("{} blocks of {largest} bytes", settings.buffers);
                let store = Store::open_with(&f.folder, device, Tag::Moment, settings, f.layer);
                Some(Arc::new(store.map_err(|e| match e {
                    crossweave_store::Error::Hal(e) => home::refused(POOL, &blocks, e, SMALLER),
                    e => failed(e),
                })?))
            }
        };
        let stream = host.stream("host", 0)?;
        let shared = Arc::new(Shared::default());
        let landings = match &store {
            None => landings(&home, &rooms)?,
            Some(_) => vec![],
        };
        let (mut free, mut held, mut units) = (vec![], vec![], vec![]);
        for (room, layout) in rooms.into_iter().zip(layouts) {
            let bytes = layout.grad.end - layout.grad.start;
            if let Some(store) = &store {
                units.push(file::Unit::new(store, &room.name, layout)?);
            }
            let (room, arrives) = hold(&mut home, &stream, (room, store.is_some()), bytes)?;
            free.push(arrives);
            held.push(room);
        }
        // One in use, one on its way, one to spare.
        let words = (0..3).map(|_| home.pinned(words, Tag::Staging));
        let words = words.collect::<Result<Vec<_>>>()?;
        let count = held.len();
        shared.tell(|p| {
            (p.ins, p.grads, p.words) = (vec![0; count], free, words);
            p.landings = landings;
        });
        let unpinned = home.unpinned;
        let (jobs, todo) = channel();
        let copy_in = device.stream("copy_in", 1)?;
        let in_log = copy_in.wait_log();
        let worker = Worker {
            stream,
            copy_in,
            host: host.clone(),
            rooms: held,
            files: store.clone().map(|s| Files::new(s, units)),
            shared: shared.clone(),
            words: None,
            jobs: todo,
            queue: Default::default(),
        };
        let guard = Guard(shared.clone());
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let guard = guard;
            worker.run();
            drop(guard);
        });
        let thread = thread.map_err(|e| {
            Error::Shape(format!(
                "the host's update thread cannot start: {e}; fix: raise the limits of the process (ulimit -u of threads, -v of memory)"
            ))
        })?;
        Ok(Executor {
            jobs: Some(jobs),
            ins: vec![0; count],
            shared,
            grads,
            unpinned,
            store,
            out: device.stream("copy_out", 1)?,
            copy_in: in_log,
            thread: Some(thread),
        })
    }

    /// Which stream waited for which on the way off the device.
    pub fn out_log(&self) -> WaitLog {
        self.out.wait_log()
    }
    /// The same on the way onto it.
    pub fn in_log(&self) -> WaitLog {
        self.copy_in.clone()
    }
    /// A report of the device's memory with the host memory of this rank that is not page-locked.
    pub fn counted(&self, report: MemoryReport) -> MemoryReport {
        self.unpinned.counted(report)
    }
    /// Copies to the device asked for so far.
    pub fn copies_asked(&self) -> u64 {
        self.ins.iter().sum()
    }
    /// What the files took and what passed through them; none where nothing rests in any.
    pub fn files(&self) -> Option<Counters> {
        Some(self.store.as_ref()?.counters())
    }
    /// Where gradients and words leave.
    pub fn out(&self) -> &Stream {
        &self.out
    }

    fn send(&self, job: Job) -> Result<()> {
        let sent = self.jobs.as_ref().is_some_and(|j| j.send(job).is_ok());
        match sent {
            true => self.shared.wait(|_| Some(())),
            false => self.shared.wait(|_| None),
        }
    }

    /// Waits until every copy asked for of a room has been enqueued: later work on it waits by itself.
    ///
    /// # Errors
    /// The thread has failed.
    pub fn wait_room(&self, room: usize) -> Result<()> {
        match self.ins[room] {
            0 => Ok(()),
            n => self.shared.wait(|p| (p.ins[room] >= n).then_some(())),
        }
    }

    /// `Bring`: what the device is given of a room, or a figure of its gradient, comes to a buffer, from byte `at` on.
    ///
    /// # Errors
    /// The thread has failed.
    pub fn bring(
        &mut self,
        (room, what): (usize, Brought),
        (dest, at): (Arc<Buffer>, u64),
    ) -> Result<()> {
        self.ins[room] += 1;
        self.send(Job::In((room, what), dest, at))
    }

    /// `Take`: pinned memory that nothing uses, and the byte where what goes into it begins: of its own, a landing, or a block of the pool.
    ///
    /// # Errors
    /// The thread has failed; no block has come free for a long time.
    pub fn take(&self, what: HostMemory) -> Result<(Pinned, u64)> {
        let own = |get: fn(&mut Progress, usize) -> Option<HostBuffer>, u: u32| {
            let memory = self.shared.wait(|p| get(p, u as usize))?;
            Ok((Pinned::Memory(memory), 0))
        };
        let (u, store) = match (what, &self.store) {
            (HostMemory::Words, _) => return own(|p, _| p.words.pop(), 0),
            (HostMemory::Grad(u), None) => return own(|p, u| p.grads[u].take(), u),
            (HostMemory::Part(u) | HostMemory::Last(u), None) => {
                return own(|p, _| p.landings.pop(), u);
            }
            (HostMemory::Grad(u) | HostMemory::Part(u) | HostMemory::Last(u), Some(store)) => {
                (u, store)
            }
        };
        // In short waits, so that a failure of the thread that frees blocks is heard.
        let until = Instant::now() + file::PATIENCE;
        loop {
            match store.pool().take(Duration::from_millis(50)) {
                Ok(b) => return Ok((Pinned::Block(b), self.grads[u as usize])),
                Err(e) if Instant::now() > until => return Err(failed(e)),
                Err(_) => self.shared.wait(|_| Some(()))?,
            }
        }
    }

    /// `Give`: what was taken goes to the thread.
    ///
    /// # Errors
    /// The thread has failed.
    pub fn give(&self, what: HostMemory, memory: Pinned) -> Result<()> {
        match (what, memory) {
            (HostMemory::Grad(u), memory) => self.send(Job::Grad(u as usize, memory)),
            (HostMemory::Part(u), memory) => self.send(Job::Add(u as usize, memory, false)),
            (HostMemory::Last(u), memory) => self.send(Job::Add(u as usize, memory, true)),
            (HostMemory::Words, Pinned::Memory(words)) => self.send(Job::Begin(words)),
            (HostMemory::Words, Pinned::Block(_)) => shape_error("words in a block of files"),
        }
    }

    /// `Host`: the thread is given something to do.
    ///
    /// # Errors
    /// The thread has failed.
    pub fn host(&self, job: HostJob, room: u32, decided: Decided) -> Result<()> {
        let u = room as usize;
        self.send(match job {
            HostJob::StateIn => Job::StateIn(u),
            HostJob::Update => Job::Update(u, decided),
            HostJob::StateOut => Job::StateOut(u),
        })
    }

    /// A step has failed between its instructions: `taken` comes back, and what the thread was given and has not used is free again. What
    /// it has updated stays updated.
    pub fn forget(&self, taken: Vec<(HostMemory, Pinned)>) {
        for (what, memory) in taken {
            self.shared.tell(|p| match (what, memory) {
                (HostMemory::Grad(u), Pinned::Memory(m)) => p.grads[u as usize] = Some(m),
                (HostMemory::Part(_) | HostMemory::Last(_), Pinned::Memory(m)) => {
                    p.landings.push(m);
                }
                (HostMemory::Words, Pinned::Memory(m)) => p.words.push(m),
                // A block returns to its pool.
                (_, Pinned::Block(_)) => {}
            });
        }
        // Where the thread has failed, the next caller gets that failure.
        let _ = self.send(Job::Forget);
    }

    /// Bytes of a part of a room.
    ///
    /// # Errors
    /// The thread has failed; the disk.
    pub fn read(&self, room: usize, part: usize, bytes: Range<u64>) -> Result<Vec<u8>> {
        let (tx, rx) = sync_channel(1);
        self.send(Job::Read(room, part, bytes, tx))?;
        rx.recv().unwrap_or_else(|_| self.shared.wait(|_| None))
    }

    /// Sets bytes of a part of a room, from byte `at` on.
    ///
    /// # Errors
    /// The thread has failed; the disk.
    pub fn write(&self, room: usize, part: usize, at: u64, bytes: &[u8]) -> Result<()> {
        let (tx, rx) = sync_channel(1);
        self.send(Job::Write(room, part, at, bytes.to_vec(), tx))?;
        rx.recv().unwrap_or_else(|_| self.shared.wait(|_| None))
    }
}

/// Landings of the gradients of micro-batches: one is filled while the other is added up.
const LANDINGS: usize = 2;

/// Landings, each for the largest gradient of those that are added up here.
fn landings(home: &Home<'_>, rooms: &[Room]) -> Result<Vec<HostBuffer>> {
    let summed = rooms.iter().filter_map(|r| Some((r, r.sums.as_ref()?)));
    let largest = summed.map(|(r, s)| r.bytes(s.landing)).max();
    let of = |bytes| (0..LANDINGS).map(move |_| home.pinned(bytes, Tag::Grad));
    largest.into_iter().flat_map(of).collect()
}

/// Takes the memory of a room whose gradient has so many bytes: what is held of it, and where its gradient arrives, unless that is a
/// landing or a block of files.
fn hold(
    home: &mut Home<'_>,
    stream: &Stream,
    (room, in_file): (Room, bool),
    bytes: u64,
) -> Result<(Held, Option<HostBuffer>)> {
    let memory = match in_file {
        _ if room.parts.is_empty() => Memory::None,
        true => Memory::File,
        false => Memory::host(home, stream, &room)?,
    };
    let (mut arrives, mut grad) = (None, None);
    match (&memory, &room.sums) {
        (Memory::Host(_), Some(_)) => grad = Some(home.kept(bytes, Tag::Grad)?),
        (Memory::Host(_), None) if bytes > 0 => arrives = Some(home.pinned(bytes, Tag::Grad)?),
        _ => {}
    }
    let sum = |s: &Sums| -> Result<Sum> {
        Ok(Sum {
            begun: false,
            figures: Some(home.pinned(room.bytes(s.figures), Tag::Staging)?),
        })
    };
    let held = Held {
        memory,
        grad,
        sum: room.sums.as_ref().map(sum).transpose()?,
        given: room.parts.first().map_or(0, |m| room.bytes(*m)),
        calls: Calls::new(stream.device(), room)?,
        dirty: false,
    };
    Ok((held, arrives))
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}
