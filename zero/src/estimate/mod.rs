//! What a job will need before it runs: closed formulas for memory, traffic, activations and time, and nothing else. Each
//! function is pure and states its formula; where the engine's real layout (padding of shards) differs from the textbook, both
//! are here.

mod activations;
mod experts;
mod leaving;
mod ledger;
mod scaling;
mod states;
mod time;
mod traffic;

pub use activations::{ActivationCase, activation_bytes, activation_total};
pub use experts::{Experts, PUBLISHED};
pub use leaving::Leaving;
pub use ledger::{Apart, Ledger, Load, Machine, Offload, Row, Tier, largest, ledger};
pub use scaling::{Advice, Point, Speeds, advise, scaling};
pub use states::{Accounting, Padded, States, closed, held, largest_params, padded, states};
pub use time::{
    Flops, Profile, flops, mfu, profile, profiles, recognised, seconds_on, sixpt, years,
    years_of_seconds,
};
pub use traffic::{Accumulation, Traffic, all_reduce, hsdp, parameter_server, traffic, zeropp};

/// Dimensions of a decoder as the formulas need them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Layers.
    pub layers: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Attention heads.
    pub heads: u64,
    /// Rows of the embedding.
    pub vocab: u64,
    /// Tokens of a sequence.
    pub seq: u64,
}

impl Shape {
    /// A decoder of about so many parameters, `12 L h^2` with `h = 128 L` (the proportions of the 175B model of GPT-3, which
    /// this gives back exactly as 96 layers of 12288).
    pub fn of_params(params: u64) -> Shape {
        let layers = ((params as f64 / (12.0 * 128.0 * 128.0)).cbrt().round() as u64).max(1);
        // For this number of layers, the width that meets the count, in steps a head can have.
        let exact = (params as f64 / (12.0 * layers as f64)).sqrt();
        let step = if exact >= 1024.0 { 128.0 } else { 8.0 };
        let hidden = ((exact / step).round() as u64).max(1) * step as u64;
        let heads = (hidden / 128).max(1);
        Shape {
            layers,
            hidden,
            heads,
            vocab: 50257,
            seq: 1024,
        }
    }

    /// Parameters of the largest unit that is gathered at once: a layer (`12 h^2`), or the embedding if that is larger.
    pub fn largest_unit(&self) -> u64 {
        let layer = 12u64
            .saturating_mul(self.hidden)
            .saturating_mul(self.hidden);
        layer.max(self.vocab.saturating_mul(self.hidden))
    }
}
