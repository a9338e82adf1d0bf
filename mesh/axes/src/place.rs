//! A rank as its coordinates and the mesh they are on.

use crate::axis::{Axis, AxisSet};
use crate::coord::Coord;
use crate::group::{Group, GroupKey};
use crate::topology::{Topology, TopologyError};

/// A rank as a place on the mesh: all that is above the mesh knows of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    mesh: Topology,
    at: Coord,
}

impl Place {
    /// The place of rank `number` of the job.
    ///
    /// # Errors
    /// The mesh has no such rank.
    pub fn new(mesh: Topology, number: u32) -> Result<Place, TopologyError> {
        let at = mesh.coord(number)?;
        Ok(Place { mesh, at })
    }

    /// Rank `number` of a mesh of these axis lengths.
    ///
    /// # Errors
    /// As [`Topology::new`]; the mesh has no such rank.
    pub fn on(lengths: &[(Axis, u32)], number: u32) -> Result<Place, TopologyError> {
        Place::new(Topology::new(lengths)?, number)
    }

    /// A job of one rank.
    pub fn alone() -> Place {
        Place {
            mesh: Topology::one(),
            at: Coord::default(),
        }
    }

    /// The mesh.
    pub fn mesh(&self) -> Topology {
        self.mesh
    }
    /// The coordinates on it.
    pub fn coord(&self) -> Coord {
        self.at
    }
    /// The coordinate on an axis.
    pub fn at(&self, axis: Axis) -> u32 {
        self.mesh.at(self.at, axis)
    }
    /// The length of an axis.
    pub fn length(&self, axis: Axis) -> u32 {
        self.mesh.length(axis)
    }
    /// Ranks of its group over a set of axes.
    pub fn size(&self, axes: impl Into<AxisSet>) -> u32 {
        self.mesh.size(axes.into())
    }
    /// Its index in that group.
    pub fn index(&self, axes: impl Into<AxisSet>) -> u32 {
        self.mesh.index(self.at, axes.into())
    }
    /// The place of rank `number` of the same mesh.
    ///
    /// # Errors
    /// The mesh has no such rank.
    pub fn of_rank(&self, number: u32) -> Result<Place, TopologyError> {
        Place::new(self.mesh, number)
    }
    /// The same place in another pipeline stage; one beyond the last goes round.
    pub fn stage(&self, stage: u32) -> Place {
        let stage = stage % self.length(Axis::Pp);
        Place {
            at: self.at.with(Axis::Pp, stage),
            ..*self
        }
    }
    /// The places of its group over a set of axes, in the group's order.
    ///
    /// # Errors
    /// As [`Topology::group`].
    pub fn members(&self, axes: impl Into<AxisSet>) -> Result<Vec<Place>, TopologyError> {
        let group = self.group(&GroupKey::over(axes))?;
        group.ranks.iter().map(|r| self.of_rank(*r)).collect()
    }
    /// The key of its group over those of these axes that are longer than one; none where it is alone in it.
    pub fn among(&self, axes: impl Into<AxisSet>) -> Option<GroupKey> {
        let long = self.mesh.long(axes.into());
        (!long.is_empty()).then(|| GroupKey::over(long))
    }
    /// Its group of that name.
    ///
    /// # Errors
    /// As [`Topology::group`].
    pub fn group(&self, key: &GroupKey) -> Result<Group, TopologyError> {
        self.mesh.group(self.at, key)
    }
    /// Whether it is the first of the job: the one that reads, writes and prints for all.
    pub fn is_first(&self) -> bool {
        self.job_rank() == 0
    }
    /// Its number in the job, for the transport and for messages to people; everything else is a coordinate or an index in
    /// a group.
    pub fn job_rank(&self) -> u32 {
        self.mesh.job_rank(self.at)
    }
}

impl Topology {
    /// The place of a rank of the job; a number beyond the last goes round.
    pub fn place(&self, number: u32) -> Place {
        let at = self.digits(number % self.world_size());
        Place { mesh: *self, at }
    }
}
