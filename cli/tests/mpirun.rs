//! Training in several processes under `mpirun`, Open MPI's and MPICH's: the same run as in threads, and failures that end it with a
//! sentence. A family that is not installed is skipped with a line that says so; CI installs both.

use crate::common;
use common::mpi::{
    families, launcher, mpirun, ok, played, plugin, process_of, text, torch_style, wait_for,
};
use common::{Scratch, cpu_plugin, losses, records, same};
use crossweave_tests::system::{Signal, pipe, send};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

#[test]
fn processes_train_to_the_same_bits_as_threads() {
    plugin();
    let s = Scratch::new();
    for n in [2u32, 4, 8] {
        let threads = format!("threads-{n}");
        s.ok(&[
            "train",
            "config.json",
            "--ranks",
            &n.to_string(),
            "--out",
            &threads,
        ]);
        for family in families() {
            let out = format!("{family}-{n}");
            let said = ok(mpirun(
                &s,
                family,
                n,
                &["train", "config.json", "--out", &out],
            ));
            same(&s.path(&threads), &s.path(&out));
            // Rank 0 alone speaks.
            assert_eq!(said.matches("step      1/8").count(), 1, "{said}");
            assert_eq!(said.matches("device memory").count(), 1, "{said}");
            let ledger = std::fs::read(s.path(&out).join("ledger.json")).expect("a ledger");
            let ledger: serde_json::Value = serde_json::from_slice(&ledger).expect("json");
            let ranks = ledger["ranks"].as_array().expect("ranks");
            let each: Vec<_> = ranks.iter().filter_map(|r| r["rank"].as_u64()).collect();
            assert_eq!(each, (0..u64::from(n)).collect::<Vec<_>>());
            // What a rank asked of the mesh does not depend on who carries it.
            let threads = std::fs::read(s.path(&threads).join("ledger.json")).expect("a ledger");
            let threads: serde_json::Value = serde_json::from_slice(&threads).expect("json");
            assert_eq!(ranks[1]["collectives"], threads["ranks"][1]["collectives"]);
        }
    }
}

#[test]
fn every_zero_stage_and_bf16_train_alike() {
    plugin();
    let s = Scratch::new();
    for set in [
        &["--set", "zero_optimization.stage=1"][..],
        &["--set", "zero_optimization.stage=2"],
        &["--set", "zero_optimization.stage=3"],
        &["--set", "bf16.enabled=true"],
    ] {
        let name = set[1].replace(['.', '='], "-");
        let threads = format!("t-{name}");
        let base = ["train", "config.json", "--out"];
        s.ok(&[&base[..], &[&threads, "--ranks", "2"], set].concat());
        for family in families() {
            let out = format!("{family}-{name}");
            ok(mpirun(&s, family, 2, &[&base[..], &[&out], set].concat()));
            same(&s.path(&threads), &s.path(&out));
        }
    }
}

/// Keys that go around a ring of processes, and heads that some of them exchange.
#[test]
fn rows_cut_over_processes_train_to_the_bits_of_threads() {
    plugin();
    let s = Scratch::new();
    let base = ["train", "config.json", "--set", "data.seq_len=16", "--set"];
    for (name, sets) in [
        ("ring", &["mesh.cp=4", "--set", "mesh.cp_comm=\"p2p\""][..]),
        (
            "both",
            &[
                "mesh.cp=4",
                "--set",
                "mesh.cp_comm=\"a2a+p2p\"",
                "--set",
                "mesh.cp_inner=2",
            ],
        ),
    ] {
        s.ok(&[&base[..], sets, &["--ranks", "4", "--out", name]].concat());
        for family in families() {
            let out = format!("{family}-{name}");
            ok(mpirun(
                &s,
                family,
                4,
                &[&base[..], sets, &["--out", &out]].concat(),
            ));
            same(&s.path(name), &s.path(&out));
        }
    }
}

/// Experts over processes: rows in numbers that follow from data.
#[test]
fn experts_over_processes_train_to_the_bits_of_threads() {
    plugin();
    let s = Scratch::new();
    let sets = [
        "model.moe={\"experts\": 4}",
        "mesh.ep=2",
        "zero_optimization.stage=3",
    ];
    let sets = sets.iter().flat_map(|pair| ["--set", pair]);
    let base: Vec<&str> = ["train", "config.json"].into_iter().chain(sets).collect();
    s.ok(&[&base[..], &["--ranks", "4", "--out", "threads"]].concat());
    for family in families() {
        let args = [&base[..], &["--out", family]].concat();
        ok(mpirun(&s, family, 4, &args));
        same(&s.path("threads"), &s.path(family));
    }
}

/// Canonical sums: what one rank trains to, threads and processes of either family train to, however many they are.
#[test]
fn canonical_sums_do_not_know_how_many_processes_there_are() {
    plugin();
    let s = Scratch::new();
    let base = [
        "train",
        "config.json",
        "--set",
        "run.canonical_shards=8",
        "--out",
    ];
    s.ok(&[&base[..], &["one"]].concat());
    for (n, stage) in [(2, "3"), (3, "0"), (4, "2"), (8, "1")] {
        let stage = format!("zero_optimization.stage={stage}");
        for family in families() {
            let out = format!("{family}-{n}");
            let args = [&base[..], &[&out, "--set", &stage]].concat();
            ok(mpirun(&s, family, n, &args));
            same(&s.path("one"), &s.path(&out));
        }
    }
}

#[test]
fn a_run_goes_on_in_processes_from_its_checkpoint() {
    plugin();
    let s = Scratch::new();
    s.ok(&[
        "train",
        "config.json",
        "--ranks",
        "2",
        "--steps",
        "12",
        "--out",
        "whole",
    ]);
    for family in families() {
        ok(mpirun(
            &s,
            family,
            2,
            &["train", "config.json", "--out", family],
        ));
        ok(mpirun(
            &s,
            family,
            2,
            &["train", "config.json", "--steps", "12", "--resume", family],
        ));
        assert_eq!(
            losses(&s.path("whole")),
            losses(&s.path(family)),
            "{family}"
        );
    }
}

#[test]
fn contradictions_are_refused_once_for_all() {
    plugin();
    let s = Scratch::new();
    for family in families() {
        let refused = |args: &[&str], part: &str| {
            let o = mpirun(&s, family, 2, args).output().expect("mpirun starts");
            let said = text(&o);
            assert!(!o.status.success(), "{said}");
            assert!(said.contains(part), "{part:?} not in {said}");
            assert_eq!(said.matches("error: ").count(), 1, "{said}");
            assert!(!s.path("out").exists());
        };
        refused(
            &["train", "config.json", "--ranks", "3", "--out", "out"],
            "has started 2 processes",
        );
        refused(
            &[
                "train",
                "config.json",
                "--out",
                "out",
                "--set",
                "optimizer.params.lr=-1",
            ],
            "optimizer.params.lr",
        );
    }
    // Without a launcher that is really there.
    let alone = |vars: &[(&str, &str)], parts: &[&str]| {
        let mut c = s.command(&["train", "config.json", "--out", "out"]);
        c.envs(vars.iter().copied());
        let o = c.output().expect("the binary runs");
        let said = text(&o);
        assert_eq!(o.status.code(), Some(1), "{said}");
        for p in parts {
            assert!(said.contains(p), "{p:?} not in {said}");
        }
    };
    let torch = [
        ("RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "29500"),
        ("CROSSWEAVE_MPI_LIBRARY", "libmpi.so.40"),
    ];
    if families().contains(&"openmpi") {
        alone(
            &torch,
            &["is Open MPI, which cannot connect", "install MPICH"],
        );
    }
    alone(&torch[..3], &["MASTER_PORT", "not set"]);
    alone(
        &[
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("CROSSWEAVE_MPI_LIBRARY", "/nowhere/libmpi.so"),
        ],
        &[
            "no MPI library found",
            "/nowhere/libmpi.so",
            "apt-get install openmpi-bin",
        ],
    );
}

#[test]
fn processes_that_no_launcher_of_mpi_started_train_to_the_bits_of_threads() {
    plugin();
    if !families().contains(&"mpich") {
        return;
    }
    let s = Scratch::new();
    for (n, stage) in [(2u32, 0), (4, 3)] {
        let stage = format!("zero_optimization.stage={stage}");
        let (threads, torch) = (format!("threads-{n}"), format!("torch-{n}"));
        let args = ["train", "config.json", "--set", &stage, "--out"];
        let ranks = n.to_string();
        s.ok(&[&args[..], &[&threads, "--ranks", &ranks]].concat());
        let all = torch_style(&s, n, &[&args[..], &[&torch]].concat());
        for (rank, child) in all.into_iter().enumerate() {
            let o = child.wait_with_output().expect("it ends");
            let said = text(&o);
            assert!(o.status.success(), "rank {rank}: {said}");
            // Rank 0 alone speaks.
            let lines = usize::from(rank == 0);
            assert_eq!(said.matches("step      1/8").count(), lines, "{said}");
        }
        same(&s.path(&threads), &s.path(&torch));
    }
}

#[test]
fn a_killed_process_that_no_launcher_watches_is_named_by_the_others() {
    plugin();
    if !families().contains(&"mpich") {
        return;
    }
    let s = Scratch::new();
    let args = ["train", "config.json", "--steps", "100000", "--out", "out"];
    let args = [&args[..], &["--set", "train_batch_size=6"]].concat();
    let mut all = torch_style(&s, 3, &args);
    let metrics = s.path("out").join("metrics.jsonl");
    wait_for("the first steps", || {
        metrics.is_file() && records(&s.path("out")).len() > 4
    });
    let mut killed = all.remove(1);
    killed.kill().expect("kill");
    killed.wait().expect("it ends");
    for child in all {
        let o = child.wait_with_output().expect("it ends");
        let said = text(&o);
        assert!(!o.status.success(), "{said}");
        assert!(said.contains("rank 1 died without a word"), "{said}");
        assert!(!said.contains("panicked"), "{said}");
    }
}

#[test]
fn an_infinity_is_named_by_every_process_in_one_sentence() {
    plugin();
    let s = Scratch::new();
    for family in families() {
        let mut c = mpirun(&s, family, 2, &["train", "config.json", "--out", family]);
        for set in [
            "run.find_nan=true",
            "optimizer.params.lr=1e39",
            "scheduler.params.warmup_max_lr=1e39",
            "scheduler.params.warmup_num_steps=1",
        ] {
            c.args(["--set", set]);
        }
        let o = c.output().expect("mpirun starts");
        let said = text(&o);
        assert!(!o.status.success(), "{said}");
        assert!(said.contains("not finite: step "), "{said}");
        assert!(said.contains(", rank 0, plan step "), "{said}");
    }
}

/// A job that trains until it is ended, past its first checkpoint.
fn running(s: &Scratch, family: &str, out: &str) -> Child {
    started(s, out, long(s, family, out))
}

/// Three ranks that train for very long.
fn long(s: &Scratch, family: &str, out: &str) -> Command {
    let args = ["train", "config.json", "--steps", "100000", "--out", out];
    // MPICH's launcher may else end the survivors before they have said who died.
    let own: &[&str] = match family {
        "mpich" => &["-disable-auto-cleanup"],
        _ => &[],
    };
    let args = [&args[..], &["--set", "train_batch_size=6"]].concat();
    launcher(s, family, 3, own, &args)
}

fn started(s: &Scratch, out: &str, mut job: Command) -> Child {
    let job = job.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = job.spawn().expect("mpirun starts");
    let metrics = s.path(out).join("metrics.jsonl");
    // What is written in the background is there when it has its name.
    let saved = || {
        let all = std::fs::read_dir(s.path(out).join("checkpoints"));
        let mut names = all.into_iter().flatten().flatten().map(|e| e.file_name());
        names.any(|n| n.to_string_lossy().starts_with("step-"))
    };
    wait_for("the first steps and a checkpoint", || {
        metrics.is_file() && records(&s.path(out)).len() > 4 && saved()
    });
    child
}

#[test]
fn a_killed_rank_ends_the_job_with_its_name_and_the_run_goes_on_from_its_checkpoint() {
    plugin();
    let s = Scratch::new();
    for family in families() {
        // The first of several processes is one more case: it keeps the store.
        let ranks: &[u32] = if family == "openmpi" { &[1, 0] } else { &[1] };
        let mut goes_on = String::new();
        for rank in ranks.iter().copied() {
            let name = |n: u32| format!("killed-{family}-{rank}-{n}");
            let scene = |n: u32| {
                let child = running(&s, family, &name(n));
                let pid = process_of(child.id(), rank).expect("the rank's process");
                send(Signal::SIGKILL, pid);
                let began = Instant::now();
                let o = child.wait_with_output().expect("mpirun ends");
                assert!(began.elapsed() < Duration::from_secs(120), "{}", text(&o));
                o
            };
            let records = |n: u32| {
                let file = |r: u32| format!("flight-rank{r}.json");
                (0..3).all(|r| s.path(&name(n)).join(file(r)).is_file())
            };
            let (n, o) = played(family, scene, records);
            let out = name(n);
            if rank == 1 {
                goes_on = out.clone();
            }
            let said = text(&o);
            assert!(!o.status.success(), "{said}");
            assert!(
                said.contains(&format!("rank {rank} died without a word")),
                "{family}: {said}"
            );
            // Where it was, from the memory it shared with the others; and the record of all of them, its own too.
            assert!(said.contains("its last call was all_"), "{said}");
            let record = s.run(&["flight", &out]);
            let table = String::from_utf8_lossy(&record.stdout).into_owned();
            assert!(record.status.success(), "{}", text(&record));
            for r in 0..3 {
                assert!(table.contains(&format!("rank {r}   ")), "{table}");
            }
            assert!(table.contains("group dp of ranks 0 1 2"), "{table}");
            assert!(
                !said.contains("panicked") && !said.contains("a bug"),
                "{said}"
            );
        }
        let out = goes_on;
        let args = [
            "train",
            "config.json",
            "--resume",
            &out,
            "--set",
            "train_batch_size=6",
        ];
        let newest = records(&s.path(&out))
            .last()
            .and_then(|r| r["step"].as_u64())
            .expect("steps");
        let steps = (newest + 5).to_string();
        let said = ok(mpirun(
            &s,
            family,
            3,
            &[&args[..], &["--steps", &steps]].concat(),
        ));
        assert!(said.contains("continuing"), "{said}");
    }
}

/// The same with what each rank prints and says in one file of its own, `OUT.said-RANK`, in the order in which it does so.
fn heard(s: &Scratch, family: &str, out: &str) -> Command {
    let job = long(s, family, out);
    let mut c = Command::new(job.get_program());
    c.current_dir(s.dir.path());
    for (key, value) in job.get_envs() {
        match value {
            Some(value) => c.env(key, value),
            None => c.env_remove(key),
        };
    }
    let program = env!("CARGO_BIN_EXE_crossweave");
    let words: Vec<_> = job.get_args().collect();
    let at = words.iter().position(|w| *w == program).expect("it is run");
    let script = r#"exec "$0" "$@" >>"$SAID-${OMPI_COMM_WORLD_RANK-$PMI_RANK}" 2>&1"#;
    c.args(&words[..at]).args(["sh", "-c", script]);
    c.args(&words[at..]).args(["--set", "steps_per_print=1"]);
    c.env("SAID", s.path(&format!("{out}.said")));
    c
}

/// Rank 0 writes and commits; the signal comes from outside, as a watchdog's does, while it trains and saves. Its threads are stopped before it says
/// that it ends, so that of each at most the call is finished that was under way.
#[test]
fn a_rank_that_aborts_takes_no_further_step_and_commits_nothing() {
    plugin();
    let s = Scratch::new();
    for family in families() {
        let name = |n: u32| format!("aborted-{family}-{n}");
        let said_by = |n: u32, rank: u32| s.path(&format!("{}.said-{rank}", name(n)));
        let scene = |n: u32| {
            let child = started(&s, &name(n), heard(&s, family, &name(n)));
            let pid = process_of(child.id(), 0).expect("the rank's process");
            send(Signal::SIGABRT, pid);
            let mut o = child.wait_with_output().expect("mpirun ends");
            for rank in 0..3 {
                o.stdout
                    .extend(std::fs::read(said_by(n, rank)).unwrap_or_default());
            }
            assert!(!o.status.success(), "{}", text(&o));
            let last = std::fs::read_to_string(said_by(n, 0)).expect("its words");
            let words = "rank 0: this process is ended by SIGABRT";
            let (before, after) = last.split_once(words).unwrap_or_else(|| panic!("{last}"));
            let steps = |text: &str| {
                let step = |l: &&str| l.starts_with("step ") && l.contains("tok/s");
                text.lines().filter(step).count()
            };
            assert!(steps(before) > 0, "{family}: {last}");
            assert!(steps(after) <= 1, "{family}: {last}");
            // A checkpoint is committed by its name, which changes the status of its folder.
            let changed = |path: &std::path::Path| {
                let data = std::fs::metadata(path).expect("a file");
                (data.ctime(), data.ctime_nsec())
            };
            let out = s.path(&name(n));
            let checkpoints = std::fs::read_dir(out.join("checkpoints")).expect("checkpoints");
            let mut left: Vec<_> = checkpoints.flatten().map(|e| e.path()).collect();
            left.retain(|path| {
                path.file_name()
                    .is_some_and(|n| !n.as_encoded_bytes().starts_with(b"."))
            });
            left.push(out.join("metrics.jsonl"));
            let end = changed(&said_by(n, 0));
            left.retain(|path| changed(path) > end);
            // One thread trains, one saves.
            assert!(left.len() <= 2, "{family}: written after it: {left:?}");
            o
        };
        let named = |n: u32| s.path(&name(n)).join("flight-rank1.json").is_file();
        let (_, o) = played(family, scene, named);
        let said = text(&o);
        assert!(
            said.contains("rank 0 died without a word"),
            "{family}: {said}"
        );
    }
}

/// The linked back end and the same one loaded from a file do not know each other: MPI is all they share.
#[test]
fn back_ends_of_different_processes_train_to_the_bits_of_threads() {
    plugin();
    let s = Scratch::new();
    let file = cpu_plugin().display().to_string();
    // It goes on at stage 0, which has the bits of stage 3 with one reduction a step.
    let once = "zero_optimization.reduce_gradients=step";
    let stage = ["--set", "zero_optimization.stage=3", "--set", once];
    let of = |out: &str| -> Vec<String> {
        let words = ["train", "config.json", "--out", out];
        words.iter().chain(&stage).map(|w| w.to_string()).collect()
    };
    let threads = [of("threads"), vec!["--ranks".into(), "2".into()]].concat();
    s.ok(&threads.iter().map(String::as_str).collect::<Vec<_>>());
    for family in families() {
        let mut c = mpirun(&s, family, 1, &[]);
        c.args(of(family));
        c.args([":", "-n", "1", env!("CARGO_BIN_EXE_crossweave")]);
        c.args(of(family)).args(["--plugin", &file]);
        ok(c);
        same(&s.path("threads"), &s.path(family));
        // The rank on the other back end is killed, and the run goes on from its checkpoint on other ranks.
        let name = |n: u32| format!("{family}-killed-{n}");
        let kill = "faults=[{\"rank\": 1, \"kind\": \"kill\", \"step\": 6}]";
        let own: &[&str] = match family {
            "mpich" => &["-disable-auto-cleanup"],
            _ => &[],
        };
        let scene = |n: u32| {
            let mut c = launcher(&s, family, 1, own, &[]);
            c.args(of(&name(n))).args(["--set", kill]);
            c.args([":", "-n", "1", env!("CARGO_BIN_EXE_crossweave")]);
            c.args(of(&name(n)))
                .args(["--plugin", &file, "--set", kill]);
            c.output().expect("it starts")
        };
        // Rank 0 has ended by itself, before Open MPI's launcher ends it seconds later.
        let alone = |n: u32| !s.path(&name(n)).join("owner.lock").exists();
        let left = |n: u32| family != "openmpi" || alone(n);
        let (n, o) = played(family, scene, left);
        let (out, said) = (name(n), text(&o));
        assert!(!o.status.success(), "{said}");
        assert!(said.contains("rank 1 died without a word"), "{said}");
        assert!(left(n), "{said}");
        s.ok(&["train", "config.json", "--ranks", "2", "--resume", &out]);
        same(&s.path("threads"), &s.path(&out));
    }
}

#[test]
fn uneven_shares_of_processes_are_those_of_threads_and_other_configs_are_named() {
    plugin();
    let s = Scratch::new();
    let sets = [
        "--set",
        "train_batch_size=24",
        "--set",
        "train_micro_batch_size_per_gpu=4",
        "--set",
        "run.balance=\"4,1,1\"",
    ];
    let of = |out: &str| -> Vec<String> {
        let words = ["train", "config.json", "--out", out];
        words.iter().chain(&sets).map(|w| w.to_string()).collect()
    };
    let threads = [of("threads"), vec!["--ranks".into(), "3".into()]].concat();
    s.ok(&threads.iter().map(String::as_str).collect::<Vec<_>>());
    for family in families() {
        let mut c = mpirun(&s, family, 3, &[]);
        c.args(of(family));
        ok(c);
        same(&s.path("threads"), &s.path(family));
        let speed = format!("{family}-speed");
        let mut c = mpirun(&s, family, 3, &[]);
        c.args(of(&speed))
            .args(["--set", "run.balance=\"speed\"", "--steps", "2"]);
        ok(c);
        assert_eq!(losses(&s.path(&speed)).len(), 2);
        let odd = format!("{family}-odd");
        let mut c = mpirun(&s, family, 2, &[]);
        c.args(of(&odd));
        c.args([":", "-n", "1", env!("CARGO_BIN_EXE_crossweave")]);
        c.args(of(&odd)).args(["--set", "run.seed=77"]);
        let out = c.output().expect("it starts");
        let said = text(&out);
        assert!(!out.status.success(), "{said}");
        let sentence = "rank 2 runs another config than rank 0: ";
        assert!(
            said.contains(sentence) && said.contains("run.seed is 77 there and 1234 here"),
            "{said}"
        );
        assert!(!s.path(&odd).join("metrics.jsonl").exists(), "{said}");
    }
}

#[test]
fn faults_on_purpose_are_named_and_traces_are_whole_between_processes() {
    plugin();
    let s = Scratch::new();
    for family in families() {
        let traced = format!("{family}-traced");
        let mut c = mpirun(&s, family, 3, &[]);
        c.args(["train", "config.json", "--out", &traced]);
        c.args(["--set", "train_batch_size=24", "--trace", "t.json"]);
        ok(c);
        let bytes = std::fs::read(s.path("t.json")).expect("a trace");
        let trace: serde_json::Value = serde_json::from_slice(&bytes).expect("valid JSON");
        assert_eq!(trace["otherData"]["whole"], true);
        let events = trace["traceEvents"].as_array().expect("events");
        let ranks: std::collections::BTreeSet<u64> =
            events.iter().filter_map(|e| e["pid"].as_u64()).collect();
        assert!(ranks.is_superset(&(0..3).collect()), "{ranks:?}");
        for (kind, parts) in [
            (
                "error",
                &["rank 1 fails on purpose", "faults[0] in step 4"][..],
            ),
            ("drop", &["rank 1 missed all_reduce", "zero/src/lower/"]),
            ("corrupt", &["rank 1 got other bits than ranks 0, 2"]),
            ("kill", &["rank 1 died without a word"]),
        ] {
            let own: &[&str] = match (family, kind) {
                // Else the launcher may end the survivors before they have said who died.
                ("mpich", "kill") => &["-disable-auto-cleanup"],
                _ => &[],
            };
            let fault = format!("faults=[{{\"rank\": 1, \"kind\": \"{kind}\", \"step\": 4}}]");
            let scene = |n: u32| {
                let out = format!("{family}-{kind}-{n}");
                let args = ["train", "config.json", "--out", &out];
                let mut c = launcher(&s, family, 3, own, &args);
                c.args(["--set", "train_batch_size=24", "--set", &fault]);
                c.args(["--set", "run.check=\"values\""]);
                c.output().expect("it starts")
            };
            let (_, o) = played(family, scene, |_| true);
            let said = text(&o);
            assert!(!o.status.success(), "{family} {kind}: {said}");
            for p in parts {
                assert!(said.contains(p), "{family} {kind}: {p:?} not in: {said}");
            }
        }
    }
}

/// What a failed run has to complete may take long: here the timeline goes into a pipe that nobody reads.
#[test]
fn an_error_is_printed_before_the_trace_is_complete() {
    plugin();
    let s = Scratch::new();
    let fault = r#"faults=[{"rank": 1, "kind": "stall", "step": 3}]"#;
    let mut args = vec!["train", "config.json", "--out", "out", "--trace", "t.json"];
    for set in [fault, "run.comm_timeout_s=4"] {
        args.extend(["--set", set]);
    }
    let mut all = torch_style(&s, 2, &args);
    let timeline = s.path(&format!("t.json.{}.part", all[0].id()));
    pipe(&timeline);
    let (say, said) = channel();
    let lines = BufReader::new(all[0].stderr.take().expect("a pipe")).lines();
    let reader = std::thread::spawn(move || {
        let errors = lines
            .map_while(Result::ok)
            .filter(|l| l.starts_with("error: "));
        errors.for_each(|l| drop(say.send(l)));
    });
    let first = said.recv_timeout(Duration::from_secs(120));
    let timeline = std::fs::read(&timeline).expect("the timeline");
    for mut process in all {
        assert!(!process.wait().expect("it ends").success());
    }
    reader.join().expect("the lines end");
    let first = first.expect("a line before the timeline is read");
    assert!(first.contains("rank 1 did not come to"), "{first}");
    assert_eq!(said.iter().count(), 0, "it is printed once");
    assert!(timeline.starts_with(b"{"), "the timeline is written");
}
