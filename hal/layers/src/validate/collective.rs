//! Collectives: arguments that fit the communicator and the spans, and that are the same on every rank of this process.

use super::Verdict;
use super::spans::{inside, meet};
use crate::call::{Member, Operand, collective_name};
use crate::object::{Facts, Object};
use crossweave_abi as abi;
use crossweave_abi::DType;
use std::collections::HashMap;

/// The arguments of one group, one by one.
pub(super) fn check(comm: &Object, members: &[Member<'_>]) -> Verdict {
    let Facts::Comm { rank, size, .. } = comm.facts() else {
        return Ok(());
    };
    members.iter().try_for_each(|m| {
        one(m, *rank, *size).map_err(|e| format!("{}: {e}", collective_name(m.desc.kind)))
    })
}

fn one(m: &Member<'_>, rank: i32, size: i32) -> Verdict {
    let d = &m.desc;
    if d.kind == abi::COLL_BARRIER {
        return Ok(());
    }
    let Some(dtype) = DType::from_id(d.dtype) else {
        // A later type: the plugin answers for it (R3).
        return Ok(());
    };
    let known = size > 0;
    let n = size.max(0) as u64;
    let bytes = |elements: u64| dtype.bytes(elements);
    let long = |name: &str, o: &Operand<'_>, want: u64| match o.bytes == want {
        true => inside(name, o),
        false => Err(format!(
            "{name} has {} bytes; {} x {} make {want}",
            o.bytes,
            want / bytes(1).max(1),
            dtype.name()
        )),
    };
    let (one, all) = (bytes(d.count), bytes(d.count.saturating_mul(n)));
    let in_range = |name: &str, r: i32| match !known || (0..size).contains(&r) {
        true => Ok(()),
        false => Err(format!("{name} {r} of {size} ranks")),
    };
    let same = m.desc.send == m.desc.recv;
    match d.kind {
        abi::COLL_ALL_REDUCE | abi::COLL_BROADCAST | abi::COLL_REDUCE => {
            if d.kind != abi::COLL_ALL_REDUCE {
                in_range("root", d.root)?;
            }
            long("send", &m.send, one)?;
            long("recv", &m.recv, one)?;
            apart(m, same)
        }
        abi::COLL_REDUCE_SCATTER if known => {
            long("send", &m.send, all)?;
            long("recv", &m.recv, one)?;
            let own = m.send.offset + one * rank.max(0) as u64;
            apart(m, m.recv.offset == own)
        }
        abi::COLL_ALL_GATHER if known => {
            long("send", &m.send, one)?;
            long("recv", &m.recv, all)?;
            let own = m.recv.offset + one * rank.max(0) as u64;
            apart(m, m.send.offset == own)
        }
        abi::COLL_ALL_TO_ALL if known => {
            long("send", &m.send, all)?;
            long("recv", &m.recv, all)?;
            apart(m, same)
        }
        abi::COLL_ALL_TO_ALL_V if known => {
            pieces("send", &m.send, m.send_counts, m.send_offsets, dtype, n)?;
            pieces("recv", &m.recv, m.recv_counts, m.recv_offsets, dtype, n)
        }
        abi::COLL_ALL_GATHER_V if known => {
            inside("send", &m.send)?;
            pieces("recv", &m.recv, m.recv_counts, m.recv_offsets, dtype, n)
        }
        abi::COLL_SEND => {
            in_range("peer", d.peer)?;
            inside("send", &m.send)
        }
        abi::COLL_RECV => {
            in_range("peer", d.peer)?;
            inside("recv", &m.recv)
        }
        _ => Ok(()),
    }
}

/// Memory they share only the way `in_place` allows.
fn apart(m: &Member<'_>, in_place: bool) -> Verdict {
    match meet(&m.send, &m.recv) && !in_place {
        true => Err("send and recv overlap, and not as in place".into()),
        false => Ok(()),
    }
}

fn pieces(
    name: &str,
    o: &Operand<'_>,
    counts: &[u64],
    at: &[u64],
    dtype: DType,
    ranks: u64,
) -> Verdict {
    inside(name, o)?;
    if counts.len() as u64 != ranks || at.len() as u64 != ranks {
        return Err(format!("{name}: counts or offsets are absent"));
    }
    for (r, (n, from)) in counts.iter().zip(at).enumerate() {
        let end = from.checked_add(*n).map(|e| dtype.bytes(e));
        if *n > 0 && end.is_none_or(|e| e > o.bytes) {
            return Err(format!(
                "{name}: rank {r}'s {n} elements from {from} do not fit {} bytes",
                o.bytes
            ));
        }
    }
    Ok(())
}

/// What all ranks must agree on.
type Signature = Vec<(u32, u32, u32, u64, i32)>;

/// The ranks of this process in their groups.
#[derive(Default)]
pub(super) struct Groups {
    /// Group (by its id) and rank of a communicator, and its calls.
    comms: HashMap<u64, (Vec<u8>, i32, u64)>,
    /// The first signature of a group's call, who gave it, and how many have called.
    calls: HashMap<(Vec<u8>, u64), (Signature, i32, i32)>,
}

fn signature(members: &[Member<'_>]) -> Signature {
    let one = |m: &Member<'_>| {
        let d = &m.desc;
        match d.kind {
            // Both ends of a message, and pieces of a rank's own length, are distinguished by nothing they share.
            abi::COLL_SEND | abi::COLL_RECV => None,
            abi::COLL_ALL_TO_ALL_V | abi::COLL_ALL_GATHER_V => Some((d.kind, d.dtype, 0, 0, 0)),
            abi::COLL_BROADCAST | abi::COLL_REDUCE => {
                Some((d.kind, d.dtype, d.reduce, d.count, d.root))
            }
            _ => Some((d.kind, d.dtype, d.reduce, d.count, 0)),
        }
    };
    members.iter().filter_map(one).collect()
}

fn told(s: &Signature) -> String {
    let one = |(kind, dtype, reduce, count, root): &(u32, u32, u32, u64, i32)| {
        let dtype = DType::from_id(*dtype).map_or("?", DType::name);
        let reduce =
            ["", " sum", " prod", " min", " max", " avg", " premul_sum"][(*reduce).min(6) as usize];
        format!(
            "{} of {count} x {dtype}{reduce} (root {root})",
            collective_name(*kind)
        )
    };
    match s.is_empty() {
        true => "messages only".into(),
        false => s.iter().map(one).collect::<Vec<_>>().join(", "),
    }
}

impl Groups {
    pub fn joined(&mut self, comm: u64, _device: u64, id: &[u8], rank: i32) {
        self.comms.insert(comm, (id.to_vec(), rank, 0));
    }

    pub fn left(&mut self, comm: &Object) {
        if let Some((id, ..)) = self.comms.remove(&comm.id())
            && self.comms.values().all(|c| c.0 != id)
        {
            self.calls.retain(|(of, _), _| *of != id);
        }
    }

    /// Before a call: is it what the first rank to come calls? Who comes first is decided here, before the plugin is called, so that of two
    /// ranks that call at the same time one gets the error.
    pub fn enter(&mut self, comm: &Object, members: &[Member<'_>]) -> Verdict {
        let Some((id, rank, calls)) = self.comms.get(&comm.id()) else {
            return Ok(());
        };
        let mine = signature(members);
        // Groups of messages are between pairs: ranks need not make as many.
        if mine.is_empty() {
            return Ok(());
        }
        let (first, who, _) = self
            .calls
            .entry((id.clone(), *calls))
            .or_insert_with(|| (mine.clone(), *rank, 0));
        match *first == mine {
            true => Ok(()),
            false => Err(format!(
                "call {calls} of its group is {} on rank {rank}, and {} on rank {who}",
                told(&mine),
                told(first)
            )),
        }
    }

    /// The plugin has taken it.
    pub fn launched(&mut self, comm: &Object, members: &[Member<'_>]) {
        let size = match comm.facts() {
            Facts::Comm { size, .. } => *size,
            _ => 0,
        };
        let Some((id, rank, calls)) = self.comms.get_mut(&comm.id()) else {
            return;
        };
        let mine = signature(members);
        if mine.is_empty() {
            return;
        }
        let key = (id.clone(), *calls);
        *calls += 1;
        let e = self.calls.entry(key.clone()).or_insert((mine, *rank, 0));
        e.2 += 1;
        if e.2 >= size {
            self.calls.remove(&key);
        }
    }

    /// The plugin has refused it: who comes next is the first.
    pub fn refused(&mut self, comm: &Object) {
        if let Some((id, rank, calls)) = self.comms.get(&comm.id()) {
            let key = (id.clone(), *calls);
            if matches!(self.calls.get(&key), Some((_, who, 0)) if who == rank) {
                self.calls.remove(&key);
            }
        }
    }
}
