//! Heterogeneous groups, whose ranks belong to several back ends: what stays inside an island goes through its own
//! library, the rest over the bridge.
//!
//! An island is the set of ranks of a group that one plugin's communicator reaches; the bridge is a communicator of the
//! whole group that a carrier serves through pinned host memory. Everything here consists of messages and of copies of
//! finished bytes, so both laws of this crate hold unchanged: one rank computes each element, in rank order, and the
//! others copy it. Which rank acts for its island is a function of the list of islands alone, which is the same on all
//! ranks.

use crate::comm_plan::Nodes;
use crate::group::Collectives;
use crossweave_hal::{
    Collective, Communicator, Counts, DType, Error, GroupRank, Reduce, Region, Result, Stream,
};
use std::collections::HashMap;

/// The islands of a group, and this rank's own.
pub(crate) struct Archipelago {
    nodes: Nodes,
    /// Island of each rank, and its index there.
    place: Vec<(u32, u32)>,
    /// Reaches the ranks of this rank's island; `None`: it is alone there.
    near: Option<Communicator>,
    /// What the island's plugin said it can do.
    can: HashMap<(&'static str, DType, u32), bool>,
}

impl Collectives {
    /// A group of several islands. `bridge` reaches every rank; `near` the ranks of this rank's island, in the order `nodes` lists them, and
    /// is absent where that is one. Every rank gives the same `nodes`.
    ///
    /// # Errors
    /// Islands that are not those of the group.
    pub fn of_islands(
        bridge: Communicator,
        nodes: Nodes,
        near: Option<Communicator>,
    ) -> Result<Collectives> {
        let refuse = |why: String| {
            let at = format!("islands of {}", bridge.name());
            Err(Error::invalid(at, why))
        };
        if nodes.ranks() != bridge.size() {
            return refuse(format!(
                "they have {} ranks, the group {}",
                nodes.ranks(),
                bridge.size()
            ));
        }
        let mut place = vec![(0, 0); nodes.ranks() as usize];
        for (k, ranks) in nodes.iter().enumerate() {
            for (i, r) in ranks.iter().enumerate() {
                place[*r as usize] = (k as u32, i as u32);
            }
        }
        let (island, index) = place[bridge.rank() as usize];
        let size = nodes.iter().nth(island as usize).map_or(0, <[u32]>::len) as u32;
        let have = near.as_ref().map_or((0, 1), |c| (c.rank(), c.size()));
        if have != (index, size) {
            return refuse(format!(
                "{} is {index} of {size} in its island, and its communicator says {} of {}",
                bridge.members().of(GroupRank(bridge.rank())),
                have.0,
                have.1
            ));
        }
        let mut group = Collectives::from(bridge);
        group.islands = Some(Archipelago {
            nodes,
            place,
            near,
            can: HashMap::new(),
        });
        Ok(group)
    }

    /// One group of sends and receives: each by the library that reaches its peer. What is neither is the bridge's.
    pub(crate) fn messages(&mut self, s: &Stream, members: &[Collective<'_>]) -> Result<()> {
        let me = self.rank();
        let Some(a) = &mut self.islands else {
            return self.comm.group_uncounted(s, members);
        };
        let (mut inside, mut across) = (vec![], vec![]);
        for m in members {
            let peer = match m {
                Collective::Send { peer, .. } | Collective::Recv { peer, .. } => *peer,
                // What only the bridge can add.
                _ => {
                    across.push(*m);
                    continue;
                }
            };
            match a.near.is_some().then(|| a.index_near(me, peer)).flatten() {
                Some(index) => inside.push(to(m, index)),
                None => across.push(*m),
            }
        }
        if let Some(near) = a.near.as_mut().filter(|_| !inside.is_empty()) {
            near.group_uncounted(s, &inside)?;
        }
        match across.is_empty() {
            true => Ok(()),
            false => self.comm.group_uncounted(s, &across),
        }
    }

    /// Hands pieces round: the owner of each has it in place and the others receive it. It crosses the bridge once for each other island,
    /// whose deputy hands it on.
    pub(crate) fn spread(
        &mut self,
        s: &Stream,
        dtype: DType,
        pieces: &[(u32, Region<'_>)],
    ) -> Result<()> {
        let (n, me) = (self.size(), self.rank());
        let Some(a) = &mut self.islands else {
            return Ok(());
        };
        let (mine, islands) = (a.place[me as usize].0, a.nodes.iter().count() as u32);
        let of = |a: &Archipelago, owner: u32| a.place[owner as usize].0;
        let pieces: Vec<_> = pieces
            .iter()
            .copied()
            .filter(|(_, r)| r.bytes > 0)
            .collect();
        if let Some((owner, _)) = pieces.iter().find(|(owner, _)| *owner >= n) {
            let why = format!("member {owner} of {n} is to send");
            return Err(Error::invalid("launch", why));
        }
        // Across: one message for each piece and other island.
        let mut far = vec![];
        for &(owner, buf) in &pieces {
            if owner == me {
                let others = (0..islands).filter(|k| *k != mine);
                far.extend(others.map(|k| Collective::Send {
                    buf,
                    dtype,
                    peer: a.deputy(owner, k),
                }));
            } else if of(a, owner) != mine && a.deputy(owner, mine) == me {
                far.push(Collective::Recv {
                    buf,
                    dtype,
                    peer: owner,
                });
            }
        }
        // Inside: from the rank of the island that has it.
        let holder = |a: &Archipelago, owner: u32| match of(a, owner) == mine {
            true => owner,
            false => a.deputy(owner, mine),
        };
        let holders: Vec<(u32, Region<'_>)> =
            pieces.iter().map(|&(o, r)| (holder(a, o), r)).collect();
        if !far.is_empty() {
            self.comm.group_uncounted(s, &far)?;
        }
        self.share(s, dtype, &holders)
    }

    /// The same inside this rank's island, by its library's own broadcasts where it has them.
    pub(crate) fn share(
        &mut self,
        s: &Stream,
        dtype: DType,
        pieces: &[(u32, Region<'_>)],
    ) -> Result<()> {
        let me = self.rank();
        let Some(a) = &mut self.islands else {
            return Ok(());
        };
        let Some(&(_, first)) = pieces.first().filter(|_| a.near.is_some()) else {
            return Ok(());
        };
        if let (true, Some(layers)) = (pieces.len() > 1, a.layers(me, dtype, pieces)?) {
            let gather = |l: &Layer<'_>| -> Result<()> {
                let (send, recv, counts) = (l.send, l.recv, &l.counts);
                let c = Collective::AllGatherV {
                    send,
                    recv,
                    dtype,
                    counts,
                };
                a.near_group(s, &[c])
            };
            return layers.iter().try_for_each(gather);
        }
        let root = |a: &Archipelago, r: u32| a.place[r as usize].1;
        if a.can(&Collective::Broadcast {
            buf: first,
            dtype,
            root: 0,
        })? {
            let mut all = vec![];
            for &(holder, buf) in pieces {
                let root = root(a, holder);
                all.push(Collective::Broadcast { buf, dtype, root });
            }
            return a.near_group(s, &all);
        }
        let peers: Vec<u32> = a.neighbours(me).filter(|r| *r != me).collect();
        let mut all = vec![];
        for &(holder, buf) in pieces {
            match holder == me {
                true => all.extend(
                    peers
                        .iter()
                        .map(|&peer| Collective::Send { buf, dtype, peer }),
                ),
                false => all.push(Collective::Recv {
                    buf,
                    dtype,
                    peer: holder,
                }),
            }
        }
        self.messages(s, &all)
    }

    /// How the island's own library joins spans at its ranks; `None`: there are no islands, or it cannot. A library that gives sums to all
    /// ranks at once writes where they have their inputs, so it needs leave to (`inputs_stay` is false).
    pub(crate) fn joins_inside(
        &mut self,
        dtype: DType,
        op: Reduce,
        lanes: &[(u32, Region<'_>)],
        inputs_stay: bool,
    ) -> Result<Option<ByLibrary>> {
        let Some(a) = &mut self.islands else {
            return Ok(None);
        };
        let Some(&(_, buf)) = lanes.first().filter(|_| a.near.is_some()) else {
            return Ok(Some(ByLibrary::Alone));
        };
        if a.can(&Collective::Reduce {
            buf,
            dtype,
            op,
            root: 0,
        })? {
            return Ok(Some(ByLibrary::Reduce));
        }
        let all = !inputs_stay && a.can(&Collective::AllReduce { buf, dtype, op })?;
        Ok(all.then_some(ByLibrary::AllReduce))
    }

    /// Joins the spans of the island's ranks, each at the rank it is given with. What other ranks than that one have in it afterwards is
    /// not said.
    pub(crate) fn join_inside(
        &mut self,
        s: &Stream,
        dtype: DType,
        op: Reduce,
        lanes: &[(u32, Region<'_>)],
        how: ByLibrary,
    ) -> Result<()> {
        let Some(a) = &mut self.islands else {
            return Ok(());
        };
        let all: Vec<Collective<'_>> = match how {
            ByLibrary::Alone => return Ok(()),
            ByLibrary::Reduce => {
                let mut all = vec![];
                for &(root, buf) in lanes {
                    let root = a.place[root as usize].1;
                    all.push(Collective::Reduce {
                        buf,
                        dtype,
                        op,
                        root,
                    });
                }
                all
            }
            ByLibrary::AllReduce => lanes
                .iter()
                .map(|&(_, buf)| Collective::AllReduce { buf, dtype, op })
                .collect(),
        };
        a.near_group(s, &all)
    }
}

/// What an island's library does of a reduction over islands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByLibrary {
    /// Nothing: this rank is alone in its island.
    Alone,
    /// A reduce for each span.
    Reduce,
    /// An all-reduce for each span.
    AllReduce,
}

impl Archipelago {
    /// The communicator of this rank's island.
    pub fn near(&self) -> Option<&Communicator> {
        self.near.as_ref()
    }

    /// The ranks of `rank`'s island.
    fn neighbours(&self, rank: u32) -> impl Iterator<Item = u32> {
        let island = self.place[rank as usize].0 as usize;
        self.nodes.iter().nth(island).into_iter().flatten().copied()
    }

    /// Index of `peer` in the island of `me`, if it is there.
    fn index_near(&self, me: u32, peer: u32) -> Option<u32> {
        let (island, index) = *self.place.get(peer as usize)?;
        (island == self.place[me as usize].0).then_some(index)
    }

    /// Who takes `owner`'s pieces for another island: its ranks in turn.
    fn deputy(&self, owner: u32, island: u32) -> u32 {
        let index = self.place[owner as usize].1 as usize;
        let ranks = self.nodes.iter().nth(island as usize).unwrap_or_default();
        ranks[index % ranks.len()]
    }

    /// Can the island's library do it? Asked once per kind, type and reduction; all its ranks get the same answer.
    fn can(&mut self, c: &Collective<'_>) -> Result<bool> {
        let Some(near) = &self.near else {
            return Ok(false);
        };
        let key = crate::route::Key::of(c);
        let key = (key.kind, key.dtype, key.reduce);
        if let Some(&can) = self.can.get(&key) {
            return Ok(can);
        }
        // A library with a limit is not asked again for each length: it is left to messages.
        let can = near.query(c)?.is_some_and(|s| s.max_bytes == 0);
        self.can.insert(key, can);
        Ok(can)
    }

    fn near_group(&mut self, s: &Stream, members: &[Collective<'_>]) -> Result<()> {
        match &mut self.near {
            Some(near) => near.group_uncounted(s, members),
            None => Ok(()),
        }
    }

    /// The pieces as calls of the island's all_gather_v, where it has that: in each call a rank gives one piece or nothing.
    fn layers<'a>(
        &mut self,
        me: u32,
        dtype: DType,
        pieces: &[(u32, Region<'a>)],
    ) -> Result<Option<Vec<Layer<'a>>>> {
        let (island, me) = self.place[me as usize];
        let size = self
            .nodes
            .iter()
            .nth(island as usize)
            .map_or(0, <[u32]>::len);
        let Some(&(_, first)) = pieces.first() else {
            return Ok(None);
        };
        let start = pieces.iter().map(|(_, r)| r.offset).min().unwrap_or(0);
        let end = pieces
            .iter()
            .map(|(_, r)| r.offset + r.bytes)
            .max()
            .unwrap_or(0);
        let elements = |bytes: u64| bytes * 8 / dtype.bits();
        let whole = |bytes: u64| dtype.bytes(elements(bytes)) == bytes;
        let one_buffer = |(_, r): &(u32, Region<'_>)| {
            std::ptr::eq(r.buffer, first.buffer) && whole(r.offset - start)
        };
        if !pieces.iter().all(one_buffer) {
            return Ok(None);
        }
        let (none, recv) = (
            first.buffer.region(start, 0),
            first.buffer.region(start, end - start),
        );
        let mut layers: Vec<Layer<'a>> = vec![];
        let mut given = vec![0; size];
        for &(holder, r) in pieces {
            let index = self.place[holder as usize].1 as usize;
            let layer = given[index];
            given[index] += 1;
            if layer == layers.len() {
                let counts = Counts {
                    recv: vec![0; size],
                    recv_at: vec![0; size],
                    ..Counts::default()
                };
                layers.push(Layer {
                    send: none,
                    recv,
                    counts,
                });
            }
            let l = &mut layers[layer];
            l.counts.recv[index] = elements(r.bytes);
            l.counts.recv_at[index] = elements(r.offset - start);
            if index == me as usize {
                l.send = r;
            }
        }
        let asked = layers.first().map(|l| Collective::AllGatherV {
            send: l.recv,
            recv: l.recv,
            dtype,
            counts: &l.counts,
        });
        let can = asked.map_or(Ok(false), |c| self.can(&c))?;
        Ok(can.then_some(layers))
    }
}

/// One call of an island's all_gather_v.
struct Layer<'a> {
    send: Region<'a>,
    recv: Region<'a>,
    counts: Counts,
}

/// The same message to or from another number.
fn to<'a>(m: &Collective<'a>, number: u32) -> Collective<'a> {
    let mut m = *m;
    match &mut m {
        Collective::Send { peer, .. } | Collective::Recv { peer, .. } => *peer = number,
        _ => {}
    }
    m
}
