//! Probes of every committed checkpoint, and twenty AdamW steps on given batches, against PyTorch in float64.

use crate::support::Scratch;
use crate::support::oracles::{Tensors, cases, error, error_beside, oracle, read, top};
use crate::support::{losses, open_json};
use crossweave_hal::DType;
use safetensors::Dtype;

/// Largest difference relative to the largest value of the tensor.
const TOLERANCE: f64 = 1e-4;

#[test]
fn probe_gives_pytorchs_logits_loss_and_gradients() {
    let s = Scratch::new();
    for case in cases() {
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        let out = format!("{name}.safetensors");
        let (model, inputs) = (case.join("model"), case.join("inputs.safetensors"));
        s.probe(&model, &inputs, DType::F32, &out).unwrap();
        let (ours, theirs) = (
            read(&s.path(&out)),
            read(&case.join("expected.safetensors")),
        );
        let names = |t: &Tensors| t.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&ours), names(&theirs), "{name}");
        let largest = theirs.iter().filter(|(k, _)| k.starts_with("grad."));
        let largest = largest.fold(0.0f64, |m, (_, (.., g))| m.max(top(g)));
        for (key, (_, shape, values)) in &theirs {
            let (dtype, our_shape, our_values) = &ours[key];
            assert_eq!((*dtype, our_shape), (Dtype::F32, shape), "{name} {key}");
            // GPT-2's key bias has a true gradient of zero among others that are not: the tensor's largest value is the measure.
            // The bias of keys that are not rotated has none at all, which float64 gives as 1e-18.
            let e = error_beside(our_values, values, 1e-3 * largest);
            assert!(e <= TOLERANCE, "{name} {key}: {e:e}");
        }
    }
}

#[test]
fn probe_in_bf16_stays_near() {
    let s = Scratch::new();
    let case = &cases()[0];
    let (model, inputs) = (case.join("model"), case.join("inputs.safetensors"));
    s.probe(&model, &inputs, DType::Bf16, "o.safetensors")
        .unwrap();
    let (ours, theirs) = (
        read(&s.path("o.safetensors")),
        read(&case.join("expected.safetensors")),
    );
    let e = error(&ours["loss"].2, &theirs["loss"].2);
    assert!(e > 0.0 && e < 0.02, "{e:e}");
}

/// A figure of each step of a run.
fn figures_of(run: &std::path::Path, name: &str) -> Vec<f64> {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let steps = text
        .lines()
        .map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
    steps.filter_map(|s| s[name].as_f64()).collect()
}

/// Is the tensor `file` of a folder a part of a parameter that all experts of a layer are, or that parameter under another name?
fn is_part(file: &str, parameter: &str) -> bool {
    let Some((layer, rest)) = parameter.split_once(".mlp.") else {
        return false;
    };
    let ends: &[&str] = match rest {
        "gate.weight" => &["block_sparse_moe.gate.weight"],
        "experts.gate_up_proj" => &[
            "w1.weight",
            "w3.weight",
            "gate_proj.weight",
            "up_proj.weight",
        ],
        "experts.down_proj" => &["w2.weight", "down_proj.weight"],
        _ => return false,
    };
    let own = file.strip_prefix(layer).is_some_and(|f| f.starts_with('.'));
    own && (file.contains(".experts.") || rest == "gate.weight")
        && ends.iter().any(|e| file.ends_with(e))
}

/// The config that trains a case as its reference was trained.
fn trained_as(case: &std::path::Path, name: &str) -> serde_json::Value {
    let meta = open_json(&case.join("meta.json"));
    let t = &meta["train"];
    let decay_on = match t["weight_decay_on"].as_str().unwrap() {
        "all" => "all",
        _ => "matrices",
    };
    let mut model = serde_json::json!({"hf": case.join("model")});
    if ["gpt2", "bert", "t5", "mt5", "roberta", "xlm-roberta"]
        .iter()
        .any(|f| name.starts_with(f))
    {
        // The references were trained without the dropout that these have.
        for key in ["embd_pdrop", "resid_pdrop", "attn_pdrop"] {
            model[key] = 0.0.into();
        }
    }
    serde_json::json!({
        "model": model,
        "data": {"tokens": case.join("train.safetensors"), "key": "input_ids"},
        "optimizer": {"type": "AdamW", "params": {"lr": t["lr"], "betas": t["betas"], "eps": t["eps"],
            "weight_decay": t["weight_decay"], "decay_on": decay_on}},
        "run": {"generate": {"tokens": 0}},
    })
}

#[test]
fn train_follows_pytorchs_adamw_for_twenty_steps() {
    let s = Scratch::new();
    for case in cases() {
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        let config = trained_as(&case, &name);
        // The loss of routers over the rows of a rank is another one than over all.
        let two = name.ends_with('d') && !name.starts_with("qwen3-moe");
        let ranks = if two { 2 } else { 1 };
        s.job_of(config).ranks(ranks).run(&name);
        let run = s.path(&name);
        let theirs = read(&case.join("train.safetensors"));
        let e = error(&losses(&run), &theirs["losses"].2);
        assert!(e <= TOLERANCE, "{name}: losses {e:e}");
        if let Some((_, _, aux)) = theirs.get("aux_losses").filter(|_| !two) {
            let e = error(&figures_of(&run, "aux_loss"), aux);
            assert!(e <= TOLERANCE, "{name}: losses of routers {e:e}");
        }
        let model = read(&run.join("model/model.safetensors"));
        for (key, (_, _, norm)) in theirs.iter().filter(|(k, _)| k.starts_with("norm.")) {
            let name_in_file = &key["norm.".len()..];
            let found = model.iter().find(|(k, _)| {
                k.as_str() == name_in_file
                    || k.replace("vision_tower.vision_model.", "vision_tower.") == name_in_file
                    || k.strip_prefix("transformer.").or(k.strip_prefix("model."))
                        == Some(name_in_file)
                    || name_in_file.strip_prefix("language_model.") == Some(k.as_str())
            });
            let squares = |v: &[f64]| v.iter().map(|v| v * v).sum::<f64>();
            let ours = match found {
                Some((_, (_, _, values))) => squares(values),
                None => {
                    let parts = model.iter().filter(|(k, _)| is_part(k, name_in_file));
                    parts.map(|(_, t)| squares(&t.2)).sum()
                }
            };
            let ours = ours.sqrt();
            assert!(ours > 0.0, "{name}: no {name_in_file}");
            let e = (ours - norm[0]).abs() / norm[0];
            assert!(e <= TOLERANCE, "{name} {key}: {e:e}");
        }
    }
}

/// Experts over ranks too. The losses of routers over the rows of a rank are others than over all: the case has none.
#[test]
fn experts_over_ranks_follow_transformers_for_twenty_steps() {
    let (s, case) = (Scratch::new(), oracle("mixtral-stacked"));
    let theirs = read(&case.join("train.safetensors"));
    let all: [(u32, &[&str]); 4] = [
        (2, &["mesh.ep=2"]),
        (2, &["mesh.etp=2", "zero_optimization.stage=1"]),
        (4, &["mesh.ep=2", "mesh.pp=2", "model.recompute=\"full\""]),
        (4, &["mesh.etp=2", "mesh.pp=2"]),
    ];
    for (i, (ranks, sets)) in all.into_iter().enumerate() {
        let job = s.job_of(trained_as(&case, "mixtral-stacked"));
        let run = i.to_string();
        job.ranks(ranks).sets(sets).run(&run);
        let e = error(&losses(&s.path(&run)), &theirs["losses"].2);
        assert!(e <= 1e-5, "{sets:?}: losses {e:e}");
    }
}
