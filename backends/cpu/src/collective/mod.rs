//! Collectives between ranks that are threads of one process: addresses are published, owners compute, nothing is copied twice.
//!
//! A communicator's calls run on the streams they were launched on, in the order they were launched, and block only their stream's
//! thread. Ranks find each other through a registry inside the backend, by a random id.

mod mail;
mod reduce;
mod round;
pub(crate) mod transfer;
mod world;

use crate::device::Device;
use crate::memory::{Mem, address};
use crate::schedule::Turn;
use crate::stream::{Cmd, Stream, lock};
use crate::{CpuBackend, pace::Pace};
use crossweave_plugin::collective::{self, Checked};
use crossweave_plugin::{
    Code, Coll, CollShape, Collectives, CommConfig, Error, Health, Result, Support, fail,
    unsupported,
};
use round::{Line, Place};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use world::{Patience, World};

/// Starts every id of this backend; then the process, then random bits.
const MAGIC: &[u8; 8] = b"cwcpu/1\0";

/// The communicators being formed or alive, by id.
#[derive(Default)]
pub(crate) struct Registry {
    worlds: Mutex<HashMap<Vec<u8>, Weak<World>>>,
}

/// One rank of a communicator.
pub struct Comm {
    member: Arc<Member>,
    splits: AtomicU64,
}

/// Kept alive by the handle and by every launch still queued; the rank is gone when the last of them is.
struct Member {
    world: Arc<World>,
    rank: usize,
    timeout: Duration,
    /// Launches enqueued, and launches run: they run in that order even from several streams.
    enqueued: Line<AtomicU64>,
    turn: AtomicU64,
    place: Place,
    schedule: Option<Turn>,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.world.leave(self.rank);
    }
}

impl Member {
    fn join(
        world: Arc<World>,
        rank: usize,
        timeout: Duration,
        schedule: Option<Turn>,
    ) -> Result<Comm> {
        world.join(rank)?;
        Ok(Comm {
            member: Arc::new(Member {
                world,
                rank,
                timeout,
                enqueued: Line::default(),
                turn: AtomicU64::new(0),
                place: Place::default(),
                schedule,
            }),
            splits: AtomicU64::new(0),
        })
    }
}

/// A group on its way through a stream.
pub(crate) struct Launch {
    member: Arc<Member>,
    ticket: u64,
    group: SmallVec<[Checked; 1]>,
}

impl Launch {
    /// Runs it; `abandoned` turns true when the stream is being destroyed and waiting has become pointless.
    pub(crate) fn run(&mut self, abandoned: &dyn Fn() -> bool) -> Result<()> {
        let m = &*self.member;
        let w = &*m.world;
        let patience = Patience {
            timeout: m.timeout,
            abandoned,
        };
        let mine = || m.turn.load(Acquire) == self.ticket;
        let what = || {
            format!(
                "waits in {} for an earlier launch of {} on another stream",
                w.name,
                w.members.of(m.rank)
            )
        };
        let stop = w.reason(&patience, || None);
        if w.wait_or(&mine, &stop, &what).is_some() {
            w.fail(w.error(
                Code::Timeout,
                format!(
                    "{}: an earlier launch on another stream did not finish within {:?}",
                    w.members.of(m.rank),
                    m.timeout
                ),
            ));
            return w.health();
        }
        let result = self.group(&patience);
        m.turn.store(self.ticket + 1, Release);
        w.spoken();
        result
    }

    /// The stream failed earlier, so it will not run.
    pub(crate) fn skip(&mut self, why: &Error) {
        let (w, rank) = (&self.member.world, self.member.rank);
        w.fail(
            w.error(
                Code::Comm,
                format!(
                    "{}'s stream failed before it came here: {}",
                    w.members.of(rank),
                    why.message
                ),
            )
            .peer(rank.into()),
        );
    }

    /// Sends are posted first, so that nothing in a group can wait for something later in it.
    fn group(&self, patience: &Patience<'_>) -> Result<()> {
        let (w, rank) = (&*self.member.world, self.member.rank);
        let of = |kind: u32| self.group.iter().filter(move |p| p.kind == kind);
        let mut posted = Vec::new();
        let mut result = Ok(());
        for op in of(crossweave_abi::COLL_SEND) {
            match w.post(rank, op) {
                Ok(sent) => posted.push(sent),
                Err(e) => result = Err(e),
            }
        }
        if result.is_ok() {
            let last = self.group.len() - 1;
            let rounds = self.group.iter().enumerate();
            result = rounds
                .filter(|(_, p)| !p.point_to_point())
                .try_for_each(|(i, op)| {
                    w.round(rank, &self.member.place, op, patience)?;
                    // Of the last round the others learn with the end of the launch.
                    if i < last {
                        w.spoken();
                    }
                    Ok(())
                });
        }
        if result.is_ok() {
            result = of(crossweave_abi::COLL_RECV).try_for_each(|op| w.receive(rank, op, patience));
        }
        for sent in &posted {
            match result {
                Ok(()) => result = w.sent(rank, sent, patience),
                Err(_) => w.withdraw(rank, sent),
            }
        }
        result
    }
}

/// The in-process collectives of the CPU backend.
pub enum CpuCollectives {}

impl Collectives<CpuBackend> for CpuCollectives {
    type Comm = Comm;

    fn unique_id(_: &CpuBackend, _: &Device) -> Result<Vec<u8>> {
        let mut id = MAGIC.to_vec();
        id.extend(std::process::id().to_le_bytes());
        for _ in 0..2 {
            // The standard library's hash keys are the system's random bits.
            id.extend(RandomState::new().build_hasher().finish().to_le_bytes());
        }
        Ok(id)
    }

    fn init(b: &CpuBackend, d: &Device, id: &[u8], cfg: CommConfig) -> Result<Comm> {
        let (rank, n) = (cfg.rank as usize, cfg.nranks as usize);
        if n == 0 || rank >= n {
            return fail(Code::Invalid, format!("comm_init: rank {rank} of {n}"));
        }
        if let Some(rest) = id.strip_prefix(MAGIC)
            && rest.get(..4) != Some(&std::process::id().to_le_bytes()[..])
        {
            return unsupported(
                "comm_init: this id was made in another process; the cpu backend connects ranks that are threads of one process",
            );
        }
        let timeout = cfg.timeout.unwrap_or(d.comm_timeout);
        let name = match cfg.name.as_str() {
            "" => "(unnamed)",
            name => name,
        };
        let world = {
            let mut worlds = lock(&b.registry.worlds);
            worlds.retain(|_, w| w.strong_count() > 0);
            match worlds.get(id).and_then(Weak::upgrade) {
                Some(w) => w,
                None => {
                    let pace: Arc<Pace> = b.pace.clone();
                    let turn = d.turn().map(|t| t.shared());
                    let w = Arc::new(World::new(n, name.into(), cfg.members, timeout, pace, turn));
                    worlds.insert(id.to_vec(), Arc::downgrade(&w));
                    w
                }
            }
        };
        if world.ranks() != n {
            return fail(
                Code::Invalid,
                format!(
                    "comm_init: rank {rank} says {n} ranks, the first to join said {}",
                    world.ranks()
                ),
            );
        }
        Member::join(world, rank, timeout, d.turn())
    }

    /// Waits for all ranks of the parent, at most its timeout.
    fn split(
        _: &CpuBackend,
        c: &Comm,
        color: Option<i32>,
        key: i32,
        cfg: CommConfig,
    ) -> Result<Option<Comm>> {
        let m = &*c.member;
        let timeout = cfg.timeout.unwrap_or(m.timeout);
        let number = c.splits.fetch_add(1, SeqCst);
        if let Some(t) = &m.schedule {
            t.begin();
        }
        let child = m
            .world
            .split(m.rank, number, color, key, timeout, &cfg.name)?;
        let Some((world, rank)) = child else {
            return Ok(None);
        };
        if (world.ranks(), rank) != (cfg.nranks as usize, cfg.rank as usize) {
            let e = world.error(
                Code::Invalid,
                format!(
                    "split by colour {} and key {key} makes rank {} of the parent rank {rank} of {}, its configuration says {} of {}",
                    color.unwrap_or(-1),
                    m.rank,
                    world.ranks(),
                    cfg.rank,
                    cfg.nranks
                ),
            );
            world.fail(e.clone());
            return Err(e);
        }
        Member::join(world, rank, timeout, m.schedule.clone()).map(Some)
    }

    fn supports(_: &CpuBackend, _: &Comm, shape: &CollShape) -> Result<Support> {
        collective::supported(shape)?;
        Ok(Support {
            tier: 2,
            latency_ns: 3_000,
            bytes_per_s: 0,
            max_bytes: 0,
        })
    }

    fn launch(_: &CpuBackend, c: &Comm, s: &Stream, group: &[Coll<'_, Mem>]) -> Result<()> {
        let m = &c.member;
        m.world.health()?;
        let n = m.world.ranks();
        let plan = |x| collective::request(x, (m.rank, n), address);
        let group = group.iter().map(plan).collect::<Result<SmallVec<_>>>()?;
        if group.is_empty() {
            return Ok(());
        }
        s.push(|batch| {
            batch.groups.push(Some(Launch {
                member: m.clone(),
                ticket: m.enqueued.0.fetch_add(1, SeqCst),
                group,
            }));
            Cmd::Collectives(batch.groups.len() as u32 - 1)
        })
        .map(|_| ())
    }

    fn async_error(_: &CpuBackend, c: &Comm) -> Result<Health> {
        let w = &c.member.world;
        w.check_connecting();
        w.health()?;
        if let (false, Some(t)) = (w.connected(), &c.member.schedule) {
            t.poll();
        }
        Ok(match w.connected() {
            true => Health::Ready,
            false => Health::Connecting,
        })
    }

    fn abort(_: &CpuBackend, c: &Comm) -> Result<()> {
        let (w, rank) = (&c.member.world, c.member.rank);
        w.fail(
            w.error(Code::Aborted, format!("{} aborted", w.members.of(rank)))
                .peer(rank.into()),
        );
        Ok(())
    }
}
