"""Reads every key of DeepSpeed's JSON and its default from DeepSpeed's source, without importing it, into keys.json beside this file.

    python tests/deepspeed/keys/keys.py DEEPSPEED TORCH > tests/deepspeed/keys/keys.json

DEEPSPEED is the folder `deepspeed` of an unpacked source distribution, TORCH the folder `torch` of an installed PyTorch: types of
optimizers that DeepSpeed has none for are torch's. A key without a default has "<required>". The lists below say in which class or
function a section is read; the names and values are the source's.
"""

import ast
import json
import sys
from pathlib import Path

DEEPSPEED, TORCH = Path(sys.argv[1]), Path(sys.argv[2])
REQUIRED = "<required>"

# Section: file and class of its model.
MODELS = [
    ("zero_optimization", "runtime/zero/config.py", "DeepSpeedZeroConfig"),
    ("zero_optimization.offload_param", "runtime/zero/offload_config.py", "DeepSpeedZeroOffloadParamConfig"),
    ("zero_optimization.offload_optimizer", "runtime/zero/offload_config.py", "DeepSpeedZeroOffloadOptimizerConfig"),
    ("zero_optimization.leaf_module", "runtime/zero/leaf_module_config.py", "DeepSpeedZeroLeafModuleConfig"),
    ("zero_optimization.zenflow", "runtime/zenflow/zenflow_config.py", "ZenFlowConfig"),
    ("bf16", "runtime/precision_config.py", "DeepSpeedBF16Config"),
    ("fp16", "runtime/precision_config.py", "DeepSpeedFP16Config"),
    ("hybrid_engine", "runtime/config.py", "HybridEngineConfig"),
    ("compile", "compile/config.py", "CompileConfig"),
    ("timers.throughput", "utils/config.py", "DeepSpeedThroughputTimerConfig"),
    ("tensor_parallel", "runtime/tensor_parallel/config.py", "TPTrainingConfig"),
    ("tensor_parallel.tp", "runtime/tensor_parallel/config.py", "TPConfig"),
    ("tensorboard", "monitor/config.py", "TensorBoardConfig"),
    ("wandb", "monitor/config.py", "WandbConfig"),
    ("csv_monitor", "monitor/config.py", "CSVConfig"),
    ("comet", "monitor/config.py", "CometConfig"),
    ("comms_logger", "comm/config.py", "CommsLoggerConfig"),
]

# Section: file whose calls of get_scalar_param and get_dict_param read it, and the first argument of those calls.
CALLS = [
    ("", "runtime/config.py", "param_dict"),
    ("flops_profiler", "profiling/config.py", "flops_profiler_dict"),
    ("autotuning", "autotuning/config.py", "autotuning_dict"),
    ("activation_checkpointing", "runtime/activation_checkpointing/config.py", "act_chkpt_config_dict"),
    ("aio", "runtime/swap_tensor/aio_config.py", "aio_dict"),
    ("checkpoint", "runtime/model_checkpointing/config.py", "checkpoint_dict"),
    ("checkpoint.writer", "runtime/model_checkpointing/config.py", "writer_dict"),
]

# Section: file and class whose __init__ takes its keys.
SIGNATURES = [
    ("optimizer(Adam).params", DEEPSPEED / "ops/adam/fused_adam.py", "FusedAdam"),
    ("optimizer(Adam).params", DEEPSPEED / "ops/adam/cpu_adam.py", "DeepSpeedCPUAdam"),
    ("optimizer(AdamW).params", DEEPSPEED / "ops/adam/fused_adam.py", "FusedAdam"),
    ("optimizer(AdamW).params", DEEPSPEED / "ops/adam/cpu_adam.py", "DeepSpeedCPUAdam"),
    ("optimizer(AdamW).params[torch_adam]", TORCH / "optim/adamw.py", "AdamW"),
    ("optimizer(Adam).params[torch_adam]", TORCH / "optim/adamw.py", "AdamW"),
    ("optimizer(Lion).params", DEEPSPEED / "ops/lion/fused_lion.py", "FusedLion"),
    ("optimizer(Lion).params", DEEPSPEED / "ops/lion/cpu_lion.py", "DeepSpeedCPULion"),
    ("optimizer(Lamb).params", DEEPSPEED / "ops/lamb/fused_lamb.py", "FusedLamb"),
    ("optimizer(SGD).params", TORCH / "optim/sgd.py", "SGD"),
    ("scheduler(WarmupLR).params", DEEPSPEED / "runtime/lr_schedules.py", "WarmupLR"),
    ("scheduler(WarmupDecayLR).params", DEEPSPEED / "runtime/lr_schedules.py", "WarmupDecayLR"),
    ("scheduler(WarmupCosineLR).params", DEEPSPEED / "runtime/lr_schedules.py", "WarmupCosineLR"),
    ("scheduler(OneCycle).params", DEEPSPEED / "runtime/lr_schedules.py", "OneCycle"),
    ("scheduler(LRRangeTest).params", DEEPSPEED / "runtime/lr_schedules.py", "LRRangeTest"),
]

# Parameters that the engine passes itself, so that no file can.
NOT_OF_FILES = {"self", "params", "model_params", "optimizer", "adamw_mode"}

# Keys that the source reads by other means than the above: section, file and constant of the key, constant of the default.
READ_OTHERWISE = [
    ("checkpoint", "runtime/constants.py", "LOAD_UNIVERSAL_CHECKPOINT", "LOAD_UNIVERSAL_CHECKPOINT_DEFAULT"),
    ("checkpoint", "runtime/constants.py", "USE_NODE_LOCAL_STORAGE_CHECKPOINT", "USE_NODE_LOCAL_STORAGE_CHECKPOINT_DEFAULT"),
    ("checkpoint.parallel_write", "runtime/constants.py", "CHECKPOINT_PARALLEL_WRITE_PIPELINE_STAGE", "CHECKPOINT_PARALLEL_WRITE_PIPELINE_STAGE_DEFAULT"),
    ("checkpoint", "runtime/model_checkpointing/constants.py", "CHECKPOINT_WRITER", "CHECKPOINT_WRITER_DEFAULT"),
    ("data_types", "runtime/constants.py", "GRAD_ACCUM_DTYPE", "GRAD_ACCUM_DTYPE_DEFAULT"),
    ("data_types", "runtime/constants.py", "PARAM_DTYPE", "PARAM_DTYPE_DEFAULT"),
    ("data_types", "runtime/constants.py", "BUFFER_DTYPE", "BUFFER_DTYPE_DEFAULT"),
    ("data_types", "runtime/constants.py", "KEEP_IN_FP32_MODULES", "KEEP_IN_FP32_MODULES_DEFAULT"),
    ("", "runtime/constants.py", "COMMUNICATION_DATA_TYPE", "COMMUNICATION_DATA_TYPE_DEFAULT"),
    ("", "runtime/constants.py", "SEQ_PARALLEL_COMMUNICATION_DATA_TYPE", "SEQ_PARALLEL_COMMUNICATION_DATA_TYPE_DEFAULT"),
    ("", "runtime/constants.py", "VOCABULARY_SIZE", "VOCABULARY_SIZE_DEFAULT"),
    ("", "datastates/config.py", "DATASTATES_CHECKPOINTING", "DATASTATES_CHECKPOINTING_ENABLED"),
    ("optimizer", "runtime/constants.py", "LEGACY_FUSION", "LEGACY_FUSION_DEFAULT"),
    ("torch_autocast", "runtime/constants.py", "TORCH_AUTOCAST_ENABLED", "TORCH_AUTOCAST_ENABLED_DEFAULT"),
    ("data_efficiency", "runtime/data_pipeline/constants.py", "DATA_EFFICIENCY_ENABLED", "DATA_EFFICIENCY_ENABLED_DEFAULT"),
    ("data_efficiency", "runtime/data_pipeline/constants.py", "DATA_EFFICIENCY_SEED", "DATA_EFFICIENCY_SEED_DEFAULT"),
]

NAMES = {}


class Unknown(Exception):
    pass


def value(node, names):
    """A constant expression."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple)):
        return [value(e, names) for e in node.elts]
    if isinstance(node, ast.Dict):
        return {value(k, names): value(v, names) for k, v in zip(node.keys, node.values)}
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.Attribute):
        if isinstance(node.value, ast.Name) and f"{node.value.id}.{node.attr}" in names:
            return names[f"{node.value.id}.{node.attr}"]
        if ast.unparse(node) == "sys.maxsize":
            return 2**63 - 1
        if ast.unparse(node).startswith("torch."):
            return node.attr
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -value(node.operand, names)
    if isinstance(node, ast.BinOp):
        a, b = value(node.left, names), value(node.right, names)
        return {ast.Add: lambda: a + b, ast.Mult: lambda: a * b, ast.Pow: lambda: a**b}[type(node.op)]()
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "pp_int":
        return int(value(node.args[0], names))
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "list":
        return value(node.args[0], names)
    if isinstance(node, ast.Lambda):
        return value(node.body, names)
    raise Unknown(ast.unparse(node))


def read(path):
    """The syntax tree of a file, and its constants and those of its classes."""
    tree = ast.parse(Path(path).read_text())
    names = dict(NAMES)

    def take(body, prefix):
        for node in body:
            if isinstance(node, ast.ClassDef):
                take(node.body, f"{node.name}.")
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(target, ast.Name) and node.value is not None:
                try:
                    names[prefix + target.id] = value(node.value, names)
                except (Unknown, KeyError, TypeError):
                    pass

    take(tree.body, "")
    return tree, names


def the_class(tree, name):
    return next(n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == name)


def of_model(path, name):
    """Keys of a pydantic model, by their aliases."""
    tree, names = read(DEEPSPEED / path)
    for node in the_class(tree, name).body:
        if not isinstance(node, ast.AnnAssign):
            continue
        key, default = node.target.id, node.value
        if isinstance(default, ast.Call) and ast.unparse(default.func) == "Field":
            words = {k.arg: k.value for k in default.keywords}
            key = value(words["alias"], names) if "alias" in words else key
            extra = ast.unparse(words.get("json_schema_extra", ast.Constant(None)))
            if "deprecated" in extra:
                continue
            factory = words.get("default_factory")
            default = default.args[0] if default.args else words.get("default", factory)
            if isinstance(factory, ast.Name):
                # A section of its own: what it is when not given.
                default = ast.Constant(None)
        yield key, REQUIRED if default is None else value(default, names)


def of_calls(path, argument):
    tree, names = read(DEEPSPEED / path)
    for node in ast.walk(tree):
        call = isinstance(node, ast.Call) and ast.unparse(node.func) in ("get_scalar_param", "get_dict_param")
        if call and ast.unparse(node.args[0]) == argument and ast.unparse(node.args[1]) in names:
            yield value(node.args[1], names), value(node.args[2], names)


def of_signature(path, name):
    tree, names = read(path)
    init = next(n for n in the_class(tree, name).body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    a = init.args
    pairs = list(zip(reversed(a.args), list(reversed(a.defaults)) + [None] * len(a.args)))
    for arg, default in list(reversed(pairs)) + list(zip(a.kwonlyargs, a.kw_defaults)):
        if arg.arg not in NOT_OF_FILES:
            yield arg.arg, REQUIRED if default is None else value(default, names)


def main():
    for path in ["runtime/constants.py", "runtime/fp16/loss_scaler.py", "runtime/data_pipeline/constants.py", "runtime/model_checkpointing/constants.py",
                 "runtime/swap_tensor/constants.py", "profiling/constants.py", "autotuning/constants.py", "comm/constants.py", "datastates/config.py"]:
        NAMES.update(read(DEEPSPEED / path)[1])
    keys = {}

    def add(section, pairs):
        for key, default in pairs:
            keys.setdefault(f"{section}.{key}" if section else key, default)

    for section, path, argument in CALLS:
        add(section, of_calls(path, argument))
    for section, path, name in MODELS:
        add(section, of_model(path, name))
    for section, path, key, default in READ_OTHERWISE:
        names = read(DEEPSPEED / path)[1]
        add(section, [(names[key], names[default])])
    for section, path, name in SIGNATURES:
        add(section, of_signature(path, name))
    # Muon's keys are the two halves of its groups, each with the defaults that the optimizer gives a group.
    muon, _ = read(DEEPSPEED / "runtime/zero/muon/original_muon.py")
    halves = {}
    for node in ast.walk(the_class(muon, "MuonWithAuxAdam")):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "group.get":
            halves.setdefault(node.args[0].value, value(node.args[1], {}))
    add("optimizer(Muon).params", halves.items())
    # Sections that are taken apart by functions of their own.
    parse = DEEPSPEED / "module_inject/auto_ep_config.py"
    for node in ast.walk(read(parse)[0]):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "param_dict.get":
            keys.setdefault(f"expert_parallel.{node.args[0].value}", value(node.args[1], {}))
    tree, names = read(DEEPSPEED / "runtime/config.py")
    pipeline = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "get_pipeline_config")
    add("pipeline", value(pipeline.body[1].value, {}).items())
    keys["zero_optimization.offload_optimizer"] = None
    removed = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and "_REMOVED_" in ast.unparse(node.targets[0]) and isinstance(node.value, ast.Dict):
            prefix = "zero_optimization." if "ZERO" in ast.unparse(node.targets[0]) else ""
            removed += [prefix + k.value for k in node.value.keys]
    version = (DEEPSPEED.parent / "version.txt").read_text().strip()
    line = lambda pair: f"    {json.dumps(pair[0])}: {json.dumps(pair[1])}"
    print("{")
    print(f'  "version": {json.dumps(version)},')
    print('  "keys": {\n' + ",\n".join(map(line, sorted(keys.items()))) + "\n  },")
    print(f'  "removed": {json.dumps(sorted(removed))}')
    print("}")


main()
