//! A software device: memory of the host behind opaque handles, a thread for each stream, every mandatory op.
//!
//! It has the manners of an accelerator: calls return after enqueue, device memory cannot be mapped, streams run beside each other and meet
//! only at events. Everything fused (attention, norms, AdamW, …) is left to the core, which makes it of the mandatory ops, but for softmax, which
//! shows how an op is added.
#![deny(unsafe_op_in_unsafe_fn)]

mod collectives;
mod kernels;
mod memory;
mod ops;
mod queue;
mod view;

use collectives::{Groups, SoftdevCollectives};
use crossweave_plugin::{
    Backend, Code, Error, Host, HostCall, Info, MemKind, Optional, Result, Span, abi, fail,
};
use memory::{Budget, Mem};
use queue::{Event, Stream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

crossweave_plugin::declare_backend!(Softdev, name = "softdev", vendor = "Example");
crossweave_plugin::export_plugin!(
    Softdev,
    manifest = "name=softdev;vendor=Example;kinds=other"
);

/// The back end.
pub struct Softdev {
    host: Host,
    devices: Vec<Arc<Budget>>,
    groups: Mutex<Groups>,
}

/// An open device. Opened twice, it is still one device.
pub struct Device {
    index: usize,
    budget: Arc<Budget>,
}

/// A configuration value of 1 to `most`.
fn setting(host: &Host, key: &str, most: u64, otherwise: u64) -> Result<u64> {
    let Some(text) = host.config(key) else {
        return Ok(otherwise);
    };
    match text.parse() {
        Ok(n) if (1..=most).contains(&n) => Ok(n),
        _ => fail(Code::Invalid, format!("{key} = {text:?}: give 1 to {most}")),
    }
}

impl Softdev {
    fn groups(&self) -> MutexGuard<'_, Groups> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails where the conformance kit wants it to.
    fn fault(&self, place: &str) -> Result<()> {
        let code = match self.host.fault_point(&format!("softdev.{place}")) as i32 {
            0 => return Ok(()),
            n => Code::from_status(-n),
        };
        let e = Error::new(code, format!("fault point softdev.{place}"));
        // A lost device stays lost, and every such error says so.
        match code {
            Code::DeviceLost => Err(e.sticky()),
            _ => Err(e),
        }
    }
}

impl Backend for Softdev {
    type Device = Device;
    type Mem = Mem;
    type Stream = Stream;
    type Event = Event;
    type Ops = ops::SoftdevOps;
    type Collectives = SoftdevCollectives;
    const OPTIONAL: Optional = Optional {
        attr: false,
        import: false,
        export: false,
        elapsed: true,
        host_call: true,
        wait_value: false,
        write_value: false,
        copy_peer: false,
        peer_access: false,
    };

    fn init(host: Host) -> Result<Softdev> {
        let n = setting(&host, "softdev.devices", 1024, 1)?;
        let total = setting(&host, "softdev.mem_total", u64::MAX / 2, 16 << 30)?;
        let devices = (0..n).map(|_| Arc::new(Budget::new(total))).collect();
        let groups = Mutex::default();
        let b = Softdev {
            host,
            devices,
            groups,
        };
        b.fault("init")?;
        Ok(b)
    }

    fn device_count(&self) -> Result<u32> {
        Ok(self.devices.len() as u32)
    }

    fn open(&self, index: u32) -> Result<Device> {
        self.fault("device_open")?;
        let index = index as usize;
        match self.devices.get(index) {
            Some(b) => Ok(Device {
                index,
                budget: b.clone(),
            }),
            None => fail(
                Code::Invalid,
                format!(
                    "device {index}: there are {}; set softdev.devices for more",
                    self.devices.len()
                ),
            ),
        }
    }

    fn info(&self, d: &Device) -> Result<Info> {
        Ok(Info {
            kind: 0,
            mem_total: d.budget.total,
            mem_free: d.budget.left(),
            caps: abi::CAP_HOST_PROGRESS | abi::CAP_DETERMINISTIC,
            numa_node: u32::MAX,
            align: 64,
            uuid: (u128::from_be_bytes(*b"a software devic") + d.index as u128).to_be_bytes(),
            name: format!("softdev {} (software, on the host)", d.index),
            pci_bus_id: String::new(),
            arch: "rust".into(),
        })
    }

    fn alloc(&self, d: &Device, kind: MemKind, bytes: u64, align: u64) -> Result<Mem> {
        self.fault("mem_alloc")?;
        Mem::new(&d.budget, kind, bytes, align)
    }

    fn map(&self, m: &Mem) -> Result<*mut u8> {
        m.address()
    }

    /// Every stream has a thread of its own, so none waits for a more urgent one.
    fn stream(&self, _: &Device, _priority: i32) -> Result<Stream> {
        self.fault("stream_create")?;
        Stream::new()
    }

    fn stream_query(&self, s: &Stream) -> Result<bool> {
        s.query()
    }

    fn stream_sync(&self, s: &Stream, timeout: Option<Duration>) -> Result<()> {
        s.sync(timeout)
    }

    fn event(&self, _: &Device) -> Result<Event> {
        self.fault("event_create")?;
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

    fn elapsed(&self, from: &Event, to: &Event) -> Result<u64> {
        match (from.passed_at(), to.passed_at()) {
            (Some(a), Some(b)) => Ok(b.saturating_duration_since(a).as_nanos() as u64),
            _ => fail(
                Code::Invalid,
                "an event was never recorded or is still pending; sync it first",
            ),
        }
    }

    fn wait_event(&self, s: &Stream, e: &Event) -> Result<()> {
        e.hold(s)
    }

    fn host_call(&self, s: &Stream, f: HostCall) -> Result<()> {
        s.call(f)
    }

    fn copy(&self, s: &Stream, dst: Span<'_, Mem>, src: Span<'_, Mem>) -> Result<()> {
        if dst.bytes != src.bytes {
            return fail(
                Code::Invalid,
                format!("copy: {} bytes into {}", src.bytes, dst.bytes),
            );
        }
        self.copy_2d(s, dst, 0, src, 0, dst.bytes, 1)
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
        self.fault("copy")?;
        for (pitch, bytes) in [(dpitch, dst.bytes), (spitch, src.bytes)] {
            let end = height
                .saturating_sub(1)
                .checked_mul(pitch)
                .and_then(|b| b.checked_add(width));
            if height > 0 && (end.is_none_or(|e| e > bytes) || (height > 1 && pitch < width)) {
                return fail(
                    Code::Invalid,
                    format!(
                        "copy_2d: {height} rows of {width} bytes, {pitch} apart, in {bytes} bytes"
                    ),
                );
            }
        }
        let (dst, src) = (memory::region(&dst, "dst")?, memory::region(&src, "src")?);
        s.push(move || {
            for r in 0..height {
                dst.copy_from(
                    (r * dpitch) as usize,
                    &src,
                    (r * spitch) as usize,
                    width as usize,
                );
            }
        })
    }

    fn fill(&self, s: &Stream, dst: Span<'_, Mem>, pattern: u64, n: u32) -> Result<()> {
        self.fault("fill")?;
        if !matches!(n, 1 | 2 | 4 | 8) || !dst.bytes.is_multiple_of(n.into()) {
            return fail(
                Code::Invalid,
                format!("fill: a pattern of {n} bytes over {} bytes", dst.bytes),
            );
        }
        let dst = memory::region(&dst, "dst")?;
        s.push(move || dst.fill(&pattern.to_le_bytes()[..n as usize]))
    }
}

/// No memory for what; the caller may free some and try again.
fn oom(what: impl Into<String>) -> Error {
    Error::new(Code::Oom, what).retryable()
}
