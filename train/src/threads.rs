//! A thread for each rank of this process. The first failure stops them all; a rank whose device or plugin does not come back from
//! the abort is left behind, so that the job ends.

use crate::events::Event;
use crate::gate::Shared;
use crate::processes::Voice;
use crate::rank::{self, Ended};
use crate::setup::Run;
use crate::train_error::TrainError;
use crossweave_hal::Awake;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// A rank that has not ended so long after the failure of one does not end: what it may wait for has all ended long before.
const LAST: Duration = Duration::from_secs(20);
/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// Runs the ranks of this process; what each of them leaves, where it ends. A rank that fails or panics is recorded in `shared`, which
/// stops the others.
pub fn run(run: &Arc<Run>, shared: &Arc<Shared>, voice: Option<&Voice>) -> Vec<Ended> {
    let (ended, ends) = channel();
    let mut open = vec![];
    for rank in run.local_ranks.here() {
        let (run, shared) = (run.clone(), shared.clone());
        let (voice, ended) = (voice.cloned(), ended.clone());
        let thread = std::thread::Builder::new().name(format!("rank {rank}"));
        let failed = shared.clone();
        let body = move || one(&run, &shared, voice.as_ref(), rank, &ended);
        match thread.spawn(body) {
            Ok(thread) => open.push((rank, thread)),
            Err(e) => {
                let what = format!("cannot start a thread for rank {rank}: {e}");
                let fix = "run with fewer ranks here, or raise the limits of the process (ulimit -u of threads, -v of memory)";
                failed.fail(TrainError::refused(what, fix));
                break;
            }
        }
    }
    drop(ended);
    let mut all = vec![];
    let mut clock: Option<Awake> = None;
    while !open.is_empty() {
        match ends.recv_timeout(LOOK) {
            Ok((rank, end)) => {
                // It has nothing more to do, and what it shares, such as the claim of the run's folder, is then the caller's alone.
                if let Some(at) = open.iter().position(|(r, _)| *r == rank) {
                    let _ = open.swap_remove(at).1.join();
                }
                all.extend(end);
            }
            Err(RecvTimeoutError::Disconnected) => break,
            // A save that was begun is finished.
            Err(RecvTimeoutError::Timeout) if !shared.has_failed() || shared.saving() => {
                clock = None;
            }
            Err(RecvTimeoutError::Timeout) => {
                let clock = clock.get_or_insert_with(|| Awake::new(LAST));
                if clock.pause().is_zero() {
                    let ranks: Vec<u32> = open.iter().map(|(rank, _)| *rank).collect();
                    let (who, them) = match ranks[..] {
                        [rank] => (format!("rank {rank} has"), "it"),
                        _ => (format!("ranks {ranks:?} have"), "them"),
                    };
                    let what = format!(
                        "{who} not ended {} s after the failure: a device or plugin does not come back from the abort; \
                         this process ends without {them}",
                        LAST.as_secs()
                    );
                    run.on(Event::Warning(&what));
                    break;
                }
            }
        }
    }
    all
}

/// The thread of a rank.
fn one(
    run: &Run,
    shared: &Arc<Shared>,
    voice: Option<&Voice>,
    rank: u32,
    ended: &Sender<(u32, Option<Ended>)>,
) {
    let fail = |e: TrainError| {
        // The death of a process breaks its peers' collectives before the news of it comes.
        let follows = voice.filter(|_| e.may_follow(rank));
        if follows.and_then(Voice::cause).is_some() {
            return shared.fail(TrainError::Elsewhere { code: 1 });
        }
        let Some(voice) = voice else {
            return shared.fail(e);
        };
        let words = e.to_string();
        let e = TrainError::on_rank(rank, e);
        let (said, news) = (e.to_string(), !e.is_secondary());
        shared.fail(e);
        match run.local_ranks.here().len() {
            _ if !news => {}
            1 => voice.print_failure(&said),
            // The other ranks of this process may take a while, and the others see already that this one is gone.
            _ => voice.report(rank, &said, &words),
        }
    };
    let body = AssertUnwindSafe(|| rank::run(run, shared, rank, &fail));
    let end = catch_unwind(body).unwrap_or_else(|_| {
        fail(rank::panicked(rank));
        None
    });
    // Nobody takes it where this rank was left behind.
    let _ = ended.send((rank, end));
}
