//! The earliest news there is of a process that was killed: a futex that one of its threads owns as long as it lives.
//!
//! The kernel ends a process in an order: first it marks the futexes on its threads' robust lists and wakes who waits for one, then it takes
//! its memory apart (some 10 ms for each 100 MB that were touched), and closes its pipes and sockets last. Whoever waits for the end of a
//! connection hears of the death together with the launcher, and some launchers kill the survivors at once; whoever waits here hears
//! of it before. Linux only; elsewhere nothing comes, and the connections tell as they always do. Source: Linux,
//! `Documentation/locking/robust-futex-ABI.rst`.

#[cfg(target_os = "linux")]
pub use linux::{Vigil, watch};
#[cfg(not(target_os = "linux"))]
pub use nowhere::{Vigil, watch};

#[cfg(target_os = "linux")]
mod linux {
    use crate::watch::words::Words;
    use std::io;
    use std::path::Path;
    use std::sync::atomic::{AtomicU32, Ordering::*};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::{Builder, JoinHandle};
    use std::time::Duration;

    /// Words of the file: futex, process and thread, and the node of the list, on lines of their own.
    const LEN: usize = 512;
    const PID: usize = 1;
    const NODE: usize = 8;
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

    fn futex(words: &Words) -> &AtomicU32 {
        let at = std::ptr::from_ref(&words[0]).cast::<AtomicU32>();
        // SAFETY: the first half of a mapped, aligned word that is never touched as a whole; it lives as long as the mapping.
        unsafe { &*at }
    }

    fn wake(word: &AtomicU32) {
        // SAFETY: the word is mapped; waking touches nothing.
        unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX) };
    }

    /// This process lives as long as nobody is told otherwise: dropping it says that it leaves in order.
    pub struct Vigil {
        stop: Option<Sender<()>>,
        thread: Option<JoinHandle<()>>,
    }

    impl Vigil {
        /// Begins it in a new file, which others [`watch`].
        ///
        /// # Errors
        /// The file cannot be made, or the thread not started.
        pub fn keep(path: &Path) -> io::Result<Vigil> {
            let words = Words::create(path, LEN)?;
            let (stop, stopped) = channel();
            let (ready, begun) = channel();
            let body = move || own(&words, &ready, &stopped);
            let thread = Builder::new().name("vigil".into()).spawn(body)?;
            let refused = || io::Error::other("the system keeps no robust list");
            begun.recv().map_err(|_| refused())?;
            Ok(Vigil {
                stop: Some(stop),
                thread: Some(thread),
            })
        }
    }

    impl Drop for Vigil {
        fn drop(&mut self) {
            self.stop = None;
            if let Some(t) = self.thread.take() {
                let _ = t.join();
            }
        }
    }

    /// Owns the futex until it is told to stop.
    fn own(words: &Words, ready: &Sender<()>, stopped: &Receiver<()>) {
        let node = std::ptr::from_ref(&words[NODE]);
        let word = futex(words);
        let offset = std::ptr::from_ref(word) as isize - node as isize;
        let mut head = Box::new(Head {
            next: node.cast(),
            futex_offset: offset as libc::c_long,
            pending: std::ptr::null(),
        });
        // A list of one: its node leads back to the head.
        words[NODE].store(std::ptr::from_ref(&*head) as u64, Relaxed);
        words[PID].store(u64::from(std::process::id()), Relaxed);
        // SAFETY: takes nothing.
        let me = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
        word.store(me | WAITERS, SeqCst);
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
        word.store(0, SeqCst);
        wake(word);
        // SAFETY: a list without head is none.
        unsafe {
            libc::syscall(
                libc::SYS_set_robust_list,
                std::ptr::null::<Head>(),
                size_of::<Head>(),
            )
        };
    }

    /// Calls `killed`, on a thread of its own, when a signal has ended the process that keeps the vigil in this file. One that leaves in order or
    /// exits by itself is left to other news, which may carry its own words.
    ///
    /// # Errors
    /// The file cannot be opened, or the thread not started.
    pub fn watch(path: &Path, killed: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let words = Words::open(path, LEN)?;
        let body = move || {
            urgent();
            let word = futex(&words);
            let died = loop {
                let now = word.load(SeqCst);
                if now & OWNER_DIED != 0 {
                    break true;
                }
                if now == 0 {
                    break false;
                }
                // SAFETY: waits while the word, which is mapped, has this value.
                let waited = unsafe {
                    let none = std::ptr::null::<libc::timespec>();
                    libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, now, none)
                };
                let why = io::Error::last_os_error().raw_os_error();
                // A system that does not let it wait must not have it spin.
                if waited != 0 && !matches!(why, Some(libc::EAGAIN | libc::EINTR)) {
                    break false;
                }
            };
            // The kernel wakes one.
            wake(word);
            if died && by_signal(words[PID].load(Relaxed)) {
                killed();
            }
        };
        Builder::new().name("vigil".into()).spawn(body).map(|_| ())
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
    const WORDLESS: [i32; 5] = [
        libc::SIGKILL,
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGILL,
        libc::SIGFPE,
    ];

    /// Does such a signal end this process? It is on its way out: its exit code is known or will be in a moment.
    fn by_signal(pid: u64) -> bool {
        for _ in 0..20 {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // The name, in brackets, may hold anything; the exit code is the fiftieth field behind it.
            let code = stat
                .rsplit_once(')')
                .and_then(|(_, rest)| rest.split_whitespace().nth(49)?.parse::<i32>().ok());
            match code {
                Some(0) => std::thread::sleep(Duration::from_micros(100)),
                Some(code) => return WORDLESS.contains(&(code & 0x7f)),
                None => return false,
            }
        }
        false
    }
}

#[cfg(not(target_os = "linux"))]
mod nowhere {
    use std::io;
    use std::path::Path;

    /// Nothing.
    pub struct Vigil;

    impl Vigil {
        /// Nothing.
        ///
        /// # Errors
        /// Always: only Linux has it.
        pub fn keep(_: &Path) -> io::Result<Vigil> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    /// Nothing.
    ///
    /// # Errors
    /// Always: only Linux has it.
    pub fn watch(_: &Path, _: impl FnOnce() + Send + 'static) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
