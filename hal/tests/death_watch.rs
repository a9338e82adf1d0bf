//! A process that is killed is reported to every process that watches over it; one that leaves or exits by itself is not.
#![cfg(target_os = "linux")]

use crossweave_hal::death_watch::{DeathWatch, WATCHED, watch};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Another process, this test program again, that keeps a death_watch and then ends as its environment asks.
fn other(path: &std::path::Path, how: &str) -> std::process::Child {
    let me = std::env::current_exe().unwrap();
    let mut c = Command::new(me)
        .args(["--exact", "death_watch::helper", "--ignored"])
        .args(["--nocapture"])
        .env("VIGIL", path)
        .env("VIGIL_END", how)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(c.stdout.take().unwrap()).lines();
    assert!(lines.any(|l| l.unwrap().contains("keeps")));
    c
}

#[test]
#[ignore = "the other process of the tests below"]
fn helper() {
    let Ok(path) = std::env::var("VIGIL") else {
        return;
    };
    let death_watch = DeathWatch::keep(path.as_ref()).unwrap();
    println!("keeps");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    if std::env::var("VIGIL_END").unwrap() == "leave" {
        drop(death_watch);
    }
    std::process::exit(3);
}

#[test]
fn a_killed_process_is_told_to_all_who_watch() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("death_watch");
    let mut c = other(&path, "");
    let (tell, told) = channel();
    // Stands of their own, the last there is, one that several share, and one beyond the last.
    let stands = [0, 1, WATCHED - 1, 5, 5, 5, WATCHED + 5];
    for (n, stand) in stands.into_iter().enumerate() {
        let tell = tell.clone();
        watch(&[(path.clone(), stand)], true, move |_| {
            tell.send(n).unwrap()
        })
        .unwrap();
    }
    std::fs::remove_file(&path).unwrap();
    assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
    c.kill().unwrap();
    let mut all: Vec<usize> = stands
        .iter()
        .map(|_| told.recv_timeout(Duration::from_secs(120)).unwrap())
        .collect();
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2, 3, 4, 5, 6]);
    c.wait().unwrap();
    // Once each, and then their threads end.
    drop(tell);
    let end = told.recv_timeout(Duration::from_secs(120));
    assert_eq!(end, Err(RecvTimeoutError::Disconnected));
}

#[test]
fn of_several_each_is_told_when_it_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let how = ["", "leave", "", "exit", ""];
    let path = |n: usize| dir.path().join(format!("death_watch{n}"));
    let mut all: Vec<_> = (0..5).map(|n| other(&path(n), how[n])).collect();
    let (tell, told) = channel();
    let mut watches: Vec<_> = (0..5).map(|n| (path(n), n)).collect();
    // One that is not there does not keep the others from being watched.
    watches.insert(2, (dir.path().join("none"), 7));
    watch(&watches, true, move |n| tell.send(n).unwrap()).unwrap();
    for n in [3, 1, 4, 0, 2] {
        if how[n].is_empty() {
            all[n].kill().unwrap();
            let said = told.recv_timeout(Duration::from_secs(120)).unwrap();
            assert_eq!(said, n + usize::from(n >= 2));
        }
        drop(all[n].stdin.take());
        all[n].wait().unwrap();
    }
    let end = told.recv_timeout(Duration::from_secs(120));
    assert_eq!(end, Err(RecvTimeoutError::Disconnected));
}

#[test]
fn who_leaves_or_exits_by_itself_is_not_told() {
    for how in ["leave", "exit"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("death_watch");
        let mut c = other(&path, how);
        let (tell, told) = channel();
        watch(&[(path, 0)], true, move |_| tell.send(()).unwrap()).unwrap();
        drop(c.stdin.take());
        assert_eq!(c.wait().unwrap().code(), Some(3));
        // The thread ends without a word, and with it the channel.
        let end = told.recv_timeout(Duration::from_secs(120));
        assert_eq!(end, Err(RecvTimeoutError::Disconnected));
    }
}
