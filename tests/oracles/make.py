#!/usr/bin/env python3
"""Make, or check, the oracle directories beside this file with transformers and PyTorch in float64.

  python make.py make              write the cases of the running transformers' major version (4 or 5)
  python make.py make --case NAME  write only these
  python make.py check             load every committed case with the running transformers, whichever
                                   wrote it, and with reference.py, and compare all committed figures

Weights and batches are drawn from generators seeded by names, so a rerun gives the same files.
See README.md for what each file holds.
"""
import argparse
import json
import os
import shutil
import sys
import warnings
import zlib

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode

from cases import CASES
from reference import Reference, adamw, is_buffer, read_tensors

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
HERE = os.path.dirname(os.path.abspath(__file__))
MAJOR = int(transformers.__version__.split(".")[0])
BATCH, SEQ, STEPS = 2, 16, 20
BESIDE = ("token_type_ids", "next_sentence_label")
MIXTURES = ("mixtral", "qwen3_moe")
ADAMW = dict(lr=1e-3, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1)


class KeepF64(TorchFunctionMode):
    """Refuses the downcasts to float32 that transformers' code asks for (RMS norm, softmax, rotary angles, loss).

    Without it `model.double()` still runs those four in float32."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__) and args[0].dtype != args[1].dtype:
            args = tuple(a.double() for a in args)  # rotary frequencies times positions
        x = args[0] if args else None
        if isinstance(x, torch.Tensor) and x.dtype == torch.float64:
            if func is torch.Tensor.float:
                return x
            if func is torch.Tensor.to and torch.float32 in (*args[1:], kwargs.get("dtype")):
                return x
            if kwargs.get("dtype") == torch.float32:
                kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


def seeded(name):
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def draw(name, shape):
    """The weights of one parameter: large enough that attention and norms matter."""
    x = torch.randn(shape, generator=seeded(name), dtype=torch.float64)
    if len(shape) == 1:
        return (0.1 * x + (0.0 if name.endswith("bias") else 1.0)).float()
    return (0.2 * x).float()


def batches(name, count, vocab):
    """[count, BATCH, SEQ] tokens that mostly follow a rule, so that training has something to learn."""
    g = seeded("batch " + name)
    rows = torch.randint(0, vocab, (count, BATCH, SEQ), generator=g)
    noise = torch.rand(count, BATCH, SEQ, generator=g) < 0.25
    for t in range(1, SEQ):
        rows[..., t] = torch.where(noise[..., t], rows[..., t], (5 * rows[..., t - 1] + 3) % vocab)
    return rows


def with_images(name, ids, config):
    """An image in each row, behind its first token, or two with text between them: their tokens, which are not predicted, and their pixels."""
    v, token = config["vision_config"], config["image_token_index"]
    side, full = v["image_size"], config.get("vision_feature_select_strategy") == "full"
    features = (side // v["patch_size"]) ** 2 + full
    ids = torch.where(ids == token, 1, ids)
    several = [2] if "several" in name else []
    for image in range(2 if several else 1):
        at = 1 + image * (features + 2)
        ids[..., at:at + features] = token
    pixels = torch.randn(*ids.shape[:-1], *several, v.get("num_channels", 3), side, side, generator=seeded("pixels " + name))
    return dict(input_ids=ids, labels=torch.where(ids == token, -100, ids), pixel_values=pixels)


def examples(name, count, vocab, cls, config=None):
    """What `count` steps are trained on: tokens, and labels where they are not the tokens."""
    ids = batches(name, count, vocab)
    if not cls:
        return dict(input_ids=ids)
    if cls.startswith("Llava"):
        return with_images(name, ids, config)
    g = seeded("labels " + name)
    if cls.startswith("Gemma3"):
        return dict(input_ids=ids)
    if cls.startswith(("T5", "MT5")):
        labels = (3 * ids[..., :7] + 1) % vocab
        labels[..., 0, 5:] = -100  # a shorter text
        return dict(input_ids=ids, labels=labels)
    if "Roberta" in cls:  # its positions are counted over what is no padding
        ids = torch.where(ids == config["pad_token_id"], config["pad_token_id"] + 1, ids)
    hidden = torch.rand(ids.shape, generator=g) < 0.3
    hidden[..., 2] = True
    labels = torch.where(hidden, ids, -100)
    batch = dict(input_ids=torch.where(hidden & (ids % 5 > 0), vocab - 1, ids), labels=labels)
    return batch | pairs(ids, config.get("type_vocab_size", 2), g) if "pairs" in name else batch


def pairs(ids, kinds, g):
    """What stands beside the tokens of two texts: the kind of every token, and whether the second follows, which is not known of every row."""
    second = torch.randint(2, SEQ - 2, ids.shape[:-1], generator=g)
    of = (torch.arange(SEQ) >= second[..., None]).long() * (kinds - 1)
    label = torch.randint(0, 2, ids.shape[:-1], generator=g)
    label[..., 1] = torch.where(torch.rand(label.shape[:-1], generator=g) < 0.3, -100, label[..., 1])
    return dict(token_type_ids=of, next_sentence_label=label)


def step(batch, i):
    return {k: v[i] for k, v in batch.items()}


def model_class(directory):
    """The class of a folder that is no causal language model's, or None."""
    with open(os.path.join(directory, "config.json")) as f:
        name = (json.load(f).get("architectures") or [""])[0]
    return getattr(transformers, name) if name.startswith(("Bert", "T5", "MT5", "Roberta", "XLMRoberta", "Llava", "Gemma3ForConditional")) else None


def write_model(case, directory):
    """Saves the case's model as transformers does, then the oddities of real files that the case asks for."""
    config = transformers.AutoConfig.for_model(case.family, **case.config)
    config._attn_implementation = "eager"
    cls = transformers.AutoModel if case.bare else transformers.AutoModelForCausalLM
    model = getattr(transformers, case.cls)(config) if case.cls else cls.from_config(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(draw(name.removeprefix("transformer.").removeprefix("model."), p.shape))
    form = dict(save_original_format=False) if case.stacked else {}
    model.to(getattr(torch, case.dtype)).save_pretrained(directory, max_shard_size=case.shard, **form)
    generation = os.path.join(directory, "generation_config.json")
    if os.path.exists(generation):
        os.remove(generation)  # says nothing about the model
    path = os.path.join(directory, "config.json")
    cfg = json.load(open(path))
    for k, v in case.edit_config.items():
        cfg.pop(k, None) if v is None else cfg.__setitem__(k, v)
    with open(path, "w") as f:
        json.dump(cfg, f, indent=2, sort_keys=True)
        f.write("\n")
    if case.mask_buffers or case.copy_head:
        path = os.path.join(directory, "model.safetensors")
        tensors = load_file(path)
        prefix = "" if case.bare else "transformer."
        n = case.config["n_positions"]
        kind = torch.float32 if case.mask_buffers == "f32" else torch.uint8
        for i in range(case.config["n_layer"]):
            tensors[f"{prefix}h.{i}.attn.bias"] = torch.tril(torch.ones(1, 1, n, n)).to(kind)
            if not case.bare:
                tensors[f"{prefix}h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
        if case.copy_head:
            tensors["lm_head.weight"] = tensors[prefix + "wte.weight"].clone()
        save_file(tensors, path, metadata={"format": "pt"})


def load_model(directory):
    """The directory as transformers reads it, in float64; refuses a load that left anything out."""
    kw = {"dtype" if MAJOR >= 5 else "torch_dtype": "auto"}
    with open(os.path.join(directory, "config.json")) as f:
        if MAJOR >= 5 and json.load(f)["model_type"] in MIXTURES:
            kw["experts_implementation"] = "eager"
    model, info = (model_class(directory) or transformers.AutoModelForCausalLM).from_pretrained(
        directory, attn_implementation="eager", output_loading_info=True, **kw)
    assert not info["missing_keys"] and not info["mismatched_keys"], info
    assert all(is_buffer(k) for k in info["unexpected_keys"]), info
    return model.eval().double()


def run(model, batch):
    """Logits, loss, and what a second head gives; `batch` is tokens, or tokens and labels."""
    batch = batch if isinstance(batch, dict) else dict(input_ids=batch)
    ids, labels = batch["input_ids"], batch.get("labels")
    if model.config.model_type in MIXTURES:
        return mixture(model, ids)
    if labels is None:
        out = model(input_ids=ids, labels=ids, use_cache=False)
        return out.logits, out.loss
    if "pixel_values" in batch:
        pixels = batch["pixel_values"].to(next(model.parameters()).dtype)
        out = model(input_ids=ids, pixel_values=pixels.flatten(0, -4), labels=labels, use_cache=False)
        return out.logits, out.loss
    if hasattr(model, "decoder"):
        out = model(input_ids=ids, labels=labels, use_cache=False)
        logits = out.logits
    else:
        beside = {k: batch[k] for k in BESIDE if k in batch}
        if "next_sentence_label" in beside:
            out = model(input_ids=ids, labels=labels, **beside)
            return out.prediction_logits, out.loss, out.seq_relationship_logits
        out = model(input_ids=ids, **beside)
        logits = out.prediction_logits if hasattr(out, "prediction_logits") else out.logits
    return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def mixture(model, ids):
    """Logits of all tokens and the loss that is differentiated: with the loss of routers, whatever output_router_logits says."""
    # Over the tokens behind which one is predicted: the last of a row is not read in a training step.
    out = model(input_ids=ids[:, :-1], use_cache=False, output_router_logits=True)
    plain = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), ids[:, 1:].flatten())
    FIGURES.update(loss=plain.detach(), aux_loss=out.aux_loss.detach())
    return model(input_ids=ids, use_cache=False).logits, plain + model.config.router_aux_loss_coef * out.aux_loss


# Of the model with experts that ran last: the loss without that of routers, and that; and the latter at each step of the last training.
FIGURES, ROUTERS = {}, []


def evaluate(loss_of, params, ids):
    """logits [B, T, V], loss [] and grad.<name> of `params`, all float64."""
    for p in params.values():
        p.grad = None
    logits, loss, *answers = loss_of(ids)
    loss.backward()
    out = {"seq_relationship_logits": a.detach() for a in answers}
    out |= {"grad." + k: p.grad.detach().clone() for k, p in params.items() if p.grad is not None}
    return out | {"logits": logits.detach(), "loss": FIGURES.get("loss", loss.detach())}


def written_out(case):
    """Families that reference.py computes without transformers."""
    return case.family in ("gpt2", "llama")


def plain(name):
    """A name of LLaVA's as every version may spell it."""
    parts = [p for p in name.split(".") if p not in ("model", "vision_model")]
    return ".".join(["language_model"] * (parts[0] == "lm_head") + parts)


def stored_names(model, directory):
    """The model's parameters by the name each has in the files."""
    out, names = {}, {k for k in read_tensors(directory) if not is_buffer(k)}
    if model.config.model_type in MIXTURES:  # experts of a layer are one parameter, however files hold them
        return dict(model.named_parameters())
    head = model.get_output_embeddings()
    if head is not None and head.weight is model.get_input_embeddings().weight:  # 5.x says of every T5 that it is tied
        names -= {"lm_head.weight"}
    spelled = {plain(k): k for k in names}
    for k, p in model.named_parameters():  # a tied head appears once, under the embedding
        if hasattr(model.config, "vision_config"):
            k = spelled[plain(k)]
        if k not in names:
            k = k.removeprefix(model.base_model_prefix + ".")
        if k == "lm_head.decoder.weight" and k not in names:  # 5.x has XLM-RoBERTa's embedding under its head's name
            k = "roberta.embeddings.word_embeddings.weight"
        if k == "lm_head.weight" and "embed_out.weight" in names:
            k = "embed_out.weight"  # 5.x has GPT-NeoX's head under another name than its files
        out[k] = p
    assert set(out) == names, set(out) ^ names
    return out


def undetermined(case, name):
    """The bias of what is not rotated of a key shifts all scores of a query alike, so its gradient is rounding noise,
    which Adam scales up to full steps: the bias after training is no property of the model."""
    fused = dict(gpt2="attn.c_attn.bias", gpt_neox="query_key_value.bias", bloom="query_key_value.bias", bert="self.key.bias", roberta="self.key.bias",
                 llava="self_attn.k_proj.bias" if "vision_tower" in name else " ")
    partial = ("glm", "glm4", "opt", "phi", "stablelm", "cohere2", "smollm3", "nemotron")
    ends = ("k_proj.bias", "k_layernorm.bias") if case.family in partial else " "
    return name.endswith(fused.get(case.family.removeprefix("xlm-"), ends))


def train(model, data, decay_all):
    """torch.optim.AdamW from the model's present weights: the loss before each of the updates."""
    params = list(model.parameters())
    groups = [dict(params=[p for p in params if decay_all or p.ndim >= 2], weight_decay=ADAMW["weight_decay"]),
              dict(params=[p for p in params if not (decay_all or p.ndim >= 2)], weight_decay=0.0)]
    opt = torch.optim.AdamW([g for g in groups if g["params"]], lr=ADAMW["lr"], betas=tuple(ADAMW["betas"]),
                            eps=ADAMW["eps"])
    losses, routers = [], []
    for i in range(STEPS):
        opt.zero_grad()
        loss = run(model, step(data, i))[1]
        loss.backward()
        losses.append(FIGURES.get("loss", loss).item())
        routers += [FIGURES["aux_loss"].item()] if FIGURES else []
        opt.step()
    ROUTERS[:] = routers
    return losses


def error(a, b):
    """Largest difference over the largest value of the reference `b`."""
    return ((a.double() - b.double()).abs().max() / b.double().abs().max().clamp_min(1e-30)).item()


def worst(got, want):
    assert set(got) == set(want), set(got) ^ set(want)
    return max(error(got[k], want[k]) for k in want)


def make(case):
    FIGURES.clear()
    top = os.path.join(HERE, case.name)
    shutil.rmtree(top, ignore_errors=True)
    directory = os.path.join(top, "model")
    os.makedirs(directory)
    write_model(case, directory)
    model = load_model(directory)
    vocab = case.config.get("text_config", case.config)["vocab_size"]
    ids = step(examples(case.name, 1, vocab, case.cls, case.config), 0)
    data = examples("train " + case.name, STEPS, vocab, case.cls, case.config)
    params = stored_names(model, directory)
    without = evaluate(lambda x: run(model, x), params, ids)
    with KeepF64():
        want = evaluate(lambda x: run(model, x), params, ids)
        losses = train(model, data, case.decay_all)
    # A tower that reads no image has no gradient.
    norms = {"norm." + k: p.detach().norm() for k, p in params.items() if not undetermined(case, k) and "grad." + k in want}
    sure = lambda figures: {k: v for k, v in figures.items() if not undetermined(case, k.removeprefix("grad."))}  # noqa: E731
    differences = dict(transformers_double_without_keeping_f64=worst(sure(without), sure(want)))
    if written_out(case):
        ref = Reference(directory)
        differences["float64_rope_reference"] = worst(evaluate(ref.loss, ref.params, ids["input_ids"]), want)
    small = {k: v if k == "loss" else v.float() for k, v in want.items()}
    save_file({k: v.contiguous() for k, v in small.items()}, os.path.join(top, "expected.safetensors"))
    save_file({k: v.contiguous() for k, v in ids.items()}, os.path.join(top, "inputs.safetensors"))
    routers = {"aux_losses": torch.tensor(ROUTERS, dtype=torch.float64)} if ROUTERS else {}
    save_file({k: v.contiguous() for k, v in data.items()} | {"losses": torch.tensor(losses, dtype=torch.float64)} | routers | norms,
              os.path.join(top, "train.safetensors"))
    meta = dict(case=case.name, family=case.family, note=case.note, transformers=transformers.__version__,
                torch=torch.__version__.split("+")[0], weights=case.dtype, batch=BATCH, seq=SEQ,
                train=dict(steps=STEPS, **ADAMW, weight_decay_on="all" if case.decay_all else "ndim>=2",
                           loss="before each update, dropout off"),
                largest_relative_difference=differences)
    with open(os.path.join(top, "meta.json"), "w") as f:
        json.dump(meta, f, indent=2)
        f.write("\n")
    report(case.name, meta["largest_relative_difference"], losses)


def report(name, differences, losses):
    figures = "  ".join(f"{k} {v:.1e}" for k, v in differences.items())
    print(f"{name:24} {figures}  loss {losses[0]:.4f} -> {losses[-1]:.4f}", flush=True)


def check(case):
    """Both readers against the committed figures; the bound leaves room for float32 rotary angles."""
    FIGURES.clear()
    top = os.path.join(HERE, case.name)
    directory = os.path.join(top, "model")
    want = load_file(os.path.join(top, "expected.safetensors"))
    sure = lambda figures: {k: v for k, v in figures.items() if not undetermined(case, k)}  # noqa: E731
    ids = load_file(os.path.join(top, "inputs.safetensors"))
    curve = load_file(os.path.join(top, "train.safetensors"))
    model = load_model(directory)
    params = stored_names(model, directory)
    with KeepF64():
        theirs = worst(sure(evaluate(lambda x: run(model, x), params, ids)), sure(want))
        data = {k: curve[k] for k in ("input_ids", "labels", "pixel_values", *BESIDE) if k in curve}
        their_curve = torch.tensor(train(model, data, case.decay_all), dtype=torch.float64)
    found = dict(transformers=theirs, transformers_train=error(their_curve, curve["losses"]))
    trained = [params]
    if written_out(case):
        ref = Reference(directory)
        found["reference"] = worst(evaluate(ref.loss, ref.params, ids["input_ids"]), want)
        my_curve = torch.tensor(adamw(ref.params, lambda x: ref.loss(x)[1], curve["input_ids"], ADAMW["lr"], ADAMW["betas"],
                                      ADAMW["eps"], ADAMW["weight_decay"], case.decay_all), dtype=torch.float64)
        found["reference_train"] = error(my_curve, curve["losses"])
        trained.append(ref.params)
    norms = [k for k in curve if k.startswith("norm.")]
    found["norms"] = max(error(p[k.removeprefix("norm.")].detach().norm(), curve[k]) for p in trained for k in norms)
    report(case.name, found, their_curve.tolist())
    return max(found.values()) < 1e-5


def readable(case):
    """4.x drops `rope_parameters` without a word and computes another model where they say something."""
    with open(os.path.join(HERE, case.name, "model", "config.json")) as f:
        config = json.load(f)
    if config["model_type"] == "mt5" and config["tie_word_embeddings"]:
        return MAJOR >= 5  # 4.x scales the logits of a tied head
    said = config.get("text_config", config).get("rope_parameters")
    return MAJOR >= 5 or said in (None, dict(rope_type="default", rope_theta=10000.0))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("what", choices=("make", "check"))
    ap.add_argument("--case", action="append", help="only this case (may be repeated)")
    args = ap.parse_args()
    torch.set_num_threads(1)
    unknown = set(args.case or []) - {c.name for c in CASES}
    if unknown:
        sys.exit(f"no such case: {', '.join(sorted(unknown))}")
    chosen = [c for c in CASES if not args.case or c.name in args.case]
    if args.what == "make":
        for case in chosen:
            if case.form == MAJOR:
                make(case)
            else:
                print(f"{case.name:24} left alone: written by {case.form}.x, this is {transformers.__version__}")
    else:
        for case in (c for c in chosen if not readable(c)):
            print(f"{case.name:24} skipped: transformers 4.x computes another model")
        failed = [c.name for c in chosen if readable(c) and not check(c)]
        if failed:
            sys.exit(f"differ by more than 1e-5: {', '.join(failed)}")


if __name__ == "__main__":
    main()
