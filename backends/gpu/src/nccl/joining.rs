//! Groups of a library whose joining waits for all ranks: a thread joins, so that nobody else waits, and a group that nobody wants any more is
//! given back by the thread or by its owner, the later of the two.

use super::{IN_PROGRESS, Nccl, SUCCESS};
use crate::device::Dev;
use crate::lock;
use crate::runtime::Handle;
use crate::turns::Turn;
use crossweave_plugin::{Code, Error, Result};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A group that a thread joins.
pub(crate) struct Joining {
    raw: AtomicPtr<c_void>,
    /// What the library answered, [`IN_PROGRESS`] until it has.
    answer: AtomicI32,
    name: Mutex<&'static str>,
    /// Either the thread is done, or nobody wants the group any more; who comes second gives it back.
    met: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Joining {
    /// A thread joins the group of an id, which has the library's length.
    pub(crate) fn begin(
        nccl: &Arc<Nccl>,
        dev: &Arc<Dev>,
        id: &[u8],
        nranks: u32,
        rank: u32,
    ) -> Result<Arc<Joining>> {
        let g = Arc::new(Joining {
            raw: AtomicPtr::default(),
            answer: AtomicI32::new(IN_PROGRESS),
            name: Mutex::new(""),
            met: AtomicBool::new(false),
            thread: Mutex::default(),
        });
        let turn = nccl.other.is_some().then(|| dev.turn());
        let (own, nccl, dev, id) = (g.clone(), nccl.clone(), dev.clone(), id.to_vec());
        let spawned = std::thread::Builder::new()
            .name("cw-join".into())
            .spawn(move || {
                turn.iter().for_each(Turn::wait);
                own.join(&nccl, &dev, &id, nranks, rank);
                drop(turn);
            });
        match spawned {
            Ok(t) => *lock(&g.thread) = Some(t),
            Err(e) => {
                return Err(Error::new(
                    Code::Internal,
                    format!("a thread that joins a group: {e}"),
                ));
            }
        }
        Ok(g)
    }

    fn join(&self, nccl: &Nccl, dev: &Dev, id: &[u8], nranks: u32, rank: u32) {
        if self.met.load(SeqCst) {
            return;
        }
        let out = self.raw.as_ptr().cast();
        let (name, answer) = match dev.enter_anyway() {
            // SAFETY: the id has the library's length. The address lies in what the thread and the owner share, which is let go only when no
            // library writes there any more (`Inner`).
            Ok(_in) => unsafe { nccl.join_raw(out, nranks, id, rank) },
            Err(_) => ("the device", 1),
        };
        let raw = self.raw();
        // One that was asked not to wait says so although it did.
        let answer = match raw == Handle::NULL {
            false if matches!(answer, SUCCESS | IN_PROGRESS) => SUCCESS,
            _ if answer == IN_PROGRESS || answer == SUCCESS => 1,
            _ => answer,
        };
        *lock(&self.name) = name;
        self.answer.store(answer, SeqCst);
        if self.met.swap(true, SeqCst)
            && answer == SUCCESS
            && let Ok(_in) = dev.enter_anyway()
        {
            // SAFETY: formed for nobody: who wanted it has left it to this thread.
            unsafe { (nccl.t.ncclCommAbort)(raw) };
        }
    }

    /// The communicator, once the thread has it.
    pub(crate) fn raw(&self) -> Handle {
        Handle(self.raw.load(SeqCst))
    }

    /// Has it formed? The library's refusal.
    pub(crate) fn formed(&self, nccl: &Nccl) -> Result<bool> {
        match self.answer.load(SeqCst) {
            IN_PROGRESS => Ok(false),
            s => nccl
                .check(*lock(&self.name), s, Handle::NULL)
                .map(|()| true),
        }
    }

    /// Nobody wants it any more: is there a communicator to give back? Where not, the thread does it when the library lets it go.
    pub(crate) fn leave(&self) -> bool {
        let done = self.met.swap(true, SeqCst);
        if done && let Some(t) = lock(&self.thread).take() {
            // It has done its work, and ends.
            let _ = t.join();
        }
        done && self.answer.load(SeqCst) == SUCCESS
    }
}
