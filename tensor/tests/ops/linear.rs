//! Products, index ops, sorts and philox against plain f64 references.

use super::bench::*;
use super::many::{philox_block, philox_word};
use crossweave_hal::DType;
use crossweave_hal::abi::op;

const NO: op::NoParams = op::NoParams {
    size: size_of::<op::NoParams>() as u32,
    flags: 0,
};
const INTS: [DType; 2] = [DType::I32, DType::I64];

pub fn matmul(b: &Bench) {
    let mut r = Rng(39);
    for t in STORAGES {
        for (n, [m, k, c]) in [
            (1u64, [1u64, 1, 1]),
            (1, [5, 17, 9]),
            (3, [7, 33, 40]),
            (1, [65, 70, 130]),
        ] {
            for (ta, tb, add, out) in [
                (false, false, false, t),
                (true, false, true, DType::F32),
                (false, true, false, DType::F32),
                (true, true, true, t),
            ] {
                let batch = |a: u64, b: u64| if n == 1 { vec![a, b] } else { vec![n, a, b] };
                let stride = |a: u64, b: u64, turned: bool| {
                    let two = if turned {
                        vec![1, a as i64]
                    } else {
                        vec![b as i64, 1]
                    };
                    if n == 1 {
                        two
                    } else {
                        [vec![(a * b) as i64], two].concat()
                    }
                };
                let x = T::strided(
                    t,
                    &batch(m, k),
                    &stride(m, k, ta),
                    &r.floats(n * m * k, 1.0),
                );
                let z = T::strided(
                    t,
                    &batch(k, c),
                    &stride(k, c, tb),
                    &r.floats(n * k * c, 1.0),
                );
                let bias = T::random(&mut r, t, &[c], 1.0);
                let y0 = if add {
                    T::random(&mut r, out, &batch(m, c), 1.0)
                } else {
                    T::poison(out, &batch(m, c))
                };
                let (xv, zv, bv, yv) = (x.values(), z.values(), bias.values(), y0.values());
                let (m, k, c) = (m as usize, k as usize, c as usize);
                let y = (0..n as usize * m * c)
                    .map(|e| {
                        let (bt, i, j) = (e / (m * c), e / c % m, e % c);
                        let dot: f64 = (0..k)
                            .map(|q| xv[(bt * m + i) * k + q] * zv[(bt * k + q) * c + j])
                            .sum();
                        0.5 * dot + bv[j] + if add { yv[e] } else { 0.0 }
                    })
                    .collect();
                let p = op::MatmulParams {
                    flags: if add { op::FLAG_ACCUM } else { 0 },
                    alpha: 0.5,
                    ..Default::default()
                };
                b.check(
                    "matmul",
                    op::MATMUL,
                    p.as_bytes(),
                    &[],
                    &[y0, x, z, bias],
                    &[],
                    &[(0, y, 2e-6)],
                );
            }
        }
    }
}

fn ignoring(v: i64) -> op::IndexParams {
    op::IndexParams {
        flags: op::FLAG_HAS_IGNORE,
        ignore: v,
        ..Default::default()
    }
}

pub fn gather_rows(b: &Bench) {
    let mut r = Rng(40);
    for (t, ix) in STORAGES.into_iter().flat_map(|t| INTS.map(|i| (t, i))) {
        let table = T::random(&mut r, t, &[5, 9], 1.0);
        let ids = [4.0, 0.0, 2.0, 7.0, -1.0, 3.0];
        let tv = table.values();
        let y = ids
            .iter()
            .flat_map(|i| {
                (0..9)
                    .map(|j| {
                        if (0.0..5.0).contains(i) && *i != 2.0 {
                            tv[*i as usize * 9 + j]
                        } else {
                            0.0
                        }
                    })
                    .collect::<Vec<_>>()
            })
            .collect();
        let o = [T::poison(t, &[6, 9]), table, T::new(ix, &[6], &ids)];
        b.check(
            "gather",
            op::GATHER_ROWS,
            ignoring(2).as_bytes(),
            &[],
            &o,
            &[],
            &[(0, y, 0.0)],
        );
    }
}

pub fn scatter_add_rows(b: &Bench) {
    let mut r = Rng(41);
    for (t, ix) in STORAGES.into_iter().flat_map(|t| INTS.map(|i| (t, i))) {
        let (table, x) = (
            T::random(&mut r, DType::F32, &[5, 9], 1.0),
            T::random(&mut r, t, &[6, 9], 1.0),
        );
        let ids = [4.0, 0.0, 2.0, 7.0, 4.0, 3.0];
        let (mut y, xv) = (table.values(), x.values());
        for (k, i) in ids
            .iter()
            .enumerate()
            .filter(|(_, i)| **i < 5.0 && **i != 2.0)
        {
            (0..9).for_each(|j| y[*i as usize * 9 + j] += xv[k * 9 + j]);
        }
        let o = [table, x, T::new(ix, &[6], &ids)];
        b.check(
            "scatter",
            op::SCATTER_ADD_ROWS,
            ignoring(2).as_bytes(),
            &[],
            &o,
            &[],
            &[(0, y, 1e-6)],
        );
    }
}

pub fn sort_pairs(b: &Bench) {
    for t in [DType::F32, DType::Bf16, DType::I32, DType::I64] {
        let keys = T::new(t, &[2, 4], &[3.0, 1.0, 3.0, -2.0, 0.0, 0.0, 5.0, 4.0]);
        let ids = T::new(
            DType::I64,
            &[2, 4],
            &[0.0, 1.0, 2.0, 3.0, 0.0, 1.0, 2.0, 3.0],
        );
        for (flags, k, v) in [
            (
                0,
                [-2.0, 1.0, 3.0, 3.0, 0.0, 0.0, 4.0, 5.0],
                [3.0, 1.0, 0.0, 2.0, 0.0, 1.0, 3.0, 2.0],
            ),
            (
                op::FLAG_DESCENDING,
                [3.0, 3.0, 1.0, -2.0, 5.0, 4.0, 0.0, 0.0],
                [0.0, 2.0, 1.0, 3.0, 2.0, 3.0, 0.0, 1.0],
            ),
        ] {
            let p = op::DimParams {
                dim: 1,
                flags,
                ..Default::default()
            };
            let o = [
                T::poison(t, &[2, 4]),
                T::poison(DType::I64, &[2, 4]),
                keys.clone(),
                ids.clone(),
            ];
            b.check(
                "sort",
                op::SORT_PAIRS,
                p.as_bytes(),
                &[],
                &o,
                &[],
                &[(0, k.to_vec(), 0.0), (1, v.to_vec(), 0.0)],
            );
        }
    }
}

pub fn topk(b: &Bench) {
    for t in STORAGES {
        let x = T::new(t, &[2, 4], &[3.0, 1.0, 3.0, -2.0, 0.0, 0.0, 5.0, 4.0]);
        let p = op::DimParams {
            dim: 1,
            ..Default::default()
        };
        let o = [T::poison(t, &[2, 2]), T::poison(DType::I32, &[2, 2]), x];
        let want = [
            (0, vec![3.0, 3.0, 5.0, 4.0], 0.0),
            (1, vec![0.0, 2.0, 2.0, 3.0], 0.0),
        ];
        b.check("topk", op::TOPK, p.as_bytes(), &[], &o, &[], &want);
    }
}

pub fn histogram(b: &Bench) {
    for t in INTS {
        let x = T::new(t, &[7], &[0.0, 3.0, 3.0, 9.0, -1.0, 1.0, 3.0]);
        b.check(
            "histogram",
            op::HISTOGRAM,
            NO.as_bytes(),
            &[],
            &[T::poison(DType::I32, &[4]), x],
            &[],
            &[(0, vec![1.0, 1.0, 0.0, 3.0], 0.0)],
        );
    }
}

/// Raw words against the committed vectors, and the three kinds against the formulas of the table.
pub fn philox(b: &Bench) {
    let text = include_str!("../../../tests/oracles/philox4x32.json");
    let oracle: serde_json::Value = serde_json::from_str(text).expect("the oracle is JSON");
    let words = |v: &serde_json::Value| -> Vec<u32> {
        v.as_array()
            .unwrap()
            .iter()
            .map(|w| w.as_u64().unwrap() as u32)
            .collect()
    };
    let run = |kind, lo, hi, d: &op::PhiloxDyn, t, n: u64| {
        let p = op::PhiloxParams {
            kind,
            lo,
            hi,
            ..Default::default()
        };
        let mut o = [T::poison(t, &[n])];
        b.run(
            Route::Device,
            op::PHILOX,
            p.as_bytes(),
            d.as_bytes(),
            &mut o,
            &[],
        );
        o[0].values()
    };
    let join = |lo: u32, hi: u32| (hi as u64) << 32 | lo as u64;
    let rows = oracle["vectors"].as_array().unwrap();
    assert!(rows.len() > 20);
    for row in rows {
        let (c, k, want) = (
            words(&row["counter"]),
            words(&row["key"]),
            words(&row["output"]),
        );
        assert_eq!(
            philox_block([c[0], c[1], c[2], c[3]], [k[0], k[1]]).to_vec(),
            want
        );
        let d = op::PhiloxDyn {
            seed: join(k[0], k[1]),
            offset: join(c[0], c[1]),
            stream: join(c[2], c[3]),
            ..Default::default()
        };
        let got = run(op::philox::BITS, 0.0, 0.0, &d, DType::U32, 4);
        assert_eq!(
            got,
            want.iter().map(|w| *w as f64).collect::<Vec<_>>(),
            "counter {c:x?}"
        );
    }
    // Counters carry from the low word to the high one inside one launch.
    let d = op::PhiloxDyn {
        seed: 99,
        offset: u32::MAX as u64 - 3,
        stream: 5 << 40,
        ..Default::default()
    };
    let w: Vec<u32> = (0..1001).map(|e| philox_word(&d, e)).collect();
    let bits = run(op::philox::BITS, 0.0, 0.0, &d, DType::U32, 1001);
    assert_eq!(bits, w.iter().map(|w| *w as f64).collect::<Vec<_>>());
    // Bit for bit: the formula in f32, as the table has it.
    let uniform: Vec<f64> = w
        .iter()
        .map(|w| (-1.0f32 + 3.0 * ((w >> 8) as f32 / 16_777_216.0)) as f64)
        .collect();
    assert_eq!(
        run(op::philox::UNIFORM, -1.0, 2.0, &d, DType::F32, 1001),
        uniform
    );
    let normal: Vec<f64> = (0..1001)
        .map(|e| {
            let pair = e / 2 * 2;
            let u = |w: u32| (w >> 8) as f64 / 16_777_216.0;
            let (u1, u2) = (
                u(philox_word(&d, pair)) + 1.0 / 16_777_216.0,
                u(philox_word(&d, pair + 1)),
            );
            let (s, c) = (2.0 * std::f64::consts::PI * u2).sin_cos();
            let z = (-2.0 * u1.ln()).sqrt() * if e % 2 == 0 { c } else { s };
            (0.5f32 + 2.0 * z as f32) as f64
        })
        .collect();
    assert_eq!(
        run(op::philox::NORMAL, 0.5, 2.0, &d, DType::F32, 1001),
        normal
    );
    for t in [DType::Bf16, DType::F16] {
        close(
            "normal",
            t,
            &run(op::philox::NORMAL, 0.5, 2.0, &d, t, 1001),
            &normal,
            0.0,
        );
    }
}
