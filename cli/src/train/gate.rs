//! What the ranks of one process share: permission to begin a step, so that all stop at the same one, and the first failure.

use crate::error::CliError;
use crossweave_hal::{AbortHandle, Awake, Bootstrap, Code, Error, HostServices, KvStore};
use crossweave_mesh::JobStore;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Default)]
struct State {
    /// Steps rank 0 has permitted so far.
    permitted: u64,
    /// No step after this many may begin.
    end: Option<u64>,
    failed: bool,
    first: Option<CliError>,
    aborts: Vec<AbortHandle>,
}

/// Shared by the ranks of a job.
pub struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    stop: Arc<AtomicBool>,
    /// Of a job of several processes.
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
            changed: Condvar::new(),
            stop,
        }
    }

    // Values are replaced whole, so what a panicking thread held is usable.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// May the step that follows `done` steps begin? Rank 0 decides for all; the others wait for its word. Everybody gets the same
    /// answer for the same `done`, which a signal alone could not give.
    pub fn may_step(&self, rank: u32, done: u64) -> bool {
        if let Some(store) = &self.store {
            return self.may_step_with(store, rank, done);
        }
        let mut state = self.lock();
        if rank == 0 {
            if self.stop.load(Ordering::SeqCst) && state.end.is_none() {
                state.end = Some(done);
            }
            state.permitted = done + 1;
            self.changed.notify_all();
        }
        loop {
            if state.failed || state.end.is_some_and(|e| done >= e) {
                return false;
            }
            if state.permitted > done {
                return true;
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The same between processes. Nobody waits for a word at each step: a rank reads the figures of the step before the last before it
    /// goes on, so no rank is more than one step ahead of rank 0, and an end two steps on, which all know before rank 0 goes on, comes
    /// in time for everybody.
    fn may_step_with(&self, store: &JobStore, rank: u32, done: u64) -> bool {
        let asked = self.stop.load(Ordering::SeqCst);
        let known = self.lock().end;
        let end = match (known, rank) {
            (Some(end), _) => Some(end),
            (None, 0) if asked || store.peek("stop").is_some() => {
                let end = done + 2;
                if let Err(e) = store.push("end", &end.to_le_bytes(), WORD) {
                    self.fail(CliError::Hal(e));
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

    /// Makes a rank's communicators known, so that others can abort them.
    pub fn register(&self, handles: Vec<AbortHandle>) {
        let mut state = self.lock();
        if state.failed {
            let _ = handles.iter().try_for_each(AbortHandle::release);
        }
        state.aborts.extend(handles);
    }

    /// Records a failure and stops everybody. A failure that follows from another one does not replace it.
    pub fn fail(&self, e: CliError) {
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
        self.changed.notify_all();
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
    pub fn first_error(&self) -> Option<CliError> {
        self.lock().first.take()
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
    fn every_rank_stops_at_the_step_rank_0_stopped_at() {
        let stop = Arc::new(AtomicBool::new(false));
        let shared = Shared::new(stop.clone(), None);
        let walk = |rank: u32| {
            let mut done = 0;
            while shared.may_step(rank, done) {
                done += 1;
                if rank == 0 && done == 50 {
                    stop.store(true, Ordering::SeqCst);
                }
            }
            done
        };
        std::thread::scope(|s| {
            let walk = &walk;
            let all: Vec<_> = (0..3).map(|r| s.spawn(move || walk(r))).collect();
            for t in all {
                assert_eq!(t.join().unwrap(), 50);
            }
        });
    }

    #[test]
    fn the_first_cause_is_shown_and_waiting_ranks_wake() {
        let shared = Shared::new(Arc::default(), None);
        let aborted = crossweave_hal::Error::new(crossweave_hal::Code::Aborted, "x", "y");
        std::thread::scope(|s| {
            let other = s.spawn(|| shared.may_step(1, 0));
            shared.fail(CliError::Hal(aborted));
            shared.fail(CliError::refused("the cause", "the fix"));
            assert!(!other.join().unwrap());
        });
        assert!(shared.has_failed());
        let shown = shared.first_error().unwrap().to_string();
        assert!(shown.contains("the cause"), "{shown}");
    }
}
