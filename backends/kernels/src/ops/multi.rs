//! adamw, multi_sumsq, multi_scale, nonfinite_count: dense tensors go many to a launch, strided ones (which adamw does not take) one each.

use super::point::{Arg, GROUP, Numbers, Use, Work, point};
use super::{Answer, Team, blocks, done, launch};
use crate::args::{FinishArgs, MultiHead, MultiTensor, Plain, ReduceArgs, zero};
use crate::launch::{Dynamic, Launch, Place, Slot};
use crate::source::{Facts, Family, Kernel};
use crate::view::*;
use crossweave_abi::op;
use crossweave_plugin::op::Adamw;
use crossweave_plugin::{DType, OpRequest, Result};
use std::collections::BTreeMap;

/// Elements of a block's piece; `CW_CHUNK` in the source.
const CHUNK: u64 = 16384;
/// Tensors of a launch: few cost few argument bytes, many fit one launch.
const ROOM: [usize; 2] = [4, 64];
const THREADS: u32 = 256;

/// A dense tensor with the operands that hold it.
struct Tensor {
    operands: Vec<u32>,
    n: u64,
}

/// Launches over tensors of one kind of kernel. `b` counts the chunks before each launch (of eight bytes in the workspace) when asked.
fn launches(
    f: &Facts,
    name: &str,
    body: &str,
    tensors: &[Tensor],
    head: &MultiHead,
    dynamic: bool,
    places: &dyn Fn(u64) -> [Option<Place>; 2],
    chunks: &mut u64,
) -> Vec<Launch> {
    let mut out = Vec::new();
    for part in tensors.chunks(ROOM[1]) {
        let room = if part.len() <= ROOM[0] {
            ROOM[0]
        } else {
            ROOM[1]
        };
        let mut h = *head;
        h.count = part.len() as u64;
        let head_bytes = size_of::<MultiHead>() as u32;
        let mut slots = Vec::new();
        for (field, place) in ["a", "b"].iter().zip(places(*chunks)) {
            let at = MultiHead::FIELDS.iter().find(|(x, _)| x == field);
            if let (Some((_, at)), Some(place)) = (at, place) {
                slots.push(Slot {
                    at: *at as u32,
                    place,
                });
            }
        }
        let mut entries = vec![zero::<MultiTensor>(); room];
        for (i, t) in part.iter().enumerate() {
            entries[i].n = t.n;
            entries[i].first = h.chunks;
            h.chunks += t.n.div_ceil(CHUNK);
            for (k, op) in t.operands.iter().enumerate() {
                slots.push(Slot {
                    at: head_bytes + (i * size_of::<MultiTensor>() + 8 * k) as u32,
                    place: Place::Operand(*op),
                });
            }
        }
        *chunks += h.chunks;
        let mut args = h.bytes().to_vec();
        entries
            .iter()
            .for_each(|e| args.extend_from_slice(e.bytes()));
        let kernel = Kernel::new(
            Family::Multi,
            format!("cw_{name}_{room}"),
            THREADS,
            &format!("MultiArgs<{room}>"),
            &format!("{body}, {room}>"),
        );
        out.push(Launch {
            kernel,
            grid: [blocks(h.chunks, 1, f) as u32, 1, 1],
            block: [THREADS, 1, 1],
            shared: 0,
            args,
            slots,
            dynamic: dynamic.then_some(std::mem::offset_of!(MultiHead, dynamic) as u32),
        });
    }
    out
}

/// `adamw`.
pub(crate) fn adamw(o: &OpRequest<'_>, f: &Facts) -> Answer {
    let r = Adamw::read(o)?;
    let (p, each, master) = (r.params, r.each, r.master);
    let place = |there: bool, i: u32| there.then_some(Place::Operand(i));
    let places = [place(r.coef, 0), place(r.skip, 1)];
    let mut kinds: BTreeMap<(&str, &str), Vec<Tensor>> = BTreeMap::new();
    for (first, w, g) in r.tensors {
        if w.total > 0 {
            kinds
                .entry((c_type(w.dtype), c_type(g.dtype)))
                .or_default()
                .push(Tensor {
                    operands: (first as u32..(first + each) as u32).collect(),
                    n: w.total as u64,
                });
        }
    }
    let mut h: MultiHead = zero();
    let l2 = if p.mode == 1 { p.weight_decay } else { 0.0 };
    h.par[..6].copy_from_slice(&[p.beta1, 1.0 - p.beta1, p.beta2, 1.0 - p.beta2, p.eps, l2]);
    let mut out = Vec::new();
    for ((tp, tg), tensors) in &kinds {
        let name = format!("adamw_{tp}_{tg}_{}", if master { "master" } else { "own" });
        let body = format!("cw_adamw<{tp}, {tg}, {master}");
        out.extend(launches(
            f,
            &name,
            &body,
            tensors,
            &h,
            true,
            &|_| places,
            &mut 0,
        ));
    }
    done(o, 0, out, Dynamic::Adamw(p))
}

/// Operands from 1 on by storage: the dense ones together, the others alone.
#[allow(clippy::type_complexity)]
fn tensors(
    o: &OpRequest<'_>,
    outputs: bool,
) -> Result<(BTreeMap<&'static str, Vec<Tensor>>, Vec<(u32, View)>)> {
    let (mut dense, mut strided) = (BTreeMap::<_, Vec<Tensor>>::new(), Vec::new());
    for i in 1..o.operands.len() {
        let v = if outputs {
            output_strided(o, i, FLOATS)?
        } else {
            input(o, i, FLOATS)?
        };
        if v.total == 0 {
            continue;
        }
        if v.dense() {
            dense.entry(c_type(v.dtype)).or_default().push(Tensor {
                operands: vec![i as u32],
                n: v.total,
            });
        } else {
            strided.push((i as u32, v));
        }
    }
    Ok((dense, strided))
}

/// `multi_scale`.
pub(crate) fn scale_all(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 1..=usize::MAX)?;
    flags(o, o.params::<op::NoParams>()?.flags, 0)?;
    let coef = optional(o, 0, F32)?;
    if let Some(c) = &coef {
        scalar(o, 0, c)?;
    }
    let at = coef.as_ref().map(|_| Place::Operand(0));
    let (dense, strided) = tensors(o, true)?;
    let mut out = Vec::new();
    for (t, list) in &dense {
        out.extend(launches(
            f,
            &format!("scale_{t}"),
            &format!("cw_scale<{t}"),
            list,
            &zero(),
            true,
            &|_| [at, None],
            &mut 0,
        ));
    }
    for (i, v) in &strided {
        // The coefficient as an operand of the tensor's shape that never moves.
        let still = View {
            dtype: DType::F32,
            total: v.total,
            shape: v.shape.clone(),
            stride: vec![0; v.shape.len()],
        };
        let args = [
            Arg::new(v, *i, Use::InOut),
            Arg {
                view: coef.as_ref().map(|_| &still),
                place: Place::Operand(0),
                mode: Use::In,
                c: "float",
            },
        ];
        let w = Work {
            value: "float",
            functor: "ScaleBy",
            name: "scale_by",
            text: "",
        };
        let n = Numbers {
            bits: coef.is_some() as u64,
            dynamic: true,
            ..Numbers::default()
        };
        out.extend(point(f, &w, &v.shape, &args, n));
    }
    done(o, 0, out, Dynamic::Scale)
}

/// Parts of the sum of a strided tensor.
const PARTS: u64 = 256;

/// `multi_sumsq`: a partial sum a chunk, then one block adds them in order.
pub(crate) fn sumsq(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 1..=usize::MAX)?;
    flags(o, o.params::<op::NoParams>()?.flags, 0)?;
    scalar(o, 0, &output(o, 0, F32)?)?;
    let (dense, strided) = tensors(o, false)?;
    let (mut out, mut chunks) = (Vec::new(), 0);
    for (t, list) in &dense {
        out.extend(launches(
            f,
            &format!("sumsq_{t}"),
            &format!("cw_sumsq<{t}"),
            list,
            &zero(),
            false,
            &|before| [None, Some(Place::Workspace(before * 8))],
            &mut chunks,
        ));
    }
    for (i, v) in &strided {
        let mut a: ReduceArgs = zero();
        a.kept.total = 1;
        a.gone = v.walk();
        a.piece = v.total.div_ceil(PARTS).max(CHUNK);
        // Two parts at least, so that partial sums go to the workspace: the second may be empty.
        a.parts = v.total.div_ceil(a.piece).max(2);
        let c = c_type(v.dtype);
        let team = Team::of(CHUNK / GROUP, THREADS, THREADS);
        let k = super::reduce::along(c, "float", op::reduce::SUMSQ, team);
        let slots = [
            ("src", Place::Operand(*i)),
            ("parts_at", Place::Workspace(chunks * 8)),
        ];
        out.push(launch(k, [a.parts, 1, 1], team.threads, 0, &a, &slots));
        chunks += a.parts;
    }
    if chunks > 0 {
        let mut a: FinishArgs = zero();
        a.n = chunks;
        let k = Kernel::new(
            Family::Multi,
            "cw_sum_of_parts".into(),
            1024,
            "FinishArgs",
            "cw_finish_sum",
        );
        let slots = [("out", Place::Operand(0)), ("parts", Place::Workspace(0))];
        out.push(launch(k, [1, 1, 1], 1024, 0, &a, &slots));
    }
    done(o, chunks * 8, out, Dynamic::None)
}

/// `nonfinite_count`: integer sums, so atomics keep it deterministic.
pub(crate) fn nonfinite_count(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 1..=usize::MAX)?;
    flags(o, o.params::<op::NoParams>()?.flags, 0)?;
    scalar(o, 0, &output(o, 0, &[DType::U32])?)?;
    let (dense, strided) = tensors(o, false)?;
    let mut out = Vec::new();
    for (t, list) in &dense {
        out.extend(launches(
            f,
            &format!("nonfinite_{t}"),
            &format!("cw_nonfinite<{t}"),
            list,
            &zero(),
            false,
            &|_| [None, Some(Place::Operand(0))],
            &mut 0,
        ));
    }
    for (i, v) in &strided {
        let mut a: crate::args::HistogramArgs = zero();
        a.from = v.walk();
        let c = c_type(v.dtype);
        let k = Kernel::new(
            Family::Reduce,
            format!("cw_nonfinite_strided_{c}"),
            THREADS,
            "HistogramArgs",
            &format!("cw_nonfinite_strided<{c}>"),
        );
        let slots = [("dst", Place::Operand(0)), ("index", Place::Operand(*i))];
        let grid = [blocks(v.total, THREADS as u64, f), 1, 1];
        out.push(launch(k, grid, THREADS, 0, &a, &slots));
    }
    done(o, 0, out, Dynamic::None)
}
