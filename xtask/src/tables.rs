//! The rules' data. A new edge, a new exception or a new word is a diff of this file or, for the ceilings of shape and the faults that tests must catch, of those below it.

pub mod faults;
pub mod figures;
pub mod shape;

/// What one crate may depend on.
pub struct Crate {
    /// Package name.
    pub name: &'static str,
    /// Height: a crate depends only on crates of lower floors.
    pub floor: u32,
    /// Crates of this workspace.
    pub ours: &'static [&'static str],
    /// Crates of others.
    pub theirs: &'static [&'static str],
    /// Further crates for its own tests, examples and benches.
    pub dev: &'static [&'static str],
}

const ABI: &str = "crossweave-abi";
const PLUGIN: &str = "crossweave-plugin";
const HAL: &str = "crossweave-hal";
const STORE: &str = "crossweave-store";
const CONFORM: &str = "crossweave-conform";
const LAYERS: &str = "crossweave-layers";
const NULL: &str = "crossweave-backend-null";
const CPU: &str = "crossweave-backend-cpu";
const MPI: &str = "crossweave-backend-mpi";
const WGPU: &str = "crossweave-backend-wgpu";
const CUDA: &str = "crossweave-backend-cuda";
const ROCM: &str = "crossweave-backend-rocm";
const ASCEND: &str = "crossweave-backend-ascend";
const GPU: &str = "crossweave-gpu";
const KERNELS: &str = "crossweave-kernels";
const JINJA: &str = "crossweave-jinja";
const WORDS: &str = "crossweave-words";
const HOSTS: &str = "crossweave-hosts";
const FILES: &str = "crossweave-files";
const COLLECTIVES: &str = "crossweave-collectives";
const AXES: &str = "crossweave-axes";
const MESH_SHOW: &str = "crossweave-mesh-show";
const MESH: &str = "crossweave-mesh";
const PLAN: &str = "crossweave-plan";
const PROGRAM: &str = "crossweave-program";
const TIMELINE: &str = "crossweave-timeline";
const TENSOR: &str = "crossweave-tensor";
const MACHINE: &str = "crossweave-machine";
const OFFLOAD: &str = "crossweave-offload";
const STATE: &str = "crossweave-state";
const OPTIM: &str = "crossweave-optim";
const FLAT: &str = "crossweave-flat";
const ZERO: &str = "crossweave-zero";
const PARALLEL: &str = "crossweave-parallel";
const PLANNER: &str = "crossweave-planner";
const FAMILY: &str = "crossweave-family";
const NN: &str = "crossweave-nn";
const CLAIM: &str = "crossweave-claim";
const DATA: &str = "crossweave-data";
const CHECKPOINT: &str = "crossweave-checkpoint";
const CONFIG: &str = "crossweave-config";
const ENGINE: &str = "crossweave-engine";
const JOB: &str = "crossweave-job";
const REPORT: &str = "crossweave-report";
const MODELS: &str = "crossweave-models";
const ESTIMATE: &str = "crossweave-estimate";
const TEAM: &str = "crossweave-team";
const FIGURES: &str = "crossweave-figures";
const TRAIN: &str = "crossweave";
/// Its library is what integration tests share.
const TESTS: &str = "crossweave-tests";

/// Every package of the workspace. `tests`, `benches`, `examples`, `xtask` and `cli` are floors on which nothing stands.
#[rustfmt::skip]
pub const CRATES: &[Crate] = &[
    Crate { name: ABI, floor: 0, ours: &[], theirs: &[], dev: &[] },
    // How sizes are written: below all that prints one.
    Crate { name: WORDS, floor: 0, ours: &[], theirs: &[], dev: &[] },
    // Ranks by hosts, and what leaves a host: below the back end that carries it and the figures that count it.
    Crate { name: HOSTS, floor: 0, ours: &[], theirs: &[], dev: &[] },
    // How files of users are opened and read: below all that reads one.
    Crate { name: FILES, floor: 1, ours: &[WORDS], theirs: &["libc"], dev: &[TESTS, "tempfile"] },
    Crate { name: PLUGIN, floor: 1, ours: &[ABI], theirs: &[], dev: &[] },
    Crate { name: HAL, floor: 2, ours: &[ABI, PLUGIN, FILES], theirs: &["libc", "libloading", "object", "serde", "serde_json", "thiserror"], dev: &["tempfile"] },
    // Swap files for blocks of pinned memory: system calls and a ring shared with the kernel, hence beside the HAL.
    Crate { name: STORE, floor: 3, ours: &[CLAIM, HAL, WORDS], theirs: &["io-uring", "libc", "thiserror"], dev: &[CPU, "proptest", "tempfile"] },
    // Speaks to the raw C tables, hence beside the HAL.
    Crate { name: CONFORM, floor: 3, ours: &[ABI, HAL, FILES], theirs: &["half", "libc", "libloading", "object", "serde", "serde_json", "sha2", "tempfile", "thiserror", "toml"], dev: &[CPU, PLUGIN] },
    // A plugin inside a plugin: C tables on both sides, hence beside the HAL.
    Crate { name: LAYERS, floor: 3, ours: &[ABI, PLUGIN, HAL, FILES], theirs: &["blake3", "serde_json"], dev: &[CPU, NULL, "tempfile"] },
    Crate { name: CLAIM, floor: 2, ours: &[FILES], theirs: &["serde", "serde_json", "thiserror"], dev: &["tempfile"] },
    Crate { name: PLAN, floor: 1, ours: &[AXES, WORDS], theirs: &["serde"], dev: &["serde_json"] },
    // Plans one level lower: the ABI's op ids, parameters and types, and no device.
    Crate { name: PROGRAM, floor: 2, ours: &[ABI, AXES, PLAN], theirs: &[], dev: &[] },
    // Pictures of a step, of which plans and runs know the times.
    Crate { name: TIMELINE, floor: 2, ours: &[PLAN, WORDS], theirs: &["serde", "serde_json"], dev: &[] },
    // Keys of config.json and descriptions of models: below the config, whose tables of a model are made of them.
    Crate { name: FAMILY, floor: 0, ours: &[], theirs: &["serde", "serde_json", "strsim"], dev: &[] },
    Crate { name: CONFIG, floor: 2, ours: &[AXES, FAMILY, PLAN], theirs: &["serde", "serde_json", "strsim"], dev: &["proptest"] },
    // Chat templates, which nobody vouches for: a language of its own, below the data that are written by it.
    Crate { name: JINJA, floor: 0, ours: &[], theirs: &["num-bigint"], dev: &["serde_json"] },
    Crate { name: DATA, floor: 2, ours: &[FILES, JINJA], theirs: &["chrono", "arrow-array", "arrow-ipc", "flate2", "glob", "parquet", "rayon", "safetensors", "serde", "serde_json", "sha2", "tempfile", "thiserror", "tiktoken-rs", "tokenizers", "zstd"], dev: &["proptest"] },
    // A back end knows the vendor side of the ABI and one vendor binding; the host side only in its tests.
    Crate { name: NULL, floor: 2, ours: &[PLUGIN, WORDS], theirs: &["libc"], dev: &[HAL] },
    Crate { name: CPU, floor: 2, ours: &[ABI, PLUGIN, WORDS], theirs: &["gemm", "half", "libc", "smallvec"], dev: &[TESTS, "libloading"] },
    Crate { name: MPI, floor: 2, ours: &[ABI, HOSTS, PLUGIN, WORDS], theirs: &["half", "libc", "libloading", "smallvec"], dev: &[TESTS] },
    Crate { name: WGPU, floor: 2, ours: &[ABI, PLUGIN, WORDS], theirs: &["half", "wgpu"], dev: &[CPU, NULL, HAL, PLAN, TENSOR, NN, ENGINE, TESTS, "serde_json"] },
    Crate { name: "crossweave-wgpu-plugin", floor: 3, ours: &[WGPU, PLUGIN], theirs: &[], dev: &[] },
    // Its tables are held against public bindings in tests only.
    Crate { name: CUDA, floor: 4, ours: &[PLUGIN, KERNELS, GPU], theirs: &[], dev: &[HAL, TESTS, "cudarc", "libloading", "tempfile"] },
    Crate { name: "crossweave-cuda-plugin", floor: 5, ours: &[CUDA, PLUGIN], theirs: &[], dev: &[] },
    // Its tables are held against AMD's headers in tests only.
    Crate { name: ROCM, floor: 4, ours: &[PLUGIN, KERNELS, GPU], theirs: &[], dev: &[HAL, TESTS, "libloading"] },
    Crate { name: "crossweave-rocm-plugin", floor: 5, ours: &[ROCM, PLUGIN], theirs: &[], dev: &[] },
    // Its tables are held against Huawei's headers in tests only.
    Crate { name: ASCEND, floor: 4, ours: &[ABI, PLUGIN, KERNELS, GPU], theirs: &["half"], dev: &[HAL, TESTS, "libloading"] },
    Crate { name: "crossweave-ascend-plugin", floor: 5, ours: &[ASCEND, PLUGIN], theirs: &[], dev: &[] },
    // What back ends of GPUs share, over one table of a vendor's run time.
    Crate { name: GPU, floor: 3, ours: &[ABI, PLUGIN, KERNELS, WORDS], theirs: &["blake3", "libloading"], dev: &["cudarc", "tempfile"] },
    // Device kernels as source, and how ops become launches of them: below the back ends that compile and run them.
    Crate { name: KERNELS, floor: 2, ours: &[ABI, PLUGIN], theirs: &[], dev: &[CPU, TESTS, "libloading", "object", "sha2"] },
    Crate { name: "crossweave-mpi-plugin", floor: 3, ours: &[MPI, PLUGIN], theirs: &[], dev: &[] },
    Crate { name: "crossweave-null-plugin", floor: 3, ours: &[NULL, PLUGIN], theirs: &[], dev: &[] },
    Crate { name: "crossweave-cpu-plugin", floor: 3, ours: &[CPU, PLUGIN], theirs: &[], dev: &[] },
    Crate { name: COLLECTIVES, floor: 3, ours: &[HAL], theirs: &[], dev: &[CPU, "half"] },
    // Places and groups as data: below plans and configs, which name ranks by them.
    Crate { name: AXES, floor: 0, ours: &[], theirs: &[], dev: &["proptest"] },
    Crate { name: MESH_SHOW, floor: 1, ours: &[AXES, HOSTS], theirs: &["serde_json"], dev: &[] },
    Crate { name: MESH, floor: 4, ours: &[AXES, HAL, HOSTS, COLLECTIVES], theirs: &[], dev: &[CPU] },
    Crate { name: TENSOR, floor: 5, ours: &[HAL, MESH, PROGRAM], theirs: &[], dev: &[CPU, TESTS, "half", "serde_json"] },
    // Runs programs on devices: below the engine and the host executor, which both do.
    Crate { name: MACHINE, floor: 6, ours: &[HAL, MESH, PROGRAM, STORE, TENSOR], theirs: &[], dev: &[] },
    Crate { name: OFFLOAD, floor: 7, ours: &[HAL, MACHINE, PROGRAM, STORE, TENSOR], theirs: &[], dev: &[] },
    // What a rank keeps from step to step, by the state table of its program.
    Crate { name: STATE, floor: 8, ours: &[HAL, MACHINE, MESH, OFFLOAD, PLAN, PROGRAM, TENSOR], theirs: &[], dev: &[] },
    Crate { name: OPTIM, floor: 5, ours: &[PROGRAM], theirs: &["serde", "strsim"], dev: &[] },
    // What is cut over the ranks, as data: below the algorithms that read it.
    Crate { name: FLAT, floor: 6, ours: &[OPTIM, PROGRAM], theirs: &[], dev: &[] },
    Crate { name: ZERO, floor: 7, ours: &[FLAT, OPTIM, PLAN, PROGRAM], theirs: &[], dev: &["proptest"] },
    Crate { name: PARALLEL, floor: 6, ours: &[PLAN], theirs: &[], dev: &[] },
    // Which passes and algorithms make a rank's step: above them, and below the engine that runs it.
    Crate { name: PLANNER, floor: 8, ours: &[HAL, MESH, PARALLEL, PLAN, PROGRAM, STORE, TENSOR, ZERO], theirs: &["serde"], dev: &[] },
    // Dtypes are the ABI's, so that a shard on disk and a tensor on a device name them alike.
    Crate { name: CHECKPOINT, floor: 6, ours: &[ABI, CLAIM, FILES, WORDS], theirs: &["blake3", "ed25519-dalek", "getrandom", "half", "safetensors", "serde", "serde_json", "sha2", "strsim", "thiserror"], dev: &["proptest", "tempfile"] },
    Crate { name: NN, floor: 7, ours: &[FAMILY, TENSOR], theirs: &["fancy-regex"], dev: &[] },
    Crate { name: ENGINE, floor: 9, ours: &[HAL, MACHINE, MESH, OFFLOAD, STATE, STORE, PLAN, PLANNER, PROGRAM, TENSOR], theirs: &["serde"], dev: &[CPU, NULL, CHECKPOINT, FAMILY, NN, ZERO, "safetensors", "serde_json", "tempfile"] },
    // What a run records for its report, and the pages made of it: without any crate that runs one.
    Crate { name: REPORT, floor: 3, ours: &[FILES, TIMELINE, WORDS], theirs: &["indicatif", "serde", "serde_json"], dev: &[] },
    // A config and the files it names, as values that ranks are made of: above what it opens and plans with, and without any device.
    Crate { name: JOB, floor: 9, ours: &[CHECKPOINT, CONFIG, DATA, FILES, HAL, MESH, NN, PLAN, PLANNER, TENSOR, ZERO], theirs: &["serde", "serde_json", "thiserror"], dev: &["tempfile"] },
    // What was trained, as files: checkpoints and models by what they say of themselves. No engine and no device.
    Crate { name: MODELS, floor: 10, ours: &[AXES, CHECKPOINT, CONFIG, DATA, FILES, JOB, NN, TENSOR, ZERO], theirs: &["serde_json"], dev: &[] },
    // The formulas of memory, traffic and time, over values of a job: no plan, engine or device.
    Crate { name: ESTIMATE, floor: 10, ours: &[AXES, CONFIG, FILES, JOB, NN, TENSOR, WORDS, ZERO], theirs: &["serde", "serde_json"], dev: &[] },
    // Who the ranks and processes of a job are, what computes them, and what is heard of them: the engine is named for its errors and figures.
    Crate {
        name: TEAM, floor: 10,
        ours: &[HAL, LAYERS, NULL, CPU, MESH, PLAN, CLAIM, DATA, CHECKPOINT, CONFIG, ENGINE, JOB, REPORT, FILES],
        theirs: &["serde", "serde_json", "thiserror"], dev: &["tempfile"],
    },
    // What is known of a job before it runs: above the engine that rehearses it, and below what runs it.
    Crate {
        name: FIGURES, floor: 11,
        ours: &[CONFIG, ENGINE, ESTIMATE, FILES, HAL, HOSTS, JOB, LAYERS, MESH, NN, PLAN, REPORT, TEAM, TENSOR, TIMELINE, WORDS, ZERO],
        theirs: &["serde", "serde_json"], dev: &[],
    },
    // What prepares a job and runs its ranks, for a program that trains: above the engine, and without a command line.
    Crate {
        name: TRAIN, floor: 12,
        ours: &[HAL, MESH, PLAN, TENSOR, TIMELINE, ZERO, NN, CLAIM, DATA, CHECKPOINT, CONFIG, ENGINE, JOB, REPORT, TEAM, FIGURES, MODELS, FILES, WORDS],
        theirs: &["serde", "serde_json", "tempfile"], dev: &[FAMILY, TESTS, "safetensors", "sha2"],
    },
    Crate {
        name: "crossweave-cli", floor: 13,
        ours: &[TRAIN, HAL, CONFORM, LAYERS, NULL, CPU, MESH, MESH_SHOW, DATA, CHECKPOINT, CONFIG, JOB, REPORT, FILES, WORDS],
        theirs: &["clap_complete", "clap_mangen", "console", "clap", "ctrlc", "indicatif", "nix", "serde_json", "thiserror"],
        dev: &[CLAIM, TESTS, "safetensors", "tempfile"],
    },
    Crate { name: TESTS, floor: 14, ours: ANY, theirs: ANY, dev: ANY },
    // Defects on purpose, for the conformance kit's own test.
    Crate { name: "crossweave-seeded", floor: 14, ours: ANY, theirs: ANY, dev: ANY },
    Crate { name: "crossweave-benches", floor: 14, ours: ANY, theirs: ANY, dev: ANY },
    Crate { name: "crossweave-examples", floor: 14, ours: ANY, theirs: ANY, dev: ANY },
    Crate { name: "xtask", floor: 0, ours: &[], theirs: &["nix", "proc-macro2", "serde_json", "syn", "toml"], dev: &[] },
];

/// Everything: for the packages on which nothing stands.
pub const ANY: &[&str] = &["*"];

/// Dependencies that the code of a crate need not name: crate, dependency, reason.
pub const UNNAMED_DEPENDENCIES: &[(&str, &str, &str)] = &[];

/// Words of vendors, banned above the back ends: an algorithm that names one has learnt something it must not know.
pub const VENDOR_WORDS: &[&str] = &[
    "cuda", "nccl", "hip", "rocm", "rccl", "ascend", "hccl", "npu", "cann", "wgpu", "vulkan",
    "metal",
];

/// Where they may stand.
pub const VENDOR_PLACES: &[&str] = &[
    "backends/",
    "ci/",
    ".ci/",
    "docs/",
    "tests/",
    "xtask/",
    "benches/RESULTS.md",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    // The workspace's own list of back ends and of what they bind.
    "Cargo.toml",
];

/// A vendor's word with a meaning of its own in one file.
pub const VENDOR_EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "hal/include/crossweave_plugin.h",
        "npu",
        "a kind of device in the frozen ABI, beside cpu and gpu",
    ),
    ("hal/abi/src/types.rs", "npu", "the same kind, mirrored"),
    (
        "hal/plugin/src/backend.rs",
        "npu",
        "the same kind, for vendors",
    ),
    ("hal/src/device.rs", "npu", "the same kind, for hosts"),
    (
        "cli/src/backends.rs",
        "npu",
        "the same kind, as users read it",
    ),
];

/// Lines a Rust source may have.
pub const MAX_LINES: usize = 800;

/// Sources that are tables or generated, and may be longer.
pub const LONG_FILES: &[(&str, &str)] = &[];

/// Documents that lead a newcomer, and the lines each may have.
pub const DOCUMENT_LINES: &[(&str, usize)] = &[("README.md", 120), (ARCHITECTURE, 200)];

/// Words that make a value of the whole process.
pub const GLOBALS: &[&str] = &[
    "OnceLock",
    "LazyLock",
    "OnceCell",
    "LazyCell",
    "thread_local",
    "lazy_static",
    "once_cell",
];

/// Where one may be.
pub const GLOBAL_PLACES: &[(&str, &str)] = &[
    ("cli/src/", "the process is its own"),
    (
        "hal/src/loader.rs",
        "libraries stay open until the process ends",
    ),
    (
        "hal/plugin/src/export.rs",
        "the slot of a backend's one instance, which only declare_backend! makes",
    ),
];

/// Folders whose crates may write `unsafe`. Every other crate forbids it at its root.
pub const UNSAFE_PLACES: &[&str] = &[
    "hal/",
    "backends/",
    "tensor/",
    "tests/",
    "examples/rust-plugin/",
];

/// What the number of a rank in the job is called.
pub const JOB_RANK: &str = "job_rank";

/// Crates that know a rank by its place on the mesh.
pub const ABOVE_MESH: &[&str] = &[
    "engine/",
    "nn/",
    "parallel/",
    "plan/",
    "planner/",
    "tensor/",
    "zero/",
];

/// Who names it all the same: file, how many times, why.
#[rustfmt::skip]
pub const JOB_RANK_PLACES: &[(&str, usize, &str)] = &[
    ("engine/src/dry.rs", 1, "an error names the rank"),
    ("engine/src/scale.rs", 1, "errors name the rank"),
    ("engine/src/engine/eval.rs", 1, "an error names the rank"),
    ("engine/src/engine/mod.rs", 3, "errors name the rank"),
    ("engine/src/engine/nonfinite.rs", 1, "the sentence about a value that is not finite names the rank"),
    ("engine/src/engine/start.rs", 2, "errors and the name of the host's thread"),
    ("engine/src/engine/state.rs", 1, "errors of the state name the rank"),
    ("engine/src/engine/walk.rs", 1, "errors name the rank"),
    ("plan/src/world.rs", 1, "plans of a whole job come in this order"),
    ("planner/src/lower.rs", 1, "an error names the rank"),
    ("planner/src/spec/mod.rs", 1, "an error names the rank"),
    ("planner/src/units.rs", 1, "an error names the rank"),
    ("engine/state/src/ranks.rs", 1, "an error names the rank"),
];

/// Functions and macros nobody commits.
pub const BANNED_MACROS: &[&str] = &["todo", "unimplemented", "dbg"];

/// Modules of std that a pure crate does not name.
pub const IMPURE: &[&str] = &["env", "fs", "time", "thread", "net", "process"];

/// Folders of pure crates: no device, no clock, no files.
pub const PURE_PLACES: &[&str] = &["plan/src/", "plan/program/src/"];

/// Calls by which a process learns of or ends itself; only `cli` makes them, and what nothing stands on.
pub const PROCESS_CALLS: &[&str] = &[
    "env::var",
    "env::var_os",
    "env::vars",
    "env::vars_os",
    "env::args",
    "env::args_os",
    "env::set_var",
    "env::current_dir",
    "process::exit",
    "process::abort",
];

/// Where they may stand: programs, and tests.
pub const PROCESS_PLACES: &[&str] = &["cli/", "tests/", "benches/", "examples/", "xtask/"];

/// Macros that print and names by which signals are taken: a library leaves both to the program that calls it.
pub const PROGRAM_WORDS: &[&str] = &[
    "print", "println", "eprint", "eprintln", "ctrlc", "signal", "clap",
];

/// Crates that a program without a command line calls.
pub const LIBRARY_PLACES: &[&str] = &[
    "job/src/",
    "models/src/",
    "figures/",
    "team/src/",
    "train/src/",
];

/// Units behind a value, which only one formatter writes.
pub const SIZE_UNITS: &[&str] = &[
    "kB", "KB", "MB", "GB", "TB", "PB", "KiB", "MiB", "GiB", "TiB",
];

/// Formatters of others.
pub const SIZE_NAMES: &[&str] = &["HumanBytes", "BinaryBytes", "DecimalBytes"];

/// Where sizes are written: the formatter, this rule, and a message about a key whose unit is MiB.
pub const SIZE_PLACES: &[&str] = &[
    "support/words/",
    "xtask/",
    "backends/cuda/src/cudnn/plan.rs",
];

/// Calls that open whatever lies at a path, be it a pipe that nobody writes to or a disk of zeros.
pub const OPEN_CALLS: &[&str] = &["File::open", "fs::read", "fs::read_to_string"];

/// Where files of users are read, by `crossweave-files` alone.
pub const OPEN_PLACES: &[&str] = &[
    "cli/src/",
    "checkpoint/src/",
    "config/src/",
    "data/src/",
    "job/src/",
    "models/src/",
    "figures/",
    "team/src/",
    "report/src/",
    "train/src/",
];

/// Files that open a folder, to sync it.
pub const OPEN_EXCEPTIONS: &[&str] = &["checkpoint/src/files.rs", "data/src/atomic.rs"];

/// Beginnings of paths that exist on one developer's machine only.
pub const MACHINE_PATHS: &[&str] = &["/home/", "/Users/", "/root/", "C:\\Users\\"];

/// Where they may stand: the rule itself.
pub const MACHINE_PLACES: &[&str] = &["xtask/"];

/// Documents whose named files, functions and tests must exist.
pub const DOCUMENTS: &[&str] = &[
    "docs/",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
];

/// The list of what must always hold.
pub const INVARIANTS: &str = "docs/invariants.md";

/// The page for newcomers.
pub const ARCHITECTURE: &str = "docs/ARCHITECTURE.md";
/// The beginning of the paragraph in which every folder with a crate stands as `folder/`, behind those that it uses.
pub const FOLDER_LIST: &str = "Folders, lowest first:";

/// Phrases that prose does not use, and what it says instead (`docs/glossary.md`).
pub const STOP_WORDS: &[(&str, &str)] = &[
    ("foretell", "predict"),
    ("foretells", "predicts"),
    ("foretold", "predicted"),
    ("told", "reported, given, printed, or named"),
    ("tells", "reports, returns, prints, or shows"),
    ("device of nothing", "the null device"),
    ("dear", "expensive"),
    ("begin of", "start of"),
    ("whoever", "any rank that, the caller, the thread that"),
    ("nobody's business", "below the reporting threshold"),
];

/// Where no prose is read (the lists themselves), and where only messages and the heads of crates are (the engine's internals, whose names follow
/// when it becomes an interpreter of programs).
pub const WORD_PLACES: (&[&str], &[&str]) = (
    &[
        "xtask/src/rules/words.rs",
        "xtask/src/tables",
        "docs/glossary.md",
    ],
    &["engine/src/"],
);

/// What is left over from before the stop list: folder or file, phrase, how often. A number only goes down; a new entry is refused in review.
#[rustfmt::skip]
pub const WORD_DEBTS: &[(&str, &str, usize)] = &[];

/// Sources whose doc comments all begin with a noun or a verb; the others follow crate by crate.
pub const DESCRIBED: &[&str] = &[
    "config/src/",
    "data/src/",
    "data/jinja/src/",
    "nn/family/src/",
    "nn/src/",
    "plan/src/",
    "planner/src/",
    "plan/program/src/",
];
