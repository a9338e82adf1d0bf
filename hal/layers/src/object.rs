//! Handles of a layer: each stands for one of the plugin's, with a number and what is known of it. A destroyed one is kept for a while, so
//! that a late use of it is reported as what it is.

use crate::call::OpFacts;
use crate::wrap::Context;
use crossweave_abi::Handle;
use crossweave_plugin::{Code, Error, Result};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// What a handle is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Device,
    Mem,
    Stream,
    Event,
    Op,
    Comm,
}

impl Kind {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Device => "device",
            Kind::Mem => "memory",
            Kind::Stream => "stream",
            Kind::Event => "event",
            Kind::Op => "op",
            Kind::Comm => "communicator",
        }
    }
    fn end(self) -> &'static str {
        match self {
            Kind::Device => "closed",
            Kind::Mem => "freed",
            Kind::Op => "released",
            Kind::Stream | Kind::Event | Kind::Comm => "destroyed",
        }
    }
}

/// What is known of a handle beyond its kind.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Facts {
    None,
    Mem { kind: u32, bytes: u64 },
    Op { op: OpFacts, workspace: u64 },
    Comm { rank: i32, size: i32, name: String },
}

const MAGIC: u64 = 0x6c61_7965_7265_6421;

/// What a handle of a layer points at.
pub struct Object {
    magic: AtomicU64,
    pub(crate) context: &'static Context,
    pub(crate) inner: Handle,
    kind: Kind,
    id: u64,
    device: u64,
    facts: Facts,
    alive: AtomicBool,
    address: AtomicUsize,
}
// SAFETY: the inner handle is an opaque token; R7 says which calls may share it, and this type only carries it.
unsafe impl Send for Object {}
// SAFETY: as above; everything that changes is atomic.
unsafe impl Sync for Object {}

impl Object {
    /// Puts a handle of the plugin into one of the layer's. `device` 0: it is a device itself.
    pub(crate) fn make(
        context: &'static Context,
        kind: Kind,
        inner: Handle,
        id: u64,
        device: u64,
        facts: Facts,
    ) -> Handle {
        let device = if device == 0 { id } else { device };
        Box::into_raw(Box::new(Object {
            magic: AtomicU64::new(MAGIC),
            context,
            inner,
            kind,
            id,
            device,
            facts,
            alive: AtomicBool::new(true),
            address: AtomicUsize::new(0),
        }))
        .cast()
    }

    /// What a handle stands for.
    ///
    /// # Safety
    /// `h` is NULL or was made by a layer of this process; it is not destroyed while the reference lives (R7).
    pub(crate) unsafe fn of<'a>(h: Handle, kind: Kind) -> Result<&'a Object> {
        let bad = |why: String| Err(Error::new(Code::Invalid, why));
        if h.is_null() || !h.cast::<Object>().is_aligned() {
            return bad(format!("the {} is NULL or no handle", kind.name()));
        }
        // SAFETY: promised by the caller; what was destroyed is kept by its context.
        let o = unsafe { &*h.cast::<Object>() };
        if o.magic.load(Ordering::Acquire) != MAGIC {
            return bad(format!("the {} is no handle of this plugin", kind.name()));
        }
        if o.kind != kind {
            return bad(format!(
                "a {} (#{}) where a {} belongs",
                o.kind.name(),
                o.id,
                kind.name()
            ));
        }
        if !o.alive.load(Ordering::Acquire) {
            return bad(format!(
                "{} #{} is used after it was {}",
                kind.name(),
                o.id,
                kind.end()
            ));
        }
        Ok(o)
    }

    /// Ends it; `false`: somebody has done so before.
    pub(crate) fn end(&self) -> bool {
        self.alive.swap(false, Ordering::AcqRel)
    }
    /// Before its memory goes.
    pub(crate) fn forget(&self) {
        self.magic.store(0, Ordering::Release);
    }
    /// Number, in the order of creation; equal on every run that makes the same calls.
    pub fn id(&self) -> u64 {
        self.id
    }
    /// What it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }
    /// Number of its device.
    pub fn device(&self) -> u64 {
        self.device
    }
    /// What else is known.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }
    /// `stream #7`.
    pub fn describe(&self) -> String {
        format!("{} #{}", self.kind.name(), self.id)
    }
    pub(crate) fn mapped(&self, address: usize) {
        self.address.store(address, Ordering::Release);
    }
    /// Where the host has it, once it was mapped.
    pub(crate) fn address(&self) -> Option<usize> {
        Some(self.address.load(Ordering::Acquire)).filter(|a| *a != 0)
    }
    /// Does the host see these bytes by an address?
    pub fn on_host(&self) -> bool {
        self.address().is_some()
    }
    /// Length, of memory.
    pub fn bytes(&self) -> u64 {
        match self.facts {
            Facts::Mem { bytes, .. } => bytes,
            _ => 0,
        }
    }
}
