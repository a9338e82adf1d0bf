//! Mixtral: Mistral with a mixture of experts in the place of each MLP. Names and shapes of `MixtralForCausalLM` (huggingface/transformers): stacks
//! of all experts, which files hold as one tensor an expert, or as they are (`save_original_format=False` of 5.x).

use super::llama;
use super::sizes::{Defaults, preset, sizes};
use crate::desc::{Balance, Experts, Layer, ROOM, Tokens};
use crate::keys::*;
use crate::{Family, ROLES, Stack, Tensors, keys_only};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "mixtral",
    architecture: "MixtralForCausalLM",
    doc: "Mistral with a mixture of experts",
    keys: &[&sizes(Defaults {
        vocab: "32000", hidden: "4096", mlp: "14336", layers: "32", heads: "32", kv_heads: "8", head_dim: "", positions: "131072",
        eps: "1e-5", tied: "false", pad: "",
    }), &rope("1000000.0"), &[
        activation("hidden_act", "\"silu\""),
        window(""),
        width("num_local_experts", "8", "experts of a layer"),
        width("num_experts_per_tok", "2", "experts of a token"),
        factor("router_aux_loss_coef", "0.001", "factor of the loss that is least where experts have equally many tokens, over all layers of a micro-batch; 0 = none, whatever output_router_logits says"),
        only("router_jitter_noise", "0.0", "noise of what routers see"),
    ]],
    harmless: "output_router_logits",
    roles: ROLES,
    preset,
    build: |c| {
        let mut model = llama::model(c, [false; 3], |_, l| {
            l.attention.1.window = c.int_or("sliding_window", 0)?;
            let (count, chosen) = (c.int("num_local_experts")?, c.int("num_experts_per_tok")?);
            experts(l, [count, chosen, l.mlp.1.width], true)
        })?;
        model.balance = balance(c);
        Ok(model)
    },
    nested: not_nested,
    export: keys_only,
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    tensors: Tensors { stacks: &[
        Stack { name: ".mlp.gate.weight", parts: &[".block_sparse_moe.gate.weight"] },
        Stack { name: ".mlp.experts.gate_up_proj", parts: &[".block_sparse_moe.experts.{}.w1.weight", ".block_sparse_moe.experts.{}.w3.weight"] },
        Stack { name: ".mlp.experts.down_proj", parts: &[".block_sparse_moe.experts.{}.w2.weight"] },
    ], ..Tensors::PLAIN },
};

/// Puts experts in the place of a gated MLP: so many, of which a token has so many, of an inner width.
///
/// # Errors
/// More experts of a token than there are.
pub fn experts(
    l: &mut Layer,
    [count, chosen, width]: [u64; 3],
    whole: bool,
) -> Result<(), ConfigError> {
    if chosen > count {
        return bad(
            "num_experts_per_tok",
            format!("{chosen} experts of a token, and a layer has {count}"),
        );
    }
    l.experts = Some(Experts {
        router: "mlp.gate",
        up: "mlp.experts.gate_up_proj",
        down: "mlp.experts.down_proj",
        count,
        chosen,
        whole,
        gated: true,
        width,
        act: l.mlp.1.act,
        beside: None,
        capacity: None,
        room: ROOM,
    });
    Ok(())
}

/// The loss of the routers, as `transformers` has it.
pub fn balance(c: &Config) -> Option<Balance> {
    Some(Balance {
        coefficient: c.num_or_zero("router_aux_loss_coef"),
        z: 0.0,
        over: Tokens::Layers,
        counted: false,
    })
}
