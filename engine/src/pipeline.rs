//! A rank as one stage of a pipeline: which units it holds, whom it exchanges hidden states and their gradients with, and whose
//! gradients it sums with other stages (ADR 0026, 0044).

use crossweave_hal::{Bootstrap, CommTag, Device};
use crossweave_mesh::{Axis, Mesh, MeshOptions, Topology};
use crossweave_plan::Rank;
use crossweave_planner::{FlowShape, GATHER, NODE, RankSpec, TIE, everyone};
use crossweave_state::Peers;
use crossweave_tensor::{Result, Tensor};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Label of the group whose members exchange messages: a communicator of its own, so that these and sums over the stages, which run on other
/// streams, need no common order.
const PEERS: &str = "pp/peers";
/// Ledger tags of what crosses a boundary between stages, forward and backward.
pub(crate) const FORWARD: CommTag = "activation";
pub(crate) const BACKWARD: CommTag = "activation_grad";

/// What a stage has beside what every rank has.
pub(crate) struct Pipe {
    pub peers: Peers,
    /// Ranks of a stage.
    data: u32,
    /// What flows out of each unit.
    flows: Vec<FlowShape>,
}

/// The groups of a rank: data-parallel ranks of its stage, its peers of the other stages, and all; those that gather, where any unit is
/// gathered; and the stages that share a unit.
pub(crate) fn join(
    device: &Device,
    spec: &RankSpec,
    boot: &dyn Bootstrap,
    shared: &[BTreeSet<usize>],
    gathers: bool,
) -> crossweave_hal::Result<Mesh> {
    let options: &MeshOptions = &spec.mesh_options();
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
    if gathers && spec.world > 1 {
        let all: Vec<u32> = (first..first + spec.world).collect();
        mesh.join(device, boot, GATHER, "dp", &all, options)?;
        if spec.zero.node > 1 {
            let first = rank - spec.rank % spec.zero.node;
            let node: Vec<u32> = (first..first + spec.zero.node).collect();
            mesh.join(device, boot, NODE, "dp.node", &node, options)?;
        }
    }
    Ok(mesh)
}

impl Pipe {
    pub fn new(
        device: &Device,
        spec: &RankSpec,
        flows: &[FlowShape],
        mesh: &Mesh,
    ) -> crossweave_hal::Result<Option<Pipe>> {
        let Some(p) = &spec.pipeline else {
            return Ok(None);
        };
        let stream = device.stream("peer", 1)?;
        let group = mesh.named_ref(PEERS)?;
        Ok(Some(Pipe {
            peers: Peers::new(stream, group, p.stages.clone(), p.stage),
            data: spec.world,
            flows: flows.to_vec(),
        }))
    }

    /// Memory for what flows out of unit `u`, or for its gradient.
    fn like_flow(&self, u: usize) -> Result<Vec<Tensor>> {
        self.flows[u].iter().map(|f| self.peers.room(f)).collect()
    }

    /// The stage of a rank of the job, as plans name it.
    fn stage_of(&self, rank: Rank) -> u32 {
        rank / self.data
    }

    /// What unit `u` made of a micro-batch arrives from a rank, or the gradient of it.
    pub fn receive(
        &self,
        mesh: &RefCell<Mesh>,
        u: usize,
        from: Rank,
        tag: CommTag,
    ) -> Result<Vec<Tensor>> {
        let values = self.like_flow(u)?;
        let stage = self.stage_of(from);
        self.peers.exchange(mesh, &values, stage, false, tag)?;
        Ok(values)
    }

    /// What unit `u` made of a micro-batch goes to a rank.
    pub fn send(&self, mesh: &RefCell<Mesh>, values: &[Tensor], to: Rank) -> Result<()> {
        let stage = self.stage_of(to);
        self.peers.exchange(mesh, values, stage, true, FORWARD)
    }

    /// The gradient of what unit `u` made goes back to a rank. What nobody differentiated has a gradient of zero.
    pub fn send_grad(
        &self,
        mesh: &RefCell<Mesh>,
        u: usize,
        grads: &[Option<Tensor>],
        to: Rank,
    ) -> Result<()> {
        let mut whole = vec![];
        for (k, flow) in self.flows[u].iter().enumerate() {
            whole.push(match grads.get(k).cloned().flatten() {
                Some(g) if g.is_dense() && g.dtype() == flow.1 => g,
                Some(_) => {
                    return crossweave_tensor::shape_error(format!(
                        "the gradient of output {k} of unit {u} is not dense, or not of the output's type"
                    ));
                }
                None => {
                    let zero = self.peers.room(flow)?;
                    self.peers.stream().fill(zero.region(), 0, 1)?;
                    zero
                }
            });
        }
        let stage = self.stage_of(to);
        self.peers.exchange(mesh, &whole, stage, true, BACKWARD)
    }

    /// Outside the step: what the stage before makes of a batch of the step's shape; nothing on the first.
    pub fn flow_in(&self, mesh: &RefCell<Mesh>, tag: CommTag) -> Result<Vec<Tensor>> {
        let first = self.peers.own_units().start;
        if first == 0 {
            return Ok(vec![]);
        }
        let ins = self.like_flow(first - 1)?;
        let before = self.peers.stage() - 1;
        self.peers.exchange(mesh, &ins, before, false, tag)?;
        Ok(ins)
    }
}
