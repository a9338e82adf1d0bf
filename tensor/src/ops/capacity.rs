//! Capacities of experts (Lepikhin et al. 2021, arXiv 2006.16668; Fedus et al. 2022, arXiv 2101.03961): an expert has slots for the choices of a
//! group of tokens, as many for each group, and what finds none is dropped.
//!
//! A routing of that kind has a place for each slot, experts one behind the other and the groups of each within it, so that no number follows from
//! data: what stands in a slot does. A slot that nobody has is a row of zeros, which nobody reads; a dropped choice has no place (-1), from
//! which zeros are read and to which nothing is added, so that its gate is lost.

use super::balance::Scope;
use super::launch::{binary, count, counted, picked, sorted, whole};
use super::routing::Routing;
use crate::error::{Result, shape_error};
use crate::{Run, Tensor};
use crossweave_hal::DType;
use crossweave_hal::abi::op;

/// The order in which choices of an expert are given its slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// Those of the largest probability, of equal ones the earlier token's.
    #[default]
    Probability,
    /// Those of the first tokens.
    Position,
}

/// The room that experts have for choices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// The tokens of a group.
    pub over: Scope,
    /// Slots of an expert over those that it would need if all experts had as many choices.
    pub factor: f64,
    /// Slots that it has at least.
    pub least: u64,
    /// The choices that keep them.
    pub first: Priority,
    /// The gates that a token keeps are divided by their sum.
    pub renormalizes: bool,
}

/// An i32 that is no place: gathered, it is zeros.
const NOWHERE: u64 = u32::MAX as u64;
/// The part by which a factor written in decimals may be off.
const DECIMALS: f64 = 1e-9;

impl Capacity {
    /// Slots of each of `e` experts for a group of tokens that choose `k` each: `max(ceil(factor k tokens / e), least)`, and no more than there are
    /// tokens, since none chooses an expert twice. A factor is a decimal number, and what its binary form adds to it is not rounded up.
    pub fn slots(&self, tokens: u64, [k, e]: [u64; 2]) -> u64 {
        let even = self.factor * (tokens * k) as f64 / e.max(1) as f64;
        ((even * (1.0 - DECIMALS)).ceil() as u64)
            .max(self.least)
            .min(tokens)
    }

    /// The groups of tokens in probabilities `[B, T, E]`.
    pub(super) fn groups(&self, probabilities: &Tensor) -> u64 {
        match (self.over, probabilities.shape().dims()) {
            (Scope::Sequence, [b, _, _]) => *b,
            _ => 1,
        }
    }

    /// The places of choices `[n k]`, of the probabilities `values`, of `n` tokens in `groups`.
    pub(super) fn routing(
        &self,
        run: &Run<'_>,
        [experts, values]: [&Tensor; 2],
        groups: u64,
        sizes: [u64; 3],
    ) -> Result<Routing> {
        let ([n, k, e], choices) = (sizes, experts.numel());
        let (cells, each) = (e * groups, n / groups * k);
        let slots = self.slots(n / groups, [k, e]);
        let rows = cells * slots;
        if rows + choices + slots >= i32::MAX as u64 {
            return shape_error(format!(
                "choose_experts: {slots} slots of {e} experts for each of {groups} groups of tokens"
            ));
        }
        let change = |kind, a: &Tensor, b: &Tensor| binary(run, kind, [a, a, b]);
        let by = |kind, a: &Tensor, b: u64| binary(run, kind, [a, a, &whole(run, b, a.numel())?]);
        // The cell of a choice: those of an expert are its groups.
        let numbers = count(run, choices)?;
        let cell = count(run, choices)?;
        by(op::binary::DIV, &cell, each)?;
        let first = run.empty([choices], DType::I32)?;
        let many = whole(run, groups, choices)?;
        binary(run, op::binary::MUL, [&first, experts, &many])?;
        change(op::binary::ADD, &cell, &first)?;
        // Choices by their cells, and within one in the order in which they keep slots.
        let (keys, order) = match self.first {
            Priority::Position => (cell.clone(), numbers.clone()),
            Priority::Probability => {
                let [_, by] = sorted(run, [values, &numbers], op::FLAG_DESCENDING)?;
                (picked(run, &cell, &by)?, by)
            }
        };
        let [cell_at, order] = sorted(run, [&keys, &order], 0)?;
        let [counts, starts] = counted(run, &cell, cells)?;
        change(op::binary::SUB, &starts, &counts)?;
        // The slot of each, where that is one of the cell's.
        let slot = numbers;
        change(op::binary::SUB, &slot, &picked(run, &starts, &cell_at)?)?;
        by(op::binary::MIN, &slot, slots)?;
        let beyond = run.empty([choices], DType::I32)?;
        binary(
            run,
            op::binary::DIV,
            [&beyond, &slot, &whole(run, slots, choices)?],
        )?;
        by(op::binary::MUL, &beyond, rows + 1)?;
        by(op::binary::MUL, &cell_at, slots)?;
        change(op::binary::ADD, &slot, &cell_at)?;
        change(op::binary::SUB, &slot, &beyond)?;
        by(op::binary::MAX, &slot, NOWHERE)?;
        let [_, place] = sorted(run, [&order, &slot], 0)?;
        // The choice in each slot, where there is one.
        let at = count(run, rows)?;
        let cell_of = count(run, rows)?;
        by(op::binary::DIV, &cell_of, slots)?;
        let before = run.empty([rows], DType::I32)?;
        binary(
            run,
            op::binary::MUL,
            [&before, &cell_of, &whole(run, slots, rows)?],
        )?;
        change(op::binary::SUB, &at, &before)?;
        let beyond = before;
        binary(
            run,
            op::binary::SUB,
            [&beyond, &at, &picked(run, &counts, &cell_of)?],
        )?;
        by(op::binary::ADD, &beyond, 1)?;
        by(op::binary::MAX, &beyond, 0)?;
        by(op::binary::MIN, &beyond, 1)?;
        by(op::binary::MUL, &beyond, choices + slots)?;
        change(op::binary::ADD, &at, &picked(run, &starts, &cell_of)?)?;
        change(op::binary::SUB, &at, &beyond)?;
        by(op::binary::ADD, &order, 1)?;
        let order = picked(run, &order, &at)?;
        by(op::binary::ADD, &order, NOWHERE)?;
        // A quotient of -1 would be 0.
        let token = run.empty([rows], DType::I32)?;
        binary(
            run,
            op::binary::DIV,
            [&token, &order, &whole(run, k, rows)?],
        )?;
        change(op::binary::MIN, &token, &order)?;
        let [ends, counts] = alike(run, e, groups * slots)?;
        Ok(Routing::limited(
            experts.clone(),
            [order, place, token, ends, counts],
            sizes,
        ))
    }
}

/// Ends and numbers of `each` rows for every one of `e` experts, i32 `[e]`.
fn alike(run: &Run<'_>, e: u64, each: u64) -> Result<[Tensor; 2]> {
    let ends = run.empty([e], DType::I32)?;
    let p = op::IotaParams {
        start: each as f64,
        step: each as f64,
        ..Default::default()
    };
    run.launch(op::IOTA, &[Some(&ends)], p.as_bytes(), &[])?;
    let counts = run.empty([e], DType::I32)?;
    run.stream().fill(counts.region(), each, 4)?;
    Ok([ends, counts])
}
