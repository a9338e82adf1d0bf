#!/usr/bin/env python3
"""Checks that transformers (for an adapter: with PEFT) loads a directory we exported and computes the logits we computed.

  python check_export.py DIR TOKENS.safetensors LOGITS.safetensors [--tolerance 1e-4]

DIR is a Hugging Face directory (such as `crossweave train` saves); TOKENS holds `input_ids` [B, T], and `labels` where the model predicts hidden tokens or writes a text;
LOGITS holds `logits` [B, T, V] of the same tokens (such as `crossweave probe` writes). If LOGITS holds
`loss` as well, that is compared too. Exit code 0: equal within the tolerance, relative to the largest
logit; 1: not equal; 2: transformers does not read the directory cleanly.
"""
import argparse
import json
import os
import sys
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import transformers
from safetensors.torch import load_file

from make import run


def load(directory, **kw):
    """The model, and what transformers says of loading it. An adapter is put on the model that its config names."""
    path = os.path.join(directory, "adapter_config.json")
    if not os.path.exists(path):
        with open(os.path.join(directory, "config.json")) as f:
            name = json.load(f)["architectures"][0]
        own = getattr(transformers, name) if name.startswith(("Bert", "T5", "MT5", "Roberta", "XLMRoberta", "Llava")) else transformers.AutoModelForCausalLM
        return own.from_pretrained(directory, **kw)
    import peft
    with open(path) as f:
        base = json.load(f)["base_model_name_or_path"]
    model, info = transformers.AutoModelForCausalLM.from_pretrained(base, **kw)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*missing adapter keys.*")
        model = peft.PeftModel.from_pretrained(model, directory, autocast_adapter_dtype=False)
    own = {k.replace(".default.", ".") for k in model.state_dict() if ".lora_" in k}
    extra = set(load_file(os.path.join(directory, "adapter_model.safetensors"))) ^ own
    info["unexpected_keys"] = list(info["unexpected_keys"]) + sorted(extra)
    return model, info


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("dir")
    ap.add_argument("tokens")
    ap.add_argument("logits")
    ap.add_argument("--tolerance", type=float, default=1e-4)
    args = ap.parse_args()
    tokens = {k: v if v.is_floating_point() else v.long() for k, v in load_file(args.tokens).items()}
    ours = load_file(args.logits)
    try:
        model, info = load(args.dir, attn_implementation="eager", output_loading_info=True, local_files_only=True)
    except Exception as e:  # whatever transformers raises, the directory is not one it reads
        print(f"{args.dir}: transformers {transformers.__version__} does not load it: {e}", file=sys.stderr)
        return 2
    left = {k: sorted(map(str, info[k])) for k in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[k]}
    if left:
        print(f"{args.dir}: tensors do not match the config: {left}", file=sys.stderr)
        return 2
    with torch.no_grad():
        logits, loss, *_ = run(model.eval().double(), tokens)
    theirs, mine = logits.double(), ours["logits"].double()
    if theirs.shape != mine.shape:
        print(f"logits have shape {list(mine.shape)}, transformers gives {list(theirs.shape)}", file=sys.stderr)
        return 1
    errors = {"logits": ((mine - theirs).abs().max() / theirs.abs().max()).item()}
    if "loss" in ours:
        errors["loss"] = abs(ours["loss"].double().item() / loss.item() - 1)
    bad = [k for k, e in errors.items() if not e <= args.tolerance]  # a NaN is not within it
    print(f"{args.dir}: transformers {transformers.__version__}: "
          + ", ".join(f"{k} differ by {e:.1e}" for k, e in errors.items())
          + (f": more than {args.tolerance:g}" if bad else ": equal"))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
