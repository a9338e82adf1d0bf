//! Operands as planners see them: checked layouts, dims merged where neighbours lie adjacent, names of storage types in C.

use crate::args::{Dims, zero};
use crossweave_abi::{Layout, op};
use crossweave_plugin::{Code, DType, Op, Plan, Result, fail, unsupported};

/// The floats of the op table's `f`.
pub(crate) const FLOATS: &[DType] = &[DType::F32, DType::Bf16, DType::F16];
/// Just f32.
pub(crate) const F32: &[DType] = &[DType::F32];
/// Index types.
pub(crate) const INDEX: &[DType] = &[DType::I32, DType::I64];
/// Dtypes whose elements are whole bytes.
pub(crate) const WHOLE_BYTES: &[DType] = &[
    DType::I8,
    DType::U8,
    DType::I32,
    DType::U32,
    DType::I64,
    DType::U64,
    DType::F16,
    DType::Bf16,
    DType::F32,
    DType::F64,
    DType::F8E4M3,
    DType::F8E5M2,
    DType::F8E4M3Fnuz,
    DType::F8E5M2Fnuz,
    DType::F8E8M0,
];

/// A checked operand.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// Element type.
    pub dtype: DType,
    /// Elements.
    pub total: u64,
    /// Sizes.
    pub shape: Vec<u64>,
    /// Strides in elements, none negative.
    pub stride: Vec<i64>,
}

/// Dims that several operands walk together, innermost last: `(size, stride of each operand)`. Dims of size 1 are gone and neighbours
/// merged where every operand allows.
pub(crate) fn merge(shape: &[u64], strides: &[Vec<i64>]) -> Vec<(u64, Vec<i64>)> {
    let mut out: Vec<(u64, Vec<i64>)> = Vec::new();
    for (d, &n) in shape.iter().enumerate() {
        if n == 1 {
            continue;
        }
        let s: Vec<i64> = strides.iter().map(|v| v[d]).collect();
        match out.last_mut() {
            Some((m, t)) if t.iter().zip(&s).all(|(t, s)| *t == s * n as i64) => {
                *m *= n;
                *t = s;
            }
            _ => out.push((n, s)),
        }
    }
    out
}

impl View {
    /// Merged dims of this operand alone.
    fn dims(&self) -> Vec<(u64, i64)> {
        merge(&self.shape, std::slice::from_ref(&self.stride))
            .into_iter()
            .map(|(n, s)| (n, s[0]))
            .collect()
    }

    /// Row-major without gaps?
    pub fn dense(&self) -> bool {
        self.total == 0 || matches!(self.dims()[..], [] | [(_, 1)])
    }

    /// The same memory seen through some of the dims only, in the order given.
    pub fn pick(&self, which: &[usize]) -> View {
        let shape: Vec<u64> = which.iter().map(|i| self.shape[*i]).collect();
        View {
            dtype: self.dtype,
            total: shape.iter().product(),
            stride: which.iter().map(|i| self.stride[*i]).collect(),
            shape,
        }
    }

    /// As a kernel argument.
    pub fn walk(&self) -> Dims {
        let mut d: Dims = zero();
        d.total = self.total;
        for (i, (n, s)) in self.dims().into_iter().enumerate() {
            (d.n[i], d.stride[i]) = (n, s);
            d.rank = i as u64 + 1;
        }
        d
    }

    /// All but the last dim as a walk, the last dim's size and stride. A row longer than one element with a stride has it; others count as 1.
    pub fn rows(&self) -> (Dims, u64, i64) {
        let last = self.shape.len() - 1;
        let outer: Vec<usize> = (0..last).collect();
        (
            self.pick(&outer).walk(),
            self.shape[last],
            self.stride[last],
        )
    }

    /// Does writing it touch some element twice (as far as strides tell)?
    fn overlaps(&self) -> bool {
        let mut d = self.dims();
        d.sort_by_key(|(_, s)| *s);
        let mut reach = 1;
        for (n, s) in d {
            if s < reach {
                return true;
            }
            reach += s * (n as i64 - 1);
        }
        false
    }
}

/// Storage type in C, by value.
pub(crate) fn c_type(t: DType) -> &'static str {
    match t {
        DType::I8 => "i8",
        DType::U8 => "u8",
        DType::I32 => "i32",
        DType::U32 => "u32",
        DType::I64 => "i64",
        DType::U64 => "u64",
        DType::F16 => "f16",
        DType::Bf16 => "bf16",
        DType::F64 => "double",
        DType::F8E4M3 => "f8",
        _ => "float",
    }
}

/// Storage type in C of elements that only move.
pub(crate) fn c_bits(t: DType) -> &'static str {
    match t.bits() {
        8 => "u8",
        16 => "u16",
        32 => "u32",
        _ => "u64",
    }
}

fn name(o: &Op<'_>) -> &'static str {
    op::spec(o.id).map_or("op", |s| s.name)
}

/// The operand's name in the op table, or its number.
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
pub(crate) fn invalid<T>(o: &Op<'_>, what: impl std::fmt::Display) -> Result<T> {
    fail(Code::Invalid, format!("{}: {what}", name(o)))
}

/// `Err(Unsupported)` naming the op.
pub(crate) fn refuse<T>(o: &Op<'_>, what: impl std::fmt::Display) -> Result<T> {
    unsupported(format!("{}: {what}", name(o)))
}

/// Refuses params flags the op does not define.
pub(crate) fn flags(o: &Op<'_>, given: u32, known: u32) -> Result<()> {
    if given & !known != 0 {
        return refuse(o, format!("flags {:#x} are not known here", given & !known));
    }
    Ok(())
}

/// Checks how many operands there are.
pub(crate) fn arity(o: &Op<'_>, n: std::ops::RangeInclusive<usize>) -> Result<()> {
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
    Ok(())
}

/// Reads an operand that must be there, of one of the dtypes, with non-negative strides.
pub(crate) fn input(o: &Op<'_>, i: usize, dtypes: &[DType]) -> Result<View> {
    let Some(l) = o.layout(i) else {
        return invalid(o, format!("{} is absent", operand(o, i)));
    };
    view(o, i, l, dtypes)
}

/// Reads an operand that may be absent.
pub(crate) fn optional(o: &Op<'_>, i: usize, dtypes: &[DType]) -> Result<Option<View>> {
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
        shape.push(l.shape[d] as u64);
        stride.push(l.stride[d]);
        total = total.saturating_mul(l.shape[d] as u128);
        reach += (l.shape[d].max(1) - 1) as u128 * l.stride[d] as u128;
    }
    if total > i64::MAX as u128 / 8 || reach > i64::MAX as u128 / 8 {
        return invalid(o, format!("{}: more elements than memory has", who()));
    }
    Ok(View {
        dtype,
        total: total as u64,
        shape,
        stride,
    })
}

/// Reads an output with any strides that write each element once.
pub(crate) fn output_strided(o: &Op<'_>, i: usize, dtypes: &[DType]) -> Result<View> {
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
pub(crate) fn output(o: &Op<'_>, i: usize, dtypes: &[DType]) -> Result<View> {
    dense(o, i, input(o, i, dtypes)?)
}

/// Refuses what is not dense row-major.
pub(crate) fn dense(o: &Op<'_>, i: usize, v: View) -> Result<View> {
    if !v.dense() {
        return refuse(o, format!("{} must be dense row-major", operand(o, i)));
    }
    Ok(v)
}

/// Checks that operand `i` has this shape.
pub(crate) fn shape(o: &Op<'_>, i: usize, v: &View, want: &[u64]) -> Result<()> {
    if v.shape != want {
        return invalid(
            o,
            format!("{}: shape {:?}, {want:?} wanted", operand(o, i), v.shape),
        );
    }
    Ok(())
}

/// Checks that two operands have one dtype.
pub(crate) fn same_dtype(o: &Op<'_>, i: usize, a: &View, b: &View) -> Result<()> {
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

/// Checks that an operand holds one element.
pub(crate) fn scalar(o: &Op<'_>, i: usize, v: &View) -> Result<()> {
    if v.total != 1 {
        return invalid(
            o,
            format!("{}: {} elements, 1 wanted", operand(o, i), v.total),
        );
    }
    Ok(())
}

/// The row count and length of `[.., d]`.
pub(crate) fn rows_of(o: &Op<'_>, i: usize, v: &View) -> Result<(u64, u64)> {
    match v.shape.split_last() {
        Some((&d, outer)) => Ok((outer.iter().product(), d)),
        None => invalid(o, format!("{} has rank 0, rows wanted", operand(o, i))),
    }
}

/// The plan of an op.
pub(crate) fn plan(o: &Op<'_>, workspace_bytes: u64) -> Plan {
    Plan {
        tier: 1,
        workspace_bytes,
        est_ns: 0,
        error_class: op::spec(o.id).map_or(op::class::EXACT, |s| s.error),
    }
}
