//! Lesson 1: a function with its own backward, a block that uses it, and a model that trains with it on two ranks.
#![forbid(unsafe_code)]

use crossweave::{Team, Trainer};
use crossweave_hal::abi::op;
use crossweave_tensor::{
    Block, Builder, Cx, Env, Flow, Function, Init, Param, Result, Spmd, Tensor, UnitDecl,
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

/// The unit that holds the block, with the parameters that it names.
fn own(width: u64) -> Vec<UnitDecl> {
    let normal = Init::Normal(0.1);
    let mut b = Builder::default();
    b.unit("mlp", |u| {
        Mlp([
            u.param("norm.weight", &[width], Init::Ones),
            u.param("up.weight", &[4 * width, width], normal),
            u.param("down.weight", &[width, 4 * width], normal),
        ])
    });
    b.finish()
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let config = crossweave_examples::config(&dir.path().join("run"), 60);
    // Embedding and head are the config's model's; what stands between them is the block from above. Ranks shard its parameters like any other.
    let mut trainer = Trainer::from_config(config)
        .set("zero_optimization.stage", 3)
        .ranks(Team::Threads(2))
        .data(crossweave_examples::Chain)
        .units(|mut units| {
            let head = units.len() - 1;
            units.splice(1..head, own(48));
            units
        });
    for _ in 0..trainer.steps()? {
        let record = trainer.step()?;
        if record.step.is_multiple_of(10) {
            println!("step {:3}  loss {:.4}", record.step, record.loss);
        }
    }
    Ok(())
}
