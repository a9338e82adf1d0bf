//! What was trained, as files: checkpoints are held against what they say of themselves ([`described`]), the model of a run, a folder or the
//! hub is opened ([`trained`]), and models and adapters are written as others read them ([`export`], [`adapted`], [`companions`]).
//!
//! Tensors go from file to file a piece at a time ([`stored`]); no device is opened, and no run is known here.
#![forbid(unsafe_code)]

pub mod adapted;
pub mod companions;
pub mod described;
pub mod export;
pub mod remembered;
pub mod stored;
pub mod trained;

use crossweave_job::{self as job, adapter, error as job_error, hub, model, stacks, tokens};
