//! One file per op (or family): what is supported, and its passes.

use crate::kernel::{Facts, Prepared};
use crossweave_plugin::{Op, Result};

/// What an op's file exports: answers `Unsupported` without side effects for what it does not do.
pub type Prepare = fn(op: &Op<'_>, facts: &Facts) -> Result<Prepared>;

/// Which file serves which id; what is not here is asked of [`crate::kernels`].
const TABLE: &[(u32, Prepare)] = &[];

/// Finds the op's file and asks it.
pub fn prepare(op: &Op<'_>, facts: &Facts) -> Result<Prepared> {
    match TABLE.iter().find(|(id, _)| *id == op.id) {
        Some((_, f)) => f(op, facts),
        None => crate::kernels::prepare(op, facts),
    }
}
