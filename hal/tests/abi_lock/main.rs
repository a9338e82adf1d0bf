//! The ABI lock: every field, signature and constant of the headers is frozen in `abi/v1.lock`, and the Rust mirror says the same.
//!
//! `UPDATE_EXPECT=1` rewrites generated text, but never a lock that would break an old plugin.

mod edits;
mod facts;
mod history;
mod mirror;
mod more_edits;
mod parse;
mod rules;
mod scan;
mod words;

use parse::Header;
use rules::{editorial, violations};
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_default()
}

fn update() -> bool {
    std::env::var_os("UPDATE_EXPECT").is_some()
}

fn headers() -> Header {
    let texts = [plugin_header(), crossweave_hal::header::ops_header()];
    Header::parse(&[&texts[0], &texts[1]]).expect("headers as the rules want them")
}

fn plugin_header() -> String {
    read("include/crossweave_plugin.h")
}

fn lines(text: &str) -> Vec<String> {
    text.lines()
        .filter(|l| !l.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_lock_only_grows() {
    let old = lines(&read("abi/v1.lock"));
    let new = headers().lock_lines();
    let broken = violations(&old, &new, &editorial(&read("abi/editorial")));
    assert!(
        broken.is_empty(),
        "old plugins would break:\n{}",
        broken.join("\n")
    );
    if update() {
        let head = "# The frozen ABI, major 1. Written by UPDATE_EXPECT=1 cargo test -p crossweave-hal --test suite abi_lock; append only.\n";
        std::fs::write(
            root().join("abi/v1.lock"),
            head.to_owned() + &new.join("\n") + "\n",
        )
        .unwrap();
        return;
    }
    assert!(!old.is_empty(), "abi/v1.lock is missing");
    assert_eq!(old, new, "run with UPDATE_EXPECT=1 to append the new lines");
}

#[test]
fn generated_text_is_current() {
    let ops = crossweave_hal::header::ops_header();
    let plugin = Header::parse(&[&plugin_header()]).expect("a header");
    let asserts = plugin.assertions();
    if update() {
        std::fs::write(root().join("include/crossweave_ops.h"), &ops).unwrap();
        let text = plugin_header();
        let start = text.find("\nCW_ASSERT_").expect("the block of assertions") + 1;
        let end = text.rfind("\nCW_ASSERT_").unwrap() + 1;
        let end = end + text[end..].find('\n').unwrap() + 1;
        let new = format!("{}{asserts}{}", &text[..start], &text[end..]);
        std::fs::write(root().join("include/crossweave_plugin.h"), new).unwrap();
        return;
    }
    assert!(
        read("include/crossweave_ops.h") == ops,
        "crossweave_ops.h is not current: UPDATE_EXPECT=1"
    );
    assert!(
        plugin_header().contains(&asserts),
        "the header's assertions are not current: UPDATE_EXPECT=1"
    );
}

fn compiles(compiler: &str, standard: &str, file: &Path) {
    let out = Command::new(compiler)
        .args([
            standard,
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
            "-fsyntax-only",
            "-I",
        ])
        .arg(root().join("include"))
        .arg(file)
        .output();
    match out {
        Err(e) => println!("skipped: no compiler {compiler} here ({e})"),
        Ok(o) => assert!(
            o.status.success(),
            "{compiler} {standard}:\n{}",
            String::from_utf8_lossy(&o.stderr)
        ),
    }
}

#[test]
fn the_headers_compile_as_c_and_as_cpp() {
    let dir = tempfile::tempdir().unwrap();
    let assert_ops = headers().assertions();
    // The lock's own layout arithmetic is checked by the compiler: assertions over both headers.
    let text =
        format!("#include \"crossweave_ops.h\"\nCW_MANIFEST(\"name=x;vendor=y\");\n{assert_ops}");
    for (name, compiler, standard) in [("a.c", "cc", "-std=c11"), ("a.cpp", "c++", "-std=c++17")] {
        let file = dir.path().join(name);
        std::fs::write(&file, &text).unwrap();
        compiles(compiler, standard, &file);
    }
}
