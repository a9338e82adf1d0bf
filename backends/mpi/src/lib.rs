//! Collectives over MPI, for the ranks of several processes: Open MPI or MPICH, whichever is installed,
//! opened when the first device is.
//!
//! The plugin's one device is the host itself. Other devices reach it through pinned memory, whose
//! addresses it imports, so that it serves them all. It computes nothing. Nothing of MPI is needed to
//! build it: see `library` and ADR 0015.
//!
//! Configuration, all optional: `mpi.library` (a file), `mpi.family` (`openmpi` or `mpich`: the
//! launcher's), `mpi.longest_message` (bytes of one MPI message, 1 GiB), `mpi.host` (any word that
//! names this process's host; without it, all processes count as being on one), `mpi.interface` (names of network interfaces for the library,
//! unless its own variables name some), `collective.algorithm` (of sums: `crossweave_hosts::Choice`); and, where no MPI launcher
//! started the processes, `mpi.meet` and the keys beside it (see `pmi`).

mod channel;
mod comm;
mod flight;
mod fold;
mod hosts;
pub mod last_words;
mod library;
mod making;
mod memory;
mod pmi;
mod run;
mod stream;

pub use comm::{Comm, MpiCollectives, WORLD};
pub use memory::Mem;
pub use stream::{Event, Stream};

use channel::Channels;
use crossweave_abi as abi;
use crossweave_plugin::{
    Backend, Code, Error, Host, HostCall, Info, MemKind, NoOps, Optional, Result, Span, fail,
    unsupported,
};
use library::Mpi;
use memory::address;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Bytes of one MPI message: MPI counts in 32 bits.
const LONGEST: usize = 1 << 30;

/// MPI as a plugin. MPI itself exists once in a process, and so does what is kept here.
pub struct MpiBackend {
    host: Host,
    /// `Err`: what was found out once stays so.
    device: Mutex<Option<Result<Device>>>,
    longest: usize,
}

/// The host, with MPI running. Clones are the same.
#[derive(Clone)]
pub struct Device {
    mpi: Arc<dyn Mpi>,
    channels: Arc<Channels>,
    /// Names this process, whatever MPI says of it.
    process: u64,
    /// Names its host.
    on: u32,
    sent: Arc<hosts::Sent>,
}

crossweave_plugin::declare_backend!(MpiBackend, name = "mpi", vendor = "Crossweave");

/// An address on its way to a stream's thread.
#[derive(Clone, Copy)]
struct At(*mut u8);
// SAFETY: operands, which the host keeps alive until the stream has passed the work.
unsafe impl Send for At {}
impl At {
    /// By a method, so that closures capture the sendable whole.
    fn get(self) -> *mut u8 {
        self.0
    }
}

impl Backend for MpiBackend {
    type Device = Device;
    type Mem = Mem;
    type Stream = Stream;
    type Event = Event;
    type Ops = NoOps;
    type Collectives = MpiCollectives;
    const OPTIONAL: Optional = Optional {
        attr: true,
        import: true,
        export: false,
        elapsed: false,
        host_call: true,
        wait_value: false,
        write_value: false,
        copy_peer: false,
        peer_access: false,
    };

    fn init(host: Host) -> Result<MpiBackend> {
        let longest = match host.config("mpi.longest_message") {
            None => LONGEST,
            Some(text) => match text.parse() {
                Ok(n) if (1..=LONGEST).contains(&n) => n,
                _ => {
                    let why = format!("mpi.longest_message = {text:?}: give 1 to {LONGEST} bytes");
                    return fail(Code::Invalid, why);
                }
            },
        };
        Ok(MpiBackend {
            host,
            device: Mutex::new(None),
            longest,
        })
    }

    /// Ends MPI: every rank that ends well comes here, so that its launcher knows.
    fn shutdown(&self) -> Result<()> {
        match &*self.device.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(Ok(d)) => d.mpi.finalize(),
            _ => Ok(()),
        }
    }

    fn device_count(&self) -> Result<u32> {
        Ok(1)
    }

    fn open(&self, index: u32) -> Result<Device> {
        if index > 0 {
            return fail(
                Code::Invalid,
                format!("mpi device {index}: there is one, the host"),
            );
        }
        let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        let open = || {
            let (path, family) = (
                self.host.config("mpi.library"),
                self.host.config("mpi.family"),
            );
            let meet = pmi::Rendezvous::read(&self.host)?;
            let join = meet.map(|m| move || m.join(&self.host));
            let join = join.as_ref().map(|j| j as &dyn Fn() -> Result<()>);
            last_words::allow();
            if let Some(names) = self.host.config("mpi.interface") {
                pmi::on_interface(&names)?;
            }
            let mpi = library::open(path.as_deref(), family.as_deref(), join)?;
            self.host.log(4, "mpi", &mpi.version());
            Ok(Device {
                channels: Arc::new(Channels::new(mpi.highest_tag())),
                mpi: Arc::from(mpi),
                process: RandomState::new().build_hasher().finish(),
                on: hosts::number(self.host.config("mpi.host").as_deref().unwrap_or("")),
                sent: Arc::default(),
            })
        };
        device.get_or_insert_with(open).clone()
    }

    fn info(&self, d: &Device) -> Result<Info> {
        Ok(Info {
            kind: 0,
            mem_total: u64::MAX,
            mem_free: u64::MAX,
            caps: abi::CAP_UNIFIED | abi::CAP_HOST_PROGRESS | abi::CAP_DETERMINISTIC,
            numa_node: u32::MAX,
            align: 64,
            uuid: [0; 16],
            name: "host memory, collectives over MPI".into(),
            pci_bus_id: String::new(),
            arch: d
                .mpi
                .version()
                .split([' ', ','])
                .take(2)
                .collect::<Vec<_>>()
                .join(" "),
        })
    }

    /// `mpi.version`, `mpi.rank`, `mpi.size`; `mpi.sent`: messages and bytes sent within the host, then to other hosts.
    fn attr(&self, d: &Device, key: &str) -> Result<Vec<u8>> {
        let (rank, size) = d.mpi.world();
        Ok(match key {
            "mpi.version" => d.mpi.version(),
            "mpi.rank" => rank.to_string(),
            "mpi.size" => size.to_string(),
            "mpi.sent" => d.sent.to_string(),
            _ => return unsupported(format!("device_attr `{key}`")),
        }
        .into_bytes())
    }

    fn alloc(&self, _: &Device, _: MemKind, bytes: u64, align: u64) -> Result<Mem> {
        Mem::alloc(bytes, align)
    }

    fn map(&self, m: &Mem) -> Result<*mut u8> {
        Ok(m.address())
    }

    fn import(&self, _: &Device, n: &abi::Native) -> Result<Mem> {
        Mem::import(n)
    }

    /// The lowest priority of all, `i32::MIN`, makes a stream without a thread: its work is done by the thread that waits for it.
    fn stream(&self, _: &Device, priority: i32) -> Result<Stream> {
        Ok(Stream::new(self.host, priority))
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
        let work = move |failed: Option<&Error>| {
            f(failed.map_or(Ok(()), |e| Err(e.clone())));
            Ok(())
        };
        s.push(Box::new(work)).map(|_| ())
    }

    fn copy(&self, s: &Stream, dst: Span<'_, Mem>, src: Span<'_, Mem>) -> Result<()> {
        if dst.bytes != src.bytes {
            return fail(
                Code::Invalid,
                format!("copy: {} bytes into {}", src.bytes, dst.bytes),
            );
        }
        self.copy_2d(s, dst, dst.bytes, src, src.bytes, dst.bytes, 1)
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
        let (to, from) = (
            At(address(&dst, "copy dst")?),
            At(address(&src, "copy src")?),
        );
        let work = move |failed: Option<&Error>| {
            if failed.is_none() {
                for row in 0..height {
                    let to = to.get().wrapping_add((row * dpitch) as usize);
                    let from = from.get().wrapping_add((row * spitch) as usize);
                    // SAFETY: inside both spans by the check above.
                    unsafe { std::ptr::copy(from, to, width as usize) };
                }
            }
            Ok(())
        };
        s.push(Box::new(work)).map(|_| ())
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
        let (to, bytes) = (At(address(&dst, "fill")?), dst.bytes as usize);
        let work = move |failed: Option<&Error>| {
            if failed.is_none() {
                let one = pattern.to_le_bytes();
                let n = pattern_bytes as usize;
                for at in (0..bytes).step_by(n) {
                    // SAFETY: inside the span, whose length is a multiple of the pattern's.
                    unsafe { std::ptr::copy_nonoverlapping(one.as_ptr(), to.get().add(at), n) };
                }
            }
            Ok(())
        };
        s.push(Box::new(work)).map(|_| ())
    }
}
