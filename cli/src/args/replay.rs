//! Flags of `crossweave replay`.

use super::BackendArgs;
use clap::Args;
use std::path::PathBuf;

/// Flags of `replay`.
#[derive(Clone, Debug, Args)]
pub struct ReplayArgs {
    /// The file that `--layer record=FILE` has written
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Which back end computes.
    #[command(flatten)]
    pub backend: BackendArgs,
    /// Compare as f32 with this relative tolerance, instead of bitwise
    #[arg(long, value_name = "X", value_parser = tolerance)]
    pub rtol: Option<f64>,
    /// Replay a recording that was cut off as far as it goes
    #[arg(long)]
    pub partial: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn tolerance(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x >= 0.0 && x.is_finite() => Ok(x),
        _ => Err("wanted a number from 0".to_string()),
    }
}
