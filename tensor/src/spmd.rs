//! Sharding types: how a value lies along each mesh axis, checked in a dry run and then erased (SPMD types; DTensor placements).
//!
//! R replicated and used differently, I replicated and used alike, V differs (split on a dim), P a sum pending. Two rules do the work:
//! no op mixes I with anything else; only linear ops may eat P. Gradients of values: R <-> P, I -> I, V -> V.
//!
//! The gradient of a parameter that every rank has whole is whole (I) where what it meets is used alike, and pending where ranks have
//! other rows or heads: then one sum over the axis is needed, of the op or of the plan. One that is missing, and one made twice, are
//! faults with the parameter, the op and the axis.

use crossweave_mesh::{Axis, AxisSet};
use std::cell::Cell;
use std::rc::Rc;

/// How a value lies along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Ty {
    /// Replicated, used differently by each rank.
    R,
    /// Replicated, used alike.
    #[default]
    I,
    /// Differs, or is split on a tensor dim.
    V,
    /// Each rank holds a summand.
    P,
}

/// Axes that types speak of, in order.
pub const AXES: [Axis; 4] = [Axis::Tp, Axis::Cp, Axis::Ep, Axis::Etp];

/// Types of one value along [`AXES`].
pub type Spmd = [Ty; 4];

/// The place of an axis among them.
pub(crate) fn at(axis: Axis) -> Option<usize> {
    AXES.iter().position(|a| *a == axis)
}

/// The type of a mean over all predictions of which ranks have shares: a sum is pending where they have other ones.
pub(crate) fn shares(x: Spmd) -> Spmd {
    x.map(|t| if t == Ty::V { Ty::P } else { t })
}

/// A parameter as a dry run sees it.
#[derive(Clone, Debug, Default)]
pub struct TypedParam {
    /// Its full name, for messages.
    pub name: String,
    /// Along each of [`AXES`] whether it is whole (I) or split (V), and on which dim.
    pub along: [(Ty, u8); 4],
    /// The axes over which the plan sums its gradient.
    pub sums: AxisSet,
    /// It has no gradient.
    pub frozen: bool,
}

/// A sum that a block is recorded without, or with twice: what a test of the check does to see that it is named.
#[derive(Debug)]
pub struct Altered {
    /// Which sum of the block, in the order in which they are recorded.
    pub sum: usize,
    /// How often it is made.
    pub times: usize,
    /// The name of the op that makes it, once it is met.
    pub met: Cell<Option<&'static str>>,
}

/// Notes of a dry run: one type per value, and what is wrong, in sentences.
#[derive(Default)]
pub struct Check {
    pub(crate) vals: Vec<Spmd>,
    params: Vec<TypedParam>,
    /// Types of the inputs of the block that have not been brought in yet, the last first.
    inputs: Vec<Spmd>,
    /// The type of what the batch holds.
    pub(crate) batch: Spmd,
    faults: Vec<String>,
    sums: usize,
    altered: Option<Rc<Altered>>,
}

impl Check {
    /// Begins a dry run of a block with these parameters.
    pub fn new(params: Vec<TypedParam>) -> Check {
        Check {
            params,
            ..Check::default()
        }
    }
    /// The types of the values that flow in; I where nothing is said.
    pub fn with_inputs(mut self, types: &[Spmd]) -> Check {
        self.inputs = types.iter().rev().copied().collect();
        self
    }
    /// The axes whose ranks have other tokens of the same rows.
    pub fn with_batch(mut self, cut_over: AxisSet) -> Check {
        self.batch = AXES.map(|a| if cut_over.contains(a) { Ty::V } else { Ty::I });
        self
    }
    /// The same with a sum left out or made twice.
    pub fn altered(mut self, how: &Rc<Altered>) -> Check {
        self.altered = Some(how.clone());
        self
    }

    /// A check of a tape of its own with inputs of these types, whose sums count on from here; see [`Check::take_back`].
    pub(crate) fn lent(&self, mut inputs: Vec<Spmd>) -> Check {
        inputs.reverse();
        Check {
            params: self.params.clone(),
            inputs,
            batch: self.batch,
            sums: self.sums,
            altered: self.altered.clone(),
            ..Check::default()
        }
    }
    /// Goes on behind what was lent: with its faults, and the number of its sums.
    pub(crate) fn take_back(&mut self, lent: Check) {
        self.faults.extend(lent.faults);
        self.sums = lent.sums;
    }

    /// What was found wrong.
    pub fn faults(&self) -> &[String] {
        &self.faults
    }
    /// Holds the type of what the last block returns against what the engine does with it: over axes that do not cut tokens every rank has
    /// it (I); over those that do it is `cut`: the shares of a loss are summed there (P), and each rank has the logits of its tokens (V).
    pub(crate) fn hold_result(&mut self, name: &str, found: Spmd, cut: Ty) {
        for (i, axis) in AXES.iter().enumerate() {
            let want = if self.batch[i] == Ty::V { cut } else { Ty::I };
            if found[i] != want {
                self.fault(format!(
                    "{name} on {axis}: wants {want:?}, got {:?} (sum what the ranks have of it, once)",
                    found[i]
                ));
            }
        }
    }

    pub(crate) fn fault(&mut self, what: String) {
        self.faults.push(what);
    }
    /// The type of the next value that is brought into the block.
    pub(crate) fn next_input(&mut self) -> Spmd {
        self.inputs.pop().unwrap_or_default()
    }
    /// How often the sum that `op` is about to make is made: once, where no test says otherwise.
    pub(crate) fn times(&mut self, op: &'static str) -> usize {
        let sum = self.sums;
        self.sums += 1;
        match self.altered.as_ref().filter(|a| a.sum == sum) {
            Some(a) => {
                a.met.set(Some(op));
                a.times
            }
            None => 1,
        }
    }

    fn param(&self, p: usize) -> TypedParam {
        self.params.get(p).cloned().unwrap_or_default()
    }

    /// A linear op of weights `w` that make one product, and their biases `b`: I x I -> I; R x V(out) -> V; V x V(in) -> P; what is not
    /// I against a whole weight stays what it is. `first_adds`: the axis over which the result is summed and the first rank alone adds
    /// the bias.
    pub(crate) fn linear(
        &mut self,
        x: Spmd,
        (w, b): (&[usize], &[usize]),
        out_dim: u8,
        first_adds: Option<Axis>,
    ) -> Spmd {
        let mut y = x;
        for i in 0..AXES.len() {
            let axis = AXES[i];
            let mut made: Option<Ty> = None;
            for &p in w {
                let param = self.param(p);
                let (ty, dim) = param.along[i];
                let of = match (x[i], ty) {
                    (Ty::I, Ty::I) => Ty::I,
                    (Ty::R, Ty::V) if dim == out_dim => Ty::V,
                    (Ty::V, Ty::V) if dim != out_dim => Ty::P,
                    (a, Ty::I) => a,
                    (a, b) => {
                        self.fault(format!(
                            "linear on {axis}: input {a:?}, weight {b:?} split on {dim} (enter before a split weight, reduce after it): {}",
                            param.name
                        ));
                        a
                    }
                };
                if let Some(other) = made.filter(|m| *m != of) {
                    self.fault(format!(
                        "linear on {axis}: {} makes {of:?} where the parts before it make {other:?}; split all parts of a product alike",
                        param.name
                    ));
                }
                made = made.or(Some(of));
                self.hold("linear", p, i, x[i] != Ty::I);
            }
            y[i] = made.unwrap_or(x[i]);
            for &p in b {
                let alone = first_adds == Some(axis);
                if (y[i] == Ty::P) != alone {
                    let param = self.param(p);
                    self.fault(match alone {
                        true => format!(
                            "linear on {axis}: the first rank alone adds {}, and what it is added to is no sum over the ranks",
                            param.name
                        ),
                        false => format!(
                            "linear on {axis}: every rank adds {} to its summand (linear_summand adds it once)",
                            param.name
                        ),
                    });
                }
                self.hold("linear", p, i, matches!(y[i], Ty::V | Ty::R));
            }
        }
        y
    }

    /// Parameters `ps` that work on `x` elementwise, whose gradients the op makes out of what it has: where these are a part of what all
    /// ranks have, they are pending. `over`: the axis over which the op sums them itself, in messages `sum`.
    pub(crate) fn with_params(
        &mut self,
        op: &str,
        x: Spmd,
        ps: &[usize],
        over: Option<(Axis, &'static str)>,
    ) {
        for &p in ps {
            if self.param(p).frozen {
                continue;
            }
            let times = over.map_or(0, |(_, sum)| self.times(sum));
            for i in 0..AXES.len() {
                let (axis, mut pending) = (AXES[i], x[i] != Ty::I);
                if over.is_some_and(|(a, _)| a == axis) {
                    let name = self.param(p).name;
                    for _ in 0..times {
                        if !std::mem::replace(&mut pending, false) {
                            self.fault(format!(
                                "{op} on {axis}: the gradient of {name} is summed over its ranks, and it was whole on each already"
                            ));
                        }
                    }
                }
                self.hold(op, p, i, pending);
            }
        }
    }

    /// Holds the gradient that an op makes of a parameter along an axis against the sum that the plan makes of it: one that is pending
    /// needs one, and one that is whole must have none.
    fn hold(&mut self, op: &str, p: usize, i: usize, pending: bool) {
        let (param, axis) = (self.param(p), AXES[i]);
        if param.frozen {
            return;
        }
        let (name, split) = (&param.name, param.along[i].0 == Ty::V);
        let planned = param.sums.contains(axis);
        let what = match (split, pending, planned) {
            (true, _, true) => "each rank has that of its own part, and the plan sums them",
            (false, true, false) => "each rank has a summand of it, and nothing sums them",
            (false, false, true) => {
                "it is whole on each rank, and the plan sums it all the same, so that it is made twice"
            }
            _ => return,
        };
        self.fault(format!("{op} on {axis}: the gradient of {name}: {what}"));
    }

    /// A table whose rows `x` (a batch's tokens, or a value) takes along: whole, or split on the dim that stays (V); `rows`: the axis over
    /// whose ranks its rows are cut, so that each finds a summand (P).
    pub(crate) fn table(&mut self, op: &str, x: Spmd, p: usize, rows: Option<Axis>) -> Spmd {
        let mut y = x;
        let param = self.param(p);
        for i in 0..AXES.len() {
            let (axis, (ty, dim)) = (AXES[i], param.along[i]);
            let cut = rows == Some(axis);
            y[i] = match (ty, dim, cut) {
                (Ty::V, 0, true) if x[i] == Ty::I => Ty::P,
                (Ty::V, 1.., false) if x[i] == Ty::I => Ty::V,
                (Ty::V, ..) | (_, _, true) => {
                    self.fault(format!(
                        "{op} on {axis}: ids {:?} into {} {ty:?} split on {dim}, {} looked up as rows that are cut there",
                        x[i],
                        param.name,
                        if cut { "which is" } else { "which is not" }
                    ));
                    x[i]
                }
                _ => x[i],
            };
            self.hold(op, p, i, x[i] != Ty::I);
        }
        y
    }

    /// Rows of a table that are added to `x`. `first_adds`: the axis over which `x` is summed and the first rank alone adds them.
    pub(crate) fn added_rows(&mut self, op: &str, x: Spmd, p: usize, first_adds: Option<Axis>) {
        for i in 0..AXES.len() {
            let axis = AXES[i];
            if (x[i] == Ty::P) != (first_adds == Some(axis)) {
                let name = self.param(p).name;
                self.fault(format!(
                    "{op} on {axis}: {name} is added to {:?} (to a pending sum by its first rank alone)",
                    x[i]
                ));
            }
            self.hold(op, p, i, matches!(x[i], Ty::V | Ty::R));
        }
    }

    /// Attention of queries over keys and values (`ins` in this order, and what is added to the scores) of heads that are cut over `heads`,
    /// with sinks: of keys that are cut over another axis a rank would miss some.
    pub(crate) fn attention(&mut self, ins: &[Spmd], heads: AxisSet, sinks: Option<usize>) -> Spmd {
        let y = self.same("attention", ins, false);
        for (i, axis) in AXES.iter().enumerate() {
            let keys = ins.iter().skip(1).any(|t| t[i] == Ty::V);
            if keys && !heads.contains(*axis) {
                self.fault(format!(
                    "attention on {axis}: keys are cut, and not by heads: a rank has those of its own rows only (gather them first)"
                ));
            }
        }
        let sinks: Vec<usize> = sinks.into_iter().collect();
        self.with_params("attention", y, &sinks, None);
        y
    }

    /// Products of rows with the experts that they were given to: rows that went to the ranks that have these (V) with stacks cut by experts, rows that all
    /// ranks of an expert have (R) with those cut by outputs, and parts of these with those cut by inputs (P); all others with whole ones.
    pub(crate) fn of_experts(&mut self, x: Spmd, p: usize) -> Spmd {
        let (param, mut y) = (self.param(p), x);
        for i in 0..AXES.len() {
            let (axis, (ty, dim)) = (AXES[i], param.along[i]);
            let by_experts = axis == Axis::Ep;
            y[i] = match (x[i], ty, dim) {
                (Ty::V, Ty::V, 0) if by_experts => Ty::V,
                (Ty::R, Ty::V, 1) if axis == Axis::Etp => Ty::V,
                (Ty::V, Ty::V, 2) if axis == Axis::Etp => Ty::P,
                (a, Ty::I, _) if a != Ty::V || !by_experts => a,
                (a, b, _) => {
                    self.fault(format!(
                        "expert_linear on {axis}: rows {a:?}, stack {b:?} split on {dim} (give rows to the ranks that have their experts): {}",
                        param.name
                    ));
                    a
                }
            };
            self.hold("expert_linear", p, i, x[i] != Ty::I);
        }
        y
    }

    /// Counts of the choices of tokens `x`, beside figures of each token alone (V): over the axes `over` whose ranks have other tokens of the same scope the
    /// counts are summed, once; where that is missing the whole is a pending sum.
    pub(crate) fn counted(&mut self, op: &'static str, x: Spmd, over: AxisSet) -> Spmd {
        let mut y = self.same(op, &[x], false);
        for axis in over.iter() {
            let counts = self.summed_once(op, x, axis);
            if let Some(i) = at(axis).filter(|i| counts[*i] != Ty::I) {
                y[i] = Ty::P;
            }
        }
        y
    }
    /// What is decided of each token `x` among the others of its row, which ranks have that cut rows over the axes `over` and no others.
    pub(crate) fn decided(&mut self, op: &str, x: Spmd, over: AxisSet) -> Spmd {
        for (i, axis) in AXES.iter().enumerate() {
            if (x[i] == Ty::V) != over.contains(*axis) {
                self.fault(format!(
                    "{op} on {axis}: who stays within a capacity is decided among the tokens of a row, and ranks have {:?} of them",
                    x[i]
                ));
            }
        }
        self.same(op, &[x], false)
    }
    /// Figures of counts that all ranks have: each that has other rows gives a share of them, so that their sum is the figure.
    pub(crate) fn figures(&mut self, op: &str, x: Spmd) -> Spmd {
        let y = self.same(op, &[x], false);
        std::array::from_fn(|i| match (y[i], self.batch[i]) {
            (Ty::V, Ty::V) => Ty::P,
            (Ty::V, _) => Ty::I,
            (t, _) => t,
        })
    }

    /// A mean over predictions: of those here, where ranks have other ones.
    pub(crate) fn mean(&mut self, op: &str, x: Spmd) -> Spmd {
        let y = self.same(op, &[x], false);
        shares(y)
    }

    /// All inputs alike, or V with R, which gives V; `eats_p`: is the op linear?
    pub(crate) fn same(&mut self, op: &str, ins: &[Spmd], eats_p: bool) -> Spmd {
        let first = ins.first().copied().unwrap_or_default();
        let mut out = first;
        for i in 0..AXES.len() {
            let axis = AXES[i];
            for v in ins {
                let mixed = matches!((v[i], first[i]), (Ty::R, Ty::V) | (Ty::V, Ty::R));
                if mixed {
                    out[i] = Ty::V;
                }
                if v[i] != first[i] && !mixed {
                    self.fault(format!(
                        "{op} on {axis}: {:?} with {:?} (reduce the pending sum first)",
                        first[i], v[i]
                    ));
                }
                if v[i] == Ty::P && !eats_p {
                    self.fault(format!(
                        "{op} on {axis}: a nonlinear op on a pending sum (reduce it first)"
                    ));
                }
            }
        }
        out
    }
    /// The type of the sum over an axis of figures of a value of which its ranks have parts, made as often as the block makes it.
    pub(crate) fn summed_once(&mut self, op: &'static str, x: Spmd, axis: Axis) -> Spmd {
        let mut sum = x;
        if let Some(i) = at(axis).filter(|i| x[*i] == Ty::V) {
            sum[i] = Ty::P;
        }
        let times = self.times(op);
        (0..times).fold(sum, |s, _| self.step(op, s, axis, Ty::P, Ty::I))
    }
    /// A transition of one axis.
    pub(crate) fn step(&mut self, op: &str, x: Spmd, axis: Axis, from: Ty, to: Ty) -> Spmd {
        let mut y = x;
        if let Some(i) = at(axis) {
            if x[i] != from {
                self.fault(format!("{op} on {axis}: wants {from:?}, got {:?}", x[i]));
            }
            y[i] = to;
        }
        y
    }
}
