//! `run.canonical_shards`: one run on any number of ranks, whatever the threads of a rank, which are a setting of a process. What else it
//! promises: `train/tests/canonical.rs`.

use crate::common;
use common::{Scratch, figures, same};

const SHARDS: &str = "run.canonical_shards=8";

/// `train config.json` with canonical sums.
fn train(s: &Scratch, ranks: &str, more: &[&str]) {
    let base = ["train", "config.json", "--ranks", ranks, "--set", SHARDS];
    s.ok(&[&base[..], more].concat());
}

#[test]
fn metrics_and_model_are_those_of_one_rank() {
    let s = Scratch::new();
    train(&s, "1", &["--out", "one"]);
    for (ranks, stage) in [
        ("2", "3"),
        ("3", "0"),
        ("4", "2"),
        ("5", "3"),
        ("8", "0"),
        ("8", "1"),
    ] {
        let out = format!("r{ranks}-{stage}");
        // Threads of a rank do not show either.
        let threads = if ranks == "2" { "3" } else { "2" };
        let threads = format!("run.threads_per_rank={threads}");
        let stage = format!("zero_optimization.stage={stage}");
        let sets = ["--set", &stage, "--set", &threads, "--out", &out];
        train(&s, ranks, &sets);
        same(&s.path("one"), &s.path(&out));
    }
    // The same batch without it is another sum on every number of ranks.
    for ranks in ["1", "2"] {
        s.ok(&[
            "train",
            "config.json",
            "--ranks",
            ranks,
            "--out",
            &format!("plain-{ranks}"),
        ]);
    }
    assert_ne!(figures(&s.path("plain-1")), figures(&s.path("plain-2")));
}
