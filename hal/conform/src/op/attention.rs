//! `attention_fwd`, `attention_bwd`: causal and windowed masks, more queries than keys and fewer, grouped heads, slices of one fused tensor.
//! `attention_varlen_fwd`, `attention_varlen_bwd`: the same within segments, empty ones and positions of none among them.

use super::attention_reference::{Inputs, Shape, backward, forward};
use super::bound::Num;
use super::cell::{About, Cell, FLOATS, Gen};
use super::num;
use super::tensor::T;
use super::trial::{Arg, Trial, Want};
use crate::case::Effort;
use crossweave_abi::DType;
use crossweave_abi::op::{self, AttentionParams, FLAG_CAUSAL};

const F: DType = DType::F32;

/// Every cell of these ops.
pub fn cells() -> Vec<Cell> {
    let mut all = Vec::new();
    for t in FLOATS {
        all.push(Cell::new(op::ATTENTION_FWD, t.name(), move |g| {
            trials(g, t, false)
        }));
        all.push(Cell::new(op::ATTENTION_BWD, t.name(), move |g| {
            trials(g, t, true)
        }));
        all.push(Cell::new(op::ATTENTION_VARLEN_FWD, t.name(), move |g| {
            packed(g, t, false)
        }));
        all.push(Cell::new(op::ATTENTION_VARLEN_BWD, t.name(), move |g| {
            packed(g, t, true)
        }));
    }
    all
}

fn trials(g: &mut Gen, t: DType, back: bool) -> Vec<Trial> {
    let s = |b, tq, tk, h, hkv, d, causal, window, scale| Shape {
        b,
        tq,
        tk,
        h,
        hkv,
        d,
        causal,
        window,
        scale,
        ..Shape::default()
    };
    if g.sizes() {
        let mut all = large(g, s);
        all.iter_mut().for_each(|s| sampled(g, s));
        return all
            .iter()
            .map(|s| trial(g, t, s, Lie::Dense, back))
            .collect();
    }
    if g.about == About::Pairs {
        return pairs(g, t, back);
    }
    if g.about == About::Models {
        let few = if g.effort == Effort::Quick { 3 } else { 1 };
        return models(&s)
            .iter()
            .step_by(few)
            .map(|s| trial(g, t, s, Lie::Dense, back))
            .collect();
    }
    if g.about == About::Unread {
        let shapes = [
            s(1, 5, 37, 6, 2, 8, true, 4, 0.0),
            s(2, 37, 5, 2, 2, 8, true, 0, 0.0),
            s(1, 64, 192, 2, 1, 16, true, 64, 0.0),
            s(1, 33, 130, 2, 1, 64, false, 3, 0.0),
            s(1, 70, 70, 2, 1, 32, true, 0, 0.0),
        ];
        return shapes
            .iter()
            .map(|s| trial(g, t, s, Lie::Unread, back))
            .collect();
    }
    let shapes = [
        s(1, 1, 1, 1, 1, 1, false, 0, 0.0),
        s(2, 7, 7, 2, 2, 8, true, 0, 0.0),
        s(1, 33, 33, 2, 1, 16, true, 0, 0.0),
        s(2, 9, 9, 4, 2, 8, false, 0, 0.3),
        s(1, 5, 37, 6, 2, 8, true, 0, 0.0),
        s(1, 37, 5, 2, 2, 8, true, 0, 0.0),
        s(1, 40, 40, 1, 1, 8, true, 7, 0.0),
        s(1, 20, 31, 2, 1, 33, false, 5, 0.0),
        s(1, 100, 100, 1, 1, 64, true, 0, 0.0),
        s(1, 3, 80, 2, 2, 7, true, 1, 0.0),
        s(1, 0, 5, 2, 2, 8, true, 0, 0.0),
        s(0, 4, 4, 2, 2, 8, true, 0, 0.0),
    ];
    let mut all: Vec<Trial> = shapes
        .iter()
        .map(|s| trial(g, t, s, Lie::Dense, back))
        .collect();
    let y = s(2, 17, 17, 4, 4, 8, true, 0, 0.0);
    all.push(trial(g, t, &y, Lie::Heads, back));
    all.push(trial(g, t, &y, Lie::Fused, back));
    all.push(trial(g, t, &y, Lie::Mixed, back));
    all.push(trial(g, t, &y, Lie::Loud, back));
    if g.big() {
        // Heads of the sizes that devices have units for, several tiles of queries and of keys.
        for s in [
            s(1, 300, 300, 2, 1, 64, true, 0, 0.0),
            s(1, 150, 400, 2, 1, 128, true, 200, 0.0),
        ] {
            all.push(trial(g, t, &s, Lie::Dense, back));
        }
    }
    all
}

type Scaled<'a> = &'a dyn Fn(usize, usize, usize, usize, usize, usize, bool, i64, f64) -> Shape;

/// Ways to lie that are combined with everything else.
const LIES: [Lie; 5] = [Lie::Dense, Lie::Heads, Lie::Fused, Lie::Mixed, Lie::Unread];
/// Query heads and key heads.
const HEADS: [(usize, usize); 4] = [(1, 1), (3, 3), (4, 2), (6, 2)];
/// Sizes of heads.
const WIDTHS: [usize; 4] = [8, 16, 33, 64];
/// Windows: none, the position itself, some, and more than there are keys, of which the low half is less.
const WINDOWS: [i64; 4] = [0, 1, 5, (1 << 32) + 2];
/// Factors of scores: by the size of heads, and one that needs all of its bits.
const SCALES: [f64; 2] = [0.0, 0.123_456_789];

/// A shape by the choices of its batch, heads, their width, mask, window and factor, of so many queries and keys.
pub fn chosen([b, h, d, causal, window, scale]: [usize; 6], [tq, tk]: [usize; 2]) -> Shape {
    Shape {
        b: 1 + b,
        tq,
        tk,
        h: HEADS[h].0,
        hkv: HEADS[h].1,
        d: WIDTHS[d],
        causal: causal == 1,
        window: WINDOWS[window],
        scale: SCALES[scale],
        ..Shape::default()
    }
}

/// Sizes, masks and layouts by design.
fn pairs(g: &mut Gen, t: DType, back: bool) -> Vec<Trial> {
    let sizes = [[17, 17], [9, 26], [26, 9], [1, 33], [64, 64]];
    let rows = g.covering([2, 5, 4, 4, 2, 4, 2, 5]).into_iter();
    let each = rows.map(|[b, n, h, d, causal, w, scale, lie]| {
        let s = chosen([b, h, d, causal, w, scale], sizes[n]);
        trial(g, t, &s, LIES[lie], back)
    });
    each.collect()
}

/// The same of packed sequences.
fn packed_pairs(g: &mut Gen, t: DType, back: bool) -> Vec<Trial> {
    let ends: [&[i32]; 5] = [
        &[0, 19, 19, 19],
        &[0, 7, 7, 19],
        &[2, 9, 9, 17],
        &[0, 1, 2, 3],
        &[0, 64, 65, 81],
    ];
    let rows = g.covering([2, 5, 4, 4, 2, 4, 2, 5]).into_iter();
    let each = rows.map(|[b, cu, h, d, causal, w, scale, lie]| {
        let n = if cu == 4 { 81 } else { 19 };
        let s = Shape {
            cu: [Some(ends[cu].repeat(1 + b).into()), None],
            ..chosen([b, h, d, causal, w, scale], [n, n])
        };
        trial(g, t, &s, LIES[lie], back)
    });
    each.collect()
}

/// Heads on one key head as models have them, and every mask in whole tiles; with factors that need all of their bits.
fn models(s: Scaled<'_>) -> Vec<Shape> {
    let mut all = Vec::new();
    for (i, on_one) in [1, 2, 3, 4, 5, 7, 8, 12].into_iter().enumerate() {
        let hkv = 1 + i % 2;
        all.push(s(1, 9, 9, on_one * hkv, hkv, 8, true, 0, 0.123_456_789));
    }
    for (tq, tk) in [(64, 64), (64, 128), (128, 64)] {
        for window in [0, 33, 64] {
            for causal in [false, true] {
                all.push(s(1, tq, tk, 2, 1, 16, causal, window, 1.0 / 12f64.sqrt()));
            }
        }
    }
    all
}

type Plain<'a> = &'a dyn Fn(usize, usize, usize, usize, usize, usize, bool, i64) -> Shape;

/// Heads, keys, queries, rows and elements of a head, each beyond tiles; the sizes of heads that models have.
fn large(
    g: &mut Gen,
    s: impl Fn(usize, usize, usize, usize, usize, usize, bool, i64, f64) -> Shape,
) -> Vec<Shape> {
    // Windowed ones have a scale of their own, so that a kernel for long sequences has to know it.
    let s: Plain<'_> = &|b, tq, tk, h, hkv, d, causal, window| {
        let scale = if window > 0 { 0.3 } else { 0.0 };
        s(b, tq, tk, h, hkv, d, causal, window, scale)
    };
    if g.residues() {
        let mut all = Vec::new();
        for (i, [b, tq, tk, hkv, d]) in g.ending(1 << 14).into_iter().enumerate() {
            let h = hkv * g.heads_on_one(hkv, b * tq * tk * d);
            let window = if i % 3 == 2 { 1 + tk as i64 / 2 } else { 0 };
            all.push(s(b, tq, tk, h, hkv, d, i % 2 == 0, window));
        }
        return all;
    }
    let mut all: Vec<Shape> = match g.effort {
        Effort::Quick => vec![64],
        Effort::Default => vec![64, 80, 96, 128, 256],
        Effort::Big => vec![64, 72, 80, 96, 112, 128, 160, 192, 256],
    }
    .into_iter()
    .map(|d| s(1, 133, 133, 2, 1, d, true, 0))
    .collect();
    for n in g.beyond_squared() {
        all.extend([
            s(1, n, n, 1, 1, 8, true, 0),
            s(1, n, n, 2, 2, 8, true, 100),
            s(1, 3, n, 2, 1, 16, false, 0),
            s(1, n, 5, 2, 2, 16, false, 0),
            s(1, 4, n, 1, 1, 8, true, n as i64 / 2),
            s(1, 5, 9, 2, 2, n, true, 0),
            s(n, 2, 3, 1, 1, 4, true, 0),
            s(1, 2, 3, n, 1, 4, true, 0),
            s(1, 2, 3, n, n, 4, false, 0),
        ]);
        if n < 4096 {
            all.push(s(1, n, n, 1, 1, 8, false, 0));
        }
    }
    for n in g.grid() {
        all.extend([
            s(n, 1, 2, 1, 1, 2, false, 0),
            s(1, 1, 2, n, n, 2, false, 0),
            s(1, n, 3, 1, 1, 2, false, 0),
            s(1, 3, n, 1, 1, 2, false, 0),
        ]);
    }
    if g.effort != Effort::Quick {
        // Rows times heads beyond what a dim of a grid may have, and several sizes at once.
        all.push(s(300, 1, 2, 230, 115, 2, false, 0));
        all.push(s(2, 260, 300, 4, 2, 64, true, 0));
        all.push(s(67, 70, 70, 2, 1, 4, true, 0));
        all.push(s(1, 70, 70, 136, 68, 4, true, 0));
        all.push(s(2, 3, 5, 67, 67, 70, true, 0));
        all.push(s(66, 2, 3, 2, 2, 70, true, 0));
    }
    if g.big() {
        all.push(s(1, 16_391, 16_391, 1, 1, 64, true, 0));
    }
    all
}

impl Gen {
    /// Query heads for each of `hkv` key heads, as models have them, where there are few and they cost little; else one.
    pub fn heads_on_one(&mut self, hkv: usize, each: usize) -> usize {
        let some = [1, 2, 3, 4, 5, 7, 8, 12][self.below(8)];
        match hkv * some <= 48 && hkv * some * each <= 1 << 16 {
            true => some,
            false => 1,
        }
    }
}

/// Long sequences are judged at a sample of their positions: numbers that carry their error take far longer than plain ones.
fn sampled(g: &mut Gen, s: &mut Shape) {
    if s.tq == s.tk && s.tq > 300 {
        s.judged = sample(g, s.tq);
    }
}

/// Positions at and around the edges of tiles, the first, the last, and some more.
fn sample(g: &mut Gen, n: usize) -> Vec<usize> {
    let tiles = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384];
    let edges = tiles.into_iter().flat_map(|t| [t - 1, t, t + 1]);
    let mut all: Vec<usize> = edges
        .chain([0, n - 2, n - 1])
        .filter(|at| *at < n)
        .collect();
    all.extend((0..30).map(|_| g.below(n)));
    all.sort_unstable();
    all.dedup();
    all
}

/// Three segments of `n` positions, which begin and end anywhere.
pub fn segments(g: &mut Gen, n: usize) -> [i32; 4] {
    let mut ends = [0, g.below(n + 1), g.below(n + 1), n].map(|end| end as i32);
    ends.sort_unstable();
    ends
}

/// Packed sequences beyond tiles: positions, segments and rows.
fn large_packed(
    g: &mut Gen,
    rows: impl Fn(usize, Vec<i32>, usize, usize, usize, usize, bool, i64) -> Shape,
) -> Vec<Shape> {
    if g.residues() {
        let mut all = Vec::new();
        for (i, [b, n, hkv, d]) in g.ending(1 << 13).into_iter().enumerate() {
            let h = hkv * g.heads_on_one(hkv, b * n * n * d);
            let window = if i % 3 == 2 { 1 + n as i64 / 4 } else { 0 };
            // Three segments, of ends of their own in every row.
            let cu: Vec<i32> = (0..b).flat_map(|_| segments(g, n)).collect();
            all.push(rows(b, cu, n, h, hkv, d, i % 2 == 0, window));
        }
        return all;
    }
    let mut all: Vec<Shape> = [64, 80, 96, 128, 256]
        .into_iter()
        .map(|d| rows(1, vec![0, 70, 133], 133, 2, 1, d, true, 0))
        .collect();
    for n in g.beyond_squared() {
        let i = n as i32;
        all.extend([
            rows(1, vec![0, i], n, 1, 1, 8, true, 0),
            rows(
                1,
                vec![0, i / 3, i / 3, i / 2 + 1, i],
                n,
                2,
                1,
                8,
                false,
                90,
            ),
            rows(1, (0..=i).collect(), n, 1, 1, 8, true, 0),
            rows(1, vec![0, 4, 7], 7, n, n, 4, true, 0),
            rows(1, vec![0, 2, 5], 5, 1, 1, n, true, 0),
            rows(
                n,
                [0, 1, 3, 0, 2, 3].repeat(n)[..3 * n].to_vec(),
                3,
                1,
                1,
                4,
                true,
                0,
            ),
        ]);
    }
    for n in g.grid() {
        let ends: Vec<i32> = (0..=n as i32).step_by(3).chain([n as i32]).collect();
        all.push(rows(1, ends, n, 1, 1, 2, true, 0));
        all.push(rows(n, [0, 1, 2].repeat(n), 2, 1, 1, 2, false, 0));
    }
    if g.big() {
        all.push(rows(1, vec![0, 9000, 16_391], 16_391, 1, 1, 64, true, 0));
    }
    all
}

/// Trials of packed sequences.
fn packed(g: &mut Gen, t: DType, back: bool) -> Vec<Trial> {
    let rows = |b, cu: &'static [i32], n, h, hkv, d, causal, window, scale| Shape {
        b,
        tq: n,
        tk: n,
        h,
        hkv,
        d,
        causal,
        window,
        scale,
        cu: [Some(cu.into()), None],
        ..Shape::default()
    };
    if g.sizes() {
        let none = &[0, 0];
        let of = |b, cu: Vec<i32>, n, h, hkv, d, causal, window| Shape {
            cu: [Some(cu.into()), None],
            scale: if window > 0 { 0.3 } else { 0.0 },
            ..rows(b, none, n, h, hkv, d, causal, window, 0.0)
        };
        let mut all = large_packed(g, of);
        all.iter_mut().for_each(|s| sampled(g, s));
        return all
            .iter()
            .map(|s| trial(g, t, s, Lie::Dense, back))
            .collect();
    }
    if g.about == About::Pairs {
        return packed_pairs(g, t, back);
    }
    let s = |cu: &'static [i32], n, h, hkv, d, causal, window, scale| {
        rows(1, cu, n, h, hkv, d, causal, window, scale)
    };
    if g.about == About::Models {
        let mut all = Vec::new();
        for (i, on_one) in [1, 2, 3, 4, 5, 7, 8, 12].into_iter().enumerate() {
            let hkv = 1 + i % 2;
            all.push(s(
                &[0, 5, 17],
                17,
                on_one * hkv,
                hkv,
                8,
                true,
                0,
                0.123_456_789,
            ));
        }
        for window in [0, 33, 64] {
            for causal in [false, true] {
                all.push(s(
                    &[0, 64, 128],
                    128,
                    2,
                    1,
                    16,
                    causal,
                    window,
                    1.0 / 12f64.sqrt(),
                ));
            }
        }
        return all
            .iter()
            .map(|s| trial(g, t, s, Lie::Dense, back))
            .collect();
    }
    if g.about == About::Unread {
        let shapes = [
            s(&[2, 9, 9, 31], 40, 2, 1, 8, true, 0, 0.0),
            s(&[5, 21], 23, 4, 2, 8, false, 0, 0.0),
            s(&[64, 100, 128], 192, 2, 1, 16, true, 9, 0.0),
            rows(2, &[0, 3, 3, 8, 8, 17], 19, 4, 2, 8, false, 0, 0.0),
        ];
        return shapes
            .iter()
            .map(|s| trial(g, t, s, Lie::Unread, back))
            .collect();
    }
    let shapes = [
        s(&[0, 1], 1, 1, 1, 1, false, 0, 0.0),
        s(&[0, 3, 7], 7, 2, 2, 8, true, 0, 0.0),
        // One segment: the whole sequence.
        s(&[0, 20], 20, 2, 2, 8, false, 0, 0.3),
        // Empty segments at the beginning, between others and at the end.
        s(&[0, 0, 1, 17, 17, 17, 33, 33], 33, 2, 1, 16, true, 0, 0.0),
        // Positions of no segment on both sides.
        s(&[2, 9, 9, 31], 40, 2, 1, 8, true, 0, 0.0),
        s(&[5, 21], 23, 4, 2, 8, false, 0, 0.0),
        // Windows end at the segment, whichever is shorter.
        s(&[0, 13, 40], 40, 1, 1, 8, true, 7, 0.0),
        s(&[0, 5, 12, 31], 31, 2, 1, 33, false, 3, 0.0),
        s(&[0, 2, 50], 50, 2, 2, 7, true, 1, 0.0),
        // A segment for every position.
        s(&[0, 1, 2, 3, 4, 5, 6], 6, 6, 2, 8, true, 0, 0.0),
        // Begins and ends inside of tiles, and on their edges.
        s(&[0, 64, 100], 100, 1, 1, 64, true, 0, 0.0),
        s(&[0, 15, 31, 64, 81], 81, 2, 1, 20, false, 0, 0.0),
        // Fewer segments than there is room for.
        s(&[0, 4, 9, 9, 9, 9, 9, 9, 9, 9], 9, 2, 2, 8, true, 0, 0.0),
        // None at all.
        s(&[0], 5, 2, 1, 8, true, 0, 0.0),
        s(&[5, 5, 5], 5, 2, 2, 8, false, 0, 0.0),
        s(&[0, 0], 0, 2, 2, 8, true, 0, 0.0),
        // Rows of their own lengths, and no rows.
        rows(2, &[0, 3, 19, 8, 8, 17], 19, 4, 2, 8, true, 0, 0.0),
        rows(3, &[0, 9, 0, 4, 2, 2], 9, 2, 2, 5, false, 2, 0.0),
        rows(0, &[], 4, 2, 2, 8, true, 0, 0.0),
    ];
    let mut all: Vec<Trial> = shapes
        .iter()
        .map(|s| trial(g, t, s, Lie::Dense, back))
        .collect();
    let y = rows(2, &[0, 6, 17, 0, 1, 12], 17, 4, 4, 8, true, 0, 0.0);
    for lie in [Lie::Heads, Lie::Fused, Lie::Loud] {
        all.push(trial(g, t, &y, lie, back));
    }
    if g.big() {
        for s in [
            s(&[0, 100, 257, 300], 300, 2, 1, 64, true, 0, 0.0),
            s(&[0, 7, 250], 250, 2, 1, 128, true, 100, 0.0),
        ] {
            all.push(trial(g, t, &s, Lie::Dense, back));
        }
    }
    all
}

/// Random heads. Of very wide ones the last elements are the largest: a sum over thousands of equal terms may be off by more than
/// a few of them make.
fn heads(g: &mut Gen, t: DType, shape: &[usize; 4]) -> T {
    let d = shape[3];
    if d <= 1024 {
        return g.real(t, shape, 2.0);
    }
    let mut v = g.reals(shape.iter().product(), 2.0);
    for head in v.chunks_mut(d) {
        head[..d - 8].iter_mut().for_each(|x| *x /= 16.0);
    }
    T::new(t, shape, &v)
}

/// Values of every key. The last keys of a long sequence are the largest: a mean over thousands of equal weights may be off by more than
/// a few of them make.
fn values(g: &mut Gen, t: DType, shape: &[usize; 4]) -> T {
    let [_, keys, h, d] = *shape;
    if keys <= 4200 || d > 1024 {
        return heads(g, t, shape);
    }
    let mut v = g.reals(shape.iter().product(), 2.0);
    for row in v.chunks_mut(keys * h * d) {
        row[(keys - 8) * h * d..]
            .iter_mut()
            .for_each(|x| *x *= 16.0);
    }
    T::new(t, shape, &v)
}

/// How the operands lie.
#[derive(Clone, Copy, PartialEq)]
enum Lie {
    Dense,
    /// [B, H, T, D] in memory.
    Heads,
    /// Rows far apart, as in slices of one q|k|v tensor.
    Fused,
    /// Every operand in another way than the one before it.
    Mixed,
    /// Dense, with scores so large that an exponential without the maximum overflows.
    Loud,
    /// Dense, and what no query sees is not a number, nor is a query that sees nothing.
    Unread,
}

/// With NaN at the positions of `[B, T, H, D]` that are not seen.
pub fn unread(mut x: T, seen: &[bool]) -> T {
    let row: usize = x.shape[2..].iter().product();
    let nan = num::encode(x.dtype, f64::NAN);
    for (bits, _) in x
        .bits
        .chunks_mut(row.max(1))
        .zip(seen)
        .filter(|(_, seen)| !**seen)
    {
        bits.fill(nan);
    }
    x
}

fn trial(g: &mut Gen, t: DType, s: &Shape, lie: Lie, back: bool) -> Trial {
    let place = |i: usize, x: T| match lie {
        Lie::Heads => x.lying(&[0, 2, 1, 3]),
        Lie::Mixed if i % 3 == 1 => x.lying(&[0, 2, 1, 3]),
        Lie::Mixed => x.padded(1 + i),
        Lie::Fused => {
            let [_, tt, h, d] = [x.shape[0], x.shape[1], x.shape[2], x.shape[3]];
            let row = (3 * h * d) as i64;
            x.at(&[tt as i64 * row, row, d as i64, 1])
        }
        _ => x,
    };
    let loud = if lie == Lie::Loud { 30.0 } else { 1.0 };
    let (qs, ks) = ([s.b, s.tq, s.h, s.d], [s.b, s.tk, s.hkv, s.d]);
    let (mut q, mut k, mut v) = (
        g.real(t, &qs, 2.0 * loud),
        g.real(t, &ks, 2.0),
        values(g, t, &ks),
    );
    let seen = (lie == Lie::Unread).then(|| s.seen());
    if let Some([queries, keys]) = &seen {
        (q, k, v) = (unread(q, queries), unread(k, keys), unread(v, keys));
    }
    let x = Inputs {
        q: q.values(),
        k: k.values(),
        v: v.values(),
        ..Inputs::default()
    };
    let p = AttentionParams {
        flags: if s.causal { FLAG_CAUSAL } else { 0 },
        scale: s.scale,
        window: s.window,
        ..Default::default()
    };
    let how = match lie {
        Lie::Dense => "",
        Lie::Heads => ", heads outside",
        Lie::Mixed => ", each in another way",
        Lie::Fused => ", slices of one tensor",
        Lie::Loud => ", scores of several hundred",
        Lie::Unread => ", what is not seen is NaN",
    };
    let what = format!("{}{how}", s.what());
    let cu = s.cu[0].as_deref().map(|cu| {
        let values: Vec<i64> = cu.iter().map(|x| i64::from(*x)).collect();
        // No row has a length to count by: any number of segments fits.
        let n = cu.len().checked_div(s.b).unwrap_or(3);
        let cu = T::ints(DType::I32, &[s.b, n], &values);
        match lie {
            Lie::Fused => cu.spread(3),
            _ => cu,
        }
    });
    let (o, lse) = forward(t, s, &x);
    let ls = [s.b, s.h, s.tq];
    if !back {
        let want = vec![(0, Want::Fused(o)), (1, Want::Fused(lse))];
        let mut args: Vec<Arg> = vec![
            place(0, T::poison(t, &qs)).into(),
            T::poison(F, &ls).into(),
            place(2, q).into(),
            place(3, k).into(),
            place(4, v).into(),
        ];
        args.extend(cu.map(Arg::from));
        return Trial::new(what, p.as_bytes(), args, want);
    }
    let of = |n: &[Num]| n.iter().map(|n| n.v).collect::<Vec<_>>();
    let (o, lse) = (T::new(t, &qs, &of(&o)), T::new(F, &ls, &of(&lse)));
    let mut d_out = heads(g, t, &qs);
    if let Some([queries, _]) = &seen {
        d_out = unread(d_out, queries);
    }
    let [dq, dk, dv, ..] = backward(t, s, &x, &d_out.values(), &o.values(), &lse.values());
    let want = vec![
        (0, Want::Fused(dq)),
        (1, Want::Fused(dk)),
        (2, Want::Fused(dv)),
    ];
    let mut args: Vec<Arg> = vec![
        place(0, T::poison(t, &qs)).into(),
        place(1, T::poison(t, &ks)).into(),
        place(2, T::poison(t, &ks)).into(),
        place(3, d_out).into(),
        place(4, o).into(),
        place(5, q).into(),
        place(6, k).into(),
        place(7, v).into(),
        lse.into(),
    ];
    args.extend(cu.map(Arg::from));
    Trial::new(what, p.as_bytes(), args, want)
}
