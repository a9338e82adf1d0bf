//! Connecting processes that no launcher of MPI has started (torchrun's, a scheduler's, a shell's): rank 0 speaks the process manager
//! interface PMI-1 to everyone's MPI library, as MPICH's own launcher would.
//!
//! Every process connects to rank 0 and says who it is; when all have come, each hands its open connection to MPICH by the variables
//! `PMI_FD`, `PMI_RANK` and `PMI_SIZE`, and starts MPI. What MPICH then writes there are lines `cmd=put key=… value=…`, `cmd=barrier_in`
//! and a few more: the addresses its processes find each other by. Open MPI has no such door (ADR 0025).
//!
//! The port may be taken, by another job or by the launcher's own store, so the next [`PORTS`] are tried; who answers proves that it is of
//! this job by saying the job's key back.

use crossweave_plugin::{Code, Host, Result, fail};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Ports tried from the given one on.
const PORTS: u16 = 16;
/// PMI-1 lines have at most 1024 bytes.
const LINE: usize = 4096;
/// For one question to the program that listens on a port.
const ANSWER: Duration = Duration::from_secs(3);
/// After so long a wait it is said who is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// For the others to hear why the job does not start, before rank 0 does.
const LAST_WORDS: Duration = Duration::from_millis(300);
/// When the job cannot start, those that have not come yet learn of it too, if they come so soon.
const LINGER: Duration = Duration::from_secs(2);
/// Rank 0 lets the others leave MPI first, so long at most.
const LEAVING: Duration = Duration::from_secs(10);
/// Connections served at a time beyond the ranks' own: strangers.
const STRANGERS: usize = 64;
/// Entries MPI may leave; it leaves a few a process.
const ENTRIES: usize = 1 << 20;

/// Where the processes of a job meet, and who this one is.
#[derive(Clone, Debug)]
pub(crate) struct Rendezvous {
    address: String,
    port: u16,
    rank: u32,
    size: u32,
    /// Equal in all processes of a job, and in no other job.
    key: String,
    timeout: Duration,
}

impl Rendezvous {
    /// `mpi.meet` (`ADDRESS:PORT`), `mpi.meet_rank`, `mpi.meet_size`, `mpi.meet_key`, `mpi.meet_timeout_s` (120).
    pub(crate) fn read(host: &Host) -> Result<Option<Rendezvous>> {
        let Some(place) = host.config("mpi.meet") else {
            return Ok(None);
        };
        let number = |key: &str, default: Option<u32>| -> Result<u32> {
            let text = host.config(key);
            match (text.as_deref().map(str::parse), default) {
                (Some(Ok(n)), _) | (None, Some(n)) => Ok(n),
                _ => fail(Code::Invalid, format!("{key} = {text:?}: give a number")),
            }
        };
        let Some((address, port)) = place.rsplit_once(':') else {
            return fail(
                Code::Invalid,
                format!("mpi.meet = {place:?}: give ADDRESS:PORT"),
            );
        };
        let Ok(port) = port.parse() else {
            return fail(
                Code::Invalid,
                format!("mpi.meet = {place:?}: {port:?} is no port"),
            );
        };
        let (rank, size) = (
            number("mpi.meet_rank", None)?,
            number("mpi.meet_size", None)?,
        );
        if rank >= size {
            return fail(Code::Invalid, format!("mpi.meet_rank = {rank} of {size}"));
        }
        let key = host.config("mpi.meet_key").unwrap_or_default();
        Ok(Some(Rendezvous {
            address: address.trim_matches(['[', ']']).into(),
            port,
            rank,
            size,
            // One word of the greeting.
            key: key.replace(|c: char| c.is_whitespace() || c.is_control(), "_"),
            timeout: Duration::from_secs(number("mpi.meet_timeout_s", Some(120))?.into()),
        }))
    }

    /// Meets the others and leaves the connection to the MPI library that is started next.
    pub(crate) fn join(&self, host: &Host) -> Result<()> {
        let link = self.connect(host)?;
        for (name, value) in [
            (c"PMI_FD", number(into_fd(link))?),
            (c"PMI_RANK", number(self.rank)?),
            (c"PMI_SIZE", number(self.size)?),
        ] {
            set_variable(name, &value, true);
        }
        Ok(())
    }

    /// A connection on which rank 0 answers PMI; every rank has one when this returns.
    fn connect(&self, host: &Host) -> Result<TcpStream> {
        let until = Instant::now() + self.timeout;
        let (at, board) = match self.rank {
            0 => {
                let (at, board) = self.serve(host, until)?;
                (vec![at], Some(board))
            }
            _ => (self.places()?, None),
        };
        let mut why = String::from("nobody listens there");
        let mut patience = Some(Instant::now() + PATIENCE);
        while Instant::now() < until {
            // Then it listens no more, not even to its own rank.
            if let Some(board) = &board
                && let Some(why) = { board.lock().over.clone() }
            {
                board.until_closed();
                return fail(Code::Comm, why);
            }
            if patience.is_some_and(|p| Instant::now() >= p) {
                patience = None;
                let (rank, address, port) = (self.rank, &self.address, self.port);
                let text = format!(
                    "rank {rank} looks for rank 0 at {address}:{port} (MASTER_ADDR, MASTER_PORT): {why}; it gives up after {:?}",
                    self.timeout
                );
                host.log(2, "mpi", &text);
            }
            for place in &at {
                match self.greet(*place, until) {
                    Ok(link) => return Ok(link),
                    Err(Refusal::Final(text)) => return fail(Code::Comm, text),
                    Err(Refusal::Passing(text)) => why = text,
                }
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        fail(
            Code::Timeout,
            format!(
                "rank {} did not find rank 0 at {}:{} (and the next {} ports) within {:?}: {why}",
                self.rank,
                self.address,
                self.port,
                PORTS - 1,
                self.timeout
            ),
        )
    }

    /// Where rank 0 may listen.
    fn places(&self) -> Result<Vec<SocketAddr>> {
        let found = (self.address.as_str(), self.port).to_socket_addrs();
        let all: Vec<SocketAddr> = match found {
            Ok(all) => all.collect(),
            Err(e) => {
                let why = format!("MASTER_ADDR {:?} cannot be resolved: {e}", self.address);
                return fail(Code::Comm, why);
            }
        };
        let ports = (0..PORTS).filter_map(|i| self.port.checked_add(i));
        Ok(ports
            .flat_map(|p| all.iter().map(move |a| SocketAddr::new(a.ip(), p)))
            .collect())
    }

    /// Asks the program that listens at `place` for a seat.
    fn greet(&self, place: SocketAddr, until: Instant) -> std::result::Result<TcpStream, Refusal> {
        let passing = |e: io::Error| Refusal::Passing(format!("{place}: {e}"));
        let mut link = TcpStream::connect_timeout(&place, ANSWER).map_err(passing)?;
        link.set_nodelay(true).map_err(passing)?;
        link.set_read_timeout(Some(ANSWER)).map_err(passing)?;
        let (key, rank, size) = (&self.key, self.rank, self.size);
        link.write_all(format!("crossweave-pmi 1 {key} {rank} {size}\n").as_bytes())
            .map_err(passing)?;
        let answer = read_line(&mut link).map_err(passing)?;
        if answer != format!("wait {key}") {
            return match answer.strip_prefix("no ") {
                Some(why) => Err(Refusal::Final(format!("rank 0 at {place}: {why}"))),
                None => Err(Refusal::Passing(format!("{place} is not of this job"))),
            };
        }
        // The server knows the time too, and names who is missing; a little longer, so that it speaks first.
        let left = until.saturating_duration_since(Instant::now()) + ANSWER;
        link.set_read_timeout(Some(left)).map_err(passing)?;
        let verdict = read_line(&mut link)
            .map_err(|e| Refusal::Final(format!("rank 0 went away before all ranks came: {e}")))?;
        if verdict != "go" {
            return Err(Refusal::Final(verdict.trim_start_matches("no ").into()));
        }
        link.set_read_timeout(None).map_err(passing)?;
        Ok(link)
    }

    /// Rank 0: listens, and serves on threads of the host.
    fn serve(&self, host: &Host, until: Instant) -> Result<(SocketAddr, Arc<Job>)> {
        let mut why = String::new();
        let mut taken = vec![];
        let places = self.places()?;
        // A name may resolve to an address that is not on this side of a translation; then any will do.
        let any = SocketAddr::from(([0, 0, 0, 0], self.port));
        let listener = places.into_iter().chain([any]).find_map(|p| {
            let l = TcpListener::bind(p);
            l.map_err(|e| {
                if e.kind() == io::ErrorKind::AddrInUse {
                    taken.push(p);
                }
                why = format!("{p}: {e}");
            })
            .ok()
        });
        let Some(listener) = listener else {
            let (address, port) = (&self.address, self.port);
            return fail(
                Code::Comm,
                format!("rank 0 cannot listen at {address}:{port} or the next ports ({why})"),
            );
        };
        let io = |e: io::Error| crossweave_plugin::Error::new(Code::Comm, format!("rank 0: {e}"));
        let mut at = listener.local_addr().map_err(io)?;
        if at.ip().is_unspecified() {
            at.set_ip([127, 0, 0, 1].into());
        }
        listener.set_nonblocking(true).map_err(io)?;
        let board = Arc::new(Job::new(self, *host));
        if !taken.is_empty() {
            let (meet, board) = (self.clone(), board.clone());
            // What it would find is only reported sooner: without a thread it is not looked for.
            drop(host.spawn(Box::new(move || meet.look_for_another(&taken, &board))));
        }
        let (meet, own) = (self.clone(), board.clone());
        host.spawn(Box::new(move || meet.accept(&listener, &own, until)))?;
        Ok((at, board))
    }

    /// Does a rank 0 of this very job listen on a port that was taken? Then two processes have that RANK.
    fn look_for_another(&self, taken: &[SocketAddr], board: &Job) {
        for place in taken {
            // Whichever process it is, ranks do not come twice: it says so, to us or to itself.
            let hello = format!("crossweave-pmi 1 {} 0 {}\n", self.key, self.size);
            let ask = || -> io::Result<String> {
                let mut link = TcpStream::connect_timeout(place, ANSWER)?;
                link.set_read_timeout(Some(ANSWER))?;
                link.write_all(hello.as_bytes())?;
                read_line(&mut link)
            };
            let ours = |a: &String| a.starts_with("no ") || *a == format!("wait {}", self.key);
            if ask().is_ok_and(|a| ours(&a)) {
                board.refuse(format!(
                    "two processes have RANK 0: the other listens at {place}"
                ));
            }
        }
    }

    /// Takes connections until every rank has one, or the time is over, or everybody knows why the job does not start.
    fn accept(&self, listener: &TcpListener, board: &Arc<Job>, until: Instant) {
        let strangers = Arc::new(AtomicUsize::new(0));
        let mut patience = Some(Instant::now() + PATIENCE);
        let mut lingers = None;
        loop {
            let st = board.lock();
            if st.over.is_some() {
                let end = *lingers.get_or_insert_with(|| Instant::now() + LINGER);
                if st.told + 1 >= self.size || Instant::now() >= end {
                    drop(st);
                    return board.close();
                }
            } else if st.complete() {
                return;
            }
            drop(st);
            if patience.is_some_and(|p| Instant::now() >= p) {
                patience = None;
                let at = (&self.address, self.port);
                let text = format!(
                    "rank 0 waits at {}:{} (MASTER_ADDR, MASTER_PORT) for {}; it gives up after {:?}",
                    at.0,
                    at.1,
                    board.missing(),
                    self.timeout
                );
                board.host.log(2, "mpi", &text);
            }
            if Instant::now() >= until {
                board.give_up(self.timeout);
                return board.close();
            }
            let link = match listener.accept() {
                Ok((link, _)) => link,
                Err(_) => {
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                }
            };
            if strangers.fetch_add(1, SeqCst) >= STRANGERS + self.size as usize {
                strangers.fetch_sub(1, SeqCst);
                continue;
            }
            let (board, meet, count) = (board.clone(), self.clone(), strangers.clone());
            let host = board.host;
            let served = host.spawn(Box::new(move || {
                let rank = meet.receive(link, &board);
                count.fetch_sub(1, SeqCst);
                if let Some((rank, link)) = rank {
                    board.serve(rank, link);
                }
            }));
            // Without a thread the connection is closed, and its rank comes again.
            if served.is_err() {
                strangers.fetch_sub(1, SeqCst);
            }
        }
    }

    /// Hears who has connected; `None` for strangers.
    fn receive(&self, mut link: TcpStream, board: &Job) -> Option<(u32, TcpStream)> {
        link.set_nonblocking(false).ok()?;
        link.set_nodelay(true).ok()?;
        link.set_read_timeout(Some(ANSWER)).ok()?;
        let hello = read_line(&mut link).ok()?;
        let words: Vec<&str> = hello.split(' ').collect();
        let ["crossweave-pmi", "1", key, rank, size] = words[..] else {
            return None;
        };
        if key != self.key {
            return None;
        }
        let answer = match (rank.parse::<u32>(), size.parse::<u32>()) {
            (Ok(r), Ok(n)) if n == self.size && r < n => match board.seat(r, &link) {
                true => Ok(r),
                false => Err(format!(
                    "rank {r} has come already: two processes have that RANK"
                )),
            },
            _ => Err(format!(
                "RANK {rank} of WORLD_SIZE {size}, where rank 0 has WORLD_SIZE {}",
                self.size
            )),
        };
        match answer {
            Ok(rank) => {
                link.write_all(format!("wait {key}\n").as_bytes()).ok()?;
                link.set_read_timeout(None).ok()?;
                Some((rank, link))
            }
            Err(why) => {
                let _ = link.write_all(format!("no {why}\n").as_bytes());
                // A rank that is two, or of a job of another size, is one that is missing here.
                board.refuse(why);
                board.lock().told += 1;
                None
            }
        }
    }
}

/// Why a place was no good.
enum Refusal {
    /// Another may be, or the same later.
    Passing(String),
    /// The job cannot start.
    Final(String),
}

/// What rank 0 knows of the job.
struct Job {
    size: u32,
    host: Host,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// A share of every rank's connection, to answer barriers and to end waits.
    links: BTreeMap<u32, TcpStream>,
    /// Nobody else is waited for: why.
    over: Option<String>,
    values: BTreeMap<String, String>,
    /// Ranks in the barrier.
    waiting: Vec<u32>,
    /// A rank that went without a farewell.
    gone: Option<u32>,
    /// Processes that have been notified, this one left out.
    told: u32,
    /// Nobody else will be.
    closed: bool,
    /// Ranks whose MPI has ended, well or not.
    left: u32,
    size: u32,
}

impl State {
    fn complete(&self) -> bool {
        self.links.len() as u32 == self.size
    }

    /// Nobody is waited for: all have come, or they will not.
    fn settled(&self) -> bool {
        self.complete() || self.over.is_some()
    }
}

impl Job {
    fn new(meet: &Rendezvous, host: Host) -> Job {
        let state = State {
            size: meet.size,
            ..State::default()
        };
        Job {
            size: meet.size,
            host,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Values are replaced whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a rank's connection; `false` if it has one.
    fn seat(&self, rank: u32, link: &TcpStream) -> bool {
        let mut st = self.lock();
        if st.links.contains_key(&rank) {
            return false;
        }
        let Ok(share) = link.try_clone() else {
            return false;
        };
        st.links.insert(rank, share);
        drop(st);
        self.changed.notify_all();
        true
    }

    /// Who has not come.
    fn missing(&self) -> String {
        let st = self.lock();
        let missing: Vec<String> = (0..self.size)
            .filter(|r| !st.links.contains_key(r))
            .map(|r| r.to_string())
            .collect();
        let s = if missing.len() == 1 { "" } else { "s" };
        format!("rank{s} {} of {}", missing.join(", "), self.size)
    }

    /// The time to come is over.
    fn give_up(&self, after: Duration) {
        self.refuse(format!("{} did not come within {after:?}", self.missing()));
    }

    /// The job cannot start, unless it has.
    fn refuse(&self, why: String) {
        let mut st = self.lock();
        if !st.settled() {
            st.over = Some(why);
        }
        drop(st);
        self.changed.notify_all();
    }

    /// Nobody is listened to any more.
    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Waits for that, in a job that cannot start: with rank 0 go those that tell the others.
    fn until_closed(&self) {
        let closed = |st: &mut State| !st.closed;
        let end = self
            .changed
            .wait_timeout_while(self.lock(), LINGER * 2, closed);
        drop(end.unwrap_or_else(PoisonError::into_inner));
    }

    /// Answers one rank until it ends.
    fn serve(&self, rank: u32, mut link: TcpStream) {
        let mut st = self.lock();
        while !st.settled() {
            st = self
                .changed
                .wait(st)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let verdict = match &st.over {
            Some(why) => format!("no {why}\n"),
            None => "go\n".into(),
        };
        drop(st);
        let mut ended = verdict != "go\n";
        if ended && rank == 0 {
            // The others first: the end of this process is the end of these threads.
            self.until_closed();
            std::thread::sleep(LAST_WORDS);
        }
        let _ = link.write_all(verdict.as_bytes());
        if ended && rank != 0 {
            self.lock().told += 1;
        }
        while !ended {
            let Ok(line) = read_line(&mut link) else {
                break;
            };
            let fields: BTreeMap<&str, &str> =
                line.split(' ').filter_map(|f| f.split_once('=')).collect();
            ended = fields.get("cmd") == Some(&"finalize");
            if ended && rank == 0 {
                self.see_off();
            }
            if let Some(answer) = self.answer(rank, &fields)
                && link.write_all(answer.as_bytes()).is_err()
            {
                break;
            }
        }
        if !ended {
            self.lost(rank);
        }
        self.lock().left += 1;
        self.changed.notify_all();
    }

    /// With the answer to its last command rank 0's process may end, and all these threads with it, before the others have theirs.
    fn see_off(&self) {
        let until = Instant::now() + LEAVING;
        let mut st = self.lock();
        while st.left + 1 < self.size {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            st = (self.changed.wait_timeout(st, left))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// The answer to one PMI-1 command.
    fn answer(&self, rank: u32, fields: &BTreeMap<&str, &str>) -> Option<String> {
        let field = |name: &str| fields.get(name).copied().unwrap_or("");
        Some(match field("cmd") {
            "init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n".into(),
            "get_maxes" => "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n".into(),
            "get_appnum" => "cmd=appnum appnum=0\n".into(),
            "get_my_kvsname" => "cmd=my_kvsname kvsname=crossweave\n".into(),
            "get_universe_size" => format!("cmd=universe_size size={}\n", self.size),
            "put" => {
                let mut st = self.lock();
                if st.values.len() < ENTRIES {
                    st.values.insert(field("key").into(), field("value").into());
                }
                "cmd=put_result rc=0 msg=success\n".into()
            }
            "get" => match self.lock().values.get(field("key")) {
                Some(v) => format!("cmd=get_result rc=0 msg=success value={v}\n"),
                None => "cmd=get_result rc=-1 msg=key_not_found value=unknown\n".into(),
            },
            "barrier_in" => {
                self.barrier(rank);
                return None;
            }
            "finalize" => "cmd=finalize_ack\n".into(),
            // `abort` is followed by the end of its process; nothing else is asked of a launcher that starts nothing.
            _ => return None,
        })
    }

    fn barrier(&self, rank: u32) {
        let mut st = self.lock();
        st.waiting.push(rank);
        if st.gone.is_some() {
            st.release();
        } else if st.waiting.len() as u32 == self.size {
            st.waiting.clear();
            for link in st.links.values_mut() {
                // Who cannot be written to is found gone by its own thread.
                let _ = link.write_all(b"cmd=barrier_out\n");
            }
        }
    }

    /// A rank ended without a farewell: any rank that waits for it in a barrier, now or later, shall not wait for ever.
    fn lost(&self, rank: u32) {
        let mut st = self.lock();
        let waited_for = !st.waiting.is_empty();
        st.gone.get_or_insert(rank);
        st.release();
        drop(st);
        if waited_for {
            let why = format!("rank {rank} went away while MPI was starting or ending");
            self.host.log(1, "mpi", &why);
        }
    }
}

impl State {
    /// Ends the connections of those in the barrier: their MPI library gives up.
    fn release(&mut self) {
        for rank in std::mem::take(&mut self.waiting) {
            if let Some(link) = self.links.get(&rank) {
                let _ = link.shutdown(Shutdown::Both);
            }
        }
    }
}

/// One line, without what follows it: that is for another reader.
fn read_line(link: &mut TcpStream) -> io::Result<String> {
    let (mut line, mut byte) = (vec![], [0u8]);
    loop {
        match link.read(&mut byte) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) if byte[0] == b'\n' => break,
            Ok(_) if line.len() == LINE => return Err(io::Error::other("a line too long")),
            Ok(_) => line.push(byte[0]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    String::from_utf8(line).map_err(io::Error::other)
}

#[cfg(unix)]
fn into_fd(link: TcpStream) -> c_int {
    std::os::fd::IntoRawFd::into_raw_fd(link)
}

#[cfg(not(unix))]
fn into_fd(link: TcpStream) -> c_int {
    drop(link);
    -1
}

fn number(n: impl ToString) -> Result<CString> {
    CString::new(n.to_string()).or_else(|e| fail(Code::Internal, e.to_string()))
}

/// Names the interfaces that the libraries are to use, unless their own variables do: Open MPI's TCP, and the transports of UCX and libfabric, of which
/// MPICH and Open MPI are built.
pub(crate) fn on_interface(names: &str) -> Result<()> {
    for name in [
        c"OMPI_MCA_btl_tcp_if_include",
        c"UCX_NET_DEVICES",
        c"FI_TCP_IFACE",
    ] {
        set_variable(name, &number(names)?, false);
    }
    Ok(())
}

/// For the C library's readers, of which MPI is one. Unless it `replaces`, a value that is there stays.
fn set_variable(name: &CStr, value: &CStr, replaces: bool) {
    unsafe extern "C" {
        fn setenv(name: *const c_char, value: *const c_char, overwrite: c_int) -> c_int;
    }
    // SAFETY: both texts end with 0 and are copied. MPI reads them next on this thread; the job's other threads read no environment while
    // it starts (the command line has read its own before).
    unsafe { setenv(name.as_ptr(), value.as_ptr(), c_int::from(replaces)) };
}

#[cfg(test)]
mod tests;
