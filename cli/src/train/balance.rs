//! `run.balance`: how many sequences of each micro-batch a rank takes, by weights or by how fast it is found to be.
//!
//! Speed is measured before the first step, on all ranks at once, so that ranks which share a machine are as slow as they will be: forward
//! and backward of the model's ends and two of its layers, without an optimizer and without any other rank. A rank then takes sequences in
//! proportion; gradients and losses count for the sequences they come from, so the curve is that of even shares.

use super::setup::Job;
use crate::error::{CliError, Result};
use crate::infer::Alone;
use crate::processes::Processes;
use crossweave_config::Balance;
use crossweave_data::shares;
use crossweave_engine::{MicroBatch, RankSpec, Trainer, dry_run};
use crossweave_tensor::UnitDecl;
use crossweave_zero::optim::{Optimizer, ParamGroups, Sgd};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Steps that count; one before them makes everything ready.
const STEPS: usize = 3;
/// For every rank to be measured.
const TOGETHER: Duration = Duration::from_secs(600);

/// Sequences of each rank's micro-batch; `None` where all take the same.
///
/// # Errors
/// A device that cannot run the measurement; another rank's failure.
pub fn divide(job: &Job, processes: Option<&Processes>) -> Result<Option<Vec<u64>>> {
    let micro = job.resolved.batch.micro;
    let total = micro * u64::from(job.ranks);
    let rows = match job.resolved.settings.run.balance() {
        None | Some(Balance::Even) => return Ok(None),
        Some(Balance::Weights(w)) => shares(total, &w),
        Some(Balance::Speed) if micro == 1 || job.ranks == 1 => {
            // A sequence cannot be cut: there is nothing to move.
            if micro == 1 && processes.is_none_or(Processes::first) {
                eprintln!(
                    "note: run.balance: micro-batches of one sequence cannot be divided unevenly; each rank takes one"
                );
            }
            return Ok(None);
        }
        Some(Balance::Speed) => {
            let speeds = speeds(job, processes)?;
            let rows = shares(total, &speeds);
            if processes.is_none_or(Processes::first) {
                let list = |all: Vec<String>| all.join(", ");
                eprintln!(
                    "note: run.balance: ranks do {} sequences a second and take {} of each {total}; `--set 'run.balance=\"{}\"'` repeats this division",
                    list(speeds.iter().map(|s| format!("{s:.3}")).collect()),
                    list(rows.iter().map(u64::to_string).collect()),
                    rows.iter()
                        .map(u64::to_string)
                        .collect::<Vec<_>>()
                        .join(","),
                );
            }
            rows
        }
    };
    Ok(Some(rows).filter(|rows| rows.iter().any(|r| *r != micro)))
}

/// Sequences a second of every rank.
fn speeds(job: &Job, processes: Option<&Processes>) -> Result<Vec<f64>> {
    let here = job.crew.here();
    let meet = Meeting {
        start: Barrier::new(here.len()),
        measured: AtomicUsize::new(0),
        ranks: here.len(),
    };
    let own: Vec<Result<f64>> = std::thread::scope(|scope| {
        let one = |rank: u32| {
            let meet = &meet;
            scope.spawn(move || speed(job, rank, meet))
        };
        let threads: Vec<_> = here.clone().map(one).collect();
        let panicked =
            || CliError::refused("measuring a rank's speed panicked", "please report it");
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|_| Err(panicked())))
            .collect()
    });
    let own = own.into_iter().collect::<Result<Vec<f64>>>()?;
    let Some(p) = processes else {
        return Ok(own);
    };
    let bytes: Vec<u8> = own.iter().flat_map(|s| s.to_le_bytes()).collect();
    let all = p.gather("speed", &bytes, TOGETHER)?.concat();
    let all = p.tell("speeds", &all, TOGETHER)?;
    let word = |b: &[u8; 8]| f64::from_le_bytes(*b);
    Ok(all.as_chunks::<8>().0.iter().map(word).collect())
}

/// Where the ranks of this process begin and end together.
struct Meeting {
    start: Barrier,
    measured: AtomicUsize,
    ranks: usize,
}

fn speed(job: &Job, rank: u32, meet: &Meeting) -> Result<f64> {
    let ready = ready(job, rank);
    // Also by those that cannot go on, so that nobody waits for ever.
    meet.start.wait();
    let done = |r: Result<f64>| {
        meet.measured.fetch_add(1, Ordering::SeqCst);
        r
    };
    let (mut trainer, tokens) = match ready {
        Ok(r) => r,
        Err(e) => return done(Err(e)),
    };
    let batch = [MicroBatch {
        tokens: &tokens,
        targets: &tokens,
        first_sequence: 0,
    }];
    let mut step = || -> Result<Duration> {
        let began = Instant::now();
        trainer.step(&batch, 0.0)?;
        trainer.metrics()?;
        Ok(began.elapsed())
    };
    let measure = |step: &mut dyn FnMut() -> Result<Duration>| -> Result<f64> {
        step()?;
        let mut best = Duration::MAX;
        for _ in 0..STEPS {
            best = best.min(step()?);
        }
        Ok(job.resolved.batch.micro as f64 / best.as_secs_f64().max(1e-9))
    };
    let found = done(measure(&mut step))?;
    // The slower ranks are measured beside the faster ones, as they will work.
    while meet.measured.load(Ordering::SeqCst) < meet.ranks {
        step()?;
    }
    Ok(found)
}

/// A rank alone with the model's ends and two layers, and any tokens.
fn ready(job: &Job, rank: u32) -> Result<(Trainer, Vec<i32>)> {
    let whom = |e: CliError| CliError::Of {
        whom: format!("measuring rank {rank}"),
        source: Box::new(e),
    };
    let go = || -> Result<(Trainer, Vec<i32>)> {
        let units = short(super::units(&job.source, &job.resolved)?);
        let null = crate::backend::open_linked("null", &job.host)?.open(0)?;
        let batch = job.resolved.batch.micro;
        let spec = RankSpec {
            rank: 0,
            world: 1,
            micro_batches: 1,
            batch,
            // Nothing is learnt: an optimizer that keeps nothing, at learning rate 0.
            optim: ParamGroups::all(
                Optimizer::Sgd(Sgd {
                    momentum: 0.0,
                    dampening: 0.0,
                    nesterov: false,
                }),
                0.0,
            ),
            zero: Default::default(),
            clip: 0.0,
            precision: Default::default(),
            canonical: None,
            islands: None,
            ..job.rank_spec(rank)
        };
        let dry = dry_run(&null, &units, spec.compute, batch, job.seq_len)?;
        let device = job.crew.device(rank)?;
        let mut trainer = Trainer::new(&device, units, spec, &dry, &Alone)?;
        trainer.init()?;
        let tokens = vec![0; (batch * job.seq_len) as usize];
        Ok((trainer, tokens))
    };
    go().map_err(whom)
}

/// The first three units and the last, where no other is needed by them.
fn short(units: Vec<UnitDecl>) -> Vec<UnitDecl> {
    const FIRST: usize = 3;
    let last = units.len() - 1;
    let kept = |u: usize| u < FIRST || u == last;
    let closed = units
        .iter()
        .enumerate()
        .filter(|(u, _)| kept(*u))
        .all(|(_, unit)| unit.borrowed.iter().all(|(owner, _)| *owner < FIRST));
    if last < FIRST || !closed {
        return units;
    }
    let keep = |(u, unit): (usize, UnitDecl)| kept(u).then_some(unit);
    units.into_iter().enumerate().filter_map(keep).collect()
}
