//! Sums of blocks in f64 over a fixed number of lanes: the order depends on the length alone, so every machine and team gets the same bits.

use super::clones;

/// Lanes of a partial result, whatever the register width. So many that the compiler keeps the loop over them, and vectorises it.
const LANES: usize = 128;

/// Halves the lanes until one is left.
#[inline(always)]
fn fold<T: Copy>(a: &mut [T; LANES], f: impl Fn(T, T) -> T) -> T {
    let mut w = LANES / 2;
    while w > 0 {
        let (lo, hi) = a.split_at_mut(w);
        for (l, h) in lo.iter_mut().zip(hi) {
            *l = f(*l, *h);
        }
        w /= 2;
    }
    a[0]
}

/// Joins each element of `x` into its lane.
#[inline(always)]
fn lanes<T: Copy>(x: &[f32], start: T, step: impl Fn(T, f32) -> T, join: impl Fn(T, T) -> T) -> T {
    let mut acc = [start; LANES];
    let (body, tail) = x.as_chunks::<LANES>();
    for c in body {
        for l in 0..LANES {
            acc[l] = step(acc[l], c[l]);
        }
    }
    for (a, v) in acc.iter_mut().zip(tail) {
        *a = step(*a, *v);
    }
    fold(&mut acc, join)
}

clones! {
    /// Sum of a block.
    pub fn sum(x: &[f32]) -> f64 { lanes(x, 0f64, |a, v| a + v as f64, |a, b| a + b) }
    /// Sum of squares.
    pub fn sumsq(x: &[f32]) -> f64 { lanes(x, 0f64, |a, v| a + v as f64 * v as f64, |a, b| a + b) }
    /// Sum of products.
    pub fn dot(x: &[f32], y: &[f32]) -> f64 {
        let mut acc = [0f64; LANES];
        let ((a, ta), (b, tb)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
        for (a, b) in a.iter().zip(b) {
            for l in 0..LANES { acc[l] += a[l] as f64 * b[l] as f64; }
        }
        for ((s, a), b) in acc.iter_mut().zip(ta).zip(tb) { *s += *a as f64 * *b as f64; }
        fold(&mut acc, |a, b| a + b)
    }
    /// Product of a block.
    pub fn product(x: &[f32]) -> f64 { lanes(x, 1f64, |a, v| a * v as f64, |a, b| a * b) }
    /// Largest, NaN if any is NaN; -inf of nothing.
    pub fn max(x: &[f32]) -> f32 {
        // A NaN lane stays one: nothing compares greater than it.
        let step = |a: f32, v: f32| if (v > a) | v.is_nan() { v } else { a };
        lanes(x, f32::NEG_INFINITY, step, step)
    }
    /// Smallest, NaN if any is NaN; inf of nothing.
    pub fn min(x: &[f32]) -> f32 {
        let step = |a: f32, v: f32| if (v < a) | v.is_nan() { v } else { a };
        lanes(x, f32::INFINITY, step, step)
    }
}
