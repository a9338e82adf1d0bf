//! Model families as data: which keys of a Hugging Face `config.json` say what, and the description of the model that they give.
//!
//! Adding a family that the description can say is one file under `families/`: a row of [`Family`] with its keys and a function from their
//! values to a [`desc::Model`]. The blocks that compute it are those of `crossweave-nn`, the same for every family; the config's schema and
//! its explanations read the same rows. **Invariant**: a key that the class of `transformers` reads and this crate does not is refused; one that it does not read is named.
#![forbid(unsafe_code)]

mod check;
pub mod desc;
mod families;
pub mod keys;
pub mod moe;
mod read;
mod reads;
pub mod rope;
mod spec;
pub mod split;
mod strangers;
pub mod written;

pub use families::{COMPOSED, FAMILIES, OUTERS};
pub use keys::{Config, ConfigError, Fresh, Key, Kind};
pub use moe::Moe;
pub use spec::ModelSpec;

use serde_json::{Map, Value};

/// One family of models.
pub struct Family {
    /// `model_type` in `config.json`, and `model.family` in a config.
    pub name: &'static str,
    /// The class that `architectures` names.
    pub architecture: &'static str,
    /// Its description in one line.
    pub doc: &'static str,
    /// Its keys, in groups.
    pub keys: &'static [&'static [Key]],
    /// Keys of its own that say nothing of the computation, by one space each.
    pub harmless: &'static str,
    /// The roles of its keys.
    pub roles: Roles,
    /// Values of a preset beside its dimensions, given those and the number of heads.
    pub preset: fn(&Dims) -> Vec<(&'static str, String)>,
    /// The description.
    pub build: fn(&Config) -> Result<desc::Model, ConfigError>,
    /// `rope_parameters` by kind of layer, as keys.
    pub nested: Nested,
    /// The way back to a `config.json`, of the keys as they are.
    pub export: fn(&Config, &mut Map<String, Value>),
    /// Modules that are adapted where nobody says which: those of PEFT 0.21, or the projections of queries and values where it has none.
    pub lora: &'static [&'static str],
    /// PEFT's name for weights that are `[in, out]`.
    pub fan_in_fan_out: bool,
    /// The tensors that published files hold beside the parameters.
    pub tensors: Tensors,
}

/// Tensors that published files of a family hold beside the parameters, as the class of `transformers` treats them.
#[derive(Clone, Copy, Debug)]
pub struct Tensors {
    /// Those that the class passes over: a whole name, an ending that begins with a dot, or a beginning that ends with one.
    pub ignored: &'static [&'static str],
    /// Copies that the class ties to another tensor: the copy's name and the other's.
    pub copies: &'static [(&'static str, &'static str)],
    /// Files that hold the model within another one: what a name begins with, and what it begins with there.
    pub within: &'static [(&'static str, &'static str)],
    /// Parameters that files hold in parts.
    pub stacks: &'static [Stack],
}

/// A parameter of a layer that files hold as one tensor each of its experts, or under another name.
#[derive(Clone, Copy, Debug)]
pub struct Stack {
    /// The end of its name, behind that of the layer.
    pub name: &'static str,
    /// The ends of the names of the parts of one expert, which lie one behind the other; `{}` stands for the number of the expert. Without it
    /// there is one tensor.
    pub parts: &'static [&'static str],
}

impl Tensors {
    /// None beyond those that any family's files may hold.
    pub const PLAIN: Tensors = Tensors {
        ignored: &[],
        copies: &[],
        within: &[],
        stacks: &[],
    };
}

/// `rope_parameters` by kind of layer: the other keys, and those.
pub type Nested =
    fn(Map<String, Value>, Map<String, Value>) -> Result<Map<String, Value>, ConfigError>;

/// A model of several parts of which one is read, as the model that it is alone.
#[derive(Debug)]
pub struct Outer {
    /// Its `model_type`.
    pub name: &'static str,
    /// The key of the part.
    pub part: &'static str,
    /// The part's family.
    pub family: &'static Family,
    /// Keys of it that say nothing of the part.
    pub quiet: &'static [&'static str],
}

/// Names of the keys that every family has some of; "" = none.
#[derive(Clone, Copy, Debug)]
pub struct Roles {
    /// Number of layers.
    pub layers: &'static str,
    /// Width of the residual stream.
    pub width: &'static str,
    /// Query heads.
    pub heads: &'static str,
    /// Key and value heads.
    pub kv_heads: &'static str,
    /// Width of a head.
    pub head_dim: &'static str,
    /// Width of the MLP.
    pub mlp: &'static str,
    /// Longest sequence.
    pub positions: &'static str,
    /// Activation of the MLP.
    pub act: &'static str,
    /// Base of the rotary frequencies, and the part of a head that rotates.
    pub rope: [&'static str; 2],
    /// Dropout of embeddings, residual branches and attention weights.
    pub dropout: [&'static str; 3],
}

/// The names that most families share.
pub const ROLES: Roles = Roles {
    layers: "num_hidden_layers",
    width: "hidden_size",
    heads: "num_attention_heads",
    kv_heads: "num_key_value_heads",
    head_dim: "head_dim",
    mlp: "intermediate_size",
    positions: "max_position_embeddings",
    act: "hidden_act",
    rope: ["rope_theta", "partial_rotary_factor"],
    dropout: ["", "", "attention_dropout"],
};

/// Dimensions of a preset.
#[derive(Clone, Copy, Debug)]
pub struct Dims {
    /// Name.
    pub name: &'static str,
    /// Layers.
    pub layers: u64,
    /// Width.
    pub width: u64,
    /// Query heads, as the user has them in the end.
    pub heads: u64,
    /// Longest sequence.
    pub positions: u64,
    /// Rows of the embedding.
    pub vocab: u64,
}

const fn dims(name: &'static str, [layers, width, heads, positions, vocab]: [u64; 5]) -> Dims {
    Dims {
        name,
        layers,
        width,
        heads,
        positions,
        vocab,
    }
}

/// The presets, which the torch baselines of the benches share.
pub const PRESETS: &[Dims] = &[
    dims("tiny", [4, 256, 4, 256, 256]),
    dims("small", [6, 512, 8, 512, 8192]),
    dims("gpt2", [12, 768, 12, 512, 50304]),
];

/// The presets in words, for a table of keys.
pub const PRESETS_DOC: &str = "dimensions to start from: tiny (4 x 256, vocab 256), small (6 x 512, vocab 8192), gpt2 (12 x 768, vocab 50304)";

impl std::fmt::Debug for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// The predictions of the models of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Predicts {
    /// The next token.
    Next,
    /// Tokens that are hidden from an encoder.
    Hidden,
    /// The text that a decoder writes to what an encoder has read.
    Spans,
}

impl Family {
    /// Returns the prediction of its models.
    pub fn predicts(&self) -> Predicts {
        let is = |end| self.architecture.ends_with(end);
        match () {
            _ if is("ForMaskedLM") => Predicts::Hidden,
            // Of images and a text, what follows in the text.
            _ if is("ForConditionalGeneration") && !self.sees() => Predicts::Spans,
            _ => Predicts::Next,
        }
    }
    /// Do its models read images?
    pub fn sees(&self) -> bool {
        self.key("vision_config").is_some()
    }
    /// The row of a key.
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys().find(|k| k.name == name)
    }
    /// All its keys.
    pub fn keys(&self) -> impl Iterator<Item = &'static Key> + use<> {
        self.keys.iter().flat_map(|group| group.iter())
    }
    /// Values of a preset by key, as JSON.
    pub fn preset(&self, d: &Dims) -> Vec<(&'static str, String)> {
        let r = &self.roles;
        let sizes = [
            (r.width, d.width),
            (r.layers, d.layers),
            (r.heads, d.heads),
            (r.positions, d.positions),
            ("vocab_size", d.vocab),
        ];
        let mut out: Vec<_> = sizes
            .into_iter()
            .filter(|(name, _)| !name.is_empty())
            .map(|(name, n)| (name, n.to_string()))
            .collect();
        out.extend((self.preset)(d));
        out
    }
}

/// Every family, those of which only folders are read last.
pub fn families() -> impl Iterator<Item = &'static Family> {
    FAMILIES.iter().chain(COMPOSED).copied()
}

/// The family of a name.
pub fn family(name: &str) -> Option<&'static Family> {
    families().find(|f| f.name == name)
}

/// No values beside the dimensions.
pub fn dimensions_only(_: &Dims) -> Vec<(&'static str, String)> {
    vec![]
}

/// Nothing beside the keys as they are.
pub fn keys_only(_: &Config, _: &mut Map<String, Value>) {}
