//! `rope`: rotary position embedding (Su et al. 2021).

use crate::operand::*;
use crate::{OpRequest, Result};
use crossweave_abi::op;

/// A request of `rope`: `y[B, T, H, D]` of `x`, the first R elements of each head turned by the angles of its position.
pub struct Rope {
    /// The result, with unit stride in D.
    pub y: View,
    /// What is turned, of the same shape, with unit stride in D.
    pub x: View,
    /// Cosines, `[T, R/2]` with `R <= D`, f32.
    pub cos: View,
    /// Sines, of the same shape, f32.
    pub sin: View,
    /// Turned back.
    pub inverse: bool,
    /// Pairs are neighbours, not halves.
    pub interleaved: bool,
}

impl Rope {
    /// Reads a request.
    ///
    /// # Errors
    /// `Invalid` for shapes that contradict each other, `Unsupported` for types, flags and strides that the op does not have.
    pub fn read(o: &OpRequest<'_>) -> Result<Rope> {
        arity(o, 4..=4)?;
        let f = o.params::<op::RopeParams>()?.flags;
        flags(o, f, op::FLAG_INVERSE | op::FLAG_INTERLEAVED)?;
        let (y, x) = (output_strided(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
        let (cos, sin) = (input(o, 2, F32)?, input(o, 3, F32)?);
        if y.shape.len() != 4 {
            return invalid(
                o,
                format!("x has rank {}, [B, T, H, D] wanted", y.shape.len()),
            );
        }
        shape(o, 1, &x, &y.shape)?;
        shape(o, 3, &sin, &cos.shape)?;
        let (t, d) = (y.shape[1], y.shape[3]);
        if cos.shape.len() != 2 || cos.shape[0] != t || cos.shape[1].saturating_mul(2) > d {
            return invalid(
                o,
                format!(
                    "cos, sin have shape {:?}, [{t}, R/2] with R <= {d} wanted",
                    cos.shape
                ),
            );
        }
        for (v, who) in [(&x, "x"), (&y, "y")] {
            if d > 1 && v.stride[3] != 1 {
                return refuse(o, format!("{who} needs unit stride in D"));
            }
        }
        Ok(Rope {
            y,
            x,
            cos,
            sin,
            inverse: f & op::FLAG_INVERSE != 0,
            interleaved: f & op::FLAG_INTERLEAVED != 0,
        })
    }
}
