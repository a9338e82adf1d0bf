//! The groups of a rank's step: which it joins, in which order, and which its program names.

use crate::spec::RankSpec;
use crossweave_mesh::{Axis, AxisSet, Channel, GroupKey, Part};
use std::collections::BTreeSet;

/// The groups a rank is in, each only where it has other members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepGroups {
    /// Ranks that share its flats.
    pub data: Option<GroupKey>,
    /// Those of its stage, over which figures of whole parameters are summed: the same where no parameter is cut.
    pub figures: Option<GroupKey>,
    /// Ranks that hold the other parts of parameters.
    pub parts: Option<GroupKey>,
    /// Pipeline stages.
    pub stages: Option<GroupKey>,
    /// Everyone.
    pub all: Option<GroupKey>,
    /// The stages again, for messages: these and sums over the stages run on other streams and need no common order.
    pub peers: Option<GroupKey>,
    /// Stages that share a unit's parameters with this one.
    pub tie: Option<GroupKey>,
    /// Ranks that share its flats, for gathers, which need not wait for reductions.
    pub gather: Option<GroupKey>,
    /// Those of them on its node, which gather from secondary shards.
    pub node: Option<GroupKey>,
}

impl StepGroups {
    /// Those of a rank whose plan gathers, or does not; `shared`: the sets of stages that share a unit.
    pub fn of(spec: &RankSpec, shared: &[BTreeSet<usize>], gathers: bool) -> StepGroups {
        let place = &spec.place;
        let data = place.among(AxisSet::DATA);
        let stages = place.among(Axis::Pp);
        let own = shared.iter().find(|s| s.contains(&(spec.stage() as usize)));
        let tied = own.filter(|s| s.len() > 1).map(|s| {
            let places = s.iter().map(|s| *s as u32).collect();
            GroupKey::over(Axis::Pp).part(Part::Tied(places))
        });
        let gather = data.clone().filter(|_| gathers);
        let node = spec.zero.node;
        StepGroups {
            figures: place.among(AxisSet::STAGE),
            parts: place.among(Axis::Tp),
            all: place.among(AxisSet::WORLD),
            peers: stages.clone().map(|g| g.on(Channel::Peers)),
            tie: tied,
            node: gather
                .clone()
                .filter(|_| node > 1)
                .map(|g| g.part(Part::Node(node))),
            gather: gather.map(|g| g.on(Channel::Gather)),
            data,
            stages,
        }
    }

    /// All of them, in the order in which every rank joins.
    pub fn joined(&self) -> Vec<GroupKey> {
        let all = [
            &self.data,
            &self.figures,
            &self.parts,
            &self.stages,
            &self.all,
            &self.peers,
            &self.tie,
            &self.gather,
            &self.node,
        ];
        let mut out: Vec<GroupKey> = vec![];
        for key in all.into_iter().flatten() {
            if !out.contains(key) {
                out.push(key.clone());
            }
        }
        out
    }
}
