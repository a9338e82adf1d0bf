//! From settings to a run: batch sizes solved, types chosen, derived dimensions filled in, the
//! schedule built, and everything that this build cannot do refused by name.

use crate::batch::{Batch, solve};
use crate::canonical::of_shards;
use crate::elastic;
use crate::epochs::Epoch;
use crate::error::{Errors, Problem};
use crate::rows;
use crate::schema::Auto;
use crate::settings::*;
use crate::unavailable::{forget_without_effect, moot, unavailable, without_effect};
use crate::{Anneal, Config, OneCycle, Schedule, Warmup, WsdStyle};
use crossweave_axes::{AxisSet, Topology};
use crossweave_family::ModelSpec;

/// Seed of a run that gives none.
pub const DEFAULT_SEED: u64 = 1234;

/// The facts that only the caller knows when the data are given batches: the sizes in the file's
/// header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Sequences of one step over all ranks: dim 1 of the tensor.
    pub batch: Option<u64>,
    /// Steps the file holds: dim 0 of the tensor.
    pub steps: Option<u64>,
    /// Width of the model, where it is a folder's.
    pub width: Option<u64>,
    /// One pass over the training data, for `run.epochs`.
    pub epoch: Option<Epoch>,
}

/// A run with nothing left open.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// The settings with every solvable `None` filled in; this is `DIR/config.json`.
    pub settings: Settings,
    /// The layout of its ranks.
    pub mesh: Topology,
    /// The model (the same as in `settings`).
    pub model: Model,
    /// The data (the same as in `settings`).
    pub data: Data,
    /// Batch sizes.
    pub batch: Batch,
    /// Compute type.
    pub dtype: Dtype,
    /// Learning rates. While `settings.run.epochs` still waits for the data, a schedule that ends with the run stands as constant.
    pub schedule: Schedule,
    /// Seed of the run.
    pub seed: u64,
    /// Remarks that do not stop the run.
    pub warnings: Vec<Problem>,
}

impl Resolved {
    /// The resolved config as pretty JSON; loading it again and resolving it for the same number
    /// of ranks gives the same settings.
    pub fn to_json(&self) -> String {
        // Settings hold only maps with string keys and finite numbers, so this cannot fail.
        let mut text = serde_json::to_string_pretty(&self.settings).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Type of gradients between the ranks.
    pub fn wire(&self) -> Dtype {
        match self.settings.communication_data_type.as_deref() {
            Some("fp16") => Dtype::F16,
            Some("bf16" | "bfp16") => Dtype::Bf16,
            _ => Dtype::F32,
        }
    }

    /// Type in which gradients of micro-batches are added up.
    pub fn accumulation(&self) -> Dtype {
        accumulation(&self.settings)
    }

    /// Type of the weights in the exported folder: `model.save_dtype`, else the 16-bit type of the run where DeepSpeed's key asks
    /// for 16-bit weights, else float32.
    pub fn save_dtype(&self) -> Dtype {
        let given = self.model.save_dtype();
        let zero = &self.settings.zero_optimization;
        let narrow = zero.stage3_gather_16bit_weights_on_model_save;
        given.unwrap_or(if narrow { self.dtype } else { Dtype::F32 })
    }

    /// Returns the scaling of the loss of a float16 run; `None` for the other types.
    pub fn loss_scale(&self) -> Option<LossScale> {
        let fp16 = &self.settings.fp16;
        (self.dtype == Dtype::F16).then(|| LossScale {
            fixed: (fp16.loss_scale > 0.0).then_some(fp16.loss_scale),
            initial: 2.0_f64.powi(fp16.initial_scale_power.min(60) as i32),
            window: fp16.loss_scale_window,
            hysteresis: fp16.hysteresis,
            consecutive_hysteresis: fp16.consecutive_hysteresis,
            min: fp16.min_loss_scale,
        })
    }
}

/// DeepSpeed's `fp16` section as numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScale {
    /// A scale that never moves (`loss_scale`); `None` = dynamic.
    pub fixed: Option<f64>,
    /// The scale at which the dynamic one starts.
    pub initial: f64,
    /// Clean steps before it doubles.
    pub window: u64,
    /// Overflows before it halves.
    pub hysteresis: u64,
    /// A clean step refills the hysteresis.
    pub consecutive_hysteresis: bool,
    /// Floor; an overflow there ends the run.
    pub min: f64,
}

pub(crate) struct Resolver<'a> {
    config: &'a Config,
    errors: Vec<Problem>,
    warnings: Vec<Problem>,
}

impl Resolver<'_> {
    fn problem(&self, path: &str, what: String, fix: String) -> Problem {
        self.config.problem(path, what, fix)
    }

    /// Is the key given?
    pub(crate) fn is_given(&self, path: &str) -> bool {
        self.config.place(path).is_some()
    }

    pub(crate) fn error(&mut self, path: &str, what: impl Into<String>, fix: impl Into<String>) {
        let problem = self.problem(path, what.into(), fix.into());
        self.errors.push(problem);
    }

    pub(crate) fn warn(&mut self, path: &str, what: impl Into<String>, fix: impl Into<String>) {
        let problem = self.problem(path, what.into(), fix.into());
        self.warnings.push(problem);
    }

    /// Parameters rest beside the optimizer states that make them, so that where only parameters are sent away the states go along.
    fn states_beside_parameters(&mut self, zero: &mut Zero) {
        let away = zero
            .offload_param
            .as_ref()
            .filter(|p| p.device != "none" && zero.stage == 3);
        let stay = zero
            .offload_optimizer
            .as_ref()
            .is_none_or(|o| o.device == "none");
        let Some(p) = away.filter(|_| stay).cloned() else {
            return;
        };
        let what = format!(
            "parameters rest beside the optimizer states that make them: offload_optimizer is taken as {:?} too",
            p.device
        );
        let fix = "add offload_optimizer with the same device";
        self.warn("zero_optimization.offload_param", what, fix);
        zero.offload_optimizer = Some(OffloadOptimizer {
            device: p.device,
            nvme_path: p.nvme_path,
            buffer_count: 4,
            pin_memory: false,
            pipeline: true,
            pipeline_read: true,
            pipeline_write: true,
            ratio: 1.0,
            delayed_update: false,
        });
    }

    fn dtype(&mut self, s: &mut Settings) -> Dtype {
        if s.bf16.enabled && s.fp16.enabled {
            self.error(
                "fp16.enabled",
                "bf16 and fp16 are both enabled",
                "switch one of them off",
            );
        }
        let flags = match (s.bf16.enabled, s.fp16.enabled) {
            (true, _) => Some(Dtype::Bf16),
            (_, true) => Some(Dtype::F16),
            _ => None,
        };
        let dtype = s.run.dtype.or(flags).unwrap_or(Dtype::F32);
        if flags.is_some_and(|f| f != dtype) {
            let what = "run.dtype contradicts bf16.enabled / fp16.enabled";
            self.error("run.dtype", what, "remove one of them");
        }
        s.run.dtype = Some(dtype);
        s.bf16.enabled = dtype == Dtype::Bf16;
        s.fp16.enabled = dtype == Dtype::F16;
        dtype
    }

    /// The description of a new model, where its numbers fit together.
    fn model(&mut self, model: &mut Model) -> Option<ModelSpec> {
        let Model::New(m) = model else {
            return None;
        };
        m.preset = None;
        m.spec(None)
            .map_err(|e| {
                let fix = "change one of the two, or begin from a preset";
                self.error(&format!("model.{}", e.key), e.what, fix);
            })
            .ok()
    }

    /// Sizes given as `"auto"`, as the Hugging Face Trainer takes them from the width of the model.
    fn sizes_by_width(&mut self, s: &mut Settings, width: Option<u64>) {
        let mut asked = vec![];
        rows::each(&mut |path, _, row| {
            if let Auto::Width(rule) = row.auto
                && self.config.is_auto(path)
            {
                asked.push((path.to_string(), rule));
            }
        });
        if asked.is_empty() {
            return;
        }
        let mut all = serde_json::to_value(&*s).unwrap_or_default();
        for (path, rule) in asked {
            let Some(slot) = all.pointer_mut(&format!("/{}", path.replace('.', "/"))) else {
                continue;
            };
            match width {
                Some(width) => *slot = rule(width).into(),
                None => {
                    let what = format!(
                        "\"auto\" follows the width of the model, which is not known yet: {slot} is used"
                    );
                    self.warn(&path, what, "give the value");
                }
            }
        }
        if let Ok(filled) = serde_json::from_value(all) {
            *s = filled;
        }
    }

    /// Holds keys of an optimizer against each other, which the tables cannot.
    fn optimizer(&mut self, s: &Settings) {
        let o = &s.optimizer;
        let path = |key: &str| format!("optimizer.params.{key}");
        self.numbers(&o.kind, &o.params, "optimizer.params");
        if o.kind == "AdamW" && o.params.flag("adam_w_mode") == Some(false) {
            let what = "AdamW is decoupled whatever adam_w_mode says, as in DeepSpeed";
            self.warn(
                &path("adam_w_mode"),
                what,
                "write \"type\": \"Adam\" for L2",
            );
        }
        let torchs =
            o.params.flag("torch_adam") == Some(true) && !self.is_given(&path("weight_decay"));
        if let Some(decay) = o.params.weight_decay.filter(|d| torchs && *d > 0.0) {
            let what = format!(
                "torch's AdamW decays by {decay} where weight_decay is not given, DeepSpeed's own by 0: {decay} is taken"
            );
            self.warn(&path("torch_adam"), what, "give weight_decay");
        }
        let relative = o.kind == "Adafactor" && o.params.flag("relative_step") == Some(true);
        if relative && o.params.lr.is_some() {
            let what = "lr and relative_step exclude each other";
            self.error(
                &path("lr"),
                what,
                "remove it, or set relative_step to false",
            );
        }
        if relative && s.scheduler.is_some() {
            let what = "a schedule and relative_step exclude each other";
            let fix = "remove it, or set optimizer.params.relative_step to false";
            self.error("scheduler", what, fix);
        }
        if o.kind == "Adafactor" && !relative && o.params.lr.is_none() && s.scheduler.is_none() {
            let what = "missing; with relative_step false the rate must be given";
            self.error(&path("lr"), what, "give lr, or a scheduler");
        }
        for (i, g) in o.param_groups.iter().enumerate() {
            let path = format!("optimizer.param_groups[{i}]");
            if let Some(o) = &g.optimizer {
                self.numbers(&o.kind, &o.params, &format!("{path}.optimizer.params"));
            }
            if g.frozen && (g.optimizer.is_some() || g.weight_decay.is_some() || g.lr_scale != 1.0)
            {
                let what = "frozen parameters have no optimizer, no decay and no rate";
                self.error(
                    &format!("{path}.frozen"),
                    what,
                    "remove the other keys, or frozen",
                );
            }
        }
        if let Some(sched) = &s.scheduler
            && let (Some(min), Some(max)) = (sched.params.cycle_min_mom, sched.params.cycle_max_mom)
            && min > max
        {
            let what = format!("cycle_min_mom {min} is above cycle_max_mom {max}");
            self.error("scheduler.params.cycle_min_mom", what, "lower it");
        }
    }

    fn numbers(&mut self, kind: &str, p: &OptimizerParams, at: &str) {
        if let (Some(min), Some(max)) = (p.number("min_coeff"), p.number("max_coeff"))
            && min > max
        {
            let what = format!("min_coeff {min} is above max_coeff {max}");
            self.error(&format!("{at}.min_coeff"), what, "lower it");
        }
        let nesterov = kind == "SGD" && p.flag("nesterov") == Some(true);
        if nesterov
            && (p.number("momentum") == Some(0.0)
                || p.number("dampening").is_some_and(|d| d != 0.0))
        {
            let what = "nesterov needs a momentum and no dampening";
            self.error(
                &format!("{at}.nesterov"),
                what,
                "give momentum, remove dampening",
            );
        }
        if p.flag("warmup_init") == Some(true) && p.flag("relative_step") == Some(false) {
            let what = "warmup_init is a form of relative_step, which is off";
            self.error(&format!("{at}.warmup_init"), what, "remove it");
        }
    }

    fn schedule(&mut self, s: &mut Settings) -> Schedule {
        // Without a rate of its own the optimizer makes one from the step (Adafactor); the schedule is then not used.
        let lr = s.optimizer.params.lr.unwrap_or(0.0);
        let steps = s.run.steps;
        let Some(scheduler) = &mut s.scheduler else {
            return Schedule::Constant { lr };
        };
        if let Some(schedule) = fixed(scheduler) {
            return schedule;
        }
        let kind = scheduler.kind.clone();
        let p = &mut scheduler.params;
        let (warm_key, warmup) = match p.warmup_num_steps {
            Some(n) => ("warmup_num_steps", n),
            None => ("warmup_steps", p.warmup_steps.unwrap_or(0)),
        };
        let total = p.total_num_steps.or(p.total_steps).or(steps);
        let ends = !matches!(kind.as_str(), "WarmupLR" | "constant");
        if ends && total.is_none() && s.run.epochs.is_some() {
            // The length follows from the data, which are not open yet; the caller resolves again when they are. What follows from the
            // optimizer's rate is filled in all the same.
            let lr = match kind.as_str() {
                "WarmupDecayLR" => *p.warmup_max_lr.get_or_insert(lr),
                "WarmupCosineLR" => lr,
                _ => *p.max_lr.get_or_insert(lr),
            };
            return Schedule::Constant { lr };
        }
        if ends && total.is_none() {
            let key = if kind.starts_with("Warmup") {
                "total_num_steps"
            } else {
                "total_steps"
            };
            let path = format!("scheduler.params.{key}");
            self.error(&path, "neither it nor run.steps is given", "give run.steps");
        }
        let total = total.unwrap_or(1);
        if ends && warmup >= total {
            let path = format!("scheduler.params.{warm_key}");
            let what = format!(
                "warm-up takes {warmup} steps, but the schedule ends after {total}: the full rate is hardly reached"
            );
            self.warn(&path, what, "shorten the warm-up");
        }
        let shape = match p.warmup_type.as_deref() {
            Some("linear") => Warmup::Linear,
            _ => Warmup::Log,
        };
        if kind.starts_with("Warmup") {
            if kind == "WarmupCosineLR" {
                p.total_num_steps = Some(total);
                return Schedule::WarmupCosine {
                    base: lr,
                    warmup_min: p.warmup_min_ratio.unwrap_or(0.0),
                    cos_min: p.cos_min_ratio.unwrap_or(1e-4),
                    warmup,
                    shape,
                    total,
                };
            }
            let max = *p.warmup_max_lr.get_or_insert(lr);
            let min = p.warmup_min_lr.unwrap_or(0.0);
            let decays = kind == "WarmupDecayLR";
            if decays {
                unlike_optimizers(self, max, lr);
            }
            if decays {
                p.total_num_steps = Some(total);
            }
            if min > max {
                let what = format!("warmup_min_lr {min} is above warmup_max_lr {max}");
                self.error("scheduler.params.warmup_min_lr", what, "lower it");
            }
            return Schedule::WarmupLr {
                min,
                max,
                warmup,
                shape,
                total: decays.then_some(total),
            };
        }
        let max = *p.max_lr.get_or_insert(lr);
        let min = p.min_lr.unwrap_or(0.0);
        if ends {
            p.total_steps = Some(total);
            if min > max {
                let what = format!("min_lr {min} is above the maximum {max}");
                self.error("scheduler.params.min_lr", what, "lower it");
            }
        }
        let anneal = match kind.as_str() {
            "constant" => Anneal::Constant,
            "linear" => Anneal::Linear,
            "inverse_sqrt" => Anneal::InverseSqrt,
            "WSD" => Anneal::Wsd {
                decay: *p.decay_steps.get_or_insert(total.div_ceil(10)),
                style: match p.decay_style.as_deref() {
                    Some("linear") => WsdStyle::Linear,
                    Some("cosine") => WsdStyle::Cosine,
                    Some("minus_sqrt") => WsdStyle::MinusSqrt,
                    _ => WsdStyle::Exponential,
                },
            },
            _ => Anneal::Cosine,
        };
        Schedule::Megatron {
            init: p.init_lr.unwrap_or(0.0),
            max,
            min,
            warmup,
            total,
            anneal,
        }
    }
}

/// Schedules that depend on nothing but their own parameters.
fn fixed(s: &Scheduler) -> Option<Schedule> {
    let p = &s.params;
    match s.kind.as_str() {
        "OneCycle" => {
            let up = p.cycle_first_step_size.unwrap_or(2000);
            let stairs = p.cycle_first_stair_count.unwrap_or(0);
            let momentum = [
                p.cycle_min_mom.unwrap_or(0.8),
                p.cycle_max_mom.unwrap_or(0.9),
            ];
            Some(Schedule::OneCycle(OneCycle {
                lr: [p.cycle_min_lr.unwrap_or(0.0), p.cycle_max_lr.unwrap_or(0.0)],
                steps: [up, p.cycle_second_step_size.unwrap_or(up)],
                stairs: [stairs, p.cycle_second_stair_count.unwrap_or(stairs)],
                decay_steps: p.decay_step_size.unwrap_or(0),
                decay_lr: p.decay_lr_rate.unwrap_or(0.0),
                momentum: p.cycle_momentum.unwrap_or(true).then_some(momentum),
                decay_momentum: p.decay_mom_rate.unwrap_or(0.0),
            }))
        }
        "LRRangeTest" => Some(Schedule::RangeTest {
            min: p.lr_range_test_min_lr.unwrap_or(0.0),
            step: p.lr_range_test_step_size.unwrap_or(1),
            rate: p.lr_range_test_step_rate.unwrap_or(0.0),
            stairs: p.lr_range_test_staircase.unwrap_or(false),
        }),
        _ => None,
    }
}

/// Types and sums that DeepSpeed's keys name a second time, or that exclude each other.
fn types(r: &mut Resolver<'_>, s: &Settings, dtype: Dtype) {
    let named = match s.data_types.param_dtype.as_deref() {
        Some("bf16") => Some(Dtype::Bf16),
        Some("fp16") => Some(Dtype::F16),
        Some(_) => Some(Dtype::F32),
        None => None,
    };
    if named.is_some_and(|n| n != dtype) {
        let what = format!("names another type than the run computes in, {dtype:?}");
        let fix = "remove it, or enable bf16 or fp16 accordingly";
        r.error("data_types.param_dtype", what, fix);
    }
    if s.gradient_allreduce_op != "sum" {
        return;
    }
    let path = "gradient_allreduce_op";
    if s.zero_optimization.stage == 3 {
        let what = "\"sum\" does not go with zero_optimization.stage 3, as in DeepSpeed";
        r.error(path, what, "set it to \"mean\", or stage to 2");
    }
    if s.run.canonical_shards.is_some() {
        let what = "\"sum\" does not go with run.canonical_shards, whose training is the same on any number of ranks";
        r.error(
            path,
            what,
            "set it to \"mean\", or remove run.canonical_shards",
        );
    }
    for (key, asked) in [
        ("prescale_gradients", s.prescale_gradients),
        (
            "gradient_predivide_factor",
            s.gradient_predivide_factor != 1.0,
        ),
    ] {
        if asked {
            let what = "has no effect with gradient_allreduce_op \"sum\", as in DeepSpeed: nothing is divided";
            r.warn(key, what, "remove it");
        }
    }
}

/// WarmupDecayLR's own default is a number, and not the optimizer's rate.
fn unlike_optimizers(r: &mut Resolver<'_>, max: f64, lr: f64) {
    let key = "scheduler.params.warmup_max_lr";
    if max != lr && !r.is_given(key) {
        let what = format!(
            "not given: {max} is taken, which is DeepSpeed's default for WarmupDecayLR, and not optimizer.params.lr, {lr}"
        );
        r.warn(key, what, "give it; \"auto\" is optimizer.params.lr");
    }
}

fn accumulation(s: &Settings) -> Dtype {
    match s.data_types.grad_accum_dtype.as_str() {
        "bf16" => Dtype::Bf16,
        "fp16" => Dtype::F16,
        _ => Dtype::F32,
    }
}

/// Warns of keys that were given and have no effect.
fn warn_without_effect(r: &mut Resolver<'_>, s: &Settings) {
    let config = r.config;
    let given = |path: &str| config.place(path).is_some() && !config.is_auto(path);
    for (path, what, fix) in moot(config).into_iter().filter(|m| given(&m.0)) {
        r.warn(&path, what, fix);
    }
    for (path, asked, what, fix) in without_effect(s) {
        if asked && given(path) {
            r.warn(path, what, fix);
        }
    }
}

/// See [`Config::resolve_given`].
pub(crate) fn resolve(config: &Config, ranks: u64, given: Given) -> Result<Resolved, Errors> {
    let mut r = Resolver {
        config,
        errors: Vec::new(),
        warnings: config.warnings().to_vec(),
    };
    let mut s = config.settings.clone();
    r.states_beside_parameters(&mut s.zero_optimization);
    for (path, what, fix) in unavailable(&s) {
        r.error(path, what, fix);
    }
    let zero = &s.zero_optimization;
    if !zero.reshard_after_forward && zero.stage != 3 {
        let what = "has no effect below stage 3: parameters are whole there all the time";
        let fix = "set zero_optimization.stage to 3, or remove it";
        r.warn("zero_optimization.reshard_after_forward", what, fix);
    }
    let dtype = r.dtype(&mut s);
    warn_without_effect(&mut r, &s);
    if s.zero_optimization
        .stage3_gather_16bit_weights_on_model_save
        && dtype == Dtype::F32
    {
        let what =
            "has no effect: the weights of this run are float32, and so is the model it saves";
        let path = "zero_optimization.stage3_gather_16bit_weights_on_model_save";
        r.warn(path, what, "enable bf16 or fp16, or set model.save_dtype");
    }
    forget_without_effect(&mut s);
    // One setting by two names; DeepSpeed's counts where ours is not given.
    s.run.log_every.get_or_insert(s.steps_per_print);
    types(&mut r, &s, dtype);
    if ![Dtype::F32, dtype].contains(&accumulation(&s)) {
        let what = "gradients are accumulated in float32 or in the 16-bit type of the parameters: another one cannot hold what a backward makes";
        let fix = "set it to \"fp32\", or to the type that is enabled";
        r.error("data_types.grad_accum_dtype", what, fix);
    }
    if s.zero_optimization.zero_quantized_weights {
        let path = "zero_optimization.zero_quantized_weights";
        if dtype == Dtype::F32 {
            let what = "only 16-bit parameters are gathered in 8 bits";
            r.error(path, what, "enable bf16 or fp16, or remove it");
        } else if s.zero_optimization.stage == 0 {
            let what = "stage 0 gathers no parameters";
            let fix = "set zero_optimization.stage to 1, 2 or 3, or remove it";
            r.error(path, what, fix);
        }
    }
    if let (Some(top), Some(run)) = (s.seed, s.run.seed)
        && top != run
    {
        let what = format!("seed is {top} and run.seed is {run}");
        r.error("seed", what, "keep one of them");
    }
    let seed = s.run.seed.or(s.seed).unwrap_or(DEFAULT_SEED);
    (s.seed, s.run.seed) = (None, Some(seed));
    s.run.generate.seed = Some(s.run.generate.seed.unwrap_or(seed));

    let spec = s.model.as_mut().and_then(|m| r.model(m));
    let longest = spec.as_ref().map(|s| s.model().positions);
    if s.model.is_none() {
        let fix = "add \"model\": {\"family\": \"gpt2\", \"preset\": \"tiny\"} or {\"hf\": FOLDER}";
        r.error("model", "missing; there is nothing to train", fix);
    }
    let width = spec.as_ref().map(|s| s.model().width);
    r.sizes_by_width(&mut s, width.or(given.width));
    if s.run.validate_sequences.is_some() && s.run.validate_batches.is_some() {
        let what = "run.validate_batches is given too, and both say how much is read";
        r.error("run.validate_sequences", what, "remove one of them");
    }
    crate::best::check(&mut r, &s);
    match &mut s.data {
        Some(Data::Text(data)) => {
            r.text(data, longest, seed);
            if s.run.steps.is_none() && s.run.epochs.is_none() {
                let fix = "add \"run\": {\"steps\": 200} or {\"epochs\": 1}, or give --steps";
                r.error("run.steps", "missing; text has no end", fix);
            }
        }
        Some(Data::Tokens(_)) => {
            if let (Some(wanted), Some(held), None) = (s.run.steps, given.steps, s.run.epochs)
                && wanted > held
            {
                let what =
                    format!("{wanted} steps are asked, and the file holds batches for {held}");
                r.error(
                    "run.steps",
                    what,
                    format!("set it to {held} or less, or remove it"),
                );
            }
            if s.run.epochs.is_none() {
                s.run.steps = s.run.steps.or(given.steps);
            }
        }
        None => {
            let fix = "add \"data\": {\"train\": \"corpus/*.txt\"}";
            r.error("data", "missing; there is nothing to train on", fix);
        }
    }

    if let Some(data) = &mut s.data {
        r.documents(data);
        r.objective(data, spec.as_ref().map(ModelSpec::family));
    }
    r.sampled(&mut s);
    r.distill(&s);
    // Batches of a file have their size; the keys may only repeat it.
    let tokens = matches!(s.data, Some(Data::Tokens(_)));
    let mesh = elastic::fit(&mut s, tokens && given.batch.is_some());
    for (path, what, fix) in mesh.into_iter().chain(crate::parts::faults(&s)) {
        r.error(&path, what, fix);
    }
    let everyone = ranks.max(1);
    let (mesh, ranks) = r.mesh(&mut s, everyone, spec.as_ref());
    // Rows that are cut are other tokens of the same parameters.
    r.slices(&s, mesh.size(AxisSet::DATA).into());
    let (global, micro, accumulation) = (
        s.train_batch_size,
        s.train_micro_batch_size_per_gpu,
        s.gradient_accumulation_steps,
    );
    let global = match given.batch.filter(|_| tokens) {
        Some(held) if global.is_some_and(|g| g != held) => {
            let what = format!(
                "the file holds batches of {held} sequences, and train_batch_size is {}",
                global.unwrap_or(0)
            );
            r.error(
                "train_batch_size",
                what,
                format!("set it to {held}, or remove it"),
            );
            global
        }
        Some(held) => Some(held),
        None => global,
    };
    let micro = if tokens && global.is_none() && micro.is_none() {
        Some(1)
    } else {
        micro
    };
    let replicas = r.replicas(&s, ranks);
    r.balance(&s, everyone);
    r.pipeline_layers(&s);
    let batch = match solve(global, micro, accumulation, replicas) {
        Ok(batch) => {
            r.step_size(&batch, s.data.as_ref(), longest);
            r.pipeline_micro_batches(&s, batch.accumulation);
            s.train_batch_size = Some(batch.global);
            s.train_micro_batch_size_per_gpu = Some(batch.micro);
            s.gradient_accumulation_steps = Some(batch.accumulation);
            Some(batch)
        }
        Err(e) => {
            let (what, fix) = match s.run.canonical_shards {
                Some(_) => (of_shards(&e.what), of_shards(&e.fix)),
                None => (e.what, elastic::fix(&s, ranks, everyone).unwrap_or(e.fix)),
            };
            r.error(e.key, what, fix);
            None
        }
    };
    r.epochs(&mut s.run, tokens, batch.as_ref(), given.epoch);
    r.optimizer(&s);
    let schedule = r.schedule(&mut s);
    match (batch, s.model.clone(), s.data.clone()) {
        (Some(batch), Some(model), Some(data)) if r.errors.is_empty() => Ok(Resolved {
            settings: s,
            mesh,
            model,
            data,
            batch,
            dtype,
            schedule,
            seed,
            warnings: r.warnings,
        }),
        _ => Err(Errors(r.errors)),
    }
}
