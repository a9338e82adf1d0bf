//! The calls that the streams of a device are given, in order, while somebody lists them: for tests that compare
//! what two builds of a program ask of a device.
//!
//! A call is listed as the safe layer sees it: buffers by the number each got when it was made, so that where a pool
//! has put a block makes no difference. Off, it costs one load a call.

use crate::ledger::Tag;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// A buffer's part in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedOperand {
    /// Number of the buffer among those of its device, in the order in which they were made; lent memory has its
    /// owner's, with the highest bit set.
    pub buffer: u64,
    /// Whether it is pinned host memory.
    pub host: bool,
    /// What the buffer is for.
    pub tag: Tag,
    /// Bytes of the whole buffer.
    pub size: u64,
    /// First byte in the buffer.
    pub offset: u64,
    /// Bytes that the call is given.
    pub bytes: u64,
    /// Whether the call writes them.
    pub writes: bool,
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedCall {
    /// Name of the stream.
    pub stream: String,
    /// The op with layouts and parameters; or the copy, fill or collective with what it says beside its operands.
    pub what: String,
    /// In the order of the op table, the workspace left out; of collectives member by member, what is sent before
    /// what is received.
    pub operands: Vec<Option<ListedOperand>>,
}

/// What a device counts of its memories, and lists of its calls.
#[derive(Default)]
pub(crate) struct Account {
    /// Buffers made so far.
    pub made: AtomicU64,
    /// Memories whose handles mean nothing any more.
    pub freed: AtomicU64,
    listing: AtomicBool,
    calls: Mutex<Vec<ListedCall>>,
}

impl Account {
    #[inline]
    pub fn lists(&self) -> bool {
        self.listing.load(Relaxed)
    }

    #[cold]
    pub fn list(&self, call: ListedCall) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.push(call);
    }
}

/// Lists the calls of a device, made by [`crate::list_calls`].
pub struct CallListing(pub(crate) Arc<Account>);

impl CallListing {
    /// From now on calls are listed.
    pub fn begin(&self) {
        self.0.listing.store(true, Relaxed);
    }

    /// The calls since `begin`, and no more are listed. Calls of one stream stand in its order, those of several
    /// threads as they came.
    pub fn end(&self) -> Vec<ListedCall> {
        self.0.listing.store(false, Relaxed);
        let mut calls = self.0.calls.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *calls)
    }
}
