//! Seeded exploration of thread schedules (PCT, Burckhardt et al. 2010; loom): every interleaving that a seed stands for can
//! be run again, so that a failure is found once and then replayed.
//!
//! A program is a closure that every rank runs on a thread of its own. Under a schedule exactly one thread of the job runs at
//! a time, and the turn passes only in calls of the device: after an enqueue, before a stream's next command, in every wait.
//! What a program does wrong only when a copy is late or a rank is early, it does wrong under some seed, whatever the load of
//! the machine. When no thread can run, that is a deadlock, and it is reported at once with what each thread waits for.
//!
//! The back end controls the order (`NAME.schedule`, read when a device is opened), so this works for any back end that knows
//! the key, linked or loaded. Ranks that wait for each other outside the device wait through [`Rank`]'s store or
//! [`Rank::pass`]; any other wait would keep the turn, and is named after two minutes.

use crate::comm::{Bootstrap, CommOptions, Communicator};
use crate::device::{Device, Plugin};
use crate::error::{Code, Error, Result};
use crate::host::{HostServices, KvStore, LocalKv};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How the next thread is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Each runs until it waits, then the next in order; the seed plays no part.
    Fifo,
    /// Drawn at every point; in three seeds of four some threads are drawn rarely.
    Random,
    /// Probabilistic concurrency testing: priorities that change `depth - 1` times.
    Pct(u32),
}

impl Order {
    /// As a plugin reads it.
    fn key(self, seed: u64) -> String {
        match self {
            Order::Fifo => "fifo".into(),
            Order::Random => format!("random:{seed}"),
            Order::Pct(depth) => format!("pct:{depth}:{seed}"),
        }
    }
}

impl std::fmt::Display for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Order::Fifo => f.write_str("fifo"),
            Order::Random => f.write_str("random"),
            Order::Pct(depth) => write!(f, "pct:{depth}"),
        }
    }
}

impl std::str::FromStr for Order {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Order, String> {
        let depth = |t: &str| t.parse().ok().filter(|d| (1..=64).contains(d));
        match text.split_once(':') {
            None if text == "fifo" => Ok(Order::Fifo),
            None if text == "random" => Ok(Order::Random),
            Some(("pct", d)) if depth(d).is_some() => Ok(Order::Pct(depth(d).unwrap_or(1))),
            _ => Err(format!(
                "{text:?} is none of fifo, random and pct:DEPTH (1 to 64)"
            )),
        }
    }
}

/// What a schedule did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Decisions made.
    pub points: u64,
    /// Decisions that changed who runs.
    pub switches: u64,
    /// The hash of the sequence of decisions: equal for equal sequences.
    pub hash: u64,
    /// The deadlock in which it ended, if it did.
    pub verdict: Option<String>,
}

impl Account {
    fn of(device: &Device) -> Result<Account> {
        let text = device.attr("schedule")?;
        let text = String::from_utf8_lossy(&text);
        let mut a = Account::default();
        for (key, value) in text.lines().filter_map(|l| l.split_once(' ')) {
            let number = |radix| u64::from_str_radix(value, radix).unwrap_or(0);
            match key {
                "points" => a.points = number(10),
                "switches" => a.switches = number(10),
                "hash" => a.hash = number(16),
                "verdict" => a.verdict = Some(value.into()),
                _ => {}
            }
        }
        Ok(a)
    }
}

/// One rank of a program under a schedule.
pub struct Rank {
    rank: u32,
    ranks: u32,
    device: Device,
    kv: Arc<LocalKv>,
}

impl Rank {
    /// This rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }
    /// Ranks of the program.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }
    /// Its device. No clone of it may outlive the program: while a device is open its rank takes part.
    pub fn device(&self) -> &Device {
        &self.device
    }
    /// Gives the turn away once: the body of a loop that waits for another rank outside the device.
    ///
    /// # Errors
    /// The schedule has ended in a deadlock: nobody will come.
    pub fn pass(&self) -> Result<()> {
        self.device.pass_turn().map(|_| ())
    }
    /// The group of all ranks under `name`.
    ///
    /// # Errors
    /// As [`Communicator::new`].
    pub fn communicator(&self, name: &str) -> Result<Communicator> {
        let options = CommOptions {
            name: name.into(),
            timeout: None,
        };
        Communicator::new(&self.device, self, self.rank, self.ranks, &options)
    }
}

impl Bootstrap for Rank {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.kv.set(key, value)
    }
    /// Waits in turns, not in time: who waits for a key that nobody sets is in a deadlock.
    fn get(&self, key: &str, _: Duration) -> Result<Vec<u8>> {
        loop {
            match self.kv.get(key, Some(Duration::ZERO)) {
                Err(e) if e.code == Code::Timeout => self
                    .pass()
                    .map_err(|e| e.context(format!("waiting for {key:?}")))?,
                done => return done,
            }
        }
    }
}

/// A program's run under one schedule.
#[derive(Debug)]
pub struct Played<T> {
    /// The seed.
    pub seed: u64,
    /// How it was used.
    pub order: Order,
    /// What each rank returned; a panic is an error with its text.
    pub ranks: Vec<std::result::Result<T, String>>,
    /// The rank that failed first, in the schedule's order.
    pub first: Option<u32>,
    /// What the schedule did.
    pub account: Account,
    /// The last collective each rank asked for, with where and for what.
    pub last: Vec<Option<String>>,
}

impl<T> Played<T> {
    /// The failure of this run: a deadlock, or the first rank's.
    pub fn failure(&self) -> Option<Found> {
        let why = match (&self.account.verdict, self.first) {
            (Some(v), _) => v.clone() + &self.last_calls(),
            (None, Some(r)) => match &self.ranks[r as usize] {
                Err(e) => format!("rank {r}: {e}"),
                Ok(_) => return None,
            },
            (None, None) => return None,
        };
        Some(self.found(why))
    }

    /// The back end that reports a deadlock knows no call sites; the records do.
    fn last_calls(&self) -> String {
        let calls = self.last.iter().enumerate();
        let one = |(r, call): (usize, &Option<String>)| {
            let call = call.as_ref()?;
            Some(format!("; rank {r}'s last call was {call}"))
        };
        calls.filter_map(one).collect()
    }

    /// A failure that is seen from outside, as one of this run.
    pub fn found(&self, why: String) -> Found {
        Found {
            seed: self.seed,
            order: self.order,
            switches: self.account.switches,
            why,
        }
    }
}

/// A schedule under which a program fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The seed that gives it.
    pub seed: u64,
    /// How the seed is used.
    pub order: Order,
    /// Switches until the end.
    pub switches: u64,
    /// What went wrong.
    pub why: String,
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Found {
            seed,
            order,
            switches,
            why,
        } = self;
        write!(
            f,
            "seed {seed}, schedule {order}, switch #{switches}: {why}"
        )
    }
}
impl std::error::Error for Found {}

/// Runs programs of several ranks under schedules.
///
/// ```no_run
/// # fn example(plugin: crossweave_hal::Plugin, host: crossweave_hal::HostServices) -> Result<(), Box<dyn std::error::Error>> {
/// use crossweave_hal::explore::Explorer;
/// let explorer = Explorer::new(&plugin, &host, 2);
/// explorer.explore(0..200, |rank| rank.communicator("dp").map(drop))?;
/// # Ok(()) }
/// ```
pub struct Explorer {
    plugin: Plugin,
    host: HostServices,
    ranks: u32,
    order: Order,
}

impl Explorer {
    /// Over devices of `plugin`; `host` are the services it was opened with (the first of its process, whose configuration it reads).
    /// No other device of the plugin may be opened while a run begins.
    pub fn new(plugin: &Plugin, host: &HostServices, ranks: u32) -> Explorer {
        Explorer {
            plugin: plugin.clone(),
            host: host.clone(),
            ranks: ranks.max(1),
            order: Order::Random,
        }
    }

    /// How the next thread is chosen; [`Order::Random`] unless said otherwise.
    pub fn order(mut self, order: Order) -> Explorer {
        self.order = order;
        self
    }

    /// Runs `program` under the schedule of one seed.
    ///
    /// # Errors
    /// The devices cannot be opened, or the back end knows no schedules. What the program does wrong is in [`Played`].
    pub fn play<T: Send, E: std::fmt::Display>(
        &self,
        seed: u64,
        program: impl Fn(&Rank) -> std::result::Result<T, E> + Sync,
    ) -> Result<Played<T>> {
        let devices = self.open(seed)?;
        let kv = Arc::new(LocalKv::default());
        let first = Mutex::new(None);
        let run = |rank: u32, device: Device| {
            let rank = Rank {
                rank,
                ranks: self.ranks,
                device,
                kv: kv.clone(),
            };
            let end = catch_unwind(AssertUnwindSafe(|| {
                // The first call waits until every rank is here: whatever the program does, it does under the schedule.
                rank.pass().map_err(|e| e.to_string())?;
                program(&rank).map_err(|e| e.to_string())
            }));
            let end = end.unwrap_or_else(|p| Err(panic_text(p)));
            if end.is_err() {
                let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
                first.get_or_insert(rank.rank);
            }
            // The device is closed at the end of this, which gives the turn on for good.
            let last = rank.device.0.watch.last_call();
            (end, last, Account::of(&rank.device))
        };
        let ends: Vec<_> = std::thread::scope(|scope| {
            let run = &run;
            let spawn = |(rank, device): (usize, Device)| {
                let named = std::thread::Builder::new().name(format!("rank {rank}"));
                named.spawn_scoped(scope, move || run(rank as u32, device))
            };
            let threads: Vec<_> = devices.into_iter().enumerate().map(spawn).collect();
            threads
                .into_iter()
                .map(|t| match t.map(|t| t.join()) {
                    Ok(Ok(end)) => end,
                    Ok(Err(p)) => (Err(panic_text(p)), None, Ok(Account::default())),
                    Err(e) => (
                        Err(format!("cannot start a thread: {e}")),
                        None,
                        Ok(Account::default()),
                    ),
                })
                .collect()
        });
        let mut played = Played {
            seed,
            order: self.order,
            ranks: vec![],
            first: first.into_inner().unwrap_or_else(PoisonError::into_inner),
            account: Account::default(),
            last: vec![],
        };
        for (r, (end, last, account)) in ends.into_iter().enumerate() {
            if end.is_err() {
                played.first.get_or_insert(r as u32);
            }
            played.ranks.push(end);
            played.last.push(last);
            let account = account?;
            // The last to end has seen the most.
            if account.points >= played.account.points {
                played.account = account;
            }
        }
        Ok(played)
    }

    /// Runs `program` under each seed until one makes it fail. Answers the number of seeds under which it held.
    ///
    /// # Errors
    /// The first failure, or devices that cannot be opened.
    pub fn explore<T: Send, E: std::fmt::Display>(
        &self,
        seeds: impl IntoIterator<Item = u64>,
        program: impl Fn(&Rank) -> std::result::Result<T, E> + Sync,
    ) -> std::result::Result<u64, Found> {
        let mut held = 0;
        for seed in seeds {
            let failure = match self.play(seed, &program) {
                Ok(played) => played.failure(),
                Err(e) => Some(Found {
                    seed,
                    order: self.order,
                    switches: 0,
                    why: e.to_string(),
                }),
            };
            if let Some(f) = failure {
                return Err(f);
            }
            held += 1;
        }
        Ok(held)
    }

    /// The devices of one run, opened while the back end's configuration says so.
    fn open(&self, seed: u64) -> Result<Vec<Device>> {
        let key = |what: &str| format!("{}.{what}", self.plugin.name());
        let set = |what: &str, value: Option<String>| self.host.set_config(key(what), value);
        let before = set("schedule", Some(self.order.key(seed)));
        let ranks = set("schedule_ranks", Some(self.ranks.to_string()));
        let count = self.plugin.device_count().map(|n| n.max(1));
        let devices = count.and_then(|n| {
            (0..self.ranks)
                .map(|r| self.plugin.open(r % n))
                .collect::<Result<Vec<_>>>()
        });
        set("schedule", before);
        set("schedule_ranks", ranks);
        let devices = devices?;
        for d in &devices {
            d.0.watch.in_turns();
            Account::of(d).map_err(|_| {
                Error::new(
                    Code::Unsupported,
                    "explore",
                    format!(
                        "back end {} keeps no schedules: it does not know {}, or another host of this process configures it",
                        self.plugin.name(),
                        key("schedule")
                    ),
                )
            })?;
        }
        Ok(devices)
    }
}

fn panic_text(p: Box<dyn std::any::Any + Send>) -> String {
    let text = p
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| p.downcast_ref::<&str>().map(|m| m.to_string()));
    // Its destructor could panic again.
    std::mem::forget(p);
    text.unwrap_or_else(|| "panicked without a message".into())
}
