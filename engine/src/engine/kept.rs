//! The inputs that are kept of units which are run once more before their backward, whole or this rank's part of them ([`crate::kept`]).

use crate::kept::{KEPT_INPUT, KEPT_OVER, kept_by};
use crate::values::Act;
use crossweave_hal::{Stream, Tag};
use crossweave_tensor::{
    Decompositions, Exchange, Groups, KernelCache, Link, Result, Run, Shape, Tensor, UnitDecl,
};
use std::cell::RefCell;
use std::sync::Arc;

/// The inputs of a unit as they are kept in parts.
pub(super) fn in_parts(
    stream: &Stream,
    groups: &dyn Groups,
    unit: &UnitDecl,
    mut ins: Vec<Tensor>,
) -> Result<Act> {
    let hidden = ins.first();
    let Some((hidden, ranks)) = hidden.and_then(|h| Some((h, kept_by(unit, h)?))) else {
        return Ok(Act::Inputs(ins, None));
    };
    let (whole, each) = (*hidden.shape(), hidden.numel() / u64::from(ranks));
    let at = u64::from(groups.at(KEPT_OVER)) * each;
    let own = hidden.view([hidden.numel()]).narrow(0, at, each);
    ins[0] = copied(stream, &own)?;
    Ok(Act::Inputs(ins, Some(whole)))
}

/// A copy of elements that lie end to end, in memory of its own.
fn copied(stream: &Stream, t: &Tensor) -> Result<Tensor> {
    let bytes = t.dtype().bytes(t.numel());
    let memory = stream.device().alloc(stream, bytes, Tag::Activation)?;
    stream.copy(memory.all(), t.region())?;
    Ok(Tensor::dense(Arc::new(memory), 0, [t.numel()], t.dtype()))
}

/// The inputs of a unit again, of which the first is gathered where each rank has kept a part.
pub(super) fn gathered(
    stream: &Stream,
    groups: &dyn Groups,
    (mut ins, whole): (Vec<Tensor>, Option<Shape>),
) -> Result<Vec<Tensor>> {
    let (Some(whole), Some(own)) = (whole, ins.first().cloned()) else {
        return Ok(ins);
    };
    // Nothing is launched.
    let cache = RefCell::new(KernelCache::default());
    let run = Run::new(stream, &Decompositions, &cache);
    let all = run.empty(whole, own.dtype())?;
    let (send, recv) = (&own, &all);
    let on = Link::new(KEPT_INPUT, KEPT_OVER);
    groups.exchange(&run, &on, &[Exchange::AllGather { send, recv }])?;
    ins[0] = all;
    Ok(ins)
}
