//! One rank of a run: builds its trainer, walks the steps, and reads each step's figures one step late so that the device never waits.

use crate::breakdown::Times;
use crate::events::StepRecord;
use crate::events::{Event, Walking};
use crate::gate::{Shared, StoreBoot};
use crate::infer::{self, Draw};
use crate::job::{Best, Feed, HeldBack, Micro};
use crate::metrics::{Metrics, ValRecord};
use crate::offload::{host_device, with_offload};
use crate::saves::Saves;
use crate::setup::{Run, graphs};
use crate::start;
use crate::summary::Summary;
use crate::trace::RankTrace;
use crate::train_error::{Result, TrainError};
use crate::{faults, resume, save};
use crossweave_checkpoint::{Checkpoint, Proof, step_dir};
use crossweave_engine::{self as engine, Devices, Links, MicroBatch, RankLedger, Trainer};
use crossweave_hal::{Bootstrap, Device};
use crossweave_mesh::Faults;
use crossweave_report::StepTime;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a rank leaves.
pub struct Ended {
    /// Its ledgers.
    pub ledger: RankLedger,
    /// Its mean step, where the device can time events.
    pub time: Option<StepTime>,
    /// Rank 0's account of the run.
    pub summary: Option<Summary>,
    /// Faults on purpose that have not struck.
    pub idle: Vec<String>,
}

/// What only rank 0 does.
struct Writer {
    metrics: Metrics,
    walking: Walking,
    summary: Summary,
    /// Tokens of all steps up to the last that was read.
    tokens: u64,
    /// When the step before ended; `None` behind work that is no step.
    mark: Instant,
}

/// What the config asks of a trainer beside its specification; with the faults that are to strike it.
pub(crate) fn prepare(run: &Run, rank: u32, trainer: &mut Trainer) -> Option<Faults> {
    let (keys, schedule) = (&run.job.resolved.settings.run, run.job.resolved.schedule);
    if keys.find_nan {
        trainer.find_nonfinite();
    }
    trainer.schedule_betas(move |updates| schedule.betas(updates));
    if keys.check == "values" {
        trainer.check_values();
    }
    let faults = faults::of_rank(run, rank);
    if let Some(f) = &faults {
        trainer.inject(f.clone());
    }
    faults
}

/// Walks all steps. `fail` receives what goes wrong: the device, the data, a loss that is not finite, files that cannot be written, whatever
/// follows from another rank's failure. It is reported before the trainer ends, which waits for collectives in flight: the others, who may be what
/// they wait for, know it by then.
pub fn run(run: &Run, shared: &Arc<Shared>, rank: u32, fail: &dyn Fn(TrainError)) -> Option<Ended> {
    let (mut walk, faults) = begin(run, shared, rank).map_err(fail).ok()?;
    let walked = catch_unwind(AssertUnwindSafe(|| walk.walk()));
    let end = walked.unwrap_or_else(|_| Err(panicked(rank)));
    let (ledger, time, summary) = end.map_err(fail).ok()?;
    Some(Ended {
        ledger,
        time,
        summary,
        idle: faults.map_or_else(Vec::new, |f| f.idle()),
    })
}

/// What a panic of a rank is reported as.
pub fn panicked(rank: u32) -> TrainError {
    let what = format!("rank {rank} panicked; this is a bug (see above)");
    TrainError::refused(what, "please report it")
}

/// Everything up to the first step.
fn begin<'a>(
    run: &'a Run,
    shared: &'a Arc<Shared>,
    rank: u32,
) -> Result<(Walk<'a>, Option<Faults>)> {
    let device = run.device(rank)?;
    let host = host_device(run.local_ranks.plugin(rank), &run.host, rank)?;
    let boot = StoreBoot::new(&run.host, shared);
    let spec = with_offload(run.rank_spec(rank), &run.job.resolved);
    let units = run.job.units(&run.job.place(rank))?;
    let lowered = engine::prepare(&device, &spec, &units, run.layout.dry(rank))?;
    let devices = Devices {
        host,
        ..Devices::one(&device)
    };
    let links = Links {
        graphs: graphs(&device, &run.job.resolved.settings.run.graphs)?,
        ..run.links(&boot)
    };
    let mut trainer = Trainer::new(devices, lowered, units, links)?;
    shared.register(trainer.abort_handles());
    let faults = prepare(run, rank, &mut trainer);
    match &run.resume.checkpoint {
        Some(c) => {
            start::start_base(&run.job.source, &mut trainer)?;
            start::restore(&mut trainer, c)?;
        }
        None => start::start(&run.job.source, &mut trainer)?,
    }
    // The devices have taken everything they were asked for; only now does the run leave traces.
    trainer.mean(0.0)?;
    let trace = RankTrace::begin(run, rank, &mut trainer)?;
    let times = Times::begin(run, trace.as_ref().map(RankTrace::tracer), &mut trainer)?;
    let session = session(&boot, rank, || save::begin(run))?;
    let mut walk = Walk {
        run,
        shared,
        rank,
        feed: run.feed(rank),
        device: device.clone(),
        graphs_wanted: rank == 0 && run.job.resolved.settings.run.graphs == "on",
        saves: Saves::new(run, shared, rank, session)?,
        trainer,
        writer: None,
        trace,
        times,
        best: Best::new(
            &run.job.resolved.settings.run,
            run.resume.checkpoint.as_ref().map(|c| &c.state()["best"]),
        ),
        in_flight: 0,
    };
    if rank == 0 {
        let keys = &run.job.resolved.settings.run;
        let metrics = Metrics::open(&run.out, run.resume.from.as_deref(), &|step, validation| {
            // A run that ended here was validated at its end; the longer one would not have been.
            let due = keys.validate_every > 0 && step.is_multiple_of(keys.validate_every);
            step <= run.resume.step && (!validation || due || step == run.reads.steps)
        })?;
        run.on(Event::Begun {
            steps: run.reads.steps,
            done: run.resume.step,
            every: run.reported.every,
        });
        walk.writer = Some(Writer {
            metrics,
            walking: Walking(run.reported.events.clone()),
            summary: Summary::new(run.resume.step),
            tokens: walk.feed.tokens(0..run.resume.step)?,
            mark: Instant::now(),
        });
    }
    Ok((walk, faults))
}

struct Walk<'a> {
    run: &'a Run,
    shared: &'a Shared,
    rank: u32,
    /// What it reads.
    feed: Feed,
    /// Asked once for what it could not compute itself.
    device: Device,
    /// Whether what is not replayed as a graph has to be said yet: `run.graphs` is "on".
    graphs_wanted: bool,
    // Before the trainer, so that copies of its state are written before its device closes.
    saves: Saves,
    trainer: Trainer,
    writer: Option<Writer>,
    trace: Option<RankTrace>,
    times: Option<Times>,
    /// The validation losses so far.
    best: Best,
    /// Steps enqueued whose figures have not been read.
    in_flight: u32,
}

/// The name under which the ranks of this job meet when they save. Rank 0 gets it by `begin`, which clears the folder; the others
/// have it only afterwards, so that nothing they save is cleared with it. No collective orders them: a device may have none to wait for.
fn session(
    boot: &dyn Bootstrap,
    rank: u32,
    begin: impl FnOnce() -> Result<String>,
) -> Result<String> {
    const KEY: &str = "checkpoint session";
    if rank == 0 {
        let name = begin()?;
        boot.set(KEY, name.as_bytes())?;
        return Ok(name);
    }
    let name = boot.get(KEY, Duration::from_secs(600))?;
    Ok(String::from_utf8_lossy(&name).into_owned())
}

impl Walk<'_> {
    fn walk(&mut self) -> Result<(RankLedger, Option<StepTime>, Option<Summary>)> {
        self.steps()?;
        // Of the training itself, before the model is read back and sampled.
        let ledger = self.trainer.ledger();
        let time = self.times.as_mut().and_then(Times::mean);
        Ok((ledger, time, self.finish()?))
    }

    fn steps(&mut self) -> Result<()> {
        let keys = &self.run.job.resolved.settings.run;
        let due = |every: u64, step: u64| every > 0 && step.is_multiple_of(every);
        let (mut done, mut ended) = (self.run.resume.step, false);
        while !ended && done < self.run.reads.steps && self.shared.may_step(self.rank, done) {
            self.saves.poll()?;
            self.warn();
            if done.is_multiple_of(8) {
                self.report_unreplayed();
            }
            let began = self.now();
            self.enqueue(done)?;
            done += 1;
            self.spent("step", began);
            let last = done == self.run.reads.steps;
            let validate =
                self.run.reads.validation.is_some() && (last || due(keys.validate_every, done));
            let mut checkpoint = last || due(keys.checkpoint_every, done);
            // The first step is waited for, so that the time of making everything ready is not counted to the second.
            let first = done == self.run.resume.step + 1;
            let began = self.now();
            self.settle(u32::from(!(first || validate || checkpoint)))?;
            self.spent("wait for figures", began);
            if first {
                self.report_host_ops();
            }
            if validate {
                let began = self.now();
                let best = self.validate(done)?;
                self.spent("validate", began);
                ended = self.best.ends() && !last;
                checkpoint |= ended || (best && self.best.keeps());
            }
            if checkpoint {
                let began = self.now();
                self.checkpoint(done, last || ended)?;
                self.spent("checkpoint", began);
            }
            // A timeline that cannot be written is no reason to lose the training.
            let spans = match self.trace.as_mut().map(|t| t.write()) {
                Some(Err(e)) => {
                    self.trace = None;
                    self.step_warning(&format!("{e}; the trace ends here"));
                    vec![]
                }
                Some(Ok(spans)) => spans,
                None => vec![],
            };
            if let Some(t) = &mut self.times {
                t.take(&spans, done.saturating_sub(u64::from(self.in_flight) + 1));
                if validate || checkpoint {
                    t.interrupted(done);
                }
            }
        }
        self.settle(0)?;
        if self.shared.has_failed() {
            return Err(TrainError::Hal(crossweave_hal::Error::new(
                crossweave_hal::Code::Aborted,
                format!("rank {}", self.rank),
                "stopped because another rank failed",
            )));
        }
        let stopped = done < self.run.reads.steps && !ended;
        if ended {
            self.step_warning(&format!(
                "the validation loss has not fallen for {} validations, so the run ends at step {done} of {} (run.stop_after)",
                keys.stop_after.unwrap_or(0),
                self.run.reads.steps
            ));
        }
        self.saves.finish()?;
        if stopped && done > self.run.resume.step && self.saves.begun() != Some(done) {
            self.checkpoint(done, true)?;
        }
        self.warn();
        self.report_unreplayed();
        if let Some(w) = &mut self.writer {
            w.summary.steps = done;
            w.summary.stopped = stopped;
        }
        Ok(())
    }

    /// Reports a warning while the steps go on, where this is rank 0, which speaks for the job.
    fn step_warning(&self, what: &str) {
        if self.writer.is_some() {
            self.run.on(Event::StepWarning(what));
        }
    }

    /// What the device leaves to the host is never left unsaid.
    fn report_host_ops(&self) {
        let ops = self.device.ops_on_host();
        if let [first, ..] = &ops[..] {
            self.step_warning(&format!(
                "{} of this run's ops are computed on the host (run.allow_host_ops), the first {first}; `crossweave explain` lists all",
                ops.len()
            ));
        }
    }

    /// Reports once what is not replayed as graphs although it was asked for.
    fn report_unreplayed(&mut self) {
        if !self.graphs_wanted || self.writer.is_none() {
            return;
        }
        let unmet = self.trainer.graphs().map(|g| g.refused);
        if let Some((what, _)) = unmet.iter().flatten().next() {
            self.graphs_wanted = false;
            self.step_warning(&format!(
                "run.graphs is on, and not all launches are replayed as graphs: {what}"
            ));
        }
    }

    /// Now, where the run is traced.
    fn now(&self) -> Option<Duration> {
        self.trace.as_ref().map(RankTrace::now)
    }

    /// What the host did since `began`, for the trace.
    fn spent(&self, name: &str, began: Option<Duration>) {
        if let (Some(t), Some(began)) = (&self.trace, began) {
            t.host(name, began);
        }
    }

    /// Enqueues the step that follows `done` steps.
    fn enqueue(&mut self, done: u64) -> Result<()> {
        let began = self.times.as_mut().map(|t| {
            t.enqueue();
            t.now()
        });
        let read = self.feed.step(done)?;
        if let (Some(t), Some(began)) = (&mut self.times, began) {
            t.read(done + 1, began);
        }
        let batches: Vec<MicroBatch<'_>> = read.iter().map(micro_batch).collect();
        count(&self.feed, &mut self.trainer, done)?;
        // Of the updates made, not of the steps: a step skipped by the loss scaler does not move the schedule.
        self.trainer.step_at(&batches, &|updates| {
            self.run.job.resolved.schedule.lr(updates)
        })?;
        self.in_flight += 1;
        Ok(())
    }

    /// Reads figures until at most `left` steps are in flight. Steps read together share the time since the last reading evenly: the
    /// host saw them end together, and the device does not say when each did.
    fn settle(&mut self, left: u32) -> Result<()> {
        let (mut read, mut failure) = (vec![], None);
        let dynamic = self.run.job.resolved.settings.fp16.loss_scale == 0.0;
        while self.in_flight > left && failure.is_none() {
            let Some(m) = self.trainer.metrics()? else {
                break;
            };
            self.in_flight -= 1;
            // A skipped step harms nothing: the scaler lowers the scale, and says itself when that does not help. A fixed scale would
            // be skipped for ever when it is the loss that is not finite.
            let scaler_sees_to_it = m.skipped && (m.loss.is_finite() || dynamic);
            if scaler_sees_to_it || (m.loss.is_finite() && m.grad_norm.is_finite()) {
                read.push(m);
            } else {
                failure = Some(self.diverged(m.step, m.loss, m.grad_norm, m.lr));
            }
        }
        if let Some(w) = self.writer.as_mut().filter(|_| !read.is_empty()) {
            let now = Instant::now();
            let shared_by = read.len() as f64;
            let seconds = (now.duration_since(w.mark).as_secs_f64() / shared_by).max(1e-9);
            w.mark = now;
            for m in read {
                let tokens = self.feed.tokens(m.step - 1..m.step)?;
                w.tokens += tokens;
                let record = StepRecord {
                    step: m.step,
                    loss: m.loss,
                    lr: m.lr,
                    grad_norm: m.grad_norm,
                    tokens: w.tokens,
                    tokens_per_s: tokens as f64 / seconds,
                    step_ms: seconds * 1e3,
                    loss_scale: m.loss_scale,
                    skipped: m.loss_scale.map(|_| m.skipped),
                    skipped_steps: m.loss_scale.map(|_| m.skipped_steps),
                };
                w.metrics.write(&record)?;
                self.run.on(Event::Step(&record));
                if let Some(t) = &mut self.times {
                    t.step(record.step_ms);
                    let due = self.run.reported.due(record.step, self.run.reads.steps);
                    let line = due.then(|| t.line()).flatten();
                    if let Some(line) = line {
                        self.run.on(Event::Breakdown(&line));
                    }
                }
                w.summary.step(&record);
            }
        }
        failure.map_or(Ok(()), Err)
    }

    fn diverged(&self, step: u64, loss: f64, norm: f64, lr: f64) -> TrainError {
        let s = &self.run.job.resolved.settings;
        let clip = match s.gradient_clipping {
            c if c > 0.0 => format!("gradient_clipping is {c}"),
            _ => "gradient_clipping is off".to_string(),
        };
        let saved = crossweave_checkpoint::list(&self.run.out).unwrap_or_default();
        let saved = match saved.iter().rfind(|f| f.step < step) {
            Some(f) => format!("; the checkpoint of step {} is from before it", f.step),
            None => String::new(),
        };
        TrainError::refused(
            format!(
                "rank {}, step {step}: training has diverged: the loss is {loss}, the gradient norm {norm} \
                 (learning rate {lr:e} from optimizer.params.lr, {clip}){saved}",
                self.rank
            ),
            "lower optimizer.params.lr, set gradient_clipping to 1.0, or add a warm-up under scheduler; no model was written. The same run with \
             `--set run.find_nan=true` names the rank, layer and op where it begins",
        )
    }

    /// Validates behind `done` steps, with the moving average of the weights too where one is kept; returns true if that loss, else the loss,
    /// is the lowest so far. Every step has been settled.
    fn validate(&mut self, done: u64) -> Result<bool> {
        let Some(held_back) = self.feed.held_back() else {
            return Ok(false);
        };
        let val_loss = loss_of(&mut self.trainer, &held_back)?;
        let ema_val_loss = match self.trainer.has_ema() {
            true => {
                self.trainer.exchange_ema()?;
                let loss = loss_of(&mut self.trainer, &held_back);
                self.trainer.exchange_ema()?;
                Some(loss?)
            }
            false => None,
        };
        let best = self.best.observe(done, ema_val_loss.unwrap_or(val_loss));
        if let Some(w) = &mut self.writer {
            w.metrics.write(&ValRecord {
                step: done,
                val_loss,
                ema_val_loss,
            })?;
            self.run.on(Event::Validated {
                step: done,
                loss: val_loss,
                ema: ema_val_loss,
            });
            w.summary.val_loss = Some(val_loss);
            w.summary.ema_val_loss = ema_val_loss;
            w.mark = Instant::now();
        }
        Ok(best)
    }

    /// Every rank saves its part; at the `end` there is nothing to go on with meanwhile.
    fn checkpoint(&mut self, done: u64, end: bool) -> Result<()> {
        if let Some(w) = &mut self.writer {
            // The records a checkpoint answers for must outlive what it outlives.
            w.metrics.sync()?;
        }
        let mut state = resume::state(self.run, done, self.trainer.scaler_state());
        state["best"] = self.best.state();
        match end {
            true => self.saves.now(&self.trainer, done, state)?,
            false => self.saves.begin(&mut self.trainer, done, state)?,
        }
        self.warn();
        if let Some(w) = &mut self.writer {
            w.mark = Instant::now();
        }
        Ok(())
    }

    /// Says what went wrong with a save without stopping the run.
    fn warn(&mut self) {
        for warning in self.saves.warnings() {
            self.step_warning(&warning);
        }
    }

    /// Rank 0 saves the model of a finished run and draws the sample, the others serve it.
    fn finish(&mut self) -> Result<Option<Summary>> {
        let Some(w) = self.writer.take() else {
            self.trainer.serve_reads()?;
            return Ok(None);
        };
        self.trainer.lead();
        let summary = self.conclude(w);
        self.trainer.done_reading()?;
        summary.map(Some)
    }

    /// The checkpoint of a step, of this run or of the one that it continues.
    fn checkpoint_of(&self, step: u64) -> Option<PathBuf> {
        let folders = std::iter::once(&self.run.out).chain(&self.run.resume.from);
        let mut places = folders.map(|f| f.join("checkpoints").join(step_dir(step)));
        places.find(|p| p.is_dir())
    }

    fn conclude(&mut self, w: Writer) -> Result<Summary> {
        drop(w.walking);
        let mut summary = w.summary;
        // The null device has no values to save.
        if summary.stopped || self.run.local_ranks.has_null() {
            return Ok(summary);
        }
        // The last step's checkpoint holds the model, whatever part of it lives on this rank.
        let at = |step| self.run.out.join("checkpoints").join(step_dir(step));
        let begun = self.saves.begun().map(at);
        let place = match self.best.kept() {
            None => begun,
            Some(step) => self.checkpoint_of(step).or_else(|| {
                self.run.on(Event::Warning(&format!(
                    "the checkpoint of step {step}, the best, is not there any more: the model is the last one"
                )));
                begun
            }),
        };
        match (place, &self.run.resume.checkpoint) {
            // By its number: the newest in the folder may be a later one that this run has passed over.
            (Some(place), _) => {
                let c = Checkpoint::open_as(place, Proof::AsRead)?;
                save::model(self.run, &c)?;
            }
            (None, Some(c)) => save::model(self.run, c)?,
            (None, None) => {}
        }
        let g = &self.run.job.resolved.settings.run.generate;
        let draws = g.tokens > 0 && infer::continues(&self.run.job.source).is_ok();
        if let Some(tokenizer) = self
            .run
            .reads
            .corpus
            .tokenizer()
            .filter(|_| draws && self.run.reported.every.is_some())
        {
            let draw = Draw {
                tokens: g.tokens,
                temperature: g.temperature,
                top_k: g.top_k,
                seed: g.seed.unwrap_or(self.run.job.resolved.seed),
            };
            let (trainer, source) = (&mut self.trainer, &self.run.job.source);
            let text = infer::continue_text(trainer, source, tokenizer, &g.prompt, draw)?;
            summary.sample = Some(format!("{}{text}", g.prompt));
        }
        Ok(summary)
    }
}

/// Mean loss of the sequences held back, the same for every batch and layout.
fn loss_of(trainer: &mut Trainer, held_back: &HeldBack<'_>) -> Result<f64> {
    let mut local = vec![];
    for turn in 0..held_back.turns() {
        let mut sum = 0.0;
        for m in held_back.turn(turn) {
            sum += trainer.evaluate(&micro_batch(&m?))?;
        }
        local.push(sum / held_back.micro_batches() as f64);
    }
    local.truncate(held_back.own_turns());
    let mean = trainer.mean_over_replicas(&local)?;
    // Those were means over all predictions, of which some do not count. Every row kept has one that does.
    let (counted, all) = held_back.counted()?;
    Ok(mean * (all as f64 / counted as f64))
}

/// A micro-batch as the engine takes it.
pub(crate) fn micro_batch(m: &Micro) -> MicroBatch<'_> {
    MicroBatch {
        tokens: &m.tokens,
        targets: &m.targets,
        lengths: &m.lengths,
        images: &m.images,
        first_sequence: m.first,
    }
}

/// Sets how many predictions count in the step that follows `done` steps.
pub(crate) fn count(feed: &Feed, trainer: &mut Trainer, done: u64) -> Result<()> {
    if let Some((counted, all)) = feed.counted(done)? {
        trainer.count_targets(counted, all)?;
    }
    Ok(())
}
