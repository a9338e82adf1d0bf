//! The CPU as a device, and its in-process collectives: the reference for every other back end, plain and
//! correct first, then fast.
//!
//! It has the semantics of an accelerator: streams are queues served by their own threads, memory handles
//! are opaque, events have capture semantics. A kernel is a [`kernel::Kernel`] run on the stream's thread
//! over the device's [`team::Team`]. **Invariants** (`docs/invariants.md`): an enqueue never waits for the
//! work, and the result of an op does not depend on the number of threads.

mod collective;
mod cores;
mod device;
mod dispatch;
mod event;
pub mod gemm;
pub mod isa;
pub mod kernel;
mod memory;
pub mod ops;
mod pace;
mod profile;
mod schedule;
mod simd;
mod stream;
pub mod team;

pub use collective::{Comm, CpuCollectives};
pub use device::Device;
pub use dispatch::{CpuOps, Prepared};
pub use event::Event;
pub use memory::Mem;
pub use stream::Stream;
pub use stream::graph::{CpuGraphs, Graph};

use crossweave_plugin::{
    Backend, Code, Host, HostCall, Info, MemKind, Optional, Result, Span, fail, unsupported,
};
use device::Settings;
use isa::SelfTest;
use memory::address;
use pace::Pace;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use stream::Cmd;

/// The CPU as a plugin: no globals, so several hosts (and several opens of one device) never meet.
pub struct CpuBackend {
    host: Host,
    pace: Arc<Pace>,
    registry: collective::Registry,
    gathering: schedule::Gathering,
    selftest: SelfTest,
}

crossweave_plugin::declare_backend!(
    CpuBackend,
    name = "cpu",
    vendor = "Crossweave",
    graphs = CpuGraphs
);

impl CpuBackend {
    /// The configuration as it is now: a device keeps what held when it was opened.
    fn settings(&self) -> Result<Settings> {
        Settings::read(&self.host, self.pace.cores())
    }
}

impl Backend for CpuBackend {
    type Device = Device;
    type Mem = Mem;
    type Stream = Stream;
    type Event = Event;
    type Ops = CpuOps;
    type Collectives = CpuCollectives;
    const OPTIONAL: Optional = Optional {
        attr: true,
        import: true,
        export: false,
        elapsed: true,
        host_call: true,
        wait_value: true,
        write_value: true,
        copy_peer: true,
        peer_access: true,
    };

    fn init(host: Host) -> Result<CpuBackend> {
        let pace = Arc::new(Pace::new());
        // A wrong value is reported at once, not at the first device.
        Settings::read(&host, pace.cores())?;
        Ok(CpuBackend {
            host,
            pace,
            registry: Default::default(),
            gathering: Default::default(),
            selftest: SelfTest::default(),
        })
    }

    fn device_count(&self) -> Result<u32> {
        Ok(self.settings()?.devices)
    }

    fn open(&self, index: u32) -> Result<Device> {
        let settings = self.settings()?;
        if index >= settings.devices {
            return fail(
                Code::Invalid,
                format!(
                    "cpu device {index}: there are {} (cpu.devices)",
                    settings.devices
                ),
            );
        }
        let isas = self.selftest.isas(settings.simd, &self.host)?;
        let slot = self.gathering.slot(&self.host)?;
        let (host, pace) = (&self.host, &self.pace);
        Ok(Device::new(index, &settings, isas, host, pace, slot))
    }

    fn info(&self, d: &Device) -> Result<Info> {
        Ok(d.info())
    }

    fn attr(&self, d: &Device, key: &str) -> Result<Vec<u8>> {
        if key == "schedule.yield" {
            return d.give_turn();
        }
        match d.attr(key) {
            Some(bytes) => Ok(bytes),
            None => unsupported(format!("device_attr `{key}`")),
        }
    }

    fn alloc(&self, d: &Device, kind: MemKind, bytes: u64, align: u64) -> Result<Mem> {
        Mem::alloc(&d.account, kind, bytes, align)
    }

    fn import(&self, d: &Device, native: &crossweave_abi::Native) -> Result<Mem> {
        Mem::import(&d.account, native)
    }

    fn map(&self, m: &Mem) -> Result<*mut u8> {
        m.map()
    }

    fn stream(&self, d: &Device, _priority: i32) -> Result<Stream> {
        Ok(Stream::new(d, self.host, self.pace.clone()))
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

    fn elapsed(&self, from: &Event, to: &Event) -> Result<u64> {
        from.elapsed(to)
    }

    fn wait_event(&self, s: &Stream, e: &Event) -> Result<()> {
        e.wait_on(s)
    }

    fn host_call(&self, s: &Stream, f: HostCall) -> Result<()> {
        s.host_call(f)
    }

    fn wait_value(&self, s: &Stream, word: Span<'_, Mem>, at_least: u64) -> Result<()> {
        let word = word_address(&word, "stream_wait_value")?;
        s.push(|_| Cmd::WaitValue(word, at_least)).map(|_| ())
    }

    fn write_value(&self, s: &Stream, word: Span<'_, Mem>, value: u64) -> Result<()> {
        let word = word_address(&word, "stream_write_value")?;
        s.push(|_| Cmd::WriteValue(word, value)).map(|_| ())
    }

    fn copy(&self, s: &Stream, dst: Span<'_, Mem>, src: Span<'_, Mem>) -> Result<()> {
        if dst.bytes != src.bytes {
            return fail(
                Code::Invalid,
                format!("copy: {} bytes into {}", src.bytes, dst.bytes),
            );
        }
        let (to, from) = (address(&dst, "copy dst")?, address(&src, "copy src")?);
        s.push_or_keep(|_| Cmd::Copy {
            dst: to,
            src: from,
            bytes: dst.bytes as usize,
        })
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
        let (to, from) = (address(&dst, "copy_2d dst")?, address(&src, "copy_2d src")?);
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
        s.push_or_keep(|_| Cmd::Copy2d {
            dst: to,
            dpitch: dpitch as usize,
            src: from,
            spitch: spitch as usize,
            width: width as usize,
            height: height as usize,
        })
    }

    fn copy_peer(&self, s: &Stream, dst: Span<'_, Mem>, src: Span<'_, Mem>) -> Result<()> {
        self.copy(s, dst, src)
    }

    fn fill(&self, s: &Stream, dst: Span<'_, Mem>, pattern: u64, pattern_bytes: u32) -> Result<()> {
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
        let to = address(&dst, "fill")?;
        s.push_or_keep(|_| Cmd::Fill {
            dst: to,
            bytes: dst.bytes as usize,
            pattern,
            size: pattern_bytes as usize,
        })
    }

    /// Every CPU device of a process sees the others' memory (flag 1: load and store); the bandwidth is not claimed.
    fn peer_access(&self, _: &Device, _: &Device) -> Result<(u32, u32)> {
        Ok((1, 0))
    }
}

fn word_address(word: &Span<'_, Mem>, what: &str) -> Result<*const AtomicU64> {
    let at = address(word, what)?;
    if word.bytes < 8 || !(at as usize).is_multiple_of(8) {
        return fail(
            Code::Invalid,
            format!("{what}: the word needs 8 bytes at a multiple of 8"),
        );
    }
    Ok(at.cast())
}
