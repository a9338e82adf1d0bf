//! A job of several processes, each started by a launcher as one rank or, by its `--ranks`, as several: how they meet, agree, hear of each
//! other's failures, and end.
//!
//! Rank 0 prints and writes; the others are heard only when they fail. A process that fails says so itself and notifies the others, which stop
//! and name the rank; one that dies is noticed by the end of its connection to the job's store, and all its ranks are named.

use crate::backend;
use crate::events::{Event, Events};
use crate::handshake;
use crate::ranks::{Ranks, rank_words};
use crate::roll::Roll;
use crate::surroundings::Surroundings;
use crate::train_error::{Result, TrainError};
use crossweave_config::Resolved;
use crossweave_hal::loader::{find, load};
use crossweave_hal::{Carrier, CheckerState, HostName, HostServices, KvStore, Plugin, interfaces};
use crossweave_mesh::spread::HostRanks;
use crossweave_mesh::{
    Host, Interface, JobStore, LateStore, Launch, PeerFailure, ProcessMap, checker_state, detect,
    rendezvous, this_host,
};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// For processes that a launcher starts at about the same time.
const MEETING: Duration = Duration::from_secs(120);
/// Rank 0 may turn a large text into tokens while the others wait.
const PREPARING: Duration = Duration::from_secs(24 * 3600);
/// For what every rank does at the same time.
const TOGETHER: Duration = Duration::from_secs(600);
/// How long a rank that has nothing to say leaves the one that has.
const LAST_WORDS: Duration = Duration::from_millis(700);
/// The lead of the line of the rank that fails over those of the ranks that hear of it.
const FIRST: Duration = Duration::from_millis(30);
/// What all processes of a host take to say that another one has died.
const MOMENT: Duration = Duration::from_millis(1);
/// A rank that hears of another's failure stops by itself within this time, or is ended.
const GRACE: Duration = Duration::from_secs(10);
/// How long the news of a death may take after its consequences.
const NEWS: Duration = Duration::from_millis(500);

/// What a process says of itself when they meet.
#[derive(Debug, Serialize, Deserialize)]
struct Card {
    /// Its machine's name.
    host: String,
    /// What distinguishes its machine from others of that name.
    machine: String,
    /// Its ranks, by the names of `--ranks`; one without a name where that names none.
    parts: Vec<(String, u32)>,
    /// What `--ranks` says, where it is a number: ranks of the whole job.
    asked: Option<u32>,
}

impl Card {
    fn of(host: &HostName, ranks: Option<&Ranks>) -> Card {
        let (parts, asked) = match ranks {
            None => (vec![(String::new(), 1)], None),
            Some(Ranks::Count(n)) => (vec![(String::new(), 1)], Some(*n)),
            Some(Ranks::Parts(parts)) => {
                let each = parts.iter().map(|p| (p.name.clone(), p.count));
                (each.collect(), None)
            }
        };
        Card {
            host: host.name.clone(),
            machine: host.identity.clone(),
            parts,
            asked,
        }
    }

    /// Ranks of a name, or of all.
    fn count(&self, name: Option<&str>) -> u32 {
        let hit = |p: &&(String, u32)| name.is_none_or(|n| p.0 == n);
        self.parts.iter().filter(hit).map(|p| p.1).sum()
    }
}

/// This process among those of its job.
pub struct Processes {
    /// Its place.
    pub launch: Launch,
    /// Which ranks the processes are.
    pub process_map: ProcessMap,
    cards: Vec<Card>,
    /// Carries the collectives.
    pub carrier: Carrier,
    /// Reaches every rank.
    pub store: JobStore,
    /// Where the processes of this host check each other.
    pub board: CheckerState,
    plugin: Plugin,
    voice: Voice,
}

/// By which the ranks of a process tell the others why they fail. Clones share it.
#[derive(Clone)]
pub struct Voice {
    store: JobStore,
    events: Arc<dyn Events>,
    /// Why this process fails has been reported.
    told: Arc<AtomicBool>,
    /// And the others have been notified.
    notified: Arc<AtomicBool>,
}

impl Voice {
    /// Has a rank of another process failed? Asked after a failure of our own, which may be only the first thing we see of it.
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

    /// Prints why this process fails, unless that is done. Called as soon as it is known: saves in flight, records and traces are
    /// completed afterwards, which may take long.
    pub fn print_failure(&self, error: &str) {
        if !self.told.swap(true, SeqCst) {
            self.events.on(Event::Failed(error));
        }
    }

    /// Prints why rank `rank` of this process has failed, and notifies the other processes: `error` as it is shown, `words` as the others
    /// receive them, with whether something was lost ([`TrainError::is_lost`]). Launchers end this process once the others have ended.
    pub fn report(&self, rank: u32, error: &str, (words, lost): (&str, bool)) {
        if !self.notified.swap(true, SeqCst) {
            if !self.told.load(SeqCst) {
                self.print_failure(error);
                // On its way before the others pass it on: the rank that knows comes first.
                std::thread::sleep(FIRST);
            }
            self.store.report(rank, words, lost);
        }
    }
}

impl Processes {
    /// Meets the other processes, if a launcher started this one as one of several. `ranks`: what `--ranks` asks for; `interface`: where they are
    /// to reach one another, if that is said (`run.interface`).
    ///
    /// # Errors
    /// Launcher variables that contradict themselves or `--ranks`; no MPI; processes that do not come.
    pub fn join(
        ranks: Option<&Ranks>,
        interface: &[String],
        around: &Surroundings,
        events: &Arc<dyn Events>,
    ) -> Result<Option<Processes>> {
        let launch = detect(|name| around.variable(name));
        let launch = launch.map_err(|e| TrainError::refused(e.to_string(), e.fix()))?;
        let Some(launch) = launch.filter(|l| l.world > 1) else {
            return Ok(None);
        };
        let process = launch.rank;
        if let Some((what, fix)) = launch.unconnected(|name| around.variable(name)) {
            // All see it alike; the first says it.
            return Err(match process {
                0 => TrainError::refused(what, fix),
                _ => TrainError::Elsewhere { code: 1 },
            });
        }
        let name = this_host();
        let interface = match interface {
            [] => None,
            asked => {
                let found = Interface::find(asked, &name.name, &interfaces());
                Some(found.map_err(|e| TrainError::refused(e.what, e.fix))?)
            }
        };
        let host = Host {
            name: &name.name,
            interface: interface.as_ref(),
        };
        let met = Processes::rendezvous(launch, ranks, host, around, events);
        met.map(Some).map_err(|e| {
            if process > 0 {
                // What keeps the processes from meeting is said once: the first one's end ends the others through the launcher.
                std::thread::sleep(Duration::from_secs(1));
            }
            if process == 0 || e.is_silent() {
                return e;
            }
            TrainError::Of {
                whom: format!("process {process}"),
                source: Box::new(e),
            }
        })
    }

    /// Contradictions that every process sees alike.
    fn check(launch: &Launch, process_map: &ProcessMap, cards: &[Card]) -> Result<()> {
        let wrong = |c: &Card| c.asked.filter(|n| *n != process_map.world());
        let Some(n) = cards.iter().find_map(wrong) else {
            return Ok(());
        };
        let each = match n % launch.world {
            0 => n / launch.world,
            _ => 2,
        };
        let (ranks, fix) = match process_map.is_single() {
            true => (
                "each is one rank".to_string(),
                format!(
                    "drop --ranks; or start {n} processes; or name the back end of several ranks in each process: --ranks cpu:{each}"
                ),
            ),
            false => (
                format!("they are {} ranks by the others' --ranks", process_map.world()),
                "drop --ranks for one rank in this process, or name a back end with them: --ranks cpu:2".to_string(),
            ),
        };
        Err(TrainError::refused(
            format!(
                "--ranks {n}: {} has started {} processes, and {ranks}; a number is the ranks of the whole job",
                launch.launcher.name(),
                launch.world
            ),
            fix,
        ))
    }

    fn rendezvous(
        launch: Launch,
        ranks: Option<&Ranks>,
        on: Host<'_>,
        around: &Surroundings,
        events: &Arc<dyn Events>,
    ) -> Result<Processes> {
        let plugins = &around.plugins;
        let late = LateStore::default();
        let mut host = HostServices::builder()
            .log(plugins.log.sink())
            .kv(Arc::new(late.clone()))
            .config("mpi.host", this_host().identity);
        if let Some(family) = launch.launcher.family() {
            host = host.config("mpi.family", family);
        }
        if let Some(interface) = on.interface {
            host = host.config("mpi.interface", interface.names.join(","));
        }
        if let Some((address, port)) = &launch.master {
            // No launcher of MPI has started these: rank 0 connects them.
            let var = |name: &str| around.variable(name).unwrap_or_default();
            let (run, restart) = (
                var("TORCHELASTIC_RUN_ID"),
                var("TORCHELASTIC_RESTART_COUNT"),
            );
            // The size is not compared here: a process that has another one gets an error that says so.
            let key = format!("{address}:{port}/{run}/{restart}");
            host = host
                .config("mpi.meet", format!("{address}:{port}"))
                .config("mpi.meet_rank", launch.rank.to_string())
                .config("mpi.meet_size", launch.world.to_string())
                .config("mpi.meet_key", key)
                .config("mpi.meet_timeout_s", MEETING.as_secs().to_string());
        }
        for (key, value) in backend::plugin_options(plugins) {
            host = host.config(key, value);
        }
        if let Some(path) = plugins.mpi.as_deref().and_then(OsStr::to_str) {
            host = host.config("mpi.library", path);
        }
        let path = find("mpi", &plugins.folders).map_err(|e| {
            TrainError::refused(
                format!(
                    "{} has started {} processes, and the plugin that connects them is missing: {e}",
                    launch.launcher.name(),
                    launch.world
                ),
                "build it (cargo plugins --release builds all of them), or set CROSSWEAVE_PLUGIN_PATH to its folder",
            )
        })?;
        let plugin = Plugin::new(load(&path, &host.build())?);
        // The first call of the library waits for every process, without a limit.
        let roll = Roll::call(&launch, MEETING, events);
        let carrier = Carrier::open(&plugin)?;
        let name = this_host();
        // Of each machine one process says it.
        let note = |what: &str| {
            if launch.local_rank == 0 {
                let note = format!("{what}; the other addresses of that host are tried");
                events.on(Event::Note(&note));
            }
        };
        let store = rendezvous(&carrier, &launch, on, MEETING, note)?;
        drop(roll);
        late.bind(store.clone());
        let sit = || -> Result<_> {
            let (process_map, cards) = Processes::cards(&store, &launch, &Card::of(&name, ranks))?;
            store.know(&process_map);
            Processes::check(&launch, &process_map, &cards)?;
            let board = checker_state(&store, &process_map, &name, MEETING)?;
            events.on(Event::Met(Some(process_map.here())));
            Ok((process_map, cards, board))
        };
        // A process that has failed meanwhile is why they do not meet, and says so itself.
        let (process_map, cards, board) =
            sit().map_err(|e| match (store.failure(), launch.rank) {
                (Some(f), rank) => TrainError::peer(rank..rank + 1, &f, None),
                (None, 0) => {
                    store.report(0, &e.to_string(), e.is_lost());
                    e
                }
                // All processes see the same contradictions: the first one reports them.
                (None, _) if e.is_refused() => TrainError::Elsewhere { code: 1 },
                (None, _) => e,
            })?;
        Ok(Processes {
            launch,
            process_map,
            cards,
            carrier,
            voice: Voice {
                events: events.clone(),
                store: store.clone(),
                told: Arc::default(),
                notified: Arc::default(),
            },
            store,
            board,
            plugin,
        })
    }

    /// Everybody's card.
    fn cards(store: &JobStore, launch: &Launch, own: &Card) -> Result<(ProcessMap, Vec<Card>)> {
        let broken = |e: serde_json::Error| {
            let what = format!("a process says what it is in words of another version: {e}");
            TrainError::refused(what, "run the same build in every process")
        };
        let own = serde_json::to_vec(own).map_err(broken)?;
        let place = (launch.rank, launch.world);
        let all = ProcessMap::call(store, "ranks", place, &own, MEETING)?;
        let read = |bytes: &Vec<u8>| serde_json::from_slice(bytes).map_err(broken);
        let cards: Vec<Card> = all.iter().map(read).collect::<Result<_>>()?;
        let counts: Vec<u32> = cards.iter().map(|c| c.count(None)).collect();
        Ok((ProcessMap::new(launch.rank, &counts), cards))
    }

    /// Is this the process whose first rank prints and writes?
    pub fn first(&self) -> bool {
        self.launch.rank == 0
    }

    /// The ranks of this process.
    pub fn here(&self) -> Range<u32> {
        self.process_map.here()
    }

    /// The machines of the job, each once.
    pub fn hosts(&self) -> Vec<String> {
        let mut all: Vec<&Card> = vec![];
        for c in &self.cards {
            if !c.host.is_empty() && all.iter().all(|o| o.machine != c.machine) {
                all.push(c);
            }
        }
        all.into_iter().map(|c| c.host.clone()).collect()
    }

    /// Ranks on this machine.
    pub fn crowd(&self) -> u32 {
        match self.process_map.is_single() {
            true => self.launch.local_size,
            false => self.cards.iter().map(|c| self.near(c, None)).sum(),
        }
    }

    /// The first device of a process whose `--ranks` names no back end.
    pub fn device(&self) -> u32 {
        match self.process_map.is_single() {
            true => self.launch.local_rank,
            false => self.earlier(None),
        }
    }

    /// Ranks of a back end on this machine in processes before this one: those take its first devices.
    pub fn before(&self, name: &str) -> u32 {
        self.earlier(Some(name))
    }

    fn earlier(&self, name: Option<&str>) -> u32 {
        let earlier = &self.cards[..self.launch.rank as usize];
        earlier.iter().map(|c| self.near(c, name)).sum()
    }

    fn near(&self, card: &Card, name: Option<&str>) -> u32 {
        let here = card.machine == self.cards[self.launch.rank as usize].machine;
        if here { card.count(name) } else { 0 }
    }

    /// What every process says under a name, in their order, on all of them.
    ///
    /// # Errors
    /// A process that has failed or does not come.
    pub fn call(&self, what: &str, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let place = (self.launch.rank, self.launch.world);
        Ok(ProcessMap::call(&self.store, what, place, own, PREPARING)?)
    }

    /// The folder rank 0 writes to, once it is prepared: it goes first, so that files all ranks need are made once.
    ///
    /// # Errors
    /// Rank 0 has failed.
    pub fn folder(&self) -> Result<PathBuf> {
        let name = self.store.get("prepared", Some(PREPARING))?;
        Ok(PathBuf::from(String::from_utf8_lossy(&name).into_owned()))
    }

    /// Every rank is prepared, and for the same run, from the same step on.
    ///
    /// # Errors
    /// A rank that failed, or one of another build or with another config: which, and in what it differs.
    pub fn agree(&self, out: &Path, config: &Resolved, step: u64) -> Result<()> {
        if self.first() {
            let out = out.to_string_lossy();
            self.store.set("prepared", out.as_bytes())?;
        }
        let own = handshake::record(config, step);
        let all = self.gather("config", &own, PREPARING)?;
        match handshake::differences(&all, &self.process_map) {
            None => Ok(()),
            Some(what) => Err(TrainError::refused(
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

    /// On rank 0 every process's `value`, in their order; nothing elsewhere.
    ///
    /// # Errors
    /// A rank that has failed or does not come.
    pub fn gather(&self, what: &str, value: &[u8], timeout: Duration) -> Result<Vec<Vec<u8>>> {
        self.store
            .set(&format!("{what}/{}", self.launch.rank), value)?;
        let mut all = vec![];
        if self.first() {
            for process in 0..self.launch.world {
                all.push(
                    self.store
                        .get(&format!("{what}/{process}"), Some(timeout))?,
                );
            }
        }
        Ok(all)
    }

    /// Rank 0 has written and printed everything; `code` is the exit code of all.
    ///
    /// # Errors
    /// Rank 0 cannot be distinguished from a dead one.
    pub fn done(&self, code: u8) -> Result<()> {
        if self.first() {
            return Ok(self.store.set("done", &[code])?);
        }
        match self.store.get("done", Some(PREPARING))?.first() {
            Some(0) | None => Ok(()),
            Some(code) => Err(TrainError::Elsewhere { code: *code }),
        }
    }

    /// Waits for every process's ledgers on rank 0.
    ///
    /// # Errors
    /// As [`Processes::gather`].
    pub fn ledgers(&self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.gather("ledger", own, TOGETHER)
    }

    /// By which its ranks speak and hear.
    pub fn voice(&self) -> Voice {
        self.voice.clone()
    }

    /// When another process has failed: says so at once, because launchers leave survivors a second at most, calls `tell` with what is
    /// left to say (nothing), and ends this process if it does not end by itself.
    pub fn watch(&self, tell: impl Fn(TrainError) + Send + Sync + 'static) {
        let here = self.here();
        let (board, told) = (self.board.clone(), self.voice.told.clone());
        let events = self.voice.events.clone();
        let tell = Arc::new(tell);
        self.store.on_failure(move |f| {
            let e = TrainError::peer(here.clone(), f, last_calls(&board, f));
            if !e.is_silent() {
                told.store(true, SeqCst);
                events.on(Event::Failed(&e.to_string()));
            }
            let elsewhere = TrainError::elsewhere;
            let (whom, words, failure) = (rank_words(&here), f.to_string(), f.clone());
            let (rest, stuck) = (tell.clone(), events.clone());
            // On another thread, and after a moment: writing records takes milliseconds of a core that another process of the host may need to speak.
            let last = std::thread::Builder::new()
                .name("last resort".into())
                .spawn(move || {
                    std::thread::sleep(MOMENT);
                    rest(elsewhere(&failure));
                    std::thread::sleep(GRACE);
                    stuck.on(Event::Stuck(&format!(
                        "{whom} did not stop in time: {words}"
                    )));
                });
            if last.is_err() {
                // The launcher is left to end us.
                tell(elsewhere(f));
            }
        });
    }

    /// Holds the collectives of ranks on different hosts against each other from time to time, which no call does: in half the time that one
    /// waits for another (`timeout`, in seconds), and every 10 s at least.
    pub fn compare(&self, timeout: f64) {
        let pause = Duration::from_secs_f64((timeout / 2.0).clamp(0.5, 10.0));
        let board = self.board.clone();
        if !self.first() {
            return;
        }
        let thread = std::thread::Builder::new().name("compare".into());
        // Where no thread can be had, a difference is found when somebody waits.
        let _ = thread.spawn(move || {
            while board.compare() {
                std::thread::sleep(pause);
            }
        });
    }

    /// The host of each process, and the process's ranks.
    pub fn ranks_by_host(&self) -> Vec<HostRanks> {
        let hosts = (0..).zip(&self.cards);
        let of = |(p, c): (u32, &Card)| (c.machine.clone(), c.host.clone(), self.process_map.of(p));
        hosts.map(of).collect()
    }

    /// Watches over the processes of other hosts from now on: who gives no sign of life for so many seconds has failed. 0 watches nobody.
    pub fn heartbeat(&self, seconds: f64) {
        let hosts: Vec<_> = self
            .cards
            .iter()
            .map(|c| (c.machine.clone(), c.host.clone()))
            .collect();
        // What is beyond any clock is for ever.
        if let Some(limit) = Duration::try_from_secs_f64(seconds)
            .ok()
            .filter(|l| !l.is_zero())
        {
            self.store.heartbeat(limit, &hosts);
        }
    }

    /// The end of the job in this process: orderly, so that the launcher knows, or by telling the others what went wrong.
    ///
    /// # Errors
    /// What was given, as this process says it.
    pub fn end(self, result: Result<()>) -> Result<()> {
        let here = self.here();
        match (result, self.store.failure()) {
            (
                end @ (Ok(()) | Err(TrainError::Stopped { .. } | TrainError::Elsewhere { .. })),
                None,
            ) => {
                self.store.farewell(TOGETHER)?;
                drop(self.carrier);
                self.plugin.shutdown()?;
                end
            }
            // `watch` has said it. The rank that failed may still be speaking, and launchers end every process when the first one ends.
            (Err(TrainError::Elsewhere { code }), Some(_)) => {
                std::thread::sleep(LAST_WORDS);
                Err(TrainError::Elsewhere { code })
            }
            (_, Some(f)) if self.voice.told.load(SeqCst) => {
                std::thread::sleep(LAST_WORDS);
                Err(TrainError::elsewhere(&f))
            }
            (_, Some(f)) => {
                let e = TrainError::peer(here, &f, last_calls(&self.board, &f));
                if e.is_silent() {
                    std::thread::sleep(LAST_WORDS);
                }
                Err(e)
            }
            (Err(e), None) => {
                // Said before the others know, since their end may be ours.
                let (rank, words) = match &e {
                    TrainError::OnRank { rank, source } => (*rank, source.to_string()),
                    e => (here.start, e.to_string()),
                };
                // What no rank has met by itself is of them all; the first process speaks for the job.
                let of_all = here.len() > 1 && !self.first();
                let e = match of_all && !matches!(e, TrainError::OnRank { .. }) {
                    true => TrainError::Of {
                        whom: rank_words(&here),
                        source: Box::new(e),
                    },
                    false => TrainError::on_rank(rank, e),
                };
                if !e.is_silent() {
                    let lost = e.is_lost();
                    self.voice.report(rank, &e.to_string(), (&words, lost));
                }
                let code = e.exit_code();
                Err(TrainError::Elsewhere { code })
            }
        }
    }
}

/// The end of a process that may be the only one of its job.
///
/// # Errors
/// As [`Processes::end`].
pub fn ended(processes: Option<Processes>, result: Result<()>) -> Result<()> {
    match processes {
        Some(p) => p.end(result),
        None => result,
    }
}

/// Where the checker has seen the ranks of a failed process last.
fn last_calls(board: &CheckerState, f: &PeerFailure) -> Option<String> {
    let one = |rank: u32| {
        let call = board.last_call(rank)?;
        Some(match f.ranks.len() {
            1 => call,
            _ => format!("rank {rank}: {call}"),
        })
    };
    let all: Vec<String> = f.ranks.clone().filter_map(one).collect();
    (!all.is_empty()).then(|| all.join("; "))
}
