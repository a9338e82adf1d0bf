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

pub mod adapted;
pub mod backend;
mod balance;
mod breakdown;
mod checkpoint_state;
pub mod companions;
mod computes;
pub mod described;
mod ended;
pub mod events;
pub mod explore;
pub mod exports;
mod faults;
pub mod figures;
pub mod flight;
mod flows;
mod folder;
mod gate;
pub mod gradients;
mod handshake;
pub mod infer;
mod inference;
pub mod layers;
mod layout;
#[doc(hidden)]
pub mod listed;
mod metrics;
mod origin;
pub mod outputs;
mod peak;
mod planned;
mod prepared;
mod processes;
mod rank;
pub mod ranks;
mod ready;
mod record;
mod remembered;
mod request;
mod resume;
mod roll;
mod run;
pub mod save;
mod saves;
mod session;
mod setup;
mod shared_layers;
pub mod source;
mod split;
pub mod stages;
pub mod start;
mod step_record;
pub mod stored;
mod summary;
pub mod surroundings;
mod team;
mod threads;
mod trace;
pub mod train_error;
pub mod trained;
mod trainer;

pub use computes::Computes;
pub use crossweave_data::DataSource;
pub use crossweave_job::error::{ConfigFault, ErrorCode};
use crossweave_job::{
    self as job, adapter, config_file, error as job_error, found, hub, model, stacks, tokens,
};
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
pub use summary::Summary;
pub use team::Team;
pub use train_error::TrainError;
pub use trainer::{ConfigSource, StopHandle, Trainer};
