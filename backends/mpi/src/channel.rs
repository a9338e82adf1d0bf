//! Channels: the ranks of one process share its place in MPI, so a message's tag says from which to which of them it goes, and in which
//! communicator.
//!
//! A tag is `channel * width + what`. The member that receives owns its channels, one for each member its peers' processes may have: the
//! sender's place among the members of its own process says which. Every process gives out its own channels, so no two processes have to
//! agree on anything but the width, and nothing of MPI is made or freed with a communicator: members join from as many threads as there are.

use crossweave_plugin::{Code, Result, fail};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Tags below this one of each channel are not of collectives.
pub(crate) const FIRST: u32 = 2;
/// The tag of sends and receives.
pub(crate) const MESSAGE: u32 = 1;

/// Most bits for what a message is, which distinguishes ranks that run different programs; and how many are left for channels before that.
const WHAT_BITS: u32 = 15;
const CHANNEL_BITS: u32 = 14;
/// Fewest bits for what a message is.
const LEAST_BITS: u32 = 5;

/// The channels of a process.
pub(crate) struct Channels {
    width: u32,
    count: u32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// First channel and length of each block that is taken.
    taken: BTreeMap<u32, u32>,
    /// Where to look next: a block is not given out again at once.
    next: u32,
}

impl Channels {
    /// `highest`: the highest tag the library takes, 32767 at least.
    pub fn new(highest: u32) -> Channels {
        let bits = u32::BITS - 1 - (highest.clamp(0x7fff, i32::MAX as u32) + 1).leading_zeros();
        let what = bits
            .saturating_sub(CHANNEL_BITS)
            .clamp(LEAST_BITS, WHAT_BITS);
        Channels {
            width: 1 << what,
            count: 1 << (bits - what),
            state: Mutex::default(),
        }
    }

    /// Tags of a channel.
    pub fn width(&self) -> u32 {
        self.width
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `len` channels in a row. Channel 0 is the world's.
    pub fn take(&self, len: u32) -> Result<u32> {
        let mut st = self.lock();
        let from = st.next.max(1);
        let free = self.search(&st.taken, from, len);
        let Some(at) = free.or_else(|| self.search(&st.taken, 1, len)) else {
            return fail(
                Code::Comm,
                format!(
                    "this process has {} communicators, and MPI's tags have no room for one more of {len} ranks in a process; start more \
                     processes with fewer ranks each",
                    st.taken.len()
                ),
            );
        };
        st.taken.insert(at, len);
        st.next = at + len;
        Ok(at)
    }

    /// The first free block of `len` at or behind `at`.
    fn search(&self, taken: &BTreeMap<u32, u32>, mut at: u32, len: u32) -> Option<u32> {
        if let Some((first, n)) = taken.range(..at).next_back() {
            at = at.max(first + n);
        }
        for (first, n) in taken.range(at..) {
            if at + len <= *first {
                break;
            }
            at = first + n;
        }
        (at.checked_add(len)? <= self.count).then_some(at)
    }

    /// Gives a block back.
    pub fn free(&self, first: u32) {
        self.lock().taken.remove(&first);
    }

    /// The tag of `what` on a channel.
    pub fn tag(&self, channel: u32, what: u32) -> i32 {
        (channel * self.width + what % self.width) as i32
    }
}

/// Where a member of a communicator is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// Its process, by MPI's number.
    pub process: u32,
    /// The channel on which it hears this member.
    pub to: u32,
    /// The channel on which this member hears it.
    pub from: u32,
}

/// Each member's place among the members of its own process, and how many places there are.
pub(crate) fn places(processes: &[u32]) -> (Vec<u32>, u32) {
    let mut members: BTreeMap<u32, u32> = BTreeMap::new();
    let place = |p: &u32| {
        let n = members.entry(*p).or_default();
        *n += 1;
        *n - 1
    };
    let places: Vec<u32> = processes.iter().map(place).collect();
    let most = places.iter().max().map_or(1, |m| m + 1);
    (places, most)
}

/// How member `rank` reaches each: `first` are the first channels of all members.
pub(crate) fn peers(processes: &[u32], first: &[u32], rank: usize) -> Vec<Peer> {
    let (places, _) = places(processes);
    let one = |r: usize| Peer {
        process: processes[r],
        to: first[r] + places[rank],
        from: first[rank] + places[r],
    };
    (0..processes.len()).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_stay_below_what_the_library_takes() {
        for highest in [0, 0x7fff, (1 << 20) - 1, 0x0fff_ffff, i32::MAX as u32] {
            let c = Channels::new(highest);
            let top = i64::from(c.width) * i64::from(c.count);
            assert!(
                top <= i64::from(highest.max(0x7fff)) + 1,
                "{highest}: {top}"
            );
            assert!(c.count >= 1 << 10 && c.width >= 1 << 5, "{highest}");
            assert_eq!(c.tag(c.count - 1, c.width - 1), (top - 1) as i32);
        }
    }

    #[test]
    fn blocks_do_not_overlap_and_come_back() {
        let c = Channels::new(0x7fff);
        let mut all: Vec<(u32, u32)> = vec![];
        let mut len = 1;
        while let Ok(at) = c.take(len) {
            assert!(at > 0 && all.iter().all(|(a, n)| at + len <= *a || a + n <= at));
            all.push((at, len));
            len = len % 7 + 1;
        }
        assert!(all.iter().map(|(_, n)| n).sum::<u32>() > c.count - 8);
        // The least hole that fits is found, wherever it is.
        let (at, n) = all[all.len() / 2];
        c.free(at);
        assert_eq!(c.take(n).unwrap(), at);
        assert!(c.take(n).is_err());
    }

    #[test]
    fn what_one_member_sends_only_the_other_hears() {
        // Two communicators of the same processes, with one, two and three members each.
        let processes = [0, 2, 1, 2, 2, 1];
        let (_, most) = places(&processes);
        assert_eq!(most, 3);
        let channels: Vec<Channels> = (0..3).map(|_| Channels::new(0x7fff)).collect();
        let mut heard = std::collections::BTreeSet::new();
        for _ in 0..2 {
            let take = |p: &u32| channels[*p as usize].take(most).unwrap();
            let first: Vec<u32> = processes.iter().map(take).collect();
            let all: Vec<Vec<Peer>> = (0..6).map(|r| peers(&processes, &first, r)).collect();
            for a in 0..6 {
                for b in 0..6 {
                    assert_eq!(all[a][b].to, all[b][a].from);
                    assert_eq!(all[a][b].process, processes[b]);
                    // MPI distinguishes messages by both processes and the tag.
                    assert!(heard.insert((processes[a], processes[b], all[a][b].to)));
                }
            }
        }
    }
}
