//! The flight record: what every rank asked of the others last, written when a run fails and shown as one table.

use crate::args::FlightArgs;
use crate::say::say;
use crate::train_error::{Result, TrainError};
use crossweave_hal::{CheckerState, CollectiveRecord, RankFlight, Verdict};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// One rank's file.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    format: u32,
    /// What the run ended with.
    why: String,
    verdict: Option<Verdict>,
    flight: RankFlight,
}

const FORMAT: u32 = 1;

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

/// Runs the command.
///
/// # Errors
/// No records; one that cannot be read.
pub fn run(args: &FlightArgs) -> Result<()> {
    let list = match args.path.is_dir() {
        true => files(&args.path),
        false => vec![args.path.clone()],
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
            format!("{} holds no flight record", args.path.display()),
            "runs that fail while ranks talk to each other leave flight-rank<R>.json in their folder",
        ));
    }
    records.sort_by_key(|r| r.flight.rank);
    say!("{}", table(&records, args.last).trim_end());
    Ok(())
}

fn names(ranks: &BTreeSet<u32>) -> String {
    let list: Vec<String> = ranks.iter().map(u32::to_string).collect();
    match ranks.len() {
        1 => format!("rank {}", list[0]),
        _ => format!("ranks {}", list.join(" ")),
    }
}

/// How each rank stands, then the last `last` collectives of each group, one line for ranks that asked for the same.
fn table(records: &[Record], last: usize) -> String {
    let mut out = String::new();
    let why: BTreeSet<&str> = records
        .iter()
        .map(|r| r.verdict.as_ref().map_or(r.why.as_str(), |v| &v.sentence))
        .collect();
    for w in why {
        let _ = writeln!(out, "{w}\n");
    }
    for r in records {
        let f = &r.flight;
        let ago = |at: u64| f.now.saturating_sub(at) as f64 / 1e9;
        let wait = match f.waits_since {
            Some(at) => format!("its host has waited for {:.1} s", ago(at)),
            None => "its host did not wait".into(),
        };
        let _ = write!(
            out,
            "rank {:<4} {}, {} calls, {wait}",
            f.rank, f.state, f.recorded
        );
        if let Some(op) = f.ops.last() {
            let _ = write!(out, "; last {:.1} s before: {}", ago(op.at), op.say());
        }
        out.push('\n');
    }
    let mut groups: BTreeMap<(String, u64), Vec<(u32, &CollectiveRecord)>> = BTreeMap::new();
    for r in records {
        for op in &r.flight.ops {
            let key = (op.group.to_string(), op.key);
            groups.entry(key).or_default().push((r.flight.rank, op));
        }
    }
    for ((name, _), ops) in groups {
        let members: BTreeSet<u32> = ops.iter().map(|(r, _)| *r).collect();
        let _ = writeln!(out, "\ngroup {name} of {}", names(&members));
        collectives(&mut out, &members, &ops, last);
        messages(&mut out, &ops, last);
    }
    out
}

fn collectives(
    out: &mut String,
    members: &BTreeSet<u32>,
    ops: &[(u32, &CollectiveRecord)],
    last: usize,
) {
    type Line<'a> = (String, String, BTreeSet<u32>, bool);
    let mut rows: BTreeMap<u64, Vec<Line<'_>>> = BTreeMap::new();
    for (rank, op) in ops.iter().filter(|(_, o)| !o.point_to_point()) {
        let row = rows.entry(op.seq).or_default();
        let (what, place) = (op.what(), op.place());
        match row.iter_mut().find(|l| (&l.0, &l.1) == (&what, &place)) {
            Some(l) => {
                l.2.insert(*rank);
                l.3 &= op.done;
            }
            None => row.push((what, place, BTreeSet::from([*rank]), op.done)),
        }
    }
    let shown: Vec<_> = rows.iter().rev().take(last).rev().collect();
    let lines = || shown.iter().flat_map(|(_, l)| l.iter());
    let what = lines().map(|l| l.0.len()).max().unwrap_or(0);
    let place = lines().map(|l| l.1.len()).max().unwrap_or(0);
    for (seq, lines) in shown {
        let kinds: BTreeSet<&str> = lines.iter().map(|l| l.0.as_str()).collect();
        for l in lines {
            let mark = match (kinds.len() > 1, l.3) {
                (true, _) => "  differs",
                (_, true) => "  done",
                _ => "",
            };
            let _ = writeln!(
                out,
                "  #{seq:<6} {:<what$}  {:<place$}  {}{mark}",
                l.0,
                l.1,
                names(&l.2)
            );
        }
        let came: BTreeSet<u32> = lines.iter().flat_map(|l| l.2.iter().copied()).collect();
        let first = |rank: &u32| {
            ops.iter()
                .find(|(r, o)| r == rank && !o.point_to_point())
                .map_or(0, |(_, o)| o.seq)
        };
        let behind: BTreeSet<u32> = members
            .iter()
            .copied()
            // What a rank's ring has forgotten it is not behind in.
            .filter(|r| !came.contains(r) && first(r) <= *seq)
            .collect();
        if !behind.is_empty() {
            let _ = writeln!(
                out,
                "  #{seq:<6} {:<what$}  {:<place$}  {}  BEHIND",
                "-",
                "",
                names(&behind)
            );
        }
    }
}

fn messages(out: &mut String, ops: &[(u32, &CollectiveRecord)], last: usize) {
    let mut all: Vec<_> = ops.iter().filter(|(_, o)| o.point_to_point()).collect();
    all.sort_by_key(|(r, o)| (o.at, *r, o.number));
    let from = all.len().saturating_sub(2 * last);
    for (rank, op) in &all[from..] {
        let mark = if op.done { "  done" } else { "" };
        let _ = writeln!(
            out,
            "  message #{:<4} {}  {}  rank {rank}{mark}",
            op.seq,
            op.what(),
            op.place()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(seq: u64, kind: u32, count: u64) -> CollectiveRecord {
        CollectiveRecord {
            number: seq,
            group: "dp".into(),
            key: 7,
            seq,
            kind,
            dtype: crossweave_hal::DType::F32.id(),
            count,
            site: "engine/src/reduce.rs:64".into(),
            done: seq == 1,
            ..CollectiveRecord::default()
        }
    }

    #[test]
    fn the_table_marks_who_differs_and_who_is_behind() {
        let record = |rank: u32, ops: Vec<CollectiveRecord>| Record {
            format: FORMAT,
            why: "the sentence".into(),
            verdict: None,
            flight: RankFlight {
                rank,
                pid: 1,
                state: "running".into(),
                waits_since: None,
                now: 0,
                recorded: ops.len() as u64,
                ops,
            },
        };
        let all = [
            record(0, vec![op(1, 1, 4), op(2, 1, 8)]),
            record(1, vec![op(1, 1, 4), op(2, 1, 7)]),
            record(2, vec![op(1, 1, 4)]),
        ];
        let text = table(&all, 10);
        let line = |part: &str| {
            let hit = text.lines().find(|l| l.contains(part));
            hit.unwrap_or_else(|| panic!("{part:?} in:\n{text}"))
                .to_string()
        };
        assert!(
            line("all_reduce of 4 x f32  at").ends_with("ranks 0 1 2  done"),
            "{text}"
        );
        let eight = text
            .lines()
            .find(|l| l.trim_start().starts_with("#2") && l.contains("8 x f32"));
        assert!(
            eight.is_some_and(|l| l.ends_with("rank 0  differs")),
            "{text}"
        );
        assert!(line("BEHIND").contains("rank 2"), "{text}");
        assert!(text.starts_with("the sentence\n"), "{text}");
        assert!(!table(&all, 1).contains("4 x f32  at"), "only the last");
    }
}
