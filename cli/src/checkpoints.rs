//! `crossweave checkpoint`: look into a checkpoint or a model folder, or verify every byte.

use crate::args::CheckpointAction;
use crate::error::Result;
use crate::say::say;
use crossweave_checkpoint::{inspect, verify};

/// Runs the command.
///
/// # Errors
/// Nothing there; damage, with file and reason.
pub fn run(action: CheckpointAction) -> Result<()> {
    match action {
        CheckpointAction::Inspect { dir } => say!("{}", inspect(&dir)?.trim_end()),
        CheckpointAction::Verify { dir } => say!("{}", verify(&dir)?.trim_end()),
    }
    Ok(())
}
