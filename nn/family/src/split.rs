//! Which models can be cut over how many ranks (tensor parallelism): each rank has whole heads, and an equal part of the inner width.

use crate::desc::{Attention, Layer, Model, Over};

/// Why a model is not cut over so many ranks: one sentence, and what would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitError {
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub fix: String,
}

/// Can the layers of a model be cut over `tp` ranks, with adapters of such a dropout?
///
/// # Errors
/// Heads or an inner width that are not divided; what needs all heads of a layer, or all of the inner width, at once.
pub fn check(model: &Model, lora_dropout: f64, tp: u64) -> std::result::Result<(), SplitError> {
    let wrong = |what: String, fix: &str| {
        let fix = fix.to_string();
        Err(SplitError { what, fix })
    };
    if tp == 1 {
        return Ok(());
    }
    let decoder = model.decoder.iter().flat_map(|d| &d.layers);
    let layers: Vec<&Layer> = model.stack.layers.iter().chain(decoder).collect();
    let sizes = layers.iter().flat_map(|l| sizes(l));
    let all = sizes.clone().fold(0, |n, (_, size)| gcd(n, size));
    if let Some((what, size)) = sizes.clone().find(|(_, n)| !n.is_multiple_of(tp)) {
        let fits: Vec<String> = (1..=all)
            .filter(|n| all.is_multiple_of(*n))
            .map(|n| n.to_string())
            .collect();
        let fix = format!(
            "set it to a number that divides them all: {}",
            fits.join(", ")
        );
        return wrong(
            format!("{tp} does not divide the {size} {what} of a layer"),
            &fix,
        );
    }
    for l in &layers {
        let norm = l.attention.1.qk_norm.as_ref().map(|n| n.over);
        if let Some(Over::All | Over::Apart) = norm {
            let what = "queries and keys are normed by parameters of all heads of a layer";
            return wrong(format!("{what}, which are not cut yet"), "set it to 1");
        }
        if l.inner_dropout > 0.0 {
            return wrong(
                "dropout within the MLP is not cut yet".into(),
                "set it to 1, or train without that dropout",
            );
        }
    }
    match lora_dropout > 0.0 {
        true => wrong(
            "model.lora.dropout of an input that is cut is not available yet".into(),
            "set model.lora.dropout to 0, or mesh.tp to 1",
        ),
        false => Ok(()),
    }
}

/// What is divided of a layer.
fn sizes(l: &Layer) -> Vec<(&'static str, u64)> {
    let of = |a: &Attention| [("query heads", a.heads), ("key-value heads", a.kv_heads)];
    let mut all = of(&l.attention.1).to_vec();
    all.extend(
        l.cross
            .as_ref()
            .map(|(_, c)| ("heads of cross-attention", c.heads)),
    );
    all.push(("places of the inner width", l.mlp.1.width));
    all
}

fn gcd(a: u64, b: u64) -> u64 {
    match b {
        0 => a,
        _ => gcd(b, a % b),
    }
}
