//! `mesh.pp`: whole runs over pipeline stages, in threads and over islands; they have the bits of one stage where nothing is tied,
//! go on over other stages, and move what `plan` predicted.

use crate::support::{CONFIG, Scratch, cpu_plugin, ledger, losses, model_bytes, names, same};
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

#[test]
fn runs_over_stages_have_the_bits_of_one_stage() {
    let s = scratch();
    for dp in ["1", "2"] {
        let whole = format!("whole-{dp}");
        s.job("llama.json").ranks(dp).run(&whole);
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
            s.job("llama.json").ranks(ranks).sets(&more).run(&out);
            same(&s.path(&whole), &s.path(&out));
            let ledger = ledger(&s.path(&out));
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

/// Several runs a stage, and backwards in two parts, from the keys of a config; and on in another schedule on other stages.
#[test]
fn schedules_have_the_bits_of_one_stage() {
    let s = scratch();
    s.job("llama.json").ranks(2).run("whole");
    for (stage, schedule) in [
        (1, "interleaved"),
        (2, "zb-h1"),
        (3, "zbv"),
        (0, "dualpipev"),
    ] {
        let sets = [
            "mesh.pp=2".to_string(),
            format!("mesh.pp_schedule=\"{schedule}\""),
            format!("zero_optimization.stage={stage}"),
        ];
        s.job("llama.json").ranks(4).sets(&sets).run(schedule);
        same(&s.path("whole"), &s.path(schedule));
        let ledger = ledger(&s.path(schedule));
        assert_eq!(ledger["pipeline"]["schedule"], schedule);
        for l in ledger["ranks"].as_array().expect("ranks") {
            assert_eq!(l["device_allocs_after_step_2"], 0, "{schedule}: {l:#}");
        }
    }
    let part = s.job("llama.json").ranks(4);
    let part = part.set("mesh.pp=2").set("mesh.pp_schedule=\"zbv\"");
    part.steps(3).run("cut");
    let rest = s.job("llama.json").ranks(4).steps(8);
    let rest = rest
        .set("mesh.pp=2")
        .set("mesh.pp_schedule=\"interleaved\"");
    rest.resume("cut").goes_on();
    assert_eq!(losses(&s.path("whole")), losses(&s.path("cut")));
}

/// What a schedule cannot do is refused by its key, by `plan` as by a run.
#[test]
fn schedules_that_do_not_fit_are_refused() {
    let s = scratch();
    for (sets, words) in [
        (
            &["mesh.pp_schedule=\"interleaved\"", "mesh.pp_chunks=3"][..],
            &["mesh.pp_chunks", "3 runs each", "5 units"][..],
        ),
        (
            &["mesh.pp_schedule=\"zb-h1\"", "mesh.pp_chunks=2"],
            &["mesh.pp_chunks", "zb-h1 each has 1"],
        ),
        (
            &["mesh.pp_schedule=\"zbv\"", "mesh.pp_layers=\"2,3\""],
            &["mesh.pp_layers", "2 runs each", "give 4"],
        ),
        (
            &["mesh.pp_schedule=\"dualpipev\"", "train_batch_size=2"],
            &["gradient_accumulation_steps", "two for each stage"],
        ),
        (
            &["mesh.pp_schedule=\"interleaved\"", "train_batch_size=3"],
            &["gradient_accumulation_steps", "multiple of the stages"],
        ),
        (
            &["mesh.pp_schedule=\"zbv\"", "run.balance=\"2,1\""],
            &["run.balance", "mesh.pp_layers"],
        ),
        (&["mesh.pp_schedule=\"zbw\""], &["mesh.pp_schedule", "zbv"]),
    ] {
        let job = s.job("llama.json").ranks(2).set("mesh.pp=2").sets(sets);
        let (e, _) = job.fails("refused");
        names(&e, words);
    }
}

/// The first stage of a V has embedding and head: where these are one parameter, micro-batches write its gradient in turns, so that it is reduced
/// once a step, which is what `auto` does, and a plan has no other choice to price.
#[test]
fn a_v_whose_head_is_its_embedding_reduces_once_a_step() {
    let s = scratch();
    for schedule in ["zbv", "dualpipev"] {
        let sets = [
            "mesh.pp=2",
            &format!("mesh.pp_schedule=\"{schedule}\""),
            "zero_optimization.stage=2",
        ];
        let job = s.job("config.json").ranks(4).sets(&sets);
        job.check().expect("a job");
        let first = &job.plan()["stages"][0]["gradients"];
        assert!(first["kept"].is_string(), "{first}");
        let each = job.set("zero_optimization.reduce_gradients=micro_batch");
        let says = ["zero_optimization.reduce_gradients", "set it to \"step\""];
        each.unplanned(&says);
        each.refused(&says);
    }
}

/// The head of GPT-2 reads the embedding, whose gradient is then the sum of two stages' sums.
#[test]
fn tied_embeddings_train_near_one_stage() {
    let s = scratch();
    let plain = "optimizer.params.eps=1e-4";
    s.job("config.json").ranks(2).sets(&[plain]).run("whole");
    for (ranks, pp) in [("4", "mesh.pp=2"), ("8", "mesh.pp=4")] {
        let sets = [plain, pp, "zero_optimization.stage=2"];
        s.job("config.json").ranks(ranks).sets(&sets).run(ranks);
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
    s.job("llama.json").ranks(1).run("whole");
    let part = |ranks: u32, sets: &[&str], steps: u32| {
        s.job("llama.json").ranks(ranks).sets(sets).steps(steps)
    };
    part(3, &["mesh.pp=3", "zero_optimization.stage=3"], 3).run("cut");
    // What three stages wrote, cut anew for two ranks that have a slice of everything, is the same state.
    s.verify("cut");
    s.reshard("cut", "anew", 2, None).unwrap();
    s.job("llama.json").ranks(1).resume("anew").goes_on();
    assert!(model_bytes(&s.path("whole")) == model_bytes(&s.path("anew")));
    let still = part(1, &["checkpoint.async=false"], 5);
    still.resume("cut").goes_on();
    let uneven = part(2, &["mesh.pp=2", "mesh.pp_layers=\"4,1\""], 8);
    uneven.resume("cut").goes_on();
    assert_eq!(losses(&s.path("whole")), losses(&s.path("cut")));
    assert!(model_bytes(&s.path("whole")) == model_bytes(&s.path("cut")));
    // A model that was trained elsewhere is cut as well.
    let folder = s.path("whole").join("model").display().to_string();
    let from = format!("model={{\"hf\": \"{folder}\"}}");
    let sets = |pp: &'static str| [from.as_str(), pp];
    s.job("llama.json")
        .ranks(1)
        .sets(&sets("mesh.pp=1"))
        .run("from-1");
    s.job("llama.json")
        .ranks(2)
        .sets(&sets("mesh.pp=2"))
        .run("from-2");
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
        s.job("llama.json").ranks(4).sets(&sets).run(&one);
        s.job("llama.json").ranks(&layout).sets(&sets).run(&mixed);
        same(&s.path(&one), &s.path(&mixed));
    }
}

/// What each stage sends and holds is what `plan` says, step by step. The batches of a validation are no steps.
#[test]
fn ledgers_of_stages_equal_the_plan() {
    let s = scratch();
    // Starting values of states on the host are made on the device, a parameter at a time, and are no activations.
    let host = "zero_optimization.offload_optimizer.device=cpu";
    for (stage, schedule, more) in [
        (3, "1f1b", vec![]),
        (1, "gpipe", vec![]),
        (2, "interleaved", vec![]),
        (0, "zbv", vec![]),
        (1, "zb-h1", vec![host]),
    ] {
        let sets = [
            "mesh.pp=2".to_string(),
            format!("mesh.pp_schedule=\"{schedule}\""),
            format!("zero_optimization.stage={stage}"),
            "data.validation_fraction=0".to_string(),
        ];
        let job = s.job("llama.json").ranks(4).sets(&sets).sets(&more);
        let plan = job.plan();
        let out = format!("run-{schedule}");
        job.run(&out);
        let ledger = ledger(&s.path(&out));
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
    s.job("llama.json").ranks(2).run("whole");
    let nvme = [
        "zero_optimization.stage=3",
        "zero_optimization.offload_optimizer={\"device\": \"nvme\", \"nvme_path\": \"swap\"}",
        "zero_optimization.offload_param={\"device\": \"nvme\", \"nvme_path\": \"swap\"}",
    ];
    let over = |pp: &'static str| [&nvme[..], &[pp]].concat();
    s.job("llama.json")
        .ranks(4)
        .sets(&over("mesh.pp=2"))
        .run("files");
    same(&s.path("whole"), &s.path("files"));
    let three = s.job("llama.json").ranks(6).sets(&over("mesh.pp=3"));
    three.steps(3).run("cut");
    let two = s.job("llama.json").ranks(4).sets(&over("mesh.pp=2"));
    two.steps(8).resume("cut").goes_on();
    assert_eq!(losses(&s.path("whole")), losses(&s.path("cut")));
    assert!(model_bytes(&s.path("whole")) == model_bytes(&s.path("cut")));
}

/// What goes wrong between stages is reported with the rank, the call and the step of its plan.
#[test]
fn faults_between_stages_are_named() {
    let s = scratch();
    s.job("llama.json").ranks(2).run("whole");
    let faulty = |fault: &str| {
        let fault = format!("faults=[{{\"rank\": 2, \"step\": 5, {fault}}}]");
        s.job("llama.json").ranks(4).set("mesh.pp=2").set(&fault)
    };
    faulty(r#""kind": "delay", "ms": 40, "op": "recv""#).run("late");
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
        let job = faulty(&format!(r#""kind": "{kind}", "op": "{op}""#));
        let (e, _) = job.fails(kind);
        let said = names(&e, words);
        assert_eq!(e.rank(), Some(2), "{said}");
        // A message that is dropped leaves its rank going on: what waits for it is found in that step, or in the next one already.
        let dropped = ["step 5", "step 6"].iter().any(|s| said.contains(s));
        assert!(dropped || kind != "drop", "{said}");
        // Behind a message that was dropped the next one meets its receive, or nobody comes.
        let found = ["deadlock", "not for the same"];
        let found = found.iter().any(|words| said.contains(words));
        assert_eq!(found, kind == "drop", "{said}");
    }
    // What was saved before goes on, over other stages.
    let rest = s.job("llama.json").ranks(6).set("mesh.pp=3");
    rest.resume("kill").goes_on();
    assert_eq!(losses(&s.path("whole")), losses(&s.path("kill")));
}

#[test]
fn stages_are_weighed_by_what_ranks_can() {
    let s = scratch();
    let two = s.job("llama.json").ranks(2).set("mesh.pp=2").steps(2);
    let said = two.clone().set("run.balance=\"speed\"").run("speed").said;
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
    two.clone().set(&again).run("again");
    same(&s.path("speed"), &s.path("again"));
    // Weights say it beforehand, to a plan too.
    let weights = two.set("run.balance=\"1,9\"");
    let plan = weights.plan();
    let units = |k: usize| plan["stages"][k]["units"][1].as_u64().expect("a unit");
    assert!(units(0) < 3 && units(1) == 5, "{}", plan["stages"]);
    weights.run("weights");
    let ran = &ledger(&s.path("weights"))["pipeline"]["units"][0][1];
    assert_eq!(ran.as_u64(), Some(units(0)));
    same(&s.path("weights"), &s.path("again"));
    let other = weights.set("mesh.pp_layers=\"2,3\"");
    other.refused(&["mesh.pp_layers", "run.balance asks for another"]);
}
