//! Groups of ranks, by name.

use crate::axis::{Axis, AxisSet};
use std::fmt;

/// Which members of a group over axes are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// All.
    #[default]
    Whole,
    /// Those of a rank's node: the group is cut into runs of so many members (hierarchical partition, ZeRO++ hpZ; the ranks that exchange
    /// heads within a ring).
    Node(u32),
    /// Those at these places of the group: pipeline stages that share parameters.
    Tied(Vec<u32>),
}

/// Over one set of ranks there may be several communicators, so that what travels on one need not be in order with what
/// travels on another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Channel {
    /// Reductions, figures, and what blocks say.
    #[default]
    Main,
    /// Gathers of parameters, beside the reductions.
    Gather,
    /// Messages between single members.
    Peers,
    /// What blocks say beside their own stream.
    Blocks,
    /// Sums of gradients over ranks that have other tokens of the same rows, beside what blocks say.
    Tokens,
}

/// The name of a group: what programs, plans and messages call it. Every member has the same name for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKey {
    /// The axes on which its members differ.
    pub axes: AxisSet,
    /// Which of them.
    pub part: Part,
    /// On which communicator.
    pub channel: Channel,
}

impl GroupKey {
    /// The group over these axes.
    pub fn over(axes: impl Into<AxisSet>) -> GroupKey {
        GroupKey {
            axes: axes.into(),
            ..GroupKey::default()
        }
    }
    /// The same members on another communicator.
    pub fn on(self, channel: Channel) -> GroupKey {
        GroupKey { channel, ..self }
    }
    /// A part of it.
    pub fn part(self, part: Part) -> GroupKey {
        GroupKey { part, ..self }
    }

    /// Its name in the ledger of collectives, which adds up over communicators: `dp`, `dp.node`, `tie`.
    pub fn ledger(&self) -> String {
        match self.part {
            Part::Whole => self.axes.to_string(),
            Part::Node(_) => format!("{}.node", self.axes),
            Part::Tied(_) => "tie".into(),
        }
    }
}

impl fmt::Display for GroupKey {
    /// `dp`, `dp/gather`, `dp/node`, `pp/tie`, `pp/peers`, `tp/blocks`, `tp/tokens`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.axes)?;
        f.write_str(match self.part {
            Part::Whole => "",
            Part::Node(_) => "/node",
            Part::Tied(_) => "/tie",
        })?;
        f.write_str(match self.channel {
            Channel::Main => "",
            Channel::Gather => "/gather",
            Channel::Peers => "/peers",
            Channel::Blocks => "/blocks",
            Channel::Tokens => "/tokens",
        })
    }
}

impl From<AxisSet> for GroupKey {
    fn from(axes: AxisSet) -> GroupKey {
        GroupKey::over(axes)
    }
}
impl From<Axis> for GroupKey {
    fn from(axis: Axis) -> GroupKey {
        GroupKey::over(axis)
    }
}
impl From<&[Axis]> for GroupKey {
    fn from(axes: &[Axis]) -> GroupKey {
        GroupKey::over(axes)
    }
}
impl<const N: usize> From<&[Axis; N]> for GroupKey {
    fn from(axes: &[Axis; N]) -> GroupKey {
        GroupKey::over(axes)
    }
}
impl From<&GroupKey> for GroupKey {
    fn from(key: &GroupKey) -> GroupKey {
        key.clone()
    }
}

/// Ranks that communicate: those that differ only on the group's axes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// Its name.
    pub key: GroupKey,
    /// Its ranks by their numbers in the job, as the transport knows them; a rank's place here is its rank in the group's
    /// communicator.
    pub ranks: Vec<u32>,
    /// Place of the asking rank in `ranks`.
    pub index: u32,
}

impl Group {
    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// A name that all members form alike and no other group of the mesh shares: key and first rank (`dp.tp@0`), and of stages that share
    /// parameters which they are (`pp/tie.0.3@0`).
    pub fn name(&self) -> String {
        let places = match &self.key.part {
            Part::Tied(places) => places.iter().map(|p| format!(".{p}")).collect(),
            _ => String::new(),
        };
        let first = self.ranks.first().copied().unwrap_or(0);
        format!("{}{places}@{first}", self.key)
    }
}
