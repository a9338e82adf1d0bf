//! The CUDA driver: its functions, types and constants that the back end uses (binary form as of CUDA 11.2 and newer), and the driver behind
//! the table that all vendors' back ends share.

use crate::error;
use crossweave_gpu::library::{self, Wanted};
use crossweave_gpu::{
    AccessDesc, Address, AllocationProp, Facts, HANDLE_POSIX_FD, Handle, Meaning, NO_DEVICE,
    Outcome, Place, Previous, Runtime, SUCCESS, Settings, Started, Status, by_table, call, text,
};
use crossweave_plugin::{Error, Result};
#[cfg(test)]
use cudarc::driver::sys as bindings;
use std::ffi::{c_char, c_void};

const WANTED: Wanted = Wanted {
    what: "CUDA driver",
    key: "cuda.libcuda",
    names: &["libcuda.so.1", "libcuda.so", "nvcuda.dll"],
    fix: "install NVIDIA's driver (in a container: start it with the GPU runtime)",
};

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Copy2d {
    pub src_x: usize,
    pub src_y: usize,
    pub src_type: u32,
    pub src_host: *const c_void,
    pub src_device: Address,
    pub src_array: *mut c_void,
    pub src_pitch: usize,
    pub dst_x: usize,
    pub dst_y: usize,
    pub dst_type: u32,
    pub dst_host: *mut c_void,
    pub dst_device: Address,
    pub dst_array: *mut c_void,
    pub dst_pitch: usize,
    pub width: usize,
    pub height: usize,
}

/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
const CAPTURE_THREAD_LOCAL: u32 = 1;
const MEMORY_UNIFIED: u32 = 4;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const MAX_DYNAMIC_SHARED: u32 = 8;
/// Compares 64-bit words: `(int64_t)(word - value) >= 0`, a comparison in a circle. What is waited for and written stays below 2^63.
const WAIT_GEQ: u32 = 0;

/// `CUdevice_attribute`.
pub(crate) mod attr {
    pub(crate) const SHARED_PER_BLOCK: u32 = 8;
    pub(crate) const WARP: u32 = 10;
    pub(crate) const MAX_PITCH: u32 = 11;
    pub(crate) const SM_COUNT: u32 = 16;
    pub(crate) const MAJOR: u32 = 75;
    pub(crate) const MINOR: u32 = 76;
    /// The attribute of the older interface; 0 on drivers that only know the newer.
    pub(crate) const MEM_OPS_V1: u32 = 93;
    pub(crate) const SHARED_OPTIN: u32 = 97;
    pub(crate) const POSIX_FD: u32 = 103;
    pub(crate) const MEM_OPS: u32 = 122;
    pub(crate) const HOST_NUMA: u32 = 134;
}

crossweave_gpu::table! {
    /// The driver.
    Functions {
        fn cuInit(u32) -> Status;
        fn cuDriverGetVersion(*mut i32) -> Status;
        fn cuGetErrorName(Status, *mut *const c_char) -> Status;
        fn cuGetErrorString(Status, *mut *const c_char) -> Status;
        fn cuDeviceGetCount(*mut i32) -> Status;
        fn cuDeviceGet(*mut i32, i32) -> Status;
        fn cuDeviceGetName(*mut c_char, i32, i32) -> Status;
        fn cuDeviceGetUuid_v2(*mut [u8; 16], i32) -> Status;
        fn cuDeviceGetPCIBusId(*mut c_char, i32, i32) -> Status;
        fn cuDeviceGetAttribute(*mut i32, u32, i32) -> Status;
        fn cuDeviceCanAccessPeer(*mut i32, i32, i32) -> Status;
        fn cuDevicePrimaryCtxRetain(*mut Handle, i32) -> Status;
        fn cuDevicePrimaryCtxRelease_v2(i32) -> Status;
        fn cuCtxPushCurrent_v2(Handle) -> Status;
        fn cuCtxPopCurrent_v2(*mut Handle) -> Status;
        fn cuCtxGetStreamPriorityRange(*mut i32, *mut i32) -> Status;
        fn cuCtxEnablePeerAccess(Handle, u32) -> Status;
        fn cuMemGetInfo_v2(*mut usize, *mut usize) -> Status;
        fn cuMemAlloc_v2(*mut Address, usize) -> Status;
        fn cuMemFree_v2(Address) -> Status;
        fn cuMemHostAlloc(*mut *mut c_void, usize, u32) -> Status;
        fn cuMemFreeHost(*mut c_void) -> Status;
        fn cuMemHostRegister_v2(*mut c_void, usize, u32) -> Status;
        fn cuMemHostUnregister(*mut c_void) -> Status;
        fn cuMemHostGetDevicePointer_v2(*mut Address, *mut c_void, u32) -> Status;
        fn cuMemcpyAsync(Address, Address, usize, Handle) -> Status;
        fn cuMemcpyPeerAsync(Address, Handle, Address, Handle, usize, Handle) -> Status;
        fn cuMemcpy2DAsync_v2(*const Copy2d, Handle) -> Status;
        fn cuMemsetD8Async(Address, u8, usize, Handle) -> Status;
        fn cuMemsetD16Async(Address, u16, usize, Handle) -> Status;
        fn cuMemsetD32Async(Address, u32, usize, Handle) -> Status;
        fn cuMemsetD2D8Async(Address, usize, u8, usize, usize, Handle) -> Status;
        fn cuMemsetD2D32Async(Address, usize, u32, usize, usize, Handle) -> Status;
        fn cuStreamCreateWithPriority(*mut Handle, u32, i32) -> Status;
        fn cuStreamDestroy_v2(Handle) -> Status;
        fn cuStreamQuery(Handle) -> Status;
        fn cuStreamWaitEvent(Handle, Handle, u32) -> Status;
        fn cuEventCreate(*mut Handle, u32) -> Status;
        fn cuEventDestroy_v2(Handle) -> Status;
        fn cuEventRecord(Handle, Handle) -> Status;
        fn cuEventQuery(Handle) -> Status;
        fn cuEventElapsedTime(*mut f32, Handle, Handle) -> Status;
        fn cuModuleLoadData(*mut Handle, *const c_void) -> Status;
        fn cuModuleUnload(Handle) -> Status;
        fn cuModuleGetFunction(*mut Handle, Handle, *const c_char) -> Status;
        fn cuFuncSetAttribute(Handle, u32, i32) -> Status;
        fn cuLaunchKernel(Handle, u32, u32, u32, u32, u32, u32, u32, Handle, *mut *mut c_void, *mut *mut c_void) -> Status;
    } optional {
        fn cuStreamBeginCapture_v2(Handle, u32) -> Status;
        fn cuStreamEndCapture(Handle, *mut Handle) -> Status;
        fn cuGraphInstantiateWithFlags(*mut Handle, Handle, u64) -> Status;
        fn cuGraphDestroy(Handle) -> Status;
        fn cuGraphLaunch(Handle, Handle) -> Status;
        fn cuGraphExecDestroy(Handle) -> Status;
        fn cuStreamWaitValue64_v2(Handle, Address, u64, u32) -> Status;
        fn cuStreamWriteValue64_v2(Handle, Address, u64, u32) -> Status;
        fn cuMemCreate(*mut u64, usize, *const AllocationProp, u64) -> Status;
        fn cuMemRelease(u64) -> Status;
        fn cuMemRetainAllocationHandle(*mut u64, *mut c_void) -> Status;
        fn cuMemAddressReserve(*mut Address, usize, usize, Address, u64) -> Status;
        fn cuMemAddressFree(Address, usize) -> Status;
        fn cuMemMap(Address, usize, usize, u64, u64) -> Status;
        fn cuMemUnmap(Address, usize) -> Status;
        fn cuMemSetAccess(Address, usize, *const AccessDesc, usize) -> Status;
        fn cuMemExportToShareableHandle(*mut c_void, u64, u32, u64) -> Status;
        fn cuMemImportFromShareableHandle(*mut u64, *mut c_void, u32) -> Status;
        fn cuMemGetAllocationGranularity(*mut usize, *const AllocationProp, u32) -> Status;
    }
}

/// The driver, started.
struct Driver {
    t: Functions,
    /// As `12080`.
    version: i32,
}

/// Opens and starts the driver.
pub(crate) fn start(settings: &Settings) -> Result<Started> {
    let opened = library::open(settings, &WANTED)?;
    let mut driver = Driver {
        t: Functions::of(&opened)?,
        version: 0,
    };
    let failed = |driver: &Driver, o: Outcome| {
        let e = crossweave_gpu::error(driver, o);
        let message = format!(
            "the CUDA driver ({}) does not start: {}",
            opened.name, e.message
        );
        Error { message, ..e }
    };
    let mut count = 0;
    // SAFETY: plain calls; the out pointers live for them.
    unsafe {
        (driver.t.cuDriverGetVersion)(&mut driver.version);
        let begun = call!(driver.t, cuInit(0));
        match begun.status {
            SUCCESS => {
                let counted = call!(driver.t, cuDeviceGetCount(&mut count));
                if !matches!(counted.status, SUCCESS | NO_DEVICE) {
                    return Err(failed(&driver, counted));
                }
            }
            NO_DEVICE => {}
            _ => return Err(failed(&driver, begun)),
        }
    }
    Ok(Started {
        rt: Box::new(driver),
        file: opened.name,
        count: count.max(0) as u32,
    })
}

impl Driver {
    /// An attribute of a device; what the driver does not know is 0.
    fn ask(&self, which: u32, ordinal: i32) -> Option<i32> {
        let mut v = 0;
        // SAFETY: the out pointer lives for the call.
        match unsafe { (self.t.cuDeviceGetAttribute)(&mut v, which, ordinal) } {
            SUCCESS => Some(v),
            _ => None,
        }
    }
}

impl Runtime for Driver {
    fn what(&self) -> &'static str {
        WANTED.what
    }

    fn version(&self) -> String {
        format!("{}.{}", self.version / 1000, self.version % 1000 / 10)
    }

    fn words(&self, status: Status) -> (String, String) {
        let ask = |get: unsafe extern "C" fn(Status, *mut *const c_char) -> Status| {
            let mut p = std::ptr::null();
            // SAFETY: the driver stores the address of a static text, or NULL for a number it does not know.
            unsafe {
                get(status, &mut p);
                text(p)
            }
        };
        (ask(self.t.cuGetErrorName), ask(self.t.cuGetErrorString))
    }

    fn meaning(&self, status: Status) -> Meaning {
        error::meaning(status)
    }

    fn hint(&self, status: Status) -> &'static str {
        error::hint(status)
    }

    fn none_seen(&self) -> &'static str {
        "the CUDA driver sees none; check nvidia-smi and CUDA_VISIBLE_DEVICES"
    }

    fn fills_words_apart(&self) -> bool {
        true
    }

    fn facts(&self, place: &Place) -> Facts {
        let ask = |which: u32| self.ask(which, place.ordinal).unwrap_or(0);
        let some = |which: u32| ask(which).max(0) as u32;
        let t = &self.t;
        let words = t.cuStreamWaitValue64_v2.is_some() && t.cuStreamWriteValue64_v2.is_some();
        let numa = self.ask(attr::HOST_NUMA, place.ordinal);
        let (major, minor) = (some(attr::MAJOR), some(attr::MINOR));
        Facts {
            kind: 2,
            arch: format!("sm_{major}{minor}"),
            major,
            minor,
            sm_count: some(attr::SM_COUNT),
            warp: some(attr::WARP),
            shared: some(attr::SHARED_OPTIN).max(some(attr::SHARED_PER_BLOCK)),
            max_pitch: u64::from(some(attr::MAX_PITCH)),
            mem_ops: words && (ask(attr::MEM_OPS) != 0 || ask(attr::MEM_OPS_V1) != 0),
            posix_fd: ask(attr::POSIX_FD) != 0,
            numa: numa.and_then(|n| u32::try_from(n).ok()),
        }
    }

    by_table! {
        fn device(ordinal: &mut i32, index: i32) = cuDeviceGet(ordinal, index);
        fn retain(ctx: &mut Handle, ordinal: i32) = cuDevicePrimaryCtxRetain(ctx, ordinal);
        fn release(ordinal: i32) = cuDevicePrimaryCtxRelease_v2(ordinal);
        fn enter(place: &Place, _: &mut Previous) = cuCtxPushCurrent_v2(place.ctx);
        fn leave(_: Previous) = cuCtxPopCurrent_v2(&mut Handle::NULL.clone());
        fn name(text: *mut c_char, n: i32, ordinal: i32) = cuDeviceGetName(text, n, ordinal);
        fn bus(text: *mut c_char, n: i32, ordinal: i32) = cuDeviceGetPCIBusId(text, n, ordinal);
        fn uuid(id: &mut [u8; 16], ordinal: i32) = cuDeviceGetUuid_v2(id, ordinal);
        fn can_reach(can: &mut i32, a: i32, b: i32) = cuDeviceCanAccessPeer(can, a, b);
        fn reach(other: &Place) = cuCtxEnablePeerAccess(other.ctx, 0);
        fn room(free: &mut usize, total: &mut usize) = cuMemGetInfo_v2(free, total);
        fn alloc(at: &mut Address, bytes: usize) = cuMemAlloc_v2(at, bytes);
        fn free(at: Address) = cuMemFree_v2(at);
        fn host_alloc(at: &mut *mut c_void, bytes: usize, flags: u32) = cuMemHostAlloc(at, bytes, flags);
        fn host_free(at: *mut c_void) = cuMemFreeHost(at);
        fn host_register(at: *mut c_void, bytes: usize, flags: u32) = cuMemHostRegister_v2(at, bytes, flags);
        fn host_unregister(at: *mut c_void) = cuMemHostUnregister(at);
        fn host_seen(at: &mut Address, host: *mut c_void) = cuMemHostGetDevicePointer_v2(at, host, 0);
        fn copy(to: Address, from: Address, bytes: usize, stream: Handle) = cuMemcpyAsync(to, from, bytes, stream);
        fn copy_peer(to: Address, there: &Place, from: Address, here: &Place, bytes: usize, stream: Handle) = cuMemcpyPeerAsync(to, there.ctx, from, here.ctx, bytes, stream);
        fn copy_rows(to: Address, dpitch: usize, from: Address, spitch: usize, width: usize, height: usize, stream: Handle) = cuMemcpy2DAsync_v2(&rows(to, dpitch, from, spitch, width, height), stream);
        fn fill_bytes(to: Address, value: u8, n: usize, stream: Handle) = cuMemsetD8Async(to, value, n, stream);
        fn fill_halves(to: Address, value: u16, n: usize, stream: Handle) = cuMemsetD16Async(to, value, n, stream);
        fn fill_words(to: Address, value: u32, n: usize, stream: Handle) = cuMemsetD32Async(to, value, n, stream);
        fn fill_bytes_apart(to: Address, pitch: usize, value: u8, n: usize, stream: Handle) = cuMemsetD2D8Async(to, pitch, value, 1, n, stream);
        fn fill_words_apart(to: Address, pitch: usize, value: u32, n: usize, stream: Handle) = cuMemsetD2D32Async(to, pitch, value, 1, n, stream);
        fn priorities(least: &mut i32, greatest: &mut i32) = cuCtxGetStreamPriorityRange(least, greatest);
        fn stream(stream: &mut Handle, flags: u32, priority: i32) = cuStreamCreateWithPriority(stream, flags, priority);
        fn stream_destroy(stream: Handle) = cuStreamDestroy_v2(stream);
        fn stream_query(stream: Handle) = cuStreamQuery(stream);
        fn stream_wait(stream: Handle, event: Handle) = cuStreamWaitEvent(stream, event, 0);
        fn wait_value(stream: Handle, word: Address, value: u64) = optional cuStreamWaitValue64_v2(stream, word, value, WAIT_GEQ);
        fn write_value(stream: Handle, word: Address, value: u64) = optional cuStreamWriteValue64_v2(stream, word, value, 0);
        fn event(event: &mut Handle, flags: u32) = cuEventCreate(event, flags);
        fn event_destroy(event: Handle) = cuEventDestroy_v2(event);
        fn event_record(event: Handle, stream: Handle) = cuEventRecord(event, stream);
        fn event_query(event: Handle) = cuEventQuery(event);
        fn event_elapsed(ms: &mut f32, from: Handle, to: Handle) = cuEventElapsedTime(ms, from, to);
        fn module(module: &mut Handle, image: *const c_void) = cuModuleLoadData(module, image);
        fn module_unload(module: Handle) = cuModuleUnload(module);
        fn function(function: &mut Handle, module: Handle, name: *const c_char) = cuModuleGetFunction(function, module, name);
        fn allow_shared(function: Handle, bytes: i32) = cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED, bytes);
        fn launch(f: Handle, grid: [u32; 3], block: [u32; 3], shared: u32, stream: Handle, params: *mut *mut c_void) = cuLaunchKernel(f, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared, stream, params, std::ptr::null_mut());
        fn capture_begin(stream: Handle) = optional cuStreamBeginCapture_v2(stream, CAPTURE_THREAD_LOCAL);
        fn capture_end(stream: Handle, graph: &mut Handle) = optional cuStreamEndCapture(stream, graph);
        fn graph_instantiate(exec: &mut Handle, graph: Handle) = optional cuGraphInstantiateWithFlags(exec, graph, 0);
        fn graph_destroy(graph: Handle) = optional cuGraphDestroy(graph);
        fn graph_launch(exec: Handle, stream: Handle) = optional cuGraphLaunch(exec, stream);
        fn graph_release(exec: Handle) = optional cuGraphExecDestroy(exec);
        fn physical(handle: &mut u64, bytes: usize, prop: &AllocationProp) = optional cuMemCreate(handle, bytes, prop, 0);
        fn physical_release(handle: u64) = optional cuMemRelease(handle);
        fn physical_of(handle: &mut u64, at: *mut c_void) = optional cuMemRetainAllocationHandle(handle, at);
        fn granularity(bytes: &mut usize, prop: &AllocationProp) = optional cuMemGetAllocationGranularity(bytes, prop, 0);
        fn reserve(at: &mut Address, bytes: usize) = optional cuMemAddressReserve(at, bytes, 0, 0, 0);
        fn unreserve(at: Address, bytes: usize) = optional cuMemAddressFree(at, bytes);
        fn map(at: Address, bytes: usize, handle: u64) = optional cuMemMap(at, bytes, 0, handle, 0);
        fn unmap(at: Address, bytes: usize) = optional cuMemUnmap(at, bytes);
        fn access(at: Address, bytes: usize, who: &AccessDesc) = optional cuMemSetAccess(at, bytes, who, 1);
        fn share(fd: &mut i32, handle: u64) = optional cuMemExportToShareableHandle((&raw mut *fd).cast(), handle, HANDLE_POSIX_FD, 0);
        fn shared(handle: &mut u64, fd: i32) = optional cuMemImportFromShareableHandle(handle, fd as usize as *mut c_void, HANDLE_POSIX_FD);
    }
}

/// The record of a copy of rows.
fn rows(
    to: Address,
    dpitch: usize,
    from: Address,
    spitch: usize,
    width: usize,
    height: usize,
) -> Copy2d {
    Copy2d {
        src_x: 0,
        src_y: 0,
        src_type: MEMORY_UNIFIED,
        src_host: std::ptr::null(),
        src_device: from,
        src_array: std::ptr::null_mut(),
        src_pitch: spitch,
        dst_x: 0,
        dst_y: 0,
        dst_type: MEMORY_UNIFIED,
        dst_host: std::ptr::null_mut(),
        dst_device: to,
        dst_array: std::ptr::null_mut(),
        dst_pitch: dpitch,
        width,
        height,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindings::{CUdevice_attribute_enum as A, cudaError_enum as E};
    use crossweave_gpu::{
        ALREADY_REGISTERED, EVENT_NO_TIMES, HOST_DEVICE_MAP, HOST_PORTABLE, NOT_READY,
        PEER_ALREADY_ENABLED, STREAM_NON_BLOCKING, TOO_MANY_PEERS,
    };
    use std::mem::offset_of;

    #[test]
    fn every_signature_is_that_of_the_public_bindings() {
        assert!(Functions::check() > 50);
    }

    #[test]
    fn structs_have_the_layout_of_the_public_bindings() {
        assert_eq!(size_of::<Copy2d>(), size_of::<bindings::CUDA_MEMCPY2D>());
        assert_eq!(
            offset_of!(Copy2d, dst_device),
            offset_of!(bindings::CUDA_MEMCPY2D, dstDevice)
        );
        assert_eq!(
            offset_of!(Copy2d, height),
            offset_of!(bindings::CUDA_MEMCPY2D, Height)
        );
        assert_eq!(
            offset_of!(Copy2d, src_pitch),
            offset_of!(bindings::CUDA_MEMCPY2D, srcPitch)
        );
        assert_eq!(
            size_of::<AllocationProp>(),
            size_of::<bindings::CUmemAllocationProp>()
        );
        assert_eq!(
            offset_of!(AllocationProp, location),
            offset_of!(bindings::CUmemAllocationProp, location)
        );
        assert_eq!(
            offset_of!(AllocationProp, compression),
            offset_of!(bindings::CUmemAllocationProp, allocFlags)
        );
        assert_eq!(
            size_of::<AccessDesc>(),
            size_of::<bindings::CUmemAccessDesc>()
        );
        assert_eq!(size_of::<bindings::CUuuid>(), 16);
    }

    #[test]
    fn constants_are_those_of_the_public_bindings() {
        for (ours, theirs) in [
            (NO_DEVICE, E::CUDA_ERROR_NO_DEVICE),
            (NOT_READY, E::CUDA_ERROR_NOT_READY),
            (
                PEER_ALREADY_ENABLED,
                E::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,
            ),
            (TOO_MANY_PEERS, E::CUDA_ERROR_TOO_MANY_PEERS),
            (
                ALREADY_REGISTERED,
                E::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
            ),
        ] {
            assert_eq!(ours, theirs as i32);
        }
        for (ours, theirs) in [
            (
                attr::SHARED_PER_BLOCK,
                A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK,
            ),
            (attr::WARP, A::CU_DEVICE_ATTRIBUTE_WARP_SIZE),
            (attr::MAX_PITCH, A::CU_DEVICE_ATTRIBUTE_MAX_PITCH),
            (attr::SM_COUNT, A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
            (attr::MAJOR, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            (attr::MINOR, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
            (
                attr::SHARED_OPTIN,
                A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            ),
            (
                attr::POSIX_FD,
                A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
            ),
            (
                attr::MEM_OPS_V1,
                A::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1,
            ),
            (
                attr::MEM_OPS,
                A::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
            ),
            (attr::HOST_NUMA, A::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID),
        ] {
            assert_eq!(ours, theirs as u32);
        }
        assert_eq!(
            MEMORY_UNIFIED,
            bindings::CUmemorytype_enum::CU_MEMORYTYPE_UNIFIED as u32
        );
        assert_eq!(
            STREAM_NON_BLOCKING,
            bindings::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32
        );
        assert_eq!(
            EVENT_NO_TIMES,
            bindings::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32
        );
        assert_eq!(
            CAPTURE_THREAD_LOCAL,
            bindings::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as u32
        );
        assert_eq!(HOST_PORTABLE, bindings::CU_MEMHOSTALLOC_PORTABLE);
        assert_eq!(HOST_DEVICE_MAP, bindings::CU_MEMHOSTREGISTER_DEVICEMAP);
        assert_eq!(
            WAIT_GEQ,
            bindings::CUstreamWaitValue_flags_enum::CU_STREAM_WAIT_VALUE_GEQ as u32
        );
    }
}
