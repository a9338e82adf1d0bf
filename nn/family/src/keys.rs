//! Keys of a `config.json` as rows of a table: what value each takes, what it is when absent, and what a new model begins with. One reader for
//! every family: a key that is not understood is an error that names it, its value and the families that have it.

use crate::Family;
use crate::desc::Act;
use crate::rope::parameters;
use serde_json::{Map, Value};

/// One key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name in `config.json`.
    pub name: &'static str,
    /// The kind of its value.
    pub kind: Kind,
    /// The value that `transformers` takes where it is absent, as JSON; "" = nothing.
    pub default: &'static str,
    /// The value of a new model.
    pub fresh: Fresh,
    /// A null that is written out means that there is none, not the default.
    pub nullable: bool,
    /// Meaning, in one line.
    pub doc: &'static str,
}

/// The kinds of values that a key may take.
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
    /// A number >= 0.
    Factor,
    /// Numbers of layers, from 0.
    Numbers,
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
    /// For each layer 0 or 1.
    Bits,
    /// A whole number, or a word of L and G.
    Pattern,
    /// Nothing else than this value (JSON) is available.
    Only(&'static str),
}

/// The value that a new model takes for a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fresh {
    /// The one that `transformers` takes.
    Same,
    /// This JSON; "" = nothing.
    Other(&'static str),
    /// It must be given.
    Required,
    /// It is not asked: another key says it.
    Unasked,
    /// The one that follows from the other keys, where it is not given.
    Derived(Derive),
}

/// The rules by which a value follows from the other keys.
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
/// A number >= 0.
pub const fn factor(name: &'static str, default: &'static str, doc: &'static str) -> Key {
    key(name, Kind::Factor, default, doc)
}
/// Numbers of layers, from 0.
pub const fn numbers(name: &'static str, doc: &'static str) -> Key {
    key(name, Kind::Numbers, "[]", doc).unasked()
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
/// The key that says if the head is the embedding.
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
/// For each layer 0 or 1.
pub const fn bits(name: &'static str, doc: &'static str) -> Key {
    key(name, Kind::Bits, "", doc).unasked()
}
/// After how many layers one differs.
pub const fn pattern(name: &'static str, default: &'static str, doc: &'static str) -> Key {
    key(name, Kind::Pattern, default, doc).nullable()
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

/// The reason for which a `config.json` cannot be used: the key, its value, the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Key in `config.json`.
    pub key: String,
    /// The fault and the remedy.
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

/// Returns true if an MLP of T5's words is gated, and its activation.
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

/// Names of what norms add to the variance or the mean square.
pub(crate) const EPS: [&str; 5] = [
    "rms_norm_eps",
    "norm_eps",
    "layer_norm_eps",
    "norm_epsilon",
    "layer_norm_epsilon",
];

/// The keys of one model: every row of its family that has a value, given or by default.
#[derive(Clone, Debug)]
pub struct Config {
    /// The family.
    pub family: &'static Family,
    /// Values by key.
    pub map: Map<String, Value>,
    /// Keys that the file gives.
    pub(crate) given: Vec<&'static str>,
    /// Keys of the file that the class of `transformers` does not read, those of parts with the name of the part before them.
    pub(crate) unread: Vec<String>,
}

impl Config {
    /// Gives every key that has none what is taken for it.
    pub(crate) fn fill(&mut self, default: impl Fn(&Key) -> &'static str) {
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
    /// Returns the number that norms add: of the key that the family has for it.
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
    /// Returns true if the MLP is gated, and its activation.
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
    /// Returns the bit of layer `l` in a list of bits; `None` where it is not given.
    ///
    /// # Errors
    /// A list that is shorter than the layers.
    pub fn bit(&self, name: &str, l: u64) -> Result<Option<bool>, ConfigError> {
        let Some(Value::Array(all)) = self.get(name) else {
            return Ok(None);
        };
        match all.get(l as usize).and_then(Value::as_u64) {
            Some(bit) => Ok(Some(bit != 0)),
            None => {
                let layers = self.int(self.family.roles.layers)?;
                bad(name, format!("{} values for {layers} layers", all.len()))
            }
        }
    }
    /// After how many layers one differs.
    ///
    /// # Errors
    /// Absent, 0, or a word.
    pub fn every(&self, name: &str) -> Result<u64, ConfigError> {
        match self.get(name) {
            Some(Value::String(word)) => bad(
                name,
                format!(
                    "\"{word}\" says nothing without layer_types, in transformers too: give layer_types"
                ),
            ),
            _ => match self.int(name)? {
                0 => bad(
                    name,
                    "0 says nothing without layer_types, in transformers too: give layer_types",
                ),
                n => Ok(n),
            },
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
        // Where the model does not say how many there are, the tokenizer will.
        let open = self.get("vocab_size").is_none();
        match u64::try_from(at) {
            Ok(at) if at < vocab || open => Ok(Some(at)),
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

/// Equal, numbers by value.
pub(crate) fn same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}
