//! The axes of layouts: everything about a job that may be chosen, as a table of choices with the keys that they set, and what choices ask of
//! each other. A further axis is a row here, and what it does not go with a row of [`RULES`].

use super::config::tied;
use super::draw::Layout;

/// What changes with an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// What is trained: one rank alone has it too.
    Job,
    /// Where sums are rounded, and nothing else.
    Mesh,
    /// No bit.
    Way,
}

/// Something about a job that may be chosen.
pub struct Axis {
    pub name: &'static str,
    pub of: Of,
    /// The first is what a layout has that says nothing of this axis.
    pub choices: &'static [Choice],
}

/// A name, what it asks of other axes, and the keys that it sets, in which DIR stands for the folder of files; keys that depend on other axes are set
/// where a config is made.
pub struct Choice {
    pub name: &'static str,
    pub needs: Needs,
    pub sets: Sets,
}

/// Axes, and of each the choices that will do.
type Needs = &'static [(&'static str, &'static [&'static str])];
/// Keys with their values.
type Sets = &'static [(&'static str, &'static str)];

const fn c(name: &'static str, sets: Sets) -> Choice {
    Choice {
        name,
        needs: &[],
        sets,
    }
}

const fn with(needs: Needs, name: &'static str, sets: Sets) -> Choice {
    Choice { name, needs, sets }
}

const fn axis(name: &'static str, of: Of, choices: &'static [Choice]) -> Axis {
    Axis { name, of, choices }
}

const SEVERAL: &[&str] = &["2", "3", "4"];
const STAGES: Needs = &[("pp", SEVERAL)];
const CUT_LAYERS: Needs = &[("tp", SEVERAL)];
const CUT_ROWS: Needs = &[("cp", SEVERAL)];
const THREE: Needs = &[("zero", &["3"])];
const FULL: Needs = &[("recompute", &["full"])];
const HALVES: &[&str] = &["bf16", "fp16"];
/// Families whose rows hold one text that a decoder goes on with.
const DECODERS: &[&str] = &[
    "gpt2",
    "llama",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "gpt_neox",
    "bloom",
    "olmo2",
    "opt",
    "phi3",
    "cohere",
    "starcoder2",
];
const TEXT: Needs = &[("family", DECODERS)];
/// Those whose MLPs experts stand in for.
const ROUTED: Needs = &[("family", &["llama", "qwen3", "gpt2"])];
/// Layouts whose experts ranks can have some each of.
const SOME_EXPERTS: Needs = &[("experts", &["4", "by layers"])];

/// All of them.
#[rustfmt::skip]
pub const AXES: &[Axis] = &[
    axis("family", Of::Job, &[
        c("gpt2", &[]), c("llama", &[]), c("qwen3", &[]), c("gemma2", &[]), c("gemma3_text", &[]), c("gpt_neox", &[]), c("bloom", &[]),
        c("olmo2", &[]), c("opt", &[]), c("phi3", &[]), c("cohere", &[]), c("starcoder2", &[]), c("bert", &[]), c("t5", &[]),
    ]),
    // Query heads, their width, and the inner width.
    axis("heads", Of::Job, &[c("4 of 8, 48", &[]), c("2 of 8, 34", &[]), c("6 of 4, 36", &[]), c("3 of 8, 45", &[])]),
    axis("kv", Of::Job, &[c("same", &[]), with(&[("family", KV)], "one", &[]), with(&[("family", KV)], "half", &[])]),
    axis("layers", Of::Job, &[c("2", &[]), c("1", &[]), c("3", &[]), c("4", &[])]),
    axis("vocabulary", Of::Job, &[c("own", &[]), c("263", &[]), c("300", &[])]),
    axis("tied", Of::Job, &[c("as it is", &[]), with(&[("family", TIES)], "tied", &[]), with(&[("family", TIES)], "untied", &[])]),
    axis("window", Of::Job, &[c("none", &[]), with(&[("family", &["gemma2", "gemma3_text", "starcoder2"])], "5", &[])]),
    axis("dropout", Of::Job, &[c("none", &[]), c("hidden", &[]), c("attention", &[])]),
    axis("experts", Of::Job, &[
        c("none", &[]),
        with(ROUTED, "4", &[("model.moe", r#"{"experts": 4, "top_k": 2, "width": 16}"#)]),
        with(ROUTED, "by layers", &[("model.moe", r#"{"experts": "L", "top_k": 1, "width": 16, "residual": true, "z_loss_coef": 0.01}"#)]),
    ]),
    // Of whole rows, since a micro-batch's room depends on the layout.
    axis("capacity", Of::Job, &[
        c("none", &[]),
        with(SOME_EXPERTS, "by probability", &[("model.moe.capacity_factor", "0.75"), ("model.moe.renormalize", "true")]),
        with(SOME_EXPERTS, "by position", &[("model.moe.capacity_factor", "1.0"), ("model.moe.min_capacity", "3"), ("model.moe.priority", "\"position\"")]),
    ]),
    axis("adapters", Of::Job, &[
        c("none", &[]),
        with(TEXT, "chosen", &[("model.lora", r#"{"r": 3, "alpha": 6}"#)]),
        with(TEXT, "all", &[("model.lora", r#"{"r": 2, "dropout": 0.1, "target_modules": "all-linear"}"#)]),
    ]),
    axis("rows", Of::Job, &[
        c("text", &[("data.train", "\"DIR/corpus/*.txt\"")]),
        with(TEXT, "documents", &[("data.train", "\"DIR/documents.jsonl\""), ("data.reset_attention_mask", "true"), ("data.reset_position_ids", "true")]),
        with(TEXT, "labels", &[("data.train", "\"DIR/examples.jsonl\""), ("data.format", "\"prompt_completion\"")]),
        with(TEXT, "packed", &[("data.train", "\"DIR/examples.jsonl\""), ("data.format", "\"prompt_completion\""), ("data.pack", "true")]),
    ]),
    axis("tokens", Of::Job, &[c("24", &[]), c("16", &[]), c("23", &[]), c("12", &[])]),
    axis("validation", Of::Job, &[
        c("none", &[]),
        c("all", &[("data.validation_fraction", "0.2"), ("run.validate_every", "2"), ("run.validate_sequences", "13")]),
        c("five", &[("data.validation_fraction", "0.2"), ("run.validate_every", "4"), ("run.validate_sequences", "5")]),
    ]),
    axis("types", Of::Job, &[c("f32", &[]), c("bf16", &[("bf16.enabled", "true")]), c("fp16", &[("fp16.enabled", "true"), ("fp16.initial_scale_power", "10")])]),
    axis("optimizer", Of::Job, &[
        c("SGD", &[("optimizer", r#"{"type": "SGD", "params": {"lr": 0.1}}"#)]),
        c("momentum", &[("optimizer", r#"{"type": "SGD", "params": {"lr": 0.05, "momentum": 0.9, "nesterov": true, "weight_decay": 0.1}}"#)]),
        c("AdamW", &[("optimizer", r#"{"type": "AdamW", "params": {"lr": 3e-3, "eps": 1e-3, "weight_decay": 0.1}}"#)]),
        c("Lion", &[("optimizer", r#"{"type": "Lion", "params": {"lr": 1e-4}}"#)]),
        c("LAMB", &[("optimizer", r#"{"type": "Lamb", "params": {"lr": 3e-3, "eps": 1e-3}}"#)]),
        c("Adafactor", &[("optimizer", r#"{"type": "Adafactor", "params": {"lr": 3e-3, "relative_step": false, "eps": [1e-6, 1e-3]}}"#)]),
        c("Muon", &[("optimizer", r#"{"type": "Muon", "params": {"lr": 3e-3, "adam_lr": 1e-3, "eps": 1e-3}}"#)]),
        c("8 bits", &[("optimizer", r#"{"type": "AdamW8bit", "params": {"lr": 3e-3, "eps": 1e-3}}"#)]),
    ]),
    axis("groups", Of::Job, &[
        c("none", &[]),
        c("frozen", &[("optimizer.param_groups", r#"[{"match": ["*.0.*"], "frozen": true}]"#)]),
        c("scaled", &[("optimizer.param_groups", r#"[{"match": ["*.0.*"], "lr_scale": 0.5, "weight_decay": 0.0}]"#)]),
    ]),
    axis("clipping", Of::Job, &[c("off", &[]), c("0.5", &[("gradient_clipping", "0.5")])]),
    axis("average", Of::Job, &[c("none", &[]), c("0.9", &[("run.ema_decay", "0.9")])]),
    axis("shards", Of::Job, &[c("off", &[]), c("4", &[("run.canonical_shards", "4")]), c("6", &[("run.canonical_shards", "6")])]),

    axis("micro", Of::Mesh, &[c("3", &[]), c("2", &[]), c("1", &[]), c("4", &[])]),
    axis("dp", Of::Mesh, &[c("1", &[]), c("2", &[]), c("3", &[]), c("4", &[])]),
    axis("tp", Of::Mesh, &[c("1", &[]), c("2", &[("mesh.tp", "2")]), c("3", &[("mesh.tp", "3")]), c("4", &[("mesh.tp", "4")])]),
    axis("sp", Of::Mesh, &[
        c("auto", &[]), with(CUT_LAYERS, "on", &[("mesh.sequence_parallel", "true")]), with(CUT_LAYERS, "off", &[("mesh.sequence_parallel", "false")]),
    ]),
    axis("ep", Of::Mesh, &[c("1", &[]), with(SOME_EXPERTS, "2", &[("mesh.ep", "2")]), with(SOME_EXPERTS, "4", &[("mesh.ep", "4")]), with(SOME_EXPERTS, "3", &[("mesh.ep", "3")])]),
    axis("etp", Of::Mesh, &[c("tp", &[]), with(CUT_LAYERS, "1", &[("mesh.etp", "1")])]),
    axis("cp", Of::Mesh, &[c("1", &[]), c("2", &[("mesh.cp", "2")]), c("3", &[("mesh.cp", "3")]), c("4", &[("mesh.cp", "4")])]),
    axis("meeting", Of::Mesh, &[
        c("all_gather", &[]), with(CUT_ROWS, "a2a", &[("mesh.cp_comm", "\"a2a\"")]), with(CUT_ROWS, "p2p", &[("mesh.cp_comm", "\"p2p\"")]),
        with(&[("cp", &["4"])], "a2a+p2p", &[("mesh.cp_comm", "\"a2a+p2p\""), ("mesh.cp_inner", "2")]),
    ]),
    axis("pieces", Of::Mesh, &[
        c("auto", &[]), with(CUT_ROWS, "zigzag", &[("mesh.cp_layout", "\"zigzag\"")]), with(CUT_ROWS, "contiguous", &[("mesh.cp_layout", "\"contiguous\"")]),
    ]),
    axis("pp", Of::Mesh, &[c("1", &[]), c("2", &[("mesh.pp", "2")]), c("3", &[("mesh.pp", "3")]), c("4", &[("mesh.pp", "4")])]),
    axis("schedule", Of::Way, &[
        c("1f1b", &[]), with(STAGES, "gpipe", &[("mesh.pp_schedule", "\"gpipe\"")]), with(STAGES, "interleaved", &[("mesh.pp_schedule", "\"interleaved\"")]),
        with(&[("pp", &["2"]), ("layers", &["4"])], "3 runs", &[("mesh.pp_schedule", "\"interleaved\""), ("mesh.pp_chunks", "3")]), with(STAGES, "zb-h1", &[("mesh.pp_schedule", "\"zb-h1\"")]),
        with(STAGES, "zbv", &[("mesh.pp_schedule", "\"zbv\"")]), with(STAGES, "dualpipev", &[("mesh.pp_schedule", "\"dualpipev\"")]),
    ]),
    axis("division", Of::Way, &[c("even", &[]), with(STAGES, "uneven", &[])]),
    axis("order", Of::Mesh, &[c("pp,dp,cp,tp", &[]), c("tp,cp,dp,pp", &[("mesh.order", "\"tp,cp,dp,pp\"")]), c("dp,pp,tp,cp", &[("mesh.order", "\"dp,pp,tp,cp\"")])]),
    axis("zero", Of::Way, &[
        c("0", &[]), c("1", &[("zero_optimization.stage", "1")]), c("2", &[("zero_optimization.stage", "2")]), c("3", &[("zero_optimization.stage", "3")]),
    ]),
    axis("hpz", Of::Way, &[c("off", &[]), with(THREE, "2", &[("zero_optimization.zero_hpz_partition_size", "2")])]),
    axis("reduced", Of::Mesh, &[
        c("auto", &[]), c("step", &[("zero_optimization.reduce_gradients", "\"step\"")]),
        with(&[("zero", &["2", "3"])], "micro_batch", &[("zero_optimization.reduce_gradients", "\"micro_batch\"")]),
    ]),
    axis("buckets", Of::Way, &[c("one", &[]), c("units", &[("zero_optimization.reduce_bucket_size", "1")]), c("some", &[("zero_optimization.reduce_bucket_size", "3000")])]),
    axis("overlap", Of::Way, &[c("on", &[]), c("off", &[("zero_optimization.overlap_comm", "false")])]),
    axis("gathers", Of::Way, &[
        c("ahead", &[]), with(THREE, "in turn", &[("zero_optimization.stage3_prefetch_bucket_size", "0")]),
        with(THREE, "persistent", &[("zero_optimization.stage3_param_persistence_threshold", "2500")]),
        with(THREE, "ends", &[("zero_optimization.stage3_persistent_blocks", "\"ends\"")]),
        with(THREE, "reused", &[("zero_optimization.stage3_max_reuse_distance", "5000")]),
        with(THREE, "kept", &[("zero_optimization.reshard_after_forward", "false")]),
        with(THREE, "few", &[("zero_optimization.stage3_max_live_parameters", "3000")]),
    ]),
    axis("offload", Of::Way, &[
        c("none", &[]),
        c("host", &[("zero_optimization.offload_optimizer", r#"{"device": "cpu"}"#)]),
        c("files", &[("zero_optimization.offload_optimizer", r#"{"device": "nvme", "nvme_path": "DIR/swap"}"#)]),
        c("part", &[("zero_optimization.offload_optimizer", r#"{"device": "cpu", "ratio": 0.4}"#), ("zero_optimization.sub_group_size", "100")]),
        with(THREE, "parameters", &[("zero_optimization.offload_optimizer", r#"{"device": "cpu"}"#), ("zero_optimization.offload_param", r#"{"device": "cpu"}"#)]),
        with(THREE, "all files", &[("zero_optimization.offload_optimizer", r#"{"device": "nvme", "nvme_path": "DIR/swap"}"#), ("zero_optimization.offload_param", r#"{"device": "nvme", "nvme_path": "DIR/swap"}"#)]),
    ]),
    axis("recompute", Of::Way, &[c("none", &[]), c("full", &[("model.recompute", "\"full\"")]), c("selective", &[("model.recompute", "\"selective\"")])]),
    axis("inputs", Of::Way, &[
        c("kept", &[]), with(FULL, "host", &[("activation_checkpointing.cpu_checkpointing", "true")]),
        with(&[("recompute", &["full"]), ("tp", SEVERAL), ("sp", &["off"])], "parts", &[("activation_checkpointing.partition_activations", "true")]),
    ]),
    axis("divided", Of::Mesh, &[c("before", &[]), c("partly before", &[("gradient_predivide_factor", "4.0")])]),
    axis("wire", Of::Mesh, &[c("own", &[]), c("16 bits", &[("communication_data_type", "\"fp16\"")]), with(&[("types", HALVES)], "32 bits", &[("communication_data_type", "\"fp32\"")])]),
    axis("sums", Of::Mesh, &[c("32 bits", &[]), with(&[("types", &["bf16"])], "16 bits", &[("data_types.grad_accum_dtype", "\"bf16\"")])]),
    axis("quantized", Of::Mesh, &[c("no", &[]), with(&[("zero", &["3"]), ("types", HALVES)], "weights", &[("zero_optimization.zero_quantized_weights", "true")])]),
    axis("checked", Of::Way, &[c("calls", &[]), c("values", &[("run.check", "\"values\"")])]),
    axis("resume", Of::Way, &[c("none", &[]), c("on another mesh", &[])]),
];

/// Families that have fewer key-value heads than query heads.
const KV: &[&str] = &[
    "llama",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "olmo2",
    "phi3",
    "cohere",
    "starcoder2",
];
/// Those whose configs say whether the head is the embedding.
const TIES: &[&str] = &[
    "gpt2",
    "llama",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "gpt_neox",
    "olmo2",
    "phi3",
    "starcoder2",
    "opt",
    "t5",
];

/// Choices that do not go together.
pub struct Rule {
    /// The key by which they are refused; empty: they mean nothing together, and are not drawn.
    pub key: &'static str,
    /// The axes that it is about.
    pub axes: &'static [&'static str],
    /// True of a layout that breaks it.
    pub broken: fn(&Layout) -> bool,
}

const fn rule(
    key: &'static str,
    axes: &'static [&'static str],
    broken: fn(&Layout) -> bool,
) -> Rule {
    Rule { key, axes, broken }
}

/// All of them, of which a refusal names the first that is broken.
#[rustfmt::skip]
pub const RULES: &[Rule] = &[
    // Eight ranks are enough.
    rule("", &["dp", "tp", "cp", "pp"], |l| l.ranks() > 8),
    rule("train_batch_size", &["dp", "micro"], |l| !Layout::BATCH.is_multiple_of(l.replicas() * l.n("micro"))),
    rule("run.canonical_shards", &["shards", "dp"], |l| l.on("shards") && l.n("shards") < l.n("dp")),
    rule("run.canonical_shards", &["shards", "tp"], |l| l.on("shards") && l.on("tp")),
    rule("run.canonical_shards", &["shards", "cp"], |l| l.on("shards") && l.on("cp")),
    rule("run.canonical_shards", &["shards", "pp"], |l| l.on("shards") && l.on("pp")),
    rule("zero_optimization.zero_quantized_weights", &["shards", "quantized"], |l| l.on("shards") && l.on("quantized")),
    rule("data_types.grad_accum_dtype", &["shards", "sums"], |l| l.on("shards") && l.on("sums")),
    rule("zero_optimization.reduce_gradients", &["shards", "reduced"], |l| l.on("shards") && l.is("reduced", "micro_batch")),
    rule("run.canonical_shards", &["shards", "ep"], |l| l.on("shards") && l.on("ep")),
    rule("mesh.tp", &["heads", "tp"], |l| { let [heads, _, inner] = l.heads(); !heads.is_multiple_of(l.n("tp")) || l.has_mlps() && !inner.is_multiple_of(l.n("tp")) }),
    rule("mesh.tp", &["kv", "tp"], |l| { let (kv, tp) = (l.kv(), l.n("tp")); !kv.is_multiple_of(tp) && !tp.is_multiple_of(kv) }),
    rule("mesh.cp", &["family", "cp"], |l| l.is("family", "t5") && l.on("cp")),
    rule("mesh.sequence_parallel", &["family", "sp"], |l| l.is("family", "t5") && l.is("sp", "on")),
    rule("mesh.cp_layout", &["family", "pieces"], |l| l.is("family", "bert") && l.is("pieces", "zigzag")),
    rule("mesh.cp_comm", &["heads", "meeting"], |l| !(l.heads()[0] / l.n("tp")).is_multiple_of(l.exchange())),
    rule("mesh.cp", &["tokens", "cp"], |l| !l.n("tokens").is_multiple_of(l.pieces())),
    rule("mesh.sequence_parallel", &["tokens", "sp"], |l| l.is("sp", "on") && !(l.n("tokens") / l.n("cp")).is_multiple_of(l.n("tp"))),
    rule("mesh.ep", &["experts", "ep"], |l| l.on("ep") && !l.experts().is_multiple_of(l.n("ep"))),
    rule("mesh.ep", &["ep", "etp"], |l| !l.stage().is_multiple_of(l.n("ep") * l.etp())),
    // Experts are 16 wide.
    rule("mesh.etp", &["experts", "etp"], |l| l.on("experts") && !16u64.is_multiple_of(l.etp())),
    rule("mesh.sequence_parallel", &["experts", "sp"], |l| l.on("experts") && l.on("tp") && (l.is("sp", "off") || !(l.n("tokens") / l.n("cp")).is_multiple_of(l.n("tp")))),
    rule("optimizer.param_groups", &["optimizer", "etp"], |l| l.on("experts") && l.is("optimizer", "Muon") && l.etp() > 1),
    rule("mesh.pp", &["layers", "pp"], |l| l.on("pp") && l.n("pp") > l.units()),
    rule("mesh.pp_schedule", &["layers", "schedule"], |l| ["zbv", "dualpipev"].contains(&l.pick("schedule")) && l.n("pp") * l.runs() > l.units()),
    rule("mesh.pp_chunks", &["layers", "schedule"], |l| l.on("pp") && l.n("pp") * l.runs() > l.units()),
    rule("gradient_accumulation_steps", &["micro", "schedule"], |l| l.is("schedule", "interleaved") && !l.micro_batches().is_multiple_of(l.n("pp"))),
    rule("gradient_accumulation_steps", &["micro", "schedule"], |l| l.is("schedule", "3 runs") && !l.micro_batches().is_multiple_of(l.n("pp"))),
    rule("gradient_accumulation_steps", &["micro", "schedule"], |l| l.is("schedule", "dualpipev") && l.micro_batches() < 2 * l.n("pp")),
    rule("zero_optimization.zero_hpz_partition_size", &["dp", "hpz"], |l| l.on("hpz") && !(l.n("dp") * l.n("cp")).is_multiple_of(2)),
    // The first stage has the embedding and the head.
    rule("zero_optimization.reduce_gradients", &["schedule", "reduced"], |l| l.is("reduced", "micro_batch") && ["zbv", "dualpipev"].contains(&l.pick("schedule")) && tied(l)),
    rule("zero_optimization.offload_param", &["hpz", "offload"], |l| l.on("hpz") && ["parameters", "all files"].contains(&l.pick("offload"))),
    rule("optimizer.param_groups", &["adapters", "groups"], |l| l.on("adapters") && l.is("groups", "frozen") && l.n("layers") == 1),
    // Its sentinels lie behind the tokenizer's ids.
    rule("data.sentinel_id", &["family", "vocabulary"], |l| l.is("family", "t5") && l.on("vocabulary")),
    rule("optimizer.type", &["optimizer", "offload"], |l| l.on("offload") && ["LAMB", "Adafactor", "Muon", "8 bits"].contains(&l.pick("optimizer"))),
    rule("activation_checkpointing.cpu_checkpointing", &["recompute", "inputs"], |l| l.is("recompute", "selective") && l.is("inputs", "host")),
];
