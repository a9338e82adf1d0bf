//! While the processes of a job meet: does the launcher still have all of them?
//!
//! A library of MPI waits for every process inside its first call, for ever and without a word. So a thread looks at the launcher's
//! children meanwhile: one that ends before it has joined will not come, and is named at once; one that is there and does not
//! come is named, with what it runs, when the time for meeting is over.

use crate::events::{Event, Events};
use crate::train_error::TrainError;
use crossweave_files::{TEXT, read};
use crossweave_mesh::Launch;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(500);
/// Looks in a row that must find a process gone: a failure it has reported ends us sooner, by the launcher.
const SURE: u32 = 4;

/// Variables by which launchers number processes.
const RANK: [&str; 2] = ["PMI_RANK", "OMPI_COMM_WORLD_RANK"];

/// A process as the system shows it.
struct Seen {
    parent: u32,
    ended: bool,
    rank: Option<u32>,
}

fn see(pid: u32) -> Option<Seen> {
    let dir = Path::new("/proc").join(pid.to_string());
    let stat = String::from_utf8_lossy(&read(&dir.join("stat"), TEXT).ok()?).into_owned();
    // The name, in brackets, may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    // Of a process that has ended, or is another user's, there is none.
    let environ = read(&dir.join("environ"), 16 * TEXT).unwrap_or_default();
    let rank = environ.split(|b| *b == 0).find_map(|v| {
        let (key, value) = std::str::from_utf8(v).ok()?.split_once('=')?;
        RANK.contains(&key).then(|| value.parse().ok())?
    });
    Some(Seen {
        parent,
        ended: state == "Z" || state == "X",
        rank,
    })
}

/// The launcher: the nearest ancestor that it has not started itself.
fn launcher() -> Option<u32> {
    let mut pid = see(std::process::id())?.parent;
    for _ in 0..32 {
        let seen = see(pid)?;
        if seen.rank.is_none() {
            return (pid > 1).then_some(pid);
        }
        pid = seen.parent;
    }
    None
}

/// The ranks of a launcher's children that live, and what each runs; `None` when it has ended itself.
fn present(launcher: u32) -> Option<BTreeMap<u32, String>> {
    see(launcher).filter(|l| !l.ended)?;
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let pid = entry.file_name().to_str().and_then(|n| n.parse().ok());
        let Some(seen) = pid.and_then(see) else {
            continue;
        };
        if let (true, false, Some(rank)) = (seen.parent == launcher, seen.ended, seen.rank) {
            let exe = std::fs::read_link(entry.path().join("exe"));
            let runs = exe.map_or("a program of another user".into(), |e| {
                e.display().to_string()
            });
            all.insert(rank, runs);
        }
    }
    Some(all)
}

/// Looks on until it is dropped. A process that will not come ends this one, with a sentence.
pub struct Roll(#[expect(dead_code, reason = "its drop is the message")] Sender<()>);

impl Roll {
    /// For the processes of `launch`, which meet within `limit`. `None` where the launcher cannot be seen: it is elsewhere, or there is
    /// none.
    pub fn call(launch: &Launch, limit: Duration, events: &Arc<dyn Events>) -> Option<Roll> {
        // Of one machine only: what is not seen here may live elsewhere.
        if !cfg!(target_os = "linux") || launch.local_size != launch.world {
            return None;
        }
        let launcher = launcher()?;
        // Nothing can be said of children that are not the launcher's own.
        present(launcher)?.get(&launch.rank)?;
        let (tell, told) = channel::<()>();
        let (launch, events) = (launch.clone(), events.clone());
        let thread = std::thread::Builder::new().name("roll call".into());
        thread
            .spawn(move || {
                let (mut gone, mut looks) = (0, 0);
                while told.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                    looks += 1;
                    let here = present(launcher);
                    let missing = |r: &u32| here.as_ref().is_some_and(|h| !h.contains_key(r));
                    let missing: Vec<u32> = (0..launch.world).filter(missing).collect();
                    gone = match here.is_none() || !missing.is_empty() {
                        true => gone + 1,
                        false => 0,
                    };
                    if gone >= SURE {
                        end(
                            &launch,
                            &*events,
                            &absent(&launch, here.is_none(), &missing),
                        );
                        return;
                    }
                    if LOOK * looks >= limit + LOOK {
                        let e = late(&launch, here.unwrap_or_default(), limit);
                        end(&launch, &*events, &e);
                        return;
                    }
                }
            })
            .ok()?;
        Some(Roll(tell))
    }
}

fn absent(launch: &Launch, launcher_ended: bool, missing: &[u32]) -> TrainError {
    let name = launch.launcher.name();
    let fix = "see why (its output, its exit status), and start the job again with the same program in every process";
    if launcher_ended {
        let what = format!("{name} has ended before its processes have met");
        return TrainError::refused(what, "start the job again");
    }
    let whom = match missing {
        [one] => format!("process {one} has"),
        many => format!("processes {many:?} have"),
    };
    TrainError::refused(
        format!("{whom} ended before joining the {} of {name}", launch.world),
        fix,
    )
}

fn late(launch: &Launch, here: BTreeMap<u32, String>, limit: Duration) -> TrainError {
    let own = here.get(&launch.rank).cloned().unwrap_or_default();
    let others: Vec<String> = here
        .iter()
        .filter(|(_, runs)| **runs != own)
        .map(|(rank, runs)| format!("process {rank} runs {runs}"))
        .collect();
    let who = match others.is_empty() {
        true => "one of them hangs".to_string(),
        false => others.join(", "),
    };
    TrainError::refused(
        format!(
            "the {} processes of {} have not met within {} s: {who}",
            launch.world,
            launch.launcher.name(),
            limit.as_secs()
        ),
        "start the same program in every process",
    )
}

/// Only the first process there is speaks; the launcher ends the others with it.
fn end(launch: &Launch, events: &dyn Events, e: &TrainError) {
    if launch.rank > 0 {
        std::thread::sleep(Duration::from_millis(300) * launch.rank.min(10));
    }
    events.on(Event::Absent(e));
}
