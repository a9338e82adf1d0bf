//! Distillation: PyTorch's losses and gradients, the same bits under every layout, a teacher that costs no gradient and
//! no optimizer state, and what is refused.

use crate::support::oracles::{error, oracle, read};
use crate::support::{Scratch, figures, ledger, losses, model_bytes, open_json, same};
use serde_json::{Value, json};
use std::path::Path;

/// The config of the committed figures.
fn config() -> Value {
    let how = open_json(&oracle("distill/meta.json"));
    let folder = |key: &str| oracle(how[key].as_str().unwrap());
    json!({
        "model": {"hf": folder("student").join("model"), "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        "data": {"tokens": folder("student").join("train.safetensors"), "key": "input_ids"},
        "distill": {"teacher": folder("teacher").join("model"), "alpha": how["alpha"], "temperature": how["temperature"],
                    "stop_step": how["stop_step"]},
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "decay_on": "matrices"}},
        "run": {"threads_per_rank": 1, "generate": {"tokens": 0}},
    })
}

fn train(s: &Scratch, sets: &[&str], ranks: u32, out: &str) {
    s.job_of(config()).ranks(ranks).sets(sets).run(out);
}

#[test]
fn losses_gradients_and_weights_are_pytorchs() {
    let s = Scratch::new();
    let theirs = read(&oracle("distill/expected.safetensors"));
    train(&s, &[], 1, "whole");
    let e = error(&losses(&s.path("whole")), &theirs["losses"].2);
    assert!(e <= 1e-4, "losses {e:e}");
    let trained = read(&s.path("whole/model/model.safetensors"));
    assert!(trained.keys().all(|k| !k.contains("teacher")));
    // What a step of descent at rate 1 takes away is the gradient.
    let descent = [
        r#"optimizer={"type": "SGD", "params": {"lr": 1.0}}"#,
        "run.steps=1",
    ];
    train(&s, &descent, 1, "one");
    let before = config()["model"]["hf"].clone();
    let before = read(&Path::new(before.as_str().unwrap()).join("model.safetensors"));
    let after = read(&s.path("one/model/model.safetensors"));
    let mut seen = 0;
    for (key, (.., values)) in &theirs {
        if let Some(name) = key.strip_prefix("norm.") {
            let ours = trained[name].2.iter().map(|v| v * v).sum::<f64>().sqrt();
            assert!((ours / values[0] - 1.0).abs() <= 1e-4, "{key}");
        }
        if let Some(name) = key.strip_prefix("grad.") {
            let gone = before[name].2.iter().zip(&after[name].2);
            let gone: Vec<f64> = gone.map(|(b, a)| b - a).collect();
            let e = error(&gone, values);
            assert!(e <= 1e-4, "{key}: {e:e}");
            seen += 1;
        }
    }
    assert!(seen > 10, "{seen}");
}

#[test]
fn layouts_give_the_same_bits_and_a_run_goes_on() {
    let s = Scratch::new();
    train(&s, &["run.steps=16"], 2, "whole");
    let layouts: [&[&str]; 4] = [
        &["zero_optimization.stage=1"],
        &["zero_optimization.stage=2", "model.recompute=selective"],
        &["zero_optimization.stage=3"],
        &[
            "zero_optimization.stage=3",
            "model.recompute=full",
            "zero_optimization.offload_optimizer.device=cpu",
            "zero_optimization.offload_param.device=cpu",
        ],
    ];
    for (i, sets) in layouts.iter().enumerate() {
        let out = format!("layout-{i}");
        train(&s, &[sets, &["run.steps=16"][..]].concat(), 2, &out);
        same(&s.path("whole"), &s.path(&out));
    }
    // The student shares its embedding over two stages, so its sums are ordered otherwise.
    train(&s, &["run.steps=16", "mesh.pp=2"], 4, "stages");
    for (a, b) in losses(&s.path("whole"))
        .iter()
        .zip(losses(&s.path("stages")))
    {
        assert!((a - b).abs() <= 1e-4 * a.abs(), "{a} and {b}");
    }
    train(&s, &["run.steps=10"], 2, "part");
    s.job_of(config())
        .ranks(2)
        .set("run.steps=16")
        .resume("part")
        .run("rest");
    assert!(model_bytes(&s.path("whole")) == model_bytes(&s.path("rest")));
    assert_eq!(
        figures(&s.path("whole"))[10..],
        figures(&s.path("rest"))[10..]
    );
}

/// Bytes that the ledger of rank 0 has under a tag at most.
fn peak(run: &Path, tag: &str) -> u64 {
    let ledger = ledger(run);
    let of = ledger["ranks"][0]["memory"]["tags"][tag]["peak"].as_u64();
    of.unwrap_or_else(|| panic!("no {tag} in {ledger:#}"))
}

#[test]
fn a_teacher_has_no_gradient_and_no_optimizer_state() {
    let s = Scratch::new();
    let short = ["run.steps=2", "zero_optimization.stage=2"];
    train(&s, &short, 1, "taught");
    let mut alone = config();
    alone.as_object_mut().unwrap().remove("distill");
    s.job_of(alone).sets(&short).run("alone");
    for tag in ["grad", "moment", "master"] {
        assert_eq!(
            peak(&s.path("taught"), tag),
            peak(&s.path("alone"), tag),
            "{tag}"
        );
    }
    assert!(peak(&s.path("taught"), "param") > peak(&s.path("alone"), "param"));
}

#[test]
fn teachers_that_cannot_teach_are_refused() {
    let s = Scratch::new();
    let refused = |change: &dyn Fn(&mut Value), parts: &[&str]| {
        let mut config = config();
        change(&mut config);
        s.job_of(config).refused(parts);
    };
    let teacher = |name: &str| json!(oracle(name).join("model"));
    refused(
        &|c| c["distill"]["teacher"] = teacher("mistral-v5"),
        &["distill.teacher", "vocabulary of 48", "96"],
    );
    refused(
        &|c| c["distill"]["teacher"] = json!("nowhere"),
        &["nowhere"],
    );
    refused(&|c| c["distill"]["alpha"] = json!(0), &["distill.alpha"]);
    refused(&|c| c["distill"]["alpha"] = json!(1.5), &["distill.alpha"]);
    refused(
        &|c| c["distill"]["temperature"] = json!(0),
        &["distill.temperature"],
    );
    refused(
        &|c| c["distill"]["stop_step"] = json!(0),
        &["distill.stop_step"],
    );
    refused(
        &|c| c["model"]["lora"] = json!({"r": 2}),
        &["distill", "model.lora"],
    );
    refused(
        &|c| {
            c["model"] = json!({"hf": oracle("bert-v5/model")});
            c["data"]["tokens"] = json!(oracle("bert-v5/train.safetensors"));
            c["distill"]["teacher"] = teacher("mistral-v5");
        },
        &["distill.teacher", "mistral", "bert"],
    );
}
