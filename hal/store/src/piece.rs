//! One transfer cut into pieces, and what becomes of a piece: done, to be continued, or failed. Both engines share these rules.

use crate::engine::Reply;
use crate::error::copy;
use crate::file::Inner as FileInner;
use crate::{ALIGN, Block, Error, Layer, Result, Verdict, lock};
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A transfer of one block, shared by its pieces. It owns the block's memory until the last piece is over.
pub(crate) struct Transfer {
    pub file: Arc<FileInner>,
    pub write: bool,
    pub index: u32,
    /// Where the block's memory begins.
    base: Address,
    state: Mutex<State>,
    left: AtomicUsize,
    counted: Arc<AtomicU64>,
}

struct State {
    block: Option<Block>,
    error: Option<Error>,
    reply: Option<Reply>,
}

#[derive(Clone, Copy)]
struct Address(*mut u8);
// SAFETY: the address lies in a block that the transfer owns; each piece touches a range of its own.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

/// A part of a transfer: one request to the system at a time, advanced until nothing is left.
pub(crate) struct Piece {
    pub transfer: Arc<Transfer>,
    /// In the file.
    pub offset: u64,
    /// In the block.
    pub at: u64,
    pub bytes: u64,
    /// Where and how long it was at first, for messages.
    whole: (u64, u64),
    /// Times in a row the system has said "not now".
    pub tries: u32,
}

/// What to do with a piece after the system has answered.
pub(crate) enum Next {
    /// It is over; the waiter may have been notified.
    Over,
    /// Ask again, after this pause.
    Again(Piece, Duration),
}

/// "Not now" is taken so many times in a row before it counts as a failure.
const PATIENCE: u32 = 1_000;

/// Cuts the transfer of a part of a block at `offset` into pieces of `size`. The block's memory is the engine's from here on.
#[allow(clippy::too_many_arguments)]
pub(crate) fn cut(
    file: Arc<FileInner>,
    write: bool,
    offset: u64,
    mut block: Block,
    part: Range<u64>,
    size: u64,
    reply: Reply,
    counted: Arc<AtomicU64>,
) -> Vec<Piece> {
    let index = block.index();
    // Waits for the device first: nobody else has the block.
    let base = match block.write() {
        Ok(b) => Address(b.as_mut_ptr()),
        Err(e) => {
            reply.send(Some(block), Err(e));
            return vec![];
        }
    };
    // Whole pages, where the block and the file have them: a tail then needs no detour through the cache.
    let bytes = part.end - part.start;
    let padded = bytes.next_multiple_of(ALIGN);
    let bytes = match part.start + padded <= block.bytes() && offset + padded <= file.bytes {
        true => padded,
        false => bytes,
    };
    if bytes == 0 {
        reply.send(Some(block), Ok(()));
        return vec![];
    }
    let count = bytes.div_ceil(size);
    let transfer = Arc::new(Transfer {
        file,
        write,
        index,
        base,
        state: Mutex::new(State {
            block: Some(block),
            error: None,
            reply: Some(reply),
        }),
        left: AtomicUsize::new(count as usize),
        counted,
    });
    let piece = |i: u64| {
        let at = i * size;
        let bytes = size.min(bytes - at);
        Piece {
            transfer: transfer.clone(),
            offset: offset + at,
            at: part.start + at,
            bytes,
            whole: (offset + at, bytes),
            tries: 0,
        }
    };
    (0..count).map(piece).collect()
}

impl Piece {
    /// What the system is asked next: descriptor, address, bytes; or the answer a fault gives instead.
    pub fn request(&self, layer: &dyn Layer) -> std::result::Result<(RawFd, *mut u8, u64), i32> {
        let bytes = match layer.before(self.transfer.write, self.offset, self.bytes) {
            Verdict::Pass => self.bytes,
            Verdict::Short(n) => n.clamp(1, self.bytes),
            Verdict::Fail(code) => return Err(-code),
        };
        let aligned = [self.offset, self.at, bytes]
            .iter()
            .all(|n| n.is_multiple_of(ALIGN));
        // SAFETY: `at` lies inside the block: pieces are cut from it and only advance towards their end.
        let address = unsafe { self.transfer.base.0.add(self.at as usize) };
        Ok((self.transfer.file.fd(aligned), address, bytes))
    }

    /// Bytes that are still to be moved.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes the system's answer: bytes moved, or minus the error number.
    pub fn answer(mut self, got: i64) -> Next {
        match got {
            n if n > 0 => {
                let n = (n as u64).min(self.bytes);
                self.transfer.counted.fetch_add(n, Ordering::Relaxed);
                (self.offset, self.at, self.bytes) = (self.offset + n, self.at + n, self.bytes - n);
                self.tries = 0;
                if self.bytes > 0 {
                    return Next::Again(self, Duration::ZERO);
                }
                self.over(Ok(()))
            }
            0 => {
                let error = self.error(0);
                self.over(Err(error))
            }
            n => {
                let code = i32::try_from(-n).unwrap_or(libc::EIO);
                let later = matches!(code, libc::EINTR | libc::EAGAIN | libc::EBUSY);
                if later && self.tries < PATIENCE {
                    self.tries += 1;
                    // Ever longer, half a second in all.
                    let pause = match code {
                        libc::EINTR => 0,
                        _ => u64::from(self.tries),
                    };
                    return Next::Again(self, Duration::from_micros(pause));
                }
                let error = self.error(code);
                self.over(Err(error))
            }
        }
    }

    fn error(&self, code: i32) -> Error {
        let (offset, bytes) = self.whole;
        let file = self.transfer.file.path.clone();
        match (code, self.transfer.write) {
            (0, false) => Error::Ended {
                file,
                offset,
                bytes,
            },
            // A write of nothing, as some file systems answer when they are full.
            (0 | libc::ENOSPC | libc::EDQUOT, true) => Error::Full {
                file,
                offset,
                bytes,
            },
            (_, write) => Error::Io {
                op: if write { "write" } else { "read" },
                file,
                offset,
                bytes,
                source: std::io::Error::from_raw_os_error(code),
            },
        }
    }

    /// Ends the piece; the last one of a transfer notifies the waiter.
    pub fn over(self, how: Result<()>) -> Next {
        let t = &self.transfer;
        if let Err(e) = how {
            lock(&t.state).error.get_or_insert(e);
        }
        if t.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let mut s = lock(&t.state);
            let (block, error, reply) = (s.block.take(), s.error.take(), s.reply.take());
            drop(s);
            if let Some(reply) = reply {
                reply.send(block, error.map_or(Ok(()), Err));
            }
        }
        Next::Over
    }

    /// Ends the piece because the engine has; `held`: the kernel may still have the block, which therefore never returns to its pool.
    pub fn closed(self, why: &std::io::Error, held: bool) {
        if held {
            std::mem::forget(lock(&self.transfer.state).block.take());
        }
        let e = Error::Closed(copy(why).to_string());
        self.over(Err(e));
    }
}
