//! Pointwise fused ops against plain f64 references.

use super::bench::*;
use crossweave_hal::DType;
use crossweave_hal::abi::op;

const NO: op::NoParams = op::NoParams {
    size: size_of::<op::NoParams>() as u32,
    flags: 0,
};

/// erf by its series in f64 (|x| < 4.4; beyond, ±1).
pub fn erf(x: f64) -> f64 {
    if x.abs() > 4.4 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / n as f64;
        sum += term / (2 * n + 1) as f64;
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

fn act(kind: u32, x: f64) -> f64 {
    match kind {
        op::activation::GELU_TANH => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + u.tanh())
        }
        op::activation::GELU_ERF => 0.5 * x * (1.0 + erf(x / 2f64.sqrt())),
        op::activation::SILU => x / (1.0 + (-x).exp()),
        _ => x.max(0.0),
    }
}

/// The derivative by a central difference in f64 (exact for ReLU away from 0).
fn act_slope(kind: u32, x: f64) -> f64 {
    let h = 1e-5;
    (act(kind, x + h) - act(kind, x - h)) / (2.0 * h)
}

fn kinds() -> [op::KindParams; 4] {
    [1, 2, 3, 4].map(|kind| op::KindParams {
        kind,
        ..Default::default()
    })
}

pub fn activation_fwd(b: &Bench) {
    let mut r = Rng(6);
    for t in STORAGES {
        for p in kinds() {
            for n in [0u64, 1, 7, 4099] {
                let x = T::random(&mut r, t, &[n], 6.0);
                let y = x.values().iter().map(|x| act(p.kind, *x)).collect();
                let o = [T::poison(t, &[n]), x];
                b.check(
                    "activation_fwd",
                    op::ACTIVATION_FWD,
                    p.as_bytes(),
                    &[],
                    &o,
                    &[],
                    &[(0, y, 1e-6)],
                );
            }
        }
    }
}

pub fn activation_bwd(b: &Bench) {
    let mut r = Rng(7);
    for t in STORAGES {
        for p in kinds() {
            for n in [0u64, 1, 7, 1003] {
                let (x, dy) = (
                    T::random(&mut r, t, &[n], 5.0),
                    T::random(&mut r, t, &[n], 1.0),
                );
                let dv = dy.values();
                let dx: Vec<f64> = x
                    .values()
                    .iter()
                    .zip(&dv)
                    .map(|(x, d)| d * act_slope(p.kind, *x))
                    .collect();
                let o = [T::poison(t, &[n]), dy, x];
                for alias in [&[][..], &[(0, 1)]] {
                    b.check(
                        "activation_bwd",
                        op::ACTIVATION_BWD,
                        p.as_bytes(),
                        &[],
                        &o,
                        alias,
                        &[(0, dx.clone(), 2e-6)],
                    );
                }
            }
        }
    }
}

pub fn swiglu_fwd(b: &Bench) {
    let mut r = Rng(8);
    for t in STORAGES {
        let (gate, up) = (
            T::padded(&mut r, t, &[5, 37], 4.0),
            T::padded(&mut r, t, &[5, 37], 2.0),
        );
        let y = gate
            .values()
            .iter()
            .zip(up.values())
            .map(|(g, u)| act(3, *g) * u)
            .collect();
        let o = [T::poison(t, &[5, 37]), gate, up];
        b.check(
            "swiglu_fwd",
            op::SWIGLU_FWD,
            NO.as_bytes(),
            &[],
            &o,
            &[],
            &[(0, y, 1e-6)],
        );
    }
}

pub fn swiglu_bwd(b: &Bench) {
    let mut r = Rng(9);
    for t in STORAGES {
        let s = [5u64, 37];
        let (gate, up) = (T::padded(&mut r, t, &s, 4.0), T::padded(&mut r, t, &s, 2.0));
        let dy = T::random(&mut r, t, &s, 1.0);
        let (g, u, d) = (gate.values(), up.values(), dy.values());
        let dg = (0..d.len())
            .map(|i| d[i] * u[i] * act_slope(3, g[i]))
            .collect();
        let du = (0..d.len()).map(|i| d[i] * act(3, g[i])).collect();
        let half = T::poison_strided(t, &s, &[80, 1]);
        let o = [half.clone(), half, dy, gate, up];
        b.check(
            "swiglu_bwd",
            op::SWIGLU_BWD,
            NO.as_bytes(),
            &[],
            &o,
            &[],
            &[(0, dg, 2e-6), (1, du, 2e-6)],
        );
    }
}

pub fn rope(b: &Bench) {
    let mut r = Rng(10);
    for t in STORAGES {
        for ([bs, s, h, d], rot) in [
            ([2u64, 5, 3, 8], 8u64),
            ([1, 7, 2, 33], 16),
            ([1, 1, 1, 2], 2),
        ] {
            for flags in [
                0,
                op::FLAG_INTERLEAVED,
                op::FLAG_INVERSE,
                op::FLAG_INTERLEAVED | op::FLAG_INVERSE,
            ] {
                let row = (2 * h * d + 1) as i64;
                let stride = [s as i64 * row, row, d as i64, 1];
                let x = T::strided(t, &[bs, s, h, d], &stride, &r.floats(bs * s * h * d, 1.0));
                let angle = r.floats(s * rot / 2, 3.0);
                let table = |f: fn(f64) -> f64| {
                    T::new(
                        DType::F32,
                        &[s, rot / 2],
                        &angle.iter().map(|a| f(*a)).collect::<Vec<_>>(),
                    )
                };
                let (cos, sin) = (table(f64::cos), table(f64::sin));
                let (c, sn) = (cos.values(), sin.values());
                let mut y = x.values();
                let half = rot as usize / 2;
                for k in 0..(bs * s * h) as usize {
                    let (at, ang) = (k * d as usize, k / h as usize % s as usize * half);
                    for i in 0..half {
                        let (p, q) = if flags & op::FLAG_INTERLEAVED != 0 {
                            (at + 2 * i, at + 2 * i + 1)
                        } else {
                            (at + i, at + half + i)
                        };
                        let sign = if flags & op::FLAG_INVERSE != 0 {
                            -1.0
                        } else {
                            1.0
                        };
                        let (u, v) = (y[p], y[q]);
                        y[p] = u * c[ang + i] - v * sign * sn[ang + i];
                        y[q] = v * c[ang + i] + u * sign * sn[ang + i];
                    }
                }
                let p = op::RopeParams {
                    flags,
                    ..Default::default()
                };
                let o = [T::poison_strided(t, &[bs, s, h, d], &stride), x, cos, sin];
                for alias in [&[][..], &[(0, 1)]] {
                    b.check(
                        "rope",
                        op::ROPE,
                        p.as_bytes(),
                        &[],
                        &o,
                        alias,
                        &[(0, y.clone(), 1e-6)],
                    );
                }
            }
        }
    }
}
