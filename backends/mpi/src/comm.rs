//! Communicators: ranks find each other through the host's store, launches run in the order they were made, and the first failure ends
//! the communicator.

use crate::flight;
use crate::library::{CommHandle, Mpi};
use crate::memory::Mem;
use crate::plan::{self, Planned};
use crate::run;
use crate::stream::Stream;
use crate::{Device, MpiBackend};
use crossweave_plugin::{
    Code, Coll, CollShape, Collectives, CommConfig, Error, Health, Host, Result, Support, fail,
};
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
    pub(crate) handle: CommHandle,
    /// The handle is ours to free.
    made: bool,
    pub(crate) host: Host,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    /// Its ranks in the world.
    world: Vec<u32>,
    pub(crate) name: String,
    /// Of its keys in the host's store.
    pub(crate) prefix: String,
    pub(crate) timeout: Duration,
    pub(crate) aborted: AtomicBool,
    /// Of the stream whose collective runs now.
    abandoned: Mutex<Option<Arc<AtomicBool>>>,
    failure: Mutex<Option<Error>>,
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
    /// At least `bytes` of memory that lives as long as the member. One collective runs at a time, so it has no other user.
    pub(crate) fn scratch(&self, bytes: usize) -> *mut u8 {
        let mut s = lock(&self.scratch);
        let words = bytes.div_ceil(8);
        if s.len() < words {
            *s = vec![0; words];
        }
        s.as_mut_ptr().cast()
    }

    /// Is the stream it works on being destroyed, so that waiting has become pointless?
    pub(crate) fn given_up(&self) -> bool {
        let told = lock(&self.abandoned);
        told.as_ref().is_some_and(|a| a.load(SeqCst))
    }

    pub(crate) fn health(&self) -> Result<()> {
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
    fn group(&self, ticket: u64, group: &[Planned], mine: Arc<AtomicBool>) -> Result<()> {
        let turn = || self.turn.load(SeqCst) == ticket;
        let what = "an earlier launch on another stream";
        if let Err(e) = flight::until(self, what, &mine, turn) {
            // Its ticket will never be passed on: the launches behind it are told, not left to wait.
            lock(&self.failure).get_or_insert(e.clone().sticky());
            return Err(e);
        }
        *lock(&self.abandoned) = Some(mine);
        let result = self.run(group);
        *lock(&self.abandoned) = None;
        if let Err(e) = &result {
            lock(&self.failure).get_or_insert(e.clone().sticky());
        }
        self.turn.store(ticket + 1, SeqCst);
        result
    }

    fn run(&self, group: &[Planned]) -> Result<()> {
        self.health()?;
        // SAFETY: operands of a group whose turn on its stream has come; the host keeps them until the stream has passed it.
        unsafe {
            run::exchange(self, group).and_then(|()| {
                group
                    .iter()
                    .filter(|p| !p.point_to_point())
                    .try_for_each(|p| {
                        let number = self.number.fetch_add(1, SeqCst) + 1;
                        run::collective(self, p, number)
                    })
            })
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if lock(&self.failure).is_some() || self.aborted.load(SeqCst) {
            // A late message may still write there.
            std::mem::forget(std::mem::take(&mut *lock(&self.scratch)));
        } else if self.made {
            self.mpi.free(self.handle);
        }
    }
}

/// The collectives of this backend.
pub enum MpiCollectives {}

impl Collectives<MpiBackend> for MpiCollectives {
    type Comm = Comm;

    fn unique_id(_: &MpiBackend, _: &Device) -> Result<Vec<u8>> {
        // The members are named by the store's keys; the id only tells one communicator of a name from the next.
        let mut id = b"cwmpi/1\0".to_vec();
        id.extend(RandomState::new().build_hasher().finish().to_le_bytes());
        Ok(id)
    }

    fn init(b: &MpiBackend, d: &Device, id: &[u8], cfg: CommConfig) -> Result<Comm> {
        let mpi = d.mpi.clone();
        let (rank, ranks) = mpi.world();
        let timeout = cfg.timeout.unwrap_or(TIMEOUT);
        let (handle, world, made) = if cfg.name == WORLD {
            if (rank, ranks) != (cfg.rank, cfg.nranks) {
                return fail(
                    Code::Comm,
                    format!(
                        "this process is rank {} of {} for its launcher and rank {rank} of {ranks} for {}: the launcher belongs to \
                         another MPI; start with the mpirun of the library that is loaded, or name the other library's file in \
                         CROSSWEAVE_MPI_LIBRARY",
                        cfg.rank,
                        cfg.nranks,
                        mpi.version()
                    ),
                );
            }
            (mpi.world_comm(), (0..ranks).collect(), false)
        } else {
            let key = |r: u32| format!("{}world/{r}", cfg.kv_prefix);
            b.host.kv_set(&key(cfg.rank), &rank.to_le_bytes())?;
            let mut world = vec![];
            for r in 0..cfg.nranks {
                let got = b.host.kv_get(&key(r), timeout).map_err(|e| {
                    let why = format!(
                        "communicator {}: rank {r} has not joined within {timeout:?}: {}",
                        cfg.name, e.message
                    );
                    Error::new(e.code, why).peer(r)
                })?;
                let bytes: Option<[u8; 4]> = got.as_slice().try_into().ok();
                world.push(bytes.map(u32::from_le_bytes).unwrap_or(u32::MAX));
            }
            if let Some(bad) = world.iter().find(|w| **w >= ranks) {
                return fail(
                    Code::Comm,
                    format!(
                        "communicator {}: a member says it is rank {bad} of the {ranks} MPI ranks; are two jobs sharing one store?",
                        cfg.name
                    ),
                );
            }
            let twice = (1..world.len()).find(|r| world[..*r].contains(&world[*r]));
            if let Some(r) = twice {
                return fail(
                    Code::Comm,
                    format!(
                        "communicator {}: rank {r} and one before it are both rank {} of the {ranks} {} knows: the processes are not one MPI \
                         job; start them together, by mpirun or srun",
                        cfg.name,
                        world[r],
                        mpi.version()
                    ),
                );
            }
            let tag = id
                .iter()
                .fold(0u32, |h, b| h.wrapping_mul(31) + u32::from(*b))
                % 0x7fff;
            (mpi.group(&world, tag as i32)?, world, true)
        };
        Ok(Comm(Arc::new(Member {
            mpi,
            handle,
            made,
            host: b.host,
            rank: cfg.rank,
            ranks: cfg.nranks,
            world,
            name: match cfg.name.is_empty() {
                true => "(unnamed)".into(),
                false => cfg.name,
            },
            prefix: cfg.kv_prefix,
            timeout,
            aborted: AtomicBool::new(false),
            abandoned: Mutex::default(),
            failure: Mutex::new(None),
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
        let what = flight::What::Split(nth);
        let mut f = flight::Flight::new(m, what, Some(u64::MAX - nth));
        for r in (0..n).filter(|r| *r != m.rank as usize) {
            // SAFETY: `all` lives until the flight has landed; a failed split ends the communicator.
            unsafe {
                let at = all.as_mut_ptr();
                f.recv(r, at.add(r).cast(), 8)?;
                f.send(r, at.add(m.rank as usize).cast(), 8)?;
            }
        }
        if let Err(e) = f.land() {
            std::mem::forget(all);
            lock(&m.failure).get_or_insert(e.clone().sticky());
            return Err(e);
        }
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
        let world: Vec<u32> = members.iter().map(|r| m.world[*r]).collect();
        let tag = (nth.wrapping_mul(1031) + color as u64 * 7) % 0x7fff;
        Ok(Some(Comm(Arc::new(Member {
            mpi: m.mpi.clone(),
            handle: m.mpi.group(&world, tag as i32)?,
            made: true,
            host: b.host,
            rank: cfg.rank,
            ranks: cfg.nranks,
            world,
            name: cfg.name,
            prefix: format!("{}split{nth}.{color}/", m.prefix),
            timeout: cfg.timeout.unwrap_or(m.timeout),
            aborted: AtomicBool::new(false),
            abandoned: Mutex::default(),
            failure: Mutex::new(None),
            launched: AtomicU64::new(0),
            turn: AtomicU64::new(0),
            number: AtomicU64::new(0),
            splits: AtomicU64::new(0),
            scratch: Mutex::default(),
            longest: m.longest,
        }))))
    }

    fn supports(_: &MpiBackend, _: &Comm, shape: &CollShape) -> Result<Support> {
        plan::supported(shape)?;
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
        let plan = |x| plan::plan(x, m.rank as usize, m.ranks as usize);
        let group = group.iter().map(plan).collect::<Result<Vec<_>>>()?;
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
                        "rank {}'s stream failed before it came to {}: {}",
                        m.rank,
                        group.first().map_or(String::new(), Planned::what),
                        e.message
                    ),
                );
                lock(&m.failure).get_or_insert(e.sticky());
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
