//! Defects of ops: none here; delegates.

use crate::Seeded;
use crossweave_backend_cpu::{CpuBackend, CpuOps, Device, Mem, Stream};
use crossweave_plugin::{Dyn, Op, Ops, Plan, Result, Span};

/// The ops of the CPU back end.
pub enum SeededOps {}

impl Ops<Seeded> for SeededOps {
    type Prepared = <CpuOps as Ops<CpuBackend>>::Prepared;

    fn prepare(b: &Seeded, d: &Device, op: &Op<'_>) -> Result<(Self::Prepared, Plan)> {
        CpuOps::prepare(b.inner(), d, op)
    }

    fn launch(
        b: &Seeded,
        p: &Self::Prepared,
        s: &Stream,
        operands: &[Option<Span<'_, Mem>>],
        workspace: Option<Span<'_, Mem>>,
        dynamic: Dyn<'_>,
    ) -> Result<()> {
        CpuOps::launch(b.inner(), p, s, operands, workspace, dynamic)
    }
}
