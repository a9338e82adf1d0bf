//! `DIR/ended.json`: how the last run in a folder came to its end, for the script or the person who starts the next one. Launchers
//! hide the exit codes of the ranks; a file they leave alone.

use crate::metrics::{self, LostWork};
use crate::train_error::{LOST, Result, STOPPED, TrainError};
use crossweave_files::{TABLE, read};
use crossweave_report::{moment, whole};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The name of the file.
const FILE: &str = "ended.json";

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// Why, in one word.
    pub cause: EndCause,
    /// The exit status of its processes; a launcher may have another.
    pub exit: u8,
    /// What ended it, as it was shown; none of a run that finished or was stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What to do about it, where the error says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    /// The ranks that were lost or failed, where they are known.
    pub ranks: Vec<u32>,
    /// The hosts of these ranks.
    pub hosts: Vec<String>,
    /// The last optimizer step that was recorded; a record is written while the next step goes on.
    pub step: u64,
    /// The optimizer steps that were asked for.
    pub steps: u64,
    /// The step of the newest complete checkpoint, from which the run continues; 0 where there is none.
    pub saved: u64,
    /// What has to be trained again.
    pub lost: LostWork,
    /// When, in seconds since 1970.
    pub at: u64,
}

/// Why a run ended. What to do about it is in the page of exit codes, `docs/failures.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum EndCause {
    /// All steps are done, and the model is written.
    Finished,
    /// It was asked to stop, and has saved: resume it.
    Stopped,
    /// It lost a rank, a host, a link or a device: begin it again, and it resumes.
    Lost,
    /// Config, data, model or program are wrong: it would end in the same way again.
    Failed,
}

impl Ended {
    /// How the last run in the folder `dir` ended; none while one goes on, and where none has.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub fn read(dir: &Path) -> Result<Option<Ended>> {
        let path = dir.join(FILE);
        if !path.exists() {
            return Ok(None);
        }
        let bytes = read(&path, TABLE).map_err(TrainError::io("read", &path))?;
        let ended = serde_json::from_slice(&bytes).map_err(std::io::Error::from);
        Ok(Some(ended.map_err(TrainError::io("read", &path))?))
    }

    /// The end of a run of `steps` steps in `dir` that has done what it was asked for: all steps, or to stop.
    pub fn well(dir: &Path, steps: u64, stopped: bool) -> Ended {
        let (cause, exit) = match stopped {
            true => (EndCause::Stopped, STOPPED),
            false => (EndCause::Finished, 0),
        };
        Ended {
            cause,
            exit,
            error: None,
            fix: None,
            ranks: vec![],
            hosts: vec![],
            step: metrics::last_step(dir).unwrap_or(0),
            steps,
            saved: saved(dir),
            lost: LostWork::default(),
            at: moment::unix(),
        }
    }

    /// The end of a run of `steps` steps in `dir` by an error.
    pub fn badly(dir: &Path, steps: u64, by: &TrainError) -> Ended {
        let exit = by.exit_code();
        let cause = match exit {
            LOST => EndCause::Lost,
            _ => EndCause::Failed,
        };
        let saved = saved(dir);
        Ended {
            cause,
            exit,
            error: Some(by.to_string()).filter(|e| !e.is_empty()),
            fix: by.fix(),
            ranks: by.rank().into_iter().collect(),
            lost: metrics::behind(dir, saved),
            saved,
            ..Ended::well(dir, steps, false)
        }
    }

    /// Writes the file, whole or not at all.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&self, dir: &Path) -> Result<()> {
        let path = dir.join(FILE);
        let text = serde_json::to_string_pretty(self).map_err(std::io::Error::from);
        let done = text.and_then(|text| whole::write(&path, text + "\n"));
        done.map_err(TrainError::io("write", &path))
    }

    /// Removes the file of the run before.
    pub fn clear(dir: &Path) {
        // What cannot be removed says when it was written.
        let _ = std::fs::remove_file(dir.join(FILE));
    }
}

/// The step of the newest checkpoint in a folder; 0 where there is none.
fn saved(dir: &Path) -> u64 {
    let all = crossweave_checkpoint::list(dir).unwrap_or_default();
    all.last().map_or(0, |newest| newest.step)
}
