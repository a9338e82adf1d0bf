//! The units of a rank.

use super::optimizer;
use crate::error::{CliError, Result};
use crate::model::Source;
use crossweave_config::Resolved;
use crossweave_engine::assign;
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
    assign(&mut units, &optimizer::groups(&r.settings))?;
    still(source.spec.model(), &mut units);
    place_on(&mut units, place)
        .map_err(|e| CliError::refused(format!("mesh.tp: {e}"), "set it to 1"))?;
    Ok(units)
}
