//! `crossweave plan`: the figures of a training step as a page or JSON, its plan, its timeline, or the program of a rank.

use crate::args::PlanArgs;
use crate::error::{CliError, Result};
use crate::figures::plan::{Costs, Planned, Planning, measured, plan, program};
use crate::outputs::{self, TIMELINE};
use crate::ranks::Ranks;
use crate::say::say;
use crate::surroundings::Surroundings;
use crate::train::Request;
use crate::{asked, plan_page, plan_text};
use crossweave_report::whole;
use serde_json::json;
use std::path::Path;

/// Runs the command.
///
/// # Errors
/// A config that is wrong; a plan that breaks a law.
pub fn run(args: &PlanArgs, around: &Surroundings) -> Result<()> {
    let request = Request {
        sets: args.sets.clone(),
        ranks: args.ranks.map(Ranks::Count),
        ..asked::of(&args.config, around)
    };
    let what = Planning {
        rank: args.rank.unwrap_or(0),
        device: args.device.clone(),
        costs: match &*args.costs {
            "work" => Costs::Work,
            "even" => Costs::Even,
            dir => measured(Path::new(dir))?,
        },
        timeline: args.schedule.is_some(),
    };
    if args.program {
        say!("{}", program(&request, &what)?);
        return Ok(());
    }
    let drawn = args.schedule.as_deref().map(Drawn::at).transpose()?;
    let planned = plan(&request, &what)?;
    if let Some(drawn) = drawn {
        return drawn.write(&planned);
    }
    if args.json {
        say!("{:#}", json!(planned.figures));
        return Ok(());
    }
    if !args.print && !args.text {
        let file = args.config.display().to_string();
        say!("{}", plan_page::page(&file, &planned));
        return Ok(());
    }
    if args.print {
        let mut text = String::new();
        for r in planned.stages() {
            text += &format!("{}\n\n{}\n", r.plan, r.plan.table(Some(&r.facts)));
        }
        say!("{text}");
    }
    let [micro_batches, micro, seq] = planned.batch;
    say!(
        "{} steps of the plan, {} ranks, {micro_batches} micro-batches of {micro} x {seq} tokens, {} parameters",
        planned
            .stages()
            .iter()
            .map(|r| r.plan.walk().count())
            .sum::<usize>(),
        planned.ranks,
        planned.params
    );
    if args.print {
        for (u, (name, params)) in planned.units.iter().enumerate() {
            say!("  {u:>3} {name}: {params} parameters");
        }
    }
    say!("{}", plan_text::text(&planned.figures));
    Ok(())
}

/// Where a timeline goes, and as what.
enum Drawn<'a> {
    Shown,
    Text(&'a Path),
    Svg(&'a Path),
    Trace(&'a Path),
}

impl Drawn<'_> {
    /// That of `--schedule FILE`.
    fn at(path: &Path) -> Result<Drawn<'_>> {
        let option = "--schedule";
        if path.as_os_str() == "-" {
            return Ok(Drawn::Shown);
        }
        let kind = path.extension().and_then(|e| e.to_str());
        let (drawn, begins): (_, &[u8]) = match kind {
            Some("svg") => (Drawn::Svg(path), b"<svg"),
            Some("json") => (Drawn::Trace(path), TIMELINE),
            Some("txt") => (Drawn::Text(path), b""),
            _ => {
                return Err(CliError::refused(
                    format!("{option} {}: not known what to draw", path.display()),
                    "name a file that ends in .svg, .txt or .json (a trace for Perfetto), or - for the screen",
                ));
            }
        };
        outputs::check(option, path, begins)?;
        Ok(drawn)
    }

    fn write(&self, planned: &Planned) -> Result<()> {
        let Some(timeline) = &planned.timeline else {
            return Ok(());
        };
        let (path, text) = match self {
            Drawn::Shown => {
                say!("{}", timeline.text().trim_end());
                return Ok(());
            }
            Drawn::Text(path) => (path, timeline.text()),
            Drawn::Svg(path) => (path, timeline.svg()),
            Drawn::Trace(path) => (path, timeline.trace().to_string()),
        };
        whole::write(path, text).map_err(CliError::io("write", path))?;
        say!("{}", path.display());
        Ok(())
    }
}
