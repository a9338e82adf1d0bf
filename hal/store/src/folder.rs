//! A folder that is one rank's own, made inside the folder the user names and claimed as a run's folder is ([`Claim`]).
//!
//! The folders of dead processes are found by their locks. Only what this module itself made is ever removed, by name: a file of somebody
//! else's keeps its folder.

use crate::{Error, Result};
use crossweave_claim::{Claim, ClaimError, Life};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const PREFIX: &str = "crossweave-swap-";
const JOB: &str = "swap of offloaded state";
/// How names of swap files end.
pub(crate) const SUFFIX: &str = ".swap";

/// A rank's own folder; removed when dropped.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    claim: Option<Claim>,
    made: AtomicU64,
}

impl Folder {
    /// Removes what dead processes left in `parent` (which is made if it is not there), and makes a new folder in it.
    pub fn claim(parent: &Path) -> Result<Folder> {
        let fail = |path: &Path, what, fix| {
            let path = path.to_path_buf();
            move |source| Error::Folder {
                path,
                what,
                source,
                fix,
            }
        };
        let writable = "name a folder that can be written (nvme_path)";
        let made = std::fs::create_dir_all(parent);
        made.map_err(fail(
            parent,
            "cannot make the folder for offloaded state",
            writable,
        ))?;
        remove_dead(parent);
        for attempt in 0..1000u32 {
            let path = parent.join(format!("{PREFIX}{}-{attempt}", std::process::id()));
            match Claim::folder(&path, JOB) {
                Ok(claim) => {
                    return Ok(Folder {
                        path,
                        claim: Some(claim),
                        made: AtomicU64::new(0),
                    });
                }
                // Another rank of this process, or one of the same number elsewhere.
                Err(ClaimError::Held { .. } | ClaimError::Unreadable { .. }) => continue,
                Err(ClaimError::Io { source, .. }) => {
                    return Err(fail(&path, "cannot make a folder of its own", writable)(
                        source,
                    ));
                }
                Err(e) => {
                    let e = std::io::Error::other(e.to_string());
                    return Err(fail(&path, "cannot make a folder of its own", writable)(e));
                }
            }
        }
        let many = std::io::Error::other("a thousand folders of this process are there");
        Err(fail(parent, "cannot make a folder in it", "remove them")(
            many,
        ))
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
        if let Some(claim) = self.claim.take() {
            clear(&self.path, claim);
        }
    }
}

/// Removes the folders of processes that are over. What cannot be read or removed is left; it is somebody else's.
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
        // Of a process that was killed before it had the folder, or when it had given it up.
        if Claim::remove_unclaimed(&path) {
            continue;
        }
        if Claim::owner_of(&path).is_some_and(|o| o.life() == Life::Dead) {
            match Claim::folder(&path, JOB) {
                Ok(claim) => clear(&path, claim),
                // Another rank clears it. It could not remove the folder while the file was there by which this one asked for it: who asks
                // last removes it.
                Err(_) => _ = Claim::remove_unclaimed(&path),
            }
        }
    }
}

/// Removes our files, then the lock, then the folder if nothing else is in it.
fn clear(folder: &Path, claim: Claim) {
    if let Ok(entries) = std::fs::read_dir(folder) {
        for entry in entries.flatten() {
            if entry.file_name().to_string_lossy().ends_with(SUFFIX) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
    // Until the lock is gone no other process takes the folder for dead.
    drop(claim);
    let _ = std::fs::remove_dir(folder);
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

    /// The lock of a process of this number that started at another time.
    fn dead_lock() -> String {
        let dir = tempfile::tempdir().unwrap();
        let _claim = Claim::folder(dir.path(), JOB).unwrap();
        let text = std::fs::read_to_string(dir.path().join(crossweave_claim::LOCK)).unwrap();
        let dead = text.replace("\"start_ticks\": ", "\"start_ticks\": 1");
        assert_ne!(dead, text);
        dead
    }

    #[test]
    fn the_dead_are_removed_and_strangers_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let at = |n: &str| dir.path().join(n);
        // A dead process: its lock file is there, and no process of that start.
        let dead = dead_lock();
        std::fs::create_dir(at("crossweave-swap-1-0")).unwrap();
        std::fs::write(at("crossweave-swap-1-0/owner.lock"), &dead).unwrap();
        std::fs::write(at("crossweave-swap-1-0/state-0.swap"), b"old").unwrap();
        // Another in whose folder somebody has put a file of their own.
        std::fs::create_dir(at("crossweave-swap-2-0")).unwrap();
        std::fs::write(at("crossweave-swap-2-0/owner.lock"), &dead).unwrap();
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

    /// What a process leaves that is killed at any point of its claim, from the folder to the lock.
    #[test]
    fn the_folders_of_processes_killed_while_they_claimed_them_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let folder = |n: usize| {
            let path = dir.path().join(format!("crossweave-swap-{n}-0"));
            std::fs::create_dir(&path).unwrap();
            path
        };
        let (dead, attempt) = (dead_lock(), ".owner.lock.00c0ffee00c0ffee");
        folder(1);
        for (n, written) in [0, 1, dead.len() / 2, dead.len()].into_iter().enumerate() {
            std::fs::write(folder(2 + n).join(attempt), &dead[..written]).unwrap();
        }
        // Linked, and the other name not removed yet.
        let linked = folder(6);
        for name in [attempt, "owner.lock"] {
            std::fs::write(linked.join(name), &dead).unwrap();
        }
        // What a living process is about to claim, and what is somebody else's, stays.
        let living = folder(7);
        let own = Claim::folder(&living, JOB).unwrap();
        std::fs::rename(living.join("owner.lock"), living.join(attempt)).unwrap();
        let mixed = folder(8);
        std::fs::write(mixed.join(attempt), &dead).unwrap();
        std::fs::write(mixed.join("thesis.txt"), b"mine").unwrap();
        let f = Folder::claim(dir.path()).unwrap();
        let mine = f.path().file_name().unwrap().to_string_lossy().into_owned();
        let mut want = vec!["crossweave-swap-7-0", "crossweave-swap-8-0", &mine];
        want.sort();
        assert_eq!(entries(dir.path()), want);
        assert_eq!(entries(&mixed), [attempt, "thesis.txt"]);
        drop(own);
    }

    /// All ranks of a process look for the dead at once, and one of them clears what another asks for.
    #[test]
    fn ranks_that_clear_one_folder_at_once_leave_none() {
        let dead = dead_lock();
        for round in 0..200 {
            let dir = tempfile::tempdir().unwrap();
            let left = dir.path().join("crossweave-swap-1-0");
            std::fs::create_dir(&left).unwrap();
            std::fs::write(left.join("owner.lock"), &dead).unwrap();
            std::fs::write(left.join("state-0.swap"), b"old").unwrap();
            let start = std::sync::Barrier::new(4);
            let ranks = || {
                start.wait();
                Folder::claim(dir.path()).unwrap()
            };
            let folders: Vec<Folder> = std::thread::scope(|s| {
                let all: Vec<_> = (0..4).map(|_| s.spawn(ranks)).collect();
                all.into_iter().map(|t| t.join().unwrap()).collect()
            });
            drop(folders);
            assert_eq!(entries(dir.path()), [""; 0], "in round {round}");
        }
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
