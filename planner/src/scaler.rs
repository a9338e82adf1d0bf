//! Loss scaling for float16 as a pure state machine: overflow flags in, the next scale out.
//!
//! Three published rules differ in when they grow again and in what hysteresis means; each is
//! pinned by the trace of the package it comes from (see the tests). A step whose gradients
//! overflowed must not advance the optimizer's step count nor the learning-rate schedule.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The package whose rule moves the scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleRule {
    /// The scale never changes.
    Static,
    /// DeepSpeed: grows after `window + 1` clean steps; `consecutive` refills the hysteresis on
    /// every clean step instead of at growth only.
    DeepSpeed {
        /// DeepSpeed's `consecutive_hysteresis`.
        consecutive: bool,
    },
    /// Megatron-Core's dynamic scaler: grows after `window` clean steps.
    Megatron,
    /// torch's GradScaler: no hysteresis, no floor.
    Torch,
}

/// A loss scaler; the loss is multiplied by [`LossScaler::scale`] before the backward pass and
/// gradients are divided by it before they are used.
#[derive(Clone, Debug, PartialEq)]
pub struct LossScaler {
    rule: ScaleRule,
    scale: f64,
    min: f64,
    window: u64,
    hysteresis: u64,
    left: u64,
    iter: i64,
    last_overflow: i64,
    clean: u64,
    skipped: u64,
}

/// The part of a scaler that a checkpoint keeps: all that moves, nothing that is configured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScalerState {
    /// The factor for the next step's loss.
    pub scale: f64,
    /// Overflows left before the scale halves.
    pub hysteresis_left: u64,
    /// Steps judged so far.
    pub iter: i64,
    /// The last of them that overflowed; -1 = none.
    pub last_overflow: i64,
    /// Clean steps since the scale moved (Megatron's and torch's rules).
    pub clean: u64,
    /// Steps skipped so far: so many fewer updates were made than steps.
    pub skipped: u64,
}

/// An overflow at the smallest scale allowed: the model itself has diverged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AtFloor {
    /// The floor.
    pub scale: f64,
}

impl fmt::Display for AtFloor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "gradients overflow although the loss scale is already at fp16.min_loss_scale = {}; \
             fix: lower the learning rate, clip gradients, or train in bf16",
            self.scale
        )
    }
}

impl std::error::Error for AtFloor {}

impl LossScaler {
    /// A scaler at `initial`, halving down to `min` and doubling after `window` clean steps.
    /// `hysteresis` overflows are needed for the first halving (ignored by torch's rule).
    pub fn new(rule: ScaleRule, initial: f64, window: u64, hysteresis: u64, min: f64) -> Self {
        LossScaler {
            rule,
            scale: initial,
            min,
            window: window.max(1),
            hysteresis: hysteresis.max(1),
            left: hysteresis.max(1),
            iter: 0,
            last_overflow: -1,
            clean: 0,
            skipped: 0,
        }
    }

    /// Does the scale never move?
    pub fn is_static(&self) -> bool {
        self.rule == ScaleRule::Static
    }
    /// Steps skipped so far.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }
    /// Returns the part that a checkpoint keeps.
    pub fn state(&self) -> ScalerState {
        ScalerState {
            scale: self.scale,
            hysteresis_left: self.left,
            iter: self.iter,
            last_overflow: self.last_overflow,
            clean: self.clean,
            skipped: self.skipped,
        }
    }
    /// Goes on from a checkpoint. A static scale stays the configured one; a state that no scaler can have been in is put right.
    pub fn restore(&mut self, s: ScalerState) {
        if !self.is_static() && s.scale.is_finite() && s.scale > 0.0 {
            self.scale = s.scale;
        }
        self.left = s.hysteresis_left.clamp(1, self.hysteresis);
        (self.iter, self.last_overflow) = (s.iter, s.last_overflow.min(s.iter));
        (self.clean, self.skipped) = (s.clean.min(self.window - 1), s.skipped);
    }

    /// The factor for the next step's loss.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// Takes one step's verdict (overflow on *any* rank) and moves the scale.
    ///
    /// # Errors
    /// [`AtFloor`] when DeepSpeed's rule would have to go below the floor.
    pub fn update(&mut self, overflow: bool) -> Result<(), AtFloor> {
        self.skipped += u64::from(overflow);
        match self.rule {
            ScaleRule::Static => Ok(()),
            ScaleRule::DeepSpeed { consecutive } => self.deepspeed(overflow, consecutive),
            ScaleRule::Megatron => {
                self.counting(overflow, true);
                Ok(())
            }
            ScaleRule::Torch => {
                self.counting(overflow, false);
                Ok(())
            }
        }
    }

    fn deepspeed(&mut self, overflow: bool, consecutive: bool) -> Result<(), AtFloor> {
        if overflow {
            if self.left == 1 {
                if self.scale <= self.min {
                    return Err(AtFloor { scale: self.scale });
                }
                self.scale = (self.scale / 2.0).max(self.min);
            } else {
                self.left -= 1;
            }
            self.last_overflow = self.iter;
        } else {
            if consecutive {
                self.left = self.hysteresis;
            }
            let stable = self.iter - self.last_overflow - 1;
            let window = i64::try_from(self.window).unwrap_or(i64::MAX);
            if stable > 0 && stable % window == 0 {
                self.left = self.hysteresis;
                self.scale *= 2.0;
            }
        }
        self.iter += 1;
        Ok(())
    }

    fn counting(&mut self, overflow: bool, hysteresis: bool) {
        if overflow {
            self.clean = 0;
            self.left = self.left.saturating_sub(1);
            if !hysteresis {
                self.scale /= 2.0;
            } else if self.left == 0 {
                self.scale = (self.scale / 2.0).max(self.min);
            }
        } else {
            self.clean += 1;
            if self.clean == self.window {
                self.clean = 0;
                self.left = self.hysteresis;
                self.scale *= 2.0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATTERN: [u8; 20] = [1, 1, 1, 0, 0, 0, 0, 0, 1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0];

    fn trace(rule: ScaleRule) -> Vec<f64> {
        let mut s = LossScaler::new(rule, 65536.0, 4, 2, 1.0);
        PATTERN
            .iter()
            .map(|&o| {
                s.update(o == 1).unwrap();
                s.scale()
            })
            .collect()
    }

    // Traces measured by running the released packages with the pattern above.
    #[test]
    fn deepspeed_trace() {
        assert_eq!(
            trace(ScaleRule::DeepSpeed { consecutive: false }),
            [
                65536., 32768., 16384., 16384., 16384., 16384., 16384., 32768., 32768., 32768.,
                16384., 8192., 8192., 8192., 8192., 8192., 16384., 16384., 16384., 16384.
            ]
        );
    }

    #[test]
    fn deepspeed_consecutive_trace() {
        assert_eq!(
            trace(ScaleRule::DeepSpeed { consecutive: true }),
            [
                65536., 32768., 16384., 16384., 16384., 16384., 16384., 32768., 32768., 32768.,
                32768., 16384., 16384., 16384., 16384., 16384., 32768., 32768., 32768., 32768.
            ]
        );
    }

    #[test]
    fn megatron_trace() {
        assert_eq!(
            trace(ScaleRule::Megatron),
            [
                65536., 32768., 16384., 16384., 16384., 16384., 32768., 32768., 32768., 32768.,
                16384., 8192., 8192., 8192., 8192., 16384., 16384., 16384., 16384., 32768.
            ]
        );
    }

    #[test]
    fn torch_trace() {
        assert_eq!(
            trace(ScaleRule::Torch),
            [
                32768., 16384., 8192., 8192., 8192., 8192., 16384., 16384., 8192., 8192., 4096.,
                2048., 2048., 2048., 2048., 4096., 4096., 4096., 4096., 8192.
            ]
        );
    }

    #[test]
    fn deepspeed_stops_at_the_floor() {
        let mut s = LossScaler::new(ScaleRule::DeepSpeed { consecutive: false }, 2.0, 4, 1, 1.0);
        assert_eq!(s.update(true), Ok(()));
        assert_eq!(s.scale(), 1.0);
        assert_eq!(s.update(true), Err(AtFloor { scale: 1.0 }));
    }

    #[test]
    fn a_restored_scaler_goes_on_with_the_trace() {
        for rule in [
            ScaleRule::DeepSpeed { consecutive: false },
            ScaleRule::DeepSpeed { consecutive: true },
            ScaleRule::Megatron,
            ScaleRule::Torch,
        ] {
            for cut in 0..PATTERN.len() {
                let fresh = || LossScaler::new(rule, 65536.0, 4, 2, 1.0);
                let mut s = fresh();
                let mut got = vec![];
                for (i, &o) in PATTERN.iter().enumerate() {
                    if i == cut {
                        let kept = s.state();
                        s = fresh();
                        s.restore(kept);
                    }
                    s.update(o == 1).unwrap();
                    got.push(s.scale());
                }
                assert_eq!(got, trace(rule), "{rule:?} cut at {cut}");
                assert_eq!(s.skipped(), 6);
            }
        }
    }

    #[test]
    fn static_scale_stays() {
        let mut s = LossScaler::new(ScaleRule::Static, 128.0, 1, 1, 1.0);
        s.update(true).unwrap();
        s.update(false).unwrap();
        assert_eq!(s.scale(), 128.0);
    }
}
