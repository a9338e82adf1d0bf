//! When the gradients of several micro-batches are reduced (`zero_optimization.reduce_gradients`), in figures: what was chosen, and
//! what the other choice would take.

pub use crate::events::{ReducedByFormula, ReductionsOfRun};
use crossweave_engine::{Prediction, RankSpec, ReduceGradients};
use crossweave_plan::UnitFacts;
use crossweave_zero::estimate::Accumulation;
use serde::Serialize;

/// How the gradients of a plan are reduced.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Reductions {
    /// Whole ones stay, although the optimizer is offloaded: there is no choice.
    Kept {
        /// Why.
        kept: &'static str,
        /// Bytes of gradients at their most.
        peak_bytes: u64,
    },
    /// There is a choice.
    Chosen {
        /// What was chosen.
        #[serde(flatten)]
        chosen: Reduced,
        /// Why.
        why: &'static str,
        /// What the other choice would take.
        other: Reduced,
    },
}

/// One of the two choices in figures.
#[derive(Clone, Debug, Serialize)]
pub struct Reduced {
    /// When gradients are reduced: for each `micro_batch`, or once a `step`.
    pub reduced: &'static str,
    /// Bytes of gradients at their most.
    pub peak_bytes: u64,
    /// Bytes of them that a rank sends in a step.
    pub sent_bytes: u64,
    /// Bytes of them that leave for the host in a step.
    pub out_bytes: u64,
}

/// The same job with the other choice, if it has one: several micro-batches, slices of gradients on several ranks or a host that adds
/// up what leaves, and no logical shards, whose sums keep whole gradients.
fn other(spec: &RankSpec) -> Option<RankSpec> {
    let mut each = spec.clone();
    each.zero.reduce = ReduceGradients::MicroBatch;
    let pays = each.data_ranks() > 1 || each.offloads_optimizer();
    let choice = pays && each.reduces_each();
    choice.then(|| {
        let mut other = spec.clone();
        other.zero.reduce = match spec.reduces_each() {
            true => ReduceGradients::Step,
            false => ReduceGradients::MicroBatch,
        };
        other
    })
}

fn name(spec: &RankSpec) -> &'static str {
    match spec.reduces_each() {
        true => "micro_batch",
        false => "step",
    }
}

/// Why the choice is what it is.
fn why(spec: &RankSpec) -> &'static str {
    match (spec.zero.reduce, spec.reduces_each()) {
        (ReduceGradients::Auto, true) if spec.offloads_optimizer() => {
            "auto: beside an offloaded optimizer they leave as they are made, and are added up there"
        }
        (ReduceGradients::Auto, true) => {
            "auto: slices are what stages 2 and 3 keep of gradients between micro-batches"
        }
        (ReduceGradients::Auto, false) => {
            "auto: with pipeline stages a reduction for each micro-batch would multiply the traffic"
        }
        _ => "as configured",
    }
}

/// What formulas need to know of it.
pub fn accumulation(spec: &RankSpec) -> Accumulation {
    Accumulation {
        micro_batches: u64::from(spec.own_micro_batches()),
        reduce_each: spec.reduces_each(),
        keep_gathered: !spec.zero.reshard,
        leaves: spec.offloads_optimizer(),
    }
}

/// Why whole gradients stay on the device although the optimizer is offloaded, where there is no choice.
fn kept(spec: &RankSpec) -> Option<&'static str> {
    let asks = spec.micro_batches > 1 && spec.offloads_optimizer();
    match spec.canonical {
        _ if !asks => None,
        Some(_) => {
            Some("canonical sums (run.canonical_shards) go over the gradients of all shards")
        }
        None => Some(
            "at stage 0 every rank has the whole gradient; stages 1 to 3 have slices, which leave",
        ),
    }
}

/// Bytes of gradients at their most, and those of them that a rank sends in a step.
fn taken(p: &Prediction) -> (u64, u64) {
    let lines = p.each_step.iter().filter(|l| l.tag == "grad");
    let sent = lines.map(|l| l.wire_elements as f64 * l.bytes as f64 / l.elements.max(1) as f64);
    let peak = p.steady.tags.get("grad").map_or(0, |b| b.peak);
    (peak, sent.sum::<f64>().round() as u64)
}

/// The choice of a plan and the other one, each by its own rehearsal; none where nothing is chosen or kept.
pub fn of_plan<E>(
    spec: &RankSpec,
    chosen: &Prediction,
    rehearse: impl FnOnce(RankSpec) -> Result<Prediction, E>,
) -> Option<Reductions> {
    let Some(other) = other(spec) else {
        let (peak_bytes, _) = taken(chosen);
        return kept(spec).map(|kept| Reductions::Kept { kept, peak_bytes });
    };
    let Ok(rehearsed) = rehearse(other.clone()) else {
        let (peak_bytes, _) = taken(chosen);
        let kept = "micro-batches write the gradient of a shared unit in turns: no other choice can be planned";
        return Some(Reductions::Kept { kept, peak_bytes });
    };
    let of = |spec: &RankSpec, p: &Prediction| {
        let (peak_bytes, sent_bytes) = taken(p);
        // By the tag of what they go into: the pool's where states rest in files.
        let to = |tag| p.to_host.get(tag).copied().unwrap_or(0);
        Reduced {
            reduced: name(spec),
            peak_bytes,
            sent_bytes,
            out_bytes: to("grad") + to("moment"),
        }
    };
    Some(Reductions::Chosen {
        chosen: of(spec, chosen),
        why: why(spec),
        other: of(&other, &rehearsed),
    })
}

/// The same of a run, by the formulas, for a rank of the first pipeline stage: between micro-batches a slice, or the whole, of the gradients
/// of its `units`.
pub fn of_run(spec: &RankSpec, units: &[UnitFacts]) -> Option<ReductionsOfRun> {
    let other = other(spec)?;
    let (ranks, g) = (u64::from(spec.data_ranks()), u64::from(spec.micro_batches));
    let own = spec.pipeline.as_ref().map(|p| p.runs.units_of(0));
    let own = own.map(|all| all.map(|u| u as usize).collect());
    let own: Vec<usize> = own.unwrap_or_else(|| (0..units.len()).collect());
    let own = own.into_iter().filter_map(|u| units.get(u));
    let trained = own.filter(|u| u.grad_bytes > 0);
    let params: u64 = trained.map(|u| u.params - u.base).sum();
    let of = |spec: &RankSpec| {
        // What leaves for the host is not held.
        let away = spec.offload.as_ref().and_then(|o| o.optimizer);
        let stays = 1.0 - away.map_or(0.0, |o| o.ratio);
        let (held, times) = match spec.reduces_each() {
            true => ((params as f64 / ranks as f64 * stays) as u64, g),
            false => (params, 1),
        };
        ReducedByFormula {
            reduced: name(spec),
            held_bytes: spec.precision.accum.bytes(held),
            sent_bytes: spec.precision.wire.bytes(params) * (ranks - 1) / ranks * times,
        }
    };
    Some(ReductionsOfRun {
        chosen: of(spec),
        other: of(&other),
    })
}
