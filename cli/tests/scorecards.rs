//! Scorecards by families of cases from the command line: written, compared, and completed by what they have not met.

use crate::common::Scratch;

fn conform<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let usual = [
        "conform", "cpu", "--ranks", "2", "--quick", "--level", "abi",
    ];
    [&usual[..], more].concat()
}

#[test]
fn a_card_is_completed_by_what_it_has_not_met() {
    let s = Scratch::new();
    let card = || std::fs::read_to_string(s.path("part.cells")).expect("a card");
    s.ok(&conform(&["--report", "whole.json"]));
    s.ok(&conform(&["--report", "whole.cells"]));
    s.ok(&conform(&["--only", "abi.*", "--report", "part.cells"]));
    let part = card();
    assert!(part.starts_with("crossweave.cells/1\n"), "{part}");
    assert!(!part.contains("\nnot-run 0\n"), "{part}");

    // What cannot complete it leaves it as it is, before anything is run.
    let rest = ["--report", "part.cells", "--rest"];
    let other = [&rest[..], &["--seed", "1"]].concat();
    let parts = ["the card was made with", "fix: give the flags"];
    s.refused(&conform(&other), &parts, &[]);
    let json = conform(&["--report", "whole.json", "--rest"]);
    s.refused(&json, &["whole.json does not end in .cells", "fix: "], &[]);
    let none = s.run(&conform(&["--report", "none.cells", "--rest"]));
    assert!(!none.status.success() && !s.path("none.cells").exists());
    assert_eq!(card(), part);

    // Only what is left is run, and the card is that of one run.
    let left = s.ok(&conform(&[&rest[..], &["-v"]].concat()));
    assert!(
        left.contains("life.") && !left.contains("   abi."),
        "{left}"
    );
    let whole = std::fs::read_to_string(s.path("whole.cells")).expect("a card");
    assert_eq!(card(), whole);
    for other in ["whole.json", "whole.cells"] {
        let page = s.ok(&["conform", "--diff", "part.cells", other]);
        // A head for each, and no difference between.
        let lines: Vec<&str> = page.lines().filter(|l| !l.is_empty()).collect();
        assert_eq!(lines.len(), 3, "{page}");
        assert_eq!(lines[2], "nothing that A has is lost in B");
    }
    let page = s.ok(&conform(&rest));
    assert!(page.contains("the card has met every case"), "{page}");

    // A card that is cut off is refused by its line.
    s.write(
        "part.cells",
        part.trim_end().rsplit_once('\n').expect("lines").0,
    );
    let cut = s.run(&conform(&rest));
    let said = String::from_utf8_lossy(&cut.stderr);
    assert!(!cut.status.success(), "{said}");
    assert!(
        said.contains("part.cells:") && said.contains("fix: "),
        "{said}"
    );
}
