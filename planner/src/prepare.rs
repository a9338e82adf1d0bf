//! All that is decided of a rank before it has a device: the plan and the program of its step, and the tables of its state.

use crate::dry::Dry;
use crate::error::Result;
use crate::lower::{Lowered, lower};
use crate::planning::plan_for;
use crate::spec::{RankSpec, shared};
use crate::units::Units;

/// Plans the step of a rank, holds the plan against every law, the `memory` of its device (bytes) included where it is known, and lowers
/// it to a program. `dry` is a dry run of `units`, which are those of the whole model.
///
/// # Errors
/// A specification that no rank can follow; a dry run of other units; stages that do not fit the model; a broken law, or more bytes than
/// the device has; an optimizer that cannot run where it is asked to.
pub fn prepare(spec: &RankSpec, units: &Units, dry: &Dry, memory: Option<u64>) -> Result<Lowered> {
    let spec = spec.clone().of_stages(units.len());
    spec.check()?;
    dry.is_of(units)?;
    let shared = shared(&spec, units)?;
    let held = units.clone().of_stage(&spec)?;
    let planned = plan_for(memory, &spec, &dry.units)?;
    lower(spec, &held, dry, &shared, planned)
}
