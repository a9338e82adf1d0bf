//! `crossweave explain`: the routes of a step as a page or JSON, and against those of a file.

use crate::args::ExplainArgs;
use crate::error::{CliError, Result};
use crate::figures::explain::{Difference, Lock, PeakRates, explain};
use crate::ranks::Ranks;
use crate::say::say;
use crate::surroundings::Surroundings;
use crate::train::Request;
use crate::{asked, explain_page};
use serde_json::json;
use std::path::Path;

/// Runs the command.
///
/// # Errors
/// A config that is wrong; a back end that cannot be used; an op that has no route; routes worse than the lock's.
pub fn run(args: &ExplainArgs, around: &Surroundings) -> Result<()> {
    let request = Request {
        sets: args.sets.clone(),
        ranks: args.ranks.map(Ranks::Count),
        backend: (&args.backend).into(),
        ..asked::of(&args.config, around)
    };
    let peak = PeakRates {
        tflops: args.tflops,
        gbps: args.gbps,
    };
    let found = explain(&request, peak)?;
    match args.json {
        true => say!("{:#}", json!(found.found)),
        false => say!("{}", explain_page::page(&found.found).trim_end()),
    }
    let now = found.all_routed()?;
    let held = match &args.lock {
        Some(path) => Some((Lock::read(path)?.compare(&now), path)),
        None => None,
    };
    if let Some(path) = &args.write_lock {
        now.write(path)?;
        eprintln!("wrote {}: {} routes", path.display(), now.routes.len());
    }
    match held {
        Some((found, path)) => print_difference(&found, path, args.json),
        None => Ok(()),
    }
}

/// Says it; worse routes are an error.
///
/// # Errors
/// Routes that are worse.
fn print_difference(found: &Difference, path: &Path, json: bool) -> Result<()> {
    let show = |sign: &str, what: &str, lines: &[String]| {
        for l in lines {
            // Beside `--json` the page must stay JSON.
            match json {
                true => eprintln!("{sign} {what}: {l}"),
                false => say!("{sign} {what}: {l}"),
            }
        }
    };
    if let Some(o) = &found.other {
        eprintln!("note: {}: {o}", path.display());
    }
    show("-", "worse", &found.worse);
    show("+", "better", &found.better);
    show("+", "new", &found.new);
    show("-", "gone", &found.gone);
    if !found.worse.is_empty() {
        return Err(CliError::refused(
            format!(
                "{} routes are worse than in {}",
                found.worse.len(),
                path.display()
            ),
            format!(
                "mend the back end, or accept them with `--write-lock {}`",
                path.display()
            ),
        ));
    }
    let moved = found.better.len() + found.new.len() + found.gone.len();
    match moved {
        0 => eprintln!("{}: every route is as it was", path.display()),
        _ => eprintln!(
            "{}: no route is worse; {} better, {} new, {} gone: keep that with `--write-lock {}`",
            path.display(),
            found.better.len(),
            found.new.len(),
            found.gone.len(),
            path.display()
        ),
    }
    Ok(())
}
