//! The parts of kept inputs: where the ranks that share layers have one hidden state (no sequence parallelism), each may keep its part of it,
//! flat, and they are gathered when it is used again (`Pa` of Rajbhandari et al. 2020, arXiv 1910.02054, §6.1). What flows beside it is shared by
//! several units, and kept as it is.

use crossweave_tensor::{Axis, Tensor, UnitDecl};

/// The axis whose ranks have one hidden state.
pub(crate) const KEPT_OVER: Axis = Axis::Tp;
/// The gather in messages.
pub(crate) const KEPT_INPUT: &str = "kept input";

/// The ranks of which each can keep an equal part of the hidden state that flows into a unit; none where it has no others, where they have
/// other tokens of it, or where they do not divide it.
pub(crate) fn kept_by(unit: &UnitDecl, hidden: &Tensor) -> Option<u32> {
    let ranks = unit.place.length(KEPT_OVER);
    let alike = ranks > 1 && !unit.hidden_over.contains(KEPT_OVER);
    let divided = hidden.is_dense() && hidden.numel().is_multiple_of(u64::from(ranks));
    (alike && divided && hidden.numel() > 0).then_some(ranks)
}
