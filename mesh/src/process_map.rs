//! The process map: which ranks of the job each process has. The ranks of one process are consecutive, after those of
//! the processes before it.

use crate::store::JobStore;
use crossweave_hal::{Code, Error, KvStore, Result};
use std::ops::Range;
use std::time::Duration;

/// The ranks of every process of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessMap {
    process: u32,
    /// Ends of the processes' ranks.
    ends: Vec<u32>,
}

impl ProcessMap {
    /// This is process `process` of as many as there are `counts` of ranks.
    pub fn new(process: u32, counts: &[u32]) -> ProcessMap {
        let mut end = 0u32;
        let one = |n: &u32| {
            end = end.saturating_add(*n);
            end
        };
        ProcessMap {
            process,
            ends: counts.iter().map(one).collect(),
        }
    }

    /// Each of `processes` processes is one rank.
    pub fn single(process: u32, processes: u32) -> ProcessMap {
        ProcessMap::new(process, &vec![1; processes as usize])
    }

    /// What every process says of itself, in their order: `own` is what this one, number `process` of `processes`, says. Every process
    /// calls this once under a name.
    ///
    /// # Errors
    /// A process that fails or does not come within `timeout`.
    pub fn call(
        store: &JobStore,
        name: &str,
        (process, processes): (u32, u32),
        own: &[u8],
        timeout: Duration,
    ) -> Result<Vec<Vec<u8>>> {
        store.set(&format!("{name}/{process}"), own)?;
        let theirs = |p: u32| {
            let said = store.get(&format!("{name}/{p}"), Some(timeout));
            said.map_err(|e| match e.code {
                Code::Timeout => {
                    let why = format!(
                        "process {p} of {processes} has not said its {name} within {timeout:?}"
                    );
                    Error::new(Code::Timeout, "meet", why)
                }
                _ => e,
            })
        };
        (0..processes).map(theirs).collect()
    }

    /// This process.
    pub fn process(&self) -> u32 {
        self.process
    }
    /// Processes of the job.
    pub fn processes(&self) -> u32 {
        self.ends.len() as u32
    }
    /// Ranks of the job.
    pub fn world(&self) -> u32 {
        self.ends.last().copied().unwrap_or(0)
    }
    /// The ranks of a process; none of one the job does not have.
    pub fn of(&self, process: u32) -> Range<u32> {
        let p = process as usize;
        let end = self.ends.get(p).copied().unwrap_or(0);
        let before = p.checked_sub(1).and_then(|b| self.ends.get(b));
        before.copied().unwrap_or(0).min(end)..end
    }
    /// The ranks of this process.
    pub fn here(&self) -> Range<u32> {
        self.of(self.process)
    }
    /// Is every process one rank?
    pub fn is_single(&self) -> bool {
        (0..self.processes()).all(|p| self.of(p).len() == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::rank_words;

    #[test]
    fn ranks_follow_one_another() {
        let r = ProcessMap::new(1, &[1, 3, 2]);
        assert_eq!((r.process(), r.processes(), r.world()), (1, 3, 6));
        assert_eq!((r.of(0), r.here(), r.of(2)), (0..1, 1..4, 4..6));
        assert_eq!(r.of(3).len(), 0);
        assert!(!r.is_single() && ProcessMap::single(2, 4).is_single());
        assert_eq!(ProcessMap::single(2, 4).here(), 2..3);
        assert_eq!(rank_words(&r.of(0)), "rank 0");
        assert_eq!(rank_words(&r.here()), "ranks 1 to 3");
    }
}
