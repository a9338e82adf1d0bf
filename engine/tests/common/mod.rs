//! A training job on threads, for tests: what to run, and what came of it.
#![allow(dead_code, reason = "each test binary uses its part")]

use crossweave_engine::optimizers::{Adam, Optimizer, ParamGroups, Sgd};
use crossweave_engine::{
    Axis, Devices, Dry, Engine, FileSettings, Files, Links, MicroBatch, OffloadDevice, OffloadSpec,
    OptimizerOffload, Place, RankLedger, RankSpec, ReduceGradients, Rows, StateKind, StepMetrics,
    Topology, Units, ZeroSpec, ZeroStage, dry_run, prepare,
};
use crossweave_hal::{
    Bootstrap, CollectiveLine, Device, HostServices, KvStore, LocalKv, Plugin, RawPlugin, Result,
};
use crossweave_nn::{Lora, ModelSpec};
use crossweave_plan::{Facts, Plan};
use crossweave_tensor::UnitDecl;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// True where tests over many layouts are to try all of them: `CROSSWEAVE_MATRIX=all`.
pub fn every() -> bool {
    std::env::var("CROSSWEAVE_MATRIX").is_ok_and(|v| v == "all")
}

/// True of the cases, by their numbers, that are tried without being asked for: about every second, spread evenly whatever the cases' period is.
pub fn taken(case: usize) -> bool {
    (case as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 == 0 || every()
}

/// A key-value store as what ranks meet by.
pub struct Boot(pub Arc<dyn KvStore>);
impl Bootstrap for Boot {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.0.set(key, value)
    }
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        self.0.get(key, Some(timeout))
    }
}

/// For a rank that meets nobody: alone, or on the null device.
pub struct Nobody;
impl Bootstrap for Nobody {
    fn set(&self, _: &str, _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn get(&self, _: &str, _: Duration) -> Result<Vec<u8>> {
        Ok(vec![0; 8])
    }
}

/// Optimizer states off the device, all of them.
pub fn offload(dir: &Path, tier: OffloadDevice) -> OffloadSpec {
    OffloadSpec {
        optimizer: Some(OptimizerOffload {
            tier,
            ratio: 1.0,
            delayed: false,
            grad_f32: true,
            pin: false,
            group: None,
        }),
        params: false,
        activations: false,
        folder: dir.to_path_buf(),
        files: FileSettings {
            block_size: 4096,
            queue_depth: 4,
            buffers: 4,
            ..FileSettings::default()
        },
    }
}

/// The CPU and the null device, each for up to 8 ranks, and how ranks on them are started.
pub struct World {
    pub cpu: Plugin,
    pub null: Plugin,
    /// Steps are replayed as graphs.
    pub graphs: bool,
    pub files: Files,
}

impl World {
    /// What a rank runs on that computes on `device`; a CPU runs what is updated on the host.
    pub fn devices(&self, device: &Device) -> Devices {
        Devices {
            compute: device.clone(),
            host: self.cpu.open(0).unwrap(),
            files: self.files.clone(),
        }
    }

    /// The way to the others, with a limit of a minute.
    pub fn links<'a>(&self, boot: &'a dyn Bootstrap) -> Links<'a> {
        Links {
            timeout: Some(Duration::from_secs(60)),
            graphs: self.graphs,
            ..Links::new(boot)
        }
    }

    /// A rank on `device`, prepared and set up, without starting values.
    pub fn rank(
        &self,
        device: &Device,
        units: Vec<UnitDecl>,
        s: &RankSpec,
        dry: &Dry,
        boot: &dyn Bootstrap,
    ) -> crossweave_engine::Result<Engine> {
        set_up(self.devices(device), units, s, dry, self.links(boot))
    }
}

/// The units as a rank has them.
pub fn placed(units: Vec<UnitDecl>, s: &RankSpec) -> Vec<UnitDecl> {
    let units = Units::new(units, &s.place, &s.optim).unwrap();
    units.into_inner()
}

/// Prepares a rank for its device and sets it up there.
pub fn set_up(
    devices: Devices,
    units: Vec<UnitDecl>,
    s: &RankSpec,
    dry: &Dry,
    links: Links<'_>,
) -> crossweave_engine::Result<Engine> {
    let units = Units::new(units, &s.place, &s.optim)?;
    let lowered = prepare(&devices.compute, s, &units, dry)?;
    Engine::new(devices, lowered, units, links)
}

// One process has one backend, which keeps its first host: every test asks for the most devices any of them needs.
pub fn world() -> World {
    let host = HostServices::builder()
        .config("cpu.devices", "8")
        .config("cpu.threads", "1")
        .build();
    let raw = RawPlugin::from_static::<crossweave_backend_cpu::CpuBackend>(&host).unwrap();
    let null = RawPlugin::from_static::<crossweave_backend_null::Null>(&host).unwrap();
    World {
        cpu: Plugin::new(raw),
        null: Plugin::new(null),
        graphs: false,
        files: Files::Folder,
    }
}

/// A tiny model whose sizes no number of ranks above one divides evenly.
pub fn gpt2(layers: u64, dropout: f64) -> ModelSpec {
    of(
        json!({"model_type": "gpt2", "vocab_size": 37, "n_positions": 16, "n_embd": 18, "n_layer": layers, "n_head": 2,
        "n_inner": 50, "embd_pdrop": dropout, "resid_pdrop": dropout, "attn_pdrop": dropout, "initializer_range": 0.1}),
    )
}

pub fn llama(layers: u64) -> ModelSpec {
    of(
        json!({"model_type": "llama", "vocab_size": 37, "hidden_size": 20, "intermediate_size": 27,
        "num_hidden_layers": layers, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 10,
        "max_position_embeddings": 16, "rms_norm_eps": 1e-5, "initializer_range": 0.1}),
    )
}

fn of(config: Value) -> ModelSpec {
    ModelSpec::from_hf(&config).unwrap()
}

/// The same model with other values of some keys.
pub fn with<V: Clone + Into<Value>>(model: &ModelSpec, keys: &[(&str, V)]) -> ModelSpec {
    let mut config = model.hf_config();
    for (key, value) in keys {
        config[key] = value.clone().into();
    }
    of(config)
}

pub const SEQ: u64 = 7;
pub const GLOBAL: u64 = 24;

/// The same models with sizes that 2 and 4 ranks divide evenly.
pub fn even(model: ModelSpec) -> ModelSpec {
    let roles = model.family().roles;
    let gated = !roles.head_dim.is_empty();
    let mut keys = vec![
        ("vocab_size", 40),
        (roles.width, 16),
        (roles.mlp, if gated { 32 } else { 64 }),
    ];
    keys.extend(gated.then_some((roles.head_dim, 8)));
    with(&model, &keys)
}

/// ZeRO of which the smallest models have several buckets.
pub fn small_buckets() -> ZeroSpec {
    ZeroSpec {
        bucket_bytes: 6000,
        ..ZeroSpec::default()
    }
}

/// Gradients reduced once a step, which gives every ZeRO stage the same bits; `slices.rs` has what reduces each micro-batch.
pub fn by_step() -> ZeroSpec {
    ZeroSpec {
        reduce: ReduceGradients::Step,
        ..small_buckets()
    }
}

/// The same at a ZeRO stage.
pub fn staged(s: RankSpec, stage: u32) -> RankSpec {
    RankSpec {
        zero: ZeroSpec {
            stage: ZeroStage::from_number(stage).unwrap(),
            ..s.zero
        },
        ..s
    }
}

/// The same with rows of so many tokens.
pub fn of_length(s: RankSpec, tokens: u64) -> RankSpec {
    RankSpec {
        rows: Rows {
            seq_len: tokens,
            ..s.rows
        },
        ..s
    }
}

/// The same with plain steps, so that a gradient that is missing a summand shows as it is.
pub fn sgd(s: RankSpec) -> RankSpec {
    let optimizer = Optimizer::Sgd(Sgd {
        momentum: 0.9,
        dampening: 0.0,
        nesterov: false,
    });
    RankSpec {
        optim: ParamGroups::all(optimizer, 0.0),
        clip: 0.0,
        ..s
    }
}

/// The first of so many data-parallel ranks.
pub fn dp_place(ranks: u32) -> Place {
    Place::on(&[(Axis::Dp, ranks)], 0).unwrap()
}

fn mesh(s: &RankSpec) -> Topology {
    let stages = s.pipeline.as_ref().map_or(1, |p| p.runs.stages());
    let axes = [Axis::Dp, Axis::Cp, Axis::Tp, Axis::Ep, Axis::Etp];
    let axes = axes.map(|a| (a, s.place.length(a)));
    let all: Vec<_> = [(Axis::Pp, stages)].into_iter().chain(axes).collect();
    Topology::new(&all).unwrap()
}

/// Ranks of a job over the stages and the data-parallel ranks of `s`.
pub fn job_ranks(s: &RankSpec) -> u32 {
    mesh(s).world_size()
}

/// One of them.
pub fn ranked(s: &RankSpec, rank: u32) -> RankSpec {
    RankSpec {
        place: Place::new(mesh(s), rank).unwrap(),
        ..s.clone()
    }
}

/// A spec of `world` ranks with `micro_batches`; the global batch is always [`GLOBAL`].
pub fn spec(world: u32, micro_batches: u32) -> RankSpec {
    RankSpec {
        seed: 5,
        micro_batches,
        rows: Rows::new(GLOBAL / u64::from(world * micro_batches), SEQ),
        clip: 0.5,
        // Gradients that are zero but for rounding (a key's bias) must not be blown up to whole steps.
        optim: ParamGroups {
            decay_all: false,
            ..ParamGroups::all(
                Optimizer::Adam(Adam {
                    betas: [0.9, 0.95],
                    eps: 1e-5,
                    ..Default::default()
                }),
                0.1,
            )
        },
        zero: by_step(),
        ..RankSpec::new(dp_place(world))
    }
}

pub fn units(model: &impl Declares) -> Vec<UnitDecl> {
    model.declare()
}

/// What can be trained: a model, or adapters on one.
pub trait Declares: Sync {
    fn declare(&self) -> Vec<UnitDecl>;
}

impl Declares for ModelSpec {
    fn declare(&self) -> Vec<UnitDecl> {
        crossweave_nn::units(self.model())
    }
}

impl Declares for (ModelSpec, Lora) {
    fn declare(&self) -> Vec<UnitDecl> {
        self.1.units(&self.0, &Place::alone()).unwrap()
    }
}

/// A model whose layers are cut over so many ranks, with adapters or without.
pub struct Cut(pub ModelSpec, pub Option<Lora>, pub u32);

impl Declares for Cut {
    fn declare(&self) -> Vec<UnitDecl> {
        let Cut(model, lora, tp) = self;
        let place = Place::on(&[(Axis::Tp, *tp)], 0).unwrap();
        crossweave_nn::split::check(model.model(), (*tp).into()).unwrap();
        match lora {
            Some(l) => l.units(model, &place).unwrap(),
            None => crossweave_nn::units_over(model.model(), &place),
        }
    }
}

/// A job of so many ranks over which its layers are cut, for each data-parallel rank of `s`.
pub fn cut_over(s: RankSpec, tp: u32) -> RankSpec {
    over(s, [1, tp])
}

/// The same, with so many ranks over which its rows are cut for each of them.
pub fn over(s: RankSpec, [cp, tp]: [u32; 2]) -> RankSpec {
    let mesh = [
        (Axis::Dp, s.place.length(Axis::Dp)),
        (Axis::Cp, cp),
        (Axis::Tp, tp),
    ];
    RankSpec {
        place: Place::on(&mesh, 0).unwrap(),
        ..s
    }
}

/// Is it a line of what blocks say over an axis, whatever for?
pub fn of_blocks(c: &CollectiveLine, axis: &str) -> bool {
    c.group == axis && ["activation", "table", "head", "loss"].contains(&&*c.tag)
}

/// What a job left.
pub struct Outcome {
    pub metrics: Vec<StepMetrics>,
    /// Values and moments by parameter.
    pub state: BTreeMap<(String, &'static str), Vec<f32>>,
    pub validation: Vec<f64>,
    pub ledgers: Vec<RankLedger>,
    pub plan: Plan,
    pub facts: Facts,
}

impl Outcome {
    /// Everything as bits, for equality.
    pub fn bits(&self) -> Vec<u64> {
        let figures = self.metrics.iter().flat_map(|m| [m.loss, m.grad_norm]);
        let all = figures
            .chain(self.validation.iter().copied())
            .map(f64::to_bits);
        let state = self
            .state
            .values()
            .flatten()
            .map(|v| u64::from(v.to_bits()));
        all.chain(state).collect()
    }
}

/// Token ids of a step's global batch: deterministic, and different from step to step.
fn ids(step: u64, sequence: u64, tokens: u64) -> (Vec<i32>, Vec<i32>) {
    let at = |i: u64| (((step * 7919 + sequence * 104_729 + i * i * 31 + i * 17) >> 2) % 37) as i32;
    (
        (0..tokens).map(at).collect(),
        (1..=tokens).map(at).collect(),
    )
}

/// Which predictions of a sequence count.
type Counts<'a> = &'a (dyn Fn(u64, u64) -> bool + Sync);

/// The same, of a job in which `counts(sequence, i)` says whether prediction `i` of a sequence counts.
pub fn train_with_counts(
    w: &World,
    model: &impl Declares,
    spec: &RankSpec,
    steps: u64,
    counts: impl Fn(u64, u64) -> bool + Sync,
) -> Outcome {
    let mut spec = spec.clone();
    spec.rows.labelled = true;
    let counts: Counts<'_> = &counts;
    let (before, each, after) = (
        |_: &mut Engine| {},
        |_: &mut Engine, _, _| {},
        |_: &Engine| {},
    );
    train_counted(w, model, &spec, 0..steps, before, each, after, counts)
}

/// Runs `steps` steps on threads and reads everything back on rank 0.
pub fn train(w: &World, model: &impl Declares, spec: &RankSpec, steps: u64) -> Outcome {
    train_with(w, model, spec, steps, |_| {})
}

/// The same, with `before` called on each rank's engine before its first step.
pub fn train_with(
    w: &World,
    model: &impl Declares,
    spec: &RankSpec,
    steps: u64,
    before: impl Fn(&mut Engine) + Sync,
) -> Outcome {
    train_over(w, model, spec, 0..steps, before, |_| {})
}

/// The same, with an account of the last step of each rank, and its plan.
pub fn train_traced(
    w: &World,
    model: &impl Declares,
    spec: &RankSpec,
    steps: u64,
    traced: impl Fn(&Plan, crossweave_engine::Trace) + Sync,
) -> Outcome {
    let each = |t: &mut Engine, step: u64, enqueued: bool| match (step + 1 == steps, enqueued) {
        (true, false) => t.trace().unwrap(),
        (true, true) => {
            let trace = t.traced().unwrap().unwrap();
            traced(t.plan(), trace);
        }
        _ => {}
    };
    train_watched(w, model, spec, 0..steps, |_| {}, each, |_| {})
}

/// Steps of a range only; `after` is called behind the last of them.
pub fn train_over(
    w: &World,
    model: &impl Declares,
    spec: &RankSpec,
    steps: std::ops::Range<u64>,
    before: impl Fn(&mut Engine) + Sync,
    after: impl Fn(&Engine) + Sync,
) -> Outcome {
    train_watched(w, model, spec, steps, before, |_, _, _| {}, after)
}

/// The same; `each` is called before a step, and when it has been enqueued.
fn train_watched(
    w: &World,
    model: &impl Declares,
    spec: &RankSpec,
    steps: std::ops::Range<u64>,
    before: impl Fn(&mut Engine) + Sync,
    each: impl Fn(&mut Engine, u64, bool) + Sync,
    after: impl Fn(&Engine) + Sync,
) -> Outcome {
    train_counted(w, model, spec, steps, before, each, after, &|_, _| true)
}

#[allow(clippy::too_many_arguments)]
fn train_counted(
    w: &World,
    model: &impl Declares,
    spec: &RankSpec,
    steps: std::ops::Range<u64>,
    before: impl Fn(&mut Engine) + Sync,
    each: impl Fn(&mut Engine, u64, bool) + Sync,
    after: impl Fn(&Engine) + Sync,
    counts: Counts<'_>,
) -> Outcome {
    let kv: Arc<dyn KvStore> = Arc::new(LocalKv::default());
    let rank = |rank: u32| -> Outcome {
        let s = ranked(spec, rank);
        let units = placed(units(model), &s);
        let null = w.null.open(0).unwrap();
        let dry = dry_run(&null, &units, s.compute, s.rows.batch, s.rows.seq_len).unwrap();
        let device = w.cpu.open(rank).unwrap();
        let mut t = w.rank(&device, units, &s, &dry, &Boot(kv.clone())).unwrap();
        t.init().unwrap();
        before(&mut t);
        let batches = |step: u64| -> Vec<(Vec<i32>, Vec<i32>, u64)> {
            let own = s.own_replicas();
            let each = own.start * s.micro_batches..own.end * s.micro_batches;
            let each = each.map(|m| {
                let first = u64::from(m) * s.rows.batch;
                let (mut tokens, mut targets) = (vec![], vec![]);
                for q in first..first + s.rows.batch {
                    let (a, b) = ids(step, q, s.rows.seq_len);
                    tokens.extend(a);
                    let labels = b.into_iter().zip(0..);
                    targets.extend(labels.map(|(id, i)| if counts(q, i) { id } else { -100 }));
                }
                (tokens, targets, first)
            });
            each.collect()
        };
        let view = |b: &(Vec<i32>, Vec<i32>, u64)| -> (Vec<i32>, Vec<i32>, u64) { b.clone() };
        let mut metrics = vec![];
        let first = steps.start;
        for step in steps.clone() {
            let data: Vec<_> = batches(step).iter().map(view).collect();
            let mbs: Vec<MicroBatch<'_>> = data
                .iter()
                .map(|(tokens, targets, first_sequence)| MicroBatch {
                    tokens,
                    targets,
                    lengths: &[],
                    images: &[],
                    first_sequence: *first_sequence,
                })
                .collect();
            each(&mut t, step, false);
            if s.rows.labelled {
                let all = (0..GLOBAL).flat_map(|q| (0..s.rows.seq_len).map(move |i| (q, i)));
                let counted = all.filter(|(q, i)| counts(*q, *i)).count() as u64;
                t.count_targets(counted, GLOBAL * s.rows.seq_len).unwrap();
            }
            t.step(&mbs, 3e-3).unwrap();
            each(&mut t, step, true);
            if step > first {
                metrics.extend(t.metrics().unwrap());
            }
        }
        metrics.extend(t.metrics().unwrap());
        after(&t);
        let ledger = t.ledger();
        let data = batches(99);
        let first_of_each = data.chunks_exact(s.micro_batches as usize).map(|d| &d[0]);
        let mut local = vec![];
        // A rank with fewer replicas than others evaluates one again: they gather together.
        for (tokens, targets, first_sequence) in
            first_of_each.cycle().take(s.most_replicas() as usize)
        {
            let loss = t.evaluate(&MicroBatch {
                tokens,
                targets,
                lengths: &[],
                images: &[],
                first_sequence: *first_sequence,
            });
            local.push(loss.unwrap());
        }
        local.truncate(s.own_replicas().len());
        let validation = vec![t.mean_over_replicas(&local).unwrap()];
        let mut state = BTreeMap::new();
        if rank == 0 {
            // Any order will do; backward shows that it is not the order of the units.
            for p in t.params().iter().rev() {
                for kind in StateKind::ALL {
                    let values = t.read(&p.name, kind).unwrap();
                    state.insert((p.name.to_string(), kind.name()), values);
                }
            }
            t.done_reading().unwrap();
        } else {
            t.serve_reads().unwrap();
        }
        Outcome {
            metrics,
            state,
            validation,
            ledgers: vec![ledger],
            plan: t.plan().clone(),
            facts: t.facts().clone(),
        }
    };
    let mut all: Vec<Outcome> = std::thread::scope(|scope| {
        let rank = &rank;
        let ranks: Vec<_> = (0..job_ranks(spec))
            .map(|r| scope.spawn(move || rank(r)))
            .collect();
        ranks.into_iter().map(|r| r.join().unwrap()).collect()
    });
    let ledgers = all
        .iter_mut()
        .flat_map(|o| std::mem::take(&mut o.ledgers))
        .collect();
    let mut first = all.swap_remove(0);
    if spec.pipeline.is_some() {
        // Whatever stage a rank is, it learns what the last one made.
        let told = |o: &Outcome| (o.metrics.clone(), o.validation.clone());
        for (rank, o) in all.iter().enumerate() {
            assert_eq!(told(o), told(&first), "another rank than 0, number {rank}");
        }
    }
    first.ledgers = ledgers;
    first
}

/// Largest difference relative to the largest value of the parameter, which counts as at least the deviation of the starting weights
/// (biases begin at zero), over losses and values.
pub fn distance(a: &Outcome, b: &Outcome) -> f64 {
    let mut worst = 0f64;
    for (x, y) in a.metrics.iter().zip(&b.metrics) {
        worst = worst.max((x.loss - y.loss).abs() / y.loss.abs());
    }
    for ((name, kind), x) in &a.state {
        if *kind != "value" {
            continue;
        }
        let y = &b.state[&(name.clone(), *kind)];
        let top = y.iter().fold(0.1f32, |m, v| m.max(v.abs()));
        let far = x
            .iter()
            .zip(y)
            .map(|(a, b)| (a - b).abs())
            .fold(0f32, f32::max);
        worst = worst.max(f64::from(far / top));
    }
    worst
}

/// How far one outcome is from another, in three measures.
#[derive(Debug, Default)]
pub struct Apart {
    /// Largest relative difference of a step's loss.
    pub loss: f64,
    /// Norm of the difference of all parameters over the norm of all parameters.
    pub norm: f64,
    /// Largest difference in a tensor over the largest value in it, of the worst tensor.
    pub tensor: f64,
}

/// How far `a` is from `b`, its parameters in those whose names `counts` takes.
pub fn apart(a: &Outcome, b: &Outcome, counts: impl Fn(&str) -> bool) -> Apart {
    let mut far = Apart::default();
    for (x, y) in a.metrics.iter().zip(&b.metrics) {
        far.loss = far.loss.max((x.loss - y.loss).abs() / y.loss.abs());
    }
    let (mut difference, mut all) = (0f64, 0f64);
    let values = a
        .state
        .iter()
        .filter(|((name, kind), _)| *kind == "value" && counts(name));
    for (key, x) in values {
        let (mut most, mut top) = (0f64, 0f64);
        for (&x, &y) in x.iter().zip(&b.state[key]) {
            let d = f64::from(x) - f64::from(y);
            difference += d * d;
            all += f64::from(y).powi(2);
            most = most.max(d.abs());
            top = top.max(f64::from(y).abs());
        }
        far.tensor = far.tensor.max(if most == 0.0 { 0.0 } else { most / top });
    }
    far.norm = (difference / all).sqrt();
    far
}

/// Runs a rank alone until a step fails; the failure's sentence.
pub fn train_until_error(w: &World, model: &ModelSpec, s: &RankSpec, steps: u64) -> String {
    let go = || -> crossweave_engine::Result<()> {
        let mut t = started(w, units(model), s)?;
        for step in 0..steps {
            one_step(&mut t, s, step)?;
            t.metrics()?;
        }
        t.settle_offload()
    };
    go().expect_err("no step failed").to_string()
}

/// A rank alone, with starting values.
pub fn started(w: &World, units: Vec<UnitDecl>, s: &RankSpec) -> crossweave_engine::Result<Engine> {
    let null = w.null.open(0).unwrap();
    let dry = dry_run(&null, &units, s.compute, s.rows.batch, s.rows.seq_len).unwrap();
    let device = w.cpu.open(0).unwrap();
    let boot = Boot(Arc::new(LocalKv::default()));
    let mut t = w.rank(&device, units, s, &dry, &boot)?;
    t.init()?;
    Ok(t)
}

/// A step whose micro-batches are all the same.
pub fn one_step(t: &mut Engine, s: &RankSpec, step: u64) -> crossweave_engine::Result<()> {
    let (mut tokens, mut targets) = (vec![], vec![]);
    for q in 0..s.rows.batch {
        let (a, b) = ids(step, q, SEQ);
        tokens.extend(a);
        targets.extend(b);
    }
    let mb = MicroBatch {
        tokens: &tokens,
        targets: &targets,
        lengths: &[],
        images: &[],
        first_sequence: 0,
    };
    t.step(&vec![mb; s.micro_batches as usize], 3e-3)
}

/// Losses of training whose every update is of gradients taken one update earlier, by hand: an engine for the gradients, which is set
/// to the older parameters before each step, and Adam in f64 on the newer ones. One rank, one micro-batch, f32.
pub fn stale(w: &World, model: &ModelSpec, s: &RankSpec, steps: u64) -> Vec<f64> {
    let units = units(model);
    let null = w.null.open(0).unwrap();
    let dry = dry_run(&null, &units, s.compute, s.rows.batch, s.rows.seq_len).unwrap();
    let device = w.cpu.open(0).unwrap();
    let boot = Boot(Arc::new(LocalKv::default()));
    // What a step did to the parameters of an engine that began with zero moments at its first step shows nothing of the gradient; an
    // engine whose first moment decays at once and whose rate is 0 leaves the clipped gradient in it.
    let mut spy = s.clone();
    spy.optim.base.weight_decay = 0.0;
    if let Optimizer::Adam(a) = &mut spy.optim.base.optimizer {
        a.betas = [0.0, 0.5];
    }
    let mut t = w.rank(&device, units, &spy, &dry, &boot).unwrap();
    t.init().unwrap();
    let params = t.params();
    let read = |t: &Engine, kind| -> Vec<Vec<f64>> {
        let one = |p: &crossweave_tensor::ParamDecl| t.read(&p.name, kind).unwrap();
        params
            .iter()
            .map(|p| one(p).into_iter().map(f64::from).collect())
            .collect()
    };
    let mut newer = read(&t, StateKind::Value);
    let mut older = newer.clone();
    let zeros: Vec<Vec<f64>> = newer.iter().map(|p| vec![0.0; p.len()]).collect();
    let (mut m, mut v) = (zeros.clone(), zeros);
    let mut losses = vec![];
    for step in 0..steps {
        for (p, values) in params.iter().zip(&older) {
            let values: Vec<f32> = values.iter().map(|x| *x as f32).collect();
            t.load(&p.name, StateKind::Value, 0, &values).unwrap();
        }
        t.publish().unwrap();
        let (mut tokens, mut targets) = (vec![], vec![]);
        for q in 0..s.rows.batch {
            let (a, b) = ids(step, q, SEQ);
            tokens.extend(a);
            targets.extend(b);
        }
        let mb = MicroBatch {
            tokens: &tokens,
            targets: &targets,
            lengths: &[],
            images: &[],
            first_sequence: 0,
        };
        t.step(&[mb], 0.0).unwrap();
        losses.push(t.metrics().unwrap().unwrap().loss);
        let grads = read(&t, StateKind::Moment1);
        older = newer.clone();
        let Optimizer::Adam(a) = s.optim.base.optimizer else {
            panic!("the simulation knows Adam only");
        };
        let bias = |b: f64| 1.0 - b.powi(step as i32 + 1);
        for (i, p) in params.iter().enumerate() {
            let decays = s.optim.decay_all || p.group != crossweave_tensor::Group::NoDecay;
            let decay = if decays {
                s.optim.base.weight_decay
            } else {
                0.0
            };
            for k in 0..grads[i].len() {
                let g = grads[i][k];
                m[i][k] = a.betas[0] * m[i][k] + (1.0 - a.betas[0]) * g;
                v[i][k] = a.betas[1] * v[i][k] + (1.0 - a.betas[1]) * g * g;
                let root = (v[i][k] / bias(a.betas[1])).sqrt() + a.eps;
                let x = &mut newer[i][k];
                *x -= 3e-3 * decay * *x;
                *x -= 3e-3 * m[i][k] / bias(a.betas[0]) / root;
            }
        }
    }
    losses
}

/// A rank alone on the CPU, with starting values.
pub fn alone(w: &World, model: &ModelSpec, s: &RankSpec) -> Engine {
    started(w, units(model), s).unwrap()
}

/// Whether place `n` of a matrix has its turn: every second one, chosen so that all values of each dim are met; with `CROSSWEAVE_MATRIX=all`
/// every one.
pub fn turn(n: usize) -> bool {
    n.is_multiple_of(2) || std::env::var("CROSSWEAVE_MATRIX").is_ok_and(|v| v == "all")
}
