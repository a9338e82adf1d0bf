//! The heartbeat between hosts, over links that a test can cut: the connection stays, and nothing comes through.

use crossweave_mesh::{Cause, JobStore, PeerFailure};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

const SECRET: &[u8] = b"sixteen letters.";
/// A failure that is not known by then never will be.
const HUNG: Duration = Duration::from_secs(120);

/// A way to the server whose first connections can be cut: those up to a number deliver nothing, either way, from then on.
#[derive(Clone)]
struct Link {
    made: Arc<AtomicU64>,
    cut: Arc<AtomicU64>,
    address: String,
}

impl Link {
    fn to(server: String) -> Link {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let link = Link {
            made: Arc::default(),
            cut: Arc::default(),
            address: listener.local_addr().unwrap().to_string(),
        };
        let own = link.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let far = TcpStream::connect(&server).unwrap();
                let number = own.made.fetch_add(1, SeqCst) + 1;
                for (from, to) in [(near.try_clone(), far.try_clone()), (Ok(far), Ok(near))] {
                    let (own, from, to) = (own.clone(), from.unwrap(), to.unwrap());
                    std::thread::spawn(move || own.carry(number, from, to));
                }
            }
        });
        link
    }

    fn carry(&self, number: u64, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = [0; 4096];
        while let Ok(n @ 1..) = from.read(&mut bytes) {
            while self.cut.load(SeqCst) >= number {
                std::thread::sleep(Duration::from_millis(5));
            }
            if to.write_all(&bytes[..n]).is_err() {
                return;
            }
        }
    }
}

fn server(world: u32) -> (JobStore, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (JobStore::serve(listener, world, SECRET).unwrap(), address)
}

fn connect(address: &str, process: u32, world: u32) -> JobStore {
    JobStore::connect(address, process, world, SECRET, Duration::from_secs(60)).unwrap()
}

fn hosts(names: &[&str]) -> Vec<(String, String)> {
    let each = names.iter().map(|n| (format!("id of {n}"), n.to_string()));
    each.collect()
}

fn failure(store: &JobStore) -> PeerFailure {
    let began = Instant::now();
    loop {
        if let Some(f) = store.failure() {
            return f;
        }
        assert!(began.elapsed() < HUNG, "nobody is named");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_link_that_is_cut_is_named_by_both_ends() {
    let (first, address) = server(5);
    // Process 1 is on rank 0's host, 2 and 3 on one that is cut off, 4 on a third.
    let (near, far) = (Link::to(address.clone()), Link::to(address.clone()));
    let mut all = vec![first];
    all.extend([connect(&near.address, 1, 5), connect(&far.address, 2, 5)]);
    all.extend([connect(&far.address, 3, 5), connect(&address, 4, 5)]);
    let hosts = hosts(&["h1", "h1", "h2", "h2", "h3"]);
    for store in &all {
        store.heartbeat(Duration::from_millis(600), &hosts);
    }
    // A neighbour that says nothing is watched by other means, and alone ends nothing.
    near.cut.store(u64::MAX, SeqCst);
    std::thread::sleep(Duration::from_millis(1500));
    assert!(all.iter().all(|s| s.failure().is_none()));
    near.cut.store(0, SeqCst);
    far.cut.store(u64::MAX, SeqCst);
    for (process, who, said) in [
        (
            0,
            2..4,
            "ranks 2 to 3 on h2 gave no sign of life to h1 for 0.6 s",
        ),
        (
            1,
            2..4,
            "ranks 2 to 3 on h2 gave no sign of life to h1 for 0.6 s",
        ),
        (
            4,
            2..4,
            "ranks 2 to 3 on h2 gave no sign of life to h1 for 0.6 s",
        ),
        (2, 0..1, "rank 0 on h1 gave no sign of life to h2 for 0.6 s"),
        (3, 0..1, "rank 0 on h1 gave no sign of life to h2 for 0.6 s"),
    ] {
        let f = failure(&all[process]);
        assert_eq!(
            (f.process, f.ranks.clone()),
            (who.start, who),
            "{process}: {f}"
        );
        assert!(matches!(f.cause, Cause::Silent(_)), "{f:?}");
        let text = f.to_string();
        assert!(text.starts_with(said), "{process}: {text}");
        assert!(
            text.contains("run.heartbeat_s") && text.contains("--resume"),
            "{text}"
        );
    }
}

#[test]
fn a_cut_that_mends_costs_only_time() {
    let (first, address) = server(2);
    let link = Link::to(address);
    let second = connect(&link.address, 1, 2);
    let (hosts, limit) = (hosts(&["h1", "h2"]), Duration::from_secs(3));
    first.heartbeat(limit, &hosts);
    second.heartbeat(limit, &hosts);
    // Everything is cut, then new connections alone come through, as long as TCP does not repeat what the old one has lost.
    link.cut.store(u64::MAX, SeqCst);
    std::thread::sleep(limit / 2);
    link.cut.store(link.made.load(SeqCst), SeqCst);
    std::thread::sleep(limit * 2);
    assert_eq!((first.failure(), second.failure()), (None, None));
    assert!(
        link.made.load(SeqCst) > 3,
        "signs of life came by new connections"
    );
}
