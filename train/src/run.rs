//! Training: a job is prepared, one thread per rank of this process runs, and what happens is reported to who watches.
//!
//! Everything that can be wrong is found in [`crate::setup`] before the output folder exists. Then each rank walks [`crate::rank`]; rank 0 also
//! writes the files. The first failure of a rank aborts the others, and it is the one that is shown.

use crate::events::{Closing, Event, Events};
use crate::gate::Shared;
use crate::offload::with_offload;
use crate::processes::Processes;
use crate::request::Request;
use crate::save::RankEnd;
use crate::setup::{self, Run};
use crate::train_error::{Result, TrainError};
use crate::{flight, record, save, shared_layers, threads};
use crossweave_claim::Claim;
use crossweave_engine::RankLedger;
use crossweave_hal::CheckerState;
use crossweave_mesh::JobStore;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

/// Trains as it is asked for.
///
/// # Errors
/// Everything that can go wrong with a run; see the crates' error types.
pub fn run(request: &Request) -> Result<()> {
    match Processes::join(request.ranks.as_ref(), &request.around, &request.events)? {
        None => {
            request.events.on(Event::Met(None));
            run_here(request, None)
        }
        Some(p) => {
            let result = run_here(request, Some(&p));
            p.end(result)
        }
    }
}

/// Runs the ranks of this process.
fn run_here(request: &Request, processes: Option<&Processes>) -> Result<()> {
    let mut run = setup::prepare(request, processes, true)?;
    if let Some(p) = processes {
        p.agree(&run.out, &run.job.resolved)?;
        run.rendezvous(p)?;
    }
    shared_layers::check(&run)?;
    let run = Arc::new(run.balance(processes)?);
    let first = processes.is_none_or(Processes::first);
    if first {
        flight::clear(&run.out);
    }
    let stop = request.events.start(first)?;
    let shared = Arc::new(Shared::new(stop, processes.map(|p| p.store.clone())));
    if let Some(p) = processes {
        let shared = shared.clone();
        let flights = Flights::of(&run, Some(p));
        p.watch(move |e| {
            // At once: a launcher may end this process before its ranks have stopped.
            flights.write(&e);
            shared.fail(e);
        });
        p.compare(run.job.resolved.settings.run.comm_timeout_s);
    }
    let voice = processes.map(Processes::voice);
    let ends = threads::run(&run, &shared, voice.as_ref());
    if let Some(first) = shared.first_error() {
        Flights::of(&run, processes).write(&first);
        if let Some(t) = &run.trace {
            // The failure is what is to be reported; the parts stay where the trace cannot be put together.
            let _ = t.merge(run.job.ranks, false);
        }
        run.release();
        return Err(first);
    }
    let mut ledgers = vec![];
    let mut summary = None;
    for end in ends {
        for what in &end.idle {
            run.on(Event::Warning(what));
        }
        ledgers.push(RankEnd {
            ledger: end.ledger,
            time: end.time,
        });
        summary = summary.or(end.summary);
    }
    if let Some(p) = processes {
        ledgers = exchange(p, &ledgers)?;
        if !p.first() {
            return p.done(0);
        }
    }
    if let Some(t) = &run.trace {
        // Every rank has ended: it has sent its ledger.
        t.merge(run.job.ranks, true)?;
    }
    ledgers.sort_by_key(|l| l.ledger.rank);
    save::write_ledgers(&run, &ledgers)?;
    if let Some(s) = &summary {
        record::end(&run, s.stopped, s.busy())?;
    }
    let ledgers: Vec<RankLedger> = ledgers.into_iter().map(|e| e.ledger).collect();
    if run.job.resolved.settings.run.tensorboard {
        run.check_claim()?;
        crossweave_report::events(&run.out)?;
    }
    let mut end = Ok(());
    if let Some(summary) = &summary {
        if run.reported.every.is_some() {
            run.on(Event::Closed(&Closing {
                summary,
                steps: run.reads.steps,
                job: &run.job,
                division: &run.layout.division,
                spec: with_offload(run.rank_spec(0), &run.job.resolved),
                dry: run.layout.dry(0),
                ledgers: &ledgers,
                computes: &run.computes,
                out: &run.out,
                has_model: !summary.stopped && !run.local_ranks.has_null(),
            }));
        }
        if summary.stopped {
            end = Err(TrainError::Stopped {
                step: summary.steps,
                out: run.out.clone(),
            });
        }
    }
    if let Some(p) = processes {
        p.done(end.as_ref().map_or_else(TrainError::exit_code, |()| 0))?;
    }
    end
}

/// Leaves what the ranks asked of each other last, for `crossweave flight`: each process its own, and what others could not.
struct Flights {
    out: PathBuf,
    events: Arc<dyn Events>,
    board: CheckerState,
    here: Range<u32>,
    store: Option<JobStore>,
    /// Not held by this: the watch over the other processes goes on after the run.
    claim: Option<Weak<Claim>>,
}

impl Flights {
    fn of(run: &Run, processes: Option<&Processes>) -> Flights {
        Flights {
            out: run.out.clone(),
            events: run.reported.events.clone(),
            board: run.local_ranks.checker().clone(),
            here: run.local_ranks.here(),
            store: processes.map(|p| p.store.clone()),
            claim: run.claim.as_ref().map(Arc::downgrade),
        }
    }

    fn write(&self, why: &TrainError) {
        let ours = |c: &Weak<Claim>| c.upgrade().is_some_and(|c| c.check().is_ok());
        if !self.claim.as_ref().is_none_or(ours) {
            // The folder may be another job's now.
            return;
        }
        let failure = self.store.as_ref().and_then(JobStore::failure);
        let why = match &failure {
            Some(f) => f.to_string(),
            // The record says itself whose it is.
            None => match why {
                TrainError::OnRank { source, .. } => source.to_string(),
                why => why.to_string(),
            },
        };
        if let Err(e) = flight::write(&self.out, &self.board, &self.here, &why) {
            let what = format!("no flight record: {e}");
            self.events.on(Event::Warning(&what));
        }
    }
}

/// Every rank's ledger, on rank 0.
fn exchange(p: &Processes, own: &[RankEnd]) -> Result<Vec<RankEnd>> {
    let broken = |e: serde_json::Error| {
        TrainError::refused(
            format!("a rank's ledger: {e}"),
            "run the same build on every rank",
        )
    };
    let all = p.ledgers(&serde_json::to_vec(own).map_err(broken)?)?;
    let mut ledgers = vec![];
    for bytes in all {
        ledgers.extend(serde_json::from_slice::<Vec<RankEnd>>(&bytes).map_err(broken)?);
    }
    Ok(ledgers)
}
