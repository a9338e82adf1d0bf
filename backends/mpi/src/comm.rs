//! Communicators: ranks find each other through the host's store, launches run in the order they were made, and the first failure ends
//! the communicator. Ranks may be threads of one process: see `channel`.

use crate::channel::{self, Channels};
use crate::flight;
use crate::hosts::{Hosts, Links};
use crate::library::Mpi;
use crate::making::{By, Making, chosen};
use crate::memory::{Mem, PAGE, address};
use crate::run;
use crate::stream::Stream;
use crate::{Device, MpiBackend};
use crossweave_plugin::collective::{self, Checked};
use crossweave_plugin::{
    Code, Coll, CollShape, Collectives, CommConfig, Error, GroupRank, Health, Host, Members,
    Result, Support, fail,
};
use smallvec::SmallVec;
use std::fmt::Write as _;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A communicator of this name is the whole world in MPI's own order. It needs no store, so a job can make its store through it.
pub const WORLD: &str = "carrier.world";

/// Without a configured timeout.
const TIMEOUT: Duration = Duration::from_secs(300);

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One rank of a communicator.
pub struct Comm(Arc<Member>);

/// Kept alive by the handle and by every launch still queued.
pub(crate) struct Member {
    pub(crate) mpi: Arc<dyn Mpi>,
    pub(crate) channels: Arc<Channels>,
    /// The first channel of its own; the world's are never given back.
    own: Option<u32>,
    /// How it reaches each rank.
    pub(crate) links: Links,
    pub(crate) host: Host,
    /// Within the communicator.
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    /// The members by their ranks in the job.
    pub(crate) members: Members,
    pub(crate) name: String,
    /// The prefix of its keys in the host's store.
    pub(crate) prefix: String,
    pub(crate) timeout: Duration,
    pub(crate) aborted: AtomicBool,
    /// The first failure, and whether there is one, which every call asks.
    failure: Mutex<Option<Error>>,
    failed: AtomicBool,
    /// Launches made, and launches run: they run in that order even from several streams.
    launched: AtomicU64,
    turn: AtomicU64,
    /// Collectives run, sends and receives left out: the same on every rank.
    number: AtomicU64,
    splits: AtomicU64,
    scratch: Mutex<Vec<u64>>,
    /// Bytes of one MPI message at most; more go as several, so that counts have no limit.
    pub(crate) longest: usize,
}

impl Member {
    /// A member, as messages name it. The communicator of all processes is made before anybody knows which ranks they are.
    pub(crate) fn who(&self, member: GroupRank) -> String {
        match self.name == WORLD {
            true => format!("process {}", member.0),
            false => self.members.of(member).to_string(),
        }
    }

    /// This member.
    pub(crate) fn me(&self) -> String {
        self.who(GroupRank(self.rank))
    }

    /// At least `bytes` of memory that lives as long as the member, from the beginning of a page: the kernel copies between processes page by
    /// page. One collective runs at a time, so it has no other user.
    pub(crate) fn scratch(&self, bytes: usize) -> *mut u8 {
        let mut s = lock(&self.scratch);
        let words = (bytes + PAGE).div_ceil(8);
        if s.len() < words {
            *s = vec![0; words];
        }
        let at: *mut u8 = s.as_mut_ptr().cast();
        at.wrapping_add(at.align_offset(PAGE))
    }

    /// The first failure ends the communicator.
    fn fail(&self, e: &Error) {
        lock(&self.failure).get_or_insert(e.clone().sticky());
        self.failed.store(true, SeqCst);
    }

    pub(crate) fn health(&self) -> Result<()> {
        if !self.failed.load(SeqCst) && !self.aborted.load(SeqCst) {
            return Ok(());
        }
        match &*lock(&self.failure) {
            Some(e) => Err(e.clone()),
            None if self.aborted.load(SeqCst) => {
                let e = Error::new(
                    Code::Aborted,
                    format!("communicator {}: aborted", self.name),
                );
                Err(e.sticky())
            }
            None => Ok(()),
        }
    }

    /// `mine`: turns true when the stream of this launch is being destroyed.
    fn group(&self, ticket: u64, group: &[Checked], mine: Arc<AtomicBool>) -> Result<()> {
        let turn = || self.turn.load(SeqCst) == ticket;
        let what = "an earlier launch on another stream";
        if let Err(e) = flight::until(self, what, &mine, turn) {
            // Its ticket will never be passed on: the launches behind it fail, and are not left to wait.
            self.fail(&e);
            return Err(e);
        }
        let result = self.run(group, &mine);
        if let Err(e) = &result {
            self.fail(e);
        }
        self.turn.store(ticket + 1, SeqCst);
        result
    }

    fn run(&self, group: &[Checked], abandoned: &AtomicBool) -> Result<()> {
        self.health()?;
        // SAFETY: operands of a group whose turn on its stream has come; the host keeps them until the stream has passed it.
        unsafe {
            run::exchange(self, group, abandoned).and_then(|()| {
                group
                    .iter()
                    .filter(|p| !p.point_to_point())
                    .try_for_each(|p| {
                        let number = self.number.fetch_add(1, SeqCst) + 1;
                        run::collective(self, p, number, abandoned)
                    })
            })
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if self.failed.load(SeqCst) || self.aborted.load(SeqCst) {
            // A late message may still write there.
            std::mem::forget(std::mem::take(&mut *lock(&self.scratch)));
        } else if let Some(own) = self.own {
            // After a failure a late message may still come there.
            self.channels.free(own);
            self.links.by.free(&*self.mpi);
        }
    }
}

/// Channels of a communicator that is being made.
struct Own<'a> {
    channels: &'a Channels,
    first: u32,
}

impl<'a> Own<'a> {
    fn take(channels: &'a Channels, len: u32) -> Result<Own<'a>> {
        let first = channels.take(len)?;
        Ok(Own { channels, first })
    }
    /// It has been made.
    fn keep(self) -> u32 {
        let first = self.first;
        std::mem::forget(self);
        first
    }
}

impl Drop for Own<'_> {
    fn drop(&mut self) {
        self.channels.free(self.first);
    }
}

/// A member on its way into a communicator.
struct Join<'a> {
    b: &'a MpiBackend,
    d: &'a Device,
    cfg: &'a CommConfig,
    prefix: &'a str,
    timeout: Duration,
}

impl Join<'_> {
    /// Every member's number.
    fn exchange<T: Word>(&self, what: &str, own: T) -> Result<Vec<T>> {
        let key = |r: u32| format!("{}{what}/{r}", self.prefix);
        self.b.host.kv_set(&key(self.cfg.rank), &own.bytes())?;
        let mut all = vec![];
        for r in 0..self.cfg.nranks {
            if r == self.cfg.rank {
                all.push(own);
                continue;
            }
            let got = self.b.host.kv_get(&key(r), self.timeout).map_err(|e| {
                let why = format!(
                    "communicator {}: {} has not joined within {:?}: {}",
                    self.cfg.name,
                    self.cfg.members.of(GroupRank(r)),
                    self.timeout,
                    e.message
                );
                Error::new(e.code, why).peer(GroupRank(r))
            })?;
            all.push(T::read(&got).ok_or_else(|| {
                let why = format!(
                    "communicator {}: {} says {} bytes of {what} where {} are said: it is another version of this plugin",
                    self.cfg.name,
                    self.cfg.members.of(GroupRank(r)),
                    got.len(),
                    size_of::<T>()
                );
                Error::new(Code::Comm, why).peer(GroupRank(r))
            })?);
        }
        Ok(all)
    }

    /// Every member's process, by MPI's number, and its host.
    fn processes(&self) -> Result<(Vec<u32>, Vec<u32>)> {
        let (process, processes) = self.d.mpi.world();
        let name = self.d.process;
        let own = u128::from(self.d.on) << 96 | u128::from(name) << 32 | u128::from(process);
        let all = self.exchange("process", own)?;
        let at: Vec<u32> = all.iter().map(|p| *p as u32).collect();
        if let Some(bad) = at.iter().find(|p| **p >= processes) {
            return fail(
                Code::Comm,
                format!(
                    "communicator {}: a member says it is process {bad} of the {processes} of MPI; are two jobs sharing one store?",
                    self.cfg.name
                ),
            );
        }
        // Members of one process share its number; other processes must not have it.
        let twice = (1..at.len()).find(|r| (0..*r).any(|s| at[s] == at[*r] && all[s] != all[*r]));
        if let Some(r) = twice {
            return fail(
                Code::Comm,
                format!(
                    "communicator {}: {} and one before it are both process {} of the {processes} that {} knows: they are not one MPI \
                     job; start them together, by mpirun or srun",
                    self.cfg.name,
                    self.cfg.members.of(r),
                    at[r],
                    short(&self.d.mpi.version())
                ),
            );
        }
        Ok((at, all.iter().map(|p| (*p >> 96) as u32).collect()))
    }
}

/// A library's name and number. Open MPI adds who packed it and when, and messages of the plugin interface have an end.
fn short(version: &str) -> &str {
    version.split(',').next().unwrap_or(version)
}

/// What members tell each other through the store.
trait Word: Copy {
    fn bytes(self) -> Vec<u8>;
    fn read(bytes: &[u8]) -> Option<Self>;
}
impl Word for u64 {
    fn bytes(self) -> Vec<u8> {
        self.to_le_bytes().into()
    }
    fn read(bytes: &[u8]) -> Option<u64> {
        bytes.try_into().ok().map(u64::from_le_bytes)
    }
}
impl Word for u128 {
    fn bytes(self) -> Vec<u8> {
        self.to_le_bytes().into()
    }
    fn read(bytes: &[u8]) -> Option<u128> {
        bytes.try_into().ok().map(u128::from_le_bytes)
    }
}

/// Every rank of `ranks` gets the others' entries of `all` by messages, in the `nth` split of a communicator.
fn go_round<T: Send>(
    m: &Member,
    nth: u64,
    what: &'static str,
    ranks: &[usize],
    all: &mut Vec<T>,
) -> Result<()> {
    let what = flight::What::Split(nth, what);
    let mut f = flight::Flight::new(m, what, Some(u64::MAX - nth), None);
    let at = all.as_mut_ptr();
    let (me, bytes) = (m.rank as usize, size_of::<T>());
    let mut post = || {
        for r in ranks.iter().copied().filter(|r| *r != me) {
            // SAFETY: entries of plain words, in a vector that lives until the flight has landed, or for ever where it fails.
            unsafe {
                f.recv(r, at.add(r).cast(), bytes)?;
                f.send(r, at.add(me).cast_const().cast(), bytes)?;
            }
        }
        f.land()
    };
    post().inspect_err(|e| {
        std::mem::forget(std::mem::take(all));
        m.fail(e);
    })
}

/// The collectives of this backend.
pub enum MpiCollectives {}

impl Collectives<MpiBackend> for MpiCollectives {
    type Comm = Comm;

    fn unique_id(_: &MpiBackend, _: &Device) -> Result<Vec<u8>> {
        // The members are named by the store's keys; the id only distinguishes one communicator of a name from the next.
        let mut id = b"cwmpi/1\0".to_vec();
        id.extend(RandomState::new().build_hasher().finish().to_le_bytes());
        Ok(id)
    }

    fn init(b: &MpiBackend, d: &Device, id: &[u8], cfg: CommConfig) -> Result<Comm> {
        let mpi = d.mpi.clone();
        let (process, processes) = mpi.world();
        let timeout = cfg.timeout.unwrap_or(TIMEOUT);
        // Of this communicator alone: others of its name may have left their keys in the store.
        let mut prefix = cfg.kv_prefix.clone();
        for b in id {
            let _ = write!(prefix, "{b:02x}");
        }
        prefix.push('/');
        let (peers, hosts, own, by) = if cfg.name == WORLD {
            if (process, processes) != (cfg.rank, cfg.nranks) {
                return fail(
                    Code::Comm,
                    format!(
                        "this is process {} of {} for its launcher and process {process} of {processes} for {}, which the launcher has \
                         not connected; start with that library's own mpirun, or with srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH), or \
                         name the launcher's library in CROSSWEAVE_MPI_LIBRARY",
                        cfg.rank,
                        cfg.nranks,
                        short(&mpi.version())
                    ),
                );
            }
            let all: Vec<u32> = (0..processes).collect();
            let first = vec![0; all.len()];
            // Nothing but barriers and the words of a store go over it, before anybody knows who is where.
            let hosts = Hosts::new(&first);
            let peers = channel::peers(&all, &first, process as usize);
            (peers, hosts, None, By::default())
        } else {
            let join = Join {
                b,
                d,
                cfg: &cfg,
                prefix: &prefix,
                timeout,
            };
            let (at, on) = join.processes()?;
            let (_, places) = channel::places(&at);
            let own = Own::take(&d.channels, places)?;
            let choice = chosen(&b.host, &cfg.name)?;
            let heard = u64::from(own.first) | u64::from(choice.number()) << 32;
            let heard = join.exchange("heard", heard)?;
            let (first, numbers): (Vec<u32>, Vec<u32>) =
                heard.iter().map(|h| (*h as u32, (*h >> 32) as u32)).unzip();
            let making = Making::new(&mpi, &b.host, (&cfg.name, &prefix), &cfg.members, timeout);
            let by = making.by(choice, &numbers, &at)?;
            let peers = channel::peers(&at, &first, cfg.rank as usize);
            (peers, Hosts::new(&on), Some(own.keep()), by)
        };
        Ok(Comm(Arc::new(Member {
            mpi,
            channels: d.channels.clone(),
            own,
            links: Links {
                peers,
                hosts,
                by,
                sent: d.sent.clone(),
            },
            host: b.host,
            rank: cfg.rank,
            ranks: cfg.nranks,
            members: cfg.members,
            name: match cfg.name.is_empty() {
                true => "(unnamed)".into(),
                false => cfg.name,
            },
            prefix,
            timeout,
            aborted: AtomicBool::new(false),
            failure: Mutex::default(),
            failed: AtomicBool::new(false),
            launched: AtomicU64::new(0),
            turn: AtomicU64::new(0),
            number: AtomicU64::new(0),
            splits: AtomicU64::new(0),
            scratch: Mutex::default(),
            longest: b.longest,
        })))
    }

    /// Colours and keys go round by messages, then each colour makes its communicator.
    fn split(
        b: &MpiBackend,
        c: &Comm,
        color: Option<i32>,
        key: i32,
        cfg: CommConfig,
    ) -> Result<Option<Comm>> {
        let m = &*c.0;
        m.health()?;
        let nth = m.splits.fetch_add(1, SeqCst);
        let n = m.ranks as usize;
        let mut all = vec![[-1i32, 0]; n];
        all[m.rank as usize] = [color.unwrap_or(-1), key];
        let everybody: Vec<usize> = (0..n).collect();
        go_round(m, nth, "colour and key", &everybody, &mut all)?;
        let Some(color) = color else {
            return Ok(None);
        };
        let mut members: Vec<usize> = (0..n).filter(|r| all[*r][0] == color).collect();
        members.sort_by_key(|r| (all[*r][1], *r));
        let rank = members.iter().position(|r| *r == m.rank as usize);
        if (rank, members.len()) != (Some(cfg.rank as usize), cfg.nranks as usize) {
            return fail(
                Code::Invalid,
                format!(
                    "split by colour {color} and key {key} makes rank {rank:?} of {}, the configuration says {} of {}",
                    members.len(),
                    cfg.rank,
                    cfg.nranks
                ),
            );
        }
        let at: Vec<u32> = members.iter().map(|r| m.links.peers[*r].process).collect();
        let (_, places) = channel::places(&at);
        let own = Own::take(&m.channels, places)?;
        let choice = chosen(&b.host, &cfg.name)?;
        let mut heard = vec![[0u32; 2]; n];
        heard[m.rank as usize] = [own.first, choice.number()];
        go_round(m, nth, "channels", &members, &mut heard)?;
        let (first, numbers): (Vec<u32>, Vec<u32>) =
            members.iter().map(|r| (heard[*r][0], heard[*r][1])).unzip();
        let (prefix, timeout) = (
            format!("{}split{nth}.{color}/", m.prefix),
            cfg.timeout.unwrap_or(m.timeout),
        );
        let parts = m.members.some(members.iter().map(|r| (*r).into()));
        let making = Making::new(&m.mpi, &b.host, (&cfg.name, &prefix), &parts, timeout);
        let by = making.by(choice, &numbers, &at)?;
        Ok(Some(Comm(Arc::new(Member {
            mpi: m.mpi.clone(),
            channels: m.channels.clone(),
            own: Some(own.keep()),
            links: Links {
                peers: channel::peers(&at, &first, cfg.rank as usize),
                hosts: m.links.hosts.some(&members),
                by,
                sent: m.links.sent.clone(),
            },
            host: b.host,
            rank: cfg.rank,
            ranks: cfg.nranks,
            members: parts,
            name: cfg.name,
            prefix,
            timeout,
            aborted: AtomicBool::new(false),
            failure: Mutex::default(),
            failed: AtomicBool::new(false),
            launched: AtomicU64::new(0),
            turn: AtomicU64::new(0),
            number: AtomicU64::new(0),
            splits: AtomicU64::new(0),
            scratch: Mutex::default(),
            longest: m.longest,
        }))))
    }

    fn supports(_: &MpiBackend, _: &Comm, shape: &CollShape) -> Result<Support> {
        collective::supported(shape)?;
        Ok(Support {
            tier: 1,
            latency_ns: 5_000,
            bytes_per_s: 0,
            max_bytes: 0,
        })
    }

    fn launch(_: &MpiBackend, c: &Comm, s: &Stream, group: &[Coll<'_, Mem>]) -> Result<()> {
        let m = c.0.clone();
        m.health()?;
        let plan = |x| collective::request(x, (m.rank as usize, m.ranks as usize), address);
        let group = group
            .iter()
            .map(plan)
            .collect::<Result<SmallVec<[_; 1]>>>()?;
        if group.is_empty() {
            return Ok(());
        }
        let ticket = m.launched.fetch_add(1, SeqCst);
        let abandoned = s.abandoned();
        let work = move |failed: Option<&Error>| match failed {
            None => m.group(ticket, &group, abandoned),
            Some(e) => {
                let e = Error::new(
                    Code::Comm,
                    format!(
                        "{}'s stream failed before it came to {}: {}",
                        m.me(),
                        group.first().map_or(String::new(), |p| p.what(&m.members)),
                        e.message
                    ),
                );
                m.fail(&e);
                Ok(())
            }
        };
        s.push(Box::new(work)).map(|_| ())
    }

    fn async_error(_: &MpiBackend, c: &Comm) -> Result<Health> {
        c.0.health().map(|()| Health::Ready)
    }

    fn abort(_: &MpiBackend, c: &Comm) -> Result<()> {
        c.0.aborted.store(true, SeqCst);
        Ok(())
    }
}
