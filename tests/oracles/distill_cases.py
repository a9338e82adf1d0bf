#!/usr/bin/env python3
"""Make, or check, `distill/`: what PyTorch gives in float64 for a student that learns from a teacher, both models of cases beside this file.

  python distill_cases.py make | check

The loss is (1 - alpha) CE + alpha tau^2 KL(softmax(t / tau) || softmax(s / tau)), each the mean over B x (T-1) predictions, and CE alone from
`stop_step` on. `expected.safetensors` holds the gradients of the first step, the losses of 20 AdamW steps as in the other cases, and the
norms behind them; `meta.json` says which models and numbers they are of.
"""
import json
import os
import sys

import torch
from safetensors.torch import load_file, save_file

from cases import CASES
from make import ADAMW, HERE, STEPS, KeepF64, load_model, stored_names, undetermined, worst

TOP = os.path.join(HERE, "distill")
HOW = dict(student="gpt2-tied", teacher="llama-mqa", alpha=0.6, temperature=2.5, stop_step=13)


def figures():
    case = next(c for c in CASES if c.name == HOW["student"])
    folders = [os.path.join(HERE, HOW[k], "model") for k in ("student", "teacher")]
    student, teacher = (load_model(f) for f in folders)
    params = stored_names(student, folders[0])
    data = load_file(os.path.join(HERE, HOW["student"], "train.safetensors"))["input_ids"]
    decays = [dict(params=[p for p in params.values() if p.ndim >= 2], weight_decay=ADAMW["weight_decay"]),
              dict(params=[p for p in params.values() if p.ndim < 2], weight_decay=0.0)]
    opt = torch.optim.AdamW(decays, lr=ADAMW["lr"], betas=tuple(ADAMW["betas"]), eps=ADAMW["eps"])
    a, tau, out, losses = HOW["alpha"], HOW["temperature"], {}, []
    log = torch.nn.functional.log_softmax
    with KeepF64():
        for i in range(STEPS):
            ids = data[i]
            s = student(input_ids=ids).logits[:, :-1].flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(s, ids[:, 1:].flatten())
            if i < HOW["stop_step"]:
                with torch.no_grad():
                    t = teacher(input_ids=ids).logits[:, :-1].flatten(0, 1)
                s, t = log(s / tau, -1), log(t / tau, -1)
                loss = (1 - a) * loss + a * tau * tau * (t.exp() * (t - s)).sum(-1).mean()
            opt.zero_grad()
            loss.backward()
            if i == 0:
                out = {"grad." + k: p.grad.detach().clone() for k, p in params.items()}
            opt.step()
            losses.append(loss.item())
    norms = {"norm." + k: p.detach().norm() for k, p in params.items() if not undetermined(case, k)}
    return {k: v.float() for k, v in out.items()} | norms | dict(losses=torch.tensor(losses, dtype=torch.float64))


def main():
    torch.set_num_threads(1)
    ours, path = figures(), os.path.join(TOP, "expected.safetensors")
    if sys.argv[1:] == ["make"]:
        os.makedirs(TOP, exist_ok=True)
        save_file({k: v.contiguous() for k, v in ours.items()}, path)
        with open(os.path.join(TOP, "meta.json"), "w") as f:
            json.dump(HOW | dict(torch=torch.__version__.split("+")[0]), f, indent=2)
            f.write("\n")
        return 0
    difference = worst(ours, load_file(path))
    print(f"distill: {difference:.1e}")
    return int(difference > 1e-5)


if __name__ == "__main__":
    sys.exit(main())
