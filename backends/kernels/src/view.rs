//! Operands as planners see them: checked layouts, dims merged where neighbours lie adjacent, names of storage types in C.

use crate::args::{Dims, zero};
pub(crate) use crossweave_plugin::operand::{
    ARITHMETIC, F32, FLOATS, INDEX, WHOLE_BYTES, arity, arity_up_to, flags, invalid, name, named,
    plan, refuse,
};
use crossweave_plugin::{DType, OpRequest, Result, operand};

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

impl From<operand::View> for View {
    fn from(v: operand::View) -> View {
        View {
            dtype: v.dtype,
            total: v.total as u64,
            shape: v.shape.iter().map(|n| *n as u64).collect(),
            stride: v.stride.iter().map(|n| *n as i64).collect(),
        }
    }
}

/// Reads an operand that must be there, of one of the dtypes, with non-negative strides.
pub(crate) fn input(o: &OpRequest<'_>, i: usize, dtypes: &[DType]) -> Result<View> {
    operand::input(o, i, dtypes).map(View::from)
}

/// Reads an operand that may be absent.
pub(crate) fn optional(o: &OpRequest<'_>, i: usize, dtypes: &[DType]) -> Result<Option<View>> {
    Ok(operand::optional(o, i, dtypes)?.map(View::from))
}

/// Bytes that an operand's layout touches and the alignment of its elements, whatever its dtype; `None` where it is absent.
pub(crate) fn extent(o: &OpRequest<'_>, i: usize) -> Result<Option<(u64, u64)>> {
    let Some(l) = o.layout(i) else {
        return Ok(None);
    };
    let Some(dtype) = DType::from_id(l.dtype) else {
        return refuse(
            o,
            format!("{}: dtype {:#x} is unknown", named(o, i), l.dtype),
        );
    };
    let v = input(o, i, &[dtype])?;
    let last: u128 = v
        .shape
        .iter()
        .zip(&v.stride)
        .map(|(n, s)| (n.max(&1) - 1) as u128 * *s as u128)
        .sum();
    let bits = dtype.bits();
    let bytes = match v.total {
        0 => 0,
        _ => ((last + 1) * bits as u128).div_ceil(8),
    };
    match u64::try_from(bytes) {
        Ok(bytes) => Ok(Some((bytes, (bits / 8).max(1)))),
        Err(_) => invalid(o, format!("{}: more elements than memory has", named(o, i))),
    }
}

/// Reads an output with any strides that write each element once.
pub(crate) fn output_strided(o: &OpRequest<'_>, i: usize, dtypes: &[DType]) -> Result<View> {
    operand::output_strided(o, i, dtypes).map(View::from)
}

/// Reads an output that must be dense row-major.
pub(crate) fn output(o: &OpRequest<'_>, i: usize, dtypes: &[DType]) -> Result<View> {
    operand::output(o, i, dtypes).map(View::from)
}

/// Checks that operand `i` has this shape.
pub(crate) fn shape(o: &OpRequest<'_>, i: usize, v: &View, want: &[u64]) -> Result<()> {
    if v.shape != want {
        return invalid(
            o,
            format!("{}: shape {:?}, {want:?} wanted", named(o, i), v.shape),
        );
    }
    Ok(())
}

/// Checks that two operands have one dtype.
pub(crate) fn same_dtype(o: &OpRequest<'_>, i: usize, a: &View, b: &View) -> Result<()> {
    if a.dtype != b.dtype {
        return refuse(
            o,
            format!(
                "{}: dtype {} beside {}",
                named(o, i),
                a.dtype.name(),
                b.dtype.name()
            ),
        );
    }
    Ok(())
}

/// Checks that an operand holds one element.
pub(crate) fn scalar(o: &OpRequest<'_>, i: usize, v: &View) -> Result<()> {
    if v.total != 1 {
        return invalid(
            o,
            format!("{}: {} elements, 1 wanted", named(o, i), v.total),
        );
    }
    Ok(())
}

/// The row count and length of `[.., d]`.
pub(crate) fn rows_of(o: &OpRequest<'_>, i: usize, v: &View) -> Result<(u64, u64)> {
    match v.shape.split_last() {
        Some((&d, outer)) => Ok((outer.iter().product(), d)),
        None => invalid(o, format!("{} has rank 0, rows wanted", named(o, i))),
    }
}
