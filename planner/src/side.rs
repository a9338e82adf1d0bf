//! What a rank does together with others outside the step: validation, samples, reads of state, and what is exchanged about values that
//! are not finite. The engine and the state do it (`engine/src/engine/eval.rs`, `engine/state/src/ranks.rs`); a test holds them to this account.

use crate::planning::is_slotted;
use crate::spec::RankSpec;
use crossweave_mesh::{Axis, AxisSet, Place};
use crossweave_plan::{Facts, Keep, Plan, Runs, Said, SideEvent, SideProgram, StepKind, UnitId};
use std::collections::BTreeSet;

/// Words of rank 0 that say what it asks the others for.
const REQUEST: &str = "a request of rank 0";

/// The programs outside the step in which a rank has a part. `facts` and `plan` are those of its step.
pub fn side_programs(spec: &RankSpec, plan: &Plan, facts: &Facts) -> Vec<SideProgram> {
    let side = Side::of(spec, plan, facts);
    let all = [
        ("find_nan", side.findings()),
        ("validation", side.validation()),
        ("samples", side.samples()),
        ("reads", side.reads()),
        ("gradients of a batch", side.gradients()),
    ];
    let with_others = all.into_iter().filter(|(_, events)| !events.is_empty());
    let program = |(name, events)| SideProgram { name, events };
    with_others.map(program).collect()
}

/// Whom a rank's units communicate with inside their forward of whole rows, by axes: not with those that have other tokens of them in a step.
fn said_forward<'a>(
    spec: &'a RankSpec,
    facts: &'a Facts,
) -> impl Iterator<Item = AxisSet> + use<'a> {
    let said = facts.units.iter().flat_map(|u| &u.talk.forward);
    said.map(|s| s.axes)
        .filter(|axes| spec.place.size(*axes) > 1 && !axes.contains(Axis::Cp))
}

/// Returns true if a forward of whole rows takes other ranks than those that gather with rank 0: of other stages, or because blocks communicate.
pub fn forwards_together(spec: &RankSpec, facts: &Facts) -> bool {
    spec.pipeline.is_some() || said_forward(spec, facts).next().is_some()
}

/// Returns true if a rank runs a forward of rank 0 with it, and false if it only gathers. Those run it that see the same samples; all of a
/// stage where blocks communicate with the ranks that hold other experts, which see other samples in a step.
pub fn joins_forward(spec: &RankSpec, facts: &Facts) -> bool {
    let experts = |axes: AxisSet| Axis::EXPERT.iter().any(|a| axes.contains(*a));
    spec.data_rank() == 0 || said_forward(spec, facts).any(experts)
}

struct Side<'a> {
    spec: &'a RankSpec,
    place: Place,
    facts: &'a Facts,
    /// Units that are gathered before they are used.
    gathered: BTreeSet<UnitId>,
    /// Those of them that are gathered again for each use.
    released: BTreeSet<UnitId>,
    /// The runs of units, each with its stage.
    runs: Runs,
}

/// The rows of a forward.
#[derive(Clone, Copy)]
enum Rows {
    /// As in a step, where they may be cut over ranks.
    OfStep,
    /// They have any length, and every rank has all of them.
    Whole,
}

/// The units that a rank has whole while it works through units.
type Whole = BTreeSet<UnitId>;

fn message(unit: UnitId, peer: u32, sends: bool) -> SideEvent {
    SideEvent::Step(match sends {
        true => StepKind::SendAct {
            unit,
            mb: 0,
            to: peer,
        },
        false => StepKind::RecvAct {
            unit,
            mb: 0,
            from: peer,
        },
    })
}

impl<'a> Side<'a> {
    fn of(spec: &'a RankSpec, plan: &Plan, facts: &'a Facts) -> Side<'a> {
        let gathers = plan.steps.iter().filter_map(|s| match s.op {
            StepKind::Gather { unit, .. } => Some(unit),
            _ => None,
        });
        let gathered: BTreeSet<UnitId> = gathers.collect();
        let count = facts.units.len();
        let slotted = |u: &UnitId| is_slotted(spec, *u as usize, count, &facts.units[*u as usize]);
        let released = gathered.iter().copied().filter(slotted).collect();
        let runs = spec.pipeline.as_ref().map(|p| p.runs.clone());
        Side {
            spec,
            place: spec.place,
            facts,
            gathered,
            released,
            runs: runs.unwrap_or_else(|| Runs::even(count as u32, 1)),
        }
    }

    /// A collective over those of these axes that are longer than one.
    fn said(&self, axes: AxisSet, what: impl Into<String>) -> Option<SideEvent> {
        let group = self.place.among(axes)?;
        let (axes, what) = (group.axes, what.into());
        let moves = None;
        Some(SideEvent::Said(Said { axes, what, moves }))
    }

    fn all(&self, what: &str) -> Option<SideEvent> {
        self.said(AxisSet::WORLD, what)
    }

    fn own(&self) -> impl DoubleEndedIterator<Item = u32> + use<> {
        let own: Vec<u32> = self.runs.units_of(self.spec.stage()).collect();
        own.into_iter()
    }

    /// Gathers of what a unit reads, where it is not whole already.
    fn gathers(&self, unit: UnitId, whole: &mut Whole) -> Vec<SideEvent> {
        let touched: BTreeSet<UnitId> = self.facts.touched(unit).collect();
        let wanted = touched.into_iter().filter(|u| self.gathered.contains(u));
        wanted
            .filter(|u| whole.insert(*u))
            .map(|unit| SideEvent::Step(StepKind::Gather { unit, node: false }))
            .collect()
    }

    fn release(&self, unit: UnitId, whole: &mut Whole) {
        for u in self.facts.touched(unit) {
            if self.released.contains(&u) {
                whole.remove(&u);
            }
        }
    }

    /// Units forward, or no more than gathered for those that run them; `rows`: of what a step's rows are, or of whole ones.
    fn forward(
        &self,
        units: impl Iterator<Item = u32>,
        runs: bool,
        rows: Rows,
        whole: &mut Whole,
    ) -> Vec<SideEvent> {
        let mut out = vec![];
        for unit in units {
            out.extend(self.gathers(unit, whole));
            let keep = Keep::All;
            let step = StepKind::Forward { unit, mb: 0, keep };
            out.extend(runs.then_some(match rows {
                Rows::OfStep => SideEvent::Step(step),
                Rows::Whole => SideEvent::Whole(step),
            }));
            self.release(unit, whole);
        }
        out
    }

    /// The rank's runs forward, each between what comes from the stage before it and what goes to the next.
    fn over_stages(&self, rows: Rows) -> Vec<SideEvent> {
        let (mut out, mut whole) = (vec![], Whole::new());
        for run in self.runs.of(self.spec.stage()) {
            let units = self.runs.units(run);
            let before = self.runs.before(run);
            out.extend(before.map(|from| message(units.start - 1, from, false)));
            out.extend(self.forward(units.clone(), true, rows, &mut whole));
            let after = self.runs.after(run);
            out.extend(after.map(|to| message(units.end - 1, to, true)));
        }
        out
    }

    /// Returns the exchanges of `find_nan` at the end of a step: a word of each rank, and where one has found something its sentence.
    fn findings(&self) -> Vec<SideEvent> {
        let each = ["where values are not finite", "the sentence about it"];
        each.into_iter().filter_map(|what| self.all(what)).collect()
    }

    /// A batch forward, and the mean of its loss.
    fn validation(&self) -> Vec<SideEvent> {
        let mean = self.all("mean loss");
        self.over_stages(Rows::OfStep)
            .into_iter()
            .chain(mean)
            .collect()
    }

    /// Returns true if ranks read and sample together: rank 0 leads, the others serve.
    fn is_together(&self) -> bool {
        let owners = (0..self.facts.units.len() as u32).map(|u| self.facts.owners(u));
        let mut parts = owners.map(|o| self.place.among(o.holders()));
        let mut spread = self.gathered.iter().filter(|u| self.is_spread(**u));
        self.runs.stages() > 1 || spread.next().is_some() || parts.any(|p| p.is_some())
    }

    /// Returns true if several ranks have slices of a unit.
    fn is_spread(&self, unit: UnitId) -> bool {
        self.gathered.contains(&unit) && self.facts.sharers(unit) > 1
    }

    /// Rank 0 has done.
    fn done(&self) -> Option<SideEvent> {
        self.all(REQUEST).filter(|_| self.is_together())
    }

    /// Logits for rank 0: a forward along the first data-parallel ranks, or of rank 0 alone, with which the others gather.
    fn samples(&self) -> Vec<SideEvent> {
        let mut out = vec![];
        if !forwards_together(self.spec, self.facts) {
            let runs = self.place.is_first();
            for gather in self.forward(self.own(), runs, Rows::Whole, &mut Whole::new()) {
                let asked = matches!(gather, SideEvent::Step(StepKind::Gather { .. }));
                out.extend(self.all(REQUEST).filter(|_| asked));
                out.push(gather);
            }
        } else {
            out.extend(self.all(REQUEST));
            out.extend(self.all(REQUEST));
            out.extend(self.all("token ids"));
            let (k, last) = (self.spec.stage(), self.runs.last_stage());
            if !joins_forward(self.spec, self.facts) {
                out.extend(self.forward(self.own(), false, Rows::Whole, &mut Whole::new()));
            } else {
                out.extend(self.over_stages(Rows::Whole));
                let unit = self.facts.units.len() as u32 - 1;
                out.extend((k == last && k > 0).then(|| message(unit, 0, true)));
                out.extend((k == 0 && last > 0).then(|| message(unit, last, false)));
            }
        }
        out.into_iter().chain(self.done()).collect()
    }

    /// A parameter of each unit, of which ranks have slices, parts or the stage: on rank 0 whole.
    fn reads(&self) -> Vec<SideEvent> {
        let mut out = vec![];
        for run in self.runs.iter() {
            let stage = run.stage;
            for u in run.units.clone() {
                let unit = &self.facts.units[u as usize];
                let owners = self.facts.owners(u);
                let asks = self.runs.stages() > 1 || self.is_spread(u) || unit.talk.parts;
                if unit.params == 0 || !asks {
                    continue;
                }
                out.extend(self.all(REQUEST));
                let k = self.spec.stage();
                if k == stage {
                    let slices = self.said(owners, "slices of a state");
                    out.extend(slices.filter(|_| self.is_spread(u)));
                    let holds = unit.talk.parts && self.place.index(owners) == 0;
                    let parts = self.said(owners.holders(), "parts of a state");
                    out.extend(parts.filter(|_| holds));
                }
                let speaks = self.place.index(AxisSet::STAGE) == 0 && stage > 0;
                out.extend((speaks && k == stage).then(|| message(u, 0, true)));
                out.extend((speaks && k == 0).then(|| message(u, stage, false)));
            }
        }
        out.into_iter().chain(self.done()).collect()
    }

    /// Forward and backward of a batch where one rank has the whole model.
    fn gradients(&self) -> Vec<SideEvent> {
        if self.runs.stages() > 1 {
            return vec![];
        }
        let mut whole = Whole::new();
        let mut out = self.forward(self.own(), true, Rows::OfStep, &mut whole);
        for unit in self.own().rev() {
            out.extend(self.gathers(unit, &mut whole));
            out.push(SideEvent::Step(StepKind::Backward { unit, mb: 0 }));
            self.release(unit, &mut whole);
        }
        out
    }
}
