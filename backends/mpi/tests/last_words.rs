//! A process that a launcher notifies of a death by a signal lives on to report why it ends. This binary starts itself: the test `survivor` is then that
//! process.
#![cfg(unix)]

use crossweave_backend_mpi::last_words::allow;
use crossweave_tests::system::{Signal, send_to_self};
use std::process::{Command, ExitStatus};
use std::time::Duration;

const ROLE: &str = "CW_TEST_LAST_WORDS";

fn run(role: &str) -> (ExitStatus, String) {
    let o = Command::new(std::env::current_exe().unwrap())
        .args(["survivor", "--exact", "--nocapture"])
        .env(ROLE, role)
        .output()
        .unwrap();
    (o.status, String::from_utf8_lossy(&o.stdout).into_owned())
}

#[test]
fn survivor() {
    if std::env::var(ROLE).is_err() {
        // The ordinary test run: the other starts this one.
        return;
    }
    allow();
    // As a launcher does.
    send_to_self(Signal::SIGUSR1);
    std::thread::sleep(Duration::from_millis(100));
    println!("rank 1 died");
    std::process::exit(7);
}

#[test]
fn a_launcher_that_tells_of_a_death_by_a_signal_ends_nobody() {
    let (status, said) = run("survivor");
    assert_eq!(status.code(), Some(7), "{said}");
    assert!(said.contains("rank 1 died"), "{said}");
}
