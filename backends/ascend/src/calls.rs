//! Host calls of a stream: ACL keeps them for a thread that asks for them, and a stream of ours has one of its own, so that a call that waits for
//! another stream's does not keep that one from running.

use crate::acl::{CALLBACK_BLOCK, Functions};
use crossweave_gpu::{Handle, Outcome, call};
use std::ffi::c_void;
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the thread listens before it looks whether it is still wanted, in milliseconds.
const LISTEN: i32 = 100;
/// How long the last call may take to come, of a stream that is let go.
const GIVE_UP: Duration = Duration::from_secs(2);

/// The thread that runs a stream's calls.
pub(crate) struct Reporter {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// The thread's number, as ACL wants it; elsewhere the type is another.
#[allow(clippy::unnecessary_cast)]
fn number(thread: &JoinHandle<()>) -> u64 {
    thread.as_pthread_t() as u64
}

/// The last call of a stream.
unsafe extern "C" fn last(stop: *mut c_void) {
    // SAFETY: the reference made in `end`, handed over once.
    let stop = unsafe { Arc::from_raw(stop.cast::<AtomicBool>()) };
    stop.store(true, SeqCst);
}

impl Reporter {
    /// A thread for the stream's calls.
    ///
    /// # Safety
    /// The stream is alive and its context current.
    pub(crate) unsafe fn new(t: &Arc<Functions>, stream: Handle) -> Result<Reporter, Outcome> {
        let mut ctx = Handle::NULL;
        // SAFETY: the out pointer lives for the call.
        let o = unsafe { call!(t, aclrtGetCurrentContext(&mut ctx)) };
        if !o.done() {
            return Err(o);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (of_thread, own) = (stop.clone(), t.clone());
        let spawned = std::thread::Builder::new()
            .name("cw-ascend-calls".into())
            .spawn(move || {
                // SAFETY: a context of ours; what the thread is to call was given with its argument.
                unsafe {
                    (own.aclrtSetCurrentContext)(ctx);
                    while !of_thread.load(SeqCst) {
                        // That nothing came in time is an answer too.
                        (own.aclrtProcessReport)(LISTEN);
                    }
                }
            });
        let Ok(thread) = spawned else {
            return Err(Outcome {
                name: "aclrtSubscribeReport",
                status: 200000,
            });
        };
        let id = number(&thread);
        // SAFETY: the thread runs until `end`.
        let o = unsafe { call!(t, aclrtSubscribeReport(id, stream)) };
        match o.done() {
            true => Ok(Reporter { stop, thread }),
            false => {
                stop.store(true, SeqCst);
                let _ = thread.join();
                Err(o)
            }
        }
    }

    /// Ends the thread when the stream has come to its last call.
    pub(crate) fn end(self, t: &Functions, stream: Handle) {
        let arg = Arc::into_raw(self.stop.clone()).cast_mut().cast();
        let block = CALLBACK_BLOCK;
        // SAFETY: `last` takes the reference, once; a refusal gives it back.
        unsafe {
            if !call!(t, aclrtLaunchCallback(last, arg, block, stream)).done() {
                drop(Arc::from_raw(arg.cast::<AtomicBool>()));
                self.stop.store(true, SeqCst);
            }
        }
        let end = Instant::now() + GIVE_UP;
        while !self.stop.load(SeqCst) && Instant::now() < end {
            std::thread::sleep(Duration::from_micros(50));
        }
        self.stop.store(true, SeqCst);
        let id = number(&self.thread);
        let _ = self.thread.join();
        // SAFETY: subscribed by `new`; the number is only compared.
        unsafe { (t.aclrtUnSubscribeReport)(id, stream) };
    }
}
