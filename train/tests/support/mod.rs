//! Jobs in a scratch folder, trained in this process: each is described in a line and gives values, a refusal as well as a run.

mod corpus;
mod folder;
pub mod oracles;
pub mod verbs;

pub use corpus::{CONFIG, Scratch};
use crossweave::backend::BackendChoice;
use crossweave::events::Event;
use crossweave::{Events, Summary, Team, TrainError, Trainer};
pub use folder::{copy_dir, figures, ledger, losses, model_bytes, open_json, records, same};
use serde_json::Value;
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// Keys whose values are paths. In a config they begin in the scratch folder, since the tests of this process share its current folder.
const PATHS: [&str; 13] = [
    "train",
    "validation",
    "files",
    "indexed",
    "cache_dir",
    "nvme_path",
    "hf",
    "file",
    "teacher",
    "tokens",
    "chat_template",
    "sign_key",
    "trust_key",
];

impl Scratch {
    /// A job of a config that lies in this folder.
    pub fn job(&self, config: &str) -> Job<'_> {
        self.job_of(open_json(&self.path(config)))
    }

    /// A job of a config.
    pub fn job_of(&self, mut config: Value) -> Job<'_> {
        self.place("", &mut config);
        Job {
            scratch: self,
            config,
            sets: vec![],
            ranks: None,
            backend: BackendChoice::default(),
            resume: None,
            trace: None,
        }
    }

    /// Lets the paths in the value of a key begin in this folder.
    fn place(&self, key: &str, value: &mut Value) {
        match value {
            Value::String(text) if PATHS.contains(&key) => {
                *text = self.path(text).display().to_string();
            }
            Value::Array(all) => all.iter_mut().for_each(|v| self.place(key, v)),
            Value::Object(all) => all.iter_mut().for_each(|(k, v)| self.place(k, v)),
            _ => {}
        }
    }
}

/// A job of a scratch folder: a config, what is laid over it, and where it runs.
#[derive(Clone)]
pub struct Job<'a> {
    pub scratch: &'a Scratch,
    pub config: Value,
    pub sets: Vec<(String, Value)>,
    pub ranks: Option<String>,
    pub backend: BackendChoice,
    resume: Option<PathBuf>,
    trace: Option<PathBuf>,
}

/// What a run has come to.
#[derive(Debug)]
pub struct Ran {
    /// Rank 0's account of the steps.
    pub summary: Summary,
    /// Notes, warnings and times, a line each.
    pub said: String,
}

impl<'a> Job<'a> {
    /// On so many ranks, or on those of a list such as `cpu:2,./libother.so:1`.
    pub fn ranks(mut self, ranks: impl Display) -> Self {
        self.ranks = Some(ranks.to_string());
        self
    }

    /// With a key of the config as `key.path=value`; what is no JSON is a text.
    pub fn set(mut self, pair: &str) -> Self {
        let (key, text) = pair.split_once('=').expect("key=value");
        let mut value = serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
        let last = key.rsplit('.').next().unwrap_or_default();
        self.scratch.place(last, &mut value);
        self.sets.push((key.into(), value));
        self
    }

    /// With several keys.
    pub fn sets<S: AsRef<str>>(self, pairs: &[S]) -> Self {
        pairs.iter().fold(self, |job, pair| job.set(pair.as_ref()))
    }

    /// For so many steps, in place of what the config says of its length.
    pub fn steps(self, steps: impl Display) -> Self {
        let job = match self.config["run"]["epochs"].is_null() {
            true => self,
            false => self.set("run.epochs=null"),
        };
        job.set(&format!("run.steps={steps}"))
    }

    /// Continues a run of this folder.
    pub fn resume(mut self, run: &str) -> Self {
        self.resume = Some(self.scratch.path(run));
        self
    }

    /// Within a layer, `NAME[=SPEC]`.
    pub fn layer(mut self, layer: &str) -> Self {
        self.backend.layers.push(layer.into());
        self
    }

    /// On the back end of a plugin file.
    pub fn plugin(mut self, file: impl Into<PathBuf>) -> Self {
        self.backend.plugin = Some(file.into());
        self
    }

    /// With a timeline of all ranks.
    pub fn trace(mut self, file: &str) -> Self {
        self.trace = Some(self.scratch.path(file));
        self
    }

    /// A trainer of the job, which reports to `events`. Without `out` it writes to the folder of the run that it continues.
    pub fn trainer(&self, out: Option<&str>, events: impl Events + 'static) -> Trainer {
        let mut t = Trainer::from_config(self.config.clone())
            .backend(self.backend.clone())
            .events(events);
        for (key, value) in &self.sets {
            t = t.set(key, value.clone());
        }
        if let Some(ranks) = &self.ranks {
            t = t.ranks(match ranks.parse() {
                Ok(n) => Team::Threads(n),
                Err(_) => Team::Parts(ranks.clone()),
            });
        }
        if let Some(run) = &self.resume {
            t = t.resume(run);
        }
        if let Some(file) = &self.trace {
            t = t.trace(file);
        }
        match out {
            Some(out) => t.out(self.scratch.path(out)),
            None => t,
        }
    }

    /// Looks at the job as it is before a run.
    ///
    /// # Errors
    /// As of the library.
    pub fn check(&self) -> Result<(), TrainError> {
        self.trainer(None, Heard::default()).check().map(drop)
    }

    /// Trains to the end: what the run has come to, or why there is none, and what was said.
    fn ended(&self, out: Option<&str>) -> (Result<Summary, TrainError>, String) {
        let heard = Heard::default();
        let end = self.trainer(out, heard.clone()).run();
        let said = heard.0.lock().unwrap().join("\n");
        (end.map(|s| s.expect("rank 0 is here")), said)
    }

    fn ran(&self, out: Option<&str>) -> Ran {
        match self.ended(out) {
            (Ok(summary), said) => Ran { summary, said },
            (Err(e), said) => panic!("{:?} {:?}: {e}\n{said}", self.ranks, self.sets),
        }
    }

    /// Trains to the end, into a folder.
    pub fn run(&self, out: &str) -> Ran {
        self.ran(Some(out))
    }

    /// Trains to the end, into a folder, or fails.
    ///
    /// # Errors
    /// As of the library.
    pub fn tried(&self, out: &str) -> Result<Summary, TrainError> {
        self.ended(Some(out)).0
    }

    /// Trains to the end, in the folder of the run that it continues.
    pub fn goes_on(&self) -> Ran {
        self.ran(None)
    }

    /// Trains where that must fail: why, behind what was said.
    pub fn fails(&self, out: &str) -> (TrainError, String) {
        match self.ended(Some(out)) {
            (Err(e), said) => (e, said),
            (Ok(_), said) => panic!("{:?} {:?}: trains\n{said}", self.ranks, self.sets),
        }
    }

    /// Is refused with all of `parts` before anything is written; the words.
    #[track_caller]
    pub fn refused(&self, parts: &[&str]) -> String {
        let (e, _) = self.fails("refused");
        let words = names(&e, parts);
        let left = self.scratch.path("refused").exists();
        assert!(!left, "{:?}: a folder was left: {words}", self.sets);
        words
    }
}

/// Asserts that an error names all of `parts`; its words.
#[track_caller]
pub fn names(e: &TrainError, parts: &[&str]) -> String {
    let words = e.to_string();
    for p in parts {
        assert!(words.contains(p), "{p:?} not in: {words}");
    }
    words
}

/// Keeps what is said.
#[derive(Clone, Debug, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl Events for Heard {
    fn on(&self, event: Event<'_>) {
        let line = match event {
            Event::Note(text) => format!("note: {text}"),
            Event::Warning(text) | Event::StepWarning(text) => format!("warning: {text}"),
            Event::Remark(remark) => remark.to_string(),
            Event::Breakdown(text) => text.to_string(),
            _ => return,
        };
        self.0.lock().unwrap().push(line);
    }
}

/// The CPU back end as a plugin file.
pub fn cpu_plugin() -> PathBuf {
    crossweave_tests::built::plugin("crossweave_cpu")
}
