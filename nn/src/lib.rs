//! Models: the blocks that compute what a description says ([`crossweave_family::desc`]), the same for every family.
//!
//! A model declares its units in run order (embedding, layers, head); it knows nothing of optimizers,
//! ranks or devices. **Invariant** (`docs/invariants.md`): its logits, loss and gradients equal those of
//! `transformers` in float64.
#![forbid(unsafe_code)]

mod ends;
mod layer;
pub mod lora;
mod parts;

pub use crossweave_family::{ConfigError, ModelSpec, desc};
pub use lora::{Adapters, Lora, LoraError, Targets};

use crossweave_tensor::{Builder, UnitDecl};
use desc::Model;

/// The units of a model, in run order; allocates nothing.
pub fn units(model: &Model) -> Vec<UnitDecl> {
    declare(model, &mut Adapters::default())
}

/// The same with the adapters that are asked for.
pub(crate) fn declare(model: &Model, all: &mut Adapters) -> Vec<UnitDecl> {
    let mut b = Builder::default();
    ends::embed(&mut b, model);
    layer::layers(&mut b, model, all);
    ends::head(&mut b, model, all);
    b.finish()
}
