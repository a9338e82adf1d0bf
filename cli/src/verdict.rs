//! Whether a planned step fits its device, and what to change or why all is well. Both are made of the figures of the rehearsal, so that
//! they cannot contradict each other. On a processor, what is pinned for offload counts too: it is the same memory.

use crate::predict::Job;
use crossweave_engine::Recompute;
use crossweave_words::Size;
use crossweave_zero::ZeroStage;
use crossweave_zero::estimate::{Accounting, advise, profiles, seconds_on, states, traffic};
use serde_json::{Value, json};

/// Most ranks that are tried.
const MOST_RANKS: u64 = 1 << 24;

/// Puts `verdict` and `advice` into the figures of a rank, which would hold `alone` bytes without offload. `units` are the sizes of
/// each unit: what is trained, and a base that stays as it is.
pub fn judge(figures: &mut Value, job: &Job<'_>, units: &[(u64, u64)], alone: u64) {
    let pinned = match job.device.is_host {
        true => bytes(figures, "host", "peak"),
        false => 0,
    };
    let needed = bytes(figures, "total", "peak") + pinned;
    let fits = job.device.memory.map(|m| needed <= m);
    figures["verdict"] = json!({
        "device": job.device.label, "needed": needed, "capacity": job.device.memory, "fits": fits,
        "ranks_on_the_device": job.device.sharing, "note": job.device.note,
    });
    figures["advice"] = advice(figures, job, units, (needed, alone), fits);
}

fn bytes(figures: &Value, tag: &str, field: &str) -> u64 {
    figures["memory"][tag][field].as_u64().unwrap_or(0)
}

const STAGES: [ZeroStage; 4] = [
    ZeroStage::Zero,
    ZeroStage::One,
    ZeroStage::Two,
    ZeroStage::Three,
];

fn advice(
    figures: &Value,
    job: &Job<'_>,
    units: &[(u64, u64)],
    (needed, alone): (u64, u64),
    fits: Option<bool>,
) -> Value {
    let w = job.compute.bytes(1);
    let a = match w < 4 {
        true => Accounting::MIXED_F32_GRADS,
        false => Accounting::FP32,
    };
    let device = &job.device.profile;
    let params: u64 = units.iter().map(|u| u.0).sum();
    let base: u64 = units.iter().map(|u| u.1).sum();
    // A base has weights only, which stage 3 shards.
    let of = |s: ZeroStage, ranks: u64| {
        let under = match s {
            ZeroStage::Three => base.div_ceil(ranks.max(1)),
            _ => base,
        };
        states(params, ranks, s, a).total() + w * under
    };
    // What the stage at hand needs, by the rehearsal; of the others by what their states differ from its.
    let at =
        |s: ZeroStage, ranks: u64| needed.saturating_sub(of(job.stage, job.ranks)) + of(s, ranks);
    let rate = match job.ranks > device.ranks_per_node {
        true => device.network,
        false => device.link,
    };
    // Stage 3 gathers for each micro-batch; gathers are in the type of the weights, reductions in f32.
    let comm = STAGES.map(|s| {
        let t = traffic(s, params, job.ranks, job.accumulation);
        let n = job.ranks as f64;
        let grads = (2 * t.all_reduce + t.reduce_scatter) as f64 * 4.0;
        // Stage 3 gathers the base as often as what is trained.
        let gathered = match s {
            ZeroStage::Three if params > 0 => {
                t.all_gather as f64 * (params + base) as f64 / params as f64
            }
            _ => t.all_gather as f64,
        };
        (grads + gathered * w as f64) * (n - 1.0) / n / rate
    });
    let tokens = (job.batch * job.accumulation.micro_batches * job.seq) as f64;
    let again = match job.recompute {
        Recompute::Full => 4.0 / 3.0,
        _ => 1.0,
    };
    let flops = job.model.flops_per_token(job.seq) * tokens;
    let compute = seconds_on(flops * again, 1.0, device.sustained);
    let mut best = job.stage;
    let mut ways = vec![];
    let why = match fits {
        Some(false) => {
            ways = remedies(figures, job, needed, &at);
            match ways.is_empty() {
                true => {
                    format!("no single change makes room: it is {} of", largest(figures))
                        + " the peak that has to shrink first; take shorter sequences, more ranks and a higher ZeRO stage together"
                }
                false => ways.join("; or "),
            }
        }
        _ if job.ranks == 1 && job.stages == 1 && alone == needed => {
            "it fits, and one rank has nothing to shard".into()
        }
        _ if job.stages > 1 => {
            "the fullest pipeline stage decides; mesh.pp_layers moves units between stages".into()
        }
        _ if alone > needed => {
            let would = match job.device.memory.is_some_and(|m| alone <= m) {
                true => "which fits too, and saves the transfers",
                false => "which does not fit",
            };
            format!(
                "offload keeps {} off the device; without it a rank would need {}, {would}",
                Size(alone - needed),
                Size(alone)
            )
        }
        _ => {
            let all = STAGES.map(|s| at(s, job.ranks));
            let advice = advise(job.stage, all, job.device.memory, comm, compute);
            best = advice.stage;
            advice.why
        }
    };
    json!({
        "device": job.device.label,
        "model_flops_per_step": flops,
        // A stage of a pipeline computes a part of the step only.
        "compute_seconds": (job.stages == 1).then_some(compute),
        "comm_seconds": (job.stages == 1).then_some(comm[job.stage as usize]),
        "comm_over_compute": (job.stages == 1 && compute > 0.0).then(|| comm[job.stage as usize] / compute),
        "stage": best as u8,
        "why": why,
        "remedies": ways,
    })
}

/// The tag that has the most at the peak, with its bytes.
fn largest(figures: &Value) -> String {
    let tags = figures["memory"].as_object().into_iter().flatten();
    let most = tags
        .filter(|(tag, _)| !["total", "host"].contains(&tag.as_str()))
        .filter_map(|(tag, b)| Some((b["at_peak"].as_u64()?, tag)))
        .max();
    most.map_or(String::new(), |(n, tag)| format!("{} ({tag})", Size(n)))
}

/// Changes of which each alone makes it fit, at most three, as keys of the config.
fn remedies(
    figures: &Value,
    job: &Job<'_>,
    needed: u64,
    at: &dyn Fn(ZeroStage, u64) -> u64,
) -> Vec<String> {
    let room = job.device.memory.unwrap_or(u64::MAX);
    let held = |tag: &str| bytes(figures, tag, "at_peak");
    let mut ways = vec![];
    let higher = STAGES.into_iter().filter(|s| *s > job.stage);
    if let Some(s) = higher.into_iter().find(|s| at(*s, job.ranks) <= room) {
        ways.push(format!("zero_optimization.stage {} fits", s as u8));
    }
    let activations = held("activation");
    let rows = job.batch.max(1);
    if needed.saturating_sub(activations - activations / rows) <= room && rows > 1 {
        ways.push("train_micro_batch_size_per_gpu 1 fits".into());
    }
    let kept = bytes(figures, "activation", "at_peak");
    if job.recompute != Recompute::Full && needed.saturating_sub(kept / 4 * 3) <= room {
        ways.push(format!(
            "model.recompute \"full\" would do ({} of the peak are activations)",
            Size(kept)
        ));
    }
    let optimizer = held("master") + held("moment");
    if figures["offload"].is_null() && needed.saturating_sub(optimizer) <= room && optimizer > 0 {
        ways.push(format!(
            "zero_optimization.offload_optimizer moves {} to the host",
            Size(optimizer)
        ));
    }
    // Ranks that are threads of one machine share its memory.
    let mut ranks = job.ranks.max(1);
    while job.stages == 1 && job.device.sharing == 1 && ways.len() < 3 && ranks < MOST_RANKS {
        ranks *= 2;
        if at(ZeroStage::Three, ranks) <= room {
            ways.push(format!("zero_optimization.stage 3 on {ranks} ranks fits"));
            break;
        }
    }
    let larger = profiles().iter().filter(|p| p.memory >= needed);
    if let Some(p) = larger.min_by_key(|p| p.memory) {
        ways.push(format!(
            "a device of {} has the room (--device {})",
            Size(p.memory),
            p.name
        ));
    }
    ways.truncate(3);
    ways
}
