//! What a newcomer runs first: the commands of the guide *Write a backend* as they stand, one after the other, in an empty folder, and the configs
//! whose text is what cargo has unpacked to build the project.

use crate::common;
use common::{Scratch, losses, records};
use std::path::Path;
use std::process::Command;

/// The fenced blocks of a document that are for a shell.
fn commands(text: &str) -> String {
    let mut script = String::from("set -eu\n");
    let mut inside = false;
    for line in text.lines() {
        match line {
            "```sh" => {
                inside = true;
                // Each block stands for itself: a `cd` in it ends with it.
                script.push_str("(\n");
            }
            "```" if inside => {
                inside = false;
                script.push_str(")\n");
            }
            l if inside => {
                script.push_str(l);
                script.push('\n');
            }
            _ => {}
        }
    }
    assert!(!inside, "a block without its end");
    script
}

#[test]
fn every_command_of_the_guide_works_as_it_stands() {
    for tool in ["cc", "make"] {
        if Command::new(tool).arg("--version").output().is_err() {
            let why = format!("no {tool} here (apt-get install make gcc libc6-dev)");
            return crossweave_tests::tools::missing("build", &why);
        }
    }
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/write-a-backend.md");
    let guide = std::fs::read_to_string(guide).expect("the guide");
    let script = commands(&guide);
    for word in ["new-plugin", "conform", "train", "cargo build"] {
        assert!(script.contains(word), "the guide runs no {word}:\n{script}");
    }
    let dir = tempfile::tempdir().expect("a folder");
    let programs = [env!("CARGO_BIN_EXE_crossweave"), env!("CARGO")];
    let given = std::env::var_os("PATH").unwrap_or_default();
    let path = programs
        .iter()
        .filter_map(|p| Path::new(p).parent())
        .map(Path::to_path_buf)
        .chain(std::env::split_paths(&given));
    let out = Command::new("sh")
        .arg("-c")
        .arg(&script)
        .current_dir(dir.path())
        .env("PATH", std::env::join_paths(path).expect("a path"))
        .env("CROSSWEAVE_CACHE", dir.path().join("cache"))
        .env_remove("CROSSWEAVE_PLUGIN_PATH")
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("RUSTFLAGS")
        .env_remove("RUSTC_BOOTSTRAP")
        .output()
        .expect("a shell");
    let (said, errors) = (
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr),
    );
    assert!(out.status.success(), "{script}\n{said}\n{errors}");
    // What a bare machine lacks is said before it is missed.
    let needs = "apt-get install make gcc libc6-dev";
    assert!(said.contains(needs), "{said}");
    let place = guide.find(needs).expect("the guide says so");
    assert!(place < guide.find("make -C acme").expect("a command"));
    // What the guide says of the runs.
    let cpu = losses(&dir.path().join("runs/cpu"));
    assert_eq!(cpu.len(), 20);
    for run in ["acme", "two", "mixed", "program"] {
        let own = losses(&dir.path().join("runs").join(run));
        assert_eq!(own.len(), cpu.len(), "{run}");
        for (a, b) in cpu.iter().zip(own) {
            assert!((a - b).abs() <= 1e-4 * a, "{run}: {b}, the cpu has {a}");
        }
    }
}

/// For a locked package cargo unpacks only the versions that this platform builds: a config may name none of which another one is locked too.
#[test]
fn the_examples_that_need_no_data_find_their_text_after_a_bare_build() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let s = Scratch::new();
    let mut tried = 0;
    for entry in std::fs::read_dir(root.join("examples/configs")).expect("examples") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        if !text.contains("\"cargo_sources\"") {
            continue;
        }
        tried += 1;
        let out = s.path("out");
        // The first thing that a user runs learns fast: in 30 steps it is where ten times as many brought an earlier config.
        let first = path.ends_with("quickstart.json");
        let steps = if first { "30" } else { "1" };
        let args = ["train", path.to_str().expect("a name"), "--steps", steps];
        let mut c = s.command(&args);
        c.current_dir(&root).arg("--out").arg(&out);
        let o = c.output().expect("it starts");
        let said = String::from_utf8_lossy(&o.stderr);
        assert!(o.status.success(), "{}: {said}", path.display());
        if first {
            let last = records(&out).last().and_then(|r| r["val_loss"].as_f64());
            assert!(last.is_some_and(|v| v < 2.9), "validation {last:?}");
        }
        std::fs::remove_dir_all(&out).expect("it was written");
    }
    assert!(tried >= 2, "quickstart and llama-tiny");
}
