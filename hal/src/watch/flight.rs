//! The flight record: what every rank did last, for a post-mortem.

use super::collective_record::CollectiveRecord;
use super::judge::Verdict;
use super::rank_record::{Life, RankRecord};
use super::words::now;
use serde::{Deserialize, Serialize};

/// One rank's last operations and how it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankFlight {
    /// Rank in the job; its place on the board where nobody has said it.
    pub rank: u32,
    /// Its process.
    pub pid: u32,
    /// `running`, `ended` or `panicked`.
    pub state: String,
    /// Since when its host thread waits, on the host's clock in nanoseconds.
    pub waits_since: Option<u64>,
    /// When this was taken, on the same clock.
    pub now: u64,
    /// Everything it has asked for, also what is no longer remembered.
    pub recorded: u64,
    /// The last of it, oldest first.
    pub ops: Vec<CollectiveRecord>,
}

/// All ranks that are known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flight {
    /// What ended the job.
    pub verdict: Option<Verdict>,
    /// By rank.
    pub ranks: Vec<RankFlight>,
}

impl Flight {
    pub(super) fn of<'a>(
        records: impl Iterator<Item = (&'a RankRecord, Option<Verdict>)>,
    ) -> Flight {
        let mut flight = Flight::default();
        for (i, (record, verdict)) in records.enumerate() {
            flight.verdict = flight.verdict.take().or(verdict);
            let state = match record.life() {
                Life::Panicked => "panicked",
                Life::Ended => "ended",
                _ => "running",
            };
            flight.ranks.push(RankFlight {
                rank: record.rank().unwrap_or(i as u32),
                pid: record.pid(),
                state: state.into(),
                waits_since: record.wait().map(|w| w.since),
                now: now(),
                recorded: record.head(),
                ops: record.ops(),
            });
        }
        flight.ranks.sort_by_key(|r| r.rank);
        flight
    }
}
