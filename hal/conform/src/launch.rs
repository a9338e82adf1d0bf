//! How children are started: one process, one for each rank, or by a launcher of a cluster; and how they are stopped.

use crate::child::{Job, Line, MARK};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Who starts the ranks of cases about communicators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Launcher {
    /// Threads of the child.
    Threads,
    /// One process each, started by the kit.
    Fork,
    /// One process each, started by `mpirun`.
    Mpirun,
    /// One process each, started by `srun`.
    Slurm,
}

impl Launcher {
    /// As the command line spells it.
    pub fn name(self) -> &'static str {
        match self {
            Launcher::Threads => "threads",
            Launcher::Fork => "fork",
            Launcher::Mpirun => "mpirun",
            Launcher::Slurm => "slurm",
        }
    }
}

/// What begins the command line of a child: the program and its hidden subcommand.
#[derive(Clone, Debug)]
pub struct Program {
    /// The executable.
    pub path: PathBuf,
    /// Arguments before the job's file.
    pub args: Vec<String>,
    /// The launcher's command, in place of `mpirun` or `srun`.
    pub launcher: Option<String>,
}

/// How a child ended.
#[derive(Clone, Debug)]
pub(crate) enum Ended {
    /// By itself.
    Itself {
        /// In words.
        status: String,
        /// As a child ends that has nothing to complain of.
        well: bool,
    },
    /// It said nothing for too long and was stopped.
    Late,
}

/// Children at work.
pub(crate) struct Running {
    children: Vec<Child>,
    lines: Receiver<Line>,
    errors: Arc<Mutex<Vec<u8>>>,
    /// While these are open the children know that the kit lives.
    _inputs: Vec<ChildStdin>,
    _files: tempfile::TempDir,
}

/// Bytes of the error output that are kept.
const TAIL: usize = 2000;
/// How often the children are looked at while they say nothing.
const LOOK: Duration = Duration::from_millis(100);
/// What the others may still say when one of them has fallen.
const GRACE: Duration = Duration::from_secs(5);

impl Running {
    /// Starts a job.
    ///
    /// # Errors
    /// What the system or the launcher's absence says.
    pub(crate) fn start(
        program: &Program,
        launcher: Launcher,
        job: &Job,
    ) -> Result<Running, String> {
        let n = job.team.as_ref().map_or(1, |t| t.0);
        let cluster = job.team.is_some() && matches!(launcher, Launcher::Mpirun | Launcher::Slurm);
        // Ranks of a cluster meet in a folder that all hosts see; the current one usually is.
        let files = match (cluster, launcher) {
            (true, Launcher::Slurm) => tempfile::Builder::new().prefix(".conform-").tempdir_in("."),
            _ => tempfile::tempdir(),
        };
        let files = files.map_err(|e| format!("no folder for a child's job: {e}"))?;
        let mut commands = Vec::new();
        let write = |name: &str, job: &Job| -> Result<PathBuf, String> {
            let at = files.path().join(name);
            let text = serde_json::to_vec(job).map_err(|e| e.to_string())?;
            std::fs::write(&at, text).map_err(|e| format!("{}: {e}", at.display()))?;
            std::path::absolute(&at).map_err(|e| e.to_string())
        };
        let mut job = job.clone();
        if let Some(team) = &mut job.team {
            let meet = files.path().join("meet");
            std::fs::create_dir(&meet).map_err(|e| e.to_string())?;
            team.1 = std::path::absolute(&meet).map_err(|e| e.to_string())?;
        }
        if cluster {
            let at = write("job.json", &job)?;
            let default = match launcher {
                Launcher::Slurm => "srun",
                _ => "mpirun",
            };
            let mut c = Command::new(program.launcher.as_deref().unwrap_or(default));
            c.args(["-n", &n.to_string()]);
            if launcher == Launcher::Slurm {
                c.arg("--mpi=pmix");
            } else {
                // Ranks of a test share cores, and containers run as root: both are this test's business and nobody else's.
                c.env("OMPI_ALLOW_RUN_AS_ROOT", "1")
                    .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
                    .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
                    .env("OMPI_MCA_mpi_yield_when_idle", "1")
                    .env("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");
            }
            c.arg(&program.path).args(&program.args).arg(&at);
            commands.push(c);
        } else {
            for rank in 0..n {
                if job.team.is_some() {
                    job.rank = Some(rank);
                }
                let at = write(&format!("job-{rank}.json"), &job)?;
                let mut c = Command::new(&program.path);
                c.args(&program.args).arg(at);
                commands.push(c);
            }
        }
        let (tx, lines) = channel();
        let errors = Arc::new(Mutex::new(Vec::new()));
        let mut children = Vec::new();
        let mut inputs = Vec::new();
        for (i, mut c) in commands.into_iter().enumerate() {
            c.stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            let mut child = match c.spawn() {
                Ok(c) => c,
                Err(e) => {
                    children.iter_mut().for_each(end);
                    return Err(format!("{}: {e}", c.get_program().to_string_lossy()));
                }
            };
            if let Some(mut input) = child.stdin.take() {
                // One that has ended already is noticed by its silence.
                let _ = input.write_all(b"\n");
                inputs.push(input);
            }
            if let Some(out) = child.stdout.take() {
                let tx = tx.clone();
                let errors = errors.clone();
                std::thread::spawn(move || {
                    let mut out = BufReader::new(out);
                    let mut text = Vec::new();
                    while out.read_until(b'\n', &mut text).is_ok_and(|n| n > 0) {
                        let line = String::from_utf8_lossy(&text);
                        match line.find(MARK) {
                            Some(at) => {
                                let told = serde_json::from_str(line[at + MARK.len()..].trim());
                                if let (Ok(l), true) = (told, i == 0)
                                    && tx.send(l).is_err()
                                {
                                    return;
                                }
                            }
                            None => keep(&errors, &text),
                        }
                        text.clear();
                    }
                });
            }
            if let Some(mut err) = child.stderr.take() {
                let errors = errors.clone();
                std::thread::spawn(move || {
                    let mut buf = [0u8; 4096];
                    while let Ok(n) = err.read(&mut buf) {
                        if n == 0 {
                            return;
                        }
                        keep(&errors, &buf[..n]);
                    }
                });
            }
            children.push(child);
        }
        Ok(Running {
            children,
            lines,
            errors,
            _inputs: inputs,
            _files: files,
        })
    }

    /// The next line, or how the child ended without one. While a case runs no rank has anything to end for.
    pub(crate) fn next(&mut self, within: Duration, in_case: bool) -> Result<Line, Ended> {
        let until = Instant::now() + within;
        let mut fallen: Option<(Instant, String)> = None;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left.min(LOOK)) {
                Ok(l) => return Ok(l),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(self.leave(Duration::from_secs(20)));
                }
                Err(RecvTimeoutError::Timeout) if left <= LOOK => {
                    self.stop();
                    return Err(Ended::Late);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            // The other ranks of one that has crashed would wait for it until the case's limit.
            if fallen.is_none() {
                fallen = self.fallen(in_case).map(|s| (Instant::now(), s));
            }
            if let Some((since, status)) = &fallen
                && since.elapsed() > GRACE
            {
                let (status, well) = (status.clone(), false);
                self.stop();
                return Err(Ended::Itself { status, well });
            }
        }
    }

    /// One of several that has ended, badly or (with `any`) at all.
    fn fallen(&mut self, any: bool) -> Option<String> {
        let several = self.children.len() > 1;
        let mut each = self.children.iter_mut().enumerate().filter(|_| several);
        each.find_map(|(rank, c)| match c.try_wait() {
            Ok(Some(s)) if any || !s.success() => Some(format!("rank {rank}: {}", status_text(s))),
            _ => None,
        })
    }

    /// Waits for the end, and stops who does not come to it.
    pub(crate) fn leave(&mut self, within: Duration) -> Ended {
        let until = Instant::now() + within;
        let several = self.children.len() > 1;
        let mut worst: Option<(usize, ExitStatus)> = None;
        for (rank, c) in self.children.iter_mut().enumerate() {
            loop {
                match c.try_wait() {
                    Ok(Some(s)) => {
                        if worst.is_none_or(|w| w.1.success()) {
                            worst = Some((rank, s));
                        }
                        break;
                    }
                    Ok(None) if Instant::now() < until => {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                    _ => {
                        end(c);
                        return Ended::Late;
                    }
                }
            }
        }
        match worst {
            Some((rank, s)) => Ended::Itself {
                status: match several {
                    true => format!("rank {rank}: {}", status_text(s)),
                    false => status_text(s),
                },
                well: s.success(),
            },
            None => Ended::Late,
        }
    }

    /// Ends all children now.
    pub(crate) fn stop(&mut self) {
        self.children.iter_mut().for_each(end);
    }

    /// The last lines of what the children wrote to their error output.
    pub(crate) fn errors(&self) -> String {
        // The reader may be a moment behind the end of the process.
        std::thread::sleep(Duration::from_millis(20));
        let e = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&e);
        let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(3)..].join(" | ")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

fn keep(errors: &Mutex<Vec<u8>>, bytes: &[u8]) {
    let mut e = errors.lock().unwrap_or_else(PoisonError::into_inner);
    e.extend_from_slice(bytes);
    if e.len() > TAIL {
        let cut = e.len() - TAIL;
        e.drain(..cut);
    }
}

/// Asks first: a launcher ends its ranks when it is asked, and leaves them behind when it is killed.
fn end(c: &mut Child) {
    if matches!(c.try_wait(), Ok(Some(_))) {
        return;
    }
    #[cfg(unix)]
    {
        // SAFETY: a child of ours that has not been waited for, so the id is still its own.
        unsafe { libc::kill(c.id() as libc::pid_t, libc::SIGTERM) };
        for _ in 0..1000 {
            if matches!(c.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    // It may have ended meanwhile.
    let _ = c.kill();
    let _ = c.wait();
}

/// "signal 11 (SIGSEGV)" or "exit status 3".
fn status_text(s: ExitStatus) -> String {
    #[cfg(unix)]
    {
        use std::os::unix::process::ExitStatusExt;
        if let Some(n) = s.signal() {
            let name = match n {
                libc::SIGSEGV => "SIGSEGV",
                libc::SIGABRT => "SIGABRT",
                libc::SIGBUS => "SIGBUS",
                libc::SIGILL => "SIGILL",
                libc::SIGFPE => "SIGFPE",
                libc::SIGKILL => "SIGKILL",
                libc::SIGTERM => "SIGTERM",
                _ => "another signal",
            };
            return format!("signal {n} ({name})");
        }
    }
    format!("exit status {}", s.code().unwrap_or(-1))
}

/// The job in a file a parent has written.
///
/// # Errors
/// A file that is not there or is no job.
pub fn read_job(path: &Path) -> Result<Job, String> {
    let text = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    serde_json::from_slice(&text).map_err(|e| format!("{}: {e}", path.display()))
}
