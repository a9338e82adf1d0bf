//! cast to and from 8-bit floats (OCP E4M3): one sign, four exponent bits of bias 7, three of mantissa; no infinity, one NaN a sign.

use super::view::*;
use crate::kernel::{Kernel, Launch};
use crossweave_plugin::{DType, OpRequest, Plan, Result};

type Prepared = Result<(Box<dyn Kernel>, Plan)>;

/// Nearest E4M3, ties to even; what rounds beyond 448 is NaN, as torch has it.
#[inline]
pub fn e4m3_of_f32(x: f32) -> u8 {
    let sign = (x.to_bits() >> 24) as u8 & 0x80;
    let a = x.abs();
    // Below the least normal number, 2^-6, values are multiples of 2^-9; the eighth of them is that number's own code.
    if a < 0.015_625 {
        return sign | (a * 512.0).round_ties_even() as u8;
    }
    let bits = a.to_bits();
    // Twenty bits of f32's mantissa go, half of their range added before, a carry into the exponent is right as it is.
    let rounded = bits.saturating_add(0x7_ffff + (bits >> 20 & 1)) >> 20;
    sign | (rounded - (120 << 3)).min(0x7f) as u8
}

/// The value of a code.
#[inline]
pub fn f32_of_e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (code >> 3 & 15, (code & 7) as f32);
    let a = match (code & 0x7f, exponent) {
        (0x7f, _) => f32::NAN,
        (_, 0) => mantissa * f32::from_bits((127 - 9) << 23),
        _ => (8.0 + mantissa) * f32::from_bits((exponent as u32 + 127 - 10) << 23),
    };
    if code & 0x80 != 0 { -a } else { a }
}

struct Narrow {
    dst: View,
    src: View,
}

struct Widen {
    dst: View,
    src: View,
    values: Box<[f32; 256]>,
}

/// `cast` where one side is E4M3, and the other a float of 16 or 32 bits.
pub fn cast(o: &OpRequest<'_>) -> Prepared {
    const E4M3: &[DType] = &[DType::F8E4M3];
    let narrow = o.layout(0).is_some_and(|l| l.dtype == DType::F8E4M3.id());
    let (to, from) = match narrow {
        true => (E4M3, FLOATS),
        false => (FLOATS, E4M3),
    };
    let (dst, src) = (output(o, 0, to)?, input(o, 1, from)?);
    shape(o, 1, &src, &dst.shape)?;
    let kernel: Box<dyn Kernel> = match narrow {
        true => Box::new(Narrow { dst, src }),
        false => Box::new(Widen {
            dst,
            src,
            values: Box::new(std::array::from_fn(|c| f32_of_e4m3(c as u8))),
        }),
    };
    Ok((kernel, plan(o, 0)))
}

impl Kernel for Narrow {
    unsafe fn run(&self, l: &Launch<'_>) {
        let (y, x) = (Ptr(l.operands[0]), Ptr(l.operands[1]));
        chunks(l.team, self.dst.total, CHUNK, &|start, len| {
            let mut buf = [0f32; BLOCK];
            blocks(start, len, |at, n| {
                // SAFETY: in range by the chunking, and the output is dense; tasks write disjoint elements.
                unsafe {
                    let v = self.src.get(x, at, n, &mut buf);
                    for (i, v) in v.iter().enumerate() {
                        *y.at(at + i) = e4m3_of_f32(*v);
                    }
                }
            });
        });
    }
}

impl Kernel for Widen {
    unsafe fn run(&self, l: &Launch<'_>) {
        let (y, x) = (Ptr(l.operands[0]), Ptr(l.operands[1]));
        chunks(l.team, self.dst.total, CHUNK, &|start, len| {
            let mut buf = [0f32; BLOCK];
            blocks(start, len, |at, n| {
                let mut done = 0;
                self.src.rows(at, n, |off, stride, len| {
                    for (i, v) in buf[done..done + len].iter_mut().enumerate() {
                        // SAFETY: the walk stays inside the layout.
                        let code = unsafe { *x.at::<u8>(off + i * stride) };
                        *v = self.values[code as usize];
                    }
                    done += len;
                });
                // SAFETY: in range by the chunking; tasks write disjoint elements.
                unsafe { self.dst.store(y, at, &buf[..n]) };
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_comes_back() {
        for c in 0..=255u8 {
            let v = f32_of_e4m3(c);
            match c & 0x7f {
                0x7f => assert!(v.is_nan()),
                _ => assert_eq!(e4m3_of_f32(v), c, "{v}"),
            }
        }
        assert_eq!(f32_of_e4m3(0x7e), 448.0);
        assert_eq!(f32_of_e4m3(0x08), 0.015_625);
        assert_eq!(f32_of_e4m3(0x01), 0.001_953_125);
    }

    /// Held against a search of the neighbours in f64.
    #[test]
    fn values_go_to_the_nearest_code_and_ties_to_even() {
        for c in 0..0x7eu8 {
            let (lo, hi) = (f32_of_e4m3(c), f32_of_e4m3(c + 1));
            let middle = (lo + hi) / 2.0;
            assert_eq!(e4m3_of_f32(middle), c + (c & 1), "{middle}");
            assert_eq!(e4m3_of_f32(middle.next_down()), c);
            assert_eq!(e4m3_of_f32(middle.next_up()), c + 1);
            assert_eq!(e4m3_of_f32(-middle.next_up()), 0x80 | (c + 1));
        }
        assert_eq!(e4m3_of_f32(464.0), 0x7e);
        for x in [464.1, 1e9, f32::MAX, f32::INFINITY, f32::NAN] {
            assert_eq!(e4m3_of_f32(x) & 0x7f, 0x7f, "{x}");
        }
        assert_eq!(e4m3_of_f32(f32::MIN_POSITIVE), 0);
    }
}
