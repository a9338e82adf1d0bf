//! Compute: every op by our own kernels.

use crate::{Device, Rocm};
use crossweave_gpu::{Frame, Lane, Mem, Own, Stream, Work};
use crossweave_kernels::{self as kernels, Dialect, Facts};
use crossweave_plugin::{Code, Dyn, OpRequest, Ops, Plan, Result, Span, fail};
use std::sync::Arc;

/// Compute on the GPU.
pub enum RocmOps {}

/// A prepared op.
pub struct Prepared(Arc<Op>);

struct Op {
    frame: Frame,
    own: Own,
}

impl Ops<Rocm> for RocmOps {
    type Prepared = Prepared;

    fn prepare(_: &Rocm, d: &Device, o: &OpRequest<'_>) -> Result<(Prepared, Plan)> {
        let dev = &d.dev;
        dev.alive()?;
        let f = &dev.facts;
        if f.arch.is_empty() || !matches!(f.warp, 32 | 64) {
            return fail(
                Code::Unsupported,
                format!(
                    "device {} does not say its architecture (gcnArchName {:?}, waves of {})",
                    dev.index, f.arch, f.warp
                ),
            );
        }
        let facts = Facts {
            dialect: Dialect::Hip,
            arch: 0,
            sms: f.sm_count,
            warp: f.warp,
            shared: f.shared,
            wgmma: false,
        };
        let own = kernels::prepare(o, &facts)?;
        let (operands, plan) = (own.operands.clone(), own.plan);
        let own = d.compiler.load(dev, own)?;
        let frame = Frame::new(dev, operands, plan.workspace_bytes);
        Ok((Prepared(Arc::new(Op { frame, own })), plan))
    }

    fn launch(
        _: &Rocm,
        p: &Prepared,
        s: &Stream,
        operands: &[Option<Span<'_, Mem>>],
        workspace: Option<Span<'_, Mem>>,
        dynamic: Dyn<'_>,
    ) -> Result<()> {
        crossweave_gpu::launch(&p.0, s, operands, workspace, dynamic)
    }
}

impl Work for Op {
    fn frame(&self) -> &Frame {
        &self.frame
    }

    fn enqueue(
        &self,
        s: &Lane<'_>,
        addresses: &[u64],
        scratch: u64,
        dynamic: Dyn<'_>,
    ) -> Result<()> {
        self.own.enqueue(s, addresses, scratch, dynamic)
    }
}
