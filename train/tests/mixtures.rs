//! Models with experts as runs have them: folders that come out in the form they came in, resumes over other ranks and stages, samples, adapters,
//! `model.moe` of any family of decoders, and what is refused by key.

use crate::support::oracles::{cases, oracle, raw, read, written};
use crate::support::{Scratch, copy_dir, losses, names, open_json};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const MIXTURES: [&str; 4] = [
    "mixtral-v5",
    "mixtral-stacked",
    "qwen3-moe-v5",
    "qwen3-moe-stacked",
];

fn config(model: Value, steps: u64) -> Value {
    json!({
        "model": model,
        "data": {"tokens": oracle("mixtral-v5/train.safetensors"), "key": "input_ids"},
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
        "run": {"steps": steps, "threads_per_rank": 1, "generate": {"tokens": 0}},
    })
}

/// The names of the tensors of a model's folder.
fn tensors(folder: &std::path::Path) -> BTreeSet<String> {
    read(&folder.join("model.safetensors"))
        .into_keys()
        .collect()
}

#[test]
fn folders_come_out_in_the_form_in_which_they_came() {
    let s = Scratch::new();
    for name in MIXTURES {
        let folder = oracle(name).join("model");
        s.job_of(config(json!({"hf": folder}), 2))
            .ranks(2)
            .run(name);
        let out = s.path(name).join("model");
        assert_eq!(tensors(&out), tensors(&folder), "{name}");
        // What was written is read, and is what it was.
        let again = format!("{name}-again");
        s.job_of(config(json!({"hf": out}), 1)).run(&again);
        let exported = format!("{name}-exported");
        s.export(name, &exported, false).unwrap();
        assert_eq!(tensors(&s.path(&exported)), tensors(&folder), "{name}");
        let same =
            [&out, &s.path(&exported)].map(|f| std::fs::read(f.join("model.safetensors")).unwrap());
        assert!(same[0] == same[1], "{name}: another export");
    }
    assert!(cases().len() > 80);
}

#[test]
fn a_run_goes_on_over_other_ranks_and_stages() {
    let s = Scratch::new();
    let folder = oracle("qwen3-moe-v5").join("model");
    let job = |steps| {
        s.job_of(config(json!({"hf": folder}), steps))
            .set("run.checkpoint_every=3")
    };
    job(6).ranks(2).run("whole");
    job(3).ranks(2).set("zero_optimization.stage=3").run("half");
    let on = job(6)
        .ranks(2)
        .set("mesh.pp=2")
        .set("train_micro_batch_size_per_gpu=2")
        .resume("half");
    on.goes_on();
    let (a, b) = (losses(&s.path("whole")), losses(&s.path("half")));
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(&b) {
        // The loss of routers is of the rows of a micro-batch: two of one rank in the place of one each of two.
        assert!((a - b).abs() < 2e-2 * a, "{a} {b}");
    }
    s.verify("half");
}

#[test]
fn parts_that_are_missing_doubled_or_of_another_shape_are_named() {
    let s = Scratch::new();
    let copy = |from: &str, to: &str| {
        copy_dir(&oracle(from).join("model"), &s.path(to));
        s.path(to).join("model.safetensors")
    };
    let refused = |folder: &str, parts: &[&str]| {
        s.job_of(config(json!({"hf": folder}), 1)).refused(parts);
    };
    let expert = "model.layers.1.block_sparse_moe.experts.3.w2.weight";
    let file = copy("mixtral-v5", "missing");
    let mut all = raw(&file);
    all.remove(expert).unwrap();
    written(&file, &all);
    refused("missing", &[expert, "is missing", "fix: "]);
    let file = copy("mixtral-v5", "turned");
    let mut all = raw(&file);
    all.get_mut(expert).unwrap().1.reverse();
    written(&file, &all);
    refused("turned", &[expert, "[20, 16]", "[16, 20]"]);
    let file = copy("qwen3-moe-stacked", "both");
    let mut all = raw(&file);
    let part = all["model.layers.0.mlp.gate_proj.weight"].clone();
    all.insert("model.layers.1.mlp.experts.0.gate_proj.weight".into(), part);
    written(&file, &all);
    refused(
        "both",
        &["model.layers.1.mlp.experts.gate_up_proj", "as a whole"],
    );
}

/// Two families with layers of other orders, norms, weights and activations, and lists of experts.
#[test]
fn any_family_of_decoders_takes_experts() {
    let s = Scratch::new();
    let sizes = json!({"vocab_size": 48, "init": {"std": 0.1}});
    for (family, keys, moe) in [
        (
            "llama",
            json!({"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 20,
            "max_position_embeddings": 32}),
            json!({"experts": 4, "z_loss_coef": 0.001}),
        ),
        (
            "gpt2",
            json!({"n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 32}),
            json!({"experts": "0,4,2", "top_k": 1, "width": 12, "normalize": false, "aux_loss_scope": "micro_batch"}),
        ),
        (
            "gpt_neox",
            json!({"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20,
            "max_position_embeddings": 32}),
            json!({"experts": 3, "residual": true}),
        ),
    ] {
        let mut model = json!({"family": family, "moe": moe});
        for (k, v) in keys
            .as_object()
            .unwrap()
            .iter()
            .chain(sizes.as_object().unwrap())
        {
            model[k] = v.clone();
        }
        let job = s.job_of(config(model, 4));
        job.clone().ranks(2).run(family);
        let seen = losses(&s.path(family));
        assert!(seen[3] < seen[0], "{family}: {seen:?}");
        let text = std::fs::read_to_string(s.path(family).join("metrics.jsonl")).unwrap();
        assert!(
            text.contains("\"aux_loss\"") && text.contains("\"load_max\""),
            "{text}"
        );
        assert_eq!(text.contains("\"z_loss\""), family == "llama", "{text}");
        // The same bits of every other layout, and of a run that went on.
        let other = format!("{family}-stage-3");
        let sets = ["zero_optimization.stage=3", "model.recompute=full"];
        job.clone().ranks(2).sets(&sets).run(&other);
        assert_eq!(losses(&s.path(&other)), seen, "{family}");
        // Its folder is a model.
        let config_file = open_json(&s.path(family).join("model/config.json"));
        assert!(config_file["crossweave_moe"].is_object(), "{config_file}");
        let folder = format!("{family}/model");
        s.job_of(config(json!({"hf": folder}), 1))
            .run(&format!("{family}-on"));
        let plan = job.plan();
        assert!(plan.is_object());
    }
}

/// Experts beside an MLP (PR-MoE): where the weights of both say so, the logits are those of the model without experts, or of the experts alone.
#[test]
fn an_mlp_beside_experts_is_weighed_against_them() {
    let s = Scratch::new();
    let model = json!({"family": "llama", "vocab_size": 48, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 20, "max_position_embeddings": 32, "init": {"std": 0.3},
        "moe": {"experts": "0,3", "top_k": 2, "residual": true}});
    s.job_of(config(model, 1)).run("both");
    let from = s.path("both").join("model");
    // The folder with the biases of layer 1 as they are here, and with the keys and tensors that are left.
    let made = |name: &str,
                biases: Option<[f32; 2]>,
                edit: &dyn Fn(&mut Value),
                left: fn(&str) -> bool| {
        copy_dir(&from, &s.path(name));
        let file = s.path(name).join("model.safetensors");
        let mut all = raw(&file);
        if let Some(b) = biases {
            let bias = all.get_mut("model.layers.1.moe.coefficient.bias").unwrap();
            bias.2 = b.iter().flat_map(|x| x.to_le_bytes()).collect();
        }
        all.retain(|name, _| left(name));
        written(&file, &all);
        let file = s.path(name).join("config.json");
        let mut keys = open_json(&file);
        edit(&mut keys);
        std::fs::write(file, keys.to_string()).unwrap();
        let mut model = crossweave::Model::open(s.path(name)).unwrap();
        model
            .probe(&[(0..20).map(|i| i * 7 % 48).collect()])
            .unwrap()
            .values
    };
    let all = |_: &str| true;
    let far = |a: &[f32], b: &[f32]| {
        let each = a.iter().zip(b).map(|(a, b)| (a - b).abs());
        each.fold(0f32, f32::max)
    };
    let as_it_is = made("as-it-is", None, &|_| (), all);
    let experts = made("experts", Some([200.0, -200.0]), &|_| (), all);
    let mlp = made("mlp", Some([-200.0, 200.0]), &|_| (), all);
    let alone = |keys: &mut Value| {
        keys["crossweave_moe"]
            .as_object_mut()
            .unwrap()
            .remove("residual")
            .unwrap();
    };
    let dense = |keys: &mut Value| {
        keys.as_object_mut()
            .unwrap()
            .remove("crossweave_moe")
            .unwrap();
    };
    let only_experts = made("only-experts", None, &alone, |n| {
        !n.contains("layers.1.mlp") && !n.contains("coefficient")
    });
    let only_mlp = made("only-mlp", None, &dense, |n| !n.contains(".moe."));
    assert!(far(&experts, &only_experts) < 1e-5 && far(&mlp, &only_mlp) < 1e-5);
    assert!(
        far(&experts, &mlp) > 1e-2
            && far(&as_it_is, &mlp) > 1e-3
            && far(&as_it_is, &experts) > 1e-3
    );
}

#[test]
fn what_experts_cannot_do_is_refused_by_key() {
    let s = Scratch::new();
    let folder = oracle("mixtral-v5").join("model");
    let job = || s.job_of(config(json!({"hf": folder}), 1)).ranks(2);
    job()
        .sets(&["mesh.tp=2", "mesh.sequence_parallel=false"])
        .refused(&["mesh.sequence_parallel", "each send them", "fix: "]);
    let new = |moe: Value| {
        let model = json!({"family": "llama", "vocab_size": 48, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "moe": moe});
        s.job_of(config(model, 1))
    };
    for (moe, parts) in [
        (
            json!({"experts": 2, "top_k": 3}),
            &["model.moe.top_k", "3 experts of a token, and layer 0 has 2"][..],
        ),
        (json!({"experts": 0}), &["model.moe.experts"]),
        (
            json!({"experts": "4"}),
            &["model.moe.experts", "1 numbers for 2 layers"],
        ),
        (
            json!({"experts": "0,0"}),
            &["model.moe.experts", "no layer has an expert"],
        ),
        (
            json!({"experts": "4,x"}),
            &["model.moe.experts", "not a list"],
        ),
        (json!({}), &["model.moe.experts"]),
        (
            json!({"experts": 4, "aux_loss_coef": -1}),
            &["model.moe.aux_loss_coef"],
        ),
        (
            json!({"experts": 4, "capacity": 1}),
            &["model.moe", "capacity"],
        ),
    ] {
        new(moe).refused(parts);
    }
    let mut wrong = open_json(&folder.join("config.json"));
    wrong["num_experts_per_tok"] = 6.into();
    let e = crossweave_nn::ModelSpec::from_hf(&wrong).unwrap_err();
    assert_eq!(e.key, "num_experts_per_tok");
    wrong["num_experts_per_tok"] = 2.into();
    wrong["router_jitter_noise"] = json!(0.1);
    let e = crossweave_nn::ModelSpec::from_hf(&wrong).unwrap_err();
    assert_eq!(e.key, "router_jitter_noise");
    let distilled = job().set("distill.teacher=teacher");
    copy_dir(&folder, &s.path("teacher"));
    let (e, _) = distilled.fails("distilled");
    names(&e, &["distill.teacher", "experts"]);
}
