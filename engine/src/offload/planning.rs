//! What offload asks of the plan: sizes that rest on the host, and the passes that move them.

use super::OffloadSpec;
use crate::trainer::RankSpec;
use crossweave_hal::DType;
use crossweave_plan::{PassManager, UnitFacts};
use crossweave_zero::{HostUpdates, ParamsAway, SpillInputs, Tier, ZeroStage};

/// Tells the planner what of each unit's state is not on the device, and what of its parameters is there instead.
pub(crate) fn offload_facts(units: &mut [UnitFacts], spec: &RankSpec) {
    let Some((offload, how)) = spec.offload.as_ref().and_then(|o| Some((o, o.optimizer?))) else {
        return;
    };
    let plain = spec.compute == DType::F32;
    let part = |bytes: u64| (bytes as f64 * how.ratio).ceil() as u64;
    for u in units {
        let slotted = spec.zero.stage == ZeroStage::Three && !spec.zero.persists(u.params);
        // A slice of 16-bit parameters stays where nothing but slots holds them.
        if slotted && !plain && !offload.params {
            u.state_bytes += part(spec.compute.bytes(u.params - u.base));
        }
        let states = (8 + if plain { 0 } else { 4 }) * (u.params - u.base);
        u.host_state_bytes = match offload.params {
            true => u.state_bytes,
            false => part(states),
        };
        // What is never updated is no part of the host's update, and rests there all the same.
        if offload.params && u.grad_bytes == 0 && u.base == u.params {
            (u.state_bytes, u.host_state_bytes) = (0, 0);
        }
    }
}

/// The passes that move things: those before gathers are moved ahead, or (`last`) those behind.
pub(crate) fn plan_offload(mut p: PassManager, spec: &RankSpec, last: bool) -> PassManager {
    let Some(offload) = &spec.offload else {
        return p;
    };
    if !last {
        if offload.activations {
            p = p.with(SpillInputs);
        }
        return p;
    }
    if let Some(updates) = host_updates(offload) {
        p = p.with(updates);
    }
    if offload.params {
        p = p.with(ParamsAway);
    }
    p
}

fn host_updates(offload: &OffloadSpec) -> Option<HostUpdates> {
    let how = offload.optimizer?;
    Some(HostUpdates {
        // One block is updated, one is written; the rest may be read ahead.
        ahead: match how.tier {
            Tier::Host => None,
            Tier::Nvme => Some(offload.files.buffers.saturating_sub(2).min(8) as u32),
        },
        delayed: how.delayed,
        params_away: offload.params,
    })
}
