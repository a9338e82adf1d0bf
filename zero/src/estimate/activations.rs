//! Bytes of saved activations of a transformer layer in 16-bit training (Korthikanti et al., arXiv 2205.05198).

use super::Shape;

/// How a layer's activations are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivationCase {
    /// All of them.
    Full,
    /// All but the attention core, which is recomputed.
    Selective,
    /// All, with an attention that never stores its scores: `4 a s b` bytes of log-sum-exp instead of `5 a s^2 b`.
    Flash,
    /// The layer's input only.
    Recompute,
}

/// Bytes one layer keeps for `batch` sequences on one of `tp` tensor-parallel ranks; `sp` shards norms and dropout too.
///
/// `sbh(10 + 24/t + 5as/(ht))`; with sequence parallelism `(sbh/t)(34 + 5as/h)`; selective drops the `5as` term; recompute keeps
/// `2sbh` (`2sbh/t` with sequence parallelism).
pub fn activation_bytes(s: &Shape, batch: u64, tp: u64, sp: bool, case: ActivationCase) -> f64 {
    let t = tp.max(1) as f64;
    let sbh = s.seq as f64 * batch as f64 * s.hidden as f64;
    let whole = if sp { t } else { 1.0 };
    let rest = sbh * (10.0 / whole + 24.0 / t);
    let (a, seq, h) = (s.heads as f64, s.seq as f64, s.hidden as f64);
    match case {
        ActivationCase::Full => rest + sbh * 5.0 * a * seq / (h * t),
        ActivationCase::Selective => rest,
        ActivationCase::Flash => rest + 4.0 * a * seq * batch as f64 / t,
        ActivationCase::Recompute => 2.0 * sbh / whole,
    }
}

/// The same over all layers, and with [`ActivationCase::Recompute`] one layer's full activations while it is recomputed.
pub fn activation_total(s: &Shape, batch: u64, tp: u64, sp: bool, case: ActivationCase) -> f64 {
    let kept = s.layers as f64 * activation_bytes(s, batch, tp, sp, case);
    let working = match case {
        ActivationCase::Recompute => activation_bytes(s, batch, tp, sp, ActivationCase::Full),
        _ => 0.0,
    };
    kept + working
}
