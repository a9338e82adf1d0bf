//! The command line, stated once: subcommands, flags, and an example with each.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Trains, checks and runs language models through one interface to any device.
#[derive(Debug, Parser)]
#[command(
    name = "crossweave",
    version,
    after_help = "Examples:\n  crossweave train examples/configs/quickstart.json\n  crossweave generate --model runs/quickstart/model --prompt \"impl \"\n  crossweave backends"
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
        after_help = "Examples:\n  crossweave train train.json\n  crossweave train train.json --ranks 2 --steps 500 --out runs/a\n  crossweave train train.json --set optimizer.params.lr=3e-4 --set bf16.enabled=true\n  crossweave train train.json --resume runs/a\n\nThe output folder gets metrics.jsonl, ledger.json, config.json, checkpoints/ and model/ (Hugging Face layout)."
    )]
    Train(TrainArgs),
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
        after_help = "Examples:\n  crossweave backends\n  crossweave backends --json\n  crossweave backends --plugin ./libcrossweave_acme.so\n\nPlugins are found beside the program and on CROSSWEAVE_PLUGIN_PATH; a listing reads their manifests and runs none of their code."
    )]
    Backends(BackendsArgs),
    /// Check a config, print the schema, or explain every key
    #[command(
        after_help = "Examples:\n  crossweave config check train.json --ranks 4\n  crossweave config schema > crossweave.schema.json\n  crossweave config explain train.json"
    )]
    Config {
        /// What to do with it.
        #[command(subcommand)]
        action: ConfigAction,
    },
    /// Print the plan of one training step
    #[command(
        after_help = "Examples:\n  crossweave plan train.json --print\n  crossweave plan train.json --print --ranks 4 --json"
    )]
    Plan(PlanArgs),
    /// Write a run's report: one self-contained HTML page
    #[command(
        after_help = "Examples:\n  crossweave report runs/quickstart\n  crossweave report runs/quickstart --tensorboard"
    )]
    Report(ReportArgs),
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

/// Which back end computes.
#[derive(Clone, Debug, Default, Args)]
pub struct BackendArgs {
    /// Back end by name (see `crossweave backends`); default: run.backend, else cpu
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,
    /// Back end from this plugin file
    #[arg(long, value_name = "PATH")]
    pub plugin: Option<PathBuf>,
}

/// Flags of `train`.
#[derive(Clone, Debug, Args)]
pub struct TrainArgs {
    /// The config
    #[arg(value_name = "CONFIG.json")]
    pub config: PathBuf,
    /// Ranks to start; default: mesh.dp, else 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub ranks: Option<u32>,
    /// Which back end computes.
    #[command(flatten)]
    pub backend: BackendArgs,
    /// Set a key of the config; may be repeated
    #[arg(long = "set", value_name = "key.path=value")]
    pub sets: Vec<String>,
    /// Optimizer steps; the same as --set run.steps=N
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: Option<u64>,
    /// Output folder; default: run.out, else runs/<name of the config>
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Continue the run in this folder from its newest checkpoint
    #[arg(long, value_name = "DIR")]
    pub resume: Option<PathBuf>,
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
    /// Hugging Face folder
    #[arg(long, value_name = "HFDIR")]
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
    /// Which back end computes.
    #[command(flatten)]
    pub backend: BackendArgs,
}

/// Flags of `generate`.
#[derive(Clone, Debug, Args)]
pub struct GenerateArgs {
    /// Model folder in Hugging Face layout
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
    /// Which back end computes.
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
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
        ranks: Option<u32>,
        /// Set a key of the config; may be repeated
        #[arg(long = "set", value_name = "key.path=value")]
        sets: Vec<String>,
    },
    /// Print the JSON schema of configs, for editors
    #[command(after_help = "Example:\n  crossweave config schema > crossweave.schema.json")]
    Schema,
    /// Print every key with its value, origin and meaning
    #[command(
        after_help = "Examples:\n  crossweave config explain train.json\n  crossweave config explain"
    )]
    Explain {
        /// The config; without it, the reference of all keys
        #[arg(value_name = "CONFIG.json")]
        config: Option<PathBuf>,
        /// Set a key of the config; may be repeated
        #[arg(long = "set", value_name = "key.path=value")]
        sets: Vec<String>,
    },
}

/// Flags of `plan`.
#[derive(Clone, Debug, Args)]
pub struct PlanArgs {
    /// The config
    #[arg(value_name = "CONFIG.json")]
    pub config: PathBuf,
    /// Print the plan (what this command does)
    #[arg(long)]
    pub print: bool,
    /// Ranks; default: mesh.dp, else 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub ranks: Option<u32>,
    /// Print plan, sizes and peak as JSON
    #[arg(long)]
    pub json: bool,
    /// Set a key of the config; may be repeated
    #[arg(long = "set", value_name = "key.path=value")]
    pub sets: Vec<String>,
}

/// Flags of `report`.
#[derive(Clone, Debug, Args)]
pub struct ReportArgs {
    /// Output folder of a run
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Write TensorBoard event files too
    #[arg(long)]
    pub tensorboard: bool,
}

/// What to do with a checkpoint.
#[derive(Clone, Debug, Subcommand)]
pub enum CheckpointAction {
    /// Print what is in it
    #[command(after_help = "Example:\n  crossweave checkpoint inspect runs/quickstart")]
    Inspect {
        /// Folder of a run, of a checkpoint, or of a model
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
    /// Hold every file against its recorded length and hash
    #[command(after_help = "Example:\n  crossweave checkpoint verify runs/quickstart")]
    Verify {
        /// Folder of a run, of a checkpoint, or of a model
        #[arg(value_name = "DIR")]
        dir: PathBuf,
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
                .filter(|s| s.get_name() != "help")
                .for_each(walk);
        }
        walk(&cli);
    }
}
