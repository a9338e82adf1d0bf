"""GPT-2 and Llama written out from the tensors of a checkpoint, in float64: no transformers, no modules.

It is the second opinion on every oracle: it reads the files itself, computes rotary angles in float64
(transformers computes them in float32) and takes gradients through torch's autograd.
"""
import json
import math
import os

import torch
from safetensors.torch import load_file

F = torch.nn.functional


def read_tensors(directory):
    """Every tensor of the directory's safetensors files, by its stored name."""
    index = os.path.join(directory, "model.safetensors.index.json")
    if os.path.exists(index):
        names = sorted(set(json.load(open(index))["weight_map"].values()))
    else:
        names = ["model.safetensors"]
    out = {}
    for name in names:
        out.update(load_file(os.path.join(directory, name)))
    return out


def is_buffer(name):
    """Causal masks that old GPT-2 files store: constants, not parameters."""
    return name.endswith((".attn.bias", ".attn.masked_bias", "rotary_emb.inv_freq"))


class Reference:
    """`forward(ids)` gives logits; `params` holds the leaf tensors by stored name."""

    def __init__(self, directory):
        self.cfg = json.load(open(os.path.join(directory, "config.json")))
        raw = read_tensors(directory)
        self.family = self.cfg["model_type"]
        prefix = {"gpt2": "transformer.", "llama": "model."}[self.family]
        self.prefix = prefix if any(k.startswith(prefix) for k in raw) else ""
        # GPT2Config ties by default, LlamaConfig does not.
        self.tied = self.cfg.get("tie_word_embeddings", self.family == "gpt2")
        self.params = {k: v.double().requires_grad_() for k, v in raw.items()
                       if not is_buffer(k) and not (self.tied and k == "lm_head.weight")}

    def p(self, name):
        return self.params[self.prefix + name]

    def forward(self, ids):
        return (self.gpt2 if self.family == "gpt2" else self.llama)(ids)

    def loss(self, ids):
        logits = self.forward(ids)
        return logits, F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    def gpt2(self, ids):
        c = self.cfg
        heads, eps = c["n_head"], c.get("layer_norm_epsilon", 1e-5)
        act = {"gelu_new": lambda x: F.gelu(x, approximate="tanh"),
               "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
               "gelu": F.gelu}[c.get("activation_function", "gelu_new")]
        norm = lambda x, n: F.layer_norm(x, x.shape[-1:], self.p(n + ".weight"), self.p(n + ".bias"), eps)
        dense = lambda x, n: x @ self.p(n + ".weight") + self.p(n + ".bias")
        b, t = ids.shape
        x = self.p("wte.weight")[ids] + self.p("wpe.weight")[:t]
        for i in range(c["n_layer"]):
            h = f"h.{i}."
            q, k, v = (y.view(b, t, heads, -1).transpose(1, 2)
                       for y in dense(norm(x, h + "ln_1"), h + "attn.c_attn").chunk(3, -1))
            x = x + dense(attend(q, k, v).transpose(1, 2).reshape(b, t, -1), h + "attn.c_proj")
            x = x + dense(act(dense(norm(x, h + "ln_2"), h + "mlp.c_fc")), h + "mlp.c_proj")
        return norm(x, "ln_f") @ (self.p("wte.weight") if self.tied else self.params["lm_head.weight"]).T

    def llama(self, ids):
        c = self.cfg
        heads, eps = c["num_attention_heads"], c.get("rms_norm_eps", 1e-6)
        kv = c.get("num_key_value_heads") or heads
        hd = c.get("head_dim") or c["hidden_size"] // heads
        b, t = ids.shape
        angle = torch.arange(t, dtype=torch.float64)[:, None] * self.inv_freq(hd)[None]
        cos, sin = angle.cos(), angle.sin()

        def rotate(x):
            lo, hi = x.chunk(2, -1)
            return torch.cat((lo * cos - hi * sin, hi * cos + lo * sin), -1)

        def norm(x, n):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * self.p(n + ".weight")

        def dense(x, n):
            y = x @ self.p(n + ".weight").T
            bias = self.params.get(self.prefix + n + ".bias")
            return y if bias is None else y + bias

        x = self.p("embed_tokens.weight")[ids]
        for i in range(c["num_hidden_layers"]):
            a, m = f"layers.{i}.self_attn.", f"layers.{i}.mlp."
            y = norm(x, f"layers.{i}.input_layernorm")
            q = rotate(dense(y, a + "q_proj").view(b, t, heads, hd).transpose(1, 2))
            k = rotate(dense(y, a + "k_proj").view(b, t, kv, hd).transpose(1, 2))
            v = dense(y, a + "v_proj").view(b, t, kv, hd).transpose(1, 2)
            k, v = (z.repeat_interleave(heads // kv, 1) for z in (k, v))
            x = x + dense(attend(q, k, v).transpose(1, 2).reshape(b, t, -1), a + "o_proj")
            y = norm(x, f"layers.{i}.post_attention_layernorm")
            x = x + dense(F.silu(dense(y, m + "gate_proj")) * dense(y, m + "up_proj"), m + "down_proj")
        head = self.p("embed_tokens.weight") if self.tied else self.params["lm_head.weight"]
        return norm(x, "norm") @ head.T

    def inv_freq(self, hd):
        """Rotary frequencies, float64 [hd/2], from either form of the config."""
        c = self.cfg
        rope = dict(c.get("rope_parameters") or c.get("rope_scaling") or {})
        theta = rope.get("rope_theta", c.get("rope_theta", 10000.0))
        kind = rope.get("rope_type", rope.get("type", "default"))
        freq = theta ** (-torch.arange(0, hd, 2, dtype=torch.float64) / hd)
        if kind == "linear":
            freq = freq / rope["factor"]
        elif kind == "llama3":
            old, lo, hi = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
            turns = old * freq / (2 * math.pi)  # rotations within the old context
            keep = ((turns - lo) / (hi - lo)).clamp(0, 1)
            freq = freq * keep + freq / rope["factor"] * (1 - keep)
        elif kind != "default":
            raise SystemExit(f"no reference for rope_type {kind!r}")
        return freq


def attend(q, k, v):
    """Causal attention, [B, H, T, hd]."""
    t = q.size(-2)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
    scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -math.inf)
    return scores.softmax(-1) @ v


def adamw(params, losses_of, batches, lr, betas, eps, decay, decay_all):
    """Losses of one AdamW step per batch, written out (decoupled decay, bias correction).

    params: leaf tensors by name; losses_of(ids) gives the loss; returns the loss before each update."""
    m = {k: torch.zeros_like(p) for k, p in params.items()}
    v = {k: torch.zeros_like(p) for k, p in params.items()}
    out = []
    for step, ids in enumerate(batches, 1):
        for p in params.values():
            p.grad = None
        loss = losses_of(ids)
        loss.backward()
        out.append(loss.item())
        with torch.no_grad():
            for k, p in params.items():
                if decay_all or p.ndim >= 2:
                    p.mul_(1 - lr * decay)
                m[k].lerp_(p.grad, 1 - betas[0])
                v[k].mul_(betas[1]).addcmul_(p.grad, p.grad, value=1 - betas[1])
                scale = (v[k] / (1 - betas[1] ** step)).sqrt() + eps
                p.sub_(lr / (1 - betas[0] ** step) * m[k] / scale)
    return out
