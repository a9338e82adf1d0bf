//! `layer_norm_*` (Ba et al. 2016) and `rms_norm_*` (Zhang and Sennrich 2019). The second has neither means nor biases, so its later
//! operands stand further in front.

use crate::operand::*;
use crate::{OpRequest, Result};
use crossweave_abi::op;

/// The row count and width of `x[.., d]`.
fn rows(o: &OpRequest<'_>, x: &View) -> Result<(usize, usize)> {
    match x.shape.split_last() {
        Some((&d, outer)) => Ok((outer.iter().product(), d)),
        None => invalid(o, "x has rank 0, [n, d] wanted"),
    }
}

/// A dense f32 statistic with one element a row.
fn statistic(o: &OpRequest<'_>, i: usize, n: usize) -> Result<()> {
    let v = output(o, i, F32)?;
    match v.total == n {
        true => Ok(()),
        false => invalid(
            o,
            format!(
                "{}: {} elements, one for each of {n} rows wanted",
                named(o, i),
                v.total
            ),
        ),
    }
}

fn eps(o: &OpRequest<'_>) -> Result<f64> {
    let p = o.params::<op::NormParams>()?;
    flags(o, p.flags, 0)?;
    Ok(p.eps)
}

/// A request of `layer_norm_fwd` (`y mean rstd x w b?`) or `rms_norm_fwd` (`y rstd x w`).
pub struct NormForward {
    /// The result, dense.
    pub y: View,
    /// What is normalized, `[.., d]`.
    pub x: View,
    /// Weights, `[d]`.
    pub w: View,
    /// Biases, `[d]`; layer norm only.
    pub b: Option<View>,
    /// Added to the variance.
    pub eps: f64,
    /// Rows.
    pub n: usize,
    /// Elements of a row.
    pub d: usize,
    /// Which operand x is; the weights are the next.
    pub at: usize,
}

impl NormForward {
    /// Reads a request of the layer norm, or of the RMS norm.
    ///
    /// # Errors
    /// `Invalid` for shapes that contradict each other, `Unsupported` for types, flags and strides that the op does not have.
    pub fn read(o: &OpRequest<'_>, layer: bool) -> Result<NormForward> {
        let at = if layer { 3 } else { 2 };
        arity(o, if layer { 5..=6 } else { 4..=4 })?;
        let eps = eps(o)?;
        let (y, x) = (output(o, 0, FLOATS)?, input(o, at, FLOATS)?);
        shape(o, at, &x, &y.shape)?;
        let (n, d) = rows(o, &x)?;
        for i in 1..at {
            statistic(o, i, n)?;
        }
        let w = input(o, at + 1, FLOATS)?;
        shape(o, at + 1, &w, &[d])?;
        let b = if layer { optional(o, 5, FLOATS)? } else { None };
        if let Some(b) = &b {
            shape(o, 5, b, &[d])?;
        }
        Ok(NormForward {
            y,
            x,
            w,
            b,
            eps,
            n,
            d,
            at,
        })
    }
}

/// A request of `layer_norm_bwd` (`dx dw db? dy x w mean rstd dres?`) or `rms_norm_bwd` (`dx dw dy x w rstd dres?`).
pub struct NormBackward {
    /// The gradient of x, dense.
    pub dx: View,
    /// The gradient of the result, `[.., d]`.
    pub dy: View,
    /// What was normalized, of the same shape.
    pub x: View,
    /// Weights, `[d]`.
    pub w: View,
    /// A gradient that is added to that of x.
    pub dres: Option<View>,
    /// Whether the gradient of biases, operand 2, is asked for.
    pub has_db: bool,
    /// Rows.
    pub n: usize,
    /// Elements of a row.
    pub d: usize,
    /// Which operand dy is; x and the weights are the next.
    pub at: usize,
    /// Which operand `dres` would be; the one before is `rstd`.
    pub last: usize,
}

impl NormBackward {
    /// Reads a request of the layer norm, or of the RMS norm.
    ///
    /// # Errors
    /// As [`NormForward::read`].
    pub fn read(o: &OpRequest<'_>, layer: bool) -> Result<NormBackward> {
        let at = if layer { 3 } else { 2 };
        let last = if layer { 8 } else { 6 };
        arity(o, last..=last + 1)?;
        eps(o)?;
        let dx = output(o, 0, FLOATS)?;
        let (dy, x) = (input(o, at, FLOATS)?, input(o, at + 1, FLOATS)?);
        let (n, d) = rows(o, &x)?;
        shape(o, at, &dy, &x.shape)?;
        shape(o, 0, &dx, &x.shape)?;
        let w = input(o, at + 2, FLOATS)?;
        shape(o, at + 2, &w, &[d])?;
        shape(o, 1, &output(o, 1, F32)?, &[d])?;
        let has_db = layer && o.layout(2).is_some();
        if has_db {
            shape(o, 2, &output(o, 2, F32)?, &[d])?;
        }
        for i in at + 3..last {
            statistic(o, i, n)?;
        }
        let dres = optional(o, last, FLOATS)?;
        if let Some(r) = &dres {
            shape(o, last, r, &x.shape)?;
        }
        Ok(NormBackward {
            dx,
            dy,
            x,
            w,
            dres,
            has_db,
            n,
            d,
            at,
            last,
        })
    }
}
