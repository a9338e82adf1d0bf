//! What a dry run of the units has found: the sizes that a rank is planned from.

use crate::error::{Error, Result};
use crate::spec::FlowShape;
use crate::units::Units;
use crossweave_plan::UnitFacts;
use crossweave_tensor::{Group, UnitDecl};

/// The findings of a dry run.
#[derive(Clone, Debug)]
pub struct Dry {
    /// Sizes of each unit, for one micro-batch.
    pub units: Vec<UnitFacts>,
    /// Parameters of the model (tied ones once), of which a rank may hold a part.
    pub params: u64,
    /// Batch and sequence length it was made for.
    pub shape: (u64, u64),
    /// The values that flow out of each unit, for one micro-batch.
    pub flows: Vec<FlowShape>,
    /// For each unit, which of its parameters (its own, then those it borrows) its backward writes gradients of.
    pub writes: Vec<Vec<bool>>,
    /// The same of the two parts of a backward in two.
    pub writes_apart: [Vec<Vec<bool>>; 2],
}

impl Dry {
    /// Refuses a dry run of other boxes than the rank holds: what is planned from it would not be what is run.
    ///
    /// # Errors
    /// The first unit of another size.
    pub(crate) fn is_of(&self, units: &Units) -> Result<()> {
        for (facts, unit) in self.units.iter().zip(units.iter()) {
            let held = numel(unit).0;
            if facts.params != held {
                return Err(Error::Invalid(format!(
                    "{}: the rank holds {held} elements of its parameters and the dry run was of {}; fix: call place_on before dry_run",
                    unit.name, facts.params
                )));
            }
        }
        Ok(())
    }
}

/// Elements of a unit's parameters, and of these the base that adapters sit on.
pub fn numel(unit: &UnitDecl) -> (u64, u64) {
    let sum = |base: bool| {
        let of = unit.params.iter();
        let of = of.filter(|p| !base || p.group == Group::Base);
        of.map(|p| p.held.part.numel()).sum()
    };
    (sum(false), sum(true))
}
