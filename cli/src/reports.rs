//! `crossweave report`: the page of a run, and event files on request.

use crate::args::ReportArgs;
use crate::error::Result;
use crate::report;
use crate::say::say;
use std::path::Path;
use std::time::UNIX_EPOCH;

/// Runs the command.
///
/// # Errors
/// No metrics; files that cannot be understood or written.
pub fn run(args: &ReportArgs) -> Result<()> {
    say!("{}", report::write_page(&args.dir)?.display());
    if args.tensorboard {
        say!("{}", events(&args.dir)?.display());
    }
    Ok(())
}

/// Writes the event files of a run, dated from when its config was written.
///
/// # Errors
/// As [`run`].
pub fn events(dir: &Path) -> Result<std::path::PathBuf> {
    let began = std::fs::metadata(dir.join("config.json"))
        .and_then(|m| m.modified())
        .ok()
        .and_then(|t| t.duration_since(UNIX_EPOCH).ok())
        .map_or(0.0, |d| d.as_secs_f64());
    Ok(report::write_events(dir, began)?)
}
