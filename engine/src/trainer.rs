//! One rank of a training job: state, streams, plan; enqueues steps and reads their figures one step late.

use crate::base;
use crate::documents::Documents;
use crate::dry::DryRun;
use crate::error::{Error, Result};
use crate::figures::Figures;
use crate::gather;
use crate::graphs::Graphs;
use crate::groups::MeshGroups;
use crate::init;
use crate::kept::PendingStateLoad;
use crate::ledger::RankLedger;
use crate::nonfinite::Watch;
use crate::offload::{Offload, OffloadSpec, Spilled, plan_offload};
use crate::optim::{assign, recipes};
use crate::pipeline::{self, Pipe, PipelineSpec};
use crate::scale::{Precision, Scaling};
use crate::state::{Holding, Home, Slots, StateKind, UnitState};
use crate::trace::Tracing;
pub use crate::upload::MicroBatch;
use crate::upload::upload_consts;
use crossweave_hal::{
    AbortHandle, Bootstrap, DType, Device, Event, HostBuffer, Purpose, Stream, Tag,
};
use crossweave_mesh::Islands;
use crossweave_parallel::{Pick, Recompute as RecomputePass, schedule};
use crossweave_plan::{Depend, Facts, Lane, PassManager, Plan, StepKind};
use crossweave_tensor::{Decompositions, KernelCache, ParamDecl, Run, Tape, Tensor, UnitDecl, Var};
use crossweave_zero::optim::{Adam, Optimizer, ParamGroups, Recipe};
use crossweave_zero::{
    Bucket, Canonical, Hierarchical, Own, Partition, Persist, Place, Prefetch, Reuse, Ties,
    Updates, ZeroSpec, ZeroStage,
};
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// What the backward recomputes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Recompute {
    /// Nothing: everything is kept.
    #[default]
    None,
    /// Whole units, from their inputs.
    Full,
    /// What is cheap: norms and activations.
    Selective,
}

/// What one rank is to do.
#[derive(Clone, Debug)]
pub struct RankSpec {
    /// This rank.
    pub rank: u32,
    /// Ranks of the data-parallel group.
    pub world: u32,
    /// Seed of starting values and dropout.
    pub seed: u64,
    /// Dtype of parameters and activations; masters and gradients are f32.
    pub compute: DType,
    /// Micro-batches a step on this rank; where sums are canonical, of each of its logical shards.
    pub micro_batches: u32,
    /// Sequences a micro-batch on this rank.
    pub batch: u64,
    /// Sequences of this rank's micro-batch over the mean of all ranks': what its loss and gradients count for. 1 where all take the same.
    pub weight: f64,
    /// Tokens a sequence.
    pub seq_len: u64,
    /// Largest global gradient norm; 0 = no clipping.
    pub clip: f64,
    /// Which optimizer updates which parameter.
    pub optim: ParamGroups,
    /// What is recomputed.
    pub recompute: Recompute,
    /// Gradients of neighbouring units are reduced together up to this many bytes.
    pub bucket_bytes: u64,
    /// Reduce on a stream of its own, beside the backward.
    pub overlap: bool,
    /// The time limit of each collective.
    pub timeout: Option<Duration>,
    /// What is sharded over the data-parallel group.
    pub zero: ZeroSpec,
    /// At what scale and in what types gradients are computed and summed.
    pub precision: Precision,
    /// What rests off the device.
    pub offload: Option<OffloadSpec>,
    /// The stage of a pipeline this rank is; `rank` and `world` then count the data-parallel ranks of its stage.
    pub pipeline: Option<PipelineSpec>,
    /// Logical shards of the global batch, at least as many as ranks: every sum goes over them in one tree, so that any number of ranks
    /// trains to the same bits. None: sums go over the ranks.
    pub canonical: Option<u32>,
    /// Which ranks share a library of collectives, in a job of several back ends.
    pub islands: Option<Islands>,
    /// Forward and backward steps that repeat are replayed as graphs of the device.
    pub graphs: bool,
    /// Rows hold several documents that must not see each other, or whose positions begin anew.
    pub documents: Option<Documents>,
    /// Some predictions have a target of -100 and do not count: the loss is the mean over those of all ranks that do.
    pub labelled: bool,
}

impl Default for RankSpec {
    /// One rank alone, f32, one sequence of one token, AdamW with torch's numbers, nothing clipped, recomputed or sharded: the base
    /// from which callers say what they want.
    fn default() -> RankSpec {
        RankSpec {
            rank: 0,
            world: 1,
            seed: 0,
            compute: DType::F32,
            micro_batches: 1,
            batch: 1,
            weight: 1.0,
            seq_len: 1,
            clip: 0.0,
            optim: ParamGroups::all(Optimizer::Adam(Adam::default()), 0.01),
            recompute: Recompute::None,
            bucket_bytes: 25 << 20,
            overlap: true,
            timeout: None,
            zero: ZeroSpec::default(),
            precision: Precision::default(),
            offload: None,
            pipeline: None,
            canonical: None,
            islands: None,
            graphs: false,
            documents: None,
            labelled: false,
        }
    }
}

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

/// Steps in flight whose figures have not been read.
const IN_FLIGHT: usize = 3;
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
    /// Slots for whole parameters that hold none now.
    pub(crate) slots: Slots,
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
    /// Units whose gradients the plan sends to the host.
    pub(crate) grads_leave: Vec<bool>,
    plan: Plan,
    facts: Facts,
    pub(crate) caches: HashMap<(u32, u8), RefCell<KernelCache>>,
    pub(crate) acts: Vec<Vec<Option<Act>>>,
    pub(crate) flow: Vec<Vec<Tensor>>,
    pub(crate) flow_grad: Vec<Option<Vec<Option<Tensor>>>>,
    pub(crate) scaling: Scaling,
    pub(crate) figures: VecDeque<Figures>,
    pub(crate) pending: VecDeque<(u64, Figures, Event)>,
    pub(crate) inputs: VecDeque<HostBuffer>,
    pub(crate) step: u64,
    pub(crate) landings: Vec<PendingStateLoad>,
    pub(crate) lr: f64,
    /// Decay rates of this step's moments, where a schedule moves them.
    pub(crate) betas: Option<[f64; 2]>,
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
        if spec.micro_batches == 0 || spec.world == 0 || spec.rank >= spec.world {
            return Err(Error::Invalid(format!(
                "rank {} of {} with {} micro-batches",
                spec.rank, spec.world, spec.micro_batches
            )));
        }
        let node = spec.zero.node;
        if node > 1 && (spec.zero.stage != ZeroStage::Three || !spec.world.is_multiple_of(node)) {
            return Err(Error::Invalid(format!(
                "nodes of {node} ranks with {} ranks at stage {}: hierarchical partition needs stage 3 and a number that divides the ranks",
                spec.world, spec.zero.stage as u8
            )));
        }
        let uneven = spec.weight != 1.0;
        if !(spec.weight.is_finite() && spec.weight > 0.0)
            || uneven && (spec.canonical.is_some() || spec.pipeline.is_some())
        {
            return Err(Error::Invalid(format!(
                "a rank of weight {}: a positive number, and 1 with logical shards or pipeline stages",
                spec.weight
            )));
        }
        crate::eight::check(device, &spec)?;
        spec.check_canonical()?;
        crate::accum::check(&spec)?;
        assign(&mut units, &spec.optim)?;
        let shared = pipeline::shared(&spec, &units)?;
        let whole = units.iter().map(|u| u.params.clone()).collect();
        pipeline::keep_stage(&spec, &mut units)?;
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
        let mut state = units
            .iter()
            .zip(&each)
            .map(|(u, r)| UnitState::new(device, u, holding(&spec, u, r), r))
            .collect::<std::result::Result<Vec<_>, _>>()
            .map_err(at("allocating parameters and moments"))?;
        for s in &state {
            s.clear(&compute).map_err(&hal)?;
        }
        let consts = upload_consts(&compute, &units).map_err(at("uploading tables"))?;
        let joining = |e: crossweave_hal::Error| at("joining the group dp")(e.into());
        let options = spec.mesh_options();
        let (mut mesh, base) =
            pipeline::join(device, &spec, boot, &options, &shared).map_err(&joining)?;
        let pipe = Pipe::new(device, &spec, &dry.flows, whole).map_err(|e| hal(e.into()))?;
        for u in pipe.iter().flat_map(|p| &p.elsewhere) {
            state[*u].normed.clear();
        }
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
        let mut figures = VecDeque::new();
        let logical = match spec.canonical {
            Some(shards) => [
                state.iter().map(|s| s.words).sum(),
                u64::from(shards * spec.micro_batches),
            ],
            None => [0, 0],
        };
        for _ in 0..IN_FLIGHT {
            let f = Figures::new(device, units.len(), logical).map_err(|e| hal(e.into()))?;
            figures.push_back(f);
        }
        let input_bytes = 4 * spec.input_words() * u64::from(spec.own_micro_batches());
        let mut inputs = VecDeque::new();
        for _ in 0..IN_FLIGHT {
            inputs.push_back(
                device
                    .alloc_host(input_bytes, Tag::Staging)
                    .map_err(|e| hal(e.into()))?,
            );
        }
        let scaling =
            Scaling::new(device, &compute, &spec, units.len(), IN_FLIGHT).map_err(at("set-up"))?;
        let leaves = |u: usize| {
            let out = StepKind::GradOut { unit: u as u32 };
            plan.steps.iter().any(|s| s.op == out)
        };
        let grads_leave = (0..units.len()).map(leaves).collect();
        let side = |on: bool, name| match on {
            true => device.stream(name, 1).map(Some),
            false => Ok(None),
        };
        let spills = spec.offload.as_ref().is_some_and(|o| o.activations);
        let spill_out = side(spills, "spill").map_err(|e| hal(e.into()))?;
        let fetch_in = side(spills, "fetch").map_err(|e| hal(e.into()))?;
        let offload = match spec.offload.as_ref().and_then(|o| Some((o, o.optimizer?))) {
            Some((o, how)) => {
                let share = |s: &UnitState| (s.host, s.host_runs.clone(), s.base.comes());
                let shares = state.iter().map(share).collect();
                let at = at("opening the offloaded state");
                Some(Offload::start(device, &spec, o, how, shares).map_err(at)?)
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
            slots: Slots::default(),
            groups: MeshGroups::new(mesh),
            purposes: vec![],
            offload,
            pipe,
            spill_out,
            fetch_in,
            spare: vec![],
            grads_leave,
            plan,
            facts,
            caches: HashMap::new(),
            figures,
            pending: VecDeque::new(),
            inputs,
            step: 0,
            landings: vec![],
            lr: 0.0,
            betas: None,
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
        let of = |s: &UnitState| (s.layout.numel(), s.base.layout.numel());
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
        (0..self.state.len())
            .try_for_each(|u| self.param_in(u))
            .map_err(|e| self.error("publishing values", e))
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
        let Some((step, mut f, event)) = self.pending.pop_front() else {
            return Ok(None);
        };
        let wait = event.sync(None).map_err(|e| Error::Run {
            rank: self.spec.job_rank(),
            step,
            at: "waiting for the step".into(),
            source: e.into(),
        });
        let word =
            |b: &[u8], i: usize| f32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]) as f64;
        let read = wait.and_then(|()| {
            f.host
                .read()
                .map(|b| (word(b, 0), word(b, 8)))
                .map_err(|e| self.error("reading figures", e.into()))
        });
        let (lr, share) = (f.lr, f.share);
        self.figures.push_back(f);
        let (loss, grad_norm) = read?;
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
        if self.figures.is_empty() {
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

/// How a rank holds a unit's state.
fn holding(spec: &RankSpec, unit: &UnitDecl, recipes: &[Option<Recipe>]) -> Holding {
    let numel = unit.params.iter().map(|p| p.shape.numel()).sum();
    let offload = spec.offload.as_ref();
    let host = offload.and_then(|o| o.optimizer).map_or(0.0, |o| o.ratio);
    let away = host > 0.0 && offload.is_some_and(|o| o.params);
    Holding {
        host,
        away,
        home: match spec.zero.stage {
            _ if away => Home::Slot,
            ZeroStage::Zero => Home::Resident,
            ZeroStage::Three if !spec.zero.persists(numel) => Home::Slot,
            _ => Home::Kept,
        },
        compute: spec.compute,
        deal: if recipes.iter().flatten().any(|r| r.optimizer.wants_whole()) {
            Partition::WholeParameter
        } else {
            Partition::Flat
        },
        rank: spec.rank,
        ranks: spec.world,
        shards: spec.canonical,
        node: spec.zero.node.max(1),
        grad_shards: spec.zero.stage >= ZeroStage::Two,
    }
}

/// Plans a rank's step and holds it against every law, the device's memory included: what does not fit is refused before anything is
/// allocated, with the step of the plan it falls on.
///
/// # Errors
/// A broken law, or more bytes than the device has. Ranks that share a host's memory (threads of one process) get an equal part each.
pub fn plan_for(device: &Device, spec: &RankSpec, dry: &DryRun) -> Result<(Plan, Facts)> {
    let info = device.info().map_err(|e| Error::Run {
        rank: spec.job_rank(),
        step: 0,
        at: "asking the device for its memory".into(),
        source: e.into(),
    })?;
    let shared = info.caps & crossweave_hal::abi::CAP_HOST_PROGRESS != 0;
    let stages = spec.pipeline.as_ref().map_or(1, |p| p.stages.len() as u64);
    let ranks = stages * spec.world.max(1) as u64;
    let part = info.mem_total / if shared { ranks } else { 1 };
    let mut units = dry.units.clone();
    for u in &mut units {
        // Where nothing but slots holds whole f32 parameters, their shard is state like the moments.
        let slotted = spec.zero.stage == ZeroStage::Three && !spec.zero.persists(u.params);
        if slotted && spec.compute == DType::F32 {
            u.state_bytes += 4 * u.params;
        } else if slotted {
            u.state_bytes += spec.compute.bytes(u.base);
        }
        if slotted && spec.zero.node > 1 {
            // The node's copy: sharded over fewer ranks, so it counts for more of the whole.
            u.state_bytes += u.param_bytes * u64::from(spec.world / spec.zero.node);
        }
    }
    crate::offload::offload_facts(&mut units, spec);
    crate::accum::facts(&mut units, spec);
    let mut facts = Facts {
        units,
        micro_batches: spec.most_micro_batches(),
        ranks: spec.world,
        budget: (part > 0).then_some(part),
        slots: None,
    };
    let plan = plan_step(&facts, spec)?;
    facts.micro_batches = spec.own_micro_batches();
    crossweave_plan::check(&plan, &facts)?;
    Ok((plan, facts))
}

/// The plan of one optimizer step.
fn plan_step(facts: &Facts, spec: &RankSpec) -> Result<Plan> {
    let n = facts.units.len() as u32;
    let mut p = PassManager::new();
    match spec.recompute {
        Recompute::None => {}
        Recompute::Full => p = p.with(RecomputePass(Pick::Full)),
        Recompute::Selective => p = p.with(RecomputePass(Pick::Selective)),
    }
    // Without clipping an update needs no global norm, so it follows its gradient at once and gradients never pile up.
    let clip = spec.clip > 0.0;
    let finite = spec.precision.scaler.is_some();
    p = p.with(Place(spec.zero.stage));
    if spec.canonical.is_some() {
        p = p.with(Canonical {
            shards: spec.most_replicas(),
            micro_batches: spec.micro_batches,
        });
    }
    if spec.zero.stage == ZeroStage::Three {
        // What rests on the host is gathered for each use.
        let away = spec.offload.as_ref().is_some_and(|o| o.params);
        p = p.with(Persist {
            below: if away { 0 } else { spec.zero.persist_below },
        });
        p = p.with(Reuse {
            reshard: spec.zero.reshard,
            within: spec.zero.reuse_within,
        });
        if spec.zero.node > 1 {
            p = p.with(Hierarchical);
        }
    }
    p = p
        .with(Bucket {
            bytes: spec.bucket_bytes,
        })
        .with(Ties)
        .with(Updates {
            norm: clip,
            finite,
            early: !clip && !finite,
            // The host updates beside the device anyway, and is given its work at once.
            lag: spec.offload.as_ref().is_none_or(|o| o.optimizer.is_none()),
        });
    p = plan_offload(p, spec, false);
    if spec.zero.stage == ZeroStage::Three && spec.zero.prefetch > 0 {
        p = p.with(Prefetch {
            depth: spec.zero.prefetch,
            slots: u32::MAX,
            elements: spec.zero.max_live,
        });
    }
    p = plan_offload(p, spec, true);
    if spec.canonical.is_some() {
        p = p.with(Own {
            shards: spec.own_replicas(),
            micro_batches: spec.micro_batches,
        });
    }
    let start = match &spec.pipeline {
        None => schedule::accumulate(n, facts.micro_batches),
        Some(stages) => {
            let peers = stages.peers(spec.world, spec.rank);
            let stage = stages.stage as usize;
            schedule::pipeline(&peers, stage, spec.micro_batches, stages.order)
        }
    };
    Ok(p.with(Depend).run(start, facts)?)
}
