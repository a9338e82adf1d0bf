//! What `crossweave plan --text` prints: every tag, collective and transfer of a rank, or of a rank of each stage, with its formula.

use crate::figures::plan::{Memory, PlanFigures, RankFigures};
use crate::plan_page::pipeline_line;
use crossweave_words::Size;
use std::fmt::{Result, Write};

/// The figures of a plan.
pub fn text(p: &PlanFigures) -> String {
    let mut o = String::new();
    // Writing into a string cannot fail.
    let _ = write(&mut o, p);
    o.truncate(o.trim_end().len());
    o
}

fn write(o: &mut String, p: &PlanFigures) -> Result {
    let Some(pipeline) = &p.pipeline else {
        return rank(o, &p.rank, p.advice.comm_over_compute);
    };
    for r in &pipeline.stages {
        if let Some(stage) = &r.stage {
            let k = stage.stage_of_pipeline;
            writeln!(o, "pipeline stage {k}: {}", stage.runs)?;
        }
        rank(o, r, None)?;
        writeln!(o)?;
    }
    writeln!(o, "{}", pipeline_line(&pipeline.pipeline))
}

/// The bytes of each tag and tier, in order of their names: between steps, and at their most.
fn tags(m: &Memory) -> Vec<(&str, u64, u64)> {
    let tags = m
        .tags
        .iter()
        .map(|(tag, b)| (tag.as_str(), b.bytes, b.peak));
    let mut all: Vec<_> = tags.collect();
    all.push(("host", m.host.bytes, m.host.peak));
    all.extend(m.nvme.map(|b| ("nvme", b.bytes, b.peak)));
    all.push(("total", m.total.bytes, m.total.peak));
    all.sort_unstable();
    all
}

fn rank(o: &mut String, r: &RankFigures, comm_over_compute: Option<f64>) -> Result {
    let job = &r.job;
    writeln!(
        o,
        "each of {} ranks: ZeRO stage {}, {}, {}; {} parameters in {} units ({} with padding)",
        job.ranks,
        job.stage,
        job.dtype,
        job.optimizer,
        job.params,
        job.layout.units,
        job.layout.params_padded,
    )?;
    if job.base.params > 0 {
        writeln!(
            o,
            "these are trained; beside them {} parameters that stay as they are, {} on a rank, with no gradient and no state",
            job.base.params, job.base.on_a_rank
        )?;
    }
    writeln!(
        o,
        "\n  memory          between steps             peak   formula"
    )?;
    for (tag, now, peak) in tags(&r.memory) {
        let formula = r.states_formula.as_ref().and_then(|f| f.of(tag));
        if peak > 0 {
            writeln!(
                o,
                "  {tag:<12} {:>16} {:>16}   {}",
                Size(now),
                Size(peak),
                formula.map_or("", |f| &f.formula)
            )?;
        }
    }
    if !r.moved.collectives.is_empty() {
        writeln!(
            o,
            "\n  collective       of        calls         elements    wire elements"
        )?;
    }
    for l in &r.moved.collectives {
        writeln!(
            o,
            "  {:<16} {:<8} {:>6} {:>16} {:>16}",
            l.kind, l.tag, l.calls, l.elements, l.wire_elements
        )?;
    }
    if let Some(volume) = r.moved.volume_vs_ddp {
        writeln!(o, "  volume against plain data parallelism: {volume:.3}x")?;
    }
    for r in r.offload.iter().flat_map(|o| &o.rows) {
        writeln!(o, "  {} on {}: {}", r.what, r.tier, Size(r.bytes))?;
    }
    let ways = &r.moved.transfers;
    for (way, tags) in [("from_host", &ways.from_host), ("to_host", &ways.to_host)] {
        for (tag, bytes) in tags {
            writeln!(o, "  {way} {tag}: {} a step", Size(*bytes))?;
        }
    }
    let peak = &r.peak.at;
    writeln!(
        o,
        "\npeak by the plan: {} at step {}: {}",
        Size(peak.bytes),
        peak.step.0,
        peak.text
    )?;
    if let Some(ratio) = comm_over_compute {
        let device = &r.verdict.device;
        writeln!(o, "communication over computation: {ratio:.3} on {device}")?;
    }
    Ok(())
}
