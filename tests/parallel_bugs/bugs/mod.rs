//! The bugs, a family a file.

mod arguments;
mod attendance;
mod blocks;
mod control_flow;
pub mod crashes;
mod dispatch;
mod endings;
mod misuse;
mod order;
mod point_to_point;
mod purpose;
mod rings;
mod timing;

use crate::parallel_bugs::bug::Bug;

/// Every file but the crashes, which have limits of their own.
const FAMILIES: [&[Bug]; 12] = [
    order::BUGS,
    arguments::BUGS,
    attendance::BUGS,
    point_to_point::BUGS,
    purpose::BUGS,
    endings::BUGS,
    control_flow::BUGS,
    misuse::BUGS,
    timing::BUGS,
    blocks::BUGS,
    rings::BUGS,
    dispatch::BUGS,
];

/// Every bug.
pub fn all() -> impl Iterator<Item = &'static Bug> {
    but_crashes().chain(crashes::BUGS)
}

/// Every bug but the crashes.
pub fn but_crashes() -> impl Iterator<Item = &'static Bug> {
    FAMILIES.into_iter().flatten()
}

/// The first bug of each kind of verdict in every file but the crashes, and all of the same size for another tensor.
pub fn sample() -> Vec<&'static Bug> {
    let mut sampled = vec![];
    for family in FAMILIES {
        let mut kinds = vec![];
        for b in family {
            if !kinds.contains(&b.verdict.kind) || PURPOSE.iter().any(|p| p.name == b.name) {
                kinds.push(b.verdict.kind);
                sampled.push(b);
            }
        }
    }
    sampled
}

/// Same size, other tensor.
pub use purpose::BUGS as PURPOSE;

/// The sources, for the lines of the markers: file and text.
pub const SOURCES: &[(&str, &str)] = &[
    ("order.rs", include_str!("order.rs")),
    ("blocks.rs", include_str!("blocks.rs")),
    ("rings.rs", include_str!("rings.rs")),
    ("dispatch.rs", include_str!("dispatch.rs")),
    ("arguments.rs", include_str!("arguments.rs")),
    ("attendance.rs", include_str!("attendance.rs")),
    ("point_to_point.rs", include_str!("point_to_point.rs")),
    ("purpose.rs", include_str!("purpose.rs")),
    ("endings.rs", include_str!("endings.rs")),
    ("crashes.rs", include_str!("crashes.rs")),
    ("control_flow.rs", include_str!("control_flow.rs")),
    ("misuse.rs", include_str!("misuse.rs")),
    ("timing.rs", include_str!("timing.rs")),
];
