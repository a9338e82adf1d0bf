//! What to change, or why all is well. It is made of the ledgers that the verdict is made of, so that the two cannot contradict each other.

use super::page::STAGES;
use super::{Job, cut};
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
            "comm_over_compute": Speeds { comm, compute }.ratio(stage as usize),
            "comm_seconds": comm, "compute_seconds": compute,
            "formula": match job.spread.part {
                None => "(wire elements x w / link) over (6PT / sustained), of a step",
                Some(_) => "(the bytes of each axis over its link) over (6PT / sustained), P and T of a rank, of a step",
            },
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
        (None, None) => return Value::Null,
        _ if job.ranks == 1 => "it fits, and one rank has nothing to shard".to_string(),
        _ if job.data_ranks() == 1 => {
            "it fits, and one data-parallel rank has no states to shard".to_string()
        }
        _ => {
            let bytes = STAGES.map(|(s, _)| device(s));
            let n = job.data_ranks();
            let sent = STAGES.map(|(s, _)| traffic(s, job.here(), n, job.accumulation).wire(n));
            let speeds = rates.map(|(comm, compute)| Speeds { comm, compute });
            let a = advise(stage, bytes, job.device_memory, sent, speeds);
            v["stage"] = json!(a.stage as u8);
            a.why
        }
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
    let least = |batch| job.activations_of(&job.shape, batch, ActivationCase::Recompute);
    if fits(&Load {
        activations: least(job.batch),
        ..base
    }) {
        ways.push("recomputing every layer fits (--keep inputs, model.recompute full)".into());
    } else if fits(&Load {
        activations: least(1),
        ..base
    }) {
        ways.push(
            "one sequence a micro-batch with every layer recomputed fits (--batch 1 --keep inputs)"
                .into(),
        );
    }
    let per_node = job.ranks.div_ceil(job.spread.nodes);
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
    // As many more data-parallel ranks; what the mesh cuts stays as it is cut.
    let (mut times, data) = (1, job.data_ranks());
    while ways.len() < 3 && times * job.ranks < MOST_RANKS {
        times *= 2;
        let more = Load {
            ranks: times * data,
            ..three
        };
        if fits(&more) {
            let ranks = times * job.ranks;
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
    // Ranks spread over the nodes that are asked for: none of their links is faster than that between nodes.
    let slow = job.spread.part.is_none() && job.spread.nodes > 1;
    let comm = STAGES.map(|(s, _)| {
        let rows = cut::by_axis(job, s);
        let seconds = |r: &Value| match slow {
            true => r["bytes"].as_f64().map(|b| b / d.network),
            false => r["seconds"].as_f64(),
        };
        rows.iter().filter_map(seconds).sum()
    });
    let tokens = (job.batch * job.accumulation.micro_batches * job.shape.seq) as f64;
    let again = match job.keep {
        ActivationCase::Recompute => 8.0 / 6.0,
        _ => 1.0,
    };
    let sustained = job.sustained.max(1.0);
    // What a rank has of the model computes for all tokens of its data-parallel rank.
    Some((comm, again * sixpt(job.here() as f64, tokens) / sustained))
}
