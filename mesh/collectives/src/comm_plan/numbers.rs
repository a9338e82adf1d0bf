//! The simulator: a plan on numbers, at vendors that do not exist. It shows on one processor that ranks end with the same bits although
//! their vendors add in other orders, round after each addition or flush subnormal numbers to zero. Nothing here computes for a training.

use super::{CommPlan, Move, Order, Span};

/// How a vendor's library adds the operands of one fold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sum {
    /// From the first operand to the last.
    Forward,
    /// From the last to the first.
    Reverse,
    /// Neighbours in pairs, then pairs of pairs.
    Tree,
}

/// A vendor that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vendor {
    /// Order of sums in its own collectives.
    pub order: Sum,
    /// Rounds to bf16 after each addition in its own collectives, instead of once.
    pub rounds_each: bool,
    /// Results below the smallest normal number become zero in its own collectives.
    pub flushes: bool,
}

impl Vendor {
    /// Adds as this crate does.
    pub const PLAIN: Vendor = Vendor {
        order: Sum::Forward,
        rounds_each: false,
        flushes: false,
    };

    fn add(&self, a: f32, b: f32) -> f32 {
        let mut x = a + b;
        if self.rounds_each {
            x = round_bf16(x);
        }
        if self.flushes && x != 0.0 && x.abs() < f32::MIN_POSITIVE {
            x = 0.0f32.copysign(x);
        }
        x
    }

    fn fold(&self, xs: &[f32]) -> f32 {
        match self.order {
            Sum::Forward => xs[1..].iter().fold(xs[0], |a, b| self.add(a, *b)),
            Sum::Reverse => {
                let (last, rest) = (xs[xs.len() - 1], &xs[..xs.len() - 1]);
                rest.iter().rev().fold(last, |a, b| self.add(a, *b))
            }
            Sum::Tree => match xs {
                [x] => *x,
                _ => {
                    let (a, b) = xs.split_at(xs.len().div_ceil(2));
                    self.add(self.fold(a), self.fold(b))
                }
            },
        }
    }
}

/// Nearest bf16, ties to even.
pub fn round_bf16(x: f32) -> f32 {
    if x.is_nan() {
        return x;
    }
    let bits = x.to_bits();
    let up = 0x7fff + (bits >> 16 & 1);
    f32::from_bits(bits.wrapping_add(up) & 0xffff_0000)
}

/// Runs a verified plan: `inputs` are every rank's `Data`, `vendors` every rank's vendor. Gives every rank's (`Data`, `Out`) at the end.
/// A plan that `verify` refuses may give nothing: `None`.
pub fn simulate(
    plan: &CommPlan,
    vendors: &[Vendor],
    inputs: &[Vec<f32>],
) -> Option<Vec<(Vec<f32>, Vec<f32>)>> {
    let n = plan.size();
    let mut at: Vec<[Vec<f32>; 3]> = (0..n as usize)
        .map(|r| {
            let out = plan.kind.out(plan.count, n) as usize;
            let scratch = plan.ranks[r].scratch as usize;
            [
                inputs[r].clone(),
                vec![f32::NAN; out],
                vec![f32::NAN; scratch],
            ]
        })
        .collect();
    let read = |v: &[Vec<f32>; 3], s: Span| {
        v[s.home as usize]
            .get(s.at as usize..(s.at + s.n) as usize)
            .map(<[f32]>::to_vec)
    };
    let mut round = vec![0usize; n as usize];
    let mut sent: Vec<Vec<(u32, Vec<f32>)>> = vec![vec![]; n as usize];
    let mut posted = vec![false; n as usize];
    // Buffered sends: the verifier has shown that even waiting ones come through.
    loop {
        let mut moved = false;
        for r in 0..n as usize {
            while let Some(moves) = plan.ranks[r].rounds.get(round[r]) {
                if !posted[r] {
                    for m in moves {
                        match m {
                            Move::Send { span, to } => {
                                let values = read(&at[r], *span)?;
                                sent[*to as usize].push((r as u32, values));
                            }
                            Move::Copy { dst, src } => {
                                let values = read(&at[r], *src)?;
                                put(&mut at[r], *dst, &values)?;
                            }
                            Move::Fold { dst, parts, by } => {
                                let parts: Option<Vec<_>> =
                                    parts.iter().map(|p| read(&at[r], *p)).collect();
                                let parts = parts?;
                                let who = match by {
                                    Order::Given => &Vendor::PLAIN,
                                    Order::Vendor => &vendors[r],
                                };
                                let sums: Vec<f32> = (0..dst.n as usize)
                                    .map(|i| {
                                        let xs: Vec<f32> = parts.iter().map(|p| p[i]).collect();
                                        who.fold(&xs)
                                    })
                                    .collect();
                                put(&mut at[r], *dst, &sums)?;
                            }
                            Move::Recv { .. } => {}
                        }
                    }
                    posted[r] = true;
                    moved = true;
                }
                let mut waits = false;
                let wanted: Vec<(u32, Span)> = moves
                    .iter()
                    .filter_map(|m| match m {
                        Move::Recv { span, from } => Some((*from, *span)),
                        _ => None,
                    })
                    .collect();
                // All or none, so that a round is entered once.
                let have = |from: u32| sent[r].iter().filter(|(f, _)| *f == from).count();
                for (from, _) in &wanted {
                    let needed = wanted.iter().filter(|(f, _)| f == from).count();
                    waits |= have(*from) < needed;
                }
                if waits {
                    break;
                }
                for (from, span) in wanted {
                    let i = sent[r].iter().position(|(f, _)| *f == from)?;
                    let (_, values) = sent[r].remove(i);
                    put(&mut at[r], span, &values)?;
                }
                round[r] += 1;
                posted[r] = false;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    let done = (0..n as usize).all(|r| round[r] == plan.ranks[r].rounds.len());
    done.then(|| at.into_iter().map(|[data, out, _]| (data, out)).collect())
}

fn put(v: &mut [Vec<f32>; 3], s: Span, with: &[f32]) -> Option<()> {
    let to = v[s.home as usize].get_mut(s.at as usize..(s.at + s.n) as usize)?;
    (to.len() == with.len()).then(|| to.copy_from_slice(with))
}

/// The fold in rank order: what one vendor alone would give under the law of rank order.
pub fn in_rank_order(inputs: &[Vec<f32>], i: usize) -> f32 {
    let xs: Vec<f32> = inputs.iter().map(|v| v[i]).collect();
    Vendor::PLAIN.fold(&xs)
}

/// The vector a rank keeps: `Data` of collectives in place, else `Out`.
pub fn result(plan: &CommPlan, vectors: &(Vec<f32>, Vec<f32>)) -> Vec<f32> {
    match plan.kind.out(1, 1) {
        0 => vectors.0.clone(),
        _ => vectors.1.clone(),
    }
}
