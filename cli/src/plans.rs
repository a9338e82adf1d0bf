//! `crossweave plan`: the figures of a training step as a page or JSON, its plan, or the program of a rank.

use crate::args::PlanArgs;
use crate::error::Result;
use crate::plan::{Planning, plan, program};
use crate::say::say;
use crate::surroundings::Surroundings;
use crate::{plan_page, predict};

/// Runs the command.
///
/// # Errors
/// A config that is wrong; a plan that breaks a law.
pub fn run(args: &PlanArgs, around: &Surroundings) -> Result<()> {
    let what = Planning {
        config: args.config.clone(),
        sets: args.sets.clone(),
        ranks: args.ranks,
        rank: args.rank.unwrap_or(0),
        device: args.device.clone(),
    };
    if args.program {
        say!("{}", program(&what, around)?);
        return Ok(());
    }
    let planned = plan(&what, args.json, around)?;
    if args.json {
        say!("{:#}", planned.figures);
        return Ok(());
    }
    if !args.print && !args.text {
        let head = plan_page::Head {
            file: &args.config.display().to_string(),
            ranks: planned.ranks,
            params: planned.params,
            batch: planned.batch,
        };
        say!("{}", plan_page::page(&head, &planned.figures));
        return Ok(());
    }
    if args.print {
        let mut text = String::new();
        for (plan, facts) in &planned.plans {
            text += &format!("{plan}\n\n{}\n", plan.table(Some(facts)));
        }
        say!("{text}");
    }
    let [micro_batches, micro, seq] = planned.batch;
    say!(
        "{} steps of the plan, {} ranks, {micro_batches} micro-batches of {micro} x {seq} tokens, {} parameters",
        planned
            .plans
            .iter()
            .map(|(p, _)| p.walk().count())
            .sum::<usize>(),
        planned.ranks,
        planned.params
    );
    if args.print {
        for (u, (name, params)) in planned.units.iter().enumerate() {
            say!("  {u:>3} {name}: {params} parameters");
        }
    }
    say!("{}", predict::text(&planned.figures));
    Ok(())
}
