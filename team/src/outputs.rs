//! Files that a run writes as it goes, such as traces and recordings: each has one writer, and none takes the place of a file that
//! holds something else.

use crate::train_error::{Result, TrainError};
use crossweave_claim::{Claim, ClaimError};
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// What a timeline begins with.
pub const TIMELINE: &[u8] = b"{\"displayTimeUnit\":";
/// What a recording of calls begins with.
pub const RECORDING: &[u8] = b"crossweave record ";

/// The claims of files that layers write. Clones share them: layers live as long as the process, and who has loaded them says when their
/// files are free.
#[derive(Clone, Debug, Default)]
pub struct Outputs(Arc<Mutex<Vec<Claim>>>);

/// Can `path` be written? `begins`: what a file starts with that may be replaced.
///
/// # Errors
/// No folder for it; a device, pipe or folder; a file that holds something else.
pub fn check(option: &str, path: &Path, begins: &[u8]) -> Result<()> {
    place(option, path)?;
    content(option, path, begins)
}

fn place(option: &str, path: &Path) -> Result<()> {
    TrainError::not_a_file(option, path)?;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|p| !p.is_dir()) {
        return Err(TrainError::refused(
            format!(
                "{option} {}: there is no folder {}",
                path.display(),
                folder.display()
            ),
            "create it, or name a file in one that is there",
        ));
    }
    Ok(())
}

fn content(option: &str, path: &Path, begins: &[u8]) -> Result<()> {
    if let Ok((file, len)) = crossweave_files::open(path) {
        let mut start = vec![];
        let most = begins.len() as u64;
        file.take(most)
            .read_to_end(&mut start)
            .map_err(TrainError::io("read", path))?;
        if len > 0 && start != begins {
            return Err(TrainError::refused(
                format!(
                    "{option} {}: holds something else, which would be lost",
                    path.display()
                ),
                "name another file, or remove that one",
            ));
        }
    }
    Ok(())
}

impl Outputs {
    /// Makes `path` this process's own until [`Outputs::release`], or until no clone of this is left.
    ///
    /// # Errors
    /// As [`check`]; another process writes there, or another layer of this one.
    pub fn claim(&self, option: &str, path: &Path, begins: &[u8]) -> Result<()> {
        place(option, path)?;
        let claim = Claim::beside(path, option).map_err(|e| match e {
            ClaimError::Held { owner, .. } if owner.pid == std::process::id() => {
                TrainError::refused(
                    format!(
                        "{option} {}: two layers of this job would write it",
                        path.display()
                    ),
                    "name a file for each",
                )
            }
            ClaimError::Held { owner, .. } => TrainError::refused(
                format!(
                    "{option} {}: another process writes it: {owner}",
                    path.display()
                ),
                "name another file; with %p in its name, each process of a job writes its own",
            ),
            e => e.into(),
        })?;
        // What another process is just writing has been refused as that.
        content(option, path, begins)?;
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(claim);
        Ok(())
    }

    /// The files are free.
    pub fn release(&self) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_output_of_this_kind_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.json");
        check("--trace", &path, TIMELINE).unwrap();
        for (text, may) in [
            ("", true),
            ("{\"displayTimeUnit\":\"ms\"}", true),
            ("{\"model\": 1}", false),
            ("{", false),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(check("--trace", &path, TIMELINE).is_ok(), may, "{text}");
        }
        let none = dir.path().join("none/t.json");
        let e = check("--trace", &none, TIMELINE).unwrap_err().to_string();
        assert!(e.contains("there is no folder"), "{e}");
    }
}
