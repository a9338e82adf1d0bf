//! Where host memory is taken from: page-locked memory of the device for what the device copies, plain memory of the host's device for
//! what the host alone computes on, unless that is to be page-locked too.

use crossweave_hal::{Code, Device, HostBuffer, MemoryReport, Tag};
use crossweave_tensor::{Error, Result};
use std::collections::BTreeMap;

/// The key of configs that has everything page-locked.
const KEY: &str = "zero_optimization.offload_optimizer.pin_memory";

/// Plain host memory of a rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unpinned {
    /// Bytes by tag.
    pub bytes: BTreeMap<String, u64>,
    /// The ledger of the rank's device counts them with what is page-locked: its device and the host's are one, as in a rehearsal.
    pub counted: bool,
}

impl Unpinned {
    /// A report of the device's memory, with this in it.
    pub fn counted(&self, mut report: MemoryReport) -> MemoryReport {
        for (tag, bytes) in &self.bytes {
            let of = match self.counted {
                true => report.pinned.get_mut(tag),
                false => Some(report.host.entry(tag.clone()).or_default()),
            };
            let Some(held) = of else { continue };
            let change = |n: u64| match self.counted {
                true => n.saturating_sub(*bytes),
                false => n + bytes,
            };
            (held.now, held.peak) = (change(held.now), change(held.peak));
        }
        report.pinned.retain(|_, held| held.peak > 0);
        report
    }
}

/// Gives host memory, and counts what of it is not page-locked.
pub(crate) struct Home<'a> {
    device: &'a Device,
    host: &'a Device,
    /// Everything is page-locked.
    pin: bool,
    /// What was given that is not.
    pub unpinned: Unpinned,
}

impl<'a> Home<'a> {
    pub fn new(device: &'a Device, host: &'a Device, pin: bool) -> Home<'a> {
        Home {
            device,
            host,
            pin,
            unpinned: Unpinned {
                bytes: BTreeMap::new(),
                counted: device == host,
            },
        }
    }

    /// Memory that the device copies.
    pub fn pinned(&self, bytes: u64, tag: Tag) -> Result<HostBuffer> {
        let why = "the device copies it; raise the limit of locked memory (`ulimit -l`), or offload to nvme, whose pool is smaller";
        self.locked(bytes, tag, why)
    }

    /// Memory that stays with the host.
    pub fn kept(&mut self, bytes: u64, tag: Tag) -> Result<HostBuffer> {
        if self.pin {
            let why = "this key asks for it; set it to false, or raise the limit of locked memory (`ulimit -l`)";
            return self.locked(bytes, tag, why);
        }
        *self
            .unpinned
            .bytes
            .entry(tag.name().to_string())
            .or_default() += bytes;
        Ok(self.host.alloc_host(bytes, tag)?)
    }

    fn locked(&self, bytes: u64, tag: Tag, why: &str) -> Result<HostBuffer> {
        let memory = self.device.alloc_host(bytes, tag);
        memory.map_err(|e| refused(KEY, &format!("{bytes} bytes ({})", tag.name()), e, why))
    }
}

/// Says which key asks for page-locked memory that is refused, and what can be done.
pub(crate) fn refused(key: &str, what: &str, e: crossweave_hal::Error, why: &str) -> Error {
    match e.code {
        Code::Oom | Code::Unsupported => Error::Storage(format!(
            "{key}: {what} of page-locked memory are refused: {e}; {why}"
        )),
        _ => e.into(),
    }
}
