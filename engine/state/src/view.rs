//! A run of a state in device memory as callers see it: f32, whatever form it is kept in.

use crossweave_hal::{DType, Stream, Tag};
use crossweave_machine::{Machine, once};
use crossweave_plan::Lane;
use crossweave_program::{Codec, Place, StateKind, StateRun, Translate};
use crossweave_tensor::{Result, Run, Tensor, shape_error};
use std::ops::Range;

/// One part of a state of one parameter.
#[derive(Clone)]
pub struct StateView {
    /// Which state.
    pub kind: StateKind,
    /// Elements of the state, row-major.
    pub range: Range<u64>,
    /// f32, or codes where there are scales.
    values: Tensor,
    coded: Option<(Tensor, Codec)>,
}

impl StateView {
    /// The view of a parameter's value.
    pub(crate) fn value(range: Range<u64>, values: Tensor) -> StateView {
        StateView {
            kind: StateKind::Value,
            range,
            values,
            coded: None,
        }
    }
    /// What is kept of a state, in the memory of a program.
    ///
    /// # Errors
    /// Memory that is not there.
    pub fn of(s: &StateRun, machine: &Machine) -> Result<StateView> {
        let tensor = |place: Place, n, dtype| match machine.tensor(place, n, dtype) {
            Some(t) => Ok(t),
            None => shape_error(format!("no memory for {}", s.kind.name())),
        };
        let len = s.range.end - s.range.start;
        let dtype = match s.coded {
            Some(_) => DType::U8,
            None => DType::F32,
        };
        let scales = |(place, codec): (Place, Codec)| -> Result<_> {
            Ok((tensor(place, len.div_ceil(codec.block), DType::F32)?, codec))
        };
        Ok(StateView {
            kind: s.kind,
            range: s.range.clone(),
            values: tensor(s.values, len, dtype)?,
            coded: s.coded.map(scales).transpose()?,
        })
    }
    /// The memory itself, where it is f32.
    pub(crate) fn direct(&self) -> Option<&Tensor> {
        self.coded.is_none().then_some(&self.values)
    }
    /// The values as f32 `[len]`: the memory itself, or a copy where it is kept as codes.
    ///
    /// # Errors
    /// The device.
    pub fn read(&self, run: &Run<'_>) -> Result<Tensor> {
        let Some((scales, codec)) = &self.coded else {
            return Ok(self.values.clone());
        };
        let out = run.empty_for([self.values.numel()], DType::F32, Tag::Staging)?;
        translate(run.stream(), [&self.values, scales, &out], codec.decode)?;
        Ok(out)
    }
    /// Takes over values put into what [`StateView::read`] gave.
    ///
    /// # Errors
    /// The device.
    pub fn keep(&self, run: &Run<'_>, landed: &Tensor) -> Result<()> {
        match &self.coded {
            Some((scales, codec)) => {
                translate(run.stream(), [&self.values, scales, landed], codec.encode)
            }
            None => Ok(()),
        }
    }
}

/// Runs instructions over flat tensors once.
fn translate(stream: &Stream, tensors: [&Tensor; 3], write: Translate) -> Result<()> {
    once(stream, &tensors, |code| {
        let view = |i: usize| code.arg(i, [tensors[i].numel()], tensors[i].dtype());
        let (a, b, c) = (view(0), view(1), view(2));
        write(&code.on(Lane::Compute), [&a, &b, &c]);
    })
}
