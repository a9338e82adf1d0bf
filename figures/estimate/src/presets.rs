//! Models the estimator knows by name.

use crossweave_zero::estimate::Shape;
use serde_json::{Value, json};

/// A model by name.
pub struct Preset {
    /// Name on the command line.
    pub name: &'static str,
    /// Parameters as its authors state them.
    pub params: u64,
    /// Dimensions.
    pub shape: Shape,
    /// Llama's block (no biases, three matrices in the MLP): width of the MLP and key/value heads.
    pub llama: Option<(u64, u64)>,
    /// Tokens it was trained on, as its authors state them.
    pub tokens: f64,
}

const fn gpt(name: &'static str, params: u64, dims: [u64; 4], tokens: f64) -> Preset {
    let [layers, hidden, heads, seq] = dims;
    Preset {
        name,
        params,
        shape: Shape {
            layers,
            hidden,
            heads,
            vocab: 50257,
            seq,
        },
        llama: None,
        tokens,
    }
}

const fn llama(
    name: &'static str,
    params: u64,
    dims: [u64; 5],
    mlp: (u64, u64),
    tokens: f64,
) -> Preset {
    let [layers, hidden, heads, seq, vocab] = dims;
    Preset {
        name,
        params,
        shape: Shape {
            layers,
            hidden,
            heads,
            vocab,
            seq,
        },
        llama: Some(mlp),
        tokens,
    }
}

impl Preset {
    /// As a `config.json`.
    pub fn config(&self) -> Value {
        let s = &self.shape;
        match self.llama {
            None => {
                json!({"model_type": "gpt2", "vocab_size": s.vocab, "n_positions": s.seq, "n_embd": s.hidden,
                "n_layer": s.layers, "n_head": s.heads})
            }
            Some((mlp, kv)) => {
                json!({"model_type": "llama", "vocab_size": s.vocab, "hidden_size": s.hidden,
                "intermediate_size": mlp, "num_hidden_layers": s.layers, "num_attention_heads": s.heads,
                "num_key_value_heads": kv, "max_position_embeddings": s.seq})
            }
        }
    }
}

const B: u64 = 1_000_000_000;
const M: u64 = 1_000_000;

/// All presets.
#[rustfmt::skip]
pub const PRESETS: &[Preset] = &[
    gpt("gpt2", 124 * M, [12, 768, 12, 1024], 9e9),
    gpt("gpt2-medium", 355 * M, [24, 1024, 16, 1024], 9e9),
    gpt("gpt2-large", 774 * M, [36, 1280, 20, 1024], 9e9),
    gpt("gpt2-xl", 1500 * M, [48, 1600, 25, 1024], 9e9),
    gpt("gpt3-6.7b", 6700 * M, [32, 4096, 32, 2048], 300e9),
    gpt("gpt3-13b", 13 * B, [40, 5120, 40, 2048], 300e9),
    gpt("turing-17b", 17 * B, [78, 4256, 28, 1024], 157e9),
    gpt("gpt3-175b", 175 * B, [96, 12288, 96, 2048], 300e9),
    gpt("mt-nlg-530b", 530 * B, [105, 20480, 128, 2048], 270e9),
    gpt("gpt-1t", 1000 * B, [128, 25600, 160, 2048], 450e9),
    llama("llama-7b", 7 * B, [32, 4096, 32, 2048, 32000], (11008, 32), 1e12),
    llama("llama-13b", 13 * B, [40, 5120, 40, 2048, 32000], (13824, 40), 1e12),
    llama("llama-65b", 65 * B, [80, 8192, 64, 2048, 32000], (22016, 64), 1.4e12),
    llama("llama2-70b", 70 * B, [80, 8192, 64, 4096, 32000], (28672, 8), 2e12),
    llama("llama3-8b", 8 * B, [32, 4096, 32, 8192, 128256], (14336, 8), 15e12),
    llama("llama3-70b", 70 * B, [80, 8192, 64, 8192, 128256], (28672, 8), 15e12),
    llama("llama3-405b", 405 * B, [126, 16384, 128, 8192, 128256], (53248, 8), 15e12),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_models() {
        for p in PRESETS {
            let spec = crossweave_nn::ModelSpec::from_hf(&p.config());
            spec.unwrap_or_else(|e| panic!("{}: {e}", p.name));
        }
    }
}
