//! What rank 0 asks of the ranks that read together with it, and how the others hear of it.

use crate::error::Result;
use crate::ways::Ways;
use crate::words::Tensors;
use crossweave_hal::{DType, Tag};
use crossweave_mesh::{AxisSet, GroupRef, Place};
use crossweave_program::StateKind;
use crossweave_tensor::shape_error;
use std::cell::Cell;

/// A rank among those that read together.
pub struct Together {
    /// Where it stands.
    pub place: Place,
    /// The group in which rank 0 says what it asks for; none where every rank reads for itself.
    pub all: Option<GroupRef>,
    /// Who shares parameters with it, for each set of axes over which units are shared.
    pub sharers: Vec<Sharers>,
    /// Rank 0 works alone, and the others serve it.
    pub leading: Cell<bool>,
}

/// Groups of the ranks that have parts of the same parameters.
#[derive(Clone, Copy, Debug)]
pub struct Sharers {
    /// The axes over which ranks share a unit.
    pub axes: AxisSet,
    /// These ranks, who put slices together, where units are cut.
    pub gather: Option<GroupRef>,
    /// Ranks that hold the other parts of its parameters, where there are any.
    pub parts: Option<GroupRef>,
}

/// What rank 0 asks of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A state of a parameter of a unit.
    Read(usize, usize, StateKind),
    /// The parameters of a unit are made whole, for a forward of rank 0 alone.
    Whole(usize),
    /// A forward over all pipeline stages.
    Forward {
        /// Sequences, and tokens of each.
        shape: [u64; 2],
        /// They are text that is continued.
        continues: bool,
    },
    /// Nothing more.
    Done,
}

/// First word of [`Request::Done`] and of [`Request::Forward`], in place of a unit; second word of [`Request::Whole`].
const DONE: i32 = -1;
const WHOLE: i32 = -2;
const FORWARD: i32 = -3;
/// Bits of the kind of state in a word that also names a parameter.
const KIND_BITS: u32 = 8;

impl Together {
    /// Whether reading takes all ranks.
    pub fn is_needed(&self) -> bool {
        self.all.is_some()
    }
    /// Whether this rank is the first of its stage, which answers for all of them.
    pub(crate) fn is_speaker(&self) -> bool {
        self.place.index(AxisSet::STAGE) == 0
    }
    /// Whether it is the first of those that share units over these axes, which answers for their parts of these.
    pub(crate) fn is_first_over(&self, axes: AxisSet) -> bool {
        self.place.index(axes) == 0
    }
    /// The groups of a unit that is shared over these axes.
    pub(crate) fn sharers(&self, axes: AxisSet) -> Option<&Sharers> {
        self.sharers.iter().find(|s| s.axes == axes)
    }
    /// Whether this rank reads while the others serve it.
    pub fn is_leading(&self) -> bool {
        self.leading.get()
    }
    /// From here to [`Together::done`] rank 0 works alone while the others serve it. Nothing changes where every rank reads for itself.
    pub fn lead(&self) {
        let leads = self.is_needed() && self.place.is_first();
        self.leading.set(leads);
    }

    /// Rank 0 has read what it wanted: the other ranks go on.
    ///
    /// # Errors
    /// The ranks.
    pub fn done(&self, w: &Ways<'_>) -> Result<()> {
        if !self.is_needed() || !self.place.is_first() {
            return Ok(());
        }
        self.leading.set(false);
        self.ask(w, Request::Done).map_err(w.at("ending reads"))
    }

    /// Rank 0 asks the others for something.
    ///
    /// # Errors
    /// The ranks.
    pub fn ask(&self, w: &Ways<'_>, what: Request) -> Tensors<()> {
        match what {
            Request::Read(u, i, kind) => {
                self.announce(w, [u as i32, kind as i32 | (i as i32) << KIND_BITS])?;
            }
            Request::Whole(u) => {
                self.announce(w, [u as i32, WHOLE])?;
            }
            Request::Forward {
                shape: [batch, seq],
                continues,
            } => {
                self.announce(w, [FORWARD, batch as i32])?;
                self.announce(w, [seq as i32, continues.into()])?;
            }
            Request::Done => {
                self.announce(w, [DONE, 0])?;
            }
        }
        Ok(())
    }

    /// What rank 0 asks for, on every other rank; waits for it.
    ///
    /// # Errors
    /// The ranks.
    pub fn hear(&self, w: &Ways<'_>) -> Tensors<Request> {
        let [unit, word] = self.announce(w, [0, 0])?;
        if unit == FORWARD {
            let [seq, continues] = self.announce(w, [0, 0])?;
            return Ok(Request::Forward {
                shape: [word as u64, seq as u64],
                continues: continues != 0,
            });
        }
        let wanted = word & ((1 << KIND_BITS) - 1);
        let kind = StateKind::ALL.into_iter().find(|k| *k as i32 == wanted);
        Ok(match (usize::try_from(unit), kind) {
            (Ok(u), _) if word == WHOLE => Request::Whole(u),
            (Ok(u), Some(kind)) => Request::Read(u, (word >> KIND_BITS) as usize, kind),
            _ => Request::Done,
        })
    }

    /// Two words of rank 0, on every rank.
    fn announce(&self, w: &Ways<'_>, words: [i32; 2]) -> Tensors<[i32; 2]> {
        let Some(all) = self.all else {
            return shape_error("a rank that reads for itself asks no other");
        };
        let b = w.device().alloc(w.messages, 8, Tag::Staging)?;
        let mut bytes = [0u8; 8];
        bytes[..4].copy_from_slice(&words[0].to_le_bytes());
        bytes[4..].copy_from_slice(&words[1].to_le_bytes());
        w.messages.write(b.all(), &bytes)?;
        let mut mesh = w.mesh.borrow_mut();
        let all = mesh.by(all);
        all.broadcast(w.messages, b.all(), DType::I32, 0, "scalar")?;
        w.messages.read(b.all(), &mut bytes)?;
        let [a, b, c, d, e, f, g, h] = bytes;
        Ok([
            i32::from_le_bytes([a, b, c, d]),
            i32::from_le_bytes([e, f, g, h]),
        ])
    }
}
