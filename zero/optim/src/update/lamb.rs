//! LAMB: Adam's direction plus decay, scaled for each parameter by the ratio of its norm to the direction's, within bounds.

use super::adam::corrections;
use super::sums::Sums;
use super::{Step, add_squares, betas, constant, rest, run_of};
use crate::{Lamb, StateName};
use crossweave_program::{DType, Scalar};

pub(super) fn update(s: &Step<'_, '_>, l: &Lamb) {
    let (on, group, flat, a) = (&s.on, s.group, s.flat, &l.adam);
    let [first, second] = corrections(on, a);
    let inverse = on.scalar(Scalar::Div(constant(on, 1.0), first));
    let scalars = [inverse, on.scalar(Scalar::Sqrt(second)), s.rate()];
    let [b1, b2] = betas(on, a.betas);
    let [c1, c2] = [b1, b2].map(|b| rest(on, b));
    let eps = a.eps as f32;
    let (decay, l2) = (group.recipe.weight_decay as f32, a.l2);
    // The direction takes the gradient's place.
    let dir = &flat.grad;
    for (at, packed, len) in group.runs() {
        let m = s.packed(StateName::Moment1, packed, len);
        let v = s.packed(StateName::Moment2, packed, len);
        let g = run_of(&flat.grad, at, len);
        let p = run_of(&flat.value, at, len);
        let (coef, skip) = s.words(&[len]);
        let mut ins = vec![&p, &g, &m, &v];
        ins.extend(&coef);
        ins.extend(&skip);
        let (has_coef, has_skip) = (coef.is_some(), skip.is_some());
        on.map(&[&m, &v, &g], &ins, &scalars, |x| {
            let (p, mut g, m, v) = (x[0], x[1], x[2], x[3]);
            if has_coef {
                g = g * x[4];
            }
            if l2 {
                g = g + p * decay;
            }
            let m2 = m * m.step(b1) + g * g.step(c1);
            let v2 = v * v.step(b2) + g * g * g.step(c2);
            let adam = m2 * p.scalar(0) / (v2.sqrt() / p.scalar(1) + eps);
            let r = if l2 { adam } else { adam + p * decay };
            let pick = |new, old| match has_skip {
                true => x[4 + usize::from(has_coef)].choose(old, new),
                false => new,
            };
            vec![pick(m2, m), pick(v2, v), r]
        });
    }
    // Squares of both norms by parameter, each rank its own parts.
    let n = group.params.len() as u64;
    let squares = Sums::zeros(s, 2 * n);
    for part in group.parts.iter().filter(|p| p.mine) {
        let i = 2 * group.slot(part);
        let word = |i| squares.of(part, i, 1);
        add_squares(on, &word(i), &run_of(&flat.value, part.at, part.len));
        add_squares(on, &word(i + 1), &run_of(dir, part.at, part.len));
    }
    let squares = squares.total(s);
    let ratio = on.empty([n], DType::F32);
    let each = |from| squares.strided([n], &[2], from);
    let (most, least) = (l.max_coeff as f32, l.min_coeff as f32);
    on.map(&[&ratio], &[&each(0), &each(1)], &[], |x| {
        let (p, r, zero) = (x[0], x[1], x[0].lit(0.0));
        // A parameter of zeros, or a direction of zeros, has no ratio: it takes the plain step.
        let both = zero.less(p) * zero.less(r);
        let within = (p.sqrt() / r.sqrt()).max(p.lit(least)).min(p.lit(most));
        vec![both.choose(within, p.lit(1.0))]
    });
    for part in &group.parts {
        let p = run_of(&flat.value, part.at, part.len);
        let copy = flat.copy.as_ref().map(|c| run_of(c, part.at, part.len));
        let r = run_of(dir, part.at, part.len);
        let dims = [part.len];
        let ratio = ratio.narrow(0, group.slot(part), 1).everywhere(&dims);
        let (_, skip) = s.words(&dims);
        let mut outs = vec![&p];
        outs.extend(&copy);
        let mut ins = vec![&p, &r, &ratio];
        ins.extend(&skip);
        let (has_skip, has_copy) = (skip.is_some(), copy.is_some());
        on.map(&outs, &ins, &scalars, |x| {
            let p = x[0];
            let mut new = p - p.scalar(2) * x[2] * x[1];
            if has_skip {
                new = x[3].choose(p, new);
            }
            if has_copy { vec![new, new] } else { vec![new] }
        });
    }
}
