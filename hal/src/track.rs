//! Who used a piece of memory last: the record behind automatic ordering of streams (RAW, WAR, WAW) and behind safe reuse of freed blocks.
//!
//! A use is (stream, sequence number of the call on it). Only the latest read per stream and the latest write matter. A freed block
//! keeps its record; the next owner's first write waits for what the record names, so nobody has to retain operands call by call.

/// Index of a stream on its device.
pub(crate) type StreamId = u32;

/// One use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    pub stream: StreamId,
    pub seq: u64,
}

/// Last write, and last read per stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Track {
    write: Option<Use>,
    reads: Vec<Use>,
    /// What it names are uses of an owner before this one.
    inherited: bool,
}

impl Track {
    /// The block has a new owner: until that writes it, a stream that waits does so for the memory and not for what is in it.
    pub fn hand_over(&mut self) {
        self.inherited = self.write.is_some() || !self.reads.is_empty();
    }
    /// Whether the uses are a former owner's.
    pub fn inherited(&self) -> bool {
        self.inherited
    }

    /// Calls `wait` for each use on another stream that a read (or write) by `by` has to follow.
    #[inline]
    pub fn hazards(&self, by: StreamId, writes: bool, mut wait: impl FnMut(Use)) {
        if let Some(w) = self.write
            && w.stream != by
        {
            wait(w);
        }
        if writes {
            for r in &self.reads {
                if r.stream != by {
                    wait(*r);
                }
            }
        }
    }

    /// Notes a use.
    #[inline]
    pub fn note(&mut self, u: Use, writes: bool) {
        if writes {
            // A use that follows this write follows everything before it: `hazards` made it wait for them.
            self.write = Some(u);
            self.reads.clear();
            self.inherited = false;
        } else {
            match self.reads.iter_mut().find(|r| r.stream == u.stream) {
                Some(r) => r.seq = u.seq,
                None => self.reads.push(u),
            }
        }
    }

    /// Every use that has to be over before the bytes mean nothing to anybody.
    pub fn uses(&self) -> impl Iterator<Item = Use> + '_ {
        self.write.into_iter().chain(self.reads.iter().copied())
    }

    /// The last write.
    pub fn last_write(&self) -> Option<Use> {
        self.write
    }

    /// Joins two neighbours into one block: a later write waits for the uses of both.
    pub fn merge(&mut self, other: &Track) {
        let mine: Vec<Use> = self.uses().collect();
        self.write = None;
        self.reads.clear();
        for u in mine.into_iter().chain(other.uses()) {
            match self.reads.iter_mut().find(|r| r.stream == u.stream) {
                Some(r) => r.seq = r.seq.max(u.seq),
                None => self.reads.push(u),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(t: &Track, by: StreamId, writes: bool) -> Vec<(u32, u64)> {
        let mut v = vec![];
        t.hazards(by, writes, |u| v.push((u.stream, u.seq)));
        v
    }

    #[test]
    fn raw_war_and_waw_are_ordered_and_own_stream_is_free() {
        let mut t = Track::default();
        t.note(Use { stream: 0, seq: 1 }, true);
        assert_eq!(waits(&t, 0, true), vec![]);
        assert_eq!(waits(&t, 1, false), vec![(0, 1)], "RAW");
        t.note(Use { stream: 1, seq: 4 }, false);
        assert_eq!(waits(&t, 2, true), vec![(0, 1), (1, 4)], "WAW and WAR");
        assert_eq!(
            waits(&t, 2, false),
            vec![(0, 1)],
            "two readers do not wait for each other"
        );
        t.note(Use { stream: 2, seq: 9 }, true);
        assert_eq!(
            waits(&t, 0, true),
            vec![(2, 9)],
            "the write covers what it waited for"
        );
    }

    #[test]
    fn merged_blocks_wait_for_both_pasts() {
        let (mut a, mut b) = (Track::default(), Track::default());
        a.note(Use { stream: 0, seq: 3 }, true);
        b.note(Use { stream: 0, seq: 7 }, false);
        b.note(Use { stream: 1, seq: 2 }, false);
        a.merge(&b);
        assert_eq!(waits(&a, 5, true), vec![(0, 7), (1, 2)]);
    }
}
