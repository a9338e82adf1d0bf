//! A run's calls as one file: every call with its arguments, the bytes that went to the device, and those that came back. `crossweave replay`
//! makes the same calls on another plugin without model or data, and compares what comes back: a vendor has a user's bug on his desk.
//!
//! Contents of what the device reads from host memory are taken when the call is made; what it writes there is taken when the host has
//! waited for it. What cannot be recorded this way is refused: memory imported from elsewhere (offload), host calls, split communicators.

use crate::call::{Call, OpFacts, Operand};
use crate::object::{Facts, Kind};
use crate::tape::Writer;
use crate::wrap::Layer;
use crossweave_abi as abi;
use crossweave_abi::{Handle, Status};
use crossweave_plugin::{Code, Error, Result};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes that came back of which the contents are kept; of more the hash, which can be compared bitwise only.
const KEPT: u64 = 1 << 22;

/// Something on its way to the host.
struct Back {
    mem: u64,
    address: usize,
    offset: u64,
    bytes: u64,
    /// The call on its stream.
    call: u64,
}

#[derive(Default)]
struct Lane {
    device: u64,
    calls: u64,
    back: Vec<Back>,
}

struct State {
    file: Writer,
    told: bool,
    devices: u64,
    streams: HashMap<u64, Lane>,
    /// Latest record of an event: stream and calls.
    events: HashMap<u64, (u64, u64)>,
    /// Host memory that a stream will write, and that stream's own handle.
    written: HashMap<u64, usize>,
}

/// The layer.
pub struct Record(Mutex<State>);

impl Record {
    /// Writes to `path`.
    ///
    /// # Errors
    /// A file that cannot be made.
    pub fn to(path: &Path) -> std::io::Result<Record> {
        Ok(Record(Mutex::new(State {
            file: Writer::to(path)?,
            told: false,
            devices: 0,
            streams: HashMap::new(),
            events: HashMap::new(),
            written: HashMap::new(),
        })))
    }
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the device has written what is to be read from host memory.
    fn settle(&self, o: &Operand<'_>) {
        let Some(m) = o.mem else { return };
        let stream = self.lock().written.remove(&m.id());
        let sync = m.context.inner.device.as_ref().and_then(|t| t.stream_sync);
        if let (Some(s), Some(f)) = (stream, sync) {
            // SAFETY: the stream is forgotten when it is destroyed, which the host does after its work. A failure is the caller's to meet.
            unsafe { f(s as Handle, -1, std::ptr::null_mut()) };
        }
    }
}

/// The bytes of an operand in host memory.
fn bytes<'a>(o: &Operand<'a>) -> Option<&'a [u8]> {
    let m = o.mem?;
    let from = m.address()?.checked_add(o.offset as usize)?;
    let end = o.offset.checked_add(o.bytes)?;
    if end > m.bytes() {
        return None;
    }
    // SAFETY: mapped for its length, which was checked; who enqueues a copy from it has written it before.
    Some(unsafe { std::slice::from_raw_parts(from as *const u8, o.bytes as usize) })
}

pub(crate) fn span(o: &Operand<'_>) -> Value {
    match o.mem {
        Some(m) => json!([m.id(), o.offset, o.bytes]),
        None => Value::Null,
    }
}

pub(crate) fn hex(b: &[u8]) -> String {
    b.iter().map(|x| format!("{x:02x}")).collect()
}

fn op(f: &OpFacts) -> Value {
    let layout = |l: &abi::Layout| {
        let r = l.rank as usize;
        json!([l.dtype, l.flags, l.shape[..r], l.stride[..r]])
    };
    json!({
        "op": f.op, "name": f.name(), "revision": f.revision, "operands": f.operands.iter().map(layout).collect::<Vec<_>>(),
        "params": hex(&f.params), "math": f.math_flags,
    })
}

/// A call's arguments; `None`: nothing that a replay repeats.
fn told(call: &Call<'_>) -> Option<Value> {
    Some(match call {
        Call::DeviceOpen { index, new } => json!({"index": index, "new": new}),
        Call::DeviceClose { .. } => json!({}),
        Call::Alloc {
            new,
            kind,
            bytes,
            align,
            ..
        } => json!({"new": new, "kind": kind, "bytes": bytes, "align": align}),
        Call::Free { mem } => json!({"of": mem.id()}),
        Call::Map { mem } => json!({"of": mem.id()}),
        Call::StreamCreate { new, priority, .. } => json!({"new": new, "priority": priority}),
        Call::StreamDestroy { stream } | Call::StreamSync { stream, .. } => {
            json!({"of": stream.id()})
        }
        Call::EventCreate { new, .. } => json!({"new": new}),
        Call::EventDestroy { event } | Call::EventSync { event, .. } => json!({"of": event.id()}),
        Call::EventRecord { event, stream } | Call::WaitEvent { stream, event } => {
            json!({"stream": stream.id(), "event": event.id()})
        }
        Call::WaitValue {
            stream,
            word,
            at_least,
        } => json!({"stream": stream.id(), "word": span(word), "value": at_least}),
        Call::WriteValue {
            stream,
            word,
            value,
        } => json!({"stream": stream.id(), "word": span(word), "value": value}),
        Call::Copy { stream, dst, src } | Call::CopyPeer { stream, dst, src } => {
            json!({"stream": stream.id(), "dst": span(dst), "src": span(src)})
        }
        Call::Copy2d {
            stream,
            dst,
            dpitch,
            src,
            spitch,
            width,
            height,
        } => json!({
            "stream": stream.id(), "dst": span(dst), "dpitch": dpitch, "src": span(src), "spitch": spitch, "width": width,
            "height": height,
        }),
        Call::Fill {
            stream,
            dst,
            pattern,
            pattern_bytes,
        } => {
            json!({"stream": stream.id(), "dst": span(dst), "pattern": pattern, "pattern_bytes": pattern_bytes})
        }
        Call::Prepare { new, op: f, .. } => {
            let mut v = op(f);
            v["new"] = json!(new);
            v
        }
        Call::Launch {
            op,
            stream,
            operands,
            workspace,
            dynamic,
        } => json!({
            "of": op.id(), "stream": stream.id(), "operands": operands.iter().map(span).collect::<Vec<_>>(),
            "workspace": span(workspace), "dynamic": hex(dynamic),
        }),
        Call::Release { op } => json!({"of": op.id()}),
        Call::CommInit {
            new,
            id,
            rank,
            size,
            timeout_ns,
            prefix,
            name,
            ..
        } => json!({
            "new": new, "id": hex(id), "rank": rank, "size": size, "timeout_ns": timeout_ns, "prefix": prefix, "name": name,
        }),
        Call::CommAbort { comm } | Call::CommDestroy { comm } => json!({"of": comm.id()}),
        Call::Collective {
            comm,
            stream,
            members,
        } => {
            let one = |m: &crate::Member<'_>| {
                let d = &m.desc;
                json!({
                    "kind": d.kind, "dtype": d.dtype, "reduce": d.reduce, "root": d.root, "peer": d.peer, "count": d.count,
                    "send": span(&m.send), "recv": span(&m.recv), "scale": d.scale, "flags": d.flags, "seq": d.seq,
                    "lists": [m.send_counts, m.send_offsets, m.recv_counts, m.recv_offsets],
                })
            };
            json!({"of": comm.id(), "stream": stream.id(), "members": members.iter().map(one).collect::<Vec<_>>()})
        }
        // Queries answer what they answer; one by which bytes come back is recorded as a wait (`polled`).
        Call::StreamQuery { .. } | Call::EventQuery { .. } => return None,
        _ => return None,
    })
}

/// What the device reads and writes of host memory.
fn on_host<'a>(call: &Call<'a>) -> (Vec<Operand<'a>>, Vec<Operand<'a>>) {
    let host = |o: &Operand<'a>| o.mem.is_some_and(|m| m.on_host()) && o.bytes > 0;
    let (reads, writes): (Vec<Operand<'a>>, Vec<Operand<'a>>) = match call {
        Call::Copy { dst, src, .. }
        | Call::Copy2d { dst, src, .. }
        | Call::CopyPeer { dst, src, .. } => (vec![*src], vec![*dst]),
        Call::Fill { dst, .. } | Call::WriteValue { word: dst, .. } => (vec![], vec![*dst]),
        Call::Launch { op, operands, .. } => {
            let writes = |i: usize| match op.facts() {
                Facts::Op { op, .. } => op.request().writes(i),
                _ => true,
            };
            let written = operands
                .iter()
                .enumerate()
                .filter(|(i, _)| writes(*i))
                .map(|(_, o)| *o);
            (operands.to_vec(), written.collect())
        }
        Call::Collective { members, .. } => (
            members.iter().map(|m| m.send).collect(),
            members.iter().map(|m| m.recv).collect(),
        ),
        _ => (vec![], vec![]),
    };
    (
        reads.into_iter().filter(host).collect(),
        writes.into_iter().filter(host).collect(),
    )
}

impl State {
    /// Whether call `upto` of a stream, and those before it, bring bytes that have not been taken.
    fn brings(&self, stream: u64, upto: u64) -> bool {
        let lane = self.streams.get(&stream);
        lane.is_some_and(|lane| lane.back.iter().any(|b| b.call <= upto))
    }

    /// What has come back on a stream by its call `upto`.
    fn came_back(&mut self, stream: u64, upto: u64) {
        let Some(lane) = self.streams.get_mut(&stream) else {
            return;
        };
        let (done, left): (Vec<Back>, Vec<Back>) = std::mem::take(&mut lane.back)
            .into_iter()
            .partition(|b| b.call <= upto);
        // What is being written over again is not what this copy has brought.
        let again = |b: &Back| {
            let hit = |l: &&Back| {
                l.mem == b.mem && l.offset < b.offset + b.bytes && b.offset < l.offset + l.bytes
            };
            left.iter().any(|l| hit(&l)) || done.iter().any(|l| l.call > b.call && hit(&l))
        };
        let mut all = vec![];
        for b in done.iter().filter(|b| !again(b)) {
            // SAFETY: bounds were checked when the copy was enqueued; the host has waited for it, and frees the memory later.
            let bytes = unsafe {
                std::slice::from_raw_parts(
                    (b.address + b.offset as usize) as *const u8,
                    b.bytes as usize,
                )
            };
            all.push((b.mem, b.offset, bytes.to_vec()));
        }
        lane.back = left;
        let device = lane.device;
        for (mem, offset, bytes) in all {
            let n = bytes.len() as u64;
            let v = match n <= KEPT {
                true => {
                    json!({"c": "read", "d": device, "of": mem, "offset": offset, "bytes": n, "content": self.file.content(&bytes)})
                }
                false => {
                    json!({"c": "read", "d": device, "of": mem, "offset": offset, "bytes": n, "hash": blake3::hash(&bytes).to_hex().as_str()})
                }
            };
            self.file.call(&v);
        }
    }
}

impl State {
    /// What the call changes: the handles there are, and which calls write what of the host's memory.
    fn note(&mut self, call: &Call<'_>, writes: &[Operand<'_>], s: Status) {
        match call {
            Call::DeviceOpen { .. } if s == abi::OK => self.devices += 1,
            Call::DeviceClose { .. } => self.devices = self.devices.saturating_sub(1),
            Call::StreamDestroy { stream } => {
                self.streams.remove(&stream.id());
                let own = stream.inner as usize;
                self.written.retain(|_, s| *s != own);
            }
            Call::EventRecord { event, stream } if s == abi::OK => {
                let calls = self.streams.get(&stream.id()).map_or(0, |l| l.calls);
                self.events.insert(event.id(), (stream.id(), calls));
            }
            Call::EventDestroy { event } => {
                self.events.remove(&event.id());
            }
            Call::Free { mem } => {
                self.written.remove(&mem.id());
                for lane in self.streams.values_mut() {
                    lane.back.retain(|b| b.mem != mem.id());
                }
            }
            _ => {}
        }
        if let (Some(stream), true) = (call.stream(), s == abi::OK) {
            let lane = self.streams.entry(stream.id()).or_default();
            lane.device = stream.device();
            lane.calls += 1;
            for o in writes {
                let Some(m) = o.mem.filter(|m| m.kind() == Kind::Mem) else {
                    continue;
                };
                let (Some(address), true) = (m.address(), o.offset + o.bytes <= m.bytes()) else {
                    continue;
                };
                self.written.insert(m.id(), stream.inner as usize);
                lane.back.push(Back {
                    mem: m.id(),
                    address,
                    offset: o.offset,
                    bytes: o.bytes,
                    call: lane.calls,
                });
            }
        }
    }
}

/// The wait that a query amounts to when it answers that all is done: the call's slot and the handle it waits for.
fn polled(call: &Call<'_>) -> Option<(&'static str, u64)> {
    match call {
        Call::StreamQuery { stream } => Some(("stream_sync", stream.id())),
        Call::EventQuery { event } => Some(("event_sync", event.id())),
        _ => None,
    }
}

impl Layer for Record {
    fn name(&self) -> &'static str {
        "record"
    }

    fn around(&self, call: &Call<'_>, next: &mut dyn FnMut() -> Status) -> Result<Status> {
        let refuse = |what: &str| {
            Err(Error::new(
                Code::Unsupported,
                format!("record: {what} cannot be recorded"),
            ))
        };
        match call {
            Call::Import { .. } => return refuse("memory of another device (offload, host ops)"),
            Call::HostCall { .. } => return refuse("a call of the host on a stream"),
            Call::CommSplit { .. } => return refuse("a split communicator"),
            _ => {}
        }
        let (reads, writes) = on_host(call);
        reads.iter().for_each(|o| self.settle(o));
        // Before the call: afterwards its owner may write anew.
        let sent: Vec<(Value, String)> = {
            let mut st = self.lock();
            reads
                .iter()
                .filter_map(|o| Some((span(o), st.file.content(bytes(o)?))))
                .collect()
        };
        let began = {
            let st = self.lock();
            match call {
                Call::StreamSync { stream, .. } | Call::StreamQuery { stream } => {
                    st.streams.get(&stream.id()).map(|l| (stream.id(), l.calls))
                }
                Call::EventSync { event, .. } | Call::EventQuery { event } => {
                    st.events.get(&event.id()).copied()
                }
                _ => None,
            }
        };
        // The end of a handle is recorded before: another thread may be given its number's place right after.
        let ends = matches!(
            call,
            Call::DeviceClose { .. }
                | Call::Free { .. }
                | Call::StreamDestroy { .. }
                | Call::EventDestroy { .. }
                | Call::Release { .. }
                | Call::CommDestroy { .. }
        );
        let tell = |st: &mut State, s: Status| {
            if let Some(mut v) = told(call) {
                v["c"] = json!(call.slot());
                v["d"] = json!(call.device());
                if s != abi::OK {
                    v["status"] = json!(s);
                }
                if !sent.is_empty() {
                    v["sent"] = json!(sent);
                }
                st.file.call(&v);
            }
        };
        if ends {
            tell(&mut self.lock(), abi::OK);
        }
        let s = next();
        let mut st = self.lock();
        let st = &mut *st;
        if !ends {
            tell(st, s);
        }
        st.note(call, &writes, s);
        if let (Some((stream, upto)), true) = (began, s == abi::OK) {
            // A query by which the host learns that bytes have come back is replayed as a wait.
            if let Some((slot, of)) = polled(call).filter(|_| st.brings(stream, upto)) {
                st.file
                    .call(&json!({"c": slot, "d": call.device(), "of": of}));
            }
            st.came_back(stream, upto);
            st.file.flush();
        }
        if st.devices == 0 {
            st.file.end();
        }
        if let Some(e) = st.file.broken.as_ref().filter(|_| !st.told) {
            st.told = true;
            return Err(Error::new(
                Code::Internal,
                format!(
                    "record: the file cannot be written: {e}; fix: {}",
                    crossweave_files::fix(e)
                ),
            ));
        }
        Ok(s)
    }
}
