//! Room of a file, taken before it is needed: a full disk is then an error of the call that asks for the room, not of a later write or page.

use std::fs::File;
use std::io;

/// Makes `file` at least `bytes` long and takes the space for them.
///
/// # Errors
/// No room (`ENOSPC`, `EDQUOT`), or a length files cannot have (`EFBIG`). Where the file system cannot reserve, only the length is set, and
/// a full disk is said by what meets it first.
pub fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    let len = i64::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    #[cfg(target_os = "linux")]
    loop {
        use std::os::fd::AsRawFd;
        // SAFETY: the descriptor is open; the call touches no memory of ours.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len) } {
            0 => return Ok(()),
            libc::EINTR => continue,
            libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL => break,
            code => return Err(io::Error::from_raw_os_error(code)),
        }
    }
    file.set_len(len as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_taken_and_lengths_that_no_file_has_are_refused() {
        let file = tempfile::tempfile().unwrap();
        reserve(&file, 8192).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 8192);
        assert!(reserve(&file, u64::MAX).is_err());
        assert_eq!(file.metadata().unwrap().len(), 8192);
    }
}
