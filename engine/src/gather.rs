//! Whole parameters outside the training step: for validation, samples and reads. What a gather and a release do is the program's.

use crate::state::UnitState;
use crate::trainer::Trainer;
use crossweave_hal::CommTag;
use crossweave_plan::StepKind;
use crossweave_tensor::{Tensor, UnitDecl, shape_error};

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

/// Ledger tag of what travels outside the training step: validation, samples.
pub(crate) const OUTSIDE: CommTag = "eval";

impl Trainer {
    /// Parameters of unit `u` in compute type, while they are whole.
    pub(crate) fn whole_params(&self, u: usize) -> Option<impl Fn(usize) -> Tensor + '_> {
        let place = self.lowered.params[u].whole?;
        let buffer = self.machine.buffer(place.mem)?;
        let s = &self.state[u];
        let dtype = s.place.compute;
        Some(move |i: usize| {
            let first = place.at + dtype.bytes(s.flat.whole_at(i));
            Tensor::dense(buffer.clone(), first, s.decls[i].shape, dtype)
        })
    }

    /// Parameters a unit sees: its own, then borrowed ones.
    pub(crate) fn views(&self, unit: usize) -> Tensors<Vec<Tensor>> {
        let own = (0..self.state[unit].decls.len()).map(|p| (unit, p));
        let all = own.chain(self.blocks.units[unit].borrowed.iter().copied());
        all.map(|(u, p)| match self.whole_params(u) {
            Some(view) => Ok(view(p)),
            None => shape_error(format!("the parameters of unit {u} are not whole")),
        })
        .collect()
    }

    /// Outside the step: makes the parameters of unit `u` whole. All ranks call this alike.
    pub(crate) fn gather_unit(&mut self, u: usize) -> Tensors<()> {
        let calls = self.lowered.outside[u].gather.clone();
        self.run_outside(calls, format!("{OUTSIDE}, unit {u}"))?;
        self.state[u].current = true;
        Ok(())
    }

    /// Gives a gathered unit's memory back; what computes with it runs before the memory is used again.
    pub(crate) fn release_unit(&mut self, u: usize) -> Tensors<()> {
        let calls = self.lowered.outside[u].release.clone();
        self.run_outside(calls, String::new())?;
        self.state[u].released();
        Ok(())
    }

    /// Outside the step: makes every unit that `u` reads whole, if it is not. All ranks call this alike.
    pub(crate) fn gather_for_eval(&mut self, u: usize) -> Tensors<()> {
        for t in touched(&self.blocks.units, u) {
            let s = &self.state[t];
            if !s.current && s.gathers() {
                self.announce_whole(t)?;
                self.gather_unit(t)?;
            }
        }
        Ok(())
    }
    /// Gives back what [`Trainer::gather_for_eval`] took.
    pub(crate) fn release_after_eval(&mut self, u: usize) -> Tensors<()> {
        touched(&self.blocks.units, u)
            .into_iter()
            .try_for_each(|t| self.release_unit(t))
    }
}

/// A unit and those whose parameters it borrows.
fn touched(units: &[UnitDecl], u: usize) -> Vec<usize> {
    let mut all = vec![u];
    all.extend(units[u].borrowed.iter().map(|(o, _)| *o));
    all.sort_unstable();
    all.dedup();
    all
}

/// Keeps account of which units hold what the ranks own now, behind a step of the plan.
pub(crate) fn note_whole(state: &mut [UnitState], step: &StepKind) {
    match step {
        StepKind::Gather { unit, .. } => state[*unit as usize].current = true,
        StepKind::Release { unit } => state[*unit as usize].released(),
        StepKind::ParamIn { unit } | StepKind::Update { unit } => state[*unit as usize].changed(),
        _ => {}
    }
}
