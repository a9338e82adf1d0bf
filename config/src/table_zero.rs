//! DeepSpeed's `zero_optimization`, precision and activation-checkpointing sections, key by key.

use crate::schema::*;

/// DeepSpeed's default of `leaf_module`.
const LEAF_MODULES: &str = r#"{"classes": ["transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock",
    "transformers.models.qwen2_moe.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock",
    "transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock"], "names": [], "name_suffixes": []}"#;

/// The reason for which memory is page-locked whatever a key says.
const PINNED: &str =
    "what a device copies from and to is always page-locked, or no copy would run beside it";

/// The reason for which transfers run beside the update whatever a key says.
const AHEAD: &str =
    "reads always run ahead of the update and writes behind it, as far as buffer_count allows";

const OFFLOAD_PARAM: Table = Table {
    doc: "where parameter shards rest between uses",
    overlay: None,
    fields: &[
        word(
            "device",
            &["none", "cpu", "host", "nvme"],
            "\"none\"",
            "device that holds the shards",
        )
        .deepspeed(),
        text("nvme_path", "", "folder on the NVMe disk").example("\"/mnt/nvme\"").deepspeed(),
        ignored(
            "buffer_count",
            "parameters rest beside the optimizer states and travel through the same pool: offload_optimizer.buffer_count",
        ).off("5"),
        ignored(
            "buffer_size",
            "a buffer of the pool holds the largest unit with its states, whatever that takes",
        ).off("100000000"),
        ignored(
            "max_in_cpu",
            "what rests on nvme rests there whole; host memory holds the pool of offload_optimizer.buffer_count buffers",
        ).off("1000000000"),
        flag("pin_memory", "true", "page-locked staging; always so here").moot(PINNED).names(&[Name::Elsewhere("zero_optimization.cpu_offload_use_pin_memory")]).deepspeed(),
    ],
};

const OFFLOAD_OPTIMIZER: Table = Table {
    doc: "where optimizer states rest, and where the update runs",
    overlay: None,
    fields: &[
        word(
            "device",
            &["none", "cpu", "host", "nvme"],
            "\"none\"",
            "device that holds the states",
        )
        .deepspeed(),
        text("nvme_path", "", "folder on the NVMe disk").example("\"/mnt/nvme\"").deepspeed(),
        int(
            "buffer_count",
            1,
            "4",
            "buffers of the pool between nvme and memory, each of one unit: they bound what host memory holds and how far ahead states are read",
        ).read(Read::Disk)
        .deepspeed(),
        flag(
            "pin_memory",
            "false",
            "page-lock all host memory of the optimizer; false: only what the device copies (gradients on their way, parameters that go back)",
        ).names(&[Name::Elsewhere("zero_optimization.cpu_offload_use_pin_memory")])
        .deepspeed(),
        flag(
            "pipeline",
            "true",
            "overlap reads and writes with the update; always so here",
        ).moot(AHEAD)
        .deepspeed(),
        flag(
            "pipeline_read",
            "true",
            "overlap reads with the update; always so here",
        ).moot(AHEAD)
        .deepspeed(),
        flag(
            "pipeline_write",
            "true",
            "overlap writes with the update; always so here",
        ).moot(AHEAD)
        .deepspeed(),
        ignored(
            "fast_init",
            "states are zero where they rest from the start; there is no first write to save",
        ),
        fraction("ratio", "1.0", "fraction of the states that is offloaded").deepspeed(),
        refused(
            "super_offload",
            "SuperOffload is not available; offload_optimizer overlaps the host's update with the backward",
        ),
        ignored(
            "cpuadam_cores_perc",
            "the host's update runs on the threads of its rank: run.threads_per_rank",
        ).off("0.8"),
        flag(
            "delayed_update",
            "false",
            "update on the host beside the next step, whose gradients are then one update old",
        ),
    ],
};

/// `zero_optimization`.
pub const ZERO: Table = Table {
    doc: "sharding of optimizer states, gradients and parameters over data-parallel ranks (stage 0: none)",
    overlay: None,
    fields: &[
        Field {
            kind: Kind::Int { min: 0, max: 3 },
            ..int(
                "stage",
                0,
                "0",
                "0 replicas, 1 optimizer states, 2 + gradients, 3 + parameters",
            ).words(&["zero_stage", "fsdp", "sharding_strategy"])
            .deepspeed()
        },
        flag(
            "contiguous_gradients",
            "true",
            "gradients of a unit lie in one buffer; always so here",
        ).moot("gradients of a unit always lie in one buffer")
        .deepspeed(),
        flag(
            "reduce_scatter",
            "true",
            "reduce-scatter gradients to their owners",
        ).moot("from stage 1 on gradients are always reduce-scattered to their owners, which moves half of what an all-reduce does")
        .deepspeed(),
        int(
            "reduce_bucket_size",
            1,
            "500000000",
            "elements reduced at once",
        ).by_width(|h| h.saturating_mul(h))
        .deepspeed(),
        word(
            "reduce_gradients",
            &["auto", "micro_batch", "step"],
            "\"auto\"",
            "when the gradients of several micro-batches are reduced: micro_batch = each by itself, into the slice of the rank (stages 2 and 3: \
             memory of slices, traffic of as many reductions) or, beside offload_optimizer, on its way to the host, which adds them up (stage 1 and \
             one rank too); step = once, behind the last (memory of whole gradients); auto = micro_batch where it can be, step with pipeline stages \
             or run.canonical_shards",
        ),
        flag(
            "allgather_partitions",
            "true",
            "gather parameters with one all-gather",
        ).moot("parameters are always gathered with one all-gather of a unit, not with a broadcast from each rank")
        .deepspeed(),
        int(
            "allgather_bucket_size",
            0,
            "500000000",
            "elements gathered at once",
        ).moot("parameters are gathered unit by unit (a block of the model), whatever their size").names(&[Name::Deprecated("allgather_size")])
        .deepspeed(),
        flag(
            "overlap_comm",
            "",
            "reduce while the backward pass goes on; default true (run.overlap)",
        )
        .deepspeed()
        .auto(),
        optional_section("offload_param", &OFFLOAD_PARAM).names(&[Name::Switch("cpu_offload_params"), Name::Switch("cpu_offload_param")]).deepspeed(),
        optional_section("offload_optimizer", &OFFLOAD_OPTIMIZER).names(&[Name::Switch("cpu_offload")]).words(&["cpu_offload", "offload"]).deepspeed(),
        int(
            "sub_group_size",
            0,
            "1000000000",
            "elements the host updates at once when offloading; 0: a whole unit",
        )
        .deepspeed(),
        int(
            "stage3_prefetch_bucket_size",
            0,
            "50000000",
            "elements gathered ahead of use, at least a block; 0: nothing is gathered ahead",
        ).by_width(|h| (0.9 * h.saturating_mul(h) as f64) as u64).names(&[Name::Also("prefetch_bucket_size")])
        .deepspeed(),
        int(
            "stage3_param_persistence_threshold",
            0,
            "0",
            "blocks of fewer parameters stay gathered for the whole step",
        ).by_width(|h| h.saturating_mul(10)).names(&[Name::Also("param_persistence_threshold")])
        .deepspeed(),
        word(
            "stage3_persistent_blocks",
            &["by_size", "ends"],
            "\"by_size\"",
            "which blocks stay gathered for the whole step; by_size: those below stage3_param_persistence_threshold; ends: those, and the first and the last layer",
        ),
        Field {
            kind: Kind::Int {
                min: 0,
                max: u64::MAX,
            },
            ..int(
                "stage3_model_persistence_threshold",
                0,
                "",
                "upper bound of all persistent parameters",
            ).names(&[Name::Also("model_persistence_threshold")])
            .deepspeed()
            .auto()
        },
        int(
            "stage3_max_live_parameters",
            0,
            "1000000000",
            "gathered elements alive at once from which nothing is gathered ahead",
        ).names(&[Name::Also("max_live_parameters")])
        .deepspeed(),
        int(
            "stage3_max_reuse_distance",
            0,
            "0",
            "keep a block gathered that is used again within so many elements; 0: gather it for each forward and each backward",
        ).names(&[Name::Also("max_reuse_distance")])
        .deepspeed(),
        flag(
            "reshard_after_forward",
            "true",
            "FSDP's spelling, at stage 3: release a block after its forward and gather it again for its backward; \
             false: it stays gathered from the one to the other, for the traffic of stage 2 and the memory of all blocks",
        ),
        flag(
            "stage3_gather_16bit_weights_on_model_save",
            "false",
            "the exported model has 16-bit weights, as model.save_dtype",
        ).names(&[Name::Also("gather_16bit_weights_on_model_save"), Name::Deprecated("stage3_gather_fp16_weights_on_model_save"), Name::Deprecated("gather_fp16_weights_on_model_save")])
        .deepspeed(),
        flag(
            "round_robin_gradients",
            "false",
            "spread gradient ownership over ranks",
        ).moot("each unit's gradient is divided evenly over the ranks, so no rank owns more than another")
        .deepspeed(),
        int(
            "zero_hpz_partition_size",
            0,
            "1",
            "ranks of a secondary parameter shard; 0 or 1: there is none",
        )
        .deepspeed(),
        flag(
            "zero_quantized_weights",
            "false",
            "all-gather of 16-bit weights as 8-bit floats (E4M3)",
        )
        .deepspeed(),
        flag(
            "zero_quantized_gradients",
            "false",
            "int4 all-to-all reduction of gradients",
        )
        .deepspeed(),
        ignored(
            "use_multi_rank_bucket_allreduce",
            "stage 1 and 2 always reduce-scatter here, at 1.0x of plain data parallelism",
        ).off("true"),
        ignored(
            "load_from_fp32_weights",
            "master weights are stored in every checkpoint",
        ).off("true"),
        ignored(
            "elastic_checkpoint",
            "every checkpoint can be loaded on any number of ranks",
        ),
        ignored(
            "ignore_unused_parameters",
            "gradients of unused parameters are zero here",
        ).off("true"),
        ignored(
            "stage3_use_all_reduce_for_fetch_params",
            "parameters are always gathered with an all-gather",
        ).names(&[Name::Also("use_all_reduce_for_fetch_params")]),
        ignored(
            "stage3_module_granularity_threshold",
            "the unit of gather is the model's block",
        ).names(&[Name::Also("module_granularity_threshold")]).off("0"),
        ignored(
            "memory_efficient_linear",
            "blocks keep no second copy of weights here",
        ).off("true"),
        ignored(
            "pipeline_loading_checkpoint",
            "checkpoints are read through a file map",
        ),
        ignored("override_module_apply", "there are no modules to override").off("true"),
        ignored(
            "log_trace_cache_warnings",
            "the order of units is planned, not traced",
        ),
        ignored("enable_sanity_checks", "the plan is always checked"),
        refused(
            "zero_quantized_nontrainable_weights",
            "quantised frozen weights are not available",
        ),
        refused(
            "mics_shard_size",
            "MiCS was removed from DeepSpeed itself; use zero_hpz_partition_size",
        ).off("-1"),
        refused(
            "mics_hierarchical_params_gather",
            "MiCS was removed from DeepSpeed itself",
        ),
        refused("legacy_stage1", "there is one implementation of stage 1"),
        refused(
            "zeropp_loco_param",
            "LoCo was removed from DeepSpeed itself",
        ).off("null"),
        refused(
            "zenflow",
            "ZenFlow is not available; offload_optimizer overlaps the host's update with the backward",
        ).off("null"),
        ignored("leaf_module", "the unit of gather is the model's block").off(LEAF_MODULES),
        ignored(
            "compute_grad_norm",
            "the gradient norm is computed in every step: it is printed, and finds what is not finite",
        ).off("true"),
        ignored(
            "parameter_alignment",
            "where parameters begin in a unit is planned for the device's kernels",
        ),
        ignored(
            "stage3_allgather_sequential",
            "parameters are gathered unit by unit (a block of the model), each with one all-gather",
        ).names(&[Name::Also("allgather_sequential")]),
        ignored(
            "save_muon_momentum_buffer_in_memory",
            "the momentum rests where all states of offload_optimizer rest",
        ),
    ],
};

/// `bf16`.
pub const BF16: Table = Table {
    doc: "compute in bfloat16 with float32 master weights",
    overlay: None,
    fields: &[
        flag("enabled", "false", "switch it on")
            .trainer("false")
            .deepspeed(),
        ignored(
            "immediate_grad_update",
            "gradients are always added to their float32 buffer at once",
        ),
        ignored(
            "check_grad_overflow",
            "the gradient norm is checked every step",
        )
        .off("true"),
        refused(
            "bf16_master_weights_and_grads",
            "master weights are float32",
        ),
        refused("bf16_optimizer_states", "optimizer states are float32"),
    ],
};

/// `fp16`.
pub const FP16: Table = Table {
    doc: "compute in float16 with float32 master weights and loss scaling",
    overlay: None,
    fields: &[
        flag("enabled", "false", "switch it on")
            .trainer("false")
            .deepspeed(),
        non_negative("loss_scale", "0.0", "fixed loss scale; 0 = dynamic").deepspeed(),
        Field {
            kind: Kind::Int { min: 0, max: 60 },
            ..int(
                "initial_scale_power",
                0,
                "16",
                "the dynamic scale starts at 2^this",
            )
            .read(Read::MovingScale)
            .deepspeed()
        },
        int(
            "loss_scale_window",
            1,
            "1000",
            "clean steps before the scale doubles",
        )
        .read(Read::MovingScale)
        .deepspeed(),
        int("hysteresis", 1, "2", "overflows before the scale halves")
            .read(Read::MovingScale)
            .deepspeed(),
        flag(
            "consecutive_hysteresis",
            "false",
            "a clean step refills the hysteresis",
        )
        .deepspeed(),
        positive(
            "min_loss_scale",
            "1.0",
            "floor of the scale; an overflow there stops the run",
        )
        .read(Read::MovingScale)
        .deepspeed(),
        ignored(
            "auto_cast",
            "inputs are token ids, there is nothing to cast",
        ),
        refused(
            "fp16_master_weights_and_grads",
            "master weights are float32",
        ),
    ],
};

/// `aio`.
pub const AIO: Table = Table {
    doc: "how offloaded state is read and written on the NVMe disk",
    overlay: None,
    fields: &[
        int(
            "block_size",
            4096,
            "1048576",
            "bytes of one request; a multiple of 4096",
        )
        .deepspeed(),
        int("queue_depth", 1, "8", "requests the system holds at once").deepspeed(),
        int(
            "intra_op_parallelism",
            1,
            "2",
            "threads, where io_uring is not available",
        )
        .deepspeed(),
        int("thread_count", 1, "", "older name of intra_op_parallelism").deepspeed(),
        flag("single_submit", "false", "one system call per request").deepspeed(),
        flag(
            "overlap_events",
            "true",
            "new requests go in while old ones run",
        )
        .deepspeed(),
        word(
            "engine",
            &["auto", "io_uring", "threads"],
            "\"auto\"",
            "what moves the bytes; auto: io_uring where the machine allows it",
        ),
        ignored("use_gds", "files pass through host memory"),
    ],
};

/// `activation_checkpointing`.
pub const ACTIVATION: Table = Table {
    doc: "how recomputed activations are kept; whether to recompute is model.recompute",
    overlay: None,
    fields: &[
        flag(
            "partition_activations",
            "false",
            "of the input of a recomputed unit each of the ranks that share layers (mesh.tp) keeps its part; without sequence parallelism, which cuts it by tokens",
        )
        .deepspeed(),
        flag(
            "cpu_checkpointing",
            "false",
            "keep saved inputs in host memory",
        )
        .deepspeed(),
        ignored(
            "contiguous_memory_optimization",
            "saved inputs always lie in one planned arena",
        ),
        ignored("number_checkpoints", "the plan knows their number").off("null"),
        ignored(
            "synchronize_checkpoint_boundary",
            "boundaries are ordered by events, not by waiting",
        ),
        ignored("profile", "step times are in DIR/metrics.jsonl"),
    ],
};
