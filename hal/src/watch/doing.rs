//! What the host of a rank does, as the operating system reports it.

use super::rank_record::{Host, RankRecord};
use serde::{Deserialize, Serialize};

/// What the host thread of a rank and its process do, as the system reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Doing {
    /// Nobody knows.
    Unknown,
    Computes,
    Sleeps,
    /// SIGSTOP, or a debugger.
    Stopped,
    /// There is no such process any more.
    Gone,
    /// It has no record here, and its process does not answer.
    Silent,
}

/// Asks the system.
pub(super) fn doing(record: &RankRecord) -> Doing {
    let Host { pid, tid } = record.host();
    let state = |path: String| -> Option<char> {
        let text = std::fs::read_to_string(path).ok()?;
        // The name, in brackets, may hold anything.
        text.rsplit_once(')')?.1.trim_start().chars().next()
    };
    let process = state(format!("/proc/{pid}/stat"));
    let there = std::path::Path::new("/proc/self/stat").exists();
    let thread = state(format!("/proc/{pid}/task/{tid}/stat")).filter(|_| tid > 0);
    match (process, thread) {
        (Some('T' | 't'), _) => Doing::Stopped,
        (Some('Z' | 'X'), _) => Doing::Gone,
        (None, _) if there && pid > 0 => Doing::Gone,
        (_, Some('R')) => Doing::Computes,
        (_, Some('S' | 'D')) => Doing::Sleeps,
        _ => Doing::Unknown,
    }
}
