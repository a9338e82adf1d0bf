//! The units of a model as one rank has them: placed on the mesh, and frozen where no optimizer updates them.

use crate::assign::assign;
use crate::error::{Error, Result};
use crate::spec::{RankSpec, keep_stage};
use crossweave_mesh::Place;
use crossweave_tensor::{UnitDecl, place_on};
use crossweave_zero::optim::ParamGroups;
use std::ops::Deref;

/// The units of a model as the rank at one place has them.
#[derive(Clone)]
pub struct Units(Vec<UnitDecl>);

impl Units {
    /// Says of every parameter what the rank at `place` holds of it, and marks what the groups freeze.
    ///
    /// # Errors
    /// A parameter that the mesh does not cut; a pattern that matches no parameter; groups that freeze all.
    pub fn new(mut units: Vec<UnitDecl>, place: &Place, groups: &ParamGroups) -> Result<Units> {
        assign(&mut units, groups)?;
        place_on(&mut units, place).map_err(|e| Error::Place {
            rank: place.job_rank(),
            what: e.to_string(),
        })?;
        Ok(Units(units))
    }

    /// The same after `change`, which sees what each unit trains: for blocks that run otherwise where nothing in them does.
    pub fn changed(mut self, change: impl FnOnce(&mut [UnitDecl])) -> Units {
        change(&mut self.0);
        self
    }

    /// Their declarations.
    pub fn into_inner(self) -> Vec<UnitDecl> {
        self.0
    }

    /// Returns the units with the parameters that the rank's pipeline stage holds. Numbers stay the model's.
    ///
    /// # Errors
    /// Stages that do not fit the model.
    pub fn of_stage(self, spec: &RankSpec) -> Result<Vec<UnitDecl>> {
        let Units(mut units) = self;
        keep_stage(spec, &mut units)?;
        Ok(units)
    }
}

impl Deref for Units {
    type Target = [UnitDecl];
    fn deref(&self) -> &[UnitDecl] {
        &self.0
    }
}
