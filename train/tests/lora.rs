//! Adapters: folders that PEFT wrote are probed and trained on to PyTorch's figures, what a run leaves is such a
//! folder, runs go on bit for bit without holding the model, and what cannot be adapted is answered.

use crate::support::oracles::{Tensors, error, oracle, read};
use crate::support::{CONFIG, Scratch, figures, losses, names, open_json};
use crossweave_hal::DType;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn adapters() -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = std::fs::read_dir(oracle("adapters"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    all.sort();
    assert_eq!(all.len(), 5);
    all
}

fn near(ours: &Tensors, theirs: &Tensors, key: &str, most: f64) {
    let e = error(&ours[key].2, &theirs[key].2);
    assert!(e <= most, "{key}: {e:e}");
}

#[test]
fn probe_of_adapters_gives_pefts_logits_loss_and_gradients() {
    let s = Scratch::new();
    for case in adapters() {
        let meta = open_json(&case.join("meta.json"));
        let base = case.join("../..").join(meta["model"].as_str().unwrap());
        let (model, inputs) = (case.join("adapter"), base.join("inputs.safetensors"));
        s.probe(&model, &inputs, DType::F32, "o.safetensors")
            .unwrap();
        let (ours, theirs) = (
            read(&s.path("o.safetensors")),
            read(&case.join("expected.safetensors")),
        );
        assert!(ours.keys().eq(theirs.keys()));
        theirs.keys().for_each(|k| near(&ours, &theirs, k, 1e-4));
    }
}

#[test]
fn training_a_peft_adapter_on_follows_peft_for_twenty_steps() {
    let s = Scratch::new();
    for (k, case) in adapters().into_iter().enumerate() {
        let meta = open_json(&case.join("meta.json"));
        let base = case.join("../..").join(meta["model"].as_str().unwrap());
        let t = &meta["train"];
        let config = json!({
            "model": {"hf": case.join("adapter")},
            "data": {"tokens": base.join("train.safetensors"), "key": "input_ids"},
            "optimizer": {"type": "AdamW", "params": {"lr": t["lr"], "betas": t["betas"], "eps": t["eps"],
                "weight_decay": t["weight_decay"]}},
            "zero_optimization": {"stage": k % 4},
            "run": {"generate": {"tokens": 0}},
        });
        let out = format!("run{k}");
        // The losses of these routers are of a micro-batch, which is all rows of a step.
        let routed =
            open_json(&case.join("adapter/adapter_config.json"))["target_parameters"].is_array();
        let ranks = if routed { 1 } else { 1 + k % 2 };
        s.job_of(config).ranks(ranks).run(&out);
        let theirs = read(&case.join("train.safetensors"));
        let ours = losses(&s.path(&out));
        for (a, b) in ours.iter().zip(&theirs["losses"].2) {
            assert!((a - b).abs() <= 1e-4, "{a} against {b}");
        }
        let left = read(&s.path(&out).join("model/adapter_model.safetensors"));
        for (key, (_, _, norm)) in theirs.iter().filter(|(k, _)| k.starts_with("norm.")) {
            let ours = &left[key.strip_prefix("norm.").unwrap()].2;
            let ours = ours.iter().map(|v| v * v).sum::<f64>().sqrt();
            assert!((ours - norm[0]).abs() <= 1e-4 * norm[0], "{key}");
        }
    }
}

/// A model to adapt, `base/model`, and a config of adapters on it with dropout.
fn with_base(s: &Scratch) -> Value {
    s.job("config.json").steps(2).run("base");
    let mut config: Value = serde_json::from_str(CONFIG).unwrap();
    config["model"] = json!({"hf": "base/model", "lora": {"r": 3, "lora_alpha": 6, "lora_dropout": 0.1,
        "target_modules": ["c_attn", "c_proj"]}});
    s.write("lora.json", config.to_string());
    config
}

fn adapter_bytes(run: &Path) -> Vec<u8> {
    std::fs::read(run.join("model/adapter_model.safetensors")).expect("an adapter")
}

fn same(a: &Path, b: &Path) {
    assert_eq!(figures(a), figures(b));
    assert!(adapter_bytes(a) == adapter_bytes(b), "the adapters differ");
}

#[test]
fn a_run_of_adapters_goes_on_bit_for_bit_and_its_checkpoints_hold_adapters_alone() {
    let s = Scratch::new();
    with_base(&s);
    for (ranks, sets) in [
        (1, &[][..]),
        (2, &["zero_optimization.stage=3", "bf16.enabled=true"]),
        (
            2,
            &[
                "mesh.pp=2",
                "zero_optimization.offload_optimizer={\"device\": \"cpu\"}",
                "zero_optimization.stage=2",
                "train_micro_batch_size_per_gpu=4",
            ],
        ),
    ] {
        let job = s.job("lora.json").ranks(ranks).sets(sets);
        job.clone().steps(8).run("whole");
        job.clone().steps(5).run("grown");
        job.steps(8).resume("grown").goes_on();
        same(&s.path("whole"), &s.path("grown"));
        let seen = s.inspect("whole");
        let tensors = seen["checkpoints"][0]["tensors"]
            .as_object()
            .expect("tensors");
        assert!(!tensors.is_empty() && tensors.keys().all(|k| k.contains(".lora_")));
        for run in ["whole", "grown"] {
            std::fs::remove_dir_all(s.path(run)).unwrap();
        }
    }
}

#[test]
fn another_model_under_a_checkpoint_is_refused_and_a_moved_one_is_not() {
    let s = Scratch::new();
    with_base(&s);
    s.job("lora.json").steps(5).run("a");
    std::fs::rename(s.path("base/model"), s.path("moved")).unwrap();
    let moved = s.job("lora.json").set("model.hf=moved").resume("a");
    moved.clone().steps(6).goes_on();
    s.job("config.json").steps(3).run("other");
    std::fs::remove_dir_all(s.path("moved")).unwrap();
    std::fs::rename(s.path("other/model"), s.path("moved")).unwrap();
    let other = "other weights than the model";
    moved.steps(7).refused(&["moved", other, "fix:"]);
    names(&s.export("a", "whole", true).unwrap_err(), &[other]);
    assert!(!s.path("whole").exists());
}

#[test]
fn what_a_run_leaves_is_a_peft_folder_that_generates_merges_and_trains_on() {
    let s = Scratch::new();
    with_base(&s);
    s.job("lora.json").set("optimizer.params.lr=0.1").run("a");
    let config = open_json(&s.path("a/model/adapter_config.json"));
    for (key, value) in [
        ("peft_type", json!("LORA")),
        ("r", json!(3)),
        ("lora_alpha", json!(6)),
        ("lora_dropout", json!(0.1)),
        ("target_modules", json!(["c_attn", "c_proj"])),
        ("fan_in_fan_out", json!(true)),
        ("bias", json!("none")),
        ("task_type", json!("CAUSAL_LM")),
    ] {
        assert_eq!(config[key], value, "{key}");
    }
    let base = Path::new(config["base_model_name_or_path"].as_str().unwrap());
    assert!(base.is_absolute() && base.join("config.json").is_file());
    assert!(!s.path("a/model/config.json").exists());
    let left = read(&s.path("a/model/adapter_model.safetensors"));
    let a = &left["base_model.model.transformer.h.0.attn.c_attn.lora_A.weight"];
    let b = &left["base_model.model.transformer.h.0.attn.c_attn.lora_B.weight"];
    assert_eq!((&a.1[..], &b.1[..]), (&[3, 16][..], &[48, 3][..]));
    assert_eq!(left.len(), 2 * 2 * 3);

    // Merged it is the same model, whole.
    s.export("a", "merged", true).unwrap();
    s.export("a", "again", false).unwrap();
    assert_eq!(
        std::fs::read(s.path("again/adapter_model.safetensors")).unwrap(),
        adapter_bytes(&s.path("a"))
    );
    let probe = |model: &str| {
        let (model, ids) = (Path::new(model), Path::new("ids.safetensors"));
        s.probe(model, ids, DType::F32, "o.safetensors").unwrap();
        read(&s.path("o.safetensors"))
    };
    let ids: Vec<u8> = (0..32i64)
        .flat_map(|i| (97 + i % 23).to_le_bytes())
        .collect();
    let ids =
        safetensors::tensor::TensorView::new(safetensors::Dtype::I64, vec![2, 16], &ids).unwrap();
    let bytes = safetensors::serialize([("input_ids", ids)], None).unwrap();
    s.write("ids.safetensors", bytes);
    let (adapted, merged, alone) = (probe("a/model"), probe("merged"), probe("base/model"));
    near(&merged, &adapted, "logits", 1e-5);
    assert!(error(&alone["logits"].2, &adapted["logits"].2) > 1e-3);
    let text = |model: &str| s.generate(model, "the ", 12).unwrap();
    assert_eq!(text("a/model"), text("merged"));
    let e = s.export("base", "x", true).unwrap_err();
    names(&e, &["--merge", "holds no adapters"]);
    assert!(!s.path("x").exists());

    // Trained on, it begins where it ended.
    let mut on: Value = serde_json::from_str(CONFIG).unwrap();
    on["model"] = json!({"hf": "a/model"});
    s.job_of(on.clone()).steps(1).set("optimizer.params.lr=0.0").set("scheduler={\"type\": \"WarmupLR\", \"params\": {\"warmup_max_lr\": 0.0, \"warmup_min_lr\": 0.0}}").run("b");
    assert!(adapter_bytes(&s.path("a")) == adapter_bytes(&s.path("b")));
    on["model"]["lora"] = json!({"r": 2});
    s.job_of(on)
        .refused(&["model.lora", "is an adapter", "fix:"]);
}

/// Beside adapters of a head PEFT writes the head itself (`lm_head.base_layer.weight`), and with `save_embedding_layers` the embedding:
/// read over where they are the model's own, refused by name where they are not.
#[test]
fn weights_of_the_model_beside_adapters_are_the_models_own() {
    use safetensors::{Dtype, SafeTensors, tensor::TensorView};
    let s = Scratch::new();
    with_base(&s);
    let targets = r#"model.lora.target_modules=["lm_head", "c_attn"]"#;
    s.job("lora.json").set(targets).run("a");
    let file = s.path("a/model/adapter_model.safetensors");
    let alone = std::fs::read(&file).unwrap();
    let base = std::fs::read(s.path("base/model/model.safetensors")).unwrap();
    let base = SafeTensors::deserialize(&base).unwrap();
    // The head is tied to the embedding.
    let table = base.tensor("transformer.wte.weight").unwrap();
    let (shape, own) = (table.shape().to_vec(), table.data().to_vec());
    let half: Vec<u8> = own
        .chunks_exact(4)
        .flat_map(|v| {
            // To the nearest, ties to even.
            let bits = u32::from_le_bytes(v.try_into().unwrap());
            let near = bits + 0x7fff + ((bits >> 16) & 1);
            ((near >> 16) as u16).to_le_bytes()
        })
        .collect();
    let with = |name: &str, dtype: Dtype, shape: &[usize], data: &[u8]| {
        let there = SafeTensors::deserialize(&alone).unwrap();
        let mut all: Vec<(String, TensorView<'_>)> = there.tensors().into_iter().collect();
        let more = TensorView::new(dtype, shape.to_vec(), data).unwrap();
        all.push((format!("base_model.model.{name}"), more));
        std::fs::write(&file, safetensors::serialize(all, None).unwrap()).unwrap();
    };
    let generate = || s.generate("a/model", "a", 4);
    let wanted = generate().unwrap();
    let (head, embedding) = ("lm_head.base_layer.weight", "transformer.wte.weight");
    for (name, dtype, data) in [
        (head, Dtype::F32, &own),
        (head, Dtype::BF16, &half),
        (embedding, Dtype::F32, &own),
    ] {
        with(name, dtype, &shape, data);
        assert_eq!(generate().unwrap(), wanted, "{name} {dtype:?}");
    }
    let mut changed = own.clone();
    let last = changed.len() - 1;
    changed[last] ^= 1;
    let longer = [&own[..], &own[..4 * shape[1]]].concat();
    for (name, shape, data, words) in [
        (
            head,
            shape.clone(),
            &changed,
            "holds other weights than lm_head.weight",
        ),
        (
            embedding,
            shape.clone(),
            &changed,
            "holds other weights than transformer.wte.weight",
        ),
        (
            head,
            vec![shape[0] + 1, shape[1]],
            &longer,
            "vocabulary was resized",
        ),
        (
            "evil.weight",
            shape.clone(),
            &own,
            "belongs to no adapter of the config",
        ),
    ] {
        with(name, Dtype::F32, &shape, data);
        names(&generate().unwrap_err(), &[name, words, "fix:"]);
    }
}

#[test]
fn what_cannot_be_adapted_is_answered() {
    let s = Scratch::new();
    let base = with_base(&s);
    let refused = |lora: Value, parts: &[&str]| {
        let mut config = base.clone();
        config["model"]["lora"] = lora;
        s.job_of(config).refused(parts);
    };
    refused(
        json!({"target_modules": ["q_proj"]}),
        &[
            "model.lora.target_modules",
            "\"q_proj\" matches no module",
            "c_attn, c_proj, c_fc, lm_head",
        ],
    );
    refused(
        json!({"target_modules": "c_attn"}),
        &["regular expression for whole names", "[\"c_attn\"]"],
    );
    refused(
        json!({"target_modules": "(c"}),
        &["is no regular expression"],
    );
    refused(
        json!({"target_modules": ["wte"]}),
        &["transformer.wte, which is no linear layer"],
    );
    refused(
        json!({"target_modules": 3}),
        &["model.lora.target_modules", "wanted names of modules"],
    );
    refused(
        json!({"target_modules": []}),
        &["model.lora.target_modules"],
    );
    refused(json!({"r": 0}), &["model.lora.r", "at least 1"]);
    refused(
        json!({"r": 3, "alpha": 2, "lora_alpha": 4}),
        &["model.lora.lora_alpha", "keep one of them"],
    );
    refused(json!({"dropout": 1.0}), &["model.lora.dropout"]);
    refused(json!({"rank": 4}), &["model.lora.rank", "unknown key"]);
    refused(
        json!({"modules_to_save": ["lm_head"]}),
        &[
            "model.lora.modules_to_save",
            "known to PEFT but not available",
        ],
    );
    refused(json!({"use_dora": true}), &["model.lora.use_dora"]);
    // A new model has nothing to adapt.
    let mut config: Value = serde_json::from_str(CONFIG).unwrap();
    config["model"]["lora"] = json!({"r": 2});
    s.job_of(config)
        .refused(&["model.lora", "adapters sit on a model that exists"]);
}

#[test]
fn damaged_and_foreign_adapter_folders_are_refused_by_name() {
    let s = Scratch::new();
    let from = adapters()[0].join("adapter");
    let config = open_json(&from.join("adapter_config.json"));
    let base = from.join(config["base_model_name_or_path"].as_str().unwrap());
    let base = std::fs::canonicalize(base).unwrap();
    let bytes = std::fs::read(from.join("adapter_model.safetensors")).unwrap();
    std::fs::create_dir(s.path("x")).unwrap();
    let refused = |change: &dyn Fn(&mut Value), parts: &[&str]| {
        let mut config = config.clone();
        config["base_model_name_or_path"] = json!(base);
        change(&mut config);
        s.write("x/adapter_config.json", config.to_string());
        names(&s.generate("x", "a", 1).unwrap_err(), parts);
    };
    s.write("x/adapter_model.safetensors", &bytes);
    refused(
        &|c| c["peft_type"] = json!("IA3"),
        &["peft_type", "LORA is"],
    );
    refused(
        &|c| c["use_dora"] = json!(true),
        &["use_dora", "merge the adapter"],
    );
    refused(&|c| c["bias"] = json!("all"), &["bias"]);
    refused(
        &|c| c["modules_to_save"] = json!(["lm_head"]),
        &["modules_to_save"],
    );
    refused(
        &|c| c["rank_pattern"] = json!({"c_attn": 8}),
        &["rank_pattern"],
    );
    refused(
        &|c| c["init_lora_weights"] = json!("pissa"),
        &["init_lora_weights"],
    );
    refused(
        &|c| c["lora_alpha"] = json!(0),
        &["lora_alpha: 0 switches the adapters off"],
    );
    refused(&|c| c["r"] = json!(8), &["has shape [4,", "[8,"]);
    refused(&|c| c["r"] = json!("x"), &["adapter_config.json: r:"]);
    refused(
        &|c| c["target_modules"] = json!(["c_attn"]),
        &["belongs to no adapter"],
    );
    refused(
        &|c| c["target_modules"] = json!(["c_fc", "c_attn", "mlp.c_proj"]),
        &["is missing"],
    );
    refused(
        &|c| c["base_model_name_or_path"] = json!("no/such"),
        &["no folder no/such", "fix:"],
    );
    refused(
        &|c| c["base_model_name_or_path"] = json!(null),
        &["base_model_name_or_path: missing"],
    );
    refused(
        &|c| c["base_model_name_or_path"] = json!(s.path("x")),
        &["is an adapter itself"],
    );
    s.write("x/adapter_model.safetensors", &bytes[..bytes.len() / 2]);
    refused(&|_| (), &["adapter_model.safetensors"]);
    std::fs::remove_file(s.path("x/adapter_model.safetensors")).unwrap();
    refused(&|_| (), &["adapter_model.safetensors"]);
    s.write("x/adapter_model.bin", "pickled");
    refused(&|_| (), &["pickled"]);
    s.write("x/adapter_config.json", "{");
    let e = s.generate("x", "a", 1).unwrap_err();
    names(&e, &["adapter_config.json: not JSON"]);
}

/// Each key of PEFT's `LoraConfig` at values that are not its defaults gives PEFT's losses, or is refused by name.
#[test]
fn every_option_of_an_adapter_gives_pefts_losses_or_is_refused_by_name() {
    let s = Scratch::new();
    let case = adapters().remove(0);
    let top = case.join("../..");
    let cases = open_json(&top.join("adapter_options.json"))["cases"].clone();
    let base = top.join("gpt2-tied");
    s.write(
        "t.json",
        json!({
            "model": {"hf": "adapter"},
            "data": {"tokens": base.join("train.safetensors"), "key": "input_ids"},
            "optimizer": {"type": "SGD", "params": {"lr": 0.5}},
            "run": {"steps": 6, "threads_per_rank": 1, "generate": {"tokens": 0}},
        })
        .to_string(),
    );
    std::fs::create_dir(s.path("adapter")).unwrap();
    let weights = "adapter/adapter_model.safetensors";
    std::fs::copy(case.join(weights), s.path(weights)).unwrap();
    let mut config = open_json(&case.join("adapter/adapter_config.json"));
    config["base_model_name_or_path"] = json!(base.join("model"));
    let (mut taken, mut refused) = (vec![], 0);
    for case in cases.as_array().unwrap() {
        let mut config = config.clone();
        let key = case["key"].as_str().unwrap_or("nothing");
        if key != "nothing" {
            config[key] = case["value"].clone();
        }
        s.write("adapter/adapter_config.json", config.to_string());
        let what = format!("{key} = {}", case["value"]);
        if let Err(e) = s.job("t.json").tried("out") {
            let said = e.to_string();
            let by_name = format!("adapter_config.json: {key}: ");
            // The matrices in the folder are held to these two.
            let by_weights = ["r", "target_modules"].contains(&key)
                && said.contains("adapter_model.safetensors: ");
            assert!(said.contains(&by_name) || by_weights, "{what}: {said}");
            refused += 1;
            continue;
        }
        let ours = losses(&s.path("out"));
        std::fs::remove_dir_all(s.path("out")).unwrap();
        taken.push(key.to_string());
        if case["drawn"] == true {
            continue;
        }
        let theirs = case["losses"].as_array();
        let theirs: Vec<f64> =
            theirs.map_or(vec![], |a| a.iter().filter_map(Value::as_f64).collect());
        assert_eq!(ours.len(), theirs.len(), "{what}: PEFT {}", case["error"]);
        for (a, b) in ours.iter().zip(&theirs) {
            assert!((a - b).abs() <= 1e-4, "{what}: {a} against {b}");
        }
    }
    taken.dedup();
    for key in [
        "nothing",
        "auto_mapping",
        "eva_config",
        "exclude_modules",
        "fan_in_fan_out",
        "init_lora_weights",
        "lora_alpha",
        "lora_dropout",
        "megatron_core",
        "modules_to_save",
        "qalora_group_size",
        "task_type",
        "use_rslora",
    ] {
        assert!(taken.iter().any(|k| k == key), "{key} is refused");
    }
    assert!(refused > 30, "{refused}");
}
