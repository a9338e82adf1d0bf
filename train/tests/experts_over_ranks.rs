//! `mesh.ep`: whole runs whose experts lie over ranks train as with all of them on each rank, sample, go on over other numbers of ranks, leave as
//! the folder they came from, and move what `plan` predicted; what cannot be is refused by key.

use crate::split::near;
use crate::support::oracles::{oracle, read};
use crate::support::{CONFIG, Job, Scratch, ledger, losses};
use crossweave_checkpoint::Checkpoint;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A config by steps of four rows in micro-batches of one, so that the losses of routers are of the same rows on all numbers of ranks.
fn config(model: Value, steps: u64) -> Value {
    let mut config: Value = serde_json::from_str(CONFIG).unwrap();
    config["model"] = model;
    config["train_batch_size"] = json!(4);
    config["data"] = json!({"train": "corpus/*.txt", "cache_dir": "cache", "seq_len": 16});
    config["gradient_clipping"] = json!(0.1);
    config["optimizer"] =
        json!({"type": "AdamW", "params": {"lr": 3e-3, "eps": 1e-4, "weight_decay": 0.1}});
    config["scheduler"] = Value::Null;
    config["run"] = json!({"steps": steps, "threads_per_rank": 1, "generate": {"tokens": 0}});
    config
}

/// Qwen3-MoE of six experts in two of four layers, of which a token has three.
fn qwen() -> Value {
    json!({"family": "qwen3_moe", "hidden_size": 16, "intermediate_size": 20, "moe_intermediate_size": 10, "num_experts": 6,
        "num_experts_per_tok": 3, "decoder_sparse_step": 2, "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 8, "max_position_embeddings": 64, "router_aux_loss_coef": 0.02})
}

/// Ranks, and keys of the mesh and of ZeRO.
type Mesh = (u32, &'static [&'static str]);

const MESHES: [Mesh; 5] = [
    (2, &["mesh.ep=2"]),
    (4, &["mesh.ep=2", "zero_optimization.stage=3"]),
    (
        4,
        &[
            "mesh.ep=2",
            "mesh.pp=2",
            "zero_optimization.stage=1",
            "model.recompute=\"full\"",
        ],
    ),
    (2, &["mesh.pp=2"]),
    (4, &["zero_optimization.stage=2"]),
];

/// Runs three steps over the first mesh of each pair and three over the second: as the run `whole` over one rank.
fn goes_on<'a>(s: &'a Scratch, job: &dyn Fn(Mesh, u64) -> Job<'a>, changes: &[(Mesh, Mesh)]) {
    for (i, (first, then)) in changes.iter().enumerate() {
        let [part, rest] = ["part", "rest"].map(|w| format!("{i}-{w}"));
        job(*first, 3).run(&part);
        job(*then, 6).resume(&part).run(&rest);
        let what = format!("over {first:?}, then {then:?}");
        near(s, &rest, "whole", &what);
        s.verify(&part);
    }
}

#[test]
fn a_run_goes_on_over_other_factors_and_leaves_as_it_came() {
    let s = Scratch::new();
    s.job_of(config(qwen(), 1)).run("base");
    let model = json!({"hf": "base/model"});
    let job = |(ranks, sets): Mesh, steps| {
        let job = s.job_of(config(model.clone(), steps));
        job.ranks(ranks).sets(sets)
    };
    job((1, &[]), 6).run("whole");
    let [two, four, staged, stages, dense] = MESHES;
    let changes = [
        (two, four),
        (four, staged),
        (staged, dense),
        (stages, two),
        (dense, staged),
    ];
    goes_on(&s, &job, &changes);
    // The folder in the form in which it came, with each expert in its place.
    let came = read(&s.path("base").join("model/model.safetensors"));
    let out = read(&s.path("0-rest").join("model/model.safetensors"));
    assert!(came.keys().eq(out.keys()));
    s.export("1-part", "exported", false).unwrap();
    assert!(
        came.keys()
            .eq(read(&s.path("exported/model.safetensors")).keys())
    );
}

/// Ranks that cut layers and rows, with experts whole on them or cut.
const BESIDE: [Mesh; 4] = [
    (4, &["mesh.tp=2", "mesh.ep=2"]),
    (
        4,
        &[
            "mesh.tp=2",
            "mesh.ep=2",
            "mesh.etp=1",
            "zero_optimization.stage=3",
            "model.recompute=\"full\"",
        ],
    ),
    (4, &["mesh.cp=2", "mesh.ep=2", "zero_optimization.stage=2"]),
    (
        8,
        &[
            "mesh.pp=2",
            "mesh.cp=2",
            "mesh.tp=2",
            "mesh.ep=2",
            "zero_optimization.stage=1",
        ],
    ),
];

#[test]
fn a_run_goes_on_over_ranks_that_cut_layers_and_rows() {
    let s = Scratch::new();
    let job = |(ranks, sets): Mesh, steps| s.job_of(config(qwen(), steps)).ranks(ranks).sets(sets);
    job((1, &[]), 6).run("whole");
    let [cut, folded, rows, all] = BESIDE;
    let [two, ..] = MESHES;
    let changes = [
        (cut, folded),
        (folded, rows),
        (rows, all),
        (all, two),
        (two, cut),
    ];
    goes_on(&s, &job, &changes);
    // Each expert in its place, of whichever parts it was.
    let [came, out] =
        ["whole", "0-rest"].map(|run| read(&s.path(run).join("model/model.safetensors")));
    assert!(came.keys().eq(out.keys()));
}

/// The six forms by which DeepSpeed names its mixtures of experts: experts (E) with data parallelism (D), ZeRO (Z), offload (Off) and layers that are
/// cut (M).
#[test]
fn the_six_forms_train_as_one_rank_does() {
    let s = Scratch::new();
    let job = |(ranks, sets): Mesh| s.job_of(config(qwen(), 4)).ranks(ranks).sets(sets);
    job((1, &[])).run("whole");
    let forms: [(&str, Mesh); 6] = [
        ("E", (2, &["mesh.ep=2"])),
        ("E+D", (4, &["mesh.ep=2"])),
        ("E+Z", (2, &["mesh.ep=2", "zero_optimization.stage=2"])),
        ("E+D+M", (4, &["mesh.ep=2", "mesh.tp=2", "mesh.etp=1"])),
        ("E+D+Z", (4, &["mesh.ep=2", "zero_optimization.stage=3"])),
        (
            "E+Z-Off+M",
            (
                4,
                &[
                    "mesh.ep=2",
                    "mesh.tp=2",
                    "mesh.etp=1",
                    "zero_optimization.stage=3",
                    "zero_optimization.offload_optimizer.device=\"cpu\"",
                    "zero_optimization.offload_param.device=\"cpu\"",
                ],
            ),
        ),
    ];
    for (form, mesh) in forms {
        job(mesh).run(form);
        near(&s, form, "whole", form);
    }
}

/// Stacks come from a folder of stacks, on each rank its own experts, and go back into one.
#[test]
fn stacks_of_a_folder_are_read_by_experts() {
    let s = Scratch::new();
    let config = json!({
        "model": {"hf": oracle("qwen3-moe-stacked").join("model")},
        "data": {"tokens": oracle("mixtral-v5/train.safetensors"), "key": "input_ids"},
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "eps": 1e-4}},
        "run": {"steps": 3, "threads_per_rank": 1, "generate": {"tokens": 0}},
    });
    s.job_of(config.clone()).run("whole");
    s.job_of(config).ranks(2).set("mesh.ep=2").run("two");
    near(&s, "two", "whole", "stacks");
    let out = read(&s.path("two").join("model/model.safetensors"));
    assert!(out.keys().any(|k| k.ends_with("mlp.experts.gate_up_proj")));
}

/// Rank 0 draws from its model, for which the ranks with the other experts run along; validation reads each sequence once.
#[test]
fn samples_and_validation_take_all_experts() {
    let s = Scratch::new();
    let mut config: Value = serde_json::from_str(CONFIG).unwrap();
    config["model"] = json!({"family": "llama", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 20, "max_position_embeddings": 64, "moe": {"experts": 4, "residual": true}});
    config["run"]["generate"] = json!({"tokens": 12, "temperature": 0.0});
    config["run"]["validate_every"] = json!(2);
    config["data"]["validation_fraction"] = json!(0.2);
    for (out, ranks, sets) in [
        ("dense", 2, &[][..]),
        ("ep", 2, &["mesh.ep=2"]),
        (
            "ep-3",
            4,
            &["mesh.ep=2", "mesh.pp=2", "zero_optimization.stage=3"],
        ),
    ] {
        s.job_of(config.clone()).ranks(ranks).sets(sets).run(out);
    }
    for other in ["ep", "ep-3"] {
        near(&s, other, "dense", other);
    }
    let texts = ["dense", "ep", "ep-3"].map(|run| {
        let text = std::fs::read_to_string(s.path(run).join("metrics.jsonl")).unwrap();
        let lines = text
            .lines()
            .map(|l| serde_json::from_str::<Value>(l).unwrap());
        let all: Vec<f64> = lines.filter_map(|l| l["val_loss"].as_f64()).collect();
        all
    });
    assert!(
        texts[0].len() > 1 && texts.iter().all(|t| t.len() == texts[0].len()),
        "{texts:?}"
    );
    for other in &texts[1..] {
        for (a, b) in other.iter().zip(&texts[0]) {
            assert!((a - b).abs() < 1e-4 * b, "{texts:?}");
        }
    }
}

/// What a run moves of weights and gradients is what `plan` says; rows of experts follow from data, and are said as many as balanced ones are.
#[test]
fn plans_say_what_is_known_and_what_is_balanced() {
    let s = Scratch::new();
    let job = s
        .job_of(config(qwen(), 2))
        .ranks(4)
        .sets(&["mesh.ep=2", "zero_optimization.stage=3"]);
    let plan = job.plan();
    job.run("run");
    let rows = |of: &Value| -> Vec<Value> { of.as_array().unwrap().clone() };
    let sum = |lines: &[Value], tag: &str, group: &str| -> (u64, u64) {
        let hit = lines
            .iter()
            .filter(|l| l["tag"] == tag && l["group"] == group);
        hit.fold((0, 0), |(c, w), l| {
            (
                c + l["calls"].as_u64().unwrap(),
                w + l["wire_elements"].as_u64().unwrap(),
            )
        })
    };
    let planned = rows(&plan["collectives"]);
    let (calls, elements) = sum(&planned, "experts", "ep");
    // Two layers of experts: counts, rows there and back, and the same in the backward.
    assert_eq!(calls, 2 * 5);
    assert!(elements > 0);
    let (of_experts, _) = sum(&planned, "param", "edp");
    assert!(of_experts > 0, "{planned:?}");
    let ran = ledger(&s.path("run"));
    let lines = rows(&ran["ranks"][0]["collectives"]);
    let (calls, _) = sum(&lines, "experts", "ep");
    assert_eq!(calls, 2 * 2 * 5, "{lines:?}");
    // Rows of 16 tokens to three experts each, of which two ranks have three.
    let of = &plan["rows_of_experts"];
    assert_eq!(
        [&of["balanced"], &of["planned"], &of["most"]].map(|n| n.as_u64().unwrap()),
        [48, 96, 96]
    );
    let axes = rows(&plan["traffic"]);
    assert!(axes.iter().any(|a| a["axis"] == "ep"), "{axes:?}");
    assert!(losses(&s.path("run")).len() == 2);
}

#[test]
fn meshes_without_room_for_experts_are_refused_by_key() {
    let s = Scratch::new();
    let job = |ranks: u32| {
        let job = s.job_of(config(qwen(), 1)).ranks(ranks);
        job.set("train_batch_size=null")
    };
    job(4).set("mesh.ep=4").refused(&[
        "mesh.ep",
        "4 ranks do not divide the 6 experts",
        "1, 2, 3, 6",
    ]);
    job(3)
        .set("mesh.ep=2")
        .refused(&["mesh.ep", "2 does not divide the 3 places", "fix: "]);
    job(4)
        .sets(&["mesh.ep=2", "mesh.tp=2", "mesh.sequence_parallel=false"])
        .refused(&["mesh.sequence_parallel", "each send them", "mesh.tp to 1"]);
    job(4)
        .sets(&["mesh.ep=2", "mesh.tp=2", "data.seq_len=15"])
        .refused(&["mesh.sequence_parallel", "15 tokens", "16 tokens long"]);
    // An expert is 10 wide.
    job(4)
        .set("mesh.etp=4")
        .refused(&["mesh.etp", "do not divide the inner width", "1, 2"]);
    job(4)
        .sets(&["mesh.ep=3", "mesh.etp=2"])
        .refused(&["mesh.ep", "3 does not divide the 2 places"]);
    job(2)
        .sets(&["mesh.ep=2", "run.canonical_shards=4"])
        .refused(&["run.canonical_shards", "mesh.ep"]);
    job(2)
        .sets(&["mesh.ep=2", "run.balance=\"3,1\""])
        .refused(&["run.balance", "mesh.ep"]);
    let dense =
        json!({"family": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 16});
    let dense = s.job_of(config(dense, 1)).ranks(2).set("mesh.ep=2");
    dense.refused(&["mesh.ep", "no experts", "model.moe"]);
}

/// Memory is planned for as many times the balanced rows as the config says.
#[test]
fn room_for_rows_is_planned_by_its_key() {
    let s = Scratch::new();
    let job = || {
        let job = s.job_of(config(qwen(), 2)).ranks(2);
        job.set("mesh.ep=2")
    };
    for (room, planned) in [("1", 48), ("1.5", 72), ("9", 96)] {
        let plan = job().set(&format!("mesh.ep_room={room}")).plan();
        let of = &plan["rows_of_experts"];
        let found = [&of["balanced"], &of["planned"], &of["most"]].map(|n| n.as_u64().unwrap());
        assert_eq!(found, [48, planned, 96], "{of}");
    }
    job().set("mesh.ep_room=0.5").refused(&["mesh.ep_room"]);
}

/// Where a device has no memory for the rows that come, forward or backward, the error has the layer, the rank and the rows.
#[test]
fn rows_that_find_no_memory_are_named() {
    // Faults of one device: a linked back end has the devices that the first job of a process asks for.
    crossweave_tests::in_own_process!();
    let s = Scratch::new();
    // Of layers with experts there are two, of two products each: four forward, and as many of gradients of rows backward.
    for (k, (fault, layer)) in [
        ("collective:all_to_all_v:1:oom@1", "model.layers.1"),
        ("launch:grouped_matmul:1:oom@1", "model.layers.1"),
        ("launch:grouped_matmul:5:oom@1", "model.layers.3"),
        ("launch:grouped_matmul:8:oom@1", "model.layers.1"),
    ]
    .into_iter()
    .enumerate()
    {
        let job = s.job_of(config(qwen(), 2)).ranks(2).set("mesh.ep=2");
        let tried = job
            .layer(&format!("fault={fault}"))
            .tried(&format!("never-{k}"));
        let said = tried.expect_err(fault).to_string();
        for part in [
            "rank 1",
            layer,
            " rows have come to the experts of this rank, where 48 would if all had as many",
            "fix: smaller micro-batches",
        ] {
            assert!(said.contains(part), "{fault}: {part}: {said}");
        }
    }
}

/// Moments of experts have been left behind, or were taken from the experts of other ranks, where a checkpoint was converted for other ranks
/// (deepspeedai/DeepSpeed#8147). Here every element of every state is converted as it is, and goes on with its expert over any mesh.
#[test]
fn deepspeed_8147_moments_of_experts_go_where_their_experts_go() {
    let s = Scratch::new();
    type States = BTreeMap<String, Vec<u8>>;
    let states = |run: &str| -> States {
        let saved = Checkpoint::open(s.path(run)).unwrap();
        let layout = saved.manifest().layout.keys();
        let names = layout.filter(|n| n.contains(".experts.") || n.contains(".gate."));
        names
            .map(|n| (n.clone(), saved.logical(n).unwrap()))
            .collect()
    };
    let far = |a: &States, b: &States| -> f64 {
        let floats = |bytes: &[u8]| -> Vec<f64> {
            let each = bytes.as_chunks::<4>().0.iter();
            each.map(|w| f32::from_le_bytes(*w).into()).collect()
        };
        assert!(a.keys().eq(b.keys()));
        let each = a.iter().map(|(name, x)| {
            let (x, y) = (floats(x), floats(&b[name]));
            let top = y.iter().fold(0f64, |m, v| m.max(v.abs()));
            assert!(top > 0.0, "{name} is zero");
            let far = x.iter().zip(&y).map(|(a, b)| (a - b).abs());
            far.fold(0.0, f64::max) / top
        });
        each.fold(0.0, f64::max)
    };
    for (stage, (ranks, mesh), (others, then)) in [
        ("zero_optimization.stage=1", MESHES[0], BESIDE[0]),
        ("zero_optimization.stage=2", BESIDE[1], MESHES[0]),
    ] {
        let job = |ranks, mesh, steps| {
            let job = s.job_of(config(qwen(), steps)).ranks(ranks);
            job.sets(mesh).set(stage)
        };
        let [begun, whole, rest] = ["begun", "whole", "rest"].map(|run| format!("{stage}-{run}"));
        job(ranks, mesh, 3).run(&begun);
        let saved = states(&begun);
        for kind in ["value", "moment1", "moment2"] {
            let of = saved.keys().filter(|n| n.starts_with(kind)).count();
            // Two layers with two stacks and a router each.
            assert_eq!(of, 6, "{kind}: {:?}", saved.keys());
        }
        for ranks in [1, 3] {
            let out = format!("{begun}-{ranks}");
            s.reshard(&begun, &out, ranks, Some(1)).unwrap();
            assert!(states(&out) == saved, "{out}");
        }
        // One step further on another mesh, states are those of a run that stayed.
        job(ranks, mesh, 4).run(&whole);
        job(others, then, 4).resume(&begun).run(&rest);
        let [stayed, went] = [&whole, &rest].map(|run| states(run));
        let apart = far(&went, &stayed);
        assert!(apart < 1e-4, "{stage}: {apart:e}");
        assert!(far(&saved, &stayed) > 1e-2, "a step moves them");
    }
}
