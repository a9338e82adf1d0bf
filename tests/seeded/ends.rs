//! How children end: ranks that are processes, a crash behind the last case, and a parent that is killed.

use crate::seeded::frame::{c_plugin, options, run};
use crossweave_conform::Launcher;
use crossweave_conform::report::{Cell, Status};
use crossweave_tests::system::{Signal, send_if_there};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The one case on two processes of a C plugin with a defect.
fn on_processes(bug: &str) -> Cell {
    let dir = tempfile::tempdir().expect("a folder");
    let case = "coll.all_reduce.f32.sum.r2";
    let mut o = options(&c_plugin(dir.path(), bug), "", &[case]);
    o.launcher = Launcher::Fork;
    let mut r = run(&o);
    assert_eq!(r.cells.len(), 1, "{bug}");
    r.cells.remove(0)
}

#[test]
fn what_only_another_rank_sees_fails_the_case() {
    let good = on_processes("RANKS");
    assert_eq!(good.status, Status::Refused, "{}", good.note);
    for (bug, words) in [
        (
            "RANK_1_SLIPS",
            ["rank 1", "left the error record unwritten"],
        ),
        ("RANK_1_CRASHES", ["rank 1", "SIGSEGV"]),
        ("RANK_1_EXITS", ["rank 1", "exit status 0"]),
    ] {
        let c = on_processes(bug);
        assert_eq!(c.status, Status::Fail, "{bug}: {}", c.note);
        let all = words.iter().all(|w| c.note.contains(w));
        assert!(all, "{bug}: {}", c.note);
    }
}

#[test]
fn what_happens_after_the_last_case_fails_it() {
    let dir = tempfile::tempdir().expect("a folder");
    for (bug, word) in [
        ("CRASH_AT_THE_END", "SIGSEGV"),
        ("HANGS_AT_THE_END", "did not end"),
    ] {
        let plugin = c_plugin(dir.path(), bug);
        let mut o = options(&plugin, "", &["mem.fill.patterns", "mem.map"]);
        o.limit = Some(Duration::from_secs(15));
        let r = run(&o);
        let found: Vec<(Status, &str)> = r
            .cells
            .iter()
            .map(|c| (c.status, c.note.as_str()))
            .collect();
        let [(first, _), (last, why)] = found[..] else {
            panic!("{bug}: {found:?}");
        };
        assert_eq!((first, last), (Status::Pass, Status::Fail), "{bug}: {why}");
        assert!(
            why.starts_with("after the case: ") && why.contains(word),
            "{bug}: {why}"
        );
    }
}

/// Runs the kit on a plugin that hangs, and says when it does.
pub fn parent() {
    let plugin = std::env::args().next_back().unwrap_or_default();
    let plugin = Path::new(&plugin);
    if !plugin.is_file() {
        return;
    }
    let o = options(plugin, "", &["mem.copy.sizes", "mem.copy_2d"]);
    // The first case is reported when the second has begun.
    o.run(&mut |c| println!("@ended {}", c.id))
        .expect("a report");
}

/// Processes whose parent is `of`, with their states.
#[cfg(target_os = "linux")]
fn children(of: u32) -> Vec<u32> {
    let each = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids = each.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|p| stat(*p).is_some_and(|s| s.1 == of))
        .collect()
}

/// State and parent of a process that is there.
#[cfg(target_os = "linux")]
fn stat(pid: u32) -> Option<(char, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut words = text.rsplit_once(')')?.1.split_whitespace();
    let state = words.next()?.chars().next()?;
    Some((state, words.next()?.parse().ok()?))
}

#[test]
#[cfg(target_os = "linux")]
fn children_end_with_a_parent_that_is_killed() {
    let dir = tempfile::tempdir().expect("a folder");
    let plugin = c_plugin(dir.path(), "HANGS");
    let mut parent = Command::new(std::env::current_exe().expect("this binary"))
        .args(["seeded::parent", "--exact", "--ignored", "--nocapture"])
        .arg(&plugin)
        // Where it leaves what a killed process leaves.
        .env("TMPDIR", dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("a parent");
    let out = BufReader::new(parent.stdout.take().expect("its output"));
    let begun = out
        .lines()
        .map_while(Result::ok)
        .any(|l| l.contains("@ended mem.copy.sizes"));
    assert!(begun, "the kit did not come to the case that hangs");
    let ours = children(parent.id());
    assert!(!ours.is_empty(), "the kit has no child");
    parent.kill().expect("killed");
    parent.wait().expect("its end");
    let until = Instant::now() + Duration::from_secs(120);
    // Nobody may be there to take a dead process's status.
    let alive = |p: &&u32| stat(**p).is_some_and(|s| !matches!(s.0, 'Z' | 'X'));
    loop {
        let left: Vec<&u32> = ours.iter().filter(alive).collect();
        if left.is_empty() {
            return;
        }
        if Instant::now() > until {
            for p in &left {
                send_if_there(Signal::SIGKILL, **p);
            }
            panic!("{left:?} outlive the kit that started them");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
