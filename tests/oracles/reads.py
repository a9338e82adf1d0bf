#!/usr/bin/env python3
"""Which keys of a config.json the classes of transformers read, family by family, as the table that the reader of folders follows.

  python reads.py collect OUT.json      what the running transformers reads
  python reads.py table 4.json 5.json   the table of both, for nn/family/src/reads.rs
  python reads.py rewrites              keys whose value a config class changes, as `family key given -> kept`

A key counts as read where the modules that compute the model take it from the config: `config.KEY`, `getattr(config, "KEY", ...)` and the like,
in the classes that the language model is made of (heads for other tasks are left out) and in the shared module of rotary tables; in the methods of its
config class (`kwargs.pop("KEY")`, a parameter that is used for more than to store it); and whatever is taken while a small model is made and run forward
and backward. What only loading, generation, caches or devices read (RUNTIME) does not count.
"""
import ast
import inspect
import json
import sys

import torch
import transformers

CLASSES = dict(gpt2="GPT2LMHeadModel", llama="LlamaForCausalLM", mistral="MistralForCausalLM", qwen2="Qwen2ForCausalLM",
               qwen3="Qwen3ForCausalLM", gemma="GemmaForCausalLM", gemma2="Gemma2ForCausalLM", gemma3_text="Gemma3ForCausalLM",
               phi="PhiForCausalLM", phi3="Phi3ForCausalLM", olmo2="Olmo2ForCausalLM", gpt_neox="GPTNeoXForCausalLM", opt="OPTForCausalLM",
               bloom="BloomForCausalLM", falcon="FalconForCausalLM", stablelm="StableLmForCausalLM", starcoder2="Starcoder2ForCausalLM",
               cohere="CohereForCausalLM", cohere2="Cohere2ForCausalLM", granite="GraniteForCausalLM", glm="GlmForCausalLM",
               glm4="Glm4ForCausalLM", bert="BertForPreTraining BertForMaskedLM", t5="T5ForConditionalGeneration",
               llava="LlavaForConditionalGeneration", clip_vision_model="CLIPVisionModel", arcee="ArceeForCausalLM",
               seed_oss="SeedOssForCausalLM", smollm3="SmolLM3ForCausalLM", ernie4_5="Ernie4_5ForCausalLM",
               hunyuan_v1_dense="HunYuanDenseV1ForCausalLM", olmo3="Olmo3ForCausalLM", exaone4="Exaone4ForCausalLM",
               nemotron="NemotronForCausalLM", ministral="MinistralForCausalLM", ministral3="Ministral3ForCausalLM", gptj="GPTJForCausalLM",
               mt5="MT5ForConditionalGeneration", roberta="RobertaForMaskedLM",
               mixtral="MixtralForCausalLM", qwen3_moe="Qwen3MoeForCausalLM")
CLASSES["xlm-roberta"] = "XLMRobertaForMaskedLM"
# What only loading, saving, generating, caches, devices and outputs read; no figure of a model depends on it.
RUNTIME = set("""_attn_implementation _attn_implementation_internal _experts_implementation_internal _heterogeneity_spec _output_attentions
attribute_map base_model_ep_plan base_model_fsdp_plan base_model_pp_plan base_model_tp_plan decoder default_theta generator
gradient_checkpointing is_heterogeneous kv_sharing_modes num_kv_shared_layers output_attentions output_hidden_states
output_cross_attentions return_dict use_return_dict use_cache text_encoder name_or_path torchscript vision_aspect_ratio num_labels
problem_type eos_token_id dtype _rope_type_labels default_rope_type loss_type _name_or_path _experts_implementation""".split())
# Only what a model that is not loaded from a folder starts with.
RUNTIME |= {"initializer_range", "initializer_factor", "init_std"}
# Keys whose name in 5.x is another one, under the name that both versions take.
BOTH = dict(qwen3_moe=dict(num_local_experts="num_experts"))
# What is taken where the class has no such attribute.
ABSENT = dict(is_causal=True, partial_rotary_factor=1.0)
# The base class reads these for every model, by other names or while the weights are loaded.
EVERY = "chunk_size_feed_forward compression_config is_encoder_decoder per_layer_config pruned_heads quantization_config tie_encoder_decoder"


def config_reads(tree):
    """Attributes that a syntax tree takes from something named `config`."""
    def is_config(e):
        name = e.id if isinstance(e, ast.Name) else e.attr if isinstance(e, ast.Attribute) else ""
        return name in ("config", "text_config", "decoder_config", "encoder_config", "vision_config")
    found = set()
    for e in ast.walk(tree):
        if isinstance(e, ast.Attribute) and is_config(e.value) and isinstance(e.ctx, ast.Load):
            found.add(e.attr)
        if isinstance(e, ast.Call) and isinstance(e.func, ast.Name) and e.func.id in ("getattr", "hasattr") and is_config(e.args[0]):
            if isinstance(e.args[1], ast.Constant):
                found.add(e.args[1].value)
    return found


def reachable(module, roots):
    """The classes and functions of a module that the roots are made of."""
    tree = ast.parse(inspect.getsource(module))
    tops = {n.name: n for n in tree.body if isinstance(n, (ast.ClassDef, ast.FunctionDef))}
    for top in tops.values():
        # It names the parts of every model of the module.
        top.body = [f for f in top.body if getattr(f, "name", "") != "_init_weights"]
    todo, seen = list(roots), {}
    while todo:
        name = todo.pop()
        if name in seen or name not in tops:
            continue
        seen[name] = tops[name]
        todo += [e.id for e in ast.walk(tops[name]) if isinstance(e, ast.Name)]
    return seen.values()


def class_reads(config_class):
    """What a config class itself reads of what it is given."""
    found, tree = set(), ast.parse(inspect.getsource(config_class))
    for f in [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name not in ("to_dict", "__setattr__", "__getattribute__")]:
        names = {a.arg for a in f.args.args + f.args.kwonlyargs} - {"self"}
        kept = set()
        for e in ast.walk(f):
            # self.KEY = KEY stores, and so does what is handed to the base class.
            if isinstance(e, ast.Assign) and isinstance(e.value, ast.Name) and isinstance(e.targets[0], ast.Attribute) \
                    and e.targets[0].attr == e.value.id:
                kept.add(e.value)
            if isinstance(e, ast.Call) and isinstance(e.func, ast.Attribute) and isinstance(e.func.value, ast.Call):
                kept.update(k.value for k in e.keywords)
            if isinstance(e, ast.Call) and isinstance(e.func, ast.Attribute) and e.func.attr in ("pop", "get", "setdefault") \
                    and isinstance(e.func.value, ast.Name) and e.func.value.id == "kwargs" and isinstance(e.args[0], ast.Constant):
                found.add(e.args[0].value)
            if isinstance(e, ast.Compare) and isinstance(e.left, ast.Constant) and isinstance(e.ops[0], ast.In) \
                    and isinstance(e.comparators[0], ast.Name) and e.comparators[0].id == "kwargs":
                found.add(e.left.value)
            if isinstance(e, ast.Attribute) and isinstance(e.value, ast.Name) and e.value.id == "self" and isinstance(e.ctx, ast.Load):
                found.add(e.attr)
        found |= {e.id for e in ast.walk(f) if isinstance(e, ast.Name) and e.id in names and isinstance(e.ctx, ast.Load) and e not in kept}
    return found


def is_key(name, config_class):
    if not isinstance(name, str) or name.startswith("__") or name in ("kwargs", "rope_parameters_type"):
        return False
    return not callable(getattr(config_class, name, None))


TINY = dict(vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, max_position_embeddings=32,
            num_key_value_heads=2, head_dim=8, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=0)
OWN = dict(gpt2=dict(n_embd=16, n_layer=2, n_head=2, n_positions=32), bloom=dict(n_layer=2, n_head=2), opt=dict(ffn_dim=24, word_embed_proj_dim=16),
           t5=dict(d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2), mt5=dict(d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2),
           gptj=dict(n_embd=16, n_layer=2, n_head=2, n_positions=32, rotary_dim=4), falcon={}, clip_vision_model=dict(image_size=8, patch_size=4))


def watched(family, config_class):
    """What making a small model, running it and its gradients takes from the config."""
    if family in ("llava", "clip_vision_model"):
        return set()
    keys = dict(TINY)
    if family in ("gpt2", "bloom", "t5", "falcon", "gptj", "mt5"):
        for k in ("head_dim", "num_key_value_heads", "intermediate_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"):
            keys.pop(k)
        keys.pop("hidden_size") if family in ("gpt2", "t5", "gptj", "mt5") else None
    if family == "falcon":
        keys |= dict(num_hidden_layers=2, num_attention_heads=2)
    config = config_class(use_cache=False, **(keys | OWN.get(family, {})))
    seen, own = set(), type(config)

    class Watch(own):
        def __getattribute__(self, name):
            if not name.startswith("__"):
                seen.add(own.attribute_map.get(name, name))
            return super().__getattribute__(name)
    config._attn_implementation = "eager"
    object.__setattr__(config, "__class__", Watch)
    model = getattr(transformers, CLASSES[family].split()[-1])(config)
    ids = torch.arange(3, 11)[None]
    model(input_ids=ids, labels=ids).loss.backward()
    # Asked of every config, and there where the config is one of several parts.
    return seen - {"text_config", "layer_types", "vision_feature_layer", "vision_feature_select_strategy"}


def family_reads(family):
    config_class = type(transformers.AutoConfig.for_model(family))
    found = set(EVERY.split())
    for name in CLASSES[family].split():
        module = inspect.getmodule(getattr(transformers, name))
        for node in reachable(module, [name]):
            found |= config_reads(node)
    for c in config_class.__mro__:
        if c.__module__.startswith("transformers.models"):
            found |= class_reads(c)
    if {"rope_scaling", "rope_parameters", "rope_theta"} & found:
        rope = inspect.getsource(transformers.modeling_rope_utils)
        found |= config_reads(ast.parse(rope)) | {"rope_scaling", "rope_theta", "rope_parameters", "partial_rotary_factor"}
    found |= watched(family, config_class)
    return {config_class.attribute_map.get(k, k) for k in found if is_key(k, config_class)} - RUNTIME


def collect(out):
    families = {}
    for family in CLASSES:
        if not hasattr(transformers, CLASSES[family].split()[0]):
            continue  # newer than this version
        plain = transformers.AutoConfig.for_model(family)
        # Names of the first files that config classes still take.
        aliases = dict(type(plain).attribute_map) | ({"n_embed": "hidden_size"} if family in ("bloom", "falcon") else {})
        given = plain.to_dict()
        both = BOTH.get(family, {})
        aliases = {k: v for k, v in aliases.items() if v not in both} | both
        reads = {both.get(k, k): given.get(k) for k in family_reads(family) if k in both or k not in aliases}
        families[family] = dict(reads=reads, aliases=aliases)
    with open(out, "w") as f:
        json.dump(dict(version=transformers.__version__, families=families), f, indent=1, default=str, sort_keys=True)


def table(files):
    """Rows of nn/family/src/reads.rs: every key that one of the versions reads, with what all of them take where it is absent."""
    all_of = [json.load(open(f)) for f in files]

    def wrapped(words):
        lines, line = [], ""
        for w in words:
            if len(line) + len(w) > 130:
                lines.append(line)
                line = ""
            line += (" " if line or lines else "") + w
        return " \\\n         ".join(x.strip() for x in lines + [line])

    def one(key, values):
        known = [v for v in values if v is not None] or [ABSENT[k] for k in [key] if k in ABSENT]
        plain = known and all(v == known[0] for v in known) and not isinstance(known[0], (list, dict)) and " " not in json.dumps(known[0])
        return f"{key}={json.dumps(known[0])}".replace('"', '\\"') if plain else key

    print("pub const READS: &[(&str, &str, &str)] = &[")
    for family in CLASSES:
        each = [a["families"][family] for a in all_of if family in a["families"]]
        keys = sorted(set().union(*(e["reads"] for e in each)))
        names = {k: v for e in each for k, v in e["aliases"].items()}
        words = wrapped([one(k, [e["reads"].get(k) for e in each]) for k in keys])
        print(f'    ("{family}", "{" ".join(f"{k}={v}" for k, v in sorted(names.items()))}",')
        print(f'        "{words}"),')
    print("];")


def rewrites():
    """Values that a config class does not keep as they are given."""
    tried = [True, False, 0, 1, 3, 0.5, "gelu", "gelu_new", "relu", "silu", "swish", "gelu_pytorch_tanh", "gated-gelu", "gated-silu"]
    for family in CLASSES:
        config_class = type(transformers.AutoConfig.for_model(family))
        keys = sorted(family_reads(family) | {k for k in config_class().to_dict() if not k.startswith("_")})
        plain = config_class().to_dict()
        for key in keys:
            for v in tried:
                if type(v) is not type(plain.get(key)) and not (plain.get(key) is None and not isinstance(v, str)):
                    continue
                try:
                    kept = config_class(**{key: v}).to_dict()
                except Exception:
                    continue
                other = {k: x for k, x in kept.items() if k != key and x != plain.get(k)}
                if kept.get(key) != v or other:
                    print(family, key, v, "->", kept.get(key), {k: str(x)[:60] for k, x in other.items()})


if __name__ == "__main__":
    if sys.argv[1] == "collect":
        collect(sys.argv[2])
    elif sys.argv[1] == "table":
        table(sys.argv[2:])
    else:
        rewrites()
