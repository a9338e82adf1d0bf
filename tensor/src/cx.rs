//! What a block's author writes on: each method runs an op, records it, and hands back a [`Var`]. The ops themselves are under [`crate::ops`].

use crate::block::{Function, Keep};
use crate::env::Env;
use crate::error::{Result, shape_error};
use crate::ops::activation::Activation;
use crate::ops::attention::{AttentionExtras, AttentionSpec};
use crate::ops::comm::Kind;
use crate::ops::distill::Distillation;
use crate::ops::dropout::Lies;
use crate::ops::embedding::Lookup;
use crate::ops::norm::NormForm;
use crate::ops::pointwise::Pointwise;
use crate::ops::{self, OpNode};
use crate::spmd::{Check, Spmd, Ty};
use crate::tape::{Origin, Tape, Val, Var};
use crate::{Param, Tensor};
use crossweave_mesh::Axis;

/// Records the forward of one block on one micro-batch.
pub struct Cx<'a> {
    /// What the block may touch.
    pub env: &'a Env<'a>,
    pub(crate) tape: Tape,
    pub(crate) check: Option<Check>,
}

impl<'a> Cx<'a> {
    /// A fresh tape.
    pub fn new(env: &'a Env<'a>) -> Cx<'a> {
        Cx {
            env,
            tape: Tape::for_block(),
            check: None,
        }
    }
    /// A fresh tape that also checks sharding types (dry run).
    pub fn checked(env: &'a Env<'a>, check: Check) -> Cx<'a> {
        Cx {
            env,
            tape: Tape::for_block(),
            check: Some(check),
        }
    }
    /// Ends the forward; see [`Tape`].
    pub fn finish(self, keep: Keep) -> Tape {
        let mut t = self.tape;
        t.seal(keep);
        t
    }
    /// What the dry run notes; nothing outside of one.
    pub fn notes(&self) -> Option<&Check> {
        self.check.as_ref()
    }
    /// The type of a value in a dry run.
    pub fn type_of(&self, v: Var) -> Spmd {
        let vals = self.check.as_ref().map(|c| &c.vals);
        vals.and_then(|t| t.get(v.0 as usize))
            .copied()
            .unwrap_or_default()
    }
    /// Notes where the type of what the last block returns is not that which the engine takes it for: `cut` over axes that cut tokens, where
    /// the shares of a loss are summed (P) and each rank has the logits of its tokens (V), and on every rank (I) over all others.
    pub fn hold_result(&mut self, name: &str, v: Var, cut: Ty) {
        let found = self.type_of(v);
        if let Some(c) = &mut self.check {
            c.hold_result(name, found, cut);
        }
    }
    /// Notes where a value of which each rank of an axis is about to use its own part is not there as a whole (R).
    pub fn hold_whole(&mut self, v: Var, on: Axis) {
        let found = self.type_of(v);
        if let Some(c) = &mut self.check {
            c.step("part of a value", found, on, Ty::R, Ty::R);
        }
    }
    /// Brings a tensor into the block (its gradient is returned by the backward).
    pub fn input(&mut self, t: Tensor) -> Var {
        let v = self.push_val(t, u32::MAX, Origin::Own, false);
        self.typed(v, Check::next_input);
        v
    }
    /// The tensor of a value.
    pub fn val(&self, v: Var) -> Result<&Tensor> {
        match self.tape.tensor(v) {
            Some(_) if self.tape.vals[v.0 as usize].spoiled.is_some() => shape_error(format!(
                "value {} was overwritten in place by {}; use what that op returned",
                v.0,
                self.tape.vals[v.0 as usize].spoiled.unwrap_or_default()
            )),
            Some(t) => Ok(t),
            None => shape_error(format!("value {} does not belong to this block", v.0)),
        }
    }
    /// A parameter of the unit.
    pub fn param(&self, p: Param) -> Result<&'a Tensor> {
        let env = self.env;
        match env.params.get(p.0 as usize) {
            Some(t) => Ok(t),
            None => shape_error(format!(
                "parameter {} is not of this unit, which has {}",
                p.0,
                env.params.len()
            )),
        }
    }

    #[inline]
    pub(crate) fn push_val(
        &mut self,
        t: Tensor,
        producer: u32,
        origin: Origin,
        cheap: bool,
    ) -> Var {
        let (shape, dtype) = (*t.shape(), t.dtype());
        self.tape.vals.push(Val {
            tensor: Some(t),
            shape,
            dtype,
            origin,
            producer,
            saved: false,
            cheap,
            gathered: false,
            spoiled: None,
        });
        if let Some(c) = &mut self.check
            && c.vals.len() < self.tape.vals.len()
        {
            c.vals.resize(self.tape.vals.len(), Default::default());
        }
        Var(self.tape.vals.len() as u32 - 1)
    }
    /// May an op overwrite `v`? Not when it is an input of the block, or when a backward reads the same bytes. When it may, every value
    /// that shows those bytes is marked, and reading it from now on is an error.
    pub(crate) fn spoil(&mut self, v: Var, op: &'static str) -> bool {
        let Some(t) = self.tape.tensor(v).cloned() else {
            return false;
        };
        let overlaps: Vec<usize> = (0..self.tape.vals.len())
            .filter(|i| {
                let other = self.tape.vals[*i].tensor.as_ref();
                other.is_some_and(|o| o.shares(&t))
            })
            .collect();
        let vals = &mut self.tape.vals;
        if overlaps
            .iter()
            .any(|i| vals[*i].saved || vals[*i].producer == u32::MAX)
        {
            return false;
        }
        for i in overlaps {
            vals[i].spoiled = Some(op);
        }
        true
    }
    /// The index the next node gets.
    #[inline]
    pub(crate) fn next_node(&self) -> u32 {
        self.tape.nodes.len() as u32
    }
    #[inline]
    pub(crate) fn push_node(&mut self, n: OpNode) {
        self.tape.nodes.push(n);
    }
    /// Marks what the node's backward reads.
    #[inline]
    pub(crate) fn save(&mut self, v: Var) {
        self.tape.vals[v.0 as usize].saved = true;
    }
    /// Notes the sharding type of `out` in a dry run.
    #[inline]
    pub(crate) fn typed(&mut self, out: Var, f: impl FnOnce(&mut Check) -> crate::Spmd) {
        if let Some(c) = &mut self.check {
            let ty = f(c);
            c.vals[out.0 as usize] = ty;
        }
    }
    /// Number of the op being recorded among those that draw, which is part of the key of its randomness: however a block is cut over ranks
    /// and its products are made, it has as many.
    pub(crate) fn op_index(&self) -> u32 {
        let all = self.tape.nodes.iter();
        all.filter(|n| n.draws()).count() as u32
    }

    // ---- the ops, one line each; see the file of the same name under `ops`

    /// `[B, T]` token ids of the batch to `[B, T, d]`: rows of `table` (+ rows of `pos` by position).
    pub fn embedding(&mut self, table: Param, pos: Option<Param>) -> Result<Var> {
        ops::embedding::forward(self, table, pos, Lookup::default(), None)
    }
    /// The same with a row that does not learn, or positions that begin elsewhere.
    pub fn embedding_as(&mut self, table: Param, pos: Option<Param>, form: Lookup) -> Result<Var> {
        ops::embedding::forward(self, table, pos, form, None)
    }
    /// `y = x W^T (+ b)`, `W [out, in]`.
    pub fn linear(&mut self, x: Var, w: Param, b: Option<Param>) -> Result<Var> {
        ops::linear::forward(self, x, &[w], b.as_slice(), ops::linear::Form::default())
    }
    /// `y = x W (+ b)`, `W [in, out]` (GPT-2's Conv1D).
    pub fn conv1d(&mut self, x: Var, w: Param, b: Option<Param>) -> Result<Var> {
        let form = ops::linear::Form {
            conv1d: true,
            ..Default::default()
        };
        ops::linear::forward(self, x, &[w], b.as_slice(), form)
    }
    /// Several `[out_i, in]` weights declared one after another, as one product; the outputs lie side by side. See [`Cx::split`].
    pub fn linear_fused(&mut self, x: Var, ws: &[Param], bs: &[Param]) -> Result<Var> {
        ops::linear::forward(self, x, ws, bs, ops::linear::Form::default())
    }
    /// Cuts the last dim into pieces, without a copy.
    pub fn split(&mut self, x: Var, sizes: &[u64]) -> Result<Vec<Var>> {
        ops::split::forward(self, x, sizes)
    }
    /// `x` and the learned positions of its places.
    pub fn add_positions(&mut self, x: Var, table: Param, form: Lookup) -> Result<Var> {
        ops::positions::forward(self, x, table, form)
    }
    /// `x` and the first row of a table, at every place.
    pub fn add_first_row(&mut self, x: Var, table: Param) -> Result<Var> {
        ops::positions::first_row(self, x, table)
    }
    /// Pieces of every head `[B, T, heads, width]` as a dense `[B, T, heads width]`.
    pub fn pack(&mut self, x: Var) -> Result<Var> {
        ops::pack::forward(self, x)
    }
    /// Each of the heads of `[B, T, heads width]` so many times, one copy behind the other.
    pub fn repeat_heads(&mut self, x: Var, heads: u64, copies: u64) -> Result<Var> {
        ops::repeat::forward(self, x, heads, copies)
    }
    /// Layer norm over the last dim.
    pub fn layer_norm(&mut self, x: Var, w: Param, b: Option<Param>, eps: f64) -> Result<Var> {
        ops::norm::layer_norm(self, x, w, b, eps, NormForm::default())
    }
    /// The same over each head of the last dim, with one scale and shift of a head's width.
    pub fn layer_norm_as(
        &mut self,
        x: Var,
        w: Param,
        b: Option<Param>,
        eps: f64,
        form: NormForm,
    ) -> Result<Var> {
        ops::norm::layer_norm(self, x, w, b, eps, form)
    }
    /// The same without a shift, with a scale of each head's own: one parameter `[heads, width]`, or one a head.
    pub fn head_norm(&mut self, x: Var, ws: &[Param], eps: f64, heads: u64) -> Result<Var> {
        ops::head_norm::forward(self, x, ws, heads, eps)
    }
    /// RMS norm over the last dim.
    pub fn rms_norm(&mut self, x: Var, w: Param, eps: f64) -> Result<Var> {
        ops::norm::rms_norm(self, x, w, eps, NormForm::default())
    }
    /// The same scaled by `1 + w`, or over each head.
    pub fn rms_norm_as(&mut self, x: Var, w: Param, eps: f64, form: NormForm) -> Result<Var> {
        ops::norm::rms_norm(self, x, w, eps, form)
    }
    /// A pointwise function of one value or two, in one launch each way.
    pub fn pointwise(&mut self, f: &Pointwise, ins: &[Var]) -> Result<Var> {
        ops::pointwise::forward(self, f, ins)
    }
    /// Cuts every head of the last dim into pieces `[B, T, heads, size]`, without a copy.
    pub fn split_heads(&mut self, x: Var, heads: u64, sizes: &[u64]) -> Result<Vec<Var>> {
        ops::split::by_heads(self, x, heads, sizes)
    }
    /// Pointwise activation.
    pub fn activation(&mut self, x: Var, kind: Activation) -> Result<Var> {
        match kind.is_native() {
            true => ops::activation::forward(self, x, kind),
            false => self.pointwise(&Pointwise::curve(kind), &[x]),
        }
    }
    /// A learned bias by distance for [`Cx::attention_with`]: `[H, L]` from a table `[buckets, H]` and the bucket of each of `L` distances.
    pub fn distance_bias(&mut self, table: Param, buckets: &Tensor) -> Result<Var> {
        ops::distance_bias::forward(self, table, buckets)
    }
    /// SiLU, the activation of SwiGLU alone.
    pub fn silu(&mut self, x: Var) -> Result<Var> {
        ops::activation::forward(self, x, Activation::Silu)
    }
    /// `silu(gate) * up`.
    pub fn swiglu(&mut self, gate: Var, up: Var) -> Result<Var> {
        ops::activation::swiglu(self, gate, up)
    }
    /// Rotates `[B, T, heads * D]` in place by `cos, sin [T, R/2]`. `x` must not be used afterwards.
    pub fn rope(
        &mut self,
        x: Var,
        heads: u64,
        cos: &Tensor,
        sin: &Tensor,
        interleaved: bool,
    ) -> Result<Var> {
        ops::rope::forward(self, x, heads, cos, sin, interleaved)
    }
    /// Attention of `q [B, Tq, H D]` over `k, v [B, Tk, Hkv D]` to `[B, Tq, H D]`; heads may be a dim of their own.
    pub fn attention(&mut self, q: Var, k: Var, v: Var, spec: AttentionSpec) -> Result<Var> {
        self.attention_with(q, k, v, spec, AttentionExtras::default())
    }
    /// The same with what is added to the scores.
    pub fn attention_with(
        &mut self,
        q: Var,
        k: Var,
        v: Var,
        spec: AttentionSpec,
        extras: AttentionExtras,
    ) -> Result<Var> {
        match ops::ring::goes_round(self.env.batch) {
            true => ops::ring::forward(self, [q, k, v], spec, extras),
            false => ops::attention::forward(self, q, k, v, spec, extras),
        }
    }
    /// Zeroes a fraction `p` of a hidden state, scales the rest; nothing outside training.
    pub fn dropout(&mut self, x: Var, p: f64) -> Result<Var> {
        ops::dropout::dropout_of(self, x, p, Lies::Hidden)
    }
    /// `a + b`.
    pub fn add(&mut self, a: Var, b: Var) -> Result<Var> {
        ops::add::forward(self, a, b)
    }
    /// `a + b`, written over `b` when no backward reads it: the usual end of a residual branch. `b` must not be used afterwards.
    pub fn add_into(&mut self, a: Var, b: Var) -> Result<Var> {
        ops::add::forward_into(self, a, b)
    }
    /// Mean cross-entropy of `logits [B, T, V]` against the batch's targets, a scalar in f32. Of fewer logits than targets they are those of
    /// the last columns, and the others count as predictions that do not count.
    pub fn cross_entropy(&mut self, logits: Var) -> Result<Var> {
        ops::xent::forward(self, logits)
    }
    /// The loss of a student beside a teacher's logits, which have no gradient.
    pub fn distilled(&mut self, logits: Var, teacher: Var, how: &Distillation) -> Result<Var> {
        ops::distill::forward(self, [logits, teacher], how)
    }
    /// Does the batch carry targets (training, validation) or not (generation)?
    pub fn has_targets(&self) -> bool {
        self.env.batch.targets.is_some()
    }
    /// I -> R; backward all-reduces.
    pub fn enter(&mut self, x: Var, on: Axis) -> Result<Var> {
        ops::comm::forward(self, x, on, Kind::Enter)
    }
    /// P -> I by an all-reduce; backward is the identity. `x` must not be used afterwards.
    pub fn reduce(&mut self, x: Var, on: Axis) -> Result<Var> {
        ops::comm::forward(self, x, on, Kind::Reduce)
    }
    /// V -> R: the ranks' pieces of a dim, one behind the other; backward reduce-scatters.
    pub fn gather(&mut self, x: Var, on: Axis, dim: usize) -> Result<Var> {
        let again = false;
        ops::comm::forward(self, x, on, Kind::Gather { dim, again })
    }
    /// The same, not kept for the backward, which gathers it once more where it reads it.
    pub fn gather_again(&mut self, x: Var, on: Axis, dim: usize) -> Result<Var> {
        let again = true;
        ops::comm::forward(self, x, on, Kind::Gather { dim, again })
    }
    /// P -> V: this rank's piece of a dim of the sum, by a reduce-scatter; backward all-gathers.
    pub fn scatter(&mut self, x: Var, on: Axis, dim: usize) -> Result<Var> {
        ops::comm::forward(self, x, on, Kind::Scatter { dim })
    }
    /// I -> V: this rank's piece of a dim; backward all-gathers.
    pub fn slice(&mut self, x: Var, on: Axis, dim: usize) -> Result<Var> {
        ops::comm::forward(self, x, on, Kind::Slice { dim })
    }
    /// V -> I: the ranks' pieces of a dim, for what all of them compute alike; backward takes this rank's piece.
    pub fn gather_alike(&mut self, x: Var, on: Axis, dim: usize) -> Result<Var> {
        ops::comm::forward(self, x, on, Kind::GatherAlike { dim })
    }
    /// V -> V: each rank gets its piece of dim `split` from every other, one behind the other along dim `join`; backward is the
    /// opposite exchange.
    pub fn all_to_all(&mut self, x: Var, on: Axis, [split, join]: [usize; 2]) -> Result<Var> {
        self.all_to_all_within(x, on, 0, [split, join])
    }
    /// The same among `within` consecutive ranks; 0: all.
    pub fn all_to_all_within(
        &mut self,
        x: Var,
        on: Axis,
        within: u32,
        [split, join]: [usize; 2],
    ) -> Result<Var> {
        let kind = Kind::AllToAll {
            split,
            join,
            within,
        };
        ops::comm::forward(self, x, on, kind)
    }
    /// V -> V: what the rank `by` places before this one has, around the axis; backward sends as far the other way.
    pub fn shift(&mut self, x: Var, on: Axis, by: i32) -> Result<Var> {
        ops::comm::forward(self, x, on, Kind::Shift { by })
    }
    /// A user's function.
    pub fn apply<F: Function>(&mut self, f: F, ins: &[Var]) -> Result<Var> {
        ops::custom::forward(self, Box::new(f), ins)
    }
}
