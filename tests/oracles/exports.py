#!/usr/bin/env python3
"""What we export is what transformers computes: of every committed case, and of a new model of every family.

  python exports.py [--case NAME] [--binary target/release/crossweave]

Each model is trained for two steps by `crossweave train`, so that what it exports is its own; `crossweave probe` gives the logits of
the exported folder, and check_export.py loads it with the running transformers, in float64, and compares them within 1e-4. A new model
is one of the smallest preset with narrower dimensions. A class that the running version does not have is not counted. Exit code 1: some folder does not load cleanly, or computes something else.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

from make import HERE, examples, seeded  # noqa: F401  (sets up transformers)
import torch
import transformers
from safetensors.torch import load_file, save_file

import check_export

NARROW = dict(vocab_size=48, hidden_size=16, n_embd=16, num_hidden_layers=2, n_layer=2, num_attention_heads=2, n_head=2,
              num_key_value_heads=1, max_position_embeddings=32, n_positions=32, seq_length=32, d_model=16, num_layers=2, num_heads=2)


def crossweave(binary, *args):
    """Runs it; an error ends the case."""
    run = subprocess.run([binary, *args], capture_output=True, text=True)
    if run.returncode != 0:
        raise RuntimeError(f"crossweave {args[0]}: {run.stderr.strip()}")
    return run.stdout


def families(binary):
    """Every family, and its keys, as the binary itself lists them."""
    forms = json.loads(crossweave(binary, "config", "schema"))["properties"]["model"]["anyOf"]
    forms = [f["properties"] for f in forms if "family" in f.get("properties", {})]
    names = forms[0]["family"]["enum"]
    assert len(names) == len(forms), "one form of `model` for each family"
    return {name: set(form) for name, form in zip(names, forms)}


def exported(binary, top, name, model, data):
    """The folder that two steps of training write."""
    config = dict(model=model, data=dict(tokens=data, key="input_ids"), run=dict(steps=2, generate=dict(tokens=0)),
                  optimizer=dict(type="AdamW", params=dict(lr=1e-2)))
    path = os.path.join(top, name + ".json")
    with open(path, "w") as f:
        json.dump(config, f)
    out = os.path.join(top, name)
    crossweave(binary, "train", path, "--out", out)
    return os.path.join(out, "model")


def checked(binary, top, name, model, data, ids):
    folder = exported(binary, top, name, model, data)
    with open(os.path.join(folder, "config.json")) as f:
        cls = json.load(f)["architectures"][0]
    if not hasattr(transformers, cls):
        print(f"{name}: transformers {transformers.__version__} has no {cls}")
        return None
    logits = os.path.join(top, name + ".logits.safetensors")
    crossweave(binary, "probe", "--model", folder, "--inputs", ids, "--out", logits)
    sys.argv = ["check_export.py", folder, ids, logits]
    return check_export.main()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--case", action="append", help="only this case or family (may be repeated)")
    ap.add_argument("--binary", default=os.path.join(HERE, "..", "..", "target", "release", "crossweave"))
    args = ap.parse_args()
    torch.set_num_threads(1)
    failed, count = [], 0
    with tempfile.TemporaryDirectory() as top:
        work = []
        for name in sorted(os.listdir(HERE)):
            case = os.path.join(HERE, name)
            if os.path.isdir(os.path.join(case, "model")):
                work.append((name, dict(hf=os.path.join(case, "model")), os.path.join(case, "train.safetensors"),
                             os.path.join(case, "inputs.safetensors")))
        def given(cls):
            """Batches to train on and to compare, for a class."""
            data, ids = os.path.join(top, f"data{cls}.safetensors"), os.path.join(top, f"ids{cls}.safetensors")
            config = dict(pad_token_id=1)
            save_file({k: v.contiguous() for k, v in examples("exports", 4, 48, cls, config).items()}, data)
            save_file({k: v[0].contiguous() for k, v in examples("exports", 1, 48, cls, config).items()}, ids)
            return data, ids

        classes = {"bert": "BertForMaskedLM", "t5": "T5ForConditionalGeneration", "mt5": "MT5ForConditionalGeneration",
                   "roberta": "RobertaForMaskedLM", "xlm-roberta": "XLMRobertaForMaskedLM"}
        for family, keys in sorted(families(args.binary).items()):
            work.append((f"new-{family}", dict(family=family) | {k: v for k, v in NARROW.items() if k in keys},
                         *given(classes.get(family, ""))))
        for name, *what in work:
            if args.case and name not in args.case:
                continue
            count += 1
            try:
                bad = checked(args.binary, top, name, *what)
            except (RuntimeError, OSError, ValueError) as e:
                bad, _ = 1, print(f"{name}: {e}", file=sys.stderr)
            if bad:
                failed.append(name)
            count -= bad is None
    print(f"{count - len(failed)} of {count} exports load and give the same logits" + (f"; not {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
