//! What blocks hand on: the values of each micro-batch between blocks, their gradients, and what forwards have kept for backwards. These
//! are shared handles and no declared memory of the program.

use crate::groups::Answers;
use crossweave_hal::{DType, HostBuffer, Stream, Tag};
use crossweave_tensor::{Owed, Result, Shape, Tape, Tensor, Var, shape_error};
use std::sync::Arc;

/// Activations of one unit and micro-batch, between forward and backward.
pub(crate) enum Act {
    /// The tape with its inputs and outputs.
    Saved(Tape, Vec<Var>, Vec<Var>),
    /// The operands of its weights' gradients, behind the first part of a backward in two.
    Owed(Owed),
    /// Only the inputs; where the first is this rank's part of it, the shape of the whole.
    Inputs(Vec<Tensor>, Option<Shape>),
    /// The same in host memory.
    Away(Vec<Spilled>, Option<Shape>),
}

/// One kept input while it is away.
pub(crate) enum Spilled {
    /// In pinned memory.
    Away(HostBuffer, Shape, DType),
    /// Not dense, hence a view of something that lives anyway.
    Here(Tensor),
}

/// The values of a step.
pub(crate) struct Values {
    /// By unit and micro-batch.
    acts: Vec<Vec<Option<Act>>>,
    /// The numbers that each forward was given of its exchanges, by which it is run again.
    answers: Vec<Vec<Answers>>,
    /// What flows into the next block, by micro-batch.
    pub flow: Vec<Vec<Tensor>>,
    /// The gradient of what flowed out of the block before.
    pub grads: Vec<Option<Vec<Option<Tensor>>>>,
    /// Memory for kept inputs that is free.
    spare: Vec<HostBuffer>,
}

impl Values {
    pub fn new(units: usize, micro_batches: usize) -> Values {
        let none = || (0..micro_batches).map(|_| None).collect();
        Values {
            acts: (0..units).map(|_| none()).collect(),
            answers: vec![vec![vec![]; micro_batches]; units],
            flow: vec![vec![]; micro_batches],
            grads: (0..micro_batches).map(|_| None).collect(),
            spare: vec![],
        }
    }

    /// What a forward has kept.
    pub fn keep(&mut self, u: usize, m: usize, act: Option<Act>) {
        self.acts[u][m] = act;
    }

    /// Keeps the numbers that a forward was given.
    pub fn keep_answers(&mut self, u: usize, m: usize, answers: Answers) {
        self.answers[u][m] = answers;
    }

    /// The numbers of the forward of a unit, for the one that runs again.
    pub fn answers(&mut self, u: usize, m: usize) -> Answers {
        std::mem::take(&mut self.answers[u][m])
    }

    /// The tape of a unit, with its inputs and outputs.
    pub fn saved(&mut self, u: usize, m: usize) -> Result<(Tape, Vec<Var>, Vec<Var>)> {
        match self.acts[u][m].take() {
            Some(Act::Saved(tape, ins, outs)) => Ok((tape, ins, outs)),
            _ => shape_error("backward without saved activations"),
        }
    }

    /// What the first part of a backward has left.
    pub fn owed(&mut self, u: usize, m: usize) -> Result<Owed> {
        match self.acts[u][m].take() {
            Some(Act::Owed(owed)) => Ok(owed),
            _ => shape_error("gradients of weights without the first part of their backward"),
        }
    }

    /// The kept inputs of a unit, and where the first is a part the shape of the whole.
    pub fn inputs(&mut self, u: usize, m: usize) -> Result<(Vec<Tensor>, Option<Shape>)> {
        match self.acts[u][m].take() {
            Some(Act::Inputs(ins, whole)) => Ok((ins, whole)),
            _ => shape_error("no inputs are kept that a forward could be run of again"),
        }
    }

    /// The end of a step: nothing flows.
    pub fn end(&mut self) {
        self.flow.iter_mut().for_each(Vec::clear);
        self.grads.iter_mut().for_each(|g| *g = None);
    }

    /// A step has failed: nothing is kept of it.
    pub fn forget(&mut self) {
        self.end();
        self.acts.iter_mut().flatten().for_each(|a| *a = None);
    }

    /// `Spill`: copies kept inputs off the device; their memory is free once the copy is over.
    pub fn spill(&mut self, u: usize, m: usize, out: &Stream) -> Result<()> {
        let (ins, whole) = self.inputs(u, m)?;
        let mut away = Vec::with_capacity(ins.len());
        for t in ins {
            if t.extent() != t.dtype().bytes(t.numel()) || t.numel() == 0 {
                away.push(Spilled::Here(t));
                continue;
            }
            let fits = |b: &HostBuffer| b.buffer().bytes() == t.extent();
            let memory = match self.spare.iter().position(fits) {
                Some(at) => self.spare.swap_remove(at),
                None => out.device().alloc_host(t.extent(), Tag::Activation)?,
            };
            out.copy(memory.buffer().all(), t.region())?;
            away.push(Spilled::Away(memory, *t.shape(), t.dtype()));
        }
        self.keep(u, m, Some(Act::Away(away, whole)));
        Ok(())
    }

    /// `Fetch`: brings them back.
    pub fn fetch(&mut self, u: usize, m: usize, stream: &Stream) -> Result<()> {
        let Some(Act::Away(away, whole)) = self.acts[u][m].take() else {
            return shape_error("nothing was spilled that could be fetched");
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
        self.keep(u, m, Some(Act::Inputs(ins, whole)));
        Ok(())
    }
}
