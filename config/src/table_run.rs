//! The root table, and `mesh` and `run`.

use crate::faults::FAULT;
use crate::json::Json;
use crate::schema::*;
use crate::table_data::DATA;
use crate::table_distill::DISTILL;
use crate::table_model::MODEL;
use crate::table_optim::{OPTIMIZER, SCHEDULER};
use crate::table_zero::{ACTIVATION, AIO, BF16, FP16, ZERO};

/// A number of at least 1.
const FROM_ONE: Range = Range {
    min: 1.0,
    max: f64::INFINITY,
    min_in: true,
    max_in: false,
};

/// DeepSpeed's default of `compile`.
const COMPILE: &str = r#"{"autoep_non_moe": false, "debug_log": false, "deepcompile": false, "double_buffer": true, "free_activation": false,
    "free_activation_threshold": 10485760, "keep_all_input_tensors": false, "keep_int_input_tensors": true,
    "offload_activation": false, "offload_activation_pin_memory": true, "offload_opt_states": false,
    "offload_parameters": false, "passes": null, "symmetric_memory": false, "sync_after_allgather": false,
    "sync_after_reduce": false, "sync_before_allgather": false, "sync_before_reduce": false}"#;

/// On, off, or as the job allows.
const SEQUENCE_PARALLEL: Forms = Forms {
    doc: "sequence parallelism: norms, dropout, residuals and the hidden states between units are cut by tokens over the mesh.tp ranks, so that activations fall; \"auto\" = where these divide the tokens of a row, else off, which is said (docs/sequence.md)",
    forms: &[
        Form {
            name: "auto",
            kind: Kind::Word(&["auto"]),
        },
        Form {
            name: "switch",
            kind: Kind::Bool,
        },
    ],
    pick: |value| match value {
        Json::Text(word) if word.eq_ignore_ascii_case("auto") => Ok(0),
        Json::Bool(_) => Ok(1),
        other => Err((
            format!("wanted \"auto\", true or false, got {}", other.describe()),
            "write \"auto\", true or false".into(),
        )),
    },
};

const MESH: Table = Table {
    doc: "how the ranks are laid out: pp x dp x cp x tp is their number; experts are spread over the ranks of a stage (`crossweave mesh show` prints it)",
    overlay: None,
    fields: &[
        int(
            "dp",
            1,
            "",
            "data-parallel ranks; \"auto\" or absent = all ranks the other axes leave",
        ).free().words(&["num_gpus", "world_size", "data_parallel_size", "mesh.data"])
        .auto(),
        int("tp", 1, "1", "tensor-parallel ranks").free().names(&[Name::Elsewhere("tensor_parallel.autotp_size")]).words(&["tensor_parallel_size", "tensor_model_parallel_size", "tp_size", "mesh.tensor"]),
        forms("sequence_parallel", &SEQUENCE_PARALLEL, "\"auto\"").free(),
        int(
            "pp",
            1,
            "1",
            "pipeline stages: each rank runs a run of the model's units, and the ranks of a stage share its data",
        ).free().words(&["pipeline_parallel_size", "pipeline_model_parallel_size", "pp_size", "mesh.pipeline"]),
        word(
            "pp_schedule",
            &["1f1b", "gpipe", "interleaved", "zb-h1", "zbv", "dualpipev"],
            "\"1f1b\"",
            "how a stage's forwards and backwards follow each other over the micro-batches: interleaved gives a stage several runs of units (mesh.pp_chunks), zbv and dualpipev two; zb-h1, zbv and dualpipev make gradients of weights where a stage would be idle (docs/pipelines.md)",
        ).free(),
        int(
            "pp_chunks",
            1,
            "",
            "runs of units that each stage has where mesh.pp_schedule is interleaved; absent = 2",
        ).free().words(&["virtual_pipeline_model_parallel_size"]),
        text(
            "pp_layers",
            "\"even\"",
            "units of each stage, from the first to the last, e.g. \"3,4,3\" (embedding and head are a unit each), of each run where stages have several; even = as many as the others, or in proportion to run.balance",
        ).free(),
        int("cp", 1, "1", "context-parallel ranks: of each row each of them has a part of the tokens (docs/context.md)")
            .free()
            .names(&[Name::Elsewhere("sequence_parallel_size")])
            .words(&["context_parallel_size", "mesh.context"]),
        word(
            "cp_comm",
            &["all_gather", "a2a", "p2p", "a2a+p2p"],
            "\"all_gather\"",
            "how queries meet the keys of the other mesh.cp ranks: all_gather = keys and values are gathered, a2a = tokens are exchanged for heads before attention and back behind it (DeepSpeed-Ulysses), p2p = keys and values go around a ring of the ranks, a2a+p2p = a2a among mesh.cp_inner ranks and a ring of these",
        ).free().words(&["cp_comm_type", "context_parallel_comm"]),
        int(
            "cp_inner",
            1,
            "",
            "consecutive mesh.cp ranks that exchange tokens for heads, with cp_comm a2a+p2p",
        ).free().words(&["hierarchical_context_parallel_sizes"]),
        word(
            "cp_layout",
            &["auto", "zigzag", "contiguous"],
            "\"auto\"",
            "which tokens of a row a mesh.cp rank has: contiguous = one piece, zigzag = the r-th and the r-th last of two chunks a rank, so that a causal mask leaves all ranks as much work; auto = zigzag for causal models, contiguous for others and with a2a",
        ).free(),
        int(
            "ep",
            1,
            "1",
            "ranks over which the experts of a layer are spread, as many on each, which tokens go to and come back from (docs/moe.md): they are carved from the dp x cp x tp ranks of a stage, dp x cp x tp = edp x ep x etp, and add none",
        ).free().names(&[Name::Elsewhere("expert_parallel.autoep_size")]).words(&["expert_parallel_size", "mesh.expert"]),
        Field {
            kind: Kind::Float(FROM_ONE),
            ..positive(
                "ep_room",
                "2.0",
                "memory that is planned for the rows which come to the experts of a rank, over that of as many as come where all ranks get as many (docs/moe.md); a run takes what comes",
            )
        }
        .free()
        .words(&["moe_room", "room"]),
        int(
            "etp",
            1,
            "",
            "ranks over which each expert's weights are cut; absent = mesh.tp, so that an expert is cut as a dense weight is. 1 with mesh.tp above 1: each expert is whole on its rank, and ranks of mesh.tp have tokens of their own",
        ).free().names(&[Name::Elsewhere("expert_parallel.expert_tensor_parallel_size")]),
        text(
            "order",
            "\"pp,dp,cp,tp\"",
            "order of the axes, the one whose neighbours are furthest apart first: ranks are numbered along the last axis first, and launchers put consecutive ranks on one node",
        ).free(),
        texts(
            "elastic",
            "",
            "axes that fit themselves to the ranks that come, [\"dp\"] or none: where the ranks are not those of the mesh, dp is what the other axes leave, and the global batch stays (the accumulation is solved for it)",
        )
        .free()
        .example("[\"dp\"]"),
    ],
};

const GENERATE: Table = Table {
    doc: "the sample printed after training",
    overlay: None,
    fields: &[
        any_text(
            "prompt",
            "\"\"",
            "text to continue; empty = start of a document",
        )
        .example("\"fn main\""),
        int("tokens", 0, "64", "tokens to generate; 0 = no sample"),
        non_negative("temperature", "0.8", "0 = always the likeliest token"),
        int(
            "top_k",
            0,
            "40",
            "draw from the k likeliest tokens; 0 = from all",
        ),
        int("seed", 0, "", "seed of the draw; absent = run.seed").auto(),
    ],
};

const RUN: Table = Table {
    doc: "length, output and execution of the run",
    overlay: None,
    fields: &[
        int(
            "steps",
            1,
            "",
            "optimizer steps (needed for text, unless run.epochs is given; given batches: all of them)",
        ).free().words(&["max_steps", "train_iters", "num_steps", "total_steps", "steps"])
        .auto(),
        positive(
            "epochs",
            "",
            "in place of steps: passes over the training data, also a part of one, e.g. 0.5; of a mixture one pass is as many samples as all its sources hold together",
        ).free().words(&["num_train_epochs", "epochs", "n_epochs", "max_epochs", "num_epochs"])
        .auto(),
        int(
            "seed",
            0,
            "",
            "seed of initial weights, dropout and shuffles; absent = 1234",
        )
        .auto(),
        word(
            "dtype",
            &["f32", "bf16", "f16"],
            "",
            "compute type; absent = from bf16.enabled / fp16.enabled, else f32",
        ).free().words(&["precision", "mixed_precision", "torch_dtype"])
        .auto(),
        int(
            "validate_every",
            0,
            "0",
            "steps between validations; 0 = only at the end, if there is validation data",
        ).free().words(&["eval_steps", "eval_every", "eval_strategy", "evaluation_strategy", "eval_interval"]),
        int(
            "validate_sequences",
            1,
            "",
            "most sequences of one validation, the first of the set; absent = all of them, each once",
        ).free().words(&["max_eval_samples"])
        .auto(),
        int(
            "validate_batches",
            1,
            "",
            "the same in batches of train_batch_size sequences; which sequences these are then depends on the batch",
        ).free().words(&["max_eval_batches", "eval_iters"])
        .auto(),
        flag(
            "keep_best",
            "false",
            "keep the checkpoint of the lowest validation loss whatever its age (one is written whenever a validation is the best so far), and write the model from it at the end",
        ).free().words(&["load_best_model_at_end", "save_best"]),
        int(
            "stop_after",
            1,
            "",
            "validations in a row without a lower loss after which the run ends early; absent = it runs to its end",
        ).free().words(&["early_stopping_patience", "early_stopping", "patience"])
        .auto(),
        Field {
            kind: Kind::Float(Range {
                min: 0.0,
                max: 1.0,
                min_in: true,
                max_in: false,
            }),
            ..positive(
                "ema_decay",
                "",
                "keep an exponential moving average of the weights with this decay, e.g. 0.999: after each update it moves towards them by 1 - ema_decay; it is validated too, and written as model-ema; absent = none",
            )
        }
        .words(&["use_ema", "ema"])
        .auto(),
        text(
            "out",
            "",
            "output folder; absent = chosen by the command (--out)",
        ).free().example("\"runs/a\"").words(&["output_dir", "save_dir"]),
        int(
            "threads_per_rank",
            1,
            "",
            "host threads of a rank; absent = the cores divided by the ranks",
        ).free()
        .auto(),
        int(
            "log_every",
            1,
            "",
            "steps between lines of the log on a plain terminal; absent = steps_per_print",
        ).free().words(&["logging_steps", "log_interval"])
        .auto(),
        int(
            "checkpoint_every",
            0,
            "0",
            "steps between checkpoints; 0 = only the final model",
        ).free().words(&["save_steps", "save_every", "save_strategy", "save_interval", "checkpoint_interval", "checkpoint.every", "checkpoint.interval"]),
        int("keep_last", 1, "2", "checkpoints kept").free().words(&["save_total_limit", "checkpoint.keep"]),
        text(
            "backend",
            "\"cpu\"",
            "back end that computes (see `crossweave backends`)",
        ).free().per_process(),
        section("generate", &GENERATE).free(),
        flag("tensorboard", "false", "write TensorBoard event files too").free().words(&["report_to", "logging_dir"]),
        positive("bucket_mb", "25.0", "MiB of gradients reduced at once").free(),
        flag(
            "overlap",
            "true",
            "reduce gradients while the backward pass goes on",
        ).free(),
        word(
            "check",
            &["calls", "values"],
            "\"calls\"",
            "what ranks hold against each other: calls = which collectives they call, always; values = also the bits they get, which costs a read back and a second collective for each",
        ).free(),
        text(
            "balance",
            "\"even\"",
            "how the sequences of a step are divided over the ranks, or with mesh.pp the model's units over the stages: even; speed = by how fast each is found to be before the first step; or a weight for each rank, e.g. \"3,1\"",
        ).free(),
        flag(
            "deterministic",
            "true",
            "the same run twice is bitwise the same",
        ).moot("the same run twice is always bitwise the same").free(),
        int(
            "canonical_shards",
            1,
            "",
            "cut the batch into so many logical shards, over which every sum goes in one tree: bitwise the same training on any number of ranks up to it; the batch sizes are then of shards instead of ranks; absent = off",
        ),
        positive(
            "comm_timeout_s",
            "1800.0",
            "seconds a collective waits for a slow rank; mistakes and deadlocks are found without waiting",
        ).free(),
        non_negative(
            "heartbeat_s",
            "30.0",
            "seconds without a sign of life after which a process of another host counts as lost (a link that is cut, a host that is stopped or without power); a cut that mends before costs only time; 0 = such a loss is found at run.comm_timeout_s",
        ).free(),
        texts(
            "interface",
            "",
            "network interface over which processes reach one another: a name (\"eth0\"), an address or a network (\"10.77.0.0/24\") of every host, or a list of them; the job's store listens there alone, and MPI takes it too unless its own variables name one; absent = every address",
        )
        .free()
        .example("\"eth0\"")
        .words(&["gloo_socket_ifname", "btl_tcp_if_include"]),
        flag(
            "find_nan",
            "false",
            "look at every op's results and say where the first NaN or infinity begins; slow",
        ).free(),
        flag(
            "allow_host_ops",
            "false",
            "compute ops that the device can run by no other route on the host, through pinned memory; slow, and a note says when it happens",
        ).free(),
        word(
            "graphs",
            &["auto", "on", "off"],
            "\"auto\"",
            "replay forward and backward steps whose launches repeat as graphs of the device: auto = where the device says that it pays; on = always, which the back end must offer, and a warning names the first step that is not replayed whole (dropout draws other numbers each step); collectives inside blocks are launched between graphs; no bit changes",
        ).free(),
    ],
};

/// `checkpoint`.
const CHECKPOINT: Table = Table {
    doc: "how checkpoints are written; when is run.checkpoint_every, how many stay is run.keep_last",
    overlay: None,
    fields: &[
        flag(
            "async",
            "true",
            "go on training while a checkpoint is hashed and written; costs host memory for one copy of a rank's part of the state",
        ),
        word(
            "on_error",
            &["stop", "warn"],
            "\"stop\"",
            "a checkpoint cannot be written while training goes on: stop at the next step, or warn and go on without it",
        ),
        text(
            "sign_key",
            "",
            "file of a secret key (`crossweave checkpoint keygen`) by which rank 0 signs every checkpoint; absent = none is signed",
        ).example("\"team.key\""),
        text(
            "trust_key",
            "",
            "file of a public key: --resume takes only checkpoints that its owner has signed; absent = signatures are not looked at",
        ).example("\"team.key.pub\""),
        ignored(
            "tag_validation",
            "a checkpoint's folder is named by its step on every rank",
        )
        .off(r#""Warn""#),
        ignored(
            "load_universal",
            "every checkpoint loads on any number of ranks and any ZeRO stage",
        ),
        ignored("use_node_local_storage", "the output folder is run.out"),
        ignored("parallel_write", "every rank always writes its own part")
            .off(r#"{"pipeline_stage": false}"#),
        ignored("writer", "there is one checkpoint writer").off("null"),
        ignored(
            "checkpoint_serialization",
            "checkpoints are safetensors files; nothing is pickled",
        )
        .off("true"),
    ],
};

/// `tensor_parallel`; its `autotp_size` is another name of `mesh.tp`.
const TENSOR_PARALLEL: Table = Table {
    doc: "DeepSpeed's AutoTP: autotp_size is read as mesh.tp",
    overlay: None,
    fields: &[
        ignored("tp_overlap_comm", "every collective runs beside computation where the plan allows it"),
        ignored("vocab_parallel_lm_head", "mesh.tp always cuts the vocabulary by rows: embedding, head and loss").off("null"),
        ignored("vocab_parallel_ce_backend", "the loss over a cut vocabulary is one op of the plan").off("\"torch\""),
        ignored("preset_model", "how layers are cut is declared by the model's family").off("null"),
        refused("partition_config", "how layers are cut is declared by the model's family; there are no rules of a file's own").off("null"),
        refused("injection_policy_tuple", "how layers are cut is declared by the model's family").off("null"),
        ignored("dtype", "the compute type is that of bf16, fp16 or run.dtype").off("\"float16\""),
        ignored("tp", "write autotp_size, or mesh.tp").off("{\"tp_size\": 1, \"tp_grain_size\": 1, \"mpu\": null, \"tp_group\": null}").names(&[Name::Also("tensor_parallel")]),
        ignored("keep_module_on_host", "weights are read through a file map"),
        refused("kernel_inject", "there are no modules whose kernels could be replaced").names(&[Name::Also("replace_with_kernel_inject")]),
    ],
};

/// `expert_parallel`; its `autoep_size` is another name of `mesh.ep` where the section is on, and `expert_tensor_parallel_size` of `mesh.etp`.
const EXPERT_PARALLEL: Table = Table {
    doc: "DeepSpeed's AutoEP: where enabled, autoep_size is read as mesh.ep, and expert_tensor_parallel_size (1 where absent) as mesh.etp",
    overlay: None,
    fields: &[
        ignored(
            "enabled",
            "autoep_size or mesh.ep says over how many ranks experts lie",
        ),
        ignored("preset_model", EXPERTS).off("null"),
        ignored("moe_layer_pattern", EXPERTS).off("null"),
        ignored("router_pattern", EXPERTS).off("null"),
        ignored("expert_pattern", EXPERTS).off("null"),
        ignored("expert_w1", EXPERTS).off("null"),
        ignored("expert_w2", EXPERTS).off("null"),
        ignored("num_experts_attr", EXPERTS).off("null"),
        ignored("top_k_attr", EXPERTS).off("null"),
        refused("expert_activation", EXPERTS).off("null"),
        refused("has_shared_experts", EXPERTS).off("null"),
        refused("shared_experts_pattern", EXPERTS).off("null"),
        refused("shared_experts_gate_pattern", EXPERTS).off("null"),
        refused("top_k", ROUTER).off("\"auto\""),
        refused("score_func", ROUTER).off("\"auto\""),
        refused("score_apply", ROUTER).off("\"auto\""),
        refused("route_norm", ROUTER).off("null"),
        refused("route_scale", ROUTER).off("1.0"),
        refused("routed_scaling_factor", ROUTER).off("\"auto\""),
        refused("num_expert_groups", ROUTER).off("null"),
        refused("num_limited_groups", ROUTER).off("null"),
        ignored("use_grouped_mm", PRODUCTS).off("true"),
        ignored("disable_triton_grouped_mm", PRODUCTS),
        ignored("gate_up_impl", PRODUCTS).off("\"separate\""),
        ignored("combine_impl", PRODUCTS).off("\"auto\""),
        ignored("row_weighting_impl", PRODUCTS).off("\"auto\""),
        ignored("comm_backend", ROWS).off("\"comm\""),
        ignored("comm_max_tokens_per_rank", ROWS).off("0"),
        ignored("comm_num_sm", ROWS).off("12"),
        ignored("comm_qp_margin", ROWS).off("4"),
        ignored("async_split_plan", ROWS),
        ignored(
            "validate_folding_routing",
            "what ranks exchange is compared before a byte moves",
        ),
    ],
};

const EXPERTS: &str =
    "which layers have experts, and of what form, is said by the model's family, or by model.moe";
const ROUTER: &str = "how tokens choose experts is said by the model's family, or by model.moe";
const PRODUCTS: &str = "products of experts are one op by groups of rows";
const ROWS: &str = "rows of experts go by the back end's all-to-all, as many as come";

const DATA_TYPES: Table = Table {
    doc: "types of what is accumulated",
    overlay: None,
    fields: &[
        word(
            "grad_accum_dtype",
            &["fp32", "bf16", "fp16"],
            "\"fp32\"",
            "type in which gradients of micro-batches are accumulated: float32, or the 16-bit type of the parameters, rounded behind each",
        )
        .deepspeed()
        .or_null(),
        word(
            "param_dtype",
            &["fp32", "bf16", "fp16"],
            "",
            "type of the parameters that are computed with; it must be that of bf16.enabled, fp16.enabled or run.dtype",
        )
        .deepspeed(),
        ignored("buffer_dtype", "tables of positions and masks are float32, and the results of ops are of the compute type").off("null"),
        ignored("keep_in_fp32_modules", "what is computed in float32 is declared by the model's family").off("\"auto\""),
    ],
};

const COLLECTIVES: Table = Table {
    doc: "reductions between the ranks of a job of several back ends",
    overlay: None,
    fields: &[word(
        "order",
        &["rank", "plan"],
        "\"rank\"",
        "rank = sums in rank order, the bits of a job of one back end; plan = inside islands first, least traffic between them",
    )],
};

/// The algorithms of a kind.
const OF_ALL_REDUCE: &[&str] = &["auto", "ordered", "native", "ring", "tree", "halving"];
/// And of the others: a tree ends at one rank.
const OF_EVERY_KIND: &[&str] = &["auto", "ordered", "native", "ring", "halving"];

const ALGORITHM_OF_KINDS: Table = Table {
    doc: "an algorithm for each kind of sum",
    overlay: None,
    fields: &[
        word(
            "all_reduce",
            OF_ALL_REDUCE,
            "\"auto\"",
            "of sums that every rank gets",
        ),
        word(
            "reduce_scatter",
            OF_EVERY_KIND,
            "\"auto\"",
            "of sums of which each rank gets a block",
        ),
    ],
};

const ALGORITHM: Forms = Forms {
    doc: "algorithm of sums between processes: auto = in rank order, which gives the bits of threads, by whichever way says fewer bytes between hosts; ordered = the same bits by owners, whatever the hosts; the others give the order up for floats: native = the MPI library's own calls (16 bits go as words and keep it), ring, halving, and for all_reduce tree; or an object with one for each kind (docs/launching.md)",
    forms: &[
        Form {
            name: "one",
            kind: Kind::Word(OF_EVERY_KIND),
        },
        Form {
            name: "by kind",
            kind: Kind::Section(&ALGORITHM_OF_KINDS),
        },
    ],
    pick: |value| match value {
        Json::Text(_) => Ok(0),
        Json::Object(_) => Ok(1),
        other => Err((
            format!("wanted a word or an object, got {}", other.describe()),
            "write \"auto\", or {\"all_reduce\": \"native\", \"reduce_scatter\": \"auto\"}".into(),
        )),
    },
};

const COMMUNICATION: Table = Table {
    doc: "how sums go between the processes of a job",
    overlay: None,
    fields: &[
        forms("algorithm", &ALGORITHM, "\"auto\""),
        texts(
            "axes",
            "",
            "axes of the mesh whose groups go by communication.algorithm, the others by auto; absent = all",
        )
        .example("[\"dp\"]"),
    ],
};

/// The whole file.
pub const ROOT: Table = Table {
    doc: "a training run; keys follow DeepSpeed's JSON where it has them, plus model, data, mesh and run",
    overlay: None,
    fields: &[
        forms("model", &MODEL, "").example(r#"{"family": "gpt2", "preset": "tiny"}"#),
        forms("data", &DATA, "").example(r#"{"train": "corpus/*.txt"}"#),
        section("mesh", &MESH),
        section("run", &RUN),
        optional_section("distill", &DISTILL),
        section("collectives", &COLLECTIVES).free(),
        section("communication", &COMMUNICATION).free(),
        int("train_batch_size", 1, "", "sequences of one optimizer step = train_micro_batch_size_per_gpu x gradient_accumulation_steps x data-parallel ranks; \"auto\" = solve").deepspeed().auto().words(&["global_batch_size", "batch_size"]),
        int("train_micro_batch_size_per_gpu", 1, "", "sequences of one forward pass on one rank; \"auto\" = solve").deepspeed().auto().free().words(&["per_device_train_batch_size", "per_gpu_train_batch_size", "micro_batch_size", "train_micro_batch_size"]),
        int("gradient_accumulation_steps", 1, "", "forward passes per optimizer step; \"auto\" = solve").deepspeed().auto().free().words(&["grad_accum_steps", "accumulation_steps", "grad_accum"]),
        typed("optimizer", &OPTIMIZER, "{\"type\": \"AdamW\"}").deepspeed(),
        typed("scheduler", &SCHEDULER, "").deepspeed().words(&["lr_scheduler"]),
        non_negative("gradient_clipping", "0.0", "largest global gradient norm; 0 = no clipping (DeepSpeed 0.19.8 clips at 1 where the key is not given, older versions did not)").deepspeed().trainer("1.0").words(&["max_grad_norm", "clip_grad", "grad_clip", "clip_grad_norm"]),
        int("steps_per_print", 1, "10", "steps between lines of the log on a plain terminal; run.log_every, where it is given, wins").deepspeed().or_null().free(),
        section("zero_optimization", &ZERO).deepspeed().free().words(&["zero"]),
        section("bf16", &BF16).deepspeed().free().names(&[Name::Deprecated("bfloat16")]),
        section("fp16", &FP16).deepspeed().free().read(Read::Float16),
        section("activation_checkpointing", &ACTIVATION).deepspeed().free(),
        list("faults", &FAULT).free(),
        section("data_types", &DATA_TYPES).deepspeed(),
        word("communication_data_type", &["fp32", "fp16", "bfp16", "bf16"], "", "type of gradients between the ranks, summed in float32 and rounded once; absent = float32").deepspeed().auto(),
        word("gradient_allreduce_op", &["mean", "sum"], "\"mean\"", "how the gradients of the data-parallel ranks are put together: their mean, or their sum, which is as many times as large; as in DeepSpeed not at stage 3").deepspeed(),
        flag("prescale_gradients", "false", "divide gradients by the number of ranks before they are summed; so it is done anyway unless gradient_predivide_factor says otherwise").deepspeed(),
        positive("gradient_predivide_factor", "1.0", "without prescale_gradients: divide gradients by this before they are summed over the ranks, by the rest after; 1 = by the number of ranks before").deepspeed(),
        flag("wall_clock_breakdown", "false", "print where the time of a step goes").deepspeed().free(),
        int("seed", 0, "", "the same as run.seed").auto(),
        ignored("memory_breakdown", "DIR/ledger.json always holds the memory of every tag"),
        ignored("dump_state", "DIR/config.json always holds the resolved config"),
        ignored("dataloader_drop_last", "samples are counted in advance; no batch is ever short"),
        ignored("disable_allgather", "there is nothing to disable"),
        ignored("zero_allow_untested_optimizer", "every optimizer here works with every stage"),
        ignored("zero_force_ds_cpu_optimizer", "the optimizer of the back end is used").off("true"),
        ignored("tensorboard", "use run.tensorboard; the event files lie in DIR/tensorboard").off(SWITCH),
        ignored("wandb", "metrics are in DIR/metrics.jsonl").off(SWITCH),
        ignored("comet", "metrics are in DIR/metrics.jsonl").off(SWITCH),
        ignored("csv_monitor", "metrics are in DIR/metrics.jsonl").off(SWITCH),
        ignored("comms_logger", "DIR/ledger.json always counts every collective").off(SWITCH),
        ignored("flops_profiler", "the cost of a step is in the run's closing table").off(SWITCH),
        section("checkpoint", &CHECKPOINT).deepspeed().free(),
        section("aio", &AIO).deepspeed().read(Read::Disk),
        refused("sparse_gradients", "sparse embedding gradients were removed from DeepSpeed itself"),
        refused("amp", "Apex AMP was removed from DeepSpeed itself; use bf16 or fp16").off(SWITCH),
        refused("sparse_attention", "block-sparse attention was removed from DeepSpeed itself").off("{}"),
        refused("elasticity", "elastic training was removed from DeepSpeed itself; checkpoints load on any number of ranks").off(SWITCH),
        ignored("autotuning", "DeepSpeed's launcher tunes by it when it is asked to; there is no autotuner here, and a run is as the file says").off(SWITCH),
        refused("compression_training", "compression was removed from DeepSpeed itself").off("{}"),
        refused("curriculum_learning", "curricula are not available; this key was removed from DeepSpeed itself").off(SWITCH),
        refused("data_efficiency", "data sampling by difficulty is not available").off(SWITCH),
        refused("progressive_layer_drop", "layer drop was removed from DeepSpeed itself").off(SWITCH),
        refused("eigenvalue", "it served quantised training, which DeepSpeed removed").off(SWITCH),
        refused("quantize_training", "MoQ was removed from DeepSpeed itself").off(SWITCH),
        refused("hybrid_engine", "there is no inference engine to switch to").off(SWITCH),
        ignored("pipeline", "pipeline stages are asked for by mesh.pp and mesh.pp_schedule").off(r#"{"stages": "auto", "partition": "best", "seed_layers": false, "activation_checkpoint_interval": 0, "pipe_partitioned": true, "grad_partitioned": true}"#),
        optional_section("tensor_parallel", &TENSOR_PARALLEL).deepspeed(),
        optional_section("expert_parallel", &EXPERT_PARALLEL).deepspeed(),
        refused("managed_gradient_accumulation", "no program of yours calls step() here: gradient_accumulation_steps says when a step ends").off("true"),
        refused("weight_quantization", "weights in 8 bits or fewer are not available").off("null"),
        ignored("graph_harvesting", "run.graphs says whether steps are replayed as graphs of the device"),
        ignored("timers", "the time of each step is in DIR/metrics.jsonl").off(r#"{"throughput": {"enabled": true, "synchronized": true}}"#),
        ignored("datastates_ckpt", "checkpoints are written while training goes on anyway: checkpoint.async"),
        ignored("log_level", "what a run prints is said by -q and -v on the command line").off("null"),
        ignored("disable_python_gc", "there is no Python here, and no collector of garbage"),
        ignored("vocabulary_size", "the vocabulary is the tokenizer's, or model.vocab_size").off("null"),
        ignored("seq_parallel_communication_data_type", "pieces of rows travel in the type that the run computes in").off(r#""fp32""#),
        refused("torch_autocast", "there is no torch here; use bf16 or fp16").off(SWITCH),
        ignored("compile", "there is no graph compiler to switch on; steps are planned and kernels fused anyway").off(COMPILE),
        refused("nebula", "Nebula was removed from DeepSpeed itself; checkpoints are written to run.out").off(SWITCH),
        refused("use_data_before_expert_parallelism", "neighbours have other experts of a layer, and ranks with the same experts lie further apart"),
    ],
};
