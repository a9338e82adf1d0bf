"""Writes special_tokens.json: what AutoTokenizer of transformers 5.23 makes of small tokenizer folders.

    python data/tests/special_tokens.py data/tests/special_tokens.json
"""

import itertools
import json
import os
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
from transformers import AutoTokenizer

TEXTS = ["q", "<s>q a</s>", "<|im_start|>q <|im_end|>", "a </s> b <|im_end|>", "x<pad>y <extra> z<img>", "<|im_end|> q<s>", "q <|im_start|> \n<|im_start|>q", "<|IM_END|> <Extra><IMG> <extra>"]
BEGIN = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}},
}


def characters():
    """The character of each byte in byte-level vocabularies."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def token(content, **flags):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True, **flags}


def tokenizer(added, begins, normalizer):
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, **token(c, **dict(*flags))} for c, i, *flags in added],
        "normalizer": normalizer, "pre_tokenizer": level, "post_processor": BEGIN if begins else None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {c: i for i, c in enumerate(characters())}, "merges": []},
    }


cases = []


def case(config, smap, added_file, begins, added, normalizer=None):
    files = {}
    if config is not None:
        files["tokenizer_config.json"] = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    if smap is not None:
        files["special_tokens_map.json"] = smap
    if added_file is not None:
        files["added_tokens.json"] = added_file
    with tempfile.TemporaryDirectory() as folder:
        for name, content in {**files, "tokenizer.json": tokenizer(added, begins, normalizer)}.items():
            with open(os.path.join(folder, name), "w") as f:
                json.dump(content, f)
        t = AutoTokenizer.from_pretrained(folder)
    cases.append({
        "added": added, "begins": begins, "normalizer": normalizer, "files": files, "eos_id": t.eos_token_id, "begin": t("q")["input_ids"][:-1], "vocab": len(t),
        "ids": [t(x, add_special_tokens=False)["input_ids"] for x in TEXTS],
    })


own = [["<s>", 256], ["</s>", 257]]
both = [*own, ["<|im_start|>", 258], ["<|im_end|>", 259]]
ends = [None, "</s>", {"content": "<|im_end|>", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}]
by_id = {"258": token("<|im_start|>"), "259": token("<|im_end|>")}
lax = {"259": token("<|im_end|>", lstrip=True, rstrip=True, special=False), "258": {"content": "<|im_start|>"}}
old = {"<|im_end|>": 259, "<|im_start|>": 258}
for in_config, in_map, (decoder, added_file), begins in itertools.product(
    ends, ends, [(by_id, None), (None, old), (lax, None), (by_id, old)], [False, True]
):
    config = {}
    if in_config is not None:
        config["eos_token"] = {**in_config, "__type": "AddedToken"} if isinstance(in_config, dict) else in_config
    if decoder:
        config["added_tokens_decoder"] = decoder
    case(config, None if in_map is None else {"eos_token": in_map}, added_file, begins, own)
for begins in [False, True]:
    for config, smap in [
        ({"eos_token": "<|im_end|>", "pad_token": "<pad>", "additional_special_tokens": ["<extra>", "</s>"], "image_token": "<img>"}, None),
        ({"eos_token": "<|im_end|>", "extra_special_tokens": {"image_token": "<img>"}}, {"pad_token": "<pad>", "bos_token": "<s>"}),
        ({"eos_token": "<|im_end|>",
          "added_tokens_decoder": {"257": token("</s>", lstrip=True), "259": token("<|im_end|>", rstrip=True)}}, {"pad_token": "<pad>"}),
        (None, {"eos_token": "</s>", "additional_special_tokens": ["<extra>"]}),
        (None, None),
        ({"add_bos_token": True, "add_eos_token": True, "bos_token": "<s>", "eos_token": "</s>"}, None),
        ({"add_bos_token": False, "bos_token": "<s>", "eos_token": "</s>"}, None),
    ]:
        case(config, smap, None, begins, both)
# A tokenizer.json that says more of a token than added_tokens.json, which has its id alone.
flags = [{"lstrip": True}, {"rstrip": True}, {"single_word": True}, {"normalized": True, "special": False}]
for flag, begins in itertools.product(flags, [False, True]):
    case({"eos_token": "</s>"}, None, old, begins, [*own, ["<|im_start|>", 258, flag], ["<|im_end|>", 259]])
# What is special, and so not normalized, where texts become small letters.
lower = {"type": "Lowercase"}
for config, smap in [
    ({"eos_token": "</s>"}, None),
    ({"eos_token": "</s>"}, {"additional_special_tokens": ["<|IM_END|>"]}),
    ({"eos_token": "</s>"}, {"extra_special_tokens": ["<|IM_END|>"]}),
    ({"eos_token": "</s>", "additional_special_tokens": ["<|IM_END|>"]}, None),
    ({"eos_token": "</s>", "extra_special_tokens": {"image_token": "<IMG>"}}, {"additional_special_tokens": ["<Extra>"]}),
]:
    case(config, smap, {"<|im_start|>": 258, "<|IM_END|>": 259}, False, own, lower)
for begins in [False, True]:
    case({"eos_token": "</s>", "split_special_tokens": True}, None, None, begins, both)
    case({"eos_token": "</s>", "split_special_tokens": False, "added_tokens_decoder": by_id}, None, None, begins, own)
with open(sys.argv[1], "w") as f:
    lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
    f.write(f'{{"texts": {json.dumps(TEXTS)}, "cases": [\n{lines}\n]}}\n')
