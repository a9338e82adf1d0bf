//! The optimizer step of one unit, on what this rank owns of it.

use crate::state::StateKind;
use crate::trainer::{Figures, Trainer};
use crate::walk::UPDATE;
use crossweave_hal::abi::op;
use crossweave_tensor::{Decompositions, Run, Tensor};

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

impl Trainer {
    pub(crate) fn update(&mut self, u: usize, f: &Figures) -> Tensors<()> {
        let clip = self.spec.clip > 0.0;
        if !clip {
            self.sum_squares(u, f)?;
        }
        let cache = self.cache(u, UPDATE);
        let run = Run::new(&self.compute, &Decompositions, &cache);
        let (a, s) = (&self.spec.adamw, &self.state[u]);
        let coef = clip.then(|| f.word(3));
        let skip = self.skip_word(f);
        let dynamic = op::AdamwDyn {
            lr: self.lr,
            grad_scale: self.unscale(),
            step: self.update_number(),
            ..Default::default()
        };
        for decays in [true, false] {
            let mut tensors = vec![];
            for (_, r) in s.runs.iter().filter(|(d, _)| *d == decays) {
                let (Some(g), value) = (s.grad(r), s.state(StateKind::Value, r)) else {
                    continue;
                };
                let moments = [StateKind::Moment1, StateKind::Moment2].map(|k| s.state(k, r));
                match s.copy(r) {
                    Some(copy) => {
                        tensors.extend([copy, g]);
                        tensors.extend(moments);
                        tensors.push(value);
                    }
                    None => {
                        tensors.extend([value, g]);
                        tensors.extend(moments);
                    }
                }
            }
            if tensors.is_empty() {
                continue;
            }
            let p = op::AdamwParams {
                flags: if s.has_copy() { op::FLAG_MASTER } else { 0 },
                mode: a.l2 as u32,
                beta1: a.betas[0],
                beta2: a.betas[1],
                eps: a.eps,
                weight_decay: if decays { a.weight_decay } else { 0.0 },
                ..Default::default()
            };
            let operands: Vec<Option<&Tensor>> = [coef.as_ref(), skip.as_ref()]
                .into_iter()
                .chain(tensors.iter().map(Some))
                .collect();
            run.launch(op::ADAMW, &operands, p.as_bytes(), dynamic.as_bytes())?;
        }
        self.keep_cache(u, UPDATE, cache);
        self.state[u].close_grad();
        self.state[u].changed();
        Ok(())
    }
}
