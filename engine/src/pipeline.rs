//! A rank as one stage of a pipeline: which units it holds, whom it exchanges hidden states and their gradients with, and whose
//! gradients it sums with other stages (ADR 0026, 0044).

use crossweave_hal::{CommTag, Device};
use crossweave_mesh::Mesh;
use crossweave_plan::PipelineStage;
use crossweave_planner::{FlowShape, Lowered};
use crossweave_state::{Letter, Peers};
use crossweave_tensor::{Result, Tensor};
use std::cell::RefCell;

/// Ledger tags of what crosses a boundary between stages, forward and backward.
pub(crate) const FORWARD: CommTag = "activation";
pub(crate) const BACKWARD: CommTag = "activation_grad";

/// What a stage has beside what every rank has.
pub(crate) struct Pipe {
    pub peers: Peers,
    /// What flows out of each unit.
    flows: Vec<FlowShape>,
}

impl Pipe {
    pub fn new(
        device: &Device,
        lowered: &Lowered,
        mesh: &Mesh,
    ) -> crossweave_hal::Result<Option<Pipe>> {
        let (Some(p), Some(peers)) = (&lowered.spec.pipeline, &lowered.groups.peers) else {
            return Ok(None);
        };
        let stream = device.stream("peer", 1)?;
        let group = mesh.group_ref(peers)?;
        Ok(Some(Pipe {
            peers: Peers::new(stream, group, p.runs.clone(), lowered.spec.stage()),
            flows: lowered.flows.clone(),
        }))
    }

    /// Memory for what flows out of unit `u`, or for its gradient.
    pub fn like_flow(&self, u: usize) -> Result<Vec<Tensor>> {
        self.flows[u].iter().map(|f| self.peers.room(f)).collect()
    }

    /// The gradient of what unit `u` made, as it goes back to a stage. What nobody differentiated has a gradient of zero.
    pub fn whole_grads(&self, u: usize, grads: &[Option<Tensor>]) -> Result<Vec<Tensor>> {
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
        Ok(whole)
    }

    /// Messages of the step, as one group.
    pub fn exchange(&self, mesh: &RefCell<Mesh>, letters: &[Letter], tag: CommTag) -> Result<()> {
        self.peers.exchange(mesh, letters, tag)
    }

    /// Outside the step: what unit `u` of another stage makes of a batch of the step's shape.
    pub fn flow_in(
        &self,
        mesh: &RefCell<Mesh>,
        u: usize,
        from: PipelineStage,
        tag: CommTag,
    ) -> Result<Vec<Tensor>> {
        let ins = self.like_flow(u)?;
        self.peers.receive_into(mesh, &ins, from, tag)?;
        Ok(ins)
    }
}
