//! Figures of whole parameters, summed over the parts each rank owns and then over the ranks: at once, or each logical slice by itself
//! first, so that the sum does not know where the ranks' parts begin.

use super::map::reduce;
use super::{Group, Part, StepParams};
use crossweave_hal::DType;
use crossweave_hal::abi::op::reduce::SUM;
use crossweave_tensor::{Result, Run, Tensor};

/// `n` figures, once for each logical slice.
pub(super) struct Sums {
    all: Tensor,
    n: u64,
    slices: u64,
}

impl Sums {
    /// All zero.
    pub fn zeros(run: &Run<'_>, group: &Group, n: u64) -> Result<Sums> {
        let slices = group.slices;
        let all = run.zeros([slices * n], DType::F32)?;
        Ok(Sums { all, n, slices })
    }

    /// Figures `at..at + len`, as far as they come from `part`.
    pub fn of(&self, part: &Part, at: u64, len: u64) -> Tensor {
        self.all.narrow(0, part.logical * self.n + at, len)
    }

    /// Over all ranks. Of a logical slice all but one rank know nothing, so these sums are exact; the slices are then added in order.
    pub fn total(self, run: &Run<'_>, k: &StepParams<'_>) -> Result<Tensor> {
        (k.sum)(&self.all)?;
        if self.slices == 1 {
            return Ok(self.all);
        }
        let out = run.empty([self.n], DType::F32)?;
        let by_slice = self.all.view([self.slices, self.n]);
        reduce(run, SUM, 0b01, &out.view([1, self.n]), &by_slice, false)?;
        Ok(out)
    }
}
