//! Folders whose config and tensors contradict each other, of families with fused, normed and tied parts: each is one error that names the
//! file, the tensor or the key, and nothing is written.

use crate::common::Scratch;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

fn oracle(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/oracles");
    root.join(name)
}

fn tensors(name: &str) -> Tensors {
    let bytes = std::fs::read(oracle(name).join("model/model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    file.iter()
        .map(|(n, t)| {
            (
                n.to_string(),
                (t.dtype(), t.shape().to_vec(), t.data().to_vec()),
            )
        })
        .collect()
}

fn written(path: &Path, all: &Tensors) {
    let views: Vec<(String, TensorView<'_>)> = all
        .iter()
        .map(|(n, (d, s, b))| (n.clone(), TensorView::new(*d, s.clone(), b).unwrap()))
        .collect();
    safetensors::serialize_to_file(views, None, path).unwrap();
}

fn config(name: &str) -> Value {
    let path = oracle(name).join("model/config.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
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

    fn refuses(&mut self, config: &Value, all: &Tensors, parts: &[&str]) {
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
        let inputs = inputs.display().to_string();
        let mut all = vec![folder, "fix:"];
        all.extend(parts);
        let probe = ["probe", "--model", folder, "--inputs", &inputs];
        let args = [&probe[..], &["--out", "o.safetensors"]].concat();
        let absent = ["o.safetensors", "o.safetensors.partial", "run"];
        let said = self.s.refused(&args, &all, &absent);
        let model = format!("model={}", json!({"hf": folder}));
        let data = oracle(self.case).join("train.safetensors");
        let data = format!("data={}", json!({"tokens": data, "key": "input_ids"}));
        let train = ["train", "config.json", "--set", &model, "--set", &data];
        let more = ["--set", "train_batch_size=2", "--out", "run"];
        let args = [&train[..], &more].concat();
        let trained = self.s.refused(&args, &all, &absent);
        let last = |text: &str| text.lines().last().unwrap_or_default().to_string();
        assert!(!last(&said).is_empty() && !last(&trained).is_empty());
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
        let rest: Tensors = whole
            .iter()
            .filter(|(n, _)| *n != vector)
            .map(|(n, t)| (n.clone(), t.clone()))
            .collect();
        let second: Tensors = [vector, matrix]
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
        let args = [
            "train",
            "config.json",
            "--set",
            &model,
            "--set",
            bytes,
            "--out",
            "run",
        ];
        s.refused(&args, &["48", "256", "fix:"], &["run"]);
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
    let mut refused = 0;
    for key in whole.as_object().unwrap().keys() {
        for value in [json!(long), json!([long]), deep.clone()] {
            let mut config = whole.clone();
            config[key] = value;
            s.write("model/config.json", config.to_string());
            let done = s.run(&[
                "generate", "--model", "model", "--prompt", "a", "--tokens", "1",
            ]);
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(said.len() < 3000, "{key}: {} bytes", said.len());
            refused += usize::from(said.contains(key.as_str()));
        }
    }
    assert!(refused > 20, "{refused}");
}
