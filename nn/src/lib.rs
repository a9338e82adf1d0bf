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
mod pair;
mod parts;
pub mod split;
mod vision;

pub use crossweave_family::{
    ConfigError, ModelSpec, Predicts, Stack, Tensors, desc, family, written,
};
pub use distill::Distill;
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

/// The same of a student, with the units of its teacher, which every rank has all of, as of the vocabulary.
pub fn taught(model: &Model, teacher: &Model, how: &Distill, place: &Place) -> Vec<UnitDecl> {
    let mut units = declared(model, &mut Adapters::default(), Some(how), place);
    distill::taught(&mut units, teacher, how);
    units
}

/// The units of a model with the adapters that are asked for.
pub(crate) fn declare(model: &Model, all: &mut Adapters, place: &Place) -> Vec<UnitDecl> {
    declared(model, all, None, place)
}

fn declared(
    model: &Model,
    all: &mut Adapters,
    distill: Option<&Distill>,
    place: &Place,
) -> Vec<UnitDecl> {
    let mut b = Builder::default();
    if let Some(v) = &model.vision {
        vision::declare(&mut b, model, v, all);
    }
    // A teacher's logits stand beside all of the student's.
    let rows = split::rows(model, place).filter(|_| distill.is_none());
    ends::embed(&mut b, model, rows.as_ref());
    layer::layers(&mut b, model, all, place);
    if let Some(d) = &model.decoder {
        ends::join(&mut b, model, d, rows.as_ref());
        layer::behind(&mut b, model, d, all, place);
    }
    ends::head(&mut b, model, all, distill, rows.as_ref());
    b.finish()
}
