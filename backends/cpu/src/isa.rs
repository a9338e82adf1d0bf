//! Which instruction sets a device's matrix and attention code uses: what the processor claims, at most what `cpu.simd` allows, and only
//! what passes a self-test.
//!
//! A level that computes wrong (an erratum, a hypervisor that saves half the registers, a miscompiled tile) is left out with a warning;
//! the next lower one is used. The other kernels are one source compiled several times, with the same bits at every level.

use crate::gemm::{self, tile};
use crate::ops::attention;
use crossweave_plugin::{Code, Host, Result, fail};
use std::sync::{Mutex, PoisonError};

pub use crate::gemm::tile::Level;

/// The instruction sets in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isas {
    /// Vectors of the matrix and attention tiles.
    pub level: Level,
    /// Are products of bf16 computed by the dot-product instructions (AVX512-BF16)?
    pub bf16: bool,
}

impl Isas {
    /// What the processor claims to have, untested.
    pub fn detect() -> Isas {
        let level = Level::detect();
        #[cfg(target_arch = "x86_64")]
        let bf16 = level == Level::Avx512 && is_x86_feature_detected!("avx512bf16");
        #[cfg(not(target_arch = "x86_64"))]
        let bf16 = false;
        Isas { level, bf16 }
    }

    /// What the processor claims, `bound` allows and the self-test confirms; each level left out is reported to `warn`.
    fn tested(bound: Level, warn: &mut dyn FnMut(String)) -> Isas {
        let claimed = Isas::detect();
        let mut candidates = vec![];
        #[cfg(target_arch = "x86_64")]
        for level in [Level::Avx2, Level::Avx512] {
            if level <= claimed.level.min(bound) {
                candidates.push(Candidate {
                    level,
                    bf16: false,
                    tile: tile::Isa::of_level(level),
                    attention: Some(attention::Isa::of(level)),
                });
            }
        }
        #[cfg(target_arch = "x86_64")]
        if claimed.bf16 && bound >= Level::Avx512 {
            candidates.push(Candidate {
                level: Level::Avx512,
                bf16: true,
                tile: tile::avx512bf16(),
                attention: None,
            });
        }
        choose(&candidates, warn)
    }
}

/// Code to be tested before it is used. Candidates stand in rising order, those that need another one's level after it.
struct Candidate {
    level: Level,
    /// The dot-product tile of the level, tested after the level itself.
    bf16: bool,
    tile: tile::Isa,
    attention: Option<attention::Isa>,
}

fn choose(candidates: &[Candidate], warn: &mut dyn FnMut(String)) -> Isas {
    let mut used = Isas {
        level: Level::Portable,
        bf16: false,
    };
    for c in candidates {
        // The dot-product tile leans on its level for everything else.
        if c.bf16 && used.level != c.level {
            continue;
        }
        // Two fused levels sum in the same order: their bits must agree. The portable tile does not fuse.
        let trusted = tile::Isa::of_level(used.level);
        let same_bits = used.level != Level::Portable && !c.bf16;
        let found = gemm::selftest::check(c.tile, trusted, same_bits).and_then(|()| {
            c.attention.map_or(Ok(()), |a| {
                attention::selftest::check(a, attention::Isa::of(used.level))
            })
        });
        match found {
            Ok(()) if c.bf16 => used.bf16 = true,
            Ok(()) => used.level = c.level,
            Err(what) => warn(format!(
                "instruction set {} is not used: its self-test failed ({what}); using {} instead. The processor, its hypervisor or this \
                 build is at fault; results are not affected, speed is",
                c.tile.name,
                used.level.name(),
            )),
        }
    }
    used
}

/// The self-test's answer, kept for the devices opened later.
#[derive(Default)]
pub(crate) struct SelfTest(Mutex<Option<(Level, Isas)>>);

impl SelfTest {
    /// The instruction sets to use under `bound`; the test runs at the first call and whenever the bound has changed.
    pub(crate) fn isas(&self, bound: Level, host: &Host) -> Result<Isas> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((b, isas)) = *known
            && b == bound
        {
            return Ok(isas);
        }
        if let Err(what) = crate::simd::convert::check() {
            return fail(
                Code::DeviceLost,
                format!(
                    "cpu: this processor's own conversions between f16 and f32 are wrong ({what}); nothing computed here could be trusted"
                ),
            );
        }
        let isas = Isas::tested(bound, &mut |what| {
            host.log(2, "cpu.simd", &what);
        });
        *known = Some((bound, isas));
        Ok(isas)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::tile::{Block, Isa, portable};

    /// The portable tile with the lowest bit of each block's first result flipped.
    fn wrong() -> Isa {
        /// # Safety
        /// As the portable tile's.
        unsafe fn block(t: &Block) {
            // SAFETY: forwarded; a block has at least one element.
            unsafe {
                (portable().block)(t);
                *t.dst.p ^= 1;
            }
        }
        Isa {
            name: "wrong",
            block,
            ..portable()
        }
    }

    fn candidate(level: Level, bf16: bool, tile: Isa) -> Candidate {
        Candidate {
            level,
            bf16,
            tile,
            attention: None,
        }
    }

    fn chosen(candidates: &[Candidate]) -> (Isas, Vec<String>) {
        let mut said = vec![];
        let isas = choose(candidates, &mut |what| said.push(what));
        (isas, said)
    }

    #[test]
    fn what_this_machine_claims_passes() {
        let mut said = vec![];
        let isas = Isas::tested(Level::Avx512, &mut |what| said.push(what));
        assert_eq!((isas, said), (Isas::detect(), vec![]));
    }

    #[test]
    fn a_wrong_level_is_named_and_left_out() {
        let (isas, said) = chosen(&[
            candidate(Level::Avx2, false, wrong()),
            candidate(Level::Avx512, false, portable()),
        ]);
        assert_eq!(isas.level, Level::Avx512);
        assert_eq!(said.len(), 1);
        assert!(said[0].contains("wrong is not used") && said[0].contains("scalar instead"));

        let (isas, said) = chosen(&[candidate(Level::Avx2, false, wrong())]);
        assert_eq!((isas.level, said.len()), (Level::Portable, 1));
    }

    #[test]
    fn a_wrong_dot_product_leaves_its_level_in_use() {
        let good = candidate(Level::Avx2, false, portable());
        let pairs = Isa {
            per_word: 2,
            ..wrong()
        };
        let (isas, said) = chosen(&[good, candidate(Level::Avx2, true, pairs)]);
        assert_eq!((isas.level, isas.bf16), (Level::Avx2, false));
        assert_eq!(said.len(), 1);
    }

    #[test]
    fn the_models_of_the_wide_tiles_pass() {
        for isa in [tile::model512(), tile::model512bf16()] {
            assert_eq!(gemm::selftest::check(isa, portable(), false), Ok(()));
        }
        let a = attention::Isa::of(Level::Portable);
        assert_eq!(attention::selftest::check(attention::model512(), a), Ok(()));
        assert_eq!(crate::simd::convert::check(), Ok(()));
    }

    #[test]
    fn nothing_above_the_bound_is_tested_or_used() {
        for bound in [Level::Portable, Level::Avx2, Level::Avx512] {
            let isas = Isas::tested(bound, &mut |what| panic!("{what}"));
            assert!(isas.level <= bound);
            assert!(!isas.bf16 || bound == Level::Avx512);
        }
    }
}
