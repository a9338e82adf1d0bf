//! Training as a library: a job is prepared and its ranks run in the process that calls, and what happens is reported to who watches. No
//! environment is read, nothing is printed and no process is ended: what lies around a job is handed in as
//! [`surroundings::Surroundings`], and an [`events::Events`] receives what happens.
//!
//! ```no_run
//! # use crossweave::{Team, Trainer};
//! let mut trainer = Trainer::from_config("train.json").ranks(Team::Threads(2));
//! while trainer.done() < trainer.steps()? {
//!     println!("{:?}", trainer.step()?.loss);
//! }
//! trainer.finish()?;
//! # Ok::<(), crossweave::TrainError>(())
//! ```
//!
//! [`Trainer`] trains, and says of a job beforehand whether it can be trained ([`Trainer::check`]), what it holds and sends
//! ([`Trainer::plan`], [`Trainer::estimate`]) and how its ops are computed ([`Trainer::explain`]). [`Model`] opens what was trained.
#![forbid(unsafe_code)]

mod balance;
mod breakdown;
mod checkpoint_state;
mod ended;
pub mod explore;
pub mod exports;
mod faults;
pub mod figures;
pub mod flight;
mod flows;
mod folder;
pub mod infer;
mod inference;
mod metrics;
mod origin;
mod peak;
mod planned;
mod prepared;
mod rank;
mod ready;
mod record;
mod resume;
mod run;
pub mod save;
mod saves;
mod session;
mod setup;
mod shared_folder;
mod shared_layers;
pub mod source;
mod split;
pub mod start;
mod team;
#[cfg(test)]
mod tests;
mod threads;
mod trace;
mod trainer;
mod watched;

pub use crossweave_data::DataSource;
use crossweave_figures::{choice, layout};
pub use crossweave_figures::{gradients, stages};
pub use crossweave_job::error::{ConfigFault, ErrorCode};
use crossweave_job::{self as job, error as job_error, found, hub, model};
pub use crossweave_models::{adapted, companions, described, stored, trained};
pub use crossweave_team::{
    backend, computes::Computes, events, layers, outputs, ranks, request, summary::Summary,
    surroundings, train_error,
};
use crossweave_team::{computes, gate, processes, summary};
pub use ended::{EndCause, Ended};
pub use events::{Event, Events, StepRecord};
pub use figures::check::{Checked, SizesOfJob};
pub use figures::estimate::{Estimate, Estimation};
pub use figures::explain::{Explained, PeakRates};
pub use figures::plan::{Planned, Planning};
pub use infer::Draw;
pub use inference::{Logits, Model};
pub use metrics::LostWork;
pub use request::{Continued, Given, Lines, Request};
pub use run::run;
pub use team::Team;
pub use train_error::TrainError;
pub use trainer::{ConfigSource, StopHandle, Trainer};
