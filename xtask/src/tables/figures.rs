//! What is above a general limit of shape, each with its ceiling and the reason. Printed by `cargo xtask tidy --figures`, which keeps the
//! reasons of rows that stay and leaves those of new rows empty, for a person to write.

use crate::ratchet::Entry;

/// Modules with folders of their own that import one another in a circle, by one of them.
#[rustfmt::skip]
pub const FOLDER_CIRCLES: &[Entry] = &[
    Entry { place: "backends/cpu/src/collective", ceiling: 3, why: "a queued collective is a command of a stream, and launching one takes the stream" },
];

/// Files and modules of one folder that import one another in a circle, by one of them.
#[rustfmt::skip]
pub const CIRCLES: &[Entry] = &[
    Entry { place: "backends/cpu/src/collective", ceiling: 7, why: "a stream runs collectives, ops and events, and each of them waits on streams" },
    Entry { place: "backends/cpu/src/collective/mail.rs", ceiling: 3, why: "the mailboxes, the rounds and the ranks of one communicator share their state" },
    Entry { place: "backends/cpu/src/gemm", ceiling: 5, why: "which instruction set is used is decided by a self-test of the matrix product written for it" },
    Entry { place: "backends/cuda/src/cudnn", ceiling: 3, why: "the device keeps what its libraries make for it, and they make it for a device" },
    Entry { place: "backends/cuda/src/cudnn/graph.rs", ceiling: 2, why: "shapes are four-dimensional as the graph wants them, and the graph aligns as shapes do" },
    Entry { place: "backends/gpu/src/backend.rs", ceiling: 7, why: "a stream runs host calls, graphs and copies and puts them off, which hold streams; collectives are the back end's and mark its streams" },
    Entry { place: "backends/gpu/src/device.rs", ceiling: 2, why: "a device keeps the modules that are loaded on it" },
    Entry { place: "backends/kernels/src/args.rs", ceiling: 2, why: "arguments are checked by the family of their source, which prints those checks" },
    Entry { place: "backends/mpi/src/comm.rs", ceiling: 3, why: "a communicator starts the flights that hold it alive" },
    Entry { place: "backends/wgpu/src/device.rs", ceiling: 7, why: "device, stream and memory of one adapter hold one another's handles" },
    Entry { place: "backends/wgpu/src/kernel.rs", ceiling: 2, why: "the text of a kernel is written from its operands' access, which the kernel declares" },
    Entry { place: "checkpoint/src/error.rs", ceiling: 7, why: "one error type names what each reader found, in that reader's own type" },
    Entry { place: "checkpoint/src/load.rs", ceiling: 2, why: "loading verifies a signature, and signing checks the files as loading does" },
    Entry { place: "config/src/canonical.rs", ceiling: 5, why: "the resolver gives one section to a file of its own, which takes the resolver" },
    Entry { place: "data/jinja/src/args.rs", ceiling: 13, why: "values compare, print and hold one another, and operators, formats and scopes are made of them" },
    Entry { place: "data/jinja/src/filters", ceiling: 2, why: "filters choose by tests, and a test asks which filters there are" },
    Entry { place: "data/src/cache.rs", ceiling: 4, why: "a cache entry names its tokenizer, and the tokenizer writes hashes with the cache's helper" },
    Entry { place: "hal/conform/src/abi", ceiling: 18, why: "the list of cases names every case, and every case is written with the list's types" },
    Entry { place: "hal/conform/src/raw/device.rs", ceiling: 2, why: "a device makes handles, and handles close on their device" },
    Entry { place: "hal/conform/src/report.rs", ceiling: 2, why: "a report states the options of its run, and the run fills the report" },
    Entry { place: "hal/layers/src/call.rs", ceiling: 5, why: "a call speaks of wrapped objects, and the wrapper makes calls" },
    Entry { place: "hal/src/buffer.rs", ceiling: 18, why: "device, stream, buffer, kernel and graph hold handles of one another by nature; the collective checker moves out below them" },
    Entry { place: "hal/src/watch/crash.rs", ceiling: 2, why: "the crash report reads who watches, and the watch reads who crashed" },
    Entry { place: "hal/src/watch/names.rs", ceiling: 2, why: "the names of steps lie in the rank's record, and the record refers to them by place" },
    Entry { place: "hal/store/src/engine.rs", ceiling: 2, why: "a piece answers its transfer with the engine's reply, and the engine works on pieces" },
    Entry { place: "mesh/collectives/src/by_plan.rs", ceiling: 5, why: "plans, faults and traces are parts of the group on which they act" },
    Entry { place: "mesh/src/groups.rs", ceiling: 2, why: "groups are made within heterogeneous groups, whose options are those of all groups" },
    Entry { place: "mesh/src/process_map.rs", ceiling: 2, why: "the process map is exchanged over the job's store, and the store hands it out" },
    Entry { place: "nn/family/src/desc.rs", ceiling: 3, why: "a description holds the rotary settings that keys give, and a key that is not understood names the families that have it" },
    Entry { place: "plan/src/check.rs", ceiling: 2, why: "the check runs the laws, which read the parts that it took apart" },
    Entry { place: "tensor/src/block.rs", ceiling: 5, why: "recording a block makes its tape, and a tape runs blocks again to recompute" },
    Entry { place: "tensor/src/probe.rs", ceiling: 2, why: "a probe looks into a run, and the run calls it" },
];

/// Code lines of crates.
#[rustfmt::skip]
pub const CRATE_LINES: &[Entry] = &[
    Entry { place: "crossweave", ceiling: 13300, why: "a job on its devices, its ranks and processes, its folder, record, checkpoints and trace, the models that come of it, what programs call, and what plans, explains and predicts it" },
    Entry { place: "crossweave-backend-ascend", ceiling: 3300, why: "a run time, operators, fused ones among them, and collectives of one vendor, each declared by hand" },
    Entry { place: "crossweave-backend-cpu", ceiling: 12000, why: "kernels of every op for every instruction set, which run in the process" },
    Entry { place: "crossweave-backend-mpi", ceiling: 3250, why: "every collective with its checks, which the CPU back end repeats" },
    Entry { place: "crossweave-backend-wgpu", ceiling: 7050, why: "kernels of every op as WGSL text" },
    Entry { place: "crossweave-benches", ceiling: 3050, why: "one program for each kind of measurement" },
    Entry { place: "crossweave-checkpoint", ceiling: 4250, why: "its own format, safetensors, Hugging Face folders and signatures" },
    Entry { place: "crossweave-cli", ceiling: 4000, why: "a file for each verb" },
    Entry { place: "crossweave-collectives", ceiling: 4250, why: "compositions, plans and their verification for every collective" },
    Entry { place: "crossweave-config", ceiling: 8850, why: "one row of tables for each key of the config, with checks and docs" },
    Entry { place: "crossweave-conform", ceiling: 20800, why: "one case for each duty of a plugin, families of trials for each dimension of what may go wrong, the references in double precision, and scorecards by families of cases" },
    Entry { place: "crossweave-data", ceiling: 9350, why: "every form in which people keep corpora and examples, rows told by content, pairs of texts too, which tokens of a conversation count, and what keeps a hostile one from filling the memory" },
    Entry { place: "crossweave-engine", ceiling: 3710, why: "the walk, blocks with what they exchange, what a rank is set up on, set-up, evaluation over ranks and stages, and what a run is watched by" },
    Entry { place: "crossweave-family", ceiling: 5320, why: "one file of at most 120 lines for each family, which models can be cut over ranks, and the table of what every class of transformers reads" },
    Entry { place: "crossweave-gpu", ceiling: 4800, why: "all that back ends of GPUs have in common, products by cuBLASLt's interface and collectives by NCCL's included" },
    Entry { place: "crossweave-hal", ceiling: 11630, why: "device layer, collective checker, crash reports, and the listing of calls that refactors are judged by; the checker becomes a crate of its own" },
    Entry { place: "crossweave-jinja", ceiling: 8250, why: "a whole language, with the strings, numbers and formats of Python" },
    Entry { place: "crossweave-job", ceiling: 2880, why: "what a config, a model and data say of every rank: units, division, batches, specifications and what rests off a device; faults with their places" },
    Entry { place: "crossweave-kernels", ceiling: 4000, why: "device kernels as source, with launches and budgets" },
    Entry { place: "crossweave-layers", ceiling: 4750, why: "recording, replaying and validating every call of the plugin interface" },
    Entry { place: "crossweave-plan", ceiling: 3010, why: "the plan, its laws, passes and text, what blocks say to other ranks, and what ranks do together outside it" },
    Entry { place: "crossweave-plugin", ceiling: 2750, why: "the traits, their export as C tables, and the requests of ops and collectives read once for all back ends" },
    Entry { place: "crossweave-tensor", ceiling: 7430, why: "shapes and gradients of every op, those of single heads and of layers and vocabularies cut over ranks too, what blocks exchange with its adjoints, and the types of values and of gradients" },
    Entry { place: "crossweave-zero", ceiling: 4300, why: "passes, lowering to programs, and the closed formulas" },
    Entry { place: "xtask", ceiling: 4800, why: "rules with their tables, and the gate" },
];

/// Fields of structs.
#[rustfmt::skip]
pub const FIELDS: &[Entry] = &[
    Entry { place: "backends/cpu/src/gemm/mod.rs: Gemm", ceiling: 16, why: "one planned product: sizes, strides and blocking" },
    Entry { place: "backends/cpu/src/ops/attention/mod.rs: Shape", ceiling: 16, why: "one attention: sizes, mask, views, and what comes on top" },
    Entry { place: "backends/cpu/src/stream.rs: Shared", ceiling: 17, why: "one lock, its condition and the counters that its thread publishes" },
    Entry { place: "backends/cuda/src/driver.rs: Copy2d", ceiling: 16, why: "CUDA_MEMCPY2D of the driver" },
    Entry { place: "backends/gpu/src/nccl/comm.rs: Inner", ceiling: 22, why: "what a communicator shares with the thread that watches it" },
    Entry { place: "backends/mpi/src/comm.rs: Member", ceiling: 20, why: "what a communicator shares with its queued launches" },
    Entry { place: "backends/wgpu/src/encode.rs: Encoder", ceiling: 16, why: "an open command encoder with the pools that it reuses" },
    Entry { place: "cli/src/args/conform.rs: ConformArgs", ceiling: 24, why: "one field for each flag of the verb" },
    Entry { place: "cli/src/args/estimate.rs: EstimateArgs", ceiling: 25, why: "one field for each flag of the verb" },
    Entry { place: "config/src/settings.rs: Run", ceiling: 29, why: "one field for each key of the section" },
    Entry { place: "config/src/settings.rs: Settings", ceiling: 27, why: "one field for each section and top-level key" },
    Entry { place: "config/src/settings.rs: Zero", ceiling: 23, why: "one field for each key of zero_optimization" },
    Entry { place: "config/src/settings_data.rs: TextData", ceiling: 30, why: "one field for each key of the section" },
    Entry { place: "config/src/settings_optim.rs: SchedulerParams", ceiling: 30, why: "the union of the parameters of all schedules" },
    Entry { place: "hal/abi/src/api.rs: DeviceApi", ceiling: 31, why: "a table of the frozen C interface" },
    Entry { place: "hal/abi/src/types.rs: CollDesc", ceiling: 18, why: "a struct of the frozen C interface" },
    Entry { place: "hal/conform/src/op/attention_reference.rs: Shape", ceiling: 16, why: "sizes, mask and everything that attention may put on top" },
    Entry { place: "hal/conform/src/report.rs: Report", ceiling: 18, why: "one field for each part of the report's file" },
    Entry { place: "hal/conform/src/run.rs: Options", ceiling: 17, why: "one field for each option of the command" },
    Entry { place: "hal/plugin/src/backend.rs: Coll", ceiling: 16, why: "CollDesc of the C interface in safe types" },
    Entry { place: "hal/src/watch/collective_record.rs: CollectiveRecord", ceiling: 24, why: "everything in which two ranks' collectives may differ" },
    Entry { place: "plan/src/facts.rs: UnitFacts", ceiling: 16, why: "sizes and costs of a unit as the dry run finds them, and what its steps say" },
    Entry { place: "plan/src/laws.rs: Standing", ceiling: 19, why: "everything that a law asks of a unit" },
    Entry { place: "plan/src/laws.rs: State", ceiling: 19, why: "everything that a law asks of the step so far" },
    Entry { place: "zero/src/lower/mod.rs: Job", ceiling: 17, why: "one field for each thing a config can ask of the arithmetic of a step" },
];

/// Functions in the inherent `impl` blocks of types.
#[rustfmt::skip]
pub const METHODS: &[Entry] = &[
    Entry { place: "backends/cpu/src/collective/world.rs: World", ceiling: 31, why: "waiting, failing and leaving of all ranks under one lock" },
    Entry { place: "backends/gpu/src/stream.rs: Line", ceiling: 34, why: "one method for each call of the C interface's stream table, and what puts them off" },
    Entry { place: "config/src/resolve.rs: Resolver", ceiling: 26, why: "one method for each section whose keys depend on others" },
    Entry { place: "data/jinja/src/parser.rs: Parser", ceiling: 47, why: "one method for each level of the grammar" },
    Entry { place: "data/jinja/src/value.rs: Value", ceiling: 27, why: "what its language and what its callers ask of a value" },
    Entry { place: "data/jinja/src/vm.rs: Vm", ceiling: 42, why: "one method for each statement and each kind of expression" },
    Entry { place: "engine/src/engine/mod.rs: Engine", ceiling: 114, why: "the walk, and all that callers ask of a rank; what they read and load is handed on to its state" },
    Entry { place: "hal/src/comm.rs: Communicator", ceiling: 43, why: "its shared state, used by the descriptors of collectives in another file" },
    Entry { place: "hal/src/device.rs: Device", ceiling: 39, why: "one method for each call of the C interface's device table" },
    Entry { place: "hal/src/stream.rs: Stream", ceiling: 29, why: "one method for each call of the C interface's stream table" },
    Entry { place: "hal/src/watch/rank_record.rs: RankRecord", ceiling: 58, why: "one accessor for each word of the record that processes share" },
    Entry { place: "mesh/collectives/src/group.rs: Collectives", ceiling: 58, why: "one method for each collective and form, as Communicator has them" },
    Entry { place: "plan/src/laws.rs: State", ceiling: 43, why: "one method for each kind of step" },
    Entry { place: "tensor/src/cx.rs: Cx", ceiling: 56, why: "one method for each op that a block may record" },
    Entry { place: "train/src/trainer.rs: Trainer", ceiling: 37, why: "one method for each thing that a program describes, asks of a run, or asks for" },
];

/// Fields of large structs that a part of the crate sees.
#[rustfmt::skip]
pub const OPEN_FIELDS: &[Entry] = &[
    Entry { place: "backends/cpu/src/collective/world.rs: World", ceiling: 6, why: "read by the rounds and mailboxes of the same communicator" },
    Entry { place: "backends/cpu/src/device.rs: Device", ceiling: 8, why: "read by streams and ops on their hot path" },
    Entry { place: "backends/cpu/src/device.rs: Settings", ceiling: 8, why: "plain settings without an invariant between them" },
    Entry { place: "backends/cuda/src/cudnn/graph.rs: Graph", ceiling: 3, why: "filled by the builders of each kind of graph" },
    Entry { place: "backends/gpu/src/backend.rs: Gpu", ceiling: 2, why: "communicators that are alive, and the host that their threads are asked of" },
    Entry { place: "backends/gpu/src/device.rs: Dev", ceiling: 1, why: "the modules loaded on it" },
    Entry { place: "backends/gpu/src/memory.rs: Mem", ceiling: 4, why: "address and size, which every launch reads" },
    Entry { place: "backends/gpu/src/stream.rs: Line", ceiling: 4, why: "the driver's stream, its failure, its capture and what it puts off, which the calls of each kind read" },
    Entry { place: "backends/mpi/src/comm.rs: Member", ceiling: 12, why: "read by the flights of the same communicator" },
    Entry { place: "backends/wgpu/src/dispatch.rs: Ready", ceiling: 3, why: "what prepare knew, read by launches" },
    Entry { place: "data/jinja/src/ast.rs: For", ceiling: 7, why: "a node of the tree: made by the parser, read by the machine" },
    Entry { place: "data/jinja/src/looping.rs: Loop", ceiling: 6, why: "the machine moves it, and it alone can evaluate the condition" },
    Entry { place: "data/jinja/src/vm.rs: Vm", ceiling: 4, why: "statements and expressions of one rendering, in two files" },
    Entry { place: "data/src/hf_file.rs: HfFile", ceiling: 8, why: "what opening a file has found, which the tokenizer takes apart at once" },
    Entry { place: "data/src/order_store.rs: Description", ceiling: 6, why: "the header of a stored order, field by field" },
    Entry { place: "hal/conform/src/ctx.rs: Ctx", ceiling: 2, why: "the processes of a case, taken by the cases of collectives" },
    Entry { place: "hal/layers/src/object.rs: Object", ceiling: 2, why: "the wrapped handle, which every call unwraps" },
    Entry { place: "hal/layers/src/wrap.rs: Context", ceiling: 2, why: "the plugin below a layer, which every call needs" },
    Entry { place: "hal/src/comm.rs: Communicator", ceiling: 1, why: "read by the descriptor of its collectives in another file" },
    Entry { place: "hal/src/kernel.rs: KernelInner", ceiling: 5, why: "read where kernels are launched, captured and decomposed" },
    Entry { place: "hal/src/loader.rs: RawPlugin", ceiling: 2, why: "the mask of the plugin's tables and the services it was started with, read where they are used" },
    Entry { place: "mesh/collectives/src/group.rs: Collectives", ceiling: 8, why: "its compositions lie in other files" },
    Entry { place: "plan/src/laws.rs: State", ceiling: 3, why: "read by the check that takes the state from step to step" },
    Entry { place: "support/claim/src/owner.rs: Owner", ceiling: 1, why: "the nonce of the lock file, which the claim compares" },
    Entry { place: "tensor/src/spmd.rs: Check", ceiling: 2, why: "types of values, which the rule of each op reads" },
];

/// Code lines of functions.
#[rustfmt::skip]
pub const FUNCTION_LINES: &[Entry] = &[
    Entry { place: "backends/cpu/src/gemm/mod.rs: Gemm::product", ceiling: 113, why: "the loops of one blocked product, which share their bounds" },
    Entry { place: "backends/cpu/src/ops/attention/bwd.rs: item", ceiling: 153, why: "one pass over keys and queries with everything in registers and scratch" },
    Entry { place: "backends/cpu/src/stream.rs: run", ceiling: 114, why: "one arm for each command of a stream" },
    Entry { place: "backends/gpu/src/nccl/call.rs: calls", ceiling: 138, why: "one arm for each collective" },
    Entry { place: "backends/wgpu/src/encode.rs: Encoder::dispatch", ceiling: 125, why: "one dispatch with every limit of the adapter" },
    Entry { place: "backends/wgpu/src/kernels/attention.rs: backward", ceiling: 158, why: "the text of one kernel" },
    Entry { place: "backends/wgpu/src/kernels/embedding.rs: embedding_backward", ceiling: 107, why: "the text of one kernel" },
    Entry { place: "backends/wgpu/src/kernels/norm.rs: backward", ceiling: 150, why: "the text of one kernel" },
    Entry { place: "backends/wgpu/src/ops/program.rs: program", ceiling: 123, why: "one arm for each instruction of a program" },
    Entry { place: "backends/wgpu/src/stream.rs: run", ceiling: 114, why: "one arm for each command of a stream" },
    Entry { place: "backends/wgpu/src/wgsl.rs: accessors", ceiling: 239, why: "one arm for each storage type of an operand" },
    Entry { place: "benches/src/bin/collectives.rs: measure", ceiling: 117, why: "a list of measurements" },
    Entry { place: "benches/src/bin/ops.rs: cases", ceiling: 201, why: "a list of cases" },
    Entry { place: "benches/src/bin/step.rs: one", ceiling: 143, why: "one measurement from setup to result" },
    Entry { place: "config/src/batch.rs: solve", ceiling: 109, why: "one arm for each combination of given sizes" },
    Entry { place: "config/src/check.rs: Walk::value", ceiling: 134, why: "one arm for each type of value" },
    Entry { place: "config/src/resolve.rs: Resolver::schedule", ceiling: 112, why: "one arm for each schedule" },
    Entry { place: "config/src/resolve.rs: resolve", ceiling: 178, why: "the config's sections in the order in which they depend on one another" },
    Entry { place: "hal/conform/src/child.rs: serve", ceiling: 118, why: "one arm for each request of the parent" },
    Entry { place: "hal/conform/src/coll/uneven.rs: v_kind", ceiling: 115, why: "one case from inputs to comparison" },
    Entry { place: "hal/conform/src/launch.rs: Running::start", ceiling: 119, why: "pipes, arguments and environment of a job in their order" },
    Entry { place: "hal/conform/src/leak.rs: cases", ceiling: 105, why: "the list of cases" },
    Entry { place: "hal/conform/src/op/attention.rs: packed", ceiling: 116, why: "a list of trials" },
    Entry { place: "hal/conform/src/op/attention_ext.rs: trials", ceiling: 135, why: "a list of trials" },
    Entry { place: "hal/conform/src/op/index.rs: scatter", ceiling: 109, why: "one case from inputs to comparison" },
    Entry { place: "hal/conform/src/op/integers.rs: trials", ceiling: 109, why: "a list of trials" },
    Entry { place: "hal/conform/src/op/matmul.rs: product", ceiling: 215, why: "one case from inputs to comparison" },
    Entry { place: "hal/conform/src/op/moves.rs: gather", ceiling: 141, why: "one case from inputs to comparison" },
    Entry { place: "hal/conform/src/op/norm.rs: backward", ceiling: 107, why: "one case from inputs to comparison" },
    Entry { place: "hal/conform/src/op/optim.rs: adamw", ceiling: 223, why: "one case from inputs to comparison" },
    Entry { place: "hal/conform/src/op/pointwise.rs: binary_trials", ceiling: 133, why: "a list of trials" },
    Entry { place: "hal/conform/src/op/program.rs: programs", ceiling: 270, why: "a list of programs" },
    Entry { place: "hal/conform/src/op/random.rs: dropout", ceiling: 126, why: "one case from inputs to comparison" },
    Entry { place: "hal/conform/src/op/reduce.rs: cumsum", ceiling: 107, why: "one case from inputs to comparison" },
    Entry { place: "hal/conform/src/op/reduce.rs: reduced", ceiling: 246, why: "one case from inputs to comparison" },
    Entry { place: "hal/conform/src/op/softmax.rs: xent_bwd", ceiling: 125, why: "one case from inputs to comparison" },
    Entry { place: "hal/layers/src/record.rs: told", ceiling: 103, why: "one arm for each call of the plugin interface" },
    Entry { place: "hal/layers/src/replay.rs: Lane::make", ceiling: 184, why: "one arm for each recorded call" },
    Entry { place: "hal/layers/src/replay.rs: replay", ceiling: 102, why: "lanes are started, fed and compared in one order" },
    Entry { place: "hal/src/comm_desc.rs: Communicator::desc", ceiling: 136, why: "one arm for each collective" },
    Entry { place: "hal/src/watch/judge.rs: mismatch", ceiling: 125, why: "one comparison for each part of a collective" },
    Entry { place: "mesh/collectives/src/comm_plan/nodes.rs: hierarchical", ceiling: 123, why: "one plan whose phases share their chunks" },
    Entry { place: "mesh/collectives/src/compose.rs: Collectives::compose", ceiling: 139, why: "one arm for each collective" },
    Entry { place: "planner/src/lower.rs: write", ceiling: 101, why: "one arm for each kind of step of a plan" },
    Entry { place: "train/report/src/charts.rs: Lines::render", ceiling: 131, why: "one drawing from axes to legend" },
    Entry { place: "train/src/figures/explain/collectives.rs: answer", ceiling: 115, why: "a document from top to bottom" },
    Entry { place: "train/src/resume.rs: find", ceiling: 110, why: "all that makes a folder the run of this config, in the order in which it is said" },
    Entry { place: "train/src/setup.rs: prepare", ceiling: 122, why: "the setup of a job in its order; becomes the training library" },
    Entry { place: "zero/src/lower/reduce.rs: Grads::reduce", ceiling: 102, why: "one reduction from the whole gradient to the slice, whose steps share the views of a bucket" },
];

/// Lines of two files, or of one, that lie in equal runs.
#[rustfmt::skip]
pub const EQUAL_LINES: &[Entry] = &[
    Entry { place: "backends/cpu/src/collective/reduce.rs = backends/mpi/src/fold.rs", ceiling: 42, why: "the arithmetic of 16-bit floats by the crate half, on which the crate of vendors must not depend" },
    Entry { place: "backends/cpu/src/lib.rs = backends/mpi/src/lib.rs", ceiling: 12, why: "one method for each call of the device table" },
    Entry { place: "backends/cpu/src/lib.rs = backends/wgpu/src/lib.rs", ceiling: 12, why: "one method for each call of the device table" },
    Entry { place: "backends/mpi/src/lib.rs = backends/wgpu/src/lib.rs", ceiling: 15, why: "one method for each call of the device table" },
    Entry { place: "hal/abi/src/dtype.rs = hal/conform/src/op/moves.rs", ceiling: 14, why: "lists of element types, one a line" },
    Entry { place: "hal/abi/src/dtype.rs = hal/plugin/src/operand.rs", ceiling: 14, why: "lists of element types, one a line" },
    Entry { place: "hal/conform/src/op/moves.rs = hal/plugin/src/operand.rs", ceiling: 15, why: "lists of element types, one a line" },
    Entry { place: "hal/src/comm.rs = mesh/collectives/src/group.rs", ceiling: 41, why: "signatures of the collectives, which a group has as its communicator has them" },
];
