//! A training step of one rank as a program: instructions over declared memory, one level below the plan.
//!
//! A `Plan` says which unit is gathered, run, reduced and updated, and when. A [`Program`] says which bytes that means:
//! kernels of the op table on views of buffers, copies, fills, collectives on groups. Algorithms are functions that write
//! a program with a [`Builder`]; the engine interprets it and knows none of them. The nearest relatives are the action
//! lists of `torch.distributed.pipelining` lowered to buffers, and the command buffers of IREE and PJRT.
//!
//! **Fragments.** What the layers of a model do alike is written once: a [`Fragment`] is a short list of instructions over
//! parameters, and the body of a program calls it with the memory of one layer. A body is about as long as the plan.
//!
//! **Invariants** (`docs/invariants.md`). This crate uses no device, no clock, no file and no thread. The same inputs give
//! the same program.
#![forbid(unsafe_code)]

mod build;
mod formula;
mod instr;
mod laws;
mod memory;
mod params;
mod room;
mod scalar;
mod shape;
mod state;
mod strided;
mod text;

pub use build::{Builder, Code, On, View};
pub use crossweave_abi::{self as abi, DType};
/// The names of groups.
pub use crossweave_axes as axes;
pub use formula::{Ex, Prog};
pub use instr::{
    Brought, Call, CollectiveKind, Figure, Fragment, FragmentId, GroupId, HostJob, HostMemory,
    Instr, KernelDecl, KernelId, Local, Member, Move, ParamId, Part, Program, Span, Traffic,
    Values,
};
pub use laws::{Law, ProgramError, check, check_ranks};
pub use memory::{Life, MemId, MemoryDecl, MemorySpace, Place, Tag};
pub use params::{ParamBlock, Patch, Word};
pub use room::{Room, Sums};
pub use scalar::{Decided, Given, Scalar, ScalarId, Scalars};
pub use shape::Shape;
pub use state::{
    Codec, FlatState, Owned, ParamState, Saved, StateKind, StateRun, Translate, UnitState, clip,
};
pub use strided::Strided;
pub use text::Named;
