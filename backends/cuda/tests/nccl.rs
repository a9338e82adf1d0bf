//! Collectives on the simulator, ranks as threads: every kind, groups, splits, late and dead ranks, aborts that return at once, and an orderly end.

use crate::common;
use common::{Simulated, span};
use crossweave_backend_cuda::{Comm, Cuda, CudaCollectives, Device, Mem, Stream, native};
use crossweave_plugin::{
    Backend, Code, Coll, CollShape, Collectives, CommConfig, DType, Health, MemKind, Span, abi,
};
use std::sync::Barrier;
use std::time::{Duration, Instant};

const LONG: Option<Duration> = Some(Duration::from_secs(60));
type C = CudaCollectives;

fn config(rank: u32, nranks: u32, timeout: Duration) -> CommConfig {
    CommConfig {
        rank,
        nranks,
        timeout: Some(timeout),
        members: Default::default(),
        kv_prefix: "test/".into(),
        name: "dp".into(),
    }
}

fn coll<'a>(
    kind: u32,
    count: u64,
    send: Option<Span<'a, Mem>>,
    recv: Option<Span<'a, Mem>>,
) -> Coll<'a, Mem> {
    Coll {
        kind,
        dtype: DType::F32,
        reduce: abi::RED_SUM,
        root: 0,
        peer: 0,
        count,
        send,
        recv,
        send_counts: &[],
        send_offsets: &[],
        recv_counts: &[],
        recv_offsets: &[],
        scale: 1.0,
        scale_dev: None,
        flags: 0,
        seq: 0,
    }
}

struct Rank<'a> {
    t: &'a Simulated,
    rank: u32,
    d: Device,
    s: Stream,
    m: Mem,
    c: Comm,
}

impl Rank<'_> {
    // The slice is of the device's memory, not of the handle's.
    #[allow(clippy::mut_from_ref)]
    fn words(&self) -> &mut [f32] {
        let b = self.t.bytes(&self.m, 4096);
        // SAFETY: page-aligned memory, every pattern is an f32; touched while the stream is idle.
        unsafe { std::slice::from_raw_parts_mut(b.as_mut_ptr().cast(), 1024) }
    }

    /// Words `from..from + n`.
    fn at(&self, from: u64, n: u64) -> Option<Span<'_, Mem>> {
        Some(span(&self.m, from * 4, n * 4))
    }

    fn go(&self, group: &[Coll<'_, Mem>]) {
        C::launch(&self.t.b, &self.c, &self.s, group).expect("a launch");
        self.t.b.stream_sync(&self.s, LONG).expect("it ends");
    }
}

/// Runs `f` on `n` ranks as threads, device `i` for rank `i`.
fn ranks(t: &Simulated, n: u32, timeout: Duration, f: impl Fn(Rank<'_>) + Sync) -> Vec<u8> {
    let id = {
        let d = t.b.open(0).unwrap();
        C::unique_id(&t.b, &d).unwrap()
    };
    std::thread::scope(|scope| {
        for rank in 0..n {
            let (id, f) = (&id, &f);
            scope.spawn(move || {
                let d = t.b.open(rank).unwrap();
                let c = C::init(&t.b, &d, id, config(rank, n, timeout)).unwrap();
                let (s, m) = (t.b.stream(&d, 0).unwrap(), t.pinned(&d, 4096));
                f(Rank {
                    t,
                    rank,
                    d,
                    s,
                    m,
                    c,
                });
                assert_eq!(t.depth(), 0, "rank {rank} leaves a context on its thread");
            });
        }
    });
    id
}

fn is_cuda(_: &Cuda) {}

#[test]
fn collectives_on_the_simulator() {
    let t = Simulated::new("nccl", &["cuda.libnccl"]);
    is_cuda(&t.b);
    every_kind(&t);
    symmetric_memory_is_registered_and_taken_off(&t);
    a_split(&t);
    assert_eq!(
        t.ask("sim_nccl_aborts", 0) as i32,
        0,
        "an orderly end needs no abort"
    );
    a_rank_that_does_not_come(&t);
    a_rank_that_dies(&t);
    an_abort_returns_at_once(&t);
    a_group_that_never_forms(&t);
    let end = Instant::now() + Duration::from_secs(120);
    while t.ask("sim_nccl_live", 0) as i32 > 0 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(
        t.ask("sim_nccl_live", 0) as i32,
        0,
        "communicators are left"
    );
    assert_eq!(
        t.ask("sim_nccl_strays", 0) as i32,
        0,
        "an address was written where its slot was no more"
    );
}

fn every_kind(t: &Simulated) {
    ranks(t, 3, Duration::from_secs(60), |r| {
        let (me, w) = (r.rank as f32, r.words());
        let fill = |w: &mut [f32]| (0..12).for_each(|i| w[i] = me * 100.0 + i as f32);
        // Forming is not waited for by `init`; by the first launch it is.
        assert!(matches!(
            C::async_error(&t.b, &r.c),
            Ok(Health::Ready | Health::Connecting)
        ));
        fill(w);
        r.go(&[coll(abi::COLL_ALL_REDUCE, 4, r.at(0, 4), r.at(0, 4))]);
        assert_eq!(w[..4], [300.0, 303.0, 306.0, 309.0]);
        assert_eq!(C::async_error(&t.b, &r.c), Ok(Health::Ready));
        fill(w);
        let mut avg = coll(abi::COLL_ALL_REDUCE, 4, r.at(0, 4), r.at(0, 4));
        avg.reduce = abi::RED_AVG;
        r.go(&[avg]);
        assert_eq!(w[..4], [100.0, 101.0, 102.0, 103.0]);
        fill(w);
        let mut scaled = coll(abi::COLL_ALL_REDUCE, 4, r.at(0, 4), r.at(0, 4));
        (scaled.reduce, scaled.scale) = (abi::RED_PREMUL_SUM, 0.5);
        r.go(&[scaled]);
        assert_eq!(w[..4], [150.0, 151.5, 153.0, 154.5]);
        fill(w);
        r.go(&[coll(abi::COLL_REDUCE_SCATTER, 2, r.at(0, 6), r.at(20, 2))]);
        assert_eq!(w[20..22], [300.0 + 6.0 * me, 303.0 + 6.0 * me]);
        r.go(&[coll(abi::COLL_ALL_GATHER, 2, r.at(20, 2), r.at(30, 6))]);
        assert_eq!(w[30..36], [300.0, 303.0, 306.0, 309.0, 312.0, 315.0]);
        fill(w);
        let mut b = coll(abi::COLL_BROADCAST, 3, r.at(0, 3), r.at(0, 3));
        b.root = 2;
        r.go(&[b]);
        assert_eq!(w[..3], [200.0, 201.0, 202.0]);
        fill(w);
        w[50..52].fill(-1.0);
        let mut red = coll(
            abi::COLL_REDUCE,
            2,
            r.at(0, 2),
            if r.rank == 1 { r.at(50, 2) } else { None },
        );
        red.root = 1;
        r.go(&[red]);
        assert_eq!(
            w[50..52],
            if r.rank == 1 {
                [300.0, 303.0]
            } else {
                [-1.0, -1.0]
            }
        );
        fill(w);
        r.go(&[coll(abi::COLL_ALL_TO_ALL, 2, r.at(0, 6), r.at(60, 6))]);
        let own = 2.0 * me;
        assert_eq!(
            w[60..66],
            [
                own,
                own + 1.0,
                100.0 + own,
                101.0 + own,
                200.0 + own,
                201.0 + own
            ]
        );
        // Rank i gives i + 1 words to everybody.
        let (n, to) = (r.rank as u64 + 1, [0u64, 1, 3]);
        let mut v = coll(abi::COLL_ALL_GATHER_V, n, r.at(0, n), r.at(70, 6));
        (v.recv_counts, v.recv_offsets) = (&[1, 2, 3], &to);
        r.go(&[v]);
        assert_eq!(w[70..76], [0.0, 100.0, 101.0, 200.0, 201.0, 202.0]);
        // A ring of sends and receives, crossing, in one group with a sum.
        let (mut send, mut recv) = (
            coll(abi::COLL_SEND, 1, r.at(5, 1), None),
            coll(abi::COLL_RECV, 1, None, r.at(80, 1)),
        );
        (send.peer, recv.peer) = ((r.rank as i32 + 1) % 3, (r.rank as i32 + 2) % 3);
        r.go(&[
            send,
            recv,
            coll(abi::COLL_ALL_REDUCE, 1, r.at(6, 1), r.at(6, 1)),
        ]);
        assert_eq!(
            (w[80], w[6]),
            (((r.rank + 2) % 3) as f32 * 100.0 + 5.0, 318.0)
        );
        r.go(&[coll(abi::COLL_BARRIER, 0, None, None)]);
        // What it would do wrong or cannot do is refused before anything is asked.
        let shape = CollShape {
            kind: abi::COLL_ALL_REDUCE,
            dtype: DType::F8E4M3,
            reduce: abi::RED_SUM,
            count: 1,
            flags: 0,
            in_place: false,
        };
        assert_eq!(
            C::supports(&t.b, &r.c, &shape).unwrap_err().code,
            Code::Unsupported
        );
        let short = C::launch(
            &t.b,
            &r.c,
            &r.s,
            &[coll(abi::COLL_ALL_REDUCE, 4, r.at(0, 3), r.at(0, 4))],
        );
        assert_eq!(short.unwrap_err().code, Code::Invalid);
        let odd = Some(span(&r.m, 2, 16));
        let e = C::launch(&t.b, &r.c, &r.s, &[coll(abi::COLL_ALL_REDUCE, 4, odd, odd)]);
        assert_eq!(e.unwrap_err().code, Code::Invalid);
        let foreign = t.b.open(7).unwrap();
        let u = t.b.stream(&foreign, 0).unwrap();
        let e = C::launch(&t.b, &r.c, &u, &[coll(abi::COLL_BARRIER, 0, None, None)]);
        assert_eq!(e.unwrap_err().code, Code::Invalid);
    });
}

fn symmetric_memory_is_registered_and_taken_off(t: &Simulated) {
    let both = Barrier::new(2);
    ranks(t, 2, Duration::from_secs(60), |r| {
        let big = t.b.alloc(&r.d, MemKind::Symmetric, 2 << 20, 0).unwrap();
        let small = t.b.alloc(&r.d, MemKind::Symmetric, 64, 0).unwrap();
        for m in [&big, &big, &small] {
            let x = Some(span(m, 0, 64));
            r.go(&[coll(abi::COLL_ALL_REDUCE, 16, x, x)]);
        }
        both.wait();
        assert_eq!(
            t.ask("sim_registered", 0) as i32,
            2,
            "large symmetric memory, once for each rank"
        );
        both.wait();
        drop(big);
        both.wait();
        assert_eq!(t.ask("sim_registered", 0) as i32, 0);
        // An alignment that NCCL's allocator does not give is had otherwise.
        let m =
            t.b.alloc(&r.d, MemKind::Symmetric, 2 << 20, 8 << 20)
                .unwrap();
        let at = t.b.export(&m, native::DEVICE_POINTER).unwrap().value[0];
        assert_eq!(at % (8 << 20), 0);
        let odd = t.b.alloc(&r.d, MemKind::Symmetric, 2 << 20, 24);
        assert_eq!(odd.err().unwrap().code, Code::Invalid);
    });
}

fn a_split(t: &Simulated) {
    ranks(t, 4, Duration::from_secs(60), |r| {
        // All ranks take part; the children here are of all four, in reverse.
        let key = 3 - r.rank as i32;
        let child = C::split(
            &t.b,
            &r.c,
            Some(1),
            key,
            config(key as u32, 4, Duration::from_secs(60)),
        )
        .unwrap()
        .unwrap();
        let w = r.words();
        w[0] = r.rank as f32;
        C::launch(
            &t.b,
            &child,
            &r.s,
            &[coll(abi::COLL_ALL_GATHER, 1, r.at(0, 1), r.at(10, 4))],
        )
        .unwrap();
        t.b.stream_sync(&r.s, LONG).unwrap();
        assert_eq!(w[10..14], [3.0, 2.0, 1.0, 0.0]);
        assert!(
            C::split(&t.b, &r.c, None, 0, config(0, 4, Duration::from_secs(60)))
                .unwrap()
                .is_none()
        );
    });
}

/// A rank that never comes: the others' streams are let go with an error that says so, in the time given.
fn a_rank_that_does_not_come(t: &Simulated) {
    let formed = Barrier::new(3);
    ranks(t, 3, Duration::from_secs(2), |r| {
        formed.wait();
        if r.rank != 2 {
            C::launch(
                &t.b,
                &r.c,
                &r.s,
                &[coll(abi::COLL_ALL_REDUCE, 1, r.at(0, 1), r.at(0, 1))],
            )
            .unwrap();
            let e = t.b.stream_sync(&r.s, LONG).unwrap_err();
            assert_eq!((e.code, e.sticky), (Code::Timeout, true), "{e}");
            assert!(e.message.contains("all_reduce on dp of 3 ranks"), "{e}");
            assert_eq!(C::async_error(&t.b, &r.c).unwrap_err().code, Code::Timeout);
            let again = C::launch(&t.b, &r.c, &r.s, &[coll(abi::COLL_BARRIER, 0, None, None)]);
            assert_eq!(again.unwrap_err().code, Code::Timeout);
        }
        formed.wait();
    });
}

fn a_rank_that_dies(t: &Simulated) {
    let id = std::sync::Mutex::new(None);
    let formed = Barrier::new(2);
    let d = t.b.open(0).unwrap();
    // The id of the next group is the one after this.
    let own = C::unique_id(&t.b, &d).unwrap();
    *id.lock().unwrap() = Some(i64::from_ne_bytes(own[..8].try_into().unwrap()) + 1);
    ranks(t, 2, Duration::from_secs(60), |r| {
        r.go(&[coll(abi::COLL_BARRIER, 0, None, None)]);
        formed.wait();
        if r.rank == 0 {
            C::launch(
                &t.b,
                &r.c,
                &r.s,
                &[coll(abi::COLL_ALL_REDUCE, 1, r.at(0, 1), r.at(0, 1))],
            )
            .unwrap();
            t.ask("sim_nccl_peer_dies", id.lock().unwrap().unwrap());
            // The stream is let go, marked.
            let end = Instant::now() + Duration::from_secs(60);
            let e = loop {
                match C::async_error(&t.b, &r.c) {
                    Err(e) => break e,
                    Ok(_) => assert!(Instant::now() < end, "nobody says so"),
                }
            };
            assert_eq!(
                (e.code, e.sticky, e.vendor_code),
                (Code::Comm, true, 6),
                "{e}"
            );
            let end = Instant::now() + Duration::from_secs(60);
            while t.b.stream_query(&r.s).is_ok() {
                assert!(Instant::now() < end, "the stream does not say so");
            }
        }
        formed.wait();
    });
}

fn an_abort_returns_at_once(t: &Simulated) {
    let formed = Barrier::new(2);
    ranks(t, 2, Duration::from_secs(60), |r| {
        r.go(&[coll(abi::COLL_BARRIER, 0, None, None)]);
        formed.wait();
        if r.rank == 0 {
            C::launch(
                &t.b,
                &r.c,
                &r.s,
                &[coll(abi::COLL_ALL_REDUCE, 1, r.at(0, 1), r.at(0, 1))],
            )
            .unwrap();
            // One that waited for rank 1 would end by the timeout, with that code.
            C::abort(&t.b, &r.c).unwrap();
            C::abort(&t.b, &r.c).unwrap();
            assert_eq!(t.b.stream_sync(&r.s, LONG).unwrap_err().code, Code::Aborted);
            let again = C::launch(&t.b, &r.c, &r.s, &[coll(abi::COLL_BARRIER, 0, None, None)]);
            assert_eq!(again.unwrap_err().code, Code::Aborted);
            assert_eq!(C::async_error(&t.b, &r.c).unwrap_err().code, Code::Aborted);
        }
        formed.wait();
    });
}

fn a_group_that_never_forms(t: &Simulated) {
    let d = t.b.open(0).unwrap();
    let id = C::unique_id(&t.b, &d).unwrap();
    let c = C::init(&t.b, &d, &id, config(0, 2, Duration::from_millis(300))).unwrap();
    assert_eq!(C::async_error(&t.b, &c), Ok(Health::Connecting));
    let s = t.b.stream(&d, 0).unwrap();
    let e = C::launch(&t.b, &c, &s, &[coll(abi::COLL_BARRIER, 0, None, None)]).unwrap_err();
    assert_eq!((e.code, e.sticky), (Code::Timeout, true));
    assert!(
        e.message.contains("of 2 ranks, rank 0") && e.message.contains("missing"),
        "{e}"
    );
    let short = C::init(&t.b, &d, &id[..100], config(0, 2, Duration::from_secs(1)));
    assert_eq!(short.err().unwrap().code, Code::Invalid);
}
