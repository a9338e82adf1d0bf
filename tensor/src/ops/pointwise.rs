//! Pointwise functions as one `elementwise_program` in each direction: what has no op of its own, and what an activation and a product make
//! together. The programs are written once, when the block is made.

use super::OpNode;
use super::activation::Activation;
use crate::decompose::act;
use crate::env::Env;
use crate::error::{Result, shape_error};
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Tensor};
use crossweave_hal::abi::op::{self, ProgramDyn, ProgramParams, activation};
use crossweave_program::{Ex, Prog};
use std::sync::Arc;

/// A function of one value or of two, with its gradient.
#[derive(Clone)]
pub struct Pointwise {
    name: &'static str,
    inputs: usize,
    fwd: Arc<ProgramParams>,
    bwd: Arc<ProgramParams>,
    /// Where the gradient is a function of the result, so that the input need not be kept: the function over its own operand.
    over: Option<Arc<ProgramParams>>,
    cheap: bool,
}

/// `f(x)` and `f'(x)`.
fn curve<'p>(kind: Activation, x: Ex<'p>) -> (Ex<'p>, Ex<'p>) {
    match kind {
        Activation::GeluTanh => act(activation::GELU_TANH, x),
        Activation::GeluErf => act(activation::GELU_ERF, x),
        Activation::Silu => act(activation::SILU, x),
        Activation::Relu => act(activation::RELU, x),
        Activation::QuickGelu => {
            let s = (x * 1.702).sigmoid();
            let one = x.lit(1.0);
            (x * s, s * (x * 1.702 * (one - s) + 1.0))
        }
        Activation::Tanh => {
            let t = x.tanh();
            (t, x.lit(1.0) - t * t)
        }
        Activation::Relu2 => {
            let r = x.max(x.lit(0.0));
            (r * r, r * 2.0)
        }
        Activation::Sigmoid => {
            let s = x.sigmoid();
            (s, s * (x.lit(1.0) - s))
        }
        Activation::Mish => {
            let (zero, one) = (x.lit(0.0), x.lit(1.0));
            let t = (x.max(zero) + ((-x.abs()).exp() + 1.0).log()).tanh();
            (x * t, t + x * (one - t * t) * x.sigmoid())
        }
        Activation::Gelu10 => {
            let (y, slope) = act(activation::GELU_ERF, x);
            let most = x.lit(10.0);
            (y.min(most), y.less(most) * slope)
        }
    }
}

impl Pointwise {
    /// `f(x)`.
    pub fn curve(kind: Activation) -> Pointwise {
        Pointwise::of_one("activation", true, move |x| curve(kind, x))
    }

    /// `f(gate) * up`: the gated linear unit of an activation (GEGLU, ReGLU).
    pub fn glu(kind: Activation) -> Pointwise {
        let (fwd, bwd) = (Prog::new(3), Prog::new(5));
        let y = curve(kind, fwd.operand(1)).0 * fwd.operand(2);
        let (dy, gate, up) = (bwd.operand(2), bwd.operand(3), bwd.operand(4));
        let (f, slope) = curve(kind, gate);
        Pointwise {
            name: "glu",
            inputs: 2,
            fwd: Arc::new(fwd.finish(&[y])),
            bwd: Arc::new(bwd.finish(&[dy * up * slope, dy * f])),
            over: None,
            cheap: true,
        }
    }

    /// `c x`.
    pub fn scale(c: f64) -> Pointwise {
        let c = c as f32;
        let over = Prog::new(1);
        Pointwise {
            over: Some(Arc::new(over.finish(&[over.operand(0) * c]))),
            ..Pointwise::of_one("scale", false, move |x| (x * c, x.lit(c)))
        }
    }

    /// `cap tanh(x / cap)`.
    pub fn soft_cap(cap: f64) -> Pointwise {
        let cap = cap as f32;
        let (fwd, over, bwd) = (Prog::new(2), Prog::new(1), Prog::new(3));
        let y = (fwd.operand(1) / cap).tanh() * cap;
        let same = (over.operand(0) / cap).tanh() * cap;
        let (dy, t) = (bwd.operand(1), bwd.operand(2) / cap);
        let dx = dy * (t.lit(1.0) - t * t);
        Pointwise {
            name: "soft_cap",
            inputs: 1,
            fwd: Arc::new(fwd.finish(&[y])),
            bwd: Arc::new(bwd.finish(&[dx])),
            over: Some(Arc::new(over.finish(&[same]))),
            cheap: false,
        }
    }

    fn of_one(
        name: &'static str,
        cheap: bool,
        f: impl for<'p> Fn(Ex<'p>) -> (Ex<'p>, Ex<'p>),
    ) -> Pointwise {
        let (fwd, bwd) = (Prog::new(2), Prog::new(3));
        let y = f(fwd.operand(1)).0;
        let dx = bwd.operand(1) * f(bwd.operand(2)).1;
        Pointwise {
            name,
            inputs: 1,
            fwd: Arc::new(fwd.finish(&[y])),
            bwd: Arc::new(bwd.finish(&[dx])),
            over: None,
            cheap,
        }
    }

    /// The result over `ins`, into `y`.
    fn run(&self, env: &Env<'_>, y: &Tensor, ins: &[&Tensor]) -> Result<()> {
        let mut operands = vec![Some(y)];
        operands.extend(ins.iter().map(|t| Some(*t)));
        launch(env, &operands, &self.fwd)
    }
}

fn launch(env: &Env<'_>, operands: &[Option<&Tensor>], p: &ProgramParams) -> Result<()> {
    let none = ProgramDyn::new(&[]);
    let id = op::ELEMENTWISE_PROGRAM;
    env.run.launch(id, operands, p.as_bytes(), none.as_bytes())
}

pub(crate) struct Node {
    pub ins: Vec<Var>,
    pub out: Var,
    f: Pointwise,
}

pub(crate) fn forward(cx: &mut Cx<'_>, f: &Pointwise, ins: &[Var]) -> Result<Var> {
    let values: Vec<Tensor> = ins
        .iter()
        .map(|v| cx.val(*v).cloned())
        .collect::<Result<_>>()?;
    let first = &values[0];
    let alike = |t: &Tensor| t.shape() == first.shape() && t.dtype() == first.dtype();
    if values.len() != f.inputs || !values.iter().all(alike) {
        return shape_error(format!("{}: inputs {values:?}", f.name));
    }
    // What is a function of its result may lie where its input lay.
    let over = f.over.as_ref().filter(|_| first.is_dense());
    let over = over.filter(|_| cx.spoil(ins[0], f.name));
    let (y, origin) = match over {
        Some(over) => {
            launch(cx.env, &[Some(first)], over)?;
            (first.clone(), Origin::Alias { of: ins[0] })
        }
        None => {
            let y = cx.env.run.empty(*first.shape(), first.dtype())?;
            f.run(cx.env, &y, &values.iter().collect::<Vec<_>>())?;
            (y, Origin::Own)
        }
    };
    let node = cx.next_node();
    let out = cx.push_val(y, node, origin, f.cheap);
    match f.over.is_some() {
        true => cx.save(out),
        false => ins.iter().for_each(|v| cx.save(*v)),
    }
    let (name, linear) = (f.name, f.name == "scale");
    cx.typed(out, |c| {
        let types: Vec<_> = ins.iter().map(|v| c.vals[v.0 as usize]).collect();
        c.same(name, &types, linear)
    });
    cx.push_node(OpNode::Pointwise(Node {
        ins: ins.to_vec(),
        out,
        f: f.clone(),
    }));
    Ok(out)
}

impl Node {
    /// The result again, from the inputs.
    pub fn rerun(&self, env: &Env<'_>, ins: &[Tensor]) -> Result<Tensor> {
        let y = env.run.empty(*ins[0].shape(), ins[0].dtype())?;
        self.f.run(env, &y, &ins.iter().collect::<Vec<_>>())?;
        Ok(y)
    }

    pub fn backward(&self, b: &mut Back<'_, '_>, nodes: &[OpNode]) -> Result<()> {
        let Some(dy) = b.take(self.out) else {
            return Ok(());
        };
        let read = if self.f.over.is_some() {
            vec![b.val(self.out, nodes)?]
        } else {
            self.ins
                .iter()
                .map(|v| b.val(*v, nodes))
                .collect::<Result<_>>()?
        };
        let mut grads = Vec::with_capacity(self.ins.len());
        for (i, v) in self.ins.iter().enumerate() {
            grads.push(if b.has(*v) || self.ins[..i].contains(v) {
                let (shape, dtype) = b.meta(*v);
                b.env.run.empty(shape, dtype)?
            } else {
                b.dest(*v)?
            });
        }
        // Programs write densely; slices of a fused product are written aside.
        let mut aside = Vec::with_capacity(grads.len());
        for g in &grads {
            aside.push(match g.is_dense() {
                true => g.clone(),
                false => b.env.run.empty(*g.shape(), g.dtype())?,
            });
        }
        let operands: Vec<Option<&Tensor>> =
            aside.iter().chain([&dy]).chain(&read).map(Some).collect();
        launch(b.env, &operands, &self.f.bwd)?;
        for (v, (g, a)) in self.ins.iter().zip(grads.into_iter().zip(aside)) {
            if !g.is_dense() {
                super::add::copy(b.env, &g, &a)?;
            }
            b.give(*v, g)?;
        }
        Ok(())
    }
}
