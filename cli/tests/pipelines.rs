//! `mesh.pp` over processes: they have the bits of threads. What else runs over stages promise: `train/tests/pipelines.rs`.

use crate::common;
use common::mpi::{families, mpirun, ok, plugin};
use common::{CONFIG, Scratch, same};
use serde_json::Value;

/// Nothing is tied, nothing is dropped; otherwise all that a run can have.
const LLAMA: &str = r#"{"family": "llama", "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "max_position_embeddings": 16}"#;

fn scratch() -> Scratch {
    let s = Scratch::new();
    let mut config: Value = serde_json::from_str(CONFIG).expect("json");
    config["model"] = serde_json::from_str(LLAMA).expect("json");
    s.write("llama.json", config.to_string());
    s
}

fn args<'a>(config: &'a str, ranks: &'a str, sets: &[&'a str], rest: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec!["train", config];
    if !ranks.is_empty() {
        all.extend(["--ranks", ranks]);
    }
    all.extend(sets.iter().flat_map(|set| ["--set", *set]));
    all.extend(rest);
    all
}

#[test]
fn processes_train_stages_to_the_bits_of_threads() {
    plugin();
    let s = scratch();
    for (n, sets) in [
        (4, ["mesh.pp=2", "zero_optimization.stage=3"]),
        (4, ["mesh.pp=4", "mesh.pp_schedule=\"gpipe\""]),
        (4, ["mesh.pp=2", "mesh.pp_schedule=\"interleaved\""]),
        (4, ["mesh.pp=2", "mesh.pp_schedule=\"zbv\""]),
    ] {
        let name = sets.join("-").replace(['.', '=', '"'], "-");
        let threads = format!("threads-{n}-{name}");
        s.ok(&args(
            "llama.json",
            &n.to_string(),
            &sets,
            &["--out", &threads],
        ));
        for family in families() {
            let out = format!("{family}-{n}-{name}");
            ok(mpirun(
                &s,
                family,
                n,
                &args("llama.json", "", &sets, &["--out", &out]),
            ));
            same(&s.path(&threads), &s.path(&out));
        }
    }
}
