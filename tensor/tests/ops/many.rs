//! Embedding, dropout, programs and what runs over many tensors at once, against plain f64 references.

use super::bench::*;
use super::pointwise::erf;
use crossweave_hal::DType;
use crossweave_hal::abi::op::{self, inst};

const NO: op::NoParams = op::NoParams {
    size: size_of::<op::NoParams>() as u32,
    flags: 0,
};

pub fn embedding_fwd(b: &Bench) {
    let mut r = Rng(11);
    for t in STORAGES {
        for with in [false, true] {
            let (bs, s, v, d) = (3u64, 7, 11, 33);
            let ids: Vec<f64> = (0..bs * s).map(|_| r.below(v) as f64).collect();
            let table = T::random(&mut r, t, &[v, d], 1.0);
            let pos = T::random(&mut r, t, &[s, d], 1.0);
            let (tv, pv) = (table.values(), pos.values());
            let y = (0..(bs * s * d) as usize)
                .map(|k| {
                    let (i, j) = (k / d as usize, k % d as usize);
                    tv[ids[i] as usize * d as usize + j]
                        + if with {
                            pv[i % s as usize * d as usize + j]
                        } else {
                            0.0
                        }
                })
                .collect();
            let pos = if with { pos } else { T::absent() };
            let o = [
                T::poison(t, &[bs, s, d]),
                table,
                T::new(DType::I64, &[bs, s], &ids),
                pos,
            ];
            let p = op::IndexParams::default();
            b.check(
                "embedding_fwd",
                op::EMBEDDING_FWD,
                p.as_bytes(),
                &[],
                &o,
                &[],
                &[(0, y, 0.0)],
            );
        }
    }
}

pub fn embedding_bwd(b: &Bench) {
    let mut r = Rng(12);
    for t in STORAGES {
        for with in [false, true] {
            let (bs, s, v, d) = (3u64, 7, 5, 33);
            let ids: Vec<f64> = (0..bs * s).map(|_| r.below(v) as f64).collect();
            let (table, pos) = (
                T::random(&mut r, DType::F32, &[v, d], 1.0),
                T::random(&mut r, DType::F32, &[s, d], 1.0),
            );
            let dy = T::random(&mut r, t, &[bs, s, d], 1.0);
            let (mut tv, mut pv, dv) = (table.values(), pos.values(), dy.values());
            for k in 0..dv.len() {
                let (i, j) = (k / d as usize, k % d as usize);
                tv[ids[i] as usize * d as usize + j] += dv[k];
                pv[i % s as usize * d as usize + j] += dv[k];
            }
            let mut want = vec![(0, tv, 1e-6)];
            let pos = if with {
                want.push((1, pv, 1e-6));
                pos
            } else {
                T::absent()
            };
            let o = [table, pos, dy, T::new(DType::I32, &[bs, s], &ids)];
            let p = op::IndexParams::default();
            b.check(
                "embedding_bwd",
                op::EMBEDDING_BWD,
                p.as_bytes(),
                &[],
                &o,
                &[],
                &want,
            );
        }
    }
}

pub fn multi_sumsq(b: &Bench) {
    let mut r = Rng(13);
    for t in STORAGES {
        let mut o = vec![T::new(DType::F32, &[1], &[2.5])];
        o.extend([1u64, 7, 4099].map(|n| T::random(&mut r, t, &[n], 1.0)));
        o.push(T::random(&mut r, DType::F32, &[3, 5], 1.0));
        let sum = 2.5
            + o[1..]
                .iter()
                .flat_map(|x| x.values())
                .map(|x| x * x)
                .sum::<f64>();
        b.check(
            "multi_sumsq",
            op::MULTI_SUMSQ,
            NO.as_bytes(),
            &[],
            &o,
            &[],
            &[(0, vec![sum], 1e-6)],
        );
    }
}

pub fn multi_scale(b: &Bench) {
    let mut r = Rng(14);
    let d = op::ScaleDyn {
        scale: 0.3,
        ..Default::default()
    };
    for t in STORAGES {
        for coef in [T::absent(), T::new(DType::F32, &[1], &[1.7])] {
            let by = 0.3 * if coef.absent { 1.0 } else { 1.7 };
            let mut o = vec![coef];
            o.extend([1u64, 7, 4099].map(|n| T::random(&mut r, t, &[n], 1.0)));
            let want: Vec<_> = (1..4)
                .map(|i| (i, o[i].values().iter().map(|x| x * by).collect(), 3e-7))
                .collect();
            b.check(
                "multi_scale",
                op::MULTI_SCALE,
                NO.as_bytes(),
                d.as_bytes(),
                &o,
                &[],
                &want,
            );
        }
    }
}

/// Philox4x32-10 from the paper, one block.
pub fn philox_block(mut c: [u32; 4], mut k: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let p = c[0] as u64 * 0xD251_1F53;
        let q = c[2] as u64 * 0xCD9E_8D57;
        c = [
            (q >> 32) as u32 ^ c[1] ^ k[0],
            q as u32,
            (p >> 32) as u32 ^ c[3] ^ k[1],
            p as u32,
        ];
        k = [
            k[0].wrapping_add(0x9E37_79B9),
            k[1].wrapping_add(0xBB67_AE85),
        ];
    }
    c
}

/// Word of element `e`, as the op table numbers them.
pub fn philox_word(d: &op::PhiloxDyn, e: u64) -> u32 {
    let c = d.offset.wrapping_add(e / 4);
    let split = |v: u64| [v as u32, (v >> 32) as u32];
    let ([c0, c1], [c2, c3]) = (split(c), split(d.stream));
    philox_block([c0, c1, c2, c3], split(d.seed))[(e % 4) as usize]
}

pub fn dropout(b: &Bench) {
    let mut r = Rng(15);
    let d = op::PhiloxDyn {
        seed: 0x1234_5678_9abc,
        offset: 1 << 33,
        stream: 77 << 20,
        ..Default::default()
    };
    for t in STORAGES {
        for p in [0.1, 0.5, 0.9999, 0.0] {
            for with in [false, true] {
                let n = 4099u64;
                let (x, res) = (
                    T::random(&mut r, t, &[n], 1.0),
                    T::random(&mut r, t, &[n], 1.0),
                );
                let (xv, rv) = (x.values(), res.values());
                let y: Vec<f64> = (0..n as usize)
                    .map(|e| {
                        let u = (philox_word(&d, e as u64) >> 8) as f64 / 16_777_216.0;
                        let kept = if u >= p { xv[e] / (1.0 - p) } else { 0.0 };
                        kept + if with { rv[e] } else { 0.0 }
                    })
                    .collect();
                let params = op::DropoutParams {
                    p,
                    ..Default::default()
                };
                let res = if with { res } else { T::absent() };
                let o = [T::poison(t, &[n]), x, res];
                for alias in [&[][..], &[(0, 1)]] {
                    b.check(
                        "dropout",
                        op::DROPOUT,
                        params.as_bytes(),
                        d.as_bytes(),
                        &o,
                        alias,
                        &[(0, y.clone(), 3e-7)],
                    );
                }
            }
        }
    }
}

pub fn add(b: &Bench) {
    let mut r = Rng(16);
    for t in STORAGES {
        let (x, z) = (
            T::random(&mut r, t, &[3, 41], 1.0),
            T::random(&mut r, t, &[3, 41], 1.0),
        );
        let y: Vec<f64> = x
            .values()
            .iter()
            .zip(z.values())
            .map(|(a, b)| a + b)
            .collect();
        let o = [T::poison(t, &[3, 41]), x, z];
        for alias in [&[][..], &[(0, 1)], &[(0, 2)]] {
            b.check(
                "add",
                op::ADD,
                NO.as_bytes(),
                &[],
                &o,
                alias,
                &[(0, y.clone(), 0.0)],
            );
        }
    }
}

pub fn adamw(b: &Bench) {
    let mut r = Rng(17);
    for p_type in STORAGES {
        for g_type in [DType::F32, DType::Bf16] {
            for (mode, master, coef, skip) in [
                (0, false, None, None),
                (0, true, Some(0.5), Some(0.0)),
                (1, true, None, Some(1.0)),
                (1, false, Some(1.5), None),
                (0, false, None, Some(1.0)),
            ] {
                let params = op::AdamwParams {
                    flags: if master { op::FLAG_MASTER } else { 0 },
                    mode,
                    beta1: 0.8,
                    beta2: 0.95,
                    eps: 1e-6,
                    weight_decay: 0.05,
                    ..Default::default()
                };
                let d = op::AdamwDyn {
                    lr: 3e-3,
                    grad_scale: 0.25,
                    step: 7,
                    ..Default::default()
                };
                let one = |t, v: Option<f64>| v.map_or(T::absent(), |v| T::new(t, &[1], &[v]));
                let mut o = vec![one(DType::F32, coef), one(DType::U32, skip)];
                let mut want = vec![];
                for n in [0u64, 1, 7, 1003] {
                    let at = o.len();
                    let p = T::random(&mut r, p_type, &[n], 2.0);
                    let g = T::random(&mut r, g_type, &[n], 3.0);
                    let m = T::random(&mut r, DType::F32, &[n], 1.0);
                    let v = T::new(
                        DType::F32,
                        &[n],
                        &r.floats(n, 1.0).iter().map(|x| x * x).collect::<Vec<_>>(),
                    );
                    let w = T::new(
                        DType::F32,
                        &[n],
                        &p.values().iter().map(|x| x + 1e-3).collect::<Vec<_>>(),
                    );
                    let from = if master { w.values() } else { p.values() };
                    let (mut p2, mut m2, mut v2) = (from.clone(), m.values(), v.values());
                    if skip != Some(1.0) {
                        for (i, g) in g.values().iter().enumerate() {
                            let mut g = g * 0.25 * coef.unwrap_or(1.0);
                            if mode == 1 {
                                g += 0.05 * p2[i];
                            } else {
                                p2[i] -= 3e-3 * 0.05 * p2[i];
                            }
                            m2[i] = 0.8 * m2[i] + (1.0 - 0.8) * g;
                            v2[i] = 0.95 * v2[i] + (1.0 - 0.95) * g * g;
                            let (bc1, bc2) = (1.0 - 0.8f64.powi(7), 1.0 - 0.95f64.powi(7));
                            p2[i] -= 3e-3 / bc1 * m2[i] / (v2[i].sqrt() / bc2.sqrt() + 1e-6);
                        }
                    }
                    let stay = skip == Some(1.0);
                    let tight = if stay { 0.0 } else { 1e-6 };
                    want.push((at, if stay { p.values() } else { p2.clone() }, tight));
                    want.push((at + 2, m2, tight));
                    want.push((at + 3, v2, tight));
                    o.extend([p, g, m, v]);
                    if master {
                        want.push((at + 4, p2, tight));
                        o.push(w);
                    }
                }
                b.check(
                    "adamw",
                    op::ADAMW,
                    params.as_bytes(),
                    d.as_bytes(),
                    &o,
                    &[],
                    &want,
                );
            }
        }
    }
}

pub fn program(b: &Bench) {
    let mut r = Rng(18);
    let i = |op, dst, a, b, c, imm| op::ProgramInst {
        op,
        dst,
        a,
        b,
        c,
        imm,
        ..Default::default()
    };
    for t in STORAGES {
        let s = [5u64, 33];
        let x = T::new(
            t,
            &s,
            &r.floats(165, 2.0)
                .iter()
                .map(|v| v.abs() + 0.25)
                .collect::<Vec<_>>(),
        );
        let row = T::strided(t, &s, &[0, 1], &r.floats(33, 1.0).repeat(5));
        let flag = T::new(
            DType::U32,
            &s,
            &(0..165).map(|k| (k % 3) as f64).collect::<Vec<_>>(),
        );
        let (xv, rv, fv) = (x.values(), row.values(), flag.values());
        type F = fn(f64, f64) -> f64;
        let one: [(u32, F); 11] = [
            (inst::NEG, |x, _| -x),
            (inst::ABS, |x, _| x.abs()),
            (inst::SQRT, |x, _| x.sqrt()),
            (inst::RSQRT, |x, _| 1.0 / x.sqrt()),
            (inst::EXP, |x, _| x.exp()),
            (inst::LOG, |x, _| x.ln()),
            (inst::TANH, |x, _| x.tanh()),
            (inst::ERF, |x, _| erf(x)),
            (inst::SIGMOID, |x, _| 1.0 / (1.0 + (-x).exp())),
            (inst::FLOOR, |x, _| x.floor()),
            (inst::MOV, |x, _| x),
        ];
        let two: [(u32, F); 7] = [
            (inst::ADD, |x, y| x + y),
            (inst::SUB, |x, y| x - y),
            (inst::MUL, |x, y| x * y),
            (inst::DIV, |x, y| x / y),
            (inst::MAX, f64::max),
            (inst::MIN, f64::min),
            (inst::LT, |x, y| if x < y { 1.0 } else { 0.0 }),
        ];
        // y = flag != 0 ? f(x, row) * s1 + 0.5 (one rounding) : s6; x is doubled in place.
        for (inst_id, f) in one.into_iter().chain(two) {
            let insts = [
                i(inst_id, 4, 1, 2, 0, 0.0),
                i(inst::SCALAR, 5, 0, 0, 0, 1.0),
                i(inst::CONST, 6, 0, 0, 0, 0.5),
                i(inst::FMA, 7, 4, 5, 6, 0.0),
                i(inst::SCALAR, 8, 0, 0, 0, 6.0),
                i(inst::SELECT, 0, 3, 7, 8, 0.0),
                i(inst::ADD, 1, 1, 1, 0, 0.0),
            ];
            let mut p = op::ProgramParams {
                n_insts: insts.len() as u32,
                writes: 0b11,
                ..Default::default()
            };
            p.insts[..insts.len()].copy_from_slice(&insts);
            let d = op::ProgramDyn::new(&[9.0, 0.75, 9.0, 9.0, 9.0, 9.0, -3.5]);
            let y: Vec<f64> = (0..165)
                .map(|k| {
                    if fv[k] != 0.0 {
                        f(xv[k], rv[k]) * 0.75 + 0.5
                    } else {
                        -3.5
                    }
                })
                .collect();
            let o = [T::poison(t, &s), x.clone(), row.clone(), flag.clone()];
            let twice = xv.iter().map(|x| x + x).collect();
            let want = [(0, y, 1e-6), (1, twice, 0.0)];
            b.check(
                &format!("program {inst_id}"),
                op::ELEMENTWISE_PROGRAM,
                p.as_bytes(),
                d.as_bytes(),
                &o,
                &[],
                &want,
            );
        }
    }
    // A swap: both operands are read before either is written.
    let (x, z) = (
        T::random(&mut r, DType::F32, &[9], 1.0),
        T::random(&mut r, DType::Bf16, &[9], 1.0),
    );
    let insts = [
        i(inst::MOV, 2, 0, 0, 0, 0.0),
        i(inst::MOV, 0, 1, 0, 0, 0.0),
        i(inst::MOV, 1, 2, 0, 0, 0.0),
    ];
    let mut p = op::ProgramParams {
        n_insts: 3,
        writes: 0b11,
        ..Default::default()
    };
    p.insts[..3].copy_from_slice(&insts);
    let want = [(0, z.values(), 0.0), (1, x.values(), 0.0)];
    b.check(
        "swap",
        op::ELEMENTWISE_PROGRAM,
        p.as_bytes(),
        &[],
        &[x, z],
        &[],
        &want,
    );
    // One rounding of a product and a sum: with x = 1 + 2^-12 the plain product loses the 2^-24 that c leaves over.
    let e = 2f64.powi(-12);
    let o = [
        T::poison(DType::F32, &[1]),
        T::new(DType::F32, &[1], &[1.0 + e]),
        T::new(DType::F32, &[1], &[-1.0 - 2.0 * e]),
    ];
    let mut p = op::ProgramParams {
        n_insts: 1,
        writes: 1,
        ..Default::default()
    };
    p.insts[0] = i(inst::FMA, 0, 1, 1, 2, 0.0);
    b.check(
        "fma",
        op::ELEMENTWISE_PROGRAM,
        p.as_bytes(),
        &[],
        &o,
        &[],
        &[(0, vec![e * e], 0.0)],
    );
}
