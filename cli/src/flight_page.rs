//! `crossweave flight`: the flight records of a failed run as one table.

use crate::args::FlightArgs;
use crate::error::Result;
use crate::flight::{self, Record};
use crate::say::say;
use crossweave_hal::CollectiveRecord;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Runs the command.
///
/// # Errors
/// No records; one that cannot be read.
pub fn run(args: &FlightArgs) -> Result<()> {
    let records = flight::read(&args.path)?;
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
    use crate::flight::FORMAT;
    use crossweave_hal::RankFlight;

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
