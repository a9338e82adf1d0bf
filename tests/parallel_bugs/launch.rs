//! Programs as children: on threads of one child, or as processes under the launchers of both MPI families. A child that hangs is ended,
//! and fails.

use crate::parallel_bugs::bug::{Bug, Right, Verdict};
use crate::parallel_bugs::judge::WHERE;
use crossweave_tests::system::{Signal, send_if_there};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Names the program a child is to run.
const PROGRAM: &str = "CW_CORPUS_PROGRAM";
/// Set where each rank is a process.
const PROCESS: &str = "CW_CORPUS_FAMILY";
/// A child that has not ended by then hangs, on any machine. The ranks' own timeout ([`crate::parallel_bugs::world::LONG`]) is longer, so that no verdict
/// comes of it.
const HUNG: Duration = Duration::from_secs(300);

/// The program this process is to run as a child.
pub fn asked() -> Option<String> {
    std::env::var(PROGRAM).ok()
}

/// Is this process one rank of several?
pub fn family() -> Option<String> {
    std::env::var(PROCESS).ok()
}

/// The launchers there are.
pub fn families() -> Vec<&'static str> {
    crossweave_tests::tools::mpi_families()
}

/// One program to run, and what is expected of it.
pub struct Run {
    /// Its name.
    pub name: &'static str,
    /// What must be said; nothing of a right program.
    pub verdict: Option<&'static Verdict>,
    /// The launcher of its processes; `None`: on threads.
    pub family: Option<&'static str>,
    ranks: u32,
}

/// What came of it.
pub struct Ended {
    /// Exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Everything it said.
    pub text: String,
    /// It had to be ended.
    pub hung: bool,
}

impl Run {
    /// A bug on threads.
    pub fn on_threads(b: &'static Bug) -> Run {
        Run {
            name: b.name,
            verdict: Some(&b.verdict),
            family: None,
            ranks: b.ranks,
        }
    }
    /// A bug in processes.
    pub fn under(family: &'static str, b: &'static Bug) -> Run {
        Run {
            family: Some(family),
            ..Run::on_threads(b)
        }
    }
    /// A right program on threads.
    pub fn right_on_threads(r: &'static Right) -> Run {
        Run {
            name: r.name,
            verdict: None,
            family: None,
            ranks: r.ranks,
        }
    }
    /// A right program in processes.
    pub fn right_under(family: &'static str, r: &'static Right) -> Run {
        Run {
            family: Some(family),
            ..Run::right_on_threads(r)
        }
    }

    /// For messages.
    pub fn title(&self) -> String {
        let place = self.family.unwrap_or("threads");
        format!("{} on {} ({place})", self.name, self.ranks)
    }

    fn command(&self) -> Command {
        let me = std::env::current_exe().expect("this program");
        let mut c = match self.family {
            None => Command::new(&me),
            Some(family) => {
                let mut c = Command::new(format!("mpirun.{family}"));
                // What a launcher puts around this test must not be taken for the child's.
                c.env_clear();
                for name in ["PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH"] {
                    if let Some(v) = std::env::var_os(name) {
                        c.env(name, v);
                    }
                }
                match family {
                    "openmpi" => {
                        c.args(["--allow-run-as-root", "--oversubscribe"]);
                        // No network is asked for, and waiting ranks leave the cores to the others.
                        c.env("OMPI_MCA_btl", "self,vader")
                            .env("OMPI_MCA_mpi_yield_when_idle", "1")
                            // One second is what it leaves survivors to say who died, too little on a busy machine.
                            .env("OMPI_MCA_odls_base_sigkill_timeout", "4");
                    }
                    // Else the launcher may end the survivors before they have said who died.
                    _ => {
                        c.arg("-disable-auto-cleanup");
                    }
                }
                c.env(PROCESS, family);
                c.args(["-n", &self.ranks.to_string()]).arg(&me);
                c
            }
        };
        c.env(PROGRAM, self.name).env("RUST_BACKTRACE", "0");
        c.args([
            "parallel_bugs::child",
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ]);
        c.stdin(Stdio::null());
        c
    }

    /// Runs it to its end. MPICH's launcher sometimes ends all ranks the moment a signal ends one, whatever its options: then nobody has
    /// said where that met it, and it is run again.
    pub fn run(&self) -> Ended {
        let silenced = |e: &Ended| {
            let killed = e.text.contains("(signal ");
            self.family == Some("mpich") && killed && !e.text.contains(WHERE)
        };
        let mut ended = self.once();
        for _ in 0..9 {
            if !silenced(&ended) {
                break;
            }
            ended = self.once();
        }
        ended
    }

    fn once(&self) -> Ended {
        // A file takes what is printed however much it is, and whichever process still has it open.
        let said = tempfile::tempfile().expect("a file");
        let clone = || Stdio::from(said.try_clone().expect("a file"));
        let mut command = self.command();
        command.stdout(clone()).stderr(clone());
        let mut child = command.spawn().expect("the child starts");
        let began = Instant::now();
        let status = loop {
            match child.try_wait().expect("the child is ours") {
                Some(status) => break Some(status),
                None if began.elapsed() > HUNG => {
                    // A launcher ends its ranks when it is asked to; killed, it would leave them behind.
                    send_if_there(Signal::SIGTERM, child.id());
                    std::thread::sleep(Duration::from_secs(2));
                    let _ = child.kill();
                    let _ = child.wait();
                    break None;
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let mut text = String::new();
        let mut said = said;
        std::io::Seek::rewind(&mut said).expect("a file");
        let mut bytes = vec![];
        std::io::Read::read_to_end(&mut said, &mut bytes).expect("a file");
        text.push_str(&String::from_utf8_lossy(&bytes));
        Ended {
            code: status.and_then(|s| s.code()),
            hung: status.is_none(),
            text,
        }
    }
}

/// Programs at a time that compute.
pub const BUSY: usize = 3;
/// Programs at a time that are waited for: Open MPI's launcher takes seconds to end behind a rank that failed.
pub const WAITING: usize = 7;

/// Runs all of them, so many at a time, and says what came of each in their order.
pub fn run(runs: Vec<Run>, at_once: usize) -> Vec<(Run, Ended)> {
    let queue = Mutex::new(runs.into_iter().enumerate());
    let done = Mutex::new(vec![]);
    let next = || queue.lock().expect("nobody panics here").next();
    std::thread::scope(|s| {
        for _ in 0..at_once {
            s.spawn(|| {
                while let Some((i, run)) = next() {
                    let ended = run.run();
                    done.lock()
                        .expect("nobody panics here")
                        .push((i, run, ended));
                }
            });
        }
    });
    let mut all = done.into_inner().expect("nobody panics here");
    all.sort_by_key(|(i, _, _)| *i);
    all.into_iter()
        .map(|(_, run, ended)| (run, ended))
        .collect()
}
