#!/usr/bin/env python3
"""BERT and T5 on text beside their PyTorch twins: the losses of 50 AdamW steps from the same weights and the same hidden tokens.

  python curve.py FILE... [--binary target/release/crossweave]

FILEs are the text, as bytes. For each family transformers makes a small model, tokens are hidden here (15 %; of BERT's 80 % masked, 10 % another,
10 % as they are; of T5's spans of 3), and `crossweave train` and PyTorch in float64 train on them. Exit code 1: a loss differs by more than 1e-4.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

from make import HERE, KeepF64, run, seeded, transformers

import torch
from safetensors.torch import save_file

STEPS, BATCH, LENGTH = 50, 4, 64
MASK, VOCAB, END = 257, 384, 256
OPTIMIZER = dict(lr=1e-3, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1)


def rows(files):
    text = torch.tensor(list(b"".join(open(f, "rb").read() for f in files)))
    at = torch.randperm(len(text) // LENGTH, generator=seeded("curve"))[:STEPS * BATCH]
    assert len(at) == STEPS * BATCH, "more text"
    return torch.stack([text[i * LENGTH:(i + 1) * LENGTH] for i in at])


def masked(all_rows, g):
    n, labels, ids = round(0.15 * LENGTH), torch.full_like(all_rows, -100), all_rows.clone()
    for row in range(len(ids)):
        for at in torch.randperm(LENGTH, generator=g)[:n]:
            labels[row, at] = ids[row, at]
            u = torch.randint(10, (), generator=g)
            ids[row, at] = MASK if u < 8 else torch.randint(256, (), generator=g) if u == 8 else ids[row, at]
    return ids, labels


def cut(all_rows, g):
    noise = round(0.15 * LENGTH)
    spans = round(noise / 3)
    ids, labels = [], []
    for row in all_rows.tolist():
        def parts(total):
            ends = sorted((torch.randperm(total - 1, generator=g)[:spans - 1] + 1).tolist())
            return [b - a for a, b in zip([0, *ends], [*ends, total])]
        read, written, at = [], [], 0
        for i, (keep, gone) in enumerate(zip(parts(LENGTH - noise), parts(noise))):
            read += row[at:at + keep] + [VOCAB - 1 - i]
            written += [VOCAB - 1 - i] + row[at + keep:at + keep + gone]
            at += keep + gone
        ids.append(read + [END])
        labels.append(written + [END])
    return torch.tensor(ids), torch.tensor(labels)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("files", nargs="+")
    ap.add_argument("--binary", default=os.path.join(HERE, "..", "..", "target", "release", "crossweave"))
    args = ap.parse_args()
    torch.set_num_threads(1)
    text, bad = rows(args.files), 0
    bert = transformers.BertConfig(vocab_size=VOCAB, hidden_size=64, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
                                   max_position_embeddings=LENGTH, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    t5 = transformers.T5Config(vocab_size=VOCAB, d_model=64, d_kv=16, d_ff=256, num_layers=2, num_heads=4, dropout_rate=0.0,
                               decoder_start_token_id=0)
    for name, cls, config, hide in (("bert", transformers.BertForMaskedLM, bert, masked),
                                    ("t5", transformers.T5ForConditionalGeneration, t5, cut)):
        torch.manual_seed(1)
        ids, labels = (x.reshape(STEPS, BATCH, -1).contiguous() for x in hide(text, seeded(name)))
        with tempfile.TemporaryDirectory() as top:
            model = cls(config)
            model.save_pretrained(os.path.join(top, "model"))
            save_file(dict(input_ids=ids, labels=labels), os.path.join(top, "t.safetensors"))
            with open(os.path.join(top, "c.json"), "w") as f:
                json.dump(dict(model=dict(hf=os.path.join(top, "model")), data=dict(tokens=os.path.join(top, "t.safetensors"), key="input_ids"),
                               optimizer=dict(type="AdamW", params=OPTIMIZER | dict(decay_on="all"))), f)
            out = os.path.join(top, "run")
            subprocess.run([args.binary, "train", os.path.join(top, "c.json"), "--out", out], check=True, capture_output=True)
            with open(os.path.join(out, "metrics.jsonl")) as f:
                ours = [json.loads(line)["loss"] for line in f]
        model = model.double().eval()
        opt = torch.optim.AdamW(model.parameters(), **OPTIMIZER | dict(betas=tuple(OPTIMIZER["betas"])))
        worst = 0.0
        with KeepF64():
            for i in range(STEPS):
                opt.zero_grad()
                loss = run(model, dict(input_ids=ids[i], labels=labels[i]))[1]
                loss.backward()
                opt.step()
                worst = max(worst, abs(ours[i] / loss.item() - 1))
        print(f"{name}: {STEPS} losses, {ours[0]:.4f} to {ours[-1]:.4f}, differ from PyTorch's by {worst:.1e} at most")
        bad |= int(not worst <= 1e-4)
    return bad


if __name__ == "__main__":
    sys.exit(main())
