//! Which optimizer updates which parameter of a model.

use crate::error::{Error, Result};
use crossweave_tensor::{Group, UnitDecl};
use crossweave_zero::optim::{Assigned, ParamGroups, Recipe};

/// Marks what the groups freeze, so that planning and running agree on which parameters have a gradient.
///
/// # Errors
/// A pattern that matches no parameter; groups that freeze all.
pub(crate) fn assign(units: &mut [UnitDecl], groups: &ParamGroups) -> Result<()> {
    let all = groups
        .assign(&params(units))
        .map_err(|e| Error::Invalid(e.to_string()))?;
    if !all.is_empty() && all.iter().all(Option::is_none) {
        return Err(Error::Invalid(
            "optimizer.param_groups freeze every parameter: nothing is left to train; fix: take `frozen` from a group".into(),
        ));
    }
    let each = by_unit(units, all);
    for (u, each) in units.iter_mut().zip(each) {
        for (p, recipe) in u.params.iter_mut().zip(each) {
            if recipe.is_none() && p.group.trains() {
                p.group = Group::Frozen;
            }
        }
    }
    Ok(())
}

/// Returns the update of each parameter of each unit, `None` where it is frozen. The units are those that [`assign`] has seen: all, or
/// those of one stage of a pipeline, where a pattern may name parameters of other stages.
pub fn recipes(units: &[UnitDecl], groups: &ParamGroups) -> Vec<Vec<Option<Recipe>>> {
    by_unit(units, groups.recipes(&params(units)))
}

fn params(units: &[UnitDecl]) -> Vec<Assigned<'_>> {
    let all = units.iter().flat_map(|u| &u.params);
    all.map(|p| Assigned {
        name: &p.name,
        dims: p.shape.dims(),
        no_decay: p.group == Group::NoDecay,
        frozen: !p.group.trains(),
    })
    .collect()
}

fn by_unit(units: &[UnitDecl], all: Vec<Option<Recipe>>) -> Vec<Vec<Option<Recipe>>> {
    let mut all = all.into_iter();
    let part = |u: &UnitDecl| all.by_ref().take(u.params.len()).collect();
    units.iter().map(part).collect()
}
