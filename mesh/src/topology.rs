//! Rank arithmetic: a world of ranks as a grid over named axes, and the groups that any set of axes makes.
//!
//! The grid's first axis varies slowest and its last fastest, so neighbours on the last axis are neighbours in rank
//! (and, as launchers number them, on one node). An axis that is not written has length one: asking for its group gives
//! the group of the rank alone, which is a group like any other.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A mesh axis: one kind of parallelism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Data: each coordinate sees other samples.
    Dp,
    /// Pipeline: each coordinate runs other units.
    Pp,
    /// Tensor: each coordinate holds a piece of the weights.
    Tp,
    /// Context: each coordinate holds a piece of the sequence.
    Cp,
    /// Expert: each coordinate holds other experts.
    Ep,
}

impl Axis {
    /// Every axis.
    pub const ALL: [Axis; 5] = [Axis::Dp, Axis::Pp, Axis::Tp, Axis::Cp, Axis::Ep];

    /// The order in which [`Topology::new`] lays axes out, slowest first: what talks most is closest.
    pub const LAYOUT: [Axis; 5] = [Axis::Pp, Axis::Dp, Axis::Cp, Axis::Ep, Axis::Tp];

    /// The axis's name in configurations and error texts.
    pub fn name(self) -> &'static str {
        match self {
            Axis::Dp => "dp",
            Axis::Pp => "pp",
            Axis::Tp => "tp",
            Axis::Cp => "cp",
            Axis::Ep => "ep",
        }
    }
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Axis {
    type Err = TopologyError;

    fn from_str(text: &str) -> Result<Axis, TopologyError> {
        let found = Axis::ALL.into_iter().find(|a| a.name() == text);
        found.ok_or_else(|| {
            TopologyError(format!(
                "'{text}' is not a mesh axis; the axes are dp, pp, tp, cp and ep"
            ))
        })
    }
}

/// What is wrong with a mesh, in a sentence that names axis and rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyError(pub String);

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TopologyError {}

/// Lengths of the axes in layout order; every axis is present, absent ones with length one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    axes: Vec<(Axis, u32)>,
    world: u32,
}

impl Topology {
    /// A mesh of these axis lengths in the usual layout ([`Axis::LAYOUT`]); axes not named have length one.
    pub fn new(lengths: &[(Axis, u32)]) -> Result<Topology, TopologyError> {
        let length = |axis| {
            let named = lengths.iter().find(|(a, _)| *a == axis);
            (axis, named.map_or(1, |(_, n)| *n))
        };
        distinct(lengths.iter().map(|(a, _)| *a))?;
        Topology::with_layout(&Axis::LAYOUT.map(length))
    }

    /// A mesh whose axes are laid out as listed, slowest first; axes not listed have length one.
    pub fn with_layout(axes: &[(Axis, u32)]) -> Result<Topology, TopologyError> {
        distinct(axes.iter().map(|(a, _)| *a))?;
        let mut axes = axes.to_vec();
        for axis in Axis::ALL {
            if !axes.iter().any(|(a, _)| *a == axis) {
                axes.push((axis, 1));
            }
        }
        let mut world = 1u32;
        for &(axis, length) in &axes {
            if length == 0 {
                return Err(TopologyError(format!(
                    "mesh axis {axis} has length 0; the least is 1"
                )));
            }
            world = world.checked_mul(length).ok_or_else(|| {
                TopologyError(format!(
                    "the mesh has more ranks than can be numbered, counting up to axis {axis}"
                ))
            })?;
        }
        Ok(Topology { axes, world })
    }

    /// The same mesh, with the data axis as long as it takes to use `world` ranks.
    pub fn fill_data(lengths: &[(Axis, u32)], world: u32) -> Result<Topology, TopologyError> {
        let others: Vec<(Axis, u32)> = lengths
            .iter()
            .copied()
            .filter(|(a, _)| *a != Axis::Dp)
            .collect();
        let rest = Topology::new(&others)?.world;
        if world == 0 || !world.is_multiple_of(rest) {
            return Err(TopologyError(format!(
                "{world} ranks cannot be divided over axes that take {rest} together; use a multiple of {rest}"
            )));
        }
        let all: Vec<(Axis, u32)> = others
            .into_iter()
            .chain([(Axis::Dp, world / rest)])
            .collect();
        Topology::new(&all)
    }

    /// Number of ranks.
    pub fn world_size(&self) -> u32 {
        self.world
    }

    /// Length of an axis.
    pub fn length(&self, axis: Axis) -> u32 {
        self.axes
            .iter()
            .find(|(a, _)| *a == axis)
            .map_or(1, |(_, n)| *n)
    }

    /// The axes in layout order with their lengths.
    pub fn axes(&self) -> &[(Axis, u32)] {
        &self.axes
    }

    /// A rank's coordinates.
    pub fn coords(&self, rank: u32) -> Result<Coords, TopologyError> {
        if rank >= self.world {
            return Err(TopologyError(format!(
                "rank {rank} is outside a world of {} ranks",
                self.world
            )));
        }
        let mut at = [0; Axis::ALL.len()];
        let mut rest = rank;
        for &(axis, length) in self.axes.iter().rev() {
            at[axis as usize] = rest % length;
            rest /= length;
        }
        Ok(Coords { at })
    }

    /// The rank at these coordinates.
    pub fn rank(&self, coords: &Coords) -> Result<u32, TopologyError> {
        let mut rank = 0;
        for &(axis, length) in &self.axes {
            let at = coords.get(axis);
            if at >= length {
                return Err(TopologyError(format!(
                    "coordinate {at} is outside axis {axis} of length {length}"
                )));
            }
            rank = rank * length + at;
        }
        Ok(rank)
    }

    /// The group of `rank` over a set of axes: the ranks that share its coordinates on all other axes, in the order of
    /// the layout. No axes at all: the rank alone.
    pub fn group(&self, rank: u32, axes: &[Axis]) -> Result<Group, TopologyError> {
        let here = self.coords(rank)?;
        let mut ranks = vec![here];
        for &(axis, length) in self.axes.iter().filter(|(a, _)| axes.contains(a)) {
            let each = |c: Coords| (0..length).map(move |at| c.with(axis, at));
            ranks = ranks.into_iter().flat_map(each).collect();
        }
        let ranks: Result<Vec<u32>, TopologyError> = ranks.iter().map(|c| self.rank(c)).collect();
        let ranks = ranks?;
        let index = ranks.iter().position(|&r| r == rank).unwrap_or(0) as u32;
        let mut axes: Vec<Axis> = self
            .axes
            .iter()
            .map(|(a, _)| *a)
            .filter(|a| axes.contains(a))
            .collect();
        axes.dedup();
        Ok(Group { axes, ranks, index })
    }

    /// All groups over a set of axes, by their first rank: together they hold every rank once.
    pub fn groups(&self, axes: &[Axis]) -> Vec<Group> {
        let own = |rank| self.group(rank, axes).ok().filter(|g| g.index == 0);
        (0..self.world).filter_map(own).collect()
    }

    /// The rank `by` places further along an axis, going round at the ends.
    pub fn neighbour(&self, rank: u32, axis: Axis, by: i64) -> Result<u32, TopologyError> {
        let here = self.coords(rank)?;
        let length = i64::from(self.length(axis));
        let at = (i64::from(here.get(axis)) + by.rem_euclid(length)) % length;
        self.rank(&here.with(axis, at as u32))
    }
}

impl fmt::Display for Topology {
    /// `pp2 x dp4`: the axes longer than one in layout order, or `1 rank`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let long: Vec<String> = self
            .axes
            .iter()
            .filter(|(_, n)| *n > 1)
            .map(|(a, n)| format!("{a}{n}"))
            .collect();
        f.write_str(&if long.is_empty() {
            "1 rank".to_string()
        } else {
            long.join(" x ")
        })
    }
}

fn distinct(axes: impl Iterator<Item = Axis>) -> Result<(), TopologyError> {
    let mut seen = Vec::new();
    for axis in axes {
        if seen.contains(&axis) {
            return Err(TopologyError(format!("mesh axis {axis} is given twice")));
        }
        seen.push(axis);
    }
    Ok(())
}

/// Where a rank stands on each axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Coords {
    at: [u32; Axis::ALL.len()],
}

impl Coords {
    /// The coordinate on an axis.
    pub fn get(&self, axis: Axis) -> u32 {
        self.at[axis as usize]
    }

    /// The same place with another coordinate on one axis.
    pub fn with(mut self, axis: Axis, at: u32) -> Coords {
        self.at[axis as usize] = at;
        self
    }
}

/// Ranks that communicate: those that differ only on the group's axes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// The axes it spans, in layout order.
    pub axes: Vec<Axis>,
    /// Its ranks, ascending in the layout; a rank's place here is its rank in the group's communicator.
    pub ranks: Vec<u32>,
    /// Place of the asking rank in `ranks`.
    pub index: u32,
}

impl Group {
    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// A name that all members form alike and no other group of the mesh shares: axes and first rank (`dp.tp@0`).
    pub fn name(&self) -> String {
        let axes: Vec<&str> = self.axes.iter().map(|a| a.name()).collect();
        let axes = if axes.is_empty() {
            "self".to_string()
        } else {
            axes.join(".")
        };
        format!("{axes}@{}", self.ranks.first().copied().unwrap_or(0))
    }
}
