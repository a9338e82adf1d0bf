//! What to change, or why all is well. It is made of the ledgers that the verdict is made of, so that the two cannot contradict each other.

use super::Job;
use super::page::STAGES;
use crossweave_words::Size;
use crossweave_zero::ZeroStage;
use crossweave_zero::estimate::*;
use serde_json::{Value, json};

/// Most ranks that are tried.
const MOST_RANKS: u64 = 1 << 24;

/// The advice for what [`Job::choose`] has chosen, of which `fits` says whether it fits; null where no limit and no rate is known.
pub fn advice(job: &Job, stage: ZeroStage, offload: Offload, fits: Option<bool>) -> Value {
    let rates = comm_seconds(job);
    let mut v = match rates {
        Some((comm, compute)) => json!({
            "stage": stage as u8,
            "comm_over_compute": if compute > 0.0 { comm[stage as usize] / compute } else { 0.0 },
            "comm_seconds": comm, "compute_seconds": compute,
            "formula": "(wire elements x w / link) over (6PT / sustained), of a step",
        }),
        None => json!({"stage": stage as u8}),
    };
    let device = |s: ZeroStage| ledger(&job.load(s, Offload::NONE)).total(Tier::Device);
    let why = match (fits, rates) {
        (Some(false), _) => {
            let ways = remedies(job, stage, offload);
            let why = match ways.is_empty() {
                true => "one layer and its activations are more than a device holds; take shorter sequences (--seq) or a larger device".to_string(),
                false => ways.join("; or "),
            };
            v["remedies"] = json!(ways);
            why
        }
        (Some(true), _) if offload != Offload::NONE => {
            let alone = device(stage);
            let there = job.device_memory.unwrap_or(u64::MAX);
            match alone <= there {
                true => format!(
                    "stage {} fits without offload too ({} on the device), which saves the transfers",
                    stage as u8,
                    Size(alone)
                ),
                false => format!(
                    "offload makes stage {} fit: without it a rank would need {} on the device",
                    stage as u8,
                    Size(alone)
                ),
            }
        }
        (_, Some(_)) if job.ranks == 1 => "it fits, and one rank has nothing to shard".to_string(),
        (_, Some((comm, compute))) => {
            let bytes = STAGES.map(|(s, _)| device(s));
            let a = advise(stage, bytes, job.device_memory, comm, compute);
            v["stage"] = json!(a.stage as u8);
            a.why
        }
        (_, None) => return Value::Null,
    };
    v["why"] = json!(why);
    v
}

/// Changes of which each alone makes it fit, at most three.
fn remedies(job: &Job, stage: ZeroStage, offload: Offload) -> Vec<String> {
    let machine = job.machine();
    let fits = |l: &Load| ledger(l).overflow(&machine).is_none();
    let base = job.load(stage, offload);
    let three = Load {
        stage: ZeroStage::Three,
        ..base
    };
    let mut ways = vec![];
    let higher = STAGES.iter().map(|(s, _)| *s).filter(|s| *s > stage);
    if let Some(s) = higher
        .into_iter()
        .find(|s| fits(&Load { stage: *s, ..base }))
    {
        ways.push(format!("ZeRO stage {} fits (--stage {0})", s as u8));
    }
    let least = |batch| activation_total(&job.shape, batch, 1, false, ActivationCase::Recompute);
    if fits(&Load {
        activations: least(job.batch) as u64,
        ..base
    }) {
        ways.push("recomputing every layer fits (--keep inputs, model.recompute full)".into());
    } else if fits(&Load {
        activations: least(1) as u64,
        ..base
    }) {
        ways.push(
            "one sequence a micro-batch with every layer recomputed fits (--batch 1 --keep inputs)"
                .into(),
        );
    }
    let per_node = job.ranks.div_ceil(job.nodes);
    for (optimizer, param, flags) in [
        (Tier::Host, Tier::Device, "--offload-optimizer host"),
        (
            Tier::Host,
            Tier::Host,
            "--stage 3 --offload-optimizer host --offload-param host",
        ),
    ] {
        let load = Load {
            offload: Offload { optimizer, param },
            ..if param == Tier::Host { three } else { base }
        };
        let l = ledger(&load);
        let host = l.total(Tier::Host).saturating_mul(per_node);
        if l.total(Tier::Device) <= machine.device && job.host.is_none_or(|h| h < host) {
            ways.push(format!(
                "{} of host memory a node would do ({flags} --host SIZE)",
                Size(host)
            ));
            break;
        }
    }
    let mut ranks = job.ranks;
    while ways.len() < 3 && ranks < MOST_RANKS {
        ranks *= 2;
        let more = Load { ranks, ..three };
        if fits(&more) {
            ways.push(format!("{ranks} ranks fit at stage 3 (--ranks {ranks})"));
            break;
        }
    }
    let larger = profiles().iter().filter(|p| p.memory > machine.device);
    if let Some(p) = larger
        .min_by_key(|p| p.memory)
        .filter(|_| ways.len() < 3)
        .filter(|p| p.memory >= ledger(&base).total(Tier::Device))
    {
        ways.push(format!(
            "a device of {} would hold it (--device {})",
            Size(p.memory),
            p.name
        ));
    }
    ways.truncate(3);
    ways
}

/// Seconds that a stage's communication takes in a step, and those of its computation; with a device whose rates are known.
pub fn comm_seconds(job: &Job) -> Option<([f64; 4], f64)> {
    let d = job.device?;
    let rate = if job.nodes > 1 { d.network } else { d.link };
    let comm = STAGES.map(|(s, _)| {
        let wire = traffic(s, job.params, job.ranks, job.accumulation).wire(job.ranks);
        wire * job.accounting.param as f64 / rate
    });
    let tokens = (job.batch * job.accumulation.micro_batches * job.shape.seq) as f64;
    let again = match job.keep {
        ActivationCase::Recompute => 8.0 / 6.0,
        _ => 1.0,
    };
    let sustained = job.sustained.max(1.0);
    Some((comm, again * sixpt(job.params as f64, tokens) / sustained))
}
