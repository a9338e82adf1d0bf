//! `crossweave plan`: the figures of a training step as a page or JSON, its plan, its timeline, or the program of a rank.

use crate::args::PlanArgs;
use crate::error::{CliError, Result};
use crate::figures::plan::{Costs, Form, Planning, Spread, measured, plan, program};
use crate::outputs;
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
        ranks: args
            .ranks
            .or(args.hosts.and_then(Spread::ranks))
            .map(Ranks::Count),
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
        hosts: args.hosts,
    };
    if args.program {
        say!("{}", program(&request, &what)?);
        return Ok(());
    }
    if let Some(path) = &args.schedule {
        return draw(&request, &what, path);
    }
    let planned = plan(&request, &what)?;
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

/// Draws the timeline of a plan to a file, or to the screen.
fn draw(request: &Request, what: &Planning, path: &Path) -> Result<()> {
    const OPTION: &str = "--schedule";
    let shown = path.as_os_str() == "-";
    let form = match Form::of(path) {
        _ if shown => Form::Text,
        Some((form, begins)) => {
            outputs::check(OPTION, path, begins)?;
            form
        }
        None => {
            return Err(CliError::refused(
                format!("{OPTION} {}: not known what to draw", path.display()),
                "name a file that ends in .svg, .txt or .json (a trace for Perfetto), or - for the screen",
            ));
        }
    };
    let drawn = plan(request, what)?.timeline.map(|t| t.drawn(form));
    let drawn = drawn.unwrap_or_default();
    if shown {
        say!("{}", drawn.trim_end());
        return Ok(());
    }
    whole::write(path, drawn).map_err(CliError::io("write", path))?;
    say!("{}", path.display());
    Ok(())
}
