//! Predictions that equal the ledgers of real runs: memory, traffic and where states rest.

use crate::support::{Scratch, ledger, names, same};
use crossweave::figures::estimate::{Estimation, Ranks, Training, estimate};
use crossweave::surroundings::Surroundings;
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn near(got: &Value, want: f64, relative: f64) {
    let got = got.as_f64().expect("a number");
    assert!((got - want).abs() <= relative * want, "{got} is not {want}");
}

/// A model of two sizes, each of two families, that has nothing but training in its run.
fn config(family: &str, size: usize, stage: u32, dtype: &str) -> String {
    let model = match (family, size) {
        ("gpt2", 0) => {
            r#"{"family": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 16}"#
        }
        ("gpt2", _) => {
            r#"{"family": "gpt2", "n_layer": 3, "n_embd": 40, "n_head": 4, "n_positions": 24, "recompute": "full"}"#
        }
        (_, 0) => {
            r#"{"family": "llama", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 16}"#
        }
        _ => {
            r#"{"family": "llama", "hidden_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
                "max_position_embeddings": 24, "intermediate_size": 61, "recompute": "selective"}"#
        }
    };
    let bf16 = dtype == "bf16";
    let clip = if size == 0 { 1.0 } else { 0.0 };
    format!(
        r#"{{"model": {model}, "data": {{"train": "corpus/*.txt", "cache_dir": "cache"}},
            "run": {{"steps": {STEPS}, "threads_per_rank": 1, "generate": {{"tokens": 0}}}},
            "bf16": {{"enabled": {bf16}}}, "zero_optimization": {{"stage": {stage}}}, "gradient_clipping": {clip},
            "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": {}}}"#,
        size + 1
    )
}

const STEPS: u64 = 3;

/// Calls, elements, bytes and wire elements by kind, group and tag.
fn total<const N: usize>(parts: [(u64, Vec<Value>); N]) -> BTreeMap<String, [u64; 4]> {
    let mut out: BTreeMap<String, [u64; 4]> = BTreeMap::new();
    for (times, lines) in parts {
        for l in lines {
            let key = format!("{} {} {} {}", l["kind"], l["group"], l["tag"], l["ranks"]);
            let sum = out.entry(key).or_default();
            let fields = ["calls", "elements", "bytes", "wire_elements"];
            for (sum, field) in sum.iter_mut().zip(fields) {
                *sum += times * l[field].as_u64().expect("a count");
            }
        }
    }
    out
}

/// What a run counted, against the prediction.
fn compare(s: &Scratch, name: &str, ranks: u32) {
    compare_each(s, name, ranks, 1);
}

/// The same where the first `kinds` ranks, and those behind them in turn, hold different sizes.
fn compare_each(s: &Scratch, name: &str, ranks: u32, kinds: u32) {
    let job = s.job("c.json").ranks(ranks);
    let plans: Vec<Value> = (0..kinds).map(|rank| job.plan_of(rank)).collect();
    let out = format!("run-{name}");
    job.run(&out);
    let ledger = ledger(&s.path(&out));
    let all = ledger["ranks"].as_array().expect("ranks");
    // Moments are of parameters, and the last ranks' slices end in padding: a plan reports the largest, and together they are
    // two f32 of every parameter, once if sharded, else on every rank.
    let moments: u64 = all
        .iter()
        .map(|r| {
            r["memory"]["tags"]["moment"]["now"]
                .as_u64()
                .expect("bytes")
        })
        .sum();
    let copies = match plans[0]["stage"].as_u64() {
        Some(0) => u64::from(ranks),
        _ => u64::from(ranks) / plans[0]["ranks"].as_u64().expect("a count"),
    };
    let each = |plan: &Value| plan["params"].as_u64().expect("a count");
    let params = plans.iter().map(each).sum::<u64>() * copies / u64::from(kinds);
    assert_eq!(moments, 8 * params, "{name}: moments of all ranks");
    for rank in all {
        let tags = &rank["memory"]["tags"];
        let number = rank["rank"].as_u64().expect("a rank");
        let plan = &plans[(number % u64::from(kinds)) as usize];
        let largest = number < u64::from(kinds);
        for tag in ["param", "grad", "master", "moment", "activation", "comm"] {
            let (got, want) = (&tags[tag], &plan["memory"][tag]);
            if tag == "moment" && !largest {
                assert!(
                    got["peak"].as_u64() <= want["peak"].as_u64(),
                    "{name}: {tag}"
                );
                continue;
            }
            assert_eq!(got["now"], want["bytes"], "{name}: {tag} between steps");
            assert_eq!(got["peak"], want["peak"], "{name}: {tag} at its peak");
        }
        // Its peak also has what a run stages when it begins and ends.
        let want = &plan["memory"]["staging"]["bytes"];
        assert_eq!(&tags["staging"]["now"], want, "{name}: staging");
        // What is sharded follows its formula.
        let sharded = plan["stage"].as_u64() > Some(0);
        let tags_of = ["param", "master", "moment"];
        for tag in tags_of
            .iter()
            .filter(|t| sharded && (largest || **t != "moment"))
        {
            let want = &plan["states_formula"][*tag]["bytes"];
            assert_eq!(&tags[*tag]["now"], want, "{name}: {tag} by formula");
        }
        // Of what has pieces of rows a rank sums the slice that ZeRO leaves to it.
        let own = (kinds > 1).then(|| job.plan_of(number as u32));
        let plan = own.as_ref().unwrap_or(plan);
        // A run also agrees on a few scalars before its first step.
        let lines = |v: &Value| -> Vec<Value> {
            let all = v.as_array().cloned().unwrap_or_default();
            all.into_iter().filter(|l| l["tag"] != "scalar").collect()
        };
        let each = lines(&plan["collectives"]);
        let first = match &plan["collectives_of_first_step"] {
            Value::Null => each.clone(),
            v => lines(v),
        };
        let got = total([(1, lines(&rank["collectives"]))]);
        let want = total([(1, first), (STEPS - 1, each)]);
        assert_eq!(got, want, "{name}: collectives");
    }
    std::fs::remove_dir_all(s.path(&out)).expect("removed");
}

#[test]
fn measured_ledgers_equal_predictions() {
    let s = Scratch::new();
    let mut compared = 0;
    for family in ["gpt2", "llama"] {
        for (size, dtype) in [(0, "f32"), (0, "bf16"), (1, "f32"), (1, "bf16")] {
            for stage in 0..4 {
                s.write("c.json", config(family, size, stage, dtype));
                for ranks in 1..=4 {
                    // Each size has each number of ranks in one dtype at least.
                    if size == 1 && ranks % 2 == usize::from(dtype == "f32") as u32 {
                        continue;
                    }
                    let name = format!("{family}-{size}-{dtype}-{stage}-{ranks}");
                    compare(&s, &name, ranks);
                    compared += 1;
                }
            }
        }
    }
    assert!(compared >= 20, "only {compared}");
}

/// Layers cut over ranks: their parts, and the sums of hidden states. Of a vocabulary of 257 one rank has a row less than the other.
#[test]
fn cut_layers_are_predicted_exactly() {
    let s = Scratch::new();
    for (family, size, stage, ranks) in [("gpt2", 0, 2, 4), ("llama", 1, 3, 4), ("gpt2", 1, 1, 2)] {
        let c = config(family, size, stage, "bf16").replace("61", "62");
        s.write("c.json", c.replacen('{', r#"{"mesh": {"tp": 2}, "#, 1));
        compare_each(&s, &format!("{family}-{stage}"), ranks, 2);
        let job = s.job("c.json").ranks(ranks);
        for (rank, here) in [(0, 129), (1, 128)] {
            let rows = &job.plan_of(rank)["vocabulary"];
            assert_eq!(*rows, json!({"rows": 257, "here": here}));
        }
    }
}

/// Parameters gathered in 8 bits, with their scales beside.
#[test]
fn quantized_gathers_are_foretold_exactly() {
    let s = Scratch::new();
    for (stage, ranks) in [(1, 3), (3, 2)] {
        let plain = config("gpt2", 0, stage, "bf16");
        let key = format!(r#""stage": {stage}, "zero_quantized_weights": true"#);
        let asked = plain.replace(&format!(r#""stage": {stage}"#), &key);
        assert_ne!(asked, plain);
        s.write("c.json", asked);
        compare(&s, &format!("eight-{stage}-{ranks}"), ranks);
    }
}

/// Gradients added up in the type of the parameters, over the two micro-batches of the larger model.
#[test]
fn sixteen_bit_accumulation_is_foretold_exactly() {
    let s = Scratch::new();
    for (stage, ranks) in [(1, 2), (2, 3)] {
        let data = r#"{"data_types": {"grad_accum_dtype": "bf16"}, "#;
        s.write(
            "c.json",
            config("llama", 1, stage, "bf16").replacen('{', data, 1),
        );
        compare(&s, &format!("accum-{stage}-{ranks}"), ranks);
    }
    let wide = s.job("c.json").set("bf16.enabled=false");
    names(
        &wide.check().unwrap_err(),
        &[
            "data_types.grad_accum_dtype",
            "16-bit type of the parameters",
            "fp32",
        ],
    );
}

/// A pipeline is planned stage by stage: states of a stage's own units, and what crosses each boundary.
#[test]
fn pipelines_are_foretold() {
    let s = Scratch::new();
    for (family, stage, schedule) in [
        ("gpt2", 1, "1f1b"),
        ("llama", 3, "gpipe"),
        ("gpt2", 0, "1f1b"),
    ] {
        let mesh = format!(r#"{{"mesh": {{"pp": 2, "pp_schedule": "{schedule}"}}, "#);
        s.write(
            "c.json",
            config(family, 1, stage, "bf16").replacen('{', &mesh, 1),
        );
        let v = s.job("c.json").ranks(6).plan();
        let stages = v["stages"].as_array().expect("stages");
        assert_eq!(
            (stages.len(), &v["pipeline"]["data_parallel_ranks"]),
            (2, &Value::from(3))
        );
        // Two micro-batches of one sequence of 24 tokens, 40 wide.
        assert_eq!(v["pipeline"]["bubble_fraction"], 1.0 / 3.0);
        let moved = |k: usize, kind: &str, tag: &str| -> u64 {
            let lines = stages[k]["collectives"].as_array().expect("a list").iter();
            let hit = lines.filter(|l| l["kind"] == kind && l["tag"] == tag);
            hit.map(|l| l["elements"].as_u64().expect("a count")).sum()
        };
        for (from, to, tag) in [(0, 1, "activation"), (1, 0, "activation_grad")] {
            assert_eq!(moved(from, "send", tag), 2 * 24 * 40, "{family} {tag}");
            assert_eq!(moved(to, "recv", tag), 2 * 24 * 40, "{family} {tag}");
            assert_eq!(moved(to, "send", tag), 0, "{family} {tag}");
        }
        for k in stages.iter().filter(|_| stage > 0) {
            for tag in ["param", "master", "moment"] {
                let want = &k["states_formula"][tag]["bytes"];
                assert_eq!(
                    &k["memory"][tag]["bytes"], want,
                    "{family}: {tag} by formula"
                );
            }
        }
        let fullest = v["pipeline"]["fullest_stage"].as_u64().expect("a stage") as usize;
        assert_eq!(v["memory"], stages[fullest]["memory"]);
    }
    s.job("c.json").ranks(5).unplanned(&[
        "mesh.pp",
        "5 ranks cannot be divided over 2 pipeline stages",
        "--ranks 6",
    ]);
    for (set, said) in [
        ("mesh.pp_layers=\"1,98\"", ["mesh.pp_layers", "99 units"]),
        (
            "mesh.pp_layers=\"1\"",
            ["mesh.pp_layers", "1 numbers for 2"],
        ),
        (
            "mesh.pp_layers=\"odd\"",
            ["mesh.pp_layers", "wanted a division"],
        ),
        ("mesh.pp=99", ["mesh.pp", "99 pipeline stages"]),
        (
            "run.balance=\"3,1\"",
            ["run.balance", "2 weights for 4 ranks"],
        ),
    ] {
        s.job("c.json").ranks(4).set(set).unplanned(&said);
    }
}

#[test]
fn volumes_against_data_parallelism_are_exact_at_every_stage() {
    let s = Scratch::new();
    for family in ["gpt2", "llama"] {
        for (stage, volume) in [1.0, 1.0, 1.0, 1.5].into_iter().enumerate() {
            // No size divides evenly by all of these.
            for ranks in [2, 3, 8, 64] {
                s.write("c.json", config(family, 0, stage as u32, "bf16"));
                let v = s.job("c.json").ranks(ranks).plan();
                let got = v["volume_vs_ddp"].as_f64().expect("a ratio");
                assert_eq!(got, volume, "{family}, stage {stage}, {ranks} ranks");
            }
        }
    }
}

/// For L units FSDP2 gathers 2L times and reduces L times; without resharding after the forward L times and L times.
#[test]
fn resharding_after_the_forward_doubles_the_gathers_and_nothing_else() {
    let s = Scratch::new();
    for family in ["gpt2", "llama"] {
        // The larger one recomputes and accumulates two micro-batches, of which each gathers for itself.
        for (size, micro) in [(0, 1), (1, 2)] {
            let of = |reshard: &str| {
                let zero = format!(
                    r#""stage": 3, "reduce_bucket_size": 1, "reshard_after_forward": {reshard}"#
                );
                let c = config(family, size, 3, "f32").replace(r#""stage": 3"#, &zero);
                s.write("c.json", c);
                let job = s.job("c.json").ranks(3);
                job.run("run");
                let ledger = ledger(&s.path("run"));
                std::fs::remove_dir_all(s.path("run")).expect("removed");
                let v = job.plan();
                // Predicted for one step, and counted over all.
                let counts = |kind: &str, tag: &str| {
                    let sum = |lines: &Value| {
                        let all = lines.as_array().expect("a list").iter();
                        all.filter(|l| l["kind"] == kind && l["tag"] == tag).fold(
                            (0, 0),
                            |sum, l| {
                                let n = |field: &str| l[field].as_u64().expect("a count");
                                (sum.0 + n("calls"), sum.1 + n("elements"))
                            },
                        )
                    };
                    let each = sum(&v["collectives"]);
                    for rank in ledger["ranks"].as_array().expect("ranks") {
                        let all = sum(&rank["collectives"]);
                        assert_eq!(all, (STEPS * each.0, STEPS * each.1), "{kind} {tag}");
                    }
                    each
                };
                let layout = |field: &str| v["layout"][field].as_u64().expect("a count");
                let units = layout("units");
                assert!(units >= 4, "{units}");
                (
                    (units, layout("params_padded")),
                    counts("all_gather", "param"),
                    counts("reduce_scatter", "grad"),
                )
            };
            for (reshard, each) in [("true", 2), ("false", 1)] {
                let (whole, gathered, reduced) = of(reshard);
                let want = (each * micro * whole.0, each * micro * whole.1);
                let at = format!("{family}, {micro} micro-batches, reshard {reshard}");
                assert_eq!(gathered, want, "{at}");
                // So do its gradients, which are reduced for themselves.
                assert_eq!(reduced, (micro * whole.0, micro * whole.1), "{at}");
            }
        }
    }
    s.write("c.json", config("gpt2", 0, 3, "bf16"));
    let set = "zero_optimization.reshard_after_forward=false";
    let many = s.job("c.json").ranks(64);
    let plan = many.clone().set(set).plan();
    assert_eq!(plan["volume_vs_ddp"].as_f64(), Some(1.0));
    let odd = many.set("zero_optimization.reshard_after_forward=2");
    odd.unplanned(&["reshard_after_forward", "true or false"]);
    // The same bits, also where the parameters rest on the host.
    let train = |out: &str, sets: &[&str]| {
        let job = s.job("config.json").ranks(2).sets(sets);
        job.set("zero_optimization.stage=3").run(out);
    };
    train("true", &[]);
    train("false", &[set]);
    same(&s.path("true"), &s.path("false"));
    train(
        "host",
        &[
            set,
            "zero_optimization.offload_optimizer.device=cpu",
            "zero_optimization.offload_param.device=cpu",
        ],
    );
    same(&s.path("true"), &s.path("host"));
}

/// Buffers of collectives are as large as a unit, whatever the number of units (Cb).
#[test]
fn communication_buffers_are_the_same_for_ten_times_the_parameters() {
    let s = Scratch::new();
    for stage in ["1", "2", "3"] {
        let of = |layers: &str| {
            let layers = format!("model.n_layer={layers}");
            let stage = format!("zero_optimization.stage={stage}");
            let v = s.job("c.json").ranks(4).set(&layers).set(&stage).plan();
            let peak = v["memory"]["comm"]["peak"].as_u64().expect("bytes");
            (v["params"].as_u64().expect("a count"), peak)
        };
        s.write("c.json", config("gpt2", 0, 0, "bf16"));
        let (small, large) = (of("4"), of("80"));
        assert!(large.0 >= 10 * small.0, "{small:?} {large:?}");
        assert_eq!(small.1, large.1, "stage {stage}");
    }
}

#[test]
fn offloaded_states_are_foretold_where_they_rest() {
    let s = Scratch::new();
    s.write("c.json", config("gpt2", 0, 2, "bf16"));
    let base = s.job("c.json").ranks(4);
    let here = base.plan();
    let away = |device: &str| {
        let set = format!(
            r#"zero_optimization.offload_optimizer={{"device": "{device}", "nvme_path": "n"}}"#
        );
        base.clone().set(&set).plan()
    };
    let of = |v: &Value, tag: &str| v["memory"][tag]["bytes"].as_u64().unwrap_or(0);
    let shard = here["layout"]["shard"].as_u64().expect("a count");
    let rests = |v: &Value, what: &str| {
        let rows = v["offload"]["rows"].as_array().expect("rows");
        let row = rows.iter().find(|r| r["what"] == what);
        row.and_then(|r| r["bytes"].as_u64()).unwrap_or(0)
    };
    // 2P/N bytes out and 2P/N back; on their way to and from files they lie in blocks of states.
    for (device, out, back) in [("cpu", "grad", "param"), ("nvme", "moment", "moment")] {
        let v = away(device);
        assert_eq!((of(&v, "master"), of(&v, "moment")), (0, 0));
        assert_eq!(of(&v, "param"), of(&here, "param"));
        let moved = &v["transfers"];
        assert_eq!(moved["to_host"][out].as_u64(), Some(2 * shard));
        assert_eq!(moved["from_host"][back].as_u64(), Some(2 * shard));
    }
    let v = away("cpu");
    let states = ["master", "moment", "grad", "param"].map(|tag| rests(&v, tag));
    assert_eq!(states, [4 * shard, 8 * shard, 2 * shard, 2 * shard]);
    // Every file is whole pages, and a step reads and writes each state once.
    let v = away("nvme");
    let files = of(&v, "nvme");
    assert_eq!(rests(&v, "files"), files);
    assert!(files >= 12 * shard && files.is_multiple_of(4096), "{files}");
    let read = v["offload"]["files_a_step"]["read"].as_u64();
    assert!(read >= Some(12 * shard), "{v}");
    assert!(!s.path("n").exists(), "nothing is written to predict");
}

/// What rests where between steps, by the plan and by the ledger of the run.
#[test]
fn offloaded_states_rest_where_they_were_foretold() {
    let s = Scratch::new();
    for (stage, dtype, ratio) in [
        (1, "bf16", "1"),
        (3, "bf16", "0.5"),
        (3, "f32", "1"),
        (3, "bf16", "1"),
    ] {
        s.write("c.json", config("gpt2", 2, stage, dtype));
        let set =
            format!(r#"zero_optimization.offload_optimizer={{"device": "cpu", "ratio": {ratio}}}"#);
        let job = s.job("c.json").ranks(2).set(&set);
        let plan = job.plan();
        let out = format!("run-{stage}-{dtype}-{ratio}");
        job.run(&out);
        let memory = &ledger(&s.path(&out))["ranks"][0]["memory"];
        for tag in ["param", "master", "moment", "grad"] {
            let rests = memory["tags"][tag]["now"].as_u64().unwrap_or(0);
            let planned = plan["memory"][tag]["bytes"].as_u64().unwrap_or(0);
            assert_eq!(rests, planned, "{out}: {tag}, the run and the plan");
            let rests = memory["host"][tag]["now"].as_u64().unwrap_or(0);
            let rows = plan["offload"]["rows"].as_array().expect("rows");
            let planned = rows.iter().find(|r| r["what"] == tag);
            let planned = planned.and_then(|r| r["bytes"].as_u64()).unwrap_or(0);
            assert_eq!(
                rests, planned,
                "{out}: {tag} on the host, the run and the plan"
            );
        }
    }
}

/// Takes more than one slab of the pool in its first step; from the second on the memory of steps is one piece.
#[test]
fn memory_of_a_run_is_not_fragmented() {
    let s = Scratch::new();
    s.write(
        "c.json",
        r#"{"model": {"family": "gpt2", "vocab_size": 4000, "n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 256},
            "data": {"train": "corpus/*.txt", "cache_dir": "cache"}, "train_micro_batch_size_per_gpu": 8,
            "run": {"steps": 4, "threads_per_rank": 1, "generate": {"tokens": 0}}}"#,
    );
    s.job("c.json").run("run");
    let ledger = ledger(&s.path("run"));
    let rank = &ledger["ranks"][0];
    let memory = &rank["memory"];
    assert!(
        memory["tags"]["activation"]["peak"].as_u64() > Some(33 << 20),
        "{memory}"
    );
    assert!(
        memory["fragmentation"].as_f64().expect("a number") <= 0.05,
        "{memory}"
    );
    assert_eq!(rank["device_allocs_after_step_2"], 0);
    let held = memory["reserved"]["now"].as_f64().expect("bytes");
    let live = memory["total"]["peak"].as_f64().expect("bytes");
    // The pool grows by slabs of 32 MiB.
    assert!(
        held >= live && held <= live + f64::from(32 << 20),
        "{memory}"
    );
}

#[test]
fn thousands_of_ranks_and_hundreds_of_billions_are_foretold_at_once() {
    let s = Scratch::new();
    s.write(
        "big.json",
        r#"{"model": {"family": "gpt2", "vocab_size": 50257, "n_positions": 2048, "n_embd": 12288, "n_layer": 96, "n_head": 96},
            "data": {"train": "corpus/*.txt"}, "run": {"steps": 10}, "bf16": {"enabled": true},
            "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, "gradient_clipping": 1.0}"#,
    );
    let v = s.job("big.json").ranks(4096).plan();
    assert_eq!(v["params"].as_u64(), Some(174_604_259_328));
    let of = |tag: &str| v["memory"][tag]["bytes"].as_u64().expect("bytes");
    assert_eq!(of("param"), 2 * 174_604_259_328);
    assert_eq!(of("master") + of("moment"), 12 * 174_604_259_328);
    near(&v["volume_vs_ddp"], 1.0, 0.0);
}

/// When gradients of several micro-batches are reduced is a choice of memory or traffic: `plan` has both in figures, each what the other
/// prints when it is chosen; a run and `estimate` know it too.
#[test]
fn both_choices_of_reductions_are_priced() {
    let s = Scratch::new();
    s.write("c.json", config("llama", 1, 2, "f32"));
    // Units that are reduced for themselves: a bucket that holds all gradients holds them whole either way.
    let small = "zero_optimization.reduce_bucket_size=1";
    let job = |set: &str| s.job("c.json").ranks(4).set(set);
    let plan = |set: &str| job(small).set(set).plan()["gradients"].clone();
    let by = |choice: &str| plan(&format!("zero_optimization.reduce_gradients={choice}"));
    let [auto, each, step] = ["auto", "micro_batch", "step"].map(by);
    for (one, other) in [(&each, &step), (&step, &each)] {
        for key in ["reduced", "peak_bytes", "sent_bytes"] {
            assert_eq!(one["other"][key], other[key], "{key}");
        }
    }
    assert_eq!(auto["reduced"], "micro_batch");
    let n = |v: &Value, key: &str| v[key].as_u64().expect("bytes");
    assert_eq!(n(&each, "sent_bytes"), 2 * n(&step, "sent_bytes"));
    assert!(
        n(&each, "peak_bytes") < n(&step, "peak_bytes"),
        "{each} {step}"
    );
    // Nothing to choose: whole gradients, one micro-batch, one rank, stages that make `auto` keep to the step.
    assert!(plan("zero_optimization.stage=1").is_null());
    assert!(plan("gradient_accumulation_steps=1").is_null());
    let staged = job("mesh.pp=2").plan();
    assert_eq!(
        staged["gradients"]["reduced"], "step",
        "{}",
        staged["gradients"]
    );
    let of = |micro_batches: Option<u64>| {
        let what = Estimation {
            ranks: Ranks {
                ranks: Some(8),
                ..Ranks::default()
            },
            training: Training {
                stage: Some(2),
                micro_batches,
                ..Training::default()
            },
            ..Estimation::default()
        };
        json!(estimate("1B", &what, &Surroundings::default()).unwrap())
    };
    let (one, four) = (of(None), of(Some(4)));
    let second = |v: &Value| v["stages"][2].clone();
    assert_eq!(second(&one)["wire_formula"], "2P(N-1)/N");
    assert_eq!(second(&four)["wire_formula"], "(1+g)P(N-1)/N");
    near(&second(&four)["volume_vs_ddp"], 2.5, 1e-9);
    s.write(
        "once.json",
        config("llama", 1, 2, "f32")
            .replace(r#""stage": 2"#, r#""stage": 2, "reduce_gradients": "step""#),
    );
    let grad = |file: &str| {
        let v = s.estimate(file, Some(4), None);
        let rows = v["ledger"]["rows"].as_array().expect("rows").clone();
        let row = rows.into_iter().find(|r| r["what"] == "grad");
        n(&row.expect("gradients"), "bytes")
    };
    assert!(grad("once.json") >= 4 * grad("c.json") - 16);
}
