//! The rendezvous of the processes of a job: rank 0 opens a store, and the others learn its address through the
//! carrier that their launcher has connected.

use crate::launch::Launch;
use crate::store::JobStore;
use crossweave_hal::{Carrier, Code, Error, Result, Tag};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::TcpListener;
use std::time::Duration;

/// Room for rank 0's address and the job's secret.
const CARD: usize = 512;

/// Makes the store of the job. `host` is the name under which other machines reach this one.
///
/// # Errors
/// A launcher that has not connected the processes, no port to listen on, rank 0 out of reach.
pub fn rendezvous(
    carrier: &Carrier,
    launch: &Launch,
    host: &str,
    timeout: Duration,
) -> Result<JobStore> {
    let io = |e: std::io::Error| {
        let why = format!("rank 0 cannot open a port for the job's store: {e}");
        Error::new(Code::Comm, "rendezvous", why)
    };
    let mut card = vec![0u8; CARD];
    let mut listener = None;
    if launch.rank == 0 {
        // Nobody outside needs to reach a job on one machine.
        let here = launch.local_size >= launch.world;
        let (bind, name) = if here {
            ("127.0.0.1", "127.0.0.1")
        } else {
            ("0.0.0.0", host)
        };
        let l = TcpListener::bind((bind, 0)).map_err(io)?;
        let port = l.local_addr().map_err(io)?.port();
        let secret = || RandomState::new().build_hasher().finish();
        let text = format!("{name}:{port} {:016x}{:016x}", secret(), secret());
        if text.len() >= CARD {
            let why = format!("the name of this machine is too long: {name}");
            return Err(Error::new(Code::Invalid, "rendezvous", why));
        }
        card[..text.len()].copy_from_slice(text.as_bytes());
        listener = Some(l);
    }
    let device = carrier.device();
    let stream = device.stream("rendezvous", 0)?;
    let buffer = device.alloc_state(CARD as u64, Tag::Staging)?;
    stream.write(buffer.all(), &card)?;
    let mut world = carrier.world(launch.rank, launch.world, timeout)?;
    world.broadcast(
        &stream,
        buffer.all(),
        crossweave_hal::DType::U8,
        0,
        "rendezvous",
    )?;
    stream.read(buffer.all(), &mut card)?;
    let text = String::from_utf8_lossy(&card);
    let text = text.trim_end_matches('\0');
    let Some((address, secret)) = text.split_once(' ') else {
        let why = format!("rank {} got no address from rank 0", launch.rank);
        return Err(Error::new(Code::Comm, "rendezvous", why));
    };
    match listener {
        Some(l) => JobStore::serve(l, launch.world, secret.as_bytes()),
        None => {
            let (rank, world) = (launch.rank, launch.world);
            JobStore::connect(address, rank, world, secret.as_bytes(), timeout)
        }
    }
}
