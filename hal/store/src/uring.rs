//! The engine of io_uring: one driver thread fills the ring, sleeps until something is done or asked, and takes the answers.
//!
//! Callers wake it through an event descriptor that the ring itself reads, so there is one place to sleep. The driver owns every piece
//! in the ring; it ends only when the ring is empty, since until then the kernel writes into blocks.

use crate::engine::Engine;
use crate::piece::{Next, Piece};
use crate::{Block, Layer, Settings, lock};
use io_uring::{IoUring, opcode, squeue, types};
use std::collections::{HashMap, VecDeque};
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// The user word of the read that wakes the driver; pieces have their slot's number.
const WAKE: u64 = u64::MAX;
/// Files the ring knows by number; further ones are named by their descriptors.
const FILES: u32 = 64;

#[derive(Default)]
struct Queue {
    pieces: VecDeque<Piece>,
    closed: bool,
    /// Why the driver ended, if it did by itself.
    dead: Option<Error>,
}

struct Shared {
    queue: Mutex<Queue>,
    wake: OwnedFd,
}

impl Shared {
    fn ring_bell(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight bytes that live for the call. A full counter means that the driver is being woken already.
        unsafe { libc::write(self.wake.as_raw_fd(), one.as_ptr().cast(), 8) };
    }
}

pub(crate) struct Uring {
    shared: Arc<Shared>,
    driver: Option<JoinHandle<()>>,
}

impl Uring {
    /// Fails where the machine forbids io_uring. `blocks`: all blocks of the pool in order of their index, registered with the kernel
    /// where its limit on locked memory allows.
    pub fn new(settings: &Settings, blocks: &mut [Block], layer: Arc<dyn Layer>) -> Result<Uring> {
        let depth = settings.queue_depth;
        // One place more, for the wake-up.
        let ring = IoUring::new((depth + 1).next_power_of_two())?;
        let mut probe = io_uring::Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        for code in [opcode::Read::CODE, opcode::Write::CODE] {
            if !probe.is_supported(code) {
                return Err(Error::from_raw_os_error(libc::EOPNOTSUPP));
            }
        }
        // SAFETY: the call makes a new descriptor or fails.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(Error::last_os_error());
        }
        // SAFETY: just made, owned by nobody else.
        let wake = unsafe { OwnedFd::from_raw_fd(fd) };
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            wake,
        });
        let mut iovecs = Vec::with_capacity(blocks.len());
        for b in blocks.iter_mut() {
            let memory = b.write().map_err(|e| Error::other(e.to_string()))?;
            iovecs.push(libc::iovec {
                iov_base: memory.as_mut_ptr().cast(),
                iov_len: memory.len(),
            });
        }
        // SAFETY: the blocks' memory stays where it is until the pool is dropped, which the store does after the engine.
        let fixed = unsafe { ring.submitter().register_buffers(&iovecs) }.is_ok();
        let files = ring.submitter().register_files_sparse(FILES).is_ok();
        let driver = Driver {
            ring,
            shared: shared.clone(),
            layer,
            depth: depth as usize,
            single: settings.single_submit,
            overlap: settings.overlap_events,
            fixed,
            files: files.then(HashMap::new),
            slots: (0..depth).map(|_| None).collect(),
            free: (0..depth as usize).rev().collect(),
            word: Box::new(0),
            armed: false,
        };
        let thread = std::thread::Builder::new().name("store-ring".into());
        let driver = thread.spawn(move || driver.run())?;
        Ok(Uring {
            shared,
            driver: Some(driver),
        })
    }
}

impl Engine for Uring {
    fn submit(&self, pieces: Vec<Piece>) {
        let mut queue = lock(&self.shared.queue);
        if let Some(e) = &queue.dead {
            pieces.into_iter().for_each(|p| p.closed(e, false));
            return;
        }
        queue.pieces.extend(pieces);
        drop(queue);
        self.shared.ring_bell();
    }
    fn name(&self) -> &'static str {
        "io_uring"
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        lock(&self.shared.queue).closed = true;
        self.shared.ring_bell();
        if let Some(d) = self.driver.take() {
            let _ = d.join();
        }
    }
}

struct Driver {
    ring: IoUring,
    shared: Arc<Shared>,
    layer: Arc<dyn Layer>,
    depth: usize,
    single: bool,
    overlap: bool,
    /// Blocks are registered by their index.
    fixed: bool,
    /// Descriptors registered so far and their numbers.
    files: Option<HashMap<RawFd, (u32, Arc<crate::file::Inner>)>>,
    /// Pieces in the ring.
    slots: Vec<Option<Piece>>,
    free: Vec<usize>,
    /// What the wake-up read fills.
    word: Box<u64>,
    armed: bool,
}

impl Driver {
    fn run(mut self) {
        let mut waiting: VecDeque<Piece> = VecDeque::new();
        let failed = loop {
            let closed = {
                let mut queue = lock(&self.shared.queue);
                waiting.append(&mut queue.pieces);
                queue.closed
            };
            let running = self.depth - self.free.len();
            if closed && waiting.is_empty() && running == 0 {
                // The wake-up read is cancelled with the ring; its word outlives it (fields drop in order).
                return;
            }
            if let Err(e) = self.turn(&mut waiting, closed) {
                break e;
            }
        };
        // The ring itself failed, which no known fault does: every waiter gets the error.
        let mut queue = lock(&self.shared.queue);
        waiting.append(&mut queue.pieces);
        queue.dead = Some(Error::new(failed.kind(), failed.to_string()));
        drop(queue);
        let Driver {
            ring, slots, word, ..
        } = self;
        drop(ring);
        drop(word);
        slots
            .into_iter()
            .flatten()
            .for_each(|p| p.closed(&failed, true));
        waiting.into_iter().for_each(|p| p.closed(&failed, false));
    }

    /// Puts in what fits, sleeps until something happens, takes what is done.
    fn turn(&mut self, waiting: &mut VecDeque<Piece>, closed: bool) -> Result<()> {
        if !self.armed {
            let fd = types::Fd(self.shared.wake.as_raw_fd());
            let read = opcode::Read::new(fd, (&mut *self.word as *mut u64).cast(), 8).build();
            self.push(read.user_data(WAKE))?;
            self.armed = true;
        }
        let mut pause = Duration::ZERO;
        // Without overlap a batch ends before the next one begins.
        if self.overlap || self.free.len() == self.depth {
            for _ in 0..waiting.len() {
                if self.free.is_empty() {
                    break;
                }
                let Some(piece) = waiting.pop_front() else {
                    break;
                };
                match piece.request(self.layer.as_ref()) {
                    Ok((fd, at, bytes)) => self.put(piece, fd, at, bytes)?,
                    Err(code) => pause = pause.max(follow(piece, i64::from(code), waiting)),
                }
                if self.single {
                    self.ring.submit()?;
                }
            }
        }
        // Faults alone keep nothing in the ring: then there is nothing to sleep on. Nor is there behind the last piece of a closed
        // store, whose bell may have been heard already.
        let idle = self.free.len() == self.depth && (closed || !waiting.is_empty());
        match self.ring.submit_and_wait(usize::from(!idle)) {
            Ok(_) => {}
            Err(e)
                if matches!(
                    e.raw_os_error(),
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)
                ) => {}
            Err(e) => return Err(e),
        }
        let done: Vec<(u64, i32)> = self
            .ring
            .completion()
            .map(|c| (c.user_data(), c.result()))
            .collect();
        for (word, result) in done {
            if word == WAKE {
                self.armed = false;
            } else if let Some(piece) = self.slots.get_mut(word as usize).and_then(Option::take) {
                self.free.push(word as usize);
                pause = pause.max(follow(piece, i64::from(result), waiting));
            }
        }
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
        Ok(())
    }

    fn put(&mut self, piece: Piece, fd: RawFd, at: *mut u8, bytes: u64) -> Result<()> {
        let Some(slot) = self.free.pop() else {
            return Err(Error::other("no slot is free"));
        };
        let (write, offset, len) = (piece.transfer.write, piece.offset, bytes as u32);
        let index = piece.transfer.index as u16;
        let number = self.number(fd, &piece);
        self.slots[slot] = Some(piece);
        macro_rules! entry {
            ($fd:expr) => {
                match (write, self.fixed) {
                    (true, true) => opcode::WriteFixed::new($fd, at, len, index)
                        .offset(offset)
                        .build(),
                    (true, false) => opcode::Write::new($fd, at, len).offset(offset).build(),
                    (false, true) => opcode::ReadFixed::new($fd, at, len, index)
                        .offset(offset)
                        .build(),
                    (false, false) => opcode::Read::new($fd, at, len).offset(offset).build(),
                }
            };
        }
        let entry = match number {
            Some(n) => entry!(types::Fixed(n)),
            None => entry!(types::Fd(fd)),
        };
        self.push(entry.user_data(slot as u64))
    }

    /// The number of a registered descriptor; registers it if there is room. The file is kept open while its number stands for it.
    fn number(&mut self, fd: RawFd, piece: &Piece) -> Option<u32> {
        let files = self.files.as_mut()?;
        if let Some((n, _)) = files.get(&fd) {
            return Some(*n);
        }
        if files.len() as u32 == FILES {
            return None;
        }
        let n = files.len() as u32;
        self.ring.submitter().register_files_update(n, &[fd]).ok()?;
        files.insert(fd, (n, piece.transfer.file.clone()));
        Some(n)
    }

    fn push(&mut self, entry: squeue::Entry) -> Result<()> {
        // SAFETY: memory and descriptor of the entry are owned by its piece (or are the driver's word and bell) until it is done.
        unsafe { self.ring.submission().push(&entry) }.map_err(|_| Error::other("the ring is full"))
    }
}

/// Goes by the answer; the pause the system asked for.
fn follow(piece: Piece, got: i64, waiting: &mut VecDeque<Piece>) -> Duration {
    match piece.answer(got) {
        Next::Over => Duration::ZERO,
        Next::Again(piece, pause) => {
            waiting.push_back(piece);
            pause
        }
    }
}
