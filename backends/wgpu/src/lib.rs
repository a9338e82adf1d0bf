//! Any GPU that Vulkan reaches, through wgpu: kernels are WGSL text, written for the adapter's limits when
//! an op is prepared.
//!
//! It takes whatever adapter there is, a software one included, and needs nothing to build. A kernel is a
//! [`kernel::Pass`]; the module around its body is written by [`wgsl`]. Device memory is a buffer,
//! page-locked memory is the host's and copies are staged; all streams of a device share its one queue.
//! There are no collectives: its ranks communicate through another plugin's over pinned memory. The
//! configuration keys are in `README.md`.

mod device;
mod dispatch;
mod encode;
mod event;
pub mod kernel;
pub mod kernels;
pub mod math;
mod measure;
mod memory;
pub mod ops;
mod reaper;
mod settings;
mod stream;
mod transfer;
pub mod wgsl;

pub use device::Device;
pub use dispatch::{Ready, WgpuOps};
pub use event::Event;
pub use memory::Mem;
pub use stream::Stream;

use crossweave_plugin::{
    Backend, Code, Error, Host, HostCall, Info, MemKind, NoCollectives, Optional, Result, Span,
    abi, fail, unsupported,
};
use memory::Region;
use settings::{Adapters, Settings};
use std::future::Future;
use std::pin::pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use stream::{Cmd, Rows};

/// The backend: no globals, so several hosts never meet.
pub struct Wgpu {
    host: Host,
    /// Looked for when first asked: a process that lists its plugins need not wake every driver.
    adapters: Mutex<Option<Adapters>>,
}

crossweave_plugin::declare_backend!(Wgpu, name = "wgpu", vendor = "Crossweave");

/// The answer of a future that native code answers at once, or `None`.
pub(crate) fn ready<T>(f: impl Future<Output = T>) -> Option<T> {
    match pin!(f).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(v) => Some(v),
        Poll::Pending => None,
    }
}

/// Fails here when the host's fault point says so; a lost device is really lost.
pub(crate) fn fault_point(
    host: &Host,
    at: &str,
    device: Option<(&wgpu::Device, &device::Fault)>,
) -> Result<()> {
    let code = match host.fault_point(at) as i32 {
        0 => return Ok(()),
        n => Code::from_status(-n),
    };
    match code {
        Code::Panic => panic!("fault point {at}"),
        Code::DeviceLost => {
            let e = Error::new(code, format!("fault point {at}")).sticky();
            if let Some((device, fault)) = device {
                fault.set(e.clone());
                device.destroy();
            }
            Err(e)
        }
        code => fail(code, format!("fault point {at}")),
    }
}

impl Wgpu {
    pub(crate) fn fault(&self, at: &str, device: Option<&Device>) -> Result<()> {
        let device = device.map(|d| (&d.shared.device, &*d.shared.fault));
        fault_point(&self.host, at, device)
    }

    fn with_adapters<T>(&self, f: impl FnOnce(&Adapters, &Settings) -> Result<T>) -> Result<T> {
        let settings = Settings::read(&self.host)?;
        let mut slot = device::lock(&self.adapters);
        f(slot.get_or_insert_with(Adapters::find), &settings)
    }
}

impl Backend for Wgpu {
    type Device = Device;
    type Mem = Mem;
    type Stream = Stream;
    type Event = Event;
    type Ops = WgpuOps;
    type Collectives = NoCollectives;
    const OPTIONAL: Optional = Optional {
        attr: true,
        import: false,
        export: false,
        elapsed: false,
        host_call: true,
        wait_value: false,
        write_value: false,
        copy_peer: false,
        peer_access: false,
    };

    fn init(host: Host) -> Result<Wgpu> {
        // A wrong value is reported at once, not at the first device.
        Settings::read(&host)?;
        Ok(Wgpu {
            host,
            adapters: Mutex::default(),
        })
    }

    /// Lets the drivers go, with the threads that they keep.
    fn shutdown(&self) -> Result<()> {
        *device::lock(&self.adapters) = None;
        Ok(())
    }

    fn device_count(&self) -> Result<u32> {
        self.with_adapters(|a, s| a.count(s))
    }

    fn open(&self, index: u32) -> Result<Device> {
        self.fault("wgpu.device_open", None)?;
        self.with_adapters(|a, s| Device::open(&self.host, s, a.of(s, index)?, index))
    }

    fn info(&self, d: &Device) -> Result<Info> {
        d.info()
    }

    fn attr(&self, d: &Device, key: &str) -> Result<Vec<u8>> {
        match d.attr(key) {
            Some(bytes) => Ok(bytes),
            None => unsupported(format!("device_attr `{key}`")),
        }
    }

    fn alloc(&self, d: &Device, kind: MemKind, bytes: u64, align: u64) -> Result<Mem> {
        self.fault("wgpu.mem_alloc", Some(d))?;
        Mem::alloc(&d.shared, kind, bytes, align)
    }

    fn map(&self, m: &Mem) -> Result<*mut u8> {
        m.map()
    }

    fn stream(&self, d: &Device, _priority: i32) -> Result<Stream> {
        Stream::new(&d.shared, self.host)
    }

    fn stream_query(&self, s: &Stream) -> Result<bool> {
        s.query()
    }

    fn stream_sync(&self, s: &Stream, timeout: Option<Duration>) -> Result<()> {
        s.sync(timeout)
    }

    fn event(&self, _: &Device) -> Result<Event> {
        Ok(Event::default())
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

    fn wait_event(&self, s: &Stream, e: &Event) -> Result<()> {
        e.wait_on(s)
    }

    fn host_call(&self, s: &Stream, f: HostCall) -> Result<()> {
        s.host_call(f)
    }

    fn copy(&self, s: &Stream, dst: Span<'_, Mem>, src: Span<'_, Mem>) -> Result<()> {
        self.fault("wgpu.copy", None)?;
        if dst.bytes != src.bytes {
            return fail(
                Code::Invalid,
                format!("copy: {} bytes into {}", src.bytes, dst.bytes),
            );
        }
        let n = dst.bytes;
        self.rows(s, dst, n, src, n, n, 1)
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
        self.fault("wgpu.copy_2d", None)?;
        for (what, pitch, bytes) in [("dst", dpitch, dst.bytes), ("src", spitch, src.bytes)] {
            let need = match height {
                0 => Some(0),
                h => (h - 1)
                    .checked_mul(pitch)
                    .and_then(|b| b.checked_add(width)),
            };
            if (height > 1 && pitch < width) || need.is_none_or(|n| n > bytes) {
                return fail(
                    Code::Invalid,
                    format!(
                        "copy_2d: {height} rows of {width} bytes with pitch {pitch} do not fit the {what} span of {bytes} bytes"
                    ),
                );
            }
        }
        match dpitch == width && spitch == width {
            true => self.rows(s, dst, 0, src, 0, width * height, u64::from(height > 0)),
            false => self.rows(s, dst, dpitch, src, spitch, width, height),
        }
    }

    fn fill(&self, s: &Stream, dst: Span<'_, Mem>, pattern: u64, pattern_bytes: u32) -> Result<()> {
        self.fault("wgpu.fill", None)?;
        if !matches!(pattern_bytes, 1 | 2 | 4 | 8)
            || !dst.bytes.is_multiple_of(u64::from(pattern_bytes))
        {
            return fail(
                Code::Invalid,
                format!(
                    "fill: a pattern of {pattern_bytes} bytes over {} bytes",
                    dst.bytes
                ),
            );
        }
        let region = Region::of(&dst, "fill")?;
        if dst.bytes == 0 {
            return s.sticky();
        }
        let bits = 8 * pattern_bytes;
        let mut whole = match bits {
            64 => pattern,
            b => pattern & ((1 << b) - 1),
        };
        let mut have = bits;
        while have < 64 {
            whole |= whole << have;
            have *= 2;
        }
        s.push(|_| Cmd::Fill {
            dst: region,
            bytes: dst.bytes,
            pattern: whole,
        })
    }
}

impl Wgpu {
    fn rows(
        &self,
        s: &Stream,
        dst: Span<'_, Mem>,
        dpitch: u64,
        src: Span<'_, Mem>,
        spitch: u64,
        width: u64,
        height: u64,
    ) -> Result<()> {
        let (to, from) = (Region::of(&dst, "copy dst")?, Region::of(&src, "copy src")?);
        if width == 0 || height == 0 {
            return s.sticky();
        }
        s.push(|_| Cmd::Copy {
            dst: to,
            src: from,
            rows: Rows {
                dpitch,
                spitch,
                width,
                height,
            },
        })
    }
}

const _: () = assert!(abi::ABI_MINOR == 0);
