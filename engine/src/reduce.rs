//! Sums over the ranks: gradients of buckets, the squares of the global norm, the figures of a step.

use crate::trainer::{Figures, Trainer};
use crate::walk::{NORM, SQUARES};
use crossweave_hal::abi::op;
use crossweave_hal::{Buffer, Collective, DType, Reduce, Stream};
use crossweave_mesh::Axis;
use crossweave_tensor::{Decompositions, Run};
use std::ops::Range;
use std::sync::Arc;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

impl Trainer {
    pub(crate) fn reduce_grads(&mut self, units: &[u32]) -> Tensors<()> {
        for u in units {
            self.state[*u as usize].complete_grad(&self.compute)?;
        }
        if self.spec.world == 1 {
            return Ok(());
        }
        let stream = if self.spec.overlap {
            &self.reduce
        } else {
            &self.compute
        };
        let buffers: Vec<&Arc<Buffer>> = units
            .iter()
            .filter_map(|u| self.state[*u as usize].grad_buffer())
            .collect();
        let members: Vec<_> = buffers
            .iter()
            .map(|b| Collective::AllReduce {
                buf: b.all(),
                dtype: DType::F32,
                op: Reduce::Sum,
            })
            .collect();
        let mut mesh = self.groups.mesh().borrow_mut();
        Ok(mesh.group(&[Axis::Dp])?.group(stream, &members, "grad")?)
    }

    pub(crate) fn sum_squares(&mut self, units: Range<usize>, f: &Figures) -> Tensors<()> {
        let cache = self.cache(units.start, SQUARES);
        let run = Run::new(&self.compute, &Decompositions, &cache);
        for u in units.clone() {
            if let Some(g) = self.state[u].grad(&(0..self.state[u].numel)) {
                run.launch(
                    op::MULTI_SUMSQ,
                    &[Some(&f.word(1)), Some(&g)],
                    op::NoParams::default().as_bytes(),
                    &[],
                )?;
            }
        }
        self.keep_cache(units.start, SQUARES, cache);
        Ok(())
    }

    /// Norm and coefficient from the sum of squares, on the device: `coef = min(1, clip / (norm + 1e-6))` (03 §4.6).
    pub(crate) fn clip(&mut self, f: &Figures) -> Tensors<()> {
        let cache = self.cache(0, NORM);
        norm(
            &Run::new(&self.compute, &Decompositions, &cache),
            f,
            Some(self.spec.clip),
            self.unscale(),
        )?;
        self.keep_cache(0, NORM, cache);
        Ok(())
    }

    pub(crate) fn publish_figures(&mut self, f: &Figures) -> Tensors<crossweave_hal::Event> {
        if self.spec.clip <= 0.0 {
            let cache = self.cache(0, NORM);
            let run = Run::new(&self.compute, &Decompositions, &cache);
            norm(&run, f, None, self.unscale())?;
            self.keep_cache(0, NORM, cache);
        }
        let stream: &Stream = &self.reduce;
        if self.spec.world > 1 {
            let mut mesh = self.groups.mesh().borrow_mut();
            mesh.group(&[Axis::Dp])?.all_reduce(
                stream,
                f.words.region(0, 4),
                DType::F32,
                Reduce::Sum,
                "scalar",
            )?;
        }
        stream.copy(f.host.buffer().all(), f.words.all())?;
        Ok(stream.record()?)
    }
}

/// `norm = sqrt(sum of squares) * unscale`, and with a limit the clipping coefficient; what undoes the loss scale goes to the update
/// by itself, and both together are DeepSpeed's fused factor (03 §4.6).
fn norm(run: &Run<'_>, f: &Figures, limit: Option<f64>, unscale: f64) -> Tensors<()> {
    use op::inst;
    let mut p = op::ProgramParams {
        writes: 0b110,
        ..Default::default()
    };
    let i = |op, dst, a, b, imm| op::ProgramInst {
        op,
        dst,
        a,
        b,
        imm,
        ..Default::default()
    };
    // Registers: 0 sum of squares, 1 norm, 2 coefficient, 3.. temporaries.
    let program = [
        i(inst::SQRT, 1, 0, 0, 0.0),
        i(inst::SCALAR, 3, 0, 0, 0.0),
        i(inst::MUL, 1, 1, 3, 0.0),
        i(inst::CONST, 3, 0, 0, 1e-6),
        i(inst::ADD, 3, 1, 3, 0.0),
        i(inst::CONST, 4, 0, 0, limit.map_or(f32::MAX, |l| l as f32)),
        i(inst::DIV, 3, 4, 3, 0.0),
        i(inst::CONST, 4, 0, 0, 1.0),
        i(inst::MIN, 2, 3, 4, 0.0),
    ];
    p.n_insts = program.len() as u32;
    p.insts[..program.len()].copy_from_slice(&program);
    run.launch(
        op::ELEMENTWISE_PROGRAM,
        &[Some(&f.word(1)), Some(&f.word(2)), Some(&f.word(3))],
        p.as_bytes(),
        op::ProgramDyn::new(&[unscale as f32]).as_bytes(),
    )
}
