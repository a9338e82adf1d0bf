//! Reading state that is spread over the ranks, a parameter at a time and in any order: rank 0 asks, the others answer.
//!
//! A rank alone, and a rank that holds everything, reads for itself. Else rank 0 leads: what it asks for is broadcast to the other ranks,
//! which wait for it (`together`) until rank 0 is done. Ranks that share a unit put their slices together; where another pipeline
//! stage runs the unit, the first of its ranks sends the whole to rank 0. A forward that rank 0 asks for is the engine's.

use crate::error::{Error, Result};
use crate::states::{States, no_such};
use crate::together::Request;
use crate::ways::Ways;
use crate::words::Tensors;
use crossweave_hal::{DType, Tag};
use crossweave_program::StateKind;
use crossweave_tensor::{ParamDecl, Tensor, shape_error};
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
        if !staged && !self.is_spread(u, i, kind) && !self.units[u].is_cut(i, kind) {
            return self.units[u].read_alone(w, i, kind);
        }
        if !self.together.place.is_first() {
            let why = match staged {
                true => "pipeline stages have it",
                false => "other ranks hold parts of it",
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

    /// A parameter's state on the first rank of its stage, all of which call this.
    fn read_here(
        &self,
        w: &Ways<'_>,
        u: usize,
        i: usize,
        kind: StateKind,
    ) -> Result<Option<Vec<f32>>> {
        let part = read_part(self, w, (u, i), kind)?;
        let speaks = self.together.is_speaker();
        let Some(part) = part.filter(|_| speaks || self.units[u].is_cut(i, kind)) else {
            return Ok(None);
        };
        if !self.units[u].is_cut(i, kind) {
            return Ok(Some(part));
        }
        let whole = join_parts(self, w, (u, i), &part);
        let whole = whole.map_err(w.at("reading a state of which ranks hold parts"))?;
        Ok(Some(whole).filter(|_| speaks))
    }
}

/// The whole of a parameter's state, of which this rank has `part` and the others of its group theirs.
fn join_parts(s: &States, w: &Ways<'_>, (u, i): (usize, usize), part: &[f32]) -> Tensors<Vec<f32>> {
    let (d, owners) = (&s.units[u].decls[i], s.units[u].table.owners);
    let Some(group) = s.together.sharers(owners).and_then(|s| s.parts) else {
        return shape_error(format!("{}: no group of the ranks that hold it", d.name));
    };
    let members = s.together.place.members(owners.holders());
    let members = members.or_else(|e| shape_error(e.to_string()))?;
    let held = members.iter().map(|p| Ok(d.held_at(p)?.part));
    let held = held.collect::<Tensors<Vec<_>>>()?;
    let most = held.iter().map(|b| b.numel()).max().unwrap_or(0);
    // All of one length, as an all-gather wants them: the last may be shorter.
    let bytes: Vec<u8> = part.iter().flat_map(|v| v.to_le_bytes()).collect();
    let mine = w.device().alloc(w.messages, 4 * most, Tag::Comm)?;
    w.messages.fill(mine.all(), 0, 1)?;
    w.messages
        .write(mine.region(0, bytes.len() as u64), &bytes)?;
    let n = most * held.len() as u64;
    let all = w.device().alloc(w.messages, 4 * n, Tag::Comm)?;
    let all = Tensor::dense(Arc::new(all), 0, [n], DType::F32);
    let (from, to) = (mine.all(), all.region());
    let mut mesh = w.mesh.borrow_mut();
    let group = mesh.by(group);
    group.all_gather(w.messages, from, to, DType::F32, "state")?;
    let values = w.words(&all)?;
    let mut whole = vec![0.0; d.shape.numel() as usize];
    for (b, of) in held.iter().zip(values.chunks(most.max(1) as usize)) {
        b.put(of, &mut whole);
    }
    Ok(whole)
}

/// What the ranks of its flat hold of a parameter's state, on the first of them, all of which call this.
fn read_part(
    s: &States,
    w: &Ways<'_>,
    (u, i): (usize, usize),
    kind: StateKind,
) -> Result<Option<Vec<f32>>> {
    let first = s.together.is_first_over(s.units[u].table.owners);
    if !s.is_spread(u, i, kind) {
        return match first {
            true => s.units[u].read_alone(w, i, kind).map(Some),
            false => Ok(None),
        };
    }
    let p = &s.units[u].table.params[i];
    let go = || -> Tensors<Option<Vec<f32>>> {
        let whole = assemble(s, w, u, kind, p.base)?;
        if !first {
            return Ok(None);
        }
        let n = p.range.end - p.range.start;
        w.words(&whole.narrow(0, p.range.start, n)).map(Some)
    };
    go().map_err(w.at("reading a state"))
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
    let cut = flat.cut.filter(|n| *n > 0);
    let sharers = s.together.sharers(table.owners);
    let (Some(elements), Some(group)) = (cut, sharers.and_then(|s| s.gather)) else {
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
