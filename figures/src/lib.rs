//! What is known of a job before it runs, as values: how it lies on its ranks ([`layout`]), the memory, traffic and verdict of its plan
//! ([`plan`]), the routes of its ops ([`explain`]), the algorithms of its sums ([`choice`]), and what the formulas say of it ([`estimate`]).
//!
//! A step is rehearsed on the null device, and a back end is asked for routes and for its memory; no rank is started, no data is read and
//! no folder is written.
#![forbid(unsafe_code)]

pub mod choice;
pub mod devices;
pub mod estimate;
pub mod explain;
pub mod gradients;
pub mod layout;
pub mod plan;
pub mod probed;
pub mod stages;

use crossweave_job::{self as job, found, model};
use crossweave_team::{backend, events, request, surroundings, train_error};
