//! What was found in a step that is not finite, in words, and the agreement of all ranks on it (`crate::nonfinite`).

use super::Engine;
use crate::error::{Error, Result};
use crossweave_hal::DType;
use crossweave_mesh::AxisSet;
use crossweave_plan::{Step, StepKind};
use crossweave_tensor::{Finding, NonFinite, Tensor};
use std::sync::Arc;

/// Bits of a finding's place that are the launch within its step of the plan; with those of the step they are exact as f64.
const LAUNCHES: u32 = 16;

/// Bytes of a sentence that travel to the other ranks.
const SENTENCE: usize = 1000;

impl Engine {
    /// From now on every op of a step is looked at, which takes several times as long and changes no bit. A step in which something
    /// becomes NaN or infinite is an error that says where it began. Under dynamic loss scaling gradients may: the scaler sees to it.
    pub fn find_nonfinite(&mut self) {
        self.diagnostics.watch.get_or_insert_default();
    }

    /// Was something found in the step just walked?
    pub(super) fn note_nonfinite(&mut self, step: &Step) {
        let Some(finding) = self
            .diagnostics
            .watch
            .as_ref()
            .and_then(|w| w.probe().take())
        else {
            return;
        };
        let forward = matches!(
            step.op,
            StepKind::Forward { .. } | StepKind::Recompute { .. }
        );
        let scaler = self.lowered.spec.precision.scaler.as_ref();
        if !forward && scaler.is_some_and(|s| !s.is_static()) {
            // The scaler's to mend; a forward that follows is looked at like any other.
            if let Some(w) = &self.diagnostics.watch {
                w.probe().again();
            }
            return;
        }
        let text = self.sentence(step, &finding);
        // Ranks that share a layer see each other's values in the same step of the plan.
        let place = self.place(step) << LAUNCHES | (finding.launch as u64).min((1 << LAUNCHES) - 1);
        if let Some(w) = &mut self.diagnostics.watch {
            w.found = Some((place, text));
        }
    }

    /// What comes first may have caused what comes later. On one stage that is the plan's order; over several each micro-batch goes forward
    /// through the units and back, and updates follow all of them.
    fn place(&self, step: &Step) -> u64 {
        if self.pipe.is_none() {
            return u64::from(step.id.0);
        }
        let n = self.blocks.units.len() as u64;
        let (at, mb) = match step.op {
            StepKind::Forward { unit, mb, .. } => (u64::from(unit), mb),
            StepKind::Recompute { unit, mb } => (3 * n - 2 * u64::from(unit), mb),
            StepKind::Backward { unit, mb }
            | StepKind::InputGrad { unit, mb }
            | StepKind::WeightGrad { unit, mb } => (3 * n - 2 * u64::from(unit) + 1, mb),
            _ => (0, self.lowered.spec.micro_batches),
        };
        (3 * n + 2) * u64::from(mb) + at
    }

    fn sentence(&self, step: &Step, f: &Finding) -> String {
        let phase = match &step.op {
            StepKind::Forward { mb, .. } => format!("forward of micro-batch {mb}"),
            StepKind::Recompute { mb, .. } => format!("recomputed forward of micro-batch {mb}"),
            StepKind::Backward { mb, .. } | StepKind::InputGrad { mb, .. } => {
                format!("backward of micro-batch {mb}")
            }
            StepKind::WeightGrad { mb, .. } => {
                format!("gradients of weights of micro-batch {mb}")
            }
            StepKind::GradNorm => "norm of the gradients".into(),
            StepKind::Update { .. } => "update".into(),
            _ => "other work".into(),
        };
        let unit = match step.op {
            StepKind::Forward { unit, .. }
            | StepKind::Recompute { unit, .. }
            | StepKind::Backward { unit, .. }
            | StepKind::InputGrad { unit, .. }
            | StepKind::WeightGrad { unit, .. }
            | StepKind::Update { unit }
            | StepKind::GradOut { unit, .. }
            | StepKind::Gather { unit, .. } => Some(unit as usize),
            _ => None,
        };
        let layer = unit.map_or(String::new(), |u| {
            format!(" in layer {}", self.blocks.units[u].name)
        });
        let why = match &f.inputs[..] {
            [] => "from inputs that are finite".to_string(),
            bad => {
                let each: Vec<String> = bad.iter().map(|b| self.operand(unit, b)).collect();
                format!(
                    "because its input was not finite already: {}",
                    each.join("; ")
                )
            }
        };
        format!(
            "step {}, rank {}, plan step {} ({}): {phase}{layer}: op {} (launch {}) gave {}, {why}",
            self.step,
            self.lowered.spec.place.job_rank(),
            step.id.0,
            step.op,
            f.op,
            f.launch,
            self.operand(unit, &f.result)
        )
    }

    /// An operand in words: its name in the op, shape, type and counts, and the parameters it belongs to, if it does.
    fn operand(&self, unit: Option<usize>, o: &NonFinite) -> String {
        let t = &o.tensor;
        let units = match unit {
            Some(u) => std::iter::once(u)
                .chain(self.blocks.units[u].borrowed.iter().map(|(o, _)| *o))
                .collect(),
            None => (0..self.blocks.units.len()).collect::<Vec<_>>(),
        };
        let named = units.iter().find_map(|u| self.parameters(*u, t));
        let (dims, dtype) = (t.shape(), t.dtype().name());
        format!(
            "{}{} {dims:?} {dtype} with {} of {} values NaN or infinite",
            o.name,
            named.unwrap_or_default(),
            o.values,
            t.numel()
        )
    }

    /// The parameters of unit `u` that a tensor holds, or holds gradients of. One product may take several that lie side by side: then they are
    /// those that are not finite.
    fn parameters(&self, u: usize, t: &Tensor) -> Option<String> {
        let params = self.state.params(u);
        let of = |what: &str, parts: Vec<(usize, Tensor)>| {
            let bad = |part: &Tensor| {
                let values = self.host_values(part);
                values.is_ok_and(|v| v.iter().any(|x| !x.is_finite()))
            };
            let all = parts.len() > 1;
            let mut blamed: Vec<usize> = parts
                .iter()
                .filter(|(_, part)| !all || bad(part))
                .map(|(i, _)| *i)
                .collect();
            if blamed.is_empty() {
                blamed = parts.iter().map(|(i, _)| *i).collect();
            }
            let names = blamed.iter().filter_map(|i| params.get(*i));
            let names: Vec<String> = names.map(|p| p.name.to_string()).collect();
            (!names.is_empty()).then(|| format!(" ({what} {})", names.join(", ")))
        };
        let (from, to) = (t.offset(), t.offset() + t.extent());
        let meets = |p: &Tensor| {
            let here = p.offset()..p.offset() + p.extent();
            Arc::ptr_eq(p.buffer(), t.buffer()) && here.start < to && from < here.end
        };
        let whole = self.whole_params(u);
        let parts = whole.map_or(vec![], |view| {
            let all = (0..params.len()).map(|i| (i, view(i)));
            all.filter(|(_, p)| meets(p)).collect()
        });
        of("parameter", parts).or_else(|| of("gradient of", self.gradients_at(u, t)))
    }

    /// The end of a step: the earliest finding of all ranks, as an error on all of them.
    pub(super) fn agree_on_nonfinite(&mut self) -> Result<()> {
        let Some(watch) = &self.diagnostics.watch else {
            return Ok(());
        };
        let found = watch.found.clone();
        let everyone = AxisSet::WORLD;
        let world = self.lowered.spec.place.size(everyone) as usize;
        let rank = self.lowered.spec.place.index(everyone) as usize;
        if world == 1 {
            return found.map_or(Ok(()), |(_, text)| Err(Error::NotFinite(text)));
        }
        const TAG: &str = "nonfinite";
        let agreeing = |e| self.error("agreeing on what is not finite", e);
        let place = found.as_ref().map_or(0.0, |(step, _)| *step as f64 + 1.0);
        let places = self.gather_words(&[place], TAG).map_err(agreeing)?;
        let found_by = (0..world).filter(|r| places[*r] > 0.0);
        let Some(winner) = found_by.min_by(|a, b| places[*a].total_cmp(&places[*b])) else {
            return Ok(());
        };
        let mut bytes = vec![0.0; SENTENCE];
        if let Some((_, text)) = found.filter(|_| winner == rank) {
            let text = text.bytes().zip(&mut bytes);
            text.for_each(|(from, to)| *to = f64::from(from));
        }
        let all = self.gather_words(&bytes, TAG).map_err(agreeing)?;
        let text: Vec<u8> = all[winner * SENTENCE..][..SENTENCE]
            .iter()
            .map(|b| *b as u8)
            .take_while(|b| *b > 0)
            .collect();
        Err(Error::NotFinite(
            String::from_utf8_lossy(&text).into_owned(),
        ))
    }

    /// The parameters of unit `u` whose whole gradients lie where this tensor does, with the part of it that is theirs.
    fn gradients_at(&self, u: usize, t: &Tensor) -> Vec<(usize, Tensor)> {
        let buffer = |m: &crossweave_program::MemId| self.machine.buffer(*m);
        let mut all = self.lowered.memory.grads[u].iter().filter_map(buffer);
        if all.all(|b| !Arc::ptr_eq(b, t.buffer())) {
            return vec![];
        }
        let (from, to) = (t.offset() / 4, (t.offset() + t.extent()) / 4);
        let params = self.state.table(u).params.iter().enumerate();
        let meets = params.filter_map(|(i, p)| {
            let part = p.range.start.max(from)..p.range.end.min(to);
            (!p.base && part.start < part.end).then(|| {
                let at = 4 * part.start;
                let n = [part.end - part.start];
                (i, Tensor::dense(t.buffer().clone(), at, n, DType::F32))
            })
        });
        meets.collect()
    }
}
