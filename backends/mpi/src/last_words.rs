//! MPICH's launcher, run with the option to leave survivors alone (`-disable-auto-cleanup`), notifies them of a death by `SIGUSR1`, which ends a process that has
//! not said what to do with it: before the job's own news of the death, which names the rank, has been sent. Aborts of the library are
//! the host's matter (`crossweave_hal::crash`).

/// Makes the launcher's signal mean nothing, unless somebody handles it already.
pub fn allow() {
    #[cfg(unix)]
    // SAFETY: what it replaces is put back where it was not the default.
    unsafe {
        let before = libc::signal(libc::SIGUSR1, libc::SIG_IGN);
        if before != libc::SIG_DFL {
            libc::signal(libc::SIGUSR1, before);
        }
    }
}
