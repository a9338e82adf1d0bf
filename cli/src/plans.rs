//! `crossweave plan`: the figures of a training step as a page or JSON, its plan, or the program of a rank.

use crate::args::PlanArgs;
use crate::error::Result;
use crate::figures::plan::{Planning, plan, program};
use crate::ranks::Ranks;
use crate::say::say;
use crate::surroundings::Surroundings;
use crate::train::Request;
use crate::{asked, plan_page, plan_text};
use serde_json::json;

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
    };
    if args.program {
        say!("{}", program(&request, &what)?);
        return Ok(());
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
