//! Reading and sampling over the stages of a pipeline: rank 0 says what it wants, and the stage that has it answers.
//!
//! Rank 0 leads as it does where state is sharded (`whole`): every other rank waits in [`Trainer::serve_reads`]. What is asked for is told to
//! all; the data-parallel ranks of the stage that runs the unit put their slices together, and the first of them sends the whole to rank 0.
//! A forward goes from stage to stage along the first data-parallel ranks, and what it made back to rank 0. None of this is the steady state:
//! the host waits for each message, whose shape comes before it.

use crate::error::{Error, Result};
use crate::gather::OUTSIDE;
use crate::state::StateKind;
use crate::trainer::Trainer;
use crossweave_hal::{DType, Tag};
use crossweave_planner::everyone;
use crossweave_tensor::{Batch, Shape, Tensor};
use crossweave_zero::Residency;
use std::sync::Arc;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

/// Announced instead of a unit: a forward over all stages follows.
const FORWARD: i32 = -3;
/// Most values that flow from one unit to the next where they are told by shape.
const VALUES: usize = 4;
/// Words that tell one of them: type, dims, and room for six dims.
const EACH: usize = 8;

/// Bits of the kind of state in a word that also names a parameter.
const KIND_BITS: u32 = 8;

impl Trainer {
    /// A parameter's state of whichever stage runs its unit; rank 0 calls this while all others serve.
    pub(crate) fn read_over_stages(&self, name: &str, kind: StateKind) -> Result<Vec<f32>> {
        if self.spec.job_rank() != 0 {
            return Err(Error::Invalid(format!(
                "rank {} reads {name}, and pipeline stages have it: rank 0 reads while the others serve",
                self.spec.job_rank()
            )));
        }
        let found = self.pipe.as_ref().and_then(|p| p.find(name));
        let Some((u, i)) = found else {
            return Err(Error::Invalid(format!("the model has no parameter {name}")));
        };
        self.announce([u as i32, kind as i32 | (i as i32) << KIND_BITS])
            .map_err(|e| self.error(name, e))?;
        let values = self.answer(u, i, kind)?;
        Ok(values.unwrap_or_default())
    }

    /// What every rank but the first does while that one reads and samples.
    pub(crate) fn serve_stages(&mut self) -> Result<()> {
        loop {
            let [unit, word] = self.told()?;
            if unit == FORWARD {
                let [seq, _] = self.told()?;
                self.forward_told(None, word as u64, seq as u64)
                    .map_err(|e| self.error("serving a forward", e))?;
                continue;
            }
            let wanted = word & ((1 << KIND_BITS) - 1);
            let kind = StateKind::ALL.into_iter().find(|k| *k as i32 == wanted);
            let (Ok(u), Some(kind)) = (usize::try_from(unit), kind) else {
                return Ok(());
            };
            self.answer(u, (word >> KIND_BITS) as usize, kind)?;
        }
    }

    /// What rank 0 says, on every other.
    fn told(&self) -> Result<[i32; 2]> {
        let said = self.announce([0, 0]);
        said.map_err(|e| self.error("serving reads", e))
    }

    /// A parameter's state on rank 0, and nothing elsewhere; every rank calls this.
    fn answer(&self, u: usize, i: usize, kind: StateKind) -> Result<Option<Vec<f32>>> {
        let at = |e| self.error("reading a state of another stage", e);
        let pipe = self.pipe().map_err(at)?;
        let (has, here) = (pipe.stage_of(u), pipe.stage());
        let own = match has == here {
            true => self.read_here(u, i, kind)?,
            false => None,
        };
        if has == 0 || self.spec.rank != 0 {
            return Ok(own.filter(|_| self.spec.job_rank() == 0));
        }
        if has == here {
            self.send_values(&own.unwrap_or_default(), 0).map_err(at)?;
            return Ok(None);
        }
        match here {
            0 => self.receive_values(has).map(Some).map_err(at),
            _ => Ok(None),
        }
    }

    /// A parameter's state on the first data-parallel rank of its stage, all of which call this.
    fn read_here(&self, u: usize, i: usize, kind: StateKind) -> Result<Option<Vec<f32>>> {
        let s = &self.state[u];
        let first = self.spec.rank == 0;
        let replicated = matches!(kind, StateKind::Rows | StateKind::Cols);
        let kept = self.state_shape(u, i, kind).is_some();
        let sharded = self.spec.world > 1 && s.place.residency != Residency::Resident;
        if !sharded || replicated || !kept {
            return match first {
                true => self.host_state(u, i, kind).map(Some),
                false => Ok(None),
            };
        }
        let (base, r) = (s.flat.params[i].base, s.range_of(i));
        let go = || -> Tensors<Option<Vec<f32>>> {
            let whole = self.assemble(u, kind, base)?;
            if !first {
                return Ok(None);
            }
            let buffer = whole.buffer().clone();
            let part = Tensor::dense(buffer, 4 * r.start, [r.end - r.start], DType::F32);
            self.host_f32(&part).map(Some)
        };
        go().map_err(|e| self.error("reading a state", e))
    }

    /// Logits of `tokens` over all stages; rank 0 calls this while all others serve.
    pub(crate) fn logits_over_stages(
        &mut self,
        tokens: &[i32],
        batch: u64,
        seq: u64,
    ) -> Result<Vec<f32>> {
        if !self.saving.leading.get() {
            return Err(Error::Invalid(
                "logits over pipeline stages: rank 0 asks for them between lead and done_reading, while the others serve".into(),
            ));
        }
        if tokens.len() as u64 != batch * seq {
            return Err(Error::Invalid(format!(
                "{} token ids for {batch} x {seq}",
                tokens.len()
            )));
        }
        let made = self.ask_forward(tokens, batch, seq);
        made.map_err(|e| self.error("logits", e))
    }

    fn ask_forward(&mut self, tokens: &[i32], batch: u64, seq: u64) -> Tensors<Vec<f32>> {
        self.announce([FORWARD, batch as i32])?;
        self.announce([seq as i32, 0])?;
        let made = self.forward_told(Some(tokens), batch, seq)?;
        Ok(made.unwrap_or_default())
    }

    /// One forward with dropout off, along the first data-parallel ranks of the stages; the others help to put units together. What the
    /// last unit made is given to rank 0.
    fn forward_told(
        &mut self,
        tokens: Option<&[i32]>,
        batch: u64,
        seq: u64,
    ) -> Tensors<Option<Vec<f32>>> {
        let data = Batch {
            tokens: Some(self.tokens_to_all(tokens, batch, seq)?),
            ..Batch::default()
        };
        if self.spec.rank != 0 {
            for u in self.own_units() {
                self.gather_for_eval(u)?;
                self.release_after_eval(u)?;
            }
            return Ok(None);
        }
        let (stage, last) = {
            let pipe = self.pipe()?;
            (pipe.stage(), pipe.last())
        };
        let flow = match stage {
            0 => vec![],
            _ => self.receive_flow(stage - 1)?,
        };
        let flow = self.run_own(flow, &data)?;
        if stage < last {
            self.send_flow(&flow, stage + 1)?;
            return match stage {
                0 => self.receive_values(last).map(Some),
                _ => Ok(None),
            };
        }
        let [made] = &flow[..] else {
            return crossweave_tensor::shape_error(format!(
                "the last unit returned {} values, expected 1",
                flow.len()
            ));
        };
        let values = self.host_values(made)?;
        self.send_values(&values, 0)?;
        Ok(None)
    }

    /// Token ids from rank 0, which has them, to every rank.
    fn tokens_to_all(&self, tokens: Option<&[i32]>, batch: u64, seq: u64) -> Tensors<Tensor> {
        let stream = self.lanes.reductions();
        let b = self
            .device()
            .alloc(stream, 4 * batch * seq, Tag::Activation)?;
        if let Some(ids) = tokens {
            let bytes: Vec<u8> = ids.iter().flat_map(|i| i.to_le_bytes()).collect();
            stream.write(b.all(), &bytes)?;
        }
        {
            let mut mesh = self.groups.mesh().borrow_mut();
            let all = mesh.group(everyone(&self.spec))?;
            all.broadcast(stream, b.all(), DType::I32, 0, OUTSIDE)?;
        }
        Ok(Tensor::dense(Arc::new(b), 0, [batch, seq], DType::I32))
    }

    /// Words to this rank's peer of another stage.
    fn send_words(&self, words: &[u32], stage: u32) -> Tensors<()> {
        let pipe = self.pipe()?;
        let t = pipe.room(&(Shape::new(&[words.len() as u64]), DType::I32))?;
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        pipe.stream.write(t.region(), &bytes)?;
        self.exchange(&[t], stage, true, OUTSIDE)
    }

    fn receive_words(&self, count: usize, stage: u32) -> Tensors<Vec<u32>> {
        let pipe = self.pipe()?;
        let t = pipe.room(&(Shape::new(&[count as u64]), DType::I32))?;
        self.exchange(std::slice::from_ref(&t), stage, false, OUTSIDE)?;
        let mut bytes = vec![0u8; 4 * count];
        pipe.stream.read(t.region(), &mut bytes)?;
        let words = bytes.as_chunks::<4>().0.iter();
        Ok(words.map(|b| u32::from_le_bytes(*b)).collect())
    }

    /// Numbers on the host to this rank's peer of another stage.
    fn send_values(&self, values: &[f32], stage: u32) -> Tensors<()> {
        let n = values.len() as u64;
        self.send_words(&[n as u32, (n >> 32) as u32], stage)?;
        if n == 0 {
            return Ok(());
        }
        let pipe = self.pipe()?;
        let t = pipe.room(&(Shape::new(&[n]), DType::F32))?;
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        pipe.stream.write(t.region(), &bytes)?;
        self.exchange(&[t], stage, true, OUTSIDE)
    }

    fn receive_values(&self, stage: u32) -> Tensors<Vec<f32>> {
        let words = self.receive_words(2, stage)?;
        let n = u64::from(words[0]) | u64::from(words[1]) << 32;
        if n == 0 {
            return Ok(vec![]);
        }
        let pipe = self.pipe()?;
        let t = pipe.room(&(Shape::new(&[n]), DType::F32))?;
        self.exchange(std::slice::from_ref(&t), stage, false, OUTSIDE)?;
        let mut bytes = vec![0u8; 4 * n as usize];
        pipe.stream.read(t.region(), &mut bytes)?;
        let words = bytes.as_chunks::<4>().0.iter();
        Ok(words.map(|b| f32::from_le_bytes(*b)).collect())
    }

    /// What a stage made of a batch of any shape, the shapes first.
    fn send_flow(&self, flow: &[Tensor], stage: u32) -> Tensors<()> {
        if flow.len() > VALUES {
            return crossweave_tensor::shape_error(format!(
                "{} values flow to stage {stage}; at most {VALUES} do where their shapes are not known beforehand",
                flow.len()
            ));
        }
        let mut words = vec![0u32; 1 + VALUES * EACH];
        words[0] = flow.len() as u32;
        for (t, words) in flow.iter().zip(words[1..].chunks_exact_mut(EACH)) {
            let dims = t.shape().dims();
            (words[0], words[1]) = (t.dtype().id(), dims.len() as u32);
            for (word, d) in words[2..].iter_mut().zip(dims) {
                *word = *d as u32;
            }
        }
        self.send_words(&words, stage)?;
        self.exchange(flow, stage, true, OUTSIDE)
    }

    fn receive_flow(&self, stage: u32) -> Tensors<Vec<Tensor>> {
        let words = self.receive_words(1 + VALUES * EACH, stage)?;
        let pipe = self.pipe()?;
        let mut flow = vec![];
        for words in words[1..].chunks_exact(EACH).take(words[0] as usize) {
            let Some(dtype) = DType::from_id(words[0]) else {
                return crossweave_tensor::shape_error(format!(
                    "stage {stage} sends values of a type this build does not know ({})",
                    words[0]
                ));
            };
            let dims: Vec<u64> = words[2..].iter().map(|d| u64::from(*d)).collect();
            let dims = &dims[..(words[1] as usize).min(dims.len())];
            flow.push(pipe.room(&(Shape::new(dims), dtype))?);
        }
        self.exchange(&flow, stage, false, OUTSIDE)?;
        Ok(flow)
    }
}
