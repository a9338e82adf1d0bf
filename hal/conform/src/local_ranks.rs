//! Ranks: threads of this process that keep their communicator from case to case, or one process each under a launcher. A case gives a
//! body that every rank runs, and gets every rank's answer, whichever way they were started.

use crate::case::Check;
use crate::child::panicked;
use crate::ctx::{Ctx, Rig, SOON};
use crate::raw::{Comm, Joining};
use crossweave_hal::{Code, Error, KvStore};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// What one rank's body found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    /// Was the cell claimed?
    pub claimed: bool,
    /// In words.
    pub note: String,
    /// A digest of what must be the same on all ranks.
    pub digest: Vec<u64>,
    /// Results, where the judge wants to see them.
    pub bits: Vec<u8>,
}

/// One rank.
pub struct Rank {
    /// Which.
    pub rank: u32,
    /// The number of ranks.
    pub n: u32,
    /// Its communicator; `None` in bodies that make their own.
    pub comm: Option<Comm>,
    /// Its device and stream.
    pub rig: Rig,
    /// What the ranks exchange words through.
    pub kv: Arc<dyn KvStore>,
    /// Begins every key of this case.
    pub scope: String,
    /// Are the ranks threads of one process?
    pub threads: bool,
    /// Has a launcher started them, as one world?
    pub launched: bool,
    /// One of them has failed: nobody waits for the others any more.
    over: Arc<AtomicBool>,
}

impl Rank {
    /// Runs a body. A rank that fails ends the wait of the others: their communicators are aborted, here those of all ranks
    /// (threads of one process), elsewhere by each process that learns of it.
    fn run(
        &self,
        ranks: &[Rank],
        body: &(dyn Fn(&Rank) -> Result<Answer, String> + Sync),
    ) -> Result<Answer, String> {
        let answer = catch_unwind(AssertUnwindSafe(|| body(self)));
        let answer = answer.unwrap_or_else(|p| Err(panicked(p)));
        if answer.is_err() && !self.over.swap(true, SeqCst) {
            // The other processes learn of it.
            let _ = self.kv.set(&format!("{}over", self.scope), b"x");
            ranks.iter().for_each(|r| r.rig.dev.abort_all());
        }
        answer
    }

    /// Waits beside a body until it is done, for a word that another process has failed.
    fn watch(&self, done: &AtomicBool) {
        let key = format!("{}over", self.scope);
        while !done.load(SeqCst) {
            if self.kv.get(&key, Some(Duration::ZERO)).is_ok() && !self.over.swap(true, SeqCst) {
                self.rig.dev.abort_all();
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The communicator.
    ///
    /// # Errors
    /// When the body was started without one.
    pub fn comm(&self) -> Result<&Comm, String> {
        self.comm
            .as_ref()
            .ok_or_else(|| "no communicator was made for this case".into())
    }

    /// A fresh communicator of all ranks, under a name of its own.
    ///
    /// # Errors
    /// The plugin's, in words.
    pub fn join(&self, name: &str, timeout: Duration) -> Result<Comm, String> {
        let scope = format!("{}{name}/", self.scope);
        join(&self.rig, &*self.kv, &scope, self.rank, self.n, timeout)
    }

    /// Waits until every rank has come here.
    ///
    /// # Errors
    /// When one does not.
    pub fn meet(&self, name: &str) -> Result<(), String> {
        let mine = format!("{}{name}/{}", self.scope, self.rank);
        self.kv.set(&mine, b"x").map_err(|e| e.to_string())?;
        let end = Instant::now() + 2 * SOON;
        for r in 0..self.n {
            let key = format!("{}{name}/{r}", self.scope);
            while let Err(e) = self.kv.get(&key, Some(Duration::from_millis(50))) {
                if self.over.load(SeqCst) {
                    return Err(format!("{FAILED}, and nobody waits at `{name}`"));
                }
                if Instant::now() > end {
                    return Err(format!("rank {r} did not come to `{name}`: {e}"));
                }
            }
        }
        Ok(())
    }
}

/// Begins what a rank says that has stopped because of another.
const FAILED: &str = "another rank has failed";

/// Timeout of communicators of usual cases.
pub const COMM_TIMEOUT: Duration = Duration::from_secs(20);

/// Joins all ranks: rank 0 makes the id, the others get it through the store.
pub(crate) fn join(
    rig: &Rig,
    kv: &dyn KvStore,
    scope: &str,
    rank: u32,
    n: u32,
    timeout: Duration,
) -> Result<Comm, String> {
    let key = format!("{scope}id");
    let id = if rank == 0 {
        let id = rig.dev.unique_id()?;
        kv.set(&key, &id).map_err(|e| e.to_string())?;
        id
    } else {
        kv.get(&key, Some(SOON)).map_err(|e| e.to_string())?
    };
    let prefix = format!("{scope}comm/");
    let cfg = Joining {
        rank,
        nranks: n,
        timeout,
        prefix: &prefix,
        name: "kit",
    };
    let comm = rig.dev.join(&id, &cfg)?;
    let end = Instant::now() + SOON.max(timeout);
    while !comm.health()? {
        if Instant::now() > end {
            return Err("comm_async_error still says NOT_READY".into());
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(comm)
}

/// The devices of ranks.
struct Places {
    devices: Vec<u32>,
    /// Collectives want one for each rank (attribute `collective.shares_device` is `no`).
    apart: bool,
}

/// Communicators kept from case to case, by number of ranks.
#[derive(Default)]
pub(crate) struct RankThreads {
    places: Option<Arc<Places>>,
    idle: BTreeMap<u32, Vec<Rank>>,
    made: u64,
}

/// This process as one of several.
pub(crate) struct Team {
    pub(crate) rank: u32,
    pub(crate) n: u32,
    /// Started by a launcher, not by the kit.
    pub(crate) launched: bool,
    pub(crate) kv: Arc<FileKv>,
}

impl Team {
    /// What all ranks together found of a case: what one of them alone saw (a slip, a panic) fails it too, and all learn whether it failed.
    pub(crate) fn agree(&self, number: usize, mine: Check) -> Check {
        let said = |key: &str, patience: Duration| -> Result<Option<String>, String> {
            let text = self.kv.get(key, Some(patience));
            let text = text.map_err(|_| "did not come to the end of the case".to_string())?;
            serde_json::from_slice(&text).map_err(|e| e.to_string())
        };
        let say = |key: &str, why: Option<&String>| -> Result<(), String> {
            let text = serde_json::to_vec(&why).map_err(|e| e.to_string())?;
            self.kv.set(key, &text).map_err(|e| e.to_string())
        };
        let found = |rank: u32| format!("kit/found/{number}/{rank}");
        let over = format!("kit/over/{number}");
        if self.rank > 0 {
            say(&found(self.rank), mine.as_ref().err())?;
            let end = said(&over, 4 * SOON).map_err(|e| format!("rank 0 {e}"))?;
            return match end {
                Some(why) => mine.and(Err(why)),
                None => mine,
            };
        }
        let mut all = mine;
        for rank in 1..self.n {
            // A rank that has failed waits for nobody.
            if all.is_ok() {
                match said(&found(rank), 2 * SOON) {
                    Ok(None) => {}
                    Ok(Some(why)) => all = Err(format!("rank {rank}: {why}")),
                    Err(e) => all = Err(format!("rank {rank} {e}")),
                }
            }
        }
        say(&over, all.as_ref().err())?;
        all
    }
}

impl Ctx {
    /// Runs `body` on `n` ranks with a communicator of all of them.
    ///
    /// # Errors
    /// The first failing rank's words, with its number.
    pub fn ranks(
        &self,
        n: u32,
        body: &(dyn Fn(&Rank) -> Result<Answer, String> + Sync),
    ) -> Result<Vec<Answer>, String> {
        self.run(n, true, body)
    }

    /// As [`Ctx::ranks`], without a communicator: the body makes what it needs, and nothing is kept.
    ///
    /// # Errors
    /// As [`Ctx::ranks`].
    pub fn loose_ranks(
        &self,
        n: u32,
        body: &(dyn Fn(&Rank) -> Result<Answer, String> + Sync),
    ) -> Result<Vec<Answer>, String> {
        self.run(n, false, body)
    }

    /// The devices of ranks: those of the run, or all where no two ranks of a group may share one.
    fn places(&self) -> Arc<Places> {
        let held = self.rank_threads.lock();
        let mut held = held.unwrap_or_else(std::sync::PoisonError::into_inner);
        let asked = || {
            let device = self.device();
            let said = device.and_then(|d| Ok(d.attr("collective.shares_device")?));
            let apart = matches!(said, Ok(Some(v)) if v == b"no");
            let more = self.others.iter().filter(|_| apart);
            let devices = self.devices.iter().chain(more).copied().collect();
            Arc::new(Places { devices, apart })
        };
        held.places.get_or_insert_with(asked).clone()
    }

    /// Why `n` ranks cannot communicate on the devices there are.
    pub(crate) fn crowded(&self, n: u32) -> Option<String> {
        let p = self.places();
        let have = p.devices.len();
        (p.apart && have < n as usize)
            .then(|| format!("{n} ranks on {have} device(s); the collectives want one for each"))
    }

    /// Are ranks processes?
    pub fn processes(&self) -> bool {
        self.team.is_some()
    }

    fn run(
        &self,
        n: u32,
        with_comm: bool,
        body: &(dyn Fn(&Rank) -> Result<Answer, String> + Sync),
    ) -> Result<Vec<Answer>, String> {
        if let Some(team) = &self.team {
            return self.process(team, n, with_comm, body);
        }
        let lock = || {
            self.rank_threads
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
        };
        let (kept, number) = {
            let mut rank_threads = lock();
            rank_threads.made += 1;
            let kept = match with_comm {
                true => rank_threads.idle.remove(&n),
                false => None,
            };
            (kept, rank_threads.made)
        };
        let scope = format!("kit/{}/{number}/", std::process::id());
        let kv = self.host.kv().clone();
        let over = Arc::new(AtomicBool::new(false));
        let made: Vec<Result<Rank, String>> = match kept {
            Some(ranks) => ranks
                .into_iter()
                .map(|mut r| {
                    r.scope.clone_from(&scope);
                    r.over = over.clone();
                    Ok(r)
                })
                .collect(),
            None => std::thread::scope(|s| {
                let each: Vec<_> = (0..n)
                    .map(|rank| {
                        let (kv, scope, over) = (kv.clone(), scope.clone(), over.clone());
                        s.spawn(move || self.rank(rank, n, kv, scope, over, with_comm))
                    })
                    .collect();
                each.into_iter().map(joined).collect()
            }),
        };
        let ranks = first_error(made)?;
        let answers: Vec<Result<Answer, String>> = std::thread::scope(|s| {
            let all = &ranks;
            let each: Vec<_> = ranks
                .iter()
                .map(|r| s.spawn(move || r.run(all, body)))
                .collect();
            each.into_iter().map(joined).collect()
        });
        let answers = first_error(answers)?;
        if with_comm {
            lock().idle.insert(n, ranks);
        }
        Ok(answers)
    }

    fn rank(
        &self,
        rank: u32,
        n: u32,
        kv: Arc<dyn KvStore>,
        scope: String,
        over: Arc<AtomicBool>,
        with_comm: bool,
    ) -> Result<Rank, String> {
        let places = self.places();
        let device = places.devices[rank as usize % places.devices.len()];
        let rig = Rig::on(self.plugin.open(device)?)?;
        let comm = match with_comm {
            true => Some(join(&rig, &*kv, &scope, rank, n, COMM_TIMEOUT)?),
            false => None,
        };
        Ok(Rank {
            rank,
            n,
            comm,
            rig,
            kv,
            scope,
            threads: self.team.is_none(),
            launched: self.team.as_ref().is_some_and(|t| t.launched),
            over,
        })
    }

    fn process(
        &self,
        team: &Team,
        n: u32,
        with_comm: bool,
        body: &(dyn Fn(&Rank) -> Result<Answer, String> + Sync),
    ) -> Result<Vec<Answer>, String> {
        if n != team.n {
            return Err(format!("the launcher started {} ranks, not {n}", team.n));
        }
        let (number, kept) = {
            let mut rank_threads = self
                .rank_threads
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            rank_threads.made += 1;
            let kept = match with_comm {
                true => rank_threads.idle.remove(&n),
                false => None,
            };
            (rank_threads.made, kept)
        };
        let scope = format!("{number}/");
        let kv: Arc<dyn KvStore> = team.kv.clone();
        let mine = match kept.and_then(|mut r| r.pop()) {
            Some(mut r) => {
                r.scope.clone_from(&scope);
                r.over = Arc::default();
                Ok(r)
            }
            None => self.rank(team.rank, n, kv, scope.clone(), Arc::default(), with_comm),
        };
        let done = AtomicBool::new(false);
        let answer = match &mine {
            // The others wait for an answer, whatever it is.
            Ok(r) => std::thread::scope(|s| {
                s.spawn(|| r.watch(&done));
                let answer = r.run(&[], body);
                if answer.is_err() {
                    r.rig.dev.abort_all();
                }
                done.store(true, SeqCst);
                answer
            }),
            Err(e) => Err(e.clone()),
        };
        let text = serde_json::to_vec(&answer).map_err(|e| e.to_string())?;
        let key = |r: u32| format!("{scope}answer/{r}");
        team.kv
            .set(&key(team.rank), &text)
            .map_err(|e| e.to_string())?;
        let mut all = Vec::new();
        for r in 0..n {
            let got = team
                .kv
                .get(&key(r), Some(2 * SOON))
                .map_err(|_| format!("rank {r} gave no answer"))?;
            let a: Result<Answer, String> =
                serde_json::from_slice(&got).map_err(|e| e.to_string())?;
            all.push(a);
        }
        let all = first_error(all)?;
        if let (true, Ok(r)) = (with_comm, mine) {
            let mut rank_threads = self
                .rank_threads
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            rank_threads.idle.insert(n, vec![r]);
        }
        Ok(all)
    }

    /// Lets every kept communicator go.
    pub(crate) fn dismiss(&self) {
        let mut rank_threads = self
            .rank_threads
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        rank_threads.idle.clear();
    }
}

fn joined<T>(t: std::thread::ScopedJoinHandle<'_, Result<T, String>>) -> Result<T, String> {
    t.join().unwrap_or_else(|p| Err(panicked(p)))
}

/// All, or the most telling error: one that is not a consequence of another rank's.
fn first_error<T>(all: Vec<Result<T, String>>) -> Result<Vec<T>, String> {
    let secondary = |e: &str| {
        ["COMM", "TIMEOUT", "ABORTED", FAILED]
            .iter()
            .any(|w| e.contains(w))
    };
    let errors: Vec<(usize, &String)> = all
        .iter()
        .enumerate()
        .filter_map(|(r, a)| a.as_ref().err().map(|e| (r, e)))
        .collect();
    let pick = errors
        .iter()
        .find(|(_, e)| !secondary(e))
        .or(errors.first());
    if let Some((r, e)) = pick {
        return Err(format!("rank {r}: {e}"));
    }
    Ok(all.into_iter().flatten().collect())
}

/// A key-value store in a folder that all processes see: files appear whole, readers look again and again.
pub struct FileKv {
    dir: PathBuf,
}

impl FileKv {
    /// In `dir`, which exists.
    pub fn new(dir: PathBuf) -> FileKv {
        FileKv { dir }
    }

    fn file(&self, key: &str) -> PathBuf {
        let mut name = String::with_capacity(key.len() * 2);
        for b in key.bytes() {
            match b {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(b as char),
                _ => name.push_str(&format!("%{b:02x}")),
            }
        }
        self.dir.join(name)
    }
}

impl KvStore for FileKv {
    fn set(&self, key: &str, value: &[u8]) -> crossweave_hal::Result<()> {
        let to = self.file(key);
        let id = std::process::id();
        let thread = format!("{:?}", std::thread::current().id());
        let thread: String = thread.chars().filter(char::is_ascii_digit).collect();
        let part = to.with_extension(format!("{id}-{thread}.part"));
        let done = std::fs::write(&part, value).and_then(|()| std::fs::rename(&part, &to));
        done.map_err(|e| Error::new(Code::Internal, "kv_set", format!("{}: {e}", to.display())))
    }

    fn get(&self, key: &str, timeout: Option<Duration>) -> crossweave_hal::Result<Vec<u8>> {
        let file = self.file(key);
        let end = timeout.map(|t| Instant::now() + t);
        let mut nap = Duration::from_micros(200);
        loop {
            if let Ok(v) = std::fs::read(&file) {
                return Ok(v);
            }
            if end.is_some_and(|e| Instant::now() >= e) {
                return Err(Error::new(
                    Code::Timeout,
                    "kv_get",
                    format!("no rank has set {key:?} in time"),
                ));
            }
            std::thread::sleep(nap);
            nap = (nap * 2).min(Duration::from_millis(5));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::pass;

    /// What each of three ranks learns of a case that ends for them like this.
    fn agreed(found: [Result<(), &str>; 3]) -> Vec<Option<String>> {
        let dir = tempfile::tempdir().unwrap();
        let kv = Arc::new(FileKv::new(dir.path().to_path_buf()));
        let one = |rank: usize| {
            let (launched, kv) = (false, kv.clone());
            let (rank, n, mine) = (rank as u32, 3, found[rank]);
            let team = Team {
                rank,
                n,
                launched,
                kv,
            };
            let mine = mine.map_err(String::from).and_then(|()| pass());
            team.agree(7, mine).err()
        };
        std::thread::scope(|s| {
            let all: Vec<_> = (0..3).map(|r| s.spawn(move || one(r))).collect();
            all.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    #[test]
    fn what_one_rank_alone_saw_all_are_told() {
        assert_eq!(agreed([Ok(()); 3]), [None, None, None]);
        let slip = agreed([Ok(()), Ok(()), Err("a slip")]);
        let told = Some("rank 2: a slip".to_string());
        assert_eq!(slip, [told.clone(), told, Some("a slip".into())]);
        let own = agreed([Err("wrong"), Ok(()), Ok(())]);
        assert_eq!(
            own,
            [
                Some("wrong".to_string()),
                Some("wrong".into()),
                Some("wrong".into())
            ]
        );
    }
}
