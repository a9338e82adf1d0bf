//! Capacities of experts (Lepikhin et al. 2021, arXiv 2006.16668; Fedus et al. 2022, arXiv 2101.03961): an expert has slots for the choices of a
//! group of tokens, as many for each group, and what finds none is dropped.
//!
//! A routing of that kind has a place for each slot, experts one behind the other and the groups of each within it, so that no number follows from
//! data: what stands in a slot does. A slot that nobody has is a row of zeros, which nobody reads; a dropped choice has no place (-1), from
//! which zeros are read and to which nothing is added, so that its gate is lost.
//!
//! Where ranks have pieces of rows the choices of whole rows are gathered, and every rank decides over all of them alike. Those of its own tokens that stay
//! then have slots of the piece: as many as of a whole row, or as there are tokens in it, where these are fewer.

use super::add;
use super::balance::Scope;
use super::comm::{cutting, of_own_tokens, of_whole_rows};
use super::launch::{binary, cast, count, counted, picked, sorted, whole};
use super::routing::Routing;
use crate::env::Env;
use crate::error::{Result, shape_error};
use crate::{Run, Tensor};
use crossweave_hal::DType;
use crossweave_hal::abi::op;

/// The name of the exchange of what the tokens of whole rows have chosen.
pub const CHOICES: &str = "choices of rows";

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

/// What tokens have chosen, choice `t k + j` the `j`-th of token `t`: experts, i32, and where these decide their probabilities.
struct Choices {
    experts: Tensor,
    values: Option<Tensor>,
}

/// The slots of choices, by cells of as many: those of an expert are its groups.
struct Slotted {
    /// The slot of each choice; -1: none.
    place: Tensor,
    /// Choices by their cells, and within one in the order in which they keep slots.
    order: Tensor,
    /// Choices of each cell, and where they begin among these.
    counts: Tensor,
    starts: Tensor,
}

/// `a = f(a, b)`.
fn change(run: &Run<'_>, kind: u32, a: &Tensor, b: &Tensor) -> Result<()> {
    binary(run, kind, [a, a, b])
}

/// `a = f(a, b)` of one number.
fn by(run: &Run<'_>, kind: u32, a: &Tensor, b: u64) -> Result<()> {
    change(run, kind, a, &whole(run, b, a.numel())?)
}

/// `f(a, b)` of one number.
fn with(run: &Run<'_>, kind: u32, a: &Tensor, b: u64) -> Result<Tensor> {
    let y = run.empty([a.numel()], DType::I32)?;
    binary(run, kind, [&y, a, &whole(run, b, a.numel())?])?;
    Ok(y)
}

impl Slotted {
    /// Those of choices of `cells`, where cell number `cells` has none: within one by the largest of `values`, or in their order.
    fn of(
        run: &Run<'_>,
        cell: &Tensor,
        values: Option<&Tensor>,
        [cells, slots]: [u64; 2],
    ) -> Result<Slotted> {
        let (rows, choices) = (cells * slots, cell.numel());
        if rows + choices + slots + 1 >= i32::MAX as u64 {
            return shape_error(format!(
                "choose_experts: {choices} choices for {cells} cells of {slots} slots each"
            ));
        }
        let numbers = count(run, choices)?;
        let (keys, order) = match values {
            None => (cell.clone(), numbers.clone()),
            Some(values) => {
                let [_, by] = sorted(run, [values, &numbers], op::FLAG_DESCENDING)?;
                (picked(run, cell, &by)?, by)
            }
        };
        let [cell_at, order] = sorted(run, [&keys, &order], 0)?;
        let [counts, starts] = counted(run, cell, cells + 1)?;
        change(run, op::binary::SUB, &starts, &counts)?;
        let slot = numbers;
        change(
            run,
            op::binary::SUB,
            &slot,
            &picked(run, &starts, &cell_at)?,
        )?;
        by(run, op::binary::MIN, &slot, slots)?;
        // 1 for a choice behind the last slot, and for one without a cell.
        let lost = with(run, op::binary::DIV, &slot, slots)?;
        let without = with(run, op::binary::DIV, &cell_at, cells)?;
        change(run, op::binary::MAX, &lost, &without)?;
        by(run, op::binary::MUL, &lost, rows + slots + 1)?;
        by(run, op::binary::MUL, &cell_at, slots)?;
        change(run, op::binary::ADD, &slot, &cell_at)?;
        change(run, op::binary::SUB, &slot, &lost)?;
        by(run, op::binary::MAX, &slot, NOWHERE)?;
        let [_, place] = sorted(run, [&order, &slot], 0)?;
        Ok(Slotted {
            place,
            order,
            counts,
            starts,
        })
    }

    /// The choice in each slot; -1: none.
    fn choices(&self, run: &Run<'_>, [cells, slots]: [u64; 2]) -> Result<Tensor> {
        let (rows, choices) = (cells * slots, self.place.numel());
        let at = count(run, rows)?;
        let cell_of = with(run, op::binary::DIV, &at, slots)?;
        let before = with(run, op::binary::MUL, &cell_of, slots)?;
        change(run, op::binary::SUB, &at, &before)?;
        let beyond = before;
        let counts = picked(run, &self.counts, &cell_of)?;
        binary(run, op::binary::SUB, [&beyond, &at, &counts])?;
        by(run, op::binary::ADD, &beyond, 1)?;
        by(run, op::binary::MAX, &beyond, 0)?;
        by(run, op::binary::MIN, &beyond, 1)?;
        by(run, op::binary::MUL, &beyond, choices + slots)?;
        let starts = picked(run, &self.starts, &cell_of)?;
        change(run, op::binary::ADD, &at, &starts)?;
        change(run, op::binary::SUB, &at, &beyond)?;
        let numbered = with(run, op::binary::ADD, &self.order, 1)?;
        let choice = picked(run, &numbered, &at)?;
        by(run, op::binary::ADD, &choice, NOWHERE)?;
        Ok(choice)
    }
}

/// The cell of each choice of an expert of groups of `each` choices.
fn cells(run: &Run<'_>, experts: &Tensor, [groups, each]: [u64; 2]) -> Result<Tensor> {
    let cell = count(run, experts.numel())?;
    by(run, op::binary::DIV, &cell, each)?;
    let first = with(run, op::binary::MUL, experts, groups)?;
    change(run, op::binary::ADD, &cell, &first)?;
    Ok(cell)
}

impl Choices {
    /// Those of whole rows, given the `k` of each of `[b, t]` tokens that are here; none where rows are not cut. Numbers of experts travel with their
    /// probabilities, in an f32 that has them exactly.
    fn of_rows(&self, env: &Env<'_>, [b, t, k]: [u64; 3]) -> Result<Option<Choices>> {
        if cutting(env).is_empty() {
            return Ok(None);
        }
        let run = env.run;
        let Some(values) = &self.values else {
            let all = of_whole_rows(env, CHOICES, &self.experts.view([b, t, k]))?;
            return Ok(Some(Choices {
                experts: all.view([all.numel()]),
                values: None,
            }));
        };
        let both = run.empty([b * t, 2 * k], DType::F32)?;
        let numbers = cast(run, &self.experts, DType::F32)?;
        for (at, half) in [(0, values), (k, &numbers)] {
            add::copy(env, &both.narrow(1, at, k), &half.view([b * t, k]))?;
        }
        let all = of_whole_rows(env, CHOICES, &both.view([b, t, 2 * k]))?.rows();
        let n = all.shape().rows() * k;
        let values = cast(run, &all.narrow(1, 0, k), DType::F32)?.view([n]);
        let experts = cast(run, &all.narrow(1, k, k), DType::I32)?.view([n]);
        Ok(Some(Choices {
            experts,
            values: Some(values),
        }))
    }
}

impl Capacity {
    /// Slots of each of `e` experts for a group of tokens that choose `k` each: `max(ceil(factor k tokens / e), least)`, and no more than there are
    /// tokens, since none chooses an expert twice. A factor is a decimal number, and what its binary form adds to it is not rounded up.
    pub fn slots(&self, tokens: u64, [k, e]: [u64; 2]) -> u64 {
        let even = self.factor * (tokens * k) as f64 / e.max(1) as f64;
        ((even * (1.0 - DECIMALS)).ceil() as u64)
            .max(self.least)
            .min(tokens)
    }

    /// The places of choices `[n k]`, of the probabilities `values`, of the tokens `[b, t]` that are here.
    pub(super) fn routing(
        &self,
        env: &Env<'_>,
        [experts, values]: [&Tensor; 2],
        rows: [u64; 2],
        sizes: [u64; 3],
    ) -> Result<Routing> {
        let (run, [n, k, e], [b, t]) = (env.run, sizes, rows);
        let groups = match self.over {
            Scope::Sequence => b,
            Scope::MicroBatch => 1,
        };
        let own = Choices {
            experts: experts.clone(),
            values: (self.first == Priority::Probability).then(|| values.clone()),
        };
        let decided = |of: &Choices| -> Result<(Slotted, u64)> {
            let each = of.experts.numel() / groups;
            let slots = self.slots(each / k, [k, e]);
            let cell = cells(run, &of.experts, [groups, each])?;
            Ok((
                Slotted::of(run, &cell, of.values.as_ref(), [e * groups, slots])?,
                slots,
            ))
        };
        let (slotted, slots, judged) = match own.of_rows(env, [b, t, k])? {
            None => {
                let (slotted, slots) = decided(&own)?;
                let judged = slotted.place.clone();
                (slotted, slots, judged)
            }
            Some(all) => {
                let (all, slots) = decided(&all)?;
                let judged = all.place;
                let tokens = judged.numel() / (b * k);
                let place = of_own_tokens(env, CHOICES, &judged.view([b, tokens, k]))?;
                let (each, slots) = (n / groups * k, slots.min(n / groups));
                let cell = cells(run, experts, [groups, each])?;
                // Behind the last cell where it was dropped: -1 times the number of cells, turned round.
                let lost = with(run, op::binary::MIN, &place.view([n * k]), 0)?;
                by(
                    run,
                    op::binary::MUL,
                    &lost,
                    u64::from(((e * groups) as u32).wrapping_neg()),
                )?;
                change(run, op::binary::MAX, &cell, &lost)?;
                let own = Slotted::of(run, &cell, None, [e * groups, slots])?;
                (own, slots, judged)
            }
        };
        let order = slotted.choices(run, [e * groups, slots])?;
        // A quotient of -1 would be 0.
        let token = with(run, op::binary::DIV, &order, k)?;
        change(run, op::binary::MIN, &token, &order)?;
        let [ends, counts] = alike(run, e, groups * slots)?;
        Ok(Routing::made(
            experts.clone(),
            [order, slotted.place, token, ends, counts],
            Some(judged),
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
