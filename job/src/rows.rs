//! The cut of a job's rows over the ranks of `mesh.cp` (context parallelism): who has which tokens, and how attention meets the others.

use crate::Job;
use crate::error::{JobError, Result};
use crossweave_config::Mesh;
use crossweave_mesh::{Axis, Place};
use crossweave_nn::split::{self, SplitError};
use crossweave_tensor::{Layout, Meeting, RowCut};

/// The way in which queries of a job whose rows are cut over `cp` ranks meet the keys of the others.
fn meeting(mesh: &Mesh, cp: u64) -> Result<Meeting> {
    let both = mesh.cp_comm == "a2a+p2p";
    let inner = mesh.cp_inner;
    match inner {
        None if both => {
            let fits: Vec<String> = (2..cp)
                .filter(|n| cp.is_multiple_of(*n))
                .map(|n| n.to_string())
                .collect();
            Err(JobError::refused(
                format!(
                    "mesh.cp_comm: \"a2a+p2p\" of {cp} ranks says nothing of how many exchange heads"
                ),
                match &fits[..] {
                    [] => "set it to \"a2a\" or \"p2p\"".into(),
                    fits => format!("set mesh.cp_inner to {}", fits.join(" or ")),
                },
            ))
        }
        Some(n) if both && (n < 2 || n >= cp || !cp.is_multiple_of(n)) => Err(JobError::refused(
            format!("mesh.cp_inner: {n} ranks that exchange heads are no part of {cp} on a ring"),
            "set it to a divisor of mesh.cp between 1 and mesh.cp, or mesh.cp_comm to \"a2a\" or \"p2p\"",
        )),
        Some(n) if !both => Err(JobError::refused(
            format!(
                "mesh.cp_inner: {n} ranks exchange heads within a ring, and mesh.cp_comm is \"{}\"",
                mesh.cp_comm
            ),
            "remove it, or set mesh.cp_comm to \"a2a+p2p\"",
        )),
        _ => Ok(match mesh.cp_comm.as_str() {
            "a2a" => Meeting::Heads,
            "p2p" | "a2a+p2p" => Meeting::Ring {
                inner: inner.unwrap_or(1) as u32,
            },
            _ => Meeting::Gather,
        }),
    }
}

impl Job {
    /// Pairs of query and key of the fullest of the ranks that share rows with the one at a place, over those of their mean: of all layers, over rows
    /// of texts of these lengths. None where rows are whole.
    ///
    /// # Errors
    /// As [`Job::row_cut`].
    pub fn attention_over_mean(&self, place: &Place, rows: &[Vec<u64>]) -> Result<Option<f64>> {
        let ranks = u64::from(place.length(Axis::Cp));
        if ranks == 1 {
            return Ok(None);
        }
        let cut = self.row_cut(place)?;
        let layers = &self.source.spec.model().stack.layers;
        let windows = layers.iter().map(|l| l.attention.1.window);
        let mut windows: Vec<u64> = windows.collect();
        windows.sort_unstable();
        let pairs = |at: u64| -> f64 {
            let of = |same: &[u64]| {
                let rows = rows
                    .iter()
                    .map(|r| cut.pairs([at, ranks], self.seq_len, r, same[0]));
                same.len() as f64 * rows.sum::<f64>()
            };
            windows.chunk_by(|a, b| a == b).map(of).sum()
        };
        let all: Vec<f64> = (0..ranks).map(pairs).collect();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let most = all.iter().copied().fold(0.0, f64::max);
        Ok(Some(if mean > 0.0 { most / mean } else { 1.0 }))
    }

    /// The cut of rows over the ranks at a place; that of a whole row where there is one rank.
    ///
    /// # Errors
    /// A model whose rows are not cut, heads or tokens that the ranks do not divide, a layout that is for causal models.
    pub fn row_cut(&self, place: &Place) -> Result<RowCut> {
        let [cp, tp] = [Axis::Cp, Axis::Tp].map(|a| u64::from(place.length(a)));
        if cp == 1 {
            return Ok(RowCut::default());
        }
        let refused = |key: &str, e: SplitError| {
            Err(JobError::refused(format!("mesh.{key}: {}", e.what), e.fix))
        };
        if self.source.own.is_some() {
            return Err(JobError::refused(
                "mesh.cp: units of the program look at whole rows",
                "set it to 1",
            ));
        }
        let model = self.source.spec.model();
        let mesh = &self.resolved.settings.mesh;
        let meeting = meeting(mesh, cp)?;
        let gathered = meeting == Meeting::Gather;
        let causal = split::is_causal(model);
        let teacher = self.source.teacher.as_ref().map(|t| t.spec.model());
        for one in [Some(model), teacher].into_iter().flatten() {
            if let Err(e) = split::context(one) {
                return refused("cp", e);
            }
            // Layers of a teacher that ranks cannot share are whole on each.
            let tp = split::check(one, tp).map_or(1, |()| tp);
            if let Err(e) = split::meeting(one, [meeting.exchange(cp), tp], gathered) {
                return refused("cp_comm", e);
            }
        }
        if teacher.is_some_and(|t| split::is_causal(t) != causal) {
            return Err(JobError::refused(
                "mesh.cp: the teacher sees other tokens of a row than the student, and one cut is not for both",
                "set it to 1, or name a teacher of the student's kind",
            ));
        }
        let layout = match mesh.cp_layout.as_str() {
            "zigzag" if !causal => {
                return Err(JobError::refused(
                    "mesh.cp_layout: \"zigzag\" evens out causal masks, and this model sees both ways",
                    "set it to \"contiguous\"",
                ));
            }
            "zigzag" => Layout::ZigZag,
            "contiguous" => Layout::Contiguous,
            // Of heads every rank has as many pairs of query and key anyway.
            _ if causal && meeting != Meeting::Heads => Layout::ZigZag,
            _ => Layout::Contiguous,
        };
        let (tokens, pieces) = (self.tokens_per_row(), layout.pieces(cp));
        if !tokens.is_multiple_of(pieces) {
            let longer = format!(
                "make rows {} tokens long (data.seq_len)",
                tokens.next_multiple_of(pieces)
            );
            let contiguous = layout == Layout::ZigZag && tokens.is_multiple_of(cp);
            return Err(JobError::refused(
                format!(
                    "mesh.cp: rows of {tokens} tokens are not cut into {pieces} equal pieces for {cp} ranks{}",
                    if layout == Layout::ZigZag {
                        " (zigzag: two each)"
                    } else {
                        ""
                    }
                ),
                match contiguous {
                    true => format!("{longer}, or set mesh.cp_layout to \"contiguous\""),
                    false => longer,
                },
            ));
        }
        Ok(RowCut {
            layout,
            meeting,
            causal,
        })
    }
}
