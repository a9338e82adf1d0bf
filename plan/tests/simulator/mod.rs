//! The laws once more, slowly and by another road: every question is answered by looking back over the whole plan, and
//! the life of an activation is a word that must match a grammar. `check` is held against this by property tests.

use crossweave_plan::{Facts, Keep, Lane, Plan, Reduction, StepKind, Storage};

/// The bytes at each step if the plan is lawful, or some sentence. Edges, budget and slots are not simulated.
pub fn simulate(plan: &Plan, facts: &Facts) -> Result<Vec<u64>, String> {
    let ops: Vec<StepKind> = plan.steps.iter().map(|s| s.op.clone()).collect();
    let sim = Simulator { plan, facts, ops };
    sim.in_range()?;
    sim.activations()?;
    for at in 0..sim.ops.len() {
        sim.step(at)
            .map_err(|e| format!("step {at} ({}): {e}", sim.ops[at]))?;
    }
    sim.end()?;
    let slots = sim.slots();
    let bytes = |at| slots + sim.bytes(at);
    Ok((0..sim.ops.len()).map(bytes).collect())
}

struct Simulator<'a> {
    plan: &'a Plan,
    facts: &'a Facts,
    ops: Vec<StepKind>,
}

fn need(holds: bool, else_say: &str) -> Result<(), String> {
    if holds {
        Ok(())
    } else {
        Err(else_say.to_string())
    }
}

/// From whichever ranks.
fn gathers(op: &StepKind, unit: u32) -> bool {
    matches!(op, StepKind::Gather { unit: u, .. } if *u == unit)
}

/// What a message leaves of a micro-batch's value: nothing where it leaves, the value where it comes; none where it is of another.
fn passing(op: &StepKind, grads: bool, mb: u32) -> Option<Option<u32>> {
    let (grad, messages) = op.messages();
    let mut mine = messages.iter().filter(|m| grad == grads && m.mb == mb);
    mine.next_back().map(|m| (!m.sends).then_some(m.unit))
}

impl Simulator<'_> {
    fn count(&self, end: usize, pick: impl Fn(&StepKind) -> bool) -> usize {
        self.ops[..end].iter().filter(|op| pick(op)).count()
    }

    fn any(&self, pick: impl Fn(&StepKind) -> bool) -> bool {
        self.count(self.ops.len(), pick) > 0
    }

    fn last(&self) -> u32 {
        self.facts.units.len() as u32 - 1
    }

    fn in_range(&self) -> Result<(), String> {
        let units = self.facts.units.len() as u32;
        for op in &self.ops {
            need(op.units().iter().all(|&u| u < units), "unit")?;
            need(
                op.micro_batch()
                    .is_none_or(|m| m < self.facts.micro_batches),
                "micro-batch",
            )?;
        }
        Ok(())
    }

    /// The life of each (unit, micro-batch) as a word.
    fn activations(&self) -> Result<(), String> {
        for unit in 0..=self.last() {
            for mb in 0..self.facts.micro_batches {
                let word = self.word(self.ops.len(), unit, mb);
                if word.is_empty() && !self.plan.units().contains(&unit) {
                    continue;
                }
                let mut short = word.clone();
                while short.contains("oi") {
                    let at = short.find("oi").unwrap();
                    let before = short[..at].chars().last();
                    need(
                        matches!(before, Some('a' | 's' | 'n' | 'R')),
                        &format!("spill in {word}"),
                    )?;
                    short.replace_range(at..at + 2, "");
                }
                let lawful = ["aB", "aIW", "sB", "sIW", "nRB", "nRIW", "_"];
                need(
                    lawful.contains(&short.as_str()),
                    &format!("unit {unit} mb {mb}: {word}"),
                )?;
            }
        }
        Ok(())
    }

    fn word(&self, end: usize, unit: u32, mb: u32) -> String {
        let letter = |op: &StepKind| match *op {
            StepKind::Forward {
                keep: Keep::All, ..
            } => Some('a'),
            StepKind::Forward {
                keep: Keep::Selective,
                ..
            } => Some('s'),
            StepKind::Forward {
                keep: Keep::Input, ..
            } => Some('n'),
            StepKind::Forward {
                keep: Keep::Nothing,
                ..
            } => Some('_'),
            StepKind::Recompute { .. } => Some('R'),
            StepKind::Backward { .. } => Some('B'),
            StepKind::InputGrad { .. } => Some('I'),
            StepKind::WeightGrad { .. } => Some('W'),
            StepKind::Spill { .. } => Some('o'),
            StepKind::Fetch { .. } => Some('i'),
            _ => None,
        };
        let mine = |op: &&StepKind| op.units() == [unit] && op.micro_batch() == Some(mb);
        self.ops[..end]
            .iter()
            .filter(mine)
            .filter_map(letter)
            .collect()
    }

    /// Whose output the hidden state of `mb` is after `end` steps.
    fn flow(&self, end: usize, mb: u32) -> Option<u32> {
        let last = self.last();
        let event = |op: &StepKind| match *op {
            StepKind::Forward { unit, mb: m, .. } if m == mb => Some(Some(unit)),
            ref op if op.is_message() => passing(op, false, mb),
            StepKind::Backward { unit, mb: m } | StepKind::InputGrad { unit, mb: m }
                if m == mb && unit == last =>
            {
                Some(None)
            }
            _ => None,
        };
        self.ops[..end].iter().rev().find_map(event).flatten()
    }

    /// The unit of whose output the gradient is held for `mb` after `end` steps.
    fn flow_grad(&self, end: usize, mb: u32) -> Option<u32> {
        let event = |op: &StepKind| match *op {
            StepKind::Backward { unit, mb: m } | StepKind::InputGrad { unit, mb: m } if m == mb => {
                Some(unit.checked_sub(1))
            }
            ref op if op.is_message() => passing(op, true, mb),
            _ => None,
        };
        self.ops[..end].iter().rev().find_map(event).flatten()
    }

    fn gathered(&self, end: usize, unit: u32) -> bool {
        let gathers = self.count(end, |op| gathers(op, unit));
        gathers > self.count(end, |op| *op == StepKind::Release { unit })
    }

    fn writes(&self, op: &StepKind, unit: u32) -> bool {
        let writer = op.writes_grad();
        writer.is_some_and(|w| self.facts.touched(w).any(|u| u == unit))
            && self.facts.has_grads(unit)
    }

    /// Sums of some micro-batches that are in the slice of a unit after `end` steps, and the step behind the last of them.
    fn parts(&self, end: usize, unit: u32) -> (usize, usize) {
        let part = |op: &StepKind| matches!(op, StepKind::ReduceGrad { units, more: true, .. } if units.contains(&unit));
        let last = self.ops[..end].iter().rposition(part);
        (self.count(end, part), last.map_or(0, |at| at + 1))
    }

    /// Written, and not added to the slice yet.
    fn written(&self, end: usize, unit: u32) -> bool {
        let (_, since) = self.parts(end, unit);
        self.ops[since..end].iter().any(|op| self.writes(op, unit))
    }

    /// Gradients of the unit after `end` steps: how many are set aside, and whether one is being written.
    fn sums(&self, end: usize, unit: u32) -> (u32, bool) {
        let (mut aside, mut open) = (0u32, false);
        let (_, since) = self.parts(end, unit);
        for op in &self.ops[since..end] {
            open |= self.writes(op, unit);
            match *op {
                StepKind::Fold { unit: u, joins } if u == unit => {
                    (aside, open) = ((aside + 1).saturating_sub(joins), false);
                }
                _ => {}
            }
        }
        (aside, open)
    }

    fn reduces(op: &StepKind, unit: u32) -> usize {
        match op {
            StepKind::ReduceGrad {
                units, more: false, ..
            } => units.iter().filter(|&&u| u == unit).count(),
            _ => 0,
        }
    }

    fn reduced(&self, end: usize, unit: u32) -> usize {
        self.ops[..end]
            .iter()
            .map(|op| Self::reduces(op, unit))
            .sum()
    }

    fn updated(&self, end: usize, unit: u32) -> bool {
        self.count(end, |op| *op == StepKind::Update { unit }) > 0
    }

    fn hosted(&self, unit: u32) -> bool {
        let mut steps = self.plan.steps.iter();
        steps.any(|s| s.op == StepKind::Update { unit } && s.lane == Lane::Host)
    }

    fn out(&self, end: usize, unit: u32) -> usize {
        self.count(end, |op| *op == StepKind::GradOut { unit, more: false })
    }

    /// The gradients of micro-batches leave one by one.
    fn leaves(&self, unit: u32) -> bool {
        self.any(|op| *op == StepKind::GradOut { unit, more: true })
    }

    /// One of them is reduced and has not left.
    fn waits(&self, end: usize, unit: u32) -> bool {
        let (parts, _) = self.parts(end, unit);
        let out = self.count(end, |op| *op == StepKind::GradOut { unit, more: true });
        self.leaves(unit) && parts > out
    }

    /// Bytes of a gradient that leaves in parts: what is reduced and has not left, and the sum of what the device updates.
    fn leaving(&self, end: usize, unit: u32) -> u64 {
        let fact = &self.facts.units[unit as usize];
        let slice = self.shard(fact.grad_bytes);
        let mut held = 0;
        if self.waits(end, unit) || self.reduced(end, unit) > 0 && self.out(end, unit) == 0 {
            held += slice;
        }
        let left = self.count(
            end,
            |op| matches!(op, StepKind::GradOut { unit: u, .. } if *u == unit),
        );
        if left > 0 && !self.updated(end, unit) {
            let here = fact.state_bytes.saturating_sub(fact.host_state_bytes);
            held += (slice as f64 * (here as f64 / fact.state_bytes.max(1) as f64)) as u64;
        }
        held
    }

    fn params_in(&self, end: usize, unit: u32) -> bool {
        self.count(end, |op| *op == StepKind::ParamIn { unit }) > 0
    }

    /// Copied in since the last gather.
    fn shard_here(&self, end: usize, unit: u32) -> bool {
        let before = || self.ops[..end].iter();
        let came = before().rposition(|op| *op == StepKind::ShardIn { unit });
        came.is_some() && came > before().rposition(|op| gathers(op, unit))
    }

    /// Nothing on the device needs the unit's gradient any more.
    fn grad_gone(&self, end: usize, unit: u32) -> bool {
        let fact = &self.facts.units[unit as usize];
        match self.hosted(unit) && fact.host_state_bytes >= fact.state_bytes {
            true => self.out(end, unit) > 0,
            false => self.updated(end, unit),
        }
    }

    fn runs(&self, unit: u32) -> bool {
        self.plan
            .units()
            .iter()
            .any(|&w| self.facts.touched(w).any(|u| u == unit))
    }

    /// Some readers of the unit are here and some are not.
    fn shared(&self, unit: u32) -> bool {
        let here = self.plan.units();
        let reads = |w: &u32| self.facts.touched(*w).any(|u| u == unit);
        self.runs(unit) && (0..=self.last()).any(|w| reads(&w) && !here.contains(&w))
    }

    /// Nothing is missing from the reduced gradient.
    fn tied(&self, end: usize, unit: u32) -> bool {
        let done = self.count(end, |op| *op == StepKind::Tie { unit }) == 1;
        done || !self.shared(unit) || !self.facts.has_grads(unit)
    }

    fn step(&self, at: usize) -> Result<(), String> {
        let op = &self.ops[at];
        if let Some(reader) = op.reads_params() {
            for unit in self.facts.touched(reader) {
                need(
                    !self.updated(at, unit) && !self.params_in(at, unit),
                    "stale",
                )?;
                let slots = self.plan.params == Storage::Slots && self.facts.has_params(unit);
                need(!slots || self.gathered(at, unit), "not gathered")?;
            }
        }
        for unit in 0..=self.last() {
            if self.writes(op, unit) {
                need(self.reduced(at, unit) == 0, "written after its reduction")?;
                let clears = self.any(|op| matches!(op, StepKind::ZeroGrad { .. }));
                need(
                    !clears || self.count(at, |op| *op == StepKind::ZeroGrad { unit }) == 1,
                    "not cleared",
                )?;
            }
        }
        match *op {
            StepKind::Gather { unit, .. } => {
                need(
                    self.plan.params == Storage::Slots && !self.gathered(at, unit),
                    "gather",
                )?;
                let away = self.any(|op| *op == StepKind::ShardIn { unit });
                need(!away || self.shard_here(at, unit), "slice")?;
                need(
                    !self.updated(at, unit) && !self.params_in(at, unit),
                    "stale",
                )
            }
            StepKind::Release { unit } => need(self.gathered(at, unit), "release"),
            StepKind::Forward { unit, mb, .. } => {
                need(self.flow(at, mb) == unit.checked_sub(1), "flow")
            }
            StepKind::Backward { unit, mb } | StepKind::InputGrad { unit, mb } => {
                if unit == self.last() {
                    need(
                        self.flow(at, mb) == Some(unit) && self.flow_grad(at, mb).is_none(),
                        "loss",
                    )
                } else {
                    need(self.flow_grad(at, mb) == Some(unit), "gradient")
                }
            }
            StepKind::ReduceGrad {
                ref units,
                how,
                more,
            } => {
                need(!units.is_empty(), "empty")?;
                need(
                    self.count(at, |op| matches!(op, StepKind::GradNorm | StepKind::Finite)) == 0,
                    "norm",
                )?;
                let once = |&u: &u32| {
                    let times = units.iter().filter(|&&v| v == u).count();
                    self.reduced(at, u) == 0 && times == 1 && self.written(at, u)
                };
                need(units.iter().all(once), "reduce")?;
                let clears = self.any(|op| matches!(op, StepKind::ZeroGrad { .. }));
                let scatters = self.plan.grads == Storage::Slots && how == Reduction::Scatter;
                let slices = |&u: &u32| scatters && !clears && self.sums(at, u).0 == 0;
                let whole = |u: &u32| !more && self.parts(at, *u).0 == 0;
                need(units.iter().all(|u| whole(u) || slices(u)), "in parts")?;
                need(units.iter().all(|&u| !self.waits(at, u)), "not left")?;
                let folded = |&u: &u32| matches!(self.sums(at, u), (0, _) | (_, false));
                need(units.iter().all(folded), "not set aside")
            }
            StepKind::Tie { unit } => {
                need(
                    self.shared(unit) && self.reduced(at, unit) == 1,
                    "nothing to tie",
                )?;
                let used = |other: &StepKind| {
                    matches!(other, StepKind::GradNorm | StepKind::Finite)
                        || *other == StepKind::Tie { unit }
                        || *other == StepKind::Update { unit }
                        || *other == StepKind::GradOut { unit, more: false }
                };
                need(self.count(at, used) == 0, "tied late")
            }
            StepKind::GradNorm | StepKind::Finite => {
                need(
                    (0..=self.last()).all(|u| !self.runs(u) || self.tied(at, u)),
                    "not tied",
                )?;
                need(self.count(at, |other| other == op) == 0, "twice")?;
                need(
                    self.count(at, |op| matches!(op, StepKind::Update { .. })) == 0,
                    "after an update",
                )?;
                let ready =
                    |u| !self.runs(u) || !self.facts.has_grads(u) || self.reduced(at, u) == 1;
                need((0..=self.last()).all(ready), "not all reduced")?;
                let left = |u| !self.leaves(u) || self.out(at, u) == 1;
                need((0..=self.last()).all(left), "not all left")
            }
            StepKind::Update { unit } => {
                need(
                    !self.updated(at, unit) && self.reduced(at, unit) == 1 && self.tied(at, unit),
                    "update",
                )?;
                for global in [StepKind::GradNorm, StepKind::Finite] {
                    need(
                        !self.any(|op| *op == global) || self.count(at, |op| *op == global) == 1,
                        "norm",
                    )?;
                }
                let moved = self.any(|op| {
                    *op == StepKind::StateIn { unit } || *op == StepKind::StateOut { unit }
                });
                let host = self.plan.steps[at].lane == Lane::Host;
                need(!host || self.out(at, unit) == 1, "gradient out")?;
                need(!moved || self.state_here(at, unit), "state")
            }
            StepKind::ZeroGrad { unit } => need(
                !self.written(at, unit)
                    && self.count(at, |op| *op == StepKind::ZeroGrad { unit }) == 0,
                "clear",
            ),
            StepKind::Fold { unit, joins } => {
                let (aside, open) = self.sums(at, unit);
                let clears = self.any(|op| matches!(op, StepKind::ZeroGrad { .. }));
                need(open && joins <= aside && !clears, "fold")?;
                need(self.reduced(at, unit) == 0, "fold behind the reduction")
            }
            StepKind::SendAct { .. }
            | StepKind::RecvAct { .. }
            | StepKind::SendGrad { .. }
            | StepKind::RecvGrad { .. }
            | StepKind::Exchange { .. } => {
                let (grad, messages) = op.messages();
                messages.iter().enumerate().try_for_each(|(k, m)| {
                    let held = match grad {
                        false => self.flow(at, m.mb),
                        true => self.flow_grad(at, m.mb),
                    };
                    // One value of a micro-batch passes in a group.
                    let once = messages[..k].iter().all(|other| other.mb != m.mb);
                    let wanted = m.sends.then_some(m.unit);
                    need(once && held == wanted, "message")
                })
            }
            StepKind::StateIn { unit } => need(!self.state_here(at, unit), "state in"),
            StepKind::StateOut { unit } => need(self.state_here(at, unit), "state out"),
            StepKind::GradOut { unit, more: true } => {
                let begun = self.out(at, unit) == 0 && !self.updated(at, unit);
                need(self.hosted(unit) && begun, "out")?;
                need(self.waits(at, unit), "nothing to go out")
            }
            StepKind::GradOut { unit, more: false } => {
                need(self.hosted(unit) && self.reduced(at, unit) == 1, "out")?;
                need(self.tied(at, unit), "out untied")?;
                need(self.out(at, unit) == 0 && !self.updated(at, unit), "out")
            }
            StepKind::ParamIn { unit } => {
                let away = self.any(|op| *op == StepKind::ShardIn { unit });
                need(self.hosted(unit) && !away, "in")?;
                need(!self.params_in(at, unit), "in")
            }
            StepKind::ShardIn { unit } => {
                let slots = self.plan.params == Storage::Slots;
                let here = self.shard_here(at, unit) || self.gathered(at, unit);
                need(slots && !here, "slice in")
            }
            // Their whole law is the grammar of activations.
            StepKind::Recompute { .. }
            | StepKind::WeightGrad { .. }
            | StepKind::Spill { .. }
            | StepKind::Fetch { .. } => Ok(()),
        }
    }

    fn state_here(&self, end: usize, unit: u32) -> bool {
        let came = self.count(end, |op| *op == StepKind::StateIn { unit });
        came > self.count(end, |op| *op == StepKind::StateOut { unit })
    }

    fn end(&self) -> Result<(), String> {
        let end = self.ops.len();
        let reduces = self.any(|op| matches!(op, StepKind::ReduceGrad { .. }));
        let updates = self.any(|op| matches!(op, StepKind::Update { .. }));
        for unit in 0..=self.last() {
            need(
                !self.gathered(end, unit) && !self.state_here(end, unit),
                "left here",
            )?;
            let away = self.any(|op| *op == StepKind::ShardIn { unit });
            need(
                !self.hosted(unit) || away || self.params_in(end, unit),
                "never in",
            )?;
            need(!self.shard_here(end, unit), "slice left")?;
            let cleared = self.any(|op| *op == StepKind::ZeroGrad { unit });
            need(!cleared || self.written(end, unit), "cleared for nothing")?;
            if self.written(end, unit) || self.parts(end, unit).0 > 0 {
                need(
                    !(reduces || updates) || self.reduced(end, unit) == 1,
                    "never reduced",
                )?;
                need(!updates || self.updated(end, unit), "never updated")?;
            }
        }
        for mb in 0..self.facts.micro_batches {
            need(
                self.flow(end, mb).is_none_or(|u| u == self.last()),
                "flow left",
            )?;
            need(self.flow_grad(end, mb).is_none(), "gradient left")?;
        }
        Ok(())
    }

    /// One rank's part of something that is sharded.
    fn shard(&self, bytes: u64) -> u64 {
        bytes.div_ceil(u64::from(self.facts.ranks.max(1)))
    }

    /// Bytes of slots: for each size, the most that are taken at once.
    fn slots(&self) -> u64 {
        // Each rank's slice in whole elements, as often as there are ranks.
        let size = |u: u32| {
            let fact = &self.facts.units[u as usize];
            let ranks = u64::from(self.facts.ranks.max(1));
            fact.params.div_ceil(ranks) * ranks * (fact.param_bytes / fact.params.max(1))
        };
        let mut sizes: Vec<u64> = (0..=self.last()).map(size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let of = |bytes: u64| {
            let units = (0..=self.last()).filter(|&u| size(u) == bytes);
            let units: Vec<u32> = units.collect();
            let taken = |end| units.iter().filter(|&&u| self.gathered(end, u)).count() as u64;
            bytes * (0..=self.ops.len()).map(taken).max().unwrap_or(0)
        };
        sizes.into_iter().map(of).sum()
    }

    /// Bytes that live between steps, after `end` of them: parameters, gradients, state, activations, flow.
    fn held(&self, end: usize) -> [u64; 5] {
        let mut held = [0; 5];
        let sharded = self.any(|op| {
            matches!(
                op,
                StepKind::ReduceGrad {
                    how: Reduction::Scatter,
                    ..
                }
            )
        });
        let backward = self.any(|op| op.writes_grad().is_some());
        let updates = self.any(|op| matches!(op, StepKind::Update { .. }));
        for (unit, fact) in self.facts.units.iter().enumerate() {
            let unit = unit as u32;
            let resident = self.plan.params == Storage::Resident && self.runs(unit);
            if resident {
                held[0] += fact.param_bytes;
            }
            if self.shard_here(end, unit) {
                held[0] += self.shard(fact.param_bytes);
            }
            let (parts, _) = self.parts(end, unit);
            let begun = self.written(end, unit)
                || parts > 0
                || self.count(end, |op| *op == StepKind::ZeroGrad { unit }) > 0;
            let (aside, open) = self.sums(end, unit);
            let copies = match self.reduced(end, unit) {
                0 => u64::from(aside + u32::from(open)).max(1),
                _ => 1,
            };
            if self.plan.grads == Storage::Resident {
                held[1] += if self.runs(unit) && backward {
                    copies * fact.grad_bytes
                } else {
                    0
                };
            } else if begun && (self.leaves(unit) || !self.grad_gone(end, unit)) {
                let sliced = self.ops[..end].iter().any(|op| {
                    Self::reduces(op, unit) > 0
                        && matches!(
                            op,
                            StepKind::ReduceGrad {
                                how: Reduction::Scatter,
                                ..
                            }
                        )
                });
                held[1] += match (sliced, parts) {
                    _ if self.leaves(unit) => {
                        let open = !sliced && self.written(end, unit);
                        self.leaving(end, unit) + if open { fact.grad_bytes } else { 0 }
                    }
                    (true, _) => self.shard(fact.grad_bytes),
                    (false, 0) => copies * fact.grad_bytes,
                    _ if self.written(end, unit) => fact.grad_bytes + self.shard(fact.grad_bytes),
                    _ => self.shard(fact.grad_bytes),
                };
            }
            let moved = self
                .any(|op| *op == StepKind::StateIn { unit } || *op == StepKind::StateOut { unit });
            if self.state_here(end, unit) || (!moved && updates && self.runs(unit)) {
                let mut bytes = fact.state_bytes;
                if self.hosted(unit) {
                    bytes = bytes.saturating_sub(fact.host_state_bytes);
                }
                held[2] += if sharded { self.shard(bytes) } else { bytes };
            }
            for mb in 0..self.facts.micro_batches {
                let word = self.word(end, unit, mb);
                let away = word.ends_with('o');
                let done = word.contains('B') || word.contains('W');
                held[3] += match word.chars().next() {
                    _ if away || done => 0,
                    _ if word.contains('I') => fact.owed_bytes,
                    Some('a') => fact.saved_all,
                    Some('n') if word.contains('R') => fact.saved_all,
                    Some('n') => fact.saved_input,
                    Some('s') => fact.saved_selective,
                    _ => 0,
                };
            }
        }
        for mb in 0..self.facts.micro_batches {
            for unit in [self.flow(end, mb), self.flow_grad(end, mb)]
                .into_iter()
                .flatten()
            {
                held[4] += self.facts.units[unit as usize].flow_bytes;
            }
        }
        held
    }

    /// Bytes while step `at` runs.
    fn bytes(&self, at: usize) -> u64 {
        let (before, after) = (self.held(at), self.held(at + 1));
        let mut most: u64 = (0..4).map(|k| before[k].max(after[k])).sum();
        let op = &self.ops[at];
        let out_of = |unit: u32| {
            unit.checked_sub(1)
                .map_or(0, |u| self.facts.units[u as usize].flow_bytes)
        };
        most += match *op {
            // Output and input at once: the input stays flow, since nothing saved took it over.
            StepKind::Forward {
                unit,
                keep: Keep::Nothing,
                ..
            } => after[4] + out_of(unit),
            // The gradients of output and input at once; the loss itself is spent when its backward starts.
            StepKind::Backward { unit, .. } | StepKind::InputGrad { unit, .. } => {
                before[4].max(if unit == self.last() {
                    before[4] - self.facts.units[unit as usize].flow_bytes + out_of(unit)
                } else {
                    before[4] + out_of(unit)
                })
            }
            _ => before[4].max(after[4]),
        };
        if let StepKind::Gather { unit, .. } = *op
            && self.any(|op| *op == StepKind::ShardIn { unit })
        {
            most += self.shard(self.facts.units[unit as usize].param_bytes);
        }
        if let StepKind::ReduceGrad { units, .. } = op
            && self.facts.ranks > 1
        {
            let beside =
                |&u: &u32| u64::from(self.sums(at, u).0) * self.facts.units[u as usize].grad_bytes;
            most += units.iter().map(beside).sum::<u64>();
        }
        if let StepKind::ReduceGrad { units, .. } = op {
            // What arrives beside the slice that it is added to.
            let later = |u: &&u32| self.parts(at, **u).0 > 0 && !self.leaves(**u);
            let later = units.iter().filter(later);
            let bytes = |&u: &u32| self.shard(self.facts.units[u as usize].grad_bytes);
            most += later.map(bytes).sum::<u64>();
        }
        if let Some(unit) = op.reads_params() {
            let fact = &self.facts.units[unit as usize];
            most += fact.workspace_bytes;
            let backward = matches!(op, StepKind::Backward { .. } | StepKind::InputGrad { .. });
            let selective = self
                .word(at, unit, op.micro_batch().unwrap())
                .starts_with('s');
            if backward && selective {
                most += fact.saved_all.saturating_sub(fact.saved_selective);
            }
        }
        most
    }
}
