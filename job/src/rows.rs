//! The cut of a job's rows over the ranks of `mesh.cp` (context parallelism): who has which tokens, and how attention meets the others.

use crate::Job;
use crate::error::{JobError, Result};
use crossweave_mesh::{Axis, Place};
use crossweave_nn::split::{self, SplitError};
use crossweave_tensor::{Layout, Meeting, RowCut};

impl Job {
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
        if self.source.teacher.is_some() {
            return Err(JobError::refused(
                "mesh.cp: a teacher reads whole rows beside the student",
                "set it to 1",
            ));
        }
        let model = self.source.spec.model();
        let mesh = &self.resolved.settings.mesh;
        let meeting = match mesh.cp_comm.as_str() {
            "a2a" => Meeting::Heads,
            _ => Meeting::Gather,
        };
        if let Err(e) = split::context(model) {
            return refused("cp", e);
        }
        if let Err(e) = split::meeting(model, [cp, tp], meeting == Meeting::Heads) {
            return refused("cp_comm", e);
        }
        let causal = split::is_causal(model);
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
            _ if causal && meeting == Meeting::Gather => Layout::ZigZag,
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
