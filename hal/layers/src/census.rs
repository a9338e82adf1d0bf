//! Counts what passes: each op as it was prepared, copies and fills, each collective as it was asked for. A step that is rehearsed on the
//! null device under this layer is known call by call, without a device and without training.

use crate::call::{Call, OpFacts, Operand, collective_name};
use crate::object::Facts;
use crate::wrap::Layer;
use crossweave_abi as abi;
use crossweave_abi::Status;
use crossweave_plugin::Result;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a copy or a fill is between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum MoveKind {
    Fill,
    OnDevice,
    ToHost,
    FromHost,
}

impl MoveKind {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            MoveKind::Fill => "fill",
            MoveKind::OnDevice => "copy on the device",
            MoveKind::ToHost => "copy to the host",
            MoveKind::FromHost => "copy from the host",
        }
    }
}

/// A collective as it was asked for, without its operands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OfCollective {
    /// `abi::COLL_*`.
    pub kind: u32,
    /// Element type's id.
    pub dtype: u32,
    /// `abi::RED_*`, or 0.
    pub reduce: u32,
    /// Elements, as its descriptor counts them.
    pub count: u64,
    /// Input and output share memory.
    pub in_place: bool,
    /// Ranks of its group.
    pub ranks: i32,
    /// Name of its group.
    pub group: String,
}

impl OfCollective {
    /// Its kind's name in the ledger.
    pub fn name(&self) -> &'static str {
        collective_name(self.kind)
    }
}

/// What has passed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Launches of each op, in the order of their first.
    pub ops: Vec<(OpFacts, u64)>,
    /// Copies and fills: calls and bytes.
    pub moves: HashMap<MoveKind, (u64, u64)>,
    /// Collectives, in the order of their first.
    pub collectives: Vec<(OfCollective, u64)>,
    /// Groups launched: each is one launch, whatever is in it.
    pub groups: u64,
}

impl Counts {
    /// Adds what another census has counted.
    pub fn add(&mut self, other: &Counts) {
        fn more<K: Clone + PartialEq>(to: &mut Vec<(K, u64)>, from: &[(K, u64)]) {
            for (k, n) in from {
                match to.iter_mut().find(|(have, _)| have == k) {
                    Some((_, m)) => *m += n,
                    None => to.push((k.clone(), *n)),
                }
            }
        }
        more(&mut self.ops, &other.ops);
        more(&mut self.collectives, &other.collectives);
        for (k, (n, bytes)) in &other.moves {
            let e = self.moves.entry(*k).or_default();
            *e = (e.0 + n, e.1 + bytes);
        }
        self.groups += other.groups;
    }
    /// What has passed since `before`, of the same census.
    pub fn since(&self, before: &Counts) -> Counts {
        fn less<K: Clone + PartialEq>(now: &[(K, u64)], before: &[(K, u64)]) -> Vec<(K, u64)> {
            // Entries keep their places, so what was there before is at the same index.
            let each = now
                .iter()
                .enumerate()
                .map(|(i, (k, n))| (k.clone(), n - before.get(i).map_or(0, |b| b.1)));
            each.filter(|(_, n)| *n > 0).collect()
        }
        let moves = self.moves.iter().map(|(k, (n, b))| {
            let (m, c) = before.moves.get(k).copied().unwrap_or_default();
            (*k, (n - m, b - c))
        });
        Counts {
            ops: less(&self.ops, &before.ops),
            moves: moves.filter(|(_, (n, _))| *n > 0).collect(),
            collectives: less(&self.collectives, &before.collectives),
            groups: self.groups - before.groups,
        }
    }
}

#[derive(Default)]
struct State {
    counts: Counts,
    ops: HashMap<OpFacts, usize>,
    collectives: HashMap<OfCollective, usize>,
}

/// The layer; clones share what was counted.
#[derive(Clone, Default)]
pub struct Census(Arc<Mutex<State>>);

impl Census {
    /// What has passed so far.
    pub fn counts(&self) -> Counts {
        self.lock().counts.clone()
    }
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn moved(&self, kind: MoveKind, bytes: u64) {
        let mut st = self.lock();
        let e = st.counts.moves.entry(kind).or_default();
        *e = (e.0 + 1, e.1 + bytes);
    }
}

fn pinned(o: &Operand<'_>) -> bool {
    matches!(o.mem.map(|m| m.facts()), Some(Facts::Mem { kind, .. }) if *kind == abi::MEM_HOST_PINNED || *kind == 0)
}

/// Do they have bytes in common? Of one memory is not enough: a pool's blocks are parts of one.
fn shared(a: &abi::Span, b: &abi::Span) -> bool {
    a.mem == b.mem && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes
}

impl Layer for Census {
    fn name(&self) -> &'static str {
        "census"
    }

    fn around(&self, call: &Call<'_>, next: &mut dyn FnMut() -> Status) -> Result<Status> {
        let s = next();
        if s != abi::OK {
            return Ok(s);
        }
        match call {
            Call::Fill { dst, .. } => self.moved(MoveKind::Fill, dst.bytes),
            Call::Copy { dst, src, .. }
            | Call::Copy2d { dst, src, .. }
            | Call::CopyPeer { dst, src, .. } => {
                let kind = match (pinned(dst), pinned(src)) {
                    (true, false) => MoveKind::ToHost,
                    (false, true) => MoveKind::FromHost,
                    _ => MoveKind::OnDevice,
                };
                self.moved(kind, call.bytes());
            }
            Call::Launch { op, .. } => {
                let Facts::Op { op, .. } = op.facts() else {
                    return Ok(s);
                };
                let mut st = self.lock();
                let at = match st.ops.get(op) {
                    Some(i) => *i,
                    None => {
                        let i = st.counts.ops.len();
                        st.counts.ops.push((op.clone(), 0));
                        st.ops.insert(op.clone(), i);
                        i
                    }
                };
                st.counts.ops[at].1 += 1;
            }
            Call::Collective { comm, members, .. } => {
                let Facts::Comm { size, name, .. } = comm.facts() else {
                    return Ok(s);
                };
                let mut st = self.lock();
                st.counts.groups += 1;
                for m in *members {
                    let c = OfCollective {
                        kind: m.desc.kind,
                        dtype: m.desc.dtype,
                        reduce: m.desc.reduce,
                        count: m.desc.count,
                        in_place: shared(&m.desc.send, &m.desc.recv),
                        ranks: *size,
                        group: name.clone(),
                    };
                    let at = match st.collectives.get(&c) {
                        Some(i) => *i,
                        None => {
                            let i = st.counts.collectives.len();
                            st.counts.collectives.push((c.clone(), 0));
                            st.collectives.insert(c, i);
                            i
                        }
                    };
                    st.counts.collectives[at].1 += 1;
                }
            }
            _ => {}
        }
        Ok(s)
    }
}
