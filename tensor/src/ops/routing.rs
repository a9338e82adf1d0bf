//! The experts of the tokens of a micro-batch as tables: where the row of each choice goes, and whose row is where.

use super::launch::{binary, cast, count, counted, map, picked, sorted, sum, whole};
use crate::error::Result;
use crate::{Run, Tensor};
use crossweave_hal::DType;
use crossweave_hal::abi::op;

/// The experts of the tokens of a micro-batch, all i32: choice `t k + j` is the `j`-th expert of token `t`. Where experts take all choices there
/// are as many places, else those of [`super::capacity`].
#[derive(Clone)]
pub struct Routing {
    /// The expert of each choice, `[n k]`, of dropped ones too.
    pub(super) experts: Tensor,
    /// The choice at each place, where choices are in the order of their experts; -1: none.
    order: Tensor,
    /// The place of each choice, `[n k]`; -1: it was dropped.
    place: Tensor,
    /// The token at each place; -1: none.
    token: Tensor,
    /// The place behind the last of each expert, `[E]`.
    ends: Tensor,
    /// The places of each expert, `[E]`.
    counts: Tensor,
    /// Tokens, choices of each, and experts.
    pub(super) sizes: [u64; 3],
    /// The places of all choices among which it was decided who keeps one, those of whole rows: some may have been dropped. None: all have one.
    judged: Option<Tensor>,
}

/// Rows in the order of their experts, and where those of each end.
#[derive(Clone)]
pub struct Grouped {
    /// The place behind the last row of each expert, i32 `[E]`.
    pub(super) ends: Tensor,
    /// Rows that there is room for: behind the last group there may be some that are nothing.
    pub(super) rows: u64,
    /// Experts.
    pub(super) experts: u64,
}

impl Routing {
    /// The order of choices by their experts, of which the first of a token stands before its second within one expert.
    pub(super) fn of(run: &Run<'_>, experts: Tensor, sizes: [u64; 3]) -> Result<Routing> {
        let [n, k, e] = sizes;
        let rows = n * k;
        let numbers = count(run, rows)?;
        let [_, order] = sorted(run, [&experts, &numbers], 0)?;
        let [_, place] = sorted(run, [&order, &numbers], 0)?;
        let token = run.empty([rows], DType::I32)?;
        binary(
            run,
            op::binary::DIV,
            [&token, &order, &whole(run, k, rows)?],
        )?;
        let [counts, ends] = counted(run, &experts, e)?;
        let tables = [order, place, token, ends, counts];
        Ok(Routing::made(experts, tables, None, sizes))
    }

    /// One by its tables: order, place, token, ends, counts; and where choices may have been dropped the places of all that were `judged` together.
    pub(super) fn made(
        experts: Tensor,
        [order, place, token, ends, counts]: [Tensor; 5],
        judged: Option<Tensor>,
        sizes: [u64; 3],
    ) -> Routing {
        Routing {
            experts,
            order,
            place,
            token,
            ends,
            counts,
            sizes,
            judged,
        }
    }

    /// Returns true if choices may have been dropped: places are slots then, as many for each expert.
    pub(super) fn is_limited(&self) -> bool {
        self.judged.is_some()
    }

    /// Rows in the order of experts.
    pub(super) fn rows(&self) -> u64 {
        self.order.numel()
    }

    /// The choice at each place.
    pub(super) fn order(&self) -> &Tensor {
        &self.order
    }

    /// The place of each choice.
    pub(super) fn place(&self) -> &Tensor {
        &self.place
    }

    /// The token at each place.
    pub(super) fn token(&self) -> &Tensor {
        &self.token
    }

    /// The places of each expert, i32 `[E]`.
    pub(super) fn counts(&self) -> &Tensor {
        &self.counts
    }

    /// The rows of this rank's tokens by their experts.
    pub fn grouped(&self) -> Grouped {
        Grouped {
            ends: self.ends.clone(),
            rows: self.rows(),
            experts: self.sizes[2],
        }
    }

    /// The places of choices in a table `[n, E]`; of dropped ones none, where only those that were `kept` are asked for.
    pub(super) fn cells(&self, run: &Run<'_>, kept: bool) -> Result<Tensor> {
        let [n, k, e] = self.sizes;
        let rows = n * k;
        let at = count(run, rows)?;
        binary(run, op::binary::DIV, [&at, &at, &whole(run, k, rows)?])?;
        binary(run, op::binary::MUL, [&at, &at, &whole(run, e, rows)?])?;
        binary(run, op::binary::ADD, [&at, &at, &self.experts])?;
        if kept {
            self.hide(run, &at, n * e)?;
        }
        Ok(at)
    }

    /// Puts the numbers of dropped choices below 0, where `span` is larger than each.
    fn hide(&self, run: &Run<'_>, numbers: &Tensor, span: u64) -> Result<()> {
        let n = numbers.numel();
        let lost = run.empty([n], DType::I32)?;
        let [zero, span] = [whole(run, 0, n)?, whole(run, span, n)?];
        binary(run, op::binary::MIN, [&lost, &self.place, &zero])?;
        binary(run, op::binary::MUL, [&lost, &lost, &span])?;
        binary(run, op::binary::ADD, [numbers, numbers, &lost])
    }

    /// The values of choices `[n, k]`, of dropped ones 0.
    pub(super) fn kept(&self, run: &Run<'_>, values: &Tensor) -> Result<Tensor> {
        let own = count(run, values.numel())?;
        self.hide(run, &own, values.numel())?;
        Ok(picked(run, values, &own)?.view(*values.shape()))
    }

    /// Writes the part of choices that were dropped, of those of whole rows, into one number, times a factor.
    pub(super) fn dropped(&self, run: &Run<'_>, to: &Tensor, factor: f64) -> Result<()> {
        let Some(place) = &self.judged else {
            return Ok(run.stream().fill(to.region(), 0, 1)?);
        };
        let n = place.numel();
        let each = cast(run, place, DType::F32)?;
        let lost = run.empty([n], DType::F32)?;
        map(run, &lost, &[&each], |x| (-x[0]).max(x[0].lit(0.0)))?;
        sum(run, to, &lost, 0)?;
        super::xent::scale(run, to, factor / n as f64)
    }
}
