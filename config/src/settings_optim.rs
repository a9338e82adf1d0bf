//! `optimizer` and `scheduler` as plain structs, beside those of the other sections.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// `optimizer`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Optimizer {
    /// Type; several names stand for one optimizer, and `Adam` is AdamW unless `adam_w_mode` is false (DeepSpeed's rule).
    #[serde(rename = "type")]
    pub kind: String,
    /// Parameters of the type.
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
    /// Parameters of the type.
    pub params: OptimizerParams,
}

/// Parameters of an optimizer: those that the run reads itself, and those that are the optimizer's own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OptimizerParams {
    /// Learning rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr: Option<f64>,
    /// Weight decay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
    /// The parameters that decay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_on: Option<DecayOn>,
    /// Muon: rate of the matrices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub muon_lr: Option<f64>,
    /// Muon: rate of what AdamW updates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adam_lr: Option<f64>,
    /// The keys of the optimizer's table beside these, with every default filled in: the fields of its struct in `crossweave-optim`.
    #[serde(flatten)]
    pub own: Map<String, Value>,
}

impl OptimizerParams {
    /// A switch of the optimizer's own; `None` = it has none of that name.
    pub fn flag(&self, key: &str) -> Option<bool> {
        self.own.get(key)?.as_bool()
    }

    /// A number of the optimizer's own; `None` = it has none of that name.
    pub fn number(&self, key: &str) -> Option<f64> {
        self.own.get(key)?.as_f64()
    }
}

/// The parameters that decay.
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
