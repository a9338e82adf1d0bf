//! Softmax cross-entropy per row. The target's column is found by comparing column numbers with the target, so no row needs an address of its own.

use super::build::{Build, Given, View};
use crossweave_hal::abi::op::{self, compare, reduce::MAX, reduce::SUM};
use crossweave_hal::{DType, OpRequest, Recipe};

/// Rows of the targets: `ignored` is the ignore index, absent when it cannot occur.
struct Targets {
    onehot: View,
    ignored: Option<View>,
}

fn compared(b: &mut Build, kind: u32, shape: &[u64], x: &View, y: &View) -> View {
    let t = b.temp(DType::U8, shape);
    b.kind(op::COMPARE, kind, &[&t, &x.over(shape), &y.over(shape)]);
    t
}

fn targets(b: &mut Build, target: &View, p: &op::XentParams, n: u64, v: u64) -> Targets {
    let column = b.count(target.dtype, v);
    // [n] seen as [n, 1].
    let rows = target.split(0, n, 1);
    let onehot = compared(b, compare::EQ, &[n, v], &rows, &column);
    let ignored = (p.flags & op::FLAG_HAS_IGNORE != 0)
        .then(|| b.index(target.dtype, p.ignore))
        .flatten()
        .map(|i| compared(b, compare::EQ, &[n], target, &i));
    Targets { onehot, ignored }
}

fn select(b: &mut Build, cond: &View, yes: &View, no: &View) -> View {
    let t = b.temp(DType::F32, &cond.shape);
    let p = op::NoParams::default();
    let (yes, no) = (yes.over(&cond.shape), no.over(&cond.shape));
    b.op(
        op::SELECT,
        p.as_bytes(),
        &[Some(&t), Some(cond), Some(&yes), Some(&no)],
        None,
    );
    t
}

/// 1 where the target is a column, else NaN; 0 where it is ignored.
fn weight(b: &mut Build, t: &Targets, n: u64) -> View {
    let hit = b.temp(DType::F32, &t.onehot.shape);
    b.copy(&hit, &t.onehot);
    let hits = b.along(SUM, &hit).reshape(&[n]);
    // 1 where the row was hit, 0/0 = NaN where it was not.
    #[allow(clippy::eq_op)]
    let w = b.new_map(&[n], &[&hits], |v| v[0] / v[0]);
    match &t.ignored {
        Some(i) => {
            let zero = b.constant(0.0);
            select(b, i, &zero, &w)
        }
        None => w,
    }
}

pub(super) fn fwd(o: &OpRequest) -> Option<Recipe> {
    let g = Given(o);
    let p: op::XentParams = g.params()?;
    let (loss, lse, x, target) = (g.view(0)?, g.view(1)?, g.view(2)?, g.view(3)?);
    let [n, v] = x.dims()?;
    let _: [u64; 1] = target.dims()?;
    let mut b = Build::default();
    let t = targets(&mut b, &target, &p, n, v);
    let m = b.along(MAX, &x);
    let e = b.new_map(&[n, v], &[&x, &m], |v| (v[0] - v[1]).exp());
    let s = b.along(SUM, &e);
    b.map(&[&lse], &[&s.reshape(&[n]), &m.reshape(&[n])], |v| {
        vec![v[0].log() + v[1]]
    });
    let (x32, zero) = (b.f32(&x), b.constant(0.0));
    let picked = select(&mut b, &t.onehot, &x32, &zero);
    let at = b.along(SUM, &picked).reshape(&[n]);
    let w = weight(&mut b, &t, n);
    b.map(&[&loss], &[&lse, &at, &w], |v| {
        // An ignored row counts nothing, whatever its logits hold.
        let live = v[2].less(v[2].lit(0.5));
        vec![live.choose(v[2].lit(0.0), (v[0] - v[1]) * v[2])]
    });
    Some(b.finish())
}

pub(super) fn bwd(o: &OpRequest) -> Option<Recipe> {
    let g = Given(o);
    let p: op::XentParams = g.params()?;
    let (dx, x, lse) = (g.view(0)?, g.view(1)?, g.view(2)?);
    let (target, dloss) = (g.view(3)?, g.view(4)?);
    let [n, v] = x.dims()?;
    let (_, _): ([u64; 1], [u64; 1]) = (target.dims()?, lse.dims()?);
    let _: [u64; 1] = dloss.dims()?;
    let mut b = Build::default();
    let t = targets(&mut b, &target, &p, n, v);
    let hit = b.temp(DType::F32, &[n, v]);
    b.copy(&hit, &t.onehot);
    let w = weight(&mut b, &t, n);
    let column = |s: &View| s.split(0, n, 1);
    // dlogits may be the logits: one program reads and writes each element.
    b.map(
        &[&dx],
        &[&x, &column(&lse), &hit, &column(&dloss), &column(&w)],
        |v| {
            let d = ((v[0] - v[1]).exp() - v[2]) * v[3] * v[4];
            vec![v[4].less(v[4].lit(0.5)).choose(v[0].lit(0.0), d)]
        },
    );
    Some(b.finish())
}
