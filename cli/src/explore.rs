//! `crossweave explore`: says what the schedules of a config have shown, and by which command a failure is replayed.

use crate::args::ExploreArgs;
use crate::error::{CliError, Result};
use crate::surroundings::Surroundings;
use crate::train::explore::{Explored, explore};
use crossweave_hal::Found;

/// Runs the command.
///
/// # Errors
/// A config that does not run at all, and the first schedule under which it fails, with the command that replays it.
pub fn run(args: &ExploreArgs, around: Surroundings) -> Result<()> {
    match explore(&args.exploration(around))? {
        Explored::Failed { found, on_purpose } => Err(failed(args, &found, &on_purpose)),
        Explored::Held {
            ranks,
            steps,
            switches,
            hash,
        } => {
            let seeds = match args.seed {
                Some(seed) => format!("seed {seed} (decisions {hash:016x})"),
                None => format!("{} seeds", args.seeds),
            };
            println!(
                "{ranks} ranks, {steps} steps, schedule {}: {seeds} held, {switches} switches, the same bits under each",
                args.schedule
            );
            Ok(())
        }
    }
}

/// What to say and to type when a schedule shows a failure.
fn failed(args: &ExploreArgs, found: &Found, more: &str) -> CliError {
    let mut again = format!("crossweave explore {}", args.config.display());
    if let Some(n) = args.ranks {
        again += &format!(" --ranks {n}");
    }
    if let Some(name) = &args.backend.backend {
        again += &format!(" --backend {name}");
    }
    if let Some(path) = &args.backend.plugin {
        again += &format!(" --plugin {}", path.display());
    }
    for set in &args.sets {
        again += &format!(" --set '{set}'");
    }
    again += &format!(
        " --steps {} --schedule {} --seed {}",
        args.steps, found.order, found.seed
    );
    CliError::refused(
        format!("{found}{more}"),
        format!("replay it with `{again}`"),
    )
}
