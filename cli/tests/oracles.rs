//! The binary against PyTorch in float64: `probe` on every committed checkpoint, and twenty AdamW steps of `train` on given batches.

use crate::common;
use common::{Scratch, losses};
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Largest difference relative to the largest value of the tensor.
const TOLERANCE: f64 = 1e-4;

pub fn cases() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/oracles");
    let all = std::fs::read_dir(root).unwrap().flatten().map(|e| e.path());
    let mut cases: Vec<PathBuf> = all.filter(|p| p.join("model").is_dir()).collect();
    cases.sort();
    assert!(cases.len() >= 17, "{cases:?}");
    cases
}

pub type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<f64>)>;

pub fn read(path: &Path) -> Tensors {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let floats = |t: &safetensors::tensor::TensorView<'_>| -> Vec<f64> {
        match t.dtype() {
            Dtype::F32 => t
                .data()
                .as_chunks::<4>()
                .0
                .iter()
                .map(|b| f64::from(f32::from_le_bytes(*b)))
                .collect(),
            Dtype::F64 => t
                .data()
                .as_chunks::<8>()
                .0
                .iter()
                .map(|b| f64::from_le_bytes(*b))
                .collect(),
            _ => vec![],
        }
    };
    file.iter()
        .map(|(n, t)| (n.to_string(), (t.dtype(), t.shape().to_vec(), floats(&t))))
        .collect()
}

pub fn error(ours: &[f64], theirs: &[f64]) -> f64 {
    error_beside(ours, theirs, 0.0)
}

fn top(values: &[f64]) -> f64 {
    values.iter().fold(0.0f64, |m, x| m.max(x.abs()))
}

/// The same where values below `nothing` are rounding noise.
fn error_beside(ours: &[f64], theirs: &[f64], nothing: f64) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    let top = top(theirs).max(nothing);
    let diff = ours
        .iter()
        .zip(theirs)
        .fold(0.0f64, |m, (a, b)| m.max((a - b).abs()));
    diff / top.max(1e-30)
}

#[test]
fn probe_gives_pytorchs_logits_loss_and_gradients() {
    let s = Scratch::new();
    for case in cases() {
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        let out = format!("{name}.safetensors");
        let model = case.join("model").display().to_string();
        let inputs = case.join("inputs.safetensors").display().to_string();
        s.ok(&[
            "probe", "--model", &model, "--inputs", &inputs, "--out", &out,
        ]);
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
    let model = case.join("model").display().to_string();
    let inputs = case.join("inputs.safetensors").display().to_string();
    s.ok(&[
        "probe",
        "--model",
        &model,
        "--inputs",
        &inputs,
        "--out",
        "o.safetensors",
        "--dtype",
        "bf16",
    ]);
    let (ours, theirs) = (
        read(&s.path("o.safetensors")),
        read(&case.join("expected.safetensors")),
    );
    let e = error(&ours["loss"].2, &theirs["loss"].2);
    assert!(e > 0.0 && e < 0.02, "{e:e}");
}

#[test]
fn train_follows_pytorchs_adamw_for_twenty_steps() {
    let s = Scratch::new();
    for case in cases() {
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        let meta: serde_json::Value =
            serde_json::from_slice(&std::fs::read(case.join("meta.json")).unwrap()).unwrap();
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
        let config = serde_json::json!({
            "model": model,
            "data": {"tokens": case.join("train.safetensors"), "key": "input_ids"},
            "optimizer": {"type": "AdamW", "params": {"lr": t["lr"], "betas": t["betas"], "eps": t["eps"],
                "weight_decay": t["weight_decay"], "decay_on": decay_on}},
            "run": {"generate": {"tokens": 0}},
        });
        let file = format!("{name}.json");
        s.write(&file, config.to_string());
        let ranks = if name.ends_with('d') { "2" } else { "1" };
        s.ok(&["train", &file, "--ranks", ranks, "--out", &name]);
        let run = s.path(&name);
        let theirs = read(&case.join("train.safetensors"));
        let e = error(&losses(&run), &theirs["losses"].2);
        assert!(e <= TOLERANCE, "{name}: losses {e:e}");
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
            let (_, (_, _, values)) = found.unwrap_or_else(|| panic!("{name}: no {name_in_file}"));
            let ours = values.iter().map(|v| v * v).sum::<f64>().sqrt();
            let e = (ours - norm[0]).abs() / norm[0];
            assert!(e <= TOLERANCE, "{name} {key}: {e:e}");
        }
    }
}
