//! The head that says whether the second text of a row follows the first: a pooler over the first token, and a layer to two answers.

use crate::desc::Pair;
use crate::parts::Curve;
use crossweave_tensor::ops::pair;
use crossweave_tensor::{Cx, Group, Init, Param, Result, Unit, Var};

/// The layers that answer, where rows say which answer is right.
pub struct Answer {
    /// Weights and biases of both layers.
    layers: [[Param; 2]; 2],
    act: Curve,
}

impl Answer {
    /// Declares its parameters. They stay as they are where no row says which answer is right; `None` then.
    pub fn declare(u: &mut Unit<'_>, pair: &Pair, width: u64, std: Init) -> Option<Answer> {
        let [pooler, answers] = pair.layers;
        let layers = [(pooler, width), (answers, 2)].map(|(name, out)| {
            let weight = u.param(&format!("{name}.weight"), &[out, width], std);
            [
                weight,
                u.param(&format!("{name}.bias"), &[out], Init::Zeros),
            ]
        });
        if !pair.labelled {
            for p in layers.iter().flatten() {
                u.group(*p, Group::Frozen);
            }
            return None;
        }
        let act = Curve::of(pair.act);
        Some(Answer { layers, act })
    }

    /// The logits of both answers, `[B, 1, 2]`.
    pub fn run(&self, cx: &mut Cx<'_>, x: Var) -> Result<Var> {
        let [[w, b], [to, shift]] = self.layers;
        let x = pair::first(cx, x)?;
        let x = cx.linear(x, w, Some(b))?;
        let x = self.act.run(cx, x)?;
        cx.linear(x, to, Some(shift))
    }
}
