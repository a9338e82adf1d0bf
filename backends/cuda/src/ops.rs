//! Compute: matrix products by cuBLASLt and attention by cuDNN where they take the layout, everything else (and what they do not take) by our own
//! kernels.

use crate::cudnn::Attention;
use crate::device::{Dev, lock};
use crate::driver::Handle;
use crate::lt::Product;
use crate::memory::{Mem, at, inside};
use crate::modules::Function;
use crate::stream::Stream;
use crate::{Cuda, Device};
use crossweave_kernels::{self as kernels, ArgBuffer, Dialect, Facts, Operands, Values};
use crossweave_plugin::abi::op;
use crossweave_plugin::{Code, Dyn, Error, OpRequest, Ops, Plan, Result, Span, fail};
use std::sync::{Arc, Mutex};

/// Operands of one launch whose addresses lie on the launching thread's stack; multi-tensor ops may have more, and keep room for them.
const INLINE: usize = 64;

/// Compute on the GPU.
pub enum CudaOps {}

/// A prepared op.
pub struct Prepared {
    dev: Arc<Dev>,
    work: Work,
    operands: Operands,
    workspace: u64,
    /// Room for the addresses of more operands than [`INLINE`].
    many: Mutex<Box<[u64]>>,
}

impl Prepared {
    fn new(dev: &Arc<Dev>, work: Work, operands: Operands, workspace: u64) -> Prepared {
        let many = match operands.count() {
            n if n > INLINE => n,
            _ => 0,
        };
        Prepared {
            dev: dev.clone(),
            work,
            operands,
            workspace,
            many: Mutex::new(vec![0; many].into()),
        }
    }
}

enum Work {
    Kernels(kernels::Prepared, Vec<Function>),
    /// A product, and our own kernels where the library's algorithm does not take every address.
    Product(
        Box<Product>,
        Option<Box<(kernels::Prepared, Vec<Function>)>>,
    ),
    /// An attention, and our own kernels for addresses the library does not take.
    Attention(Box<Attention>, Box<(kernels::Prepared, Vec<Function>)>),
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
            shared: f.shared_optin,
            wgmma: target.as_ref().map_or(Ok(false), |t| dev.wgmma(t))?,
        };
        let own = kernels::prepare(o, &facts)?;
        if o.id == op::MATMUL
            && !own.launches.is_empty()
            && let Some((product, workspace)) = Product::prepare(dev, o)?
        {
            let workspace = workspace.max(own.plan.workspace_bytes);
            let plan = Plan {
                tier: 2,
                workspace_bytes: workspace,
                ..own.plan
            };
            let operands = own.operands.clone();
            let spare = if product.any() {
                None
            } else {
                let functions = functions(dev, &own)?;
                Some(Box::new((own, functions)))
            };
            let work = Work::Product(Box::new(product), spare);
            return Ok((Prepared::new(dev, work, operands, workspace), plan));
        }
        if !own.launches.is_empty() {
            target?;
        }
        if matches!(o.id, op::ATTENTION_FWD | op::ATTENTION_BWD)
            && let Some(last) = own.launches.last()
            && let Some((attention, workspace)) =
                Attention::prepare(dev, o, last.kernel.family.name())?
        {
            let workspace = workspace.max(own.plan.workspace_bytes);
            let plan = Plan {
                tier: 2,
                workspace_bytes: workspace,
                ..own.plan
            };
            let (functions, operands) = (functions(dev, &own)?, own.operands.clone());
            let work = Work::Attention(Box::new(attention), Box::new((own, functions)));
            return Ok((Prepared::new(dev, work, operands, workspace), plan));
        }
        let functions = functions(dev, &own)?;
        let (plan, workspace) = (own.plan, own.plan.workspace_bytes);
        let operands = own.operands.clone();
        let work = Work::Kernels(own, functions);
        Ok((Prepared::new(dev, work, operands, workspace), plan))
    }

    fn launch(
        _: &Cuda,
        p: &Prepared,
        s: &Stream,
        operands: &[Option<Span<'_, Mem>>],
        workspace: Option<Span<'_, Mem>>,
        dynamic: Dyn<'_>,
    ) -> Result<()> {
        if !Arc::ptr_eq(&p.dev, &s.dev) {
            return fail(
                Code::Invalid,
                format!(
                    "an op prepared for device {} on a stream of device {}",
                    p.dev.index, s.dev.index
                ),
            );
        }
        // Everything is checked before anything reaches the device, which a stray access would end.
        let wanted = &p.operands;
        for (i, o) in operands.iter().chain([&workspace]).enumerate() {
            let Some(o) = o else { continue };
            inside("the span", o)
                .and_then(|()| o.mem.reached_by(&s.dev))
                .map_err(|e| {
                    let which = match i < operands.len() {
                        true => format!("operand {i}"),
                        false => "the workspace".into(),
                    };
                    let message = format!("{}: {which}: {}", wanted.name(), e.message);
                    Error { message, ..e }
                })?;
        }
        let place = |o: &Span<'_, Mem>| (at(o), o.bytes);
        let scratch = wanted.workspace(p.workspace, workspace.as_ref().map(place))?;
        let mut inline = [0u64; INLINE];
        let mut many;
        let addresses: &mut [u64] = match wanted.count() <= INLINE {
            true => &mut inline[..wanted.count()],
            false => {
                many = lock(&p.many);
                &mut many
            }
        };
        let spans = operands.iter().map(|o| o.as_ref().map(place));
        wanted.addresses(spans, addresses)?;
        let addresses = &*addresses;
        match &p.work {
            Work::Product(product, spare) => match spare {
                Some(b) if !product.takes(addresses) => {
                    let (own, functions) = &**b;
                    enqueue(own, functions, s, addresses, scratch, &own.values(dynamic)?)
                }
                _ => product.launch(s, addresses, scratch),
            },
            Work::Attention(attention, spare) => match attention.takes(addresses) {
                true => attention.launch(s, addresses, scratch),
                false => {
                    let (own, functions) = &**spare;
                    enqueue(own, functions, s, addresses, scratch, &own.values(dynamic)?)
                }
            },
            Work::Kernels(own, functions) => {
                let values = own.values(dynamic)?;
                enqueue(own, functions, s, addresses, scratch, &values)
            }
        }
    }
}

fn functions(dev: &Dev, own: &kernels::Prepared) -> Result<Vec<Function>> {
    own.launches
        .iter()
        .map(|l| dev.function(&l.kernel, l.shared))
        .collect()
}

fn enqueue(
    own: &kernels::Prepared,
    functions: &[Function],
    s: &Stream,
    addresses: &[u64],
    scratch: u64,
    values: &Values,
) -> Result<()> {
    if own.launches.is_empty() {
        return Ok(());
    }
    let dev = &s.dev;
    let _in = dev.enter()?;
    let lane = s.lane();
    let mut buffer = ArgBuffer::default();
    for (l, f) in own.launches.iter().zip(functions) {
        let args = l.fill(addresses, scratch, values, &mut buffer);
        // The kernel's one parameter is the struct, by value: the driver copies it before it returns.
        let mut params = [args.as_mut_ptr().cast()];
        let ([gx, gy, gz], [bx, by, bz]) = (l.grid, l.block);
        // SAFETY: the struct is the one the kernel declares (checked where the kernels are compiled); operands live until the stream has
        // passed the launch.
        let status = unsafe {
            (dev.driver().cuLaunchKernel)(
                f.0,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                l.shared,
                lane,
                params.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        dev.check("cuLaunchKernel", status).map_err(|mut e| {
            e.message = format!("kernel {}: {}", l.kernel.entry, e.message);
            e
        })?;
    }
    Ok(())
}

/// For tables whose handles are the driver's.
pub(crate) fn stream_handle(s: &Stream) -> Handle {
    s.lane()
}
