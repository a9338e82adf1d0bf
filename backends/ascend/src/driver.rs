//! ACL as the back end uses it: streams with their host calls, events, which memory is the host's, copies within ACL's limits, and what the host
//! does in stream order because ACL does not (copies within the host, fills of more than a byte).

use crate::acl::{self, Functions, HostFn};
use crate::calls::Reporter;
use crate::error;
use crate::staging::Staging;
use crossweave_gpu::{Address, Handle, NOT_READY, Outcome, Place, SUCCESS, call, lock};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A stream of ours.
#[derive(Default)]
struct Lane {
    /// Runs its host calls; made by the first.
    reporter: Option<Reporter>,
    /// Numbers of communicators that used it.
    users: Vec<usize>,
    /// How often its work was thrown away.
    ended: Arc<AtomicUsize>,
    /// Its waits for streams that communicators used.
    waits: Vec<Wait>,
    /// It waited for what was thrown away, so that its own work was too.
    stuck: bool,
}

/// The streams by their handles.
#[derive(Default)]
struct Lanes {
    all: HashMap<usize, Lane>,
    /// Events behind waits that are over, by context.
    spare: HashMap<usize, Vec<Handle>>,
}

/// A wait that may not be over.
struct Wait {
    /// The number of times that the work of the awaited stream was thrown away.
    of: Arc<AtomicUsize>,
    /// Recorded behind the wait.
    passed: Handle,
}

impl Wait {
    /// Has it been passed? A failure has not.
    fn over(&self, t: &Functions) -> bool {
        let mut s = 0;
        // SAFETY: the event is alive while this is.
        let o = unsafe { call!(t, aclrtQueryEventStatus(self.passed, &mut s)) };
        o.done() && s == acl::EVENT_COMPLETE
    }
}

/// An event. It counts as passed until it is recorded, and when what it was recorded behind has been thrown away with it.
pub(crate) struct Mark {
    pub(crate) raw: Handle,
    /// How often the work of the stream was thrown away that it was last recorded on: by now, and when it was recorded.
    pub(crate) recorded: Mutex<Option<(Arc<AtomicUsize>, usize)>>,
}

impl Mark {
    /// Is there a record that can still be passed?
    pub(crate) fn pending(&self) -> bool {
        let recorded = lock(&self.recorded);
        let pending = recorded.as_ref();
        pending.is_some_and(|(now, then)| now.load(Ordering::Acquire) == *then)
    }
}

/// ACL, started.
pub(crate) struct Acl {
    pub(crate) t: Arc<Functions>,
    /// Page-locked memory of the host: begin and end.
    host: Mutex<BTreeMap<u64, u64>>,
    lanes: Mutex<Lanes>,
    pub(crate) staging: Staging,
    copies: Copies,
}

/// The limits of copies under this version of ACL, and the pairs of devices that may copy to each other.
#[derive(Default)]
struct Copies {
    /// Newer than CANN 8.3: they begin anywhere, and rows are copied on the device too.
    anywhere: bool,
    /// Devices that were given access: from whom, to whom.
    reached: Mutex<BTreeSet<(i32, i32)>>,
}

/// An address as ACL's functions take it.
pub(crate) fn pointer(at: Address) -> *mut c_void {
    at as usize as *mut c_void
}

/// Nothing to do, which cannot fail.
pub(crate) fn done(name: &'static str) -> Outcome {
    Outcome {
        name,
        status: SUCCESS,
    }
}

/// The event behind a handle of the shared table's.
///
/// # Safety
/// Made by [`Runtime::event`] and not destroyed.
pub(crate) unsafe fn mark<'a>(event: Handle) -> &'a Mark {
    // SAFETY: promised by the caller.
    unsafe { &*event.0.cast::<Mark>() }
}

/// A function of the host's that a stream calls.
pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// Runs and frees a [`Work`].
unsafe extern "C" fn work(arg: *mut c_void) {
    // SAFETY: the box made in `on_host`, handed over once.
    let f = unsafe { Box::from_raw(arg.cast::<Work>()) };
    // The functions are ours and do not panic; one that did must not go through the driver.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
}

impl Acl {
    pub(crate) fn new(t: Functions) -> Acl {
        let mut number = 0;
        let package = c"runtime".as_ptr().cast_mut();
        // SAFETY: a text, which is read, and an out pointer that lives for the call. To CANN 8.3 there is no such function.
        let newer = unsafe { call!(t, optional aclsysGetVersionNum(package, &mut number)) };
        Acl {
            t: Arc::new(t),
            host: Mutex::default(),
            lanes: Mutex::default(),
            staging: Staging::default(),
            copies: Copies {
                anywhere: newer.done(),
                ..Copies::default()
            },
        }
    }

    /// Is it page-locked memory of the host?
    pub(crate) fn is_host(&self, at: Address) -> bool {
        let host = lock(&self.host);
        host.range(..=at)
            .next_back()
            .is_some_and(|(_, end)| at < *end)
    }

    pub(crate) fn keep_host(&self, at: *mut c_void, bytes: usize, o: Outcome) -> Outcome {
        if o.done() {
            lock(&self.host).insert(at as u64, at as u64 + bytes as u64);
        }
        o
    }

    pub(crate) fn forget_host(&self, at: *mut c_void) {
        lock(&self.host).remove(&(at as u64));
    }

    /// Calls a function on a thread of the stream's, which waits for it.
    ///
    /// # Safety
    /// The stream is alive and its context current.
    pub(crate) unsafe fn on_host(&self, stream: Handle, f: Work) -> Outcome {
        let arg = Box::into_raw(Box::new(f));
        // SAFETY: `work` takes the box, once; a refusal gives it back.
        unsafe {
            let o = self.callback(stream, work, arg.cast());
            if !o.done() {
                drop(Box::from_raw(arg));
            }
            o
        }
    }

    /// # Safety
    /// As for [`Acl::on_host`]; `f` takes `arg`.
    unsafe fn callback(&self, stream: Handle, f: HostFn, arg: *mut c_void) -> Outcome {
        let mut lanes = lock(&self.lanes);
        let lane = lanes.all.entry(stream.0 as usize).or_default();
        if lane.reporter.is_none() {
            // SAFETY: promised by the caller.
            match unsafe { Reporter::new(&self.t, stream) } {
                Ok(r) => lane.reporter = Some(r),
                Err(o) => return o,
            }
        }
        drop(lanes);
        // SAFETY: promised by the caller.
        unsafe {
            call!(
                self.t,
                aclrtLaunchCallback(f, arg, acl::CALLBACK_BLOCK, stream)
            )
        }
    }

    /// A communicator has used the stream.
    pub(crate) fn used(&self, stream: Handle, by: usize) {
        if let Some(l) = lock(&self.lanes).all.get_mut(&(stream.0 as usize))
            && !l.users.contains(&by)
        {
            l.users.push(by);
        }
    }

    /// The communicator is gone.
    pub(crate) fn unused(&self, by: usize) {
        lock(&self.lanes)
            .all
            .values_mut()
            .for_each(|l| l.users.retain(|u| *u != by));
    }

    /// Gives up the work that the communicator left on streams, since its peers do not come: ACL ends the streams' work, so that these can be let go. A stream that
    /// waits for a record among that work would wait for ever (the page of `aclrtStreamAbort` says so), and is ended too.
    pub(crate) fn give_up(&self, by: usize) {
        // Held meanwhile: a stream is taken off the list before it is destroyed.
        let mut lanes = lock(&self.lanes);
        let mut gone: Vec<Arc<AtomicUsize>> = Vec::new();
        for (s, l) in lanes.all.iter().filter(|(_, l)| l.users.contains(&by)) {
            if self.throw_away(*s, l) {
                gone.push(l.ended.clone());
            }
        }
        // Streams that wait for one of these, for which others may wait.
        while let Some(of) = gone.pop() {
            for (s, l) in lanes.all.iter_mut().filter(|(_, l)| !l.stuck) {
                let waits = |w: &Wait| Arc::ptr_eq(&w.of, &of) && !w.over(&self.t);
                if l.waits.iter().any(waits) && self.throw_away(*s, l) {
                    l.stuck = true;
                    gone.push(l.ended.clone());
                }
            }
        }
    }

    /// Ends what is queued on a stream.
    fn throw_away(&self, stream: usize, l: &Lane) -> bool {
        let stream = Handle(stream as *mut c_void);
        // SAFETY: a stream that is alive.
        let o = unsafe { call!(self.t, optional aclrtStreamAbort(stream)) };
        l.ended.fetch_add(o.done().into(), Ordering::AcqRel);
        o.done()
    }

    /// A stream waits for the event. Where a communicator may keep that from passing, what lies behind the wait is marked.
    ///
    /// # Safety
    /// Both are alive and the stream's context current.
    pub(crate) unsafe fn wait(&self, stream: Handle, m: &Mark) -> Outcome {
        // SAFETY: promised by the caller.
        let o = unsafe { call!(self.t, aclrtStreamWaitEvent(stream, m.raw)) };
        let record = lock(&m.recorded).clone();
        let (Some((of, then)), true) = (record, o.done()) else {
            return o;
        };
        let mut passed = match self.watch(stream, &of) {
            None => return o,
            Some(spare) => spare.unwrap_or(Handle::NULL),
        };
        // SAFETY: the out pointer lives for the call, and both are of the current context.
        unsafe {
            if passed == Handle::NULL {
                let made = call!(
                    self.t,
                    aclrtCreateEventExWithFlag(&mut passed, acl::EVENT_FLAGS)
                );
                if !made.done() {
                    return made;
                }
            }
            let recorded = call!(self.t, aclrtRecordEvent(passed, stream));
            let mut lanes = lock(&self.lanes);
            if let Some(l) = lanes.all.get_mut(&(stream.0 as usize)) {
                // The communicator may have been given up meanwhile.
                let gone = of.load(Ordering::Acquire) != then;
                l.waits.push(Wait { of, passed });
                l.stuck |= gone && self.throw_away(stream.0 as usize, l);
            }
            recorded
        }
    }

    /// Is what the stream waits for one that a communicator uses, or that waits for one? An event for behind the wait, where one is spare. None
    /// of ACL's calls that may wait is made with the streams locked.
    fn watch(&self, stream: Handle, of: &Arc<AtomicUsize>) -> Option<Option<Handle>> {
        let mut lanes = lock(&self.lanes);
        let Lanes { all, spare } = &mut *lanes;
        let watched = |l: &Lane| !l.users.is_empty() || !l.waits.is_empty();
        let mut each = all.values();
        if !each.any(|l| Arc::ptr_eq(&l.ended, of) && watched(l)) {
            return None;
        }
        let lane = all.get_mut(&(stream.0 as usize))?;
        let mut ctx = Handle::NULL;
        // SAFETY: the out pointer lives for the call.
        unsafe { (self.t.aclrtGetCurrentContext)(&mut ctx) };
        let spare = spare.entry(ctx.0 as usize).or_default();
        let over = lane.waits.extract_if(.., |w| w.over(&self.t));
        spare.extend(over.map(|w| w.passed));
        Some(spare.pop())
    }

    /// Puts a new stream on the list.
    pub(crate) fn keep_lane(&self, stream: Handle) {
        let lane = Lane::default();
        lock(&self.lanes).all.insert(stream.0 as usize, lane);
    }

    /// The event was recorded on the stream.
    pub(crate) fn recorded(&self, stream: Handle, m: &Mark) {
        let lanes = lock(&self.lanes);
        if let Some(l) = lanes.all.get(&(stream.0 as usize)) {
            let then = l.ended.load(Ordering::Acquire);
            *lock(&m.recorded) = Some((l.ended.clone(), then));
        }
    }

    /// Takes a stream off the list; the events of its waits are those of others now.
    ///
    /// # Safety
    /// The stream's context is current.
    pub(crate) unsafe fn forget_lane(&self, stream: Handle) -> Option<Reporter> {
        let lane = lock(&self.lanes).all.remove(&(stream.0 as usize))?;
        for w in lane.waits {
            // SAFETY: made by `wait`, destroyed once: ACL frees it when it has been passed.
            unsafe { (self.t.aclrtDestroyEvent)(w.passed) };
        }
        lane.reporter
    }

    /// Gives back what a context had; its streams are gone.
    pub(crate) fn empty(&self, ctx: Handle) {
        self.staging.empty(&self.t, ctx);
        let spare = lock(&self.lanes).spare.remove(&(ctx.0 as usize));
        for e in spare.into_iter().flatten() {
            // SAFETY: made by `wait`, destroyed once.
            unsafe { (self.t.aclrtDestroyEvent)(e) };
        }
    }

    /// Which way a copy goes; `None`: within the host.
    pub(crate) fn way(&self, to: Address, from: Address) -> Option<i32> {
        match (self.is_host(from), self.is_host(to)) {
            (true, true) => None,
            (true, false) => Some(acl::copy::HOST_TO_DEVICE),
            (false, true) => Some(acl::copy::DEVICE_TO_HOST),
            (false, false) => Some(acl::copy::DEVICE_TO_DEVICE),
        }
    }

    /// Has all of a stream ended? What failed on it is said by the synchronisation of a stream that has ended, not by the question.
    ///
    /// # Safety
    /// The stream is alive and its context current.
    pub(crate) unsafe fn ended(&self, stream: Handle) -> Outcome {
        let mut s = acl::STREAM_COMPLETE;
        // SAFETY: promised by the caller.
        let asked = unsafe { call!(self.t, aclrtStreamQuery(stream, &mut s)) };
        let o = match asked.done() && s == acl::STREAM_COMPLETE {
            // SAFETY: promised by the caller.
            true => unsafe { call!(self.t, aclrtSynchronizeStream(stream)) },
            false if asked.done() => Outcome {
                status: NOT_READY,
                ..asked
            },
            false => asked,
        };
        let stuck = || {
            let lanes = lock(&self.lanes);
            let lane = lanes.all.get(&(stream.0 as usize));
            lane.is_some_and(|l| l.stuck)
        };
        match o.status {
            // It only waited for one that was given up: nothing else would say that its work is gone.
            SUCCESS | error::STREAM_ABORT | error::TASK_ABORT if stuck() => Outcome {
                status: error::STREAM_ABORT,
                ..o
            },
            // Given up by us: who waits learns it from the failure of the communicator.
            error::STREAM_ABORT | error::TASK_ABORT => done(o.name),
            _ => o,
        }
    }

    /// Fills `n` times a pattern.
    ///
    /// # Safety
    /// The spans are live until the stream has passed the copy (R8).
    pub(crate) unsafe fn fill(&self, to: Address, pattern: &[u8], n: usize, s: Handle) -> Outcome {
        let w = pattern.len();
        if self.is_host(to) {
            let (to, pattern) = (to as usize, pattern.to_vec());
            let f = move || {
                for i in 0..n {
                    // SAFETY: inside memory that lives until the stream has passed the fill.
                    unsafe {
                        std::ptr::copy_nonoverlapping(pattern.as_ptr(), (to + i * w) as *mut u8, w)
                    };
                }
            };
            // SAFETY: promised by the caller.
            return unsafe { self.on_host(s, Box::new(f)) };
        }
        /// Bytes of a tile that is copied as often as it takes.
        const TILE: usize = 1 << 20;
        let (all, tile) = (n * w, (n * w).min(TILE / w * w));
        let fill = |b: &mut [u8]| {
            b.chunks_mut(w)
                .for_each(|c| c.copy_from_slice(&pattern[..c.len()]))
        };
        let send = |from: *const c_void| {
            let mut at = 0;
            while at < all {
                let bytes = tile.min(all - at);
                // SAFETY: the tile holds so much, and the destination by the caller's promise.
                let o = unsafe { self.to_device(to + at as u64, all - at, from, bytes, s) };
                if !o.done() {
                    return o;
                }
                at += bytes;
            }
            done("aclrtMemcpyAsync")
        };
        // SAFETY: promised by the caller.
        unsafe { self.staging.with(&self.t, tile, s, fill, send) }
    }

    /// Copies page-locked memory to the device.
    ///
    /// # Safety
    /// The spans are live until the stream has passed the copy (R8), and `room` bytes are there.
    pub(crate) unsafe fn to_device(
        &self,
        to: Address,
        room: usize,
        from: *const c_void,
        bytes: usize,
        s: Handle,
    ) -> Outcome {
        // SAFETY: promised by the caller.
        unsafe { self.send(acl::copy::HOST_TO_DEVICE, to, room, from as u64, bytes, s) }
    }

    /// Copies from and to anywhere.
    ///
    /// # Safety
    /// The spans are live until the stream has passed the copy (R8).
    pub(crate) unsafe fn copy(
        &self,
        to: Address,
        from: Address,
        bytes: usize,
        s: Handle,
    ) -> Outcome {
        match self.way(to, from) {
            // SAFETY: promised by the caller; spans lie inside their memory, so that there is room for what is copied.
            Some(way) => unsafe { self.send(way, to, bytes, from, bytes, s) },
            None => {
                let (to, from) = (to as usize, from as usize);
                // SAFETY: both lie in memory that lives until the stream has passed the copy.
                let f = move || unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
                // SAFETY: promised by the caller.
                unsafe { self.on_host(s, Box::new(f)) }
            }
        }
    }

    /// Copies that way. Where ACL wants aligned addresses, others go as rows, of which it does not.
    ///
    /// # Safety
    /// The spans are live until the stream has passed the copy (R8), and `room` bytes are there.
    unsafe fn send(
        &self,
        way: i32,
        to: Address,
        room: usize,
        from: Address,
        bytes: usize,
        s: Handle,
    ) -> Outcome {
        if self.copies.anywhere || (to | from).is_multiple_of(acl::COPY_ALIGN) {
            let (to, from) = (pointer(to), pointer(from));
            // SAFETY: promised by the caller.
            return unsafe { call!(self.t, aclrtMemcpyAsync(to, room, from, bytes, way, s)) };
        }
        let (rows, rest) = (bytes / acl::ROW, bytes % acl::ROW);
        let done = (bytes - rest) as u64;
        let pitch = acl::ROW;
        // SAFETY: promised by the caller.
        unsafe {
            let o = self.send_rows(way, to, pitch, from, pitch, pitch, rows, s);
            match o.done() && rest > 0 {
                true => self.send_rows(way, to + done, rest, from + done, rest, rest, 1, s),
                false => o,
            }
        }
    }

    /// Copies rows from and to anywhere but within the host.
    ///
    /// # Safety
    /// The spans are live until the stream has passed the copy (R8).
    #[allow(clippy::too_many_arguments)]
    pub(crate) unsafe fn send_rows(
        &self,
        way: i32,
        to: Address,
        dpitch: usize,
        from: Address,
        spitch: usize,
        width: usize,
        height: usize,
        s: Handle,
    ) -> Outcome {
        let within = way == acl::copy::DEVICE_TO_DEVICE && !self.copies.anywhere;
        let lines = acl::ROW / width.clamp(1, acl::ROW);
        // A piece that goes by way of the host lies there without gaps.
        let most = if within { lines } else { acl::ROWS };
        for r in (0..height).step_by(most) {
            for c in (0..width).step_by(acl::ROW) {
                let (w, h) = ((width - c).min(acl::ROW), (height - r).min(most));
                let at = |base: Address, pitch: usize| base + (r * pitch + c) as u64;
                let (to, from) = (at(to, dpitch), at(from, spitch));
                let (dp, sp) = if h == 1 { (w, w) } else { (dpitch, spitch) };
                // SAFETY: promised by the caller; the piece is as long as its rows.
                let o = unsafe {
                    let rows = |way, to: Address, dp, from: Address, sp| {
                        let (to, from) = (pointer(to), pointer(from));
                        call!(self.t, aclrtMemcpy2dAsync(to, dp, from, sp, w, h, way, s))
                    };
                    let by_host = |piece: *const c_void| {
                        let o = rows(acl::copy::DEVICE_TO_HOST, piece as u64, w, from, sp);
                        match o.done() {
                            true => rows(acl::copy::HOST_TO_DEVICE, to, dp, piece as u64, w),
                            false => o,
                        }
                    };
                    match within {
                        true => self.staging.with(&self.t, w * h, s, |_| {}, by_host),
                        false => rows(way, to, dp, from, sp),
                    }
                };
                if !o.done() {
                    return o;
                }
            }
        }
        done("aclrtMemcpy2dAsync")
    }

    /// Do copies begin anywhere, and rows lie on one device?
    pub(crate) fn copies_anywhere(&self) -> bool {
        self.copies.anywhere
    }

    /// Opens copies between two devices, in both directions: ACL wants it before the first.
    ///
    /// # Safety
    /// Both places are held.
    pub(crate) unsafe fn open_copies(&self, a: &Place, b: &Place) -> Outcome {
        let name = "aclrtDeviceEnablePeerAccess";
        let mut reached = lock(&self.copies.reached);
        if a.ordinal == b.ordinal || reached.contains(&(a.ordinal, b.ordinal)) {
            return done(name);
        }
        let mut was = Handle::NULL;
        // SAFETY: promised by the caller; the thread's context is afterwards what it was.
        let o = unsafe {
            let _ = call!(self.t, aclrtGetCurrentContext(&mut was));
            let one_way = |x: &Place, y: &Place| {
                let mut can = 0;
                let o = call!(
                    self.t,
                    aclrtDeviceCanAccessPeer(&mut can, x.ordinal, y.ordinal)
                );
                if !o.done() || can == 0 {
                    let status = if o.done() {
                        error::NOT_SUPPORTED
                    } else {
                        o.status
                    };
                    return Outcome { status, ..o };
                }
                match call!(self.t, aclrtSetCurrentContext(x.ctx)) {
                    o if o.done() => call!(self.t, aclrtDeviceEnablePeerAccess(y.ordinal, 0)),
                    o => o,
                }
            };
            let o = match one_way(a, b) {
                o if o.done() => one_way(b, a),
                o => o,
            };
            let _ = call!(self.t, aclrtSetCurrentContext(was));
            o
        };
        if o.done() {
            reached.extend([(a.ordinal, b.ordinal), (b.ordinal, a.ordinal)]);
        }
        o
    }
}
