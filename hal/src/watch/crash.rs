//! A process that crashes does nothing more. First, its other threads are stopped, so that no further step trains
//! on, and no commit saves, what an abort has found (a damaged heap, a broken invariant). Then the process reports
//! that it ends, and the signal ends it as it would have, within 100 ms, whatever an earlier handler does. Where memory
//! was refused ([`crate::HostMemory`]), the report says how much, by which limit, and what helps.
//!
//! Some aborts follow from another process's death: UCX, beneath MPICH, aborts a process that reads a dead peer's
//! memory. The report of that death, which names the rank, is then about to come on another thread; threads that carry
//! it ([`speaks`]) are not stopped and get that moment. Linux only; elsewhere signals have their default effect.

#[cfg(not(target_os = "linux"))]
pub use elsewhere::{guard, speaks};
#[cfg(target_os = "linux")]
pub(super) use linux::watches;
#[cfg(target_os = "linux")]
pub use linux::{guard, speaks};

#[cfg(target_os = "linux")]
mod linux {
    use crate::memory::refused;
    use crate::watch::death_watch::gone;
    use crate::watch::words::Words;
    use libc::{c_int, c_void, siginfo_t};
    use std::mem::zeroed;
    use std::ptr::null_mut;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering::*};

    /// What a fault of the process itself ends it by.
    const FATAL: [(c_int, &str); 5] = [
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGILL, "SIGILL"),
    ];
    /// For the news of another process's death, in milliseconds.
    const MOMENT: i64 = 80;
    /// The end comes by then, in milliseconds, also where an earlier handler waits for a thread that was stopped.
    const LIMIT: i64 = 95;

    /// What the handler reads. Made once, never freed.
    struct Guard {
        /// What is said, by signal.
        words: [String; FATAL.len()],
        /// Instead, where memory was refused: before the bytes, and after the limit.
        memory: [String; 2],
        before: [libc::sigaction; FATAL.len()],
    }

    // Of the whole process, as signals are.
    static GUARD: AtomicPtr<Guard> = AtomicPtr::new(null_mut());
    static GUARDED: AtomicBool = AtomicBool::new(false);
    /// The watches of the processes this one watches over, and whether those are all the others.
    static WATCHED: AtomicPtr<(Vec<Arc<Words>>, bool)> = AtomicPtr::new(null_mut());
    /// The first thread that crashed.
    static CRASHED: AtomicI32 = AtomicI32::new(0);
    /// By what.
    static SIGNAL: AtomicI32 = AtomicI32::new(0);

    /// By which threads are stopped.
    fn stop() -> c_int {
        libc::SIGRTMIN() + 9
    }

    /// From now on a crash of this process stops it at once. `who`: its ranks, for what it then says; `room`: what helps where memory was
    /// refused. To be called once MPI has begun, whose handlers (backtraces) then run behind this. A second call changes nothing.
    pub fn guard(who: &str, room: &str) {
        if GUARDED.swap(true, SeqCst) {
            return;
        }
        const AFTER: &str = "all its threads were stopped, no step and no save came after it";
        let says = |(_, name): &(c_int, &str)| {
            format!("error: {who}: this process is ended by {name}; {AFTER}\n")
        };
        let words = std::array::from_fn(|i| says(&FATAL[i]));
        let memory = [
            format!("error: {who}: this process has no memory left: it asked for "),
            format!("; {AFTER}; fix: {room}\n"),
        ];
        // SAFETY: a signal's action is numbers and addresses, for which zero is a value; the handlers call only what a handler may.
        unsafe {
            let mut stops: libc::sigaction = zeroed();
            stops.sa_sigaction = stopped as extern "C" fn(c_int) as usize;
            libc::sigfillset(&mut stops.sa_mask);
            if libc::sigaction(stop(), &stops, null_mut()) != 0 {
                return;
            }
            let mut before: [libc::sigaction; FATAL.len()] = zeroed();
            for ((signal, _), before) in FATAL.iter().zip(&mut before) {
                libc::sigaction(*signal, std::ptr::null(), before);
            }
            let guard = Box::into_raw(Box::new(Guard {
                words,
                memory,
                before,
            }));
            GUARD.store(guard, SeqCst);
            let mut action: libc::sigaction = zeroed();
            let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = crashed;
            action.sa_sigaction = handler as usize;
            for ((signal, _), before) in FATAL.iter().zip(&(*guard).before) {
                // A handler from before that takes a stack of the usual size for granted gets one.
                let stack = match handles(before) {
                    true => before.sa_flags & libc::SA_ONSTACK,
                    false => libc::SA_ONSTACK,
                };
                action.sa_flags = libc::SA_SIGINFO | stack;
                libc::sigaction(*signal, &action, null_mut());
            }
        }
    }

    /// Is it a handler?
    fn handles(action: &libc::sigaction) -> bool {
        ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction)
    }

    /// The calling thread, and what it starts, reports other processes' deaths: it is not stopped.
    pub fn speaks() {
        // SAFETY: a set of signals is numbers, for which zero is a value; the calls read and write it alone.
        unsafe {
            let mut set: libc::sigset_t = zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, stop());
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, null_mut());
        }
    }

    /// Whose deaths this process hears of by their watches; `all`: there are no others.
    pub fn watches(watches: Vec<Arc<Words>>, all: bool) {
        // The handler may be reading the last ones.
        WATCHED.store(Box::into_raw(Box::new((watches, all))), SeqCst);
    }

    /// For ever, with every signal blocked that can be.
    extern "C" fn stopped(_: c_int) {
        loop {
            // SAFETY: takes nothing.
            unsafe { libc::pause() };
        }
    }

    /// Only calls of the system, and memory that was made before.
    extern "C" fn crashed(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        // SAFETY: takes nothing.
        let me = unsafe { libc::syscall(libc::SYS_gettid) } as c_int;
        match CRASHED.compare_exchange(0, me, SeqCst, SeqCst) {
            Ok(_) => {}
            // In what is below.
            Err(first) if first == me => return end(signal, me),
            // The first one ends the process.
            Err(_) => return stopped(signal),
        }
        stop_others(me);
        in_time(signal);
        // SAFETY: stored before the handler was installed, never freed.
        let guard = unsafe { GUARD.load(SeqCst).as_ref() };
        let at = FATAL.iter().position(|(s, _)| *s == signal);
        if signal == libc::SIGABRT && somebody_died() {
            sleep(MOMENT);
        } else if let (Some(guard), Some(at)) = (guard, at) {
            match refused().filter(|_| signal == libc::SIGABRT) {
                Some(bytes) => say_refused(guard, bytes),
                None => say(&[guard.words[at].as_bytes()]),
            }
        }
        if let (Some(guard), Some(at)) = (guard, at) {
            let before = &guard.before[at];
            let handles = handles(before);
            // What crashes in there (the standard library aborts where a stack has overflown) has no room on this stack for another handler.
            FATAL.iter().for_each(|(s, _)| default(*s));
            // SAFETY: a handler with the signature its flags state, which was to get this signal.
            unsafe {
                if handles && before.sa_flags & libc::SA_SIGINFO != 0 {
                    type Full = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
                    std::mem::transmute::<usize, Full>(before.sa_sigaction)(signal, info, context);
                } else if handles {
                    let f: extern "C" fn(c_int) = std::mem::transmute(before.sa_sigaction);
                    f(signal);
                }
            }
        }
        end(signal, me);
    }

    /// In one piece, as a pipe takes it. What cannot be said is not said.
    fn say(parts: &[&[u8]]) {
        let mut all = [libc::iovec {
            iov_base: null_mut(),
            iov_len: 0,
        }; 7];
        for (to, part) in all.iter_mut().zip(parts) {
            (to.iov_base, to.iov_len) = (part.as_ptr().cast_mut().cast(), part.len());
        }
        // SAFETY: each part is as long as it says, and is only read.
        unsafe { libc::writev(2, all.as_ptr(), parts.len().min(all.len()) as c_int) };
    }

    fn say_refused(guard: &Guard, bytes: u64) {
        let limits = [
            (libc::RLIMIT_AS, " (ulimit -v "),
            (libc::RLIMIT_DATA, " (ulimit -d "),
        ];
        let limit = limits.iter().find_map(|(what, name)| {
            let mut limit = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            // SAFETY: writes the limit to this frame.
            let known = unsafe { libc::getrlimit(*what, &mut limit) } == 0;
            (known && limit.rlim_cur != libc::RLIM_INFINITY).then_some((limit.rlim_cur, *name))
        });
        let (mut n, mut l) = ([0; 20], [0; 20]);
        let [before, after] = &guard.memory;
        let (before, bytes, after) = (before.as_bytes(), digits(bytes, &mut n), after.as_bytes());
        match limit {
            // As the shell counts, in units of 1024 bytes.
            Some((limit, name)) => {
                let limit = digits(limit / 1024, &mut l);
                say(&[
                    before,
                    bytes,
                    b" bytes",
                    name.as_bytes(),
                    limit,
                    b")",
                    after,
                ]);
            }
            None => say(&[before, bytes, b" bytes", after]),
        }
    }

    /// A number in digits.
    fn digits(mut n: u64, to: &mut [u8; 20]) -> &[u8] {
        let mut at = to.len();
        loop {
            at -= 1;
            to[at] = b'0' + (n % 10) as u8;
            n /= 10;
            if n == 0 {
                return &to[at..];
            }
        }
    }

    /// The signal does what it does without handlers.
    fn end(signal: c_int, me: c_int) {
        // SAFETY: takes numbers.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), me, signal) };
        default(signal);
    }

    /// This signal has no handler any more and is not blocked.
    fn default(signal: c_int) {
        // SAFETY: calls of the system on values of this frame.
        unsafe {
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(signal, &action, null_mut());
            let mut set: libc::sigset_t = zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, signal);
            libc::sigprocmask(libc::SIG_UNBLOCK, &set, null_mut());
        }
    }

    /// Stops every thread that does not speak. Twice: one may have begun another meanwhile.
    fn stop_others(me: c_int) {
        // SAFETY: calls of the system on buffers of this frame, whose entries are read within what was written.
        unsafe {
            let dir = libc::open(
                c"/proc/self/task".as_ptr(),
                libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC,
            );
            for _ in 0..2 {
                libc::lseek(dir, 0, libc::SEEK_SET);
                loop {
                    let mut buf = [0u64; 64];
                    let at = buf.as_mut_ptr().cast::<u8>();
                    let n = libc::syscall(libc::SYS_getdents64, dir, at, size_of_val(&buf));
                    if n <= 0 {
                        break;
                    }
                    let mut from = 0;
                    while from < n as usize {
                        // struct linux_dirent64: inode and offset, the entry's length, its type, its name.
                        let len = at.add(from + 16).cast::<u16>().read_unaligned();
                        if let Some(thread) = number(at.add(from + 19)).filter(|t| *t != me) {
                            libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, stop());
                        }
                        from += usize::from(len).max(1);
                    }
                }
            }
            libc::close(dir);
        }
    }

    /// The number a name is.
    ///
    /// # Safety
    /// The name ends with a zero.
    unsafe fn number(mut name: *const u8) -> Option<c_int> {
        let mut n = 0;
        loop {
            // SAFETY: before or at the zero.
            match unsafe { *name } {
                0 => return Some(n),
                digit @ b'0'..=b'9' => n = n * 10 + c_int::from(digit - b'0'),
                _ => return None,
            }
            name = name.wrapping_add(1);
        }
    }

    /// The time is over. Runs on any thread that is not stopped.
    extern "C" fn late(_: c_int) {
        // SAFETY: takes nothing.
        let me = unsafe { libc::syscall(libc::SYS_gettid) } as c_int;
        end(SIGNAL.load(SeqCst), me);
    }

    /// From now on the process ends by itself at [`LIMIT`].
    fn in_time(signal: c_int) {
        SIGNAL.store(signal, SeqCst);
        default(libc::SIGALRM);
        // SAFETY: reads values of this frame; the handler calls only what a handler may.
        unsafe {
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = late as extern "C" fn(c_int) as usize;
            libc::sigaction(libc::SIGALRM, &action, null_mut());
            let mut timer: libc::itimerval = zeroed();
            timer.it_value.tv_usec = LIMIT * 1000;
            libc::setitimer(libc::ITIMER_REAL, &timer, null_mut());
        }
    }

    fn sleep(ms: i64) {
        let mut left = libc::timespec {
            tv_sec: 0,
            tv_nsec: ms * 1_000_000,
        };
        // SAFETY: reads and writes the time left.
        while unsafe { libc::nanosleep(&left, &mut left) } != 0 {}
    }

    /// May this abort follow from another process's end? Of those that are not watched one cannot know.
    fn somebody_died() -> bool {
        // SAFETY: what was stored is never freed.
        let watched = unsafe { WATCHED.load(SeqCst).as_ref() };
        watched.is_some_and(|(watches, all)| !all || watches.iter().any(|w| gone(w)))
    }
}

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    /// Nothing.
    pub fn guard(_: &str, _: &str) {}

    /// Nothing.
    pub fn speaks() {}
}
