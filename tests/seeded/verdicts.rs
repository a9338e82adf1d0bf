//! What the kit makes of what cases find: expectations, a budget, and what there was nothing to judge of.

use crate::seeded::frame::{c_plugin, options, run, wrapped_cpu};
use crossweave_conform::expect::Expect;
use crossweave_conform::report::Status;
use crossweave_conform::{Effort, Report};
use std::time::Duration;

fn of<'a>(r: &'a Report, id: &str) -> (Status, &'a str) {
    let cell = r.cells.iter().find(|c| c.id == id);
    let cell = cell.unwrap_or_else(|| panic!("no case {id}"));
    (cell.status, &cell.note)
}

#[test]
fn a_list_of_the_unsupported_excuses_refusals_only() {
    let dir = tempfile::tempdir().expect("a folder");
    let ids = ["mem.copy_2d", "mem.import_host_pointer", "mem.map"];
    let mut o = options(&c_plugin(dir.path(), "PITCHES_SWAPPED"), "", &ids);
    let text = ids.map(|id| format!("[[unsupported]]\ncase = \"{id}\"\nreason = \"why\"\n"));
    o.expect = Expect::parse(&text.concat()).expect("a list");
    let r = run(&o);
    let (wrong, note) = of(&r, ids[0]);
    assert_eq!(wrong, Status::Fail, "a wrong copy is no refusal: {note}");
    assert!(note.contains("excuses a refusal"), "{note}");
    assert_eq!(of(&r, ids[1]).0, Status::Xfail);
    assert_eq!(of(&r, ids[2]).0, Status::Xpass);
    assert_eq!(r.exit_code(), 1);
}

/// Whenever the budget ends, what was not begun has not failed.
#[test]
fn a_budget_fails_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let plugin = c_plugin(dir.path(), "");
    for budget in [0, 1, 20, 50] {
        let mut o = options(&plugin, "", &["mem.*", "abi.*", "life.*"]);
        o.budget = Some(Duration::from_millis(budget));
        let r = run(&o);
        assert_eq!(r.cells.len(), o.cases().expect("cases").len());
        let bad: Vec<_> = r
            .cells
            .iter()
            .filter(|c| c.status == Status::Fail)
            .collect();
        assert!(bad.is_empty(), "{budget} ms: {bad:?}");
        if budget == 0 {
            assert_eq!(r.exit_code(), 3);
            assert!(r.cells.iter().all(|c| c.status == Status::NotRun));
        }
    }
}

/// How many processes run cases of ops changes neither what is found nor the order in which a report lists it.
#[test]
fn several_processes_find_what_one_finds() {
    let only = ["op.axpby.*", "op.unary.*", "mem.map"];
    let mut o = options(&wrapped_cpu(), "beta_0_reads_y", &only);
    o.effort = Effort::Quick;
    let found = |jobs| {
        let mut o = o.clone();
        o.jobs = Some(jobs);
        let cells = run(&o).cells.into_iter();
        cells.map(|c| (c.id, c.status, c.note)).collect::<Vec<_>>()
    };
    let one = found(1);
    assert!(one.len() > 32, "{} cases are one share", one.len());
    let failed = one.iter().filter(|c| c.1 == Status::Fail).count();
    assert!(failed > 0 && failed < one.len(), "{failed} cases fail");
    assert_eq!(one, found(3));
}

#[test]
fn nothing_to_judge_is_not_conformant() {
    let dir = tempfile::tempdir().expect("a folder");
    let plugin = c_plugin(dir.path(), "");
    let r = run(&options(&plugin, "", &["coll.barrier.*", "mem.map"]));
    assert_eq!(r.levels["coll"], "not judged");
    assert_eq!(r.levels["device"], "partial");
    assert!(r.text().contains("coll not judged"), "{}", r.text());
}

/// The contract lets a rank not know which other one is missing; then the case cannot say that it was named.
#[test]
fn a_missing_rank_that_nobody_names_is_not_judged() {
    let case = "fault.missing_rank_is_named.r2";
    let r = run(&options(&wrapped_cpu(), "nobody_is_named", &[case]));
    let (status, note) = of(&r, case);
    assert_eq!(status, Status::Skip, "{note}");
    assert!(note.contains("peer_rank is -1"), "{note}");
}
