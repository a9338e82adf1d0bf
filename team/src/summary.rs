//! What rank 0 knows of a run at its end.

use crate::step_record::StepRecord;
use std::time::Duration;

/// Rank 0's account of the steps of this session.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Steps done, those before a resume included.
    pub steps: u64,
    /// A signal ended it early.
    pub stopped: bool,
    /// Step and loss of the first record.
    pub first: Option<(u64, f64)>,
    /// Loss of the last record.
    pub last: Option<f64>,
    /// Last validation loss.
    pub val_loss: Option<f64>,
    /// The same of the averaged weights, where an average is kept.
    pub ema_val_loss: Option<f64>,
    /// Text drawn from the trained model.
    pub sample: Option<String>,
    /// Tokens of the steps of this session.
    pub tokens: f64,
    /// Time in the steps of this session.
    pub seconds: f64,
    /// Steps done before this session.
    pub begun: u64,
}

impl Summary {
    /// A summary of a session that starts after `step` steps.
    pub fn new(step: u64) -> Summary {
        Summary {
            steps: step,
            stopped: false,
            first: None,
            last: None,
            val_loss: None,
            ema_val_loss: None,
            sample: None,
            tokens: 0.0,
            seconds: 0.0,
            begun: step,
        }
    }

    /// Time in the steps of this session.
    pub fn busy(&self) -> Duration {
        Duration::try_from_secs_f64(self.seconds).unwrap_or_default()
    }

    /// Takes a step into account.
    pub fn step(&mut self, r: &StepRecord) {
        self.first = self.first.or(Some((r.step, r.loss)));
        self.last = Some(r.loss);
        self.tokens += r.tokens_per_s * r.step_ms / 1e3;
        self.seconds += r.step_ms / 1e3;
    }
}
