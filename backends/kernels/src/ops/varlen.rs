//! attention_varlen_*: packed sequences, on tensor cores by the mma kernels of whole ones, else by portable kernels of their own.

use super::attention::{
    ROWS, by_mma, columns, common, core_backward, core_forward, portable, strides, view,
};
use super::{Answer, done, nothing};
use crate::args::{AttentionArgs, VarlenArgs, zero};
use crate::launch::{Dynamic, Place};
use crate::source::Facts;
use crate::view::*;
use crossweave_plugin::{DType, OpRequest, Result};

/// The arguments, from those of whole sequences; `cu` is where the cumulative lengths stand.
fn args(o: &OpRequest<'_>, w: &AttentionArgs, cu: usize) -> Result<VarlenArgs> {
    if w.tq != w.tk {
        let what = "packed sequences have as many keys as queries";
        return invalid(o, format!("{what}, not {} queries and {} keys", w.tq, w.tk));
    }
    let lengths = input(o, cu, &[DType::I32])?;
    let n = match lengths.shape[..] {
        [b, n] if b == w.b as u64 && (1..=i32::MAX as u64).contains(&n) => n,
        _ => return invalid(o, format!("operand {cu} must be [{}, segments + 1]", w.b)),
    };
    let mut a: VarlenArgs = zero();
    a.cs.copy_from_slice(&lengths.stride);
    (a.n, a.t) = (n as u32, w.tq);
    (a.h, a.hkv, a.d) = (w.h, w.hkv, w.d);
    (a.ls, a.window) = (w.ls, w.window);
    (a.causal, a.scale) = (w.causal, w.scale);
    Ok(a)
}

/// `attention_varlen_fwd`.
pub(crate) fn forward(o: &OpRequest<'_>, f: &Facts) -> Answer {
    // o lse q k v cu
    arity(o, 6..=6)?;
    let (w, q, k) = common(o, 2, 1)?;
    let mut a = args(o, &w, 5)?;
    let (vo, vq) = (view(o, 0, &q, true)?, view(o, 2, &q, false)?);
    let (vk, vv) = (view(o, 3, &k, false)?, view(o, 4, &k, false)?);
    output_strided(o, 1, F32)?;
    if q[0] * q[1] * q[2] == 0 || q[3] == 0 {
        return nothing(o);
    }
    (a.os, a.qs, a.ks, a.vs) = (strides(&vo), strides(&vq), strides(&vk), strides(&vv));
    let places = [
        ("o", Place::Operand(0)),
        ("lse", Place::Operand(1)),
        ("q", Place::Operand(2)),
        ("k", Place::Operand(3)),
        ("v", Place::Operand(4)),
        ("cu", Place::Operand(5)),
    ];
    let one = [&vo, &vk, &vv].iter().all(|v| v.dtype == vq.dtype);
    if one && let Some(shared) = core_forward(f, vq.dtype, q[3]) {
        let (what, own) = ((vq.dtype, q[3]), (q[1], q[0] * q[2]));
        let l = by_mma("", what, own, None, shared, &a, &places);
        let mut p = done(o, 0, vec![l], Dynamic::None)?;
        p.plan.tier = 2;
        return Ok(p);
    }
    let nc = columns(q[3]).to_string();
    let [to, tq, tk, tv] = [&vo, &vq, &vk, &vv].map(|v| c_type(v.dtype));
    let floats = 48 * (q[3] + 1) + ROWS * 33;
    let types = [to, tq, tk, tv, &nc];
    let grid = [q[1].div_ceil(ROWS), q[0] * q[2]];
    let with = (&a, q[3]);
    let l = portable(o, f, "varlen", &types, with, grid, floats, &places)?;
    done(o, 0, vec![l], Dynamic::None)
}

/// `attention_varlen_bwd`.
pub(crate) fn backward(o: &OpRequest<'_>, f: &Facts) -> Answer {
    // dq dk dv do o q k v lse cu
    arity(o, 10..=10)?;
    let (mut w, q, k) = common(o, 5, 8)?;
    let mut a = args(o, &w, 9)?;
    let (dq, dk, dv) = (
        view(o, 0, &q, true)?,
        view(o, 1, &k, true)?,
        view(o, 2, &k, true)?,
    );
    let (go, vo, vq) = (
        view(o, 3, &q, false)?,
        view(o, 4, &q, false)?,
        view(o, 5, &q, false)?,
    );
    let (vk, vv) = (view(o, 6, &k, false)?, view(o, 7, &k, false)?);
    if q[0] * q[1] * q[2] == 0 || q[3] == 0 {
        return nothing(o);
    }
    (w.os, w.gos) = (strides(&vo), strides(&go));
    (a.qs, a.ks, a.vs, a.gos) = (strides(&vq), strides(&vk), strides(&vv), strides(&go));
    (a.dqs, a.dks, a.dvs) = (strides(&dq), strides(&dk), strides(&dv));
    let whole = [
        ("go", Place::Operand(3)),
        ("o", Place::Operand(4)),
        ("delta", Place::Workspace(0)),
    ];
    let places = [
        ("dq", Place::Operand(0)),
        ("dk", Place::Operand(1)),
        ("dv", Place::Operand(2)),
        ("go", Place::Operand(3)),
        ("q", Place::Operand(5)),
        ("k", Place::Operand(6)),
        ("v", Place::Operand(7)),
        ("lse", Place::Operand(8)),
        ("cu", Place::Operand(9)),
        ("delta", Place::Workspace(0)),
    ];
    let nc = columns(q[3]).to_string();
    let [tdq, tdk, tdv, tg, to, tq, tk, tv] =
        [&dq, &dk, &dv, &go, &vo, &vq, &vk, &vv].map(|v| c_type(v.dtype));
    let rows = [q[1].div_ceil(ROWS), q[0] * q[2]];
    let tiles = 4 * ROWS * (q[3] + 1);
    // A row's sum of gradient times output knows nothing of segments.
    let delta = portable(
        o,
        f,
        "attention_delta",
        &[tg, to],
        (&w, q[3]),
        rows,
        0,
        &whole,
    )?;
    let bytes = q[0] * q[1] * q[2] * 4;
    let same = [&dq, &dk, &dv, &go, &vo, &vk, &vv]
        .iter()
        .all(|v| v.dtype == vq.dtype);
    if same && let Some((step, room)) = core_backward(f, vq.dtype, q[3]) {
        let what = (vq.dtype, q[3]);
        let mma = |part, heads: u64| {
            let own = (q[1], q[0] * heads);
            by_mma(part, what, own, Some(step), room, &a, &places)
        };
        let all = vec![delta, mma("_keys", k[2]), mma("_queries", q[2])];
        let mut p = done(o, bytes, all, Dynamic::None)?;
        p.plan.tier = 2;
        return Ok(p);
    }
    let types = [tdk, tdv, tq, tk, tv, tg, &nc];
    let room = tiles + 2 * ROWS * 17;
    let (with, grid) = ((&a, q[3]), [rows[0], k[0] * k[2]]);
    let keys = portable(o, f, "varlen_keys", &types, with, grid, room, &places)?;
    let types = [tdq, tq, tk, tv, tg, &nc];
    let room = tiles + ROWS * 17;
    let name = "varlen_queries";
    let queries = portable(o, f, name, &types, with, rows, room, &places)?;
    done(o, bytes, vec![delta, keys, queries], Dynamic::None)
}
