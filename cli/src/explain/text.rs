//! The page for people, from what `--json` prints.

use crossweave_words::Size;
use serde_json::Value;
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

/// The table.
pub fn page(v: &Value) -> String {
    let mut o = String::new();
    // Writing into a string cannot fail.
    let _ = write(&mut o, v);
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

fn write(o: &mut String, v: &Value) -> std::fmt::Result {
    let n = |v: &Value| v.as_u64().unwrap_or(0);
    let s = |v: &Value| v.as_str().unwrap_or("-").to_string();
    let list = |v: &Value| v.as_array().cloned().unwrap_or_default();
    writeln!(
        o,
        "a training step of {} on {} {} ({}), {} ranks, {}\n",
        s(&v["config"]),
        s(&v["plugin"]["name"]),
        s(&v["plugin"]["version"]),
        s(&v["device"]),
        v["ranks"],
        s(&v["dtype"])
    )?;
    let est = |r: &Value| match (r["est_ns"].as_u64(), r["est_from"].as_str()) {
        (Some(ns), Some("roofline")) => format!("~{}", time(ns)),
        (Some(ns), _) => time(ns),
        _ => "-".into(),
    };
    let ops: Vec<Vec<String>> = list(&v["ops"])
        .iter()
        .map(|r| {
            vec![
                format!("{} {}", s(&r["op"]), s(&r["types"])),
                s(&r["shape"]),
                s(&r["route"]),
                n(&r["launches_per_call"]).to_string(),
                n(&r["calls"]).to_string(),
                n(&r["launches"]).to_string(),
                est(r),
                bytes(n(&r["workspace"])),
                s(&r["tier"]),
                s(&r["better_if"]),
            ]
        })
        .collect();
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
    table(
        o,
        &head,
        &[
            false, false, false, true, true, true, true, true, false, false,
        ],
        &ops,
    )?;
    for r in list(&v["ops"]).iter().filter(|r| r["error"].is_string()) {
        writeln!(o, "  {}: {}", s(&r["op"]), s(&r["error"]))?;
    }
    let colls: Vec<Vec<String>> = list(&v["collectives"])
        .iter()
        .map(|r| {
            let launches = r["launches_per_call"].as_u64();
            vec![
                s(&r["what"]),
                format!("{} of {}", s(&r["group"]), r["ranks"]),
                n(&r["count"]).to_string(),
                s(&r["route"]),
                launches.map_or("-".into(), |l| l.to_string()),
                n(&r["calls"]).to_string(),
                launches.map_or("-".into(), |l| (l * n(&r["calls"])).to_string()),
            ]
        })
        .collect();
    if !colls.is_empty() {
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
        table(
            o,
            &head,
            &[false, false, true, false, true, true, true],
            &colls,
        )?;
    }
    writeln!(o)?;
    for m in list(&v["moves"]) {
        writeln!(
            o,
            "{}: {} a step, {}",
            s(&m["kind"]),
            n(&m["calls"]),
            Size(n(&m["bytes"]))
        )?;
    }
    let t = &v["totals"];
    let routes: Vec<String> = t["op_calls_by_route"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(k, c)| format!("{c} {k}"))
        .collect();
    writeln!(
        o,
        "ops: {} calls a step ({}), {} launches",
        t["op_calls"],
        routes.join(", "),
        t["op_launches"]
    )?;
    writeln!(
        o,
        "launches a step: {} ({} of ops, {} of copies and fills, {} of collectives){}",
        t["launches"],
        t["op_launches"],
        t["copies_and_fills"],
        t["collective_launches"],
        t["est_ns"]
            .as_u64()
            .map_or(String::new(), |e| format!("; ops {}", time(e)))
    )?;
    match n(&t["host_round_trips"]) {
        0 => writeln!(o, "host round trips: none")?,
        k => writeln!(o, "host round trips: {k} a step (run.allow_host_ops)")?,
    }
    if let Some(text) = v["kernels_chosen"].as_str() {
        writeln!(o, "kernels: {text}")?;
    }
    if v["offloads"] == true {
        writeln!(
            o,
            "the config keeps states off the device: what it updates on the host is listed as if the device did"
        )?;
    }
    if n(&v["pipeline_stages"]) > 1 {
        writeln!(o, "counts are of one rank of every pipeline stage together")?;
    }
    Ok(())
}
