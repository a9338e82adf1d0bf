//! Coordinates on the dense axes.

use crate::axis::Axis;

/// Where a rank stands on the dense axes; where it stands on those of experts follows from the mesh ([`crate::Topology::at`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Coord {
    pub(crate) at: [u32; 4],
}

impl Coord {
    /// The same place with another coordinate on a dense axis. An axis of experts changes nothing: see [`crate::Topology::moved`].
    pub fn with(mut self, axis: Axis, at: u32) -> Coord {
        if let Some(mine) = self.at.get_mut(axis as usize) {
            *mine = at;
        }
        self
    }
}
