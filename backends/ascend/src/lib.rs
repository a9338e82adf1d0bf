//! Ascend NPUs through ACL, with aclnn's operators and HCCL's collectives where they are installed.
//! Nothing of CANN is needed to build it: every library is opened at run time, and a missing one is an error that names it and where it was
//! searched. What a device of any vendor's driver has is `crossweave_gpu`'s; here is what is Ascend's own.
//!
//! Configuration, all optional: `ascend.library_path` (folders, by `:`), `ascend.libascendcl`, `ascend.libnnopbase`, `ascend.libopapi`, `ascend.libhccl` (files). See `README.md`, which also says what has run and
//! what has not.

mod acl;
mod aclnn;
mod calls;
mod driver;
mod error;
mod fused;
mod hccl;
#[cfg(test)]
mod headers;
mod host;
mod launch;
mod ops;
mod plan;
mod runtime;
mod staging;

use aclnn::Aclnn;
use crossweave_gpu::{About, Dev, Gpu, OnGpu};
pub use crossweave_gpu::{
    Comm, Event, GpuCollectives as AscendCollectives, Mem, Settings, Stream, native,
};
use crossweave_plugin::{Host, Optional, Result};
pub use launch::Prepared;
pub use ops::AscendOps;
use std::sync::{Arc, Mutex};

/// What the back end says of itself.
pub static ABOUT: About = About {
    name: "ascend",
    keys: &[
        "ascend.library_path",
        "ascend.libascendcl",
        "ascend.libnnopbase",
        "ascend.libopapi",
        "ascend.libhccl",
    ],
    places: &[
        "/usr/local/Ascend/ascend-toolkit/latest/lib64",
        "/usr/local/Ascend/latest/lib64",
    ],
};

crossweave_plugin::declare_backend!(Ascend, name = "ascend", vendor = "Crossweave");

/// Ascend as a plugin. The run time is opened when it is first asked for.
pub struct Ascend {
    gpu: Gpu,
    /// Set once they have been opened; a failure is tried again, as they may be installed meanwhile.
    operators: Mutex<Option<Arc<Aclnn>>>,
}

/// An open device.
pub struct Device {
    pub(crate) dev: Arc<Dev>,
}

impl Ascend {
    /// With settings of the caller's instead of the host's: for tests, and for programs that link the back end.
    pub fn with(host: Host, settings: Settings) -> Ascend {
        Ascend {
            gpu: Gpu::new(host, settings, runtime::start, hccl::open),
            operators: Mutex::new(None),
        }
    }

    /// The operators, opened once.
    pub(crate) fn operators(&self) -> Result<Arc<Aclnn>> {
        let mut slot = crossweave_gpu::lock(&self.operators);
        if let Some(n) = &*slot {
            return Ok(n.clone());
        }
        let n = Arc::new(Aclnn::open(&self.gpu.settings)?);
        *slot = Some(n.clone());
        Ok(n)
    }
}

impl OnGpu for Ascend {
    fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    fn dev(d: &Device) -> &Arc<Dev> {
        &d.dev
    }

    fn opened(&self, dev: Arc<Dev>) -> Result<Device> {
        Ok(Device { dev })
    }

    fn attribute(&self, _: &Device, key: &str) -> Option<String> {
        Some(match key {
            "ascend.operators" => self
                .operators()
                .map_or_else(|e| e.message, |n| n.files.clone()),
            "ascend.hccl" => self.gpu.collectives(),
            // Any plugin's: what stands behind ops that more than one kernel of the best tier can do.
            "kernels.chosen" => "attention: aclnnFlashAttentionScore where its definition fits, else composed of the mandatory ops".into(),
            _ => return None,
        })
    }
}

crossweave_gpu::gpu_backend!(
    Ascend,
    device = Device,
    ops = AscendOps,
    optional = Optional {
        attr: true,
        import: true,
        export: true,
        elapsed: true,
        host_call: true,
        // ACL's waits for words are not written: host calls are what needs them.
        wait_value: false,
        write_value: false,
        copy_peer: true,
        peer_access: true,
    },
    init = |host| Ascend::with(host, Settings::of(&ABOUT, &host)),
);
