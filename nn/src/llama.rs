//! Llama: pre-RMSNorm, rotary positions, SwiGLU, grouped-query attention, tied or untied head.
//!
//! Names and shapes are those of `LlamaForCausalLM` (huggingface/transformers). q, k, v (and gate, up) are declared one after another, so
//! each set runs as one product without a copy.

use crate::Model;
use crate::lora::{Adapter, Adapters};
use crate::rope::{RopeScaling, tables};
use crossweave_tensor::{AttentionSpec, Block, Builder, Cx, Flow, Init, Param, Result, Unit};
use serde_json::json;

/// The numbers of a Llama, with the names of its `config.json`.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Llama {
    pub vocab_size: u64,
    pub hidden_size: u64,
    pub intermediate_size: u64,
    pub num_hidden_layers: u64,
    pub num_attention_heads: u64,
    pub num_key_value_heads: u64,
    pub head_dim: u64,
    pub max_position_embeddings: u64,
    pub rms_norm_eps: f64,
    pub rope_theta: f64,
    pub rope_scaling: RopeScaling,
    pub attention_bias: bool,
    pub mlp_bias: bool,
    pub attention_dropout: f64,
    pub tie_word_embeddings: bool,
    pub initializer_range: f32,
}

impl Llama {
    /// The linear layers of a block: name, `[input, output]`.
    fn layers(&self) -> [(&'static str, [u64; 2]); 7] {
        let (d, ffn) = (self.hidden_size, self.intermediate_size);
        let q = self.num_attention_heads * self.head_dim;
        let kv = self.num_key_value_heads * self.head_dim;
        [
            ("self_attn.q_proj", [d, q]),
            ("self_attn.k_proj", [d, kv]),
            ("self_attn.v_proj", [d, kv]),
            ("self_attn.o_proj", [q, d]),
            ("mlp.gate_proj", [d, ffn]),
            ("mlp.up_proj", [d, ffn]),
            ("mlp.down_proj", [ffn, d]),
        ]
    }
}

struct Embed {
    table: Param,
}
struct Layer {
    input_norm: Param,
    qkv: [Param; 3],
    qkv_bias: Vec<Param>,
    o: (Param, Option<Param>),
    post_norm: Param,
    gate_up: [Param; 2],
    gate_up_bias: Vec<Param>,
    down: (Param, Option<Param>),
    adapters: [Option<Adapter>; 7],
    cos: usize,
    sin: usize,
    widths: [u64; 3],
    ffn: u64,
    attention: AttentionSpec,
    eps: f64,
}
struct Head {
    norm: Param,
    lm_head: Param,
    adapter: Option<Adapter>,
    eps: f64,
}

impl Block for Embed {
    fn forward(&self, cx: &mut Cx<'_>, _: Flow) -> Result<Flow> {
        Ok(Flow(vec![cx.embedding(self.table, None)?]))
    }
}

impl Block for Layer {
    fn forward(&self, cx: &mut Cx<'_>, flow: Flow) -> Result<Flow> {
        let x = flow.0[0];
        let n = cx.rms_norm(x, self.input_norm, self.eps)?;
        let qkv = cx.linear_fused(n, &self.qkv, &self.qkv_bias)?;
        let mut p = cx.split(qkv, &self.widths)?;
        let [of_q, of_k, of_v, of_o, of_gate, of_up, of_down] = self.adapters;
        for (y, adapter) in p.iter_mut().zip([of_q, of_k, of_v]) {
            *y = Adapter::add_some(adapter, cx, n, *y)?;
        }
        let (cos, sin) = (&cx.env.consts[self.cos], &cx.env.consts[self.sin]);
        let q = cx.rope(p[0], self.attention.heads, cos, sin, false)?;
        let k = cx.rope(p[1], self.attention.kv_heads, cos, sin, false)?;
        let a = cx.attention(q, k, p[2], self.attention)?;
        let o = cx.linear(a, self.o.0, self.o.1)?;
        let a = Adapter::add_some(of_o, cx, a, o)?;
        let x = cx.add_into(x, a)?;
        let n = cx.rms_norm(x, self.post_norm, self.eps)?;
        let h = cx.linear_fused(n, &self.gate_up, &self.gate_up_bias)?;
        let mut p = cx.split(h, &[self.ffn; 2])?;
        for (y, adapter) in p.iter_mut().zip([of_gate, of_up]) {
            *y = Adapter::add_some(adapter, cx, n, *y)?;
        }
        let h = cx.swiglu(p[0], p[1])?;
        let o = cx.linear(h, self.down.0, self.down.1)?;
        let h = Adapter::add_some(of_down, cx, h, o)?;
        Ok(Flow(vec![cx.add_into(x, h)?]))
    }
}

impl Block for Head {
    fn forward(&self, cx: &mut Cx<'_>, flow: Flow) -> Result<Flow> {
        let n = cx.rms_norm(flow.0[0], self.norm, self.eps)?;
        let logits = cx.linear(n, self.lm_head, None)?;
        let logits = Adapter::add_some(self.adapter, cx, n, logits)?;
        if !cx.has_targets() {
            return Ok(Flow(vec![logits]));
        }
        Ok(Flow(vec![cx.cross_entropy(logits)?]))
    }
}

impl Model for Llama {
    fn lora_targets(&self) -> &'static [&'static str] {
        &["q_proj", "v_proj"]
    }
    fn declare(&self, b: &mut Builder, all: &mut Adapters) {
        let (d, std) = (self.hidden_size, Init::Normal(self.initializer_range));
        let (q, kv) = (
            self.num_attention_heads * self.head_dim,
            self.num_key_value_heads * self.head_dim,
        );
        let (cos, sin) = tables(
            self.head_dim,
            self.rope_theta,
            self.rope_scaling,
            self.max_position_embeddings,
        );
        let table = [self.max_position_embeddings, self.head_dim / 2];
        b.unit_named("embed", "model", |u| Embed {
            table: u.param("embed_tokens.weight", &[self.vocab_size, d], std),
        });
        for l in 0..self.num_hidden_layers {
            b.unit(&format!("model.layers.{l}"), |u| {
                let weight = |u: &mut Unit<'_>, name: &str, out: u64, input: u64| {
                    u.param(&format!("{name}.weight"), &[out, input], std)
                };
                let bias = |u: &mut Unit<'_>, on: bool, name: &str, out: u64| {
                    on.then(|| u.param(&format!("{name}.bias"), &[out], Init::Zeros))
                };
                let attn = |n: &str| format!("self_attn.{n}_proj");
                let mlp = |n: &str| format!("mlp.{n}_proj");
                let input_norm = u.param("input_layernorm.weight", &[d], Init::Ones);
                let qkv = [
                    weight(u, &attn("q"), q, d),
                    weight(u, &attn("k"), kv, d),
                    weight(u, &attn("v"), kv, d),
                ];
                let qkv_bias = [("q", q), ("k", kv), ("v", kv)]
                    .iter()
                    .filter_map(|(n, w)| bias(u, self.attention_bias, &attn(n), *w))
                    .collect();
                let o = (
                    weight(u, &attn("o"), d, q),
                    bias(u, self.attention_bias, &attn("o"), d),
                );
                let post_norm = u.param("post_attention_layernorm.weight", &[d], Init::Ones);
                let ffn = self.intermediate_size;
                let gate_up = [
                    weight(u, &mlp("gate"), ffn, d),
                    weight(u, &mlp("up"), ffn, d),
                ];
                let gate_up_bias = ["gate", "up"]
                    .iter()
                    .filter_map(|n| bias(u, self.mlp_bias, &mlp(n), ffn))
                    .collect();
                let down = (
                    weight(u, &mlp("down"), d, ffn),
                    bias(u, self.mlp_bias, &mlp("down"), d),
                );
                Layer {
                    adapters: self.layers().map(|(name, sizes)| all.layer(u, name, sizes)),
                    input_norm,
                    qkv,
                    qkv_bias,
                    o,
                    post_norm,
                    gate_up,
                    gate_up_bias,
                    down,
                    cos: u.constant(&table, cos.clone()),
                    sin: u.constant(&table, sin.clone()),
                    widths: [q, kv, kv],
                    ffn,
                    attention: AttentionSpec {
                        heads: self.num_attention_heads,
                        kv_heads: self.num_key_value_heads,
                        causal: true,
                        dropout: self.attention_dropout,
                        ..Default::default()
                    },
                    eps: self.rms_norm_eps,
                }
            });
        }
        b.unit_named("head", "", |u| {
            let norm = u.param("model.norm.weight", &[d], Init::Ones);
            // Own parameters come before borrowed ones.
            let adapter = all.head(u, "lm_head", [d, self.vocab_size]);
            let tied = if self.tie_word_embeddings {
                u.borrow("model.embed_tokens.weight")
            } else {
                None
            };
            let lm_head =
                tied.unwrap_or_else(|| u.param("lm_head.weight", &[self.vocab_size, d], std));
            Head {
                norm,
                lm_head,
                adapter,
                eps: self.rms_norm_eps,
            }
        });
    }

    fn vocab(&self) -> u64 {
        self.vocab_size
    }
    fn max_positions(&self) -> u64 {
        self.max_position_embeddings
    }
    fn hf_config(&self) -> serde_json::Value {
        // Both the 4.x keys and the 5.x `rope_parameters`: either release reads the same model.
        let (scaling, parameters) = match self.rope_scaling {
            RopeScaling::None => (
                json!(null),
                json!({"rope_type": "default", "rope_theta": self.rope_theta}),
            ),
            RopeScaling::Linear { factor } => (
                json!({"rope_type": "linear", "factor": factor}),
                json!({"rope_type": "linear", "factor": factor, "rope_theta": self.rope_theta}),
            ),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => {
                let mut s = json!({"rope_type": "llama3", "factor": factor, "low_freq_factor": low_freq_factor,
                    "high_freq_factor": high_freq_factor, "original_max_position_embeddings": original_max_position_embeddings as u64});
                let old = s.clone();
                s["rope_theta"] = json!(self.rope_theta);
                (old, s)
            }
        };
        json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size, "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers, "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads, "head_dim": self.head_dim, "hidden_act": "silu",
            "max_position_embeddings": self.max_position_embeddings, "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta, "rope_scaling": scaling, "rope_parameters": parameters,
            "attention_bias": self.attention_bias, "mlp_bias": self.mlp_bias, "attention_dropout": self.attention_dropout,
            "initializer_range": self.initializer_range, "tie_word_embeddings": self.tie_word_embeddings,
            "torch_dtype": "float32", "use_cache": true, "bos_token_id": null, "eos_token_id": null, "pretraining_tp": 1,
        })
    }
    fn flops_per_token(&self, t: u64) -> f64 {
        let (d, l) = (self.hidden_size, self.num_hidden_layers);
        let (q, kv) = (
            self.num_attention_heads * self.head_dim,
            self.num_key_value_heads * self.head_dim,
        );
        let matmul =
            l * (d * (q + 2 * kv) + q * d + 3 * d * self.intermediate_size) + self.vocab_size * d;
        6.0 * matmul as f64 + 12.0 * (l * q * t) as f64
    }
}
