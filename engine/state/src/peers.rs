//! Messages between this rank and its peers of the other pipeline stages: tensors whose shape both know, and numbers and values whose shape
//! comes before them. The latter are not the steady state: the host waits for each.

use crate::words::{Tensors, floats};
use crossweave_hal::{Collective, CommTag, DType, Stream, Tag};
use crossweave_mesh::{GroupRef, Mesh};
use crossweave_tensor::{Shape, Tensor, shape_error};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

/// Most values that flow from one unit to the next where shapes are sent before them.
const VALUES: usize = 4;
/// Words that describe one of them: type, dims, and room for six dims.
const EACH: usize = 8;
/// Ledger tag of what travels outside the training step.
const OUTSIDE: CommTag = "eval";

/// This rank among the stages of a pipeline.
pub struct Peers {
    stream: Stream,
    group: GroupRef,
    /// Units of every stage.
    stages: Vec<Range<u32>>,
    stage: u32,
}

impl Peers {
    /// A rank of stage `stage`, which exchanges messages on `stream` in a group of one rank of each stage.
    pub fn new(stream: Stream, group: GroupRef, stages: Vec<Range<u32>>, stage: u32) -> Peers {
        Peers {
            stream,
            group,
            stages,
            stage,
        }
    }

    /// On which messages travel.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }
    /// This stage's number.
    pub fn stage(&self) -> u32 {
        self.stage
    }
    /// The number of the last stage, which makes the loss.
    pub fn last(&self) -> u32 {
        self.stages.len() as u32 - 1
    }
    /// The units of this stage.
    pub fn own_units(&self) -> Range<usize> {
        let own = &self.stages[self.stage as usize];
        own.start as usize..own.end as usize
    }
    /// The stage that runs unit `u`.
    pub fn stage_of(&self, u: usize) -> u32 {
        let runs = |r: &Range<u32>| r.contains(&(u as u32));
        self.stages.iter().position(runs).unwrap_or(0) as u32
    }

    /// Memory on the stream of messages.
    ///
    /// # Errors
    /// The device.
    pub fn room(&self, (shape, dtype): &(Shape, DType)) -> Tensors<Tensor> {
        let bytes = dtype.bytes(shape.numel());
        let device = self.stream.device();
        let b = device.alloc(&self.stream, bytes, Tag::Activation)?;
        Ok(Tensor::dense(Arc::new(b), 0, *shape, *dtype))
    }

    /// Sends to, or receives from, this rank's peer of another stage.
    ///
    /// # Errors
    /// A value that is not dense; the ranks.
    #[track_caller]
    pub fn exchange(
        &self,
        mesh: &RefCell<Mesh>,
        tensors: &[Tensor],
        peer: u32,
        sends: bool,
        tag: CommTag,
    ) -> Tensors<()> {
        let mut members = Vec::with_capacity(tensors.len());
        for t in tensors {
            if !t.is_dense() {
                return shape_error(format!(
                    "what crosses to stage {peer} is a strided view of shape {:?}; end the block before it with a dense value",
                    t.shape().dims()
                ));
            }
            let (buf, dtype) = (t.region(), t.dtype());
            members.push(match sends {
                true => Collective::Send { buf, dtype, peer },
                false => Collective::Recv { buf, dtype, peer },
            });
        }
        let mut mesh = mesh.borrow_mut();
        Ok(mesh.by(self.group).group(&self.stream, &members, tag)?)
    }

    /// Sends bytes as elements of a type.
    fn send(&self, mesh: &RefCell<Mesh>, bytes: &[u8], dtype: DType, stage: u32) -> Tensors<()> {
        let n = bytes.len() as u64 / 4;
        let t = self.room(&(Shape::new(&[n]), dtype))?;
        self.stream.write(t.region(), bytes)?;
        self.exchange(mesh, &[t], stage, true, OUTSIDE)
    }

    fn receive(&self, mesh: &RefCell<Mesh>, n: u64, dtype: DType, stage: u32) -> Tensors<Vec<u8>> {
        let t = self.room(&(Shape::new(&[n]), dtype))?;
        self.exchange(mesh, std::slice::from_ref(&t), stage, false, OUTSIDE)?;
        let mut bytes = vec![0u8; 4 * n as usize];
        self.stream.read(t.region(), &mut bytes)?;
        Ok(bytes)
    }

    fn send_words(&self, mesh: &RefCell<Mesh>, words: &[u32], stage: u32) -> Tensors<()> {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        self.send(mesh, &bytes, DType::I32, stage)
    }

    fn receive_words(&self, mesh: &RefCell<Mesh>, n: usize, stage: u32) -> Tensors<Vec<u32>> {
        let bytes = self.receive(mesh, n as u64, DType::I32, stage)?;
        let words = bytes.as_chunks::<4>().0.iter();
        Ok(words.map(|b| u32::from_le_bytes(*b)).collect())
    }

    /// Numbers on the host to this rank's peer of another stage, their count first.
    ///
    /// # Errors
    /// The device; the ranks.
    pub fn send_values(&self, mesh: &RefCell<Mesh>, values: &[f32], stage: u32) -> Tensors<()> {
        let n = values.len() as u64;
        self.send_words(mesh, &[n as u32, (n >> 32) as u32], stage)?;
        if n == 0 {
            return Ok(());
        }
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.send(mesh, &bytes, DType::F32, stage)
    }

    /// What [`Peers::send_values`] sends.
    ///
    /// # Errors
    /// The device; the ranks.
    pub fn receive_values(&self, mesh: &RefCell<Mesh>, stage: u32) -> Tensors<Vec<f32>> {
        let words = self.receive_words(mesh, 2, stage)?;
        match u64::from(words[0]) | u64::from(words[1]) << 32 {
            0 => Ok(vec![]),
            n => Ok(floats(&self.receive(mesh, n, DType::F32, stage)?)),
        }
    }

    /// What a stage made of a batch of any shape, the shapes first.
    ///
    /// # Errors
    /// More values than can be described; the device; the ranks.
    pub fn send_flow(&self, mesh: &RefCell<Mesh>, flow: &[Tensor], stage: u32) -> Tensors<()> {
        if flow.len() > VALUES {
            return shape_error(format!(
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
        self.send_words(mesh, &words, stage)?;
        self.exchange(mesh, flow, stage, true, OUTSIDE)
    }

    /// What [`Peers::send_flow`] sends.
    ///
    /// # Errors
    /// A type that is not known here; the device; the ranks.
    pub fn receive_flow(&self, mesh: &RefCell<Mesh>, stage: u32) -> Tensors<Vec<Tensor>> {
        let words = self.receive_words(mesh, 1 + VALUES * EACH, stage)?;
        let mut flow = vec![];
        for words in words[1..].chunks_exact(EACH).take(words[0] as usize) {
            let Some(dtype) = DType::from_id(words[0]) else {
                return shape_error(format!(
                    "stage {stage} sends values of a type this build does not know ({})",
                    words[0]
                ));
            };
            let dims: Vec<u64> = words[2..].iter().map(|d| u64::from(*d)).collect();
            let dims = &dims[..(words[1] as usize).min(dims.len())];
            flow.push(self.room(&(Shape::new(dims), dtype))?);
        }
        self.exchange(mesh, &flow, stage, false, OUTSIDE)?;
        Ok(flow)
    }
}
