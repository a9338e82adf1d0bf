//! Rows that are cut over the ranks of `mesh.cp`: how much attention the fullest rank has. Rows that come to the experts of a rank of `mesh.ep`,
//! which follow from data: how many they are at most.

use crate::job::Job;
use crate::train_error::Result;
use crossweave_mesh::{Axis, Place};
use crossweave_nn::desc::Model;
use crossweave_plan::Facts;
use crossweave_tensor::{Layout, planned_room};
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

/// Rows of a micro-batch that come to a rank's experts of a layer, of the layer with the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RowsOfExperts {
    /// Where all ranks get as many.
    pub balanced: u64,
    /// Those that memory is planned for.
    pub planned: u64,
    /// Those of all ranks, as far as they can go to experts of one.
    pub most: u64,
}

impl RowsOfExperts {
    /// By what the blocks of a rank exchange, for the experts of a model; none where no number follows from data.
    pub fn of(facts: &Facts, model: &Model) -> Option<RowsOfExperts> {
        let said = facts.units.iter().flat_map(|u| &u.talk.forward);
        let moves = said.filter_map(|s| s.moves.as_ref());
        let (width, times) = (model.width, model.routed().next()?.room);
        let rows = moves.filter(|m| m.most > 0).map(|m| {
            let [balanced, most] = [m.elements, m.most].map(|n| n / width.max(1));
            RowsOfExperts {
                balanced,
                planned: planned_room(balanced, most, times),
                most,
            }
        });
        rows.max_by_key(|r| r.planned)
    }
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
