//! Hosts of a communicator's ranks, and counters of what has been sent. The bytes between hosts of each algorithm are in `crossweave_hosts`.

use crate::channel::Peer;
use crate::making::By;
pub(crate) use crossweave_hosts::{Hosts, Leaves};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The number of a host of this name, the same in every process.
pub(crate) fn number(name: &str) -> u32 {
    let step = |h: u32, b: u8| (h ^ u32::from(b)).wrapping_mul(0x0100_0193);
    name.bytes().fold(0x811c_9dc5, step)
}

/// The channels by which a member of a communicator reaches the others.
pub(crate) struct Links {
    pub(crate) peers: Vec<Peer>,
    /// The hosts of the communicator's ranks.
    pub(crate) hosts: Hosts,
    /// The algorithms of its sums.
    pub(crate) by: By,
    /// Counters of the messages and bytes that its process has sent.
    pub(crate) sent: Arc<Sent>,
}

/// Messages and bytes that this process has sent, within its host and to others.
#[derive(Debug, Default)]
pub(crate) struct Sent([[AtomicU64; 2]; 2]);

impl Sent {
    /// One more message; `apart`: to another host.
    pub(crate) fn count(&self, apart: bool, bytes: u64) {
        let [messages, sum] = &self.0[usize::from(apart)];
        messages.fetch_add(1, Relaxed);
        sum.fetch_add(bytes, Relaxed);
    }
}

impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [[a, b], [c, d]] = self
            .0
            .each_ref()
            .map(|x| x.each_ref().map(|x| x.load(Relaxed)));
        write!(f, "{a} {b} {c} {d}")
    }
}
