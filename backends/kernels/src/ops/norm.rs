//! layer_norm_* and rms_norm_*.

use super::point::GROUP;
use super::{Answer, Team, blocks, done, launch, nothing};
use crate::args::{Dims, NormArgs, NormSumArgs, zero};
use crate::launch::{Dynamic, Place};
use crate::source::{Facts, Family, Kernel};
use crate::view::*;
use crossweave_plugin::op::{NormBackward, NormForward};
use crossweave_plugin::{DType, OpRequest};

/// Most threads of a block.
const MOST: u32 = 512;

/// Groups of eight a thread keeps, and who has a row of `d`; 0 groups when the row does not fit registers. Blocks of short rows have `several`
/// threads.
pub(crate) fn shape_of_block(d: u64, most_groups: u64, several: u32) -> (u64, Team) {
    let groups = d.div_ceil(GROUP).max(1);
    let team = Team::of(groups, several, MOST);
    if team.short {
        return (1, team);
    }
    let each = groups.div_ceil(team.threads as u64).next_power_of_two();
    (if each > most_groups { 0 } else { each }, team)
}

/// `layer_norm_fwd`.
pub(crate) fn layer_forward(o: &OpRequest<'_>, f: &Facts) -> Answer {
    forward(o, f, true)
}
/// `rms_norm_fwd`.
pub(crate) fn rms_forward(o: &OpRequest<'_>, f: &Facts) -> Answer {
    forward(o, f, false)
}

fn forward(o: &OpRequest<'_>, f: &Facts, layer: bool) -> Answer {
    let r = NormForward::read(o, layer)?;
    let (n, d, at) = (r.n as u64, r.d as u64, r.at);
    let [y, x, w]: [View; 3] = [r.y, r.x, r.w].map(View::from);
    let b = r.b.map(View::from);
    if y.total == 0 {
        return nothing(o);
    }
    let mut a: NormArgs = zero();
    (a.x_outer, _, a.x_inner) = x.rows();
    (a.w_inner, a.b_inner) = (w.stride[0], b.as_ref().map_or(0, |b| b.stride[0]));
    (a.n, a.d, a.eps) = (n, d, r.eps);
    let (g, team) = shape_of_block(d, 8, 128);
    a.shift = team.shift;
    let types = [
        c_type(y.dtype),
        c_type(x.dtype),
        c_type(w.dtype),
        b.as_ref().map_or("float", |b| c_type(b.dtype)),
    ];
    let name = if layer { "layer_norm" } else { "rms_norm" };
    let k = Kernel::new(
        Family::Norm,
        format!("cw_{name}_{}_{g}{}", types.join("_"), team.suffix()),
        MOST,
        "NormArgs",
        &format!(
            "cw_norm<{}, {g}, {layer}, {}>",
            types.join(", "),
            team.short
        ),
    );
    let at = at as u32;
    let mut places = vec![
        ("y", Place::Operand(0)),
        ("rstd", Place::Operand(at - 1)),
        ("x", Place::Operand(at)),
        ("w", Place::Operand(at + 1)),
    ];
    if layer {
        places.push(("mean", Place::Operand(1)));
    }
    if b.is_some() {
        places.push(("b", Place::Operand(5)));
    }
    let l = launch(
        k,
        [blocks(n, team.rows(), f), 1, 1],
        team.threads,
        0,
        &a,
        &places,
    );
    done(o, 0, vec![l], Dynamic::None)
}

/// `layer_norm_bwd`.
pub(crate) fn layer_backward(o: &OpRequest<'_>, f: &Facts) -> Answer {
    backward(o, f, true)
}
/// `rms_norm_bwd`.
pub(crate) fn rms_backward(o: &OpRequest<'_>, f: &Facts) -> Answer {
    backward(o, f, false)
}

/// Partial sums of the weight gradients: at most so many, and of short rows four times that, by shape alone.
const PARTS: u64 = 512;

fn backward(o: &OpRequest<'_>, _: &Facts, layer: bool) -> Answer {
    let r = NormBackward::read(o, layer)?;
    let (n, d, at, last, has_db) = (r.n as u64, r.d as u64, r.at, r.last, r.has_db);
    let [dx, dy, x, w]: [View; 4] = [r.dx, r.dy, r.x, r.w].map(View::from);
    let dres = r.dres.map(View::from);
    if dx.total == 0 {
        return nothing(o);
    }
    let mut a: NormArgs = zero();
    (a.x_outer, _, a.x_inner) = x.rows();
    (a.dy_outer, _, a.dy_inner) = dy.rows();
    let none: Dims = zero();
    (a.dres_outer, _, a.dres_inner) = dres.as_ref().map_or((none, 0, 0), View::rows);
    (a.w_inner, a.n, a.d) = (w.stride[0], n, d);
    let (g, team) = shape_of_block(d, 4, 64);
    a.shift = team.shift;
    a.rows = n.div_ceil(PARTS * team.rows().min(4)).max(4);
    let parts = n.div_ceil(a.rows);
    let types = [
        c_type(dx.dtype),
        c_type(x.dtype),
        c_type(w.dtype),
        c_type(dy.dtype),
        dres.as_ref().map_or("float", |r| c_type(r.dtype)),
    ];
    let name = if layer { "layer_norm" } else { "rms_norm" };
    let k = Kernel::new(
        Family::Norm,
        format!("cw_{name}_grad_{}_{g}{}", types.join("_"), team.suffix()),
        MOST,
        "NormArgs",
        &format!(
            "cw_norm_grad<{}, {g}, {layer}, {}>",
            types.join(", "),
            team.short
        ),
    );
    let at = at as u32;
    let mut places = vec![
        ("y", Place::Operand(0)),
        ("dy", Place::Operand(at)),
        ("x", Place::Operand(at + 1)),
        ("w", Place::Operand(at + 2)),
        ("rstd", Place::Operand(last as u32 - 1)),
        ("parts_at", Place::Workspace(0)),
    ];
    if layer {
        places.push(("mean", Place::Operand(6)));
    }
    if dres.is_some() {
        places.push(("dres", Place::Operand(last as u32)));
    }
    let grid = [parts.div_ceil(team.rows()), 1, 1];
    let first = launch(k, grid, team.threads, 0, &a, &places);
    let mut s: NormSumArgs = zero();
    (s.d, s.parts) = (d, parts);
    let k = Kernel::new(
        Family::Norm,
        "cw_sums_of_weights".into(),
        256,
        "NormSumArgs",
        "cw_norm_sum",
    );
    let mut places = vec![("dw", Place::Operand(1)), ("parts_at", Place::Workspace(0))];
    if has_db {
        places.push(("db", Place::Operand(2)));
    }
    let second = launch(k, [d.div_ceil(32), 1, 1], 256, 0, &s, &places);
    let bytes = parts * 2 * d * DType::F32.bits() / 8;
    done(o, bytes, vec![first, second], Dynamic::None)
}
