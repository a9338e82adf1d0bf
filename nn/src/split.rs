//! Tensor parallelism (Shoeybi et al. 2019, arXiv 1909.08053): how the layers of a model are cut over the ranks of an axis. Which models can
//! be cut over how many says [`crossweave_family::split`].
//!
//! Of attention and of the MLP the first products are cut by outputs (whole heads, equal parts of the inner width) and the last
//! by inputs, so that each takes one all-reduce of the hidden state forward and one backward. Of the vocabulary each rank has rows
//! ([`Vocabulary`]): of the embedding, and of the head, whose loss needs no more of other ranks than a few numbers a token.
//!
//! Norms, dropout and residuals run on every rank, on all tokens; or where a batch says so ([`cuts_tokens`]) on a piece of each row's
//! (sequence parallelism, Korthikanti et al. 2022, arXiv 2205.05198): then a gather stands before the first products and a
//! reduce-scatter behind the last, which together move what an all-reduce does.

use crossweave_family::desc::Model;
pub use crossweave_family::split::{
    SplitError, check, experts, is_causal, meeting, parts_of_experts, rows as context, sequence,
    shares, vocabulary,
};
use crossweave_tensor::{Axis, Cx, Param, Pieces, Place, Result, Unit, Var, Vocabulary};

/// The dim of a linear layer that is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cut {
    /// None: every rank has all of it.
    #[default]
    Not,
    /// Outputs: column-parallel.
    Columns,
    /// Inputs: row-parallel; what ranks give is added.
    Rows,
}

/// The dim of tokens of a hidden state `[B, T, d]`.
const TOKENS: usize = 1;

/// Returns true if ranks have pieces of the tokens of hidden states between units, and all of them within attention and MLP.
pub fn cuts_tokens(cx: &Cx<'_>) -> bool {
    cx.env.batch.hidden_over.contains(Axis::Tp)
}

/// A hidden state of all tokens as it lies between units.
pub fn to_hidden(cx: &mut Cx<'_>, x: Var) -> Result<Var> {
    match cuts_tokens(cx) {
        true => cx.slice(x, Axis::Tp, TOKENS),
        false => Ok(x),
    }
}

/// A hidden state as it lies between units, of all tokens on every rank: for what every rank computes alike.
pub fn to_whole(cx: &mut Cx<'_>, x: Var) -> Result<Var> {
    match cuts_tokens(cx) {
        true => cx.gather_alike(x, Axis::Tp, TOKENS),
        false => Ok(x),
    }
}

/// Gives every rank what all of them have computed of their own tokens, where ranks use other parts of it.
pub fn of_all_tokens(cx: &mut Cx<'_>, x: Var) -> Result<Var> {
    match cuts_tokens(cx) {
        true => cx.gather(x, Axis::Tp, TOKENS),
        false => cx.enter(x, Axis::Tp),
    }
}

impl Cut {
    /// The input of such a layer. What is gathered is not kept for the backward, which gathers it once more.
    pub fn enter(self, cx: &mut Cx<'_>, x: Var) -> Result<Var> {
        match self {
            Cut::Columns if cuts_tokens(cx) => cx.gather_again(x, Axis::Tp, TOKENS),
            Cut::Columns => cx.enter(x, Axis::Tp),
            Cut::Not | Cut::Rows => Ok(x),
        }
    }
    /// Returns the result of such a layer, as hidden states lie between units.
    pub fn reduce(self, cx: &mut Cx<'_>, y: Var) -> Result<Var> {
        match self {
            Cut::Rows if cuts_tokens(cx) => cx.scatter(y, Axis::Tp, TOKENS),
            Cut::Rows => cx.reduce(y, Axis::Tp),
            Cut::Not | Cut::Columns => Ok(y),
        }
    }
}

/// The division of a linear layer over the ranks.
#[derive(Clone, Copy, Default)]
pub struct LinearSplit<'a> {
    /// The dim that is cut.
    pub cut: Cut,
    /// The sizes of fused parts of its outputs, each of which is cut; empty: one.
    pub parts: &'a [u64],
}

impl LinearSplit<'_> {
    /// Cuts a parameter of the layer, given which dims are inputs and outputs.
    pub fn split(&self, u: &mut Unit<'_>, p: Param, [inputs, outputs]: [usize; 2]) -> Param {
        match self.cut {
            Cut::Not => p,
            Cut::Columns if self.parts.len() > 1 => u.split(
                p,
                Axis::Tp,
                outputs as u8,
                Pieces::Fused(self.parts.to_vec()),
            ),
            Cut::Columns => u.split(p, Axis::Tp, outputs as u8, Pieces::One),
            Cut::Rows => u.split(p, Axis::Tp, inputs as u8, Pieces::One),
        }
    }
}

/// Returns the cut of the vocabulary of a model over the tensor-parallel ranks of the mesh; `None`: it is whole on each.
pub(crate) fn rows(model: &Model, place: &Place) -> Option<Vocabulary> {
    let tp = place.length(Axis::Tp).into();
    vocabulary(model, tp).then(|| Vocabulary::new(Axis::Tp, model.vocab, tp))
}
