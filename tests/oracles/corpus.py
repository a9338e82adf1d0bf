#!/usr/bin/env python3
"""Public config.json texts, their sizes shrunk: our logits, loss and gradients are PyTorch's, or the text stands with its reason.

  python corpus.py [--binary target/release/crossweave] [--only WORD]

`configs.json` holds one text a line with its source: the repository of the model, and where the text was read. Each is shrunk (layers, widths,
heads, windows, vocabulary), a model is made of it with random weights, and `crossweave probe` of the folder with that text must give PyTorch's
figures in float64, as `fuzz.py` compares them; or the line has `refused`, the key that the refusal must name. A line's `unread` lists the keys
that the warning must name, and no others.
"""
import argparse
import copy
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

from make import HERE, KeepF64, evaluate, run as run_model, seeded, stored_names, transformers

import torch
from safetensors.torch import load_file, save_file

from fuzz import Draw, difference, illustrated, labelled, loss_of
import random

CLASSES = {"t5": "T5ForConditionalGeneration", "mt5": "MT5ForConditionalGeneration", "llava": "LlavaForConditionalGeneration",
           "roberta": "RobertaForMaskedLM", "xlm-roberta": "XLMRobertaForMaskedLM"}
HEADS, WIDTH, VOCAB, LAYERS, POSITIONS = 4, 64, 64, 2, 64


def shrunk(config):
    """The same text with small numbers."""
    c = {k: v for k, v in config.items() if k != "auto_map"}
    if "text_config" in c:
        c["text_config"], c["vision_config"] = shrunk(c["text_config"] | dict(hidden_size=1, intermediate_size=1, num_hidden_layers=1,
                                                                                num_attention_heads=1)), shrunk(c["vision_config"])
        c["vocab_size"] = VOCAB
        return c | dict(image_token_index=5, pad_token_id=None)
    width = config.get("hidden_size") or config.get("n_embd") or config.get("n_embed") or config.get("d_model")
    heads = config.get("num_attention_heads") or config.get("n_head") or config.get("num_heads")
    part = config.get("partial_rotary_factor", config.get("rotary_pct", 1.0))
    for key, v in list(c.items()):
        if v is None or isinstance(v, bool):
            continue
        if key in ("hidden_size", "n_embd", "n_embed", "d_model", "word_embed_proj_dim"):
            c[key] = WIDTH if v == width else WIDTH // 2
        elif key in ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner", "d_ff"):
            c[key] = 48
        elif key in ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers"):
            c[key] = LAYERS
        elif key in ("num_attention_heads", "n_head", "num_heads"):
            c[key] = HEADS
        elif key in ("num_key_value_heads", "num_kv_heads"):
            c[key] = HEADS if v == heads else 1 if v == 1 else 2
        elif key in ("head_dim", "d_kv", "query_pre_attn_scalar"):
            c[key] = WIDTH // HEADS if v * heads == width else 24
        elif key == "moe_intermediate_size":
            c[key] = 24
        elif key in ("num_local_experts", "num_experts"):
            c[key] = 6
        elif key == "num_experts_per_tok":
            c[key] = 2
        elif key == "router_aux_loss_coef":
            c[key] = 0.0  # Its loss is in PyTorch's only where output_router_logits says so.
        elif key == "vocab_size":
            c[key] = VOCAB
        elif key in ("max_position_embeddings", "n_positions", "n_ctx", "seq_length", "max_sequence_length", "model_max_length"):
            c[key] = POSITIONS
        elif key in ("sliding_window", "sliding_window_size"):
            c[key] = 5
        elif key == "max_window_layers":
            c[key] = 1
        elif key == "rotary_dim":
            c[key] = WIDTH // HEADS // 4
        elif key == "original_max_position_embeddings":
            c[key] = 12
        elif key == "layer_types":
            c[key] = [v[0], v[-1]]
        elif key == "image_size":
            c[key] = 4
        elif key == "patch_size":
            c[key] = 2
        elif key.endswith("token_id"):
            c[key] = 3
        elif key == "rope_scaling":
            c[key] = dict(v)
            pairs = int((c.get("head_dim") or WIDTH // HEADS) * part) // 2
            for name in ("short_factor", "long_factor"):
                if name in v:
                    c[key][name] = v[name][:pairs]
            if "original_max_position_embeddings" in v:
                c[key]["original_max_position_embeddings"] = 12
    return c


def probed(binary, folder, inputs, out):
    run = subprocess.run([binary, "probe", "--model", folder, "--inputs", inputs, "--out", out], capture_output=True, text=True)
    warned = [line for line in run.stderr.splitlines() if line.startswith("warning: ") and "does not read" in line]
    names = re.sub(r" \(did you mean [^)]*\)", "", warned[0].rsplit("nothing: ", 1)[1]).split(", ") if warned else []
    return run, warned, sorted(names)


def one(line, binary, top):
    """`(outcome, words)` of one text: equal, listed or WRONG."""
    config = shrunk(line["config"])
    family = config["model_type"]
    folder, inputs, out = (os.path.join(top, n) for n in ("model", "inputs.safetensors", "out.safetensors"))
    shutil.rmtree(folder, ignore_errors=True)
    cls = (config.get("architectures") or [""])[0]
    if family == "bert" and cls != "BertForPreTraining":
        cls = "BertForMaskedLM"
    cls = getattr(transformers, CLASSES.get(family, cls))
    made = transformers.AutoConfig.for_model(**copy.deepcopy(config))
    made._attn_implementation = "eager"
    model = cls(made)
    g = seeded(line["source"])
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=g) + (1.0 if p.ndim == 1 else 0.0))
    model.save_pretrained(folder)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    if family in ("t5", "mt5") and config.get("tie_word_embeddings") is False:  # 5.x makes the head from the embedding, and reads one that is there
        weights = load_file(os.path.join(folder, "model.safetensors"))
        weights["lm_head.weight"] = 0.3 * torch.randn(VOCAB, WIDTH, generator=g)
        save_file(weights, os.path.join(folder, "model.safetensors"), metadata=dict(format="pt"))
    again = cls.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval().double()
    ids = torch.randint(4, VOCAB, (2, 20), generator=seeded(line["source"] + " ids"))
    d = Draw(random.Random(line["source"]), family)
    d.keys, d.cls = dict(config), cls.__name__ if family in ("bert", *CLASSES) else ""
    batch = labelled(d, ids, VOCAB) if d.cls else ids
    if family == "llava":
        batch = illustrated(d, again.config)
    of = (lambda b: run_model(again, b)) if d.cls else loss_of(again)
    with KeepF64():
        want = evaluate(of, stored_names(again, folder), batch)
    again = again.float()
    single = evaluate(of, stored_names(again, folder), batch)
    save_file(batch if d.cls else {"input_ids": ids}, inputs)
    run, warned, names = probed(binary, folder, inputs, out)
    if run.returncode != 0:
        said = run.stderr.strip().splitlines()[-1 if not run.stderr.startswith("error") else 0]
        key = line.get("refused")
        return ("listed", said) if key and f"config.json: {key}:" in run.stderr else ("WRONG", run.stderr.strip()[:600])
    if line.get("refused"):
        return "WRONG", "not refused"
    ours = load_file(out)
    if set(ours) != set(want):
        return "WRONG", f"other tensors: {sorted(set(ours) ^ set(want))[:9]}"
    e, of_what = difference(ours, want, single)
    if e > 1.0:
        return "WRONG", f"{of_what} differs by {e:.3g} times what is allowed"
    if names != sorted(line.get("unread", [])) or len(warned) > 1:
        return "WRONG", f"unread {names}, and the line says {line.get('unread', [])}"
    return "equal", f"{e:.2f} {of_what}; unread {names}"


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--binary", default=os.path.join(HERE, "..", "..", "target", "release", "crossweave"))
    ap.add_argument("--only", default="")
    args = ap.parse_args()
    torch.set_num_threads(1)
    counts, largest = dict(equal=0, listed=0, WRONG=0), 0.0
    with open(os.path.join(HERE, "configs.json")) as f:
        lines = [line for line in json.load(f) if args.only in line["source"] + " " + line["config"]["model_type"]]
    with tempfile.TemporaryDirectory() as top:
        for line in lines:
            try:
                outcome, words = one(line, args.binary, top)
            except Exception as e:
                outcome, words = "WRONG", f"{type(e).__name__}: {e}"
            counts[outcome] += 1
            if outcome == "equal":
                largest = max(largest, float(words.split()[0]))
            print(f"{line['source']} {outcome}: {words}", flush=True)
    print(f"transformers {transformers.__version__}: " + ", ".join(f"{n} {k}" for k, n in counts.items())
          + f"; largest difference {largest:.2f} of what is allowed")
    return 1 if counts["WRONG"] else 0


if __name__ == "__main__":
    sys.exit(main())
