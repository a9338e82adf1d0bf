//! Keys of a `config.json` that a family has no row for: what the class of `transformers` does not read changes nothing there, and is a
//! warning; what it reads is refused, and so is a key of another family whose value says that the model is another one.

use crate::keys::{Config, ConfigError, EPS, IDS, Key, Kind, bad, same};
use crate::reads::READS;
use crate::{Family, families};
use serde_json::{Map, Value, json};

/// Values that a config class does not keep as they are given: family, key, the value, and what it becomes. `transformers` 5.23 takes the
/// `gelu` of Gemma's first release for its approximation by tanh; 4.57 computes the exact one.
const REWRITTEN: [(&str, &str, &str, &str); 1] =
    [("gemma", "hidden_act", "gelu", "gelu_pytorch_tanh")];

/// Keys of families here whose switch is on where nothing is changed.
const ON: [&str; 3] = [
    "scale_attn_weights",
    "layer_norm_elementwise_affine",
    "do_layer_norm_before",
];

/// Keys that 4.57 and 5.23 take differently where they are absent: family, key, and what each takes.
const DIFFERS: [(&str, &str, &str); 3] = [
    (
        "cohere",
        "rope_theta",
        "transformers 4.57 takes 10000 and 5.23 500000",
    ),
    (
        "olmo3",
        "rope_theta",
        "transformers 4.57 takes 10000 and 5.23 500000",
    ),
    (
        "mt5",
        "tie_word_embeddings",
        "transformers 4.57 gives the head weights of its own and 5.23 ties it to the embedding",
    ),
];

/// Families whose class in 5.x reads `rope_parameters` by kind of layer only, and passes over settings that stand there by themselves.
const BY_KIND: [&str; 2] = ["gemma3_text", "olmo3"];

/// The members that some kind of rotary scaling reads.
const MEMBERS: [&str; 17] = [
    "rope_type",
    "type",
    "rope_theta",
    "partial_rotary_factor",
    "factor",
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "short_factor",
    "long_factor",
    "low_freq_factor",
    "high_freq_factor",
    "llama_4_scaling_beta",
];

/// The row of a family in the table of what its class reads: other names of keys, and the keys.
fn row(family: &Family) -> (&'static str, &'static str) {
    let found = READS.iter().find(|r| r.0 == family.name);
    found.map_or(("", ""), |r| (r.1, r.2))
}

/// Returns the default of the key where the class of the family reads it; `None` where it does not.
fn read(family: &Family, name: &str) -> Option<Option<Value>> {
    row(family).1.split(' ').find_map(|entry| {
        let (key, default) = entry.split_once('=').unwrap_or((entry, ""));
        (key == name).then(|| serde_json::from_str(default).ok())
    })
}

/// The same file with every key under the name that the family has for it, and values as the config class of `transformers` keeps them.
///
/// # Errors
/// Two names of one key with different values.
pub(crate) fn own_names(
    family: &Family,
    json: &Map<String, Value>,
) -> Result<Map<String, Value>, ConfigError> {
    let mut out = json.clone();
    for (alias, name) in row(family).0.split(' ').filter_map(|w| w.split_once('=')) {
        let Some(v) = out.remove(alias).filter(|v| !v.is_null()) else {
            continue;
        };
        match out.get(name).filter(|own| !own.is_null()) {
            Some(own) if !same(own, &v) => {
                return bad(
                    alias,
                    format!("{v}, and {name}, of which it is another name, is {own}: keep one"),
                );
            }
            _ => _ = out.insert(name.into(), v),
        }
    }
    rewrite(family, &mut out);
    Ok(out)
}

/// Replaces the values that the config class replaces.
pub(crate) fn rewrite(family: &Family, map: &mut Map<String, Value>) {
    for (_, key, given, kept) in REWRITTEN.iter().filter(|r| r.0 == family.name) {
        if map.get(*key).and_then(Value::as_str) == Some(given) {
            map.insert((*key).into(), json!(kept));
        }
    }
}

/// Returns true if a key that the family has no row for is worth a warning.
///
/// # Errors
/// A key that the class reads, at a value that is not the one it has where it is absent; a key of another family that says that the model
/// is another one.
pub(crate) fn unread(config: &Config, name: &str, value: &Value) -> Result<bool, ConfigError> {
    let family = config.family;
    let mut rows = families().filter_map(|f| Some((f, f.key(name)?)));
    let neutral = rows.any(|(owner, key)| is_neutral(config, owner, key, value));
    let (shown, whose) = (shortened(value), owners(name));
    let class = family.architecture;
    match read(family, name) {
        // Only `longrope` asks for it, and not of every family.
        Some(_) if name == "original_max_position_embeddings" && !is_long(config) => Ok(true),
        Some(None) if is_off(value) => Ok(false),
        Some(Some(default)) if same(&default, value) => Ok(false),
        Some(_) if neutral => Ok(false),
        Some(_) => bad(
            name,
            format!(
                "{shown}: {class} of transformers reads it, and it is not understood in a {} model ({whose}); \
                 remove it if the model does not depend on it",
                family.name
            ),
        ),
        None if neutral || families().all(|f| f.key(name).is_none()) => Ok(true),
        None => bad(
            name,
            format!(
                "{shown}: not understood in a {} model ({whose}): {class} of transformers does not read it, and the value says that the \
                 model is another one; remove it if the weights are of that class",
                family.name
            ),
        ),
    }
}

/// The error of a key that a new model, or one that is changed, does not have.
pub(crate) fn unknown<T>(family: &Family, name: &str, value: &Value) -> Result<T, ConfigError> {
    let (shown, whose) = (shortened(value), owners(name));
    bad(
        name,
        format!(
            "{shown}: not understood in a {} model ({whose}); remove it if the model does not depend on it",
            family.name
        ),
    )
}

/// Names the families that have the key.
fn owners(name: &str) -> String {
    let all: Vec<&str> = families()
        .filter(|f| f.key(name).is_some())
        .map(|f| f.name)
        .collect();
    match all.is_empty() {
        true => "no family here has it".to_string(),
        false => format!("families that have it: {}", all.join(", ")),
    }
}

/// Settings in `rope_parameters` that are not by kind of layer.
///
/// # Errors
/// A family whose class passes over them.
pub(crate) fn flat(family: &Family) -> Result<(), ConfigError> {
    match BY_KIND.contains(&family.name) {
        true => bad(
            "rope_parameters",
            "transformers reads full_attention and sliding_attention of this family here, and passes over settings of all layers: write both",
        ),
        false => Ok(()),
    }
}

/// A file that leaves a key out which two versions of `transformers` then take differently, or gives one that they read differently: the file
/// as it is, and with `rope_parameters` as the keys of 4.x.
///
/// # Errors
/// That.
pub(crate) fn says_enough(
    family: &Family,
    json: &Map<String, Value>,
    given: &Map<String, Value>,
) -> Result<(), ConfigError> {
    let absent = |key| given.get(key).is_none_or(Value::is_null);
    let null = |key| json.get(key).is_none_or(Value::is_null);
    let theta = given.get("rope_theta").unwrap_or(&Value::Null);
    let sees_all = given
        .get("layer_types")
        .and_then(Value::as_array)
        .is_some_and(|all| all.iter().all(|k| k == "full_attention"));
    match family.name {
        "olmo3"
            if null("rope_parameters")
                && !absent("rope_theta")
                && !sees_all
                && !same(theta, &json!(5e5)) =>
        {
            return bad(
                "rope_theta",
                format!(
                    "{theta}: transformers 4.57 takes it for the layers with a window too, and 5.23 takes 500000 there: \
                     write rope_parameters with full_attention and sliding_attention"
                ),
            );
        }
        "nemotron" if null("rope_parameters") && !null("rope_scaling") => {
            return bad(
                "rope_scaling",
                "transformers 4.57 passes over it in this family and 5.23 reads it: write it as rope_parameters if it is meant",
            );
        }
        "ministral3"
            if null("rope_parameters")
                && null("rope_scaling")
                && !absent("rope_theta")
                && !same(theta, &json!(1e6)) =>
        {
            return bad(
                "rope_theta",
                format!(
                    "{theta}: transformers takes 1000000 where no scaling is given: write rope_parameters"
                ),
            );
        }
        "ministral3"
            if absent("rope_theta") && !(null("rope_parameters") && null("rope_scaling")) =>
        {
            return bad(
                "rope_theta",
                "missing, and transformers takes 10000 where a scaling is given and 1000000 where none is: write the one that is meant",
            );
        }
        _ => {}
    }
    match DIFFERS.iter().find(|d| d.0 == family.name && absent(d.1)) {
        Some((_, key, by)) => bad(
            key,
            format!("missing, and {by}: write the one that is meant"),
        ),
        None => Ok(()),
    }
}

/// Takes members out of the rotary scaling that no kind of scaling reads.
pub(crate) fn drop_members(config: &mut Config, json: &Map<String, Value>) {
    let Some(Value::Object(scaling)) = config.map.get_mut("rope_scaling") else {
        return;
    };
    // One that names no kind is not read at all.
    let kind = |k: &str| scaling.get(k).is_some_and(|v| !v.is_null());
    if !kind("rope_type") && !kind("type") {
        return;
    }
    let of_five = json.get("rope_parameters").is_some_and(Value::is_object);
    let key = ["rope_scaling", "rope_parameters"][usize::from(of_five)];
    // Hunyuan's own.
    let own = |name: &str| name == "alpha" && config.family.name == "hunyuan_v1_dense";
    let strange = |name: &&String| !MEMBERS.contains(&name.as_str()) && !own(name);
    let names: Vec<_> = scaling.keys().filter(strange).cloned().collect();
    for name in names {
        if scaling.remove(&name).is_some_and(|v| !v.is_null()) {
            config.unread.push(format!("{key}.{name}"));
        }
    }
}

/// A value in a few words.
fn shortened(value: &Value) -> String {
    let shown = value.to_string();
    match shown.chars().count() > 60 {
        true => shown.chars().take(57).collect::<String>() + "…",
        false => shown,
    }
}

fn is_long(config: &Config) -> bool {
    let kind = |key| {
        config
            .get("rope_scaling")
            .and_then(|s| s.get(key))
            .and_then(Value::as_str)
    };
    kind("rope_type").or(kind("type")) == Some("longrope")
}

/// Nothing, however it is written.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
        Value::Bool(true) => false,
    }
}

/// The names that a family has for what every family has some of.
fn parts(family: &Family) -> [&'static str; 13] {
    let r = &family.roles;
    let [theta, part] = r.rope;
    let [embeddings, residual, attention] = r.dropout;
    [
        r.layers,
        r.width,
        r.heads,
        r.kv_heads,
        r.head_dim,
        r.mlp,
        r.positions,
        r.act,
        theta,
        part,
        embeddings,
        residual,
        attention,
    ]
}

/// The places of [`parts`] that are compared in their own way.
const HEADS: usize = 2;
const KV_HEADS: usize = 3;
const HEAD_DIM: usize = 4;
const POSITIONS: usize = 6;
const ACT: usize = 7;
const ROTATED: usize = 9;

/// Does a key of the family `owner` say of this model what is so without it?
fn is_neutral(config: &Config, owner: &Family, key: &Key, value: &Value) -> bool {
    let family = config.family;
    let own = parts(family);
    let rotates = family.key(family.roles.rope[0]).is_some();
    let longest = || config.int_or(family.roles.positions, IDS).ok();
    let head_dim = || config.head_dim().ok().map(Value::from);
    let is = |v: Option<Value>| v.is_some_and(|v| same(&v, value));
    if is_off(value) && !ON.contains(&key.name) {
        return true;
    }
    if EPS.contains(&key.name) {
        return config.eps().is_ok_and(|eps| same(&json!(eps), value));
    }
    if let Some(i) = parts(owner).iter().position(|n| *n == key.name) {
        let here = config.get(own[i]).filter(|_| !own[i].is_empty());
        return match i {
            // No figure depends on how long a sequence may be.
            POSITIONS => value.is_u64(),
            ACT => here.is_some_and(|here| activation(here) == activation(value)),
            KV_HEADS if here.is_none() => is(config.get(own[HEADS]).cloned()),
            HEAD_DIM if here.is_none() => is(head_dim()),
            ROTATED if here.is_none() => rotates && is(Some(json!(1.0))),
            _ => here.is_some_and(|here| same(here, value)),
        };
    }
    match (key.name, key.kind) {
        ("is_decoder", _) => owner.name != family.name && family.architecture.ends_with("CausalLM"),
        ("position_embedding_type", _) => {
            let kind = value.as_str().unwrap_or_default();
            match rotates {
                true => kind.starts_with("rope") || kind.starts_with("rotary"),
                false => {
                    kind == if family.name == "bloom" {
                        "alibi"
                    } else {
                        "absolute"
                    }
                }
            }
        }
        // It sees everything that there is.
        ("sliding_window", _) => value.as_u64() >= longest(),
        ("max_window_layers", _) => value.is_u64(),
        ("query_pre_attn_scalar", _) => is(head_dim()),
        (_, Kind::Layers) => {
            let windows = config.get("sliding_window").is_some();
            let kind = ["full_attention", "sliding_attention"][usize::from(windows)];
            let all = value.as_array();
            all.is_some_and(|all| all.iter().all(|k| k == kind))
        }
        (_, Kind::Bits) => {
            rotates
                && value
                    .as_array()
                    .is_some_and(|all| all.iter().all(|b| b == 1))
        }
        (name, Kind::Flag) => value == &Value::Bool(ON.contains(&name)),
        (_, Kind::Only(text)) => is(serde_json::from_str(text).ok()),
        (_, Kind::Activation) => {
            let here = config.get(family.roles.act);
            here.is_some_and(|here| activation(here) == activation(value))
        }
        // A factor that changes nothing.
        (name, Kind::Positive) if name.contains("scal") || name.ends_with("multiplier") => {
            is(Some(json!(1.0)))
        }
        _ => false,
    }
}

/// The function that a name of an activation stands for, its approximations taken together: the class reads its own key.
fn activation(value: &Value) -> Option<&str> {
    let text = value.as_str()?.trim_start_matches("gated-");
    Some(match text {
        "swiglu" | "swish" | "silu" => "silu",
        "geglu" => "gelu",
        _ if text.starts_with("gelu") => "gelu",
        _ => text,
    })
}

/// Returns a warning about keys that the class does not read; none about none.
pub(crate) fn warning(config: &Config) -> Option<String> {
    const SHOWN: usize = 12;
    let all = &config.unread;
    if all.is_empty() {
        return None;
    }
    let near = |name: &String| {
        let row = config.family.keys().find(|k| {
            !config.given.contains(&k.name)
                && strsim::osa_distance(k.name, name) <= 2
                && name.len() > 5
        });
        match row {
            Some(k) => format!("{name} (did you mean {}?)", k.name),
            None => name.clone(),
        }
    };
    let mut names: Vec<_> = all.iter().take(SHOWN).map(near).collect();
    if all.len() > SHOWN {
        names.push(format!("and {} more", all.len() - SHOWN));
    }
    let (them, change) = match all.len() {
        1 => ("a key that", "changes"),
        _ => ("keys that", "change"),
    };
    Some(format!(
        "{them} {} of transformers does not read {change} nothing: {}",
        config.family.architecture,
        names.join(", ")
    ))
}

/// The error of a family that is not available: the one whose class reads most of the file's keys, and what that one does not read of them.
pub(crate) fn not_available(name: &str, json: &Map<String, Value>) -> ConfigError {
    let key = "model_type".to_string();
    let quiet = |f: &Family, k: &str| Config::is_quiet(f, k);
    let knows = |f: &Family, k: &str| {
        f.key(k).is_some()
            || read(f, k).is_some()
            || row(f).0.split(' ').any(|w| w.split('=').next() == Some(k))
    };
    let said = || json.iter().filter(|(_, v)| !is_off(v)).map(|(k, _)| k);
    let score = |f: &&Family| {
        let known = said().filter(|k| !quiet(f, k) && knows(f, k)).count();
        let alike = f
            .name
            .bytes()
            .zip(name.bytes())
            .take_while(|(a, b)| a == b)
            .count();
        (known, alike)
    };
    let mut best = families()
        .filter(|f| score(f).0 > 0 || score(f).1 > 2)
        .collect::<Vec<_>>();
    // Of equals the first: the sort keeps their order.
    best.sort_by_key(|f| std::cmp::Reverse(score(f)));
    let best = best.first().copied();
    let inner = json.get("text_config").and_then(|t| t.get("model_type"));
    let inner = inner
        .and_then(Value::as_str)
        .filter(|t| crate::family(t).is_some());
    let what = match (best, inner) {
        (_, Some(inner)) => format!(
            "\"{name}\" is not available; its text_config is a {inner}, which is: give a folder of that model alone"
        ),
        (Some(f), _) => {
            let lacks: Vec<&str> = said()
                .filter(|k| !quiet(f, k) && !knows(f, k))
                .map(String::as_str)
                .take(8)
                .collect();
            let lacks = match lacks.is_empty() {
                true => "has every key of this file; set model_type to it if the weights are of its class".to_string(),
                false => format!("lacks {}", lacks.join(", ")),
            };
            format!(
                "\"{name}\" is not available; the nearest that is, {}, {lacks}",
                f.name
            )
        }
        (None, _) => {
            let known: Vec<_> = families().map(|f| f.name).collect();
            format!(
                "\"{name}\" is not available; available: {}",
                known.join(", ")
            )
        }
    };
    ConfigError { key, what }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys that the classes keep under other names or as null where the families have a number, and the same is computed.
    const SAID_OTHERWISE: &[(&str, &str)] = &[
        ("qwen2", "sliding_window"),
        ("qwen3", "sliding_window"),
        ("qwen3_moe", "sliding_window"),
        ("qwen3_moe", "mlp_only_layers"),
        ("gemma", "use_bidirectional_attention"),
        ("gemma2", "use_bidirectional_attention"),
        ("gemma3_text", "sliding_window_pattern"),
        ("cohere2", "sliding_window_pattern"),
        ("olmo3", "rope_theta"),
        ("ministral3", "rope_theta"),
        ("ministral3", "rope_scaling"),
        ("mt5", "tie_word_embeddings"),
    ];

    #[test]
    fn an_absent_key_is_what_its_class_takes() {
        let mut wrong = vec![];
        for family in families() {
            for key in family.keys() {
                let Some(theirs) = read(family, key.name) else {
                    continue;
                };
                let ours = serde_json::from_str::<Value>(key.default).ok();
                let ours = ours.filter(|v| !v.is_null());
                let equal = match (&ours, &theirs) {
                    (Some(a), Some(b)) => same(a, b),
                    // Sizes that follow from others are written out by the classes.
                    (None, _) => true,
                    (Some(_), None) => false,
                };
                if !equal && !SAID_OTHERWISE.contains(&(family.name, key.name)) {
                    wrong.push(format!(
                        "{} {}: {ours:?}, {theirs:?}",
                        family.name, key.name
                    ));
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
