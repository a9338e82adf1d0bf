//! An open device: memory with its four homes, streams, prepared ops, and the two ledgers.

use crate::buffer::{Backing, Buffer, HostBuffer};
use crate::call::check;
use crate::carrier::{Carrier, Fault};
use crate::error::{Code, Error, Result};
use crate::kernel::{Kernel, KernelInner, OpRequest, Route, Within};
use crate::ledger::{
    BridgeLine, CollectiveLedger, CollectiveLine, MemoryLedger, MemoryReport, Tag,
};
use crate::listing::{Account, CallListing};
use crate::loader::RawPlugin;
use crate::pool::{Block, Pool};
use crate::recipe::Decompose;
use crate::stream::{Stream, StreamCore};
use crate::track::Track;
use crate::watch::{CheckerState, Observer, Purpose, Watch};
use crossweave_abi as abi;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

/// Alignment of pinned memory, in bytes: what direct reads and writes of files ask for.
pub const PAGE: u64 = 4096;

/// A loaded or linked plugin. Cheap to clone; never unloaded.
#[derive(Clone)]
pub struct Plugin(pub(crate) Arc<RawPlugin>, pub(crate) CheckerState);

impl Plugin {
    /// Wraps what the loader or a static entry gave.
    pub fn new(raw: RawPlugin) -> Plugin {
        Plugin(Arc::new(raw), CheckerState::default())
    }
    /// The same plugin, with its ranks on `board`: ranks of several plugins, or of several processes, check each other on a common one. By
    /// default the ranks of one plugin do.
    pub fn with_checker(&self, board: &CheckerState) -> Plugin {
        Plugin(self.0.clone(), board.clone())
    }
    /// The same plugin inside a layer, with its ranks on the same board.
    ///
    /// # Errors
    /// What `wrap` fails with.
    pub fn layered<E>(
        &self,
        wrap: impl FnOnce(RawPlugin) -> std::result::Result<RawPlugin, E>,
    ) -> std::result::Result<Plugin, E> {
        Ok(Plugin(Arc::new(wrap((*self.0).clone())?), self.1.clone()))
    }
    /// Where its ranks check each other.
    pub fn checker(&self) -> &CheckerState {
        &self.1
    }
    /// Name the plugin gives itself.
    pub fn name(&self) -> &str {
        &self.0.name
    }
    /// Its version.
    pub fn version(&self) -> &str {
        &self.0.version
    }
    /// Its vendor.
    pub fn vendor(&self) -> &str {
        &self.0.vendor
    }
    /// File it was loaded from; `None` when linked in.
    pub fn path(&self) -> Option<&std::path::Path> {
        self.0.path.as_deref()
    }
    /// Which of device, ops, collectives and graphs it provides.
    pub fn interfaces(&self) -> Vec<&'static str> {
        let mut v = vec![];
        v.extend(self.0.device.as_ref().map(|_| abi::IFACE_DEVICE));
        v.extend(self.0.ops.as_ref().map(|_| abi::IFACE_OPS));
        v.extend(self.0.coll.as_ref().map(|_| abi::IFACE_COLLECTIVE));
        v.extend(self.0.graph.as_ref().map(|_| abi::IFACE_GRAPH));
        v
    }
    fn api(&self) -> Result<&abi::DeviceApi> {
        self.0.device.as_ref().ok_or_else(|| {
            Error::new(
                Code::Unsupported,
                "device",
                format!("plugin {} provides no devices", self.name()),
            )
        })
    }
    /// Devices present.
    pub fn device_count(&self) -> Result<u32> {
        let api = self.api()?;
        let mut n = 0;
        // SAFETY: `self_` belongs to this table; the out pointer lives for the call.
        check("device_count", |e| unsafe {
            call!(api, device_count)(self.0.self_, &mut n, e)
        })?;
        Ok(n)
    }
    /// Opens device `index`. Ranks as threads may open one index several times; each gets its own pools and ledgers.
    pub fn open(&self, index: u32) -> Result<Device> {
        let api = *self.api()?;
        let mut h = std::ptr::null_mut();
        // SAFETY: as above.
        check("device_open", |e| unsafe {
            call!(api, device_open)(self.0.self_, index, &mut h, e)
        })?;
        Ok(Device(Arc::new(DeviceInner {
            plugin: self.clone(),
            handle: Raw(h),
            api,
            index,
            memory: MemoryLedger::default(),
            collectives: Arc::new(CollectiveLedger::default()),
            pool: Mutex::new(PoolState::default()),
            slabs: RwLock::new(HashMap::new()),
            account: Arc::default(),
            streams: RwLock::new(vec![]),
            kernels: Mutex::new(HashMap::new()),
            carrier: Mutex::new(None),
            host_ops: Mutex::new(None),
            fault: Arc::default(),
            watch: Arc::default(),
        })))
    }
    /// Quiesces the plugin's threads; every device must be dropped first. The library stays mapped.
    pub fn shutdown(&self) -> Result<()> {
        match self.0.shutdown {
            // SAFETY: `self_` belongs to this plugin.
            Some(f) => check("shutdown", |e| unsafe { f(self.0.self_, e) }),
            None => Ok(()),
        }
    }
}

/// A raw handle that may cross threads (R7 says which calls may share it).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raw(pub(crate) abi::Handle);
// SAFETY: handles are opaque tokens; the safe layer serialises what R7 wants serialised.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

/// What a device says of itself.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct DeviceInfo {
    pub name: String,
    pub arch: String,
    /// 1 cpu, 2 gpu, 3 npu, 0 other.
    pub kind: u32,
    pub mem_total: u64,
    pub mem_free: u64,
    /// `abi::CAP_*`.
    pub caps: u64,
    pub align: u32,
}

#[derive(Default)]
struct PoolState {
    pool: Pool,
    next_slab: u32,
    /// The device would not give the slabs' sum in one piece.
    indivisible: bool,
}

pub(crate) struct Slab {
    pub mem: Raw,
    pub bytes: u64,
}

pub(crate) struct DeviceInner {
    pub plugin: Plugin,
    pub handle: Raw,
    pub api: abi::DeviceApi,
    pub index: u32,
    pub memory: MemoryLedger,
    pub collectives: Arc<CollectiveLedger>,
    pool: Mutex<PoolState>,
    slabs: RwLock<HashMap<u32, Slab>>,
    pub account: Arc<Account>,
    pub streams: RwLock<Vec<Arc<StreamCore>>>,
    kernels: Mutex<HashMap<OpRequest, Arc<KernelInner>>>,
    carrier: Mutex<Option<Carrier>>,
    /// Computes what this device cannot, where that is allowed.
    host_ops: Mutex<Option<Device>>,
    pub fault: Arc<Fault>,
    pub watch: Arc<Watch>,
}

/// An open device. Clone shares it.
#[derive(Clone)]
pub struct Device(pub(crate) Arc<DeviceInner>);

/// Lists the calls that a device's streams are given.
pub fn list_calls(device: &Device) -> CallListing {
    CallListing(device.0.account.clone())
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|e| e.into_inner())
}

/// Two handles are equal that are of one opening of a device: one ledger counts their memory.
impl PartialEq for Device {
    fn eq(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Device {
    /// The plugin it came from.
    pub fn plugin(&self) -> &Plugin {
        &self.0.plugin
    }
    /// Index it was opened with.
    pub fn index(&self) -> u32 {
        self.0.index
    }
    /// Asks the device.
    pub fn info(&self) -> Result<DeviceInfo> {
        // SAFETY: a zeroed record is valid; the size limits how much the plugin may write.
        let mut r: abi::DeviceInfo = unsafe { std::mem::zeroed() };
        r.size = size_of::<abi::DeviceInfo>() as u32;
        // SAFETY: the handle is live while `self` is.
        check("device_info", |e| unsafe {
            call!(self.0.api, device_info)(self.0.handle.0, &mut r, e)
        })?;
        let text = |b: &[u8]| {
            String::from_utf8_lossy(b.split(|c| *c == 0).next().unwrap_or(b)).into_owned()
        };
        Ok(DeviceInfo {
            name: text(&r.name),
            arch: text(&r.arch),
            kind: r.kind,
            mem_total: r.mem_total,
            mem_free: r.mem_free,
            caps: r.caps,
            align: r.align,
        })
    }
    /// An attribute by key, as bytes; `Unsupported` where the plugin has none.
    pub fn attr(&self, key: &str) -> Result<Vec<u8>> {
        let Some(f) = self.0.api.device_attr else {
            return Err(Error::new(
                Code::Unsupported,
                "device_attr",
                "the plugin has no attributes",
            ));
        };
        // An empty buffer asks for the length.
        let mut buf: Vec<u8> = vec![];
        loop {
            let mut len = 0u64;
            // SAFETY: `buf` has the stated capacity.
            check("device_attr", |e| unsafe {
                f(
                    self.0.handle.0,
                    abi::Str::new(key),
                    buf.as_mut_ptr().cast(),
                    buf.len() as u64,
                    &mut len,
                    e,
                )
            })?;
            let asked = buf.is_empty() && len > 0;
            buf.resize(len as usize, 0);
            if !asked {
                return Ok(buf);
            }
        }
    }

    /// Gives the turn away once, where a seeded schedule decides who runs ([`crate::explore`]); answers whether one does. For hosts that wait
    /// for each other outside the device: who asks again and again while nobody else can run is in a deadlock.
    ///
    /// # Errors
    /// The schedule has ended, in the deadlock that the error describes.
    pub fn pass_turn(&self) -> Result<bool> {
        match self.attr("schedule.yield") {
            Ok(_) => Ok(true),
            Err(e) if e.code == Code::Unsupported => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// From now on this device's communicators are made by `carrier` and work through pinned memory: how ranks of several processes meet.
    pub fn carry(&self, carrier: &Carrier) {
        *lock(&self.0.carrier) = Some(carrier.clone());
    }
    /// Who carries its collectives, if another plugin does.
    pub fn carrier(&self) -> Option<Carrier> {
        lock(&self.0.carrier).clone()
    }

    /// Its rank in the job, for the checker's messages; said before its first communicator. A mesh says it for its device.
    pub fn set_rank(&self, rank: u32) {
        self.0.watch.set_rank(rank);
    }
    /// Communicators made from now on are not checked: for measuring what checking costs.
    pub fn without_checker(&self) {
        self.0.watch.switch_off();
    }
    /// Called for everything asked of communicators made from now on.
    pub fn observe(&self, observer: Option<Arc<dyn Observer>>) {
        self.0.watch.observe(observer);
    }
    /// Step `at` of the plan, for [`Device::at_step`]: its number and `name` are for messages, equal names are kept once; ranks meet in its collectives when they gave the same `meets`,
    /// which is also what the two ends of its messages call it. None before the first communicator.
    pub fn plan_step(&self, at: u32, name: &str, meets: &str) -> Purpose {
        self.0.watch.step(at, name, meets)
    }
    /// What is asked for from now on belongs to this plan step; the default: to none.
    pub fn at_step(&self, step: Purpose) {
        self.0.watch.set_step(step);
    }

    /// Creates a stream; larger priority is more urgent. `name` is for messages and traces.
    pub fn stream(&self, name: &str, priority: i32) -> Result<Stream> {
        let mut h = std::ptr::null_mut();
        // SAFETY: the device handle is live; the out pointer lives for the call.
        check("stream_create", |e| unsafe {
            call!(self.0.api, stream_create)(self.0.handle.0, priority, 0, &mut h, e)
        })?;
        let mut streams = self.0.streams.write().unwrap_or_else(|e| e.into_inner());
        let core = Arc::new(StreamCore::new(
            Raw(h),
            streams.len() as u32,
            name,
            &self.0.api,
            self.0.plugin.0.ops,
            self.0.fault.clone(),
            self.0.watch.clone(),
            self.0.account.clone(),
        ));
        streams.push(core.clone());
        Ok(Stream::new(self.clone(), core))
    }

    /// A home for state: memory of its own, allocated once, kept until dropped.
    pub fn alloc_state(&self, bytes: u64, tag: Tag) -> Result<Buffer> {
        let mem = self.raw_alloc(abi::MEM_DEVICE, bytes)?;
        Ok(Buffer::new(
            self.clone(),
            mem,
            0,
            bytes,
            tag,
            Backing::State,
            Track::default(),
        ))
    }

    /// Slot home: memory of its own like [`Device::alloc_state`], registered with communicators where the plugin can.
    pub fn alloc_slot(&self, bytes: u64, tag: Tag) -> Result<Buffer> {
        let mem = match self.raw_alloc(abi::MEM_SYMMETRIC, bytes) {
            Err(e) if e.code == Code::Unsupported => self.raw_alloc(abi::MEM_DEVICE, bytes)?,
            r => r?,
        };
        Ok(Buffer::new(
            self.clone(),
            mem,
            0,
            bytes,
            tag,
            Backing::State,
            Track::default(),
        ))
    }

    /// Activation home: from the caching pool, for use on `stream` first. Blocks freed by another stream's work are handed out too; the
    /// first write then waits for that work.
    pub fn alloc(&self, stream: &Stream, bytes: u64, tag: Tag) -> Result<Buffer> {
        let rounded = Pool::round(bytes);
        let id = stream.core.id;
        if let Some((b, track)) = lock(&self.0.pool).pool.take(rounded, id) {
            return self.pooled(b, track, bytes, tag);
        }
        let slab_bytes = Pool::slab_bytes(rounded);
        let (mem, slab_bytes) = match self.raw_alloc(abi::MEM_DEVICE, slab_bytes) {
            Ok(m) => (m, slab_bytes),
            Err(e) if e.code == Code::Oom => {
                // One more try after giving idle slabs back, then with the exact size.
                self.trim()?;
                match self.raw_alloc(abi::MEM_DEVICE, rounded) {
                    Ok(m) => (m, rounded),
                    Err(e) => return Err(self.oom(e, bytes, tag)),
                }
            }
            Err(e) => return Err(e),
        };
        let mut state = lock(&self.0.pool);
        let slab = state.next_slab;
        state.next_slab += 1;
        self.0
            .slabs
            .write()
            .unwrap_or_else(|e| e.into_inner())
            .insert(
                slab,
                Slab {
                    mem,
                    bytes: slab_bytes,
                },
            );
        state.pool.add_slab(slab, slab_bytes);
        let Some((b, track)) = state.pool.take(rounded, id) else {
            return Err(Error::new(
                Code::Internal,
                "alloc",
                "a fresh slab could not serve the request it was made for",
            ));
        };
        drop(state);
        self.pooled(b, track, bytes, tag)
    }

    fn pooled(&self, b: Block, track: Track, bytes: u64, tag: Tag) -> Result<Buffer> {
        let slabs = self.0.slabs.read().unwrap_or_else(|e| e.into_inner());
        let Some(slab) = slabs.get(&b.slab) else {
            return Err(Error::new(
                Code::Internal,
                "alloc",
                format!("slab {} is not known", b.slab),
            ));
        };
        Ok(Buffer::new(
            self.clone(),
            slab.mem,
            b.offset,
            bytes,
            tag,
            Backing::Pool(b),
            track,
        ))
    }

    fn oom(&self, mut e: Error, bytes: u64, tag: Tag) -> Error {
        let m = self.memory();
        e.message = format!(
            "out of memory: {} wanted for {}, {} live, {} reserved ({}); use a smaller micro-batch, recompute, or more ranks",
            bytes,
            tag.name(),
            m.total.now,
            m.reserved.now,
            e.message
        );
        e
    }

    fn raw_alloc(&self, kind: u32, bytes: u64) -> Result<Raw> {
        let pinned = kind == abi::MEM_HOST_PINNED;
        // Pinned memory begins on a page, so that files can be read into it directly.
        let align = if pinned { PAGE } else { 256 };
        let mut h = std::ptr::null_mut();
        // SAFETY: the device handle is live; the out pointer lives for the call.
        check("mem_alloc", |e| unsafe {
            call!(self.0.api, mem_alloc)(self.0.handle.0, kind, bytes.max(1), align, &mut h, e)
        })?;
        self.0.memory.reserve(if pinned { 0 } else { bytes });
        Ok(Raw(h))
    }

    pub(crate) fn raw_free(&self, mem: Raw, bytes: u64) {
        self.0.account.freed.fetch_add(1, Relaxed);
        // SAFETY: `mem` came from `raw_alloc`, is freed once, and the caller has waited for its last use.
        unsafe { call!(self.0.api, mem_free)(mem.0) };
        self.0.memory.release(bytes);
    }

    /// Memories freed so far: while the number stands, a handle names the memory it named.
    pub(crate) fn freed(&self) -> u64 {
        self.0.account.freed.load(Relaxed)
    }

    pub(crate) fn give_back(&self, block: Block, track: Track) {
        lock(&self.0.pool).pool.give(block, track);
    }

    /// Pinned host memory for transfers; mapped.
    pub fn alloc_host(&self, bytes: u64, tag: Tag) -> Result<HostBuffer> {
        let mem = self.raw_alloc(abi::MEM_HOST_PINNED, bytes)?;
        let mut p = std::ptr::null_mut();
        // SAFETY: `mem` is live and of a host-visible kind.
        check("mem_map", |e| unsafe {
            call!(self.0.api, mem_map)(mem.0, &mut p, e)
        })
        .inspect_err(|_| self.raw_free(mem, 0))?;
        let b = Buffer::new(
            self.clone(),
            mem,
            0,
            bytes,
            tag,
            Backing::Host,
            Track::default(),
        );
        Ok(HostBuffer::new(b, p.cast()))
    }

    /// Takes pinned memory, of this device or of another, as a buffer of this one: kernels of this device run on it in place. It is lent
    /// whole: its owner has it again with [`Buffer::take_back`], and nobody else can touch the bytes meanwhile.
    ///
    /// # Errors
    /// `Unsupported` where another device's memory cannot be imported; a failed stream of the owner. The memory is then freed.
    pub fn borrow_host(&self, memory: HostBuffer) -> Result<Buffer> {
        let of = memory.buffer();
        of.host_wait(true)?;
        if Arc::ptr_eq(&of.device().0, &self.0) {
            return Ok(Buffer::lent(self.clone(), None, memory));
        }
        let Some(import) = self.0.api.mem_import else {
            let why = format!(
                "{} cannot compute on another device's pinned memory; use a host back end that imports host pointers (cpu does)",
                self.0.plugin.name()
            );
            return Err(Error::new(Code::Unsupported, "mem_import", why));
        };
        let native = abi::Native {
            size: size_of::<abi::Native>() as u32,
            type_: abi::NATIVE_HOST_POINTER,
            value: [memory.address() as usize as u64, 0, 0, 0],
            bytes: of.bytes(),
        };
        let mut h = std::ptr::null_mut();
        // SAFETY: the address has that many bytes and outlives the import, because the new buffer owns `memory`.
        check("mem_import", |e| unsafe {
            import(self.0.handle.0, &native, &mut h, e)
        })?;
        Ok(Buffer::lent(self.clone(), Some(Raw(h)), memory))
    }

    pub(crate) fn forget_import(&self, mem: Raw) {
        self.0.account.freed.fetch_add(1, Relaxed);
        // SAFETY: `mem` came from `mem_import`, is dropped once, and the caller has waited for its last use.
        unsafe { call!(self.0.api, mem_free)(mem.0) };
    }

    /// Joins neighbouring free blocks. Called between steps, so that every step finds the pool as the last one did and what sufficed once
    /// suffices for ever.
    ///
    /// When the pool is idle and had to be taken in several slabs, they are exchanged for one of their size: from then on the memory of
    /// steps is one contiguous piece, so that nothing is lost to the borders between slabs.
    pub fn settle(&self) {
        let apart = {
            let mut state = lock(&self.0.pool);
            let slabs = self.0.slabs.read().unwrap_or_else(|e| e.into_inner());
            let all: u64 = slabs.values().map(|s| s.bytes).sum();
            slabs.len() > 1 && !state.indivisible && state.pool.free_bytes() == all
        };
        if apart {
            self.unite();
        }
    }

    /// Joins all free blocks: from here on the same requests in the same order get the same addresses.
    pub fn join_free(&self) {
        lock(&self.0.pool).pool.flush();
    }

    /// Exchanges the slabs of an idle pool for one.
    fn unite(&self) {
        // A stream that failed returns its error to the next user; nothing is exchanged under it.
        if self.sync().is_err() {
            return;
        }
        let mut state = lock(&self.0.pool);
        let mut slabs = self.0.slabs.write().unwrap_or_else(|e| e.into_inner());
        let sizes: HashMap<u32, u64> = slabs.iter().map(|(k, s)| (*k, s.bytes)).collect();
        let mut parts = Vec::new();
        for id in state.pool.drain_idle(&sizes) {
            if let Some(s) = slabs.remove(&id) {
                parts.push(s.bytes);
                self.raw_free(s.mem, s.bytes);
            }
        }
        let mut take = |bytes: u64| {
            let mem = self.raw_alloc(abi::MEM_DEVICE, bytes).ok()?;
            let id = state.next_slab;
            state.next_slab += 1;
            slabs.insert(id, Slab { mem, bytes });
            state.pool.add_slab(id, bytes);
            Some(())
        };
        if take(parts.iter().sum()).is_none() {
            // The device does not give so much in one piece: as before then, and never asked again.
            parts.into_iter().for_each(|bytes| {
                let _ = take(bytes);
            });
            state.indivisible = true;
        }
    }

    /// Gives slabs that are entirely free back to the plugin.
    pub fn trim(&self) -> Result<()> {
        self.sync()?;
        // The pool before the slabs, as everywhere.
        let mut state = lock(&self.0.pool);
        let mut slabs = self.0.slabs.write().unwrap_or_else(|e| e.into_inner());
        let sizes = slabs.iter().map(|(k, s)| (*k, s.bytes)).collect();
        for s in state.pool.drain_idle(&sizes) {
            if let Some(s) = slabs.remove(&s) {
                self.raw_free(s.mem, s.bytes);
            }
        }
        Ok(())
    }

    /// Waits for every stream.
    pub fn sync(&self) -> Result<()> {
        let streams: Vec<_> = self
            .0
            .streams
            .read()
            .unwrap_or_else(|e| e.into_inner())
            .clone();
        streams.iter().try_for_each(|s| s.sync(None))
    }

    /// Prepares an op; the same request gives the same kernel. `decompose` answers for fused ops the device lacks.
    pub fn prepare(&self, op: &OpRequest, decompose: &dyn Decompose) -> Result<Kernel> {
        self.prepare_within(op, decompose, Within::Caller)
    }

    pub(crate) fn prepare_within(
        &self,
        op: &OpRequest,
        decompose: &dyn Decompose,
        within: Within,
    ) -> Result<Kernel> {
        let known = lock(&self.0.kernels).get(op).cloned();
        let fits =
            |k: &Arc<KernelInner>| within == Within::Caller || !matches!(k.route, Route::Host(_));
        let inner = match known.filter(fits) {
            Some(k) => k,
            None => {
                let k = Kernel::prepare(self, op, decompose, within)?;
                lock(&self.0.kernels).insert(op.clone(), k.clone());
                k
            }
        };
        Ok(Kernel::wrap(inner, self))
    }

    /// From now on ops that this device can run by no other route are computed by `host`, a device that computes on host memory and imports
    /// host addresses: operands are copied to pinned memory, the host computes while the stream waits, results are copied back. Each such
    /// call stalls the stream and the caller.
    pub fn allow_host_ops(&self, host: &Device) {
        *lock(&self.0.host_ops) = Some(host.clone());
    }
    pub(crate) fn host_ops(&self) -> Option<Device> {
        lock(&self.0.host_ops).clone()
    }
    /// The ops prepared so far that are computed on the host.
    pub fn ops_on_host(&self) -> Vec<String> {
        let kernels = lock(&self.0.kernels);
        let on_host = kernels
            .iter()
            .filter(|(_, k)| matches!(k.route, Route::Host(_)));
        let mut all: Vec<String> = on_host.map(|(r, _)| r.describe()).collect();
        all.sort();
        all
    }

    /// The memory ledger.
    pub fn memory(&self) -> MemoryReport {
        let f = lock(&self.0.pool).pool.fragmentation();
        self.0.memory.report(f)
    }
    /// `mem_alloc` calls so far.
    pub fn device_allocs(&self) -> u64 {
        self.0.memory.device_allocs()
    }
    /// The collective ledger: all communicators made on this device.
    pub fn collectives(&self) -> Vec<CollectiveLine> {
        self.0.collectives.report()
    }
    /// What this device's rank has put on the bridge to other islands, and taken from it.
    pub fn bridged(&self) -> Vec<BridgeLine> {
        self.0.collectives.bridged()
    }
}

impl Drop for DeviceInner {
    fn drop(&mut self) {
        // Nothing can be queued any more (streams and buffers hold the device), so destroying is safe in this order.
        let streams = std::mem::take(&mut *self.streams.write().unwrap_or_else(|e| e.into_inner()));
        for s in &streams {
            // A failed stream has nothing left to wait for; its error was reported when it happened.
            let _ = s.sync(None);
        }
        self.watch.end();
        lock(&self.kernels).clear();
        drop(streams);
        let slabs = std::mem::take(&mut *self.slabs.write().unwrap_or_else(|e| e.into_inner()));
        for s in slabs.into_values() {
            // SAFETY: every stream has been waited for and no buffer is left.
            unsafe { call!(self.api, mem_free)(s.mem.0) };
        }
        // SAFETY: the last owner closes the handle once.
        unsafe { call!(self.api, device_close)(self.handle.0) };
    }
}
