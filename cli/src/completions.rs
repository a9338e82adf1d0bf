//! `crossweave completions SHELL`: the script by which a shell completes commands, flags and their values.

use crate::args::Cli;
use crate::error::Result;
use crate::say::say;
use clap::CommandFactory;
use clap_complete::{Shell, generate};

/// Runs the command.
///
/// # Errors
/// None; a closed standard output is no error.
pub fn run(shell: Shell) -> Result<()> {
    let mut script = vec![];
    generate(shell, &mut Cli::command(), "crossweave", &mut script);
    say!("{}", String::from_utf8_lossy(&script).trim_end());
    Ok(())
}
