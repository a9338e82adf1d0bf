//! The vector a tile is written in: load, splat, multiply-add, store. One implementation per instruction set, and a portable one that
//! stands in for the wide ones in tests (same tile code, emulated vectors).

/// A vector of f32 accumulators and the operand words it multiplies.
///
/// An operand *word* is 32 bits: one f32, or (bf16 dot-product instructions) two neighbouring bf16 along k.
pub trait Lane: Copy {
    /// Accumulators per vector.
    const N: usize;
    /// Is a word a pair of bf16?
    const PAIR: bool;
    /// Has the instruction set a fused multiply-add? (Otherwise `mul_add` would be a library call.)
    const FMA: bool;
    /// A vector of operand words.
    type Words: Copy;
    /// # Safety
    /// The instruction set is there (this holds for every function here).
    unsafe fn zero() -> Self;
    /// # Safety
    /// `p` is readable for `N` f32.
    unsafe fn load(p: *const f32) -> Self;
    /// # Safety
    /// `p` is writable for `N` f32.
    unsafe fn store(self, p: *mut f32);
    /// # Safety
    /// The instruction set is there.
    unsafe fn add(self, o: Self) -> Self;
    /// # Safety
    /// `p` is readable for `N` words.
    unsafe fn words(p: *const u32) -> Self::Words;
    /// # Safety
    /// `p` is readable for one word.
    unsafe fn splat(p: *const u32) -> Self::Words;
    /// `self + a * b` (both products of a pair).
    /// # Safety
    /// The instruction set is there.
    unsafe fn madd(self, a: Self::Words, b: Self::Words) -> Self;
}

/// `a * b + c`, fused where the lane's instruction set has it.
#[inline(always)]
pub fn madd<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// `N` f32 in an array: the compiler makes vectors of it where it can.
#[derive(Clone, Copy)]
pub struct Portable<const N: usize>([f32; N]);

/// The multiply-add of the target the crate is compiled for.
const NATIVE_FMA: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

impl<const W: usize> Lane for Portable<W> {
    const N: usize = W;
    const PAIR: bool = false;
    const FMA: bool = NATIVE_FMA;
    type Words = [f32; W];
    #[inline(always)]
    unsafe fn zero() -> Self {
        Portable([0.0; W])
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: by contract readable for N.
        Portable(unsafe { p.cast::<[f32; W]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: by contract writable for N.
        unsafe { p.cast::<[f32; W]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn add(mut self, o: Self) -> Self {
        for i in 0..W {
            self.0[i] += o.0[i];
        }
        self
    }
    #[inline(always)]
    unsafe fn words(p: *const u32) -> [f32; W] {
        // SAFETY: by contract readable for N words.
        unsafe { p.cast::<[f32; W]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn splat(p: *const u32) -> [f32; W] {
        // SAFETY: by contract readable.
        [unsafe { p.cast::<f32>().read_unaligned() }; W]
    }
    #[inline(always)]
    unsafe fn madd(mut self, a: [f32; W], b: [f32; W]) -> Self {
        for i in 0..W {
            self.0[i] = madd::<NATIVE_FMA>(a[i], b[i], self.0[i]);
        }
        self
    }
}

/// A scalar model of the bf16 dot-product vector: what `Avx512Bf16` computes, but with subnormals kept.
#[cfg(test)]
#[derive(Clone, Copy)]
pub struct PairModel([f32; 16]);

#[cfg(test)]
impl Lane for PairModel {
    const N: usize = 16;
    const PAIR: bool = true;
    const FMA: bool = NATIVE_FMA;
    type Words = [u32; 16];
    unsafe fn zero() -> Self {
        PairModel([0.0; 16])
    }
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: by contract readable for N.
        PairModel(unsafe { p.cast::<[f32; 16]>().read_unaligned() })
    }
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: by contract writable for N.
        unsafe { p.cast::<[f32; 16]>().write_unaligned(self.0) }
    }
    unsafe fn add(mut self, o: Self) -> Self {
        for i in 0..16 {
            self.0[i] += o.0[i];
        }
        self
    }
    unsafe fn words(p: *const u32) -> [u32; 16] {
        // SAFETY: by contract readable for N words.
        unsafe { p.cast::<[u32; 16]>().read_unaligned() }
    }
    unsafe fn splat(p: *const u32) -> [u32; 16] {
        // SAFETY: by contract readable.
        [unsafe { p.read_unaligned() }; 16]
    }
    unsafe fn madd(mut self, a: [u32; 16], b: [u32; 16]) -> Self {
        let lo = |w: u32| f32::from_bits(w << 16);
        let hi = |w: u32| f32::from_bits(w & 0xffff_0000);
        for i in 0..16 {
            self.0[i] += lo(a[i]) * lo(b[i]);
            self.0[i] += hi(a[i]) * hi(b[i]);
        }
        self
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86::*;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Lane;
    use std::arch::x86_64::*;

    macro_rules! f32_lane {
        ($name:ident, $n:literal, $zero:ident, $load:ident, $store:ident, $add:ident, $splat:expr, $fma:ident, $v:ty, $doc:literal) => {
            #[doc = $doc]
            #[derive(Clone, Copy)]
            pub struct $name($v);
            impl Lane for $name {
                const N: usize = $n;
                const PAIR: bool = false;
                const FMA: bool = true;
                type Words = $v;
                #[inline(always)]
                unsafe fn zero() -> Self {
                    // SAFETY: the instruction set is there by contract; so below.
                    $name(unsafe { $zero() })
                }
                #[inline(always)]
                unsafe fn load(p: *const f32) -> Self {
                    // SAFETY: by contract readable for N.
                    $name(unsafe { $load(p) })
                }
                #[inline(always)]
                unsafe fn store(self, p: *mut f32) {
                    // SAFETY: by contract writable for N.
                    unsafe { $store(p, self.0) }
                }
                #[inline(always)]
                unsafe fn add(self, o: Self) -> Self {
                    // SAFETY: by contract.
                    $name(unsafe { $add(self.0, o.0) })
                }
                #[inline(always)]
                unsafe fn words(p: *const u32) -> $v {
                    // SAFETY: by contract readable for N words.
                    unsafe { $load(p.cast()) }
                }
                #[inline(always)]
                unsafe fn splat(p: *const u32) -> $v {
                    // SAFETY: by contract readable.
                    unsafe { $splat(p.cast::<f32>()) }
                }
                #[inline(always)]
                unsafe fn madd(self, a: $v, b: $v) -> Self {
                    // SAFETY: by contract.
                    $name(unsafe { $fma(a, b, self.0) })
                }
            }
        };
    }
    /// One value in every lane.
    ///
    /// # Safety
    /// `p` is readable; the processor has AVX.
    #[inline(always)]
    unsafe fn splat256(p: *const f32) -> __m256 {
        // SAFETY: the caller's `p` is readable and AVX is there.
        unsafe { _mm256_broadcast_ss(&*p) }
    }
    /// One value in every lane.
    ///
    /// # Safety
    /// `p` is readable; the processor has AVX-512.
    #[inline(always)]
    unsafe fn splat512(p: *const f32) -> __m512 {
        // SAFETY: the caller's `p` is readable and AVX-512 is there.
        unsafe { _mm512_set1_ps(p.read_unaligned()) }
    }
    f32_lane!(
        Avx2,
        8,
        _mm256_setzero_ps,
        _mm256_loadu_ps,
        _mm256_storeu_ps,
        _mm256_add_ps,
        splat256,
        _mm256_fmadd_ps,
        __m256,
        "Eight f32 (AVX2 and FMA)."
    );
    f32_lane!(
        Avx512,
        16,
        _mm512_setzero_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps,
        _mm512_add_ps,
        splat512,
        _mm512_fmadd_ps,
        __m512,
        "Sixteen f32 (AVX-512F)."
    );

    /// Sixteen f32 fed by pairs of bf16 (AVX512-BF16; subnormals count as zero there).
    #[derive(Clone, Copy)]
    pub struct Avx512Bf16(__m512);
    impl Lane for Avx512Bf16 {
        const N: usize = 16;
        const PAIR: bool = true;
        const FMA: bool = true;
        type Words = __m512i;
        #[inline(always)]
        unsafe fn zero() -> Self {
            // SAFETY: the instruction set is there by contract; so below.
            Avx512Bf16(unsafe { _mm512_setzero_ps() })
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            // SAFETY: by contract readable for N.
            Avx512Bf16(unsafe { _mm512_loadu_ps(p) })
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            // SAFETY: by contract writable for N.
            unsafe { _mm512_storeu_ps(p, self.0) }
        }
        #[inline(always)]
        unsafe fn add(self, o: Self) -> Self {
            // SAFETY: by contract.
            Avx512Bf16(unsafe { _mm512_add_ps(self.0, o.0) })
        }
        #[inline(always)]
        unsafe fn words(p: *const u32) -> __m512i {
            // SAFETY: by contract readable for N words.
            unsafe { _mm512_loadu_si512(p.cast()) }
        }
        #[inline(always)]
        unsafe fn splat(p: *const u32) -> __m512i {
            // SAFETY: by contract readable.
            unsafe { _mm512_set1_epi32(p.read_unaligned() as i32) }
        }
        #[inline(always)]
        unsafe fn madd(self, a: __m512i, b: __m512i) -> Self {
            // SAFETY: by contract; both types are 64 bytes of plain bits.
            Avx512Bf16(unsafe {
                _mm512_dpbf16_ps(
                    self.0,
                    std::mem::transmute::<__m512i, __m512bh>(a),
                    std::mem::transmute::<__m512i, __m512bh>(b),
                )
            })
        }
    }
}
