//! What both directions compute on a block: products over f32 scratch, exp, masks, rows in and out.

use super::{BQ, Shape, View};
use crate::gemm::lane::{Lane, madd};
use crate::gemm::tile::tile;

/// e^x to about one ulp, 0 below -87 (the results there are subnormal or nothing); branch-free, so that loops over it vectorise.
#[inline(always)]
pub fn exp<const FMA: bool>(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits. Constants: Cephes expf.
    const MAGIC: f32 = 12_582_912.0;
    let shifted = madd::<FMA>(x, std::f32::consts::LOG2_E, MAGIC);
    let n = shifted - MAGIC;
    let r = madd::<FMA>(n, -0.693_359_4, x);
    let r = madd::<FMA>(n, 2.121_944_4e-4, r);
    let p = madd::<FMA>(1.987_569_1e-4, r, 1.398_2e-3);
    let p = madd::<FMA>(p, r, 8.333_452e-3);
    let p = madd::<FMA>(p, r, 4.166_579_6e-2);
    let p = madd::<FMA>(p, r, 1.666_666_5e-1);
    let p = madd::<FMA>(p, r, 5e-1);
    let p = madd::<FMA>(p, r * r, r) + 1.0;
    let y = p * f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    let y = if x < -87.0 { 0.0 } else { y };
    if x > 88.0 { f32::INFINITY } else { y }
}

/// Which part of a sum along k a tile's rows need; what the causal mask has made zero is left out.
#[derive(Clone, Copy)]
pub enum Sum {
    /// Rows are queries, k runs over keys: row i needs those up to `i + t`.
    Keys(i64),
    /// Rows are keys, k runs over queries: row i needs those from `i - t`.
    Queries(i64),
}

/// `C[m, n] (+)= A B` over f32 scratch: A at `a[i*rs + k*ks]`, rows of B and C `bs` apart. `m` and `n` are rounded up to tiles.
///
/// # Safety
/// The rounded-up areas are valid; the lane's instruction set is there.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub unsafe fn product<L: Lane, const MR: usize, const NV: usize>(
    m: usize,
    n: usize,
    k: usize,
    a: *const f32,
    rs: usize,
    ks: usize,
    b: *const f32,
    bs: usize,
    c: *mut f32,
    add: bool,
    sum: Sum,
) {
    for j in (0..n).step_by(NV * L::N) {
        for i in (0..m).step_by(MR) {
            let (first, end) = match sum {
                Sum::Keys(t) => (0, ((i + MR) as i64 + t).clamp(0, k as i64) as usize),
                Sum::Queries(t) => ((i as i64 - t).clamp(0, k as i64) as usize, k),
            };
            // SAFETY: by contract.
            unsafe {
                let a = a.add(i * rs + first * ks).cast();
                let b = b.add(j + first * bs).cast();
                tile::<L, MR, NV>(end - first, a, rs, ks, b, bs, c.add(i * bs + j), bs, add)
            }
        }
    }
}

/// `S^T[m keys, n queries]` (rows `BQ` apart) from rows of keys, `ks` apart, and packed strips `[strip][d][NR]` of queries. Tiles in
/// which no query sees a key (query c sees keys up to `c + t`) are left as they were.
///
/// # Safety
/// As [`product`].
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub unsafe fn scores<L: Lane, const MR: usize, const NV: usize>(
    m: usize,
    n: usize,
    d: usize,
    keys: *const f32,
    ks: usize,
    queries: *const f32,
    t: i64,
    st: *mut f32,
) {
    let nr = NV * L::N;
    for j in (0..n).step_by(nr) {
        for i in (0..m).step_by(MR) {
            if i as i64 >= (j + nr) as i64 + t {
                break;
            }
            // SAFETY: by contract.
            unsafe {
                let (a, b) = (keys.add(i * ks).cast(), queries.add(j * d).cast());
                tile::<L, MR, NV>(d, a, ks, 1, b, nr, st.add(i * BQ + j), BQ, false)
            }
        }
    }
}

/// Rows `t0 .. t0 + n` of head `h` as f32, `dp` apart, padded with zeros to `dp` and with rows of zeros to `rows`.
///
/// # Safety
/// The rows exist; `out` is writable for `rows * s.dp`.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub unsafe fn load_rows(
    s: &Shape,
    v: &View,
    p: *mut u8,
    b: usize,
    t0: usize,
    n: usize,
    h: usize,
    rows: usize,
    out: *mut f32,
) {
    // SAFETY: by contract.
    unsafe {
        for r in 0..n {
            let row = out.add(r * s.dp);
            v.elem.widen(v.at(p, b, t0 + r, h), s.d, row);
            row.add(s.d).write_bytes(0, s.dp - s.d);
        }
        out.add(n * s.dp).write_bytes(0, (rows - n) * s.dp);
    }
}

/// f32 rows, `dp` apart, rounded into rows `t0 .. t0 + n` of head `h`.
///
/// # Safety
/// The rows exist and are the caller's.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub unsafe fn store_rows(
    s: &Shape,
    v: &View,
    p: *mut u8,
    b: usize,
    t0: usize,
    n: usize,
    h: usize,
    from: *const f32,
) {
    for r in 0..n {
        // SAFETY: by contract.
        unsafe {
            v.elem
                .narrow(from.add(r * s.dp), s.d, v.at(p, b, t0 + r, h))
        }
    }
}

/// Rows of scratch (`rows` of them, `dp` apart) into strips `[strip][d][nr]`: the transpose a tile reads as B.
///
/// # Safety
/// `rows` is a multiple of `nr`; both areas are valid.
#[inline(always)]
pub unsafe fn strips(s: &Shape, from: *const f32, rows: usize, nr: usize, out: *mut f32) {
    for j in (0..rows).step_by(nr) {
        let src = crate::gemm::pack::Source {
            p: from.cast(),
            elem: crate::gemm::elem::Elem::F32,
            si: s.dp as isize,
            sk: 1,
        };
        // SAFETY: by contract.
        unsafe { crate::gemm::pack::pack_f32(&src, j, nr, nr, 0, s.d, out.add(j * s.d)) }
    }
}

/// Sets the scores of `S^T[nk][BQ]` that are masked to minus infinity.
///
/// # Safety
/// `st` is writable for `nk * BQ`.
#[inline(always)]
pub unsafe fn mask(s: &Shape, i0: usize, w: usize, j0: usize, nk: usize, st: *mut f32) {
    if !s.causal && s.window == 0 {
        return;
    }
    for r in 0..nk {
        let (lo, hi) = s.queries(i0, w, j0 + r);
        // SAFETY: `lo <= hi <= w <= BQ`.
        let row = unsafe { std::slice::from_raw_parts_mut(st.add(r * BQ), w) };
        row[..lo].fill(f32::NEG_INFINITY);
        row[hi..].fill(f32::NEG_INFINITY);
    }
}
