//! The mandatory ops and one fused, plainly: what an op takes is checked, then a closure computes it. Floats are computed in f32 or wider and rounded once;
//! sums run in one fixed order.

pub mod index;
pub mod matmul;
pub mod moves;
pub mod order;
pub mod pointwise;
pub mod random;
pub mod reduce;
pub mod softmax;

use crossweave_plugin::{Code, OpRequest, Result, fail, unsupported};

/// The number of operands.
fn arity(o: &OpRequest<'_>, n: usize) -> Result<()> {
    if o.operands.len() != n {
        return fail(
            Code::Invalid,
            format!("{} operands, {n} wanted", o.operands.len()),
        );
    }
    Ok(())
}

/// Flags this plugin understands.
fn flags(given: u32, known: u32) -> Result<()> {
    if given & !known != 0 {
        return unsupported(format!("flags {given:#x}"));
    }
    Ok(())
}
