//! Reads what a run left behind: metrics (one object a line), ledgers, config.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::ReportError;
use super::facts::Facts;
use crate::{StepTime, Watched};
use crossweave_timeline::Timeline;

/// One optimizer step. A number that was not finite is `None` (JSON has no NaN).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Step number.
    pub step: u64,
    /// Mean training loss in nats per token.
    pub loss: Option<f64>,
    /// Learning rate.
    pub lr: Option<f64>,
    /// Global gradient norm before clipping.
    pub grad_norm: Option<f64>,
    /// Tokens seen, as the run counts them.
    pub tokens: Option<f64>,
    /// Tokens per second.
    pub tokens_per_s: Option<f64>,
    /// Milliseconds of the step.
    pub step_ms: Option<f64>,
    /// Figures of a model's routers, where it has experts: their loss without its coefficient, the tokens of the expert with the fewest and with the
    /// most over those that each would have if all had as many, and the part of choices that found no room.
    pub routers: [Option<f64>; 4],
    /// Attention of the fullest of the ranks that share rows, over that of their mean.
    pub attention_over_mean: Option<f64>,
}

/// One validation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Validation {
    /// Step after which it ran.
    pub step: u64,
    /// Mean loss.
    pub loss: f64,
}

/// Bytes of one tag.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bytes {
    /// At the end of the run.
    pub now: u64,
    /// At the worst moment.
    pub peak: u64,
}

/// Memory of one home (`device`, `host`) of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    /// The rank.
    pub rank: u64,
    /// Name of the home.
    pub home: String,
    /// Bytes per tag, in the ledger's order.
    pub tags: Vec<(String, Bytes)>,
    /// All tags together; peaks of tags need not fall together.
    pub total: Option<Bytes>,
    /// 1 − largest free block / free bytes.
    pub fragmentation: Option<f64>,
}

/// Traffic of one kind of collective on one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// The rank.
    pub rank: u64,
    /// `all_reduce` and so on.
    pub kind: String,
    /// Axes of the group.
    pub group: String,
    /// What was moved.
    pub tag: String,
    /// Number of calls.
    pub calls: u64,
    /// Elements moved.
    pub elements: u64,
    /// Bytes moved.
    pub bytes: u64,
}

/// Everything the report is made of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// Name of the folder.
    pub name: String,
    /// Steps in order, one each.
    pub steps: Vec<Step>,
    /// Validations in order.
    pub validations: Vec<Validation>,
    /// Memory ledgers.
    pub memory: Vec<Memory>,
    /// Collective ledgers.
    pub traffic: Vec<Traffic>,
    /// Number of ranks in the ledger.
    pub ranks: usize,
    /// Ranks of each pipeline stage, where there are stages.
    pub stage_ranks: Option<u64>,
    /// The mean step of each rank, where its device can time events.
    pub times: Vec<(u64, StepTime)>,
    /// What a rank of each pipeline stage was seen to do.
    pub watched: Vec<(u64, Watched)>,
    /// The schedule of the stages, and a step as it was planned, by the times of the run's units.
    pub schedule: Option<(String, Option<Timeline>)>,
    /// Who ran what, when, where and how.
    pub facts: Facts,
    /// The resolved config, flattened: dotted key, value.
    pub config: Vec<(String, String)>,
    /// What the reader should know about the input.
    pub notes: Vec<String>,
}

impl Run {
    /// Reads the folder.
    ///
    /// # Errors
    /// When `metrics.jsonl` is missing or empty, or any file is there but not understood.
    pub fn read(dir: &Path) -> Result<Run, ReportError> {
        let name = dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf());
        let mut run = Run {
            name: name
                .file_name()
                .map_or_else(|| "run".into(), |n| n.to_string_lossy().into_owned()),
            ..Run::default()
        };
        let path = dir.join("metrics.jsonl");
        let fail = |line, what: String, fix: &str| ReportError {
            file: path.clone(),
            line,
            what,
            fix: fix.into(),
        };
        let bytes = crossweave_files::read(&path, crossweave_files::BULK).map_err(|e| {
            fail(
                0,
                format!("cannot be read: {e}"),
                "give the output folder of `crossweave train`",
            )
        })?;
        run.metrics(&String::from_utf8_lossy(&bytes))
            .map_err(|(line, what)| {
                fail(
                    line,
                    what,
                    "the file is damaged; restore it or remove that line",
                )
            })?;
        if run.steps.is_empty() && run.validations.is_empty() {
            let what = "holds no step".to_string();
            return Err(fail(0, what, "let the run finish its first step"));
        }
        if let Some(ledger) = read_json(&dir.join("ledger.json"), &mut run.notes)? {
            run.ledger(&ledger).map_err(|what| ReportError {
                file: dir.join("ledger.json"),
                line: 0,
                what,
                fix: "the file was not written by `crossweave train`; remove it".into(),
            })?;
        }
        if let Some(config) = read_json(&dir.join("config.json"), &mut run.notes)? {
            flatten("", &config, &mut run.config);
        }
        // Runs of before have none, and what it says is never needed: a damaged one is a note.
        match crossweave_files::read(&dir.join(RECORD), crossweave_files::TABLE) {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(record) => run.facts = Facts::of(&record),
                Err(e) => run.notes.push(format!(
                    "{RECORD} is not JSON ({e}): what ran, when and where is not known."
                )),
            },
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                run.notes.push(format!(
                    "There is no {RECORD}: what ran, when and where is not known."
                ));
            }
            Err(e) => run.notes.push(format!("{RECORD} cannot be read: {e}.")),
        }
        run.notes.append(&mut run.facts.notes);
        Ok(run)
    }

    /// Takes the lines of `metrics.jsonl`; an error is (line, what).
    pub fn metrics(&mut self, text: &str) -> Result<(), (usize, String)> {
        let mut steps = BTreeMap::new();
        let mut validations = BTreeMap::new();
        let (mut again, count) = (0, text.lines().count());
        for (i, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let parsed = serde_json::from_str(line).or_else(|e| finite(line).ok_or(e));
            let record: Value = match parsed {
                Ok(record) => record,
                // A run that is being written, or was killed while writing, ends mid-line.
                Err(_) if i + 1 == count && !text.ends_with('\n') => {
                    self.notes.push(format!(
                        "The last line of metrics.jsonl (line {}) is cut short and was left out.",
                        i + 1
                    ));
                    continue;
                }
                Err(e) => return Err((i + 1, format!("is not a JSON object ({e})"))),
            };
            let Some(step) = record.get("step").and_then(Value::as_u64) else {
                return Err((i + 1, "has no whole number \"step\"".into()));
            };
            let number = |key: &str| match record.get(key) {
                None | Some(Value::Null) => Ok(None),
                // What no plot can show is no number either.
                Some(Value::Number(n)) => Ok(n.as_f64().filter(|x| x.abs() < 1e100)),
                Some(other) => Err((i + 1, format!("{key:?} is {other}, not a number"))),
            };
            if record.get("val_loss").is_some() {
                if let Some(loss) = number("val_loss")? {
                    validations.insert(step, Validation { step, loss });
                }
                if record.get("loss").is_none() {
                    continue;
                }
            }
            let read = Step {
                step,
                loss: number("loss")?,
                lr: number("lr")?,
                grad_norm: number("grad_norm")?,
                tokens: number("tokens")?,
                tokens_per_s: number("tokens_per_s")?,
                step_ms: number("step_ms")?,
                routers: [
                    number("aux_loss")?,
                    number("load_min")?,
                    number("load_max")?,
                    number("drops")?,
                ],
                attention_over_mean: number("attention_over_mean")?,
            };
            again += usize::from(steps.insert(step, read).is_some());
        }
        if again > 0 {
            self.notes.push(format!(
                "{again} steps were recorded more than once (a resumed run); the last record counts."
            ));
        }
        let lost = steps.values().filter(|s| s.loss.is_none()).count();
        if lost > 0 {
            self.notes
                .push(format!("{lost} steps have no finite loss."));
        }
        self.steps = steps.into_values().collect();
        self.validations = validations.into_values().collect();
        Ok(())
    }

    /// Takes `ledger.json`.
    pub fn ledger(&mut self, ledger: &Value) -> Result<(), String> {
        let ranks = ledger
            .get("ranks")
            .and_then(Value::as_array)
            .ok_or("has no list \"ranks\"")?;
        self.ranks = ranks.len();
        self.stage_ranks = ledger
            .get("pipeline")
            .and_then(|p| p.get("data_parallel_ranks"))
            .and_then(Value::as_u64)
            .filter(|n| *n > 0);
        let pipeline = ledger.get("pipeline");
        let schedule = pipeline.and_then(|p| p["schedule"].as_str());
        let planned = pipeline.and_then(|p| serde_json::from_value(p["planned"].clone()).ok());
        self.schedule = schedule.map(|name| (name.to_string(), planned));
        for (i, entry) in ranks.iter().enumerate() {
            let rank = entry
                .get("rank")
                .and_then(Value::as_u64)
                .unwrap_or(i as u64);
            if let Some(memory) = entry.get("memory") {
                let memory = memory
                    .as_object()
                    .ok_or_else(|| format!("ranks[{i}].memory is not an object"))?;
                self.homes(rank, memory);
            }
            let time = entry.get("time").cloned().unwrap_or_default();
            if let Ok(time) = serde_json::from_value::<StepTime>(time) {
                self.times.push((rank, time));
            }
            let watched = entry.get("watched").cloned().unwrap_or_default();
            if let Ok(watched) = serde_json::from_value::<Watched>(watched) {
                self.watched.push((rank, watched));
            }
            let calls = entry.get("collectives").and_then(Value::as_array);
            for call in calls.into_iter().flatten() {
                let word = |key: &str| match call.get(key) {
                    Some(Value::String(s)) => s.clone(),
                    None | Some(Value::Null) => "—".into(),
                    Some(other) => other.to_string(),
                };
                let count = |key: &str| call.get(key).and_then(Value::as_u64).unwrap_or(0);
                self.traffic.push(Traffic {
                    rank,
                    kind: word("kind"),
                    group: word("group"),
                    tag: word("tag"),
                    calls: count("calls"),
                    elements: count("elements"),
                    bytes: count("bytes"),
                });
            }
        }
        Ok(())
    }

    /// Takes one rank's memory: tags by home (`{"device": {"param": …}, "total": …}`), or the
    /// report of a single home (`{"tags": {"param": …}, "total": …}`), or reports by home.
    fn homes(&mut self, rank: u64, memory: &Map<String, Value>) {
        let none = Map::new();
        let mut home = |name: &str, tags: &Map<String, Value>, around: &Map<String, Value>| {
            let beside = |key: &str| tags.get(key).or_else(|| around.get(key));
            self.memory.push(Memory {
                rank,
                home: name.to_string(),
                tags: tags
                    .iter()
                    .filter(|(tag, _)| !matches!(tag.as_str(), "total" | "reserved"))
                    .filter_map(|(tag, v)| Some((tag.clone(), bytes(v)?)))
                    .collect(),
                total: beside("total").and_then(bytes),
                fragmentation: beside("fragmentation").and_then(Value::as_f64),
            });
        };
        if let Some(tags) = memory.get("tags").and_then(Value::as_object) {
            home("device", tags, memory);
            let pinned = memory.get("host").and_then(Value::as_object);
            if let Some(pinned) = pinned.filter(|tags| !tags.is_empty()) {
                home("host", pinned, &none);
            }
            return;
        }
        for (name, value) in memory {
            // A pair of numbers such as `total` is no home.
            let Some(value) = value.as_object().filter(|v| !v.contains_key("peak")) else {
                continue;
            };
            match value.get("tags").and_then(Value::as_object) {
                Some(tags) => home(name, tags, value),
                None if name == "device" => home(name, value, memory),
                None => home(name, value, &none),
            }
        }
    }
}

/// Name of the file that says what ran.
pub const RECORD: &str = "run.json";

/// A line that other programs wrote with the numbers JSON does not have.
fn finite(line: &str) -> Option<Value> {
    let mut text = line.to_string();
    for word in ["NaN", "-Infinity", "Infinity"] {
        for gap in ["", " "] {
            text = text.replace(&format!(":{gap}{word}"), ":null");
        }
    }
    serde_json::from_str(&text).ok()
}

fn bytes(v: &Value) -> Option<Bytes> {
    Some(Bytes {
        now: v.get("now").and_then(Value::as_u64).unwrap_or(0),
        peak: v.get("peak")?.as_u64()?,
    })
}

/// The JSON of a file that may be missing.
fn read_json(path: &Path, notes: &mut Vec<String>) -> Result<Option<Value>, ReportError> {
    let fail = |what: String, line| ReportError {
        file: path.to_path_buf(),
        line,
        what,
        fix: "the file is damaged; restore or remove it".into(),
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match crossweave_files::read(path, crossweave_files::TABLE) {
        Ok(bytes) => match serde_json::from_slice(&bytes) {
            Ok(value) => Ok(Some(value)),
            Err(e) => Err(fail(format!("is not JSON ({e})"), e.line())),
        },
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            notes.push(format!("There is no {name}; its part is left out."));
            Ok(None)
        }
        Err(e) => Err(fail(format!("cannot be read: {e}"), 0)),
    }
}

fn flatten(path: &str, value: &Value, out: &mut Vec<(String, String)>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                flatten(&path, value, out);
            }
        }
        Value::String(s) => out.push((path.into(), s.clone())),
        other => out.push((path.into(), other.to_string())),
    }
}
