//! ACL as the back end uses it: streams with their host calls, events, which memory is the host's, and what the host does in stream order because
//! ACL does not (copies within the host, fills of more than a byte).

use crate::acl::{self, Functions, HostFn};
use crate::calls::Reporter;
use crate::error;
use crate::staging::Staging;
use crossweave_gpu::{Address, Handle, NOT_READY, Outcome, SUCCESS, call, lock};
use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A stream of ours.
#[derive(Default)]
pub(crate) struct Lane {
    /// Runs its host calls; made by the first.
    pub(crate) reporter: Option<Reporter>,
    /// Numbers of communicators that used it.
    users: Vec<usize>,
    /// How often its work was thrown away.
    pub(crate) ended: Arc<AtomicUsize>,
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
    pub(crate) lanes: Mutex<HashMap<usize, Lane>>,
    pub(crate) staging: Staging,
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
        Acl {
            t: Arc::new(t),
            host: Mutex::default(),
            lanes: Mutex::default(),
            staging: Staging::default(),
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
        let lane = lanes.entry(stream.0 as usize).or_default();
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
        if let Some(l) = lock(&self.lanes).get_mut(&(stream.0 as usize))
            && !l.users.contains(&by)
        {
            l.users.push(by);
        }
    }

    /// The communicator is gone.
    pub(crate) fn unused(&self, by: usize) {
        lock(&self.lanes)
            .values_mut()
            .for_each(|l| l.users.retain(|u| *u != by));
    }

    /// What the communicator left on streams is given up: its peers do not come. ACL ends the stream's work, so that the stream can be let go.
    pub(crate) fn give_up(&self, by: usize) {
        // Held meanwhile: a stream is taken off the list before it is destroyed.
        let lanes = lock(&self.lanes);
        for (s, l) in lanes.iter().filter(|(_, l)| l.users.contains(&by)) {
            let stream = Handle(*s as *mut c_void);
            // SAFETY: a stream that is alive.
            let o = unsafe { call!(self.t, optional aclrtStreamAbort(stream)) };
            l.ended.fetch_add(o.done().into(), Ordering::AcqRel);
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
        match o.status {
            // Given up by us: who waits learns it from the failure of the communicator.
            error::STREAM_ABORT | error::TASK_ABORT => done(o.name),
            _ => o,
        }
    }

    /// Fills `n` times a pattern.
    ///
    /// # Safety
    /// As [`Runtime`] says.
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
    /// As [`Runtime`] says; `room` bytes are there.
    pub(crate) unsafe fn to_device(
        &self,
        to: Address,
        room: usize,
        from: *const c_void,
        bytes: usize,
        s: Handle,
    ) -> Outcome {
        let way = acl::copy::HOST_TO_DEVICE;
        // SAFETY: promised by the caller.
        unsafe {
            call!(
                self.t,
                aclrtMemcpyAsync(pointer(to), room, from, bytes, way, s)
            )
        }
    }
}
