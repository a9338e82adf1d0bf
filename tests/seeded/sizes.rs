//! Defects of the kind "wrong beyond L", by rule: for every op, every operand and every dim that varies, what an op gives beyond an index
//! is wrong, or what it reads there is taken for zero. The kit must name each by the op's case of sizes: at its default effort for L up to
//! 1,024, with `--big` beyond. Two more rules: wrong at the end of a dim that is a whole number of tiles, and wrong beyond L in two dims
//! at once. A sample goes through the whole kit; the sweeps make a case's trials once and ask them of the plugin with each defect.

use crate::seeded::frame::{failures, named_at, options, run, wrapped_cpu};
use crossweave_conform::Effort;
use crossweave_conform::op::{Loaded, SizeOf, Trials, sizes_of_ops};
use crossweave_conform::report::Status;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Where the defects begin that the default names.
const BEYOND: [usize; 3] = [128, 256, 1024];
/// Tiles of which a size may be a whole number.
const WHOLE: [usize; 2] = [64, 128];
/// Where those begin that need two dims beyond it, and the ops.
const PAIR: usize = 64;
const TWO: [&str; 9] = [
    "matmul",
    "attention_fwd",
    "attention_bwd",
    "softmax_bwd",
    "cross_entropy_fwd",
    "cross_entropy_bwd",
    "layer_norm_bwd",
    "rms_norm_bwd",
    "select",
];
/// Where those begin that are for `--big`, and the ops that have such sizes.
const BIG: [(usize, &[&str]); 2] = [
    (
        4096,
        &["attention", "cross_entropy", "norm", "softmax", "matmul"],
    ),
    (16_384, &["attention", "cross_entropy", "norm", "softmax"]),
];

/// A defect of a size.
#[derive(Clone, Copy)]
enum Rule {
    Beyond(usize),
    /// At the last index of a dim of a multiple of this.
    Multiples(usize),
    /// Beyond L in this dim too.
    Both(usize, usize),
}

impl Rule {
    /// Does an operand of this shape have anything that goes wrong?
    fn meets(self, s: &SizeOf, shape: &[usize]) -> bool {
        let size = |dim: usize| shape.len().checked_sub(dim).map_or(0, |at| shape[at]);
        match self {
            Rule::Beyond(l) => size(s.dim) > l,
            Rule::Multiples(l) => size(s.dim) > 0 && size(s.dim).is_multiple_of(l),
            Rule::Both(other, l) => size(s.dim) > l && size(other) > l,
        }
    }

    /// The defect, and the case that names it. What is read and written is spoilt as an output.
    fn defect(self, s: &SizeOf) -> (String, &str) {
        let what = match s.mode {
            "in" => "ignores",
            _ => "wrong",
        };
        let place = format!("{}:{}:{}", s.op, s.operand, s.dim);
        let bug = match self {
            Rule::Beyond(l) => format!("{what}_beyond:{place}:{l}"),
            Rule::Multiples(l) => format!("{what}_at_multiples:{place}:{l}"),
            Rule::Both(other, l) => format!("{what}_beyond_both:{place}:{other}:{l}"),
        };
        (bug, &s.case)
    }
}

/// What the kit does not name. Without a defect the same cases hold, and a case that only takes too long names nothing.
fn lost(sizes: &[(&SizeOf, Rule)], effort: Effort) -> Vec<String> {
    let plugin = wrapped_cpu();
    let cases: BTreeSet<&str> = sizes.iter().map(|(s, _)| s.case.as_str()).collect();
    let only: Vec<&str> = cases.into_iter().collect();
    let mut clean = options(&plugin, "", &only);
    clean.effort = effort;
    let clean = run(&clean);
    assert_eq!(failures(&clean), Vec::<String>::new(), "without a defect");
    let passed = clean.cells.iter().filter(|c| c.status == Status::Pass);
    assert_eq!(passed.count(), only.len(), "{only:?}");
    let each = sizes.iter().filter_map(|(s, rule)| {
        let (bug, case) = rule.defect(s);
        match named_at(&plugin, (&bug, case), effort) {
            Ok(note) if note.starts_with("hung") || note.starts_with("ended the process") => {
                Some(format!("{bug}: {case}: {note}"))
            }
            other => other.err(),
        }
    });
    each.collect()
}

/// The wrapper of the CPU back end in this process, whose defect changes.
pub struct Changing(Loaded);

impl Changing {
    pub fn new() -> Changing {
        Changing(Loaded::new(&wrapped_cpu()).expect("a plugin"))
    }

    /// With this defect from here on.
    pub fn with(&self, bug: &str) -> &Loaded {
        let said = self.0.attr(&format!("seeded.bug={bug}"));
        assert_eq!(said, Ok(Some(bug.as_bytes().to_vec())));
        &self.0
    }
}

/// The same for many defects of each case: the trials of a case are made once.
fn swept(sizes: &[(&SizeOf, Rule)], effort: Effort) -> Vec<String> {
    let plugin = Changing::new();
    let mut cases: BTreeMap<&str, Vec<(&SizeOf, Rule)>> = BTreeMap::new();
    for (s, rule) in sizes {
        cases.entry(&s.case).or_default().push((*s, *rule));
    }
    let (mut lost, mut untried) = (vec![], vec![]);
    for (case, own) in &cases {
        let began = Instant::now();
        let trials = Trials::of(case, effort).expect("a case of sizes");
        let made = began.elapsed().as_secs_f64();
        let clean = trials.hold(plugin.with(""), None).err();
        lost.extend(clean.map(|e| format!("{case} without a defect: {e}")));
        for (s, rule) in own {
            let (bug, _) = rule.defect(s);
            let such = |shape: &[usize]| rule.meets(s, shape);
            match (
                trials.hold(plugin.with(&bug), Some((s.operand, &such))),
                rule,
            ) {
                (Err(_), _) => {}
                // A dim that is always one more than another is a multiple of nothing.
                (Ok(0), Rule::Multiples(_)) => untried.push(bug),
                (Ok(0), _) => lost.push(format!("{bug}: no trial of {case} has such a size")),
                (Ok(n), _) => lost.push(format!("{bug}: {n} trials of {case} hold")),
            }
        }
        let all = began.elapsed().as_secs_f64();
        let n = own.len();
        println!("{case}: {n} defects, {made:.1} s of references, {all:.1} s; lost {lost:?}");
    }
    println!("never a whole number of tiles: {untried:?}");
    assert!(untried.len() < 40, "{} sizes", untried.len());
    lost
}

#[test]
fn a_sample_of_what_is_wrong_beyond_a_size_is_named() {
    let all = sizes_of_ops(Effort::Default, "");
    assert!(all.len() > 200, "{} sizes", all.len());
    // A prime step, so that ops, operands and dims all come; attention, which takes longest, in the sweep only.
    let quick = all.iter().filter(|s| !s.op.starts_with("attention"));
    let rules = [
        Rule::Beyond(128),
        Rule::Beyond(256),
        Rule::Beyond(1000),
        Rule::Multiples(128),
    ];
    let sample: Vec<_> = quick.step_by(23).zip(rules.into_iter().cycle()).collect();
    assert_eq!(
        lost(&sample, Effort::Default),
        Vec::<String>::new(),
        "defects that were not named"
    );
}

/// Every size of every op beyond each L; and what an op gives, at whole tiles.
fn each_size(all: &[SizeOf]) -> Vec<(&SizeOf, Rule)> {
    let beyond = BEYOND.map(Rule::Beyond);
    let mut each: Vec<_> = (beyond.into_iter())
        .flat_map(|r| all.iter().map(move |s| (s, r)))
        .collect();
    let gives = |s: &&SizeOf| s.mode != "in";
    for l in WHOLE {
        each.extend(all.iter().filter(gives).map(|s| (s, Rule::Multiples(l))));
    }
    each
}

/// Every two dims of an operand beyond L at once, of the ops whose kernels have tiles of two dims.
fn each_two(all: &[SizeOf]) -> Vec<(&SizeOf, Rule)> {
    let pair = |s: &SizeOf, o: &SizeOf| {
        TWO.contains(&s.op) && s.op == o.op && s.operand == o.operand && s.dim < o.dim
    };
    let of = |s| {
        let others = all.iter().filter(move |o| pair(s, o));
        others.map(|o| Rule::Both(o.dim, PAIR))
    };
    let each = all.iter().flat_map(|s| of(s).map(move |r| (s, r)));
    each.collect()
}

#[test]
#[ignore = "minutes: cargo test --release -p crossweave-tests --test suite every_size -- --ignored --nocapture"]
fn what_is_wrong_beyond_every_size_is_named() {
    let all = sizes(Effort::Default);
    let mut each = each_size(&all);
    each.extend(each_two(&all));
    println!("{} defects", each.len());
    assert_eq!(
        swept(&each, Effort::Default),
        Vec::<String>::new(),
        "defects that were not named"
    );
}

/// The sizes of an op that `--big` takes beyond L.
fn big<'a>(all: &'a [SizeOf], beyond: usize, ops: &[&str]) -> Vec<(&'a SizeOf, Rule)> {
    let meant = |s: &&SizeOf| ops.iter().any(|o| s.op.contains(o)) && s.most > beyond;
    let rule = Rule::Beyond(beyond);
    all.iter().filter(meant).map(|s| (s, rule)).collect()
}

/// Every op that has training sizes is among those that `--big` takes beyond L: a list that lost one would pass the sweep.
#[test]
#[ignore = "minutes: cargo test --release -p crossweave-tests --test suite training_size -- --ignored"]
fn training_sizes_are_tried_by_big() {
    let all = sizes_of_ops(Effort::Big, "");
    for (beyond, ops) in BIG {
        for op in ops {
            let found = big(&all, beyond, ops);
            let any = found.iter().any(|(s, _)| s.op.contains(op));
            assert!(any, "{op} has no size beyond {beyond}");
        }
    }
}

/// The sizes that an effort tries; `CW_SIZES_ONLY` keeps the ops whose names hold it.
pub fn sizes(effort: Effort) -> Vec<SizeOf> {
    let only = std::env::var("CW_SIZES_ONLY").unwrap_or_default();
    let all = sizes_of_ops(effort, &only);
    assert!(!all.is_empty(), "{only}: no op of this name has sizes");
    all
}

#[test]
#[ignore = "most of an hour: cargo test --release -p crossweave-tests --test suite training_size -- --ignored --nocapture"]
fn what_is_wrong_beyond_every_training_size_is_named() {
    let all = sizes(Effort::Big);
    let each = BIG.into_iter().flat_map(|(l, ops)| big(&all, l, ops));
    let each: Vec<_> = each.collect();
    println!("{} defects", each.len());
    assert_eq!(
        swept(&each, Effort::Big),
        Vec::<String>::new(),
        "defects that were not named"
    );
}
