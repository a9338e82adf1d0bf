//! A process that crashes stops its other threads before it says so, and ends by its signal whatever handler was there before; only a thread that
//! reports another process's death has a moment more. This binary starts itself: the test `helper` is then that process. Nothing is judged by a
//! clock: what a process does and what it says go to one file, in whose order they are counted.
#![cfg(target_os = "linux")]

use crossweave_hal::HostMemory;
use crossweave_hal::crash::{guard, speaks};
use crossweave_hal::death_watch::{DeathWatch, watch};
use std::fs::File;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A step of the process, as it stands in its file: a character that no message has.
const STEP: char = '\u{1}';

/// A process that has not ended by then is killed, and its test fails by that signal.
const HUNG: Duration = Duration::from_secs(120);

/// What an MPI library does: it says much, waits for what a stopped thread has, and never comes back.
extern "C" fn slow(_: libc::c_int) {
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Another: it works with much memory, says something and comes back.
extern "C" fn greedy(_: libc::c_int) {
    let text = std::hint::black_box([b'.'; 100_000]);
    println!("{} bytes of backtrace", text.len());
}

/// Appends a step at each turn, in one call of the system, until it is stopped; counts them for the other threads.
fn work(said: &Path, steps: &AtomicUsize) -> ! {
    let mut said = File::options().append(true).open(said).unwrap();
    loop {
        assert_eq!(said.write(&[STEP as u8]).unwrap(), 1);
        steps.fetch_add(1, Relaxed);
    }
}

#[test]
#[ignore = "the process of the tests below"]
fn helper() {
    let Ok(dir) = std::env::var("CRASH_DIR") else {
        return;
    };
    let dir = Path::new(&dir);
    let how = std::env::var("CRASH").unwrap();
    if how == "death_watch" {
        let _vigil = DeathWatch::keep(&dir.join("death_watch")).unwrap();
        // SAFETY: a signal to this process.
        unsafe { libc::raise(libc::SIGKILL) };
    }
    let before: Option<extern "C" fn(libc::c_int)> = match how.as_str() {
        "slow" => Some(slow),
        "greedy" => Some(greedy),
        _ => None,
    };
    if let Some(handler) = before {
        // SAFETY: a handler that may do what it does: this process does nothing else.
        unsafe { libc::signal(libc::SIGABRT, handler as usize) };
    }
    if how == "follows" {
        watch(&[(dir.join("death_watch"), 0)], true, |_| {}).unwrap();
        let crash = dir.join("crash");
        std::thread::spawn(move || {
            speaks();
            while !crash.exists() {
                std::thread::yield_now();
            }
            // By now the process has aborted, and waits.
            std::thread::sleep(Duration::from_millis(10));
            println!("rank 1 died");
        });
    }
    guard("rank 7", "buy more");
    guard("somebody else", "");
    let (said, steps) = (dir.join("said"), Arc::new(AtomicUsize::new(0)));
    let done = steps.clone();
    let works = std::thread::spawn(move || work(&said, &done));
    while steps.load(Relaxed) < 100 {
        std::thread::yield_now();
    }
    std::fs::write(dir.join("crash"), "").unwrap();
    match how.as_str() {
        "abort" | "slow" | "greedy" | "follows" => std::process::abort(),
        "unwinding" => {
            struct Again;
            impl Drop for Again {
                fn drop(&mut self) {
                    panic!("again");
                }
            }
            let _again = Again;
            panic!("once");
        }
        // Two threads at once.
        "twice" => {
            std::thread::spawn(|| std::process::abort());
            std::process::abort();
        }
        "heap" => {
            // SAFETY: none: this is the bug.
            unsafe {
                let p = std::hint::black_box(libc::malloc(40));
                libc::free(p);
                libc::free(p);
            }
        }
        "memory" => std::alloc::handle_alloc_error(std::alloc::Layout::new::<[u64; 99]>()),
        // As a collection does that cannot grow.
        "refused" => {
            let layout = std::alloc::Layout::from_size_align(1 << 62, 8).unwrap();
            // SAFETY: a layout of some bytes, of which none is touched.
            let at = unsafe { std::alloc::GlobalAlloc::alloc(&HostMemory, layout) };
            // An allocation that nobody looks at is left out.
            assert!(std::hint::black_box(at).is_null());
            std::alloc::handle_alloc_error(layout);
        }
        "illegal" => {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: none: this is the bug.
            unsafe {
                std::arch::asm!("ud2")
            };
            // SAFETY: a signal to this process.
            unsafe { libc::raise(libc::SIGILL) };
        }
        "address" => {
            // SAFETY: none: this is the bug.
            unsafe { std::ptr::without_provenance_mut::<u8>(8).write_volatile(1) };
        }
        "stack" => {
            #[allow(unconditional_recursion)]
            fn deep(n: u64) -> u64 {
                std::hint::black_box([n; 512])[0] + deep(n + 1)
            }
            println!("{}", deep(0));
        }
        // Somebody else's signal.
        _ => works.join().unwrap(),
    }
}

/// What a process ended by, and what it did and said, in order.
fn run(dir: &Path, how: &str) -> (Option<i32>, String) {
    let mut c = Command::new(std::env::current_exe().unwrap());
    c.args(["--exact", "crash::helper", "--ignored", "--nocapture"])
        .env("CRASH_DIR", dir)
        .env("CRASH", how)
        .env("RUST_BACKTRACE", "0");
    let said = dir.join("said");
    let mut file = File::options();
    let file = file.create(true).append(true).open(&said).unwrap();
    let both = || Stdio::from(file.try_clone().unwrap());
    let mut c = c.stdout(both()).stderr(both()).spawn().unwrap();
    let began = Instant::now();
    let mut sent = false;
    let status = loop {
        if let Some(status) = c.try_wait().unwrap() {
            break status;
        }
        if how == "outside" && !sent && dir.join("crash").exists() {
            // SAFETY: a signal to the child.
            unsafe { libc::kill(c.id() as i32, libc::SIGABRT) };
            sent = true;
        }
        if began.elapsed() > HUNG {
            c.kill().unwrap();
        }
        std::thread::sleep(Duration::from_micros(500));
    };
    let said = std::fs::read(&said).unwrap();
    (status.signal(), String::from_utf8_lossy(&said).into_owned())
}

/// After these words no step is begun; one may have been under way when its thread was stopped.
fn stopped_before(words: &str, how: &str, all: &str) {
    let (_, after) = all.rsplit_once(words).unwrap_or_else(|| {
        let said = all.replace(STEP, "");
        panic!("{how}: {words:?} not in: {said}");
    });
    let steps = after.matches(STEP).count();
    assert!(steps <= 1, "{how} went on for {steps} steps");
}

#[test]
fn whatever_a_process_crashes_by_it_stops_at_once() {
    for (how, signal, words) in [
        (
            "abort",
            libc::SIGABRT,
            "rank 7: this process is ended by SIGABRT",
        ),
        ("unwinding", libc::SIGABRT, "ended by SIGABRT"),
        ("twice", libc::SIGABRT, "ended by SIGABRT"),
        ("heap", libc::SIGABRT, "double free"),
        (
            "memory",
            libc::SIGABRT,
            "memory allocation of 792 bytes failed",
        ),
        (
            "refused",
            libc::SIGABRT,
            "no memory left: it asked for 4611686018427387904 bytes",
        ),
        ("illegal", libc::SIGILL, "ended by SIGILL"),
        ("address", libc::SIGSEGV, "ended by SIGSEGV"),
        // The handler of the standard library, from before, knows what it was, and aborts.
        ("stack", libc::SIGABRT, "overflowed its stack"),
        ("outside", libc::SIGABRT, "ended by SIGABRT"),
        ("greedy", libc::SIGABRT, "100000 bytes of backtrace"),
        // A handler from before that does not come back is left.
        ("slow", libc::SIGABRT, "ended by SIGABRT"),
    ] {
        // A handler from before has a moment of a clock, too short for it on a busy machine, but not every time.
        let tries = match how {
            "stack" | "greedy" => 20,
            _ => 1,
        };
        let mut ends = vec![];
        let well = (0..tries).any(|_| {
            let dir = tempfile::tempdir().unwrap();
            let (ended, all) = run(dir.path(), how);
            let said = all.replace(STEP, "");
            assert_eq!(said.matches("error: rank 7").count(), 1, "{how}: {said}");
            stopped_before("error: rank 7", how, &all);
            let well = ended == Some(signal) && said.contains(words);
            ends.push((ended, said));
            well
        });
        assert!(well, "{how}: not signal {signal} and {words:?}: {ends:?}");
    }
}

/// The moment is one of a clock: on a busy machine the news may come too late for it, but not every time.
#[test]
fn an_abort_that_follows_from_a_death_leaves_a_moment_for_the_news() {
    let came = (0..20).any(|_| {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(run(dir.path(), "death_watch").0, Some(libc::SIGKILL));
        let (ended, all) = run(dir.path(), "follows");
        let said = all.replace(STEP, "");
        assert_eq!(ended, Some(libc::SIGABRT), "{said}");
        // The cause is the other's, and this one is not blamed.
        assert!(!said.contains("error: rank 7"), "{said}");
        said.contains("rank 1 died")
    });
    assert!(came, "no abort of 20 waited for the news");
}
