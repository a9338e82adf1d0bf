//! Decompositions as data: a fused op the device lacks becomes a short list of simpler ops over its operands and temporaries.
//!
//! The recipes themselves (one per fused op) are written above the HAL; this file runs them. A step's op may itself be decomposed.

use crate::device::Device;
use crate::error::{Code, Error, Result};
use crate::kernel::{Kernel, OpRequest, Within};
use crate::ledger::Tag;
use crate::stream::{Operand, Stream};
use std::sync::Arc;

/// Gives the one decomposition of an op, or `None` for primitives.
pub trait Decompose {
    /// The recipe for `op`.
    fn recipe(&self, op: &OpRequest) -> Option<Recipe>;
}

/// No fallbacks: an op the device lacks is an error.
pub struct NoDecompose;
impl Decompose for NoDecompose {
    fn recipe(&self, _: &OpRequest) -> Option<Recipe> {
        None
    }
}

/// Operand of a recipe step; `at` counts bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Slot {
    /// Operand `i` of the fused op, from byte `at`, `bytes` long.
    Operand { i: usize, at: u64, bytes: u64 },
    /// Temporary `i`.
    Temp { i: usize, at: u64, bytes: u64 },
    /// Absent.
    Absent,
}

/// Computes a step's launch-time parameters from the fused op's.
pub type DynMap = Arc<dyn Fn(&[u8]) -> Vec<u8> + Send + Sync>;
/// Computes a 32-bit pattern from the fused op's launch-time parameters.
pub type PatternMap = Arc<dyn Fn(&[u8]) -> u32 + Send + Sync>;

/// One step.
#[derive(Clone)]
pub enum RecipeStep {
    /// Launch an op.
    Launch {
        /// What to prepare.
        op: OpRequest,
        /// Its operands.
        operands: Vec<Slot>,
        /// Its launch-time parameters; `None` = none.
        dynamic: Option<DynMap>,
    },
    /// Fill a slot with a 32-bit pattern (launch-time scalars reach primitives this way).
    Fill {
        /// Where.
        slot: Slot,
        /// What.
        pattern: PatternMap,
    },
}

/// A decomposition.
#[derive(Clone, Default)]
pub struct Recipe {
    /// Bytes of each temporary.
    pub temps: Vec<u64>,
    /// Steps in order.
    pub steps: Vec<RecipeStep>,
}

enum Ready {
    Launch {
        kernel: Arc<crate::kernel::KernelInner>,
        operands: Vec<Slot>,
        dynamic: Option<DynMap>,
    },
    Fill {
        slot: Slot,
        pattern: PatternMap,
    },
}

/// A recipe whose steps are prepared.
pub(crate) struct Prepared {
    temps: Vec<u64>,
    steps: Vec<Ready>,
}

impl Recipe {
    pub(crate) fn prepare(self, device: &Device, decompose: &dyn Decompose) -> Result<Prepared> {
        let mut steps = Vec::with_capacity(self.steps.len());
        for s in self.steps {
            steps.push(match s {
                RecipeStep::Launch {
                    op,
                    operands,
                    dynamic,
                } => Ready::Launch {
                    kernel: device.prepare_within(&op, decompose, Within::Recipe)?.inner,
                    operands,
                    dynamic,
                },
                RecipeStep::Fill { slot, pattern } => Ready::Fill { slot, pattern },
            });
        }
        Ok(Prepared {
            temps: self.temps,
            steps,
        })
    }
}

impl Prepared {
    /// The kernels launched, in order; `None`: a fill.
    pub fn parts(&self) -> impl Iterator<Item = Option<&crate::kernel::KernelInner>> {
        self.steps.iter().map(|s| match s {
            Ready::Launch { kernel, .. } => Some(&**kernel),
            Ready::Fill { .. } => None,
        })
    }
    /// Bytes of temporaries.
    pub fn temps(&self) -> u64 {
        self.temps.iter().sum()
    }

    pub fn launch(&self, stream: &Stream, operands: &[Operand<'_>], dynamic: &[u8]) -> Result<()> {
        let device = stream.device();
        let temps = self
            .temps
            .iter()
            .map(|b| device.alloc(stream, *b, Tag::Workspace))
            .collect::<Result<Vec<_>>>()?;
        let find = |s: &Slot| -> Result<Operand<'_>> {
            Ok(match *s {
                Slot::Absent => None,
                Slot::Temp { i, at, bytes } => Some(temps[i].region(at, bytes)),
                Slot::Operand { i, at, bytes } => {
                    let Some(r) = operands[i] else {
                        return Err(Error::new(
                            Code::Internal,
                            "recipe",
                            format!("operand {i} is absent but the recipe uses it"),
                        ));
                    };
                    Some(r.buffer.region(r.offset + at, bytes))
                }
            })
        };
        for step in &self.steps {
            match step {
                Ready::Launch {
                    kernel,
                    operands: slots,
                    dynamic: map,
                } => {
                    let ops = slots.iter().map(find).collect::<Result<Vec<_>>>()?;
                    let bytes = map.as_ref().map_or(vec![], |f| f(dynamic));
                    Kernel::wrap(kernel.clone(), device).launch(stream, &ops, &bytes)?;
                }
                Ready::Fill { slot, pattern } => {
                    if let Some(r) = find(slot)? {
                        stream.fill(r, pattern(dynamic) as u64, 4)?;
                    }
                }
            }
        }
        Ok(())
    }
}
