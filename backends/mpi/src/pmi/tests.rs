//! Ranks that meet as threads of one process, and what becomes of those that do not.

use super::*;

fn meet(port: u16, rank: u32, size: u32, seconds: u64) -> Rendezvous {
    Rendezvous {
        address: "127.0.0.1".into(),
        port,
        rank,
        size,
        // The ports of tests that run beside each other overlap, and each is a job of its own.
        key: format!("job-{port}"),
        timeout: Duration::from_secs(seconds),
    }
}

/// A port that was free a moment ago.
fn port() -> u16 {
    let l = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    l.local_addr().unwrap().port().min(u16::MAX - PORTS)
}

fn say(link: &mut TcpStream, line: &str) -> String {
    link.write_all(format!("{line}\n").as_bytes()).unwrap();
    read_line(link).unwrap()
}

#[test]
fn ranks_meet_past_strangers_and_taken_ports_and_exchange_values() {
    let port = port();
    // Somebody else's store has the port, and answers nothing.
    let taken = TcpListener::bind(("127.0.0.1", port));
    let host = Host::none();
    std::thread::scope(|s| {
        let noise = s.spawn(move || {
            for bytes in [&b"GET / HTTP/1.0\r\n\r\n"[..], &[0xff; 9000], b"\n", b""] {
                for p in port..port + PORTS {
                    if let Ok(mut l) = TcpStream::connect(("127.0.0.1", p)) {
                        let _ = l.write_all(bytes);
                    }
                }
            }
        });
        let ranks: Vec<_> = (0..3)
            .map(|r| {
                let host = &host;
                s.spawn(move || {
                    let mut l = meet(port, r, 3, 60).connect(host).unwrap();
                    let init = say(&mut l, "cmd=init pmi_version=1 pmi_subversion=1");
                    assert!(init.ends_with("rc=0"), "{init}");
                    let put = format!("cmd=put kvsname=crossweave key=a{r} value=v{r}");
                    assert!(say(&mut l, &put).contains("rc=0"));
                    assert_eq!(say(&mut l, "cmd=barrier_in"), "cmd=barrier_out");
                    let next = (r + 1) % 3;
                    let got = say(&mut l, &format!("cmd=get kvsname=crossweave key=a{next}"));
                    assert!(got.ends_with(&format!("value=v{next}")), "{got}");
                    let none = say(&mut l, "cmd=get kvsname=crossweave key=nobody");
                    assert!(none.contains("rc=-1"), "{none}");
                    assert_eq!(say(&mut l, "cmd=finalize"), "cmd=finalize_ack");
                })
            })
            .collect();
        ranks.into_iter().for_each(|r| r.join().unwrap());
        noise.join().unwrap();
    });
    drop(taken);
}

/// The errors of ranks that cannot become a job of three: each as (RANK, WORLD_SIZE).
fn told(ranks: &[(u32, u32)], seconds: u64) -> Vec<String> {
    let port = port();
    let host = Host::none();
    std::thread::scope(|s| {
        let start = |&(r, n): &(u32, u32)| {
            let host = &host;
            s.spawn(move || {
                let end = meet(port, r, n, seconds).connect(host);
                end.unwrap_err().message
            })
        };
        let all: Vec<_> = ranks.iter().map(start).collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

#[test]
fn contradictions_end_the_wait_of_all() {
    let began = Instant::now();
    for all in [
        told(&[(0, 3), (1, 3), (1, 3)], 60),
        told(&[(0, 3), (2, 3), (2, 3)], 60),
    ] {
        let named = |e: &String| e.contains("has come already: two processes have that RANK");
        assert!(all.iter().all(named), "{all:?}");
    }
    let all = told(&[(0, 3), (1, 3), (2, 4)], 60);
    let named = |e: &String| e.contains("RANK 2 of WORLD_SIZE 4, where rank 0 has WORLD_SIZE 3");
    assert!(all.iter().all(named), "{all:?}");
    // A rank that is late gets it too.
    let all = std::thread::scope(|s| {
        let (port, host) = (port(), Host::none());
        let start = |(rank, size, after): (u32, u32, u64)| {
            s.spawn(move || {
                std::thread::sleep(Duration::from_millis(after));
                meet(port, rank, size, 60).connect(&host).unwrap_err()
            })
        };
        let all = [(0, 3, 0), (2, 4, 0), (1, 3, 700)].map(start);
        all.map(|t| t.join().unwrap().message)
    });
    assert!(all.iter().all(named), "{all:?}");
    for _ in 0..4 {
        let all = told(&[(0, 3), (0, 3)], 60);
        let named = |e: &String| {
            e.contains("two processes have RANK 0") || e.contains("rank 0 has come already")
        };
        assert!(all.iter().all(named), "{all:?}");
    }
    assert!(began.elapsed() < Duration::from_secs(300));
}

#[test]
fn rank_0_leaves_when_the_others_have_left() {
    let port = port();
    let host = Host::none();
    std::thread::scope(|s| {
        let link = |r| {
            let host = &host;
            s.spawn(move || meet(port, r, 2, 60).connect(host).unwrap())
        };
        let [mut zero, mut one] = [link(0), link(1)].map(|t| t.join().unwrap());
        zero.write_all(b"cmd=finalize\n").unwrap();
        zero.set_read_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        read_line(&mut zero).unwrap_err();
        assert_eq!(say(&mut one, "cmd=finalize"), "cmd=finalize_ack");
        zero.set_read_timeout(None).unwrap();
        assert_eq!(read_line(&mut zero).unwrap(), "cmd=finalize_ack");
    });
}

#[test]
fn who_does_not_come_is_named_to_all() {
    let all = told(&[(0, 3), (1, 3)], 2);
    let named = |e: &String| e.contains("rank 2 of 3 did not come within 2s");
    assert!(all.iter().all(named), "{all:?}");
    let (port, host) = (port(), Host::none());
    let e = meet(port, 1, 2, 1).connect(&host).unwrap_err();
    assert!(
        e.message.contains("did not find rank 0 at 127.0.0.1"),
        "{e}"
    );
}

#[test]
fn a_rank_that_dies_ends_the_barrier_of_the_others() {
    let port = port();
    let host = Host::none();
    std::thread::scope(|s| {
        let stays = s.spawn(|| {
            let mut l = meet(port, 0, 2, 60).connect(&host).unwrap();
            l.write_all(b"cmd=barrier_in\n").unwrap();
            read_line(&mut l).unwrap_err()
        });
        drop(meet(port, 1, 2, 60).connect(&host).unwrap());
        stays.join().unwrap();
    });
}
