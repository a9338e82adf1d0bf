//! What the ranks of `mesh.tp` gather and sum of hidden states, by the formulas of docs/sequence.md.

use crossweave_nn::desc::{Layer, Model, Order};
use crossweave_nn::split;

/// The hidden states that go over `mesh.tp` in the layers of a model, and its ends.
#[derive(Clone, Copy, Debug)]
pub struct OverTp {
    /// Inputs of first products, over all layers: gathered, or whole with gradients that are summed.
    entries: u64,
    /// Results that are summed over the ranks, over all layers.
    sums: u64,
    /// Widths of keys and values that several ranks share, over all layers.
    shared: u64,
    /// The rows of the vocabulary are cut.
    vocabulary: bool,
    /// Hidden states between layers are cut by tokens.
    pieces: bool,
    /// Layers whose whole inputs are kept in parts where they are recomputed.
    in_parts: u64,
}

/// Elements that a rank sends for a micro-batch, for each of `(t-1)/t` elements of a hidden state or of a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sent {
    /// Hidden states of all layers.
    pub layers: u64,
    /// Numbers a token of all layers: keys and values that several ranks share.
    pub shared: u64,
    /// Hidden states of the table.
    pub table: u64,
    /// Hidden states of the head.
    pub head: u64,
    /// `2 (t + 1)` numbers a token, so often.
    pub loss: u64,
}

impl OverTp {
    /// That of a model that `tp` ranks share. `pieces`: hidden states are cut by tokens; `adapted`: the last products of layers have adapters;
    /// `in_parts`: inputs of what is recomputed are.
    pub fn of(model: &Model, tp: u64, [pieces, adapted, in_parts]: [bool; 3]) -> OverTp {
        let decoder = model.decoder.iter().flat_map(|d| &d.layers);
        let layers = || model.stack.layers.iter().chain(decoder.clone());
        let each = layers().map(|l| of_layer(l, adapted));
        let (entries, sums) = each.fold((0, 0), |(e, s), [x, y]| (e + x, s + y));
        let shared = layers().map(|l| &l.attention.1);
        let shared = shared.filter(|a| split::shares(a, tp));
        OverTp {
            entries,
            sums,
            shared: shared.map(|a| 2 * a.kv_heads * a.head_dim).sum(),
            vocabulary: split::vocabulary(model, tp),
            pieces,
            in_parts: if in_parts { layers().count() as u64 } else { 0 },
        }
    }

    /// Does a rank keep its part of the whole inputs of what is recomputed?
    pub fn is_in_parts(&self) -> bool {
        self.in_parts > 0
    }

    /// What a rank sends, where layers are `recomputed` or not. A sum of whole hidden states is two, and it comes for each result in the forward and for each input in the
    /// backward (Shoeybi et al., arXiv 1909.08053, §3). Of pieces an input is gathered, gathered once more for the backward unless the
    /// layer is recomputed anyway, and its gradient scattered; a result is scattered, and its gradient gathered (Korthikanti et al.,
    /// arXiv 2205.05198, §4.2).
    pub fn sent(&self, recomputed: bool) -> Sent {
        let [entry, sum] = match (self.pieces, recomputed) {
            (false, false) => [2, 2],
            (false, true) => [2, 4],
            (true, false) => [3, 2],
            (true, true) => [3, 3],
        };
        let again = u64::from(recomputed);
        let [table, head] = match (self.vocabulary, self.pieces) {
            (true, true) => [2 + again, 3],
            (true, false) => [2 + 2 * again, 2],
            // A whole table gives every rank its piece, and gathers the gradient; a whole head gathers its input.
            (false, true) => [1, 1 + again],
            (false, false) => [0, 0],
        };
        // A rank gathers each input before the unit is run again.
        let kept = if recomputed { self.in_parts } else { 0 };
        Sent {
            layers: self.entries * entry + self.sums * sum + kept,
            shared: self.shared * (2 + u64::from(self.pieces) * again),
            table,
            head: head + kept.min(1),
            loss: u64::from(self.vocabulary) * (1 + again),
        }
    }
}

/// Inputs and results of a layer: each of attention, MLP and attention to an encoder its own, but for what stands beside each other. Tokens go to experts from where
/// they are, and an MLP that stays beside these has its own.
fn of_layer(l: &Layer, adapted: bool) -> [u64; 2] {
    let ((a, _), (m, _)) = (&l.attention, &l.mlp);
    let cross = u64::from(l.cross.is_some());
    if let Some(e) = &l.experts {
        let beside = u64::from(e.beside.is_some());
        return [1 + beside + 2 * cross, 1 + beside + cross];
    }
    if l.order == Order::Sequential {
        // Of attention to an encoder what it gives enters too.
        return [2 + 2 * cross, 2 + cross];
    }
    let entries = match l.order == Order::Shared && m.before.is_none() {
        true => 1,
        false => 2,
    };
    let plain = a.after.is_none() && m.after.is_none() && l.factor == 0.0;
    let one_sum = plain && l.dropout == 0.0 && !l.residual_of_norm && !adapted;
    [entries, if one_sum { 1 } else { 2 }]
}
