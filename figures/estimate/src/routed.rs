//! What ranks send each other for experts, by the formulas of docs/moe.md: rows to the ranks of their experts and back, the numbers of these, and what is
//! counted and decided over the tokens of whole rows.

use crossweave_axes::Axis;
use crossweave_nn::desc::{Experts, Model, Tokens};
use crossweave_nn::room_of;
use crossweave_tensor::{Capacity, Priority, Scope};

/// The layers of a model that have experts.
#[derive(Clone, Debug)]
pub struct Routed {
    layers: Vec<Layer>,
    /// The tokens over which their balance is looked at, where it is.
    balance: Option<Tokens>,
}

/// A layer with experts.
#[derive(Clone, Copy, Debug)]
struct Layer {
    experts: u64,
    chosen: u64,
    room: Option<Capacity>,
}

/// What a rank has of a micro-batch.
#[derive(Clone, Copy, Debug)]
pub struct OfRank {
    /// Rows.
    pub batch: u64,
    /// Tokens of each: in hidden states, in keys and labels, and in whole.
    pub tokens: [u64; 3],
    /// Width of hidden states.
    pub width: u64,
    /// A backward makes its forward once more.
    pub recomputed: bool,
}

/// What a rank sends for a micro-batch over an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sent {
    /// Elements of rows, in the compute type.
    pub rows: f64,
    /// Numbers of four bytes.
    pub numbers: f64,
}

impl Routed {
    /// Those of a model; none where it has no experts.
    pub fn of(model: &Model) -> Option<Routed> {
        let layer = |e: &Experts| Layer {
            experts: e.count,
            chosen: e.chosen,
            room: room_of(e),
        };
        let layers: Vec<Layer> = model.routed().map(layer).collect();
        let balance = model.balance.map(|b| b.over);
        (!layers.is_empty()).then_some(Routed { layers, balance })
    }

    /// Their number.
    pub fn count(&self) -> usize {
        self.layers.len()
    }

    /// What a rank sends for a micro-batch over so many ranks along an axis, where all experts get as many rows.
    pub fn sent(&self, of: &OfRank, (axis, ranks): (Axis, u32)) -> Sent {
        let each = self.layers.iter();
        let each = each.map(|l| self.of_layer(of, l, (axis, f64::from(ranks))));
        each.fold(Sent::default(), |all, one| Sent {
            rows: all.rows + one.rows,
            numbers: all.numbers + one.numbers,
        })
    }

    /// The same of a layer.
    fn of_layer(&self, of: &OfRank, l: &Layer, (axis, n): (Axis, f64)) -> Sent {
        let others = n - 1.0;
        let forwards = if of.recomputed { 2.0 } else { 1.0 };
        let moved = 2.0 * (forwards + 1.0) * (l.rows(of) * of.width) as f64;
        // Slots have a fixed number, and of rows it is said once.
        let said = match l.room {
            Some(_) => 0.0,
            None => l.experts as f64,
        };
        match axis {
            Axis::Ep => Sent {
                rows: moved * others / n,
                numbers: said * others / n,
            },
            Axis::Etp => Sent {
                rows: moved * others,
                numbers: said * others,
            },
            _ => {
                // Gathered over `tp` first, and then the pieces of `cp`.
                let piece = of.tokens[usize::from(axis == Axis::Cp)];
                let decided = l.room.map_or(0, |room| {
                    let by_probability = room.first == Priority::Probability;
                    let each = l.chosen * if by_probability { 2 } else { 1 };
                    each * of.batch * piece
                });
                let sums = match self.balance {
                    None => 0,
                    Some(Tokens::Sequence) => l.experts * of.batch,
                    Some(_) => l.experts,
                };
                let numbers = decided as f64 + 2.0 * sums as f64 / n;
                Sent {
                    rows: 0.0,
                    numbers: forwards * others * numbers,
                }
            }
        }
    }

    /// The formula over an axis of experts.
    pub fn formula(&self, of: &OfRank, axis: Axis) -> String {
        let moves = if of.recomputed { 6 } else { 4 };
        let part = match axis {
            Axis::Ep => "(e-1)/e",
            _ => "(etp-1)",
        };
        match self.layers.first().and_then(|l| l.room) {
            None => {
                format!("L g ({moves} h r + E){part} of r rows of a rank, in L layers with experts")
            }
            Some(_) => {
                format!("{moves}L g ECh{part} of C slots of an expert, in L layers with experts")
            }
        }
    }
}

impl Layer {
    /// Rows of a rank's tokens in a micro-batch, or slots for them.
    fn rows(&self, of: &OfRank) -> u64 {
        let (b, [own, _, whole]) = (of.batch, of.tokens);
        let by = [self.chosen, self.experts];
        match self.room {
            None => b * own * self.chosen,
            Some(c) if c.over == Scope::Sequence => b * self.experts * c.slots(whole, by).min(own),
            Some(c) => self.experts * c.slots(b * whole, by).min(b * own),
        }
    }
}
