//! The units of a rank: declared, cut over the ranks that share layers, frozen and grouped as the config says, and placed.

use crate::error::{JobError, Result};
use crate::{Job, optimizer};
use crossweave_mesh::Place;
use crossweave_nn::still;
use crossweave_planner::{Error, Units};

impl Job {
    /// The model's units as the rank at a place has them, with what the config freezes marked.
    ///
    /// # Errors
    /// A parameter group that matches nothing; a model that is not cut over so many ranks.
    pub fn units(&self, place: &Place) -> Result<Units> {
        self.source.may_cut(place)?;
        let groups = optimizer::groups(&self.resolved.settings)?;
        let units = Units::new(self.source.units_on(place), place, &groups);
        let units = units.map_err(|e| match e {
            Error::Place { what, .. } => {
                JobError::refused(format!("mesh.tp: {what}"), "set it to 1")
            }
            e => e.into(),
        })?;
        Ok(units.changed(|units| still(self.source.spec.model(), units)))
    }
}
