//! The steps of one training step as the engine would walk them, planned and rehearsed on the null device.

use crate::backend::{host, open_linked};
use crate::job::open::Opened;
use crate::job::spec::compute_type;
use crate::job::{Division, Job, Shares, spec};
use crate::model::Source;
use crate::surroundings::Surroundings;
use crate::train::with_offload;
use crate::train_error::{Result, TrainError};
use crate::{
    config_file, devices, plan_page, predict, predict_pipeline, reductions, remedies, stages,
    verdict,
};
use crossweave_config::Config;
use crossweave_engine::{Dry, RankSpec, Trainer, dry_run, rehearsal};
use crossweave_hal::{CheckerState, Plugin};
use crossweave_mesh::{Axis, Place};
use crossweave_plan::{Facts, Peak, Plan};
use crossweave_tensor::UnitDecl;
use serde_json::{Value, json};
use std::path::PathBuf;

fn add_peak(figures: &mut serde_json::Value, plan: &Plan, facts: &Facts, peak: &Peak) {
    if let Some(step) = plan.steps.get(peak.step.index()) {
        figures["peak"]["what"] = json!(plan_page::moment(&step.op, facts));
        figures["peak"]["steps"] = json!(plan.steps.len());
    }
    figures["peak_bytes"] = json!(peak.parts.total());
}

/// Rows of the vocabulary that the rank has of all, where ranks share layers.
fn vocabulary(source: &Source, units: &[UnitDecl], tp: u32) -> serde_json::Value {
    let table = source.spec.model().table();
    let mut all = units.iter().flat_map(|u| &u.params);
    let found = all.find(|p| tp > 1 && p.name == table);
    let rows = found.map(|p| json!({"rows": p.shape.dims()[0], "here": p.local().dims()[0]}));
    rows.unwrap_or_default()
}

/// The trainer of a rank on the null device, which keeps off the device what the config says, or nothing but kept inputs.
fn begin(plugin: &Plugin, job: &Job, dry: &Dry, rank: RankSpec, away: bool) -> Result<Trainer> {
    // A device of its own, so that the ledger counts what the trainer takes and nothing of the dry run; and a board of its own, so
    // that no stage is missed by another.
    let null = plugin.with_checker(&CheckerState::default()).open(0)?;
    let mut rank = with_offload(rank, &job.resolved);
    if !away && let Some(offload) = &mut rank.offload {
        (offload.optimizer, offload.params) = (None, false);
        rank.offload.take_if(|o| !o.activations);
    }
    let units = job.units(&rank.place)?;
    Ok(rehearsal(&null, units, &rank, dry)?)
}

/// The sizes of a job's units on the rank at a place, and how its ranks divide the work.
fn divided(plugin: &Plugin, job: &Job, place: &Place) -> Result<(Dry, Division)> {
    let units = job.units(place)?;
    let (compute, micro) = (compute_type(job.resolved.dtype), job.resolved.batch.micro);
    let dry = dry_run(&plugin.open(0)?, &units, compute, micro, job.seq_len)?;
    let division = Division::new(job, (&dry.units, dry.shape), Shares::Even)?;
    Ok((dry, division))
}

/// The facts of a job that its trainers do not know: model, device and batch.
fn job_facts<'a>(job: &'a Job, rank: &RankSpec, device: &'a devices::Chosen) -> predict::Job<'a> {
    let optimizer = &job.resolved.settings.optimizer;
    predict::Job {
        mesh: rank.place.mesh(),
        ranks: rank.place.length(Axis::Dp).into(),
        stage: rank.zero.stage,
        compute: rank.compute,
        // Groups may freeze parameters or give them another optimizer: then no formula holds for all.
        optimizer: match optimizer.param_groups.is_empty() {
            true => &optimizer.kind,
            false => "groups",
        },
        batch: rank.batch,
        accumulation: reductions::accumulation(rank),
        shards: rank.canonical.map(u64::from),
        seq: job.seq_len,
        recompute: rank.recompute,
        model: job.source.spec.model(),
        device,
    }
}

/// Bytes that the fullest rank of a job needs on its device.
///
/// # Errors
/// A config that is wrong; a job that cannot be planned.
fn needed(
    config: Config,
    ranks: u64,
    device: &devices::Chosen,
    around: &Surroundings,
) -> Result<u64> {
    let job = Opened::sizes(config, ranks, &around.caches)?;
    let plugin = open_linked("null", &host(&around.plugins, ranks as u32, None, None))?;
    let own = job.place(0);
    let (dry, division) = divided(&plugin, &job, &own)?;
    let mut most = 0;
    for stage in 0..own.length(Axis::Pp) {
        let rank = spec(&job, &division, own.stage(stage));
        let mut trainer = begin(&plugin, &job, &dry, rank, true)?;
        let counted = crossweave_engine::predict(&mut trainer)?;
        most = most.max(remedies::needed(&counted, device));
    }
    Ok(most)
}

/// What is planned.
#[derive(Clone, Debug)]
pub struct Planning {
    /// The file of the config.
    pub config: PathBuf,
    /// Keys that are laid over it: `key.path=value`.
    pub sets: Vec<String>,
    /// Ranks of the job. `None`: `mesh.dp`, else one.
    pub ranks: Option<u32>,
    /// The rank that is looked at; with pipeline stages, those of all stages that stand where it does in its own.
    pub rank: u32,
    /// The device that it is to fit, by name. `None`: the one that the config's back end has here.
    pub device: Option<String>,
}

/// A training step as it would run.
pub struct Planned {
    /// Memory, traffic, verdict and advice; of the fullest stage, where there are several.
    pub figures: Value,
    /// The plan of each pipeline stage.
    pub plans: Vec<(Plan, Facts)>,
    /// Ranks of the job.
    pub ranks: u64,
    /// Parameters of the model.
    pub params: u64,
    /// Micro-batches of a step, sequences of each, and tokens of a sequence.
    pub batch: [u64; 3],
    /// The units of the model with their parameters.
    pub units: Vec<(String, u64)>,
}

/// The instructions of one rank's step, as text.
///
/// # Errors
/// A config that is wrong; a rank that the job does not have.
pub fn program(what: &Planning, around: &Surroundings) -> Result<String> {
    let (config, ranks, _) = read(what, around)?;
    let job = Opened::sizes(config, ranks, &around.caches)?;
    let plugin = open_linked("null", &host(&around.plugins, ranks as u32, None, None))?;
    let own = place(what, &job, ranks)?;
    let (dry, division) = divided(&plugin, &job, &own)?;
    let trainer = begin(&plugin, &job, &dry, spec(&job, &division, own), true)?;
    Ok(trainer.program_text())
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

/// The config, the ranks it is planned for, and the device.
fn read(what: &Planning, around: &Surroundings) -> Result<(Config, u64, devices::Chosen)> {
    let config = config_file::load(&what.config, &what.sets, &around.caches)?;
    let ranks = config.ranks(what.ranks.map(u64::from));
    let named = what.device.as_deref();
    let device = devices::choose(named, &config.settings.run.backend, ranks, around)?;
    Ok((config, ranks, device))
}

/// Plans a training step and rehearses it. `with_plans`: the plan and its facts stand among the figures.
///
/// # Errors
/// A config that is wrong; a plan that breaks a law.
pub fn plan(what: &Planning, with_plans: bool, around: &Surroundings) -> Result<Planned> {
    let (config, ranks, device) = read(what, around)?;
    let asked = config.clone();
    let job = Opened::sizes(config, ranks, &around.caches)?;
    let plugin = open_linked("null", &host(&around.plugins, ranks as u32, None, None))?;
    let own = place(what, &job, ranks)?;
    let (dry, division) = divided(&plugin, &job, &own)?;
    let units = job.units(&own)?;
    // A rank with what rests off its device.
    let placed = |rank: RankSpec| with_offload(rank, &job.resolved);
    let known = job_facts(&job, &placed(spec(&job, &division, own)), &device);
    let mut all = vec![];
    let mut judged = vec![];
    let mut plans = vec![];
    for stage in 0..own.length(Axis::Pp) {
        let rank = spec(&job, &division, own.stage(stage));
        let begin = |rank: RankSpec, away: bool| begin(&plugin, &job, &dry, rank, away);
        let mut trainer = begin(rank.clone(), true)?;
        let peak = crossweave_plan::check(trainer.plan(), trainer.facts())
            .map_err(crossweave_engine::Error::from)?;
        let counted = crossweave_engine::predict(&mut trainer)?;
        let mut figures = predict::figures(&known, &trainer, &counted, &peak);
        let of = placed(rank.clone());
        figures["gradients"] = reductions::figures(&of, &counted, |other| -> Result<_> {
            Ok(crossweave_engine::predict(&mut begin(other, true)?)?)
        })?;
        figures["vocabulary"] = vocabulary(&job.source, &units, own.length(Axis::Tp));
        figures["offload"] = predict::offload(&job.resolved.settings, &counted);
        // So much would a rank need if its states stayed on the device.
        let alone = match figures["offload"].is_null() {
            true => counted.steady.total.peak,
            false => {
                let mut here = begin(rank.clone(), false)?;
                crossweave_engine::predict(&mut here)?.steady.total.peak
            }
        };
        verdict::judge(&mut figures, &known);
        judged.push(verdict::Rank {
            job: &known,
            units: trainer.unit_sizes(),
            alone,
        });
        let (plan, facts) = (trainer.plan(), trainer.facts());
        add_peak(&mut figures, plan, facts, &peak);
        if with_plans {
            figures["plan"] = json!(plan);
            figures["facts"] = json!(facts);
        }
        if let Some(spec) = &rank.pipeline {
            predict_pipeline::name(&mut figures, spec, stage, facts);
        }
        plans.push((plan.clone(), facts.clone()));
        all.push(figures);
    }
    let rank = spec(&job, &division, own);
    if job.ranks > 1 {
        let plan_of = |rank: u32| &plans[job.place(rank).at(Axis::Pp) as usize];
        stages::agree(&job, &division, plan_of)?;
    }
    let mut figures = match &division.stages {
        Some(cut) => {
            predict_pipeline::join(cut, u64::from(rank.micro_batches), (ranks, dry.params), all)
        }
        None => all.remove(0),
    };
    let fullest = figures["pipeline"]["fullest_stage"].as_u64().unwrap_or(0) as usize;
    let most = figures["verdict"]["needed"].as_u64().unwrap_or(0);
    verdict::advise_on(&mut figures, &judged[fullest], || {
        remedies::remedies((&asked, ranks), &known, most, |config, ranks| {
            needed(config, ranks, &device, around)
        })
    });
    Ok(Planned {
        figures,
        plans,
        ranks,
        params: dry.params,
        batch: [
            u64::from(rank.micro_batches),
            job.resolved.batch.micro,
            job.seq_len,
        ],
        units: dry
            .units
            .iter()
            .map(|u| (u.name.to_string(), u.params))
            .collect(),
    })
}
