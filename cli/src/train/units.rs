//! The units of a rank, and the dry runs of those that differ.

use super::optimizer;
use crate::model::Source;
use crate::train_error::{Result, TrainError};
use crossweave_config::Resolved;
use crossweave_engine::{DryRun, assign, dry_run};
use crossweave_hal::{DType, Device};
use crossweave_mesh::{Axis, Place};
use crossweave_nn::still;
use crossweave_tensor::{UnitDecl, place_on};

/// The model's units as the rank at a place has them, with what the config freezes marked.
///
/// # Errors
/// A parameter group that matches nothing; a model that is not cut over so many ranks.
pub fn units(source: &Source, r: &Resolved, place: &Place) -> Result<Vec<UnitDecl>> {
    let tp = place.length(Axis::Tp).into();
    source.splits(tp)?;
    let mut units = source.units_over(tp);
    assign(&mut units, &optimizer::groups(&r.settings)?)?;
    still(source.spec.model(), &mut units);
    place_on(&mut units, place)
        .map_err(|e| TrainError::refused(format!("mesh.tp: {e}"), "set it to 1"))?;
    Ok(units)
}

/// Dry runs of micro-batches of the config's size, by the place on `mesh.tp`: of the first, and of the others that hold other sizes (the last has
/// fewer rows of a vocabulary that is not divided evenly).
///
/// # Errors
/// As [`units`]; a block that does not fit its sizes.
pub fn dry_runs(
    null: &Device,
    source: &Source,
    r: &Resolved,
    (compute, seq): (DType, u64),
) -> Result<Vec<(u32, DryRun)>> {
    let sizes = |all: &[UnitDecl]| -> Vec<u64> {
        let each = all.iter().flat_map(|u| &u.params);
        each.map(|p| p.local().numel()).collect()
    };
    let mut runs = vec![];
    let mut first = vec![];
    let mut rank = 0;
    for at in 0..r.mesh.length(Axis::Tp) {
        while r.mesh.place(rank).at(Axis::Tp) != at {
            rank += 1;
        }
        let own = units(source, r, &r.mesh.place(rank))?;
        if at == 0 {
            first = sizes(&own);
        } else if sizes(&own) == first {
            continue;
        }
        runs.push((at, dry_run(null, &own, compute, r.batch.micro, seq)?));
    }
    Ok(runs)
}
