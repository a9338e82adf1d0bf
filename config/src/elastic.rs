//! `mesh.elastic`: a mesh that fits itself to the ranks that come. The global batch stays what it is, so that the run does.

use crate::parts::Fault;
use crate::settings::{Mesh, Settings};

const KEY: &str = "mesh.elastic";
/// Beyond so many data-parallel ranks no nearer number is looked for.
const MOST: u64 = 1 << 20;

impl Mesh {
    /// May `dp` be another number than the one that is given?
    pub fn is_elastic(&self) -> bool {
        !self.elastic.is_empty()
    }
}

/// Returns what is wrong with the axes that are to fit themselves, with key and fix, and leaves open of the batch what depends on the ranks: of a batch whose three numbers are given
/// the accumulation. A batch whose size follows from the ranks gets that of `mesh.dp` ranks. `held`: the size is a file's.
pub(crate) fn fit(s: &mut Settings, held: bool) -> Vec<Fault> {
    let mut faults = vec![];
    let mut fault = |what, fix| faults.push((KEY.to_string(), what, fix));
    if s.mesh.elastic.iter().any(|a| a != "dp") {
        let what = "\"dp\" alone can fit itself to the ranks that come";
        fault(what, "set it to [\"dp\"]");
    }
    if !s.mesh.is_elastic() || held {
        return faults;
    }
    let (micro, each) = (
        s.train_micro_batch_size_per_gpu,
        s.gradient_accumulation_steps,
    );
    if s.train_batch_size.is_none() {
        let rows = micro.and_then(|m| m.checked_mul(each.unwrap_or(1)));
        s.train_batch_size = rows
            .zip(s.mesh.dp)
            .and_then(|(rows, dp)| rows.checked_mul(dp));
    }
    if s.train_batch_size.is_none() {
        let what = "the global batch would change with the ranks";
        fault(what, "set train_batch_size, or mesh.dp");
    }
    if micro.is_some() {
        s.gradient_accumulation_steps = None;
    }
    faults
}

/// The nearest numbers of ranks, below and above, that divide a global batch which those that came do not (`dp` of them data-parallel, of
/// `ranks`), as a fix; none where the mesh is not elastic.
pub(crate) fn fix(s: &Settings, dp: u64, ranks: u64) -> Option<String> {
    let (global, rest) = (s.train_batch_size?, ranks / dp.max(1));
    let micro = s.train_micro_batch_size_per_gpu;
    let by = micro.or(s.gradient_accumulation_steps).unwrap_or(1).max(1);
    if !s.mesh.is_elastic() || !global.is_multiple_of(by) || dp > MOST {
        return None;
    }
    let rows = global / by;
    let fits = |d: &u64| rows.is_multiple_of(*d);
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
