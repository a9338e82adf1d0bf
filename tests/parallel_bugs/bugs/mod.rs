//! The bugs, a family a file.

mod arguments;
mod attendance;
mod control_flow;
pub mod crashes;
mod endings;
mod misuse;
mod order;
mod point_to_point;
mod purpose;
mod timing;

use crate::parallel_bugs::bug::Bug;

const FAMILIES: [&[Bug]; 10] = [
    order::BUGS,
    arguments::BUGS,
    attendance::BUGS,
    point_to_point::BUGS,
    purpose::BUGS,
    endings::BUGS,
    crashes::BUGS,
    control_flow::BUGS,
    misuse::BUGS,
    timing::BUGS,
];

/// Every bug.
pub fn all() -> impl Iterator<Item = &'static Bug> {
    FAMILIES.into_iter().flatten()
}

/// Every bug but the crashes, which have limits of their own.
pub fn but_crashes() -> Vec<&'static Bug> {
    let others = FAMILIES
        .into_iter()
        .filter(|f| !std::ptr::eq(*f, crashes::BUGS));
    others.flatten().collect()
}

/// The same, of each file the first of each kind of verdict, and all of the same size for another tensor.
pub fn sample() -> Vec<&'static Bug> {
    let mut sampled = vec![];
    for family in FAMILIES {
        let mut kinds = vec![];
        for b in family
            .iter()
            .filter(|_| !std::ptr::eq(family, crashes::BUGS))
        {
            if std::ptr::eq(family, PURPOSE) || !kinds.contains(&b.verdict.kind) {
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
