//! A file of blocks: reserved whole when it is made, open twice (past the page cache and through it), without a name once it is open.

use crate::{ALIGN, Error, Folder, Result};
use crossweave_hal::file::reserve;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) struct Inner {
    pub path: PathBuf,
    pub bytes: u64,
    /// None in a rehearsal.
    buffered: Option<File>,
    direct: Option<File>,
}

impl Inner {
    /// The descriptor for a piece: direct where everything lies on page boundaries, else through the cache.
    pub fn fd(&self, aligned: bool) -> RawFd {
        let direct = self.direct.as_ref().filter(|_| aligned);
        let file = direct.or(self.buffered.as_ref());
        file.map_or(-1, File::as_raw_fd)
    }
}

/// A file of blocks. Clone shares it; its space is given back with the last clone.
#[derive(Clone)]
pub struct BlockFile(pub(crate) Arc<Inner>);

impl BlockFile {
    /// Reserves `bytes` (rounded up to [`ALIGN`]) in `folder`.
    ///
    /// # Errors
    /// [`Error::Full`] when the disk has not that much room: nothing is left behind.
    pub fn create(folder: &Folder, what: &str, bytes: u64, direct: bool) -> Result<BlockFile> {
        let path = folder.name(what);
        let bytes = bytes.max(1).next_multiple_of(ALIGN);
        let fail = |what| {
            let path = path.clone();
            move |source| Error::Folder {
                path,
                what,
                source,
                fix: "name a folder that can be written (nvme_path)",
            }
        };
        let buffered = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(fail("cannot make the file"))?;
        let direct = if direct { open_direct(&path) } else { None };
        // From here on the space belongs to the descriptors: it is given back however the process ends.
        std::fs::remove_file(&path).map_err(fail("cannot unlink the open file"))?;
        // A full disk is said before a step has begun.
        reserve(&buffered, bytes).map_err(|e| match e.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => Error::Full {
                file: path.clone(),
                offset: 0,
                bytes,
            },
            _ => fail("cannot reserve the file's space")(e),
        })?;
        Ok(BlockFile(Arc::new(Inner {
            path,
            bytes,
            buffered: Some(buffered),
            direct,
        })))
    }

    /// A file that is only a number: for the rehearsal of a step.
    pub(crate) fn nowhere(what: &str, bytes: u64) -> BlockFile {
        BlockFile(Arc::new(Inner {
            path: what.into(),
            bytes: bytes.max(1).next_multiple_of(ALIGN),
            buffered: None,
            direct: None,
        }))
    }

    /// A file that is there already, as it is: for devices such as `/dev/full` in tests.
    pub fn open(path: &Path, bytes: u64) -> Result<BlockFile> {
        let buffered = File::options().read(true).write(true).open(path);
        Ok(BlockFile(Arc::new(Inner {
            buffered: Some(buffered.map_err(|source| Error::Folder {
                path: path.to_path_buf(),
                what: "cannot open the file",
                source,
                fix: "check that it is there and can be written",
            })?),
            direct: None,
            path: path.to_path_buf(),
            bytes,
        })))
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }
    /// Whether transfers bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.0.direct.is_some()
    }
    /// What messages call it.
    pub fn path(&self) -> &Path {
        &self.0.path
    }
}

#[cfg(target_os = "linux")]
fn open_direct(path: &Path) -> Option<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut o = File::options();
    // A file system without direct transfers (a RAM disk) refuses; the cache then serves.
    o.read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .ok()
}

#[cfg(not(target_os = "linux"))]
fn open_direct(_: &Path) -> Option<File> {
    None
}
