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
    /// and back, once more each where the layer is recomputed. Keys and values on a ring go round once a forward and once a backward, and their gradients
    /// beside them and one step further, home.
    pub fn of(r: &Resolved, model: &Model) -> KeysOverCp {
        let [cp, tp] = [Axis::Cp, Axis::Tp].map(|a| u64::from(r.mesh.length(a)));
        let mesh = &r.settings.mesh;
        let inner = match mesh.cp_comm.as_str() {
            "a2a" => cp,
            "a2a+p2p" => mesh.cp_inner.unwrap_or(1).clamp(1, cp),
            _ => 1,
        };
        let (gathered, places) = (mesh.cp_comm == "all_gather", cp / inner);
        let recomputed = r.model.recompute() == Recompute::Full;
        let forwards = if recomputed { 2 } else { 1 };
        let layer = |a: &Attention| {
            let kv_heads = (a.kv_heads / tp).max(1);
            let width = |heads: u64| (heads * a.head_dim) as f64;
            if gathered {
                return 3.0 * 2.0 * width(kv_heads) * (cp - 1) as f64 / cp as f64;
            }
            let sent = (kv_heads..).step_by(kv_heads as usize);
            let sent = sent.into_iter().find(|n| n % inner == 0);
            let sent = width(sent.unwrap_or(kv_heads));
            let exchanged =
                (forwards + 1) as f64 * 2.0 * (width(a.heads / tp) + sent) * (inner - 1) as f64
                    / (inner * cp) as f64;
            let steps = (places - 1) * (forwards + 1) + if places > 1 { places } else { 0 };
            exchanged + 2.0 * sent * steps as f64 / cp as f64
        };
        let layers = model.stack.layers.iter();
        KeysOverCp {
            elements: layers.map(|l| layer(&l.attention.1)).sum(),
            formula: match (gathered, places, inner, recomputed) {
                (true, ..) => "6L g bsH(c-1)/c of key-value width H",
                (_, 1, _, false) => {
                    "4L g bs(h/t + H')(c-1)/c^2 of as many key-value heads H' as c divides"
                }
                (_, 1, _, true) => {
                    "6L g bs(h/t + H')(c-1)/c^2 of as many key-value heads H' as c divides"
                }
                (_, _, 1, false) => {
                    "6L g bsH(c-1)/c + 2L g bsH/c of key-value width H, round a ring"
                }
                (_, _, 1, true) => {
                    "8L g bsH(c-1)/c + 2L g bsH/c of key-value width H, round a ring"
                }
                (_, _, _, false) => {
                    "4L g bs(h/t + H')(i-1)/ic + 2L g bsH'(3c/i - 2)/c of i ranks that exchange heads, and a ring of these"
                }
                (_, _, _, true) => {
                    "6L g bs(h/t + H')(i-1)/ic + 2L g bsH'(4c/i - 3)/c of i ranks that exchange heads, and a ring of these"
                }
            },
        }
    }
}
