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

/// A rank that is killed between stages of several runs: what was saved before goes on to the bits of a run that was never stopped, under another
/// schedule on other stages.
#[test]
fn a_kill_in_a_step_goes_on_under_another_schedule() {
    let s = scratch();
    s.job("llama.json").ranks(2).run("whole");
    for (schedule, op, other, ranks, pp) in [
        ("zbv", "send", "interleaved", 4, 2),
        ("interleaved", "recv", "zb-h1", 6, 3),
        ("zb-h1", "send", "dualpipev", 4, 2),
        ("dualpipev", "recv", "1f1b", 8, 4),
    ] {
        let fault =
            format!("faults=[{{\"rank\": 2, \"step\": 5, \"kind\": \"kill\", \"op\": \"{op}\"}}]");
        let over = |ranks: u32, pp: u32, schedule: &str| {
            let job = s
                .job("llama.json")
                .ranks(ranks)
                .set(&format!("mesh.pp={pp}"));
            job.set(&format!("mesh.pp_schedule=\"{schedule}\""))
        };
        let job = over(4, 2, schedule).set(&fault);
        let (e, _) = job.fails(schedule);
        let said = names(&e, &["rank 2 was killed on purpose", "pp"]);
        assert_eq!(e.rank(), Some(2), "{said}");
        let rest = over(ranks, pp, other).set("zero_optimization.stage=2");
        rest.resume(schedule).goes_on();
        assert_eq!(
            losses(&s.path("whole")),
            losses(&s.path(schedule)),
            "{schedule}"
        );
        assert!(model_bytes(&s.path("whole")) == model_bytes(&s.path(schedule)));
    }
}

/// Rows of several documents, labels that do not count, and adapters of a frozen model, to the bits of one stage.
#[test]
fn documents_labels_and_adapters_have_the_bits_of_one_stage() {
    let s = scratch();
    s.job("llama.json").steps(2).run("base");
    let lines: String = (0..200)
        .map(|i| {
            format!(
                "{{\"prompt\": \"{}+{}=\", \"completion\": \"{}\"}}\n",
                i % 7,
                i % 5,
                i % 7 + i % 5
            )
        })
        .collect();
    s.write("pairs.jsonl", lines);
    let folder = s.path("base/model").display().to_string();
    let adapters =
        format!("model={{\"hf\": \"{folder}\", \"lora\": {{\"r\": 2, \"lora_dropout\": 0.1}}}}");
    let documents = [
        "data.reset_attention_mask=true",
        "data.reset_position_ids=true",
    ];
    let pairs = [
        "data={\"train\": \"pairs.jsonl\", \"format\": \"prompt_completion\", \"pack\": true, \"seq_len\": 16}",
        "run.validate_every=0",
    ];
    for (name, sets, schedules) in [
        ("documents", &documents[..], ["interleaved", "zbv"]),
        ("labels", &pairs[..], ["zb-h1", "dualpipev"]),
        ("adapters", &[adapters.as_str()][..], ["interleaved", "zbv"]),
    ] {
        s.job("llama.json").ranks(2).steps(4).sets(sets).run(name);
        for schedule in schedules {
            let job = s.job("llama.json").ranks(4).steps(4).sets(sets);
            let job = job.set("mesh.pp=2").set("zero_optimization.stage=2");
            let out = format!("{name}-{schedule}");
            job.set(&format!("mesh.pp_schedule=\"{schedule}\""))
                .run(&out);
            if name != "adapters" {
                same(&s.path(name), &s.path(&out));
                continue;
            }
            assert_eq!(losses(&s.path(name)), losses(&s.path(&out)), "{schedule}");
            let file = |run: &str| {
                let path = s.path(run).join("model/adapter_model.safetensors");
                std::fs::read(path).expect("adapters")
            };
            assert!(file(name) == file(&out), "{schedule}");
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
    for (pp, schedule, layout) in [
        ("mesh.pp=2", "1f1b", format!("cpu:2,{file}:2")),
        ("mesh.pp=4", "1f1b", format!("{file}:1,cpu:2,{file}:1")),
        ("mesh.pp=2", "interleaved", format!("cpu:2,{file}:2")),
        ("mesh.pp=2", "zbv", format!("{file}:2,cpu:2")),
        // The ranks of each stage are on two back ends.
        ("mesh.pp=2", "zbv", format!("cpu:1,{file}:2,cpu:1")),
    ] {
        let name = format!("{}-{schedule}-{pp}", layout.len());
        let (one, mixed) = (format!("one-{name}"), format!("mixed-{name}"));
        let schedule = format!("mesh.pp_schedule=\"{schedule}\"");
        let sets = [pp, &schedule, "zero_optimization.stage=1"];
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
    // Groups of messages have numbers on all stages: the next group that meets the one that was left out is another.
    for schedule in ["zbv", "zb-h1", "interleaved"] {
        let job = faulty(r#""kind": "drop", "op": "send""#);
        let job = job.set(&format!("mesh.pp_schedule=\"{schedule}\""));
        let (e, _) = job.fails(schedule);
        let said = names(&e, &["rank 2", "#"]);
        let found = ["deadlock", "not for the same"];
        assert!(found.iter().any(|words| said.contains(words)), "{said}");
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

/// With several runs a stage the sum of them is weighed: the slower stage has fewer units in all, by weights and by what was measured.
#[test]
fn the_runs_of_a_stage_are_weighed_together() {
    let s = scratch();
    let two = s.job("llama.json").ranks(2).steps(2);
    let two = two.set("mesh.pp=2").set("model.num_hidden_layers=8");
    for schedule in ["interleaved", "zbv", "dualpipev"] {
        let two = two.clone().set(&format!("mesh.pp_schedule=\"{schedule}\""));
        let weights = two.clone().set("run.balance=\"1,3\"");
        let plan = weights.plan();
        let units = |k: usize| -> u64 {
            let stage = &plan["stages"][k];
            let more = stage["more_units"].as_array().expect("runs").iter();
            let all = more.chain([&stage["units"]]);
            all.map(|u| u[1].as_u64().expect("a unit") - u[0].as_u64().expect("a unit"))
                .sum()
        };
        assert_eq!(units(0) + units(1), 10, "{schedule}");
        // Of the embedding, which multiplies nothing, the first stage has more than its share.
        assert!(units(0) <= 4 && units(1) >= 6, "{schedule}: {}", units(0));
        weights.run(schedule);
        let key = format!("measured-{schedule}");
        let said = two.clone().set("run.balance=\"speed\"").run(&key).said;
        let note = said.lines().find(|l| l.contains("run.balance: ranks do"));
        let list = note.and_then(|n| n.split("mesh.pp_layers=\"").nth(1));
        let list = list.and_then(|l| l.split('"').next()).expect("a division");
        assert_eq!(list.split(',').count(), 4, "{said}");
        let again = format!("again-{schedule}");
        two.set(&format!("mesh.pp_layers=\"{list}\"")).run(&again);
        same(&s.path(&key), &s.path(&again));
    }
    for schedule in ["zbv", "dualpipev"] {
        same(&s.path("interleaved"), &s.path(schedule));
    }
}

/// Every schedule stands beside the chosen one, with what a step takes, or the reason why this job cannot take it.
#[test]
fn a_plan_has_every_schedule_beside_the_chosen_one() {
    let s = scratch();
    let job = s.job("llama.json").ranks(2).set("mesh.pp=2");
    let rows = |sets: &[&str]| -> Vec<Value> {
        let plan = job.clone().sets(sets).plan();
        plan["pipeline"]["schedules"]
            .as_array()
            .expect("rows")
            .clone()
    };
    let of = |rows: &[Value], name: &str| -> Value {
        let row = rows.iter().find(|r| r["schedule"] == name);
        row.expect("every schedule").clone()
    };
    let chosen = rows(&["mesh.pp_schedule=\"zb-h1\"", "train_batch_size=8"]);
    assert_eq!(chosen.len(), 6);
    for row in &chosen {
        let own = row["schedule"] == "zb-h1";
        assert_eq!(row["chosen"], own, "{row}");
        let times = row["times_the_chosen"].as_f64().expect("a makespan");
        assert!(if own { times == 1.0 } else { times > 0.5 }, "{row}");
        let idle = row["idle_fraction"].as_f64().expect("a part");
        assert!((0.0..1.0).contains(&idle), "{row}");
        let flying = row["runs_in_flight"].as_array().expect("stages");
        assert_eq!(flying.len(), 2);
    }
    // Backwards in two parts fill what 1F1B of the same stages leaves idle.
    let times = of(&chosen, "1f1b")["times_the_chosen"].as_f64();
    assert!(times > Some(1.0), "{chosen:?}");
    let odd = rows(&["train_batch_size=3"]);
    let why = |name: &str| of(&odd, name)["refused"].as_str().map(str::to_string);
    assert!(
        why("interleaved")
            .expect("a reason")
            .contains("a multiple of the stages")
    );
    assert!(
        why("dualpipev")
            .expect("a reason")
            .contains("two for each stage")
    );
    assert_eq!(why("zbv"), None);
    let few = rows(&["model.num_hidden_layers=1", "train_batch_size=4"]);
    let why = of(&few, "zbv")["refused"]
        .as_str()
        .expect("a reason")
        .to_string();
    assert!(
        why.contains("4 runs of units") && why.contains("3 units"),
        "{why}"
    );
    // What the table refuses, a run refuses.
    let job = job.clone().set("model.num_hidden_layers=1");
    let (e, _) = job.set("mesh.pp_schedule=\"zbv\"").fails("refused");
    names(&e, &["mesh.pp_schedule", "3 units"]);
}
