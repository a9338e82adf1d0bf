//! The optimizer step of one unit, on what this rank owns of it.

use crate::optim::{Flat, StepParams};
use crate::trainer::Trainer;
use crate::walk::UPDATE;
use crossweave_hal::{DType, Reduce};
use crossweave_mesh::Axis;
use crossweave_tensor::{Decompositions, Run, Tensor};
use crossweave_zero::lower::Words;
use std::ops::Range;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

impl Trainer {
    /// Local elements of the reduced gradient of unit `u`, while it is there.
    pub(crate) fn grad(&self, u: usize, r: &Range<u64>) -> Option<Tensor> {
        let mut place = self.lowered.own[u]?;
        place.at += 4 * r.start;
        self.machine.tensor(place, r.end - r.start, DType::F32)
    }

    /// A word of the step's figures.
    pub(crate) fn word(&self, i: u64, dtype: DType) -> Option<Tensor> {
        let mut place = crossweave_program::Place::from(self.lowered.memory.words);
        place.at += 4 * i;
        self.machine.tensor(place, 1, dtype)
    }

    /// The optimizer step of what of a unit is updated on the device.
    pub(crate) fn update(&mut self, u: usize) -> Tensors<()> {
        let clip = self.spec.clip > 0.0;
        let cache = self.cache(u, UPDATE);
        let run = Run::new(&self.compute, &Decompositions, &cache);
        let s = &self.state[u];
        let rest = s.rest();
        if let Some(grad) = self.grad(u, &rest) {
            let flat = Flat {
                value: s.value(&rest),
                copy: s.copy(&rest),
                grad,
            };
            let coef = self.word(Words::COEFFICIENT, DType::F32);
            let knobs = StepParams {
                lr: self.lr,
                step: self.update_number(),
                betas: self.betas,
                grad_scale: self.unscale(),
                factor: None,
                coef: coef.filter(|_| clip),
                skip: self.skip_word(),
                sum: &|t| self.sum_figures(t),
            };
            s.optim.update(&run, &flat, &knobs)?;
        }
        self.keep_cache(u, UPDATE, cache);
        self.state[u].changed();
        Ok(())
    }

    /// Figures of whole parameters, from each rank's part of them.
    fn sum_figures(&self, t: &Tensor) -> Tensors<()> {
        if self.spec.world > 1 {
            let mut mesh = self.groups.mesh().borrow_mut();
            mesh.group(&[Axis::Dp])?.all_reduce(
                self.reduce_stream(),
                t.region(),
                DType::F32,
                Reduce::Sum,
                "optimizer",
            )?;
        }
        Ok(())
    }
}
