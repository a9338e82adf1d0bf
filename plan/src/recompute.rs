//! What a job recomputes in the backward instead of keeping it: one choice, from the config to the formulas.

use crate::Keep;
use serde::{Deserialize, Serialize};

/// The activations that the backward computes again instead of keeping them. Configs spell it in lower case (`model.recompute`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// Nothing: everything is kept.
    #[default]
    None,
    /// Whole units, from their inputs.
    Full,
    /// Norms and activations, which are cheap; the rest is kept.
    Selective,
}

impl Recompute {
    /// Returns the activations that a forward leaves for its backward.
    pub fn keep(self) -> Keep {
        match self {
            Recompute::None => Keep::All,
            Recompute::Full => Keep::Input,
            Recompute::Selective => Keep::Selective,
        }
    }
}
