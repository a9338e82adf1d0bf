//! What a checkpoint remembers besides tensors: from where in its data, schedule and loss scale a run goes on, and of which run it is.

use crate::adapted;
use crate::prepared::Run;
use crossweave_checkpoint::GENERATOR;
use crossweave_engine::ScalerState;
use crossweave_models::export::STACKED;
use serde_json::{Value, json};

/// The state behind `step` steps, as the manifest of a checkpoint has it. Dropout and shuffles are drawn by counters, so a seed and a position are all the
/// random state there is. A step that the loss scaler skipped is no update: it moves neither optimizer nor schedule.
pub fn state(run: &Run, step: u64, scaler: Option<ScalerState>) -> Value {
    let r = &run.job.resolved;
    let updates = step - scaler.map_or(0, |s| s.skipped.min(step));
    let mut state = json!({
        "config": r.settings,
        "corpus": run.reads.corpus.fingerprint(),
        "sequences_consumed": step * r.batch.global,
        "rng": {"generator": GENERATOR, "seed": r.seed, "position": step},
        "scheduler": {"step": updates, "lr": r.schedule.lr(updates)},
        "optimizer": {"type": r.settings.optimizer.kind, "step": updates},
        "loss_scaler": scaler,
        "hf_config": run.hf_config(),
        "adapter_config": adapted::config_of(&run.job.source),
        "base": adapted::base(&run.job.source),
    });
    // The form of the folder that the model came from, in which it is written.
    if run.job.source.folder.as_ref().is_some_and(|f| f.stacked) {
        state[STACKED] = true.into();
    }
    state
}
