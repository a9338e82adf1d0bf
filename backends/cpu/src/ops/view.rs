//! Operands as kernels see them: addresses that tasks share, blocks of f32 in and out whatever the storage and the strides.

use crate::kernel::Launch;
use crate::simd::convert;
use crate::team::Team;
use crossweave_plugin::DType;
pub use crossweave_plugin::operand::*;

/// Elements of a block: what inner loops work on, small enough to stay in the first-level cache.
pub const BLOCK: usize = 512;
/// Elements of one task of a pointwise op. A multiple of [`BLOCK`], and a constant, so that the split never depends on the team.
pub const CHUNK: usize = 16 * 1024;

/// An address that tasks of one launch share; the split keeps them apart.
#[derive(Clone, Copy)]
pub struct Ptr(pub *mut u8);
// SAFETY: an address only; every use is inside an unsafe block that says why it does not race.
unsafe impl Send for Ptr {}
// SAFETY: as above.
unsafe impl Sync for Ptr {}
impl Ptr {
    /// `elems` elements of type `T` further.
    ///
    /// # Safety
    /// The result stays inside the operand.
    #[inline(always)]
    pub unsafe fn at<T>(self, elems: usize) -> *mut T {
        // SAFETY: forwarded.
        unsafe { self.0.cast::<T>().add(elems) }
    }
    /// The elements as a slice.
    ///
    /// # Safety
    /// They lie inside the operand and nobody writes them while the slice lives.
    #[inline(always)]
    pub unsafe fn slice<'a, T>(self, from: usize, len: usize) -> &'a [T] {
        // An empty operand may come without memory.
        if len == 0 {
            return &[];
        }
        // SAFETY: forwarded.
        unsafe { std::slice::from_raw_parts(self.at(from), len) }
    }
    /// The elements as a mutable slice.
    ///
    /// # Safety
    /// They lie inside the operand and nobody else touches them while the slice lives.
    #[inline(always)]
    pub unsafe fn slice_mut<'a, T>(self, from: usize, len: usize) -> &'a mut [T] {
        if len == 0 {
            return &mut [];
        }
        // SAFETY: forwarded.
        unsafe { std::slice::from_raw_parts_mut(self.at(from), len) }
    }
}

/// The addresses of a launch, for closures that tasks share.
#[derive(Clone, Copy)]
pub struct Args<'a>(&'a [*mut u8]);
// SAFETY: addresses only, as `Ptr`.
unsafe impl Send for Args<'_> {}
// SAFETY: as above.
unsafe impl Sync for Args<'_> {}
impl<'a> Args<'a> {
    /// The operands of a launch.
    pub fn of(l: &Launch<'a>) -> Args<'a> {
        Args(l.operands)
    }
    /// Address of operand `i`, null when absent.
    pub fn at(self, i: usize) -> Ptr {
        Ptr(self.0.get(i).copied().unwrap_or(std::ptr::null_mut()))
    }
}

/// Runs `body(start, len)` over `0..total` in pieces of `step`.
pub fn chunks(team: &Team, total: usize, step: usize, body: &(dyn Fn(usize, usize) + Sync)) {
    team.run(total.div_ceil(step), &|i| {
        let start = i * step;
        body(start, step.min(total - start));
    });
}

/// Runs `body(start, len)` over a range in blocks.
#[inline(always)]
pub fn blocks(start: usize, len: usize, mut body: impl FnMut(usize, usize)) {
    let mut at = start;
    while at < start + len {
        let n = BLOCK.min(start + len - at);
        body(at, n);
        at += n;
    }
}

/// An operand's elements as f32, whatever the storage and the strides.
pub trait Elements {
    /// Calls `f(offset, stride, len)` for the rows of `start..start + len`, in order.
    fn rows(&self, start: usize, len: usize, f: impl FnMut(usize, usize, usize));

    /// Offset in elements of flat index `i`.
    fn offset(&self, i: usize) -> usize;

    /// Reads `out.len()` elements from flat index `start` as f32.
    ///
    /// # Safety
    /// `base` is a live operand of this layout and `start + out.len() <= total`.
    unsafe fn load(&self, base: Ptr, start: usize, out: &mut [f32]);

    /// Like [`Elements::load`], without a copy when the elements already are adjacent f32.
    ///
    /// # Safety
    /// As `load`; and nobody writes the elements while the slice lives.
    unsafe fn get<'a>(
        &self,
        base: Ptr,
        start: usize,
        len: usize,
        buf: &'a mut [f32; BLOCK],
    ) -> &'a [f32];

    /// Writes f32 values from flat index `start`, rounded to the storage.
    ///
    /// # Safety
    /// `base` is a live operand of this layout, in range, and nobody else touches those elements.
    unsafe fn store(&self, base: Ptr, start: usize, vals: &[f32]);
}

impl Elements for View {
    #[inline(always)]
    fn rows(&self, start: usize, len: usize, mut f: impl FnMut(usize, usize, usize)) {
        if len == 0 {
            return;
        }
        let Some((&(inner, stride), outer)) = self.dims.split_last() else {
            f(0, 1, len);
            return;
        };
        if outer.is_empty() {
            f(start * stride, stride, len);
            return;
        }
        let mut idx = [0usize; 8];
        let (mut row, mut col) = (start / inner, start % inner);
        let mut base = 0;
        for (i, &(n, s)) in outer.iter().enumerate().rev() {
            idx[i] = row % n;
            base += idx[i] * s;
            row /= n;
        }
        let mut left = len;
        loop {
            let n = left.min(inner - col);
            f(base + col * stride, stride, n);
            left -= n;
            if left == 0 {
                return;
            }
            col = 0;
            for (i, &(n, s)) in outer.iter().enumerate().rev() {
                idx[i] += 1;
                base += s;
                if idx[i] < n {
                    break;
                }
                base -= n * s;
                idx[i] = 0;
            }
        }
    }

    #[inline]
    fn offset(&self, i: usize) -> usize {
        let mut at = 0;
        self.rows(i, 1, |o, _, _| at = o);
        at
    }

    unsafe fn load(&self, base: Ptr, start: usize, out: &mut [f32]) {
        let mut done = 0;
        self.rows(start, out.len(), |off, stride, n| {
            // SAFETY: the walk stays inside the layout.
            unsafe { load_row(self.dtype, base, off, stride, &mut out[done..done + n]) };
            done += n;
        });
    }

    #[inline]
    unsafe fn get<'a>(
        &self,
        base: Ptr,
        start: usize,
        len: usize,
        buf: &'a mut [f32; BLOCK],
    ) -> &'a [f32] {
        if self.dtype == DType::F32 && matches!(self.dims[..], [(_, 1)]) {
            // SAFETY: dense f32, in range by contract.
            return unsafe { base.slice(start, len) };
        }
        // SAFETY: forwarded.
        unsafe { self.load(base, start, &mut buf[..len]) };
        &buf[..len]
    }

    unsafe fn store(&self, base: Ptr, start: usize, vals: &[f32]) {
        let mut done = 0;
        self.rows(start, vals.len(), |off, stride, n| {
            // SAFETY: the walk stays inside the layout.
            unsafe { store_row(self.dtype, base, off, stride, &vals[done..done + n]) };
            done += n;
        });
    }
}

/// Reads a row of any supported dtype as f32.
///
/// # Safety
/// Elements `off + i * stride` of `base` are live.
pub unsafe fn load_row(dtype: DType, base: Ptr, off: usize, stride: usize, out: &mut [f32]) {
    // SAFETY: forwarded; slices are taken only of adjacent elements.
    unsafe {
        match (dtype, stride) {
            (DType::F32, 1) => out.copy_from_slice(base.slice(off, out.len())),
            (DType::Bf16, 1) => convert::widen_bf16(base.slice(off, out.len()), out),
            (DType::F16, 1) => convert::widen_f16(base.slice(off, out.len()), out),
            (_, 0) => {
                let v = load_one(dtype, base, off);
                out.fill(v);
            }
            (DType::F32, _) => {
                let p = base.at::<f32>(off);
                for (i, o) in out.iter_mut().enumerate() {
                    *o = *p.add(i * stride);
                }
            }
            (DType::Bf16, _) => {
                let p = base.at::<u16>(off);
                for (i, o) in out.iter_mut().enumerate() {
                    *o = convert::f32_of_bf16(*p.add(i * stride));
                }
            }
            _ => {
                for (i, o) in out.iter_mut().enumerate() {
                    *o = load_one(dtype, base, off + i * stride);
                }
            }
        }
    }
}

/// One element as f32.
///
/// # Safety
/// It is live.
#[inline]
pub unsafe fn load_one(dtype: DType, base: Ptr, off: usize) -> f32 {
    // SAFETY: forwarded.
    unsafe {
        match dtype {
            DType::F32 => *base.at::<f32>(off),
            DType::Bf16 => convert::f32_of_bf16(*base.at(off)),
            DType::F16 => convert::f32_of_f16(*base.at(off)),
            DType::U32 => *base.at::<u32>(off) as f32,
            DType::I32 => *base.at::<i32>(off) as f32,
            DType::U8 => *base.at::<u8>(off) as f32,
            _ => f32::NAN,
        }
    }
}

/// Writes a row of f32 values in the given storage.
///
/// # Safety
/// Elements `off + i * stride` of `base` are live and ours.
pub unsafe fn store_row(dtype: DType, base: Ptr, off: usize, stride: usize, vals: &[f32]) {
    // SAFETY: forwarded; slices are taken only of adjacent elements.
    unsafe {
        match (dtype, stride) {
            (DType::F32, 1) => base.slice_mut(off, vals.len()).copy_from_slice(vals),
            (DType::Bf16, 1) => convert::narrow_bf16(vals, base.slice_mut(off, vals.len())),
            (DType::F16, 1) => convert::narrow_f16(vals, base.slice_mut(off, vals.len())),
            (DType::F32, _) => {
                for (i, v) in vals.iter().enumerate() {
                    *base.at(off + i * stride) = *v;
                }
            }
            (DType::Bf16, _) => {
                for (i, v) in vals.iter().enumerate() {
                    *base.at(off + i * stride) = convert::bf16_of_f32(*v);
                }
            }
            (DType::F16, _) => {
                for (i, v) in vals.iter().enumerate() {
                    *base.at(off + i * stride) = convert::f16_of_f32(*v);
                }
            }
            (DType::U32, _) => {
                for (i, v) in vals.iter().enumerate() {
                    *base.at(off + i * stride) = *v as u32;
                }
            }
            _ => {}
        }
    }
}

/// Reads an i32 or i64 index.
///
/// # Safety
/// It is live.
#[inline]
pub unsafe fn index_at(dtype: DType, base: Ptr, off: usize) -> i64 {
    // SAFETY: forwarded.
    unsafe {
        if dtype == DType::I64 {
            *base.at::<i64>(off)
        } else {
            *base.at::<i32>(off) as i64
        }
    }
}
