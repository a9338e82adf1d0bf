//! Ranks that crash: every way an abort comes about, and the faults the processor raises. A crash takes all ranks of its process, so these are bugs
//! between processes only.

use crate::parallel_bugs::bug::{Bug, Where, bug};
use crate::parallel_bugs::rank::{On, Rank};
use crossweave_hal::Result;
use crossweave_tests::system::{Signal, send_to_self};
use std::alloc::{Layout, handle_alloc_error};
use std::hint::black_box;
use std::process::abort;
use std::time::Duration;

const DIED: &[&str] = &["died without a word"];

pub const BUGS: &[Bug] = &[
    bug!(aborts, 2, Failed, &[1], &["all_reduce"], &["aborts"], runs: Where::Processes, words: DIED),
    bug!(aborts_on_another_thread, 3, Failed, &[0], &["all_gather"], &["thread"], runs: Where::Processes, words: DIED),
    bug!(panics_while_it_unwinds, 2, Failed, &[1], &["all_reduce"], &["unwinds"], runs: Where::Processes, words: DIED),
    bug!(frees_twice, 3, Failed, &[2], &["all_reduce"], &["frees"], runs: Where::Processes, words: DIED),
    bug!(damages_the_heap, 2, Failed, &[0], &["broadcast"], &["heap"], runs: Where::Processes, words: DIED),
    bug!(has_no_memory, 2, Failed, &[1], &["all_reduce"], &["memory"], runs: Where::Processes, words: DIED),
    bug!(illegal_instruction, 2, Failed, &[1], &["all_reduce"], &["illegal"], runs: Where::Processes, words: DIED),
    bug!(address_of_nothing, 4, Failed, &[3], &["all_reduce"], &["nothing"], runs: Where::Processes, words: DIED),
    bug!(file_cut_under_its_mapping, 2, Failed, &[0], &["all_reduce"], &["cut"], runs: Where::Processes, words: DIED),
    bug!(division_by_zero, 2, Failed, &[1], &["all_reduce"], &["division"], runs: Where::Processes, words: DIED),
    bug!(stack_overflows, 2, Failed, &[1], &["all_reduce"], &["stack"], runs: Where::Processes, words: DIED),
    bug!(aborted_from_outside, 2, Failed, &[0], &["all_reduce"], &["outside"], runs: Where::Processes, words: DIED),
    bug!(two_abort_at_once, 4, Failed, &[1, 2], &[], &[], runs: Where::Processes, words: DIED),
];

/// An assertion of a C library.
fn aborts(r: &mut Rank) -> Result<()> {
    if r.rank == 1 {
        r.let_others_wait();
        abort();
    }
    // @aborts
    r.all_reduce(On::World, 8)?;
    r.sync()
}

/// The same while the rank itself is in a collective with the others.
fn aborts_on_another_thread(r: &mut Rank) -> Result<()> {
    if r.rank == 0 {
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(400));
            abort()
        });
    }
    if r.rank == 2 {
        // Its part never comes, so that nobody is through before.
        std::thread::sleep(Duration::from_secs(60));
    }
    // @thread
    r.all_gather(On::World, 8)?;
    r.sync()
}

/// A destructor that panics while a panic is on its way.
fn panics_while_it_unwinds(r: &mut Rank) -> Result<()> {
    struct Again;
    impl Drop for Again {
        fn drop(&mut self) {
            panic!("again");
        }
    }
    if r.rank == 1 {
        r.let_others_wait();
        let _again = Again;
        panic!("once");
    }
    // @unwinds
    r.all_reduce(On::World, 8)?;
    r.sync()
}

/// The allocator finds it.
fn frees_twice(r: &mut Rank) -> Result<()> {
    if r.rank == 2 {
        r.let_others_wait();
        // SAFETY: none: this is the bug.
        unsafe {
            let p = black_box(libc::malloc(40));
            libc::free(p);
            libc::free(p);
        }
    }
    // @frees
    r.all_reduce(On::World, 8)?;
    r.sync()
}

/// The same of a write beyond the end, which is found later.
fn damages_the_heap(r: &mut Rank) -> Result<()> {
    if r.rank == 0 {
        r.let_others_wait();
        // SAFETY: none: this is the bug.
        unsafe {
            let (p, next) = (black_box(libc::malloc(2000)), black_box(libc::malloc(2000)));
            libc::memset(p, 0xff, 2040);
            libc::free(next);
            libc::free(p);
        }
        abort();
    }
    // @heap
    r.broadcast(On::World, 8, 0)?;
    r.sync()
}

/// What `Vec` does where the system gives no more.
fn has_no_memory(r: &mut Rank) -> Result<()> {
    if r.rank == 1 {
        r.let_others_wait();
        handle_alloc_error(Layout::new::<[u64; 1 << 20]>());
    }
    // @memory
    r.all_reduce(On::World, 8)?;
    r.sync()
}

/// A compiler's trap.
fn illegal_instruction(r: &mut Rank) -> Result<()> {
    if r.rank == 1 {
        r.let_others_wait();
        #[cfg(target_arch = "x86_64")]
        // SAFETY: none: this is the bug.
        unsafe {
            std::arch::asm!("ud2")
        };
        // SAFETY: a signal to this process.
        unsafe { libc::raise(libc::SIGILL) };
    }
    // @illegal
    r.all_reduce(On::World, 8)?;
    r.sync()
}

/// A null pointer.
fn address_of_nothing(r: &mut Rank) -> Result<()> {
    if r.rank == 3 {
        r.let_others_wait();
        // SAFETY: none: this is the bug.
        unsafe { std::ptr::without_provenance_mut::<u8>(black_box(8)).write_volatile(1) };
    }
    // @nothing
    r.all_reduce(On::World, 8)?;
    r.sync()
}

/// Somebody shortens a file that is mapped.
fn file_cut_under_its_mapping(r: &mut Rank) -> Result<()> {
    if r.rank == 0 {
        r.let_others_wait();
        let file = tempfile::tempfile().expect("a file");
        file.set_len(8192).expect("room");
        let (all, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        // SAFETY: none: this is the bug.
        unsafe {
            let at = libc::mmap(std::ptr::null_mut(), 8192, all, shared, fd, 0);
            file.set_len(0).expect("cut");
            at.cast::<u8>().add(4096).write_volatile(1);
        }
    }
    // @cut
    r.all_reduce(On::World, 8)?;
    r.sync()
}

/// A division of integers, in C.
fn division_by_zero(r: &mut Rank) -> Result<()> {
    if r.rank == 1 {
        r.let_others_wait();
        #[cfg(target_arch = "x86_64")]
        // SAFETY: none: this is the bug.
        unsafe {
            std::arch::asm!("xor ecx, ecx", "mov eax, 1", "cdq", "idiv ecx", out("eax") _, out("ecx") _, out("edx") _)
        };
        // SAFETY: a signal to this process.
        unsafe { libc::raise(libc::SIGFPE) };
    }
    // @division
    r.all_reduce(On::World, 8)?;
    r.sync()
}

/// A recursion that does not end.
fn stack_overflows(r: &mut Rank) -> Result<()> {
    #[allow(unconditional_recursion)]
    fn deep(n: u64) -> u64 {
        black_box([n; 512])[0] + deep(n + 1)
    }
    if r.rank == 1 {
        r.let_others_wait();
        black_box(deep(0));
    }
    // @stack
    r.all_reduce(On::World, 8)?;
    r.sync()
}

/// A watchdog of the cluster that wants a core file.
fn aborted_from_outside(r: &mut Rank) -> Result<()> {
    if r.rank == 0 {
        r.let_others_wait();
        send_to_self(Signal::SIGABRT);
        std::thread::sleep(Duration::from_secs(60));
    }
    // @outside
    r.all_reduce(On::World, 8)?;
    r.sync()
}

/// The same bug on two ranks: either is the one that is reported.
fn two_abort_at_once(r: &mut Rank) -> Result<()> {
    if r.rank == 1 || r.rank == 2 {
        r.let_others_wait();
        abort();
    }
    // @two
    r.all_reduce(On::World, 8)?;
    r.sync()
}
