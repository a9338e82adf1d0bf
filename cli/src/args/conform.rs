//! Flags of `crossweave conform`.
// The comments here are the text of `--help`, where brackets and angles are what a user types.
#![allow(rustdoc::broken_intra_doc_links, rustdoc::invalid_html_tags)]

use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// The levels of `conform`; each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ConformLevel {
    /// abi, life
    Abi,
    /// and mem, order, leak
    Device,
    /// and op
    Ops,
    /// and coll
    Coll,
    /// and fault
    Fault,
    /// and perf
    Perf,
}

impl From<ConformLevel> for crossweave_conform::Level {
    fn from(l: ConformLevel) -> Self {
        match l {
            ConformLevel::Abi => Self::Abi,
            ConformLevel::Device => Self::Device,
            ConformLevel::Ops => Self::Ops,
            ConformLevel::Coll => Self::Coll,
            ConformLevel::Fault => Self::Fault,
            ConformLevel::Perf => Self::Perf,
        }
    }
}

/// Cells that `conform` wants to be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ConformProfile {
    /// Trains a transformer in f32 by the core's decompositions
    Minimal,
    /// And in 16 bits, with its own collectives where it has any
    Train,
    /// And with routed experts
    Moe,
    /// Carries messages and computes nothing
    CollectiveOnly,
}

impl From<ConformProfile> for crossweave_conform::Profile {
    fn from(p: ConformProfile) -> Self {
        match p {
            ConformProfile::Minimal => Self::Minimal,
            ConformProfile::Train => Self::Train,
            ConformProfile::Moe => Self::Moe,
            ConformProfile::CollectiveOnly => Self::CollectiveOnly,
        }
    }
}

/// The programs that start the ranks of `conform`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ConformLauncher {
    /// Threads of one process
    Threads,
    /// A process each
    Fork,
    /// A process each, by mpirun
    Mpirun,
    /// A process each, by srun
    Slurm,
}

impl From<ConformLauncher> for crossweave_conform::Launcher {
    fn from(l: ConformLauncher) -> Self {
        match l {
            ConformLauncher::Threads => Self::Threads,
            ConformLauncher::Fork => Self::Fork,
            ConformLauncher::Mpirun => Self::Mpirun,
            ConformLauncher::Slurm => Self::Slurm,
        }
    }
}

/// "90s", "10m", "1h".
fn span_of_time(text: &str) -> Result<std::time::Duration, String> {
    let (number, unit) = text.split_at(text.trim_end_matches(char::is_alphabetic).len());
    let factor = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(format!("{unit:?} is no unit of time: use s, m or h")),
    };
    match number.parse::<u64>() {
        Ok(n) if n > 0 => n
            .checked_mul(factor)
            .map(std::time::Duration::from_secs)
            .ok_or_else(|| format!("{text} is beyond any patience")),
        _ => Err("give a number and s, m or h, such as 10m".into()),
    }
}

/// Flags of `conform`.
#[derive(Clone, Debug, Args)]
pub struct ConformArgs {
    /// A plugin file, or the name of a linked back end or of a plugin on the plugin path
    #[arg(value_name = "PLUGIN.so|NAME", required_unless_present = "diff")]
    pub plugin: Option<String>,
    /// Compare two scorecards (JSON, or .cells) instead of running anything; exit 1 when the second is worse
    #[arg(long, num_args = 2, value_names = ["A.json", "B.json"], conflicts_with_all = ["plugin", "report", "replay", "list"])]
    pub diff: Option<Vec<PathBuf>>,
    /// Put the plugin inside a layer, outermost last, as `train --layer` does
    #[arg(long = "layer", value_name = "NAME[=SPEC]")]
    pub layers: Vec<String>,
    /// The last level to run
    #[arg(long, value_enum, default_value = "fault")]
    pub level: ConformLevel,
    /// Fail where a cell of this profile is not claimed; without it only what is claimed is held to
    #[arg(long, value_enum)]
    pub profile: Option<ConformProfile>,
    /// Devices to use; default: the first two
    #[arg(long, value_name = "I,J", value_delimiter = ',')]
    pub devices: Vec<u32>,
    /// Numbers of ranks for cases about communicators [default: 1,2,3,4,6,7,8; with --quick 2,3]
    #[arg(long, value_name = "N,M", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=64))]
    pub ranks: Vec<u32>,
    /// The program that starts ranks
    #[arg(long, value_enum, default_value = "threads")]
    pub launcher: ConformLauncher,
    /// The launcher's command, in place of mpirun or srun
    #[arg(long, value_name = "COMMAND")]
    pub launcher_command: Option<String>,
    /// Only cases whose id matches, whatever the level; * stands for anything; may be repeated
    #[arg(long, value_name = "PATTERN")]
    pub only: Vec<String>,
    /// Run one case again, exactly as it was run
    #[arg(long, value_name = "CASE", conflicts_with = "only")]
    pub replay: Option<String>,
    /// Seed of all inputs
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Known failures: a TOML file with [[unsupported]] and [[expected_failure]]
    #[arg(long, value_name = "expect.toml")]
    pub expect: Option<PathBuf>,
    /// Write the scorecard as JSON, or, where the name ends in .cells, by families of cases, as they are committed
    #[arg(long, value_name = "out.json")]
    pub report: Option<PathBuf>,
    /// Only the cases that the card at --report (.cells) has not met; it keeps what it has
    #[arg(long, requires = "report", conflicts_with_all = ["only", "replay", "list"])]
    pub rest: bool,
    /// Write the scorecard as Markdown
    #[arg(long, value_name = "out.md")]
    pub markdown: Option<PathBuf>,
    /// Start no case after this time, such as 90s, 10m, 1h
    #[arg(long, value_name = "TIME", value_parser = span_of_time)]
    pub budget: Option<std::time::Duration>,
    /// Fail a case that takes longer than this, in place of its own limit of one to ten minutes (a simulator may need an hour)
    #[arg(long, value_name = "TIME", value_parser = span_of_time)]
    pub case_limit: Option<std::time::Duration>,
    /// Run cases of ops in so many processes at once; default: one for each processor, for devices that are processors, else one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: Option<u16>,
    /// Training sizes too: some 25 minutes on two processors, and up to 9 GiB
    #[arg(long)]
    pub big: bool,
    /// Half a minute: a sample of sizes, types and ranks, for after every change
    #[arg(long, conflicts_with = "big")]
    pub quick: bool,
    /// Set a configuration key of the plugin; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Print every case as it ends
    #[arg(long, short)]
    pub verbose: bool,
    /// Print the ids of the cases and run nothing
    #[arg(long)]
    pub list: bool,
}
