//! The page of `crossweave plan` that is read in ten seconds: memory by tag, one peak, traffic by mesh axis, whether it fits, and what to
//! change. Everything else is behind `--text`, `--print` and `--json`.

use crate::counts::show_count;
use crossweave_plan::{Facts, StepKind};
use crossweave_words::Size;
use serde_json::Value;
use std::fmt::Write;

/// What a step of the plan does, in words.
pub fn moment(op: &StepKind, facts: &Facts) -> String {
    let unit = |u: &u32| match facts.units.get(*u as usize) {
        Some(f) => format!("unit {u} ({})", f.name),
        None => format!("unit {u}"),
    };
    match op {
        StepKind::Forward { unit: u, mb, .. } => {
            format!("the forward of {}, micro-batch {mb}", unit(u))
        }
        StepKind::Recompute { unit: u, mb } => {
            format!("{} recomputed for micro-batch {mb}", unit(u))
        }
        StepKind::Backward { unit: u, mb } | StepKind::InputGrad { unit: u, mb } => {
            format!("the backward of {}, micro-batch {mb}", unit(u))
        }
        StepKind::WeightGrad { unit: u, mb } => {
            format!("the weight gradient of {}, micro-batch {mb}", unit(u))
        }
        StepKind::Gather { unit: u, .. } => format!("gathering {}", unit(u)),
        StepKind::Update { unit: u } => format!("the update of {}", unit(u)),
        StepKind::ReduceGrad { units, .. } => match units.first() {
            Some(u) => format!("the reduction of gradients from {} on", unit(u)),
            None => "a reduction of gradients".into(),
        },
        other => format!("step {other}"),
    }
}

/// What stands in the first lines.
pub struct Head<'a> {
    /// The config's file.
    pub file: &'a str,
    /// Ranks of the job.
    pub ranks: u64,
    /// Parameters of the model.
    pub params: u64,
    /// Micro-batches of a step, sequences of one on a rank, tokens of a sequence.
    pub batch: [u64; 3],
}

/// The page.
pub fn page(head: &Head<'_>, v: &Value) -> String {
    let mut o = String::new();
    // Writing into a string cannot fail.
    let _ = write(&mut o, head, v);
    o.truncate(o.trim_end().len());
    o
}

fn n(v: &Value) -> u64 {
    v.as_u64().unwrap_or(0)
}
fn s(v: &Value) -> &str {
    v.as_str().unwrap_or("")
}
fn list(v: &Value) -> &[Value] {
    v.as_array().map_or(&[], Vec::as_slice)
}
fn plural(n: u64) -> &'static str {
    if n == 1 { "" } else { "s" }
}

fn write(o: &mut String, head: &Head<'_>, v: &Value) -> std::fmt::Result {
    let [micro_batches, rows, seq] = head.batch;
    writeln!(
        o,
        "{} on {} rank{}: ZeRO stage {}, {}, {}",
        head.file,
        head.ranks,
        plural(head.ranks),
        v["stage"],
        s(&v["dtype"]),
        s(&v["optimizer"])
    )?;
    writeln!(
        o,
        "{} parameters; a step is {micro_batches} micro-batch{} of {rows} x {seq} tokens a rank",
        show_count(head.params as f64),
        if micro_batches == 1 { "" } else { "es" }
    )?;
    vocabulary(o, &v["vocabulary"])?;
    let pipeline = &v["pipeline"];
    if pipeline.is_object() {
        writeln!(o, "\n{}", crate::predict_pipeline::line(pipeline))?;
        writeln!(
            o,
            "\nstages                                         at the peak"
        )?;
        for (k, stage) in list(&v["stages"]).iter().enumerate() {
            let units = list(&stage["units"]);
            let last = units.get(1).map_or(0, n).saturating_sub(1);
            let flying = n(&stage["micro_batches_in_flight"]);
            let what = format!(
                "stage {k}: units {} to {last}, {flying} micro-batch{} in flight",
                units.first().map_or(0, n),
                if flying == 1 { "" } else { "es" }
            );
            let total = &stage["memory"]["total"]["peak"];
            writeln!(o, "  {what:<44} {:>12}", Size(n(total)))?;
        }
    }
    let whose = match pipeline.is_object() {
        true => format!("a stage-{} rank", pipeline["fullest_stage"]),
        false => "a rank".to_string(),
    };
    writeln!(
        o,
        "\n{:<24} {:>14} {:>14}",
        format!("memory of {whose}"),
        "between steps",
        "at the peak"
    )?;
    let memory = v["memory"].as_object();
    for (tag, b) in memory.into_iter().flatten() {
        let (now, then) = (n(&b["bytes"]), n(&b["at_peak"]));
        if !["host", "nvme", "total"].contains(&tag.as_str()) && (now > 0 || then > 0) {
            row(o, tag, now, then)?;
        }
    }
    let total = &v["memory"]["total"];
    row(o, "total", n(&total["bytes"]), n(&total["peak"]))?;
    let host = &v["memory"]["host"];
    let (held, pinned) = (n(&host["peak"]), n(&host["pinned"]));
    if held > pinned {
        row(o, "host memory", n(&host["bytes"]), held)?;
        row(o, "  of it page-locked", pinned, pinned)?;
    } else if held > 0 {
        row(o, "pinned host memory", n(&host["bytes"]), held)?;
    }
    let files = &v["memory"]["nvme"];
    if n(&files["peak"]) > 0 {
        row(o, "files (nvme)", n(&files["bytes"]), n(&files["peak"]))?;
    }
    writeln!(
        o,
        "peak: {} during {} (step {} of the plan's {})",
        Size(n(&total["peak"])),
        s(&v["peak"]["what"]),
        v["peak"]["step"],
        v["peak"]["steps"]
    )?;
    let axes = list(&v["traffic"]);
    if !axes.is_empty() {
        writeln!(
            o,
            "\n{:<24} {:>14} {:>14}",
            "traffic of a step", "calls", "a rank sends"
        )?;
    }
    for a in axes {
        // Stages that share a unit sum its gradient among themselves.
        let name = match s(&a["axis"]) {
            "tie" => "pp, tied units",
            axis => axis,
        };
        let axis = format!("{name} ({} ranks)", a["ranks"]);
        let times = match (s(&a["axis"]), v["volume_vs_ddp"].as_f64()) {
            ("dp", Some(x)) => format!("   {x:.3}x the elements of plain data parallelism"),
            _ => String::new(),
        };
        writeln!(
            o,
            "  {axis:<22} {:>14} {:>14}{times}",
            n(&a["calls"]),
            Size(n(&a["bytes"])).to_string()
        )?;
    }
    moves(o, v)?;
    verdict(o, v)?;
    writeln!(
        o,
        "\nmore: --text (every collective, formulas), --print (the steps), --json (bytes); docs/zero.md"
    )
}

/// What the rank has of a vocabulary, where ranks share layers.
fn vocabulary(o: &mut String, rows: &Value) -> std::fmt::Result {
    match (n(&rows["here"]), n(&rows["rows"])) {
        (0, _) => Ok(()),
        (here, all) if here == all => writeln!(
            o,
            "the ranks of mesh.tp each have all {all} rows of the vocabulary"
        ),
        (here, all) => writeln!(
            o,
            "of the vocabulary's {all} rows the ranks of mesh.tp have a part each, this one {here}"
        ),
    }
}

fn row(o: &mut String, name: &str, now: u64, then: u64) -> std::fmt::Result {
    writeln!(o, "  {name:<22} {:>14} {:>14}", Size(now), Size(then))
}

/// What a step reads, writes and copies.
fn moves(o: &mut String, v: &Value) -> std::fmt::Result {
    let files = &v["offload"]["files_a_step"];
    for (way, name) in [("read", "read from files"), ("written", "written to files")] {
        if n(&files[way]) > 0 {
            writeln!(
                o,
                "  {name:<22} {:>14} {:>14}",
                "",
                Size(n(&files[way])).to_string()
            )?;
        }
    }
    for (way, name) in [("to_host", "to the host"), ("from_host", "from the host")] {
        let tags = v["transfers"][way].as_object();
        let bytes: u64 = tags.into_iter().flatten().map(|(_, b)| n(b)).sum();
        if bytes > 0 {
            let size = Size(bytes).to_string();
            writeln!(o, "  {name:<22} {:>14} {size:>14}", "")?;
        }
    }
    Ok(())
}

fn verdict(o: &mut String, v: &Value) -> std::fmt::Result {
    let d = &v["verdict"];
    let needed = n(&d["needed"]);
    let sharing = n(&d["ranks_on_the_device"]);
    if let Some(line) = crate::reductions::line(&v["gradients"]) {
        writeln!(o, "{line}")?;
    }
    writeln!(o)?;
    match (d["capacity"].as_u64(), d["fits"].as_bool()) {
        (Some(room), Some(fits)) => {
            let each = match sharing {
                0 | 1 => String::new(),
                _ => format!(", whose memory {sharing} ranks share"),
            };
            writeln!(
                o,
                "fits: {}, {} of {} ({:.1} %) on {}{each}",
                if fits { "yes" } else { "no" },
                Size(needed),
                Size(room),
                100.0 * needed as f64 / room.max(1) as f64,
                s(&d["device"])
            )?;
        }
        _ => writeln!(
            o,
            "fits: not known, {} does not say how much memory it has",
            s(&d["device"])
        )?,
    }
    if n(&d["pinned_of_the_same_memory"]) > 0 {
        writeln!(
            o,
            "note: a processor's memory is device and host in one: {} of the device and {} of the host are added",
            Size(n(&v["memory"]["total"]["peak"])),
            Size(n(&d["pinned_of_the_same_memory"]))
        )?;
    }
    if let Some(note) = d["note"].as_str() {
        writeln!(o, "note: {note}")?;
    }
    writeln!(o, "advice: {}", s(&v["advice"]["why"]))
}
