//! Keys of a `config.json` as rows of a table: what value each takes, what it is when absent, and what a new model begins with. One reader for
//! every family: a key that is not understood is an error that names it, its value and the families that have it.

use crate::desc::Act;
use crate::rope::parameters;
use crate::{Family, families};
use serde_json::{Map, Value, json};

/// One key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name in `config.json`.
    pub name: &'static str,
    /// What value it takes.
    pub kind: Kind,
    /// What `transformers` takes where it is absent, as JSON; "" = nothing.
    pub default: &'static str,
    /// What a new model takes.
    pub fresh: Fresh,
    /// A null that is written out means that there is none, not the default.
    pub nullable: bool,
    /// Meaning, in one line.
    pub doc: &'static str,
}

/// What value a key takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A whole number from 1 to this.
    Int(u64),
    /// A whole number from 0 to this.
    Count(u64),
    /// A token id, or -1 and so on for those from the end.
    Id,
    /// A number > 0.
    Positive,
    /// A number in (0, 1].
    Part,
    /// A probability in [0, 1).
    Probability,
    /// true or false.
    Flag,
    /// One of the activations.
    Activation,
    /// Scaling of rotary frequencies ([`crate::rope`]).
    Scaling,
    /// Names of the kinds of the layers.
    Layers,
    /// An activation, or `gated-` and one.
    FeedForward,
    /// A list of one of these classes.
    Classes(&'static [&'static str]),
    /// The keys of a part, which its own rows read.
    Keys,
    /// A whole number; negative ones count from the end.
    Place,
    /// One of these words.
    Word(&'static [&'static str]),
    /// Nothing else than this value (JSON) is available.
    Only(&'static str),
}

/// What a new model takes for a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fresh {
    /// What `transformers` takes.
    Same,
    /// This JSON; "" = nothing.
    Other(&'static str),
    /// It must be given.
    Required,
    /// It is not asked: another key says it.
    Unasked,
    /// What follows from the other keys, where it is not given.
    Derived(Derive),
}

/// What follows from the other keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Derive {
    /// Key and value heads.
    KvHeads,
    /// Width of a head.
    HeadDim,
    /// Width of the MLP.
    Mlp,
    /// Width of the residual stream.
    Width,
}

/// Most layers.
const LAYERS: u64 = 10_000;
/// Widest tensor.
const WIDTH: u64 = 1 << 22;
/// Most token ids, and most positions.
pub const IDS: u64 = i32::MAX as u64;

const fn key(name: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Key {
    Key {
        name,
        kind,
        default,
        fresh: Fresh::Same,
        nullable: false,
        doc,
    }
}
/// Rows of the embedding.
pub const fn vocab(default: &'static str) -> Key {
    let doc =
        "rows of the embedding; \"auto\" or absent (without preset) = the tokenizer's vocabulary";
    key("vocab_size", Kind::Int(IDS), default, doc).fresh("")
}
/// A number of positions or of ids.
pub const fn ids(name: &'static str, default: &'static str, doc: &'static str) -> Key {
    key(name, Kind::Int(IDS), default, doc)
}
/// The same from 0.
pub const fn count(name: &'static str, default: &'static str, doc: &'static str) -> Key {
    key(name, Kind::Count(IDS), default, doc)
}
/// A number of layers.
pub const fn layers(name: &'static str, default: &'static str, doc: &'static str) -> Key {
    key(name, Kind::Int(LAYERS), default, doc)
}
/// A width, or a number of heads.
pub const fn width(name: &'static str, default: &'static str, doc: &'static str) -> Key {
    key(name, Kind::Int(WIDTH), default, doc)
}
/// A number > 0.
pub const fn positive(name: &'static str, default: &'static str, doc: &'static str) -> Key {
    key(name, Kind::Positive, default, doc)
}
/// A probability in [0, 1), 0 in a new model.
pub const fn dropout(name: &'static str, default: &'static str, doc: &'static str) -> Key {
    key(name, Kind::Probability, default, doc).fresh("0.0")
}
/// A switch.
pub const fn flag(name: &'static str, default: &'static str, doc: &'static str) -> Key {
    key(name, Kind::Flag, default, doc)
}
/// An activation.
pub const fn activation(name: &'static str, default: &'static str) -> Key {
    key(name, Kind::Activation, default, "activation of the MLP")
}
/// The activation of an MLP that may be gated.
pub const fn feed_forward(name: &'static str, default: &'static str) -> Key {
    let doc = "activation of the MLP, with gated- before it where it is gated (gated-gelu is gated-gelu_new)";
    key(name, Kind::FeedForward, default, doc)
}
/// Whether the head is the embedding.
pub const fn tied(default: &'static str) -> Key {
    let doc = "the head is the embedding transposed";
    key("tie_word_embeddings", Kind::Flag, default, doc)
}
/// Deviation of the starting weights; a new model has `model.init`.
pub const fn init() -> Key {
    let doc = "standard deviation of the starting weights";
    key("initializer_range", Kind::Positive, "0.02", doc).unasked()
}
/// Rotary base and scaling.
pub const fn rope(theta: &'static str) -> [Key; 2] {
    rope_by("rope_theta", theta)
}
/// The same where the base has another name.
pub const fn rope_by(name: &'static str, theta: &'static str) -> [Key; 2] {
    [
        positive(name, theta, "base of the rotary frequencies"),
        key(
            "rope_scaling",
            Kind::Scaling,
            "",
            "scaling of rotary frequencies; absent = none",
        ),
    ]
}
/// A feature that is not there.
pub const fn only(name: &'static str, value: &'static str, doc: &'static str) -> Key {
    key(name, Kind::Only(value), value, doc).unasked()
}
/// The keys of a part of the model.
pub const fn part(name: &'static str, doc: &'static str) -> Key {
    key(name, Kind::Keys, "", doc).unasked()
}
/// A place among others, from the end where it is negative.
pub const fn place(name: &'static str, default: &'static str, doc: &'static str) -> Key {
    key(name, Kind::Place, default, doc).unasked()
}
/// One of some words.
pub const fn word(
    name: &'static str,
    all: &'static [&'static str],
    default: &'static str,
    doc: &'static str,
) -> Key {
    key(name, Kind::Word(all), default, doc).unasked()
}
/// The class that a folder is of, where it says what the model has.
pub const fn classes(all: &'static [&'static str], default: &'static str) -> Key {
    let doc = "class in transformers";
    key("architectures", Kind::Classes(all), default, doc).unasked()
}
/// Part of a head that rotates.
pub const fn rotated(name: &'static str, default: &'static str) -> Key {
    let doc = "part of a head's elements that rotate, the first ones";
    key(name, Kind::Part, default, doc)
}
/// Row of the embedding that does not learn where it is looked up.
pub const fn padding(default: &'static str) -> Key {
    let doc = "tokens of this id add nothing to the embedding's gradient; absent = none";
    key("pad_token_id", Kind::Id, default, doc)
        .fresh("")
        .nullable()
}
/// Positions that a token sees back, its own included.
pub const fn window(default: &'static str) -> Key {
    let doc = "positions that a token sees back, its own included; absent = all";
    ids("sliding_window", default, doc).fresh("").nullable()
}
/// Kinds of the layers, in order.
pub const fn layer_types() -> Key {
    let doc = "kinds of the layers: full_attention or sliding_attention, one for each";
    key("layer_types", Kind::Layers, "", doc).unasked()
}

impl Key {
    /// A new model begins with this (JSON; "" = nothing).
    pub const fn fresh(mut self, value: &'static str) -> Key {
        self.fresh = Fresh::Other(value);
        self
    }
    /// A new model must say it.
    pub const fn required(mut self) -> Key {
        self.fresh = Fresh::Required;
        self
    }
    /// A new model takes what follows from its other keys.
    pub const fn derived(mut self, what: Derive) -> Key {
        self.fresh = Fresh::Derived(what);
        self
    }
    /// A null that is written out means none.
    pub const fn nullable(mut self) -> Key {
        self.nullable = true;
        self
    }
    /// A new model is not asked.
    pub const fn unasked(mut self) -> Key {
        self.fresh = Fresh::Unasked;
        self
    }
}

/// Why a `config.json` cannot be used: key, what it holds, what would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Key in `config.json`.
    pub key: String,
    /// What is wrong and what to do.
    pub what: String,
}
impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "config.json: {}: {}", self.key, self.what)
    }
}
impl std::error::Error for ConfigError {}

/// The error of a key.
pub fn bad<T>(key: &str, what: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError {
        key: key.to_string(),
        what: what.into(),
    })
}

/// The activations by Hugging Face's names.
pub const ACTIVATIONS: &[(&str, Act)] = &[
    ("gelu_new", Act::GeluTanh),
    ("gelu_pytorch_tanh", Act::GeluTanh),
    ("gelu_fast", Act::GeluTanh),
    ("gelu_python_tanh", Act::GeluTanh),
    ("gelu", Act::GeluErf),
    ("gelu_python", Act::GeluErf),
    ("quick_gelu", Act::QuickGelu),
    ("relu", Act::Relu),
    ("silu", Act::Silu),
    ("swish", Act::Silu),
    ("tanh", Act::Tanh),
    ("relu2", Act::Relu2),
    ("sigmoid", Act::Sigmoid),
    ("mish", Act::Mish),
    ("gelu_10", Act::Gelu10),
];

/// Whether an MLP of T5's words is gated, and its activation.
pub(crate) fn gated(text: &str) -> Option<(bool, Act)> {
    let inner = text.strip_prefix("gated-");
    let named = match inner {
        Some("gelu") => "gelu_new",
        _ => inner.unwrap_or(text),
    };
    let act = ACTIVATIONS.iter().find(|a| a.0 == named)?;
    Some((inner.is_some(), act.1))
}

/// Their names.
pub const ACTIVATION_NAMES: &[&str] = &{
    let mut names = [""; ACTIVATIONS.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = ACTIVATIONS[i].0;
        i += 1;
    }
    names
};

/// Keys that say nothing of the computation, in every family.
#[rustfmt::skip]
const HARMLESS: &[&str] = &[
    "model_type", "architectures", "torch_dtype", "dtype", "transformers_version", "use_cache", "_name_or_path", "auto_map",
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "mask_token_id", "unk_token_id",
    "decoder_start_token_id", "task_specific_params", "finetuning_task", "id2label", "label2id", "num_labels", "problem_type",
    "output_attentions", "output_hidden_states", "return_dict", "use_return_dict", "gradient_checkpointing", "tokenizer_class", "prefix",
    "_attn_implementation", "attn_implementation", "_attn_implementation_autoset", "_commit_hash", "torchscript", "use_bfloat16",
    "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "temperature", "top_k", "top_p",
    "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids",
    "num_return_sequences", "output_scores", "return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id",
    "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "diversity_penalty",
    "tf_legacy_loss", "cache_implementation", "unsloth_fixed", "unsloth_version",
];

/// Names of what norms add to the variance or the mean square.
const EPS: [&str; 4] = [
    "rms_norm_eps",
    "layer_norm_eps",
    "norm_epsilon",
    "layer_norm_epsilon",
];

/// Rotary keys that 4.x writes beside the names that the family has for them.
fn beside(family: &Family) -> impl Iterator<Item = (&'static str, &'static str)> {
    let plain = ["rope_theta", "partial_rotary_factor"].into_iter();
    let both = plain.zip(family.roles.rope);
    both.filter(|(_, by)| family.key(by).is_some())
}

/// The keys of one model: every row of its family that has a value, given or by default.
#[derive(Clone, Debug)]
pub struct Config {
    /// The family.
    pub family: &'static Family,
    /// Values by key.
    pub map: Map<String, Value>,
}

impl Config {
    /// Reads a `config.json`; what is absent or null takes `transformers`' default.
    ///
    /// # Errors
    /// A key that is not understood; a value of another type or out of range.
    pub fn of_hf(
        family: &'static Family,
        json: &Map<String, Value>,
    ) -> Result<Config, ConfigError> {
        let (mut map, mut none) = (Map::new(), vec![]);
        let given = without_parameters(family, json)?;
        for (name, value) in &given {
            let mut harmless = HARMLESS.iter().copied().chain(family.harmless.split(' '));
            match family.key(name) {
                Some(row) if value.is_null() && row.nullable => none.push(row.name),
                _ if value.is_null() => {}
                Some(row) => {
                    row.check(value)?;
                    map.insert(name.clone(), value.clone());
                }
                None if harmless.any(|h| h == name) => {}
                None if beside(family).any(|(plain, _)| plain == name) => {}
                None => return unknown(family, name, value),
            }
        }
        let mut config = Config { family, map };
        config.fill(|row| match none.contains(&row.name) {
            true => "",
            false => row.default,
        });
        for (plain, by) in beside(family) {
            let own = config.get(by).filter(|_| family.key(plain).is_none());
            if let (Some(own), Some(v)) = (own, given.get(plain).filter(|v| !v.is_null()))
                && !same(own, v)
            {
                return bad(plain, format!("{v}, and {by} is {own}: keep {by} alone"));
            }
        }
        Ok(config)
    }

    /// Takes a new model's keys, which have been checked by their rows.
    ///
    /// # Errors
    /// As [`Config::of_hf`].
    pub fn of_new(
        family: &'static Family,
        given: &Map<String, Value>,
    ) -> Result<Config, ConfigError> {
        let mut map = Map::new();
        for (name, value) in given.iter().filter(|(_, v)| !v.is_null()) {
            match family.key(name) {
                Some(row) => row.check(value)?,
                None => return unknown(family, name, value),
            }
            map.insert(name.clone(), value.clone());
        }
        let mut config = Config { family, map };
        config.fill(|row| match row.fresh {
            Fresh::Same | Fresh::Unasked => row.default,
            Fresh::Other(value) => value,
            Fresh::Required | Fresh::Derived(_) => "",
        });
        Ok(config)
    }

    fn fill(&mut self, default: impl Fn(&Key) -> &'static str) {
        for row in self.family.keys() {
            let text = default(row);
            if !text.is_empty() && !self.map.contains_key(row.name) {
                // Rows are constants of this crate; a test reads all of them.
                let value: Value = serde_json::from_str(text).unwrap_or_default();
                if !value.is_null() {
                    self.map.insert(row.name.to_string(), value);
                }
            }
        }
    }

    /// The value of a key.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.map.get(name)
    }
    /// Is there a value?
    pub fn has(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }
    /// A whole number.
    ///
    /// # Errors
    /// Absent.
    pub fn int(&self, name: &str) -> Result<u64, ConfigError> {
        match self.get(name).and_then(Value::as_u64) {
            Some(n) => Ok(n),
            None => bad(name, "missing"),
        }
    }
    /// The same where there may be none.
    ///
    /// # Errors
    /// None.
    pub fn int_or(&self, name: &str, default: u64) -> Result<u64, ConfigError> {
        match self.has(name) {
            true => self.int(name),
            false => Ok(default),
        }
    }
    /// A number.
    ///
    /// # Errors
    /// Absent.
    pub fn num(&self, name: &str) -> Result<f64, ConfigError> {
        match self.get(name).and_then(Value::as_f64) {
            Some(x) => Ok(x),
            None => bad(name, "missing"),
        }
    }
    /// What norms add: of the key that the family has for it.
    ///
    /// # Errors
    /// Absent.
    pub fn eps(&self) -> Result<f64, ConfigError> {
        let has = |name: &&&str| self.family.key(name).is_some();
        self.num(EPS.iter().find(has).unwrap_or(&EPS[0]))
    }
    /// The same, 0 where there is none.
    pub fn num_or_zero(&self, name: &str) -> f64 {
        self.get(name).and_then(Value::as_f64).unwrap_or(0.0)
    }
    /// A switch; off where it is absent.
    pub fn flag(&self, name: &str) -> bool {
        self.get(name).and_then(Value::as_bool).unwrap_or(false)
    }
    /// Is the folder of this class?
    pub fn is_class(&self, name: &str) -> bool {
        self.get("architectures")
            .and_then(|v| v.get(0))
            .and_then(Value::as_str)
            == Some(name)
    }
    /// An activation.
    ///
    /// # Errors
    /// Absent.
    pub fn act(&self, name: &str) -> Result<Act, ConfigError> {
        let text = self.get(name).and_then(Value::as_str).unwrap_or_default();
        match ACTIVATIONS.iter().find(|a| a.0 == text) {
            Some(a) => Ok(a.1),
            None => bad(name, "missing"),
        }
    }
    /// Whether the MLP is gated, and its activation.
    ///
    /// # Errors
    /// Absent.
    pub fn feed_forward(&self, name: &str) -> Result<(bool, Act), ConfigError> {
        match self.get(name).and_then(Value::as_str).and_then(gated) {
            Some(both) => Ok(both),
            None => bad(name, "missing"),
        }
    }
    /// Does layer `l` see a window only, by the kinds of the layers; `None` where the kinds are not given.
    ///
    /// # Errors
    /// Kinds that are not known, or not one for each layer.
    pub fn sliding(&self, l: u64) -> Result<Option<bool>, ConfigError> {
        let Some(Value::Array(all)) = self.get("layer_types") else {
            return Ok(None);
        };
        let layers = self.int(self.family.roles.layers)?;
        if all.len() as u64 != layers {
            let what = format!("{} kinds for {layers} layers", all.len());
            return bad("layer_types", what);
        }
        match all[l as usize].as_str() {
            Some("full_attention") => Ok(Some(false)),
            Some("sliding_attention") => Ok(Some(true)),
            other => bad(
                "layer_types",
                format!("{other:?} is not available; full_attention and sliding_attention are"),
            ),
        }
    }
    /// The token whose row does not learn where it is looked up.
    ///
    /// # Errors
    /// A token that the vocabulary does not have.
    pub fn padding(&self, vocab: u64) -> Result<Option<u64>, ConfigError> {
        let key = "pad_token_id";
        let Some(id) = self.get(key).and_then(Value::as_i64) else {
            return Ok(None);
        };
        let at = if id < 0 { id + vocab as i64 } else { id };
        match u64::try_from(at) {
            Ok(at) if at < vocab => Ok(Some(at)),
            _ => bad(
                key,
                format!("{id} is no token of the {vocab} of vocab_size; null = none"),
            ),
        }
    }
    /// Elements of a head that rotate.
    ///
    /// # Errors
    /// As [`Config::head_dim`].
    pub fn rotated(&self) -> Result<u64, ConfigError> {
        let dim = self.head_dim()? as f64;
        match self.get(self.family.roles.rope[1]).and_then(Value::as_f64) {
            Some(part) => Ok((dim * part) as u64),
            None => Ok(dim as u64),
        }
    }
    /// Width of a head: of its own key, or the width over the heads.
    ///
    /// # Errors
    /// A width that the heads do not divide; query heads that the key-value heads do not divide; heads too wide for any machine.
    pub fn head_dim(&self) -> Result<u64, ConfigError> {
        let r = &self.family.roles;
        let (all, heads) = (self.int(r.width)?, self.int(r.heads)?);
        let kv = self.int_or(r.kv_heads, heads)?;
        if !heads.is_multiple_of(kv) {
            let what = format!(
                "{} {heads} is not divisible by {} {kv}",
                r.heads, r.kv_heads
            );
            return bad(r.kv_heads, what);
        }
        let own = self.has(r.head_dim);
        if !own && !all.is_multiple_of(heads) {
            let fix = if r.head_dim.is_empty() {
                ""
            } else {
                "; give head_dim"
            };
            let what = format!(
                "{} {all} is not divisible by {} {heads}{fix}",
                r.width, r.heads
            );
            return bad(r.heads, what);
        }
        let dim = self.int_or(r.head_dim, all / heads)?;
        let key = if own { r.head_dim } else { r.heads };
        match dim.saturating_mul(heads) {
            n if n > WIDTH => bad(key, format!("{n} is more than the {WIDTH} allowed")),
            _ => Ok(dim),
        }
    }
}

/// 5.x keeps the rotary settings in `rope_parameters`; here they become the keys of 4.x, which every family's rows have. A non-empty
/// `rope_scaling` beside it counts for more, in `transformers` too.
fn without_parameters(
    family: &Family,
    json: &Map<String, Value>,
) -> Result<Map<String, Value>, ConfigError> {
    let mut out = json.clone();
    let Some(given) = out.remove("rope_parameters").filter(|v| !v.is_null()) else {
        return one_original(family, out);
    };
    let [theta, part] = family.roles.rope;
    if family.key(theta).is_none() {
        return unknown(family, "rope_parameters", &given);
    }
    let Value::Object(mut p) = given else {
        return bad("rope_parameters", format!("{given} is not an object"));
    };
    if p.values().any(Value::is_object) {
        return (family.nested)(out, p);
    }
    for (inner, name) in [("rope_theta", theta), ("partial_rotary_factor", part)] {
        let whole = family.key(name).is_none() && p.get(inner) == Some(&json!(1.0));
        let Some(v) = p.remove(inner).filter(|v| !v.is_null() && !whole) else {
            continue;
        };
        laid(&mut out, name, v)?;
    }
    let kind = p.get("rope_type").or(p.get("type")).and_then(Value::as_str);
    if matches!(kind, None | Some("default")) {
        return Ok(out);
    }
    scaled(out, Value::Object(p))
}

/// Where `longrope` begins to take its other list, 4.x reads beside `rope_scaling`, else from the longest sequence; 5.x reads it within. What
/// they would read differently is refused.
fn one_original(
    family: &Family,
    out: Map<String, Value>,
) -> Result<Map<String, Value>, ConfigError> {
    const ORIGINAL: &str = "original_max_position_embeddings";
    let (scaling, longest) = (&out.get("rope_scaling"), out.get(family.roles.positions));
    let inner = |key: &str| scaling.and_then(|s| s.get(key));
    let long = |key: &&str| inner(key).and_then(Value::as_str) == Some("longrope");
    let within = inner(ORIGINAL).filter(|v| !v.is_null() && family.key(ORIGINAL).is_none());
    match within {
        Some(v)
            if ["rope_type", "type"].iter().any(long) && longest.is_none_or(|l| !same(l, v)) =>
        {
            bad(
                "rope_scaling",
                format!(
                    "{ORIGINAL} {v}: transformers 4.x takes {} instead and 5.x this; write the scaling as rope_parameters if {v} is meant",
                    family.roles.positions
                ),
            )
        }
        _ => Ok(out),
    }
}

/// [`laid`] of the scaling, which may be spelled in two ways.
///
/// # Errors
/// As [`laid`].
pub fn scaled(
    mut out: Map<String, Value>,
    stated: Value,
) -> Result<Map<String, Value>, ConfigError> {
    let plain = |v: &Value| parameters(Some(v), &Value::Null);
    let own = out.get("rope_scaling").filter(|v| !v.is_null());
    if own.is_some_and(|own| plain(own) == plain(&stated)) {
        return Ok(out);
    }
    laid(&mut out, "rope_scaling", stated)?;
    Ok(out)
}

/// Lays what `rope_parameters` says beside the other keys.
///
/// # Errors
/// A key that says something else.
pub fn laid(out: &mut Map<String, Value>, name: &str, v: Value) -> Result<(), ConfigError> {
    match out.get(name).filter(|own| !own.is_null() && !same(own, &v)) {
        Some(own) => bad(
            name,
            format!("{own}, and rope_parameters says {v}: keep one of them"),
        ),
        None => {
            out.insert(name.into(), v);
            Ok(())
        }
    }
}

/// Nested `rope_parameters` of a family that has none.
pub fn not_nested(
    _: Map<String, Value>,
    _: Map<String, Value>,
) -> Result<Map<String, Value>, ConfigError> {
    bad(
        "rope_parameters",
        "holds settings by kind of layer, which this family does not have",
    )
}

fn unknown<T>(family: &Family, name: &str, value: &Value) -> Result<T, ConfigError> {
    let mut shown = value.to_string();
    if shown.chars().count() > 60 {
        shown = shown.chars().take(57).collect::<String>() + "…";
    }
    let others: Vec<&str> = families()
        .filter(|f| f.key(name).is_some())
        .map(|f| f.name)
        .collect();
    let known = match others.is_empty() {
        true => "no family here has it".to_string(),
        false => format!("families that have it: {}", others.join(", ")),
    };
    bad(
        name,
        format!(
            "{shown}: not understood in a {} model ({known}); remove it if the model does not depend on it",
            family.name
        ),
    )
}

/// Equal, numbers by value.
pub(crate) fn same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}
