//! A run that signs its checkpoints, one that trusts only those of a key, and manifests that somebody forged with every hash right.

use crate::support::{Scratch, figures, names, open_json};
use crossweave::TrainError;
use crossweave::described::holds;
use crossweave_checkpoint::{PublicKey, SecretKey, keygen, sign, verify_by, verify_json_by};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::path::Path;

#[test]
fn a_run_signs_and_trusts_its_checkpoints() {
    let s = Scratch::new();
    let key = |name: &str| s.path(name);
    keygen(&key("team.key")).unwrap();
    keygen(&key("other.key")).unwrap();
    let taken = keygen(&key("team.key")).unwrap_err().to_string();
    assert!(
        taken.contains("team.key") && taken.contains("fix:"),
        "{taken}"
    );
    let job = || s.job("config.json").ranks(2);
    let public = job().set("checkpoint.sign_key=team.key.pub");
    public.refused(&["team.key.pub", "is the public key", "fix:"]);
    let signed = job().set("checkpoint.sign_key=team.key");
    signed.steps(6).run("run");
    let by = |name: &str| {
        let key = PublicKey::read(&key(name)).map_err(|e| e.to_string())?;
        verify_by(s.path("run"), Some(&key), &holds).map_err(|e| e.to_string())
    };
    let ours = by("team.key.pub").unwrap();
    assert!(ours.contains("step 6, signed"), "{ours}");
    for (key, parts) in [
        (
            "other.key.pub",
            &["DAMAGED", "signed by another key", "fix:"][..],
        ),
        ("team.key", &["is a secret key", "fix:"]),
    ] {
        let e = by(key).unwrap_err();
        assert!(parts.iter().all(|p| e.contains(p)), "{e}");
    }
    let longer = |key: &str| {
        let trust = format!("checkpoint.trust_key={key}");
        job().steps(8).set(&trust).resume("run")
    };
    longer("other.key.pub").refused(&["signed by another key"]);
    // The newest is signed by somebody else: the one before it is taken, and said so.
    let other = SecretKey::read(&key("other.key")).unwrap();
    sign(&s.path("run/checkpoints/step-00000006"), &other).unwrap();
    let said = longer("team.key.pub").goes_on().said;
    assert!(
        said.contains("checkpoint of step 6 is passed over") && said.contains("from step 3"),
        "{said}"
    );
}

/// Edits a manifest and gives it the hash of its new text, as anyone can.
fn forge(step: &Path, edit: &dyn Fn(&mut Value)) {
    let path = step.join("manifest.json");
    let mut m = open_json(&path);
    edit(&mut m);
    m.as_object_mut().unwrap().remove("sha256");
    let mut text = serde_json::to_string_pretty(&m).unwrap();
    text.truncate(text.len() - 2);
    let hash: String = Sha256::digest(text.as_bytes())
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    text.push_str(&format!(",\n  \"sha256\": \"{hash}\"\n}}\n"));
    std::fs::write(path, text).unwrap();
}

/// Hashes are right in a forged manifest; what it says is held against the model that it describes.
#[test]
fn a_manifest_that_contradicts_its_model_is_refused_without_a_key() {
    let s = Scratch::new();
    s.job("config.json").steps(3).run("run");
    let step = s.path("run/checkpoints/step-00000003");
    let whole = std::fs::read(step.join("manifest.json")).unwrap();
    let manifest: Value = serde_json::from_slice(&whole).unwrap();
    let tensors: Vec<String> = manifest["layout"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    type Edit = Box<dyn Fn(&mut Value)>;
    let mut cases: Vec<(String, Edit)> = vec![];
    let mut case = |what: &str, edit: Edit| cases.push((what.to_string(), edit));
    case("no tensors", Box::new(|m| m["layout"] = json!({})));
    // Every fifth tensor: gone, under another name, of another shape.
    for name in tensors.into_iter().step_by(5) {
        let n = name.clone();
        let gone = move |m: &mut Value| drop(m["layout"].as_object_mut().unwrap().remove(&n));
        case(&format!("{name} is gone"), Box::new(gone));
        let n = name.clone();
        let renamed = move |m: &mut Value| {
            let layout = m["layout"].as_object_mut().unwrap();
            let tensor = layout.remove(&n).unwrap();
            layout.insert(format!("{n}.other"), tensor);
        };
        case(&format!("{name} is renamed"), Box::new(renamed));
        let flat = move |m: &mut Value| {
            let shape = &mut m["layout"][&name]["shape"];
            let all: u64 = shape
                .as_array()
                .unwrap()
                .iter()
                .map(|d| d.as_u64().unwrap())
                .product();
            *shape = json!([1, all]);
        };
        case("another shape", Box::new(flat));
    }
    for (key, value) in [
        ("model_type", json!("evil")),
        ("model_type", json!("llama")),
        ("model_type", Value::Null),
        ("n_layer", json!(1u64 << 40)),
        ("n_layer", json!(1)),
        ("n_layer", json!(3)),
        ("n_embd", json!(18)),
        ("n_head", json!(0)),
        ("vocab_size", json!(300)),
        ("n_positions", json!(17)),
        ("n_inner", json!(63)),
        ("tie_word_embeddings", json!(false)),
        ("activation_function", json!("evil".repeat(6000))),
    ] {
        let set = move |m: &mut Value| m["state"]["hf_config"][key] = value.clone();
        case(key, Box::new(set));
    }
    // What says nothing of the tensors is written by an export all the same.
    for (key, value) in [
        ("architectures", json!(["EvilForCausalLM"])),
        ("architectures", json!("evil")),
        ("torch_dtype", json!("bfloat16")),
        ("torch_dtype", json!(7)),
        ("use_cache", json!("evil")),
        ("n_ctx", json!(1u64 << 40)),
        ("n_ctx", json!(7)),
        ("eos_token_id", json!(1u64 << 40)),
        ("eos_token_id", json!(259)),
        ("bos_token_id", json!([1, 1u64 << 40])),
        ("pad_token_id", json!(-2)),
        ("pad_token_id", json!({"evil": 1})),
        ("scale_attn_weights", json!("evil")),
        ("evil", json!(1)),
        ("auto_map", json!({"AutoModel": "evil.py"})),
    ] {
        let set = move |m: &mut Value| m["state"]["hf_config"][key] = value.clone();
        case(key, Box::new(set));
    }
    for lr in [0.5, 1e-9, 1e300] {
        let set = move |m: &mut Value| m["state"]["scheduler"]["lr"] = lr.into();
        case("lr", Box::new(set));
    }
    for optimizer in ["Lion", "Adafactor", "SGD", "Muon"] {
        let set = move |m: &mut Value| {
            m["state"]["config"]["optimizer"] =
                json!({"type": optimizer, "params": {"momentum": 0.0}});
            m["state"]["optimizer"]["type"] = optimizer.into();
        };
        case(optimizer, Box::new(set));
    }
    case(
        "step 0",
        Box::new(|m| {
            m["state"]["optimizer"]["step"] = 0.into();
            m["state"]["scheduler"]["step"] = 0.into();
        }),
    );
    for bits in [22, 40, 63] {
        let set =
            move |m: &mut Value| m["files"][0]["blake3"]["chunk_bytes"] = (1u64 << bits).into();
        case("chunks", Box::new(set));
    }
    case(
        "adapters",
        Box::new(|m| {
            m["state"]["adapter_config"] =
                json!({"peft_type": "LORA", "r": 2, "lora_alpha": 1, "target_modules": ["c_attn"]});
        }),
    );
    let refused = |e: &TrainError, parts: &[&str]| {
        names(e, parts);
        assert!(!s.path("out").exists(), "{e}");
    };
    for (k, (what, edit)) in cases.iter().enumerate() {
        std::fs::write(step.join("manifest.json"), &whole).unwrap();
        forge(&step, edit.as_ref());
        let parts = ["manifest.json", "fix:"];
        eprintln!("{what}");
        let said = verify_by(s.path("run"), None, &holds)
            .unwrap_err()
            .to_string();
        assert!(parts.iter().all(|p| said.contains(p)), "{what}: {said}");
        assert!(said.len() < 2000, "{what}: {} bytes", said.len());
        let report = verify_json_by(s.path("run"), None, &holds).unwrap();
        assert_eq!(report["ok"], false, "{what}");
        refused(&s.export("run", "out", false).unwrap_err(), &parts);
        if k % 8 == 0 {
            refused(&s.generate("run", "a", 4).unwrap_err(), &parts);
            refused(&s.reshard("run", "out", 2, None).unwrap_err(), &parts);
            let (e, _) = s.job("config.json").resume("run").fails("on");
            names(&e, &parts);
            assert!(!s.path("on/metrics.jsonl").exists());
            let _ = std::fs::remove_dir_all(s.path("on"));
        }
    }
    std::fs::write(step.join("manifest.json"), &whole).unwrap();
    s.verify("run");
}

/// What runs write is what is asked of a manifest: optimizers with other states, 16 bits, what is frozen, cut and sharded.
#[test]
fn every_runs_own_manifest_describes_its_model() {
    let s = Scratch::new();
    let gpt2 = "config.json";
    let mut config = open_json(&s.path(gpt2));
    config["model"] = json!({"family": "bert", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 32});
    config["data"]["seq_len"] = json!(16);
    config["data"]["next_sentence"] = json!(true);
    s.write("pairs.json", config.to_string());
    config["data"]
        .as_object_mut()
        .unwrap()
        .remove("next_sentence");
    config["model"] =
        json!({"family": "t5", "d_model": 16, "num_layers": 2, "num_heads": 2, "d_ff": 32});
    s.write("t5.json", config.to_string());
    let optimizer = |kind: &str, more: &str| {
        format!(r#"optimizer={{"type": "{kind}", "params": {{"lr": 0.01}}{more}}}"#)
    };
    let frozen = r#", "param_groups": [{"match": ["*wte*", "*ln_1*"], "frozen": true}]"#;
    for (config, ranks, set) in [
        (gpt2, 1, optimizer("AdamW8bit", "")),
        (
            gpt2,
            2,
            r#"optimizer={"type": "Adafactor", "params": {"beta1": 0.9}}"#.into(),
        ),
        (gpt2, 4, optimizer("Muon", frozen)),
        (gpt2, 1, optimizer("SGD", "")),
        (gpt2, 2, optimizer("Lion", frozen)),
        (gpt2, 2, "fp16.enabled=true".into()),
        (gpt2, 2, "mesh.tp=2".into()),
        (gpt2, 4, "mesh.pp=2".into()),
        (gpt2, 3, "zero_optimization.stage=3".into()),
        ("pairs.json", 2, "zero_optimization.stage=2".into()),
        ("t5.json", 1, "model.tie_word_embeddings=false".into()),
    ] {
        let schedule = match set.contains("Adafactor") {
            true => "scheduler=null",
            false => "scheduler={\"type\": \"constant\", \"params\": {}}",
        };
        let rows = match ranks {
            3 => "train_batch_size=6",
            _ => "train_batch_size=8",
        };
        let micro = "train_micro_batch_size_per_gpu=auto";
        let job = s.job(config).ranks(ranks).steps(2).set(&set);
        job.sets(&[schedule, rows, micro]).run("run");
        s.verify("run");
        s.export("run", "model", false).unwrap();
        assert_eq!(figures(&s.path("run")).len(), 3);
        for dir in ["run", "model"] {
            std::fs::remove_dir_all(s.path(dir)).unwrap();
        }
    }
}
