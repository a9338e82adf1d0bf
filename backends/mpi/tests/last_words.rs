//! A process that its MPI library aborts has the time to say why. This binary starts itself: the test `aborts` is then that process.
#![cfg(unix)]

use crossweave_backend_mpi::last_words::allow;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::time::Duration;

const ROLE: &str = "CW_TEST_LAST_WORDS";

fn run(role: &str) -> (ExitStatus, String) {
    let o = Command::new(std::env::current_exe().unwrap())
        .args(["aborts", "--exact", "--nocapture"])
        .env(ROLE, role)
        .output()
        .unwrap();
    (o.status, String::from_utf8_lossy(&o.stdout).into_owned())
}

#[test]
fn aborts() {
    let Ok(role) = std::env::var(ROLE) else {
        // The ordinary test run: the other starts this one.
        return;
    };
    allow();
    if role == "told" {
        // As a launcher does.
        let pid = std::process::id().to_string();
        let kill = Command::new("kill").args(["-USR1", &pid]).status();
        assert!(kill.unwrap().success());
        std::thread::sleep(Duration::from_millis(100));
        println!("rank 1 died");
        std::process::exit(7);
    }
    std::thread::spawn(|| std::process::abort());
    std::thread::sleep(Duration::from_millis(300));
    println!("rank 1 died");
    if role == "ends" {
        std::process::exit(7);
    }
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
fn an_abort_leaves_the_others_time_to_speak_and_to_end() {
    let (status, said) = run("ends");
    assert_eq!(status.code(), Some(7), "{said}");
    assert!(said.contains("rank 1 died"), "{said}");
    // Who has not ended by then ends as aborts do.
    let (status, said) = run("stays");
    assert_eq!(status.signal(), Some(6), "{said}");
    assert!(said.contains("rank 1 died"), "{said}");
}

#[test]
fn a_launcher_that_tells_of_a_death_by_a_signal_ends_nobody() {
    let (status, said) = run("told");
    assert_eq!(status.code(), Some(7), "{said}");
    assert!(said.contains("rank 1 died"), "{said}");
}
