//! Time for last words. An MPI library may abort its process when a peer dies: UCX, beneath MPICH, does where it reads a dead peer's memory
//! (`process_vm_readv … No such process`), whatever error handler MPI was given. The job's own news of the death, which names the rank, is
//! then a moment away, on another thread; so the thread that aborts stays a little before the process ends as it would have.

#[cfg(unix)]
use std::ffi::{c_int, c_uint};

/// The news comes when the kernel closes the dead process's sockets, right after its memory.
#[cfg(unix)]
const STAY_SECONDS: c_uint = 3;

/// Makes aborts of this process wait, unless somebody handles them already.
pub fn allow() {
    #[cfg(unix)]
    {
        const SIGABRT: c_int = 6;
        const DEFAULT: usize = 0;
        unsafe extern "C" {
            fn signal(number: c_int, handler: usize) -> usize;
        }
        let handler: extern "C" fn(c_int) = stay;
        // SAFETY: the handler calls nothing but sleep, which POSIX allows there; what it replaces is put back where it was not the default.
        unsafe {
            let before = signal(SIGABRT, handler as usize);
            if before != DEFAULT {
                signal(SIGABRT, before);
            }
        }
    }
}

/// After it, `abort` raises the signal again with nobody to handle it.
#[cfg(unix)]
extern "C" fn stay(_: c_int) {
    unsafe extern "C" {
        fn sleep(seconds: c_uint) -> c_uint;
    }
    let mut left = STAY_SECONDS;
    while left > 0 {
        // SAFETY: takes a number.
        left = unsafe { sleep(left) };
    }
}
