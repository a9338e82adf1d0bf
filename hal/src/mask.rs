//! A layer that hides cells of a plugin's collectives: what is hidden is answered and refused as if the plugin never had it.
//!
//! This is how the core's compositions are tested on any machine: take a complete plugin, hide what another vendor lacks, and
//! compare the results with the same references. `comm_query` answers no and `launch` refuses before anything reaches the
//! plugin (R3).

use crate::comm::Collective;
use crate::device::Plugin;
use crate::error::{Error, Result};
use crossweave_abi as abi;
use crossweave_abi::DType;
use std::sync::Arc;

/// A cell of the collective table: kind, element type, reduction. `None` stands for any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CollectiveCell {
    /// `abi::COLL_*`.
    pub kind: u32,
    /// Element type.
    pub dtype: Option<DType>,
    /// `abi::RED_*`.
    pub reduce: Option<u32>,
}

impl CollectiveCell {
    /// Every element type and reduction of a kind (`abi::COLL_*`).
    pub const fn kind(kind: u32) -> CollectiveCell {
        CollectiveCell {
            kind,
            dtype: None,
            reduce: None,
        }
    }
    fn covers(&self, d: &abi::CollDesc) -> bool {
        self.kind == d.kind
            && self.dtype.is_none_or(|t| t.id() == d.dtype)
            && self.reduce.is_none_or(|r| r == d.reduce)
    }
}

/// The cells hidden from one plugin.
pub(crate) type Mask = Arc<[CollectiveCell]>;

/// Refuses a hidden cell the way a plugin refuses what it lacks.
pub(crate) fn check(mask: &Mask, d: &abi::CollDesc, what: &Collective<'_>) -> Result<()> {
    if mask.iter().any(|c| c.covers(d)) {
        let dtype = DType::from_id(d.dtype).map_or("?", DType::name);
        return Err(Error::unsupported(
            "launch",
            format!("{} {dtype} is hidden by a layer", what.name()),
        ));
    }
    Ok(())
}

impl Plugin {
    /// The same plugin without these cells of its collectives. Masks add up.
    pub fn without_collectives(&self, cells: &[CollectiveCell]) -> Plugin {
        let mut raw = (*self.0).clone();
        raw.mask = raw.mask.iter().chain(cells).copied().collect();
        Plugin(Arc::new(raw), self.1.clone())
    }
}
