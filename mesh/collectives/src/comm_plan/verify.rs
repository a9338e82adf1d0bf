//! The verifier: runs a plan on symbols instead of numbers and proves what it does.
//!
//! Each element at each rank holds an expression: the input of one rank, or the join of two expressions. Checked: nothing is read before it
//! is written; no two moves of a round meet; every send has its receive of the same length, in the same order per pair, and no cycle of
//! ranks waits for itself even when a send waits for its receive; each rank's input enters a sum once; every rank ends with the *same*
//! expression (identical bits follow, whatever the vendors' rounding, since one rank computed it); inputs that are not in place stay whole.

use super::{Buf, CommPlan, Kind, Move, Span};
use std::collections::HashMap;
use std::fmt;

/// Why a plan is refused: the rank, the round it happens in, and a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Rank.
    pub rank: u32,
    /// Round of that rank, from 0; none: at the end.
    pub round: Option<usize>,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.round {
            Some(k) => write!(f, "rank {}, round {k}: {}", self.rank, self.what),
            None => write!(f, "rank {}, at the end: {}", self.rank, self.what),
        }
    }
}
impl std::error::Error for Refusal {}

/// Index of an expression.
type Expr = u32;
/// Nothing has been written here.
const EMPTY: Expr = Expr::MAX;

/// Expressions, each stored once: equal expressions have equal indices.
struct Forest {
    /// What went in: the element of the input, and the ranks as bits.
    parts: Vec<(u64, Vec<u64>)>,
    leaves: HashMap<(u32, u64), Expr>,
    joins: HashMap<(Expr, Expr), Expr>,
    words: usize,
}

impl Forest {
    fn new(ranks: u32) -> Forest {
        Forest {
            parts: vec![],
            leaves: HashMap::new(),
            joins: HashMap::new(),
            words: ranks.div_ceil(64) as usize,
        }
    }
    fn leaf(&mut self, rank: u32, at: u64) -> Expr {
        let (next, words) = (self.parts.len() as Expr, self.words);
        let parts = &mut self.parts;
        *self.leaves.entry((rank, at)).or_insert_with(|| {
            let mut who = vec![0; words];
            who[rank as usize / 64] |= 1 << (rank % 64);
            parts.push((at, who));
            next
        })
    }
    fn join(&mut self, a: Expr, b: Expr) -> Result<Expr, String> {
        if let Some(&e) = self.joins.get(&(a, b)) {
            return Ok(e);
        }
        let ((at, left), (there, right)) = (&self.parts[a as usize], &self.parts[b as usize]);
        if at != there {
            return Err(format!("element {at} is joined with element {there}"));
        }
        if left.iter().zip(right).any(|(l, r)| l & r != 0) {
            return Err(format!("an input of element {at} enters the sum twice"));
        }
        let who = left.iter().zip(right).map(|(l, r)| l | r).collect();
        let e = self.parts.len() as Expr;
        self.parts.push((*at, who));
        self.joins.insert((a, b), e);
        Ok(e)
    }
    fn whole(&self, e: Expr, ranks: u32) -> bool {
        let count: u32 = self.parts[e as usize]
            .1
            .iter()
            .map(|w| w.count_ones())
            .sum();
        count == ranks
    }
}

/// The vectors of one rank.
struct Vectors([Vec<Expr>; 3]);

impl Vectors {
    fn slot(&mut self, h: Buf) -> &mut Vec<Expr> {
        &mut self.0[h as usize]
    }
    fn read(&self, s: Span) -> Result<Vec<Expr>, String> {
        let v = &self.0[s.home as usize];
        let Some(part) = v.get(s.at as usize..(s.at + s.n) as usize) else {
            return Err(format!("{s} is outside its vector of {}", v.len()));
        };
        match part.iter().position(|&e| e == EMPTY) {
            Some(k) => Err(format!(
                "element {} of {s} is read before it is written",
                s.at + k as u64
            )),
            None => Ok(part.to_vec()),
        }
    }
    fn write(&mut self, s: Span, with: &[Expr]) -> Result<(), String> {
        let v = self.slot(s.home);
        let len = v.len();
        match v.get_mut(s.at as usize..(s.at + s.n) as usize) {
            Some(to) => {
                to.copy_from_slice(with);
                Ok(())
            }
            None => Err(format!("{s} is outside its vector of {len}")),
        }
    }
}

/// Proves the plan, or says what is wrong with it.
pub fn verify(plan: &CommPlan) -> Result<(), Refusal> {
    let n = plan.size();
    let mut forest = Forest::new(n);
    let (data, out) = (plan.kind.data(plan.count, n), plan.kind.out(plan.count, n));
    let mut at: Vec<Vectors> = (0..n)
        .map(|r| {
            let input = (0..data).map(|i| forest.leaf(r, i)).collect();
            let scratch = plan.ranks[r as usize].scratch;
            Vectors([
                input,
                vec![EMPTY; out as usize],
                vec![EMPTY; scratch as usize],
            ])
        })
        .collect();
    for (r, p) in plan.ranks.iter().enumerate() {
        for (k, round) in p.rounds.iter().enumerate() {
            apart(round, n, r as u32).map_err(|what| refusal(r as u32, Some(k), what))?;
        }
    }
    run(plan, &mut forest, &mut at)?;
    ends(plan, &mut forest, &at)
}

fn refusal(rank: u32, round: Option<usize>, what: String) -> Refusal {
    Refusal { rank, round, what }
}

/// Moves of a round do not meet; peers exist; lengths agree.
fn apart(round: &[Move], ranks: u32, me: u32) -> Result<(), String> {
    for (i, a) in round.iter().enumerate() {
        match *a {
            Move::Send { to: peer, .. } | Move::Recv { from: peer, .. }
                if peer >= ranks || peer == me =>
            {
                return Err(format!("{a}: there is no such other rank"));
            }
            Move::Copy { dst, src } if dst.n != src.n => {
                return Err(format!("{a}: lengths differ"));
            }
            Move::Fold { dst, ref parts, .. } => {
                if parts.len() < 2 || parts.iter().any(|p| p.n != dst.n) {
                    return Err(format!("{a}: lengths differ, or there is nothing to add"));
                }
                if parts.iter().any(|p| p.meets(&dst) && *p != dst) {
                    return Err(format!("{a}: the result overlaps an operand in part"));
                }
            }
            _ => {}
        }
        let Some(w) = a.writes() else { continue };
        for (j, b) in round.iter().enumerate() {
            let meets = |s: &Span| s.meets(&w);
            if i != j && (b.writes().as_ref().is_some_and(meets) || b.reads().iter().any(meets)) {
                return Err(format!("{a} meets {b} in one round"));
            }
        }
    }
    Ok(())
}

/// Runs all ranks. A send waits for its receive: whatever runs so runs with buffered sends too.
fn run(plan: &CommPlan, forest: &mut Forest, at: &mut [Vectors]) -> Result<(), Refusal> {
    let n = plan.ranks.len();
    let mut round = vec![0usize; n];
    // Messages of the current round not yet matched.
    let mut open: Vec<Vec<Move>> = vec![vec![]; n];
    let enter = |r: usize, k: usize, at: &mut [Vectors], forest: &mut Forest| {
        let Some(moves) = plan.ranks[r].rounds.get(k) else {
            return Ok(vec![]);
        };
        local(moves, forest, &mut at[r]).map_err(|what| refusal(r as u32, Some(k), what))?;
        let message = |m: &&Move| matches!(m, Move::Send { .. } | Move::Recv { .. });
        Ok(moves.iter().filter(message).cloned().collect())
    };
    for (r, o) in open.iter_mut().enumerate() {
        *o = enter(r, 0, at, forest)?;
    }
    loop {
        let mut moved = false;
        for r in 0..n {
            while round[r] < plan.ranks[r].rounds.len() {
                let mut i = 0;
                while i < open[r].len() {
                    let Move::Send { span, to } = open[r][i] else {
                        i += 1;
                        continue;
                    };
                    let other = to as usize;
                    let meant =
                        |m: &Move| matches!(m, Move::Recv { from, .. } if *from == r as u32);
                    let Some(j) = open[other].iter().position(meant) else {
                        i += 1;
                        continue;
                    };
                    let Move::Recv { span: into, .. } = open[other][j] else {
                        i += 1;
                        continue;
                    };
                    if into.n != span.n {
                        let what = format!(
                            "{} of {} elements meets a receive of {} at rank {to}",
                            open[r][i], span.n, into.n
                        );
                        return Err(refusal(r as u32, Some(round[r]), what));
                    }
                    let values = at[r]
                        .read(span)
                        .map_err(|what| refusal(r as u32, Some(round[r]), what))?;
                    at[other]
                        .write(into, &values)
                        .map_err(|what| refusal(to, Some(round[other]), what))?;
                    open[r].remove(i);
                    open[other].remove(j);
                    moved = true;
                }
                if !open[r].is_empty() {
                    break;
                }
                round[r] += 1;
                moved = true;
                open[r] = enter(r, round[r], at, forest)?;
            }
        }
        if !moved {
            break;
        }
    }
    match (0..n).find(|&r| round[r] < plan.ranks[r].rounds.len()) {
        Some(r) => {
            let what = format!("{} waits for ever", open[r][0]);
            Err(refusal(r as u32, Some(round[r]), what))
        }
        None => Ok(()),
    }
}

/// Copies and joins of a round: they read what stood before the round, which `apart` makes the same as any order.
fn local(round: &[Move], forest: &mut Forest, v: &mut Vectors) -> Result<(), String> {
    for m in round {
        match *m {
            Move::Copy { dst, src } => {
                let values = v.read(src)?;
                v.write(dst, &values)?;
            }
            Move::Fold { dst, ref parts, .. } => {
                let mut sum = v.read(parts[0])?;
                for p in &parts[1..] {
                    for (a, b) in sum.iter_mut().zip(v.read(*p)?) {
                        *a = forest.join(*a, b)?;
                    }
                }
                v.write(dst, &sum)?;
            }
            Move::Send { span, .. } => {
                v.read(span)?;
            }
            Move::Recv { .. } => {}
        }
    }
    Ok(())
}

/// The post-condition of each kind.
fn ends(plan: &CommPlan, forest: &mut Forest, at: &[Vectors]) -> Result<(), Refusal> {
    let (n, count) = (plan.size(), plan.count);
    let wrong = |rank: u32, what: String| Err(refusal(rank, None, what));
    let expect = |rank: u32, home: Buf, i: u64, want: Expr, said: &str| {
        let has = at[rank as usize].0[home as usize][i as usize];
        match has == want {
            true => Ok(()),
            false => wrong(rank, format!("element {i} of {home:?} is not {said}")),
        }
    };
    for r in 0..n {
        // What the caller gave and did not ask to be overwritten.
        let input = match plan.kind {
            Kind::ReduceScatter | Kind::AllGather | Kind::AllToAll => true,
            Kind::Reduce { root } => r != root,
            Kind::AllReduce | Kind::Broadcast { .. } => false,
        };
        for i in (0..plan.kind.data(count, n)).filter(|_| input) {
            let leaf = forest.leaf(r, i);
            expect(r, Buf::Data, i, leaf, "the caller's any more")?;
        }
    }
    let mut total = |rank: u32, e: Expr, i: u64| -> Result<(), Refusal> {
        if e == EMPTY {
            return wrong(rank, format!("element {i} was never written"));
        }
        if forest.parts[e as usize].0 != i {
            let from = forest.parts[e as usize].0;
            return wrong(rank, format!("element {i} holds the sum of element {from}"));
        }
        if !forest.whole(e, n) {
            return wrong(rank, format!("the sum of element {i} lacks a rank's input"));
        }
        if plan.rank_order {
            let mut fold = forest.leaf(0, i);
            for r in 1..n {
                let next = forest.leaf(r, i);
                fold = forest
                    .join(fold, next)
                    .map_err(|what| refusal(rank, None, what))?;
            }
            if fold != e {
                return wrong(rank, format!("element {i} is not summed in rank order"));
            }
        }
        Ok(())
    };
    match plan.kind {
        Kind::AllReduce => {
            for i in 0..count {
                let first = at[0].0[Buf::Data as usize][i as usize];
                total(0, first, i)?;
                for r in 1..n {
                    expect(r, Buf::Data, i, first, "the sum rank 0 has, bit by bit")?;
                }
            }
        }
        Kind::Reduce { root } => {
            for i in 0..count {
                total(root, at[root as usize].0[Buf::Data as usize][i as usize], i)?;
            }
        }
        Kind::ReduceScatter => {
            for r in 0..n {
                for i in 0..count {
                    let e = at[r as usize].0[Buf::Out as usize][i as usize];
                    total(r, e, u64::from(r) * count + i)?;
                }
            }
        }
        Kind::AllGather => {
            for (r, from) in (0..n).flat_map(|r| (0..n).map(move |s| (r, s))) {
                for i in 0..count {
                    let leaf = forest.leaf(from, i);
                    let said = "the piece of its rank";
                    expect(r, Buf::Out, u64::from(from) * count + i, leaf, said)?;
                }
            }
        }
        Kind::AllToAll => {
            for (r, from) in (0..n).flat_map(|r| (0..n).map(move |s| (r, s))) {
                for i in 0..count {
                    let leaf = forest.leaf(from, u64::from(r) * count + i);
                    let said = "the piece meant for this rank";
                    expect(r, Buf::Out, u64::from(from) * count + i, leaf, said)?;
                }
            }
        }
        Kind::Broadcast { root } => {
            for r in 0..n {
                for i in 0..count {
                    let leaf = forest.leaf(root, i);
                    expect(r, Buf::Data, i, leaf, "the root's")?;
                }
            }
        }
    }
    Ok(())
}
