#!/usr/bin/env python3
"""Make, or check, the adapters beside this file with PEFT and PyTorch in float64.

  python peft_cases.py make     write adapters/NAME
  python peft_cases.py check    train the committed adapters again and compare all committed figures

Each case sits on the model of another oracle. adapters/NAME holds `adapter/` as PEFT's save_pretrained writes it (A and B drawn at
random, so that both have gradients from the first step), `expected.safetensors` (logits, loss and gradients at the start) and
`train.safetensors` (the losses of 20 AdamW steps on the batches of the model's own oracle, and the norms of A and B behind them).
"""
import argparse
import json
import os
import shutil
import sys
import warnings

import peft
import torch
from safetensors.torch import load_file, save_file

from make import ADAMW, HERE, KeepF64, error, load_model, run, seeded, worst

warnings.filterwarnings("ignore")
CASES = {
    "gpt2": dict(model="gpt2-tied", r=4, lora_alpha=6, target_modules=["c_attn", "mlp.c_proj"]),
    "llama": dict(model="llama-gqa-sharded", r=3, lora_alpha=5, use_rslora=True, target_modules="all-linear"),
    "llama-pattern": dict(model="llama-bias", r=2, lora_alpha=8, target_modules=r".*\.(o_proj|up_proj)"),
}


def plain(name):
    """PEFT's own names carry the adapter's, which its files leave out."""
    return name.replace(".default.", ".")


def base(case):
    directory = os.path.join(HERE, case["model"])
    return load_model(os.path.join(directory, "model")), load_file(os.path.join(directory, "inputs.safetensors")), \
        load_file(os.path.join(directory, "train.safetensors"))


def trained(model):
    return {plain(k): p for k, p in model.named_parameters() if p.requires_grad}


def figures(model, ids, data):
    """What is committed: of the start, and of 20 steps."""
    with KeepF64():
        params = trained(model)
        logits, loss = run(model, ids)
        loss.backward()
        start = {"logits": logits.detach(), "loss": loss.detach()} | {"grad." + k: p.grad.clone() for k, p in params.items()}
        opt = torch.optim.AdamW(params.values(), lr=ADAMW["lr"], betas=tuple(ADAMW["betas"]), eps=ADAMW["eps"],
                                weight_decay=ADAMW["weight_decay"])
        losses = []
        for rows in data:
            opt.zero_grad()
            loss = run(model, rows)[1]
            loss.backward()
            losses.append(loss.item())
            opt.step()
    norms = {"norm." + k: p.detach().norm() for k, p in params.items()}
    return start, dict(losses=torch.tensor(losses, dtype=torch.float64)) | norms


def open_adapter(top, case):
    """As PEFT reads it back, in float64."""
    model, inputs, train = base(case)
    model = peft.PeftModel.from_pretrained(model, os.path.join(top, "adapter"), is_trainable=True,
                                           autocast_adapter_dtype=False).double().eval()
    return model, inputs["input_ids"], train["input_ids"]


def make(name, case):
    top = os.path.join(HERE, "adapters", name)
    shutil.rmtree(top, ignore_errors=True)
    keys = {k: v for k, v in case.items() if k != "model"}
    config = peft.LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **keys)
    model = peft.get_peft_model(base(case)[0], config, autocast_adapter_dtype=False)
    with torch.no_grad():
        for k, p in trained(model).items():
            p.copy_((0.1 * torch.randn(p.shape, generator=seeded(name + k), dtype=torch.float64)).float())
    model.peft_config["default"].base_model_name_or_path = f"../../../{case['model']}/model"
    model.float().save_pretrained(os.path.join(top, "adapter"))
    os.remove(os.path.join(top, "adapter", "README.md"))
    start, after = figures(*open_adapter(top, case))
    small = {k: v if k == "loss" else v.float().contiguous() for k, v in start.items()}
    save_file(small, os.path.join(top, "expected.safetensors"))
    save_file(after, os.path.join(top, "train.safetensors"))
    meta = dict(model=case["model"], peft=peft.__version__, torch=torch.__version__.split("+")[0], train=dict(steps=len(after["losses"]), **ADAMW))
    with open(os.path.join(top, "meta.json"), "w") as f:
        json.dump(meta, f, indent=2)
        f.write("\n")
    print(f"{name:14} {len(trained(model))} matrices, loss {after['losses'][0]:.4f} -> {after['losses'][-1]:.4f}")


def check(name, case):
    top = os.path.join(HERE, "adapters", name)
    start, after = figures(*open_adapter(top, case))
    found = dict(start=worst(start, load_file(os.path.join(top, "expected.safetensors"))),
                 losses=error(after["losses"], load_file(os.path.join(top, "train.safetensors"))["losses"]))
    print(name, found)
    return max(found.values()) < 1e-5


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("what", choices=("make", "check"))
    args = ap.parse_args()
    torch.set_num_threads(1)
    if args.what == "make":
        for name, case in CASES.items():
            make(name, case)
    else:
        failed = [n for n, c in CASES.items() if not check(n, c)]
        if failed:
            sys.exit(f"differ by more than 1e-5: {', '.join(failed)}")


if __name__ == "__main__":
    main()
