//! Layouts as kernels see them: checked operands in numbers that WGSL has, element offsets as WGSL.

use super::text::Text;
use crossweave_plugin::operand as full;
pub use crossweave_plugin::operand::{F32, FLOATS, INDEX, arity, flags, invalid, refuse};
use crossweave_plugin::{DType, OpRequest, Result};
use std::fmt::Write;

/// Elements an operand may span: indices are u32, and twice an index must be one too.
const MOST: u128 = 1 << 31;

/// An operand's layout.
#[derive(Clone, Debug)]
pub struct View {
    full: full::View,
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

fn narrow(dims: &[(usize, usize)]) -> Vec<(u32, u32)> {
    dims.iter().map(|&(n, s)| (word(n), word(s))).collect()
}

/// Only what no element lies behind does not fit.
fn word(n: usize) -> u32 {
    n.min(u32::MAX as usize) as u32
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
        let outer: Vec<_> = (0..self.shape.len().saturating_sub(1)).collect();
        offsets(name, &narrow(&self.full.pick(&outer).dims), text)
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
}

/// Operand `i`, already checked, in numbers of 32 bits.
pub fn view(o: &OpRequest<'_>, i: usize, full: full::View) -> Result<View> {
    let dims = || full.shape.iter().zip(&full.stride);
    let last: u128 = dims()
        .map(|(&n, &s)| n.saturating_sub(1) as u128 * s as u128)
        .sum();
    if full.total as u128 > MOST || (full.total > 0 && last >= MOST) {
        let who = full::named(o, i);
        return refuse(
            o,
            format!("{who}: spans more than 2^31 elements, which indices of 32 bits do not reach"),
        );
    }
    Ok(View {
        dtype: full.dtype,
        shape: full.shape.iter().map(|n| word(*n)).collect(),
        stride: dims()
            .map(|(&n, &s)| if n > 1 { word(s) } else { 0 })
            .collect(),
        total: full.total as u32,
        dims: narrow(&full.dims),
        full,
    })
}

/// Reads an operand that must be there, of one of the dtypes, with non-negative strides.
pub fn input(o: &OpRequest<'_>, i: usize, dtypes: &[DType]) -> Result<View> {
    view(o, i, full::input(o, i, dtypes)?)
}

/// Reads an operand that may be absent.
pub fn optional(o: &OpRequest<'_>, i: usize, dtypes: &[DType]) -> Result<Option<View>> {
    let v = full::optional(o, i, dtypes)?;
    v.map(|v| view(o, i, v)).transpose()
}

/// Reads an output with any strides that write each element once.
pub fn output_strided(o: &OpRequest<'_>, i: usize, dtypes: &[DType]) -> Result<View> {
    view(o, i, full::output_strided(o, i, dtypes)?)
}

/// Reads an output that must be dense row-major.
pub fn output(o: &OpRequest<'_>, i: usize, dtypes: &[DType]) -> Result<View> {
    view(o, i, full::output(o, i, dtypes)?)
}

/// Checks that operand `i` has this shape.
pub fn shape(o: &OpRequest<'_>, i: usize, v: &View, want: &[u32]) -> Result<()> {
    if v.shape != want {
        let (who, is) = (full::named(o, i), &v.shape);
        return invalid(o, format!("{who}: shape {is:?}, {want:?} wanted"));
    }
    Ok(())
}

/// Checks that operand `i` has one element for each of `n` rows.
pub fn per_row(o: &OpRequest<'_>, i: usize, v: &View, n: u32) -> Result<()> {
    if v.total != n {
        return invalid(
            o,
            format!(
                "{}: {} elements, one for each of {n} rows wanted",
                full::named(o, i),
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
        let of = |n: [usize; 3], s: [usize; 3]| {
            narrow(&full::View::of_dims(DType::F32, n.to_vec(), s.to_vec()).dims)
        };
        assert_eq!(of([2, 3, 4], [12, 4, 1]), [(24, 1)]);
        assert_eq!(of([2, 1, 4], [9, 77, 2]), [(2, 9), (4, 2)]);
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
