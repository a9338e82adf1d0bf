//! Reading state that is spread over the ranks, a parameter at a time and in any order: one rank asks, the others answer.
//!
//! A rank alone, and a rank that holds everything, reads for itself. Where state is sharded, rank 0 leads: each of its reads is announced
//! to the other ranks, which wait in [`Trainer::serve_reads`] and put their slices together with it, until rank 0 says that it has done.

use crate::base;
use crate::error::{Error, Result};
use crate::state::StateKind;
use crate::trainer::Trainer;
use crossweave_hal::{DType, Tag};
use crossweave_planner::{GATHER, everyone};
use crossweave_tensor::Tensor;
use crossweave_zero::Residency;
use std::sync::Arc;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

/// Added to the kind of state where a unit's base is meant.
const BASE: i32 = 64;
/// Announced instead of a unit when there is nothing more to read.
const DONE: i32 = -1;
/// Announced instead of a kind of state: the unit's parameters are made whole, for a forward of rank 0 alone.
const WHOLE: i32 = -2;

impl Trainer {
    /// Whether reading takes all ranks.
    pub fn reads_together(&self) -> bool {
        let sharded = self
            .state
            .iter()
            .any(|s| s.place.residency != Residency::Resident);
        self.pipe.is_some() || (self.spec.world > 1 && sharded)
    }

    /// A parameter's value or moment in f32, empty where that moment is not kept; waits for the device. Where [`Trainer::reads_together`], rank 0 calls this while all other
    /// ranks are in [`Trainer::serve_reads`].
    pub fn read(&self, name: &str, kind: StateKind) -> Result<Vec<f32>> {
        if self.pipe.is_some() {
            return self.read_over_stages(name, kind);
        }
        let (u, i) = self.find(name)?;
        let s = &self.state[u];
        let (base, r) = (s.flat.params[i].base, s.range_of(i));
        let replicated = matches!(kind, StateKind::Rows | StateKind::Cols);
        let kept = self.state_shape(u, i, kind).is_some();
        if !self.reads_together() || replicated || !kept {
            return self.host_state(u, i, kind);
        }
        if self.spec.rank != 0 {
            return Err(Error::Invalid(format!(
                "rank {} reads {name}, and state is sharded: rank 0 reads while the others serve",
                self.spec.rank
            )));
        }
        let go = || -> Tensors<Vec<f32>> {
            let word = kind as i32 + if base { BASE } else { 0 };
            self.announce([u as i32, word])?;
            let whole = self.assemble(u, kind, base)?;
            let at = 4 * r.start;
            self.host_f32(&Tensor::dense(
                whole.buffer().clone(),
                at,
                [r.end - r.start],
                DType::F32,
            ))
        };
        go().map_err(|e| self.error(name, e))
    }

    /// From here to [`Trainer::done_reading`] rank 0 works alone while the others serve it: it may also run the model
    /// ([`Trainer::logits`]), for which they put units together. Nothing changes where nothing is sharded.
    pub fn lead(&self) {
        self.saving
            .leading
            .set(self.reads_together() && self.spec.job_rank() == 0);
    }

    /// Tells the others, if this rank leads, that it makes unit `u` whole.
    pub(crate) fn announce_whole(&self, u: usize) -> Tensors<()> {
        // Of a pipeline's forward every rank knows.
        match self.saving.leading.get() && self.pipe.is_none() {
            true => self.announce([u as i32, WHOLE]).map(|_| ()),
            false => Ok(()),
        }
    }

    /// Serves rank 0 until it has done; returns at once where nothing is sharded. Every rank but 0 calls this while rank 0 reads.
    pub fn serve_reads(&mut self) -> Result<()> {
        if !self.reads_together() || self.spec.job_rank() == 0 {
            return Ok(());
        }
        if self.pipe.is_some() {
            return self.serve_stages();
        }
        self.serve().map_err(|e| self.error("serving reads", e))
    }

    fn serve(&mut self) -> Tensors<()> {
        loop {
            let [unit, kind] = self.announce([0, 0])?;
            let base = kind >= BASE;
            let plain = if base { kind - BASE } else { kind };
            let state = StateKind::ALL.into_iter().find(|k| *k as i32 == plain);
            match (usize::try_from(unit), state) {
                (Ok(u), _) if kind == WHOLE => {
                    self.gather_unit(u)?;
                    self.release_unit(u)?;
                }
                (Ok(u), Some(state)) => {
                    self.assemble(u, state, base)?;
                }
                _ => return Ok(()),
            }
        }
    }

    /// Rank 0 has read what it wanted: the other ranks go on.
    pub fn done_reading(&self) -> Result<()> {
        if !self.reads_together() || self.spec.job_rank() != 0 {
            return Ok(());
        }
        self.saving.leading.set(false);
        self.announce([DONE, 0])
            .map(|_| ())
            .map_err(|e| self.error("ending reads", e))
    }

    /// What rank 0 says.
    pub(crate) fn announce(&self, words: [i32; 2]) -> Tensors<[i32; 2]> {
        let stream = self.lanes.reductions();
        let b = self.device().alloc(stream, 8, Tag::Staging)?;
        let mut bytes = [0u8; 8];
        bytes[..4].copy_from_slice(&words[0].to_le_bytes());
        bytes[4..].copy_from_slice(&words[1].to_le_bytes());
        stream.write(b.all(), &bytes)?;
        let mut mesh = self.groups.mesh().borrow_mut();
        let all = match self.pipe {
            Some(_) => mesh.group(everyone(&self.spec))?,
            None => mesh.named(GATHER)?,
        };
        all.broadcast(stream, b.all(), DType::I32, 0, "scalar")?;
        stream.read(b.all(), &mut bytes)?;
        let [a, b, c, d, e, f, g, h] = bytes;
        Ok([
            i32::from_le_bytes([a, b, c, d]),
            i32::from_le_bytes([e, f, g, h]),
        ])
    }

    /// A unit's whole state of one kind, of its base or of what is trained, in temporary memory.
    pub(crate) fn assemble(&self, u: usize, kind: StateKind, of_base: bool) -> Tensors<Tensor> {
        let s = &self.state[u];
        let mine = match self.hosted(u) {
            _ if of_base => base::local(self, u)?,
            0 => self.local_state(s, kind)?,
            _ => {
                let n = s.owned_len();
                let bytes = self.read_local(u, kind, &(0..n))?;
                let stream = self.lanes.reductions();
                let here = self.device().alloc(stream, 4 * n, Tag::Comm)?;
                stream.write(here.all(), &bytes)?;
                Tensor::dense(Arc::new(here), 0, [n], DType::F32)
            }
        };
        if s.place.residency == Residency::Resident || (of_base && !s.base_is_sharded()) {
            return Ok(mine);
        }
        let elements = match of_base {
            true => s.flat.base.padded(),
            false => s.layout.padded(),
        };
        let stream = self.lanes.reductions();
        let whole = Arc::new(self.device().alloc(stream, 4 * elements, Tag::Comm)?);
        let mut mesh = self.groups.mesh().borrow_mut();
        let group = mesh.named(GATHER)?;
        group.about(&format!("{kind:?} of unit {u}"));
        group.all_gather(stream, mine.region(), whole.all(), DType::F32, "state")?;
        Ok(Tensor::dense(whole, 0, [elements], DType::F32))
    }

    pub(crate) fn host_f32(&self, t: &Tensor) -> Tensors<Vec<f32>> {
        let mut bytes = vec![0u8; t.extent() as usize];
        self.lanes.reductions().read(t.region(), &mut bytes)?;
        Ok(words(&bytes))
    }
}

fn words(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.as_chunks::<4>().0.iter();
    words.map(|b| f32::from_le_bytes(*b)).collect()
}
