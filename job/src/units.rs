//! The units of a rank: declared, cut over the ranks that share layers, frozen and grouped as the config says, and placed.

use crate::error::{JobError, Result};
use crate::{Job, optimizer};
use crossweave_config::{Recompute, SequenceParallel};
use crossweave_mesh::{Axis, AxisSet, Place};
use crossweave_nn::split::{SplitError, sequence};
use crossweave_nn::still;
use crossweave_planner::{Error, Units};

const KEY: &str = "mesh.sequence_parallel";

impl Job {
    /// The model's units as the rank at a place has them, with what the config freezes marked.
    ///
    /// # Errors
    /// A parameter group that matches nothing; a model that is not cut over so many ranks.
    pub fn units(&self, place: &Place) -> Result<Units> {
        self.source.may_cut(place)?;
        let groups = optimizer::groups(&self.resolved.settings)?;
        let mut units = self.source.units_on(place);
        if self.cuts_tokens(place)? {
            let over = AxisSet::from(Axis::Tp);
            units.iter_mut().for_each(|u| u.hidden_over = over);
        }
        let rows = self.row_cut(place)?;
        units.iter_mut().for_each(|u| u.rows = rows);
        let units = Units::new(units, place, &groups);
        let units = units.map_err(|e| match e {
            Error::Place { what, .. } => {
                JobError::refused(format!("mesh.tp: {what}"), "set it to 1")
            }
            e => e.into(),
        })?;
        Ok(units.changed(|units| still(self.source.spec.model(), units)))
    }

    /// Returns true if the ranks that share layers have pieces of the tokens of hidden states (`mesh.sequence_parallel`).
    ///
    /// # Errors
    /// It is asked for, or a model with experts needs it, and they cannot.
    pub fn cuts_tokens(&self, place: &Place) -> Result<bool> {
        let ranks = [Axis::Cp, Axis::Tp].map(|a| place.length(a));
        let [_, tp] = ranks;
        let routed = self.source.spec.model().routed().next().is_some();
        let may = || {
            let may = self.may_cut_tokens(ranks);
            may.map_err(|e| JobError::refused(format!("{KEY}: {}", e.what), e.fix))
        };
        match self.resolved.settings.mesh.sequence_parallel {
            _ if tp == 1 => Ok(false),
            SequenceParallel::Set(false) if routed => Err(JobError::refused(
                format!(
                    "{KEY}: ranks of mesh.tp that have all tokens of a row would each send them to their experts"
                ),
                "set it to \"auto\" or true, or mesh.tp to 1",
            )),
            SequenceParallel::Set(false) => Ok(false),
            SequenceParallel::Asked(_) if routed => may().map(|()| true),
            SequenceParallel::Asked(_) => Ok(may().is_ok()),
            SequenceParallel::Set(true) => may().map(|()| true),
        }
    }

    /// Returns the sentence about `mesh.sequence_parallel` where it is "auto" and the job does not allow it.
    pub fn why_tokens_are_whole(&self) -> Option<String> {
        let asked = self.resolved.settings.mesh.sequence_parallel;
        let ranks = [Axis::Cp, Axis::Tp].map(|a| self.resolved.mesh.length(a));
        let auto = matches!(asked, SequenceParallel::Asked(_)) && ranks[1] > 1;
        let e = auto.then(|| self.may_cut_tokens(ranks).err()).flatten()?;
        Some(format!("{KEY} is off: {}", e.what))
    }

    /// Returns the sentence about kept inputs in parts where they are asked for and cut by tokens already.
    pub fn why_inputs_are_cut_already(&self) -> Option<String> {
        let keys = &self.resolved.settings.activation_checkpointing;
        let recomputes = self.resolved.model.recompute() == Recompute::Full;
        let asked = keys.partition_activations && recomputes;
        let cut = asked && self.cuts_tokens(&self.place(0)).unwrap_or(false);
        cut.then(|| {
            format!("activation_checkpointing.partition_activations has no effect: {KEY} has cut what is kept by tokens")
        })
    }

    /// Can the ranks that share layers have pieces of the tokens that are here, of rows that `cp` ranks have parts of?
    fn may_cut_tokens(&self, [cp, tp]: [u32; 2]) -> std::result::Result<(), SplitError> {
        if self.source.teacher.is_some() {
            return Err(SplitError {
                what: "a teacher reads whole rows beside the student".into(),
                fix: "set it to \"auto\" or false".into(),
            });
        }
        let tokens = self.tokens_per_row() / u64::from(cp);
        sequence(self.source.spec.model(), tp.into(), tokens)
    }
}
