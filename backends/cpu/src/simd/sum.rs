//! Sums of blocks in f64 over a fixed number of lanes: the order depends on the length alone, so every machine and team gets the same bits.

use super::clones;

/// Lanes of a partial sum, whatever the register width.
const LANES: usize = 16;

#[inline(always)]
fn fold(mut a: [f64; LANES]) -> f64 {
    let mut w = LANES / 2;
    while w > 0 {
        for i in 0..w {
            a[i] += a[i + w];
        }
        w /= 2;
    }
    a[0]
}

macro_rules! lanes {
    ($n:expr, $i:ident => $term:expr) => {{
        let mut acc = [0f64; LANES];
        let n = $n;
        let body = n / LANES * LANES;
        let mut at = 0;
        while at < body {
            for l in 0..LANES {
                let $i = at + l;
                acc[l] += $term;
            }
            at += LANES;
        }
        for l in 0..n - body {
            let $i = body + l;
            acc[l] += $term;
        }
        fold(acc)
    }};
}

clones! {
    /// Sum of a block.
    pub fn sum(x: &[f32]) -> f64 { lanes!(x.len(), i => x[i] as f64) }
    /// Sum of squares.
    pub fn sumsq(x: &[f32]) -> f64 { lanes!(x.len(), i => x[i] as f64 * x[i] as f64) }
    /// Sum of products.
    pub fn dot(x: &[f32], y: &[f32]) -> f64 {
        let y = &y[..x.len()];
        lanes!(x.len(), i => x[i] as f64 * y[i] as f64)
    }
    /// Product of a block.
    pub fn product(x: &[f32]) -> f64 {
        let mut acc = [1f64; LANES];
        for (i, v) in x.iter().enumerate() { acc[i % LANES] *= *v as f64; }
        acc.iter().product()
    }
    /// Largest, NaN if any is NaN; -inf of nothing.
    pub fn max(x: &[f32]) -> f32 {
        let mut m = [f32::NEG_INFINITY; LANES];
        let mut nan = [0u32; LANES];
        let (body, tail) = x.as_chunks::<LANES>();
        for c in body {
            for l in 0..LANES {
                m[l] = if c[l] > m[l] { c[l] } else { m[l] };
                nan[l] |= (c[l].is_nan()) as u32;
            }
        }
        for (l, v) in tail.iter().enumerate() {
            m[l] = if *v > m[l] { *v } else { m[l] };
            nan[l] |= v.is_nan() as u32;
        }
        if nan.iter().any(|n| *n != 0) { return f32::NAN; }
        let mut r = m[0];
        for v in m { r = if v > r { v } else { r }; }
        r
    }
    /// Smallest, NaN if any is NaN; inf of nothing.
    pub fn min(x: &[f32]) -> f32 {
        let mut m = [f32::INFINITY; LANES];
        let mut nan = [0u32; LANES];
        let (body, tail) = x.as_chunks::<LANES>();
        for c in body {
            for l in 0..LANES {
                m[l] = if c[l] < m[l] { c[l] } else { m[l] };
                nan[l] |= (c[l].is_nan()) as u32;
            }
        }
        for (l, v) in tail.iter().enumerate() {
            m[l] = if *v < m[l] { *v } else { m[l] };
            nan[l] |= v.is_nan() as u32;
        }
        if nan.iter().any(|n| *n != 0) { return f32::NAN; }
        let mut r = m[0];
        for v in m { r = if v < r { v } else { r }; }
        r
    }
}
