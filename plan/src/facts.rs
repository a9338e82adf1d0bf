//! What a planner knows before the first step: sizes from the dry run, costs from a measurement, the budget.

use crate::op::{Keep, UnitId};
use crossweave_axes::AxisSet;
use serde::{Deserialize, Serialize};

/// Sizes and costs of one unit on this rank. Bytes are per micro-batch where a micro-batch is involved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitFacts {
    /// The unit's prefix, as in checkpoint names (`model.layers.3`).
    pub name: String,
    /// Parameter elements of the whole unit. Zero: nothing to gather.
    pub params: u64,
    /// The number of these elements that are never updated and lie in a flat of their own (under adapters).
    #[serde(default)]
    pub base: u64,
    /// Bytes of the whole unit's parameters in the type the forward reads.
    pub param_bytes: u64,
    /// Bytes of the whole unit's gradient. Zero: nothing to reduce or update (no parameters, or all frozen).
    pub grad_bytes: u64,
    /// Bytes of master copy and optimizer moments of the whole unit.
    pub state_bytes: u64,
    /// The part of `state_bytes` that rests in host memory or below when the unit's update runs on the host lane.
    #[serde(default)]
    pub host_state_bytes: u64,
    /// Bytes left by a forward that keeps all, its input included.
    pub saved_all: u64,
    /// Bytes left by a forward that keeps selectively, its input included.
    pub saved_selective: u64,
    /// Bytes left by a forward that keeps its input only: the input.
    pub saved_input: u64,
    /// Bytes that the first part of a backward in two leaves for the second: the operands of the products that give gradients of weights.
    #[serde(default)]
    pub owed_bytes: u64,
    /// Bytes of the unit's output, which flows to the next unit.
    pub flow_bytes: u64,
    /// Most bytes any one step of this unit needs beyond what it leaves behind.
    pub workspace_bytes: u64,
    /// Estimated time of a forward, in nanoseconds.
    pub forward_ns: u64,
    /// Estimated time of a backward, in nanoseconds.
    pub backward_ns: u64,
    /// Other units whose parameters this one reads too, and into whose gradients it sums (a tied output head).
    #[serde(default)]
    pub ties: Vec<UnitId>,
    /// The communication of its steps beyond what the plan shows.
    #[serde(skip)]
    pub talk: UnitTalk,
}

/// Whom a unit's steps speak to, and the collectives inside them, each list in order: every member of the group says the same, or the group
/// hangs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitTalk {
    /// The axes over which ranks share the unit, where these are not the data-parallel ones (experts), and how many ranks they are: whom its
    /// gathers and reductions are with.
    pub owners: Option<(AxisSet, u32)>,
    /// A rank holds a part of some of its parameters, and other ranks the rest.
    pub parts: bool,
    /// Elements that are trained on the rank that has the most, where these ranks have parts of different sizes: by it all of them choose alike.
    pub most: Option<u64>,
    /// Inside its forward, and again where that is recomputed.
    pub forward: Vec<Said>,
    /// The part of its input that a rank keeps where ranks with the same input keep a part each, and how these are brought together before the forward
    /// is recomputed.
    pub kept: Option<KeptPart>,
    /// Inside its backward.
    pub backward: Vec<Said>,
    /// Inside the reduction of its gradient: sums over ranks that have other tokens of the same rows.
    pub reduction: Vec<Said>,
    /// These are in each reduction, also of some micro-batches only, and not just in the one that completes the gradient.
    pub each_reduction: bool,
    /// Inside its update: norms of whole parameters that an optimizer sums.
    pub update: Vec<Said>,
}

/// The part of a unit's input that a rank keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptPart {
    /// Bytes left by a forward that keeps its part only.
    pub bytes: u64,
    /// The gather of the parts.
    pub gather: Said,
}

/// A collective inside a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// The axes of its group.
    pub axes: AxisSet,
    /// The operation in words: `reduce of 64 elements`.
    pub what: String,
    /// The elements that it moves, where they are known: of what blocks say.
    pub moves: Option<Moves>,
}

/// The elements that one call of a block moves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// Its kind, as in the ledger of collectives; `messages` to and from single ranks.
    pub kind: &'static str,
    /// Element type.
    pub dtype: &'static str,
    /// Elements of the whole vector.
    pub elements: u64,
    /// On a stream and a communicator beside those of the block.
    pub beside: bool,
    /// Made only where the forward's value was not kept: not in a backward that follows its recomputation.
    pub again: bool,
    /// The number of consecutive members of the axes' group that take part; 0: all.
    pub within: u32,
    /// Members of the group.
    pub ranks: u32,
    /// The elements follow from data, as many as said where ranks have equally many, and so many at most; 0: they are known.
    pub most: u64,
    /// Made by the first forward of a micro-batch only, and not where it runs again.
    pub once: bool,
    /// The elements that go to and come from single members, where these are not alike for all and do not follow from data.
    pub peers: Vec<Peer>,
}

/// Elements that go to one member of a group, or come from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its distance in the group, counted ahead and around the end.
    pub ahead: u32,
    /// Their number.
    pub elements: u64,
    /// They go there.
    pub sends: bool,
}

impl Said {
    /// The elements of each message to the member so many places ahead, or from it.
    pub(crate) fn with(&self, ahead: u32, sends: bool) -> Vec<u64> {
        let peers = self.moves.iter().flat_map(|m| &m.peers);
        let those = peers.filter(|p| (p.ahead, p.sends) == (ahead, sends));
        those.map(|p| p.elements).collect()
    }
    /// The same of two members, whatever numbers of elements they exchange with single ones.
    pub(crate) fn is_alike(&self, other: &Said) -> bool {
        // What follows from data is compared as an exchange, and not by its size.
        let has_peers = |s: &Said| {
            let moves = s.moves.as_ref();
            moves.is_some_and(|m| !m.peers.is_empty() || m.most > 0)
        };
        let (Some(a), Some(b)) = (&self.moves, &other.moves) else {
            return self == other;
        };
        if !has_peers(self) && !has_peers(other) {
            return self == other;
        }
        let call = |m: &Moves| (m.kind, m.dtype, m.beside, m.within);
        self.axes == other.axes && call(a) == call(b)
    }
}

impl UnitFacts {
    /// Bytes a forward with this `keep` leaves behind.
    pub fn saved(&self, keep: Keep) -> u64 {
        match keep {
            Keep::All => self.saved_all,
            Keep::Selective => self.saved_selective,
            Keep::Input => self.saved_input,
            Keep::Nothing => 0,
        }
    }
}

/// Sizes of the model, the batch and the machine, on which passes and `check` decide.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Units of the whole model in run order.
    pub units: Vec<UnitFacts>,
    /// Micro-batches of one optimizer step on this rank.
    pub micro_batches: u32,
    /// Ranks of the data-parallel group: sharded things are 1/ranks each, but for units with other owners. At least 1.
    pub ranks: u32,
    /// Bytes the device may hold; none: not limited.
    pub budget: Option<u64>,
    /// Units that may be gathered at once; none: not limited.
    pub slots: Option<u32>,
}

impl Facts {
    /// Facts of `units` equal units, for tests, examples and first estimates.
    pub fn uniform(units: u32, micro_batches: u32, ranks: u32, unit: UnitFacts) -> Facts {
        let units = (0..units)
            .map(|k| UnitFacts {
                name: format!("unit.{k}"),
                ..unit.clone()
            })
            .collect();
        Facts {
            units,
            micro_batches,
            ranks,
            budget: None,
            slots: None,
        }
    }

    /// The unit and those it is tied to: every unit whose parameters `unit` reads.
    pub fn touched(&self, unit: UnitId) -> impl Iterator<Item = UnitId> + '_ {
        let ties = self.units.get(unit as usize).map(|u| u.ties.as_slice());
        std::iter::once(unit).chain(ties.unwrap_or_default().iter().copied())
    }

    /// Returns true if the unit has parameters to gather.
    pub fn has_params(&self, unit: UnitId) -> bool {
        self.units.get(unit as usize).is_some_and(|u| u.params > 0)
    }

    /// Returns true if the unit has a gradient to reduce and a state to update.
    pub fn has_grads(&self, unit: UnitId) -> bool {
        self.units
            .get(unit as usize)
            .is_some_and(|u| u.grad_bytes > 0)
    }

    /// Bytes of a slot for the whole parameters of a unit, padded so that every rank has an equal slice. Slots of one size serve each other.
    pub fn slot_bytes(&self, unit: UnitId) -> u64 {
        let Some(u) = self.units.get(unit as usize) else {
            return 0;
        };
        let shard = |n| self.shard(unit, n);
        let parts = shard(u.params.saturating_sub(u.base)) + shard(u.base);
        let padded = parts * self.sharers(unit);
        padded * (u.param_bytes / u.params.max(1))
    }

    /// The axes over which ranks share the parameters of a unit.
    pub fn owners(&self, unit: UnitId) -> AxisSet {
        let u = self.units.get(unit as usize);
        u.and_then(|u| u.talk.owners).map_or(AxisSet::DATA, |o| o.0)
    }

    /// Ranks that share the parameters of a unit.
    pub fn sharers(&self, unit: UnitId) -> u64 {
        let owners = self.units.get(unit as usize).and_then(|u| u.talk.owners);
        u64::from(owners.map_or(self.ranks, |o| o.1).max(1))
    }

    /// One rank's part of `bytes` of a unit, sharded over the ranks that share it, rounded up.
    pub fn shard(&self, unit: UnitId, bytes: u64) -> u64 {
        bytes.div_ceil(self.sharers(unit))
    }
}
