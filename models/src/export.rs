//! The model of a checkpoint, or its adapters, written in the layout that Hugging Face or PEFT reads.

use crate::described;
use crate::stored::{PIECE, Weights, floats, parameters};
use crossweave_checkpoint::{
    Checkpoint, DEFAULT_SHARD_BYTES, Dtype, TensorOut, export_adapter, export_hf, write_f32,
};
use crossweave_job::error::{JobError, Result};
use crossweave_job::stacks;
use crossweave_job::stored_adapter::{Stored, file_name};
use crossweave_nn::{Tensors, family};
use serde_json::Value;
use std::io;
use std::ops::Range;
use std::path::Path;

/// The key of a checkpoint's state that says that experts are written as stacks.
pub const STACKED: &str = "stacked_experts";

/// Writes the model of a checkpoint as a Hugging Face folder, chunk by chunk. `extra`: further files of the folder.
///
/// # Errors
/// A damaged checkpoint; the disk. A model that was there before stays whole.
pub fn export(
    checkpoint: &Checkpoint,
    dir: &Path,
    config: &Value,
    dtype: Dtype,
    (extra, weights): (&[(String, Vec<u8>)], Weights),
) -> Result<()> {
    // Of adapters, their own folder; those of stacks are written in the order in which the model declares them.
    let adapter = &checkpoint.state()["adapter_config"];
    let stacked = |name: &str| {
        let info = checkpoint.logical_info(&weights.logical(checkpoint, name));
        info.is_ok_and(|i| i.shape.len() == 3)
    };
    let matrices = match adapter.is_object() && parameters(checkpoint).any(|(_, n)| stacked(n)) {
        true => described::params(checkpoint.manifest()).map_err(|what| {
            let whose = checkpoint.path().display();
            let fix = "restore the checkpoint from a copy";
            JobError::refused(format!("{whose}: {what}"), fix)
        })?,
        false => vec![],
    };
    let form = match checkpoint.state()[STACKED].as_bool() {
        Some(true) => &Tensors::PLAIN,
        _ => forms(config),
    };
    let mut tensors = vec![];
    for (_, name) in parameters(checkpoint) {
        let logical = weights.logical(checkpoint, name);
        let info = checkpoint.logical_info(&logical)?;
        if let Some(p) = matrices.iter().find(|p| p.name == name) {
            let stored = Stored::of(&matrices, p);
            let (name, shape) = (stored.name.clone(), stored.shape.clone());
            let stream = move |out: &mut dyn io::Write| {
                let all = floats(checkpoint, &logical, 0..p.shape.numel())
                    .map_err(|e| io::Error::other(e.to_string()))?;
                write_f32(out, dtype, &stored.to_file(all))?;
                Ok(())
            };
            tensors.push(TensorOut::stream(name, dtype, &shape, stream));
            continue;
        }
        for part in stacks::parts(form, name, &info.shape) {
            let (logical, Range { start, end }) = (logical.clone(), part.elements);
            let stream = move |out: &mut dyn io::Write| {
                let mut at = start;
                while at < end {
                    let to = end.min(at + PIECE);
                    let values = floats(checkpoint, &logical, at..to)
                        .map_err(|e| io::Error::other(e.to_string()))?;
                    write_f32(out, dtype, &values)?;
                    at = to;
                }
                Ok(())
            };
            let name = match adapter.is_object() {
                true => file_name(name),
                false => part.name,
            };
            tensors.push(TensorOut::stream(name, dtype, &part.shape, stream));
        }
    }
    if tensors.is_empty() {
        return Err(JobError::refused(
            format!("{}: holds no parameters", checkpoint.path().display()),
            "name a checkpoint that `crossweave train` wrote",
        ));
    }
    if adapter.is_object() {
        return Ok(export_adapter(dir, adapter, tensors, extra)?);
    }
    let mut config = config.clone();
    config["torch_dtype"] = match dtype {
        Dtype::BF16 => "bfloat16".into(),
        Dtype::F16 => "float16".into(),
        _ => "float32".into(),
    };
    Ok(export_hf(
        dir,
        &config,
        tensors,
        DEFAULT_SHARD_BYTES,
        extra,
    )?)
}

/// What files of the family of a `config.json` hold in parts.
fn forms(config: &Value) -> &'static Tensors {
    let name = config["model_type"].as_str().unwrap_or_default();
    family(name).map_or(&Tensors::PLAIN, |f| &f.tensors)
}
