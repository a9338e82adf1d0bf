//! What a model is, as data: its embedding, its layers in order, and its head, with the parameter names of its Hugging Face checkpoints.
//!
//! A family fills it in from a `config.json`; the blocks of `crossweave-nn` read it. Nothing here computes.

use crate::rope::Rotary;

/// A model.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Rows of the token embedding.
    pub vocab: u64,
    /// Longest sequence.
    pub positions: u64,
    /// Width of the residual stream.
    pub width: u64,
    /// What the names of a base model's file lack: `transformer.`, `model.`.
    pub base: &'static str,
    /// The layers.
    pub stack: Stack,
    /// What follows them.
    pub head: Head,
    /// Starting deviations.
    pub init: Init,
}

/// Deviations of the starting weights, all normal with mean 0; biases begin at 0, scales of norms so that they do nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Init {
    /// Matrices and embeddings.
    pub std: f64,
    /// Matrices that write into the residual stream.
    pub residual: f64,
}

/// An embedding and the layers over it.
#[derive(Clone, Debug, PartialEq)]
pub struct Stack {
    /// The embedding.
    pub embed: Embed,
    /// What the names of its layers begin with; layer 3 of `model.layers` is `model.layers.3`.
    pub prefix: &'static str,
    /// The layers.
    pub layers: Vec<Layer>,
}

/// Token embedding.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Embed {
    /// What the names below begin with.
    pub prefix: &'static str,
    /// Its table.
    pub table: &'static str,
    /// Factor of what it gives; 0 = none.
    pub scale: f64,
    /// Tokens of this id add nothing to the table's gradient (`padding_idx`).
    pub padding: Option<u64>,
    /// Learned positions: table and rows.
    pub positions: Option<(&'static str, u64)>,
    /// After the sum.
    pub norm: Option<Norm>,
    /// Dropout of all of it.
    pub dropout: f64,
}

/// Normalisation over the width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Name of the module.
    pub name: &'static str,
    /// Which.
    pub kind: NormKind,
    /// Added to the variance, or to the mean square.
    pub eps: f64,
}

/// Which normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Layer norm with a bias.
    Layer,
    /// RMS norm.
    Rms,
    /// RMS norm scaled by `1 + w` (Gemma).
    RmsPlusOne,
}

/// A linear layer; its sizes follow from its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Linear {
    /// Name of the module.
    pub name: &'static str,
    /// It has a bias.
    pub bias: bool,
}

/// How queries, keys and values are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qkv {
    /// Three layers.
    Separate([Linear; 3]),
    /// One, all queries first, then keys, then values.
    Fused(Linear),
    /// One, query, key and value of one head after another.
    ByHead(Linear),
}
impl Default for Qkv {
    fn default() -> Self {
        Qkv::Fused(Linear::default())
    }
}

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNorm {
    /// The norm of queries, and that of keys.
    pub norms: [Norm; 2],
    /// Each head by itself, else all heads together.
    pub per_head: bool,
}

/// Where a token stands, as attention sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Positions {
    /// Not at all (the embedding knows).
    #[default]
    None,
    /// Queries and keys are rotated.
    Rotary(Rotary),
    /// Scores fall with the distance by a slope for each head (Press et al. 2021, arXiv 2108.12409).
    Alibi,
}

/// Self-attention. What a family does not say is off.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attention {
    /// Queries, keys and values.
    pub qkv: Qkv,
    /// The output.
    pub out: Linear,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads.
    pub kv_heads: u64,
    /// Width of a head.
    pub head_dim: u64,
    /// Factor of the scores; 0 = 1/sqrt(head_dim).
    pub scale: f64,
    /// A token sees itself and those before it only.
    pub causal: bool,
    /// So many positions back, its own included; 0 = all.
    pub window: u64,
    /// Soft cap of the scores; 0 = none.
    pub cap: f64,
    /// Dropout of the weights.
    pub dropout: f64,
    /// Norms of queries and keys.
    pub qk_norm: Option<QkNorm>,
    /// Positions.
    pub positions: Positions,
}

/// An activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Act {
    GeluTanh,
    GeluErf,
    QuickGelu,
    Silu,
    Relu,
    Tanh,
}

/// What the MLP does before its activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Up {
    /// One layer.
    Plain(Linear),
    /// `act(gate) * up`, two layers.
    Gated([Linear; 2]),
    /// The same as one layer, the gate first.
    GatedFused(Linear),
}

/// The MLP.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mlp {
    /// To the inner width.
    pub up: Up,
    /// Back.
    pub down: Linear,
    /// Inner width.
    pub width: u64,
    /// The activation.
    pub act: Act,
}

/// Norms around attention or MLP: `x + after(f(before(x)))`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Around {
    /// The norm of what goes in.
    pub before: Option<Norm>,
    /// The norm of what comes out, before it is added.
    pub after: Option<Norm>,
}

/// How attention and MLP lie to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The MLP sees what attention has added.
    #[default]
    Sequential,
    /// Both see what goes into the layer.
    Parallel,
}

/// A layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Attention and the norms around it.
    pub attention: (Around, Attention),
    /// The MLP and the norms around it.
    pub mlp: (Around, Mlp),
    /// How they lie.
    pub order: Order,
    /// What is added to is the result of the norm before, not what it was made of (BLOOM's `apply_residual_connection_post_layernorm`).
    pub residual_of_norm: bool,
    /// Weights are `[in, out]` (GPT-2's Conv1D).
    pub conv1d: bool,
    /// Dropout of what attention and MLP add.
    pub dropout: f64,
}

/// From the last layer to logits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Head {
    /// The last norm, by its whole name.
    pub norm: Option<Norm>,
    /// The layer to the vocabulary.
    pub lm: &'static str,
    /// It is the token embedding.
    pub tied: bool,
    /// It has a bias.
    pub bias: bool,
    /// Soft cap of the logits; 0 = none.
    pub cap: f64,
}

impl Layer {
    /// Attention and MLP one after the other, each behind a norm.
    pub fn new(attention: (Norm, Attention), mlp: (Norm, Mlp)) -> Layer {
        Layer {
            attention: (Around::before(attention.0), attention.1),
            mlp: (Around::before(mlp.0), mlp.1),
            order: Order::Sequential,
            residual_of_norm: false,
            conv1d: false,
            dropout: 0.0,
        }
    }
}

impl Norm {
    /// A layer norm.
    pub const fn layer(name: &'static str, eps: f64) -> Norm {
        let kind = NormKind::Layer;
        Norm { name, kind, eps }
    }
    /// An RMS norm.
    pub const fn rms(name: &'static str, eps: f64) -> Norm {
        let kind = NormKind::Rms;
        Norm { name, kind, eps }
    }
}

impl Around {
    /// A norm before, and nothing after.
    pub const fn before(norm: Norm) -> Around {
        Around {
            before: Some(norm),
            after: None,
        }
    }
}

/// A linear layer by its name.
pub const fn linear(name: &'static str, bias: bool) -> Linear {
    Linear { name, bias }
}

impl Model {
    /// The name of the token embedding's table.
    pub fn table(&self) -> String {
        format!("{}.{}", self.stack.embed.prefix, self.stack.embed.table)
    }

    /// Weights of the linear layers that one token goes through, the head included.
    fn multiplied(&self) -> u64 {
        let of = |l: &Layer| {
            let (a, m) = (&l.attention.1, &l.mlp.1);
            let (q, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
            let ups = if matches!(m.up, Up::Plain(_)) { 1 } else { 2 };
            self.width * (q + 2 * kv) + q * self.width + (ups + 1) * self.width * m.width
        };
        self.stack.layers.iter().map(of).sum::<u64>() + self.vocab * self.width
    }

    /// Floating-point operations a trained token costs at sequence length `t`: 6 per matmul weight + 12 L d T for attention (PaLM's appendix
    /// B; no causal discount).
    pub fn flops_per_token(&self, t: u64) -> f64 {
        let inner = |l: &Layer| l.attention.1.heads * l.attention.1.head_dim;
        let attention: u64 = self.stack.layers.iter().map(inner).sum();
        6.0 * self.multiplied() as f64 + 12.0 * (attention * t) as f64
    }
}
