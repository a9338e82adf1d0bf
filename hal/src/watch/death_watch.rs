//! The death watch: robust futexes that a thread of each process owns as long as it lives, one for each watcher, give
//! the earliest report of a process that was killed.
//!
//! The kernel ends a process in a fixed order: first it marks the futexes on its threads' robust lists and wakes a
//! waiter of each, then it releases its memory (some 10 ms for each 100 MB that were touched), and closes its pipes and
//! sockets last. A process that waits for the end of a connection learns of the death together with the launcher, and
//! some launchers kill the survivors at once; a process that waits here learns of it before. Linux only; elsewhere
//! nothing comes, and the connections report deaths as always. Source: Linux,
//! `Documentation/locking/robust-futex-ABI.rst`.

#[cfg(target_os = "linux")]
pub(super) use linux::gone;
#[cfg(target_os = "linux")]
pub use linux::{DeathWatch, WATCHED, watch};
#[cfg(not(target_os = "linux"))]
pub use nowhere::{DeathWatch, WATCHED, watch};

#[cfg(target_os = "linux")]
mod linux {
    use crate::watch::crash;
    use crate::watch::words::Words;
    use std::io;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::{Builder, JoinHandle};
    use std::time::Duration;

    /// Words of the file: the process's number, and from the first slot on a futex and a node of the list for each.
    const LEN: usize = 512;
    const PID: usize = 0;
    const FIRST: usize = 2;
    /// Futexes of a death_watch. The kernel wakes one waiter of each, so a process that waits alone is woken by it and not by another watcher, who may
    /// have to wait for a core first.
    const SLOTS: usize = (LEN - FIRST) / 2;
    /// Threads that watch, each on its part of the cores: a thread is woken on the core of the process that ends, which on most kernels does not
    /// let go of it before all of its memory is taken apart.
    const PARTS: usize = 2;
    /// Processes one can watch over. A call waits for 128 futexes at most.
    pub const WATCHED: usize = SLOTS / PARTS;
    const _: () = assert!(WATCHED <= 128);
    /// The number of `futex_waitv` (Linux 5.16) on every architecture.
    const SYS_FUTEX_WAITV: libc::c_long = 449;
    // Bits of a robust futex; the rest is the owner's thread id.
    const WAITERS: u32 = 0x8000_0000;
    const OWNER_DIED: u32 = 0x4000_0000;

    /// What the kernel reads when the thread ends: `struct robust_list_head`.
    #[repr(C)]
    struct Head {
        next: *const u8,
        futex_offset: libc::c_long,
        pending: *const u8,
    }

    fn futex(words: &Words, slot: usize) -> &AtomicU32 {
        let at = std::ptr::from_ref(&words[FIRST + 2 * slot]).cast::<AtomicU32>();
        // SAFETY: the first half of a mapped, aligned word that is never touched as a whole; it lives as long as the mapping.
        unsafe { &*at }
    }

    fn wake(word: &AtomicU32) {
        // SAFETY: the word is mapped; waking touches nothing.
        unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX) };
    }

    /// This process counts as alive until the others learn otherwise: dropping it announces that it leaves in order.
    pub struct DeathWatch {
        stop: Option<Sender<()>>,
        thread: Option<JoinHandle<()>>,
    }

    impl DeathWatch {
        /// Begins it in a new file, which others [`watch`].
        ///
        /// # Errors
        /// The file cannot be made, or the thread not started.
        pub fn keep(path: &Path) -> io::Result<DeathWatch> {
            let words = Words::create(path, LEN)?;
            let (stop, stopped) = channel();
            let (ready, begun) = channel();
            let body = move || own(&words, &ready, &stopped);
            let thread = Builder::new().name("death_watch".into()).spawn(body)?;
            let refused = || io::Error::other("the system keeps no robust list");
            begun.recv().map_err(|_| refused())?;
            Ok(DeathWatch {
                stop: Some(stop),
                thread: Some(thread),
            })
        }
    }

    impl Drop for DeathWatch {
        fn drop(&mut self) {
            self.stop = None;
            if let Some(t) = self.thread.take() {
                let _ = t.join();
            }
        }
    }

    /// Has the process that keeps this death_watch died, or left?
    pub fn gone(words: &Words) -> bool {
        let value = futex(words, 0).load(SeqCst);
        value == 0 || value & OWNER_DIED != 0
    }

    /// The node of the list that leads on from this slot.
    fn node(words: &Words, slot: usize) -> &AtomicU64 {
        &words[FIRST + 2 * slot + 1]
    }

    /// Owns the futexes until it is asked to stop.
    fn own(words: &Words, ready: &Sender<()>, stopped: &Receiver<()>) {
        let place = |slot| std::ptr::from_ref(node(words, slot)).cast::<u8>();
        let offset = std::ptr::from_ref(futex(words, 0)) as isize - place(0) as isize;
        let mut head = Box::new(Head {
            next: place(0),
            futex_offset: offset as libc::c_long,
            pending: std::ptr::null(),
        });
        words[PID].store(u64::from(std::process::id()), Relaxed);
        // SAFETY: takes nothing.
        let me = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
        for slot in 0..SLOTS {
            // The last leads back to the head.
            let next = match slot + 1 < SLOTS {
                true => place(slot + 1),
                false => std::ptr::from_ref(&*head).cast(),
            };
            node(words, slot).store(next as u64, Relaxed);
            futex(words, slot).store(me | WAITERS, SeqCst);
        }
        // SAFETY: the head and what it leads to live until this thread ends, which first makes the list empty; no lock of the C library that
        // would be on the list this replaces is taken by this thread.
        let set = unsafe {
            libc::syscall(
                libc::SYS_set_robust_list,
                std::ptr::from_mut(&mut *head),
                size_of::<Head>(),
            )
        };
        if set == 0 {
            let _ = ready.send(());
            let _ = stopped.recv();
        }
        for slot in 0..SLOTS {
            futex(words, slot).store(0, SeqCst);
            wake(futex(words, slot));
        }
        // SAFETY: a list without head is none.
        unsafe {
            libc::syscall(
                libc::SYS_set_robust_list,
                std::ptr::null::<Head>(),
                size_of::<Head>(),
            )
        };
    }

    /// Calls `killed` with a place in `watches`, on a thread that watches, when a signal has ended the process that keeps the death_watch in that file.
    /// One that leaves in order or exits by itself is left to other news, which may carry its own words. Each of `watches`, [`WATCHED`] at most,
    /// is a file and where the caller stands among those who watch it (from 0): two who name the same are notified one after the other. A file that
    /// cannot be opened is not watched. `all`: the job has no other processes.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn watch(
        watches: &[(PathBuf, usize)],
        all: bool,
        killed: impl Fn(usize) + Send + Sync + 'static,
    ) -> io::Result<()> {
        let killed: Arc<Killed> = Arc::new(killed);
        let mut opened = vec![];
        for (place, (path, stand)) in watches.iter().enumerate().take(WATCHED) {
            if let Ok(words) = Words::open(path, LEN) {
                let told = Arc::new(AtomicBool::new(false));
                opened.push((place, Arc::new(words), stand % WATCHED, told));
            }
        }
        let words = opened.iter().map(|(_, words, ..)| words.clone()).collect();
        crash::watches(words, all && opened.len() == watches.len());
        // Without the call that waits for several, a thread for each.
        let at_once = if waits_for_several() { WATCHED } else { 1 };
        for part in 0..PARTS {
            let here = opened.iter().map(|(place, words, stand, told)| Watched {
                place: *place,
                words: words.clone(),
                slot: stand * PARTS + part,
                told: told.clone(),
            });
            let mut here: Vec<Watched> = here.collect();
            while !here.is_empty() {
                let some = here.split_off(here.len().saturating_sub(at_once));
                let killed = killed.clone();
                let body = move || wait(some, part, &*killed);
                Builder::new().name("death_watch".into()).spawn(body)?;
            }
        }
        Ok(())
    }

    type Killed = dyn Fn(usize) + Send + Sync;

    struct Watched {
        place: usize,
        words: Arc<Words>,
        slot: usize,
        /// Some thread has seen its death.
        told: Arc<AtomicBool>,
    }

    /// Until all have left or died.
    fn wait(mut watched: Vec<Watched>, part: usize, killed: &Killed) {
        crash::speaks();
        urgent();
        apart(part);
        while !watched.is_empty() {
            let (mut now, mut news) = (vec![], vec![]);
            watched.retain(|w| {
                let word = futex(&w.words, w.slot);
                let value = word.load(SeqCst);
                let died = value & OWNER_DIED != 0;
                if !died && value != 0 {
                    now.push(value);
                    return true;
                }
                // The kernel wakes one; others may sit here.
                wake(word);
                if died && let Some(signal) = wordless(w.words[PID].load(Relaxed)) {
                    news.push((signal == libc::SIGABRT, w.place, w.told.clone()));
                }
                false
            });
            // An abort may follow from another's death.
            news.sort_by_key(|(abort, ..)| *abort);
            for (_, place, told) in news {
                if !told.swap(true, SeqCst) {
                    killed(place);
                }
            }
            if !watched.is_empty() && !asleep(&watched, &now) {
                // A system that does not let it wait must not have it spin.
                return;
            }
        }
    }

    /// Sleeps while the futexes have these values. False: it cannot.
    fn asleep(watched: &[Watched], values: &[u32]) -> bool {
        #[repr(C)]
        struct Waiter {
            value: u64,
            at: u64,
            flags: u32,
            reserved: u32,
        }
        let none = std::ptr::null::<libc::timespec>();
        let waiter = |(w, value): (&Watched, &u32)| Waiter {
            value: u64::from(*value),
            at: std::ptr::from_ref(futex(&w.words, w.slot)) as u64,
            // FUTEX_32
            flags: 2,
            reserved: 0,
        };
        // Lives until the reason has been read: giving memory back may write another.
        let all: Vec<Waiter> = watched.iter().zip(values).map(waiter).collect();
        let waited = if let ([one], [value]) = (watched, values) {
            let word = futex(&one.words, one.slot);
            // SAFETY: waits while the word, which is mapped, has this value.
            unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, *value, none) }
        } else {
            // SAFETY: waits while all words, which are mapped, have these values.
            unsafe { libc::syscall(SYS_FUTEX_WAITV, all.as_ptr(), all.len(), 0, none, 0) }
        };
        let why = io::Error::last_os_error().raw_os_error();
        waited >= 0 || matches!(why, Some(libc::EAGAIN | libc::EINTR))
    }

    fn waits_for_several() -> bool {
        let none = std::ptr::null::<u8>();
        // SAFETY: waits for nothing, which is refused by a system that knows the call.
        unsafe { libc::syscall(SYS_FUTEX_WAITV, none, 0, 0, none, 0) };
        io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
    }

    /// Keeps the calling thread on every second of the cores it may use, counted from `part`. Where it cannot it stays on all.
    fn apart(part: usize) {
        // SAFETY: a set of cores is numbers, for which zero is a value; the calls read and write no more than its size.
        unsafe {
            let mut may: libc::cpu_set_t = std::mem::zeroed();
            let mut here = may;
            let size = size_of::<libc::cpu_set_t>();
            if libc::sched_getaffinity(0, size, &raw mut may) != 0 {
                return;
            }
            let cores = 0..8 * size;
            for (n, core) in cores.filter(|c| libc::CPU_ISSET(*c, &may)).enumerate() {
                if n % PARTS == part {
                    libc::CPU_SET(core, &mut here);
                }
            }
            // Of a single core the second part has none, which is refused.
            libc::sched_setaffinity(0, size, &raw const here);
        }
    }

    /// The calling thread sleeps until there is news and then must not wait for the cores that ranks keep busy: it runs before them where it
    /// may, and asks for short turns where it may not. What it starts runs as others do.
    fn urgent() {
        #[repr(C)]
        struct Attr {
            size: u32,
            policy: u32,
            flags: u64,
            nice: i32,
            priority: u32,
            runtime: u64,
            deadline: u64,
            period: u64,
        }
        let mut attr = Attr {
            size: size_of::<Attr>() as u32,
            policy: libc::SCHED_FIFO as u32,
            // SCHED_FLAG_RESET_ON_FORK
            flags: 1,
            nice: 0,
            priority: 1,
            runtime: 0,
            deadline: 0,
            period: 0,
        };
        // SAFETY: reads the structure, whose size it holds, and changes how this thread is scheduled.
        let set = |a: &Attr| unsafe { libc::syscall(libc::SYS_sched_setattr, 0, a, 0) };
        if set(&attr) != 0 {
            (attr.policy, attr.priority) = (libc::SCHED_OTHER as u32, 0);
            // Nanoseconds of a turn: the least there is. Kernels before 6.12 take no notice.
            attr.runtime = 100_000;
            set(&attr);
        }
    }

    /// Signals that leave a process no last words.
    const WORDLESS: [i32; 6] = [
        libc::SIGKILL,
        libc::SIGABRT,
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGILL,
        libc::SIGFPE,
    ];

    /// The signal of this kind that ends this process. It is on its way out: its exit code is known or will be in a moment.
    fn wordless(pid: u64) -> Option<i32> {
        for _ in 0..20 {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // The name, in brackets, may hold anything; the exit code is the fiftieth field behind it.
            let code = stat
                .rsplit_once(')')
                .and_then(|(_, rest)| rest.split_whitespace().nth(49)?.parse::<i32>().ok());
            match code {
                Some(0) => std::thread::sleep(Duration::from_micros(100)),
                Some(code) => return Some(code & 0x7f).filter(|s| WORDLESS.contains(s)),
                None => return None,
            }
        }
        None
    }
}

#[cfg(not(target_os = "linux"))]
mod nowhere {
    use std::io;
    use std::path::{Path, PathBuf};

    /// Processes one can watch over.
    pub const WATCHED: usize = 0;

    /// Nothing.
    pub struct DeathWatch;

    impl DeathWatch {
        /// Nothing.
        ///
        /// # Errors
        /// Always: only Linux has it.
        pub fn keep(_: &Path) -> io::Result<DeathWatch> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    /// Nothing.
    ///
    /// # Errors
    /// Always: only Linux has it.
    pub fn watch(
        _: &[(PathBuf, usize)],
        _: bool,
        _: impl Fn(usize) + Send + Sync + 'static,
    ) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
