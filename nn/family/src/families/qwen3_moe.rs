//! Qwen3-MoE: Qwen3 with a mixture of experts in the place of some MLPs. Names and shapes of `Qwen3MoeForCausalLM` (huggingface/transformers), whose
//! experts files hold as Mixtral's.

use super::llama;
use super::mixtral::{balance, experts};
use super::sizes::{Defaults, preset, sizes};
use crate::desc::{Norm, Over, QkNorm};
use crate::keys::*;
use crate::{Family, ROLES, Stack, Tensors, keys_only};
use serde_json::Value;

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "qwen3_moe",
    architecture: "Qwen3MoeForCausalLM",
    doc: "Qwen3 with a mixture of experts",
    keys: &[&sizes(Defaults {
        vocab: "151936", hidden: "2048", mlp: "6144", layers: "24", heads: "32", kv_heads: "4", head_dim: "", positions: "32768",
        eps: "1e-6", tied: "false", pad: "",
    }), &rope("10000.0"), &[
        activation("hidden_act", "\"silu\""),
        flag("use_sliding_window", "false", "tokens see a window"),
        window("4096").fresh("4096"),
        flag("attention_bias", "false", "biases in the attention projections"),
        width("moe_intermediate_size", "768", "inner width of an expert"),
        width("num_experts", "128", "experts of a layer"),
        width("num_experts_per_tok", "8", "experts of a token"),
        flag("norm_topk_prob", "false", "the gates of a token are divided by their sum"),
        layers("decoder_sparse_step", "1", "every so many layers one has experts, the last of them"),
        numbers("mlp_only_layers", "layers without experts, from 0"),
        factor("router_aux_loss_coef", "0.001", "factor of the loss that is least where experts have equally many tokens, over all layers of a micro-batch; 0 = none, whatever output_router_logits says"),
    ]],
    // The class gives all layers the window.
    harmless: "output_router_logits max_window_layers",
    roles: ROLES,
    preset: |d| {
        let sizes = [("num_experts", 8), ("num_experts_per_tok", 2), ("moe_intermediate_size", d.width)];
        preset(d).into_iter().chain(sizes.map(|(name, n)| (name, n.to_string()))).collect()
    },
    build: |c| {
        let (bias, eps) = (c.flag("attention_bias"), c.num("rms_norm_eps")?);
        let (count, chosen) = (c.int("num_experts")?, c.int("num_experts_per_tok")?);
        let sizes = [count, chosen, c.int("moe_intermediate_size")?];
        let step = c.int("decoder_sparse_step")?;
        let mut model = llama::model(c, [bias, bias, false], |i, l| {
            let norms = ["self_attn.q_norm", "self_attn.k_norm"].map(|n| Norm::rms(n, eps));
            l.attention.1.qk_norm = Some(QkNorm { norms, over: Over::Head });
            let dense = c.get("mlp_only_layers").and_then(Value::as_array);
            let dense = dense.is_some_and(|all| all.iter().any(|n| n.as_u64() == Some(i)));
            if !dense && (i + 1).is_multiple_of(step) {
                experts(l, sizes, c.flag("norm_topk_prob"))?;
            }
            if c.flag("use_sliding_window") {
                l.attention.1.window = c.int_or("sliding_window", 0)?;
            }
            Ok(())
        })?;
        model.balance = balance(c);
        Ok(model)
    },
    nested: not_nested,
    export: keys_only,
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    tensors: Tensors { stacks: &[
        Stack { name: ".mlp.experts.gate_up_proj", parts: &[".mlp.experts.{}.gate_proj.weight", ".mlp.experts.{}.up_proj.weight"] },
        Stack { name: ".mlp.experts.down_proj", parts: &[".mlp.experts.{}.down_proj.weight"] },
    ], ..Tensors::PLAIN },
};
