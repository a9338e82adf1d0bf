//! The ABI lock: every field, signature and constant of the headers is frozen in `abi/v1.lock`, and the Rust mirror says the same.
//!
//! `UPDATE_EXPECT=1` rewrites generated text, but never a lock that would break an old plugin.

mod mirror;
mod parse;

use parse::{Header, violations};
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
    Header::parse(&[&plugin_header(), &crossweave_hal::header::ops_header()])
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
    let broken = violations(&old, &new);
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
    let asserts = Header::parse(&[&plugin_header()]).assertions();
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

/// Names of a struct's slots change places, types or pointees in ways that happened elsewhere; each must be refused.
#[test]
fn real_breaks_are_refused() {
    let header = plugin_header();
    let old = Header::parse(&[&header]).lock_lines();
    let broken = |from: &str, to: &str| -> String {
        assert!(
            header.contains(from),
            "the fixture no longer matches: {from}"
        );
        let new = Header::parse(&[&header.replacen(from, to, 1)]).lock_lines();
        violations(&old, &new).join("\n")
    };
    // Incident A: two slots inserted in the middle of a table, version constant untouched.
    let copy = "  cw_status (*copy)(cw_stream stream, cw_span dst, cw_span src, cw_error *err);\n";
    let a = broken(
        copy,
        &format!("  cw_status (*set_2d)(cw_stream stream, cw_span dst, cw_error *err);\n{copy}"),
    );
    assert!(
        a.contains("gone or changed: cw_device_api @200 copy :"),
        "{a}"
    );
    assert!(a.contains("not appended: cw_device_api @200 set_2d"), "{a}");
    assert!(a.contains("CW_ABI_MINOR did not"), "{a}");
    // Incident B: the slot stays where it is, the type it points at becomes another one.
    let b = broken(
        "const cw_comm_config *cfg, cw_comm *out",
        "const cw_inner_config *cfg, cw_comm *out",
    );
    assert!(
        b.contains("gone or changed: cw_collective_api @16 comm_init"),
        "{b}"
    );
    // The same pointee name, another content.
    let b = broken("char message[440]", "char message[4096]");
    assert!(b.contains("cw_error @72 message : char[440]"), "{b}");
    // A constant changes its value; a leaf passed by value grows; a field changes type at the same place; a slot vanishes.
    assert!(
        broken("CW_COLL_BROADCAST 4u", "CW_COLL_BROADCAST 14u")
            .contains("define CW_COLL_BROADCAST 4u")
    );
    assert!(
        broken(
            "  uint64_t bytes;\n} cw_span;",
            "  uint64_t bytes;\n  uint64_t stride;\n} cw_span;"
        )
        .contains("leaf cw_span size 24")
    );
    assert!(broken("int64_t timeout_ns; /*", "uint64_t timeout_ns; /*").contains("timeout_ns"));
    assert!(broken(copy, "").contains("gone or changed"));
    // Appending without a new minor is refused, with one it is the way to grow; new ids are free.
    let last = "cw_status (*topology)(cw_comm comm, void *out, uint64_t cap, uint64_t *len, cw_error *err);\n";
    let more = format!("{last}  cw_status (*more)(cw_comm comm);\n");
    assert!(broken(last, &more).contains("CW_ABI_MINOR did not"));
    let grown = header
        .replacen(last, &more, 1)
        .replacen("CW_ABI_MINOR 0u", "CW_ABI_MINOR 1u", 1);
    let grown = grown.replacen(
        "#define CW_RED_SUM 1u",
        "#define CW_RED_XOR 7u\n#define CW_RED_SUM 1u",
        1,
    );
    assert_eq!(
        violations(&old, &Header::parse(&[&grown]).lock_lines()),
        [""; 0]
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
    let assert_ops =
        Header::parse(&[&plugin_header(), &crossweave_hal::header::ops_header()]).assertions();
    // The lock's own layout arithmetic is checked by the compiler: assertions over both headers.
    let text =
        format!("#include \"crossweave_ops.h\"\nCW_MANIFEST(\"name=x;vendor=y\");\n{assert_ops}");
    for (name, compiler, standard) in [("a.c", "cc", "-std=c11"), ("a.cpp", "c++", "-std=c++17")] {
        let file = dir.path().join(name);
        std::fs::write(&file, &text).unwrap();
        compiles(compiler, standard, &file);
    }
}
