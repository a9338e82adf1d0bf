//! One rank of a training job: state, streams, plan; enqueues steps and reads their figures one step late.

mod blocks;
mod eval;
mod gather;
mod kept;
mod moves;
mod nonfinite;
mod predict;
mod scale;
mod stages;
mod start;
mod state;
mod walk;
mod watch;

pub use predict::{Prediction, predict, rehearsal, rehearse};

use crate::blocks::Blocks;
use crate::error::{Error, Result};
use crate::groups::MeshGroups;
use crate::in_flight::{self, InFlight};
use crate::lanes::Lanes;
use crate::ledger::RankLedger;
use crate::pipeline::Pipe;
use crate::scale::Scaling;
use crate::timeline::Diagnostics;
pub use crate::upload::MicroBatch;
use crate::values::Values;
use crate::whole::Whole;
use crossweave_hal::{AbortHandle, Device};
use crossweave_machine::Machine;
use crossweave_offload::Executor;
use crossweave_plan::{Facts, Lane, Plan, StepId};
use crossweave_planner::{Lowered, RankSpec};
use crossweave_program::Program;
use crossweave_state::States;
use crossweave_tensor::ParamDecl;
use serde::Serialize;

/// Figures of one step, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepMetrics {
    /// Optimizer step, from 1.
    pub step: u64,
    /// Mean over the predictions of the global batch that count.
    pub loss: f64,
    /// Global gradient norm before clipping, the loss scale undone; infinite where the step was skipped.
    pub grad_norm: f64,
    /// Learning rate of the update.
    pub lr: f64,
    /// Loss scale after the step, where the loss is scaled.
    pub loss_scale: Option<f64>,
    /// Gradients were not finite: the update was skipped.
    pub skipped: bool,
    /// Steps skipped so far.
    pub skipped_steps: u64,
    /// Figures of routers, if the model has experts.
    pub experts: Option<ExpertFigures>,
}

/// Figures of the routers of a model with experts in a step: means over its layers, micro-batches and ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ExpertFigures {
    /// The loss that is least where experts have equally many tokens, without its coefficient.
    pub aux_loss: f64,
    /// Tokens of the expert with the fewest, over those that each would have if all had as many.
    pub load_min: f64,
    /// The same of that with the most.
    pub load_max: f64,
    /// Entropy of the parts that experts have, over that of equal parts.
    pub load_entropy: f64,
    /// The part of the tokens' choices that found no room at their experts; 0 where these take all.
    pub drops: f64,
    /// The mean square of the log of the sum of exponentials of a token's scores, where that has a factor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub z_loss: Option<f64>,
}

/// One rank of a training job.
pub struct Engine {
    blocks: Blocks,
    state: States,
    whole: Whole,
    lanes: Lanes,
    /// Has the group `dp` when there is more than one rank.
    groups: MeshGroups,
    /// The way to the host's thread, where something rests off the device.
    host: Option<Executor>,
    /// Where this rank is a stage of a pipeline.
    pipe: Option<Pipe>,
    /// What this rank is asked to do, its plan, and what that was lowered to.
    lowered: Lowered,
    machine: Machine,
    values: Values,
    scaling: Scaling,
    in_flight: InFlight,
    diagnostics: Diagnostics,
    /// Optimizer steps taken.
    step: u64,
}

impl Engine {
    /// The step's plan.
    pub fn plan(&self) -> &Plan {
        &self.lowered.plan
    }
    /// The program of this rank: a step, and what is called outside it.
    pub fn program(&self) -> &Program {
        self.machine.program()
    }
    /// The program of a step as text: memory, and the instructions of each step of the plan.
    pub fn program_text(&self) -> String {
        let named = |s: Option<StepId>| match s.and_then(|s| self.plan().steps.get(s.index())) {
            Some(step) => {
                let text = step.to_string();
                // `B3.0` and `B3.1` are one step on two micro-batches.
                let kind = match text.split_once('.') {
                    Some((unit, mb)) => {
                        let rest = mb.trim_start_matches(|c: char| c.is_ascii_digit());
                        format!("{unit}.{rest}")
                    }
                    None => text.clone(),
                };
                (kind, format!("{} {text}", step.id.0))
            }
            None => ("outside".into(), "outside the steps of the plan".into()),
        };
        self.machine.program().text(self.lowered.step(), &named)
    }
    /// What this rank was asked to do.
    pub fn spec(&self) -> &RankSpec {
        &self.lowered.spec
    }
    /// What it was planned from.
    pub fn facts(&self) -> &Facts {
        &self.lowered.facts
    }
    /// The device.
    pub fn device(&self) -> &Device {
        self.lanes.compute.device()
    }
    /// Optimizer steps taken.
    pub fn steps_taken(&self) -> u64 {
        self.step
    }
    /// Continues as if `step` steps had been taken (resume).
    pub fn set_step(&mut self, step: u64) {
        self.step = step;
    }
    /// Every parameter of the model, in run order, also those of other pipeline stages.
    pub fn params(&self) -> Vec<ParamDecl> {
        self.state.model()
    }
    /// Parameters of each unit that this rank holds, and those that adapters sit on, which do not count among them; 0 where the unit is
    /// another stage's.
    pub fn unit_sizes(&self) -> Vec<(u64, u64)> {
        let tables = (0..self.state.count()).map(|u| self.state.table(u));
        tables.map(|t| (t.flat.numel, t.base.numel)).collect()
    }
    /// For a watchdog: one for each group; none in a job of one rank.
    pub fn abort_handles(&self) -> Vec<AbortHandle> {
        self.groups.mesh().borrow().abort_handles()
    }
    /// Cross-stream waits the HAL has inserted, by lane. The plan's edges must imply each of them.
    pub fn waits(&self) -> Vec<(Lane, u64)> {
        let peers = self.pipe.iter().map(|p| p.peers.stream());
        let peer = peers.map(|s| (Lane::Peer, s.waits()));
        self.lanes.waits().chain(peer).collect()
    }

    /// The figures of the oldest step not yet reported; waits for that step only. `None` when every step was reported.
    pub fn metrics(&mut self) -> Result<Option<StepMetrics>> {
        let Some(p) = self.in_flight.figures.pop_front() else {
            return Ok(None);
        };
        let step = p.step;
        let failed = |e: crossweave_hal::Error| Error::Run {
            rank: self.lowered.spec.place.job_rank(),
            step,
            at: "waiting for the step".into(),
            source: e.into(),
        };
        p.event.sync(None).map_err(failed)?;
        let word =
            |b: &[u8], i: usize| f32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]) as f64;
        let host = self.machine.pinned(self.lowered.memory.figures, p.turn);
        let words = self.lowered.figures();
        let read = host.and_then(|h| {
            let given = |b: &[u8]| words.clone().map(|i| word(b, 4 * i as usize)).collect();
            Ok(h.read().map(|b| (word(b, 0), word(b, 8), given(b)))?)
        });
        let (loss, grad_norm, given): (f64, f64, Vec<f64>) =
            read.map_err(|e| self.error("reading figures", e))?;
        let (lr, share) = (p.lr, p.share);
        self.judge(step)?;
        let judged = self.scaling.judged(step);
        Ok(Some(StepMetrics {
            step,
            // Where every prediction counts the factor is 1 and changes no bit.
            loss: loss * share,
            // A rank whose own part is finite may have computed a finite norm.
            grad_norm: match judged {
                Some(j) if j.skipped => f64::INFINITY,
                _ => grad_norm,
            },
            lr,
            loss_scale: judged.map(|j| j.scale),
            skipped: judged.is_some_and(|j| j.skipped),
            skipped_steps: judged.map_or(0, |j| j.skipped_steps),
            experts: match given[..] {
                [
                    aux_loss,
                    load_min,
                    load_max,
                    load_entropy,
                    drops,
                    ref z @ ..,
                ] => Some(ExpertFigures {
                    aux_loss,
                    load_min,
                    load_max,
                    load_entropy,
                    drops,
                    z_loss: z.first().copied(),
                }),
                _ => None,
            },
        }))
    }

    /// Both ledgers.
    pub fn ledger(&self) -> RankLedger {
        // What the host has been given counts when it is done; a failure there arrives at the next step.
        let _ = self.settle_offload();
        RankLedger {
            rank: self.lowered.spec.place.job_rank(),
            memory: match &self.host {
                Some(host) => host.counted(self.device().memory()),
                None => self.device().memory(),
            },
            collectives: self.device().collectives(),
            bridge: self.device().bridged(),
            device_allocs_after_step_2: self.diagnostics.late_allocations(),
            graphs: self.graphs(),
        }
    }

    /// Runs one optimizer step: one micro-batch per entry of `batches`. Enqueues only; [`Engine::metrics`] tells how it went.
    pub fn step(&mut self, batches: &[MicroBatch<'_>], lr: f64) -> Result<()> {
        self.step_at(batches, &|_| lr)
    }

    /// The same with the learning rate as a function of the updates made before: a skipped step is none, so that with loss scaling the
    /// caller does not know their number yet.
    pub fn step_at(&mut self, batches: &[MicroBatch<'_>], lr: &dyn Fn(u64) -> f64) -> Result<()> {
        let wanted = self.lowered.spec.own_micro_batches();
        if batches.len() != wanted as usize {
            return Err(Error::Invalid(format!(
                "{} micro-batches given, the plan has {wanted}",
                batches.len()
            )));
        }
        if self.in_flight.is_full() {
            return Err(Error::Invalid(format!(
                "{} steps are in flight: read their metrics before the next step",
                in_flight::MOST
            )));
        }
        self.count_own(batches)?;
        self.device().settle();
        if self.blocks.graphs.is_some() {
            self.device().join_free();
        }
        self.step += 1;
        // Only what steps take is counted: validation, checkpoints and samples between them have allocations of their own.
        let before = self.device().device_allocs();
        let done = self.walk(batches, lr);
        let made = self.device().device_allocs() - before;
        self.diagnostics.count_allocations(made);
        done
    }

    fn error(&self, at: &str, source: crossweave_tensor::Error) -> Error {
        Error::Run {
            rank: self.lowered.spec.place.job_rank(),
            step: self.step,
            at: at.to_string(),
            source,
        }
    }
}
