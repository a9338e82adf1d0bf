//! Compute: matrix products by cuBLASLt and attention by cuDNN where they take the layout, everything else (and what they do not take) by our own
//! kernels.

use crate::cudnn::Attention;
use crate::{Cuda, Device};
use crossweave_gpu::lt::Product;
use crossweave_gpu::{Frame, Lane, Mem, Own, Stream};
use crossweave_kernels::{self as kernels, Dialect, Facts};
use crossweave_plugin::abi::op;
use crossweave_plugin::{Dyn, OpRequest, Ops, Plan, Result, Span};
use std::sync::Arc;

/// Compute on the GPU.
pub enum CudaOps {}

/// A prepared op.
pub struct Prepared(Arc<Op>);

struct Op {
    frame: Frame,
    work: Work,
}

enum Work {
    Kernels(Own),
    /// A product, and our own kernels where the library's algorithm does not take every address.
    Product(Box<Product>, Option<Box<Own>>),
    /// An attention, and our own kernels for addresses the library does not take.
    Attention(Box<Attention>, Box<Own>),
}

impl Ops<Cuda> for CudaOps {
    type Prepared = Prepared;

    fn prepare(_: &Cuda, d: &Device, o: &OpRequest<'_>) -> Result<(Prepared, Plan)> {
        let dev = &d.0;
        dev.alive()?;
        let f = &dev.facts;
        // Kernels are chosen by what the compiler can make for the device. Without one, what it would be is asked, so that an op no
        // kernel takes is still refused as such.
        let target = dev.target();
        let arch = target.as_ref().map_or(f.major * 10 + f.minor, |t| t.arch);
        let facts = Facts {
            dialect: Dialect::Cuda,
            arch,
            sms: f.sm_count,
            warp: f.warp,
            shared: f.shared,
            wgmma: target.as_ref().map_or(Ok(false), |t| dev.wgmma(t))?,
        };
        let own = kernels::prepare(o, &facts)?;
        let (operands, plan) = (own.operands.clone(), own.plan);
        let prepared = |work: Work, tier: u32, workspace: u64| {
            let workspace_bytes = workspace.max(plan.workspace_bytes);
            let frame = Frame::new(dev, operands.clone(), workspace_bytes);
            let plan = Plan {
                tier,
                workspace_bytes,
                ..plan
            };
            Ok((Prepared(Arc::new(Op { frame, work })), plan))
        };
        if own.launches.is_empty() {
            return prepared(Work::Kernels(dev.load(own)?), plan.tier, 0);
        }
        if o.id == op::MATMUL
            && let Some((product, workspace)) = Product::prepare(&dev.lt, o)?
        {
            let spare = match product.any() {
                true => None,
                false => Some(Box::new(dev.load(own)?)),
            };
            let work = Work::Product(Box::new(product), spare);
            return prepared(work, 2, workspace);
        }
        target?;
        if matches!(o.id, op::ATTENTION_FWD | op::ATTENTION_BWD)
            && let Some(last) = own.launches.last()
            && let Some((attention, workspace)) =
                Attention::prepare(dev, o, last.kernel.family.name())?
        {
            let work = Work::Attention(Box::new(attention), Box::new(dev.load(own)?));
            return prepared(work, 2, workspace);
        }
        prepared(Work::Kernels(dev.load(own)?), plan.tier, 0)
    }

    fn launch(
        _: &Cuda,
        p: &Prepared,
        s: &Stream,
        operands: &[Option<Span<'_, Mem>>],
        workspace: Option<Span<'_, Mem>>,
        dynamic: Dyn<'_>,
    ) -> Result<()> {
        crossweave_gpu::launch(&p.0, s, operands, workspace, dynamic)
    }
}

impl crossweave_gpu::Work for Op {
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
        match &self.work {
            Work::Product(product, Some(own)) if !product.takes(addresses) => {
                own.enqueue(s, addresses, scratch, dynamic)
            }
            Work::Product(product, _) => product.launch(s, addresses, scratch),
            Work::Attention(attention, own) => match attention.takes(addresses) {
                true => attention.launch(s, addresses, scratch),
                false => own.enqueue(s, addresses, scratch, dynamic),
            },
            Work::Kernels(own) => own.enqueue(s, addresses, scratch, dynamic),
        }
    }
}
