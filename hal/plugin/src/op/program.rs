//! `elementwise_program`: a short program over registers, run for each element.

use crate::operand::*;
use crate::{DType, OpRequest, Result};
use crossweave_abi::op;

/// A request of `elementwise_program`. Its instructions are the back end's to check, as it translates them.
pub struct Program {
    /// The instructions, and which operands are written.
    pub params: op::ProgramParams,
    /// The operands, of one shape; those that are written are dense.
    pub operands: Vec<View>,
}

impl Program {
    /// Reads a request.
    ///
    /// # Errors
    /// `Invalid` for shapes and counts that contradict each other, `Unsupported` for types, flags and strides that the op does not have.
    pub fn read(o: &OpRequest<'_>) -> Result<Program> {
        arity(o, 1..=op::PROGRAM_MAX_OPERANDS)?;
        let params = o.params::<op::ProgramParams>()?;
        flags(o, params.flags, 0)?;
        let n = o.operands.len();
        if params.n_insts as usize > op::PROGRAM_MAX_INSTS {
            return invalid(
                o,
                format!(
                    "{} instructions, at most {}",
                    params.n_insts,
                    op::PROGRAM_MAX_INSTS
                ),
            );
        }
        if params.writes >> n != 0 {
            return invalid(
                o,
                format!("writes {:#b} names operands beyond {n}", params.writes),
            );
        }
        let mut p = Program {
            params,
            operands: vec![],
        };
        for i in 0..n {
            let types = [DType::F32, DType::Bf16, DType::F16, DType::U32];
            let v = match p.written(i) {
                true => output(o, i, &types)?,
                false => input(o, i, &types)?,
            };
            p.operands.push(v);
            shape(o, i, &p.operands[i], &p.operands[0].shape)?;
        }
        Ok(p)
    }

    /// Whether operand `i` is written.
    pub fn written(&self, i: usize) -> bool {
        self.params.writes >> i & 1 == 1
    }

    /// The instructions.
    pub fn instructions(&self) -> &[op::ProgramInst] {
        &self.params.insts[..self.params.n_insts as usize]
    }
}
