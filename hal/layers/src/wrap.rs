//! A plugin inside a layer: the same tables, whose functions translate handles, tell the layer of the call in safe words, and go on to the
//! plugin's own when the layer lets them.
//!
//! There is one set of these functions for all layers. A slot the plugin does not have is not there in the layer either. Interfaces that
//! are not wrapped (`x.…`, later ones) are not passed on: their functions would be given handles they have never seen.

use crate::call::{Call, OpFacts, Operand};
use crate::object::{Facts, Kind, Object};
use crossweave_abi as abi;
use crossweave_abi::{ErrPtr, Handle, Status, Str};
use crossweave_hal::{HostServices, RawPlugin};
use crossweave_plugin::Result;
use crossweave_plugin::export::{desc, desc_array, guard};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// What looks at the calls. An implementation is called from any thread (R7).
pub trait Layer: Send + Sync + 'static {
    /// For messages: `fault`.
    fn name(&self) -> &'static str;
    /// Around one call: `next` makes it, once or not at all. An error is what the caller gets instead of the plugin's answer.
    ///
    /// # Errors
    /// Whatever the layer refuses the call with.
    fn around(&self, call: &Call<'_>, next: &mut dyn FnMut() -> Status) -> Result<Status>;
    /// Takes slots away from the tables that the host is shown.
    fn trim(&self, _device: &mut abi::DeviceApi, _coll: &mut Option<abi::CollectiveApi>) {}
    /// A handle was given that is none, in a call that cannot fail; it was not made.
    fn misused(&self, _why: &str) {}
}

/// Destroyed handles kept, to know them again.
const KEPT: usize = 4096;

/// One layer around one plugin. Lives as long as the process (R9).
pub struct Context {
    pub(crate) inner: RawPlugin,
    pub(crate) layer: Box<dyn Layer>,
    host: abi::Host,
    device: Option<abi::DeviceApi>,
    ops: Option<abi::OpsApi>,
    coll: Option<abi::CollectiveApi>,
    next: AtomicU64,
    ended: Mutex<VecDeque<Handle>>,
}
// SAFETY: the handles in it are boxes this context owns and only frees; tables are immutable.
unsafe impl Send for Context {}
// SAFETY: as above; the queue is behind a lock.
unsafe impl Sync for Context {}

/// `inner` inside `layer`: the same name and version, so that nothing above sees a difference.
pub fn wrap(inner: RawPlugin, host: &HostServices, layer: Box<dyn Layer>) -> RawPlugin {
    let mut raw = inner.clone();
    let mut device = inner.device.as_ref().map(crate::device::table);
    let mut coll = inner.coll.as_ref().map(crate::ops::coll_table);
    if let Some(d) = &mut device {
        layer.trim(d, &mut coll);
    }
    let context: &'static Context = Box::leak(Box::new(Context {
        device,
        ops: inner.ops.as_ref().map(crate::ops::ops_table),
        coll,
        host: host.table(),
        layer,
        next: AtomicU64::new(1),
        ended: Mutex::default(),
        inner,
    }));
    raw.device = context.device;
    raw.ops = context.ops;
    raw.coll = context.coll;
    // Its handles would be ours, which the plugin does not know.
    raw.graph = None;
    raw.self_ = std::ptr::from_ref(context).cast_mut().cast();
    raw.get_interface = get_interface;
    raw.shutdown = raw.shutdown.map(|_| shutdown as _);
    raw
}

impl Context {
    /// The context a table function was given.
    ///
    /// # Safety
    /// `h` is the `self` of a plugin made by [`wrap`].
    pub(crate) unsafe fn of(h: Handle) -> &'static Context {
        // SAFETY: promised by the caller; contexts are leaked.
        unsafe { &*h.cast::<Context>() }
    }
    /// Number of the next handle.
    pub(crate) fn fresh(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
    /// Announces a call to the layer and makes it.
    pub(crate) fn around(
        &self,
        call: &Call<'_>,
        mut next: impl FnMut() -> Status,
    ) -> Result<Status> {
        self.layer.around(call, &mut next)
    }
    pub(crate) fn log(&self, why: &str) {
        if let Some(f) = self.host.log {
            let target = format!("layer {}", self.layer.name());
            // SAFETY: the host's own table; texts live for the call.
            unsafe { f(self.host.ctx, 1, Str::new(&target), Str::new(why)) };
        }
    }
    /// A handle is gone: kept for a while, so that a caller who uses it again gets an error.
    pub(crate) fn ended(&self, h: Handle) {
        let old = {
            let mut q = self.ended.lock().unwrap_or_else(|e| e.into_inner());
            q.push_back(h);
            if q.len() > KEPT { q.pop_front() } else { None }
        };
        if let Some(old) = old {
            // SAFETY: made by `Object::make`, ended once, and out of the queue once.
            unsafe {
                (*old.cast::<Object>()).forget();
                drop(Box::from_raw(old.cast::<Object>()));
            }
        }
    }
}

/// The operand of a span, and the span as the plugin has it.
///
/// # Safety
/// As [`Object::of`].
pub(crate) unsafe fn operand<'a>(s: abi::Span) -> Result<(Operand<'a>, abi::Span)> {
    if s.mem.is_null() {
        let o = Operand {
            mem: None,
            offset: s.offset,
            bytes: s.bytes,
        };
        return Ok((o, s));
    }
    // SAFETY: promised by the caller.
    let m = unsafe { Object::of(s.mem, Kind::Mem) }?;
    let o = Operand {
        mem: Some(m),
        offset: s.offset,
        bytes: s.bytes,
    };
    Ok((o, abi::Span { mem: m.inner, ..s }))
}

/// Ends a handle in a call that cannot fail.
///
/// # Safety
/// As [`Object::of`].
pub(crate) unsafe fn destroy(
    h: Handle,
    kind: Kind,
    call: impl for<'a> Fn(&'a Object) -> Call<'a>,
    then: impl Fn(&Object),
) {
    let done = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: promised by the caller.
        let o = match unsafe { Object::of(h, kind) } {
            Ok(o) => o,
            Err(e) => {
                // SAFETY: a handle that is known though ended still names its context.
                if let Some(c) = unsafe { context_of(h) } {
                    let slot = format!("{}: {}", slot_of(kind), e.message);
                    c.log(&slot);
                    c.layer.misused(&slot);
                }
                return;
            }
        };
        let mut made = false;
        let answer = o.context.around(&call(o), || {
            made = true;
            then(o);
            abi::OK
        });
        // There is no status to return: what a layer refuses here is logged, and the handle is gone all the same.
        if let Err(e) = answer {
            o.context.log(&e.message);
        }
        if !made {
            then(o);
        }
        if o.end() {
            o.context.ended(h);
        }
    }));
    if let Err(p) = done {
        std::mem::forget(p);
    }
}

fn slot_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Device => "device_close",
        Kind::Mem => "mem_free",
        Kind::Stream => "stream_destroy",
        Kind::Event => "event_destroy",
        Kind::Op => "op_release",
        Kind::Comm => "comm_destroy",
    }
}

/// # Safety
/// As [`Object::of`].
unsafe fn context_of(h: Handle) -> Option<&'static Context> {
    let kinds = [
        Kind::Device,
        Kind::Mem,
        Kind::Stream,
        Kind::Event,
        Kind::Op,
        Kind::Comm,
    ];
    if h.is_null() {
        return None;
    }
    // An ended handle answers with an error that differs from "no handle"; its memory is still ours.
    // SAFETY: promised by the caller.
    let known = kinds.iter().any(|k| match unsafe { Object::of(h, *k) } {
        Ok(_) => true,
        Err(e) => e.message.contains('#'),
    });
    // SAFETY: known, hence made by us and kept.
    known.then(|| unsafe { (*h.cast::<Object>()).context })
}

/// A copy of what an op is prepared as.
///
/// # Safety
/// `d` is NULL or a descriptor that keeps R1, whose arrays live for the call.
pub(crate) unsafe fn op_facts(d: *const abi::OpDesc) -> Result<OpFacts> {
    // SAFETY: promised by the caller.
    unsafe {
        let desc = desc(d, "op descriptor")?;
        let operands = desc_array(desc.operands, desc.n_operands, "layout")?;
        let params = match desc.params.is_null() || desc.params_bytes == 0 {
            true => vec![],
            false => {
                std::slice::from_raw_parts(desc.params.cast::<u8>(), desc.params_bytes as usize)
                    .to_vec()
            }
        };
        Ok(OpFacts {
            op: desc.op,
            revision: desc.op_revision,
            operands,
            params,
            math_flags: desc.math_flags,
        })
    }
}

/// Facts of memory.
pub(crate) fn mem_facts(kind: u32, bytes: u64) -> Facts {
    Facts::Mem { kind, bytes }
}

unsafe extern "C" fn get_interface(h: Handle, id: Str) -> *const c_void {
    fn table<T>(t: &Option<T>) -> *const c_void {
        t.as_ref()
            .map_or(std::ptr::null(), |t| std::ptr::from_ref(t).cast())
    }
    // SAFETY: `h` is our context, leaked; the text lives for the call.
    unsafe {
        let c = Context::of(h);
        match id.as_str() {
            Some(abi::IFACE_DEVICE) => table(&c.device),
            Some(abi::IFACE_OPS) => table(&c.ops),
            Some(abi::IFACE_COLLECTIVE) => table(&c.coll),
            _ => std::ptr::null(),
        }
    }
}

unsafe extern "C" fn shutdown(h: Handle, e: ErrPtr) -> Status {
    // SAFETY: `h` is our context; `e` is the caller's record.
    unsafe {
        guard(e, "shutdown", || {
            let c = Context::of(h);
            let Some(f) = c.inner.shutdown else {
                return Ok(abi::OK);
            };
            c.around(&Call::Shutdown, || f(c.inner.self_, e))
        })
    }
}
