//! The key-value store of a job of several processes (what PyTorch calls `TCPStore`): rank 0 keeps it, the others reach
//! it over TCP. It carries ids, addresses and texts of a few bytes, never data. It is also how the processes learn that
//! one of them has died: a connection that ends without a farewell is a death, whatever the cause, and the operating
//! system reports it at once.
//!
//! A process is known here by its number among the processes; the process_map maps it to ranks for messages about failures.

use crate::door;
use crate::failure::{self, Cause, PeerFailure};
use crate::message::{Message, kind, pair};
use crate::process_map::ProcessMap;
use crate::pulse::{self, Pulse};
use crossweave_hal::death_watch::DeathWatch;
use crossweave_hal::{Awake, Code, Error, JobRank, KvStore, Result, crash};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long rank 0 waits with bad news for ranks that have not connected yet.
const ARRIVAL: Duration = Duration::from_secs(5);

#[derive(Default)]
struct State {
    map: BTreeMap<String, Vec<u8>>,
    /// Server: questions for keys nobody has set yet, as (rank, request).
    asked: HashMap<String, Vec<(u32, u64)>>,
    /// Server: a connection per rank. Client: the one to rank 0, under 0.
    links: BTreeMap<u32, Arc<Mutex<TcpStream>>>,
    /// Ranks that have said farewell.
    gone: Vec<u32>,
    /// Server: ranks that have acknowledged a push, by its number.
    acks: HashMap<u64, u32>,
    /// Client: answers that have come.
    answers: HashMap<u64, Vec<u8>>,
    /// What processes have answered, by question.
    heard: HashMap<u32, BTreeMap<u32, Vec<u8>>>,
    failure: Option<PeerFailure>,
    ending: bool,
    /// This process has failed: nothing it asks for is needed any more.
    given_up: bool,
    /// Which ranks the processes are; until it is said each is one.
    process_map: Option<ProcessMap>,
}

impl State {
    fn ranks_of(&self, process: u32) -> Range<u32> {
        match &self.process_map {
            Some(r) => r.of(process),
            None => process..process + 1,
        }
    }

    /// A process that ended without a farewell.
    fn death(&self, process: u32) -> PeerFailure {
        PeerFailure {
            process,
            ranks: self.ranks_of(process),
            cause: Cause::Died,
        }
    }
}

type Answering = dyn Fn() -> Vec<u8> + Send + Sync;

struct Shared {
    rank: u32,
    world: u32,
    state: Mutex<State>,
    changed: Condvar,
    numbers: AtomicU64,
    on_failure: Mutex<Option<Box<dyn Fn(&PeerFailure) + Send>>>,
    /// What this process says when it is asked what its ranks show.
    answers: Mutex<Option<Arc<Answering>>>,
    /// By which the others of this host hear of this process's death before its connection ends.
    death_watch: Mutex<Option<DeathWatch>>,
    /// Who of other hosts has been silent for how long.
    pulse: Pulse,
    /// Client: rank 0's address, and the job's secret.
    door: Option<(SocketAddr, Vec<u8>)>,
}

/// The store, on any rank. Clones share it.
#[derive(Clone)]
pub struct JobStore(Arc<Shared>);

fn failed(at: &str, why: impl Into<String>) -> Error {
    Error::new(Code::Comm, at, why)
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Values are replaced whole, so what a panicking thread held is usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn new(rank: u32, world: u32, door: Option<(SocketAddr, Vec<u8>)>) -> Arc<Shared> {
        Arc::new(Shared {
            rank,
            world,
            state: Mutex::default(),
            changed: Condvar::new(),
            numbers: AtomicU64::new(1),
            on_failure: Mutex::new(None),
            answers: Mutex::new(None),
            death_watch: Mutex::new(None),
            pulse: Pulse::default(),
            door,
        })
    }

    /// What this process does from now on is no news to the others.
    fn leave(&self) {
        let death_watch = self
            .death_watch
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        drop(death_watch);
    }

    /// Notes the first failure and calls every subscriber; the server notifies every rank.
    fn fail(&self, f: PeerFailure) {
        let mut st = self.lock();
        if st.failure.is_some() || st.ending {
            return;
        }
        st.failure = Some(f.clone());
        let links = st.links.clone();
        drop(st);
        self.changed.notify_all();
        if self.rank == 0 {
            let message = f.notice();
            for (rank, link) in links {
                if rank != f.process {
                    // Who cannot be reached is dead itself.
                    let _ = send(&link, &message);
                }
            }
        }
        let tell = self
            .on_failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(tell) = &*tell {
            tell(&f);
        }
    }

    /// Sets a key of the server and answers who asked for it.
    fn put(&self, key: &str, value: &[u8]) {
        let mut st = self.lock();
        st.map.insert(key.into(), value.into());
        let asked = st.asked.remove(key).unwrap_or_default();
        let links = st.links.clone();
        drop(st);
        self.changed.notify_all();
        for (rank, number) in asked {
            if let Some(link) = links.get(&rank) {
                let _ = send(link, &Message::new(kind::VALUE, number, "", value));
            }
        }
    }

    /// Serves one rank's connection until it ends.
    fn serve(&self, stream: TcpStream, secret: &[u8]) {
        let _ = stream.set_nodelay(true);
        let Ok(write) = stream.try_clone() else {
            return;
        };
        let mut read = BufReader::new(stream);
        let mut first = Message::read(&mut read);
        let (knock, welcome) = secret.split_at(secret.len() / 2);
        if first
            .as_ref()
            .is_ok_and(|m| m.kind == kind::KNOCK && m.value == knock)
        {
            let welcome = Message::new(kind::WELCOME, 0, "", welcome);
            if welcome.write(&mut &write).is_err() {
                return;
            }
            first = Message::read(&mut read);
        }
        let ours = |m: &Message| m.value == secret && m.number < self.world.into();
        let rank = match first {
            // A sign of life over a connection of its own.
            Ok(m) if m.kind == kind::BEAT && ours(&m) => {
                self.pulse.heard(m.number as u32);
                let _ = Message::new(kind::BEAT, 0, "", &[]).write(&mut &write);
                return;
            }
            Ok(m) if m.kind == kind::HELLO && ours(&m) => m.number as u32,
            // Not one of us.
            _ => return,
        };
        let link = Arc::new(Mutex::new(write));
        let mut st = self.lock();
        st.links.insert(rank, link.clone());
        let late = st.failure.clone();
        drop(st);
        self.changed.notify_all();
        if let Some(f) = late {
            let _ = send(&link, &f.notice());
        }
        while let Ok(m) = Message::read(&mut read) {
            self.pulse.heard(rank);
            match m.kind {
                kind::BEAT => {}
                kind::SET => self.put(&m.key, &m.value),
                kind::GET => {
                    let mut st = self.lock();
                    match st.map.get(&m.key).cloned() {
                        Some(v) => {
                            drop(st);
                            let _ = send(&link, &Message::new(kind::VALUE, m.number, "", &v));
                        }
                        None => st.asked.entry(m.key).or_default().push((rank, m.number)),
                    }
                }
                kind::ACK => {
                    *self.lock().acks.entry(m.number).or_default() += 1;
                    self.changed.notify_all();
                }
                kind::ASK => self.pass_on(rank, m.number as u32),
                kind::ANSWER => {
                    // To whom, and to which of that one's questions.
                    let (asks, question) = (m.number as u32, (m.number >> 32) as u32);
                    self.answered(asks, rank, question, m.value);
                }
                kind::FAIL => self.fail(PeerFailure {
                    process: rank,
                    ranks: m.number as u32..m.number as u32 + 1,
                    cause: Cause::from_message(&m),
                }),
                kind::BYE => {
                    self.pulse.forget(rank);
                    self.lock().gone.push(rank);
                    self.changed.notify_all();
                }
                _ => break,
            }
        }
        let st = self.lock();
        let (gone, death) = (st.gone.contains(&rank), st.death(rank));
        drop(st);
        if !gone {
            self.fail(death);
        }
    }

    fn own_answer(&self) -> Vec<u8> {
        let slot = self.answers.lock();
        let answers = slot.unwrap_or_else(PoisonError::into_inner).clone();
        answers.map_or(vec![], |a| a())
    }

    /// Process `process` has answered question `question` of this one.
    fn note(&self, question: u32, process: u32, said: Vec<u8>) {
        // Who is late finds nobody who waits.
        if let Some(all) = self.lock().heard.get_mut(&question) {
            all.insert(process, said);
        }
        self.changed.notify_all();
    }

    /// Server: an answer on its way to the process that has asked.
    fn answered(&self, asks: u32, process: u32, question: u32, said: Vec<u8>) {
        if asks == 0 {
            return self.note(question, process, said);
        }
        let link = self.lock().links.get(&asks).cloned();
        if let Some(link) = link {
            let number = pair(process, question);
            let _ = send(&link, &Message::new(kind::ANSWER, number, "", &said));
        }
    }

    /// Server: process `asks` wants to know what all others show; this one is one of them.
    fn pass_on(&self, asks: u32, question: u32) {
        let links = self.lock().links.clone();
        let message = Message::new(kind::ASK, pair(asks, question), "", &[]);
        for (_, link) in links.iter().filter(|(p, _)| **p != asks) {
            let _ = send(link, &message);
        }
        if asks != 0 {
            self.answered(asks, 0, question, self.own_answer());
        }
    }

    /// Asks `processes` for a sign of life; false once nobody needs to know any more.
    fn beat(&self, processes: &[u32], missed: &[u32], limit: Duration) -> bool {
        let st = self.lock();
        if st.ending || st.failure.is_some() {
            return false;
        }
        let links = st.links.clone();
        drop(st);
        let Some((at, secret)) = &self.door else {
            for link in processes.iter().filter_map(|p| links.get(p)) {
                let _ = send(link, &Message::new(kind::BEAT, 0, "", &[]));
            }
            return true;
        };
        if !missed.is_empty()
            && let Ok(link) = door::again(at, secret, limit / 6)
        {
            let sign = Message::new(kind::BEAT, self.rank.into(), "", secret);
            if sign.write(&mut &link).is_ok() && Message::read(&mut &link).is_ok() {
                self.pulse.heard(0);
            }
        }
        true
    }

    /// The processes `lost` have been silent for `limit`: the first of them is named, with the ranks of those that follow it.
    fn lose(&self, lost: &[u32], names: &[String], limit: Duration) {
        let Some(&process) = lost.first() else { return };
        let st = self.lock();
        let mut ranks = st.ranks_of(process);
        for next in &lost[1..] {
            let more = st.ranks_of(*next);
            let near =
                more.start == ranks.end && names.get(*next as usize) == names.get(process as usize);
            ranks.end = if near { more.end } else { ranks.end };
        }
        drop(st);
        let name = |p: u32| match names.get(p as usize).map(String::as_str) {
            Some("") | None => "its host",
            Some(name) => name,
        };
        let words = pulse::words(name(process), name(self.rank), limit);
        self.fail(PeerFailure {
            process,
            ranks,
            cause: Cause::Silent(words),
        });
    }

    /// Reads what rank 0 sends until the connection ends.
    fn listen(&self, stream: TcpStream) {
        let mut read = BufReader::new(stream);
        while let Ok(m) = Message::read(&mut read) {
            self.pulse.heard(0);
            match m.kind {
                kind::BEAT => {
                    let link = self.lock().links.get(&0).cloned();
                    if let Some(link) = link {
                        let _ = send(&link, &Message::new(kind::BEAT, 0, "", &[]));
                    }
                }
                kind::VALUE => {
                    self.lock().answers.insert(m.number, m.value);
                    self.changed.notify_all();
                }
                kind::PUSH => {
                    let mut st = self.lock();
                    st.map.insert(m.key, m.value);
                    let link = st.links.get(&0).cloned();
                    drop(st);
                    self.changed.notify_all();
                    if let Some(link) = link {
                        let _ = send(&link, &Message::new(kind::ACK, m.number, "", &[]));
                    }
                }
                kind::ASK => {
                    let link = self.lock().links.get(&0).cloned();
                    if let Some(link) = link {
                        let own = self.own_answer();
                        let _ = send(&link, &Message::new(kind::ANSWER, m.number, "", &own));
                    }
                }
                kind::ANSWER => {
                    self.note((m.number >> 32) as u32, m.number as u32, m.value);
                }
                kind::FAIL => {
                    let rank = (m.number >> 32) as u32;
                    self.fail(PeerFailure {
                        process: m.number as u32,
                        ranks: rank..rank + 1,
                        cause: Cause::from_message(&m),
                    });
                }
                kind::SILENT => {
                    let process = m.number as u32;
                    let start = self.lock().ranks_of(process).start;
                    self.fail(PeerFailure {
                        process,
                        ranks: start..(m.number >> 32) as u32,
                        cause: Cause::Silent(String::from_utf8_lossy(&m.value).into_owned()),
                    });
                }
                kind::DEAD => {
                    let death = self.lock().death(m.number as u32);
                    self.fail(death);
                }
                _ => break,
            }
        }
        let death = self.lock().death(0);
        self.fail(death);
    }
}

fn send(link: &Mutex<TcpStream>, m: &Message) -> io::Result<()> {
    m.write(&mut *link.lock().unwrap_or_else(PoisonError::into_inner))
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = std::thread::Builder::new().name(name.into());
    let body = move || {
        crash::speaks();
        body();
    };
    match thread.spawn(body) {
        Ok(_) => Ok(()),
        Err(e) => Err(failed("store", format!("cannot start a thread: {e}"))),
    }
}

impl JobStore {
    /// Rank 0's side: keeps the store and takes connections on `listener` from ranks that know `secret`.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn serve(listener: TcpListener, world: u32, secret: &[u8]) -> Result<JobStore> {
        JobStore::serve_all(vec![listener], world, secret)
    }

    /// The same with a listener for each address.
    ///
    /// # Errors
    /// As [`JobStore::serve`].
    pub fn serve_all(listeners: Vec<TcpListener>, world: u32, secret: &[u8]) -> Result<JobStore> {
        let shared = Shared::new(0, world, None);
        for listener in listeners {
            let (accepting, secret) = (shared.clone(), secret.to_vec());
            spawn("store", move || {
                for stream in listener.incoming().flatten() {
                    let (shared, secret) = (accepting.clone(), secret.clone());
                    let _ = spawn("store link", move || shared.serve(stream, &secret));
                }
            })?;
        }
        Ok(JobStore(shared))
    }

    /// The side of process `process`: connects to rank 0, which may start later, within `timeout`.
    ///
    /// # Errors
    /// Nobody answers at the address.
    pub fn connect(
        address: &str,
        process: u32,
        world: u32,
        secret: &[u8],
        timeout: Duration,
    ) -> Result<JobStore> {
        let all = [address.to_string()];
        JobStore::reach(&all, process, world, secret, timeout, |_| {})
    }

    /// The same where rank 0 has several addresses, names or numbers with a port: all are tried at once. `say` receives at once what is wrong
    /// with one of them for good.
    ///
    /// # Errors
    /// Nobody answers at any of them: each with its reason.
    pub fn reach(
        addresses: &[String],
        process: u32,
        world: u32,
        secret: &[u8],
        timeout: Duration,
        say: impl Fn(&str),
    ) -> Result<JobStore> {
        let (stream, address) = door::open(addresses, process, secret, timeout, &say)?;
        let io = |e: io::Error| failed("store", format!("rank 0 at {address}: {e}"));
        stream.set_nodelay(true).map_err(io)?;
        let at = stream.peer_addr().map_err(io)?;
        let shared = Shared::new(process, world, Some((at, secret.to_vec())));
        let link = Arc::new(Mutex::new(stream.try_clone().map_err(io)?));
        shared.lock().links.insert(0, link.clone());
        let hello = Message::new(kind::HELLO, process.into(), "", secret);
        send(&link, &hello).map_err(io)?;
        let listening = shared.clone();
        spawn("store link", move || listening.listen(stream))?;
        Ok(JobStore(shared))
    }

    /// Watches from now on over the processes of other hosts (`mesh/src/pulse.rs`): who gives no sign of life for `limit` has failed. `hosts` has the
    /// identity and the name of the host of each process; all processes call this with the same.
    pub fn heartbeat(&self, limit: Duration, hosts: &[(String, String)]) {
        let own = self.0.rank as usize;
        let far = |p: &u32| hosts.get(*p as usize).map(|h| &h.0) != hosts.get(own).map(|h| &h.0);
        let watched: Vec<u32> = match own {
            0 => (1..self.0.world).filter(far).collect(),
            _ => Some(0).filter(far).into_iter().collect(),
        };
        let names: Vec<String> = hosts.iter().map(|h| h.1.clone()).collect();
        let weak = Arc::downgrade(&self.0);
        let watch = move || {
            let Some(pulse) = weak.upgrade() else { return };
            let beat = |all: &[u32], missed: &[u32]| pulse.beat(all, missed, limit);
            if let Some(lost) = pulse.pulse.watch(&watched, limit, beat) {
                pulse.lose(&lost, &names, limit);
            }
        };
        // Where no thread can be had, a host that is lost is found when somebody waits for it.
        let _ = spawn("heartbeat", watch);
    }

    /// From now on this process answers so when another asks what its ranks show.
    pub fn answer_with(&self, say: impl Fn() -> Vec<u8> + Send + Sync + 'static) {
        let slot = self.0.answers.lock();
        *slot.unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(say));
    }

    /// What every other process answers within `patience`, by process; `None` once a failure is known, which says more.
    pub fn ask(&self, patience: Duration) -> Option<BTreeMap<u32, Vec<u8>>> {
        let question = self.0.numbers.fetch_add(1, Relaxed) as u32;
        self.0.lock().heard.insert(question, BTreeMap::new());
        let me = self.0.rank;
        let link = self.0.lock().links.get(&0).cloned();
        match link {
            _ if me == 0 => self.0.pass_on(0, question),
            Some(link) => {
                let _ = send(&link, &Message::new(kind::ASK, question.into(), "", &[]));
            }
            None => {}
        }
        let others = self.0.world as usize - 1;
        let _ = self.wait(patience, "answers", |st| {
            let all = st.heard.get(&question)?.len() >= others;
            all.then_some(())
        });
        let mut st = self.0.lock();
        let all = st.heard.remove(&question).unwrap_or_default();
        st.failure.is_none().then_some(all)
    }

    /// Calls `tell` once, when the first failure of another rank is known; at once if it is already.
    pub fn on_failure(&self, tell: impl Fn(&PeerFailure) + Send + 'static) {
        let known = self.failure();
        if let Some(f) = &known {
            return tell(f);
        }
        let mut slot = self
            .0
            .on_failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *slot = Some(Box::new(tell));
    }

    /// The first failure of another rank, if any is known.
    pub fn failure(&self) -> Option<PeerFailure> {
        self.0.lock().failure.clone()
    }

    /// A value that is already here: on rank 0 any that was set, elsewhere those rank 0 has pushed.
    pub fn peek(&self, key: &str) -> Option<Vec<u8>> {
        self.0.lock().map.get(key).cloned()
    }

    /// Rank 0: puts a value where every rank can [`JobStore::peek`] it, and waits until all have it.
    ///
    /// # Errors
    /// A rank that fails or does not answer in time.
    pub fn push(&self, key: &str, value: &[u8], timeout: Duration) -> Result<()> {
        let number = self.0.numbers.fetch_add(1, Relaxed);
        let mut st = self.0.lock();
        st.map.insert(key.into(), value.into());
        let links: Vec<_> = st.links.values().cloned().collect();
        drop(st);
        let need = links.len() as u32;
        for link in links {
            // Who cannot be reached is noticed by its connection's end.
            let _ = send(&link, &Message::new(kind::PUSH, number, key, value));
        }
        self.wait(timeout, &format!("every rank to take {key:?}"), |st| {
            (st.acks.get(&number).copied().unwrap_or(0) >= need).then_some(())
        })
    }

    /// A rank of this process has failed: its others, who may wait here for one that will not come, are notified.
    pub fn give_up(&self) {
        self.0.lock().given_up = true;
        self.0.changed.notify_all();
    }

    /// From now on failures are reported with these ranks.
    pub fn know(&self, process_map: &ProcessMap) {
        self.0.lock().process_map = Some(process_map.clone());
    }

    /// Keeps this process's death_watch until it fails or says farewell.
    pub fn keep(&self, death_watch: DeathWatch) {
        let mut slot = self
            .0
            .death_watch
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *slot = Some(death_watch);
    }

    /// For the threads that watch over processes: this one has been killed. The end of its connection would say so too, a little later.
    pub fn killed(&self) -> impl Fn(u32) + Send + Sync + 'static {
        let shared = Arc::downgrade(&self.0);
        move |process| {
            let Some(shared) = shared.upgrade() else {
                return;
            };
            let st = shared.lock();
            let (gone, death) = (st.gone.contains(&process), st.death(process));
            drop(st);
            if !gone {
                shared.fail(death);
            }
        }
    }

    /// Notifies every process that rank `rank` of this one has failed, why, and whether by the loss of something that the job needs.
    pub fn report(&self, rank: u32, message: &str, lost: bool) {
        self.0.leave();
        if self.0.rank == 0 {
            // Who comes too late would find nobody and think rank 0 dead.
            let others = self.0.world as usize - 1;
            let _ = self.wait(ARRIVAL, "the other ranks", |st| {
                (st.links.len() >= others).then_some(())
            });
            self.0.fail(PeerFailure {
                process: 0,
                ranks: rank..rank + 1,
                cause: Cause::Said {
                    words: message.into(),
                    lost,
                },
            });
            // The words are on their way before the connections end.
            return std::thread::sleep(ARRIVAL / 50);
        }
        let link = {
            let mut st = self.0.lock();
            // What follows is no news to this rank.
            st.ending = true;
            st.links.get(&0).cloned()
        };
        if let Some(link) = link {
            let mark = if lost { failure::LOST } else { "" };
            let words = Message::new(kind::FAIL, rank.into(), mark, message.as_bytes());
            let _ = send(&link, &words);
        }
    }

    /// The end of a rank that has ended well. Rank 0 waits for all others', because the store ends with it.
    ///
    /// # Errors
    /// A rank that does not end within `timeout`.
    pub fn farewell(&self, timeout: Duration) -> Result<()> {
        self.0.leave();
        if self.0.rank == 0 {
            let others = self.0.world as usize - 1;
            let done = self.wait(timeout, "the other ranks to end", |st| {
                (st.gone.len() >= others).then_some(())
            });
            self.0.lock().ending = true;
            return done;
        }
        let link = {
            let mut st = self.0.lock();
            st.ending = true;
            st.links.get(&0).cloned()
        };
        if let Some(link) = link {
            let _ = send(&link, &Message::new(kind::BYE, 0, "", &[]));
        }
        Ok(())
    }

    /// Waits for `ready` to find something.
    fn wait<T>(
        &self,
        timeout: Duration,
        what: &str,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T> {
        let mut clock = Awake::new(timeout);
        let mut st = self.0.lock();
        loop {
            if let Some(v) = ready(&mut st) {
                return Ok(v);
            }
            if let Some(f) = &st.failure {
                let e = Error::new(Code::Aborted, "store", format!("waiting for {what}: {f}"));
                let peer = Some(JobRank(f.ranks.start));
                return Err(Error { peer, ..e });
            }
            let pause = clock.pause();
            if pause.is_zero() {
                let why = format!("waited {timeout:?} for {what}");
                return Err(Error::new(Code::Timeout, "store", why));
            }
            let woken = self.0.changed.wait_timeout(st, pause);
            st = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl KvStore for JobStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        if self.0.rank == 0 {
            self.0.put(key, value);
            return Ok(());
        }
        let link = self.0.lock().links.get(&0).cloned();
        let gone = || failed("store", "rank 0 cannot be reached any more");
        let link = link.ok_or_else(gone)?;
        send(&link, &Message::new(kind::SET, 0, key, value)).map_err(|_| gone())
    }

    fn get(&self, key: &str, timeout: Option<Duration>) -> Result<Vec<u8>> {
        // Beyond any run: a rank that fails ends the wait.
        let timeout = timeout.unwrap_or(Duration::from_secs(u32::MAX.into()));
        let what = format!("a rank to set {key:?}");
        let unless_over =
            |st: &State, value: Option<Vec<u8>>| match (value, st.given_up && st.failure.is_none())
            {
                (None, true) => {
                    let why =
                        format!("waiting for {what}: another rank of this process has failed");
                    Some(Err(Error::new(Code::Aborted, "store", why)))
                }
                (value, _) => value.map(Ok),
            };
        if self.0.rank == 0 {
            let here = |st: &mut State| unless_over(st, st.map.get(key).cloned());
            return self.wait(timeout, &what, here)?;
        }
        let number = self.0.numbers.fetch_add(1, Relaxed);
        let link = self.0.lock().links.get(&0).cloned();
        let sent =
            link.is_some_and(|l| send(&l, &Message::new(kind::GET, number, key, &[])).is_ok());
        if !sent && self.failure().is_none() {
            return Err(failed("store", "rank 0 cannot be reached any more"));
        }
        self.wait(timeout, &what, |st| {
            let answer = st.answers.remove(&number);
            unless_over(st, answer)
        })?
    }
}

/// A store whose place is taken later: plugins are given their host's store before the processes have met, and meet through a plugin.
#[derive(Clone, Default)]
pub struct LateStore(Arc<Mutex<Option<JobStore>>>);

impl LateStore {
    /// From now on this is `store`.
    pub fn bind(&self, store: JobStore) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(store);
    }
    fn bound(&self) -> Result<JobStore> {
        let store = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let early = || Error::new(Code::NotReady, "store", "the processes have not met yet");
        store.ok_or_else(early)
    }
}

impl KvStore for LateStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.bound()?.set(key, value)
    }
    fn get(&self, key: &str, timeout: Option<Duration>) -> Result<Vec<u8>> {
        self.bound()?.get(key, timeout)
    }
}
