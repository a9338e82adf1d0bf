//! Optimizers that look at one element at a time: Lion and SGD.

use super::map::{everywhere, map};
use super::{Flat, Group, Knobs, run_of};
use crossweave_tensor::{Ex, Result, Run, Tensor};
use crossweave_zero::optim::{Sgd, StateName};

/// One formula over every run of a group: `f(p, g, states)` gives the new value and the new states. Under `skip` all stays.
fn each<F>(
    run: &Run<'_>,
    group: &Group,
    flat: &Flat,
    k: &Knobs<'_>,
    scalars: &[f32],
    names: &[StateName],
    f: F,
) -> Result<()>
where
    F: for<'p> Fn(Ex<'p>, Ex<'p>, &[Ex<'p>]) -> (Ex<'p>, Vec<Ex<'p>>),
{
    for (at, packed, len) in group.runs() {
        let value = run_of(&flat.value, at, len);
        let copy = flat.copy.as_ref().map(|c| run_of(c, at, len));
        let grad = run_of(&flat.grad, at, len);
        let states: Vec<Tensor> = names
            .iter()
            .map(|n| group.states.packed(*n, packed, len))
            .collect::<Result<_>>()?;
        let coef = k.factor.as_ref().map(|c| everywhere(c, &[len]));
        let skip = k.skip.as_ref().map(|s| everywhere(s, &[len]));
        let mut outs = vec![&value];
        outs.extend(&states);
        outs.extend(&copy);
        let mut ins = vec![&grad, &value];
        ins.extend(&states);
        ins.extend(&coef);
        ins.extend(&skip);
        let (n, has_coef, has_skip, has_copy) =
            (states.len(), coef.is_some(), skip.is_some(), copy.is_some());
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
pub(super) fn lion(
    run: &Run<'_>,
    group: &Group,
    flat: &Flat,
    k: &Knobs<'_>,
    betas: [f64; 2],
    lr: f64,
) -> Result<()> {
    let scalars = [lr as f32, (lr * group.recipe.weight_decay) as f32];
    let [b1, b2] = betas;
    each(
        run,
        group,
        flat,
        k,
        &scalars,
        &[StateName::Moment1],
        |p, g, s| {
            let m = s[0];
            let c = m * b1 as f32 + g * (1.0 - b1) as f32;
            let zero = p.lit(0.0);
            let sign = zero.less(c) - c.less(zero);
            let new = p - p.scalar(1) * p - p.scalar(0) * sign;
            (new, vec![m * b2 as f32 + g * (1.0 - b2) as f32])
        },
    )
}

/// torch's SGD. The momentum begins as the first gradient, undampened.
pub(super) fn sgd(
    run: &Run<'_>,
    group: &Group,
    flat: &Flat,
    k: &Knobs<'_>,
    s: &Sgd,
    lr: f64,
) -> Result<()> {
    let decay = group.recipe.weight_decay as f32;
    let taken = if k.step <= 1 { 1.0 } else { 1.0 - s.dampening };
    let scalars = [lr as f32, taken as f32];
    let (momentum, nesterov) = (s.momentum as f32, s.nesterov);
    if s.momentum == 0.0 {
        return each(run, group, flat, k, &scalars, &[], |p, g, _| {
            (p - p.scalar(0) * decayed(p, g, decay), vec![])
        });
    }
    each(
        run,
        group,
        flat,
        k,
        &scalars,
        &[StateName::Moment1],
        |p, g, s| {
            let g = decayed(p, g, decay);
            let buf = s[0] * momentum + g * p.scalar(1);
            let step = if nesterov { g + buf * momentum } else { buf };
            (p - p.scalar(0) * step, vec![buf])
        },
    )
}

fn decayed<'p>(p: Ex<'p>, g: Ex<'p>, decay: f32) -> Ex<'p> {
    if decay == 0.0 { g } else { g + p * decay }
}
