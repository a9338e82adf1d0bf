//! Keys that Llama and its descendants share, and what their presets add.

use crate::Dims;
use crate::keys::*;

/// The values that `transformers` takes for the keys of [`sizes`] where they are absent.
pub struct Defaults {
    pub vocab: &'static str,
    pub hidden: &'static str,
    pub mlp: &'static str,
    pub layers: &'static str,
    pub heads: &'static str,
    pub kv_heads: &'static str,
    pub head_dim: &'static str,
    pub positions: &'static str,
    pub eps: &'static str,
    pub tied: &'static str,
    pub pad: &'static str,
}

/// The sizes of Llama and its descendants.
pub const fn sizes(d: Defaults) -> [Key; 13] {
    sizes_by("rms_norm_eps", d)
}

/// The same where norms have another name for what they add.
#[rustfmt::skip]
pub const fn sizes_by(eps: &'static str, d: Defaults) -> [Key; 13] {
    [
        vocab(d.vocab),
        width("hidden_size", d.hidden, "width of the residual stream").required(),
        width("intermediate_size", d.mlp, "width of the MLP; absent = 8/3 x hidden_size rounded up to 64").derived(Derive::Mlp),
        layers("num_hidden_layers", d.layers, "number of blocks").required(),
        width("num_attention_heads", d.heads, "query heads").required(),
        width("num_key_value_heads", d.kv_heads, "key/value heads; absent = num_attention_heads (presets: half of them)").derived(Derive::KvHeads).nullable(),
        width("head_dim", d.head_dim, "width of a head; absent = hidden_size / num_attention_heads").derived(Derive::HeadDim).nullable(),
        ids("max_position_embeddings", d.positions, "longest sequence").fresh("2048"),
        positive(eps, d.eps, "added to the variance or the mean square (presets: 1e-5)"),
        tied(d.tied),
        padding(d.pad),
        dropout("attention_dropout", "0.0", "dropout of attention weights"),
        init(),
    ]
}

/// The place of dropout among [`sizes_by`], before the last.
const DROPOUT: usize = 11;

/// The same with another dropout of attention weights where the key is absent.
pub const fn with_attention_dropout(default: &'static str, mut keys: [Key; 13]) -> [Key; 13] {
    keys[DROPOUT].default = default;
    keys
}

/// The same of a family that has no dropout.
pub const fn without_dropout(keys: [Key; 13]) -> [Key; 12] {
    let mut out = [keys[DROPOUT + 1]; 12];
    let mut i = 0;
    while i < DROPOUT {
        out[i] = keys[i];
        i += 1;
    }
    out
}

/// Returns the keys that [`sizes_by`] needs beside dimensions, for a family whose norms have
/// another name.
pub fn preset_heads(d: &Dims) -> Vec<(&'static str, String)> {
    let mut all = preset(d);
    all.retain(|(name, _)| *name != "rms_norm_eps");
    all
}

/// Half as many key-value heads as there are query heads in the end, whether from the preset or given.
pub fn preset(d: &Dims) -> Vec<(&'static str, String)> {
    vec![
        ("num_key_value_heads", (d.heads / 2).max(1).to_string()),
        ("rms_norm_eps", "1e-5".into()),
        ("tie_word_embeddings", "true".into()),
    ]
}

/// Returns the distance at which the last of so many buckets begins, and their number: half of
/// those to one side are for one distance each.
pub fn buckets(c: &Config, far: &str, rows: &str) -> Result<[u64; 2], ConfigError> {
    let (last, n) = (c.int(far)?, c.int(rows)?);
    match () {
        _ if n < 4 => bad(
            rows,
            format!("{n}: give 4 buckets or more, two to each side"),
        ),
        _ if last <= n / 2 => bad(
            far,
            format!(
                "{last} is not beyond the {} distances that have a bucket each",
                n / 2
            ),
        ),
        _ => Ok([last, n]),
    }
}
