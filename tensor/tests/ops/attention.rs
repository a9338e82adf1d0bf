//! Attention against the textbook: whole rows of scores, in f64.

use super::bench::*;
use crossweave_hal::DType;
use crossweave_hal::abi::op;

struct Att {
    b: usize,
    tq: usize,
    tk: usize,
    h: usize,
    g: usize,
    d: usize,
    causal: bool,
    window: usize,
    /// Cumulative lengths row after row, where sequences are packed.
    cu: &'static [usize],
}

impl Att {
    fn sees(&self, b: usize, i: usize, j: usize) -> bool {
        let together = |s: &[usize]| (s[0]..s[1]).contains(&i) && (s[0]..s[1]).contains(&j);
        let row = self.cu.len() / self.b.max(1);
        if !self.cu.is_empty() && !self.cu[b * row..][..row].windows(2).any(together) {
            return false;
        }
        let at = i as i64 + self.tk as i64 - self.tq as i64;
        (!self.causal || j as i64 <= at) && (self.window == 0 || j as i64 > at - self.window as i64)
    }
    fn q(&self, b: usize, i: usize, h: usize) -> usize {
        ((b * self.tq + i) * self.h + h) * self.d
    }
    fn k(&self, b: usize, j: usize, h: usize) -> usize {
        ((b * self.tk + j) * self.g + h / (self.h / self.g)) * self.d
    }
    fn scale(&self) -> f64 {
        1.0 / (self.d as f64).sqrt()
    }
    /// Calls `f(b, h, i, probabilities over j, log-sum-exp)`.
    fn each(&self, q: &[f64], k: &[f64], mut f: impl FnMut(usize, usize, usize, &[f64], f64)) {
        for b in 0..self.b {
            for h in 0..self.h {
                for i in 0..self.tq {
                    let s: Vec<f64> = (0..self.tk)
                        .map(|j| {
                            let (a, c) = (self.q(b, i, h), self.k(b, j, h));
                            let dot: f64 = (0..self.d).map(|e| q[a + e] * k[c + e]).sum();
                            if self.sees(b, i, j) {
                                dot * self.scale()
                            } else {
                                f64::NEG_INFINITY
                            }
                        })
                        .collect();
                    let m = s.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
                    if m == f64::NEG_INFINITY {
                        f(b, h, i, &vec![0.0; self.tk], m);
                        continue;
                    }
                    let sum: f64 = s.iter().map(|x| (x - m).exp()).sum();
                    let p: Vec<f64> = s.iter().map(|x| (x - m).exp() / sum).collect();
                    f(b, h, i, &p, m + sum.ln());
                }
            }
        }
    }
}

/// Segments of any lengths, heads of any size, every mask.
fn drawn(r: &mut Rng) -> Att {
    let mut draw = |from: u64, to: u64| (from + r.below(to - from + 1)) as usize;
    let (b, t, groups) = (draw(1, 2), draw(1, 90), draw(1, 3));
    let mut cu = vec![];
    for _ in 0..b {
        // One in three begins behind the begin, one in three ends before the end.
        let first = if draw(0, 2) == 0 {
            draw(0, t as u64)
        } else {
            0
        };
        let last = if draw(0, 2) == 0 {
            draw(first as u64, t as u64)
        } else {
            t
        };
        let mut row: Vec<usize> = (0..5).map(|_| draw(first as u64, last as u64)).collect();
        row.extend([first, last]);
        row.sort_unstable();
        cu.extend(row);
    }
    let g = draw(1, 2);
    Att {
        b,
        tq: t,
        tk: t,
        h: g * groups,
        g,
        d: [16, 24, 40, 64, 80, 128][draw(0, 5)],
        causal: draw(0, 1) == 0,
        window: if draw(0, 2) == 0 {
            draw(1, t as u64)
        } else {
            0
        },
        cu: cu.leak(),
    }
}

fn attention(bench: &Bench, backward: bool, packed: bool) {
    let mut r = Rng(5);
    let base = |b, tq, tk, h, g, d| Att {
        b,
        tq,
        tk,
        h,
        g,
        d,
        causal: true,
        window: 0,
        cu: &[],
    };
    let of = |cu, t, h, g, d| Att {
        cu,
        ..base(1, t, t, h, g, d)
    };
    let mut segments = vec![
        of(&[0, 5], 5, 2, 1, 8),
        // Empty segments, and positions of none on both sides.
        of(&[1, 4, 4, 11, 11], 13, 4, 2, 5),
        Att {
            causal: false,
            ..of(&[0, 1, 9, 17], 17, 2, 2, 16)
        },
        Att {
            window: 3,
            ..of(&[0, 6, 20], 20, 3, 1, 32)
        },
        of(&[0, 33, 70], 70, 2, 1, 64),
        Att {
            b: 2,
            ..of(&[0, 3, 19, 8, 8, 17], 19, 4, 2, 8)
        },
        of(&[0], 3, 1, 1, 4),
        of(&[0, 0], 0, 1, 1, 4),
    ];
    segments.extend((0..12).map(|_| drawn(&mut r)));
    let whole = [
        base(0, 3, 3, 2, 1, 4),
        base(1, 1, 1, 1, 1, 1),
        base(2, 5, 5, 2, 2, 8),
        Att {
            causal: false,
            ..base(1, 3, 9, 4, 2, 16)
        },
        base(2, 4, 7, 6, 2, 5),
        Att {
            window: 3,
            ..base(1, 17, 17, 3, 1, 32)
        },
        Att {
            window: 2,
            causal: false,
            ..base(1, 6, 6, 2, 1, 4)
        },
        // More queries than keys: the first ones see nothing.
        base(1, 6, 3, 2, 2, 8),
        base(1, 70, 70, 2, 1, 64),
    ];
    let cases = if packed { &segments[..] } else { &whole[..] };
    let (fwd, bwd) = match packed {
        true => (op::ATTENTION_VARLEN_FWD, op::ATTENTION_VARLEN_BWD),
        false => (op::ATTENTION_FWD, op::ATTENTION_BWD),
    };
    for t in STORAGES {
        for c in cases {
            let (bs, tq, tk, h, g, d) = (
                c.b as u64,
                c.tq as u64,
                c.tk as u64,
                c.h as u64,
                c.g as u64,
                c.d as u64,
            );
            let (qs, ks) = ([bs, tq, h, d], [bs, tk, g, d]);
            // Slices of one fused matrix: rows are wider than the heads.
            let wide = |t: u64, heads: u64| {
                let row = (heads * d + 5) as i64;
                [t as i64 * row, row, d as i64, 1]
            };
            let (qw, kw) = (wide(tq, h), wide(tk, g));
            let mut make = |shape: &[u64; 4], stride: &[i64; 4]| {
                let v = r.floats(shape.iter().product(), 1.0);
                T::strided(t, shape, stride, &v)
            };
            let (q, k, v) = (make(&qs, &qw), make(&ks, &kw), make(&ks, &kw));
            let (qv, kv, vv) = (q.values(), k.values(), v.values());
            let mut out = vec![0.0; qv.len()];
            let mut lse = vec![0.0; (bs * h * tq) as usize];
            c.each(&qv, &kv, |b, h, i, p, l| {
                lse[(b * c.h + h) * c.tq + i] = l;
                for (j, p) in p.iter().enumerate() {
                    for e in 0..c.d {
                        out[c.q(b, i, h) + e] += p * vv[c.k(b, j, h) + e];
                    }
                }
            });
            let p = op::AttentionParams {
                flags: if c.causal { op::FLAG_CAUSAL } else { 0 },
                window: c.window as i64,
                ..Default::default()
            };
            let lengths: Vec<f64> = c.cu.iter().map(|x| *x as f64).collect();
            let n = lengths.len() as u64 / bs.max(1);
            let lengths = T::new(DType::I32, &[bs, n], &lengths);
            let lengths = packed.then_some(lengths);
            if !backward {
                let mut o = vec![
                    T::poison(t, &qs),
                    T::poison(DType::F32, &[bs, h, tq]),
                    q,
                    k,
                    v,
                ];
                o.extend(lengths);
                // 16-bit kernels keep their weights in 16 bit between the two products.
                let want = [
                    (0, out, 2.0 * unit_of(t) + 1e-5),
                    (1, lse, unit_of(t) + 1e-5),
                ];
                bench.check(
                    if packed {
                        "attention_varlen_fwd"
                    } else {
                        "attention_fwd"
                    },
                    fwd,
                    p.as_bytes(),
                    &[],
                    &o,
                    &[],
                    &want,
                );
                continue;
            }
            let (o, l) = (T::new(t, &qs, &out), T::new(DType::F32, &[bs, h, tq], &lse));
            let dout = make(&qs, &qw);
            let (ov, dov) = (o.values(), dout.values());
            let (mut dq, mut dk, mut dv) = (
                vec![0.0; qv.len()],
                vec![0.0; kv.len()],
                vec![0.0; kv.len()],
            );
            c.each(&qv, &kv, |b, h, i, p, _| {
                let a = c.q(b, i, h);
                let delta: f64 = (0..c.d).map(|e| dov[a + e] * ov[a + e]).sum();
                for (j, p) in p.iter().enumerate() {
                    let n = c.k(b, j, h);
                    let dp: f64 = (0..c.d).map(|e| dov[a + e] * vv[n + e]).sum();
                    let ds = p * (dp - delta) * c.scale();
                    for e in 0..c.d {
                        dv[n + e] += p * dov[a + e];
                        dq[a + e] += ds * kv[n + e];
                        dk[n + e] += ds * qv[a + e];
                    }
                }
            });
            let mut ops = vec![
                T::poison_strided(t, &qs, &qw),
                T::poison_strided(t, &ks, &kw),
                T::poison_strided(t, &ks, &kw),
                dout,
                o,
                q,
                k,
                v,
                l,
            ];
            ops.extend(lengths);
            let eps = 3.0 * unit_of(t) + 2e-5;
            let want = [(0, dq, eps), (1, dk, eps), (2, dv, eps)];
            bench.check(
                if packed {
                    "attention_varlen_bwd"
                } else {
                    "attention_bwd"
                },
                bwd,
                p.as_bytes(),
                &[],
                &ops,
                &[],
                &want,
            );
        }
    }
}
pub fn attention_fwd(b: &Bench) {
    attention(b, false, false);
}
pub fn attention_bwd(b: &Bench) {
    attention(b, true, false);
}
pub fn attention_varlen_fwd(b: &Bench) {
    attention(b, false, true);
}
pub fn attention_varlen_bwd(b: &Bench) {
    attention(b, true, true);
}
