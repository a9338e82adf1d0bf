//! What a block exchanges with the ranks of an axis: collectives and messages, held against what they need before anything is moved.

use crate::Tensor;
use crate::error::{Result, shape_error};
use crossweave_hal::{Counts, DType};
use crossweave_mesh::Axis;

/// The stream and the communicator on which a block exchanges something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Lane {
    /// The block's own stream, in order with its kernels.
    #[default]
    Compute,
    /// A stream and a communicator beside it, so that kernels run meanwhile. It begins behind what was enqueued on the block's
    /// stream so far; what it has written is read behind [`crate::Groups::settle`].
    Beside,
}

/// Who exchanges something, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The op of the block, for messages.
    pub op: &'static str,
    /// The axis whose ranks take part.
    pub axis: Axis,
    /// The lane.
    pub lane: Lane,
    /// A value that the forward had is gathered once more for the backward.
    pub again: bool,
    /// So many consecutive ranks of the axis take part, this among them; 0: all.
    pub within: u32,
    /// The number of elements follows from data, and is so many at most; 0: it is known.
    pub most: u64,
    /// Made by the first forward only, and not where it runs again.
    pub once: bool,
}

impl Link {
    /// An exchange over an axis on the block's own stream.
    pub fn new(op: &'static str, axis: Axis) -> Link {
        Link {
            op,
            axis,
            lane: Lane::Compute,
            again: false,
            within: 0,
            most: 0,
            once: false,
        }
    }

    /// The place of a rank among those that take part, and how many they are, given the same along the axis.
    pub fn among(&self, [at, ranks]: [u32; 2]) -> [u32; 2] {
        match self.within {
            0 => [at, ranks],
            n => [at % n, n],
        }
    }
}

/// A collective, or a message to or from one rank. Tensors are dense; ranks are counted along the axis.
#[derive(Clone, Copy, Debug)]
pub enum Exchange<'t> {
    /// The sum of the ranks' tensors, in place.
    AllReduce(&'t Tensor),
    /// The ranks' `send`, one behind the other in `recv`.
    AllGather {
        /// What this rank gives.
        send: &'t Tensor,
        /// What all give: ranks times `send`.
        recv: &'t Tensor,
    },
    /// This rank's piece of the sum of the ranks' `send`.
    ReduceScatter {
        /// A summand of all pieces: ranks times `recv`.
        send: &'t Tensor,
        /// The piece.
        recv: &'t Tensor,
    },
    /// Equal pieces: that of rank `r` in `send` goes to rank `r`.
    AllToAll {
        /// A piece for each rank.
        send: &'t Tensor,
        /// A piece from each rank.
        recv: &'t Tensor,
    },
    /// Pieces of the numbers of elements and at the places that `counts` has for each rank.
    AllToAllV {
        /// The pieces for the ranks.
        send: &'t Tensor,
        /// The pieces from the ranks.
        recv: &'t Tensor,
        /// Elements and places.
        counts: &'t Counts,
    },
    /// A message to a rank, which receives it in the same call.
    Send {
        /// The rank.
        to: u32,
        /// Its content.
        what: &'t Tensor,
    },
    /// A message from a rank.
    Recv {
        /// The rank.
        from: u32,
        /// Where it is put.
        what: &'t Tensor,
    },
}

impl Exchange<'_> {
    /// The name of its kind, as in the ledger of collectives.
    pub fn kind(&self) -> &'static str {
        match self {
            Exchange::AllReduce(_) => "all_reduce",
            Exchange::AllGather { .. } => "all_gather",
            Exchange::ReduceScatter { .. } => "reduce_scatter",
            Exchange::AllToAll { .. } => "all_to_all",
            Exchange::AllToAllV { .. } => "all_to_all_v",
            Exchange::Send { .. } => "send",
            Exchange::Recv { .. } => "recv",
        }
    }

    /// What is sent, and what is received into where that is not the same.
    fn tensors(&self) -> (&Tensor, Option<&Tensor>) {
        match self {
            Exchange::AllReduce(t) => (t, None),
            Exchange::Send { what, .. } | Exchange::Recv { what, .. } => (what, None),
            Exchange::AllGather { send, recv }
            | Exchange::ReduceScatter { send, recv }
            | Exchange::AllToAll { send, recv }
            | Exchange::AllToAllV { send, recv, .. } => (send, Some(recv)),
        }
    }

    /// The tensors that are read and written.
    pub fn touched(&self) -> impl Iterator<Item = &Tensor> {
        let (send, recv) = self.tensors();
        [Some(send), recv].into_iter().flatten()
    }

    /// Elements of the whole vector, the larger of what is given and what comes.
    pub(crate) fn elements(&self) -> u64 {
        match self {
            Exchange::AllToAllV { counts, .. } => counts.send.iter().sum(),
            _ => {
                let (one, other) = self.tensors();
                one.numel().max(other.map_or(0, Tensor::numel))
            }
        }
    }

    /// Refuses what `ranks` ranks cannot exchange.
    fn fits(&self, on: &Link, ranks: u32) -> Result<()> {
        let wrong = |what: String| {
            let (op, kind, axis) = (on.op, self.kind(), on.axis);
            shape_error(format!("{op}: {kind} over {axis} of {ranks} ranks: {what}"))
        };
        let (send, recv) = self.tensors();
        if let Some(t) = [Some(send), recv]
            .into_iter()
            .flatten()
            .find(|t| !t.is_dense())
        {
            return wrong(format!(
                "a strided view of shape {:?}; copy it first",
                t.shape()
            ));
        }
        if let Some(recv) = recv.filter(|r| r.dtype() != send.dtype()) {
            return wrong(format!(
                "{send:?} is received as {recv:?}; give both one type"
            ));
        }
        let n = u64::from(ranks);
        let (a, b) = (send.numel(), recv.map_or(0, Tensor::numel));
        match self {
            Exchange::AllGather { .. } if b != n * a => wrong(format!(
                "{a} elements of each rank make {}, and there is room for {b}",
                n * a
            )),
            Exchange::ReduceScatter { .. } if a != n * b => wrong(format!(
                "pieces of {b} elements make {}, and {a} are given",
                n * b
            )),
            Exchange::AllToAll { .. } if a != b || !a.is_multiple_of(n) => wrong(format!(
                "{a} elements are given and {b} come; give as many, which the ranks divide"
            )),
            Exchange::AllToAllV { counts, .. } => pieces_fit(counts, [a, b], n).or_else(wrong),
            Exchange::Send { to: peer, .. } | Exchange::Recv { from: peer, .. }
                if *peer >= ranks =>
            {
                wrong(format!(
                    "there is no rank {peer}; the last is {}",
                    ranks - 1
                ))
            }
            _ => Ok(()),
        }
    }

    /// What goes to and comes from single ranks, seen from the rank at a place.
    fn peers(&self, [at, ranks]: [u32; 2]) -> Vec<Peer> {
        let peer = |rank: u32, elements: u64, sends: bool| Peer {
            ahead: (rank + ranks - at) % ranks,
            elements,
            sends,
        };
        match self {
            Exchange::Send { to, what } => vec![peer(*to, what.numel(), true)],
            Exchange::Recv { from, what } => vec![peer(*from, what.numel(), false)],
            Exchange::AllToAllV { counts, .. } => {
                let of = |all: &[u64], sends: bool| -> Vec<Peer> {
                    let each = all.iter().enumerate();
                    each.map(|(r, n)| peer(r as u32, *n, sends)).collect()
                };
                let mut all = of(&counts.send, true);
                all.extend(of(&counts.recv, false));
                all
            }
            _ => vec![],
        }
    }
}

/// Refuses pieces of an exchange by counts that do not lie in what is given and received.
fn pieces_fit(counts: &Counts, [send, recv]: [u64; 2], n: u64) -> std::result::Result<(), String> {
    let sides = [
        ("sends", &counts.send, &counts.send_at, send),
        ("receives", &counts.recv, &counts.recv_at, recv),
    ];
    for (does, each, at, all) in sides {
        if [each.len(), at.len()].iter().any(|l| *l as u64 != n) {
            return Err(format!(
                "it {does} {} pieces at {} places; give one for each rank",
                each.len(),
                at.len()
            ));
        }
        let ends = each.iter().zip(at).enumerate();
        for (rank, (len, at)) in ends {
            if at.checked_add(*len).is_none_or(|end| end > all) {
                return Err(format!(
                    "the {len} elements from {at} on that it {does} with rank {rank} are not within {all}"
                ));
            }
        }
    }
    Ok(())
}

/// Refuses what a group of `ranks` ranks cannot exchange, in a sentence with the op and the axis.
///
/// # Errors
/// The first exchange that does not fit.
pub fn check_exchange(on: &Link, ranks: u32, all: &[Exchange<'_>]) -> Result<()> {
    all.iter().try_for_each(|e| e.fits(on, ranks))
}

/// What was exchanged in one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// Who, and on which lane.
    pub on: Link,
    /// The kind, as in the ledger of collectives; `messages` to and from single ranks.
    pub kind: &'static str,
    /// Elements of the whole vector, of all that one call moves.
    pub elements: u64,
    /// Their type.
    pub dtype: DType,
    /// Ranks along the axis.
    pub ranks: u32,
    /// What goes to and comes from single ranks, where that is not alike for all and does not follow from data.
    pub peers: Vec<Peer>,
}

/// Elements that go to one rank, or come from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// How many places ahead along the axis it is, around its end.
    pub ahead: u32,
    /// How many.
    pub elements: u64,
    /// They go there.
    pub sends: bool,
}

impl Said {
    /// What a call of the rank at a place among so many says; nothing of a call without members.
    pub(crate) fn of(on: &Link, place: [u32; 2], all: &[Exchange<'_>]) -> Option<Said> {
        let first = all.first()?;
        let is_message =
            |e: &Exchange<'_>| matches!(e, Exchange::Send { .. } | Exchange::Recv { .. });
        Some(Said {
            on: *on,
            kind: match all.iter().any(is_message) {
                true => "messages",
                false => first.kind(),
            },
            elements: all.iter().map(Exchange::elements).sum(),
            dtype: first.tensors().0.dtype(),
            ranks: place[1],
            peers: match on.most {
                0 => all.iter().flat_map(|e| e.peers(place)).collect(),
                _ => vec![],
            },
        })
    }
}
