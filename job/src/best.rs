//! The best of a run by its validation loss: which checkpoint stays whatever its age, and when the run ends without getting better.

use crossweave_config::Run;
use serde_json::{Value, json};

/// The validation losses of a run so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Best {
    keeps: bool,
    stop_after: Option<u64>,
    /// Step and loss of the lowest.
    lowest: Option<(u64, f64)>,
    /// Validations since it.
    since: u64,
}

impl Best {
    /// Those of a run that begins, or goes on from what [`Best::state`] gave.
    pub fn new(run: &Run, before: Option<&Value>) -> Best {
        let before = before.unwrap_or(&Value::Null);
        let lowest = before["step"].as_u64().zip(before["val_loss"].as_f64());
        Best {
            keeps: run.keep_best,
            stop_after: run.stop_after,
            lowest,
            since: before["validations_since"].as_u64().unwrap_or(0),
        }
    }

    /// Takes the loss of a validation behind `step` into account; returns true if it is the lowest so far. What is no number never is.
    pub fn observe(&mut self, step: u64, loss: f64) -> bool {
        let lower = !loss.is_nan() && self.lowest.is_none_or(|(_, lowest)| loss < lowest);
        match lower {
            true => (self.lowest, self.since) = (Some((step, loss)), 0),
            false => self.since += 1,
        }
        lower
    }

    /// Returns true if a validation that is the lowest so far asks for a checkpoint (`run.keep_best`).
    pub fn keeps(&self) -> bool {
        self.keeps
    }

    /// The step whose checkpoint stays whatever its age.
    pub fn kept(&self) -> Option<u64> {
        self.lowest.filter(|_| self.keeps).map(|(step, _)| step)
    }

    /// Returns true if so many validations in a row were no better than the best that the run ends (`run.stop_after`).
    pub fn ends(&self) -> bool {
        self.stop_after.is_some_and(|most| self.since >= most)
    }

    /// The part of it that a checkpoint holds.
    pub fn state(&self) -> Value {
        let Some((step, loss)) = self.lowest else {
            return Value::Null;
        };
        json!({"step": step, "val_loss": loss, "validations_since": self.since})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossweave_config::Config;

    fn run(keys: &str) -> Run {
        let text = format!("{{\"run\": {{{keys}}}}}");
        Config::load("t.json", &text, &[]).unwrap().settings.run
    }

    #[test]
    fn the_lowest_is_kept_and_patience_ends() {
        let run = run("\"keep_best\": true, \"stop_after\": 2");
        let mut best = Best::new(&run, None);
        assert_eq!((best.state(), best.kept()), (Value::Null, None));
        let mut seen = vec![];
        for (step, loss) in [(5, 3.0), (10, 2.0), (15, f64::NAN), (20, 1.5), (25, 1.5)] {
            seen.push((best.observe(step, loss), best.ends()));
            // A run that goes on from a checkpoint knows the same.
            best = Best::new(&run, Some(&best.state()));
        }
        let (better, worse) = ((true, false), (false, false));
        assert_eq!(seen, [better, better, worse, better, worse]);
        assert_eq!(best.kept(), Some(20));
        assert!(!best.observe(30, 1.6) && best.ends());
        assert_eq!(best.kept(), Some(20));
    }

    #[test]
    fn without_the_keys_nothing_is_kept_and_nothing_ends() {
        let mut best = Best::new(&run(""), None);
        for step in 0..50 {
            assert_eq!(best.observe(step, 1.0), step == 0);
            assert!(!best.ends() && !best.keeps() && best.kept().is_none());
        }
    }
}
