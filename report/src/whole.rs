//! A file that is written whole: under a name of this process's own beside its place, then renamed.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// The name under which this process writes `path`.
pub fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(format!(".{}.partial", std::process::id()));
    name.into()
}

/// Writes `bytes` as the whole of `path`. What stood there is there until they are.
///
/// # Errors
/// The system's; then nothing of it is left.
pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    let partial = beside(path);
    let done = std::fs::write(&partial, bytes).and_then(|()| std::fs::rename(&partial, path));
    if done.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    done
}
