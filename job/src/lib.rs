//! A job before anything runs, as a chain of values: a config and the files it names are opened ([`Opened`]) and make a [`Job`], its ranks
//! divide the work ([`Division`]), and each class of equal ranks ([`classes()`]) has units ([`Job::units`]), batches ([`Feed`]) and a
//! specification ([`spec()`]). This crate opens files and no device; it prints nothing and reads no environment: what lies around a job, such
//! as the folders of caches, is handed in ([`Caches`]).
#![forbid(unsafe_code)]

pub mod adapter;
mod best;
pub mod caches;
mod classes;
pub mod config_file;
mod costs;
pub mod data_spec;
mod divide;
pub mod documents;
pub mod error;
mod feed;
pub mod found;
pub mod hub;
mod job;
pub mod model;
pub mod objective;
mod offload;
pub mod open;
pub mod optimizer;
mod rows;
pub mod spec;
pub mod stacks;
pub mod stored_adapter;
pub mod teacher;
pub mod tokens;
mod units;
pub mod validation;

pub use best::Best;
pub use caches::Caches;
pub use classes::{Class, classes};
pub use costs::Sizes;
pub use divide::{Division, Shares, stage_weights};
pub use error::{ErrorCode, JobError};
pub use feed::{Feed, HeldBack, Micro};
pub use job::Job;
pub use open::Opened;
pub use spec::spec;
