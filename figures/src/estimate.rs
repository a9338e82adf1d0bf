//! What a model or the job of a config needs by the formulas, on the device that is named or that its back end has here.

use crate::backend::{host, open_linked};
use crate::devices;
use crate::events::Unwatched;
use crate::layout::divided;
use crate::request::Request;
use crate::surroundings::Surroundings;
use crate::train_error::Result;
pub use crossweave_estimate::*;
use std::sync::Arc;

/// Estimates what training `model` needs: a preset or a number of parameters (`gpt2-xl`, `7.5B`), a config file, or a Hugging Face folder.
///
/// # Errors
/// A model, device or size nobody knows; a config that is wrong.
pub fn estimate(model: &str, what: &Estimation, around: &Surroundings) -> Result<Estimate> {
    let subject = match named(model)? {
        Named::Model(subject) => *subject,
        Named::Config(file) => {
            let request = Request::new(file, around.clone(), Arc::new(Unwatched));
            of_request(model, what.ranks.count(), &request)?
        }
    };
    on_device(subject, what, around)
}

/// Estimates what the job of a request needs.
///
/// # Errors
/// As [`estimate`].
pub fn estimate_job(request: &Request, what: &Estimation) -> Result<Estimate> {
    let name = request.config.display().to_string();
    let asked = request.ranks.as_ref().map(|r| r.count().into());
    let subject = of_request(&name, what.ranks.count().or(asked), request)?;
    on_device(subject, what, &request.around)
}

/// What the config of a request says of a job of `ranks` ranks, else of those of its mesh.
fn of_request(name: &str, ranks: Option<u64>, request: &Request) -> Result<Subject> {
    let config = request.load()?;
    let ranks = config.ranks(ranks);
    let job = request.sizes(config, ranks)?;
    let services = host(&request.around.plugins, 1, None, None);
    let null = open_linked("null", &services)?.open(0)?;
    let (_, division) = divided(&null, &job, &job.place(0))?;
    let parts = parts(&job, &division)?;
    Ok(of_job(name, job, parts)?)
}

fn on_device(subject: Subject, what: &Estimation, around: &Surroundings) -> Result<Estimate> {
    let device = match (&what.machine.device, subject.back_end(what)) {
        (Some(name), _) => Some(devices::choose(Some(name), "", 1, around)?),
        (None, Some((backend, ranks))) => Some(devices::choose(None, backend, ranks, around)?),
        (None, None) => None,
    };
    Ok(crossweave_estimate::estimate(subject, what, device)?)
}
