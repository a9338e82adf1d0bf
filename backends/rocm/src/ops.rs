//! Compute: matrix products by hipBLASLt where it takes the layout, everything else (and what it does not take) by our own kernels.

use crate::{Device, Rocm};
use crossweave_gpu::lt::Product;
use crossweave_gpu::{Frame, Lane, Mem, Own, Stream, Work};
use crossweave_kernels::{self as kernels, Dialect, Facts};
use crossweave_plugin::abi::op;
use crossweave_plugin::{Code, Dyn, OpRequest, Ops, Plan, Result, Span, fail};
use std::sync::Arc;

/// Compute on the GPU.
pub enum RocmOps {}

/// A prepared op.
pub struct Prepared(Arc<Op>);

struct Op {
    frame: Frame,
    by: By,
}

enum By {
    Kernels(Own),
    /// A product, and our own kernels for addresses that the library does not take.
    Product(Box<Product>, Option<Box<Own>>),
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
        let (operands, mut plan) = (own.operands.clone(), own.plan);
        let product = match o.id == op::MATMUL && !own.launches.is_empty() {
            true => Product::prepare(&d.products, o)?,
            false => None,
        };
        let by = match product {
            None => By::Kernels(d.compiler.load(dev, own)?),
            Some((product, bytes)) => {
                plan.tier = 2;
                plan.workspace_bytes = plan.workspace_bytes.max(bytes);
                let spare = match product.any() {
                    true => None,
                    false => Some(Box::new(d.compiler.load(dev, own)?)),
                };
                By::Product(Box::new(product), spare)
            }
        };
        let frame = Frame::new(dev, operands, plan.workspace_bytes);
        Ok((Prepared(Arc::new(Op { frame, by })), plan))
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
        match &self.by {
            By::Product(product, None) => product.launch(s, addresses, scratch),
            By::Product(product, Some(_)) if product.takes(addresses) => {
                product.launch(s, addresses, scratch)
            }
            By::Product(_, Some(own)) => own.enqueue(s, addresses, scratch, dynamic),
            By::Kernels(own) => own.enqueue(s, addresses, scratch, dynamic),
        }
    }
}
