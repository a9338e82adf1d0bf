//! A file appears whole or not at all: written beside its place, synced, then renamed.

use crate::error::{DataError, Result};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// A file being written under a temporary name. Dropping it without [`AtomicFile::commit`] removes it.
pub(crate) struct AtomicFile {
    out: BufWriter<NamedTempFile>,
    path: PathBuf,
}

impl AtomicFile {
    /// Starts writing `path`; its folder is created when missing.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let folder = folder_of(path);
        std::fs::create_dir_all(folder).map_err(DataError::io("create the folder", folder))?;
        let mut builder = tempfile::Builder::new();
        builder.prefix(".partial-");
        // A cache may be shared between users, so the usual umask applies instead of tempfile's owner-only mode.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let temp = builder
            .tempfile_in(folder)
            .map_err(DataError::io("create a file in", folder))?;
        Ok(Self {
            out: BufWriter::with_capacity(1 << 20, temp),
            path: path.to_path_buf(),
        })
    }

    /// Appends bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.out
            .write_all(bytes)
            .map_err(DataError::io("write", &self.path))
    }

    /// Syncs the bytes to disk and gives the file its name.
    pub(crate) fn commit(self) -> Result<()> {
        let Self { out, path } = self;
        let temp = out
            .into_inner()
            .map_err(|e| DataError::io("write", &path)(e.into_error()))?;
        temp.as_file()
            .sync_all()
            .map_err(DataError::io("sync", &path))?;
        temp.persist(&path)
            .map_err(|e| DataError::io("rename into place", &path)(e.error))?;
        // The rename itself is durable only once the folder is synced; not every system can open a folder.
        if let Ok(folder) = File::open(folder_of(&path)) {
            let _ = folder.sync_all();
        }
        Ok(())
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Writes `bytes` as the whole of `path`.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = AtomicFile::create(path)?;
    file.write(bytes)?;
    file.commit()
}

/// Reads exactly `out.len()` bytes at `offset` without moving a cursor, so that ranks may share the file.
pub(crate) fn read_at(file: &File, path: &Path, offset: u64, out: &mut [u8]) -> Result<()> {
    #[cfg(unix)]
    let done = std::os::unix::fs::FileExt::read_exact_at(file, out, offset);
    #[cfg(windows)]
    let done = (|| {
        let mut filled = 0;
        while filled < out.len() {
            match std::os::windows::fs::FileExt::seek_read(
                file,
                &mut out[filled..],
                offset + filled as u64,
            )? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                n => filled += n,
            }
        }
        Ok(())
    })();
    done.map_err(DataError::io("read", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_of_an_abandoned_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/x.bin");
        let mut file = AtomicFile::create(&path).unwrap();
        file.write(b"half").unwrap();
        drop(file);
        assert_eq!(
            std::fs::read_dir(path.parent().unwrap()).unwrap().count(),
            0
        );
        write_file(&path, b"whole").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"whole");
        assert_eq!(
            std::fs::read_dir(path.parent().unwrap()).unwrap().count(),
            1
        );
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, b"").unwrap();
        let error = write_file(&file.join("x"), b"").unwrap_err().to_string();
        assert!(error.contains("file"), "{error}");
    }
}
