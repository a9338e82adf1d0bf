//! Every way a communicator can fail: mismatch, missing rank, abort, a destroyed rank, a failed stream.

use crate::common;
use common::*;
use crossweave_backend_cpu::CpuCollectives;
use crossweave_plugin::abi::*;
use crossweave_plugin::{Backend, Code, Collectives, GroupRank, Health};
use std::sync::Barrier;
use std::time::{Duration, Instant};

#[test]
fn a_mismatch_fails_every_rank_with_one_sentence() {
    let b = backend();
    for large in [false, true] {
        let said = std::sync::Mutex::new(Vec::new());
        ranks(&b, 3, |r| {
            let n = if large { 5000 } else { 5 };
            let m = r.memory::<f32>(n);
            r.write(&m, 0, &vec![1f32; n]);
            let count = n - usize::from(r.rank == 1);
            let mut c = coll(COLL_ALL_REDUCE, DType::F32, count as u64);
            (c.reduce, c.recv) = (RED_SUM, Some(r.part::<f32>(&m, 0, n)));
            r.launch(&[c]).unwrap();
            let e = r.sync().unwrap_err();
            assert_eq!((e.code, e.sticky), (Code::Comm, true));
            assert_eq!(
                r.read::<f32>(&r.part::<f32>(&m, 0, n)),
                vec![1f32; n],
                "untouched"
            );
            assert!(r.launch(&[coll(COLL_BARRIER, DType::U8, 0)]).is_err());
            assert_eq!(CpuCollectives::async_error(r.b, &r.comm).unwrap_err(), e);
            said.lock().unwrap().push(e.message);
        });
        let said = said.into_inner().unwrap();
        assert!(said.windows(2).all(|w| w[0] == w[1]), "{said:?}");
        for part in ["rank 0", "rank 1", "all_reduce"] {
            assert!(said[0].contains(part), "{}", said[0]);
        }
        let counts = if large {
            ["5000", "4999"]
        } else {
            ["of 5", "of 4"]
        };
        assert!(counts.iter().all(|c| said[0].contains(c)), "{}", said[0]);
    }
}

#[test]
fn every_kind_of_mismatch_is_found() {
    let b = backend();
    let cases: [(
        &str,
        fn(&mut crossweave_plugin::Coll<'_, crossweave_backend_cpu::Mem>),
    ); 4] = [
        ("all_gather", |c| (c.kind, c.count) = (COLL_ALL_GATHER, 8)),
        ("i32", |c| c.dtype = DType::I32),
        ("max", |c| c.reduce = RED_MAX),
        ("broadcast", |c| c.kind = COLL_BROADCAST),
    ];
    for (name, change) in cases {
        ranks(&b, 2, |r| {
            let (m, o) = (r.memory::<f32>(16), r.memory::<f32>(16));
            let mut c = coll(COLL_ALL_REDUCE, DType::F32, 16);
            c.reduce = RED_SUM;
            c.send = Some(r.part::<f32>(&m, 0, 16));
            c.recv = Some(r.part::<f32>(&o, 0, 16));
            if r.rank == 1 {
                change(&mut c);
            }
            r.launch(&[c]).unwrap();
            let e = r.sync().unwrap_err();
            assert!(
                e.code == Code::Comm && e.message.contains(name),
                "{name}: {e}"
            );
        });
    }
    ranks(&b, 2, |r| {
        let m = r.memory::<f32>(16);
        let mut c = coll(
            if r.rank == 0 { COLL_SEND } else { COLL_RECV },
            DType::F32,
            16,
        );
        c.peer = 1 - r.rank as i32;
        c.count -= r.rank as u64;
        let all = Some(r.part::<f32>(&m, 0, 16));
        (c.send, c.recv) = (all, all);
        r.launch(&[c]).unwrap();
        let e = r.sync().unwrap_err();
        assert!(
            e.message.contains("16 x f32") && e.message.contains("15 x f32"),
            "{e}"
        );
    });
    ranks(&b, 2, |r| {
        let m = [r.memory::<f32>(16), r.memory::<f32>(16)];
        let mut c = coll(COLL_ALL_TO_ALL_V, DType::F32, 0);
        let (mine, theirs) = ([2u64, 3 + r.rank as u64], [2u64, 4]);
        (c.send_counts, c.recv_counts) = (&mine, &theirs);
        c.send = Some(r.part::<f32>(&m[0], 0, 16));
        c.recv = Some(r.part::<f32>(&m[1], 0, 16));
        r.launch(&[c]).unwrap();
        assert_eq!(r.sync().unwrap_err().code, Code::Comm);
    });
}

/// A rank that brings little takes a shorter way through a round than ranks that bring much; nobody waits for it in vain.
#[test]
fn a_small_round_that_meets_a_large_one_is_a_mismatch() {
    let b = backend();
    for odd in 0..3 {
        ranks(&b, 3, |r| {
            let n = 5000;
            let m = r.memory::<f32>(n);
            r.write(&m, 0, &vec![1f32; n]);
            let count = if r.rank == odd { 5 } else { n };
            let mut c = coll(COLL_ALL_REDUCE, DType::F32, count as u64);
            (c.reduce, c.recv) = (RED_SUM, Some(r.part::<f32>(&m, 0, n)));
            r.launch(&[c]).unwrap();
            let e = r.sync().unwrap_err();
            assert!(e.code == Code::Comm && e.message.contains("differs"), "{e}");
            let after = r.read::<f32>(&r.part::<f32>(&m, 0, n));
            assert_eq!(after, vec![1f32; n], "untouched");
        });
    }
}

/// A failure may fall into any moment of a round: either all ranks go through it or none does.
#[test]
fn ranks_agree_which_round_was_the_last() {
    let b = backend();
    for trial in 0..100u64 {
        let rounds = std::sync::Mutex::new(Vec::new());
        ranks(&b, 3, |r| {
            let n = 2000;
            let m = r.memory::<i32>(n);
            r.write(&m, 0, &vec![1i32; n]);
            // Who comes when the others have left already forms a communicator of its own.
            r.launch(&[coll(COLL_BARRIER, DType::U8, 0)]).unwrap();
            r.sync().unwrap();
            let mut done = 0u32;
            let failed = loop {
                let mut c = coll(COLL_ALL_REDUCE, DType::I32, n as u64);
                (c.reduce, c.recv) = (RED_SUM, Some(r.part::<i32>(&m, 0, n)));
                let launched = r.launch(&[c]);
                if r.rank == 2 && u64::from(done) == trial % 5 {
                    // Nobody has come yet, or some, or all are at work or through.
                    for _ in 0..trial / 5 * 60 {
                        std::hint::spin_loop();
                    }
                    CpuCollectives::abort(r.b, &r.comm).unwrap();
                }
                match launched.and_then(|()| r.sync()) {
                    Ok(()) => done += 1,
                    Err(e) => break e,
                }
            };
            assert_eq!(failed.code, Code::Aborted, "{failed}");
            // Every round multiplies by three; half a round would show.
            let after = r.read::<i32>(&r.part::<i32>(&m, 0, n));
            assert_eq!(after, vec![3i32.wrapping_pow(done); n]);
            rounds.lock().unwrap().push(done);
        });
        let rounds = rounds.into_inner().unwrap();
        assert!(rounds.iter().all(|r| *r == rounds[0]), "{rounds:?}");
    }
}

#[test]
fn a_missing_rank_is_named_when_the_time_is_over() {
    let b = backend();
    let id = CpuCollectives::unique_id(&b, &b.open(0).unwrap()).unwrap();
    // Rank 2 never joins; rank 1 joins and never calls.
    std::thread::scope(|s| {
        for rank in 0..2 {
            let (b, id) = (&b, &id);
            s.spawn(move || {
                let d = b.open(0).unwrap();
                let cfg = config(rank, 3, "late", Duration::from_secs(2));
                let c = CpuCollectives::init(b, &d, id, cfg).unwrap();
                if rank == 1 {
                    let start = Instant::now();
                    while CpuCollectives::async_error(b, &c).is_ok()
                        && start.elapsed() < Duration::from_secs(120)
                    {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    assert!(CpuCollectives::async_error(b, &c).is_err());
                    return;
                }
                assert_eq!(
                    CpuCollectives::async_error(b, &c).unwrap(),
                    Health::Connecting
                );
                let s = b.stream(&d, 0).unwrap();
                CpuCollectives::launch(b, &c, &s, &[coll(COLL_BARRIER, DType::U8, 0)]).unwrap();
                let e = b
                    .stream_sync(&s, Some(Duration::from_secs(20)))
                    .unwrap_err();
                assert_eq!(e.code, Code::Timeout);
                assert!(e.message.contains("rank 2"), "{e}");
            });
        }
    });
    ranks_within(&b, 3, Duration::from_millis(200), |r| {
        if r.rank == 2 {
            while CpuCollectives::async_error(r.b, &r.comm).is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        } else {
            r.launch(&[coll(COLL_BARRIER, DType::U8, 0)]).unwrap();
            let e = r.sync().unwrap_err();
            assert_eq!((e.code, e.peer), (Code::Timeout, Some(GroupRank(2))), "{e}");
        }
    });
    ranks_within(&b, 2, Duration::from_millis(200), |r| {
        let m = r.memory::<f32>(4);
        if r.rank == 0 {
            let mut c = coll(COLL_RECV, DType::F32, 4);
            (c.peer, c.recv) = (1, Some(r.part::<f32>(&m, 0, 4)));
            r.launch(&[c]).unwrap();
            let e = r.sync().unwrap_err();
            assert_eq!((e.code, e.peer), (Code::Timeout, Some(GroupRank(1))), "{e}");
        } else {
            while CpuCollectives::async_error(r.b, &r.comm).is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    });
}

#[test]
fn abort_releases_every_waiting_rank_and_a_new_communicator_works() {
    let b = backend();
    // A launch after the failure is refused.
    let launched = Barrier::new(4);
    ranks(&b, 4, |r| {
        let m = r.memory::<f32>(4);
        match r.rank {
            0 => r.launch(&[coll(COLL_BARRIER, DType::U8, 0)]).unwrap(),
            1 => {
                let mut c = coll(COLL_RECV, DType::F32, 4);
                (c.peer, c.recv) = (3, Some(r.part::<f32>(&m, 0, 4)));
                r.launch(&[c]).unwrap();
            }
            2 => {
                let mut c = coll(COLL_SEND, DType::F32, 4);
                (c.peer, c.send) = (3, Some(r.part::<f32>(&m, 0, 4)));
                r.launch(&[c]).unwrap();
            }
            _ => {
                launched.wait();
                std::thread::sleep(Duration::from_millis(50));
                CpuCollectives::abort(r.b, &r.comm).unwrap();
                assert!(r.launch(&[coll(COLL_BARRIER, DType::U8, 0)]).is_err());
                return;
            }
        }
        launched.wait();
        let e = r.sync().unwrap_err();
        assert_eq!((e.code, e.peer), (Code::Aborted, Some(GroupRank(3))), "{e}");
    });
    ranks(&b, 4, |r| {
        r.launch(&[coll(COLL_BARRIER, DType::U8, 0)]).unwrap();
        r.sync().unwrap();
    });
}

#[test]
fn a_destroyed_rank_is_named_to_those_who_wait() {
    let b = backend();
    for send in [false, true] {
        // A launch after the failure is refused.
        let launched = Barrier::new(3);
        ranks(&b, 3, |r| {
            if r.rank == 1 {
                // Its queued work still counts; it leaves after it.
                r.launch(&[coll(COLL_BARRIER, DType::U8, 0)]).unwrap();
                r.sync().unwrap();
                launched.wait();
                return;
            }
            r.launch(&[coll(COLL_BARRIER, DType::U8, 0)]).unwrap();
            let m = r.memory::<f32>(4);
            let mut c = coll(COLL_BARRIER, DType::U8, 0);
            if send && r.rank == 0 {
                c = coll(COLL_SEND, DType::F32, 4);
                (c.peer, c.send) = (1, Some(r.part::<f32>(&m, 0, 4)));
            }
            r.launch(&[c]).unwrap();
            launched.wait();
            let e = r.sync().unwrap_err();
            assert_eq!((e.code, e.peer), (Code::Comm, Some(GroupRank(1))), "{e}");
        });
    }
}

#[test]
fn a_failed_stream_fails_its_communicator() {
    let b = backend();
    // A launch after the failure is refused.
    let launched = Barrier::new(2);
    ranks(&b, 2, |r| {
        if r.rank == 1 {
            let gate = r.stall();
            r.b.host_call(&r.stream, Box::new(|_| panic!("planted")))
                .unwrap();
            r.launch(&[coll(COLL_BARRIER, DType::U8, 0)]).unwrap();
            launched.wait();
            drop(gate);
            assert_eq!(r.sync().unwrap_err().code, Code::Panic);
        } else {
            r.launch(&[coll(COLL_BARRIER, DType::U8, 0)]).unwrap();
            launched.wait();
            let e = r.sync().unwrap_err();
            assert!(
                e.peer == Some(GroupRank(1)) && e.message.contains("planted"),
                "{e}"
            );
        }
    });
}
