//! Adam and AdamW: the fused op, one launch over all runs of a group.

use super::{Flat, Group, StepParams, run_of};
use crossweave_hal::abi::op;
use crossweave_tensor::{Result, Run, Tensor};
use crossweave_zero::optim::{Adam, StateName};

/// A step at which `beta^step` is 0 for every beta a configuration can hold: without bias correction nothing is divided.
const NO_CORRECTION: u64 = i32::MAX as u64;

/// The step that tells the op whether moments are corrected.
pub(crate) fn op_step(a: &Adam, step: u64) -> u64 {
    if a.bias_correction {
        step
    } else {
        NO_CORRECTION
    }
}

pub(super) fn update(
    run: &Run<'_>,
    group: &Group,
    flat: &Flat,
    k: &StepParams<'_>,
    a: &Adam,
    lr: f64,
) -> Result<()> {
    let mut tensors = vec![];
    for (at, packed, len) in group.runs() {
        let state = |name| group.states.packed(name, packed, len);
        let value = run_of(&flat.value, at, len);
        let copy = flat.copy.as_ref().map(|c| run_of(c, at, len));
        tensors.push(copy.clone().unwrap_or_else(|| value.clone()));
        tensors.push(run_of(&flat.grad, at, len));
        tensors.extend([state(StateName::Moment1)?, state(StateName::Moment2)?]);
        if copy.is_some() {
            tensors.push(value);
        }
    }
    launch(run, &tensors, flat.copy.is_some(), group, k, a, lr)
}

/// One launch over groups of (p, g, m, v[, master]).
pub(super) fn launch(
    run: &Run<'_>,
    tensors: &[Tensor],
    master: bool,
    group: &Group,
    k: &StepParams<'_>,
    a: &Adam,
    lr: f64,
) -> Result<()> {
    if tensors.is_empty() {
        return Ok(());
    }
    let p = op::AdamwParams {
        flags: if master { op::FLAG_MASTER } else { 0 },
        mode: a.l2 as u32,
        beta1: a.betas[0],
        beta2: a.betas[1],
        eps: a.eps,
        weight_decay: group.recipe.weight_decay,
        ..Default::default()
    };
    let dynamic = op::AdamwDyn {
        lr,
        grad_scale: k.grad_scale,
        step: op_step(a, k.step),
        ..Default::default()
    };
    let operands: Vec<Option<&Tensor>> = [k.coef.as_ref(), k.skip.as_ref()]
        .into_iter()
        .chain(tensors.iter().map(Some))
        .collect();
    run.launch(op::ADAMW, &operands, p.as_bytes(), dynamic.as_bytes())
}
