//! Learning-rate schedules as pure functions of the number of updates already done.
//!
//! `lr(n)` is the rate of the update with index `n` (from 0). Two families are kept apart because
//! they disagree by one: DeepSpeed's start one step *before* zero, so the first two updates run
//! at the minimum; Megatron's run the first update at `init_lr` and the second at `n = 1`.

/// Shape of DeepSpeed's warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warmup {
    /// ln(i+1) / ln(warmup)
    Log,
    /// i / warmup
    Linear,
}

/// Shape of Megatron's annealing after warm-up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Anneal {
    /// Stays at the maximum.
    Constant,
    /// A straight line to the minimum at `total`.
    Linear,
    /// Half a cosine to the minimum at `total`.
    Cosine,
    /// max·√warmup/√n, floored at the minimum.
    InverseSqrt,
    /// Warm-up, stable, decay: the last `decay` steps fall by `style`.
    Wsd {
        /// Number of decaying steps before `total`.
        decay: u64,
        /// Shape of the fall.
        style: WsdStyle,
    },
}

/// The shape of the fall of warm-up–stable–decay, with x from 0 to 1 over the decaying steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WsdStyle {
    /// 1 − x
    Linear,
    /// (1 + cos πx) / 2
    Cosine,
    /// 2·½^x − 1
    Exponential,
    /// 1 − √x
    MinusSqrt,
}

/// A learning-rate schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Schedule {
    /// The optimizer's rate throughout (no scheduler given).
    Constant {
        /// The rate.
        lr: f64,
    },
    /// DeepSpeed `WarmupLR`; with `total`, `WarmupDecayLR`.
    WarmupLr {
        /// `warmup_min_lr`
        min: f64,
        /// `warmup_max_lr`
        max: f64,
        /// `warmup_num_steps`
        warmup: u64,
        /// `warmup_type`
        shape: Warmup,
        /// `total_num_steps` of `WarmupDecayLR`: decays to `min` there.
        total: Option<u64>,
    },
    /// DeepSpeed `WarmupCosineLR`: ratios of the optimizer's rate.
    WarmupCosine {
        /// The optimizer's rate.
        base: f64,
        /// `warmup_min_ratio`
        warmup_min: f64,
        /// `cos_min_ratio`
        cos_min: f64,
        /// `warmup_num_steps`
        warmup: u64,
        /// `warmup_type`
        shape: Warmup,
        /// `total_num_steps`
        total: u64,
    },
    /// DeepSpeed `OneCycle`.
    OneCycle(OneCycle),
    /// DeepSpeed `LRRangeTest`: `min (1 + rate n / step)`.
    RangeTest {
        /// `lr_range_test_min_lr`
        min: f64,
        /// `lr_range_test_step_size`
        step: u64,
        /// `lr_range_test_step_rate`
        rate: f64,
        /// `lr_range_test_staircase`
        stairs: bool,
    },
    /// Megatron's: linear warm-up from `init` to `max` in `warmup` steps, then `anneal`.
    Megatron {
        /// Rate of the first update.
        init: f64,
        /// Rate at the end of warm-up.
        max: f64,
        /// Rate from `total` on.
        min: f64,
        /// Warm-up steps.
        warmup: u64,
        /// Steps until `min` is reached.
        total: u64,
        /// Shape after warm-up.
        anneal: Anneal,
    },
}

/// DeepSpeed's `OneCycle`: the rate goes up and down once, then decays; beta1 moves the other way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OneCycle {
    /// `cycle_min_lr`, `cycle_max_lr`
    pub lr: [f64; 2],
    /// `cycle_first_step_size`, `cycle_second_step_size`
    pub steps: [u64; 2],
    /// `cycle_first_stair_count`, `cycle_second_stair_count`; 0 = none
    pub stairs: [u64; 2],
    /// `decay_step_size`; 0 = no decay
    pub decay_steps: u64,
    /// `decay_lr_rate`
    pub decay_lr: f64,
    /// `cycle_min_mom`, `cycle_max_mom`; `None` = betas stay
    pub momentum: Option<[f64; 2]>,
    /// `decay_mom_rate`
    pub decay_momentum: f64,
}

impl OneCycle {
    /// Returns the height of update `n` in the cycle, from 0 to 1.
    fn height(&self, n: u64) -> f64 {
        let [up, down] = self.steps.map(|s| s.max(1));
        let at = n % (up + down);
        let (left, of, stairs) = if at <= up {
            (at, up, self.stairs[0])
        } else {
            (up + down - at, down, self.stairs[1])
        };
        if stairs == 0 {
            return left as f64 / of as f64;
        }
        (left * stairs / of) as f64 / stairs as f64
    }

    /// Decays since the end of the cycle; `None` within it.
    fn decays(&self, n: u64) -> Option<f64> {
        let total = self.steps[0].max(1) + self.steps[1].max(1);
        let past = n.checked_sub(total).filter(|past| *past > 0)?;
        Some(match self.decay_steps {
            0 => 0.0,
            steps => past as f64 / steps as f64,
        })
    }

    fn lr(&self, n: u64) -> f64 {
        let [min, max] = self.lr;
        match self.decays(n) {
            Some(d) => min / (1.0 + self.decay_lr * d),
            None => min + (max - min) * self.height(n),
        }
    }
}

/// The fraction of the way up at DeepSpeed's step `i < warmup`.
fn rise(shape: Warmup, i: u64, warmup: u64) -> f64 {
    match shape {
        Warmup::Log => ((i + 1) as f64).ln() / (warmup as f64).ln(),
        Warmup::Linear => i as f64 / warmup as f64,
    }
}

impl Schedule {
    /// The highest rate; `None` where it rises without end.
    pub fn highest(&self) -> Option<f64> {
        match *self {
            Schedule::Constant { lr } => Some(lr),
            Schedule::WarmupLr { max, .. } | Schedule::Megatron { max, .. } => Some(max),
            Schedule::WarmupCosine { base, .. } => Some(base),
            Schedule::OneCycle(c) => Some(c.lr[1]),
            Schedule::RangeTest { .. } => None,
        }
    }

    /// The betas of update `n`, counted from 0, where the schedule sets them (OneCycle, whose beta2 is 0.99).
    pub fn betas(&self, n: u64) -> Option<[f64; 2]> {
        let Schedule::OneCycle(c) = self else {
            return None;
        };
        let [min, max] = c.momentum?;
        let beta1 = match c.decays(n) {
            Some(d) => max * (1.0 + c.decay_momentum * d),
            // DeepSpeed's first update runs at the other end.
            None if n == 0 => min,
            None => max - (max - min) * c.height(n),
        };
        // A momentum that grows without end would stop being one.
        Some([beta1.min(1.0 - f64::EPSILON), 0.99])
    }

    /// The rate of update `n`, counted from 0; overflowed (skipped) updates do not count.
    pub fn lr(&self, n: u64) -> f64 {
        match *self {
            Schedule::Constant { lr } => lr,
            Schedule::OneCycle(c) => c.lr(n),
            Schedule::RangeTest {
                min,
                step,
                rate,
                stairs,
            } => {
                let rises = n as f64 / step.max(1) as f64;
                min * (1.0 + rate * if stairs { rises.floor() } else { rises })
            }
            Schedule::WarmupLr {
                min,
                max,
                warmup,
                shape,
                total,
            } => {
                let Some(i) = n.checked_sub(1) else {
                    return min;
                };
                let w = warmup.max(2);
                let gamma = if i < w {
                    rise(shape, i, w)
                } else if let Some(t) = total {
                    t.saturating_sub(i) as f64 / t.saturating_sub(w).max(1) as f64
                } else {
                    1.0
                };
                min + (max - min) * gamma
            }
            Schedule::WarmupCosine {
                base,
                warmup_min,
                cos_min,
                warmup,
                shape,
                total,
            } => {
                let Some(i) = n.checked_sub(1) else {
                    return base * warmup_min;
                };
                let w = warmup.max(2);
                let ratio = if i < w {
                    warmup_min + (1.0 - warmup_min) * rise(shape, i, w)
                } else {
                    let x = (i - w + 1) as f64 / total.saturating_sub(w).max(1) as f64;
                    cos_min + (1.0 - cos_min) * half_cosine(x.min(1.0))
                };
                base * ratio
            }
            Schedule::Megatron {
                init,
                max,
                min,
                warmup,
                total,
                anneal,
            } => {
                if warmup > 0 && n <= warmup {
                    return init + (max - init) * (n as f64 / warmup as f64);
                }
                match anneal {
                    Anneal::Constant => return max,
                    _ if n > total => return min,
                    Anneal::InverseSqrt => {
                        let w = warmup.max(1) as f64;
                        return (max * w.sqrt() / (n.max(1) as f64).sqrt()).max(min);
                    }
                    _ => {}
                }
                let span = total.saturating_sub(warmup).max(1) as f64;
                let x = (n - warmup) as f64 / span;
                let fraction = match anneal {
                    Anneal::Linear => 1.0 - x,
                    Anneal::Wsd { decay, style } => wsd(n, total, decay, style),
                    _ => half_cosine(x),
                };
                min + (max - min) * fraction
            }
        }
    }
}

fn half_cosine(x: f64) -> f64 {
    (1.0 + (std::f64::consts::PI * x).cos()) / 2.0
}

fn wsd(n: u64, total: u64, decay: u64, style: WsdStyle) -> f64 {
    let start = total.saturating_sub(decay);
    if n <= start {
        return 1.0;
    }
    let x = (n - start) as f64 / decay.max(1) as f64;
    match style {
        WsdStyle::Linear => 1.0 - x,
        WsdStyle::Cosine => half_cosine(x),
        WsdStyle::Exponential => 2.0 * 0.5_f64.powf(x) - 1.0,
        WsdStyle::MinusSqrt => 1.0 - x.sqrt(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(schedule: Schedule, from: u64, golden: &[f64]) {
        for (k, want) in golden.iter().enumerate() {
            let n = from + k as u64;
            let got = schedule.lr(n);
            assert!(
                (got - want).abs() <= 1e-12 + want.abs() * 1e-8,
                "{schedule:?} at {n}: want {want}, got {got}"
            );
        }
    }

    fn warmup_lr(shape: Warmup, total: Option<u64>) -> Schedule {
        Schedule::WarmupLr {
            min: 0.0,
            max: 1e-3,
            warmup: 4,
            shape,
            total,
        }
    }

    fn megatron(anneal: Anneal) -> Schedule {
        Schedule::Megatron {
            init: 0.0,
            max: 1e-3,
            min: 1e-4,
            warmup: 4,
            total: 12,
            anneal,
        }
    }

    // Golden values measured from the released packages.
    #[test]
    fn deepspeed_warmup_starts_one_step_early() {
        let log = [0., 0., 0.0005, 0.00079248125, 0.001, 0.001];
        check(warmup_lr(Warmup::Log, None), 0, &log);
        let linear = [0., 0., 0.00025, 0.0005, 0.00075, 0.001];
        check(warmup_lr(Warmup::Linear, None), 0, &linear);
    }

    #[test]
    fn deepspeed_decay() {
        check(
            warmup_lr(Warmup::Linear, Some(10)),
            0,
            &[
                0.,
                0.,
                0.00025,
                0.0005,
                0.00075,
                0.001,
                0.000833333333,
                0.000666666667,
                0.0005,
                0.000333333333,
                0.000166666667,
                0.,
                0.,
            ],
        );
        // The decay multiplies max - min, which is then added to min.
        let lifted = Schedule::WarmupLr {
            min: 1e-4,
            max: 1e-3,
            warmup: 4,
            shape: Warmup::Linear,
            total: Some(10),
        };
        check(lifted, 8, &[1e-4 + 9e-4 * 0.5]);
        check(lifted, 20, &[1e-4]);
    }

    #[test]
    fn deepspeed_cosine() {
        let schedule = Schedule::WarmupCosine {
            base: 1e-3,
            warmup_min: 0.0,
            cos_min: 1e-4,
            warmup: 4,
            shape: Warmup::Linear,
            total: 10,
        };
        check(
            schedule,
            0,
            &[
                0.,
                0.,
                0.00025,
                0.0005,
                0.00075,
                0.000933019401,
                0.000750025,
                0.00050005,
                0.000250075,
                6.70805994e-5,
                1e-7,
                1e-7,
            ],
        );
    }

    #[test]
    fn megatron_shapes() {
        check(megatron(Anneal::Cosine), 0, &[0., 0.00025, 0.0005, 0.00075]);
        check(
            megatron(Anneal::Cosine),
            4,
            &[
                0.001,
                0.00096574579,
                0.000868198052,
                0.000722207545,
                0.00055,
                0.000377792455,
                0.000231801948,
                0.00013425421,
                0.0001,
                0.0001,
            ],
        );
        check(
            megatron(Anneal::Linear),
            4,
            &[0.001, 0.0008875, 0.000775, 0.0006625, 0.00055],
        );
        check(megatron(Anneal::Constant), 4, &[0.001, 0.001]);
        check(megatron(Anneal::Constant), 99, &[0.001]);
    }

    #[test]
    fn megatron_inverse_sqrt() {
        let schedule = Schedule::Megatron {
            init: 0.0,
            max: 1e-3,
            min: 1e-4,
            warmup: 4,
            total: 1000,
            anneal: Anneal::InverseSqrt,
        };
        check(
            schedule,
            5,
            &[
                0.000894427191,
                0.000816496581,
                0.000755928946,
                0.000707106781,
            ],
        );
    }

    #[test]
    fn megatron_warmup_stable_decay() {
        let style = |style| megatron(Anneal::Wsd { decay: 4, style });
        check(
            style(WsdStyle::Linear),
            8,
            &[0.001, 0.000775, 0.00055, 0.000325],
        );
        check(
            style(WsdStyle::Cosine),
            9,
            &[0.000868198052, 0.00055, 0.000231801948],
        );
        check(
            style(WsdStyle::Exponential),
            9,
            &[0.000713613547, 0.000472792206, 0.000270286404],
        );
        check(
            style(WsdStyle::MinusSqrt),
            9,
            &[0.00055, 0.000363603897, 0.000220577137],
        );
    }

    // Golden values of these two from the released package's formulas.
    #[test]
    fn deepspeed_one_cycle() {
        let c = OneCycle {
            lr: [1e-4, 1e-3],
            steps: [4, 2],
            stairs: [0, 0],
            decay_steps: 2,
            decay_lr: 0.5,
            momentum: Some([0.8, 0.9]),
            decay_momentum: 0.01,
        };
        check(
            Schedule::OneCycle(c),
            0,
            &[
                1e-4,
                3.25e-4,
                5.5e-4,
                7.75e-4,
                1e-3,
                5.5e-4,
                1e-4,
                8e-5,
                6.66666667e-5,
                5.71428571e-5,
            ],
        );
        let beta1 = |n| Schedule::OneCycle(c).betas(n).unwrap();
        let want = [0.8, 0.875, 0.85, 0.825, 0.8, 0.85, 0.9, 0.9045, 0.909];
        for (n, w) in want.iter().enumerate() {
            let [b1, b2] = beta1(n as u64);
            assert!((b1 - w).abs() < 1e-12 && b2 == 0.99, "{n}: {b1} {b2}");
        }
        assert!(beta1(1_000_000)[0] < 1.0);
        let stairs = OneCycle {
            steps: [4, 4],
            stairs: [2, 1],
            decay_steps: 0,
            momentum: None,
            ..c
        };
        check(
            Schedule::OneCycle(stairs),
            0,
            &[
                1e-4, 1e-4, 5.5e-4, 5.5e-4, 1e-3, 1e-4, 1e-4, 1e-4, 1e-4, 1e-4,
            ],
        );
        assert_eq!(Schedule::OneCycle(stairs).betas(3), None);
        assert_eq!(Schedule::Constant { lr: 1.0 }.betas(0), None);
    }

    #[test]
    fn deepspeed_range_test() {
        let test = |stairs| Schedule::RangeTest {
            min: 1e-3,
            step: 2,
            rate: 0.5,
            stairs,
        };
        check(test(false), 0, &[1e-3, 1.25e-3, 1.5e-3, 1.75e-3, 2e-3]);
        check(test(true), 0, &[1e-3, 1e-3, 1.5e-3, 1.5e-3, 2e-3]);
    }

    #[test]
    fn degenerate_lengths_stay_finite() {
        for n in 0..5 {
            assert!(warmup_lr(Warmup::Log, Some(0)).lr(n).is_finite());
            let s = Schedule::Megatron {
                init: 0.,
                max: 1.,
                min: 0.,
                warmup: 3,
                total: 3,
                anneal: Anneal::Cosine,
            };
            assert!(s.lr(n).is_finite());
        }
    }
}
