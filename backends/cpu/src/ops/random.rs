//! philox and dropout: the generator of the op table, word for word, many counters at a time.

use super::view::*;
use crate::kernel::{Kernel, Launch};
use crate::simd::clones;
use crossweave_abi::op;
use crossweave_plugin::{DType, Dyn, OpRequest, Plan, Result};

type Prepared = Result<(Box<dyn Kernel>, Plan)>;

/// Counters of a block: each gives four words.
const COUNTERS: usize = BLOCK / 4;

/// Philox4x32-10 of `N` counters in the given stream: word `w` of counter `counter(i)` at `out[w][i]`.
#[inline(always)]
pub(super) fn philox_of<const N: usize>(
    seed: u64,
    stream: u64,
    counter: impl Fn(usize) -> u64,
    out: &mut [[u32; N]; 4],
) {
    let (mut a, mut b) = ([0u32; N], [0u32; N]);
    let (mut c, mut d) = ([stream as u32; N], [(stream >> 32) as u32; N]);
    for i in 0..N {
        let n = counter(i);
        a[i] = n as u32;
        b[i] = (n >> 32) as u32;
    }
    let (mut k0, mut k1) = (seed as u32, (seed >> 32) as u32);
    for _ in 0..10 {
        for i in 0..N {
            let p = a[i] as u64 * 0xD251_1F53;
            let q = c[i] as u64 * 0xCD9E_8D57;
            let x = (q >> 32) as u32 ^ b[i] ^ k0;
            let y = (p >> 32) as u32 ^ d[i] ^ k1;
            (a[i], b[i], c[i], d[i]) = (x, q as u32, y, p as u32);
        }
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    *out = [a, b, c, d];
}

clones! {
    /// Philox4x32-10 of counters `first, first + 1, …` in the given stream: word `w` of counter `i` at `out[4 i + w]`.
    fn words(first: u64, stream: u64, seed: u64, out: &mut [u32; BLOCK]) {
        let mut lanes = [[0u32; COUNTERS]; 4];
        philox_of(seed, stream, |i| first.wrapping_add(i as u64), &mut lanes);
        for i in 0..COUNTERS {
            for lane in 0..4 { out[4 * i + lane] = lanes[lane][i]; }
        }
    }
    fn uniform(w: &[u32], lo: f32, span: f32, y: &mut [f32]) {
        // 24 bits convert exactly, as signed integers too (which vectorises everywhere).
        for (y, w) in y.iter_mut().zip(w) { *y = lo + span * ((*w >> 8) as i32 as f32 * (1.0 / 16_777_216.0)); }
    }
    fn drop_some(w: &[u32], threshold: u32, keep: f32, x: &mut [f32]) {
        for (x, w) in x.iter_mut().zip(w) {
            let kept = *x / keep;
            *x = if (*w >> 8) >= threshold { kept } else { 0.0 };
        }
    }
    fn grow(r: &[f32], y: &mut [f32]) { for (y, r) in y.iter_mut().zip(r) { *y += *r; } }
}

/// Box-Muller over word pairs, in f64, rounded once; result `lo + hi z`.
fn normal(w: &[u32], lo: f32, hi: f32, y: &mut [f32]) {
    const U: f64 = 1.0 / 16_777_216.0;
    for (y, w) in y.chunks_mut(2).zip(w.chunks(2)) {
        let u1 = ((w[0] >> 8) as f64 + 1.0) * U;
        let u2 = (w[1] >> 8) as f64 * U;
        let r = (-2.0 * u1.ln()).sqrt();
        let (s, c) = (2.0 * std::f64::consts::PI * u2).sin_cos();
        y[0] = lo + hi * ((r * c) as f32);
        if let Some(y) = y.get_mut(1) {
            *y = lo + hi * ((r * s) as f32);
        }
    }
}

struct Philox {
    dst: View,
    kind: u32,
    lo: f32,
    hi: f32,
}

/// `philox`.
pub fn philox(o: &OpRequest<'_>, _: usize) -> Prepared {
    arity(o, 1..=1)?;
    let p = o.params::<op::PhiloxParams>()?;
    let dtypes: &[DType] = match p.kind {
        op::philox::BITS => &[DType::U32],
        op::philox::UNIFORM | op::philox::NORMAL => FLOATS,
        k => return refuse(o, format!("kind {k} is unknown")),
    };
    let k = Philox {
        dst: output(o, 0, dtypes)?,
        kind: p.kind,
        lo: p.lo as f32,
        hi: p.hi as f32,
    };
    Ok((Box::new(k), plan(o, 0)))
}

impl Kernel for Philox {
    fn check(&self, dynamic: &[u8]) -> Result<()> {
        Dyn(dynamic).read::<op::PhiloxDyn>().map(|_| ())
    }

    unsafe fn run(&self, l: &Launch<'_>) {
        let d = Dyn(l.dynamic).read::<op::PhiloxDyn>().unwrap_or_default();
        let y = Ptr(l.operands[0]);
        chunks(l.team, self.dst.total, CHUNK, &|start, len| {
            let (mut w, mut b) = ([0u32; BLOCK], [0f32; BLOCK]);
            blocks(start, len, |at, n| {
                words(
                    d.offset.wrapping_add(at as u64 / 4),
                    d.stream,
                    d.seed,
                    &mut w,
                );
                // SAFETY: in range by the chunking (whose starts are multiples of 4); tasks write disjoint elements.
                unsafe {
                    match self.kind {
                        op::philox::BITS => y.slice_mut(at, n).copy_from_slice(&w[..n]),
                        op::philox::UNIFORM => {
                            uniform(&w[..n], self.lo, self.hi - self.lo, &mut b[..n]);
                            self.dst.store(y, at, &b[..n]);
                        }
                        _ => {
                            // A pair may straddle the end: whole pairs are made, n are kept.
                            normal(&w[..n.next_multiple_of(2)], self.lo, self.hi, &mut b[..n]);
                            self.dst.store(y, at, &b[..n]);
                        }
                    }
                }
            });
        });
    }
}

struct Dropout {
    y: View,
    x: View,
    residual: Option<View>,
    p: f64,
}

/// `dropout`.
pub fn dropout(o: &OpRequest<'_>, _: usize) -> Prepared {
    arity(o, 2..=3)?;
    let p = o.params::<op::DropoutParams>()?;
    flags(o, p.flags, 0)?;
    if !(0.0..=1.0).contains(&p.p) {
        return invalid(o, format!("p = {} is not a probability", p.p));
    }
    let (y, x) = (output(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
    shape(o, 1, &x, &y.shape)?;
    let residual = optional(o, 2, FLOATS)?;
    if let Some(r) = &residual {
        shape(o, 2, r, &y.shape)?;
    }
    let k = Dropout {
        y,
        x,
        residual,
        p: p.p,
    };
    Ok((Box::new(k), plan(o, 0)))
}

impl Kernel for Dropout {
    fn check(&self, dynamic: &[u8]) -> Result<()> {
        Dyn(dynamic).read::<op::PhiloxDyn>().map(|_| ())
    }

    unsafe fn run(&self, l: &Launch<'_>) {
        let d = Dyn(l.dynamic).read::<op::PhiloxDyn>().unwrap_or_default();
        let args = Args::of(l);
        let (y, x) = (args.at(0), args.at(1));
        // keep(e) = word >> 8 >= p 2^24 over the reals.
        let threshold = (self.p * 16_777_216.0).ceil() as u32;
        let keep = (1.0 - self.p) as f32;
        chunks(l.team, self.y.total, CHUNK, &|start, len| {
            let (mut w, mut b, mut r) = ([0u32; BLOCK], [0f32; BLOCK], [0f32; BLOCK]);
            blocks(start, len, |at, n| {
                words(
                    d.offset.wrapping_add(at as u64 / 4),
                    d.stream,
                    d.seed,
                    &mut w,
                );
                // SAFETY: in range by the chunking; a block is read before it is written, by one task.
                unsafe {
                    self.x.load(x, at, &mut b[..n]);
                    drop_some(&w[..n], threshold, keep, &mut b[..n]);
                    if let Some(v) = &self.residual {
                        grow(v.get(args.at(2), at, n, &mut r), &mut b[..n]);
                    }
                    self.y.store(y, at, &b[..n]);
                }
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crossweave_plugin::Code;

    /// The op table's text, one block at a time.
    fn block(c: u64, stream: u64, seed: u64) -> [u32; 4] {
        let mut x = [
            c as u32,
            (c >> 32) as u32,
            stream as u32,
            (stream >> 32) as u32,
        ];
        let mut k = [seed as u32, (seed >> 32) as u32];
        for _ in 0..10 {
            let p = x[0] as u64 * 0xD2511F53;
            let q = x[2] as u64 * 0xCD9E8D57;
            x = [
                (q >> 32) as u32 ^ x[1] ^ k[0],
                q as u32,
                (p >> 32) as u32 ^ x[3] ^ k[1],
                p as u32,
            ];
            k = [k[0].wrapping_add(0x9E3779B9), k[1].wrapping_add(0xBB67AE85)];
        }
        x
    }

    const DYN: op::PhiloxDyn = op::PhiloxDyn {
        size: 32,
        flags: 0,
        seed: 0x1234_5678_9abc_def0,
        // The counter's low half overflows inside the test's range.
        offset: 0xffff_fff0,
        stream: 0x0fed_cba9_8765_4321,
    };

    fn word(e: usize) -> u32 {
        block(DYN.offset.wrapping_add(e as u64 / 4), DYN.stream, DYN.seed)[e % 4]
    }

    #[test]
    fn bits_uniform_normal_by_the_text() {
        for n in SIZES {
            let p = |kind, lo, hi| op::PhiloxParams {
                kind,
                lo,
                hi,
                ..Default::default()
            };
            let mut ops = [Tensor::poison(DType::U32, &[n])];
            run(
                op::PHILOX,
                p(op::philox::BITS, 0.0, 0.0).as_bytes(),
                DYN.as_bytes(),
                &mut ops,
            );
            assert!((0..n).all(|e| ops[0].words()[e] == word(e)));
            for t in STORAGES {
                let mut ops = [Tensor::poison(t, &[n])];
                run(
                    op::PHILOX,
                    p(op::philox::UNIFORM, -0.5, 1.5).as_bytes(),
                    DYN.as_bytes(),
                    &mut ops,
                );
                let want: Vec<f32> = (0..n)
                    .map(|e| -0.5 + 2.0 * ((word(e) >> 8) as f32 * 2f32.powi(-24)))
                    .collect();
                let want =
                    Tensor::new(t, &[n], &want.iter().map(|v| *v as f64).collect::<Vec<_>>());
                assert!(ops[0].data == want.data, "uniform {t:?} {n}");
                let mut ops = [Tensor::poison(t, &[n])];
                run(
                    op::PHILOX,
                    p(op::philox::NORMAL, 0.25, 0.02).as_bytes(),
                    DYN.as_bytes(),
                    &mut ops,
                );
                let want: Vec<f64> = (0..n)
                    .map(|e| {
                        let u1 = ((word(e & !1) >> 8) as f64 + 1.0) * 2f64.powi(-24);
                        let u2 = (word(e | 1) >> 8) as f64 * 2f64.powi(-24);
                        let r = (-2.0 * u1.ln()).sqrt();
                        let a = 2.0 * std::f64::consts::PI * u2;
                        let z = if e % 2 == 0 { r * a.cos() } else { r * a.sin() };
                        (0.25f32 + 0.02f32 * z as f32) as f64
                    })
                    .collect();
                assert!(
                    ops[0].data == Tensor::new(t, &[n], &want).data,
                    "normal {t:?} {n}"
                );
            }
        }
    }

    #[test]
    fn dropout_keeps_by_the_same_words_and_adds_the_residual() {
        let mut rng = Rng(22);
        for p in [0.0, 0.1, 0.5, 1.0] {
            let params = op::DropoutParams {
                p,
                ..Default::default()
            };
            for t in STORAGES {
                for n in SIZES {
                    let x = Tensor::new(t, &[n], &rng.floats(n, 1.0));
                    let r = Tensor::new(t, &[n], &rng.floats(n, 1.0));
                    let (xv, rv) = (x.values(), r.values());
                    for residual in [false, true] {
                        let want: Vec<f64> = (0..n)
                            .map(|e| {
                                let keep = (word(e) >> 8) as f64 * 2f64.powi(-24) >= p;
                                let v = if keep { xv[e] / (1.0 - p) } else { 0.0 };
                                v + if residual { rv[e] } else { 0.0 }
                            })
                            .collect();
                        let third = if residual {
                            r.clone()
                        } else {
                            Tensor::absent()
                        };
                        let mut ops = [x.clone(), x.clone(), third];
                        run_aliased(
                            op::DROPOUT,
                            params.as_bytes(),
                            DYN.as_bytes(),
                            &mut ops,
                            &[(1, 0)],
                        );
                        close("dropout", &ops[0].values(), &want, |i| {
                            rounding(t, want[i], 1.0) + 2e-7
                        });
                    }
                }
            }
        }
        let bad = op::DropoutParams {
            p: 1.5,
            ..Default::default()
        };
        let x = || Tensor::poison(DType::F32, &[3]);
        assert_eq!(
            refusal(op::DROPOUT, bad.as_bytes(), &[x(), x()]),
            Some(Code::Invalid)
        );
    }

    #[test]
    fn known_answers_of_philox4x32_10() {
        // (counter low, counter high = stream, key, words) from the reference implementation's test vectors.
        for (c, s, k, want) in [
            (
                0,
                0,
                0,
                [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
            ),
            (
                u64::MAX,
                u64::MAX,
                u64::MAX,
                [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
            ),
            (
                0x85a3_08d3_243f_6a88,
                0x0370_7344_1319_8a2e,
                0x299f_31d0_a409_3822,
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1u32],
            ),
        ] {
            let mut out = [0u32; BLOCK];
            words(c, s, k, &mut out);
            assert_eq!(out[..4], want);
        }
    }
}
