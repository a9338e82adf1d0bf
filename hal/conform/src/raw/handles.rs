//! Memory, streams, events, prepared ops: handles that free themselves in the right order.

use super::device::{Dev, missing};
use super::{Plugin, Raw, Refusal};
use crossweave_abi as abi;
use crossweave_abi::{Handle, Span};
use std::ffi::c_void;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A handle that is freed by one slot and keeps its device open.
macro_rules! handle {
    ($name:ident, $what:literal, $table:ident, $free:ident) => {
        #[doc = $what]
        pub struct $name {
            dev: Dev,
            h: Handle,
        }
        // SAFETY: R7: any thread may use a handle; the kit serialises what R7 says the host serialises.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}
        impl $name {
            pub(super) fn new(dev: Dev, h: Handle) -> $name {
                $name { dev, h }
            }
            /// For calls that this module does not wrap.
            pub fn handle(&self) -> Handle {
                self.h
            }
            /// The device it is of.
            pub fn dev(&self) -> &Dev {
                &self.dev
            }
        }
        impl Drop for $name {
            fn drop(&mut self) {
                if let Some(f) = handle!(@slot self, $table, $free) {
                    // SAFETY: made here, freed once.
                    unsafe { f(self.h) }
                }
            }
        }
    };
    (@slot $s:ident, d, $free:ident) => { $s.dev.0.p.d.$free };
    (@slot $s:ident, $table:ident, $free:ident) => { $s.dev.0.p.$table.as_ref().and_then(|t| t.$free) };
}
handle!(Event, "A point in a stream.", d, event_destroy);
handle!(OpHandle, "A prepared op.", ops, op_release);
handle!(Graph, "What a stream has kept.", graph, graph_release);

/// One rank of a communicator. Its device knows those that are there, so that all can be aborted.
pub struct Comm {
    dev: Dev,
    h: Handle,
}
// SAFETY: R7: any thread may use a handle; the kit serialises what R7 says the host serialises.
unsafe impl Send for Comm {}
// SAFETY: as above.
unsafe impl Sync for Comm {}
impl Comm {
    pub(super) fn new(dev: Dev, h: Handle) -> Comm {
        let there = &dev.0.held.comms;
        let mut there = there.lock().unwrap_or_else(PoisonError::into_inner);
        there.push(Live(h));
        drop(there);
        Comm { dev, h }
    }
    /// For calls that this module does not wrap.
    pub fn handle(&self) -> Handle {
        self.h
    }
    /// The device it is of.
    pub fn dev(&self) -> &Dev {
        &self.dev
    }
}
impl Drop for Comm {
    fn drop(&mut self) {
        let there = &self.dev.0.held.comms;
        let mut there = there.lock().unwrap_or_else(PoisonError::into_inner);
        there.retain(|c| c.0 != self.h);
        drop(there);
        if let Some(f) = handle!(@slot self, coll, comm_destroy) {
            // SAFETY: made here, freed once.
            unsafe { f(self.h) }
        }
    }
}

/// The handle of a communicator that is there.
pub(super) struct Live(pub Handle);
// SAFETY: R7: any thread may abort a communicator.
unsafe impl Send for Live {}

/// A piece of memory.
pub struct Mem {
    dev: Dev,
    h: Handle,
    /// Its length.
    pub bytes: u64,
}
// SAFETY: R7: memory is shared by threads; who touches its bytes is ordered by streams.
unsafe impl Send for Mem {}
// SAFETY: as above.
unsafe impl Sync for Mem {}
impl Drop for Mem {
    fn drop(&mut self) {
        let waiting = &self.dev.0.held.waiting;
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(self.h);
        drop(waiting);
        self.dev.0.sweep();
    }
}

/// An in-order queue. It knows whether it may have work that nobody has waited for.
pub struct Stream {
    dev: Dev,
    h: Handle,
    dirty: AtomicBool,
}
// SAFETY: R7: any thread may use a stream; the kit serialises calls on one.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}
impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(f) = self.dev.0.p.d.stream_destroy {
            // SAFETY: made here, destroyed once.
            unsafe { f(self.h) }
        }
        self.clean();
    }
}

impl Mem {
    pub(super) fn new(dev: Dev, h: Handle, bytes: u64) -> Mem {
        Mem { dev, h, bytes }
    }

    /// For calls that this module does not wrap.
    pub fn handle(&self) -> Handle {
        self.h
    }
    /// The device it is of.
    pub fn dev(&self) -> &Dev {
        &self.dev
    }
    /// A part of it.
    pub fn span(&self, offset: u64, bytes: u64) -> Span {
        Span {
            mem: self.h,
            offset,
            bytes,
        }
    }
    /// All of it.
    pub fn whole(&self) -> Span {
        self.span(0, self.bytes)
    }

    /// Its host address.
    ///
    /// # Errors
    /// The plugin's.
    pub fn map(&self) -> Raw<*mut u8> {
        let f = slot!(self.dev.0.p.d, mem_map);
        let mut at: *mut c_void = std::ptr::null_mut();
        // SAFETY: a live memory and a live out pointer.
        self.dev
            .0
            .p
            .call("mem_map", |e| unsafe { f(self.h, &mut at, e) })?;
        Ok(at.cast())
    }
}

/// Nanoseconds of the wire.
fn ns(timeout: Option<Duration>) -> i64 {
    timeout.map_or(-1, |t| t.as_nanos().min(i64::MAX as u128) as i64)
}

impl Stream {
    pub(super) fn new(dev: Dev, h: Handle) -> Stream {
        Stream {
            dev,
            h,
            dirty: AtomicBool::new(false),
        }
    }

    fn p(&self) -> &Plugin {
        &self.dev.0.p
    }

    /// For calls that this module does not wrap; it counts as work.
    pub fn handle(&self) -> Handle {
        if !self.dirty.swap(true, Ordering::SeqCst) {
            self.dev.0.held.busy.fetch_add(1, Ordering::SeqCst);
        }
        self.h
    }

    /// The device it is of.
    pub fn dev(&self) -> &Dev {
        &self.dev
    }

    fn clean(&self) {
        if self.dirty.swap(false, Ordering::SeqCst) {
            self.dev.0.held.busy.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Copies in stream order.
    ///
    /// # Errors
    /// The plugin's.
    pub fn copy(&self, dst: Span, src: Span) -> Raw<()> {
        let f = slot!(self.p().d, copy);
        // SAFETY: the kit keeps the spans' memory until the stream has passed.
        self.p()
            .call("copy", |e| unsafe { f(self.handle(), dst, src, e) })
            .map(|_| ())
    }

    /// Copies rows.
    ///
    /// # Errors
    /// The plugin's.
    pub fn copy_2d(
        &self,
        dst: Span,
        dpitch: u64,
        src: Span,
        spitch: u64,
        width: u64,
        height: u64,
    ) -> Raw<()> {
        let f = slot!(self.p().d, copy_2d);
        // SAFETY: as `copy`.
        self.p()
            .call("copy_2d", |e| unsafe {
                f(self.handle(), dst, dpitch, src, spitch, width, height, e)
            })
            .map(|_| ())
    }

    /// Fills.
    ///
    /// # Errors
    /// The plugin's.
    pub fn fill(&self, dst: Span, pattern: u64, bytes: u32) -> Raw<()> {
        let f = slot!(self.p().d, fill);
        // SAFETY: as `copy`.
        self.p()
            .call("fill", |e| unsafe {
                f(self.handle(), dst, pattern, bytes, e)
            })
            .map(|_| ())
    }

    /// Has everything finished?
    ///
    /// # Errors
    /// The stream's failure.
    pub fn query(&self) -> Raw<bool> {
        let f = slot!(self.p().d, stream_query);
        // SAFETY: a live stream.
        let s = self.p().call("stream_query", |e| unsafe { f(self.h, e) })?;
        if s == abi::OK {
            self.clean();
        }
        Ok(s == abi::OK)
    }

    /// Waits; `None` = for ever.
    ///
    /// # Errors
    /// The stream's failure, or `TIMEOUT`.
    pub fn sync(&self, timeout: Option<Duration>) -> Raw<()> {
        let f = slot!(self.p().d, stream_sync);
        // SAFETY: a live stream.
        self.p()
            .call("stream_sync", |e| unsafe { f(self.h, ns(timeout), e) })?;
        self.clean();
        Ok(())
    }

    /// Waits as long as the kit waits for anything that must come.
    ///
    /// # Errors
    /// The stream's failure, or `TIMEOUT`.
    pub fn finish(&self) -> Raw<()> {
        self.sync(Some(crate::ctx::SOON))
    }

    /// Records an event here.
    ///
    /// # Errors
    /// The plugin's.
    pub fn record(&self, e: &Event) -> Raw<()> {
        let f = slot!(self.p().d, event_record);
        // SAFETY: live handles.
        self.p()
            .call("event_record", |r| unsafe { f(e.h, self.h, r) })
            .map(|_| ())
    }

    /// Waits for an event's latest record.
    ///
    /// # Errors
    /// The plugin's.
    pub fn wait(&self, e: &Event) -> Raw<()> {
        let f = slot!(self.p().d, stream_wait_event);
        // SAFETY: live handles.
        self.p()
            .call("stream_wait_event", |r| unsafe { f(self.handle(), e.h, r) })
            .map(|_| ())
    }

    /// Launches a prepared op.
    ///
    /// # Errors
    /// The plugin's.
    pub fn launch(
        &self,
        op: &OpHandle,
        operands: &[Span],
        workspace: Span,
        dynamic: &[u8],
    ) -> Raw<()> {
        let Some(ops) = &self.p().ops else {
            return Err(missing("op_launch"));
        };
        let f = slot!(ops, op_launch);
        // SAFETY: as `copy`; slices live for the call.
        self.p()
            .call("op_launch", |e| unsafe {
                f(
                    op.h,
                    self.handle(),
                    operands.as_ptr(),
                    operands.len() as u32,
                    workspace,
                    dynamic.as_ptr().cast(),
                    dynamic.len() as u64,
                    e,
                )
            })
            .map(|_| ())
    }
}

impl Event {
    /// Has the latest record been passed?
    ///
    /// # Errors
    /// The plugin's.
    pub fn query(&self) -> Raw<bool> {
        let f = slot!(self.dev.0.p.d, event_query);
        // SAFETY: a live event.
        let s = self
            .dev
            .0
            .p
            .call("event_query", |e| unsafe { f(self.h, e) })?;
        Ok(s == abi::OK)
    }

    /// Waits for the latest record.
    ///
    /// # Errors
    /// The plugin's, or `TIMEOUT`.
    pub fn sync(&self, timeout: Option<Duration>) -> Raw<()> {
        let f = slot!(self.dev.0.p.d, event_sync);
        // SAFETY: a live event.
        self.dev
            .0
            .p
            .call("event_sync", |e| unsafe { f(self.h, ns(timeout), e) })
            .map(|_| ())
    }
}
