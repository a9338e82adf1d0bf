//! Every lesson runs, and its loss falls.

mod parallel_mistake;

use std::process::Command;

fn printed(program: &str) -> String {
    let out = Command::new(program).output().expect("the lesson starts");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{text}{errors}");
    text
}

fn losses(program: &str) -> Vec<f64> {
    let text = printed(program);
    let after = |l: &str| l.split_once("loss ")?.1.split(' ').next()?.parse().ok();
    text.lines().filter_map(after).collect()
}

#[test]
fn a_block_and_a_function_of_ones_own_learn() {
    let l = losses(env!("CARGO_BIN_EXE_01-own-block"));
    assert!(l.len() >= 5, "{l:?}");
    assert!(l[l.len() - 1] < 0.2 * l[0], "{l:?}");
}

#[test]
fn rows_of_a_program_are_learnt() {
    let text = printed(env!("CARGO_BIN_EXE_03-own-data"));
    let right = text
        .lines()
        .find_map(|l| l.strip_prefix("right: ")?.split(' ').next()?.parse().ok());
    let right: u32 = right.unwrap_or_else(|| panic!("{text}"));
    assert!(right >= 90, "{text}");
}

#[test]
fn a_loop_of_a_program_ends_by_its_own_rule_and_goes_on() {
    let program = env!("CARGO_BIN_EXE_04-own-loop");
    let text = printed(program);
    assert!(text.contains("flat after "), "{text}");
    let l = losses(program);
    assert!(l.len() >= 2 && l[l.len() - 1] < 0.5 * l[0], "{text}");
}

/// What a debugger is to stop at happens, on the rank and in the step that were asked for.
#[test]
fn the_rank_that_is_asked_for_comes_to_where_a_debugger_stops() {
    // The line that its first lines tell a debugger to stop in.
    let source = include_str!("../../src/bin/05-debugger.rs");
    let line = source.lines().nth(41).unwrap_or_default();
    assert!(source.contains("(gdb) break 05-debugger.rs:42") && line.contains("is before step"));
    let mut lesson = Command::new(env!("CARGO_BIN_EXE_05-debugger"));
    let out = lesson.args(["0", "2"]).output().expect("the lesson starts");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    let at = |begins: &str| lines.iter().position(|l| l.starts_with(begins));
    let stop = at("rank 0 is before step 2").expect("it comes there");
    assert!(at("step 1 ").is_some_and(|first| first < stop), "{text}");
    assert!(at("step 2 ").is_some_and(|second| stop < second), "{text}");
    assert_eq!(
        lines.iter().filter(|l| l.starts_with("rank ")).count(),
        1,
        "{text}"
    );
    assert!(at("step 5 ").is_some(), "{text}");
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
