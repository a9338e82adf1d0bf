//! Layer norm and RMS norm. With `x̂ = (x - mean) rstd` and `g = dy w`: `dx = rstd (g - mean(g) - x̂ mean(g x̂)) (+ dres)`; RMS norm has no means of its own.

use super::build::{Build, Given, View};
use crossweave_hal::abi::op::{self, reduce::SUM, reduce::SUMSQ};
use crossweave_hal::{OpRequest, Recipe};

/// `mean(src)` over the last dim into `dst`.
fn mean_into(b: &mut Build, dst: &View, src: &View, d: u64) {
    let sum = b.along(SUM, src);
    b.map(&[dst], &[&sum], |x| vec![x[0] / d as f32]);
}

/// `1 / sqrt(mean(src²) + eps)` over the last dim into `dst`.
fn rstd_into(b: &mut Build, dst: &View, src: &View, d: u64, eps: f64) {
    let sum = b.along(SUMSQ, src);
    b.map(&[dst], &[&sum], |x| {
        vec![x[0].lit(1.0) / (x[0] / d as f32 + eps as f32).sqrt()]
    });
}

pub(super) fn layer_fwd(o: &OpRequest) -> Option<Recipe> {
    let g = Given(o);
    let p: op::NormParams = g.params()?;
    let mut b = Build::default();
    let (w, bias) = (g.view(4)?, g.view(5));
    let x = b.matrix(&g.view(3)?);
    let [n, d] = x.dims()?;
    let y = g.view(0)?.as_matrix(n, d);
    let (mean, rstd) = (g.view(1)?.reshape(&[n, 1]), g.view(2)?.reshape(&[n, 1]));
    mean_into(&mut b, &mean, &x, d);
    let c = b.new_map(&[n, d], &[&x, &mean], |v| v[0] - v[1]);
    rstd_into(&mut b, &rstd, &c, d, p.eps);
    match &bias {
        Some(bias) => b.map(&[&y], &[&c, &rstd, &w, bias], |v| {
            vec![v[0] * v[1] * v[2] + v[3]]
        }),
        None => b.map(&[&y], &[&c, &rstd, &w], |v| vec![v[0] * v[1] * v[2]]),
    }
    Some(b.finish())
}

pub(super) fn rms_fwd(o: &OpRequest) -> Option<Recipe> {
    let g = Given(o);
    let p: op::NormParams = g.params()?;
    let mut b = Build::default();
    let (x, w) = (b.matrix(&g.view(2)?), g.view(3)?);
    let [n, d] = x.dims()?;
    let y = g.view(0)?.as_matrix(n, d);
    let rstd = g.view(1)?.reshape(&[n, 1]);
    rstd_into(&mut b, &rstd, &x, d, p.eps);
    b.map(&[&y], &[&x, &rstd, &w], |v| vec![v[0] * v[1] * v[2]]);
    Some(b.finish())
}

/// `dst [d] += column sums of src [n, d]`.
fn add_rows(b: &mut Build, dst: &View, src: &View) {
    let d = dst.numel();
    b.reduce(SUM, 1, &dst.reshape(&[1, d]), src, true);
}

pub(super) fn layer_bwd(o: &OpRequest) -> Option<Recipe> {
    let g = Given(o);
    let mut b = Build::default();
    let (dw, db, w) = (g.view(1)?, g.view(2), g.view(5)?);
    let (dy, x) = (b.matrix(&g.view(3)?), b.matrix(&g.view(4)?));
    let dres = g.view(8).map(|r| b.matrix(&r));
    let [n, d] = x.dims()?;
    let dx = g.view(0)?.as_matrix(n, d);
    let (mean, rstd) = (g.view(6)?.reshape(&[n, 1]), g.view(7)?.reshape(&[n, 1]));
    let xh = b.new_map(&[n, d], &[&x, &mean, &rstd], |v| (v[0] - v[1]) * v[2]);
    let t = b.new_map(&[n, d], &[&dy, &xh], |v| v[0] * v[1]);
    add_rows(&mut b, &dw, &t);
    if let Some(db) = &db {
        add_rows(&mut b, db, &dy);
    }
    let gw = b.new_map(&[n, d], &[&dy, &w], |v| v[0] * v[1]);
    let s1 = b.along(SUM, &gw);
    let gx = b.new_map(&[n, d], &[&gw, &xh], |v| v[0] * v[1]);
    let s2 = b.along(SUM, &gx);
    let d = d as f32;
    // dx may be dy or dres: it comes last.
    let mut ins = vec![&gw, &xh, &rstd, &s1, &s2];
    ins.extend(&dres);
    b.map(&[&dx], &ins, |v| {
        let dx = v[2] * (v[0] - v[3] / d - v[1] * (v[4] / d));
        vec![v.get(5).map_or(dx, |r| dx + *r)]
    });
    Some(b.finish())
}

pub(super) fn rms_bwd(o: &OpRequest) -> Option<Recipe> {
    let g = Given(o);
    let mut b = Build::default();
    let (dw, w) = (g.view(1)?, g.view(4)?);
    let (dy, x) = (b.matrix(&g.view(2)?), b.matrix(&g.view(3)?));
    let dres = g.view(6).map(|r| b.matrix(&r));
    let [n, d] = x.dims()?;
    let dx = g.view(0)?.as_matrix(n, d);
    let rstd = g.view(5)?.reshape(&[n, 1]);
    let xh = b.new_map(&[n, d], &[&x, &rstd], |v| v[0] * v[1]);
    let t = b.new_map(&[n, d], &[&dy, &xh], |v| v[0] * v[1]);
    add_rows(&mut b, &dw, &t);
    let gx = b.new_map(&[n, d], &[&t, &w], |v| v[0] * v[1]);
    let s = b.along(SUM, &gx);
    let d = d as f32;
    let mut ins = vec![&dy, &w, &xh, &rstd, &s];
    ins.extend(&dres);
    b.map(&[&dx], &ins, |v| {
        let dx = v[3] * (v[0] * v[1] - v[2] * (v[4] / d));
        vec![v.get(5).map_or(dx, |r| dx + *r)]
    });
    Some(b.finish())
}
