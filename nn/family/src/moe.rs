//! Experts in the place of the MLPs of a model whose family has none: how many each layer has, and how its routers learn. A `config.json` has them
//! under a key of its own, which `transformers` does not know.

use crate::desc::{Balance, Capacity, Experts, Linear, Model, ROOM, Tokens, Up};
use crate::keys::{ConfigError, bad};
use serde::{Deserialize, Serialize};

/// The key of a `config.json`.
pub const KEY: &str = "crossweave_moe";

/// Most experts of a layer.
const MOST: u64 = 1 << 16;

/// Experts of each layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Counts {
    /// As many in every layer.
    All(u64),
    /// One number for each layer, by commas: 0 for a layer that keeps its MLP.
    Each(String),
}

/// The tokens over which the balance of a layer's experts is looked at, or which share the room that these have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Those of each sequence.
    #[default]
    Sequence,
    /// Those of a micro-batch.
    MicroBatch,
}

impl Scope {
    fn tokens(self) -> Tokens {
        match self {
            Scope::Sequence => Tokens::Sequence,
            Scope::MicroBatch => Tokens::MicroBatch,
        }
    }
}

/// The tokens by which the balance of experts is judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Judged {
    /// All tokens.
    #[default]
    All,
    /// Those whose labels count.
    Counted,
}

/// The tokens that stay where an expert has no room for all that choose it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// Those of the largest probability.
    #[default]
    Probs,
    /// Those that come first in their group.
    Position,
}

/// Does a key of a saved model say what its absence does?
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Experts in the place of MLPs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moe {
    /// Experts of each layer.
    pub experts: Counts,
    /// Experts of a token.
    pub top_k: u64,
    /// Inner width of an expert; absent: that of the MLP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub width: Option<u64>,
    /// The gates of a token are divided by their sum.
    pub normalize: bool,
    /// The MLP of a layer with experts stays beside them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub residual: bool,
    /// Factor of the loss that is least where experts have equally many tokens.
    pub aux_loss_coef: f64,
    /// The tokens over which that loss is a mean.
    pub aux_loss_scope: Scope,
    /// The tokens in that loss.
    #[serde(default, skip_serializing_if = "is_default")]
    pub aux_loss_tokens: Judged,
    /// Factor of the mean square of the log of the sum of exponentials of a token's scores.
    pub z_loss_coef: f64,
    /// Room of an expert over what it would need if all had as many tokens; absent: it takes all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_factor: Option<f64>,
    /// Room that it has at least, in tokens.
    #[serde(default, skip_serializing_if = "is_default")]
    pub min_capacity: u64,
    /// The tokens that share it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub capacity_scope: Scope,
    /// The tokens that stay.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: Priority,
    /// The gates that a token keeps are divided by their sum.
    #[serde(default, skip_serializing_if = "is_default")]
    pub renormalize: bool,
}

impl Moe {
    /// The experts of each of so many layers.
    fn counts(&self, layers: usize) -> Result<Vec<u64>, ConfigError> {
        let all = match &self.experts {
            Counts::All(n) => vec![*n; layers],
            Counts::Each(text) => {
                let numbers = text.split(',').map(|n| n.trim().parse::<u64>());
                match numbers.collect::<Result<Vec<u64>, _>>() {
                    Ok(all) => all,
                    Err(_) => {
                        let what = format!("{text:?} is not a list of whole numbers by commas");
                        return bad("moe.experts", what);
                    }
                }
            }
        };
        match all.iter().max() {
            _ if all.len() != layers => bad(
                "moe.experts",
                format!("{} numbers for {layers} layers", all.len()),
            ),
            None | Some(0) => bad("moe.experts", "no layer has an expert; leave moe out"),
            Some(n) if *n > MOST => bad(
                "moe.experts",
                format!("{n} is more than the {MOST} allowed"),
            ),
            _ => Ok(all),
        }
    }

    /// The room of each expert.
    fn capacity(&self) -> Result<Option<Capacity>, ConfigError> {
        let Some(factor) = self.capacity_factor else {
            let others = [
                ("moe.min_capacity", is_default(&self.min_capacity)),
                ("moe.capacity_scope", is_default(&self.capacity_scope)),
                ("moe.priority", is_default(&self.priority)),
                ("moe.renormalize", !self.renormalize),
            ];
            return match others.into_iter().find(|(_, default)| !default) {
                Some((key, _)) => bad(
                    key,
                    "without moe.capacity_factor an expert takes every token that chooses it",
                ),
                None => Ok(None),
            };
        };
        if !factor.is_finite() || factor <= 0.0 {
            return bad(
                "moe.capacity_factor",
                format!("{factor} is not a number above 0"),
            );
        }
        if self.renormalize && !self.normalize {
            return bad(
                "moe.renormalize",
                "gates that are not divided by their sum (moe.normalize) are not divided by that of those that stay",
            );
        }
        Ok(Some(Capacity {
            factor,
            least: self.min_capacity,
            over: self.capacity_scope.tokens(),
            by_probability: self.priority == Priority::Probs,
            renormalizes: self.renormalize,
        }))
    }

    /// Puts them into a model.
    ///
    /// # Errors
    /// Numbers that do not fit; a model whose layers cannot have experts.
    pub fn apply(&self, family: &str, m: &mut Model) -> Result<(), ConfigError> {
        let (counts, capacity) = (self.counts(m.stack.layers.len())?, self.capacity()?);
        if m.decoder.is_some() || m.vision.is_some() || m.stack.embed.kinds.is_some() {
            let what =
                format!("experts stand in decoders of text alone, and a {family} model is none");
            return bad("moe", what);
        }
        if m.routed().next().is_some() {
            let what = format!("a {family} model has experts of its own; its keys say how many");
            return bad("moe", what);
        }
        if self.width == Some(0) || self.width.is_some_and(|w| w > 1 << 22) {
            return bad("moe.width", "not a width");
        }
        for (key, x) in [
            ("moe.aux_loss_coef", self.aux_loss_coef),
            ("moe.z_loss_coef", self.z_loss_coef),
        ] {
            if !x.is_finite() || x < 0.0 {
                return bad(key, format!("{x} is not a number from 0 on"));
            }
        }
        for (i, (l, count)) in m.stack.layers.iter_mut().zip(counts).enumerate() {
            if count == 0 {
                continue;
            }
            if self.top_k == 0 || self.top_k > count {
                let what = format!(
                    "{} experts of a token, and layer {i} has {count}",
                    self.top_k
                );
                return bad("moe.top_k", what);
            }
            if l.inner_dropout > 0.0 {
                let what = "dropout behind the activation is not built for experts; set it to 0";
                return bad("moe", what);
            }
            let mlp = &l.mlp.1;
            l.experts = Some(Experts {
                router: "moe.router",
                up: "moe.experts.up",
                down: "moe.experts.down",
                count,
                chosen: self.top_k,
                whole: self.normalize,
                gated: !matches!(mlp.up, Up::Plain(_)),
                width: self.width.unwrap_or(mlp.width),
                act: mlp.act,
                beside: self.residual.then_some(Linear {
                    name: "moe.coefficient",
                    bias: true,
                }),
                capacity,
                room: ROOM,
            });
        }
        m.balance = Some(Balance {
            coefficient: self.aux_loss_coef,
            z: self.z_loss_coef,
            over: self.aux_loss_scope.tokens(),
            counted: self.aux_loss_tokens == Judged::Counted,
        });
        Ok(())
    }
}
