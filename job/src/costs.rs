//! What the units of a model cost against each other: multiply-adds of a token in the forward and in both parts of the backward.

use crate::Job;
use crate::error::Result;
use crossweave_mesh::Place;
use crossweave_plan::UnitFacts;
use crossweave_planner::Cost;
use crossweave_tensor::{ParamDecl, UnitDecl};

/// What the first rank's dry run found: sizes of each unit, and the batch and sequence length that they are of.
pub type Sizes<'a> = (&'a [UnitFacts], (u64, u64));

impl Job {
    /// Multiply-adds of a token in each unit, of the part that the rank at a place has of it.
    ///
    /// # Errors
    /// As [`Job::units`].
    pub fn unit_costs(&self, place: &Place, sizes: Sizes<'_>) -> Result<Vec<Cost>> {
        let model = self.source.spec.model();
        let experts = model
            .routed()
            .next()
            .map_or((1, 1), |e| (e.chosen, e.count));
        Ok(unit_costs(&self.units(place)?, sizes, experts))
    }
}

/// Multiply-adds of a token in each unit: the elements of the matrices that it meets, the unit's own and those it is tied to, and attention's look
/// at the other tokens. Of stacks of experts a token meets `chosen` of `all`. The first unit looks rows up and multiplies nothing.
///
/// A product's backward is two as large: for its input, and for its weights where these are trained. Products of experts are whole in the first
/// part; so is attention, which has no weights. Units before the first that is trained have no backward.
fn unit_costs(units: &[UnitDecl], sizes: Sizes<'_>, (chosen, all): (u64, u64)) -> Vec<Cost> {
    let (found, (batch, seq)) = sizes;
    let is_stack = |p: &ParamDecl| p.shape.rank() == 3;
    let met = |p: &ParamDecl| match is_stack(p) {
        true => p.shape.numel() * chosen / all.max(1),
        false => p.shape.numel(),
    };
    let mut trains = units.iter().map(|u| u.params.iter());
    let first = trains.position(|mut params| params.any(|p| p.group.trains()));
    let one = |u: usize| -> Cost {
        // What only holds parameters for the unit behind it is counted there.
        if u == 0 || units[u].lends {
            return Cost::default();
        }
        let own = units[u].params.iter();
        let lent = units[u].borrowed.iter().map(|(o, p)| &units[*o].params[*p]);
        let matrices = own.chain(lent).filter(|p| p.shape.rank() > 1);
        let matrices: Vec<&ParamDecl> = matrices.collect();
        let of = |pick: &dyn Fn(&ParamDecl) -> bool| -> u64 {
            let those = matrices.iter().filter(|p| pick(p));
            those.map(|p| met(p)).sum()
        };
        let products = of(&|_| true);
        let trained = |p: &ParamDecl| p.group.trains();
        // Each token meets every other twice, as wide as the hidden state is.
        let attention = match u + 1 == units.len() {
            true => 0,
            false => {
                let f = &found[u];
                let element = (f.param_bytes / f.params.max(1)).max(1);
                2 * seq * (f.flow_bytes / (element * batch * seq).max(1))
            }
        };
        let back = u64::from(first.is_some_and(|first| u >= first));
        Cost {
            forward: products + attention,
            input: back * (products + 2 * attention) + of(&|p| trained(p) && is_stack(p)),
            weights: of(&|p| trained(p) && !is_stack(p)),
        }
    };
    (0..units.len()).map(one).collect()
}
