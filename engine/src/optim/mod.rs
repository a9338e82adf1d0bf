//! Optimizers at work on what one rank updates of a unit: a few launches over runs of neighbouring elements, nothing allocated that
//! outlives the step, nothing the host waits for.
//!
//! Elementwise optimizers (Adam, Lion, SGD) take runs of any length. Figures of a whole parameter (LAMB's norms, Adafactor's row and
//! column means) are summed over the parts each rank owns and then over the ranks, at every ZeRO stage alike, so that stages agree bit
//! for bit. Muon takes parameters whole: the layout gives each to one owner.

mod adafactor;
mod adam;
mod assign;
mod blocks8;
mod lamb;
mod map;
mod muon;
mod simple;
mod state;
mod sums;
#[cfg(test)]
mod tests;

pub(crate) use adam::op_step;
pub use assign::assign;
pub(crate) use assign::recipes;
pub(crate) use simple::{Cells, elementwise, states as elementwise_states};
pub(crate) use state::{StateView, UnitOptim, factor};

use crossweave_tensor::{Result, Run, Tensor};
pub(crate) use crossweave_zero::Part;
use crossweave_zero::optim::{Optimizer, Recipe};

/// What this rank holds of a unit while it is updated: flat, in the order of the unit's layout.
pub(crate) struct Flat {
    /// f32: the master copy, or the parameters themselves.
    pub value: Tensor,
    /// The parameters in compute dtype, where the masters are apart and the update is to write both.
    pub copy: Option<Tensor>,
    /// The gradient.
    pub grad: Tensor,
}

/// What all groups of a step share.
#[derive(Clone)]
pub(crate) struct StepParams<'a> {
    /// The schedule's rate.
    pub lr: f64,
    /// Update number, from 1.
    pub step: u64,
    /// Decay rates in place of Adam's own, where a schedule moves them.
    pub betas: Option<[f64; 2]>,
    /// Multiplies the gradient: what the loss was scaled by, undone.
    pub grad_scale: f64,
    /// One f32 that multiplies the gradient too.
    pub coef: Option<Tensor>,
    /// Both as one f32 on the device, for formulas that take no number from the host; set by [`UnitOptim::update`].
    pub factor: Option<Tensor>,
    /// One u32: unless it is 0 nothing changes.
    pub skip: Option<Tensor>,
    /// Sums f32 values over the ranks in place, in stream order.
    pub sum: &'a dyn Fn(&Tensor) -> Result<()>,
}

/// Parameters updated alike.
pub(crate) struct Group {
    pub recipe: Recipe,
    /// Index in the unit and dims of every parameter of the group, whatever this rank owns of it.
    pub params: Vec<(usize, Vec<u64>)>,
    pub parts: Vec<Part>,
    /// Logical slices by which figures of whole parameters are summed; 1 where they are summed by rank.
    pub slices: u64,
    pub states: state::States,
}

fn run_of(t: &Tensor, at: u64, len: u64) -> Tensor {
    t.narrow(0, at, len)
}

impl Group {
    /// Runs of neighbouring elements: (place in [`Flat`], place in the packed states, length).
    fn runs(&self) -> Vec<(u64, u64, u64)> {
        let mut runs: Vec<(u64, u64, u64)> = vec![];
        let mut packed = 0;
        for p in &self.parts {
            match runs.last_mut() {
                Some((at, _, len)) if *at + *len == p.at => *len += p.len,
                _ => runs.push((p.at, packed, p.len)),
            }
            packed += p.len;
        }
        runs
    }

    /// Place of a part's parameter in the group.
    fn slot(&self, part: &Part) -> u64 {
        let here = self.params.iter().position(|(i, _)| *i == part.param);
        here.unwrap_or(0) as u64
    }

    fn update(&self, run: &Run<'_>, f: &Flat, k: &StepParams<'_>) -> Result<()> {
        if self.parts.is_empty() && !self.recipe_sums() {
            return Ok(());
        }
        let lr = k.lr * self.recipe.lr_scale;
        match self.recipe.optimizer.with_betas(k.betas) {
            Optimizer::Adam(a) => adam::update(run, self, f, k, &a, lr),
            Optimizer::Adam8bit(a) => blocks8::update(run, self, f, k, &a, lr),
            o @ (Optimizer::Lion { .. } | Optimizer::Sgd(_)) => {
                let cells = simple::cells(self, f)?;
                simple::elementwise(run, &o, &cells, k, lr, self.recipe.weight_decay)
            }
            Optimizer::Lamb(l) => lamb::update(run, self, f, k, &l, lr),
            Optimizer::Adafactor(a) => adafactor::update(run, self, f, k, &a, lr),
            Optimizer::Muon(m) => muon::update(run, self, f, k, &m, lr),
        }
    }

    /// Does its update talk to the other ranks? Then every rank runs it, whatever it owns.
    fn recipe_sums(&self) -> bool {
        matches!(
            self.recipe.optimizer,
            Optimizer::Lamb(_) | Optimizer::Adafactor(_)
        )
    }
}
