//! The code of units, and that it does in every step what it did in the rehearsal.

use crate::caches::Caches;
use crate::graphs::Graphs;
use crossweave_tensor::{Result, Tensor, UnitDecl, shape_error};
use std::cell::Cell;
use std::rc::Rc;

/// The code of a model's units, and what running it repeatedly makes use of.
pub(crate) struct Blocks {
    pub units: Vec<UnitDecl>,
    /// Their constant tables, on the device.
    pub consts: Vec<Vec<Tensor>>,
    pub caches: Caches,
    /// Recordings of the plan's steps, where they are replayed.
    pub graphs: Option<Graphs>,
}

impl Blocks {
    /// The number of a unit in what it draws: however the ranks share experts, it is the same.
    pub fn number(&self, u: usize) -> u32 {
        let before = self.units[..u].iter();
        before.filter(|unit| !unit.lends).count() as u32
    }
}

/// The program of a step was written for the gradients that the rehearsal's backward has written: another set would be summed
/// with what its memory held before, or replaced by zeros.
pub(crate) fn as_rehearsed(
    unit: &UnitDecl,
    adds: &[bool],
    writes: &[bool],
    grads: &[Tensor],
    written: &[Rc<Cell<bool>>],
) -> Result<()> {
    let expected = adds.iter().zip(writes);
    for (i, ((adds, writes), flag)) in expected.zip(written).enumerate() {
        if grads[i].numel() > 0 && flag.get() != (*adds || *writes) {
            let (has, is) = match flag.get() {
                true => ("has a", "is none"),
                false => ("has no", "is one"),
            };
            return shape_error(format!(
                "the backward of {} {has} gradient of its parameter {i}, and in the rehearsal there {is}: a block \
                 computes the same for every batch and step",
                unit.name
            ));
        }
    }
    Ok(())
}
