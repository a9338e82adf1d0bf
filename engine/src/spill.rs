//! Kept inputs in host memory between their forward and their recompute.

use crate::trainer::{Act, Spilled, Trainer};
use crossweave_hal::{HostBuffer, Tag};
use crossweave_tensor::Tensor;
use std::sync::Arc;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

impl Trainer {
    /// `Spill`: copies kept inputs off the device; their memory is free once the copy is over.
    pub(crate) fn spill(&mut self, u: usize, m: usize) -> Tensors<()> {
        let Some(Act::Inputs(ins)) = self.acts[u][m].take() else {
            return crossweave_tensor::shape_error("nothing is kept that could be spilled");
        };
        let Some(out) = &self.spill_out else {
            return crossweave_tensor::shape_error("the plan spills and nothing is offloaded");
        };
        let mut away = Vec::with_capacity(ins.len());
        for t in ins {
            if t.extent() != t.dtype().bytes(t.numel()) || t.numel() == 0 {
                away.push(Spilled::Here(t));
                continue;
            }
            let fits = |b: &HostBuffer| b.buffer().bytes() == t.extent();
            let memory = match self.spare.iter().position(fits) {
                Some(at) => self.spare.swap_remove(at),
                None => self.device().alloc_host(t.extent(), Tag::Activation)?,
            };
            out.copy(memory.buffer().all(), t.region())?;
            away.push(Spilled::Away(memory, *t.shape(), t.dtype()));
        }
        self.acts[u][m] = Some(Act::Away(away));
        Ok(())
    }

    /// `Fetch`: brings them back.
    pub(crate) fn fetch(&mut self, u: usize, m: usize) -> Tensors<()> {
        let Some(Act::Away(away)) = self.acts[u][m].take() else {
            return crossweave_tensor::shape_error("nothing was spilled that could be fetched");
        };
        let Some(stream) = &self.fetch_in else {
            return crossweave_tensor::shape_error("the plan fetches and nothing is offloaded");
        };
        let mut ins = Vec::with_capacity(away.len());
        for s in away {
            ins.push(match s {
                Spilled::Here(t) => t,
                Spilled::Away(memory, shape, dtype) => {
                    let bytes = memory.buffer().bytes();
                    let b = stream.device().alloc(stream, bytes, Tag::Activation)?;
                    stream.copy(b.all(), memory.buffer().all())?;
                    self.spare.push(memory);
                    Tensor::dense(Arc::new(b), 0, shape, dtype)
                }
            });
        }
        self.acts[u][m] = Some(Act::Inputs(ins));
        Ok(())
    }
}
