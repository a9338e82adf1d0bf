//! `run.epochs`: the length of a run in passes over its data, from which its steps follow.

use crate::batch::Batch;
use crate::resolve::Resolver;
use crate::settings::Run;

/// One pass over the training data, as only the open data know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epoch {
    /// Packed text: so many tokens, of which each sample takes `sample` new ones.
    Tokens {
        /// Tokens to train on; of a mixture those of all its sources.
        tokens: u64,
        /// Predictions of a sample.
        sample: u64,
    },
    /// So many examples, each a sample.
    Samples(u64),
    /// So many given batches, each a step.
    Steps(u64),
}

/// Steps that can be counted without a gap.
const MOST: f64 = (1u64 << 53) as f64;

impl Epoch {
    /// Steps of `epochs` passes with `batch` sequences a step: as many as it takes to see everything so often, so that the last step
    /// may reach into the next pass. `None`: more than can be counted.
    pub fn steps(&self, epochs: f64, batch: u64) -> Option<u64> {
        let batch = batch.max(1) as f64;
        let one = match *self {
            Epoch::Tokens { tokens, sample } => tokens as f64 / (sample.max(1) as f64 * batch),
            Epoch::Samples(n) => n as f64 / batch,
            Epoch::Steps(n) => n as f64,
        };
        let exact = epochs * one;
        // A product that should be whole may lie a rounding above it, and that is no further step.
        let steps = (exact - exact * 1e-12).ceil().max(1.0);
        // What is too large for a float is infinite, or no number once it was rounded.
        (exact < MOST && steps < MOST).then_some(steps as u64)
    }
}

impl Resolver<'_> {
    /// Fills `run.steps` in from `run.epochs`, where the data are known. `tokens`: they are given batches, of which more steps than the
    /// file holds are an error; so both numbers stay, and say that it is gone through again.
    pub(crate) fn epochs(
        &mut self,
        run: &mut Run,
        tokens: bool,
        batch: Option<&Batch>,
        epoch: Option<Epoch>,
    ) {
        let Some(epochs) = run.epochs else { return };
        let follows = batch.zip(epoch).map(|(b, e)| e.steps(epochs, b.global));
        match (run.steps, follows) {
            (_, Some(None)) => {
                let what = format!("{epochs} passes are more steps than can be counted");
                self.error("run.epochs", what, "ask for fewer, or give run.steps");
            }
            (None, Some(Some(steps))) => {
                run.steps = Some(steps);
                run.epochs = run.epochs.filter(|_| tokens);
            }
            (None, None) => {}
            (Some(_), None) if tokens => {}
            (Some(given), Some(Some(steps))) if tokens && given == steps => {}
            (Some(_), _) => {
                let what = "run.steps is given too, and both say how long the run is";
                self.error("run.epochs", what, "keep one of them");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_seen_so_often_and_no_step_is_for_a_rounding() {
        let text = |tokens, sample| Epoch::Tokens { tokens, sample };
        assert_eq!(text(1000, 10).steps(1.0, 10), Some(10));
        assert_eq!(text(1001, 10).steps(1.0, 10), Some(11));
        assert_eq!(text(1000, 10).steps(0.25, 10), Some(3));
        assert_eq!(Epoch::Samples(100).steps(3.0, 8), Some(38));
        assert_eq!(Epoch::Samples(3).steps(0.1, 8), Some(1));
        assert_eq!(Epoch::Steps(7).steps(2.0, 99), Some(14));
        for (tokens, sample) in [(1_000_000, 3), (999_999, 7), (123_456_789, 1023)] {
            for epochs in 1..50u64 {
                let wanted = (u128::from(epochs) * tokens as u128).div_ceil(sample as u128 * 6);
                let got = text(tokens, sample).steps(epochs as f64, 6);
                assert_eq!(got.map(u128::from), Some(wanted));
            }
        }
        assert_eq!(Epoch::Samples(u64::MAX).steps(1e300, 1), None);
    }
}
