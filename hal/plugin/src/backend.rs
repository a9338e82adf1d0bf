//! The traits a vendor implements. Generics stay inside this crate: what crosses the boundary is the C table.

use crate::{DType, Host, Members, Result, unsupported};
use crossweave_abi as abi;
use std::time::Duration;

/// Kinds of memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemKind {
    /// The device's own.
    Device,
    /// Page-locked host memory.
    HostPinned,
    /// Device memory registered with communicators.
    Symmetric,
}

/// What a device says of itself; strings longer than the record are cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Info {
    /// 1 cpu, 2 gpu, 3 npu, 0 other.
    pub kind: u32,
    pub mem_total: u64,
    pub mem_free: u64,
    /// `abi::CAP_*`.
    pub caps: u64,
    pub numa_node: u32,
    pub align: u32,
    pub uuid: [u8; 16],
    pub name: String,
    pub pci_bus_id: String,
    pub arch: String,
}

/// An operand, valid for the call only. The host keeps `mem` alive until the stream has passed the call and has checked that
/// `offset + bytes` lies inside it.
pub struct Span<'a, M> {
    /// The memory.
    pub mem: &'a M,
    /// Bytes from its start.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}
impl<M> Clone for Span<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M> Copy for Span<'_, M> {}

/// Which optional device methods are real; the others become NULL slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Optional {
    pub attr: bool,
    pub import: bool,
    pub export: bool,
    pub elapsed: bool,
    pub host_call: bool,
    pub wait_value: bool,
    pub write_value: bool,
    pub copy_peer: bool,
    pub peer_access: bool,
}

/// A function the stream runs once, with the stream's status. It must not call the plugin.
pub type HostCall = Box<dyn FnOnce(Result<()>) + Send>;

/// The device half of a plugin.
pub trait Backend: Sized + Send + Sync + 'static {
    /// An open device.
    type Device: Send + Sync + 'static;
    /// A piece of memory.
    type Mem: Send + Sync + 'static;
    /// An in-order queue. The host serialises calls on one stream but may query from elsewhere.
    type Stream: Send + Sync + 'static;
    /// A point in a stream.
    type Event: Send + Sync + 'static;
    /// Compute; [`NoOps`] = interface not provided.
    type Ops: Ops<Self>;
    /// Communication; [`NoCollectives`] = interface not provided.
    type Collectives: Collectives<Self>;
    /// Which optional methods below are real.
    const OPTIONAL: Optional;

    /// Called once per process and host.
    fn init(host: Host) -> Result<Self>;
    /// Quiesce threads; called at most once.
    fn shutdown(&self) -> Result<()> {
        Ok(())
    }
    /// Devices present.
    fn device_count(&self) -> Result<u32>;
    /// Opens one; the same index may be opened several times (ranks as threads).
    fn open(&self, index: u32) -> Result<Self::Device>;
    /// Asks it.
    fn info(&self, d: &Self::Device) -> Result<Info>;
    /// An attribute by key, as bytes.
    fn attr(&self, _: &Self::Device, _key: &str) -> Result<Vec<u8>> {
        unsupported("device_attr")
    }
    /// Allocates uninitialised memory.
    fn alloc(&self, d: &Self::Device, kind: MemKind, bytes: u64, align: u64) -> Result<Self::Mem>;
    /// Host address of host-visible memory.
    fn map(&self, m: &Self::Mem) -> Result<*mut u8>;
    /// Wraps a native object.
    fn import(&self, _: &Self::Device, _: &abi::Native) -> Result<Self::Mem> {
        unsupported("mem_import")
    }
    /// Exposes memory as a native object.
    fn export(&self, _: &Self::Mem, _type: u32) -> Result<abi::Native> {
        unsupported("mem_export")
    }
    /// Creates a queue; larger priority is more urgent.
    fn stream(&self, d: &Self::Device, priority: i32) -> Result<Self::Stream>;
    /// Has everything enqueued so far finished? An earlier failure is returned here, sticky.
    fn stream_query(&self, s: &Self::Stream) -> Result<bool>;
    /// Waits; `None` = for ever.
    fn stream_sync(&self, s: &Self::Stream, timeout: Option<Duration>) -> Result<()>;
    /// Creates an event; never recorded = complete.
    fn event(&self, d: &Self::Device) -> Result<Self::Event>;
    /// Records; an earlier wait does not move.
    fn record(&self, e: &Self::Event, s: &Self::Stream) -> Result<()>;
    /// Has the latest record been passed?
    fn event_query(&self, e: &Self::Event) -> Result<bool>;
    /// Waits for the latest record.
    fn event_sync(&self, e: &Self::Event, timeout: Option<Duration>) -> Result<()>;
    /// Nanoseconds between two completed records.
    fn elapsed(&self, _from: &Self::Event, _to: &Self::Event) -> Result<u64> {
        unsupported("event_elapsed")
    }
    /// Later work of `s` waits for the latest record before this call.
    fn wait_event(&self, s: &Self::Stream, e: &Self::Event) -> Result<()>;
    /// Runs `f` once in stream order, also after a failure.
    fn host_call(&self, _: &Self::Stream, _f: HostCall) -> Result<()> {
        unsupported("stream_host_call")
    }
    /// Waits until the word is at least `at_least`.
    fn wait_value(
        &self,
        _: &Self::Stream,
        _word: Span<'_, Self::Mem>,
        _at_least: u64,
    ) -> Result<()> {
        unsupported("stream_wait_value")
    }
    /// Writes the word.
    fn write_value(&self, _: &Self::Stream, _word: Span<'_, Self::Mem>, _value: u64) -> Result<()> {
        unsupported("stream_write_value")
    }
    /// Between any kinds of one device; equal lengths; overlapping spans are the host's error.
    fn copy(
        &self,
        s: &Self::Stream,
        dst: Span<'_, Self::Mem>,
        src: Span<'_, Self::Mem>,
    ) -> Result<()>;
    /// `height` rows of `width` bytes with pitches.
    #[allow(clippy::too_many_arguments)]
    fn copy_2d(
        &self,
        s: &Self::Stream,
        dst: Span<'_, Self::Mem>,
        dpitch: u64,
        src: Span<'_, Self::Mem>,
        spitch: u64,
        width: u64,
        height: u64,
    ) -> Result<()>;
    /// Between devices of this plugin.
    fn copy_peer(
        &self,
        _: &Self::Stream,
        _dst: Span<'_, Self::Mem>,
        _src: Span<'_, Self::Mem>,
    ) -> Result<()> {
        unsupported("copy_peer")
    }
    /// Repeats the low `pattern_bytes` (1, 2, 4, 8) of `pattern`.
    fn fill(
        &self,
        s: &Self::Stream,
        dst: Span<'_, Self::Mem>,
        pattern: u64,
        pattern_bytes: u32,
    ) -> Result<()>;
    /// `(flags, gbps)`.
    fn peer_access(&self, _from: &Self::Device, _to: &Self::Device) -> Result<(u32, u32)> {
        unsupported("peer_access")
    }
}

/// One op to prepare: id, layouts and the raw parameter bytes (already length-checked by R1's reader, see [`OpRequest::params`]).
pub struct OpRequest<'a> {
    /// Id of the op table.
    pub id: u32,
    /// Revision of its meaning.
    pub revision: u32,
    /// Layouts, in the op table's order.
    pub operands: &'a [abi::Layout],
    /// `abi::MATH_*`.
    pub math_flags: u32,
    pub(crate) params: &'a [u8],
}

impl<'a> OpRequest<'a> {
    /// For tests and tools inside a backend crate; at run time the boundary builds it.
    pub fn new(
        id: u32,
        operands: &'a [abi::Layout],
        params: &'a [u8],
        math_flags: u32,
    ) -> OpRequest<'a> {
        OpRequest {
            id,
            revision: abi::op::revision_of(id, operands, params),
            operands,
            math_flags,
            params,
        }
    }

    /// The op's parameter struct; `Unsupported` when a field this build does not know is set.
    pub fn params<P: abi::read::Sized32 + Default>(&self) -> Result<P> {
        read_sized(self.params, "op params")
    }

    /// Operand `i` if it is there.
    pub fn layout(&self, i: usize) -> Option<&'a abi::Layout> {
        self.operands.get(i).filter(|l| l.present())
    }

    /// Dtype of operand `i`, `None` when absent or unknown.
    pub fn dtype(&self, i: usize) -> Option<DType> {
        self.layout(i).and_then(|l| DType::from_id(l.dtype))
    }
}

/// The launch-time parameters of an op, as bytes.
#[derive(Clone, Copy)]
pub struct Dyn<'a>(pub &'a [u8]);

impl Dyn<'_> {
    /// Reads the op's dyn struct; empty bytes give the default.
    pub fn read<P: abi::read::Sized32 + Default>(&self) -> Result<P> {
        read_sized(self.0, "dyn params")
    }
}

fn read_sized<P: abi::read::Sized32 + Default>(bytes: &[u8], what: &str) -> Result<P> {
    if bytes.is_empty() {
        return Ok(P::default());
    }
    if bytes.len() < 8 {
        return crate::fail(
            crate::Code::Invalid,
            format!("{what}: {} bytes, less than a size field", bytes.len()),
        );
    }
    let stated = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
    if stated > bytes.len() {
        return crate::fail(
            crate::Code::Invalid,
            format!("{what}: size {stated} but only {} bytes given", bytes.len()),
        );
    }
    // SAFETY: the slice holds at least `stated` bytes, which is what the reader reads.
    unsafe { abi::read_desc::<P>(bytes.as_ptr().cast()) }
        .map_err(|m| crate::Error::new(crate::Code::Unsupported, format!("{what}: {m}")))
}

/// What `prepare` answers besides the prepared op.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// 0 reference, 1 native, 2 tuned.
    pub tier: u32,
    /// Scratch wanted at each launch.
    pub workspace_bytes: u64,
    /// Estimate, or 0.
    pub est_ns: u64,
    /// `abi::op::class`.
    pub error_class: u64,
}

/// The compute half of a plugin.
pub trait Ops<B: Backend>: 'static {
    /// A prepared op: everything known before launch.
    type Prepared: Send + Sync + 'static;
    /// Is the interface provided at all?
    const PROVIDED: bool = true;
    /// Answers and compiles or selects; `Unsupported` has no side effects.
    fn prepare(b: &B, d: &B::Device, op: &OpRequest<'_>) -> Result<(Self::Prepared, Plan)>;
    /// Enqueues. Absent operands are `None`. `dynamic` is read before return.
    fn launch(
        b: &B,
        p: &Self::Prepared,
        s: &B::Stream,
        operands: &[Option<Span<'_, B::Mem>>],
        workspace: Option<Span<'_, B::Mem>>,
        dynamic: Dyn<'_>,
    ) -> Result<()>;
}

/// One collective, with absent spans as `None`; count arrays are copied by the backend before return if it needs them later.
#[allow(missing_docs)]
pub struct Coll<'a, M> {
    pub kind: u32,
    pub dtype: DType,
    pub reduce: u32,
    pub root: i32,
    pub peer: i32,
    pub count: u64,
    pub send: Option<Span<'a, M>>,
    pub recv: Option<Span<'a, M>>,
    pub send_counts: &'a [u64],
    pub send_offsets: &'a [u64],
    pub recv_counts: &'a [u64],
    pub recv_offsets: &'a [u64],
    pub scale: f64,
    pub scale_dev: Option<Span<'a, M>>,
    pub flags: u32,
    pub seq: u64,
}

/// What `supports` is asked: no operands, so no side effects are possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub struct CollShape {
    pub kind: u32,
    pub dtype: DType,
    pub reduce: u32,
    pub count: u64,
    pub flags: u32,
    pub in_place: bool,
}

/// Answer of `supports`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Support {
    pub tier: u32,
    pub latency_ns: u64,
    pub bytes_per_s: u64,
    pub max_bytes: u64,
}

/// How a communicator is formed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct CommConfig {
    pub rank: u32,
    pub nranks: u32,
    /// For connecting and for each collective.
    pub timeout: Option<Duration>,
    pub kv_prefix: String,
    pub name: String,
    /// Which ranks of the job its members are, for messages.
    pub members: Members,
}

/// State of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Working.
    Ready,
    /// Still waiting for peers.
    Connecting,
}

/// The communication half of a plugin.
pub trait Collectives<B: Backend>: 'static {
    /// A communicator.
    type Comm: Send + Sync + 'static;
    /// Is the interface provided at all?
    const PROVIDED: bool = true;
    /// A fresh id of any length.
    fn unique_id(b: &B, d: &B::Device) -> Result<Vec<u8>>;
    /// Joins; may return while still connecting.
    fn init(b: &B, d: &B::Device, id: &[u8], cfg: CommConfig) -> Result<Self::Comm>;
    /// Colour `None` = not a member. `Unsupported` lets the host compose it from a new id.
    fn split(
        _b: &B,
        _c: &Self::Comm,
        _color: Option<i32>,
        _key: i32,
        _cfg: CommConfig,
    ) -> Result<Option<Self::Comm>> {
        unsupported("comm_split")
    }
    /// Answer without side effects; `Err(Unsupported)` = the core composes it.
    fn supports(b: &B, c: &Self::Comm, shape: &CollShape) -> Result<Support>;
    /// Enqueues a group: all or nothing.
    fn launch(b: &B, c: &Self::Comm, s: &B::Stream, group: &[Coll<'_, B::Mem>]) -> Result<()>;
    /// The failure of the communicator, if any. Races with anything.
    fn async_error(b: &B, c: &Self::Comm) -> Result<Health>;
    /// Marks and releases, from any thread, without blocking; freeing is `Drop`, which after abort never waits for peers.
    fn abort(b: &B, c: &Self::Comm) -> Result<()>;
}

/// The interface is not provided.
pub enum NoOps {}
impl<B: Backend> Ops<B> for NoOps {
    type Prepared = ();
    const PROVIDED: bool = false;
    fn prepare(_: &B, _: &B::Device, _: &OpRequest<'_>) -> Result<((), Plan)> {
        unsupported("ops")
    }
    fn launch(
        _: &B,
        _: &(),
        _: &B::Stream,
        _: &[Option<Span<'_, B::Mem>>],
        _: Option<Span<'_, B::Mem>>,
        _: Dyn<'_>,
    ) -> Result<()> {
        unsupported("ops")
    }
}

/// The interface is not provided.
pub enum NoCollectives {}
impl<B: Backend> Collectives<B> for NoCollectives {
    type Comm = ();
    const PROVIDED: bool = false;
    fn unique_id(_: &B, _: &B::Device) -> Result<Vec<u8>> {
        unsupported("collectives")
    }
    fn init(_: &B, _: &B::Device, _: &[u8], _: CommConfig) -> Result<()> {
        unsupported("collectives")
    }
    fn supports(_: &B, _: &(), _: &CollShape) -> Result<Support> {
        unsupported("collectives")
    }
    fn launch(_: &B, _: &(), _: &B::Stream, _: &[Coll<'_, B::Mem>]) -> Result<()> {
        unsupported("collectives")
    }
    fn async_error(_: &B, _: &()) -> Result<Health> {
        unsupported("collectives")
    }
    fn abort(_: &B, _: &()) -> Result<()> {
        unsupported("collectives")
    }
}

/// The graphs of a plugin: what a stream was given once, enqueued again by one call.
pub trait Graphs<B: Backend>: 'static {
    /// Calls that were kept.
    type Graph: Send + Sync + 'static;
    /// Is the interface provided at all?
    const PROVIDED: bool = true;
    /// From here on the stream keeps launches, copies and fills instead of running them; what a graph cannot hold is `Unsupported` and
    /// changes nothing.
    fn begin(b: &B, s: &B::Stream) -> Result<()>;
    /// What was kept. The capture is over also where this fails.
    fn end(b: &B, s: &B::Stream) -> Result<Self::Graph>;
    /// Enqueues all of it. What is enqueued outlives the graph.
    fn launch(b: &B, g: &Self::Graph, s: &B::Stream) -> Result<()>;
}

/// The interface is not provided.
pub enum NoGraphs {}
impl<B: Backend> Graphs<B> for NoGraphs {
    type Graph = ();
    const PROVIDED: bool = false;
    fn begin(_: &B, _: &B::Stream) -> Result<()> {
        unsupported("graphs")
    }
    fn end(_: &B, _: &B::Stream) -> Result<()> {
        unsupported("graphs")
    }
    fn launch(_: &B, _: &(), _: &B::Stream) -> Result<()> {
        unsupported("graphs")
    }
}
