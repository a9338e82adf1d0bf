//! The fixed small products a tile must get right before it is used.
//!
//! Products of small integers are exact in every order of summation, fused or not: their bits must be those of the trusted tile. Values
//! with full mantissas test what integers cannot; they are positive, so that the bound on rounding is tight.

use super::elem::Elem;
use super::tile::Isa;
use super::{Gemm, Operands};
use crate::team::Team;

/// Full tiles, edges in both directions and an odd end of pairs, for every tile there is.
const M: usize = 13;
const N: usize = 35;
const K: usize = 21;

struct Case {
    operand: Elem,
    out: Elem,
    /// Strides `[row, k]` of A and `[column, k]` of B.
    a: [isize; 2],
    b: [isize; 2],
    bias: Option<Elem>,
    alpha: f32,
    accumulate: bool,
    /// Length of a block of K (several blocks keep partial sums).
    kc: usize,
    /// Small integers, or positive values of full mantissa?
    exact: bool,
}

/// The cases of one operand storage: every way of packing, of ending and of storing.
fn cases(operand: Elem) -> [Case; 4] {
    let (m, n, k) = (M as isize, N as isize, K as isize);
    let plain = Case {
        operand,
        out: operand,
        a: [k, 1],
        b: [1, n],
        bias: None,
        alpha: 1.0,
        accumulate: false,
        kc: K + 1,
        exact: true,
    };
    [
        Case {
            b: [k, 1],
            bias: Some(operand),
            // Exact as a factor, but its product needs rounding in 16 bits.
            alpha: 1025.0 / 1024.0,
            accumulate: true,
            kc: 8,
            ..plain
        },
        Case {
            out: Elem::F32,
            a: [1, m],
            accumulate: true,
            kc: 8,
            ..plain
        },
        Case {
            out: Elem::F32,
            exact: false,
            ..plain
        },
        // Neither dim has neighbours in memory: the slow way of packing.
        Case {
            out: Elem::F32,
            a: [2 * k, 2],
            b: [2, 2 * n],
            bias: Some(Elem::F32),
            kc: 8,
            exact: false,
            ..plain
        },
    ]
}

/// Values for one operand: words that hold any storage.
fn fill(elem: Elem, seed: u32, n: usize, exact: bool) -> Vec<u32> {
    let mut s = seed;
    let values: Vec<f32> = (0..n)
        .map(|_| {
            s = s.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if exact {
                ((s >> 24) % 9) as f32 - 4.0
            } else {
                0.5 + (s >> 8) as f32 / (1u32 << 25) as f32
            }
        })
        .collect();
    let mut words = vec![0u32; n];
    // SAFETY: a word per value holds any storage.
    unsafe { elem.narrow(values.as_ptr(), n, words.as_mut_ptr().cast()) };
    words
}

impl Case {
    fn run(&self, isa: Isa) -> Vec<f32> {
        let mut g = Gemm::new(
            [1, M, N, K],
            self.operand,
            [self.a[0], self.a[1], 0],
            [self.b[0], self.b[1], 0],
            self.out,
            [N as isize, 0],
            self.bias.map(|e| (e, 1)),
            self.alpha,
            self.accumulate,
            1,
            isa,
        );
        g.kc = self.kc;
        let a = fill(self.operand, 1, 2 * M * K, self.exact);
        let b = fill(self.operand, 2, 2 * K * N, self.exact);
        let bias = fill(self.bias.unwrap_or(Elem::F32), 3, N, self.exact);
        let mut c = fill(self.out, 4, M * N, self.exact);
        // NaN: what is read before it is written shows.
        let mut work = vec![f32::NAN; g.workspace() / 4];
        let o = Operands {
            c: c.as_mut_ptr().cast(),
            a: a.as_ptr().cast(),
            b: b.as_ptr().cast(),
            bias: bias.as_ptr().cast(),
            workspace: work.as_mut_ptr().cast(),
        };
        // SAFETY: the buffers hold the strides above; the caller that tests a tile knows that its instruction set is there.
        unsafe { g.run(o, &Team::solo()) };
        let mut out = vec![0.0; M * N];
        // SAFETY: M * N elements of the output's storage.
        unsafe { self.out.widen(c.as_ptr().cast(), M * N, out.as_mut_ptr()) };
        out
    }

    /// Compares the tile with the trusted one.
    fn check(&self, isa: Isa, trusted: Isa, same_bits: bool) -> Result<(), String> {
        let (got, want) = (self.run(isa), self.run(trusted));
        // Each of the two rounds once per term of the sum, twice where it does not fuse.
        let bound = (4 * K + 8) as f32 * 2f32.powi(-24);
        for (i, (g, w)) in got.iter().zip(&want).enumerate() {
            let same = g.to_bits() == w.to_bits();
            if same || (!self.exact && !same_bits && (g - w).abs() <= bound * w) {
                continue;
            }
            return Err(format!(
                "matmul {:?} to {:?}: element {i} is {g:e}, {} gives {w:e}",
                self.operand, self.out, trusted.name
            ));
        }
        Ok(())
    }
}

/// Compares a tile with a trusted one over every storage it takes; `same_bits` where both sum in the same order with the same rounding.
pub fn check(isa: Isa, trusted: Isa, same_bits: bool) -> Result<(), String> {
    let storages: &[Elem] = if isa.per_word == 2 {
        &[Elem::Bf16]
    } else {
        &[Elem::F32, Elem::Bf16, Elem::F16]
    };
    for &operand in storages {
        for case in cases(operand) {
            case.check(isa, trusted, same_bits)?;
        }
    }
    Ok(())
}
