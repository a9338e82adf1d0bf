//! Messages under way, and the patience with which they are waited for: polled without blocking, given up on an abort, on a dead peer, at
//! the timeout, or as soon as a peer is known to be somewhere else. The rank that is missing is named.

use crate::channel::{FIRST, MESSAGE};
use crate::comm::Member;
use crate::library::{Group, Native, Request};
use crossweave_plugin::collective::Checked;
use crossweave_plugin::{Awake, Code, Error, GroupRank, Result, fail};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Waiting begins to sleep after this long: other ranks on the same cores have work to do.
const AWAKE: Duration = Duration::from_micros(200);
/// And after this long for each MiB under way, which passes through the library piece by piece only while somebody looks.
const AWAKE_MIB: Duration = Duration::from_millis(1);
/// Longest sleep between two looks.
const NAP: Duration = Duration::from_micros(200);
/// A wait of this length is reported to the other ranks, and theirs are read.
const WORD: Duration = Duration::from_secs(1);

struct Pending {
    request: Request,
    peer: GroupRank,
    bytes: i32,
    kind: Way,
}

/// The direction of what is under way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Sends,
    Receives,
    /// A collective of the library's own, among all members.
    OfAll,
}

/// What messages and the other ranks call a phase; put into words when somebody wants to read them.
#[derive(Clone, Copy)]
pub(crate) enum What<'a> {
    Collective(&'a Checked),
    /// A split, by its number, and what goes round.
    Split(u64, &'static str),
}

impl What<'_> {
    fn words(&self) -> [u64; 5] {
        match self {
            What::Collective(p) => p.words(),
            What::Split(nth, of) => [u64::MAX, *nth, of.len() as u64, 0, 0],
        }
    }
}

impl What<'_> {
    /// In words, with the ranks of the job.
    fn say(&self, m: &Member) -> String {
        match self {
            What::Collective(p) => p.what(&m.members),
            What::Split(nth, of) => format!("split {nth} ({of})"),
        }
    }
}

/// The messages of one phase of one collective.
pub(crate) struct Flight<'a> {
    member: &'a Member,
    what: What<'a>,
    /// Number of the collective on its communicator; `None` for sends and receives, which only two ranks count.
    number: Option<u64>,
    /// What of its tags says so.
    mark: u32,
    abandoned: Option<&'a AtomicBool>,
    /// The start of the wait, once it is longer than a poll.
    began: Option<Awake>,
    pending: SmallVec<[Pending; 8]>,
}

impl<'a> Flight<'a> {
    /// `abandoned`: turns true when waiting has become pointless.
    pub(crate) fn new(
        member: &'a Member,
        what: What<'a>,
        number: Option<u64>,
        abandoned: Option<&'a AtomicBool>,
    ) -> Flight<'a> {
        let mark = match number {
            // Ranks that are not in the same collective do not share a tag, so that one's bytes never end in the other's buffers.
            Some(n) => {
                let seed = 0xcbf2_9ce4_8422_2325 ^ n;
                let step = |h: u64, w: u64| (h ^ h >> 29 ^ w).wrapping_mul(0xd6e8_feb8_6659_fd93);
                let room = u64::from(member.channels.width() - FIRST);
                FIRST + ((what.words().into_iter().fold(seed, step) >> 33) % room) as u32
            }
            None => MESSAGE,
        };
        Flight {
            member,
            what,
            number,
            mark,
            abandoned,
            began: None,
            pending: SmallVec::new(),
        }
    }

    /// Messages of another tag: what two ranks say each other in different phases of a collective is kept apart, in whatever order it is
    /// asked for. There are fewer phases than tags.
    pub(crate) fn phase(mut self, nth: u32) -> Flight<'a> {
        let room = self.member.channels.width() - FIRST;
        self.mark = FIRST + (self.mark - FIRST + nth) % room;
        self
    }

    /// Starts sending.
    ///
    /// # Safety
    /// The bytes are readable and unchanged until [`Flight::land`] has returned.
    pub(crate) unsafe fn send(&mut self, to: usize, at: *const u8, bytes: usize) -> Result<()> {
        let m = self.member;
        let peer = m.links.peers[to];
        let tag = m.channels.tag(peer.to, self.mark);
        let mut from = 0;
        loop {
            let len = (bytes - from).min(m.longest) as i32;
            // SAFETY: promised by the caller.
            let request = unsafe {
                let at = at.wrapping_add(from);
                m.mpi.send(peer.process, tag, at, len)
            }
            .map_err(|e| self.blame(e, to.into()))?;
            m.links
                .sent
                .count(m.links.hosts.apart(m.rank as usize, to), len as u64);
            self.pending.push(Pending {
                request,
                peer: to.into(),
                bytes: len,
                kind: Way::Sends,
            });
            from += len as usize;
            if from >= bytes {
                return Ok(());
            }
        }
    }

    /// Starts receiving.
    ///
    /// # Safety
    /// The bytes are writable and nobody else's until [`Flight::land`] has returned.
    pub(crate) unsafe fn recv(&mut self, from: usize, at: *mut u8, bytes: usize) -> Result<()> {
        let m = self.member;
        let peer = m.links.peers[from];
        let tag = m.channels.tag(peer.from, self.mark);
        let mut done = 0;
        loop {
            let len = (bytes - done).min(m.longest) as i32;
            // SAFETY: promised by the caller.
            let request = unsafe {
                let at = at.wrapping_add(done);
                m.mpi.recv(peer.process, tag, at, len)
            }
            .map_err(|e| self.blame(e, from.into()))?;
            self.pending.push(Pending {
                request,
                peer: from.into(),
                bytes: len,
                kind: Way::Receives,
            });
            done += len as usize;
            if done >= bytes {
                return Ok(());
            }
        }
    }

    /// Starts a collective of the library's own, which moves about so many bytes on this rank.
    ///
    /// # Safety
    /// As the call says, and its memory stays where it is for ever if the flight does not land.
    pub(crate) unsafe fn of_all(
        &mut self,
        bytes: usize,
        start: impl FnOnce(&dyn Native, Group) -> Result<Request>,
    ) -> Result<()> {
        let m = self.member;
        let lacks = || Error::new(Code::Internal, "no communicator of MPI's own was made");
        let started = m.mpi.native().and_then(|native| {
            let group = m.links.by.group.ok_or_else(lacks)?;
            start(native, group)
        });
        let peer = GroupRank(m.rank);
        let request = started.map_err(|e| self.blame(e, peer))?;
        self.pending.push(Pending {
            request,
            peer,
            bytes: bytes.min(i32::MAX as usize) as i32,
            kind: Way::OfAll,
        });
        Ok(())
    }

    /// Waits until everything has arrived and left.
    pub(crate) fn land(&mut self) -> Result<()> {
        let result = self.wait();
        if result.is_err() {
            self.give_up();
        }
        result
    }

    /// Gives up what is under way. Collectives of the library's own cannot be cancelled: they are left behind.
    fn give_up(&mut self) {
        for p in self.pending.drain(..).filter(|p| p.kind != Way::OfAll) {
            self.member.mpi.cancel(p.request);
        }
    }

    fn wait(&mut self) -> Result<()> {
        let m = self.member;
        let under_way: u64 = self.pending.iter().map(|p| p.bytes as u64).sum();
        let awake = AWAKE + AWAKE_MIB * (under_way >> 20) as u32;
        // The clock is not read while what is awaited may come at any moment.
        let (mut idle, mut looks) = (None, 0u32);
        let mut word = WORD;
        loop {
            let before = self.pending.len();
            let mut i = 0;
            while i < self.pending.len() {
                let p = &mut self.pending[i];
                match m.mpi.test(&mut p.request, p.kind == Way::Receives) {
                    Ok(None) => i += 1,
                    Ok(Some(bytes)) => {
                        let p = self.pending.swap_remove(i);
                        if p.kind == Way::Receives && bytes != p.bytes {
                            return Err(self.wrong_length(&p, bytes));
                        }
                    }
                    Err(e) => {
                        let p = self.pending.swap_remove(i);
                        return Err(self.blame(e, p.peer));
                    }
                }
            }
            if self.pending.is_empty() {
                return Ok(());
            }
            if m.aborted.load(SeqCst) {
                return Err(self.aborted());
            }
            looks += 1;
            if self.pending.len() < before {
                (idle, looks) = (None, 0);
                continue;
            }
            if looks < 32 {
                std::hint::spin_loop();
                continue;
            }
            let waited = idle.get_or_insert_with(Instant::now).elapsed();
            if waited < awake {
                std::thread::yield_now();
                if looks % 256 != 0 {
                    continue;
                }
            } else {
                std::thread::sleep(NAP.min(waited / 8));
            }
            if self.abandoned.is_some_and(|a| a.load(SeqCst)) {
                return Err(self.aborted());
            }
            let since = self
                .began
                .get_or_insert_with(|| Awake::new(m.timeout))
                .ran();
            if since > word {
                word = since + WORD;
                self.compare_notes()?;
            }
            if since > m.timeout {
                return Err(self.timed_out());
            }
        }
    }

    fn waited(&self) -> Duration {
        self.began.map_or(Duration::ZERO, |mut t| t.ran())
    }

    fn words(&self) -> String {
        self.what.say(self.member)
    }

    fn name(&self) -> String {
        match self.number {
            Some(n) => format!("{} (#{n} on {})", self.words(), self.member.name),
            None => format!("{} on {}", self.words(), self.member.name),
        }
    }

    fn peers(&self) -> Vec<GroupRank> {
        if self.pending.iter().any(|p| p.kind == Way::OfAll) {
            let all = (0..self.member.ranks).filter(|r| *r != self.member.rank);
            return all.map(GroupRank).collect();
        }
        let mut peers: Vec<GroupRank> = self.pending.iter().map(|p| p.peer).collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// Where a member last said it waits: number and what.
    fn word_of(&self, of: GroupRank) -> Option<(u64, String)> {
        let m = self.member;
        let key = format!("{}at/{}", m.prefix, of.0);
        let bytes = m.host.kv_get(&key, Duration::from_millis(1)).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        let (n, what) = text.split_once(' ')?;
        Some((n.parse().ok()?, what.to_string()))
    }

    /// Says where this rank waits and looks where the others do. Two ranks whose collective of one number differs will never meet.
    fn compare_notes(&self) -> Result<()> {
        let (m, Some(number)) = (self.member, self.number) else {
            return Ok(());
        };
        // Without a store that reaches the other ranks only the timeout is left.
        let _ = m.host.kv_set(
            &format!("{}at/{}", m.prefix, m.rank),
            format!("{number} {}", self.words()).as_bytes(),
        );
        for peer in self.peers() {
            if let Some((n, what)) = self.word_of(peer)
                && n == number
                && what != self.words()
            {
                let e = Error::new(
                    Code::Comm,
                    format!(
                        "{} is in {what} (#{n} on {}) where {} is in {}: the ranks do not run the same program; \
                         compare configs and versions",
                        m.who(peer),
                        m.name,
                        m.me(),
                        self.name()
                    ),
                );
                return Err(e.peer(peer));
            }
        }
        Ok(())
    }

    fn timed_out(&self) -> Error {
        let m = self.member;
        let peers = self.peers();
        let words: Vec<_> = peers.iter().map(|p| (*p, self.word_of(*p))).collect();
        let describe = |(p, word): &(GroupRank, Option<(u64, String)>)| {
            let who = m.who(*p);
            match (self.number, word) {
                (Some(n), Some((at, what))) if *at != n => {
                    format!("{who} (last seen waiting in {what}, #{at})")
                }
                (Some(_), Some(_)) => format!("{who} (it waits for another rank)"),
                _ => who,
            }
        };
        // A peer that waits here too is not the cause; whether another one is only the checker can say, who knows what that waits for.
        let waits = |w: &Option<(u64, String)>| w.as_ref().map(|(at, _)| *at) == self.number;
        let absent = words
            .iter()
            .find(|(_, w)| self.number.is_none() || !waits(w));
        let who: Vec<String> = words.iter().map(describe).collect();
        let e = Error::new(
            Code::Timeout,
            format!(
                "{}: {} waited {:.1} s for {}",
                self.name(),
                m.me(),
                self.waited().as_secs_f64(),
                who.join(", ")
            ),
        );
        match absent {
            Some((p, _)) => e.peer(*p),
            None => e,
        }
    }

    fn aborted(&self) -> Error {
        let who: Vec<String> = self.peers().iter().map(|p| self.member.who(*p)).collect();
        Error::new(
            Code::Aborted,
            format!(
                "{}: aborted while {} waited for {}",
                self.name(),
                self.member.me(),
                who.join(", ")
            ),
        )
    }

    fn wrong_length(&self, p: &Pending, got: i32) -> Error {
        Error::new(
            Code::Comm,
            format!(
                "{}: {} sent {got} bytes where {} expects {}",
                self.name(),
                self.member.who(p.peer),
                self.member.me(),
                p.bytes
            ),
        )
        .peer(p.peer)
    }

    fn blame(&self, mut e: Error, peer: GroupRank) -> Error {
        if peer.0 == self.member.rank {
            // A collective of all, of which the library says no rank.
            e.message = format!("{}: {}: {}", self.name(), self.member.me(), e.message);
            return e;
        }
        e.message = format!(
            "{}: {} with {}: {}",
            self.name(),
            self.member.me(),
            self.member.who(peer),
            e.message
        );
        e.peer(peer)
    }
}

impl Drop for Flight<'_> {
    /// Messages that are still under way when their collective has failed are given up.
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Waits for `ready`, under the same patience, for things that are not messages.
pub(crate) fn until(
    m: &Member,
    what: &str,
    abandoned: &AtomicBool,
    ready: impl Fn() -> bool,
) -> Result<()> {
    let mut began = Awake::new(m.timeout);
    while !ready() {
        m.health()?;
        if abandoned.load(SeqCst) {
            return fail(Code::Aborted, format!("{what} on {}: aborted", m.name));
        }
        if began.is_over() {
            return fail(
                Code::Timeout,
                format!("{what} on {}: not within {:?}", m.name, m.timeout),
            );
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    Ok(())
}
