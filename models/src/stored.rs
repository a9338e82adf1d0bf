//! Tensors of a checkpoint, read as f32 by their logical names.

use crate::job_error::{JobError, Result};
use crossweave_checkpoint::{Checkpoint, is_readable_float, widen_to_f32};
use std::ops::Range;

/// Elements of a tensor that are read at once, 16 MiB of f32: no copy of a large tensor lies in host memory beside the model.
pub const PIECE: u64 = 1 << 22;

/// The parameters a checkpoint holds: logical names and their own.
pub fn parameters(checkpoint: &Checkpoint) -> impl Iterator<Item = (&str, &str)> {
    let logical = checkpoint.manifest().layout.keys();
    logical.filter_map(|l| Some((l.as_str(), l.strip_prefix("value/")?)))
}

/// Which weights of a checkpoint a model is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weights {
    /// Those that were trained.
    #[default]
    Trained,
    /// Their moving averages; of what has none, such as a frozen parameter, those that were trained.
    Averaged,
}

impl Weights {
    /// The logical name under which a checkpoint holds these weights of a parameter.
    pub fn logical(self, checkpoint: &Checkpoint, parameter: &str) -> String {
        let ema = format!("ema/{parameter}");
        match self {
            Weights::Averaged if checkpoint.manifest().layout.contains_key(&ema) => ema,
            _ => format!("value/{parameter}"),
        }
    }
}

/// Whether a checkpoint holds moving averages of its parameters.
pub fn has_averages(checkpoint: &Checkpoint) -> bool {
    let mut logical = checkpoint.manifest().layout.keys();
    logical.any(|l| l.starts_with("ema/"))
}

/// Elements of a logical tensor as f32, whatever type it was saved in.
///
/// # Errors
/// A tensor that is missing, damaged, or no float.
pub fn floats(checkpoint: &Checkpoint, logical: &str, elements: Range<u64>) -> Result<Vec<f32>> {
    floats_of(checkpoint, logical, &[], elements)
}

/// The same of elements that are counted in a slice of the tensor.
///
/// # Errors
/// As [`floats`].
pub fn floats_of(
    checkpoint: &Checkpoint,
    logical: &str,
    slice: &[[u64; 2]],
    elements: Range<u64>,
) -> Result<Vec<f32>> {
    let dtype = checkpoint.logical_dtype(logical)?;
    if !is_readable_float(dtype) {
        return Err(JobError::refused(
            format!(
                "{}: `{logical}` is stored as {dtype:?}",
                checkpoint.path().display()
            ),
            "resume from a checkpoint of this version",
        ));
    }
    let bytes = checkpoint.logical_slice(logical, slice, elements)?;
    let mut out = Vec::with_capacity(bytes.len() / 2);
    widen_to_f32(dtype, &bytes, &mut out);
    Ok(out)
}

/// Refuses a tensor of a checkpoint that has another shape than the model's.
///
/// # Errors
/// As said.
pub fn same_shape(
    checkpoint: &Checkpoint,
    logical: &str,
    stored: &[usize],
    wanted: &[usize],
) -> Result<()> {
    if stored == wanted {
        return Ok(());
    }
    Err(JobError::refused(
        format!(
            "{}: `{logical}` has shape {stored:?}, the model's is {wanted:?}",
            checkpoint.path().display(),
        ),
        "resume with the model the run was trained with",
    ))
}
