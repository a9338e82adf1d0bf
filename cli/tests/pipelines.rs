//! `mesh.pp`: whole runs over pipeline stages, in threads, in processes and over islands; they have the bits of one stage where nothing is tied,
//! go on over other stages, and move what `plan` predicted.

use crate::common;
use common::mpi::{families, mpirun, ok, plugin};
use common::{CONFIG, Scratch, cpu_plugin, losses, model_bytes, same};
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

fn ledger(s: &Scratch, run: &str) -> Value {
    let text = std::fs::read(s.path(run).join("ledger.json")).expect("a ledger");
    serde_json::from_slice(&text).expect("json")
}

#[test]
fn runs_over_stages_have_the_bits_of_one_stage() {
    let s = scratch();
    for dp in ["1", "2"] {
        let whole = format!("whole-{dp}");
        s.ok(&args("llama.json", dp, &[], &["--out", &whole]));
        for (ranks, more) in match dp {
            "1" => [
                (
                    "2",
                    [
                        "mesh.pp=2",
                        "zero_optimization.stage=1",
                        "run.overlap=false",
                    ],
                ),
                (
                    "4",
                    [
                        "mesh.pp=4",
                        "zero_optimization.stage=0",
                        "mesh.pp_schedule=\"gpipe\"",
                    ],
                ),
            ],
            _ => [
                (
                    "6",
                    [
                        "mesh.pp=3",
                        "zero_optimization.stage=3",
                        "run.check=\"values\"",
                    ],
                ),
                (
                    "4",
                    [
                        "mesh.pp=2",
                        "zero_optimization.stage=2",
                        "mesh.pp_layers=\"1,4\"",
                    ],
                ),
            ],
        } {
            let out = format!("{dp}-{ranks}");
            s.ok(&args("llama.json", ranks, &more, &["--out", &out]));
            same(&s.path(&whole), &s.path(&out));
            let ledger = ledger(&s, &out);
            let each: Vec<_> = ledger["ranks"].as_array().expect("ranks").iter().collect();
            assert_eq!(each.len().to_string(), ranks);
            for (rank, l) in each.iter().enumerate() {
                assert_eq!(l["rank"], rank);
                // Only the check of bits takes device memory.
                let checked = more.iter().any(|m| m.starts_with("run.check"));
                assert!(checked || l["device_allocs_after_step_2"] == 0, "{l:#}");
            }
            assert_eq!(ledger["pipeline"]["data_parallel_ranks"].to_string(), dp);
        }
    }
}

/// The head of GPT-2 reads the embedding, whose gradient is then the sum of two stages' sums.
#[test]
fn tied_embeddings_train_near_one_stage() {
    let s = scratch();
    let plain = "optimizer.params.eps=1e-4";
    s.ok(&args("config.json", "2", &[plain], &["--out", "whole"]));
    for (ranks, pp) in [("4", "mesh.pp=2"), ("8", "mesh.pp=4")] {
        let sets = [plain, pp, "zero_optimization.stage=2"];
        s.ok(&args("config.json", ranks, &sets, &["--out", ranks]));
        let (a, b) = (losses(&s.path("whole")), losses(&s.path(ranks)));
        assert_eq!(a.len(), b.len());
        for (a, b) in a.iter().zip(&b) {
            assert!(
                (a - b).abs() <= 1e-4 * a.abs(),
                "{ranks} ranks: {a} and {b}"
            );
        }
    }
}

#[test]
fn a_run_goes_on_over_any_stages() {
    let s = scratch();
    s.ok(&args("llama.json", "1", &[], &["--out", "whole"]));
    let part = |ranks: &str, sets: &[&str], steps: &str, place: &str| {
        s.ok(&args(
            "llama.json",
            ranks,
            sets,
            &["--steps", steps, place, "cut"],
        ));
    };
    part(
        "3",
        &["mesh.pp=3", "zero_optimization.stage=3"],
        "3",
        "--out",
    );
    // What three stages wrote, cut anew for two ranks that have a slice of everything, is the same state.
    s.ok(&["checkpoint", "verify", "cut"]);
    s.ok(&["checkpoint", "reshard", "cut", "anew", "--ranks", "2"]);
    s.ok(&args("llama.json", "1", &[], &["--resume", "anew"]));
    assert!(model_bytes(&s.path("whole")) == model_bytes(&s.path("anew")));
    part("1", &["checkpoint.async=false"], "5", "--resume");
    part(
        "2",
        &["mesh.pp=2", "mesh.pp_layers=\"4,1\""],
        "8",
        "--resume",
    );
    assert_eq!(losses(&s.path("whole")), losses(&s.path("cut")));
    assert!(model_bytes(&s.path("whole")) == model_bytes(&s.path("cut")));
    // A model that was trained elsewhere is cut as well.
    let folder = s.path("whole").join("model").display().to_string();
    let from = format!("model={{\"hf\": \"{folder}\"}}");
    let sets = |pp: &'static str| [from.as_str(), pp];
    s.ok(&args(
        "llama.json",
        "1",
        &sets("mesh.pp=1"),
        &["--out", "from-1"],
    ));
    s.ok(&args(
        "llama.json",
        "2",
        &sets("mesh.pp=2"),
        &["--out", "from-2"],
    ));
    same(&s.path("from-1"), &s.path("from-2"));
}

#[test]
fn stages_on_two_back_ends_have_the_bits_of_one() {
    let s = scratch();
    let file = cpu_plugin().display().to_string();
    for (pp, layout) in [
        ("mesh.pp=2", format!("cpu:2,{file}:2")),
        ("mesh.pp=4", format!("{file}:1,cpu:2,{file}:1")),
    ] {
        let (one, mixed) = (
            format!("one-{}", layout.len()),
            format!("mixed-{}", layout.len()),
        );
        let sets = [pp, "zero_optimization.stage=1"];
        s.ok(&args("llama.json", "4", &sets, &["--out", &one]));
        s.ok(&args("llama.json", &layout, &sets, &["--out", &mixed]));
        same(&s.path(&one), &s.path(&mixed));
    }
}

#[test]
fn processes_train_stages_to_the_bits_of_threads() {
    plugin();
    let s = scratch();
    for (n, sets) in [
        (4, ["mesh.pp=2", "zero_optimization.stage=3"]),
        (4, ["mesh.pp=4", "mesh.pp_schedule=\"gpipe\""]),
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

/// What each stage sends and holds is what `plan` says, step by step. The batches of a validation are no steps.
#[test]
fn ledgers_of_stages_equal_the_plan() {
    let s = scratch();
    for (stage, schedule) in [(3, "1f1b"), (1, "gpipe")] {
        let sets = [
            "mesh.pp=2".to_string(),
            format!("mesh.pp_schedule=\"{schedule}\""),
            format!("zero_optimization.stage={stage}"),
            "data.validation_fraction=0".to_string(),
        ];
        let sets: Vec<&str> = sets.iter().flat_map(|x| ["--set", x]).collect();
        let plan = ["plan", "llama.json", "--ranks", "4", "--json"];
        let plan = s.ok(&[&plan[..], &sets[..]].concat());
        let plan: Value = serde_json::from_str(&plan).expect("json");
        let out = format!("run-{stage}");
        let train = ["train", "llama.json", "--ranks", "4", "--out", &out];
        s.ok(&[&train[..], &sets[..]].concat());
        let ledger = ledger(&s, &out);
        let moved = |lines: &Value, tag: &str, key: &str| -> u64 {
            let lines = lines.as_array().expect("a list").iter();
            let hit = lines.filter(|l| l["tag"] == tag);
            hit.map(|l| l[key].as_u64().expect("a count")).sum()
        };
        for rank in 0..4usize {
            let (found, said) = (&ledger["ranks"][rank], &plan["stages"][rank / 2]);
            for tag in ["activation", "activation_grad", "param", "grad", "tie"] {
                for key in ["calls", "elements"] {
                    let want = 8 * moved(&said["collectives"], tag, key);
                    let got = moved(&found["collectives"], tag, key);
                    assert_eq!(got, want, "stage {stage}, rank {rank}: {tag} {key}");
                }
            }
            let tags = &found["memory"]["tags"];
            for tag in ["param", "grad", "master", "activation", "comm"] {
                let (got, want) = (&tags[tag], &said["memory"][tag]);
                let at = format!("stage {stage}, rank {rank}: {tag}");
                assert_eq!(got["now"], want["bytes"], "{at} between steps");
                assert_eq!(got["peak"], want["peak"], "{at} at its peak");
            }
        }
    }
}

/// Moments and parameters of every stage in files of its own, and a run that goes on from them over other stages.
#[test]
fn states_of_stages_rest_in_files() {
    let s = scratch();
    s.ok(&args("llama.json", "2", &[], &["--out", "whole"]));
    let nvme = [
        "zero_optimization.stage=3",
        "zero_optimization.offload_optimizer={\"device\": \"nvme\", \"nvme_path\": \"swap\"}",
        "zero_optimization.offload_param={\"device\": \"nvme\", \"nvme_path\": \"swap\"}",
    ];
    let over = |pp: &'static str| [&nvme[..], &[pp]].concat();
    let out = ["--out", "files"];
    s.ok(&args("llama.json", "4", &over("mesh.pp=2"), &out));
    same(&s.path("whole"), &s.path("files"));
    let cut = ["--steps", "3", "--out", "cut"];
    s.ok(&args("llama.json", "6", &over("mesh.pp=3"), &cut));
    let rest = ["--steps", "8", "--resume", "cut"];
    s.ok(&args("llama.json", "4", &over("mesh.pp=2"), &rest));
    assert_eq!(losses(&s.path("whole")), losses(&s.path("cut")));
    assert!(model_bytes(&s.path("whole")) == model_bytes(&s.path("cut")));
}

/// What goes wrong between stages is reported with the rank, the call and the step of its plan.
#[test]
fn faults_between_stages_are_named() {
    let s = scratch();
    s.ok(&args("llama.json", "2", &[], &["--out", "whole"]));
    let run = |out: &str, fault: &str| {
        let fault = format!("faults=[{{\"rank\": 2, \"step\": 5, {fault}}}]");
        let sets = ["mesh.pp=2", fault.as_str()];
        s.run(&args("llama.json", "4", &sets, &["--out", out]))
    };
    let late = run("late", r#""kind": "delay", "ms": 40, "op": "recv""#);
    assert!(late.status.success());
    same(&s.path("whole"), &s.path("late"));
    for (kind, op, words) in [
        (
            "kill",
            "recv",
            &["rank 2 was killed on purpose", "recv on pp"][..],
        ),
        ("error", "send", &["rank 2 fails on purpose", "send on pp"]),
        (
            "drop",
            "send",
            &["rank 2", "pipeline.rs:", "tag activation"],
        ),
    ] {
        let out = run(kind, &format!(r#""kind": "{kind}", "op": "{op}""#));
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{said}");
        for part in words {
            assert!(said.contains(part), "{kind}: {part:?} not in: {said}");
        }
        // A message that is dropped leaves its rank going on: what waits for it is found in that step, or in the next one already.
        let dropped = ["step 5", "step 6"].iter().any(|s| said.contains(s));
        assert!(dropped || kind != "drop", "{said}");
        // Behind a message that was dropped the next one meets its receive, or nobody comes.
        let found = ["deadlock", "not for the same"];
        let found = found.iter().any(|words| said.contains(words));
        assert_eq!(found, kind == "drop", "{said}");
        assert_eq!(said.matches("error: ").count(), 1, "{said}");
    }
    // What was saved before goes on, over other stages.
    let rest = ["--resume", "kill"];
    s.ok(&args("llama.json", "6", &["mesh.pp=3"], &rest));
    assert_eq!(losses(&s.path("whole")), losses(&s.path("kill")));
}

#[test]
fn stages_are_weighed_by_what_ranks_can() {
    let s = scratch();
    let out = s.run(&args(
        "llama.json",
        "2",
        &["mesh.pp=2", "run.balance=\"speed\""],
        &["--out", "speed", "--steps", "2"],
    ));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    let note = said.lines().find(|l| l.contains("run.balance: ranks do"));
    let note = note.expect("a note");
    // How fast each is belongs to the machine; that the division can be repeated does not.
    let list = note.split("mesh.pp_layers=\"").nth(1);
    let list = list.and_then(|l| l.split('"').next()).expect("a division");
    let units: u64 = list
        .split(',')
        .map(|n| n.parse::<u64>().expect("a number"))
        .sum();
    assert_eq!(units, 5, "{note}");
    let again = format!("mesh.pp_layers=\"{list}\"");
    let steps = ["--out", "again", "--steps", "2"];
    s.ok(&args("llama.json", "2", &["mesh.pp=2", &again], &steps));
    same(&s.path("speed"), &s.path("again"));
    // Weights say it beforehand, to `plan` too.
    let weights = ["--set", "mesh.pp=2", "--set", "run.balance=\"1,9\""];
    let plan = ["plan", "llama.json", "--ranks", "2", "--json"];
    let plan = s.ok(&[&plan[..], &weights[..]].concat());
    let plan: Value = serde_json::from_str(&plan).expect("json");
    let units = |k: usize| plan["stages"][k]["units"][1].as_u64().expect("a unit");
    assert!(units(0) < 3 && units(1) == 5, "{}", plan["stages"]);
    s.ok(&args(
        "llama.json",
        "2",
        &["mesh.pp=2", "run.balance=\"1,9\""],
        &["--out", "weights", "--steps", "2"],
    ));
    let ran = &ledger(&s, "weights")["pipeline"]["units"][0][1];
    assert_eq!(ran.as_u64(), Some(units(0)));
    same(&s.path("weights"), &s.path("again"));
    s.refused(
        &args(
            "llama.json",
            "2",
            &["mesh.pp=2", "mesh.pp_layers=\"2,3\"", "run.balance=\"1,9\""],
            &["--out", "none"],
        ),
        &["mesh.pp_layers", "run.balance asks for another"],
        &["none"],
    );
}
