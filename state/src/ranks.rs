//! Reading state that is spread over the ranks, a parameter at a time and in any order: rank 0 asks, the others answer.
//!
//! A rank alone, and a rank that holds everything, reads for itself. Else rank 0 leads: what it asks for is broadcast to the other ranks,
//! which wait for it (`together`) until rank 0 is done. Ranks that share a unit put their slices together; where another pipeline
//! stage runs the unit, the first of its ranks sends the whole to rank 0. A forward that rank 0 asks for is the trainer's.

use crate::error::{Error, Result};
use crate::states::{States, no_such};
use crate::together::Request;
use crate::ways::Ways;
use crate::words::Tensors;
use crossweave_hal::{DType, Tag};
use crossweave_program::StateKind;
use crossweave_tensor::{ParamDecl, Tensor};
use std::sync::Arc;

impl States {
    /// A parameter's value or moment in f32, empty where that moment is not kept; waits for the device. Where [`Together::is_needed`](crate::Together::is_needed),
    /// rank 0 calls this while all other ranks serve.
    ///
    /// # Errors
    /// A parameter there is not; a rank that is not to ask; the device, the ranks.
    pub fn read(&self, w: &Ways<'_>, name: &str, kind: StateKind) -> Result<Vec<f32>> {
        let staged = w.peers.is_some();
        let (u, i) = match staged {
            true => find_in(&self.model, name)?,
            false => self.find(name)?,
        };
        if !staged && !self.is_spread(u, i, kind) {
            return self.units[u].read_alone(w, i, kind);
        }
        if !self.together.place.is_first() {
            let why = match staged {
                true => "pipeline stages have it",
                false => "state is sharded",
            };
            return Err(Error::Invalid(format!(
                "rank {} reads {name}, and {why}: rank 0 reads while the others serve",
                self.together.place.job_rank()
            )));
        }
        self.together
            .ask(w, Request::Read(u, i, kind))
            .map_err(w.at(name))?;
        Ok(self.answer(w, u, i, kind)?.unwrap_or_default())
    }

    /// Whether ranks that share the unit put the state of a parameter together.
    fn is_spread(&self, u: usize, i: usize, kind: StateKind) -> bool {
        let unit = &self.units[u];
        unit.table.flat.cut.is_some() && !kind.is_replicated() && unit.shape(i, kind).is_some()
    }

    /// A parameter's state on rank 0, and nothing elsewhere; every rank calls this for the same request.
    ///
    /// # Errors
    /// The device; the ranks.
    pub fn answer(
        &self,
        w: &Ways<'_>,
        u: usize,
        i: usize,
        kind: StateKind,
    ) -> Result<Option<Vec<f32>>> {
        let Some(peers) = w.peers else {
            return self.read_here(w, u, i, kind);
        };
        let failed = w.at("reading a state of another stage");
        let (has, here) = (peers.stage_of(u), peers.stage());
        let own = match has == here {
            true => self.read_here(w, u, i, kind)?,
            false => None,
        };
        if has == 0 || !self.together.is_speaker() {
            return Ok(own.filter(|_| self.together.place.is_first()));
        }
        if has == here {
            let values = own.unwrap_or_default();
            peers.send_values(w.mesh, &values, 0).map_err(failed)?;
            return Ok(None);
        }
        match here {
            0 => {
                let values = peers.receive_values(w.mesh, has);
                values.map(Some).map_err(failed)
            }
            _ => Ok(None),
        }
    }

    /// A parameter's state on the first data-parallel rank of its stage, all of which call this.
    fn read_here(
        &self,
        w: &Ways<'_>,
        u: usize,
        i: usize,
        kind: StateKind,
    ) -> Result<Option<Vec<f32>>> {
        let first = self.together.is_speaker();
        if !self.is_spread(u, i, kind) {
            return match first {
                true => self.units[u].read_alone(w, i, kind).map(Some),
                false => Ok(None),
            };
        }
        let p = &self.units[u].table.params[i];
        let go = || -> Tensors<Option<Vec<f32>>> {
            let whole = assemble(self, w, u, kind, p.base)?;
            if !first {
                return Ok(None);
            }
            let n = p.range.end - p.range.start;
            w.words(&whole.narrow(0, p.range.start, n)).map(Some)
        };
        go().map_err(w.at("reading a state"))
    }
}

/// A unit's whole state of one kind, of its base or of what is trained, in temporary memory.
fn assemble(s: &States, w: &Ways<'_>, u: usize, kind: StateKind, base: bool) -> Tensors<Tensor> {
    let unit = &s.units[u];
    let table = &unit.table;
    let mine = match table.host {
        _ if base => unit.base_slice(w)?,
        0 => unit.whole_slice(w, kind)?,
        _ => {
            let n = table.flat.owned;
            let bytes = unit.read_owned(w, kind, &(0..n))?;
            let here = w.device().alloc(w.messages, 4 * n, Tag::Comm)?;
            w.messages.write(here.all(), &bytes)?;
            Tensor::dense(Arc::new(here), 0, [n], DType::F32)
        }
    };
    let flat = if base { &table.base } else { &table.flat };
    let (Some(elements), Some(group)) = (flat.cut, s.together.gather) else {
        return Ok(mine);
    };
    let whole = w.device().alloc(w.messages, 4 * elements, Tag::Comm)?;
    let whole = Arc::new(whole);
    let mut mesh = w.mesh.borrow_mut();
    let group = mesh.by(group);
    group.about(&format!("{kind:?} of unit {u}"));
    let (from, to) = (mine.region(), whole.all());
    group.all_gather(w.messages, from, to, DType::F32, "state")?;
    Ok(Tensor::dense(whole, 0, [elements], DType::F32))
}

/// Unit and place in it of a parameter, of whichever stage.
fn find_in(model: &[Vec<ParamDecl>], name: &str) -> Result<(usize, usize)> {
    let place = |all: &Vec<ParamDecl>| all.iter().position(|d| d.name == name);
    let mut units = model.iter().enumerate();
    let hit = units.find_map(|(u, all)| place(all).map(|i| (u, i)));
    hit.ok_or_else(|| no_such(name))
}
