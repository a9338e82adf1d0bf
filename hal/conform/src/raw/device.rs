//! An open device, and what is made on it.

use super::handles::{Comm, Event, Live, Mem, OpHandle, Stream};
use super::{Plugin, Raw, Refusal};
use crossweave_abi as abi;
use crossweave_abi::Handle;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub(super) struct Opened {
    pub(super) p: Arc<Plugin>,
    pub(super) h: Handle,
    pub(super) index: u32,
    pub(super) held: Held,
}

/// What an opened device has under way.
#[derive(Default)]
pub(super) struct Held {
    /// Streams with work that nobody has waited for.
    pub busy: AtomicUsize,
    /// Memory given up while a stream was busy: a case that fails in the middle frees nothing under the device's feet.
    pub waiting: Mutex<Vec<Handle>>,
    /// Communicators that are there.
    pub comms: Mutex<Vec<Live>>,
}

impl Opened {
    /// Frees what waits, once no stream can use it.
    pub(super) fn sweep(&self) {
        let mut waiting = self
            .held
            .waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if self.held.busy.load(Ordering::SeqCst) > 0 {
            return;
        }
        for h in waiting.drain(..) {
            if let Some(f) = self.p.d.mem_free {
                // SAFETY: allocated here, freed once, and no stream has work left.
                unsafe { f(h) }
            }
        }
    }
}
// SAFETY: R7: a device may be used from any thread.
unsafe impl Send for Opened {}
// SAFETY: as above.
unsafe impl Sync for Opened {}
impl Drop for Opened {
    fn drop(&mut self) {
        // Every stream is destroyed by now.
        self.held.busy.store(0, Ordering::SeqCst);
        self.sweep();
        if let Some(f) = self.p.d.device_close {
            // SAFETY: opened here, closed once, after everything of it: all handles keep it alive.
            unsafe { f(self.h) }
        }
    }
}

/// An open device; clones share it.
#[derive(Clone)]
pub struct Dev(pub(super) Arc<Opened>);

impl Dev {
    pub(super) fn opened(p: Arc<Plugin>, h: Handle, index: u32) -> Dev {
        Dev(Arc::new(Opened {
            p,
            h,
            index,
            held: Held::default(),
        }))
    }

    /// Aborts every communicator of this opening of the device: what waits in one ends.
    pub fn abort_all(&self) {
        let Some(f) = self.0.p.coll.as_ref().and_then(|t| t.comm_abort) else {
            return;
        };
        let there = self
            .0
            .held
            .comms
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for c in there.iter() {
            // SAFETY: it is taken off the list, under the lock, before it is destroyed; abort may race with anything (R7).
            unsafe { f(c.0, std::ptr::null_mut()) };
        }
    }

    /// Its plugin.
    pub fn plugin(&self) -> &Arc<Plugin> {
        &self.0.p
    }
    /// For calls that this module does not wrap.
    pub fn handle(&self) -> Handle {
        self.0.h
    }
    /// The index it was opened by.
    pub fn index(&self) -> u32 {
        self.0.index
    }

    /// Asks it.
    ///
    /// # Errors
    /// The plugin's.
    pub fn info(&self) -> Raw<abi::DeviceInfo> {
        let f = slot!(self.0.p.d, device_info);
        // SAFETY: all-zero integers and text.
        let mut i: abi::DeviceInfo = unsafe { std::mem::zeroed() };
        i.size = size_of::<abi::DeviceInfo>() as u32;
        // SAFETY: a live device and a record of the stated size.
        self.0
            .p
            .call("device_info", |e| unsafe { f(self.0.h, &mut i, e) })?;
        Ok(i)
    }

    /// An attribute as text; `None` when the slot is not there.
    ///
    /// # Errors
    /// The plugin's.
    pub fn attr(&self, key: &str) -> Raw<Option<Vec<u8>>> {
        let Some(f) = self.0.p.d.device_attr else {
            return Ok(None);
        };
        let mut out = vec![0u8; 4096];
        let mut len = 0u64;
        // SAFETY: `out` has as many bytes as stated.
        self.0.p.call("device_attr", |e| unsafe {
            let at = out.as_mut_ptr().cast();
            f(self.0.h, abi::Str::new(key), at, 4096, &mut len, e)
        })?;
        out.truncate(len as usize);
        Ok(Some(out))
    }

    /// Allocates.
    ///
    /// # Errors
    /// The plugin's.
    pub fn alloc(&self, kind: u32, bytes: u64, align: u64) -> Raw<Mem> {
        let f = slot!(self.0.p.d, mem_alloc);
        let mut h: Handle = std::ptr::null_mut();
        // SAFETY: a live device, live out pointers.
        self.0.p.call("mem_alloc", |e| unsafe {
            f(self.0.h, kind, bytes, align, &mut h, e)
        })?;
        Ok(Mem::new(self.clone(), h, bytes))
    }

    /// Wraps a native object; `None` when the slot is not there.
    ///
    /// # Errors
    /// The plugin's.
    ///
    /// # Safety
    /// The object lives until the memory and all work on it are gone.
    pub unsafe fn import(&self, native: &abi::Native) -> Raw<Option<Mem>> {
        let Some(f) = self.0.p.d.mem_import else {
            return Ok(None);
        };
        let mut h: Handle = std::ptr::null_mut();
        // SAFETY: promised by the caller.
        self.0
            .p
            .call("mem_import", |e| unsafe { f(self.0.h, native, &mut h, e) })?;
        Ok(Some(Mem::new(self.clone(), h, native.bytes)))
    }

    /// Creates a stream.
    ///
    /// # Errors
    /// The plugin's.
    pub fn stream(&self) -> Raw<Stream> {
        self.stream_of(0)
    }

    /// Creates a stream of a priority.
    ///
    /// # Errors
    /// The plugin's.
    pub fn stream_of(&self, priority: i32) -> Raw<Stream> {
        let f = slot!(self.0.p.d, stream_create);
        let mut h: Handle = std::ptr::null_mut();
        // SAFETY: as `alloc`.
        self.0.p.call("stream_create", |e| unsafe {
            f(self.0.h, priority, 0, &mut h, e)
        })?;
        Ok(Stream::new(self.clone(), h))
    }

    /// Creates an event.
    ///
    /// # Errors
    /// The plugin's.
    pub fn event(&self) -> Raw<Event> {
        let f = slot!(self.0.p.d, event_create);
        let mut h: Handle = std::ptr::null_mut();
        // SAFETY: as `alloc`.
        self.0
            .p
            .call("event_create", |e| unsafe { f(self.0.h, 0, &mut h, e) })?;
        Ok(Event::new(self.clone(), h))
    }

    /// Prepares an op.
    ///
    /// # Errors
    /// The plugin's; `UNSUPPORTED` when it has no ops.
    ///
    /// # Safety
    /// The descriptor's pointers are live and hold what it states.
    pub unsafe fn prepare(&self, desc: &abi::OpDesc) -> Raw<(OpHandle, abi::OpPlan)> {
        let Some(ops) = &self.0.p.ops else {
            return Err(missing("op_prepare"));
        };
        let f = slot!(ops, op_prepare);
        let mut h: Handle = std::ptr::null_mut();
        let mut plan = abi::OpPlan {
            size: size_of::<abi::OpPlan>() as u32,
            tier: 0,
            workspace_bytes: 0,
            est_ns: 0,
            error_class: 0,
        };
        // SAFETY: promised by the caller.
        self.0.p.call("op_prepare", |e| unsafe {
            f(self.0.h, desc, &mut h, &mut plan, e)
        })?;
        let op = OpHandle::new(self.clone(), h);
        Ok((op, plan))
    }

    /// A fresh id for a communicator.
    ///
    /// # Errors
    /// The plugin's.
    pub fn unique_id(&self) -> Raw<Vec<u8>> {
        let Some(c) = &self.0.p.coll else {
            return Err(missing("unique_id"));
        };
        let f = slot!(c, unique_id);
        let mut len = 0u64;
        // SAFETY: a NULL buffer of no bytes asks for the length.
        self.0.p.call("unique_id", |e| unsafe {
            f(self.0.h, std::ptr::null_mut(), 0, &mut len, e)
        })?;
        let mut id = vec![0u8; len as usize];
        // SAFETY: a buffer of the stated length.
        self.0.p.call("unique_id", |e| unsafe {
            f(self.0.h, id.as_mut_ptr().cast(), len, &mut len, e)
        })?;
        id.truncate(len as usize);
        Ok(id)
    }

    /// Joins a communicator.
    ///
    /// # Errors
    /// The plugin's.
    pub fn join(&self, id: &[u8], cfg: &Joining<'_>) -> Raw<Comm> {
        let Some(c) = &self.0.p.coll else {
            return Err(missing("comm_init"));
        };
        let f = slot!(c, comm_init);
        let mut h: Handle = std::ptr::null_mut();
        let cfg = cfg.raw();
        // SAFETY: id and configuration live for the call.
        self.0.p.call("comm_init", |e| unsafe {
            f(
                self.0.h,
                id.as_ptr().cast(),
                id.len() as u64,
                &cfg,
                &mut h,
                e,
            )
        })?;
        Ok(Comm::new(self.clone(), h))
    }
}

pub(super) fn missing(slot: &'static str) -> Refusal {
    Refusal {
        slot,
        status: abi::E_UNSUPPORTED,
        flags: 0,
        peer: -1,
        vendor_code: 0,
        message: "the plugin does not offer this interface".into(),
    }
}

/// How a rank joins.
#[derive(Clone, Debug)]
pub struct Joining<'a> {
    /// Which one.
    pub rank: u32,
    /// The number of ranks.
    pub nranks: u32,
    /// For connecting and each collective.
    pub timeout: Duration,
    /// For the plugin's own exchange.
    pub prefix: &'a str,
    /// For messages.
    pub name: &'a str,
}

impl Joining<'_> {
    /// As the C struct.
    pub fn raw(&self) -> abi::CommConfig {
        abi::CommConfig {
            size: size_of::<abi::CommConfig>() as u32,
            rank: self.rank as i32,
            nranks: self.nranks as i32,
            flags: 0,
            timeout_ns: self.timeout.as_nanos() as i64,
            kv_prefix: abi::Str::new(self.prefix),
            name: abi::Str::new(self.name),
        }
    }
}
