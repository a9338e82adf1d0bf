//! Tensors, the tape inside a block, and the ops: forward, backward, sharding type and decomposition of
//! each in one file under [`ops`].
//!
//! A block's author writes an ordinary forward on [`Cx`]. Ops are recorded on a flat [`Tape`] that lives
//! for one block and one micro-batch: there are no hooks, no shared autograd graph and no lock. Between
//! blocks there is no autograd; the plan orders the blocks.
//!
//! **Invariants** (`docs/invariants.md`). A fused op and its one decomposition agree with a float64
//! reference; a forgotten collective is an error of the dry run; random numbers are a function of a key
//! and a position.

mod aside;
mod block;
mod cx;
mod decompose;
mod env;
mod error;
mod exchange;
mod groups;
pub mod ops;
mod param;
mod probe;
pub mod rows;
mod run;
pub mod spmd;
mod tape;
mod tensor;

pub use aside::aside;
pub use block::{Block, Flow, Function, Keep};
pub use crossweave_mesh::{Axis, AxisSet, Place};
pub use crossweave_program::{Ex, Prog, Shape};
pub use cx::Cx;
pub use decompose::Decompositions;
pub use env::{Batch, Env, GradSink, IGNORED, RngKey};
pub use error::{Error, Result, shape_error};
pub use exchange::{Exchange, Lane, Link, Peer, Said, check_exchange};
pub use groups::{Groups, NoGroups, Numbers, Rehearsed, read_numbers, without_room};
pub use ops::activation::Activation;
pub use ops::attention::{AttentionExtras, AttentionSpec};
pub use ops::balance::Scope;
pub use ops::capacity::{Capacity, Priority};
pub use ops::distill::Distillation;
pub use ops::dropout::{Lies, dropout_of};
pub use ops::embedding::Lookup;
pub use ops::head_norm::head_norm_over;
pub use ops::linear::{linear_scaled, linear_summand};
pub use ops::norm::NormForm;
pub use ops::norm_over::RmsNormOver;
pub use ops::pointwise::Pointwise;
pub use ops::routing::{Grouped, Routing};
pub use ops::spread::{Spread, planned_room};
pub use ops::vocabulary::Vocabulary;
pub use param::{
    Builder, Group, Images, Init, Param, ParamDecl, Pieces, Split, Unit, UnitDecl, place_on,
};
pub use probe::{Finding, NonFinite, Probe};
pub use rows::{Layout, Meeting, RowCut, Runs};
pub use run::{KernelCache, Run};
pub use spmd::{Altered, Check, Spmd, Ty, TypedParam};
pub use tape::{Owed, Tape, Var};
pub use tensor::Tensor;
