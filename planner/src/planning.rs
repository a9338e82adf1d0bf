//! The plan of a rank's step: which passes make it, in which order, and the facts they decide on.

use crate::error::{Error, Result};
use crate::spec::{OffloadSpec, RankSpec, facts_of_accumulation};
use crossweave_hal::DType;
use crossweave_mesh::AxisSet;
use crossweave_parallel::{Keeps, schedule};
use crossweave_plan::{Depend, Facts, PassManager, Plan, Recompute, Said, UnitFacts};
use crossweave_zero::{
    Bucket, Canonical, Hierarchical, HostUpdates, OffloadDevice, Own, ParamsAway, Persist, Place,
    Prefetch, ReduceEach, Residency, Reuse, SpillInputs, Ties, UnitAt, Updates, ZeroSpec,
    ZeroStage,
};

/// Plans a rank's step and holds it against every law, the device's memory included where it is known: what does not fit is refused
/// before anything is allocated, with the step of the plan it falls on. `units` are the sizes that a dry run has found.
///
/// # Errors
/// A broken law, or more bytes than the device has.
pub fn plan_for(
    memory: Option<u64>,
    spec: &RankSpec,
    units: &[UnitFacts],
) -> Result<(Plan, Facts)> {
    let mut units = units.to_vec();
    let count = units.len();
    for (k, u) in units.iter_mut().enumerate() {
        // Where nothing but slots holds whole f32 parameters, their shard is state like the moments.
        let slotted = is_slotted(spec, k, count, u);
        if slotted && spec.compute == DType::F32 {
            u.state_bytes += 4 * u.params;
        } else if slotted {
            u.state_bytes += spec.compute.bytes(u.base);
        }
        if slotted && spec.zero.node > 1 {
            // The node's copy: sharded over fewer ranks, so it counts for more of the whole.
            u.state_bytes += u.param_bytes * u64::from(spec.data_ranks() / spec.zero.node);
        }
    }
    for (axes, ranks) in units.iter_mut().filter_map(|u| u.talk.owners.as_mut()) {
        *ranks = spec.place.size(*axes);
    }
    talk_of_updates(&mut units, spec);
    kept_inputs(&mut units, spec);
    // What leaves for the host after each micro-batch is complete before it does.
    let leaves = spec.sums_on_the_host();
    units
        .iter_mut()
        .for_each(|u| u.talk.each_reduction |= leaves && !u.talk.reduction.is_empty());
    offload_facts(&mut units, spec);
    facts_of_accumulation(&mut units, spec);
    let mut facts = Facts {
        units,
        micro_batches: spec.most_micro_batches(),
        ranks: spec.data_ranks(),
        budget: memory,
        slots: None,
    };
    let plan = plan_step(&facts, spec)?;
    facts.micro_batches = spec.own_micro_batches();
    crossweave_plan::check(&plan, &facts)?;
    Ok((plan, facts))
}

/// Puts into the facts that updates communicate, where an optimizer sums figures over the ranks.
fn talk_of_updates(units: &mut [UnitFacts], spec: &RankSpec) {
    let stage = spec.place.among(AxisSet::STAGE);
    let Some(stage) = stage.filter(|_| spec.optim.sums()) else {
        return;
    };
    for u in units.iter_mut().filter(|u| u.grad_bytes > 0) {
        u.talk.update = vec![Said {
            axes: stage.axes,
            what: "figures of whole parameters".into(),
            moves: None,
        }];
    }
}

/// Puts into the facts what is kept of the input of a recomputed unit, and what is said to bring it together.
fn kept_inputs(units: &mut [UnitFacts], spec: &RankSpec) {
    for u in units {
        match &u.talk.kept {
            Some(kept) if spec.cuts_kept_inputs => u.saved_input = kept.bytes,
            _ => u.talk.kept = None,
        }
    }
}

/// Returns true if nothing but slots holds the whole parameters of a unit.
pub(crate) fn is_slotted(spec: &RankSpec, unit: usize, units: usize, facts: &UnitFacts) -> bool {
    let elements = facts.params;
    let at = UnitAt {
        unit,
        units,
        elements,
    };
    spec.zero.residency(at) == Residency::Transient
}

/// The plan of one optimizer step.
fn plan_step(facts: &Facts, spec: &RankSpec) -> Result<Plan> {
    let n = facts.units.len() as u32;
    let mut p = PassManager::new();
    if spec.recompute != Recompute::None {
        p = p.with(Keeps::from(spec.recompute));
    }
    // Without clipping an update needs no global norm, so it follows its gradient at once and gradients never pile up.
    let clip = spec.clip > 0.0;
    let finite = spec.precision.scaler.is_some();
    p = p.with(Place(spec.zero.stage));
    if spec.reduces_each() {
        p = p.with(ReduceEach {
            alone: spec.sums_alone(),
        });
    }
    if spec.canonical.is_some() {
        p = p.with(Canonical {
            shards: spec.most_replicas(),
            micro_batches: spec.micro_batches,
        });
    }
    if spec.zero.stage == ZeroStage::Three {
        // What rests on the host is gathered for each use.
        let away = spec.offload.as_ref().is_some_and(|o| o.params);
        p = p.with(Persist(ZeroSpec {
            persistent: spec.zero.persistent.filter(|_| !away),
            ..spec.zero
        }));
        p = p.with(Reuse {
            reshard: spec.zero.reshard,
            within: spec.zero.reuse_within,
        });
        if spec.zero.node > 1 {
            p = p.with(Hierarchical);
        }
    }
    p = p
        .with(Bucket {
            // A rank alone sends nothing that larger pieces would make cheaper: a unit leaves when it is made.
            bytes: match spec.sums_on_the_host() && spec.data_ranks() == 1 {
                true => 0,
                false => spec.zero.bucket_bytes,
            },
        })
        .with(Ties)
        .with(Updates {
            norm: clip,
            finite,
            early: !clip && !finite,
            // The host updates beside the device anyway, and is given its work at once.
            lag: spec.offload.as_ref().is_none_or(|o| o.optimizer.is_none()),
        });
    p = plan_offload(p, spec, false);
    if spec.zero.stage == ZeroStage::Three && spec.zero.prefetch > 0 {
        p = p.with(Prefetch {
            depth: spec.zero.prefetch,
            slots: u32::MAX,
            elements: spec.zero.max_live,
        });
    }
    p = plan_offload(p, spec, true);
    if spec.canonical.is_some() {
        p = p.with(Own {
            shards: spec.own_replicas(),
            micro_batches: spec.micro_batches,
        });
    }
    let start = match &spec.pipeline {
        None => schedule::accumulate(n, facts.micro_batches),
        Some(stages) => {
            let (runs, m) = (&stages.runs, spec.micro_batches);
            schedule::pipeline(runs, spec.stage(), m, stages.order).map_err(Error::Invalid)?
        }
    };
    Ok(p.with(Depend).run(start, facts)?)
}

/// Puts into the facts what of each unit's state is not on the device, and what of its parameters is there instead.
fn offload_facts(units: &mut [UnitFacts], spec: &RankSpec) {
    let Some((offload, how)) = spec.offload.as_ref().and_then(|o| Some((o, o.optimizer?))) else {
        return;
    };
    let plain = spec.compute == DType::F32;
    let part = |bytes: u64| (bytes as f64 * how.ratio).ceil() as u64;
    let count = units.len();
    for (k, u) in units.iter_mut().enumerate() {
        let slotted = is_slotted(spec, k, count, u);
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
fn plan_offload(mut p: PassManager, spec: &RankSpec, last: bool) -> PassManager {
    let Some(offload) = &spec.offload else {
        return p;
    };
    if !last {
        if offload.activations {
            p = p.with(SpillInputs);
        }
        return p;
    }
    if let Some(updates) = host_updates(offload, spec.sums_on_the_host()) {
        p = p.with(updates);
    }
    if offload.params {
        p = p.with(ParamsAway);
    }
    p
}

fn host_updates(offload: &OffloadSpec, sums: bool) -> Option<HostUpdates> {
    let how = offload.optimizer?;
    Some(HostUpdates {
        // One block is updated, one is written; the rest may be read ahead.
        ahead: match how.tier {
            OffloadDevice::Host => None,
            OffloadDevice::Nvme => Some(offload.files.buffers.saturating_sub(2).min(8) as u32),
        },
        delayed: how.delayed,
        params_away: offload.params,
        sums,
    })
}
