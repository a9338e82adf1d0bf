//! A job before anything runs, as a chain of values: a config and the files it names are a [`Job`], its ranks divide the work
//! ([`Division`]), and each class of equal ranks ([`classes`]) has units, batches and a specification. No file here names a device, prints, or
//! reads the environment.

pub mod classes;
pub mod divide;
pub mod documents;
pub mod feed;
#[allow(clippy::module_inception)]
mod job;
pub mod open;
pub mod optimizer;
pub mod spec;
mod units;
pub mod validation;

pub use classes::{Class, classes};
pub use divide::{Division, Shares};
pub use feed::{Feed, Micro};
pub use job::Job;
pub use spec::spec;
