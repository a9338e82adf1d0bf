//! Sharding types: how a value lies along each mesh axis, checked in a dry run and then erased (SPMD types; DTensor placements).
//!
//! R replicated and used differently, I replicated and used alike, V differs (split on a dim), P a sum pending. Two rules do the work:
//! no op mixes I with anything else; only linear ops may eat P. Gradients: R <-> P, I -> I, V -> V.

use crossweave_mesh::Axis;

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
pub const AXES: [Axis; 3] = [Axis::Tp, Axis::Cp, Axis::Ep];

/// Types of one value along [`AXES`].
pub type Spmd = [Ty; 3];

fn at(axis: Axis) -> Option<usize> {
    AXES.iter().position(|a| *a == axis)
}

/// Notes of a dry run: one type per value, and what is wrong, in sentences.
#[derive(Default)]
pub struct Check {
    pub(crate) vals: Vec<Spmd>,
    /// Type and split dim of each parameter.
    pub(crate) params: Vec<[(Ty, u8); 3]>,
    pub(crate) faults: Vec<String>,
    pub(crate) said: Vec<Said>,
}

/// A collective that a block makes where the axis is longer than one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// The op that makes it.
    pub op: &'static str,
    /// The axis of its group.
    pub axis: Axis,
    /// In the backward; else in the forward.
    pub backward: bool,
    /// Elements that are summed.
    pub elements: u64,
}

impl Check {
    /// Begins a dry run of a block whose parameters have these types.
    pub fn new(params: Vec<[(Ty, u8); 3]>) -> Check {
        Check {
            vals: vec![],
            params,
            faults: vec![],
            said: vec![],
        }
    }
    /// What was found wrong.
    pub fn faults(&self) -> &[String] {
        &self.faults
    }
    /// What was said to other ranks, in the order of the forward; a backward says its part in the opposite order.
    pub fn said(&self) -> &[Said] {
        &self.said
    }
    /// A linear op: I x I -> I; R x V(out) -> V; V x V(in) -> P.
    pub(crate) fn linear(&mut self, x: Spmd, w: usize, out_dim: u8) -> Spmd {
        let mut y = x;
        let params = self.params.get(w).copied().unwrap_or_default();
        for i in 0..AXES.len() {
            let (ty, dim) = params[i];
            y[i] = match (x[i], ty) {
                (Ty::I, Ty::I) => Ty::I,
                (Ty::R, Ty::V) if dim == out_dim => Ty::V,
                (Ty::V, Ty::V) if dim != out_dim => Ty::P,
                (Ty::V, Ty::I) => Ty::V,
                (a, b) => {
                    self.faults.push(format!("linear on {:?}: input {a:?}, weight {b:?} split on {dim} (enter before a split weight, reduce after it)", AXES[i]));
                    a
                }
            };
        }
        y
    }
    /// All inputs alike, or V with R, which gives V; `eats_p`: is the op linear?
    pub(crate) fn same(&mut self, op: &str, ins: &[Spmd], eats_p: bool) -> Spmd {
        let first = ins.first().copied().unwrap_or_default();
        let mut out = first;
        for i in 0..AXES.len() {
            for v in ins {
                let mixed = matches!((v[i], first[i]), (Ty::R, Ty::V) | (Ty::V, Ty::R));
                if mixed {
                    out[i] = Ty::V;
                }
                if v[i] != first[i] && !mixed {
                    self.faults.push(format!(
                        "{op} on {:?}: {:?} with {:?} (reduce the pending sum first)",
                        AXES[i], first[i], v[i]
                    ));
                }
                if v[i] == Ty::P && !eats_p {
                    self.faults.push(format!(
                        "{op} on {:?}: a nonlinear op on a pending sum (reduce it first)",
                        AXES[i]
                    ));
                }
            }
        }
        out
    }
    /// A transition of one axis.
    pub(crate) fn step(&mut self, op: &str, x: Spmd, axis: Axis, from: Ty, to: Ty) -> Spmd {
        let mut y = x;
        if let Some(i) = at(axis) {
            if x[i] != from {
                self.faults
                    .push(format!("{op} on {axis:?}: wants {from:?}, got {:?}", x[i]));
            }
            y[i] = to;
        }
        y
    }
}
