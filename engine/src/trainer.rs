//! One rank of a training job: state, streams, plan; enqueues steps and reads their figures one step late.

use crate::base;
use crate::dry::DryRun;
use crate::error::{Error, Result};
use crate::gather;
use crate::graphs::Graphs;
use crate::groups::MeshGroups;
use crate::init;
use crate::kept::PendingStateLoad;
use crate::ledger::RankLedger;
use crate::lower::{self, Lowered};
use crate::nonfinite::Watch;
use crate::offload::Offload;
use crate::optim::{assign, recipes};
use crate::pipeline::{self, Pipe};
use crate::planning::plan_for;
use crate::scale::Scaling;
use crate::spec::{self, RankSpec};
use crate::state::{StateKind, UnitState};
use crate::trace::Tracing;
pub use crate::upload::MicroBatch;
use crate::upload::upload_consts;
use crossweave_hal::{
    AbortHandle, Bootstrap, DType, Device, Event, HostBuffer, Purpose, Stream, Tag,
};
use crossweave_machine::Machine;
use crossweave_plan::{Facts, Lane, Plan, StepId, StepKind};
use crossweave_tensor::{
    Decompositions, KernelCache, ParamDecl, Run, Shape, Tape, Tensor, UnitDecl, Var,
};
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap, VecDeque};

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

/// Activations of one unit and micro-batch, between forward and backward.
pub(crate) enum Act {
    /// The tape with its inputs and outputs.
    Saved(Tape, Vec<Var>, Vec<Var>),
    /// Only the inputs.
    Inputs(Vec<Tensor>),
    /// Only the inputs, in host memory.
    Away(Vec<Spilled>),
}

/// One kept input while it is away.
pub(crate) enum Spilled {
    /// In pinned memory.
    Away(HostBuffer, Shape, DType),
    /// Not dense, hence a view of something that lives anyway.
    Here(Tensor),
}

/// Steps in flight whose figures have not been read.
const IN_FLIGHT: usize = crossweave_zero::lower::IN_FLIGHT as usize;

/// The figures of a step on their way to the host.
pub(crate) struct Pending {
    pub step: u64,
    /// In which copy of pinned memory they arrive.
    pub turn: usize,
    pub event: Event,
    /// The step's learning rate.
    pub lr: f64,
    /// Predictions of the step over those that count.
    pub share: f64,
}
/// Decay rates as a function of the updates made.
pub(crate) type BetasAt = Box<dyn Fn(u64) -> Option<[f64; 2]>>;

/// One rank of a training job.
pub struct Trainer {
    pub(crate) spec: RankSpec,
    pub(crate) units: Vec<UnitDecl>,
    pub(crate) state: Vec<UnitState>,
    pub(crate) consts: Vec<Vec<Tensor>>,
    pub(crate) compute: Stream,
    pub(crate) reduce: Stream,
    /// Copies of state for checkpoints; made by the first of them.
    pub(crate) snapshots: Option<Stream>,
    /// Where the plan gathers anything.
    pub(crate) gather: Option<Stream>,
    /// Has the group `dp` when there is more than one rank.
    pub(crate) groups: MeshGroups,
    /// What the checker calls the plan's steps.
    pub(crate) purposes: Vec<Option<Purpose>>,
    /// The host's side, where states rest there.
    pub(crate) offload: Option<Offload>,
    /// Where this rank is a stage of a pipeline.
    pub(crate) pipe: Option<Pipe>,
    /// Kept inputs leave and return on these; memory for them that is free.
    pub(crate) spill_out: Option<Stream>,
    pub(crate) fetch_in: Option<Stream>,
    pub(crate) spare: Vec<HostBuffer>,
    plan: Plan,
    /// What the plan was lowered to, and the memory that it works on.
    pub(crate) lowered: Lowered,
    pub(crate) machine: Machine,
    facts: Facts,
    pub(crate) caches: HashMap<(u32, u8), RefCell<KernelCache>>,
    pub(crate) acts: Vec<Vec<Option<Act>>>,
    pub(crate) flow: Vec<Vec<Tensor>>,
    pub(crate) flow_grad: Vec<Option<Vec<Option<Tensor>>>>,
    pub(crate) scaling: Scaling,
    pub(crate) pending: VecDeque<Pending>,
    pub(crate) inputs: VecDeque<HostBuffer>,
    pub(crate) step: u64,
    pub(crate) landings: Vec<PendingStateLoad>,
    pub(crate) betas_at: Option<BetasAt>,
    /// Steps this trainer has run itself, those before a resume left out.
    steps_here: u64,
    /// Device allocations made by steps after the second.
    late_allocs: u64,
    /// Calls and waits of a step, while somebody wants them.
    pub(crate) tracing: Option<Tracing>,
    /// Looks for values that are not finite.
    pub(crate) watch: Option<Watch>,
    /// Rank 0 works alone, and the others serve it.
    pub(crate) leading: Cell<bool>,
    /// Recordings of the plan's steps, where they are replayed.
    pub(crate) graphs: Option<Graphs>,
    // Last, so that the device outlives every handle above.
    pub(crate) device: Device,
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
        let shared = spec::shared(&spec, &units)?;
        let whole = units.iter().map(|u| u.params.clone()).collect();
        spec::keep_stage(&spec, &mut units)?;
        let each = recipes(&units, &spec.optim);
        let (plan, facts) = plan_for(device, &spec, dry)?;
        let hal = at("set-up");
        let compute = device.stream("compute", 0).map_err(|e| hal(e.into()))?;
        let reduce = device.stream("reduce", 1).map_err(|e| hal(e.into()))?;
        let gathers = plan
            .steps
            .iter()
            .any(|s| matches!(s.op, StepKind::Gather { .. }));
        let gather = match gathers {
            true => Some(device.stream("gather", 1).map_err(|e| hal(e.into()))?),
            false => None,
        };
        let pipe = Pipe::new(device, &spec, &dry.flows, whole).map_err(|e| hal(e.into()))?;
        let none = BTreeSet::new();
        let elsewhere = pipe.as_ref().map_or(&none, |p| &p.elsewhere);
        let flat = |(u, (unit, r)): (usize, (&UnitDecl, &Vec<_>))| {
            lower::flat(&spec, unit, r, elsewhere.contains(&u))
        };
        let flats: Vec<_> = units.iter().zip(&each).enumerate().map(flat).collect();
        let stage = spec.pipeline.as_ref().map_or(0, |p| p.stage as usize);
        let tied = shared.iter().find(|s| s.contains(&stage));
        let given = lower::Given {
            spec: &spec,
            units: &units,
            flats: &flats,
            recipes: &each,
            writes: &dry.writes,
            elsewhere,
            tied: tied.map_or(0, |s| s.len() as u32),
        };
        let mut lowered = lower::lower(&plan, &given)?;
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
            s.clear(&compute).map_err(&hal)?;
        }
        let consts = upload_consts(&compute, &units).map_err(at("uploading tables"))?;
        let joining = |e: crossweave_hal::Error| at("joining the group dp")(e.into());
        let options = spec.mesh_options();
        let (mut mesh, base) =
            pipeline::join(device, &spec, boot, &options, &shared).map_err(&joining)?;
        if gathers && spec.world > 1 {
            let all: Vec<u32> = (base..base + spec.world).collect();
            mesh.join(device, boot, gather::GROUP, "dp", &all, &options)
                .map_err(&joining)?;
            if spec.zero.node > 1 {
                let first = base + spec.rank - spec.rank % spec.zero.node;
                let node: Vec<u32> = (first..first + spec.zero.node).collect();
                mesh.join(device, boot, gather::NODE, "dp.node", &node, &options)
                    .map_err(joining)?;
            }
        }
        machine.join(lowered.groups(&mesh).map_err(|e| hal(e.into()))?);
        let input_bytes = 4 * spec.input_words() * u64::from(spec.own_micro_batches());
        let mut inputs = VecDeque::new();
        for _ in 0..IN_FLIGHT {
            inputs.push_back(
                device
                    .alloc_host(input_bytes, Tag::Staging)
                    .map_err(|e| hal(e.into()))?,
            );
        }
        let scaling = Scaling::new(&spec);
        if let Some(seed) = machine.buffer(lowered.memory.seed) {
            let bits = u64::from((scaling.seed() as f32).to_bits());
            let filled = compute.fill(seed.all(), bits, 4);
            filled.map_err(|e| hal(e.into()))?;
        }
        let side = |on: bool, name| match on {
            true => device.stream(name, 1).map(Some),
            false => Ok(None),
        };
        let spills = spec.offload.as_ref().is_some_and(|o| o.activations);
        let spill_out = side(spills, "spill").map_err(|e| hal(e.into()))?;
        let fetch_in = side(spills, "fetch").map_err(|e| hal(e.into()))?;
        let offload = match spec.offload.as_ref().and_then(|o| Some((o, o.optimizer?))) {
            Some(offload) => {
                let started = Offload::start(device, &spec, offload, &flats);
                Some(started.map_err(at("opening the offloaded state"))?)
            }
            None => None,
        };
        let mbs = spec.own_micro_batches() as usize;
        let graphs = Graphs::new(device, spec.graphs).map_err(|e| hal(e.into()))?;
        Ok(Trainer {
            acts: units
                .iter()
                .map(|_| (0..mbs).map(|_| None).collect())
                .collect(),
            flow: vec![vec![]; mbs],
            flow_grad: (0..mbs).map(|_| None).collect(),
            scaling,
            spec,
            units,
            state,
            consts,
            compute,
            reduce,
            snapshots: None,
            gather,
            groups: MeshGroups::new(mesh),
            purposes: vec![],
            offload,
            pipe,
            spill_out,
            fetch_in,
            spare: vec![],
            plan,
            lowered,
            machine,
            facts,
            caches: HashMap::new(),
            pending: VecDeque::new(),
            inputs,
            step: 0,
            landings: vec![],
            betas_at: None,
            steps_here: 0,
            late_allocs: 0,
            tracing: None,
            watch: None,
            leading: Cell::new(false),
            graphs,
            device: device.clone(),
        })
    }

    /// The step's plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
    /// The program of a step as text: memory, and the instructions of each step of the plan.
    pub fn program_text(&self) -> String {
        let named = |s: Option<StepId>| match s.and_then(|s| self.plan.steps.get(s.index())) {
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
        &self.facts
    }
    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }
    /// Optimizer steps taken.
    pub fn steps_taken(&self) -> u64 {
        self.step
    }
    /// Decay rates of the moments as a function of the updates made before, in place of the optimizer's own where it gives any
    /// (OneCycle).
    pub fn schedule_betas(&mut self, betas: impl Fn(u64) -> Option<[f64; 2]> + 'static) {
        self.betas_at = Some(Box::new(betas));
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
        let gather = self.gather.iter().map(|s| (Lane::Gather, s.waits()));
        let peer = self.pipe.iter().map(|p| (Lane::Peer, p.stream.waits()));
        [
            (Lane::Compute, self.compute.waits()),
            (Lane::Reduce, self.reduce.waits()),
        ]
        .into_iter()
        .chain(gather)
        .chain(peer)
        .collect()
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
        let run = Run::new(&self.compute, &Decompositions, &cache);
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
        let Some(p) = self.pending.pop_front() else {
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
            memory: self.device.memory(),
            collectives: self.device.collectives(),
            bridge: self.device.bridged(),
            device_allocs_after_step_2: self.late_allocs,
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
        if self.pending.len() >= IN_FLIGHT {
            return Err(Error::Invalid(format!(
                "{IN_FLIGHT} steps are in flight: read their metrics before the next step"
            )));
        }
        self.count_own(batches)?;
        self.device.settle();
        if self.graphs.is_some() {
            self.device.join_free();
        }
        self.step += 1;
        self.steps_here += 1;
        // Only what steps take is counted: validation, checkpoints and samples between them have allocations of their own.
        let before = self.device.device_allocs();
        let done = self.walk(batches, lr);
        if self.steps_here > 2 {
            self.late_allocs += self.device.device_allocs() - before;
        }
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

    pub(crate) fn take_plan(&mut self) -> Plan {
        std::mem::replace(&mut self.plan, Plan::from_ops([]))
    }
    pub(crate) fn put_plan(&mut self, plan: Plan) {
        self.plan = plan;
    }
}
