//! What must hold of every family, whichever they are.

use crossweave_family::{Config, FAMILIES, Family, Fresh, Key, Kind, ModelSpec, PRESETS, family};
use serde_json::{Map, Value, json};

fn preset(f: &Family) -> Map<String, Value> {
    let keys = f.preset(&PRESETS[0]).into_iter();
    keys.map(|(k, text)| (k.to_string(), serde_json::from_str(&text).unwrap()))
        .collect()
}

/// A small model of the family, as `config.json`.
fn small(f: &'static Family) -> Value {
    let mut config = ModelSpec::new(f, &preset(f)).unwrap().hf_config();
    // So that windows are seen.
    for (key, value) in [
        ("use_sliding_window", json!(true)),
        ("max_window_layers", json!(2)),
        ("sliding_window_pattern", json!(2)),
        ("multi_query", json!(false)),
    ] {
        if f.key(key).is_some() {
            config[key] = value;
        }
    }
    config
}

/// Values to try for a key, other than what it holds.
fn others(row: &Key, now: Option<&Value>) -> Vec<Value> {
    let all = match row.kind {
        Kind::Int(_) => vec![json!(1), json!(2), json!(3), json!(128), json!(512)],
        Kind::Count(_) | Kind::Id => vec![json!(0), json!(1)],
        Kind::Positive | Kind::Factor => vec![json!(0.5), json!(3.0), json!(64.0)],
        Kind::Numbers => vec![json!([0]), json!([1, 2])],
        Kind::Part => vec![json!(0.5), json!(0.25)],
        Kind::Probability => vec![json!(0.25), json!(0.5)],
        Kind::Flag => vec![json!(true), json!(false)],
        Kind::Activation => vec![json!("relu"), json!("gelu"), json!("silu")],
        Kind::FeedForward => vec![json!("gated-gelu"), json!("silu"), json!("gated-relu")],
        Kind::Scaling => vec![json!({"rope_type": "linear", "factor": 2.0})],
        Kind::Layers => vec![],
        Kind::Classes(all) => all.iter().map(|name| json!([name])).collect(),
        Kind::Bits => vec![json!([0, 0, 0, 0]), json!([1, 0, 1, 0])],
        Kind::Pattern => vec![json!(3), json!("LG")],
        Kind::Only(_) | Kind::Keys => vec![],
        Kind::Place => vec![json!(0), json!(-1)],
        Kind::Word(all) => all.iter().map(|word| json!(word)).collect(),
    };
    all.into_iter().filter(|v| Some(v) != now).collect()
}

#[test]
fn rows_are_json_and_every_key_changes_the_model_or_is_refused() {
    for f in FAMILIES {
        let mut config = small(f);
        // It says the same as two keys of 4.x, which are tried here.
        config.as_object_mut().unwrap().remove("rope_parameters");
        let spec = ModelSpec::from_hf(&config).unwrap();
        for row in f.keys() {
            for text in [
                row.default,
                if let Fresh::Other(t) = row.fresh {
                    t
                } else {
                    ""
                },
            ] {
                let fits =
                    text.is_empty() || row.check(&serde_json::from_str(text).unwrap()).is_ok();
                assert!(fits, "{}: {}: {text}", f.name, row.name);
            }
            if let Kind::Only(value) = row.kind {
                let mut other = config.clone();
                other[row.name] = json!("something else");
                let e = ModelSpec::from_hf(&other).unwrap_err();
                assert!(
                    e.key == row.name && e.what.contains(value),
                    "{}: {e}",
                    f.name
                );
                continue;
            }
            let tried = others(row, spec.config().get(row.name));
            let with = |v: &Value| {
                let mut other = config.clone();
                other[row.name] = v.clone();
                ModelSpec::from_hf(&other)
            };
            let changes = |v: &Value| with(v).is_ok_and(|s| s.model() != spec.model());
            // It must agree with another key.
            let refused = |v: &Value| with(v).is_err();
            // Of a scaling that only folders have, and of Falcon's newer architecture.
            const OF_ANOTHER: [&str; 2] = [
                "original_max_position_embeddings",
                "num_ln_in_parallel_attn",
            ];
            if OF_ANOTHER.contains(&row.name) {
                continue;
            }
            let needs_other_keys = row.kind == Kind::Layers;
            assert!(
                needs_other_keys || tried.iter().any(changes) || tried.iter().all(refused),
                "{}: {} changes nothing",
                f.name,
                row.name
            );
        }
    }
}

#[test]
fn what_is_written_reads_back_as_the_same_model_in_both_forms() {
    for f in FAMILIES {
        let config = small(f);
        let spec = ModelSpec::from_hf(&config).unwrap();
        assert_eq!(
            spec,
            ModelSpec::from_hf(&spec.hf_config()).unwrap(),
            "{}",
            f.name
        );
        // As 5.x alone would write it, and as 4.x alone.
        let (mut five, mut four) = (config.clone(), config.clone());
        let [theta, part] = f.roles.rope;
        for key in [theta, part, "rope_scaling", "rope_local_base_freq"] {
            five.as_object_mut().unwrap().remove(key);
        }
        four.as_object_mut().unwrap().remove("rope_parameters");
        for form in [five, four] {
            assert_eq!(spec, ModelSpec::from_hf(&form).unwrap(), "{}", f.name);
        }
    }
}

#[test]
fn a_key_of_another_family_is_refused_and_one_of_none_is_a_warning() {
    for f in FAMILIES {
        let mut config = small(f);
        let plain = ModelSpec::from_hf(&config).unwrap();
        assert_eq!(plain.warning(), None, "{}", f.name);
        config["no_such_key"] = json!(3);
        let spec = ModelSpec::from_hf(&config).unwrap();
        assert_eq!(
            (&spec, spec.unread()),
            (&plain, &["no_such_key".to_string()][..])
        );
        let warning = spec.warning().unwrap();
        assert!(
            warning.contains("no_such_key") && warning.contains(f.architecture),
            "{warning}"
        );
        config["no_such_key"] = Value::Null;
        assert_eq!(ModelSpec::from_hf(&config).unwrap().warning(), None);
        for other in FAMILIES {
            // The class of a model is in every file.
            let passed =
                |k: &Key| k.name == "architectures" || f.harmless.split(' ').any(|h| h == k.name);
            let own = |k: &Key| f.key(k.name).is_some() || matches!(k.kind, Kind::Only(_));
            // A switch that is on wherever it is absent says nothing of a model without it.
            let on = |k: &Key| k.kind == Kind::Flag && k.default == "true";
            let strange = |k: &&Key| !own(k) && !passed(k) && !on(k);
            let Some(key) = other.keys().find(strange) else {
                continue;
            };
            let mut config = small(f);
            config[key.name] = json!(true);
            let e = ModelSpec::from_hf(&config).expect_err(key.name);
            assert!(
                e.key == key.name
                    && (e.what.contains(other.name) || e.what.contains("another name")),
                "{}: {e}",
                f.name
            );
        }
    }
}

#[test]
fn values_of_other_types_and_sizes_no_machine_has_are_refused() {
    for f in FAMILIES {
        let config = small(f);
        for row in f.keys() {
            for v in [
                json!([1]),
                json!(-1),
                json!(u64::MAX),
                json!({"x": 1}),
                json!("…"),
            ] {
                if row.kind == Kind::Id && v == json!(-1) {
                    continue;
                }
                // A number may be as large as it likes.
                let number = [Kind::Positive, Kind::Factor].contains(&row.kind);
                if number && v.as_f64().is_some_and(|x| x > 0.0) {
                    continue;
                }
                if row.kind == Kind::Numbers && v.is_array() {
                    continue;
                }
                let mut other = config.clone();
                other[row.name] = v.clone();
                let e = ModelSpec::from_hf(&other);
                assert!(e.is_err(), "{}: {} = {v}", f.name, row.name);
            }
        }
    }
    for text in [
        "{}",
        "[]",
        "3",
        r#"{"model_type": 3}"#,
        r#"{"model_type": "no"}"#,
    ] {
        let v = serde_json::from_str::<Value>(text).unwrap();
        assert!(ModelSpec::from_hf(&v).is_err(), "{text}");
    }
}

#[test]
fn a_new_model_begins_without_dropout() {
    for f in FAMILIES {
        let config = Config::of_new(f, &preset(f)).unwrap();
        for row in f.keys().filter(|r| r.kind == Kind::Probability) {
            assert_eq!(config.num(row.name), Ok(0.0), "{}: {}", f.name, row.name);
        }
    }
}

#[test]
fn a_family_is_a_short_file() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/families");
    for e in std::fs::read_dir(dir).unwrap().flatten() {
        let lines = std::fs::read_to_string(e.path()).unwrap().lines().count();
        assert!(lines <= 120, "{}: {lines} lines", e.path().display());
    }
}

#[test]
fn a_rotary_key_is_named_where_the_file_has_it() {
    for f in FAMILIES.iter().filter(|f| f.key("rope_scaling").is_some()) {
        let mut five = small(f);
        let whole = five.as_object_mut().unwrap();
        for key in ["rope_scaling", f.roles.rope[0]] {
            whole.remove(key);
        }
        let scaling = json!({"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0, "low_freq_factor": 3});
        let nested = ["gemma3_text", "olmo3"].contains(&f.name);
        five["rope_parameters"] = match nested {
            true => {
                json!({"full_attention": scaling, "sliding_attention": {"rope_theta": 10000.0}})
            }
            false => scaling.clone(),
        };
        let e = ModelSpec::from_hf(&five).unwrap_err();
        assert_eq!(e.key, "rope_parameters.low_freq_factor", "{}: {e}", f.name);
        let mut four = small(f);
        four.as_object_mut().unwrap().remove("rope_parameters");
        four["rope_scaling"] = json!({"type": "linear", "factor": 2.0, "low_freq_factor": 3});
        let e = ModelSpec::from_hf(&four).unwrap_err();
        // 4.x passes over a scaling of this family.
        let key =
            ["rope_scaling.low_freq_factor", "rope_scaling"][usize::from(f.name == "nemotron")];
        assert_eq!(e.key, key, "{}: {e}", f.name);
    }
}

/// 4.x reads the length at which `longrope` turns beside the scaling, 5.x within it.
#[test]
fn a_scaling_that_two_versions_read_differently_is_refused() {
    let llama = FAMILIES.iter().find(|f| f.name == "llama").unwrap();
    let mut config = small(llama);
    let pairs = vec![2.0; 32];
    config.as_object_mut().unwrap().remove("rope_parameters");
    config["rope_scaling"] = json!({"rope_type": "longrope", "short_factor": pairs, "long_factor": pairs,
        "factor": 4.0, "original_max_position_embeddings": 64});
    let e = ModelSpec::from_hf(&config).unwrap_err();
    assert!(e.key == "rope_scaling" && e.what.contains("64"), "{e}");
    // As 5.x writes it, and where both mean the same.
    let mut five = config.clone();
    five["rope_parameters"] = five["rope_scaling"].take();
    five["rope_parameters"]["rope_theta"] = five["rope_theta"].clone();
    ModelSpec::from_hf(&five).unwrap();
    let longest = config["max_position_embeddings"].clone();
    config["rope_scaling"]["original_max_position_embeddings"] = longest;
    ModelSpec::from_hf(&config).unwrap();
}

/// What a file says that two versions of `transformers` read differently, or that one of them cannot make a model of, is refused by its key.
#[test]
fn what_has_two_readings_is_refused() {
    let plain = json!({"rope_type": "default", "rope_theta": 500.0});
    let grown = json!({"rope_type": "default", "rope_theta": 500.0, "llama_4_scaling_beta": 0.1});
    for (family, changes, key) in [
        (
            "gemma3_text",
            json!({"rope_parameters": plain}),
            "rope_parameters",
        ),
        (
            "olmo3",
            json!({"rope_parameters": plain}),
            "rope_parameters",
        ),
        (
            "olmo3",
            json!({"rope_parameters": null, "rope_theta": 100.0}),
            "rope_theta",
        ),
        (
            "olmo3",
            json!({"rope_parameters": null, "rope_theta": null}),
            "rope_theta",
        ),
        ("olmo3", json!({"sliding_window": null}), "sliding_window"),
        (
            "nemotron",
            json!({"rope_parameters": null, "rope_scaling": {"type": "linear", "factor": 2.0}}),
            "rope_scaling",
        ),
        (
            "ministral3",
            json!({"rope_parameters": null, "rope_scaling": null, "rope_theta": 100.0}),
            "rope_theta",
        ),
        (
            "ministral3",
            json!({"rope_parameters": null, "rope_scaling": grown, "rope_theta": null}),
            "rope_theta",
        ),
        (
            "ministral3",
            json!({"rope_parameters": plain, "rope_scaling": null, "rope_theta": null}),
            "rope_parameters.llama_4_scaling_beta",
        ),
        (
            "llama",
            json!({"rope_parameters": null, "rope_scaling": {"type": "linear", "factor": 2.0, "rope_theta": 5.0}}),
            "rope_scaling.rope_theta",
        ),
        (
            "hunyuan_v1_dense",
            json!({"rope_parameters": null, "rope_scaling": {"type": "dynamic", "alpha": -1.0}}),
            "rope_scaling.alpha",
        ),
        (
            "exaone4",
            json!({"sliding_window_pattern": "LLLG"}),
            "sliding_window_pattern",
        ),
        (
            "exaone4",
            json!({"sliding_window_pattern": 0}),
            "sliding_window_pattern",
        ),
        ("exaone4", json!({"sliding_window": null}), "sliding_window"),
        (
            "exaone4",
            json!({"sliding_window": null, "layer_types": vec!["sliding_attention"; 4]}),
            "layer_types",
        ),
        (
            "ministral",
            json!({"sliding_window": null, "layer_types": vec!["sliding_attention"; 4]}),
            "layer_types",
        ),
        (
            "smollm3",
            json!({"no_rope_layers": [1, 0]}),
            "no_rope_layers",
        ),
        (
            "smollm3",
            json!({"no_rope_layers": [true, false, true, false]}),
            "no_rope_layers",
        ),
        (
            "smollm3",
            json!({"use_sliding_window": false, "layer_types": vec!["sliding_attention"; 4]}),
            "layer_types",
        ),
        ("gptj", json!({"rotary_dim": 66}), "rotary_dim"),
        ("gptj", json!({"rotary_dim": 7}), "rotary_dim"),
    ] {
        let mut config = small(crossweave_family::family(family).unwrap());
        config
            .as_object_mut()
            .unwrap()
            .extend(changes.as_object().unwrap().clone());
        let e = ModelSpec::from_hf(&config).unwrap_err();
        assert_eq!(e.key, key, "{family} {changes}: {e}");
    }
    // Every layer sees everything: one base, whichever version.
    let mut all = small(family("olmo3").unwrap());
    all["rope_parameters"] = Value::Null;
    all["rope_theta"] = json!(100.0);
    all["layer_types"] = json!(vec!["full_attention"; 4]);
    ModelSpec::from_hf(&all).unwrap();
    // Hunyuan's stretch of the base does not depend on the length, and 0 is none.
    let mut hunyuan = small(family("hunyuan_v1_dense").unwrap());
    hunyuan["rope_parameters"] =
        json!({"rope_type": "dynamic", "factor": 1.0, "alpha": 8.0, "rope_theta": 100.0});
    hunyuan["rope_scaling"] = Value::Null;
    hunyuan["rope_theta"] = Value::Null;
    let theta = |config: &Value| {
        let spec = ModelSpec::from_hf(config).unwrap();
        match &spec.model().stack.layers[0].attention.1.positions {
            crossweave_family::desc::Positions::Rotary(r) => r.theta,
            _ => panic!("not rotated"),
        }
    };
    assert!((theta(&hunyuan) / (100.0 * 8f64.powf(64.0 / 62.0)) - 1.0).abs() < 1e-12);
    hunyuan["rope_parameters"]["alpha"] = json!(0);
    assert_eq!(theta(&hunyuan), 100.0);
}

/// A model of parts: keys of each are read by its own rows, and named with the part.
#[test]
fn parts_are_read_by_their_own_rows() {
    let llava = family("llava").unwrap();
    let llama = small(family("llama").unwrap());
    let vision = json!({"model_type": "clip_vision_model", "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 3,
        "num_attention_heads": 2, "image_size": 8, "patch_size": 4});
    let config = json!({"model_type": "llava", "image_token_index": 3, "vision_config": vision,
        "text_config": llama.as_object().unwrap().iter().filter(|(k, _)| *k != "tie_word_embeddings")
            .map(|(k, v)| (k.clone(), v.clone())).collect::<Map<_, _>>()});
    let with = |path: &[&str], v: Value| {
        let mut other = config.clone();
        let mut at = &mut other;
        for key in path {
            at = &mut at[*key];
        }
        *at = v;
        ModelSpec::from_hf(&other)
    };
    let spec = ModelSpec::from_hf(&config).unwrap();
    let seen = |s: &ModelSpec| {
        let v = s.model().vision.clone().unwrap();
        (v.tower.stack.layers.len(), v.kept.len(), v.features())
    };
    // The last layer but one; of the last and the norm behind it 16 parameters and 2 stay.
    assert_eq!(seen(&spec), (2, 18, 4));
    assert_eq!(spec, ModelSpec::from_hf(&spec.hf_config()).unwrap());
    let full = with(&["vision_feature_select_strategy"], json!("full")).unwrap();
    assert_eq!(seen(&full).2, 5);
    for (place, layers) in [(-4, 0), (0, 0), (1, 1), (3, 3), (-1, 3)] {
        let one = with(&["vision_feature_layer"], json!(place)).unwrap();
        assert_eq!(seen(&one).0, layers, "{place}");
    }
    for row in llava
        .keys()
        .filter(|r| !matches!(r.kind, Kind::Keys | Kind::Only(_)))
    {
        let mut tried = others(row, spec.config().get(row.name)).into_iter();
        let changed = |v: Value| with(&[row.name], v).is_ok_and(|s| s.model() != spec.model());
        assert!(tried.any(changed), "{} changes nothing", row.name);
    }
    let images = &[
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "image_size",
        "patch_size",
        "num_channels",
    ];
    for key in images {
        let changed = |n: u64| {
            let other = with(&["vision_config", key], json!(n));
            other.is_ok_and(|s| s.model() != spec.model())
        };
        assert!([1, 2, 4, 16].into_iter().any(changed), "{key}");
    }
    for (path, v, named) in [
        (
            &["vision_feature_layer"][..],
            json!(4),
            "vision_feature_layer",
        ),
        (
            &["vision_feature_layer"],
            json!([1, 2]),
            "vision_feature_layer",
        ),
        (
            &["vision_feature_select_strategy"],
            json!("cls"),
            "vision_feature_select_strategy",
        ),
        (&["image_token_index"], json!(1 << 20), "image_token_index"),
        (&["tie_word_embeddings"], json!(true), "tie_word_embeddings"),
        (
            &["text_config", "tie_word_embeddings"],
            json!(true),
            "text_config.tie_word_embeddings",
        ),
        (&["text_config", "alibi"], json!(true), "text_config.alibi"),
        (
            &["text_config", "model_type"],
            json!("qwen2"),
            "text_config.model_type",
        ),
        (&["text_config"], Value::Null, "text_config"),
        (
            &["vision_config", "patch_size"],
            json!(3),
            "vision_config.patch_size",
        ),
        (
            &["vision_config", "num_attention_heads"],
            json!(3),
            "vision_config.num_attention_heads",
        ),
        (
            &["vision_config", "model_type"],
            json!("siglip_vision_model"),
            "vision_config.model_type",
        ),
        (&["vision_config"], json!(3), "vision_config"),
        (&["n_layer"], json!(3), "n_layer"),
    ] {
        let e = with(path, v).unwrap_err();
        assert_eq!(e.key, named, "{e}");
    }
    for path in [
        &["text_config", "strange"][..],
        &["vision_config", "strange"],
        &["strange"],
    ] {
        let other = with(path, json!(1)).unwrap();
        assert_eq!((&other, other.unread()), (&spec, &[path.join(".")][..]));
    }
    // A family whose models are read from folders only has no new ones.
    let e = ModelSpec::new(llava, &Map::new()).unwrap_err();
    assert_eq!(e.key, "text_config", "{e}");
}

/// The language model of Gemma 3, in the `config.json` of the model around it.
#[test]
fn a_part_within_another_model_is_read_as_the_model_that_it_is() {
    let text = json!({"model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 300,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "sliding_window": 8, "sliding_window_pattern": 2});
    let outer = json!({"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": text, "eos_token_id": [1, 106],
        "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 1152}, "image_token_index": 262144, "mm_tokens_per_image": 256,
        "boi_token_index": 255999, "eoi_token_index": 256000, "initializer_range": 0.02});
    let (alone, within) = (
        ModelSpec::from_hf(&text).unwrap(),
        ModelSpec::from_hf(&outer).unwrap(),
    );
    assert_eq!(within, alone);
    assert_eq!(within.hf_config(), alone.hf_config());
    assert_eq!(within.unread().len(), 0);
    let refused = |change: &dyn Fn(&mut Value), key: &str| {
        let mut config = outer.clone();
        change(&mut config);
        let e = ModelSpec::from_hf(&config).unwrap_err();
        assert_eq!(e.key, key, "{e:?}");
    };
    refused(
        &|c| drop(c.as_object_mut().unwrap().remove("text_config")),
        "text_config",
    );
    refused(
        &|c| c["text_config"]["model_type"] = json!("llama"),
        "text_config.model_type",
    );
    refused(
        &|c| c["text_config"]["hidden_size"] = json!("wide"),
        "text_config.hidden_size",
    );
    refused(
        &|c| c["tie_word_embeddings"] = json!(false),
        "tie_word_embeddings",
    );
    let mut strange = outer.clone();
    strange["flavour"] = json!(3);
    strange["text_config"]["flavour"] = json!(3);
    let spec = ModelSpec::from_hf(&strange).unwrap();
    assert_eq!(spec.unread(), ["text_config.flavour", "flavour"]);
}

#[test]
fn positions_of_roberta_begin_behind_those_of_padding() {
    let config = |more: Value| {
        let mut c = json!({"model_type": "roberta", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 40,
            "max_position_embeddings": 34});
        for (key, value) in more.as_object().unwrap() {
            c[key] = value.clone();
        }
        ModelSpec::from_hf(&c)
    };
    let spec = config(json!({})).unwrap();
    assert_eq!(spec.model().positions, 32);
    let spec = config(json!({"pad_token_id": 0})).unwrap();
    assert_eq!(spec.model().positions, 33);
    for (more, key) in [
        (json!({"pad_token_id": 40}), "pad_token_id"),
        (
            json!({"max_position_embeddings": 2}),
            "max_position_embeddings",
        ),
        (json!({"tie_word_embeddings": false}), "tie_word_embeddings"),
    ] {
        assert_eq!(config(more).unwrap_err().key, key);
    }
}
