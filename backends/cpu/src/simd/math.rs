//! Elementary functions in f32 without branches, so that loops over them vectorise; each within 4 ulp of the true value.
//!
//! Reductions and polynomials follow Cephes; none uses a fused multiply-add, so all instruction sets agree bit for bit.

use super::clones;

const LOG2E: f32 = std::f32::consts::LOG2_E;
/// Adding and subtracting this rounds to the nearest integer (for |x| < 2^22).
const ROUND: f32 = 12_582_912.0;
const LN2_HI: f32 = 0.693_359_4;
const LN2_LO: f32 = -2.121_944_4e-4;

/// `if c { a } else { b }` on bits: the compiler turns it into a blend.
#[inline(always)]
fn pick(c: bool, a: f32, b: f32) -> f32 {
    if c { a } else { b }
}

#[inline(always)]
fn pow2(n: i32) -> f32 {
    f32::from_bits(((n + 127) << 23) as u32)
}

/// e^x; overflows to infinity, underflows through subnormals to zero.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let c = pick(x > 89.0, 89.0, x);
    let c = pick(c < -104.5, -104.5, c);
    let t = c * LOG2E + ROUND;
    let n = t - ROUND;
    let k = (t.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let r = c - n * LN2_HI;
    let r = r - n * LN2_LO;
    let mut p = 1.987_569_2e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 5e-1;
    let y = p * (r * r) + r + 1.0;
    // Two factors keep each in range while the product may be subnormal or infinite. NaN makes k arbitrary, hence the mask.
    let k = k.clamp(-160, 160);
    let h = k >> 1;
    y * pow2(h) * pow2(k - h)
}

/// e^x for x <= 0 (and a little above): two thirds of the work of [`exp`], because results below 2^-125 become 0.
#[inline(always)]
pub fn exp_neg(x: f32) -> f32 {
    const LEAST: f32 = -86.6;
    let c = pick(x < LEAST, LEAST, x);
    let t = c * LOG2E + ROUND;
    let n = t - ROUND;
    let r = c - n * LN2_HI;
    let r = r - n * LN2_LO;
    let mut p = 1.987_569_2e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 5e-1;
    let y = p * (r * r) + r + 1.0;
    let scale = f32::from_bits((t.to_bits() << 23).wrapping_add(0x3f80_0000));
    pick(x < LEAST, 0.0, y * scale)
}

/// Natural logarithm; log 0 = -inf, negative = NaN.
#[inline(always)]
pub fn log(x: f32) -> f32 {
    let tiny = x < f32::MIN_POSITIVE;
    let s = pick(tiny, x * 8_388_608.0, x);
    let b = s.to_bits();
    // Mantissa in [sqrt(1/2), sqrt(2)).
    let e0 = ((b.wrapping_sub(0x3f35_04f3)) as i32) >> 23;
    let m = f32::from_bits(b.wrapping_sub((e0 as u32) << 23));
    let e = e0 as f32 - pick(tiny, 23.0, 0.0);
    let z = m - 1.0;
    let z2 = z * z;
    let mut p = 7.037_683_6e-2;
    p = p * z - 1.151_461e-1;
    p = p * z + 1.167_699_9e-1;
    p = p * z - 1.242_014_1e-1;
    p = p * z + 1.424_932_3e-1;
    p = p * z - 1.666_805_8e-1;
    p = p * z + 2.000_071_5e-1;
    p = p * z - 2.499_999_4e-1;
    p = p * z + 3.333_333e-1;
    let y = p * z * z2 + e * LN2_LO - 0.5 * z2;
    let y = z + y + e * LN2_HI;
    let y = pick(x == 0.0, f32::NEG_INFINITY, y);
    let y = pick(x < 0.0, f32::NAN, y);
    // Infinity and NaN come back as they are.
    pick(x < f32::INFINITY, y, x)
}

/// Hyperbolic tangent.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let a = x.abs();
    let z = x * x;
    let mut p = -5.704_988_7e-3;
    p = p * z + 2.063_909e-2;
    p = p * z - 5.373_971_6e-2;
    p = p * z + 1.333_144_2e-1;
    p = p * z - 3.333_328e-1;
    let small = p * z * x + x;
    let e = exp_neg(-2.0 * a);
    let big = 1.0 - 2.0 * e / (1.0 + e);
    pick(a < 0.625, small, big).copysign(x)
}

/// 1 / (1 + e^-x), accurate in both tails.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    pick(x < 0.0, e, 1.0) / (1.0 + e)
}

/// Error function: odd polynomial below 1, `1 - exp(q(|x|))` with q fitted to log erfc above.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let a = x.abs();
    let z = x * x;
    let mut p = -9.667_044e-6;
    p = p * z + 1.126_595_9e-4;
    p = p * z - 8.484_08e-4;
    p = p * z + 5.221_032e-3;
    p = p * z - 2.686_543e-2;
    p = p * z + 1.128_378_2e-1;
    p = p * z - 3.761_263_8e-1;
    p = p * z + std::f32::consts::FRAC_2_SQRT_PI;
    let c = pick(a > 4.0, 4.0, a);
    let mut q = 1.637_151_4e-6;
    q = q * c - 4.605_804e-5;
    q = q * c + 5.968_056_3e-4;
    q = q * c - 4.759_596e-3;
    q = q * c + 2.642_113_6e-2;
    q = q * c - 1.100_800_83e-1;
    q = q * c - 6.318_260_6e-1;
    q = q * c - 1.130_233_4;
    q = q * c + 3.201_380_6e-4;
    pick(a < 1.0, p * x, 1.0 - exp_neg(q)).copysign(x)
}

/// Sine and cosine of an argument already in [-pi/4, pi/4].
#[inline(always)]
fn sin_cos_reduced(r: f32) -> (f32, f32) {
    let z = r * r;
    let mut s = -1.951_529_6e-4;
    s = s * z + 8.332_161e-3;
    s = s * z - 1.666_665_5e-1;
    let s = s * z * r + r;
    // -0 keeps its sign.
    let s = pick(r == 0.0, r, s);
    let mut c = 2.443_315_7e-5;
    c = c * z - 1.388_731_6e-3;
    c = c * z + 4.166_664_6e-2;
    let c = c * (z * z) - 0.5 * z + 1.0;
    (s, c)
}

/// Beyond this the two-part reduction by pi/2 would lose bits and the library function is used.
const TRIG_FAST: f32 = 1.0e6;

/// Sine shifted by `quadrant` quarter turns (0 = sin, 1 = cos), for |x| <= 1e6.
#[inline(always)]
fn trig(x: f32, quadrant: i32) -> f32 {
    const ROUND64: f64 = 6_755_399_441_055_744.0;
    const HI: f64 = 1.570_796_326_734_125_6;
    const LO: f64 = 6.077_100_506_506_192e-11;
    let d = x as f64;
    let t = d * std::f64::consts::FRAC_2_PI + ROUND64;
    let n = t - ROUND64;
    let q = (t.to_bits() as i32).wrapping_add(quadrant);
    let r = (d - n * HI - n * LO) as f32;
    let (s, c) = sin_cos_reduced(r);
    let y = pick(q & 1 != 0, c, s);
    f32::from_bits(y.to_bits() ^ (((q as u32) & 2) << 30))
}

fn trig_block(x: &mut [f32], quadrant: i32) {
    if x.iter().all(|v| v.abs() <= TRIG_FAST) {
        trig_fast(x, quadrant);
    } else {
        for v in x {
            let d = *v as f64;
            *v = if quadrant == 0 { d.sin() } else { d.cos() } as f32;
        }
    }
}

clones! {
    fn trig_fast(x: &mut [f32], quadrant: i32) {
        for v in x { *v = trig(*v, quadrant); }
    }
    /// Elementwise, in place.
    pub fn exp_block(x: &mut [f32]) { for v in x { *v = exp(*v); } }
    /// Elementwise, in place.
    pub fn log_block(x: &mut [f32]) { for v in x { *v = log(*v); } }
    /// Elementwise, in place.
    pub fn tanh_block(x: &mut [f32]) { for v in x { *v = tanh(*v); } }
    /// Elementwise, in place.
    pub fn erf_block(x: &mut [f32]) { for v in x { *v = erf(*v); } }
    /// Elementwise, in place.
    pub fn sigmoid_block(x: &mut [f32]) { for v in x { *v = sigmoid(*v); } }
    /// Elementwise, in place.
    pub fn sqrt_block(x: &mut [f32]) { for v in x { *v = v.sqrt(); } }
    /// Elementwise, in place.
    pub fn rsqrt_block(x: &mut [f32]) { for v in x { *v = 1.0 / v.sqrt(); } }
    /// Elementwise, in place.
    pub fn floor_block(x: &mut [f32]) { for v in x { *v = v.floor(); } }
    /// Elementwise, in place.
    pub fn neg_block(x: &mut [f32]) { for v in x { *v = -*v; } }
    /// Elementwise, in place.
    pub fn abs_block(x: &mut [f32]) { for v in x { *v = v.abs(); } }
}

/// Sine, elementwise, in place.
pub fn sin_block(x: &mut [f32]) {
    trig_block(x, 0);
}
/// Cosine, elementwise, in place.
pub fn cos_block(x: &mut [f32]) {
    trig_block(x, 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ulp(t: f64) -> f64 {
        let f = (t.abs() as f32).max(f32::MIN_POSITIVE);
        f32::from_bits(f.to_bits() + 1) as f64 - f as f64
    }

    fn check(name: &str, f: fn(&mut [f32]), g: fn(f64) -> f64, range: std::ops::Range<f32>) {
        let n = 200_003;
        let x: Vec<f32> = (0..n)
            .map(|i| range.start + (range.end - range.start) * (i as f32 / n as f32))
            .collect();
        let mut y = x.clone();
        f(&mut y);
        for (x, y) in x.iter().zip(&y) {
            let t = g(*x as f64);
            if t.abs() > f32::MAX as f64 {
                assert!(y.is_infinite(), "{name}({x})");
                continue;
            }
            let e = (*y as f64 - t).abs() / ulp(t);
            assert!(e <= 4.0, "{name}({x}) = {y}, true {t}: {e} ulp");
        }
    }

    /// Abramowitz-Stegun-free reference: the series below 2.5, the continued fraction of erfc above.
    fn erf64(x: f64) -> f64 {
        let a = x.abs();
        let v = if a < 2.5 {
            let (mut t, mut s, mut n) = (a, a, 0.0);
            while t.abs() > 1e-18 {
                n += 1.0;
                t *= -a * a / n;
                s += t / (2.0 * n + 1.0);
            }
            s * 2.0 / std::f64::consts::PI.sqrt()
        } else {
            let mut f = a;
            for k in (1..200).rev() {
                f = a + (k as f64 / 2.0) / f;
            }
            1.0 - (-a * a).exp() / (f * std::f64::consts::PI.sqrt())
        };
        v.copysign(x)
    }

    #[test]
    fn functions_are_within_four_ulp() {
        check("exp", exp_block, f64::exp, -103.0..88.8);
        check("exp", exp_block, f64::exp, -1.0..1.0);
        let neg = |x: &mut [f32]| x.iter_mut().for_each(|v| *v = exp_neg(*v));
        check("exp_neg", neg, f64::exp, -86.6..0.5);
        check("log", log_block, f64::ln, 1e-6..4.0);
        check("log", log_block, f64::ln, 0.9..1.1);
        check("log", log_block, f64::ln, 1.0..1e30);
        check("tanh", tanh_block, f64::tanh, -10.0..10.0);
        check("tanh", tanh_block, f64::tanh, -1e-3..1e-3);
        check("erf", erf_block, erf64, -5.0..5.0);
        check("erf", erf_block, erf64, -1e-3..1e-3);
        check(
            "sigmoid",
            sigmoid_block,
            |x| 1.0 / (1.0 + (-x).exp()),
            -80.0..40.0,
        );
        check("sin", sin_block, f64::sin, -20.0..20.0);
        check("sin", sin_block, f64::sin, -9.9e5..9.9e5);
        check("cos", cos_block, f64::cos, -20.0..20.0);
        check("cos", cos_block, f64::cos, 1e6..1e9);
        check("sqrt", sqrt_block, f64::sqrt, 0.0..1e9);
    }

    #[test]
    fn special_values_follow_ieee() {
        let inf = f32::INFINITY;
        let one = |f: fn(&mut [f32]), x: f32| {
            // Long enough for the vector body and the tail to agree.
            let mut v = [x; 19];
            f(&mut v);
            assert!(v.iter().all(|y| y.to_bits() == v[0].to_bits()));
            v[0]
        };
        assert_eq!(one(exp_block, inf), inf);
        assert_eq!(one(exp_block, -inf), 0.0);
        assert_eq!(one(exp_block, 0.0), 1.0);
        assert!(one(exp_block, -100.0) > 0.0, "subnormal results survive");
        assert_eq!(one(log_block, 0.0), -inf);
        assert_eq!(one(log_block, inf), inf);
        assert_eq!(one(log_block, 1.0), 0.0);
        assert!(one(log_block, -1.0).is_nan());
        assert!((one(log_block, 1e-42) - (1e-42f32 as f64).ln() as f32).abs() < 1e-4);
        for (f, x, y) in [
            (tanh_block as fn(&mut [f32]), inf, 1.0),
            (tanh_block, -inf, -1.0),
            (erf_block, inf, 1.0),
            (erf_block, -inf, -1.0),
            (sigmoid_block, inf, 1.0),
            (sigmoid_block, -inf, 0.0),
        ] {
            assert_eq!(one(f, x), y);
        }
        for f in [tanh_block, erf_block, sin_block as fn(&mut [f32])] {
            assert_eq!(one(f, -0.0).to_bits(), (-0.0f32).to_bits());
        }
        for f in [
            exp_block,
            log_block,
            tanh_block,
            erf_block,
            sigmoid_block,
            sin_block,
            cos_block,
        ] {
            assert!(one(f, f32::NAN).is_nan());
        }
        for bits in [0x7fc0_0000u32, 0x7f80_0001, 0xffff_ffff] {
            assert!(exp_neg(f32::from_bits(bits)).is_nan());
        }
        assert_eq!(
            (exp_neg(-inf), exp_neg(0.0), exp_neg(-87.0)),
            (0.0, 1.0, 0.0)
        );
        assert!(one(sin_block, inf).is_nan());
        assert!(one(cos_block, -inf).is_nan());
    }
}
