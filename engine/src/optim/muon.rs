//! Muon: momentum of a matrix, orthogonalised by five steps of a quintic Newton–Schulz iteration, in f32.

use super::map::{add_squares, everywhere, map, scratch};
use super::{Flat, Group, StepParams, run_of};
use crossweave_hal::DType;
use crossweave_hal::abi::op;
use crossweave_tensor::{Result, Run, Tensor, shape_error};
use crossweave_zero::optim::{Muon, StateName};

/// Coefficients of Keller Jordan's iteration: steepest at zero, singular values end between about 0.7 and 1.2.
const QUINTIC: [f64; 3] = [3.4445, -4.7750, 2.0315];

pub(super) fn update(
    run: &Run<'_>,
    group: &Group,
    flat: &Flat,
    k: &StepParams<'_>,
    m: &Muon,
    lr: f64,
) -> Result<()> {
    let mut packed = 0;
    for part in &group.parts {
        let numel: u64 = part.dims.iter().product();
        let Some((cols, rows)) = part.dims.split_last().filter(|_| part.len == numel) else {
            return shape_error(format!(
                "muon: parameter {} of shape {:?} is not whole on its owner",
                part.param, part.dims
            ));
        };
        let (cols, rows) = (*cols, rows.iter().product::<u64>());
        let buf = group.states.packed(StateName::Moment1, packed, part.len)?;
        packed += part.len;
        let grad = run_of(&flat.grad, part.at, part.len);
        let look = scratch(run, &grad)?;
        momentum(run, k, m, &grad, &buf, &look)?;
        let x = orthogonal(run, &look.view([rows, cols]), m.ns_steps)?;
        let p = run_of(&flat.value, part.at, part.len).view([rows, cols]);
        let copy = flat.copy.as_ref();
        let copy = copy.map(|c| run_of(c, part.at, part.len).view([rows, cols]));
        let skip = k.skip.as_ref().map(|s| everywhere(s, &[rows, cols]));
        let mut outs = vec![&p];
        outs.extend(&copy);
        let mut ins = vec![&p, &x];
        ins.extend(&skip);
        let scalars = [
            (lr * group.recipe.weight_decay) as f32,
            (lr * m.factor(rows, cols)) as f32,
        ];
        let (has_skip, has_copy) = (skip.is_some(), copy.is_some());
        map(run, &outs, &ins, &scalars, |v| {
            let p = v[0];
            let mut new = p - p.scalar(0) * p - p.scalar(1) * v[1];
            if has_skip {
                new = v[2].choose(p, new);
            }
            if has_copy { vec![new, new] } else { vec![new] }
        })?;
    }
    Ok(())
}

/// `buf = mu buf + (1 - mu) g`; `look` becomes what is orthogonalised: `buf`, or with Nesterov `mu buf + (1 - mu) g` once more.
fn momentum(
    run: &Run<'_>,
    k: &StepParams<'_>,
    m: &Muon,
    grad: &Tensor,
    buf: &Tensor,
    look: &Tensor,
) -> Result<()> {
    let n = grad.numel();
    let coef = k.factor.as_ref().map(|c| everywhere(c, &[n]));
    let skip = k.skip.as_ref().map(|s| everywhere(s, &[n]));
    let mut ins = vec![grad, buf];
    ins.extend(&coef);
    ins.extend(&skip);
    let (has_coef, has_skip) = (coef.is_some(), skip.is_some());
    let (mu, rest, nesterov) = (m.momentum as f32, (1.0 - m.momentum) as f32, m.nesterov);
    map(run, &[buf, look], &ins, &[], |x| {
        let g = if has_coef { x[0] * x[2] } else { x[0] };
        let old = x[1];
        let new = old * mu + g * rest;
        let ahead = if nesterov { new * mu + g * rest } else { new };
        let kept = match has_skip {
            true => x[2 + usize::from(has_coef)].choose(old, new),
            false => new,
        };
        vec![kept, ahead]
    })
}

/// Nearly the orthogonal factor of `u [rows, cols]`, as a view of that shape.
fn orthogonal(run: &Run<'_>, u: &Tensor, steps: u32) -> Result<Tensor> {
    let (rows, cols) = (u.shape().dims()[0], u.shape().dims()[1]);
    // The iteration squares the smaller side.
    let tall = rows > cols;
    let (r, c) = if tall { (cols, rows) } else { (rows, cols) };
    let squares = run.zeros([1], DType::F32)?;
    add_squares(run, &squares, u)?;
    let mut x = run.empty([r, c], DType::F32)?;
    let from = if tall { u.t() } else { u.clone() };
    map(
        run,
        &[&x],
        &[&from, &everywhere(&squares, &[r, c])],
        &[],
        |v| vec![v[0] / (v[1].sqrt() + 1e-7)],
    )?;
    let (gram, poly) = (
        run.empty([r, r], DType::F32)?,
        run.empty([r, r], DType::F32)?,
    );
    let mut next = run.empty([r, c], DType::F32)?;
    let [a, b, q] = QUINTIC;
    for _ in 0..steps {
        matmul(run, &gram, &x, &x.t(), 1.0, false)?;
        scaled(run, &poly, &gram, b)?;
        matmul(run, &poly, &gram, &gram, q, true)?;
        scaled(run, &next, &x, a)?;
        matmul(run, &next, &poly, &x, 1.0, true)?;
        std::mem::swap(&mut x, &mut next);
    }
    Ok(if tall { x.t() } else { x })
}

fn matmul(run: &Run<'_>, c: &Tensor, a: &Tensor, b: &Tensor, alpha: f64, add: bool) -> Result<()> {
    let p = op::MatmulParams {
        flags: if add { op::FLAG_ACCUM } else { 0 },
        alpha,
        ..Default::default()
    };
    run.launch(
        op::MATMUL,
        &[Some(c), Some(a), Some(b), None],
        p.as_bytes(),
        &[],
    )
}

/// `y = alpha x`.
fn scaled(run: &Run<'_>, y: &Tensor, x: &Tensor, alpha: f64) -> Result<()> {
    let p = op::AxpbyParams {
        alpha,
        ..Default::default()
    };
    run.launch(op::AXPBY, &[Some(y), Some(x)], p.as_bytes(), &[])
}
