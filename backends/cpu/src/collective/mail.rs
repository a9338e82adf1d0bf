//! Send and receive: the sender posts an address, the receiver copies, the sender leaves when it is notified. One queue per pair, in order.

use super::transfer::{Stores, push};
use super::world::{Cause, Patience, World};
use crate::stream::lock;
use crossweave_plugin::collective::Checked;
use crossweave_plugin::{Code, DType, Result};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex};

struct Post {
    at: *const u8,
    bytes: usize,
    dtype: DType,
    count: u64,
    /// The receiver has taken what it wants and the sender's memory is free.
    done: Arc<AtomicBool>,
}
// SAFETY: the sender does not pass its command before `done`, or before it has taken the post back, so the address stays valid.
unsafe impl Send for Post {}

/// The queues of all pairs.
pub(super) struct Mail {
    n: usize,
    boxes: Vec<Mutex<VecDeque<Post>>>,
}

/// A send on its way.
pub(super) struct Sent<'a> {
    op: &'a Checked,
    done: Arc<AtomicBool>,
}

impl Mail {
    pub(super) fn new(n: usize) -> Mail {
        Mail {
            n,
            boxes: (0..n * n).map(|_| Mutex::new(VecDeque::new())).collect(),
        }
    }

    fn queue(&self, from: usize, to: usize) -> &Mutex<VecDeque<Post>> {
        &self.boxes[from * self.n + to]
    }
}

/// Copies a message, past the caches when it is large; one that a rank sends to itself may overlap.
///
/// # Safety
/// Both hold `bytes` bytes.
unsafe fn fetch(src: *const u8, dst: *mut u8, bytes: usize) {
    let apart = src.addr().abs_diff(dst.addr()) >= bytes;
    // SAFETY: forwarded; not streamed unless apart.
    unsafe {
        match Stores::for_traffic(2 * bytes) {
            Stores::Streaming if apart => push(src, &[dst], bytes, Stores::Streaming),
            _ => std::ptr::copy(src, dst, bytes),
        }
    }
}

impl World {
    /// Posts a send without waiting.
    pub(super) fn post<'a>(&self, rank: usize, op: &'a Checked) -> Result<Sent<'a>> {
        self.health()?;
        let done = Arc::new(AtomicBool::new(false));
        lock(self.mail.queue(rank, op.peer)).push_back(Post {
            at: op.send,
            bytes: op.bytes(op.count),
            dtype: op.dtype,
            count: op.count,
            done: done.clone(),
        });
        self.notify();
        Ok(Sent { op, done })
    }

    /// Receives what the peer posted, waiting for it.
    pub(super) fn receive(&self, rank: usize, op: &Checked, patience: &Patience<'_>) -> Result<()> {
        let from = self.mail.queue(op.peer, rank);
        let ready = || !lock(from).is_empty();
        let gone = || self.slots[op.peer].gone.load(SeqCst).then_some(op.peer);
        let what = || self.waits_for(rank, op, "receives from");
        if let Some(cause) = self.wait_or(&ready, &self.reason(patience, gone), &what) {
            return self.give_up(cause, rank, op, "receives from", patience);
        }
        // Only this rank takes from its queues, one launch at a time; an emptied queue means the sender failed and took its post back.
        let Some(post) = lock(from).pop_front() else {
            return self.health();
        };
        let same = post.dtype == op.dtype && post.count == op.count;
        if same && post.bytes > 0 {
            // SAFETY: both spans were checked for `count` elements; the sender stays until `done`.
            unsafe { fetch(post.at, op.recv, post.bytes) };
        } else if !same {
            self.fail(
                self.error(
                    Code::Comm,
                    format!(
                        "{} sends {} x {} to {}, which receives {} x {}",
                        self.members.of(op.peer),
                        post.count,
                        post.dtype.name(),
                        self.members.of(rank),
                        op.count,
                        op.dtype.name()
                    ),
                )
                .peer(op.peer.into()),
            );
        }
        post.done.store(true, SeqCst);
        self.notify();
        if same { Ok(()) } else { self.health() }
    }

    /// Waits until the receiver has the data.
    pub(super) fn sent(&self, rank: usize, sent: &Sent<'_>, patience: &Patience<'_>) -> Result<()> {
        let op = sent.op;
        let ready = || sent.done.load(SeqCst);
        let gone = || self.slots[op.peer].gone.load(SeqCst).then_some(op.peer);
        let what = || self.waits_for(rank, op, "sends to");
        let Some(cause) = self.wait_or(&ready, &self.reason(patience, gone), &what) else {
            return self.health();
        };
        let result = self.give_up(cause, rank, op, "sends to", patience);
        self.withdraw(rank, sent);
        result
    }

    /// Takes a post back; when the receiver has it already, waits the copy out.
    pub(super) fn withdraw(&self, rank: usize, sent: &Sent<'_>) {
        let mut queue = lock(self.mail.queue(rank, sent.op.peer));
        let before = queue.len();
        queue.retain(|p| !Arc::ptr_eq(&p.done, &sent.done));
        let taken = queue.len() == before;
        drop(queue);
        if taken {
            let what = || self.waits_for(rank, sent.op, "sends to");
            self.wait(&|| sent.done.load(SeqCst), &what);
        }
    }

    /// For a deadlock's account.
    fn waits_for(&self, rank: usize, op: &Checked, verb: &str) -> String {
        format!(
            "waits in {}: {} {verb} {}, {} x {}",
            self.name,
            self.members.of(rank),
            self.members.of(op.peer),
            op.count,
            op.dtype.name()
        )
    }

    fn give_up(
        &self,
        cause: Cause,
        rank: usize,
        op: &Checked,
        verb: &str,
        patience: &Patience<'_>,
    ) -> Result<()> {
        let me = self.members.of(rank);
        let what = format!(
            "{me} {verb} {}: {} x {}",
            self.members.of(op.peer),
            op.count,
            op.dtype.name()
        );
        let e = match cause {
            Cause::Failed => return self.health(),
            Cause::Gone(r) => self
                .error(
                    Code::Comm,
                    format!(
                        "{what}, but {} destroyed its communicator",
                        self.members.of(r)
                    ),
                )
                .peer(r.into()),
            Cause::Abandoned => self
                .error(
                    Code::Aborted,
                    format!("{what}, but {me} destroyed its stream"),
                )
                .peer(rank.into()),
            Cause::Late => self
                .error(
                    Code::Timeout,
                    format!(
                        "{what}, but {} did not come within {:?}",
                        self.members.of(op.peer),
                        patience.timeout
                    ),
                )
                .peer(op.peer.into()),
        };
        self.fail(e);
        self.health()
    }
}
