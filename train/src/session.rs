//! One rank of a job: what it trains with and what it reads. A session starts no thread and knows no folder; who drives it asks for each step
//! and takes what comes of it.

use crate::job::{Division, Feed, HeldBack, Job, Micro, spec};
use crate::start;
use crate::train_error::Result;
use crossweave_checkpoint::Checkpoint;
use crossweave_engine::{Devices, Dry, Engine, Links, MicroBatch, StepMetrics};
use crossweave_mesh::{Axis, Faults, Place};
use std::collections::VecDeque;
use std::ops::Range;

/// One rank of a job.
pub struct Session<'a> {
    job: &'a Job,
    feed: Feed,
    engine: Engine,
    place: Place,
    /// Rank 0's [`Session::attention_over_mean`] of steps enqueued whose records have not been written.
    fullest: VecDeque<Option<f64>>,
    /// Steps enqueued whose figures have not been read.
    in_flight: u32,
}

/// Mean losses of the sequences held back, in nats per token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Losses {
    /// With the weights.
    pub weights: f64,
    /// With their moving average, where one is kept.
    pub average: Option<f64>,
}

impl Losses {
    /// The one by which the best of a run is chosen: with the moving average where one is kept.
    pub fn judged(&self) -> f64 {
        self.average.unwrap_or(self.weights)
    }
}

/// The values that a rank starts from.
pub enum Start<'a> {
    /// Those that the config names: drawn, a model folder's, an adapter's.
    Fresh,
    /// Those of a checkpoint, with the state of its optimizer.
    From(&'a Checkpoint),
}

impl<'a> Session<'a> {
    /// The rank at `place`, on its devices and with its groups joined; it has no values yet. `dry` is what the dry run of its class found.
    ///
    /// # Errors
    /// A step that cannot be planned; memory, streams or groups that cannot be had.
    pub fn new(
        job: &'a Job,
        (division, dry): (&Division, &Dry),
        place: Place,
        feed: Feed,
        devices: Devices,
        links: Links<'_>,
    ) -> Result<Session<'a>> {
        let spec = spec(job, division, place);
        let units = job.units(&place)?;
        let lowered = crossweave_engine::prepare(&devices.compute, &spec, &units, dry)?;
        let mut engine = Engine::new(devices, lowered, units, links)?;
        let (keys, schedule) = (&job.resolved.settings.run, job.resolved.schedule);
        if keys.find_nan {
            engine.find_nonfinite();
        }
        engine.schedule_betas(move |updates| schedule.betas(updates));
        if keys.check == "values" {
            engine.check_values();
        }
        Ok(Session {
            job,
            feed,
            engine,
            place,
            fullest: VecDeque::new(),
            in_flight: 0,
        })
    }

    /// From now on `faults` strike its collectives.
    pub fn inject(&mut self, faults: Faults) {
        self.engine.inject(faults);
    }

    /// Gives the rank its starting values. All ranks of the job do this at the same point.
    ///
    /// # Errors
    /// A tensor that is missing, damaged or of another shape; the device.
    pub fn start(&mut self, from: Start<'_>) -> Result<()> {
        match from {
            Start::Fresh => start::start(&self.job.source, &mut self.engine),
            Start::From(checkpoint) => {
                start::start_base(&self.job.source, &mut self.engine)?;
                start::restore(&mut self.engine, checkpoint)
            }
        }
    }

    /// The micro-batches of the step that follows `done` steps.
    ///
    /// # Errors
    /// Rows that cannot be read.
    pub fn read(&self, done: u64) -> Result<Vec<Micro>> {
        Ok(self.feed.step(done)?)
    }

    /// Attention of the fullest of the ranks that share this one's rows over that of their mean, on the micro-batches of a step
    /// ([`Job::attention_over_mean`]); none where rows are whole or one text each.
    fn attention_over_mean(&self, read: &[Micro]) -> Result<Option<f64>> {
        let cut = self.place.length(Axis::Cp) > 1;
        let documents = self.job.documents.filter(|d| cut && d.attention);
        let Some(documents) = documents else {
            return Ok(None);
        };
        let tokens = self.job.seq_len as usize;
        let texts = |lengths: &[i32]| -> Vec<u64> {
            let ends = lengths.windows(2).map(|w| (w[1] - w[0]).max(0) as u64);
            ends.collect()
        };
        let rows = read.iter().flat_map(|m| -> Vec<Vec<u64>> {
            match m.lengths.is_empty() {
                false => m.lengths.chunks(tokens + 1).map(texts).collect(),
                true => {
                    let all: Vec<i32> = documents.lengths(&m.tokens, tokens).collect();
                    all.chunks(tokens + 1).map(texts).collect()
                }
            }
        });
        let rows: Vec<Vec<u64>> = rows.collect();
        Ok(self.job.attention_over_mean(&self.place, &rows)?)
    }

    /// Tokens that are trained on in `steps`, counted from 0, over all ranks; what rows are filled up with is none.
    ///
    /// # Errors
    /// Rows that cannot be read.
    pub fn tokens(&self, steps: Range<u64>) -> Result<u64> {
        Ok(self.feed.tokens(steps)?)
    }

    /// Enqueues the step that follows `done` steps, on the micro-batches that [`Session::read`] gave for it.
    ///
    /// # Errors
    /// Labels that cannot be read; the device; another rank's failure.
    pub fn enqueue(&mut self, done: u64, read: &[Micro]) -> Result<()> {
        if self.place.job_rank() == 0 {
            let fullest = self.attention_over_mean(read)?;
            self.fullest.push_back(fullest);
        }
        let batches: Vec<MicroBatch<'_>> = read.iter().map(micro_batch).collect();
        if let Some((counted, all)) = self.feed.counted(done)? {
            self.engine.count_targets(counted, all)?;
        }
        // Of the updates made, not of the steps: a step skipped by the loss scaler does not move the schedule.
        let schedule = &self.job.resolved.schedule;
        self.engine
            .step_at(&batches, &|updates| schedule.lr(updates))?;
        self.in_flight += 1;
        Ok(())
    }

    /// Attention of the fullest of the ranks that share rank 0's rows over that of their mean, of the oldest step that it has not been asked of; none
    /// on other ranks, and where rows are whole or one text each.
    pub fn fullest(&mut self) -> Option<f64> {
        self.fullest.pop_front().flatten()
    }

    /// Steps enqueued whose figures have not been read.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// The figures of the oldest step in flight, which is waited for; none where no step is.
    ///
    /// # Errors
    /// The device; another rank's failure.
    pub fn figures(&mut self) -> Result<Option<StepMetrics>> {
        let figures = self.engine.metrics()?;
        self.in_flight -= u32::from(figures.is_some());
        Ok(figures)
    }

    /// The loss of a micro-batch, without a step.
    ///
    /// # Errors
    /// The device; another rank's failure.
    pub fn evaluate(&mut self, m: &Micro) -> Result<f64> {
        Ok(self.engine.evaluate(&micro_batch(m))?)
    }

    /// Mean losses of the sequences held back, the same for every batch and layout; none where none are. Every step has been waited for.
    ///
    /// # Errors
    /// Rows that cannot be read; the device; another rank's failure.
    pub fn validate(&mut self) -> Result<Option<Losses>> {
        let Some(held_back) = self.feed.held_back() else {
            return Ok(None);
        };
        let weights = loss_of(&mut self.engine, &held_back)?;
        let average = match self.engine.has_ema() {
            true => {
                self.engine.exchange_ema()?;
                let loss = loss_of(&mut self.engine, &held_back);
                self.engine.exchange_ema()?;
                Some(loss?)
            }
            false => None,
        };
        Ok(Some(Losses { weights, average }))
    }

    /// What walks its steps and holds its state.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The same, to be changed.
    pub fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }
}

/// Mean loss of the sequences held back, the same for every batch and layout.
fn loss_of(engine: &mut Engine, held_back: &HeldBack<'_>) -> Result<f64> {
    let mut local = vec![];
    for turn in 0..held_back.turns() {
        let mut sum = 0.0;
        for m in held_back.turn(turn) {
            sum += engine.evaluate(&micro_batch(&m?))?;
        }
        local.push(sum / held_back.micro_batches() as f64);
    }
    local.truncate(held_back.own_turns());
    let mean = engine.mean_over_replicas(&local)?;
    // Those were means over all predictions, of which some do not count. Every row kept has one that does.
    let (counted, all) = held_back.counted()?;
    Ok(mean * (all as f64 / counted as f64))
}

/// A micro-batch as the engine takes it.
fn micro_batch(m: &Micro) -> MicroBatch<'_> {
    MicroBatch {
        tokens: &m.tokens,
        targets: &m.targets,
        lengths: &m.lengths,
        images: &m.images,
        first_sequence: m.first,
    }
}
