//! A folder or a file has one writer at a time: a lock file names the process that owns it.
//!
//! The lock file is written completely under a temporary name and then linked to its own name, which
//! succeeds for one process only, on NFS too (open(2), O_EXCL). No lock daemon and no flock take part.
//! The lock of a process that has ended stays; the next process finds that its owner is dead
//! ([`Owner::life`]) and replaces it. Only the process that holds a second lock, named after the dead
//! owner, may do so: of several that try one succeeds, and the lock of a living process is never
//! replaced (`docs/invariants.md`).
//!
//! | question | answer |
//! |---|---|
//! | What if the owner runs on another host, or in another container? | Its process cannot be seen, so the claim is refused, unless the user says that it is lost ([`Unseen`]). |
//! | What if somebody removed or replaced the lock meanwhile? | [`Claim::check`] before a commit reads it again and refuses. |
//! | What is left behind? | Nothing, when the claim is dropped; the lock file, when the process is killed. |
#![forbid(unsafe_code)]

mod owner;

pub use owner::{Life, Owner};

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Name of the lock file inside a claimed folder.
pub const LOCK: &str = "owner.lock";
/// Longest wait for a process that is replacing a dead owner's lock, is writing one where there are no links, or has been killed and is not
/// yet over: a launcher ends before those it has killed.
const PATIENCE: Duration = Duration::from_secs(3);

/// Result of every fallible function of this crate.
pub type Result<T> = std::result::Result<T, ClaimError>;

/// Why something cannot be claimed, or is not ours any more.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another process owns it.
    #[error("{}: another job writes here: {owner}; fix: {}", what.display(), way_out(owner, *life, lock))]
    Held {
        /// The folder or file.
        what: PathBuf,
        /// Its lock file.
        lock: PathBuf,
        /// Who.
        owner: Box<Owner>,
        /// Whether the owner's process was seen.
        life: Life,
    },
    /// The lock file is not one of this program.
    #[error(
        "{}: cannot be read as a lock file ({why}); fix: if no job writes to {}, remove it and run again", lock.display(), what.display()
    )]
    Unreadable {
        /// The folder or file.
        what: PathBuf,
        /// Its lock file.
        lock: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The claim was lost while this process ran.
    #[error(
        "{}: {}, so this job writes nothing more here; fix: see which job owns it, and resume from its newest checkpoint",
        what.display(),
        match now { Some(owner) => format!("another job has taken it over: {owner}"), None => "its lock file was removed".into() }
    )]
    Lost {
        /// The folder or file.
        what: PathBuf,
        /// Who has it now.
        now: Option<Box<Owner>>,
    },
    /// A file operation failed.
    #[error("cannot {action} {}: {source}; fix: {}", path.display(), crossweave_files::fix(source))]
    Io {
        /// A verb.
        action: &'static str,
        /// File or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

fn way_out(owner: &Owner, life: Life, lock: &Path) -> String {
    match life {
        Life::Unknown => format!(
            "wait until it has ended, or name another place; whether it still runs cannot be seen from here, so if it is over, remove {} and run again (crossweave train: --take-over)",
            lock.display()
        ),
        _ => format!(
            "wait until it has ended, end it with `kill -INT {}`, or name another place",
            owner.pid
        ),
    }
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ClaimError {
    let path = path.to_path_buf();
    move |source| ClaimError::Io {
        action,
        path,
        source,
    }
}

/// What an owner whose process cannot be seen (it is on another host, or in another container) is held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unseen {
    /// It may live: the claim is refused.
    Lives,
    /// It is lost with its host, as the user says: the claim is taken over. Should it live, it finds so by [`Claim::check`] before it
    /// writes anything more.
    IsLost,
}

/// A folder or file that is this process's own until the claim is dropped.
#[derive(Debug)]
pub struct Claim {
    what: PathBuf,
    lock: PathBuf,
    owner: Owner,
    replaced: Option<Owner>,
    /// Folders made for it, outermost first; removed with it where nothing else is in them.
    made: Vec<PathBuf>,
}

impl Claim {
    /// Claims the folder `dir`, which is created if it is not there. `job`: what this process does, for those who are refused.
    ///
    /// # Errors
    /// Another process owns it; the folder cannot be written.
    pub fn folder(dir: &Path, job: &str) -> Result<Claim> {
        Claim::folder_from(dir, job, Unseen::Lives)
    }

    /// As [`Claim::folder`], where the caller says what becomes of an owner whose process cannot be seen from here.
    ///
    /// # Errors
    /// As [`Claim::folder`].
    pub fn folder_from(dir: &Path, job: &str, unseen: Unseen) -> Result<Claim> {
        let mut tries = 0;
        loop {
            let taken = make_dirs(dir)
                .map_err(io_error("create", dir))
                .and_then(|made| match Claim::take(dir, dir.join(LOCK), job, unseen) {
                    Ok(mut claim) => {
                        claim.made = made;
                        Ok(claim)
                    }
                    Err(e) => {
                        remove_empty(&made);
                        Err(e)
                    }
                });
            // Who was there before has just left and removed the folder it had made, or who looks for what is left of the dead took a
            // folder without a lock for one of theirs.
            let gone = matches!(&taken, Err(ClaimError::Io { source, .. }) if source.kind() == ErrorKind::NotFound);
            tries += 1;
            if !gone || tries == 100 {
                return taken;
            }
        }
    }

    /// Claims the right to write the file or folder `target`, by a hidden lock file beside it. Its folder must be there.
    ///
    /// # Errors
    /// As [`Claim::folder`].
    pub fn beside(target: &Path, job: &str) -> Result<Claim> {
        let lock = hidden(target, &format!(".{LOCK}"));
        Claim::take(target, lock, job, Unseen::Lives)
    }

    fn take(what: &Path, lock: PathBuf, job: &str, unseen: Unseen) -> Result<Claim> {
        let owner = Owner::this(job);
        let replaced = acquire(what, &lock, &owner, unseen)?;
        sweep(&lock);
        Ok(Claim {
            what: what.into(),
            lock,
            owner,
            replaced,
            made: vec![],
        })
    }

    /// The owner of the folder `dir`, dead or alive, where a lock file of this program names one.
    pub fn owner_of(dir: &Path) -> Option<Owner> {
        match read(&dir.join(LOCK)) {
            Ok(Read::Owner(o)) => Some(*o),
            _ => None,
        }
    }

    /// Removes a folder that nobody has claimed and in which nothing is but what processes left that were killed while they claimed it;
    /// `false` where it stays. A process that is about to claim it makes it anew.
    pub fn remove_unclaimed(dir: &Path) -> bool {
        let Ok(entries) = std::fs::read_dir(dir) else {
            return false;
        };
        let mut attempts = vec![];
        for e in entries {
            let Ok(e) = e else { return false };
            let dead = match read(&e.path()) {
                Ok(Read::Owner(o)) => o.life() == Life::Dead,
                // It was killed while it wrote.
                Ok(Read::Other(_)) => e.file_type().is_ok_and(|t| t.is_file()),
                _ => false,
            };
            if !dead || !is_attempt(&dir.join(LOCK), &e.file_name()) {
                return false;
            }
            attempts.push(e.path());
        }
        for path in attempts {
            let _ = std::fs::remove_file(path);
        }
        std::fs::remove_dir(dir).is_ok()
    }

    /// The folder or file.
    pub fn what(&self) -> &Path {
        &self.what
    }

    /// The dead owner whose lock this claim has replaced.
    pub fn replaced(&self) -> Option<&Owner> {
        self.replaced.as_ref()
    }

    /// Is it still ours? To be asked right before a commit.
    ///
    /// # Errors
    /// The lock file is gone, or another process's.
    pub fn check(&self) -> Result<()> {
        let now = match read(&self.lock).map_err(io_error("read", &self.lock))? {
            Read::Owner(o) if o.nonce == self.owner.nonce => return Ok(()),
            Read::Owner(o) => Some(o),
            Read::Nothing | Read::Other(_) => None,
        };
        Err(ClaimError::Lost {
            what: self.what.clone(),
            now,
        })
    }

    /// Gives it up, as dropping it does: for one that a thread may keep which does not end. From then on [`Claim::check`] fails.
    pub fn release(&self) {
        // Best effort: a lock that stays is that of a dead process soon.
        if self.check().is_ok() {
            let _ = std::fs::remove_file(&self.lock);
        }
        remove_empty(&self.made);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.release();
    }
}

/// Creates `dir` and what is missing above it; returns what was created, outermost first.
fn make_dirs(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut missing = vec![];
    for d in dir.ancestors() {
        if d.as_os_str().is_empty() || d.exists() {
            break;
        }
        missing.push(d.to_path_buf());
    }
    let mut made = vec![];
    for d in missing.into_iter().rev() {
        match std::fs::create_dir(&d) {
            Ok(()) => made.push(d),
            // Another process made it, and may have removed it again: what is there in the end is looked at below.
            Err(e) if e.kind() == ErrorKind::AlreadyExists && !in_the_way(&d) => {}
            Err(e) => {
                remove_empty(&made);
                return Err(e);
            }
        }
    }
    match std::fs::metadata(dir) {
        Ok(m) if m.is_dir() => Ok(made),
        Ok(_) => Err(ErrorKind::NotADirectory.into()),
        Err(e) => Err(e),
    }
}

/// Is there something at `d` that no folder can be made of: a file, or a link that leads nowhere?
fn in_the_way(d: &Path) -> bool {
    !d.is_dir() && std::fs::symlink_metadata(d).is_ok_and(|m| !m.is_dir())
}

fn remove_empty(made: &[PathBuf]) {
    for d in made.iter().rev() {
        // One that somebody has put something into stays.
        let _ = std::fs::remove_dir(d);
    }
}

/// `.NAME` + `suffix` in the folder of `path`.
fn hidden(path: &Path, suffix: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{}{suffix}", name.trim_start_matches('.')))
}

/// What stands at a lock's name.
enum Read {
    Nothing,
    Owner(Box<Owner>),
    /// Why it is no lock file.
    Other(String),
}

/// Far more than a lock file has.
const MOST_BYTES: u64 = 1 << 16;

fn read(lock: &Path) -> io::Result<Read> {
    // A pipe at this name would be read for ever, and a link that leads nowhere is neither there nor can it be made.
    if let Ok(meta) = std::fs::symlink_metadata(lock)
        && (!meta.is_file() || meta.len() > MOST_BYTES)
    {
        return Ok(Read::Other("it is no small regular file".into()));
    }
    let text = match std::fs::read_to_string(lock) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Read::Nothing),
        // On NFS, of a file that was removed elsewhere between its name and its bytes.
        Err(e) if e.kind() == ErrorKind::StaleNetworkFileHandle => return Ok(Read::Nothing),
        Err(e) if e.kind() == ErrorKind::InvalidData => return Ok(Read::Other(e.to_string())),
        Err(e) => return Err(e),
    };
    Ok(match Owner::parse(&text) {
        Ok(owner) => Read::Owner(Box::new(owner)),
        Err(why) => Read::Other(why),
    })
}

/// Makes `lock` name `owner`; returns the dead owner it named before, if any. Protocol:
///
/// 1. Write the owner to a temporary file, sync it, link it to `lock`. Done if that succeeds.
/// 2. Otherwise judge the owner found there. Alive or not to be seen: refused. Killed and not yet over: waited for.
/// 3. Dead, or not to be seen and lost as the user says: acquire `lock`'s successor lock, named after the dead owner's nonce, by the same protocol. Only its holder may replace the
///    lock of that owner. Under it, read `lock` again; if it still names the dead owner, rename the temporary file over it. Release it.
fn acquire(what: &Path, lock: &Path, owner: &Owner, unseen: Unseen) -> Result<Option<Owner>> {
    let own = Temp::write(lock, owner)?;
    let began = Instant::now();
    loop {
        if own.link_to(lock)? {
            return Ok(None);
        }
        let late = began.elapsed() > PATIENCE;
        let there = match read(lock).map_err(io_error("read", lock))? {
            // It went between the two looks. One that keeps doing so is no lock.
            Read::Nothing if !late => continue,
            Read::Nothing => {
                return Err(ClaimError::Unreadable {
                    what: what.into(),
                    lock: lock.into(),
                    why: "the name is taken, and nothing is there".into(),
                });
            }
            Read::Owner(there) => there,
            // It may be being written, where there are no links.
            Read::Other(_) if !late => {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
            Read::Other(why) => {
                return Err(ClaimError::Unreadable {
                    what: what.into(),
                    lock: lock.into(),
                    why,
                });
            }
        };
        // The answer of a link that had succeeded was lost on its way from a file server.
        if there.nonce == owner.nonce {
            return Ok(None);
        }
        let life = there.life();
        if life == Life::Alive && !late && there.is_ending() {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        }
        let lost = life == Life::Unknown && unseen == Unseen::IsLost;
        if life != Life::Dead && !lost {
            return Err(ClaimError::Held {
                what: what.into(),
                lock: lock.into(),
                owner: there,
                life,
            });
        }
        match replace(what, lock, (&own, owner), &there, unseen) {
            Ok(true) => return Ok(Some(*there)),
            Ok(false) => {}
            // Another process is replacing it at this moment.
            Err(ClaimError::Held { .. }) if !late => std::thread::sleep(Duration::from_millis(2)),
            Err(e) => return Err(e),
        }
    }
}

/// Step 3: puts `own` in the place of a dead owner's lock; `false` where that is not there any more.
fn replace(
    what: &Path,
    lock: &Path,
    (own, owner): (&Temp, &Owner),
    dead: &Owner,
    unseen: Unseen,
) -> Result<bool> {
    let right = successor(lock, dead);
    acquire(what, &right, owner, unseen)?;
    let still = matches!(read(lock), Ok(Read::Owner(o)) if o.nonce == dead.nonce);
    let done = match still {
        true => std::fs::rename(&own.0, lock).map_err(io_error("replace", lock)),
        false => Ok(()),
    };
    let _ = std::fs::remove_file(&right);
    done.map(|()| still)
}

/// The lock whose holder may replace the lock of `dead`.
fn successor(lock: &Path, dead: &Owner) -> PathBuf {
    hidden(lock, &format!(".{:016x}-next", dead.nonce))
}

/// Is it a name under which a process writes itself down before it has `lock`?
fn is_attempt(lock: &Path, name: &OsStr) -> bool {
    let prefix = hidden(lock, ".");
    let prefix = prefix.file_name().unwrap_or_default().to_string_lossy();
    name.to_string_lossy().starts_with(&*prefix)
}

/// Older than any attempt that is under way.
const OVER: Duration = Duration::from_secs(600);

/// Removes what processes that are over have left of their attempts.
fn sweep(lock: &Path) {
    let Some(Ok(entries)) = lock.parent().map(std::fs::read_dir) else {
        return;
    };
    for e in entries.flatten() {
        if !is_attempt(lock, &e.file_name()) {
            continue;
        }
        let over = match read(&e.path()) {
            Ok(Read::Owner(o)) => o.life() == Life::Dead,
            // Its process was killed while it wrote, or writes now.
            Ok(Read::Other(_)) => e
                .metadata()
                .and_then(|m| m.modified())
                .is_ok_and(|t| t.elapsed().is_ok_and(|age| age > OVER)),
            _ => false,
        };
        if over {
            let _ = std::fs::remove_file(e.path());
        }
    }
}

/// The owner's text under a name nobody else has; removed when dropped.
struct Temp(PathBuf);

impl Temp {
    fn write(lock: &Path, owner: &Owner) -> Result<Temp> {
        let temp = Temp(hidden(lock, &format!(".{:016x}", owner.nonce)));
        put(&temp.0, &owner.to_text()).map_err(io_error("write", &temp.0))?;
        Ok(temp)
    }

    /// `false` when the name is taken.
    fn link_to(&self, lock: &Path) -> Result<bool> {
        match std::fs::hard_link(&self.0, lock) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(false),
            // A file system without links: the name is taken first and written then.
            Err(_) => {
                let text = std::fs::read_to_string(&self.0).map_err(io_error("read", &self.0))?;
                match put(lock, &text) {
                    Ok(()) => Ok(true),
                    Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(false),
                    Err(e) => Err(io_error("create", lock)(e)),
                }
            }
        }
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Writes a new file and syncs it: a lock must not be empty after a loss of power.
fn put(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    let done = file
        .write_all(text.as_bytes())
        .and_then(|()| file.sync_all());
    if done.is_err() {
        let _ = std::fs::remove_file(path);
    }
    done
}

#[cfg(test)]
mod tests;
