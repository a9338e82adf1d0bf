//! One source, several instruction sets: inner loops are written once and compiled in clones chosen at run time.
//!
//! No clone contracts or reorders arithmetic: every instruction set computes the same bits, so a run does not depend on the machine's age.

pub mod convert;
pub mod math;
pub mod sum;

/// Instruction sets with a clone of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// What the target guarantees (SSE2, NEON, …).
    Base,
    /// AVX2 with FMA and F16C.
    V3,
    /// AVX-512 F, BW, DQ, VL.
    V4,
}

/// The best clone this machine runs; the standard library caches the answer.
#[inline]
pub fn isa() -> Isa {
    #[cfg(target_arch = "x86_64")]
    {
        use std::is_x86_feature_detected as has;
        if has!("avx2") && has!("fma") && has!("f16c") {
            if has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl") {
                return Isa::V4;
            }
            return Isa::V3;
        }
    }
    Isa::Base
}

/// Declares functions whose bodies are compiled for each [`Isa`] and chosen at each call.
macro_rules! clones {
    ($( $(#[$m:meta])* $vis:vis fn $name:ident $(<$($g:ident : $b:path),*>)? ( $($a:ident : $t:ty),* $(,)? ) $(-> $r:ty)? $body:block )*) => { $(
        $(#[$m])*
        #[allow(clippy::too_many_arguments)]
        #[inline]
        $vis fn $name $(<$($g: $b),*>)? ($($a: $t),*) $(-> $r)? {
            #[inline(always)]
            fn body $(<$($g: $b),*>)? ($($a: $t),*) $(-> $r)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
                fn v4 $(<$($g: $b),*>)? ($($a: $t),*) $(-> $r)? { body($($a),*) }
                #[target_feature(enable = "avx2,fma,f16c")]
                fn v3 $(<$($g: $b),*>)? ($($a: $t),*) $(-> $r)? { body($($a),*) }
                match $crate::simd::isa() {
                    // SAFETY: `isa` has just seen these features on this machine.
                    $crate::simd::Isa::V4 => return unsafe { v4($($a),*) },
                    // SAFETY: as above.
                    $crate::simd::Isa::V3 => return unsafe { v3($($a),*) },
                    $crate::simd::Isa::Base => {}
                }
            }
            body($($a),*)
        }
    )* };
}
pub(crate) use clones;
