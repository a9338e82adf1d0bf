//! The functions of `crossweave.device/1` around a plugin's own.

use crate::call::Call;
use crate::object::{Facts, Kind, Object};
use crate::wrap::{Context, destroy, mem_facts, operand};
use crossweave_abi as abi;
use crossweave_abi::{DeviceApi, ErrPtr, Handle, HostFn, Native, Span, Status, Str};
use crossweave_plugin::export::{guard, timeout};
use crossweave_plugin::{Code, Error, Result};
use std::ffi::c_void;

/// The wrapped table: a slot is there where the plugin has it.
pub(crate) fn table(inner: &DeviceApi) -> DeviceApi {
    macro_rules! slots {
        ($($slot:ident)*) => {
            DeviceApi {
                size: size_of::<DeviceApi>() as u32,
                minor: inner.minor.min(abi::ABI_MINOR),
                $($slot: inner.$slot.map(|_| $slot as _),)*
            }
        };
    }
    slots!(device_count device_open device_close device_info device_attr mem_alloc mem_free mem_map mem_import mem_export
        stream_create stream_destroy stream_query stream_sync event_create event_destroy event_record event_query event_sync
        event_elapsed stream_wait_event stream_host_call stream_wait_value stream_write_value copy copy_2d copy_peer fill
        peer_access)
}

/// The plugin's own function; the wrapped table has the slot only where the plugin has it.
macro_rules! own {
    ($context:expr, $table:ident, $slot:ident) => {
        $context
            .inner
            .$table
            .as_ref()
            .and_then(|t| t.$slot)
            .ok_or_else(|| {
                Error::new(
                    Code::Unsupported,
                    concat!("the plugin has no ", stringify!($slot)),
                )
            })?
    };
}
pub(crate) use own;

/// One function: fetches the handles, runs the body, reports errors, stops panics.
macro_rules! wrapped {
    ($name:ident($($a:ident: $t:ty),* $(,)?) |$e:ident| $body:expr) => {
        pub(crate) unsafe extern "C" fn $name($($a: $t,)* $e: ErrPtr) -> Status {
            // SAFETY: the caller keeps R1-R8: handles are NULL or made by this layer, pointers are NULL or valid for the call. Handles are
            // checked before use; everything else goes on to the plugin as it came.
            unsafe { guard($e, stringify!($name), || -> Result<Status> { $body }) }
        }
    };
}
pub(crate) use wrapped;

/// Makes the handle of what a call has created.
///
/// # Safety
/// `out` is writable.
pub(crate) unsafe fn created(
    s: Status,
    out: *mut Handle,
    make: impl FnOnce(Handle) -> Handle,
    inner: Handle,
) -> Status {
    if s == abi::OK && !out.is_null() {
        // SAFETY: promised by the caller.
        unsafe { *out = if inner.is_null() { inner } else { make(inner) } };
    }
    s
}

wrapped!(device_count(h: Handle, n: *mut u32) |e| {
    let c = Context::of(h);
    let f = own!(c, device, device_count);
    c.around(&Call::DeviceCount, || f(c.inner.self_, n, e))
});

wrapped!(device_open(h: Handle, index: u32, out: *mut Handle) |e| {
    let c = Context::of(h);
    let f = own!(c, device, device_open);
    let (new, mut inner) = (c.fresh(), std::ptr::null_mut());
    let s = c.around(&Call::DeviceOpen { index, new }, || f(c.inner.self_, index, &mut inner, e))?;
    Ok(created(s, out, |i| Object::make(c, Kind::Device, i, new, 0, Facts::None), inner))
});

pub(crate) unsafe extern "C" fn device_close(h: Handle) {
    // SAFETY: as `wrapped`.
    unsafe {
        destroy(
            h,
            Kind::Device,
            |device| Call::DeviceClose { device },
            |o| {
                if let Some(f) = o.context.inner.device.as_ref().and_then(|t| t.device_close) {
                    f(o.inner)
                }
            },
        )
    }
}

wrapped!(device_info(h: Handle, out: *mut abi::DeviceInfo) |e| {
    let device = Object::of(h, Kind::Device)?;
    let f = own!(device.context, device, device_info);
    device.context.around(&Call::DeviceInfo { device }, || f(device.inner, out, e))
});

wrapped!(device_attr(h: Handle, key: Str, out: *mut c_void, cap: u64, len: *mut u64) |e| {
    let device = Object::of(h, Kind::Device)?;
    let f = own!(device.context, device, device_attr);
    let key_text = key.as_str().unwrap_or("?");
    let call = Call::DeviceAttr { device, key: key_text };
    device.context.around(&call, || f(device.inner, key, out, cap, len, e))
});

wrapped!(mem_alloc(h: Handle, kind: u32, bytes: u64, align: u64, out: *mut Handle) |e| {
    let device = Object::of(h, Kind::Device)?;
    let c = device.context;
    let f = own!(c, device, mem_alloc);
    let (new, mut inner) = (c.fresh(), std::ptr::null_mut());
    let call = Call::Alloc { device, new, kind, bytes, align };
    let s = c.around(&call, || f(device.inner, kind, bytes, align, &mut inner, e))?;
    Ok(created(s, out, |i| Object::make(c, Kind::Mem, i, new, device.id(), mem_facts(kind, bytes)), inner))
});

pub(crate) unsafe extern "C" fn mem_free(h: Handle) {
    // SAFETY: as `wrapped`.
    unsafe {
        destroy(
            h,
            Kind::Mem,
            |mem| Call::Free { mem },
            |o| {
                if let Some(f) = o.context.inner.device.as_ref().and_then(|t| t.mem_free) {
                    f(o.inner)
                }
            },
        )
    }
}

wrapped!(mem_map(h: Handle, out: *mut *mut c_void) |e| {
    let mem = Object::of(h, Kind::Mem)?;
    let f = own!(mem.context, device, mem_map);
    let mut p = std::ptr::null_mut();
    let s = mem.context.around(&Call::Map { mem }, || f(mem.inner, &mut p, e))?;
    if s == abi::OK && !out.is_null() {
        mem.mapped(p as usize);
        *out = p;
    }
    Ok(s)
});

wrapped!(mem_import(h: Handle, native: *const Native, out: *mut Handle) |e| {
    let device = Object::of(h, Kind::Device)?;
    let c = device.context;
    let f = own!(c, device, mem_import);
    let n = abi::read_desc::<Native>(native.cast()).map_err(|w| Error::new(Code::Unsupported, w))?;
    let (new, mut inner) = (c.fresh(), std::ptr::null_mut());
    let s = c.around(&Call::Import { device, new, native: n }, || f(device.inner, native, &mut inner, e))?;
    let facts = mem_facts(0, n.bytes);
    Ok(created(s, out, |i| Object::make(c, Kind::Mem, i, new, device.id(), facts), inner))
});

wrapped!(mem_export(h: Handle, native_type: u32, out: *mut Native) |e| {
    let mem = Object::of(h, Kind::Mem)?;
    let f = own!(mem.context, device, mem_export);
    mem.context.around(&Call::Export { mem, native_type }, || f(mem.inner, native_type, out, e))
});

wrapped!(stream_create(h: Handle, priority: i32, flags: u32, out: *mut Handle) |e| {
    let device = Object::of(h, Kind::Device)?;
    let c = device.context;
    let f = own!(c, device, stream_create);
    let (new, mut inner) = (c.fresh(), std::ptr::null_mut());
    let call = Call::StreamCreate { device, new, priority, flags };
    let s = c.around(&call, || f(device.inner, priority, flags, &mut inner, e))?;
    Ok(created(s, out, |i| Object::make(c, Kind::Stream, i, new, device.id(), Facts::None), inner))
});

pub(crate) unsafe extern "C" fn stream_destroy(h: Handle) {
    // SAFETY: as `wrapped`.
    unsafe {
        destroy(
            h,
            Kind::Stream,
            |stream| Call::StreamDestroy { stream },
            |o| {
                if let Some(f) = o
                    .context
                    .inner
                    .device
                    .as_ref()
                    .and_then(|t| t.stream_destroy)
                {
                    f(o.inner)
                }
            },
        )
    }
}

wrapped!(stream_query(h: Handle) |e| {
    let stream = Object::of(h, Kind::Stream)?;
    let f = own!(stream.context, device, stream_query);
    stream.context.around(&Call::StreamQuery { stream }, || f(stream.inner, e))
});

wrapped!(stream_sync(h: Handle, ns: i64) |e| {
    let stream = Object::of(h, Kind::Stream)?;
    let f = own!(stream.context, device, stream_sync);
    let call = Call::StreamSync { stream, timeout: timeout(ns) };
    stream.context.around(&call, || f(stream.inner, ns, e))
});

wrapped!(event_create(h: Handle, flags: u32, out: *mut Handle) |e| {
    let device = Object::of(h, Kind::Device)?;
    let c = device.context;
    let f = own!(c, device, event_create);
    let (new, mut inner) = (c.fresh(), std::ptr::null_mut());
    let s = c.around(&Call::EventCreate { device, new, flags }, || f(device.inner, flags, &mut inner, e))?;
    Ok(created(s, out, |i| Object::make(c, Kind::Event, i, new, device.id(), Facts::None), inner))
});

pub(crate) unsafe extern "C" fn event_destroy(h: Handle) {
    // SAFETY: as `wrapped`.
    unsafe {
        destroy(
            h,
            Kind::Event,
            |event| Call::EventDestroy { event },
            |o| {
                if let Some(f) = o
                    .context
                    .inner
                    .device
                    .as_ref()
                    .and_then(|t| t.event_destroy)
                {
                    f(o.inner)
                }
            },
        )
    }
}

wrapped!(event_record(h: Handle, s: Handle) |e| {
    let (event, stream) = (Object::of(h, Kind::Event)?, Object::of(s, Kind::Stream)?);
    let f = own!(event.context, device, event_record);
    event.context.around(&Call::EventRecord { event, stream }, || f(event.inner, stream.inner, e))
});

wrapped!(event_query(h: Handle) |e| {
    let event = Object::of(h, Kind::Event)?;
    let f = own!(event.context, device, event_query);
    event.context.around(&Call::EventQuery { event }, || f(event.inner, e))
});

wrapped!(event_sync(h: Handle, ns: i64) |e| {
    let event = Object::of(h, Kind::Event)?;
    let f = own!(event.context, device, event_sync);
    let call = Call::EventSync { event, timeout: timeout(ns) };
    event.context.around(&call, || f(event.inner, ns, e))
});

wrapped!(event_elapsed(a: Handle, b: Handle, ns: *mut u64) |e| {
    let (from, to) = (Object::of(a, Kind::Event)?, Object::of(b, Kind::Event)?);
    let f = own!(from.context, device, event_elapsed);
    from.context.around(&Call::EventElapsed { from, to }, || f(from.inner, to.inner, ns, e))
});

wrapped!(stream_wait_event(s: Handle, h: Handle) |e| {
    let (stream, event) = (Object::of(s, Kind::Stream)?, Object::of(h, Kind::Event)?);
    let f = own!(stream.context, device, stream_wait_event);
    stream.context.around(&Call::WaitEvent { stream, event }, || f(stream.inner, event.inner, e))
});

wrapped!(stream_host_call(s: Handle, body: HostFn, arg: *mut c_void) |e| {
    let stream = Object::of(s, Kind::Stream)?;
    let f = own!(stream.context, device, stream_host_call);
    stream.context.around(&Call::HostCall { stream }, || f(stream.inner, body, arg, e))
});

wrapped!(stream_wait_value(s: Handle, w: Span, at_least: u64) |e| {
    let stream = Object::of(s, Kind::Stream)?;
    let f = own!(stream.context, device, stream_wait_value);
    let (word, span) = operand(w)?;
    let call = Call::WaitValue { stream, word, at_least };
    stream.context.around(&call, || f(stream.inner, span, at_least, e))
});

wrapped!(stream_write_value(s: Handle, w: Span, value: u64) |e| {
    let stream = Object::of(s, Kind::Stream)?;
    let f = own!(stream.context, device, stream_write_value);
    let (word, span) = operand(w)?;
    let call = Call::WriteValue { stream, word, value };
    stream.context.around(&call, || f(stream.inner, span, value, e))
});

wrapped!(copy(s: Handle, d: Span, r: Span) |e| {
    let stream = Object::of(s, Kind::Stream)?;
    let f = own!(stream.context, device, copy);
    let ((dst, to), (src, from)) = (operand(d)?, operand(r)?);
    stream.context.around(&Call::Copy { stream, dst, src }, || f(stream.inner, to, from, e))
});

wrapped!(copy_2d(s: Handle, d: Span, dpitch: u64, r: Span, spitch: u64, width: u64, height: u64) |e| {
    let stream = Object::of(s, Kind::Stream)?;
    let f = own!(stream.context, device, copy_2d);
    let ((dst, to), (src, from)) = (operand(d)?, operand(r)?);
    let call = Call::Copy2d { stream, dst, dpitch, src, spitch, width, height };
    stream.context.around(&call, || f(stream.inner, to, dpitch, from, spitch, width, height, e))
});

wrapped!(copy_peer(s: Handle, d: Span, r: Span) |e| {
    let stream = Object::of(s, Kind::Stream)?;
    let f = own!(stream.context, device, copy_peer);
    let ((dst, to), (src, from)) = (operand(d)?, operand(r)?);
    stream.context.around(&Call::CopyPeer { stream, dst, src }, || f(stream.inner, to, from, e))
});

wrapped!(fill(s: Handle, d: Span, pattern: u64, pattern_bytes: u32) |e| {
    let stream = Object::of(s, Kind::Stream)?;
    let f = own!(stream.context, device, fill);
    let (dst, to) = operand(d)?;
    let call = Call::Fill { stream, dst, pattern, pattern_bytes };
    stream.context.around(&call, || f(stream.inner, to, pattern, pattern_bytes, e))
});

wrapped!(peer_access(a: Handle, b: Handle, flags: *mut u32, gbps: *mut u32) |e| {
    let (from, to) = (Object::of(a, Kind::Device)?, Object::of(b, Kind::Device)?);
    let f = own!(from.context, device, peer_access);
    from.context.around(&Call::PeerAccess { from, to }, || f(from.inner, to.inner, flags, gbps, e))
});
