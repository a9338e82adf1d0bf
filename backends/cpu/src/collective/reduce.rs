//! The reduction loop: `((x0 + x1) + x2) + …` in rank order for every element, whatever its place, the count or the number of parts.
//!
//! 16-bit floats are summed in f32 and rounded once. The loops are plain and compiled once more with wider instructions; additions stay
//! lane by lane, so the bits do not depend on which build ran. Sums of two or four inputs go vector by vector from the inputs into the
//! outputs; everything else by way of a block in the first-level cache, so that however many inputs there are, two are read at a time.

use super::transfer::{Stores, VECTOR, fence, put, put_vector};
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
    /// Sums of few inputs go vector by vector: what gradients and activations are, and what converts in wide instructions.
    const FUSED: bool;
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
            const FUSED: bool = true;
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
    const FUSED: bool = true;
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
    const FUSED: bool = false;
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
            const FUSED: bool = false;
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
            DType::F32 => typed::<f32, 8>(s, from, to),
            DType::F64 => typed::<f64, 4>(s, from, to),
            DType::Bf16 => typed::<bf16, 16>(s, from, to),
            DType::F16 => typed::<f16, 16>(s, from, to),
            DType::I8 => typed::<i8, 32>(s, from, to),
            DType::U8 => typed::<u8, 32>(s, from, to),
            DType::I32 => typed::<i32, 8>(s, from, to),
            DType::U32 => typed::<u32, 8>(s, from, to),
            DType::I64 => typed::<i64, 4>(s, from, to),
            DType::U64 => typed::<u64, 4>(s, from, to),
            // `collective::supported` lets no other type through.
            _ => {}
        }
    }
    fence(s.stores);
}

/// Picks the instruction set.
///
/// # Safety
/// As [`run`]; `T` is the dtype of the sum, and `W` of them make a vector.
unsafe fn typed<T: Elem, const W: usize>(s: &Sum<'_>, from: usize, to: usize) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("f16c") {
        // SAFETY: the features were found; the rest is forwarded.
        unsafe { typed_avx2::<T, W>(s, from, to) };
        return;
    }
    // SAFETY: forwarded.
    unsafe { body::<T, W>(s, from, to) };
}

/// [`body`] compiled for AVX2.
///
/// # Safety
/// As [`typed`]; the processor has both features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
unsafe fn typed_avx2<T: Elem, const W: usize>(s: &Sum<'_>, from: usize, to: usize) {
    // SAFETY: forwarded.
    unsafe { body::<T, W>(s, from, to) };
}

/// The loop, once per instruction set.
///
/// # Safety
/// As [`typed`].
#[inline(always)]
unsafe fn body<T: Elem, const W: usize>(s: &Sum<'_>, from: usize, to: usize) {
    // SAFETY: forwarded.
    let from = unsafe { vectors::<T, W>(s, from, to) };
    if from == to {
        return;
    }
    // SAFETY: forwarded.
    unsafe { blocks::<T>(s, from, to) };
}

/// Sums of few inputs as far as they fill vectors; answers where it stopped.
///
/// # Safety
/// As [`typed`].
#[inline(always)]
unsafe fn vectors<T: Elem, const W: usize>(s: &Sum<'_>, from: usize, to: usize) -> usize {
    if !T::FUSED {
        return from;
    }
    let streaming = s.stores == Stores::Streaming;
    // SAFETY: forwarded.
    unsafe {
        match (s.reduce, streaming) {
            (RED_SUM, false) => few::<T, W, false, false>(s, from, to),
            (RED_SUM, true) => few::<T, W, false, true>(s, from, to),
            (RED_AVG, false) => few::<T, W, true, false>(s, from, to),
            (RED_AVG, true) => few::<T, W, true, true>(s, from, to),
            _ => from,
        }
    }
}

/// [`vectors`] by the numbers of inputs and outputs.
///
/// # Safety
/// As [`typed`].
#[inline(always)]
unsafe fn few<T: Elem, const W: usize, const AVG: bool, const STREAMING: bool>(
    s: &Sum<'_>,
    from: usize,
    to: usize,
) -> usize {
    // SAFETY: forwarded.
    unsafe {
        match (s.sources.len(), s.outputs.len()) {
            (2, 1) => fused::<T, W, 2, 1, AVG, STREAMING>(s, from, to),
            (2, 2) => fused::<T, W, 2, 2, AVG, STREAMING>(s, from, to),
            (4, 1) => fused::<T, W, 4, 1, AVG, STREAMING>(s, from, to),
            (4, 4) => fused::<T, W, 4, 4, AVG, STREAMING>(s, from, to),
            _ => from,
        }
    }
}

/// [`vectors`] of `N` inputs and `M` outputs.
///
/// # Safety
/// As [`typed`]; there are as many, and a wish for streaming is the sum's.
#[inline(always)]
unsafe fn fused<
    T: Elem,
    const W: usize,
    const N: usize,
    const M: usize,
    const AVG: bool,
    const STREAMING: bool,
>(
    s: &Sum<'_>,
    from: usize,
    to: usize,
) -> usize {
    const { assert!(size_of::<[T; W]>() == VECTOR) };
    let inputs: [*const T; N] = std::array::from_fn(|j| s.sources[j].0.cast());
    let outputs: [*mut T; M] = std::array::from_fn(|j| s.outputs[j].cast());
    // A vector past the caches must be aligned; blocks find boundaries of their own.
    let aligned = |o: &*mut T| o.wrapping_add(from).addr().is_multiple_of(VECTOR);
    if STREAMING && !outputs.iter().all(aligned) {
        return from;
    }
    let stores = match STREAMING {
        true => Stores::Streaming,
        false => Stores::Plain,
    };
    let mut at = from;
    while at + W <= to {
        // SAFETY: the vector lies inside every input.
        let input = |j: usize, i: usize| unsafe { inputs[j].add(at + i).read_unaligned() }.up();
        // Loops, not `map`: that may stay a call, compiled without the wide instructions.
        let (mut acc, mut result) = ([T::Acc::default(); W], [T::default(); W]);
        for (i, a) in acc.iter_mut().enumerate() {
            *a = input(0, i);
        }
        for j in 1..N {
            for (i, a) in acc.iter_mut().enumerate() {
                *a = T::add(*a, input(j, i));
            }
        }
        if AVG {
            for a in &mut acc {
                *a = T::share(*a, N);
            }
        }
        for (r, a) in result.iter_mut().zip(&acc) {
            *r = T::down(*a);
        }
        for o in outputs {
            // SAFETY: the vector lies inside every output, aligned where that is asked for.
            unsafe { put_vector(&result, o.add(at).cast(), stores) };
        }
        at += W;
    }
    at
}

/// Everything, by way of a block in the first-level cache.
///
/// # Safety
/// As [`typed`].
#[inline(always)]
unsafe fn blocks<T: Elem>(s: &Sum<'_>, from: usize, to: usize) {
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
