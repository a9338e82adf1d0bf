//! Programs outside the step, held against each other: validation, samples, reads of state, and what diagnostics exchange at a step's end.
//!
//! A plan is of one step. What ranks do together between steps is a list of events for each rank, each an event of its group as in
//! [`check_world`](crate::check_world): a rank that would be left waiting is named before anything runs.

use crate::error::{Law, PlanError};
use crate::facts::{Facts, Said};
use crate::op::{Rank, StepKind};
use crate::plan::Plan;
use crate::world::{Event, What, World};
use crossweave_axes::{Axis, Representatives, Topology};
use std::collections::BTreeSet;
use std::fmt;

/// A program outside the step, as what a rank does in it that others take part in, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SideProgram {
    /// Its purpose: `validation`.
    pub name: &'static str,
    /// The rank's part, in order.
    pub events: Vec<SideEvent>,
}

/// One thing that a rank does together with others outside the step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SideEvent {
    /// An operation of a plan: a gather, the collectives inside a block, a message between stages.
    Step(StepKind),
    /// The same on rows that every rank has as a whole: nothing is said over the axis that cuts rows in a step.
    Whole(StepKind),
    /// A collective of its own.
    Said(Said),
}

/// The axis over which the rows of a step are cut.
const ROWS: Axis = Axis::Cp;

impl fmt::Display for SideEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SideEvent::Step(op) | SideEvent::Whole(op) => write!(f, "{op}"),
            SideEvent::Said(s) => write!(f, "{} over {}", s.what, s.axes),
        }
    }
}

/// Holds what all ranks of a mesh do outside the step, in rank order, against each other: each program of the same name, with what each
/// rank knows of its units.
///
/// # Errors
/// Another number of ranks than the mesh has; the first event whose other members never come to it, with the rank.
pub fn check_side_programs(
    mesh: &Topology,
    ranks: &[(&[SideProgram], &Facts)],
) -> Result<(), PlanError> {
    check_representative_side_programs(&Representatives::all(mesh), ranks)
}

/// The same of a job in which what a rank does outside the step follows from its stage and from which
/// of its other coordinates are 0: what its representatives do, in their order, stands for all ranks.
///
/// # Errors
/// As [`check_side_programs`].
pub fn check_representative_side_programs(
    few: &Representatives,
    ranks: &[(&[SideProgram], &Facts)],
) -> Result<(), PlanError> {
    // There is no plan outside the step.
    let none = Plan::default();
    let all: Vec<(&Plan, &Facts)> = ranks.iter().map(|(_, facts)| (&none, *facts)).collect();
    let world = World::new(few, &all)?;
    let names: BTreeSet<&str> = ranks
        .iter()
        .flat_map(|(side, _)| side.iter().map(|p| p.name))
        .collect();
    for name in names {
        let of = |rank: Rank| -> Vec<&SideEvent> {
            let (side, _) = ranks[rank as usize];
            let named = side.iter().filter(|p| p.name == name);
            named.flat_map(|p| &p.events).collect()
        };
        let said: Vec<Vec<&SideEvent>> = (0..ranks.len() as Rank).map(of).collect();
        let events: Vec<Vec<Event<'_>>> = (0..ranks.len() as Rank)
            .map(|rank| events(&world, rank, &said[rank as usize]))
            .collect();
        let Some((rank, at)) = World::waits_for_ever(&events) else {
            continue;
        };
        let here = &events[rank][at[rank]];
        let others = here.members.iter().filter(|m| **m as usize != rank);
        let there = |m: &Rank| -> String {
            let next = events[*m as usize].get(at[*m as usize]);
            let next = next.map(|e| said[*m as usize][e.step].to_string());
            format!(
                "rank {} {}",
                world.number(*m),
                next.map_or("ends".into(), |n| format!("comes to {n}"))
            )
        };
        let there: Vec<String> = others.take(3).map(there).collect();
        let message = format!(
            "{name}, outside the step: number {} of what it does with others, {}, and {}: it would wait for ever",
            here.step,
            said[rank][here.step],
            there.join(", ")
        );
        return Err(PlanError::whole(Law::Deadlock, message).of_rank(world.number(rank as Rank)));
    }
    Ok(())
}

fn events<'a>(world: &World<'a>, rank: Rank, side: &[&'a SideEvent]) -> Vec<Event<'a>> {
    let mut out = vec![];
    for (step, event) in side.iter().enumerate() {
        match event {
            SideEvent::Step(op) => world.step_events(rank, (step, op), &mut out),
            SideEvent::Whole(op) => {
                let mut all = vec![];
                world.step_events(rank, (step, op), &mut all);
                let cut =
                    |e: &Event<'_>| matches!(e.what, What::Said(_, s) if s.axes.contains(ROWS));
                out.extend(all.into_iter().filter(|e| !cut(e)));
            }
            SideEvent::Said(said) => out.push(Event {
                members: world.groups(rank, said.axes),
                what: What::Alone(said),
                step,
            }),
        }
    }
    out
}
