//! The optimizer step of one unit, on what this rank owns of it.

use crate::figures::Figures;
use crate::optim::{Flat, StepParams};
use crate::trainer::Trainer;
use crate::walk::UPDATE;
use crossweave_hal::{DType, Reduce};
use crossweave_mesh::Axis;
use crossweave_tensor::{Decompositions, Run, Tensor};

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

impl Trainer {
    pub(crate) fn update(&mut self, u: usize, f: &Figures) -> Tensors<()> {
        let clip = self.spec.clip > 0.0;
        if !clip {
            self.sum_squares(u, f)?;
        }
        self.update_rest(u, f)
    }

    /// The optimizer step of what of a unit is updated on the device.
    pub(crate) fn update_rest(&mut self, u: usize, f: &Figures) -> Tensors<()> {
        let clip = self.spec.clip > 0.0;
        let cache = self.cache(u, UPDATE);
        let run = Run::new(&self.compute, &Decompositions, &cache);
        let s = &self.state[u];
        let rest = s.rest();
        if let Some(grad) = s.grad(&rest) {
            let flat = Flat {
                value: s.value(&rest),
                copy: s.copy(&rest),
                grad,
            };
            let knobs = StepParams {
                lr: self.lr,
                step: self.update_number(),
                betas: self.betas,
                grad_scale: self.unscale(),
                factor: None,
                coef: clip.then(|| f.word(3)),
                skip: self.skip_word(f),
                sum: &|t| self.sum_figures(t),
            };
            s.optim.update(&run, &flat, &knobs)?;
        }
        self.keep_cache(u, UPDATE, cache);
        self.state[u].close_grad();
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
