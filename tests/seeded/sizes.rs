//! Defects of the kind "wrong beyond L", by rule: for every op, every operand and every dim that varies, what an op gives beyond an index
//! is wrong, or what it reads there is taken for zero. The kit must name each by the op's case of sizes: at its default effort for L up to
//! 1,024, with `--big` beyond.

use crate::seeded::frame::{failures, named_at, options, run, wrapped_cpu};
use crossweave_conform::Effort;
use crossweave_conform::op::{SizeOf, sizes_of_ops};
use crossweave_conform::report::Status;
use std::collections::BTreeSet;

/// Where the defects begin that the default names.
const BEYOND: [usize; 3] = [128, 256, 1024];
/// Where those begin that are for `--big`, and the ops that have such sizes.
const BIG: [(usize, &[&str]); 2] = [
    (
        4096,
        &["attention", "cross_entropy", "norm", "softmax", "matmul"],
    ),
    (16_384, &["attention", "cross_entropy", "norm", "softmax"]),
];

/// The defect of a size beyond L, and the case that names it. What is read and written is spoilt as an output.
fn defect(s: &SizeOf, beyond: usize) -> (String, &str) {
    let kind = match s.mode {
        "in" => "ignores_beyond",
        _ => "wrong_beyond",
    };
    let bug = format!("{kind}:{}:{}:{}:{beyond}", s.op, s.operand, s.dim);
    (bug, &s.case)
}

/// What the kit does not name. Without a defect the same cases hold, and a case that only takes too long names nothing.
fn lost(sizes: &[(&SizeOf, usize)], effort: Effort) -> Vec<String> {
    let plugin = wrapped_cpu();
    let cases: BTreeSet<&str> = sizes.iter().map(|(s, _)| s.case.as_str()).collect();
    let only: Vec<&str> = cases.into_iter().collect();
    let mut clean = options(&plugin, "", &only);
    clean.effort = effort;
    let clean = run(&clean);
    assert_eq!(failures(&clean), Vec::<String>::new(), "without a defect");
    let passed = clean.cells.iter().filter(|c| c.status == Status::Pass);
    assert_eq!(passed.count(), only.len(), "{only:?}");
    let each = sizes.iter().filter_map(|(s, beyond)| {
        let (bug, case) = defect(s, *beyond);
        match named_at(&plugin, (&bug, case), effort) {
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
    let all = sizes_of_ops(Effort::Default);
    assert!(all.len() > 200, "{} sizes", all.len());
    // A prime step, so that ops, operands and dims all come; attention, which takes longest, in the sweep only.
    let quick = all.iter().filter(|s| !s.op.starts_with("attention"));
    let beyond = [128, 256, 1000].into_iter().cycle();
    let sample: Vec<_> = quick.step_by(23).zip(beyond).collect();
    assert_eq!(
        lost(&sample, Effort::Default),
        Vec::<String>::new(),
        "defects that were not named"
    );
}

#[test]
#[ignore = "ten minutes for each L: cargo test --release -p crossweave-tests --test suite every_size -- --ignored"]
fn what_is_wrong_beyond_every_size_is_named() {
    let all = sizes_of_ops(Effort::Default);
    let each = BEYOND.into_iter().rev();
    let each: Vec<_> = each.flat_map(|l| all.iter().map(move |s| (s, l))).collect();
    assert_eq!(
        lost(&each, Effort::Default),
        Vec::<String>::new(),
        "defects that were not named"
    );
}

/// The sizes of an op that `--big` takes beyond L.
fn big<'a>(all: &'a [SizeOf], beyond: usize, ops: &[&str]) -> Vec<(&'a SizeOf, usize)> {
    let meant = |s: &&SizeOf| ops.iter().any(|o| s.op.contains(o)) && s.most > beyond;
    all.iter().filter(meant).map(|s| (s, beyond)).collect()
}

/// Every op that has training sizes is among those that `--big` takes beyond L: a list that lost one would pass the sweep.
#[test]
#[ignore = "minutes: cargo test --release -p crossweave-tests --test suite training_size -- --ignored"]
fn training_sizes_are_tried_by_big() {
    let all = sizes_of_ops(Effort::Big);
    for (beyond, ops) in BIG {
        for op in ops {
            let found = big(&all, beyond, ops);
            let any = found.iter().any(|(s, _)| s.op.contains(op));
            assert!(any, "{op} has no size beyond {beyond}");
        }
    }
}

#[test]
#[ignore = "hours: cargo test --release -p crossweave-tests --test suite training_size -- --ignored"]
fn what_is_wrong_beyond_every_training_size_is_named() {
    let all = sizes_of_ops(Effort::Big);
    let each = BIG.into_iter().flat_map(|(l, ops)| big(&all, l, ops));
    let each: Vec<_> = each.collect();
    assert_eq!(
        lost(&each, Effort::Big),
        Vec::<String>::new(),
        "defects that were not named"
    );
}
