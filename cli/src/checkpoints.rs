//! `crossweave checkpoint`: look into a checkpoint or a model folder, or verify every byte.

use crate::args::CheckpointAction;
use crate::error::Result;
use crossweave_checkpoint::{inspect, verify};

/// Runs the command.
///
/// # Errors
/// Nothing there; damage, with file and reason.
pub fn run(action: CheckpointAction) -> Result<()> {
    match action {
        CheckpointAction::Inspect { dir } => print!("{}", inspect(&dir)?),
        CheckpointAction::Verify { dir } => print!("{}", verify(&dir)?),
    }
    Ok(())
}
