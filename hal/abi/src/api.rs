//! The function tables: host services, plugin, device, ops, collectives. NULL slots are `None`.

use crate::consts::Status;
use crate::read::Sized32;
use crate::types::*;
use core::ffi::c_void;

/// Pointer to the caller's error record (may be NULL).
pub type ErrPtr = *mut Error;
/// A callback for `parallel_for`: `(arg, begin, end)`.
pub type RangeFn = unsafe extern "C" fn(*mut c_void, u64, u64);
/// A callback for `spawn`.
pub type SpawnFn = unsafe extern "C" fn(*mut c_void);
/// A callback for `stream_host_call`: `(arg, status)`.
pub type HostFn = unsafe extern "C" fn(*mut c_void, Status);

/// Services the host gives the plugin; they live until the process ends (R9).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Host {
    /// Bytes the writer knows (R1).
    pub size: u32,
    /// The host's minor.
    pub abi_minor: u32,
    /// Least minor it accepts.
    pub min_plugin_minor: u32,
    /// 0.
    pub reserved: u32,
    /// Passed back.
    pub ctx: *mut c_void,
    /// `(ctx, level, target, message)`; level 1 error … 5 trace.
    pub log: Option<unsafe extern "C" fn(*mut c_void, u32, Str, Str)>,
    /// `(ctx, key, out, cap, len)`; `NOT_READY` when unset.
    pub config_get:
        Option<unsafe extern "C" fn(*mut c_void, Str, *mut u8, u64, *mut u64) -> Status>,
    /// Key-value exchange between ranks.
    pub kv_set: Option<unsafe extern "C" fn(*mut c_void, Str, *const c_void, u64) -> Status>,
    /// `(ctx, key, out, cap, len, timeout_ns)`; waits.
    pub kv_get:
        Option<unsafe extern "C" fn(*mut c_void, Str, *mut c_void, u64, *mut u64, i64) -> Status>,
    /// `(ctx, n, grain, body, arg)` over the host's threads.
    pub parallel_for:
        Option<unsafe extern "C" fn(*mut c_void, u64, u64, RangeFn, *mut c_void) -> Status>,
    /// A long-lived host thread.
    pub spawn: Option<unsafe extern "C" fn(*mut c_void, SpawnFn, *mut c_void) -> Status>,
    /// Monotonic.
    pub now_ns: Option<unsafe extern "C" fn(*mut c_void) -> u64>,
    /// Non-zero: fail here (conformance kit only).
    pub fault_point: Option<unsafe extern "C" fn(*mut c_void, Str) -> u32>,
}

/// The plugin, filled into host-owned storage.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Plugin {
    /// Bytes the writer knows (R1).
    pub size: u32,
    /// The plugin's minor.
    pub abi_minor: u32,
    /// Least minor it accepts.
    pub min_host_minor: u32,
    /// 0.
    pub reserved: u32,
    /// Static text.
    pub name: Str,
    /// Static text.
    pub version: Str,
    /// Static text.
    pub vendor: Str,
    /// Passed back.
    pub self_: Handle,
    /// By id, or NULL.
    pub get_interface: Option<unsafe extern "C" fn(Handle, Str) -> *const c_void>,
    /// Quiesce threads.
    pub shutdown: Option<unsafe extern "C" fn(Handle, ErrPtr) -> Status>,
}

/// `crossweave_plugin_v1`.
pub type EntryFn = unsafe extern "C" fn(*const Host, *mut Plugin, ErrPtr) -> Status;
/// `crossweave_layer_v1`.
pub type LayerFn = unsafe extern "C" fn(*const Host, *const Plugin, *mut Plugin, ErrPtr) -> Status;
/// Interface ids.
pub const IFACE_DEVICE: &str = "crossweave.device/1";
/// See [`IFACE_DEVICE`].
pub const IFACE_OPS: &str = "crossweave.ops/1";
/// See [`IFACE_DEVICE`].
pub const IFACE_COLLECTIVE: &str = "crossweave.collective/1";
/// See [`IFACE_DEVICE`].
pub const IFACE_GRAPH: &str = "crossweave.graph/1";

/// `crossweave.device/1`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeviceApi {
    /// Bytes the writer knows (R1).
    pub size: u32,
    /// 0.
    pub minor: u32,
    /// `device_count` of the header.
    pub device_count: Option<unsafe extern "C" fn(Handle, *mut u32, ErrPtr) -> Status>,
    /// `device_open` of the header.
    pub device_open: Option<unsafe extern "C" fn(Handle, u32, *mut Handle, ErrPtr) -> Status>,
    /// `device_close` of the header.
    pub device_close: Option<unsafe extern "C" fn(Handle)>,
    /// `device_info` of the header.
    pub device_info: Option<unsafe extern "C" fn(Handle, *mut DeviceInfo, ErrPtr) -> Status>,
    /// `device_attr` of the header.
    pub device_attr:
        Option<unsafe extern "C" fn(Handle, Str, *mut c_void, u64, *mut u64, ErrPtr) -> Status>,
    /// `mem_alloc` of the header.
    pub mem_alloc:
        Option<unsafe extern "C" fn(Handle, u32, u64, u64, *mut Handle, ErrPtr) -> Status>,
    /// `mem_free` of the header.
    pub mem_free: Option<unsafe extern "C" fn(Handle)>,
    /// `mem_map` of the header.
    pub mem_map: Option<unsafe extern "C" fn(Handle, *mut *mut c_void, ErrPtr) -> Status>,
    /// `mem_import` of the header.
    pub mem_import:
        Option<unsafe extern "C" fn(Handle, *const Native, *mut Handle, ErrPtr) -> Status>,
    /// `mem_export` of the header.
    pub mem_export: Option<unsafe extern "C" fn(Handle, u32, *mut Native, ErrPtr) -> Status>,
    /// `stream_create` of the header.
    pub stream_create:
        Option<unsafe extern "C" fn(Handle, i32, u32, *mut Handle, ErrPtr) -> Status>,
    /// `stream_destroy` of the header.
    pub stream_destroy: Option<unsafe extern "C" fn(Handle)>,
    /// `stream_query` of the header.
    pub stream_query: Option<unsafe extern "C" fn(Handle, ErrPtr) -> Status>,
    /// `stream_sync` of the header.
    pub stream_sync: Option<unsafe extern "C" fn(Handle, i64, ErrPtr) -> Status>,
    /// `event_create` of the header.
    pub event_create: Option<unsafe extern "C" fn(Handle, u32, *mut Handle, ErrPtr) -> Status>,
    /// `event_destroy` of the header.
    pub event_destroy: Option<unsafe extern "C" fn(Handle)>,
    /// `event_record` of the header.
    pub event_record: Option<unsafe extern "C" fn(Handle, Handle, ErrPtr) -> Status>,
    /// `event_query` of the header.
    pub event_query: Option<unsafe extern "C" fn(Handle, ErrPtr) -> Status>,
    /// `event_sync` of the header.
    pub event_sync: Option<unsafe extern "C" fn(Handle, i64, ErrPtr) -> Status>,
    /// `event_elapsed` of the header.
    pub event_elapsed: Option<unsafe extern "C" fn(Handle, Handle, *mut u64, ErrPtr) -> Status>,
    /// `stream_wait_event` of the header.
    pub stream_wait_event: Option<unsafe extern "C" fn(Handle, Handle, ErrPtr) -> Status>,
    /// `stream_host_call` of the header.
    pub stream_host_call:
        Option<unsafe extern "C" fn(Handle, HostFn, *mut c_void, ErrPtr) -> Status>,
    /// `stream_wait_value` of the header.
    pub stream_wait_value: Option<unsafe extern "C" fn(Handle, Span, u64, ErrPtr) -> Status>,
    /// `stream_write_value` of the header.
    pub stream_write_value: Option<unsafe extern "C" fn(Handle, Span, u64, ErrPtr) -> Status>,
    /// `copy` of the header.
    pub copy: Option<unsafe extern "C" fn(Handle, Span, Span, ErrPtr) -> Status>,
    /// `copy_2d` of the header.
    pub copy_2d:
        Option<unsafe extern "C" fn(Handle, Span, u64, Span, u64, u64, u64, ErrPtr) -> Status>,
    /// `copy_peer` of the header.
    pub copy_peer: Option<unsafe extern "C" fn(Handle, Span, Span, ErrPtr) -> Status>,
    /// `fill` of the header.
    pub fill: Option<unsafe extern "C" fn(Handle, Span, u64, u32, ErrPtr) -> Status>,
    /// `peer_access` of the header.
    pub peer_access:
        Option<unsafe extern "C" fn(Handle, Handle, *mut u32, *mut u32, ErrPtr) -> Status>,
}

/// `crossweave.ops/1`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct OpsApi {
    /// Bytes the writer knows (R1).
    pub size: u32,
    /// 0.
    pub minor: u32,
    /// `op_prepare` of the header.
    pub op_prepare: Option<
        unsafe extern "C" fn(Handle, *const OpDesc, *mut Handle, *mut OpPlan, ErrPtr) -> Status,
    >,
    /// `op_launch` of the header.
    pub op_launch: Option<
        unsafe extern "C" fn(
            Handle,
            Handle,
            *const Span,
            u32,
            Span,
            *const c_void,
            u64,
            ErrPtr,
        ) -> Status,
    >,
    /// `op_release` of the header.
    pub op_release: Option<unsafe extern "C" fn(Handle)>,
}

/// `crossweave.collective/1`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CollectiveApi {
    /// Bytes the writer knows (R1).
    pub size: u32,
    /// 0.
    pub minor: u32,
    /// `unique_id` of the header.
    pub unique_id:
        Option<unsafe extern "C" fn(Handle, *mut c_void, u64, *mut u64, ErrPtr) -> Status>,
    /// `comm_init` of the header.
    pub comm_init: Option<
        unsafe extern "C" fn(
            Handle,
            *const c_void,
            u64,
            *const CommConfig,
            *mut Handle,
            ErrPtr,
        ) -> Status,
    >,
    /// `comm_split` of the header.
    pub comm_split: Option<
        unsafe extern "C" fn(Handle, i32, i32, *const CommConfig, *mut Handle, ErrPtr) -> Status,
    >,
    /// `comm_query` of the header.
    pub comm_query:
        Option<unsafe extern "C" fn(Handle, *const CollDesc, *mut CollSupport, ErrPtr) -> Status>,
    /// `comm_async_error` of the header.
    pub comm_async_error: Option<unsafe extern "C" fn(Handle, ErrPtr) -> Status>,
    /// `comm_abort` of the header.
    pub comm_abort: Option<unsafe extern "C" fn(Handle, ErrPtr) -> Status>,
    /// `comm_destroy` of the header.
    pub comm_destroy: Option<unsafe extern "C" fn(Handle)>,
    /// `launch` of the header.
    pub launch:
        Option<unsafe extern "C" fn(Handle, Handle, *const CollDesc, u32, ErrPtr) -> Status>,
    /// `launch_multi` of the header.
    pub launch_multi: Option<unsafe extern "C" fn(*const Launch, u32, ErrPtr) -> Status>,
    /// `mem_register` of the header.
    pub mem_register: Option<unsafe extern "C" fn(Handle, Span, *mut u64, ErrPtr) -> Status>,
    /// `mem_unregister` of the header.
    pub mem_unregister: Option<unsafe extern "C" fn(Handle, u64, ErrPtr) -> Status>,
    /// `topology` of the header.
    pub topology:
        Option<unsafe extern "C" fn(Handle, *mut c_void, u64, *mut u64, ErrPtr) -> Status>,
}

/// `crossweave.graph/1`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct GraphApi {
    /// Bytes the writer knows (R1).
    pub size: u32,
    /// 0.
    pub minor: u32,
    /// `capture_begin` of the header.
    pub capture_begin: Option<unsafe extern "C" fn(Handle, ErrPtr) -> Status>,
    /// `capture_end` of the header.
    pub capture_end: Option<unsafe extern "C" fn(Handle, *mut Handle, ErrPtr) -> Status>,
    /// `graph_launch` of the header.
    pub graph_launch: Option<unsafe extern "C" fn(Handle, Handle, ErrPtr) -> Status>,
    /// `graph_release` of the header.
    pub graph_release: Option<unsafe extern "C" fn(Handle)>,
}
// SAFETY: repr(C), size-prefixed; a zeroed slot is `None`.
unsafe impl Sized32 for Host {}
// SAFETY: tables of function pointers, immutable after the entry call; R7 states who may call from where.
unsafe impl Send for Host {}
// SAFETY: as above.
unsafe impl Sync for Host {}
// SAFETY: repr(C), size-prefixed; a zeroed slot is `None`.
unsafe impl Sized32 for Plugin {}
// SAFETY: tables of function pointers, immutable after the entry call; R7 states who may call from where.
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}
// SAFETY: repr(C), size-prefixed; a zeroed slot is `None`.
unsafe impl Sized32 for DeviceApi {}
// SAFETY: tables of function pointers, immutable after the entry call; R7 states who may call from where.
unsafe impl Send for DeviceApi {}
// SAFETY: as above.
unsafe impl Sync for DeviceApi {}
// SAFETY: repr(C), size-prefixed; a zeroed slot is `None`.
unsafe impl Sized32 for OpsApi {}
// SAFETY: tables of function pointers, immutable after the entry call; R7 states who may call from where.
unsafe impl Send for OpsApi {}
// SAFETY: as above.
unsafe impl Sync for OpsApi {}
// SAFETY: repr(C), size-prefixed; a zeroed slot is `None`.
unsafe impl Sized32 for CollectiveApi {}
// SAFETY: tables of function pointers, immutable after the entry call; R7 states who may call from where.
unsafe impl Send for CollectiveApi {}
// SAFETY: as above.
unsafe impl Sync for CollectiveApi {}
// SAFETY: repr(C), size-prefixed; a zeroed slot is `None`.
unsafe impl Sized32 for GraphApi {}
// SAFETY: tables of function pointers, immutable after the entry call; R7 states who may call from where.
unsafe impl Send for GraphApi {}
// SAFETY: as above.
unsafe impl Sync for GraphApi {}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Host>() == 88 && size_of::<Plugin>() == 88);
    assert!(size_of::<DeviceApi>() == 240 && offset_of!(DeviceApi, copy) == 200);
    assert!(size_of::<OpsApi>() == 32 && size_of::<CollectiveApi>() == 104);
    assert!(size_of::<GraphApi>() == 40);
};
