//! A checkpoint in other forms: for other ranks, or as a model in Hugging Face layout or adapters in PEFT's.

use crate::companions::Companions;
pub use crate::stored::Weights;
use crate::stored::{floats, has_averages, parameters};
use crate::surroundings::Caches;
use crate::train_error::{Result, TrainError};
use crate::{adapted, described, trained};
use crossweave_checkpoint::{Checkpoint, Dtype, Proof, check_target, reshard};
use crossweave_models::export::export;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A checkpoint that was written for other ranks.
#[derive(Clone, Debug)]
pub struct Resharded {
    /// Its step.
    pub step: u64,
    /// The checkpoint that was read.
    pub from: PathBuf,
    /// Ranks of that.
    pub from_ranks: usize,
    /// The checkpoint that was written.
    pub to: PathBuf,
}

/// Writes an equivalent checkpoint for another number of ranks.
///
/// # Errors
/// Nothing there; damage, with file and reason; a target that is taken; the disk.
pub fn for_ranks(dir: &Path, out: &Path, ranks: u32, stage: Option<u8>) -> Result<Resharded> {
    // Read once: each chunk is held against its hash as it passes.
    let from = Checkpoint::open_as(dir, Proof::AsRead)?;
    described::check(&from)?;
    let mut state = from.state().clone();
    // A run that continues asks for its ranks and stage anew; what is recorded is what the files are cut for.
    if state["config"]["mesh"].is_object() {
        state["config"]["mesh"]["dp"] = ranks.into();
        // Each of these ranks has a slice of every whole unit.
        for axis in ["pp", "tp", "cp", "ep"] {
            state["config"]["mesh"][axis] = 1.into();
        }
        state["config"]["mesh"]["pp_layers"] = "even".into();
    }
    if let Some(stage) = stage {
        state["config"]["zero_optimization"]["stage"] = stage.into();
    }
    Ok(Resharded {
        to: reshard(&from, out, ranks as usize, state)?,
        step: from.step(),
        from: from.path().to_path_buf(),
        from_ranks: from.world_size(),
    })
}

/// How a model is written from a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// The type of its weights.
    pub dtype: Dtype,
    /// Whether the model under a checkpoint's adapters is written, with their updates added.
    pub merge: bool,
    /// Which weights it is made of.
    pub weights: Weights,
}

/// A model that was written from a checkpoint.
#[derive(Clone, Debug)]
pub struct Exported {
    /// The checkpoint.
    pub from: PathBuf,
    /// Its step.
    pub step: u64,
    /// Parameters that it holds: of the model, or of its adapters.
    pub params: usize,
}

/// Writes a checkpoint's model in Hugging Face layout, or its adapters in PEFT's. `warn` gets what is remarkable, such as why the model is
/// written without its tokenizer.
///
/// # Errors
/// Nothing there; damage, with file and reason; adapters to merge or averages that the checkpoint does not hold; a target that is taken; the
/// disk.
pub fn as_model(
    (dir, caches): (&Path, &Caches),
    out: &Path,
    form: Form,
    warn: &dyn Fn(&str),
) -> Result<Exported> {
    let from = Checkpoint::open_as(dir, Proof::AsRead)?;
    described::check(&from)?;
    if form.weights == Weights::Averaged && !has_averages(&from) {
        return Err(TrainError::refused(
            format!(
                "--ema: {} holds no moving average of its weights",
                from.path().display()
            ),
            "leave --ema out, or train with run.ema_decay",
        ));
    }
    let config = trained::hf_config(&from, caches)?;
    check_target(out)?;
    let extra = trained::companions(&from, &config, caches, warn).or_else(|e| {
        warn(&format!("the model is written without a tokenizer: {e}"));
        Companions {
            tokenizer: None,
            folder: None,
            config: &config,
            warn,
        }
        .files()
    })?;
    match form.merge {
        true => merged(&from, out, &config, form, &extra)?,
        false => export(&from, out, &config, form.dtype, (&extra, form.weights))?,
    }
    Ok(Exported {
        from: from.path().to_path_buf(),
        step: from.step(),
        params: parameters(&from).count(),
    })
}

/// Writes the model under a checkpoint's adapters with their updates added.
fn merged(
    from: &Checkpoint,
    out: &Path,
    config: &Value,
    form: Form,
    extra: &[(String, Vec<u8>)],
) -> Result<()> {
    let Some(source) = adapted::of_checkpoint(from)? else {
        return Err(TrainError::refused(
            format!("--merge: {} holds no adapters", from.path().display()),
            "leave --merge out: its model is whole",
        ));
    };
    let read = |name: &str| {
        let logical = form.weights.logical(from, name);
        let shape = &from.logical_info(&logical)?.shape;
        let elements = shape.iter().map(|d| *d as u64).product();
        floats(from, &logical, 0..elements)
    };
    Ok(adapted::merge(
        &source, out, config, form.dtype, extra, &read,
    )?)
}
