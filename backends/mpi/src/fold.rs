//! The reduction of what ranks sent: `((x0 + x1) + x2) + …` in rank order for every element, the order of the in-process collectives, so
//! that a run has the same bits in threads and in processes. 16-bit floats are summed in f32 and rounded once.

use crossweave_abi::*;
use half::{bf16, f16};

/// Elements handled at a time: sums of a block stay in the first-level cache.
const BLOCK: usize = 2048;

/// How sources become one.
#[derive(Clone, Copy)]
pub(crate) struct Fold {
    pub(crate) dtype: DType,
    pub(crate) reduce: u32,
}

trait Elem: Copy {
    type Acc: Copy + Default;
    fn up(self) -> Self::Acc;
    fn down(a: Self::Acc) -> Self;
    fn add(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn mul(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn min(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn max(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    /// Integers never get here.
    fn scale(a: Self::Acc, factor: f64) -> Self::Acc;
    /// Integers never get here.
    fn share(a: Self::Acc, n: usize) -> Self::Acc;
}

macro_rules! float {
    ($t:ty, $acc:ty, $up:expr, $down:expr) => {
        impl Elem for $t {
            type Acc = $acc;
            #[inline(always)]
            fn up(self) -> $acc {
                $up(self)
            }
            #[inline(always)]
            fn down(a: $acc) -> $t {
                $down(a)
            }
            #[inline(always)]
            fn add(a: $acc, b: $acc) -> $acc {
                a + b
            }
            #[inline(always)]
            fn mul(a: $acc, b: $acc) -> $acc {
                a * b
            }
            // A NaN on either side stays: the comparison fails and `b` is taken, or `a` is NaN itself.
            #[inline(always)]
            fn min(a: $acc, b: $acc) -> $acc {
                if a <= b || a.is_nan() { a } else { b }
            }
            #[inline(always)]
            fn max(a: $acc, b: $acc) -> $acc {
                if a >= b || a.is_nan() { a } else { b }
            }
            #[inline(always)]
            fn scale(a: $acc, factor: f64) -> $acc {
                a * factor as $acc
            }
            #[inline(always)]
            fn share(a: $acc, n: usize) -> $acc {
                a / n as $acc
            }
        }
    };
}
float!(f32, f32, |x| x, |x| x);
float!(f64, f64, |x| x, |x| x);
float!(f16, f32, f16::to_f32, f16::from_f32);
float!(bf16, f32, wide, narrow);

#[inline(always)]
fn wide(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

/// Round to nearest even in integers; a NaN keeps its sign and stays a NaN.
#[inline(always)]
fn narrow(a: f32) -> bf16 {
    let b = a.to_bits();
    let rounded = b.wrapping_add(0x7fff + ((b >> 16) & 1)) >> 16;
    let nan = (b >> 16) | 0x40;
    bf16::from_bits(if a.is_nan() { nan } else { rounded } as u16)
}

macro_rules! integer {
    ($($t:ty),*) => {$(
        impl Elem for $t {
            type Acc = $t;
            #[inline(always)]
            fn up(self) -> $t {
                self
            }
            #[inline(always)]
            fn down(a: $t) -> $t {
                a
            }
            #[inline(always)]
            fn add(a: $t, b: $t) -> $t {
                a.wrapping_add(b)
            }
            #[inline(always)]
            fn mul(a: $t, b: $t) -> $t {
                a.wrapping_mul(b)
            }
            #[inline(always)]
            fn min(a: $t, b: $t) -> $t {
                Ord::min(a, b)
            }
            #[inline(always)]
            fn max(a: $t, b: $t) -> $t {
                Ord::max(a, b)
            }
            fn scale(a: $t, _: f64) -> $t {
                a
            }
            fn share(a: $t, _: usize) -> $t {
                a
            }
        }
    )*};
}
integer!(i8, u8, i32, u32, i64, u64);

/// Can this dtype be reduced so? Answered before anything moves.
pub(crate) fn supported(dtype: DType, reduce: u32) -> bool {
    let float = matches!(dtype, DType::F16 | DType::Bf16 | DType::F32 | DType::F64);
    match reduce {
        RED_SUM | RED_PROD | RED_MIN | RED_MAX => float || !dtype.is_float(),
        RED_AVG | RED_PREMUL_SUM => float,
        _ => false,
    }
}

impl Fold {
    /// `out[i] = fold over r of sources[r][i]`, each source with its `premul_sum` factor.
    ///
    /// # Safety
    /// Every source and `out` hold `count` elements; `out` equals a source exactly or overlaps none.
    pub(crate) unsafe fn run(self, sources: &[(*const u8, f64)], out: *mut u8, count: usize) {
        // SAFETY: forwarded.
        unsafe {
            match self.dtype {
                DType::F32 => typed::<f32>(self.reduce, sources, out, count),
                DType::F64 => typed::<f64>(self.reduce, sources, out, count),
                DType::Bf16 => typed::<bf16>(self.reduce, sources, out, count),
                DType::F16 => typed::<f16>(self.reduce, sources, out, count),
                DType::I8 => typed::<i8>(self.reduce, sources, out, count),
                DType::U8 => typed::<u8>(self.reduce, sources, out, count),
                DType::I32 => typed::<i32>(self.reduce, sources, out, count),
                DType::U32 => typed::<u32>(self.reduce, sources, out, count),
                DType::I64 => typed::<i64>(self.reduce, sources, out, count),
                DType::U64 => typed::<u64>(self.reduce, sources, out, count),
                // `supported` lets no other type through.
                _ => {}
            }
        }
    }
}

/// # Safety
/// As [`Fold::run`].
unsafe fn typed<T: Elem>(reduce: u32, sources: &[(*const u8, f64)], out: *mut u8, count: usize) {
    let op: fn(T::Acc, T::Acc) -> T::Acc = match reduce {
        RED_PROD => T::mul,
        RED_MIN => T::min,
        RED_MAX => T::max,
        _ => T::add,
    };
    let scaled = reduce == RED_PREMUL_SUM;
    let mut acc = [T::Acc::default(); BLOCK];
    let mut from = 0;
    while from < count {
        let acc = &mut acc[..BLOCK.min(count - from)];
        for (r, (source, factor)) in sources.iter().enumerate() {
            // SAFETY: the block lies inside every source; reads may be unaligned, since spans start at any byte.
            let at = |i: usize| unsafe { source.cast::<T>().add(from + i).read_unaligned() };
            let each = acc.iter_mut().enumerate();
            match (r, scaled) {
                (0, false) => each.for_each(|(i, a)| *a = at(i).up()),
                (0, true) => each.for_each(|(i, a)| *a = T::scale(at(i).up(), *factor)),
                // The usual case without a call for each element.
                (_, false) if matches!(reduce, RED_SUM | RED_AVG) => {
                    each.for_each(|(i, a)| *a = T::add(*a, at(i).up()))
                }
                (_, false) => each.for_each(|(i, a)| *a = op(*a, at(i).up())),
                (_, true) => each.for_each(|(i, a)| *a = T::add(*a, T::scale(at(i).up(), *factor))),
            }
        }
        for (i, a) in acc.iter().enumerate() {
            let a = match reduce {
                RED_AVG => T::share(*a, sources.len()),
                _ => *a,
            };
            // SAFETY: the block lies inside `out`.
            unsafe { out.cast::<T>().add(from + i).write_unaligned(T::down(a)) };
        }
        from += acc.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_bit_sums_are_rounded_once_and_in_rank_order() {
        // 256 + 1 + 1: in bf16, rounding after each addition would lose both ones.
        let x = [bf16::from_f32(256.0), bf16::ONE, bf16::ONE];
        let sources: Vec<_> = x
            .iter()
            .map(|v| (std::ptr::from_ref(v).cast::<u8>(), 1.0))
            .collect();
        let mut out = bf16::ZERO;
        let f = Fold {
            dtype: DType::Bf16,
            reduce: RED_SUM,
        };
        // SAFETY: one element each.
        unsafe { f.run(&sources, std::ptr::from_mut(&mut out).cast(), 1) };
        assert_eq!(out.to_f32(), 258.0);
    }

    #[test]
    fn average_scale_and_nan() {
        let x = [[1.0f32, f32::NAN], [4.0, 0.0]];
        let run = |reduce: u32, factor: f64| {
            let sources: Vec<_> = x
                .iter()
                .map(|v| (v.as_ptr().cast::<u8>(), factor))
                .collect();
            let mut out = [0f32; 2];
            // SAFETY: two elements each.
            unsafe {
                Fold {
                    dtype: DType::F32,
                    reduce,
                }
                .run(&sources, out.as_mut_ptr().cast(), 2)
            };
            out
        };
        assert_eq!(run(RED_AVG, 1.0)[0], 2.5);
        assert_eq!(run(RED_PREMUL_SUM, 0.5)[0], 2.5);
        assert!(run(RED_MIN, 1.0)[1].is_nan() && run(RED_MAX, 1.0)[1].is_nan());
        assert!(!supported(DType::I32, RED_AVG) && !supported(DType::F8E4M3, RED_SUM));
    }
}
