//! A folder in memory for the files of tests. Runs sync their checkpoints, caches and claims as those of users do, and on the disk of a busy machine
//! tests wait for that most of their time; what they hold is the same in memory.

use nix::sys::statvfs::statvfs;
use std::path::{Path, PathBuf};

/// Bytes that must be free, of the file system and of the machine: beside the files of tests, builds and what MPI shares between processes have theirs.
const ROOM: u64 = 4 << 30;

/// Its name, behind which the number of the process stands that made it.
const NAME: &str = "crossweave-tests-";

/// The folder; removed with all in it when it is dropped.
pub struct Folder(PathBuf);

impl Folder {
    /// Makes one where the machine has a file system in memory with room; tests have that of the system for temporary files otherwise.
    pub fn make() -> Option<Folder> {
        let at = Path::new("/dev/shm");
        let free = statvfs(at).ok()?;
        let free = free.blocks_available() as u64 * free.fragment_size() as u64;
        if free < ROOM || available(&std::fs::read_to_string("/proc/meminfo").ok()?)? < ROOM {
            return None;
        }
        clear(at);
        let path = at.join(format!("{NAME}{}", std::process::id()));
        std::fs::create_dir(&path).ok()?;
        Some(Folder(path))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Removes folders of processes that were killed: nobody else gives their memory back.
fn clear(at: &Path) {
    for entry in std::fs::read_dir(at).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|n| n.strip_prefix(NAME));
        if process.is_some_and(|p| !Path::new("/proc").join(p).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Bytes that programs may still have, by the text of `/proc/meminfo`.
fn available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_left_is_read_in_bytes() {
        let text = "MemTotal:       24000000 kB\nMemAvailable:    5000000 kB\n";
        assert_eq!(available(text), Some(5_120_000_000));
        assert_eq!(available("MemTotal: 1 kB\n"), None);
        assert_eq!(available("MemAvailable: much\n"), None);
    }

    #[test]
    fn nothing_is_left_of_a_folder() {
        let Some(folder) = Folder::make() else {
            return;
        };
        let path = folder.path().to_path_buf();
        std::fs::write(path.join("a"), b"a").unwrap();
        let dead = path.with_file_name(format!("{NAME}{}", u32::MAX));
        std::fs::create_dir(&dead).unwrap();
        clear(path.parent().unwrap());
        assert!(path.exists() && !dead.exists());
        drop(folder);
        assert!(!path.exists());
    }
}
