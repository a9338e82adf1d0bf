//! The rendezvous of the processes of a job: rank 0 opens a store, and the others learn its addresses through the
//! carrier that their launcher has connected.

use crate::interface::Interface;
use crate::launch::{Launch, Launcher};
use crate::store::JobStore;
use crossweave_hal::{Carrier, Code, Error, Result, Tag, addresses};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, TcpListener};
use std::time::Duration;

/// Room for rank 0's addresses and the job's secret.
const CARD: usize = 2048;
/// Addresses of rank 0's host that are announced at most.
const ANNOUNCED: usize = 24;
/// Rank 0 listens before the others learn where: who has not reached it by then will not.
const REACH: Duration = Duration::from_secs(20);

/// This machine, as others reach it.
#[derive(Clone, Copy)]
pub struct Host<'a> {
    /// Its name.
    pub name: &'a str,
    /// The interface on which others are to reach it; `None`: by its name, and by all addresses.
    pub interface: Option<&'a Interface>,
}

impl<'a> From<&'a str> for Host<'a> {
    fn from(name: &'a str) -> Host<'a> {
        Host {
            name,
            interface: None,
        }
    }
}

/// Makes the store of the job. `host` is this machine; others reach rank 0 by its name, or by its addresses, or by those of one interface
/// alone. `say` receives at once which name does not resolve.
///
/// # Errors
/// A launcher that has not connected the processes, no port to listen on, rank 0 out of reach.
pub fn rendezvous<'a>(
    carrier: &Carrier,
    launch: &Launch,
    host: impl Into<Host<'a>>,
    timeout: Duration,
    say: impl Fn(&str),
) -> Result<JobStore> {
    let mut card = vec![0u8; CARD];
    let mut listener = None;
    let host = host.into();
    if launch.rank == 0 {
        let (l, mut names) = listen(launch, host)?;
        let secret = || RandomState::new().build_hasher().finish();
        let secret = format!("{:016x}{:016x}", secret(), secret());
        let text = loop {
            let text = format!("{} {secret}", names.join(","));
            if text.len() < CARD || names.pop().is_none() {
                break text;
            }
        };
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
    let Some((names, secret)) = text.split_once(' ') else {
        let why = format!("process {} got no address from rank 0", launch.rank);
        return Err(Error::new(Code::Comm, "rendezvous", why));
    };
    match listener {
        Some(all) => JobStore::serve_all(all, launch.world, secret.as_bytes()),
        None => {
            let names: Vec<String> = names.split(',').map(str::to_string).collect();
            let (process, world) = (launch.rank, launch.world);
            let secret = secret.as_bytes();
            let reached = JobStore::reach(&names, process, world, secret, timeout.min(REACH), say);
            reached.map_err(|e| match host.interface {
                Some(i) => e.context(i.to_string()),
                None => e,
            })
        }
    }
}

/// Opens ports, and says under which addresses they are to be reached.
fn listen(launch: &Launch, host: Host<'_>) -> Result<(Vec<TcpListener>, Vec<String>)> {
    let wrong = |why: String| Error::new(Code::Comm, "rendezvous", why);
    let io = |e: std::io::Error| {
        wrong(format!(
            "rank 0 cannot open a port for the job's store: {e}"
        ))
    };
    if let Some(interface) = host.interface {
        let (mut all, mut names) = (vec![], vec![]);
        for address in &interface.addresses {
            let open = || -> std::io::Result<_> {
                let l = TcpListener::bind((*address, 0))?;
                let at = l.local_addr()?;
                Ok((l, at))
            };
            let (l, at) = open().map_err(|e| {
                let why =
                    format!("rank 0 cannot open a port of {address} for the job's store: {e}");
                wrong(format!("{interface}: {why}"))
            })?;
            all.push(l);
            names.push(at.to_string());
        }
        return Ok((all, names));
    }
    // Nobody outside needs to reach a job on one machine.
    if alone(launch) {
        let l = TcpListener::bind(("127.0.0.1", 0)).map_err(io)?;
        let port = l.local_addr().map_err(io)?.port();
        return Ok((vec![l], vec![format!("127.0.0.1:{port}")]));
    }
    let l = TcpListener::bind(("::", 0));
    let l = l
        .or_else(|_| TcpListener::bind(("0.0.0.0", 0)))
        .map_err(io)?;
    let port = l.local_addr().map_err(io)?.port();
    let master = launch.master.as_ref().map(|(name, _)| name.as_str());
    Ok((vec![l], announced(master, host.name, &addresses(), port)))
}

/// Are all processes on this machine, by what their launcher says?
fn alone(launch: &Launch) -> bool {
    let elsewhere = |name: &str| name != "localhost" && !name.starts_with("127.") && name != "::1";
    let master = launch.master.as_ref();
    // A loop that sets no local size may span machines.
    let far = master.is_some_and(|(name, _)| elsewhere(name));
    launch.local_size >= launch.world && !(launch.launcher == Launcher::Torchrun && far)
}

/// What the others try: the address they were given for rank 0, the name of its host, and all its addresses.
fn announced(master: Option<&str>, host: &str, own: &[IpAddr], port: u16) -> Vec<String> {
    let own = own.iter().map(IpAddr::to_string);
    let names = master.into_iter().chain([host]).map(str::to_string);
    let local = "127.0.0.1".to_string();
    let mut all: Vec<String> = vec![];
    for name in names.chain(own).take(ANNOUNCED).chain([local]) {
        let odd = name.is_empty() || name.contains([',', ' ']);
        let name = match name.contains(':') && !name.starts_with('[') {
            true => format!("[{name}]:{port}"),
            false => format!("{name}:{port}"),
        };
        if !odd && !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store of an interface listens on its addresses and nowhere else, in either version of IP, and is announced by them alone.
    #[test]
    fn rank_0_of_an_interface_is_reached_by_it_alone() {
        let all: Vec<(String, IpAddr)> = [("lo", "127.0.0.1"), ("lo", "::1")]
            .map(|(name, a)| (name.to_string(), a.parse().unwrap()))
            .into();
        // Where a machine has no IPv6 the address of IPv4 is what there is.
        let six = TcpListener::bind(("::1", 0)).is_ok();
        let all = &all[..if six { 2 } else { 1 }];
        let lo = Interface::find(&["lo".to_string()], "h1", all).unwrap();
        let variables = |name: &str| match name {
            "OMPI_COMM_WORLD_RANK" => Some("0".to_string()),
            "OMPI_COMM_WORLD_SIZE" => Some("2".to_string()),
            _ => None,
        };
        let launch = crate::detect(variables).unwrap().unwrap();
        let host = Host {
            name: "h1",
            interface: Some(&lo),
        };
        let (ports, names) = listen(&launch, host).unwrap();
        assert_eq!((ports.len(), names.len()), (all.len(), all.len()));
        assert!(names[0].starts_with("127.0.0.1:"), "{names:?}");
        let store = JobStore::serve_all(ports, 2, b"secret").unwrap();
        for name in &names {
            let timeout = Duration::from_secs(60);
            let other = JobStore::connect(name, 1, 2, b"secret", timeout).unwrap();
            let (key, value) = (format!("by {name}"), name.as_bytes());
            crossweave_hal::KvStore::set(&other, &key, value).unwrap();
            let got = crossweave_hal::KvStore::get(&store, &key, Some(timeout)).unwrap();
            assert_eq!(got, value);
        }
        // An address that this machine does not have.
        let elsewhere = [("eth7".to_string(), "192.0.2.1".parse().unwrap())];
        let gone = Interface::find(&["192.0.2.0/24".into()], "h1", &elsewhere).unwrap();
        let host = Host {
            name: "h1",
            interface: Some(&gone),
        };
        let e = listen(&launch, host).unwrap_err().to_string();
        for part in [
            "run.interface \"192.0.2.0/24\" (eth7)",
            "a port of 192.0.2.1",
        ] {
            assert!(e.contains(part), "{part}: {e}");
        }
    }

    #[test]
    fn rank_0_is_announced_by_its_name_and_all_its_addresses() {
        let own = ["10.77.0.1", "2001:db8::5"].map(|a| a.parse().unwrap());
        let all = announced(Some("head"), "h1", &own, 7);
        let want = [
            "head:7",
            "h1:7",
            "10.77.0.1:7",
            "[2001:db8::5]:7",
            "127.0.0.1:7",
        ];
        assert_eq!(all, want);
        // Names that nobody could read out of the list again, and repetitions, are left out.
        assert_eq!(
            announced(Some("10.77.0.1"), "a,b", &own[..1], 7),
            [want[2], want[4]]
        );
        let many: Vec<IpAddr> = (0..200).map(|n| IpAddr::from([10, 0, 0, n])).collect();
        assert!(announced(None, "h", &many, 65535).join(",").len() < CARD - 40);
    }
}
