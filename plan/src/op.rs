//! The vocabulary of a training step: what one entry of a plan may ask for, and the lane it runs on.

use serde::{Deserialize, Serialize};

/// Index of a unit in the model's run order. The numbering is the model's, not the rank's, so that the plans of two
/// pipeline stages can be held against each other.
pub type UnitId = u32;

/// Index of a micro-batch within one optimizer step.
pub type MicroBatch = u32;

/// Index of a rank in the job: of a plan among those of all ranks.
pub type Rank = u32;

/// A pipeline stage: the coordinate on the axis `pp`.
pub type PipelineStage = u32;

/// The activations that a forward leaves behind for its backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// Every saved activation: the backward runs straight away.
    All,
    /// Only the unit's input: a `Recompute` must come before the backward.
    Input,
    /// The input and the activations that are expensive to recompute: the tape re-runs the cheap ones inside the backward.
    Selective,
    /// Nothing: the forward is run for its output alone (validation), and no backward may follow.
    Nothing,
}

/// The form of the sum of a bucket's gradients over the data-parallel group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// All-reduce: every rank ends with the whole sum.
    All,
    /// Reduce-scatter: every rank ends with its own slice of the sum.
    Scatter,
}

/// A value that crosses between this pipeline stage and another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Message {
    /// Unit whose output, or whose output's gradient, travels.
    pub unit: UnitId,
    /// Micro-batch it belongs to.
    pub mb: MicroBatch,
    /// The other stage.
    pub stage: PipelineStage,
    /// It goes there, or comes from there.
    pub sends: bool,
}

/// One operation of a step.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    /// Gather the unit's parameters from the slices of the ranks into a slot.
    Gather {
        /// Unit gathered.
        unit: UnitId,
        /// Inside the node, from the secondary shards (ZeRO++ hpZ) that the unit's last gather from all ranks has refreshed.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        node: bool,
    },
    /// Give the unit's slot back.
    Release {
        /// Unit released.
        unit: UnitId,
    },
    /// Run a unit's forward on one micro-batch.
    Forward {
        /// Unit run.
        unit: UnitId,
        /// Micro-batch run.
        mb: MicroBatch,
        /// The activations left for the backward.
        keep: Keep,
    },
    /// Rebuild, from the kept input, what the forward threw away.
    Recompute {
        /// Unit run again.
        unit: UnitId,
        /// Micro-batch run again.
        mb: MicroBatch,
    },
    /// Run a unit's backward: the gradient of its input, and the sum into its weight gradient.
    Backward {
        /// Unit run.
        unit: UnitId,
        /// Micro-batch run.
        mb: MicroBatch,
    },
    /// The first part of a backward in two: the gradient of the input, all that ranks say to each other, and the gradients of norms, biases and
    /// tables. A `WeightGrad` is then owed.
    InputGrad {
        /// Unit run.
        unit: UnitId,
        /// Micro-batch run.
        mb: MicroBatch,
    },
    /// The second part: the sum into the gradients of the weights of products, without the parameters.
    WeightGrad {
        /// Unit run.
        unit: UnitId,
        /// Micro-batch run.
        mb: MicroBatch,
    },
    /// Sum the gradients of one bucket of units over the data-parallel group, as one collective.
    ReduceGrad {
        /// Units of the bucket, in the order in which their gradients are laid out in it.
        units: Vec<UnitId>,
        /// The form of the sum: whole on each rank, or a slice.
        how: Reduction,
        /// The sum is of some micro-batches only: it is added to this rank's slice, later micro-batches begin a new gradient, and
        /// the last reduction completes the slice.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        more: bool,
    },
    /// Sum the reduced gradient of a unit with the other pipeline stages that read its parameters (tied embeddings): each rank with
    /// those that hold the same slice.
    Tie {
        /// Unit that stages share.
        unit: UnitId,
    },
    /// The global norm of all gradients and the clipping coefficient, left on the device.
    GradNorm,
    /// Find out if all gradients are finite (loss scaling); the flag is left on the device.
    Finite,
    /// Optimizer step of one unit.
    Update {
        /// Unit updated.
        unit: UnitId,
    },
    /// The gradient of one logical shard of the batch is complete (canonical order of sums): it is set aside, and added to the one
    /// set aside before it, `joins` times over. The next backward of the unit begins a new gradient.
    Fold {
        /// Unit whose gradient is set aside.
        unit: UnitId,
        /// Sums of two made of what has been set aside.
        joins: u32,
    },
    /// Set a unit's gradient to zero. A plan without these asks that the first gradient written in a step overwrites.
    ZeroGrad {
        /// Unit whose gradient is cleared.
        unit: UnitId,
    },
    /// Send the output of `unit` to the stage that runs the next unit.
    SendAct {
        /// Unit whose output travels.
        unit: UnitId,
        /// Micro-batch it belongs to.
        mb: MicroBatch,
        /// Receiving stage.
        to: PipelineStage,
    },
    /// Receive the output of `unit` from the stage that ran it.
    RecvAct {
        /// Unit whose output travels.
        unit: UnitId,
        /// Micro-batch it belongs to.
        mb: MicroBatch,
        /// Sending stage.
        from: PipelineStage,
    },
    /// Send the gradient of the output of `unit` back to the stage that ran it.
    SendGrad {
        /// Unit whose output's gradient travels.
        unit: UnitId,
        /// Micro-batch it belongs to.
        mb: MicroBatch,
        /// Receiving stage.
        to: PipelineStage,
    },
    /// Receive the gradient of the output of `unit`, which this stage ran.
    RecvGrad {
        /// Unit whose output's gradient travels.
        unit: UnitId,
        /// Micro-batch it belongs to.
        mb: MicroBatch,
        /// Sending stage.
        from: PipelineStage,
    },
    /// Sends and receives that are one group: none of them waits for another. They are of one kind, so that groups of hidden states and
    /// groups of gradients follow each other in one order on all stages.
    Exchange {
        /// Gradients of outputs travel, and not outputs.
        grad: bool,
        /// The group's number in the order that all stages have of such groups: of a message both ends are in groups of one number.
        round: u32,
        /// The messages, by the time at which they are there.
        messages: Vec<Message>,
    },
    /// Copy saved activations off the device and free them there.
    Spill {
        /// Unit whose activations leave.
        unit: UnitId,
        /// Micro-batch they belong to.
        mb: MicroBatch,
    },
    /// Bring spilled activations back.
    Fetch {
        /// Unit whose activations return.
        unit: UnitId,
        /// Micro-batch they belong to.
        mb: MicroBatch,
    },
    /// Bring a unit's optimizer state to where it is updated: the device, or host memory if the update runs there.
    StateIn {
        /// Unit whose state arrives.
        unit: UnitId,
    },
    /// Put a unit's optimizer state back where it lives.
    StateOut {
        /// Unit whose state leaves.
        unit: UnitId,
    },
    /// Copy this rank's part of a unit's reduced gradient to host memory, for an update on the host lane.
    GradOut {
        /// Unit whose gradient leaves.
        unit: UnitId,
        /// The gradient is of some micro-batches only: the host adds those of later ones to it, and the last `GradOut` completes the
        /// sum.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        more: bool,
    },
    /// Copy this rank's part of a unit's parameters, as the host updated them, onto the device: behind the update, or before
    /// it for those of the step before (a delayed update).
    ParamIn {
        /// Unit whose new parameters arrive.
        unit: UnitId,
    },
    /// Copy this rank's part of a unit's parameters, which rest in host memory, onto the device for the next gather.
    ShardIn {
        /// Unit whose slice arrives.
        unit: UnitId,
    },
}

/// An in-order queue of work. The engine maps lanes to streams; two lanes run side by side unless `after` says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// Forward, backward, update.
    Compute,
    /// Parameter gathers.
    Gather,
    /// Gradient reductions.
    Reduce,
    /// Transfers between pipeline stages.
    Peer,
    /// Copies onto the device.
    CopyIn,
    /// Copies off the device.
    CopyOut,
    /// Work done by the host's processor.
    Host,
}

impl Lane {
    /// Every lane, in the order of the columns of a printed plan.
    pub const ALL: [Lane; 7] = [
        Lane::Compute,
        Lane::Gather,
        Lane::Reduce,
        Lane::Peer,
        Lane::CopyIn,
        Lane::CopyOut,
        Lane::Host,
    ];

    /// Position in [`Lane::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// The lane's name as it is printed and as a lane override in text spells it.
    pub fn name(self) -> &'static str {
        match self {
            Lane::Compute => "compute",
            Lane::Gather => "gather",
            Lane::Reduce => "reduce",
            Lane::Peer => "peer",
            Lane::CopyIn => "copy_in",
            Lane::CopyOut => "copy_out",
            Lane::Host => "host",
        }
    }
}

impl StepKind {
    /// The lane this operation runs on unless a pass moves it. `Release` sits on the compute lane: a slot comes free when
    /// the last computation that read it is done.
    pub fn lane(&self) -> Lane {
        match self {
            StepKind::Gather { .. } => Lane::Gather,
            StepKind::ReduceGrad { .. } | StepKind::Tie { .. } => Lane::Reduce,
            StepKind::SendAct { .. }
            | StepKind::RecvAct { .. }
            | StepKind::SendGrad { .. }
            | StepKind::RecvGrad { .. }
            | StepKind::Exchange { .. } => Lane::Peer,
            StepKind::Fetch { .. }
            | StepKind::StateIn { .. }
            | StepKind::ParamIn { .. }
            | StepKind::ShardIn { .. } => Lane::CopyIn,
            StepKind::Spill { .. } | StepKind::StateOut { .. } | StepKind::GradOut { .. } => {
                Lane::CopyOut
            }
            _ => Lane::Compute,
        }
    }

    /// The unit whose full parameters this operation reads, if it reads any.
    pub fn reads_params(&self) -> Option<UnitId> {
        match *self {
            StepKind::Forward { unit, .. }
            | StepKind::Recompute { unit, .. }
            | StepKind::Backward { unit, .. }
            | StepKind::InputGrad { unit, .. } => Some(unit),
            _ => None,
        }
    }

    /// The unit into whose weight gradient this operation sums, if it does.
    pub fn writes_grad(&self) -> Option<UnitId> {
        match *self {
            StepKind::Backward { unit, .. } | StepKind::WeightGrad { unit, .. } => Some(unit),
            _ => None,
        }
    }

    /// Returns true if this is a computation of a unit, which `prefetch` counts as one step of depth.
    pub fn computes(&self) -> bool {
        self.reads_params().is_some() || matches!(self, StepKind::WeightGrad { .. })
    }

    /// A gather from all ranks.
    pub fn gather(unit: UnitId) -> StepKind {
        StepKind::Gather { unit, node: false }
    }

    /// The units this operation names, in order; none for operations over the whole model.
    pub fn units(&self) -> &[UnitId] {
        match self {
            StepKind::ReduceGrad { units, .. } => units,
            StepKind::GradNorm | StepKind::Finite | StepKind::Exchange { .. } => &[],
            StepKind::Gather { unit, .. }
            | StepKind::Release { unit }
            | StepKind::Forward { unit, .. }
            | StepKind::Recompute { unit, .. }
            | StepKind::Backward { unit, .. }
            | StepKind::InputGrad { unit, .. }
            | StepKind::WeightGrad { unit, .. }
            | StepKind::Tie { unit }
            | StepKind::Update { unit }
            | StepKind::Fold { unit, .. }
            | StepKind::ZeroGrad { unit }
            | StepKind::SendAct { unit, .. }
            | StepKind::RecvAct { unit, .. }
            | StepKind::SendGrad { unit, .. }
            | StepKind::RecvGrad { unit, .. }
            | StepKind::Spill { unit, .. }
            | StepKind::Fetch { unit, .. }
            | StepKind::StateIn { unit }
            | StepKind::StateOut { unit }
            | StepKind::GradOut { unit, .. }
            | StepKind::ParamIn { unit }
            | StepKind::ShardIn { unit } => std::slice::from_ref(unit),
        }
    }

    /// Returns the messages of an operation between pipeline stages, and whether they are gradients; none of other operations.
    pub fn messages(&self) -> (bool, Vec<Message>) {
        let (grad, unit, mb, stage, sends) = match *self {
            StepKind::SendAct { unit, mb, to } => (false, unit, mb, to, true),
            StepKind::RecvAct { unit, mb, from } => (false, unit, mb, from, false),
            StepKind::SendGrad { unit, mb, to } => (true, unit, mb, to, true),
            StepKind::RecvGrad { unit, mb, from } => (true, unit, mb, from, false),
            StepKind::Exchange {
                grad, ref messages, ..
            } => return (grad, messages.clone()),
            _ => return (false, vec![]),
        };
        let one = Message {
            unit,
            mb,
            stage,
            sends,
        };
        (grad, vec![one])
    }

    /// Returns true if this sends to other pipeline stages, or receives from them.
    pub fn is_message(&self) -> bool {
        matches!(
            self,
            StepKind::SendAct { .. }
                | StepKind::RecvAct { .. }
                | StepKind::SendGrad { .. }
                | StepKind::RecvGrad { .. }
                | StepKind::Exchange { .. }
        )
    }

    /// The micro-batch this operation belongs to, if it belongs to one.
    pub fn micro_batch(&self) -> Option<MicroBatch> {
        match *self {
            StepKind::Forward { mb, .. }
            | StepKind::Recompute { mb, .. }
            | StepKind::Backward { mb, .. }
            | StepKind::InputGrad { mb, .. }
            | StepKind::WeightGrad { mb, .. }
            | StepKind::SendAct { mb, .. }
            | StepKind::RecvAct { mb, .. }
            | StepKind::SendGrad { mb, .. }
            | StepKind::RecvGrad { mb, .. }
            | StepKind::Spill { mb, .. }
            | StepKind::Fetch { mb, .. } => Some(mb),
            _ => None,
        }
    }
}
