//! What the host executor is to hold.

use crate::error::{Error, Result};
use crate::spec::RankSpec;
use crossweave_hal::DType;
use crossweave_program::Room;
use crossweave_zero::Flat;
use crossweave_zero::lower::{HostShare, HostSums, Parts, host_base, host_room};

/// Returns the state of these flats that the host holds: a room for each, then one for the base of each; none where nothing rests off the
/// device. `parts` says of each flat whether the host adds up its gradients.
///
/// # Errors
/// An optimizer that does not look at one element at a time.
pub fn rooms(spec: &RankSpec, flats: &[Flat], parts: &[Parts]) -> Result<Vec<Room>> {
    let Some(how) = spec.offload.as_ref().and_then(|o| o.optimizer) else {
        return Ok(vec![]);
    };
    let mut all = flats.iter().flat_map(|f| &f.host_runs);
    if let Some((r, _)) = all.find(|(r, _)| !r.optimizer.is_elementwise()) {
        return Err(Error::Invalid(format!(
            "optimizer.type: the host updates what looks at one element at a time, Adam, AdamW, Lion and SGD, and {} needs whole parameters or blocks; fix: choose one of them, or set offload_optimizer.device to \"none\"",
            r.optimizer.name()
        )));
    }
    let (wire, sum) = (how.wire(spec.compute), spec.precision.accum);
    // A sum in 16 bits is of parts that were rounded.
    let part = if sum == DType::F32 { wire } else { sum };
    let share = |(f, parts): (&Flat, &Parts)| match f.host {
        0 => Room::default(),
        numel => host_room(&HostShare {
            numel,
            runs: &f.host_runs,
            types: match parts.leave {
                true => (spec.compute, sum),
                false => (spec.compute, wire),
            },
            sums: parts.leave.then(|| HostSums::of(f, part)),
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
    let shares = flats.iter().zip(parts).map(share);
    Ok(shares.chain(flats.iter().map(base)).collect())
}
