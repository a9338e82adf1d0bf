//! What the integration tests of several crates share. Suites over several crates are under
//! `tests/`, attacks and oracles beside them.

pub mod built;
pub mod headers;
pub mod sim;
pub mod system;
pub mod tools;

use std::process::{Command, Stdio};

/// Runs the test that calls it in a process of its own, so that it may rely on state that belongs
/// to a process: a linked back end keeps the configuration of the first host that opens it, and
/// threads, allocations and signals are counted per process. Expands to `return` in the ordinary
/// test run, after the child has passed.
#[macro_export]
macro_rules! in_own_process {
    () => {{
        fn here() {}
        if $crate::run_in_child(std::any::type_name_of_val(&here)) {
            return;
        }
    }};
}

const CHILD: &str = "CROSSWEAVE_TEST_CHILD";

/// Starts this test program again for one test, named by the type name of a function inside it,
/// and panics unless that test ran and passed. Returns `false` in the child, which is to go on.
pub fn run_in_child(here: &str) -> bool {
    // `program::module::test::here`: the first part is this program, the last the function above.
    let name = here.strip_suffix("::here").unwrap_or(here);
    let name = name.split_once("::").map_or(name, |(_, rest)| rest);
    if std::env::var(CHILD).is_ok_and(|child| child == name) {
        return false;
    }
    let program = std::env::current_exe().expect("a test program has a path");
    let out = Command::new(program)
        .args(["--exact", name, "--nocapture", "--include-ignored"])
        .env(CHILD, name)
        .stdin(Stdio::null())
        .output()
        .expect("this program starts");
    let text = String::from_utf8_lossy(&out.stdout);
    print!("{text}");
    eprint!("{}", String::from_utf8_lossy(&out.stderr));
    // A name that matches nothing would pass with no test run.
    assert!(
        out.status.success() && text.contains("1 passed"),
        "{name} failed in a process of its own: {}",
        out.status
    );
    true
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_test_runs_in_a_child() {
        let parent = std::process::id();
        println!("process {parent}");
        crate::in_own_process!();
        assert!(
            std::env::var(super::CHILD)
                .unwrap()
                .ends_with("a_test_runs_in_a_child")
        );
    }

    #[test]
    fn a_name_that_matches_no_test_is_not_passed() {
        let failed = std::panic::catch_unwind(|| super::run_in_child("x::no_such_test::here"));
        assert!(failed.is_err());
    }
}
