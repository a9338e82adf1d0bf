//! What Huawei's pages restrict, where the back end goes another way: copies that begin anywhere, long rows and many, messages to one peer, what is
//! reduced, and streams that wait for one whose communicator was given up. On the simulator, which refuses what the pages do (`tests/sim/PAGES.md`).

use crate::simulated::{LONG, Simulated, all};
use crossweave_backend_ascend::{AscendCollectives, Device, Mem, Stream};
use crossweave_plugin::{
    Backend, Code, Coll, CollShape, Collectives, CommConfig, DType, MemKind, Span, abi,
};
use std::sync::Barrier;
use std::time::Duration;

type C = AscendCollectives;

fn part(m: &Mem, offset: u64, bytes: u64) -> Span<'_, Mem> {
    Span {
        mem: m,
        offset,
        bytes,
    }
}

/// Page-locked bytes; touched while streams are idle.
#[allow(clippy::mut_from_ref)]
fn bytes<'a>(t: &Simulated, m: &'a Mem, n: u64) -> &'a mut [u8] {
    // SAFETY: mapped memory of so many bytes.
    unsafe { std::slice::from_raw_parts_mut(t.b.map(m).expect("mapped"), n as usize) }
}

/// To CANN 8.3 both addresses of a copy are multiples of 64, and rows are not copied within the device.
#[test]
fn copies_begin_anywhere_with_an_old_run_time() {
    crossweave_tests::in_own_process!();
    copies_begin_anywhere(&Simulated::new());
}

#[test]
fn copies_begin_anywhere_with_a_new_run_time_which_takes_memory_in() {
    crossweave_tests::in_own_process!();
    // SAFETY: a process of its own with one thread so far; the simulator reads it when it is opened.
    unsafe { std::env::set_var("CW_SIM", "newer") };
    let t = Simulated::new();
    copies_begin_anywhere(&t);
    memory_of_the_host_is_taken_in_by_whole_pages(&t);
}

fn copies_begin_anywhere(t: &Simulated) {
    let d = t.b.open(0).unwrap();
    let s = t.b.stream(&d, 0).unwrap();
    // Longer than a row may be (5,000,000 bytes), and no multiple of one.
    let n = 9_000_013;
    let host = [(); 2].map(|()| t.at(&d, MemKind::HostPinned, n + 64));
    let device = [(); 2].map(|()| t.at(&d, MemKind::Device, n + 64));
    for (i, b) in bytes(t, &host[0], n + 64).iter_mut().enumerate() {
        *b = (i % 251) as u8;
    }
    for [a, b, c, e] in [[0, 0, 0, 0], [1, 2, 3, 4], [4, 0, 8, 0], [0, 64, 4, 12]] {
        let copy = |to: &Mem, at: u64, from: &Mem, of: u64| {
            t.b.copy(&s, part(to, at, n), part(from, of, n)).unwrap();
        };
        copy(&device[0], b, &host[0], a);
        copy(&device[1], c, &device[0], b);
        copy(&host[1], e, &device[1], c);
        t.wait(&s);
        let (from, to) = (bytes(t, &host[0], n + 64), bytes(t, &host[1], n + 64));
        let (from, to) = (&from[a as usize..], &to[e as usize..]);
        assert!(from[..n as usize] == to[..n as usize], "{a} {b} {c} {e}");
    }
    // Rows within the device: apart, unaligned, more than go by way of the host at once, and one that is longer than a row may be.
    for (width, height, pitch) in [(3, 5, 7), (1000, 6000, 1001), (6_000_001, 1, 6_000_001)] {
        let span = |m| part(m, 5, pitch * (height - 1) + width);
        t.b.copy_2d(
            &s,
            span(&device[0]),
            pitch,
            span(&device[1]),
            pitch,
            width,
            height,
        )
        .unwrap();
        t.b.copy(&s, span(&host[1]), span(&device[0])).unwrap();
        t.b.copy(&s, span(&host[0]), span(&device[1])).unwrap();
        t.wait(&s);
        let (want, got) = (bytes(t, &host[0], n), bytes(t, &host[1], n));
        for r in 0..height {
            let row = (5 + r * pitch) as usize..(5 + r * pitch + width) as usize;
            assert!(want[row.clone()] == got[row], "row {r} of {width}");
        }
    }
    // More rows than one call takes (5,242,880): a pattern of eight bytes is eight columns.
    let rows = 5_242_881;
    let (m, h) = (
        t.at(&d, MemKind::Device, 8 * rows),
        t.at(&d, MemKind::HostPinned, 8 * rows),
    );
    let all = 8 * rows;
    t.b.fill(&s, part(&m, 0, all), 0x0807_0605_0403_0201, 8)
        .unwrap();
    t.b.copy(&s, part(&h, 0, all), part(&m, 0, all)).unwrap();
    t.wait(&s);
    let mut got = bytes(t, &h, all).chunks(8);
    assert!(got.all(|c| c == [1, 2, 3, 4, 5, 6, 7, 8]));
}

/// Memory that is registered is page-locked, which an older run time cannot do, and begins at a page.
fn memory_of_the_host_is_taken_in_by_whole_pages(t: &Simulated) {
    let d = t.b.open(0).unwrap();
    let room = vec![0u8; 3 * 4096];
    let page = (room.as_ptr() as u64).next_multiple_of(4096);
    let native = |at: u64| abi::Native {
        size: size_of::<abi::Native>() as u32,
        type_: abi::NATIVE_HOST_POINTER,
        value: [at, 0, 0, 0],
        bytes: 4096,
    };
    assert!(t.b.import(&d, &native(page)).is_ok());
    let e = t.b.import(&d, &native(page + 64)).err().unwrap();
    assert_eq!(e.code, Code::Unsupported, "{e:?}");
}

fn coll<'a>(kind: u32, m: &'a Mem, at: u64, words: u64, peer: i32) -> Coll<'a, Mem> {
    let span = || Some(part(m, 4 * at, 4 * words));
    Coll {
        kind,
        dtype: DType::F32,
        reduce: abi::RED_SUM,
        root: 0,
        peer,
        count: words,
        send: span().filter(|_| kind != abi::COLL_RECV),
        recv: span().filter(|_| kind != abi::COLL_SEND),
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

/// Two ranks as threads.
fn two(
    t: &Simulated,
    f: impl Fn(u32, Device, Stream, <C as Collectives<crossweave_backend_ascend::Ascend>>::Comm) + Sync,
) {
    let id = {
        let d = t.b.open(0).unwrap();
        C::unique_id(&t.b, &d).unwrap()
    };
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let (id, f) = (&id, &f);
            scope.spawn(move || {
                let d = t.b.open(rank).unwrap();
                let config = CommConfig {
                    rank,
                    nranks: 2,
                    timeout: LONG,
                    members: Default::default(),
                    kv_prefix: "test/".into(),
                    name: "dp".into(),
                };
                let c = C::init(&t.b, &d, id, config).unwrap();
                let s = t.b.stream(&d, 0).unwrap();
                f(rank, d, s, c);
            });
        }
    });
}

#[test]
fn messages_to_one_peer_what_is_reduced_and_who_waits_for_what_was_given_up() {
    crossweave_tests::in_own_process!();
    let t = Simulated::new();
    let met = Barrier::new(2);
    two(&t, |rank, d, s, c| {
        // A batch of HCCL's names a peer once in each direction.
        let start = 10.0 * f32::from(rank as u8);
        let m = t.put(&d, &s, &[start, start + 1.0, start + 2.0, 0.0, 0.0, 0.0]);
        let other = 1 - rank as i32;
        let group: Vec<_> = (0..3)
            .flat_map(|i| {
                [
                    coll(abi::COLL_SEND, &m, i, 1, other),
                    coll(abi::COLL_RECV, &m, 3 + i, 1, other),
                ]
            })
            .collect();
        C::launch(&t.b, &c, &s, &group).unwrap();
        t.wait(&s);
        let theirs = 10.0 * other as f32;
        assert_eq!(
            t.get(&d, &s, &m, 6)[3..],
            [theirs, theirs + 1.0, theirs + 2.0]
        );
        // HCCL's pages: no u64 and f64, no product of bf16.
        let takes = |dtype, reduce| {
            let shape = CollShape {
                kind: abi::COLL_ALL_REDUCE,
                dtype,
                reduce,
                count: 4,
                flags: 0,
                in_place: false,
            };
            match C::supports(&t.b, &c, &shape) {
                Ok(_) => true,
                Err(e) if e.code == Code::Unsupported => false,
                Err(e) => panic!("{e:?}"),
            }
        };
        for (dtype, sum, product) in [
            (DType::I8, true, true),
            (DType::U8, false, false),
            (DType::I32, true, true),
            (DType::U32, false, false),
            (DType::I64, true, true),
            (DType::U64, false, false),
            (DType::F16, true, true),
            (DType::F32, true, true),
            (DType::F64, false, false),
            (DType::Bf16, true, false),
        ] {
            let both = (takes(dtype, abi::RED_SUM), takes(dtype, abi::RED_PROD));
            assert_eq!(both, (sum, product), "{dtype:?}");
        }
        met.wait();
        if rank == 0 {
            // Rank 1 does not come: what waits for the collective, and what waits for that, is let go, and says so.
            C::launch(&t.b, &c, &s, &[coll(abi::COLL_ALL_REDUCE, &m, 0, 6, 0)]).unwrap();
            let chain = [(); 2].map(|()| t.b.stream(&d, 0).unwrap());
            let apart = t.b.stream(&d, 0).unwrap();
            let mut last = &s;
            for next in &chain {
                let e = t.b.event(&d).unwrap();
                t.b.record(&e, last).unwrap();
                t.b.wait_event(next, &e).unwrap();
                last = next;
            }
            t.b.fill(&apart, all(&m, 1), 0, 4).unwrap();
            std::thread::sleep(Duration::from_millis(50));
            C::abort(&t.b, &c).unwrap();
            for (i, next) in chain.iter().enumerate() {
                let e = t.b.stream_sync(next, LONG).unwrap_err();
                assert_eq!(e.vendor_code, 107023, "{i}: {e:?}");
                assert!(e.message.contains("communicator was given up"), "{e:?}");
            }
            assert!(t.b.stream_sync(&s, LONG).is_err());
            t.wait(&apart);
        }
        met.wait();
        drop(c);
    });
}
