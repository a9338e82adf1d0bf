//! The way to rank 0's store, which has several addresses: all are tried at once, and what answers must know the job's secret, since an
//! address that is private to a host may be another machine's elsewhere.

use crate::message::{Message, kind};
use crossweave_hal::{Code, Error, Result};
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// One attempt to connect, and one answer, take this long at most.
const ATTEMPT: Duration = Duration::from_secs(3);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// What becomes of an address.
enum News {
    Open(TcpStream),
    /// It leads nowhere, or not yet. `true`: the name does not resolve.
    Shut(String, bool),
}

/// A connection to rank 0 and the address that led there.
///
/// # Errors
/// None answers within `timeout`.
pub(crate) fn open(
    addresses: &[String],
    process: u32,
    secret: &[u8],
    timeout: Duration,
    say: &dyn Fn(&str),
) -> Result<(TcpStream, String)> {
    let until = Instant::now() + timeout;
    let over = Arc::new(AtomicBool::new(false));
    let (tell, told) = channel();
    for (n, address) in addresses.iter().enumerate() {
        let (tell, over) = (tell.clone(), over.clone());
        let (address, secret) = (address.clone(), secret.to_vec());
        let body = move || attempts(n, &address, &secret, until, &over, &tell);
        let thread = std::thread::Builder::new().name("store door".into());
        thread.spawn(body).map_err(|e| {
            let why = format!("cannot start a thread: {e}");
            Error::new(Code::Comm, "store", why)
        })?;
    }
    drop(tell);
    let mut reasons: BTreeMap<usize, String> = BTreeMap::new();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match told.recv_timeout(left) {
            Ok((n, News::Open(stream))) => {
                over.store(true, Relaxed);
                return Ok((stream, addresses[n].clone()));
            }
            Ok((n, News::Shut(why, unknown))) => {
                if unknown && !reasons.contains_key(&n) {
                    say(&format!(
                        "process {process} cannot resolve the name of rank 0's host, {}: {why}",
                        addresses[n]
                    ));
                }
                reasons.insert(n, why);
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    over.store(true, Relaxed);
    let each = addresses.iter().enumerate().map(|(n, a)| {
        let why = reasons.get(&n).map_or("no answer", String::as_str);
        format!("{a}: {why}")
    });
    let why = format!(
        "process {process} cannot reach rank 0 within {timeout:?} ({}); check that one of these addresses is rank 0's, and that no \
         firewall stands between",
        each.collect::<Vec<_>>().join("; ")
    );
    Err(Error::new(Code::Comm, "store", why))
}

/// Tries one address until it opens or nobody waits any more.
fn attempts(
    n: usize,
    address: &str,
    secret: &[u8],
    until: Instant,
    over: &AtomicBool,
    tell: &Sender<(usize, News)>,
) {
    let mut before = String::new();
    while !over.load(Relaxed) && Instant::now() < until {
        let (why, unknown) = match address.to_socket_addrs() {
            Err(e) => (e.to_string(), true),
            Ok(all) => {
                let mut why = "the name has no address".to_string();
                for at in all {
                    match knock(&at, secret, until) {
                        Ok(stream) => {
                            let _ = tell.send((n, News::Open(stream)));
                            return;
                        }
                        Err(e) => why = e.to_string(),
                    }
                }
                (why, false)
            }
        };
        if why != before {
            before.clone_from(&why);
            if tell.send((n, News::Shut(why, unknown))).is_err() {
                return;
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// One more connection to the store at `at`, which has answered before. No name is resolved for it, which may take long while a link is down.
///
/// # Errors
/// It cannot be reached within `limit`.
pub(crate) fn again(at: &SocketAddr, secret: &[u8], limit: Duration) -> io::Result<TcpStream> {
    let limit = limit.min(ATTEMPT);
    let stream = knock(at, secret, Instant::now() + limit)?;
    stream.set_read_timeout(Some(limit))?;
    Ok(stream)
}

/// Connects, and sees that it is this job's store.
fn knock(at: &SocketAddr, secret: &[u8], until: Instant) -> io::Result<TcpStream> {
    let left = until.saturating_duration_since(Instant::now());
    let limit = left.min(ATTEMPT).max(Duration::from_millis(1));
    let stream = TcpStream::connect_timeout(at, limit)?;
    let (knock, welcome) = secret.split_at(secret.len() / 2);
    stream.set_read_timeout(Some(limit))?;
    Message::new(kind::KNOCK, 0, "", knock).write(&mut &stream)?;
    let other = || io::Error::other("what answers there is not the store of this job");
    let said = Message::read(&mut &stream).map_err(|_| other())?;
    if said.kind != kind::WELCOME || said.value != welcome {
        return Err(other());
    }
    stream.set_read_timeout(None)?;
    Ok(stream)
}
