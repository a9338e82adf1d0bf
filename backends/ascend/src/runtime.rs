//! The run time behind the table that all vendors' back ends share.
//!
//! ACL's device is a context of each thread; it is set for a call and is afterwards what it was. Copies name their direction, which is found from
//! the ranges of the host's memory that were page-locked: everything else is a device's.

use crate::acl::{self as acl_table, Functions};
use crate::driver::{Acl, Mark, done, mark, pointer};
use crate::error;
use crossweave_gpu::library;
use crossweave_gpu::{
    AccessDesc, Address, AllocationProp, Facts, Handle, Meaning, NOT_READY, Outcome, Place,
    Previous, Runtime, SUCCESS, Settings, Started, Status, by_table, call, lock, text,
};
use crossweave_plugin::{Error, Result};
use std::ffi::{c_char, c_void};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a stream that is let go may take for what is queued.
const GIVE_UP: Duration = Duration::from_secs(10);

/// Where an address goes.
fn out(at: &mut u64) -> *mut *mut c_void {
    std::ptr::from_mut(at).cast()
}

/// [`Acl`] as the shared table.
struct Shared(Arc<Acl>);

/// Turns an outcome into a result.
fn check(acl: &Arc<Acl>, o: Outcome) -> Result<()> {
    match o.done() {
        true => Ok(()),
        false => Err(crossweave_gpu::error(&Shared(acl.clone()), o)),
    }
}

/// The run time as this process has it: it is started once and never ended, as others in the process may use it too.
static RUNNING: Mutex<Option<(String, Arc<Acl>)>> = Mutex::new(None);

/// The run time, once a device has been asked for.
pub(crate) fn running() -> Option<Arc<Acl>> {
    lock(&RUNNING).as_ref().map(|(_, a)| a.clone())
}

/// Opens and starts the run time.
pub(crate) fn start(settings: &Settings) -> Result<Started> {
    let mut running = lock(&RUNNING);
    let (file, acl) = match &*running {
        Some(known) => known.clone(),
        None => {
            let opened = library::open(settings, &acl_table::WANTED)?;
            let acl = Arc::new(Acl::new(Functions::of(&opened)?));
            let begun = {
                // SAFETY: no configuration.
                let o = unsafe { call!(acl.t, aclInit(std::ptr::null())) };
                match o.status {
                    acl_table::STARTED_ALREADY => Ok(()),
                    _ => check(&acl, o),
                }
            };
            begun.map_err(|e| Error {
                message: format!(
                    "the Ascend run time ({}) does not start: {}",
                    opened.name, e.message
                ),
                ..e
            })?;
            *running = Some((opened.name.clone(), acl.clone()));
            (opened.name, acl)
        }
    };
    drop(running);
    let mut count = 0;
    // SAFETY: the out pointer lives for the call.
    let asked = unsafe { call!(acl.t, aclrtGetDeviceCount(&mut count)) };
    match asked.status {
        SUCCESS => {}
        error::NO_DEVICE => count = 0,
        _ => check(&acl, asked)?,
    }
    Ok(Started {
        rt: Box::new(Shared(acl)),
        file,
        count,
    })
}

impl Runtime for Shared {
    fn what(&self) -> &'static str {
        acl_table::WANTED.what
    }

    fn version(&self) -> String {
        let (mut a, mut b, mut c) = (0, 0, 0);
        // SAFETY: the out pointers live for the call.
        unsafe { (self.0.t.aclrtGetVersion)(&mut a, &mut b, &mut c) };
        format!("{a}.{b}.{c}")
    }

    fn words(&self, status: Status) -> (String, String) {
        // SAFETY: a text that the thread's next failure replaces.
        let words = unsafe { text((self.0.t.aclGetRecentErrMsg)()) };
        let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
        (error::name(status).into(), words)
    }

    fn meaning(&self, status: Status) -> Meaning {
        error::meaning(status)
    }

    fn hint(&self, status: Status) -> &'static str {
        error::hint(status)
    }

    fn none_seen(&self) -> &'static str {
        "the Ascend run time sees none; check npu-smi info, ASCEND_RT_VISIBLE_DEVICES, and that /dev/davinci* can be opened"
    }

    fn fills_words_apart(&self) -> bool {
        false
    }

    fn facts(&self, _: &Place) -> Facts {
        Facts {
            kind: 3,
            // SAFETY: a static text, or NULL.
            arch: unsafe { text((self.0.t.aclrtGetSocName)()) },
            // Most bytes of a device: pitches are not limited otherwise.
            max_pitch: i64::MAX as u64,
            ..Facts::default()
        }
    }

    unsafe fn device(&self, ordinal: &mut i32, index: i32) -> Outcome {
        *ordinal = index;
        done("aclrtSetDevice")
    }

    unsafe fn retain(&self, ctx: &mut Handle, ordinal: i32) -> Outcome {
        let t = &self.0.t;
        let mut was = Handle::NULL;
        // SAFETY: plain calls; the out pointers live for them. A thread without a context says so by an error, and stays with NULL.
        unsafe {
            (t.aclrtGetCurrentContext)(&mut was);
            let o = call!(t, aclrtSetDevice(ordinal));
            if !o.done() {
                return o;
            }
            // The device's default context, which the operators' and collectives' libraries expect.
            let o = call!(t, aclrtGetCurrentContext(ctx));
            // Sums in a fixed order; a run time without the switch has them in whatever order it has.
            let _ = call!(t, optional aclrtCtxSetSysParamOpt(acl_table::OPT_DETERMINISTIC, 1));
            if was != Handle::NULL {
                (t.aclrtSetCurrentContext)(was);
            }
            o
        }
    }

    unsafe fn release(&self, ordinal: i32) -> Outcome {
        let t = &self.0.t;
        let mut was = Handle::NULL;
        // SAFETY: plain calls; the device was set by `retain`, so that this counts one set and two resets.
        unsafe {
            (t.aclrtGetCurrentContext)(&mut was);
            let o = call!(t, aclrtSetDevice(ordinal));
            if o.done() {
                let mut ctx = Handle::NULL;
                (t.aclrtGetCurrentContext)(&mut ctx);
                self.0.empty(ctx);
                (t.aclrtResetDevice)(ordinal);
                if was != Handle::NULL && was != ctx {
                    (t.aclrtSetCurrentContext)(was);
                }
            }
            call!(t, aclrtResetDevice(ordinal))
        }
    }

    unsafe fn enter(&self, place: &Place, previous: &mut Previous) -> Outcome {
        let t = &self.0.t;
        let mut was = Handle::NULL;
        // SAFETY: plain calls; the out pointer lives for them. A thread without a context says so by an error, and stays with NULL.
        unsafe {
            (t.aclrtGetCurrentContext)(&mut was);
            // There is no call that leaves a thread without a context: one that had none keeps this.
            *previous = Previous(match was == place.ctx {
                true => 0,
                false => was.0 as i64,
            });
            match was == place.ctx {
                true => done("aclrtSetCurrentContext"),
                false => call!(t, aclrtSetCurrentContext(place.ctx)),
            }
        }
    }

    unsafe fn leave(&self, previous: Previous) -> Outcome {
        match previous.0 {
            0 => done("aclrtSetCurrentContext"),
            // SAFETY: it was current before.
            was => unsafe {
                call!(
                    self.0.t,
                    aclrtSetCurrentContext(Handle(was as usize as *mut c_void))
                )
            },
        }
    }

    unsafe fn name(&self, to: *mut c_char, n: i32, ordinal: i32) -> Outcome {
        // SAFETY: a static text, or NULL.
        let soc = unsafe { text((self.0.t.aclrtGetSocName)()) };
        let name = format!("{soc} {ordinal}");
        let bytes = &name.as_bytes()[..name.len().min(n.max(1) as usize - 1)];
        // SAFETY: the caller has room for `n` bytes; the end of the text is written too.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len());
            to.add(bytes.len()).write(0);
        }
        done("aclrtGetSocName")
    }

    unsafe fn bus(&self, to: *mut c_char, n: i32, _: i32) -> Outcome {
        if n > 0 {
            // SAFETY: the caller has room.
            unsafe { to.write(0) };
        }
        done("aclrtGetDeviceInfo")
    }

    unsafe fn uuid(&self, id: &mut [u8; 16], ordinal: i32) -> Outcome {
        let at = id.as_mut_ptr().cast();
        // SAFETY: room for the struct, which has 16 bytes.
        unsafe { call!(self.0.t, optional aclrtDeviceGetUuid(ordinal, at)) }
    }

    unsafe fn reach(&self, other: &Place) -> Outcome {
        // SAFETY: both devices are held.
        unsafe { call!(self.0.t, aclrtDeviceEnablePeerAccess(other.ordinal, 0)) }
    }

    unsafe fn host_alloc(&self, at: &mut *mut c_void, bytes: usize, _: u32) -> Outcome {
        // SAFETY: the out pointer lives for the call.
        let o = unsafe { call!(self.0.t, aclrtMallocHost(at, bytes)) };
        self.0.keep_host(*at, bytes, o)
    }

    unsafe fn host_free(&self, at: *mut c_void) -> Outcome {
        self.0.forget_host(at);
        // SAFETY: allocated by `host_alloc`, freed once.
        unsafe { call!(self.0.t, aclrtFreeHost(at)) }
    }

    unsafe fn host_register(&self, at: *mut c_void, bytes: usize, _: u32) -> Outcome {
        let (n, flags) = (bytes as u64, acl_table::HOST_REG_PINNED);
        // What was registered otherwise is for kernels alone: copies want page-locked memory, and whole pages of it.
        let o = match (at as usize).is_multiple_of(acl_table::PAGE) {
            // SAFETY: promised by the caller.
            true => unsafe { call!(self.0.t, optional aclrtHostRegisterV2(at, n, flags)) },
            false => Outcome {
                name: "aclrtHostRegisterV2 (of memory that begins inside a page)",
                status: error::NOT_SUPPORTED,
            },
        };
        self.0.keep_host(at, bytes, o)
    }

    unsafe fn host_unregister(&self, at: *mut c_void) -> Outcome {
        self.0.forget_host(at);
        // SAFETY: registered by `host_register`.
        unsafe { call!(self.0.t, optional aclrtHostUnregister(at)) }
    }

    unsafe fn host_seen(&self, at: &mut Address, host: *mut c_void) -> Outcome {
        // Copies take the host's own address.
        *at = host as u64;
        done("aclrtHostRegister")
    }

    unsafe fn copy(&self, to: Address, from: Address, bytes: usize, stream: Handle) -> Outcome {
        // SAFETY: promised by the caller.
        unsafe { self.0.copy(to, from, bytes, stream) }
    }

    unsafe fn copy_peer(
        &self,
        to: Address,
        there: &Place,
        from: Address,
        here: &Place,
        bytes: usize,
        stream: Handle,
    ) -> Outcome {
        // SAFETY: promised by the caller.
        unsafe {
            match self.0.open_copies(here, there) {
                o if o.done() => self.0.copy(to, from, bytes, stream),
                o => o,
            }
        }
    }

    unsafe fn copy_rows(
        &self,
        to: Address,
        dpitch: usize,
        from: Address,
        spitch: usize,
        width: usize,
        height: usize,
        stream: Handle,
    ) -> Outcome {
        let aligned =
            (to | from | dpitch as u64 | spitch as u64).is_multiple_of(acl_table::COPY_ALIGN);
        let by_one = match self.0.way(to, from) {
            Some(acl_table::copy::DEVICE_TO_DEVICE) => aligned && !self.0.copies_anywhere(),
            way => way.is_none(),
        };
        if let (Some(way), false) = (self.0.way(to, from), by_one) {
            // SAFETY: promised by the caller.
            return unsafe {
                self.0
                    .send_rows(way, to, dpitch, from, spitch, width, height, stream)
            };
        }
        for i in 0..height as u64 {
            let (to, from) = (to + i * dpitch as u64, from + i * spitch as u64);
            // SAFETY: promised by the caller.
            let o = unsafe { self.copy(to, from, width, stream) };
            if !o.done() {
                return o;
            }
        }
        done("aclrtMemcpyAsync")
    }

    unsafe fn fill_bytes(&self, to: Address, value: u8, n: usize, stream: Handle) -> Outcome {
        // SAFETY: promised by the caller.
        unsafe {
            match self.0.is_host(to) {
                true => self.0.fill(to, &[value], n, stream),
                false => call!(
                    self.0.t,
                    aclrtMemsetAsync(pointer(to), n, value.into(), n, stream)
                ),
            }
        }
    }

    unsafe fn fill_halves(&self, to: Address, value: u16, n: usize, stream: Handle) -> Outcome {
        // SAFETY: promised by the caller.
        unsafe { self.0.fill(to, &value.to_ne_bytes(), n, stream) }
    }

    unsafe fn fill_words(&self, to: Address, value: u32, n: usize, stream: Handle) -> Outcome {
        // SAFETY: promised by the caller.
        unsafe { self.0.fill(to, &value.to_ne_bytes(), n, stream) }
    }

    unsafe fn fill_bytes_apart(
        &self,
        to: Address,
        pitch: usize,
        value: u8,
        n: usize,
        stream: Handle,
    ) -> Outcome {
        if self.0.is_host(to) {
            let to = to as usize;
            let f = move || {
                for i in 0..n {
                    // SAFETY: inside memory that lives until the stream has passed the fill.
                    unsafe { ((to + i * pitch) as *mut u8).write(value) };
                }
            };
            // SAFETY: promised by the caller.
            return unsafe { self.0.on_host(stream, Box::new(f)) };
        }
        let send = |from: *const c_void| {
            let way = acl_table::copy::HOST_TO_DEVICE;
            // SAFETY: a byte a row, of a tile that holds as many.
            unsafe {
                self.0
                    .send_rows(way, to, pitch, from as u64, 1, 1, n, stream)
            }
        };
        let fill = |b: &mut [u8]| b.fill(value);
        // SAFETY: promised by the caller.
        unsafe { self.0.staging.with(&self.0.t, n, stream, fill, send) }
    }

    unsafe fn priorities(&self, least: &mut i32, greatest: &mut i32) -> Outcome {
        // There is one.
        (*least, *greatest) = (0, 0);
        done("aclrtCreateStreamWithConfig")
    }

    unsafe fn stream(&self, stream: &mut Handle, _: u32, _: i32) -> Outcome {
        let (priority, flags) = (acl_table::PRIORITY, acl_table::STREAM_FLAGS);
        // SAFETY: the out pointer lives for the call.
        let o = unsafe {
            call!(
                self.0.t,
                aclrtCreateStreamWithConfig(stream, priority, flags)
            )
        };
        if o.done() {
            self.0.keep_lane(*stream);
        }
        o
    }

    unsafe fn stream_destroy(&self, stream: Handle) -> Outcome {
        let t = &self.0.t;
        let end = Instant::now() + GIVE_UP;
        // ACL wants a stream to have ended before it is destroyed.
        let ended = loop {
            // SAFETY: the stream is alive.
            match unsafe { self.0.ended(stream) }.status {
                SUCCESS => break true,
                NOT_READY if Instant::now() < end => std::thread::sleep(Duration::from_micros(50)),
                _ => break false,
            }
        };
        // SAFETY: the caller has made the device current.
        if let Some(r) = unsafe { self.0.forget_lane(stream) } {
            r.end(&self.0.t, stream);
        }
        // SAFETY: made by us, destroyed once.
        unsafe {
            match (ended, t.aclrtDestroyStreamForce.is_some()) {
                (false, true) => {
                    let _ = call!(t, optional aclrtStreamAbort(stream));
                    call!(t, optional aclrtDestroyStreamForce(stream))
                }
                _ => call!(t, aclrtDestroyStream(stream)),
            }
        }
    }

    unsafe fn stream_query(&self, stream: Handle) -> Outcome {
        // SAFETY: promised by the caller.
        unsafe { self.0.ended(stream) }
    }

    unsafe fn stream_wait(&self, stream: Handle, event: Handle) -> Outcome {
        // SAFETY: promised by the caller.
        let m = unsafe { mark(event) };
        match m.pending() {
            // SAFETY: as above.
            true => unsafe { self.0.wait(stream, m) },
            false => done("aclrtStreamWaitEvent"),
        }
    }

    unsafe fn event(&self, event: &mut Handle, _: u32) -> Outcome {
        let mut raw = Handle::NULL;
        // SAFETY: the out pointer lives for the call.
        let o = unsafe {
            call!(
                self.0.t,
                aclrtCreateEventExWithFlag(&mut raw, acl_table::EVENT_FLAGS)
            )
        };
        if o.done() {
            let recorded = Mutex::default();
            *event = Handle(Box::into_raw(Box::new(Mark { raw, recorded })).cast());
        }
        o
    }

    unsafe fn event_destroy(&self, event: Handle) -> Outcome {
        // SAFETY: made by `event`, destroyed once.
        unsafe {
            let m = Box::from_raw(event.0.cast::<Mark>());
            call!(self.0.t, aclrtDestroyEvent(m.raw))
        }
    }

    unsafe fn event_record(&self, event: Handle, stream: Handle) -> Outcome {
        // SAFETY: promised by the caller.
        unsafe {
            let m = mark(event);
            let o = call!(self.0.t, aclrtRecordEvent(m.raw, stream));
            if o.done() {
                self.0.recorded(stream, m);
            }
            o
        }
    }

    unsafe fn event_query(&self, event: Handle) -> Outcome {
        let mut s = acl_table::EVENT_COMPLETE;
        // SAFETY: promised by the caller.
        let m = unsafe { mark(event) };
        if !m.pending() {
            return done("aclrtQueryEventStatus");
        }
        // SAFETY: as above.
        let o = unsafe { call!(self.0.t, aclrtQueryEventStatus(m.raw, &mut s)) };
        match o.done() && s != acl_table::EVENT_COMPLETE {
            true => Outcome {
                status: NOT_READY,
                ..o
            },
            false => o,
        }
    }

    unsafe fn event_elapsed(&self, ms: &mut f32, from: Handle, to: Handle) -> Outcome {
        // SAFETY: promised by the caller.
        unsafe {
            call!(
                self.0.t,
                aclrtEventElapsedTime(ms, mark(from).raw, mark(to).raw)
            )
        }
    }

    unsafe fn allow_shared(&self, _: Handle, _: i32) -> Outcome {
        done("aclrtLaunchKernel")
    }

    unsafe fn room(&self, free: &mut usize, total: &mut usize) -> Outcome {
        // SAFETY: the out pointers live for the call.
        unsafe { call!(self.0.t, aclrtGetMemInfo(acl_table::HBM, free, total)) }
    }

    unsafe fn alloc(&self, at: &mut Address, bytes: usize) -> Outcome {
        // SAFETY: the out pointer lives for the call.
        unsafe { call!(self.0.t, aclrtMalloc(out(at), bytes, acl_table::HUGE_FIRST)) }
    }

    unsafe fn free(&self, at: Address) -> Outcome {
        // SAFETY: allocated by `alloc`, freed once.
        unsafe { call!(self.0.t, aclrtFree(pointer(at))) }
    }

    unsafe fn can_reach(&self, can: &mut i32, a: i32, b: i32) -> Outcome {
        // SAFETY: the out pointer lives for the call.
        unsafe { call!(self.0.t, aclrtDeviceCanAccessPeer(can, a, b)) }
    }

    by_table! {
        fn fill_words_apart(_: Address, _: usize, _: u32, _: usize, _: Handle) = missing aclrtMemset2dAsync;
        fn wait_value(_: Handle, _: Address, _: u64) = missing aclrtValueWait;
        fn write_value(_: Handle, _: Address, _: u64) = missing aclrtValueWrite;
        fn module(_: &mut Handle, _: *const c_void) = missing aclrtBinaryLoadFromData;
        fn module_unload(_: Handle) = missing aclrtBinaryUnLoad;
        fn function(_: &mut Handle, _: Handle, _: *const c_char) = missing aclrtBinaryGetFunction;
        fn launch(_: Handle, _: [u32; 3], _: [u32; 3], _: u32, _: Handle, _: *mut *mut c_void) = missing aclrtLaunchKernel;
        fn capture_begin(_: Handle) = missing aclmdlRICaptureBegin;
        fn capture_end(_: Handle, _: &mut Handle) = missing aclmdlRICaptureEnd;
        fn graph_instantiate(_: &mut Handle, _: Handle) = missing aclmdlRIInstantiate;
        fn graph_destroy(_: Handle) = missing aclmdlRIDestroy;
        fn graph_launch(_: Handle, _: Handle) = missing aclmdlRIExecuteAsync;
        fn graph_release(_: Handle) = missing aclmdlRIDestroy;
        fn physical(_: &mut u64, _: usize, _: &AllocationProp) = missing aclrtMallocPhysical;
        fn physical_release(_: u64) = missing aclrtFreePhysical;
        fn physical_of(_: &mut u64, _: *mut c_void) = missing aclrtMemRetainAllocationHandle;
        fn granularity(_: &mut usize, _: &AllocationProp) = missing aclrtMemGetAllocationGranularity;
        fn reserve(_: &mut Address, _: usize) = missing aclrtReserveMemAddress;
        fn unreserve(_: Address, _: usize) = missing aclrtReleaseMemAddress;
        fn map(_: Address, _: usize, _: u64) = missing aclrtMapMem;
        fn unmap(_: Address, _: usize) = missing aclrtUnmapMem;
        fn access(_: Address, _: usize, _: &AccessDesc) = missing aclrtMemSetAccess;
        fn share(_: &mut i32, _: u64) = missing aclrtMemExportToShareableHandle;
        fn shared(_: &mut u64, _: i32) = missing aclrtMemImportFromShareableHandle;
    }
}
