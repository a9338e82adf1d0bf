//! Compute: every op by our own kernels.

use crate::{Device, Rocm};
use crossweave_gpu::{Frame, Mem, Own, Stream};
use crossweave_kernels::{self as kernels, Dialect, Facts};
use crossweave_plugin::{Code, Dyn, OpRequest, Ops, Plan, Result, Span, fail};

/// Compute on the GPU.
pub enum RocmOps {}

/// A prepared op.
pub struct Prepared {
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
        Ok((Prepared { frame, own }, plan))
    }

    fn launch(
        _: &Rocm,
        p: &Prepared,
        s: &Stream,
        operands: &[Option<Span<'_, Mem>>],
        workspace: Option<Span<'_, Mem>>,
        dynamic: Dyn<'_>,
    ) -> Result<()> {
        p.frame
            .launch(s, operands, workspace, |addresses, scratch| {
                p.own.enqueue(s, addresses, scratch, dynamic)
            })
    }
}
