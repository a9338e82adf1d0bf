#!/usr/bin/env python3
"""A model's folder in shards, opened beside a plain read of its files: time, and the peak resident memory of the process.

  python loading.py [--binary target/release/crossweave] [--mib 1024] [--rounds 5] [--dir .]

Needs nothing but the binary. Made is a Llama in f32 of about that size in shards of a quarter of it; `crossweave generate` opens it for one token, which it computes on the processor
as well. By a model of one layer it is found what each byte more takes. The files, which lie in the page cache, are read into memory of their own, as a model must be. The least of the
rounds, in turns.
"""
import argparse
import array
import json
import os
import struct
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WIDTH, INNER, VOCAB = 2048, 5632, 257


def shapes(layers):
    yield "model.embed_tokens.weight", [VOCAB, WIDTH]
    for i in range(layers):
        for name in "qkvo":
            yield f"model.layers.{i}.self_attn.{name}_proj.weight", [WIDTH, WIDTH]
        for name, shape in dict(gate=[INNER, WIDTH], up=[INNER, WIDTH], down=[WIDTH, INNER]).items():
            yield f"model.layers.{i}.mlp.{name}_proj.weight", shape
        for name in ("input", "post_attention"):
            yield f"model.layers.{i}.{name}_layernorm.weight", [WIDTH]
    yield "model.norm.weight", [WIDTH]
    yield "lm_head.weight", [VOCAB, WIDTH]


def elements(shape):
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def make(folder, layers, shards):
    """The folder's weight files, their bytes, and those of the largest tensor."""
    os.makedirs(folder)
    config = dict(model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=layers,
                  num_attention_heads=16, num_key_value_heads=16, max_position_embeddings=64, tie_word_embeddings=False)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        json.dump(tokenizer(), f)
    every = list(shapes(layers))
    total, largest = (4 * of(elements(s) for _, s in every) for of in (sum, max))
    noise, files, where, at = array.array("f", [((i * 37) % 101 - 50) / 5000 for i in range(1 << 20)]).tobytes(), [], {}, 0
    for shard in range(shards):
        mine, size = [], 0
        while at < len(every) and (size < total / shards or shard == shards - 1):
            mine.append(every[at])
            size += 4 * elements(every[at][1])
            at += 1
        header, offset = {}, 0
        for name, shape in mine:
            header[name] = dict(dtype="F32", shape=shape, data_offsets=[offset, offset := offset + 4 * elements(shape)])
            where[name] = f"model-{shard}.safetensors"
        text = json.dumps(header).encode()
        files.append(os.path.join(folder, f"model-{shard}.safetensors"))
        with open(files[-1], "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            for left in range(offset, 0, -len(noise)):
                f.write(noise[:left])
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
        json.dump(dict(metadata=dict(total_size=total), weight_map=where), f)
    return files, total, largest


def tokenizer():
    """Bytes, as a tokenizer of Hugging Face has them, and one for the end of a document."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    signs, extra = {}, 256
    for b in range(256):
        signs[b], extra = (chr(b), extra) if b in plain else (chr(extra), extra + 1)
    level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=False)
    return dict(version="1.0", truncation=None, padding=None, normalizer=None, pre_tokenizer=level, post_processor=None, decoder=level,
                added_tokens=[dict(id=256, content="<|endoftext|>", single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)],
                model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=False,
                           vocab={signs[b]: b for b in range(256)} | {"<|endoftext|>": 256}, merges=[]))


def read(files, whole):
    """Seconds and processor seconds of reading files: into memory of their own, or all through 4 MiB."""
    small, kept = bytearray(4 << 20), []
    start, busy = time.perf_counter(), time.process_time()
    for path in files:
        with open(path, "rb", buffering=0) as f:
            if whole:
                kept.append(f.read())
            while f.readinto(small):
                pass
    return time.perf_counter() - start, time.process_time() - busy


def opened(binary, folder):
    """Seconds, processor seconds and peak resident bytes of a process that opens the folder. (Its own getrusage would count this process too, of which it is a fork.)"""
    start, peak = time.perf_counter(), 0
    process = subprocess.Popen([binary, "generate", "--model", folder, "--prompt", "a", "--tokens", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        with open(f"/proc/{process.pid}/status") as f:
            peak = max([peak, *(1024 * int(line.split()[1]) for line in f if line.startswith("VmHWM"))])
        time.sleep(0.005)
    seconds, process.returncode = time.perf_counter() - start, os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(process.stderr.read().decode())
    return seconds, usage.ru_utime + usage.ru_stime, peak


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--binary", default=os.path.join(ROOT, "target", "release", "crossweave"))
    ap.add_argument("--mib", type=int, default=1024)
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--dir", default=".")
    args = ap.parse_args()
    binary, layer = os.path.abspath(args.binary), 4 * sum(elements(s) for n, s in shapes(1) if ".0." in n)
    with tempfile.TemporaryDirectory(dir=args.dir) as top:
        files, total, largest = make(os.path.join(top, "large"), max(2, (args.mib << 20) // layer), 4)
        small_files, small, _ = make(os.path.join(top, "small"), 1, 1)
        plain, through, large, one = [], [], [], []
        read(files + small_files, False)
        for _ in range(args.rounds):
            plain.append(read(files, True))
            through.append(read(files, False))
            large.append(opened(binary, os.path.join(top, "large")))
            one.append(opened(binary, os.path.join(top, "small")))
    best = lambda runs, i: min(r[i] for r in runs)  # noqa: E731
    base, peak = best(one, 2) - small, best(large, 2)
    mib = lambda n: f"{n / 2**20:.0f} MiB"  # noqa: E731
    print(f"{mib(total)} in 4 shards, largest tensor {mib(largest)}, least of {args.rounds}, load {os.getloadavg()[0]:.1f}")
    for i, what in enumerate(("time", "processor time")):
        whole, whole_one, bound = best(large, i), best(one, i), best(plain, i)
        more = (whole - whole_one) / (total - small) * total
        print(f"{what}: files read into memory {bound:.3f} s ({total / bound / 1e9:.2f} GB/s), through 4 MiB {best(through, i):.3f} s; opened for one token {whole:.3f} s, "
              f"{whole / bound:.2f} of the read; what more bytes take {more:.3f} s, {more / bound:.2f} of the read")
    print(f"peak resident memory {mib(peak)}: the model and {mib(peak - total)}; of the small model {mib(base)} beside it")


if __name__ == "__main__":
    main()
