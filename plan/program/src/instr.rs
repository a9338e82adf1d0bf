//! What a program may ask for.

use crate::memory::{MemoryDecl, Place, Tag};
use crate::params::ParamBlock;
use crate::scalar::{ScalarId, Scalars};
use crossweave_abi::{DType, Layout};
use crossweave_axes::Group;
use crossweave_plan::{Keep, Lane, Message, StepId};
use std::ops::Range;
use std::panic::Location;

/// Number of a group of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupId(pub u32);

/// Number of a kernel of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelId(pub u32);

/// Number of a block of launch-time parameters of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ParamId(pub u32);

/// Number of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FragmentId(pub u32);

/// The data that a collective moves: the ledger's tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Traffic {
    /// Gradients.
    Grad,
    /// Figures and verdicts.
    Scalar,
    /// Gradients that pipeline stages share.
    Tie,
    /// Parameters.
    Param,
    /// Scales of quantised parameters.
    Scale,
    /// Parameters, outside the training step.
    Eval,
    /// Figures of whole parameters, which an optimizer sums.
    Optimizer,
}

impl Traffic {
    /// Name, as in the ledger.
    pub fn name(self) -> &'static str {
        match self {
            Traffic::Grad => "grad",
            Traffic::Scalar => "scalar",
            Traffic::Tie => "tie",
            Traffic::Param => "param",
            Traffic::Scale => "param.scale",
            Traffic::Eval => "eval",
            Traffic::Optimizer => "optimizer",
        }
    }
}

/// A kernel: an op on operands of these layouts.
#[derive(Clone, Debug)]
pub struct KernelDecl {
    /// Id in the op table.
    pub op: u32,
    /// Layouts in the table's order.
    pub operands: Vec<Layout>,
    /// Its parameters.
    pub params: ParamBlock,
}

/// Bytes of one of a fragment's slots: its parameters, then its locals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The slot's number.
    pub slot: u16,
    /// First byte behind the slot's own first.
    pub at: u64,
    /// Length.
    pub bytes: u64,
}

/// The operation of one member of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CollectiveKind {
    /// Sums in place: `recv` alone.
    AllReduce,
    /// The largest, in place: `recv` alone.
    AllReduceMax,
    /// Sums, each rank its slice.
    ReduceScatter,
    /// Slices of all ranks, whole.
    AllGather,
    /// Equal pieces of all to all.
    AllToAll,
}

/// A member of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// The operation.
    pub kind: CollectiveKind,
    /// Element type.
    pub dtype: DType,
    /// The memory that is sent; nothing where it works in place.
    pub send: Option<Span>,
    /// The memory that is received into.
    pub recv: Span,
}

/// A figure of a step that the host is given, and the time at which it takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Figure {
    /// Loss and norm: when the step is reported.
    Step,
    /// Gradients that are not finite: before the first backward of the next step (ADR 0014).
    Verdict,
}

/// Pinned memory that passes between the host's thread and the one that enqueues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostMemory {
    /// For the words of a step that its updates read.
    Words,
    /// For the gradient of what the host's thread holds under this number.
    Grad(u32),
    /// For its gradient of some micro-batches, which the thread adds to the sum of those before.
    Part(u32),
    /// The same of the last micro-batches: behind it the sum is the gradient, whose figures the thread takes.
    Last(u32),
}

/// The memory of the host's thread that is copied to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Brought {
    /// The parameters of a room.
    Params,
    /// The sum of the squares of its gradient, an f32, behind [`HostMemory::Last`].
    Squares,
    /// The rest that rounding took from that sum, an f32: a part of a sum that another part is added to.
    SquaresLow,
    /// The number of values of its gradient that are not finite, a u32, behind [`HostMemory::Last`].
    NonFinite,
}

/// A job of the host's thread on the state that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HostJob {
    /// Reads it, with its gradient, from its file.
    StateIn,
    /// The optimizer step.
    Update,
    /// Writes it to its file.
    StateOut,
}

/// A move of the values of a micro-batch between blocks: they are handles that are shared, and no declared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Move {
    /// The inputs kept for a recompute leave the device.
    Spill,
    /// They come back.
    Fetch,
    /// The output of a unit goes to another pipeline stage.
    SendAct,
    /// It arrives.
    RecvAct,
    /// The gradient of what a unit made goes back.
    SendGrad,
    /// It arrives.
    RecvGrad,
    /// Several of these at once, of one kind.
    Exchange,
}

impl HostMemory {
    /// In words.
    pub fn name(self) -> String {
        match self {
            HostMemory::Words => "the words of the step".into(),
            HostMemory::Grad(room) => format!("the gradient of room {room}"),
            HostMemory::Part(room) => format!("a micro-batch's gradient of room {room}"),
            HostMemory::Last(room) => format!("the last micro-batch's gradient of room {room}"),
        }
    }
}

impl Brought {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Brought::Params => "room",
            Brought::Squares => "the squares of room",
            Brought::SquaresLow => "what rounding took from the squares of room",
            Brought::NonFinite => "the non-finite values of room",
        }
    }
}

impl HostJob {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            HostJob::StateIn => "read the state",
            HostJob::Update => "update",
            HostJob::StateOut => "write the state",
        }
    }
}

impl Move {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Move::Spill => "spill the kept inputs",
            Move::Fetch => "fetch the kept inputs",
            Move::SendAct => "send what the unit made",
            Move::RecvAct => "receive what the unit made",
            Move::SendGrad => "send the gradient of what the unit made",
            Move::RecvGrad => "receive the gradient of what the unit made",
            Move::Exchange => "exchange with other stages",
        }
    }
}

/// A part of a unit's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The forward; what it keeps for the backward is the call's.
    Forward,
    /// The forward again, from its kept inputs.
    Recompute,
    /// The backward: the gradient of the input, and of the parameters.
    Backward,
    /// The gradient of the input, and of the parameters but for the weights of products.
    InputGrad,
    /// The gradients of those.
    WeightGrad,
}

/// One instruction of a fragment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Instr {
    /// Transient memory begins, for `lane` first.
    Alloc {
        /// Its slot.
        slot: u16,
        /// The lane that uses it first.
        lane: Lane,
    },
    /// Transient memory ends.
    Free {
        /// Its slot.
        slot: u16,
    },
    /// Copies bytes.
    Copy {
        /// On which lane.
        lane: Lane,
        /// The destination.
        to: Span,
        /// The source.
        from: Span,
    },
    /// Fills bytes with a pattern.
    Fill {
        /// On which lane.
        lane: Lane,
        /// The memory filled.
        to: Span,
        /// The pattern repeated in it.
        pattern: u64,
        /// Bytes of the pattern.
        width: u32,
    },
    /// Fills an f32 with a step scalar.
    FillScalar {
        /// On which lane.
        lane: Lane,
        /// The memory filled.
        to: Span,
        /// The step scalar whose value is written.
        scalar: ScalarId,
    },
    /// Launches a kernel.
    Kernel {
        /// On which lane.
        lane: Lane,
        /// The kernel launched.
        kernel: KernelId,
        /// Operands in the op table's order.
        operands: Vec<Option<Span>>,
        /// Launch-time parameters.
        dynamic: Option<ParamId>,
    },
    /// A collective of several members, as one call and one event.
    Collective {
        /// The line that wrote it: what messages about it name.
        site: &'static Location<'static>,
        /// On which lane.
        lane: Lane,
        /// Over which ranks.
        group: GroupId,
        /// The data that it moves.
        traffic: Traffic,
        /// The operations of its members.
        members: Vec<Member>,
    },
    /// The host decides the step's scalars: with the verdicts of all steps before it the loss scale. No instruction before it reads
    /// one.
    Decide,
    /// Bytes go to pinned memory, from where the host takes them when it likes.
    Publish {
        /// On which lane.
        lane: Lane,
        /// The figures' kind.
        figure: Figure,
        /// The memory that they are read from.
        from: Span,
        /// The slot of the pinned memory.
        to: u16,
    },
    /// Runs a unit's block on a micro-batch: those that the call is of.
    Block {
        /// The part of the unit that runs.
        part: Part,
        /// For each parameter of a backward, its own and then those it borrows: its gradient is added to and not overwritten.
        adds: Vec<bool>,
    },
    /// Moves values of micro-batches: those that the call is of.
    Move {
        /// On which lane.
        lane: Lane,
        /// The kind of values, and their destination.
        what: Move,
    },
    /// Memory comes from the host's thread, as soon as it has some: transient pinned memory begins.
    Take {
        /// The use of the memory.
        what: HostMemory,
        /// Its slot.
        slot: u16,
    },
    /// It goes to the host's thread, filled: transient pinned memory ends.
    Give {
        /// As in `Take`.
        what: HostMemory,
        /// Its slot.
        slot: u16,
    },
    /// The host's thread is given something to do.
    Host {
        /// The job.
        job: HostJob,
        /// The number of what it holds.
        room: u32,
    },
    /// The host's thread copies to the device what it holds as `room`: parameters behind their update, or figures of their gradient.
    Bring {
        /// Its number of what it holds.
        room: u32,
        /// The data that is brought.
        what: Brought,
        /// The destination on the device.
        to: Span,
    },
    /// Waits until the host's thread has enqueued the copies of `room` that it was asked for: what comes behind waits for these by
    /// itself.
    Await {
        /// As in `Bring`.
        room: u32,
    },
    /// The work of a lane so far can be waited for without what comes behind it.
    Mark {
        /// The lane.
        lane: Lane,
    },
}

/// Memory of a fragment's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Local {
    /// Bytes.
    pub bytes: u64,
    /// The purpose, under which the ledger counts it.
    pub tag: Tag,
}

/// Instructions over parameters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fragment {
    /// Its name in errors, laws and text.
    pub name: String,
    /// Parameters: the first slots.
    pub params: u16,
    /// The slots behind them.
    pub locals: Vec<Local>,
    /// The instructions.
    pub code: Vec<Instr>,
}

/// The values of micro-batches that a call is of: handles between blocks, and no declared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Values {
    /// Those of a unit.
    Unit {
        /// The unit.
        unit: u32,
        /// The micro-batch.
        mb: u32,
        /// Values that a forward keeps of them for the backward.
        keep: Keep,
    },
    /// Those that cross between pipeline stages.
    Messages {
        /// Gradients of outputs, and not outputs.
        grad: bool,
        /// The messages of one group.
        messages: Vec<Message>,
    },
}

/// A call of a fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The step of the plan it belongs to; none at the start and the end.
    pub step: Option<StepId>,
    /// The fragment called.
    pub fragment: FragmentId,
    /// The values of its parameters, among the program's arguments.
    pub args: Range<u32>,
    /// The values of micro-batches that its blocks run on, and its moves move.
    pub values: Option<Values>,
}

/// A program.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Memory.
    pub memory: Vec<MemoryDecl>,
    /// Groups.
    pub groups: Vec<Group>,
    /// Step scalars.
    pub scalars: Scalars,
    /// Kernels.
    pub kernels: Vec<KernelDecl>,
    /// Launch-time parameters.
    pub dynamics: Vec<ParamBlock>,
    /// Fragments.
    pub fragments: Vec<Fragment>,
    /// Arguments of calls.
    pub args: Vec<Place>,
    /// The calls, in order.
    pub calls: Vec<Call>,
}
