//! Which process owns something, and whether it still runs: process number, start time, boot and process namespace, not a number alone.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const FORMAT: &str = "crossweave owner, version 1";
/// Longest host or job in a message.
const MOST_CHARS: usize = 200;

/// A process that owns a folder or a file, as its lock file has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    format: String,
    /// What it does there.
    pub job: String,
    /// Its host's name.
    pub host: String,
    /// Its process number, in its namespace.
    pub pid: u32,
    /// When the process started, in clock ticks since the boot: field 22 of `/proc/PID/stat`.
    start_ticks: u64,
    /// `/proc/sys/kernel/random/boot_id`; empty where there is none.
    boot: String,
    /// `/etc/machine-id`; empty where there is none.
    machine: String,
    /// `/proc/self/ns/pid`: process numbers of a container mean nothing outside it.
    namespace: String,
    /// Its user: the processes of other users may be hidden.
    user: u32,
    /// When it claimed, in seconds since 1970.
    since: u64,
    /// Distinguishes this claim from every other.
    pub(crate) nonce: u64,
}

/// Whether an owner still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Its process is there.
    Alive,
    /// Its process is over, or its machine was started again since.
    Dead,
    /// It runs where this process cannot look.
    Unknown,
}

impl Owner {
    /// This process, for a new claim.
    pub(crate) fn this(job: &str) -> Owner {
        let pid = std::process::id();
        let now = now();
        // `RandomState` is seeded by the system, so that forks and threads differ too.
        let mut nonce = RandomState::new().build_hasher();
        nonce.write_u128(now.as_nanos());
        nonce.write_u32(pid);
        Owner {
            format: FORMAT.into(),
            job: job.into(),
            host: line("/proc/sys/kernel/hostname"),
            pid,
            start_ticks: stat(pid).ok().flatten().map_or(0, |s| s.start_ticks),
            boot: line("/proc/sys/kernel/random/boot_id"),
            machine: line("/etc/machine-id"),
            namespace: namespace(),
            user: user(),
            since: now.as_secs(),
            nonce: nonce.finish(),
        }
    }

    pub(crate) fn parse(text: &str) -> Result<Owner, String> {
        let owner: Owner = serde_json::from_str(text).map_err(|e| e.to_string())?;
        match owner.format == FORMAT {
            true => Ok(owner),
            false => Err(format!("format {:?}, not {FORMAT:?}", owner.format)),
        }
    }

    pub(crate) fn to_text(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Does it still run? Only a process that can be looked up here is judged: of the same boot and process namespace.
    pub fn life(&self) -> Life {
        let boot = line("/proc/sys/kernel/random/boot_id");
        if self.boot.is_empty() || boot.is_empty() {
            return Life::Unknown;
        }
        if self.boot != boot {
            // No process outlives its machine; another machine must not be taken for this one.
            let machine = line("/etc/machine-id");
            let same = !machine.is_empty()
                && (&self.machine, &self.host) == (&machine, &line("/proc/sys/kernel/hostname"));
            return if same { Life::Dead } else { Life::Unknown };
        }
        if self.namespace != namespace() {
            return Life::Unknown;
        }
        match stat(self.pid) {
            // The number was given to another process since.
            Ok(Some(s)) if s.start_ticks != self.start_ticks => Life::Dead,
            // Over, and its parent has not asked for its status. Threads that are still ending may still write.
            Ok(Some(s)) if s.zombie && s.threads <= 1 => Life::Dead,
            Ok(Some(_)) => Life::Alive,
            // /proc may be mounted so that the processes of others are not shown (hidepid).
            Ok(None) if self.user == user() || user() == 0 => Life::Dead,
            Ok(None) | Err(_) => Life::Unknown,
        }
    }

    /// Has its process been killed, or is it ending, and is still there? Of one that [`Owner::life`] calls alive: it soon is not.
    pub(crate) fn is_ending(&self) -> bool {
        matches!(stat(self.pid), Ok(Some(s)) if s.ending && s.start_ticks == self.start_ticks)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = now().as_secs().saturating_sub(self.since);
        let ago = match seconds {
            0..120 => format!("{seconds} s"),
            120..7200 => format!("{} min", seconds / 60),
            7200..172_800 => format!("{} h", seconds / 3600),
            _ => format!("{} days", seconds / 86_400),
        };
        let (host, job) = (printable(&self.host), printable(&self.job));
        write!(f, "process {} on {host} ({job}), since {ago} ago", self.pid)
    }
}

/// Text of a lock file for a message: one short line, whatever stands in the file.
fn printable(text: &str) -> String {
    let safe = |c: char| if c.is_control() { ' ' } else { c };
    crossweave_files::clip(&text.chars().map(safe).collect::<String>(), MOST_CHARS)
}

fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// A one-line file; empty where it cannot be read.
fn line(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.trim().to_string()
}

fn namespace() -> String {
    let link = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    link.to_string_lossy().into_owned()
}

#[cfg(unix)]
fn user() -> u32 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").map_or(u32::MAX, |m| m.uid())
}

#[cfg(not(unix))]
fn user() -> u32 {
    u32::MAX
}

struct Stat {
    start_ticks: u64,
    zombie: bool,
    ending: bool,
    threads: u64,
}

/// `PF_EXITING` of the kernel's flags of a task.
const EXITING: u64 = 4;
/// SIGKILL in a set of signals.
const KILL: u64 = 1 << 8;

/// A process by its number; `None` where there is none.
fn stat(pid: u32) -> Result<Option<Stat>, String> {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(text) => parse_stat(&text).map(Some).ok_or(text),
        // The second is what reading gives when the process ends between open and read (ESRCH).
        Err(e) if e.kind() == std::io::ErrorKind::NotFound || e.raw_os_error() == Some(3) => {
            Ok(None)
        }
        Err(e) => Err(e.to_string()),
    }
}

/// proc_pid_stat(5). The name, in brackets, may hold anything, brackets and spaces included.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(')')?;
    // The first of these is field 3.
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |field: usize| -> Option<u64> { fields.get(field - 3)?.parse().ok() };
    Some(Stat {
        zombie: matches!(*fields.first()?, "Z" | "X"),
        // Flags, and the signals that wait for it.
        ending: number(9)? & EXITING != 0 || number(31).unwrap_or(0) & KILL != 0,
        threads: number(20)?,
        start_ticks: number(22)?,
    })
}

#[cfg(test)]
impl Owner {
    /// The owner of a process that is over: this one's number, started at another time.
    pub(crate) fn dead(nonce: u64) -> Owner {
        Owner {
            start_ticks: 1,
            nonce,
            ..Owner::this("a job that was killed")
        }
    }

    /// A process of this machine.
    pub(crate) fn of(pid: u32) -> Owner {
        let start_ticks = stat(pid).unwrap().unwrap().start_ticks;
        Owner {
            pid,
            start_ticks,
            ..Owner::this("train")
        }
    }

    /// One on a machine that cannot be looked at.
    pub(crate) fn elsewhere() -> Owner {
        Owner {
            boot: "another boot".into(),
            host: "node7".into(),
            ..Owner::this("train")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_number_start_boot_and_namespace() {
        let me = Owner::this("test");
        assert_eq!(me.life(), Life::Alive);
        assert_eq!(Owner::parse(&me.to_text()).unwrap(), me);
        let with = |f: &dyn Fn(&mut Owner)| {
            let mut o = me.clone();
            f(&mut o);
            o.life()
        };
        // The number was given again.
        assert_eq!(with(&|o| o.start_ticks += 1), Life::Dead);
        // No process has this number: the largest is 4 194 304.
        assert_eq!(with(&|o| o.pid = 4_194_305), Life::Dead);
        assert_eq!(with(&|o| o.namespace = "pid:[1]".into()), Life::Unknown);
        assert_eq!(
            with(&|o| o.boot = "another".into()),
            match me.machine.is_empty() {
                true => Life::Unknown,
                false => Life::Dead,
            }
        );
        let other = |o: &mut Owner| (o.boot, o.host) = ("another".into(), "node7".into());
        assert_eq!(with(&other), Life::Unknown);
        assert_eq!(with(&|o| o.boot.clear()), Life::Unknown);
    }

    #[test]
    fn a_zombie_is_dead_and_one_that_was_waited_for_too() {
        // This program again, which has nothing to do.
        let me = std::env::current_exe().unwrap();
        let mut nothing = std::process::Command::new(me);
        nothing.args(["--list", "--exact", "none"]);
        let mut child = nothing.stdout(std::process::Stdio::null()).spawn().unwrap();
        let owner = Owner::of(child.id());
        let began = std::time::Instant::now();
        while owner.life() == Life::Alive {
            assert!(began.elapsed() < Duration::from_secs(120));
        }
        assert_eq!(owner.life(), Life::Dead);
        child.wait().unwrap();
        assert_eq!(owner.life(), Life::Dead);
    }

    #[test]
    fn names_with_brackets_do_not_move_the_fields() {
        let text = "7 (a) b (c)) Z 1 7 7 0 -1 4194304 99 0 0 0 0 0 0 0 20 0 1 0 68812 0";
        let s = parse_stat(text).unwrap();
        assert_eq!((s.start_ticks, s.threads, s.zombie), (68812, 1, true));
        assert!(!s.ending && parse_stat("7 (a").is_none());
        assert!(
            parse_stat(&text.replace("4194304", "4194308"))
                .unwrap()
                .ending
        );
        let killed = format!("{text} 0 0 0 0 0 0 0 256");
        assert!(parse_stat(&killed).unwrap().ending);
    }
}
