//! Sums over the ranks: gradients of buckets, the squares of the global norm, the figures of a step.

use crate::figures::Figures;
use crate::pipeline::everyone;
use crate::trainer::Trainer;
use crate::walk::{NORM, SQUARES, TOTAL};
use crossweave_hal::abi::op;
use crossweave_hal::{Buffer, Collective, DType, Reduce, Stream};
use crossweave_mesh::Axis;
use crossweave_plan::Reduction;
use crossweave_tensor::{Decompositions, Run, Tensor};
use std::sync::Arc;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

impl Trainer {
    /// The stream reductions run on.
    pub(crate) fn reduce_stream(&self) -> &Stream {
        if self.spec.overlap {
            &self.reduce
        } else {
            &self.compute
        }
    }

    /// Sums the gradients of a bucket over the ranks: whole everywhere, or each rank its slice. Sums run in rank order in f32 either
    /// way, so the bits do not depend on which.
    pub(crate) fn reduce_grads(&mut self, units: &[u32], how: Reduction) -> Tensors<()> {
        if self.spec.canonical.is_some() {
            return self.reduce_canonical(units, how);
        }
        for u in units {
            self.widen_grad(*u as usize)?;
            self.state[*u as usize].complete_grad(&self.compute)?;
        }
        let stream = if self.spec.overlap {
            &self.reduce
        } else {
            &self.compute
        };
        for u in units {
            self.state[*u as usize].open_owned_grad(stream)?;
        }
        let wire = self.spec.precision.wire;
        if self.spec.world > 1 && wire != DType::F32 {
            self.reduce_narrow(units, how, wire)?;
        } else if self.spec.world > 1 {
            let pairs: Vec<(&Arc<Buffer>, Option<Tensor>)> = units
                .iter()
                .map(|u| &self.state[*u as usize])
                .filter_map(|s| Some((s.grad_buffer()?, s.owned_grad())))
                .collect();
            let members: Vec<_> = pairs
                .iter()
                .filter_map(|(whole, mine)| match how {
                    Reduction::All => Some(Collective::AllReduce {
                        buf: whole.all(),
                        dtype: DType::F32,
                        op: Reduce::Sum,
                    }),
                    Reduction::Scatter => Some(Collective::ReduceScatter {
                        send: whole.all(),
                        recv: mine.as_ref()?.region(),
                        dtype: DType::F32,
                        op: Reduce::Sum,
                    }),
                })
                .collect();
            let mut mesh = self.groups.mesh().borrow_mut();
            mesh.group(&[Axis::Dp])?.group(stream, &members, "grad")?;
            // An update, or a gradient that takes the freed memory, waits for this reduction and not for the next.
            stream.mark()?;
        }
        for u in units {
            self.state[*u as usize].close_whole_grad();
        }
        Ok(())
    }

    /// Adds the squares of this rank's slice of a unit's gradient to the unit's word.
    pub(crate) fn sum_squares(&mut self, u: usize, f: &Figures) -> Tensors<()> {
        if self.spec.canonical.is_some() {
            return self.sum_logical_squares(u, f);
        }
        let cache = self.cache(u, SQUARES);
        let run = Run::new(&self.compute, &Decompositions, &cache);
        let parts: Vec<Tensor> = self.state[u]
            .normed
            .iter()
            .filter_map(|r| self.state[u].grad(r))
            .collect();
        if !parts.is_empty() {
            let word = f.of_unit(u);
            let operands: Vec<_> = std::iter::once(&word).chain(&parts).map(Some).collect();
            let p = op::NoParams::default();
            run.launch(op::MULTI_SUMSQ, &operands, p.as_bytes(), &[])?;
        }
        self.keep_cache(u, SQUARES, cache);
        Ok(())
    }

    /// The sum of squares over units, in their order, whatever order they were reduced in; and over ranks. Pipeline stages first tell each
    /// other the words of their units, zero on all but one, so that the sum has the bits of one stage.
    pub(crate) fn total_squares(&mut self, f: &Figures) -> Tensors<()> {
        if self.spec.canonical.is_some() {
            return self.sum_words(f, f.slices(), 1);
        }
        let each = f.all_units();
        if self.pipe.is_some() {
            self.sum_over(&each, &[Axis::Pp])?;
        }
        let cache = self.cache(0, TOTAL);
        let run = Run::new(&self.compute, &Decompositions, &cache);
        let p = op::ReduceParams {
            kind: op::reduce::SUM,
            axes: 1,
            ..Default::default()
        };
        let total = f.word(1);
        run.launch(op::REDUCE, &[Some(&total), Some(&each)], p.as_bytes(), &[])?;
        self.keep_cache(0, TOTAL, cache);
        match self.spec.world {
            1 => Ok(()),
            _ => self.sum_over(&total, &[Axis::Dp]),
        }
    }

    /// One small sum over the ranks of these axes, in place.
    fn sum_over(&self, t: &Tensor, axes: &[Axis]) -> Tensors<()> {
        let mut mesh = self.groups.mesh().borrow_mut();
        mesh.group(axes)?.all_reduce(
            self.reduce_stream(),
            t.region(),
            DType::F32,
            Reduce::Sum,
            "scalar",
        )?;
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

    /// Sends the step's figures to the host, which reads them when it likes.
    pub(crate) fn publish_figures(&mut self, f: &Figures) -> Tensors<crossweave_hal::Event> {
        if self.spec.clip <= 0.0 {
            self.total_squares(f)?;
            let cache = self.cache(0, NORM);
            let run = Run::new(&self.compute, &Decompositions, &cache);
            norm(&run, f, None, self.unscale())?;
            self.keep_cache(0, NORM, cache);
        }
        match self.spec.canonical {
            Some(_) => self.sum_words(f, f.losses(), 0)?,
            None if self.is_distributed() => self.sum_over(&f.word(0), everyone(&self.spec))?,
            None => {}
        }
        let stream = self.reduce_stream();
        stream.copy(f.host.buffer().all(), f.words.region(0, Figures::BYTES))?;
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
