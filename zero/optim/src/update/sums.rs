//! Figures of whole parameters, summed over the parts each rank owns and then over the ranks: at once, or each logical slice by itself
//! first, so that the sum does not know where the ranks' parts begin.

use super::{Part, Step, reduce};
use crossweave_program::abi::op::reduce::SUM;
use crossweave_program::{DType, View};

/// `n` figures, once for each logical slice.
pub(super) struct Sums<'c> {
    all: View<'c>,
    n: u64,
    slices: u64,
}

impl<'c> Sums<'c> {
    /// All zero.
    pub fn zeros(s: &Step<'_, 'c>, n: u64) -> Sums<'c> {
        let slices = s.group.slices;
        let all = s.on.zeros([slices * n], DType::F32);
        Sums { all, n, slices }
    }

    /// Figures `at..at + len`, as far as they come from `part`.
    pub fn of(&self, part: &Part, at: u64, len: u64) -> View<'c> {
        self.all.narrow(0, part.logical * self.n + at, len)
    }

    /// Over all ranks. Of a logical slice all but one rank know nothing, so these sums are exact; the slices are then added in order.
    pub fn total(self, s: &Step<'_, 'c>) -> View<'c> {
        (s.k.sum)(&self.all);
        if self.slices == 1 {
            return self.all;
        }
        let out = s.on.empty([self.n], DType::F32);
        let by_slice = self.all.view([self.slices, self.n]);
        reduce(&s.on, SUM, 0b01, &out.view([1, self.n]), &by_slice, false);
        out
    }
}
