//! `crossweave train`: prepares a job, runs one thread per rank, and says what came of it.
//!
//! Everything that can be wrong is found in [`setup`] before the output folder exists. Then each rank walks [`rank`]; rank 0 also
//! writes the files. The first failure of a rank aborts the others, and it is the one that is shown.

mod gate;
mod metrics;
pub mod optimizer;
mod progress;
mod rank;
pub mod resume;
pub mod save;
mod saves;
mod setup;
mod table;

use crate::args::TrainArgs;
use crate::error::{CliError, Result};
use gate::Shared;
use rank::Ended;
use setup::Job;
pub use setup::{rank_spec, units};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs the command.
///
/// # Errors
/// Everything that can go wrong with a run; see the crates' error types.
pub fn run(args: TrainArgs) -> Result<()> {
    let job = setup::prepare(&args)?;
    let stop = stop_on_signal()?;
    let shared = Arc::new(Shared::new(stop));
    let ends = run_ranks(&job, &shared);
    if let Some(first) = shared.first_error() {
        return Err(first);
    }
    let mut ledgers = vec![];
    let mut summary = None;
    for end in ends.into_iter().flatten() {
        ledgers.push(end.ledger);
        summary = summary.or(end.summary);
    }
    ledgers.sort_by_key(|l| l.rank);
    save::write_ledgers(&job, &ledgers)?;
    if job.resolved.settings.run.tensorboard {
        crate::reports::events(&job.out)?;
    }
    if let Some(summary) = &summary {
        table::print(&job, summary, &ledgers);
        if summary.stopped {
            return Err(CliError::Stopped {
                step: summary.steps,
                out: job.out.clone(),
            });
        }
    }
    Ok(())
}

/// Every rank on a thread of its own. A rank that fails or panics is recorded in `shared`, which stops the others.
fn run_ranks(job: &Job, shared: &Arc<Shared>) -> Vec<Option<Ended>> {
    std::thread::scope(|scope| {
        let one = |rank: u32| {
            let body = AssertUnwindSafe(|| rank::run(job, shared, rank));
            let end = catch_unwind(body).unwrap_or_else(|_| {
                let what = format!("rank {rank} panicked; this is a bug (see above)");
                Err(CliError::refused(what, "please report it"))
            });
            end.map_err(|e| shared.fail(e)).ok()
        };
        let mut threads = vec![];
        for rank in 0..job.ranks {
            let thread = std::thread::Builder::new().name(format!("rank {rank}"));
            match thread.spawn_scoped(scope, move || one(rank)) {
                Ok(t) => threads.push(t),
                Err(e) => {
                    let what = format!("cannot start a thread for rank {rank}: {e}");
                    shared.fail(CliError::refused(what, "run with fewer ranks"));
                    break;
                }
            }
        }
        threads
            .into_iter()
            .map(|t| t.join().ok().flatten())
            .collect()
    })
}

/// The first interrupt asks the run to stop after its step and save; the second ends the process at once.
fn stop_on_signal() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let asked = stop.clone();
    let handler = move || {
        if asked.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
        eprintln!("stopping after this step and saving a checkpoint (again: stop at once)");
    };
    ctrlc::set_handler(handler).map_err(|e| {
        CliError::refused(
            format!("cannot handle signals: {e}"),
            "start the program from a normal shell",
        )
    })?;
    Ok(stop)
}
