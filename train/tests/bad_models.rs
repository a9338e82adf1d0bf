//! Folders whose config and tensors contradict each other, of families with fused, normed and tied parts: each is one error that names the
//! file, the tensor or the key, and nothing is written.

use crate::support::oracles::{Raw, oracle, raw, written};
use crate::support::{Scratch, names, open_json};
use crossweave_hal::DType;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

fn tensors(name: &str) -> Raw {
    raw(&oracle(name).join("model/model.safetensors"))
}

fn config(name: &str) -> Value {
    open_json(&oracle(name).join("model/config.json"))
}

/// A model that is not as its config says: probe and train refuse it in the same words.
struct Bench {
    s: Scratch,
    case: &'static str,
    tried: usize,
}

impl Bench {
    fn of(case: &'static str) -> Bench {
        Bench {
            s: Scratch::new(),
            case,
            tried: 0,
        }
    }

    fn refuses(&mut self, config: &Value, all: &Raw, parts: &[&str]) {
        let folder = format!("m{}", self.tried);
        self.tried += 1;
        let dir = self.s.path(&folder);
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
        written(&dir.join("model.safetensors"), all);
        self.refuses_folder(&folder, parts);
    }

    fn refuses_folder(&self, folder: &str, parts: &[&str]) {
        let inputs = oracle(self.case).join("inputs.safetensors");
        let mut all = vec![folder, "fix:"];
        all.extend(parts);
        let out = "o.safetensors";
        let probed = self.s.probe(Path::new(folder), &inputs, DType::F32, out);
        names(&probed.unwrap_err(), &all);
        let data = oracle(self.case).join("train.safetensors");
        let data = json!({"tokens": data, "key": "input_ids"});
        let model = format!("model={}", json!({"hf": folder}));
        let job = self.s.job("config.json").set(&model);
        let job = job.set(&format!("data={data}"));
        job.set("train_batch_size=2").refused(&all);
    }
}

/// A case, the key of a width, a matrix that is not square, and a vector.
const CASES: [(&str, &str, &str, &str); 10] = [
    (
        "qwen3-v5",
        "hidden_size",
        "model.layers.1.mlp.up_proj.weight",
        "model.layers.0.self_attn.q_norm.weight",
    ),
    (
        "gemma2-v4",
        "hidden_size",
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.1.pre_feedforward_layernorm.weight",
    ),
    (
        "phi3-v5",
        "hidden_size",
        "model.layers.0.self_attn.qkv_proj.weight",
        "model.norm.weight",
    ),
    (
        "bloom-v4",
        "hidden_size",
        "transformer.h.1.self_attention.query_key_value.weight",
        "transformer.word_embeddings_layernorm.bias",
    ),
    (
        "gpt-neox-v4",
        "hidden_size",
        "gpt_neox.layers.1.attention.query_key_value.weight",
        "gpt_neox.layers.0.attention.dense.bias",
    ),
    (
        "opt-v4",
        "ffn_dim",
        "model.decoder.layers.0.fc1.weight",
        "model.decoder.layers.1.self_attn_layer_norm.bias",
    ),
    (
        "cohere2-v4",
        "hidden_size",
        "model.layers.1.mlp.gate_proj.weight",
        "model.layers.0.input_layernorm.weight",
    ),
    (
        "bert-pairs-v5",
        "hidden_size",
        "bert.encoder.layer.0.intermediate.dense.weight",
        "bert.encoder.layer.1.output.LayerNorm.bias",
    ),
    (
        "t5-v5",
        "d_ff",
        "encoder.block.0.layer.1.DenseReluDense.wi.weight",
        "decoder.block.1.layer.0.layer_norm.weight",
    ),
    (
        "llava-v4",
        "text_config/hidden_size",
        "language_model.model.layers.0.mlp.down_proj.weight",
        "language_model.model.layers.1.input_layernorm.weight",
    ),
];

#[test]
fn a_model_that_is_not_as_its_config_says_is_one_error() {
    for (case, width, matrix, vector) in CASES {
        let mut b = Bench::of(case);
        let (config, whole) = (config(case), tensors(case));
        let name = |n: &str| n.to_string();

        let mut other = config.clone();
        let key = other.pointer_mut(&format!("/{width}")).unwrap();
        *key = json!(2 * key.as_u64().unwrap());
        b.refuses(&other, &whole, &["config says [", "the file ["]);

        let mut more = config.clone();
        let keys = ["n_layer", "num_decoder_layers", "num_hidden_layers"];
        let part = width
            .rsplit_once('/')
            .map_or(String::new(), |(part, _)| format!("/{part}"));
        let part = more.pointer_mut(&part).unwrap();
        let layers = keys.into_iter().find(|k| part.get(k).is_some()).unwrap();
        part[layers] = json!(3);
        if let Some(Value::Array(kinds)) = more.get_mut("layer_types") {
            kinds.push(kinds[0].clone());
        }
        let third = vector_of_layer(vector, matrix).replacen(".1.", ".2.", 1);
        b.refuses(&more, &whole, &[&third[..third.find(".2.").unwrap() + 3]]);

        for gone in [matrix, vector] {
            let mut all = whole.clone();
            all.remove(gone).unwrap();
            b.refuses(&config, &all, &[gone, "missing"]);
        }

        let mut all = whole.clone();
        let (dtype, shape, bytes) = whole[matrix].clone();
        all.insert(name(matrix), (dtype, vec![shape[1], shape[0]], bytes));
        b.refuses(&config, &all, &[matrix, "transposed"]);

        for dtype in [Dtype::I64, Dtype::U8, Dtype::BOOL] {
            let mut all = whole.clone();
            let (_, shape, _) = whole[vector].clone();
            let bytes =
                vec![1; shape.iter().product::<usize>() * if dtype == Dtype::I64 { 8 } else { 1 }];
            all.insert(name(vector), (dtype, shape, bytes));
            b.refuses(&config, &all, &[vector, &format!("{dtype:?}")]);
        }

        let mut all = whole.clone();
        all.insert(name("model.layers.0.mystery.weight"), whole[vector].clone());
        b.refuses(&config, &all, &["mystery"]);
    }
}

/// A name of layer 1, from whichever of the two has one.
fn vector_of_layer(vector: &str, matrix: &str) -> String {
    let of_1 = |n: &&str| n.contains(".1.");
    let found = [vector, matrix].into_iter().find(of_1).map(String::from);
    found.unwrap_or_else(|| matrix.replace(".0.", ".1."))
}

#[test]
fn a_tensor_of_two_files_or_of_two_names_is_refused() {
    for (case, _, matrix, vector) in CASES {
        let (config, whole) = (config(case), tensors(case));
        let mut b = Bench::of(case);
        // With and without the base model's prefix.
        let bases = [
            "model.",
            "transformer.",
            "gpt_neox.",
            "bert.",
            "encoder.",
            "language_model.",
        ];
        let bare = bases.iter().find_map(|p| matrix.strip_prefix(p)).unwrap();
        let mut all = whole.clone();
        all.insert(bare.to_string(), whole[matrix].clone());
        b.refuses(&config, &all, &[bare]);

        // Two shards that both hold it.
        let dir = b.s.path("shards");
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
        let (one, two) = (
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        );
        let rest: Raw = whole
            .iter()
            .filter(|(n, _)| *n != vector)
            .map(|(n, t)| (n.clone(), t.clone()))
            .collect();
        let second: Raw = [vector, matrix]
            .map(|n| (n.to_string(), whole[n].clone()))
            .into();
        written(&dir.join(one), &rest);
        written(&dir.join(two), &second);
        let map: BTreeMap<Cow<'_, str>, &str> = whole
            .keys()
            .map(|n| (Cow::from(n.as_str()), if n == vector { two } else { one }))
            .collect();
        let index = json!({"metadata": {}, "weight_map": map});
        std::fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
        b.refuses_folder("shards", &[matrix, two]);
    }
}

#[test]
fn a_vocabulary_smaller_than_the_tokenizers_is_refused() {
    for case in [
        "qwen2-v4",
        "gemma3-v5",
        "opt-v5",
        "falcon-v4",
        "bert-v4",
        "t5-v4",
    ] {
        let s = Scratch::new();
        let model = format!("model={}", json!({"hf": oracle(case).join("model")}));
        // Bytes: 256 and more ids, and the models have 48.
        let bytes = r#"data.tokenizer="bytes""#;
        let job = s.job("config.json").set(&model).set(bytes);
        job.refused(&["48", "256", "fix:"]);
    }
}

/// Values of any length stand in a config.json; a message quotes the beginning and the end of what is long.
#[test]
fn messages_stay_short_whatever_a_config_holds() {
    let s = Scratch::new();
    std::fs::create_dir(s.path("model")).unwrap();
    let weights = oracle("llama-mha-tied").join("model/model.safetensors");
    std::fs::copy(weights, s.path("model/model.safetensors")).unwrap();
    let whole = config("llama-mha-tied");
    let long = "ab\u{e4}".repeat(7000);
    let deep = json!({"a": vec![long.as_str(); 3]});
    let inputs = oracle("llama-mha-tied").join("inputs.safetensors");
    let mut refused = 0;
    for key in whole.as_object().unwrap().keys() {
        for value in [json!(long), json!([long]), deep.clone()] {
            let mut config = whole.clone();
            config[key] = value;
            s.write("model/config.json", config.to_string());
            let probed = s.probe(Path::new("model"), &inputs, DType::F32, "o");
            let said = probed.unwrap_or_else(|e| e.to_string());
            assert!(said.len() < 3000, "{key}: {} bytes", said.len());
            refused += usize::from(said.contains(key.as_str()));
        }
    }
    assert!(refused > 20, "{refused}");
}
