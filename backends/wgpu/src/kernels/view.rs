//! Layouts as kernels see them: checked, neighbouring dims merged, element offsets as WGSL.

use super::text::Text;
use crate::kernel::op_name;
use crossweave_abi::{Layout, op};
use crossweave_plugin::{Code, DType, Op, Result, fail, unsupported};
use std::fmt::Write;

/// The floats of the op table's `f`.
pub const FLOATS: &[DType] = &[DType::F32, DType::Bf16, DType::F16];
/// Just f32.
pub const F32: &[DType] = &[DType::F32];
/// Index types.
pub const INDEX: &[DType] = &[DType::I32, DType::I64];

/// Elements an operand may span: indices are u32, and twice an index must be one too.
const MOST: u128 = 1 << 31;

/// An operand's layout.
#[derive(Clone, Debug)]
pub struct View {
    /// Element type.
    pub dtype: DType,
    /// As given.
    pub shape: Vec<u32>,
    /// As given, of dims with more than one element; else 0.
    pub stride: Vec<u32>,
    /// Elements.
    pub total: u32,
    /// `(size, stride)` outermost first, dims of one element left out, neighbours merged.
    pub dims: Vec<(u32, u32)>,
}

fn merge(shape: &[u32], stride: &[u32]) -> Vec<(u32, u32)> {
    let mut dims: Vec<(u32, u32)> = vec![];
    for (&n, &s) in shape.iter().zip(stride) {
        match dims.last_mut() {
            _ if n == 1 => {}
            Some((m, t)) if u64::from(*t) == u64::from(s) * u64::from(n) => {
                *m = m.saturating_mul(n);
                *t = s;
            }
            _ => dims.push((n, s)),
        }
    }
    dims
}

/// WGSL `fn name(e: u32) -> u32`: the offset of row-major element `e` of these dims, whose numbers become parameters.
fn offsets(name: &str, dims: &[(u32, u32)], text: &mut Text) -> String {
    let mut body = String::new();
    let times = |text: &mut Text, hole: String, e: &str, stride: u32| match stride {
        0 => "0u".to_string(),
        1 => e.to_string(),
        s => {
            text.param(&hole, s);
            format!("({e}) * ${hole}")
        }
    };
    let mut left = "e".to_string();
    for (k, &(n, s)) in dims.iter().enumerate().skip(1).rev() {
        let size = format!("{name}_n{k}");
        text.param(&size, n);
        let part = times(
            text,
            format!("{name}_s{k}"),
            &format!("{left} - q{k} * ${size}"),
            s,
        );
        let _ = write!(body, "let q{k} = {left} / ${size}; o += {part}; ");
        left = format!("q{k}");
    }
    let first = match dims.first() {
        None => "0u".to_string(),
        Some(&(_, s)) => times(text, format!("{name}_s0"), &left, s),
    };
    if body.is_empty() {
        return format!("fn {name}(e: u32) -> u32 {{ return {first}; }}\n");
    }
    format!("fn {name}(e: u32) -> u32 {{ var o = 0u; {body}return o + {first}; }}\n")
}

impl View {
    /// Offsets of the elements, as a function `name(e)`.
    pub fn offsets(&self, name: &str, text: &mut Text) -> String {
        offsets(name, &self.dims, text)
    }

    /// Offsets of the rows (all dims but the last), as a function `name(r)`.
    pub fn row_offsets(&self, name: &str, text: &mut Text) -> String {
        let outer = self.shape.len().saturating_sub(1);
        offsets(
            name,
            &merge(&self.shape[..outer], &self.stride[..outer]),
            text,
        )
    }

    /// Stride along the last dim.
    pub fn step(&self) -> u32 {
        self.stride.last().copied().unwrap_or(0)
    }

    /// Rows (all dims but the last) and their length; `None` for rank 0.
    pub fn rows(&self) -> Option<(u32, u32)> {
        let (&d, outer) = self.shape.split_last()?;
        Some((outer.iter().product(), d))
    }

    /// Row-major without gaps?
    pub fn dense(&self) -> bool {
        self.total == 0 || matches!(self.dims[..], [] | [(_, 1)])
    }

    /// Are elements 2i and 2i + 1 always neighbours, from an even offset on?
    pub fn pairs(&self) -> bool {
        match self.dims.split_last() {
            None => false,
            Some((&(n, s), outer)) => {
                s == 1 && (outer.is_empty() || n % 2 == 0) && outer.iter().all(|d| d.1 % 2 == 0)
            }
        }
    }

    /// Does writing it touch some element twice (as far as strides tell)?
    fn overlaps(&self) -> bool {
        let mut d = self.dims.clone();
        d.sort_by_key(|d| d.1);
        let mut reach = 1u64;
        for (n, s) in d {
            if u64::from(s) < reach {
                return true;
            }
            reach += u64::from(s) * u64::from(n - 1);
        }
        false
    }
}

/// `Err(Invalid)` naming the op.
pub fn invalid<T>(o: &Op<'_>, what: impl std::fmt::Display) -> Result<T> {
    fail(Code::Invalid, format!("{}: {what}", op_name(o)))
}

/// `Err(Unsupported)` naming the op.
pub fn refuse<T>(o: &Op<'_>, what: impl std::fmt::Display) -> Result<T> {
    unsupported(format!("{}: {what}", op_name(o)))
}

/// Refuses params flags that are not known here.
pub fn flags(o: &Op<'_>, given: u32, known: u32) -> Result<()> {
    match given & !known {
        0 => Ok(()),
        other => refuse(o, format!("flags {other:#x} are not known here")),
    }
}

/// Checks how many operands there are, and the revision.
pub fn arity(o: &Op<'_>, n: std::ops::RangeInclusive<usize>) -> Result<()> {
    if !n.contains(&o.operands.len()) {
        let (given, from, to) = (o.operands.len(), n.start(), n.end());
        return invalid(o, format!("{given} operands, {from} to {to} wanted"));
    }
    if o.revision != 1 {
        return refuse(o, format!("revision {} (this backend knows 1)", o.revision));
    }
    Ok(())
}

/// The operand's name in the op table, for messages.
fn who(o: &Op<'_>, i: usize) -> String {
    let name = op::spec(o.id)
        .and_then(|s| s.operands.get(i))
        .and_then(|s| s.split(':').next());
    format!("operand {i} ({})", name.unwrap_or("?"))
}

fn view(o: &Op<'_>, i: usize, l: &Layout, dtypes: &[DType]) -> Result<View> {
    let dtype = match DType::from_id(l.dtype) {
        Some(t) if dtypes.contains(&t) => t,
        Some(t) => {
            return refuse(
                o,
                format!("{}: dtype {} is not supported", who(o, i), t.name()),
            );
        }
        None => return refuse(o, format!("{}: dtype {:#x} is unknown", who(o, i), l.dtype)),
    };
    let rank = l.rank as usize;
    if rank > 8 {
        return invalid(o, format!("{}: rank {rank} is more than 8", who(o, i)));
    }
    let (mut shape, mut stride) = (vec![], vec![]);
    let (mut total, mut reach) = (1u128, 1u128);
    for d in 0..rank {
        let (n, s) = (l.shape[d], l.stride[d]);
        if n < 0 {
            return invalid(o, format!("{}: dim {d} has size {n}", who(o, i)));
        }
        if s < 0 && n > 1 {
            return refuse(o, format!("{}: dim {d} has negative stride {s}", who(o, i)));
        }
        let s = if n > 1 { s } else { 0 };
        total = total.saturating_mul(n as u128);
        reach = reach.saturating_add((n.max(1) - 1) as u128 * s as u128);
        shape.push(n.min(u32::MAX as i64) as u32);
        stride.push(s.min(u32::MAX as i64) as u32);
    }
    if total > MOST || (total > 0 && reach > MOST) {
        return refuse(
            o,
            format!(
                "{}: spans more than 2^31 elements, which indices of 32 bits do not reach",
                who(o, i)
            ),
        );
    }
    let dims = merge(&shape, &stride);
    Ok(View {
        dtype,
        shape,
        stride,
        total: total as u32,
        dims,
    })
}

/// Reads an operand that must be there, of one of the dtypes, with non-negative strides.
pub fn input(o: &Op<'_>, i: usize, dtypes: &[DType]) -> Result<View> {
    match o.layout(i) {
        Some(l) => view(o, i, l, dtypes),
        None => invalid(o, format!("{} is absent", who(o, i))),
    }
}

/// Reads an operand that may be absent.
pub fn optional(o: &Op<'_>, i: usize, dtypes: &[DType]) -> Result<Option<View>> {
    o.layout(i).map(|l| view(o, i, l, dtypes)).transpose()
}

/// Reads an output with any strides that write each element once.
pub fn output_strided(o: &Op<'_>, i: usize, dtypes: &[DType]) -> Result<View> {
    let v = input(o, i, dtypes)?;
    if v.total > 0 && v.overlaps() {
        return invalid(o, format!("{}: strides write an element twice", who(o, i)));
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
        return refuse(o, format!("{} must be dense row-major", who(o, i)));
    }
    Ok(v)
}

/// Checks that operand `i` has this shape.
pub fn shape(o: &Op<'_>, i: usize, v: &View, want: &[u32]) -> Result<()> {
    if v.shape != want {
        return invalid(
            o,
            format!("{}: shape {:?}, {want:?} wanted", who(o, i), v.shape),
        );
    }
    Ok(())
}

/// Checks that operand `i` has one element for each of `n` rows.
pub fn per_row(o: &Op<'_>, i: usize, v: &View, n: u32) -> Result<()> {
    if v.total != n {
        return invalid(
            o,
            format!(
                "{}: {} elements, one for each of {n} rows wanted",
                who(o, i),
                v.total
            ),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_of_merged_dims() {
        let mut t = Text::default();
        assert_eq!(merge(&[2, 3, 4], &[12, 4, 1]), [(24, 1)]);
        assert_eq!(merge(&[2, 1, 4], &[9, 77, 2]), [(2, 9), (4, 2)]);
        assert_eq!(
            offsets("f", &[], &mut t),
            "fn f(e: u32) -> u32 { return 0u; }\n"
        );
        assert_eq!(
            offsets("f", &[(5, 1)], &mut t),
            "fn f(e: u32) -> u32 { return e; }\n"
        );
        let s = offsets("g", &[(2, 9), (4, 2)], &mut t);
        assert_eq!(
            t.fill(&s),
            "fn g(e: u32) -> u32 { var o = 0u; let q1 = e / param(0u); o += (e - q1 * param(0u)) * param(1u); return o + (q1) * param(2u); }\n"
        );
        assert_eq!(t.params, [4, 2, 9]);
    }
}
