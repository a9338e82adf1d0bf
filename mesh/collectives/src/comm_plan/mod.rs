//! Collective plans: one collective written out as what each rank sends, receives, copies and folds, in rounds. Pure data.
//!
//! A plan is made once from facts every rank knows (kind, count, ranks, nodes), so all ranks make the same one. Four consumers read it:
//! [`verify`](verify::verify) runs it on symbols and proves the post-condition, [`simulate`](numbers::simulate) runs it on
//! numbers with vendors that do not exist, [`time`](cost::time) runs it on a clock, and `Collectives` runs it on devices.
//!
//! **Owner computes, others copy bits**: in every plan made here each element of a reduction is finished by one rank and copied to the
//! others; the verifier refuses a plan in which two ranks end with differently built sums.

mod build;
pub mod cost;
mod nodes;
pub mod numbers;
mod show;
pub mod verify;

pub use build::{Algorithm, plan};
pub use nodes::{Nodes, NodesError, across, hierarchical, hierarchical_scatter};

/// What a plan carries out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `Data` (count elements) of every rank becomes the join of all ranks' `Data`.
    AllReduce,
    /// `Out` (count elements) of rank r becomes piece r of the join of all ranks' `Data` (ranks x count), which stays as it is.
    ReduceScatter,
    /// `Out` (ranks x count) of every rank becomes all ranks' `Data` (count), in rank order.
    AllGather,
    /// `Data` (count) of every rank becomes the root's.
    Broadcast {
        /// Whose data.
        root: u32,
    },
    /// `Data` of the root becomes the join of all ranks' `Data`; the others' is left as it is.
    Reduce {
        /// Who gets the join.
        root: u32,
    },
    /// Piece s of `Out` (ranks x count) at rank r becomes piece r of `Data` at rank s.
    AllToAll,
}

impl Kind {
    /// Name, as in the ledger.
    pub fn name(self) -> &'static str {
        match self {
            Kind::AllReduce => "all_reduce",
            Kind::ReduceScatter => "reduce_scatter",
            Kind::AllGather => "all_gather",
            Kind::Broadcast { .. } => "broadcast",
            Kind::Reduce { .. } => "reduce",
            Kind::AllToAll => "all_to_all",
        }
    }
    /// Elements of `Data` at each rank.
    pub fn data(self, count: u64, ranks: u32) -> u64 {
        match self {
            Kind::ReduceScatter | Kind::AllToAll => count * u64::from(ranks),
            _ => count,
        }
    }
    /// Elements of `Out` at each rank; 0 where the collective is in place.
    pub fn out(self, count: u64, ranks: u32) -> u64 {
        match self {
            Kind::ReduceScatter => count,
            Kind::AllGather | Kind::AllToAll => count * u64::from(ranks),
            _ => 0,
        }
    }
    /// Whether elements are joined, not only moved.
    pub fn reduces(self) -> bool {
        matches!(
            self,
            Kind::AllReduce | Kind::ReduceScatter | Kind::Reduce { .. }
        )
    }
}

/// One of the three vectors of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buf {
    /// The caller's input; also the output where the collective is in place.
    Data,
    /// The caller's output.
    Out,
    /// The plan's own.
    Scratch,
}

/// Elements `at .. at + n` of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Which vector.
    pub home: Buf,
    /// First element.
    pub at: u64,
    /// Elements; never 0 in a plan.
    pub n: u64,
}

impl Span {
    /// Elements `at .. at + n` of `home`.
    pub fn new(home: Buf, at: u64, n: u64) -> Span {
        Span { home, at, n }
    }
    /// Whether two spans share an element.
    pub fn meets(&self, other: &Span) -> bool {
        self.home == other.home && self.at < other.at + other.n && other.at < self.at + self.n
    }
}

/// What a rank does in a round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Move {
    /// Sends a span.
    Send {
        /// What.
        span: Span,
        /// To whom.
        to: u32,
    },
    /// Receives into a span.
    Recv {
        /// Where to.
        span: Span,
        /// From whom.
        from: u32,
    },
    /// `dst = src`.
    Copy {
        /// Written.
        dst: Span,
        /// Read; as long as `dst`.
        src: Span,
    },
    /// `dst = parts[0] + parts[1] + …` (or whatever the reduction is); `dst` may be one of the parts.
    Fold {
        /// Written.
        dst: Span,
        /// Operands, two or more, each as long as `dst`.
        parts: Vec<Span>,
        /// Who decides the order of the sum.
        by: Order,
    },
}

/// Who decides how the operands of one fold are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// This crate: from left to right, 16-bit floats in f32.
    Given,
    /// The library of the ranks' vendor, in whatever order and precision it has.
    Vendor,
}

impl Move {
    /// Spans read.
    pub fn reads(&self) -> &[Span] {
        match self {
            Move::Send { span, .. } => std::slice::from_ref(span),
            Move::Recv { .. } => &[],
            Move::Copy { src, .. } => std::slice::from_ref(src),
            Move::Fold { parts, .. } => parts,
        }
    }
    /// Span written.
    pub fn writes(&self) -> Option<Span> {
        match *self {
            Move::Send { .. } => None,
            Move::Recv { span, .. } => Some(span),
            Move::Copy { dst, .. } | Move::Fold { dst, .. } => Some(dst),
        }
    }
}

/// Moves without order between them: nothing a round writes is read or written by another move of the round.
pub type Round = Vec<Move>;

/// One rank's part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RankPlan {
    /// Elements of scratch.
    pub scratch: u64,
    /// In order.
    pub rounds: Vec<Round>,
    /// In a plan over islands: what the island's library may do in place of the first and last rounds.
    pub inside: Option<Inside>,
}

/// The part of a rank's plan that stays in its island, as collectives of the island's own library.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Inside {
    /// First of the rounds that go between islands, and the first behind them: those before join, those behind hand round.
    pub between: (usize, usize),
    /// What is joined at which rank of the island.
    pub joins: Vec<Join>,
    /// What is handed to the island by which of its ranks.
    pub shares: Vec<(u32, Span)>,
}

/// A span of every rank of an island, joined at one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Join {
    /// Where it is joined.
    pub root: u32,
    /// This rank's operand.
    pub own: Span,
    /// Where the sum goes at the root.
    pub sum: Span,
}

/// One collective, written out for every rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CommPlan {
    /// What is carried out.
    pub kind: Kind,
    /// Elements, as [`Kind`] counts them.
    pub count: u64,
    /// One entry a rank.
    pub ranks: Vec<RankPlan>,
    /// Whether every sum is the left fold in rank order, so that its bits depend neither on the cut nor on who owns a piece.
    pub rank_order: bool,
}

impl CommPlan {
    /// Ranks.
    pub fn size(&self) -> u32 {
        self.ranks.len() as u32
    }
    /// Elements rank `rank` sends.
    pub fn sent(&self, rank: u32) -> u64 {
        let moves = self.ranks[rank as usize].rounds.iter().flatten();
        moves
            .map(|m| match m {
                Move::Send { span, .. } => span.n,
                _ => 0,
            })
            .sum()
    }
    /// Additions of elements at rank `rank`.
    pub fn joined(&self, rank: u32) -> u64 {
        let moves = self.ranks[rank as usize].rounds.iter().flatten();
        moves
            .map(|m| match m {
                Move::Fold { dst, parts, .. } => dst.n * (parts.len() as u64 - 1),
                _ => 0,
            })
            .sum()
    }
}

/// How `count` elements are cut into one piece per owner: lengths differ by one at most, earlier owners take the longer ones.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    count: u64,
    owners: u64,
}

impl Cut {
    /// Cuts `count` elements for `owners` owners.
    pub fn new(count: u64, owners: u32) -> Cut {
        Cut {
            count,
            owners: u64::from(owners.max(1)),
        }
    }
    /// First element of piece `k`; of `k = owners`: the end.
    pub fn at(&self, k: u32) -> u64 {
        let k = u64::from(k);
        k * (self.count / self.owners) + k.min(self.count % self.owners)
    }
    /// Elements of piece `k`.
    pub fn len(&self, k: u32) -> u64 {
        self.at(k + 1) - self.at(k)
    }
    /// Pieces `k..end` as one span of `home`, if it has any element.
    fn span(&self, home: Buf, pieces: std::ops::Range<u32>) -> Option<Span> {
        let (at, end) = (self.at(pieces.start), self.at(pieces.end));
        (end > at).then(|| Span::new(home, at, end - at))
    }
}
