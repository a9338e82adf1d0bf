//! Pointwise formulas over tensors: one `elementwise_program` launch each.

use crossweave_hal::DType;
use crossweave_hal::abi::op;
use crossweave_tensor::{Ex, Prog, Result, Run, Tensor};

/// `outs = f(ins)`, every tensor of the first output's shape (inputs by strides of 0 too). An input that is also an output is read before
/// it is written. `scalars` are launch-time numbers: a new value is no new kernel.
pub(crate) fn map<F>(
    run: &Run<'_>,
    outs: &[&Tensor],
    ins: &[&Tensor],
    scalars: &[f32],
    f: F,
) -> Result<()>
where
    F: for<'p> FnOnce(&[Ex<'p>]) -> Vec<Ex<'p>>,
{
    let same = |a: &Tensor, b: &Tensor| {
        std::ptr::eq(a.buffer().as_ref(), b.buffer().as_ref())
            && a.offset() == b.offset()
            && a.dtype() == b.dtype()
            && a.shape() == b.shape()
            && a.strides() == b.strides()
    };
    let mut operands: Vec<&Tensor> = outs.to_vec();
    let mut regs = vec![];
    for t in ins {
        let at = operands.iter().position(|o| same(o, t));
        regs.push(at.unwrap_or(operands.len()) as u32);
        if at.is_none() {
            operands.push(t);
        }
    }
    let prog = Prog::new(operands.len() as u32);
    let given: Vec<Ex<'_>> = regs.iter().map(|r| prog.operand(*r)).collect();
    let params = prog.finish(&f(&given));
    let operands: Vec<Option<&Tensor>> = operands.into_iter().map(Some).collect();
    run.launch(
        op::ELEMENTWISE_PROGRAM,
        &operands,
        params.as_bytes(),
        op::ProgramDyn::new(scalars).as_bytes(),
    )
}

/// `out[0] += sum x²`.
pub(super) fn add_squares(run: &Run<'_>, out: &Tensor, x: &Tensor) -> Result<()> {
    run.launch(
        op::MULTI_SUMSQ,
        &[Some(out), Some(x)],
        op::NoParams::default().as_bytes(),
        &[],
    )
}

/// Reduces the dims of `axes` (bits) of `src` into `dst`, whose sizes there are 1.
pub(super) fn reduce(
    run: &Run<'_>,
    kind: u32,
    axes: u32,
    dst: &Tensor,
    src: &Tensor,
    add: bool,
) -> Result<()> {
    let p = op::ReduceParams {
        kind,
        axes,
        flags: if add { op::FLAG_ACCUM } else { 0 },
        ..Default::default()
    };
    run.launch(op::REDUCE, &[Some(dst), Some(src)], p.as_bytes(), &[])
}

/// One element seen in every place of a shape.
pub(super) fn everywhere(t: &Tensor, dims: &[u64]) -> Tensor {
    t.strided(dims, &[0; 6][..dims.len()], 0)
}

/// A gradient an update may overwrite with values of its own: the gradient itself when it is f32, else a temporary.
pub(super) fn scratch(run: &Run<'_>, grad: &Tensor) -> Result<Tensor> {
    if grad.dtype() == DType::F32 {
        return Ok(grad.clone());
    }
    run.empty(*grad.shape(), DType::F32)
}
