//! attention_ext_*: portable kernels for what there is on top of attention (soft cap, bias by distance, sinks, dropped weights, segments of
//! queries and of keys) and for parts of a row, in f32 over 16-bit operands too. Parts with nothing else on top go to tensor cores by the mma
//! kernels of whole rows. The gradient of a bias is left to the core.

use super::attention::{
    ROWS, by_mma, columns, common_of, core_backward, core_forward, portable, strides, view,
};
use super::{Answer, done, launch, nothing};
use crate::args::{AttentionArgs, ExtArgs, zero};
use crate::launch::{Dynamic, Launch, Place};
use crate::source::{Facts, Family, Kernel};
use crate::view::*;
use crossweave_abi::op;
use crossweave_plugin::{DType, OpRequest, Result};
use std::mem::offset_of;

/// The furthest that queries stand from keys.
const FURTHEST: u64 = 1 << 40;

/// An operand of so many floats, absent or of `dims`: its storage as the kernels number them, and the stride of its first dim.
fn line(o: &OpRequest<'_>, i: usize, dims: &[u64], types: &[DType]) -> Result<Option<(u32, i64)>> {
    let Some(v) = optional(o, i, types)? else {
        return Ok(None);
    };
    shape(o, i, &v, dims)?;
    if let [_, n] = *dims
        && n > 1
        && v.stride[1] != 1
    {
        return refuse(
            o,
            format!("operand {i} must have unit stride in its last dim"),
        );
    }
    let number = FLOATS.iter().position(|t| *t == v.dtype);
    Ok(Some((number.unwrap_or(0) as u32, v.stride[0])))
}

/// Reads the arguments of both directions, and the shapes of q and k: q is operand `at`, and bias, sinks and segments begin at operand `bias`.
fn args(
    o: &OpRequest<'_>,
    at: usize,
    lse: usize,
    bias: usize,
) -> Result<(ExtArgs, AttentionArgs, [u64; 4], [u64; 4])> {
    let p = o.params::<op::AttentionExtParams>()?;
    flags(o, p.flags, op::FLAG_CAUSAL | op::FLAG_IN_ROW)?;
    let plain = op::AttentionParams {
        flags: p.flags & op::FLAG_CAUSAL,
        scale: p.scale,
        window: p.window,
        ..Default::default()
    };
    let (w, q, k) = common_of(o, at, lse, plain)?;
    let fits = (0.0..1.0).contains(&p.dropout) && p.cap >= 0.0 && p.cap.is_finite();
    if !fits {
        let what = "must be in [0, 1) and not negative";
        return invalid(o, format!("dropout {} and cap {} {what}", p.dropout, p.cap));
    }
    if p.shift.unsigned_abs() > FURTHEST {
        return invalid(
            o,
            format!("a shift of {}, at most 2^40 either way", p.shift),
        );
    }
    let whole = |given: i64, own: u64| match u64::try_from(given) {
        Ok(0) => Ok(own),
        Ok(n) if n >= own => Ok(n),
        _ => invalid(
            o,
            format!("{own} heads, queries or keys are no part of {given}"),
        ),
    };
    let keys = whole(p.keys, k[1])?;
    if u64::try_from(p.first_key).map_or(true, |n| n > keys - k[1]) {
        let what = format!("{} keys from key {} on", k[1], p.first_key);
        return invalid(o, format!("{what} are no part of {keys}"));
    }
    let mut a: ExtArgs = zero();
    (a.b, a.tq, a.tk, a.h, a.hkv, a.d) = (w.b, w.tq, w.tk, w.h, w.hkv, w.d);
    (a.ls, a.window, a.causal, a.scale) = (w.ls, w.window, w.causal, w.scale);
    (a.shift, a.first_key) = (p.shift, p.first_key);
    a.in_row = u32::from(p.flags & op::FLAG_IN_ROW != 0);
    (a.heads, a.queries) = (whole(p.heads, q[2])?, whole(p.queries, q[1])?);
    a.blocks = keys.div_ceil(4);
    a.cap = p.cap as f32;
    a.threshold = (p.dropout * 16_777_216.0).ceil() as u32;
    a.kept = (1.0 / (1.0 - p.dropout)) as f32;
    let distances = (q[1] + k[1]).saturating_sub(1);
    if let Some(of) = line(o, bias, &[q[2], distances], FLOATS)? {
        (a.bias_type, a.bs) = of;
    }
    if let Some(of) = line(o, bias + 1, &[q[2]], FLOATS)? {
        (a.sinks_type, a.ss) = of;
    }
    let lengths = |i: usize| -> Result<Option<(u64, [i64; 2])>> {
        let Some(v) = optional(o, i, &[DType::I32])? else {
            return Ok(None);
        };
        match (&v.shape[..], &v.stride[..]) {
            (&[b, n], &[row, one]) if b == q[0] && (1..=i32::MAX as u64).contains(&n) => {
                Ok(Some((n, [row, one])))
            }
            _ => invalid(o, format!("operand {i} must be [{}, segments + 1]", q[0])),
        }
    };
    match (lengths(bias + 2)?, lengths(bias + 3)?) {
        (None, None) => {}
        (None, Some(_)) => return invalid(o, "cu_k without cu_q"),
        (Some(_), None) if q[1] != k[1] => {
            return invalid(
                o,
                format!("cu_k is absent, and {} queries are not {} keys", q[1], k[1]),
            );
        }
        (Some((n, s)), None) => (a.n, a.cqs, a.cks) = (n as u32, s, s),
        (Some((n, s)), Some((m, t))) if n == m => (a.n, a.cqs, a.cks) = (n as u32, s, t),
        (Some((n, _)), Some((m, _))) => {
            return invalid(o, format!("cu_q has {n} numbers a row, cu_k {m}"));
        }
    }
    Ok((a, w, q, k))
}

/// Binds the optional operands from `bias` on to the kernels' arguments.
fn tail(o: &OpRequest<'_>, bias: usize) -> [(&'static str, Place); 4] {
    let cu_k = if o.layout(bias + 3).is_some() { 3 } else { 2 };
    let at = |i: usize| Place::Operand((bias + i) as u32);
    [
        ("bias", at(0)),
        ("sinks", at(1)),
        ("cu_q", at(2)),
        ("cu_k", at(cu_k)),
    ]
}

/// Has it nothing but a mask that counts in the row? Then it is for the kernels by mma.
fn plain(o: &OpRequest<'_>, a: &ExtArgs, bias: usize) -> bool {
    let on_top = [bias, bias + 1].iter().any(|i| o.layout(*i).is_some());
    !on_top && a.cap == 0.0 && a.threshold == 0 && (a.n == 0 || a.in_row != 0)
}

/// Binds the words of the launch from which weights are dropped.
fn with_key(mut l: Launch) -> Launch {
    l.dynamic = Some(offset_of!(ExtArgs, dynamic) as u32);
    l
}

/// Chooses the kernel of `attention_ext_fwd`.
pub(crate) fn forward(o: &OpRequest<'_>, f: &Facts) -> Answer {
    // o lse q k v bias sinks cu_q cu_k
    arity_up_to(o, 5..=9, 2)?;
    let (mut a, _, q, k) = args(o, 2, 1, 5)?;
    let (vo, vq) = (view(o, 0, &q, true)?, view(o, 2, &q, false)?);
    let (vk, vv) = (view(o, 3, &k, false)?, view(o, 4, &k, false)?);
    one_type(o, &[&vq, &vk, &vv])?;
    if q[0] * q[1] * q[2] == 0 || q[3] == 0 {
        return nothing(o);
    }
    (a.os, a.qs, a.ks, a.vs) = (strides(&vo), strides(&vq), strides(&vk), strides(&vv));
    let own = [("o", 0), ("lse", 1), ("q", 2), ("k", 3), ("v", 4)];
    let own = own.map(|(name, i)| (name, Place::Operand(i)));
    let places = [&own[..], &tail(o, 5)].concat();
    let fits = plain(o, &a, 5) && [vq.dtype, DType::F32].contains(&vo.dtype);
    if let Some(shared) = core_forward(f, vq.dtype, q[3]).filter(|_| fits) {
        a.wide = u32::from(vo.dtype != vq.dtype);
        let (what, own) = ((vq.dtype, q[3]), (q[1], q[0] * q[2]));
        let l = by_mma("", what, own, None, shared, &a, &places);
        let mut p = done(o, 0, vec![l], Dynamic::Philox)?;
        p.plan.tier = 2;
        return Ok(p);
    }
    let nc = columns(q[3]).to_string();
    let types = [c_type(vo.dtype), c_type(vq.dtype), &nc];
    let floats = 48 * (q[3] + 1) + ROWS * 33;
    let grid = [q[1].div_ceil(ROWS), q[0] * q[2]];
    let l = portable(o, f, "ext", &types, (&a, q[3]), grid, floats, &places)?;
    done(o, 0, vec![with_key(l)], Dynamic::Philox)
}

/// Refuses storages that differ.
fn one_type(o: &OpRequest<'_>, all: &[&View]) -> Result<()> {
    match all.iter().all(|v| v.dtype == all[0].dtype) {
        true => Ok(()),
        false => refuse(o, "operands of several types that are to be of one"),
    }
}

/// Chooses the kernels of `attention_ext_bwd`.
pub(crate) fn backward(o: &OpRequest<'_>, f: &Facts) -> Answer {
    // dq dk dv dbias dsinks do o q k v lse bias sinks cu_q cu_k
    arity_up_to(o, 11..=15, 2)?;
    let (mut a, mut w, q, k) = args(o, 7, 10, 11)?;
    if o.layout(3).is_some() {
        return refuse(o, "the gradient of the bias");
    }
    let dsinks = line(o, 4, &[q[2]], F32)?;
    if dsinks.is_some() && o.layout(12).is_none() {
        return invalid(o, "a gradient of sinks is asked for without sinks");
    }
    a.dss = dsinks.map_or(0, |(_, stride)| stride);
    let (dq, dk, dv) = (
        view(o, 0, &q, true)?,
        view(o, 1, &k, true)?,
        view(o, 2, &k, true)?,
    );
    let (go, vo, vq) = (
        view(o, 5, &q, false)?,
        view(o, 6, &q, false)?,
        view(o, 7, &q, false)?,
    );
    let (vk, vv) = (view(o, 8, &k, false)?, view(o, 9, &k, false)?);
    one_type(o, &[&vq, &vk, &vv])?;
    one_type(o, &[&dq, &dk, &dv])?;
    if q[0] * q[2] * q[3] == 0 || (q[1] == 0 && k[1] == 0) {
        return nothing(o);
    }
    (w.os, w.gos) = (strides(&vo), strides(&go));
    (a.qs, a.ks, a.vs, a.gos) = (strides(&vq), strides(&vk), strides(&vv), strides(&go));
    (a.dqs, a.dks, a.dvs) = (strides(&dq), strides(&dk), strides(&dv));
    let delta = ("delta", Place::Workspace(0));
    let whole = [("go", Place::Operand(5)), ("o", Place::Operand(6)), delta];
    let own = [
        ("dq", 0),
        ("dk", 1),
        ("dv", 2),
        ("dsinks", 4),
        ("go", 5),
        ("q", 7),
    ];
    let own = [&own[..], &[("k", 8), ("v", 9), ("lse", 10)]].concat();
    let own: Vec<_> = own
        .into_iter()
        .map(|(name, i)| (name, Place::Operand(i)))
        .collect();
    let places = [&own[..], &[delta], &tail(o, 11)].concat();
    let nc = columns(q[3]).to_string();
    let [td, tq, tg, to] = [&dq, &vq, &go, &vo].map(|v| c_type(v.dtype));
    let types = [td, tq, tg, &nc];
    let rows = [q[1].div_ceil(ROWS), q[0] * q[2]];
    let tiles = 4 * ROWS * (q[3] + 1);
    let mut all = Vec::new();
    if q[1] > 0 {
        // A row's sum of gradient times output knows of nothing that is on top.
        let (name, with) = ("attention_delta", (&w, q[3]));
        all.push(portable(o, f, name, &[tg, to], with, rows, 0, &whole)?);
    }
    let bytes = q[0] * q[1] * q[2] * 4;
    let fits = plain(o, &a, 11)
        && go.dtype == vq.dtype
        && [vq.dtype, DType::F32].contains(&dq.dtype)
        && q[1] * k[1] > 0;
    if let Some((step, room)) = core_backward(f, vq.dtype, q[3]).filter(|_| fits) {
        a.wide = u32::from(dq.dtype != vq.dtype);
        let what = (vq.dtype, q[3]);
        for (part, rows, heads) in [("_keys", k[1], k[2]), ("_queries", q[1], q[2])] {
            let own = (rows, q[0] * heads);
            all.push(by_mma(part, what, own, Some(step), room, &a, &places));
        }
        let mut p = done(o, bytes, all, Dynamic::Philox)?;
        p.plan.tier = 2;
        return Ok(p);
    }
    if k[1] > 0 {
        let grid = [k[1].div_ceil(ROWS), k[0] * k[2]];
        let (with, room) = ((&a, q[3]), tiles + 2 * ROWS * 17);
        all.push(with_key(portable(
            o, f, "ext_keys", &types, with, grid, room, &places,
        )?));
    }
    if q[1] > 0 {
        let (with, room) = ((&a, q[3]), tiles + ROWS * 17);
        all.push(with_key(portable(
            o,
            f,
            "ext_queries",
            &types,
            with,
            rows,
            room,
            &places,
        )?));
        if dsinks.is_some() {
            let (entry, body) = ("cw_ext_sinks_float".into(), "cw_ext_sinks");
            let k = Kernel::new(Family::AttentionExt, entry, 128, "ExtArgs", body);
            all.push(with_key(launch(k, [q[2], 1, 1], 128, 0, &a, &places)));
        }
    }
    done(o, bytes, all, Dynamic::Philox)
}
