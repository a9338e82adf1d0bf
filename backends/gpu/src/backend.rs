//! What a back end on a GPU has in common with any other: one driver and one library of collectives, opened when first asked for, and the
//! device half of the plugin interface, written once for all vendors (`gpu_backend!`).

use crate::device::{Api, Dev, Started};
use crate::lock;
use crate::memory::{self, Mem};
use crate::nccl::{Inner, Nccl};
use crate::settings::Settings;
use crate::stream::{Event, Stream};
use crossweave_abi as abi;
use crossweave_plugin::{Backend, Code, Host, Info, MemKind, Result, Span, fail, unsupported};
use std::sync::{Arc, Mutex, Weak};

/// A back end on a vendor's driver.
pub trait OnGpu: Backend<Mem = Mem, Stream = Stream, Event = Event> {
    /// The driver and what else is the process's.
    fn gpu(&self) -> &Gpu;
    /// The device behind the back end's own.
    fn dev(d: &Self::Device) -> &Arc<Dev>;
    /// The back end's own device, with what its libraries keep for it.
    ///
    /// # Errors
    /// What the libraries say.
    fn opened(&self, dev: Arc<Dev>) -> Result<Self::Device>;
    /// The answer to an attribute of the back end's own.
    fn attribute(&self, d: &Self::Device, key: &str) -> Option<String>;
}

/// A vendor's driver, and its library of collectives.
pub struct Gpu {
    pub(crate) host: Host,
    /// What is configured.
    pub settings: Settings,
    start: fn(&Settings) -> Result<Started>,
    collectives: fn(&Settings) -> Result<Nccl>,
    /// Set once it has been opened; a failure is tried again, as a driver may be installed meanwhile.
    api: Mutex<Option<Arc<Api>>>,
    nccl: Mutex<Option<Arc<Nccl>>>,
    /// Communicators alive: memory registered with one is taken off it before it is freed.
    pub(crate) comms: Arc<Mutex<Vec<Weak<Inner>>>>,
}

impl Gpu {
    /// A driver that `start` opens, and a library of collectives that `collectives` opens.
    pub fn new(
        host: Host,
        settings: Settings,
        start: fn(&Settings) -> Result<Started>,
        collectives: fn(&Settings) -> Result<Nccl>,
    ) -> Gpu {
        Gpu {
            host,
            settings,
            start,
            collectives,
            api: Mutex::new(None),
            nccl: Mutex::new(None),
            comms: Arc::default(),
        }
    }

    /// The driver.
    ///
    /// # Errors
    /// `Unsupported`: it is not there, or does not start.
    pub fn api(&self) -> Result<Arc<Api>> {
        let mut api = lock(&self.api);
        if let Some(a) = &*api {
            return Ok(a.clone());
        }
        let opened = Api::new((self.start)(&self.settings)?, self.host, &self.settings);
        *api = Some(opened.clone());
        Ok(opened)
    }

    /// The library of collectives, opened once; where it is missing every use says so.
    pub(crate) fn nccl(&self) -> Result<Arc<Nccl>> {
        let mut slot = lock(&self.nccl);
        if let Some(n) = &*slot {
            return Ok(n.clone());
        }
        let n = Arc::new((self.collectives)(&self.settings)?);
        *slot = Some(n.clone());
        Ok(n)
    }

    /// Version and file of the library of collectives, or why it is not there.
    pub fn collectives(&self) -> String {
        self.nccl()
            .map_or_else(|e| e.message, |n| format!("{} ({})", n.version, n.file))
    }

    /// What a device says of itself.
    ///
    /// # Errors
    /// What the driver says.
    pub fn info(&self, dev: &Dev) -> Result<Info> {
        let (mem_free, mem_total) = dev.memory()?;
        Ok(Info {
            kind: dev.facts.kind,
            mem_total,
            mem_free,
            caps: abi::CAP_DETERMINISTIC,
            numa_node: dev.facts.numa.unwrap_or(u32::MAX),
            align: 256,
            uuid: dev.uuid(),
            name: dev.name()?,
            pci_bus_id: dev.bus()?,
            arch: dev.facts.arch.clone(),
        })
    }

    /// The answer to an attribute that every back end on a GPU has.
    ///
    /// # Errors
    /// `Unsupported`: there is none of this key.
    pub fn attribute(&self, dev: &Dev, key: &str) -> Result<Vec<u8>> {
        let own = key.split_once('.');
        let own = own.filter(|(of, _)| *of == self.settings.vendor().name);
        let text = match (key, own.map(|(_, k)| k)) {
            // Any plugin's: may its own collectives be used here, and by ranks that share a device?
            ("collective.ready", _) => self.nccl().map_or_else(|e| e.message, |_| "yes".into()),
            ("collective.shares_device", _) => "no".into(),
            (_, Some("driver")) => format!("{} ({})", dev.rt().version(), dev.api.file),
            (_, Some("sm_count")) => dev.facts.sm_count.to_string(),
            (_, Some("mem_ops")) => dev.facts.mem_ops.to_string(),
            _ => return unsupported(format!("attribute {key:?}")),
        };
        Ok(text.into_bytes())
    }

    /// Memory of a kind.
    ///
    /// # Errors
    /// `Oom`; `Invalid`: the alignment is none.
    pub fn alloc(&self, dev: &Arc<Dev>, kind: MemKind, bytes: u64, align: u64) -> Result<Mem> {
        match kind {
            MemKind::HostPinned => Mem::pinned(dev, bytes, align),
            MemKind::Device => Mem::device(dev, kind, bytes, align),
            MemKind::Symmetric => self.symmetric(dev, bytes, align),
        }
    }

    /// Memory that the library of collectives reaches directly, else exportable memory where that is asked for, else plain: smaller pieces
    /// are not worth a granule of physical memory each.
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
            // SAFETY: the out pointer lives for the call; what is given is given back once, with the device current.
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
        if self.settings.own("exportable") == Some("on") {
            let m = Mem::shareable(dev, MemKind::Symmetric, bytes)?;
            if aligned(&m) {
                return Ok(m);
            }
        }
        Mem::device(dev, MemKind::Symmetric, bytes, align)
    }
}

/// The address of a 64-bit word.
///
/// # Errors
/// `Invalid`: fewer bytes, or not aligned.
pub fn word(w: &Span<'_, Mem>) -> Result<u64> {
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

/// The device half of a back end that is [`OnGpu`]: `gpu_backend!(Cuda, device = Device, ops = CudaOps, optional = …, init = |host| …)`.
#[macro_export]
macro_rules! gpu_backend {
    ($t:ty, device = $device:ty, ops = $ops:ty, optional = $optional:expr, init = $init:expr $(,)?) => {
        impl ::crossweave_plugin::Backend for $t {
            type Device = $device;
            type Mem = $crate::Mem;
            type Stream = $crate::Stream;
            type Event = $crate::Event;
            type Ops = $ops;
            type Collectives = $crate::GpuCollectives;
            const OPTIONAL: ::crossweave_plugin::Optional = $optional;

            fn init(host: ::crossweave_plugin::Host) -> ::crossweave_plugin::Result<Self> {
                let init: fn(::crossweave_plugin::Host) -> Self = $init;
                Ok(init(host))
            }

            fn device_count(&self) -> ::crossweave_plugin::Result<u32> {
                Ok($crate::OnGpu::gpu(self).api()?.count)
            }

            fn open(&self, index: u32) -> ::crossweave_plugin::Result<$device> {
                let dev = $crate::OnGpu::gpu(self).api()?.device(index)?;
                $crate::OnGpu::opened(self, dev)
            }

            fn info(&self, d: &$device) -> ::crossweave_plugin::Result<::crossweave_plugin::Info> {
                $crate::OnGpu::gpu(self).info(<Self as $crate::OnGpu>::dev(d))
            }

            fn attr(&self, d: &$device, key: &str) -> ::crossweave_plugin::Result<Vec<u8>> {
                match $crate::OnGpu::attribute(self, d, key) {
                    Some(text) => Ok(text.into_bytes()),
                    None => {
                        $crate::OnGpu::gpu(self).attribute(<Self as $crate::OnGpu>::dev(d), key)
                    }
                }
            }

            fn alloc(
                &self,
                d: &$device,
                kind: ::crossweave_plugin::MemKind,
                bytes: u64,
                align: u64,
            ) -> ::crossweave_plugin::Result<$crate::Mem> {
                $crate::OnGpu::gpu(self).alloc(<Self as $crate::OnGpu>::dev(d), kind, bytes, align)
            }

            fn map(&self, m: &$crate::Mem) -> ::crossweave_plugin::Result<*mut u8> {
                m.map()
            }

            fn import(
                &self,
                d: &$device,
                n: &::crossweave_plugin::abi::Native,
            ) -> ::crossweave_plugin::Result<$crate::Mem> {
                $crate::Mem::import(<Self as $crate::OnGpu>::dev(d), n)
            }

            fn export(
                &self,
                m: &$crate::Mem,
                native_type: u32,
            ) -> ::crossweave_plugin::Result<::crossweave_plugin::abi::Native> {
                m.export(native_type)
            }

            fn stream(
                &self,
                d: &$device,
                priority: i32,
            ) -> ::crossweave_plugin::Result<$crate::Stream> {
                $crate::Stream::new(<Self as $crate::OnGpu>::dev(d), priority)
            }

            fn stream_query(&self, s: &$crate::Stream) -> ::crossweave_plugin::Result<bool> {
                s.query()
            }

            fn stream_sync(
                &self,
                s: &$crate::Stream,
                timeout: Option<::std::time::Duration>,
            ) -> ::crossweave_plugin::Result<()> {
                s.sync(timeout)
            }

            fn event(&self, d: &$device) -> ::crossweave_plugin::Result<$crate::Event> {
                $crate::Event::new(<Self as $crate::OnGpu>::dev(d), 0)
            }

            fn record(
                &self,
                e: &$crate::Event,
                s: &$crate::Stream,
            ) -> ::crossweave_plugin::Result<()> {
                e.record(s)
            }

            fn event_query(&self, e: &$crate::Event) -> ::crossweave_plugin::Result<bool> {
                e.query()
            }

            fn event_sync(
                &self,
                e: &$crate::Event,
                timeout: Option<::std::time::Duration>,
            ) -> ::crossweave_plugin::Result<()> {
                e.sync(timeout)
            }

            fn elapsed(
                &self,
                from: &$crate::Event,
                to: &$crate::Event,
            ) -> ::crossweave_plugin::Result<u64> {
                from.elapsed(to)
            }

            fn wait_event(
                &self,
                s: &$crate::Stream,
                e: &$crate::Event,
            ) -> ::crossweave_plugin::Result<()> {
                s.wait_event(e)
            }

            fn host_call(
                &self,
                s: &$crate::Stream,
                f: ::crossweave_plugin::HostCall,
            ) -> ::crossweave_plugin::Result<()> {
                s.host_call(f)
            }

            fn wait_value(
                &self,
                s: &$crate::Stream,
                w: ::crossweave_plugin::Span<'_, $crate::Mem>,
                at_least: u64,
            ) -> ::crossweave_plugin::Result<()> {
                s.wait_value($crate::backend::word(&w)?, at_least)
            }

            fn write_value(
                &self,
                s: &$crate::Stream,
                w: ::crossweave_plugin::Span<'_, $crate::Mem>,
                value: u64,
            ) -> ::crossweave_plugin::Result<()> {
                s.write_value($crate::backend::word(&w)?, value)
            }

            fn copy(
                &self,
                s: &$crate::Stream,
                dst: ::crossweave_plugin::Span<'_, $crate::Mem>,
                src: ::crossweave_plugin::Span<'_, $crate::Mem>,
            ) -> ::crossweave_plugin::Result<()> {
                s.copy_span(dst, src)
            }

            fn copy_2d(
                &self,
                s: &$crate::Stream,
                dst: ::crossweave_plugin::Span<'_, $crate::Mem>,
                dpitch: u64,
                src: ::crossweave_plugin::Span<'_, $crate::Mem>,
                spitch: u64,
                width: u64,
                height: u64,
            ) -> ::crossweave_plugin::Result<()> {
                let rows = $crate::copy::Rows {
                    dpitch,
                    spitch,
                    width,
                    height,
                };
                s.copy_2d(dst, src, rows)
            }

            fn copy_peer(
                &self,
                s: &$crate::Stream,
                dst: ::crossweave_plugin::Span<'_, $crate::Mem>,
                src: ::crossweave_plugin::Span<'_, $crate::Mem>,
            ) -> ::crossweave_plugin::Result<()> {
                s.copy_peer(dst, src)
            }

            fn fill(
                &self,
                s: &$crate::Stream,
                dst: ::crossweave_plugin::Span<'_, $crate::Mem>,
                pattern: u64,
                pattern_bytes: u32,
            ) -> ::crossweave_plugin::Result<()> {
                s.fill(dst, pattern, pattern_bytes)
            }

            fn peer_access(
                &self,
                from: &$device,
                to: &$device,
            ) -> ::crossweave_plugin::Result<(u32, u32)> {
                let (from, to) = (
                    <Self as $crate::OnGpu>::dev(from),
                    <Self as $crate::OnGpu>::dev(to),
                );
                Ok((from.reach(to)?, 0))
            }
        }
    };
}
