//! Optimizers: their fixed numbers, the states they keep per parameter, which parameter is updated by which, and the instructions of an
//! update.
//!
//! Nothing here computes. [`update`] writes what an interpreter of programs runs; checkpoints, memory plans and offload ask
//! [`Optimizer::states`] what there is to keep. Names, states and formulas: docs/optimizers.md.
#![forbid(unsafe_code)]

mod groups;
pub mod update;

pub use groups::{Assigned, GroupError, GroupRule, ParamGroups, Recipe};

use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// Reads a switch as its opposite.
fn opposite<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    bool::deserialize(from).map(|on| !on)
}

/// Adam's fixed numbers; also those of LAMB's and the 8-bit form's moments.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct Adam {
    /// Decay rates of the moments.
    pub betas: [f64; 2],
    /// Added to the root of the second moment.
    pub eps: f64,
    /// The decay is added to the gradient (L2) instead of taken from the parameter: the opposite of DeepSpeed's `adam_w_mode`.
    #[serde(rename = "adam_w_mode", default, deserialize_with = "opposite")]
    pub l2: bool,
    /// Moments are divided by `1 - beta^step`.
    pub bias_correction: bool,
}

impl Default for Adam {
    fn default() -> Self {
        Adam {
            betas: [0.9, 0.999],
            eps: 1e-8,
            l2: false,
            bias_correction: true,
        }
    }
}

/// LAMB: Adam's direction, scaled per parameter by `‖p‖ / ‖r‖` within bounds (DeepSpeed's `max_coeff`, `min_coeff`).
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct Lamb {
    /// Numbers of the moments.
    #[serde(flatten)]
    pub adam: Adam,
    /// Largest trust ratio.
    pub max_coeff: f64,
    /// Smallest trust ratio.
    pub min_coeff: f64,
}

/// SGD as torch's: momentum, dampening, Nesterov, decay added to the gradient.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct Sgd {
    /// 0 keeps no state.
    pub momentum: f64,
    /// Part of the gradient left out of the momentum, from the second step on.
    pub dampening: f64,
    /// Look ahead: `g + momentum * buf`.
    pub nesterov: bool,
}

/// Adafactor as transformers': factored second moment, update clipping, relative step.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct Adafactor {
    /// Added to the squared gradient, and the least parameter scale.
    pub eps: [f64; 2],
    /// Largest root mean square of an update.
    pub clip_threshold: f64,
    /// `beta2 = 1 - step^decay_rate`.
    pub decay_rate: f64,
    /// Decay of a first moment, if one is kept.
    pub beta1: Option<f64>,
    /// Steps are in proportion to the root mean square of the parameter.
    pub scale_parameter: bool,
    /// The rate is `min(1e-2, 1/√step)` instead of the schedule's.
    pub relative_step: bool,
    /// With `relative_step`: `1e-6 * step` instead of 1e-2.
    pub warmup_init: bool,
}

/// How the orthogonalised update of a matrix `[rows, cols]` is scaled; names as Megatron's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum MuonScale {
    /// `√max(1, rows/cols)`: Keller Jordan's, DeepSpeed's and torch's default.
    #[serde(rename = "shape_scaling")]
    Shape,
    /// `√max(rows, cols)`; with an extra factor of 0.2 updates are of AdamW's size.
    #[serde(rename = "spectral")]
    Spectral,
    /// `√(rows/cols)`.
    #[serde(rename = "unit_rms_norm")]
    UnitRms,
}

/// Muon: momentum orthogonalised by Newton–Schulz (quintic), for whole matrices.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct Muon {
    /// Decay of the momentum.
    pub momentum: f64,
    /// Look ahead before orthogonalising.
    pub nesterov: bool,
    /// Iterations.
    pub ns_steps: u32,
    /// Scale by shape.
    #[serde(rename = "scale_mode")]
    pub scale: MuonScale,
    /// Further factor.
    #[serde(rename = "extra_scale_factor")]
    pub extra_scale: f64,
}

impl Muon {
    /// Factor of the update of a matrix.
    pub fn factor(&self, rows: u64, cols: u64) -> f64 {
        let (r, c) = (rows.max(1) as f64, cols.max(1) as f64);
        let by_shape = match self.scale {
            MuonScale::Shape => (r / c).max(1.0).sqrt(),
            MuonScale::Spectral => r.max(c).sqrt(),
            MuonScale::UnitRms => (r / c).sqrt(),
        };
        by_shape * self.extra_scale
    }
}

/// One of the optimizers with its fixed numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// AdamW, or Adam with `l2`.
    Adam(Adam),
    /// AdamW with block-wise 8-bit moments.
    Adam8bit(Adam),
    /// Lion: the sign of an interpolated momentum.
    Lion {
        /// Interpolation factors of the update and of the momentum.
        betas: [f64; 2],
    },
    /// LAMB.
    Lamb(Lamb),
    /// SGD.
    Sgd(Sgd),
    /// Adafactor.
    Adafactor(Adafactor),
    /// Muon.
    Muon(Muon),
}

/// Lion's numbers, as a configuration has them.
#[derive(Deserialize)]
struct Lion {
    betas: [f64; 2],
}

/// Elements of a block of 8-bit moments that share a scale.
pub const BLOCK_8BIT: u64 = 256;
/// Parameters with fewer elements keep f32 moments under 8-bit Adam, as in bitsandbytes.
pub const MIN_8BIT: u64 = 4096;

/// Which state of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StateName {
    /// First moment, or momentum: shaped as the parameter.
    Moment1,
    /// Second moment: shaped as the parameter.
    Moment2,
    /// Second moment's means over the last dim: the parameter's shape without it.
    Rows,
    /// Second moment's means over the dim before the last: the parameter's shape without that.
    Cols,
    /// The exponential moving average of the parameter: shaped as the parameter.
    Ema,
}

impl StateName {
    /// Short name, as in checkpoints.
    pub fn name(self) -> &'static str {
        match self {
            StateName::Moment1 => "moment1",
            StateName::Moment2 => "moment2",
            StateName::Rows => "moment2_rows",
            StateName::Cols => "moment2_cols",
            StateName::Ema => "ema",
        }
    }
}

/// How a state is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// f32, one for each element of the parameter: sliced with it.
    F32,
    /// One byte for each element and an f32 for each block of [`BLOCK_8BIT`]: sliced with it.
    Blocks8,
    /// f32 of the given length: the same on every rank.
    Whole,
}

/// One state of one parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Which.
    pub name: StateName,
    /// How.
    pub stored: Stored,
    /// Elements.
    pub numel: u64,
}

impl State {
    /// Bytes it takes on one rank that holds all of the parameter.
    pub fn bytes(&self) -> u64 {
        match self.stored {
            Stored::F32 | Stored::Whole => 4 * self.numel,
            Stored::Blocks8 => self.numel + 4 * self.numel.div_ceil(BLOCK_8BIT),
        }
    }
}

impl Optimizer {
    /// The optimizer that a configuration calls `kind`, with its numbers from `params`: a map of the fields of its struct. Names and
    /// meanings are DeepSpeed's, in which "Adam" is decoupled unless `adam_w_mode` is false, and "AdamW" always is.
    ///
    /// # Errors
    /// A name that is no optimizer's; a number that is missing, or of another type.
    pub fn named<'de, D: Deserializer<'de>>(kind: &str, params: D) -> Result<Optimizer, D::Error> {
        let decoupled = |a: Adam| Adam { l2: false, ..a };
        Ok(match kind {
            "AdamW" => Optimizer::Adam(decoupled(Adam::deserialize(params)?)),
            "Adam" | "FusedAdam" | "DeepSpeedCPUAdam" => {
                Optimizer::Adam(Adam::deserialize(params)?)
            }
            "AdamW8bit" => Optimizer::Adam8bit(decoupled(Adam::deserialize(params)?)),
            "Adam8bit" => Optimizer::Adam8bit(Adam::deserialize(params)?),
            "Lion" | "FusedLion" | "DeepSpeedCPULion" => {
                let Lion { betas } = Lion::deserialize(params)?;
                Optimizer::Lion { betas }
            }
            "Lamb" | "FusedLamb" => Optimizer::Lamb(Lamb::deserialize(params)?),
            "SGD" => Optimizer::Sgd(Sgd::deserialize(params)?),
            "Adafactor" => Optimizer::Adafactor(Adafactor::deserialize(params)?),
            "Muon" => Optimizer::Muon(Muon::deserialize(params)?),
            other => {
                return Err(D::Error::custom(format!(
                    "no optimizer is called {other:?}"
                )));
            }
        })
    }

    /// Its name, as configurations write it.
    pub fn name(&self) -> &'static str {
        match self {
            Optimizer::Adam(_) => "AdamW",
            Optimizer::Adam8bit(_) => "AdamW8bit",
            Optimizer::Lion { .. } => "Lion",
            Optimizer::Lamb(_) => "Lamb",
            Optimizer::Sgd(_) => "SGD",
            Optimizer::Adafactor(_) => "Adafactor",
            Optimizer::Muon(_) => "Muon",
        }
    }

    /// What it keeps for a parameter of this shape.
    pub fn states(&self, dims: &[u64]) -> Vec<State> {
        let numel: u64 = dims.iter().product();
        let like = |name, stored| State {
            name,
            stored,
            numel,
        };
        let both = |stored| {
            vec![
                like(StateName::Moment1, stored),
                like(StateName::Moment2, stored),
            ]
        };
        match self {
            Optimizer::Adam(_) | Optimizer::Lamb(_) => both(Stored::F32),
            Optimizer::Adam8bit(_) if numel < MIN_8BIT => both(Stored::F32),
            Optimizer::Adam8bit(_) => both(Stored::Blocks8),
            Optimizer::Lion { .. } | Optimizer::Muon(_) => {
                vec![like(StateName::Moment1, Stored::F32)]
            }
            Optimizer::Sgd(s) if s.momentum == 0.0 => vec![],
            Optimizer::Sgd(_) => vec![like(StateName::Moment1, Stored::F32)],
            Optimizer::Adafactor(a) => {
                let mut out = vec![];
                if a.beta1.is_some() {
                    out.push(like(StateName::Moment1, Stored::F32));
                }
                match dims {
                    [.., r, c] => out.extend([(StateName::Rows, *c), (StateName::Cols, *r)].map(
                        |(name, over)| State {
                            name,
                            stored: Stored::Whole,
                            numel: numel / over.max(1),
                        },
                    )),
                    _ => out.push(like(StateName::Moment2, Stored::F32)),
                }
                out
            }
        }
    }

    /// Whether each element is updated by itself, whatever its neighbours are.
    pub fn is_elementwise(&self) -> bool {
        matches!(
            self,
            Optimizer::Adam(_) | Optimizer::Lion { .. } | Optimizer::Sgd(_)
        )
    }

    /// States of the shape of the parameter that an elementwise optimizer keeps, all in f32.
    pub fn elementwise_states(&self) -> usize {
        self.states(&[1]).len()
    }

    /// Whether its update sums figures over the ranks: then every rank joins, whatever it owns.
    fn sums(&self) -> bool {
        matches!(self, Optimizer::Lamb(_) | Optimizer::Adafactor(_))
    }

    /// Whether a parameter of this shape must be seen whole to be updated.
    pub fn wants_whole(&self) -> bool {
        matches!(self, Optimizer::Muon(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(o: Optimizer, dims: &[u64]) -> u64 {
        o.states(dims).iter().map(State::bytes).sum()
    }

    #[test]
    fn state_bytes_per_parameter() {
        let dims = [128, 512];
        let n = 128 * 512;
        assert_eq!(bytes(Optimizer::Adam(Adam::default()), &dims), 8 * n);
        let eight = Optimizer::Adam8bit(Adam::default());
        assert_eq!(bytes(eight, &dims), 2 * n + 8 * n / 256);
        assert_eq!(bytes(eight, &[100]), 800, "small parameters stay in f32");
        assert_eq!(bytes(eight, &[4097]), 2 * 4097 + 2 * 4 * 17);
        let lion = Optimizer::Lion { betas: [0.9, 0.99] };
        assert_eq!(bytes(lion, &dims), 4 * n);
        let sgd = |momentum| {
            Optimizer::Sgd(Sgd {
                momentum,
                dampening: 0.0,
                nesterov: false,
            })
        };
        assert_eq!(bytes(sgd(0.0), &dims), 0);
        assert_eq!(bytes(sgd(0.9), &dims), 4 * n);
        let factor = |beta1| {
            Optimizer::Adafactor(Adafactor {
                eps: [1e-30, 1e-3],
                clip_threshold: 1.0,
                decay_rate: -0.8,
                beta1,
                scale_parameter: true,
                relative_step: true,
                warmup_init: false,
            })
        };
        assert_eq!(bytes(factor(None), &dims), 4 * (128 + 512));
        assert_eq!(bytes(factor(Some(0.9)), &dims), 4 * n + 4 * (128 + 512));
        assert_eq!(
            bytes(factor(None), &[512]),
            4 * 512,
            "vectors are not factored"
        );
        assert_eq!(bytes(factor(None), &[3, 128, 512]), 3 * 4 * (128 + 512));
    }

    #[test]
    fn muon_scales_by_shape() {
        let muon = |scale, extra_scale| Muon {
            momentum: 0.95,
            nesterov: true,
            ns_steps: 5,
            scale,
            extra_scale,
        };
        assert_eq!(muon(MuonScale::Shape, 1.0).factor(400, 100), 2.0);
        assert_eq!(muon(MuonScale::Shape, 1.0).factor(100, 400), 1.0);
        assert_eq!(muon(MuonScale::Spectral, 0.2).factor(100, 400), 4.0);
        assert_eq!(muon(MuonScale::UnitRms, 1.0).factor(100, 400), 0.5);
    }
}
