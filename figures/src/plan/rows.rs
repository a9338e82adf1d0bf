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
        let ranks = place.length(Axis::Cp);
        if ranks == 1 {
            return Ok(None);
        }
        let cut = job.row_cut(place)?;
        let layers = &job.source.spec.model().stack.layers;
        let windows = layers.iter().map(|l| l.attention.1.window);
        let mut windows: Vec<u64> = windows.collect();
        windows.sort_unstable();
        let pairs = |at: u64| -> f64 {
            let of = |same: &[u64]| {
                same.len() as f64 * cut.pairs([at, ranks.into()], job.seq_len, same[0])
            };
            windows.chunk_by(|a, b| a == b).map(of).sum()
        };
        let all: Vec<f64> = (0..u64::from(ranks)).map(pairs).collect();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let most = all.iter().copied().fold(0.0, f64::max);
        Ok(Some(CutRows {
            ranks,
            comm: job.resolved.settings.mesh.cp_comm.clone(),
            layout: match cut.layout {
                Layout::ZigZag => "zigzag",
                Layout::Contiguous => "contiguous",
            },
            attention_over_mean: if mean > 0.0 { most / mean } else { 1.0 },
        }))
    }
}
