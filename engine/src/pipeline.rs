//! A rank as one stage of a pipeline: which units it holds, whom it exchanges hidden states and their gradients with, and whose
//! gradients it sums with other stages (ADR 0026, 0044).

use crate::gather::OUTSIDE;
use crate::trainer::Trainer;
use crossweave_hal::{Bootstrap, Collective, CommTag, DType, Device, Stream, Tag};
use crossweave_mesh::{Axis, Mesh, MeshOptions, Topology};
use crossweave_plan::Rank;
use crossweave_planner::{FlowShape, RankSpec, TIE, everyone};
use crossweave_tensor::{ParamDecl, Shape, Tensor};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

/// Label of the group whose members exchange messages: a communicator of its own, so that these and sums over the stages, which run on other
/// streams, need no common order.
const PEERS: &str = "pp/peers";
/// Ledger tags of what crosses a boundary between stages, and of gradients that stages share.
const FORWARD: CommTag = "activation";
const BACKWARD: CommTag = "activation_grad";

/// What a stage has beside what every rank has.
pub(crate) struct Pipe {
    /// Peer transfers.
    pub stream: Stream,
    data: u32,
    /// Units of every stage.
    stages: Vec<Range<u32>>,
    /// This one.
    stage: u32,
    /// What flows out of each unit.
    flows: Vec<FlowShape>,
    /// Units that run on other stages: their gradient counts there.
    pub elsewhere: BTreeSet<usize>,
    /// Parameters of all units of the model, wherever they live.
    pub decls: Vec<Vec<ParamDecl>>,
}

/// The groups of a rank: data-parallel ranks of its stage, its peers of the other stages, and all; `ties` as declared by the model.
pub(crate) fn join(
    device: &Device,
    spec: &RankSpec,
    boot: &dyn Bootstrap,
    options: &MeshOptions,
    shared: &[BTreeSet<usize>],
) -> crossweave_hal::Result<(Mesh, u32)> {
    let stages = spec.pipeline.as_ref().map_or(1, |p| p.stages.len() as u32);
    let stage = spec.pipeline.as_ref().map_or(0, |p| p.stage);
    let topology = Topology::new(&[(Axis::Pp, stages), (Axis::Dp, spec.world)])?;
    let mut sets: Vec<&[Axis]> = vec![];
    // A rank alone has nobody to reduce with: no group, so no launches that change nothing.
    if spec.world > 1 {
        sets.push(&[Axis::Dp]);
    }
    if stages > 1 {
        sets.extend([&[Axis::Pp][..], everyone(spec)]);
    }
    let first = stage * spec.world;
    let rank = first + spec.rank;
    let mut mesh = Mesh::new(device, boot, topology, rank, &sets, options)?;
    if stages > 1 {
        let peers: Vec<u32> = (0..stages).map(|s| s * spec.world + spec.rank).collect();
        mesh.join(device, boot, PEERS, "pp", &peers, options)?;
    }
    for set in shared.iter().filter(|s| s.contains(&(stage as usize))) {
        let ranks: Vec<u32> = set
            .iter()
            .map(|s| *s as u32 * spec.world + spec.rank)
            .collect();
        mesh.join(device, boot, TIE, "tie", &ranks, options)?;
    }
    Ok((mesh, first))
}

impl Pipe {
    pub fn new(
        device: &Device,
        spec: &RankSpec,
        flows: &[FlowShape],
        decls: Vec<Vec<ParamDecl>>,
    ) -> crossweave_hal::Result<Option<Pipe>> {
        let Some(p) = &spec.pipeline else {
            return Ok(None);
        };
        let own = &p.stages[p.stage as usize];
        let all = 0..decls.len();
        Ok(Some(Pipe {
            stream: device.stream("peer", 1)?,
            data: spec.world,
            stages: p.stages.clone(),
            stage: p.stage,
            flows: flows.to_vec(),
            elsewhere: all.filter(|u| !own.contains(&(*u as u32))).collect(),
            decls,
        }))
    }

    /// This stage's number.
    pub fn stage(&self) -> u32 {
        self.stage
    }

    /// The number of the last stage, which makes the loss.
    pub fn last(&self) -> u32 {
        self.stages.len() as u32 - 1
    }

    /// The stage that runs unit `u`.
    pub fn stage_of(&self, u: usize) -> u32 {
        let runs = |r: &Range<u32>| r.contains(&(u as u32));
        self.stages.iter().position(runs).unwrap_or(0) as u32
    }

    /// Unit and place in it of a parameter of the model.
    pub fn find(&self, name: &str) -> Option<(usize, usize)> {
        let place = |all: &Vec<ParamDecl>| all.iter().position(|d| d.name == name);
        let mut units = self.decls.iter().enumerate();
        units.find_map(|(u, all)| place(all).map(|i| (u, i)))
    }

    /// Memory on the peer stream.
    pub fn room(&self, (shape, dtype): &(Shape, DType)) -> Tensors<Tensor> {
        let bytes = dtype.bytes(shape.numel());
        let b = self
            .stream
            .device()
            .alloc(&self.stream, bytes, Tag::Activation)?;
        Ok(Tensor::dense(Arc::new(b), 0, *shape, *dtype))
    }
}

impl Trainer {
    /// Whether there is more than one rank in the job.
    pub(crate) fn is_distributed(&self) -> bool {
        self.spec.world > 1 || self.spec.pipeline.is_some()
    }

    /// The units this rank runs.
    pub(crate) fn own_units(&self) -> Range<usize> {
        match &self.pipe {
            Some(p) => {
                let own = &p.stages[p.stage as usize];
                own.start as usize..own.end as usize
            }
            None => 0..self.blocks.units.len(),
        }
    }

    /// Whether this rank runs unit `u`, and does not only hold it for others that are tied to it.
    pub(crate) fn runs_here(&self, u: usize) -> bool {
        self.own_units().contains(&u)
    }

    /// Whether this rank runs the last unit, whose output is the loss.
    pub(crate) fn makes_loss(&self) -> bool {
        self.own_units().end == self.blocks.units.len()
    }

    /// Whether this rank holds any part of a parameter's unit: not where another pipeline stage has it alone.
    pub fn holds(&self, name: &str) -> bool {
        let named = |s: &crate::state::UnitState| s.decls.iter().any(|d| d.name == name);
        self.state.iter().any(named)
    }

    /// Whether the model has a parameter of that name, and only other stages hold it.
    pub(crate) fn lives_elsewhere(&self, name: &str) -> bool {
        let known = |p: &Pipe| p.find(name).is_some();
        self.pipe.as_ref().is_some_and(known) && !self.holds(name)
    }

    pub(crate) fn pipe(&self) -> Tensors<&Pipe> {
        match &self.pipe {
            Some(p) => Ok(p),
            None => crossweave_tensor::shape_error(
                "the plan sends to another stage, and there is one stage",
            ),
        }
    }

    /// Sends to, or receives from, this rank's peer of another stage.
    pub(crate) fn exchange(
        &self,
        tensors: &[Tensor],
        peer: u32,
        sends: bool,
        tag: CommTag,
    ) -> Tensors<()> {
        let pipe = self.pipe()?;
        let mut members = Vec::with_capacity(tensors.len());
        for t in tensors {
            if !t.is_dense() {
                return crossweave_tensor::shape_error(format!(
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
        let mut mesh = self.groups.mesh().borrow_mut();
        Ok(mesh.named(PEERS)?.group(&pipe.stream, &members, tag)?)
    }

    /// Memory for what flows out of unit `u`, or for its gradient.
    fn like_flow(&self, u: usize) -> Tensors<Vec<Tensor>> {
        let pipe = self.pipe()?;
        pipe.flows[u].iter().map(|f| pipe.room(f)).collect()
    }

    /// `SendAct`: what unit `u` made of a micro-batch goes to the stage that runs the next unit.
    pub(crate) fn send_act(&mut self, m: usize, to: Rank) -> Tensors<()> {
        let outs = std::mem::take(&mut self.values.flow[m]);
        self.exchange(&outs, self.stage_of_rank(to)?, true, FORWARD)
    }

    /// `RecvAct`: what unit `u` made of a micro-batch arrives.
    pub(crate) fn recv_act(&mut self, u: usize, m: usize, from: Rank) -> Tensors<()> {
        let ins = self.like_flow(u)?;
        self.exchange(&ins, self.stage_of_rank(from)?, false, FORWARD)?;
        self.values.flow[m] = ins;
        Ok(())
    }

    /// Plans name ranks of the job.
    fn stage_of_rank(&self, rank: Rank) -> Tensors<u32> {
        Ok(rank / self.pipe()?.data)
    }

    /// Outside the step: what the stage before makes of a batch of the step's shape; nothing on the first.
    pub(crate) fn flow_in(&self) -> Tensors<Vec<Tensor>> {
        let first = self.own_units().start;
        if first == 0 {
            return Ok(vec![]);
        }
        let ins = self.like_flow(first - 1)?;
        self.exchange(&ins, self.pipe()?.stage - 1, false, OUTSIDE)?;
        Ok(ins)
    }

    /// Outside the step: what this stage has made goes to the next; whether there is one.
    pub(crate) fn flow_out(&self, flow: &[Tensor]) -> Tensors<bool> {
        if self.makes_loss() {
            return Ok(false);
        }
        self.exchange(flow, self.pipe()?.stage + 1, true, OUTSIDE)?;
        Ok(true)
    }

    /// `SendGrad`: the gradient of what unit `u` made goes back to its stage. What nobody differentiated has a gradient of zero.
    pub(crate) fn send_flow_grad(&mut self, u: usize, m: usize, to: Rank) -> Tensors<()> {
        let grads = self.values.grads[m].take().unwrap_or_default();
        let pipe = self.pipe()?;
        let mut whole = vec![];
        for (k, flow) in pipe.flows[u].iter().enumerate() {
            whole.push(match grads.get(k).cloned().flatten() {
                Some(g) if g.is_dense() && g.dtype() == flow.1 => g,
                Some(_) => {
                    return crossweave_tensor::shape_error(format!(
                        "the gradient of output {k} of unit {u} is not dense, or not of the output's type"
                    ));
                }
                None => {
                    let zero = pipe.room(flow)?;
                    pipe.stream.fill(zero.region(), 0, 1)?;
                    zero
                }
            });
        }
        self.exchange(&whole, self.stage_of_rank(to)?, true, BACKWARD)
    }

    /// `RecvGrad`: the gradient of what unit `u` made arrives.
    pub(crate) fn recv_flow_grad(&mut self, u: usize, m: usize, from: Rank) -> Tensors<()> {
        let grads = self.like_flow(u)?;
        self.exchange(&grads, self.stage_of_rank(from)?, false, BACKWARD)?;
        self.values.grads[m] = Some(grads.into_iter().map(Some).collect());
        Ok(())
    }
}
