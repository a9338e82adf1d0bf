#!/usr/bin/env python3
"""Hold the tokens of every row format against `datasets` and `transformers`, by hand.

  python rows.py PROGRAM [--seed N] [--count M]

M chats of 20 to 400 tokens are drawn and written by `datasets` as messages, ShareGPT, Alpaca, pairs of lists of messages, and tokens with
labels: as JSON lines, Parquet, an Arrow stream, and a folder of `save_to_disk`. PROGRAM (`crossweave`) reads each with a tokenizer that
`tokenizers` trained; its cache holds the tokens of every row, and which of them count. Both must be those of `apply_chat_template` with
`return_assistant_tokens_mask`. The rows that it then packs at 1,024 must be 95 % full, but for one. It needs `datasets` and `transformers`.
"""
import argparse
import glob
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile

import datasets
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>\n{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}"
    "{% else %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}{% endif %}\n{% endfor %}"
)
WORDS = "the of and a to in he have it that for they with as not on she at by this we you do but from or which one would Grüße 数 naïve {}".split()


def tokenizer(folder):
    """A byte-level BPE with a chat template, as a folder."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tok.train_from_iterator([" ".join(WORDS)] * 50, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tok, eos_token="</s>", chat_template=TEMPLATE)
    fast.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def chats(draw, tok, count):
    """Chats of 20 to 400 tokens: sometimes a system message, one to three turns."""
    found = []
    while len(found) < count:
        def said():
            return " ".join(draw.choice(WORDS) for _ in range(draw.randint(1, 70)))
        chat = [{"role": "system", "content": said()}] if draw.random() < 0.3 else []
        for _ in range(draw.randint(1, 3)):
            chat += [{"role": "user", "content": said()}, {"role": "assistant", "content": said()}]
        made = tok.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
        ids, mask = list(made["input_ids"]), list(made["assistant_masks"])
        if 20 <= len(ids) <= 400:
            found.append((chat, ids, mask))
    return found


def forms(found):
    """Rows of each format, with the tokens and marks of each."""
    def alpaca(chat):
        system = chat[0]["content"] if chat[0]["role"] == "system" else None
        turns = [m["content"] for m in chat if m["role"] != "system"]
        pairs = [turns[i:i + 2] for i in range(0, len(turns), 2)]
        return {"instruction": pairs[-1][0], "input": "", "output": pairs[-1][1], "history": pairs[:-1], "system": system}

    names = {"user": "human", "assistant": "gpt", "system": "system"}
    alone = [f for f in found if sum(m["role"] == "assistant" for m in f[0]) == 1]
    yield "messages", [{"messages": chat} for chat, _, _ in found], found
    yield "sharegpt", [{"conversations": [{"from": names[m["role"]], "value": m["content"]} for m in chat]} for chat, _, _ in found], found
    yield "alpaca", [alpaca(chat) for chat, _, _ in found], found
    yield "prompt_completion", [{"prompt": chat[:-1], "completion": chat[-1:]} for chat, _, _ in alone], alone
    labels = [{"input_ids": ids, "labels": [i if m else -100 for i, m in zip(ids, mask)]} for _, ids, mask in found]
    yield "tokens", labels, found


def sequences(prefix):
    """The sequences of an indexed dataset of Megatron's."""
    with open(prefix + ".idx", "rb") as file:
        head = file.read()
    dtype = {1: ("B", 1), 8: ("H", 2), 4: ("i", 4)}[head[17]]
    count = struct.unpack_from("<Q", head, 18)[0]
    lengths = struct.unpack_from(f"<{count}i", head, 34)
    with open(prefix + ".bin", "rb") as file:
        data = file.read()
    at, out = 0, []
    for n in lengths:
        out.append(list(struct.unpack_from(f"<{n}{dtype[0]}", data, at)))
        at += n * dtype[1]
    return out


def main():
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("program")
    given.add_argument("--seed", type=int, default=1)
    given.add_argument("--count", type=int, default=300)
    given = given.parse_args()
    program, draw, failed = os.path.abspath(given.program), random.Random(given.seed), []
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as top:
        tok = tokenizer(os.path.join(top, "tok"))
        found = chats(draw, tok, given.count)
        for form, rows, want in forms(found):
            table = datasets.Dataset.from_list(rows)
            table.to_json(os.path.join(top, f"{form}.jsonl"))
            table.to_parquet(os.path.join(top, f"{form}.parquet"))
            table.save_to_disk(os.path.join(top, form))
            shutil.copy(glob.glob(os.path.join(top, form, "*.arrow"))[0], os.path.join(top, f"{form}.arrow"))
            for name in [f"{form}.jsonl", f"{form}.parquet", f"{form}.arrow", form]:
                cache, out = os.path.join(top, "cache"), os.path.join(top, "out")
                for old in [cache, out]:
                    shutil.rmtree(old, ignore_errors=True)
                config = {
                    "model": {"family": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 1024},
                    "data": {"train": os.path.join(top, name), "format": form, "tokenizer": {"file": os.path.join(top, "tok", "tokenizer.json")},
                             "seq_len": 1024, "cache_dir": cache, "pack": True},
                    "optimizer": {"type": "SGD", "params": {"lr": 0.0}}, "train_batch_size": 1,
                    "run": {"steps": 1, "generate": {"tokens": 0}},
                }
                path = os.path.join(top, "config.json")
                with open(path, "w", encoding="utf-8") as file:
                    json.dump(config, file)
                run = subprocess.run([program, "train", path, "--out", out], capture_output=True, text=True, cwd=top)
                if run.returncode != 0:
                    failed.append(f"{name}: {run.stderr}")
                    continue
                said = run.stdout + run.stderr
                prefixes = {p[:-4] for p in glob.glob(os.path.join(cache, "**", "*.idx"), recursive=True)}
                counted = next(p for p in prefixes if p.endswith("-counted"))
                ids, marks = sequences(counted[: -len("-counted")]), sequences(counted)
                same = ids == [list(f[1]) for f in want] and marks == [[int(m) for m in f[2]] for f in want]
                full = re.search(r"packed into (\d+) rows of 1024 tokens, which are ([\d.]+) % full", said)
                total = sum(map(len, ids))
                print(f"{name}: {len(ids)} rows, {total} tokens, {sum(map(sum, marks))} count, {full and full[2]} % full: {same}")
                # One row of a small corpus may be open.
                if not same or not full or int(full[1]) - 1 > total / (0.95 * 1024):
                    failed.append(name)
    print(f"datasets {datasets.__version__}: " + (f"FAILED {failed}" if failed else "all agree"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
