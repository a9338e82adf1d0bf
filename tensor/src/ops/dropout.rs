//! Dropout keyed by counter: the mask is a function of seed, step, unit, op and the element's place in the *global* batch, so recompute and
//! any number of ranks or micro-batches give the same mask, and nothing is stored. Where ranks have pieces of the rows
//! ([`crate::Batch::hidden_over`], [`crate::Batch::cut_over`]) or columns of the tokens ([`Lies::Columns`]) a piece's elements have the
//! places that they have in the whole value.

use super::OpNode;
use super::add::copy;
use crate::env::Env;
use crate::error::{Result, shape_error};
use crate::rows::Runs;
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Tensor};
use crossweave_hal::DType;
use crossweave_hal::abi::op;
use crossweave_mesh::Axis;
use crossweave_program::Prog;

/// The part of a whole value that a rank has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lies {
    /// A hidden state between units: of each row the tokens that the rank has of those.
    #[default]
    Hidden,
    /// All elements of every token of the batch that is here.
    Tokens,
    /// An equal part of the elements of every token that is here, of which the ranks along an axis have the others in their order.
    Columns(Axis),
}

pub(crate) struct Node {
    pub x: Var,
    pub out: Var,
    mask: Mask,
}

/// A mask: its probability, the number of its op, and what of it is needed.
#[derive(Clone, Copy)]
struct Mask {
    p: f64,
    op_index: u32,
    lies: Lies,
}

/// Elements that one number of the counter gives.
const BLOCK: u64 = 4;

impl Mask {
    /// The key of the elements from one of the step's on.
    fn key(&self, env: &Env<'_>, block: u64) -> op::PhiloxDyn {
        op::PhiloxDyn {
            seed: env.key.seed,
            stream: env.key.stream(self.op_index),
            offset: block,
            ..Default::default()
        }
    }

    fn launch(&self, env: &Env<'_>, y: &Tensor, x: &Tensor, block: u64) -> Result<()> {
        let params = op::DropoutParams {
            p: self.p,
            ..Default::default()
        };
        let (operands, key) = ([Some(y), Some(x), None], self.key(env, block));
        env.run
            .launch(op::DROPOUT, &operands, params.as_bytes(), key.as_bytes())
    }

    /// The runs of tokens of each row that are here, and the tokens of whole rows.
    fn runs(&self, env: &Env<'_>, tokens: u64) -> (Runs, u64) {
        let (batch, groups) = (env.batch, env.groups);
        match self.lies {
            Lies::Hidden => batch.hidden_runs(groups, tokens),
            Lies::Tokens | Lies::Columns(_) => {
                (batch.runs(groups, tokens), batch.whole(groups, tokens))
            }
        }
    }

    /// Writes `x` with the mask into `y`, which may be `x` where [`Mask::may_write_over`].
    fn apply(&self, env: &Env<'_>, y: &Tensor, x: &Tensor) -> Result<()> {
        match self.columns(env) {
            [_, 1] => self.whole_tokens(env, y, x),
            part => self.parts_of_tokens(env, y, x, part),
        }
    }

    /// The place of the rank's columns among equal parts, and how many these are.
    fn columns(&self, env: &Env<'_>) -> [u64; 2] {
        match self.lies {
            Lies::Columns(axis) => [env.groups.at(axis), env.groups.size(axis)].map(u64::from),
            Lies::Hidden | Lies::Tokens => [0, 1],
        }
    }

    fn may_write_over(&self, env: &Env<'_>) -> bool {
        self.columns(env)[1] == 1
    }

    /// One launch when sequences are here as a whole and are whole blocks, else one for each run of tokens of each sequence.
    fn whole_tokens(&self, env: &Env<'_>, y: &Tensor, x: &Tensor) -> Result<()> {
        let [sequences, tokens, width] = sizes(x);
        let (runs, whole) = self.runs(env, tokens);
        let blocks = (whole * width).div_ceil(BLOCK);
        let first = env.key.first_sequence;
        if whole == tokens && (tokens * width).is_multiple_of(BLOCK) {
            return self.launch(env, y, x, first * blocks);
        }
        for s in 0..sequences {
            for (at, [from, len]) in runs.placed() {
                let place = from * width;
                let block = (first + s) * blocks + place / BLOCK;
                let own = |t: &Tensor| {
                    let sequence = t.narrow(0, s, 1);
                    match sequence.shape().rank() {
                        1 => sequence,
                        _ => sequence.narrow(1, at, len),
                    }
                };
                let (y, x) = (own(y), own(x));
                match place % BLOCK {
                    0 => self.launch(env, &y, &x, block)?,
                    // The run begins within a block: what of it comes before is dropped or kept, and not looked at.
                    before => {
                        let all = env.run.zeros([before + x.numel()], x.dtype())?;
                        let own = all.narrow(0, before, x.numel()).view(*x.shape());
                        copy(env, &own, &x)?;
                        self.launch(env, &all, &all, block)?;
                        copy(env, &y, &own)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Parts of tokens: numbers are drawn for whole tokens, of as many at a time as have the elements of a rank's part, and each rank takes
    /// those of its columns. So many launches as ranks, and scratch of the size of the part in f32.
    fn parts_of_tokens(
        &self,
        env: &Env<'_>,
        y: &Tensor,
        x: &Tensor,
        [at, ranks]: [u64; 2],
    ) -> Result<()> {
        let [sequences, tokens, width] = sizes(x);
        let (runs, whole) = self.runs(env, tokens);
        let all = width * ranks;
        let blocks = (whole * all).div_ceil(BLOCK);
        let first = env.key.first_sequence;
        // Rows of the part, and the place of the first element of their tokens in the step.
        let mut pieces = vec![];
        if whole == tokens && (tokens * all).is_multiple_of(BLOCK) {
            pieces.push(([0, sequences * tokens], first * blocks * BLOCK));
        } else {
            for s in 0..sequences {
                let begin = (first + s) * blocks * BLOCK;
                let of = |(here, [from, len]): (u64, [u64; 2])| {
                    ([s * tokens + here, len], begin + from * all)
                };
                pieces.extend(runs.placed().map(of));
            }
        }
        let (x, y) = (x.rows(), y.rows());
        let kept = Prog::new(3);
        let [x1, ones] = [1, 2].map(|i| kept.operand(i));
        let is_dropped = ones.less(ones.lit(0.5));
        let kept = kept.finish(&[is_dropped.choose(x1.lit(0.0), x1 / (1.0 - self.p) as f32)]);
        for ([from, rows], begin) in pieces {
            let most = rows.div_ceil(ranks).max(1);
            for done in (0..rows).step_by(most as usize) {
                let n = most.min(rows - done);
                let place = begin + done * all;
                let before = place % BLOCK;
                let drawn = env.run.empty([before + n * all], DType::F32)?;
                let one = u64::from(1.0f32.to_bits());
                env.run.stream().fill(drawn.region(), one, 4)?;
                self.launch(env, &drawn, &drawn, place / BLOCK)?;
                let own = drawn.strided([n, width], &[all as i64, 1], before + at * width);
                let [y, x] = [&y, &x].map(|t| t.narrow(0, from + done, n));
                let dynamic = op::ProgramDyn::new(&[]);
                env.run.launch(
                    op::ELEMENTWISE_PROGRAM,
                    &[Some(&y), Some(&x), Some(&own)],
                    kept.as_bytes(),
                    dynamic.as_bytes(),
                )?;
            }
        }
        Ok(())
    }
}

/// Sequences, tokens of each that are here, and elements of a token.
fn sizes(x: &Tensor) -> [u64; 3] {
    let dims = x.shape().dims();
    let [sequences, tokens] = [0, 1].map(|i| dims.get(i).copied().unwrap_or(1));
    [sequences, tokens, dims.iter().skip(2).product()]
}

/// Zeroes a fraction `p` of a part of a whole value, scales the rest; nothing outside training.
///
/// # Errors
/// A probability that is none; the device.
pub fn dropout_of(cx: &mut Cx<'_>, x: Var, p: f64, lies: Lies) -> Result<Var> {
    if !(0.0..1.0).contains(&p) {
        return shape_error(format!("dropout: probability {p} is not in [0, 1)"));
    }
    if p == 0.0 || !cx.env.training {
        return Ok(x);
    }
    let xv = cx.val(x)?;
    let y = cx.env.run.empty(*xv.shape(), xv.dtype())?;
    let op_index = cx.op_index();
    let mask = Mask { p, op_index, lies };
    mask.apply(cx.env, &y, xv)?;
    let node = cx.next_node();
    let out = cx.push_val(y, node, Origin::Own, false);
    cx.typed(out, |c| c.same("dropout", &[c.vals[x.0 as usize]], true));
    cx.push_node(OpNode::Dropout(Node { x, out, mask }));
    Ok(out)
}

impl Node {
    pub fn backward(&self, b: &mut Back<'_, '_>) -> Result<()> {
        let Some(dy) = b.take(self.out) else {
            return Ok(());
        };
        let over = self.mask.may_write_over(b.env);
        let dx = if over && dy.is_unique() && dy.is_dense() {
            dy.clone()
        } else {
            b.env.run.empty(*dy.shape(), dy.dtype())?
        };
        self.mask.apply(b.env, &dx, &dy)?;
        drop(dy);
        b.give(self.x, dx)
    }
}
