//! One file per op (or family): what is supported, and the kernel.

mod attention;
mod matmul;

use crate::kernel::{Kernel, Prepare};
use crossweave_abi::op;
use crossweave_plugin::{Op, Plan, Result, unsupported};

/// Which file serves which id; the only list of ops in this backend.
const TABLE: &[(u32, Prepare)] = &[
    (op::MATMUL, matmul::prepare),
    (op::ATTENTION_FWD, attention::prepare_fwd),
    (op::ATTENTION_BWD, attention::prepare_bwd),
];

/// Finds the op's file and asks it.
pub fn prepare(o: &Op<'_>, team_threads: usize) -> Result<(Box<dyn Kernel>, Plan)> {
    match TABLE.iter().find(|(id, _)| *id == o.id) {
        Some((_, f)) => f(o, team_threads),
        None => unsupported(format!(
            "op {:#06x} {}",
            o.id,
            op::spec(o.id).map_or("(unknown)", |s| s.name)
        )),
    }
}
