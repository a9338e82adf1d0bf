//! Pointwise activations and SwiGLU. Their outputs are cheap: selective recompute drops them.

use super::OpNode;
use crate::env::Env;
use crate::error::{Result, shape_error};
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Tensor};
use crossweave_hal::abi::op;

/// Which function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// HF `gelu_new`, `gelu_pytorch_tanh`.
    GeluTanh,
    /// HF `gelu` (erf).
    GeluErf,
    /// `x sigmoid(x)`.
    Silu,
    /// `max(x, 0)`.
    Relu,
    /// `x sigmoid(1.702 x)`, CLIP's.
    QuickGelu,
    /// Hyperbolic tangent.
    Tanh,
    /// `max(x, 0)^2`.
    Relu2,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `x tanh(log(1 + exp(x)))`.
    Mish,
    /// `GeluErf`, at most 10.
    Gelu10,
}

impl Activation {
    /// The kind of the op that computes it; `None`: a program does.
    fn kind(self) -> Option<u32> {
        match self {
            Activation::GeluTanh => Some(op::activation::GELU_TANH),
            Activation::GeluErf => Some(op::activation::GELU_ERF),
            Activation::Silu => Some(op::activation::SILU),
            Activation::Relu => Some(op::activation::RELU),
            Activation::QuickGelu
            | Activation::Tanh
            | Activation::Relu2
            | Activation::Sigmoid
            | Activation::Mish
            | Activation::Gelu10 => None,
        }
    }
    /// Does an op of its own compute it?
    pub fn is_native(self) -> bool {
        self.kind().is_some()
    }
    fn params(self) -> op::KindParams {
        op::KindParams {
            kind: self.kind().unwrap_or_default(),
            ..Default::default()
        }
    }
}

pub(crate) struct Node {
    pub x: Var,
    pub out: Var,
    pub kind: Activation,
}

pub(crate) struct SwigluNode {
    pub gate: Var,
    pub up: Var,
    pub out: Var,
}

pub(crate) fn run(env: &Env<'_>, x: &Tensor, kind: Activation) -> Result<Tensor> {
    let y = env.run.empty(*x.shape(), x.dtype())?;
    env.run.launch(
        op::ACTIVATION_FWD,
        &[Some(&y), Some(x)],
        kind.params().as_bytes(),
        &[],
    )?;
    Ok(y)
}

pub(crate) fn run_swiglu(env: &Env<'_>, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    let y = env.run.empty(*gate.shape(), gate.dtype())?;
    env.run.launch(
        op::SWIGLU_FWD,
        &[Some(&y.rows()), Some(&gate.rows()), Some(&up.rows())],
        op::NoParams::default().as_bytes(),
        &[],
    )?;
    Ok(y)
}

pub(crate) fn forward(cx: &mut Cx<'_>, x: Var, kind: Activation) -> Result<Var> {
    let y = run(cx.env, cx.val(x)?, kind)?;
    let node = cx.next_node();
    let out = cx.push_val(y, node, Origin::Own, true);
    cx.save(x);
    cx.typed(out, |c| {
        c.same("activation", &[c.vals[x.0 as usize]], false)
    });
    cx.push_node(OpNode::Activation(Node { x, out, kind }));
    Ok(out)
}

pub(crate) fn swiglu(cx: &mut Cx<'_>, gate: Var, up: Var) -> Result<Var> {
    let (g, u) = (cx.val(gate)?, cx.val(up)?);
    if g.shape() != u.shape() {
        return shape_error(format!("swiglu: gate {g:?} with up {u:?}"));
    }
    let y = run_swiglu(cx.env, g, u)?;
    let node = cx.next_node();
    let out = cx.push_val(y, node, Origin::Own, true);
    cx.save(gate);
    cx.save(up);
    cx.typed(out, |c| {
        c.same(
            "swiglu",
            &[c.vals[gate.0 as usize], c.vals[up.0 as usize]],
            false,
        )
    });
    cx.push_node(OpNode::Swiglu(SwigluNode { gate, up, out }));
    Ok(out)
}

impl Node {
    pub fn backward(&self, b: &mut Back<'_, '_>, nodes: &[OpNode]) -> Result<()> {
        let Some(dy) = b.take(self.out) else {
            return Ok(());
        };
        let x = b.val(self.x, nodes)?;
        let dx = if dy.is_unique() && dy.is_dense() && !b.has(self.x) {
            dy.clone()
        } else {
            b.env.run.empty(*x.shape(), x.dtype())?
        };
        b.env.run.launch(
            op::ACTIVATION_BWD,
            &[Some(&dx), Some(&dy), Some(&x)],
            self.kind.params().as_bytes(),
            &[],
        )?;
        drop(dy);
        b.give(self.x, dx)
    }
}

impl SwigluNode {
    pub fn backward(&self, b: &mut Back<'_, '_>, nodes: &[OpNode]) -> Result<()> {
        let Some(dy) = b.take(self.out) else {
            return Ok(());
        };
        let (gate, up) = (b.val(self.gate, nodes)?, b.val(self.up, nodes)?);
        let [dg, du] = b.dests([self.gate, self.up])?;
        let o = [
            Some(&dg.rows()),
            Some(&du.rows()),
            Some(&dy.rows()),
            Some(&gate.rows()),
            Some(&up.rows()),
        ];
        b.env
            .run
            .launch(op::SWIGLU_BWD, &o, op::NoParams::default().as_bytes(), &[])?;
        b.give(self.gate, dg)?;
        b.give(self.up, du)
    }
}
