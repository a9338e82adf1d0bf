//! What happens while a job is prepared and runs, as data for the program that watches it. Nothing that prepares or runs a job prints, handles
//! signals, or ends the process.

use crate::train_error::{Result, TrainError};
use crossweave_data::{Progress, Remark};
use serde::Serialize;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Record of one optimizer step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepRecord {
    /// Optimizer step, from 1.
    pub step: u64,
    /// Mean cross-entropy over the global batch, before the update; nats per token.
    pub loss: f64,
    /// Learning rate of the update.
    pub lr: f64,
    /// Global gradient norm before clipping; absent where it is not finite (a skipped step).
    #[serde(skip_serializing_if = "is_not_finite")]
    pub grad_norm: f64,
    /// Tokens trained on so far, this step included.
    pub tokens: u64,
    /// Tokens of this step over its time.
    pub tokens_per_s: f64,
    /// Time from the end of the step before to the end of this one, in milliseconds.
    pub step_ms: f64,
    /// Loss scale after this step; only in float16 runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// Whether the update was skipped because a gradient was not finite; only in float16 runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<bool>,
    /// Steps skipped so far; only in float16 runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped_steps: Option<u64>,
}

fn is_not_finite(x: &f64) -> bool {
    !x.is_finite()
}

/// What a run has come to.
#[derive(Clone, Debug)]
pub struct Closing {
    /// Rows of a table: what is stated, and its value in words.
    pub rows: Vec<(&'static str, String)>,
    /// Text drawn from the trained model, with its prompt.
    pub sample: Option<String>,
}

/// What happens.
#[non_exhaustive]
pub enum Event<'a> {
    /// The processes of the job have met: the ranks of this one. `None`: it is the only one.
    Met(Option<Range<u32>>),
    /// What the user should know of how the job is prepared.
    Note(&'a str),
    /// What is probably not meant, or has failed without a harm to the run.
    Warning(&'a str),
    /// What is remarkable about the data.
    Remark(&'a Remark),
    /// Rank 0 is before its first step.
    Begun {
        /// Steps of the whole run.
        steps: u64,
        /// Those done before it continues.
        done: u64,
        /// Steps between two that are reported; none where no step is.
        every: Option<u64>,
    },
    /// A step is done.
    Step(&'a StepRecord),
    /// Where the time of the steps since the last one that was reported went.
    Breakdown(&'a str),
    /// A validation is done.
    Validated {
        /// The step it ran after.
        step: u64,
        /// The mean loss of the sequences held back, in nats per token.
        loss: f64,
        /// The same with the moving average of the weights, where one is kept.
        ema: Option<f64>,
    },
    /// As a warning, while the steps go on.
    StepWarning(&'a str),
    /// Rank 0 has walked its last step.
    Walked,
    /// The run is at its end, and everything is written.
    Closed(&'a Closing),
    /// This process fails. It is said before the other processes hear of it, since their end may be its own.
    Failed(&'a str),
    /// Ranks of this process do not end after the failure of another process.
    Stuck(&'a str),
    /// The processes of the job cannot meet. The thread that waits for them does not come back.
    Absent(&'a TrainError),
}

/// Who watches a job. Calls come from every thread of it, and each is waited for.
pub trait Events: Debug + Send + Sync {
    /// Something has happened.
    fn on(&self, event: Event<'_>);

    /// All is prepared and the ranks start: the flag by which the run is asked to save and to stop after its step. `first`: rank 0 is one
    /// of this process.
    ///
    /// # Errors
    /// The run is not to start.
    fn start(&self, first: bool) -> Result<Arc<AtomicBool>>;

    /// What follows how text becomes tokens.
    fn corpus(&self) -> Box<dyn Progress>;
}

/// Which steps are reported, and who watches the run.
#[derive(Clone, Debug)]
pub struct Reported {
    /// Steps between two that are reported; none where nothing but warnings is.
    pub every: Option<u64>,
    /// Who watches.
    pub events: Arc<dyn Events>,
}

impl Reported {
    /// Is step `step` of `steps` one that is reported?
    pub fn due(&self, step: u64, steps: u64) -> bool {
        step.is_multiple_of(self.every.unwrap_or(1).max(1)) || step == steps || step == 1
    }
}

/// Reports when it is dropped that rank 0 walks no more steps, however they end.
pub struct Walking(pub Arc<dyn Events>);

impl Drop for Walking {
    fn drop(&mut self) {
        self.0.on(Event::Walked);
    }
}
