//! Committed scorecards say what is true: the kit's version, its cases, what is claimed, and what `ci/scorecards` makes.

use crate::seeded::frame::options;
use crossweave_conform::expect::Expect;
use crossweave_conform::report::{Cell, Status, levels};
use crossweave_conform::run::RANKS;
use crossweave_conform::{Case, Effort, Group, KIT, Level, Profile, Report, Target, registry};
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

fn cards() -> BTreeMap<String, Report> {
    let files = std::fs::read_dir(folder()).expect("docs/conformance");
    let paths = files.map(|f| f.expect("an entry").path());
    paths
        .filter(|p| p.extension().is_some_and(|e| e == "json"))
        .map(|p| {
            let text = std::fs::read_to_string(&p).expect("a card");
            let card =
                serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", p.display()));
            let name = p.file_stem().expect("a name").to_string_lossy();
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
        let known = made.contains_key(name) && ["json", "md", "expect.toml"].contains(&rest);
        assert!(known, "{file} belongs to no card");
    }
    for (name, flags) in &made {
        let card = &all[name];
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
    for (at, card) in cards() {
        assert_eq!(card.schema, "crossweave.conform/1", "{at}");
        assert_eq!(card.kit, KIT, "{at}: {FIX}");
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
        let differ: Vec<&&str> = wanted.symmetric_difference(&have).take(5).collect();
        assert!(differ.is_empty(), "{at}: {differ:?}: {FIX}");
        assert_eq!(have.len(), card.cells.len(), "{at}: a case twice");
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

/// A back end of this project keeps what it claims, but for what its list says; and the list says nothing that is not so.
#[test]
fn scorecards_are_clean_but_for_their_lists() {
    for (at, card) in cards() {
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
        let ids: Vec<&str> = card.cells.iter().map(|c| c.id.as_str()).collect();
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

/// Runs these cases of a linked back end as its card had them, and holds them against it.
fn holds(card: &Report, name: &str, ids: &[&str], limit: Option<u64>) {
    let mut o = options(Path::new(""), "", ids);
    o.target = Target::Linked(name.into());
    o.config = card.config.clone();
    o.ranks = card.ranks.clone();
    // What is claimed shows at small sizes.
    o.effort = Effort::Quick;
    o.limit = limit.map(Duration::from_secs);
    o.expect = expectations(name).unwrap_or_default();
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

/// The linked CPU by one case of each family and a sample of all, the null device by every case, and the CPU as a library by its
/// linked card.
#[test]
fn scorecards_claim_what_the_back_end_claims() {
    let all = cards();
    let card = &all["cpu"];
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
    let (met, differ) = alike(&cells, &all["cpu-plugin"]);
    assert!(met > 1000, "{met} cases in both cards of the CPU");
    assert_eq!(differ, Vec::<String>::new(), "{FIX}");

    // What hangs there is given a moment, and the rest as long as anything.
    let card = &all["null"];
    let hangs = |c: &&Cell| c.note.contains("found: hung");
    let (hung, rest): (Vec<&Cell>, Vec<&Cell>) = card.cells.iter().partition(hangs);
    for (cells, limit) in [(hung, Some(5)), (rest, None)] {
        let ids: Vec<&str> = cells.iter().map(|c| c.id.as_str()).collect();
        holds(card, "null", &ids, limit);
    }
}
