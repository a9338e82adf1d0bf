//! reduce, arg_reduce, cumsum, histogram.

use super::point::{GROUP, fill_launch};
use super::{Answer, Team, blocks, done, launch, nothing};
use crate::args::{HistogramArgs, LineArgs, ReduceArgs, zero};
use crate::launch::{Dynamic, Place};
use crate::source::{Facts, Family, Kernel};
use crate::view::*;
use crossweave_abi::op;
use crossweave_plugin::{DType, OpRequest, op as request};

/// The kernel that gives a team to each element that stays.
pub(crate) fn along(src: &str, dst: &str, kind: u32, team: Team) -> Kernel {
    Kernel::new(
        Family::Reduce,
        format!("cw_reduce_along{kind}_{dst}_{src}{}", team.suffix()),
        256,
        "ReduceArgs",
        &format!("cw_reduce_along<{dst}, {src}, {kind}, {}>", team.short),
    )
}

/// Pieces a reduction is cut into: by shape alone, so that every device adds in the same order.
fn piece(kept: u64, gone: u64, along: bool) -> u64 {
    // Blocks there are without cutting, and what a block should have to do.
    let (have, least) = if along {
        (kept, 8192)
    } else {
        (kept.div_ceil(32 * GROUP), 128)
    };
    let want = 1024u64.div_ceil(have.max(1)).min(256);
    gone.div_ceil(want).max(least).max(1)
}

/// `reduce`.
pub(crate) fn reduce(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 2..=2)?;
    let p = o.params::<op::ReduceParams>()?;
    flags(o, p.flags, op::FLAG_ACCUM)?;
    if !(op::reduce::SUM..=op::reduce::PROD).contains(&p.kind) {
        return refuse(o, format!("kind {} is unknown", p.kind));
    }
    let (dst, src) = (output(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
    if dst.dtype != src.dtype && dst.dtype != DType::F32 {
        return refuse(
            o,
            format!("dst {} over src {}", dst.dtype.name(), src.dtype.name()),
        );
    }
    let rank = src.shape.len();
    if p.axes >> rank != 0 {
        return invalid(o, format!("axes {:#b} beyond rank {rank}", p.axes));
    }
    let goes = |d: &usize| p.axes >> d & 1 == 1;
    let gone_dims: Vec<usize> = (0..rank).filter(goes).collect();
    let kept_dims: Vec<usize> = (0..rank).filter(|d| !goes(d)).collect();
    let want: Vec<u64> = (0..rank)
        .map(|d| if goes(&d) { 1 } else { src.shape[d] })
        .collect();
    shape(o, 0, &dst, &want)?;
    if dst.total == 0 {
        return nothing(o);
    }
    let (kept, gone) = (src.pick(&kept_dims), src.pick(&gone_dims));
    let step = |v: &View| {
        let d = v.walk();
        (0..d.rank as usize)
            .map(|i| d.stride[i])
            .filter(|s| *s > 0)
            .min()
    };
    let is_along = match (step(&kept), step(&gone)) {
        (Some(k), Some(g)) => g < k,
        (None, _) => true,
        (_, None) => false,
    };
    let mut a: ReduceArgs = zero();
    (a.kept, a.gone) = (kept.walk(), gone.walk());
    a.accumulate = (p.flags & op::FLAG_ACCUM != 0) as u64;
    a.piece = piece(kept.total, gone.total, is_along);
    a.parts = gone.total.div_ceil(a.piece).max(1);
    let (td, ts) = (c_type(dst.dtype), c_type(src.dtype));
    let workspace = if a.parts > 1 {
        a.parts * kept.total * 8
    } else {
        0
    };
    let slots = [
        ("dst", Place::Operand(0)),
        ("src", Place::Operand(1)),
        ("parts_at", Place::Workspace(0)),
    ];
    let slots = if a.parts > 1 { &slots[..] } else { &slots[..2] };
    let mut out = Vec::new();
    if is_along {
        let team = Team::of(a.piece.min(gone.total).div_ceil(GROUP), 128, 256);
        a.shift = team.shift;
        let k = along(ts, td, p.kind, team);
        let grid = [blocks(kept.total * a.parts, team.rows(), f), 1, 1];
        out.push(launch(k, grid, team.threads, 0, &a, slots));
    } else {
        let k = Kernel::new(
            Family::Reduce,
            format!("cw_reduce_across{}_{td}_{ts}", p.kind),
            256,
            "ReduceArgs",
            &format!("cw_reduce_across<{td}, {ts}, {}>", p.kind),
        );
        let inner = match a.kept.rank {
            0 => 1,
            r => a.kept.n[r as usize - 1],
        };
        let groups = inner.div_ceil(GROUP) * (kept.total / inner);
        let grid = [blocks(groups.div_ceil(32) * a.parts, 1, f), 1, 1];
        out.push(launch(k, grid, 256, 0, &a, slots));
    }
    if a.parts > 1 {
        let k = Kernel::new(
            Family::Reduce,
            format!("cw_reduce_finish{}_{td}", p.kind),
            128,
            "ReduceArgs",
            &format!("cw_reduce_finish<{td}, {}>", p.kind),
        );
        let grid = [blocks(kept.total, 128, f), 1, 1];
        out.push(launch(k, grid, 128, 0, &a, slots));
    }
    done(o, workspace, out, Dynamic::None)
}

/// The other dims as a walk, and the length and stride of `dim`.
fn split(v: &View, dim: usize) -> (crate::args::Dims, u64, i64) {
    let others: Vec<usize> = (0..v.shape.len()).filter(|d| *d != dim).collect();
    (v.pick(&others).walk(), v.shape[dim], v.stride[dim])
}

/// `arg_reduce`.
pub(crate) fn arg_reduce(o: &OpRequest<'_>, f: &Facts) -> Answer {
    let r = request::ArgReduce::read(o)?;
    let (dst, src, dim): (View, View, _) = (r.dst.into(), r.src.into(), r.dim);
    if dst.total == 0 {
        return nothing(o);
    }
    let mut a: LineArgs = zero();
    (a.from, a.n, a.step_in) = split(&src, dim);
    let team = Team::of(a.n.div_ceil(GROUP), 128, 256);
    a.shift = team.shift;
    let (ti, t) = (c_type(dst.dtype), c_type(src.dtype));
    let k = Kernel::new(
        Family::Reduce,
        format!(
            "cw_arg_reduce{}_{ti}_{t}{}",
            r.smallest as u32,
            team.suffix()
        ),
        256,
        "LineArgs",
        &format!("cw_arg_reduce<{ti}, {t}, {}, {}>", r.smallest, team.short),
    );
    let slots = [("dst", Place::Operand(0)), ("src", Place::Operand(1))];
    let grid = [blocks(dst.total, team.rows(), f), 1, 1];
    let l = launch(k, grid, team.threads, 0, &a, &slots);
    done(o, 0, vec![l], Dynamic::None)
}

/// `cumsum`.
pub(crate) fn cumsum(o: &OpRequest<'_>, f: &Facts) -> Answer {
    let r = request::Cumsum::read(o)?;
    let (dst, src, dim): (View, View, _) = (r.dst.into(), r.src.into(), r.dim);
    if dst.total == 0 {
        return nothing(o);
    }
    let mut a: LineArgs = zero();
    (a.from, a.n, a.step_in) = split(&src, dim);
    (a.to, _, a.step_out) = split(&dst, dim);
    let team = Team::of(a.n.div_ceil(GROUP), 128, 256);
    a.shift = team.shift;
    let t = c_type(src.dtype);
    let acc = if src.dtype.is_float() {
        "double"
    } else {
        "i64"
    };
    let k = Kernel::new(
        Family::Reduce,
        format!("cw_cumsum_{t}{}", team.suffix()),
        256,
        "LineArgs",
        &format!("cw_cumsum<{acc}, {t}, {}>", team.short),
    );
    let slots = [("dst", Place::Operand(0)), ("src", Place::Operand(1))];
    let grid = [blocks(a.from.total, team.rows(), f), 1, 1];
    let l = launch(k, grid, team.threads, 0, &a, &slots);
    done(o, 0, vec![l], Dynamic::None)
}

/// `histogram`: integer counts, so atomics keep it deterministic.
pub(crate) fn histogram(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 2..=2)?;
    flags(o, o.params::<op::NoParams>()?.flags, 0)?;
    let dst = output(o, 0, &[DType::I32, DType::U32])?;
    let index = input(o, 1, INDEX)?;
    let mut out: Vec<_> = fill_launch(f, &dst, 0, 0).into_iter().collect();
    if index.total > 0 && dst.total > 0 {
        let mut a: HistogramArgs = zero();
        a.from = index.walk();
        a.bins = dst.total;
        let t = c_type(index.dtype);
        let k = Kernel::new(
            Family::Reduce,
            format!("cw_histogram_{t}"),
            256,
            "HistogramArgs",
            &format!("cw_histogram<{t}>"),
        );
        let slots = [("dst", Place::Operand(0)), ("index", Place::Operand(1))];
        let grid = [blocks(index.total, 256, f), 1, 1];
        out.push(launch(k, grid, 256, 0, &a, &slots));
    }
    done(o, 0, out, Dynamic::None)
}
