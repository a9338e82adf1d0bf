#!/usr/bin/env python3
"""Make, or check, vision/: LLaVA's parts trained apart, on 32 random pairs of image and text.

  python vision_cases.py make
  python vision_cases.py check

train.safetensors holds the pairs, two a step, and for each way to train the losses of four epochs of AdamW (the settings of every
oracle) in float64 from the weights of llava-v4: the tower frozen, the tower at a tenth of the rate, the tower alone.
"""
import os
import sys

from make import ADAMW, CASES, HERE, KeepF64, batches, error, load_model, run, step, with_images
import torch
from safetensors.torch import load_file, save_file

CASE = next(c for c in CASES if c.name == "llava-v4")
EPOCHS, STEPS = 4, 16
TOWER = "vision_tower."
# Each part's share of the rate; 0: it stays.
WAYS = dict(frozen=[0.0, 1.0], slow=[0.1, 1.0], alone=[1.0, 0.0])


def losses(data, shares):
    model = load_model(os.path.join(HERE, CASE.name, "model"))
    groups = []
    for name, p in model.named_parameters():
        share = shares[TOWER not in name]
        p.requires_grad_(share > 0)
        if share:
            groups.append(dict(params=[p], lr=ADAMW["lr"] * share, weight_decay=ADAMW["weight_decay"] * (p.ndim >= 2)))
    opt = torch.optim.AdamW(groups, betas=tuple(ADAMW["betas"]), eps=ADAMW["eps"])
    out = []
    for i in range(EPOCHS * STEPS):
        opt.zero_grad()
        with KeepF64():
            loss = run(model, step(data, i % STEPS))[1]
            loss.backward()
        out.append(loss.item())
        opt.step()
    return torch.tensor(out, dtype=torch.float64)


def main():
    path = os.path.join(HERE, "vision", "train.safetensors")
    making = sys.argv[1:] == ["make"]
    if making:
        data = with_images("vision", batches("vision", STEPS, CASE.config["text_config"]["vocab_size"]), CASE.config)
    else:
        stored = load_file(path)
        data = {k: stored[k] for k in ("input_ids", "labels", "pixel_values")}
    found = {f"losses.{name}": losses(data, shares) for name, shares in WAYS.items()}
    for name, curve in found.items():
        print(f"{name:16} {curve[0]:.4f} -> {curve[-1]:.4f}" + ("" if making else f"  {error(curve, stored[name]):.1e}"))
    if making:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        save_file({k: v.contiguous() for k, v in data.items()} | found, path)
    elif max(error(curve, stored[name]) for name, curve in found.items()) > 1e-5:
        sys.exit("differs by more than 1e-5")


if __name__ == "__main__":
    main()
