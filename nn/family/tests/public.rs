//! Public `config.json` texts and keys that no class reads: what changes nothing is a warning, what would is an error.

use crossweave_family::{FAMILIES, ModelSpec, PRESETS, families};
use serde_json::{Map, Value, json};

/// The texts, one a line with its source: `tests/oracles/corpus.py` holds the same against PyTorch.
fn corpus() -> Vec<Value> {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/oracles/configs.json"
    );
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

fn names(of: &Value) -> Vec<&str> {
    of.as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

#[test]
fn public_texts_are_read_with_the_warnings_that_belong_to_them() {
    let corpus = corpus();
    assert!(corpus.len() >= 60, "{}", corpus.len());
    for family in families() {
        let has = |line: &&Value| line["config"]["model_type"] == family.name;
        assert!(corpus.iter().any(|l| has(&l)), "no text of {}", family.name);
    }
    for line in &corpus {
        let source = line["source"].as_str().unwrap();
        let read = ModelSpec::from_hf(&line["config"]);
        if let Some(key) = line.get("refused") {
            assert_eq!(read.unwrap_err().key, *key, "{source}");
            continue;
        }
        let spec = read.unwrap_or_else(|e| panic!("{source}: {e}"));
        assert_eq!(spec.unread(), names(&line["unread"]), "{source}");
        assert_eq!(spec.warning().is_some(), !spec.unread().is_empty());
        // Without those keys it is the same model, and so to the same bits.
        let mut without = line["config"].clone();
        for name in spec.unread() {
            let mut at = &mut without;
            let mut path = name.as_str();
            if at.get(path).is_none() {
                let (part, rest) = name.split_once('.').unwrap();
                (at, path) = (&mut at[part], rest);
            }
            at.as_object_mut().unwrap().remove(path).unwrap();
        }
        let plain = ModelSpec::from_hf(&without).unwrap();
        assert_eq!((&plain, plain.warning()), (&spec, None), "{source}");
        assert_eq!(plain.hf_config(), spec.hf_config(), "{source}");
    }
}

fn small(family: &str) -> Value {
    let f = crossweave_family::family(family).unwrap();
    let preset = f.preset(&PRESETS[0]).into_iter();
    let given: Map<_, _> = preset
        .map(|(k, text)| (k.to_string(), serde_json::from_str(&text).unwrap()))
        .collect();
    ModelSpec::new(f, &given).unwrap().hf_config()
}

/// Numbers by a seed, so that a failure is found again.
struct Seeded(u64);
impl Seeded {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Any keys that no class has, of any value: the same model and one warning that names them.
#[test]
fn keys_that_no_class_has_change_nothing() {
    let mut r = Seeded(36);
    for f in FAMILIES {
        let config = small(f.name);
        let plain = ModelSpec::from_hf(&config).unwrap();
        for _ in 0..20 {
            let mut other = config.clone();
            let mut added: Vec<String> = (0..1 + r.below(20))
                .map(|_| {
                    format!(
                        "{}_zz{}",
                        ["use", "x.y", "num layers", "", "ключ"][r.below(5) as usize],
                        r.below(999)
                    )
                })
                .collect();
            added.sort();
            added.dedup();
            for name in &added {
                let values = [
                    json!(true),
                    json!(false),
                    json!(0),
                    json!(-1.5),
                    json!("gelu"),
                    json!([1]),
                    json!({"a": {"b": 1}}),
                ];
                other[name] = values[r.below(7) as usize].clone();
            }
            let spec = ModelSpec::from_hf(&other).unwrap();
            assert_eq!((&spec, spec.hf_config()), (&plain, plain.hf_config()));
            assert_eq!(spec.unread(), added);
            let warning = spec.warning().unwrap();
            assert_eq!(warning.lines().count(), 1, "{warning}");
            assert!(warning.contains(&added[0]), "{warning}");
        }
    }
}

/// What the classes read and no model here has is refused by its key, but for the value that says nothing.
#[test]
fn keys_that_the_class_reads_are_refused_unless_they_say_nothing() {
    for f in FAMILIES {
        for (key, nothing, something) in [
            ("is_causal", json!(true), json!(false)),
            ("chunk_size_feed_forward", json!(0), json!(2)),
            ("pruned_heads", json!({}), json!({"0": [1]})),
            (
                "quantization_config",
                json!({}),
                json!({"quant_method": "awq", "bits": 4}),
            ),
            (
                "per_layer_config",
                json!({}),
                json!({"0": {"num_attention_heads": 2}}),
            ),
        ] {
            let mut config = small(f.name);
            let plain = ModelSpec::from_hf(&config).unwrap();
            config[key] = nothing;
            let same = ModelSpec::from_hf(&config).unwrap();
            assert_eq!((&same, same.warning()), (&plain, None), "{}: {key}", f.name);
            config[key] = something;
            let e = ModelSpec::from_hf(&config).unwrap_err();
            assert_eq!(e.key, key, "{}: {e}", f.name);
        }
    }
}

/// A key of another family says nothing at the value that this one has, and names another model at any other.
#[test]
fn keys_of_other_families_say_nothing_or_are_refused() {
    let llama = small("llama");
    let plain = ModelSpec::from_hf(&llama).unwrap();
    let act = "activation_function";
    for (family, key, nothing, something) in [
        ("llama", "alibi", json!(false), json!(true)),
        (
            "llama",
            "n_layer",
            llama["num_hidden_layers"].clone(),
            json!(3),
        ),
        ("llama", "n_embd", llama["hidden_size"].clone(), json!(99)),
        ("llama", "activation", json!("swiglu"), json!("gelu")),
        ("llama", "hidden_dropout", json!(0.0), json!(0.1)),
        ("llama", "sliding_window", json!(1 << 20), json!(16)),
        (
            "llama",
            "layer_types",
            json!(["full_attention"]),
            json!(["sliding_attention"]),
        ),
        ("llama", "use_qk_norm", json!(false), json!(true)),
        ("llama", "logit_scale", json!(1.0), json!(0.0625)),
        (
            "llama",
            "layer_norm_eps",
            llama["rms_norm_eps"].clone(),
            json!(0.5),
        ),
        ("llama", "rotary_pct", json!(1.0), json!(0.25)),
        (
            "llama",
            "position_embedding_type",
            json!("rope"),
            json!("absolute"),
        ),
        ("mistral", "attention_bias", json!(false), json!(true)),
        ("phi3", "mlp_bias", json!(false), json!(true)),
        ("gpt2", "num_key_value_heads", json!(4), json!(2)),
        ("starcoder2", act, json!("gelu"), json!("silu")),
        (
            "starcoder2",
            "scale_attn_weights",
            json!(true),
            json!(false),
        ),
        ("gpt_neox", "head_dim", json!(64), json!(32)),
    ] {
        let mut config = small(family);
        let plain = ModelSpec::from_hf(&config).unwrap();
        config[key] = nothing;
        let spec = ModelSpec::from_hf(&config).unwrap_or_else(|e| panic!("{family}: {e}"));
        assert_eq!(spec, plain, "{family}: {key}");
        config[key] = something;
        let e = ModelSpec::from_hf(&config).unwrap_err();
        assert_eq!(e.key, key, "{family}: {e}");
    }
    // A length says nothing of the figures.
    let mut longer = llama.clone();
    longer["n_positions"] = json!(99);
    assert_eq!(ModelSpec::from_hf(&longer).unwrap(), plain);
}

/// Other names that `transformers` takes for a key.
#[test]
fn other_names_of_keys_are_read() {
    for (family, alias, key) in [
        ("gpt2", "hidden_size", "n_embd"),
        ("gpt2", "num_attention_heads", "n_head"),
        ("gpt2", "num_hidden_layers", "n_layer"),
        ("gpt2", "max_position_embeddings", "n_positions"),
        ("bloom", "n_embed", "hidden_size"),
        ("bloom", "num_attention_heads", "n_head"),
        ("bloom", "num_hidden_layers", "n_layer"),
        ("falcon", "n_embed", "hidden_size"),
        ("t5", "hidden_size", "d_model"),
        ("t5", "num_hidden_layers", "num_layers"),
        ("t5", "num_attention_heads", "num_heads"),
        ("t5", "head_dim", "d_kv"),
    ] {
        let mut config = small(family);
        let plain = ModelSpec::from_hf(&config).unwrap();
        let value = config.as_object_mut().unwrap().remove(key).unwrap();
        config[alias] = value.clone();
        let spec = ModelSpec::from_hf(&config).unwrap();
        assert_eq!((&spec, spec.warning()), (&plain, None), "{family}: {alias}");
        config[key] = value.clone();
        assert_eq!(ModelSpec::from_hf(&config).unwrap(), plain);
        config[key] = json!(value.as_u64().unwrap() * 2);
        let e = ModelSpec::from_hf(&config).unwrap_err();
        assert!(e.key == alias && e.what.contains(key), "{e}");
    }
}

/// Values that a config class does not keep.
#[test]
fn values_that_a_config_class_replaces_are_replaced() {
    let mut gemma = small("gemma");
    gemma["hidden_act"] = json!("gelu");
    let spec = ModelSpec::from_hf(&gemma).unwrap();
    gemma["hidden_act"] = json!("gelu_pytorch_tanh");
    assert_eq!(spec, ModelSpec::from_hf(&gemma).unwrap());
    // So that 4.57, which takes it as it stands, computes the same.
    assert_eq!(spec.hf_config()["hidden_act"], "gelu_pytorch_tanh");
    // Phi-3's class takes yarn for longrope.
    let mut phi3 = small("phi3");
    let pairs = vec![2.0; 32];
    phi3.as_object_mut().unwrap().remove("rope_parameters");
    phi3["rope_scaling"] = json!({"type": "yarn", "short_factor": pairs, "long_factor": pairs});
    let spec = ModelSpec::from_hf(&phi3).unwrap();
    phi3["rope_scaling"]["type"] = json!("longrope");
    assert_eq!(spec, ModelSpec::from_hf(&phi3).unwrap());
    // Where two versions take another value for nothing, it must be said.
    let mut cohere = small("cohere");
    for key in ["rope_theta", "rope_parameters"] {
        cohere.as_object_mut().unwrap().remove(key);
    }
    assert_eq!(ModelSpec::from_hf(&cohere).unwrap_err().key, "rope_theta");
}

/// A family that is not available: the nearest, and which keys of the file that one does not know.
#[test]
fn an_unknown_family_is_told_the_nearest_and_what_it_lacks() {
    let mut other = small("mistral");
    other["model_type"] = json!("mistrale");
    other["num_shared_experts"] = json!(8);
    let e = ModelSpec::from_hf(&other).unwrap_err();
    assert!(
        e.what.contains("mistral,") && e.what.contains("num_shared_experts"),
        "{e}"
    );
    let mut typed = small("llama");
    typed["model_type"] = json!("lama");
    let e = ModelSpec::from_hf(&typed).unwrap_err();
    assert!(
        e.what.contains("llama") && e.what.contains("has every key"),
        "{e}"
    );
    let gemma3 =
        json!({"model_type": "gemma3", "text_config": small("gemma3_text"), "vision_config": {}});
    // The language model of a folder with images is that family's.
    let spec = ModelSpec::from_hf(&gemma3).unwrap();
    assert_eq!(spec.model().width, 256);
    let e = ModelSpec::from_hf(&json!({"model_type": "no"})).unwrap_err();
    assert!(e.what.contains("gpt2, llama"), "{e}");
}

/// A warning is one line however many keys there are, and a name that is nearly one of the class's is pointed at.
#[test]
fn a_warning_folds_and_names_the_nearest_key() {
    let mut config = small("llama");
    for i in 0..99 {
        config[format!("zz{i:02}")] = json!(i);
    }
    let warning = ModelSpec::from_hf(&config).unwrap().warning().unwrap();
    assert!(
        warning.len() < 300 && warning.contains("and 87 more"),
        "{warning}"
    );
    let mut config = small("llama");
    config.as_object_mut().unwrap().remove("rope_scaling");
    config["rope_scalling"] = json!(3);
    let warning = ModelSpec::from_hf(&config).unwrap().warning().unwrap();
    assert!(warning.contains("did you mean rope_scaling?"), "{warning}");
}
