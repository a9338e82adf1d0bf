//! ACL, the run time of Ascend (`libascendcl`): its functions and numbers that the back end uses.
//!
//! Declarations are held against the headers of ACL 1.17 where these are at hand (`headers.rs`); what calls mean is from the documents of
//! `hicann/runtime`.

use crossweave_gpu::library::Wanted;
use crossweave_gpu::{Handle, Status};
use std::ffi::{c_char, c_void};

/// A function that a stream calls on a thread of its own.
pub(crate) type HostFn = unsafe extern "C" fn(*mut c_void);

pub(crate) const WANTED: Wanted = Wanted {
    what: "Ascend run time",
    key: "ascend.libascendcl",
    names: &["libascendcl.so"],
    fix: "install CANN's toolkit and source its set_env.sh, which sets ASCEND_HOME_PATH (in a container: start it with /dev/davinci* and the driver's folder)",
};

/// `aclrtMemcpyKind`.
pub(crate) mod copy {
    pub(crate) const HOST_TO_DEVICE: i32 = 1;
    pub(crate) const DEVICE_TO_HOST: i32 = 2;
    pub(crate) const DEVICE_TO_DEVICE: i32 = 3;
}
/// `ACL_MEM_MALLOC_HUGE_FIRST`.
pub(crate) const HUGE_FIRST: i32 = 0;
/// `ACL_HBM_MEM`.
pub(crate) const HBM: i32 = 1;
/// `ACL_EVENT_SYNC` and `ACL_EVENT_TIME_LINE`: an event that streams wait for and that takes times.
pub(crate) const EVENT_FLAGS: u32 = 1 | 8;
/// `ACL_EVENT_RECORDED_STATUS_COMPLETE`.
pub(crate) const EVENT_COMPLETE: i32 = 1;
/// `ACL_STREAM_FAST_LAUNCH` and `ACL_STREAM_FAST_SYNC`.
pub(crate) const STREAM_FLAGS: u32 = 1 | 2;
/// `ACL_STREAM_STATUS_COMPLETE`: the other way round than an event's.
pub(crate) const STREAM_COMPLETE: i32 = 0;
/// The priority of every stream: what training devices take, to CANN 9.0.
pub(crate) const PRIORITY: u32 = 0;
/// The alignment in bytes of both addresses of `aclrtMemcpyAsync`, to CANN 8.3.
pub(crate) const COPY_ALIGN: u64 = 64;
/// Most bytes of a row of `aclrtMemcpy2dAsync`, a power of two below its limit of 5,000,000, and most rows.
pub(crate) const ROW: usize = 1 << 22;
pub(crate) const ROWS: usize = 5 << 20;
/// `ACL_CALLBACK_BLOCK`: the stream waits for the call.
pub(crate) const CALLBACK_BLOCK: i32 = 1;
/// `ACL_OPT_DETERMINISTIC`.
pub(crate) const OPT_DETERMINISTIC: i32 = 0;
/// The flag `ACL_HOST_REG_PINNED` of `aclrtHostRegisterV2`: the memory is page-locked.
pub(crate) const HOST_REG_PINNED: u32 = 0x1000_0000;
/// The alignment in bytes of host memory that is registered: a page.
pub(crate) const PAGE: usize = 4096;
/// `ACL_ERROR_REPEAT_INITIALIZE`: somebody in this process has started it.
pub(crate) const STARTED_ALREADY: Status = 100002;

crossweave_gpu::functions! {
    /// The run time.
    Functions {
        fn aclInit(*const c_char) -> Status;
        fn aclGetRecentErrMsg() -> *const c_char;
        fn aclrtGetVersion(*mut i32, *mut i32, *mut i32) -> Status;
        fn aclrtGetSocName() -> *const c_char;
        fn aclrtGetDeviceCount(*mut u32) -> Status;
        fn aclrtSetDevice(i32) -> Status;
        fn aclrtResetDevice(i32) -> Status;
        fn aclrtSetCurrentContext(Handle) -> Status;
        fn aclrtGetCurrentContext(*mut Handle) -> Status;
        fn aclrtGetMemInfo(i32, *mut usize, *mut usize) -> Status;
        fn aclrtMalloc(*mut *mut c_void, usize, i32) -> Status;
        fn aclrtFree(*mut c_void) -> Status;
        fn aclrtMallocHost(*mut *mut c_void, usize) -> Status;
        fn aclrtFreeHost(*mut c_void) -> Status;
        fn aclrtMemcpyAsync(*mut c_void, usize, *const c_void, usize, i32, Handle) -> Status;
        fn aclrtMemcpy2dAsync(*mut c_void, usize, *const c_void, usize, usize, usize, i32, Handle) -> Status;
        fn aclrtMemsetAsync(*mut c_void, usize, i32, usize, Handle) -> Status;
        fn aclrtCreateStreamWithConfig(*mut Handle, u32, u32) -> Status;
        fn aclrtDestroyStream(Handle) -> Status;
        fn aclrtSynchronizeStream(Handle) -> Status;
        fn aclrtStreamQuery(Handle, *mut i32) -> Status;
        fn aclrtStreamWaitEvent(Handle, Handle) -> Status;
        fn aclrtCreateEventExWithFlag(*mut Handle, u32) -> Status;
        fn aclrtDestroyEvent(Handle) -> Status;
        fn aclrtRecordEvent(Handle, Handle) -> Status;
        fn aclrtQueryEventStatus(Handle, *mut i32) -> Status;
        fn aclrtEventElapsedTime(*mut f32, Handle, Handle) -> Status;
        fn aclrtLaunchCallback(HostFn, *mut c_void, i32, Handle) -> Status;
        fn aclrtSubscribeReport(u64, Handle) -> Status;
        fn aclrtProcessReport(i32) -> Status;
        fn aclrtUnSubscribeReport(u64, Handle) -> Status;
        fn aclrtDeviceCanAccessPeer(*mut i32, i32, i32) -> Status;
        fn aclrtDeviceEnablePeerAccess(i32, u32) -> Status;
    } optional {
        fn aclsysGetVersionNum(*mut c_char, *mut i32) -> Status;
        fn aclrtHostRegisterV2(*mut c_void, u64, u32) -> Status;
        fn aclrtHostUnregister(*mut c_void) -> Status;
        fn aclrtStreamAbort(Handle) -> Status;
        fn aclrtDestroyStreamForce(Handle) -> Status;
        fn aclrtCtxSetSysParamOpt(i32, i64) -> Status;
        fn aclrtDeviceGetUuid(i32, *mut c_void) -> Status;
    }
}
