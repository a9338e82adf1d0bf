//! LAMB: Adam's direction plus decay, scaled for each parameter by the ratio of its norm to the direction's, within bounds.

use super::adam::op_step;
use super::map::{add_squares, everywhere, map, scratch};
use super::sums::Sums;
use super::{Flat, Group, StepParams, run_of};
use crossweave_hal::DType;
use crossweave_tensor::{Result, Run};
use crossweave_zero::optim::{Lamb, StateName};

pub(super) fn update(
    run: &Run<'_>,
    group: &Group,
    flat: &Flat,
    k: &StepParams<'_>,
    l: &Lamb,
    lr: f64,
) -> Result<()> {
    let a = &l.adam;
    let step = op_step(a, k.step) as f64;
    let bc = |beta: f64| 1.0 - beta.powf(step);
    let scalars = [1.0 / bc(a.betas[0]), bc(a.betas[1]).sqrt(), lr].map(|v| v as f32);
    let ([b1, b2], eps) = (a.betas, a.eps as f32);
    let (decay, l2) = (group.recipe.weight_decay as f32, a.l2);
    // The direction takes the gradient's place.
    let dir = scratch(run, &flat.grad)?;
    for (at, packed, len) in group.runs() {
        let m = group.states.packed(StateName::Moment1, packed, len)?;
        let v = group.states.packed(StateName::Moment2, packed, len)?;
        let (r, g) = (run_of(&dir, at, len), run_of(&flat.grad, at, len));
        let p = run_of(&flat.value, at, len);
        let coef = k.factor.as_ref().map(|c| everywhere(c, &[len]));
        let skip = k.skip.as_ref().map(|s| everywhere(s, &[len]));
        let mut ins = vec![&p, &g, &m, &v];
        ins.extend(&coef);
        ins.extend(&skip);
        let (has_coef, has_skip) = (coef.is_some(), skip.is_some());
        map(run, &[&m, &v, &r], &ins, &scalars, |x| {
            let (p, mut g, m, v) = (x[0], x[1], x[2], x[3]);
            if has_coef {
                g = g * x[4];
            }
            if l2 {
                g = g + p * decay;
            }
            let m2 = m * b1 as f32 + g * (1.0 - b1) as f32;
            let v2 = v * b2 as f32 + g * g * (1.0 - b2) as f32;
            let adam = m2 * p.scalar(0) / (v2.sqrt() / p.scalar(1) + eps);
            let r = if l2 { adam } else { adam + p * decay };
            let pick = |new, old| match has_skip {
                true => x[4 + usize::from(has_coef)].choose(old, new),
                false => new,
            };
            vec![pick(m2, m), pick(v2, v), r]
        })?;
    }
    // Squares of both norms by parameter, each rank its own parts.
    let n = group.params.len() as u64;
    let squares = Sums::zeros(run, group, 2 * n)?;
    for part in group.parts.iter().filter(|p| p.mine) {
        let i = 2 * group.slot(part);
        let word = |i| squares.of(part, i, 1);
        add_squares(run, &word(i), &run_of(&flat.value, part.at, part.len))?;
        add_squares(run, &word(i + 1), &run_of(&dir, part.at, part.len))?;
    }
    let squares = squares.total(run, k)?;
    let ratio = run.empty([n], DType::F32)?;
    let each = |from| squares.strided([n], &[2], from);
    let (most, least) = (l.max_coeff as f32, l.min_coeff as f32);
    map(run, &[&ratio], &[&each(0), &each(1)], &[], |x| {
        let (p, r, zero) = (x[0], x[1], x[0].lit(0.0));
        // A parameter of zeros, or a direction of zeros, has no ratio: it takes the plain step.
        let both = zero.less(p) * zero.less(r);
        let within = (p.sqrt() / r.sqrt()).max(p.lit(least)).min(p.lit(most));
        vec![both.choose(within, p.lit(1.0))]
    })?;
    for part in &group.parts {
        let p = run_of(&flat.value, part.at, part.len);
        let copy = flat.copy.as_ref().map(|c| run_of(c, part.at, part.len));
        let r = run_of(&dir, part.at, part.len);
        let ratio = everywhere(&ratio.narrow(0, group.slot(part), 1), &[part.len]);
        let skip = k.skip.as_ref().map(|s| everywhere(s, &[part.len]));
        let mut outs = vec![&p];
        outs.extend(&copy);
        let mut ins = vec![&p, &r, &ratio];
        ins.extend(&skip);
        let has_skip = skip.is_some();
        let has_copy = copy.is_some();
        map(run, &outs, &ins, &scalars, |x| {
            let p = x[0];
            let mut new = p - p.scalar(2) * x[2] * x[1];
            if has_skip {
                new = x[3].choose(p, new);
            }
            if has_copy { vec![new, new] } else { vec![new] }
        })?;
    }
    Ok(())
}
