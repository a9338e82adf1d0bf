//! Operands as kernels see them: validated layouts, collapsed dims, blocks of f32 in and out whatever the storage and the strides.

use crate::kernel::Launch;
use crate::simd::convert;
use crate::team::Team;
use crossweave_abi::{Layout, op};
use crossweave_plugin::{Code, DType, Op, Plan, Result, fail, unsupported};

/// Elements of a block: what inner loops work on, small enough to stay in the first-level cache.
pub const BLOCK: usize = 512;
/// Elements of one task of a pointwise op. A multiple of [`BLOCK`], and a constant, so that the split never depends on the team.
pub const CHUNK: usize = 16 * 1024;
/// The floats of the op table's `f`.
pub const FLOATS: &[DType] = &[DType::F32, DType::Bf16, DType::F16];
/// Just f32.
pub const F32: &[DType] = &[DType::F32];
/// Index types.
pub const INDEX: &[DType] = &[DType::I32, DType::I64];

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
    /// Of a launch.
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

/// A strided operand with neighbouring dims merged where they can be.
#[derive(Clone, Debug)]
pub struct View {
    /// Element type.
    pub dtype: DType,
    /// Elements.
    pub total: usize,
    /// `(size, stride)` outermost first; empty = one element (or none).
    pub dims: Vec<(usize, usize)>,
    /// The full shape, as given.
    pub shape: Vec<usize>,
    /// The full strides, as given.
    pub stride: Vec<usize>,
}

impl View {
    /// A view of chosen dims.
    pub fn of_dims(dtype: DType, shape: Vec<usize>, stride: Vec<usize>) -> View {
        let mut dims: Vec<(usize, usize)> = Vec::new();
        for (&n, &s) in shape.iter().zip(&stride) {
            if n == 1 {
                continue;
            }
            match dims.last_mut() {
                Some((m, t)) if *t == s * n => {
                    *m *= n;
                    *t = s;
                }
                _ => dims.push((n, s)),
            }
        }
        View {
            dtype,
            total: shape.iter().product(),
            dims,
            shape,
            stride,
        }
    }

    /// The same memory seen through some of the dims only (in the order given).
    pub fn pick(&self, which: &[usize]) -> View {
        View::of_dims(
            self.dtype,
            which.iter().map(|i| self.shape[*i]).collect(),
            which.iter().map(|i| self.stride[*i]).collect(),
        )
    }

    /// Bytes of an element.
    pub fn elem(&self) -> usize {
        (self.dtype.bits() / 8) as usize
    }

    /// Row-major without gaps?
    pub fn dense(&self) -> bool {
        self.total == 0 || matches!(self.dims[..], [] | [(_, 1)])
    }

    /// Does writing it touch some element twice (as far as strides tell)?
    fn overlaps(&self) -> bool {
        let mut d: Vec<_> = self.dims.clone();
        d.sort_by_key(|(_, s)| *s);
        let mut reach = 1;
        for (n, s) in d {
            if s < reach {
                return true;
            }
            reach += s * (n - 1);
        }
        false
    }

    /// Calls `f(offset, stride, len)` for the rows of `start..start + len`, in order.
    #[inline(always)]
    pub fn rows(&self, start: usize, len: usize, mut f: impl FnMut(usize, usize, usize)) {
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

    /// Offset in elements of flat index `i`.
    pub fn offset(&self, i: usize) -> usize {
        let mut at = 0;
        self.rows(i, 1, |o, _, _| at = o);
        at
    }

    /// Reads `out.len()` elements from flat index `start` as f32.
    ///
    /// # Safety
    /// `base` is a live operand of this layout and `start + out.len() <= total`.
    pub unsafe fn load(&self, base: Ptr, start: usize, out: &mut [f32]) {
        let mut done = 0;
        self.rows(start, out.len(), |off, stride, n| {
            // SAFETY: the walk stays inside the layout.
            unsafe { load_row(self.dtype, base, off, stride, &mut out[done..done + n]) };
            done += n;
        });
    }

    /// Like [`View::load`], without a copy when the elements already are adjacent f32.
    ///
    /// # Safety
    /// As `load`; and nobody writes the elements while the slice lives.
    #[inline]
    pub unsafe fn get<'a>(
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

    /// Writes f32 values from flat index `start`, rounded to the storage.
    ///
    /// # Safety
    /// `base` is a live operand of this layout, in range, and nobody else touches those elements.
    pub unsafe fn store(&self, base: Ptr, start: usize, vals: &[f32]) {
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

fn name(o: &Op<'_>) -> &'static str {
    op::spec(o.id).map_or("op", |s| s.name)
}

/// The operand's name in the op table, or its group's.
fn operand(o: &Op<'_>, i: usize) -> String {
    let n = op::spec(o.id)
        .and_then(|s| s.operands.get(i))
        .and_then(|s| s.split(':').next());
    match n {
        Some(n) => format!("operand {i} ({n})"),
        None => format!("operand {i}"),
    }
}

/// `Err(Invalid)` naming the op.
pub fn invalid<T>(o: &Op<'_>, what: impl std::fmt::Display) -> Result<T> {
    fail(Code::Invalid, format!("{}: {what}", name(o)))
}

/// `Err(Unsupported)` naming the op.
pub fn refuse<T>(o: &Op<'_>, what: impl std::fmt::Display) -> Result<T> {
    unsupported(format!("{}: {what}", name(o)))
}

/// Refuses params flags the op does not define.
pub fn flags(o: &Op<'_>, given: u32, known: u32) -> Result<()> {
    if given & !known != 0 {
        return refuse(o, format!("flags {:#x} are not known here", given & !known));
    }
    Ok(())
}

/// Checks how many operands there are.
pub fn arity(o: &Op<'_>, n: std::ops::RangeInclusive<usize>) -> Result<()> {
    if !n.contains(&o.operands.len()) {
        return invalid(
            o,
            format!(
                "{} operands, {} to {} wanted",
                o.operands.len(),
                n.start(),
                n.end()
            ),
        );
    }
    if o.revision != 1 {
        return refuse(o, format!("revision {} (this backend knows 1)", o.revision));
    }
    Ok(())
}

/// Reads an operand that must be there, of one of the dtypes, with non-negative strides.
pub fn input(o: &Op<'_>, i: usize, dtypes: &[DType]) -> Result<View> {
    let Some(l) = o.layout(i) else {
        return invalid(o, format!("{} is absent", operand(o, i)));
    };
    view(o, i, l, dtypes)
}

/// Reads an operand that may be absent.
pub fn optional(o: &Op<'_>, i: usize, dtypes: &[DType]) -> Result<Option<View>> {
    o.layout(i).map(|l| view(o, i, l, dtypes)).transpose()
}

fn view(o: &Op<'_>, i: usize, l: &Layout, dtypes: &[DType]) -> Result<View> {
    let who = || operand(o, i);
    let Some(dtype) = DType::from_id(l.dtype) else {
        return refuse(o, format!("{}: dtype {:#x} is unknown", who(), l.dtype));
    };
    if !dtypes.contains(&dtype) {
        return refuse(
            o,
            format!("{}: dtype {} is not supported", who(), dtype.name()),
        );
    }
    let rank = l.rank as usize;
    if rank > 8 {
        return invalid(o, format!("{}: rank {rank} is more than 8", who()));
    }
    let (mut shape, mut stride) = (Vec::with_capacity(rank), Vec::with_capacity(rank));
    let (mut total, mut reach) = (1u128, 0u128);
    for d in 0..rank {
        if l.shape[d] < 0 {
            return invalid(o, format!("{}: dim {d} has size {}", who(), l.shape[d]));
        }
        if l.stride[d] < 0 {
            return refuse(
                o,
                format!("{}: dim {d} has negative stride {}", who(), l.stride[d]),
            );
        }
        shape.push(l.shape[d] as usize);
        stride.push(l.stride[d] as usize);
        total = total.saturating_mul(l.shape[d] as u128);
        reach += (l.shape[d].max(1) - 1) as u128 * l.stride[d] as u128;
    }
    if total > i64::MAX as u128 / 8 || reach > i64::MAX as u128 / 8 {
        return invalid(o, format!("{}: more elements than memory has", who()));
    }
    Ok(View::of_dims(dtype, shape, stride))
}

/// Reads an output with any strides that write each element once.
pub fn output_strided(o: &Op<'_>, i: usize, dtypes: &[DType]) -> Result<View> {
    let v = input(o, i, dtypes)?;
    if v.total > 0 && v.overlaps() {
        return invalid(
            o,
            format!("{}: strides write an element twice", operand(o, i)),
        );
    }
    Ok(v)
}

/// Reads an output that must be dense row-major.
pub fn output(o: &Op<'_>, i: usize, dtypes: &[DType]) -> Result<View> {
    dense(o, i, input(o, i, dtypes)?)
}

/// Refuses what is not dense row-major.
pub fn dense(o: &Op<'_>, i: usize, v: View) -> Result<View> {
    if !v.dense() {
        return refuse(o, format!("{} must be dense row-major", operand(o, i)));
    }
    Ok(v)
}

/// Checks that operand `i` has this shape.
pub fn shape(o: &Op<'_>, i: usize, v: &View, want: &[usize]) -> Result<()> {
    if v.shape != want {
        return invalid(
            o,
            format!("{}: shape {:?}, {want:?} wanted", operand(o, i), v.shape),
        );
    }
    Ok(())
}

/// Checks that two operands have one dtype.
pub fn same_dtype(o: &Op<'_>, i: usize, a: &View, b: &View) -> Result<()> {
    if a.dtype != b.dtype {
        return refuse(
            o,
            format!(
                "{}: dtype {} beside {}",
                operand(o, i),
                a.dtype.name(),
                b.dtype.name()
            ),
        );
    }
    Ok(())
}

/// The plan of an op of this backend.
pub fn plan(o: &Op<'_>, workspace_bytes: usize) -> Plan {
    Plan {
        tier: 1,
        workspace_bytes: workspace_bytes as u64,
        est_ns: 0,
        error_class: op::spec(o.id).map_or(op::class::EXACT, |s| s.error),
    }
}
