//! Defects of the kind "wrong beyond L", by rule: for every op, every operand and every dim that varies, what an op gives beyond an index
//! is wrong, or what it reads there is taken for zero. The kit must name each at its default effort, by the op's case of sizes.

use crate::seeded::frame::{failures, named, options, run, wrapped_cpu};
use crossweave_conform::op::{SizeOf, sizes_of_ops};
use crossweave_conform::report::Status;
use std::collections::BTreeSet;

/// Where the defects begin. The default has a trial beyond 1,024 in every dim that varies.
const BEYOND: usize = 1000;

/// The defect of a size, and the case that names it. What is read and written is spoilt as an output.
fn defect(s: &SizeOf) -> (String, &str) {
    let kind = match s.mode {
        "in" => "ignores_beyond",
        _ => "wrong_beyond",
    };
    let bug = format!("{kind}:{}:{}:{}:{BEYOND}", s.op, s.operand, s.dim);
    (bug, &s.case)
}

/// What the kit does not name. Without a defect the same cases hold, and a case that only takes too long names nothing.
fn lost<'a>(sizes: impl Iterator<Item = &'a SizeOf> + Clone) -> Vec<String> {
    let plugin = wrapped_cpu();
    let cases: BTreeSet<&str> = sizes.clone().map(|s| s.case.as_str()).collect();
    let only: Vec<&str> = cases.into_iter().collect();
    let clean = run(&options(&plugin, "", &only));
    assert_eq!(failures(&clean), Vec::<String>::new(), "without a defect");
    let passed = clean.cells.iter().filter(|c| c.status == Status::Pass);
    assert_eq!(passed.count(), only.len(), "{only:?}");
    let each = sizes.filter_map(|s| {
        let (bug, case) = defect(s);
        match named(&plugin, (&bug, case)) {
            Ok(note) if note.starts_with("hung") || note.starts_with("ended the process") => {
                Some(format!("{bug}: {case}: {note}"))
            }
            other => other.err(),
        }
    });
    each.collect()
}

#[test]
fn a_sample_of_what_is_wrong_beyond_a_size_is_named() {
    let all = sizes_of_ops();
    assert!(all.len() > 200, "{} sizes", all.len());
    // A prime step, so that ops, operands and dims all come; attention, which takes longest, in the sweep only.
    let quick = all.iter().filter(|s| !s.op.starts_with("attention"));
    let sample = quick.step_by(23);
    assert_eq!(
        lost(sample),
        Vec::<String>::new(),
        "defects that were not named"
    );
}

#[test]
#[ignore = "ten minutes: cargo test --release -p crossweave-tests --test suite every_size -- --ignored"]
fn what_is_wrong_beyond_every_size_is_named() {
    let all = sizes_of_ops();
    assert_eq!(
        lost(all.iter()),
        Vec::<String>::new(),
        "defects that were not named"
    );
}
