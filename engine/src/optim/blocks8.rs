//! AdamW with moments in 8 bits: blocks of 256 elements share a scale, codes are those of a dynamic map (Dettmers et al., bitsandbytes).
//!
//! The map has seven decades below 1. Decade `i` covers (10^(i-7), 10^(i-6)] with 2^i codes for signed moments and 2^(i+1) for unsigned
//! ones, evenly spread; 0 and 1 have codes of their own. One difference from bitsandbytes: -1 has a code too, in place of the smallest
//! negative one, so that the largest element of a block is exact whatever its sign. Decoding and encoding again then changes
//! nothing, and a checkpoint of f32 values gives the same codes back.

use super::adam::op_step;
use super::map::{everywhere, map, reduce};
use super::{Flat, Group, StepParams, run_of};
use crossweave_hal::DType;
use crossweave_hal::abi::op;
use crossweave_tensor::{Ex, Result, Run, Tensor};
use crossweave_zero::optim::{Adam, BLOCK_8BIT, StateName};

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

/// Code of 0.
pub(super) fn code_of_zero(name: StateName) -> u64 {
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
    /// Elements of a flat tensor as `[rows, width]`.
    fn of(self, t: &Tensor) -> Tensor {
        t.narrow(0, self.at, self.len())
            .view([self.rows, self.width])
    }
    /// Scales of its blocks as `[rows, 1]`.
    fn scales(self, t: &Tensor) -> Tensor {
        t.narrow(0, self.at / BLOCK_8BIT, self.rows)
            .view([self.rows, 1])
    }
    fn spread(self, scales: &Tensor) -> Tensor {
        scales.strided([self.rows, self.width], &[1, 0], 0)
    }
}

fn cast(run: &Run<'_>, dst: &Tensor, src: &Tensor) -> Result<()> {
    let p = op::NoParams::default();
    run.launch(op::CAST, &[Some(dst), Some(src)], p.as_bytes(), &[])
}

/// `out = value of codes`; codes pass through bf16, which holds 0 to 255 exactly.
fn decode(
    run: &Run<'_>,
    w: Window,
    out: &Tensor,
    codes_of: &Tensor,
    scales: &Tensor,
    name: StateName,
) -> Result<()> {
    let wide = run.empty([w.rows, w.width], DType::Bf16)?;
    cast(run, &wide, &w.of(codes_of))?;
    let map8 = codes(name);
    let scales = w.spread(&w.scales(scales));
    map(run, &[out], &[&wide, &scales], &[], |x| {
        vec![map8.decode(x[0]) * x[1]]
    })
}

/// Scales and codes of `x [rows, width]`.
fn encode(
    run: &Run<'_>,
    w: Window,
    x: &Tensor,
    codes_of: &Tensor,
    scales: &Tensor,
    name: StateName,
) -> Result<()> {
    let map8 = codes(name);
    let scale = w.scales(scales);
    reduce(run, op::reduce::MAX, 0b10, &scale, x, false)?;
    if map8.signed {
        let low = run.empty([w.rows, 1], DType::F32)?;
        reduce(run, op::reduce::MIN, 0b10, &low, x, false)?;
        map(run, &[&scale], &[&scale, &low], &[], |v| {
            vec![v[0].max(-v[1]).max(v[0].lit(TINY))]
        })?;
    } else {
        map(run, &[&scale], &[&scale], &[], |v| {
            vec![v[0].max(v[0].lit(TINY))]
        })?;
    }
    let wide = run.empty([w.rows, w.width], DType::Bf16)?;
    map(run, &[&wide], &[x, &w.spread(&scale)], &[], |v| {
        vec![map8.encode(v[0], v[1])]
    })?;
    cast(run, &w.of(codes_of), &wide)
}

/// All of a part's codes as values.
pub(super) fn decode_all(
    run: &Run<'_>,
    out: &Tensor,
    codes: &Tensor,
    scales: &Tensor,
    name: StateName,
) -> Result<()> {
    windows(codes.numel())
        .into_iter()
        .try_for_each(|w| decode(run, w, &w.of(out), codes, scales, name))
}

/// All of a part's values as codes.
pub(super) fn encode_all(
    run: &Run<'_>,
    values: &Tensor,
    codes: &Tensor,
    scales: &Tensor,
    name: StateName,
) -> Result<()> {
    windows(codes.numel())
        .into_iter()
        .try_for_each(|w| encode(run, w, &w.of(values), codes, scales, name))
}

pub(super) fn update(
    run: &Run<'_>,
    group: &Group,
    flat: &Flat,
    k: &StepParams<'_>,
    a: &Adam,
    lr: f64,
) -> Result<()> {
    let step = op_step(a, k.step) as f64;
    let bc = |beta: f64| 1.0 - beta.powf(step);
    let decay = group.recipe.weight_decay;
    let scalars = [lr / bc(a.betas[0]), bc(a.betas[1]).sqrt(), lr * decay].map(|v| v as f32);
    let ([b1, b2], eps, l2) = (a.betas, a.eps as f32, a.l2);
    let (mut packed, mut block) = (0, 0);
    for part in &group.parts {
        let moments = [StateName::Moment1, StateName::Moment2];
        let mut kept = vec![];
        for name in moments {
            kept.push(group.states.blocks(name, packed, part.len, block)?);
        }
        packed += part.len;
        block += part.len.div_ceil(BLOCK_8BIT);
        for w in windows(part.len) {
            let dims = [w.rows, w.width];
            let (m, v) = (run.empty(dims, DType::F32)?, run.empty(dims, DType::F32)?);
            for ((name, (codes, scales)), x) in moments.iter().zip(&kept).zip([&m, &v]) {
                decode(run, w, x, codes, scales, *name)?;
            }
            let here = |t: &Tensor| w.of(&run_of(t, part.at, part.len));
            let (p, g) = (here(&flat.value), here(&flat.grad));
            let copy = flat.copy.as_ref().map(here);
            let coef = k.factor.as_ref().map(|c| everywhere(c, &dims));
            let skip = k.skip.as_ref().map(|s| everywhere(s, &dims));
            let mut outs = vec![&p, &m, &v];
            outs.extend(&copy);
            let mut ins = vec![&p, &g, &m, &v];
            ins.extend(&coef);
            ins.extend(&skip);
            let (has_coef, has_skip, has_copy) = (coef.is_some(), skip.is_some(), copy.is_some());
            map(run, &outs, &ins, &scalars, |x| {
                let (p, mut g, m, v) = (x[0], x[1], x[2], x[3]);
                if has_coef {
                    g = g * x[4];
                }
                if l2 {
                    g = g + p * decay as f32;
                }
                let kept = if l2 { p } else { p - p.scalar(2) * p };
                let m2 = m * b1 as f32 + g * (1.0 - b1) as f32;
                let v2 = v * b2 as f32 + g * g * (1.0 - b2) as f32;
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
            })?;
            for ((name, (codes, scales)), x) in moments.iter().zip(&kept).zip([&m, &v]) {
                encode(run, w, x, codes, scales, *name)?;
            }
        }
    }
    Ok(())
}
