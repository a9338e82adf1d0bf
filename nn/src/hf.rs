//! `config.json` of a Hugging Face directory to a model, in the forms transformers 4.x and 5.x write.

use crate::rope::RopeScaling;
use crate::{Gpt2, Llama, Model};
use crossweave_tensor::Activation;
use serde_json::Value;

/// A family with its numbers.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum ModelSpec {
    Gpt2(Gpt2),
    Llama(Llama),
}

/// Why a `config.json` cannot be used: key, what it holds, what would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Key in `config.json`.
    pub key: String,
    /// What is wrong and what to do.
    pub what: String,
}
impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "config.json: {}: {}", self.key, self.what)
    }
}
impl std::error::Error for ConfigError {}

fn bad<T>(key: &str, what: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError {
        key: key.to_string(),
        what: what.into(),
    })
}

pub(crate) fn activation_name(a: Activation) -> &'static str {
    match a {
        Activation::GeluTanh => "gelu_new",
        Activation::GeluErf => "gelu",
        Activation::Silu => "silu",
        Activation::Relu => "relu",
    }
}

/// The activation of an HF name.
pub fn activation(key: &str, name: &str) -> Result<Activation, ConfigError> {
    Ok(match name {
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Activation::GeluTanh,
        "gelu" => Activation::GeluErf,
        "silu" | "swish" => Activation::Silu,
        "relu" => Activation::Relu,
        other => {
            return bad(
                key,
                format!(
                    "\"{other}\" is not available; available: gelu_new, gelu_pytorch_tanh, gelu, silu, relu"
                ),
            );
        }
    })
}

struct Keys<'a>(&'a Value);

impl Keys<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key).filter(|v| !v.is_null())
    }
    fn int(&self, key: &str, default: Option<u64>) -> Result<u64, ConfigError> {
        match (self.get(key), default) {
            (Some(v), _) => match v.as_u64() {
                Some(n) if (1..=1 << 40).contains(&n) => Ok(n),
                _ => bad(key, format!("{v} is not a positive whole number")),
            },
            (None, Some(d)) => Ok(d),
            (None, None) => bad(key, "missing"),
        }
    }
    fn num(&self, key: &str, default: f64) -> Result<f64, ConfigError> {
        match self.get(key) {
            Some(v) => match v.as_f64() {
                Some(x) if x.is_finite() => Ok(x),
                _ => bad(key, format!("{v} is not a finite number")),
            },
            None => Ok(default),
        }
    }
    fn probability(&self, key: &str, default: f64) -> Result<f64, ConfigError> {
        match self.num(key, default)? {
            p if (0.0..1.0).contains(&p) => Ok(p),
            p => bad(key, format!("{p} is not a probability in [0, 1)")),
        }
    }
    fn flag(&self, key: &str, default: bool) -> Result<bool, ConfigError> {
        match self.get(key) {
            Some(v) => v
                .as_bool()
                .map_or_else(|| bad(key, format!("{v} is not true or false")), Ok),
            None => Ok(default),
        }
    }
    fn text(&self, key: &str, default: &str) -> Result<String, ConfigError> {
        match self.get(key) {
            Some(v) => v.as_str().map_or_else(
                || bad(key, format!("{v} is not text")),
                |s| Ok(s.to_string()),
            ),
            None => Ok(default.to_string()),
        }
    }
}

impl ModelSpec {
    /// Reads a `config.json`.
    pub fn from_hf(config: &Value) -> Result<ModelSpec, ConfigError> {
        if !config.is_object() {
            return bad("(root)", "not a JSON object");
        }
        let k = Keys(config);
        match k.text("model_type", "")?.as_str() {
            "gpt2" => gpt2(&k).map(ModelSpec::Gpt2),
            "llama" => llama(&k).map(ModelSpec::Llama),
            other => bad(
                "model_type",
                format!("\"{other}\" is not available; available: gpt2, llama"),
            ),
        }
    }
    /// As a model.
    pub fn model(&self) -> &dyn Model {
        match self {
            ModelSpec::Gpt2(m) => m,
            ModelSpec::Llama(m) => m,
        }
    }
    /// Checks what no single key can: divisions and ranges.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.within_reach()?;
        match self {
            ModelSpec::Gpt2(m) if m.n_embd % m.n_head != 0 => bad(
                "n_head",
                format!(
                    "n_embd {} is not divisible by n_head {}",
                    m.n_embd, m.n_head
                ),
            ),
            ModelSpec::Llama(m) if m.num_attention_heads % m.num_key_value_heads != 0 => bad(
                "num_key_value_heads",
                format!(
                    "num_attention_heads {} is not divisible by num_key_value_heads {}",
                    m.num_attention_heads, m.num_key_value_heads
                ),
            ),
            ModelSpec::Llama(m) if m.head_dim % 2 != 0 => bad(
                "head_dim",
                format!("{} is odd; rotary positions turn pairs", m.head_dim),
            ),
            _ => Ok(()),
        }
    }

    /// Sizes no machine has, refused before arithmetic on them can overflow or a list of their layers fills the memory.
    fn within_reach(&self) -> Result<(), ConfigError> {
        const LAYERS: u64 = 10_000;
        const WIDTH: u64 = 1 << 22;
        const IDS: u64 = i32::MAX as u64;
        let sizes: &[(&'static str, u64, u64)] = match self {
            ModelSpec::Gpt2(m) => &[
                ("n_layer", m.n_layer, LAYERS),
                ("n_embd", m.n_embd, WIDTH),
                ("n_head", m.n_head, WIDTH),
                ("n_inner", m.n_inner, WIDTH),
                ("vocab_size", m.vocab_size, IDS),
                ("n_positions", m.n_positions, IDS),
            ],
            ModelSpec::Llama(m) => &[
                ("num_hidden_layers", m.num_hidden_layers, LAYERS),
                ("hidden_size", m.hidden_size, WIDTH),
                ("intermediate_size", m.intermediate_size, WIDTH),
                ("num_attention_heads", m.num_attention_heads, WIDTH),
                ("num_key_value_heads", m.num_key_value_heads, WIDTH),
                (
                    "head_dim",
                    m.head_dim.saturating_mul(m.num_attention_heads),
                    WIDTH,
                ),
                ("vocab_size", m.vocab_size, IDS),
                ("max_position_embeddings", m.max_position_embeddings, IDS),
            ],
        };
        match sizes.iter().find(|(_, size, most)| size > most) {
            Some((key, size, most)) => bad(key, format!("{size} is more than the {most} allowed")),
            None => Ok(()),
        }
    }
}

fn gpt2(k: &Keys<'_>) -> Result<Gpt2, ConfigError> {
    let n_embd = k.int("n_embd", Some(768))?;
    if k.flag("add_cross_attention", false)? {
        return bad("add_cross_attention", "cross-attention is not available");
    }
    let m = Gpt2 {
        vocab_size: k.int("vocab_size", Some(50257))?,
        n_positions: k.int("n_positions", Some(1024))?,
        n_embd,
        n_layer: k.int("n_layer", Some(12))?,
        n_head: k.int("n_head", Some(12))?,
        n_inner: k.int("n_inner", Some(n_embd.saturating_mul(4)))?,
        activation: activation(
            "activation_function",
            &k.text("activation_function", "gelu_new")?,
        )?,
        layer_norm_epsilon: k.num("layer_norm_epsilon", 1e-5)?,
        embd_pdrop: k.probability("embd_pdrop", 0.1)?,
        resid_pdrop: k.probability("resid_pdrop", 0.1)?,
        attn_pdrop: k.probability("attn_pdrop", 0.1)?,
        tie_word_embeddings: k.flag("tie_word_embeddings", true)?,
        scale_attn_weights: k.flag("scale_attn_weights", true)?,
        scale_attn_by_inverse_layer_idx: k.flag("scale_attn_by_inverse_layer_idx", false)?,
        initializer_range: k.num("initializer_range", 0.02)? as f32,
    };
    ModelSpec::Gpt2(m.clone()).validate()?;
    Ok(m)
}

fn llama(k: &Keys<'_>) -> Result<Llama, ConfigError> {
    let act = k.text("hidden_act", "silu")?;
    if activation("hidden_act", &act)? != Activation::Silu {
        return bad(
            "hidden_act",
            format!("\"{act}\" is not available for llama; only silu (SwiGLU) is"),
        );
    }
    let hidden_size = k.int("hidden_size", Some(4096))?;
    let heads = k.int("num_attention_heads", Some(32))?;
    if k.get("head_dim").is_none() && hidden_size % heads != 0 {
        return bad(
            "num_attention_heads",
            format!("hidden_size {hidden_size} is not divisible by {heads}; give head_dim"),
        );
    }
    let (rope_theta, rope_scaling) = rope(k)?;
    let m = Llama {
        vocab_size: k.int("vocab_size", Some(32000))?,
        hidden_size,
        intermediate_size: k.int("intermediate_size", Some(11008))?,
        num_hidden_layers: k.int("num_hidden_layers", Some(32))?,
        num_attention_heads: heads,
        num_key_value_heads: k.int("num_key_value_heads", Some(heads))?,
        head_dim: k.int("head_dim", Some(hidden_size / heads))?,
        max_position_embeddings: k.int("max_position_embeddings", Some(2048))?,
        rms_norm_eps: k.num("rms_norm_eps", 1e-6)?,
        rope_theta,
        rope_scaling,
        attention_bias: k.flag("attention_bias", false)?,
        mlp_bias: k.flag("mlp_bias", false)?,
        attention_dropout: k.probability("attention_dropout", 0.0)?,
        tie_word_embeddings: k.flag("tie_word_embeddings", false)?,
        initializer_range: k.num("initializer_range", 0.02)? as f32,
    };
    ModelSpec::Llama(m.clone()).validate()?;
    Ok(m)
}

/// 5.x writes `rope_parameters {rope_type, rope_theta, …}`; 4.x `rope_theta` and `rope_scaling {rope_type or type, …}`.
fn rope(k: &Keys<'_>) -> Result<(f64, RopeScaling), ConfigError> {
    let (key, p) = match (k.get("rope_parameters"), k.get("rope_scaling")) {
        (Some(p), _) => ("rope_parameters", Some(p)),
        (None, Some(p)) => ("rope_scaling", Some(p)),
        (None, None) => ("rope_scaling", None),
    };
    let outer = k.num("rope_theta", 10000.0)?;
    let Some(p) = p else {
        return Ok((outer, RopeScaling::None));
    };
    if !p.is_object() {
        return bad(key, format!("{p} is not an object"));
    }
    let inner = Keys(p);
    let theta = inner.num("rope_theta", outer)?;
    let kind = match inner.get("rope_type") {
        Some(_) => inner.text("rope_type", "default")?,
        None => inner.text("type", "default")?,
    };
    let need = |name: &str| match inner.get(name) {
        Some(_) => inner.num(name, 0.0),
        None => bad(
            &format!("{key}.{name}"),
            format!("missing for rope_type \"{kind}\""),
        ),
    };
    let scaling = match kind.as_str() {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear {
            factor: need("factor")?,
        },
        "llama3" => RopeScaling::Llama3 {
            factor: need("factor")?,
            low_freq_factor: need("low_freq_factor")?,
            high_freq_factor: need("high_freq_factor")?,
            original_max_position_embeddings: match inner.get("original_max_position_embeddings") {
                Some(_) => need("original_max_position_embeddings")?,
                None => k.int("max_position_embeddings", Some(2048))? as f64,
            },
        },
        other => {
            return bad(
                &format!("{key}.rope_type"),
                format!("\"{other}\" is not available; available: default, linear, llama3"),
            );
        }
    };
    Ok((theta, scaling))
}
