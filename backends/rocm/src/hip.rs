//! The HIP run time: its functions and numbers that the back end uses, and the run time behind the table that all vendors' back ends share.
//!
//! Written against HIP 5.2 to 7.2. HIP has no contexts: the device of a thread is set for a call and is afterwards what it was.

use crate::error;
use crossweave_gpu::library::{self, Wanted};
use crossweave_gpu::{
    AccessDesc, Address, AllocationProp, DISTRUSTED, Facts, Handle, Meaning, NO_DEVICE, Outcome,
    Place, Previous, Runtime, SUCCESS, Settings, Started, Status, by_table, call, text,
};
use crossweave_plugin::{Error, Result};
use std::ffi::{c_char, c_void};

pub(crate) const WANTED: Wanted = Wanted {
    what: "HIP run time",
    key: "rocm.libamdhip64",
    names: &[
        "libamdhip64.so.7",
        "libamdhip64.so.6",
        "libamdhip64.so.5",
        "libamdhip64.so",
    ],
    fix: "install ROCm's HIP run time (in a container: start it with /dev/kfd and /dev/dri)",
};

/// `hipMemcpyDefault`: the addresses say which way.
pub(crate) const COPY_DEFAULT: i32 = 4;
/// `hipStreamCaptureModeThreadLocal`.
pub(crate) const CAPTURE_THREAD_LOCAL: i32 = 1;
/// `hipErrorInvalidDevice`, which HIP 5 answers where there is none.
const INVALID_DEVICE: Status = 101;

/// `hipDeviceAttribute_t`.
pub(crate) mod attr {
    pub(crate) const MAJOR: i32 = 23;
    pub(crate) const MAX_PITCH: i32 = 58;
    pub(crate) const MINOR: i32 = 61;
    pub(crate) const SM_COUNT: i32 = 63;
    pub(crate) const SHARED_PER_BLOCK: i32 = 74;
    pub(crate) const WARP: i32 = 87;
}

/// `hipDeviceProp_t`, of which only the architecture's name is read: the struct and its function changed in HIP 6. Bytes, and where the name is.
pub(crate) mod prop {
    pub(crate) const OLD: (usize, usize) = (792, 396);
    pub(crate) const R0600: (usize, usize) = (1472, 1160);
    /// Room for what a later version appends.
    pub(crate) const ROOM: usize = 8192;
    pub(crate) const NAME: usize = 256;
}

crossweave_gpu::functions! {
    /// The run time.
    Functions {
        fn hipInit(u32) -> Status;
        fn hipRuntimeGetVersion(*mut i32) -> Status;
        fn hipGetErrorName(Status) -> *const c_char;
        fn hipGetErrorString(Status) -> *const c_char;
        fn hipGetDeviceCount(*mut i32) -> Status;
        fn hipGetDevice(*mut i32) -> Status;
        fn hipSetDevice(i32) -> Status;
        fn hipDeviceGet(*mut i32, i32) -> Status;
        fn hipDeviceGetName(*mut c_char, i32, i32) -> Status;
        fn hipDeviceGetPCIBusId(*mut c_char, i32, i32) -> Status;
        fn hipDeviceGetAttribute(*mut i32, i32, i32) -> Status;
        fn hipDeviceCanAccessPeer(*mut i32, i32, i32) -> Status;
        fn hipDeviceEnablePeerAccess(i32, u32) -> Status;
        fn hipDeviceGetStreamPriorityRange(*mut i32, *mut i32) -> Status;
        fn hipMemGetInfo(*mut usize, *mut usize) -> Status;
        fn hipMalloc(*mut *mut c_void, usize) -> Status;
        fn hipFree(*mut c_void) -> Status;
        fn hipHostMalloc(*mut *mut c_void, usize, u32) -> Status;
        fn hipHostFree(*mut c_void) -> Status;
        fn hipHostRegister(*mut c_void, usize, u32) -> Status;
        fn hipHostUnregister(*mut c_void) -> Status;
        fn hipHostGetDevicePointer(*mut *mut c_void, *mut c_void, u32) -> Status;
        fn hipMemcpyAsync(*mut c_void, *const c_void, usize, i32, Handle) -> Status;
        fn hipMemcpyPeerAsync(*mut c_void, i32, *const c_void, i32, usize, Handle) -> Status;
        fn hipMemcpy2DAsync(*mut c_void, usize, *const c_void, usize, usize, usize, i32, Handle) -> Status;
        fn hipMemsetD8Async(*mut c_void, u8, usize, Handle) -> Status;
        fn hipMemsetD16Async(*mut c_void, u16, usize, Handle) -> Status;
        fn hipMemsetD32Async(*mut c_void, i32, usize, Handle) -> Status;
        fn hipMemset2DAsync(*mut c_void, usize, i32, usize, usize, Handle) -> Status;
        fn hipStreamCreateWithPriority(*mut Handle, u32, i32) -> Status;
        fn hipStreamDestroy(Handle) -> Status;
        fn hipStreamQuery(Handle) -> Status;
        fn hipStreamWaitEvent(Handle, Handle, u32) -> Status;
        fn hipEventCreateWithFlags(*mut Handle, u32) -> Status;
        fn hipEventDestroy(Handle) -> Status;
        fn hipEventRecord(Handle, Handle) -> Status;
        fn hipEventQuery(Handle) -> Status;
        fn hipEventElapsedTime(*mut f32, Handle, Handle) -> Status;
        fn hipModuleLoadData(*mut Handle, *const c_void) -> Status;
        fn hipModuleUnload(Handle) -> Status;
        fn hipModuleGetFunction(*mut Handle, Handle, *const c_char) -> Status;
        fn hipModuleLaunchKernel(Handle, u32, u32, u32, u32, u32, u32, u32, Handle, *mut *mut c_void, *mut *mut c_void) -> Status;
    } optional {
        fn hipGetDeviceProperties(*mut c_void, i32) -> Status;
        fn hipGetDevicePropertiesR0600(*mut c_void, i32) -> Status;
        fn hipDeviceGetUuid(*mut c_void, i32) -> Status;
        fn hipStreamBeginCapture(Handle, i32) -> Status;
        fn hipStreamEndCapture(Handle, *mut Handle) -> Status;
        fn hipGraphInstantiate(*mut Handle, Handle, *mut Handle, *mut c_char, usize) -> Status;
        fn hipGraphDestroy(Handle) -> Status;
        fn hipGraphLaunch(Handle, Handle) -> Status;
        fn hipGraphExecDestroy(Handle) -> Status;
    }
}

/// The run time, started.
struct Hip {
    t: Functions,
    /// As `50221153`.
    version: i32,
}

/// Opens and starts the run time. Without a device HIP 5 answers 101 or 100, later ones 100.
pub(crate) fn start(settings: &Settings) -> Result<Started> {
    let opened = library::open(settings, &WANTED)?;
    let mut hip = Hip {
        t: Functions::of(&opened)?,
        version: 0,
    };
    let mut count = 0;
    // SAFETY: plain calls; the out pointers live for them.
    let begun = unsafe {
        (hip.t.hipRuntimeGetVersion)(&mut hip.version);
        match call!(hip.t, hipInit(0)) {
            o if o.done() => call!(hip.t, hipGetDeviceCount(&mut count)),
            o => o,
        }
    };
    match begun.status {
        SUCCESS => {}
        NO_DEVICE | INVALID_DEVICE => count = 0,
        _ => {
            let e = crossweave_gpu::error(&hip, begun);
            let message = format!(
                "the HIP run time ({}) does not start: {}",
                opened.name, e.message
            );
            return Err(Error { message, ..e });
        }
    }
    Ok(Started {
        rt: Box::new(hip),
        file: opened.name,
        count: count.max(0) as u32,
    })
}

/// An address as HIP's functions take it.
fn pointer(at: Address) -> *mut c_void {
    at as usize as *mut c_void
}

/// Where an address goes.
fn out(at: &mut u64) -> *mut *mut c_void {
    std::ptr::from_mut(at).cast()
}

impl Hip {
    fn ask(&self, which: i32, place: &Place) -> u32 {
        let mut v = 0;
        // SAFETY: the out pointer lives for the call; an attribute that is not known is an error and leaves 0.
        match unsafe { (self.t.hipDeviceGetAttribute)(&mut v, which, place.ordinal) } {
            SUCCESS => v.max(0) as u32,
            _ => 0,
        }
    }

    /// `gfx90a:sramecc+:xnack-`, from the newer of the two structs that the run time has.
    fn arch(&self, place: &Place) -> String {
        let t = &self.t;
        let newer = t.hipGetDevicePropertiesR0600.map(|f| (f, prop::R0600.1));
        let Some((f, at)) = newer.or(t.hipGetDeviceProperties.map(|f| (f, prop::OLD.1))) else {
            return String::new();
        };
        let mut b = [0u64; prop::ROOM / 8];
        // SAFETY: the struct is smaller than the room, and the name inside it ends with a NUL.
        unsafe {
            if f(b.as_mut_ptr().cast(), place.ordinal) != SUCCESS {
                return String::new();
            }
            let name = b.as_ptr().cast::<u8>().add(at);
            let name = std::slice::from_raw_parts(name, prop::NAME);
            let name = name.split(|c| *c == 0).next().unwrap_or_default();
            String::from_utf8_lossy(name).into_owned()
        }
    }
}

/// Does a graph of this version of HIP, as `50221153`, do what was captured? Those of ROCm 7.2.0 to 7.2.3 replay with wrong results now and then
/// (github.com/ROCm/clr/issues/279, of a graph whose launches are right one by one; 7.0 and 7.1 do not), and what came for 7.2.4 leaves nodes out where
/// several threads make graphs (github.com/ROCm/rocm-systems/issues/6888). HIP's third number does not tell releases of 7.2 apart.
fn graphs_are_right(version: i32) -> bool {
    version / 100_000 != 702
}

/// Nothing to do, which cannot fail.
fn done(name: &'static str) -> Outcome {
    Outcome {
        name,
        status: SUCCESS,
    }
}

impl Runtime for Hip {
    fn what(&self) -> &'static str {
        WANTED.what
    }

    fn version(&self) -> String {
        let v = self.version;
        format!("{}.{}.{}", v / 10_000_000, v / 100_000 % 100, v % 100_000)
    }

    fn words(&self, status: Status) -> (String, String) {
        // SAFETY: static texts.
        unsafe {
            (
                text((self.t.hipGetErrorName)(status)),
                text((self.t.hipGetErrorString)(status)),
            )
        }
    }

    fn meaning(&self, status: Status) -> Meaning {
        error::meaning(status)
    }

    fn hint(&self, status: Status) -> &'static str {
        error::hint(status)
    }

    fn none_seen(&self) -> &'static str {
        "the HIP run time sees none; check rocminfo, HIP_VISIBLE_DEVICES, and that /dev/kfd and /dev/dri can be opened"
    }

    fn fills_words_apart(&self) -> bool {
        false
    }

    fn facts(&self, place: &Place) -> Facts {
        Facts {
            kind: 2,
            arch: self.arch(place),
            major: self.ask(attr::MAJOR, place),
            minor: self.ask(attr::MINOR, place),
            sm_count: self.ask(attr::SM_COUNT, place),
            warp: self.ask(attr::WARP, place),
            shared: self.ask(attr::SHARED_PER_BLOCK, place),
            max_pitch: u64::from(self.ask(attr::MAX_PITCH, place)),
            mem_ops: false,
            // The properties of physical memory have another layout in HIP 5 than in later versions.
            posix_fd: false,
            numa: None,
        }
    }

    unsafe fn retain(&self, _: &mut Handle, _: i32) -> Outcome {
        done("hipSetDevice")
    }

    unsafe fn release(&self, _: i32) -> Outcome {
        done("hipSetDevice")
    }

    unsafe fn enter(&self, place: &Place, previous: &mut Previous) -> Outcome {
        let mut now = -1;
        // SAFETY: plain calls; the out pointer lives for them.
        unsafe {
            let o = call!(self.t, hipGetDevice(&mut now));
            *previous = Previous(match now == place.ordinal {
                true => -1,
                false => now.into(),
            });
            match o.done() && now != place.ordinal {
                true => call!(self.t, hipSetDevice(place.ordinal)),
                false => o,
            }
        }
    }

    unsafe fn leave(&self, previous: Previous) -> Outcome {
        match previous.0 {
            // It was this device's already.
            -1 => done("hipSetDevice"),
            // SAFETY: a plain call.
            was => unsafe { call!(self.t, hipSetDevice(was as i32)) },
        }
    }

    unsafe fn capture_begin(&self, stream: Handle) -> Outcome {
        match graphs_are_right(self.version) {
            // SAFETY: promised by the caller.
            true => unsafe {
                call!(
                    self.t,
                    optional hipStreamBeginCapture(stream, CAPTURE_THREAD_LOCAL)
                )
            },
            false => Outcome {
                name: "hipStreamBeginCapture",
                status: DISTRUSTED,
            },
        }
    }

    unsafe fn allow_shared(&self, _: Handle, _: i32) -> Outcome {
        // A block may have all there is without asking.
        done("hipFuncSetAttribute")
    }

    by_table! {
        fn device(ordinal: &mut i32, index: i32) = hipDeviceGet(ordinal, index);
        fn name(text: *mut c_char, n: i32, ordinal: i32) = hipDeviceGetName(text, n, ordinal);
        fn bus(text: *mut c_char, n: i32, ordinal: i32) = hipDeviceGetPCIBusId(text, n, ordinal);
        fn uuid(id: &mut [u8; 16], ordinal: i32) = optional hipDeviceGetUuid(id.as_mut_ptr().cast(), ordinal);
        fn can_reach(can: &mut i32, a: i32, b: i32) = hipDeviceCanAccessPeer(can, a, b);
        fn reach(other: &Place) = hipDeviceEnablePeerAccess(other.ordinal, 0);
        fn room(free: &mut usize, total: &mut usize) = hipMemGetInfo(free, total);
        fn alloc(at: &mut Address, bytes: usize) = hipMalloc(out(at), bytes);
        fn free(at: Address) = hipFree(pointer(at));
        fn host_alloc(at: &mut *mut c_void, bytes: usize, flags: u32) = hipHostMalloc(at, bytes, flags);
        fn host_free(at: *mut c_void) = hipHostFree(at);
        fn host_register(at: *mut c_void, bytes: usize, flags: u32) = hipHostRegister(at, bytes, flags);
        fn host_unregister(at: *mut c_void) = hipHostUnregister(at);
        fn host_seen(at: &mut Address, host: *mut c_void) = hipHostGetDevicePointer(out(at), host, 0);
        fn copy(to: Address, from: Address, bytes: usize, stream: Handle) = hipMemcpyAsync(pointer(to), pointer(from), bytes, COPY_DEFAULT, stream);
        fn copy_peer(to: Address, there: &Place, from: Address, here: &Place, bytes: usize, stream: Handle) = hipMemcpyPeerAsync(pointer(to), there.ordinal, pointer(from), here.ordinal, bytes, stream);
        fn copy_rows(to: Address, dpitch: usize, from: Address, spitch: usize, width: usize, height: usize, stream: Handle) = hipMemcpy2DAsync(pointer(to), dpitch, pointer(from), spitch, width, height, COPY_DEFAULT, stream);
        fn fill_bytes(to: Address, value: u8, n: usize, stream: Handle) = hipMemsetD8Async(pointer(to), value, n, stream);
        fn fill_halves(to: Address, value: u16, n: usize, stream: Handle) = hipMemsetD16Async(pointer(to), value, n, stream);
        fn fill_words(to: Address, value: u32, n: usize, stream: Handle) = hipMemsetD32Async(pointer(to), value as i32, n, stream);
        fn fill_bytes_apart(to: Address, pitch: usize, value: u8, n: usize, stream: Handle) = hipMemset2DAsync(pointer(to), pitch, i32::from(value), 1, n, stream);
        fn priorities(least: &mut i32, greatest: &mut i32) = hipDeviceGetStreamPriorityRange(least, greatest);
        fn stream(stream: &mut Handle, flags: u32, priority: i32) = hipStreamCreateWithPriority(stream, flags, priority);
        fn stream_destroy(stream: Handle) = hipStreamDestroy(stream);
        fn stream_query(stream: Handle) = hipStreamQuery(stream);
        fn stream_wait(stream: Handle, event: Handle) = hipStreamWaitEvent(stream, event, 0);
        fn event(event: &mut Handle, flags: u32) = hipEventCreateWithFlags(event, flags);
        fn event_destroy(event: Handle) = hipEventDestroy(event);
        fn event_record(event: Handle, stream: Handle) = hipEventRecord(event, stream);
        fn event_query(event: Handle) = hipEventQuery(event);
        fn event_elapsed(ms: &mut f32, from: Handle, to: Handle) = hipEventElapsedTime(ms, from, to);
        fn module(module: &mut Handle, image: *const c_void) = hipModuleLoadData(module, image);
        fn module_unload(module: Handle) = hipModuleUnload(module);
        fn function(function: &mut Handle, module: Handle, name: *const c_char) = hipModuleGetFunction(function, module, name);
        fn launch(f: Handle, grid: [u32; 3], block: [u32; 3], shared: u32, stream: Handle, params: *mut *mut c_void) = hipModuleLaunchKernel(f, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared, stream, params, std::ptr::null_mut());
        fn capture_end(stream: Handle, graph: &mut Handle) = optional hipStreamEndCapture(stream, graph);
        fn graph_instantiate(exec: &mut Handle, graph: Handle) = optional hipGraphInstantiate(exec, graph, std::ptr::null_mut(), std::ptr::null_mut(), 0);
        fn graph_destroy(graph: Handle) = optional hipGraphDestroy(graph);
        fn graph_launch(exec: Handle, stream: Handle) = optional hipGraphLaunch(exec, stream);
        fn graph_release(exec: Handle) = optional hipGraphExecDestroy(exec);
        fn fill_words_apart(_: Address, _: usize, _: u32, _: usize, _: Handle) = missing hipMemsetD2D32Async;
        fn wait_value(_: Handle, _: Address, _: u64) = missing hipStreamWaitValue64;
        fn write_value(_: Handle, _: Address, _: u64) = missing hipStreamWriteValue64;
        fn physical(_: &mut u64, _: usize, _: &AllocationProp) = missing hipMemCreate;
        fn physical_release(_: u64) = missing hipMemRelease;
        fn physical_of(_: &mut u64, _: *mut c_void) = missing hipMemRetainAllocationHandle;
        fn granularity(_: &mut usize, _: &AllocationProp) = missing hipMemGetAllocationGranularity;
        fn reserve(_: &mut Address, _: usize) = missing hipMemAddressReserve;
        fn unreserve(_: Address, _: usize) = missing hipMemAddressFree;
        fn map(_: Address, _: usize, _: u64) = missing hipMemMap;
        fn unmap(_: Address, _: usize) = missing hipMemUnmap;
        fn access(_: Address, _: usize, _: &AccessDesc) = missing hipMemSetAccess;
        fn share(_: &mut i32, _: u64) = missing hipMemExportToShareableHandle;
        fn shared(_: &mut u64, _: i32) = missing hipMemImportFromShareableHandle;
    }
}

#[cfg(test)]
mod tests {
    use super::graphs_are_right;

    #[test]
    fn graphs_are_off_with_hip_7_2() {
        for (version, right) in [
            (50_221_153, true),
            (70_051_831, true),
            (70_125_424, true),
            (70_226_015, false),
            (70_253_211, false),
            (71_300_000, true),
        ] {
            assert_eq!(graphs_are_right(version), right, "{version}");
        }
    }
}
