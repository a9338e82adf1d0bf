//! Launches of single ops of the table, under the names that ops about experts use for them.

use crate::error::Result;
use crate::{Run, Tensor};
use crossweave_hal::DType;
use crossweave_hal::abi::op;
use crossweave_program::Prog;

/// The parameters of an op that has none.
pub(super) fn none() -> op::NoParams {
    op::NoParams::default()
}

/// An op of `dst, a, b` by its kind.
pub(super) fn binary(run: &Run<'_>, kind: u32, o: [&Tensor; 3]) -> Result<()> {
    let p = op::KindParams {
        kind,
        ..Default::default()
    };
    run.launch(op::BINARY, &o.map(Some), p.as_bytes(), &[])
}

/// The values in another type, dense.
pub(super) fn cast(run: &Run<'_>, x: &Tensor, to: DType) -> Result<Tensor> {
    if x.dtype() == to && x.is_dense() {
        return Ok(x.clone());
    }
    let y = run.empty(*x.shape(), to)?;
    run.launch(op::CAST, &[Some(&y), Some(x)], none().as_bytes(), &[])?;
    Ok(y)
}

/// The numbers 0 to `n - 1`.
pub(super) fn count(run: &Run<'_>, n: u64) -> Result<Tensor> {
    let t = run.empty([n], DType::I32)?;
    let p = op::IotaParams {
        step: 1.0,
        ..Default::default()
    };
    run.launch(op::IOTA, &[Some(&t)], p.as_bytes(), &[])?;
    Ok(t)
}

/// One whole number, as `n` elements.
pub(super) fn whole(run: &Run<'_>, value: u64, n: u64) -> Result<Tensor> {
    let t = run.empty([1], DType::I32)?;
    run.stream().fill(t.region(), value, 4)?;
    Ok(t.broadcast_scalar(n))
}

/// Rows of a table by their numbers.
pub(super) fn gather(run: &Run<'_>, to: &Tensor, table: &Tensor, index: &Tensor) -> Result<()> {
    let p = op::IndexParams::default();
    let o = [Some(to), Some(table), Some(index)];
    run.launch(op::GATHER_ROWS, &o, p.as_bytes(), &[])
}

/// The elements of a list at places; of those that are none, 0.
pub(super) fn picked(run: &Run<'_>, list: &Tensor, places: &Tensor) -> Result<Tensor> {
    let out = run.empty([places.numel()], list.dtype())?;
    let column = |t: &Tensor| t.view([t.numel(), 1]);
    gather(run, &column(&out), &column(list), places)?;
    Ok(out)
}

/// Keys in their order, and values of i32 in the same.
pub(super) fn sorted(
    run: &Run<'_>,
    [keys, values]: [&Tensor; 2],
    flags: u32,
) -> Result<[Tensor; 2]> {
    let n = keys.numel();
    let out = [run.empty([n], keys.dtype())?, run.empty([n], DType::I32)?];
    let p = op::DimParams {
        flags,
        ..Default::default()
    };
    let o = [&out[0], &out[1], keys, values].map(Some);
    run.launch(op::SORT_PAIRS, &o, p.as_bytes(), &[])?;
    Ok(out)
}

/// The occurrences of each number below `n` among `keys`, and their running sums, i32 `[n]`.
pub(super) fn counted(run: &Run<'_>, keys: &Tensor, n: u64) -> Result<[Tensor; 2]> {
    let [counts, ends] = [run.empty([n], DType::I32)?, run.empty([n], DType::I32)?];
    let o = [Some(&counts), Some(keys)];
    run.launch(op::HISTOGRAM, &o, none().as_bytes(), &[])?;
    let o = [Some(&ends), Some(&counts)];
    run.launch(op::CUMSUM, &o, op::DimParams::default().as_bytes(), &[])?;
    Ok([counts, ends])
}

/// Adds up the elements of dim `axis` into a dim of one.
pub(super) fn sum(run: &Run<'_>, to: &Tensor, x: &Tensor, axis: usize) -> Result<()> {
    let p = op::ReduceParams {
        kind: op::reduce::SUM,
        axes: 1 << axis,
        ..Default::default()
    };
    run.launch(op::REDUCE, &[Some(to), Some(x)], p.as_bytes(), &[])
}

/// `outs[0] = f(ins)`, elementwise in f32.
pub(super) fn map<F>(run: &Run<'_>, out: &Tensor, ins: &[&Tensor], f: F) -> Result<()>
where
    F: for<'p> FnOnce(&[crossweave_program::Ex<'p>]) -> crossweave_program::Ex<'p>,
{
    let prog = Prog::new(1 + ins.len() as u32);
    let given: Vec<_> = (1..=ins.len() as u32).map(|i| prog.operand(i)).collect();
    let params = prog.finish(&[f(&given)]);
    let all: Vec<Option<&Tensor>> = std::iter::once(out)
        .chain(ins.iter().copied())
        .map(Some)
        .collect();
    run.launch(op::ELEMENTWISE_PROGRAM, &all, params.as_bytes(), &[])
}
