//! Primitives that move, map and reduce against plain f64 references.

use super::bench::*;
use crossweave_hal::DType;
use crossweave_hal::abi::op;

const NO: op::NoParams = op::NoParams {
    size: size_of::<op::NoParams>() as u32,
    flags: 0,
};
fn kind(kind: u32) -> op::KindParams {
    op::KindParams {
        kind,
        ..Default::default()
    }
}

pub fn copy_strided(b: &Bench) {
    let mut r = Rng(31);
    for t in [DType::F32, DType::Bf16, DType::I64, DType::U8] {
        let v: Vec<f64> = (0..60).map(|_| r.below(100) as f64).collect();
        // A transpose into rows with gaps, and a broadcast.
        let x = T::strided(t, &[3, 4, 5], &[1, 3, 12], &v);
        let o = [T::poison_strided(t, &[3, 4, 5], &[30, 7, 1]), x.clone()];
        b.check(
            "copy",
            op::COPY_STRIDED,
            NO.as_bytes(),
            &[],
            &o,
            &[],
            &[(0, x.values(), 0.0)],
        );
        let x = T::strided(t, &[3, 4, 5], &[0, 1, 0], &v);
        let o = [T::poison(t, &[3, 4, 5]), x.clone()];
        b.check(
            "broadcast",
            op::COPY_STRIDED,
            NO.as_bytes(),
            &[],
            &o,
            &[],
            &[(0, x.values(), 0.0)],
        );
    }
}

pub fn cast(b: &Bench) {
    let mut r = Rng(32);
    for from in STORAGES {
        for to in [DType::F32, DType::Bf16, DType::F16, DType::I32, DType::U8] {
            let x = T::padded(&mut r, from, &[5, 33], 100.0);
            let y = x
                .values()
                .iter()
                .map(|v| match to {
                    DType::I32 => v.trunc(),
                    DType::U8 => v.trunc().clamp(0.0, 255.0),
                    _ => *v,
                })
                .collect();
            let o = [T::poison(to, &[5, 33]), x];
            b.check(
                "cast",
                op::CAST,
                NO.as_bytes(),
                &[],
                &o,
                &[],
                &[(0, y, 0.0)],
            );
        }
    }
    let x = T::new(DType::F32, &[4], &[f64::NAN, 1e30, -1e30, f64::INFINITY]);
    let y = vec![0.0, i32::MAX as f64, i32::MIN as f64, i32::MAX as f64];
    b.check(
        "cast saturates",
        op::CAST,
        NO.as_bytes(),
        &[],
        &[T::poison(DType::I32, &[4]), x],
        &[],
        &[(0, y, 0.0)],
    );
}

pub fn fill_strided(b: &Bench) {
    for t in [
        DType::F32,
        DType::Bf16,
        DType::F16,
        DType::I32,
        DType::I64,
        DType::U8,
    ] {
        let p = op::FillParams {
            value: 3.0,
            ..Default::default()
        };
        let o = [T::poison_strided(t, &[3, 5], &[9, 1])];
        b.check(
            "fill",
            op::FILL_STRIDED,
            p.as_bytes(),
            &[],
            &o,
            &[],
            &[(0, vec![3.0; 15], 0.0)],
        );
    }
}

pub fn iota(b: &Bench) {
    for t in [DType::F32, DType::I32, DType::I64] {
        let p = op::IotaParams {
            start: -3.0,
            step: 2.0,
            ..Default::default()
        };
        let y = (0..35).map(|i| -3.0 + 2.0 * i as f64).collect();
        b.check(
            "iota",
            op::IOTA,
            p.as_bytes(),
            &[],
            &[T::poison(t, &[5, 7])],
            &[],
            &[(0, y, 0.0)],
        );
    }
}

pub fn unary(b: &Bench) {
    let mut r = Rng(33);
    let fs: [(u32, fn(f64) -> f64); 11] = [
        (op::unary::NEG, |x| -x),
        (op::unary::ABS, f64::abs),
        (op::unary::EXP, f64::exp),
        (op::unary::LOG, f64::ln),
        (op::unary::SQRT, f64::sqrt),
        (op::unary::RSQRT, |x| 1.0 / x.sqrt()),
        (op::unary::TANH, f64::tanh),
        (op::unary::SIGMOID, |x| 1.0 / (1.0 + (-x).exp())),
        (op::unary::SIN, f64::sin),
        (op::unary::COS, f64::cos),
        (op::unary::FLOOR, f64::floor),
    ];
    for t in STORAGES {
        for (k, f) in fs {
            let positive = [op::unary::LOG, op::unary::SQRT, op::unary::RSQRT].contains(&k);
            let v: Vec<f64> = r
                .floats(4 * 33, 6.0)
                .iter()
                .map(|v| if positive { v.abs() + 0.01 } else { *v })
                .collect();
            let x = T::strided(t, &[4, 33], &[40, 1], &v);
            let y = x.values().iter().map(|v| f(*v)).collect();
            b.check(
                &format!("unary {k}"),
                op::UNARY,
                kind(k).as_bytes(),
                &[],
                &[T::poison(t, &[4, 33]), x],
                &[],
                &[(0, y, 3e-7)],
            );
        }
    }
    // erf at points whose values are in every table.
    let x = T::new(DType::F32, &[5], &[0.0, 0.5, 1.0, -2.0, 9.0]);
    let y = vec![0.0, 0.5204998778, 0.8427007929, -0.9953222650, 1.0];
    b.check(
        "erf",
        op::UNARY,
        kind(op::unary::ERF).as_bytes(),
        &[],
        &[T::poison(DType::F32, &[5]), x],
        &[],
        &[(0, y, 3e-7)],
    );
}

pub fn binary(b: &Bench) {
    let mut r = Rng(34);
    let fs: [(u32, fn(f64, f64) -> f64); 7] = [
        (op::binary::ADD, |x, y| x + y),
        (op::binary::SUB, |x, y| x - y),
        (op::binary::MUL, |x, y| x * y),
        (op::binary::DIV, |x, y| x / y),
        (op::binary::MAX, f64::max),
        (op::binary::MIN, f64::min),
        (op::binary::POW, f64::powf),
    ];
    for t in STORAGES {
        for (k, f) in fs {
            let x = T::new(
                t,
                &[4, 33],
                &r.floats(132, 2.0)
                    .iter()
                    .map(|v| v.abs() + 0.1)
                    .collect::<Vec<_>>(),
            );
            let z = T::strided(t, &[4, 33], &[0, 1], &r.floats(33, 2.0).repeat(4));
            let y: Vec<f64> = x
                .values()
                .iter()
                .zip(z.values())
                .map(|(a, b)| f(*a, b))
                .collect();
            let o = [T::poison(t, &[4, 33]), x, z];
            for alias in [&[][..], &[(0, 1)]] {
                b.check(
                    &format!("binary {k}"),
                    op::BINARY,
                    kind(k).as_bytes(),
                    &[],
                    &o,
                    alias,
                    &[(0, y.clone(), 1e-6)],
                );
            }
        }
    }
}

pub fn compare(b: &Bench) {
    let fs: [(u32, fn(&f64, &f64) -> bool); 6] = [
        (op::compare::EQ, f64::eq),
        (op::compare::NE, f64::ne),
        (op::compare::LT, f64::lt),
        (op::compare::LE, f64::le),
        (op::compare::GT, f64::gt),
        (op::compare::GE, f64::ge),
    ];
    for t in [DType::F32, DType::Bf16, DType::F16, DType::I32, DType::I64] {
        for (k, f) in fs {
            let (mut u, v) = (
                vec![1.0, 2.0, 3.0, -4.0, 5.0, 0.0],
                [1.0, 3.0, 2.0, -4.0, 9.0, 1.0],
            );
            if t.is_float() {
                u[5] = f64::NAN;
            }
            let y = u
                .iter()
                .zip(&v)
                .map(|(a, b)| f(a, b) as u8 as f64)
                .collect();
            let o = [
                T::poison(DType::U8, &[6]),
                T::new(t, &[6], &u),
                T::new(t, &[6], &v),
            ];
            b.check(
                &format!("compare {k}"),
                op::COMPARE,
                kind(k).as_bytes(),
                &[],
                &o,
                &[],
                &[(0, y, 0.0)],
            );
        }
    }
}

pub fn select(b: &Bench) {
    let mut r = Rng(35);
    for t in [DType::F32, DType::Bf16, DType::I64] {
        let c: Vec<f64> = (0..66).map(|_| r.below(3) as f64).collect();
        let (x, z) = (
            T::new(t, &[2, 33], &[1.0; 66]),
            T::strided(
                t,
                &[2, 33],
                &[0, 1],
                &(0..33).map(f64::from).collect::<Vec<_>>().repeat(2),
            ),
        );
        let y = (0..66)
            .map(|i| if c[i] != 0.0 { 1.0 } else { (i % 33) as f64 })
            .collect();
        let o = [
            T::poison(t, &[2, 33]),
            T::new(DType::U8, &[2, 33], &c),
            x,
            z,
        ];
        b.check(
            "select",
            op::SELECT,
            NO.as_bytes(),
            &[],
            &o,
            &[],
            &[(0, y, 0.0)],
        );
    }
}

pub fn axpby(b: &Bench) {
    let mut r = Rng(36);
    for t in STORAGES {
        for beta in [0.0, -1.25] {
            let p = op::AxpbyParams {
                alpha: 0.5,
                beta,
                ..Default::default()
            };
            let x = T::random(&mut r, DType::Bf16, &[37], 1.0);
            // beta 0 does not read y: NaN must not survive.
            let y = if beta == 0.0 {
                T::poison(t, &[37])
            } else {
                T::random(&mut r, t, &[37], 1.0)
            };
            let want = x
                .values()
                .iter()
                .zip(y.values())
                .map(|(x, y)| 0.5 * x + if beta == 0.0 { 0.0 } else { beta * y })
                .collect();
            b.check(
                "axpby",
                op::AXPBY,
                p.as_bytes(),
                &[],
                &[y, x],
                &[],
                &[(0, want, 2e-7)],
            );
        }
    }
}

pub fn clamp(b: &Bench) {
    for t in STORAGES {
        let p = op::ClampParams {
            lo: -1.0,
            hi: 2.0,
            ..Default::default()
        };
        let x = T::new(t, &[6], &[-3.0, -0.5, f64::NAN, 1.5, 7.0, f64::INFINITY]);
        let y = vec![-1.0, -0.5, f64::NAN, 1.5, 2.0, 2.0];
        b.check(
            "clamp",
            op::CLAMP,
            p.as_bytes(),
            &[],
            &[T::poison(t, &[6]), x],
            &[],
            &[(0, y, 0.0)],
        );
    }
}

pub fn reduce(b: &Bench) {
    let mut r = Rng(37);
    for t in STORAGES {
        for (k, axes) in [1, 2, 3, 4, 5]
            .into_iter()
            .flat_map(|k| [0b001u32, 0b010, 0b100, 0b101, 0b111].map(|a| (k, a)))
        {
            let s = [3u64, 5, 7];
            let x = T::strided(t, &s, &[60, 9, 1], &r.floats(105, 1.5));
            let kept: Vec<u64> = (0..3)
                .map(|d| if axes >> d & 1 == 1 { 1 } else { s[d] })
                .collect();
            let n = kept.iter().product::<u64>() as usize;
            let add = k == op::reduce::SUM;
            let y0 = if add {
                T::random(&mut r, DType::F32, &kept, 1.0)
            } else {
                T::poison(DType::F32, &kept)
            };
            let start = match k {
                op::reduce::MAX => f64::NEG_INFINITY,
                op::reduce::MIN => f64::INFINITY,
                op::reduce::PROD => 1.0,
                _ => 0.0,
            };
            let mut y = if add { y0.values() } else { vec![start; n] };
            for (i, v) in x.values().iter().enumerate() {
                let at = [i / 35, i / 7 % 5, i % 7];
                let to = (0..3).fold(0, |to, d| {
                    to * kept[d] as usize + if axes >> d & 1 == 1 { 0 } else { at[d] }
                });
                y[to] = match k {
                    op::reduce::SUM => y[to] + v,
                    op::reduce::SUMSQ => y[to] + v * v,
                    op::reduce::MAX => y[to].max(*v),
                    op::reduce::MIN => y[to].min(*v),
                    _ => y[to] * v,
                };
            }
            let p = op::ReduceParams {
                kind: k,
                axes,
                flags: if add { op::FLAG_ACCUM } else { 0 },
                ..Default::default()
            };
            b.check(
                &format!("reduce {k} {axes:#b}"),
                op::REDUCE,
                p.as_bytes(),
                &[],
                &[y0, x],
                &[],
                &[(0, y, 1e-6)],
            );
        }
    }
}

pub fn arg_reduce(b: &Bench) {
    for t in STORAGES {
        for (kind, want) in [(0, vec![1.0, 2.0]), (1, vec![0.0, 0.0])] {
            let x = T::new(t, &[2, 4], &[1.0, 5.0, 5.0, 2.0, -1.0, 0.0, f64::NAN, 9.0]);
            let p = op::DimParams {
                kind,
                dim: 1,
                ..Default::default()
            };
            b.check(
                "arg_reduce",
                op::ARG_REDUCE,
                p.as_bytes(),
                &[],
                &[T::poison(DType::I64, &[2, 1]), x],
                &[],
                &[(0, want, 0.0)],
            );
        }
    }
}

pub fn cumsum(b: &Bench) {
    let mut r = Rng(38);
    for t in [DType::F32, DType::Bf16, DType::I32, DType::I64] {
        let x = T::new(
            t,
            &[3, 9],
            &(0..27).map(|_| r.below(7) as f64).collect::<Vec<_>>(),
        );
        let mut y = x.values();
        (1..3).for_each(|i| (0..9).for_each(|j| y[i * 9 + j] += y[(i - 1) * 9 + j]));
        let p = op::DimParams::default();
        b.check(
            "cumsum",
            op::CUMSUM,
            p.as_bytes(),
            &[],
            &[T::poison(t, &[3, 9]), x],
            &[],
            &[(0, y, 0.0)],
        );
    }
}

pub fn nonfinite_count(b: &Bench) {
    for t in STORAGES {
        let x = T::new(t, &[4], &[1.0, f64::NAN, f64::INFINITY, 0.0]);
        let z = T::new(t, &[2], &[f64::NEG_INFINITY, -1.0]);
        let o = [T::new(DType::U32, &[1], &[4.0]), x, z];
        b.check(
            "nonfinite",
            op::NONFINITE_COUNT,
            NO.as_bytes(),
            &[],
            &o,
            &[],
            &[(0, vec![7.0], 0.0)],
        );
    }
}
