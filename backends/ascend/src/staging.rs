//! Page-locked memory through which the host gives a stream what it computed: written at once, copied in stream order, and used again when the
//! stream has passed the copy.

use crate::acl::{self, Functions};
use crossweave_gpu::{Handle, Outcome, call, lock};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Mutex;

/// A piece, and the event behind its last use.
struct Piece {
    at: usize,
    bytes: usize,
    /// Recorded behind the copy that reads it.
    event: Handle,
}

/// Pieces by context.
#[derive(Default)]
pub(crate) struct Staging(Mutex<HashMap<usize, Vec<Piece>>>);

impl Staging {
    /// Lets `fill` write `bytes` bytes, and `send` put copies of them on the stream.
    ///
    /// # Safety
    /// The stream is alive and of the current context; `send` reads no more than these bytes, on this stream.
    pub(crate) unsafe fn with(
        &self,
        t: &Functions,
        bytes: usize,
        stream: Handle,
        fill: impl FnOnce(&mut [u8]),
        send: impl FnOnce(*const c_void) -> Outcome,
    ) -> Outcome {
        let mut ctx = Handle::NULL;
        // SAFETY: the out pointer lives for the call.
        let o = unsafe { call!(t, aclrtGetCurrentContext(&mut ctx)) };
        if !o.done() {
            return o;
        }
        // SAFETY: the context is current.
        let p = match unsafe { self.take(t, ctx, bytes) } {
            Ok(p) => p,
            Err(o) => return o,
        };
        // SAFETY: a piece of at least so many bytes that nobody else has.
        fill(unsafe { std::slice::from_raw_parts_mut(p.at as *mut u8, bytes) });
        let o = send(p.at as *const c_void);
        // SAFETY: promised by the caller.
        let marked = unsafe { call!(t, aclrtRecordEvent(p.event, stream)) };
        lock(&self.0).entry(ctx.0 as usize).or_default().push(p);
        if o.done() { marked } else { o }
    }

    /// The smallest piece that is large enough and free, or a new one.
    ///
    /// # Safety
    /// The context is current.
    unsafe fn take(&self, t: &Functions, ctx: Handle, bytes: usize) -> Result<Piece, Outcome> {
        let mut all = lock(&self.0);
        let pieces = all.entry(ctx.0 as usize).or_default();
        let mut best: Option<usize> = None;
        for i in 0..pieces.len() {
            let better = best.is_none_or(|b| pieces[i].bytes < pieces[b].bytes);
            if pieces[i].bytes < bytes || !better {
                continue;
            }
            let mut s = 0;
            // SAFETY: an event of ours.
            let asked = unsafe { (t.aclrtQueryEventStatus)(pieces[i].event, &mut s) };
            if asked == 0 && s == acl::EVENT_COMPLETE {
                best = Some(i);
            }
        }
        if let Some(i) = best {
            return Ok(pieces.swap_remove(i));
        }
        drop(all);
        let (mut at, mut event) = (std::ptr::null_mut(), Handle::NULL);
        let bytes = bytes.max(4096).next_power_of_two();
        // SAFETY: the out pointers live for the calls.
        unsafe {
            let o = call!(t, aclrtCreateEventExWithFlag(&mut event, acl::EVENT_FLAGS));
            if !o.done() {
                return Err(o);
            }
            let o = call!(t, aclrtMallocHost(&mut at, bytes));
            if !o.done() {
                (t.aclrtDestroyEvent)(event);
                return Err(o);
            }
        }
        Ok(Piece {
            at: at as usize,
            bytes,
            event,
        })
    }

    /// Gives back what the context had. Its streams are gone.
    pub(crate) fn empty(&self, t: &Functions, ctx: Handle) {
        let pieces = lock(&self.0).remove(&(ctx.0 as usize));
        for p in pieces.into_iter().flatten() {
            // SAFETY: ours, given back once, and no stream reads it any more.
            unsafe {
                (t.aclrtDestroyEvent)(p.event);
                (t.aclrtFreeHost)(p.at as *mut c_void);
            }
        }
    }
}
