//! The units of a rank: declared, cut over the ranks that share layers, frozen and grouped as the config says, and placed.

use crate::error::{JobError, Result};
use crate::{Job, optimizer};
use crossweave_mesh::{Axis, Place};
use crossweave_nn::still;
use crossweave_planner::{Units, assign};
use crossweave_tensor::place_on;

impl Job {
    /// The model's units as the rank at a place has them, with what the config freezes marked.
    ///
    /// # Errors
    /// A parameter group that matches nothing; a model that is not cut over so many ranks.
    pub fn units(&self, place: &Place) -> Result<Units> {
        let tp = place.length(Axis::Tp).into();
        self.source.splits(tp)?;
        let mut units = self.source.units_over(tp);
        let groups = optimizer::groups(&self.resolved.settings)?;
        assign(&mut units, &groups)?;
        still(self.source.spec.model(), &mut units);
        place_on(&mut units, place)
            .map_err(|e| JobError::refused(format!("mesh.tp: {e}"), "set it to 1"))?;
        Ok(Units::new(units, place, &groups)?)
    }
}
