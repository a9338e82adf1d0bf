//! Gradients added up in 16 bits (`data_types.grad_accum_dtype`): a micro-batch's gradient is made in f32, rounded, and added to the sum, which
//! is rounded too; half the memory of gradients between micro-batches, and the rounding of DeepSpeed's buffers. What is reduced is the sum
//! widened to f32.

use crate::base::trains;
use crate::error::{Error, Result};
use crate::state::UnitState;
use crate::trainer::{RankSpec, Trainer};
use crate::walk::{FOLD_FIRST, FOLD_MORE, WIDEN};
use crossweave_hal::abi::op;
use crossweave_hal::{DType, Tag};
use crossweave_plan::UnitFacts;
use crossweave_tensor::{Decompositions, Run, Tensor};
use std::sync::Arc;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

/// Refuses a type that cannot hold.
pub(crate) fn check(spec: &RankSpec) -> Result<()> {
    let (accum, compute) = (spec.precision.accum, spec.compute);
    if accum != DType::F32 && spec.canonical.is_some() {
        return Err(Error::Invalid(format!(
            "canonical sums go over f32 gradients of logical shards, and data_types.grad_accum_dtype asks for {}; set it to fp32",
            accum.name()
        )));
    }
    if accum == DType::F32 || accum == compute {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "gradients of {} parameters accumulated in {}: only f32 and the 16-bit type of the parameters themselves hold what a backward makes; set data_types.grad_accum_dtype to fp32 or to the compute type",
        compute.name(),
        accum.name()
    )))
}

/// Tells the planner: the sum is what lives between micro-batches, an f32 gradient beside it while a backward runs.
pub(crate) fn facts(units: &mut [UnitFacts], spec: &RankSpec) {
    if spec.precision.accum != DType::F32 {
        for u in units.iter_mut().filter(|u| u.grad_bytes > 0) {
            let trained = u.params - u.base;
            u.grad_bytes = spec.precision.accum.bytes(trained);
            u.workspace_bytes += 4 * trained;
        }
    }
}

fn cast(run: &Run<'_>, to: &Tensor, from: &Tensor) -> Tensors<()> {
    let none = op::NoParams::default();
    run.launch(op::CAST, &[Some(to), Some(from)], none.as_bytes(), &[])
}

impl UnitState {
    /// The whole gradient and the sum so far, flat.
    fn flat(&self, accum: DType) -> (Option<Tensor>, Option<Tensor>) {
        let n = self.length();
        let dense = |b: &Arc<_>, dtype| Tensor::dense(Arc::clone(b), 0, [n], dtype);
        (
            self.grad_buffer().map(|b| dense(b, DType::F32)),
            self.sum.as_ref().map(|b| dense(b, accum)),
        )
    }

    /// A micro-batch's gradient is whole: it goes into the sum, and its memory back.
    fn fold(&mut self, run: &Run<'_>, accum: DType) -> Tensors<()> {
        self.complete_grad(run.stream())?;
        let (Some(wide), sum) = self.flat(accum) else {
            return Ok(());
        };
        let narrow = run.empty_for([wide.numel()], accum, Tag::Grad)?;
        cast(run, &narrow, &wide)?;
        match sum {
            Some(sum) => {
                let p = op::AxpbyParams {
                    alpha: 1.0,
                    beta: 1.0,
                    ..Default::default()
                };
                run.launch(op::AXPBY, &[Some(&sum), Some(&narrow)], p.as_bytes(), &[])?;
            }
            None => self.sum = Some(narrow.buffer().clone()),
        }
        self.close_whole_grad();
        Ok(())
    }

    /// The sum becomes the gradient that is reduced.
    fn widen(&mut self, run: &Run<'_>, accum: DType) -> Tensors<()> {
        if self.sum.is_none() {
            return Ok(());
        }
        self.open_grad(run.stream())?;
        if let (Some(wide), Some(sum)) = self.flat(accum) {
            cast(run, &wide, &sum)?;
        }
        self.written.iter().for_each(|w| w.set(true));
        self.sum = None;
        Ok(())
    }
}

impl Trainer {
    /// Behind the backward of unit `u`: its gradient of this micro-batch is whole.
    pub(crate) fn fold_grad(&mut self, u: usize) -> Tensors<()> {
        let accum = self.spec.precision.accum;
        if accum == DType::F32 || !trains(&self.state[u]) {
            return Ok(());
        }
        // The first micro-batch launches other kernels than those behind it.
        let phase = match self.state[u].sum {
            None => FOLD_FIRST,
            Some(_) => FOLD_MORE,
        };
        let cache = self.cache(u, phase);
        let done = self.state[u].fold(&Run::new(&self.compute, &Decompositions, &cache), accum);
        self.keep_cache(u, phase, cache);
        done
    }

    /// Before the reduction of unit `u`.
    pub(crate) fn widen_grad(&mut self, u: usize) -> Tensors<()> {
        let accum = self.spec.precision.accum;
        if accum == DType::F32 {
            return Ok(());
        }
        let cache = self.cache(u, WIDEN);
        let done = self.state[u].widen(&Run::new(&self.compute, &Decompositions, &cache), accum);
        self.keep_cache(u, WIDEN, cache);
        done
    }
}
