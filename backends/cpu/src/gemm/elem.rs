//! The storage types of matrices: rows of them widened to f32 and narrowed back (round to nearest even).

use crossweave_plugin::DType;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Storage of a matrix element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elem {
    /// 32-bit.
    F32,
    /// Upper half of an f32.
    Bf16,
    /// IEEE half.
    F16,
}

impl Elem {
    /// The storage of a dtype, if matrices may have it.
    pub fn of(d: DType) -> Option<Elem> {
        match d {
            DType::F32 => Some(Elem::F32),
            DType::Bf16 => Some(Elem::Bf16),
            DType::F16 => Some(Elem::F16),
            _ => None,
        }
    }

    /// Bytes of one.
    pub fn bytes(self) -> usize {
        if self == Elem::F32 { 4 } else { 2 }
    }

    /// Address of element `i` (may be negative in products of strides).
    #[inline(always)]
    pub fn at(self, p: *const u8, i: isize) -> *const u8 {
        p.wrapping_offset(i * self.bytes() as isize)
    }

    /// Address of element `i`.
    #[inline(always)]
    pub fn at_mut(self, p: *mut u8, i: isize) -> *mut u8 {
        p.wrapping_offset(i * self.bytes() as isize)
    }

    /// One element as f32.
    ///
    /// # Safety
    /// `p` is readable for one element, aligned to it.
    #[inline(always)]
    pub unsafe fn get(self, p: *const u8) -> f32 {
        // SAFETY: by contract.
        unsafe {
            match self {
                Elem::F32 => p.cast::<f32>().read(),
                Elem::Bf16 => f32::from_bits(u32::from(p.cast::<u16>().read()) << 16),
                Elem::F16 => p.cast::<f16>().read().to_f32(),
            }
        }
    }

    /// `n` neighbours as f32.
    ///
    /// # Safety
    /// `p` is readable for `n` elements (aligned), `out` writable for `n` f32, apart from each other.
    #[inline(always)]
    pub unsafe fn widen(self, p: *const u8, n: usize, out: *mut f32) {
        // SAFETY: by contract.
        unsafe {
            match self {
                Elem::F32 => std::ptr::copy_nonoverlapping(p.cast::<f32>(), out, n),
                Elem::Bf16 => {
                    let p = p.cast::<u16>();
                    for i in 0..n {
                        *out.add(i) = f32::from_bits(u32::from(*p.add(i)) << 16);
                    }
                }
                Elem::F16 => std::slice::from_raw_parts(p.cast::<f16>(), n)
                    .convert_to_f32_slice(std::slice::from_raw_parts_mut(out, n)),
            }
        }
    }

    /// `n` f32 rounded into neighbours.
    ///
    /// # Safety
    /// `src` is readable for `n` f32, `p` writable for `n` elements (aligned), apart from each other.
    #[inline(always)]
    pub unsafe fn narrow(self, src: *const f32, n: usize, p: *mut u8) {
        // SAFETY: by contract.
        unsafe {
            match self {
                Elem::F32 => std::ptr::copy_nonoverlapping(src, p.cast::<f32>(), n),
                Elem::Bf16 => {
                    let p = p.cast::<u16>();
                    for i in 0..n {
                        *p.add(i) = round_bf16(*src.add(i));
                    }
                }
                Elem::F16 => std::slice::from_raw_parts_mut(p.cast::<f16>(), n)
                    .convert_from_f32_slice(std::slice::from_raw_parts(src, n)),
            }
        }
    }
}

/// Bits of the nearest bf16 (ties to even); branch-free, so that loops over it vectorise.
#[inline(always)]
fn round_bf16(x: f32) -> u16 {
    let b = x.to_bits();
    let rounded = b.wrapping_add(0x7fff + ((b >> 16) & 1)) >> 16;
    // A NaN keeps its upper bits and becomes quiet, as `half` does.
    let nan = (b >> 16) | 0x40;
    (if b & 0x7fff_ffff > 0x7f80_0000 {
        nan
    } else {
        rounded
    }) as u16
}

const _: () = assert!(size_of::<bf16>() == 2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_rounds_like_half() {
        for hi in 0..=0xffffu32 {
            for lo in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let x = f32::from_bits(hi << 16 | lo);
                assert_eq!(round_bf16(x), bf16::from_f32(x).to_bits(), "{x:e}");
            }
        }
    }
}
