//! `model`: a Hugging Face folder, or a family with its dimensions under Hugging Face's names.

use crate::json::{Json, Member};
use crate::schema::*;

const RECOMPUTE: Field = word(
    "recompute",
    &["none", "full", "selective"],
    "\"none\"",
    "activations recomputed in the backward pass instead of kept",
);

const SAVE_DTYPE: Field = word(
    "save_dtype",
    &["f32", "bf16", "f16"],
    "",
    "type of the weights in DIR/model; absent = f32, or with stage3_gather_16bit_weights_on_model_save the 16-bit type of the run",
)
.auto();

const INIT: Table = Table {
    doc: "initial weights: normal, biases 0, norm weights 1; each tensor is drawn from run.seed and its own name",
    overlay: None,
    fields: &[
        non_negative(
            "std",
            "0.02",
            "standard deviation of matrices and embeddings",
        ),
        flag(
            "scale_residual",
            "true",
            "divide by sqrt(2 x layers) for the projections that write into the residual stream",
        ),
    ],
};

/// Modules by name, or one pattern.
const TARGETS: Forms = Forms {
    doc: "modules that are adapted: a list of names (a module of that name, or whose name ends in .NAME), a regular expression for whole names, or \"all-linear\" (every linear layer but the head); absent = PEFT's choice for the family (gpt2: c_attn; llama: q_proj, v_proj)",
    forms: &[
        Form {
            name: "pattern",
            kind: Kind::Text { empty: false },
        },
        Form {
            name: "names",
            kind: Kind::Texts,
        },
    ],
    pick: |value| match value {
        Json::Text(_) => Ok(0),
        Json::List(_) => Ok(1),
        other => Err((
            format!("wanted names of modules, got {}", other.describe()),
            "write [\"q_proj\", \"v_proj\"], \"all-linear\" or a regular expression".into(),
        )),
    },
};

const LORA: Table = Table {
    doc: "LoRA: two small matrices beside each chosen linear layer are trained, and the model itself stays as it is (docs/finetuning.md)",
    overlay: None,
    fields: &[
        Field {
            kind: Kind::Int { min: 1, max: 65536 },
            ..int("r", 1, "8", "rank of the update")
        }
        .hf(),
        positive(
            "alpha",
            "8",
            "the update is multiplied by alpha / r (PEFT's lora_alpha)",
        )
        .hf(),
        probability(
            "dropout",
            "0.0",
            "dropout of what goes into the update (PEFT's lora_dropout)",
        )
        .hf(),
        flag(
            "rslora",
            "false",
            "the update is multiplied by alpha / sqrt(r) (PEFT's use_rslora)",
        )
        .hf(),
        forms("target_modules", &TARGETS, "").hf(),
        refused(
            "modules_to_save",
            "modules that are trained whole beside adapters; nothing but adapters is trained",
        )
        .hf(),
        refused("use_dora", "weight-decomposed adapters").hf(),
        refused(
            "layers_to_transform",
            "write the layers into target_modules as a regular expression",
        )
        .hf(),
        refused("rank_pattern", "every adapter of a run has one rank").hf(),
        refused("alpha_pattern", "every adapter of a run has one alpha").hf(),
    ],
};

const NO_LORA: Field = refused(
    "lora",
    "adapters sit on a model that exists; name its folder with {\"hf\": FOLDER}",
)
.own();

const HF: Table = Table {
    doc: "a model in Hugging Face layout, weights included",
    overlay: None,
    fields: &[
        text(
            "hf",
            "",
            "folder with config.json and safetensors, or \"org/name\" (\"org/name@revision\") of a model that `hf download` has put into the hub cache",
        )
        .required(),
        RECOMPUTE,
        SAVE_DTYPE,
        optional_section("lora", &LORA),
        probability(
            "resid_pdrop",
            "",
            "dropout of residual branches; absent = its config.json",
        )
        .hf()
        .auto(),
        probability(
            "embd_pdrop",
            "",
            "dropout of embeddings; absent = its config.json",
        )
        .hf()
        .auto(),
        probability(
            "attn_pdrop",
            "",
            "dropout of attention weights; absent = its config.json",
        )
        .hf()
        .auto(),
    ],
};

/// Activations that exist.
const ACTIVATIONS: &[&str] = &["gelu_new", "gelu_pytorch_tanh", "gelu", "relu", "silu"];

const FAMILY: Field = word(
    "family",
    &["gpt2", "llama"],
    "",
    "gpt2: LayerNorm, learned positions, GELU; llama: RMSNorm, RoPE, SwiGLU, grouped-query attention",
)
.required();
const PRESET: Field = word(
    "preset",
    &["tiny", "small", "gpt2"],
    "",
    "dimensions to start from: tiny (4 x 256, vocab 256), small (6 x 512, vocab 8192), gpt2 (12 x 768, vocab 50304)",
);
const VOCAB: Field = int(
    "vocab_size",
    1,
    "",
    "rows of the embedding; \"auto\" or absent (without preset) = the tokenizer's vocabulary",
)
.hf()
.auto();

const GPT2: Table = Table {
    doc: "a new model of the GPT-2 family; without a preset the dimensions are GPT-2 small's",
    overlay: Some(preset),
    fields: &[
        FAMILY,
        PRESET,
        VOCAB,
        NO_LORA,
        int("n_positions", 1, "1024", "longest sequence").hf(),
        int("n_embd", 1, "768", "width of the residual stream").hf(),
        int("n_layer", 1, "12", "number of blocks").hf(),
        int("n_head", 1, "12", "attention heads").hf(),
        int("n_inner", 1, "", "width of the MLP; absent = 4 x n_embd")
            .hf()
            .auto(),
        word(
            "activation_function",
            ACTIVATIONS,
            "\"gelu_new\"",
            "activation of the MLP; gelu_new is the tanh form",
        )
        .hf(),
        probability(
            "resid_pdrop",
            "0.0",
            "dropout of residual branches (Hugging Face's default is 0.1)",
        )
        .hf(),
        probability(
            "embd_pdrop",
            "0.0",
            "dropout of embeddings (Hugging Face's default is 0.1)",
        )
        .hf(),
        probability(
            "attn_pdrop",
            "0.0",
            "dropout of attention weights (Hugging Face's default is 0.1)",
        )
        .hf(),
        positive("layer_norm_epsilon", "1e-5", "added to the variance").hf(),
        flag(
            "tie_word_embeddings",
            "true",
            "the head is the embedding transposed",
        )
        .hf(),
        section("init", &INIT),
        RECOMPUTE,
        SAVE_DTYPE,
    ],
};

const ROPE_SCALING: Table = Table {
    doc: "scaling of rotary frequencies; absent = none",
    overlay: None,
    fields: &[
        word(
            "rope_type",
            &["default", "linear", "llama3"],
            "",
            "the rule",
        )
        .required()
        .hf(),
        positive("factor", "1.0", "how much longer sequences may get").hf(),
        positive(
            "low_freq_factor",
            "1.0",
            "llama3: wavelengths longer than original / this are scaled",
        )
        .hf(),
        positive(
            "high_freq_factor",
            "4.0",
            "llama3: wavelengths shorter than original / this are kept",
        )
        .hf(),
        int(
            "original_max_position_embeddings",
            1,
            "8192",
            "llama3: length the model was first trained for",
        )
        .hf(),
    ],
};

const LLAMA: Table = Table {
    doc: "a new model of the Llama family",
    overlay: Some(preset),
    fields: &[
        FAMILY,
        PRESET,
        VOCAB,
        NO_LORA,
        int("hidden_size", 1, "", "width of the residual stream")
            .required()
            .hf(),
        int(
            "intermediate_size",
            1,
            "",
            "width of the SwiGLU MLP; absent = 8/3 x hidden_size rounded up to 64",
        )
        .hf()
        .auto(),
        int("num_hidden_layers", 1, "", "number of blocks")
            .required()
            .hf(),
        int("num_attention_heads", 1, "", "query heads")
            .required()
            .hf(),
        int(
            "num_key_value_heads",
            1,
            "",
            "key/value heads; absent = num_attention_heads (presets: half of them)",
        )
        .hf()
        .auto(),
        int(
            "head_dim",
            1,
            "",
            "width of a head; absent = hidden_size / num_attention_heads",
        )
        .hf()
        .auto(),
        int("max_position_embeddings", 1, "2048", "longest sequence").hf(),
        positive(
            "rms_norm_eps",
            "1e-6",
            "added to the mean square (presets: 1e-5)",
        )
        .hf(),
        positive("rope_theta", "10000.0", "base of the rotary frequencies").hf(),
        optional_section("rope_scaling", &ROPE_SCALING).hf(),
        flag(
            "attention_bias",
            "false",
            "biases in the attention projections",
        )
        .hf(),
        flag("mlp_bias", "false", "biases in the MLP").hf(),
        flag(
            "tie_word_embeddings",
            "false",
            "the head is the embedding transposed (presets: true)",
        )
        .hf(),
        word(
            "hidden_act",
            &["silu"],
            "\"silu\"",
            "activation of the gate",
        )
        .hf(),
        probability("attention_dropout", "0.0", "dropout of attention weights").hf(),
        section("init", &INIT),
        RECOMPUTE,
        SAVE_DTYPE,
    ],
};

/// `model`.
pub const MODEL: Forms = Forms {
    doc: "the model: {\"hf\": FOLDER} or {\"family\": \"gpt2\" | \"llama\", ...}",
    forms: &[
        Form {
            name: "Hugging Face folder",
            kind: Kind::Section(&HF),
        },
        Form {
            name: "gpt2",
            kind: Kind::Section(&GPT2),
        },
        Form {
            name: "llama",
            kind: Kind::Section(&LLAMA),
        },
    ],
    pick,
};

fn member<'a>(members: &'a [Member], key: &str) -> Option<&'a Json> {
    members.iter().find(|m| m.key == key).map(|m| &m.node.value)
}

fn pick(value: &Json) -> Result<usize, (String, String)> {
    let how = "write {\"hf\": FOLDER} or {\"family\": \"gpt2\", \"preset\": \"tiny\"}";
    let Json::Object(members) = value else {
        return Err((
            format!("wanted an object, got {}", value.describe()),
            how.into(),
        ));
    };
    match (member(members, "hf"), member(members, "family")) {
        (Some(_), Some(_)) => Err((
            "both hf and family are given".into(),
            "keep hf to load a folder, or family to start a new model".into(),
        )),
        (Some(_), None) => Ok(0),
        (None, Some(Json::Text(name))) => match name.to_ascii_lowercase().as_str() {
            "gpt2" => Ok(1),
            "llama" => Ok(2),
            _ => {
                let near = crate::suggest::nearest(name, ["gpt2", "llama"]).unwrap_or("gpt2");
                Err((
                    format!("model.family wanted one of gpt2, llama, got {name:?}"),
                    format!("did you mean {near:?}?"),
                ))
            }
        },
        (None, Some(other)) => Err((
            format!(
                "model.family wanted one of gpt2, llama, got {}",
                other.describe()
            ),
            how.into(),
        )),
        (None, None) => {
            let keys = members.iter().map(|m| m.key.as_str());
            let near = keys
                .filter_map(|k| crate::suggest::nearest(k, ["hf", "family"]).map(|n| (k, n)))
                .next();
            Err((
                match near {
                    Some((key, name)) => format!(
                        "neither hf nor family is given; unknown key {key:?}, did you mean {name:?}?"
                    ),
                    None => "neither hf nor family is given".into(),
                },
                how.into(),
            ))
        }
    }
}

/// Dimensions of the presets, which the torch baselines of the benches share.
fn preset(members: &[Member]) -> Option<(String, Vec<(&'static str, String)>)> {
    let Json::Text(name) = member(members, "preset")? else {
        return None;
    };
    let (layers, width, heads, seq, vocab) = match name.to_ascii_lowercase().as_str() {
        "tiny" => (4, 256, 4, 256, 256),
        "small" => (6, 512, 8, 512, 8192),
        "gpt2" => (12, 768, 12, 512, 50304),
        _ => return None,
    };
    let number = |n: u64| n.to_string();
    let mut out = Vec::new();
    if matches!(member(members, "family"), Some(Json::Text(f)) if f.eq_ignore_ascii_case("llama")) {
        // Half the query heads the user ends up with, whether from the preset or given.
        let heads_given = match member(members, "num_attention_heads") {
            Some(Json::Number(n)) => n.parse().unwrap_or(heads),
            _ => heads,
        };
        out.push(("hidden_size", number(width)));
        out.push(("num_hidden_layers", number(layers)));
        out.push(("num_attention_heads", number(heads)));
        out.push(("num_key_value_heads", number((heads_given / 2).max(1))));
        out.push(("max_position_embeddings", number(seq)));
        out.push(("rms_norm_eps", "1e-5".into()));
        out.push(("tie_word_embeddings", "true".into()));
    } else {
        out.push(("n_embd", number(width)));
        out.push(("n_layer", number(layers)));
        out.push(("n_head", number(heads)));
        out.push(("n_positions", number(seq)));
    }
    out.push(("vocab_size", number(vocab)));
    Some((format!("preset {}", name.to_ascii_lowercase()), out))
}
