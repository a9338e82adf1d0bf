//! Optimizers that look at one element at a time: Lion and SGD. They know no groups and no layout, only runs of elements, so that the
//! same code updates what rests on the device and what rests on the host.

use super::map::{everywhere, map};
use super::{Flat, Group, StepParams, run_of};
use crossweave_tensor::{Ex, Result, Run, Tensor, shape_error};
use crossweave_zero::optim::{Optimizer, Sgd, StateName};

/// A run of elements updated alike, and their states in the optimizer's order.
pub(crate) struct Cells {
    /// f32.
    pub value: Tensor,
    /// The parameters in compute dtype, where they are apart.
    pub copy: Option<Tensor>,
    pub grad: Tensor,
    pub states: Vec<Tensor>,
}

/// The runs of a group.
pub(super) fn cells(group: &Group, flat: &Flat) -> Result<Vec<Cells>> {
    let names: &[StateName] = match states(&group.recipe.optimizer) {
        0 => &[],
        _ => &[StateName::Moment1],
    };
    let one = |(at, packed, len)| -> Result<Cells> {
        let states = names.iter().map(|n| group.states.packed(*n, packed, len));
        Ok(Cells {
            value: run_of(&flat.value, at, len),
            copy: flat.copy.as_ref().map(|c| run_of(c, at, len)),
            grad: run_of(&flat.grad, at, len),
            states: states.collect::<Result<_>>()?,
        })
    };
    group.runs().into_iter().map(one).collect()
}

/// States of the shape of the parameter that an optimizer keeps, all in f32.
pub(crate) fn states(optimizer: &Optimizer) -> usize {
    optimizer.states(&[1]).len()
}

/// One step over runs; `decay` is the weight decay, `k.factor` what gradients are multiplied by.
pub(crate) fn elementwise(
    run: &Run<'_>,
    optimizer: &Optimizer,
    cells: &[Cells],
    k: &StepParams<'_>,
    lr: f64,
    decay: f64,
) -> Result<()> {
    match optimizer {
        Optimizer::Lion { betas } => lion(run, cells, k, *betas, lr, decay),
        Optimizer::Sgd(s) => sgd(run, cells, k, s, lr, decay),
        other => shape_error(format!(
            "{} does not look at one element at a time",
            other.name()
        )),
    }
}

/// One formula over every run: `f(p, g, states)` gives the new value and the new states. Under `skip` all stays.
fn each<F>(run: &Run<'_>, cells: &[Cells], k: &StepParams<'_>, scalars: &[f32], f: F) -> Result<()>
where
    F: for<'p> Fn(Ex<'p>, Ex<'p>, &[Ex<'p>]) -> (Ex<'p>, Vec<Ex<'p>>),
{
    for c in cells {
        let len = c.value.numel();
        let coef = k.factor.as_ref().map(|c| everywhere(c, &[len]));
        let skip = k.skip.as_ref().map(|s| everywhere(s, &[len]));
        let mut outs = vec![&c.value];
        outs.extend(&c.states);
        outs.extend(&c.copy);
        let mut ins = vec![&c.grad, &c.value];
        ins.extend(&c.states);
        ins.extend(&coef);
        ins.extend(&skip);
        let (n, has_coef, has_skip, has_copy) = (
            c.states.len(),
            coef.is_some(),
            skip.is_some(),
            c.copy.is_some(),
        );
        map(run, &outs, &ins, scalars, |x| {
            let g = if has_coef { x[0] * x[2 + n] } else { x[0] };
            let (p, old) = (x[1], &x[2..2 + n]);
            let (new, states) = f(p, g, old);
            let pick = |new, old| match has_skip {
                true => x[2 + n + usize::from(has_coef)].choose(old, new),
                false => new,
            };
            let new = pick(new, p);
            let mut out = vec![new];
            out.extend(states.into_iter().zip(old).map(|(s, o)| pick(s, *o)));
            if has_copy {
                out.push(new);
            }
            out
        })?;
    }
    Ok(())
}

/// `c = sign(b1 m + (1 - b1) g)`; `p -= lr (c + wd p)`; `m = b2 m + (1 - b2) g`.
fn lion(
    run: &Run<'_>,
    cells: &[Cells],
    k: &StepParams<'_>,
    betas: [f64; 2],
    lr: f64,
    decay: f64,
) -> Result<()> {
    let scalars = [lr as f32, (lr * decay) as f32];
    let [b1, b2] = betas;
    each(run, cells, k, &scalars, |p, g, s| {
        let m = s[0];
        let c = m * b1 as f32 + g * (1.0 - b1) as f32;
        let zero = p.lit(0.0);
        let sign = zero.less(c) - c.less(zero);
        let new = p - p.scalar(1) * p - p.scalar(0) * sign;
        (new, vec![m * b2 as f32 + g * (1.0 - b2) as f32])
    })
}

/// torch's SGD. The momentum begins as the first gradient, undampened.
fn sgd(
    run: &Run<'_>,
    cells: &[Cells],
    k: &StepParams<'_>,
    s: &Sgd,
    lr: f64,
    decay: f64,
) -> Result<()> {
    let decay = decay as f32;
    let taken = if k.step <= 1 { 1.0 } else { 1.0 - s.dampening };
    let scalars = [lr as f32, taken as f32];
    let (momentum, nesterov) = (s.momentum as f32, s.nesterov);
    if s.momentum == 0.0 {
        return each(run, cells, k, &scalars, |p, g, _| {
            (p - p.scalar(0) * decayed(p, g, decay), vec![])
        });
    }
    each(run, cells, k, &scalars, |p, g, s| {
        let g = decayed(p, g, decay);
        let buf = s[0] * momentum + g * p.scalar(1);
        let step = if nesterov { g + buf * momentum } else { buf };
        (p - p.scalar(0) * step, vec![buf])
    })
}

fn decayed<'p>(p: Ex<'p>, g: Ex<'p>, decay: f32) -> Ex<'p> {
    if decay == 0.0 { g } else { g + p * decay }
}
