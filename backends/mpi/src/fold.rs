//! The reduction of what ranks sent: `((x0 + x1) + x2) + …` in rank order for every element, the order of the in-process collectives, so
//! that a run has the same bits in threads and in processes. 16-bit floats are summed in f32 and rounded once.

use crossweave_abi::*;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Elements of more than two sources handled at a time: sums of a block stay in the first-level cache.
const BLOCK: usize = 1024;

/// How sources become one.
#[derive(Clone, Copy)]
pub(crate) struct Fold {
    pub(crate) dtype: DType,
    pub(crate) reduce: u32,
}

/// The part of a fold over all ranks that is done here.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    /// The sum of the ranks before, in the type sums are kept in; null at the first.
    pub(crate) so_far: *const u8,
    /// Ranks of the whole fold.
    pub(crate) ranks: usize,
    /// No rank comes after: elements are written, rounded once; else the sum, in the type sums are kept in.
    pub(crate) ends: bool,
}

trait Elem: Copy {
    type Acc: Copy + Default;
    /// Is it converted many at a time?
    const MANY: bool = false;
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
    /// # Safety
    /// `from` holds as many elements as `to` has, at any byte.
    #[inline(always)]
    unsafe fn up_all(from: *const Self, to: &mut [Self::Acc]) {
        for (i, to) in to.iter_mut().enumerate() {
            // SAFETY: promised by the caller.
            *to = unsafe { from.add(i).read_unaligned() }.up();
        }
    }
    /// # Safety
    /// `to` has room for as many elements as `from` has, at any byte.
    #[inline(always)]
    unsafe fn down_all(from: &[Self::Acc], to: *mut Self) {
        for (i, from) in from.iter().enumerate() {
            // SAFETY: promised by the caller.
            unsafe { to.add(i).write_unaligned(Self::down(*from)) };
        }
    }
}

macro_rules! float {
    ($t:ty, $acc:ty, $up:expr, $down:expr $(, $all:item)*) => {
        impl Elem for $t {
            type Acc = $acc;
            $($all)*
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
// One by one they would ask each time what the processor can do.
float!(
    f16,
    f32,
    f16::to_f32,
    f16::from_f32,
    const MANY: bool = true;,
    /// # Safety
    /// As the trait's.
    unsafe fn up_all(from: *const f16, to: &mut [f32]) {
        // SAFETY: promised by the caller.
        unsafe {
            if from.is_aligned() {
                return std::slice::from_raw_parts(from, to.len()).convert_to_f32_slice(to);
            }
            for (i, to) in to.iter_mut().enumerate() {
                *to = from.add(i).read_unaligned().to_f32();
            }
        }
    },
    /// # Safety
    /// As the trait's.
    unsafe fn down_all(from: &[f32], to: *mut f16) {
        // SAFETY: promised by the caller.
        unsafe {
            if to.is_aligned() {
                return std::slice::from_raw_parts_mut(to, from.len()).convert_from_f32_slice(from);
            }
            for (i, from) in from.iter().enumerate() {
                to.add(i).write_unaligned(f16::from_f32(*from));
            }
        }
    }
);
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

impl Fold {
    /// Bytes of an element of a sum under way: 16-bit floats are summed in f32.
    pub(crate) fn sum_bytes(self) -> usize {
        match self.dtype {
            DType::Bf16 | DType::F16 => 4,
            d => d.bytes(1) as usize,
        }
    }

    /// `out[i] = fold over r of sources[r][i]`, each source with its `premul_sum` factor.
    ///
    /// # Safety
    /// Every source and `out` hold `count` elements; `out` equals a source exactly or overlaps none.
    pub(crate) unsafe fn run(self, sources: &[(*const u8, f64)], out: *mut u8, count: usize) {
        let whole = Part {
            so_far: std::ptr::null(),
            ranks: sources.len(),
            ends: true,
        };
        // SAFETY: forwarded.
        unsafe { self.part(whole, sources, out, count) }
    }

    /// A part of a fold. Parts that follow one another have the bits of the whole, since a sum under way loses nothing.
    ///
    /// # Safety
    /// Every source holds `count` elements, `so_far` (unless null) as many sums, `out` what the part leaves; `out` equals `so_far` or, where the
    /// fold ends, a source exactly, or overlaps none.
    pub(crate) unsafe fn part(
        self,
        part: Part,
        sources: &[(*const u8, f64)],
        out: *mut u8,
        count: usize,
    ) {
        // SAFETY: forwarded.
        unsafe {
            match self.dtype {
                DType::F32 => typed::<f32>(self.reduce, part, sources, out, count),
                DType::F64 => typed::<f64>(self.reduce, part, sources, out, count),
                DType::Bf16 => typed::<bf16>(self.reduce, part, sources, out, count),
                DType::F16 => typed::<f16>(self.reduce, part, sources, out, count),
                DType::I8 => typed::<i8>(self.reduce, part, sources, out, count),
                DType::U8 => typed::<u8>(self.reduce, part, sources, out, count),
                DType::I32 => typed::<i32>(self.reduce, part, sources, out, count),
                DType::U32 => typed::<u32>(self.reduce, part, sources, out, count),
                DType::I64 => typed::<i64>(self.reduce, part, sources, out, count),
                DType::U64 => typed::<u64>(self.reduce, part, sources, out, count),
                // `collective::reducible` lets no other type through.
                _ => {}
            }
        }
    }
}

/// # Safety
/// As [`Fold::run`].
unsafe fn typed<T: Elem>(
    reduce: u32,
    part: Part,
    sources: &[(*const u8, f64)],
    out: *mut u8,
    count: usize,
) {
    // SAFETY: as here.
    unsafe {
        match reduce {
            RED_SUM => sum::<T, false>(part, sources, out, count),
            RED_AVG => sum::<T, true>(part, sources, out, count),
            RED_PROD => with::<T, false>(part, sources, out, count, T::mul, |a| a),
            RED_MIN => with::<T, false>(part, sources, out, count, T::min, |a| a),
            RED_MAX => with::<T, false>(part, sources, out, count, T::max, |a| a),
            _ => with::<T, true>(part, sources, out, count, T::add, |a| a),
        }
    }
}

/// Sums, which is what training asks for: with the widest registers the processor has. Every element is added alone, so the bits do not depend on them.
///
/// # Safety
/// As [`Fold::run`].
unsafe fn sum<T: Elem, const SHARE: bool>(
    part: Part,
    sources: &[(*const u8, f64)],
    out: *mut u8,
    count: usize,
) {
    // SAFETY: as here; the processor has what is asked for.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
            return sum_avx512::<T, SHARE>(part, sources, out, count);
        } else if is_x86_feature_detected!("avx2") {
            return sum_avx2::<T, SHARE>(part, sources, out, count);
        }
        sum_of::<T, SHARE>(part, sources, out, count);
    }
}

/// # Safety
/// As [`Fold::run`], on a processor that has these.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx2")]
unsafe fn sum_avx512<T: Elem, const SHARE: bool>(
    part: Part,
    sources: &[(*const u8, f64)],
    out: *mut u8,
    count: usize,
) {
    // SAFETY: as here.
    unsafe { sum_of::<T, SHARE>(part, sources, out, count) }
}

/// # Safety
/// As [`Fold::run`], on a processor that has these.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn sum_avx2<T: Elem, const SHARE: bool>(
    part: Part,
    sources: &[(*const u8, f64)],
    out: *mut u8,
    count: usize,
) {
    // SAFETY: as here.
    unsafe { sum_of::<T, SHARE>(part, sources, out, count) }
}

/// # Safety
/// As [`Fold::run`].
#[inline(always)]
unsafe fn sum_of<T: Elem, const SHARE: bool>(
    part: Part,
    sources: &[(*const u8, f64)],
    out: *mut u8,
    count: usize,
) {
    let n = part.ranks;
    let end = |a| if SHARE { T::share(a, n) } else { a };
    // SAFETY: as here.
    unsafe { with::<T, false>(part, sources, out, count, T::add, end) }
}

/// # Safety
/// As [`Fold::run`].
#[inline(always)]
unsafe fn with<T: Elem, const SCALED: bool>(
    part: Part,
    sources: &[(*const u8, f64)],
    out: *mut u8,
    count: usize,
    op: impl Fn(T::Acc, T::Acc) -> T::Acc,
    end: impl Fn(T::Acc) -> T::Acc,
) {
    let (sums, out) = (out.cast::<T::Acc>(), out.cast::<T>());
    let begins = part.so_far.is_null();
    // Two are done in one pass, but for a type whose conversion wants many at a time.
    if let ([(a, _), (b, _)], false, false, true) = (sources, T::MANY, SCALED, begins && part.ends)
    {
        // SAFETY: as here.
        return unsafe {
            two(a.cast(), b.cast(), out, count, |a: T, b: T| {
                T::down(end(op(a.up(), b.up())))
            })
        };
    }
    let mut room = [[T::Acc::default(); BLOCK]; 2];
    let [acc, next] = &mut room;
    let mut from = 0;
    while from < count {
        let len = BLOCK.min(count - from);
        let (acc, next) = (&mut acc[..len], &mut next[..len]);
        if !begins {
            let so_far = part.so_far.cast::<T::Acc>().wrapping_add(from);
            for (i, a) in acc.iter_mut().enumerate() {
                // SAFETY: the block lies inside the sums so far.
                *a = unsafe { so_far.add(i).read_unaligned() };
            }
        }
        for (r, (source, factor)) in sources.iter().enumerate() {
            let first = begins && r == 0;
            let to = if first { &mut *acc } else { &mut *next };
            // SAFETY: the block lies inside every source.
            unsafe { T::up_all(source.cast::<T>().add(from), to) };
            if SCALED {
                to.iter_mut().for_each(|a| *a = T::scale(*a, *factor));
            }
            if !first {
                for (a, x) in acc.iter_mut().zip(&*next) {
                    *a = op(*a, *x);
                }
            }
        }
        if part.ends {
            acc.iter_mut().for_each(|a| *a = end(*a));
            // SAFETY: the block lies inside `out`.
            unsafe { T::down_all(acc, out.add(from)) };
        } else {
            for (i, a) in acc.iter().enumerate() {
                // SAFETY: as above.
                unsafe { sums.add(from + i).write_unaligned(*a) };
            }
        }
        from += len;
    }
}

/// `out[i] = f(a[i], b[i])`. The compiler is shown which of them is `out`, or it would go one by one for fear that they overlap.
///
/// # Safety
/// As [`Fold::run`].
#[inline(always)]
unsafe fn two<T: Copy>(a: *const T, b: *const T, out: *mut T, count: usize, f: impl Fn(T, T) -> T) {
    // SAFETY: promised by the caller; spans start at any byte.
    unsafe {
        if std::ptr::eq(a, out) {
            for i in 0..count {
                let at = out.add(i);
                at.write_unaligned(f(at.read_unaligned(), b.add(i).read_unaligned()));
            }
        } else if std::ptr::eq(b, out) {
            for i in 0..count {
                let at = out.add(i);
                at.write_unaligned(f(a.add(i).read_unaligned(), at.read_unaligned()));
            }
        } else {
            for i in 0..count {
                let x = f(a.add(i).read_unaligned(), b.add(i).read_unaligned());
                out.add(i).write_unaligned(x);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossweave_plugin::collective::reducible;

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
        assert!(!reducible(DType::I32, RED_AVG) && !reducible(DType::F8E4M3, RED_SUM));
    }

    /// A fold cut anywhere between ranks, its sums carried on, has the bits of the whole.
    #[test]
    fn a_fold_goes_on_where_another_stopped() {
        let (n, count) = (5, BLOCK + 3);
        for dtype in [DType::F32, DType::Bf16, DType::F16, DType::F64, DType::I32] {
            let width = dtype.bytes(1) as usize;
            // Exponents below 2^1 in any of the float types.
            let x: Vec<Vec<u8>> = (0..n)
                .map(|r| {
                    let byte = |i: usize| ((r * 7919 + i * 2_654_435_761) >> 7) as u8;
                    let top = |i: usize| if i % width == width - 1 { 0xbf } else { 0xff };
                    (0..count * width).map(|i| byte(i) & top(i)).collect()
                })
                .collect();
            for reduce in [RED_SUM, RED_AVG, RED_PROD, RED_MIN, RED_MAX, RED_PREMUL_SUM] {
                if !reducible(dtype, reduce) {
                    continue;
                }
                let f = Fold { dtype, reduce };
                let all: Vec<_> = (0..n)
                    .map(|r| (x[r].as_ptr(), 0.25 + r as f64 / 3.0))
                    .collect();
                let mut want = vec![0u8; count * width];
                // SAFETY: every source and the result hold `count` elements.
                unsafe { f.run(&all, want.as_mut_ptr(), count) };
                for cut in 1..n {
                    let mut sums = vec![0u8; count * f.sum_bytes()];
                    let mut got = vec![0u8; count * width];
                    let (null, ranks) = (std::ptr::null(), n);
                    let first = Part {
                        so_far: null,
                        ranks,
                        ends: false,
                    };
                    // SAFETY: as above; the sums have room for `count` of their type.
                    unsafe {
                        f.part(first, &all[..cut], sums.as_mut_ptr(), count);
                        let so_far = sums.as_ptr();
                        let last = Part {
                            so_far,
                            ranks,
                            ends: true,
                        };
                        f.part(last, &all[cut..], got.as_mut_ptr(), count);
                    }
                    assert_eq!(got, want, "{dtype:?}, reduction {reduce}, cut at {cut}");
                }
            }
        }
    }

    /// Every length around a block, several ranks, in place or not: each element is what the definition says, by bits.
    #[test]
    fn blocks_and_their_ends_are_reduced_alike() {
        for n in [1usize, 2, 3, 5] {
            for count in [1, 33, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 7] {
                let x: Vec<Vec<f32>> = (0..n)
                    .map(|r| {
                        (0..count)
                            .map(|i| ((r * 37 + i * 11) % 101) as f32 * 0.37 - 9.0)
                            .collect()
                    })
                    .collect();
                for reduce in [RED_SUM, RED_AVG, RED_PROD, RED_MIN, RED_MAX, RED_PREMUL_SUM] {
                    let factor = |r: usize| 0.5 + r as f64;
                    let of = |r: usize, i: usize| match reduce {
                        RED_PREMUL_SUM => x[r][i] * factor(r) as f32,
                        _ => x[r][i],
                    };
                    let fold = |i: usize| {
                        let all = (1..n).fold(of(0, i), |a, r| match reduce {
                            RED_PROD => a * of(r, i),
                            RED_MIN => a.min(of(r, i)),
                            RED_MAX => a.max(of(r, i)),
                            _ => a + of(r, i),
                        });
                        if reduce == RED_AVG {
                            all / n as f32
                        } else {
                            all
                        }
                    };
                    let want: Vec<u32> = (0..count).map(|i| fold(i).to_bits()).collect();
                    for place in 0..=n {
                        // One byte off, as spans may be; `place < n`: the result lies over that source.
                        let mut room = vec![vec![0u8; count * 4 + 1]; n + 1];
                        for (to, from) in room.iter_mut().zip(&x) {
                            let bytes: Vec<u8> =
                                from.iter().flat_map(|v| v.to_le_bytes()).collect();
                            to[1..].copy_from_slice(&bytes);
                        }
                        let at: Vec<*mut u8> =
                            room.iter_mut().map(|v| v[1..].as_mut_ptr()).collect();
                        let sources: Vec<_> =
                            (0..n).map(|r| (at[r].cast_const(), factor(r))).collect();
                        let dtype = DType::F32;
                        // SAFETY: every source and the result hold `count` elements.
                        unsafe { Fold { dtype, reduce }.run(&sources, at[place], count) };
                        let got: Vec<u32> = room[place][1..]
                            .as_chunks::<4>()
                            .0
                            .iter()
                            .map(|b| u32::from_le_bytes(*b))
                            .collect();
                        assert_eq!(got, want, "{n} ranks, {count} elements, {reduce}, {place}");
                    }
                }
            }
        }
    }

    /// Sums of halves, many at a time and at any byte, are what one element alone gives.
    #[test]
    fn halves_are_converted_alike_wherever_they_lie() {
        for (n, count, off) in [
            (2usize, 5usize, 0usize),
            (2, 2000, 1),
            (3, 1030, 0),
            (3, 1030, 1),
        ] {
            let x: Vec<Vec<f16>> = (0..n)
                .map(|r| {
                    (0..count)
                        .map(|i| f16::from_f32(((r * 7919 + i * 31) % 2003) as f32 * 0.173 - 171.0))
                        .collect()
                })
                .collect();
            let sum = |i: usize| x.iter().fold(0.0f32, |a, v| a + v[i].to_f32());
            let want: Vec<u16> = (0..count)
                .map(|i| f16::from_f32(sum(i)).to_bits())
                .collect();
            let mut room: Vec<Vec<u16>> = vec![vec![0; count + 1]; n + 1];
            let at: Vec<*mut u8> = room
                .iter_mut()
                .map(|v| v.as_mut_ptr().cast::<u8>().wrapping_add(off))
                .collect();
            for (to, from) in at.iter().zip(&x) {
                // SAFETY: one element more than are written.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr().cast(), *to, 2 * count) };
            }
            let sources: Vec<_> = (0..n).map(|r| (at[r].cast_const(), 1.0)).collect();
            let f = Fold {
                dtype: DType::F16,
                reduce: RED_SUM,
            };
            // SAFETY: `count` elements each, and one of room.
            let got: Vec<u16> = unsafe {
                f.run(&sources, at[n], count);
                (0..count)
                    .map(|i| at[n].cast::<u16>().add(i).read_unaligned())
                    .collect()
            };
            assert_eq!(got, want, "{n} ranks, {count} elements at byte {off}");
        }
    }
}
