//! Several trainers in one process, beside each other and one after the other.

use crate::common::{losses, trainer};

#[test]
fn eight_at_once_have_the_bits_of_one_each() {
    let dir = tempfile::tempdir().unwrap();
    let out = |n: usize| dir.path().join(n.to_string());
    let alone = losses(&mut trainer(&out(8), 6, 2));
    let run = |n: usize| {
        let out = out(n);
        std::thread::spawn(move || losses(&mut trainer(&out, 6, 2)))
    };
    let all: Vec<_> = (0..8).map(run).collect();
    for one in all {
        assert_eq!(one.join().unwrap(), alone);
    }
}

/// Threads, open files, and bytes that this process has in memory.
#[cfg(target_os = "linux")]
fn held() -> (usize, usize, u64) {
    let count = |dir: &str| std::fs::read_dir(dir).unwrap().count();
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').nth(1).unwrap().parse().unwrap();
    (
        count("/proc/self/task"),
        count("/proc/self/fd"),
        pages * 4096,
    )
}

/// The same when no thread is about to end any more.
#[cfg(target_os = "linux")]
fn settled() -> (usize, usize, u64) {
    let mut last = held();
    loop {
        std::thread::sleep(std::time::Duration::from_millis(200));
        let now = held();
        if now.0 >= last.0 {
            return now;
        }
        last = now;
    }
}

#[cfg(target_os = "linux")]
fn made_and_dropped(times: usize) {
    let dir = tempfile::tempdir().unwrap();
    let once = || {
        let out = dir.path().join("run");
        trainer(&out, 4, 2).step().unwrap();
        std::fs::remove_dir_all(out).unwrap();
    };
    // What a process makes once, such as a pool of threads, and what an allocator keeps.
    (0..20).for_each(|_| once());
    let before = settled();
    (0..times).for_each(|_| once());
    let after = settled();
    assert_eq!((after.0, after.1), (before.0, before.1), "threads, files");
    let grown = after.2.saturating_sub(before.2);
    assert!(grown <= 4 << 20, "{grown} bytes more");
}

#[test]
#[cfg(target_os = "linux")]
fn two_hundred_leave_no_thread_no_file_and_no_memory() {
    crossweave_tests::in_own_process!();
    made_and_dropped(200);
}

#[test]
#[ignore = "half a minute: `cargo test --release -p crossweave --test suite thousand -- --ignored`"]
#[cfg(target_os = "linux")]
fn a_thousand_leave_no_thread_no_file_and_no_memory() {
    crossweave_tests::in_own_process!();
    made_and_dropped(1000);
}
