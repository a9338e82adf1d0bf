//! The run's config: DeepSpeed's JSON plus `model`, `data`, `mesh` and `run`, read strictly.
//!
//! DeepSpeed accepts `{"zero_optimisation": {"stage": 3}}` and trains without ZeRO. Here every key
//! that is not known is an error with file, line, column and the nearest valid key, at every
//! level, and a key of DeepSpeed's that has no meaning here is an error or a warning with the
//! reason, never silence. One set of tables ([`schema`]) is the source of parsing, defaults, docs,
//! `config schema` and `config explain`.
//!
//! The crate is pure: text in, structs out. Reading files, `--set` and printing are the caller's.
//!
//! ```
//! use crossweave_config::Config;
//! let text = r#"{"model": {"family": "gpt2", "preset": "tiny"},
//!                "data": {"train": "corpus/*.txt"}, "run": {"steps": 10},
//!                "train_batch_size": 8}"#;
//! let config = Config::load("train.json", text, &[]).unwrap();
//! let run = config.resolve(2).unwrap();
//! assert_eq!(run.batch.micro, 4);
//!
//! let typo = Config::load("train.json", r#"{"zero_optimisation": {"stage": 3}}"#, &[]);
//! assert_eq!(
//!     typo.unwrap_err().to_string(),
//!     "train.json:1:2: zero_optimisation: unknown key \"zero_optimisation\"; \
//!      fix: did you mean \"zero_optimization\"?"
//! );
//! ```
#![forbid(unsafe_code)]

mod asks;
mod balance;
mod batch;
mod best;
mod canonical;
mod check;
mod communication;
mod conflicts;
mod data;
mod deepspeed;
mod distill;
mod documents;
mod elastic;
mod epochs;
mod error;
mod faults;
mod foreign;
pub mod json;
mod known_words;
mod lookup;
mod mesh;
mod new_model;
mod objective;
mod parts;
mod render;
mod resolve;
mod rows;
mod schedule;
pub mod schema;
mod settings;
mod settings_data;
mod settings_optim;
mod stages;
mod suggest;
mod table_data;
mod table_distill;
mod table_model;
mod table_optim;
mod table_run;
mod table_zero;
mod unavailable;
mod unused;
mod wrap;

use std::collections::BTreeMap;

pub use balance::Balance;
pub use batch::{Batch, Unsolved, solve};
pub use check::Row;
pub use conflicts::{CONFLICTS, Conflict};
pub use epochs::Epoch;
pub use error::{At, Errors, Problem};
pub use faults::Fault;
pub use objective::{MEAN_NOISE_SPAN_LENGTH, MLM_PROBABILITY};
pub use render::{keys, reference, schema as json_schema};
pub use resolve::{DEFAULT_SEED, Given, LossScale, Resolved};
pub use rows::{is_path, may_change_on_resume, may_differ_by_process};
pub use schedule::{Anneal, OneCycle, Schedule, Warmup, WsdStyle};
pub use settings::*;
pub use stages::Layers;
pub use suggest::{distance, nearest};
pub use table_run::ROOT;

use json::{Json, Member, Node};

/// A config that has passed the tables; not yet resolved for a number of ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The settings, defaults filled in.
    pub settings: Settings,
    file: String,
    root: Node,
    rows: Vec<Row>,
    warnings: Vec<Problem>,
    places: BTreeMap<String, At>,
}

impl Config {
    /// Reads the text (UTF-8 bytes) of a config, with `--set` pairs `(path, value)` laid over it.
    /// `file` is used in messages only.
    ///
    /// # Errors
    /// Everything that is wrong with the file, each with its place.
    pub fn load(
        file: &str,
        text: impl AsRef<[u8]>,
        sets: &[(String, String)],
    ) -> Result<Config, Errors> {
        let problem = |at, what, fix| {
            Errors(vec![Problem {
                file: file.to_string(),
                at,
                path: String::new(),
                what,
                fix,
            }])
        };
        let text = match std::str::from_utf8(text.as_ref()) {
            Ok(text) => text,
            Err(e) => {
                let before = &text.as_ref()[..e.valid_up_to()];
                let last = before.rsplit(|b| *b == b'\n').next().unwrap_or_default();
                let at = At::File {
                    line: before.iter().filter(|b| **b == b'\n').count() as u32 + 1,
                    col: String::from_utf8_lossy(last).chars().count() as u32 + 1,
                };
                let fix = "save the file as UTF-8; is it a config at all?";
                return Err(problem(at, "not UTF-8 text".into(), fix.into()));
            }
        };
        let mut root = json::parse(text).map_err(|e| {
            foreign::of_text(file, text).unwrap_or_else(|| problem(e.at, e.what, e.fix))
        })?;
        if let Some(answer) = foreign::of_root(file, &root) {
            return Err(answer);
        }
        for (path, value) in sets {
            lay(&mut root, file, path, value)?;
        }
        Config::of(file, root)
    }

    /// Lays one `--set` over the config and checks all of it again. The value is read as JSON and,
    /// if it is none, as a string.
    ///
    /// # Errors
    /// As [`Config::load`]; the config is unchanged then.
    pub fn set(&mut self, path: &str, value: &str) -> Result<(), Errors> {
        let mut root = self.root.clone();
        lay(&mut root, &self.file, path, value)?;
        *self = Config::of(&self.file, root)?;
        Ok(())
    }

    fn of(file: &str, mut root: Node) -> Result<Config, Errors> {
        let translated = deepspeed::translate(file, &mut root);
        let mut checked = check::check(file, &root);
        checked.errors.extend(translated.errors);
        if !checked.errors.is_empty() {
            return Err(Errors(checked.errors));
        }
        // The tables have accepted the value; a disagreement with the structs is our own mistake
        // and is reported as such rather than hidden.
        let settings: Settings = serde_json::from_value(checked.value).map_err(|e| {
            Errors(vec![Problem {
                file: file.to_string(),
                at: At::Whole,
                path: String::new(),
                what: format!("the tables and the settings disagree: {e}"),
                fix: "this is a bug of crossweave-config; please report it".into(),
            }])
        })?;
        let mut config = Config {
            settings,
            file: file.to_string(),
            root,
            rows: checked.rows,
            warnings: translated.warnings,
            places: checked.places,
        };
        config.warnings.extend(checked.warnings);
        config.warnings.extend(checked.unclipped);
        let mut taken = checked.taken;
        taken.extend(config.trainers_batch());
        config.warnings.extend(config.filled_in(&taken));
        config.warnings.extend(config.default_optimizer());
        Ok(config)
    }

    /// The Trainer's batch, where the file leaves all of it to its arguments: 8 sequences a rank.
    fn trainers_batch(&mut self) -> Option<(String, String)> {
        const MICRO: &str = "train_micro_batch_size_per_gpu";
        let auto = self.is_auto(MICRO) || self.is_auto("train_batch_size");
        let s = &mut self.settings;
        let open = s.train_batch_size.is_none() && s.train_micro_batch_size_per_gpu.is_none();
        let sized = matches!(s.data, Some(Data::Tokens(_)));
        (auto && open && !sized).then(|| {
            s.train_micro_batch_size_per_gpu = Some(8);
            (MICRO.to_string(), "8".to_string())
        })
    }

    /// One warning about every `"auto"` that only the Trainer's arguments could fill in.
    fn filled_in(&self, taken: &[(String, String)]) -> Option<Problem> {
        let list: Vec<_> = taken
            .iter()
            .map(|(path, text)| format!("{path} = {text}"))
            .collect();
        (!list.is_empty()).then(|| Problem {
            file: self.file.clone(),
            at: At::Whole,
            path: String::new(),
            what: format!(
                "\"auto\" is filled in by the Hugging Face Trainer from its arguments, which are not here; taken instead: {}",
                list.join(", ")
            ),
            fix: "give the values that are meant".into(),
        })
    }

    /// DeepSpeed leaves a missing optimizer to the caller; here one is taken, and said.
    fn default_optimizer(&self) -> Option<Problem> {
        let Json::Object(members) = &self.root.value else {
            return None;
        };
        let has = |key: &str| members.iter().any(|m| m.key == key);
        let deepspeed = ["zero_optimization", "bf16", "fp16", "scheduler"]
            .into_iter()
            .any(has);
        // One of which only `--set` says something is the default still.
        let named = |m: &Member| m.key == "optimizer" && !matches!(m.at, At::Set(_));
        let o = &self.settings.optimizer;
        let trainers = |r: &Row| r.path == "optimizer.type" && r.origin == "auto";
        let deepspeed = deepspeed || self.rows.iter().any(trainers);
        let taken = !members.iter().any(named)
            && !matches!(
                self.place("optimizer.type"),
                Some(At::File { .. } | At::Set(_))
            );
        (deepspeed && taken).then(|| Problem {
            file: self.file.clone(),
            at: At::Whole,
            path: "optimizer".into(),
            what: format!(
                "not given: {} with lr {} and weight_decay {} is taken",
                o.kind,
                o.params.lr.unwrap_or(0.0),
                o.params.weight_decay.unwrap_or(0.0),
            ),
            fix: "add \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": …}}".into(),
        })
    }

    /// The name of the file, as given.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Keys that were given but have no effect here, and why.
    pub fn warnings(&self) -> &[Problem] {
        &self.warnings
    }

    /// Every known key with its value, origin and doc, in the order of the tables.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Returns the place of a given key's value; `None` when it is not given.
    pub fn place(&self, path: &str) -> Option<At> {
        self.places.get(path).cloned()
    }

    /// A problem of a key, placed where it stands, or where the nearest section around it does.
    pub fn problem(&self, path: &str, what: String, fix: String) -> Problem {
        let mut key = path;
        let at = loop {
            if let Some(at) = self.place(key) {
                break at;
            }
            key = match key.rsplit_once(['.', '[']) {
                Some((parent, _)) => parent,
                None => break At::Whole,
            };
        };
        Problem {
            file: self.file.clone(),
            at,
            path: path.to_string(),
            what,
            fix,
        }
    }

    /// Returns true if `path` is given as `"auto"`.
    pub(crate) fn is_auto(&self, path: &str) -> bool {
        let mut node = &self.root;
        for key in path.split('.') {
            let Json::Object(members) = &node.value else {
                return false;
            };
            match members.iter().find(|m| m.key == key) {
                Some(m) => node = &m.node,
                None => return false,
            }
        }
        matches!(&node.value, Json::Text(t) if t == "auto")
    }

    /// The number of ranks to start: the command's `--ranks`, else `mesh`, else 1.
    pub fn ranks(&self, flag: Option<u64>) -> u64 {
        flag.unwrap_or(self.settings.mesh.product()).max(1)
    }

    /// Solves what is open for `ranks` ranks and refuses what this build cannot do.
    ///
    /// # Errors
    /// All contradictions found, each with its place.
    pub fn resolve(&self, ranks: u64) -> Result<Resolved, Errors> {
        self.resolve_given(ranks, Given::default())
    }

    /// As [`Config::resolve`], for given batches (`data.tokens`), whose file knows the batch size
    /// and the number of steps.
    ///
    /// # Errors
    /// As [`Config::resolve`].
    pub fn resolve_given(&self, ranks: u64, given: Given) -> Result<Resolved, Errors> {
        match (
            faults::check(self, ranks.max(1)),
            resolve::resolve(self, ranks, given),
        ) {
            (Ok(()), resolved) => resolved,
            (Err(e), Ok(_)) => Err(e),
            (Err(faults), Err(mut e)) => {
                e.0.extend(faults.0);
                Err(e)
            }
        }
    }

    /// `config explain`: a table of every key, its value, where it came from and what it means, in lines of `width` characters.
    pub fn explain(&self, width: usize) -> String {
        render::explain(self, width)
    }

    /// `config check`: what the file amounts to on `ranks` ranks, and its warnings.
    ///
    /// # Errors
    /// As [`Config::resolve`].
    pub fn check(&self, ranks: u64) -> Result<String, Errors> {
        Ok(self.summary(&self.resolve(ranks)?))
    }

    /// Describes the run that the file is resolved to, and its warnings, a line each.
    pub fn summary(&self, run: &Resolved) -> String {
        render::summary(self, run)
    }
}

/// One key, by its path, the end of it, DeepSpeed's spelling or another program's word: meaning, type, default, spellings, an example, what
/// it conflicts with, and with a config its value there; in lines of `width` characters.
///
/// # Errors
/// No key: what is wrong, and the nearest.
pub fn explain_key(
    query: &str,
    config: Option<&Config>,
    width: usize,
) -> Result<String, (String, String)> {
    lookup::explain(query, config, width)
}

/// Splits `key.path=value` of `--set`.
///
/// # Errors
/// A text without `=`, or without a key.
pub fn split_set(text: &str) -> Result<(String, String), Errors> {
    match text.split_once('=') {
        Some((path, value)) if !path.trim().is_empty() => {
            Ok((path.trim().to_string(), value.to_string()))
        }
        _ => Err(Errors(vec![Problem {
            file: String::new(),
            at: At::Set(text.to_string()),
            path: String::new(),
            what: "wanted key.path=value".into(),
            fix: "write e.g. --set run.steps=10".into(),
        }])),
    }
}

/// Puts `value` at the dotted `path`, making sections on the way.
fn lay(root: &mut Node, file: &str, path: &str, value: &str) -> Result<(), Errors> {
    let at = At::Set(format!("{path}={value}"));
    let value = match json::parse(value) {
        Ok(node) => placed(node.value, &at),
        Err(_) => Json::Text(value.to_string()),
    };
    let mut node = root;
    let mut walked = String::new();
    let mut keys = path.split('.').peekable();
    while let Some(key) = keys.next() {
        if keys.peek().is_some() && node.value == Json::Null {
            node.value = Json::Object(Vec::new());
        }
        let described = node.value.describe();
        let Json::Object(members) = &mut node.value else {
            return Err(Errors(vec![Problem {
                file: file.to_string(),
                at,
                path: walked,
                what: format!("has no key {key:?}: it is {described}"),
                fix: "set the whole value instead, as JSON".into(),
            }]));
        };
        if !walked.is_empty() {
            walked.push('.');
        }
        walked.push_str(key);
        let i = match members.iter().position(|m| m.key == key) {
            Some(i) => i,
            None => {
                members.push(Member {
                    key: key.to_string(),
                    at: at.clone(),
                    node: Node {
                        value: Json::Object(Vec::new()),
                        at: at.clone(),
                    },
                });
                members.len() - 1
            }
        };
        node = &mut members[i].node;
    }
    *node = Node { value, at };
    Ok(())
}

/// The value with every place inside it set to `at`.
fn placed(mut value: Json, at: &At) -> Json {
    match &mut value {
        Json::List(items) => {
            for item in items {
                item.value = placed(std::mem::replace(&mut item.value, Json::Null), at);
                item.at = at.clone();
            }
        }
        Json::Object(members) => {
            for member in members {
                let inner = std::mem::replace(&mut member.node.value, Json::Null);
                member.node.value = placed(inner, at);
                member.at = at.clone();
                member.node.at = at.clone();
            }
        }
        _ => {}
    }
    value
}
