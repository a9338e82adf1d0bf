//! The groups of a rank's step: which it joins, in which order, and which its program names.

use crate::spec::RankSpec;
use crossweave_mesh::{Axis, AxisSet, Channel, GroupKey, Part};
use crossweave_plan::{Facts, PipelineStage, Said, UnitTalk};
use std::collections::{BTreeMap, BTreeSet};

/// The groups of ranks that share flats over some axes, and of those that hold the other parts of the same parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerGroups {
    /// The axes.
    pub axes: AxisSet,
    /// Ranks that share the flats.
    pub data: Option<GroupKey>,
    /// The same, for gathers, which need not wait for reductions.
    pub gather: Option<GroupKey>,
    /// Those of them on its node, which gather from secondary shards.
    pub node: Option<GroupKey>,
    /// Ranks that hold the other parts.
    pub parts: Option<GroupKey>,
}

/// The groups a rank is in, each only where it has other members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepGroups {
    /// By the axes over which flats are shared, those of dense parameters first.
    pub owners: Vec<OwnerGroups>,
    /// Those of its stage, over which figures of whole parameters are summed: the same where no parameter is cut.
    pub figures: Option<GroupKey>,
    /// Pipeline stages.
    pub stages: Option<GroupKey>,
    /// Everyone.
    pub all: Option<GroupKey>,
    /// The stages again, for messages: these and sums over the stages run on other streams and need no common order.
    pub peers: Option<GroupKey>,
    /// For each unit that stages share with this one, those that do, in the order of the units that read it.
    pub ties: BTreeMap<usize, GroupKey>,
    /// Those with whom blocks communicate, by what they say in the dry run.
    pub blocks: Vec<GroupKey>,
    /// Ranks with whom sums of gradients are completed: those that have other tokens of the same rows, and other parts of the same experts.
    pub summands: Vec<GroupKey>,
    /// Ranks that have the other parts of matrices which an optimizer sees whole.
    pub matrices: Option<GroupKey>,
}

impl OwnerGroups {
    fn of(spec: &RankSpec, axes: AxisSet, gathers: bool) -> OwnerGroups {
        let place = &spec.place;
        let data = place.among(axes);
        let gather = data.clone().filter(|_| gathers);
        // Nodes are runs of the data-parallel ranks.
        let node = gather.clone().filter(|_| axes == AxisSet::DATA);
        let of = spec.zero.node;
        OwnerGroups {
            axes,
            data,
            node: node.filter(|_| of > 1).map(|g| g.part(Part::Node(of))),
            gather: gather.map(|g| g.on(Channel::Gather)),
            parts: place.among(axes.holders()),
        }
    }
}

impl StepGroups {
    /// Those of a rank whose plan gathers, or does not; `shared`: the units that stages share, and which do; `owners`: the axes over which each
    /// unit is shared; `facts`: what the blocks of the whole model say.
    pub fn of(
        spec: &RankSpec,
        shared: &BTreeMap<usize, Vec<PipelineStage>>,
        owners: &BTreeSet<AxisSet>,
        gathers: bool,
        facts: &Facts,
    ) -> StepGroups {
        let place = &spec.place;
        let stages = place.among(Axis::Pp);
        let own = shared.iter().filter(|(_, s)| s.contains(&spec.stage()));
        let tied = |s: &[u32]| GroupKey::over(Axis::Pp).part(Part::Tied(s.to_vec()));
        let ties = own.map(|(unit, s)| (*unit, tied(s))).collect();
        let experts = owners.iter().copied().filter(|a| *a != AxisSet::DATA);
        let axes = [AxisSet::DATA].into_iter().chain(experts);
        StepGroups {
            owners: axes.map(|a| OwnerGroups::of(spec, a, gathers)).collect(),
            figures: place.among(AxisSet::STAGE),
            all: place.among(AxisSet::WORLD),
            peers: stages.clone().map(|g| g.on(Channel::Peers)),
            ties,
            stages,
            blocks: said_groups(spec, facts),
            summands: summand_groups(spec, facts),
            matrices: None,
        }
    }

    /// The ranks that share layers, on a communicator beside that of their blocks.
    pub fn beside_blocks(spec: &RankSpec) -> Option<GroupKey> {
        let ranks = spec.place.among(Axis::Tp);
        ranks.map(|g| g.on(Channel::Tokens))
    }

    /// All of them, in the order in which every rank joins.
    pub fn joined(&self) -> Vec<GroupKey> {
        let data = self.owners.iter().flat_map(|o| [&o.data, &o.parts]);
        let steps = [&self.figures, &self.stages, &self.all, &self.peers];
        // Several units may have one, and stages come to those they share in one order.
        let ties: BTreeSet<&GroupKey> = self.ties.values().collect();
        let gathers = self.owners.iter().flat_map(|o| [&o.gather, &o.node]);
        let mut out: Vec<GroupKey> = vec![];
        let others = data.chain(steps).flatten().chain(ties);
        let others = others.chain(gathers.flatten());
        for key in others
            .chain(&self.blocks)
            .chain(&self.summands)
            .chain(&self.matrices)
        {
            if !out.contains(key) {
                out.push(key.clone());
            }
        }
        out
    }
}

/// The groups over which reductions complete gradients that ranks have summands of: for the whole model, in an order that all ranks have.
fn summand_groups(spec: &RankSpec, facts: &Facts) -> Vec<GroupKey> {
    let said = facts.units.iter().flat_map(|u| &u.talk.reduction);
    let groups = said.filter_map(|s| spec.place.among(s.axes));
    let all: BTreeSet<GroupKey> = groups.map(|g| g.on(Channel::Tokens)).collect();
    all.into_iter().collect()
}

/// The groups of what blocks say, in an order that all ranks have.
fn said_groups(spec: &RankSpec, facts: &Facts) -> Vec<GroupKey> {
    let talks = facts.units.iter().map(|u| &u.talk);
    let kept = |t: &UnitTalk| t.kept.as_ref().map(|k| k.gather.clone());
    let said = talks.flat_map(|t| {
        let all = t.forward.iter().chain(&t.backward).cloned();
        all.chain(kept(t))
    });
    let group = |s: Said| {
        let key = spec.place.among(s.axes)?;
        let moves = s.moves.as_ref();
        let key = match moves.map_or(0, |m| m.within) {
            0 => key,
            n => key.part(Part::Node(n)),
        };
        let beside = spec.zero.overlap && moves.is_some_and(|m| m.beside);
        Some(if beside { key.on(Channel::Blocks) } else { key })
    };
    let all: BTreeSet<GroupKey> = said.filter_map(group).collect();
    all.into_iter().collect()
}
