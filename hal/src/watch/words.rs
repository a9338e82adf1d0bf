//! The memory ranks write their records into: plain 64-bit atomics, of this process or of a file that other processes of the host map too.
//!
//! Everything in it is written by one rank and read by others without a lock; what must be read whole carries its own number (see
//! [`super::record`]). Pages that are never touched cost nothing.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::AtomicU64;

/// Zeroed words. The mapping lasts as long as the value.
pub(crate) struct Words {
    at: *const AtomicU64,
    len: usize,
}

// SAFETY: the memory is atomics only, mapped until the value is dropped; any thread may touch it.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Memory of this process alone.
    pub fn private(len: usize) -> io::Result<Words> {
        map(None, len)
    }

    /// Memory in a new file, for other processes to open.
    pub fn create(path: &Path, len: usize) -> io::Result<Words> {
        let mut how = OpenOptions::new();
        let file = how.read(true).write(true).create_new(true).open(path)?;
        // Room is taken now: a page that a full file system cannot give would end the process when it is first touched.
        let made = crate::file::reserve(&file, len as u64 * 8);
        made.and_then(|()| map(Some(&file), len)).inspect_err(|_| {
            // Nobody is to find a record that nobody writes.
            let _ = std::fs::remove_file(path);
        })
    }

    /// Memory another process has created.
    pub fn open(path: &Path, len: usize) -> io::Result<Words> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        if file.metadata()?.len() != len as u64 * 8 {
            let why = format!("{} is not a record of this version", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        map(Some(&file), len)
    }
}

fn map(file: Option<&File>, len: usize) -> io::Result<Words> {
    let (fd, how) = match file {
        Some(f) => (f.as_raw_fd(), libc::MAP_SHARED),
        None => (-1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS),
    };
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping at an address of the system's choice; nobody shortens the file, whose only writers are its mappings.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len * 8, access, how, fd, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(Words {
        at: at.cast_const().cast(),
        len,
    })
}

impl Words {
    /// Fetches a word's line for writing.
    #[inline]
    pub fn claim(&self, at: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint, which changes no memory and cannot fault; processors that lack it do nothing.
        unsafe {
            let at = self.at.wrapping_add(at);
            std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }
}

impl Deref for Words {
    type Target = [AtomicU64];
    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: `map` made this many words, page aligned and zeroed; they are only ever touched as atomics.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, unmapped once.
        unsafe { libc::munmap(self.at.cast_mut().cast(), self.len * 8) };
    }
}

/// Nanoseconds of a clock that all processes of a host share, good to a few milliseconds and cheap: for ages in messages.
#[inline]
pub(crate) fn now() -> u64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    #[cfg(target_os = "linux")]
    let clock = libc::CLOCK_MONOTONIC_COARSE;
    #[cfg(not(target_os = "linux"))]
    let clock = libc::CLOCK_MONOTONIC;
    // SAFETY: the out pointer lives for the call; the clock exists on every system this builds for.
    unsafe { libc::clock_gettime(clock, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// A number of the calling thread that no other living thread has, never 0.
#[inline]
pub(crate) fn thread() -> u64 {
    // SAFETY: has no preconditions.
    unsafe { libc::pthread_self() as u64 }
}

/// The calling thread, as the system numbers it; 0 where it does not say.
pub(crate) fn tid() -> u64 {
    #[cfg(target_os = "linux")]
    // SAFETY: takes nothing.
    return unsafe { libc::syscall(libc::SYS_gettid) } as u64;
    #[cfg(not(target_os = "linux"))]
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn processes_see_one_memory_and_other_lengths_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rank0");
        let mine = Words::create(&path, 1024).unwrap();
        assert!(Words::create(&path, 1024).is_err(), "never somebody else's");
        let theirs = Words::open(&path, 1024).unwrap();
        std::fs::remove_file(&path).unwrap();
        mine[7].store(41, Relaxed);
        assert_eq!((theirs[7].load(Relaxed), theirs[8].load(Relaxed)), (41, 0));
        std::fs::write(&path, [0; 100]).unwrap();
        assert!(Words::open(&path, 1024).is_err());
    }

    #[test]
    fn threads_differ() {
        let other = std::thread::spawn(thread).join().unwrap();
        assert_ne!(other, thread());
    }
}
