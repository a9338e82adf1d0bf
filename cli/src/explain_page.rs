//! The page of `crossweave explain`.

use crate::figures::explain::{BetweenProcesses, CollectiveRow, OpRow, Routes, Totals};
use crossweave_words::Size;
use std::fmt::Write;

/// Shortest unit that keeps two digits.
fn time(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{:.1} us", ns as f64 / 1e3),
        10_000..10_000_000 => format!("{:.0} us", ns as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

fn bytes(n: u64) -> String {
    match n {
        0 => "-".into(),
        _ => Size(n).to_string(),
    }
}

/// Writes the page of an explanation.
pub fn page(found: &Routes) -> String {
    let mut o = String::new();
    // Writing into a string cannot fail.
    let _ = write(&mut o, found);
    o
}

fn table(o: &mut String, head: &[&str], right: &[bool], rows: &[Vec<String>]) -> std::fmt::Result {
    let mut width: Vec<usize> = head.iter().map(|h| h.len()).collect();
    for r in rows {
        for (w, cell) in width.iter_mut().zip(r) {
            *w = (*w).max(cell.chars().count());
        }
    }
    let mut line = |cells: &[String]| -> std::fmt::Result {
        let mut text = String::new();
        for ((cell, w), right) in cells.iter().zip(&width).zip(right) {
            match right {
                true => write!(text, "{cell:>w$}  ")?,
                false => write!(text, "{cell:<w$}  ")?,
            }
        }
        writeln!(o, "{}", text.trim_end())
    };
    line(&head.iter().map(|h| h.to_string()).collect::<Vec<_>>())?;
    rows.iter().try_for_each(|r| line(r))
}

fn write(o: &mut String, found: &Routes) -> std::fmt::Result {
    writeln!(
        o,
        "a training step of {} on {} {} ({}), {} ranks, {}\n",
        found.config,
        found.plugin.name,
        found.plugin.version,
        found.device,
        found.ranks,
        found.dtype
    )?;
    let head = [
        "op",
        "shape",
        "route",
        "launches",
        "calls",
        "a step",
        "est.",
        "workspace",
        "tier",
        "better if",
    ];
    let right = [
        false, false, false, true, true, true, true, true, false, false,
    ];
    let rows: Vec<_> = found.ops.iter().map(op_row).collect();
    table(o, &head, &right, &rows)?;
    for r in &found.ops {
        if let Some(why) = &r.error {
            writeln!(o, "  {}: {why}", r.op)?;
        }
    }
    if !found.collectives.is_empty() {
        writeln!(o)?;
        let head = [
            "collective",
            "group",
            "elements",
            "route",
            "launches",
            "calls",
            "a step",
        ];
        let right = [false, false, true, false, true, true, true];
        let rows: Vec<_> = found.collectives.iter().map(collective_row).collect();
        table(o, &head, &right, &rows)?;
        between_processes(o, &found.collectives)?;
    }
    writeln!(o)?;
    for m in &found.moves {
        writeln!(o, "{}: {} a step, {}", m.kind, m.calls, Size(m.bytes))?;
    }
    totals(o, &found.totals)?;
    if let Some(text) = &found.kernels_chosen {
        writeln!(o, "kernels: {text}")?;
    }
    if found.offloads {
        writeln!(
            o,
            "the config keeps states off the device: what it updates on the host is listed as if the device did"
        )?;
    }
    if found.pipeline_stages > 1 {
        writeln!(o, "counts are of one rank of every pipeline stage together")?;
    }
    Ok(())
}

fn op_row(r: &OpRow) -> Vec<String> {
    let est = match (r.est_ns, r.est_from) {
        (Some(ns), Some("roofline")) => format!("~{}", time(ns)),
        (Some(ns), _) => time(ns),
        _ => "-".into(),
    };
    vec![
        format!("{} {}", r.op, r.types),
        r.shape.clone(),
        r.route.to_string(),
        r.launches_per_call.to_string(),
        r.calls.to_string(),
        r.launches.to_string(),
        est,
        bytes(r.workspace),
        r.tier.unwrap_or("-").to_string(),
        r.better_if.clone().unwrap_or("-".into()),
    ]
}

fn collective_row(r: &CollectiveRow) -> Vec<String> {
    let launches = |times: u64| match r.launches_per_call {
        Some(l) => (l * times).to_string(),
        None => "-".into(),
    };
    vec![
        r.what.clone(),
        format!("{} of {}", r.group, r.ranks),
        r.count.to_string(),
        r.route.clone(),
        launches(1),
        r.calls.to_string(),
        launches(r.calls),
    ]
}

/// The algorithms of sums between processes, where any was chosen.
fn between_processes(o: &mut String, all: &[CollectiveRow]) -> std::fmt::Result {
    let sums = all
        .iter()
        .filter_map(|r| Some((r, r.between_processes.as_ref()?)));
    let sums: Vec<_> = sums.collect();
    if sums.iter().all(|(_, b)| b.algorithm == "auto") {
        return Ok(());
    }
    writeln!(o)?;
    let head = [
        "between processes",
        "group",
        "algorithm",
        "messages",
        "sent",
        "order",
    ];
    let row = |(r, b): &(&CollectiveRow, &BetweenProcesses)| {
        let messages = b.messages.map_or("the library's".into(), |m| m.to_string());
        vec![
            r.what.clone(),
            format!("{} of {}", r.group, r.ranks),
            b.algorithm.to_string(),
            messages,
            Size(b.bytes).to_string(),
            match b.rank_order {
                true => "of ranks: the bits of threads",
                false => "given up: within rounding",
            }
            .to_string(),
        ]
    };
    let rows: Vec<_> = sums.iter().map(row).collect();
    let right = [false, false, false, true, true, false];
    table(o, &head, &right, &rows)?;
    writeln!(
        o,
        "a call of the rank that sends most, ranks being processes of one host; over hosts: crossweave plan --hosts"
    )
}

fn totals(o: &mut String, t: &Totals) -> std::fmt::Result {
    let routes = t.op_calls_by_route.iter();
    let routes: Vec<String> = routes.map(|(k, c)| format!("{c} {k}")).collect();
    writeln!(
        o,
        "ops: {} calls a step ({}), {} launches",
        t.op_calls,
        routes.join(", "),
        t.op_launches
    )?;
    writeln!(
        o,
        "launches a step: {} ({} of ops, {} of copies and fills, {} of collectives){}",
        t.launches,
        t.op_launches,
        t.copies_and_fills,
        t.collective_launches,
        t.est_ns
            .map_or(String::new(), |e| format!("; ops {}", time(e)))
    )?;
    match t.host_round_trips {
        0 => writeln!(o, "host round trips: none"),
        k => writeln!(o, "host round trips: {k} a step (run.allow_host_ops)"),
    }
}
