//! Which device a prediction is for: the one that is named, or the one that a config's back end has on this machine.

use super::probed::probed;
use crate::backend::{host, open_linked};
use crate::surroundings::Surroundings;
use crate::train_error::{Result, TrainError};
use crossweave_config::nearest;
use crossweave_hal::loader::find;
use crossweave_words::Size;
pub use crossweave_zero::estimate::{Profile, profiles};
use crossweave_zero::estimate::{profile, recognised};

/// A device as a prediction knows it.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// Its name for people.
    pub label: String,
    /// Its rates.
    pub profile: Profile,
    /// Bytes that one rank may use; `None` where nobody has said.
    pub memory: Option<u64>,
    /// Ranks that share the device.
    pub sharing: u64,
    /// Pinned host memory is taken from the same memory.
    pub is_host: bool,
    /// What was taken in place of what is not known.
    pub note: Option<String>,
}

/// What is taken where nothing better is known.
const ASSUMED: &str = "a100";

impl Chosen {
    fn of(p: &Profile) -> Chosen {
        Chosen {
            label: p.name.to_string(),
            profile: *p,
            memory: Some(p.memory),
            sharing: 1,
            is_host: false,
            note: None,
        }
    }

    fn assumed(why: String) -> Result<Chosen> {
        let note = Some(format!(
            "{why}: {ASSUMED} is assumed, --device names another"
        ));
        let p = Chosen::of(named(ASSUMED)?);
        Ok(Chosen { note, ..p })
    }
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
        (None, "null") => Chosen::assumed("back end null has no memory of its own".into()),
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
        Err(why) => return Chosen::assumed(format!("back end {name} of the config {why}")),
    };
    let Some(label) = device["name"].as_str() else {
        return Chosen::assumed(format!(
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

/// The profile of that name.
///
/// # Errors
/// There is none: the list, and the nearest.
pub fn named(name: &str) -> Result<&'static Profile> {
    profile(name).ok_or_else(|| {
        let names = profiles().iter().map(|p| p.name);
        let near = match nearest(name, names) {
            Some(n) => format!("did you mean {n:?}? Known are "),
            None => "name one of ".to_string(),
        };
        let list = profiles()
            .iter()
            .map(|p| format!("{} ({})", p.name, Size(p.memory)));
        TrainError::refused(
            format!("--device {name}: no device of that name is known"),
            format!(
                "{near}{}; `crossweave estimate --devices` shows their rates, and `estimate --device-memory 48GB` takes any size",
                list.collect::<Vec<_>>().join(", ")
            ),
        )
    })
}
