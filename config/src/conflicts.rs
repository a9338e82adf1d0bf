//! Which keys exclude or need each other, in words, with settings that show each: a test holds every row against what the resolver says.

/// Keys that go together in some ways only.
pub struct Conflict {
    /// Paths of the keys, as people write them.
    pub keys: &'static [&'static str],
    /// The rule that holds between them.
    pub rule: &'static str,
    /// `--set` pairs that break it on two ranks.
    pub broken_by: &'static [&'static str],
}

const fn row(
    keys: &'static [&'static str],
    rule: &'static str,
    broken_by: &'static [&'static str],
) -> Conflict {
    Conflict {
        keys,
        rule,
        broken_by,
    }
}

const OFFLOAD: &str = "zero_optimization.offload_optimizer";
const PARAM: &str = "zero_optimization.offload_param";

/// All of them.
#[rustfmt::skip]
pub const CONFLICTS: &[Conflict] = &[
    row(&["bf16.enabled", "fp16.enabled"], "bf16.enabled and fp16.enabled exclude each other",
        &["bf16.enabled=true", "fp16.enabled=true"]),
    row(&["run.dtype", "bf16.enabled", "fp16.enabled"], "run.dtype and an enabled bf16 or fp16 must name the same type",
        &["run.dtype=f32", "bf16.enabled=true"]),
    row(&["data_types.grad_accum_dtype", "run.dtype", "bf16.enabled", "fp16.enabled"], "data_types.grad_accum_dtype is fp32 or the run's own 16-bit type",
        &["data_types.grad_accum_dtype=bf16"]),
    row(&["data_types.param_dtype", "run.dtype", "bf16.enabled", "fp16.enabled"], "data_types.param_dtype is the type that the run computes in",
        &["data_types.param_dtype=bf16"]),
    row(&["gradient_allreduce_op", "zero_optimization.stage"], "gradient_allreduce_op \"sum\" needs stage 0, 1 or 2",
        &["gradient_allreduce_op=sum", "zero_optimization.stage=3"]),
    row(&["gradient_allreduce_op", "run.canonical_shards"], "gradient_allreduce_op \"sum\" does not go with run.canonical_shards",
        &["gradient_allreduce_op=sum", "run.canonical_shards=4"]),
    row(&["gradient_allreduce_op", "prescale_gradients", "gradient_predivide_factor"], "gradient_allreduce_op \"sum\" divides by nothing",
        &["gradient_allreduce_op=sum", "prescale_gradients=true"]),
    row(&["communication.algorithm", "run.canonical_shards"], "an algorithm that gives the order of sums up does not go with run.canonical_shards",
        &["communication.algorithm=native", "run.canonical_shards=4"]),
    row(&["run.canonical_shards", "mesh.tp"], "run.canonical_shards does not go with mesh.tp above 1", &["run.canonical_shards=4", "mesh.tp=2"]),
    row(&["run.canonical_shards", "mesh.cp"], "run.canonical_shards does not go with mesh.cp above 1", &["run.canonical_shards=4", "mesh.cp=2"]),
    row(&["run.balance", "mesh.cp"], "run.balance is \"even\" with mesh.cp above 1", &["run.balance=3,1", "mesh.cp=2"]),
    row(&["run.balance", "mesh.ep"], "run.balance is \"even\" with mesh.ep above 1", &["run.balance=3,1", "mesh.ep=2"]),
    row(&["mesh.ep", "model"], "above 1 it needs a model with experts, whose number it divides in every layer", &["mesh.ep=2"]),
    row(&["run.canonical_shards", "mesh.ep"], "run.canonical_shards does not go with mesh.ep above 1", &["run.canonical_shards=4", "mesh.ep=2"]),
    row(&["mesh.etp", "model"], "above 1 it needs a model with experts, whose inner width it divides", &["mesh.etp=2"]),
    row(&["mesh.ep", "mesh.etp", "mesh.dp", "mesh.cp", "mesh.tp"], "mesh.ep x mesh.etp divides the ranks of a stage, mesh.dp x mesh.cp x mesh.tp",
        &["mesh.ep=3"]),
    row(&["zero_optimization.zero_quantized_gradients"], "true is refused: reducing gradients in 4 bits is not available in this build yet",
        &["zero_optimization.zero_quantized_gradients=true"]),
    row(&["mesh.dp", "mesh.pp"], "mesh.pp x mesh.dp x mesh.cp x mesh.tp is the number of ranks", &["mesh.dp=3"]),
    row(&["train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"],
        "train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x data-parallel ranks: give two of the three, or three that agree",
        &["train_batch_size=7", "train_micro_batch_size_per_gpu=2", "gradient_accumulation_steps=2"]),
    row(&["data.field", "data.jsonl_field"], "data.jsonl_field is the older name of data.field: give one of them",
        &["data.field=a", "data.jsonl_field=b"]),
    row(&["data.validation", "data.validation_fraction", "data.split"], "give one of data.validation, data.validation_fraction and data.split",
        &["data.validation_fraction=0.1", "data.split=9,1"]),
    row(&["run.validate_sequences", "run.validate_batches"], "give one of run.validate_sequences and run.validate_batches",
        &["run.validate_sequences=9", "run.validate_batches=9"]),
    row(&["data.seq_len", "model.n_positions", "model.max_position_embeddings"], "data.seq_len is at most the model's longest sequence",
        &["data.seq_len=1000000"]),
    row(&["data.reset_position_ids", "data.reset_attention_mask"], "data.reset_position_ids needs data.reset_attention_mask",
        &["data.reset_position_ids=true"]),
    row(&["model.n_head", "model.n_embd"], "model.n_head divides model.n_embd", &["model.n_embd=10", "model.n_head=3"]),
    row(&["mesh.pp_layers", "mesh.pp", "mesh.pp_chunks"], "mesh.pp_layers gives as many numbers as mesh.pp has stages, or as all of them have runs", &["mesh.pp=2", "mesh.pp_layers=1,2,3"]),
    row(&["mesh.pp_chunks", "mesh.pp_schedule"], "mesh.pp_chunks is chosen with mesh.pp_schedule \"interleaved\" only", &["mesh.pp=2", "mesh.pp_chunks=3"]),
    row(&["gradient_accumulation_steps", "mesh.pp_schedule", "mesh.pp"], "micro-batches are a multiple of mesh.pp with mesh.pp_schedule \"interleaved\", and twice mesh.pp at least with \"dualpipev\"",
        &["mesh.pp=2", "mesh.pp_schedule=dualpipev", "gradient_accumulation_steps=3", "train_micro_batch_size_per_gpu=1"]),
    row(&["mesh.pp_layers", "run.balance"], "mesh.pp_layers and run.balance both divide the units: one of them is \"even\"",
        &["mesh.pp=2", "mesh.pp_layers=1,2", "run.balance=3,1"]),
    row(&["run.canonical_shards", "mesh.pp"], "run.canonical_shards does not go with mesh.pp above 1", &["run.canonical_shards=4", "mesh.pp=2"]),
    row(&["run.canonical_shards", "data_types.grad_accum_dtype"], "run.canonical_shards sums gradients in float32: data_types.grad_accum_dtype stays fp32",
        &["run.canonical_shards=4", "bf16.enabled=true", "data_types.grad_accum_dtype=bf16"]),
    row(&["run.canonical_shards", "zero_optimization.zero_quantized_weights"],
        "run.canonical_shards does not go with zero_optimization.zero_quantized_weights",
        &["run.canonical_shards=4", "bf16.enabled=true", "zero_optimization.stage=3", "zero_optimization.zero_quantized_weights=true"]),
    row(&["zero_optimization.reduce_gradients", "zero_optimization.stage"], "zero_optimization.reduce_gradients \"micro_batch\" needs stage 2 or 3, or offload_optimizer at stage 1",
        &["zero_optimization.stage=1", "zero_optimization.reduce_gradients=micro_batch"]),
    row(&["zero_optimization.reduce_gradients", "run.canonical_shards"], "run.canonical_shards does not go with zero_optimization.reduce_gradients \"micro_batch\"",
        &["run.canonical_shards=4", "zero_optimization.stage=2", "zero_optimization.reduce_gradients=micro_batch"]),
    row(&["zero_optimization.zero_quantized_weights", "run.dtype", "bf16.enabled", "fp16.enabled"], "zero_quantized_weights needs bf16 or fp16",
        &["zero_optimization.stage=3", "zero_optimization.zero_quantized_weights=true"]),
    row(&["zero_optimization.offload_optimizer.device", "zero_optimization.offload_optimizer.nvme_path", OFFLOAD],
        "device nvme needs nvme_path", &["zero_optimization.stage=2", "zero_optimization.offload_optimizer.device=nvme"]),
    row(&["zero_optimization.offload_optimizer.ratio", "zero_optimization.offload_optimizer.delayed_update", OFFLOAD],
        "offload_optimizer.delayed_update needs ratio 1",
        &["zero_optimization.stage=2", "zero_optimization.offload_optimizer.device=cpu", "zero_optimization.offload_optimizer.ratio=0.5", "zero_optimization.offload_optimizer.delayed_update=true"]),
    row(&["zero_optimization.offload_optimizer.delayed_update", PARAM, OFFLOAD], "offload_optimizer.delayed_update does not go with offload_param or nvme",
        &["zero_optimization.stage=3", "zero_optimization.offload_optimizer.device=cpu", "zero_optimization.offload_optimizer.delayed_update=true", "zero_optimization.offload_param.device=cpu"]),
    row(&["zero_optimization.offload_optimizer.ratio", PARAM, OFFLOAD], "offload_optimizer.ratio stays 1 beside offload_param",
        &["zero_optimization.stage=3", "zero_optimization.offload_optimizer.device=cpu", "zero_optimization.offload_optimizer.ratio=0.5", "zero_optimization.offload_param.device=cpu"]),
    row(&[PARAM, "zero_optimization.offload_param.device", "zero_optimization.stage"], "offload_param has an effect at zero_optimization.stage 3 only",
        &["zero_optimization.stage=2", "zero_optimization.offload_param.device=cpu"]),
    row(&[PARAM, "zero_optimization.offload_param.device", OFFLOAD, "zero_optimization.offload_optimizer.device"],
        "offload_param goes with offload_optimizer on the same device; alone it takes that along",
        &["zero_optimization.stage=3", "zero_optimization.offload_param.device=cpu"]),
    row(&[PARAM, "zero_optimization.zero_hpz_partition_size"], "offload_param needs zero_hpz_partition_size 1",
        &["zero_optimization.stage=3", "zero_optimization.offload_param.device=cpu", "zero_optimization.offload_optimizer.device=cpu", "zero_optimization.zero_hpz_partition_size=2"]),
    row(&["zero_optimization.sub_group_size", OFFLOAD], "sub_group_size has an effect with offload_optimizer only",
        &["zero_optimization.stage=1", "zero_optimization.sub_group_size=1000"]),
    row(&["activation_checkpointing.cpu_checkpointing", "model.recompute"], "activation_checkpointing.cpu_checkpointing needs model.recompute full",
        &["activation_checkpointing.cpu_checkpointing=true", "model.recompute=none"]),
    row(&["optimizer.params.relative_step", "optimizer.params.lr"], "Adafactor takes lr or relative_step",
        &[r#"optimizer={"type": "Adafactor", "params": {"lr": 0.1, "relative_step": true}}"#]),
    row(&["optimizer.params.relative_step", "scheduler", "scheduler.type"], "Adafactor's relative_step goes without a scheduler",
        &[r#"optimizer={"type": "Adafactor", "params": {"relative_step": true}}"#, r#"scheduler={"type": "constant", "params": {}}"#]),
    row(&["optimizer.params.nesterov", "optimizer.params.momentum", "optimizer.params.dampening"], "SGD's nesterov needs a momentum and no dampening",
        &[r#"optimizer={"type": "SGD", "params": {"lr": 0.1, "nesterov": true, "momentum": 0.0}}"#]),
    row(&["scheduler.params.total_steps", "scheduler.params.warmup_steps"], "a schedule that ends does so behind its warm-up",
        &[r#"scheduler={"type": "linear", "params": {"warmup_steps": 50, "total_steps": 10}}"#]),
];

/// Returns the rules that hold for a key.
pub fn of(path: &str) -> impl Iterator<Item = &'static str> {
    let path = path.to_string();
    let hit = move |c: &&Conflict| c.keys.iter().any(|k| *k == path);
    CONFLICTS.iter().filter(hit).map(|c| c.rule)
}
