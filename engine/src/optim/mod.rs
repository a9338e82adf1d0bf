//! Which optimizer updates which parameter of a model, and what is kept of it on the device as callers see it: f32, whatever form it
//! is in. What an update is, is written by the crate `optim`.

#[cfg(test)]
mod tests;

use crossweave_hal::{DType, Stream};
use crossweave_machine::{Machine, once};
use crossweave_plan::Lane;
use crossweave_program::Place;
use crossweave_tensor::{Result, Run, Tensor, shape_error};
use crossweave_zero::optim::update::{StateSlice, decode, encode};
use crossweave_zero::optim::{BLOCK_8BIT, StateName};
use std::ops::Range;

/// One part of a state of one parameter.
#[derive(Clone)]
pub(crate) struct StateView {
    /// Which state; none is the value.
    pub name: Option<StateName>,
    /// Elements of the state, row-major.
    pub range: Range<u64>,
    /// f32, or codes of 8 bits where there are scales.
    values: Tensor,
    scales: Option<Tensor>,
}

impl StateView {
    /// The view of a parameter's value.
    pub fn value(range: Range<u64>, values: Tensor) -> StateView {
        StateView {
            name: None,
            range,
            values,
            scales: None,
        }
    }
    /// What is kept of a state, in the memory of a program.
    pub fn of(s: &StateSlice, machine: &Machine) -> Result<StateView> {
        let tensor = |place: Place, n, dtype| match machine.tensor(place, n, dtype) {
            Some(t) => Ok(t),
            None => shape_error(format!("no memory for {}", s.name.name())),
        };
        let dtype = match s.scales {
            Some(_) => DType::U8,
            None => DType::F32,
        };
        let blocks = s.len.div_ceil(BLOCK_8BIT);
        let scales = s.scales.map(|p| tensor(p, blocks, DType::F32));
        Ok(StateView {
            name: Some(s.name),
            range: s.range(),
            values: tensor(s.values, s.len, dtype)?,
            scales: scales.transpose()?,
        })
    }
    /// The memory itself, where it is f32.
    pub fn direct(&self) -> Option<&Tensor> {
        self.scales.is_none().then_some(&self.values)
    }
    /// Codes and scales of a state in 8 bits.
    fn blocks(&self) -> Option<(&Tensor, &Tensor, StateName)> {
        Some((&self.values, self.scales.as_ref()?, self.name?))
    }
    /// The values as f32 `[len]`: the memory itself, or a copy where it is kept in 8 bits.
    pub fn read(&self, run: &Run<'_>) -> Result<Tensor> {
        let Some((codes, scales, name)) = self.blocks() else {
            return Ok(self.values.clone());
        };
        let n = codes.numel();
        let out = run.empty([n], DType::F32)?;
        translate(
            run.stream(),
            [codes, scales, &out],
            |on, [codes, scales, out]| {
                decode(on, out, (codes, scales), name);
            },
        )?;
        Ok(out)
    }
    /// Takes over values put into what [`StateView::read`] gave.
    pub fn keep(&self, run: &Run<'_>, landed: &Tensor) -> Result<()> {
        let Some((codes, scales, name)) = self.blocks() else {
            return Ok(());
        };
        translate(
            run.stream(),
            [codes, scales, landed],
            |on, [codes, scales, values]| {
                encode(on, values, (codes, scales), name);
            },
        )
    }
}

/// Runs instructions over flat tensors once.
fn translate(
    stream: &Stream,
    tensors: [&Tensor; 3],
    write: impl FnOnce(&crossweave_program::On<'_>, [&crossweave_program::View<'_>; 3]),
) -> Result<()> {
    once(stream, &tensors, |code| {
        let view = |i: usize| code.arg(i, [tensors[i].numel()], tensors[i].dtype());
        let (a, b, c) = (view(0), view(1), view(2));
        write(&code.on(Lane::Compute), [&a, &b, &c]);
    })
}
