//! Two runs on one page: what differs first, then their curves over each other.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::charts::{Lines, Series, Style, bars, smooth};
use super::fold;
use super::html::{breakable, bytes, clip, command, escape, millis, short};
use super::page::{document, part_legend, points, speed, speeds, step_bar, validation};
use super::read::Run;

/// Colours of the two.
const COLOURS: [usize; 2] = [0, 7];

/// The whole document. The two are called A and B beside their names, which may be the same.
pub fn render(a: &Run, b: &Run) -> String {
    let both = [("A", a), ("B", b)];
    let mut body = String::from("<header><h1>");
    let names: Vec<String> = both
        .iter()
        .zip(COLOURS)
        .map(|((letter, run), colour)| {
            format!(
                "<span class=\"run c{colour}\">{letter}</span> {}",
                escape(&run.name)
            )
        })
        .collect();
    let _ = write!(
        body,
        "{}</h1><p>Crossweave comparison of two training runs</p></header>",
        names.join(" against ")
    );
    for (letter, run) in both {
        for note in &run.notes {
            let _ = write!(body, "<p class=\"warn\">{letter}: {}</p>", escape(note));
        }
    }
    body += &differences(a, b);
    body += &keys(a, b);
    body += &plots(both);
    body += &times(both);
    body += &heads(a, b);
    document(&format!("{} against {}", a.name, b.name), &body)
}

fn table(class: &str, heads: &[&str], rows: &str) -> String {
    let heads: String = heads.iter().map(|h| format!("<th>{h}</th>")).collect();
    format!(
        "<div class=\"wide\"><table class=\"two{class}\"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
}

/// How B stands to A.
fn against(a: f64, b: f64) -> String {
    match a == b {
        true => "the same".into(),
        false if a == 0.0 => "—".into(),
        false => format!("{:+.1} %", 100.0 * (b / a - 1.0)),
    }
}

/// Values of a run that can be held against another's: name, value, the value in words.
fn values(run: &Run) -> Vec<(&'static str, f64, String)> {
    let mut all = vec![];
    let mut value = |name, x: Option<f64>, words: fn(f64) -> String| {
        if let Some(x) = x {
            all.push((name, x, words(x)));
        }
    };
    value("Steps", Some(run.steps.len() as f64), short);
    let last = run.steps.iter().rev().find_map(|s| s.loss);
    value("Training loss at the end", last, short);
    let smoothed = smooth(&points(run, |s| s.loss));
    let mean = smoothed.iter().rev().nth(2.min(smoothed.len() / 2));
    value(
        "Training loss at the end, smoothed",
        mean.and_then(|p| p.1),
        short,
    );
    let losses = || run.validations.iter().map(|v| v.loss);
    value(
        "Best validation loss",
        losses().min_by(f64::total_cmp),
        short,
    );
    value("Last validation loss", losses().next_back(), short);
    value("Tokens/s", speed(run), short);
    if let (Some(speed), Some(each)) = (speed(run), run.facts.flops_per_token) {
        let peak = run.facts.peak.as_ref().map(|p| p.0);
        let share = peak.map(|p| 100.0 * speed * each / p);
        value("MFU", share, |x| format!("{x:.1} %"));
    }
    let seconds: f64 = run.steps.iter().filter_map(|s| s.step_ms).sum::<f64>() / 1e3;
    value("Time in steps", Some(seconds).filter(|s| *s > 0.0), |s| {
        super::html::time(s)
    });
    let device = run.memory.iter().filter(|m| m.home == "device");
    let peak = device.map(fold::peak).max();
    value("Peak memory of a rank", peak.map(|p| p as f64), |x| {
        bytes(x as u64)
    });
    let moved: f64 = run.traffic.iter().map(|t| t.bytes as f64).sum();
    value(
        "Traffic of all ranks",
        Some(moved).filter(|m| *m > 0.0),
        |x| bytes(x as u64),
    );
    let (rows, _) = fold::times(&run.times);
    if let Some((_, t)) = rows.get(rows.len().saturating_sub(1) / 2) {
        for (name, _, of) in super::page::PARTS {
            value(name, Some(of(t)), millis);
        }
    }
    all
}

fn differences(a: &Run, b: &Run) -> String {
    let (of_a, of_b) = (values(a), values(b));
    let mut names: Vec<&str> = of_a.iter().map(|v| v.0).collect();
    for (name, ..) in &of_b {
        if !names.contains(name) {
            names.push(name);
        }
    }
    let mut rows = String::new();
    for name in names {
        let find = |of: &[(&'static str, f64, String)]| of.iter().find(|v| v.0 == name).cloned();
        let (x, y) = (find(&of_a), find(&of_b));
        let words = |v: &Option<(&str, f64, String)>| {
            v.as_ref().map_or("—".to_string(), |v| escape(&v.2))
        };
        let change = match (&x, &y) {
            (Some(x), Some(y)) => against(x.1, y.1),
            _ => "—".into(),
        };
        let label = match super::page::PARTS.iter().any(|(part, ..)| *part == name) {
            true => format!("{name}, of a step"),
            false => name.to_string(),
        };
        let _ = write!(
            rows,
            "<tr><td>{label}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{change}</td></tr>",
            words(&x),
            words(&y)
        );
    }
    format!(
        "<section><figure><figcaption><b>Figures</b></figcaption>{}</figure></section>",
        table(" sums", &["", "A", "B", "B against A"], &rows)
    )
}

/// The keys whose values differ.
fn keys(a: &Run, b: &Run) -> String {
    let map = |run: &Run| -> BTreeMap<String, String> { run.config.iter().cloned().collect() };
    let (of_a, of_b) = (map(a), map(b));
    if of_a.is_empty() || of_b.is_empty() {
        return String::new();
    }
    let (mut rows, mut same) = (String::new(), 0);
    let all: std::collections::BTreeSet<&String> = of_a.keys().chain(of_b.keys()).collect();
    for key in all {
        let (x, y) = (of_a.get(key), of_b.get(key));
        if x == y {
            same += 1;
            continue;
        }
        let words = |v: Option<&String>| v.map_or("—".to_string(), |v| escape(&clip(v, 400)));
        let _ = write!(
            rows,
            "<tr><td><code>{}</code></td><td>{}</td><td>{}</td></tr>",
            breakable(&clip(key, 400)),
            words(x),
            words(y)
        );
    }
    let body = match rows.is_empty() {
        true => "<p>The configs are the same.</p>".to_string(),
        false => table("", &["key", "A", "B"], &rows),
    };
    format!(
        "<section><figure><figcaption><b>Config</b> <small>keys that differ; {same} are the same</small></figcaption>{body}</figure></section>"
    )
}

fn plots(both: [(&str, &Run); 2]) -> String {
    let name = |letter: &str, run: &Run| format!("{letter} {}", clip(&run.name, 40));
    let lines =
        |id, title, unit, height, from_zero, of: &dyn Fn(&Run) -> Vec<(f64, Option<f64>)>| {
            let series = both
                .iter()
                .zip(COLOURS)
                .map(|((letter, run), colour)| Series {
                    name: name(letter, run),
                    colour,
                    style: Style::Line,
                    points: of(run),
                });
            Lines {
                id,
                title,
                unit,
                height,
                from_zero,
                series: series.collect(),
            }
            .render()
        };
    let mut out = String::from("<section>");
    out += &lines(
        "loss",
        "Training loss",
        "nats per token, smoothed",
        260,
        false,
        &|run| smooth(&points(run, |s| s.loss)),
    );
    out += &Lines {
        id: "val",
        title: "Validation loss",
        unit: "nats per token",
        height: 220,
        from_zero: false,
        series: both
            .iter()
            .zip(COLOURS)
            .map(|((letter, run), colour)| validation(run, &name(letter, run), colour))
            .collect(),
    }
    .render();
    out += "<div class=\"three\">";
    out += &lines("lr", "Learning rate", "", 170, true, &|run| {
        points(run, |s| s.lr)
    });
    out += &lines(
        "speed",
        "Throughput",
        "tokens per second, smoothed",
        170,
        true,
        &speeds,
    );
    out += &lines(
        "norm",
        "Gradient norm",
        "before clipping, smoothed",
        170,
        true,
        &|run| smooth(&points(run, |s| s.grad_norm)),
    );
    out + "</div></section>"
}

fn times(both: [(&str, &Run); 2]) -> String {
    let (mut rows, mut said) = (vec![], vec![]);
    for (letter, run) in both {
        for (label, t) in fold::times(&run.times).0 {
            said.push(format!("{letter} {label}: {}", millis(t.step_ms)));
            rows.push(step_bar(format!("{letter}, {label}"), &t));
        }
    }
    match rows.is_empty() {
        true => String::new(),
        false => format!(
            "<section><figure><figcaption><b>Time of a step</b> <small>by the devices' own events</small></figcaption>{}{}</figure></section>",
            part_legend(None),
            bars(&said.join("; "), &rows)
        ),
    }
}

/// What ran, side by side.
fn heads(a: &Run, b: &Run) -> String {
    let mut labels: Vec<&str> = a.facts.rows.iter().map(|r| r.0).collect();
    for (label, _) in &b.facts.rows {
        if !labels.contains(label) {
            labels.push(label);
        }
    }
    let mut rows = String::new();
    let mut row = |label: &str, x: String, y: String| {
        let text: fn(&str) -> String = match label {
            "Command" => command,
            _ => escape,
        };
        let _ = write!(
            rows,
            "<tr><td>{label}</td><td>{}</td><td>{}</td></tr>",
            text(&x),
            text(&y)
        );
    };
    for label in labels {
        let of = |run: &Run| {
            let hit = run.facts.rows.iter().find(|r| r.0 == label);
            hit.map_or("—".to_string(), |r| r.1.clone())
        };
        row(label, of(a), of(b));
    }
    format!(
        "<section><figure><figcaption><b>What ran</b></figcaption>{}</figure></section>",
        table("", &["", "A", "B"], &rows)
    )
}
