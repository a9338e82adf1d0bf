//! The kernels, compiled for the host and run in emulation, against the CPU back end: every op, odd sizes, strides, unaligned operands.

use crate::common;
use common::*;
use crossweave_abi::DType::{self, *};
use crossweave_abi::op::{self, *};

const FLOATS: [DType; 3] = [F32, Bf16, F16];

fn case(name: impl Into<String>, id: u32, params: &[u8], operands: Vec<Tensor>) -> Case {
    Case {
        name: name.into(),
        id,
        params: params.to_vec(),
        dynamic: Vec::new(),
        operands,
        alias: Vec::new(),
        relative: 2e-6,
        flat: 1e-6,
    }
}

fn kind(kind: u32) -> KindParams {
    KindParams {
        kind,
        ..Default::default()
    }
}

#[test]
fn copies_casts_and_fills() {
    let (mut rng, none) = (Rng(1), NoParams::default());
    let mut cases = Vec::new();
    for t in [U8, Bf16, F32, I64] {
        for (k, stride) in [[120, 24, 1], [1, 30, 6], [200, 1, 5], [0, 0, 1]]
            .iter()
            .enumerate()
        {
            let shape = [6, 5, 24];
            let stride = if k == 1 { [1, 6, 30] } else { *stride };
            let src = Tensor::strided(t, &shape, &stride, || rng.below(200) as f64);
            let dst = Tensor::poison(t, &shape).skewed(k);
            cases.push(case(
                format!("copy {t:?} {stride:?}"),
                op::COPY_STRIDED,
                none.as_bytes(),
                vec![dst, src.skewed(1)],
            ));
        }
        // A transpose of many tiles, and a destination with gaps in another order.
        let src = Tensor::strided(t, &[2, 70, 45], &[3150, 1, 70], || rng.below(200) as f64);
        let dst = Tensor::strided(t, &[2, 70, 45], &[1, 180, 4], || 3.0);
        cases.push(case(
            format!("transpose {t:?}"),
            op::COPY_STRIDED,
            none.as_bytes(),
            vec![Tensor::poison(t, &[2, 70, 45]), src.clone()],
        ));
        cases.push(case(
            format!("copy into gaps {t:?}"),
            op::COPY_STRIDED,
            none.as_bytes(),
            vec![dst, src],
        ));
        let gaps = Tensor::strided(t, &[7, 9], &[20, 2], || 1.0).skewed(1);
        let p = FillParams {
            value: 3.0,
            ..Default::default()
        };
        cases.push(case(
            format!("fill {t:?}"),
            op::FILL_STRIDED,
            p.as_bytes(),
            vec![gaps],
        ));
        let n = 777;
        let cond = Tensor::new(U8, &[n], || rng.below(2) as f64);
        let mut any = || Tensor::new(t, &[n], || rng.below(99) as f64).skewed(3);
        let (a, b) = (any(), any());
        cases.push(case(
            format!("select {t:?}"),
            op::SELECT,
            none.as_bytes(),
            vec![Tensor::poison(t, &[n]), cond, a, b],
        ));
    }
    let all = [I8, U8, I32, U32, I64, U64, F16, Bf16, F32, F64];
    for (i, from) in all.into_iter().enumerate() {
        for (j, to) in all.into_iter().enumerate() {
            if (i + j) % 2 == 1 && from.is_float() == to.is_float() {
                continue;
            }
            let special = [f64::NAN, f64::INFINITY, -f64::INFINITY, 65520.0, 3e38, -0.0];
            let mut n = 0;
            let src = Tensor::strided(from, &[90], &[2], || {
                n += 1;
                match n {
                    1..=6 if from.is_float() => special[n - 1],
                    _ if n % 3 == 0 => (rng.unit() * 1e5).floor(),
                    _ => rng.unit() * 100.0,
                }
            });
            cases.push(case(
                format!("cast {from:?} to {to:?}"),
                op::CAST,
                none.as_bytes(),
                vec![Tensor::poison(to, &[90]), src],
            ));
        }
        let p = IotaParams {
            start: 3.0,
            step: 0.75,
            ..Default::default()
        };
        cases.push(case(
            format!("iota {from:?}"),
            op::IOTA,
            p.as_bytes(),
            vec![Tensor::poison(from, &[100])],
        ));
    }
    for t in FLOATS {
        let x = Tensor::random(&mut rng, t, &[300], 500.0);
        cases.push(case(
            format!("cast {t:?} to e4m3"),
            op::CAST,
            none.as_bytes(),
            vec![Tensor::poison(F8E4M3, &[300]), x],
        ));
        let mut n = 0.0;
        let codes = Tensor::new(F8E4M3, &[256], || {
            n += 1.0;
            n - 1.0
        });
        cases.push(case(
            format!("cast e4m3 to {t:?}"),
            op::CAST,
            none.as_bytes(),
            vec![Tensor::poison(t, &[256]), codes],
        ));
    }
    for c in &mut cases {
        // Moves and single roundings are exact.
        (c.relative, c.flat) = (0.0, 0.0);
    }
    run_all("copies", &cases);
}

#[test]
fn pointwise() {
    let mut rng = Rng(2);
    let mut cases = Vec::new();
    for (i, t) in FLOATS.into_iter().enumerate() {
        for n in [1u64, 7, 33, 4099] {
            // Each storage takes a third of the functions, f32 all.
            for k in unary::NEG..=unary::FLOOR {
                if i > 0 && (k as usize) % 3 != i {
                    continue;
                }
                let x = Tensor::strided(t, &[n], &[if n == 33 { 3 } else { 1 }], || {
                    rng.unit() * 3.0 + if k == unary::LOG { 3.5 } else { 0.0 }
                });
                cases.push(case(
                    format!("unary {k} {t:?} {n}"),
                    op::UNARY,
                    kind(k).as_bytes(),
                    vec![Tensor::poison(t, &[n]), x.skewed(n as usize % 3)],
                ));
            }
            for k in activation::GELU_TANH..=activation::RELU {
                let x = Tensor::random(&mut rng, t, &[n], 6.0);
                let dy = Tensor::random(&mut rng, t, &[n], 1.0).skewed(1);
                cases.push(case(
                    format!("activation {k} {t:?} {n}"),
                    op::ACTIVATION_FWD,
                    kind(k).as_bytes(),
                    vec![Tensor::poison(t, &[n]), x.clone()],
                ));
                let mut c = case(
                    format!("activation backward {k} {t:?} {n}"),
                    op::ACTIVATION_BWD,
                    kind(k).as_bytes(),
                    vec![dy.clone(), dy, x],
                );
                c.alias = vec![(1, 0)];
                cases.push(c);
            }
        }
        let shape = [5, 3, 20];
        let mut halves = || Tensor::strided(t, &shape, &[120, 40, 1], || rng.unit() * 4.0);
        let (g, u) = (halves(), halves().skewed(20));
        let none = NoParams::default();
        cases.push(case(
            format!("swiglu {t:?}"),
            op::SWIGLU_FWD,
            none.as_bytes(),
            vec![Tensor::poison(t, &shape), g.clone(), u.clone()],
        ));
        let dy = Tensor::random(&mut rng, t, &shape, 1.0);
        let (dg, du) = (
            Tensor::strided(t, &shape, &[120, 40, 1], || 0.0),
            Tensor::strided(t, &shape, &[120, 40, 1], || 0.0),
        );
        cases.push(case(
            format!("swiglu backward {t:?}"),
            op::SWIGLU_BWD,
            none.as_bytes(),
            vec![dg, du, dy, g, u],
        ));
        for beta in [0.0, 0.5] {
            let p = AxpbyParams {
                alpha: -1.5,
                beta,
                ..Default::default()
            };
            let y = if beta == 0.0 {
                Tensor::poison(t, &[99])
            } else {
                Tensor::random(&mut rng, t, &[99], 1.0)
            };
            let x = Tensor::random(&mut rng, FLOATS[(i + 1) % 3], &[99], 1.0).skewed(5);
            cases.push(case(
                format!("axpby {t:?} {beta}"),
                op::AXPBY,
                p.as_bytes(),
                vec![y, x],
            ));
        }
        let p = ClampParams {
            lo: -0.25,
            hi: 0.5,
            ..Default::default()
        };
        let mut x = Tensor::random(&mut rng, t, &[50], 1.0);
        x.data[..4].fill(0xff);
        cases.push(case(
            format!("clamp {t:?}"),
            op::CLAMP,
            p.as_bytes(),
            vec![Tensor::poison(t, &[50]), x],
        ));
        let (a, b) = (
            Tensor::random(&mut rng, t, &[9, 13], 1.0),
            Tensor::random(&mut rng, F32, &[9, 13], 1.0),
        );
        cases.push(case(
            format!("add {t:?}"),
            op::ADD,
            none.as_bytes(),
            vec![Tensor::poison(t, &[9, 13]), a, b.skewed(1)],
        ));
    }
    for t in [F32, Bf16, I32, U32, I64, U8] {
        for k in binary::ADD..=binary::POW {
            let mut value = || match (t.is_float(), k) {
                (true, binary::POW) => rng.unit() + 1.5,
                (true, _) => rng.unit() * 3.0,
                (false, _) => rng.below(7) as f64,
            };
            let shape = [4, 6, 17];
            let a = Tensor::strided(t, &shape, &[17, 0, 1], &mut value);
            let b = Tensor::strided(t, &shape, &[0, 17, 1], &mut value);
            cases.push(case(
                format!("binary {k} {t:?}"),
                op::BINARY,
                kind(k).as_bytes(),
                vec![Tensor::poison(t, &shape), a, b],
            ));
        }
        for k in compare::EQ..=compare::GE {
            let mut any = || Tensor::new(t, &[100], || rng.below(4) as f64);
            let (a, b) = (any(), any());
            cases.push(case(
                format!("compare {k} {t:?}"),
                op::COMPARE,
                kind(k).as_bytes(),
                vec![Tensor::poison(U8, &[100]), a, b],
            ));
        }
    }
    run_all("pointwise", &cases);
}

#[test]
fn random_numbers_and_programs() {
    let mut rng = Rng(3);
    let mut cases = Vec::new();
    let dynamic = PhiloxDyn {
        seed: 0x1234_5678_9abc_def0,
        offset: 0xffff_fff0,
        stream: 0x0fed_cba9_8765_4321,
        ..Default::default()
    };
    for n in [1u64, 6, 1003] {
        for (k, t) in [
            (philox::BITS, U32),
            (philox::UNIFORM, F32),
            (philox::UNIFORM, Bf16),
            (philox::NORMAL, F32),
            (philox::NORMAL, F16),
        ] {
            let p = PhiloxParams {
                kind: k,
                lo: -0.5,
                hi: 1.5,
                ..Default::default()
            };
            let mut c = case(
                format!("philox {k} {t:?} {n}"),
                op::PHILOX,
                p.as_bytes(),
                vec![Tensor::poison(t, &[n])],
            );
            c.dynamic = dynamic.as_bytes().to_vec();
            (c.relative, c.flat) = (1.2e-7, 0.0);
            cases.push(c);
        }
        for p in [0.0, 0.1, 1.0] {
            let params = DropoutParams {
                p,
                ..Default::default()
            };
            // An inner dim that is no multiple of four, so groups begin inside a counter.
            let shape = [3, n];
            let x = Tensor::strided(Bf16, &shape, &[n as i64 + 5, 1], || rng.unit());
            let r = Tensor::random(&mut rng, F32, &shape, 1.0);
            for residual in [r, ABSENT] {
                let mut c = case(
                    format!("dropout {p} {n}"),
                    op::DROPOUT,
                    params.as_bytes(),
                    vec![Tensor::poison(F32, &shape), x.clone(), residual],
                );
                c.dynamic = dynamic.as_bytes().to_vec();
                cases.push(c);
            }
        }
    }
    // A program with every instruction, and one that swaps two operands.
    let mut p = ProgramParams {
        writes: 1,
        ..Default::default()
    };
    let mut push = |op, dst, a, b, c, imm| {
        let i = &mut p.insts[p.n_insts as usize];
        (i.op, i.dst, i.a, i.b, i.c, i.imm) = (op, dst, a, b, c, imm);
        p.n_insts += 1;
    };
    push(inst::CONST, 10, 0, 0, 0, 0.75);
    push(inst::SCALAR, 11, 0, 0, 0, 3.0);
    push(inst::ADD, 12, 0, 1, 0, 0.0);
    push(inst::SUB, 13, 12, 10, 0, 0.0);
    push(inst::MUL, 13, 13, 11, 0, 0.0);
    push(inst::ABS, 14, 13, 0, 0, 0.0);
    push(inst::ADD, 14, 14, 10, 0, 0.0);
    push(inst::SQRT, 15, 14, 0, 0, 0.0);
    push(inst::RSQRT, 16, 14, 0, 0, 0.0);
    push(inst::DIV, 17, 15, 16, 0, 0.0);
    push(inst::LOG, 18, 17, 0, 0, 0.0);
    push(inst::NEG, 19, 18, 0, 0, 0.0);
    push(inst::EXP, 20, 19, 0, 0, 0.0);
    push(inst::TANH, 21, 20, 0, 0, 0.0);
    push(inst::ERF, 22, 21, 0, 0, 0.0);
    push(inst::SIGMOID, 23, 22, 0, 0, 0.0);
    push(inst::MAX, 24, 23, 2, 0, 0.0);
    push(inst::MIN, 25, 24, 15, 0, 0.0);
    push(inst::FMA, 26, 25, 10, 13, 0.0);
    push(inst::LT, 27, 1, 2, 0, 0.0);
    push(inst::FLOOR, 28, 26, 0, 0, 0.0);
    push(inst::SELECT, 29, 27, 26, 28, 0.0);
    push(inst::MOV, 0, 29, 0, 0, 0.0);
    let mut swap = ProgramParams {
        writes: 3,
        n_insts: 3,
        ..Default::default()
    };
    for (k, (dst, a)) in [(5, 0), (0, 1), (1, 5)].into_iter().enumerate() {
        let i = &mut swap.insts[k];
        (i.op, i.dst, i.a) = (inst::MOV, dst, a);
    }
    for t in FLOATS {
        let x = Tensor::random(&mut rng, t, &[7, 33], 2.0);
        let b = Tensor::strided(F32, &[7, 33], &[0, 1], || rng.unit());
        let z = Tensor::strided(t, &[7, 33], &[1, 7], || rng.unit());
        let mut c = case(
            format!("program {t:?}"),
            op::ELEMENTWISE_PROGRAM,
            p.as_bytes(),
            vec![x.clone().skewed(1), b, z],
        );
        c.dynamic = ProgramDyn::new(&[9.0, 9.0, 9.0, -1.25]).as_bytes().to_vec();
        (c.relative, c.flat) = (1e-5, 1e-5);
        cases.push(c);
        let y = Tensor::random(&mut rng, t, &[7, 33], 2.0);
        cases.push(case(
            format!("swap {t:?}"),
            op::ELEMENTWISE_PROGRAM,
            swap.as_bytes(),
            vec![x, y],
        ));
    }
    run_all("random", &cases);
}

#[test]
fn reductions() {
    let mut rng = Rng(4);
    let mut cases = Vec::new();
    for (i, t) in FLOATS.into_iter().enumerate() {
        for shape in [[3u64, 5, 7], [2, 33, 40], [1, 1100, 5], [9, 3, 170]] {
            let [a, b, c] = shape.map(|n| n as i64);
            for (j, stride) in [[b * c, c, 1], [1, a * c, a], [2 * b * c + 3, c, 1]]
                .into_iter()
                .enumerate()
            {
                let x = Tensor::strided(t, &shape, &stride, || rng.unit()).skewed(i + j);
                for axes in 0..8u32 {
                    // f32 takes every combination, the others halves of them.
                    if i > 0 && (axes as usize + i + j).is_multiple_of(2) {
                        continue;
                    }
                    let kind = 1 + (axes + j as u32 + i as u32) % 5;
                    let accum = axes % 2 == 1;
                    let out: Vec<u64> = (0..3)
                        .map(|d| if axes >> d & 1 == 1 { 1 } else { shape[d] })
                        .collect();
                    let dst = if j == 0 { t } else { F32 };
                    let dst = if accum {
                        Tensor::random(&mut rng, dst, &out, 1.0)
                    } else {
                        Tensor::poison(dst, &out)
                    };
                    let p = ReduceParams {
                        kind,
                        axes,
                        flags: if accum { FLAG_ACCUM } else { 0 },
                        ..Default::default()
                    };
                    let mut one = case(
                        format!("reduce {kind} {t:?} {shape:?} {stride:?} axes {axes:#b}"),
                        op::REDUCE,
                        p.as_bytes(),
                        vec![dst, x.clone()],
                    );
                    one.flat = 1e-5;
                    cases.push(one);
                }
            }
        }
    }
    // Long rows, which are cut into parts, along and across.
    for (shape, axes) in [([2u64, 40_000], 2u32), ([40_000, 2], 1), ([1, 70_001], 3)] {
        let x = Tensor::random(&mut rng, F32, &shape, 1.0);
        let out: Vec<u64> = (0..2)
            .map(|d| if axes >> d & 1 == 1 { 1 } else { shape[d] })
            .collect();
        let p = ReduceParams {
            kind: reduce::SUM,
            axes,
            ..Default::default()
        };
        let mut c = case(
            format!("reduce long {shape:?}"),
            op::REDUCE,
            p.as_bytes(),
            vec![Tensor::poison(F32, &out), x],
        );
        c.flat = 1e-4;
        cases.push(c);
    }
    for t in [F32, Bf16, I32, I64] {
        for (shape, dim) in [
            ([3u64, 5, 7], 2u32),
            ([2, 33, 40], 1),
            ([1, 5000, 2], 1),
            ([40, 3, 17], 0),
        ] {
            let x = Tensor::new(t, &shape, || rng.below(6) as f64);
            let p = DimParams {
                dim,
                ..Default::default()
            };
            let mut c = case(
                format!("cumsum {t:?} {shape:?}"),
                op::CUMSUM,
                p.as_bytes(),
                vec![x.clone(), x.clone()],
            );
            c.alias = vec![(1, 0)];
            cases.push(c);
            if !t.is_float() {
                continue;
            }
            let mut y = x.clone();
            // A NaN or two; the first wins.
            let e = (t.bits() / 8) as usize;
            for at in [17 * e, 40 * e] {
                y.data[at..at + e].fill(0xff);
            }
            for kind in [0, 1] {
                let mut out = shape;
                out[dim as usize] = 1;
                let p = DimParams {
                    kind,
                    dim,
                    ..Default::default()
                };
                for (x, index) in [(&x, I32), (&y, I64)] {
                    cases.push(case(
                        format!("arg_reduce {kind} {t:?} {shape:?}"),
                        op::ARG_REDUCE,
                        p.as_bytes(),
                        vec![Tensor::poison(index, &out), x.clone()],
                    ));
                }
            }
        }
    }
    let index = Tensor::strided(I64, &[500], &[2], || rng.below(12) as f64 - 1.0);
    cases.push(case(
        "histogram",
        op::HISTOGRAM,
        NoParams::default().as_bytes(),
        vec![Tensor::poison(I32, &[10]), index],
    ));
    run_all("reductions", &cases);
}

#[test]
fn many_tensors() {
    let mut rng = Rng(5);
    let mut cases = Vec::new();
    let none = NoParams::default();
    let sizes = [1u64, 7, 33, 4099, 40_003];
    for count in [0u64, 3, 70] {
        let mut list = Vec::new();
        for k in 0..count {
            let n = sizes[k as usize % 5].min(if count > 5 { 300 } else { u64::MAX });
            list.push(
                Tensor::random(&mut rng, FLOATS[k as usize % 3], &[n], 2.0).skewed(k as usize % 4),
            );
        }
        if count > 0 {
            list.push(Tensor::strided(Bf16, &[9, 11], &[30, 2], || rng.unit()));
        }
        let with = |first: Tensor| {
            let mut v = vec![first];
            v.extend(list.iter().cloned());
            v
        };
        let one = |v: f64| Tensor::new(F32, &[1], || v);
        let mut c = case(
            format!("multi_sumsq {count}"),
            op::MULTI_SUMSQ,
            none.as_bytes(),
            with(one(0.5)),
        );
        c.relative = 1e-6;
        cases.push(c);
        for coef in [one(0.25), ABSENT] {
            let mut c = case(
                format!("multi_scale {count}"),
                op::MULTI_SCALE,
                none.as_bytes(),
                with(coef),
            );
            let d = ScaleDyn {
                scale: 1.5,
                ..Default::default()
            };
            c.dynamic = d.as_bytes().to_vec();
            cases.push(c);
        }
        let mut bad = with(Tensor::new(U32, &[1], || 5.0));
        for t in bad.iter_mut().skip(1).step_by(2) {
            let e = (t.dtype.bits() / 8) as usize;
            let end = t.data.len();
            t.data[end - e..].fill(0xff);
        }
        cases.push(case(
            format!("nonfinite_count {count}"),
            op::NONFINITE_COUNT,
            none.as_bytes(),
            bad,
        ));
    }
    for (p_type, g_type, master, mode) in [
        (F32, F32, false, 0),
        (Bf16, Bf16, true, 0),
        (F16, F32, false, 1),
        (F32, Bf16, false, 0),
    ] {
        let p = AdamwParams {
            flags: if master { FLAG_MASTER } else { 0 },
            mode,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-6,
            weight_decay: 0.05,
            ..Default::default()
        };
        let d = AdamwDyn {
            lr: 3e-3,
            grad_scale: 0.5,
            step: 7,
            ..Default::default()
        };
        for (skip, n_tensors) in [(Some(0.0), 3), (None, 70), (Some(1.0), 2)] {
            let mut o = vec![
                Tensor::new(F32, &[1], || 0.25),
                skip.map_or(ABSENT, |v| Tensor::new(U32, &[1], || v)),
            ];
            for k in 0..n_tensors {
                let n = if n_tensors > 5 {
                    1 + k as u64
                } else {
                    sizes[k + 1]
                };
                let skew = k % 3;
                o.push(Tensor::random(&mut rng, p_type, &[n], 2.0).skewed(skew));
                o.push(Tensor::random(&mut rng, g_type, &[n], 3.0).skewed(skew + 1));
                o.push(Tensor::random(&mut rng, F32, &[n], 1.0));
                o.push(Tensor::new(F32, &[n], || rng.unit().powi(2)).skewed(skew));
                if master {
                    o.push(Tensor::random(&mut rng, F32, &[n], 2.0));
                }
            }
            let mut c = case(
                format!("adamw {p_type:?} {g_type:?} {n_tensors}"),
                op::ADAMW,
                p.as_bytes(),
                o,
            );
            c.dynamic = d.as_bytes().to_vec();
            cases.push(c);
        }
    }
    run_all("multi", &cases);
}

#[test]
fn rows_by_index() {
    let mut rng = Rng(6);
    let mut cases = Vec::new();
    let p = IndexParams {
        flags: FLAG_HAS_IGNORE,
        ignore: 2,
        ..Default::default()
    };
    for it in [I32, I64] {
        for (v, d, n) in [(1u64, 1u64, 1u64), (9, 33, 40), (50, 300, 77), (7, 8, 3000)] {
            let mut index = |shape: &[u64]| {
                Tensor::new(it, shape, || match rng.below(12) {
                    0 => -1.0,
                    1 => v as f64,
                    _ => rng.below(v) as f64,
                })
            };
            let (i, bt) = (index(&[n]), index(&[2, n]));
            for t in [U8, Bf16, F32, I64] {
                let table =
                    Tensor::strided(t, &[v, d], &[2 * d as i64, 1], || rng.below(100) as f64);
                cases.push(case(
                    format!("gather {t:?} {v} {d} {n}"),
                    op::GATHER_ROWS,
                    p.as_bytes(),
                    vec![Tensor::poison(t, &[n, d]).skewed(1), table, i.clone()],
                ));
            }
            // Rows of two dims, transposed.
            let table = Tensor::strided(F32, &[v, 3, 4], &[12, 1, 3], || rng.unit());
            cases.push(case(
                format!("gather of rank 3 {v}"),
                op::GATHER_ROWS,
                p.as_bytes(),
                vec![Tensor::poison(F32, &[n, 3, 4]), table, i.clone()],
            ));
            for (t, s) in [(F32, F32), (F32, Bf16), (Bf16, Bf16)] {
                let src = Tensor::strided(s, &[n, d], &[d as i64 + 1, 1], || rng.unit());
                let table = Tensor::random(&mut rng, t, &[v, d], 1.0).skewed(1);
                let mut c = case(
                    format!("scatter {t:?} {s:?} {v} {d} {n}"),
                    op::SCATTER_ADD_ROWS,
                    p.as_bytes(),
                    vec![table, src, i.clone()],
                );
                // In order of position: the same sums, bit for bit.
                (c.relative, c.flat) = (0.0, 0.0);
                cases.push(c);
                let table = Tensor::random(&mut rng, t, &[v, d], 1.0);
                let pos = Tensor::random(&mut rng, t, &[n + 2, d], 1.0);
                for pos in [pos, ABSENT] {
                    cases.push(case(
                        format!("embedding {t:?} {s:?} {v} {d} {n}"),
                        op::EMBEDDING_FWD,
                        p.as_bytes(),
                        vec![
                            Tensor::poison(s, &[2, n, d]),
                            table.clone(),
                            bt.clone(),
                            pos,
                        ],
                    ));
                }
                if t == F32 {
                    let dy = Tensor::random(&mut rng, s, &[2, n, d], 1.0);
                    let dpos = Tensor::random(&mut rng, F32, &[n, d], 1.0);
                    let mut c = case(
                        format!("embedding backward {s:?} {v} {d} {n}"),
                        op::EMBEDDING_BWD,
                        p.as_bytes(),
                        vec![
                            Tensor::random(&mut rng, F32, &[v, d], 1.0),
                            dpos,
                            dy,
                            bt.clone(),
                        ],
                    );
                    (c.relative, c.flat) = (0.0, 0.0);
                    cases.push(c);
                }
            }
        }
    }
    run_all("rows", &cases);
}

#[test]
fn sorting() {
    let mut rng = Rng(7);
    let mut cases = Vec::new();
    for t in [F32, Bf16, F16, I32, I64] {
        for (rows, n) in [(1u64, 1u64), (3, 17), (2, 1024), (2, 5000)] {
            let mut k = 0;
            let keys = Tensor::strided(t, &[rows, n], &[n as i64 + 3, 1], || {
                k += 1;
                match k % 50 {
                    0 if t.is_float() => f64::NAN,
                    1 => -0.0,
                    2 if t.is_float() => -f64::INFINITY,
                    // Many ties.
                    _ => rng.below(40) as f64 - 20.0,
                }
            });
            let mut v = 0.0;
            let values = Tensor::new(I32, &[rows, n], || {
                v += 1.0;
                v
            });
            for flags in [0, FLAG_DESCENDING] {
                let p = DimParams {
                    flags,
                    ..Default::default()
                };
                cases.push(case(
                    format!("sort {t:?} {rows}x{n} {flags}"),
                    op::SORT_PAIRS,
                    p.as_bytes(),
                    vec![
                        Tensor::poison(t, &[rows, n]),
                        Tensor::poison(I32, &[rows, n]),
                        keys.clone(),
                        values.clone(),
                    ],
                ));
            }
            if t.is_float() {
                let k = n.min(9);
                cases.push(case(
                    format!("topk {t:?} {rows}x{n}"),
                    op::TOPK,
                    DimParams::default().as_bytes(),
                    vec![
                        Tensor::poison(t, &[rows, k]),
                        Tensor::poison(I64, &[rows, k]),
                        keys,
                    ],
                ));
            }
        }
    }
    run_all("sorting", &cases);
}
