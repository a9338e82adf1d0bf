//! What `crossweave plan` predicts: bytes by tag, collectives by kind, traffic against plain data parallelism, and whether the ZeRO
//! stage pays; as JSON and as a table.

use crate::devices::Chosen;
use crossweave_config::Settings;
use crossweave_engine::{Prediction, Recompute, Trainer};
use crossweave_hal::{CollectiveLine, DType};
use crossweave_mesh::Topology;
use crossweave_nn::desc::Model;
use crossweave_plan::Peak;
use crossweave_words::Size;
use crossweave_zero::ZeroStage;
use crossweave_zero::estimate::{Accumulation, Traffic, held, padded};
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// What is known of the job beside its trainer.
pub struct Job<'a> {
    /// The mesh of the job.
    pub mesh: Topology,
    /// Ranks of the data-parallel group.
    pub ranks: u64,
    /// ZeRO stage.
    pub stage: ZeroStage,
    /// Type of weights and activations.
    pub compute: DType,
    /// Name of the optimizer, as configs write it.
    pub optimizer: &'a str,
    /// Sequences of a micro-batch on a rank.
    pub batch: u64,
    /// Micro-batches of a step, and how their gradients are reduced.
    pub accumulation: Accumulation,
    /// Logical shards, where sums go over those.
    pub shards: Option<u64>,
    /// Tokens of a sequence.
    pub seq: u64,
    /// What is recomputed.
    pub recompute: Recompute,
    /// The model.
    pub model: &'a Model,
    /// The device that it is to fit, and whose rates the advice is for.
    pub device: &'a Chosen,
}

/// What was counted when the job was rehearsed.
pub fn figures(job: &Job<'_>, trainer: &Trainer, p: &Prediction, peak: &Peak) -> Value {
    let (units, bases): (Vec<u64>, Vec<u64>) = trainer.unit_sizes().into_iter().unzip();
    // What adapters sit on: whole on every rank, or cut where whole weights come and go.
    let base: u64 = bases.iter().sum();
    let held_base = match job.stage {
        ZeroStage::Three => bases.iter().map(|b| b.div_ceil(job.ranks.max(1))).sum(),
        _ => base,
    };
    // Slices of a rank are made of whole logical slices, where there are any.
    let full = |u: u64| match job.shards {
        Some(s) => u.div_ceil(s) * s.div_ceil(job.ranks) * job.ranks,
        None => padded(u, job.ranks).full,
    };
    let full: u64 = units.iter().map(|u| full(*u)).sum();
    let params: u64 = units.iter().sum();
    let wire: u64 = p
        .each_step
        .iter()
        .filter(of_states)
        .map(|l| l.wire_elements)
        .sum();
    let moved = |tag: &str, kind: &str| -> u64 {
        let hit = p
            .each_step
            .iter()
            .filter(|l| l.tag == tag && l.kind == kind);
        hit.map(|l| l.elements).sum()
    };
    let volume = Traffic {
        all_reduce: moved("grad", "all_reduce"),
        // To send each slice to its owner is what a reduce-scatter sends.
        reduce_scatter: moved("grad", "reduce_scatter") + moved("grad", "all_to_all"),
        all_gather: moved("param", "all_gather") + moved("grad", "all_gather"),
    };
    // Nothing is padded where nothing is sharded.
    let laid_out = match job.stage as u8 {
        0 if job.shards.is_none() => params,
        _ => full,
    };
    json!({
        "ranks": job.ranks,
        "stage": job.stage as u8,
        "dtype": job.compute.name(),
        "optimizer": job.optimizer,
        "params": params,
        "base": {"params": base, "on_a_rank": held_base},
        "layout": {
            "units": trainer.plan().units().len(), "params_padded": full, "shard": full / job.ranks.max(1),
            "formula": match job.shards {
                Some(_) => "each unit padded to a multiple of the logical shards, and those to a multiple of the ranks",
                None => "each unit padded to a multiple of the ranks",
            },
        },
        "memory": memory(p),
        "states_formula": formula(job, &units, held_base),
        "collectives": p.each_step,
        "collectives_of_first_step": (p.first_step != p.each_step).then_some(&p.first_step),
        "transfers": {"to_host": p.to_host, "from_host": p.from_host},
        "wire_elements": wire,
        // Plain data parallelism moves gradients of what is trained, and a base is none of it.
        "volume_vs_ddp": (job.ranks > 1 && base == 0).then(|| volume.volume_vs_ddp(laid_out)),
        "volume_formula": "wire elements of gradients and parameters over 2P(N-1)/N, P padded where it is sharded",
        "peak": {
            "bytes": peak.bytes, "step": peak.step.0, "text": peak.text, "parts": peak.parts,
        },
        "traffic": by_axis(&p.each_step),
    })
}

fn of_states(l: &&CollectiveLine) -> bool {
    l.tag == "grad" || l.tag == "param"
}

/// Bytes that live for the whole run, and the most that are live at once, by tag.
fn memory(p: &Prediction) -> Value {
    let mut out = Map::new();
    for (tag, steady) in &p.steady.tags {
        let at_peak = p.steady.at_peak.get(tag).copied().unwrap_or(0);
        out.insert(
            tag.clone(),
            json!({"bytes": steady.now, "peak": steady.peak, "at_peak": at_peak}),
        );
    }
    let host: Map<String, Value> = p
        .steady
        .host
        .iter()
        .map(|(tag, b)| (tag.clone(), json!({"bytes": b.now, "peak": b.peak})))
        .collect();
    let now: u64 = p.steady.host.values().map(|b| b.now).sum();
    let peak: u64 = p.steady.host.values().map(|b| b.peak).sum();
    let pinned: u64 = p.steady.pinned.values().map(|b| b.peak).sum();
    out.insert(
        "host".into(),
        json!({"bytes": now, "peak": peak, "pinned": pinned, "tags": host}),
    );
    if let Some([bytes, ..]) = p.files {
        out.insert("nvme".into(), json!({"bytes": bytes, "peak": bytes}));
    }
    out.insert(
        "total".into(),
        json!({"bytes": p.steady.total.now, "peak": p.steady.total.peak, "at_peak": p.steady.total.peak}),
    );
    Value::Object(out)
}

/// Where the config keeps states off the device, and what rests there between steps.
pub fn offload(settings: &Settings, p: &Prediction) -> Value {
    let zero = &settings.zero_optimization;
    let device = |o: Option<&String>| o.map_or("none", String::as_str).to_string();
    let optimizer = device(zero.offload_optimizer.as_ref().map(|o| &o.device));
    let param = device(zero.offload_param.as_ref().map(|o| &o.device));
    if (&*optimizer, &*param) == ("none", "none") {
        return Value::Null;
    }
    let row =
        |tier: &str, what: &str, bytes: u64| json!({"tier": tier, "what": what, "bytes": bytes});
    let host = p.steady.host.iter();
    let mut rows: Vec<Value> = host.map(|(tag, b)| row("host", tag, b.now)).collect();
    rows.extend(p.files.map(|[bytes, ..]| row("nvme", "files", bytes)));
    let ratio = zero.offload_optimizer.as_ref().map_or(1.0, |o| o.ratio);
    let files = p
        .files
        .map(|[_, read, written]| json!({"read": read, "written": written}));
    json!({"optimizer": optimizer, "ratio": ratio, "param": param, "rows": rows, "files_a_step": files})
}

/// The formulas of what lives between steps, where the optimizer is of the Adam family: the same numbers by other means.
fn formula(job: &Job<'_>, units: &[u64], base: u64) -> Value {
    let two_moments = [
        "Adam",
        "AdamW",
        "FusedAdam",
        "DeepSpeedCPUAdam",
        "Lamb",
        "FusedLamb",
    ];
    if !two_moments.contains(&job.optimizer) || job.shards.is_some() {
        return Value::Null;
    }
    let w = job.compute.bytes(1);
    let s = held(units, job.ranks, job.stage, w, 8);
    let (param, owned) = match job.stage {
        ZeroStage::Zero => ("w P", "P"),
        ZeroStage::One | ZeroStage::Two => ("w P", "P/N"),
        ZeroStage::Three if w < 4 => ("0: a gather casts the master shards", "P/N"),
        ZeroStage::Three => ("4 P/N", "P/N"),
    };
    let master = if w < 4 {
        format!("4 {owned}")
    } else {
        "0: weights are f32".into()
    };
    json!({
        "param": {"bytes": s.param + w * base, "formula": match base {
            0 => param.to_string(),
            _ => format!("{param} + w B, B the elements of the base on a rank"),
        }},
        "master": {"bytes": s.master, "formula": master},
        "moment": {"bytes": s.moment1 + s.moment2, "formula": format!("(4 + 4) {owned}")},
        "note": "P and P/N with each unit padded",
    })
}

/// What a step moves between ranks, by mesh axis: launches, and the bytes that a rank sends by the ring formulas.
fn by_axis(lines: &[CollectiveLine]) -> Value {
    let mut axes: Vec<(&str, u32, u64, f64)> = vec![];
    for l in lines {
        let each = l.bytes as f64 / l.elements.max(1) as f64;
        // What a rank receives of another stage, that stage sends.
        let sent = match &*l.kind {
            "recv" => 0.0,
            _ => l.wire_elements as f64 * each,
        };
        match axes.iter_mut().find(|a| (a.0, a.1) == (&l.group, l.ranks)) {
            Some(a) => (a.2, a.3) = (a.2 + l.calls, a.3 + sent),
            None => axes.push((&l.group, l.ranks, l.calls, sent)),
        }
    }
    let row = |(axis, ranks, calls, sent): (&str, u32, u64, f64)| json!({"axis": axis, "ranks": ranks, "calls": calls, "bytes": sent.round() as u64});
    axes.into_iter().map(row).collect()
}

/// The same for people.
pub fn text(v: &Value) -> String {
    let mut o = String::new();
    // Writing into a string cannot fail.
    let _ = page(&mut o, v);
    o.truncate(o.trim_end().len());
    o
}

fn page(o: &mut String, v: &Value) -> std::fmt::Result {
    for stage in v["stages"].as_array().into_iter().flatten() {
        writeln!(
            o,
            "pipeline stage {}: {}",
            stage["stage_of_pipeline"],
            stage["runs"].as_str().unwrap_or("")
        )?;
        page(o, stage)?;
        writeln!(o)?;
    }
    if v["pipeline"].is_object() {
        return writeln!(o, "{}", crate::predict_pipeline::line(&v["pipeline"]));
    }
    let n = |v: &Value| v.as_u64().unwrap_or(0);
    let s = |v: &Value| v.as_str().unwrap_or("").to_string();
    writeln!(
        o,
        "each of {} ranks: ZeRO stage {}, {}, {}; {} parameters in {} units ({} with padding)",
        v["ranks"],
        v["stage"],
        s(&v["dtype"]),
        s(&v["optimizer"]),
        v["params"],
        v["layout"]["units"],
        v["layout"]["params_padded"],
    )?;
    if let Some(base) = v["base"]["params"].as_u64().filter(|b| *b > 0) {
        writeln!(
            o,
            "these are trained; beside them {base} parameters that stay as they are, {} on a rank, with no gradient and no state",
            v["base"]["on_a_rank"]
        )?;
    }
    writeln!(
        o,
        "\n  memory          between steps             peak   formula"
    )?;
    for (tag, b) in v["memory"].as_object().into_iter().flatten() {
        let (now, peak) = (n(&b["bytes"]), n(&b["peak"]));
        if peak == 0 {
            continue;
        }
        let formula = s(&v["states_formula"][tag]["formula"]);
        writeln!(
            o,
            "  {tag:<12} {:>16} {:>16}   {formula}",
            Size(now),
            Size(peak)
        )?;
    }
    let lines = v["collectives"].as_array().map_or(&[][..], Vec::as_slice);
    if !lines.is_empty() {
        writeln!(
            o,
            "\n  collective       of        calls         elements    wire elements"
        )?;
    }
    for l in lines {
        writeln!(
            o,
            "  {:<16} {:<8} {:>6} {:>16} {:>16}",
            s(&l["kind"]),
            s(&l["tag"]),
            n(&l["calls"]),
            n(&l["elements"]),
            n(&l["wire_elements"])
        )?;
    }
    if let Some(volume) = v["volume_vs_ddp"].as_f64() {
        writeln!(o, "  volume against plain data parallelism: {volume:.3}x")?;
    }
    for r in v["offload"]["rows"].as_array().into_iter().flatten() {
        let (tier, what) = (s(&r["tier"]), s(&r["what"]));
        writeln!(o, "  {what} on {tier}: {}", Size(n(&r["bytes"])))?;
    }
    for (way, tags) in v["transfers"].as_object().into_iter().flatten() {
        for (tag, bytes) in tags.as_object().into_iter().flatten() {
            if let Some(bytes) = bytes.as_u64() {
                writeln!(o, "  {way} {tag}: {} a step", Size(bytes))?;
            }
        }
    }
    writeln!(
        o,
        "\npeak by the plan: {} at step {}: {}",
        Size(n(&v["peak"]["bytes"])),
        v["peak"]["step"],
        s(&v["peak"]["text"])
    )?;
    if let Some(ratio) = v["advice"]["comm_over_compute"].as_f64() {
        writeln!(
            o,
            "communication over computation: {ratio:.3} on {}",
            s(&v["verdict"]["device"])
        )?;
    }
    Ok(())
}
