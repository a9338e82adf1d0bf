//! The algorithms over sends and receives: direct (rank order), ring, recursive halving and doubling, binomial tree, Bruck.
//!
//! The algorithms are those of Thakur et al. (2005) and Bruck et al. (1997). Ranks need not be a power of two, counts need not divide, and may be zero.

use super::{Buf, CommPlan, Cut, Inside, Join, Kind, Move, Order, RankPlan, Round, Span};

/// How a collective is carried out over sends and receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// Every piece goes straight to (or comes straight from) its owner, who folds in rank order: same bits for any cut.
    Direct,
    /// Neighbour to neighbour, n-1 rounds a phase: least traffic on any network, order of sums rotates with the piece.
    Ring,
    /// Recursive halving, then doubling: log n rounds a phase, tree order of sums.
    Halving,
    /// Binomial tree up, binomial tree down: least latency for short vectors, tree order of sums.
    Tree,
}

impl Algorithm {
    /// Each of them.
    pub const ALL: [Algorithm; 4] = [
        Algorithm::Direct,
        Algorithm::Ring,
        Algorithm::Halving,
        Algorithm::Tree,
    ];
    /// Name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Direct => "direct",
            Algorithm::Ring => "ring",
            Algorithm::Halving => "halving",
            Algorithm::Tree => "tree",
        }
    }
}

/// The plan of a collective by an algorithm; `None` where the algorithm has no form of it.
pub fn plan(kind: Kind, algorithm: Algorithm, count: u64, ranks: u32) -> Option<CommPlan> {
    use Algorithm::{Direct, Halving, Ring, Tree};
    let n = ranks;
    let mut b = Builder::new(n);
    match (kind, algorithm) {
        (Kind::AllReduce, Direct) => {
            b.direct_fold(Cut::new(count, n), Buf::Data);
            b.direct_gather(Cut::new(count, n), Buf::Data);
        }
        (Kind::AllReduce, Ring) => {
            let cut = Cut::new(count, n);
            b.ring_reduce_in_place(cut);
            // The ring ends with piece k at rank k - 1.
            b.ring_gather(cut, Buf::Data, n - 1);
        }
        (Kind::AllReduce, Halving) => b.halving_doubling(count),
        (Kind::AllReduce, Tree) => {
            b.tree_reduce(count, 0, false);
            b.tree_broadcast(count, 0);
        }
        (Kind::ReduceScatter, Direct) => b.direct_fold(Cut::new(count * u64::from(n), n), Buf::Out),
        (Kind::ReduceScatter, Ring) => b.ring_reduce_scatter(count),
        (Kind::AllGather, Direct) => {
            b.own_piece(count);
            b.direct_gather(Cut::new(count * u64::from(n), n), Buf::Out);
        }
        (Kind::AllGather, Ring) => {
            b.own_piece(count);
            b.ring_gather(Cut::new(count * u64::from(n), n), Buf::Out, 0);
        }
        (Kind::AllGather, Halving) => b.bruck_gather(count),
        (Kind::Broadcast { root }, Tree) => b.tree_broadcast(count, root),
        (Kind::Broadcast { root }, Ring) => b.scatter_broadcast(count, root),
        (Kind::Reduce { root }, Tree) => b.tree_reduce(count, root, true),
        (Kind::AllToAll, Direct) => b.pairwise_exchange(count),
        _ => return None,
    }
    // With one rank or two, every order of a commutative sum is rank order up to the side, and sides are kept.
    let rank_order = !kind.reduces() || algorithm == Direct;
    Some(b.finish(kind, count, rank_order))
}

/// `dst = left + right`.
fn join(dst: Span, left: Span, right: Span) -> Move {
    Move::Fold {
        dst,
        parts: vec![left, right],
        by: Order::Given,
    }
}

/// Rounds of all ranks, written side by side.
pub(super) struct Builder {
    pub n: u32,
    pub ranks: Vec<RankPlan>,
}

impl Builder {
    pub fn new(n: u32) -> Builder {
        Builder {
            n,
            ranks: vec![RankPlan::default(); n as usize],
        }
    }
    pub fn finish(self, kind: Kind, count: u64, rank_order: bool) -> CommPlan {
        CommPlan {
            kind,
            count,
            ranks: self.ranks,
            rank_order,
        }
    }
    /// Adds a round to a rank, if there is anything in it.
    pub fn round(&mut self, rank: u32, moves: Round) {
        if !moves.is_empty() {
            self.ranks[rank as usize].rounds.push(moves);
        }
    }
    /// The rounds of a rank so far stay in its island, whose library may do these instead.
    pub fn inside(&mut self, rank: u32, joins: Vec<Join>, shares: Vec<(u32, Span)>) {
        let plan = &mut self.ranks[rank as usize];
        let at = plan.rounds.len();
        plan.inside = Some(Inside {
            between: (at, at),
            joins,
            shares,
        });
    }
    /// The rounds of a rank from here on stay in its island again.
    pub fn behind(&mut self, rank: u32) {
        let plan = &mut self.ranks[rank as usize];
        if let Some(i) = &mut plan.inside {
            i.between.1 = plan.rounds.len();
        }
    }
    /// Room for `n` elements in a rank's scratch; where it begins.
    pub fn scratch(&mut self, rank: u32, n: u64) -> u64 {
        let s = &mut self.ranks[rank as usize].scratch;
        *s += n;
        *s - n
    }

    /// Every rank's own piece of `Out` is its `Data`.
    fn own_piece(&mut self, count: u64) {
        if count == 0 {
            return;
        }
        for r in 0..self.n {
            let dst = Span::new(Buf::Out, u64::from(r) * count, count);
            let src = Span::new(Buf::Data, 0, count);
            self.round(r, vec![Move::Copy { dst, src }]);
        }
    }

    /// Each piece to its owner, folded there in rank order into `Data` (its own place) or `Out` (the start).
    fn direct_fold(&mut self, cut: Cut, into: Buf) {
        let n = self.n;
        for me in 0..n {
            let len = cut.len(me);
            let at = self.scratch(me, if n > 1 { len * u64::from(n - 1) } else { 0 });
            // Scratch holds the pieces of the others in rank order, my own stands in Data.
            let slot = |r: u32| {
                let k = if r < me { r } else { r - 1 };
                Span::new(Buf::Scratch, at + u64::from(k) * len, len)
            };
            let mine = (len > 0).then(|| Span::new(Buf::Data, cut.at(me), len));
            let mut swap = vec![];
            for step in 1..n {
                let (to, from) = ((me + step) % n, (me + n - step) % n);
                if let Some(span) = cut.span(Buf::Data, to..to + 1) {
                    swap.push(Move::Send { span, to });
                }
                if len > 0 {
                    let span = slot(from);
                    swap.push(Move::Recv { span, from });
                }
            }
            self.round(me, swap);
            let Some(mine) = mine else { continue };
            let dst = match into {
                Buf::Out => Span::new(Buf::Out, 0, len),
                _ => mine,
            };
            if n == 1 {
                if dst != mine {
                    self.round(me, vec![Move::Copy { dst, src: mine }]);
                }
                continue;
            }
            let place = |r: u32| if r == me { mine } else { slot(r) };
            let parts = (0..n).map(place).collect();
            let by = Order::Given;
            self.round(me, vec![Move::Fold { dst, parts, by }]);
        }
    }

    /// Every owner sends its piece of `home` to everyone else.
    fn direct_gather(&mut self, cut: Cut, home: Buf) {
        let n = self.n;
        for me in 0..n {
            let mut moves = vec![];
            for step in 1..n {
                let (to, from) = ((me + step) % n, (me + n - step) % n);
                if let Some(span) = cut.span(home, me..me + 1) {
                    moves.push(Move::Send { span, to });
                }
                if let Some(span) = cut.span(home, from..from + 1) {
                    moves.push(Move::Recv { span, from });
                }
            }
            self.round(me, moves);
        }
    }

    /// Piece k travels k, k+1, … and ends, summed in that order, at rank k - 1.
    fn ring_reduce_in_place(&mut self, cut: Cut) {
        let n = self.n;
        for me in 0..n {
            let room = (0..n).map(|k| cut.len(k)).max().unwrap_or(0);
            let at = self.scratch(me, if n > 1 { room } else { 0 });
            for step in 0..n.saturating_sub(1) {
                let out = (me + n - step) % n;
                let into = (me + 2 * n - step - 1) % n;
                let mut swap = vec![];
                if let Some(span) = cut.span(Buf::Data, out..out + 1) {
                    swap.push(Move::Send {
                        span,
                        to: (me + 1) % n,
                    });
                }
                let came = (cut.len(into) > 0).then(|| Span::new(Buf::Scratch, at, cut.len(into)));
                if let Some(span) = came {
                    swap.push(Move::Recv {
                        span,
                        from: (me + n - 1) % n,
                    });
                }
                self.round(me, swap);
                if let (Some(left), Some(own)) = (came, cut.span(Buf::Data, into..into + 1)) {
                    let join = join(own, left, own);
                    self.round(me, vec![join]);
                }
            }
        }
    }

    /// Pieces go round until all ranks have all; rank r begins with piece `r - ahead` (mod n).
    fn ring_gather(&mut self, cut: Cut, home: Buf, ahead: u32) {
        let n = self.n;
        for me in 0..n {
            for step in 0..n.saturating_sub(1) {
                let out = (me + 2 * n - ahead - step) % n;
                let into = (me + 3 * n - ahead - step - 1) % n;
                let mut swap = vec![];
                if let Some(span) = cut.span(home, out..out + 1) {
                    let to = (me + 1) % n;
                    swap.push(Move::Send { span, to });
                }
                if let Some(span) = cut.span(home, into..into + 1) {
                    let from = (me + n - 1) % n;
                    swap.push(Move::Recv { span, from });
                }
                self.round(me, swap);
            }
        }
    }

    /// As the ring in place, with partial sums in scratch (two halves, one going out while the other comes in), ending in `Out`.
    fn ring_reduce_scatter(&mut self, count: u64) {
        let n = self.n;
        if count == 0 {
            return;
        }
        let piece = |k: u32| Span::new(Buf::Data, u64::from(k) * count, count);
        for me in 0..n {
            let dst = Span::new(Buf::Out, 0, count);
            if n == 1 {
                self.round(me, vec![Move::Copy { dst, src: piece(0) }]);
                continue;
            }
            let at = self.scratch(me, 2 * count);
            let half = |k: u32| Span::new(Buf::Scratch, at + u64::from(k % 2) * count, count);
            for step in 0..n - 1 {
                // Piece k must end at rank k, so it begins at rank k + 1.
                let out = (me + 2 * n - step - 1) % n;
                let into = (me + 3 * n - step - 2) % n;
                let span = if step == 0 {
                    piece(out)
                } else {
                    half(step + 1)
                };
                let (to, from) = ((me + 1) % n, (me + n - 1) % n);
                let came = half(step);
                self.round(
                    me,
                    vec![Move::Send { span, to }, Move::Recv { span: came, from }],
                );
                let last = step + 2 == n;
                let join = join(if last { dst } else { came }, came, piece(into));
                self.round(me, vec![join]);
            }
        }
    }

    /// Rabenseifner's all-reduce. Ranks beyond the largest power of two give their vector to a neighbour first and get the result last.
    fn halving_doubling(&mut self, count: u64) {
        let n = self.n;
        if count == 0 || n == 1 {
            return;
        }
        let p = 1 << n.ilog2();
        let extra = n - p;
        let whole = Span::new(Buf::Data, 0, count);
        // The first 2 * extra ranks pair up: the odd one of a pair works for both.
        let real = |v: u32| if v < extra { 2 * v + 1 } else { v + extra };
        for k in 0..extra {
            let (giver, taker) = (2 * k, 2 * k + 1);
            let send = Move::Send {
                span: whole,
                to: taker,
            };
            self.round(giver, vec![send]);
            let at = self.scratch(taker, count);
            let left = Span::new(Buf::Scratch, at, count);
            let recv = Move::Recv {
                span: left,
                from: giver,
            };
            self.round(taker, vec![recv]);
            let join = join(whole, left, whole);
            self.round(taker, vec![join]);
        }
        let cut = Cut::new(count, p);
        for v in 0..p {
            let me = real(v);
            // The earlier half may be the longer one by more than an element: pieces differ.
            let room = cut.at(p / 2).max(count - cut.at(p / 2));
            let at = self.scratch(me, room);
            let mut mine = 0..p;
            let mut kept = vec![];
            let mut far = p / 2;
            while far > 0 {
                let mid = mine.start + (mine.end - mine.start) / 2;
                let peer = real(v ^ far);
                let low = v & far == 0;
                let (keep, give) = match low {
                    true => (mine.start..mid, mid..mine.end),
                    false => (mid..mine.end, mine.start..mid),
                };
                let mut swap = vec![];
                if let Some(span) = cut.span(Buf::Data, give.clone()) {
                    swap.push(Move::Send { span, to: peer });
                }
                let own = cut.span(Buf::Data, keep.clone());
                let came = own.map(|o| Span::new(Buf::Scratch, at, o.n));
                if let Some(span) = came {
                    swap.push(Move::Recv { span, from: peer });
                }
                self.round(me, swap);
                if let (Some(own), Some(came)) = (own, came) {
                    // The lower rank's partial stands left, on whichever side the join is done.
                    let (left, right) = if low { (own, came) } else { (came, own) };
                    let join = join(own, left, right);
                    self.round(me, vec![join]);
                }
                kept.push((peer, keep.clone(), give));
                mine = keep;
                far /= 2;
            }
            for (peer, keep, give) in kept.into_iter().rev() {
                let mut swap = vec![];
                if let Some(span) = cut.span(Buf::Data, keep) {
                    swap.push(Move::Send { span, to: peer });
                }
                if let Some(span) = cut.span(Buf::Data, give) {
                    swap.push(Move::Recv { span, from: peer });
                }
                self.round(me, swap);
            }
        }
        for k in 0..extra {
            let (giver, taker) = (2 * k, 2 * k + 1);
            let back = Move::Send {
                span: whole,
                to: giver,
            };
            self.round(taker, vec![back]);
            let recv = Move::Recv {
                span: whole,
                from: taker,
            };
            self.round(giver, vec![recv]);
        }
    }

    /// Binomial tree to the root; `keep` leaves everyone's `Data` but the root's as it is.
    fn tree_reduce(&mut self, count: u64, root: u32, keep: bool) {
        let n = self.n;
        if count == 0 {
            return;
        }
        let whole = Span::new(Buf::Data, 0, count);
        let real = |place: u32| (place + root) % n;
        for place in 0..n {
            let me = real(place);
            let mut sum = whole;
            let mut far = 1;
            while far < n {
                if place & far != 0 {
                    let to = real(place - far);
                    self.round(me, vec![Move::Send { span: sum, to }]);
                    break;
                }
                if place + far < n {
                    let at = self.scratch(me, count);
                    let came = Span::new(Buf::Scratch, at, count);
                    let from = real(place + far);
                    self.round(me, vec![Move::Recv { span: came, from }]);
                    let dst = match keep && me != root {
                        true => came,
                        false => whole,
                    };
                    let join = join(dst, sum, came);
                    self.round(me, vec![join]);
                    sum = dst;
                }
                far *= 2;
            }
        }
    }

    /// Every rank that has the bytes sends them on; the number of holders doubles each round.
    fn tree_broadcast(&mut self, count: u64, root: u32) {
        let n = self.n;
        if count == 0 {
            return;
        }
        let span = Span::new(Buf::Data, 0, count);
        let real = |place: u32| (place + root) % n;
        let mut holders = 1;
        while holders < n {
            for place in 0..holders.min(n - holders) {
                let (from, to) = (real(place), real(place + holders));
                self.round(from, vec![Move::Send { span, to }]);
                self.round(to, vec![Move::Recv { span, from }]);
            }
            holders *= 2;
        }
    }

    /// The root gives each rank a piece, the pieces go round: 2(n-1)/n of the vector a rank instead of log n of it.
    fn scatter_broadcast(&mut self, count: u64, root: u32) {
        let n = self.n;
        let cut = Cut::new(count, n);
        let mut out = vec![];
        for to in (0..n).filter(|&r| r != root) {
            if let Some(span) = cut.span(Buf::Data, to..to + 1) {
                out.push(Move::Send { span, to });
                let from = root;
                self.round(to, vec![Move::Recv { span, from }]);
            }
        }
        self.round(root, out);
        // The root has every piece already, and receives none.
        for me in 0..n {
            for step in 0..n.saturating_sub(1) {
                let piece = |back: u32| (me + 2 * n - back) % n;
                let mut swap = vec![];
                let (to, from) = ((me + 1) % n, (me + n - 1) % n);
                if let Some(span) = cut.span(Buf::Data, piece(step)..piece(step) + 1)
                    && to != root
                {
                    swap.push(Move::Send { span, to });
                }
                if let Some(span) = cut.span(Buf::Data, piece(step + 1)..piece(step + 1) + 1)
                    && me != root
                {
                    swap.push(Move::Recv { span, from });
                }
                self.round(me, swap);
            }
        }
    }

    /// Bruck's all-gather: the part held doubles each round, ⌈log n⌉ rounds for any n; one rotation at the end.
    fn bruck_gather(&mut self, count: u64) {
        let n = self.n;
        if count == 0 {
            return;
        }
        for me in 0..n {
            // Scratch place j holds piece me + j (mod n).
            let at = self.scratch(me, count * u64::from(n));
            let held = |from: u32, n: u32| {
                Span::new(
                    Buf::Scratch,
                    at + u64::from(from) * count,
                    u64::from(n) * count,
                )
            };
            let src = Span::new(Buf::Data, 0, count);
            let dst = held(0, 1);
            self.round(me, vec![Move::Copy { dst, src }]);
            let mut have = 1;
            while have < n {
                let more = have.min(n - have);
                let (to, from) = ((me + n - have) % n, (me + have) % n);
                let send = Move::Send {
                    span: held(0, more),
                    to,
                };
                let recv = Move::Recv {
                    span: held(have, more),
                    from,
                };
                self.round(me, vec![send, recv]);
                have += more;
            }
            let mut turn = vec![Move::Copy {
                dst: Span::new(Buf::Out, u64::from(me) * count, u64::from(n - me) * count),
                src: held(0, n - me),
            }];
            if me > 0 {
                turn.push(Move::Copy {
                    dst: Span::new(Buf::Out, 0, u64::from(me) * count),
                    src: held(n - me, me),
                });
            }
            self.round(me, turn);
        }
    }

    /// One message to and from every other rank, neighbours first.
    fn pairwise_exchange(&mut self, count: u64) {
        let n = self.n;
        if count == 0 {
            return;
        }
        let span = |home, r: u32| Span::new(home, u64::from(r) * count, count);
        for me in 0..n {
            let mut moves = vec![Move::Copy {
                dst: span(Buf::Out, me),
                src: span(Buf::Data, me),
            }];
            for step in 1..n {
                let (to, from) = ((me + step) % n, (me + n - step) % n);
                moves.push(Move::Send {
                    span: span(Buf::Data, to),
                    to,
                });
                moves.push(Move::Recv {
                    span: span(Buf::Out, from),
                    from,
                });
            }
            self.round(me, moves);
        }
    }
}
