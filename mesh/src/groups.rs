//! Groups that communicate: a topology, and a communicator for each set of axes asked for.
//!
//! A group of one rank is a real group: the same calls, the same ledger, no special case above. Its name in messages and in the ledger
//! is its axes (`dp`, `dp.tp`); groups of one name that live side by side (the `tp` of each data replica) are kept apart by their first
//! rank where ids are exchanged.

use crate::islands::{Islands, Membership};
use crate::topology::{Axis, Group, Topology, TopologyError};
use crossweave_collectives::{Collectives, Faults, RouteLine};
use crossweave_hal::trace::Tracer;
use crossweave_hal::{AbortHandle, Bootstrap, Device, Error, Result};
use std::time::Duration;

/// Options of all groups of a mesh.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeshOptions {
    /// For connecting and for each collective; `None` leaves it to the plugin.
    pub timeout: Option<Duration>,
    /// The islands of a job of several back ends.
    pub islands: Option<Islands>,
}

/// One rank's place in a topology, with its groups.
pub struct Mesh {
    topology: Topology,
    rank: u32,
    groups: Vec<(Group, Collectives)>,
    /// Further communicators, by label.
    named: Vec<(&'static str, Collectives)>,
}

impl From<TopologyError> for Error {
    fn from(e: TopologyError) -> Error {
        Error::invalid("mesh", e.0)
    }
}

/// A group of a mesh, found once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupRef {
    /// By its place among the groups over axes.
    Axes(usize),
    /// By its place among those joined under a label.
    Named(usize),
}

/// The ledger's name of a set of axes: `dp.tp`, or `self` for none.
fn name_of(axes: &[Axis]) -> String {
    match axes {
        [] => "self".into(),
        _ => axes.iter().map(|a| a.name()).collect::<Vec<_>>().join("."),
    }
}

impl Mesh {
    /// Takes `rank`'s place and joins one group for each set of axes. Every rank of the topology calls this with the same sets in the
    /// same order. Sets are sets: order within one, and a set given twice, make no difference.
    pub fn new(
        device: &Device,
        boot: &dyn Bootstrap,
        topology: Topology,
        rank: u32,
        sets: &[&[Axis]],
        options: &MeshOptions,
    ) -> Result<Mesh> {
        topology.coords(rank)?;
        device.set_rank(rank);
        let mut groups: Vec<(Group, Collectives)> = vec![];
        for axes in sets {
            let group = topology.group(rank, axes)?;
            if groups.iter().any(|(g, _)| g.axes == group.axes) {
                continue;
            }
            let membership = Membership {
                scope: &group.name(),
                name: &name_of(&group.axes),
                ranks: &group.ranks,
                index: group.index,
            };
            let comm = membership
                .join(device, boot, options)
                .map_err(|e| e.context(format!("rank {rank} joining ranks {:?}", group.ranks)))?;
            groups.push((group, comm));
        }
        Ok(Mesh {
            topology,
            rank,
            groups,
            named: vec![],
        })
    }

    /// Joins a further group under `label`: a second communicator over the ranks of an axis for a lane of its own, or a part of an axis
    /// (the ranks of a node). `ranks` are its members in order, this rank among them; `name` is its name in the ledger. Every member
    /// calls this with the same arguments, in the same order among its other joins.
    ///
    /// # Errors
    /// This rank is not a member; the label is taken; a member that cannot be reached.
    pub fn join(
        &mut self,
        device: &Device,
        boot: &dyn Bootstrap,
        label: &'static str,
        name: &str,
        ranks: &[u32],
        options: &MeshOptions,
    ) -> Result<()> {
        let Some(index) = ranks.iter().position(|&r| r == self.rank) else {
            return Err(Error::invalid(
                "mesh",
                format!("rank {} is not among {ranks:?} of group {label}", self.rank),
            ));
        };
        if self.named.iter().any(|(l, _)| *l == label) {
            return Err(Error::invalid(
                "mesh",
                format!("group {label} is joined twice"),
            ));
        }
        let scope = format!("{label}.{}", ranks[0]);
        let membership = Membership {
            scope: &scope,
            name,
            ranks,
            index: index as u32,
        };
        let comm = membership
            .join(device, boot, options)
            .map_err(|e| e.context(format!("rank {} joining ranks {ranks:?}", self.rank)))?;
        self.named.push((label, comm));
        Ok(())
    }

    /// The communicator joined under `label`.
    ///
    /// # Errors
    /// There is none.
    pub fn named(&mut self, label: &str) -> Result<&mut Collectives> {
        let group = self.named_ref(label)?;
        Ok(self.by(group))
    }

    /// The group over these axes, for [`Mesh::by`].
    ///
    /// # Errors
    /// There is none.
    pub fn group_ref(&self, axes: &[Axis]) -> Result<GroupRef> {
        self.find(axes).map(GroupRef::Axes)
    }

    /// The group joined under `label`, for [`Mesh::by`].
    ///
    /// # Errors
    /// There is none.
    pub fn named_ref(&self, label: &str) -> Result<GroupRef> {
        let hit = self.named.iter().position(|(l, _)| *l == label);
        hit.map(GroupRef::Named)
            .ok_or_else(|| self.not_joined(label))
    }

    fn not_joined(&self, label: &str) -> Error {
        let why = format!("rank {} has not joined group {label}", self.rank);
        Error::invalid("mesh", why)
    }

    /// The communicator of a group of this mesh.
    pub fn by(&mut self, group: GroupRef) -> &mut Collectives {
        match group {
            GroupRef::Axes(i) => &mut self.groups[i].1,
            GroupRef::Named(i) => &mut self.named[i].1,
        }
    }

    /// The grid of ranks.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }
    /// My rank in it.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    fn find(&self, axes: &[Axis]) -> Result<usize> {
        let same = |g: &Group| {
            g.axes.iter().all(|a| axes.contains(a)) && axes.iter().all(|a| g.axes.contains(a))
        };
        let hit = self.groups.iter().position(|(g, _)| same(g));
        hit.ok_or_else(|| {
            let mut wanted = axes.to_vec();
            wanted.sort();
            let has: Vec<String> = self.groups.iter().map(|(g, _)| name_of(&g.axes)).collect();
            let has = match has.is_empty() {
                true => "none".into(),
                false => has.join(", "),
            };
            Error::invalid(
                "mesh",
                format!(
                    "rank {} has no group {}; its groups are: {has}. Ask for it in Mesh::new",
                    self.rank,
                    name_of(&wanted)
                ),
            )
        })
    }

    /// The communicator over these axes; it must have been asked for in [`Mesh::new`].
    pub fn group(&mut self, axes: &[Axis]) -> Result<&mut Collectives> {
        let i = self.find(axes)?;
        Ok(&mut self.groups[i].1)
    }

    /// Who is in the group over these axes, by rank of the topology.
    pub fn members(&self, axes: &[Axis]) -> Result<&Group> {
        self.find(axes).map(|i| &self.groups[i].0)
    }

    /// For a watchdog: aborting all of them releases this rank from every group it may be waiting in.
    pub fn abort_handles(&self) -> Vec<AbortHandle> {
        let named = self.named.iter().map(|(_, c)| c);
        let all = self.groups.iter().map(|(_, c)| c).chain(named);
        all.flat_map(Collectives::abort_handles).collect()
    }

    /// Ends this rank's part in all groups, with a look at what is left over in each: see [`Collectives::close`].
    ///
    /// # Errors
    /// The first group's messages nobody has answered, or work nobody has waited for.
    pub fn close(self) -> Result<()> {
        let named = self.named.into_iter().map(|(_, c)| c);
        let all = self.groups.into_iter().map(|(_, c)| c).chain(named);
        // Every group is closed, also behind one that has something left.
        let ends: Vec<Result<()>> = all.map(Collectives::close).collect();
        ends.into_iter().collect()
    }

    fn each(&mut self) -> impl Iterator<Item = &mut Collectives> {
        let named = self.named.iter_mut().map(|(_, c)| c);
        self.groups.iter_mut().map(|(_, c)| c).chain(named)
    }

    /// From now on these faults strike this rank, in whatever group.
    pub fn inject(&mut self, faults: &Faults) {
        self.each().for_each(|c| c.inject(faults));
    }

    /// From now on the results of every group's collectives are held against each other; every rank of the topology does this at the
    /// same point.
    pub fn check_values(&mut self) {
        self.each().for_each(Collectives::check_values);
    }

    /// From now on the collectives of every group are spans of `tracer`; every rank of the topology does this at the same point.
    pub fn trace(&mut self, tracer: &Tracer) {
        self.each().for_each(|c| c.trace(tracer));
    }

    /// How each group carries out what it was asked for so far: group name and route.
    pub fn explain(&self) -> Vec<(String, RouteLine)> {
        let named = |(_, c): &(Group, Collectives)| {
            let name = c.name().to_string();
            c.explain().into_iter().map(move |l| (name.clone(), l))
        };
        self.groups.iter().flat_map(named).collect()
    }
}
