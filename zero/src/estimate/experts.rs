//! Parameters of decoders with experts: standard, pyramid-residual, and shortened ones (Rajbhandari et al. 2022, arXiv 2201.05596).
//!
//! Every other layer has experts, each an MLP of the layer's shape. A standard layer has them in place of its MLP; a residual one keeps its MLP,
//! to which one expert is added by two learned weights. In a pyramid the last layers have more of them. A shortened model (the student of a
//! mixture of students) has fewer layers.

use super::Shape;

/// A decoder with experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// The decoder; with a learned position for each of its tokens.
    pub shape: Shape,
    /// Experts of each layer that has some, in order.
    pub experts: &'static [u64],
    /// The MLP stays beside them.
    pub residual: bool,
}

impl Experts {
    /// Parameters outside of experts: `12 L h^2` and biases and norms, with embedding and positions; where experts replace an MLP, without it.
    pub fn dense(&self) -> u64 {
        let (h, layers) = (self.shape.hidden, self.shape.layers);
        let each = 12 * h * h + 13 * h;
        let ends = (self.shape.vocab + self.shape.seq) * h + 2 * h;
        let replaced = match self.residual {
            true => 0,
            false => self.experts.len() as u64 * self.expert(),
        };
        layers * each + ends - replaced
    }

    /// Parameters of an expert: two matrices to and from four times the width, with their biases.
    fn expert(&self) -> u64 {
        let h = self.shape.hidden;
        8 * h * h + 5 * h
    }

    /// Parameters of all experts, and of what chooses and weighs them.
    pub fn sparse(&self) -> u64 {
        let h = self.shape.hidden;
        let n: u64 = self.experts.iter().sum();
        // Without a bias over the experts; with one over the two that a residual layer weighs.
        let weights = if self.residual { 2 * h + 2 } else { 0 };
        n * (self.expert() + h) + self.experts.len() as u64 * weights
    }

    /// All parameters.
    pub fn params(&self) -> u64 {
        self.dense() + self.sparse()
    }
}

const fn shape(layers: u64, hidden: u64, heads: u64) -> Shape {
    Shape {
        layers,
        hidden,
        heads,
        vocab: 50257,
        seq: 2048,
    }
}

const fn of(shape: Shape, experts: &'static [u64], residual: bool) -> Experts {
    Experts {
        shape,
        experts,
        residual,
    }
}

/// The models of that paper, whose shapes are those of DeepSpeed's tutorial (`docs/_tutorials/mixture-of-experts-nlg.md`), by names that say how
/// they are made, the parameters that are published of each, and the standard one that it is compared with.
#[rustfmt::skip]
pub const PUBLISHED: &[(&str, Experts, f64, &str)] = &[
    ("350m+moe-128", of(shape(24, 1024, 16), &[128; 12], false), 13e9, "350m+moe-128"),
    ("350m+pr-moe-32/64", of(shape(24, 1024, 16), &[32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 64, 64], true), 4e9, "350m+moe-128"),
    ("350m+pr-moe-32/64+l21", of(shape(21, 1024, 16), &[32, 32, 32, 32, 32, 32, 32, 32, 64, 64], true), 3.5e9, "350m+moe-128"),
    ("1.3b+moe-128", of(shape(24, 2048, 16), &[128; 12], false), 52e9, "1.3b+moe-128"),
    ("1.3b+pr-moe-64/128", of(shape(24, 2048, 16), &[64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 128, 128], true), 31e9, "1.3b+moe-128"),
    ("1.3b+pr-moe-64/128+l21", of(shape(21, 2048, 16), &[64, 64, 64, 64, 64, 64, 64, 64, 128, 128], true), 27e9, "1.3b+moe-128"),
];
