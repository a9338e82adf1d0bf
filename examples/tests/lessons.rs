//! Every lesson runs, and its loss falls.

use std::process::Command;

fn losses(program: &str) -> Vec<f64> {
    let out = Command::new(program).output().expect("the lesson starts");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{text}{errors}");
    text.lines()
        .filter_map(|l| l.split_once("loss ")?.1.trim().parse().ok())
        .collect()
}

#[test]
fn a_block_and_a_function_of_ones_own_learn() {
    let l = losses(env!("CARGO_BIN_EXE_01-own-block"));
    assert!(l.len() >= 5, "{l:?}");
    assert!(l[l.len() - 1] < 0.2 * l[0], "{l:?}");
}

/// The bits of what each step of `02-train` printed, by whatever ranks.
fn steps(mut command: Command) -> Vec<String> {
    let out = command.output().expect("the lesson starts");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}: {text}{errors}");
    let all = text.lines().filter(|l| l.starts_with("step "));
    let mut all: Vec<String> = all.map(String::from).collect();
    all.sort();
    all.dedup();
    all
}

#[test]
fn a_program_trains_from_json_on_threads_and_under_mpirun_to_the_same_bits() {
    crossweave_tests::built::plugins();
    let dir = tempfile::tempdir().expect("a folder");
    let text: String = (0..300)
        .map(|i| format!("{i} squared is {}\n", i * i))
        .collect();
    std::fs::write(dir.path().join("a.txt"), text).expect("a file");
    let program = |out: &str| {
        let config = serde_json::json!({
            "model": {"family": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 8, "vocab_size": 257},
            "data": {"train": dir.path().join("*.txt"), "seq_len": 8},
            "train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
            "run": {"steps": 5, "threads_per_rank": 1, "out": dir.path().join(out)}
        });
        (env!("CARGO_BIN_EXE_02-train"), config.to_string())
    };
    let (lesson, config) = program("threads");
    let mut threads = Command::new(lesson);
    threads.arg(config);
    let threads = steps(threads);
    assert_eq!(threads.len(), 5, "{threads:?}");
    for family in crossweave_tests::tools::mpi_families() {
        let mut c = Command::new(format!("mpirun.{family}"));
        if family == "openmpi" {
            c.args(["--allow-run-as-root", "--oversubscribe"])
                .env("OMPI_MCA_btl", "self,vader");
        }
        let (lesson, config) = program(family);
        c.args(["-n", "2", lesson]).arg(config);
        assert_eq!(steps(c), threads, "{family}");
    }
}
