//! What the ranks of one process share: the step at which all stop, and the first failure.

use crate::train_error::TrainError;
use crossweave_hal::{AbortHandle, Awake, Bootstrap, Code, Error, HostServices, KvStore};
use crossweave_mesh::JobStore;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Default)]
struct State {
    /// Steps that some rank has begun.
    begun: u64,
    /// No step after this many may begin.
    end: Option<u64>,
    failed: bool,
    /// Saves that are being written.
    saving: u32,
    first: Option<TrainError>,
    aborts: Vec<AbortHandle>,
}

/// Shared by the ranks of a job.
pub struct Shared {
    state: Mutex<State>,
    stop: Arc<AtomicBool>,
    /// The gate of a job of several processes.
    store: Option<JobStore>,
}

/// For rank 0's word to reach every process.
const WORD: Duration = Duration::from_secs(120);

impl Shared {
    /// `stop` is set by a signal; `store` reaches the ranks of other processes.
    pub fn new(stop: Arc<AtomicBool>, store: Option<JobStore>) -> Shared {
        Shared {
            store,
            state: Mutex::default(),
            stop,
        }
    }

    // Values are replaced whole, so what a panicking thread held is usable.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// May the step that follows `done` steps begin? Every rank gets the same answer for the same `done`, which a signal alone could not
    /// give: all stop at the last step that any of them has begun. Nobody waits for it, since a wait outside of collectives is one that
    /// the checker does not see.
    pub fn may_step(&self, rank: u32, done: u64) -> bool {
        if let Some(store) = &self.store {
            return self.may_step_with(store, rank, done);
        }
        let mut state = self.lock();
        if self.stop.load(Ordering::SeqCst) && state.end.is_none() {
            state.end = Some(state.begun.max(done));
        }
        let may = !state.failed && state.end.is_none_or(|e| done < e);
        if may {
            state.begun = state.begun.max(done + 1);
        }
        may
    }

    /// The same between processes, where rank 0 decides: a rank reads the figures of the step before the last before it goes on, so no
    /// rank is more than one step ahead of rank 0, and an end two steps on, which all know before rank 0 goes on, comes in time for
    /// everybody.
    fn may_step_with(&self, store: &JobStore, rank: u32, done: u64) -> bool {
        let asked = self.stop.load(Ordering::SeqCst);
        let known = self.lock().end;
        let end = match (known, rank) {
            (Some(end), _) => Some(end),
            (None, 0) if asked || store.peek("stop").is_some() => {
                let end = done + 2;
                if let Err(e) = store.push("end", &end.to_le_bytes(), WORD) {
                    self.fail(TrainError::Hal(e));
                }
                Some(end)
            }
            (None, 0) => None,
            (None, _) => {
                if asked && store.set("stop", b"").is_err() {
                    return false;
                }
                let bytes = store.peek("end").and_then(|v| v.try_into().ok());
                bytes.map(u64::from_le_bytes)
            }
        };
        let mut state = self.lock();
        // Another rank of this process may have learnt it meanwhile.
        state.end = state.end.or(end);
        let end = state.end;
        !state.failed && end.is_none_or(|e| done < e)
    }

    /// Has a rank failed?
    pub fn has_failed(&self) -> bool {
        self.lock().failed
    }

    /// A save is being written until what this gives is dropped.
    pub fn begin_save(self: &Arc<Shared>) -> Saving {
        self.lock().saving += 1;
        Saving(self.clone())
    }

    /// Is one being written?
    pub fn saving(&self) -> bool {
        self.lock().saving > 0
    }

    /// Makes a rank's communicators known, so that others can abort them.
    pub fn register(&self, handles: Vec<AbortHandle>) {
        let mut state = self.lock();
        if state.failed {
            let _ = handles.iter().try_for_each(AbortHandle::release);
        }
        state.aborts.extend(handles);
    }

    /// Records a failure and stops everybody. A failure that follows from another one does not replace it.
    pub fn fail(&self, e: TrainError) {
        let mut state = self.lock();
        state.failed = true;
        let replaces = match &state.first {
            None => true,
            Some(first) => first.is_secondary() && !e.is_secondary(),
        };
        if replaces {
            state.first = Some(e);
        }
        let aborts = std::mem::take(&mut state.aborts);
        drop(state);
        if let Some(store) = &self.store {
            store.give_up();
        }
        // Each is tried; one that cannot be aborted has failed itself.
        for handle in &aborts {
            let _ = handle.release();
        }
        // All before any goes: the end of one waits for what it has in flight, which may be behind another's.
        drop(aborts);
    }

    /// The failure to show, if any.
    pub fn first_error(&self) -> Option<TrainError> {
        self.lock().first.take()
    }
}

/// See [`Shared::begin_save`].
pub struct Saving(Arc<Shared>);

impl Drop for Saving {
    fn drop(&mut self) {
        self.0.lock().saving -= 1;
    }
}

/// Ranks find each other through the host's store; a rank that fails before the group exists does not leave the others waiting.
pub struct StoreBoot<'a> {
    host: &'a HostServices,
    shared: &'a Shared,
}

impl<'a> StoreBoot<'a> {
    /// Over the store of `host`.
    pub fn new(host: &'a HostServices, shared: &'a Shared) -> StoreBoot<'a> {
        StoreBoot { host, shared }
    }
}

impl Bootstrap for StoreBoot<'_> {
    fn set(&self, key: &str, value: &[u8]) -> crossweave_hal::Result<()> {
        self.host.kv().set(key, value)
    }
    fn get(&self, key: &str, timeout: Duration) -> crossweave_hal::Result<Vec<u8>> {
        let mut clock = Awake::new(timeout);
        loop {
            let left = clock.pause();
            let slice = left.min(Duration::from_millis(50));
            match self.host.kv().get(key, Some(slice)) {
                Err(e) if e.code == Code::Timeout && !left.is_zero() => {
                    if self.shared.has_failed() {
                        let why = format!("another rank failed before it set {key:?}");
                        return Err(Error::new(Code::Aborted, "bootstrap", why));
                    }
                }
                done => return done,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_stops_at_the_last_step_that_one_has_begun() {
        let stop = Arc::new(AtomicBool::new(false));
        let shared = Shared::new(stop.clone(), None);
        // Ranks at different steps when the signal comes: the one that is ahead has begun its fourth.
        for (rank, ahead) in [(0, 2), (1, 4), (2, 3)] {
            assert!((0..ahead).all(|done| shared.may_step(rank, done)));
        }
        stop.store(true, Ordering::SeqCst);
        assert!(!shared.may_step(1, 4));
        for (rank, from) in [(0, 2), (2, 3)] {
            assert!((from..4).all(|done| shared.may_step(rank, done)));
            assert!(!shared.may_step(rank, 4));
        }
        let alone = Shared::new(stop, None);
        assert!(!alone.may_step(0, 7));
    }

    #[test]
    fn ranks_of_threads_agree_whenever_the_signal_comes() {
        for at in [1, 5, 50] {
            let stop = Arc::new(AtomicBool::new(false));
            let shared = Shared::new(stop.clone(), None);
            let walk = |rank: u32| {
                let mut done = 0;
                while shared.may_step(rank, done) {
                    done += 1;
                    if rank == 0 && done == at {
                        stop.store(true, Ordering::SeqCst);
                    }
                }
                done
            };
            let ends: Vec<u64> = std::thread::scope(|s| {
                let walk = &walk;
                let all: Vec<_> = (0..3).map(|r| s.spawn(move || walk(r))).collect();
                all.into_iter().map(|t| t.join().unwrap()).collect()
            });
            assert!(ends.iter().all(|e| *e == ends[0] && *e >= at), "{ends:?}");
        }
    }

    #[test]
    fn the_first_cause_is_shown_and_no_rank_goes_on() {
        let shared = Shared::new(Arc::default(), None);
        let aborted = crossweave_hal::Error::new(crossweave_hal::Code::Aborted, "x", "y");
        assert!(shared.may_step(1, 0));
        shared.fail(TrainError::Hal(aborted));
        shared.fail(TrainError::refused("the cause", "the fix"));
        assert!(!shared.may_step(1, 1));
        assert!(shared.has_failed());
        let shown = shared.first_error().unwrap().to_string();
        assert!(shown.contains("the cause"), "{shown}");
    }
}
