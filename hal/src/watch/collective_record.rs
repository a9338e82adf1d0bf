//! One recorded collective: what of it is compared between ranks, its layout in a record, and its text in messages.

use crate::comm::{Collective, Reduce};
use crossweave_abi as abi;
use crossweave_abi::DType;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Words of a record: one cache line.
pub(super) const RECORD: usize = 8;

/// A collective as a rank asked for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectiveRecord {
    /// Counts everything this rank asked for, from 1.
    pub number: u64,
    /// Name of the group.
    pub group: Arc<str>,
    /// What distinguishes groups of one name.
    pub key: u64,
    /// Place in the group's order, from 1; of sends and receives: in the order of the pair.
    pub seq: u64,
    /// `abi::COLL_*`.
    pub kind: u32,
    /// Element type's id.
    pub dtype: u32,
    /// `abi::RED_*`, or 0.
    pub reduce: u32,
    /// Elements, as the kind counts them.
    pub count: u64,
    /// The root of a broadcast or reduce.
    pub root: u32,
    /// The other rank of a send or receive, in the group.
    pub peer: u32,
    /// The same, or the root, as a rank of the job.
    #[serde(default)]
    pub other: Option<u32>,
    /// Do input and output share memory?
    pub in_place: bool,
    /// Hash of the counts per rank, where there are some.
    pub splits: u64,
    /// These counts, while they are kept.
    #[serde(default)]
    pub counts: Vec<u64>,
    /// What it is for, as ranks compare it; 0 where nothing says so.
    #[serde(default)]
    pub purpose: u32,
    /// Stream it was enqueued on.
    pub stream: u32,
    /// The stream's call that ends its work; 0 while it is being enqueued.
    pub call: u64,
    /// What was enqueued in one call has one number.
    pub launch: u64,
    /// File, line and column of the call.
    pub site: Arc<str>,
    /// The call's tag.
    pub tag: Arc<str>,
    /// The plan step it belongs to, or nothing.
    pub step: Arc<str>,
    /// What its caller said that it is for, or nothing.
    #[serde(default)]
    pub about: Arc<str>,
    /// When it was enqueued, on the host's clock in nanoseconds.
    pub at: u64,
    /// Has a wait on its stream returned since?
    pub done: bool,
}

/// What the hot path needs of a collective, as numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Print {
    pub kind: u32,
    pub dtype: u32,
    pub reduce: u32,
    pub count: u64,
    pub root: u32,
    pub peer: u32,
    pub in_place: bool,
    pub splits: u64,
    /// See [`super::purpose`].
    pub purpose: u32,
}

const SPREAD: u64 = 0xd6e8_feb8_6659_fd93;

/// Spreads a word's bits over the word.
#[inline]
pub(super) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 32)).wrapping_mul(SPREAD);
    let x = (x ^ (x >> 32)).wrapping_mul(SPREAD);
    x ^ (x >> 32)
}

pub(super) fn hash(values: &[u64]) -> u64 {
    values
        .iter()
        .fold(values.len() as u64, |h, v| mix(h ^ v).rotate_left(17))
}

fn reduction(op: Reduce) -> u32 {
    match op {
        Reduce::Sum => abi::RED_SUM,
        Reduce::Prod => abi::RED_PROD,
        Reduce::Min => abi::RED_MIN,
        Reduce::Max => abi::RED_MAX,
        Reduce::Avg => abi::RED_AVG,
        Reduce::PremulSum(_) => abi::RED_PREMUL_SUM,
    }
}

impl Print {
    /// The record of a call in a group of `ranks`.
    #[inline]
    pub fn of(c: &Collective<'_>, ranks: u64) -> Print {
        let len = |bytes: u64, t: DType| t.count(bytes);
        let same = |a: &crate::Region<'_>, b: &crate::Region<'_>| {
            std::ptr::eq(a.buffer, b.buffer)
                && a.offset < b.offset + b.bytes
                && b.offset < a.offset + a.bytes
        };
        let mut p = Print::default();
        let dtype = match c {
            Collective::AllReduce { buf, dtype, op } => {
                (p.kind, p.count) = (abi::COLL_ALL_REDUCE, len(buf.bytes, *dtype));
                (p.reduce, p.in_place) = (reduction(*op), true);
                dtype
            }
            Collective::ReduceScatter {
                send,
                recv,
                dtype,
                op,
            } => {
                (p.kind, p.count) = (abi::COLL_REDUCE_SCATTER, len(recv.bytes, *dtype));
                (p.reduce, p.in_place) = (reduction(*op), same(send, recv));
                dtype
            }
            Collective::AllGather { send, recv, dtype } => {
                (p.kind, p.count) = (abi::COLL_ALL_GATHER, len(send.bytes, *dtype));
                p.in_place = same(send, recv);
                dtype
            }
            Collective::Broadcast { buf, dtype, root } => {
                (p.kind, p.count) = (abi::COLL_BROADCAST, len(buf.bytes, *dtype));
                (p.root, p.in_place) = (*root, true);
                dtype
            }
            Collective::Reduce {
                buf,
                dtype,
                op,
                root,
            } => {
                (p.kind, p.count) = (abi::COLL_REDUCE, len(buf.bytes, *dtype));
                (p.reduce, p.root, p.in_place) = (reduction(*op), *root, true);
                dtype
            }
            Collective::AllToAll { send, recv, dtype } => {
                (p.kind, p.count) = (abi::COLL_ALL_TO_ALL, len(send.bytes, *dtype) / ranks);
                p.in_place = same(send, recv);
                dtype
            }
            // Counts differ from rank to rank here; they are compared pair by pair.
            Collective::AllToAllV {
                send, recv, dtype, ..
            } => {
                (p.kind, p.in_place) = (abi::COLL_ALL_TO_ALL_V, same(send, recv));
                dtype
            }
            Collective::AllGatherV {
                send,
                recv,
                dtype,
                counts,
            } => {
                (p.kind, p.in_place) = (abi::COLL_ALL_GATHER_V, same(send, recv));
                p.splits = hash(&counts.recv);
                dtype
            }
            Collective::Send { buf, dtype, peer } => {
                (p.kind, p.count) = (abi::COLL_SEND, len(buf.bytes, *dtype));
                p.peer = *peer;
                dtype
            }
            Collective::Recv { buf, dtype, peer } => {
                (p.kind, p.count) = (abi::COLL_RECV, len(buf.bytes, *dtype));
                p.peer = *peer;
                dtype
            }
            Collective::Barrier => {
                p.kind = abi::COLL_BARRIER;
                &DType::U8
            }
        };
        p.dtype = dtype.id();
        p
    }

    /// One number of what must be equal on all ranks. Not the memory: whether input and output are one is a rank's own affair.
    #[inline]
    pub fn fingerprint(&self) -> u64 {
        let small = u64::from(self.kind)
            | u64::from(self.dtype) << 8
            | u64::from(self.reduce) << 24
            | u64::from(self.root) << 32;
        // Products side by side: one after the other they would stand in the way of every call. The chain of a communicator mixes them.
        let (small, count) = (small.wrapping_mul(SPREAD), self.count.wrapping_mul(SPREAD));
        let purpose = u64::from(self.purpose).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        small ^ count.rotate_left(32) ^ self.splits ^ purpose
    }

    /// The same of a send or receive: equal at both ends when they fit.
    #[inline]
    pub fn message(&self) -> u64 {
        mix(u64::from(self.dtype) ^ self.count.rotate_left(8)) ^ mix(u64::from(self.purpose))
    }

    /// Is it a matter of two ranks alone?
    #[inline]
    pub fn point_to_point(&self) -> bool {
        matches!(self.kind, abi::COLL_SEND | abi::COLL_RECV)
    }
}

/// Name of a kind, as in the ledger.
pub(super) fn kind_name(kind: u32) -> &'static str {
    abi::coll_name(kind).unwrap_or("unknown")
}

impl CollectiveRecord {
    pub(super) fn print(&self) -> Print {
        Print {
            kind: self.kind,
            dtype: self.dtype,
            reduce: self.reduce,
            count: self.count,
            root: self.root,
            peer: self.peer,
            in_place: self.in_place,
            splits: self.splits,
            purpose: self.purpose,
        }
    }

    /// A send or a receive?
    pub fn point_to_point(&self) -> bool {
        self.print().point_to_point()
    }

    /// Kind, length, type, reduction and root: `all_reduce of 4 x f32 sum`.
    pub fn what(&self) -> String {
        let name = kind_name(self.kind);
        if self.kind == abi::COLL_BARRIER {
            return name.into();
        }
        let dtype = DType::from_id(self.dtype).map_or("?", DType::name);
        let mut s = match self.kind {
            abi::COLL_ALL_TO_ALL_V => format!("{name} of {dtype}"),
            abi::COLL_ALL_GATHER_V if self.counts.is_empty() => {
                format!("{name} of {dtype} (counts no longer kept)")
            }
            abi::COLL_ALL_GATHER_V => format!("{name} of {dtype} (counts {:?})", self.counts),
            _ => format!("{name} of {} x {dtype}", self.count),
        };
        let reduce = ["", " sum", " prod", " min", " max", " avg", " premul_sum"];
        s += reduce.get(self.reduce as usize).unwrap_or(&" ?");
        let other = |member| self.other.unwrap_or(member);
        match self.kind {
            abi::COLL_BROADCAST | abi::COLL_REDUCE => s += &format!(" root {}", other(self.root)),
            abi::COLL_SEND => s += &format!(" to {}", other(self.peer)),
            abi::COLL_RECV => s += &format!(" from {}", other(self.peer)),
            _ => {}
        }
        s
    }

    /// Where and for what: `at engine/src/reduce.rs:64, tag grad`.
    pub fn place(&self) -> String {
        let mut s = format!("at {}", self.site);
        if !self.tag.is_empty() {
            s += &format!(", tag {}", self.tag);
        }
        if !self.step.is_empty() {
            s += &format!(", step {}", self.step);
        }
        if !self.about.is_empty() {
            s += &format!(", about {}", self.about);
        }
        s
    }

    /// `#41 of dp`; for sends and receives `#2 of dp`, counted by pair.
    pub fn id(&self) -> String {
        format!("#{} of {}", self.seq, self.group)
    }

    /// All of it: `all_reduce of 4 x f32 sum (#41 of dp, at engine/src/reduce.rs:64, tag grad)`.
    pub fn say(&self) -> String {
        format!("{} ({}, {})", self.what(), self.id(), self.place())
    }

    /// Would these two meet: same kind and all that must be equal, what they are for too?
    pub fn fits(&self, other: &CollectiveRecord) -> bool {
        match self.point_to_point() && other.point_to_point() {
            true => self.print().message() == other.print().message(),
            false => self.print().fingerprint() == other.print().fingerprint(),
        }
    }

    /// The same whatever they are for.
    pub fn alike(&self, other: &CollectiveRecord) -> bool {
        let shape = |o: &CollectiveRecord| CollectiveRecord {
            purpose: 0,
            ..o.clone()
        };
        shape(self).fits(&shape(other))
    }
}

/// A record without its number and texts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Raw {
    pub print: Print,
    pub entry: u16,
    pub seq: u64,
    pub site: u16,
    pub stream: u32,
    pub launch: u64,
    pub step: u16,
    /// [`super::Purpose`]'s step of the plan; not among the words of the record.
    pub plan: u32,
    pub at: u64,
}

const LOW48: u64 = (1 << 48) - 1;

impl Raw {
    /// Words 1 to 7 of the record.
    #[inline]
    pub fn pack(&self) -> [u64; RECORD - 1] {
        let p = &self.print;
        [
            u64::from(self.entry & 0xfff)
                | u64::from(p.kind & 0xff) << 12
                | u64::from(p.dtype & 0xffff) << 20
                | u64::from(p.reduce & 0x3f) << 36
                | u64::from(p.in_place) << 42
                | u64::from(self.stream & 0xffff) << 43,
            (self.seq & LOW48) | u64::from(self.site) << 48,
            p.count,
            // No kind has both.
            u64::from(p.root | p.peer) | u64::from(p.purpose) << 32,
            p.splits,
            (self.launch & LOW48) | u64::from(self.step) << 48,
            self.at,
        ]
    }

    pub fn unpack(w: [u64; RECORD - 1]) -> Raw {
        let kind = (w[0] >> 12) as u32 & 0xff;
        let (root, peer) = match kind {
            abi::COLL_SEND | abi::COLL_RECV => (0, w[3] as u32),
            _ => (w[3] as u32, 0),
        };
        Raw {
            print: Print {
                kind,
                dtype: (w[0] >> 20) as u32 & 0xffff,
                reduce: (w[0] >> 36) as u32 & 0x3f,
                in_place: w[0] >> 42 & 1 == 1,
                count: w[2],
                root,
                peer,
                splits: w[4],
                purpose: (w[3] >> 32) as u32,
            },
            entry: w[0] as u16 & 0xfff,
            stream: (w[0] >> 43) as u32 & 0xffff,
            seq: w[1] & LOW48,
            site: (w[1] >> 48) as u16,
            launch: w[5] & LOW48,
            step: (w[5] >> 48) as u16,
            plan: 0,
            at: w[6],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked() {
        for (kind, root, peer) in [
            (abi::COLL_REDUCE, u32::MAX, 0),
            (abi::COLL_SEND, 0, u32::MAX),
        ] {
            let raw = Raw {
                print: Print {
                    kind,
                    dtype: DType::Bf16.id(),
                    reduce: abi::RED_AVG,
                    count: u64::MAX - 3,
                    root,
                    peer,
                    in_place: true,
                    splits: 0x1234_5678_9abc_def0,
                    purpose: u32::MAX - 1,
                },
                entry: 513,
                seq: 0xffff_ffff_fff1,
                site: 511,
                stream: 3,
                launch: 99,
                step: 17,
                plan: 0,
                at: 5,
            };
            let back = Raw::unpack(raw.pack());
            assert_eq!(back.print, raw.print);
            let rest = |r: &Raw| (r.entry, r.seq, r.site, r.stream, r.launch, r.step, r.at);
            assert_eq!(rest(&back), rest(&raw));
        }
    }

    #[test]
    fn each_thing_that_must_agree_changes_the_fingerprint_and_memory_does_not() {
        let base = Print {
            kind: abi::COLL_REDUCE,
            dtype: DType::F32.id(),
            reduce: abi::RED_SUM,
            count: 8,
            ..Print::default()
        };
        let changes: [fn(&mut Print); 7] = [
            |p| p.kind = abi::COLL_ALL_REDUCE,
            |p| p.dtype = DType::I32.id(),
            |p| p.reduce = abi::RED_MAX,
            |p| p.count = 7,
            |p| p.root = 1,
            |p| p.splits = 1,
            |p| p.purpose = 1,
        ];
        for change in changes {
            let mut other = base;
            change(&mut other);
            assert_ne!(base.fingerprint(), other.fingerprint(), "{other:?}");
        }
        let mut other = base;
        other.in_place = true;
        assert_eq!(base.fingerprint(), other.fingerprint());
    }
}
