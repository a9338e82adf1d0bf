//! Optimizers as instructions: the update of what one rank owns of a unit, in kernels over runs of neighbouring elements. Nothing
//! that an update allocates outlives it, and the host waits for nothing.
//!
//! Elementwise optimizers (Adam, Lion, SGD) take runs of any length. Figures of a whole parameter (LAMB's norms, Adafactor's row and
//! column means) are summed over the parts each rank owns and then over the ranks, at every ZeRO stage alike, so that stages agree bit
//! for bit. Muon takes parameters whole: the layout gives each to one owner.

mod adafactor;
mod adam;
mod blocks8;
mod ema;
mod group;
mod lamb;
mod muon;
mod simple;
mod sums;

pub use adam::launch as launch_adam;
pub use blocks8::{code_of_zero, codec};
pub use ema::{Averaged, write as write_ema};
pub use group::{Group, Kept, Part, StateSlice, groups};
pub use simple::{Cells, elementwise};

use crate::{Optimizer, Recipe, StateName};
use crossweave_program::abi::op;
use crossweave_program::{Code, DType, Given, On, Scalar, ScalarId, View};

/// What this rank holds of a unit while it is updated: flat, in the order of the unit's layout.
pub struct Flat<'v> {
    /// f32: the master copy, or the parameters themselves.
    pub value: View<'v>,
    /// The parameters in compute type, where the masters are apart and the update is to write both.
    pub copy: Option<View<'v>>,
    /// The gradient, in f32; some optimizers compute in its place.
    pub grad: View<'v>,
}

/// What all groups of a step share.
pub struct StepParams<'a, 'v> {
    /// Gradients are multiplied by what undoes the loss scale, which is not always 1.
    pub scaled: bool,
    /// One f32 that multiplies the gradient too.
    pub coef: Option<View<'v>>,
    /// One u32: unless it is 0 nothing changes.
    pub skip: Option<View<'v>>,
    /// Writes the sum of f32 values over the ranks, in place.
    pub sum: &'a dyn Fn(&View<'_>),
    /// The ranks that have the other parts of cut matrices; none where no optimizer must see such a matrix whole.
    pub matrices: Option<CutMatrices<'a>>,
}

/// Ranks that have equal parts of the same matrices.
pub struct CutMatrices<'a> {
    /// The place of this rank among them.
    pub at: u64,
    /// How many they are.
    pub ranks: u64,
    /// Writes the f32 values that the ranks give first, one rank behind the other, into the second.
    pub gather: &'a dyn Fn(&View<'_>, &View<'_>),
}

/// The learning rate of a recipe.
fn rate(on: &On<'_>, r: &Recipe) -> ScalarId {
    let rate = on.scalar(Scalar::Given(Given::Rate));
    let scale = on.scalar(Scalar::Const(r.lr_scale));
    on.scalar(Scalar::Mul(rate, scale))
}

fn constant(on: &On<'_>, value: f64) -> ScalarId {
    on.scalar(Scalar::Const(value))
}

/// `1 - s`.
fn rest(on: &On<'_>, s: ScalarId) -> ScalarId {
    on.scalar(Scalar::Sub(constant(on, 1.0), s))
}

/// Decay rates of the moments: those of a schedule where there is one.
fn betas(on: &On<'_>, fixed: [f64; 2]) -> [ScalarId; 2] {
    [0, 1].map(|moment| {
        let fixed = fixed[usize::from(moment)];
        on.scalar(Scalar::Given(Given::Beta { moment, fixed }))
    })
}

/// What the gradient is multiplied by as one f32 on the device, for formulas that take no number from the host.
pub fn factor<'c>(on: &On<'c>, k: &StepParams<'_, 'c>) -> Option<View<'c>> {
    if !k.scaled {
        return k.coef.clone();
    }
    let out = on.empty([1], DType::F32);
    let scale = on.scalar(Scalar::Given(Given::Unscale));
    match &k.coef {
        Some(c) => on.map(&[&out], &[c], &[scale], |x| vec![x[0] * x[0].scalar(0)]),
        None => on.fill_scalar(&out, scale),
    }
    Some(out)
}

/// The update of one group being written.
struct Step<'a, 'c> {
    code: &'a Code<'c>,
    on: On<'c>,
    group: &'a Group,
    /// The fragment's parameter that is the first of the group's states.
    states: usize,
    flat: &'a Flat<'c>,
    k: &'a StepParams<'a, 'c>,
    /// See [`factor`].
    factor: Option<View<'c>>,
}

impl<'c> Step<'_, 'c> {
    fn rate(&self) -> ScalarId {
        rate(&self.on, &self.group.recipe)
    }
    /// A run of an f32 state: `[len]` from packed element `at`.
    fn packed(&self, name: StateName, at: u64, len: u64) -> View<'c> {
        let arg = self.states + self.group.arg(name);
        self.code.arg_at(arg, 4 * at, [len], DType::F32)
    }
    /// The factor of gradients and the word that forbids the update, seen in every place of a shape.
    fn words(&self, dims: &[u64]) -> (Option<View<'c>>, Option<View<'c>>) {
        let seen = |v: &View<'c>| v.everywhere(dims);
        (
            self.factor.as_ref().map(seen),
            self.k.skip.as_ref().map(seen),
        )
    }
}

/// Elements of a flat view.
fn run_of<'v>(t: &View<'v>, at: u64, len: u64) -> View<'v> {
    t.narrow(0, at, len)
}

/// `out[0] += sum x²`.
fn add_squares(on: &On<'_>, out: &View<'_>, x: &View<'_>) {
    let none = op::NoParams::default();
    on.plain(op::MULTI_SUMSQ, &[out, x], none.as_bytes());
}

/// Reduces the dims of `axes` (bits) of `src` into `dst`, whose sizes there are 1.
fn reduce(on: &On<'_>, kind: u32, axes: u32, dst: &View<'_>, src: &View<'_>, add: bool) {
    let p = op::ReduceParams {
        kind,
        axes,
        flags: if add { op::FLAG_ACCUM } else { 0 },
        ..Default::default()
    };
    on.plain(op::REDUCE, &[dst, src], p.as_bytes());
}

/// Writes one optimizer step of a unit: of all its groups, whose states are the fragment's parameters from `states` on, in the order
/// of [`Group::memory`].
pub fn update<'c>(
    code: &Code<'c>,
    on: On<'c>,
    groups: &[Group],
    states: usize,
    flat: &Flat<'c>,
    k: &StepParams<'_, 'c>,
) {
    let fused = |g: &Group| matches!(g.recipe.optimizer, Optimizer::Adam(_));
    let factor = match groups.iter().all(fused) {
        true => k.coef.clone(),
        false => factor(&on, k),
    };
    let mut first = states;
    for group in groups {
        let s = Step {
            code,
            on,
            group,
            states: first,
            flat,
            k,
            factor: factor.clone(),
        };
        first += group.memory().count();
        if group.parts.is_empty() && !group.recipe.optimizer.sums() {
            continue;
        }
        match group.recipe.optimizer {
            Optimizer::Adam(a) => adam::update(&s, &a),
            Optimizer::Adam8bit(a) => blocks8::update(&s, &a),
            o @ (Optimizer::Lion { .. } | Optimizer::Sgd(_)) => {
                let factor = s.factor.as_ref();
                simple::elementwise(&on, &group.recipe, &o, &simple::cells(&s), (factor, k));
            }
            Optimizer::Lamb(l) => lamb::update(&s, &l),
            Optimizer::Adafactor(a) => adafactor::update(&s, &a),
            Optimizer::Muon(m) => muon::update(&s, &m),
        }
        if let Some(decay) = group.recipe.ema {
            ema::update(&s, decay);
        }
    }
}
