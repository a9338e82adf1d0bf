//! Which units' whole parameters are those that the ranks own now.

use crossweave_plan::StepKind;
use crossweave_program::UnitState;

struct Unit {
    current: bool,
    gathers: bool,
    transient: bool,
}

/// One entry for each unit.
pub(crate) struct Whole {
    units: Vec<Unit>,
}

impl Whole {
    pub fn new(tables: &[UnitState]) -> Whole {
        let unit = |t: &UnitState| Unit {
            current: !t.gathers,
            gathers: t.gathers,
            transient: t.transient,
        };
        Whole {
            units: tables.iter().map(unit).collect(),
        }
    }

    /// Whether a unit has to be gathered before it is used.
    pub fn is_stale(&self, u: usize) -> bool {
        !self.units[u].current && self.units[u].gathers
    }
    /// A unit has been gathered.
    pub fn gathered(&mut self, u: usize) {
        self.units[u].current = true;
    }
    /// Whole parameters in a slot are there no longer.
    pub fn released(&mut self, u: usize) {
        self.units[u].current &= !self.units[u].transient;
    }
    /// The same of all units.
    pub fn all_released(&mut self) {
        (0..self.units.len()).for_each(|u| self.released(u));
    }
    /// The owned values have changed: what was gathered is old.
    pub fn changed(&mut self, u: usize) {
        self.units[u].current = !self.units[u].gathers;
    }
    /// Keeps account behind a step of the plan.
    pub fn note(&mut self, step: &StepKind) {
        match step {
            StepKind::Gather { unit, .. } => self.gathered(*unit as usize),
            StepKind::Release { unit } => self.released(*unit as usize),
            StepKind::ParamIn { unit } | StepKind::Update { unit } => self.changed(*unit as usize),
            _ => {}
        }
    }
}
