//! Adam and AdamW: the fused op, one launch over all runs of a group.

use super::{Step, StepParams, betas, constant, rate, run_of};
use crate::{Adam, Recipe, StateName};
use crossweave_program::abi::op::{self, AdamwDyn, AdamwParams};
use crossweave_program::{Given, On, ParamBlock, Scalar, ScalarId, View, Word};
use std::mem::offset_of;

/// A step at which `beta^step` is 0 for every beta a configuration can hold: without bias correction nothing is divided.
const NO_CORRECTION: f64 = i32::MAX as f64;

/// The number of the update that says whether moments are corrected.
pub(super) fn corrected(on: &On<'_>, a: &Adam) -> ScalarId {
    match a.bias_correction {
        true => on.scalar(Scalar::Given(Given::Update)),
        false => constant(on, NO_CORRECTION),
    }
}

/// What the moments are divided by: `1 - beta^step`.
pub(super) fn corrections(on: &On<'_>, a: &Adam) -> [ScalarId; 2] {
    let step = corrected(on, a);
    betas(on, a.betas).map(|beta| super::rest(on, on.scalar(Scalar::Pow(beta, step))))
}

pub(super) fn update(s: &Step<'_, '_>, a: &Adam) {
    let mut operands = vec![];
    for (at, packed, len) in s.group.runs() {
        let state = |name| s.packed(name, packed, len);
        let value = run_of(&s.flat.value, at, len);
        let copy = s.flat.copy.as_ref().map(|c| run_of(c, at, len));
        operands.push(copy.clone().unwrap_or_else(|| value.clone()));
        operands.push(run_of(&s.flat.grad, at, len));
        operands.extend([state(StateName::Moment1), state(StateName::Moment2)]);
        if copy.is_some() {
            operands.push(value);
        }
    }
    launch(
        &s.on,
        &s.group.recipe,
        a,
        &operands,
        s.flat.copy.is_some(),
        s.k,
    );
}

/// One launch over groups of (p, g, m, v[, master]).
pub fn launch<'c>(
    on: &On<'c>,
    recipe: &Recipe,
    a: &Adam,
    groups: &[View<'c>],
    master: bool,
    k: &StepParams<'_, 'c>,
) {
    if groups.is_empty() {
        return;
    }
    let p = AdamwParams {
        flags: if master { op::FLAG_MASTER } else { 0 },
        mode: a.l2 as u32,
        eps: a.eps,
        weight_decay: recipe.weight_decay,
        ..Default::default()
    };
    let [b1, b2] = betas(on, a.betas);
    let params = ParamBlock::with(
        p.as_bytes(),
        &[
            (offset_of!(AdamwParams, beta1), Word::F64, b1),
            (offset_of!(AdamwParams, beta2), Word::F64, b2),
        ],
    );
    let unscale = on.scalar(Scalar::Given(Given::Unscale));
    let dynamic = ParamBlock::with(
        AdamwDyn::default().as_bytes(),
        &[
            (offset_of!(AdamwDyn, lr), Word::F64, rate(on, recipe)),
            (offset_of!(AdamwDyn, grad_scale), Word::F64, unscale),
            (offset_of!(AdamwDyn, step), Word::U64, corrected(on, a)),
        ],
    );
    let words = [k.coef.as_ref(), k.skip.as_ref()].into_iter();
    let operands: Vec<Option<&View<'_>>> = words.chain(groups.iter().map(Some)).collect();
    on.launch(op::ADAMW, &operands, params, Some(dynamic));
}
