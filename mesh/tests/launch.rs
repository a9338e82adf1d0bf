//! What launchers say, and the store through which their processes meet.

use crossweave_hal::{Code, JobRank, KvStore};
use crossweave_mesh::{JobStore, Launch, Launcher, ProcessMap, detect};
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

fn read(vars: &[(&str, &str)]) -> Result<Option<Launch>, String> {
    let var = |name: &str| {
        let found = vars.iter().find(|(k, _)| *k == name);
        found.map(|(_, v)| v.to_string())
    };
    detect(var).map_err(|e| e.to_string())
}

fn place(l: &Launch) -> (Launcher, u32, u32, u32, u32) {
    (l.launcher, l.rank, l.world, l.local_rank, l.local_size)
}

#[test]
fn every_launcher_is_recognised() {
    assert_eq!(read(&[]), Ok(None));
    let open = read(&[
        ("OMPI_COMM_WORLD_RANK", "3"),
        ("OMPI_COMM_WORLD_SIZE", "8"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ("PMIX_RANK", "3"),
        // Inherited from the job script around it.
        ("SLURM_PROCID", "0"),
        ("SLURM_STEP_NUM_TASKS", "1"),
    ]);
    assert_eq!(
        place(&open.unwrap().unwrap()),
        (Launcher::OpenMpi, 3, 8, 1, 2)
    );
    let mpich = read(&[
        ("PMI_RANK", "1"),
        ("PMI_SIZE", "4"),
        ("MPI_LOCALRANKID", "1"),
        ("MPI_LOCALNRANKS", "4"),
    ]);
    assert_eq!(
        place(&mpich.unwrap().unwrap()),
        (Launcher::Mpich, 1, 4, 1, 4)
    );
    let pmix = read(&[
        ("PMIX_RANK", "5"),
        ("SLURM_PROCID", "5"),
        ("SLURM_STEP_NUM_TASKS", "6"),
        ("SLURM_LOCALID", "2"),
        ("SLURM_NTASKS_PER_NODE", "3"),
    ]);
    assert_eq!(
        place(&pmix.unwrap().unwrap()),
        (Launcher::OpenMpi, 5, 6, 2, 3)
    );
    let slurm = read(&[
        ("SLURM_PROCID", "2"),
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("SLURM_LOCALID", "0"),
    ]);
    assert_eq!(
        place(&slurm.unwrap().unwrap()),
        (Launcher::Slurm, 2, 4, 0, 1)
    );
    let torch = read(&[
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "localhost"),
        ("MASTER_PORT", "29500"),
    ])
    .unwrap()
    .unwrap();
    assert_eq!(place(&torch), (Launcher::Torchrun, 1, 2, 1, 2));
    assert_eq!(torch.master, Some(("localhost".into(), 29500)));
}

#[test]
fn a_job_script_or_a_lone_variable_is_no_launcher() {
    // What sbatch sets in the script itself.
    assert_eq!(
        read(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")]),
        Ok(None)
    );
    assert_eq!(read(&[("RANK", "gold")]), Ok(None));
    assert_eq!(read(&[("WORLD_SIZE", "2"), ("PMIX_RANK", "0")]), Ok(None));
    assert_eq!(read(&[("PMI_RANK", ""), ("PMI_SIZE", "")]), Ok(None));
}

#[test]
fn an_srun_that_connects_nobody_is_told_from_one_that_does() {
    let step = [
        ("SLURM_JOB_ID", "7"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("SLURM_PROCID", "2"),
        ("SLURM_LOCALID", "2"),
    ];
    let told = |more: &[(&str, &str)]| {
        let vars = [&step[..], more].concat();
        let var = |name: &str| {
            let found = vars.iter().rev().find(|(k, _)| *k == name);
            found.map(|(_, v)| v.to_string())
        };
        detect(var).unwrap().and_then(|l| l.unconnected(var))
    };
    let (what, fix) = told(&[]).unwrap();
    assert!(what.contains("srun has started 4 processes"), "{what}");
    for way in [
        "--mpi=pmix",
        "--mpi=pmi2",
        "MASTER_ADDR",
        "unset SLURM_PROCID",
    ] {
        assert!(fix.contains(way), "{fix}");
    }
    let torch = [
        ("RANK", "2"),
        ("WORLD_SIZE", "4"),
        ("MASTER_ADDR", "a"),
        ("MASTER_PORT", "7"),
    ];
    for connected in [
        &[("PMIX_RANK", "2")][..],
        &[("PMI_RANK", "2"), ("PMI_SIZE", "4")],
        &[("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_SIZE", "4")],
        &torch,
        // Slurm's own protocol, by a library that the user names.
        &[("I_MPI_PMI_LIBRARY", "/usr/lib/libpmi2.so")],
        &[("CROSSWEAVE_MPI_LIBRARY", "/opt/mpi/libmpi.so")],
        // One task: nothing to connect.
        &[("SLURM_STEP_NUM_TASKS", "1"), ("SLURM_PROCID", "0")],
    ] {
        assert_eq!(told(connected), None, "{connected:?}");
    }
}

#[test]
fn contradictions_name_their_variable() {
    let e = |vars: &[(&str, &str)]| read(vars).unwrap_err();
    let got = e(&[("PMI_RANK", "4"), ("PMI_SIZE", "4")]);
    assert_eq!(got, "PMI_RANK: rank 4 of 4 (PMI_SIZE): ranks count from 0");
    let got = e(&[("OMPI_COMM_WORLD_RANK", "x"), ("OMPI_COMM_WORLD_SIZE", "2")]);
    assert_eq!(got, "OMPI_COMM_WORLD_RANK: \"x\" is not a whole number");
    let got = e(&[("RANK", "0"), ("WORLD_SIZE", "2")]);
    assert!(got.starts_with("MASTER_ADDR: not set"), "{got}");
    let port = [
        ("RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "a"),
        ("MASTER_PORT", "70000"),
    ];
    assert_eq!(
        e(&port),
        "MASTER_PORT: \"70000\" is not a port (1 to 65535)"
    );
    let none = [&port[..3], &[("MASTER_PORT", "0")]].concat();
    assert!(e(&none).starts_with("MASTER_PORT: \"0\""), "{}", e(&none));
}

#[test]
fn a_start_by_hand_that_forgets_rank_or_size_is_no_job_of_one() {
    let all = [
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "1"),
        ("MASTER_ADDR", "a"),
        ("MASTER_PORT", "7"),
    ];
    for (i, missing) in ["RANK", "WORLD_SIZE"].into_iter().enumerate() {
        let mut vars = all.to_vec();
        vars.remove(i);
        let e = read(&vars).unwrap_err();
        assert!(
            e.starts_with(&format!("{missing}: not set, though ")),
            "{e}"
        );
        // Empty is not set.
        vars.insert(0, (missing, ""));
        assert_eq!(read(&vars).unwrap_err(), e);
        // Under another launcher they are leftovers.
        vars.extend([("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "2")]);
        let l = read(&vars).unwrap().unwrap();
        assert_eq!(l.launcher, Launcher::Slurm);
    }
    let address = &all[3..];
    assert_eq!(read(address), Ok(None));
    assert_eq!(read(&[&[("WORLD_SIZE", "1")], address].concat()), Ok(None));
}

/// What is waited for comes at once; only a hang takes as long.
const SOON: Duration = Duration::from_secs(120);

fn job(world: u32) -> Vec<JobStore> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut all = vec![JobStore::serve(listener, world, b"secret").unwrap()];
    for rank in 1..world {
        all.push(JobStore::connect(&address, rank, world, b"secret", SOON).unwrap());
        // Known to the server from here on.
        all[rank as usize]
            .set(&format!("here/{rank}"), b"")
            .unwrap();
        all[0].get(&format!("here/{rank}"), Some(SOON)).unwrap();
    }
    all
}

#[test]
fn values_reach_every_rank_any_rank_that_asks_first() {
    let all = job(3);
    let early = all[2].clone();
    let asks = std::thread::spawn(move || early.get("id", Some(SOON)));
    all[1].set("id", &[7; 5000]).unwrap();
    assert_eq!(asks.join().unwrap().unwrap(), [7; 5000]);
    for s in &all {
        assert_eq!(s.get("id", Some(SOON)).unwrap(), [7; 5000]);
    }
    let e = all[1]
        .get("nobody", Some(Duration::from_millis(20)))
        .unwrap_err();
    assert_eq!(e.code, Code::Timeout);
    assert!(e.message.contains("nobody"), "{e}");
    all[0].push("end", b"12", SOON).unwrap();
    assert!(all.iter().all(|s| s.peek("end").as_deref() == Some(b"12")));
    all[1].farewell(SOON).unwrap();
    all[2].farewell(SOON).unwrap();
    all[0].farewell(SOON).unwrap();
}

#[test]
fn a_failure_reaches_the_others_with_its_words() {
    let all = job(3);
    let (tell, told) = channel();
    for s in [&all[0], &all[2]] {
        let tell = tell.clone();
        s.on_failure(move |f| tell.send(f.to_string()).unwrap());
    }
    all[1].report(1, "disk full", false);
    for _ in 0..2 {
        assert_eq!(told.recv_timeout(SOON).unwrap(), "rank 1 failed: disk full");
    }
    let e = all[2].get("never", Some(SOON)).unwrap_err();
    assert_eq!((e.code, e.peer), (Code::Aborted, Some(JobRank(1))));
}

#[test]
fn a_connection_that_ends_without_a_farewell_is_a_death() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let zero = JobStore::serve(listener, 3, b"secret").unwrap();
    // A stranger may come and go.
    drop(TcpStream::connect(address).unwrap());
    let one = JobStore::connect(&address.to_string(), 1, 3, b"secret", SOON).unwrap();
    one.set("here", b"").unwrap();
    zero.get("here", Some(SOON)).unwrap();
    drop(third(address));
    for s in [&zero, &one] {
        let e = s.get("never", Some(SOON)).unwrap_err();
        assert_eq!((e.code, e.peer), (Code::Aborted, Some(JobRank(2))), "{e}");
        assert!(e.message.contains("rank 2 died"), "{e}");
    }
}

#[test]
fn failures_are_told_by_the_ranks_of_their_process() {
    let counts = [2, 3, 2];
    let know = |process: u32, s: &JobStore| s.know(&ProcessMap::new(process, &counts));
    for (failing, rank) in [(1u32, 3), (0, 1)] {
        let all = job(3);
        let (tell, told) = channel();
        for (p, s) in (0..).zip(&all) {
            know(p, s);
            let tell = tell.clone();
            // A rank that fails itself receives nothing, or its own message.
            s.on_failure(move |f| drop(tell.send(f.clone())));
        }
        all[failing as usize].report(rank, "disk full", true);
        for _ in 0..2 {
            let f = told.recv_timeout(SOON).unwrap();
            assert_eq!((f.process, f.ranks.clone()), (failing, rank..rank + 1));
            assert_eq!(f.to_string(), format!("rank {rank} failed: disk full"));
        }
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let zero = JobStore::serve(listener, 3, b"secret").unwrap();
    let one = JobStore::connect(&address.to_string(), 1, 3, b"secret", SOON).unwrap();
    one.set("here", b"").unwrap();
    zero.get("here", Some(SOON)).unwrap();
    know(0, &zero);
    know(1, &one);
    drop(third(address));
    for s in [&zero, &one] {
        let e = s.get("never", Some(SOON)).unwrap_err();
        assert_eq!((e.code, e.peer), (Code::Aborted, Some(JobRank(5))), "{e}");
        assert!(e.message.contains("ranks 5 to 6 died"), "{e}");
    }
}

#[test]
fn a_rank_that_waits_hears_of_a_failure_in_its_own_process() {
    let all = job(2);
    for (p, s) in all.iter().enumerate() {
        let waits = s.clone();
        let waits = std::thread::spawn(move || waits.get("never", Some(SOON)));
        s.give_up();
        let e = waits.join().unwrap().unwrap_err();
        assert_eq!(e.code, Code::Aborted, "{e}");
        assert!(
            e.message.contains("another rank of this process"),
            "{p}: {e}"
        );
    }
    // What it has to say is still heard.
    all[1].report(1, "disk full", false);
    let began = Instant::now();
    while all[0].failure().is_none() {
        assert!(began.elapsed() < SOON);
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Process 2 says hello, byte by byte as the protocol has it.
fn third(address: SocketAddr) -> TcpStream {
    let mut two = TcpStream::connect(address).unwrap();
    let mut hello = vec![1];
    hello.extend(2u64.to_le_bytes());
    hello.extend(0u32.to_le_bytes());
    hello.extend(6u32.to_le_bytes());
    hello.extend(b"secret");
    two.write_all(&hello).unwrap();
    two
}

#[test]
fn every_process_is_asked_and_one_that_is_silent_is_not_waited_for_long() {
    let all = job(4);
    for (p, s) in (0u8..).zip(&all) {
        s.answer_with(move || vec![p; 3]);
    }
    for asks in 0..4u32 {
        let said = all[asks as usize].ask(SOON).unwrap();
        let want = (0..4).filter(|p| *p != asks).map(|p| (p, vec![p as u8; 3]));
        assert_eq!(said, want.collect());
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let zero = JobStore::serve(listener, 3, b"secret").unwrap();
    let one = JobStore::connect(&address.to_string(), 1, 3, b"secret", SOON).unwrap();
    one.answer_with(|| b"one".to_vec());
    one.set("here", b"").unwrap();
    zero.get("here", Some(SOON)).unwrap();
    let stopped = third(address);
    // On a busy machine an answer may take longer than this, but not every time.
    let mut said = (0..20).map(|_| zero.ask(Duration::from_millis(300)).unwrap());
    assert!(said.any(|s| s == [(1, b"one".to_vec())].into()));
    // A death says more than an answer.
    drop(stopped);
    zero.get("never", Some(SOON)).unwrap_err();
    assert_eq!(zero.ask(SOON), None);
}

#[test]
fn of_several_addresses_the_one_that_leads_to_the_store_is_found_and_the_others_are_named() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let shut = closed.local_addr().unwrap().to_string();
    drop(closed);
    // Another service at an address that is private to each host, which says nothing or something else.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let strangers = [&silent, &other].map(|l| l.local_addr().unwrap().to_string());
    std::thread::spawn(move || {
        for mut s in other.incoming().flatten() {
            let _ = s.write_all(&[0; 64]);
        }
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let right = listener.local_addr().unwrap().to_string();
    let zero = JobStore::serve(listener, 2, b"secret").unwrap();
    let [first, second] = strangers;
    let mut all = vec!["nowhere".to_string(), shut, first, second];
    let said = std::cell::RefCell::new(vec![]);
    let say = |what: &str| said.borrow_mut().push(what.to_string());
    let limit = Duration::from_millis(400);
    let e = JobStore::reach(&all, 1, 2, b"secret", limit, say)
        .err()
        .unwrap();
    for address in &all {
        assert!(e.message.contains(&format!("{address}: ")), "{e}");
    }
    assert!(e.message.contains("not the store of this job"), "{e}");
    let said = said.into_inner();
    assert!(
        matches!(&said[..], [one] if one.contains("cannot resolve") && one.contains("nowhere")),
        "{said:?}"
    );
    all.push(right);
    let one = JobStore::reach(&all, 1, 2, b"secret", SOON, |_| {}).unwrap();
    one.set("here", b"1").unwrap();
    assert_eq!(zero.get("here", Some(SOON)).unwrap(), b"1");
    // Those that lost the race were never members, so that their ends are no deaths.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(zero.failure(), None);
}
