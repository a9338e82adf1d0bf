//! NVIDIA GPUs through the CUDA driver, with cuBLASLt, cuDNN, NVRTC and NCCL where they are installed.
//! Nothing of CUDA is needed to build it: every library is opened at run time (`library`), and a missing
//! one is an error that names it and where it was searched.
//!
//! Configuration, all optional: `cuda.library_path` (folders, by `:`), `cuda.libcuda`, `cuda.libnvrtc`,
//! `cuda.libcublaslt`, `cuda.libnccl`, `cuda.libcudnn` (files), `cuda.cache_dir` or `cache_dir` (where
//! compiled kernels are kept). See `README.md`; what must always hold is in `docs/invariants.md`.

mod cache;
mod caller;
mod copy;
mod cudnn;
mod device;
mod driver;
mod error;
mod graph;
mod library;
mod lt;
mod memory;
mod modules;
mod nccl;
mod nvrtc;
mod ops;
mod settings;
mod stream;
mod wait;

use copy::Rows;
use crossweave_abi as abi;
use crossweave_plugin::{
    Backend, Code, Host, HostCall, Info, MemKind, Optional, Result, Span, fail, unsupported,
};
use device::{Api, Dev, lock};
pub use graph::{CudaGraphs, Graph};
pub use memory::{Mem, native};
pub use nccl::{Comm, CudaCollectives};
use nccl::{Inner, Nccl};
pub use ops::{CudaOps, Prepared};
pub use settings::{KEYS, Settings};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
pub use stream::{Event, Stream};

crossweave_plugin::declare_backend!(
    Cuda,
    name = "cuda",
    vendor = "Crossweave",
    graphs = CudaGraphs
);

/// CUDA as a plugin. The driver is opened when it is first asked for.
pub struct Cuda {
    host: Host,
    settings: Settings,
    /// Set once it has been opened; a failure is tried again, as a driver may be installed meanwhile.
    api: Mutex<Option<Arc<Api>>>,
    nccl: Mutex<Option<Arc<Nccl>>>,
    /// Communicators alive: memory registered with one is taken off it before it is freed.
    comms: Arc<Mutex<Vec<Weak<Inner>>>>,
}

/// An open device.
pub struct Device(pub(crate) Arc<Dev>);

impl Cuda {
    /// With settings of the caller's instead of the host's: for tests, and for programs that link the back end.
    pub fn with(host: Host, settings: Settings) -> Cuda {
        Cuda {
            host,
            settings,
            api: Mutex::new(None),
            nccl: Mutex::new(None),
            comms: Arc::default(),
        }
    }

    fn api(&self) -> Result<Arc<Api>> {
        let mut api = lock(&self.api);
        if let Some(a) = &*api {
            return Ok(a.clone());
        }
        let opened = Api::open(self.host, &self.settings)?;
        *api = Some(opened.clone());
        Ok(opened)
    }
}

impl Cuda {
    /// NCCL, opened once; where it is missing every use says so.
    fn nccl(&self) -> Result<Arc<Nccl>> {
        let mut slot = lock(&self.nccl);
        if let Some(n) = &*slot {
            return Ok(n.clone());
        }
        let n = Arc::new(Nccl::open(&self.settings)?);
        *slot = Some(n.clone());
        Ok(n)
    }

    /// Memory that NCCL reaches directly, else exportable memory where that is asked for, else plain: smaller pieces are not worth a granule of physical memory each.
    fn symmetric(&self, dev: &Arc<Dev>, bytes: u64, align: u64) -> Result<Mem> {
        const WORTH: u64 = 1 << 20;
        memory::power(align)?;
        if bytes < WORTH {
            return Mem::device(dev, MemKind::Symmetric, bytes, align);
        }
        // Neither of the two asks for an alignment: one that is wanted beyond what they give is had from the driver.
        let aligned = |m: &Mem| m.at.is_multiple_of(align.max(1));
        let of_nccl = match dev.api.count {
            0 | 1 => None,
            _ => self
                .nccl()
                .ok()
                .and_then(|n| n.t.ncclMemAlloc.zip(n.t.ncclMemFree)),
        };
        if let Some((alloc, free)) = of_nccl {
            let _in = dev.enter()?;
            let mut p = std::ptr::null_mut();
            // SAFETY: the out pointer lives for the call; what is given is given back once, with the context current.
            if unsafe { alloc(&mut p, bytes as usize) } == 0 && !p.is_null() {
                let (at, comms) = (p as usize, self.comms.clone());
                let release = move || {
                    lock(&comms)
                        .iter()
                        .filter_map(Weak::upgrade)
                        .for_each(|c| c.forget(at as u64));
                    // SAFETY: as above.
                    unsafe { free(at as *mut std::ffi::c_void) };
                };
                let m = Mem::of_library(dev, at as u64, bytes, Box::new(release));
                if aligned(&m) {
                    return Ok(m);
                }
            }
        }
        if self.settings.get("cuda.exportable") == Some("on") {
            let m = Mem::shareable(dev, MemKind::Symmetric, bytes)?;
            if aligned(&m) {
                return Ok(m);
            }
        }
        Mem::device(dev, MemKind::Symmetric, bytes, align)
    }
}

/// The address of a 64-bit word.
fn word(w: &Span<'_, Mem>) -> Result<u64> {
    memory::inside("a word", w)?;
    let at = memory::at(w);
    match w.bytes < 8 || !at.is_multiple_of(8) {
        true => fail(
            Code::Invalid,
            format!(
                "a word of {} bytes at {at:#x}: give 8 aligned bytes",
                w.bytes
            ),
        ),
        false => Ok(at),
    }
}

impl Backend for Cuda {
    type Device = Device;
    type Mem = Mem;
    type Stream = Stream;
    type Event = Event;
    type Ops = CudaOps;
    type Collectives = CudaCollectives;
    const OPTIONAL: Optional = Optional {
        attr: true,
        import: true,
        export: true,
        elapsed: true,
        host_call: true,
        wait_value: true,
        write_value: true,
        copy_peer: true,
        peer_access: true,
    };

    fn init(host: Host) -> Result<Cuda> {
        Ok(Cuda::with(host, Settings::of(&host)))
    }

    fn device_count(&self) -> Result<u32> {
        Ok(self.api()?.count)
    }

    fn open(&self, index: u32) -> Result<Device> {
        self.api()?.device(index).map(Device)
    }

    fn info(&self, d: &Device) -> Result<Info> {
        let dev = &d.0;
        let (mem_free, mem_total) = dev.memory()?;
        let f = dev.driver();
        Ok(Info {
            kind: 2,
            mem_total,
            mem_free,
            caps: abi::CAP_DETERMINISTIC,
            numa_node: dev.facts.numa.unwrap_or(u32::MAX),
            align: 256,
            uuid: dev.uuid(),
            name: dev.text("cuDeviceGetName", f.cuDeviceGetName)?,
            pci_bus_id: dev.text("cuDeviceGetPCIBusId", f.cuDeviceGetPCIBusId)?,
            arch: dev.arch(),
        })
    }

    fn attr(&self, d: &Device, key: &str) -> Result<Vec<u8>> {
        let v = d.0.api.version;
        let api = &d.0.api;
        let text = match key {
            "cuda.nvrtc" => api.compiler.nvrtc().map_or_else(
                |e| e.message,
                |n| format!("{}.{} ({})", n.version.0, n.version.1, n.file),
            ),
            "cuda.cublaslt" => api.lt().map_or_else(
                |e| e.message,
                |lt| format!("{} ({})", lt.version(), lt.file),
            ),
            "cuda.cudnn" => api.cudnn().map_or_else(
                |e| e.message,
                |lib| format!("{} ({})", lib.version(), lib.file),
            ),
            "cuda.driver" => format!("{}.{} ({})", v / 1000, v % 1000 / 10, d.0.api.file),
            "cuda.nccl" => self
                .nccl()
                .map_or_else(|e| e.message, |n| format!("{} ({})", n.version(), n.file)),
            // Any plugin's: may its own collectives be used here, and by ranks that share a device?
            "collective.ready" => self.nccl().map_or_else(|e| e.message, |_| "yes".into()),
            "collective.shares_device" => "no".into(),
            // Any plugin's: what stands behind ops that more than one kernel of the best tier can do.
            "kernels.chosen" => format!("attention: {}", d.0.dnn.chosen()),
            "cuda.sm_count" => d.0.facts.sm_count.to_string(),
            "cuda.mem_ops" => d.0.facts.mem_ops.to_string(),
            _ => return unsupported(format!("attribute {key:?}")),
        };
        Ok(text.into_bytes())
    }

    fn alloc(&self, d: &Device, kind: MemKind, bytes: u64, align: u64) -> Result<Mem> {
        match kind {
            MemKind::HostPinned => Mem::pinned(&d.0, bytes, align),
            MemKind::Device => Mem::device(&d.0, kind, bytes, align),
            MemKind::Symmetric => self.symmetric(&d.0, bytes, align),
        }
    }

    fn map(&self, m: &Mem) -> Result<*mut u8> {
        m.map()
    }

    fn import(&self, d: &Device, n: &abi::Native) -> Result<Mem> {
        Mem::import(&d.0, n)
    }

    fn export(&self, m: &Mem, native_type: u32) -> Result<abi::Native> {
        m.export(native_type)
    }

    fn stream(&self, d: &Device, priority: i32) -> Result<Stream> {
        Stream::new(&d.0, priority)
    }

    fn stream_query(&self, s: &Stream) -> Result<bool> {
        s.query()
    }

    fn stream_sync(&self, s: &Stream, timeout: Option<Duration>) -> Result<()> {
        s.sync(timeout)
    }

    fn event(&self, d: &Device) -> Result<Event> {
        Event::new(&d.0, 0)
    }

    fn record(&self, e: &Event, s: &Stream) -> Result<()> {
        e.record(s)
    }

    fn event_query(&self, e: &Event) -> Result<bool> {
        e.query()
    }

    fn event_sync(&self, e: &Event, timeout: Option<Duration>) -> Result<()> {
        e.sync(timeout)
    }

    fn elapsed(&self, from: &Event, to: &Event) -> Result<u64> {
        from.elapsed(to)
    }

    fn wait_event(&self, s: &Stream, e: &Event) -> Result<()> {
        s.wait_event(e)
    }

    fn host_call(&self, s: &Stream, f: HostCall) -> Result<()> {
        s.host_call(f)
    }

    fn wait_value(&self, s: &Stream, w: Span<'_, Mem>, at_least: u64) -> Result<()> {
        s.wait_value(word(&w)?, at_least)
    }

    fn write_value(&self, s: &Stream, w: Span<'_, Mem>, value: u64) -> Result<()> {
        s.write_value(word(&w)?, value)
    }

    fn copy(&self, s: &Stream, dst: Span<'_, Mem>, src: Span<'_, Mem>) -> Result<()> {
        if dst.bytes != src.bytes {
            return fail(
                Code::Invalid,
                format!("copy: {} bytes onto {}", src.bytes, dst.bytes),
            );
        }
        memory::inside("the destination", &dst)?;
        memory::inside("the source", &src)?;
        s.copy(memory::at(&dst), memory::at(&src), dst.bytes)
    }

    fn copy_2d(
        &self,
        s: &Stream,
        dst: Span<'_, Mem>,
        dpitch: u64,
        src: Span<'_, Mem>,
        spitch: u64,
        width: u64,
        height: u64,
    ) -> Result<()> {
        let rows = Rows {
            dpitch,
            spitch,
            width,
            height,
        };
        s.copy_2d(dst, src, rows)
    }

    fn copy_peer(&self, s: &Stream, dst: Span<'_, Mem>, src: Span<'_, Mem>) -> Result<()> {
        s.copy_peer(dst, src)
    }

    fn fill(&self, s: &Stream, dst: Span<'_, Mem>, pattern: u64, pattern_bytes: u32) -> Result<()> {
        s.fill(dst, pattern, pattern_bytes)
    }

    fn peer_access(&self, from: &Device, to: &Device) -> Result<(u32, u32)> {
        Ok((from.0.reach(&to.0)?, 0))
    }
}
