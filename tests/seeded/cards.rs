//! Committed scorecards say what is true: the kit's version, its cases, and what is claimed.

use crate::frame::options;
use crossweave_conform::report::Status;
use crossweave_conform::{Group, KIT, Level, Report, Target, registry};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const FIX: &str = "the scorecard is stale; make them anew with ci/scorecards";

fn cards() -> Vec<(PathBuf, Report)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/conformance");
    let files = std::fs::read_dir(&dir).expect("docs/conformance");
    let mut all: Vec<(PathBuf, Report)> = files
        .map(|f| f.expect("an entry").path())
        .filter(|p| p.extension().is_some_and(|e| e == "json"))
        .map(|p| {
            let text = std::fs::read_to_string(&p).expect("a card");
            let card =
                serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", p.display()));
            (p, card)
        })
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

#[test]
fn scorecards_are_of_this_kit_and_its_cases() {
    let all = cards();
    assert!(all.len() >= 3, "{} scorecards", all.len());
    for (path, card) in &all {
        let at = path.display();
        assert_eq!(card.schema, "crossweave.conform/1", "{at}");
        assert_eq!(card.kit, KIT, "{at}: {FIX}");
        assert!(
            path.with_extension("md").is_file(),
            "{at}: its page is missing"
        );
        let level = Level::ALL.into_iter().find(|l| l.name() == card.level);
        let level = level.unwrap_or_else(|| panic!("{at}: level {}", card.level));
        let ops = card
            .cells
            .iter()
            .any(|c| Group::of(&c.id) == Some(Group::Op));
        let cases = registry(&card.ranks, false);
        let wanted: BTreeSet<&str> = cases
            .iter()
            .filter(|c| Level::of(c.group()) <= level && (ops || c.group() != Group::Op))
            .map(|c| c.id.as_str())
            .collect();
        let have: BTreeSet<&str> = card.cells.iter().map(|c| c.id.as_str()).collect();
        let differ: Vec<&&str> = wanted.symmetric_difference(&have).take(5).collect();
        assert!(differ.is_empty(), "{at}: {differ:?}: {FIX}");
        let page = std::fs::read_to_string(path.with_extension("md")).expect("its page");
        assert_eq!(
            page,
            card.markdown(),
            "{at}: the page is not of this card; {FIX}"
        );
    }
}

/// Of the linked CPU, by a sample of its cells.
#[test]
fn scorecards_claim_what_the_back_end_claims() {
    let all = cards();
    let card = all
        .iter()
        .find(|(p, _)| p.file_stem().is_some_and(|s| s == "cpu"));
    let (_, card) = card.expect("docs/conformance/cpu.json");
    let sample: Vec<&str> = card
        .cells
        .iter()
        .filter(|c| c.ranks.is_none_or(|n| n <= 2) && !c.id.starts_with("leak."))
        .map(|c| c.id.as_str())
        .step_by(17)
        .collect();
    let mut o = options(Path::new(""), "", &sample);
    o.target = Target::Linked("cpu".into());
    o.ranks = card.ranks.clone();
    let now = crate::frame::run(&o);
    for c in &now.cells {
        let then = card
            .cells
            .iter()
            .find(|t| t.id == c.id)
            .expect("sampled from it");
        assert_eq!(
            (c.claimed, c.status),
            (then.claimed, then.status),
            "{}: {} ({FIX})",
            c.id,
            c.note
        );
        assert_ne!(c.status, Status::Fail, "{}", c.id);
    }
    assert_eq!(now.cells.len(), sample.len());
}
