//! Simulators of vendors' run times (`tests/sim`), built by the system's C compiler into the build's folder.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The simulator of a vendor (`cuda`, `hip`, `acl`), as a file of its own for one test program: what a simulator counts is counted for the file.
///
/// # Panics
/// Where there is no C compiler, or it refuses the simulator.
pub fn library(vendor: &str, program: &str) -> PathBuf {
    built(vendor, program, None)
}

/// The simulator of a vendor (`hip`, `acl`) behind a back end's bug (`tests/sim/bugs.c`).
///
/// # Panics
/// As [`library`].
pub fn with_bug(vendor: &str, bug: &str, program: &str) -> PathBuf {
    built(vendor, &format!("{program}-{bug}"), Some(bug))
}

/// The folder of simulators, and of what back ends compile for them.
pub fn folder() -> PathBuf {
    let test = std::env::current_exe().expect("a test program has a path");
    // `target/<profile>/deps/suite-…`
    let target = test.ancestors().nth(3).expect("the target folder");
    let folder = target.join("sim");
    std::fs::create_dir_all(&folder).expect("the target folder can be written");
    folder
}

fn built(vendor: &str, program: &str, bug: Option<&str>) -> PathBuf {
    let out = folder().join(format!("lib{vendor}-{program}.so"));
    let run = Command::new("bash")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("sim/build"))
        .arg(vendor)
        .arg(&out)
        .args(bug)
        .output()
        .expect("bash starts");
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "tests/sim/build {vendor}: {said}");
    out
}
