//! What a rank is asked to do, from the config: data only, of the place where it stands.

use crate::{Division, Job, documents, offload, optimizer};
use crossweave_config::{self as config, Dtype, Resolved};
use crossweave_hal::DType;
use crossweave_mesh::Place;
use crossweave_planner::optimizers::{Optimizer, ParamGroups, Sgd};
use crossweave_planner::{
    LossScaler, Precision, RankSpec, ReduceGradients, Rows, ScaleRule, ZeroSpec, ZeroStage,
};
use crossweave_zero::Persistent;

/// What the rank at a place is to do.
pub fn spec(job: &Job, division: &Division, place: Place) -> RankSpec {
    let r = &job.resolved;
    let batch = division.rows_of(job, &place);
    RankSpec {
        place,
        seed: r.seed,
        compute: compute_type(r.dtype),
        micro_batches: r.batch.accumulation as u32,
        rows: Rows {
            batch,
            weight: batch as f64 / r.batch.micro as f64,
            seq_len: job.seq_len,
            documents: job.documents,
            labelled: documents::labelled(&r.data),
        },
        clip: r.settings.gradient_clipping,
        optim: optimizer::of_resolved(&r.settings),
        recompute: r.model.recompute(),
        cuts_kept_inputs: r.settings.activation_checkpointing.partition_activations,
        zero: zero_spec(&r.settings),
        precision: precision(r),
        offload: offload::offload(r),
        pipeline: division.stages.clone(),
        canonical: r.settings.run.canonical_shards.map(|n| n as u32),
    }
}

/// A rank alone that does what one of the job does, without an optimizer, to be timed.
pub fn timed(job: &Job) -> RankSpec {
    let even = Division {
        rows: None,
        stages: None,
    };
    let of_job = spec(job, &even, Place::alone());
    RankSpec {
        micro_batches: 1,
        optim: nothing(),
        zero: ZeroSpec {
            bucket_bytes: of_job.zero.bucket_bytes,
            overlap: of_job.zero.overlap,
            ..ZeroSpec::default()
        },
        clip: 0.0,
        precision: Precision::default(),
        offload: None,
        canonical: None,
        ..of_job
    }
}

/// A rank alone that does not train: a model for batches of `batch` sequences of `seq` tokens. `labelled`: some predictions do not count.
pub fn alone(compute: DType, (batch, seq): (u64, u64), labelled: bool) -> RankSpec {
    RankSpec {
        compute,
        rows: Rows {
            labelled,
            ..Rows::new(batch, seq)
        },
        optim: nothing(),
        zero: ZeroSpec {
            bucket_bytes: 0,
            overlap: false,
            ..ZeroSpec::default()
        },
        ..RankSpec::new(Place::alone())
    }
}

/// An optimizer that keeps nothing and changes nothing.
fn nothing() -> ParamGroups {
    ParamGroups::all(
        Optimizer::Sgd(Sgd {
            momentum: 0.0,
            dampening: 0.0,
            nesterov: false,
        }),
        0.0,
    )
}

/// The engine's name of a compute type.
pub fn compute_type(dtype: Dtype) -> DType {
    match dtype {
        Dtype::F32 => DType::F32,
        Dtype::Bf16 => DType::Bf16,
        Dtype::F16 => DType::F16,
    }
}

/// DeepSpeed's own bucket, which its configs write out: half a billion elements, more than most models have.
const DEEPSPEED_BUCKET: u64 = 500_000_000;

/// Bytes of gradients reduced at once: `reduce_bucket_size` where it was chosen, else `run.bucket_mb`.
fn bucket_bytes(s: &config::Settings) -> u64 {
    match s.zero_optimization.reduce_bucket_size {
        DEEPSPEED_BUCKET => (s.run.bucket_mb * (1u64 << 20) as f64) as u64,
        elements => elements.saturating_mul(4),
    }
}

/// The engine's form of the keys about types and scales.
fn precision(r: &Resolved) -> Precision {
    let scaler = r.loss_scale().map(|s| match s.fixed {
        Some(scale) => LossScaler::new(ScaleRule::Static, scale, 1, 1, s.min),
        None => {
            let rule = ScaleRule::DeepSpeed {
                consecutive: s.consecutive_hysteresis,
            };
            LossScaler::new(rule, s.initial, s.window, s.hysteresis, s.min)
        }
    });
    // DeepSpeed's prescale_gradients is how it is done anyway: by the rank count, before the sum.
    let factor = r.settings.gradient_predivide_factor;
    let own = factor != 1.0 && !r.settings.prescale_gradients;
    Precision {
        scaler,
        predivide: own.then_some(factor),
        sum: r.settings.gradient_allreduce_op == "sum",
        wire: compute_type(r.wire()),
        accum: compute_type(r.accumulation()),
    }
}

/// DeepSpeed's keys as the planner's choices.
fn zero_spec(s: &config::Settings) -> ZeroSpec {
    let z = &s.zero_optimization;
    ZeroSpec {
        stage: ZeroStage::from_number(z.stage as u32).unwrap_or(ZeroStage::Zero),
        // A block is the least that can be gathered ahead.
        prefetch: u32::from(z.stage3_prefetch_bucket_size > 0),
        max_live: Some(z.stage3_max_live_parameters),
        reshard: z.reshard_after_forward,
        reuse_within: Some(z.stage3_max_reuse_distance).filter(|d| *d > 0),
        persistent: Some(Persistent::named(&z.stage3_persistent_blocks).unwrap_or_default()),
        persist_below: z.stage3_param_persistence_threshold,
        node: z.zero_hpz_partition_size as u32,
        reduce: ReduceGradients::from_name(&z.reduce_gradients).unwrap_or_default(),
        quantized: z.zero_quantized_weights,
        bucket_bytes: bucket_bytes(s),
        overlap: z.overlap_comm.unwrap_or(s.run.overlap),
    }
}
