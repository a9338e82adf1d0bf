//! Islands: which ranks of a job share a library of collectives, and which communicators a group over several islands
//! uses.
//!
//! The list of islands belongs to the whole job and is the same on every rank, so each group derives the same from it on
//! all its members: a group inside one island uses that library alone; a group of ranks that are each alone in their
//! island uses the bridge alone; any other group uses both.

use crossweave_collectives::comm_plan::Nodes;
use crossweave_collectives::{Collectives, Prefer};
use crossweave_hal::{Bootstrap, CommOptions, Communicator, Device, Error, Result, Scope};
use std::sync::Arc;

use crate::groups::MeshOptions;

/// In which order reductions over several islands add.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IslandOrder {
    /// By rank, each piece once at its owner: the bits of a job of one back end.
    #[default]
    Rank,
    /// Inside islands first, by their own libraries, then the islands' sums in the order of the islands: least traffic on the bridge, the
    /// same bits on all ranks, but other ones than rank order gives.
    Plan,
}

/// Which ranks share a library of collectives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Islands {
    /// The island of each rank of the job; any numbers.
    of: Arc<[u32]>,
    order: IslandOrder,
}

impl Islands {
    /// `of`: each rank's island.
    pub fn new(of: &[u32], order: IslandOrder) -> Islands {
        Islands {
            of: of.into(),
            order,
        }
    }

    /// The island of a rank of the job.
    pub fn of(&self, rank: u32) -> Option<u32> {
        self.of.get(rank as usize).copied()
    }

    /// `ranks` by island: for each island its members as indices into `ranks`, in their order; islands by their first member.
    ///
    /// # Errors
    /// A rank the job does not have.
    pub fn within(&self, ranks: &[u32]) -> Result<Vec<Vec<u32>>> {
        let mut found: Vec<(u32, Vec<u32>)> = vec![];
        for (i, r) in (0..).zip(ranks) {
            let island = self.of(*r).ok_or_else(|| {
                let why = format!(
                    "rank {r} is in no island: {} ranks were placed",
                    self.of.len()
                );
                Error::invalid("mesh", why)
            })?;
            match found.iter_mut().find(|(k, _)| *k == island) {
                Some((_, members)) => members.push(i),
                None => found.push((island, vec![i])),
            }
        }
        Ok(found.into_iter().map(|(_, members)| members).collect())
    }
}

/// This rank's place in a group that is about to be joined.
pub(crate) struct Membership<'a> {
    /// What all members of the group and no other group call it.
    pub scope: &'a str,
    /// Its name in messages and in the ledger.
    pub name: &'a str,
    /// Its members, by rank of the job.
    pub ranks: &'a [u32],
    /// This rank among them.
    pub index: u32,
}

impl Membership<'_> {
    /// Joins the group: on one communicator, or on that of the island and the bridge.
    pub fn join(
        &self,
        device: &Device,
        boot: &dyn Bootstrap,
        options: &MeshOptions,
    ) -> Result<Collectives> {
        let comm = CommOptions {
            name: self.name.to_string(),
            timeout: options.timeout,
        };
        let (index, size) = (self.index, self.ranks.len() as u32);
        let scope = || Scope::new(self.scope, self.ranks);
        let all = || Communicator::in_scope(device, boot, scope(), index, size, &comm);
        let Some(islands) = &options.islands else {
            return all().map(Collectives::from);
        };
        let nodes = islands.within(self.ranks)?;
        if nodes.len() == 1 {
            let own = Communicator::of_island(device, boot, scope(), index, size, &comm)?;
            return Ok(own.into());
        }
        let bridge = all()?;
        if nodes.iter().all(|n| n.len() == 1) {
            return Ok(bridge.into());
        }
        let mine = nodes.iter().find(|n| n.contains(&index));
        let near = match mine.filter(|n| n.len() > 1) {
            Some(members) => {
                let scope = format!("{}.island{}", self.scope, members[0]);
                let at = members.iter().position(|m| *m == index).unwrap_or(0);
                let near = CommOptions {
                    name: format!("{} inside its island", self.name),
                    ..comm.clone()
                };
                let ranks: Vec<u32> = members.iter().map(|m| self.ranks[*m as usize]).collect();
                let (at, size) = (at as u32, members.len() as u32);
                let scope = Scope::new(&scope, &ranks);
                Some(Communicator::of_island(
                    device, boot, scope, at, size, &near,
                )?)
            }
            None => None,
        };
        let nodes = Nodes::new(nodes).map_err(|e| Error::invalid("mesh", e.to_string()))?;
        let mut group = Collectives::of_islands(bridge, nodes.clone(), near)?;
        if islands.order == IslandOrder::Plan {
            group.prefer(Prefer::Nodes(nodes));
        }
        Ok(group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_sorted_by_island_and_strangers_are_refused() {
        let islands = Islands::new(&[7, 3, 7, 3, 9], IslandOrder::Rank);
        let within = |ranks: &[u32]| islands.within(ranks).unwrap();
        assert_eq!(within(&[0, 1, 2, 3, 4]), [vec![0, 2], vec![1, 3], vec![4]]);
        // By place in the group, not by rank of the job.
        assert_eq!(within(&[4, 3, 1]), [vec![0], vec![1, 2]]);
        let e = islands.within(&[0, 5]).unwrap_err().to_string();
        assert!(e.contains("rank 5 is in no island"), "{e}");
    }
}
