//! The page of `crossweave plan` that is read in ten seconds: memory by tag, one peak, traffic by mesh axis, whether it fits, and what to
//! change. Everything else is behind `--text`, `--print` and `--json`.

use crate::counts::show_count;
use crate::figures::plan::{Memory, OfHosts, OfStages, Planned, RankFigures, VocabularyRows};
use crate::reductions;
use crossweave_words::Size;
use std::fmt::{Result, Write};

/// The page of what is planned by the config in `file`.
pub fn page(file: &str, planned: &Planned) -> String {
    let mut o = String::new();
    // Writing into a string cannot fail.
    let _ = write(&mut o, file, planned);
    o.truncate(o.trim_end().len());
    o
}

/// Writes the lines that are the same for all stages of a pipeline.
pub fn pipeline_line(p: &OfStages) -> String {
    format!(
        "{} stages of {} ranks each, {}, {} micro-batches: idle {:.1} % of the time ({}); stage {} is the fullest",
        p.stages,
        p.data_parallel_ranks,
        p.schedule,
        p.micro_batches,
        100.0 * p.bubble_fraction,
        p.bubble_formula,
        p.fullest_stage,
    )
}

fn plural(n: u64) -> &'static str {
    if n == 1 { "" } else { "s" }
}

fn write(o: &mut String, file: &str, planned: &Planned) -> Result {
    let (ranks, [micro_batches, rows, seq]) = (planned.ranks, planned.batch);
    let (rank, pipeline) = (&planned.figures.rank, planned.figures.pipeline.as_ref());
    writeln!(
        o,
        "{file} on {ranks} rank{}: ZeRO stage {}, {}, {}",
        plural(ranks),
        rank.job.stage,
        rank.job.dtype,
        rank.job.optimizer
    )?;
    writeln!(
        o,
        "{} parameters{}; a step is {micro_batches} micro-batch{} of {rows} x {seq} tokens a rank",
        show_count(planned.params as f64),
        planned.active.map_or(String::new(), |n| format!(
            ", {} of them for a token",
            show_count(n as f64)
        )),
        if micro_batches == 1 { "" } else { "es" }
    )?;
    if let Some(v) = &rank.vocabulary {
        vocabulary(o, v)?;
    }
    if let Some(r) = &rank.rows {
        writeln!(
            o,
            "rows are cut over {} ranks ({}, {}); of attention the fullest rank has {:.2} times the mean",
            r.ranks, r.layout, r.comm, r.attention_over_mean
        )?;
    }
    if let Some(r) = &rank.rows_of_experts {
        writeln!(
            o,
            "rows of a micro-batch at the experts of a rank: {} where all have as many, memory is planned for {}, {} at most",
            r.balanced, r.planned, r.most
        )?;
    }
    if let Some(note) = &planned.note {
        writeln!(o, "note: {note}")?;
    }
    if let Some(p) = pipeline {
        writeln!(o, "\n{}", pipeline_line(&p.pipeline))?;
        stages(o, &p.stages)?;
        schedules(o, &p.pipeline)?;
    }
    let whose = match pipeline {
        Some(p) => format!("a stage-{} rank", p.pipeline.fullest_stage),
        None => "a rank".to_string(),
    };
    memory(o, &whose, &rank.memory)?;
    writeln!(
        o,
        "peak: {} during {} (step {} of the plan's {})",
        Size(rank.memory.total.peak),
        rank.peak.what,
        rank.peak.at.step.0,
        rank.peak.steps
    )?;
    traffic(o, rank)?;
    moves(o, rank)?;
    if let Some(hosts) = &planned.figures.hosts {
        of_hosts(o, hosts)?;
    }
    verdict(o, rank, &planned.figures.advice.why)?;
    writeln!(
        o,
        "\nmore: --text (every collective, formulas), --print (the steps), --json (bytes); docs/zero.md"
    )
}

/// The units and the peak of each stage.
fn stages(o: &mut String, all: &[RankFigures]) -> Result {
    writeln!(
        o,
        "\nstages                                         at the peak"
    )?;
    for r in all {
        let Some(stage) = &r.stage else { continue };
        let flying = stage.micro_batches_in_flight;
        let all = std::iter::once(&stage.units).chain(&stage.more_units);
        let all = all.map(|[first, end]| format!("{first} to {}", end.saturating_sub(1)));
        let all: Vec<String> = all.collect();
        let what = match (all.len(), flying) {
            (1, 1) => "micro-batch",
            (1, _) => "micro-batches",
            _ => "runs",
        };
        let what = format!(
            "stage {}: units {}, {flying} {what} in flight",
            stage.stage_of_pipeline,
            all.join(" and "),
        );
        writeln!(o, "  {what:<44} {:>12}", Size(r.memory.total.peak))?;
    }
    Ok(())
}

/// The time of a step with each schedule over that with the chosen one, or the reason for which a job cannot take it.
fn schedules(o: &mut String, p: &OfStages) -> Result {
    writeln!(
        o,
        "\n{:<25} a step   idle   runs in flight, by stage",
        "schedules of these units"
    )?;
    for s in &p.schedules {
        let name = match s.chosen {
            true => format!("{} (chosen)", s.schedule),
            false => s.schedule.to_string(),
        };
        let Some(played) = &s.played else {
            let why = s.refused.as_deref().unwrap_or_default();
            writeln!(o, "  {name:<22}  refused: {why}")?;
            continue;
        };
        let flying = played.runs_in_flight.iter().map(u32::to_string);
        let each = match played.units_of_runs.len() as u64 / p.stages.max(1) {
            0 | 1 => String::new(),
            n => format!(" of {n} a stage"),
        };
        writeln!(
            o,
            "  {name:<22} {:>7.3} {:>5.1} %  {}{each}",
            played.times_the_chosen,
            100.0 * played.idle_fraction,
            flying.collect::<Vec<_>>().join(", "),
        )?;
    }
    writeln!(o, "  a step: over the chosen one's; {}", p.timed_by)
}

/// Bytes of a rank by what they hold.
fn memory(o: &mut String, whose: &str, m: &Memory) -> Result {
    writeln!(
        o,
        "\n{:<24} {:>14} {:>14}",
        format!("memory of {whose}"),
        "between steps",
        "at the peak"
    )?;
    for (tag, b) in &m.tags {
        if b.bytes > 0 || b.at_peak > 0 {
            row(o, tag, b.bytes, b.at_peak)?;
        }
    }
    row(o, "total", m.total.bytes, m.total.peak)?;
    let (held, pinned) = (m.host.peak, m.host.pinned);
    if held > pinned {
        row(o, "host memory", m.host.bytes, held)?;
        row(o, "  of it page-locked", pinned, pinned)?;
    } else if held > 0 {
        row(o, "pinned host memory", m.host.bytes, held)?;
    }
    match m.nvme {
        Some(files) if files.peak > 0 => row(o, "files (nvme)", files.bytes, files.peak),
        _ => Ok(()),
    }
}

/// Writes the traffic of a step between ranks.
fn traffic(o: &mut String, rank: &RankFigures) -> Result {
    if !rank.moved.traffic.is_empty() {
        writeln!(
            o,
            "\n{:<24} {:>14} {:>14}",
            "traffic of a step", "calls", "a rank sends"
        )?;
    }
    for a in &rank.moved.traffic {
        // Stages that share a unit sum its gradient among themselves.
        let name = match &*a.axis {
            "tie" => "pp, tied units",
            axis => axis,
        };
        let axis = format!("{name} ({} ranks)", a.ranks);
        let times = match (&*a.axis, rank.moved.volume_vs_ddp) {
            ("dp", Some(x)) => format!("   {x:.3}x the elements of plain data parallelism"),
            _ => String::new(),
        };
        writeln!(
            o,
            "  {axis:<22} {:>14} {:>14}{times}",
            a.calls,
            Size(a.bytes)
        )?;
        if let [_, _, ..] = a.parts[..] {
            for p in &a.parts {
                writeln!(
                    o,
                    "    {:<20} {:>14} {:>14}",
                    p.what,
                    p.calls,
                    Size(p.bytes)
                )?;
            }
        }
    }
    Ok(())
}

/// The bytes that leave a host in a step: those of the host that sends most to others, which may be another one for each axis.
fn of_hosts(o: &mut String, h: &OfHosts) -> Result {
    let (count, [least, most]) = (
        h.ranks.len(),
        [h.ranks.iter().min(), h.ranks.iter().max()].map(|n| n.copied().unwrap_or(0)),
    );
    let each = match least == most {
        true => most.to_string(),
        false => format!("{least} to {most}"),
    };
    writeln!(
        o,
        "\n{:<29} {:>14} {:>14}",
        format!(
            "{count} host{} of {each} rank{}",
            plural(count as u64),
            plural(most as u64)
        ),
        "within a host",
        "to other hosts"
    )?;
    for a in &h.axes {
        let where_ = match a.hosts {
            0 | 1 => "within a host".to_string(),
            n => format!("over {n} hosts"),
        };
        let (name, sent) = (format!("{} ({where_})", a.axis), a.sent.most());
        let (within, between) = (Size(sent.within), Size(sent.between));
        writeln!(o, "  {name:<27} {within:>14} {between:>14}")?;
    }
    let all = h.all.most();
    writeln!(
        o,
        "  {:<27} {:>14} {:>14}",
        "all, of the host with most",
        Size(all.within),
        Size(all.between)
    )?;
    h.notes.iter().try_for_each(|n| writeln!(o, "note: {n}"))
}

/// What the rank has of a vocabulary, where ranks share layers.
fn vocabulary(o: &mut String, rows: &VocabularyRows) -> Result {
    match (rows.here, rows.rows) {
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

fn row(o: &mut String, name: &str, now: u64, then: u64) -> Result {
    writeln!(o, "  {name:<22} {:>14} {:>14}", Size(now), Size(then))
}

/// What a step reads, writes and copies.
fn moves(o: &mut String, rank: &RankFigures) -> Result {
    let files = rank.offload.as_ref().and_then(|f| f.files_a_step);
    let ways = &rank.moved.transfers;
    for (name, bytes) in [
        ("read from files", files.map_or(0, |f| f.read)),
        ("written to files", files.map_or(0, |f| f.written)),
        ("to the host", ways.to_host.values().sum()),
        ("from the host", ways.from_host.values().sum()),
    ] {
        if bytes > 0 {
            writeln!(o, "  {name:<22} {:>14} {:>14}", "", Size(bytes))?;
        }
    }
    Ok(())
}

fn verdict(o: &mut String, rank: &RankFigures, advice: &str) -> Result {
    let v = &rank.verdict;
    if let Some(r) = &rank.gradients {
        writeln!(o, "{}", reductions::line(r))?;
    }
    writeln!(o)?;
    match (v.capacity, v.fits) {
        (Some(room), Some(fits)) => {
            let each = match v.ranks_on_the_device {
                0 | 1 => String::new(),
                sharing => format!(", whose memory {sharing} ranks share"),
            };
            writeln!(
                o,
                "fits: {}, {} of {} ({:.1} %) on {}{each}",
                if fits { "yes" } else { "no" },
                Size(v.needed),
                Size(room),
                100.0 * v.needed as f64 / room.max(1) as f64,
                v.device
            )?;
        }
        _ => writeln!(
            o,
            "fits: not known, {} does not say how much memory it has",
            v.device
        )?,
    }
    if v.pinned_of_the_same_memory > 0 {
        writeln!(
            o,
            "note: a processor's memory is device and host in one: {} of the device and {} of the host are added",
            Size(rank.memory.total.peak),
            Size(v.pinned_of_the_same_memory)
        )?;
    }
    if let Some(note) = &v.note {
        writeln!(o, "note: {note}")?;
    }
    writeln!(o, "advice: {advice}")
}
