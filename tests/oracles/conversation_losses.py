#!/usr/bin/env python3
"""Hold first-step losses of conversations against PyTorch with the mask of `transformers`, by hand.

  python conversation_losses.py PROGRAM [--seed N] [--each M]

For each conversations/NAME.jinja, M conversations are drawn as conversations.py draws them. PROGRAM (`crossweave`) trains a
tiny GPT-2 on each of them with a learning rate of 0 and the template without its `{% generation %}` tags, bytes as tokens.
PyTorch computes the same losses of the exported weights; the tokens that count there are those within the tags. The script
fails where a loss differs by more than 1e-5.
"""
import argparse
import json
import os
import random
import subprocess
import tempfile

import torch
from transformers import GPT2LMHeadModel

from conversations import BOS, CAN, HERE, conversation, rendered

LONGEST = 2000


def tokens(text, spans):
    """The tokens of a text, and as labels those that begin or lie within the spans, which are in characters."""
    ids, labels, at = [], [], 0
    while at < len(text):
        size = len(BOS) if text.startswith(BOS, at) else 1
        some = [256] if size > 1 else list(text[at].encode())
        counts = any(start < at + size and at < end for start, end in spans)
        ids += some
        labels += some if counts else [-100] * len(some)
        at += size
    return ids, labels


def losses(program, name, seed, each):
    """The losses of the program and of PyTorch, each in rising order."""
    with open(os.path.join(HERE, name + ".jinja"), encoding="utf-8") as file:
        marked = file.read()
    draw, lines, examples = random.Random(f"{seed} {name}"), [], []
    while len(lines) < each:
        line = conversation(draw, CAN[name].split())
        ids, labels = tokens(*rendered(marked, line))
        if len(ids) <= LONGEST and any(label != -100 for label in labels[1:]):
            lines.append(line)
            examples.append((ids, labels))
    model = {"family": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": LONGEST}
    model |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    data = {"train": "rows.jsonl", "format": "messages", "chat_template": "plain.jinja", "tokenizer": "bytes", "seq_len": LONGEST - 1}
    run = {"steps": each, "threads_per_rank": 1, "generate": {"tokens": 0}}
    config = {"model": model, "data": data, "optimizer": {"type": "SGD", "params": {"lr": 0.0}}, "train_batch_size": 1, "run": run}
    with tempfile.TemporaryDirectory() as folder:
        def write(path, text):
            with open(os.path.join(folder, path), "w", encoding="utf-8") as file:
                file.write(text)

        write("plain.jinja", marked.replace("{% generation %}", "").replace("{% endgeneration %}", ""))
        write("rows.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        write("config.json", json.dumps(config))
        subprocess.run([program, "train", "config.json", "--out", "out"], cwd=folder, check=True, capture_output=True)
        with open(os.path.join(folder, "out", "metrics.jsonl"), encoding="utf-8") as file:
            records = [json.loads(record) for record in file]
        gpt2 = GPT2LMHeadModel.from_pretrained(os.path.join(folder, "out", "model")).double().eval()
    wanted = []
    for ids, labels in examples:
        with torch.no_grad():
            logits = gpt2(torch.tensor([ids])).logits[0, :-1]
        wanted.append(torch.nn.functional.cross_entropy(logits, torch.tensor(labels[1:])).item())
    return sorted(record["loss"] for record in records if "loss" in record), sorted(wanted)


def main():
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("program")
    given.add_argument("--seed", default="1")
    given.add_argument("--each", type=int, default=6)
    given = given.parse_args()
    worst, count = 0.0, 0
    for name in sorted(CAN):
        got, wanted = losses(os.path.abspath(given.program), name, given.seed, given.each)
        assert len(got) == len(wanted), f"{name}: {len(got)} losses of {len(wanted)}"
        off = max(abs(a - b) for a, b in zip(got, wanted))
        assert off < 1e-5, f"{name}: {off}"
        worst, count = max(worst, off), count + len(got)
    print(f"{count} losses of {len(CAN)} templates, off by {worst:.1e} at most")


if __name__ == "__main__":
    main()
