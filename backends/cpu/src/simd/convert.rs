//! Storage to f32 and back: bf16 and f16 round to nearest even, subnormals and NaN included.

use super::clones;

/// bf16 bits to f32, exact.
#[inline(always)]
pub fn f32_of_bf16(h: u16) -> f32 {
    f32::from_bits((h as u32) << 16)
}

/// f32 to bf16 bits, nearest even; NaN stays NaN (quiet).
#[inline(always)]
pub fn bf16_of_f32(x: f32) -> u16 {
    let b = x.to_bits();
    let r = b.wrapping_add(0x7fff + ((b >> 16) & 1)) >> 16;
    let q = (b >> 16) | 0x40;
    (if (b & 0x7fff_ffff) > 0x7f80_0000 {
        q
    } else {
        r
    }) as u16
}

/// f16 bits to f32, exact.
#[inline(always)]
pub fn f32_of_f16(h: u16) -> f32 {
    let sign = ((h as u32) & 0x8000) << 16;
    let em = (h as u32) & 0x7fff;
    // 2^112 moves the exponent's bias, and makes subnormals right at once.
    let f = f32::from_bits(em << 13) * f32::from_bits(0x7780_0000);
    let special = (em << 13) | 0x7f80_0000 | if em > 0x7c00 { 0x0040_0000 } else { 0 };
    let b = if em >= 0x7c00 { special } else { f.to_bits() };
    f32::from_bits(b | sign)
}

/// f32 to f16 bits, nearest even; overflow to infinity; NaN stays NaN (quiet).
#[inline(always)]
pub fn f16_of_f32(x: f32) -> u16 {
    let b = x.to_bits();
    let sign = (b >> 16) & 0x8000;
    let a = b & 0x7fff_ffff;
    // Subnormal results: adding 0.5 aligns the unit in the last place to 2^-24, in the FPU's own rounding.
    let sub = (f32::from_bits(a) + 0.5)
        .to_bits()
        .wrapping_sub(0x3f00_0000);
    let nor = a
        .wrapping_sub(112 << 23)
        .wrapping_add(0xfff + ((a >> 13) & 1))
        >> 13;
    let nor = if nor > 0x7c00 { 0x7c00 } else { nor };
    let r = if a < 0x3880_0000 { sub } else { nor };
    let r = if a >= 0x7f80_0000 { 0x7c00 } else { r };
    let q = 0x7e00 | ((a >> 13) & 0x3ff);
    ((if a > 0x7f80_0000 { q } else { r }) | sign) as u16
}

clones! {
    /// Widens.
    pub fn widen_bf16(src: &[u16], dst: &mut [f32]) {
        for (d, s) in dst.iter_mut().zip(src) { *d = f32_of_bf16(*s); }
    }
    /// Rounds.
    pub fn narrow_bf16(src: &[f32], dst: &mut [u16]) {
        for (d, s) in dst.iter_mut().zip(src) { *d = bf16_of_f32(*s); }
    }
    fn widen_f16_plain(src: &[u16], dst: &mut [f32]) {
        for (d, s) in dst.iter_mut().zip(src) { *d = f32_of_f16(*s); }
    }
    fn narrow_f16_plain(src: &[f32], dst: &mut [u16]) {
        for (d, s) in dst.iter_mut().zip(src) { *d = f16_of_f32(*s); }
    }
}

#[cfg(target_arch = "x86_64")]
mod f16c {
    use std::arch::x86_64::*;

    /// Widens 8 at a time; returns how many elements are done.
    #[target_feature(enable = "avx,f16c")]
    pub fn widen(src: &[u16], dst: &mut [f32]) -> usize {
        let n = src.len().min(dst.len()) / 8 * 8;
        for i in (0..n).step_by(8) {
            // SAFETY: i + 8 <= n, inside both slices; the load and store are unaligned ones.
            unsafe {
                let h = _mm_loadu_si128(src.as_ptr().add(i).cast());
                _mm256_storeu_ps(dst.as_mut_ptr().add(i), _mm256_cvtph_ps(h));
            }
        }
        n
    }
    /// Rounds 8 at a time; returns how many elements are done.
    #[target_feature(enable = "avx,f16c")]
    pub fn narrow(src: &[f32], dst: &mut [u16]) -> usize {
        let n = src.len().min(dst.len()) / 8 * 8;
        for i in (0..n).step_by(8) {
            // SAFETY: as in `widen`.
            unsafe {
                let f = _mm256_loadu_ps(src.as_ptr().add(i));
                let h = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(f);
                _mm_storeu_si128(dst.as_mut_ptr().add(i).cast(), h);
            }
        }
        n
    }
}

/// Widens f16.
pub fn widen_f16(src: &[u16], dst: &mut [f32]) {
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if super::isa() != super::Isa::Base {
        // SAFETY: every set above the base has F16C.
        done = unsafe { f16c::widen(src, dst) };
    }
    widen_f16_plain(&src[done..], &mut dst[done..]);
}

/// Rounds to f16.
pub fn narrow_f16(src: &[f32], dst: &mut [u16]) {
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if super::isa() != super::Isa::Base {
        // SAFETY: every set above the base has F16C.
        done = unsafe { f16c::narrow(src, dst) };
    }
    narrow_f16_plain(&src[done..], &mut dst[done..]);
}

/// Compares the conversions this machine uses, instructions where it has them, with the arithmetic on bits that defines them.
pub fn check() -> std::result::Result<(), String> {
    use crate::gemm::elem::Elem;
    // Normal and subnormal numbers of both signs, in steps that visit every exponent and many mantissas.
    let wide: Vec<u16> = (0..248u16).map(|i| (i * 125) ^ ((i & 1) << 15)).collect();
    // Rounding up, down, to even and into subnormals.
    let narrow: Vec<f32> = wide.iter().map(|&h| f32_of_f16(h) * 1.000_366_2).collect();
    let n = wide.len();
    let (mut up, mut half_up) = (vec![0.0; n], vec![0.0; n]);
    let (mut down, mut half_down) = (vec![0; n], vec![0; n]);
    widen_f16(&wide, &mut up);
    narrow_f16(&narrow, &mut down);
    // SAFETY: n elements on both sides.
    unsafe {
        Elem::F16.widen(wide.as_ptr().cast(), n, half_up.as_mut_ptr());
        Elem::F16.narrow(narrow.as_ptr(), n, half_down.as_mut_ptr().cast());
    }
    for i in 0..n {
        let (want, least) = (f32_of_f16(wide[i]), f16_of_f32(narrow[i]));
        for got in [up[i], half_up[i]] {
            if got.to_bits() != want.to_bits() {
                return Err(format!(
                    "f16 {:#06x} widens to {got:e}, not {want:e}",
                    wide[i]
                ));
            }
        }
        for got in [down[i], half_down[i]] {
            if got != least {
                return Err(format!(
                    "{:e} rounds to {got:#06x}, not {least:#06x}",
                    narrow[i]
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_16_bit_pattern_widens_exactly() {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        let (mut b, mut h, mut p) = (vec![0.0; 65536], vec![0.0; 65536], vec![0.0; 65536]);
        widen_bf16(&all, &mut b);
        widen_f16(&all, &mut h);
        widen_f16_plain(&all, &mut p);
        for i in 0..65536 {
            let (tb, th) = (
                half::bf16::from_bits(all[i]).to_f32(),
                half::f16::from_bits(all[i]).to_f32(),
            );
            assert!(b[i].to_bits() == tb.to_bits() || tb.is_nan() && b[i].is_nan());
            assert!(h[i].to_bits() == th.to_bits() || th.is_nan() && h[i].is_nan());
            assert!(p[i].to_bits() == h[i].to_bits(), "{i:#x}");
        }
    }

    #[test]
    fn rounding_is_to_nearest_even_everywhere() {
        // All exponents, with mantissas around every rounding boundary.
        let mut x = Vec::new();
        for e in 0..512u32 {
            for m in [
                0u32, 1, 0xfff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x3001, 0x7fff, 0x8000, 0x8001,
                0x1_8000, 0x7f_ffff, 0x7f_efff, 0x7f_f000, 0x40_0000, 0x12_3456,
            ] {
                x.push(f32::from_bits((e << 23) | m));
            }
        }
        let (mut b, mut h, mut p) = (vec![0; x.len()], vec![0; x.len()], vec![0; x.len()]);
        narrow_bf16(&x, &mut b);
        narrow_f16(&x, &mut h);
        narrow_f16_plain(&x, &mut p);
        for i in 0..x.len() {
            let (tb, th) = (half::bf16::from_f32(x[i]), half::f16::from_f32(x[i]));
            if x[i].is_nan() {
                assert!(
                    half::bf16::from_bits(b[i]).is_nan() && half::f16::from_bits(h[i]).is_nan()
                );
            } else {
                assert_eq!(b[i], tb.to_bits(), "{:e} bf16", x[i]);
                assert_eq!(h[i], th.to_bits(), "{:e} f16", x[i]);
            }
            assert_eq!(p[i], h[i], "{:e} plain f16", x[i]);
        }
    }
}
