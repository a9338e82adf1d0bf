//! A job of several processes, each started by a launcher as one rank: how they meet, agree, hear of each other's failures, and end.
//!
//! Rank 0 prints and writes; the others are heard only when they fail. A rank that fails says so itself and tells the others, who stop
//! and name it; one that dies is noticed by the end of its connection to the job's store.

use crate::backend;
use crate::error::{CliError, Result};
use crate::handshake;
use crate::ranks::Ranks;
use crossweave_config::Resolved;
use crossweave_hal::loader::{find, load};
use crossweave_hal::{Board, Carrier, HostServices, KvStore, Plugin};
use crossweave_mesh::{JobStore, LateStore, Launch, PeerFailure, detect, meet, seats};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// For processes that a launcher starts at about the same time.
const MEETING: Duration = Duration::from_secs(120);
/// Rank 0 may turn a large text into tokens while the others wait.
const PREPARING: Duration = Duration::from_secs(24 * 3600);
/// For what every rank does at the same time.
const TOGETHER: Duration = Duration::from_secs(600);
/// How long a rank that has nothing to say leaves the one that has.
const LAST_WORDS: Duration = Duration::from_millis(700);
/// A rank that hears of another's failure stops by itself within this time, or is ended.
const GRACE: Duration = Duration::from_secs(10);
/// How long the news of a death may take after its consequences.
const NEWS: Duration = Duration::from_millis(500);

/// This process among those of its job.
pub struct Processes {
    /// Its place.
    pub launch: Launch,
    /// Carries the collectives.
    pub carrier: Carrier,
    /// Reaches every rank.
    pub store: JobStore,
    /// Where the processes of this host check each other.
    pub board: Board,
    plugin: Plugin,
}

impl Processes {
    /// Meets the other processes, if a launcher started this one as one of several. `ranks`: what `--ranks` asks for.
    ///
    /// # Errors
    /// Launcher variables that contradict themselves or `--ranks`; no MPI; processes that do not come.
    pub fn join(ranks: Option<&Ranks>) -> Result<Option<Processes>> {
        let launch = detect(|name| std::env::var(name).ok());
        let launch = launch.map_err(|e| {
            CliError::refused(e.to_string(), "start the job with mpirun, srun or torchrun")
        })?;
        let Some(launch) = launch.filter(|l| l.world > 1) else {
            return Ok(None);
        };
        let rank = launch.rank;
        Processes::check(&launch, ranks).map_err(|e| match rank {
            0 => e,
            _ => {
                std::thread::sleep(LAST_WORDS);
                CliError::Elsewhere { code: 1 }
            }
        })?;
        Processes::meet(launch).map(Some).map_err(|e| {
            if rank > 0 {
                // What keeps all ranks from meeting is said once: rank 0's end ends the others through the launcher.
                std::thread::sleep(Duration::from_secs(1));
            }
            if e.is_silent() {
                return e;
            }
            CliError::on_rank(rank, e)
        })
    }

    /// Contradictions that every rank sees alike.
    fn check(launch: &Launch, ranks: Option<&Ranks>) -> Result<()> {
        if let Some(Ranks::Parts(parts)) = ranks
            && (parts.len(), parts[0].count) != (1, 1)
        {
            let what = "--ranks names several ranks for each of the processes, and a process is one rank between processes";
            return Err(CliError::refused(
                format!(
                    "{what}: {} has started {}",
                    launch.launcher.name(),
                    launch.world
                ),
                "start a process for each rank: `mpirun -n 2 crossweave train C --backend cpu : -n 1 crossweave train C --plugin PATH`",
            ));
        }
        let count = match ranks {
            Some(Ranks::Count(n)) => Some(*n),
            _ => None,
        };
        if let Some(n) = count.filter(|n| *n != launch.world) {
            return Err(CliError::refused(
                format!(
                    "--ranks {n}: {} has started {} processes, and each is one rank",
                    launch.launcher.name(),
                    launch.world
                ),
                format!("drop --ranks, or start {n} processes"),
            ));
        }
        Ok(())
    }

    fn meet(launch: Launch) -> Result<Processes> {
        let late = LateStore::default();
        let mut host = HostServices::builder()
            .log(|level, target, message| {
                if level <= 2 {
                    eprintln!("{target}: {message}");
                }
            })
            .kv(Arc::new(late.clone()));
        if let Some(family) = launch.launcher.family() {
            host = host.config("mpi.family", family);
        }
        if let Some((address, port)) = &launch.master {
            // No launcher of MPI has started these: rank 0 connects them.
            let var = |name: &str| std::env::var(name).unwrap_or_default();
            let (run, restart) = (
                var("TORCHELASTIC_RUN_ID"),
                var("TORCHELASTIC_RESTART_COUNT"),
            );
            let key = format!("{address}:{port}/{}/{run}/{restart}", launch.world);
            host = host
                .config("mpi.meet", format!("{address}:{port}"))
                .config("mpi.meet_rank", launch.rank.to_string())
                .config("mpi.meet_size", launch.world.to_string())
                .config("mpi.meet_key", key)
                .config("mpi.meet_timeout_s", MEETING.as_secs().to_string());
        }
        if let Ok(path) = std::env::var("CROSSWEAVE_MPI_LIBRARY") {
            host = host.config("mpi.library", path);
        }
        let path = find("mpi", &backend::plugin_dirs()).map_err(|e| {
            CliError::refused(
                format!(
                    "{} has started {} processes, and the plugin that connects them is missing: {e}",
                    launch.launcher.name(),
                    launch.world
                ),
                "build it (cargo build --release builds all plugins), or set CROSSWEAVE_PLUGIN_PATH to its folder",
            )
        })?;
        let plugin = Plugin::new(load(&path, &host.build())?);
        let carrier = Carrier::open(&plugin)?;
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let store = meet(&carrier, &launch, name.trim(), MEETING)?;
        late.bind(store.clone());
        let board = seats(&store, launch.rank, launch.world, name.trim(), MEETING);
        // A rank that has failed meanwhile is why they do not meet, and says so itself.
        let board = board.map_err(|e| match store.failure() {
            Some(f) => CliError::peer(launch.rank, &f, None),
            None => e.into(),
        })?;
        Ok(Processes {
            launch,
            carrier,
            store,
            board,
            plugin,
        })
    }

    /// Is this the rank that prints and writes?
    pub fn first(&self) -> bool {
        self.launch.rank == 0
    }

    /// The folder rank 0 writes to, once it is prepared: it goes first, so that files all ranks need are made once.
    ///
    /// # Errors
    /// Rank 0 has failed.
    pub fn folder(&self) -> Result<PathBuf> {
        let name = self.store.get("prepared", Some(PREPARING))?;
        Ok(PathBuf::from(String::from_utf8_lossy(&name).into_owned()))
    }

    /// Every rank is prepared, and for the same run.
    ///
    /// # Errors
    /// A rank that failed, or one of another build or with another config: which, and in what it differs.
    pub fn agree(&self, out: &Path, config: &Resolved) -> Result<()> {
        if self.first() {
            let out = out.to_string_lossy();
            self.store.set("prepared", out.as_bytes())?;
        }
        let own = handshake::record(config);
        let all = self.gather("config", &own, PREPARING)?;
        match handshake::differences(&all) {
            None => Ok(()),
            Some(what) => Err(CliError::refused(
                what,
                "give every process the same program, config file, flags and number of cores",
            )),
        }
    }

    /// Rank 0's `value` on every rank; what the others give is not looked at.
    ///
    /// # Errors
    /// A rank 0 that has failed or does not come.
    pub fn tell(&self, what: &str, value: &[u8], timeout: Duration) -> Result<Vec<u8>> {
        if self.first() {
            self.store.set(what, value)?;
            return Ok(value.to_vec());
        }
        Ok(self.store.get(what, Some(timeout))?)
    }

    /// On rank 0 every rank's `value`, in rank order; nothing elsewhere.
    ///
    /// # Errors
    /// A rank that has failed or does not come.
    pub fn gather(&self, what: &str, value: &[u8], timeout: Duration) -> Result<Vec<Vec<u8>>> {
        self.store
            .set(&format!("{what}/{}", self.launch.rank), value)?;
        let mut all = vec![];
        if self.first() {
            for rank in 0..self.launch.world {
                all.push(self.store.get(&format!("{what}/{rank}"), Some(timeout))?);
            }
        }
        Ok(all)
    }

    /// Rank 0 has written and printed everything; `code` is the exit code of all.
    ///
    /// # Errors
    /// Rank 0 cannot be told from dead.
    pub fn done(&self, code: u8) -> Result<()> {
        if self.first() {
            return Ok(self.store.set("done", &[code])?);
        }
        match self.store.get("done", Some(PREPARING))?.first() {
            Some(0) | None => Ok(()),
            Some(code) => Err(CliError::Elsewhere { code: *code }),
        }
    }

    /// Waits for every rank's ledger on rank 0.
    ///
    /// # Errors
    /// As [`Processes::gather`].
    pub fn ledgers(&self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.gather("ledger", own, TOGETHER)
    }

    /// Has another rank failed? Asked after a failure of our own, which may be only the first thing we see of it.
    pub fn cause(&self) -> Option<PeerFailure> {
        let began = std::time::Instant::now();
        loop {
            if let Some(f) = self.store.failure() {
                return Some(f);
            }
            if began.elapsed() > NEWS {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// When another rank has failed: says so at once, because launchers leave survivors a second at most, calls `tell` with what is
    /// left to say (nothing), and ends this process if it does not end by itself.
    pub fn watch(&self, tell: impl Fn(CliError) + Send + 'static) {
        let rank = self.launch.rank;
        let board = self.board.clone();
        self.store.on_failure(move |f| {
            let e = CliError::peer(rank, f, board.last_call(f.rank));
            if !e.is_silent() {
                eprintln!("error: {e}");
            }
            tell(CliError::Elsewhere { code: 1 });
            let words = f.to_string();
            // A thread that cannot start leaves the launcher to end us.
            let _ = std::thread::Builder::new()
                .name("last resort".into())
                .spawn(move || {
                    std::thread::sleep(GRACE);
                    eprintln!("error: rank {rank} did not stop by itself: {words}");
                    std::process::exit(1);
                });
        });
    }

    /// The end of the job on this rank: orderly, so that the launcher knows, or by telling the others what went wrong.
    ///
    /// # Errors
    /// What was given, as this rank says it.
    pub fn end(self, result: Result<()>) -> Result<()> {
        let rank = self.launch.rank;
        match (result, self.store.failure()) {
            (end @ (Ok(()) | Err(CliError::Stopped { .. } | CliError::Elsewhere { .. })), None) => {
                self.store.farewell(TOGETHER)?;
                drop(self.carrier);
                self.plugin.shutdown()?;
                end
            }
            // `watch` has said it. The rank that failed may still be speaking, and launchers end every process when the first one ends.
            (Err(CliError::Elsewhere { code }), Some(_)) => {
                std::thread::sleep(LAST_WORDS);
                Err(CliError::Elsewhere { code })
            }
            (_, Some(f)) => {
                let e = CliError::peer(rank, &f, self.board.last_call(f.rank));
                if e.is_silent() {
                    std::thread::sleep(LAST_WORDS);
                }
                Err(e)
            }
            (Err(e), None) => {
                // Said before the others know, since their end may be ours.
                let words = e.to_string();
                let e = CliError::on_rank(rank, e);
                if !e.is_silent() {
                    eprintln!("error: {e}");
                }
                self.store.report(&words);
                let code = e.exit_code();
                Err(CliError::Elsewhere { code })
            }
        }
    }
}
