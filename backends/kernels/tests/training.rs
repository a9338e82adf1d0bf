//! Norms, softmax, cross-entropy, rope, products and attention in emulation, against the CPU back end.

use crate::common;
use common::*;
use crossweave_abi::DType::{self, *};
use crossweave_abi::Layout;
use crossweave_abi::op::{self, *};

const FLOATS: [DType; 3] = [F32, Bf16, F16];

fn case(name: String, id: u32, params: &[u8], operands: Vec<Tensor>, flat: f64) -> Case {
    Case {
        name,
        id,
        params: params.to_vec(),
        dynamic: Vec::new(),
        operands,
        alias: Vec::new(),
        relative: 4e-6,
        flat,
    }
}

#[test]
fn norms() {
    let mut rng = Rng(1);
    let mut cases = Vec::new();
    let p = NormParams {
        eps: 1e-5,
        ..Default::default()
    };
    for t in FLOATS {
        // A row in registers once, several times, and not at all; more rows than partial sums have blocks.
        let shapes = [
            (1u64, 1u64),
            (3, 7),
            (5, 33),
            (2, 1000),
            (3, 4099),
            (2, 17000),
            (2, 33000),
            (2100, 9),
        ];
        for (k, (n, d)) in shapes.into_iter().enumerate() {
            // Each storage takes the long ones in turn.
            if (d > 4000 || n > 2000) && FLOATS[k % 3] != t {
                continue;
            }
            let x = Tensor::strided(t, &[n, d], &[d as i64 + 3, 1], || rng.unit() + 3.0);
            let w = Tensor::random(&mut rng, if k % 2 == 0 { t } else { F32 }, &[d], 2.0).skewed(1);
            let b = Tensor::random(&mut rng, t, &[d], 2.0);
            let y = || Tensor::poison(t, &[n, d]);
            let stat = || Tensor::poison(F32, &[n]);
            let slack = if d == 1 { 1e-3 } else { 2e-5 };
            for b in [b, ABSENT] {
                cases.push(case(
                    format!("layer_norm {t:?} {n}x{d}"),
                    op::LAYER_NORM_FWD,
                    p.as_bytes(),
                    vec![y(), stat(), stat(), x.clone(), w.clone(), b],
                    slack,
                ));
            }
            cases.push(case(
                format!("rms_norm {t:?} {n}x{d}"),
                op::RMS_NORM_FWD,
                p.as_bytes(),
                vec![y(), stat(), x.clone(), w.clone()],
                slack,
            ));
            let dy = Tensor::random(&mut rng, t, &[n, d], 1.0).skewed(2);
            let res = Tensor::random(&mut rng, t, &[n, d], 1.0);
            let mean = Tensor::new(F32, &[n], || 3.0 + rng.unit() * 0.1);
            let rstd = Tensor::new(F32, &[n], || 1.5 + rng.unit() * 0.1);
            let dw = Tensor::random(&mut rng, F32, &[d], 1.0);
            for (db, res) in [(dw.clone(), res.clone()), (ABSENT, ABSENT)] {
                cases.push(case(
                    format!("layer_norm backward {t:?} {n}x{d}"),
                    op::LAYER_NORM_BWD,
                    p.as_bytes(),
                    vec![
                        y(),
                        dw.clone(),
                        db,
                        dy.clone(),
                        x.clone(),
                        w.clone(),
                        mean.clone(),
                        rstd.clone(),
                        res,
                    ],
                    1e-4 * (1.0 + n as f64 / 100.0),
                ));
            }
            let mut c = case(
                format!("rms_norm backward {t:?} {n}x{d}"),
                op::RMS_NORM_BWD,
                p.as_bytes(),
                vec![dy.clone(), dw, dy, x, w, rstd, res],
                1e-3 * (1.0 + n as f64 / 100.0),
            );
            // dx over dy.
            c.alias = vec![(2, 0)];
            c.operands[0].skew = 2;
            cases.push(c);
        }
    }
    run_all("norms", &cases);
}

#[test]
fn softmax_and_cross_entropy() {
    let mut rng = Rng(2);
    let mut cases = Vec::new();
    for t in FLOATS {
        for (k, (n, d)) in [
            (1u64, 1u64),
            (5, 7),
            (9, 33),
            (3, 1000),
            (2, 5000),
            (2, 40_000),
        ]
        .into_iter()
        .enumerate()
        {
            if d > 4000 && FLOATS[k % 3] != t {
                continue;
            }
            let mut first = true;
            let x = Tensor::strided(t, &[n, d], &[d as i64 + 3, 1], || {
                // One score that is masked out.
                let v = if first {
                    f64::NEG_INFINITY
                } else {
                    rng.unit() * 10.0
                };
                first = d == 1;
                if d == 1 { 0.5 } else { v }
            });
            let y = || Tensor::poison(t, &[n, d]);
            let none = NoParams::default();
            cases.push(case(
                format!("softmax {t:?} {n}x{d}"),
                op::SOFTMAX_FWD,
                none.as_bytes(),
                vec![y(), x.clone()],
                1e-7,
            ));
            let s = Tensor::new(t, &[n, d], || rng.unit().abs() / d as f64);
            let dy = Tensor::random(&mut rng, t, &[n, d], 1.0).skewed(1);
            cases.push(case(
                format!("softmax backward {t:?} {n}x{d}"),
                op::SOFTMAX_BWD,
                none.as_bytes(),
                vec![y(), dy, s],
                1e-6,
            ));
            let p = XentParams {
                flags: FLAG_HAS_IGNORE,
                ignore: -100,
                ..Default::default()
            };
            let ti = if k % 2 == 0 { I32 } else { I64 };
            let mut r = 0;
            let target = Tensor::strided(ti, &[n], &[2], || {
                r += 1;
                match r {
                    2 => -100.0,
                    3 => d as f64,
                    4 => -1.0,
                    _ => rng.below(d) as f64,
                }
            });
            let stat = || Tensor::poison(F32, &[n]);
            cases.push(case(
                format!("cross_entropy {t:?} {n}x{d}"),
                op::CROSS_ENTROPY_FWD,
                p.as_bytes(),
                vec![stat(), stat(), x.clone(), target.clone()],
                2e-6,
            ));
            let lse = Tensor::new(F32, &[n], || 9.0 + rng.unit());
            let g = Tensor::strided(F32, &[n], &[0], || 0.125);
            let dense = Tensor::random(&mut rng, t, &[n, d], 8.0);
            let mut c = case(
                format!("cross_entropy backward {t:?} {n}x{d}"),
                op::CROSS_ENTROPY_BWD,
                p.as_bytes(),
                vec![dense.clone(), dense, lse, target, g],
                1e-6,
            );
            c.alias = vec![(1, 0)];
            cases.push(c);
        }
        let stat = || Tensor::poison(F32, &[4]);
        let rows = [
            [f64::NEG_INFINITY, 1.0, 1.0],
            [f64::NEG_INFINITY; 3],
            [f64::NAN, 1.0, 2.0],
            [300.0, -300.0, 0.0],
        ]
        .concat();
        let mut at = rows.into_iter();
        let x = Tensor::new(t, &[4, 3], || at.next().unwrap_or(0.0));
        cases.push(case(
            format!("softmax of infinities {t:?}"),
            op::SOFTMAX_FWD,
            NoParams::default().as_bytes(),
            vec![Tensor::poison(t, &[4, 3]), x.clone()],
            1e-7,
        ));
        cases.push(case(
            format!("cross_entropy of infinities {t:?}"),
            op::CROSS_ENTROPY_FWD,
            XentParams::default().as_bytes(),
            vec![stat(), stat(), x, Tensor::new(I32, &[4], || 1.0)],
            1e-5,
        ));
    }
    run_all("softmax", &cases);
}

#[test]
fn rope_and_products() {
    let mut rng = Rng(3);
    let mut cases = Vec::new();
    for t in FLOATS {
        for ([b, s, h, d], r) in [
            ([1u64, 1, 1, 2], 2u64),
            ([2, 5, 3, 8], 8),
            ([2, 9, 2, 64], 64),
            ([1, 7, 2, 33], 16),
            ([1, 3, 2, 24], 6),
        ] {
            for flags in [0, FLAG_INTERLEAVED, FLAG_INVERSE] {
                let stride = [(s * 3 * h * d) as i64, (3 * h * d) as i64, d as i64, 1];
                let x = Tensor::strided(t, &[b, s, h, d], &stride, || rng.unit()).skewed(1);
                let cos = Tensor::random(&mut rng, F32, &[s, r / 2], 1.0);
                let sin = Tensor::random(&mut rng, F32, &[s, r / 2], 1.0);
                let p = RopeParams {
                    flags,
                    ..Default::default()
                };
                let mut c = case(
                    format!("rope {t:?} {b} {s} {h} {d} {r} {flags}"),
                    op::ROPE,
                    p.as_bytes(),
                    vec![x.clone(), x, cos, sin],
                    1e-6,
                );
                if flags == 0 {
                    c.alias = vec![(1, 0)];
                }
                cases.push(c);
            }
        }
        for (batch, m, n, k) in [
            (0u64, 1u64, 1u64, 1u64),
            (0, 65, 70, 33),
            (3, 20, 66, 17),
            (0, 5, 9, 0),
        ] {
            for (ta, tb) in [(false, false), (true, false), (false, true)] {
                let mut side = |r: u64, c: u64, turned: bool| {
                    let (mut shape, mut stride) = (vec![], vec![]);
                    if batch > 0 {
                        shape.push(batch);
                        stride.push((r * c) as i64 + 5);
                    }
                    shape.extend([r, c]);
                    stride.extend(if turned { [1, r as i64] } else { [c as i64, 1] });
                    Tensor::strided(t, &shape, &stride, || rng.unit())
                };
                let (a, b) = (side(m, k, ta), side(k, n, tb));
                let mut shape = vec![m, n];
                let mut stride = vec![n as i64 + 2, 1];
                if batch > 0 {
                    shape.insert(0, batch);
                    stride.insert(0, (m * (n + 2)) as i64);
                }
                let out = if ta { F32 } else { t };
                let c = Tensor::strided(out, &shape, &stride, || 0.5);
                let bias = Tensor::random(&mut rng, t, &[n], 1.0);
                let p = MatmulParams {
                    flags: if ta { FLAG_ACCUM } else { 0 },
                    alpha: if tb { 0.5 } else { 0.0 },
                    ..Default::default()
                };
                let bias = if tb { bias } else { ABSENT };
                cases.push(case(
                    format!("matmul {t:?} {batch} {m} {n} {k} {ta} {tb}"),
                    op::MATMUL,
                    p.as_bytes(),
                    vec![c, a, b, bias],
                    1e-5,
                ));
            }
        }
    }
    run_all("products", &cases);
}

/// Heads as slices of one fused projection of width `w`.
fn head(rng: &mut Rng, t: DType, [b, s, h, d]: [u64; 4], w: u64) -> Tensor {
    let stride = [(s * w) as i64, w as i64, d as i64, 1];
    Tensor::strided(t, &[b, s, h, d], &stride, || rng.unit())
}

#[test]
fn attention() {
    let mut rng = Rng(4);
    let mut cases = Vec::new();
    // Storage, batch, queries, keys, heads, key heads, size, causal, window, elements from an aligned address.
    for (t, b, tq, tk, h, hkv, d, causal, window, skew) in [
        (F32, 1u64, 1u64, 1u64, 1u64, 1u64, 4u64, false, 0i64, 0),
        (F32, 2, 37, 37, 2, 1, 40, true, 0, 1),
        (F32, 1, 20, 50, 2, 2, 72, true, 9, 0),
        (F32, 1, 40, 20, 1, 1, 136, true, 0, 0),
        (Bf16, 1, 70, 70, 2, 2, 20, true, 0, 1),
        // Sizes of the tensor-core kernel (with warps of 32).
        (Bf16, 1, 130, 130, 2, 1, 64, true, 0, 0),
        (Bf16, 1, 70, 200, 1, 1, 32, true, 50, 0),
        (F16, 2, 65, 100, 1, 1, 128, false, 0, 0),
        (F16, 1, 100, 70, 2, 1, 96, true, 0, 3),
    ] {
        let flags = if causal { FLAG_CAUSAL } else { 0 };
        let p = AttentionParams {
            flags,
            window,
            ..Default::default()
        };
        let q = head(&mut rng, t, [b, tq, h, d], h * d + 8).skewed(skew);
        let k = head(&mut rng, t, [b, tk, hkv, d], 2 * hkv * d).skewed(skew);
        let v = head(&mut rng, t, [b, tk, hkv, d], 2 * hkv * d).skewed(skew);
        let o = Tensor::poison(t, &[b, tq, h, d]).skewed(skew);
        let lse = Tensor::poison(F32, &[b, h, tq]);
        let name = format!("{t:?} {b} {tq} {tk} {h}/{hkv} {d} causal {causal} window {window}");
        // 16-bit storage: probabilities are rounded before the second product.
        let slack = match t {
            F32 => 1e-5,
            Bf16 => 8e-3,
            _ => 1e-3,
        };
        let forward = case(
            format!("attention {name}"),
            op::ATTENTION_FWD,
            p.as_bytes(),
            vec![o, lse, q.clone(), k.clone(), v.clone()],
            slack,
        );
        let done = oracle(&forward);
        cases.push(forward);
        let go = head(&mut rng, t, [b, tq, h, d], h * d);
        let gap = |t: &Tensor| {
            let mut t = t.clone();
            t.data.fill(0);
            t
        };
        cases.push(case(
            format!("attention backward {name}"),
            op::ATTENTION_BWD,
            p.as_bytes(),
            vec![
                gap(&q),
                gap(&k),
                gap(&v),
                go,
                done[0].clone(),
                q,
                k,
                v,
                done[1].clone(),
            ],
            slack,
        ));
    }
    let cores = |c: &Case| {
        let layouts: Vec<Layout> = c.operands.iter().map(|t| t.layout).collect();
        let o = crossweave_plugin::OpRequest::new(c.id, &layouts, &c.params, 0);
        crossweave_kernels::prepare(&o, &facts(32))
            .unwrap()
            .plan
            .tier
            == 2
    };
    assert!(
        cases.iter().filter(|c| cores(c)).count() >= 4,
        "tensor-core kernels are among the cases"
    );
    run_all("attention", &cases);
}

#[test]
fn packed_sequences() {
    let mut rng = Rng(5);
    let mut cases = Vec::new();
    // Storage, rows, cumulative lengths of each, positions, heads, key heads, size, causal, window.
    let shapes: [(DType, u64, &[u32], u64, u64, u64, u64, bool, i64); 14] = [
        // On tensor cores where warps have 32 threads: segments that begin and end inside of tiles, fill them, span several, are empty; none.
        (F16, 1, &[0, 64, 128, 200], 200, 2, 1, 32, true, 0),
        (Bf16, 1, &[3, 10, 10, 75, 140, 141], 150, 2, 2, 64, false, 0),
        (
            F16,
            2,
            &[0, 1, 90, 130, 20, 84, 84, 84],
            130,
            2,
            1,
            96,
            true,
            33,
        ),
        (Bf16, 1, &[0, 129], 129, 1, 1, 128, false, 40),
        (F16, 1, &[0], 70, 1, 1, 64, true, 0),
        (F16, 1, &[70, 71, 133], 140, 4, 2, 32, false, 0),
        (F32, 1, &[0, 5], 5, 1, 1, 4, false, 0),
        // Begins inside of blocks, empty segments, and positions of none on both sides.
        (F32, 1, &[2, 9, 9, 41, 44], 50, 2, 1, 40, true, 0),
        (F32, 1, &[0, 33, 70], 70, 2, 2, 72, true, 9),
        (F32, 1, &[0, 1, 2, 18, 19], 19, 1, 1, 136, false, 3),
        (Bf16, 1, &[0, 40, 40, 100, 100, 100], 100, 4, 2, 64, true, 0),
        (F16, 1, &[0, 16, 32], 32, 2, 1, 20, false, 0),
        (F32, 2, &[0, 9, 20, 3, 18, 18], 20, 4, 2, 24, true, 0),
        (F32, 1, &[0], 7, 1, 1, 8, true, 0),
    ];
    for (t, b, cu, n, h, hkv, d, causal, window) in shapes {
        let p = AttentionParams {
            flags: if causal { FLAG_CAUSAL } else { 0 },
            window,
            ..Default::default()
        };
        let q = head(&mut rng, t, [b, n, h, d], h * d + 8);
        let k = head(&mut rng, t, [b, n, hkv, d], 2 * hkv * d);
        let v = head(&mut rng, t, [b, n, hkv, d], 2 * hkv * d);
        let o = Tensor::poison(t, &[b, n, h, d]);
        let lse = Tensor::poison(F32, &[b, h, n]);
        let mut lengths = cu.iter();
        let lengths = Tensor::new(DType::I32, &[b, cu.len() as u64 / b], || {
            f64::from(*lengths.next().expect("as many as the shape has"))
        });
        let name = format!("{t:?} {cu:?} of {n} {h}/{hkv} {d} causal {causal} window {window}");
        let slack = match t {
            F32 => 1e-5,
            Bf16 => 8e-3,
            _ => 1e-3,
        };
        let forward = case(
            format!("packed {name}"),
            op::ATTENTION_VARLEN_FWD,
            p.as_bytes(),
            vec![o, lse, q.clone(), k.clone(), v.clone(), lengths.clone()],
            slack,
        );
        let done = oracle(&forward);
        cases.push(forward);
        let go = head(&mut rng, t, [b, n, h, d], h * d);
        let gap = |t: &Tensor| {
            let mut t = t.clone();
            t.data.fill(0);
            t
        };
        cases.push(case(
            format!("packed backward {name}"),
            op::ATTENTION_VARLEN_BWD,
            p.as_bytes(),
            vec![
                gap(&q),
                gap(&k),
                gap(&v),
                go,
                done[0].clone(),
                q,
                k,
                v,
                done[1].clone(),
                lengths,
            ],
            slack,
        ));
    }
    run_all("packed sequences", &cases);
}
