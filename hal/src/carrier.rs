//! A carrier: collectives of one plugin for the devices of others, over pinned host memory (host-staged transport). It does
//! what a device's own plugin cannot, such as reaching other processes.
//!
//! A collective of a carried device is three pieces of work on the stream it was launched on: copies of its inputs into
//! pinned memory, a host call in which the carrier runs the collective there, and copies of its outputs back. Stream order
//! needs nothing else, so this works for every device that has pinned memory and host calls. A host call cannot fail a
//! stream, so a failed collective marks the device: every later wait on it returns the error, and nothing takes the contents
//! of its memory for a result. Where a device has no host calls, the thread that launches waits and carries by itself: slower,
//! and in the same order.
//!
//! A collective in flight owns nothing of a plugin: it runs on the device's own stream thread, where the destructor of a
//! buffer, a communicator or a device would wait for that same thread. Dropping a communicator first waits until nothing of
//! it is in flight.

use crate::buffer::{Buffer, HostBuffer, Region};
use crate::call::check;
use crate::comm::{Bootstrap, Collective, CommInner, CommOptions, Communicator};
use crate::device::{Device, Plugin, Raw};
use crate::error::{Code, Error, Result};
use crate::ledger::Tag;
use crate::stream::Stream;
use crossweave_abi as abi;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How long the end of a communicator waits for a collective in flight whose stream has failed or does not get there: what it uses is then
/// left as it is.
const GRACE: Duration = Duration::from_secs(10);

/// What has gone wrong outside a device's plugin, for every wait on the device.
#[derive(Default)]
pub(crate) struct Fault {
    set: AtomicBool,
    error: Mutex<Option<Error>>,
}

impl Fault {
    /// The first one stays.
    fn set(&self, e: Error) {
        let mut slot = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        slot.get_or_insert(Error { sticky: true, ..e });
        self.set.store(true, Release);
    }
    /// `Err` once something has.
    pub fn check(&self) -> Result<()> {
        if !self.set.load(Acquire) {
            return Ok(());
        }
        let slot = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        slot.clone().map_or(Ok(()), Err)
    }
}

/// The name of a communicator of all processes, by which a carrier knows it.
pub const WORLD: &str = "carrier.world";

/// The store of a communicator that needs none.
struct Nowhere;

impl Bootstrap for Nowhere {
    fn set(&self, _: &str, _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn get(&self, _: &str, _: Duration) -> Result<Vec<u8>> {
        Ok(WORLD.into())
    }
}

/// A plugin that carries collectives for other plugins' devices. Clone shares it.
#[derive(Clone)]
pub struct Carrier(pub(crate) Device);

impl Carrier {
    /// Opens the plugin's device 0 for it.
    ///
    /// # Errors
    /// `Unsupported` when the plugin has no collectives or cannot take host memory in; whatever keeps it from starting.
    pub fn open(plugin: &Plugin) -> Result<Carrier> {
        let lacks = |what: &str| {
            Err(Error::new(
                Code::Unsupported,
                "carrier",
                format!("plugin {} {what}", plugin.name()),
            ))
        };
        if plugin.0.coll.is_none() {
            return lacks("provides no collectives");
        }
        if plugin.0.device.is_none_or(|d| d.mem_import.is_none()) {
            return lacks("does not take host memory in (mem_import)");
        }
        plugin.open(0).map(Carrier)
    }

    /// All processes the launcher has connected, in its order. Needs no store, so a job can make its store through it.
    ///
    /// # Errors
    /// A launcher and a carrier that disagree about rank or size.
    pub fn world(&self, rank: u32, size: u32, timeout: Duration) -> Result<Communicator> {
        let options = CommOptions {
            name: WORLD.into(),
            timeout: Some(timeout),
        };
        Communicator::new(&self.0, &Nowhere, rank, size, &options)
    }

    /// Sets a value of the plugin's configuration, for communicators that are made from now on.
    pub fn configure(&self, key: &str, value: String) {
        self.0.0.plugin.0.host.set_config(key, Some(value));
    }

    /// The carrier's own device: its memory, streams and attributes.
    pub fn device(&self) -> &Device {
        &self.0
    }
}

/// A communicator's half of being carried.
pub(crate) struct Carried {
    carrier: Device,
    line: Arc<Line>,
    staging: Mutex<Option<Staging>>,
    /// Bytes copied off the device for the carrier, and onto it.
    moved: [AtomicU64; 2],
    /// Something in flight did not land.
    lost: bool,
}

/// What collectives in flight need of the carrier. Handles, which it does not own: `Carried` waits for the collectives before it ends them.
struct Line {
    group: String,
    coll: abi::CollectiveApi,
    comm: Raw,
    device: abi::DeviceApi,
    /// Lowest of all priorities: the carrier works in the host call that waits for it, not on a further thread.
    stream: Raw,
    in_flight: Mutex<u64>,
    landed: Condvar,
}

impl Line {
    fn count(&self) -> std::sync::MutexGuard<'_, u64> {
        self.in_flight
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nothing is in flight. `false`: after `limit` something is.
    fn clear(&self, limit: Duration) -> bool {
        let waited = self
            .landed
            .wait_timeout_while(self.count(), limit, |n| *n > 0);
        *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
    }
}

struct Staging {
    host: HostBuffer,
    /// The same memory for the carrier.
    import: Raw,
}

impl Carried {
    /// `comm`: the carrier's communicator, by its table `coll`.
    pub fn new(
        carrier: &Carrier,
        coll: &abi::CollectiveApi,
        comm: Raw,
        group: &str,
    ) -> Result<Carried> {
        let device = carrier.0.clone();
        let mut stream = std::ptr::null_mut();
        // SAFETY: the device is open; the out pointer lives for the call.
        check("stream_create", |e| unsafe {
            call!(device.0.api, stream_create)(device.0.handle.0, i32::MIN, 0, &mut stream, e)
        })?;
        Ok(Carried {
            line: Arc::new(Line {
                group: group.into(),
                coll: *coll,
                comm,
                device: device.0.api,
                stream: Raw(stream),
                in_flight: Mutex::new(0),
                landed: Condvar::new(),
            }),
            carrier: device,
            staging: Mutex::new(None),
            moved: Default::default(),
            lost: false,
        })
    }

    /// Waits until nothing is in flight: each collective ends by its own timeout or the abort. `false`: something still is; it may use the
    /// communicator, the stream and the staging memory, which are then left to it.
    pub fn land(&mut self) -> bool {
        if self.lost {
            return false;
        }
        let staging = self
            .staging
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(s) = staging {
            // Every collective writes it. A failed stream says so before it has passed them all.
            let _ = s.host.buffer().host_wait(true);
        }
        self.lost = !self.line.clear(GRACE);
        if self.lost {
            std::mem::forget((staging.take(), self.carrier.clone()));
        }
        !self.lost
    }

    /// Bytes copied off the device for the carrier so far, and onto it.
    pub fn moved(&self) -> [u64; 2] {
        self.moved.each_ref().map(|n| n.load(Relaxed))
    }

    /// Makes sure of `bytes` of staging memory of `device`.
    fn grow(&self, slot: &mut Option<Staging>, device: &Device, bytes: u64) -> Result<()> {
        if slot
            .as_ref()
            .is_some_and(|s| s.host.buffer().bytes() >= bytes)
        {
            return Ok(());
        }
        self.release(slot.take())?;
        let host = device.alloc_host(bytes.max(4096), Tag::Staging)?;
        let native = abi::Native {
            size: size_of::<abi::Native>() as u32,
            type_: abi::NATIVE_HOST_POINTER,
            value: [host.address() as usize as u64, 0, 0, 0],
            bytes: host.buffer().bytes(),
        };
        let mut h = std::ptr::null_mut();
        // SAFETY: the address has that many bytes and outlives the import: both are released together.
        check("mem_import", |e| unsafe {
            call!(self.carrier.0.api, mem_import)(self.carrier.0.handle.0, &native, &mut h, e)
        })?;
        let import = Raw(h);
        *slot = Some(Staging { host, import });
        Ok(())
    }

    fn release(&self, staging: Option<Staging>) -> Result<()> {
        let Some(s) = staging else {
            return Ok(());
        };
        let done = s.host.buffer().host_wait(true);
        self.carrier.forget_import(s.import);
        done
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        if !self.land() {
            return;
        }
        let staging = self
            .staging
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        // A failed stream runs nothing more.
        let _ = self.release(staging);
        // SAFETY: created by us, destroyed once; nothing that uses it is in flight.
        unsafe { call!(self.carrier.0.api, stream_destroy)(self.line.stream.0) };
    }
}

/// Where the operands of one collective lie in staging memory.
struct Place<'a> {
    send: Option<(Region<'a>, u64)>,
    recv: Option<(Region<'a>, u64)>,
}

impl<'a> Place<'a> {
    /// Places them from `at` on; overlapping operands overlap there too. With the end.
    fn of(c: &Collective<'a>, at: u64) -> (Place<'a>, u64) {
        let (send, recv) = operands(c);
        let end = |r: &Region<'_>| r.offset + r.bytes;
        let round = |n: u64| n.next_multiple_of(64);
        match (send, recv) {
            (Some(s), Some(r))
                if std::ptr::eq(s.buffer, r.buffer) && s.offset < end(&r) && r.offset < end(&s) =>
            {
                let from = s.offset.min(r.offset);
                let to = end(&s).max(end(&r));
                let place = Place {
                    send: Some((s, at + s.offset - from)),
                    recv: Some((r, at + r.offset - from)),
                };
                (place, round(at + to - from))
            }
            (s, r) => {
                let middle = round(at + s.map_or(0, |s| s.bytes));
                let place = Place {
                    send: s.map(|s| (s, at)),
                    recv: r.map(|r| (r, middle)),
                };
                (place, round(middle + r.map_or(0, |r| r.bytes)))
            }
        }
    }
}

/// What a collective reads from and writes to.
fn operands<'a>(c: &Collective<'a>) -> (Option<Region<'a>>, Option<Region<'a>>) {
    match c {
        Collective::AllReduce { buf, .. }
        | Collective::Broadcast { buf, .. }
        | Collective::Reduce { buf, .. } => (Some(*buf), Some(*buf)),
        Collective::ReduceScatter { send, recv, .. }
        | Collective::AllGather { send, recv, .. }
        | Collective::AllToAll { send, recv, .. }
        | Collective::AllToAllV { send, recv, .. }
        | Collective::AllGatherV { send, recv, .. } => (Some(*send), Some(*recv)),
        Collective::Send { buf, .. } => (Some(*buf), None),
        Collective::Recv { buf, .. } => (None, Some(*buf)),
        Collective::Barrier => (None, None),
    }
}

/// Does this rank's part of it read its input, write its output?
fn directions(c: &Collective<'_>, rank: u32) -> (bool, bool) {
    match c {
        Collective::Broadcast { root, .. } => (*root == rank, *root != rank),
        Collective::Reduce { root, .. } => (true, *root == rank),
        _ => (true, true),
    }
}

/// The pieces of the output that are written, as offset and length in bytes of it: gaps between pieces keep what they held.
fn pieces(c: &Collective<'_>, recv: &Region<'_>) -> Vec<(u64, u64)> {
    match c {
        Collective::AllToAllV { counts, dtype, .. }
        | Collective::AllGatherV { counts, dtype, .. } => counts
            .recv_at
            .iter()
            .zip(&counts.recv)
            .map(|(at, n)| (dtype.bytes(*at), dtype.bytes(*n)))
            .collect(),
        _ => vec![(0, recv.bytes)],
    }
}

/// Bytes a collective copies off the device of its rank for the carrier, and onto it.
pub(crate) fn staged(c: &Collective<'_>, rank: u32) -> [u64; 2] {
    let ((send, recv), (reads, writes)) = (operands(c), directions(c, rank));
    let written = |r: &Region<'_>| pieces(c, r).iter().map(|(_, bytes)| bytes).sum();
    [
        send.filter(|_| reads).map_or(0, |r| r.bytes),
        recv.filter(|_| writes).as_ref().map_or(0, written),
    ]
}

/// A group on its way to the carrier. Plain memory all through: it ends on a stream's thread.
struct Job {
    line: Arc<Line>,
    fault: Arc<Fault>,
    descs: Vec<abi::CollDesc>,
    /// What the descriptors' count arrays point into.
    _counts: Vec<Box<[u64]>>,
    name: &'static str,
}

impl Job {
    fn run(&self) -> Result<()> {
        let l = &*self.line;
        // SAFETY: communicator, stream and imported staging memory live while this is in flight (`Carried::land`); the descriptors' arrays
        // as long as `self`.
        check("launch", |e| unsafe {
            call!(l.coll, launch)(
                l.comm.0,
                l.stream.0,
                self.descs.as_ptr(),
                self.descs.len() as u32,
                e,
            )
        })?;
        // The collective has a timeout of its own.
        // SAFETY: as above.
        check("stream_sync", |e| unsafe {
            call!(l.device, stream_sync)(l.stream.0, -1, e)
        })
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        *self.line.count() -= 1;
        self.line.landed.notify_all();
    }
}

/// The host call.
unsafe extern "C" fn carry(job: *mut c_void, status: abi::Status) {
    // SAFETY: the box made in `group`, handed over once.
    let job = unsafe { Box::from_raw(job.cast::<Job>()) };
    // A stream that has failed says so itself.
    if status == abi::OK {
        run(*job);
    }
}

/// Carries out a group on this thread, and answers what has become of the device.
fn carried_here(job: Job) -> Result<()> {
    let fault = job.fault.clone();
    run(job);
    fault.check()
}

/// Carries out a group; what goes wrong is the device's fault from here on.
fn run(job: Job) {
    // After a fault nothing more is sent.
    if job.fault.check().is_ok() {
        let run = std::panic::AssertUnwindSafe(|| job.run());
        let done = std::panic::catch_unwind(run)
            .unwrap_or_else(|_| Err(Error::new(Code::Panic, "carrier", "the host call panicked")));
        if let Err(e) = done {
            job.fault
                .set(e.context(format!("{} on {}", job.name, job.line.group)));
        }
    }
}

/// Launches a group on a stream of a carried device. `descs` are those of `members`, with the spans of the device.
pub(crate) fn group(
    comm: &CommInner,
    stream: &Stream,
    members: &[Collective<'_>],
    descs: &[abi::CollDesc],
) -> Result<()> {
    let Some(carried) = &comm.carried else {
        return Err(Error::new(Code::Internal, "carrier", "not carried"));
    };
    let device = stream.device();
    device.0.fault.check()?;
    let mut end = 0;
    let mut places = vec![];
    for m in members {
        let (place, to) = Place::of(m, end);
        places.push(place);
        end = to;
    }
    let mut slot = carried
        .staging
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    carried.grow(&mut slot, device, end)?;
    let Some(staging) = &*slot else {
        return Err(Error::new(Code::Internal, "carrier", "no staging memory"));
    };
    let memory = staging.host.buffer();
    for m in members {
        let [sent, received] = staged(m, comm.rank);
        carried.moved[0].fetch_add(sent, Relaxed);
        carried.moved[1].fetch_add(received, Relaxed);
    }
    for (m, p) in members.iter().zip(&places) {
        if let Some((r, at)) = p
            .send
            .filter(|(r, _)| directions(m, comm.rank).0 && r.bytes > 0)
        {
            stream.copy(memory.region(at, r.bytes), r)?;
        }
    }
    let mut counts = vec![];
    let mut own = descs.to_vec();
    for (d, p) in own.iter_mut().zip(&places) {
        let span = |o: &Option<(Region<'_>, u64)>| match o {
            Some((r, at)) => abi::Span {
                mem: staging.import.0,
                offset: *at,
                bytes: r.bytes,
            },
            None => abi::Span::NULL,
        };
        (d.send, d.recv) = (span(&p.send), span(&p.recv));
        for list in [
            &mut d.send_counts,
            &mut d.send_offsets,
            &mut d.recv_counts,
            &mut d.recv_offsets,
        ] {
            if !list.is_null() {
                // SAFETY: `Communicator::desc` made it of an array with one entry per rank.
                let copy: Box<[u64]> =
                    unsafe { std::slice::from_raw_parts(*list, comm.size as usize) }.into();
                *list = copy.as_ptr();
                counts.push(copy);
            }
        }
    }
    *carried.line.count() += 1;
    let job = Box::new(Job {
        line: carried.line.clone(),
        fault: device.0.fault.clone(),
        descs: own,
        _counts: counts,
        name: members.first().map_or("group", Collective::name),
    });
    let Some(host_call) = device.0.api.stream_host_call else {
        // A device without host calls: the caller waits for the inputs and carries them itself.
        stream.sync(None)?;
        carried_here(*job)?;
        return back(stream, comm, members, &places, memory);
    };
    stream.submit([(memory, true)].into_iter(), |h| {
        let job = Box::into_raw(job);
        // SAFETY: the job is handed over once; where the call fails it was not taken.
        check("stream_host_call", |e| unsafe {
            host_call(h, carry, job.cast(), e)
        })
        .inspect_err(|_| {
            // SAFETY: as above.
            drop(unsafe { Box::from_raw(job) });
        })
    })?;
    back(stream, comm, members, &places, memory)
}

/// Copies of the outputs, from staging memory to where they belong.
fn back(
    stream: &Stream,
    comm: &CommInner,
    members: &[Collective<'_>],
    places: &[Place<'_>],
    memory: &Buffer,
) -> Result<()> {
    for (m, p) in members.iter().zip(places) {
        let Some((r, at)) = p.recv.filter(|_| directions(m, comm.rank).1) else {
            continue;
        };
        for (from, bytes) in pieces(m, &r) {
            if bytes > 0 {
                let to = r.buffer.region(r.offset + from, bytes);
                stream.copy(to, memory.region(at + from, bytes))?;
            }
        }
    }
    Ok(())
}
