//! The null device: it computes nothing and counts everything (as PyTorch's `meta` device, with streams,
//! memory and collectives).
//!
//! It accepts every op of the table and every collective, allocates no device memory and finishes at
//! once. Plans, schedules and reports run on it at any world size without cost, and it is the shortest
//! complete back end to read (see `README.md`).
//!
//! Configuration: `null.devices` (default 1), `null.mem_total` bytes (default 1 TiB). Counters are read by
//! `device_attr` as decimal text: `null.launches`, `null.launches.<op>`, `null.collectives`, … (see
//! [`COUNTERS`]). Fault points `null.<function>` fail with the status `-value`; 9 (`E_PANIC`) really
//! panics.

mod memory;

use crossweave_plugin::abi;
use crossweave_plugin::{
    Backend, Code, Coll, CollShape, Collectives, CommConfig, Dyn, Error, Health, Host, HostCall,
    Info, MemKind, OpRequest, Ops, Optional, Plan, Result, Span, Support, fail, unsupported,
};
pub use memory::Mem;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

crossweave_plugin::declare_backend!(Null, name = "null", vendor = "Crossweave");

/// Names of the counters of a device, in the order of [`Device`]'s array. `null.bytes` and the `live` ones go down again.
pub const COUNTERS: [&str; 12] = [
    "null.launches",
    "null.prepares",
    "null.collectives",
    "null.groups",
    "null.copies",
    "null.copied_bytes",
    "null.fills",
    "null.allocs",
    "null.bytes",
    "null.live_allocs",
    "null.waits",
    "null.comms",
];

/// One of [`COUNTERS`].
#[derive(Clone, Copy)]
enum Count {
    Launches,
    Prepares,
    Collectives,
    Groups,
    Copies,
    CopiedBytes,
    Fills,
    Allocs,
    Bytes,
    LiveAllocs,
    Waits,
    Comms,
}

/// What all handles of one device index share.
struct Shared {
    counts: [AtomicU64; COUNTERS.len()],
    per_op: Mutex<BTreeMap<u32, u64>>,
    mem_total: u64,
}

impl Shared {
    fn add(&self, c: Count, n: u64) {
        self.counts[c as usize].fetch_add(n, Ordering::Relaxed);
    }
    fn sub(&self, c: Count, n: u64) {
        self.counts[c as usize].fetch_sub(n, Ordering::Relaxed);
    }
    fn get(&self, c: Count) -> u64 {
        self.counts[c as usize].load(Ordering::Relaxed)
    }
    fn per_op(&self) -> MutexGuard<'_, BTreeMap<u32, u64>> {
        // A count is never left half written.
        self.per_op.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The backend.
pub struct Null {
    host: Host,
    devices: Vec<Arc<Shared>>,
    ids: AtomicU64,
}

/// An open device.
pub struct Device {
    index: u32,
    shared: Arc<Shared>,
}

/// A queue that is always empty.
pub struct Stream(Arc<Shared>);

/// An event that has always happened.
pub struct Event(());

/// Compute that does not compute.
pub enum NullOps {}

/// Communication that sends nothing.
pub enum NullCollectives {}

/// A prepared op.
pub struct Prepared {
    op: u32,
}

/// A communicator; it never waits for peers.
pub struct Comm {
    shared: Arc<Shared>,
    aborted: AtomicBool,
}

impl Null {
    /// Fails here when the host's fault point says so.
    fn fault(&self, at: &str) -> Result<()> {
        fault(&self.host, at)
    }
}

fn fault(host: &Host, at: &str) -> Result<()> {
    match host.fault_point(at) as i32 {
        0 => Ok(()),
        n if -n == abi::E_PANIC => panic!("fault point {at}"),
        n => fail(Code::from_status(-n), format!("fault point {at}")),
    }
}

fn number(host: &Host, key: &str, default: u64) -> Result<u64> {
    let Some(text) = host.config(key) else {
        return Ok(default);
    };
    text.parse().map_err(|_| {
        Error::new(
            Code::Invalid,
            format!("{key} = {text:?} is not a whole number"),
        )
    })
}

impl Backend for Null {
    type Device = Device;
    type Mem = Mem;
    type Stream = Stream;
    type Event = Event;
    type Ops = NullOps;
    type Collectives = NullCollectives;
    const OPTIONAL: Optional = Optional {
        attr: true,
        import: false,
        export: false,
        elapsed: true,
        host_call: true,
        wait_value: true,
        write_value: true,
        copy_peer: true,
        peer_access: true,
    };

    fn init(host: Host) -> Result<Null> {
        fault(&host, "null.init")?;
        let n = number(&host, "null.devices", 1)?;
        if !(1..=65536).contains(&n) {
            return fail(
                Code::Invalid,
                format!("null.devices = {n}: give 1 to 65536"),
            );
        }
        let mem_total = number(&host, "null.mem_total", 1 << 40)?;
        let device = |_| {
            Arc::new(Shared {
                counts: Default::default(),
                per_op: Mutex::default(),
                mem_total,
            })
        };
        Ok(Null {
            host,
            devices: (0..n).map(device).collect(),
            ids: AtomicU64::new(0),
        })
    }

    fn device_count(&self) -> Result<u32> {
        Ok(self.devices.len() as u32)
    }

    fn open(&self, index: u32) -> Result<Device> {
        self.fault("null.device_open")?;
        match self.devices.get(index as usize) {
            Some(s) => Ok(Device {
                index,
                shared: s.clone(),
            }),
            None => fail(
                Code::Invalid,
                format!(
                    "device {index}: there are {}; set null.devices for more",
                    self.devices.len()
                ),
            ),
        }
    }

    fn info(&self, d: &Device) -> Result<Info> {
        Ok(Info {
            kind: 0,
            mem_total: d.shared.mem_total,
            mem_free: d
                .shared
                .mem_total
                .saturating_sub(d.shared.get(Count::Bytes)),
            caps: abi::CAP_DETERMINISTIC,
            numa_node: u32::MAX,
            align: 64,
            uuid: u128::from(d.index).to_be_bytes(),
            name: "null".into(),
            pci_bus_id: String::new(),
            arch: "none".into(),
        })
    }

    fn attr(&self, d: &Device, key: &str) -> Result<Vec<u8>> {
        let value = match COUNTERS.iter().position(|c| *c == key) {
            Some(i) => d.shared.counts[i].load(Ordering::Relaxed),
            None => {
                let op = key
                    .strip_prefix("null.launches.")
                    .and_then(abi::op::by_name);
                let Some(op) = op else {
                    return unsupported(format!("attribute {key:?}"));
                };
                d.shared.per_op().get(&op.id).copied().unwrap_or(0)
            }
        };
        Ok(value.to_string().into_bytes())
    }

    fn alloc(&self, d: &Device, kind: MemKind, bytes: u64, align: u64) -> Result<Mem> {
        self.fault("null.mem_alloc")?;
        Mem::new(&d.shared, kind, bytes, align)
    }

    fn map(&self, m: &Mem) -> Result<*mut u8> {
        m.address()
    }

    fn stream(&self, d: &Device, _priority: i32) -> Result<Stream> {
        Ok(Stream(d.shared.clone()))
    }

    fn stream_query(&self, _: &Stream) -> Result<bool> {
        self.fault("null.stream_query")?;
        Ok(true)
    }

    fn stream_sync(&self, s: &Stream, _: Option<Duration>) -> Result<()> {
        s.0.add(Count::Waits, 1);
        self.fault("null.stream_sync")
    }

    fn event(&self, _: &Device) -> Result<Event> {
        Ok(Event(()))
    }

    fn record(&self, _: &Event, _: &Stream) -> Result<()> {
        Ok(())
    }

    fn event_query(&self, _: &Event) -> Result<bool> {
        Ok(true)
    }

    fn event_sync(&self, _: &Event, _: Option<Duration>) -> Result<()> {
        Ok(())
    }

    fn elapsed(&self, _: &Event, _: &Event) -> Result<u64> {
        Ok(0)
    }

    fn wait_event(&self, _: &Stream, _: &Event) -> Result<()> {
        Ok(())
    }

    fn host_call(&self, _: &Stream, f: HostCall) -> Result<()> {
        // Everything enqueued before has finished, so its turn is now.
        f(Ok(()));
        Ok(())
    }

    fn wait_value(&self, _: &Stream, _: Span<'_, Mem>, _: u64) -> Result<()> {
        Ok(())
    }

    fn write_value(&self, _: &Stream, _: Span<'_, Mem>, _: u64) -> Result<()> {
        Ok(())
    }

    fn copy(&self, s: &Stream, dst: Span<'_, Mem>, _: Span<'_, Mem>) -> Result<()> {
        self.fault("null.copy")?;
        s.0.add(Count::Copies, 1);
        s.0.add(Count::CopiedBytes, dst.bytes);
        Ok(())
    }

    fn copy_2d(
        &self,
        s: &Stream,
        _: Span<'_, Mem>,
        _: u64,
        _: Span<'_, Mem>,
        _: u64,
        width: u64,
        height: u64,
    ) -> Result<()> {
        self.fault("null.copy_2d")?;
        s.0.add(Count::Copies, 1);
        s.0.add(Count::CopiedBytes, width.saturating_mul(height));
        Ok(())
    }

    fn copy_peer(&self, s: &Stream, dst: Span<'_, Mem>, src: Span<'_, Mem>) -> Result<()> {
        self.copy(s, dst, src)
    }

    fn fill(&self, s: &Stream, _: Span<'_, Mem>, _: u64, _: u32) -> Result<()> {
        self.fault("null.fill")?;
        s.0.add(Count::Fills, 1);
        Ok(())
    }

    fn peer_access(&self, _: &Device, _: &Device) -> Result<(u32, u32)> {
        Ok((0, 0))
    }
}

impl Ops<Null> for NullOps {
    type Prepared = Prepared;

    fn prepare(b: &Null, d: &Device, op: &OpRequest<'_>) -> Result<(Prepared, Plan)> {
        b.fault("null.op_prepare")?;
        match abi::op::spec(op.id) {
            Some(s) if s.has_revision(op.revision) => {
                d.shared.add(Count::Prepares, 1);
                let plan = Plan {
                    error_class: s.error,
                    ..Plan::default()
                };
                Ok((Prepared { op: op.id }, plan))
            }
            Some(s) => unsupported(format!("revision {} of op {}", op.revision, s.name)),
            None => unsupported(format!("op id {:#06x}", op.id)),
        }
    }

    fn launch(
        b: &Null,
        p: &Prepared,
        s: &Stream,
        _: &[Option<Span<'_, Mem>>],
        _: Option<Span<'_, Mem>>,
        _: Dyn<'_>,
    ) -> Result<()> {
        b.fault("null.op_launch")?;
        s.0.add(Count::Launches, 1);
        *s.0.per_op().entry(p.op).or_default() += 1;
        Ok(())
    }
}

impl Comm {
    fn on(shared: &Arc<Shared>) -> Comm {
        shared.add(Count::Comms, 1);
        Comm {
            shared: shared.clone(),
            aborted: AtomicBool::new(false),
        }
    }

    fn alive(&self) -> Result<()> {
        if self.aborted.load(Ordering::Acquire) {
            return Err(Error::new(Code::Aborted, "the communicator was aborted").sticky());
        }
        Ok(())
    }
}

impl Collectives<Null> for NullCollectives {
    type Comm = Comm;

    fn unique_id(b: &Null, _: &Device) -> Result<Vec<u8>> {
        let n = b.ids.fetch_add(1, Ordering::Relaxed);
        Ok(n.to_be_bytes().into())
    }

    fn init(b: &Null, d: &Device, _: &[u8], _: CommConfig) -> Result<Comm> {
        b.fault("null.comm_init")?;
        Ok(Comm::on(&d.shared))
    }

    fn split(
        _: &Null,
        c: &Comm,
        color: Option<i32>,
        _: i32,
        _: CommConfig,
    ) -> Result<Option<Comm>> {
        c.alive()?;
        Ok(color.map(|_| Comm::on(&c.shared)))
    }

    fn supports(_: &Null, _: &Comm, x: &CollShape) -> Result<Support> {
        if !(abi::COLL_ALL_REDUCE..=abi::COLL_BARRIER).contains(&x.kind) {
            return unsupported(format!("collective kind {}", x.kind));
        }
        let reduces = matches!(
            x.kind,
            abi::COLL_ALL_REDUCE | abi::COLL_REDUCE_SCATTER | abi::COLL_REDUCE
        );
        if reduces && !(abi::RED_SUM..=abi::RED_PREMUL_SUM).contains(&x.reduce) {
            return unsupported(format!("reduce operator {}", x.reduce));
        }
        if reduces && x.reduce == abi::RED_AVG && !x.dtype.is_float() {
            return unsupported(format!("the average of {}", x.dtype.name()));
        }
        Ok(Support::default())
    }

    fn launch(b: &Null, c: &Comm, _: &Stream, group: &[Coll<'_, Mem>]) -> Result<()> {
        b.fault("null.launch")?;
        c.alive()?;
        c.shared.add(Count::Groups, 1);
        c.shared.add(Count::Collectives, group.len() as u64);
        Ok(())
    }

    fn async_error(b: &Null, c: &Comm) -> Result<Health> {
        b.fault("null.comm_async_error")?;
        c.alive()?;
        Ok(Health::Ready)
    }

    fn abort(_: &Null, c: &Comm) -> Result<()> {
        c.aborted.store(true, Ordering::Release);
        Ok(())
    }
}
