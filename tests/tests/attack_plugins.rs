//! Plugins that are wrong in one way each: every one gets the error that names the file, the fault and the fix, and none takes the host down.

use crossweave_hal::loader::{discover, file_name, load};
use crossweave_hal::{Code, Error, HostServices, LoadError, RawPlugin};
use std::path::{Path, PathBuf};
use std::process::Command;

fn source(name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.join("attacks/plugins").join(format!("{name}.c"))
}

/// Compiles one attack; `None` (with a printed reason) only where there is no C compiler.
fn build(dir: &Path, name: &str) -> Option<PathBuf> {
    let out = dir.join(file_name(name));
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hal/include");
    let run = Command::new("cc")
        .args([
            "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I",
        ])
        .arg(include)
        .arg("-o")
        .arg(&out)
        .arg(source(name))
        .output();
    match run {
        Err(e) => {
            let why = format!("cc: {e} (apt-get install gcc libc6-dev)");
            crossweave_tests::tools::missing("build", &why);
            None
        }
        Ok(r) => {
            assert!(r.status.success(), "{}", String::from_utf8_lossy(&r.stderr));
            Some(out)
        }
    }
}

fn attack(name: &str) -> Option<(PathBuf, Result<RawPlugin, LoadError>)> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = build(dir.path(), name)?;
    let answer = load(&path, &HostServices::default());
    Some((path, answer))
}

/// The attack fails, and its one sentence names the file and all of `parts`.
fn refused(name: &str, parts: &[&str]) -> Option<LoadError> {
    let (path, answer) = attack(name)?;
    let e = answer.expect_err(name);
    let text = e.to_string();
    assert!(!text.contains('\n'), "{text}");
    assert!(
        text.contains(&*path.to_string_lossy()),
        "{name}: no file in: {text}"
    );
    for p in parts {
        assert!(text.contains(p), "{name}: {p:?} not in: {text}");
    }
    Some(e)
}

#[test]
fn an_honest_c_plugin_loads() {
    for (name, minor) in [("good", 0), ("newer_table", 0)] {
        let Some((path, answer)) = attack(name) else {
            return;
        };
        let p = answer.unwrap();
        assert_eq!(
            (p.name.as_str(), p.version.as_str(), p.vendor.as_str()),
            ("stub", "0.0.1", "Attack")
        );
        assert_eq!((p.path, p.abi_minor), (Some(path), minor));
        assert!(p.ops.is_none() && p.coll.is_none());
        let d = p.device.unwrap();
        assert!(d.device_attr.is_none());
        let mut n = 0;
        // SAFETY: a slot of a plugin that keeps the contract.
        let s = unsafe { (d.device_count.unwrap())(p.self_, &mut n, std::ptr::null_mut()) };
        assert_eq!((s, n), (0, 2));
    }
}

#[test]
fn versions_that_do_not_fit_are_named_on_both_sides() {
    if let Some(e) = refused("wrong_major", &["ABI 9.3", "ABI 1.0"]) {
        assert!(matches!(e, LoadError::AbiMajor { .. }));
        assert_eq!(Error::from(e).code, Code::Version);
    }
    if let Some(e) = refused(
        "needs_newer_host",
        &["host 1.0", "plugin 1.9", "host >= 1.7"],
    ) {
        assert!(matches!(e, LoadError::Version { .. }));
    }
}

#[test]
fn missing_mandatory_slots_are_named() {
    for (name, interface, slot) in [
        ("missing_slot", "crossweave.device/1", "copy_2d"),
        ("short_table", "crossweave.device/1", "fill"),
        ("missing_ops_slot", "crossweave.ops/1", "op_prepare"),
        ("missing_coll_slot", "crossweave.collective/1", "unique_id"),
    ] {
        let Some(e) = refused(name, &[interface, slot, "mandatory"]) else {
            return;
        };
        assert!(matches!(e, LoadError::MissingSlot { .. }));
    }
    refused("no_interfaces", &["crossweave.device/1", "missing"]);
    refused("untouched_table", &["get_interface is NULL"]);
    refused("bad_name", &["name", "UTF-8"]);
}

#[test]
fn manifests_are_judged_before_any_code_runs() {
    // Their constructors abort the process, so reaching the next line is the test.
    refused("no_manifest", &[".crossweave", "export_plugin!"]);
    refused(
        "needs_missing",
        &[
            "libno_such_vendor.so.7 or libno_such_vendor.so.6",
            "install",
        ],
    );
    refused("bad_manifest", &[".crossweave", "no name"]);
}

#[test]
fn entries_that_fail_are_reported_with_their_reason() {
    refused("entry_missing", &["crossweave_plugin_v1", "missing"]);
    if let Some(e) = refused("entry_error", &["driver too old", "vendor code 35"]) {
        let e = Error::from(e);
        assert_eq!((e.code, e.vendor_code), (Code::Internal, 35));
    }
    refused("entry_silent", &["-77", "gave no reason"]);
    refused("entry_unterminated", &["internal error"]);
    refused(
        "undefined_symbol",
        &["cannot open", "no_such_vendor_function"],
    );
}

#[test]
fn files_that_are_no_plugins_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let host = HostServices::default();
    let refuse = |path: &Path, parts: &[&str]| {
        let text = load(path, &host).expect_err("not a plugin").to_string();
        for p in parts.iter().chain([&&*path.to_string_lossy()]) {
            assert!(text.contains(p), "{p:?} not in: {text}");
        }
    };
    refuse(
        &dir.path().join("absent.so"),
        &["no such file", "fix: correct the path"],
    );
    refuse(dir.path(), &["cannot be read"]);
    let file = dir.path().join(file_name("text"));
    for content in [&b""[..], b"#!/bin/sh\nexit 0\n", b"\x7fELF"] {
        std::fs::write(&file, content).unwrap();
        refuse(&file, &["not a complete shared library"]);
    }
    // Every cut of a good library: before the headers, in the code, before the section table.
    let Some(good) = build(dir.path(), "good") else {
        return;
    };
    let whole = std::fs::read(&good).unwrap();
    for keep in [
        16,
        64,
        200,
        whole.len() / 2,
        whole.len() - 64,
        whole.len() - 1,
    ] {
        std::fs::write(&file, &whole[..keep]).unwrap();
        refuse(&file, &["not a complete shared library"]);
    }
    // Discovery lists the broken one with its reason beside the good one.
    let found = discover(&[dir.path().into()]);
    let names: Vec<_> = found
        .iter()
        .map(|f| (f.name.as_str(), f.manifest.is_ok()))
        .collect();
    assert_eq!(names, [("good", true), ("text", false)]);
}

/// The null backend as a real library: what `export_plugin!` makes is found, read, opened and called.
#[test]
fn an_exported_rust_plugin_loads_from_its_file() {
    let found = discover(&[crossweave_tests::built::plugins()]);
    let null = found
        .iter()
        .find(|f| f.name == "null")
        .expect("libcrossweave_null");
    let m = null.manifest.as_ref().unwrap();
    assert_eq!((m.name.as_str(), m.vendor.as_str()), ("null", "Crossweave"));
    assert_eq!(
        m.interfaces,
        [
            "crossweave.device/1",
            "crossweave.ops/1",
            "crossweave.collective/1"
        ]
    );
    let host = HostServices::builder().config("null.devices", "5").build();
    // A panic in the entry is an error, and the next attempt works.
    host.set_fault("null.init", 9);
    let e = Error::from(load(&null.path, &host).unwrap_err());
    assert_eq!(
        (e.code, e.message.as_str()),
        (Code::Panic, "fault point null.init")
    );
    host.set_fault("null.init", 0);
    let p = load(&null.path, &host).unwrap();
    assert!(p.ops.is_some() && p.coll.is_some());
    let mut n = 0;
    // SAFETY: a slot of our own plugin.
    unsafe { (p.device.unwrap().device_count.unwrap())(p.self_, &mut n, std::ptr::null_mut()) };
    assert_eq!(n, 5);
}
