//! The fused kernels and the matrix product: one file per family, each answering `Unsupported` for what it does not do.

use crate::kernel::{Facts, Prepared, op_name};
use crossweave_plugin::{Op, Result, unsupported};

/// Finds the op's file and asks it.
pub fn prepare(op: &Op<'_>, _facts: &Facts) -> Result<Prepared> {
    unsupported(format!("{} ({:#06x})", op_name(op), op.id))
}
