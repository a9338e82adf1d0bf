//! A rank as one stage of a pipeline: which units it holds, whom it exchanges hidden states and their gradients with, and whose
//! gradients it sums with other stages. Plans are made, checked and rehearsed on the device of nothing; real devices follow.

use crate::error::{Error, Result};
use crate::trainer::{RankSpec, Trainer};
use crossweave_hal::{Bootstrap, Collective, CommTag, DType, Device, Reduce, Stream, Tag};
use crossweave_mesh::{Axis, Mesh, MeshOptions, Topology};
use crossweave_parallel::schedule::{Order, Stages};
use crossweave_plan::Rank;
use crossweave_tensor::{Shape, Tensor, UnitDecl};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

/// Label of the group of stages that share a unit's parameters.
const TIE: &str = "pp/tie";
/// Ledger tags of what crosses a boundary between stages, and of gradients that stages share.
const FORWARD: CommTag = "activation";
const BACKWARD: CommTag = "activation_grad";
const SHARED: CommTag = "tie";

/// Shapes and types of what flows from one unit to the next.
pub(crate) type FlowShape = Vec<(Shape, DType)>;

/// One stage of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineSpec {
    /// Units of every stage, in run order.
    pub stages: Vec<Range<u32>>,
    /// The stage of this rank.
    pub stage: u32,
    /// How forwards and backwards follow each other.
    pub order: Order,
}

impl PipelineSpec {
    /// `units` units over `stages` stages as evenly as they go, the longer ones first.
    pub fn even(units: u32, stages: u32, stage: u32, order: Order) -> PipelineSpec {
        let all = Stages::even(units, &(0..stages).collect::<Vec<_>>());
        PipelineSpec {
            stages: all.stages.into_iter().map(|(units, _)| units).collect(),
            stage,
            order,
        }
    }

    /// The stages with the ranks that are this rank's peers in them: those with its index among `data` data-parallel ranks.
    pub(crate) fn peers(&self, data: u32, index: u32) -> Stages {
        let rank = |s: usize| s as Rank * data + index;
        let each = self.stages.iter().enumerate();
        Stages {
            stages: each.map(|(s, units)| (units.clone(), rank(s))).collect(),
        }
    }

    /// Units whose parameters a stage holds: its own, and those that its own are tied to.
    fn holds(&self, stage: usize, units: &[UnitDecl]) -> BTreeSet<usize> {
        let own = self.stages[stage].clone().map(|u| u as usize);
        own.flat_map(|u| units[u].borrowed.iter().map(|(o, _)| *o).chain([u]))
            .collect()
    }

    fn check(&self, units: usize) -> std::result::Result<(), String> {
        let mut next = 0;
        for (s, r) in self.stages.iter().enumerate() {
            if r.start != next || r.is_empty() {
                return Err(format!(
                    "stage {s} of the pipeline has units {r:?}, and unit {next} is next; every stage needs one unit at least, of {units} in all; set mesh.pp to {units} or less"
                ));
            }
            next = r.end;
        }
        if next as usize != units || self.stage as usize >= self.stages.len() {
            return Err(format!(
                "{} pipeline stages of {next} units, this rank being stage {}: the model has {units} units",
                self.stages.len(),
                self.stage
            ));
        }
        Ok(())
    }
}

/// What a stage has beside what every rank has.
pub(crate) struct Pipe {
    /// Peer transfers.
    pub stream: Stream,
    data: u32,
    /// What flows out of each unit.
    flows: Vec<FlowShape>,
    /// Units that run on an earlier stage: their gradient counts there.
    pub elsewhere: BTreeSet<usize>,
}

/// Whether a device computes nothing: then peers need not be there.
fn rehearses(device: &Device) -> bool {
    device.plugin().name() == "null"
}

/// Leaves of `units` what the rank's stage holds. Numbers stay the model's.
pub(crate) fn keep_stage(device: &Device, spec: &RankSpec, units: &mut [UnitDecl]) -> Result<()> {
    let Some(p) = &spec.pipeline else {
        return Ok(());
    };
    p.check(units.len()).map_err(Error::Invalid)?;
    if !rehearses(device) {
        return Err(Error::Invalid(format!(
            "{} pipeline stages: a pipeline is planned and rehearsed (`crossweave plan`), and not trained yet; set mesh.pp to 1",
            p.stages.len()
        )));
    }
    if spec.canonical.is_some() {
        return Err(Error::Invalid(
            "a pipeline with canonical sums: their tree goes over the ranks of one stage only; leave run.canonical_shards out".into(),
        ));
    }
    let held = p.holds(p.stage as usize, units);
    for (u, unit) in units.iter_mut().enumerate() {
        if !held.contains(&u) {
            unit.params.clear();
        }
        if !p.stages[p.stage as usize].contains(&(u as u32)) {
            unit.consts.clear();
            unit.borrowed.clear();
        }
    }
    Ok(())
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
    for set in shared.iter().filter(|s| s.contains(&(stage as usize))) {
        let ranks: Vec<u32> = set
            .iter()
            .map(|s| *s as u32 * spec.world + spec.rank)
            .collect();
        mesh.join(device, boot, TIE, "tie", &ranks, options)?;
    }
    Ok((mesh, first))
}

/// The axes over which figures of the whole model are summed.
pub(crate) fn everyone(spec: &RankSpec) -> &'static [Axis] {
    match (&spec.pipeline, spec.world) {
        (None, _) => &[Axis::Dp],
        (Some(_), 1) => &[Axis::Pp],
        (Some(_), _) => &[Axis::Pp, Axis::Dp],
    }
}

/// The sets of stages that share a unit: one at most, since one group is made for it.
pub(crate) fn shared(spec: &RankSpec, units: &[UnitDecl]) -> Result<Vec<BTreeSet<usize>>> {
    let Some(p) = &spec.pipeline else {
        return Ok(vec![]);
    };
    p.check(units.len()).map_err(Error::Invalid)?;
    let held: Vec<BTreeSet<usize>> = (0..p.stages.len()).map(|s| p.holds(s, units)).collect();
    let by = |u: usize| -> BTreeSet<usize> {
        (0..held.len()).filter(|s| held[*s].contains(&u)).collect()
    };
    let mut sets: Vec<BTreeSet<usize>> = (0..units.len()).map(by).filter(|s| s.len() > 1).collect();
    sets.dedup();
    match sets.len() {
        0 | 1 => Ok(sets),
        _ => Err(Error::Invalid(
            "units are tied across different sets of pipeline stages; use fewer stages, so that they fall on the same ones".into(),
        )),
    }
}

impl Pipe {
    pub fn new(
        device: &Device,
        spec: &RankSpec,
        flows: &[FlowShape],
    ) -> crossweave_hal::Result<Option<Pipe>> {
        let Some(p) = &spec.pipeline else {
            return Ok(None);
        };
        let before = p.stages[p.stage as usize].start as usize;
        Ok(Some(Pipe {
            stream: device.stream("peer", 1)?,
            data: spec.world,
            flows: flows.to_vec(),
            elsewhere: (0..before).collect(),
        }))
    }
}

impl Pipe {
    fn room(&self, (shape, dtype): &(Shape, DType)) -> Tensors<Tensor> {
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
    pub(crate) fn in_company(&self) -> bool {
        self.spec.world > 1 || self.spec.pipeline.is_some()
    }

    fn pipe(&self) -> Tensors<&Pipe> {
        match &self.pipe {
            Some(p) => Ok(p),
            None => crossweave_tensor::shape_error(
                "the plan sends to another stage, and there is one stage",
            ),
        }
    }

    fn exchange(&self, tensors: &[Tensor], peer: Rank, sends: bool, tag: CommTag) -> Tensors<()> {
        let pipe = self.pipe()?;
        let peer = peer / pipe.data;
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
        Ok(mesh
            .group(&[Axis::Pp])?
            .group(&pipe.stream, &members, tag)?)
    }

    /// Memory for what flows out of unit `u`, or for its gradient.
    fn like_flow(&self, u: usize) -> Tensors<Vec<Tensor>> {
        let pipe = self.pipe()?;
        pipe.flows[u].iter().map(|f| pipe.room(f)).collect()
    }

    /// `SendAct`: what unit `u` made of a micro-batch goes to the stage that runs the next unit.
    pub(crate) fn send_act(&mut self, m: usize, to: Rank) -> Tensors<()> {
        let outs = std::mem::take(&mut self.flow[m]);
        self.exchange(&outs, to, true, FORWARD)
    }

    /// `RecvAct`: what unit `u` made of a micro-batch arrives.
    pub(crate) fn recv_act(&mut self, u: usize, m: usize, from: Rank) -> Tensors<()> {
        let ins = self.like_flow(u)?;
        self.exchange(&ins, from, false, FORWARD)?;
        self.flow[m] = ins;
        Ok(())
    }

    /// `SendGrad`: the gradient of what unit `u` made goes back to its stage. What nobody differentiated has a gradient of zero.
    pub(crate) fn send_flow_grad(&mut self, u: usize, m: usize, to: Rank) -> Tensors<()> {
        let grads = self.flow_grad[m].take().unwrap_or_default();
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
        self.exchange(&whole, to, true, BACKWARD)
    }

    /// `RecvGrad`: the gradient of what unit `u` made arrives.
    pub(crate) fn recv_flow_grad(&mut self, u: usize, m: usize, from: Rank) -> Tensors<()> {
        let grads = self.like_flow(u)?;
        self.exchange(&grads, from, false, BACKWARD)?;
        self.flow_grad[m] = Some(grads.into_iter().map(Some).collect());
        Ok(())
    }

    /// `Tie`: the reduced gradient of a unit that stages share is summed over them, each rank with those that own the same elements.
    pub(crate) fn tie(&mut self, u: usize) -> Tensors<()> {
        let Some(grad) = self.state[u].owned_grad() else {
            return crossweave_tensor::shape_error(format!("unit {u} has no gradient to share"));
        };
        let stream = self.reduce_stream();
        {
            let mut mesh = self.groups.mesh().borrow_mut();
            let group = mesh.named(TIE)?;
            group.all_reduce(stream, grad.region(), DType::F32, Reduce::Sum, SHARED)?;
        }
        Ok(stream.mark()?)
    }
}
