//! The two kinds of ranks, as types that do not mix: a rank of the job (PyTorch's global rank) and a rank within one communicator
//! (its group rank). What people read names ranks of the job; [`Members`] translates.

use std::fmt;
use std::sync::Arc;

/// A rank of the job, as users know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobRank(pub u32);

impl fmt::Display for JobRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

/// A rank within one communicator, from 0. It has no text of its own: only [`Members`] knows which rank of the job it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupRank(pub u32);

impl From<usize> for GroupRank {
    fn from(n: usize) -> GroupRank {
        GroupRank(n as u32)
    }
}

/// Which ranks of the job the members of a communicator are. By default a communicator is a job of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members(Option<Arc<[JobRank]>>);

impl Members {
    /// The configuration key under which a host lists them, for the communicator with this prefix of keys.
    pub fn key(kv_prefix: &str) -> String {
        format!("{}{kv_prefix}", Members::KEYS)
    }
    /// What all such keys begin with.
    pub const KEYS: &'static str = "comm.ranks/";

    /// By group rank.
    pub fn new(ranks: impl IntoIterator<Item = JobRank>) -> Members {
        Members(Some(ranks.into_iter().collect()))
    }

    /// Reads the host's list: numbers with commas between, one for each member. `None` where it is not such a list.
    pub fn parse(text: &str, members: u32) -> Option<Members> {
        let each = text.split(',').map(|n| n.parse().ok().map(JobRank));
        let all: Option<Arc<[JobRank]>> = each.collect();
        all.filter(|a| a.len() == members as usize)
            .map(|a| Members(Some(a)))
    }

    /// The list as [`Members::parse`] reads it.
    pub fn text(&self) -> Option<String> {
        let each = |all: &Arc<[JobRank]>| all.iter().map(|r| r.0.to_string()).collect::<Vec<_>>();
        self.0.as_ref().map(|all| each(all).join(","))
    }

    /// A member's rank in the job.
    pub fn of(&self, member: impl Into<GroupRank>) -> JobRank {
        let GroupRank(n) = member.into();
        let known = self.0.as_ref().and_then(|all| all.get(n as usize));
        known.copied().unwrap_or(JobRank(n))
    }

    /// Some of them in words: `rank 2`, `ranks 0, 3`.
    pub fn list(&self, members: impl IntoIterator<Item = GroupRank>) -> String {
        let each = members.into_iter().map(|m| self.of(m).0.to_string());
        match &each.collect::<Vec<_>>()[..] {
            [one] => format!("rank {one}"),
            many => format!("ranks {}", many.join(", ")),
        }
    }

    /// Those of a communicator that is made of these members of this one.
    pub fn some(&self, members: impl IntoIterator<Item = GroupRank>) -> Members {
        Members::new(members.into_iter().map(|m| self.of(m)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_it_is_written_and_names_ranks_of_the_job() {
        let m = Members::new([1, 3, 6].map(JobRank));
        let text = m.text().unwrap();
        assert_eq!(text, "1,3,6");
        assert_eq!(Members::parse(&text, 3), Some(m.clone()));
        for (text, members) in [("1,3", 3), ("1,,3", 3), ("", 1), ("a", 1), ("1,3,6", 2)] {
            assert_eq!(Members::parse(text, members), None, "{text:?}");
        }
        assert_eq!(m.of(GroupRank(1)).to_string(), "rank 3");
        assert_eq!(m.list([GroupRank(0), GroupRank(2)]), "ranks 1, 6");
        assert_eq!(m.some([GroupRank(2)]).of(GroupRank(0)), JobRank(6));
        assert_eq!(Members::default().of(GroupRank(2)), JobRank(2));
    }
}
