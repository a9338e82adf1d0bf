//! Whole parameters from the slices of the ranks, and back: what `Gather` and `Release` do, and the same outside the step.

use crate::base;
use crate::eight::{self, Slices};
use crate::trainer::Trainer;
use crate::walk::{EIGHT, GATHER};
use crossweave_hal::abi::op;
use crossweave_hal::{CommTag, DType, Stream};
use crossweave_mesh::Mesh;
use crossweave_tensor::{Decompositions, KernelCache, Run};
use crossweave_zero::Residency;
use std::cell::RefCell;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

/// Label of the group that gathers: a communicator of its own, so that gathers and reductions need not wait for each other.
pub(crate) const GROUP: &str = "dp/gather";

/// Label of the group of a node's ranks, which gathers from their second copies.
pub(crate) const NODE: &str = "dp/node";
/// Ledger tag of the gathers of a training step.
pub(crate) const STEP: CommTag = "param";
/// Ledger tag of gathers outside it: validation, samples.
pub(crate) const OUTSIDE: CommTag = "eval";

impl Trainer {
    /// Makes the parameters of unit `u` whole on this rank: from the slices of all ranks, or (`near`) from its node's copies. 16-bit values are cast from the own f32 slice first, so that half as many
    /// bytes travel (a quarter where the wire has 8 bits); the slice is cast, or lies already, where the gather wants it, so nothing is copied twice.
    pub(crate) fn gather_unit(&mut self, u: usize, near: bool, tag: CommTag) -> Tensors<()> {
        let hold = self.state[u].place;
        if !self.state[u].gathers() {
            return Ok(());
        }
        // Outside the step no plan has asked for the slice.
        if hold.away && self.state[u].shard().is_none() {
            self.shard_in(u)?;
        }
        self.wait_params(u)?;
        let plain = hold.compute == DType::F32;
        if plain && hold.residency == Residency::Transient && hold.ranks == 1 {
            self.state[u].show_value();
            self.state[u].close_shard();
            self.state[u].current = true;
            return Ok(());
        }
        let cache = self.cache(u, GATHER);
        let narrow = self.cache(u, EIGHT);
        let stream = match &self.gather {
            Some(s) if self.spec.overlap => s,
            _ => &self.compute,
        };
        self.state[u].open_slot(stream.device(), &mut self.slots)?;
        {
            let narrow = Run::new(stream, &Decompositions, &narrow);
            let mut mesh = self.groups.mesh().borrow_mut();
            gather_trained(self, u, near, (stream, &narrow, &cache), &mut mesh, tag)?;
            base::gather(self, u, near, (stream, &narrow), &mut mesh, tag)?;
        }
        if hold.ranks > 1 {
            // Who needs this unit need not wait for the next one, which may be gathered ahead of it.
            stream.mark()?;
        }
        self.state[u].current = true;
        self.state[u].close_shard();
        self.keep_cache(u, GATHER, cache);
        self.keep_cache(u, EIGHT, narrow);
        Ok(())
    }

    /// Gives a gathered unit's memory back; what computes with it runs before the memory is used again.
    pub(crate) fn release_unit(&mut self, u: usize) {
        self.state[u].close_slot(&mut self.slots);
    }

    /// Outside the step: makes every unit that `u` reads whole, if it is not. All ranks call this alike.
    pub(crate) fn gather_for_eval(&mut self, u: usize) -> Tensors<()> {
        for t in self.touched(u) {
            let s = &self.state[t];
            if !s.current && s.gathers() {
                self.announce_whole(t)?;
                self.gather_unit(t, false, OUTSIDE)?;
            }
        }
        Ok(())
    }
    /// Gives back what [`Trainer::hold`] took.
    pub(crate) fn release_after_eval(&mut self, u: usize) {
        for t in self.touched(u) {
            self.release_unit(t);
        }
    }
    /// The unit and those whose parameters it borrows.
    fn touched(&self, u: usize) -> Vec<usize> {
        let mut all = vec![u];
        all.extend(self.units[u].borrowed.iter().map(|(o, _)| *o));
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// The part of the trained parameters.
fn gather_trained(
    t: &Trainer,
    u: usize,
    near: bool,
    (stream, narrow, cache): (&Stream, &Run<'_>, &RefCell<KernelCache>),
    mesh: &mut Mesh,
    tag: CommTag,
) -> Tensors<()> {
    let state = &t.state[u];
    let hold = state.place;
    if state.layout.padded() == 0 {
        return Ok(());
    }
    let plain = hold.compute == DType::F32;
    let Some(whole) = state.whole() else {
        return crossweave_tensor::shape_error(format!("unit {u} has no room to be whole"));
    };
    let bytes = |e: u64| hold.compute.bytes(e);
    let trained = whole.region(0, bytes(state.length()));
    if let (true, Some(part)) = (near, &state.near) {
        let group = mesh.named(NODE)?;
        group.all_gather(stream, part.all(), trained, hold.compute, tag)?;
        return Ok(());
    }
    let owned = state.owned.clone();
    let all = 0..owned.end - owned.start;
    // What the host updates lies in 16 bits already; the rest is cast from its values.
    let host = state.host;
    let shard = state.shard().cloned();
    let value = match &shard {
        Some(s) if plain => crossweave_tensor::Tensor::dense(s.clone(), 0, [all.end], hold.compute),
        _ => state.value(&match plain {
            true => all.clone(),
            false => state.rest(),
        }),
    };
    let slice = whole.region(bytes(owned.start), bytes(all.end));
    let send = if plain {
        value.region()
    } else {
        if let Some(shard) = shard.as_ref().filter(|_| host > 0) {
            let from = shard.region(0, bytes(host));
            stream.copy(whole.region(bytes(owned.start), bytes(host)), from)?;
        }
        if host < all.end {
            let run = Run::new(stream, &Decompositions, cache);
            let here = crossweave_tensor::Tensor::dense(
                whole.clone(),
                bytes(owned.start + host),
                [all.end - host],
                hold.compute,
            );
            let p = op::NoParams::default();
            run.launch(op::CAST, &[Some(&here), Some(&value)], p.as_bytes(), &[])?;
        }
        slice
    };
    if hold.ranks == 1 {
        return Ok(());
    }
    if eight::wanted(&t.spec) {
        let slices = Slices {
            whole,
            first: 0,
            dtype: hold.compute,
            rank: hold.rank,
            ranks: hold.ranks,
            each: all.end,
        };
        slices.gather(narrow, mesh, tag)?;
    } else {
        let group = mesh.named(GROUP)?;
        if tag == OUTSIDE {
            group.about(&format!("{tag}, unit {u}"));
        }
        group.all_gather(stream, send, trained, hold.compute, tag)?;
    }
    if let Some(part) = &state.near {
        let at = u64::from(hold.rank % hold.secondary) * part.bytes();
        stream.copy(part.all(), whole.region(at, part.bytes()))?;
    }
    Ok(())
}
