//! The CUDA driver's functions, types and constants that the back end uses. Binary form as of CUDA 11.2 and newer.

use crate::library::table;
#[cfg(test)]
use cudarc::driver::sys as bindings;
use std::ffi::{c_char, c_void};

/// An object of the vendor's: an address inside its library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(crate) struct Handle(pub *mut c_void);
// SAFETY: opaque tokens; the driver is thread-safe, and the host serialises what must not race (R7).
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}
impl Handle {
    pub(crate) const NULL: Handle = Handle(std::ptr::null_mut());
}

/// `CUresult`.
pub(crate) type Status = i32;
/// `CUdeviceptr`.
pub(crate) type Address = u64;
/// `CUhostFn`.
pub(crate) type HostFn = unsafe extern "C" fn(*mut c_void);

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

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Location {
    pub kind: u32,
    pub id: i32,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AllocationProp {
    pub kind: u32,
    pub handle_types: u32,
    pub location: Location,
    pub win32: *mut c_void,
    pub compression: u8,
    pub rdma: u8,
    pub usage: u16,
    pub reserved: [u8; 4],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AccessDesc {
    pub location: Location,
    pub flags: u32,
}

pub(crate) const SUCCESS: Status = 0;
pub(crate) const NO_DEVICE: Status = 100;
pub(crate) const NOT_READY: Status = 600;
pub(crate) const PEER_ALREADY_ENABLED: Status = 704;
pub(crate) const TOO_MANY_PEERS: Status = 711;
pub(crate) const ALREADY_REGISTERED: Status = 712;

pub(crate) const STREAM_NON_BLOCKING: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING`.
pub(crate) const EVENT_NO_TIMES: u32 = 2;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
pub(crate) const CAPTURE_THREAD_LOCAL: u32 = 1;
pub(crate) const HOST_PORTABLE: u32 = 1;
pub(crate) const HOST_DEVICE_MAP: u32 = 2;
pub(crate) const MEMORY_UNIFIED: u32 = 4;
/// Compares 64-bit words: `(int64_t)(word - value) >= 0`, a comparison in a circle. What is waited for and written stays below 2^63.
pub(crate) const WAIT_GEQ: u32 = 0;
pub(crate) const HANDLE_POSIX_FD: u32 = 1;
pub(crate) const ALLOCATION_PINNED: u32 = 1;
pub(crate) const LOCATION_DEVICE: u32 = 1;
pub(crate) const ACCESS_READ_WRITE: u32 = 3;

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

table! {
    /// The driver.
    Driver of "CUDA driver" {
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
        fn cuLaunchHostFunc(Handle, HostFn, *mut c_void) -> Status;
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

#[cfg(test)]
mod tests {
    use super::*;
    use bindings::{CUdevice_attribute_enum as A, cudaError_enum as E};
    use std::mem::offset_of;

    #[test]
    fn every_signature_is_that_of_the_public_bindings() {
        assert!(Driver::check() > 50);
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
