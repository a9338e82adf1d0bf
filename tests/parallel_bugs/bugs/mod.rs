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

/// Every bug.
pub fn all() -> impl Iterator<Item = &'static Bug> {
    [
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
    ]
    .into_iter()
    .flatten()
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
