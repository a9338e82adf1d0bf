//! Who trains a job: what is asked of a run ([`request`]) and what lies around it ([`surroundings`]), the back ends that compute
//! ([`backend`]), the ranks of this process on them ([`ranks`]) and the processes of the job ([`processes`]), how all of them agree and stop
//! together ([`gate`]), and what is heard of them: events ([`events`]) and one error that names rank, step and way out ([`train_error`]).
//!
//! Nothing here makes a plan, runs a step or keeps a file of a run: what is known of a job before it runs is said by `figures/`, and its
//! ranks are run by `train/`. No environment is read and nothing is printed.
#![forbid(unsafe_code)]

pub mod backend;
pub mod computes;
pub mod events;
pub mod gate;
mod handshake;
pub mod layers;
pub mod outputs;
pub mod processes;
pub mod ranks;
pub mod request;
mod roll;
mod step_record;
pub mod summary;
pub mod surroundings;
pub mod train_error;

use crossweave_job::{self as job, config_file, error as job_error, model};
