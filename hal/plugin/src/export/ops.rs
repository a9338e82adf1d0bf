//! `crossweave.ops/1` from the [`Ops`] trait.

use super::Declared;
use super::wire::*;
use crate::{Backend, Code, Dyn, OpRequest, Ops, fail};
use crossweave_abi as abi;
use crossweave_abi::{Handle, Span};
use std::ffi::c_void;

type O<B> = <B as Backend>::Ops;
type Prepared<B> = <O<B> as Ops<B>>::Prepared;

/// Launches with up to this many operands need no allocation here.
const INLINE: usize = 16;

slot!(op_prepare(d: Handle, op: *const abi::OpDesc, out: *mut Handle, plan: *mut abi::OpPlan) |b| {
    writable(out, "the op")?;
    writable(plan, "the plan")?;
    let x = desc(op, "op descriptor")?;
    let operands = desc_array(x.operands, x.n_operands, "layout")?;
    if let Some(i) = operands.iter().position(|l| l.rank > 8) {
        return fail(Code::Invalid, format!("operand {i} has rank {}, at most 8 fit", operands[i].rank));
    }
    let op = OpRequest {
        id: x.op,
        revision: x.op_revision,
        operands: &operands,
        math_flags: x.math_flags,
        params: slice(x.params.cast(), x.params_bytes, "op params")?,
    };
    let (prepared, p) = <O<B>>::prepare(b, obj(d, "device")?, &op)?;
    put_sized(plan, "the plan", abi::OpPlan {
        size: 0,
        tier: p.tier,
        workspace_bytes: p.workspace_bytes,
        est_ns: p.est_ns,
        error_class: p.error_class,
    })?;
    put(out, "the op", boxed(prepared))?
});

slot!(op_launch(
    op: Handle,
    s: Handle,
    operands: *const Span,
    n: u32,
    workspace: Span,
    dynamic: *const c_void,
    dyn_bytes: u64,
) |b| {
    let raw = slice(operands, n as u64, "operands")?;
    let mut inline = [None; INLINE];
    let many: Vec<_>;
    let spans = if raw.len() <= INLINE {
        for (to, from) in inline.iter_mut().zip(raw) {
            *to = maybe_span::<B>(*from);
        }
        &inline[..raw.len()]
    } else {
        many = raw.iter().map(|x| maybe_span::<B>(*x)).collect();
        &many[..]
    };
    let dynamic = Dyn(slice(dynamic.cast(), dyn_bytes, "dyn params")?);
    let prepared = obj::<Prepared<B>>(op, "op")?;
    <O<B>>::launch(b, prepared, obj(s, "stream")?, spans, maybe_span::<B>(workspace), dynamic)?
});

/// The table.
pub(super) const fn table<B: Declared>() -> abi::OpsApi {
    abi::OpsApi {
        size: size_of::<abi::OpsApi>() as u32,
        minor: 0,
        op_prepare: Some(op_prepare::<B>),
        op_launch: Some(op_launch::<B>),
        op_release: Some(drop_as::<Prepared<B>>),
    }
}
