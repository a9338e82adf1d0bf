//! `crossweave replay`: a recorded run's calls on a back end, without model or data, and what comes back compared.

use crate::args::ReplayArgs;
use crate::backend;
use crate::error::{CliError, Result};
use crate::say::say;
use crate::surroundings::Plugins;
use crossweave_layers::{Compare, Recording, TapeError, replay};
use serde_json::json;

/// Differences that are printed.
const SHOWN: usize = 20;

/// Runs the command.
///
/// # Errors
/// A file that is none, damaged or cut; a call that fails; results that differ.
pub fn run(args: &ReplayArgs, plugins: &Plugins) -> Result<()> {
    let recording = Recording::read(&args.file, args.partial).map_err(|e| {
        let fix = match e {
            TapeError::Io(..) => "check the path",
            TapeError::Cut(..) => "record it again, or give --partial",
            _ => "record it again",
        };
        CliError::refused(e.to_string(), fix)
    })?;
    let opened = recording
        .calls
        .iter()
        .filter(|c| c["c"] == "device_open")
        .count();
    let services = backend::host(plugins, opened.max(1) as u32, None, None);
    let plugin = backend::choose(&(&args.backend).into(), "cpu", &services, plugins)?;
    let compare = args.rtol.map_or(Compare::Bits, Compare::Relative);
    let mut found = None;
    plugin.layered(|raw| {
        found = Some(replay(&recording, &raw, compare));
        Ok::<_, CliError>(raw)
    })?;
    let failed = |why: String| {
        CliError::refused(
            format!("{} on {}: {why}", args.file.display(), plugin.name()),
            "see the call in the file's order; `--layer validate` and `--layer trace=FILE` look closer",
        )
    };
    let report = found
        .unwrap_or_else(|| Err("nothing was replayed".into()))
        .map_err(failed)?;
    let calls: u64 = report.calls.values().sum();
    if args.json {
        say!(
            "{:#}",
            json!({
                "schema": "crossweave.replay/1", "file": args.file.display().to_string(), "plugin": plugin.name(),
                "calls": report.calls, "compared": report.compared, "differs": report.differs, "hash_only": report.skipped,
                "mended": report.mended,
            })
        );
    } else {
        say!(
            "{calls} calls of {} on {} {}",
            args.file.display(),
            plugin.name(),
            plugin.version()
        );
        let how = match args.rtol {
            Some(r) => format!("within {r:e}"),
            None => "bitwise".into(),
        };
        say!(
            "{} blocks came back and were compared {how}: {} differ",
            report.compared,
            report.differs.len()
        );
        report
            .differs
            .iter()
            .take(SHOWN)
            .for_each(|d| say!("  {d}"));
        if report.differs.len() > SHOWN {
            say!("  and {} more", report.differs.len() - SHOWN);
        }
        if report.skipped > 0 {
            say!(
                "{} blocks were recorded by their hash only, which has no tolerance",
                report.skipped
            );
        }
        if report.mended > 0 {
            say!("{} calls failed then and succeed now", report.mended);
        }
    }
    match report.differs.first() {
        Some(first) => Err(CliError::refused(
            format!(
                "{} of {} results are not those recorded; {first}",
                report.differs.len(),
                report.compared
            ),
            "another order of sums is a difference too: give --rtol, e.g. 1e-4",
        )),
        None => Ok(()),
    }
}
