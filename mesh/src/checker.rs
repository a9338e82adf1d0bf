//! The shared memory in which the processes of one host check each other's collectives; they agree on its place through
//! the job's store.

use crate::process_map::ProcessMap;
use crate::store::JobStore;
use crossweave_hal::death_watch::{DeathWatch, WATCHED, watch};
use crossweave_hal::{CheckerState, Distant, HostName, KvStore, Reply, Result};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Shared memory as a file system.
const SHARED: &str = "/dev/shm";
/// How long processes may take to say what their ranks show. Who is stopped, or cut off, never does, and the rank that asks has waited for
/// the whole timeout of a collective before.
const PATIENCE: Duration = Duration::from_millis(600);

/// The host of this process, as the checker distinguishes hosts.
pub fn this_host() -> HostName {
    HostName::here(Path::new(SHARED))
}

/// The checker state of this process, with the ranks of the same `host` on it. Every process calls this. Ranks of other hosts, and of a host
/// without shared memory, are not compared call by call: they are asked when one does not come in time.
///
/// # Errors
/// A process that does not come within `timeout`.
pub fn checker_state(
    store: &JobStore,
    process_map: &ProcessMap,
    host: &HostName,
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
    host: &HostName,
    timeout: Duration,
) -> Result<CheckerState> {
    let me = process_map.process();
    if me == 0 {
        let name = RandomState::new().build_hasher().finish();
        store.set("checker", format!("crossweave-{name:016x}").as_bytes())?;
    }
    let name = store.get("checker", Some(timeout))?;
    let name = String::from_utf8_lossy(&name).into_owned();
    let card = format!("{}\n{}", host.name, host.identity);
    store.set(&format!("checker/host/{me}"), card.as_bytes())?;
    let mut hosts = vec![];
    for other in 0..process_map.processes() {
        let card = store.get(&format!("checker/host/{other}"), Some(timeout))?;
        let card = String::from_utf8_lossy(&card).into_owned();
        let (name, identity) = card.split_once('\n').unwrap_or((&card, &card));
        hosts.push(HostName {
            name: name.into(),
            identity: identity.into(),
        });
    }
    let near: Vec<u32> = (0..)
        .zip(&hosts)
        .filter(|(_, h)| *h == host)
        .map(|(p, _)| p)
        .collect();
    // Hosts (containers) may have the folder in common, so each has a name of its own in it: that of its first process.
    let first = near.first().copied().unwrap_or(me);
    let folder = Folder(shared.join(format!("{name}-{first}")));
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
    met?;
    let answers = board.answers();
    store.answer_with(move || answers.say());
    let others = (0..).zip(hosts).filter(|(p, _)| *p != me);
    board.reach(
        process_map.world(),
        Others {
            store: store.clone(),
            here: host.clone(),
            all: others.map(|(p, h)| (p, process_map.of(p), h)).collect(),
        },
    );
    Ok(board)
}

/// The other processes of the job, by its store: their numbers, ranks and hosts.
struct Others {
    store: JobStore,
    here: HostName,
    all: Vec<(u32, Range<u32>, HostName)>,
}

impl Distant for Others {
    fn ask(&self) -> Option<Vec<Reply>> {
        let mut said = self.store.ask(PATIENCE)?;
        let reply = |(process, ranks, host): &(u32, Range<u32>, HostName)| Reply {
            ranks: ranks.clone(),
            host: host.clone(),
            answer: said.remove(process),
        };
        Some(self.all.iter().map(reply).collect())
    }
    fn here(&self) -> HostName {
        self.here.clone()
    }
}

/// Removed when all are done with it, or when one gives up.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // Several processes remove it; the first one does.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
