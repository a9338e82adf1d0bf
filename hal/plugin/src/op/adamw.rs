//! `adamw`: AdamW (Loshchilov and Hutter 2019), or Adam with L2 (Kingma and Ba 2015), over many tensors in one launch.

use crate::operand::*;
use crate::{DType, OpRequest, Result};
use crossweave_abi::op;

/// A request of `adamw` (`coef? skip?` and, for each tensor, `p g m v` or `p g m v w`).
pub struct Adamw {
    /// Mode, rates and decay.
    pub params: op::AdamwParams,
    /// Whether each tensor has an f32 master, its fifth operand.
    pub master: bool,
    /// Operands of a tensor.
    pub each: usize,
    /// Whether operand 0, a factor of gradients, is there.
    pub coef: bool,
    /// Whether operand 1, which skips the update where it is not 0, is there.
    pub skip: bool,
    /// The tensors: first operand, parameters and gradients. All operands of a tensor are dense and of one shape.
    pub tensors: Vec<(usize, View, View)>,
}

impl Adamw {
    /// Reads a request.
    ///
    /// # Errors
    /// `Invalid` for shapes and counts that contradict each other, `Unsupported` for types, modes, flags and strides that the op does not have.
    pub fn read(o: &OpRequest<'_>) -> Result<Adamw> {
        let params = o.params::<op::AdamwParams>()?;
        flags(o, params.flags, op::FLAG_MASTER)?;
        if params.mode > 1 {
            return refuse(o, format!("mode {} (0 = AdamW, 1 = L2 Adam)", params.mode));
        }
        let master = params.flags & op::FLAG_MASTER != 0;
        let each = if master { 5 } else { 4 };
        arity(o, 2..=usize::MAX)?;
        if !(o.operands.len() - 2).is_multiple_of(each) {
            return invalid(
                o,
                format!(
                    "{} operands: coef, skip and groups of {each} wanted",
                    o.operands.len()
                ),
            );
        }
        let given = [(0, DType::F32), (1, DType::U32)].map(|(i, t)| {
            let v = optional(o, i, &[t])?;
            v.as_ref().map_or(Ok(()), |v| scalar(o, i, v))?;
            Ok(v.is_some())
        });
        let [coef, skip] = given;
        let mut tensors = vec![];
        for first in (2..o.operands.len()).step_by(each) {
            let (p, g) = (output(o, first, FLOATS)?, output(o, first + 1, FLOATS)?);
            for i in 1..each {
                let v = output(o, first + i, if i == 1 { FLOATS } else { F32 })?;
                shape(o, first + i, &v, &p.shape)?;
            }
            tensors.push((first, p, g));
        }
        Ok(Adamw {
            params,
            master,
            each,
            coef: coef?,
            skip: skip?,
            tensors,
        })
    }
}
