//! A few ranks that stand for all of a mesh: every pipeline stage, and along each other axis the
//! first two places.
//!
//! Where ranks of a stage are asked for the same, but perhaps for something else of those at place 0
//! of an axis, any renumbering of an axis that keeps place 0 maps groups to groups and leaves what
//! every rank does as it is. So what holds of the ranks at places 0 and 1 holds of all, and a check
//! of 16,384 ranks is one of four for each stage.

use crate::axis::{Axis, AxisSet};
use crate::topology::Topology;

/// The longest that an axis other than `pp` is among representatives.
const PLACES: u32 = 2;

/// Ranks that stand for all of a mesh, as a mesh of their own.
#[derive(Clone, Debug)]
pub struct Representatives {
    mesh: Topology,
    numbers: Vec<u32>,
}

impl Representatives {
    /// The ranks at the first two places of every axis but `pp`, of which all stand. Every rank of the
    /// mesh where experts are arranged apart from dense parameters: their groups follow from the
    /// lengths of the other axes, and do not shorten with them.
    pub fn of(mesh: &Topology) -> Representatives {
        let apart = mesh.length(Axis::Ep) > 1 || mesh.length(Axis::Etp) != mesh.length(Axis::Tp);
        let few = match apart {
            true => *mesh,
            false => mesh.shortened(PLACES, Axis::Pp.into()),
        };
        let numbers = (0..few.world_size()).map(|r| mesh.job_rank(few.digits(r)));
        Representatives {
            mesh: few,
            numbers: numbers.collect(),
        }
    }

    /// Every rank of a mesh, each for itself.
    pub fn all(mesh: &Topology) -> Representatives {
        Representatives {
            mesh: *mesh,
            numbers: (0..mesh.world_size()).collect(),
        }
    }

    /// The mesh that the representatives make among themselves.
    pub fn mesh(&self) -> &Topology {
        &self.mesh
    }

    /// The number in the whole job of each representative, in the order of their own mesh.
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }
}

impl Topology {
    /// The same mesh with its dense axes at most `most` long, but for those of `whole`. Experts are
    /// arranged as dense parameters are.
    fn shortened(&self, most: u32, whole: AxisSet) -> Topology {
        let mut few = *self;
        for axis in Axis::DENSE {
            if !whole.contains(axis) {
                few.set_length(axis, self.length(axis).min(most));
            }
        }
        few.set_length(Axis::Etp, few.length(Axis::Tp));
        few.set_length(Axis::Edp, few.length(Axis::Dp) * few.length(Axis::Cp));
        few
    }
}
