//! Signals, and what stops a job from outside: nothing is lost, and nobody is blamed for a time in which nothing ran.
#![cfg(unix)]

use crate::common::mpi::{families, mpirun, plugin, text, torch_style, wait_for};
use crate::common::{Scratch, records};
use crossweave_tests::system::{Signal, send, within};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Stops all of `jobs` in the middle of a wait for rank 1, for longer than any deadline, and continues them. They must end well.
fn stopped(s: &Scratch, out: &str, jobs: Vec<Child>) {
    let metrics = s.path(out).join("metrics.jsonl");
    wait_for("the first step", || {
        metrics.is_file() && !records(&s.path(out)).is_empty()
    });
    // Rank 0 waits now, for 6 s at most; rank 1 comes 8 s after it should, of which the job runs 1.5 s.
    std::thread::sleep(Duration::from_millis(400));
    jobs.iter().for_each(|j| send(Signal::SIGSTOP, j.id()));
    std::thread::sleep(Duration::from_millis(6500));
    jobs.iter().for_each(|j| send(Signal::SIGCONT, j.id()));
    for j in jobs {
        let o = j.wait_with_output().expect("it ends");
        assert!(o.status.success(), "{out}: {}", text(&o));
    }
    assert_eq!(records(&s.path(out)).last().unwrap()["step"], 3);
}

#[test]
fn a_job_that_is_stopped_and_continued_is_not_late() {
    plugin();
    let s = Scratch::new();
    let late = r#"faults=[{"rank": 1, "kind": "delay", "step": 2, "call": 1, "ms": 8000}]"#;
    let args = |out: &'static str| {
        let base = ["train", "config.json", "--steps", "3", "--out", out];
        let sets = [
            "--set",
            late,
            "--set",
            "run.comm_timeout_s=6",
            "--set",
            "run.validate_every=0",
            "--set",
            "run.generate.tokens=0",
        ];
        [&base[..], &sets].concat()
    };
    std::thread::scope(|scope| {
        let s = &s;
        scope.spawn(move || {
            let mut c = s.command(&[&args("threads")[..], &["--ranks", "2"]].concat());
            c.stdout(Stdio::piped()).stderr(Stdio::piped());
            stopped(s, "threads", vec![c.spawn().expect("the binary runs")]);
        });
        // These two have a folder of their own, so that neither tokenises for the other.
        if families().contains(&"mpich") {
            scope.spawn(move || {
                let other = Scratch::new();
                let jobs = torch_style(&other, 2, &args("processes"));
                stopped(&other, "processes", jobs);
            });
        }
    });
}

#[test]
fn an_interrupted_launcher_whose_output_nobody_reads_leaves_a_checkpoint() {
    plugin();
    if !families().contains(&"openmpi") {
        return;
    }
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let s = Scratch::new();
        let args = [
            "train",
            "config.json",
            "--steps",
            "1000000",
            "--out",
            "run",
            "--set",
            "train_batch_size=2",
            "--set",
            "run.checkpoint_every=0",
            "--set",
            "run.validate_every=0",
            "--set",
            "run.log_every=1",
        ];
        // Its output is a pipe that is open and never read.
        let mut c = mpirun(&s, "openmpi", 2, &args);
        c.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut job = c.spawn().expect("mpirun starts");
        // More lines than a pipe holds, of every hand they go through.
        let metrics = s.path("run/metrics.jsonl");
        let long = || std::fs::metadata(&metrics).map_or(0, |m| m.len());
        wait_for("the first steps", || long() > 300);
        let (mut seen, began) = (0, Instant::now());
        wait_for("3000 steps, or steps that no longer come", || {
            let now = long();
            let stands = now == seen;
            seen = now;
            std::thread::sleep(Duration::from_millis(300));
            now > 600_000 || stands || began.elapsed() > Duration::from_secs(8)
        });
        send(signal, job.id());
        // Not read even now: who waits for the end must not be what lets it go on. The launcher itself may wait for its reader for ever.
        wait_for("a checkpoint", || {
            let steps = std::fs::read_dir(s.path("run/checkpoints"));
            let named = |e: std::fs::DirEntry| e.file_name().to_string_lossy().starts_with("step-");
            steps.is_ok_and(|d| d.flatten().any(named)) || job.try_wait().unwrap().is_some()
        });
        let _ = job.kill();
        let _ = job.wait();
        let said = s.ok(&["checkpoint", "verify", "run"]);
        assert!(said.contains("ok  "), "{signal}: no checkpoint: {said}");
    }
}

#[test]
fn a_process_that_ends_before_it_joins_is_named() {
    plugin();
    for family in families() {
        let s = Scratch::new();
        let mut c = mpirun(&s, family, 1, &["train", "config.json", "--out", "run"]);
        // The second process joins nothing. Nobody else would wait for it less than half an hour.
        let other = env!("CARGO_BIN_EXE_crossweave");
        c.args([":", "-n", "1", other, "--version"]);
        let o = within(Duration::from_secs(300), &mut c);
        let said = text(&o);
        assert!(!o.status.success(), "{family}: {said}");
        assert!(
            said.contains("process 1 has ended before joining") && said.contains("fix:"),
            "{family}: {said}"
        );
        assert!(!s.path("run").exists());
    }
}

#[cfg(target_os = "linux")]
#[test]
fn memory_that_is_refused_is_named_with_its_limit_and_the_keys() {
    let s = Scratch::new();
    // A row is read whole, whatever its text becomes.
    let run = |text_bytes: usize, kib: u64| {
        let row = format!("{{\"text\": \"{}\"}}\n", "a".repeat(text_bytes));
        s.write("corpus/a.jsonl", row);
        let mut c = Command::new("sh");
        let limited = format!("ulimit -v {kib} && exec \"$0\" \"$@\"");
        c.args([
            "-c",
            &limited,
            env!("CARGO_BIN_EXE_crossweave"),
            "train",
            "config.json",
        ]);
        let c = c
            .args(["--steps", "1", "--out", "run"])
            .args(["--set", "data.train=corpus/a.jsonl"])
            .current_dir(s.dir.path());
        let o = c
            .env("CROSSWEAVE_CACHE", s.path("cache"))
            .env("RUST_BACKTRACE", "0")
            .output();
        let o = o.expect("sh starts");
        (o.status, text(&o))
    };
    let (status, said) = run(96 << 20, 420_000);
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(status.signal(), Some(6), "{said}");
    let errors: Vec<&str> = said.lines().filter(|l| l.starts_with("error: ")).collect();
    let [error] = errors[..] else {
        panic!("{said}");
    };
    for part in [
        "no memory left: it asked for ",
        "bytes (ulimit -v 420000)",
        "fix:",
        "train_micro_batch_size_per_gpu",
    ] {
        assert!(error.contains(part), "{part:?} not in {error}");
    }
}
