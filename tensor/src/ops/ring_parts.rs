//! The parts of attention over a ring: which queries of this rank meet which keys of another, what of these a mask hides, and the merge of
//! what parts give.

use super::attention::AttentionSpec;
use crate::env::Env;
use crate::error::Result;
use crate::rows::{Layout, Run, Runs};
use crate::{Batch, Groups, Tensor};
use crossweave_hal::DType;
use crossweave_hal::abi::op::{self, ProgramDyn, ProgramParams};
use crossweave_mesh::Axis;
use crossweave_program::{Ex, Prog};

/// Below every sum of exponentials that a query with a key can have, and finite, so that nothing is subtracted from itself at infinity.
const LEAST: f32 = -1e30;

/// A ring of ranks around which keys and values go, seen from one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Circle {
    /// The place of this rank on the ring, and how many places there are.
    pub place: [u64; 2],
    /// Ranks along the axis at each place.
    pub inner: u64,
    /// The place of this rank along the axis, and its ranks.
    axis: [u64; 2],
    layout: Layout,
    /// Tokens of a whole row.
    pub tokens: u64,
}

/// The mask between the queries and keys of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mask {
    /// Nothing does.
    Nothing,
    /// That of the same tokens against themselves.
    Own,
    /// The window, of keys that begin so many places before the queries would have them: queries' end minus keys' end.
    Shifted(i64),
}

/// Queries of a run that is here, and keys of a run that is here or has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// The number of the queries' run among those of this rank, and its tokens.
    pub queries: (usize, Run),
    /// The same of the keys, among those of their rank.
    pub keys: (usize, Run),
    pub mask: Mask,
    /// Queries and keys are the same tokens.
    pub is_own: bool,
}

impl Circle {
    /// The ring of a batch whose queries have `here` tokens of each row.
    pub fn of(batch: &Batch, groups: &dyn Groups, here: u64) -> Circle {
        let axis = [groups.at(Axis::Cp), groups.size(Axis::Cp)].map(u64::from);
        let place = batch.rows.meeting.on_ring(axis);
        Circle {
            place,
            inner: batch.rows.meeting.exchange(axis[1]),
            axis,
            layout: batch.rows.layout,
            tokens: here * place[1],
        }
    }

    /// The tokens of the ranks at a place.
    pub fn runs(&self, place: u64) -> Runs {
        self.layout.runs([place, self.place[1]], self.tokens)
    }

    /// The place whose keys are here after so many steps.
    pub fn whose(&self, step: u64) -> u64 {
        let [at, places] = self.place;
        (at + places - step % places) % places
    }

    /// The ranks along the axis to which keys go, and from which they come.
    pub fn neighbours(&self) -> [u32; 2] {
        let [at, ranks] = self.axis;
        [at + self.inner, at + ranks - self.inner].map(|r| (r % ranks) as u32)
    }

    /// The number of a run of a place among those of all places, in their order.
    pub fn number(&self, place: u64, run: usize) -> usize {
        let before = (0..place).map(|p| self.runs(p).iter().count());
        before.sum::<usize>() + run
    }

    /// The parts in which queries of this rank see keys of a place, those of its first queries first.
    pub fn parts(&self, spec: &AttentionSpec, place: u64) -> Vec<Part> {
        let (own, theirs) = (self.runs(self.place[0]), self.runs(place));
        let mut all = vec![];
        for (i, queries) in own.iter().enumerate() {
            for (j, keys) in theirs.iter().enumerate() {
                let is_own = queries == keys;
                if let Some(mask) = mask(spec, queries, keys) {
                    all.push(Part {
                        queries: (i, queries),
                        keys: (j, keys),
                        mask,
                        is_own,
                    });
                }
            }
        }
        all
    }
}

/// The mask between queries and keys, which are the same tokens or have none in common; none where no query sees a key.
fn mask(spec: &AttentionSpec, [a, n]: Run, [c, m]: Run) -> Option<Mask> {
    if (a, n) == (c, m) {
        return Some(match spec.causal || spec.window > 0 {
            true => Mask::Own,
            false => Mask::Nothing,
        });
    }
    // Query i sees keys behind i - window, and under a causal mask none behind i.
    let from = |i: u64| (i + 1).saturating_sub(spec.window);
    if spec.causal && c >= a + n || spec.window > 0 && c + m <= from(a) {
        return None;
    }
    Some(match spec.window > 0 && from(a + n - 1) > c {
        true => Mask::Shifted((a + n) as i64 - (c + m) as i64),
        false => Mask::Nothing,
    })
}

/// The larger of two logs, and the exponentials of both below it.
fn weights(p: &Prog, [a, b]: [u32; 2]) -> [Ex<'_>; 3] {
    let [a, b] = [a, b].map(|r| p.operand(r));
    let most = a.max(b).max(a.lit(LEAST));
    [most, (a - most).exp(), (b - most).exp()]
}

/// The merge of what two parts give of the same queries: `l = ln(exp l1 + exp l2)` and `o = o1 exp(l1 - l) + o2 exp(l2 - l)`, in f32. A
/// part that sees no key has `l = -inf` and adds nothing.
pub(super) struct Merge {
    out: ProgramParams,
    lse: ProgramParams,
}

impl Merge {
    pub fn new() -> Merge {
        let (out, lse) = (Prog::new(4), Prog::new(2));
        let [_, x, y] = weights(&out, [2, 3]);
        let sum = (out.operand(0) * x + out.operand(1) * y) / (x + y).max(x.lit(-LEAST.recip()));
        let [most, a, b] = weights(&lse, [0, 1]);
        Merge {
            out: out.finish(&[sum]),
            lse: lse.finish(&[most + (a + b).log()]),
        }
    }

    /// Adds a part of some queries to what is there: results `[B, T, H, D]` and logs of sums `[B, H, T]`, dense.
    pub fn add(&self, env: &Env<'_>, [to, of]: [&[Tensor; 2]; 2]) -> Result<()> {
        let [o, lse] = to;
        let [b, h, t] = match *lse.shape().dims() {
            [b, h, t] => [b, h, t],
            _ => [0; 3],
        };
        let all = o.shape().dims().iter().product::<u64>();
        let shape = [b, t, h, all / (b * t * h).max(1)];
        let [o1, o2] = [o, &of[0]].map(|x| x.view(shape));
        // Each query's of every place of its head.
        let each = |l: &Tensor| l.strided(shape, &[(h * t) as i64, 1, t as i64, 0], 0);
        let [l1, l2] = [each(lse), each(&of[1])];
        let none = ProgramDyn::new(&[]);
        let run = |operands: &[Option<&Tensor>], p: &ProgramParams| {
            let id = op::ELEMENTWISE_PROGRAM;
            env.run.launch(id, operands, p.as_bytes(), none.as_bytes())
        };
        run(&[&o1, &o2, &l1, &l2].map(Some), &self.out)?;
        run(&[lse, &of[1]].map(Some), &self.lse)
    }
}

/// Keys and values of the rows' tokens of a place, or their gradients: run behind run, of each first the keys and then the values, dense.
#[derive(Clone)]
pub(super) struct Parcel {
    /// All of them, `[elements]`.
    pub flat: Tensor,
    runs: Runs,
    /// Rows, and the width of a token's keys.
    rows: [u64; 2],
}

impl Parcel {
    /// Room for those of these runs.
    pub fn room(env: &Env<'_>, runs: Runs, rows: [u64; 2], dtype: DType) -> Result<Parcel> {
        let tokens: u64 = runs.iter().map(|[_, n]| n).sum();
        let flat = env.run.empty([2 * tokens * rows[0] * rows[1]], dtype)?;
        Ok(Parcel { flat, runs, rows })
    }

    /// The same with what has come in its place, of other runs of as many tokens.
    pub fn holding(&self, flat: Tensor, runs: Runs) -> Parcel {
        Parcel {
            flat,
            runs,
            rows: self.rows,
        }
    }

    /// Keys and values of run `i`, `[B, n, width]` each.
    pub fn of(&self, i: usize) -> [Tensor; 2] {
        let [b, width] = self.rows;
        let (at, [_, n]) = self.runs.placed().nth(i).unwrap_or((0, [0, 0]));
        [0, 1].map(|side| {
            let from = (2 * at + side * n) * b * width;
            self.flat.narrow(0, from, n * b * width).view([b, n, width])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circle(layout: Layout, place: [u64; 2], tokens: u64) -> Circle {
        Circle {
            place,
            inner: 1,
            axis: place,
            layout,
            tokens,
        }
    }

    /// Exactly one part has each pair of query and key that attention sees, and parts hide what the mask hides.
    #[test]
    fn parts_have_every_pair_that_is_seen_once() {
        for (layout, causal) in [
            (Layout::Contiguous, true),
            (Layout::ZigZag, true),
            (Layout::Contiguous, false),
        ] {
            for (places, window) in (1..5).flat_map(|n| [0, 1, 2, 3, 5, 9, 40].map(|w| (n, w))) {
                let spec = AttentionSpec {
                    causal,
                    window,
                    ..AttentionSpec::default()
                };
                let tokens: u64 = 24;
                if !tokens.is_multiple_of(layout.pieces(places)) {
                    continue;
                }
                let sees = |i: u64, j: u64| (!causal || j <= i) && (window == 0 || j + window > i);
                let mut seen = vec![0; (tokens * tokens) as usize];
                for at in 0..places {
                    let c = circle(layout, [at, places], tokens);
                    for step in 0..places {
                        for part in c.parts(&spec, c.whose(step)) {
                            let ((_, [a, n]), (_, [k, m])) = (part.queries, part.keys);
                            let mut any = false;
                            for (i, j) in (0..n).flat_map(|i| (0..m).map(move |j| (i, j))) {
                                // By the formula of the op.
                                let shift = match part.mask {
                                    Mask::Shifted(s) => s,
                                    _ => 0,
                                };
                                let stands = i as i64 + m as i64 - n as i64 + shift;
                                let shown = part.mask == Mask::Nothing
                                    || (!causal || j as i64 <= stands)
                                        && (window == 0 || j as i64 > stands - window as i64);
                                assert_eq!(shown, sees(a + i, k + j), "{layout:?} {part:?}");
                                any |= shown;
                                seen[((a + i) * tokens + k + j) as usize] += u32::from(shown);
                            }
                            assert!(any, "{layout:?}, window {window}: {part:?} sees nothing");
                            assert_eq!(part.is_own, a == k);
                        }
                    }
                }
                for (i, j) in (0..tokens).flat_map(|i| (0..tokens).map(move |j| (i, j))) {
                    let times = seen[(i * tokens + j) as usize];
                    assert_eq!(times, u32::from(sees(i, j)), "{layout:?} {places} {window}");
                }
            }
        }
    }

    /// Ranks with causal rows in zigzag have as many pairs as each other in each step of the ring, so that none waits for another.
    #[test]
    fn zigzag_rings_have_equal_steps() {
        let spec = AttentionSpec {
            causal: true,
            ..AttentionSpec::default()
        };
        for places in 2..6 {
            let pairs = |at: u64, step: u64| -> u64 {
                let c = circle(Layout::ZigZag, [at, places], 4 * places);
                let parts = c.parts(&spec, c.whose(step));
                let of = |p: &Part| {
                    let ((_, [_, n]), (_, [_, m])) = (p.queries, p.keys);
                    if p.mask == Mask::Own {
                        n * (n + 1) / 2
                    } else {
                        n * m
                    }
                };
                parts.iter().map(of).sum()
            };
            for step in 0..places {
                let all: Vec<u64> = (0..places).map(|at| pairs(at, step)).collect();
                assert!(
                    all.iter().all(|n| *n == all[0]),
                    "{places}, {step}: {all:?}"
                );
            }
        }
    }
}
