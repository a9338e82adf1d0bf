//! How much a run prints (`-q`, `-v`, `run.log_every`), and the manual pages.

use crate::common::Scratch;

/// A terminal or not: `-q` prints nothing of a run that goes well, `-v` a line for every step.
#[test]
fn a_run_is_as_quiet_as_it_is_asked_to_be() {
    let s = Scratch::new();
    let lines = |out: &str, more: &[&str]| {
        let said = s.ok(&[&["train", "config.json", "--out", out], more].concat());
        let steps = said
            .lines()
            .filter(|l| l.starts_with("step ") && l.contains("tok/s"));
        (steps.count(), said)
    };
    let (n, said) = lines("quiet", &["-q"]);
    assert_eq!((n, said.trim()), (0, ""), "{said}");
    assert!(s.path("quiet/model/model.safetensors").exists());
    assert_eq!(lines("each", &["-v"]).0, 8);
    // Every tenth step, and the first and the last.
    assert_eq!(lines("plain", &[]).0, 2);
    assert_eq!(lines("own", &["--set", "run.log_every=2"]).0, 5);
    let both = s.run(&["train", "config.json", "-q", "-v"]);
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn each_command_has_a_manual_page() {
    let s = Scratch::new();
    let page = s.ok(&["man"]);
    assert!(page.contains(".TH") && page.contains("explain"), "{page}");
    let page = s.ok(&["man", "train"]);
    assert!(page.contains("verbose") && page.contains("quiet"), "{page}");
    assert!(s.ok(&["man", "config", "check"]).contains("files"));
    s.refused(&["man", "trian"], &["trian", "train"], &[]);
}
