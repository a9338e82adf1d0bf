//! The shared memory in which the processes of one host check each other's collectives; they agree on its place through
//! the job's store.

use crate::process_map::ProcessMap;
use crate::store::JobStore;
use crossweave_hal::death_watch::{DeathWatch, WATCHED, watch};
use crossweave_hal::{CheckerState, KvStore, Result};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Shared memory as a file system.
const SHARED: &str = "/dev/shm";

/// The checker state of this process, with the ranks of the same `host` on it. Every process calls this. A host without shared memory,
/// and ranks of other hosts, are not compared: there a rank that does not come is named at the timeout.
///
/// # Errors
/// A process that does not come within `timeout`.
pub fn checker_state(
    store: &JobStore,
    process_map: &ProcessMap,
    host: &str,
    timeout: Duration,
) -> Result<CheckerState> {
    checker_state_in(Path::new(SHARED), store, process_map, host, timeout)
}

/// The same in a folder of the caller's choice.
///
/// # Errors
/// As [`checker_state`].
pub fn checker_state_in(
    shared: &Path,
    store: &JobStore,
    process_map: &ProcessMap,
    host: &str,
    timeout: Duration,
) -> Result<CheckerState> {
    let me = process_map.process();
    if me == 0 {
        let name = RandomState::new().build_hasher().finish();
        store.set("checker", format!("crossweave-{name:016x}").as_bytes())?;
    }
    let name = store.get("checker", Some(timeout))?;
    let name = String::from_utf8_lossy(&name).into_owned();
    store.set(&format!("checker/host/{me}"), host.as_bytes())?;
    let mut near = vec![];
    for other in 0..process_map.processes() {
        let theirs = store.get(&format!("checker/host/{other}"), Some(timeout))?;
        if theirs == host.as_bytes() {
            near.push(other);
        }
    }
    let folder = Folder(shared.join(name));
    // A process that finds no room reports it; the others go on without it.
    let own = CheckerState::in_folder(&folder.0, process_map.here());
    let sits: &[u8] = if own.is_ok() { b"1" } else { b"0" };
    // Without it a death is reported by the end of a connection, as on other hosts.
    let death_watch = |process: u32| folder.0.join(format!("death_watch{process}"));
    if let Ok(v) = DeathWatch::keep(&death_watch(me)) {
        store.keep(v);
    }
    store.set(&format!("checker/record/{me}"), sits)?;
    let mut seated = vec![];
    for other in &near {
        let there = store.get(&format!("checker/record/{other}"), Some(timeout))?;
        if there == b"1" {
            seated.extend(process_map.of(*other));
        }
    }
    let board = own.unwrap_or_default();
    let met = board.rendezvous(&seated);
    // Those behind this one, in a ring: each that watches over one process is at another distance from it than all others. Of those further away
    // one hears by the store.
    let behind = near.iter().skip_while(|p| **p <= me).chain(&near);
    let others = behind
        .filter(|p| **p != me)
        .take(WATCHED.min(near.len() - 1));
    let others: Vec<u32> = others.copied().collect();
    let watched = others
        .iter()
        .enumerate()
        .map(|(far, p)| (death_watch(*p), far));
    let watched: Vec<_> = watched.collect();
    let killed = store.killed();
    // As above.
    let all = others.len() + 1 == process_map.processes() as usize;
    let _ = watch(&watched, all, move |n| killed(others[n]));
    // The first of a host takes the names away once all have opened them: nothing stays behind, however the job ends.
    store.set(&format!("checker/met/{me}"), b"")?;
    for other in &near {
        store.get(&format!("checker/met/{other}"), Some(timeout))?;
    }
    drop(folder);
    met.map(|()| board)
}

/// Removed when all are done with it, or when one gives up.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // Several processes remove it; the first one does.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
