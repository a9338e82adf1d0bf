//! The reduction loop: `((x0 + x1) + x2) + …` in rank order for every element, whatever its place, the count or the number of parts.
//!
//! 16-bit floats are summed in f32 and rounded once. The loops are plain and compiled once more with wider instructions; additions stay
//! lane by lane, so the bits do not depend on which build ran.

use super::transfer::{Stores, fence, put};
use crossweave_abi::*;
use half::{bf16, f16};
use std::mem::MaybeUninit;

/// Elements handled at a time: a block of f32 is 8 KB.
const ELEMS: usize = 2048;

/// One reduction: sources in rank order, each with its `premul_sum` factor.
pub(super) struct Sum<'a> {
    pub(super) dtype: DType,
    pub(super) reduce: u32,
    pub(super) sources: &'a [(*const u8, f64)],
    pub(super) outputs: &'a [*mut u8],
    pub(super) stores: Stores,
}

trait Elem: Copy + Default {
    /// What sums are kept in.
    type Acc: Copy + Default;
    /// Sums are kept in the type itself, so there is nothing to round.
    const DIRECT: bool;
    fn up(self) -> Self::Acc;
    fn down(a: Self::Acc) -> Self;
    fn add(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn mul(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn min(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn max(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    /// `a * factor`; integers never get here.
    fn scale(a: Self::Acc, factor: f64) -> Self::Acc;
    /// `a / n`; integers never get here.
    fn share(a: Self::Acc, n: usize) -> Self::Acc;
}

macro_rules! float_math {
    ($acc:ty) => {
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
    };
}

macro_rules! plain_float {
    ($($t:ty),*) => {$(
        impl Elem for $t {
            type Acc = $t;
            const DIRECT: bool = true;
            #[inline(always)]
            fn up(self) -> $t {
                self
            }
            #[inline(always)]
            fn down(a: $t) -> $t {
                a
            }
            float_math!($t);
        }
    )*};
}
plain_float!(f32, f64);

impl Elem for bf16 {
    type Acc = f32;
    const DIRECT: bool = false;
    #[inline(always)]
    fn up(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    /// Round to nearest even in integers, which compiles to wide instructions; a NaN keeps its sign and stays a NaN.
    #[inline(always)]
    fn down(a: f32) -> bf16 {
        let b = a.to_bits();
        let rounded = b.wrapping_add(0x7fff + ((b >> 16) & 1)) >> 16;
        let nan = (b >> 16) | 0x40;
        bf16::from_bits(if a.is_nan() { nan } else { rounded } as u16)
    }
    float_math!(f32);
}

impl Elem for f16 {
    type Acc = f32;
    const DIRECT: bool = false;
    #[inline(always)]
    fn up(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn down(a: f32) -> f16 {
        f16::from_f32(a)
    }
    float_math!(f32);
}

macro_rules! integer {
    ($($t:ty),*) => {$(
        impl Elem for $t {
            type Acc = $t;
            const DIRECT: bool = true;
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

/// Reduces elements `from..to`.
///
/// # Safety
/// Every source and output holds `to` elements; an output equals a source exactly or does not overlap the range; nobody else writes it.
pub(super) unsafe fn run(s: &Sum<'_>, from: usize, to: usize) {
    // SAFETY: forwarded.
    unsafe {
        match s.dtype {
            DType::F32 => typed::<f32>(s, from, to),
            DType::F64 => typed::<f64>(s, from, to),
            DType::Bf16 => typed::<bf16>(s, from, to),
            DType::F16 => typed::<f16>(s, from, to),
            DType::I8 => typed::<i8>(s, from, to),
            DType::U8 => typed::<u8>(s, from, to),
            DType::I32 => typed::<i32>(s, from, to),
            DType::U32 => typed::<u32>(s, from, to),
            DType::I64 => typed::<i64>(s, from, to),
            DType::U64 => typed::<u64>(s, from, to),
            // `check::supported` lets no other type through.
            _ => {}
        }
    }
    fence(s.stores);
}

/// Picks the instruction set.
///
/// # Safety
/// As [`run`]; `T` is the dtype of the sum.
unsafe fn typed<T: Elem>(s: &Sum<'_>, from: usize, to: usize) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("f16c") {
        // SAFETY: the features were found; the rest is forwarded.
        unsafe { typed_avx2::<T>(s, from, to) };
        return;
    }
    // SAFETY: forwarded.
    unsafe { body::<T>(s, from, to) };
}

/// [`body`] compiled for AVX2.
///
/// # Safety
/// As [`typed`]; the processor has both features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
unsafe fn typed_avx2<T: Elem>(s: &Sum<'_>, from: usize, to: usize) {
    // SAFETY: forwarded.
    unsafe { body::<T>(s, from, to) };
}

/// The loop, once per instruction set.
///
/// # Safety
/// As [`typed`].
#[inline(always)]
unsafe fn body<T: Elem>(s: &Sum<'_>, from: usize, to: usize) {
    // Not cleared first: that would cost more than a small vector does.
    let mut acc = [MaybeUninit::<T::Acc>::uninit(); ELEMS];
    let mut out = [MaybeUninit::<T>::uninit(); ELEMS];
    let size = size_of::<T>();
    let n = s.sources.len();
    let mut at = from;
    while at < to {
        let len = ELEMS.min(to - at);
        let acc = &mut acc[..len];
        // SAFETY: the block lies inside every source; reads are unaligned-safe copies through `read`.
        unsafe {
            let source = |j: usize| {
                let (base, factor) = s.sources[j];
                let at = base.add(at * size).cast::<T>();
                Block { at, factor }
            };
            let (first, second) = (source(0), source(1.min(n - 1)));
            match s.reduce {
                RED_PREMUL_SUM => {
                    for (i, a) in acc.iter_mut().enumerate() {
                        a.write(first.scaled(i));
                    }
                    for j in 1..n {
                        let x = source(j);
                        for (i, a) in acc.iter_mut().enumerate() {
                            a.write(T::add(a.assume_init(), x.scaled(i)));
                        }
                    }
                }
                RED_PROD => fold::<T>(acc, n, &first, &second, source, T::mul),
                RED_MIN => fold::<T>(acc, n, &first, &second, source, T::min),
                RED_MAX => fold::<T>(acc, n, &first, &second, source, T::max),
                _ => fold::<T>(acc, n, &first, &second, source, T::add),
            }
        }
        // SAFETY: each arm above has written all of it.
        let acc = unsafe { std::slice::from_raw_parts_mut(acc.as_mut_ptr().cast::<T::Acc>(), len) };
        if s.reduce == RED_AVG {
            acc.iter_mut().for_each(|a| *a = T::share(*a, n));
        }
        let result: *const u8 = if T::DIRECT {
            acc.as_ptr().cast()
        } else {
            for (o, a) in out.iter_mut().zip(acc.iter()) {
                o.write(T::down(*a));
            }
            out.as_ptr().cast()
        };
        for dst in s.outputs {
            // SAFETY: the block lies inside every output; the result is ours.
            unsafe { put(result, dst.add(at * size), len * size, s.stores) };
        }
        at += len;
    }
}

/// A block of one source and its factor.
struct Block<T> {
    at: *const T,
    factor: f64,
}
impl<T: Elem> Block<T> {
    /// # Safety
    /// `i` lies inside the block.
    #[inline(always)]
    unsafe fn get(&self, i: usize) -> T::Acc {
        // SAFETY: forwarded.
        unsafe { self.at.add(i).read_unaligned() }.up()
    }

    /// # Safety
    /// As [`Block::get`].
    #[inline(always)]
    unsafe fn scaled(&self, i: usize) -> T::Acc {
        // SAFETY: forwarded.
        T::scale(unsafe { self.get(i) }, self.factor)
    }
}

/// `acc = x0 op x1 op …`, the first two in one pass.
///
/// # Safety
/// Every source holds `acc.len()` elements.
#[inline(always)]
unsafe fn fold<T: Elem>(
    acc: &mut [MaybeUninit<T::Acc>],
    n: usize,
    first: &Block<T>,
    second: &Block<T>,
    source: impl Fn(usize) -> Block<T>,
    op: impl Fn(T::Acc, T::Acc) -> T::Acc,
) {
    // SAFETY: forwarded; later passes read what the first has written.
    unsafe {
        if n == 1 {
            for (i, a) in acc.iter_mut().enumerate() {
                a.write(first.get(i));
            }
            return;
        }
        for (i, a) in acc.iter_mut().enumerate() {
            a.write(op(first.get(i), second.get(i)));
        }
        for j in 2..n {
            let x = source(j);
            for (i, a) in acc.iter_mut().enumerate() {
                a.write(op(a.assume_init(), x.get(i)));
            }
        }
    }
}
