//! `estimate` and `plan` of the same job on a mesh: what a rank has, and what it sends over each axis by which link, against formulas
//! worked out by hand and against each other.

use crate::support::Scratch;
use serde_json::{Value, json};

/// One job: axes, ZeRO stage, micro-batches, layers recomputed.
struct Case {
    tp: u64,
    pp: u64,
    dp: u64,
    stage: u64,
    g: u64,
    full: bool,
}

const H: u64 = 768;
const LAYERS: u64 = 12;
const VOCAB: u64 = 50_304;
const SEQ: u64 = 1024;
const BATCH: u64 = 2;

const fn case(tp: u64, pp: u64, dp: u64, stage: u64, g: u64, full: bool) -> Case {
    Case {
        tp,
        pp,
        dp,
        stage,
        g,
        full,
    }
}

const CONFIG: &str = r#"{"model": {"family": "gpt2", "vocab_size": 50304, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12},
    "data": {"train": "corpus/*.txt"}, "run": {"steps": 10}, "bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 2}"#;

const CASES: [Case; 14] = [
    case(1, 1, 8, 0, 1, false),
    case(1, 1, 16, 3, 2, false),
    case(2, 1, 1, 0, 1, false),
    case(2, 1, 4, 1, 2, false),
    case(2, 1, 8, 2, 2, false),
    case(4, 1, 8, 3, 2, false),
    case(4, 1, 2, 3, 1, true),
    case(6, 1, 2, 1, 3, true),
    case(12, 1, 1, 0, 1, false),
    case(1, 2, 4, 1, 4, false),
    case(1, 4, 2, 0, 4, true),
    case(2, 2, 2, 1, 4, false),
    case(4, 2, 4, 0, 2, false),
    case(2, 7, 1, 0, 7, true),
];

fn near(got: f64, want: f64, within: f64, what: &str) {
    assert!(
        (got - want).abs() <= within * want.abs() + 8.0,
        "{what}: {got}, worked out {want}"
    );
}

#[test]
fn axes_move_what_the_formulas_say_over_the_link_that_they_are_on() {
    let s = Scratch::new();
    s.write("config.json", CONFIG);
    for c in &CASES {
        let Case {
            tp,
            pp,
            dp,
            stage,
            g,
            full,
        } = *c;
        let what = format!("tp {tp} pp {pp} dp {dp} stage {stage} g {g} full {full}");
        let ranks = tp * pp * dp;
        let recompute = if full { "full" } else { "none" };
        let sets = [
            ("mesh", "tp", json!(tp)),
            ("mesh", "pp", json!(pp)),
            ("zero_optimization", "stage", json!(stage)),
            ("", "gradient_accumulation_steps", json!(g)),
            ("model", "recompute", json!(recompute)),
        ];
        // An estimate is of a file, and a plan of the same.
        let mut config: Value = serde_json::from_str(CONFIG).expect("JSON");
        for (section, key, value) in sets {
            match section {
                "" => config[key] = value,
                section => config[section][key] = value,
            }
        }
        s.write("job.json", config.to_string());
        let e = s.estimate("job.json", Some(ranks), Some("h100"));
        let p = s.job("job.json").ranks(ranks).plan_on("h100");
        let row = |v: &Value, axis: &str| -> Option<Value> {
            let rows = v["traffic"].as_array()?.iter();
            rows.into_iter().find(|r| r["axis"] == axis).cloned()
        };
        let bytes = |v: &Value, axis: &str| {
            row(v, axis).map_or(0.0, |r| r["bytes"].as_f64().expect("bytes"))
        };
        // What stage 0 has of the model: blocks, norms whole and matrices cut, rows of the vocabulary, positions.
        let block = |t: u64| 12 * H * H / t + (3 * H + 4 * H) / t + 2 * H + 4 * H;
        let layers_here = e["mesh"]["layers_on_a_rank"].as_u64().unwrap_or(LAYERS);
        if pp == 1 {
            let here = LAYERS * block(tp) + VOCAB.div_ceil(tp) * H + SEQ * H + 2 * H;
            let found = e["mesh"]["params_on_a_rank"]
                .as_u64()
                .unwrap_or(e["model"]["params"].as_u64().expect("n"));
            near(found as f64, here as f64, 1e-3, &what);
            let n = dp as f64;
            let (part, p4, p2) = ((n - 1.0) / n, 4.0 * found as f64, 2.0 * found as f64);
            let (gf, reduced) = (g as f64, if stage >= 2 { g as f64 } else { 1.0 });
            let want = match stage {
                0 => 2.0 * p4 * part,
                3 => (reduced * p4 + 2.0 * gf * p2) * part,
                _ => (reduced * p4 + p2) * part,
            };
            if tp > 1 {
                near(
                    bytes(&e, "dp"),
                    if dp > 1 { want } else { 0.0 },
                    1e-9,
                    &what,
                );
            }
            near(
                bytes(&p, "dp"),
                if dp > 1 { want } else { 0.0 },
                2e-2,
                &what,
            );
        }
        let flow = (BATCH * SEQ * H * 2) as f64;
        // By default tokens are cut where the ranks divide them.
        let pieces = tp > 1 && SEQ.is_multiple_of(tp);
        if tp > 1 {
            let part = (tp - 1) as f64 / tp as f64;
            // Hidden states of a layer, of the table, of the head, and numbers a token of the loss.
            let [layer, table, head, loss] = match (full, pieces) {
                (false, false) => [8, 2, 2, 2],
                (true, false) => [12, 4, 2, 4],
                (false, true) => [10, 2, 3, 2],
                (true, true) => [12, 3, 3, 4],
            };
            // The stage that the pages show is the fullest; in these cases the first.
            let last = u64::from(pp == 1);
            let each = (layer * layers_here + table + last * head) as f64 * flow;
            let each = each + (last * loss * BATCH * SEQ * (tp + 1) * 2) as f64;
            near(bytes(&e, "tp"), g as f64 * part * each, 1e-9, &what);
        }
        // A plan shows the same, where it takes the same stage for the fullest.
        if pp == 1 || p["pipeline"]["fullest_stage"] == 0 {
            near(bytes(&e, "tp"), bytes(&p, "tp"), 2e-2, &what);
            near(bytes(&e, "pp"), bytes(&p, "pp"), 2e-2, &what);
            parts_are_worked_out(&p, c, layers_here, pieces, &what);
        }
        if pp > 1 {
            let own = flow / if pieces { tp as f64 } else { 1.0 };
            assert_eq!(bytes(&e, "pp"), g as f64 * own, "{what}");
        }
        // A node has 8 ranks, tp fastest: an axis lies in it where it reaches no further.
        for (axis, reach) in [("tp", tp), ("dp", tp * dp), ("pp", tp * dp * pp)] {
            if let Some(r) = row(&e, axis) {
                let link = if reach <= 8 {
                    "within a node"
                } else {
                    "between nodes"
                };
                assert_eq!(r["link"], link, "{what}: {axis}");
                let rate = if reach <= 8 { 450e9 } else { 50e9 };
                near(
                    r["seconds"].as_f64().expect("s") * rate,
                    bytes(&e, axis),
                    1e-9,
                    &what,
                );
            }
        }
    }
}

/// Attention and MLP beside each other share their gathers and sums as far as they can, and key-value heads that several ranks share are gathered:
/// an estimate counts what a plan counts.
#[test]
fn parallel_layers_and_shared_heads_are_estimated_as_they_are_planned() {
    let s = Scratch::new();
    let model = |family: &str, more: Value| {
        let mut m = json!({"family": family, "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 3,
            "num_attention_heads": 8, "max_position_embeddings": 64});
        m.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        m
    };
    for (name, model) in [
        ("one input", model("phi", json!({"intermediate_size": 256}))),
        (
            "two inputs",
            model("gpt_neox", json!({"intermediate_size": 256})),
        ),
        (
            "dropout between",
            model(
                "gpt_neox",
                json!({"intermediate_size": 256, "hidden_dropout": 0.1}),
            ),
        ),
        (
            "shared heads",
            model(
                "llama",
                json!({"intermediate_size": 256, "num_key_value_heads": 1}),
            ),
        ),
        (
            "both ways",
            model("bert", json!({"intermediate_size": 256})),
        ),
    ] {
        let mut kept = vec![];
        for (pieces, recompute, in_parts) in [
            (true, "none", false),
            (false, "none", false),
            (true, "full", false),
            (false, "full", false),
            (false, "full", true),
            (true, "full", true),
        ] {
            let mut model = model.clone();
            model["recompute"] = json!(recompute);
            let config = json!({"model": model, "data": {"train": "corpus/*.txt", "seq_len": 64}, "run": {"steps": 10},
                "train_micro_batch_size_per_gpu": 2, "mesh": {"tp": 4, "sequence_parallel": pieces},
                "activation_checkpointing": {"partition_activations": in_parts},
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}});
            s.write("job.json", config.to_string());
            let e = s.estimate("job.json", Some(4), None);
            let p = s.job("job.json").ranks(4).plan();
            if recompute == "full" {
                kept.push(e["activations"]["bytes"].as_f64().expect("bytes"));
            }
            let row = |v: &Value| -> Value {
                let mut rows = v["traffic"].as_array().expect("rows").iter();
                rows.find(|r| r["axis"] == "tp").expect("tp").clone()
            };
            let (e, p) = (row(&e), row(&p));
            // Sums of gradients and of figures are not among what is estimated.
            let other = ["gradients", "figures"];
            let parts = p["parts"].as_array().expect("parts").iter();
            let own = parts.filter(|p| !other.contains(&p["what"].as_str().expect("a word")));
            let own: u64 = own.map(|p| p["elements"].as_u64().expect("elements")).sum();
            let got = e["elements"].as_f64().expect("elements");
            near(
                got,
                own as f64,
                1e-6,
                &format!("{name}, {pieces}, {recompute}, {in_parts}"),
            );
        }
        // Of inputs in parts a rank keeps a quarter of whole ones, as of tokens that are cut: 2sbh, of four layers or what there are.
        let [_, whole, parts, _] = kept[..] else {
            panic!("{kept:?}")
        };
        let layers = model["num_hidden_layers"].as_u64().expect("layers");
        let inputs = (layers * 2 * 64 * 2 * model["hidden_size"].as_u64().expect("a width")) as f64;
        near(whole - parts, inputs * 3.0 / 4.0, 1e-6, name);
    }
}

/// Experts over ranks: of each kind of parameters what its own ranks leave a rank, and over each axis what a plan has where all experts get as many rows.
#[test]
fn experts_over_ranks_are_estimated_as_they_are_planned() {
    let s = Scratch::new();
    let qwen = || {
        json!({"family": "qwen3_moe", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32,
            "num_experts": 8, "num_experts_per_tok": 2, "decoder_sparse_step": 2, "num_hidden_layers": 4, "num_attention_heads": 8,
            "num_key_value_heads": 4, "head_dim": 8, "max_position_embeddings": 64})
    };
    let llama = |moe: Value| {
        json!({"family": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
            "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 64, "moe": moe})
    };
    let residual = || llama(json!({"experts": "0,8,0,8", "residual": true, "width": 32}));
    let by_rows = || llama(json!({"experts": 8, "capacity_factor": 1.5, "width": 32}));
    let together = || {
        llama(
            json!({"experts": 8, "capacity_factor": 1.5, "width": 32, "capacity_scope": "micro_batch", "priority": "position",
            "aux_loss_scope": "micro_batch"}),
        )
    };
    let cases: [(Value, u64, Value, u64, bool); 11] = [
        (qwen(), 4, json!({"ep": 2}), 0, false),
        (qwen(), 8, json!({"ep": 4}), 3, true),
        (residual(), 4, json!({"ep": 4}), 2, false),
        (by_rows(), 4, json!({"ep": 2}), 1, true),
        (qwen(), 8, json!({"tp": 2, "ep": 4, "etp": 1}), 1, false),
        (residual(), 8, json!({"tp": 2, "ep": 2}), 3, true),
        (by_rows(), 8, json!({"tp": 2, "ep": 2}), 2, false),
        (
            together(),
            8,
            json!({"tp": 2, "cp": 2, "ep": 2, "etp": 1}),
            0,
            true,
        ),
        (qwen(), 4, json!({"tp": 2, "etp": 1}), 2, false),
        (by_rows(), 4, json!({"cp": 2, "ep": 2}), 3, false),
        (qwen(), 4, json!({"ep": 2, "pp": 2}), 1, false),
    ];
    for (mut model, ranks, mesh, stage, full) in cases {
        let what = format!("{model}, {ranks} ranks, {mesh}, stage {stage}, {full}");
        let length = |axis: &str| mesh[axis].as_u64().unwrap_or(1);
        model["recompute"] = json!(if full { "full" } else { "none" });
        let config = json!({"model": model, "data": {"train": "corpus/*.txt", "seq_len": 64}, "run": {"steps": 10}, "mesh": mesh,
            "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": stage},
            "bf16": {"enabled": stage % 2 == 1}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}});
        s.write("job.json", config.to_string());
        let e = s.estimate("job.json", Some(ranks), None);
        let p = s.job("job.json").ranks(ranks).plan();
        let number = |v: &Value| v.as_f64().expect("a number");
        // What is shared by which ranks.
        let experts = &e["mesh"]["experts"];
        let [ep, etp] = [length("ep"), mesh["etp"].as_u64().unwrap_or(length("tp"))];
        let edp = ranks / length("pp") / ep / etp;
        assert_eq!(
            [&experts["ep"], &experts["etp"], &experts["edp"]],
            [ep, etp, edp],
            "{what}"
        );
        let held = number(&experts["params_on_a_rank"]);
        let dense = number(&e["mesh"]["params_on_a_rank"]) - held;
        if length("pp") == 1 {
            let layers = if model["moe"]["experts"] == 8 { 4 } else { 2 };
            assert_eq!(held as u64, layers * 8 * 3 * 64 * 32 / ep / etp, "{what}");
        } else {
            // The first stage, which a plan shows too.
            assert_eq!(p["pipeline"]["fullest_stage"], 0, "{what}");
        }
        // Units are padded in a plan, each by fewer elements than its ranks.
        let data = (ranks / length("pp") / length("tp")) as f64;
        let share = held / edp as f64 + dense / data;
        near(number(&p["layout"]["shard"]), share, 1e-3, &what);
        let share = if stage == 0 { held + dense } else { share };
        let mut rows = e["ledger"]["rows"].as_array().expect("rows").iter();
        let moments = rows.find(|r| r["what"] == "moment1").expect("moments");
        near(number(&moments["bytes"]), 4.0 * share, 1e-6, &what);
        // What goes over each axis, but for sums of figures, and over `tp` of norms and routers.
        let planned = p["traffic"].as_array().expect("rows");
        let estimated = e["traffic"].as_array().expect("rows");
        let names = |rows: &[Value]| -> Vec<String> {
            let mut all: Vec<_> = rows.iter().map(|r| r["axis"].to_string()).collect();
            all.sort();
            all
        };
        // Of all that have the same layers a plan has figures alone.
        let figures = |r: &Value| {
            r["parts"]
                .as_array()
                .is_some_and(|p| p.len() == 1 && p[0]["what"] == "figures")
        };
        let several = planned.iter().filter(|r| r["ranks"] != 1 && !figures(r));
        let all: Vec<Value> = several.cloned().collect();
        assert_eq!(names(&all), names(estimated), "{what}");
        for row in estimated {
            let axis = row["axis"].as_str().expect("a name");
            let of = all.iter().find(|r| r["axis"] == axis).expect("planned");
            let other: &[&str] = if axis == "tp" {
                &["gradients", "figures"]
            } else {
                &["figures"]
            };
            let parts = of["parts"].as_array().expect("parts").iter();
            let own = parts.filter(|p| !other.contains(&p["what"].as_str().expect("a word")));
            let own: Vec<&Value> = own.collect();
            // Slices of gradients and parameters have padding. A layer sums the norms of single heads of Qwen, a loss has f32, and tallies travel behind hidden states.
            let within = match axis {
                "ep" | "etp" | "cp" => 1e-6,
                "tp" | "pp" => 1e-2,
                _ => 1e-3,
            };
            for kind in ["elements", "bytes"] {
                let sum: f64 = own.iter().map(|p| number(&p[kind])).sum();
                near(
                    number(&row[kind]),
                    sum,
                    within,
                    &format!("{what}: {axis}, {kind}"),
                );
            }
        }
    }
}

/// Elements that a plan says a rank sends over `mesh.tp`, by what for.
fn parts_are_worked_out(p: &Value, c: &Case, layers: u64, pieces: bool, what: &str) {
    if c.tp == 1 {
        return;
    }
    let rows = p["traffic"].as_array().expect("rows").iter();
    let tp = rows.into_iter().find(|r| r["axis"] == "tp").expect("tp");
    let elements = |name: &str| -> u64 {
        let mut parts = tp["parts"].as_array().expect("parts").iter();
        let part = parts.find(|p| p["what"] == name);
        part.map_or(0, |p| p["elements"].as_u64().expect("elements"))
    };
    let w = c.g * BATCH * SEQ * H * (c.tp - 1) / c.tp;
    let token = c.g * BATCH * SEQ * (c.tp - 1) / c.tp;
    let [layer, table, head, loss] = match (c.full, pieces) {
        (false, false) => [8, 2, 2, 2],
        (true, false) => [12, 4, 2, 4],
        (false, true) => [10, 2, 3, 2],
        (true, true) => [12, 3, 3, 4],
    };
    let last = u64::from(c.pp == 1);
    for (name, want) in [
        ("layers", layer * layers * w),
        ("table", table * w),
        ("head", last * head * w),
        ("loss", last * loss * token * (c.tp + 1)),
    ] {
        near(
            elements(name) as f64,
            want as f64,
            1e-5,
            &format!("{what}: {name}"),
        );
    }
    // Norms see other tokens on each rank: their gradients are summed over the slices that ZeRO leaves to a rank.
    assert_eq!(elements("gradients") > 0, pieces, "{what}");
    let all = ["layers", "table", "head", "loss", "gradients", "figures"];
    let sum = all.map(elements);
    assert_eq!(tp["elements"], sum.iter().sum::<u64>(), "{what}");
}
