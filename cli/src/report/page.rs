//! The page: tiles, plots, tables, in the order a reader asks for them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::charts::{Bar, Lines, Series, Style, bars, bytes, escape, short, smooth};
use super::read::{Run, Step};

/// Memory tags in the order of the ledger's documentation; a colour belongs to a tag, whatever
/// else a run holds.
const TAGS: [&str; 8] = [
    "param",
    "grad",
    "master",
    "moment",
    "activation",
    "comm",
    "workspace",
    "staging",
];

/// The whole document.
pub fn render(run: &Run) -> String {
    let mut body = String::new();
    let _ = write!(
        body,
        "<header><h1>{}</h1><p>Crossweave training report</p></header>",
        escape(&run.name)
    );
    for note in &run.notes {
        let _ = write!(body, "<p class=\"warn\">{}</p>", escape(note));
    }
    body += &tiles(run);
    body += &plots(run);
    body += &memory(run);
    body += &traffic(run);
    body += &config(run);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>{} · Crossweave report</title>\
         <style>{}</style></head>\n<body><main>{body}</main><script>{}</script></body></html>\n",
        escape(&run.name),
        include_str!("style.css"),
        include_str!("script.js")
    )
}

fn points(run: &Run, value: impl Fn(&Step) -> Option<f64>) -> Vec<(f64, Option<f64>)> {
    run.steps
        .iter()
        .map(|s| (s.step as f64, value(s)))
        .collect()
}

fn tiles(run: &Run) -> String {
    let mut tiles = vec![("Steps", run.steps.len().to_string(), String::new())];
    let losses: Vec<f64> = run.steps.iter().filter_map(|s| s.loss).collect();
    if let (Some(first), Some(last)) = (losses.first(), losses.last()) {
        tiles.push((
            "Training loss",
            short(*last),
            format!("from {}", short(*first)),
        ));
    }
    let best = run
        .validations
        .iter()
        .min_by(|a, b| a.loss.total_cmp(&b.loss));
    if let Some(best) = best {
        let note = format!("best, step {}", best.step);
        tiles.push(("Validation loss", short(best.loss), note));
    }
    // The first step pays for compilation, page faults and cold caches.
    let mut speeds: Vec<f64> = run
        .steps
        .iter()
        .skip(usize::from(run.steps.len() > 1))
        .filter_map(|s| s.tokens_per_s)
        .collect();
    speeds.sort_by(f64::total_cmp);
    if let Some(median) = speeds.get(speeds.len() / 2) {
        tiles.push(("Tokens/s", short(*median), "median".into()));
    }
    let seconds: f64 = run.steps.iter().filter_map(|s| s.step_ms).sum::<f64>() / 1000.0;
    if seconds > 0.0 {
        let text = match seconds {
            s if s < 120.0 => format!("{s:.1} s"),
            s if s < 7200.0 => format!("{:.1} min", s / 60.0),
            s => format!("{:.1} h", s / 3600.0),
        };
        tiles.push(("Time in steps", text, String::new()));
    }
    let peak = run
        .memory
        .iter()
        .filter(|m| m.home == "device")
        .map(|m| {
            m.total
                .map_or_else(|| m.tags.iter().map(|t| t.1.peak).sum(), |t| t.peak)
        })
        .max();
    if let Some(peak) = peak {
        tiles.push(("Peak memory", bytes(peak), "of a rank".into()));
    }
    let moved: u64 = run.traffic.iter().map(|t| t.bytes).sum();
    if moved > 0 {
        let note = format!(
            "{} rank{}",
            run.ranks,
            if run.ranks == 1 { "" } else { "s" }
        );
        tiles.push(("Traffic", bytes(moved), note));
    }
    let tiles: String = tiles
        .iter()
        .map(|(name, value, note)| {
            format!("<div><span>{name}</span><b>{value}</b><small>{note}</small></div>")
        })
        .collect();
    format!("<section class=\"tiles\">{tiles}</section>")
}

fn plots(run: &Run) -> String {
    let loss = points(run, |s| s.loss);
    let mut series = vec![Series {
        name: "training",
        colour: 0,
        style: if loss.len() >= 20 {
            Style::Raw
        } else {
            Style::Line
        },
        points: loss.clone(),
    }];
    if loss.len() >= 20 {
        series.push(Series {
            name: "training, smoothed",
            colour: 0,
            style: Style::Line,
            points: smooth(&loss),
        });
    }
    series.push(Series {
        name: "validation",
        colour: 7,
        style: if run.validations.len() <= 60 {
            Style::Marked
        } else {
            Style::Line
        },
        points: run
            .validations
            .iter()
            .map(|v| (v.step as f64, Some(v.loss)))
            .collect(),
    });
    let mut out = String::from("<section>");
    out += &Lines {
        id: "loss",
        title: "Loss",
        unit: "nats per token",
        size: (960.0, 330.0),
        from_zero: false,
        series,
    }
    .render();
    out += "<div class=\"three\">";
    let one = |id, title, unit, colour, value: fn(&Step) -> Option<f64>| {
        Lines {
            id,
            title,
            unit,
            size: (340.0, 210.0),
            from_zero: true,
            series: vec![Series {
                name: title,
                colour,
                style: Style::Line,
                points: points(run, value),
            }],
        }
        .render()
    };
    out += &one("lr", "Learning rate", "", 4, |s| s.lr);
    out += &one("speed", "Throughput", "tokens per second", 1, |s| {
        s.tokens_per_s
    });
    out += &one("norm", "Gradient norm", "before clipping", 3, |s| {
        s.grad_norm
    });
    out + "</div></section>"
}

fn colour_of(tag: &str) -> usize {
    TAGS.iter().position(|t| *t == tag).unwrap_or(8)
}

fn memory(run: &Run) -> String {
    if run.memory.is_empty() {
        return String::new();
    }
    let mut rows = Vec::new();
    let mut table = String::new();
    let mut seen = Vec::new();
    for m in &run.memory {
        let mut tags = m.tags.clone();
        tags.sort_by_key(|(tag, _)| colour_of(tag));
        let total = m
            .total
            .map_or_else(|| tags.iter().map(|t| t.1.peak).sum(), |t| t.peak);
        let several = run.memory.iter().any(|other| other.home != m.home);
        let label = if several {
            format!("rank {} {}", m.rank, m.home)
        } else {
            format!("rank {}", m.rank)
        };
        for (tag, b) in &tags {
            if b.peak > 0 && !seen.contains(tag) {
                seen.push(tag.clone());
            }
            let _ = write!(
                table,
                "<tr><td>{label}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
                escape(tag),
                bytes(b.now),
                bytes(b.peak)
            );
        }
        if let Some(f) = m.fragmentation {
            let _ = write!(
                table,
                "<tr><td>{label}</td><td>fragmentation</td><td class=\"n\">{:.1} %</td><td></td></tr>",
                f * 100.0
            );
        }
        rows.push(Bar {
            label,
            parts: tags
                .iter()
                .map(|(tag, b)| (tag.clone(), colour_of(tag), b.peak))
                .collect(),
            note: bytes(total),
        });
    }
    seen.sort_by_key(|tag| colour_of(tag));
    let legend: String = seen
        .iter()
        .map(|tag| {
            let colour = colour_of(tag);
            format!(
                "<span><i class=\"key box c{colour}\"></i>{}</span>",
                escape(tag)
            )
        })
        .collect();
    let said = rows
        .iter()
        .map(|r| format!("{}: {}", r.label, r.note))
        .collect::<Vec<_>>()
        .join("; ");
    format!(
        "<section><figure><figcaption><b>Memory</b> <small>peak bytes by tag; the figure at the end is the peak of all together, which tags need not reach at the same time</small></figcaption>\
         <div class=\"legend\">{legend}</div>{}</figure>\
         <details><summary>Memory as a table</summary><table><thead><tr><th>rank</th><th>tag</th><th class=\"n\">at the end</th><th class=\"n\">peak</th></tr></thead><tbody>{table}</tbody></table></details></section>",
        bars("memory", "Memory by tag and rank", &said, &rows)
    )
}

fn traffic(run: &Run) -> String {
    if run.ranks == 0 {
        return String::new();
    }
    if run.traffic.iter().all(|t| t.calls == 0) {
        return "<section><figure><figcaption><b>Traffic</b></figcaption>\
                <p>No collective moved anything in this run.</p></figure></section>"
            .into();
    }
    let mut kinds = BTreeMap::<&str, (u64, u64)>::new();
    let mut table = String::new();
    for t in &run.traffic {
        let sum = kinds.entry(&t.kind).or_default();
        *sum = (sum.0 + t.bytes, sum.1 + t.calls);
        let _ = write!(
            table,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            t.rank,
            escape(&t.kind),
            escape(&t.group),
            escape(&t.tag),
            t.calls,
            t.elements,
            bytes(t.bytes)
        );
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by_key(|k| std::cmp::Reverse(k.1.0));
    let rows: Vec<Bar> = kinds
        .iter()
        .map(|(kind, (moved, calls))| Bar {
            label: (*kind).to_string(),
            parts: vec![((*kind).to_string(), 0, *moved)],
            note: format!("{} in {calls} calls", bytes(*moved)),
        })
        .collect();
    let said = rows
        .iter()
        .map(|r| format!("{}: {}", r.label, r.note))
        .collect::<Vec<_>>()
        .join("; ");
    format!(
        "<section><figure><figcaption><b>Traffic</b> <small>bytes by kind of collective, all {} ranks together</small></figcaption>{}</figure>\
         <details><summary>Traffic as a table</summary><table><thead><tr><th>rank</th><th>kind</th><th>group</th><th>tag</th><th class=\"n\">calls</th><th class=\"n\">elements</th><th class=\"n\">bytes</th></tr></thead><tbody>{table}</tbody></table></details></section>",
        run.ranks,
        bars("traffic", "Traffic by kind of collective", &said, &rows)
    )
}

fn config(run: &Run) -> String {
    if run.config.is_empty() {
        return String::new();
    }
    let rows: String = run
        .config
        .iter()
        .map(|(key, value)| {
            format!(
                "<tr><td><code>{}</code></td><td>{}</td></tr>",
                escape(key),
                escape(value)
            )
        })
        .collect();
    format!(
        "<section><details open><summary>Config</summary><table class=\"config\"><thead><tr><th>key</th><th>value</th></tr></thead><tbody>{rows}</tbody></table></details></section>"
    )
}
