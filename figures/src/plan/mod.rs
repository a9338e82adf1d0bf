//! The steps of one training step as the engine would walk them, planned and rehearsed on the null device.

mod clock;
mod facts;
mod hosts;
mod pipeline;
mod rank;
mod remedies;
mod rows;
mod schedules;
mod verdict;

use crate::backend::{host, open_linked};
use crate::devices;
use crate::found;
use crate::gradients::{self, Reductions};
use crate::job::{Division, Job, spec};
use crate::layout::divided;
use crate::request::Request;
use crate::stages;
use crate::train_error::{Result, TrainError};
pub use clock::{Clock, Costs, costs_of, measured};
use crossweave_config::Config;
use crossweave_engine::{Dry, Engine, RankSpec, rehearsal};
use crossweave_hal::{CheckerState, Plugin};
pub use crossweave_hosts::Spread;
use crossweave_mesh::{Axis, Place};
use crossweave_plan::{Facts, Plan};
pub use crossweave_timeline::{Form, Timeline};
use facts::JobFacts;
pub use hosts::{AxisOverHosts, OfHosts, SentByHosts};
pub use pipeline::{OfStages, Pipeline, PipelineStage};
pub use rank::{
    AxisCalls, Base, FilesOfStep, Formula, Held, HeldApart, HostMemory, Layout, Memory, Moved,
    OfJob, Offloaded, Part, PeakOfPlan, Resting, StatesFormula, Transfers, VocabularyRows,
};
pub use remedies::Flags;
pub use rows::{CutRows, RowsOfExperts};
pub use schedules::{Played, Schedule, StagePlan, timeline as played_timeline};
use serde::Serialize;
pub use verdict::{Advice, Verdict};

/// What is looked at of a step.
#[derive(Clone, Debug, Default)]
pub struct Planning {
    /// The rank that is looked at; with pipeline stages, those of all stages that stand where it does in its own.
    pub rank: u32,
    /// The device that it is to fit, by name. `None`: the one that the config's back end has here.
    pub device: Option<String>,
    /// By what its steps are timed, where schedules are held against each other.
    pub costs: Costs,
    /// A timeline of its steps is wanted.
    pub timeline: bool,
    /// The hosts that its ranks are on, where what leaves each of them is wanted.
    pub hosts: Option<Spread>,
}

/// A training step as it would run.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Memory, traffic, verdict and advice.
    pub figures: PlanFigures,
    /// Ranks of the job.
    pub ranks: u64,
    /// Parameters of the model.
    pub params: u64,
    /// Those of them that a token goes through, where that is not all of them: of the experts of a layer some.
    pub active: Option<u64>,
    /// Micro-batches of a step, sequences of each, and tokens that a rank has of a sequence.
    pub batch: [u64; 3],
    /// The units of the model with their parameters.
    pub units: Vec<(String, u64)>,
    /// The sentence about hidden states that the ranks of `mesh.tp` do not cut by tokens, where that was not decided.
    pub note: Option<String>,
    /// The timeline of its steps, where it is wanted.
    pub timeline: Option<Timeline>,
}

impl Planned {
    /// The figures of each pipeline stage, in order.
    pub fn stages(&self) -> &[RankFigures] {
        match &self.figures.pipeline {
            Some(p) => &p.stages,
            None => std::slice::from_ref(&self.figures.rank),
        }
    }
}

/// The figures of a step. As JSON they are what `crossweave plan --json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct PlanFigures {
    /// A rank of the job; of the fullest stage, where there are several, and then with all ranks and parameters.
    #[serde(flatten)]
    pub rank: RankFigures,
    /// Advice: a change that would make the job fit, or the reason why none is needed.
    pub advice: Advice,
    /// The bytes that its hosts send, where hosts are given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Option<OfHosts>,
    /// All stages, where there are several.
    #[serde(flatten)]
    pub pipeline: Option<Pipeline>,
}

/// The figures of a rank.
#[derive(Clone, Debug, Serialize)]
pub struct RankFigures {
    /// What it trains.
    #[serde(flatten)]
    pub job: OfJob,
    /// Bytes of it by what they hold.
    pub memory: Memory,
    /// The formulas of what lives between steps, where the optimizer is of the Adam family: the same numbers by other means.
    pub states_formula: Option<StatesFormula>,
    /// What a step moves.
    #[serde(flatten)]
    pub moved: Moved,
    /// The fullest moment of the plan.
    pub peak: PeakOfPlan,
    /// Bytes at that moment, by the plan.
    pub peak_bytes: u64,
    /// When gradients are reduced, where there is a choice or a reason why there is none.
    pub gradients: Option<Reductions>,
    /// Its rows of the vocabulary, where ranks share layers.
    pub vocabulary: Option<VocabularyRows>,
    /// The cut of rows, where ranks have parts of them.
    pub rows: Option<CutRows>,
    /// Rows that come to the experts of a rank, where these lie over ranks.
    pub rows_of_experts: Option<RowsOfExperts>,
    /// What rests off the device, where the config sends something away.
    pub offload: Option<Offloaded>,
    /// Whether it fits its device.
    pub verdict: Verdict,
    /// Its stage, where there are several.
    #[serde(flatten)]
    pub stage: Option<PipelineStage>,
    /// Its plan.
    pub plan: Plan,
    /// The facts that the plan was made of.
    pub facts: Facts,
}

/// The engine of a rank on the null device; what cannot be planned has its place in the config.
fn begin(
    plugin: &Plugin,
    config: &Config,
    job: &Job,
    dry: &Dry,
    rank: &RankSpec,
) -> Result<Engine> {
    // A device of its own, so that the ledger counts what the engine takes and nothing of the dry run; and a board of its own, so
    // that no stage is missed by another.
    let null = plugin.with_checker(&CheckerState::default()).open(0)?;
    let units = job.units(&rank.place)?;
    let engine = rehearsal(&null, units, rank, dry).map_err(TrainError::from);
    found::at(config, "zero_optimization", engine)
}

/// The same rank with everything on its device but kept inputs.
fn without_offload(mut rank: RankSpec) -> RankSpec {
    if let Some(offload) = &mut rank.offload {
        (offload.optimizer, offload.params) = (None, false);
        rank.offload.take_if(|o| !o.activations);
    }
    rank
}

/// Bytes that the fullest rank of a job needs on its device.
///
/// # Errors
/// A config that is wrong; a job that cannot be planned.
fn needed(request: &Request, config: Config, ranks: u64, device: &devices::Chosen) -> Result<u64> {
    let job = request.sizes(config.clone(), ranks)?;
    let plugin = null(request, ranks)?;
    let own = job.place(0);
    let (dry, division) = divided(&plugin.open(0)?, &job, &own)?;
    let mut most = 0;
    for stage in 0..own.length(Axis::Pp) {
        let rank = spec(&job, &division, own.stage(stage));
        let mut engine = begin(&plugin, &config, &job, &dry, &rank)?;
        let counted = crossweave_engine::predict(&mut engine)?;
        most = most.max(remedies::needed(&counted, device));
    }
    Ok(most)
}

/// The instructions of one rank's step, as text.
///
/// # Errors
/// A config that is wrong; a rank that the job does not have.
pub fn program(request: &Request, what: &Planning) -> Result<String> {
    let config = request.load()?;
    let (ranks, _) = ranks_and_device(request, &config, what)?;
    let job = request.sizes(config.clone(), ranks)?;
    let plugin = null(request, ranks)?;
    let own = place(what, &job, ranks)?;
    let (dry, division) = divided(&plugin.open(0)?, &job, &own)?;
    let engine = begin(&plugin, &config, &job, &dry, &spec(&job, &division, own))?;
    Ok(engine.program_text())
}

/// Where the rank stands that is looked at.
fn place(what: &Planning, job: &Job, ranks: u64) -> Result<Place> {
    if u64::from(what.rank) < ranks {
        return Ok(job.place(what.rank));
    }
    let (rank, last) = (what.rank, ranks - 1);
    Err(TrainError::refused(
        format!("--rank {rank}: the job has ranks 0 to {last}"),
        "give one of them, or more --ranks",
    ))
}

/// The ranks that a config is planned for, and the device.
fn ranks_and_device(
    request: &Request,
    config: &Config,
    what: &Planning,
) -> Result<(u64, devices::Chosen)> {
    let ranks = request.ranks_of(config);
    let (named, backend) = (what.device.as_deref(), &config.settings.run.backend);
    let device = devices::choose(named, backend, ranks, &request.around)?;
    Ok((ranks, device))
}

/// The null device's back end, for a job of so many ranks.
fn null(request: &Request, ranks: u64) -> Result<Plugin> {
    let host = host(&request.around.plugins, ranks as u32, None, None);
    open_linked("null", &host)
}

/// Plans a training step of a job and rehearses it.
///
/// # Errors
/// A config that is wrong; a plan that breaks a law; a rank or a device that is not there.
pub fn plan(request: &Request, what: &Planning) -> Result<Planned> {
    let config = request.load()?;
    let (ranks, device) = ranks_and_device(request, &config, what)?;
    let job = request.sizes(config.clone(), ranks)?;
    let plugin = null(request, ranks)?;
    let own = place(what, &job, ranks)?;
    let (dry, division) = divided(&plugin.open(0)?, &job, &own)?;
    let spec = spec(&job, &division, own);
    let known = JobFacts::of(&job, &spec, &device);
    let sizes = (&dry.units[..], dry.shape);
    let clock = Clock::of((&job, &own), sizes, &known, &what.costs)?;
    let rehearsed = Rehearsed {
        plugin: &plugin,
        config: &config,
        dry: &dry,
        division: &division,
        job: &job,
    };
    let stages = 0..own.length(Axis::Pp);
    let all = stages.map(|stage| rehearsed.rank(&known, own.stage(stage)));
    let (all, judged): (Vec<_>, Vec<_>) = all.collect::<Result<Vec<_>>>()?.into_iter().unzip();
    if job.ranks > 1 {
        let plan_of = |rank: u32| {
            let stage: &RankFigures = &all[job.place(rank).at(Axis::Pp) as usize];
            (&stage.plan, &stage.facts)
        };
        stages::agree(&job, &division, plan_of)?;
    }
    let timeline = match what.timeline {
        true => {
            let alone = schedules::alone(dry.units.len());
            let cut = division.stages.as_ref().unwrap_or(&alone);
            let plans = all.iter().map(|r| (&r.plan, &r.facts, r.memory.total.peak));
            let drawn = schedules::timeline(cut, &plans.collect::<Vec<_>>(), &clock);
            Some(drawn.map_err(|e| TrainError::refused(e, "please report it with the config"))?)
        }
        false => None,
    };
    let hosts = match what.hosts {
        Some(spread) => {
            let hosts = spread.over(ranks as u32);
            let hosts = hosts.map_err(|e| TrainError::refused(e.what, e.fix))?;
            Some(OfHosts::of(&hosts, &job, &all)?)
        }
        None => None,
    };
    let fullest = pipeline::fullest(&all);
    let mut rank = all[fullest].clone();
    let micro_batches = u64::from(spec.micro_batches);
    let advice = verdict::advice(&rank, &judged[fullest], || {
        let needed_by = |config, ranks| needed(request, config, ranks, &device);
        remedies::remedies((&config, ranks), &known, rank.verdict.needed, needed_by)
    });
    let pipeline = division.stages.as_ref().map(|cut| {
        (rank.job.ranks, rank.job.params) = (ranks, dry.params);
        let each = schedules::all(&job, cut, spec.micro_batches, &clock);
        Pipeline::of(cut, micro_batches, ranks, (each, clock.words), all)
    });
    let units = dry.units.iter().map(|u| (u.name.to_string(), u.params));
    let idle = job.source.spec.model().idle();
    Ok(Planned {
        figures: PlanFigures {
            rank,
            advice,
            hosts,
            pipeline,
        },
        ranks,
        params: dry.params,
        active: (idle > 0).then(|| dry.params.saturating_sub(idle)),
        batch: [
            micro_batches,
            job.resolved.batch.micro,
            job.seq_len / u64::from(job.resolved.mesh.length(Axis::Cp)),
        ],
        units: units.collect(),
        note: job.why_tokens_are_whole(),
        timeline,
    })
}

/// A job whose ranks are rehearsed.
struct Rehearsed<'a> {
    plugin: &'a Plugin,
    config: &'a Config,
    dry: &'a Dry,
    division: &'a Division,
    job: &'a Job,
}

impl Rehearsed<'_> {
    /// The figures of the rank at `place`, and what the advice must know beside them.
    fn rank<'a>(
        &self,
        known: &'a JobFacts<'a>,
        place: Place,
    ) -> Result<(RankFigures, verdict::Rank<'a>)> {
        let (job, settings) = (self.job, &self.job.resolved.settings);
        let begin = |rank: &RankSpec| begin(self.plugin, self.config, job, self.dry, rank);
        let spec = spec(job, self.division, place);
        let mut engine = begin(&spec)?;
        let peak = crossweave_plan::check(engine.plan(), engine.facts())
            .map_err(crossweave_engine::Error::from)?;
        let counted = crossweave_engine::predict(&mut engine)?;
        let gradients = gradients::of_plan(&spec, &counted, |other| -> Result<_> {
            Ok(crossweave_engine::predict(&mut begin(&other)?)?)
        });
        let offload = rank::offload(settings, &counted);
        // So much would a rank need if its states stayed on the device.
        let alone = match offload {
            None => counted.steady.total.peak,
            Some(_) => {
                let mut here = begin(&without_offload(spec.clone()))?;
                crossweave_engine::predict(&mut here)?.steady.total.peak
            }
        };
        let (plan, facts) = (engine.plan().clone(), engine.facts().clone());
        let (memory, tp) = (rank::memory(&counted), place.length(Axis::Tp));
        let stage = place.at(Axis::Pp);
        let figures = RankFigures {
            job: rank::of_job(known, &engine),
            states_formula: rank::formulas(known, &engine),
            moved: rank::moved(known, &engine, &counted),
            peak: rank::peak(&plan, &facts, &peak),
            peak_bytes: peak.parts.total(),
            gradients,
            vocabulary: rank::vocabulary(&job.source, &job.units(&place)?, tp),
            rows: CutRows::of(job, &place)?,
            rows_of_experts: RowsOfExperts::of(&facts, job.source.spec.model()),
            offload,
            verdict: Verdict::on(known.device, &memory),
            memory,
            stage: spec
                .pipeline
                .as_ref()
                .map(|p| PipelineStage::of(p, stage, &facts)),
            plan,
            facts,
        };
        let judged = verdict::Rank {
            job: known,
            units: rank::shared(known, &engine),
            alone,
        };
        Ok((figures, judged))
    }
}
