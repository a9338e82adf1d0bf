//! Rows that are cut over the ranks of `mesh.cp`: how much attention the fullest rank has.

use crate::job::Job;
use crate::train_error::Result;
use crossweave_mesh::{Axis, Place};
use crossweave_tensor::Layout;
use serde::Serialize;

/// The cut of rows over the ranks of `mesh.cp`.
#[derive(Clone, Debug, Serialize)]
pub struct CutRows {
    /// The ranks.
    pub ranks: u32,
    /// The way in which queries meet keys, by its name in the config.
    pub comm: String,
    /// `zigzag` or `contiguous`.
    pub layout: &'static str,
    /// Pairs of query and key of the fullest rank over those of the mean, of rows that are one document.
    pub attention_over_mean: f64,
}

impl CutRows {
    /// That of a job's ranks at a place; none where rows are whole.
    ///
    /// # Errors
    /// Rows that are not cut so.
    pub fn of(job: &Job, place: &Place) -> Result<Option<CutRows>> {
        let whole = [vec![job.seq_len]];
        let Some(attention_over_mean) = job.attention_over_mean(place, &whole)? else {
            return Ok(None);
        };
        let cut = job.row_cut(place)?;
        Ok(Some(CutRows {
            ranks: place.length(Axis::Cp),
            comm: job.resolved.settings.mesh.cp_comm.clone(),
            layout: match cut.layout {
                Layout::ZigZag => "zigzag",
                Layout::Contiguous => "contiguous",
            },
            attention_over_mean,
        }))
    }
}
