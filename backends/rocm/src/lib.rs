//! AMD GPUs through the HIP run time, with HIPRTC for kernels, hipBLASLt for products and RCCL for collectives where they are installed.
//! Nothing of ROCm is needed to build it: every library is opened at run time, and a missing one is an error that names it and where it was
//! searched. What a GPU of any vendor has is `crossweave_gpu`'s; here is what is HIP's own.
//!
//! Configuration, all optional: `rocm.library_path` (folders, by `:`), `rocm.libamdhip64`, `rocm.libhiprtc`, `rocm.libhipblaslt`,
//! `rocm.librccl` (files), `rocm.hipblaslt` (`off`: products by this back end's own kernels),
//! `rocm.cache_dir` or `cache_dir` (where compiled kernels are kept). See `README.md`, which also says what has run and what has not.

mod error;
#[cfg(test)]
mod forwarded;
#[cfg(test)]
mod headers;
mod hip;
mod hiprtc;
mod lt;
mod ops;

use crossweave_gpu::library::Wanted;
use crossweave_gpu::lt::{Library, OnDevice as Products};
use crossweave_gpu::{About, Dev, Gpu, Nccl, OnGpu, Shared};
pub use crossweave_gpu::{
    Comm, Event, GpuCollectives as RocmCollectives, GpuGraphs as RocmGraphs, Graph, Mem, Settings,
    Stream, native,
};
use crossweave_plugin::{Host, Optional, Result};
use hiprtc::Compiler;
pub use ops::{Prepared, RocmOps};
use std::sync::Arc;

/// What the back end says of itself.
pub static ABOUT: About = About {
    name: "rocm",
    keys: &[
        "rocm.library_path",
        "rocm.libamdhip64",
        "rocm.libhiprtc",
        "rocm.libhipblaslt",
        "rocm.hipblaslt",
        "rocm.librccl",
        "rocm.cache_dir",
        "cache_dir",
    ],
    places: &["/opt/rocm/lib", "/opt/rocm/lib64", "/opt/rocm/hip/lib"],
};

const RCCL: Wanted = Wanted {
    what: "RCCL",
    key: "rocm.librccl",
    names: &["librccl.so.1", "librccl.so"],
    fix: "install it (ROCm's package rccl)",
};

crossweave_plugin::declare_backend!(
    Rocm,
    name = "rocm",
    vendor = "Crossweave",
    graphs = RocmGraphs
);

/// ROCm as a plugin. The run time is opened when it is first asked for.
pub struct Rocm {
    gpu: Gpu,
    compiler: Arc<Compiler>,
    products: Arc<Library>,
    devices: Shared<Products>,
}

/// An open device.
pub struct Device {
    pub(crate) dev: Arc<Dev>,
    pub(crate) compiler: Arc<Compiler>,
    /// What hipBLASLt keeps for it, the same for all who opened it.
    pub(crate) products: Arc<Products>,
}

impl Rocm {
    /// With settings of the caller's instead of the host's: for tests, and for programs that link the back end.
    pub fn with(host: Host, settings: Settings) -> Rocm {
        Rocm {
            compiler: Arc::new(Compiler::new(host, &settings)),
            products: Arc::new(Library::new(host, &settings, "hipblaslt", lt::open)),
            devices: Shared::default(),
            // RCCL waits for a missing rank although it is asked not to, to August 2026: github.com/ROCm/rocm-systems/pull/10796.
            gpu: Gpu::new(host, settings, hip::start, |s| {
                Ok(Nccl::open(s, &RCCL)?.that_waits())
            }),
        }
    }
}

impl OnGpu for Rocm {
    fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    fn dev(d: &Device) -> &Arc<Dev> {
        &d.dev
    }

    fn opened(&self, dev: Arc<Dev>) -> Result<Device> {
        let made = || Ok(Products::new(&dev, &self.products));
        Ok(Device {
            products: self.devices.get(dev.index, made)?,
            dev,
            compiler: self.compiler.clone(),
        })
    }

    fn attribute(&self, d: &Device, key: &str) -> Option<String> {
        Some(match key {
            "rocm.hiprtc" => self.compiler.hiprtc().map_or_else(
                |e| e.message,
                |c| format!("{}.{} ({})", c.version.0, c.version.1, c.file),
            ),
            "rocm.hipblaslt" => d.products.said(),
            "rocm.rccl" => self.gpu.collectives(),
            // MI200's matrix cores take subnormal f16 and bf16 numbers for 0, and give none
            // (rocm.docs.amd.com/projects/MIOpen/en/latest/conceptual/MI200-alt-implementation.html).
            "flush_subnormals" => u32::from(d.dev.facts.arch.starts_with("gfx90a")).to_string(),
            // Any plugin's: what stands behind ops that more than one kernel of the best tier can do.
            "kernels.chosen" => "attention: own kernels (portable)".into(),
            _ => return None,
        })
    }
}

crossweave_gpu::gpu_backend!(
    Rocm,
    device = Device,
    ops = RocmOps,
    optional = Optional {
        attr: true,
        import: true,
        export: true,
        elapsed: true,
        host_call: true,
        // HIP's waits for words need memory of a kind of their own.
        wait_value: false,
        write_value: false,
        copy_peer: true,
        peer_access: true,
    },
    init = |host| Rocm::with(host, Settings::of(&ABOUT, &host)),
);
