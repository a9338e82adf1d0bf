//! A rank as one stage of a pipeline: which units it holds, whom it exchanges hidden states and their gradients with, and whose
//! gradients it sums with other stages (ADR 0026, 0044).

use crate::error::{Error, Result};
use crate::gather::OUTSIDE;
use crate::trainer::{RankSpec, Trainer};
use crossweave_hal::{Bootstrap, Collective, CommTag, DType, Device, Reduce, Stream, Tag};
use crossweave_mesh::{Axis, Mesh, MeshOptions, Topology};
use crossweave_parallel::schedule::{Order, Stages};
use crossweave_plan::Rank;
use crossweave_tensor::{ParamDecl, Shape, Tensor, UnitDecl};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

/// Label of the group of stages that share a unit's parameters.
const TIE: &str = "pp/tie";
/// Label of the group whose members exchange messages: a communicator of its own, so that these and sums over the stages, which run on other
/// streams, need no common order.
const PEERS: &str = "pp/peers";
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

    /// As many stages as `weights`, which say how fast each is; `costs` say how much work each unit is. The stage that takes longest for its
    /// units takes as little as whole units allow.
    pub fn weighted(costs: &[f64], weights: &[f64], stage: u32, order: Order) -> PipelineSpec {
        if weights.len() > costs.len() {
            // Refused with a sentence when a rank is to run it.
            return PipelineSpec::even(costs.len() as u32, weights.len() as u32, stage, order);
        }
        PipelineSpec {
            stages: divide(costs, weights),
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

/// Runs of units, one for each weight, none empty: of all cuts one whose slowest stage (cost over weight) is fastest; where several are found
/// for a run of stages, the one whose stages differ less.
fn divide(costs: &[f64], weights: &[f64]) -> Vec<Range<u32>> {
    let (n, stages) = (costs.len(), weights.len().max(1));
    let mut before = vec![0.0];
    for c in costs {
        before.push(before[before.len() - 1] + c.max(0.0));
    }
    let time = |s: usize, from: usize, to: usize| {
        let weight = weights.get(s).copied().unwrap_or(1.0);
        (before[to] - before[from]) / weight.max(f64::MIN_POSITIVE)
    };
    // best[s][end]: the slowest of stages 0..=s over units 0..end, the sum of squares, and where stage s begins.
    let none = (f64::INFINITY, f64::INFINITY, 0);
    let mut best = vec![vec![none; n + 1]; stages];
    for end in 1..=n {
        let t = time(0, 0, end);
        best[0][end] = (t, t * t, 0);
    }
    for s in 1..stages {
        for end in s + 1..=n {
            for from in s..end {
                let (worst, squares, _) = best[s - 1][from];
                let t = time(s, from, end);
                let found = (worst.max(t), squares + t * t, from);
                let kept = best[s][end];
                if (found.0, found.1) < (kept.0, kept.1) {
                    best[s][end] = found;
                }
            }
        }
    }
    let mut cuts = vec![];
    let mut end = n;
    for s in (0..stages).rev() {
        let from = best[s][end].2;
        cuts.push(from as u32..end as u32);
        end = from;
    }
    cuts.reverse();
    cuts
}

impl RankSpec {
    /// This rank's number in the job: the stages one after another, each with its data-parallel ranks.
    pub fn job_rank(&self) -> u32 {
        self.pipeline.as_ref().map_or(0, |p| p.stage) * self.world + self.rank
    }

    /// Ranks of the job.
    pub fn job_ranks(&self) -> u32 {
        let stages = self.pipeline.as_ref().map_or(1, |p| p.stages.len() as u32);
        stages * self.world
    }

    /// A pipeline of one stage of all units is none.
    pub(crate) fn of_stages(mut self, units: usize) -> RankSpec {
        let one = |p: &PipelineSpec| p.stages.len() == 1 && p.check(units).is_ok();
        if self.pipeline.as_ref().is_some_and(one) {
            self.pipeline = None;
        }
        self
    }
}

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

/// Leaves of `units` what the rank's stage holds. Numbers stay the model's.
pub(crate) fn keep_stage(spec: &RankSpec, units: &mut [UnitDecl]) -> Result<()> {
    let Some(p) = &spec.pipeline else {
        return Ok(());
    };
    p.check(units.len()).map_err(Error::Invalid)?;
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
            None => 0..self.units.len(),
        }
    }

    /// Whether this rank runs unit `u`, and does not only hold it for others that are tied to it.
    pub(crate) fn runs_here(&self, u: usize) -> bool {
        self.own_units().contains(&u)
    }

    /// Whether this rank runs the last unit, whose output is the loss.
    pub(crate) fn makes_loss(&self) -> bool {
        self.own_units().end == self.units.len()
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
        let outs = std::mem::take(&mut self.flow[m]);
        self.exchange(&outs, self.stage_of_rank(to)?, true, FORWARD)
    }

    /// `RecvAct`: what unit `u` made of a micro-batch arrives.
    pub(crate) fn recv_act(&mut self, u: usize, m: usize, from: Rank) -> Tensors<()> {
        let ins = self.like_flow(u)?;
        self.exchange(&ins, self.stage_of_rank(from)?, false, FORWARD)?;
        self.flow[m] = ins;
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
        self.exchange(&whole, self.stage_of_rank(to)?, true, BACKWARD)
    }

    /// `RecvGrad`: the gradient of what unit `u` made arrives.
    pub(crate) fn recv_flow_grad(&mut self, u: usize, m: usize, from: Rank) -> Tensors<()> {
        let grads = self.like_flow(u)?;
        self.exchange(&grads, self.stage_of_rank(from)?, false, BACKWARD)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn cuts(costs: &[f64], weights: &[f64]) -> Vec<(u32, u32)> {
        let all = PipelineSpec::weighted(costs, weights, 0, Order::OneFOneB).stages;
        all.iter().map(|r| (r.start, r.end)).collect()
    }

    #[test]
    fn units_follow_weights_and_every_stage_has_one() {
        assert_eq!(cuts(&[1.0; 6], &[1.0, 1.0]), [(0, 3), (3, 6)]);
        assert_eq!(cuts(&[1.0; 8], &[3.0, 1.0]), [(0, 6), (6, 8)]);
        assert_eq!(cuts(&[1.0; 8], &[1.0, 3.0]), [(0, 2), (2, 8)]);
        // A stage that is hardly there still has a unit, and free units are somebody's.
        assert_eq!(cuts(&[1.0; 4], &[1.0, 1e-9, 1.0]).len(), 3);
        assert_eq!(cuts(&[0.0, 4.0, 4.0, 0.0], &[1.0, 1.0]), [(0, 2), (2, 4)]);
        for stages in 1..5usize {
            let found = cuts(&[2.0, 1.0, 1.0, 5.0, 1.0], &vec![1.0; stages]);
            assert_eq!(found.len(), stages);
            let mut next = 0;
            for (start, end) in found {
                assert!(start == next && end > start);
                next = end;
            }
            assert_eq!(next, 5);
        }
    }

    /// Against every cut there is.
    #[test]
    fn the_slowest_stage_is_as_fast_as_any_cut_makes_it() {
        let costs = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0];
        for weights in [[1.0, 1.0, 1.0], [2.0, 1.0, 3.0], [0.5, 4.0, 1.0]] {
            let slowest = |ends: [usize; 4]| -> f64 {
                let each =
                    (0..3).map(|s| costs[ends[s]..ends[s + 1]].iter().sum::<f64>() / weights[s]);
                each.fold(0.0, f64::max)
            };
            let mut least = f64::INFINITY;
            for a in 1..6 {
                for b in a + 1..7 {
                    least = least.min(slowest([0, a, b, 7]));
                }
            }
            let found = cuts(&costs, &weights);
            let ends = [0, found[1].0 as usize, found[2].0 as usize, 7];
            assert_eq!(slowest(ends), least, "{weights:?}: {found:?}");
        }
    }
}
