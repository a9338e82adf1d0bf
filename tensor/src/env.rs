//! What a block may touch while it runs: the launcher, its parameters and gradients, its batch, its random key, its groups.

use crate::error::Result;
use crate::groups::Groups;
use crate::rows::{RowCut, Runs};
use crate::{Run, Tensor, shape_error};
use crossweave_hal::DType;
use crossweave_hal::abi::op;
use crossweave_mesh::AxisSet;
use std::cell::Cell;
use std::rc::Rc;

/// Key of counter-based randomness (Philox, Salmon et al. 2011): recompute and any mesh give the same numbers, and no state is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RngKey {
    /// Seed of the run.
    pub seed: u64,
    /// Optimizer step.
    pub step: u64,
    /// Unit of the model.
    pub unit: u32,
    /// Index of this micro-batch's first sequence in the step's global batch.
    pub first_sequence: u64,
}

impl RngKey {
    /// The philox stream of op number `op` of the block: step, unit and op must not collide.
    pub fn stream(&self, op: u32) -> u64 {
        (self.step << 28) ^ ((self.unit as u64) << 12) ^ op as u64
    }
}

/// The target of a prediction that does not count, as PyTorch's cross entropy has it.
pub const IGNORED: i64 = -100;

/// Data of one micro-batch on the device.
#[derive(Clone, Default)]
pub struct Batch {
    /// Token ids `[B, T]`; -1 where a feature of an image stands.
    pub tokens: Option<Tensor>,
    /// Next-token targets `[B, T]`.
    pub targets: Option<Tensor>,
    /// Targets of [`IGNORED`] count neither in the loss nor in its gradient. Without this every target is a token.
    pub ignores: bool,
    /// Where several documents share a row: their cumulative lengths, i32 `[B, n + 1]`, each row from 0 to T. Attention then keeps within them.
    pub segments: Option<Tensor>,
    /// Position of every token in its document, i32 `[B, T]`; absent, positions are counted from the start of the row.
    pub positions: Option<Tensor>,
    /// Patches of images, f32 `[B images, patches, values]`.
    pub images: Option<Tensor>,
    /// Which feature of all images stands at a token, i32 `[B, T]`; -1: none.
    pub places: Option<Tensor>,
    /// The axes whose ranks have the other tokens of the same rows: of each row this rank has some.
    pub cut_over: AxisSet,
    /// Which tokens these are, and how attention meets the others.
    pub rows: RowCut,
    /// Where rows are cut and hold several documents, the ends of these as parts of attention have them, i32 `[B, n + 1]` each. Where keys are
    /// gathered ([`crate::Meeting::Gather`]) two for each run of the tokens that are here ([`Batch::runs`]): of the queries in it, and of their
    /// keys in the row. Where keys go around a ring, one for each run of each place of the ring.
    pub run_segments: Vec<Tensor>,
    /// The axes over whose ranks the tokens of hidden states between units are cut (sequence parallelism): the batch has whole rows on
    /// each, and of the hidden state of each row a rank has a piece.
    pub hidden_over: AxisSet,
    /// Text that is continued: experts take every token that chooses them, whatever their capacity is in training.
    pub continues: bool,
}

impl Batch {
    /// The place of this rank among those of some axes, and how many they are.
    fn among(axes: AxisSet, groups: &dyn Groups) -> [u64; 2] {
        axes.iter().fold([0, 1], |[at, all], axis| {
            let n = u64::from(groups.size(axis));
            [at * n + u64::from(groups.at(axis)), all * n]
        })
    }
    /// The piece of hidden states that is here, of how many that the tokens which are here are cut into.
    pub(crate) fn hidden_piece(&self, groups: &dyn Groups) -> [u64; 2] {
        Self::among(self.hidden_over, groups)
    }
    /// Tokens of the whole rows of which `t` are here.
    pub fn whole(&self, groups: &dyn Groups, t: u64) -> u64 {
        t * Self::among(self.cut_over, groups)[1]
    }
    /// The tokens of the whole rows that are here, `t` of each.
    pub fn runs(&self, groups: &dyn Groups, t: u64) -> Runs {
        let place = Self::among(self.cut_over, groups);
        self.rows.layout.runs(place, t * place[1])
    }
    /// The same of hidden states between units, which may be cut further ([`Batch::hidden_over`]), and the tokens of whole rows.
    pub(crate) fn hidden_runs(&self, groups: &dyn Groups, t: u64) -> (Runs, u64) {
        let [piece, pieces] = self.hidden_piece(groups);
        let here = t * pieces;
        let runs = self.runs(groups, here).part(piece * t, t);
        (runs, self.whole(groups, here))
    }
    /// Predictions of the whole rows of which `n` are here: what a mean over them is divided by. The sum of the ranks' shares is the mean.
    pub(crate) fn predictions(&self, groups: &dyn Groups, n: u64) -> u64 {
        self.whole(groups, n)
    }
    /// [`Batch::segments`] of `b` rows.
    pub(crate) fn segments_of(&self, b: u64) -> Result<Option<&Tensor>> {
        match &self.segments {
            Some(cu)
                if cu.dtype() != DType::I32
                    || !matches!(*cu.shape().dims(), [n, ends] if n == b && ends > 0) =>
            {
                shape_error(format!(
                    "attention: the batch's segments are {cu:?}; give cumulative lengths i32 [{b}, documents + 1]"
                ))
            }
            cu => Ok(cu.as_ref()),
        }
    }
    /// [`Batch::positions`] of `b` rows of `t` tokens.
    pub(crate) fn positions_of(&self, op: &str, [b, t]: [u64; 2]) -> Result<Option<&Tensor>> {
        match &self.positions {
            Some(at) if at.dtype() != DType::I32 || *at.shape().dims() != [b, t] => {
                shape_error(format!(
                    "{op}: the batch's positions are {at:?}; give i32 [{b}, {t}], one for each token"
                ))
            }
            at => Ok(at.as_ref()),
        }
    }
}

/// Where weight gradients go: views of the units' flat gradients, in the dtype of the gradient (f32 by default).
///
/// The first write of a step overwrites, later ones add, so that no step begins by clearing gigabytes.
pub struct GradSink<'a> {
    views: &'a [Tensor],
    written: &'a [Rc<Cell<bool>>],
}

impl<'a> GradSink<'a> {
    /// `views[p]` and `written[p]` belong to parameter `p`; a flag that is set says that there is a gradient to add to.
    pub fn new(views: &'a [Tensor], written: &'a [Rc<Cell<bool>>]) -> GradSink<'a> {
        GradSink { views, written }
    }
    /// No gradients (inference, dry runs).
    pub fn none() -> GradSink<'static> {
        GradSink {
            views: &[],
            written: &[],
        }
    }
    /// Is there a gradient to write? Frozen parameters have none: their view is empty.
    pub fn wants(&self, p: usize) -> bool {
        self.views.get(p).is_none_or(|v| v.numel() > 0)
    }
    /// Gradient of parameter `p`, and whether the writer must add (`true`) or overwrite; marks it written.
    pub fn slot(&self, p: usize) -> Result<(&'a Tensor, bool)> {
        match (self.views.get(p), self.written.get(p)) {
            (Some(t), Some(w)) => Ok((t, w.replace(true))),
            _ => no_gradient(p),
        }
    }
    /// Gradient of parameter `p`, to look at only.
    pub(crate) fn view(&self, p: usize) -> Result<&'a Tensor> {
        match self.views.get(p) {
            Some(t) => Ok(t),
            None => no_gradient(p),
        }
    }
    /// Has parameter `p`'s gradient been written in this step?
    pub(crate) fn is_written(&self, p: usize) -> bool {
        self.written.get(p).is_some_and(|w| w.get())
    }
    /// A gradient nobody wants, for ops that write it in one pass with others: shaped as the parameter, in a temporary.
    pub fn discard(&self, env: &Env<'_>, p: usize) -> Result<Tensor> {
        env.run.zeros(*env.params[p].shape(), DType::F32)
    }
    /// Adds to parameter `p`'s gradient what was made of it elsewhere, in f32; nothing where nobody wants it.
    pub(crate) fn take(&self, run: &Run<'_>, p: usize, part: &Tensor) -> Result<()> {
        if !self.wants(p) {
            return Ok(());
        }
        let (grad, add) = self.slot(p)?;
        let params = op::AxpbyParams {
            alpha: 1.0,
            beta: if add { 1.0 } else { 0.0 },
            ..Default::default()
        };
        let operands = [Some(grad), Some(part)];
        run.launch(op::AXPBY, &operands, params.as_bytes(), &[])
    }
    /// The same for ops that can only add: clears it on the first write.
    pub fn adding(&self, run: &Run<'_>, p: usize) -> Result<&'a Tensor> {
        let (t, add) = self.slot(p)?;
        if !add {
            run.stream().fill(t.region(), 0, 1)?;
        }
        Ok(t)
    }
}

fn no_gradient<T>(p: usize) -> Result<T> {
    shape_error(format!(
        "backward: parameter {p} has no gradient; run with gradients"
    ))
}

/// What a block may touch while it runs.
pub struct Env<'a> {
    /// Launcher.
    pub run: &'a Run<'a>,
    /// Groups by mesh axis.
    pub groups: &'a dyn Groups,
    /// Parameters of the unit, own and borrowed, in compute dtype.
    pub params: &'a [Tensor],
    /// Constant tables of the unit (rotary angles), in the order they were declared.
    pub consts: &'a [Tensor],
    /// Gradients of the parameters.
    pub grads: &'a GradSink<'a>,
    /// Data.
    pub batch: &'a Batch,
    /// Randomness.
    pub key: RngKey,
    /// Will a backward follow? Dropout acts only then.
    pub training: bool,
}

impl Env<'_> {
    /// Dtype activations are computed in: that of the parameters.
    pub fn compute(&self) -> DType {
        self.params.first().map_or(DType::F32, Tensor::dtype)
    }
}
