//! The steps of a config under seeded schedules of its ranks. Nothing is written; what is looked for is a run that
//! fails, hangs, or ends with other bits than the first.
//!
//! A rank's marks are the bits of every step's loss and gradient norm and of a forward after the last update, which sees the parameters.
//! The schedule `fifo` gives the marks that all others must give.

use crate::faults;
use crate::prepared::Run;
use crate::request::Request;
use crate::session::Start;
use crate::setup;
use crate::train_error::{Result, TrainError};
use crossweave_config::{Balance, Fault};
use crossweave_engine::{Devices, StepMetrics};
use crossweave_hal::{Explorer, Found, Order, Played, Rank};
use std::ops::Range;

/// One figure of a rank: what it is, and its bits.
#[derive(Clone, Debug, PartialEq)]
struct Mark {
    what: String,
    bits: u64,
}

/// What is explored.
#[derive(Clone, Debug)]
pub struct Exploration {
    /// The run, whose steps are those of each schedule.
    pub request: Request,
    /// One schedule each.
    pub seeds: Range<u64>,
    /// How a seed chooses the next thread.
    pub order: Order,
}

/// What came of it.
pub enum Explored {
    /// Every schedule gave the bits of the first.
    Held {
        /// Ranks of the job.
        ranks: u32,
        /// Optimizer steps under each seed.
        steps: u64,
        /// Switches from thread to thread, under all seeds.
        switches: u64,
        /// The decisions under the last seed.
        hash: u64,
    },
    /// A schedule under which a rank fails, no thread can run, or a figure has other bits.
    Failed {
        /// What failed, and under which schedule.
        found: Found,
        /// The faults that the config itself makes, in words.
        on_purpose: String,
    },
}

/// Runs the steps under each seed, until one fails.
///
/// # Errors
/// A config that does not run at all, or whose result a clock or a worker of the host decides.
pub fn explore(what: &Exploration) -> Result<Explored> {
    let run = setup::prepare(&what.request, None, false)?;
    if run.job.resolved.settings.run.balance() == Some(Balance::Speed) {
        return Err(TrainError::refused(
            "explore: run.balance=\"speed\" divides the batch by clocks, so that no seed could be played again",
            "give the division that `crossweave train` has printed, e.g. run.balance=\"3,1\"",
        ));
    }
    let run = run.balance(None)?;
    if run.rank_spec(0).offload.is_some() {
        return Err(TrainError::refused(
            "explore: the config offloads, and the host's own devices and workers are not under the schedule",
            "drop offload_optimizer, offload_param and cpu_checkpointing, which change no bit of the result",
        ));
    }
    let explorer =
        |order| Explorer::new(run.local_ranks.plugin(0), &run.host, run.job.ranks).order(order);
    let program = |rank: &Rank| steps(&run, rank).map_err(|e| e.to_string());
    let first = explorer(Order::Fifo).play(0, program)?;
    if let Some(f) = first.failure() {
        return Err(TrainError::refused(
            format!(
                "the config fails before anything is explored: {f}{}",
                on_purpose(&run)
            ),
            "make `crossweave train` run first",
        ));
    }
    let chosen = explorer(what.order);
    let (mut switches, mut hash) = (0, 0);
    for seed in what.seeds.clone() {
        let played = chosen.play(seed, program)?;
        let differs = || differs(&first, &played).map(|why| played.found(why));
        if let Some(found) = played.failure().or_else(differs) {
            let on_purpose = on_purpose(&run);
            return Ok(Explored::Failed { found, on_purpose });
        }
        switches += played.account.switches;
        hash = played.account.hash;
    }
    Ok(Explored::Held {
        ranks: run.job.ranks,
        steps: run.reads.steps,
        switches,
        hash,
    })
}

/// What the config makes go wrong: a rank that stalls only asks again and again as the schedule sees it.
fn on_purpose(run: &Run) -> String {
    let all = run.job.resolved.settings.faults.iter().enumerate();
    let one = |(i, f): (usize, &Fault)| format!("; faults[{i}] is a {} of rank {}", f.kind, f.rank);
    all.map(one).collect()
}

/// The first figure that is not what it was under the first schedule.
fn differs(first: &Played<Vec<Mark>>, other: &Played<Vec<Mark>>) -> Option<String> {
    let pairs = first.ranks.iter().zip(&other.ranks).enumerate();
    for (rank, (a, b)) in pairs {
        let (Ok(a), Ok(b)) = (a, b) else { continue };
        if let Some((a, b)) = a.iter().zip(b).find(|(a, b)| a != b) {
            let (was, is) = (f64::from_bits(a.bits), f64::from_bits(b.bits));
            let what = &a.what;
            return Some(format!(
                "rank {rank}: {what} is {is:?}, and {was:?} under schedule fifo: the result depends on timing"
            ));
        }
    }
    None
}

/// One rank's steps, and what they gave.
fn steps(run: &Run, rank: &Rank) -> Result<Vec<Mark>> {
    let r = rank.rank();
    let mut session = run.session(r, Devices::one(rank.device()), run.links(rank))?;
    if let Some(faults) = faults::of_rank(run, r) {
        session.inject(faults);
    }
    session.start(Start::Fresh)?;
    let mut marks = vec![];
    let mut mark = |what: String, value: f64| {
        marks.push(Mark {
            what,
            bits: value.to_bits(),
        })
    };
    let mut both = |m: StepMetrics| {
        mark(format!("the loss of step {}", m.step), m.loss);
        mark(format!("the gradient norm of step {}", m.step), m.grad_norm);
    };
    for done in 0..run.reads.steps {
        let read = session.read(done)?;
        session.enqueue(done, &read)?;
        // One step stays in flight, as in training.
        if done > 0
            && let Some(m) = session.figures()?
        {
            both(m);
        }
    }
    while let Some(m) = session.figures()? {
        both(m);
    }
    let after = session.evaluate(&session.read(0)?[0])?;
    mark("the loss after the last update".into(), after);
    Ok(marks)
}
