//! Looking at every op's results: the first that is not finite, and whether the op's inputs were. For finding where a NaN begins, never
//! for training at speed: the host waits for each op.

use crate::Tensor;
use crate::error::Result;
use crate::run::Run;
use crossweave_hal::abi::op;
use crossweave_hal::{DType, OpRequest, Tag};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An operand with values that are not finite.
#[derive(Clone)]
pub struct NonFinite {
    /// Its name in the op table.
    pub name: &'static str,
    /// The operand.
    pub tensor: Tensor,
    /// How many.
    pub values: u32,
}

/// The first op whose result is not finite.
#[derive(Clone)]
pub struct Finding {
    /// The op.
    pub op: &'static str,
    /// Its place among the launches of its block and phase, from 1.
    pub launch: usize,
    /// Its first result that is not finite.
    pub result: NonFinite,
    /// Its inputs that were not finite already; none: the op made it.
    pub inputs: Vec<NonFinite>,
}

#[derive(Default)]
struct State {
    found: Option<Finding>,
    off: bool,
    /// The count, on the device.
    word: Option<Tensor>,
}

/// Watches the ops of the caches it was given to ([`crate::KernelCache::watch`]), up to the first finding.
#[derive(Default)]
pub struct Probe(Mutex<State>);

impl Probe {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Whole values are replaced.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The finding since the last call; from it on nothing is looked at until [`Probe::again`].
    pub fn take(&self) -> Option<Finding> {
        self.lock().found.take()
    }

    /// Looks again, for the first finding of another step.
    pub fn again(&self) {
        let mut st = self.lock();
        (st.found, st.off) = (None, false);
    }

    /// The op at `launch` of its block has been enqueued.
    ///
    /// # Errors
    /// The device.
    pub fn look(
        &self,
        run: &Run<'_>,
        id: u32,
        launch: usize,
        operands: &[Option<&Tensor>],
    ) -> Result<()> {
        let mut st = self.lock();
        let Some(spec) = op::spec(id).filter(|_| !st.off) else {
            return Ok(());
        };
        let each = || {
            let named = operands.iter().enumerate();
            named.filter_map(|(i, t)| Some((spec.operand(i)?, (*t)?)))
        };
        let mut result = None;
        for (r, t) in each().filter(|(r, _)| r.is_written()) {
            if let Some(bad) = count(run, &mut st.word, r.name, t)? {
                result = Some(bad);
                break;
            }
        }
        let Some(result) = result else { return Ok(()) };
        let mut inputs = vec![];
        for (r, t) in each().filter(|(r, _)| !r.is_written()) {
            // What the op wrote over is not what it read.
            let overwritten = Arc::ptr_eq(t.buffer(), result.tensor.buffer())
                && t.offset() < result.tensor.offset() + result.tensor.extent()
                && result.tensor.offset() < t.offset() + t.extent();
            if !overwritten {
                inputs.extend(count(run, &mut st.word, r.name, t)?);
            }
        }
        st.off = true;
        st.found = Some(Finding {
            op: spec.name,
            launch: launch + 1,
            result,
            inputs,
        });
        Ok(())
    }
}

/// Counts on the device and waits for the count.
fn count(
    run: &Run<'_>,
    word: &mut Option<Tensor>,
    name: &'static str,
    t: &Tensor,
) -> Result<Option<NonFinite>> {
    if !matches!(t.dtype(), DType::F32 | DType::Bf16 | DType::F16) || t.numel() == 0 {
        return Ok(None);
    }
    let word = match word {
        Some(w) => w,
        None => {
            let b = run.device().alloc_state(4, Tag::Staging)?;
            word.insert(Tensor::dense(Arc::new(b), 0, [1], DType::U32))
        }
    };
    let s = run.stream();
    s.fill(word.region(), 0, 4)?;
    let none = op::NoParams::default();
    let layouts = [word.layout(), t.layout()];
    let request = OpRequest::new(op::NONFINITE_COUNT, &layouts, none.as_bytes());
    let kernel = run.prepare(&request)?;
    s.launch(&kernel, &[Some(word.region()), Some(t.region())], &[])?;
    let mut bytes = [0u8; 4];
    s.read(word.region(), &mut bytes)?;
    let values = u32::from_le_bytes(bytes);
    Ok((values > 0).then(|| NonFinite {
        name,
        tensor: t.clone(),
        values,
    }))
}
