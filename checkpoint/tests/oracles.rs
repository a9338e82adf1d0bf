//! Every committed oracle model, written by transformers, opens, resolves and reads.

use crossweave_checkpoint::*;
use std::path::PathBuf;

fn oracles() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/oracles"))
}

fn models() -> Vec<PathBuf> {
    let mut out: Vec<PathBuf> = std::fs::read_dir(oracles())
        .unwrap()
        .map(|e| e.unwrap().path().join("model"))
        .filter(|p| p.is_dir())
        .collect();
    out.sort();
    assert!(out.len() >= 17, "{} oracles", out.len());
    out
}

/// Canonical names and shapes by the config, as transformers would build them.
fn expected(config: &serde_json::Value) -> (Vec<(String, Vec<usize>)>, bool, &'static str) {
    let get = |k: &str| config.get(k).and_then(|v| v.as_u64()).map(|v| v as usize);
    let tied = config
        .get("tie_word_embeddings")
        .is_none_or(|v| v.as_bool().unwrap());
    let flag = |k: &str| config.get(k).is_some_and(|v| v.as_bool().unwrap());
    let v = get("vocab_size").unwrap();
    let mut out = Vec::new();
    let mut add = |n: String, s: &[usize]| out.push((n, s.to_vec()));
    let embedding = if config["model_type"] == "gpt2" {
        let (d, t) = (get("n_embd").unwrap(), get("n_positions").unwrap());
        let f = get("n_inner").unwrap_or(4 * d);
        add("transformer.wte.weight".into(), &[v, d]);
        add("transformer.wpe.weight".into(), &[t, d]);
        for l in 0..get("n_layer").unwrap() {
            for (n, i, o) in [
                ("attn.c_attn", d, 3 * d),
                ("attn.c_proj", d, d),
                ("mlp.c_fc", d, f),
                ("mlp.c_proj", f, d),
            ] {
                add(format!("transformer.h.{l}.{n}.weight"), &[i, o]);
                add(format!("transformer.h.{l}.{n}.bias"), &[o]);
            }
            for n in ["ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias"] {
                add(format!("transformer.h.{l}.{n}"), &[d]);
            }
        }
        add("transformer.ln_f.weight".into(), &[d]);
        add("transformer.ln_f.bias".into(), &[d]);
        add("lm_head.weight".into(), &[v, d]);
        "transformer.wte.weight"
    } else {
        let (d, f) = (
            get("hidden_size").unwrap(),
            get("intermediate_size").unwrap(),
        );
        let heads = get("num_attention_heads").unwrap();
        let kv = get("num_key_value_heads").unwrap_or(heads);
        let hd = get("head_dim").unwrap_or(d / heads);
        add("model.embed_tokens.weight".into(), &[v, d]);
        for l in 0..get("num_hidden_layers").unwrap() {
            for (n, o, i, bias) in [
                ("self_attn.q_proj", heads * hd, d, "attention_bias"),
                ("self_attn.k_proj", kv * hd, d, "attention_bias"),
                ("self_attn.v_proj", kv * hd, d, "attention_bias"),
                ("self_attn.o_proj", d, heads * hd, "attention_bias"),
                ("mlp.gate_proj", f, d, "mlp_bias"),
                ("mlp.up_proj", f, d, "mlp_bias"),
                ("mlp.down_proj", d, f, "mlp_bias"),
            ] {
                add(format!("model.layers.{l}.{n}.weight"), &[o, i]);
                if flag(bias) {
                    add(format!("model.layers.{l}.{n}.bias"), &[o]);
                }
            }
            add(format!("model.layers.{l}.input_layernorm.weight"), &[d]);
            add(
                format!("model.layers.{l}.post_attention_layernorm.weight"),
                &[d],
            );
        }
        add("model.norm.weight".into(), &[d]);
        add("lm_head.weight".into(), &[v, d]);
        "model.embed_tokens.weight"
    };
    (out, tied, embedding)
}

/// Those of the two families whose names [`expected`] spells out; `probe` reads the others in the tests of the binary.
fn spelled_out() -> Vec<PathBuf> {
    let known = |p: &PathBuf| {
        let config = HfDir::open(p).unwrap().config;
        config["model_type"] == "gpt2" || config["model_type"] == "llama"
    };
    let out: Vec<PathBuf> = models().into_iter().filter(known).collect();
    assert!(out.len() >= 17, "{} oracles", out.len());
    out
}

fn resolver(config: &serde_json::Value) -> Resolver {
    let (names, tied, embedding) = expected(config);
    let base = embedding.split('.').next().map(|m| format!("{m}."));
    let r = Resolver::new(names).base(base.unwrap_or_default());
    if tied {
        r.tie("lm_head.weight", embedding)
    } else {
        r
    }
}

#[test]
fn every_oracle_opens_resolves_and_reads() {
    for path in spelled_out() {
        let dir = HfDir::open(&path).unwrap();
        let resolved = resolver(&dir.config)
            .resolve(&dir)
            .unwrap_or_else(|e| panic!("{e}"));
        let (_, tied, _) = expected(&dir.config);
        assert_eq!(resolved.file_name("lm_head.weight").is_none(), tied);
        for (name, info) in &dir.tensors {
            let bytes = dir.read(name).unwrap();
            assert_eq!(bytes.len() as u64, info.num_bytes());
        }
        let expected_file =
            SafeFile::open(path.parent().unwrap().join("expected.safetensors")).unwrap();
        for file_name in resolved.file_names.values() {
            let info = dir.info(file_name).unwrap();
            let values = dir.read_f32(file_name).unwrap();
            assert_eq!(values.len() as u64, info.num_elements());
            assert!(values.iter().all(|v| v.is_finite()));
            // The oracle names gradients by the file's own spelling: ours must be the same.
            expected_file.info(&format!("grad.{file_name}")).unwrap();
            let rows = info.shape[0];
            let (a, b) = (
                dir.read_rows_f32(file_name, 0..rows / 2).unwrap(),
                dir.read_rows_f32(file_name, rows / 2..rows).unwrap(),
            );
            assert_eq!([a, b].concat(), values);
        }
        let grads = expected_file
            .tensors()
            .keys()
            .filter(|n| n.starts_with("grad."))
            .count();
        assert_eq!(grads, resolved.file_names.len(), "{}", path.display());
    }
}

#[test]
fn bare_names_buffers_and_tied_copies_are_told() {
    let dir = HfDir::open(oracles().join("gpt2-bare-buffers/model")).unwrap();
    let r = resolver(&dir.config).resolve(&dir).unwrap();
    assert_eq!(r.file_name("transformer.wte.weight"), Some("wte.weight"));
    assert!(r.ignored.contains(&"h.0.attn.bias".to_string()));
    assert!(
        r.notes.iter().any(|n| n.contains("ignored")),
        "{:?}",
        r.notes
    );
    let dir = HfDir::open(oracles().join("gpt2-prefixed-buffers/model")).unwrap();
    let r = resolver(&dir.config).resolve(&dir).unwrap();
    assert_eq!(r.tied_copies, ["lm_head.weight"]);
    assert_eq!(
        r.file_name("transformer.wte.weight"),
        Some("transformer.wte.weight")
    );
}

#[test]
fn differences_come_all_at_once_with_the_nearest_name() {
    let dir = HfDir::open(oracles().join("llama-gqa-sharded/model")).unwrap();
    let (mut names, _, _) = expected(&dir.config);
    names.retain(|(n, _)| n != "model.layers.0.mlp.up_proj.weight");
    names.push(("model.layers.0.mlp.up_pro.weight".into(), vec![36, 32]));
    for (n, s) in &mut names {
        if n.contains("down_proj") {
            s.reverse();
        }
    }
    let e = Resolver::new(names)
        .base("model.")
        .resolve(&dir)
        .unwrap_err();
    let CheckpointError::Names(report) = &e else {
        panic!("{e}")
    };
    assert_eq!(
        report.missing,
        [(
            "model.layers.0.mlp.up_pro.weight".to_string(),
            Some("model.layers.0.mlp.up_proj.weight".to_string())
        )]
    );
    assert_eq!(
        report.unexpected[0].1.as_deref(),
        Some("model.layers.0.mlp.up_pro.weight")
    );
    assert_eq!(report.wrong_shape.len(), 2);
    let text = e.to_string();
    assert!(
        text.contains("transposed") && text.contains("fix:"),
        "{text}"
    );
}

#[test]
fn an_untied_config_over_a_file_without_head_says_which_key_to_set() {
    let dir = HfDir::open(oracles().join("gpt2-tied/model")).unwrap();
    let (names, ..) = expected(&dir.config);
    let r = Resolver::new(names).base("transformer.");
    let text = r.resolve(&dir).unwrap_err().to_string();
    assert!(
        text.contains("lm_head.weight") && text.contains("tie_word_embeddings"),
        "{text}"
    );
}

#[test]
fn export_round_trips_every_oracle_in_one_file_and_in_shards() {
    for path in models() {
        let dir = HfDir::open(&path).unwrap();
        for max in [u64::MAX, 12_000] {
            let temp = tempfile::tempdir().unwrap();
            let target = temp.path().join("out/model");
            let tensors = || {
                dir.tensors
                    .iter()
                    .map(|(n, i)| TensorOut::bytes(n, i.dtype, &i.shape, dir.read(n).unwrap()))
            };
            let extra = [("tokenizer.json".to_string(), b"{}".to_vec())];
            export_hf(&target, &dir.config, tensors(), max, &extra).unwrap();
            // Again, over what stands there.
            export_hf(&target, &dir.config, tensors(), max, &extra).unwrap();
            let back = HfDir::open(&target).unwrap();
            assert_eq!(back.config, dir.config);
            assert_eq!(
                back.tensors.keys().collect::<Vec<_>>(),
                dir.tensors.keys().collect::<Vec<_>>()
            );
            let whole: u64 = dir.tensors.values().map(|t| t.num_bytes()).sum();
            assert_eq!(back.files().count() > 1, whole > max);
            for (name, info) in &back.tensors {
                assert_eq!(info.shape, dir.tensors[name].shape);
                assert_eq!(back.read(name).unwrap(), dir.read(name).unwrap());
            }
            for file in back.files() {
                assert_eq!(file.metadata()["format"], "pt");
                // The reference implementation of the format reads the same.
                let bytes = std::fs::read(file.path()).unwrap();
                let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
                for (name, view) in theirs.tensors() {
                    assert_eq!(view.data(), back.read(&name).unwrap());
                }
                assert_eq!(theirs.len(), file.tensors().len());
            }
            assert_eq!(back.companion_files().unwrap().len(), 2);
            let siblings = std::fs::read_dir(target.parent().unwrap()).unwrap().count();
            assert_eq!(siblings, 1, "no temporary folder is left");
        }
    }
}

#[test]
fn inspect_and_verify_describe_a_model() {
    let path = oracles().join("llama-gqa-sharded/model");
    let text = inspect(&path, Detail::default()).unwrap();
    assert!(text.lines().count() <= 15, "{text}");
    assert!(
        text.contains("model_type llama") && text.contains("4 weight files"),
        "{text}"
    );
    assert_eq!(verify(&path, None).unwrap().matches("ok  ").count(), 4);
}
