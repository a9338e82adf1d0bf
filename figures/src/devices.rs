//! Which device a prediction is for: the one that is named, or the one that a config's back end has on this machine.

use super::probed::probed;
use crate::backend::{host, open_linked};
use crate::surroundings::Surroundings;
use crate::train_error::Result;
pub use crossweave_estimate::{Chosen, Profile, device_named as named, profiles};
use crossweave_hal::loader::find;
use crossweave_zero::estimate::recognised;

/// What is taken where nothing better is known.
const ASSUMED: &str = "a100";

fn assumed(why: String) -> Result<Chosen> {
    let note = Some(format!(
        "{why}: {ASSUMED} is assumed, --device names another"
    ));
    let p = Chosen::of(named(ASSUMED)?);
    Ok(Chosen { note, ..p })
}

/// The device that `--device` names, else the one of back end `backend` on this machine, for `ranks` ranks.
///
/// # Errors
/// A name that no profile has.
pub fn choose(
    name: Option<&str>,
    backend: &str,
    ranks: u64,
    around: &Surroundings,
) -> Result<Chosen> {
    match (name, backend) {
        (Some(name), _) => Ok(Chosen::of(named(name)?)),
        (None, "null") => assumed("back end null has no memory of its own".into()),
        (None, "cpu") => {
            // What the linked back end would give out; all ranks are threads of this machine.
            let info = open_linked("cpu", &host(&around.plugins, 1, None, None))?
                .open(0)?
                .info()?;
            Ok(Chosen {
                label: "this machine's processor".into(),
                profile: Profile {
                    memory: info.mem_total,
                    ..*named("laptop")?
                },
                memory: Some(info.mem_total / ranks.max(1)),
                sharing: ranks.max(1),
                is_host: true,
                note: Some(
                    "the processor's speed is not known: bytes are given, and no times".into(),
                ),
            })
        }
        (None, other) => plugin(other, around),
    }
}

/// The first device of a plugin on the plugin path, asked in a process of its own.
fn plugin(name: &str, around: &Surroundings) -> Result<Chosen> {
    let said = find(name, &around.plugins.folders)
        .map_err(|_| "is not on this machine".to_string())
        .and_then(|path| probed(&path, around).map_err(|e| format!("cannot be used here ({e})")));
    let device = match &said {
        Ok(v) => &v["devices"][0],
        Err(why) => return assumed(format!("back end {name} of the config {why}")),
    };
    let Some(label) = device["name"].as_str() else {
        return assumed(format!(
            "back end {name} of the config finds no device here"
        ));
    };
    let memory = device["mem_total"].as_u64().filter(|m| *m > 0);
    let known = recognised(label);
    let note = known.is_none().then(|| {
        format!("the rates of {label} are not known: a laptop's are taken, --device names another")
    });
    let mut profile = match known {
        Some(p) => *p,
        None => *named("laptop")?,
    };
    profile.memory = memory.unwrap_or(profile.memory);
    Ok(Chosen {
        label: label.to_string(),
        profile,
        memory,
        sharing: 1,
        is_host: false,
        note,
    })
}
