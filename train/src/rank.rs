//! One rank of a run: a session with its saves, trace and records, which does what it is asked for. The figures of a step are read one step
//! late where many are asked for at once, so that the device never waits.

use crate::breakdown::Times;
use crate::events::StepRecord;
use crate::events::{Event, Walking};
use crate::gate::{Shared, StoreBoot};
use crate::infer::{self, Draw};
use crate::job::Best;
use crate::job_error::JobError;
use crate::metrics::{Metrics, ValRecord};
use crate::prepared::Run;
use crate::save::RankEnd;
use crate::saves::Saves;
use crate::session::{Losses, Session, Start};
use crate::setup::graphs;
use crate::summary::Summary;
use crate::trace::RankTrace;
use crate::train_error::{Result, TrainError};
use crate::{backend, checkpoint_state, faults, save};
use crossweave_checkpoint::{Checkpoint, Proof, step_dir};
use crossweave_data::DataError;
use crossweave_engine::{Devices, Links, StateKind};
use crossweave_hal::Bootstrap;
use crossweave_mesh::Faults;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// What a rank leaves.
pub struct Ended {
    /// Its ledgers, and what was seen of its steps.
    pub end: RankEnd,
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
}

/// What a rank is asked for. All ranks of a job are asked for the same, in the same order.
#[derive(Clone, Debug)]
pub enum Order {
    /// The next step, answered by its record.
    Step,
    /// All steps that are left, or those until the run is asked to stop.
    Steps,
    /// The mean loss of the sequences held back.
    Validate,
    /// A checkpoint of the state behind the steps done.
    Save,
    /// The values of a parameter.
    Read(Arc<str>),
    /// New values of a parameter.
    Write(Arc<str>, Arc<[f32]>),
    /// The end of the run: what is unsaved is saved, and where all steps are done rank 0 writes the model.
    End,
}

/// What a rank answers.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The record of a step; none where no step is left or the run was asked to stop.
    Step(Option<StepRecord>),
    /// A loss, in nats per token; none where no sequences are held back.
    Loss(Option<f64>),
    /// The folder of a checkpoint.
    Saved(PathBuf),
    /// The values of a parameter, on rank 0.
    Values(Option<Vec<f32>>),
    /// It is done.
    Done,
}

/// Does what comes in `orders`, in their order, until [`Order::End`], whose account comes back, or until nobody is left who asks. `answer`
/// receives what each gives. `fail` receives what goes wrong: the device, the data, a loss that is not finite, files that cannot be written,
/// whatever follows from another rank's failure. It is reported before the engine ends, which waits for collectives in flight: the others,
/// who may be what they wait for, know it by then.
pub fn run(
    run: &Run,
    shared: &Arc<Shared>,
    rank: u32,
    (orders, answer): (&Receiver<Order>, &dyn Fn(Answer)),
    fail: &dyn Fn(TrainError),
) -> Option<Ended> {
    let (mut walk, faults) = begin(run, shared, rank).map_err(fail).ok()?;
    let walked = catch_unwind(AssertUnwindSafe(|| walk.obey(orders, answer)));
    let end = walked.unwrap_or_else(|_| Err(panicked(rank)));
    let (end, summary) = end.map_err(fail).ok()??;
    Some(Ended {
        end,
        summary,
        idle: faults.map_or_else(Vec::new, |f| f.idle()),
    })
}

/// What a panic of a rank is reported as.
pub fn panicked(rank: u32) -> TrainError {
    let what = format!("rank {rank} panicked; this is a bug (see above)");
    TrainError::refused(what, "please report it")
}

/// What a rank leaves, and rank 0's account of the run.
type Account = (RankEnd, Option<Summary>);

/// Everything up to the first step.
fn begin<'a>(
    run: &'a Run,
    shared: &'a Arc<Shared>,
    rank: u32,
) -> Result<(Walk<'a>, Option<Faults>)> {
    let device = run.device(rank)?;
    let host = backend::host_device(run.local_ranks.plugin(rank), &run.host, rank)?;
    let boot = StoreBoot::new(&run.host, shared);
    let links = Links {
        graphs: graphs(&device, &run.job.resolved.settings.run.graphs)?,
        ..run.links(&boot)
    };
    let devices = Devices {
        host,
        ..Devices::one(&device)
    };
    let mut session = run.session(rank, devices, links)?;
    shared.register(session.engine().abort_handles());
    let faults = faults::of_rank(run, rank);
    if let Some(f) = &faults {
        session.inject(f.clone());
    }
    let from = run.resume.checkpoint.as_ref();
    session.start(from.map_or(Start::Fresh, Start::From))?;
    // The devices have taken everything they were asked for; only now does the run leave traces.
    let engine = session.engine_mut();
    engine.mean(0.0)?;
    let trace = match &run.trace {
        Some(spec) => {
            let apart = run.local_ranks.here().len() < run.job.ranks as usize;
            let backend = run.local_ranks.plugin(rank).name();
            Some(RankTrace::begin(spec, (rank, backend), apart, engine)?)
        }
        None => None,
    };
    let times = Times::begin(run, trace.as_ref().map(RankTrace::tracer), engine)?;
    let meeting = meeting(&boot, rank, || save::begin(run))?;
    let mut walk = Walk {
        run,
        shared,
        rank,
        done: run.resume.step,
        graphs_wanted: rank == 0 && run.job.resolved.settings.run.graphs == "on",
        saves: Saves::new(run, shared, rank, meeting)?,
        session,
        writer: None,
        mark: Instant::now(),
        tokens: 0,
        last: None,
        trace,
        times,
        best: Best::new(
            &run.job.resolved.settings.run,
            from.map(|c| &c.state()["best"]),
        ),
        ended: false,
    };
    walk.tokens = walk.session.tokens(0..run.resume.step)?;
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
        });
    }
    Ok((walk, faults))
}

struct Walk<'a> {
    run: &'a Run,
    shared: &'a Shared,
    rank: u32,
    /// Steps enqueued, those before a resume included.
    done: u64,
    /// Whether what is not replayed as a graph has to be said yet: `run.graphs` is "on".
    graphs_wanted: bool,
    // Before the session, so that copies of its state are written before its device closes.
    saves: Saves,
    session: Session<'a>,
    writer: Option<Writer>,
    /// When the step before ended, or work that is no step.
    mark: Instant,
    /// Tokens of all steps up to the last whose figures were read.
    tokens: u64,
    /// The record of the last step whose figures were read.
    last: Option<StepRecord>,
    trace: Option<RankTrace>,
    times: Option<Times>,
    /// The validation losses so far.
    best: Best,
    /// The validation loss has not fallen for so long that no step follows (`run.stop_after`).
    ended: bool,
}

/// The name under which the ranks of this job meet when they save. Rank 0 gets it by `begin`, which clears the folder; the others
/// have it only afterwards, so that nothing they save is cleared with it. No collective orders them: a device may have none to wait for.
fn meeting(
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
    fn obey(
        &mut self,
        orders: &Receiver<Order>,
        answer: &dyn Fn(Answer),
    ) -> Result<Option<Account>> {
        while let Ok(order) = orders.recv() {
            answer(match order {
                Order::Step => {
                    self.last = None;
                    self.step()?;
                    self.settle(0)?;
                    Answer::Step(self.last)
                }
                Order::Steps => {
                    while self.step()? {}
                    self.settle(0)?;
                    Answer::Done
                }
                Order::Validate => {
                    self.settle(0)?;
                    Answer::Loss(self.validate()?.map(|l| l.weights))
                }
                Order::Save => {
                    self.settle(0)?;
                    if self.saves.begun() != Some(self.done) {
                        self.checkpoint(true)?;
                    }
                    self.saves.finish()?;
                    Answer::Saved(self.run.checkpoint(self.done))
                }
                Order::Read(name) => Answer::Values(self.read(&name)?),
                Order::Write(name, values) => {
                    self.settle(0)?;
                    let engine = self.session.engine_mut();
                    engine.settle_offload()?;
                    if engine.holds(&name) {
                        engine.load(&name, StateKind::Value, 0, &values)?;
                    }
                    engine.publish()?;
                    self.mark = Instant::now();
                    Answer::Done
                }
                Order::End => {
                    self.end_steps()?;
                    // Of the training itself, before the model is read back and sampled.
                    let ledger = self.session.engine().ledger();
                    let (time, watched) = self.times.as_mut().map(Times::end).unwrap_or_default();
                    let end = RankEnd {
                        ledger,
                        time,
                        watched,
                    };
                    return Ok(Some((end, self.finish()?)));
                }
            });
        }
        Ok(None)
    }

    /// The next step, with the validation and the checkpoint that are due behind it; false where none is left to do.
    fn step(&mut self) -> Result<bool> {
        let keys = &self.run.job.resolved.settings.run;
        let due = |every: u64, step: u64| every > 0 && step.is_multiple_of(every);
        let over = self.ended || self.done >= self.run.reads.steps;
        if over || !self.shared.may_step(self.rank, self.done) {
            return Ok(false);
        }
        self.saves.poll()?;
        self.warn();
        if self.done.is_multiple_of(8) {
            self.report_unreplayed();
        }
        let began = self.now();
        self.enqueue()?;
        let done = self.done;
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
            let losses = self.validate()?;
            self.spent("validate", began);
            let best = losses.is_some_and(|l| self.best.observe(done, l.judged()));
            self.ended = self.best.ends() && !last;
            checkpoint |= self.ended || (best && self.best.keeps());
        }
        if checkpoint {
            let began = self.now();
            self.checkpoint(last || self.ended)?;
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
            t.take(
                &spans,
                done.saturating_sub(u64::from(self.session.in_flight()) + 1),
            );
            if validate || checkpoint {
                t.interrupted(done);
            }
        }
        Ok(true)
    }

    /// No step follows: figures, saves and warnings are waited for, and what a stop has left unsaved is saved.
    fn end_steps(&mut self) -> Result<()> {
        self.settle(0)?;
        if self.shared.has_failed() {
            return Err(TrainError::Hal(crossweave_hal::Error::new(
                crossweave_hal::Code::Aborted,
                format!("rank {}", self.rank),
                "stopped because another rank failed",
            )));
        }
        let stopped = self.done < self.run.reads.steps && !self.ended;
        if self.ended {
            self.step_warning(&format!(
                "the validation loss has not fallen for {} validations, so the run ends at step {} of {} (run.stop_after)",
                self.run.job.resolved.settings.run.stop_after.unwrap_or(0),
                self.done,
                self.run.reads.steps
            ));
        }
        self.saves.finish()?;
        if stopped && self.done > self.run.resume.step && self.saves.begun() != Some(self.done) {
            self.checkpoint(true)?;
        }
        self.warn();
        self.report_unreplayed();
        if let Some(w) = &mut self.writer {
            w.summary.steps = self.done;
            w.summary.stopped = stopped;
        }
        Ok(())
    }

    /// The values of a parameter, which the other ranks serve, on rank 0.
    fn read(&mut self, name: &str) -> Result<Option<Vec<f32>>> {
        self.settle(0)?;
        let engine = self.session.engine_mut();
        let values = match self.rank {
            0 => {
                engine.lead();
                let values = engine.read(name, StateKind::Value);
                engine.done_reading()?;
                Some(values?)
            }
            _ => {
                engine.serve_reads()?;
                None
            }
        };
        self.mark = Instant::now();
        Ok(values)
    }

    /// Reports a warning while the steps go on, where this is rank 0, which speaks for the job.
    fn step_warning(&self, what: &str) {
        if self.writer.is_some() {
            self.run.on(Event::StepWarning(what));
        }
    }

    /// What the device leaves to the host is never left unsaid.
    fn report_host_ops(&self) {
        let ops = self.session.engine().device().ops_on_host();
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
        let unmet = self.session.engine().graphs().map(|g| g.refused);
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

    /// Enqueues the next step.
    fn enqueue(&mut self) -> Result<()> {
        let began = self.times.as_mut().map(|t| {
            t.enqueue();
            t.now()
        });
        let read = self.session.read(self.done).map_err(|e| match e {
            TrainError::Job(JobError::Data(source @ DataError::Row { .. })) => TrainError::Row {
                rank: self.rank,
                source: Box::new(source),
            },
            e => e,
        })?;
        if let (Some(t), Some(began)) = (&mut self.times, began) {
            t.read(self.done + 1, began);
        }
        self.session.enqueue(self.done, &read)?;
        self.done += 1;
        Ok(())
    }

    /// Reads figures until at most `left` steps are in flight. Steps read together share the time since the last reading evenly: the
    /// host saw them end together, and the device does not say when each did.
    fn settle(&mut self, left: u32) -> Result<()> {
        let (mut read, mut failure) = (vec![], None);
        let dynamic = self.run.job.resolved.settings.fp16.loss_scale == 0.0;
        while self.session.in_flight() > left && failure.is_none() {
            let Some(m) = self.session.figures()? else {
                break;
            };
            // A skipped step harms nothing: the scaler lowers the scale, and says itself when that does not help. A fixed scale would
            // be skipped for ever when it is the loss that is not finite.
            let scaler_sees_to_it = m.skipped && (m.loss.is_finite() || dynamic);
            if scaler_sees_to_it || (m.loss.is_finite() && m.grad_norm.is_finite()) {
                read.push(m);
            } else {
                failure = Some(self.diverged(m.step, m.loss, m.grad_norm, m.lr));
            }
        }
        if !read.is_empty() {
            let now = Instant::now();
            let shared_by = read.len() as f64;
            let seconds = (now.duration_since(self.mark).as_secs_f64() / shared_by).max(1e-9);
            self.mark = now;
            for m in read {
                let tokens = self.session.tokens(m.step - 1..m.step)?;
                self.tokens += tokens;
                let record = StepRecord {
                    step: m.step,
                    loss: m.loss,
                    lr: m.lr,
                    grad_norm: m.grad_norm,
                    tokens: self.tokens,
                    tokens_per_s: tokens as f64 / seconds,
                    step_ms: seconds * 1e3,
                    loss_scale: m.loss_scale,
                    skipped: m.loss_scale.map(|_| m.skipped),
                    skipped_steps: m.loss_scale.map(|_| m.skipped_steps),
                    attention_over_mean: self.session.fullest(),
                    experts: m.experts,
                };
                self.last = Some(record);
                self.record(&record)?;
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Rank 0 writes the record of a step, and reports it.
    fn record(&mut self, record: &StepRecord) -> Result<()> {
        let Some(w) = &mut self.writer else {
            return Ok(());
        };
        w.metrics.write(record)?;
        self.run.on(Event::Step(record));
        if let Some(t) = &mut self.times {
            t.step(record.step_ms);
            let due = self.run.reported.due(record.step, self.run.reads.steps);
            let line = due.then(|| t.line()).flatten();
            if let Some(line) = line {
                self.run.on(Event::Breakdown(&line));
            }
        }
        w.summary.step(record);
        Ok(())
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

    /// Validates, and on rank 0 records it. Every step has been settled.
    fn validate(&mut self) -> Result<Option<Losses>> {
        let Some(losses) = self.session.validate()? else {
            return Ok(None);
        };
        let (val_loss, ema_val_loss) = (losses.weights, losses.average);
        self.mark = Instant::now();
        if let Some(w) = &mut self.writer {
            w.metrics.write(&ValRecord {
                step: self.done,
                val_loss,
                ema_val_loss,
            })?;
            self.run.on(Event::Validated {
                step: self.done,
                loss: val_loss,
                ema: ema_val_loss,
            });
            w.summary.val_loss = Some(val_loss);
            w.summary.ema_val_loss = ema_val_loss;
        }
        Ok(Some(losses))
    }

    /// Every rank saves its part; at the `end` there is nothing to go on with meanwhile.
    fn checkpoint(&mut self, end: bool) -> Result<()> {
        if let Some(w) = &mut self.writer {
            // The records a checkpoint answers for must outlive what it outlives.
            w.metrics.sync()?;
        }
        let engine = self.session.engine_mut();
        let mut state = checkpoint_state::state(self.run, self.done, engine.scaler_state());
        state["best"] = self.best.state();
        match end {
            true => self.saves.now(engine, self.done, state)?,
            false => self.saves.begin(engine, self.done, state)?,
        }
        self.warn();
        self.mark = Instant::now();
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
            self.session.engine_mut().serve_reads()?;
            return Ok(None);
        };
        self.session.engine().lead();
        let summary = self.conclude(w);
        self.session.engine().done_reading()?;
        summary.map(Some)
    }

    /// The folder of the checkpoint of a step, of this run or of the one that it continues.
    fn checkpoint_of(&self, step: u64) -> Option<PathBuf> {
        let before = self.run.resume.from.as_ref();
        let before = before.map(|f| f.join("checkpoints").join(step_dir(step)));
        let mut places = std::iter::once(self.run.checkpoint(step)).chain(before);
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
        let begun = self.saves.begun().map(|step| self.run.checkpoint(step));
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
            let (engine, source) = (self.session.engine_mut(), &self.run.job.source);
            let text = infer::continue_text(engine, source, tokenizer, &g.prompt, draw)?;
            summary.sample = Some(format!("{}{text}", g.prompt));
        }
        Ok(summary)
    }
}
