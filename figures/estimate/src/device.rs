//! Devices by their published rates, as a prediction knows them.

use crossweave_config::nearest;
use crossweave_job::error::{JobError, Result};
use crossweave_words::Size;
use crossweave_zero::estimate::profile;
pub use crossweave_zero::estimate::{Profile, profiles};

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

impl Chosen {
    /// A device of which no more is known than its rates.
    pub fn of(p: &Profile) -> Chosen {
        Chosen {
            label: p.name.to_string(),
            profile: *p,
            memory: Some(p.memory),
            sharing: 1,
            is_host: false,
            note: None,
        }
    }
}

/// The profile of that name.
///
/// # Errors
/// There is none: the list, and the nearest.
pub fn device_named(name: &str) -> Result<&'static Profile> {
    profile(name).ok_or_else(|| {
        let names = profiles().iter().map(|p| p.name);
        let near = match nearest(name, names) {
            Some(n) => format!("did you mean {n:?}? Known are "),
            None => "name one of ".to_string(),
        };
        let list = profiles()
            .iter()
            .map(|p| format!("{} ({})", p.name, Size(p.memory)));
        JobError::refused(
            format!("--device {name}: no device of that name is known"),
            format!(
                "{near}{}; `crossweave estimate --devices` shows their rates, and `estimate --device-memory 48GB` takes any size",
                list.collect::<Vec<_>>().join(", ")
            ),
        )
    })
}
