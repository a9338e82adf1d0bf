//! A case earns its place when there is a defect that nothing else names: with that defect, of all the kit's cases those of one pattern fail
//! and no other. Here are such defects of the cases for sizes, streams, lists, collectives and devices.

use crate::seeded::frame::{LIMITS, c_plugin, options, run, wrapped_cpu};
use crossweave_conform::case::matches;
use crossweave_conform::report::{Report, Status};
use crossweave_conform::{Effort, Level};
use std::path::{Path, PathBuf};

/// A defect, the pattern of the cases that name it, and the ranks that it needs. Defects in capitals are those of the C plugin.
type Alone = (&'static str, &'static str, u32);

const ALONE: &[Alone] = &[
    ("wrong_beyond:matmul:0:2:2000", "op.matmul.*sizes", 2),
    (
        "ignores_beyond:softmax_fwd:1:1:2000",
        "op.softmax_fwd.*sizes",
        2,
    ),
    (
        "ignores_beyond:attention_fwd:3:3:2000",
        "op.attention_fwd.*sizes",
        2,
    ),
    ("wrong_beyond:binary:0:1:60000", "op.binary.*sizes", 2),
    ("vocabulary_of_16_bits", "op.embedding_fwd.*sizes", 2),
    ("bins_of_16_bits", "op.histogram.*sizes", 2),
    ("scratch_is_shared", "op.*two_streams*", 2),
    ("groups_end_at_30", "op.adamw.*lists", 2),
    ("lists_end_at_64", "op.multi_scale.*lists", 2),
    ("lists_end_at_32", "op.nonfinite_count.*lists", 2),
    ("an_empty_tensor_ends_the_list", "op.multi_sumsq.*lists", 2),
    ("nan_rounds_to_zero", "op.cast.*", 2),
    ("indices_of_32_bits", "op.gather_rows.*", 2),
    ("seven_dims_are_six", "op.copy_strided.*", 2),
    ("quotients_saturate", "op.binary.*", 2),
    ("lo_wins_over_hi", "op.clamp.*", 2),
    ("alignment_is_not_said", "op.*", 2),
    ("type_as:u64:i64", "coll.*.u64.*", 2),
    ("min_drops_nan_of_ranks", "coll.*.min.*", 2),
    ("in_place_gathers_begin_at_0", "coll.all_gather.*", 2),
    ("pairs_need_a_power_of_two", "*.r6", 6),
    (
        "splits_of_one_parent_are_one",
        "coll.split.two_of_one_parent.*",
        2,
    ),
    ("counts_are_read_late", "coll.all_to_all_v.*", 2),
    ("groups_end_at_16", "coll.group.long.*", 2),
    ("a_ring_of_128_launches", "coll.order.many_in_flight.*", 2),
    ("failure_is_told_once", "fault.failure_is_told_again.*", 2),
    ("failure_passes_events", "fault.failure_is_told_again.*", 2),
    ("async_error_waits", "fault.queries_return_at_once.*", 2),
    (
        "destroy_after_abort_waits",
        "fault.destroy_after_abort.*",
        2,
    ),
    ("negative_priorities_are_refused", "order.every_priority", 2),
    ("a_ring_of_1000_calls", "order.many_in_flight", 2),
    ("event_timeout_is_late", "order.event_sync_timeout", 2),
    ("stream_timeout_is_late", "order.stream_sync_timeout", 2),
    ("leak_in_launch", "leak.*", 2),
    ("leak_in_refused_attr", "leak.*.device_attr", 2),
    ("CHARGES_ANOTHER", "mem.info.each_device_has_its_own", 2),
];

fn plugin(dir: &Path, bug: &str) -> PathBuf {
    match bug.starts_with(|c: char| c.is_ascii_uppercase()) {
        true => c_plugin(dir, bug),
        false => wrapped_cpu(),
    }
}

/// What fails, by name, of the cases that `within` names, or of all; those of sizes at the effort that has them.
fn failing(plugin: &Path, (bug, pattern, ranks): Alone, within: &[&str]) -> Vec<String> {
    let kit = |only: &[&str], effort: Effort| -> Report {
        let mut o = options(plugin, bug, only);
        (o.level, o.effort, o.ranks) = (Level::Fault, effort, vec![ranks]);
        o.limit = Some(LIMITS[1]);
        run(&o)
    };
    let mut reports = vec![kit(within, Effort::Quick)];
    if pattern.ends_with("sizes") {
        reports.push(kit(&[pattern], Effort::Default));
    }
    let cells = reports.into_iter().flat_map(|r| r.cells);
    let bad = cells.filter(|c| c.status == Status::Fail);
    bad.map(|c| format!("{}: {}", c.id, c.note)).collect()
}

/// What is wrong with the claim that only the pattern names the defect.
fn not_alone(dir: &Path, alone: Alone, within: &[&str]) -> Option<String> {
    let (bug, pattern, _) = alone;
    let found = failing(&plugin(dir, bug), alone, within);
    let id = |f: &String| f.split(": ").next().unwrap_or("").to_string();
    let others: Vec<&String> = found.iter().filter(|f| !matches(pattern, &id(f))).collect();
    match (found.is_empty(), others.is_empty()) {
        (true, _) => Some(format!("{bug}: nothing names it")),
        (_, false) => Some(format!("{bug}: named beside {pattern} by {others:?}")),
        _ => None,
    }
}

#[test]
fn a_sample_of_defects_is_named_by_one_case_of_its_group() {
    let dir = tempfile::tempdir().expect("a folder");
    let wrong: Vec<String> = [
        ("failure_is_told_once", "fault.*.r2"),
        ("an_empty_tensor_ends_the_list", "op.multi_*"),
    ]
    .into_iter()
    .filter_map(|(bug, group)| {
        let alone = ALONE.iter().find(|a| a.0 == bug).expect("a row");
        not_alone(dir.path(), *alone, &[group])
    })
    .collect();
    assert_eq!(wrong, Vec::<String>::new());
}

/// `CW_DEFECTS_FROM` begins at the row of that name, and `CW_DEFECTS` is for so many.
#[test]
#[ignore = "half an hour: cargo test --release -p crossweave-tests --test suite named_by_one_pattern -- --ignored"]
fn each_defect_is_named_by_one_pattern_of_all_cases() {
    let dir = tempfile::tempdir().expect("a folder");
    let first = std::env::var("CW_DEFECTS_FROM").unwrap_or_default();
    let count = std::env::var("CW_DEFECTS").map_or(usize::MAX, |n| n.parse().expect("a number"));
    let from = ALONE.iter().skip_while(|a| !a.0.starts_with(&first));
    let rows = from.take(count);
    assert!(rows.clone().next().is_some(), "{first}: no such row");
    let each = rows.filter_map(|a| {
        let wrong = not_alone(dir.path(), *a, &[]);
        println!("{}: {}", a.0, wrong.as_deref().unwrap_or("alone"));
        wrong
    });
    assert_eq!(each.collect::<Vec<_>>(), Vec::<String>::new());
}
