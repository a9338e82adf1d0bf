//! Keys and values over the ranks of `mesh.cp`, by the formulas of docs/context.md.

use crossweave_axes::Axis;
use crossweave_config::{Recompute, Resolved};
use crossweave_nn::desc::{Attention, Model};

/// The traffic of keys and values over `mesh.cp`.
#[derive(Clone, Copy, Debug)]
pub struct KeysOverCp {
    /// Elements that a rank sends in all layers for a token of its micro-batch's whole rows, forward and backward.
    pub elements: f64,
    /// The formula of a layer.
    pub formula: &'static str,
}

impl KeysOverCp {
    /// That of a model's layers. Gathered keys and values are gathered once more for the backward, and their gradients scattered. Exchanged heads go there
    /// and back, once more each where the layer is recomputed.
    pub fn of(r: &Resolved, model: &Model) -> KeysOverCp {
        let [cp, tp] = [Axis::Cp, Axis::Tp].map(|a| u64::from(r.mesh.length(a)));
        let by_heads = r.settings.mesh.cp_comm == "a2a";
        let recomputed = r.model.recompute() == Recompute::Full;
        let (c, away) = (cp as f64, (cp - 1) as f64);
        let layer = |a: &Attention| {
            let kv_heads = (a.kv_heads / tp).max(1);
            let width = |heads: u64| (heads * a.head_dim) as f64;
            match by_heads {
                false => 3.0 * 2.0 * width(kv_heads) * away / c,
                true => {
                    let sent = (kv_heads..)
                        .step_by(kv_heads as usize)
                        .find(|n| n % cp == 0);
                    let times = if recomputed { 3.0 } else { 2.0 };
                    times * 2.0 * (width(a.heads / tp) + width(sent.unwrap_or(kv_heads))) * away
                        / (c * c)
                }
            }
        };
        let layers = model.stack.layers.iter();
        KeysOverCp {
            elements: layers.map(|l| layer(&l.attention.1)).sum(),
            formula: match (by_heads, recomputed) {
                (false, _) => "6L g bsH(c-1)/c of key-value width H",
                (true, false) => {
                    "4L g bs(h/t + H')(c-1)/c^2 of as many key-value heads H' as c divides"
                }
                (true, true) => {
                    "6L g bs(h/t + H')(c-1)/c^2 of as many key-value heads H' as c divides"
                }
            },
        }
    }
}
