//! The key-value store of a job of several processes (what PyTorch calls `TCPStore`): rank 0 keeps it, the others reach
//! it over TCP. It carries ids, addresses and texts of a few bytes, never data. It is also how the processes learn that
//! one of them has died: a connection that ends without a farewell is a death, whatever the cause, and the operating
//! system reports it at once.
//!
//! A process is known here by its number among the processes; the process_map maps it to ranks for messages about failures.

use crate::process_map::{ProcessMap, rank_words};
use crossweave_hal::death_watch::DeathWatch;
use crossweave_hal::{Awake, Code, Error, KvStore, Result, crash};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Values are small; a length beyond this is no message of ours.
const LONGEST: u32 = 64 << 20;

/// How long rank 0 waits with bad news for ranks that have not connected yet.
const ARRIVAL: Duration = Duration::from_secs(5);

/// Why a job ends before its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerFailure {
    /// The process.
    pub process: u32,
    /// The rank of it that failed, or all its ranks where it died.
    pub ranks: Range<u32>,
    /// Its own words; `None` when it died without any.
    pub message: Option<String>,
}

impl PeerFailure {
    /// What the server sends to the processes.
    fn notice(&self) -> Message {
        let (kind, text) = match &self.message {
            Some(m) => (kind::FAIL, m.as_str()),
            None => (kind::DEAD, ""),
        };
        let number = pair(self.process, self.ranks.start);
        Message::new(kind, number, "", text.as_bytes())
    }
}

/// Two numbers in the place of one.
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

impl std::fmt::Display for PeerFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let who = rank_words(&self.ranks);
        match &self.message {
            Some(m) => write!(f, "{who} failed: {m}"),
            None => write!(
                f,
                "{who} died without a word (killed, crashed, or its machine is gone)"
            ),
        }
    }
}

/// Kinds of messages. Client to server: HELLO, SET, GET, ACK, FAIL, BYE. Server to client: VALUE, PUSH, FAIL.
mod kind {
    pub const HELLO: u8 = 1;
    pub const SET: u8 = 2;
    pub const GET: u8 = 3;
    pub const VALUE: u8 = 4;
    pub const PUSH: u8 = 5;
    pub const ACK: u8 = 6;
    pub const FAIL: u8 = 7;
    pub const DEAD: u8 = 8;
    pub const BYE: u8 = 9;
}

/// One message: a kind, a number (request, rank), a key and a value.
struct Message {
    kind: u8,
    number: u64,
    key: String,
    value: Vec<u8>,
}

impl Message {
    fn new(kind: u8, number: u64, key: &str, value: &[u8]) -> Message {
        Message {
            kind,
            number,
            key: key.into(),
            value: value.into(),
        }
    }

    fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut bytes = vec![self.kind];
        bytes.extend(self.number.to_le_bytes());
        bytes.extend((self.key.len() as u32).to_le_bytes());
        bytes.extend((self.value.len() as u32).to_le_bytes());
        bytes.extend(self.key.as_bytes());
        bytes.extend(&self.value);
        // One write, so that two threads' messages do not mix and none waits for the next packet.
        to.write_all(&bytes)
    }

    fn read(from: &mut impl Read) -> io::Result<Message> {
        let mut head = [0u8; 17];
        from.read_exact(&mut head)?;
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let number = u64::from(word(1)) | u64::from(word(5)) << 32;
        let (key, value) = (word(9), word(13));
        if key > LONGEST || value > LONGEST {
            return Err(io::Error::other("not a message of this store"));
        }
        let mut text = vec![0; key as usize];
        from.read_exact(&mut text)?;
        let mut bytes = vec![0; value as usize];
        from.read_exact(&mut bytes)?;
        Ok(Message {
            kind: head[0],
            number,
            key: String::from_utf8(text).map_err(io::Error::other)?,
            value: bytes,
        })
    }
}

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
            message: None,
        }
    }
}

struct Shared {
    rank: u32,
    world: u32,
    state: Mutex<State>,
    changed: Condvar,
    numbers: AtomicU64,
    on_failure: Mutex<Option<Box<dyn Fn(&PeerFailure) + Send>>>,
    /// By which the others of this host hear of this process's death before its connection ends.
    death_watch: Mutex<Option<DeathWatch>>,
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

    fn new(rank: u32, world: u32) -> Arc<Shared> {
        Arc::new(Shared {
            rank,
            world,
            state: Mutex::default(),
            changed: Condvar::new(),
            numbers: AtomicU64::new(1),
            on_failure: Mutex::new(None),
            death_watch: Mutex::new(None),
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
        let rank = match Message::read(&mut read) {
            Ok(m) if m.kind == kind::HELLO && m.value == secret && m.number < self.world.into() => {
                m.number as u32
            }
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
            match m.kind {
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
                kind::FAIL => self.fail(PeerFailure {
                    process: rank,
                    ranks: m.number as u32..m.number as u32 + 1,
                    message: Some(String::from_utf8_lossy(&m.value).into_owned()),
                }),
                kind::BYE => {
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

    /// Reads what rank 0 sends until the connection ends.
    fn listen(&self, stream: TcpStream) {
        let mut read = BufReader::new(stream);
        while let Ok(m) = Message::read(&mut read) {
            match m.kind {
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
                kind::FAIL => {
                    let rank = (m.number >> 32) as u32;
                    self.fail(PeerFailure {
                        process: m.number as u32,
                        ranks: rank..rank + 1,
                        message: Some(String::from_utf8_lossy(&m.value).into_owned()),
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
        let shared = Shared::new(0, world);
        let (accepting, secret) = (shared.clone(), secret.to_vec());
        spawn("store", move || {
            for stream in listener.incoming().flatten() {
                let (shared, secret) = (accepting.clone(), secret.clone());
                let _ = spawn("store link", move || shared.serve(stream, &secret));
            }
        })?;
        Ok(JobStore(shared))
    }

    /// The side of rank `rank`: connects to rank 0, which may start later, within `timeout`.
    ///
    /// # Errors
    /// Nobody answers at the address.
    pub fn connect(
        address: &str,
        rank: u32,
        world: u32,
        secret: &[u8],
        timeout: Duration,
    ) -> Result<JobStore> {
        let began = Instant::now();
        let stream = loop {
            match TcpStream::connect(address) {
                Ok(s) => break s,
                Err(_) if began.elapsed() < timeout => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(e) => {
                    let why = format!(
                        "rank {rank} cannot reach rank 0 at {address} within {timeout:?}: {e}; check that the address is rank 0's \
                         and that no firewall stands between"
                    );
                    return Err(failed("store", why));
                }
            }
        };
        let io = |e: io::Error| failed("store", format!("rank 0 at {address}: {e}"));
        stream.set_nodelay(true).map_err(io)?;
        let shared = Shared::new(rank, world);
        let link = Arc::new(Mutex::new(stream.try_clone().map_err(io)?));
        shared.lock().links.insert(0, link.clone());
        send(&link, &Message::new(kind::HELLO, rank.into(), "", secret)).map_err(io)?;
        let listening = shared.clone();
        spawn("store link", move || listening.listen(stream))?;
        Ok(JobStore(shared))
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

    /// Notifies every process that rank `rank` of this one has failed, and why.
    pub fn report(&self, rank: u32, message: &str) {
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
                message: Some(message.into()),
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
            let words = Message::new(kind::FAIL, rank.into(), "", message.as_bytes());
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
                return Err(Error {
                    peer: Some(f.ranks.start),
                    ..e
                });
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
