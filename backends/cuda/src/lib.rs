//! NVIDIA GPUs through the CUDA driver, with cuBLASLt, cuDNN, NVRTC and NCCL where they are installed.
//! Nothing of CUDA is needed to build it: every library is opened at run time, and a missing one is an error that names it and where it was
//! searched. What a GPU of any vendor has is `crossweave_gpu`'s; here is what is CUDA's own.
//!
//! Configuration, all optional: `cuda.library_path` (folders, by `:`), `cuda.libcuda`, `cuda.libnvrtc`,
//! `cuda.libcublaslt`, `cuda.libnccl`, `cuda.libcudnn` (files), `cuda.cache_dir` or `cache_dir` (where
//! compiled kernels are kept). See `README.md`; what must always hold is in `docs/invariants.md`.

mod cudnn;
mod device;
mod driver;
mod error;
mod lt;
mod modules;
mod nvrtc;
mod ops;

use crossweave_gpu::library::Wanted;
use crossweave_gpu::{About, Gpu, Nccl, OnGpu, Shared};
pub use crossweave_gpu::{
    Comm, Event, GpuCollectives as CudaCollectives, GpuGraphs as CudaGraphs, Graph, Mem, Settings,
    Stream, native,
};
use crossweave_plugin::{Host, Optional, Result};
use device::{Dev, Libraries};
pub use ops::{CudaOps, Prepared};
use std::sync::Arc;

/// What the back end says of itself.
pub static ABOUT: About = About {
    name: "cuda",
    keys: &[
        "cuda.library_path",
        "cuda.libcuda",
        "cuda.libnvrtc",
        "cuda.libcublaslt",
        "cuda.libnccl",
        "cuda.libcudnn",
        "cuda.cublaslt",
        "cuda.cudnn",
        "cuda.cudnn_workspace",
        "cuda.wgmma",
        "cuda.exportable",
        "cuda.cache_dir",
        "cache_dir",
    ],
    places: &[
        "/usr/local/cuda/lib64",
        "/usr/local/cuda/targets/x86_64-linux/lib",
        "/usr/local/cuda/targets/sbsa-linux/lib",
        "/usr/lib/wsl/lib",
    ],
};

const NCCL: Wanted = Wanted {
    what: "NCCL",
    key: "cuda.libnccl",
    names: &["libnccl.so.2", "libnccl.so"],
    fix: "install it (Debian and Ubuntu: libnccl2; Python: nvidia-nccl-cu12)",
};

crossweave_plugin::declare_backend!(
    Cuda,
    name = "cuda",
    vendor = "Crossweave",
    graphs = CudaGraphs
);

/// CUDA as a plugin. The driver is opened when it is first asked for.
pub struct Cuda {
    gpu: Gpu,
    libs: Arc<Libraries>,
    devices: Shared<Dev>,
}

/// An open device.
pub struct Device(pub(crate) Arc<Dev>);

impl Cuda {
    /// With settings of the caller's instead of the host's: for tests, and for programs that link the back end.
    pub fn with(host: Host, settings: Settings) -> Cuda {
        Cuda {
            libs: Arc::new(Libraries::new(host, &settings)),
            devices: Shared::default(),
            gpu: Gpu::new(host, settings, driver::start, |s| Nccl::open(s, &NCCL)),
        }
    }
}

impl OnGpu for Cuda {
    fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    fn dev(d: &Device) -> &Arc<crossweave_gpu::Dev> {
        &d.0
    }

    fn opened(&self, dev: Arc<crossweave_gpu::Dev>) -> Result<Device> {
        let index = dev.index;
        let made = || Ok(Dev::new(dev, &self.libs));
        self.devices.get(index, made).map(Device)
    }

    fn attribute(&self, d: &Device, key: &str) -> Option<String> {
        let libs = &self.libs;
        Some(match key {
            "cuda.nvrtc" => libs.compiler.nvrtc().map_or_else(
                |e| e.message,
                |n| format!("{}.{} ({})", n.version.0, n.version.1, n.file),
            ),
            "cuda.cublaslt" => d.0.lt.said(),
            "cuda.cudnn" => libs.cudnn().map_or_else(
                |e| e.message,
                |lib| format!("{} ({})", lib.version(), lib.file),
            ),
            "cuda.nccl" => self.gpu.collectives(),
            // Any plugin's: the driver keeps threads until the process ends (`cuda-EvtHandlr`, `cuda00001400006`).
            "threads.of_libraries" => "cuda".into(),
            // Any plugin's: what stands behind ops that more than one kernel of the best tier can do.
            "kernels.chosen" => format!("attention: {}", d.0.dnn.chosen()),
            _ => return None,
        })
    }
}

crossweave_gpu::gpu_backend!(
    Cuda,
    device = Device,
    ops = CudaOps,
    optional = Optional {
        attr: true,
        import: true,
        export: true,
        elapsed: true,
        host_call: true,
        wait_value: true,
        write_value: true,
        copy_peer: true,
        peer_access: true,
    },
    init = |host| Cuda::with(host, Settings::of(&ABOUT, &host)),
);
