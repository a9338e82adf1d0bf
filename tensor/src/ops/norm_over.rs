//! RMS norm over a last dim of which the ranks of an axis have equal parts, with their parts of its scale: the sums of squares of a row are
//! added over the ranks forward, and the sums of its gradient times its value backward, one f32 a row each.
//!
//! With `r = (S / N + eps)^-1/2` of the sum `S` over all `N` elements of a row: `y = r w x`, and with `c = sum w x dy` over all of them
//! `dx = r w dy - r^3 c x / N`, `dw = sum over rows of r x dy`.

use super::OpNode;
use crate::env::Env;
use crate::error::{Result, shape_error};
use crate::spmd::Ty;
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Param, Tensor};
use crossweave_hal::DType;
use crossweave_hal::abi::op::{self, ProgramDyn, ProgramParams};
use crossweave_mesh::Axis;
use crossweave_program::Prog;
use std::sync::Arc;

/// A norm over parts of ranks.
#[derive(Clone)]
pub struct RmsNormOver {
    axis: Axis,
    eps: f64,
    programs: Arc<Programs>,
}

/// Programs over rows, written once. Scalars of the first: 1/N and eps; of `input`: 1/N.
struct Programs {
    deviation: ProgramParams,
    output: ProgramParams,
    product: ProgramParams,
    input: ProgramParams,
}

impl Programs {
    fn new() -> Programs {
        let deviation = Prog::new(2);
        let sum = deviation.operand(1);
        let root = (sum * sum.scalar(0) + sum.scalar(1)).sqrt();
        let deviation = deviation.finish(&[sum.lit(1.0) / root]);
        let output = Prog::new(4);
        let [x, r, w] = [1, 2, 3].map(|i| output.operand(i));
        let output = output.finish(&[x * r * w]);
        let product = Prog::new(4);
        let [a, b, c] = [1, 2, 3].map(|i| product.operand(i));
        let product = product.finish(&[a * b * c]);
        let input = Prog::new(6);
        let [dy, x, r, w, c] = [1, 2, 3, 4, 5].map(|i| input.operand(i));
        let mean = c * c.scalar(0) * r * r;
        let input = input.finish(&[(dy * w - x * mean) * r]);
        Programs {
            deviation,
            output,
            product,
            input,
        }
    }
}

pub(crate) struct Node {
    pub x: Var,
    pub out: Var,
    w: Param,
    norm: RmsNormOver,
    /// The reciprocal deviation of each row, over all ranks.
    rstd: Tensor,
}

/// The sum in messages.
const SUM: &str = "sum of squares";
const ADJOINT: &str = "sum of a norm's gradient";

fn program(env: &Env<'_>, p: &ProgramParams, operands: &[&Tensor], scalars: &[f32]) -> Result<()> {
    let operands: Vec<_> = operands.iter().map(|t| Some(*t)).collect();
    let scalars = ProgramDyn::new(scalars);
    let id = op::ELEMENTWISE_PROGRAM;
    env.run
        .launch(id, &operands, p.as_bytes(), scalars.as_bytes())
}

/// Reduces the dims of `axes` (bits) of a matrix into `dst`.
fn reduce(env: &Env<'_>, kind: u32, axes: u32, dst: &Tensor, src: &Tensor) -> Result<()> {
    let p = op::ReduceParams {
        kind,
        axes,
        ..Default::default()
    };
    let operands = [Some(dst), Some(src)];
    env.run.launch(op::REDUCE, &operands, p.as_bytes(), &[])
}

/// A number of each row, and one of each column, in every place of `n` rows of a width.
fn of_rows(t: &Tensor, width: u64) -> Tensor {
    t.strided([t.numel(), width], &[1, 0], 0)
}
fn of_columns(t: &Tensor, rows: u64) -> Tensor {
    t.strided([rows, t.numel()], &[0, 1], 0)
}

impl RmsNormOver {
    /// A norm over what the ranks of an axis have together, with `eps` added to the mean of squares.
    pub fn new(axis: Axis, eps: f64) -> RmsNormOver {
        RmsNormOver {
            axis,
            eps,
            programs: Arc::new(Programs::new()),
        }
    }

    /// Elements of a row on all ranks.
    fn all(&self, env: &Env<'_>, x: &Tensor) -> f64 {
        x.shape().last() as f64 * f64::from(env.groups.size(self.axis))
    }

    /// Adds what the ranks have.
    fn summed(&self, env: &Env<'_>, op: &'static str, t: &Tensor) -> Result<()> {
        match env.groups.size(self.axis) {
            1 => Ok(()),
            _ => env.groups.all_reduce(env.run, op, self.axis, t),
        }
    }

    /// Norms `x [.., n]` with this rank's part `w [n]` of the scale.
    ///
    /// # Errors
    /// Shapes that do not fit; the ranks; the device.
    pub fn run(&self, cx: &mut Cx<'_>, x: Var, w: Param) -> Result<Var> {
        let (xv, wv, env) = (cx.val(x)?.clone(), cx.param(w)?, cx.env);
        if wv.numel() != xv.shape().last() {
            return shape_error(format!("rms_norm: input {xv:?} with weight {wv:?}"));
        }
        let (rows, n) = (xv.rows(), xv.shape().rows());
        let sums = env.run.empty([n], DType::F32)?;
        reduce(env, op::reduce::SUMSQ, 0b10, &sums.view([n, 1]), &rows)?;
        self.summed(env, SUM, &sums)?;
        let rstd = env.run.empty([n], DType::F32)?;
        let scalars = [(1.0 / self.all(env, &xv)) as f32, self.eps as f32];
        program(env, &self.programs.deviation, &[&rstd, &sums], &scalars)?;
        let mut node = Node {
            x,
            out: x,
            w,
            norm: self.clone(),
            rstd,
        };
        let y = node.rerun(env, &xv)?;
        let made = cx.next_node();
        node.out = cx.push_val(y, made, Origin::Own, true);
        cx.save(x);
        let (out, axis) = (node.out, self.axis);
        cx.typed(out, |c| {
            let x = c.vals[x.0 as usize];
            c.with_params("rms_norm", x, &[w.0.into()], None);
            // The deviation is that of all ranks behind the sum, and each then uses it for its own part.
            let deviation = c.summed_once(SUM, x, axis);
            let deviation = c.step(SUM, deviation, axis, Ty::I, Ty::R);
            c.same("rms_norm", &[x, deviation], false)
        });
        cx.push_node(OpNode::NormOver(node));
        Ok(out)
    }
}

impl Node {
    /// The output from the input and the deviations that are known.
    pub fn rerun(&self, env: &Env<'_>, x: &Tensor) -> Result<Tensor> {
        let y = env.run.empty(*x.shape(), x.dtype())?;
        let (n, width) = (x.shape().rows(), x.shape().last());
        let (r, w) = (
            of_rows(&self.rstd, width),
            of_columns(&env.params[self.w.0 as usize], n),
        );
        let operands = [&y.rows(), &x.rows(), &r, &w];
        program(env, &self.norm.programs.output, &operands, &[])?;
        Ok(y)
    }

    pub fn backward(&self, b: &mut Back<'_, '_>, nodes: &[OpNode]) -> Result<()> {
        let Some(dy) = b.take(self.out) else {
            return Ok(());
        };
        let (env, x) = (b.env, b.val(self.x, nodes)?);
        let (n, width) = (x.shape().rows(), x.shape().last());
        let (r, w) = (
            of_rows(&self.rstd, width),
            of_columns(&env.params[self.w.0 as usize], n),
        );
        let (dy, x2) = (dy.rows(), x.rows());
        let product = env.run.empty([n, width], DType::F32)?;
        let of = &self.norm.programs;
        program(env, &of.product, &[&product, &dy, &x2, &w], &[])?;
        let sums = env.run.empty([n], DType::F32)?;
        reduce(env, op::reduce::SUM, 0b10, &sums.view([n, 1]), &product)?;
        self.norm.summed(env, ADJOINT, &sums)?;
        let p = self.w.0 as usize;
        if env.grads.wants(p) {
            program(env, &of.product, &[&product, &dy, &x2, &r], &[])?;
            let dw = env.run.empty([width], DType::F32)?;
            reduce(env, op::reduce::SUM, 0b01, &dw.view([1, width]), &product)?;
            env.grads.take(env.run, p, &dw)?;
        }
        // Dense: where it goes may be a slice of the gradient of a fused product, which takes it by a copy.
        let dx = env.run.empty(*x.shape(), x.dtype())?;
        let (sums, by_all) = (of_rows(&sums, width), 1.0 / self.norm.all(env, &x));
        let operands = [&dx.rows(), &dy, &x2, &r, &w, &sums];
        program(env, &of.input, &operands, &[by_all as f32])?;
        b.give(self.x, dx)
    }
}
