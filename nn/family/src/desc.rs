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
    /// The beginning that the names of a base model's file lack: `transformer.`, `model.`.
    pub base: &'static str,
    /// The layers.
    pub stack: Stack,
    /// The decoder that reads what they give, where they are an encoder.
    pub decoder: Option<Decoder>,
    /// The head that follows them.
    pub head: Head,
    /// A tower over images, whose features stand at the places of a token.
    pub vision: Option<Vision>,
    /// The losses of its routers, where it has experts.
    pub balance: Option<Balance>,
    /// Starting deviations.
    pub init: Init,
}

/// From images to features of the width of the residual stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Vision {
    /// Its width, its layers and their names; its embedding and head say nothing.
    pub tower: Box<Model>,
    /// The beginning of the names of its parameters before the layers.
    pub prefix: &'static str,
    /// The product over patches, the class token and the positions, which have a row for that too.
    pub tables: [&'static str; 3],
    /// Before the layers.
    pub norm: Norm,
    /// Colours, pixels of a side, and pixels of a patch's side.
    pub image: [u64; 3],
    /// The class token is left out of the features.
    pub drops_class: bool,
    /// From the tower's width to the residual stream's, and within that.
    pub project: [Linear; 2],
    /// Between the two.
    pub act: Act,
    /// The token whose places they take.
    pub token: u64,
    /// Images of a row. It follows from the data.
    pub images: u64,
    /// Parameters that the file has and the features do not need, with their shapes: they stay as they are.
    pub kept: Vec<(String, Vec<u64>)>,
    /// Names of the parameters of the tower, of the projector, and of the language model begin so.
    pub parts: [&'static str; 3],
}

impl Vision {
    /// Patches of an image.
    pub fn patches(&self) -> u64 {
        let [_, side, patch] = self.image;
        (side / patch.max(1)).pow(2)
    }
    /// Values of a patch.
    pub fn patch(&self) -> u64 {
        let [colours, _, patch] = self.image;
        colours * patch * patch
    }
    /// Features of an image: tokens that stand for it.
    pub fn features(&self) -> u64 {
        self.patches() + u64::from(!self.drops_class)
    }
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
    /// The beginning of the names of its layers; layer 3 of `model.layers` is `model.layers.3`.
    pub prefix: &'static str,
    /// The layers.
    pub layers: Vec<Layer>,
}

/// Layers that see what an encoder gives, over the same embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoder {
    /// The token that it begins with, and that which stands for one that does not count.
    pub tokens: [u64; 2],
    /// Tokens of a row that the encoder reads; the decoder reads those behind them. It follows from the data.
    pub read: u64,
    /// The norm behind the encoder, by its whole name.
    pub norm: Norm,
    /// Dropout of what it gives.
    pub dropout: f64,
    /// The beginning of the names of the layers.
    pub prefix: &'static str,
    /// The layers.
    pub layers: Vec<Layer>,
}

/// Token embedding.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Embed {
    /// The beginning of the names below.
    pub prefix: &'static str,
    /// Its table.
    pub table: &'static str,
    /// Width of the table and the layer that brings it to that of the residual stream, by its whole name; `None`: it has that width.
    pub project: Option<(u64, &'static str)>,
    /// Factor of what it gives; 0 = none.
    pub scale: f64,
    /// Tokens of this id add nothing to the table's gradient (`padding_idx`).
    pub padding: Option<u64>,
    /// Learned positions.
    pub positions: Option<Learned>,
    /// A table of kinds of token.
    pub kinds: Option<Kinds>,
    /// After the sum.
    pub norm: Option<Norm>,
    /// Dropout of all of it.
    pub dropout: f64,
}

/// A table of kinds of token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds {
    /// Its name.
    pub table: &'static str,
    /// Its rows.
    pub rows: u64,
    /// Tokens of a row, before which their kinds stand; 0: every token is of the first kind. It follows from the data.
    pub read: u64,
}

/// A table of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learned {
    /// Its name.
    pub table: &'static str,
    /// Its rows.
    pub rows: u64,
    /// The row of the first token.
    pub first: u64,
}

/// Normalisation over the width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Name of the module.
    pub name: &'static str,
    /// The kind of normalisation.
    pub kind: NormKind,
    /// Added to the variance, or to the mean square.
    pub eps: f64,
}

/// The kinds of normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Layer norm with a bias.
    Layer,
    /// Layer norm without one.
    LayerNoBias,
    /// RMS norm.
    Rms,
    /// RMS norm scaled by `1 + w` (Gemma).
    RmsPlusOne,
    /// Layer norm with a bias, scaled by `1 + w` (Nemotron).
    LayerPlusOne,
}

/// A linear layer; its sizes follow from its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Linear {
    /// Name of the module.
    pub name: &'static str,
    /// It has a bias.
    pub bias: bool,
}

/// The ways in which queries, keys and values are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qkv {
    /// Three layers.
    Separate([Linear; 3]),
    /// One, all queries first, then keys, then values.
    Fused(Linear),
    /// One, the queries that share a key-value head, that key and that value after another.
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
    /// The elements that they span.
    pub over: Over,
}

/// The elements that a norm of queries or keys spans, and its scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// All heads together.
    All,
    /// Each head by itself, all with one scale `[head_dim]`.
    Head,
    /// Each head by itself with its row of a scale `[heads, head_dim]`; a layer norm without a bias.
    Rows,
    /// The same of scales that are parameters of their own, `NAME.norms.0.weight` and so on.
    Apart,
}

/// The place of a token, as attention sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Positions {
    /// Not at all (the embedding knows).
    #[default]
    None,
    /// Queries and keys are rotated.
    Rotary(Rotary),
    /// Scores fall with the distance by a slope for each head (Press et al. 2021, arXiv 2108.12409).
    Alibi,
    /// A learned bias for each head and bucket of distances (Raffel et al. 2019, arXiv 1910.10683).
    Buckets(Buckets),
}

/// Biases by distance that are learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// The table `[rows, heads]`; `None`: that of the layers before.
    pub table: Option<&'static str>,
    /// Its rows.
    pub rows: u64,
    /// Tokens at least so far apart share a row.
    pub far: u64,
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
    /// They stand behind the rotation.
    pub rotates_first: bool,
    /// Positions.
    pub positions: Positions,
}

/// Attention of a decoder to what its encoder gives; every token sees all of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cross {
    /// Queries, of the decoder; keys and values, of the encoder.
    pub qkv: [Linear; 3],
    /// The output.
    pub out: Linear,
    /// Heads.
    pub heads: u64,
    /// Width of a head.
    pub head_dim: u64,
    /// Factor of the scores; 0 = 1/sqrt(head_dim).
    pub scale: f64,
    /// Dropout of the weights.
    pub dropout: f64,
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
    Relu2,
    Sigmoid,
    Mish,
    Gelu10,
}

/// The ways in which the MLP goes up to its activation.
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

/// A mixture of experts in the place of the MLP, or beside it: each token goes to some of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// The router's weight `[count, width of the residual stream]`.
    pub router: &'static str,
    /// The stack of the experts' first products, `[count, rows, width of the residual stream]`: of a gated MLP the gate's rows before the others.
    pub up: &'static str,
    /// The stack of their last products, `[count, width of the residual stream, inner width]`.
    pub down: &'static str,
    /// Experts.
    pub count: u64,
    /// Experts of a token.
    pub chosen: u64,
    /// The gates of a token are divided by their sum.
    pub whole: bool,
    /// True for `act(gate) * up`.
    pub gated: bool,
    /// Inner width of an expert.
    pub width: u64,
    /// The activation.
    pub act: Act,
    /// The linear layer `[2, width of the residual stream]` that weighs experts and the layer's MLP, where that stays beside them.
    pub beside: Option<Linear>,
    /// The room that each has for tokens; none: it takes all that choose it.
    pub capacity: Option<Capacity>,
    /// The memory that is planned for rows which come to those of a rank, over that of the rows that come where all get as many.
    pub room: f64,
}

/// [`Experts::room`] where nothing else is asked for.
pub const ROOM: f64 = 2.0;

/// The room that experts have for the tokens that choose them: the choices beyond are dropped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Room over what an expert would need if all had as many tokens.
    pub factor: f64,
    /// Room that an expert has at least, in tokens.
    pub least: u64,
    /// The tokens that share it.
    pub over: Tokens,
    /// The largest probabilities stay, and not the first tokens.
    pub by_probability: bool,
    /// The gates that a token keeps are divided by their sum.
    pub renormalizes: bool,
}

impl Experts {
    /// Rows of an expert's first product.
    pub fn rows(&self) -> u64 {
        self.width * if self.gated { 2 } else { 1 }
    }
    /// Weights of so many experts, for a residual stream of a width.
    pub fn weights(&self, experts: u64, width: u64) -> u64 {
        experts * width * (self.rows() + self.width)
    }
}

/// The auxiliary losses of a model's routers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Balance {
    /// Factor of the loss that is least where experts have equally many tokens.
    pub coefficient: f64,
    /// Factor of the mean square of the log of the sum of exponentials of a token's scores.
    pub z: f64,
    /// The tokens over which it is a mean.
    pub over: Tokens,
    /// Only the tokens whose labels count are in it.
    pub counted: bool,
}

/// The tokens over which the balance of experts is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokens {
    /// Each sequence of each layer by itself.
    Sequence,
    /// Each layer by itself, all tokens of a micro-batch.
    MicroBatch,
    /// All layers together, all tokens of a micro-batch, with as many choices of a token as there are (`transformers`).
    Layers,
}

/// Norms around attention or MLP: `sum(x + after(f(before(x))))`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Around {
    /// The norm of what goes in.
    pub before: Option<Norm>,
    /// The norm of what comes out, before it is added.
    pub after: Option<Norm>,
    /// The norm of the sum.
    pub sum: Option<Norm>,
}

/// The order of attention and MLP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The MLP sees what attention has added.
    #[default]
    Sequential,
    /// Both see what goes into the layer, each behind its own norm.
    Parallel,
    /// Both see what goes into the layer, behind the norm of attention.
    Shared,
}

/// A layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Attention and the norms around it.
    pub attention: (Around, Attention),
    /// Attention to what an encoder gives, between the two, and the norms around it.
    pub cross: Option<(Around, Cross)>,
    /// The MLP and the norms around it.
    pub mlp: (Around, Mlp),
    /// Experts in the place of the MLP.
    pub experts: Option<Experts>,
    /// The order of attention and MLP.
    pub order: Order,
    /// True if the residual branches add to the result of the norm before, not to what it was made
    /// of (BLOOM's `apply_residual_connection_post_layernorm`).
    pub residual_of_norm: bool,
    /// Weights are `[in, out]` (GPT-2's Conv1D).
    pub conv1d: bool,
    /// Dropout of what attention and MLP add.
    pub dropout: f64,
    /// Dropout behind the MLP's activation.
    pub inner_dropout: f64,
    /// Factor of what they add; 0 = none.
    pub factor: f64,
}

/// From the last layer to logits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Head {
    /// The last norm, by its whole name.
    pub norm: Option<Norm>,
    /// Dropout behind it.
    pub dropout: f64,
    /// A layer of the residual stream's width, its activation and its norm.
    pub before: Option<Before>,
    /// The layer that brings the residual stream to the width of the embedding's table, where that is another one.
    pub project: &'static str,
    /// The layer to the vocabulary.
    pub lm: &'static str,
    /// It is the token embedding.
    pub tied: bool,
    /// Its bias, by its whole name.
    pub bias: Option<&'static str>,
    /// Factor of the logits; 0 = none.
    pub scale: f64,
    /// Soft cap of the logits; 0 = none.
    pub cap: f64,
    /// A second head, for rows of two texts.
    pub pair: Option<Pair>,
}

/// The answer to the question if the second text of a row follows the first, by what the first
/// token becomes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// The pooler and the layer to the two answers, by their whole names; both have biases.
    pub layers: [&'static str; 2],
    /// Between them.
    pub act: Act,
    /// Rows say which answer is right; else the head stays as it is. It follows from the data.
    pub labelled: bool,
}

/// The layers between the last block and the product with the vocabulary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Before {
    /// The layer, by its whole name.
    pub linear: Linear,
    /// Its activation.
    pub act: Act,
    /// The norm behind it.
    pub norm: Norm,
}

impl Layer {
    /// Attention and MLP one after the other, each behind a norm.
    pub fn new(attention: (Norm, Attention), mlp: (Norm, Mlp)) -> Layer {
        let before = Around::before;
        Layer::of((before(attention.0), attention.1), (before(mlp.0), mlp.1))
    }
    /// Attention and MLP one after the other, with the norms around them.
    pub fn of(attention: (Around, Attention), mlp: (Around, Mlp)) -> Layer {
        Layer {
            attention,
            cross: None,
            mlp,
            experts: None,
            order: Order::Sequential,
            residual_of_norm: false,
            conv1d: false,
            dropout: 0.0,
            inner_dropout: 0.0,
            factor: 0.0,
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
            sum: None,
        }
    }
    /// A norm of what comes out, and nothing before.
    pub const fn after(norm: Norm) -> Around {
        Around {
            before: None,
            after: Some(norm),
            sum: None,
        }
    }
    /// Norms of what goes in and of what comes out.
    pub const fn both(before: Norm, after: Norm) -> Around {
        Around {
            before: Some(before),
            after: Some(after),
            sum: None,
        }
    }
    /// A norm of the sum.
    pub const fn sum(norm: Norm) -> Around {
        Around {
            before: None,
            after: None,
            sum: Some(norm),
        }
    }
    fn of_kind(&mut self, kind: NormKind) {
        let all = [&mut self.before, &mut self.after, &mut self.sum];
        for norm in all.into_iter().flatten() {
            norm.kind = kind;
        }
    }
}

/// A linear layer by its name.
pub const fn linear(name: &'static str, bias: bool) -> Linear {
    Linear { name, bias }
}

impl Model {
    /// All norms of the residual stream are of this kind.
    pub fn normed_by(mut self, kind: NormKind) -> Model {
        for l in &mut self.stack.layers {
            l.attention.0.of_kind(kind);
            l.mlp.0.of_kind(kind);
        }
        if let Some(norm) = &mut self.head.norm {
            norm.kind = kind;
        }
        self
    }

    /// The name of the token embedding's table.
    pub fn table(&self) -> String {
        format!("{}.{}", self.stack.embed.prefix, self.stack.embed.table)
    }

    /// Tokens of a row of so many columns: where two texts share rows, more than tokens stands in them.
    pub fn tokens_of(&self, columns: u64) -> u64 {
        match self.stack.embed.kinds {
            Some(k) if k.read > 0 => k.read,
            _ => columns,
        }
    }

    /// Width of the embedding's table and of the head.
    pub fn table_width(&self) -> u64 {
        self.stack.embed.project.map_or(self.width, |(w, _)| w)
    }

    /// All layers.
    pub fn layers(&self) -> impl Iterator<Item = &Layer> {
        let behind = self.decoder.iter().flat_map(|d| &d.layers);
        self.stack.layers.iter().chain(behind)
    }

    /// Layers with experts.
    pub fn routed(&self) -> impl Iterator<Item = &Experts> {
        self.layers().filter_map(|l| l.experts.as_ref())
    }

    /// Parameters that a token does not go through: those of the experts that are not chosen for it.
    pub fn idle(&self) -> u64 {
        let of = |e: &Experts| e.weights(e.count - e.chosen, self.width);
        self.routed().map(of).sum()
    }

    /// Weights of the linear layers that one token goes through, the head included. (Of encoder and decoder a token goes through one; here
    /// it is counted in both, which is less than a tenth too much in T5's samples.)
    fn multiplied(&self) -> u64 {
        let of = |l: &Layer| {
            let (a, m) = (&l.attention.1, &l.mlp.1);
            let (q, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
            let ups = if matches!(m.up, Up::Plain(_)) { 1 } else { 2 };
            let cross = l
                .cross
                .map_or(0, |(_, c)| 4 * self.width * c.heads * c.head_dim);
            let dense = (ups + 1) * self.width * m.width;
            let inner = match l.experts {
                // Of its experts a token goes through some, and of the router through all of it.
                Some(e) => {
                    let routed = e.weights(e.chosen, self.width) + e.count * self.width;
                    routed + e.beside.map_or(0, |_| dense + 2 * self.width)
                }
                None => dense,
            };
            self.width * (q + 2 * kv) + q * self.width + inner + cross
        };
        let table = self.table_width();
        let projections = if table == self.width { 0 } else { 2 };
        let before = self.head.before.map_or(0, |_| self.width * self.width);
        let ends = self.vocab * table + projections * table * self.width + before;
        self.layers().map(of).sum::<u64>() + ends
    }

    /// Floating-point operations a trained token costs at sequence length `t`: 6 per matmul weight + 12 L d T for attention (PaLM's appendix
    /// B; no causal discount).
    pub fn flops_per_token(&self, t: u64) -> f64 {
        let inner = |l: &Layer| l.attention.1.heads * l.attention.1.head_dim;
        let attention: u64 = self.layers().map(inner).sum();
        6.0 * self.multiplied() as f64 + 12.0 * (attention * t) as f64
    }
}
