//! Whole parameters outside the training step: for validation, samples and reads. What a gather and a release do is the program's.

use super::Engine;
use crossweave_hal::CommTag;
use crossweave_planner as planner;
use crossweave_state::Request;
use crossweave_tensor::{Tensor, UnitDecl, shape_error};

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

/// Ledger tag of what travels outside the training step: validation, samples.
pub(super) const OUTSIDE: CommTag = "eval";

impl Engine {
    /// Parameters of unit `u` in compute type, while they are whole.
    pub(super) fn whole_params(&self, u: usize) -> Option<impl Fn(usize) -> Tensor + '_> {
        let table = self.state.table(u);
        let place = table.whole?;
        let buffer = self.machine.buffer(place.mem)?;
        let dtype = table.compute;
        Some(move |i: usize| {
            let first = place.at + dtype.bytes(table.params[i].whole_at);
            Tensor::dense(
                buffer.clone(),
                first,
                self.state.params(u)[i].local(),
                dtype,
            )
        })
    }

    /// Parameters a unit sees: its own, then borrowed ones.
    pub(super) fn views(&self, unit: usize) -> Tensors<Vec<Tensor>> {
        let own = (0..self.state.params(unit).len()).map(|p| (unit, p));
        let all = own.chain(self.blocks.units[unit].borrowed.iter().copied());
        all.map(|(u, p)| match self.whole_params(u) {
            Some(view) => Ok(view(p)),
            None => shape_error(format!("the parameters of unit {u} are not whole")),
        })
        .collect()
    }

    /// Outside the step: makes the parameters of unit `u` whole. All ranks call this alike.
    pub(super) fn gather_unit(&mut self, u: usize) -> Tensors<()> {
        let calls = self.lowered.outside[u].gather.clone();
        self.run_outside(calls, format!("{OUTSIDE}, unit {u}"))?;
        self.whole.gathered(u);
        Ok(())
    }

    /// Gives a gathered unit's memory back; what computes with it runs before the memory is used again.
    pub(super) fn release_unit(&mut self, u: usize) -> Tensors<()> {
        let calls = self.lowered.outside[u].release.clone();
        self.run_outside(calls, String::new())?;
        self.whole.released(u);
        Ok(())
    }

    /// Outside the step: makes every unit that `u` reads whole, if it is not. All ranks call this alike.
    pub(super) fn gather_for_eval(&mut self, u: usize) -> Tensors<()> {
        for t in touched(&self.blocks.units, u) {
            if self.whole.is_stale(t) {
                // Of a forward of several ranks every one knows.
                let together = planner::forwards_together(&self.lowered.spec, &self.lowered.facts);
                if self.state.together().is_leading() && !together {
                    self.state.together().ask(&self.ways(), Request::Whole(t))?;
                }
                self.gather_unit(t)?;
            }
        }
        Ok(())
    }
    /// Gives back what [`Engine::gather_for_eval`] took.
    pub(super) fn release_after_eval(&mut self, u: usize) -> Tensors<()> {
        touched(&self.blocks.units, u)
            .into_iter()
            .try_for_each(|t| self.release_unit(t))
    }

    /// What the host was asked to do with the parameters that unit `u` reads is enqueued.
    pub(super) fn wait_units(&self, u: usize) -> Tensors<()> {
        self.wait_params(u)?;
        let mut borrowed = self.blocks.units[u].borrowed.iter();
        borrowed.try_for_each(|(o, _)| self.wait_params(*o))
    }

    /// The same of a unit's own.
    pub(super) fn wait_params(&self, u: usize) -> Tensors<()> {
        let Some(host) = &self.host else {
            return Ok(());
        };
        let table = self.state.table(u);
        host.wait_room(table.flat.room)?;
        host.wait_room(table.base.room)
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
