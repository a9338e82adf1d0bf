//! Adafactor as transformers': the second moment of a matrix is kept as its row and column means, updates are clipped by their root mean
//! square, steps may be relative to the parameter's own size.
//!
//! Sums over rows and columns are taken over the parts each rank owns and then over the ranks, so no rank needs a whole matrix.

use super::sums::Sums;
use super::{Group, Part, add_squares, constant, reduce, rest, run_of};
use crate::{Adafactor, StateName};
use crossweave_program::abi::op::reduce::SUM;
use crossweave_program::{DType, Given, Scalar, ScalarId, View};

/// Where a factored parameter's figures lie in a packed vector: its rows, its columns.
#[derive(Clone, Copy)]
struct Factors {
    rows: u64,
    cols: u64,
    /// Matrices end to end (dims before the last two).
    batch: u64,
    /// First row mean and first column mean in the packed vectors of the group.
    row_at: u64,
    col_at: u64,
}

/// A rectangle of a declared parameter: `n` rows from row `row` (counted through all matrices), `width` columns from `col`; `at` is its
/// place in the flat buffers. A part that begins or ends inside a row has narrow rectangles at its ends.
#[derive(Clone, Copy)]
struct Tile {
    at: u64,
    row: u64,
    n: u64,
    col: u64,
    width: u64,
}

impl Tile {
    fn of<'v>(self, t: &View<'v>) -> View<'v> {
        run_of(t, self.at, self.n * self.width).view([self.n, self.width])
    }
    fn dims(self) -> [u64; 2] {
        [self.n, self.width]
    }
}

fn factors(group: &Group) -> Vec<Factors> {
    let (mut row_at, mut col_at) = (0, 0);
    let mut out = vec![];
    for (_, dims) in &group.params {
        let n = dims.len();
        let (rows, cols) = match n {
            0 | 1 => (1, dims.first().copied().unwrap_or(1)),
            _ => (dims[n - 2], dims[n - 1]),
        };
        let batch = dims[..n.saturating_sub(2)].iter().product();
        out.push(Factors {
            rows,
            cols,
            batch,
            row_at,
            col_at,
        });
        row_at += batch * rows;
        col_at += batch * cols;
    }
    out
}

/// The rectangles of a part, none across two matrices.
fn tiles(part: &Part, f: &Factors) -> Vec<Tile> {
    let dims = part.held.dims();
    let [.., rows, cols] = dims[..] else {
        return vec![];
    };
    let outer = dims.len() - 2;
    let end = part.first + part.len;
    let mut from = part.first;
    let mut out = vec![];
    while from < end {
        let (row, at) = (from / cols, from % cols);
        let (col, right) = part.held.along(outer + 1, at);
        let (of_matrix, below) = part.held.along(outer, row % rows);
        let whole = (end - from) / cols;
        let (n, width) = if at > 0 || whole == 0 || right < cols {
            (1, right.min(end - from))
        } else {
            (whole.min(below), cols)
        };
        out.push(Tile {
            at: part.at + from - part.first,
            row: part.held.outer(outer, row / rows) * f.rows + of_matrix,
            n,
            col,
            width,
        });
        from += n * width;
    }
    out
}

/// What one step shares among the pieces below.
struct Step<'a, 'c> {
    s: &'a super::Step<'a, 'c>,
    a: &'a Adafactor,
    factors: Vec<Factors>,
    /// `1 - step^decay_rate`, the weight of what was, and what is left of 1.
    beta2: [ScalarId; 2],
}

pub(super) fn update(s: &super::Step<'_, '_>, a: &Adafactor) {
    let (on, group) = (&s.on, s.group);
    let n = group.params.len() as u64;
    let factored = group.params.iter().all(|(_, d)| d.len() >= 2);
    let factors = factors(group);
    let (rows, cols) = factors.last().map_or((0, 0), |f| {
        (f.row_at + f.batch * f.rows, f.col_at + f.batch * f.cols)
    });
    let sums = if factored { rows + cols } else { 0 };
    // One vector, so that one sum over the ranks brings the figures of all parameters: squares, rows, columns.
    let figures = Sums::zeros(s, n + sums);
    let step = on.scalar(Scalar::Given(Given::Update));
    let power = Scalar::Pow(step, constant(on, a.decay_rate));
    let beta2 = rest(on, on.scalar(power));
    let step = Step {
        s,
        a,
        factors,
        beta2: [beta2, rest(on, beta2)],
    };
    for part in group.parts.iter().filter(|p| p.mine) {
        let word = figures.of(part, group.slot(part), 1);
        add_squares(on, &word, &run_of(&s.flat.value, part.at, part.len));
    }
    if factored {
        step.add_rows_and_cols(&figures, n, n + rows);
    }
    let figures = figures.total(s);
    if factored {
        let (r, c) = (
            figures.narrow(0, n, rows),
            figures.narrow(0, n + rows, cols),
        );
        step.factored(&r, &c, rows, cols);
    } else {
        step.plain();
    }
    step.apply(&figures.narrow(0, 0, n));
}

impl Step<'_, '_> {
    fn of(&self, part: &Part) -> &Factors {
        &self.factors[self.s.group.slot(part) as usize]
    }

    /// Adds this rank's sums of `g² + eps` to the rows and columns, which begin at figures `rows` and `cols`.
    fn add_rows_and_cols(&self, figures: &Sums<'_>, rows: u64, cols: u64) {
        for part in self.s.group.parts.iter().filter(|p| p.mine) {
            let f = *self.of(part);
            for t in tiles(part, &f) {
                let sq = self.s.on.empty(t.dims(), DType::F32);
                let grad = t.of(&self.s.flat.grad);
                let (coef, _) = self.s.words(&t.dims());
                let mut ins = vec![&grad];
                ins.extend(&coef);
                let eps = self.a.eps[0] as f32;
                self.s.on.map(&[&sq], &ins, &[], |x| {
                    let g = x.get(1).map_or(x[0], |c| x[0] * *c);
                    vec![g * g + eps]
                });
                let r = figures.of(part, rows + f.row_at + t.row, t.n);
                let matrix = t.row / f.rows;
                let col = f.col_at + matrix * f.cols + t.col;
                let c = figures.of(part, cols + col, t.width);
                reduce(&self.s.on, SUM, 0b10, &r.view([t.n, 1]), &sq, true);
                reduce(&self.s.on, SUM, 0b01, &c.view([1, t.width]), &sq, true);
            }
        }
    }

    /// New row and column means, and the directions they give.
    fn factored(&self, rows: &View<'_>, cols: &View<'_>, n_rows: u64, n_cols: u64) {
        let row = self.s.packed(StateName::Rows, 0, n_rows);
        let col = self.s.packed(StateName::Cols, 0, n_cols);
        for f in &self.factors {
            let (nr, nc) = (f.batch * f.rows, f.batch * f.cols);
            self.mean(&row, rows, f.row_at, nr, f.cols);
            self.mean(&col, cols, f.col_at, nc, f.rows);
        }
        // Each matrix's mean of row means, for the quotient that is its own scale.
        let matrices: u64 = self.factors.iter().map(|f| f.batch).sum();
        let means = self.s.on.empty([matrices], DType::F32);
        let mut first = 0;
        let mut at = vec![];
        for f in &self.factors {
            at.push(first);
            for b in 0..f.batch {
                let r = row.narrow(0, f.row_at + b * f.rows, f.rows);
                let dst = means.narrow(0, first + b, 1);
                reduce(&self.s.on, SUM, 0b1, &dst, &r, false);
            }
            first += f.batch;
        }
        for part in &self.s.group.parts {
            let (f, slot) = (*self.of(part), self.s.group.slot(part) as usize);
            for t in tiles(part, &f) {
                let matrix = t.row / f.rows;
                let dims = t.dims();
                let r = row
                    .narrow(0, f.row_at + t.row, t.n)
                    .strided(dims, &[1, 0], 0);
                let c = col
                    .narrow(0, f.col_at + matrix * f.cols + t.col, t.width)
                    .strided(dims, &[0, 1], 0);
                let mean = means.narrow(0, at[slot] + matrix, 1).everywhere(&dims);
                // The direction takes the gradient's place.
                let grad = t.of(&self.s.flat.grad);
                let (coef, _) = self.s.words(&dims);
                let mut ins = vec![&grad, &r, &c, &mean];
                ins.extend(&coef);
                let count = f.rows as f32;
                self.s.on.map(&[&grad], &ins, &[], |x| {
                    let g = x.get(4).map_or(x[0], |c| x[0] * *c);
                    let scale = (x[1] / (x[3] / count)).sqrt() * x[2].sqrt();
                    vec![g / scale]
                });
            }
        }
    }

    /// `state = beta2 state + (1 - beta2) sum / over`, for `n` means from `at`.
    fn mean(&self, state: &View<'_>, sums: &View<'_>, at: u64, n: u64, over: u64) {
        if n == 0 {
            return;
        }
        let (state, sums) = (state.narrow(0, at, n), sums.narrow(0, at, n));
        let (_, skip) = self.s.words(&[n]);
        let mut ins = vec![&state, &sums];
        ins.extend(&skip);
        self.s.on.map(&[&state], &ins, &self.beta2, |x| {
            let new = x[0] * x[0].scalar(0) + x[1] / over as f32 * x[0].scalar(1);
            vec![x.get(2).map_or(new, |s| s.choose(x[0], new))]
        });
    }

    /// Vectors: a second moment of their own.
    fn plain(&self) {
        for (at, packed, len) in self.s.group.runs() {
            let v = self.s.packed(StateName::Moment2, packed, len);
            let grad = run_of(&self.s.flat.grad, at, len);
            let (coef, skip) = self.s.words(&[len]);
            let mut ins = vec![&grad, &v];
            ins.extend(&coef);
            ins.extend(&skip);
            let (has_coef, has_skip) = (coef.is_some(), skip.is_some());
            let eps = self.a.eps[0] as f32;
            self.s.on.map(&[&v, &grad], &ins, &self.beta2, |x| {
                let g = if has_coef { x[0] * x[2] } else { x[0] };
                let new = x[1] * g.scalar(0) + (g * g + eps) * g.scalar(1);
                let kept = match has_skip {
                    true => x[2 + usize::from(has_coef)].choose(x[1], new),
                    false => new,
                };
                vec![kept, g / new.sqrt()]
            });
        }
    }

    /// The learning rate: the schedule's, or one that follows the number of the update.
    fn rate(&self) -> ScalarId {
        let on = &self.s.on;
        if !self.a.relative_step {
            return self.s.rate();
        }
        let step = on.scalar(Scalar::Given(Given::Update));
        let most = match self.a.warmup_init {
            true => on.scalar(Scalar::Mul(constant(on, 1e-6), step)),
            false => constant(on, 1e-2),
        };
        let falling = Scalar::Div(constant(on, 1.0), on.scalar(Scalar::Sqrt(step)));
        let least = on.scalar(Scalar::Min(most, on.scalar(falling)));
        let scale = constant(on, self.s.group.recipe.lr_scale);
        on.scalar(Scalar::Mul(least, scale))
    }

    /// Clips the directions, scales them and takes the steps; `sizes` are the squares of the parameters.
    fn apply(&self, sizes: &View<'_>) {
        let (on, group) = (&self.s.on, self.s.group);
        let n = group.params.len() as u64;
        let squares = Sums::zeros(self.s, n);
        for part in group.parts.iter().filter(|p| p.mine) {
            let word = squares.of(part, group.slot(part), 1);
            add_squares(on, &word, &run_of(&self.s.flat.grad, part.at, part.len));
        }
        let squares = squares.total(self.s);
        let rate = self.rate();
        // Of each parameter: its rate, and its rate over what clips its update.
        let rates = on.empty([2 * n], DType::F32);
        for (i, (_, dims)) in group.params.iter().enumerate() {
            let i = i as u64;
            let numel = dims.iter().product::<u64>() as f32;
            let (alpha, scaled) = (rates.narrow(0, 2 * i, 1), rates.narrow(0, 2 * i + 1, 1));
            let (p, u) = (sizes.narrow(0, i, 1), squares.narrow(0, i, 1));
            let (least, limit) = (self.a.eps[1] as f32, self.a.clip_threshold as f32);
            let by_size = self.a.scale_parameter;
            on.map(&[&alpha, &scaled], &[&p, &u], &[rate], |x| {
                let (p, u) = ((x[0] / numel).sqrt(), (x[1] / numel).sqrt());
                let rate = p.scalar(0);
                let alpha = if by_size {
                    p.max(p.lit(least)) * rate
                } else {
                    rate
                };
                let clip = (u / limit).max(u.lit(1.0));
                vec![alpha, alpha / clip]
            });
        }
        let mut packed = 0;
        for part in &group.parts {
            self.take(part, packed, &rates);
            packed += part.len;
        }
    }

    fn take(&self, part: &Part, packed: u64, rates: &View<'_>) {
        let (at, len) = (part.at, part.len);
        let slot = self.s.group.slot(part);
        let word = |i| rates.narrow(0, i, 1).everywhere(&[len]);
        let (alpha, scaled) = (word(2 * slot), word(2 * slot + 1));
        let p = run_of(&self.s.flat.value, at, len);
        let copy = self.s.flat.copy.as_ref().map(|c| run_of(c, at, len));
        let u = run_of(&self.s.flat.grad, at, len);
        let momentum = self.a.beta1;
        let m = momentum.map(|_| self.s.packed(StateName::Moment1, packed, len));
        let (_, skip) = self.s.words(&[len]);
        let mut outs = vec![&p];
        outs.extend(&m);
        outs.extend(&copy);
        let mut ins = vec![&p, &u, &alpha, &scaled];
        ins.extend(&m);
        ins.extend(&skip);
        let (has_m, has_skip, has_copy) = (m.is_some(), skip.is_some(), copy.is_some());
        let beta1 = momentum.unwrap_or(0.0);
        let decay = self.s.group.recipe.weight_decay as f32;
        self.s.on.map(&outs, &ins, &[], |x| {
            let (p, mut step) = (x[0], x[1] * x[3]);
            if has_m {
                step = x[4] * beta1 as f32 + step * (1.0 - beta1) as f32;
            }
            let kept = if decay == 0.0 {
                p
            } else {
                p - x[2] * decay * p
            };
            let pick = |new, old| match has_skip {
                true => x[4 + usize::from(has_m)].choose(old, new),
                false => new,
            };
            let new = pick(kept - step, p);
            let mut out = vec![new];
            if has_m {
                out.push(pick(step, x[4]));
            }
            if has_copy {
                out.push(new);
            }
            out
        });
    }
}
