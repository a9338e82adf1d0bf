//! Committed scorecards say what is true: the kit's version, its cases, what is claimed, and what `ci/scorecards` makes.

use crate::seeded::frame::{options, wrapped_cpu};
use crossweave_conform::cells::{self, Card};
use crossweave_conform::expect::Expect;
use crossweave_conform::report::{Cell, Status, levels};
use crossweave_conform::run::RANKS;
use crossweave_conform::{
    Case, Effort, Group, KIT, Level, Options, Profile, Report, Target, registry,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

const FIX: &str = "the scorecard is stale; make them anew with ci/scorecards";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn folder() -> PathBuf {
    root().join("docs/conformance")
}

fn text(name: &str) -> String {
    let path = folder().join(format!("{name}.cells"));
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn cards() -> BTreeMap<String, Card> {
    let files = std::fs::read_dir(folder()).expect("docs/conformance");
    let paths = files.map(|f| f.expect("an entry").path());
    paths
        .filter(|p| p.extension().is_some_and(|e| e == "cells"))
        .map(|p| {
            let name = p.file_stem().expect("a name").to_string_lossy();
            let file = format!("docs/conformance/{name}.cells");
            let card = cells::read(&file, &text(&name)).unwrap_or_else(|e| panic!("{e}"));
            (name.into_owned(), card)
        })
        .collect()
}

/// The cards that `ci/scorecards` makes: name, and the flags of each.
fn made() -> BTreeMap<String, Vec<String>> {
    let text = std::fs::read_to_string(root().join("ci/scorecards")).expect("ci/scorecards");
    let lines = text
        .lines()
        .filter_map(|l| l.trim_start().strip_prefix("card "));
    let words = lines.map(|l| l.split_whitespace().map(String::from).collect::<Vec<_>>());
    words.map(|w| (w[0].clone(), w[1..].to_vec())).collect()
}

/// The list of what a card's back end is known not to keep.
fn expectations(name: &str) -> Option<Expect> {
    let path = folder().join(format!("{name}.expect.toml"));
    let list = path.is_file().then(|| Expect::read(&path));
    list.map(|l| l.expect("a list"))
}

#[test]
fn scorecards_are_those_that_are_made() {
    let all = cards();
    let made = made();
    assert!(made.len() >= 5, "{made:?}");
    let of = |m: Vec<&String>| m.into_iter().cloned().collect::<Vec<_>>();
    assert_eq!(of(all.keys().collect()), of(made.keys().collect()));
    for f in std::fs::read_dir(folder()).expect("docs/conformance") {
        let file = f.expect("an entry").file_name();
        let file = file.to_string_lossy();
        let (name, rest) = file.split_once('.').expect("an extension");
        let known = made.contains_key(name) && ["cells", "md", "expect.toml"].contains(&rest);
        assert!(known, "{file} belongs to no card");
    }
    for (name, flags) in &made {
        let card = &all[name].report;
        let flag = |word: &str| {
            let at = flags.iter().position(|f| f == word);
            at.map(|i| flags[i + 1].as_str())
        };
        let words = |r: &[u32]| r.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let (usual, ranks) = (words(&RANKS), words(&card.ranks));
        let has = |word: &str| flags.iter().any(|f| f == word);
        let effort = match [has("--quick"), has("--big")] {
            [true, _] => Effort::Quick,
            [_, true] => Effort::Big,
            _ => Effort::Default,
        };
        assert_eq!(card.effort, effort, "{name}: {FIX}");
        let wanted = [
            (flag("--level").unwrap_or("fault"), card.level.as_str()),
            (flag("--launcher").unwrap_or("threads"), &card.launcher),
            (flag("--ranks").unwrap_or(&usual), &ranks),
            (
                flag("--profile").unwrap_or("none"),
                card.profile.as_deref().unwrap_or("none"),
            ),
        ];
        for (made, is) in wanted {
            assert_eq!(made, is, "{name}: {FIX}");
        }
        assert_eq!(card.seed, 0, "{name}");
        assert_eq!(
            flag("--expect").is_some(),
            expectations(name).is_some(),
            "{name}"
        );
    }
}

#[test]
fn scorecards_are_of_this_kit_and_its_cases() {
    for (at, of_file) in cards() {
        let behind: Vec<String> = of_file.behind.iter().map(|e| e.to_string()).collect();
        assert_eq!(behind, Vec::<String>::new());
        let Card {
            report: card,
            not_run,
            ..
        } = &of_file;
        assert_eq!(card.schema, "crossweave.conform/1", "{at}");
        let kit: u32 = card.kit.parse().expect("a number");
        assert!(kit <= KIT, "{at}");
        let level = Level::ALL.into_iter().find(|l| l.name() == card.level);
        let level = level.unwrap_or_else(|| panic!("{at}: level {}", card.level));
        let profile = card.profile.as_deref().map(|name| {
            let p = Profile::by_name(name);
            p.unwrap_or_else(|| panic!("{at}: profile {name}"))
        });
        let ops = profile != Some(Profile::CollectiveOnly);
        // At --quick the larger cases are there too, and smaller.
        let effort = match card.effort {
            Effort::Big => Effort::Big,
            _ => Effort::Default,
        };
        let mut cases = registry(&card.ranks, effort);
        cases.retain(|c| Level::of(c.group()) <= level && (ops || c.group() != Group::Op));
        let wanted: BTreeSet<&str> = cases.iter().map(|c| c.id.as_str()).collect();
        let have: BTreeSet<&str> = card.cells.iter().map(|c| c.id.as_str()).collect();
        let mut all = have.clone();
        all.extend(not_run.iter().map(String::as_str));
        let differ: Vec<&&str> = wanted.symmetric_difference(&all).take(5).collect();
        assert!(differ.is_empty(), "{at}: {differ:?}: {FIX}");
        assert_eq!(have.len(), card.cells.len(), "{at}: a case twice");
        assert_eq!(
            all.len(),
            have.len() + not_run.len(),
            "{at}: met and not run"
        );
        // What is written of a card is the card, where it is of this kit.
        if kit == KIT {
            assert_eq!(
                cells::write(card).expect("a card"),
                text(&at),
                "{at}: {FIX}"
            );
        }
        let by_id: BTreeMap<&str, &Case> = cases.iter().map(|c| (c.id.as_str(), c)).collect();
        for c in &card.cells {
            let case = by_id[c.id.as_str()];
            let demanded = profile.is_some_and(|p| case.demanded.by(p));
            assert_eq!(
                (c.row.as_str(), c.ranks, c.demanded),
                (case.row, case.ranks, demanded),
                "{at}: {}: {FIX}",
                c.id
            );
            let claimed = match c.status {
                Status::Pass => Some(true),
                Status::Refused | Status::Skip => Some(false),
                _ => None,
            };
            assert!(claimed.is_none_or(|x| x == c.claimed), "{at}: {}", c.id);
        }
        assert_eq!(card.levels, levels(&card.cells, true), "{at}: {FIX}");
        let page = folder().join(format!("{at}.md"));
        let page = std::fs::read_to_string(page).unwrap_or_else(|e| panic!("{at}.md: {e}"));
        assert_eq!(
            page,
            card.markdown(),
            "{at}: the page is not of this card; {FIX}"
        );
    }
}

/// A case that a card has not met is no error until there is a release.
#[test]
fn scorecards_are_complete_at_a_release() {
    let changes = std::fs::read_to_string(root().join("CHANGELOG.md")).expect("CHANGELOG.md");
    let newest = changes.lines().find(|l| l.starts_with("## "));
    let newest = newest.expect("a version in CHANGELOG.md");
    for (at, card) in cards() {
        println!("{at}: {} not run", card.not_run.len());
        let fix = format!("{newest}: complete the card with ci/scorecards {at} --rest");
        let released = !newest.starts_with("## Unreleased");
        assert!(card.not_run.is_empty() || !released, "{fix}");
    }
}

/// A back end of this project keeps what it claims, but for what its list says; and the list says nothing that is not so.
#[test]
fn scorecards_are_clean_but_for_their_lists() {
    for (at, of_file) in cards() {
        let card = &of_file.report;
        let list = expectations(&at).unwrap_or_default();
        for c in &card.cells {
            let reason = list.unsupported(&c.id);
            let reason = reason.or_else(|| list.failure(&c.id).map(|f| f.0));
            match (c.status, reason) {
                (Status::Pass | Status::Refused | Status::Skip | Status::Draft, None) => {}
                (Status::Xfail, Some(why)) => assert!(c.note.contains(why), "{at}: {}", c.id),
                (status, _) => panic!("{at}: {} is {status:?} {}", c.id, c.note),
            }
        }
        let mut ids: Vec<&str> = card.cells.iter().map(|c| c.id.as_str()).collect();
        ids.extend(of_file.not_run.iter().map(String::as_str));
        assert_eq!(list.idle(&ids), Vec::<&str>::new(), "{at}");
        // What is not offered is claimed nowhere.
        for (interface, group) in [("ops", Group::Op), ("collective", Group::Coll)] {
            let id = format!("crossweave.{interface}/1");
            let of = |c: &&Cell| Group::of(&c.id) == Some(group) && c.claimed;
            let claimed = card.cells.iter().find(of).map(|c| &c.id);
            assert!(
                claimed.is_none() || card.plugin.interfaces.contains(&id),
                "{at}: {claimed:?} without {id}"
            );
        }
    }
}

/// Cases of both cards end alike; answers how many are in both, and those that do not.
fn alike(now: &[Cell], then: &Report) -> (usize, Vec<String>) {
    let then: BTreeMap<&str, &Cell> = then.cells.iter().map(|c| (c.id.as_str(), c)).collect();
    let both = now
        .iter()
        .filter_map(|c| Some((c, *then.get(c.id.as_str())?)));
    let both: Vec<(&Cell, &Cell)> = both.collect();
    let differ = both
        .iter()
        .filter(|(c, t)| (c.claimed, c.status) != (t.claimed, t.status));
    (both.len(), differ.map(|(c, _)| c.id.clone()).collect())
}

/// A run of these cases of a linked back end as its card was made.
fn again(card: &Report, name: &str, ids: &[&str], limit: Option<u64>) -> Options {
    let mut o = options(Path::new(""), "", ids);
    o.target = Target::Linked(name.into());
    o.config = card.config.clone();
    o.ranks = card.ranks.clone();
    // What is claimed shows at small sizes.
    o.effort = Effort::Quick;
    o.limit = limit.map(Duration::from_secs);
    o.expect = expectations(name).unwrap_or_default();
    o
}

/// Runs these cases of a linked back end, and holds them against its card.
fn holds(card: &Report, name: &str, ids: &[&str], limit: Option<u64>) {
    let mut o = again(card, name, ids, limit);
    let (met, differ) = alike(&crate::seeded::frame::run(&o).cells, card);
    assert_eq!(met, ids.len(), "{name}");
    if differ.is_empty() {
        return;
    }
    // A busy machine may have held one up; what is stale is so again.
    o.only = differ;
    let again = crate::seeded::frame::run(&o);
    let (_, differ) = alike(&again.cells, card);
    assert_eq!(
        differ,
        Vec::<String>::new(),
        "{name}: {FIX}\n{}",
        again.text()
    );
}

/// What a card of a linked back end has not met holds there all the same.
fn rest_holds(card: &Card, name: &str) {
    let ids: Vec<&str> = card.not_run.iter().map(String::as_str).collect();
    if ids.is_empty() {
        return;
    }
    let r = crate::seeded::frame::run(&again(&card.report, name, &ids, None));
    assert_eq!(r.cells.len(), ids.len(), "{name}");
    let well = |c: &&Cell| {
        use Status::*;
        matches!(c.status, Pass | Refused | Skip | Draft | Xfail)
    };
    let bad: Vec<&Cell> = r.cells.iter().filter(|c| !well(c)).collect();
    assert!(bad.is_empty(), "{name}: {bad:?}");
}

/// The linked CPU by one case of each family and a sample of all, the null device by every case, and the CPU as a library by its
/// linked card.
#[test]
fn scorecards_claim_what_the_back_end_claims() {
    let all = cards();
    for name in ["cpu", "null"] {
        rest_holds(&all[name], name);
    }
    let card = &all["cpu"].report;
    let mut families = BTreeSet::new();
    let short = |c: &&Cell| c.ranks.is_none_or(|n| n <= 2) && !c.id.starts_with("leak.");
    let sample: Vec<&str> = card
        .cells
        .iter()
        .filter(short)
        .enumerate()
        .filter(|(i, c)| {
            let family: Vec<&str> = c.id.split('.').take(2).collect();
            families.insert((family, c.status.word())) || i % 34 == 0
        })
        .map(|(_, c)| c.id.as_str())
        .collect();
    holds(card, "cpu", &sample, None);

    let linked = |c: &&Cell| c.note != "linked: no file";
    let cells: Vec<Cell> = card.cells.iter().filter(linked).cloned().collect();
    let (met, differ) = alike(&cells, &all["cpu-plugin"].report);
    assert!(met > 1000, "{met} cases in both cards of the CPU");
    assert_eq!(differ, Vec::<String>::new(), "{FIX}");

    // What hangs there is given a moment, and the rest as long as anything.
    let card = &all["null"].report;
    let hangs = |c: &&Cell| c.note.contains("found: hung");
    let (hung, rest): (Vec<&Cell>, Vec<&Cell>) = card.cells.iter().partition(hangs);
    for (cells, limit) in [(hung, Some(5)), (rest, None)] {
        let ids: Vec<&str> = cells.iter().map(|c| c.id.as_str()).collect();
        holds(card, "null", &ids, limit);
    }
}

/// The CPU with one thing changed, a case that shows it, what the card has there and what the changed back end makes of it.
const CHANGED: &[(&str, &str, Status, Status)] = &[
    // A claim is dropped, of an op for one type.
    (
        "products_of_f16_are_refused",
        "op.matmul.f16",
        Status::Pass,
        Status::Refused,
    ),
    (
        "softmax_of_bf16_is_refused",
        "op.softmax_fwd.bf16",
        Status::Pass,
        Status::Refused,
    ),
    // What is refused is claimed, and does not hold.
    (
        "query_claims_integer_averages",
        "coll.all_reduce.i32.avg.r2",
        Status::Refused,
        Status::Fail,
    ),
    // A case fails on one type.
    (
        "type_as:f16:bf16",
        "coll.all_reduce.f16.sum.r2",
        Status::Pass,
        Status::Fail,
    ),
    // A case that is the only one of its family fails.
    (
        "copy_2d_ignores_the_pitch",
        "mem.copy_2d",
        Status::Pass,
        Status::Fail,
    ),
];
/// Cases of the same families that none of these changes.
const UNCHANGED: &[&str] = &[
    "op.matmul.f32",
    "op.softmax_fwd.f32",
    "coll.all_reduce.f32.sum.r2",
];

/// A change of a back end shows against the committed card, in the case that it changes and in no other.
#[test]
fn scorecards_show_what_a_back_end_changed() {
    let card = &cards()["cpu-plugin"].report;
    let plugin = wrapped_cpu();
    let asked = |bug: &str, ids: &[&str]| {
        let mut o = options(&plugin, bug, ids);
        o.effort = Effort::Quick;
        crate::seeded::frame::run(&o)
    };
    let ids: Vec<&str> = CHANGED.iter().map(|c| c.1).collect();
    let all = [ids.as_slice(), UNCHANGED].concat();
    let healthy = asked("", &all);
    assert_eq!(alike(&healthy.cells, card), (all.len(), vec![]));
    for (bug, case, before, after) in CHANGED {
        let now = asked(bug, &[&[*case], UNCHANGED].concat());
        let (met, differ) = alike(&now.cells, card);
        assert_eq!(
            (met, differ),
            (1 + UNCHANGED.len(), vec![case.to_string()]),
            "{bug}: {}",
            now.text()
        );
        let status = |r: &Report| r.cells.iter().find(|c| c.id == **case).map(|c| c.status);
        assert_eq!(
            (status(card), status(&now)),
            (Some(*before), Some(*after)),
            "{bug}"
        );
    }
    // A refusal that becomes a pass: the card of the back end that refused a product, held against the one that has it.
    let (bug, case, ..) = CHANGED[0];
    let mut refusing = card.clone();
    for met in asked(bug, &[case]).cells {
        let cell = refusing.cells.iter_mut().find(|c| c.id == met.id);
        *cell.expect("the case") = met;
    }
    let old = cells::write(&refusing).expect("a card");
    assert!(
        old.contains(&format!("\n  {case} refused\n")),
        "one line more"
    );
    let old = cells::read("old.cells", &old).expect("a card").report;
    assert_eq!(
        alike(&healthy.cells, &old),
        (all.len(), vec![case.to_string()])
    );
}

/// The error of a card with one edit.
fn refused(edit: impl Fn(&str) -> String) -> String {
    let card = text("cpu");
    let edited = edit(&card);
    assert_ne!(card, edited, "the edit finds its place");
    let e = cells::read("cpu.cells", &edited).expect_err("a card with an edit");
    e.to_string()
}

/// The line, from 1, of the first that begins so.
fn line_of(beginning: &str) -> usize {
    let card = text("cpu");
    let at = card.lines().position(|l| l.starts_with(beginning));
    at.expect("a line") + 1
}

#[test]
fn a_scorecard_that_is_wrong_is_refused_by_file_and_line() {
    let case = "  op.cast.i8.from_f8e4m3 refused\n";
    let at = line_of(case.trim_end());
    let family = line_of("op.cast ");
    let after = |what: &str, more: &str| text("cpu").replacen(what, &format!("{what}{more}"), 1);
    let twice = refused(|_| after(case, case));
    assert_eq!(
        twice,
        format!(
            "cpu.cells:{}: op.cast.i8.from_f8e4m3 has two lines, the first is line {at}; fix: keep one of them",
            at + 1
        )
    );
    for (edit, line, word) in [
        // An id that no case has.
        (
            after(case, "  op.cast.i8.from_nothing refused\n"),
            at + 1,
            "\"op.cast.i8.from_nothing\"",
        ),
        // A card of a newer kit.
        (
            text("cpu").replacen(&format!("kit {KIT}"), &format!("kit {}", KIT + 1), 1),
            2,
            "a newer one",
        ),
        // A case below another family, a result that is none, a family that is none.
        (
            after(case, "  mem.copy_2d pass\n"),
            at + 1,
            "stands below the family \"op.cast\"",
        ),
        (
            text("cpu").replacen(case, "  op.cast.i8.from_f8e4m3 maybe\n", 1),
            at,
            "no result",
        ),
        (
            text("cpu").replacen("op.cast ", "op.kast ", 1),
            family,
            "op.kast",
        ),
        // A family of which a case is gone or new, and one that is not there.
        (
            text("cpu").replacen("op.cast ", "op.cast 1", 1),
            family,
            "a case is gone",
        ),
        (
            text("cpu").replacen("not-run 0", "not-run 1", 1),
            6,
            "not run",
        ),
        ("{}".into(), 1, "no scorecard"),
        (String::new(), 1, "no scorecard"),
        (text("cpu").replacen("abi ", "aby ", 1), 3, "\"abi\""),
        (text("cpu").replacen("plugin {", "plugin [", 1), 7, "plugin"),
        (
            text("cpu").replacen("\"level\":\"fault\"", "\"level\":\"all\"", 1),
            9,
            "no level",
        ),
    ] {
        let said = refused(|_| edit.clone());
        assert!(said.starts_with(&format!("cpu.cells:{line}: ")), "{said}");
        assert!(said.contains(word) && said.contains("; fix: "), "{said}");
    }
    // A file that ends early.
    let whole = text("cpu");
    let lines: Vec<&str> = whole.lines().collect();
    for n in (0..lines.len()).rev().step_by(7).chain(0..12) {
        let part = lines[..n].join("\n");
        assert!(cells::read("cpu.cells", &part).is_err(), "{n} lines");
    }
    // Of an older ABI: read, and behind.
    let older = whole.replacen("abi 0\n", "abi 4294967295\n", 1);
    let card = cells::read("cpu.cells", &older).expect("a card");
    assert_eq!(card.behind[0].line, 3, "{:?}", card.behind);
    let why = card
        .accepts(&card.report.request())
        .expect_err("of an older ABI");
    assert!(why.contains("made for ABI 1.4294967295"), "{why}");
}

/// What a card has not met is counted and run by itself, and joins what it has.
#[test]
fn a_scorecard_is_completed_by_what_it_has_not_met() {
    let whole = cells::read("cpu.cells", &text("cpu"))
        .expect("a card")
        .report;
    let (some, rest): (Vec<Cell>, Vec<Cell>) = whole
        .cells
        .iter()
        .cloned()
        .partition(|c| !c.id.starts_with("op.cast."));
    let with = |cells: Vec<Cell>| {
        let mut r = whole.clone();
        r.cells = cells;
        r
    };
    let part = cells::write(&with(some)).expect("a card");
    assert!(
        part.contains(&format!("\nnot-run {}\n", rest.len())),
        "in its head"
    );
    let card = cells::read("part.cells", &part).expect("a card");
    let ids: Vec<&str> = rest.iter().map(|c| c.id.as_str()).collect();
    assert_eq!(card.rest(), ids);
    assert_eq!(
        card.report.levels["ops"], "pass",
        "what was not run judges nothing"
    );
    let joined = card.clone().with(with(rest.clone())).expect("of one run");
    assert_eq!(cells::write(&joined).expect("a card"), text("cpu"));
    let mut other = with(rest);
    other.seed = 1;
    let why = card.with(other).expect_err("of another run");
    assert!(why.contains("\"seed\":1"), "{why}");
}
