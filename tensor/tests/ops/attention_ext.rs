//! `attention_ext_*` against the textbook: whole rows of scores in f64, each addition alone and all together.

use super::bench::*;
use super::many::philox_word;
use crossweave_hal::DType;
use crossweave_hal::abi::op;

#[derive(Clone, Copy, Default)]
struct Att {
    b: usize,
    tq: usize,
    tk: usize,
    h: usize,
    g: usize,
    causal: bool,
    window: usize,
    cap: f64,
    dropout: f64,
    whole: [usize; 3],
    shift: i64,
    first_key: usize,
    in_row: bool,
    /// Results are f32 whatever the operands are.
    wide: bool,
    bias: bool,
    sinks: bool,
    cu_q: &'static [usize],
    cu_k: &'static [usize],
}

const D: usize = 16;

/// One weight of a query: key, score, slope of the cap, index of its bias, factor of dropout.
struct Weight {
    j: usize,
    score: f64,
    slope: f64,
    bias: usize,
    factor: f64,
}

struct In {
    q: Vec<f64>,
    k: Vec<f64>,
    bias: Vec<f64>,
    sinks: Vec<f64>,
    key: op::PhiloxDyn,
}

impl Att {
    fn q(&self, b: usize, i: usize, h: usize) -> usize {
        ((b * self.tq + i) * self.h + h) * D
    }
    fn k(&self, b: usize, j: usize, h: usize) -> usize {
        ((b * self.tk + j) * self.g + h / (self.h / self.g)) * D
    }
    fn segment(&self, b: usize, i: usize) -> Option<[usize; 4]> {
        if self.cu_q.is_empty() {
            return Some([0, self.tq, 0, self.tk]);
        }
        let n = self.cu_q.len() / self.b;
        let k = if self.cu_k.is_empty() {
            self.cu_q
        } else {
            self.cu_k
        };
        let (q, k) = (&self.cu_q[b * n..][..n], &k[b * n..][..n]);
        let at = q.windows(2).position(|s| (s[0]..s[1]).contains(&i))?;
        Some([q[at], q[at + 1], k[at], k[at + 1]])
    }
    fn weights(&self, x: &In, b: usize, h: usize, i: usize) -> Option<Vec<Weight>> {
        let [q0, q1, k0, k1] = self.segment(b, i)?.map(|v| v as i64);
        // Positions count from here, and the query stands at `at` of the keys.
        let (begin, own) = match self.in_row {
            true => ([0, 0], [self.tq as i64, self.tk as i64]),
            false => ([q0, k0], [q1 - q0, k1 - k0]),
        };
        let at = i as i64 - begin[0] + own[1] - own[0] + self.shift;
        let own = [self.h, self.tq, self.tk];
        let [heads, queries, keys]: [usize; 3] = std::array::from_fn(|d| {
            if self.whole[d] == 0 {
                own[d]
            } else {
                self.whole[d]
            }
        });
        let row = ((b * heads + h) * queries + i) * keys.div_ceil(4) * 4;
        let one = |j: usize| {
            let place = j as i64 - begin[1];
            let seen = (k0..k1).contains(&(j as i64))
                && (!self.causal || place <= at)
                && (self.window == 0 || place > at - self.window as i64);
            let dot = |e: usize| x.q[self.q(b, i, h) + e] * x.k[self.k(b, j, h) + e];
            let raw = (0..D).map(dot).sum::<f64>() / (D as f64).sqrt();
            let (mut score, mut slope) = (raw, 1.0);
            if self.cap > 0.0 {
                let t = (raw / self.cap).tanh();
                (score, slope) = (self.cap * t, 1.0 - t * t);
            }
            let bias = h * (self.tq + self.tk - 1);
            let bias = (bias as i64 + place - (i as i64 - begin[0]) + self.tq as i64 - 1) as usize;
            if self.bias && seen {
                score += x.bias[bias];
            }
            let u = f64::from(philox_word(&x.key, (row + self.first_key + j) as u64) >> 8)
                / 16_777_216.0;
            let factor = match self.dropout {
                0.0 => 1.0,
                p if u < p => 0.0,
                p => 1.0 / (1.0 - p),
            };
            seen.then_some(Weight {
                j,
                score,
                slope,
                bias,
                factor,
            })
        };
        Some((0..self.tk).filter_map(one).collect())
    }
    /// Calls `f` for every query of a segment with its weights, their probabilities, and its log-sum-exp.
    fn each(&self, x: &In, mut f: impl FnMut([usize; 3], &[Weight], &[f64], f64)) {
        for b in 0..self.b {
            for h in 0..self.h {
                for i in 0..self.tq {
                    let Some(w) = self.weights(x, b, h, i) else {
                        continue;
                    };
                    let sink = self.sinks.then(|| x.sinks[h]);
                    let all: Vec<f64> = w.iter().map(|w| w.score).chain(sink).collect();
                    let m = all.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
                    if all.is_empty() {
                        continue;
                    }
                    let lse = m + all.iter().map(|s| (s - m).exp()).sum::<f64>().ln();
                    let p: Vec<f64> = w.iter().map(|w| (w.score - lse).exp()).collect();
                    f([b, h, i], &w, &p, lse);
                }
            }
        }
    }
}

fn cases() -> Vec<Att> {
    let base = |b, tq, tk, h, g, causal| Att {
        b,
        tq,
        tk,
        h,
        g,
        causal,
        ..Att::default()
    };
    let all = |a: Att| Att {
        cap: 1.2,
        dropout: 0.3,
        bias: true,
        sinks: true,
        ..a
    };
    vec![
        Att {
            cap: 2.0,
            ..base(2, 9, 9, 2, 1, true)
        },
        Att {
            bias: true,
            ..base(2, 7, 12, 3, 3, false)
        },
        Att {
            sinks: true,
            window: 3,
            ..base(1, 9, 5, 2, 2, true)
        },
        Att {
            dropout: 0.2,
            ..base(2, 6, 11, 4, 2, false)
        },
        Att {
            dropout: 0.6,
            whole: [4, 11, 19],
            ..base(2, 8, 8, 2, 2, true)
        },
        all(base(2, 17, 17, 4, 2, true)),
        all(Att {
            cu_q: &[0, 4, 9, 1, 1, 8],
            cu_k: &[0, 7, 10, 2, 5, 11],
            ..base(2, 9, 11, 2, 1, true)
        }),
        all(Att {
            cu_q: &[0, 6, 6, 19],
            window: 5,
            ..base(1, 21, 21, 2, 2, true)
        }),
        all(base(0, 3, 3, 2, 1, true)),
        // Parts of a row: keys of the past, keys ahead, some of a row of 30.
        Att {
            shift: 8,
            window: 5,
            wide: true,
            ..base(2, 8, 8, 2, 1, true)
        },
        Att {
            shift: -9,
            ..base(1, 9, 11, 2, 2, true)
        },
        Att {
            shift: -(1 << 40),
            ..base(1, 5, 5, 1, 1, true)
        },
        Att {
            shift: 1 << 40,
            ..base(1, 5, 5, 1, 1, true)
        },
        all(Att {
            shift: 3,
            first_key: 13,
            whole: [5, 20, 30],
            wide: true,
            ..base(2, 9, 11, 2, 1, true)
        }),
        all(Att {
            shift: 4,
            first_key: 6,
            whole: [2, 9, 17],
            in_row: true,
            cu_q: &[0, 4, 9, 1, 1, 8],
            cu_k: &[0, 7, 10, 2, 5, 11],
            ..base(2, 9, 11, 2, 1, true)
        }),
        all(Att {
            shift: -2,
            cu_q: &[0, 4, 9],
            cu_k: &[0, 7, 10],
            ..base(1, 9, 11, 2, 1, true)
        }),
    ]
}

fn attention(bench: &Bench, backward: bool) {
    let mut r = Rng(9);
    for t in STORAGES {
        for c in cases() {
            let [bs, tq, tk, h, g] = [c.b, c.tq, c.tk, c.h, c.g].map(|x| x as u64);
            let (d, n) = (D as u64, tq + tk - 1);
            let (qs, ks) = ([bs, tq, h, d], [bs, tk, g, d]);
            let [q, k, v] = [&qs, &ks, &ks].map(|s| T::random(&mut r, t, s, 1.0));
            let bias = c.bias.then(|| T::random(&mut r, t, &[h, n], 1.0));
            let sinks = c.sinks.then(|| T::random(&mut r, t, &[h], 1.0));
            let values = |t: &Option<T>| t.as_ref().map_or(vec![], T::values);
            let x = In {
                q: q.values(),
                k: k.values(),
                bias: values(&bias),
                sinks: values(&sinks),
                key: op::PhiloxDyn {
                    seed: 0x1234_5678_9abc,
                    offset: 1 << 33,
                    stream: 77 << 20,
                    ..Default::default()
                },
            };
            let results = if c.wide { DType::F32 } else { t };
            let vv = v.values();
            let mut out = vec![0.0; x.q.len()];
            let mut lse = vec![f64::NEG_INFINITY; (bs * h * tq) as usize];
            c.each(&x, |[b, h, i], w, p, l| {
                lse[(b * c.h + h) * c.tq + i] = l;
                for (w, p) in w.iter().zip(p) {
                    for e in 0..D {
                        out[c.q(b, i, h) + e] += p * w.factor * vv[c.k(b, w.j, h) + e];
                    }
                }
            });
            let flag = |set: bool, bit: u32| if set { bit } else { 0 };
            let params = op::AttentionExtParams {
                flags: flag(c.causal, op::FLAG_CAUSAL) | flag(c.in_row, op::FLAG_IN_ROW),
                window: c.window as i64,
                cap: c.cap,
                dropout: c.dropout,
                heads: c.whole[0] as i64,
                queries: c.whole[1] as i64,
                keys: c.whole[2] as i64,
                shift: c.shift,
                first_key: c.first_key as i64,
                ..Default::default()
            };
            let cu = |cu: &[usize]| match cu.is_empty() {
                true => T::absent(),
                false => {
                    let v: Vec<f64> = cu.iter().map(|x| *x as f64).collect();
                    T::new(DType::I32, &[bs, cu.len() as u64 / bs], &v)
                }
            };
            let or = |t: Option<T>| t.unwrap_or_else(T::absent);
            let tail = [or(bias), or(sinks), cu(c.cu_q), cu(c.cu_k)];
            let ls = [bs, h, tq];
            if !backward {
                let mut o = vec![T::poison(results, &qs), T::poison(DType::F32, &ls), q, k, v];
                o.extend(tail);
                let want = [
                    (0, out, 3.0 * unit_of(t) + 1e-5),
                    (1, lse, unit_of(t) + 1e-5),
                ];
                let (p, d) = (params.as_bytes(), x.key.as_bytes());
                bench.check(
                    "attention_ext_fwd",
                    op::ATTENTION_EXT_FWD,
                    p,
                    d,
                    &o,
                    &[],
                    &want,
                );
                continue;
            }
            let (o, l) = (T::new(results, &qs, &out), T::new(DType::F32, &ls, &lse));
            let dout = T::random(&mut r, t, &qs, 1.0);
            let (ov, dov, kv) = (o.values(), dout.values(), x.k.clone());
            let mut dq = vec![0.0; x.q.len()];
            let [mut dk, mut dv] = [(); 2].map(|_| vec![0.0; kv.len()]);
            let mut had = |on: bool, shape: &[u64]| {
                let t = on.then(|| T::random(&mut r, DType::F32, shape, 1.0));
                (t.as_ref().map_or(vec![], T::values), or(t))
            };
            let (mut dbias, bias_was) = had(c.bias, &[h, n]);
            let (mut dsinks, sinks_were) = had(c.sinks, &[h]);
            c.each(&x, |[b, h, i], w, p, lse| {
                let a = c.q(b, i, h);
                let delta: f64 = (0..D).map(|e| dov[a + e] * ov[a + e]).sum();
                if c.sinks {
                    dsinks[h] -= (x.sinks[h] - lse).exp() * delta;
                }
                for (w, p) in w.iter().zip(p) {
                    let n = c.k(b, w.j, h);
                    let dp: f64 = (0..D).map(|e| dov[a + e] * vv[n + e]).sum();
                    let ds = p * (dp * w.factor - delta);
                    if c.bias {
                        dbias[w.bias] += ds;
                    }
                    let ds = ds * w.slope / (D as f64).sqrt();
                    for e in 0..D {
                        dv[n + e] += p * w.factor * dov[a + e];
                        dq[a + e] += ds * kv[n + e];
                        dk[n + e] += ds * x.q[a + e];
                    }
                }
            });
            let mut ops = vec![
                T::poison(results, &qs),
                T::poison(results, &ks),
                T::poison(results, &ks),
                bias_was,
                sinks_were,
                dout,
                o,
                q,
                k,
                v,
                l,
            ];
            ops.extend(tail);
            let eps = 4.0 * unit_of(t) + 2e-5;
            let mut want = vec![(0, dq, eps), (1, dk, eps), (2, dv, eps)];
            want.extend(c.bias.then_some((3, dbias, eps)));
            want.extend(c.sinks.then_some((4, dsinks, eps)));
            let (p, d) = (params.as_bytes(), x.key.as_bytes());
            bench.check(
                "attention_ext_bwd",
                op::ATTENTION_EXT_BWD,
                p,
                d,
                &ops,
                &[],
                &want,
            );
        }
    }
}
pub fn attention_ext_fwd(b: &Bench) {
    attention(b, false);
}
pub fn attention_ext_bwd(b: &Bench) {
    attention(b, true);
}
