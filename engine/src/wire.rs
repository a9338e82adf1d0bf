//! Gradients on a narrower wire: cast before they travel, summed in f32 by the collective, rounded once, widened behind it.
//!
//! What is accumulated and what the update reads stays f32 (`communication_data_type`).

use crate::trainer::Trainer;
use crate::walk::WIRE;
use crossweave_hal::abi::op;
use crossweave_hal::{Buffer, Collective, DType, Reduce, Tag};
use crossweave_mesh::Axis;
use crossweave_plan::Reduction;
use crossweave_tensor::{Decompositions, Run, Tensor};
use std::sync::Arc;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

/// One unit's gradient on its way.
struct Sent {
    unit: usize,
    /// Padded elements, in the wire's type.
    buffer: Arc<Buffer>,
    elements: u64,
    /// The element where this rank's slice starts, and its length.
    owned: (u64, u64),
}

impl Trainer {
    /// As `reduce_grads`, in `wire` instead of f32. The owned gradients are open.
    pub(crate) fn reduce_narrow(
        &mut self,
        units: &[u32],
        how: Reduction,
        wire: DType,
    ) -> Tensors<()> {
        let first = units.first().map_or(0, |u| *u as usize);
        let cache = self.cache(first, WIRE);
        let stream = self.reduce_stream();
        let run = Run::new(stream, &Decompositions, &cache);
        let none = op::NoParams::default();
        let cast = |to: &Tensor, from: &Tensor| {
            run.launch(op::CAST, &[Some(to), Some(from)], none.as_bytes(), &[])
        };
        let mut sent = vec![];
        for u in units {
            let s = &self.state[*u as usize];
            let Some(whole) = s.grad_buffer() else {
                continue;
            };
            let elements = whole.bytes() / 4;
            let bytes = wire.bytes(elements);
            let buffer = Arc::new(stream.device().alloc(stream, bytes, Tag::Comm)?);
            let owned = s.owned();
            let narrow = Tensor::dense(buffer.clone(), 0, [elements], wire);
            cast(
                &narrow,
                &Tensor::dense(whole.clone(), 0, [elements], DType::F32),
            )?;
            sent.push(Sent {
                unit: *u as usize,
                buffer,
                elements,
                owned: (owned.start, owned.end - owned.start),
            });
        }
        let members: Vec<_> = sent
            .iter()
            .map(|s| match how {
                Reduction::All => Collective::AllReduce {
                    buf: s.buffer.all(),
                    dtype: wire,
                    op: Reduce::Sum,
                },
                Reduction::Scatter => Collective::ReduceScatter {
                    send: s.buffer.all(),
                    recv: s
                        .buffer
                        .region(wire.bytes(s.owned.0), wire.bytes(s.owned.1)),
                    dtype: wire,
                    op: Reduce::Sum,
                },
            })
            .collect();
        self.groups
            .mesh()
            .borrow_mut()
            .group(&[Axis::Dp])?
            .group(stream, &members, "grad")?;
        for s in &sent {
            let state = &self.state[s.unit];
            let (wide, from, n) = match (how, state.owned_grad(), state.grad_buffer()) {
                (Reduction::Scatter, Some(mine), _) => (mine, s.owned.0, s.owned.1),
                (Reduction::All, _, Some(whole)) => {
                    let whole = Tensor::dense(whole.clone(), 0, [s.elements], DType::F32);
                    (whole, 0, s.elements)
                }
                _ => continue,
            };
            if n > 0 {
                let narrow = Tensor::dense(s.buffer.clone(), wire.bytes(from), [n], wire);
                cast(&wide, &narrow)?;
            }
        }
        stream.mark()?;
        self.keep_cache(first, WIRE, cache);
        Ok(())
    }
}
