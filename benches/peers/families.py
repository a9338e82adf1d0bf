#!/usr/bin/env python3
"""Every model family beside transformers in eager PyTorch: tokens a second and peak resident memory on this machine's processor, in f32.

  python families.py [--binary target/release/crossweave] [--family NAME ...] [--steps 12] [--rounds 2] [--threads 2]

For each family transformers makes a model of the `tiny` size (4 layers of 256) and saves it; `crossweave train` and a loop of PyTorch's eager mode
(transformers' own forward and loss, its default attention, torch.optim.AdamW) train it from that folder on the same tokens, each in a process of its own,
in turns. Printed are medians of the steps behind the first three, the least of the rounds, and what the system says of a process's peak memory (VmHWM):
all of it, and above what the process held before it had a model. Needs torch and transformers; nothing else here does.
"""
import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
VOCAB, WIDTH, LAYERS, HEADS, LENGTH, BATCH = 256, 256, 4, 4, 256, 8
WARM_UP = 3
BASE = dict(vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, max_position_embeddings=LENGTH, pad_token_id=0)
LLAMA = BASE | dict(intermediate_size=688, num_key_value_heads=2)
GEMMA = LLAMA | dict(head_dim=64, query_pre_attn_scalar=64, sliding_window=128)
PLAIN = BASE | dict(intermediate_size=4 * WIDTH)
FAMILIES = dict(
    gpt2=dict(vocab_size=VOCAB, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=LENGTH), llama=LLAMA, mistral=LLAMA | dict(sliding_window=128),
    qwen2=LLAMA, qwen3=LLAMA | dict(head_dim=64), gemma={k: v for k, v in GEMMA.items() if k not in ("query_pre_attn_scalar", "sliding_window")}, gemma2=GEMMA,
    gemma3_text=GEMMA, phi=PLAIN, phi3=LLAMA, olmo2=LLAMA, gpt_neox=PLAIN, opt=dict(BASE, ffn_dim=4 * WIDTH, word_embed_proj_dim=WIDTH),
    bloom=dict(vocab_size=VOCAB, hidden_size=WIDTH, n_layer=LAYERS, n_head=HEADS, pad_token_id=0), falcon=BASE, stablelm=LLAMA, starcoder2=LLAMA, cohere=LLAMA,
    cohere2=LLAMA | dict(sliding_window=128), granite=LLAMA, glm=LLAMA | dict(head_dim=64), glm4=LLAMA | dict(head_dim=64), bert=PLAIN,
    t5=dict(vocab_size=VOCAB, d_model=WIDTH, d_kv=64, d_ff=4 * WIDTH, num_layers=LAYERS, num_heads=HEADS, pad_token_id=0, decoder_start_token_id=0),
    llava=dict(image_token_index=255, text_config=dict(LLAMA, model_type="llama"),
               vision_config=dict(model_type="clip_vision_model", hidden_size=WIDTH, intermediate_size=4 * WIDTH, num_hidden_layers=LAYERS,
                                  num_attention_heads=HEADS, image_size=64, patch_size=8, projection_dim=64)))
CLASSES = dict(bert="BertForMaskedLM", t5="T5ForConditionalGeneration", llava="LlavaForConditionalGeneration")


def make(family, folder, steps):
    """The model's folder, and the file of its batches."""
    import torch
    import transformers
    from safetensors.torch import save_file
    config = transformers.AutoConfig.for_model(family, **FAMILIES[family])
    for part in (config, getattr(config, "text_config", None), getattr(config, "vision_config", None)):
        for key in list(vars(part)) if part is not None else []:
            if "drop" in key and isinstance(getattr(part, key), float):
                setattr(part, key, 0.0)
    torch.manual_seed(1)
    name = CLASSES.get(family)
    model = getattr(transformers, name)(config) if name else transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    ids = torch.randint(1, VOCAB - 1, (steps, BATCH, LENGTH + 1))
    if family == "bert":
        ids = ids[..., :LENGTH].contiguous()
        batch = dict(input_ids=ids, labels=torch.where(torch.rand(ids.shape) < 0.15, ids, -100))
    elif family == "t5":
        batch = dict(input_ids=ids[..., :LENGTH].contiguous(), labels=ids[..., :LENGTH // 4].contiguous())
    elif family == "llava":
        ids[..., 1:65] = 255
        batch = dict(input_ids=ids, labels=torch.where(ids == 255, -100, ids), pixel_values=torch.randn(steps, BATCH, 3, 64, 64))
    else:
        batch = dict(input_ids=ids)
    save_file(batch, os.path.join(folder, "batches.safetensors"))
    return sum(p.numel() for p in model.parameters())


def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()


def child(family, folder, threads):
    """PyTorch's side, in a process of its own: prints what it measured as JSON."""
    import torch
    import transformers
    from safetensors.torch import load_file
    torch.set_num_threads(threads)
    name = CLASSES.get(family, "AutoModelForCausalLM")
    cls, idle = getattr(transformers, name), resident()
    model = cls.from_pretrained(folder).train()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    batches = load_file(os.path.join(folder, "batches.safetensors"))
    ms, losses = [], []
    for i in range(len(batches["input_ids"])):
        start = time.perf_counter()
        batch = {k: v[i] for k, v in batches.items()}
        if family not in ("bert", "t5"):
            # The last token of a row is a label only.
            batch["labels"] = batch.get("labels", batch["input_ids"])[:, :LENGTH]
            batch["input_ids"] = batch["input_ids"][:, :LENGTH]
        opt.zero_grad()
        loss = model(**batch, **({} if family == "bert" else dict(use_cache=False))).loss
        loss.backward()
        opt.step()
        losses.append(loss.item())
        ms.append(1e3 * (time.perf_counter() - start))
    print(json.dumps(dict(ms=ms, losses=losses, idle=idle)))


def measured(command, env):
    """Runs it: its output and its peak resident memory in bytes."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process, peak = subprocess.Popen(command, stdout=out, stderr=err, env=env), 0
        # Its getrusage would count this process too, of which it is a fork.
        while process.poll() is None:
            with contextlib.suppress(OSError), open(f"/proc/{process.pid}/status") as f:
                peak = max([peak, *(1024 * int(line.split()[1]) for line in f if line.startswith("VmHWM"))])
            time.sleep(0.01)
        out.seek(0), err.seek(0)
        if process.returncode:
            raise RuntimeError(f"{command[:3]}: {err.read().decode()[-1500:]}")
        return out.read().decode(), peak


def ours(binary, top, folder, args, env, turn):
    config = dict(model=dict(hf=folder), data=dict(tokens=os.path.join(folder, "batches.safetensors"), key="input_ids"),
                  optimizer=dict(type="AdamW", params=dict(lr=1e-3, weight_decay=0.01)),
                  run=dict(steps=args.steps, threads_per_rank=args.threads, checkpoint_every=0, generate=dict(tokens=0)))
    path, out = os.path.join(top, "config.json"), os.path.join(top, f"run-{turn}")
    with open(path, "w") as f:
        json.dump(config, f)
    _, peak = measured([binary, "train", path, "--out", out], env)
    with open(os.path.join(out, "metrics.jsonl")) as f:
        steps = [r for r in map(json.loads, f) if "step_ms" in r]
    return dict(ms=[r["step_ms"] for r in steps], losses=[r["loss"] for r in steps], peak=peak)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--binary", default=os.path.join(ROOT, "target", "release", "crossweave"))
    ap.add_argument("--family", action="append", choices=list(FAMILIES))
    ap.add_argument("--steps", type=int, default=12)
    ap.add_argument("--rounds", type=int, default=2)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = ap.parse_args()
    os.environ |= dict(HF_HUB_OFFLINE="1", OMP_NUM_THREADS=str(args.threads), OMP_WAIT_POLICY="passive", TRANSFORMERS_VERBOSITY="error",
                       TOKENIZERS_PARALLELISM="false")
    if args.child:
        return child(*args.child, args.threads)
    binary, env = os.path.abspath(args.binary), dict(os.environ)
    import torch
    import transformers
    _, ours_idle = measured([binary, "--version"], env)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, {args.threads} threads, {BATCH} x {LENGTH} tokens, "
          f"load {os.getloadavg()[0]:.1f}\n\n| family | parameters, M | ours, tokens/s | PyTorch, tokens/s | ratio | ours, MiB | PyTorch, MiB | ratio | above idle "
          "| largest difference of losses |\n|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for family in args.family or FAMILIES:
        with tempfile.TemporaryDirectory() as top:
            folder = os.path.join(top, "model")
            parameters = make(family, folder, args.steps)
            seen = dict(ours=[], torch=[])
            for turn in range(args.rounds):
                seen["ours"].append(ours(binary, top, folder, args, env, turn))
                me = [sys.executable, os.path.abspath(__file__), "--threads", str(args.threads), "--child", family, folder]
                text, peak = measured(me, env)
                seen["torch"].append(json.loads(text.splitlines()[-1]) | dict(peak=peak))
        tokens = BATCH * (LENGTH + (LENGTH // 4 if family == "t5" else 0))
        speed = {k: 1e3 * tokens / min(statistics.median(r["ms"][WARM_UP:]) for r in runs) for k, runs in seen.items()}
        peak = {k: min(r["peak"] for r in runs) / 2**20 for k, runs in seen.items()}
        idle = dict(ours=ours_idle / 2**20, torch=seen["torch"][0]["idle"] / 2**20)
        above = {k: peak[k] - idle[k] for k in peak}
        apart = max(abs(a - b) for a, b in zip(seen["ours"][0]["losses"], seen["torch"][0]["losses"]))
        print(f"| {family} | {parameters / 1e6:.1f} | {speed['ours']:.0f} | {speed['torch']:.0f} | **{speed['ours'] / speed['torch']:.2f}** | {peak['ours']:.0f} "
              f"| {peak['torch']:.0f} | **{peak['ours'] / peak['torch']:.2f}** | {above['ours'] / above['torch']:.2f} | {apart:.1e} |", flush=True)
    print(f"\nload at the end {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    sys.exit(main())
