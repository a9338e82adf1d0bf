//! `crossweave.device/1` from the [`Backend`] trait.

use super::Declared;
use super::wire::*;
use crate::{Code, Info, MemKind, Result, fail};
use crossweave_abi as abi;
use crossweave_abi::{Handle, HostFn, Span, Str};
use std::ffi::c_void;

slot!(device_count(_self: Handle, n: *mut u32) |b| put(n, "the count", b.device_count()?)?);
slot!(device_open(_self: Handle, index: u32, out: *mut Handle) |b| {
    writable(out, "the device")?;
    put(out, "the device", boxed(b.open(index)?))?
});
slot!(device_info(d: Handle, out: *mut abi::DeviceInfo) |b| {
    put_sized(out, "device_info", record(b.info(obj(d, "device")?)?))?
});
slot!(device_attr(d: Handle, key: Str, out: *mut c_void, cap: u64, len: *mut u64) |b| {
    let key = text(key, "the attribute's key")?;
    put_bytes(out, cap, len, key, &b.attr(obj(d, "device")?, key)?)?
});
slot!(mem_alloc(d: Handle, kind: u32, bytes: u64, align: u64, out: *mut Handle) |b| {
    writable(out, "the memory")?;
    put(out, "the memory", boxed(b.alloc(obj(d, "device")?, mem_kind(kind)?, bytes, align)?))?
});
slot!(mem_map(m: Handle, out: *mut *mut c_void) |b| {
    put(out, "the address", b.map(obj(m, "memory")?)?.cast())?
});
slot!(mem_import(d: Handle, native: *const abi::Native, out: *mut Handle) |b| {
    writable(out, "the memory")?;
    put(out, "the memory", boxed(b.import(obj(d, "device")?, &desc(native, "native object")?)?))?
});
slot!(mem_export(m: Handle, native_type: u32, out: *mut abi::Native) |b| {
    writable(out, "the native object")?;
    put_sized(out, "the native object", b.export(obj(m, "memory")?, native_type)?)?
});
slot!(stream_create(d: Handle, priority: i32, flags: u32, out: *mut Handle) |b| {
    no_flags(flags, "stream_create")?;
    writable(out, "the stream")?;
    put(out, "the stream", boxed(b.stream(obj(d, "device")?, priority)?))?
});
slot!(stream_query(s: Handle) |b| b.stream_query(obj(s, "stream")?)?);
slot!(stream_sync(s: Handle, timeout_ns: i64) |b| {
    b.stream_sync(obj(s, "stream")?, timeout(timeout_ns))?
});
slot!(event_create(d: Handle, flags: u32, out: *mut Handle) |b| {
    no_flags(flags, "event_create")?;
    writable(out, "the event")?;
    put(out, "the event", boxed(b.event(obj(d, "device")?)?))?
});
slot!(event_record(v: Handle, s: Handle) |b| b.record(obj(v, "event")?, obj(s, "stream")?)?);
slot!(event_query(v: Handle) |b| b.event_query(obj(v, "event")?)?);
slot!(event_sync(v: Handle, timeout_ns: i64) |b| {
    b.event_sync(obj(v, "event")?, timeout(timeout_ns))?
});
slot!(event_elapsed(from: Handle, to: Handle, ns: *mut u64) |b| {
    put(ns, "the time", b.elapsed(obj(from, "event")?, obj(to, "event")?)?)?
});
slot!(stream_wait_event(s: Handle, v: Handle) |b| {
    b.wait_event(obj(s, "stream")?, obj(v, "event")?)?
});
slot!(stream_host_call(s: Handle, f: HostFn, arg: *mut c_void) |b| {
    let call = HostArg { f, arg };
    b.host_call(obj(s, "stream")?, Box::new(move |r| call.run(r)))?
});
slot!(stream_wait_value(s: Handle, word: Span, at_least: u64) |b| {
    b.wait_value(obj(s, "stream")?, span::<B>(word, "word")?, at_least)?
});
slot!(stream_write_value(s: Handle, word: Span, value: u64) |b| {
    b.write_value(obj(s, "stream")?, span::<B>(word, "word")?, value)?
});
slot!(copy(s: Handle, dst: Span, src: Span) |b| {
    b.copy(obj(s, "stream")?, span::<B>(dst, "destination")?, span::<B>(src, "source")?)?
});
slot!(copy_2d(s: Handle, dst: Span, dpitch: u64, src: Span, spitch: u64, width: u64, height: u64) |b| {
    b.copy_2d(
        obj(s, "stream")?,
        span::<B>(dst, "destination")?,
        dpitch,
        span::<B>(src, "source")?,
        spitch,
        width,
        height,
    )?
});
slot!(copy_peer(s: Handle, dst: Span, src: Span) |b| {
    b.copy_peer(obj(s, "stream")?, span::<B>(dst, "destination")?, span::<B>(src, "source")?)?
});
slot!(fill(s: Handle, dst: Span, pattern: u64, pattern_bytes: u32) |b| {
    if !matches!(pattern_bytes, 1 | 2 | 4 | 8) {
        return fail(Code::Invalid, format!("a pattern of {pattern_bytes} bytes: give 1, 2, 4 or 8"));
    }
    b.fill(obj(s, "stream")?, span::<B>(dst, "destination")?, pattern, pattern_bytes)?
});
slot!(peer_access(from: Handle, to: Handle, flags: *mut u32, gbps: *mut u32) |b| {
    let (f, g) = b.peer_access(obj(from, "device")?, obj(to, "device")?)?;
    put(flags, "the flags", f)?;
    put(gbps, "the speed", g)?
});

/// The host's callback, carried to the stream's thread.
struct HostArg {
    f: HostFn,
    arg: *mut c_void,
}
// SAFETY: the host hands `arg` over to whichever thread runs the stream; it is used once.
unsafe impl Send for HostArg {}
impl HostArg {
    fn run(self, r: Result<()>) {
        let status = r.map_or_else(|e| e.code.status(), |()| abi::OK);
        // SAFETY: the host keeps `arg` alive until this one call.
        unsafe { (self.f)(self.arg, status) }
    }
}

fn mem_kind(kind: u32) -> Result<MemKind> {
    match kind {
        abi::MEM_DEVICE => Ok(MemKind::Device),
        abi::MEM_HOST_PINNED => Ok(MemKind::HostPinned),
        abi::MEM_SYMMETRIC => Ok(MemKind::Symmetric),
        x => fail(Code::Unsupported, format!("memory kind {x}")),
    }
}

fn record(i: Info) -> abi::DeviceInfo {
    let mut r = abi::DeviceInfo {
        size: size_of::<abi::DeviceInfo>() as u32,
        kind: i.kind,
        mem_total: i.mem_total,
        mem_free: i.mem_free,
        caps: i.caps,
        numa_node: i.numa_node,
        align: i.align,
        uuid: i.uuid,
        name: [0; 64],
        pci_bus_id: [0; 24],
        arch: [0; 24],
    };
    fill_text(&mut r.name, &i.name);
    fill_text(&mut r.pci_bus_id, &i.pci_bus_id);
    fill_text(&mut r.arch, &i.arch);
    r
}

/// The table; a NULL slot for every optional method the backend does not claim.
pub(super) const fn table<B: Declared>() -> abi::DeviceApi {
    macro_rules! opt {
        ($flag:ident, $f:ident) => {
            if B::OPTIONAL.$flag {
                Some($f::<B>)
            } else {
                None
            }
        };
    }
    abi::DeviceApi {
        size: size_of::<abi::DeviceApi>() as u32,
        minor: 0,
        device_count: Some(device_count::<B>),
        device_open: Some(device_open::<B>),
        device_close: Some(drop_as::<B::Device>),
        device_info: Some(device_info::<B>),
        device_attr: opt!(attr, device_attr),
        mem_alloc: Some(mem_alloc::<B>),
        mem_free: Some(drop_as::<B::Mem>),
        mem_map: Some(mem_map::<B>),
        mem_import: opt!(import, mem_import),
        mem_export: opt!(export, mem_export),
        stream_create: Some(stream_create::<B>),
        stream_destroy: Some(drop_as::<B::Stream>),
        stream_query: Some(stream_query::<B>),
        stream_sync: Some(stream_sync::<B>),
        event_create: Some(event_create::<B>),
        event_destroy: Some(drop_as::<B::Event>),
        event_record: Some(event_record::<B>),
        event_query: Some(event_query::<B>),
        event_sync: Some(event_sync::<B>),
        event_elapsed: opt!(elapsed, event_elapsed),
        stream_wait_event: Some(stream_wait_event::<B>),
        stream_host_call: opt!(host_call, stream_host_call),
        stream_wait_value: opt!(wait_value, stream_wait_value),
        stream_write_value: opt!(write_value, stream_write_value),
        copy: Some(copy::<B>),
        copy_2d: Some(copy_2d::<B>),
        copy_peer: opt!(copy_peer, copy_peer),
        fill: Some(fill::<B>),
        peer_access: opt!(peer_access, peer_access),
    }
}
