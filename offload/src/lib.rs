//! The host executor: a thread that owns what rests off the device (ZeRO-Offload, ZeRO-Infinity), and runs what programs ask of it.
//!
//! It knows no optimizer, model or plan. What rests under one number is a [`Room`]: parts, and calls over them. This file is the device's
//! side of each move, `worker` the host's.
//!
//! | what | where it rests | what moves it |
//! |---|---|---|
//! | parts of a room | pinned memory, or a file through a bounded pool | nothing: the host's device computes on them in place |
//! | gradient | pinned memory, or beside its room in the file | `Take`, copies, `Give`, once a step |
//! | what the device is given | the first part | `Bring`, once a step or before each gather |
//!
//! A failure of the thread reaches the next caller that gives it something or waits for it.
#![forbid(unsafe_code)]

mod file;
mod room;
mod worker;

use crossweave_hal::{Buffer, Device, HostBuffer, Stream, Tag, WaitLog};
use crossweave_machine::Pinned;
use crossweave_program::{Decided, HostJob, HostMemory, Room};
use crossweave_store::{Counters, Layer, Settings, Store};
use crossweave_tensor::{Error, Result, shape_error};
use file::{Files, Layout, failed};
use room::{Calls, Held, Memory};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use worker::{Job, Progress, Shared, Worker};

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
    /// are `words` bytes. With `files` rooms rest in these.
    ///
    /// # Errors
    /// The devices; the disk.
    pub fn start(
        (device, host): (&Device, &Device),
        rooms: Vec<Room>,
        words: u64,
        files: Option<FileTier>,
        name: String,
    ) -> Result<Executor> {
        let layouts: Vec<Layout> = rooms.iter().map(Layout::new).collect();
        let grads = layouts.iter().map(|l| l.grad.start).collect();
        let store = match files {
            None => None,
            Some(f) => {
                let largest = layouts.iter().map(|l| l.end).max().unwrap_or(1);
                let settings = Settings {
                    buffer_bytes: largest.max(1),
                    ..f.settings
                };
                let store = Store::open_with(&f.folder, device, Tag::Moment, settings, f.layer);
                Some(Arc::new(store.map_err(failed)?))
            }
        };
        let stream = host.stream("host", 0)?;
        let shared = Arc::new(Shared::default());
        let (mut free, mut held, mut units) = (vec![], vec![], vec![]);
        for (room, layout) in rooms.into_iter().zip(layouts) {
            let grad = layout.grad.end - layout.grad.start;
            let memory = match &store {
                _ if room.parts.is_empty() => Memory::None,
                Some(_) => Memory::File,
                None => Memory::host(device, &stream, &room)?,
            };
            let grad = match memory {
                Memory::Host(_) if grad > 0 => Some(device.alloc_host(grad, Tag::Grad)?),
                _ => None,
            };
            free.push(grad);
            if let Some(store) = &store {
                units.push(file::Unit::new(store, &room.name, layout)?);
            }
            held.push(Held {
                memory,
                grad: None,
                given: room.parts.first().map_or(0, |m| room.bytes(*m)),
                calls: Calls::new(host, room)?,
                dirty: false,
            });
        }
        // One in use, one on its way, one to spare.
        let words = (0..3).map(|_| device.alloc_host(words, Tag::Staging));
        let words = words.collect::<crossweave_hal::Result<Vec<_>>>()?;
        let count = held.len();
        shared.tell(|p| (p.ins, p.grads, p.words) = (vec![0; count], free, words));
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

    /// `Bring`: what the device is given of a room comes to a buffer, from byte `at` on.
    ///
    /// # Errors
    /// The thread has failed.
    pub fn bring(&mut self, room: usize, (dest, at): (Arc<Buffer>, u64)) -> Result<()> {
        self.ins[room] += 1;
        self.send(Job::In(room, dest, at))
    }

    /// `Take`: pinned memory that nothing uses, and the byte where what goes into it begins: of its own, or a block of the pool.
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
            (HostMemory::Grad(u), Some(store)) => (u, store),
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

impl Drop for Executor {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}
