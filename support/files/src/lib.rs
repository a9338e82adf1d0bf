//! Files that users name are opened here: only if they are regular files, read only up to a limit, and
//! with advice for each error of the system.
//!
//! A named pipe would wait for a writer, a terminal for its user, and `/dev/zero` never ends. The kind of
//! file is therefore checked before it is opened, and again on the open file. A refusal is an
//! [`io::Error`] like any other, whose text names the kind or the size; the caller adds the path, and
//! [`fix`] returns the advice for every error, ours and the system's. **Invariant**
//! (`docs/invariants.md`): no other code in `cli`, `config`, `data` and `checkpoint` opens a user's file.
#![forbid(unsafe_code)]

use crossweave_words::Size;
use std::fmt;
use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek};
use std::path::Path;

/// A config or another text that people write: 1 MiB.
pub const TEXT: u64 = 1 << 20;
/// A tokenizer, an index of shards, a lock of routes: 256 MiB. The largest published tokenizers have 40.
pub const TABLE: u64 = 256 << 20;
/// What a run wrote itself, such as its metrics, or a document of a corpus: 16 GiB.
pub const BULK: u64 = 16 << 30;

/// Why a file is not read, apart from the system's reasons.
#[derive(Debug)]
struct Refused {
    what: String,
    fix: &'static str,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Refused {}

fn refuse(kind: ErrorKind, what: String, fix: &'static str) -> io::Error {
    io::Error::new(kind, Refused { what, fix })
}

/// What a file that is not regular is, in words.
fn kind_of(kind: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_fifo() {
            return "a pipe";
        } else if kind.is_char_device() || kind.is_block_device() {
            return "a device";
        } else if kind.is_socket() {
            return "a socket";
        }
    }
    match kind.is_dir() {
        true => "a folder",
        false => "something else",
    }
}

fn held_regular(meta: &Metadata) -> io::Result<u64> {
    if meta.is_file() {
        return Ok(meta.len());
    }
    let what = format!("it is {}, not a regular file", kind_of(meta.file_type()));
    let kind = match meta.is_dir() {
        true => ErrorKind::IsADirectory,
        false => ErrorKind::InvalidInput,
    };
    Err(refuse(kind, what, "name a regular file"))
}

/// The length in bytes of the regular file at `path`, which is not opened. Links are followed.
///
/// # Errors
/// Nothing there; no right to look; a folder, pipe, device or socket.
pub fn len(path: &Path) -> io::Result<u64> {
    held_regular(&std::fs::metadata(path)?)
}

/// How every pointer begins that Git LFS leaves in place of a file (its specification, version 1), and bytes that no pointer has.
const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";
const NO_POINTER: u64 = 1024;

/// Whether the file stands for another that was not fetched: a clone of a model or a data set that was made without Git LFS.
fn is_pointer(file: &mut File, len: u64) -> io::Result<bool> {
    if !(POINTER.len() as u64..NO_POINTER).contains(&len) {
        return Ok(false);
    }
    let mut head = [0; POINTER.len()];
    file.read_exact(&mut head)?;
    file.rewind()?;
    Ok(head == POINTER)
}

/// Opens a regular file for reading and gives its length in bytes.
///
/// # Errors
/// As [`len`], without opening what is not a regular file; a pointer of Git LFS.
pub fn open(path: &Path) -> io::Result<(File, u64)> {
    len(path)?;
    let mut how = OpenOptions::new();
    how.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // A pipe that was put there since then is opened without a wait for its writer, and refused below.
        how.custom_flags(libc::O_NONBLOCK);
    }
    let mut file = how.open(path)?;
    let len = held_regular(&file.metadata()?)?;
    if is_pointer(&mut file, len)? {
        let what = "it is a Git LFS pointer, not the file itself".to_string();
        let fix = "run `git lfs install` and `git lfs pull` in the repository it is from";
        return Err(refuse(ErrorKind::InvalidInput, what, fix));
    }
    Ok((file, len))
}

/// The contents of a regular file of at most `limit` bytes; no more than that is read or held in memory.
///
/// # Errors
/// As [`open`]; a file that is larger, or grows to be.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let too_large = |len: u64| {
        let what = format!("it has {}, and {} are the limit", Size(len), Size(limit));
        let fix = "is it the right file? no real one of its kind is that large";
        refuse(ErrorKind::InvalidInput, what, fix)
    };
    let (file, len) = open(path)?;
    if len > limit {
        return Err(too_large(len));
    }
    let mut bytes = Vec::new();
    // A large file is refused where the memory for it is not there; the program goes on.
    bytes
        .try_reserve_exact(usize::try_from(len).unwrap_or(usize::MAX))
        .map_err(|_| {
            refuse(
                ErrorKind::OutOfMemory,
                format!("there is no memory for its {}", Size(len)),
                NO_MEMORY,
            )
        })?;
    // Files of the system claim no bytes and have some; others may grow.
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > limit {
        true => Err(too_large(bytes.len() as u64)),
        false => Ok(bytes),
    }
}

/// As [`read`], as text.
///
/// # Errors
/// As [`read`]; bytes that are not UTF-8.
pub fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    String::from_utf8(read(path, limit)?).map_err(|e| {
        let what = format!("byte {} is not UTF-8", e.utf8_error().valid_up_to());
        let fix = "save the file as UTF-8; is it the right one?";
        refuse(ErrorKind::InvalidData, what, fix)
    })
}

const NO_MEMORY: &str = "use fewer ranks on this machine, raise the limit of the process (ulimit -v), or take one with more memory";

/// What to do about an error of a file operation; never empty.
pub fn fix(e: &io::Error) -> &'static str {
    if let Some(r) = e.get_ref().and_then(|e| e.downcast_ref::<Refused>()) {
        return r.fix;
    }
    #[cfg(unix)]
    match e.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => {
            return "raise the limit of open files (ulimit -n), or use fewer ranks on this machine";
        }
        Some(libc::EIO) => {
            return "the disk or its server failed: see the system's log, and use another disk";
        }
        _ => {}
    }
    match e.kind() {
        ErrorKind::NotFound => {
            "correct the path (a relative one starts from the working directory), or make the file"
        }
        ErrorKind::PermissionDenied => "give this user the right to it, or name another place",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "make room there and run again; what was complete before is untouched"
        }
        ErrorKind::FileTooLarge => {
            "make room there (raise ulimit -f, or use a file system that takes larger files) and run again; \
             what was complete before is untouched"
        }
        ErrorKind::ReadOnlyFilesystem => "name a place that can be written",
        ErrorKind::IsADirectory => "name a file, not a folder",
        ErrorKind::NotADirectory => "a part of the path is a file; correct the path",
        ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty => {
            "move what is there away, or name another place"
        }
        ErrorKind::InvalidFilename => "give a shorter path, of characters the file system takes",
        ErrorKind::StaleNetworkFileHandle => "mount the file system again and run again",
        ErrorKind::InvalidData => "save the file as UTF-8; is it the right one?",
        ErrorKind::UnexpectedEof => {
            "the file was cut while it was read: restore it, and run again once nothing writes to it"
        }
        ErrorKind::CrossesDevices => "keep the folder and what lies in it on one file system",
        ErrorKind::OutOfMemory => NO_MEMORY,
        _ => "mend what the system names there, and run again",
    }
}

/// The beginning of `text` for a message: at most `most` characters, with the length of what was cut.
pub fn clip(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_string(),
        Some((at, _)) => format!("{}… ({} bytes)", &text[..at], text.len()),
    }
}

/// The beginning and the end of `text`, at most `most` characters of it, with the length of the whole: for a message that quotes what may be long.
pub fn elide(text: &str, most: usize) -> String {
    let all = text.chars().count();
    if all <= most {
        return text.to_string();
    }
    let at = |n: usize| text.char_indices().nth(n).map_or(text.len(), |(at, _)| at);
    let (head, tail) = (at(most - most / 3), at(all - most / 3));
    format!(
        "{}… ({} bytes) …{}",
        &text[..head],
        text.len(),
        &text[tail..]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_files_are_read_up_to_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(read(&path, 3).unwrap(), b"abc");
        assert_eq!(read_text(&path, TEXT).unwrap(), "abc");
        let e = read(&path, 2).unwrap_err();
        assert!(e.to_string().contains("3 B, and 2 B are the limit"), "{e}");
        assert!(fix(&e).contains("right file"), "{}", fix(&e));
        std::fs::write(&path, b"a\xff").unwrap();
        let e = read_text(&path, 3).unwrap_err();
        assert!(e.to_string().contains("byte 1 is not UTF-8"), "{e}");
        let e = read(&dir.path().join("none"), 3).unwrap_err();
        assert!(fix(&e).contains("correct the path"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_not_regular_is_named_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        crossweave_tests::system::pipe(&pipe);
        let socket = dir.path().join("socket");
        let _open = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, word) in [
            (pipe.as_path(), "a pipe"),
            (&socket, "a socket"),
            (dir.path(), "a folder"),
            (Path::new("/dev/zero"), "a device"),
        ] {
            for e in [open(path).unwrap_err(), read(path, 9).unwrap_err()] {
                assert!(e.to_string().contains(word), "{e}");
                assert_eq!(fix(&e), "name a regular file");
            }
        }
        // Files of the system say that they are empty.
        assert!(!read(Path::new("/proc/self/stat"), TEXT).unwrap().is_empty());
        assert!(read(Path::new("/proc/self/maps"), 10).is_err());
    }

    #[test]
    fn a_pointer_of_git_lfs_is_not_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let pointer =
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 548105171\n";
        std::fs::write(&path, pointer).unwrap();
        for e in [open(&path).unwrap_err(), read(&path, TEXT).unwrap_err()] {
            assert!(e.to_string().contains("Git LFS pointer"), "{e}");
            assert!(fix(&e).contains("git lfs pull"));
        }
        // A text about them is a text, and what is read is read from its first byte.
        let text = [&b"On pointers: "[..], pointer, &[b'.'; 99]].concat();
        std::fs::write(&path, &text).unwrap();
        assert_eq!(read(&path, TEXT).unwrap(), text);
        std::fs::write(&path, pointer.repeat(30)).unwrap();
        assert!(open(&path).is_ok());
    }

    #[test]
    fn long_text_is_cut() {
        assert_eq!(clip("äbc", 3), "äbc");
        assert_eq!(clip("äbcd", 2), "äb… (5 bytes)");
        assert_eq!(elide("äbcd", 4), "äbcd");
        assert_eq!(elide("äbcdefgü", 6), "äbcd… (10 bytes) …gü");
    }
}
