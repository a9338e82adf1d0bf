//! Groups that communicate: a place on the mesh, and a communicator for each group asked for.
//!
//! A group of one rank is a real group: the same calls, the same ledger, no special case above. Groups of one name that live side by side
//! (the `tp` of each data replica) are kept apart by their first rank where ids are exchanged.

use crate::islands::{Islands, Membership};
use crossweave_axes::{Group, GroupKey, Place, TopologyError};
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

/// One rank's place on the mesh, with its groups.
pub struct Mesh {
    place: Place,
    groups: Vec<(Group, Collectives)>,
}

/// A group of a mesh, found once: its place among those that were joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupRef(usize);

fn invalid(e: TopologyError) -> Error {
    Error::invalid("mesh", e.to_string())
}

impl Mesh {
    /// Takes a place and joins these groups. Every rank of the mesh calls this with the same groups in the same order, but for those that
    /// it is no member of. A group given twice is joined once.
    ///
    /// # Errors
    /// A group that the rank is not in; a member that cannot be reached.
    pub fn new<K: Into<GroupKey> + Clone>(
        device: &Device,
        boot: &dyn Bootstrap,
        place: Place,
        groups: &[K],
        options: &MeshOptions,
    ) -> Result<Mesh> {
        device.set_rank(place.job_rank());
        let mut mesh = Mesh {
            place,
            groups: vec![],
        };
        for key in groups {
            let key = key.clone().into();
            if mesh.find(&key).is_none() {
                mesh.join(device, boot, &key, options)?;
            }
        }
        Ok(mesh)
    }

    /// Joins a further group. Every member calls this, in the same order among its other joins.
    ///
    /// # Errors
    /// This rank is not a member; it has joined the group before; a member that cannot be reached.
    pub fn join(
        &mut self,
        device: &Device,
        boot: &dyn Bootstrap,
        key: &GroupKey,
        options: &MeshOptions,
    ) -> Result<()> {
        let rank = self.place.job_rank();
        let of = |e: Error| e.context(format!("rank {rank} joining group {key}"));
        let group = self.place.group(key).map_err(invalid).map_err(of)?;
        if self.find(key).is_some() {
            let why = format!("group {key} is joined twice");
            return Err(Error::invalid("mesh", why));
        }
        let membership = Membership {
            scope: &group.name(),
            name: &key.ledger(),
            ranks: &group.ranks,
            index: group.index,
        };
        let comm = membership
            .join(device, boot, options)
            .map_err(|e| e.context(format!("rank {rank} joining ranks {:?}", group.ranks)))?;
        self.groups.push((group, comm));
        Ok(())
    }

    /// The communicator of a group of this mesh.
    pub fn by(&mut self, group: GroupRef) -> &mut Collectives {
        &mut self.groups[group.0].1
    }
    /// This rank's place.
    pub fn place(&self) -> &Place {
        &self.place
    }

    fn find(&self, key: &GroupKey) -> Option<usize> {
        self.groups.iter().position(|(g, _)| g.key == *key)
    }

    /// The group of this name, for [`Mesh::by`].
    ///
    /// # Errors
    /// It was not joined.
    pub fn group_ref(&self, key: impl Into<GroupKey>) -> Result<GroupRef> {
        let key = key.into();
        self.find(&key).map(GroupRef).ok_or_else(|| {
            let has: Vec<String> = self.groups.iter().map(|(g, _)| g.key.to_string()).collect();
            let has = match has.is_empty() {
                true => "none".into(),
                false => has.join(", "),
            };
            let rank = self.place.job_rank();
            let why = format!(
                "rank {rank} has no group {key}; its groups are: {has}. Ask for it in Mesh::new"
            );
            Error::invalid("mesh", why)
        })
    }

    /// The communicator of a group; it must have been asked for in [`Mesh::new`].
    ///
    /// # Errors
    /// It was not joined.
    pub fn group(&mut self, key: impl Into<GroupKey>) -> Result<&mut Collectives> {
        let group = self.group_ref(key)?;
        Ok(self.by(group))
    }

    /// Who is in a group, by their numbers in the job.
    ///
    /// # Errors
    /// It was not joined.
    pub fn members(&self, key: impl Into<GroupKey>) -> Result<&Group> {
        let group = self.group_ref(key)?;
        Ok(&self.groups[group.0].0)
    }

    /// For a watchdog: aborting all of them releases this rank from every group it may be waiting in.
    pub fn abort_handles(&self) -> Vec<AbortHandle> {
        let all = self.groups.iter();
        all.flat_map(|(_, c)| c.abort_handles()).collect()
    }

    /// Ends this rank's part in all groups, with a look at what is left over in each: see [`Collectives::close`].
    ///
    /// # Errors
    /// The first group's messages nobody has answered, or work nobody has waited for.
    pub fn close(self) -> Result<()> {
        // Every group is closed, also behind one that has something left.
        let ends: Vec<Result<()>> = self.groups.into_iter().map(|(_, c)| c.close()).collect();
        ends.into_iter().collect()
    }

    fn each(&mut self) -> impl Iterator<Item = &mut Collectives> {
        self.groups.iter_mut().map(|(_, c)| c)
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
