//! Running the built `crossweave` binary in a folder of its own, and reading what it leaves.
#![allow(dead_code)]

pub mod mpi;

use crossweave_tests::system::within;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

/// A command that has not ended by then never will, on any machine.
const HUNG: Duration = Duration::from_secs(900);

/// A scratch folder with a small corpus and a config, removed at the end.
pub struct Scratch {
    pub dir: tempfile::TempDir,
}

/// A model small enough that a run takes a fraction of a second, with all that a run can have: validation, clipping, dropout,
/// accumulation, a schedule, checkpoints.
pub const CONFIG: &str = r#"{
 "model": {"family": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 16, "resid_pdrop": 0.1, "embd_pdrop": 0.1},
 "data": {"train": "corpus/*.txt", "validation_fraction": 0.2, "cache_dir": "cache"},
 "run": {"steps": 8, "checkpoint_every": 3, "validate_every": 4, "validate_batches": 2, "threads_per_rank": 1,
         "generate": {"prompt": "the ", "tokens": 8}},
 "train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0,
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
 "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_max_lr": 1e-2}}
}"#;

impl Scratch {
    pub fn new() -> Scratch {
        let dir = tempfile::tempdir().expect("a folder");
        let s = Scratch { dir };
        std::fs::create_dir(s.path("corpus")).expect("a folder");
        let text: String = (0..400)
            .map(|i| {
                format!(
                    "the {} of number {} is {}\n",
                    ["square", "half", "name"][i % 3],
                    i,
                    i * i
                )
            })
            .collect();
        std::fs::write(s.path("corpus/a.txt"), text).expect("a file");
        s.write("config.json", CONFIG);
        s
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), text).expect("a file");
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut c = Command::new(env!("CARGO_BIN_EXE_crossweave"));
        c.current_dir(self.dir.path())
            .args(args)
            .env_remove("CROSSWEAVE_PLUGIN_PATH")
            .env("CROSSWEAVE_CACHE", self.path("cache"));
        c
    }

    pub fn run(&self, args: &[&str]) -> Output {
        within(HUNG, &mut self.command(args))
    }

    /// Runs a command that must succeed; returns its standard output.
    pub fn ok(&self, args: &[&str]) -> String {
        let out = self.run(args);
        let err = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{args:?}: {}\n{err}", out.status);
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// Runs a command that must fail with exit code 1 and one clear error that holds all of `parts`, leaving `absent` absent.
    pub fn refused(&self, args: &[&str], parts: &[&str], absent: &[&str]) -> String {
        let out = self.run(args);
        let err = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(1), "{args:?}: {err}");
        assert_eq!(err.matches("error: ").count(), 1, "{args:?}: {err}");
        assert!(!err.contains("panicked"), "{err}");
        for p in parts {
            assert!(err.contains(p), "{args:?}: {p:?} not in: {err}");
        }
        for name in absent {
            assert!(
                !self.path(name).exists(),
                "{args:?}: {name} was left: {err}"
            );
        }
        err
    }
}

pub fn records(run: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).expect("metrics");
    text.lines()
        .map(|l| serde_json::from_str(l).expect("an object"))
        .collect()
}

/// Step, loss, learning rate, gradient norm, validation loss.
pub type Figures = (u64, Option<f64>, Option<f64>, Option<f64>, Option<f64>);

/// Everything in the metrics that is no clock, by record.
pub fn figures(run: &Path) -> Vec<Figures> {
    records(run)
        .iter()
        .map(|r| {
            let f = |k: &str| r[k].as_f64();
            let step = r["step"].as_u64().expect("a step");
            (step, f("loss"), f("lr"), f("grad_norm"), f("val_loss"))
        })
        .collect()
}

pub fn losses(run: &Path) -> Vec<f64> {
    records(run)
        .iter()
        .filter_map(|r| r["loss"].as_f64())
        .collect()
}

pub fn model_bytes(run: &Path) -> Vec<u8> {
    std::fs::read(run.join("model/model.safetensors")).expect("a model")
}

/// Two runs that must be the same in every bit: metrics but for clocks, and the model.
pub fn same(a: &Path, b: &Path) {
    assert_eq!(figures(a), figures(b));
    assert!(model_bytes(a) == model_bytes(b), "the models differ");
}

/// The CPU back end as a plugin file.
pub fn cpu_plugin() -> PathBuf {
    crossweave_tests::built::plugin("crossweave_cpu")
}

/// Copies a folder with all that is in it.
pub fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for e in std::fs::read_dir(from).unwrap().flatten() {
        let to = to.join(e.file_name());
        match e.file_type().unwrap().is_dir() {
            true => copy_dir(&e.path(), &to),
            false => drop(std::fs::copy(e.path(), to).unwrap()),
        }
    }
}
