//! Messages between this rank and its peers of the other pipeline stages: tensors whose shape both know, and numbers and values whose shape
//! comes before them. The latter are not the steady state: the host waits for each.

use crate::words::{Tensors, floats};
use crossweave_hal::{Collective, CommTag, DType, Stream, Tag};
use crossweave_mesh::{GroupRef, Mesh};
use crossweave_plan::Runs;
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
    /// The runs of units, each with its stage.
    runs: Runs,
    stage: u32,
}

/// A run of units that this rank has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leg {
    /// Its units.
    pub units: Range<usize>,
    /// The other stage that its input comes from.
    pub before: Option<u32>,
    /// The other stage that its output goes to.
    pub after: Option<u32>,
}

impl Leg {
    /// All units of a model, on a rank that has them.
    pub fn all(units: usize) -> Leg {
        Leg {
            units: 0..units,
            before: None,
            after: None,
        }
    }
}

/// What goes to another stage (true) or comes from it, in memory that is there.
pub type Letter = (u32, bool, Vec<Tensor>);

impl Peers {
    /// A rank of stage `stage`, which exchanges messages on `stream` in a group of one rank of each stage.
    pub fn new(stream: Stream, group: GroupRef, runs: Runs, stage: u32) -> Peers {
        Peers {
            stream,
            group,
            runs,
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
    /// The number of the stage that makes the loss.
    pub fn last(&self) -> u32 {
        self.runs.last_stage()
    }
    /// The runs of this stage, in the model's order.
    pub fn legs(&self) -> Vec<Leg> {
        let leg = |run| {
            let units = self.runs.units(run);
            Leg {
                units: units.start as usize..units.end as usize,
                before: self.runs.before(run),
                after: self.runs.after(run),
            }
        };
        self.runs.of(self.stage).map(leg).collect()
    }
    /// The stage that runs unit `u`.
    pub fn stage_of(&self, u: usize) -> u32 {
        self.runs.stage_of(u as u32).unwrap_or(0)
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

    /// Sends to this rank's peers of other stages, and receives from them, as one group.
    ///
    /// # Errors
    /// A value that is not dense; the ranks.
    #[track_caller]
    pub fn exchange(&self, mesh: &RefCell<Mesh>, letters: &[Letter], tag: CommTag) -> Tensors<()> {
        let mut members = vec![];
        let each = letters
            .iter()
            .flat_map(|(peer, sends, all)| all.iter().map(move |t| (*peer, *sends, t)));
        for (peer, sends, t) in each {
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

    /// Sends tensors whose shapes the other stage knows.
    ///
    /// # Errors
    /// As [`Peers::exchange`].
    #[track_caller]
    pub fn send_out(
        &self,
        mesh: &RefCell<Mesh>,
        tensors: &[Tensor],
        to: u32,
        tag: CommTag,
    ) -> Tensors<()> {
        self.exchange(mesh, &[(to, true, tensors.to_vec())], tag)
    }

    /// Receives them.
    ///
    /// # Errors
    /// As [`Peers::exchange`].
    #[track_caller]
    pub fn receive_into(
        &self,
        mesh: &RefCell<Mesh>,
        tensors: &[Tensor],
        from: u32,
        tag: CommTag,
    ) -> Tensors<()> {
        self.exchange(mesh, &[(from, false, tensors.to_vec())], tag)
    }

    /// Sends bytes as elements of a type.
    fn send(&self, mesh: &RefCell<Mesh>, bytes: &[u8], dtype: DType, stage: u32) -> Tensors<()> {
        let n = bytes.len() as u64 / 4;
        let t = self.room(&(Shape::new(&[n]), dtype))?;
        self.stream.write(t.region(), bytes)?;
        self.send_out(mesh, &[t], stage, OUTSIDE)
    }

    fn receive(&self, mesh: &RefCell<Mesh>, n: u64, dtype: DType, stage: u32) -> Tensors<Vec<u8>> {
        let t = self.room(&(Shape::new(&[n]), dtype))?;
        self.receive_into(mesh, std::slice::from_ref(&t), stage, OUTSIDE)?;
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
        self.send_out(mesh, flow, stage, OUTSIDE)
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
        self.receive_into(mesh, &flow, stage, OUTSIDE)?;
        Ok(flow)
    }
}
