//! Which models can be cut over how many ranks (tensor parallelism): each rank has whole heads, an equal part of the inner width,
//! and rows of the vocabulary. And whose rows can be cut (sequence and context parallelism), and whose experts ranks can have some each of.

use crate::desc::{Attention, Layer, Model, NormKind, Over, Positions, Qkv};

/// The reason for which a model is not cut over so many ranks, in one sentence, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitError {
    /// The fault.
    pub what: String,
    /// The remedy.
    pub fix: String,
}

/// Can the layers of a model be cut over `tp` ranks?
///
/// # Errors
/// Heads or an inner width that are not divided.
pub fn check(model: &Model, tp: u64) -> std::result::Result<(), SplitError> {
    let wrong = |what: String, fix: &str| {
        let fix = fix.to_string();
        Err(SplitError { what, fix })
    };
    if tp == 1 {
        return Ok(());
    }
    let decoder = model.decoder.iter().flat_map(|d| &d.layers);
    let layers: Vec<&Layer> = model.stack.layers.iter().chain(decoder).collect();
    let wrong_size = |tp: u64| {
        let of = layers.iter().flat_map(|l| sizes(l, tp));
        of.into_iter().find(|(_, n)| !n.is_multiple_of(tp))
    };
    if let Some((what, size)) = wrong_size(tp) {
        let most = layers.iter().map(|l| l.attention.1.heads).min();
        let fits = (1..=most.unwrap_or(1)).filter(|n| wrong_size(*n).is_none());
        let fits: Vec<String> = fits.map(|n| n.to_string()).collect();
        let fix = format!(
            "set it to a number that divides them all: {}",
            fits.join(", ")
        );
        return wrong(
            format!("{tp} does not divide the {size} {what} of a layer"),
            &fix,
        );
    }
    let other = |l: &&&Layer| {
        let norm = l.attention.1.qk_norm.as_ref();
        let all = norm.filter(|n| n.over == Over::All);
        all.is_some_and(|n| n.norms.iter().any(|n| n.kind != NormKind::Rms))
    };
    match layers.iter().find(other) {
        Some(_) => wrong(
            "queries and keys are normed over all heads by another norm than RMS norm".into(),
            "set it to 1",
        ),
        None => Ok(()),
    }
}

/// Can `etp` ranks have equal parts of each expert?
///
/// # Errors
/// An inner width that is not divided.
pub fn parts_of_experts(model: &Model, etp: u64) -> std::result::Result<(), SplitError> {
    let widths: Vec<u64> = model.routed().map(|e| e.width).collect();
    let divide = |n: &u64| widths.iter().all(|w| w.is_multiple_of((*n).max(1)));
    if divide(&etp) {
        return Ok(());
    }
    let fits = (1..=etp).filter(divide).map(|n| n.to_string());
    let fits: Vec<String> = fits.collect();
    Err(SplitError {
        what: format!(
            "{etp} ranks do not divide the inner width of every expert ({}); where it is not set it is mesh.tp",
            widths
                .iter()
                .map(u64::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        ),
        fix: format!("set it to a number that does: {}", fits.join(", ")),
    })
}

/// Can `ep` ranks have as many of the experts each?
///
/// # Errors
/// A model without experts; a number of them that is not divided.
pub fn experts(model: &Model, ep: u64) -> std::result::Result<(), SplitError> {
    let counts: Vec<u64> = model.routed().map(|e| e.count).collect();
    let (what, fix) = match counts.iter().find(|n| !n.is_multiple_of(ep.max(1))) {
        _ if ep <= 1 => return Ok(()),
        None if !counts.is_empty() => return Ok(()),
        None => (
            "the model has no experts that ranks could have some each of".into(),
            "set it to 1, or put experts into the model with model.moe".into(),
        ),
        Some(count) => {
            let divide = |n: &u64| counts.iter().all(|c| c.is_multiple_of(*n));
            let fits = (1..=*count).filter(divide).map(|n| n.to_string());
            let fits: Vec<String> = fits.collect();
            (
                format!("{ep} ranks do not divide the {count} experts of a layer"),
                format!(
                    "set it to a number that divides those of every layer: {}",
                    fits.join(", ")
                ),
            )
        }
    };
    Err(SplitError { what, fix })
}

/// Can the tokens of rows be cut over `tp` ranks between attention and MLP (sequence parallelism)?
///
/// # Errors
/// Tokens that are not divided; a model whose hidden states are not all of one row of text.
pub fn sequence(model: &Model, tp: u64, tokens: u64) -> std::result::Result<(), SplitError> {
    let wrong = |what: String, fix: &str| {
        let fix = fix.to_string();
        Err(SplitError { what, fix })
    };
    let other = several_rows(model);
    if let Some(why) = other {
        return wrong(
            format!("{why}, and its tokens are not cut over ranks"),
            "set it to \"auto\" or false",
        );
    }
    if tokens.is_multiple_of(tp.max(1)) {
        return Ok(());
    }
    // Experts take the tokens of a rank alone, and leave no choice.
    let (whose, out) = match model.routed().next() {
        Some(_) => (", of which each gives its own to experts", "mesh.tp to 1"),
        None => ("", "it to \"auto\" or false"),
    };
    wrong(
        format!("the {tp} ranks of mesh.tp do not divide the {tokens} tokens of a row{whose}"),
        &format!(
            "make rows {} tokens long (data.seq_len), or set {out}",
            tokens.next_multiple_of(tp)
        ),
    )
}

/// Returns the reason for which the tokens of a model are not those of one row of text, each looked at by itself but for attention; none where they are.
fn several_rows(model: &Model) -> Option<&'static str> {
    let kinds = model.stack.embed.kinds.map_or(0, |k| k.read);
    match () {
        _ if model.vision.is_some() => Some("features of images stand among the tokens"),
        _ if model.decoder.is_some() => {
            Some("a decoder reads what the encoder gives of other rows")
        }
        _ if kinds > 0 || model.head.pair.is_some_and(|p| p.labelled) => {
            Some("a second head reads the first token of each row")
        }
        _ => None,
    }
}

/// Can the rows of a model be cut over ranks (context parallelism)?
///
/// # Errors
/// A model whose tokens are not all of one row of text, or whose biases by distance are learned.
pub fn rows(model: &Model) -> std::result::Result<(), SplitError> {
    let learned = |l: &Layer| matches!(l.attention.1.positions, Positions::Buckets(_));
    let other = several_rows(model).or_else(|| {
        let some = model.stack.layers.iter().any(learned);
        some.then_some("biases by distance are learned of whole rows")
    });
    match other {
        None => Ok(()),
        Some(why) => Err(SplitError {
            what: format!("{why}, and its rows are not cut over ranks"),
            fix: "set it to 1".into(),
        }),
    }
}

/// Can queries meet keys of rows that are cut over ranks, of which `exchange` exchange tokens for heads (1: none) and layers are cut over `tp`? `gathered`:
/// they meet by gathered keys.
///
/// # Errors
/// Heads that the ranks do not divide; gathered keys under a window in attention that sees both ways.
pub fn meeting(
    model: &Model,
    [exchange, tp]: [u64; 2],
    gathered: bool,
) -> std::result::Result<(), SplitError> {
    let each = model.stack.layers.iter().map(|l| &l.attention.1);
    let wrong = |what: String, fix: &str| {
        let fix = fix.to_string();
        Err(SplitError { what, fix })
    };
    for a in each {
        let heads = a.heads / tp.max(1);
        if !heads.is_multiple_of(exchange) {
            return wrong(
                format!(
                    "{exchange} ranks that exchange tokens for heads do not divide the {heads} query heads that a rank has of a layer"
                ),
                "set it to \"all_gather\" or \"p2p\"",
            );
        }
        if gathered && a.window > 0 && !a.causal {
            return wrong(
                "a window of attention that sees both ways is not cut".into(),
                "set it to \"p2p\" or \"a2a\"",
            );
        }
    }
    Ok(())
}

/// Does attention of every layer see earlier tokens only?
pub fn is_causal(model: &Model) -> bool {
    model.stack.layers.iter().all(|l| l.attention.1.causal)
}

/// Are there fewer key-value heads than ranks, so that several ranks have the same one? Where their projections are matrices of their own every
/// rank computes all of these heads; where they are fused with that of queries, each rank computes a part of every head, which are gathered.
pub fn shares(a: &Attention, tp: u64) -> bool {
    let fewer = a.kv_heads > 0 && a.kv_heads < tp && tp.is_multiple_of(a.kv_heads);
    fewer
        && match a.qkv {
            Qkv::Separate(_) => true,
            Qkv::Fused(_) => a.qk_norm.is_none(),
            Qkv::ByHead(_) => false,
        }
}

/// Are the rows of the vocabulary cut over so many ranks too? The first ranks have equal numbers of rows and the last what is left; where that is
/// nothing, and where ids have no exact f32, every rank has them all.
pub fn vocabulary(model: &Model, tp: u64) -> bool {
    let each = model.vocab.div_ceil(tp.max(1));
    tp > 1 && each * (tp - 1) < model.vocab && model.vocab <= 1 << 24
}

/// Returns the sizes of a layer that are divided.
fn sizes(l: &Layer, tp: u64) -> Vec<(&'static str, u64)> {
    let a = &l.attention.1;
    let mut all = vec![("query heads", a.heads)];
    match (shares(a, tp), a.qkv) {
        (false, _) => all.push(("key-value heads", a.kv_heads)),
        (true, Qkv::Fused(_)) => {
            all.push(("places of the key-value heads", a.kv_heads * a.head_dim))
        }
        (true, _) => {}
    }
    all.extend(
        l.cross
            .as_ref()
            .map(|(_, c)| ("heads of cross-attention", c.heads)),
    );
    if l.experts.as_ref().is_none_or(|e| e.beside.is_some()) {
        all.push(("places of the inner width", l.mlp.1.width));
    }
    all
}
