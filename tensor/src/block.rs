//! What a user writes: blocks (the unit of gather, recompute, stage and offload) and functions (an op with its own backward).

use crate::env::Env;
use crate::spmd::Spmd;
use crate::{Cx, Result, Tensor, Var};

/// What travels from block to block: the hidden state, and whatever else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flow(pub Vec<Var>);

/// What a block's tape keeps for its backward when the plan asks for selective recompute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Keep {
    /// Everything the backward reads, but what is gathered again ([`Cx::gather_again`]).
    #[default]
    All,
    /// Drop what is cheap to rebuild (norms, activations); the tape re-runs those nodes when the backward asks.
    Cheap,
    /// Everything, gathered values too: for a backward that follows at once.
    Everything,
}

/// A part of a model that runs as one: a transformer layer, the embedding, the head.
///
/// The same inputs must record the same ops in the same order (choices that depend on data go inside a [`Function`]).
pub trait Block: Send + Sync {
    /// Records the forward and returns what travels on. The last block of a training step returns the scalar loss.
    fn forward(&self, cx: &mut Cx<'_>, flow: Flow) -> Result<Flow>;
}

/// An op with a hand-written backward: the way to extend the op set from outside.
pub trait Function: Send + 'static {
    /// Computes the output.
    fn forward(&mut self, env: &Env<'_>, ins: &[&Tensor]) -> Result<Tensor>;
    /// Gradients of the inputs, `None` where there is none. `ins` are the forward's inputs.
    fn backward(
        &self,
        env: &Env<'_>,
        ins: &[&Tensor],
        dout: &Tensor,
    ) -> Result<Vec<Option<Tensor>>>;
    /// Sharding type of the output, or one sentence why the inputs do not fit. Asked in the dry run only.
    fn spmd(&self, ins: &[Spmd]) -> std::result::Result<Spmd, String>;
}
