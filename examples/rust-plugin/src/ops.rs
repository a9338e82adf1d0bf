//! The op table: prepare answers for layouts and parameters before anything is touched, launch binds memory and enqueues.

use crate::kernels::{index, matmul, moves, order, pointwise, random, reduce, softmax};
use crate::memory::{Mem, Region, region};
use crate::queue::Stream;
use crate::{Device, Softdev};
use abi::op;
use crossweave_plugin::{Code, Dyn, OpRequest, Ops, Plan, Result, Span, abi, fail, unsupported};
use std::sync::Arc;

/// Addresses of one launch; a region of nothing where an operand is absent.
pub struct Launch {
    pub at: Vec<Option<Region>>,
    pub philox: op::PhiloxDyn,
}

impl Launch {
    /// Operand `i`, which is there: prepare has seen it.
    pub fn region(&self, i: usize) -> Region {
        match self.at.get(i) {
            Some(Some(r)) => *r,
            _ => panic!("operand {i} is absent"),
        }
    }
    pub fn regions<const N: usize>(&self) -> [Region; N] {
        std::array::from_fn(|i| self.region(i))
    }
}

/// What runs on the stream's thread.
pub type Kernel = Box<dyn Fn(&Launch) + Send + Sync>;

/// An op, everything known before launch.
pub struct Prepared {
    name: &'static str,
    philox: bool,
    /// For each operand the bytes it reaches over and the bytes of an element; `None` = absent.
    needs: Vec<Option<(u64, usize)>>,
    kernel: Arc<Kernel>,
}

/// The ops of this plugin.
pub enum SoftdevOps {}

fn kernel(o: &OpRequest<'_>) -> Result<Kernel> {
    match o.id {
        op::COPY_STRIDED => moves::copy_strided(o),
        op::CAST => moves::cast(o),
        op::FILL_STRIDED => moves::fill_strided(o),
        op::IOTA => moves::iota(o),
        op::SELECT => moves::select(o),
        op::UNARY => pointwise::unary(o),
        op::BINARY => pointwise::binary(o),
        op::COMPARE => pointwise::compare(o),
        op::AXPBY => pointwise::axpby(o),
        op::CLAMP => pointwise::clamp(o),
        op::REDUCE => reduce::reduce(o),
        op::ARG_REDUCE => reduce::arg_reduce(o),
        op::CUMSUM => reduce::cumsum(o),
        op::NONFINITE_COUNT => reduce::nonfinite_count(o),
        op::MATMUL => matmul::matmul(o),
        op::GATHER_ROWS => index::gather_rows(o),
        op::SCATTER_ADD_ROWS => index::scatter_add_rows(o),
        op::HISTOGRAM => index::histogram(o),
        op::SORT_PAIRS => order::sort_pairs(o),
        op::TOPK => order::topk(o),
        op::PHILOX => random::philox(o),
        op::SOFTMAX_FWD => softmax::softmax_fwd(o),
        _ => unsupported("not native: the core has its own way"),
    }
}

impl Ops<Softdev> for SoftdevOps {
    type Prepared = Prepared;

    fn prepare(b: &Softdev, _: &Device, o: &OpRequest<'_>) -> Result<(Prepared, Plan)> {
        b.fault("op_prepare")?;
        let Some(spec) = op::spec(o.id).filter(|s| s.revision == o.revision) else {
            return unsupported(format!("op {:#x}, revision {}", o.id, o.revision));
        };
        if o.math_flags & !(abi::MATH_DETERMINISTIC | abi::MATH_TF32) != 0 {
            return unsupported(format!("math flags {:#x}", o.math_flags));
        }
        let named = |e: crossweave_plugin::Error| crossweave_plugin::Error {
            message: format!("{}: {}", spec.name, e.message),
            ..e
        };
        let kernel = kernel(o).map_err(named)?;
        let need = |i: usize| -> Result<Option<(u64, usize)>> {
            let present = o.layout(i).is_some();
            let v = present
                .then(|| crate::view::View::new(o, i, crate::view::ANY))
                .transpose()?;
            Ok(v.map(|v| (v.bytes, crate::view::size(v.dtype))))
        };
        let needs = (0..o.operands.len())
            .map(need)
            .collect::<Result<_>>()
            .map_err(named)?;
        let prepared = Prepared {
            name: spec.name,
            philox: o.id == op::PHILOX,
            needs,
            kernel: Arc::new(kernel),
        };
        Ok((
            prepared,
            Plan {
                error_class: spec.error,
                ..Plan::default()
            },
        ))
    }

    fn launch(
        b: &Softdev,
        p: &Prepared,
        s: &Stream,
        operands: &[Option<Span<'_, Mem>>],
        _workspace: Option<Span<'_, Mem>>,
        dynamic: Dyn<'_>,
    ) -> Result<()> {
        b.fault("op_launch")?;
        let wrong = |what: String| fail(Code::Invalid, format!("{}: {what}", p.name));
        if operands.len() != p.needs.len() {
            return wrong(format!(
                "{} operands, prepared with {}",
                operands.len(),
                p.needs.len()
            ));
        }
        let mut at = Vec::with_capacity(operands.len());
        for (i, (span, need)) in operands.iter().zip(&p.needs).enumerate() {
            let r = span.as_ref().map(|s| region(s, p.name)).transpose()?;
            at.push(match (r, need) {
                (Some(r), Some((bytes, size)))
                    if r.bytes as u64 >= *bytes && (*bytes == 0 || r.aligned(*size)) =>
                {
                    Some(r)
                }
                (r, Some((0, _))) => r,
                (None, None) => None,
                (_, need) => {
                    return wrong(format!(
                        "operand {i}: its memory does not hold {need:?} (bytes, alignment)"
                    ));
                }
            });
        }
        let philox = if p.philox {
            dynamic.read::<op::PhiloxDyn>()?
        } else {
            Default::default()
        };
        if philox.flags != 0 {
            return unsupported(format!("philox: flags {:#x}", philox.flags));
        }
        let (kernel, l) = (p.kernel.clone(), Launch { at, philox });
        s.push(move || kernel(&l))
    }
}
