//! A folder that is one run's own, made inside the folder the user names; those of dead runs are found by a lock nobody holds.
//!
//! The lock is held by the open file, so it ends with the process however the process ends, and a process number used twice misleads
//! nobody. Only what this module itself made is ever removed, by name: a stranger's file keeps its folder.

use crate::{Error, Result};
use std::fs::{File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const PREFIX: &str = "crossweave-swap-";
const LOCK: &str = "owner.lock";
/// First line of a lock file: without it a folder is not ours.
const MAGIC: &str = "crossweave swap folder, version 1\n";
/// How names of swap files end.
pub(crate) const SUFFIX: &str = ".swap";

/// A run's own folder; removed when dropped.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Held for as long as the folder is ours.
    lock: File,
    made: AtomicU64,
}

impl Folder {
    /// Removes what dead runs left in `parent` (which is made if it is not there), and makes a new folder in it.
    pub fn claim(parent: &Path) -> Result<Folder> {
        let fail = |what, fix| {
            let path = parent.to_path_buf();
            move |source| Error::Folder {
                path,
                what,
                source,
                fix,
            }
        };
        std::fs::create_dir_all(parent).map_err(fail(
            "cannot make the folder for offloaded state",
            "name a folder that can be written (nvme_path)",
        ))?;
        remove_dead(parent);
        for attempt in 0..1000u32 {
            let path = parent.join(format!("{PREFIX}{}-{attempt}", std::process::id()));
            match std::fs::create_dir(&path) {
                Ok(()) => {}
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => continue,
                Err(e) => {
                    let fix = "name a folder that can be written (nvme_path)";
                    return Err(fail("cannot make a folder in it", fix)(e));
                }
            }
            let lock = make_lock(&path).map_err(|source| {
                // A folder without its lock file would be nobody's for ever.
                let _ = std::fs::remove_file(path.join(LOCK));
                let _ = std::fs::remove_dir(&path);
                Error::Folder {
                    path: path.clone(),
                    what: "cannot write and lock its owner file",
                    source,
                    fix: "name a folder on a disk with room, on a file system with locks (nvme_path)",
                }
            })?;
            return Ok(Folder {
                path,
                lock,
                made: AtomicU64::new(0),
            });
        }
        let many = std::io::Error::other("a thousand folders of this process are there");
        Err(fail("cannot make a folder in it", "remove them")(many))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path for a new file; names are never given twice.
    pub(crate) fn name(&self, what: &str) -> PathBuf {
        let n = self.made.fetch_add(1, Ordering::Relaxed);
        self.path.join(format!("{what}-{n}{SUFFIX}"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        clear(&self.path);
        // Unlocked last: until then no other run takes it for dead.
        let _ = self.lock.unlock();
    }
}

fn make_lock(folder: &Path) -> std::io::Result<File> {
    let mut f = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(folder.join(LOCK))?;
    // Another rank that looks for dead runs holds it for a moment, and lets it go when it finds no first line.
    let mut tries = 0;
    loop {
        match f.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if tries < 2000 => tries += 1,
            Err(TryLockError::WouldBlock) => return Err(std::io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(e)) => return Err(e),
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    f.write_all(MAGIC.as_bytes())?;
    f.sync_data()?;
    Ok(f)
}

/// Removes the folders of runs that are over. What cannot be read or removed is left; it is somebody else's.
fn remove_dead(parent: &Path) {
    let Ok(entries) = std::fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if !ours || !entry.file_type().is_ok_and(|t| t.is_dir()) {
            continue;
        }
        let path = entry.path();
        let Ok(lock) = File::options().read(true).write(true).open(path.join(LOCK)) else {
            continue;
        };
        if lock.try_lock().is_ok() && std::io::read_to_string(&lock).is_ok_and(|t| t == MAGIC) {
            clear(&path);
        }
    }
}

/// Removes our files, then the folder if nothing else is in it.
fn clear(folder: &Path) {
    if let Ok(entries) = std::fs::read_dir(folder) {
        for entry in entries.flatten() {
            if entry.file_name().to_string_lossy().ends_with(SUFFIX) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
    // The lock file goes last, so that a folder cut short here is still known as ours.
    let only_lock = std::fs::read_dir(folder).is_ok_and(|d| d.count() == 1);
    if only_lock {
        let _ = std::fs::remove_file(folder.join(LOCK));
        let _ = std::fs::remove_dir(folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(p: &Path) -> Vec<String> {
        let mut v: Vec<String> = std::fs::read_dir(p)
            .unwrap()
            .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        v.sort();
        v
    }

    #[test]
    fn a_folder_goes_with_its_owner_and_the_living_keep_theirs() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (
            Folder::claim(dir.path()).unwrap(),
            Folder::claim(dir.path()).unwrap(),
        );
        assert_ne!(a.path(), b.path());
        assert_eq!(entries(dir.path()).len(), 2);
        drop(a);
        assert_eq!(entries(dir.path()).len(), 1);
        drop(b);
        assert!(entries(dir.path()).is_empty());
    }

    #[test]
    fn the_dead_are_removed_and_strangers_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let at = |n: &str| dir.path().join(n);
        // A dead run: its lock file is there and nobody holds it.
        std::fs::create_dir(at("crossweave-swap-1-0")).unwrap();
        std::fs::write(at("crossweave-swap-1-0/owner.lock"), MAGIC).unwrap();
        std::fs::write(at("crossweave-swap-1-0/state-0.swap"), b"old").unwrap();
        // A dead run in whose folder somebody has put a file of their own.
        std::fs::create_dir(at("crossweave-swap-2-0")).unwrap();
        std::fs::write(at("crossweave-swap-2-0/owner.lock"), MAGIC).unwrap();
        std::fs::write(at("crossweave-swap-2-0/thesis.txt"), b"mine").unwrap();
        // A stranger with our prefix, and one without.
        std::fs::create_dir(at("crossweave-swap-photos")).unwrap();
        std::fs::write(at("crossweave-swap-photos/a.swap"), b"photo").unwrap();
        std::fs::create_dir(at("crossweave-swap-3-0")).unwrap();
        std::fs::write(at("crossweave-swap-3-0/owner.lock"), b"other").unwrap();
        std::fs::write(at("data"), b"x").unwrap();
        let f = Folder::claim(dir.path()).unwrap();
        let mine = f.path().file_name().unwrap().to_string_lossy().into_owned();
        let mut want = vec![
            "crossweave-swap-2-0",
            "crossweave-swap-3-0",
            "crossweave-swap-photos",
            &mine,
            "data",
        ];
        want.sort();
        assert_eq!(entries(dir.path()), want);
        assert!(at("crossweave-swap-2-0/thesis.txt").exists());
        assert!(at("crossweave-swap-photos/a.swap").exists());
    }

    #[test]
    fn a_parent_that_cannot_be_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), b"").unwrap();
        let e = Folder::claim(&dir.path().join("file"))
            .unwrap_err()
            .to_string();
        assert!(e.contains("file") && e.contains("nvme_path"), "{e}");
    }
}
