//! Numbers that carry the error a correct evaluation in f32 may have made so far: the reference of a fused op is its decomposition over these,
//! so the bound it is held to is derived step by step from the bounds of its steps, and never chosen.
//!
//! First order: a step adds its own rounding (half an ulp, or 4 ulp for a transcendental) to what its inputs bring along through the
//! derivative. Sums count as sequential, the weakest order an implementation may have.

use super::num::{MIN_NORMAL, U};
use std::ops::{Add, Div, Mul, Neg, Sub};

/// A value and the absolute error of an f32 evaluation of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Num {
    /// In f64.
    pub v: f64,
    /// At most so far from `v`.
    pub e: f64,
}

/// An exact number.
#[inline]
pub fn num(v: f64) -> Num {
    Num { v, e: 0.0 }
}

/// A number that is not judged: any but a NaN will do.
#[inline]
pub fn unjudged(v: f64) -> Num {
    Num {
        v,
        e: f64::INFINITY,
    }
}

/// Error of one rounding; what is below the least normal number may be zero.
#[inline]
fn rounded(v: f64, e: f64) -> Num {
    Num {
        v,
        e: e + U * (v.abs() + e) + MIN_NORMAL,
    }
}

/// Error of a transcendental: 4 ulp, and an ulp is at most 2 U relative; what is below twice the least normal number may be zero.
#[inline]
fn transcendental(v: f64, e: f64) -> Num {
    Num {
        v,
        e: e + 8.0 * U * (v.abs() + e) + 2.0 * MIN_NORMAL,
    }
}

impl Add for Num {
    type Output = Num;
    #[inline]
    fn add(self, b: Num) -> Num {
        rounded(self.v + b.v, self.e + b.e)
    }
}
impl Sub for Num {
    type Output = Num;
    #[inline]
    fn sub(self, b: Num) -> Num {
        rounded(self.v - b.v, self.e + b.e)
    }
}
impl Mul for Num {
    type Output = Num;
    #[inline]
    fn mul(self, b: Num) -> Num {
        rounded(
            self.v * b.v,
            self.v.abs() * b.e + b.v.abs() * self.e + self.e * b.e,
        )
    }
}
impl Div for Num {
    type Output = Num;
    #[inline]
    fn div(self, b: Num) -> Num {
        let v = self.v / b.v;
        rounded(v, (self.e + v.abs() * b.e) / b.v.abs())
    }
}
impl Neg for Num {
    type Output = Num;
    #[inline]
    fn neg(self) -> Num {
        Num {
            v: -self.v,
            e: self.e,
        }
    }
}

impl Num {
    /// The number as f32 has it where `exact` was meant.
    pub fn rounded_from(self, exact: f64) -> Num {
        Num {
            v: exact,
            e: (self.v - exact).abs().max(U * exact.abs()),
        }
    }
    /// e^x.
    #[inline]
    pub fn exp(self) -> Num {
        let v = self.v.exp();
        transcendental(v, v * self.e.exp_m1())
    }
    /// Natural logarithm.
    pub fn ln(self) -> Num {
        transcendental(self.v.ln(), self.e / self.v)
    }
    /// Square root, correctly rounded.
    #[inline]
    pub fn sqrt(self) -> Num {
        let v = self.v.sqrt();
        rounded(v, if v > 0.0 { self.e / (2.0 * v) } else { 0.0 })
    }
    /// Logistic function.
    pub fn sigmoid(self) -> Num {
        let v = 1.0 / (1.0 + (-self.v).exp());
        transcendental(v, v * (1.0 - v) * self.e)
    }
    /// Hyperbolic tangent.
    pub fn tanh(self) -> Num {
        let v = self.v.tanh();
        transcendental(v, (1.0 - v * v) * self.e)
    }
    /// Error function.
    pub fn erf(self) -> Num {
        let slope = (-self.v * self.v).exp() * std::f64::consts::FRAC_2_SQRT_PI;
        transcendental(erf(self.v), slope * self.e)
    }
    /// The larger; a NaN of either comes through.
    #[inline]
    pub fn max(self, b: Num) -> Num {
        let v = if self.v > b.v || self.v.is_nan() {
            self.v
        } else {
            b.v
        };
        Num {
            v,
            e: self.e.max(b.e),
        }
    }
}

/// A sum that is still being added to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Total {
    v: f64,
    e: f64,
    mag: f64,
    n: f64,
}

impl Total {
    /// One more.
    #[inline]
    pub fn add(&mut self, x: Num) {
        self.v += x.v;
        self.e += x.e;
        self.mag += x.v.abs() + x.e;
        self.n += 1.0;
    }
    /// The sum in any order: n roundings of the sum of magnitudes.
    pub fn num(self) -> Num {
        Num {
            v: self.v,
            e: self.e + self.n * U * self.mag,
        }
    }
}

/// Sum in any order: n roundings of the sum of magnitudes.
pub fn sum(x: impl IntoIterator<Item = Num>) -> Num {
    let mut t = Total::default();
    x.into_iter().for_each(|x| t.add(x));
    t.num()
}

/// Sum of products.
pub fn dot(x: impl IntoIterator<Item = (Num, Num)>) -> Num {
    sum(x.into_iter().map(|(a, b)| a * b))
}

/// Error function in f64: its series near 0, the continued fraction of erfc further out.
pub fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a.is_nan() {
        return x;
    }
    if a < 3.0 {
        let (mut t, mut s, mut n) = (x, x, 0.0);
        while t.abs() > 1e-19 * s.abs() {
            n += 1.0;
            t *= -x * x / n;
            s += t / (2.0 * n + 1.0);
        }
        return s * std::f64::consts::FRAC_2_SQRT_PI;
    }
    let mut f = a;
    for k in (1..60).rev() {
        f = a + k as f64 / 2.0 / f;
    }
    let erfc = (-a * a).exp() / (f * std::f64::consts::PI.sqrt());
    (1.0 - erfc).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_has_known_values() {
        for (x, want) in [
            (0.0, 0.0),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.0, 0.995_322_265_018_952_7),
            (3.0, 0.999_977_909_503_001_4),
            (4.0, 0.999_999_984_582_742_1),
            (f64::INFINITY, 1.0),
        ] {
            assert!((erf(x) - want).abs() < 1e-12, "erf({x}) = {}", erf(x));
            assert_eq!(erf(-x), -erf(x));
        }
        // Where the series hands over to the fraction.
        assert!((erf(3.0) - erf(3.0 - 1e-12)).abs() < 1e-12);
        assert!(erf(f64::NAN).is_nan());
    }

    /// f32 evaluations of many expressions stay within the bound, and the bound is not idle: within a factor of what happens.
    #[test]
    fn the_bound_holds_and_is_near() {
        let mut worst = 0.0f64;
        let mut seed = 1u64;
        let mut unit = || {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            ((seed >> 40) as f32 / (1 << 23) as f32) - 1.0
        };
        for _ in 0..20_000 {
            let (a, b, c) = (unit() * 4.0, unit(), unit() * 0.5 + 1.0);
            let f = (a * b + c).exp() / (c * c + b * b).sqrt() - a;
            let n = |x: f32| num(x as f64);
            let (x, y, z) = (n(a), n(b), n(c));
            let r = (x * y + z).exp() / (z * z + y * y).sqrt() - x;
            let off = (f as f64 - r.v).abs();
            assert!(off <= r.e, "{a} {b} {c}: off {off}, bound {}", r.e);
            worst = worst.max(off / r.e);
        }
        assert!(
            worst > 0.05,
            "the bound is {} times what happens",
            1.0 / worst
        );
    }

    #[test]
    fn a_sum_in_either_order_is_within_its_bound() {
        let v: Vec<f32> = (0..1000)
            .map(|i| ((i * 7919) % 1000) as f32 / 7.0 - 70.0)
            .collect();
        let r = sum(v.iter().map(|x| num(*x as f64)));
        let forward: f32 = v.iter().sum();
        let backward: f32 = v.iter().rev().sum();
        assert!((forward as f64 - r.v).abs() <= r.e && (backward as f64 - r.v).abs() <= r.e);
        assert_ne!(forward, backward);
    }
}
