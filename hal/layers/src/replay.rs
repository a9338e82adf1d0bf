//! A recorded run on another plugin: the same calls, a thread for each device, and what comes back held against what came back then.

use crate::compare::{Compare, differs};
use crate::fields::{bytes_of, list, number, word};
use crate::tape::Recording;
use crossweave_abi as abi;
use crossweave_abi::{Handle, Status, Str};
use crossweave_hal::{Error, RawPlugin};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a rank waits for another's id.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a replay has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Calls made, by slot.
    pub calls: BTreeMap<String, u64>,
    /// Blocks that came back and were compared.
    pub compared: u64,
    /// What differs, in those blocks and in the status of calls.
    pub differs: Vec<String>,
    /// Blocks recorded by their hash only, which a tolerance cannot be applied to.
    pub skipped: u64,
    /// Calls that failed when they were recorded and succeed now.
    pub mended: u64,
}

struct Shared<'a> {
    recording: &'a Recording,
    plugin: &'a RawPlugin,
    compare: Compare,
    handles: Mutex<HashMap<u64, Mine>>,
    ids: Mutex<HashMap<String, Vec<u8>>>,
    came: Condvar,
    stop: AtomicBool,
    devices: u32,
}

/// A handle of this plugin for a recorded number.
#[derive(Clone, Copy)]
struct Mine {
    handle: usize,
    what: What,
    /// Where the host has it, once mapped.
    address: usize,
    bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Device,
    Mem,
    Stream,
    Event,
    Op,
    Comm,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Replays `recording` on `plugin`.
///
/// # Errors
/// A call that succeeded when it was recorded and fails now, with its number; a recording that lacks ranks; the first failure of several.
pub fn replay(
    recording: &Recording,
    plugin: &RawPlugin,
    compare: Compare,
) -> Result<Report, String> {
    let mut lanes: BTreeMap<u64, Vec<(usize, &Value)>> = BTreeMap::new();
    for (i, c) in recording.calls.iter().enumerate() {
        let d = c["d"]
            .as_u64()
            .ok_or_else(|| format!("call {i} names no device: {c}"))?;
        lanes.entry(d).or_default().push((i, c));
    }
    // Every rank of a group must be there, or those that are wait for ever.
    let mut groups: BTreeMap<&str, (i64, i64)> = BTreeMap::new();
    for c in recording
        .calls
        .iter()
        .filter(|c| c["c"] == "comm_init" && c["status"].is_null())
    {
        let e = groups.entry(c["id"].as_str().unwrap_or("")).or_default();
        *e = (c["size"].as_i64().unwrap_or(0), e.1 + 1);
    }
    if let Some((_, (size, here))) = groups.iter().find(|(_, (size, here))| here < size) {
        return Err(format!(
            "the file holds {here} of {size} ranks of a group; record ranks as threads of one process (--ranks N)"
        ));
    }
    let table = plugin.device.as_ref().ok_or("the plugin has no devices")?;
    let mut devices = 0;
    if let Some(f) = table.device_count {
        let mut e = abi::Error::new();
        // SAFETY: the plugin's own token; both pointers live for the call.
        let s = unsafe { f(plugin.self_, &mut devices, &mut e) };
        told("device_count", s, &e)?;
    }
    if devices == 0 {
        return Err("the plugin finds no device".into());
    }
    let shared = Shared {
        recording,
        plugin,
        compare,
        handles: Mutex::default(),
        ids: Mutex::default(),
        came: Condvar::new(),
        stop: AtomicBool::new(false),
        devices,
    };
    let one = |calls: &[(usize, &Value)]| {
        let mut lane = Lane {
            s: &shared,
            report: Report::default(),
            scratch: HashMap::new(),
        };
        for (i, c) in calls {
            if shared.stop.load(Ordering::Acquire) {
                return Ok(lane.report);
            }
            if let Err(why) = lane.call(c) {
                shared.give_up();
                return Err(format!(
                    "call {i}, {}: {why}",
                    c["c"].as_str().unwrap_or("?")
                ));
            }
        }
        Ok(lane.report)
    };
    let results: Vec<Result<Report, String>> = std::thread::scope(|scope| {
        let one = &one;
        let all: Vec<_> = lanes
            .values()
            .map(|calls| scope.spawn(move || one(calls)))
            .collect();
        let join = |t: std::thread::ScopedJoinHandle<'_, Result<Report, String>>| {
            t.join()
                .unwrap_or_else(|_| Err("a thread of the replay panicked".into()))
        };
        all.into_iter().map(join).collect()
    });
    let mut sum = Report::default();
    let mut failure = None;
    for r in results {
        match r {
            Ok(r) => {
                r.calls
                    .into_iter()
                    .for_each(|(k, n)| *sum.calls.entry(k).or_default() += n);
                sum.compared += r.compared;
                sum.skipped += r.skipped;
                sum.mended += r.mended;
                sum.differs.extend(r.differs);
            }
            // What another's end has caused is not the cause.
            Err(e) => {
                failure = Some(
                    failure
                        .filter(|f: &String| !f.contains("aborted"))
                        .unwrap_or(e),
                )
            }
        }
    }
    failure.map_or(Ok(sum), Err)
}

fn told(slot: &str, s: Status, e: &abi::Error) -> Result<(), String> {
    match s {
        abi::OK => Ok(()),
        s => Err(Error::from_record(s, slot, e).to_string()),
    }
}

impl Shared<'_> {
    /// A lane has failed: every lane that waits for it is released.
    fn give_up(&self) {
        self.stop.store(true, Ordering::Release);
        self.came.notify_all();
        let abort = self.plugin.coll.as_ref().and_then(|c| c.comm_abort);
        for h in lock(&self.handles)
            .values()
            .filter(|h| h.what == What::Comm)
        {
            if let Some(f) = abort {
                // SAFETY: alive until its lane destroys it, which takes it out of the map first; abort may race with anything (R7).
                unsafe { f(h.handle as Handle, std::ptr::null_mut()) };
            }
        }
    }
    fn find(&self, v: &Value, what: What) -> Result<Mine, String> {
        let id = v.as_u64().ok_or_else(|| format!("{v} is no handle"))?;
        match lock(&self.handles).get(&id) {
            Some(h) if h.what == what => Ok(*h),
            Some(_) => Err(format!("#{id} is a handle of another kind")),
            None => Err(format!("#{id} is not there")),
        }
    }
    fn content(&self, name: &Value) -> Result<&[u8], String> {
        let name = name.as_str().unwrap_or_default();
        let hit = self.recording.contents.get(name);
        hit.map(Vec::as_slice)
            .ok_or_else(|| format!("content {name} is not in the file"))
    }
}

struct Lane<'a> {
    s: &'a Shared<'a>,
    report: Report,
    /// By the number of a stream: workspaces this plugin needs beyond the recorded ones, handle and bytes, the largest last.
    scratch: HashMap<u64, Vec<(usize, u64)>>,
}

macro_rules! slot {
    ($plugin:expr, $table:ident, $slot:ident) => {
        $plugin
            .$table
            .as_ref()
            .and_then(|t| t.$slot)
            .ok_or(concat!("the plugin has no ", stringify!($slot)))?
    };
}

impl Lane<'_> {
    fn span(&self, v: &Value) -> Result<abi::Span, String> {
        if v.is_null() {
            return Ok(abi::Span::NULL);
        }
        let m = self.s.find(&v[0], What::Mem)?;
        let (offset, bytes) = (word(&v[1])?, word(&v[2])?);
        match offset.checked_add(bytes) {
            Some(end) if end <= m.bytes => Ok(abi::Span {
                mem: m.handle as Handle,
                offset,
                bytes,
            }),
            _ => Err(format!("bytes {offset}..+{bytes} of memory of {}", m.bytes)),
        }
    }

    fn handle(&self, v: &Value, what: What) -> Result<Handle, String> {
        Ok(self.s.find(v, what)?.handle as Handle)
    }

    fn keep(&self, c: &Value, handle: Handle, what: What, bytes: u64) -> Result<(), String> {
        let mine = Mine {
            handle: handle as usize,
            what,
            address: 0,
            bytes,
        };
        lock(&self.s.handles).insert(word(&c["new"])?, mine);
        Ok(())
    }

    fn take(&self, c: &Value, what: What) -> Result<Handle, String> {
        let h = self.handle(&c["of"], what)?;
        lock(&self.s.handles).remove(&word(&c["of"])?);
        Ok(h)
    }

    fn map(&self, id: &Value) -> Result<Mine, String> {
        let mut m = self.s.find(id, What::Mem)?;
        if m.address == 0 {
            let f = slot!(self.s.plugin, device, mem_map);
            let (mut p, mut e) = (std::ptr::null_mut(), abi::Error::new());
            // SAFETY: the memory is alive; both pointers live for the call.
            let s = unsafe { f(m.handle as Handle, &mut p, &mut e) };
            told("mem_map", s, &e)?;
            m.address = p as usize;
            lock(&self.s.handles).insert(word(id)?, m);
        }
        Ok(m)
    }

    /// Puts what the host had sent into place.
    fn send(&self, c: &Value) -> Result<(), String> {
        for pair in c["sent"].as_array().into_iter().flatten() {
            let (v, content) = (&pair[0], self.s.content(&pair[1])?);
            let span = self.span(v)?;
            let m = self.map(&v[0])?;
            if content.len() as u64 != span.bytes {
                return Err(format!(
                    "a content of {} bytes for {}",
                    content.len(),
                    span.bytes
                ));
            }
            // SAFETY: mapped for `m.bytes`, the span is inside; the recorded host had waited for the device before it wrote, and those waits are
            // replayed.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    content.as_ptr(),
                    (m.address + span.offset as usize) as *mut u8,
                    content.len(),
                )
            };
        }
        Ok(())
    }

    fn call(&mut self, c: &Value) -> Result<(), String> {
        let name = c["c"].as_str().unwrap_or("?");
        if name == "read" {
            return self.read(c);
        }
        let expected = c["status"].as_i64().unwrap_or(0) as Status;
        if expected != abi::OK && name == "stream_sync" {
            // It failed because of what came before, which is replayed without the faults of that day.
            return Ok(());
        }
        self.send(c)?;
        *self.report.calls.entry(name.into()).or_default() += 1;
        let mut e = abi::Error::new();
        let s = self.make(name, c, &mut e)?;
        match (s, expected) {
            (abi::OK, abi::OK) => Ok(()),
            (abi::OK, _) => {
                self.report.mended += 1;
                Ok(())
            }
            (s, abi::OK) => told(name, s, &e),
            (s, was) if s != was => {
                let now = Error::from_record(s, name, &e);
                self.report.differs.push(format!(
                    "{name} failed with status {was} then, and now: {now}"
                ));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn make(&mut self, name: &str, c: &Value, e: &mut abi::Error) -> Result<Status, String> {
        let p = self.s.plugin;
        let device = || self.handle(&c["d"], What::Device);
        let stream = || self.handle(&c["stream"], What::Stream);
        let mut new: Handle = std::ptr::null_mut();
        // SAFETY: handles are this plugin's own, alive by the order of the recording; spans were checked; arrays and texts live for the calls.
        unsafe {
            Ok(match name {
                "device_open" => {
                    let index: u32 = number(&c["index"])?;
                    let s =
                        slot!(p, device, device_open)(p.self_, index % self.s.devices, &mut new, e);
                    if s == abi::OK {
                        self.keep(c, new, What::Device, 0)?;
                    }
                    s
                }
                "device_close" => {
                    let h = device()?;
                    lock(&self.s.handles).remove(&word(&c["d"])?);
                    slot!(p, device, device_close)(h);
                    abi::OK
                }
                "mem_alloc" => {
                    let bytes = word(&c["bytes"])?;
                    let f = slot!(p, device, mem_alloc);
                    let s = f(
                        device()?,
                        number(&c["kind"])?,
                        bytes,
                        word(&c["align"])?,
                        &mut new,
                        e,
                    );
                    if s == abi::OK {
                        self.keep(c, new, What::Mem, bytes)?;
                    }
                    s
                }
                "mem_free" => {
                    slot!(p, device, mem_free)(self.take(c, What::Mem)?);
                    abi::OK
                }
                "mem_map" if c["status"].is_null() => {
                    self.map(&c["of"])?;
                    abi::OK
                }
                "mem_map" => return Ok(c["status"].as_i64().unwrap_or(0) as Status),
                "stream_create" => {
                    let s = slot!(p, device, stream_create)(
                        device()?,
                        number(&c["priority"])?,
                        0,
                        &mut new,
                        e,
                    );
                    if s == abi::OK {
                        self.keep(c, new, What::Stream, 0)?;
                    }
                    s
                }
                "stream_destroy" => {
                    slot!(p, device, stream_destroy)(self.take(c, What::Stream)?);
                    // What ran on the stream is over: nothing uses its workspaces any more.
                    for (h, _) in self.scratch.remove(&word(&c["of"])?).into_iter().flatten() {
                        slot!(p, device, mem_free)(h as Handle);
                    }
                    abi::OK
                }
                "stream_sync" => {
                    slot!(p, device, stream_sync)(self.handle(&c["of"], What::Stream)?, -1, e)
                }
                "event_create" => {
                    let s = slot!(p, device, event_create)(device()?, 0, &mut new, e);
                    if s == abi::OK {
                        self.keep(c, new, What::Event, 0)?;
                    }
                    s
                }
                "event_destroy" => {
                    slot!(p, device, event_destroy)(self.take(c, What::Event)?);
                    abi::OK
                }
                "event_record" => slot!(p, device, event_record)(
                    self.handle(&c["event"], What::Event)?,
                    stream()?,
                    e,
                ),
                "stream_wait_event" => slot!(p, device, stream_wait_event)(
                    stream()?,
                    self.handle(&c["event"], What::Event)?,
                    e,
                ),
                "event_sync" => {
                    slot!(p, device, event_sync)(self.handle(&c["of"], What::Event)?, -1, e)
                }
                "stream_wait_value" => slot!(p, device, stream_wait_value)(
                    stream()?,
                    self.span(&c["word"])?,
                    word(&c["value"])?,
                    e,
                ),
                "stream_write_value" => slot!(p, device, stream_write_value)(
                    stream()?,
                    self.span(&c["word"])?,
                    word(&c["value"])?,
                    e,
                ),
                "copy" => slot!(p, device, copy)(
                    stream()?,
                    self.span(&c["dst"])?,
                    self.span(&c["src"])?,
                    e,
                ),
                "copy_peer" => slot!(p, device, copy_peer)(
                    stream()?,
                    self.span(&c["dst"])?,
                    self.span(&c["src"])?,
                    e,
                ),
                "copy_2d" => {
                    let n = |k: &str| word(&c[k]);
                    let (dst, src) = (self.span(&c["dst"])?, self.span(&c["src"])?);
                    let f = slot!(p, device, copy_2d);
                    f(
                        stream()?,
                        dst,
                        n("dpitch")?,
                        src,
                        n("spitch")?,
                        n("width")?,
                        n("height")?,
                        e,
                    )
                }
                "fill" => {
                    let f = slot!(p, device, fill);
                    f(
                        stream()?,
                        self.span(&c["dst"])?,
                        word(&c["pattern"])?,
                        number(&c["pattern_bytes"])?,
                        e,
                    )
                }
                "op_prepare" => self.prepare(c, device()?, e)?,
                "op_launch" => {
                    let spans: Vec<abi::Span> = list(&c["operands"])
                        .map(|o| self.span(o))
                        .collect::<Result<_, _>>()?;
                    let dynamic = bytes_of(&c["dynamic"])?;
                    let at = if dynamic.is_empty() {
                        std::ptr::null()
                    } else {
                        dynamic.as_ptr().cast()
                    };
                    let op = self.s.find(&c["of"], What::Op)?;
                    let on = stream()?;
                    let workspace = self.workspace(c, op.bytes)?;
                    let f = slot!(p, ops, op_launch);
                    f(
                        op.handle as Handle,
                        on,
                        spans.as_ptr(),
                        spans.len() as u32,
                        workspace,
                        at,
                        dynamic.len() as u64,
                        e,
                    )
                }
                "op_release" => {
                    slot!(p, ops, op_release)(self.take(c, What::Op)?);
                    abi::OK
                }
                "comm_init" => self.join(c, device()?, e)?,
                "comm_abort" => slot!(p, coll, comm_abort)(self.handle(&c["of"], What::Comm)?, e),
                "comm_destroy" => {
                    slot!(p, coll, comm_destroy)(self.take(c, What::Comm)?);
                    abi::OK
                }
                "launch" => self.collective(c, stream()?, e)?,
                other => return Err(format!("no call is named {other:?}")),
            })
        }
    }

    /// The recorded workspace, where it is enough for what this plugin has planned.
    fn workspace(&mut self, c: &Value, planned: u64) -> Result<abi::Span, String> {
        let span = self.span(&c["workspace"])?;
        if span.bytes >= planned {
            return Ok(span);
        }
        // The recorded plugin needed less. Calls of one stream run one after another and share; what is too small is still in use, and
        // goes with the stream. Each is twice the last, so that all of them are as much as two of the largest.
        let stream = word(&c["stream"])?;
        let last = self
            .scratch
            .get(&stream)
            .and_then(|all| all.last().copied());
        if let Some((h, _)) = last.filter(|(_, bytes)| *bytes >= planned) {
            return Ok(abi::Span {
                mem: h as Handle,
                offset: 0,
                bytes: planned,
            });
        }
        let bytes = last.map_or(planned, |(_, b)| planned.max(b.saturating_mul(2)));
        let f = slot!(self.s.plugin, device, mem_alloc);
        let (mut h, mut e) = (std::ptr::null_mut(), abi::Error::new());
        let device = self.handle(&c["d"], What::Device)?;
        // SAFETY: the device is alive; both pointers live for the call.
        let s = unsafe { f(device, abi::MEM_DEVICE, bytes, 256, &mut h, &mut e) };
        told("mem_alloc of a workspace", s, &e)?;
        let all = self.scratch.entry(stream).or_default();
        all.push((h as usize, bytes));
        Ok(abi::Span {
            mem: h,
            offset: 0,
            bytes: planned,
        })
    }

    fn prepare(&self, c: &Value, device: Handle, e: &mut abi::Error) -> Result<Status, String> {
        let layout = |v: &Value| -> Result<abi::Layout, String> {
            let mut l = abi::Layout {
                dtype: number(&v[0])?,
                flags: number(&v[1])?,
                ..abi::Layout::ABSENT
            };
            let (shape, stride): (Vec<&Value>, Vec<&Value>) =
                (list(&v[2]).collect(), list(&v[3]).collect());
            if shape.len() > 8 || shape.len() != stride.len() {
                return Err("a layout of more than 8 dims".into());
            }
            l.rank = shape.len() as u32;
            for (i, (a, b)) in shape.iter().zip(&stride).enumerate() {
                (l.shape[i], l.stride[i]) = (number(a)?, number(b)?);
            }
            Ok(l)
        };
        let operands: Vec<abi::Layout> =
            list(&c["operands"]).map(layout).collect::<Result<_, _>>()?;
        let params = bytes_of(&c["params"])?;
        let desc = abi::OpDesc {
            size: size_of::<abi::OpDesc>() as u32,
            op: number(&c["op"])?,
            op_revision: number(&c["revision"])?,
            n_operands: operands.len() as u32,
            operands: operands.as_ptr(),
            params: if params.is_empty() {
                std::ptr::null()
            } else {
                params.as_ptr().cast()
            },
            params_bytes: params.len() as u64,
            math_flags: number(&c["math"])?,
            reserved: 0,
        };
        // SAFETY: all-zero is a valid plan by R1.
        let mut plan: abi::OpPlan = unsafe { std::mem::zeroed() };
        plan.size = size_of::<abi::OpPlan>() as u32;
        let mut new = std::ptr::null_mut();
        let f = slot!(self.s.plugin, ops, op_prepare);
        // SAFETY: the device is alive; everything the descriptor names lives for the call.
        let s = unsafe { f(device, &desc, &mut new, &mut plan, e) };
        if s == abi::OK {
            self.keep(c, new, What::Op, plan.workspace_bytes)?;
        } else if c["status"].is_null() {
            let shown = list(&c["operands"]).map(|o| {
                format!(
                    "{}{}",
                    abi::DType::from_id(number(&o[0]).unwrap_or(0)).map_or("-", |d| d.name()),
                    o[2]
                )
            });
            let shown = shown.collect::<Vec<_>>().join(", ");
            return Err(format!(
                "{}({shown}): {}",
                c["name"].as_str().unwrap_or("?"),
                Error::from_record(s, "op_prepare", e)
            ));
        }
        Ok(s)
    }

    /// Joins a group: its first rank makes an id, which the others wait for.
    fn join(&self, c: &Value, device: Handle, e: &mut abi::Error) -> Result<Status, String> {
        let p = self.s.plugin;
        let key = c["id"].as_str().unwrap_or_default().to_string();
        let rank: i32 = number(&c["rank"])?;
        let id = if rank == 0 {
            let f = slot!(p, coll, unique_id);
            let mut len = 0u64;
            // SAFETY: cap 0 asks for the length; then the buffer has it.
            let id = unsafe {
                told(
                    "unique_id",
                    f(device, std::ptr::null_mut(), 0, &mut len, e),
                    e,
                )?;
                let mut id = vec![0u8; len as usize];
                told(
                    "unique_id",
                    f(device, id.as_mut_ptr().cast(), len, &mut len, e),
                    e,
                )?;
                id.truncate(len as usize);
                id
            };
            lock(&self.s.ids).insert(key, id.clone());
            self.s.came.notify_all();
            id
        } else {
            let until = Instant::now() + PATIENCE;
            let mut ids = lock(&self.s.ids);
            loop {
                if let Some(id) = ids.get(&key) {
                    break id.clone();
                }
                if self.s.stop.load(Ordering::Acquire) {
                    return Err("aborted: another rank has failed".into());
                }
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err("rank 0 of the group has not come".into());
                }
                let slice = left.min(Duration::from_millis(100));
                ids = self
                    .s
                    .came
                    .wait_timeout(ids, slice)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
        };
        let (prefix, name) = (
            c["prefix"].as_str().unwrap_or(""),
            c["name"].as_str().unwrap_or(""),
        );
        let cfg = abi::CommConfig {
            size: size_of::<abi::CommConfig>() as u32,
            rank,
            nranks: number(&c["size"])?,
            flags: 0,
            timeout_ns: number(&c["timeout_ns"])?,
            kv_prefix: Str::new(prefix),
            name: Str::new(name),
        };
        let mut new = std::ptr::null_mut();
        let f = slot!(p, coll, comm_init);
        // SAFETY: the device is alive; id, texts and configuration live for the call.
        let s = unsafe {
            f(
                device,
                id.as_ptr().cast(),
                id.len() as u64,
                &cfg,
                &mut new,
                e,
            )
        };
        if s == abi::OK {
            self.keep(c, new, What::Comm, 0)?;
        }
        Ok(s)
    }

    fn collective(&self, c: &Value, stream: Handle, e: &mut abi::Error) -> Result<Status, String> {
        let comm = self.handle(&c["of"], What::Comm)?;
        let mut lists: Vec<[Vec<u64>; 4]> = vec![];
        for m in list(&c["members"]) {
            let one =
                |i: usize| -> Result<Vec<u64>, String> { list(&m["lists"][i]).map(word).collect() };
            lists.push([one(0)?, one(1)?, one(2)?, one(3)?]);
        }
        let mut descs = vec![];
        for (m, l) in list(&c["members"]).zip(&lists) {
            let at = |l: &Vec<u64>| {
                if l.is_empty() {
                    std::ptr::null()
                } else {
                    l.as_ptr()
                }
            };
            descs.push(abi::CollDesc {
                size: size_of::<abi::CollDesc>() as u32,
                kind: number(&m["kind"])?,
                dtype: number(&m["dtype"])?,
                reduce: number(&m["reduce"])?,
                root: number(&m["root"])?,
                peer: number(&m["peer"])?,
                count: word(&m["count"])?,
                send: self.span(&m["send"])?,
                recv: self.span(&m["recv"])?,
                send_counts: at(&l[0]),
                send_offsets: at(&l[1]),
                recv_counts: at(&l[2]),
                recv_offsets: at(&l[3]),
                scale: m["scale"].as_f64().unwrap_or(0.0),
                scale_dev: abi::Span::NULL,
                flags: number(&m["flags"])?,
                reserved: 0,
                seq: word(&m["seq"])?,
            });
        }
        let f = slot!(self.s.plugin, coll, launch);
        // SAFETY: communicator and stream are alive; descriptors and their lists live for the call.
        Ok(unsafe { f(comm, stream, descs.as_ptr(), descs.len() as u32, e) })
    }

    /// Compares what has come back.
    fn read(&mut self, c: &Value) -> Result<(), String> {
        let m = self.map(&c["of"])?;
        let (offset, n) = (word(&c["offset"])?, word(&c["bytes"])?);
        if offset.checked_add(n).is_none_or(|e| e > m.bytes) {
            return Err(format!("bytes {offset}..+{n} of memory of {}", m.bytes));
        }
        // SAFETY: mapped for `m.bytes`; the wait that was recorded before this has been replayed.
        let got = unsafe {
            std::slice::from_raw_parts((m.address + offset as usize) as *const u8, n as usize)
        };
        let place = format!(
            "block {} ({n} bytes at {offset} of memory #{})",
            self.report.compared + 1,
            c["of"]
        );
        self.report.compared += 1;
        if let Some(hash) = c["hash"].as_str() {
            let same = blake3::hash(got).to_hex().as_str() == hash;
            match self.s.compare {
                _ if same => {}
                Compare::Bits => self
                    .report
                    .differs
                    .push(format!("{place}: other bytes (kept by hash only)")),
                Compare::Relative(_) => self.report.skipped += 1,
            }
            return Ok(());
        }
        let want = self.s.content(&c["content"])?;
        if let Some(why) = differs(want, got, self.s.compare) {
            self.report.differs.push(format!("{place}: {why}"));
        }
        Ok(())
    }
}
