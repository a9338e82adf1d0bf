//! The lock against every lock that was committed: a merge, or an edit of the file and the headers at once, takes nothing back.

use super::rules::{editorial, violations};
use super::{lines, read, root};
use std::process::Command;

const FILE: &str = "abi/v1.lock";

/// What git says, if there is a git and a repository.
fn git(args: &[&str]) -> Option<String> {
    let out = Command::new("git")
        .args(args)
        .current_dir(root())
        .output()
        .ok()?;
    out.status
        .success()
        .then(|| String::from_utf8_lossy(&out.stdout).into_owned())
}

#[test]
fn no_lock_that_was_committed_is_broken() {
    let Some(commits) = git(&["log", "--format=%H", "--full-history", "HEAD", "--", FILE]) else {
        println!("skipped: no git, or no repository");
        return;
    };
    let now = lines(&read(FILE));
    let words = editorial(&read("abi/editorial"));
    let mut tried = 0;
    for commit in commits.lines() {
        // Of the commit that took it away, there is none.
        let Some(then) = git(&["show", &format!("{commit}:./{FILE}")]) else {
            continue;
        };
        let broken = violations(&lines(&then), &now, &words);
        assert!(broken.is_empty(), "since {commit}:\n{}", broken.join("\n"));
        tried += 1;
    }
    println!("{tried} locks");
}
