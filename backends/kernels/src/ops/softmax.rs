//! softmax_* and cross_entropy_*.

use super::norm::shape_of_block;
use super::point::GROUP;
use super::{Answer, Team, blocks, done, launch, nothing, threads_for};
use crate::args::{SoftmaxArgs, zero};
use crate::launch::{Dynamic, Place};
use crate::source::{Facts, Family, Kernel};
use crate::view::*;
use crossweave_abi::op;
use crossweave_plugin::{OpRequest, Result};

const MOST: u32 = 512;

/// The kernel for rows that a team has, or, without one, for rows of any length.
fn kernel(name: &str, parameters: &[&str], team: Option<Team>) -> Kernel {
    let short = team.map_or(String::new(), |t| format!(", {}", t.short));
    Kernel::new(
        Family::Softmax,
        format!(
            "cw_{name}_{}{}",
            parameters.join("_"),
            team.map_or("", Team::suffix)
        ),
        MOST,
        "SoftmaxArgs",
        &format!("cw_{name}<{}{short}>", parameters.join(", ")),
    )
}

/// `softmax_fwd`.
pub(crate) fn softmax(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 2..=2)?;
    flags(o, o.params::<op::NoParams>()?.flags, 0)?;
    let (y, x) = (output(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
    shape(o, 1, &x, &y.shape)?;
    let (n, d) = rows_of(o, 1, &x)?;
    if y.total == 0 {
        return nothing(o);
    }
    let mut a: SoftmaxArgs = zero();
    (a.x_outer, _, a.x_inner) = x.rows();
    (a.n, a.d) = (n, d);
    let (g, team) = shape_of_block(d, 8, 128);
    a.shift = team.shift;
    let k = kernel(
        "softmax",
        &[c_type(y.dtype), c_type(x.dtype), &g.to_string()],
        Some(team),
    );
    let places = [("y", Place::Operand(0)), ("x", Place::Operand(1))];
    let grid = [blocks(n, team.rows(), f), 1, 1];
    let l = launch(k, grid, team.threads, 0, &a, &places);
    done(o, 0, vec![l], Dynamic::None)
}

/// `softmax_bwd`.
pub(crate) fn softmax_backward(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 3..=3)?;
    flags(o, o.params::<op::NoParams>()?.flags, 0)?;
    let (dx, dy, y) = (
        output(o, 0, FLOATS)?,
        input(o, 1, FLOATS)?,
        input(o, 2, FLOATS)?,
    );
    shape(o, 1, &dy, &dx.shape)?;
    shape(o, 2, &y, &dx.shape)?;
    let (n, d) = rows_of(o, 0, &dx)?;
    if dx.total == 0 {
        return nothing(o);
    }
    let mut a: SoftmaxArgs = zero();
    (a.x_outer, _, a.x_inner) = y.rows();
    (a.dy_outer, _, a.dy_inner) = dy.rows();
    (a.n, a.d) = (n, d);
    let (g, team) = shape_of_block(d, 4, 128);
    a.shift = team.shift;
    let k = kernel(
        "softmax_grad",
        &[
            c_type(dx.dtype),
            c_type(dy.dtype),
            c_type(y.dtype),
            &g.to_string(),
        ],
        Some(team),
    );
    let places = [
        ("y", Place::Operand(0)),
        ("dy", Place::Operand(1)),
        ("x", Place::Operand(2)),
    ];
    let grid = [blocks(n, team.rows(), f), 1, 1];
    let l = launch(k, grid, team.threads, 0, &a, &places);
    done(o, 0, vec![l], Dynamic::None)
}

/// Reads the targets (operand `i`) into the arguments.
fn targets(o: &OpRequest<'_>, i: usize, n: u64, a: &mut SoftmaxArgs) -> Result<&'static str> {
    let p = o.params::<op::XentParams>()?;
    flags(o, p.flags, op::FLAG_HAS_IGNORE)?;
    let view = input(o, i, INDEX)?;
    if view.total != n {
        return invalid(o, format!("{} targets for {n} rows", view.total));
    }
    a.target_from = view.walk();
    a.has_ignore = (p.flags & op::FLAG_HAS_IGNORE != 0) as u64;
    a.ignore = p.ignore;
    Ok(c_type(view.dtype))
}

/// `cross_entropy_fwd`.
pub(crate) fn cross_entropy(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 4..=4)?;
    let logits = input(o, 2, FLOATS)?;
    let (n, d) = rows_of(o, 2, &logits)?;
    for i in [0, 1] {
        let v = output(o, i, F32)?;
        if v.total != n {
            return invalid(o, format!("operand {i}: {} elements for {n} rows", v.total));
        }
    }
    let mut a: SoftmaxArgs = zero();
    let ti = targets(o, 3, n, &mut a)?;
    if n == 0 {
        return nothing(o);
    }
    (a.x_outer, _, a.x_inner) = logits.rows();
    let team = Team::of(d.div_ceil(GROUP), 128, MOST);
    (a.n, a.d, a.shift) = (n, d, team.shift);
    let k = kernel("xent", &[c_type(logits.dtype), ti], Some(team));
    let places = [
        ("y", Place::Operand(0)),
        ("lse", Place::Operand(1)),
        ("x", Place::Operand(2)),
        ("target", Place::Operand(3)),
    ];
    let grid = [blocks(n, team.rows(), f), 1, 1];
    let l = launch(k, grid, team.threads, 0, &a, &places);
    done(o, 0, vec![l], Dynamic::None)
}

/// `cross_entropy_bwd`.
pub(crate) fn cross_entropy_backward(o: &OpRequest<'_>, _: &Facts) -> Answer {
    arity(o, 5..=5)?;
    let (dlogits, logits) = (output(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
    shape(o, 1, &logits, &dlogits.shape)?;
    let (n, d) = rows_of(o, 1, &logits)?;
    let (lse, dloss) = (input(o, 2, F32)?, input(o, 4, F32)?);
    for (i, v) in [(2, &lse), (4, &dloss)] {
        if v.total != n {
            return invalid(
                o,
                format!(
                    "operand {i}: {} elements for {n} rows (broadcast one by stride 0)",
                    v.total
                ),
            );
        }
    }
    let mut a: SoftmaxArgs = zero();
    let ti = targets(o, 3, n, &mut a)?;
    if dlogits.total == 0 {
        return nothing(o);
    }
    (a.x_outer, _, a.x_inner) = logits.rows();
    (a.lse_from, a.g_from) = (lse.walk(), dloss.walk());
    (a.n, a.d) = (n, d);
    let k = kernel(
        "xent_grad",
        &[c_type(dlogits.dtype), c_type(logits.dtype), ti],
        None,
    );
    let places = [
        ("y", Place::Operand(0)),
        ("x", Place::Operand(1)),
        ("lse", Place::Operand(2)),
        ("target", Place::Operand(3)),
        ("g", Place::Operand(4)),
    ];
    let threads = threads_for(d.div_ceil(GROUP), 64, 256);
    let tiles = d.div_ceil(GROUP).div_ceil(threads as u64);
    let grid = [(n * tiles).min(1 << 30), 1, 1];
    let l = launch(k, grid, threads, 0, &a, &places);
    done(o, 0, vec![l], Dynamic::None)
}
