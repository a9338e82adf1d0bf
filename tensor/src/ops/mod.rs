//! One file per op: shape rule, forward, backward, sharding type. Builtin ops are plain enum variants; only [`custom`] boxes.

pub mod activation;
pub mod add;
pub mod attention;
pub mod balance;
pub mod capacity;
pub mod comm;
pub mod custom;
pub mod distance_bias;
pub mod distill;
pub mod dropout;
pub mod embedding;
pub mod experts;
pub mod head_norm;
pub mod images;
mod launch;
pub mod linear;
pub mod norm;
pub mod norm_over;
pub mod pack;
pub mod pair;
pub mod pointwise;
pub mod positions;
pub mod repeat;
pub mod ring;
mod ring_parts;
pub mod rope;
pub mod routing;
mod slots;
pub mod split;
pub mod spread;
pub mod vocabulary;
mod vocabulary_loss;
pub mod xent;

use crate::Tensor;
use crate::env::Env;
use crate::error::{Result, shape_error};
use crate::tape::{Back, Var};

/// A recorded op.
pub(crate) enum OpNode {
    Embedding(embedding::Node),
    Linear(linear::Node),
    Split(split::Node),
    Pack(pack::Node),
    Repeat(repeat::Node),
    Images(images::Node),
    Positions(positions::Node),
    Norm(norm::Node),
    NormOver(norm_over::Node),
    HeadNorm(head_norm::Node),
    Pointwise(pointwise::Node),
    Activation(activation::Node),
    Swiglu(activation::SwigluNode),
    Rope(rope::Node),
    Attention(attention::Node),
    Ring(Box<ring::Node>),
    DistanceBias(distance_bias::Node),
    Dropout(dropout::Node),
    Add(add::Node),
    Xent(xent::Node),
    Transition(comm::Node),
    Experts(Box<experts::Node>),
    Spread(Box<spread::Node>),
    Balance(balance::Node),
    Custom(custom::Node),
}

impl OpNode {
    /// Adds the gradients of the inputs, given those of the outputs. `nodes` are the earlier ones, for rebuilding values.
    pub fn backward(&self, b: &mut Back<'_, '_>, nodes: &[OpNode]) -> Result<()> {
        match self {
            OpNode::Embedding(n) => n.backward(b),
            OpNode::Linear(n) => n.backward(b, nodes),
            OpNode::Split(n) => n.backward(b),
            OpNode::Pack(n) => n.backward(b),
            OpNode::Repeat(n) => n.backward(b),
            OpNode::Images(n) => n.backward(b),
            OpNode::Positions(n) => n.backward(b),
            OpNode::Norm(n) => n.backward(b, nodes),
            OpNode::NormOver(n) => n.backward(b, nodes),
            OpNode::HeadNorm(n) => n.backward(b, nodes),
            OpNode::Pointwise(n) => n.backward(b, nodes),
            OpNode::Activation(n) => n.backward(b, nodes),
            OpNode::Swiglu(n) => n.backward(b, nodes),
            OpNode::Rope(n) => n.backward(b),
            OpNode::Attention(n) => n.backward(b, nodes),
            OpNode::Ring(n) => n.backward(b, nodes),
            OpNode::DistanceBias(n) => n.backward(b),
            OpNode::Dropout(n) => n.backward(b),
            OpNode::Add(n) => n.backward(b),
            OpNode::Xent(n) => n.backward(b, nodes),
            OpNode::Transition(n) => n.backward(b, nodes),
            OpNode::Experts(n) => n.backward(b, nodes),
            OpNode::Spread(n) => n.backward(b),
            OpNode::Balance(n) => n.backward(b, nodes),
            OpNode::Custom(n) => n.backward(b, nodes),
        }
    }

    /// Does it draw random numbers, where it is asked to drop something?
    pub fn draws(&self) -> bool {
        matches!(
            self,
            OpNode::Dropout(_) | OpNode::Attention(_) | OpNode::Ring(_)
        )
    }

    /// Values read.
    pub fn inputs(&self) -> Vec<Var> {
        match self {
            OpNode::Embedding(_) | OpNode::DistanceBias(_) => vec![],
            OpNode::Linear(n) => vec![n.x],
            OpNode::Split(n) => vec![n.x],
            OpNode::Pack(n) => vec![n.x],
            OpNode::Repeat(n) => vec![n.x],
            OpNode::Images(n) => vec![n.x],
            OpNode::Positions(n) => vec![n.x],
            OpNode::Norm(n) => vec![n.x],
            OpNode::NormOver(n) => vec![n.x],
            OpNode::HeadNorm(n) => vec![n.x],
            OpNode::Pointwise(n) => n.ins.clone(),
            OpNode::Activation(n) => vec![n.x],
            OpNode::Swiglu(n) => vec![n.gate, n.up],
            OpNode::Rope(n) => vec![n.x],
            OpNode::Attention(n) => n.inputs(),
            OpNode::Ring(n) => n.inputs(),
            OpNode::Dropout(n) => vec![n.x],
            OpNode::Add(n) => vec![n.a, n.b],
            OpNode::Xent(n) => vec![n.logits],
            OpNode::Transition(n) => vec![n.x],
            OpNode::Experts(n) => n.ins.clone(),
            OpNode::Spread(n) => vec![n.x],
            OpNode::Balance(n) => vec![n.x],
            OpNode::Custom(n) => n.ins.clone(),
        }
    }

    /// Values made: their memory is given up once the node's backward is past. A split's pieces are in its own list.
    pub fn outputs(&self) -> [Option<Var>; 1] {
        [match self {
            OpNode::Embedding(n) => Some(n.out),
            OpNode::Linear(n) => Some(n.out),
            OpNode::Split(_) => None,
            OpNode::Pack(n) => Some(n.out),
            OpNode::Repeat(n) => Some(n.out),
            OpNode::Images(n) => Some(n.out),
            OpNode::Positions(n) => Some(n.out),
            OpNode::Norm(n) => Some(n.out),
            OpNode::NormOver(n) => Some(n.out),
            OpNode::HeadNorm(n) => Some(n.out),
            OpNode::Pointwise(n) => Some(n.out),
            OpNode::Activation(n) => Some(n.out),
            OpNode::Swiglu(n) => Some(n.out),
            OpNode::Rope(n) => Some(n.out),
            OpNode::Attention(n) => Some(n.out),
            OpNode::Ring(n) => Some(n.out),
            OpNode::DistanceBias(n) => Some(n.out),
            OpNode::Dropout(n) => Some(n.out),
            OpNode::Add(n) => Some(n.out),
            OpNode::Xent(n) => Some(n.out),
            OpNode::Transition(n) => Some(n.out),
            OpNode::Experts(n) => Some(n.out),
            OpNode::Spread(n) => Some(n.out),
            OpNode::Balance(n) => Some(n.out),
            OpNode::Custom(n) => Some(n.out),
        }]
    }

    /// Makes the output anew from the inputs; only for ops whose outputs are marked cheap.
    pub fn rerun(&self, env: &Env<'_>, ins: &[Tensor]) -> Result<Tensor> {
        match self {
            OpNode::Norm(n) => n.rerun(env, &ins[0]),
            OpNode::NormOver(n) => n.rerun(env, &ins[0]),
            OpNode::HeadNorm(n) => n.rerun(env, &ins[0]),
            OpNode::Pointwise(n) => n.rerun(env, ins),
            OpNode::Activation(n) => activation::run(env, &ins[0], n.kind),
            OpNode::Transition(n) => n.rerun(env, &ins[0]),
            OpNode::Experts(n) => n.rerun(env, &ins[0]),
            OpNode::Swiglu(_) => activation::run_swiglu(env, &ins[0], &ins[1]),
            _ => shape_error(
                "backward: a dropped value belongs to an op that is not cheap to re-run",
            ),
        }
    }
}
