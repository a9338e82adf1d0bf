//! `fault.*`.

use crate::case::Case;

/// The group's cases.
pub fn cases(_ranks: &[u32]) -> Vec<Case> {
    Vec::new()
}
