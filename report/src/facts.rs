//! What `run.json` says of a run: who ran what, when, where and how. Everything in it is optional, and what is not of the expected kind
//! is left out, since a page about the rest is better than none.

use crate::moment::clock;
use crate::moment::utc;
use serde_json::Value;

use super::html::{clip, count, flops};

/// Memory that was planned for some ranks, by tag: peak bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Planned {
    /// The ranks.
    pub ranks: Vec<u64>,
    /// By tag.
    pub tags: Vec<(String, u64)>,
    /// All tags together.
    pub total: u64,
}

/// A key that the user set.
#[derive(Clone, Debug, PartialEq)]
pub struct SetKey {
    /// Dotted path.
    pub key: String,
    /// Value as JSON.
    pub value: String,
    /// Where it was set: a line of the config, `--set`.
    pub from: String,
}

/// What is known of a run beside its figures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// Label and text, in the order of the page's head.
    pub rows: Vec<(&'static str, String)>,
    /// Keys that the user set; none where that is not recorded.
    pub set: Option<Vec<SetKey>>,
    /// Operations of the model for a token, forward and backward.
    pub flops_per_token: Option<f64>,
    /// Operations a second that the devices of the job can reach together, and how that is known.
    pub peak: Option<(f64, String)>,
    /// Ranks of the job.
    pub ranks: Option<u64>,
    /// Planned memory.
    pub planned: Vec<Planned>,
    /// What the reader should know.
    pub notes: Vec<String>,
}

/// The text at a path of keys.
fn text(v: &Value, path: &[&str]) -> Option<String> {
    match at(v, path)? {
        Value::String(s) if !s.trim().is_empty() => Some(clip(s, 500)),
        _ => None,
    }
}

fn at<'a>(v: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(v, |v, key| v.get(key))
}

fn number(v: &Value, path: &[&str]) -> Option<u64> {
    at(v, path)?.as_u64()
}

fn real(v: &Value, path: &[&str]) -> Option<f64> {
    at(v, path)?.as_f64().filter(|x| x.is_finite() && *x > 0.0)
}

fn list<'a>(v: &'a Value, key: &str) -> &'a [Value] {
    v.get(key)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn texts(v: &Value, key: &str) -> Vec<String> {
    let all = list(v, key).iter().filter_map(Value::as_str);
    all.map(|s| clip(s, 500)).collect()
}

impl Facts {
    /// The facts in the JSON of `run.json`: the last session is described, the number of those before it is given.
    pub fn of(file: &Value) -> Facts {
        let sessions = list(file, "sessions");
        let Some(last) = sessions.last().filter(|s| s.is_object()) else {
            return Facts {
                notes: vec!["run.json holds no session of a run; what ran is not known.".into()],
                ..Facts::default()
            };
        };
        let mut f = Facts {
            ranks: number(last, &["layout", "ranks"]).filter(|n| *n > 0),
            flops_per_token: real(last, &["model", "flops_per_token"]),
            peak: real(last, &["peak", "flops"]).map(|peak| {
                let how = text(last, &["peak", "how"]);
                (peak, how.unwrap_or_default())
            }),
            ..Facts::default()
        };
        f.rows = rows(last);
        f.rows.extend(f.peak.as_ref().map(peak_row));
        if sessions.len() > 1 {
            let began = |s: &Value| number(s, &["began"]).and_then(utc);
            let first =
                began(&sessions[0]).map_or(String::new(), |t| format!(", the first on {t}"));
            f.rows.insert(
                1.min(f.rows.len()),
                (
                    "Resumed",
                    format!(
                        "{} sessions{first}; the last is described here",
                        sessions.len()
                    ),
                ),
            );
        }
        if last.get("ended").is_none() {
            f.notes.push(
                "The run has not come to its end: it was killed, it failed, or it goes on.".into(),
            );
        }
        if let Some(Value::Array(set)) = last.get("set") {
            let one = |s: &Value| {
                Some(SetKey {
                    key: text(s, &["key"])?,
                    value: text(s, &["value"])?,
                    from: text(s, &["from"]).unwrap_or_default(),
                })
            };
            f.set = Some(set.iter().filter_map(one).collect());
        }
        for p in list(last, "planned") {
            let tags = p.get("tags").and_then(Value::as_object);
            f.planned.push(Planned {
                ranks: list(p, "ranks").iter().filter_map(Value::as_u64).collect(),
                tags: tags
                    .into_iter()
                    .flatten()
                    .filter_map(|(tag, n)| Some((tag.clone(), n.as_u64()?)))
                    .collect(),
                total: number(p, &["total"]).unwrap_or(0),
            });
        }
        f
    }

    /// Another peak than the recorded one: `each` operations a second for every rank.
    pub fn with_peak(&mut self, each: f64) {
        let ranks = self.ranks.unwrap_or(1) as f64;
        let peak = (each * ranks, "given by --peak-tflops".to_string());
        self.rows.retain(|(label, _)| *label != PEAK);
        self.rows.push(peak_row(&peak));
        self.peak = Some(peak);
    }
}

/// The head's row about what MFU is a share of.
const PEAK: &str = "Peak";

fn peak_row((peak, how): &(f64, String)) -> (&'static str, String) {
    let how = match how.is_empty() {
        true => String::new(),
        false => format!(" ({how})"),
    };
    (PEAK, format!("{} of all ranks{how}", flops(*peak)))
}

/// The head's rows.
fn rows(s: &Value) -> Vec<(&'static str, String)> {
    let mut rows = vec![];
    let mut row = |label, text: Option<String>| {
        if let Some(text) = text {
            rows.push((label, text));
        }
    };
    row("Date", date(s));
    let hosts = texts(s, "hosts");
    let host = match (hosts.len(), text(s, &["launcher"])) {
        (0, _) => None,
        (_, Some(by)) => {
            let n = number(s, &["processes"]).unwrap_or(1);
            Some(format!("{}; {n} processes by {by}", few(&hosts)))
        }
        _ => Some(few(&hosts)),
    };
    row("Host", host);
    let devices: Vec<String> = list(s, "devices").iter().filter_map(device).collect();
    row("Devices", (!devices.is_empty()).then(|| devices.join("; ")));
    row(
        "Version",
        text(s, &["version"]).map(|v| format!("crossweave {v}")),
    );
    let command = texts(s, "command");
    row("Command", (!command.is_empty()).then(|| shell(&command)));
    row("Layout", layout(s.get("layout").unwrap_or(&Value::Null)));
    let model = text(s, &["model", "name"]);
    let parameters = number(s, &["model", "parameters"]).map(|n| {
        let model = model.map_or(String::new(), |m| format!(" ({m})"));
        format!("{}{model}", count(n))
    });
    row("Parameters", parameters);
    row(
        "Precision",
        precision(s.get("precision").unwrap_or(&Value::Null)),
    );
    rows
}

fn date(s: &Value) -> Option<String> {
    let began = number(s, &["began"])?;
    let mut out = utc(began)?;
    match number(s, &["ended"]) {
        Some(ended) if ended >= began => {
            out += &format!(", for {}", clock((ended - began) as f64));
        }
        _ => {}
    }
    if text(s, &["outcome"]).as_deref() == Some("stopped") {
        out += ", stopped by a signal";
    }
    Some(out)
}

/// The first few of a list, and how many more there are.
fn few(all: &[String]) -> String {
    const FEW: usize = 4;
    let shown = all[..all.len().min(FEW)].join(", ");
    match all.len().saturating_sub(FEW) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn device(d: &Value) -> Option<String> {
    let named = text(d, &["named"])?;
    let version = text(d, &["version"]).map_or(String::new(), |v| format!(" {v}"));
    let names = few(&texts(d, "devices"));
    let ranks = number(d, &["ranks"]).unwrap_or(1);
    let ranks = format!("{ranks} rank{}", if ranks == 1 { "" } else { "s" });
    let threads = number(d, &["threads"]).map_or(String::new(), |n| {
        format!(", {n} thread{} each", if n == 1 { "" } else { "s" })
    });
    Some(match names.is_empty() {
        true => format!("{ranks} on {named}{version}{threads}"),
        false => format!("{ranks} on {names} ({named}{version}{threads})"),
    })
}

/// A command as a shell would take it.
fn shell(words: &[String]) -> String {
    let plain = |w: &str| {
        let fine = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
        !w.is_empty() && w.chars().all(fine)
    };
    let one = |w: &String| match plain(w) {
        true => w.clone(),
        false => format!("'{}'", w.replace('\'', "'\\''")),
    };
    words.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn layout(l: &Value) -> Option<String> {
    let ranks = number(l, &["ranks"])?;
    let n = |key: &str| number(l, &[key]);
    let mut out = format!("{ranks} rank{}", if ranks == 1 { "" } else { "s" });
    let tensor = n("tensor_parallel").filter(|t| *t > 1);
    let stages = n("pipeline").filter(|s| *s > 1);
    if let (Some(data), true) = (n("data_parallel"), tensor.or(stages).is_some()) {
        out += &format!(" = {data} data-parallel");
    }
    if let Some(tensor) = tensor {
        out += &format!(" x {tensor} tensor-parallel");
    }
    if let Some(stages) = stages {
        out += &format!(" x {stages} pipeline stages");
    }
    if let Some(stage) = n("zero_stage").filter(|s| *s > 0) {
        out += &format!(", ZeRO stage {stage}");
    }
    if let Some(offload) = text(l, &["offload"]) {
        out += &format!(", {offload} offloaded");
    }
    if let (Some(global), Some(micro), Some(steps)) =
        (n("global_batch"), n("micro_batch"), n("accumulation"))
    {
        out += &format!("; batch {global}, micro-batches of {micro} a rank");
        if steps > 1 {
            out += &format!(", {steps} accumulated");
        }
    }
    if let Some(seq) = n("seq_len") {
        out += &format!("; sequences of {} tokens", count(seq));
    }
    Some(out)
}

fn precision(p: &Value) -> Option<String> {
    let compute = text(p, &["compute"])?;
    let mut out = format!("{compute} compute");
    for (key, what) in [
        ("master", "master weights and optimizer"),
        ("accumulation", "gradients"),
        ("wire", "gradients between ranks"),
    ] {
        if let Some(t) = text(p, &[key]) {
            out += &format!(", {t} {what}");
        }
    }
    Some(out)
}

/// A share of the devices' peak, in words: `41.2 % of 123.4 GFLOP/s`.
pub fn share(flops_per_s: f64, peak: f64) -> (String, String) {
    (
        format!("{:.1} %", 100.0 * flops_per_s / peak),
        format!("of {}", flops(peak)),
    )
}
