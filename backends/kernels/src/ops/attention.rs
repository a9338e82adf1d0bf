//! attention_*: tensor cores where the device and the storage have them (the forward by products of warpgroups on sm_90a), else the portable
//! kernels.

use super::{Answer, done, launch, nothing};
use crate::args::{AttentionArgs, Plain, VarlenArgs, zero};
use crate::launch::{Dynamic, Launch, Place};
use crate::source::{Dialect, Facts, Family, Kernel};
use crate::view::*;
use crossweave_abi::op;
use crossweave_plugin::{DType, OpRequest, Result};

/// Queries or keys of a block of the portable kernels; `CW_ROWS` in the source.
pub(super) const ROWS: u64 = 16;
/// Queries of a block on tensor cores; `CW_BLOCK` in the source.
const BLOCK: u64 = 64;
/// Keys of a tile of the kernel of warpgroup products; `CW_KEYS` in the source.
const WIDE: u64 = 128;

/// An operand that must be `want` = [B, T, H, D], unit in D.
pub(super) fn view(o: &OpRequest<'_>, i: usize, want: &[u64; 4], out: bool) -> Result<View> {
    let v = if out {
        output_strided(o, i, FLOATS)?
    } else {
        input(o, i, FLOATS)?
    };
    shape(o, i, &v, want)?;
    if want[3] > 1 && v.stride[3] != 1 {
        return refuse(o, format!("operand {i} must have unit stride in D"));
    }
    Ok(v)
}

pub(super) fn strides(v: &View) -> [i64; 3] {
    [v.stride[0], v.stride[1], v.stride[2]]
}

/// What both directions share: the arguments, shapes of q and k, and whether there is anything to do. `at` is where q stands.
pub(super) fn common(
    o: &OpRequest<'_>,
    at: usize,
    lse: usize,
) -> Result<(AttentionArgs, [u64; 4], [u64; 4])> {
    let p = o.params::<op::AttentionParams>()?;
    flags(o, p.flags, op::FLAG_CAUSAL)?;
    common_of(o, at, lse, p)
}

/// The same, `p` being what the op's own params have of these.
pub(super) fn common_of(
    o: &OpRequest<'_>,
    at: usize,
    lse: usize,
    p: op::AttentionParams,
) -> Result<(AttentionArgs, [u64; 4], [u64; 4])> {
    if p.window < 0 {
        return invalid(o, format!("window {} is negative", p.window));
    }
    let four = |i: usize| -> Result<[u64; 4]> {
        let v = input(o, i, FLOATS)?;
        match v.shape[..] {
            [b, t, h, d] => Ok([b, t, h, d]),
            _ => invalid(o, format!("operand {i} must be [B, T, H, D]")),
        }
    };
    let (q, k) = (four(at)?, four(at + 1)?);
    if q[0] != k[0] || q[3] != k[3] || (k[2] == 0 && q[2] != 0) || (k[2] > 0 && q[2] % k[2] != 0) {
        return invalid(o, format!("q {q:?} and k {k:?} do not fit"));
    }
    if q[3] > 256 {
        return refuse(o, format!("heads of {}, at most 256", q[3]));
    }
    // The forward gives it, the backward reads it.
    let l = match lse {
        1 => output_strided(o, lse, F32)?,
        _ => input(o, lse, F32)?,
    };
    shape(o, lse, &l, &[q[0], q[2], q[1]])?;
    if q.iter().chain(&k).any(|n| *n > i32::MAX as u64) || q[0] * q[2] > 65535 {
        return refuse(o, "more heads or positions than a grid has");
    }
    let mut a: AttentionArgs = zero();
    (a.b, a.tq, a.tk) = (q[0] as u32, q[1] as u32, k[1] as u32);
    (a.h, a.hkv, a.d) = (q[2] as u32, k[2] as u32, q[3] as u32);
    a.ls.copy_from_slice(&l.stride);
    a.causal = (p.flags & op::FLAG_CAUSAL != 0) as u32;
    // No two positions are further apart, a shift included.
    a.window = p.window.min(1 << 42);
    a.scale = if p.scale == 0.0 {
        1.0 / (q[3] as f64).sqrt()
    } else {
        p.scale
    } as f32;
    Ok((a, q, k))
}

/// Does the device have tensor cores for this storage, and are there kernels for heads of this size?
fn has_cores(f: &Facts, t: DType, d: u64) -> bool {
    f.dialect != Dialect::Hip
        && f.arch >= 80
        && f.warp == 32
        && t != DType::F32
        && matches!(d, 32 | 64 | 96 | 128)
}

/// Warpgroups of a block of the kernel of warpgroup products (64 queries each), and its bytes of shared memory, where it takes the op.
fn warpgroups(f: &Facts, t: DType, a: &AttentionArgs) -> Option<(u64, u64)> {
    // More of them where heads leave more registers to a thread.
    let w = match a.d {
        64 => 3,
        128 => 2,
        _ => return None,
    };
    // Queries, two tiles of keys and two of values, from a multiple of 1024 bytes on.
    let room = 1024 + (64 * w + 4 * WIDE) * a.d as u64 * 2;
    // Few queries would leave most of a block idle; a scale that is not positive does not keep the order of scores.
    let fits = f.wgmma && has_cores(f, t, a.d as u64) && room <= f.shared as u64;
    (fits && a.tq as u64 > BLOCK && a.scale > 0.0).then_some((w, room))
}

/// Bytes of shared memory of the forward by mma, where device, storage and size of heads have it.
pub(super) fn core_forward(f: &Facts, t: DType, d: u64) -> Option<u64> {
    let shared = 3 * BLOCK * (d + 8) * 2;
    (has_cores(f, t, d) && shared <= f.shared as u64).then_some(shared)
}

/// Rows of the other side that a block of the backward by mma takes at a time, two stages of them, and its bytes of shared memory.
pub(super) fn core_backward(f: &Facts, t: DType, d: u64) -> Option<(u64, u64)> {
    let step = if d <= 64 { 64 } else { 32 };
    let room = (2 * BLOCK + 4 * step) * (d + 8) * 2 + 4 * step * 4;
    (has_cores(f, t, d) && room <= f.shared as u64).then_some((step, room))
}

/// A launch of a kernel by mma for whole sequences, packed ones or parts of rows, as `a` is. `part` of its name; `rows` and `heads` are those that blocks own; `step`
/// of the backward.
pub(super) fn by_mma<A: Plain>(
    part: &str,
    (t, d): (DType, u64),
    (rows, heads): (u64, u64),
    step: Option<u64>,
    shared: u64,
    a: &A,
    places: &[(&str, Place)],
) -> Launch {
    let of = match A::C {
        AttentionArgs::C => "",
        VarlenArgs::C => "_packed",
        _ => "_part",
    };
    let t = c_type(t);
    let step = step.map_or(String::new(), |n| format!(", {n}"));
    let k = Kernel::new(
        Family::AttentionMma,
        format!("cw_attention_mma{part}{of}_{t}_{d}"),
        128,
        A::C,
        &format!("cw_attention_mma{part}<{t}, {d}{step}>"),
    );
    launch(k, [rows.div_ceil(BLOCK), heads, 1], 128, shared, a, places)
}

/// Columns of a head that a thread of the portable kernels has.
pub(super) fn columns(d: u64) -> u64 {
    match d {
        0..=64 => 8,
        65..=128 => 16,
        _ => 32,
    }
}

/// A launch of a portable kernel for whole sequences, packed ones or those with more on top, as `a` is; `d` is the size of heads.
pub(super) fn portable<A: Plain>(
    o: &OpRequest<'_>,
    f: &Facts,
    name: &str,
    types: &[&str],
    (a, d): (&A, u64),
    grid: [u64; 2],
    floats: u64,
    places: &[(&str, Place)],
) -> Result<Launch> {
    let shared = floats * 4;
    if shared > f.shared as u64 {
        return refuse(
            o,
            format!(
                "heads of {d} need {shared} bytes of shared memory, the device has {}",
                f.shared
            ),
        );
    }
    let family = match A::C {
        AttentionArgs::C => Family::Attention,
        VarlenArgs::C => Family::AttentionVarlen,
        _ => Family::AttentionExt,
    };
    let k = Kernel::new(
        family,
        format!("cw_{name}_{}", types.join("_")),
        128,
        A::C,
        &format!("cw_{name}<{}>", types.join(", ")),
    );
    Ok(launch(k, [grid[0], grid[1], 1], 128, shared, a, places))
}

/// `attention_fwd`.
pub(crate) fn forward(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 5..=5)?;
    let (mut a, q, k) = common(o, 2, 1)?;
    let (vo, vq) = (view(o, 0, &q, true)?, view(o, 2, &q, false)?);
    let (vk, vv) = (view(o, 3, &k, false)?, view(o, 4, &k, false)?);
    if q[0] * q[1] * q[2] == 0 || q[3] == 0 {
        return nothing(o);
    }
    (a.os, a.qs) = (strides(&vo), strides(&vq));
    (a.ks, a.vs) = (strides(&vk), strides(&vv));
    let places = [
        ("o", Place::Operand(0)),
        ("lse", Place::Operand(1)),
        ("q", Place::Operand(2)),
        ("k", Place::Operand(3)),
        ("v", Place::Operand(4)),
    ];
    let t = vq.dtype;
    let one = [&vo, &vk, &vv].iter().all(|v| v.dtype == t);
    if one && let Some((w, shared)) = warpgroups(f, t, &a) {
        let (c, d) = (c_type(t), q[3]);
        let k = Kernel::new(
            Family::AttentionWgmma,
            format!("cw_attention_wgmma_{c}_{d}"),
            128 * w as u32,
            "AttentionArgs",
            &format!("cw_attention_wgmma<{c}, {d}, {w}>"),
        );
        let grid = [q[1].div_ceil(64 * w), q[0] * q[2], 1];
        let l = launch(k, grid, 128 * w as u32, shared, &a, &places);
        let mut p = done(o, 0, vec![l], Dynamic::None)?;
        p.plan.tier = 2;
        return Ok(p);
    }
    if one && let Some(shared) = core_forward(f, t, q[3]) {
        let own = (q[1], q[0] * q[2]);
        let l = by_mma("", (t, q[3]), own, None, shared, &a, &places);
        let mut p = done(o, 0, vec![l], Dynamic::None)?;
        p.plan.tier = 2;
        return Ok(p);
    }
    let nc = columns(q[3]).to_string();
    let types = [
        c_type(vo.dtype),
        c_type(t),
        c_type(vk.dtype),
        c_type(vv.dtype),
        &nc,
    ];
    let floats = 48 * (q[3] + 1) + ROWS * 33;
    let grid = [q[1].div_ceil(ROWS), q[0] * q[2]];
    let l = portable(o, f, "attention", &types, (&a, q[3]), grid, floats, &places)?;
    done(o, 0, vec![l], Dynamic::None)
}

/// `attention_bwd`.
pub(crate) fn backward(o: &OpRequest<'_>, f: &Facts) -> Answer {
    // dq dk dv do o q k v lse
    arity(o, 9..=9)?;
    let (mut a, q, k) = common(o, 5, 8)?;
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
    if q[0] * q[2] * q[3] == 0 || (q[1] == 0 && k[1] == 0) {
        return nothing(o);
    }
    (a.os, a.qs, a.ks, a.vs) = (strides(&vo), strides(&vq), strides(&vk), strides(&vv));
    (a.gos, a.dqs, a.dks, a.dvs) = (strides(&go), strides(&dq), strides(&dk), strides(&dv));
    let places = [
        ("dq", Place::Operand(0)),
        ("dk", Place::Operand(1)),
        ("dv", Place::Operand(2)),
        ("go", Place::Operand(3)),
        ("o", Place::Operand(4)),
        ("q", Place::Operand(5)),
        ("k", Place::Operand(6)),
        ("v", Place::Operand(7)),
        ("lse", Place::Operand(8)),
        ("delta", Place::Workspace(0)),
    ];
    let same = [&dq, &dk, &dv, &go, &vo, &vk, &vv]
        .iter()
        .all(|v| v.dtype == vq.dtype);
    let on_cores = same && q[1] > 0 && k[1] > 0;
    let on_cores = core_backward(f, vq.dtype, q[3]).filter(|_| on_cores);
    let nc = columns(q[3]).to_string();
    let [tdq, tdk, tdv, tg, to, tq, tk, tv] =
        [&dq, &dk, &dv, &go, &vo, &vq, &vk, &vv].map(|v| c_type(v.dtype));
    let rows = [q[1].div_ceil(ROWS), q[0] * q[2]];
    let tiles = 4 * ROWS * (q[3] + 1);
    let mut out = Vec::new();
    if q[1] > 0 {
        out.push(portable(
            o,
            f,
            "attention_delta",
            &[tg, to],
            (&a, q[3]),
            rows,
            0,
            &places,
        )?);
    }
    if let Some((step, room)) = on_cores {
        for (part, rows, heads) in [("_keys", k[1], k[2]), ("_queries", q[1], q[2])] {
            let own = (rows, q[0] * heads);
            let what = (vq.dtype, q[3]);
            out.push(by_mma(part, what, own, Some(step), room, &a, &places));
        }
        let mut p = done(o, q[0] * q[1] * q[2] * 4, out, Dynamic::None)?;
        p.plan.tier = 2;
        return Ok(p);
    }
    if k[1] > 0 {
        out.push(portable(
            o,
            f,
            "attention_keys",
            &[tdk, tdv, tq, tk, tv, tg, &nc],
            (&a, q[3]),
            [k[1].div_ceil(ROWS), k[0] * k[2]],
            tiles + 2 * ROWS * 17,
            &places,
        )?);
    }
    if q[1] > 0 {
        out.push(portable(
            o,
            f,
            "attention_queries",
            &[tdq, tq, tk, tv, tg, &nc],
            (&a, q[3]),
            rows,
            tiles + ROWS * 17,
            &places,
        )?);
    }
    let bytes = q[0] * q[1] * q[2] * 4;
    done(o, bytes, out, Dynamic::None)
}
