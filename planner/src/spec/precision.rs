//! In what types gradients are computed, summed and sent.
//!
//! Gradients may be added up in 16 bits (`data_types.grad_accum_dtype`): a micro-batch's gradient is made in f32, rounded, and added to
//! the sum, which is rounded too; half the memory of gradients between micro-batches, and the rounding of DeepSpeed's buffers. What is
//! reduced is the sum widened to f32.

use super::RankSpec;
use crate::error::{Error, Result};
use crate::scaler::LossScaler;
use crossweave_hal::DType;
use crossweave_plan::UnitFacts;

/// In what types and at what scale gradients are computed, summed and sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Precision {
    /// Loss scaling, for float16.
    pub scaler: Option<LossScaler>,
    /// Gradients are divided by this before they are summed over the ranks, and by the rest of the rank count after; `None` = by the
    /// rank count before.
    pub predivide: Option<f64>,
    /// Gradients are added over the ranks and divided by nothing.
    pub sum: bool,
    /// Type of gradients between the ranks; the collective adds in f32 and rounds once.
    pub wire: DType,
    /// Type in which gradients of micro-batches are added up: f32, or the 16-bit type of the parameters, rounded behind each micro-batch.
    pub accum: DType,
}

impl Default for Precision {
    /// No scaling, everything in f32.
    fn default() -> Precision {
        Precision {
            scaler: None,
            predivide: None,
            sum: false,
            wire: DType::F32,
            accum: DType::F32,
        }
    }
}

/// Refuses a type that cannot hold.
pub(super) fn check_accumulation(spec: &RankSpec) -> Result<()> {
    let (accum, compute) = (spec.precision.accum, spec.compute);
    if accum != DType::F32 && spec.canonical.is_some() {
        return Err(Error::Invalid(format!(
            "canonical sums go over f32 gradients of logical shards, and data_types.grad_accum_dtype asks for {}; set it to fp32",
            accum.name()
        )));
    }
    if accum == DType::F32 || accum == compute {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "gradients of {} parameters accumulated in {}: only f32 and the 16-bit type of the parameters themselves hold what a backward makes; set data_types.grad_accum_dtype to fp32 or to the compute type",
        compute.name(),
        accum.name()
    )))
}

/// Puts it into the facts: the sum is what lives between micro-batches, an f32 gradient beside it while a backward runs.
pub(crate) fn facts_of_accumulation(units: &mut [UnitFacts], spec: &RankSpec) {
    // Reduced one by one, each is a whole f32 gradient, and the sum a slice, but for what a rank owns alone.
    let in_slices = |u: &UnitFacts| {
        let alone = matches!(u.talk.owners, Some((_, 1)));
        spec.reduces_each() && (!alone || spec.sums_alone())
    };
    if spec.precision.accum != DType::F32 {
        for u in units
            .iter_mut()
            .filter(|u| u.grad_bytes > 0 && !in_slices(u))
        {
            let trained = u.params - u.base;
            u.grad_bytes = spec.precision.accum.bytes(trained);
            u.workspace_bytes += 4 * trained;
        }
    }
}
