//! A process that crashes stops at once and ends by its signal within 100 ms, whatever handler was there before; only a thread that reports another
//! process's death has a moment more. This binary starts itself: the test `helper` is then that process.
#![cfg(target_os = "linux")]

use crossweave_hal::HostMemory;
use crossweave_hal::crash::{guard, speaks};
use crossweave_hal::death_watch::{DeathWatch, watch};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Milliseconds of the clock all processes share.
fn now() -> f64 {
    // SAFETY: writes the time.
    let t = unsafe {
        let mut t: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t);
        t
    };
    t.tv_sec as f64 * 1e3 + t.tv_nsec as f64 / 1e6
}

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

/// Appends the time, until it is stopped.
fn tick(to: &Path) -> ! {
    loop {
        std::fs::write(to, format!("{}\n", now())).unwrap();
        std::fs::rename(to, to.with_extension("done")).unwrap();
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
        std::thread::spawn(|| {
            speaks();
            std::thread::sleep(Duration::from_millis(40));
            println!("rank 1 died");
        });
    }
    guard("rank 7", "buy more");
    guard("somebody else", "");
    let at = dir.join("tick");
    let ticks = std::thread::spawn(move || tick(&at));
    std::thread::sleep(Duration::from_millis(30));
    std::fs::write(dir.join("crash"), format!("{}", now())).unwrap();
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
        _ => ticks.join().unwrap(),
    }
}

fn run(dir: &Path, how: &str) -> (Option<i32>, f64, String) {
    let mut c = Command::new(std::env::current_exe().unwrap());
    c.args(["--exact", "crash::helper", "--ignored", "--nocapture"])
        .env("CRASH_DIR", dir)
        .env("CRASH", how)
        .env("RUST_BACKTRACE", "0");
    let said = dir.join("said");
    let file = std::fs::File::create(&said).unwrap();
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
        if began.elapsed() > Duration::from_secs(20) {
            c.kill().unwrap();
        }
        std::thread::sleep(Duration::from_micros(500));
    };
    let end = now();
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap_or_default();
    let crash: f64 = read("crash").trim().parse().unwrap_or(end);
    let last: f64 = read("tick.done").trim().parse().unwrap_or(end);
    println!(
        "{how}: the last step {:.1} ms after the crash, the end {:.1} ms after it",
        last - crash,
        end - crash
    );
    let said = read("said");
    if how != "death_watch" {
        assert!(end - last < 250.0, "{how} did not end: {said}");
    }
    // A panic writes its trace before it aborts.
    if how != "death_watch" && how != "unwinding" {
        // A core may be another's for a while, before the first instruction of the handler or between two of it.
        assert!(last - crash < 100.0, "{how} went on: {said}");
    }
    (status.signal(), last - crash, said)
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
        let dir = tempfile::tempdir().unwrap();
        let (ended, _, said) = run(dir.path(), how);
        assert_eq!(ended, Some(signal), "{how}: {said}");
        assert!(said.contains(words), "{how}: {words:?} not in: {said}");
        assert_eq!(said.matches("error: rank 7").count(), 1, "{how}: {said}");
    }
}

#[test]
fn an_abort_that_follows_from_a_death_leaves_a_moment_for_the_news() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(run(dir.path(), "death_watch").0, Some(libc::SIGKILL));
    let (ended, _, said) = run(dir.path(), "follows");
    assert_eq!(ended, Some(libc::SIGABRT), "{said}");
    assert!(said.contains("rank 1 died"), "{said}");
    // The cause is the other's, and this one is not blamed.
    assert!(!said.contains("error: rank 7"), "{said}");
}
