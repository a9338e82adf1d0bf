//! Models: the blocks that compute what a description says ([`crossweave_family::desc`]), the same for every family.
//!
//! A model declares its units in run order (embedding, layers, head); it knows nothing of optimizers,
//! ranks or devices. **Invariant** (`docs/invariants.md`): its logits, loss and gradients equal those of
//! `transformers` in float64.
#![forbid(unsafe_code)]

mod context;
pub mod distill;
mod ends;
mod experts;
mod layer;
pub mod lora;
mod lora_stacks;
mod pair;
mod parts;
pub mod split;
mod vision;

pub use crossweave_family::{
    ConfigError, ModelSpec, Predicts, Stack, Tensors, desc, family, written,
};
pub use distill::Distill;
use distill::Role;
pub use experts::room_of;
pub use lora::{Adapters, Lora, LoraError, Targets};
pub use vision::still;

use crossweave_tensor::{Builder, Place, UnitDecl};
use desc::Model;

/// The units of a model, in run order; allocates nothing.
pub fn units(model: &Model) -> Vec<UnitDecl> {
    units_over(model, &Place::alone())
}

/// The same with the layers and the vocabulary cut over the tensor-parallel ranks of a place's mesh ([`split`]).
pub fn units_over(model: &Model, place: &Place) -> Vec<UnitDecl> {
    declare(model, &mut Adapters::default(), place)
}

/// The same of a student, with the units of its teacher: its vocabulary is cut as the student's, and its layers where they can be.
pub fn taught(model: &Model, teacher: &Model, how: &Distill, place: &Place) -> Vec<UnitDecl> {
    let all = &mut Adapters::default();
    let mut units = declared(model, all, [place; 2], Role::Student(how));
    distill::taught(&mut units, teacher, how, place);
    units
}

/// The units of a model with the adapters that are asked for.
pub(crate) fn declare(model: &Model, all: &mut Adapters, place: &Place) -> Vec<UnitDecl> {
    declared(model, all, [place; 2], Role::Alone)
}

/// The same of a model of a role, with places of their own for the vocabulary and for the layers.
pub(crate) fn declared(
    model: &Model,
    all: &mut Adapters,
    [of_rows, place]: [&Place; 2],
    role: Role<'_>,
) -> Vec<UnitDecl> {
    let mut b = Builder::default();
    if let Some(v) = &model.vision {
        vision::declare(&mut b, model, v, all);
    }
    let rows = split::rows(model, of_rows);
    ends::embed(&mut b, model, rows.as_ref());
    layer::layers(&mut b, model, all, place);
    if let Some(d) = &model.decoder {
        ends::join(&mut b, model, d, rows.as_ref());
        layer::behind(&mut b, model, d, all, place);
    }
    ends::head(&mut b, model, all, role, rows.as_ref());
    b.finish()
}
