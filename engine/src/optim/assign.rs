//! Which optimizer updates which parameter of a model.

use crate::error::{Error, Result};
use crossweave_tensor::{Group, UnitDecl};
use crossweave_zero::optim::{Assigned, ParamGroups, Recipe};

/// Marks what the groups freeze, so that planning and running agree on which parameters have a gradient. Call it on units before
/// [`dry_run`](crate::dry_run) sees them.
///
/// # Errors
/// A pattern that matches no parameter.
pub fn assign(units: &mut [UnitDecl], groups: &ParamGroups) -> Result<()> {
    let each = recipes(units, groups)?;
    for (u, each) in units.iter_mut().zip(each) {
        for (p, recipe) in u.params.iter_mut().zip(each) {
            if recipe.is_none() {
                p.group = Group::Frozen;
            }
        }
    }
    Ok(())
}

/// How each parameter of each unit is updated; none is frozen.
pub(crate) fn recipes(
    units: &[UnitDecl],
    groups: &ParamGroups,
) -> Result<Vec<Vec<Option<Recipe>>>> {
    let params: Vec<Assigned<'_>> = units
        .iter()
        .flat_map(|u| &u.params)
        .map(|p| Assigned {
            name: &p.name,
            dims: p.shape.dims(),
            no_decay: p.group == Group::NoDecay,
            frozen: p.group == Group::Frozen,
        })
        .collect();
    let all = groups
        .assign(&params)
        .map_err(|e| Error::Invalid(e.to_string()))?;
    let mut all = all.into_iter();
    Ok(units
        .iter()
        .map(|u| all.by_ref().take(u.params.len()).collect())
        .collect())
}
