#!/usr/bin/env python3
"""Does a student learn more with a teacher? The quickstart's text, a GPT-2 of 8 layers as teacher, students of 7/8 of them with and without it.

  python students.py [--binary target/release/crossweave] [--seeds 1 2 3 4 5] [--steps 300] [--out DIR]

Needs nothing but the binary. For each seed a student is trained alone, and one taught until three quarters of the steps, as in DeepSpeed's mixture of
students; printed is the loss on the held-out part of the text at the end. Nothing is chosen by its result: give other seeds to see others.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--binary", default=os.path.join(ROOT, "target", "release", "crossweave"))
    ap.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--out", default=None, help="where runs go (default: a folder that is removed)")
    args = ap.parse_args()
    top = args.out or tempfile.mkdtemp()
    os.makedirs(top, exist_ok=True)
    with open(os.path.join(ROOT, "examples", "configs", "quickstart.json")) as f:
        data = json.load(f)["data"]
    data["train"]["cargo_sources"]["lock"] = os.path.join(ROOT, "Cargo.lock")
    data |= dict(seq_len=64, cache_dir=os.path.join(top, "cache"))

    def run(name, layers, steps, seed, distill=None):
        config = dict(
            model=dict(family="gpt2", n_layer=layers, n_embd=64, n_head=4, n_positions=64, vocab_size=257), data=data, train_batch_size=8,
            run=dict(steps=steps, seed=seed, validate_batches=100, checkpoint_every=0, generate=dict(tokens=0)), gradient_clipping=1.0,
            optimizer=dict(type="AdamW", params=dict(lr=2e-3, weight_decay=0.01)),
            scheduler=dict(type="cosine", params=dict(warmup_steps=20, min_lr=2e-4)))
        if distill:
            config["distill"] = distill
        path, out = os.path.join(top, name + ".json"), os.path.join(top, name)
        with open(path, "w") as f:
            json.dump(config, f)
        done = subprocess.run([os.path.abspath(args.binary), "train", path, "--out", out], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{name}: {done.stderr[-2000:]}")
        with open(os.path.join(out, "metrics.jsonl")) as f:
            held_out = [r["val_loss"] for r in map(json.loads, f) if "val_loss" in r]
        return held_out[-1]

    print(f"teacher, 8 layers, {4 * args.steps} steps: {run('teacher', 8, 4 * args.steps, 100):.4f}", flush=True)
    teacher = dict(teacher=os.path.join(top, "teacher", "model"), alpha=0.5, temperature=1.0, stop_step=args.steps * 3 // 4)
    better = 0
    for seed in args.seeds:
        alone = run(f"alone-{seed}", 7, args.steps, seed)
        taught = run(f"taught-{seed}", 7, args.steps, seed, teacher)
        better += taught < alone
        print(f"seed {seed}: alone {alone:.4f}, taught {taught:.4f}", flush=True)
    print(f"{better} of {len(args.seeds)} students end lower with the teacher")


if __name__ == "__main__":
    main()
