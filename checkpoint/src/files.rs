//! The few file operations everything here rests on: positional reads, synced writes, directories that appear whole.

use crate::error::{CheckpointError, Result};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Fills `buf` from byte `offset`, without moving any shared cursor, so that ranks may read one handle at once.
#[cfg(unix)]
pub(crate) fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buf, offset)
}

/// Fills `buf` from byte `offset`.
#[cfg(windows)]
pub(crate) fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<()> {
    use std::os::windows::fs::FileExt;
    let mut done = 0;
    while done < buf.len() {
        match file.seek_read(&mut buf[done..], offset + done as u64)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => done += n,
        }
    }
    Ok(())
}

/// Reads a JSON file whole, refusing absurd sizes and what is no regular file.
pub(crate) fn read_json_bytes(path: &Path) -> Result<Vec<u8>> {
    crossweave_files::read(path, crossweave_files::TABLE).map_err(CheckpointError::io("read", path))
}

/// Writes a small file and syncs it.
pub(crate) fn write_synced(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create(path).map_err(CheckpointError::io("create", path))?;
    io::Write::write_all(&mut file, bytes).map_err(CheckpointError::io("write", path))?;
    file.sync_all().map_err(CheckpointError::io("sync", path))
}

/// Makes the entries of a folder durable. Systems that cannot open a folder have no such call, and need none.
pub(crate) fn sync_dir(path: &Path) -> Result<()> {
    if cfg!(unix) {
        let dir = File::open(path).map_err(CheckpointError::io("open", path))?;
        dir.sync_all().map_err(CheckpointError::io("sync", path))?;
    }
    Ok(())
}

/// The folder a path lies in (`.` for a bare name).
pub(crate) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    }
}

/// Renames a finished folder over `target`. What stood there is first moved to `aside`, moved back if the second rename
/// fails, and deleted at the end: a crash leaves the old contents at `target` or at `aside`, never neither.
pub(crate) fn swap_in(finished: &Path, target: &Path, aside: &Path) -> Result<()> {
    let had_old = target.symlink_metadata().is_ok();
    if had_old {
        remove_dir_if_there(aside)?;
        std::fs::rename(target, aside).map_err(CheckpointError::io("move aside", target))?;
    }
    if let Err(e) = std::fs::rename(finished, target) {
        if had_old {
            std::fs::rename(aside, target).map_err(CheckpointError::io("move back", aside))?;
        }
        return Err(CheckpointError::io("rename into place", target)(e));
    }
    sync_dir(parent_of(target))?;
    remove_dir_if_there(aside)
}

/// Syncs a folder whose files are synced, and gives it its name as [`swap_in`] does.
pub(crate) fn publish_dir(finished: &Path, target: &Path, aside: &Path) -> Result<()> {
    sync_dir(finished)?;
    swap_in(finished, target, aside)
}

/// Removes a folder of ours; nothing there is fine.
pub(crate) fn remove_dir_if_there(path: &Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(CheckpointError::io("remove", path)(e))
        }
        _ => Ok(()),
    }
}

/// A folder being filled under a temporary name; dropped unfinished, it is removed.
pub(crate) struct TempDir {
    path: PathBuf,
    keep: bool,
}

impl TempDir {
    /// Creates `path`, first removing what a killed run left there.
    pub(crate) fn create(path: PathBuf) -> Result<Self> {
        remove_dir_if_there(&path)?;
        std::fs::create_dir_all(&path).map_err(CheckpointError::io("create", &path))?;
        Ok(Self { path, keep: false })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Syncs the folder and gives it its name, as [`swap_in`] does.
    pub(crate) fn publish(&mut self, target: &Path, aside: &Path) -> Result<()> {
        publish_dir(&self.path, target, aside)?;
        self.keep = true;
        Ok(())
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if !self.keep {
            // Best effort: an error is already on its way to the caller, and the next writer clears what is left.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
