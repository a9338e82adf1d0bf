//! Packing: a strip of `r` rows of a strided matrix becomes words `[k][r]`, converted to f32 (or to pairs of bf16) on the way.

use super::elem::Elem;

/// A matrix whose element (i, k) lies at `i * si + k * sk`; `i` is the row of A or the column of B.
#[derive(Clone, Copy)]
pub struct Source {
    /// Address of (0, 0).
    pub p: *const u8,
    /// Storage.
    pub elem: Elem,
    /// Elements between rows.
    pub si: isize,
    /// Elements between neighbours along k.
    pub sk: isize,
}
// SAFETY: only read, by tasks of one launch, whose memory is valid for the launch.
unsafe impl Send for Source {}
// SAFETY: as above.
unsafe impl Sync for Source {}

/// Neighbours along k that are staged at once.
const CHUNK: usize = 64;
/// Widest strip of any instruction set.
pub const MAX_STRIP: usize = 32;

/// Packs rows `i0 .. i0 + n` (padded with zeros to `r`) and columns `k0 .. k0 + kc` into f32 words `[kc][r]`.
///
/// # Safety
/// The elements are readable; `out` is writable for `kc * r` words, `n <= r <= MAX_STRIP`.
#[inline(always)]
pub unsafe fn pack_f32(
    s: &Source,
    i0: usize,
    n: usize,
    r: usize,
    k0: usize,
    kc: usize,
    out: *mut f32,
) {
    let e = s.elem;
    let base = e.at(s.p, i0 as isize * s.si + k0 as isize * s.sk);
    // SAFETY: every address read is an element of the strip, every address written is inside `kc * r` words.
    unsafe {
        if s.si == 1 {
            for k in 0..kc {
                let row = out.add(k * r);
                e.widen(e.at(base, k as isize * s.sk), n, row);
                for i in n..r {
                    *row.add(i) = 0.0;
                }
            }
        } else if s.sk == 1 {
            let mut stage = [0.0f32; MAX_STRIP * CHUNK];
            let mut k = 0;
            while k < kc {
                let w = CHUNK.min(kc - k);
                for i in 0..n {
                    let from = e.at(base, i as isize * s.si + k as isize);
                    e.widen(from, w, stage.as_mut_ptr().add(i * CHUNK));
                }
                transpose(&stage, w, r, out.add(k * r));
                k += w;
            }
        } else {
            for k in 0..kc {
                for i in 0..r {
                    *out.add(k * r + i) = if i < n {
                        e.get(e.at(base, i as isize * s.si + k as isize * s.sk))
                    } else {
                        0.0
                    };
                }
            }
        }
    }
}

/// `out[k][i] = stage[i][k]`.
///
/// # Safety
/// `out` is writable for `w * r`.
#[inline(always)]
unsafe fn transpose(stage: &[f32; MAX_STRIP * CHUNK], w: usize, r: usize, out: *mut f32) {
    let p = stage.as_ptr();
    let mut k = 0;
    // SAFETY: `i < r <= MAX_STRIP`, `k < w <= CHUNK`.
    unsafe {
        // Rows of 4x4 blocks keep both sides in few cache lines; the compiler makes shuffles of the fixed-size inner loops.
        while k + 4 <= w {
            let mut i = 0;
            while i + 2 <= r {
                let (a, b) = (p.add(i * CHUNK + k), p.add((i + 1) * CHUNK + k));
                for d in 0..4 {
                    let o = out.add((k + d) * r + i);
                    *o = *a.add(d);
                    *o.add(1) = *b.add(d);
                }
                i += 2;
            }
            while i < r {
                for d in 0..4 {
                    *out.add((k + d) * r + i) = *p.add(i * CHUNK + k + d);
                }
                i += 1;
            }
            k += 4;
        }
        while k < w {
            for i in 0..r {
                *out.add(k * r + i) = *p.add(i * CHUNK + k);
            }
            k += 1;
        }
    }
}

/// Packs as [`pack_f32`] but bf16 in pairs along k: words `[ceil(kc/2)][r]`, low half = even k, an odd end padded with zero.
///
/// # Safety
/// As [`pack_f32`], with `s.elem` bf16 and `out` writable for `ceil(kc/2) * r` words.
#[inline(always)]
pub unsafe fn pack_pairs(
    s: &Source,
    i0: usize,
    n: usize,
    r: usize,
    k0: usize,
    kc: usize,
    out: *mut u32,
) {
    let base =
        s.p.cast::<u16>()
            .wrapping_offset(i0 as isize * s.si + k0 as isize * s.sk);
    // SAFETY: `get` is only called inside the strip; writes stay inside `ceil(kc/2) * r` words.
    unsafe {
        let get = |i: usize, k: usize| {
            if k < kc {
                u32::from(
                    base.wrapping_offset(i as isize * s.si + k as isize * s.sk)
                        .read(),
                )
            } else {
                0
            }
        };
        for pair in 0..kc.div_ceil(2) {
            let row = out.add(pair * r);
            for i in 0..n {
                *row.add(i) = get(i, 2 * pair) | get(i, 2 * pair + 1) << 16;
            }
            for i in n..r {
                *row.add(i) = 0;
            }
        }
    }
}
