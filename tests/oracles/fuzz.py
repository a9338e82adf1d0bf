#!/usr/bin/env python3
"""Random configurations from the config classes of transformers: our logits are PyTorch's, or the key is refused.

  python fuzz.py --seed 1 --count 500 [--family NAME] [--binary target/release/crossweave] [--keep DIR]

Each draw makes a config of one family (sizes, heads, windows, scalings, biases, caps, ties, and now and then any other
attribute of the class), a model of it with random weights as `save_pretrained` writes it (now and then in shards, or the base
model alone), and PyTorch's logits, loss and gradients in float64. `crossweave probe` must give them within 1e-4 of the largest
value of each tensor, or refuse the folder with a message that names a key of its config.json. A gradient below 5e-2 of the
largest one is measured against that, and where PyTorch itself in float32 is further than 1e-5 from float64 (scores in the
hundreds), ten times its difference is allowed. Draws that transformers itself refuses, or whose logits are not finite, are not counted.
Exit code 1: some configuration was silently wrong, or refused without a key. The same seed draws the same configurations with
the same version of transformers.
"""
import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

from make import HERE, KeepF64, evaluate, run as run_model, seeded, stored_names, transformers

import torch
from safetensors.torch import load_file, save_file

TOLERANCE = 1e-4
ACTIVATIONS = ["silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "quick_gelu", "relu", "tanh", "mish", "relu2",
               "gelu_10", "sigmoid"]


class Draw:
    """One configuration: `r` draws, `keys` is what the class is given."""

    def __init__(self, r, family):
        self.r, self.family, self.keys, self.cls = r, family, {}, ""
        self.layers = r.choice([1, 2, 2, 3])
        self.positions = r.choice([12, 16, 24, 64])

    def maybe(self, chance):
        return self.r.random() < chance

    def act(self, usual):
        return usual if self.maybe(0.6) else self.r.choice(ACTIVATIONS)

    def heads(self, kv=True, explicit=True, partial=(1.0,)):
        """Heads that fit together, a head_dim of its own now and then; the number of elements that rotate is even."""
        r = self.r
        heads = r.choice([1, 2, 3, 4, 6, 8])
        part = r.choice(partial)
        even = lambda dim: int(dim * part) >= 2 and int(dim * part) % 2 == 0  # noqa: E731
        dim = r.choice([d for d in (2, 4, 6, 8, 10, 12, 16, 20, 34) if even(d)])
        hidden = heads * dim
        if explicit and self.maybe(0.5):
            hidden = r.choice([8, 16, 24, 30])
            self.keys["head_dim"] = dim
        elif explicit and self.maybe(0.3):
            self.keys["head_dim"] = dim
        self.keys |= dict(hidden_size=hidden, num_attention_heads=heads)
        if kv:
            self.keys["num_key_value_heads"] = r.choice([k for k in range(1, heads + 1) if heads % k == 0])
        self.dim, self.part = dim, part
        return heads

    def sizes(self):
        r = self.r
        self.keys |= dict(vocab_size=r.choice([17, 32, 50]), num_hidden_layers=self.layers, intermediate_size=r.choice([1, 7, 12, 20, 33]),
                          max_position_embeddings=self.positions, tie_word_embeddings=self.maybe(0.4))
        if self.maybe(0.3):
            self.keys["initializer_range"] = 0.1

    def eps(self, name):
        if self.maybe(0.5):
            self.keys[name] = self.r.choice([1e-12, 1e-6, 1e-5, 1e-3, 0.1])

    def window(self):
        return self.r.choice([None, 1, 2, 3, 5, 9, 15, 16, 17, 4096])

    def cap(self):
        return self.r.choice([None, 0.3, 2.0, 30.0])

    def pad(self):
        return self.r.choice([None, 0, 3, -1])

    def kinds(self):
        return [self.r.choice(["full_attention", "sliding_attention"]) for _ in range(self.layers)]

    def scaling(self, kinds=("linear", "dynamic", "yarn", "longrope", "llama3")):
        """A rope_scaling, without the base."""
        r = self.r
        kind = r.choice(kinds)
        s = dict(rope_type=kind, factor=r.choice([1.0, 1.5, 2.0, 4.5, 40.0]))
        if kind in ("yarn", "llama3", "longrope") or self.maybe(0.1):
            s["original_max_position_embeddings"] = r.choice([6, 11, 16, 64, 4096])
        if kind == "llama3":
            s |= dict(low_freq_factor=r.choice([0.5, 1.0]), high_freq_factor=r.choice([2.0, 4.0, 9.0]))
        if kind == "yarn":
            for key, of in dict(beta_fast=[32, 8.0], beta_slow=[1, 2.0], attention_factor=[0.7, 1.3], mscale=[0.7, 1.0],
                                mscale_all_dim=[0.5, 1.0], truncate=[True, False]).items():
                if self.maybe(0.3):
                    s[key] = r.choice(of)
        if kind == "longrope":
            pairs = int(self.dim * self.part) // 2
            for key in ("short_factor", "long_factor"):
                s[key] = [round(r.uniform(1.0, 6.0), 2) for _ in range(pairs)]
            if self.maybe(0.3):
                s["attention_factor"] = 1.2
            if self.maybe(0.3):
                del s["factor"]  # follows from the lengths
        if MAJOR < 5 and self.maybe(0.1):
            s["type"] = s.pop("rope_type")  # as the first files of 4.x have it
        return s

    def rope(self, **given):
        """Base and scaling in the form of the running transformers, or in the older one."""
        r = self.r
        theta = r.choice([2.5, 100.0, 10000, 500000.0, 1e6])
        scaling = self.scaling() if self.maybe(0.5) else None
        if scaling and self.family == "phi3":
            self.keys["original_max_position_embeddings"] = r.choice([6, 16, 64])
        if MAJOR >= 5 and self.maybe(0.7):
            self.keys["rope_parameters"] = (scaling or dict(rope_type="default")) | dict(rope_theta=theta) | given
        else:
            self.keys |= given | dict(rope_theta=theta) | (dict(rope_scaling=scaling) if scaling else {})


MAJOR = int(transformers.__version__.split(".")[0])


def gpt2(d):
    r, heads = d.r, d.r.choice([1, 2, 3, 4])
    d.keys |= dict(vocab_size=r.choice([17, 32]), n_positions=d.positions, n_embd=heads * r.choice([3, 4, 8]), n_layer=d.layers,
                   n_head=heads, n_inner=r.choice([None, 12, 33]), activation_function=d.act("gelu_new"),
                   tie_word_embeddings=d.maybe(0.5), scale_attn_weights=d.maybe(0.7),
                   scale_attn_by_inverse_layer_idx=d.maybe(0.3), reorder_and_upcast_attn=d.maybe(0.3))
    d.eps("layer_norm_epsilon")


def llama(d):
    d.sizes(), d.heads(), d.rope(), d.eps("rms_norm_eps")
    d.keys |= dict(hidden_act=d.act("silu"), attention_bias=d.maybe(0.4), mlp_bias=d.maybe(0.4), pretraining_tp=1)


def mistral(d):
    d.sizes(), d.heads(), d.rope(), d.eps("rms_norm_eps")
    d.keys |= dict(hidden_act=d.act("silu"), sliding_window=d.window())


def qwen2(d, explicit=False):
    d.sizes(), d.heads(explicit=explicit), d.rope(), d.eps("rms_norm_eps")
    d.keys |= dict(hidden_act=d.act("silu"), use_sliding_window=d.maybe(0.5), sliding_window=d.window(),
                   max_window_layers=d.r.choice([0, 1, 2, 28]))
    if d.maybe(0.2):
        d.keys["layer_types"] = d.kinds()


def qwen3(d):
    qwen2(d, True)
    d.keys.setdefault("head_dim", d.dim)
    d.keys["attention_bias"] = d.maybe(0.4)


def gemma(d):
    d.sizes(), d.heads(), d.eps("rms_norm_eps")
    d.keys.setdefault("head_dim", d.dim)
    d.keys |= dict(hidden_activation=d.act("gelu_pytorch_tanh"), attention_bias=d.maybe(0.3),
                   query_pre_attn_scalar=d.r.choice([4, 12, 256]), final_logit_softcapping=d.cap(),
                   sliding_window=d.r.choice([1, 2, 5, 16, 4096]), pad_token_id=d.pad())
    if d.maybe(0.4):
        d.keys["layer_types"] = d.kinds()


def gemma2(d):
    gemma(d), d.rope()
    d.keys["attn_logit_softcapping"] = d.cap()


def gemma3_text(d):
    gemma(d)
    scaling = d.scaling(("linear", "yarn")) if d.maybe(0.5) else None
    near, full = d.r.choice([10.0, 10000.0]), d.r.choice([1000.0, 1000000.0])
    if MAJOR >= 5 and d.maybe(0.7):
        d.keys["rope_parameters"] = dict(full_attention=(scaling or dict(rope_type="default")) | dict(rope_theta=full),
                                         sliding_attention=dict(rope_type="default", rope_theta=near))
    else:
        d.keys |= dict(rope_theta=full, rope_local_base_freq=near) | (dict(rope_scaling=scaling) if scaling else {})
    if d.maybe(0.4):
        d.keys["sliding_window_pattern"] = d.r.choice([1, 2, 3, 5])


def gemma1(d):
    d.sizes(), d.heads(), d.rope(), d.eps("rms_norm_eps")
    d.keys.setdefault("head_dim", d.dim)
    act = d.act("gelu_pytorch_tanh")
    if MAJOR < 5 and act == "gelu":
        act = "relu"  # 5.x takes it for its approximation, which is what is computed here
    d.keys |= dict(hidden_act=act, attention_bias=d.maybe(0.3), pad_token_id=d.pad())


def granite(d):
    llama(d)
    d.keys.pop("pretraining_tp")
    for key in ("embedding_multiplier", "residual_multiplier", "logits_scaling"):
        if d.maybe(0.6):
            d.keys[key] = d.r.choice([0.22, 1.0, 3.0, 12])
    # The default of 1 makes scores in the hundreds, which leave q and k a gradient of rounding errors alone.
    d.keys["attention_multiplier"] = d.r.choice([0.02, 0.1, 0.3])


def stablelm(d):
    d.sizes(), d.heads(explicit=False, partial=(0.25, 0.4, 0.5, 0.75, 1.0)), d.eps("layer_norm_eps")
    d.rope(partial_rotary_factor=d.part)
    d.keys |= dict(hidden_act=d.act("silu"), use_qkv_bias=d.maybe(0.5), use_parallel_residual=d.maybe(0.5),
                   qk_layernorm=d.maybe(0.4))


def starcoder2(d):
    d.sizes(), d.heads(explicit=False), d.rope(), d.eps("norm_epsilon")
    d.keys |= dict(hidden_act=d.act("gelu_pytorch_tanh"), use_bias=d.maybe(0.6), sliding_window=d.window())


def phi(d):
    d.sizes(), d.heads(explicit=False, partial=(0.4, 0.5, 0.75, 1.0)), d.eps("layer_norm_eps")
    d.rope(partial_rotary_factor=d.part)
    d.keys |= dict(hidden_act=d.act("gelu_new"), qk_layernorm=d.maybe(0.4), pad_token_id=d.pad())


def cohere(d):
    d.sizes(), d.heads(explicit=False), d.rope(), d.eps("layer_norm_eps")
    d.keys |= dict(hidden_act=d.act("silu"), attention_bias=d.maybe(0.4), logit_scale=d.r.choice([0.0625, 1.0, 3.0]),
                   pad_token_id=d.pad())
    if d.family == "cohere" and d.maybe(0.4):
        d.keys["use_qk_norm"] = True


def cohere2(d):
    cohere(d)
    d.keys["sliding_window"] = d.r.choice([1, 2, 5, 16, 4096])
    if d.maybe(0.6):
        d.keys["layer_types"] = d.kinds()


def glm(d):
    glm4(d)


def opt(d):
    heads = d.r.choice([1, 2, 3, 4])
    width = heads * d.r.choice([3, 4, 8])
    d.keys |= dict(vocab_size=d.r.choice([17, 32]), hidden_size=width, ffn_dim=d.r.choice([12, 33]), num_hidden_layers=d.layers,
                   num_attention_heads=heads, max_position_embeddings=d.positions, do_layer_norm_before=d.maybe(0.6),
                   word_embed_proj_dim=d.r.choice([5, 8, 20]) if d.maybe(0.3) else width, enable_bias=d.maybe(0.7), tie_word_embeddings=d.maybe(0.6),
                   activation_function=d.act("relu"), pad_token_id=d.pad())
    if d.maybe(0.2):
        d.keys["_remove_final_layer_norm"] = True


def falcon(d):
    d.sizes(), d.heads(kv=False, explicit=False), d.rope(), d.eps("layer_norm_epsilon")
    d.keys["ffn_hidden_size"] = d.keys.pop("intermediate_size")
    heads = d.keys["num_attention_heads"]
    d.keys |= dict(new_decoder_architecture=d.maybe(0.4), multi_query=d.maybe(0.5), parallel_attn=d.maybe(0.7), bias=d.maybe(0.5),
                   activation=d.act("gelu"), alibi=d.maybe(0.1))
    if d.maybe(0.5):
        d.keys["num_kv_heads"] = d.r.choice([k for k in range(1, heads + 1) if heads % k == 0])
    if d.maybe(0.3):
        d.keys["num_ln_in_parallel_attn"] = d.r.choice([1, 2])


def phi3(d):
    d.sizes(), d.heads(explicit=False, partial=(1.0, 1.0, 0.5, 0.75)), d.eps("rms_norm_eps")
    d.rope(partial_rotary_factor=d.part)
    d.keys |= dict(hidden_act=d.act("silu"), sliding_window=d.window(), pad_token_id=d.pad())


def olmo2(d):
    d.sizes(), d.heads(explicit=False), d.rope(), d.eps("rms_norm_eps")
    d.keys |= dict(hidden_act=d.act("silu"), attention_bias=d.maybe(0.4), pad_token_id=d.pad())


def gpt_neox(d):
    d.sizes(), d.heads(kv=False, explicit=False, partial=(1.0, 0.5, 0.25, 0.4)), d.eps("layer_norm_eps")
    theta = d.r.choice([100, 10000])
    scaling = d.scaling(("linear", "dynamic", "yarn", "llama3")) if d.maybe(0.4) else None
    if d.dim * d.part < 4 and scaling:
        scaling = None  # dynamic and yarn divide by the pairs less one
    if MAJOR >= 5 and d.maybe(0.7):
        d.keys["rope_parameters"] = (scaling or dict(rope_type="default")) | dict(rope_theta=theta, partial_rotary_factor=d.part)
    else:
        d.keys |= dict(rotary_pct=d.part, rotary_emb_base=theta) | (dict(rope_scaling=scaling) if scaling else {})
    d.keys |= dict(hidden_act=d.act("gelu"), use_parallel_residual=d.maybe(0.6), attention_bias=d.maybe(0.7))


def bloom(d):
    heads = d.r.choice([1, 2, 3, 4, 5, 6, 8, 12])
    d.keys |= dict(vocab_size=d.r.choice([17, 32]), hidden_size=heads * d.r.choice([1, 3, 4, 8]), n_layer=d.layers, n_head=heads,
                   tie_word_embeddings=d.maybe(0.6), apply_residual_connection_post_layernorm=d.maybe(0.4),
                   slow_but_exact=d.maybe(0.2))
    d.eps("layer_norm_epsilon")


def glm4(d):
    d.sizes(), d.heads(partial=(0.5, 1.0, 0.25, 0.75)), d.eps("rms_norm_eps")
    d.rope(partial_rotary_factor=d.part)
    d.keys.setdefault("head_dim", d.dim)
    d.keys |= dict(hidden_act=d.act("silu"), attention_bias=d.maybe(0.5), pad_token_id=d.pad())


def bert(d):
    d.sizes(), d.heads(kv=False, explicit=False), d.eps("layer_norm_eps")
    d.keys |= dict(hidden_act=d.act("gelu"), type_vocab_size=d.r.choice([1, 2, 5]), pad_token_id=d.pad())
    d.keys.pop("tie_word_embeddings") if d.maybe(0.9) else None
    d.cls = d.r.choice(["BertForMaskedLM", "BertForPreTraining"])


def t5(d):
    r = d.r
    act = d.act("relu")
    d.keys |= dict(vocab_size=r.choice([17, 32, 50]), d_model=r.choice([8, 12, 16]), d_kv=r.choice([1, 2, 5, 8]), d_ff=r.choice([1, 7, 20]),
                   num_layers=d.layers, num_heads=r.choice([1, 2, 3, 5]), relative_attention_num_buckets=r.choice([2, 4, 6, 7, 12, 32]),
                   relative_attention_max_distance=r.choice([5, 9, 17, 128]), decoder_start_token_id=r.choice([0, 3]),
                   feed_forward_proj="gated-" * d.maybe(0.5) + act, tie_word_embeddings=d.maybe(0.6))
    if d.maybe(0.4):
        d.keys["num_decoder_layers"] = r.choice([1, 2, 3])
    d.eps("layer_norm_epsilon")
    d.cls = "T5ForConditionalGeneration"


def llava(d):
    """A Llama that has no head of its embedding, and a tower of CLIP's with images of up to nine patches."""
    r, text, heads = d.r, Draw(d.r, "llama"), d.r.choice([1, 2, 3])
    text.positions = 64
    llama(text)
    if d.maybe(0.9):
        text.keys["tie_word_embeddings"] = False
    layers, patch, side = r.choice([1, 2, 3]), r.choice([1, 2, 3]), r.choice([1, 2, 3])
    tower = dict(model_type="clip_vision_model", hidden_size=heads * r.choice([2, 4, 5]), intermediate_size=r.choice([1, 7, 20]),
                 num_hidden_layers=layers, num_attention_heads=heads, patch_size=patch, num_channels=r.choice([1, 2, 3]),
                 image_size=patch * side + r.choice([0, 0, patch - 1]), hidden_act=d.act("quick_gelu"), projection_dim=4)
    if d.maybe(0.5):
        tower["layer_norm_eps"] = r.choice([1e-12, 1e-3, 0.1])
    place = r.randint(-layers - 1, layers)
    d.keys |= dict(text_config=text.keys | dict(model_type="llama"), vision_config=tower, image_token_index=r.randint(0, text.keys["vocab_size"] - 1),
                   vision_feature_layer=[-1, place] if d.maybe(0.05) else place, projector_hidden_act=d.act("gelu"),
                   vision_feature_select_strategy=r.choice(["default", "full"]), multimodal_projector_bias=d.maybe(0.6))
    d.cls = "LlavaForConditionalGeneration"


def arcee(d):
    d.sizes(), d.heads(), d.rope(), d.eps("rms_norm_eps")
    d.keys |= dict(hidden_act=d.act("relu2"), attention_bias=d.maybe(0.4), mlp_bias=d.maybe(0.4), pad_token_id=d.pad())


def seed_oss(d):
    d.sizes(), d.heads(), d.rope(), d.eps("rms_norm_eps")
    d.keys.setdefault("head_dim", d.dim)
    d.keys |= dict(hidden_act=d.act("silu"), attention_bias=d.maybe(0.6), attention_out_bias=d.maybe(0.4), mlp_bias=d.maybe(0.4),
                   pad_token_id=d.pad())


def smollm3(d):
    d.sizes(), d.heads(explicit=False), d.rope(), d.eps("rms_norm_eps")
    d.keys |= dict(hidden_act=d.act("silu"), attention_bias=d.maybe(0.3), mlp_bias=d.maybe(0.3), pad_token_id=d.pad(),
                   no_rope_layer_interval=d.r.choice([1, 2, 3, 4]), use_sliding_window=d.maybe(0.5), sliding_window=d.window())
    if d.maybe(0.4):
        d.keys["no_rope_layers"] = [d.r.choice([0, 1]) for _ in range(d.layers)]
    if d.maybe(0.3):
        d.keys["layer_types"] = d.kinds()


def ernie4_5(d):
    d.sizes(), d.heads(), d.rope(), d.eps("rms_norm_eps")
    d.keys.setdefault("head_dim", d.dim)
    d.keys |= dict(hidden_act=d.act("silu"), use_bias=d.maybe(0.4), pad_token_id=d.pad())


def hunyuan(d):
    d.sizes(), d.heads(), d.rope(), d.eps("rms_norm_eps")
    d.keys.setdefault("head_dim", d.dim)
    d.keys |= dict(hidden_act=d.act("silu"), attention_bias=d.maybe(0.4), pad_token_id=d.pad())
    scaling = d.keys.get("rope_scaling") or d.keys.get("rope_parameters") or {}
    if scaling.get("rope_type") == "dynamic" and d.dim > 2:
        scaling["alpha"] = d.r.choice([1.0, 3.0, 1000.0])


def olmo3(d):
    olmo2(d)
    d.layers = d.keys["num_hidden_layers"] = d.r.choice([1, 2, 3, 4, 5])
    for key in ("rope_parameters", "rope_scaling", "rope_theta"):
        d.keys.pop(key, None)
    scaling = d.scaling() if d.maybe(0.5) else dict(rope_type="default")
    near, full = d.r.choice([10.0, 500000.0]), d.r.choice([100.0, 500000.0])
    if MAJOR >= 5 and d.maybe(0.7):
        d.keys["rope_parameters"] = dict(full_attention=scaling | dict(rope_theta=full), sliding_attention=dict(rope_type="default", rope_theta=near))
    else:
        d.keys |= dict(rope_theta=full) | (dict(rope_scaling=scaling) if len(scaling) > 1 else {})
    d.keys["sliding_window"] = d.r.choice([1, 2, 5, 16, 4096])
    if d.maybe(0.5):
        d.keys["layer_types"] = d.kinds()


def exaone4(d):
    d.sizes(), d.heads(), d.rope(), d.eps("rms_norm_eps")
    d.keys |= dict(hidden_act=d.act("silu"), pad_token_id=d.pad(), sliding_window=d.window(), sliding_window_pattern=d.r.choice([1, 2, 3, 4]))
    if d.keys["sliding_window"] is None or d.maybe(0.5):
        d.keys["layer_types"] = d.kinds() if d.keys["sliding_window"] else ["full_attention"] * d.layers
        d.keys["sliding_window_pattern"] = d.r.choice([None, "LLLG", 2])


def nemotron(d):
    d.sizes(), d.heads(partial=(0.5, 1.0, 0.25, 0.75)), d.eps("norm_eps")
    d.rope(partial_rotary_factor=d.part)
    d.keys |= dict(hidden_act=d.act("relu2"), attention_bias=d.maybe(0.4), mlp_bias=d.maybe(0.4), pad_token_id=d.pad())


def ministral(d):
    mistral(d)
    d.keys["sliding_window"] = d.r.choice([1, 2, 5, 16, 4096])
    d.keys.setdefault("head_dim", d.dim)
    if d.maybe(0.5):
        d.keys["layer_types"] = d.kinds()


def ministral3(d):
    mistral(d)
    d.keys.setdefault("head_dim", d.dim)
    d.keys["pad_token_id"] = d.pad()
    scaling = d.keys.get("rope_scaling") or d.keys.get("rope_parameters")
    if scaling:
        scaling.setdefault("original_max_position_embeddings", d.r.choice([3, 6, 16]))
        scaling["llama_4_scaling_beta"] = d.r.choice([0.1, 0.5])


def gptj(d):
    r, heads, dim = d.r, d.r.choice([1, 2, 3, 4]), d.r.choice([2, 4, 6, 8, 5])
    d.keys |= dict(vocab_size=r.choice([17, 32]), n_positions=d.positions, n_embd=heads * dim, n_layer=d.layers, n_head=heads,
                   rotary_dim=r.choice([k for k in (2, 4, 6, 8) if k <= dim]), n_inner=r.choice([None, 12, 33]),
                   activation_function=d.act("gelu_new"), tie_word_embeddings=d.maybe(0.4))
    d.eps("layer_norm_epsilon")


FAMILIES = dict(gpt2=gpt2, llama=llama, mistral=mistral, qwen2=qwen2, qwen3=qwen3, gemma2=gemma2, gemma3_text=gemma3_text,
                phi3=phi3, olmo2=olmo2, gpt_neox=gpt_neox, bloom=bloom, glm4=glm4, gemma=gemma1, granite=granite,
                stablelm=stablelm, starcoder2=starcoder2, phi=phi, cohere=cohere, cohere2=cohere2, glm=glm, opt=opt,
                falcon=falcon, bert=bert, t5=t5, llava=llava, arcee=arcee, seed_oss=seed_oss, smollm3=smollm3, ernie4_5=ernie4_5,
                hunyuan_v1_dense=hunyuan, olmo3=olmo3, exaone4=exaone4, nemotron=nemotron, ministral=ministral, gptj=gptj)
if MAJOR >= 5:
    FAMILIES["ministral3"] = ministral3


def disturb(d, config):
    """Now and then another value of any attribute that the class has by default."""
    plain = type(config)().to_dict()
    free = sorted(k for k, v in plain.items() if isinstance(v, (bool, int, float)) and k not in d.keys)
    key = d.r.choice(free)
    v = plain[key]
    if d.maybe(0.1):
        value = None
    elif isinstance(v, bool):
        value = not v
    elif isinstance(v, int):
        value = d.r.choice([0, 1, 2, 3])
    else:
        value = d.r.choice([0.5 * v, 2.0 * v, 0.3])
    return {key: value}


def model_of(d):
    """The model, or None where transformers refuses its config."""
    try:
        config = transformers.AutoConfig.for_model(d.family, **d.keys)
        if d.maybe(0.25):
            d.keys |= disturb(d, config)
            config = transformers.AutoConfig.for_model(d.family, **d.keys)
        config._attn_implementation = "eager"
        model = getattr(transformers, d.cls)(config) if d.cls else transformers.AutoModelForCausalLM.from_config(config)
    except Exception as e:
        return None, f"{type(e).__name__}: {e}"
    g = seeded(json.dumps(d.keys, sort_keys=True))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=g) + (1.0 if p.ndim == 1 and d.maybe(0.5) else 0.0))
    return model, None


def saved(d, model, folder):
    """Writes it: whole, now and then in shards, or the base model where the head is its embedding."""
    shard = "2KB" if d.maybe(0.15) else "5GB"
    head = model.get_output_embeddings()
    bare = head.weight is model.get_input_embeddings().weight and head.bias is None and d.maybe(0.15) and not d.cls
    (model.base_model if bare else model).save_pretrained(folder, max_shard_size=shard)


def loss_of(model):
    """Logits of all tokens; the loss of a run over all but the last, as training has it: scalings that depend on the length see one less."""
    def of(ids):
        logits = model(input_ids=ids, use_cache=False).logits
        shorter = model(input_ids=ids[:, :-1], use_cache=False).logits
        return logits, torch.nn.functional.cross_entropy(shorter.flatten(0, 1), ids[:, 1:].flatten())
    return of


def labelled(d, ids, vocab):
    """Tokens and labels, some of which do not count."""
    shape = ids.shape if d.family in ("bert", "roberta", "xlm-roberta") else (len(ids), d.r.randint(1, 12))
    g = seeded(str(d.r.random()))
    labels = torch.randint(0, vocab, shape, generator=g)
    labels[torch.rand(shape, generator=g) < 0.5] = -100
    labels[0, 0] = 1
    batch = dict(input_ids=ids, labels=labels)
    if d.family == "bert" and d.maybe(0.5):
        batch["token_type_ids"] = torch.randint(0, d.keys["type_vocab_size"], shape, generator=g)
    if d.cls == "BertForPreTraining" and d.maybe(0.7):
        batch["next_sentence_label"] = torch.tensor([d.r.randint(0, 1), d.r.choice([0, 1, -100])])
    return batch


def illustrated(d, config):
    """Rows of text with one image or several: the places of their tokens are drawn, and behind the last stands text."""
    v, token, images = config.vision_config, config.image_token_index, d.r.choice([1, 1, 2, 3])
    vocab, g = config.text_config.vocab_size, seeded(str(d.r.random()))
    features = (v.image_size // v.patch_size) ** 2 + (config.vision_feature_select_strategy == "full")
    n = images * features
    length = n + d.r.randint(2, 8)
    ids = torch.randint(0, vocab, (2, length), generator=g)
    ids = torch.where(ids == token, (token + 1) % vocab, ids)
    for row in ids:
        row[torch.randperm(length - 1, generator=g)[:n]] = token
    labels = torch.where((ids == token) | (torch.rand(ids.shape, generator=g) < 0.3), -100, ids)
    labels[:, -1] = ids[:, -1]
    several = [images] if images > 1 or d.maybe(0.2) else []
    pixels = torch.randn(2, *several, v.num_channels, v.image_size, v.image_size, generator=g)
    return dict(input_ids=ids, labels=labels, pixel_values=pixels)


def difference(ours, want, single):
    """The largest difference of the logits, the loss and the gradients as a part of what is allowed, and of which."""
    grads = {k: v for k, v in want.items() if k.startswith("grad.")}
    largest = max(v.abs().max().item() for v in grads.values())
    worst = (0.0, "logits")
    for k, v in want.items():
        top = max(v.abs().max().item(), 5e-2 * largest if k in grads else 0.0, 1e-30)
        e = (ours[k].double() - v).abs().max().item() / top if ours[k].shape == v.shape else float("inf")
        allowed = max(TOLERANCE, 10 * (single[k].double() - v).abs().max().item() / top)
        worst = max(worst, (e / allowed if e == e else float("inf"), k))
    return worst


def one(d, binary, folder):
    """`(outcome, words)`: equal, refused, skipped or WRONG."""
    model, why = model_of(d)
    if model is None:
        return "skipped", why
    shutil.rmtree(folder, ignore_errors=True)
    model_dir = os.path.join(folder, "model")
    try:
        saved(d, model, model_dir)
    except Exception as e:
        return "skipped", f"{type(e).__name__}: {e}"
    positions = d.positions if d.family != "bloom" else 24
    vocab = getattr(model.config, "text_config", model.config).vocab_size
    ids = torch.randint(0, vocab, (2, d.r.randint(2, min(positions, 20))), generator=seeded(str(d.r.random())))
    try:
        cls = getattr(transformers, d.cls) if d.cls else transformers.AutoModelForCausalLM
        again = cls.from_pretrained(model_dir, attn_implementation="eager").eval().double()
        of = (lambda batch: run_model(again, batch)) if d.cls else loss_of(again)
        batch = labelled(d, ids, vocab) if d.cls else ids
        if d.family == "llava":
            batch = illustrated(d, again.config)
        with KeepF64():
            want = evaluate(of, stored_names(again, model_dir), batch)
        again = again.float()
        single = evaluate(of, stored_names(again, model_dir), batch)
    except AssertionError as e:  # tensors other than the parameters: attributes such as torchscript copy tied ones
        return "skipped", f"other tensors than parameters: {e}"
    except Exception as e:
        return "skipped", f"{type(e).__name__}: {e}"
    if not all(torch.isfinite(v).all() for v in want.values()):
        return "skipped", "not finite"
    inputs, out = os.path.join(folder, "inputs.safetensors"), os.path.join(folder, "out.safetensors")
    save_file(batch if d.cls else {"input_ids": ids}, inputs)
    run = subprocess.run([binary, "probe", "--model", model_dir, "--inputs", inputs, "--out", out], capture_output=True, text=True)
    with open(os.path.join(model_dir, "config.json")) as f:
        keys = json.load(f)
    if run.returncode != 0:
        named = [k for k in keys if f"config.json: {k}" in run.stderr]
        return ("refused", run.stderr.strip().splitlines()[0]) if named else ("WRONG", "refused without a key: " + run.stderr)
    ours = load_file(out)
    if set(ours) != set(want):
        return "WRONG", f"other tensors: {sorted(set(ours) ^ set(want))}"
    e, of = difference(ours, want, single)
    return ("equal", f"{e:.2f} {of}") if e <= 1.0 else ("WRONG", f"{of} differs by {e:.3g} times what is allowed")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--seed", type=int, required=True)
    ap.add_argument("--count", type=int, default=100)
    ap.add_argument("--family", action="append", choices=sorted(FAMILIES))
    ap.add_argument("--binary", default=os.path.join(HERE, "..", "..", "target", "release", "crossweave"))
    ap.add_argument("--keep", help="folder that keeps what was wrong")
    ap.add_argument("--verbose", action="store_true")
    args = ap.parse_args()
    torch.set_num_threads(1)
    families = args.family or list(FAMILIES)
    counts, refusals, skips, largest, i = dict(equal=0, refused=0, skipped=0, WRONG=0), {}, {}, 0.0, 0
    with tempfile.TemporaryDirectory() as top:
        while sum(counts.values()) - counts["skipped"] < args.count:
            name = families[i % len(families)]
            d = Draw(random.Random(f"{args.seed} {i}"), name)
            FAMILIES[name](d)
            outcome, words = one(d, args.binary, os.path.join(top, "case"))
            counts[outcome] += 1
            if outcome == "equal":
                largest = max(largest, float(words.split()[0]))
            if outcome == "skipped":
                skips[words.split(":")[0]] = skips.get(words.split(":")[0], 0) + 1
            if outcome == "refused":
                key, said = words.split("config.json: ", 1)[-1].split(": ", 1)
                key += " " + said.split(" is not available")[0] if " is not available" in said else ""
                refusals[key] = refusals.get(key, 0) + 1
            if outcome == "WRONG" or args.verbose:
                print(f"{i} {name} {outcome}: {words}\n  {json.dumps(d.keys)}", flush=True)
            if outcome == "WRONG" and args.keep:
                shutil.copytree(os.path.join(top, "case"), os.path.join(args.keep, f"{args.seed}-{i}"), dirs_exist_ok=True)
            i += 1
            if i > 20 * args.count:
                sys.exit("transformers refuses nearly everything that is drawn")
    def listed(of):
        return ", ".join(f"{k} ({n})" for k, n in sorted(of.items(), key=lambda kv: -kv[1])) or "nothing"

    print(f"transformers {transformers.__version__}, seed {args.seed}: " + ", ".join(f"{n} {k}" for k, n in counts.items())
          + f"; largest difference {largest:.2f} of what is allowed\n  refused by {listed(refusals)}\n  skipped for {listed(skips)}")
    return 1 if counts["WRONG"] else 0


if __name__ == "__main__":
    sys.exit(main())
