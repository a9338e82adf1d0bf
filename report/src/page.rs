//! The page of a run: who ran what, figures, curves, where the time and the memory went, in the order a reader asks for them.

use std::fmt::Write as _;

use super::charts::{Bar, Lines, Series, Style, bars, legend, smooth, smooth_speed};
use super::facts::{Facts, SetKey, share};
use super::fold;
use super::html::{breakable, bytes, clip, command, count, escape, flops, millis, short, time};
use super::read::{Run, Step};
use super::stages;
use crate::StepTime;

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

/// Parts of a step: name, colour, milliseconds.
pub const PARTS: [(&str, usize, fn(&StepTime) -> f64); 5] = [
    ("compute", 0, |t| t.compute_ms),
    ("optimizer", 4, |t| t.optimizer_ms),
    ("exposed communication", 7, |t| t.communication_ms),
    ("input", 2, |t| t.input_ms),
    ("other", 8, |t| t.other_ms),
];

/// The whole document.
pub fn render(run: &Run) -> String {
    let mut body = String::new();
    let _ = write!(
        body,
        "<header><h1>{}</h1><p>Crossweave training report</p></header>",
        escape(&run.name)
    );
    body += &facts(&run.facts);
    for note in &run.notes {
        let _ = write!(body, "<p class=\"warn\">{}</p>", escape(note));
    }
    body += &tiles(run);
    body += &plots(run);
    body += &times(run);
    body += &stages::section(run);
    body += &memory(run);
    body += &traffic(run);
    body += &config(run);
    document(&run.name, &body)
}

/// A page around a body.
pub fn document(name: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>{} · Crossweave report</title>\
         <style>{}</style></head>\n<body><main>{body}</main><script>{}</script></body></html>\n",
        escape(name),
        include_str!("style.css"),
        include_str!("script.js")
    )
}

fn facts(f: &Facts) -> String {
    let one = |(label, text): &(&str, String)| {
        let text = match *label {
            "Command" => format!("<code>{}</code>", command(text)),
            _ => escape(text),
        };
        format!("<dt>{label}</dt><dd>{text}</dd>")
    };
    let rows: String = f.rows.iter().map(one).collect();
    match rows.is_empty() {
        true => String::new(),
        false => format!("<dl class=\"facts\">{rows}</dl>"),
    }
}

/// Values of the steps for a curve.
pub fn points(run: &Run, value: impl Fn(&Step) -> Option<f64>) -> Vec<(f64, Option<f64>)> {
    run.steps
        .iter()
        .map(|s| (s.step as f64, value(s)))
        .collect()
}

/// `(step, tokens, seconds)` of the steps whose speed is known. The first pays for compilation, page faults and cold caches.
fn work(run: &Run) -> Vec<(f64, f64, f64)> {
    let one = |s: &Step| {
        let seconds = s.step_ms? / 1e3;
        let tokens = s.tokens_per_s? * seconds;
        (tokens > 0.0 && seconds > 0.0).then_some((s.step as f64, tokens, seconds))
    };
    let skip = usize::from(run.steps.len() > 1);
    run.steps.iter().skip(skip).filter_map(one).collect()
}

/// Tokens a second around each step.
pub fn speeds(run: &Run) -> Vec<(f64, Option<f64>)> {
    smooth_speed(&work(run))
}

/// Tokens a second of the whole run.
pub fn speed(run: &Run) -> Option<f64> {
    let (tokens, seconds) = work(run)
        .iter()
        .fold((0.0, 0.0), |(t, s), w| (t + w.1, s + w.2));
    (seconds > 0.0).then(|| tokens / seconds)
}

/// Figures of a run: name, value, note.
pub fn figures(run: &Run) -> Vec<(&'static str, String, String)> {
    let mut all = vec![("Steps", count(run.steps.len() as u64), String::new())];
    let losses: Vec<f64> = run.steps.iter().filter_map(|s| s.loss).collect();
    if let (Some(first), Some(last)) = (losses.first(), losses.last()) {
        all.push((
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
        let note = format!("best, step {}", count(best.step));
        all.push(("Validation loss", short(best.loss), note));
    }
    let speed = speed(run);
    if let Some(speed) = speed {
        all.push(("Tokens/s", short(speed), "mean after the first step".into()));
    }
    if let (Some(speed), Some(each)) = (speed, run.facts.flops_per_token) {
        let reached = speed * each;
        match &run.facts.peak {
            Some((peak, _)) => {
                let (value, note) = share(reached, *peak);
                all.push(("MFU", value, format!("{} {note}", flops(reached))));
            }
            None => {
                let note = "MFU: the peak is not known, give --peak-tflops".into();
                all.push(("Model FLOP/s", flops(reached), note));
            }
        }
    }
    let seconds: f64 = run.steps.iter().filter_map(|s| s.step_ms).sum::<f64>() / 1000.0;
    if seconds > 0.0 {
        all.push(("Time in steps", time(seconds), String::new()));
    }
    let device = run.memory.iter().filter(|m| m.home == "device");
    if let Some(peak) = device.map(fold::peak).max() {
        all.push(("Peak memory", bytes(peak), "of a rank".into()));
    }
    let moved = run
        .traffic
        .iter()
        .fold(0u64, |sum, t| sum.saturating_add(t.bytes));
    if moved > 0 {
        let s = if run.ranks == 1 { "" } else { "s" };
        all.push(("Traffic", bytes(moved), format!("{} rank{s}", run.ranks)));
    }
    all
}

fn tiles(run: &Run) -> String {
    let one = |(name, value, note): (&str, String, String)| {
        format!(
            "<div><span>{name}</span><b>{}</b><small>{}</small></div>",
            escape(&value),
            escape(&note)
        )
    };
    let tiles: String = figures(run).into_iter().map(one).collect();
    format!("<section class=\"tiles\">{tiles}</section>")
}

/// Many values are drawn faint under a smoothed line.
const MANY: usize = 20;

fn series(
    name: &str,
    colour: usize,
    raw: Vec<(f64, Option<f64>)>,
    smoothed: Vec<(f64, Option<f64>)>,
) -> Vec<Series> {
    let one = |name: String, style, points| Series {
        name,
        colour,
        style,
        points,
    };
    match raw.len() >= MANY {
        true => vec![
            one(name.into(), Style::Raw, raw),
            one(format!("{name}, smoothed"), Style::Line, smoothed),
        ],
        false => vec![one(name.into(), Style::Line, raw)],
    }
}

fn plots(run: &Run) -> String {
    let loss = points(run, |s| s.loss);
    let smoothed = smooth(&loss);
    let mut all = series("training", 0, loss, smoothed);
    all.push(validation(run, "validation", 7));
    let mut out = String::from("<section>");
    out += &Lines {
        id: "loss",
        title: "Loss",
        unit: "nats per token",
        height: 300,
        from_zero: false,
        series: all,
    }
    .render();
    out += "<div class=\"three\">";
    let one = |id, title, unit, series| {
        Lines {
            id,
            title,
            unit,
            height: 170,
            from_zero: true,
            series,
        }
        .render()
    };
    let rate = vec![Series {
        name: "learning rate".into(),
        colour: 4,
        style: Style::Line,
        points: points(run, |s| s.lr),
    }];
    out += &one("lr", "Learning rate", "", rate);
    let raw = work(run)
        .into_iter()
        .map(|(x, tokens, seconds)| (x, Some(tokens / seconds)))
        .collect();
    let speed = series("measured", 1, raw, speeds(run));
    out += &one("speed", "Throughput", "tokens per second", speed);
    let norm = points(run, |s| s.grad_norm);
    let smoothed = smooth(&norm);
    let norm = series("measured", 3, norm, smoothed);
    out += &one("norm", "Gradient norm", "before clipping", norm);
    if run.steps.iter().any(|s| s.routers[0].is_some()) {
        let of = |name: &str, colour, i: usize| Series {
            name: name.into(),
            colour,
            style: Style::Line,
            points: points(run, |s| s.routers[i]),
        };
        let loss = vec![of("balance of experts", 4, 0)];
        out += &one("aux", "Loss of routers", "without its coefficient", loss);
        let load = vec![of("fewest", 1, 1), of("most", 3, 2)];
        out += &one(
            "load",
            "Tokens of an expert",
            "1 where all have as many",
            load,
        );
        if run.steps.iter().any(|s| s.routers[3] > Some(0.0)) {
            let drops = vec![of("dropped", 3, 3)];
            out += &one("drops", "Dropped choices", "part of all choices", drops);
        }
    }
    if run.steps.iter().any(|s| s.attention_over_mean.is_some()) {
        let raw = points(run, |s| s.attention_over_mean);
        let smoothed = smooth(&raw);
        out += &one(
            "fullest",
            "Attention of the fullest rank",
            "over the mean of the ranks that share rows",
            series("measured", 1, raw, smoothed),
        );
    }
    out + "</div></section>"
}

/// The curve of a run's validations.
pub fn validation(run: &Run, name: &str, colour: usize) -> Series {
    Series {
        name: name.into(),
        colour,
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
    }
}

/// A bar of the parts of a step.
pub fn step_bar(label: String, t: &StepTime) -> Bar {
    Bar {
        label,
        parts: PARTS
            .iter()
            .map(|(name, colour, of)| ((*name).to_string(), *colour, of(t), millis(of(t))))
            .collect(),
        note: millis(t.step_ms),
    }
}

/// The colours of the parts, with their share of a step.
pub fn part_legend(t: Option<&StepTime>) -> String {
    let whole = |t: &StepTime| PARTS.iter().map(|(_, _, of)| of(t)).sum::<f64>();
    let one = |(name, colour, of): &(&str, usize, fn(&StepTime) -> f64)| {
        let part = t.filter(|t| whole(t) > 0.0);
        let part = part.map_or(String::new(), |t| {
            format!(" {:.1} %", 100.0 * of(t) / whole(t))
        });
        (format!("{name}{part}"), *colour)
    };
    legend(&PARTS.iter().map(one).collect::<Vec<_>>())
}

/// A sentence about the communication that nothing hides, by the axes of its groups.
fn exposed(rows: &[(String, StepTime)]) -> String {
    let some = rows.iter().filter(|(_, t)| !t.exposed_ms.is_empty());
    let of_rank = |(label, t): &(String, StepTime)| {
        let each = t.exposed_ms.iter();
        let each: Vec<String> = each
            .map(|(group, ms)| format!("{group} {}", millis(*ms)))
            .collect();
        format!("{label}: {}", each.join(", "))
    };
    let all: Vec<String> = some.map(of_rank).collect();
    match all.is_empty() {
        true => String::new(),
        false => {
            let text = format!(
                "Exposed communication by the axes of its groups: {}.",
                all.join("; ")
            );
            format!("<p>{}</p>", escape(&text))
        }
    }
}

fn times(run: &Run) -> String {
    if run.times.is_empty() {
        return match run.ranks {
            // A ledger of an earlier version has none, and some devices cannot time events.
            0 => String::new(),
            _ => "<section><figure><figcaption><b>Time of a step</b></figcaption>\
                  <p>Not recorded: the device cannot time events, or the run was too short.</p></figure></section>"
                .into(),
        };
    }
    let (rows, straggler) = fold::times(&run.times);
    let middle = &rows[(rows.len() - 1) / 2].1;
    let said: Vec<String> = rows
        .iter()
        .map(|(label, t)| {
            let parts: Vec<String> = PARTS
                .iter()
                .map(|(name, _, of)| format!("{name} {}", millis(of(t))))
                .collect();
            format!("{label}: {} of {}", parts.join(", "), millis(t.step_ms))
        })
        .collect();
    let all: Vec<Bar> = rows
        .iter()
        .map(|(label, t)| step_bar(label.clone(), t))
        .collect();
    let note = straggler.map_or(String::new(), |s| format!("<p>{}</p>", escape(&s)));
    let note = note + &exposed(&rows);
    let of = middle.steps;
    format!(
        "<section><figure><figcaption><b>Time of a step</b> <small>mean of {of} steps by the device's own events; communication and input count where \
         no computing hides them, waiting for other ranks included</small></figcaption>{}{}{note}</figure></section>",
        part_legend(Some(middle)),
        bars(&said.join("; "), &all)
    )
}

fn colour_of(tag: &str) -> usize {
    TAGS.iter().position(|t| *t == tag).unwrap_or(8)
}

fn memory_bar(label: String, tags: &[(String, u64)], total: u64, note: &str) -> Bar {
    let mut tags = tags.to_vec();
    tags.sort_by_key(|(tag, _)| colour_of(tag));
    let part = |(tag, n): &(String, u64)| (tag.clone(), colour_of(tag), *n as f64, bytes(*n));
    Bar {
        label,
        parts: tags.iter().map(part).collect(),
        note: format!("{}{note}", bytes(total)),
    }
}

fn memory(run: &Run) -> String {
    if run.memory.is_empty() {
        return String::new();
    }
    let held = fold::memory(&run.memory, run.stage_ranks);
    let (mut rows, mut table, mut seen) = (vec![], String::new(), vec![]);
    for h in &held {
        let total = fold::peak(&h.memory);
        let peaks: Vec<(String, u64)> = h
            .memory
            .tags
            .iter()
            .map(|(tag, b)| (tag.clone(), b.peak))
            .collect();
        let first = h.ranks.first();
        let of = |p: &&super::facts::Planned| first.is_some_and(|r| p.ranks.contains(r));
        let planned = run.facts.planned.iter().find(of);
        let mut note = String::new();
        if let Some(p) = planned.filter(|_| h.memory.home == "device") {
            rows.push(memory_bar(
                format!("{}: planned", h.label),
                &p.tags,
                p.total,
                "",
            ));
            let off = 100.0 * (total as f64 / p.total.max(1) as f64 - 1.0);
            note = match total == p.total {
                true => ", as planned".into(),
                false => format!(", {off:+.2} %"),
            };
        }
        let label = match note.is_empty() {
            true => h.label.clone(),
            false => "measured".to_string(),
        };
        rows.push(memory_bar(label, &peaks, total, &note));
        for (tag, b) in &h.memory.tags {
            if b.peak > 0 && !seen.contains(tag) {
                seen.push(tag.clone());
            }
            let plan = planned
                .and_then(|p| p.tags.iter().find(|(t, _)| t == tag))
                .map_or("—".to_string(), |(_, n)| bytes(*n));
            let _ = write!(
                table,
                "<tr><td>{}</td><td>{}</td><td class=\"n\">{plan}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
                escape(&h.label),
                escape(tag),
                bytes(b.peak),
                bytes(b.now)
            );
        }
        if let Some(f) = h.memory.fragmentation {
            let _ = write!(
                table,
                "<tr><td>{}</td><td>fragmentation</td><td></td><td></td><td class=\"n\">{:.1} %</td></tr>",
                escape(&h.label),
                f * 100.0
            );
        }
    }
    seen.sort_by_key(|tag| colour_of(tag));
    let entries: Vec<(String, usize)> = seen
        .iter()
        .map(|tag| (tag.clone(), colour_of(tag)))
        .collect();
    let said: Vec<String> = rows
        .iter()
        .map(|r| format!("{}: {}", r.label, r.note))
        .collect();
    format!(
        "<section><figure><figcaption><b>Memory</b> <small>peak bytes by tag; the figure behind a bar is the peak of all together, which tags need not \
         reach at the same time</small></figcaption>{}{}</figure>\
         <details><summary>Memory as a table</summary><div class=\"wide\"><table><thead><tr><th>ranks</th><th>tag</th><th class=\"n\">planned peak</th>\
         <th class=\"n\">peak</th><th class=\"n\">at the end</th></tr></thead><tbody>{table}</tbody></table></div></details></section>",
        legend(&entries),
        bars(&said.join("; "), &rows)
    )
}

fn traffic(run: &Run) -> String {
    if run.ranks == 0 {
        return String::new();
    }
    let moved = fold::traffic(&run.traffic);
    if moved.iter().all(|m| m.all_calls == 0) {
        return "<section><figure><figcaption><b>Traffic</b></figcaption>\
                <p>No collective moved anything in this run.</p></figure></section>"
            .into();
    }
    let (mut kinds, mut table) = (Vec::<(&str, u64, u64)>::new(), String::new());
    for m in &moved {
        match kinds.iter_mut().find(|k| k.0 == m.kind) {
            Some(k) => {
                k.1 = k.1.saturating_add(m.total);
                k.2 = k.2.saturating_add(m.all_calls);
            }
            None => kinds.push((&m.kind, m.total, m.all_calls)),
        }
        let range = |least: String, most: String| match least == most {
            true => least,
            false => format!("{least} to {most}"),
        };
        let [least, median, most] = m.bytes;
        let _ = write!(
            table,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            escape(&m.kind),
            escape(&m.group),
            escape(&m.tag),
            m.ranks,
            range(count(m.calls.0), count(m.calls.1)),
            range(bytes(least), bytes(most)),
            bytes(median),
            bytes(m.total)
        );
    }
    kinds.sort_by_key(|k| std::cmp::Reverse(k.1));
    let rows: Vec<Bar> = kinds
        .iter()
        .map(|(kind, total, calls)| Bar {
            label: (*kind).to_string(),
            parts: vec![((*kind).to_string(), 0, *total as f64, bytes(*total))],
            note: format!("{} in {} calls", bytes(*total), count(*calls)),
        })
        .collect();
    let said: Vec<String> = rows
        .iter()
        .map(|r| format!("{}: {}", r.label, r.note))
        .collect();
    format!(
        "<section><figure><figcaption><b>Traffic</b> <small>bytes by kind of collective, all {} ranks together</small></figcaption>{}</figure>\
         <details><summary>Traffic as a table</summary><div class=\"wide\"><table><thead><tr><th>kind</th><th>group</th><th>tag</th><th class=\"n\">ranks</th>\
         <th class=\"n\">calls of a rank</th><th class=\"n\">bytes of a rank</th><th class=\"n\">median</th><th class=\"n\">of all</th></tr></thead>\
         <tbody>{table}</tbody></table></div></details></section>",
        run.ranks,
        bars(&said.join("; "), &rows)
    )
}

/// Characters of a value that are shown.
const VALUE: usize = 400;

fn config(run: &Run) -> String {
    let row = |key: &str, value: &str, from: Option<&str>| {
        let from = from.map_or(String::new(), |f| format!("<td>{}</td>", escape(f)));
        format!(
            "<tr><td><code>{}</code></td><td>{}</td>{from}</tr>",
            breakable(&clip(key, VALUE)),
            escape(&clip(value, VALUE))
        )
    };
    let mut out = String::new();
    if let Some(set) = &run.facts.set {
        let one = |s: &SetKey| row(&s.key, &s.value, Some(&s.from));
        let rows: String = set.iter().map(one).collect();
        let _ = write!(
            out,
            "<details open class=\"set\"><summary>Config: the {} keys that were set</summary><div class=\"wide\"><table class=\"config\"><thead><tr><th>key</th>\
             <th>value</th><th>set by</th></tr></thead><tbody>{rows}</tbody></table></div></details>",
            set.len()
        );
    }
    if !run.config.is_empty() {
        let rows: String = run.config.iter().map(|(k, v)| row(k, v, None)).collect();
        let _ = write!(
            out,
            "<details><summary>All {} keys with the values in force</summary><div class=\"wide\"><table class=\"config\"><thead><tr><th>key</th><th>value</th></tr></thead>\
             <tbody>{rows}</tbody></table></div></details>",
            run.config.len()
        );
    }
    match out.is_empty() {
        true => out,
        false => format!("<section>{out}</section>"),
    }
}
