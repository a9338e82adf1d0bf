//! What the host executor is to hold.

use crate::error::{Error, Result};
use crate::spec::RankSpec;
use crossweave_program::Room;
use crossweave_zero::Flat;
use crossweave_zero::lower::{HostShare, host_base, host_room};

/// What the host is to hold of these flats: a room for each, then one for the base of each; none where nothing rests off the device.
///
/// # Errors
/// An optimizer that does not look at one element at a time.
pub fn rooms(spec: &RankSpec, flats: &[Flat]) -> Result<Vec<Room>> {
    let Some(how) = spec.offload.as_ref().and_then(|o| o.optimizer) else {
        return Ok(vec![]);
    };
    let mut all = flats.iter().flat_map(|f| &f.host_runs);
    if let Some((r, _)) = all.find(|(r, _)| !r.optimizer.is_elementwise()) {
        return Err(Error::Invalid(format!(
            "the host updates what looks at one element at a time, Adam, AdamW, Lion and SGD, and {} needs whole parameters or blocks; fix: choose one of them, or set offload_optimizer.device to \"none\"",
            r.optimizer.name()
        )));
    }
    let share = |f: &Flat| match f.host {
        0 => Room::default(),
        numel => host_room(&HostShare {
            numel,
            runs: &f.host_runs,
            types: (spec.compute, how.wire(spec.compute)),
            group: how.group,
            clip: spec.clip > 0.0,
            scaled: spec.precision.scaler.is_some(),
            rescaled: spec.rescales(),
        }),
    };
    let base = |f: &Flat| match f.base_comes() {
        0 => Room::default(),
        elements => host_base(elements, spec.compute),
    };
    let shares = flats.iter().map(share);
    Ok(shares.chain(flats.iter().map(base)).collect())
}
