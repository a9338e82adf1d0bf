//! The flight record: what every rank asked of the others last, written when a run fails.

use crate::train_error::{Result, TrainError};
use crossweave_hal::{CheckerState, RankFlight, Verdict};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// One rank's file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Record {
    /// [`FORMAT`], where this version has written it.
    pub format: u32,
    /// What the run ended with.
    pub why: String,
    /// What the checker has found out from all ranks.
    pub verdict: Option<Verdict>,
    /// What the rank asked for last.
    pub flight: RankFlight,
}

/// The format that this version reads and writes.
pub const FORMAT: u32 = 1;

fn file_of(rank: u32) -> String {
    format!("flight-rank{rank}.json")
}

/// Writes the records of all ranks to the run's folder, each whole or not at all: first those of `own` ranks, then those that others have
/// not written, since a rank may be dead, or its launcher may end it before it has. Ranks that never asked for anything leave none.
///
/// # Errors
/// A file that cannot be written.
pub fn write(out: &Path, board: &CheckerState, own: &Range<u32>, why: &str) -> Result<()> {
    let all = board.flight();
    let mut ranks = all.ranks;
    ranks.retain(|f| !f.ops.is_empty());
    ranks.sort_by_key(|f| !own.contains(&f.rank));
    for flight in ranks {
        let own = own.contains(&flight.rank);
        std::fs::create_dir_all(out).map_err(TrainError::io("create", out))?;
        let path = out.join(file_of(flight.rank));
        // Of this thread: a process may come to its end on two at once.
        let me = (std::process::id(), std::thread::current().id());
        let partial = out.join(format!(".{}.{me:?}", file_of(flight.rank)));
        let record = Record {
            format: FORMAT,
            why: why.into(),
            verdict: all.verdict.clone(),
            flight,
        };
        let text = serde_json::to_string(&record).map_err(std::io::Error::from);
        let done = text
            .and_then(|t| std::fs::write(&partial, t))
            .and_then(|()| match own {
                true => std::fs::rename(&partial, &path),
                // Who speaks for itself is not written over.
                false => {
                    let linked = match std::fs::hard_link(&partial, &path) {
                        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
                        // A file system without links.
                        Err(_) if !path.exists() => std::fs::copy(&partial, &path).map(|_| ()),
                        r => r,
                    };
                    linked.and(std::fs::remove_file(&partial))
                }
            });
        done.map_err(TrainError::io("write", &path))?;
    }
    Ok(())
}

/// Removes what an earlier end of the run has left.
pub fn clear(out: &Path) {
    for path in files(out) {
        // What cannot be removed is overwritten or stays: it says when it was.
        let _ = std::fs::remove_file(path);
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let named = |p: &PathBuf| {
        let name = p.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("flight-rank") && name.ends_with(".json")
    };
    entries.map(|e| e.path()).filter(named).collect()
}

/// Reads the records of a run's folder, or one file, in the order of the ranks.
///
/// # Errors
/// No records; one that cannot be read.
pub fn read(path: &Path) -> Result<Vec<Record>> {
    let list = match path.is_dir() {
        true => files(path),
        false => vec![path.to_path_buf()],
    };
    let mut records = vec![];
    for path in &list {
        let text = crossweave_files::read_text(path, crossweave_files::TABLE)
            .map_err(TrainError::io("read", path))?;
        let record: Record = serde_json::from_str(&text).map_err(|e| {
            TrainError::refused(
                format!("{} is no flight record: {e}", path.display()),
                "name a run's folder, or a flight-rank<R>.json in it",
            )
        })?;
        if record.format != FORMAT {
            return Err(TrainError::refused(
                format!(
                    "{} is a flight record of format {}",
                    path.display(),
                    record.format
                ),
                format!("read it with the version that wrote it; this one reads format {FORMAT}"),
            ));
        }
        records.push(record);
    }
    if records.is_empty() {
        return Err(TrainError::refused(
            format!("{} holds no flight record", path.display()),
            "runs that fail while ranks talk to each other leave flight-rank<R>.json in their folder",
        ));
    }
    records.sort_by_key(|r| r.flight.rank);
    Ok(records)
}
