//! Flags of `crossweave explain`.

use super::{BackendArgs, positive};
use clap::Args;
use std::path::PathBuf;

/// Flags of `explain`.
#[derive(Clone, Debug, Args)]
pub struct ExplainArgs {
    /// The config
    #[arg(value_name = "CONFIG.json")]
    pub config: PathBuf,
    /// Ranks; default: mesh.dp, else 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=crate::ranks::MOST_PLANNED))]
    pub ranks: Option<u32>,
    /// The back end that computes.
    #[command(flatten)]
    pub backend: BackendArgs,
    /// Set a key of the config; may be repeated
    #[arg(long = "set", value_name = "key.path=value")]
    pub sets: Vec<String>,
    /// Peak of the device in TFLOP/s, to estimate what the back end gives no estimate of
    #[arg(long, value_name = "T", value_parser = positive, requires = "gbps")]
    pub tflops: Option<f64>,
    /// Memory bandwidth of the device in GB/s, for the same
    #[arg(long, value_name = "G", value_parser = positive, requires = "tflops")]
    pub gbps: Option<f64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Hold the routes against this file; a worse one is an error
    #[arg(long, value_name = "FILE")]
    pub lock: Option<PathBuf>,
    /// Write the routes to this file
    #[arg(long, value_name = "FILE")]
    pub write_lock: Option<PathBuf>,
}
