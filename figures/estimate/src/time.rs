//! How long a step and a run take, and how throughput grows with ranks.

use super::job::Job;
use crossweave_zero::ZeroStage;
use crossweave_zero::estimate::{
    ActivationCase, Profile, flops, mfu, scaling, seconds_on, sixpt, years, years_of_seconds,
};
use serde::Serialize;

/// Times of a job; those of a device whose rates are not known are `None`.
#[derive(Clone, Debug, Serialize)]
pub struct Times {
    /// The time of a step and of a run.
    pub time: Option<TimeOfRun>,
    /// Throughput on more ranks. The outer `None`: a mesh cuts the model, and is of these ranks alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Option<Scaling>>,
}

/// The time of a step and of a run.
#[derive(Clone, Debug, Serialize)]
pub struct TimeOfRun {
    /// The device.
    pub device: &'static str,
    /// Operations a second that one sustains.
    pub sustained_flops: f64,
    /// Operations a second that one reaches at most.
    pub peak_flops: f64,
    /// Tokens of the run.
    pub tokens: f64,
    /// A step.
    pub step: StepTime,
    /// The run.
    pub run: RunTime,
}

/// The time of a step.
#[derive(Clone, Debug, Serialize)]
pub struct StepTime {
    /// Operations that the model needs.
    pub model_flops: f64,
    /// The formula of `model_flops`.
    pub model_formula: &'static str,
    /// Operations where every layer is recomputed.
    pub hardware_flops: f64,
    /// The formula of `hardware_flops`.
    pub hardware_formula: &'static str,
    /// Seconds of computation.
    pub seconds: f64,
    /// Operations of the model over those at the peak.
    pub mfu: f64,
    /// Operations that are carried out over those at the peak.
    pub hfu: f64,
    /// Seconds of transfers between device and host.
    pub transfer_seconds: Option<f64>,
}

/// The time of a run.
#[derive(Clone, Debug, Serialize)]
pub struct RunTime {
    /// Operations.
    pub flops: f64,
    /// Seconds of all ranks together.
    pub seconds: f64,
    /// The same in years.
    pub years: f64,
    /// Years of one device alone.
    pub device_years: f64,
    /// The formula of `seconds`.
    pub formula: &'static str,
}

/// Throughput over numbers of ranks.
#[derive(Clone, Debug, Serialize)]
pub struct Scaling {
    /// One for each number of ranks, doubled from the job's.
    pub rows: Vec<ScalingRow>,
    /// The formula of all columns.
    pub formula: String,
}

/// Throughput on a number of ranks at stage 3.
#[derive(Clone, Debug, Serialize)]
pub struct ScalingRow {
    /// The ranks.
    pub ranks: u64,
    /// Sequences that a rank has room for.
    pub batch_per_rank: u64,
    /// Seconds of computation in a step.
    pub compute_seconds: f64,
    /// Seconds of communication in a step.
    pub comm_seconds: f64,
    /// Tokens a second of all ranks.
    pub tokens_per_second: f64,
}

/// The times of a job whose offload takes `transfer_seconds` in a step.
pub fn times(job: &Job, transfer_seconds: Option<f64>) -> Times {
    let device = job.on.rates;
    Times {
        time: device.map(|d| of_run(job, &d, transfer_seconds)),
        scaling: (job.places.part.is_none()).then(|| device.map(|d| over_ranks(job, &d))),
    }
}

fn of_run(job: &Job, d: &Profile, transfer_seconds: Option<f64>) -> TimeOfRun {
    let (ranks, sustained) = (job.places.ranks as f64, job.on.sustained);
    let step = flops(&job.model.shape, job.batch * job.data_ranks());
    let work = match job.keep.0 {
        ActivationCase::Recompute => step.hardware,
        _ => step.model,
    };
    let seconds = seconds_on(work, ranks, sustained);
    let tokens = job.model.tokens.unwrap_or(300e9);
    let active = job.model.params.saturating_sub(job.model.idle);
    let total = sixpt(active as f64, tokens);
    let run = seconds_on(total, ranks, sustained);
    TimeOfRun {
        device: d.name,
        sustained_flops: sustained,
        peak_flops: d.peak,
        tokens,
        step: StepTime {
            model_flops: step.model,
            model_formula: "72 B L s h^2 (1 + s/6h + V/12Lh)",
            hardware_flops: step.hardware,
            hardware_formula: "96 B L s h^2 (1 + s/6h + V/16Lh), full recompute",
            seconds,
            mfu: mfu(step.model, seconds, ranks, d.peak),
            hfu: mfu(work, seconds, ranks, d.peak),
            transfer_seconds,
        },
        run: RunTime {
            flops: total,
            seconds: run,
            years: years_of_seconds(run),
            device_years: years(total, sustained),
            formula: "6PT / (N x sustained)",
        },
    }
}

fn over_ranks(job: &Job, d: &Profile) -> Scaling {
    let ranks: Vec<u64> = (0..6).map(|k| job.places.ranks << k).collect();
    let how = (job.accounting.0, job.accumulation);
    let points = scaling(job.model.params, &job.model.shape, how, d, &ranks);
    let row = |p: &crossweave_zero::estimate::Point| ScalingRow {
        ranks: p.ranks,
        batch_per_rank: p.batch,
        compute_seconds: p.compute,
        comm_seconds: p.comm,
        tokens_per_second: p.throughput,
    };
    let wire = job.accumulation.wire_formula(ZeroStage::Three);
    Scaling {
        rows: points.iter().map(row).collect(),
        formula: format!(
            "stage 3: the batch that fits beside 16P/N, 8PT/sustained + {wire} w/link"
        ),
    }
}
