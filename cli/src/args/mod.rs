//! The command line, stated once: subcommands, flags, and an example with each.
// The comments here are the text of `--help`, where brackets and angles are what a user types.
#![allow(rustdoc::broken_intra_doc_links, rustdoc::invalid_html_tags)]

mod conform;
mod estimate;
mod explain;
mod replay;
mod train;

use crate::figures::plan::Spread;
use crate::ranks::Ranks;
use clap::builder::TypedValueParser as _;
use clap::{Args, Parser, Subcommand, ValueEnum};
pub use conform::ConformArgs;
pub use estimate::{AccountingName, EstimateArgs, HomeName, KeepName};
pub use explain::ExplainArgs;
pub use replay::ReplayArgs;
use std::path::PathBuf;
pub use train::{BackendArgs, ExploreArgs, TrainArgs};

/// A number above zero, as a flag takes it.
fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x > 0.0 && x.is_finite() => Ok(x),
        _ => Err("wanted a number above 0".to_string()),
    }
}

/// Trains, checks and runs language models through one interface to any device.
#[derive(Debug, Parser)]
#[command(
    name = "crossweave",
    version,
    after_help = "Examples:\n  crossweave train examples/configs/quickstart.json\n  crossweave generate --model runs/quickstart --prompt \"impl \"\n  crossweave plan train.json --ranks 64 --device h100\n  crossweave mesh show train.json --ranks 64\n  crossweave config explain lr\n  crossweave backends\n  crossweave completions bash"
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a model as a config says
    #[command(
        after_help = "Examples:\n  crossweave train train.json\n  crossweave train train.json --ranks 2 --steps 500 --out runs/a\n  crossweave train train.json --set optimizer.params.lr=3e-4 --set bf16.enabled=true\n  crossweave train train.json --resume runs/a\n  crossweave train train.json --ranks cpu:2,./libcrossweave_other.so:1\n  mpirun -n 2 crossweave train train.json --ranks cpu:2\n\nThe last is 4 ranks, two in each process. The output folder gets metrics.jsonl, ledger.json, config.json, checkpoints/ and model/ (Hugging Face layout)."
    )]
    Train(TrainArgs),
    /// Run a config's steps under many seeded schedules of its ranks: what depends on timing fails under some seed, and again under it
    #[command(
        after_help = "Examples:\n  crossweave explore train.json --ranks 4\n  crossweave explore train.json --ranks 4 --seeds 500 --schedule pct:3\n  crossweave explore train.json --ranks 4 --seed 17\n\nUnder a seed one thread of the job runs at a time, and the seed decides at every call of the device who is next. A schedule fails when\na rank fails, when no thread can run (a deadlock, reported at once with who waits for what), or when a step's figures have other bits than\nunder the schedule fifo. Small models and few steps are enough: the order of calls is what is explored. Nothing is written."
    )]
    Explore(ExploreArgs),
    /// Write logits, loss and gradients of a Hugging Face folder for given tokens
    #[command(
        after_help = "Example:\n  crossweave probe --model models/gpt2 --inputs inputs.safetensors --out probe.safetensors\n\nInputs: input_ids [B, T], I64. Output: logits [B, T, V], loss (next-token cross-entropy, mean over B x (T-1)) and grad.<name> of every parameter, all F32."
    )]
    Probe(ProbeArgs),
    /// Continue a text with a trained model
    #[command(
        after_help = "Examples:\n  crossweave generate --model runs/quickstart/model --prompt \"fn main\"\n  crossweave generate --model models/gpt2 --prompt \"Once\" --tokens 100 --temperature 0"
    )]
    Generate(GenerateArgs),
    /// List the back ends that can be used
    #[command(
        after_help = "Examples:\n  crossweave backends\n  crossweave backends --json\n  crossweave backends --plugin ./libcrossweave_acme.so\n\nPlugins are found beside the program and on CROSSWEAVE_PLUGIN_PATH; what a found plugin's devices are is asked in a process of its own, which a broken driver may take down."
    )]
    Backends(BackendsArgs),
    /// Create a plugin project: a device that builds, conforms and trains, to start your back end from
    #[command(
        after_help = "Examples:\n  crossweave new-plugin acme --lang c\n  crossweave new-plugin acme --lang rust --out work/acme\n\nThe project needs make and a C compiler (Debian and Ubuntu: apt-get install make gcc libc6-dev), or cargo, and nothing else: headers, or the crates that make Rust traits into the C tables, come with it.\nIt is a software device with every mandatory op; docs/write-a-backend.md leads from there to a back end that is fast."
    )]
    NewPlugin(NewPluginArgs),
    /// Check a config, print the schema, or explain every key
    #[command(
        after_help = "Examples:\n  crossweave config check train.json --ranks 4\n  crossweave config schema > crossweave.schema.json\n  crossweave config explain train.json"
    )]
    Config {
        /// What to do with it.
        #[command(subcommand)]
        action: ConfigAction,
    },
    /// Show where each rank stands on the mesh, and every group with its members
    #[command(
        after_help = "Example:\n  crossweave mesh show train.json --ranks 16 --set mesh.tp=2"
    )]
    Mesh {
        /// What to do with it.
        #[command(subcommand)]
        action: MeshAction,
    },
    /// Predict a training step without running it: memory by tag, traffic by mesh axis, whether it fits, and what to change
    #[command(
        after_help = "Examples:\n  crossweave plan train.json --ranks 64\n  crossweave plan train.json --ranks 64 --device h100\n  crossweave plan train.json --hosts 8x8\n  crossweave plan train.json --text\n  crossweave plan train.json --print\n  crossweave plan train.json --ranks 4 --program --rank 1\n  crossweave plan train.json --ranks 4 --schedule step.svg\n  crossweave plan train.json --ranks 4 --schedule - --costs runs/a\n  crossweave plan train.json --ranks 4096 --json --device h100\n\nNothing is allocated or computed: the step is rehearsed on the null device, whose ledgers count what the real one's will.\nSizes are those of one rank (1 GB is 10^9 bytes); calls those of one optimizer step. Formulas: docs/zero.md."
    )]
    Plan(PlanArgs),
    /// Show the route of every op and collective of a step on a back end, what a call costs, and what would improve it
    #[command(
        after_help = "Examples:\n  crossweave explain train.json\n  crossweave explain train.json --plugin ./libcrossweave_acme.so --ranks 2\n  crossweave explain train.json --write-lock routes.json\n  crossweave explain train.json --lock routes.json\n  crossweave explain train.json --layer lacks=attention_bwd+matmul:bf16\n\nNothing is trained: the step is rehearsed on the null device, and every op it launches is prepared on the back end. Routes, best\nfirst: native, elementwise_program, mixed, primitives, wider (cast, run in f32, cast back), host (only with run.allow_host_ops).\n--lock ends with status 1 when a route is worse than in the file, or costs more launches."
    )]
    Explain(ExplainArgs),
    /// Estimate memory, traffic and time of a model, a config or a Hugging Face folder from formulas alone
    #[command(
        after_help = "Examples:\n  crossweave estimate gpt2-xl\n  crossweave estimate 7.5B --ranks 64\n  crossweave estimate gpt3-175b --accounting fp32\n  crossweave estimate gpt3-175b --time --tflops 34.5 --tokens 300B\n  crossweave estimate 10B --device-memory 32GB --host 1.5TB --keep inputs\n  crossweave estimate 1T --nodes 1 --host 1.5TB --nvme 28TB\n  crossweave estimate train.json --ranks 64 --device h100\n  crossweave estimate models/llama --ranks 8 --device a100\n  crossweave estimate --devices\n\nMODEL is a preset (gpt2, gpt2-medium, gpt2-large, gpt2-xl, gpt3-6.7b, gpt3-13b, turing-17b, gpt3-175b, mt-nlg-530b, gpt-1t,\nllama-7b, llama-13b, llama-65b, llama2-70b, llama3-8b, llama3-70b, llama3-405b) or a number of parameters.\nOf models with experts (350m+moe-128, 350m+pr-moe-32/64, 350m+pr-moe-32/64+l21, and from 1.3b) parameters are counted.\nA config gives ranks, stage, types, offload and batch, which flags replace. Of a Hugging Face folder only config.json is read.\nSizes are decimal: 1 GB is 10^9 bytes; --json prints bytes. `crossweave plan CONFIG.json --ranks N` rehearses a config and gives exact figures."
    )]
    Estimate(EstimateArgs),
    /// Make the calls of a recorded run on a back end, without model or data, and compare what comes back
    #[command(
        after_help = "Examples:\n  crossweave train train.json --steps 3 --layer record=run.calls\n  crossweave replay run.calls\n  crossweave replay run.calls --plugin ./libcrossweave_acme.so --rtol 1e-4\n\nThe file holds every call at the boundary of the back end with the bytes that went to the device and came back (docs/layers.md)."
    )]
    Replay(ReplayArgs),
    /// Write a run's report, or a comparison of two runs: one self-contained HTML page
    #[command(
        after_help = "Examples:\n  crossweave report runs/quickstart\n  crossweave report runs/quickstart --tensorboard\n  crossweave report runs/a runs/b --out a-and-b.html\n\nThe page says what ran, where the time and the memory of a step went, and shows the curves. MFU is the share of the devices' peak: of known\naccelerators in 16 bits by their data sheet, of the CPU by a matrix product measured at the end of the run."
    )]
    Report(ReportArgs),
    /// Show what each rank asked of the others last, from the records a failed run has left
    #[command(
        after_help = "Examples:\n  crossweave flight runs/a\n  crossweave flight runs/a --last 40\n  crossweave flight runs/a/flight-rank2.json\n\nA run that fails while ranks talk to each other leaves flight-rank<R>.json in its folder: the last 1024 collectives of the rank, with\ncall sites. The table has one line for ranks that asked for the same, and marks who differs and who is behind."
    )]
    Flight(FlightArgs),
    /// Hold a plugin against its contract: what it claims must be right, what it does not claim must be refused
    #[command(
        after_help = "Examples:\n  crossweave conform ./libcrossweave_acme.so --profile minimal\n  crossweave conform cpu --level coll --report cpu.json --markdown cpu.md\n  crossweave conform mpi --profile collective-only --launcher mpirun --ranks 2,4\n  crossweave conform ./libcrossweave_acme.so --only 'order.*' --expect expect.toml\n\nExit codes: 0 all that is claimed holds, 1 a claim fails, 2 not loadable or a mandatory slot is missing, 3 the machine lacks something\nor not all was run, 4 a case passes that is listed as failing. Guide: docs/conformance.md."
    )]
    Conform(ConformArgs),
    /// Print the script by which a shell completes commands, flags and values
    #[command(
        after_help = "Examples:\n  crossweave completions bash > ~/.local/share/bash-completion/completions/crossweave\n  crossweave completions zsh > ~/.zfunc/_crossweave        # with fpath+=~/.zfunc before compinit in ~/.zshrc\n  crossweave completions fish > ~/.config/fish/completions/crossweave.fish\n  source <(crossweave completions bash)                    # for this shell only"
    )]
    Completions {
        /// The shell
        #[arg(value_name = "SHELL")]
        shell: clap_complete::Shell,
    },
    /// Print the manual page of a command, or of all
    #[command(
        after_help = "Examples:\n  crossweave man | man -l -\n  crossweave man train | man -l -\n  crossweave man config check > /usr/local/share/man/man1/crossweave-config-check.1"
    )]
    Man {
        /// The command, e.g. `config check`; without it, crossweave itself
        #[arg(value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// A child of `conform`
    #[command(hide = true)]
    ConformChild {
        /// The job a parent has written.
        #[arg(value_name = "FILE")]
        job: PathBuf,
    },
    /// Look into checkpoints, or verify every byte of them
    #[command(
        after_help = "Examples:\n  crossweave checkpoint inspect runs/quickstart\n  crossweave checkpoint verify runs/quickstart/checkpoints/step-00000200"
    )]
    Checkpoint {
        /// What to do with it.
        #[command(subcommand)]
        action: CheckpointAction,
    },
}

/// A language to write a plugin in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Lang {
    /// Traits of safe Rust, exported as C tables by a macro.
    Rust,
    /// The C tables themselves.
    C,
}

impl Lang {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Lang::Rust => "Rust",
            Lang::C => "C",
        }
    }
}

/// Flags of `new-plugin`.
#[derive(Clone, Debug, Args)]
pub struct NewPluginArgs {
    /// The plugin's name: small letters, digits, _; the library is libcrossweave_NAME.so
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The language to write it in
    #[arg(long, value_name = "LANG", value_enum)]
    pub lang: Lang,
    /// The folder to create; default: NAME
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// Flags of `flight`.
#[derive(Clone, Debug, Args)]
pub struct FlightArgs {
    /// A run's folder, or one flight-rank<R>.json
    #[arg(value_name = "DIR|FILE")]
    pub path: PathBuf,
    /// Collectives shown of each group
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u64).range(1..).map(|n| n as usize))]
    pub last: usize,
}

/// Element types of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProbeType {
    /// float32
    F32,
    /// bfloat16
    Bf16,
}

/// Flags of `probe`.
#[derive(Clone, Debug, Args)]
pub struct ProbeArgs {
    /// Model folder in Hugging Face layout, folder of a run or of a checkpoint, or ORG/NAME of the hub cache
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// safetensors file with input_ids [B, T]
    #[arg(long, value_name = "FILE.safetensors")]
    pub inputs: PathBuf,
    /// safetensors file to write
    #[arg(long, value_name = "FILE.safetensors")]
    pub out: PathBuf,
    /// Type parameters and activations are computed in
    #[arg(long, value_enum, default_value = "f32")]
    pub dtype: ProbeType,
    /// Ranks over which the model is laid, as of `train`; what they find is gathered
    #[arg(long, value_name = "N|NAME:N,...", value_parser = Ranks::parse)]
    pub ranks: Option<Ranks>,
    /// Set a key of mesh or zero_optimization, or model.recompute; may be repeated
    #[arg(long = "set", value_name = "key.path=value")]
    pub sets: Vec<String>,
    /// The back end that computes.
    #[command(flatten)]
    pub backend: BackendArgs,
}

/// Flags of `generate`.
#[derive(Clone, Debug, Args)]
pub struct GenerateArgs {
    /// Model folder in Hugging Face layout, folder of a run (its newest checkpoint) or of a checkpoint, or ORG/NAME of the hub cache
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// Text to continue; empty = start of a document
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: String,
    /// Tokens to generate
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub tokens: u64,
    /// 0 = always the likeliest token
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    pub temperature: f64,
    /// Draw from the K likeliest tokens; 0 = from all
    #[arg(long, value_name = "K", default_value_t = 40)]
    pub top_k: u64,
    /// Seed of the draw
    #[arg(long, value_name = "N", default_value_t = crossweave_config::DEFAULT_SEED)]
    pub seed: u64,
    /// The back end that computes.
    #[command(flatten)]
    pub backend: BackendArgs,
}

/// Flags of `backends`.
#[derive(Clone, Debug, Args)]
pub struct BackendsArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Load this plugin file too, and list its devices
    #[arg(long, value_name = "PATH")]
    pub plugin: Option<PathBuf>,
    /// Print what this plugin file alone says of itself, as JSON: what a listing asks in a process of its own
    #[arg(long, hide = true, value_name = "PATH")]
    pub probe: Option<PathBuf>,
}

/// What to do with a config.
#[derive(Clone, Debug, Subcommand)]
pub enum ConfigAction {
    /// Say what a config amounts to, or what is wrong with it
    #[command(after_help = "Example:\n  crossweave config check train.json --ranks 4")]
    Check {
        /// The config
        #[arg(value_name = "CONFIG.json")]
        config: PathBuf,
        /// Ranks it shall run on
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=crate::ranks::MOST_PLANNED))]
        ranks: Option<u32>,
        /// Set a key of the config; may be repeated
        #[arg(long = "set", value_name = "key.path=value")]
        sets: Vec<String>,
        /// Look at the config alone, where the files it names are on another machine
        #[arg(long)]
        no_files: bool,
        /// The back end
        #[command(flatten)]
        backend: BackendArgs,
    },
    /// Print the JSON schema of configs, for editors
    #[command(after_help = "Example:\n  crossweave config schema > crossweave.schema.json")]
    Schema,
    /// Explain one key, every key of a config with its value and origin, or every key there is
    #[command(
        after_help = "Examples:\n  crossweave config explain zero_optimization.stage\n  crossweave config explain lr\n  crossweave config explain train.json\n  crossweave config explain train.json zero_optimization.stage\n  crossweave config explain\n\nA key is found by its path, by the end of it, by DeepSpeed's other spellings and by the words of other programs. Lines are as wide\nas the terminal, or 80 characters."
    )]
    Explain {
        /// A config, or a key; without it, every key
        #[arg(value_name = "CONFIG.json|KEY")]
        what: Option<String>,
        /// A key, with its value in that config
        #[arg(value_name = "KEY")]
        key: Option<String>,
        /// Print the reference of all keys as Markdown
        #[arg(long)]
        markdown: bool,
        /// Set a key of the config; may be repeated
        #[arg(long = "set", value_name = "key.path=value")]
        sets: Vec<String>,
    },
}

/// What to do with a mesh.
#[derive(Clone, Debug, Subcommand)]
pub enum MeshAction {
    /// Print the rank map and every group of ranks with its members and what it is for; draw it as SVG
    #[command(
        after_help = "Examples:\n  crossweave mesh show train.json --ranks 16\n  crossweave mesh show train.json --ranks 16 --set mesh.pp=2 --set mesh.tp=2 --set mesh.ep=4 --set mesh.etp=1\n  crossweave mesh show train.json --ranks 64 --set mesh.tp=8 --svg mesh.svg\n  crossweave mesh show train.json --hosts 4x8 --set mesh.tp=8\n  crossweave mesh show train.json --ranks 8 --set 'mesh.order=\"pp,tp,dp\"' --json\n\nOnly the section \"mesh\" of the config is read, and with --hosts the node of hpZ, also where the trainer refuses it for this model.\npp x dp x cp x tp is the number of ranks; experts are carved from the ranks of a stage, dp x cp x tp = edp x ep x etp. 0-6:2 stands for 0, 2, 4, 6."
    )]
    Show {
        /// The config
        #[arg(value_name = "CONFIG.json")]
        config: PathBuf,
        /// Ranks; default: the product of the axes
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
        ranks: Option<u32>,
        /// Set a key of the config; may be repeated
        #[arg(long = "set", value_name = "key.path=value")]
        sets: Vec<String>,
        /// Hosts the ranks are on, numbered host by host: 4, or 4x8 for eight on each of four; says which groups lie within one
        #[arg(long, value_name = "H[xR]")]
        hosts: Option<Spread>,
        /// Write a drawing: a panel a stage, a cell a rank
        #[arg(long, value_name = "FILE.svg")]
        svg: Option<PathBuf>,
        /// Print ranks and groups as JSON
        #[arg(long)]
        json: bool,
    },
}

/// Flags of `plan`.
#[derive(Clone, Debug, Args)]
pub struct PlanArgs {
    /// The config
    #[arg(value_name = "CONFIG.json")]
    pub config: PathBuf,
    /// Print every tag, collective and transfer with its formula instead of the summary
    #[arg(long)]
    pub text: bool,
    /// Print the plan's steps and units too
    #[arg(long)]
    pub print: bool,
    /// Print what a rank executes: its memory, and the instructions of each step of the plan
    #[arg(long, conflicts_with_all = ["text", "print", "json"])]
    pub program: bool,
    /// Whose program; default: rank 0
    #[arg(long, value_name = "R", requires = "program")]
    pub rank: Option<u32>,
    /// Ranks; default: mesh.dp, else 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=crate::ranks::MOST_PLANNED))]
    pub ranks: Option<u32>,
    /// Hosts the ranks are on, numbered host by host: 4, or 4x8 for eight on each of four; adds what each host sends to others
    #[arg(long, value_name = "H[xR]", conflicts_with_all = ["program", "schedule"])]
    pub hosts: Option<Spread>,
    /// Print figures, plan and sizes (in bytes) as JSON
    #[arg(long)]
    pub json: bool,
    /// Draw what every pipeline stage does when: to a .svg, a .txt or a .json for Perfetto, or - for the screen
    #[arg(long, value_name = "FILE", conflicts_with_all = ["text", "print", "json", "program"])]
    pub schedule: Option<PathBuf>,
    /// By what schedules are timed: work (multiply-adds of each unit), even (all parts of a run alike), or the folder of a run that has measured its units
    #[arg(long, value_name = "HOW", default_value = "work")]
    pub costs: String,
    /// Device that it is to fit, by name (`crossweave estimate --devices` lists them); default: the one that the config's back end has here
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Set a key of the config; may be repeated
    #[arg(long = "set", value_name = "key.path=value")]
    pub sets: Vec<String>,
}

/// Flags of `report`.
#[derive(Clone, Debug, Args)]
pub struct ReportArgs {
    /// Output folder of a run; of a second one, to compare the two
    #[arg(value_name = "DIR", num_args = 1..=2, required = true)]
    pub dirs: Vec<PathBuf>,
    /// File to write, instead of report.html (of two runs: report-against-B.html) in the first folder
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Peak of the device of each rank in TFLOP/s, for MFU; default: what the run has recorded
    #[arg(long, value_name = "T", value_parser = positive)]
    pub peak_tflops: Option<f64>,
    /// Write TensorBoard event files too
    #[arg(long)]
    pub tensorboard: bool,
}

/// What to do with a checkpoint.
#[derive(Clone, Debug, Subcommand)]
pub enum CheckpointAction {
    /// Say what is in it, in a few lines
    #[command(
        after_help = "Examples:\n  crossweave checkpoint inspect runs/quickstart\n  crossweave checkpoint inspect runs/quickstart/checkpoints/step-00000200 --tensors\n  crossweave checkpoint inspect models/mine --state"
    )]
    Inspect {
        /// Folder of a run, of a checkpoint, or of a model, or a safetensors file
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        /// List every tensor, and every file with its hash
        #[arg(long)]
        tensors: bool,
        /// Print what is stored beside the tensors: counters, the config, metadata
        #[arg(long)]
        state: bool,
        /// Print it as JSON
        #[arg(long)]
        json: bool,
    },
    /// Hold every file against its recorded length and hash
    #[command(
        after_help = "Examples:\n  crossweave checkpoint verify runs/quickstart\n  crossweave checkpoint verify runs/quickstart --key team.key.pub"
    )]
    Verify {
        /// Folder of a run, of a checkpoint, or of a model
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        /// Public key whose owner must have signed every checkpoint there
        #[arg(long, value_name = "FILE")]
        key: Option<PathBuf>,
        /// Print it as JSON
        #[arg(long)]
        json: bool,
    },
    /// Make a pair of keys: the secret one, and beside it the public one with .pub added to its name
    #[command(after_help = "Example:\n  crossweave checkpoint keygen team.key")]
    Keygen {
        /// File to write the secret key to
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Verify every byte of checkpoints, then sign their manifests
    #[command(after_help = "Example:\n  crossweave checkpoint sign runs/quickstart --key team.key")]
    Sign {
        /// Folder of a run or of a checkpoint
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        /// Secret key
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
    },
    /// Write an equivalent checkpoint for another number of ranks (every checkpoint loads on any number without this)
    #[command(
        after_help = "Example:\n  crossweave checkpoint reshard runs/a runs/a-on-4 --ranks 4 --stage 3\n  crossweave train train.json --ranks 4 --resume runs/a-on-4"
    )]
    Reshard {
        /// Folder of a run (its newest checkpoint) or of a checkpoint
        #[arg(value_name = "IN")]
        dir: PathBuf,
        /// Folder of a run to write it to; it must hold no checkpoints
        #[arg(value_name = "OUT")]
        out: PathBuf,
        /// Ranks to write it for
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
        ranks: u32,
        /// ZeRO stage to record in its config
        #[arg(long, value_name = "S", value_parser = clap::value_parser!(u8).range(0..=3))]
        stage: Option<u8>,
        /// Print what was done as JSON
        #[arg(long)]
        json: bool,
    },
    /// Write its model in Hugging Face layout
    #[command(
        after_help = "Example:\n  crossweave checkpoint export runs/quickstart --out models/mine --dtype bf16"
    )]
    Export {
        /// Folder of a run (its newest checkpoint) or of a checkpoint
        #[arg(value_name = "CHECKPOINT")]
        dir: PathBuf,
        /// Folder to write
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// Type of the weights
        #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = ["f32", "bf16", "f16"])]
        dtype: String,
        /// For a run with adapters: write the whole model, the adapters merged into the weights under them
        #[arg(long)]
        merge: bool,
        /// For a run with run.ema_decay: write the moving average of the weights
        #[arg(long)]
        ema: bool,
        /// Print what was done as JSON
        #[arg(long)]
        json: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent_and_every_command_shows_an_example() {
        let mut cli = Cli::command();
        cli.build();
        cli.clone().debug_assert();
        fn walk(c: &clap::Command) {
            let help = c.get_after_help().map(|h| h.to_string());
            let shown = help.is_some_and(|h| h.contains("crossweave "));
            assert!(shown || c.get_name() == "help", "{}", c.get_name());
            c.get_subcommands()
                // What is hidden is the program's own, not a user's.
                .filter(|s| s.get_name() != "help" && !s.is_hide_set())
                .for_each(walk);
        }
        walk(&cli);
    }
}
