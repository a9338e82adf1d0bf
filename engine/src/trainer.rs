//! One rank of a training job: state, streams, plan; enqueues steps and reads their figures one step late.

use crate::base;
use crate::blocks::Blocks;
use crate::caches::Caches;
use crate::dry::{DryRun, assign, plan_for};
use crate::error::{Error, Result};
use crate::graphs::Graphs;
use crate::groups::MeshGroups;
use crate::in_flight::{self, InFlight};
use crate::init;
use crate::kept::Saving;
use crate::lanes::Lanes;
use crate::ledger::RankLedger;
use crate::offload::Offload;
use crate::pipeline::{self, Pipe};
use crate::scale::Scaling;
use crate::state::{StateKind, UnitState};
use crate::timeline::Diagnostics;
pub use crate::upload::MicroBatch;
use crate::upload::upload_consts;
use crate::values::Values;
use crossweave_hal::{AbortHandle, Bootstrap, Device};
use crossweave_machine::Machine;
use crossweave_plan::{Facts, Lane, Plan, StepId, StepKind};
use crossweave_planner::{self as planner, GATHER, Lowered, NODE, RankSpec};
use crossweave_tensor::{Decompositions, KernelCache, ParamDecl, Run, UnitDecl};
use serde::Serialize;
use std::cell::RefCell;
use std::collections::BTreeSet;

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
}

/// One rank of a training job.
pub struct Trainer {
    pub(crate) spec: RankSpec,
    pub(crate) blocks: Blocks,
    pub(crate) state: Vec<UnitState>,
    pub(crate) lanes: Lanes,
    /// Has the group `dp` when there is more than one rank.
    pub(crate) groups: MeshGroups,
    /// The host's side, where states rest there.
    pub(crate) offload: Option<Offload>,
    /// Where this rank is a stage of a pipeline.
    pub(crate) pipe: Option<Pipe>,
    /// The plan, and what it was lowered to.
    pub(crate) lowered: Lowered,
    pub(crate) machine: Machine,
    pub(crate) values: Values,
    pub(crate) scaling: Scaling,
    pub(crate) in_flight: InFlight,
    pub(crate) saving: Saving,
    pub(crate) diagnostics: Diagnostics,
    /// Optimizer steps taken.
    pub(crate) step: u64,
}

impl Trainer {
    /// Plans the step, checks the plan, allocates state and joins the data-parallel group.
    pub fn new(
        device: &Device,
        mut units: Vec<UnitDecl>,
        spec: RankSpec,
        dry: &DryRun,
        boot: &dyn Bootstrap,
    ) -> Result<Trainer> {
        let spec = spec.of_stages(units.len());
        let at = |what: &str| {
            let (rank, what) = (spec.job_rank(), what.to_string());
            move |e: crossweave_tensor::Error| Error::Run {
                rank,
                step: 0,
                at: what.clone(),
                source: e,
            }
        };
        spec.check()?;
        crate::quantized::check(device, &spec)?;
        assign(&mut units, &spec.optim)?;
        let shared = planner::shared(&spec, &units)?;
        let whole = units.iter().map(|u| u.params.clone()).collect();
        planner::keep_stage(&spec, &mut units)?;
        let each = planner::recipes(&units, &spec.optim);
        let (plan, facts) = plan_for(device, &spec, dry)?;
        let hal = at("set-up");
        let gathers = plan
            .steps
            .iter()
            .any(|s| matches!(s.op, StepKind::Gather { .. }));
        let lanes = Lanes::new(device, &spec, gathers).map_err(|e| hal(e.into()))?;
        let pipe = Pipe::new(device, &spec, &dry.flows, whole).map_err(|e| hal(e.into()))?;
        let none = BTreeSet::new();
        let elsewhere = pipe.as_ref().map_or(&none, |p| &p.elsewhere);
        let flat = |(u, (unit, r)): (usize, (&UnitDecl, &Vec<_>))| {
            planner::flat(&spec, unit, r, elsewhere.contains(&u))
        };
        let flats: Vec<_> = units.iter().zip(&each).enumerate().map(flat).collect();
        let stage = spec.pipeline.as_ref().map_or(0, |p| p.stage as usize);
        let tied = shared.iter().find(|s| s.contains(&stage));
        let given = planner::Given {
            spec: &spec,
            units: &units,
            flats: &flats,
            recipes: &each,
            writes: &dry.writes,
            elsewhere,
            tied: tied.map_or(0, |s| s.len() as u32),
        };
        let mut lowered = planner::lower((plan, facts), &given)?;
        let program = std::mem::take(&mut lowered.program);
        let allocating = at("allocating parameters and moments");
        let mut machine = Machine::new(device, program).map_err(&allocating)?;
        let memory = lowered.params.iter().zip(&lowered.optim);
        let state = units
            .iter()
            .zip(flats.iter().zip(memory))
            .map(|(u, (flat, (m, o)))| UnitState::new(&machine, u, flat.clone(), m, o))
            .collect::<std::result::Result<Vec<_>, _>>()
            .map_err(&allocating)?;
        for s in &state {
            s.clear(&lanes.compute).map_err(&hal)?;
        }
        let consts = upload_consts(&lanes.compute, &units).map_err(at("uploading tables"))?;
        let joining = |e: crossweave_hal::Error| at("joining the group dp")(e.into());
        let options = spec.mesh_options();
        let (mut mesh, base) =
            pipeline::join(device, &spec, boot, &options, &shared).map_err(&joining)?;
        if gathers && spec.world > 1 {
            let all: Vec<u32> = (base..base + spec.world).collect();
            mesh.join(device, boot, GATHER, "dp", &all, &options)
                .map_err(&joining)?;
            if spec.zero.node > 1 {
                let first = base + spec.rank - spec.rank % spec.zero.node;
                let node: Vec<u32> = (first..first + spec.zero.node).collect();
                mesh.join(device, boot, NODE, "dp.node", &node, &options)
                    .map_err(joining)?;
            }
        }
        machine.join(lowered.groups(&mesh).map_err(|e| hal(e.into()))?);
        let input_bytes = 4 * spec.input_words() * u64::from(spec.own_micro_batches());
        let in_flight = InFlight::new(device, input_bytes).map_err(|e| hal(e.into()))?;
        let scaling = Scaling::new(&spec);
        if let Some(seed) = machine.buffer(lowered.memory.seed) {
            let bits = u64::from((scaling.seed() as f32).to_bits());
            let filled = lanes.compute.fill(seed.all(), bits, 4);
            filled.map_err(|e| hal(e.into()))?;
        }
        let offload = match spec.offload.as_ref().and_then(|o| Some((o, o.optimizer?))) {
            Some(offload) => {
                let rooms = planner::rooms(&spec, &offload.1, &flats)?;
                let started = Offload::start(device, offload, (rooms, &flats), spec.job_rank());
                Some(started.map_err(at("opening the offloaded state"))?)
            }
            None => None,
        };
        let mbs = spec.own_micro_batches() as usize;
        let graphs = Graphs::new(device, spec.graphs).map_err(|e| hal(e.into()))?;
        let count = units.len();
        Ok(Trainer {
            values: Values::new(count, mbs),
            spec,
            blocks: Blocks {
                units,
                consts,
                caches: Caches::new(count),
                graphs,
            },
            state,
            lanes,
            groups: MeshGroups::new(mesh),
            offload,
            pipe,
            lowered,
            machine,
            scaling,
            in_flight,
            saving: Saving::default(),
            diagnostics: Diagnostics::default(),
            step: 0,
        })
    }

    /// The step's plan.
    pub fn plan(&self) -> &Plan {
        &self.lowered.plan
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
        &self.spec
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
        match &self.pipe {
            Some(p) => p.decls.iter().flatten().cloned().collect(),
            None => self.state.iter().flat_map(|s| s.decls.clone()).collect(),
        }
    }
    /// Parameters of each unit that this rank holds, and those that adapters sit on, which do not count among them; 0 where the unit is
    /// another stage's.
    pub fn unit_sizes(&self) -> Vec<(u64, u64)> {
        let of = |s: &UnitState| (s.layout.numel(), s.flat.base.numel());
        self.state.iter().map(of).collect()
    }
    /// For a watchdog: one for each group; none in a job of one rank.
    pub fn abort_handles(&self) -> Vec<AbortHandle> {
        self.groups.mesh().borrow().abort_handles()
    }
    /// Cross-stream waits the HAL has inserted, by lane. The plan's edges must imply each of them.
    pub fn waits(&self) -> Vec<(Lane, u64)> {
        let peer = self.pipe.iter().map(|p| (Lane::Peer, p.stream.waits()));
        self.lanes.waits().chain(peer).collect()
    }

    /// Starting values by seed and name; moments at zero.
    pub fn init(&mut self) -> Result<()> {
        (0..self.state.len())
            .try_for_each(|u| base::fill(self, u))
            .map_err(|e| self.error("starting values", e))?;
        init::init_trained(self)
    }

    /// Sets a parameter's value or moment from f32 (row-major, whole parameter; each rank takes its part, and one whose stage does not
    /// hold the parameter nothing). Call [`Trainer::publish`] after the last.
    pub fn load(&mut self, name: &str, kind: StateKind, values: &[f32]) -> Result<()> {
        if self.lives_elsewhere(name) {
            return Ok(());
        }
        let (u, i) = self.find(name)?;
        let shape = self.state_shape(u, i, kind);
        let numel = shape.as_ref().map(|s| s.iter().product::<u64>());
        if numel.is_some_and(|n| n != values.len() as u64) {
            return Err(Error::Invalid(format!(
                "{name}: {} values for a {} of shape {:?}",
                values.len(),
                kind.name(),
                shape.unwrap_or_default()
            )));
        }
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.put_state((u, i), kind, 0, &bytes).map(|_| ())
    }

    /// Casts loaded values into the compute dtype.
    pub fn publish(&mut self) -> Result<()> {
        self.keep_landed()?;
        let cache = RefCell::new(KernelCache::default());
        let run = Run::new(&self.lanes.compute, &Decompositions, &cache);
        self.state
            .iter()
            .try_for_each(|u| init::publish(&run, u))
            .map_err(|e| self.error("publishing values", e))?;
        for u in 0..self.state.len() {
            let calls = self.lowered.outside[u].param_in.clone();
            self.run_outside(calls, String::new())
                .map_err(|e| self.error("publishing values", e))?;
            self.state[u].changed();
        }
        Ok(())
    }

    pub(crate) fn find(&self, name: &str) -> Result<(usize, usize)> {
        let hit = |(u, s): (usize, &UnitState)| {
            s.decls.iter().position(|d| d.name == name).map(|i| (u, i))
        };
        self.state
            .iter()
            .enumerate()
            .find_map(hit)
            .ok_or_else(|| Error::Invalid(format!("the model has no parameter {name}")))
    }

    /// The figures of the oldest step not yet reported; waits for that step only. `None` when every step was reported.
    pub fn metrics(&mut self) -> Result<Option<StepMetrics>> {
        let Some(p) = self.in_flight.figures.pop_front() else {
            return Ok(None);
        };
        let step = p.step;
        let failed = |e: crossweave_hal::Error| Error::Run {
            rank: self.spec.job_rank(),
            step,
            at: "waiting for the step".into(),
            source: e.into(),
        };
        p.event.sync(None).map_err(failed)?;
        let word =
            |b: &[u8], i: usize| f32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]) as f64;
        let host = self.machine.pinned(self.lowered.memory.figures, p.turn);
        let read = host.and_then(|h| Ok(h.read().map(|b| (word(b, 0), word(b, 8)))?));
        let (loss, grad_norm) = read.map_err(|e| self.error("reading figures", e))?;
        let (lr, share) = (p.lr, p.share);
        let judged = self.judged(step)?;
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
        }))
    }

    /// Both ledgers.
    pub fn ledger(&self) -> RankLedger {
        // What the host has been given counts when it is done; a failure there arrives at the next step.
        let _ = self.settle_offload();
        RankLedger {
            rank: self.spec.job_rank(),
            memory: self.device().memory(),
            collectives: self.device().collectives(),
            bridge: self.device().bridged(),
            device_allocs_after_step_2: self.diagnostics.late_allocations(),
            graphs: self.graphs(),
        }
    }

    /// Runs one optimizer step: one micro-batch per entry of `batches`. Enqueues only; [`Trainer::metrics`] tells how it went.
    pub fn step(&mut self, batches: &[MicroBatch<'_>], lr: f64) -> Result<()> {
        self.step_at(batches, &|_| lr)
    }

    /// The same with the learning rate as a function of the updates made before: a skipped step is none, so that with loss scaling the
    /// caller does not know their number yet.
    pub fn step_at(&mut self, batches: &[MicroBatch<'_>], lr: &dyn Fn(u64) -> f64) -> Result<()> {
        let wanted = self.spec.own_micro_batches();
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

    pub(crate) fn error(&self, at: &str, source: crossweave_tensor::Error) -> Error {
        Error::Run {
            rank: self.spec.job_rank(),
            step: self.step,
            at: at.to_string(),
            source,
        }
    }
}
