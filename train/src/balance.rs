//! `run.balance`: how many sequences of each micro-batch a rank takes, by weights or by how fast it is found to be; or, over pipeline stages,
//! how fast each rank is, so that slower stages run fewer units.
//!
//! Speed is measured before the first step, on all ranks at once, so that ranks which share a machine are as slow as they will be: forward
//! and backward of the model's ends and two of its layers, without an optimizer and without any other rank. A rank then takes sequences in
//! proportion; gradients and losses count for the sequences they come from, so the curve is that of even shares.

use crate::events::Event;
use crate::infer::Alone;
use crate::job::spec::timed;
use crate::job::{Division, Job};
use crate::prepared::Run;
use crate::processes::Processes;
use crate::stages;
use crate::train_error::{Result, TrainError};
use crossweave_config::Balance;
use crossweave_engine::{Devices, Engine, Links, MicroBatch, Units, dry_run, prepare};
use crossweave_mesh::Place;
use crossweave_tensor::UnitDecl;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Steps that count; one before them makes everything ready.
const STEPS: usize = 3;
/// For every rank to be measured.
const TOGETHER: Duration = Duration::from_secs(600);

/// How fast each rank is, where the work is divided by that; `None` where it is not.
///
/// # Errors
/// A device that cannot run the measurement; another rank's failure.
pub fn speeds(run: &Run, processes: Option<&Processes>) -> Result<Option<Vec<f64>>> {
    let job = &run.job;
    if job.resolved.settings.run.balance() != Some(Balance::Speed) {
        return Ok(None);
    }
    let micro = job.resolved.batch.micro;
    if run.layout.division.stages.is_none() && (micro == 1 || job.data_ranks() == 1) {
        // A sequence cannot be cut: there is nothing to move.
        if micro == 1 && processes.is_none_or(Processes::first) {
            let note = "run.balance: micro-batches of one sequence cannot be divided unevenly; each rank takes one";
            run.on(Event::Note(note));
        }
        return Ok(None);
    }
    measured(run, processes).map(Some)
}

/// How fast the ranks were found to be, how the work is divided by that, and what repeats this division.
pub fn note(job: &Job, division: &Division, speeds: &[f64]) -> String {
    let found: Vec<String> = speeds.iter().map(|s| format!("{s:.3}")).collect();
    let found = found.join(", ");
    if let Some(cut) = &division.stages {
        return format!(
            "run.balance: ranks do {found} sequences a second, and the stages run units {}; `--set 'mesh.pp_layers=\"{}\"' --set 'run.balance=\"even\"'` repeats this division",
            stages::in_words(cut),
            stages::as_key(cut),
        );
    }
    // Ranks that share layers take the same sequences, and each is given the number of them.
    let of_rank = |rank| division.rows_of(job, &job.place(rank));
    let total = job.resolved.batch.micro * u64::from(job.data_ranks());
    let rows: Vec<String> = (0..job.ranks).map(|r| of_rank(r).to_string()).collect();
    format!(
        "run.balance: ranks do {found} sequences a second and take {} of each {total}; `--set 'run.balance=\"{}\"'` repeats this division",
        rows.join(", "),
        rows.join(","),
    )
}

/// Sequences a second of every rank.
fn measured(run: &Run, processes: Option<&Processes>) -> Result<Vec<f64>> {
    let here = run.local_ranks.here();
    let gates = Gates::new(here.len());
    std::thread::scope(|scope| {
        // Whatever goes wrong below, no rank is left waiting.
        let _open = Open(&gates);
        let arrivals: Vec<Arrivals<'_>> = here.clone().map(|_| Arrivals::new(&gates)).collect();
        let mut threads = vec![];
        for (rank, arrivals) in here.clone().zip(arrivals) {
            let name = format!("speed of rank {rank}");
            let thread = std::thread::Builder::new().name(name);
            let whom = move |e: TrainError| TrainError::Of {
                whom: format!("measuring rank {rank}"),
                source: Box::new(e),
            };
            let thread =
                thread.spawn_scoped(scope, move || speed(run, rank, arrivals).map_err(whom));
            threads.push(thread.map_err(|e| {
                let what = format!("measuring rank {rank}'s speed: no thread can be started: {e}");
                TrainError::refused(what, "raise the limit of threads (ulimit -u)")
            })?);
        }
        // All ranks of all processes begin together, and go on until all are measured.
        gates.all_have(READY);
        if let Some(p) = processes {
            p.gather("speed-ready", &[], TOGETHER)?;
            p.tell("speed-go", &[], TOGETHER)?;
        }
        gates.open(READY);
        gates.all_have(MEASURED);
        let own: Option<Vec<f64>> = gates.found(here.len());
        let all = match (processes, own) {
            (None, Some(own)) => own,
            (Some(p), Some(own)) => {
                let bytes: Vec<u8> = own.iter().flat_map(|s| s.to_le_bytes()).collect();
                let all = p.gather("speed", &bytes, TOGETHER)?.concat();
                let all = p.tell("speeds", &all, TOGETHER)?;
                let word = |b: &[u8; 8]| f64::from_le_bytes(*b);
                all.as_chunks::<8>().0.iter().map(word).collect()
            }
            // The threads say why.
            (_, None) => vec![],
        };
        gates.open(MEASURED);
        let panicked =
            || TrainError::refused("measuring a rank's speed panicked", "please report it");
        for t in threads {
            t.join().unwrap_or_else(|_| Err(panicked()))?;
        }
        Ok(all)
    })
}

/// Gates at which the ranks of this process wait for all others.
const READY: usize = 0;
const MEASURED: usize = 1;
const GATES: usize = 2;

/// Where the ranks of this process begin and end together.
struct Gates {
    ranks: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Ranks that have come to each gate, or never will.
    came: [usize; GATES],
    open: [bool; GATES],
    /// What they have found.
    speeds: Vec<(u32, f64)>,
}

impl Gates {
    fn new(ranks: usize) -> Gates {
        Gates {
            ranks,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn until(&self, done: impl Fn(&State) -> bool) {
        let wait = |st| {
            self.changed
                .wait(st)
                .unwrap_or_else(PoisonError::into_inner)
        };
        let mut st = self.state();
        while !done(&st) {
            st = wait(st);
        }
    }

    fn all_have(&self, gate: usize) {
        self.until(|st| st.came[gate] >= self.ranks);
    }

    fn open(&self, gate: usize) {
        self.state().open[gate] = true;
        self.changed.notify_all();
    }

    /// Every rank's speed, in the order of the ranks; `None` when one has none.
    fn found(&self, ranks: usize) -> Option<Vec<f64>> {
        let mut all = self.state().speeds.clone();
        all.sort_by_key(|(rank, _)| *rank);
        (all.len() == ranks).then(|| all.into_iter().map(|(_, s)| s).collect())
    }
}

/// Opens all gates at its end.
struct Open<'a>(&'a Gates);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        (0..GATES).for_each(|gate| self.0.open(gate));
    }
}

/// A rank's place: who gives it up, by an error, by a panic or by never having begun, is waited for no longer.
struct Arrivals<'a> {
    gates: &'a Gates,
    came: usize,
}

impl<'a> Arrivals<'a> {
    fn new(gates: &'a Gates) -> Self {
        Arrivals { gates, came: 0 }
    }

    fn come(&mut self) {
        self.gates.state().came[self.came] += 1;
        self.came += 1;
        self.gates.changed.notify_all();
    }
}

impl Drop for Arrivals<'_> {
    fn drop(&mut self) {
        while self.came < GATES {
            self.come();
        }
    }
}

fn speed(run: &Run, rank: u32, mut arrivals: Arrivals<'_>) -> Result<()> {
    let gates = arrivals.gates;
    let (mut engine, tokens) = ready(run, rank)?;
    let batch = [MicroBatch {
        tokens: &tokens,
        targets: &tokens,
        lengths: &[],
        images: &[],
        first_sequence: 0,
    }];
    let mut step = || -> Result<Duration> {
        let began = Instant::now();
        engine.count_targets(1, 1)?;
        engine.step(&batch, 0.0)?;
        engine.metrics()?;
        Ok(began.elapsed())
    };
    arrivals.come();
    gates.until(|st| st.open[READY]);
    step()?;
    let mut best = Duration::MAX;
    for _ in 0..STEPS {
        best = best.min(step()?);
    }
    let found = run.job.resolved.batch.micro as f64 / best.as_secs_f64().max(1e-9);
    gates.state().speeds.push((rank, found));
    arrivals.come();
    // The slower ranks are measured beside the faster ones, as they will work.
    while !gates.state().open[MEASURED] {
        step()?;
    }
    Ok(())
}

/// A rank alone with the model's ends and two layers, and any tokens.
fn ready(run: &Run, rank: u32) -> Result<(Engine, Vec<i32>)> {
    let units = short(run.job.units(&Place::alone())?.into_inner());
    let null = crate::backend::open_linked("null", &run.host)?.open(0)?;
    let spec = timed(&run.job);
    let batch = spec.rows.batch;
    let dry = dry_run(&null, &units, spec.compute, batch, run.job.seq_len)?;
    let device = run.device_apart(rank)?;
    let units =
        Units::new(units, &spec.place, &spec.optim).map_err(crossweave_engine::Error::from)?;
    let lowered = prepare(&device, &spec, &units, &dry)?;
    let mut engine = Engine::new(Devices::one(&device), lowered, units, Links::new(&Alone))?;
    engine.init()?;
    let tokens = vec![0; (batch * run.job.seq_len) as usize];
    Ok((engine, tokens))
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
