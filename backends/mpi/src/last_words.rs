//! Time for last words. When a peer dies, others may end this process before it has said who died, where the job's own news of the death,
//! which names the rank, is a moment away, on another thread.
//!
//! An MPI library may abort it: UCX, beneath MPICH, does where it reads a dead peer's memory (`process_vm_readv … No such process`), whatever
//! error handler MPI was given. So the thread that aborts stays a little before the process ends as it would have. And MPICH's launcher, told
//! to leave survivors alone (`-disable-auto-cleanup`), tells them of a death by `SIGUSR1`, which ends whoever has not said what to do with it.

#[cfg(unix)]
use std::ffi::c_int;

/// The news comes when the kernel closes the dead process's sockets, right after its memory.
#[cfg(unix)]
const STAY_SECONDS: u32 = 3;

/// Makes aborts of this process wait and the launcher's signal mean nothing, unless somebody handles them already.
pub fn allow() {
    #[cfg(unix)]
    {
        let handler: extern "C" fn(c_int) = stay;
        unless_handled(libc::SIGABRT, handler as libc::sighandler_t);
        unless_handled(libc::SIGUSR1, libc::SIG_IGN);
    }
}

#[cfg(unix)]
fn unless_handled(number: c_int, handler: libc::sighandler_t) {
    // SAFETY: the only handler given calls nothing but sleep, which POSIX allows there; what it replaces is put back where it was not the
    // default.
    unsafe {
        let before = libc::signal(number, handler);
        if before != libc::SIG_DFL {
            libc::signal(number, before);
        }
    }
}

/// After it, `abort` raises the signal again with nobody to handle it.
#[cfg(unix)]
extern "C" fn stay(_: c_int) {
    let mut left = STAY_SECONDS;
    while left > 0 {
        // SAFETY: takes a number.
        left = unsafe { libc::sleep(left) };
    }
}
