//! Lesson 1: a function with its own backward, a block that uses it, and a model that trains.
#![forbid(unsafe_code)]

use crossweave_hal::abi::op;
use crossweave_tensor::{
    Block, Builder, Cx, Env, Flow, Function, Init, Param, Result, Spmd, Tensor,
};

/// y = relu(x)², which no op of the table computes: both directions launch ops that are there.
struct SquaredRelu;

impl SquaredRelu {
    /// An op of the table whose function is chosen by `kind`; the output is like the first input.
    fn run(env: &Env<'_>, id: u32, kind: u32, ins: &[&Tensor]) -> Result<Tensor> {
        let y = env.run.empty(*ins[0].shape(), ins[0].dtype())?;
        let params = op::KindParams {
            kind,
            ..Default::default()
        };
        let operands: Vec<_> = [&y]
            .into_iter()
            .chain(ins.iter().copied())
            .map(Some)
            .collect();
        env.run.launch(id, &operands, params.as_bytes(), &[])?;
        Ok(y)
    }
    fn relu(env: &Env<'_>, x: &Tensor) -> Result<Tensor> {
        Self::run(env, op::ACTIVATION_FWD, op::activation::RELU, &[x])
    }
    fn mul(env: &Env<'_>, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        Self::run(env, op::BINARY, op::binary::MUL, &[a, b])
    }
}

impl Function for SquaredRelu {
    fn forward(&mut self, env: &Env<'_>, ins: &[&Tensor]) -> Result<Tensor> {
        let r = Self::relu(env, ins[0])?;
        Self::mul(env, &r, &r)
    }
    // dx = dy · 2 relu(x)
    fn backward(&self, env: &Env<'_>, ins: &[&Tensor], dy: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let r = Self::relu(env, ins[0])?;
        let slope = Self::run(env, op::BINARY, op::binary::ADD, &[&r, &r])?;
        Ok(vec![Some(Self::mul(env, dy, &slope)?)])
    }
    // Elementwise: the output lies over the ranks as the input does.
    fn spmd(&self, ins: &[Spmd]) -> std::result::Result<Spmd, String> {
        Ok(ins[0])
    }
}

struct Embed(Param);
impl Block for Embed {
    fn forward(&self, cx: &mut Cx<'_>, _: Flow) -> Result<Flow> {
        Ok(Flow(vec![cx.embedding(self.0, None)?]))
    }
}

struct Mlp([Param; 3]);
impl Block for Mlp {
    fn forward(&self, cx: &mut Cx<'_>, flow: Flow) -> Result<Flow> {
        let [norm, up, down] = self.0;
        let n = cx.rms_norm(flow.0[0], norm, 1e-6)?;
        let h = cx.linear(n, up, None)?;
        let h = cx.apply(SquaredRelu, &[h])?;
        let h = cx.linear(h, down, None)?;
        Ok(Flow(vec![cx.add(flow.0[0], h)?]))
    }
}

struct Head(Param);
impl Block for Head {
    fn forward(&self, cx: &mut Cx<'_>, flow: Flow) -> Result<Flow> {
        let logits = cx.linear(flow.0[0], self.0, None)?;
        Ok(Flow(vec![cx.cross_entropy(logits)?]))
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let (vocab, dim, normal) = (32, 48, Init::Normal(0.1));
    let mut b = Builder::default();
    b.unit("embed", |u| Embed(u.param("weight", &[vocab, dim], normal)));
    b.unit("mlp", |u| {
        Mlp([
            u.param("norm.weight", &[dim], Init::Ones),
            u.param("up.weight", &[4 * dim, dim], normal),
            u.param("down.weight", &[dim, 4 * dim], normal),
        ])
    });
    b.unit("head", |u| Head(u.param("weight", &[vocab, dim], normal)));
    // Each token decides the next: t -> 5t + 7 (mod 32).
    let tokens: Vec<i32> = (0..128).map(|i| (i * 11) % 32).collect();
    let targets: Vec<i32> = tokens.iter().map(|t| (5 * t + 7) % 32).collect();
    crossweave_examples::train(b, &tokens, &targets, 60, 1e-3)
}
