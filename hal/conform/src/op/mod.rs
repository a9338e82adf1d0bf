//! `op.*`: every claimed op against an f64 reference.

use crate::case::Case;

/// The group's cases; `big` adds sizes that take long.
pub fn cases(_big: bool) -> Vec<Case> {
    Vec::new()
}
