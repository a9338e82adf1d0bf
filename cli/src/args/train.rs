//! Flags of `crossweave train` and `explore`, and which back end computes.
// The comments here are the text of `--help`, where brackets and angles are what a user types.
#![allow(rustdoc::broken_intra_doc_links, rustdoc::invalid_html_tags)]

use crate::ranks::Ranks;
use crate::train::Continued;
use clap::Args;
use std::path::PathBuf;

/// The back end that computes.
#[derive(Clone, Debug, Default, Args)]
pub struct BackendArgs {
    /// Back end by name (see `crossweave backends`); default: run.backend, else cpu
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,
    /// Back end from this plugin file
    #[arg(long, value_name = "PATH")]
    pub plugin: Option<PathBuf>,
    /// Put the back end inside a layer, outermost last: validate, trace=FILE, record=FILE, fault=CALL:N:CODE, throttle=CALL:RATE, lacks=OP[:TYPE],
    /// only=PROFILE, or a library (docs/layers.md)
    #[arg(long = "layer", value_name = "NAME[=SPEC]")]
    pub layers: Vec<String>,
}

/// Flags of `train`.
#[derive(Clone, Debug, Args)]
pub struct TrainArgs {
    /// The config
    #[arg(value_name = "CONFIG.json")]
    pub config: PathBuf,
    /// Ranks of the job, or ranks of this process by back end: cpu:2,./libother.so:1; default: mesh.dp, else 1
    #[arg(long, value_name = "N|NAME:N,...", value_parser = Ranks::parse)]
    pub ranks: Option<Ranks>,
    /// The back end that computes.
    #[command(flatten)]
    pub backend: BackendArgs,
    /// Set a key of the config; may be repeated
    #[arg(long = "set", value_name = "key.path=value")]
    pub sets: Vec<String>,
    /// Optimizer steps, in place of run.steps or run.epochs of the config
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: Option<u64>,
    /// Output folder; default: run.out, else runs/<name of the config>
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Continue the run in this folder from its newest checkpoint, or from one of its checkpoints/step-N in another folder; auto: the one in the
    /// output folder, or begin it there
    #[arg(long, value_name = "DIR|auto", value_parser = continued)]
    pub resume: Option<Continued>,
    /// Take the output folder over from a job on another host that is lost (whether it lives cannot be seen from here)
    #[arg(long)]
    pub take_over: bool,
    /// Write a timeline of all ranks for Perfetto or chrome://tracing
    #[arg(long, value_name = "FILE.json")]
    pub trace: Option<PathBuf>,
    /// Print warnings and errors only: no bar, no lines of steps, no closing table
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Print a line for every step
    #[arg(short, long)]
    pub verbose: bool,
}

/// Reads the value of `--resume`: a folder, or `auto` (a folder of that name is ./auto).
fn continued(text: &str) -> Result<Continued, std::convert::Infallible> {
    Ok(match text {
        "auto" => Continued::Own,
        folder => Continued::Run(folder.into()),
    })
}

/// Flags of `explore`.
#[derive(Clone, Debug, Args)]
pub struct ExploreArgs {
    /// The config
    #[arg(value_name = "CONFIG.json")]
    pub config: PathBuf,
    /// Ranks, as threads of this process; default: mesh.dp, else 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub ranks: Option<u32>,
    /// Seeds to try, from 0
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    pub seeds: u64,
    /// Only this seed: replays what it showed
    #[arg(long, value_name = "S", conflicts_with = "seeds")]
    pub seed: Option<u64>,
    /// How the next thread is chosen: random, pct:DEPTH (priorities that change DEPTH - 1 times), fifo
    #[arg(long, value_name = "ORDER", default_value = "random")]
    pub schedule: crossweave_hal::Order,
    /// Optimizer steps under each seed
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: u64,
    /// The back end that computes.
    #[command(flatten)]
    pub backend: BackendArgs,
    /// Set a key of the config; may be repeated
    #[arg(long = "set", value_name = "key.path=value")]
    pub sets: Vec<String>,
}
