//! `ci/linker`, by which every crate of the workspace is linked: the C compiler's own arguments, words and exit code, and one line with the
//! Debian packages where there is no compiler or no C library.
#![cfg(unix)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// Runs the linker with two arguments where `cc` alone is on the PATH, as this script; none where that is empty.
fn link(cc: &str) -> Output {
    let path = tempfile::tempdir().expect("a folder");
    if !cc.is_empty() {
        let file = path.path().join("cc");
        std::fs::write(&file, format!("#!/bin/sh\n{cc}\n")).expect("a script");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).expect("a program");
    }
    let linker = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ci/linker");
    let mut command = Command::new(linker);
    command.args(["-o", "a b"]).env("PATH", path.path());
    command.output().expect("the script starts")
}

fn words(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn without_a_compiler_or_a_c_library_one_line_names_the_packages() {
    let none = link("");
    assert_eq!(none.status.code(), Some(1));
    let said = words(&none.stderr);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("apt-get install gcc libc6-dev"), "{said}");
    // gcc prints the bare name of a file that it does not find.
    let bare = link(
        "case $1 in -print*) echo Scrt1.o ;; *) echo 'ld: cannot find Scrt1.o' >&2; exit 3 ;; esac",
    );
    assert_eq!(bare.status.code(), Some(3));
    let said = words(&bare.stderr);
    assert_eq!(said.lines().count(), 2, "{said}");
    assert!(said.contains("apt-get install libc6-dev"), "{said}");
}

#[test]
fn a_compiler_gets_the_arguments_and_its_own_failure_is_passed_on() {
    let linked = link("for a; do echo \"<$a>\"; done");
    assert!(linked.status.success());
    assert_eq!(words(&linked.stdout), "<-o>\n<a b>\n");
    let failed = link(
        "case $1 in -print*) echo /usr/lib/Scrt1.o ;; *) echo undefined symbol >&2; exit 7 ;; esac",
    );
    assert_eq!(failed.status.code(), Some(7));
    assert_eq!(words(&failed.stderr), "undefined symbol\n");
}
