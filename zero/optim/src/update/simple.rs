//! Optimizers that look at one element at a time: Lion and SGD. They know no groups and no layout, only runs of elements, so that the
//! same formulas update what rests on the device and what rests on the host.

use super::{Step, StepParams, betas, constant, rate, run_of};
use crate::{Optimizer, Recipe, Sgd, StateName};
use crossweave_program::{Ex, Given, On, Scalar, ScalarId, View};

/// A run of elements updated alike, and their states in the optimizer's order.
pub struct Cells<'v> {
    /// f32.
    pub value: View<'v>,
    /// The parameters in compute type, where they are apart.
    pub copy: Option<View<'v>>,
    /// The gradient.
    pub grad: View<'v>,
    /// The states.
    pub states: Vec<View<'v>>,
}

/// The runs of a group.
pub(super) fn cells<'c>(s: &Step<'_, 'c>) -> Vec<Cells<'c>> {
    let names: &[StateName] = match s.group.recipe.optimizer.elementwise_states() {
        0 => &[],
        _ => &[StateName::Moment1],
    };
    let one = |(at, packed, len)| Cells {
        value: run_of(&s.flat.value, at, len),
        copy: s.flat.copy.as_ref().map(|c| run_of(c, at, len)),
        grad: run_of(&s.flat.grad, at, len),
        states: names.iter().map(|n| s.packed(*n, packed, len)).collect(),
    };
    s.group.runs().into_iter().map(one).collect()
}

/// The factor of gradients, and what all groups of a step share.
type Words<'a, 'c> = (Option<&'a View<'c>>, &'a StepParams<'a, 'c>);

/// One step over runs of an optimizer that looks at one element at a time: Lion or SGD.
pub fn elementwise<'c>(
    on: &On<'c>,
    recipe: &Recipe,
    optimizer: &Optimizer,
    cells: &[Cells<'c>],
    words: Words<'_, 'c>,
) {
    match optimizer {
        Optimizer::Lion { betas } => lion(on, recipe, cells, words, *betas),
        Optimizer::Sgd(s) => sgd(on, recipe, cells, words, s),
        other => debug_assert!(false, "{} is not elementwise", other.name()),
    }
}

/// One formula over every run: `f(p, g, states)` gives the new value and the new states. Under `skip` all stays.
fn each<'c, F>(
    on: &On<'c>,
    cells: &[Cells<'c>],
    (factor, k): Words<'_, 'c>,
    scalars: &[ScalarId],
    f: F,
) where
    F: for<'p> Fn(Ex<'p>, Ex<'p>, &[Ex<'p>]) -> (Ex<'p>, Vec<Ex<'p>>),
{
    for c in cells {
        let dims = [c.value.numel()];
        let coef = factor.map(|c| c.everywhere(&dims));
        let skip = k.skip.as_ref().map(|s| s.everywhere(&dims));
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
        on.map(&outs, &ins, scalars, |x| {
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
        });
    }
}

/// `c = sign(b1 m + (1 - b1) g)`; `p -= lr (c + wd p)`; `m = b2 m + (1 - b2) g`.
fn lion<'c>(
    on: &On<'c>,
    recipe: &Recipe,
    cells: &[Cells<'c>],
    words: Words<'_, 'c>,
    fixed: [f64; 2],
) {
    let lr = rate(on, recipe);
    let decay = constant(on, recipe.weight_decay);
    let scalars = [lr, on.scalar(Scalar::Mul(lr, decay))];
    let [b1, b2] = betas(on, fixed);
    let [c1, c2] = [b1, b2].map(|b| super::rest(on, b));
    each(on, cells, words, &scalars, |p, g, s| {
        let m = s[0];
        let c = m * m.step(b1) + g * g.step(c1);
        let zero = p.lit(0.0);
        let sign = zero.less(c) - c.less(zero);
        let new = p - p.scalar(1) * p - p.scalar(0) * sign;
        (new, vec![m * m.step(b2) + g * g.step(c2)])
    });
}

/// torch's SGD. The momentum begins as the first gradient, undampened.
fn sgd<'c>(on: &On<'c>, recipe: &Recipe, cells: &[Cells<'c>], words: Words<'_, 'c>, s: &Sgd) {
    let decay = recipe.weight_decay as f32;
    let taken = match s.dampening {
        0.0 => constant(on, 1.0),
        d => {
            // 0 at the first update, 1 at all others.
            let before = Scalar::Sub(on.scalar(Scalar::Given(Given::Update)), constant(on, 1.0));
            let later = on.scalar(Scalar::Min(constant(on, 1.0), on.scalar(before)));
            super::rest(on, on.scalar(Scalar::Mul(constant(on, d), later)))
        }
    };
    let scalars = [rate(on, recipe), taken];
    let (momentum, nesterov) = (s.momentum as f32, s.nesterov);
    if s.momentum == 0.0 {
        return each(on, cells, words, &scalars, |p, g, _| {
            (p - p.scalar(0) * decayed(p, g, decay), vec![])
        });
    }
    each(on, cells, words, &scalars, |p, g, s| {
        let g = decayed(p, g, decay);
        let buf = s[0] * momentum + g * p.scalar(1);
        let step = if nesterov { g + buf * momentum } else { buf };
        (p - p.scalar(0) * step, vec![buf])
    });
}

fn decayed<'p>(p: Ex<'p>, g: Ex<'p>, decay: f32) -> Ex<'p> {
    if decay == 0.0 { g } else { g + p * decay }
}
