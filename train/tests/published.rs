//! Folders as they are published: tensors and keys that the class of `transformers` passes over change no bit, whatever would is refused.

use crate::support::oracles::{Raw, oracle, raw, written};
use crate::support::{Scratch, names, open_json};
use crossweave_hal::DType;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};
use std::path::Path;

/// A folder of these.
fn folder(s: &Scratch, name: &str, config: &Value, all: &Raw) {
    std::fs::create_dir_all(s.path(name)).unwrap();
    s.write(&format!("{name}/config.json"), config.to_string());
    written(&s.path(name).join("model.safetensors"), all);
}

/// What probe finds of the folder, without the names that gradients have in it, and what it says.
fn probed(s: &Scratch, case: &str, name: &str) -> (Vec<(Dtype, Vec<usize>, Vec<u8>)>, String) {
    let inputs = oracle(case).join("inputs.safetensors");
    let out = format!("{name}.out");
    let said = s.probe(Path::new(name), &inputs, DType::F32, &out).unwrap();
    let found = raw(&s.path(&out));
    let figures = ["logits", "loss"].map(|n| found[n].clone());
    (figures.into_iter().collect(), said)
}

fn f32s(shape: &[usize]) -> (Dtype, Vec<usize>, Vec<u8>) {
    let n: usize = shape.iter().product();
    let bytes = (0..n)
        .flat_map(|i| (0.5 + i as f32).to_le_bytes())
        .collect();
    (Dtype::F32, shape.to_vec(), bytes)
}

fn bytes(dtype: Dtype, shape: &[usize]) -> (Dtype, Vec<usize>, Vec<u8>) {
    (dtype, shape.to_vec(), vec![1; shape.iter().product()])
}

/// A case of each family, what the names of its base model begin with, the copy of a tied tensor and the tensor, and what its published files
/// hold beside the parameters (`names.json` of issue 36, `_keys_to_ignore_on_load_unexpected` of the classes, first releases).
type Case = (
    &'static str,
    &'static str,
    Option<(&'static str, &'static str)>,
    &'static [&'static str],
);
const LM: &str = "lm_head.weight";
const INV_FREQ: &[&str] = &["model.layers.0.self_attn.rotary_emb.inv_freq"];
const EMBED: Option<(&str, &str)> = Some((LM, "model.embed_tokens.weight"));
const CASES: [Case; 36] = [
    (
        "gpt2-tied",
        "transformer.",
        Some((LM, "transformer.wte.weight")),
        &[
            "transformer.h.0.attn.bias",
            "h.1.attn.bias",
            "h.1.attn.masked_bias",
            "transformer.h.0.crossattention.bias",
            "multiple_choice_head.summary.weight",
        ],
    ),
    (
        "llama-mha-tied",
        "model.",
        EMBED,
        &[
            "model.layers.0.self_attn.rotary_emb.inv_freq",
            "model.rotary_emb.inv_freq",
            "v_head.summary.bias",
        ],
    ),
    ("mistral-v5", "model.", EMBED, &["score.weight"]),
    (
        "qwen2-v4",
        "model.",
        EMBED,
        &[
            "model.layers.0.self_attn.rotary_emb.cos_cached",
            "classifier.bias",
        ],
    ),
    ("qwen3-v4", "model.", None, &["qa_outputs.weight"]),
    (
        "gemma-v4",
        "model.",
        EMBED,
        &["model.layers.1.self_attn.rotary_emb.inv_freq"],
    ),
    (
        "gemma2-v4",
        "model.",
        EMBED,
        &["model.layers.1.self_attn.rotary_emb.inv_freq"],
    ),
    (
        "gemma3-v4",
        "model.",
        EMBED,
        &["model.rotary_emb.original_inv_freq"],
    ),
    (
        "phi-v4",
        "model.",
        None,
        &["model.layers.1.self_attn.rotary_emb.sin_cached"],
    ),
    (
        "phi3-v5",
        "model.",
        EMBED,
        &["model.layers.0.self_attn.rotary_emb.inv_freq"],
    ),
    ("olmo2-v4", "model.", None, &["model.rotary_emb.inv_freq"]),
    (
        "gpt-neox-v4",
        "gpt_neox.",
        None,
        &[
            "gpt_neox.layers.0.attention.bias",
            "gpt_neox.layers.1.attention.masked_bias",
            "gpt_neox.layers.0.attention.rotary_emb.inv_freq",
        ],
    ),
    (
        "opt-v4",
        "model.",
        Some((LM, "model.decoder.embed_tokens.weight")),
        &["model.decoder.version", "decoder.version"],
    ),
    (
        "bloom-v4",
        "transformer.",
        Some((LM, "transformer.word_embeddings.weight")),
        &["score.weight"],
    ),
    (
        "falcon-v4",
        "transformer.",
        Some((LM, "transformer.word_embeddings.weight")),
        &["transformer.h.0.self_attention.rotary_emb.inv_freq"],
    ),
    (
        "stablelm-v4",
        "model.",
        None,
        &["model.layers.0.self_attn.rotary_emb.inv_freq"],
    ),
    (
        "starcoder2-v4",
        "model.",
        EMBED,
        &["model.layers.0.self_attn.rotary_emb.inv_freq"],
    ),
    ("cohere-v4", "model.", EMBED, &["model.rotary_emb.inv_freq"]),
    (
        "cohere2-v4",
        "model.",
        EMBED,
        &["model.rotary_emb.inv_freq"],
    ),
    (
        "granite-v5",
        "model.",
        EMBED,
        &["model.layers.0.self_attn.rotary_emb.inv_freq"],
    ),
    ("glm-v5", "model.", EMBED, &["model.rotary_emb.inv_freq"]),
    ("glm4-v4", "model.", None, &["model.rotary_emb.inv_freq"]),
    ("arcee-v4", "model.", EMBED, INV_FREQ),
    ("seed-oss-v5", "model.", EMBED, INV_FREQ),
    ("smollm3-v4", "model.", EMBED, INV_FREQ),
    ("ernie4-5-v4", "model.", EMBED, INV_FREQ),
    ("hunyuan-v5", "model.", EMBED, INV_FREQ),
    ("olmo3-v5", "model.", EMBED, INV_FREQ),
    ("exaone4-v5", "model.", EMBED, INV_FREQ),
    ("nemotron-v5", "model.", EMBED, INV_FREQ),
    ("ministral-v5", "model.", EMBED, INV_FREQ),
    ("ministral3-window", "model.", EMBED, INV_FREQ),
    (
        "gptj-v4",
        "transformer.",
        None,
        &[
            "transformer.h.0.attn.bias",
            "h.1.attn.bias",
            "h.1.attn.masked_bias",
        ],
    ),
    (
        "bert-v4",
        "bert.",
        Some((
            "cls.predictions.decoder.weight",
            "bert.embeddings.word_embeddings.weight",
        )),
        &[
            "bert.pooler.dense.weight",
            "bert.pooler.dense.bias",
            "cls.seq_relationship.weight",
            "cls.seq_relationship.bias",
            "bert.embeddings.position_ids",
            "bert.embeddings.token_type_ids",
        ],
    ),
    (
        "t5-v5",
        "",
        Some(("decoder.embed_tokens.weight", "shared.weight")),
        &["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"],
    ),
    (
        "llava-v4",
        "",
        None,
        &[
            "vision_tower.vision_model.embeddings.position_ids",
            "language_model.model.layers.0.self_attn.rotary_emb.inv_freq",
        ],
    ),
];

/// An extra tensor of a name, as published files hold it.
fn extra(name: &str) -> (Dtype, Vec<usize>, Vec<u8>) {
    match name {
        _ if name.contains("masked_bias") || name.ends_with("version") => f32s(&[]),
        _ if name.ends_with("ttention.bias") => bytes(Dtype::BOOL, &[1, 1, 8, 8]),
        _ if name.ends_with("attn.bias") => bytes(Dtype::U8, &[1, 1, 8, 8]),
        _ if name.ends_with("_ids") => (Dtype::I64, vec![1, 8], vec![0; 64]),
        _ => f32s(&[2, 3]),
    }
}

#[test]
fn what_published_files_hold_beside_the_parameters_changes_no_bit() {
    for (case, base, tied, extras) in CASES {
        let s = Scratch::new();
        let config = open_json(&oracle(case).join("model/config.json"));
        let whole = raw(&oracle(case).join("model/model.safetensors"));
        folder(&s, "plain", &config, &whole);
        let (plain, said) = probed(&s, case, "plain");
        assert!(!said.contains("heads for other tasks"), "{said}");

        let mut more = whole.clone();
        more.extend(extras.iter().map(|n| (n.to_string(), extra(n))));
        if let Some((copy, of)) = tied {
            more.insert(copy.into(), whole[of].clone());
        }
        folder(&s, "more", &config, &more);
        let (found, said) = probed(&s, case, "more");
        assert!(found == plain, "{case}");
        let heads = [
            "multiple_choice_head.",
            "v_head.",
            "score.",
            "classifier.",
            "qa_outputs.",
        ];
        let head = extras
            .iter()
            .any(|n| heads.iter().any(|h| n.starts_with(h)));
        assert_eq!(
            said.contains("heads for other tasks"),
            head,
            "{case}: {said}"
        );

        // Without the base model's prefix, as the first releases are.
        if !base.is_empty() {
            let bare = |n: &String| n.strip_prefix(base).unwrap_or(n).to_string();
            let bare = more.iter().map(|(n, t)| (bare(n), t.clone())).collect();
            folder(&s, "bare", &config, &bare);
            assert!(probed(&s, case, "bare").0 == plain, "{case}");
        }

        // A copy that is another tensor, and a parameter that the model does not have.
        let inputs = oracle(case).join("inputs.safetensors");
        let refused = |name: &str, all: &Raw, parts: &[&str]| {
            folder(&s, name, &config, all);
            let probed = s.probe(Path::new(name), &inputs, DType::F32, "o");
            names(&probed.unwrap_err(), parts);
        };
        if let Some((copy, of)) = tied {
            let mut other = more.clone();
            let (dtype, shape, mut bytes) = whole[of].clone();
            bytes[3] ^= 0x40;
            other.insert(copy.into(), (dtype, shape, bytes));
            refused("other", &other, &[copy, of]);
        }
        let (harmful, tensor) = whole
            .iter()
            .find(|(n, _)| n.ends_with("weight") && n.contains(".1."))
            .unwrap();
        let harmful = harmful.replace(".weight", ".lora_B");
        let mut other = more.clone();
        other.insert(harmful.clone(), tensor.clone());
        refused("harmful", &other, &["unexpected", &harmful]);
    }
}

/// Keys that no class has: the same bits, and one line that names them.
#[test]
fn keys_that_no_class_reads_change_no_bit_and_are_one_warning() {
    for (seed, case) in [
        "llama-mha-tied",
        "gpt2-tied",
        "phi3-v5",
        "bert-v4",
        "t5-v5",
        "llava-v4",
    ]
    .into_iter()
    .enumerate()
    {
        let s = Scratch::new();
        let config = open_json(&oracle(case).join("model/config.json"));
        let whole = raw(&oracle(case).join("model/model.safetensors"));
        folder(&s, "plain", &config, &whole);
        let (plain, said) = probed(&s, case, "plain");
        assert!(!said.contains("does not read"), "{said}");
        let mut other = config.clone();
        for i in 0..=3 * seed {
            let values = [
                json!(true),
                json!(7),
                json!("gelu"),
                json!({"a": [1, 2]}),
                json!(0.5),
            ];
            other[format!("key_of_nobody_{i:02}")] = values[(i + seed) % 5].clone();
        }
        folder(&s, "other", &other, &whole);
        let (found, said) = probed(&s, case, "other");
        assert!(found == plain, "{case}");
        let warnings: Vec<_> = said
            .lines()
            .filter(|l| l.starts_with("warning: "))
            .collect();
        assert!(
            warnings.len() == 1
                && warnings[0].contains("key_of_nobody_00")
                && warnings[0].contains("config.json"),
            "{said}"
        );
    }
}
