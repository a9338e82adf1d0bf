//! What happens while a job is prepared and runs, as data for the program that watches it. Nothing that prepares or runs a job prints, handles
//! signals, or ends the process.

use crate::computes::Computes;
use crate::job::{Division, Job};
pub use crate::step_record::StepRecord;
use crate::summary::Summary;
use crate::train_error::{Result, TrainError};
use crossweave_data::{NoProgress, Progress, Remark};
pub use crossweave_engine::{GraphCounts, RankLedger};
use serde::Serialize;
use std::fmt::Debug;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What a run has come to.
pub struct Closing<'a> {
    /// Rank 0's account of the steps.
    pub summary: &'a Summary,
    /// Steps of the whole run.
    pub steps: u64,
    /// The job that its ranks share.
    pub job: &'a Job,
    /// Their shares of the work.
    pub division: &'a Division,
    /// When rank 0 reduces gradients, and the other choice, where it has one.
    pub reductions: Option<ReductionsOfRun>,
    /// Parameters of the model.
    pub params: u64,
    /// The ledgers of all ranks, in their order.
    pub ledgers: &'a [RankLedger],
    /// The back ends, with the ranks that each computed.
    pub computes: &'a [Computes],
    /// The run's folder.
    pub out: &'a Path,
    /// True where the folder has a model.
    pub has_model: bool,
}

/// The choice of a run and the other one, by the formulas.
#[derive(Clone, Debug, Serialize)]
pub struct ReductionsOfRun {
    /// What was chosen.
    pub chosen: ReducedByFormula,
    /// What the other choice would take.
    pub other: ReducedByFormula,
}

/// One of the two choices by the formulas.
#[derive(Clone, Debug, Serialize)]
pub struct ReducedByFormula {
    /// When gradients are reduced: for each `micro_batch`, or once a `step`.
    pub reduced: &'static str,
    /// Bytes held between micro-batches.
    pub held_bytes: u64,
    /// Bytes that a rank sends in a step.
    pub sent_bytes: u64,
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
    Closed(&'a Closing<'a>),
    /// This process fails. It is said before the other processes hear of it, since their end may be its own.
    Failed(&'a str),
    /// A fault of the config (`faults`, kind `kill`) ends this process, one of several: at once, without a word. Where nobody ends it, the
    /// rank fails.
    Killed,
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
    fn start(&self, _first: bool) -> Result<Arc<AtomicBool>> {
        Ok(Arc::default())
    }

    /// What follows how text becomes tokens.
    fn corpus(&self) -> Box<dyn Progress> {
        Box::new(NoProgress)
    }
}

/// Watches nothing: what happens is seen by what the trainer returns.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwatched;

impl Events for Unwatched {
    fn on(&self, _: Event<'_>) {}
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
