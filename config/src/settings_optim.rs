//! `optimizer` and `scheduler` as plain structs, beside those of the other sections.

use serde::{Deserialize, Serialize};

/// `optimizer`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Optimizer {
    /// Type; several names stand for one optimizer, and `Adam` is AdamW unless `adam_w_mode` is false (DeepSpeed's rule).
    #[serde(rename = "type")]
    pub kind: String,
    /// Parameters of all types together; a type uses its own.
    pub params: OptimizerParams,
    /// Exceptions by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub param_groups: Vec<ParamGroup>,
}

/// One of `optimizer.param_groups`; meanings are in the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParamGroup {
    /// Patterns of names.
    #[serde(rename = "match")]
    pub patterns: Vec<String>,
    /// Times the schedule's rate.
    pub lr_scale: f64,
    /// Weight decay; `None` = the optimizer's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
    /// Never updated.
    pub frozen: bool,
    /// Another optimizer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<GroupOptimizer>,
}

/// `optimizer` of a parameter group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupOptimizer {
    /// Type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Parameters of all types together; a type uses its own.
    pub params: OptimizerParams,
}

/// What `eps` may be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Eps {
    /// Added to the root of the second moment.
    One(f64),
    /// Adafactor's: added to the squared gradient, and the least parameter scale.
    Two([f64; 2]),
}

/// Parameters of all optimizers; the tables say which type takes which.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerParams {
    /// Learning rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr: Option<f64>,
    /// Decay of the moments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub betas: Option<[f64; 2]>,
    /// Added where something is divided by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eps: Option<Eps>,
    /// Weight decay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
    /// What decays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_on: Option<DecayOn>,
    /// Decoupled decay; false = L2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adam_w_mode: Option<bool>,
    /// Adam: as torch's, whose decay has another default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub torch_adam: Option<bool>,
    /// Divide moments by 1 − β^step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bias_correction: Option<bool>,
    /// LAMB: largest trust ratio.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_coeff: Option<f64>,
    /// LAMB: smallest trust ratio.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_coeff: Option<f64>,
    /// SGD, Muon: decay of the momentum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub momentum: Option<f64>,
    /// SGD: part of the gradient left out of the momentum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dampening: Option<f64>,
    /// SGD, Muon: look ahead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nesterov: Option<bool>,
    /// Adafactor: largest root mean square of an update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_threshold: Option<f64>,
    /// Adafactor: exponent of the second moment's decay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_rate: Option<f64>,
    /// Adafactor: decay of a first moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta1: Option<f64>,
    /// Adafactor: steps in proportion to the parameter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_parameter: Option<bool>,
    /// Adafactor: the rate follows the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relative_step: Option<bool>,
    /// Adafactor: a slow start of the relative step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_init: Option<bool>,
    /// Muon: iterations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ns_steps: Option<u64>,
    /// Muon: scale by shape.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_mode: Option<String>,
    /// Muon: further factor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extra_scale_factor: Option<f64>,
    /// Muon: rate of the matrices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub muon_lr: Option<f64>,
    /// Muon: rate of what AdamW updates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adam_lr: Option<f64>,
}

/// Which parameters decay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DecayOn {
    /// Every parameter, as torch and DeepSpeed do for a plain parameter list.
    All,
    /// Only those with two or more dims.
    Matrices,
}

/// `scheduler`, params by type; see [`crate::Schedule`] for the function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scheduler {
    /// Type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Parameters of all types together; a type uses its own.
    pub params: SchedulerParams,
}

/// Parameters of all schedules; the tables say which type takes which.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SchedulerParams {
    /// DeepSpeed: rate before warm-up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_min_lr: Option<f64>,
    /// DeepSpeed: rate after warm-up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_max_lr: Option<f64>,
    /// DeepSpeed: steps of warm-up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_num_steps: Option<u64>,
    /// DeepSpeed: `log` or `linear`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_type: Option<String>,
    /// DeepSpeed: end of the decay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_num_steps: Option<u64>,
    /// DeepSpeed: ratio before warm-up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_min_ratio: Option<f64>,
    /// DeepSpeed: ratio at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cos_min_ratio: Option<f64>,
    /// OneCycle: rate at both ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cycle_min_lr: Option<f64>,
    /// OneCycle: rate at the top.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cycle_max_lr: Option<f64>,
    /// OneCycle: fall of the rate after the cycle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_lr_rate: Option<f64>,
    /// OneCycle: steps up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cycle_first_step_size: Option<u64>,
    /// OneCycle: steps down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cycle_second_step_size: Option<u64>,
    /// OneCycle: stairs up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cycle_first_stair_count: Option<u64>,
    /// OneCycle: stairs down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cycle_second_stair_count: Option<u64>,
    /// OneCycle: steps of one decay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_step_size: Option<u64>,
    /// OneCycle: beta1 moves too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cycle_momentum: Option<bool>,
    /// OneCycle: beta1 at the top.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cycle_min_mom: Option<f64>,
    /// OneCycle: beta1 at both ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cycle_max_mom: Option<f64>,
    /// OneCycle: rise of beta1 after the cycle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_mom_rate: Option<f64>,
    /// LRRangeTest: first rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr_range_test_min_lr: Option<f64>,
    /// LRRangeTest: steps of one rise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr_range_test_step_size: Option<u64>,
    /// LRRangeTest: rise in multiples of the first rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr_range_test_step_rate: Option<f64>,
    /// LRRangeTest: rise at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr_range_test_staircase: Option<bool>,
    /// Megatron: rate after warm-up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_lr: Option<f64>,
    /// Megatron: rate of the first update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init_lr: Option<f64>,
    /// Megatron: rate at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_lr: Option<f64>,
    /// Megatron: steps of warm-up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_steps: Option<u64>,
    /// Megatron: end of the decay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_steps: Option<u64>,
    /// Megatron WSD: falling steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_steps: Option<u64>,
    /// Megatron WSD: shape of the fall.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_style: Option<String>,
}
