//! `mesh.elastic`: a mesh that fits itself to the ranks that come. The global batch stays what it is, so that the run does.

use crate::resolve::Resolver;
use crate::settings::{Mesh, Settings};

const KEY: &str = "mesh.elastic";

impl Mesh {
    /// May `dp` be another number than the one that is given?
    pub fn is_elastic(&self) -> bool {
        !self.elastic.is_empty()
    }
}

impl Resolver<'_> {
    /// Refuses axes that cannot fit themselves, and leaves open of the batch what depends on the ranks: of a batch whose three numbers are given
    /// the accumulation. A batch whose size follows from the ranks gets that of `mesh.dp` ranks. `held`: the size is a file's.
    pub(crate) fn elastic(&mut self, s: &mut Settings, held: bool) {
        if let Some(axis) = s.mesh.elastic.iter().find(|a| *a != "dp") {
            let what = format!("{axis:?} cannot fit itself to the ranks that come; \"dp\" can");
            self.error(KEY, what, "set it to [\"dp\"]");
        }
        if !s.mesh.is_elastic() || held {
            return;
        }
        let (micro, each) = (
            s.train_micro_batch_size_per_gpu,
            s.gradient_accumulation_steps,
        );
        if s.train_batch_size.is_none() {
            let rows = micro.and_then(|m| m.checked_mul(each.unwrap_or(1)));
            s.train_batch_size = rows.zip(s.mesh.dp).and_then(|(r, dp)| r.checked_mul(dp));
        }
        if s.train_batch_size.is_none() {
            let what = "the global batch would change with the ranks";
            self.error(KEY, what, "set train_batch_size, or mesh.dp");
        }
        if micro.is_some() {
            s.gradient_accumulation_steps = None;
        }
    }

    /// How many ranks to start where the global batch cannot be divided over those that came (`dp` of them data-parallel, of `ranks`): the
    /// nearest numbers below and above that divide it.
    pub(crate) fn nearest_ranks(s: &Settings, dp: u64, ranks: u64) -> Option<String> {
        let (global, rest) = (s.train_batch_size?, ranks / dp.max(1));
        let micro = s.train_micro_batch_size_per_gpu;
        let by = micro.or(s.gradient_accumulation_steps).unwrap_or(1).max(1);
        let rows = global.checked_div(by).filter(|_| s.mesh.is_elastic())?;
        let fits = |d: &u64| global.is_multiple_of(by) && rows.is_multiple_of(*d);
        // A number that divides the rows is at most as large.
        let below = (1..dp.min(rows + 1)).rev().find(fits);
        let above = (dp + 1..=rows.min(dp.saturating_mul(2))).find(fits);
        let near: Vec<String> = below
            .into_iter()
            .chain(above)
            .map(|d| d.saturating_mul(rest).to_string())
            .collect();
        match near.is_empty() {
            true => None,
            false => Some(format!("start {} ranks", near.join(" or "))),
        }
    }
}
