//! What is recorded of a step.

use crossweave_engine::ExpertFigures;
use serde::Serialize;

/// Record of one optimizer step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepRecord {
    /// Optimizer step, from 1.
    pub step: u64,
    /// Mean cross-entropy over the global batch, before the update; nats per token.
    pub loss: f64,
    /// Learning rate of the update.
    pub lr: f64,
    /// Global gradient norm before clipping; absent where it is not finite (a skipped step).
    #[serde(skip_serializing_if = "is_not_finite")]
    pub grad_norm: f64,
    /// Tokens trained on so far, this step included.
    pub tokens: u64,
    /// Tokens of this step over its time.
    pub tokens_per_s: f64,
    /// Time from the end of the step before to the end of this one, in milliseconds.
    pub step_ms: f64,
    /// Loss scale after this step; only in float16 runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// Whether the update was skipped because a gradient was not finite; only in float16 runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<bool>,
    /// Steps skipped so far; only in float16 runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped_steps: Option<u64>,
    /// Pairs of query and key of the fullest of the ranks that share rank 0's rows, over those of their mean; only where rows of several texts are
    /// cut over ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_over_mean: Option<f64>,
    /// How tokens went to experts, and the losses of the routers; only of models with experts.
    #[serde(flatten)]
    pub experts: Option<ExpertFigures>,
}

fn is_not_finite(x: &f64) -> bool {
    !x.is_finite()
}
