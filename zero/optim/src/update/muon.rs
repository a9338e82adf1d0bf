//! Muon: momentum of a matrix, orthogonalised by five steps of a quintic Newton–Schulz iteration, in f32. A stack of experts is one matrix an expert.
//!
//! Of a matrix that is cut over ranks each has momentum of its own part; the parts are gathered to be orthogonalised, on every rank alike, and
//! each takes its part of what comes of it. They are gathered end to end in the order of the ranks: of a fused matrix, whose parts interleave, that
//! is another order of its rows, which orthogonalisation gives back as it got it.

use super::{Part, Step, add_squares, constant, run_of};
use crate::{Muon, StateName};
use crossweave_program::abi::op;
use crossweave_program::{DType, On, ParamBlock, Scalar, View};

/// Coefficients of Keller Jordan's iteration: steepest at zero, singular values end between about 0.7 and 1.2.
const QUINTIC: [f64; 3] = [3.4445, -4.7750, 2.0315];

/// A matrix of which a rank has all or a part.
struct Matrix {
    /// Its first element in the unit, and that of its moment in those of the group.
    at: u64,
    packed: u64,
    /// Rows and columns that are here.
    dims: [u64; 2],
    /// Rows and columns of the whole.
    whole: [u64; 2],
}

pub(super) fn update(s: &Step<'_, '_>, m: &Muon) {
    let mut packed = 0;
    for part in &s.group.parts {
        // The layout cuts no parameter of such a unit.
        debug_assert_eq!(part.len, part.held.dims().iter().product::<u64>());
        let matrices = matrices(part, packed);
        matrices.iter().for_each(|x| one(s, m, x));
        packed += part.len;
    }
}

/// The matrices of a parameter: of a stack of experts each is one of its own, and none of them is cut, of which a rank may have some.
fn matrices(part: &Part, packed: u64) -> Vec<Matrix> {
    let (dims, whole) = (part.held.dims(), part.held.shape());
    let stacked = |dims: &[u64]| match *dims {
        [experts, _, _] => experts.max(1),
        _ => 1,
    };
    let (count, experts) = (stacked(&dims), stacked(whole));
    let matrix = |dims: &[u64], len: u64| {
        let cols = dims.last().copied().unwrap_or(1).max(1);
        [len / cols, cols]
    };
    let len = part.len / count;
    let all = whole.iter().product::<u64>() / experts;
    let each = 0..count;
    let one = |k| Matrix {
        at: part.at + k * len,
        packed: packed + k * len,
        dims: matrix(&dims, len),
        whole: matrix(whole, all),
    };
    each.map(one).collect()
}

fn one(s: &Step<'_, '_>, m: &Muon, matrix: &Matrix) {
    let Matrix {
        at,
        packed,
        dims: [rows, cols],
        whole,
    } = *matrix;
    let (on, flat, len) = (&s.on, s.flat, rows * cols);
    let buf = s.packed(StateName::Moment1, packed, len);
    // What is orthogonalised takes the gradient's place.
    let grad = run_of(&flat.grad, at, len);
    momentum(s, m, &grad, &buf);
    let u = grad.view([rows, cols]);
    let x = match [rows, cols] == whole {
        true => orthogonal(on, &u, m.ns_steps),
        false => of_all_ranks(s, m, &u, whole),
    };
    let p = run_of(&flat.value, at, len).view([rows, cols]);
    let copy = flat.copy.as_ref();
    let copy = copy.map(|c| run_of(c, at, len).view([rows, cols]));
    let (_, skip) = s.words(&[rows, cols]);
    let mut outs = vec![&p];
    outs.extend(&copy);
    let mut ins = vec![&p, &x];
    ins.extend(&skip);
    let lr = s.rate();
    let times = |v: f64| on.scalar(Scalar::Mul(lr, constant(on, v)));
    let scalars = [
        times(s.group.recipe.weight_decay),
        times(m.factor(whole[0], whole[1])),
    ];
    let (has_skip, has_copy) = (skip.is_some(), copy.is_some());
    on.map(&outs, &ins, &scalars, |v| {
        let p = v[0];
        let mut new = p - p.scalar(0) * p - p.scalar(1) * v[1];
        if has_skip {
            new = v[2].choose(p, new);
        }
        if has_copy { vec![new, new] } else { vec![new] }
    });
}

/// This rank's part of the orthogonal factor of the matrix whose part is `u`. Parts of columns are gathered as rows of the transpose.
fn of_all_ranks<'c>(s: &Step<'_, 'c>, m: &Muon, u: &View<'c>, whole: [u64; 2]) -> View<'c> {
    let Some(cut) = &s.k.matrices else {
        // The planner has a group wherever it lets a matrix be cut.
        return orthogonal(&s.on, u, m.ns_steps);
    };
    let [rows, cols] = [0, 1].map(|i| u.shape().dims()[i]);
    let by_columns = rows == whole[0];
    let (n, width) = if by_columns {
        (cols, rows)
    } else {
        (rows, cols)
    };
    let own = match by_columns {
        false => u.clone(),
        true => {
            let dense = s.on.empty([n, width], DType::F32);
            s.on.map(&[&dense], &[&u.t()], &[], |x| vec![x[0]]);
            dense
        }
    };
    let all = s.on.empty([cut.ranks * n, width], DType::F32);
    (cut.gather)(&own, &all);
    let x = orthogonal(&s.on, &all, m.ns_steps);
    let x = x.narrow(0, cut.at * n, n);
    if by_columns { x.t() } else { x }
}

/// `buf = mu buf + (1 - mu) g`; the gradient becomes what is orthogonalised: `buf`, or with Nesterov `mu buf + (1 - mu) g` once more.
fn momentum(s: &Step<'_, '_>, m: &Muon, grad: &View<'_>, buf: &View<'_>) {
    let (coef, skip) = s.words(&[grad.numel()]);
    let mut ins = vec![grad, buf];
    ins.extend(&coef);
    ins.extend(&skip);
    let (has_coef, has_skip) = (coef.is_some(), skip.is_some());
    let (mu, rest, nesterov) = (m.momentum as f32, (1.0 - m.momentum) as f32, m.nesterov);
    s.on.map(&[buf, grad], &ins, &[], |x| {
        let g = if has_coef { x[0] * x[2] } else { x[0] };
        let old = x[1];
        let new = old * mu + g * rest;
        let ahead = if nesterov { new * mu + g * rest } else { new };
        let kept = match has_skip {
            true => x[2 + usize::from(has_coef)].choose(old, new),
            false => new,
        };
        vec![kept, ahead]
    });
}

/// Nearly the orthogonal factor of `u [rows, cols]`, as a view of that shape.
fn orthogonal<'c>(on: &On<'c>, u: &View<'_>, steps: u32) -> View<'c> {
    let (rows, cols) = (u.shape().dims()[0], u.shape().dims()[1]);
    // The iteration squares the smaller side.
    let tall = rows > cols;
    let (r, c) = if tall { (cols, rows) } else { (rows, cols) };
    let squares = on.zeros([1], DType::F32);
    add_squares(on, &squares, u);
    let mut x = on.empty([r, c], DType::F32);
    let from = if tall { u.t() } else { u.clone() };
    let size = squares.everywhere(&[r, c]);
    on.map(&[&x], &[&from, &size], &[], |v| {
        vec![v[0] / (v[1].sqrt() + 1e-7)]
    });
    let gram = on.empty([r, r], DType::F32);
    let poly = on.empty([r, r], DType::F32);
    let mut next = on.empty([r, c], DType::F32);
    let [a, b, q] = QUINTIC;
    for _ in 0..steps {
        matmul(on, &gram, &x, &x.t(), 1.0, false);
        scaled(on, &poly, &gram, b);
        matmul(on, &poly, &gram, &gram, q, true);
        scaled(on, &next, &x, a);
        matmul(on, &next, &poly, &x, 1.0, true);
        std::mem::swap(&mut x, &mut next);
    }
    if tall { x.t() } else { x }
}

fn matmul(on: &On<'_>, c: &View<'_>, a: &View<'_>, b: &View<'_>, alpha: f64, add: bool) {
    let p = op::MatmulParams {
        flags: if add { op::FLAG_ACCUM } else { 0 },
        alpha,
        ..Default::default()
    };
    let operands = [Some(c), Some(a), Some(b), None];
    on.launch(op::MATMUL, &operands, ParamBlock::fixed(p.as_bytes()), None);
}

/// `y = alpha x`.
fn scaled(on: &On<'_>, y: &View<'_>, x: &View<'_>, alpha: f64) {
    let p = op::AxpbyParams {
        alpha,
        ..Default::default()
    };
    on.plain(op::AXPBY, &[y, x], p.as_bytes());
}
