//! A process whose memory or threads are limited from outside: what it needs of them grows with its data no more than it must, and what it is refused is one
//! error that names it.
#![cfg(target_os = "linux")]

use crate::common::Scratch;
use crossweave_tests::system::within;
use std::process::{Command, Output};
use std::time::Duration;

/// A command that has not ended by then never will, on any machine.
const HUNG: Duration = Duration::from_secs(600);

/// Runs the program under `ulimit`'s `limit`, in units of 1024 bytes. Each thread has a stack of `stack` bytes, which count as memory.
fn limited(s: &Scratch, limit: &str, kib: u64, stack: u64, args: &[&str]) -> Output {
    let mut c = Command::new("sh");
    let script = format!("ulimit {limit} {kib} && exec \"$0\" \"$@\"");
    c.args(["-c", &script, env!("CARGO_BIN_EXE_crossweave")]);
    c.args(args)
        .current_dir(s.dir.path())
        .env("CROSSWEAVE_CACHE", s.path("cache"))
        .env("RUST_MIN_STACK", stack.to_string())
        .env("RUST_BACKTRACE", "0");
    within(HUNG, &mut c)
}

/// Memory beyond what a short text takes, which is found out first: buffers and threads are this machine's.
#[test]
fn a_long_text_takes_no_more_memory_than_twice_its_bytes() {
    let s = Scratch::new();
    let line = "the square of number 12 is 144, and the half of it is 72\n";
    let train = |bytes: usize, kib: u64| {
        let _ = std::fs::remove_dir_all(s.path("run"));
        s.write("corpus/a.txt", line.repeat(bytes / line.len()));
        let args = ["train", "config.json", "--steps", "1", "--out", "run"];
        limited(&s, "-d", kib, 256 << 10, &args)
    };
    let short = |kib: &u64| train(1 << 20, *kib).status.success();
    let kib = (12..).map(|n| n << 10).find(short).expect("a limit");
    let o = train(24 << 20, kib + (48 << 10));
    let said = String::from_utf8_lossy(&o.stderr);
    assert!(
        o.status.success(),
        "ulimit -d {kib} is enough for a short text: {said}"
    );
}

/// On a CPU the device's memory is the process's, so that only files help: with states and sums there, a model of four times the parameters
/// trains, on four micro-batches a step, within what the smaller one takes without.
#[test]
#[ignore = "4 GB of disk, most of a minute: `cargo test --release -p crossweave-cli --test suite four_times -- --ignored`"]
fn four_times_the_parameters_train_with_their_states_in_files() {
    let s = Scratch::new();
    let text = r#"{
        "model": {"family": "gpt2", "n_layer": 8, "n_embd": 512, "n_head": 8, "n_positions": 64},
        "data": {"train": ["corpus/*.txt"], "tokenizer": "bytes", "seq_len": 16},
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, "bf16": {"enabled": true},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "checkpoint": {"async": false},
        "run": {"steps": 2, "threads_per_rank": 1, "generate": {"tokens": 0}}
    }"#;
    s.write("small.json", text);
    let files = r#"zero_optimization={"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": "swap", "buffer_count": 2}}"#;
    let train = |sets: &[&str], kib: u64| {
        let _ = std::fs::remove_dir_all(s.path("run"));
        let mut args = vec!["train", "small.json", "--out", "run"];
        args.extend(sets.iter().flat_map(|set| ["--set", *set]));
        limited(&s, "-d", kib, 256 << 10, &args)
    };
    let fits = |kib: &u64| train(&[], *kib).status.success();
    let kib = (10..).map(|n| n * 40_000).find(fits).expect("a limit");
    let deep = "model.n_layer=34";
    assert!(!train(&[deep], kib).status.success(), "{kib} is no limit");
    let o = train(&[deep, files], kib);
    let said = String::from_utf8_lossy(&o.stderr);
    assert!(o.status.success(), "ulimit -d {kib}: {said}");
}

/// Stacks so large that the limit leaves room for a number of threads: wherever the next one is started, the command ends well or with one
/// error, and not as a bug.
#[test]
fn wherever_a_thread_cannot_start_one_error_says_so() {
    const STACK: u64 = 1 << 30;
    let s = Scratch::new();
    s.ok(&["train", "config.json", "--ranks", "4", "--out", "four"]);
    let train = ["train", "config.json", "--out", "run"];
    let with = |more: &[&'static str]| [&train[..], more].concat();
    let offload = r#"zero_optimization={"stage": 1, "offload_optimizer": {"device": "nvme", "nvme_path": "swap"}}"#;
    let commands = [
        (with(&["--ranks", "4"]), 20),
        (with(&["--set", offload]), 16),
        (with(&["--ranks", "2", "--set", "run.balance=speed"]), 8),
        (
            vec!["explore", "config.json", "--ranks", "2", "--seeds", "1"],
            6,
        ),
        (vec!["explain", "config.json", "--ranks", "4"], 3),
        (vec!["checkpoint", "verify", "four"], 2),
        (
            vec!["checkpoint", "reshard", "four", "two", "--ranks", "2"],
            2,
        ),
        (vec!["generate", "--model", "four", "--prompt", "the "], 2),
        (vec!["backends"], 2),
    ];
    for (args, most) in commands {
        let mut refused = 0;
        for threads in 0..most {
            for left in ["cache", "run", "two", "swap"] {
                let _ = std::fs::remove_dir_all(s.path(left));
            }
            // Beside the stacks, more than the program takes.
            let kib = (threads * STACK + (STACK - (STACK >> 4))) >> 10;
            let o = limited(&s, "-v", kib, STACK, &args);
            let said = String::from_utf8_lossy(&o.stderr);
            let errors: Vec<&str> = said.lines().filter(|l| l.starts_with("error: ")).collect();
            let whole = format!("{args:?}, {threads} threads: {}\n{said}", o.status);
            assert!(!said.contains("this is a bug"), "{whole}");
            assert!(!said.contains("panicked"), "{whole}");
            match o.status.success() {
                true => assert!(errors.is_empty(), "{whole}"),
                false => {
                    assert_eq!((o.status.code(), errors.len()), (Some(1), 1), "{whole}");
                    assert!(errors[0].contains("; fix: "), "{whole}");
                    refused += 1;
                }
            }
        }
        // Where nothing is refused the limit is none.
        assert!(refused > 0 || most < 4, "{args:?}");
    }
}
