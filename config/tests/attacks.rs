//! Every damaged or mistaken config kept under `tests/attacks/config` gives exactly the complaint
//! in the `.expect` file beside it, with the name of the file and a fix.

use crossweave_config::Config;

#[test]
fn every_attack_is_answered_with_its_complaint() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/attacks/config");
    let mut seen = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "json") {
            continue;
        }
        seen += 1;
        let want = std::fs::read_to_string(path.with_extension("expect")).unwrap();
        let error = Config::load("attack.json", std::fs::read(&path).unwrap(), &[])
            .expect_err(&path.display().to_string());
        let said = error.to_string();
        assert!(
            said.contains(&want),
            "{}: {want:?} is not in\n{said}",
            path.display()
        );
        for line in said.lines() {
            assert!(
                line.starts_with("attack.json:") && line.contains("; fix: "),
                "{line}"
            );
        }
    }
    assert!(seen >= 10, "only {seen} attacks");
}
