//! Settings of the config as the engine takes them.

use super::setup::compute_type;
use crossweave_config::{self as config, Resolved};
use crossweave_engine::{LossScaler, Precision, ReduceGradients, ScaleRule, ZeroSpec, ZeroStage};
use crossweave_zero::Persistent;

/// The engine's form of the keys about types and scales.
pub fn precision(r: &Resolved) -> Precision {
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
pub fn zero_spec(z: &config::Zero) -> ZeroSpec {
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
    }
}
