//! GPT-2: pre-LayerNorm, learned positions, fused qkv, Conv1D weights `[in, out]`, tied or untied head.
//!
//! Names and shapes are those of `GPT2LMHeadModel` (huggingface/transformers).

use crate::Model;
use crate::lora::{Adapter, Adapters};
use crossweave_tensor::{Activation, AttentionSpec, Block, Builder, Cx, Flow, Init, Param, Result};
use serde_json::json;

/// The numbers of a GPT-2, with the names of its `config.json`.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Gpt2 {
    pub vocab_size: u64,
    pub n_positions: u64,
    pub n_embd: u64,
    pub n_layer: u64,
    pub n_head: u64,
    pub n_inner: u64,
    pub activation: Activation,
    pub layer_norm_epsilon: f64,
    pub embd_pdrop: f64,
    pub resid_pdrop: f64,
    pub attn_pdrop: f64,
    pub tie_word_embeddings: bool,
    /// Scores by 1/sqrt(D) (HF's default).
    pub scale_attn_weights: bool,
    /// Scores of layer `l` divided by `l + 1` too.
    pub scale_attn_by_inverse_layer_idx: bool,
    /// Deviation of the starting weights; residual projections get it over sqrt(2 L).
    pub initializer_range: f32,
}

struct Embed {
    wte: Param,
    wpe: Param,
    pdrop: f64,
}
struct Layer {
    ln_1: (Param, Param),
    c_attn: (Param, Param),
    c_proj: (Param, Param),
    ln_2: (Param, Param),
    c_fc: (Param, Param),
    mlp_proj: (Param, Param),
    adapters: [Option<Adapter>; 4],
    dim: u64,
    attention: AttentionSpec,
    activation: Activation,
    eps: f64,
    pdrop: f64,
}
struct Head {
    ln_f: (Param, Param),
    lm_head: Param,
    adapter: Option<Adapter>,
    eps: f64,
}

impl Block for Embed {
    fn forward(&self, cx: &mut Cx<'_>, _: Flow) -> Result<Flow> {
        let x = cx.embedding(self.wte, Some(self.wpe))?;
        Ok(Flow(vec![cx.dropout(x, self.pdrop)?]))
    }
}

impl Block for Layer {
    fn forward(&self, cx: &mut Cx<'_>, flow: Flow) -> Result<Flow> {
        let x = flow.0[0];
        let n = cx.layer_norm(x, self.ln_1.0, Some(self.ln_1.1), self.eps)?;
        let [attn, proj, fc, mlp] = self.adapters;
        let qkv = cx.conv1d(n, self.c_attn.0, Some(self.c_attn.1))?;
        let qkv = Adapter::add_some(attn, cx, n, qkv)?;
        let p = cx.split(qkv, &[self.dim; 3])?;
        let a = cx.attention(p[0], p[1], p[2], self.attention)?;
        let o = cx.conv1d(a, self.c_proj.0, Some(self.c_proj.1))?;
        let a = Adapter::add_some(proj, cx, a, o)?;
        let a = cx.dropout(a, self.pdrop)?;
        let x = cx.add_into(x, a)?;
        let n = cx.layer_norm(x, self.ln_2.0, Some(self.ln_2.1), self.eps)?;
        let h = cx.conv1d(n, self.c_fc.0, Some(self.c_fc.1))?;
        let h = Adapter::add_some(fc, cx, n, h)?;
        let h = cx.activation(h, self.activation)?;
        let o = cx.conv1d(h, self.mlp_proj.0, Some(self.mlp_proj.1))?;
        let h = Adapter::add_some(mlp, cx, h, o)?;
        let h = cx.dropout(h, self.pdrop)?;
        Ok(Flow(vec![cx.add_into(x, h)?]))
    }
}

impl Block for Head {
    fn forward(&self, cx: &mut Cx<'_>, flow: Flow) -> Result<Flow> {
        let n = cx.layer_norm(flow.0[0], self.ln_f.0, Some(self.ln_f.1), self.eps)?;
        let logits = cx.linear(n, self.lm_head, None)?;
        let logits = Adapter::add_some(self.adapter, cx, n, logits)?;
        if !cx.has_targets() {
            return Ok(Flow(vec![logits]));
        }
        Ok(Flow(vec![cx.cross_entropy(logits)?]))
    }
}

impl Model for Gpt2 {
    fn lora_targets(&self) -> &'static [&'static str] {
        &["c_attn"]
    }
    fn declare(&self, b: &mut Builder, all: &mut Adapters) {
        let (d, std) = (self.n_embd, self.initializer_range);
        let residual = Init::Normal(std / (2.0 * self.n_layer as f32).sqrt());
        b.unit_named("embed", "transformer", |u| Embed {
            wte: u.param("wte.weight", &[self.vocab_size, d], Init::Normal(std)),
            wpe: u.param("wpe.weight", &[self.n_positions, d], Init::Normal(std)),
            pdrop: self.embd_pdrop,
        });
        for l in 0..self.n_layer {
            b.unit(&format!("transformer.h.{l}"), |u| {
                let mut pair = |name: &str, w: &[u64], init: Init, n: u64| {
                    (
                        u.param(&format!("{name}.weight"), w, init),
                        u.param(&format!("{name}.bias"), &[n], Init::Zeros),
                    )
                };
                let scale = (if self.scale_attn_weights {
                    (d as f64 / self.n_head as f64).powf(-0.5)
                } else {
                    1.0
                }) / (if self.scale_attn_by_inverse_layer_idx {
                    (l + 1) as f64
                } else {
                    1.0
                });
                let inner = self.n_inner;
                let ln_1 = pair("ln_1", &[d], Init::Ones, d);
                let c_attn = pair("attn.c_attn", &[d, 3 * d], Init::Normal(std), 3 * d);
                let c_proj = pair("attn.c_proj", &[d, d], residual, d);
                let ln_2 = pair("ln_2", &[d], Init::Ones, d);
                let c_fc = pair("mlp.c_fc", &[d, inner], Init::Normal(std), inner);
                let mlp_proj = pair("mlp.c_proj", &[inner, d], residual, d);
                let adapters = [
                    ("attn.c_attn", [d, 3 * d]),
                    ("attn.c_proj", [d, d]),
                    ("mlp.c_fc", [d, inner]),
                    ("mlp.c_proj", [inner, d]),
                ];
                Layer {
                    ln_1,
                    c_attn,
                    c_proj,
                    ln_2,
                    c_fc,
                    mlp_proj,
                    adapters: adapters.map(|(name, sizes)| all.layer(u, name, sizes)),
                    dim: d,
                    attention: AttentionSpec {
                        heads: self.n_head,
                        kv_heads: self.n_head,
                        causal: true,
                        scale,
                        dropout: self.attn_pdrop,
                        ..Default::default()
                    },
                    activation: self.activation,
                    eps: self.layer_norm_epsilon,
                    pdrop: self.resid_pdrop,
                }
            });
        }
        b.unit_named("head", "", |u| {
            let ln_f = (
                u.param("transformer.ln_f.weight", &[d], Init::Ones),
                u.param("transformer.ln_f.bias", &[d], Init::Zeros),
            );
            // Own parameters come before borrowed ones.
            let adapter = all.head(u, "lm_head", [d, self.vocab_size]);
            let tied = if self.tie_word_embeddings {
                u.borrow("transformer.wte.weight")
            } else {
                None
            };
            let lm_head = tied.unwrap_or_else(|| {
                u.param("lm_head.weight", &[self.vocab_size, d], Init::Normal(std))
            });
            Head {
                ln_f,
                lm_head,
                adapter,
                eps: self.layer_norm_epsilon,
            }
        });
    }

    fn vocab(&self) -> u64 {
        self.vocab_size
    }
    fn max_positions(&self) -> u64 {
        self.n_positions
    }
    fn hf_config(&self) -> serde_json::Value {
        json!({
            "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2",
            "vocab_size": self.vocab_size, "n_positions": self.n_positions, "n_ctx": self.n_positions, "n_embd": self.n_embd,
            "n_layer": self.n_layer, "n_head": self.n_head, "n_inner": self.n_inner,
            "activation_function": crate::hf::activation_name(self.activation), "layer_norm_epsilon": self.layer_norm_epsilon,
            "embd_pdrop": self.embd_pdrop, "resid_pdrop": self.resid_pdrop, "attn_pdrop": self.attn_pdrop,
            "initializer_range": self.initializer_range, "scale_attn_weights": self.scale_attn_weights,
            "scale_attn_by_inverse_layer_idx": self.scale_attn_by_inverse_layer_idx,
            "reorder_and_upcast_attn": false, "summary_type": "cls_index", "tie_word_embeddings": self.tie_word_embeddings,
            "torch_dtype": "float32", "use_cache": true, "bos_token_id": null, "eos_token_id": null,
        })
    }
    fn flops_per_token(&self, t: u64) -> f64 {
        let d = self.n_embd;
        let matmul = self.n_layer * (4 * d * d + 2 * d * self.n_inner) + self.vocab_size * d;
        6.0 * matmul as f64 + 12.0 * (self.n_layer * d * t) as f64
    }
}
