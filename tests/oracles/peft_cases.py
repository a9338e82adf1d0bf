#!/usr/bin/env python3
"""Make, or check, the adapters beside this file with PEFT and PyTorch in float64.

  python peft_cases.py make     write adapters/NAME and adapter_options.json
  python peft_cases.py check    train the committed adapters again and compare all committed figures
  python peft_cases.py options  write adapter_options.json alone

Each case sits on the model of another oracle. adapters/NAME holds `adapter/` as PEFT's save_pretrained writes it (A and B drawn at
random, so that both have gradients from the first step), `expected.safetensors` (logits, loss and gradients at the start) and
`train.safetensors` (the losses of 20 AdamW steps on the batches of the model's own oracle, and the norms of A and B behind them).

adapter_options.json says what PEFT makes of the first of them, `gpt2`, when one key of its adapter_config.json has another value: the losses of six
steps of descent, or that it refuses. Every key of PEFT's LoraConfig is there; a PEFT that has others fails `make` and `check`.
"""
import argparse
import dataclasses
import json
import os
import shutil
import sys
import tempfile
import warnings

import peft
import torch
from safetensors.torch import load_file, save_file

from make import ADAMW, FIGURES, HERE, KeepF64, error, load_model, run, seeded, worst

warnings.filterwarnings("ignore")
CASES = {
    "gpt2": dict(model="gpt2-tied", r=4, lora_alpha=6, target_modules=["c_attn", "mlp.c_proj"]),
    "llama": dict(model="llama-gqa-sharded", r=3, lora_alpha=5, use_rslora=True, target_modules="all-linear"),
    "llama-pattern": dict(model="llama-bias", r=2, lora_alpha=8, target_modules=r".*\.(o_proj|up_proj)"),
    # Two parameters of one module: PEFT wraps the one around the other.
    "mixtral-experts": dict(model="mixtral-v5", r=3, lora_alpha=5, target_modules=["q_proj"],
                            target_parameters=["experts.gate_up_proj", "mlp.experts.down_proj"]),
    "qwen3-moe-down": dict(model="qwen3-moe-stacked", r=2, lora_alpha=3, use_rslora=True, target_modules=[], target_parameters=["down_proj"]),
}
# Values that are not PEFT's defaults, of every key; and empty ones, which are not always the same as none.
OPTIONS = dict(
    task_type=["SEQ_CLS", "TOKEN_CLS", "FEATURE_EXTRACTION", None], peft_type=["LOHA"], peft_version=["0.1.0"], revision=["main"],
    auto_mapping=[{"base_model_class": "GPT2LMHeadModel", "parent_library": "transformers.models.gpt2.modeling_gpt2"}],
    base_model_name_or_path=["no/such/folder"], inference_mode=[False], r=[3], target_modules=[["c_attn"], []],
    exclude_modules=[["c_attn"], "transformer.h.0.attn.c_attn", []], lora_alpha=[12, -3], lora_dropout=[0.5], fan_in_fan_out=[False],
    bias=["all", "lora_only"], use_rslora=[True, 1], modules_to_save=[["ln_f"], []],
    init_lora_weights=[False, "gaussian", "orthogonal", "olora", "pissa", "eva", "mica"], layers_to_transform=[[0], 0, []],
    layers_pattern=["h", ["h"], []], rank_pattern=[{"c_attn": 2}, {}], alpha_pattern=[{"c_attn": 12}, {}],
    megatron_config=[{"tensor_model_parallel_size": 1}, {}], megatron_core=["another.core"], trainable_token_indices=[[1, 2], []],
    loftq_config=[{"loftq_bits": 4, "loftq_iter": 1}], eva_config=[{}], corda_config=[{}], lora_ga_config=[{}], use_dora=[True],
    velora_config=[{}], alora_invocation_tokens=[[5, 6], [5], []], use_qalora=[True], qalora_group_size=[8], monteclora_config=[{}],
    layer_replication=[[[0, 1], [0, 2]], []], runtime_config=[{"ephemeral_gpu_offload": True}], lora_bias=[True],
    target_parameters=[["transformer.h.0.mlp.c_proj.weight"], []], use_bdlora=[{}], arrow_config=[{}], kasa_config=[{}],
    ensure_weight_tying=[True])
DRAWN = ["lora_dropout"]


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
        # Of a model with experts the loss that is told is without that of its routers.
        start = {"logits": logits.detach(), "loss": FIGURES.get("loss", loss.detach())} | {"grad." + k: p.grad.clone() for k, p in params.items()}
        opt = torch.optim.AdamW(params.values(), lr=ADAMW["lr"], betas=tuple(ADAMW["betas"]), eps=ADAMW["eps"],
                                weight_decay=ADAMW["weight_decay"])
        losses = []
        for rows in data:
            opt.zero_grad()
            loss = run(model, rows)[1]
            loss.backward()
            losses.append(FIGURES.get("loss", loss).item())
            opt.step()
    norms = {"norm." + k: p.detach().norm() for k, p in params.items()}
    return start, dict(losses=torch.tensor(losses, dtype=torch.float64)) | norms


def open_adapter(top, case):
    """As PEFT reads it back, in float64."""
    FIGURES.clear()
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


def descent(directory):
    """The losses of six steps of descent at rate 0.5."""
    FIGURES.clear()
    model, _, train = base(CASES["gpt2"])
    model = peft.PeftModel.from_pretrained(model, directory, is_trainable=True, autocast_adapter_dtype=False).double().eval()
    losses = []
    with KeepF64():
        params = trained(model)
        for rows in train["input_ids"][:6]:
            loss = run(model, rows)[1]
            model.zero_grad()
            loss.backward()
            losses.append(loss.item())
            with torch.no_grad():
                for p in params.values():
                    if p.grad is not None:
                        p -= 0.5 * p.grad
    return losses


def options():
    fields = {f.name for f in dataclasses.fields(peft.LoraConfig)}
    if fields != set(OPTIONS):
        sys.exit(f"LoraConfig of PEFT {peft.__version__} differs from OPTIONS in {sorted(fields ^ set(OPTIONS))}")
    source = os.path.join(HERE, "adapters", "gpt2", "adapter")
    with open(os.path.join(source, "adapter_config.json")) as f:
        config = json.load(f)
    cases = []
    for key, value in [(None, None)] + [(k, v) for k, values in OPTIONS.items() for v in values]:
        with tempfile.TemporaryDirectory() as top:
            shutil.copy(os.path.join(source, "adapter_model.safetensors"), top)
            with open(os.path.join(top, "adapter_config.json"), "w") as f:
                json.dump(config | ({} if key is None else {key: value}), f)
            case = dict(key=key, value=value)
            try:
                case["drawn" if key in DRAWN else "losses"] = True if key in DRAWN else descent(top)
            except Exception as e:
                case["error"] = type(e).__name__
        cases.append(case)
    return dict(peft=peft.__version__, cases=cases)


def same_options():
    """Compares the committed file with the running PEFT."""
    with open(os.path.join(HERE, "adapter_options.json")) as f:
        committed = json.load(f)["cases"]
    worst = 0.0
    for ours, theirs in zip(options()["cases"], committed, strict=True):
        name = f"{ours['key']} = {json.dumps(ours['value'])}"
        if {k: v for k, v in ours.items() if k != "losses"} != {k: v for k, v in theirs.items() if k != "losses"}:
            sys.exit(f"{name}: {ours}, and {theirs} is committed")
        worst = max([worst] + [abs(a - b) for a, b in zip(ours.get("losses", []), theirs.get("losses", []))])
    print("options", worst)
    return worst < 1e-5


def write_options():
    with open(os.path.join(HERE, "adapter_options.json"), "w") as f:
        found = options()
        f.write('{"peft": ' + json.dumps(found["peft"]) + ', "cases": [\n')
        f.write(",\n".join(json.dumps(c) for c in found["cases"]) + "\n]}\n")


def check(name, case):
    top = os.path.join(HERE, "adapters", name)
    start, after = figures(*open_adapter(top, case))
    found = dict(start=worst(start, load_file(os.path.join(top, "expected.safetensors"))),
                 losses=error(after["losses"], load_file(os.path.join(top, "train.safetensors"))["losses"]))
    print(name, found)
    return max(found.values()) < 1e-5


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("what", choices=("make", "check", "options"))
    args = ap.parse_args()
    torch.set_num_threads(1)
    if args.what == "make":
        for name, case in CASES.items():
            make(name, case)
    if args.what in ("make", "options"):
        write_options()
    else:
        failed = [n for n, c in CASES.items() if not check(n, c)]
        failed += [] if same_options() else ["options"]
        if failed:
            sys.exit(f"differ by more than 1e-5: {', '.join(failed)}")


if __name__ == "__main__":
    main()
