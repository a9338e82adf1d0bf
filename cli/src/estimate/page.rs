//! The estimate as JSON and as a page: every figure beside its formula.

use super::advice::advice;
use super::{Job, cut};
use crate::args::EstimateArgs;
use crate::counts::show_count;
use crossweave_mesh::Axis;
use crossweave_words::Size;
use crossweave_zero::ZeroStage;
use crossweave_zero::estimate::*;
use serde_json::{Value, json};
use std::fmt::Write;

/// The stages, with the formula of what a rank holds.
pub const STAGES: [(ZeroStage, &str); 4] = [
    (ZeroStage::Zero, "(w+q+K)P"),
    (ZeroStage::One, "(w+q)P + KP/N"),
    (ZeroStage::Two, "wP + (q+K)P/N"),
    (ZeroStage::Three, "(w+q+K)P/N"),
];

/// What an estimate says of a teacher.
const TEACHER: &str = "its weights are among the bytes of a rank; its forward and, at stage 3, its gathers are not in traffic and time";

/// All figures.
pub fn figures(job: &Job, args: &EstimateArgs) -> Value {
    let (a, p) = (job.accounting, job.params);
    let whole = states(p, 1, ZeroStage::Zero, a);
    let component = |what, bytes: u64, each: u64| json!({"what": what, "bytes": bytes, "bytes_per_param": each, "formula": format!("{each} P")});
    let machine = job.machine();
    let (stage, offload) = job.choose(args);
    let held = ledger(&job.load(stage, offload));
    let limited = job.limited();
    let fits = limited.then(|| held.overflow(&machine).is_none());
    let exact: u64 = job.units.iter().sum();
    let mut out = json!({
        "model": {
            "name": job.name,
            "params": p,
            "params_of_shape": (exact > 0).then_some(exact),
            "units": job.units.len(),
            "shape": {
                "layers": job.shape.layers, "hidden": job.shape.hidden, "heads": job.shape.heads,
                "vocab": job.shape.vocab, "seq": job.shape.seq,
            },
        },
        "teacher": (!job.teacher.is_empty()).then(|| json!({"params": job.teacher.iter().sum::<u64>(), "note": TEACHER})),
        "ranks": job.ranks,
        "mesh": mesh_figures(job),
        "nodes": job.spread.nodes,
        "micro_batches": job.accumulation.micro_batches,
        "device": (!job.device_label.is_empty()).then_some(&job.device_label),
        "note": job.note,
        "accounting": {
            "name": job.accounting_name, "w": a.param, "q": a.grad, "K": a.optimizer(),
            "bytes_per_param": a.total(), "formula": "w + q + K",
        },
        "components": [
            component("param", whole.param, a.param),
            component("grad", whole.grad, a.grad),
            component("master", whole.master, a.master),
            component("moment1", whole.moment1, a.moment1),
            component("moment2", whole.moment2, a.moment2),
        ],
        "model_states": {"bytes": whole.total(), "formula": "(w+q+K)P"},
        "stages": STAGES.map(|(s, formula)| stage_figures(job, s, formula)),
        "activations": {
            "kept": job.keep_name, "batch": job.batch,
            "bytes_per_layer": activation_bytes(&job.shape, job.batch, 1, false, job.keep),
            "bytes": job.activations(&job.shape),
            "formula": activation_formula(job.keep),
        },
        "ledger": {
            "stage": stage as u8,
            "offload_optimizer": offload.optimizer.name(),
            "offload_param": offload.param.name(),
            "rows": held.rows.iter().map(|r| json!({
                "tier": r.tier.name(), "what": r.what, "bytes": r.bytes, "formula": r.formula,
            })).collect::<Vec<_>>(),
            "total": Tier::ALL.iter().map(|t| (t.name().to_string(), held.total(*t).into())).collect::<serde_json::Map<_, _>>(),
            "capacity": {"device": job.device_memory, "host_per_rank": job.host.map(|_| machine.host), "nvme_per_rank": job.nvme.map(|_| machine.nvme)},
            "fits": fits,
            "overflow": limited.then(|| held.overflow(&machine).map(Tier::name)).flatten(),
        },
        "offload_traffic": offload_traffic(job, stage, offload),
        "advice": advice(job, stage, offload, fits),
    });
    if cut::is_cut(&job.spread.mesh) {
        out["traffic"] = json!(cut::by_axis(job, stage));
    }
    // A mesh that cuts the model is of this model.
    if job.device_memory.is_some() && job.spread.part.is_none() {
        out["largest"] = largest_figures(job, offload);
    }
    if args.time {
        out["time"] = time_figures(job, &out["offload_traffic"]);
        if job.spread.part.is_none() {
            out["scaling"] = scaling_figures(job);
        }
    }
    out
}

/// What the mesh cuts, and what a rank of its fullest stage has.
fn mesh_figures(job: &Job) -> Value {
    let Some(part) = &job.spread.part else {
        return Value::Null;
    };
    let length = |a| job.spread.mesh.length(a);
    json!({
        "tp": length(Axis::Tp), "pp": length(Axis::Pp), "cp": length(Axis::Cp), "dp": length(Axis::Dp),
        "params_on_a_rank": job.here(), "layers_on_a_rank": part.layers, "micro_batches_in_flight": part.in_flight,
    })
}

fn stage_figures(job: &Job, stage: ZeroStage, formula: &str) -> Value {
    let (a, p, n) = (job.accounting, job.here(), job.data_ranks());
    let exact = closed(p as f64, n as f64, stage, a);
    let first = closed(p as f64, 1.0, ZeroStage::Zero, a);
    let sum = |s: States| s.total();
    // As the engine lays it out: each unit padded to a multiple of the ranks, whole buffers padded too.
    let layout: u64 = job
        .units_here()
        .iter()
        .map(|u| match stage {
            ZeroStage::Zero => sum(states(*u, n, stage, a)),
            _ => sum(states(padded(*u, n).full, n, stage, a)),
        })
        .sum();
    let t = traffic(stage, p, n, job.accumulation);
    json!({
        "stage": stage as u8,
        "bytes": states(p, n, stage, a).total(),
        "bytes_closed": exact,
        "bytes_of_layout": (layout > 0).then_some(layout),
        "ratio": first / exact,
        "formula": formula,
        "volume_vs_ddp": (n > 1).then(|| t.volume_vs_ddp(p)),
        "wire_elements": t.wire(n),
        "wire_formula": job.accumulation.wire_formula(stage),
        // With activations and windows, as the verdict has it.
        "fits": job.device_memory.map(|m| ledger(&job.load(stage, Offload::NONE)).total(Tier::Device) <= m),
    })
}

fn activation_formula(case: ActivationCase) -> &'static str {
    match case {
        ActivationCase::Full => "L sbh(34 + 5as/h)",
        ActivationCase::Selective => "34 L sbh",
        ActivationCase::Flash => "L (34 sbh + 4asb)",
        ActivationCase::Recompute => "2 L sbh + sbh(34 + 5as/h) while a layer is recomputed",
    }
}

/// Bytes a rank moves between device and the tier its optimizer rests on, each way, in a step.
fn offload_traffic(job: &Job, stage: ZeroStage, offload: Offload) -> Value {
    let n = job.data_ranks();
    let shard = padded(job.here(), n).shard;
    let away = u64::from(offload.optimizer != Tier::Device);
    let (a, host) = (job.accounting, job.device.map(|d| d.host));
    // Where micro-batches leave one by one, each does; else their sum, once.
    let each = job.accumulation.reduce_each && (n == 1 || !job.accumulation.keeps_whole(stage));
    let g = match (each, job.accumulation.micro_batches) {
        (true, g) if g > 1 => g,
        _ => 1,
    };
    let (out, back) = (away * g * a.grad * shard, away * a.param * shard);
    let formula = match g {
        1 => "q P/N out, w P/N back",
        _ => "g q P/N out, w P/N back",
    };
    json!({
        "device_to_host": out, "host_to_device": back, "formula": formula,
        "seconds": host.map(|h| (out + back) as f64 / h),
    })
}

fn largest_figures(job: &Job, offload: Offload) -> Value {
    let machine = job.machine();
    let device = machine.device;
    let rows = STAGES.map(|(s, _)| {
        let load = job.load(s, Offload { param: if s == ZeroStage::Three { offload.param } else { Tier::Device }, ..offload });
        json!({
            "stage": s as u8,
            "states_only": largest_params(device, job.ranks, s, job.accounting),
            "with_activations": largest(&load, &machine, |shape| job.activations(&Shape { seq: job.shape.seq, ..*shape })),
        })
    });
    json!({
        "rows": rows,
        "formula": "the most P whose ledger fits: states_only by states alone on the device, with_activations by every row",
        "offload_optimizer": offload.optimizer.name(), "offload_param": offload.param.name(),
    })
}

fn time_figures(job: &Job, moved: &Value) -> Value {
    let Some(d) = job.device else {
        return Value::Null;
    };
    let step = flops(&job.shape, job.batch * job.data_ranks());
    let recompute = matches!(job.keep, ActivationCase::Recompute);
    let work = if recompute { step.hardware } else { step.model };
    let seconds = seconds_on(work, job.ranks as f64, job.sustained);
    let tokens = job.tokens.unwrap_or(300e9);
    let total = sixpt(job.params as f64, tokens);
    let run = seconds_on(total, job.ranks as f64, job.sustained);
    json!({
        "device": d.name, "sustained_flops": job.sustained, "peak_flops": d.peak, "tokens": tokens,
        "step": {
            "model_flops": step.model, "model_formula": "72 B L s h^2 (1 + s/6h + V/12Lh)",
            "hardware_flops": step.hardware, "hardware_formula": "96 B L s h^2 (1 + s/6h + V/16Lh), full recompute",
            "seconds": seconds,
            "mfu": mfu(step.model, seconds, job.ranks as f64, d.peak),
            "hfu": mfu(work, seconds, job.ranks as f64, d.peak),
            "transfer_seconds": moved["seconds"],
        },
        "run": {
            "flops": total, "seconds": run, "years": years_of_seconds(run),
            "device_years": years(total, job.sustained), "formula": "6PT / (N x sustained)",
        },
    })
}

fn scaling_figures(job: &Job) -> Value {
    let Some(d) = job.device else {
        return Value::Null;
    };
    let ranks: Vec<u64> = (0..6).map(|k| job.ranks << k).collect();
    let how = (job.accounting, job.accumulation);
    let points = scaling(job.params, &job.shape, how, &d, &ranks);
    let rows: Vec<Value> = points
        .iter()
        .map(|p| {
            json!({
                "ranks": p.ranks, "batch_per_rank": p.batch, "compute_seconds": p.compute,
                "comm_seconds": p.comm, "tokens_per_second": p.throughput,
            })
        })
        .collect();
    let wire = job.accumulation.wire_formula(ZeroStage::Three);
    let formula =
        format!("stage 3: the batch that fits beside 16P/N, 8PT/sustained + {wire} w/link");
    json!({"rows": rows, "formula": formula})
}

fn f(v: &Value) -> f64 {
    v.as_f64().unwrap_or(0.0)
}
/// Bytes of the figures as people read them; a formula's fraction of a byte is dropped.
fn size(v: &Value) -> Size {
    Size(v.as_u64().unwrap_or(f(v) as u64))
}
fn s(v: &Value) -> &str {
    v.as_str().unwrap_or("")
}
fn list(v: &Value) -> &[Value] {
    v.as_array().map_or(&[], Vec::as_slice)
}

/// The same for people.
pub fn text(job: &Job, args: &EstimateArgs, v: &Value) -> String {
    let mut o = String::new();
    // Writing into a string cannot fail.
    let _ = page(&mut o, job, args, v);
    o.truncate(o.trim_end().len());
    o
}

/// The device, where one is meant.
fn on(job: &Job) -> String {
    match job.device_label.as_str() {
        "" => String::new(),
        name => format!(" ({name})"),
    }
}

/// The axes of a mesh that cuts the model, and what a rank has of it.
fn mesh_line(o: &mut String, ranks: u64, part: &Value) -> std::fmt::Result {
    if part.is_null() {
        return Ok(());
    }
    let long = ["pp", "dp", "cp", "tp"].map(|a| (a, f(&part[a])));
    let long = long.iter().filter(|(_, n)| *n > 1.0);
    let axes: Vec<String> = long.map(|(a, n)| format!("{a} {n}")).collect();
    writeln!(
        o,
        "\n{} ranks, {}: a rank{} has {} layers and {} of the parameters; ZeRO shards over dp",
        ranks,
        axes.join(" x "),
        if f(&part["pp"]) > 1.0 {
            " of the fullest stage"
        } else {
            ""
        },
        f(&part["layers_on_a_rank"]),
        show_count(f(&part["params_on_a_rank"]))
    )
}

/// What a rank sends over each axis of such a mesh, by which link.
fn traffic_lines(o: &mut String, rows: &Value) -> std::fmt::Result {
    for (k, a) in list(rows).iter().enumerate() {
        if k == 0 {
            writeln!(o, "\ntraffic of a step: bytes that a rank sends")?;
        }
        let axis = format!("{} ({} ranks)", s(&a["axis"]), f(&a["ranks"]));
        let link = match (a["link"].as_str(), a["seconds"].as_f64()) {
            (Some(link), Some(t)) => format!(", {link} {t:.3} s"),
            _ => String::new(),
        };
        writeln!(
            o,
            "  {axis:<18} {:>12}{link}   = {}",
            size(&a["bytes"]),
            s(&a["formula"])
        )?;
    }
    Ok(())
}

/// Whether the job fits, and where.
fn fits_line(o: &mut String, job: &Job, l: &Value) -> std::fmt::Result {
    match l["fits"].as_bool() {
        Some(true) => writeln!(
            o,
            "fits: yes, on {}{}",
            match (job.spread.nodes, job.ranks) {
                (1, 1) => "1 rank".to_string(),
                (1, n) => format!("1 node of {n} ranks"),
                (n, ranks) => format!("{n} nodes of {} ranks", ranks.div_ceil(n)),
            },
            on(job)
        )?,
        Some(false) => writeln!(
            o,
            "fits: no, the {} is too small{}",
            s(&l["overflow"]),
            on(job)
        )?,
        None => {}
    }
    Ok(())
}

fn page(o: &mut String, job: &Job, args: &EstimateArgs, v: &Value) -> std::fmt::Result {
    let shape = job.shape;
    writeln!(
        o,
        "{}: {} parameters; {} layers x {}, {} heads, vocabulary {}, sequences of {}",
        job.name,
        show_count(job.params as f64),
        shape.layers,
        shape.hidden,
        shape.heads,
        shape.vocab,
        shape.seq
    )?;
    if let Some(exact) = v["model"]["params_of_shape"].as_u64() {
        let bytes = exact.saturating_mul(job.accounting.total());
        writeln!(
            o,
            "  counted from the shape: {exact} parameters in {} units, {} of states",
            job.units.len(),
            Size(bytes)
        )?;
    }
    if let Some(n) = v["teacher"]["params"].as_u64() {
        writeln!(o, "  beside a teacher of {n} parameters: {TEACHER}")?;
    }
    writeln!(
        o,
        "weights {}, model states {} ({} accounting: {} B/param)",
        size(&v["components"][0]["bytes"]),
        size(&v["model_states"]["bytes"]),
        job.accounting_name,
        job.accounting.total()
    )?;
    for c in list(&v["components"]) {
        let (bytes, each) = (size(&c["bytes"]), s(&c["formula"]));
        writeln!(o, "  {:<10} {:>12}   = {each}", s(&c["what"]), bytes)?;
    }
    let n = job.data_ranks();
    let part = &v["mesh"];
    mesh_line(o, job.ranks, part)?;
    writeln!(
        o,
        "\nstates on each of {n} {}rank{}",
        if part.is_null() { "" } else { "data-parallel " },
        if n == 1 { "" } else { "s" }
    )?;
    writeln!(
        o,
        "  stage        bytes    ratio   formula           volume vs DDP   wire elements{}",
        if job.device_memory.is_some() {
            "   fits the device"
        } else {
            ""
        }
    )?;
    for r in list(&v["stages"]) {
        write!(
            o,
            "  {:<5} {:>12} {:>7.3}x   {:<16} {:>15} {:>15}",
            f(&r["stage"]),
            size(&r["bytes"]),
            f(&r["ratio"]),
            s(&r["formula"]),
            r["volume_vs_ddp"]
                .as_f64()
                .map_or("-".to_string(), |v| format!("{v:.3}x")),
            show_count(f(&r["wire_elements"])),
        )?;
        match r["fits"].as_bool() {
            Some(true) => writeln!(o, "   yes")?,
            Some(false) => writeln!(o, "   no")?,
            None => writeln!(o)?,
        }
    }
    if let Some(note) = &job.note {
        writeln!(o, "\nnote: {note}")?;
    }
    let l = &v["ledger"];
    writeln!(
        o,
        "\nledger of a rank: stage {}, optimizer on {}, parameters on {}, activations kept: {}",
        f(&l["stage"]),
        s(&l["offload_optimizer"]),
        s(&l["offload_param"]),
        job.keep_name
    )?;
    for r in list(&l["rows"]) {
        writeln!(
            o,
            "  {:<7} {:<24} {:>12}   = {}",
            s(&r["tier"]),
            s(&r["what"]),
            size(&r["bytes"]),
            s(&r["formula"])
        )?;
    }
    let capacity = [
        ("device", &l["capacity"]["device"]),
        ("host", &l["capacity"]["host_per_rank"]),
        ("nvme", &l["capacity"]["nvme_per_rank"]),
    ];
    for (tier, cap) in capacity {
        let total = f(&l["total"][tier]);
        if total == 0.0 {
            continue;
        }
        write!(o, "  {tier:<7} {:<24} {:>12}", "total", Size(total as u64))?;
        match cap.as_u64() {
            Some(c) => writeln!(o, "   of {}", Size(c))?,
            None => writeln!(o)?,
        }
    }
    fits_line(o, job, l)?;
    traffic_lines(o, &v["traffic"])?;
    let t = &v["offload_traffic"];
    if f(&t["device_to_host"]) > 0.0 {
        writeln!(
            o,
            "offload moves {} out and {} back each step   = {}",
            size(&t["device_to_host"]),
            size(&t["host_to_device"]),
            s(&t["formula"])
        )?;
    }
    if !v["advice"].is_null() {
        writeln!(o, "\nadvice: {}", s(&v["advice"]["why"]))?;
        let ratio = v["advice"]["comm_over_compute"].as_f64();
        if let Some(ratio) = ratio.filter(|r| *r > 0.0) {
            writeln!(
                o,
                "  communication over computation {ratio:.3} = {}",
                s(&v["advice"]["formula"])
            )?;
        }
    }
    if let Some(largest) = v.get("largest") {
        writeln!(
            o,
            "\nlargest model for {} a device (optimizer on {}, parameters on {})",
            Size(job.device_memory.unwrap_or(0)),
            s(&largest["offload_optimizer"]),
            s(&largest["offload_param"]),
        )?;
        writeln!(o, "  stage   states alone   with activations and windows")?;
        for r in list(&largest["rows"]) {
            writeln!(
                o,
                "  {:<5} {:>14} {:>30}",
                f(&r["stage"]),
                show_count(f(&r["states_only"])),
                show_count(f(&r["with_activations"]))
            )?;
        }
    }
    if args.time && !v["time"].is_null() {
        time_page(o, &v["time"], &v["scaling"], job.ranks)?;
    }
    Ok(())
}

fn time_page(o: &mut String, t: &Value, scaling: &Value, ranks: u64) -> std::fmt::Result {
    writeln!(
        o,
        "\ntime on {ranks} x {} at {:.1} TFLOP/s each",
        s(&t["device"]),
        f(&t["sustained_flops"]) / 1e12
    )?;
    let step = &t["step"];
    for (what, key, formula) in [
        ("model", "model_flops", "model_formula"),
        ("hardware", "hardware_flops", "hardware_formula"),
    ] {
        writeln!(
            o,
            "  {what:<9} {:>10.3e} FLOP a step   = {}",
            f(&step[key]),
            s(&step[formula])
        )?;
    }
    writeln!(
        o,
        "  step {:.3} s, MFU {:.1} %, HFU {:.1} %",
        f(&step["seconds"]),
        100.0 * f(&step["mfu"]),
        100.0 * f(&step["hfu"])
    )?;
    writeln!(
        o,
        "  {} tokens: {:.3e} FLOP, {:.3} years; {:.1} years on one device   = {}",
        show_count(f(&t["tokens"])),
        f(&t["run"]["flops"]),
        f(&t["run"]["years"]),
        f(&t["run"]["device_years"]),
        s(&t["run"]["formula"])
    )?;
    if let Some(t) = step["transfer_seconds"].as_f64().filter(|t| *t > 0.0) {
        writeln!(
            o,
            "  beside it {t:.3} s of transfers between device and host, which overlap what they can"
        )?;
    }
    if scaling.is_null() {
        return Ok(());
    }
    writeln!(o, "\nscaling   = {}", s(&scaling["formula"]))?;
    writeln!(
        o,
        "  ranks   batch/rank   compute s     comm s     tokens/s"
    )?;
    for r in list(&scaling["rows"]) {
        writeln!(
            o,
            "  {:<7} {:>10} {:>11.3} {:>10.3} {:>12.0}",
            f(&r["ranks"]),
            f(&r["batch_per_rank"]),
            f(&r["compute_seconds"]),
            f(&r["comm_seconds"]),
            f(&r["tokens_per_second"])
        )?;
    }
    Ok(())
}
