//! What runs over many tensors at once: AdamW, the sum of squares, the scaling of gradients. One program a tensor.

use super::build::{Build, Given, read};
use crossweave_hal::abi::op::{self, reduce::SUMSQ};
use crossweave_hal::{DynMap, OpRequest, Recipe};
use std::sync::Arc;

/// Launch-time scalars of the AdamW program, rounded to f32 once: grad scale, lr · decay, lr / bc1, sqrt(bc2).
fn factors(p: op::AdamwParams) -> DynMap {
    Arc::new(move |bytes: &[u8]| {
        let d: op::AdamwDyn = read(bytes).unwrap_or_default();
        let bc = |beta: f64| 1.0 - beta.powf(d.step as f64);
        let s = [
            d.grad_scale,
            d.lr * p.weight_decay,
            d.lr / bc(p.beta1),
            bc(p.beta2).sqrt(),
        ];
        op::ProgramDyn::new(&s.map(|v| v as f32))
            .as_bytes()
            .to_vec()
    })
}

pub(super) fn adamw(o: &OpRequest) -> Option<Recipe> {
    let g = Given(o);
    let p: op::AdamwParams = g.params()?;
    let (coef, skip) = (g.view(0), g.view(1));
    let master = p.flags & op::FLAG_MASTER != 0;
    let each = if master { 5 } else { 4 };
    if p.mode > 1 || o.operands.len() < 2 || !(o.operands.len() - 2).is_multiple_of(each) {
        return None;
    }
    let (l2, decoupled) = (p.mode == 1, p.mode == 0);
    let (b1, b2, eps, decay) = (p.beta1, p.beta2, p.eps as f32, p.weight_decay as f32);
    let mut b = Build::default();
    for first in (2..o.operands.len()).step_by(each) {
        let [w, gr, m, v] = [0, 1, 2, 3].map(|i| g.view(first + i));
        let (w, gr, m, v) = (w?, gr?, m?, v?);
        let master = if master {
            Some(g.view(first + 4)?)
        } else {
            None
        };
        let mut outs = vec![&w, &m, &v];
        outs.extend(&master);
        let mut ins = vec![&w, &gr, &m, &v, master.as_ref().unwrap_or(&w)];
        ins.extend(&coef);
        ins.extend(&skip);
        let (has_coef, has_skip, with_master) = (coef.is_some(), skip.is_some(), master.is_some());
        b.map_dyn(&outs, &ins, Some(factors(p)), |x| {
            let (w, mut gr, m, v, p) = (x[0], x[1], x[2], x[3], x[4]);
            let mut scale = p.scalar(0);
            if has_coef {
                scale = scale * x[5];
            }
            gr = gr * scale;
            if l2 {
                gr = gr + p * decay;
            }
            let kept = if decoupled { p - p.scalar(1) * p } else { p };
            let m2 = m * b1 as f32 + gr * (1.0 - b1) as f32;
            let v2 = v * b2 as f32 + gr * gr * (1.0 - b2) as f32;
            let p2 = kept - p.scalar(2) * m2 / (v2.sqrt() / p.scalar(3) + eps);
            // Under `skip` the old values are stored again: the bits stay.
            let pick = |new, old| match has_skip {
                true => x[5 + has_coef as usize].choose(old, new),
                false => new,
            };
            let mut out = vec![pick(p2, w), pick(m2, m), pick(v2, v)];
            if with_master {
                out.push(pick(p2, p));
            }
            out
        });
    }
    Some(b.finish())
}

/// `out += sum x²`, tensor after tensor.
pub(super) fn multi_sumsq(o: &OpRequest) -> Option<Recipe> {
    let g = Given(o);
    let out = g.view(0)?;
    let mut b = Build::default();
    for i in 1..o.operands.len() {
        let x = g.view(i)?;
        let x = b.packed(&x).flat();
        b.reduce(SUMSQ, 1, &out.flat(), &x, true);
    }
    Some(b.finish())
}

/// `x *= scale · coef`.
pub(super) fn multi_scale(o: &OpRequest) -> Option<Recipe> {
    let g = Given(o);
    let coef = g.view(0);
    let mut b = Build::default();
    for i in 1..o.operands.len() {
        let x = g.view(i)?;
        let mut ins = vec![&x];
        ins.extend(&coef);
        let scale: DynMap = Arc::new(|bytes: &[u8]| {
            let d: op::ScaleDyn = read(bytes).unwrap_or_default();
            op::ProgramDyn::new(&[d.scale as f32]).as_bytes().to_vec()
        });
        b.map_dyn(&[&x], &ins, Some(scale), |v| {
            let s = v[0].scalar(0);
            vec![v[0] * v.get(1).map_or(s, |c| s * *c)]
        });
    }
    Some(b.finish())
}
