//! The models of the peers' `model.py`: the same dims, rounding, tying, batch and count of floating-point operations.

use crossweave_family::{Dims, ModelSpec};

/// One preset in one style.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// `tiny`, `small` or `gpt2`.
    pub name: &'static str,
    /// Llama instead of GPT-2.
    pub llama: bool,
    /// Blocks.
    pub layers: u64,
    /// Width.
    pub d: u64,
    /// Query heads.
    pub heads: u64,
    /// Tokens a sequence.
    pub seq: u64,
    /// Rows of the embedding.
    pub vocab: u64,
    /// Sequences a step, over all ranks.
    pub batch: u64,
}

impl Preset {
    /// By the names the peers use.
    pub fn find(name: &str, style: &str) -> Result<Preset, String> {
        let (name, layers, d, heads, seq, vocab, batch) = match name {
            "tiny" => ("tiny", 4, 256, 4, 256, 256, 8),
            "small" => ("small", 6, 512, 8, 512, 8192, 4),
            "gpt2" => ("gpt2", 12, 768, 12, 512, 50304, 2),
            _ => return Err(format!("preset {name:?}: must be tiny, small or gpt2")),
        };
        let llama = match style {
            "gpt2" => false,
            "llama" => true,
            _ => return Err(format!("style {style:?}: must be gpt2 or llama")),
        };
        Ok(Preset {
            name,
            llama,
            layers,
            d,
            heads,
            seq,
            vocab,
            batch,
        })
    }
    /// `gpt2` or `llama`.
    pub fn style(&self) -> &'static str {
        if self.llama { "llama" } else { "gpt2" }
    }
    /// Key-value heads: half in llama.
    pub fn kv_heads(&self) -> u64 {
        if self.llama {
            (self.heads / 2).max(1)
        } else {
            self.heads
        }
    }
    /// Width of the feed-forward layer: `8 d / 3` rounded up to 64 in llama.
    pub fn ffn(&self) -> u64 {
        if self.llama {
            (8 * self.d / 3).div_ceil(64) * 64
        } else {
            4 * self.d
        }
    }
    /// The model.
    pub fn model(&self) -> ModelSpec {
        let dims = Dims {
            name: self.name,
            layers: self.layers,
            width: self.d,
            heads: self.heads,
            positions: self.seq,
            vocab: self.vocab,
        };
        let family = crossweave_family::family(self.style());
        let keys = family.map(|f| (f, f.preset(&dims)));
        let spec = keys.map(|(f, keys)| {
            let value = |text: &str| serde_json::from_str(text).unwrap_or_default();
            let keys = keys
                .into_iter()
                .map(|(k, text)| (k.to_string(), value(&text)));
            ModelSpec::new(f, &keys.collect())
        });
        match spec {
            Some(Ok(spec)) => spec,
            other => unreachable!("both styles are families: {other:?}"),
        }
    }
    /// Floating-point operations of one step by the peers' formula: 6 per weight of a product, 12 L d T for attention, no causal discount.
    pub fn flops(&self) -> f64 {
        let hd = self.d / self.heads;
        let attn = self.d * (self.heads + 2 * self.kv_heads()) * hd + self.heads * hd * self.d;
        let mlp = if self.llama { 3 } else { 2 } * self.d * self.ffn();
        let weights = self.layers * (attn + mlp) + self.vocab * self.d;
        let a_token = 6 * weights + 12 * self.layers * self.seq * self.d;
        (a_token * self.batch * self.seq) as f64
    }
}
