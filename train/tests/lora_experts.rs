//! Adapters on stacks of experts (`model.lora.target_parameters`, PEFT's key) in whole runs: over ranks, ZeRO and resumes they train as on one
//! rank, what a run leaves is the folder that PEFT would write, and what cannot be adapted is refused by key.

use crate::split::near;
use crate::support::oracles::{error, oracle, raw, read, written};
use crate::support::{Scratch, names, open_json};
use crossweave_hal::DType;
use serde_json::{Value, json};

const STACKS: [&str; 2] = ["gate_up_proj", "experts.down_proj"];

/// Steps of four rows in micro-batches of one, so that the losses of routers are of the same rows on all numbers of ranks.
fn config(lora: Value, steps: u64) -> Value {
    json!({
        "model": {"hf": "base", "lora": lora},
        "data": {"tokens": oracle("mixtral-v5/train.safetensors"), "key": "input_ids"},
        "train_batch_size": 2, "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-2, "eps": 1e-4}},
        "run": {"steps": steps, "threads_per_rank": 1, "generate": {"tokens": 0}},
    })
}

/// A Mixtral of four experts at `base`, and adapters of both stacks and of queries.
fn with_base(s: &Scratch) -> Value {
    let mut begun = config(Value::Null, 1);
    begun["model"] = json!({"family": "mixtral", "vocab_size": 48, "hidden_size": 16, "intermediate_size": 12, "num_local_experts": 4,
        "num_experts_per_tok": 2, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
        "max_position_embeddings": 64, "init": {"std": 0.2}});
    s.job_of(begun).run("begun");
    std::fs::rename(s.path("begun/model"), s.path("base")).unwrap();
    config(
        json!({"r": 3, "alpha": 5, "target_modules": ["q_proj"], "target_parameters": STACKS}),
        6,
    )
}

#[test]
fn a_run_goes_on_over_ranks_that_have_other_experts_and_parts_of_them() {
    let s = Scratch::new();
    let config = with_base(&s);
    let job = |steps| s.job_of(config.clone()).steps(steps);
    job(6).run("whole");
    let over: [(u32, &[&str]); 5] = [
        (2, &["mesh.ep=2", "zero_optimization.stage=2"]),
        (2, &["mesh.pp=2", "zero_optimization.stage=1"]),
        (
            2,
            &[
                "mesh.ep=2",
                "zero_optimization.stage=3",
                "model.recompute=\"full\"",
            ],
        ),
        (2, &["mesh.etp=2", "zero_optimization.stage=2"]),
        (4, &["mesh.pp=2", "mesh.etp=2"]),
    ];
    for (i, (ranks, sets)) in over.iter().enumerate() {
        let (part, rest) = (format!("{i}-part"), format!("{i}-rest"));
        job(3).ranks(ranks).sets(sets).run(&part);
        let (ranks, sets) = over[(i + 1) % over.len()];
        job(6).ranks(ranks).sets(sets).resume(&part).run(&rest);
        near(&s, &rest, "whole", &rest);
    }
    let seen = s.inspect("0-part");
    let tensors = seen["checkpoints"][0]["tensors"].as_object().unwrap();
    assert!(tensors.keys().all(|k| k.contains(".lora_")));
}

#[test]
fn what_a_run_leaves_is_pefts_folder_and_merges_into_each_expert() {
    let s = Scratch::new();
    let config = with_base(&s);
    s.job_of(config.clone()).run("a");
    let folder = s.path("a/model");
    let told = open_json(&folder.join("adapter_config.json"));
    assert_eq!(told["target_parameters"], json!(STACKS));
    assert_eq!(told["target_modules"], json!(["q_proj"]));
    let left = read(&folder.join("adapter_model.safetensors"));
    let shape = |name: &str| {
        let layer = "base_model.model.model.layers.1.";
        left[&format!("{layer}{name}.weight")].1.clone()
    };
    // The last of the module's stacks wraps the first.
    assert_eq!(shape("mlp.experts.base_layer.lora_A"), [4 * 3, 16]);
    assert_eq!(shape("mlp.experts.base_layer.lora_B"), [2 * 12, 3 * 4]);
    assert_eq!(shape("mlp.experts.lora_A"), [4 * 3, 12]);
    assert_eq!(shape("mlp.experts.lora_B"), [16, 3 * 4]);
    assert_eq!(left.len(), 2 * 6);

    // PEFT's sum over experts, by its own reading of the file, is what --merge adds to each.
    s.export("a", "merged", true).unwrap();
    let [base, merged] = ["base", "merged"].map(|f| read(&s.path(f).join("model.safetensors")));
    assert!(base.keys().eq(merged.keys()));
    let (name, r, experts) = ("base_model.model.model.layers.0.mlp.experts", 3, 4);
    let [a, b] = ["lora_A", "lora_B"].map(|m| &left[&format!("{name}.{m}.weight")].2);
    for e in 0..experts {
        let name = format!("model.layers.0.block_sparse_moe.experts.{e}.w2.weight");
        let (before, after) = (&base[&name].2, &merged[&name].2);
        let mut moved = 0f64;
        for (i, (x, y)) in before.iter().zip(after).enumerate() {
            let (o, input) = (i / 12, i % 12);
            let of = |k: usize| b[o * r * experts + k * experts + e] * a[(e * r + k) * 12 + input];
            let update = 5.0 / 3.0 * (0..r).map(of).sum::<f64>();
            assert!(
                (x + update - y).abs() < 1e-6,
                "{name} {i}: {x} {update} {y}"
            );
            moved = moved.max(update.abs());
        }
        assert!(moved > 1e-3, "{name}: {moved:e}");
    }
    let ids = oracle("mixtral-v5/inputs.safetensors");
    let logits = |model: &str| {
        s.probe(&s.path(model), &ids, DType::F32, "o.safetensors")
            .unwrap();
        read(&s.path("o.safetensors"))["logits"].2.clone()
    };
    let far = error(&logits("merged"), &logits("a/model"));
    assert!(far < 1e-5, "{far:e}");
    assert!(error(&logits("base"), &logits("a/model")) > 1e-3);

    // Another run begins with what the file holds, and leaves the same bytes.
    let mut on = config.clone();
    on["model"] = json!({"hf": "a/model"});
    on["optimizer"]["params"]["lr"] = json!(0.0);
    s.job_of(on).steps(1).ranks(2).set("mesh.ep=2").run("b");
    let [a, b] = ["a", "b"]
        .map(|run| std::fs::read(s.path(run).join("model/adapter_model.safetensors")).unwrap());
    assert!(a == b);
    s.export("a", "again", false).unwrap();
    assert!(a == std::fs::read(s.path("again/adapter_model.safetensors")).unwrap());
}

/// Experts of `model.moe` are no class of `transformers`; their stacks are adapted all the same, here alone.
#[test]
fn experts_of_another_family_are_adapted() {
    let s = Scratch::new();
    let mut begun = config(Value::Null, 1);
    begun["model"] = json!({"family": "llama", "vocab_size": 48, "hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "init": {"std": 0.2},
        "moe": {"experts": "0,4", "residual": true, "capacity_factor": 1.5}});
    s.job_of(begun).run("begun");
    std::fs::rename(s.path("begun/model"), s.path("base")).unwrap();
    let lora =
        json!({"r": 2, "target_modules": [], "target_parameters": ["experts.up", "experts.down"]});
    let job = s.job_of(config(lora, 4));
    job.clone().run("whole");
    job.ranks(2)
        .sets(&["mesh.ep=2", "zero_optimization.stage=3"])
        .run("two");
    near(&s, "two", "whole", "model.moe");
    let left = read(&s.path("two/model/adapter_model.safetensors"));
    let layer = "base_model.model.model.layers.1.moe.experts";
    let wanted = [".base_layer", ""].map(|n| format!("{layer}{n}.lora_A.weight"));
    assert!(left.keys().filter(|k| k.contains("_A")).eq(&wanted));
}

#[test]
fn what_cannot_be_adapted_is_refused_by_key() {
    let s = Scratch::new();
    let base = with_base(&s);
    let refused = |lora: Value, sets: &[&str], ranks: u32, parts: &[&str]| {
        let mut config = base.clone();
        config["model"]["lora"] = lora;
        s.job_of(config).ranks(ranks).sets(sets).refused(parts);
    };
    let of = |name: &str| json!({"target_parameters": [name]});
    let key = "model.lora.target_parameters";
    let known = "gate_up_proj, down_proj (whole names as model.layers.0.mlp.experts.gate_up_proj)";
    refused(of("up_proj"), &[], 1, &[key, "matches no parameter", known]);
    refused(
        of("q_proj.weight"),
        &[],
        1,
        &[key, "is no stack of experts", "target_modules"],
    );
    refused(
        of("mlp.gate.weight"),
        &[],
        1,
        &[key, "is no stack of experts"],
    );
    refused(
        json!({"target_parameters": ["down_proj"], "dropout": 0.1}),
        &[],
        1,
        &["model.lora.lora_dropout", "target_parameters"],
    );
    refused(
        json!({"target_modules": []}),
        &[],
        1,
        &["model.lora.target_modules"],
    );
    refused(
        json!({"target_modules": ["gate_up_proj"]}),
        &[],
        1,
        &[
            "model.lora.target_modules",
            "matches no module",
            "target_parameters",
        ],
    );
    let folder = oracle("llama-mqa").join("model");
    let mut config = base.clone();
    config["model"] = json!({"hf": folder, "lora": of("down_proj")});
    s.job_of(config).refused(&[key, "no experts"]);
}

/// A folder of PEFT's whose file and config do not fit is refused by the name of the tensor or of the key.
#[test]
fn a_damaged_folder_is_refused_by_name() {
    let s = Scratch::new();
    let from = oracle("adapters/mixtral-experts/adapter");
    let base = std::fs::canonicalize(oracle("mixtral-v5").join("model")).unwrap();
    std::fs::create_dir(s.path("x")).unwrap();
    let mut config = open_json(&from.join("adapter_config.json"));
    config["base_model_name_or_path"] = json!(base);
    let whole = raw(&from.join("adapter_model.safetensors"));
    let inner = "base_model.model.model.layers.0.mlp.experts.base_layer.lora_B.weight";
    let refused = |config: &Value, tensors: &crate::support::oracles::Raw, parts: &[&str]| {
        s.write("x/adapter_config.json", config.to_string());
        written(&s.path("x/adapter_model.safetensors"), tensors);
        names(&s.generate("x", "1", 1).unwrap_err(), parts);
    };
    let mut lacking = whole.clone();
    lacking.remove(inner).unwrap();
    refused(&config, &lacking, &[inner, "is missing"]);
    // With one of two stacks the other's matrices are no adapter's.
    let mut one = config.clone();
    one["target_parameters"] = json!(["experts.down_proj"]);
    refused(&one, &whole, &["belongs to no adapter of the config"]);
    let mut wrong = config.clone();
    wrong["target_parameters"] = json!("experts.down_proj");
    refused(&wrong, &whole, &["target_parameters"]);
    wrong = config.clone();
    wrong["lora_dropout"] = json!(0.1);
    refused(&wrong, &whole, &["adapter_config.json: lora_dropout"]);
}
