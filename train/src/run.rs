//! Training: a job is prepared, one thread per rank of this process runs, and what happens is reported to who watches.
//!
//! Everything that can be wrong is found in [`crate::setup`] before the output folder exists. Then each rank walks [`crate::rank`]; rank 0 also
//! writes the files. The first failure of a rank aborts the others, and it is the one that is shown.

use crate::ended::Ended;
use crate::events::{Closing, Event, Events};
use crate::gate::Shared;
use crate::gradients;
use crate::prepared::Run;
use crate::processes::{Processes, ended};
use crate::rank::{Answer, Order};
use crate::request::Request;
use crate::save::RankEnd;
use crate::setup;
use crate::summary::Summary;
use crate::threads::Threads;
use crate::train_error::{Result, STOPPED, TrainError};
use crate::{choice, flight, planned, record, save, shared_folder, shared_layers};
use crossweave_claim::Claim;
use crossweave_engine::RankLedger;
use crossweave_hal::CheckerState;
use crossweave_mesh::spread::{self, HostRanks};
use crossweave_mesh::{Cause, JobStore, PeerFailure};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

/// Trains as it is asked for.
///
/// # Errors
/// Everything that can go wrong with a run; see the crates' error types.
pub fn run(request: &Request) -> Result<()> {
    let processes = met(request)?;
    let result = run_here(request, processes.as_ref());
    ended(processes, result)
}

/// Meets the other processes of a job, where it has any, and reports which ranks are here.
///
/// # Errors
/// As [`Processes::join`].
pub fn met(request: &Request) -> Result<Option<Processes>> {
    // A config that is wrong is said once all have met.
    let run = request.read().map(|c| c.settings.run);
    let interface = run.map_or(vec![], |r| r.interface);
    let (ranks, around) = (request.ranks.as_ref(), &request.around);
    let met = Processes::join(ranks, &interface, around, &request.events)?;
    if met.is_none() {
        request.events.on(Event::Met(None));
    }
    Ok(met)
}

/// Runs the ranks of this process.
fn run_here(request: &Request, processes: Option<&Processes>) -> Result<()> {
    let mut job = Started::begin(request, processes)?;
    job.threads.order(&Order::Steps);
    let out = job.run.out.clone();
    match job.end(processes)? {
        Some(Summary {
            steps,
            stopped: true,
            ..
        }) => Err(TrainError::Stopped { step: steps, out }),
        _ => Ok(()),
    }
}

/// A job whose ranks of this process are at work.
pub struct Started {
    /// What the ranks share.
    pub run: Arc<Run>,
    shared: Arc<Shared>,
    threads: Threads,
    /// By which the run is asked to stop after its step.
    pub stop: Arc<AtomicBool>,
}

impl Started {
    /// Prepares a job, meets its other processes and starts the ranks of this one.
    ///
    /// # Errors
    /// Whatever is wrong with config, data, model, back end or output folder; a process that has failed.
    pub fn begin(request: &Request, processes: Option<&Processes>) -> Result<Started> {
        let mut run = setup::prepare(request, processes, true)?;
        if let Some(p) = processes {
            p.agree(&run.out, &run.job.resolved, run.resume.step)?;
            shared_folder::check(p, &run.out)?;
            choice::set(&run.job.resolved.settings.communication, &p.carrier);
            run.rendezvous(p)?;
        }
        shared_layers::check(&run.job, &run.computes)?;
        let run = Arc::new(run.balance(processes)?);
        let first = processes.is_none_or(Processes::first);
        if let Some(p) = processes.filter(|p| p.first()) {
            let resolved = &run.job.resolved;
            let node = resolved.settings.zero_optimization.zero_hpz_partition_size as u32;
            let hosts = p.ranks_by_host();
            // A mesh that has no such groups has been refused.
            let lies = spread::sentence(&resolved.mesh, &hosts).unwrap_or_default();
            let notes = spread::notes(&resolved.mesh, node, &hosts).unwrap_or_default();
            let all = lies.iter().chain(&notes);
            all.for_each(|n| run.on(Event::Note(n)));
        }
        let communication = &run.job.resolved.settings.communication;
        let note = choice::note(communication, processes.is_some());
        note.iter()
            .filter(|_| first)
            .for_each(|n| run.on(Event::Note(n)));
        if first {
            flight::clear(&run.out);
            Ended::clear(&run.out);
        }
        let stop = request.events.start(first)?;
        let store = processes.map(|p| p.store.clone());
        let shared = Arc::new(Shared::new(stop.clone(), store));
        if let Some(p) = processes {
            let shared = shared.clone();
            let left = Left::of(&run, Some(p));
            p.watch(move |e| {
                // At once: a launcher may end this process before its ranks have stopped.
                left.write(&e);
                shared.fail(e);
            });
            p.compare(run.job.resolved.settings.run.comm_timeout_s);
            p.heartbeat(run.job.resolved.settings.run.heartbeat_s);
        }
        let voice = processes.map(Processes::voice);
        let threads = Threads::start(&run, &shared, voice.as_ref());
        Ok(Started {
            run,
            shared,
            threads,
            stop,
        })
    }

    /// Asks all ranks for the same: the answer of the first of this process.
    ///
    /// # Errors
    /// The first failure of a rank. All have ended then.
    pub fn ask(&mut self, order: &Order, processes: Option<&Processes>) -> Result<Answer> {
        match self.threads.ask(order) {
            Some(answer) => Ok(answer),
            None => Err(self.failure(processes).unwrap_or_else(|| {
                TrainError::refused("a rank has ended before its time", "please report it")
            })),
        }
    }

    /// The failure that has ended the ranks, if one has, once its records are written.
    fn failure(&self, processes: Option<&Processes>) -> Option<TrainError> {
        let first = self.shared.first_error()?;
        Left::of(&self.run, processes).write(&first);
        if let Some(t) = &self.run.trace {
            // The failure is what is to be reported; the parts stay where the trace cannot be put together.
            let _ = t.merge(self.run.job.ranks, false);
        }
        self.run.release();
        Some(first)
    }

    /// Ends the run when all that was asked for is done, and writes what it has come to. The summary is that of the process of rank 0.
    ///
    /// # Errors
    /// The first failure of a rank; a file that cannot be written. On processes but the first: a run that was asked to stop, and has.
    pub fn end(mut self, processes: Option<&Processes>) -> Result<Option<Summary>> {
        self.threads.order(&Order::End);
        let ends = self.threads.wait();
        if let Some(first) = self.failure(processes) {
            return Err(first);
        }
        let run = &self.run;
        let mut ledgers = vec![];
        let mut summary = None;
        for end in ends {
            for what in &end.idle {
                run.on(Event::Warning(what));
            }
            ledgers.push(end.end);
            summary = summary.or(end.summary);
        }
        if let Some(p) = processes {
            ledgers = exchange(p, &ledgers)?;
            if !p.first() {
                p.done(0)?;
                return Ok(None);
            }
        }
        if let Some(t) = &run.trace {
            // Every rank has ended: it has sent its ledger.
            t.merge(run.job.ranks, true)?;
        }
        ledgers.sort_by_key(|l| l.ledger.rank);
        let planned = planned::rehearse(run);
        save::write_ledgers(run, &ledgers, &planned)?;
        if let Some(s) = &summary {
            record::end(run, &planned, s.stopped, s.busy())?;
            run.check_claim()?;
            Ended::well(&run.out, run.reads.steps, s.stopped).write(&run.out)?;
        }
        let ledgers: Vec<RankLedger> = ledgers.into_iter().map(|e| e.ledger).collect();
        if run.job.resolved.settings.run.tensorboard {
            run.check_claim()?;
            crossweave_report::events(&run.out)?;
        }
        if let Some(summary) = &summary {
            close(run, summary, &ledgers);
        }
        if let Some(p) = processes {
            let stopped = summary.as_ref().is_some_and(|s| s.stopped);
            p.done(if stopped { STOPPED } else { 0 })?;
        }
        Ok(summary)
    }
}

/// Reports what a run has come to, where steps are reported.
fn close(run: &Run, summary: &Summary, ledgers: &[RankLedger]) {
    if run.reported.every.is_none() {
        return;
    }
    let dry = run.layout.dry(0);
    run.on(Event::Closed(&Closing {
        summary,
        steps: run.reads.steps,
        job: &run.job,
        division: &run.layout.division,
        reductions: gradients::of_run(&run.rank_spec(0), &dry.units),
        params: dry.params,
        ledgers,
        computes: &run.computes,
        out: &run.out,
        has_model: !summary.stopped && !run.local_ranks.has_null(),
    }));
}

/// What a run that fails leaves in its folder: how it ended, and for `crossweave flight` what the ranks asked of each other last; each process
/// its own, and what others could not.
struct Left {
    out: PathBuf,
    steps: u64,
    events: Arc<dyn Events>,
    board: CheckerState,
    here: Range<u32>,
    store: Option<JobStore>,
    /// The hosts of the job and their ranks.
    hosts: Vec<HostRanks>,
    /// Not held by this: the watch over the other processes goes on after the run.
    claim: Option<Weak<Claim>>,
}

impl Left {
    fn of(run: &Run, processes: Option<&Processes>) -> Left {
        Left {
            out: run.out.clone(),
            steps: run.reads.steps,
            events: run.reported.events.clone(),
            board: run.local_ranks.checker().clone(),
            here: run.local_ranks.here(),
            store: processes.map(|p| p.store.clone()),
            hosts: processes.map_or(vec![], Processes::ranks_by_host),
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
        let first = self.here.start == 0;
        // Where the first process is the one that is lost, a process that is left speaks for the job.
        let first_is_gone =
            |f: &PeerFailure| f.process == 0 && !matches!(f.cause, Cause::Said { .. });
        if first || failure.as_ref().is_some_and(first_is_gone) {
            self.warn("ended.json", self.end(why, failure.as_ref()));
        }
        let why = match &failure {
            Some(f) => f.to_string(),
            // The record says itself whose it is.
            None => match why {
                TrainError::OnRank { source, .. } => source.to_string(),
                why => why.to_string(),
            },
        };
        let flight = flight::write(&self.out, &self.board, &self.here, &why);
        self.warn("flight record", flight);
    }

    /// Writes how the run ended: by a failure that the processes have reported of one another, else by an error of this one.
    fn end(&self, why: &TrainError, failure: Option<&PeerFailure>) -> Result<()> {
        if !self.out.is_dir() {
            // A host without the shared folder.
            return Ok(());
        }
        let mut ended = Ended::badly(&self.out, self.steps, why);
        if let Some(f) = failure {
            ended.ranks = f.ranks.clone().collect();
            ended.error = Some(f.to_string());
        }
        let hit = |ranks: &Range<u32>| ended.ranks.iter().any(|r| ranks.contains(r));
        let hosts = self.hosts.iter().filter(|(_, _, ranks)| hit(ranks));
        ended.hosts = hosts.map(|(_, host, _)| host.clone()).collect();
        ended.hosts.dedup();
        ended.write(&self.out)
    }

    fn warn(&self, what: &str, done: Result<()>) {
        if let Err(e) = done {
            let what = format!("no {what}: {e}");
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
