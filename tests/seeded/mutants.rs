//! Mutants of the op table: defects by rule over its rows, not by hand. Every field of every struct that an op is prepared or launched with
//! is the one of the call before, of the first call with the same operands, 0, or cut to fewer bits; every operand is read with the
//! strides of another. The share that some trial of the op names is its score; `mutants.tsv` has those of all ops, and the gate shows them.

use crate::seeded::sizes::Changing;
use crossweave_conform::Effort;
use crossweave_conform::op::{Trials, cases_of};
use crossweave_hal::abi::op::{OPS, OpSpec, fields_of};

/// Parts of the names of mutants that no trial can name, and why.
const EQUAL: &[(&str, &str)] = &[
    ("sort_pairs:dim:", "sort_pairs works along the last dim"),
    ("topk:dim:", "topk works along the last dim"),
    (
        "_norm_bwd:eps:",
        "backward ops have rstd and do not read eps",
    ),
    ("strides_of:nonfinite_count:0:", "the count is one number"),
];

/// Has a field no meaning, or none yet?
fn no_meaning(doc: &str) -> bool {
    let doc = doc.trim_start();
    doc.starts_with("0.") || doc.starts_with("0;")
}

/// The mutants of an op.
fn mutants(spec: &OpSpec) -> Vec<String> {
    let mut all = vec![];
    for (call, name) in [("param", spec.params), ("launch", spec.dynamic)] {
        let (fields, docs) = fields_of(name);
        for ((field, kind, _), doc) in fields.iter().zip(docs) {
            let hows: &[&str] = match *kind {
                // Without a meaning, or not yet.
                _ if *field == "size" || no_meaning(doc) => &[],
                "f64" => &["previous", "cached", "default", "f16", "bf16"],
                "u32" => &["previous", "cached", "default"],
                _ => &["previous", "cached", "default", "low"],
            };
            let of = |how| format!("{call}:{}:{field}:{how}", spec.name);
            all.extend(hows.iter().map(of));
        }
    }
    let n = spec.operands.len();
    for (one, other) in (0..n).flat_map(|a| (0..n).map(move |b| (a, b))) {
        let read = spec.operand(one).is_some_and(|o| o.is_read());
        if one != other && read {
            all.push(format!("strides_of:{}:{one}:{other}", spec.name));
        }
    }
    all
}

/// What became of the mutants of an op.
#[derive(Default)]
struct Found {
    named: usize,
    /// No trial names them, and they changed what an op was asked or given.
    missed: Vec<String>,
    /// They changed nothing: the field has no meaning for the op, or no other value; the strides are the same or do not fit.
    idle: usize,
}

/// Asks all cases of an op of one plugin, as the kit does, so that what is kept from a case to the next shows.
fn found(plugin: &Changing, spec: &OpSpec) -> Found {
    let mut found = Found::default();
    let mut left: Vec<(String, bool)> = mutants(spec).into_iter().map(|m| (m, false)).collect();
    // Large sizes say nothing that ends of tiles do not, and take longest.
    let mut cases = cases_of(spec.name);
    cases.retain(|c| !c.ends_with(".sizes"));
    let (ends, usual): (Vec<String>, Vec<String>) =
        cases.into_iter().partition(|c| c.ends_with(".residues"));
    for cases in [usual, ends] {
        if left.is_empty() {
            break;
        }
        let healthy = plugin.with("");
        // What is refused anyway says nothing of a mutant.
        let made = |c: &String| {
            let trials = Trials::of(c, Effort::Default).expect("a case of trials");
            trials.claimed_by(healthy).expect("a device")
        };
        let trials: Vec<Trials> = cases.iter().map(made).collect();
        let each = trials.iter().zip(&cases);
        let held = each.map(|(t, c)| {
            let held = t.hold(healthy, None);
            held.unwrap_or_else(|e| panic!("{c} fails without a mutant: {e}"))
        });
        let held: Vec<usize> = held.collect();
        left.retain_mut(|(bug, changed)| {
            let wrong = plugin.with(bug);
            // What is refused where it was claimed has lost a claim, which a scorecard shows.
            let mut each = trials.iter().zip(&held);
            let missed = each.all(|(t, held)| t.hold(wrong, None) == Ok(*held));
            *changed |= wrong.attr("seeded.changed") == Ok(Some(vec![1]));
            found.named += usize::from(!missed);
            missed
        });
    }
    found.idle = left.iter().filter(|(_, changed)| !changed).count();
    found.missed = left.into_iter().filter(|m| m.1).map(|m| m.0).collect();
    found
}

/// The committed scores: a line for each op with how many mutants are named, of how many, and those that are not.
const SCORES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/seeded/mutants.tsv");
const REWRITE: &str = "UPDATE_EXPECT=1 cargo test --release -p crossweave-tests --test suite mutants -- --ignored --nocapture";

/// The line of an op in the committed scores.
fn line(spec: &OpSpec, found: &Found) -> String {
    let of = found.named + found.missed.len();
    format!(
        "{}\t{}\t{of}\t{}",
        spec.name,
        found.named,
        found.missed.join(" ")
    )
}

/// The mutants that the committed scores do not list as missed.
fn new_misses(scores: &str, spec: &OpSpec, found: &Found) -> Vec<String> {
    let own = scores
        .lines()
        .find(|l| l.split('\t').next() == Some(spec.name));
    let known = own.and_then(|l| l.split('\t').nth(3)).unwrap_or_default();
    let known: Vec<&str> = known.split(' ').collect();
    let new = found.missed.iter().filter(|m| !known.contains(&m.as_str()));
    new.cloned().collect()
}

/// Ops of each kind of struct and of layout, whose mutants are asked in seconds.
const SAMPLE: [&str; 6] = [
    "clamp",
    "dropout",
    "cross_entropy_bwd",
    "rms_norm_bwd",
    "rope",
    "topk",
];

#[test]
fn mutants_of_some_ops_are_named_as_the_committed_scores_say() {
    let scores = std::fs::read_to_string(SCORES).unwrap();
    let plugin = Changing::new();
    for spec in OPS.iter().filter(|s| SAMPLE.contains(&s.name)) {
        let own = found(&plugin, spec);
        assert_eq!(new_misses(&scores, spec, &own), [""; 0], "{}", spec.name);
        let own = line(spec, &own);
        assert!(
            scores.lines().any(|l| l == own),
            "not the committed score: {own}; to write them: {REWRITE}"
        );
    }
    for spec in OPS {
        let own = |l: &str| l.split('\t').next() == Some(spec.name);
        assert!(
            scores.lines().any(own),
            "{} has no score; to write them: {REWRITE}",
            spec.name
        );
    }
}

#[test]
#[ignore = "minutes: cargo test --release -p crossweave-tests --test suite mutants -- --ignored --nocapture"]
fn mutants_of_the_op_table_are_named() {
    let only = std::env::var("CW_SIZES_ONLY").unwrap_or_default();
    let plugin = Changing::new();
    let scores = std::fs::read_to_string(SCORES).unwrap_or_default();
    let (mut missed, mut named, mut new, mut lines) = (vec![], 0, vec![], String::new());
    for spec in OPS.iter().filter(|s| s.name.contains(&only)) {
        let own = found(&plugin, spec);
        println!("{}, {} idle", line(spec, &own), own.idle);
        lines += &line(spec, &own);
        lines.push('\n');
        new.extend(new_misses(&scores, spec, &own));
        named += own.named;
        missed.extend(own.missed);
    }
    let why = |bug: &String| EQUAL.iter().any(|(part, _)| bug.contains(part));
    missed.retain(|bug| !why(bug));
    let all = named + missed.len();
    println!("{named} of {all} mutants are named, missed {missed:#?}");
    assert!(missed.len() * 20 <= all, "{named} of {all}: {missed:#?}");
    if std::env::var_os("UPDATE_EXPECT").is_some() && only.is_empty() {
        std::fs::write(SCORES, lines).unwrap();
    } else {
        assert_eq!(
            new, [""; 0],
            "misses that are new; if that is meant: {REWRITE}"
        );
    }
}
