//! AdamW with moments in 8 bits: blocks of 256 elements share a scale, codes are those of a dynamic map (Dettmers et al., bitsandbytes).
//!
//! The map has seven decades below 1. Decade `i` covers (10^(i-7), 10^(i-6)] with 2^i codes for signed moments and 2^(i+1) for unsigned
//! ones, evenly spread; 0 and 1 have codes of their own. One difference from bitsandbytes: -1 has a code too, in place of the smallest
//! negative one, so that the largest element of a block is exact whatever its sign. Decoding and encoding again then changes
//! nothing, and a checkpoint of f32 values gives the same codes back.

use super::adam::corrections;
use super::{Step, betas, constant, reduce, rest, run_of};
use crate::{Adam, BLOCK_8BIT, StateName};
use crossweave_program::abi::op;
use crossweave_program::{Codec, DType, Ex, On, Scalar, View};

/// Elements worked on at once, so that f32 copies take megabytes and not the size of the parameter.
const WINDOW: u64 = 1 << 20;
/// Least scale: a block of zeros divides by it.
const TINY: f32 = f32::MIN_POSITIVE;

/// A map of codes.
#[derive(Clone, Copy)]
struct Codes {
    signed: bool,
    /// Codes of the lowest decade.
    first: f32,
}

/// The second moment is never negative and uses all codes for magnitudes.
fn codes(name: StateName) -> Codes {
    let signed = name != StateName::Moment2;
    Codes {
        signed,
        first: if signed { 1.0 } else { 2.0 },
    }
}

/// The code of 0.
pub fn code_of_zero(name: StateName) -> u8 {
    if codes(name).signed { 127 } else { 0 }
}

impl Codes {
    /// Codes of decade `i`.
    fn count(self, i: i32) -> f64 {
        self.first as f64 * 2f64.powi(i)
    }
    /// The value of code `q` of decade `i`.
    fn value(self, i: i32, q: f64) -> f64 {
        (0.1 + 0.9 * (q + 0.5) / self.count(i)) * 10f64.powi(i - 6)
    }
    /// Values from here on belong to decade `i` rather than the one below.
    fn border(self, i: i32) -> f64 {
        (self.value(i - 1, self.count(i - 1) - 1.0) + self.value(i, 0.0)) / 2.0
    }

    /// From a code to a value in [-1, 1].
    fn decode(self, code: Ex<'_>) -> Ex<'_> {
        // Magnitudes count from 1 within the signed map and from 2 within the unsigned, so that a decade begins at its own count.
        let (negative, rank) = if self.signed {
            let negative = code.less(code.lit(127.0));
            let below = code.lit(128.0) - code;
            (Some(negative), negative.choose(below, code - 127.0))
        } else {
            (None, code + 1.0)
        };
        let mut count = code.lit(self.first);
        let mut scale = code.lit(1e-6);
        for i in 1..7 {
            let begin = code.lit(self.count(i) as f32);
            let lower = rank.less(begin);
            count = lower.choose(count, begin);
            scale = lower.choose(scale, code.lit(10f64.powi(i - 6) as f32));
        }
        let value = ((rank - count + 0.5) / count * 0.9 + 0.1) * scale;
        let value = value.min(code.lit(1.0));
        // Code 127, or 0 of the unsigned map, is zero: its rank lies below the first decade.
        let some = code.lit(self.first - 1.0).less(rank);
        let value = some.choose(value, code.lit(0.0));
        match negative {
            Some(n) => n.choose(-value, value),
            None => value,
        }
    }

    /// The code nearest to `x / scale`.
    fn encode<'p>(self, x: Ex<'p>, scale: Ex<'p>) -> Ex<'p> {
        let a = if self.signed { x.abs() } else { x } / scale;
        let mut count = x.lit(self.first);
        let mut slope = x.lit((self.count(0) / 0.9e-6) as f32);
        for i in 1..7 {
            let lower = a.less(x.lit(self.border(i) as f32));
            count = lower.choose(count, x.lit(self.count(i) as f32));
            let steep = self.count(i) / (0.9 * 10f64.powi(i - 6));
            slope = lower.choose(slope, x.lit(steep as f32));
        }
        let q = (a * slope - count * (1.0f32 / 9.0)).floor();
        let zero = x.lit(0.0);
        let q = q.max(zero).min(count - 1.0);
        let rank = count + q;
        let is_zero = a.less(x.lit((self.value(0, 0.0) / 2.0) as f32));
        let last = (self.value(6, self.count(6) - 1.0) + 1.0) / 2.0;
        let below_one = a.less(x.lit(last as f32));
        let top = x.lit(2.0 * self.count(6) as f32);
        let rank = is_zero.choose(x.lit(self.first - 1.0), below_one.choose(rank, top));
        if !self.signed {
            return rank - 1.0;
        }
        let middle = x.lit(127.0);
        let below = (x.lit(128.0) - rank).min(middle);
        x.less(zero).choose(below, rank + middle)
    }
}

/// A run of whole blocks, or one short block: `rows` blocks of `width` elements.
#[derive(Clone, Copy)]
struct Window {
    at: u64,
    rows: u64,
    width: u64,
}

/// Whole blocks by windows, then what is left.
fn windows(len: u64) -> Vec<Window> {
    let whole = len / BLOCK_8BIT * BLOCK_8BIT;
    let mut out: Vec<Window> = (0..whole)
        .step_by(WINDOW as usize)
        .map(|at| Window {
            at,
            rows: WINDOW.min(whole - at) / BLOCK_8BIT,
            width: BLOCK_8BIT,
        })
        .collect();
    if whole < len {
        out.push(Window {
            at: whole,
            rows: 1,
            width: len - whole,
        });
    }
    out
}

impl Window {
    fn len(self) -> u64 {
        self.rows * self.width
    }
    /// Elements of a flat view as `[rows, width]`.
    fn of<'v>(self, t: &View<'v>) -> View<'v> {
        t.narrow(0, self.at, self.len())
            .view([self.rows, self.width])
    }
    /// Scales of its blocks as `[rows, 1]`.
    fn scales<'v>(self, t: &View<'v>) -> View<'v> {
        t.narrow(0, self.at / BLOCK_8BIT, self.rows)
            .view([self.rows, 1])
    }
    fn spread<'v>(self, scales: &View<'v>) -> View<'v> {
        scales.strided([self.rows, self.width], &[1, 0], 0)
    }
}

/// `out = value of codes`; codes pass through bf16, which holds 0 to 255 exactly.
fn decode_window(
    on: &On<'_>,
    w: Window,
    out: &View<'_>,
    (stored, scales): (&View<'_>, &View<'_>),
    name: StateName,
) {
    let wide = on.empty([w.rows, w.width], DType::Bf16);
    on.cast(&wide, &w.of(stored));
    let map8 = codes(name);
    let scales = w.spread(&w.scales(scales));
    on.map(&[out], &[&wide, &scales], &[], |x| {
        vec![map8.decode(x[0]) * x[1]]
    });
}

/// Scales and codes of `x [rows, width]`.
fn encode_window(
    on: &On<'_>,
    w: Window,
    x: &View<'_>,
    (stored, scales): (&View<'_>, &View<'_>),
    name: StateName,
) {
    let map8 = codes(name);
    let scale = w.scales(scales);
    reduce(on, op::reduce::MAX, 0b10, &scale, x, false);
    if map8.signed {
        let low = on.empty([w.rows, 1], DType::F32);
        reduce(on, op::reduce::MIN, 0b10, &low, x, false);
        on.map(&[&scale], &[&scale, &low], &[], |v| {
            vec![v[0].max(-v[1]).max(v[0].lit(TINY))]
        });
    } else {
        on.map(&[&scale], &[&scale], &[], |v| {
            vec![v[0].max(v[0].lit(TINY))]
        });
    }
    let wide = on.empty([w.rows, w.width], DType::Bf16);
    on.map(&[&wide], &[x, &w.spread(&scale)], &[], |v| {
        vec![map8.encode(v[0], v[1])]
    });
    on.cast(&w.of(stored), &wide);
}

/// Writes all values of a part: of its codes, and their scales.
fn decode(on: &On<'_>, out: &View<'_>, kept: (&View<'_>, &View<'_>), name: StateName) {
    for w in windows(out.numel()) {
        decode_window(on, w, &w.of(out), kept, name);
    }
}

/// Writes codes and scales of a part's values.
fn encode(on: &On<'_>, values: &View<'_>, kept: (&View<'_>, &View<'_>), name: StateName) {
    for w in windows(values.numel()) {
        encode_window(on, w, &w.of(values), kept, name);
    }
}

/// The form in which a state in 8 bits is kept, for what reads and writes it beside updates.
pub fn codec(name: StateName) -> Codec {
    match codes(name).signed {
        true => Codec {
            block: BLOCK_8BIT,
            decode: |on, [c, s, x]| decode(on, x, (c, s), StateName::Moment1),
            encode: |on, [c, s, x]| encode(on, x, (c, s), StateName::Moment1),
        },
        false => Codec {
            block: BLOCK_8BIT,
            decode: |on, [c, s, x]| decode(on, x, (c, s), StateName::Moment2),
            encode: |on, [c, s, x]| encode(on, x, (c, s), StateName::Moment2),
        },
    }
}

pub(super) fn update(s: &Step<'_, '_>, a: &Adam) {
    let on = &s.on;
    let [first, second] = corrections(on, a);
    let lr = s.rate();
    let decay = s.group.recipe.weight_decay;
    let scalars = [
        on.scalar(Scalar::Div(lr, first)),
        on.scalar(Scalar::Sqrt(second)),
        on.scalar(Scalar::Mul(lr, constant(on, decay))),
    ];
    let [b1, b2] = betas(on, a.betas);
    let [c1, c2] = [b1, b2].map(|b| rest(on, b));
    let (eps, l2) = (a.eps as f32, a.l2);
    let (mut packed, mut block) = (0, 0);
    for part in &s.group.parts {
        let moments = [StateName::Moment1, StateName::Moment2];
        let kept = moments.map(|name| s.blocks(name, packed, part.len, block));
        packed += part.len;
        block += part.len.div_ceil(BLOCK_8BIT);
        for w in windows(part.len) {
            let dims = [w.rows, w.width];
            let (m, v) = (on.empty(dims, DType::F32), on.empty(dims, DType::F32));
            for ((name, (codes, scales)), x) in moments.iter().zip(&kept).zip([&m, &v]) {
                decode_window(on, w, x, (codes, scales), *name);
            }
            let p = w.of(&run_of(&s.flat.value, part.at, part.len));
            let g = w.of(&run_of(&s.flat.grad, part.at, part.len));
            let copy = s
                .flat
                .copy
                .as_ref()
                .map(|c| w.of(&run_of(c, part.at, part.len)));
            let (coef, skip) = s.words(&dims);
            let mut outs = vec![&p, &m, &v];
            outs.extend(&copy);
            let mut ins = vec![&p, &g, &m, &v];
            ins.extend(&coef);
            ins.extend(&skip);
            let (has_coef, has_skip, has_copy) = (coef.is_some(), skip.is_some(), copy.is_some());
            on.map(&outs, &ins, &scalars, |x| {
                let (p, mut g, m, v) = (x[0], x[1], x[2], x[3]);
                if has_coef {
                    g = g * x[4];
                }
                if l2 {
                    g = g + p * decay as f32;
                }
                let kept = if l2 { p } else { p - p.scalar(2) * p };
                let m2 = m * m.step(b1) + g * g.step(c1);
                let v2 = v * v.step(b2) + g * g * g.step(c2);
                let new = kept - p.scalar(0) * m2 / (v2.sqrt() / p.scalar(1) + eps);
                let pick = |new, old| match has_skip {
                    true => x[4 + usize::from(has_coef)].choose(old, new),
                    false => new,
                };
                let new = pick(new, p);
                let mut out = vec![new, pick(m2, m), pick(v2, v)];
                if has_copy {
                    out.push(new);
                }
                out
            });
            for ((name, (codes, scales)), x) in moments.iter().zip(&kept).zip([&m, &v]) {
                encode_window(on, w, x, (codes, scales), *name);
            }
        }
    }
}

impl<'c> Step<'_, 'c> {
    /// A run of an 8-bit state that begins a block: codes `[len]` from packed element `at`, scales from packed block `block`.
    fn blocks(&self, name: StateName, at: u64, len: u64, block: u64) -> (View<'c>, View<'c>) {
        let arg = self.states + self.group.arg(name);
        let codes = self.code.arg_at(arg, at, [len], DType::U8);
        let n = len.div_ceil(BLOCK_8BIT);
        let scales = self.code.arg_at(arg + 1, 4 * block, [n], DType::F32);
        (codes, scales)
    }
}
