//! Device semantics: order, events with capture semantics, sticky failures, timeouts, memory kinds, and no thread left behind.

use crossweave_backend_cpu::{CpuBackend, Device, Mem, Stream};
use crossweave_plugin::{Backend, Code, Host, MemKind, Span};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

fn open() -> (CpuBackend, Device) {
    let b = CpuBackend::init(Host::none()).unwrap();
    let d = b.open(0).unwrap();
    (b, d)
}

fn whole(m: &Mem) -> Span<'_, Mem> {
    Span {
        mem: m,
        offset: 0,
        bytes: m.bytes(),
    }
}

fn pinned(b: &CpuBackend, d: &Device, bytes: u64) -> Mem {
    b.alloc(d, MemKind::HostPinned, bytes, 0).unwrap()
}

// The slice is of the device's memory, not of the handle's.
#[allow(clippy::mut_from_ref)]
fn bytes<'a>(b: &CpuBackend, m: &'a Mem) -> &'a mut [u8] {
    // SAFETY: pinned memory of that length; each test touches it only while its streams are idle.
    unsafe { std::slice::from_raw_parts_mut(b.map(m).unwrap(), m.bytes() as usize) }
}

/// Holds a stream until the sender is used or dropped.
fn stall(b: &CpuBackend, s: &Stream) -> mpsc::Sender<()> {
    let (open, gate) = mpsc::channel::<()>();
    b.host_call(
        s,
        Box::new(move |_| {
            let _ = gate.recv();
        }),
    )
    .unwrap();
    open
}

const SHORT: Option<Duration> = Some(Duration::from_millis(20));

#[test]
fn memory_kinds_sizes_and_refusals() {
    let (b, d) = open();
    for bytes in [0, 1, 63, 4096, (4 << 20) + 1] {
        let m = pinned(&b, &d, bytes);
        let align = if bytes >= 4 << 20 { 2 << 20 } else { 64 };
        assert_eq!(b.map(&m).unwrap() as usize % align, 0, "{bytes} bytes");
    }
    assert_eq!(b.attr(&d, "mem.live").unwrap(), b"0");
    let isa = b.attr(&d, "isa").unwrap();
    assert!([&b"scalar"[..], b"avx2", b"avx512"].contains(&&isa[..]));
    for kind in [MemKind::Device, MemKind::Symmetric] {
        let m = b.alloc(&d, kind, 64, 256).unwrap();
        assert_eq!(b.map(&m).unwrap_err().code, Code::Unsupported);
    }
    for absurd in [u64::MAX, 1 << 62, 1 << 47] {
        let e = b.alloc(&d, MemKind::Device, absurd, 0).unwrap_err();
        assert_eq!((e.code, e.retryable), (Code::Oom, true), "{absurd}");
    }
    assert_eq!(
        b.alloc(&d, MemKind::Device, 8, 3).unwrap_err().code,
        Code::Invalid
    );
    let m = b.alloc(&d, MemKind::Device, 64, 0).unwrap();
    let info = b.info(&d).unwrap();
    assert_eq!(info.mem_total - info.mem_free, 64);
    let s = b.stream(&d, 0).unwrap();
    let beyond = Span {
        mem: &m,
        offset: 60,
        bytes: 8,
    };
    assert_eq!(b.fill(&s, beyond, 0, 1).unwrap_err().code, Code::Invalid);
    assert!(b.open(1).is_err());
}

#[test]
fn copies_and_fills_arrive_in_order() {
    let (b, d) = open();
    let s = b.stream(&d, 0).unwrap();
    for n in [1u64, 8, 100, (3 << 20) + 8] {
        let n = n * 8;
        let (host, back) = (pinned(&b, &d, n), pinned(&b, &d, n));
        let dev = b.alloc(&d, MemKind::Device, n, 0).unwrap();
        for (i, x) in bytes(&b, &host).iter_mut().enumerate() {
            *x = (i * 7 + i / 251) as u8;
        }
        b.copy(&s, whole(&dev), whole(&host)).unwrap();
        b.copy(&s, whole(&back), whole(&dev)).unwrap();
        b.stream_sync(&s, None).unwrap();
        assert!(bytes(&b, &host) == bytes(&b, &back));
        for size in [1u32, 2, 4, 8] {
            let pattern = 0x8877_6655_4433_2211u64;
            b.fill(&s, whole(&back), pattern, size).unwrap();
            b.stream_sync(&s, None).unwrap();
            let want = pattern.to_le_bytes();
            assert!(
                bytes(&b, &back)
                    .iter()
                    .enumerate()
                    .all(|(i, x)| *x == want[i % size as usize])
            );
        }
    }
    let odd = pinned(&b, &d, 7);
    assert!(b.fill(&s, whole(&odd), 0, 4).is_err());
    assert!(b.fill(&s, whole(&odd), 0, 3).is_err());
}

#[test]
fn rows_with_pitches() {
    let (b, d) = open();
    let s = b.stream(&d, 0).unwrap();
    let (src, dst) = (pinned(&b, &d, 50), pinned(&b, &d, 33));
    for (i, x) in bytes(&b, &src).iter_mut().enumerate() {
        *x = i as u8;
    }
    bytes(&b, &dst).fill(0xee);
    b.copy_2d(&s, whole(&dst), 7, whole(&src), 10, 5, 5)
        .unwrap();
    b.stream_sync(&s, None).unwrap();
    for r in 0..5 {
        for c in 0..7 {
            if r * 7 + c < 33 {
                let want = if c < 5 { (r * 10 + c) as u8 } else { 0xee };
                assert_eq!(bytes(&b, &dst)[r * 7 + c], want, "row {r} column {c}");
            }
        }
    }
    let e = b.copy_2d(&s, whole(&dst), 7, whole(&src), 10, 6, 5);
    assert_eq!(e.unwrap_err().code, Code::Invalid);
    assert!(
        b.copy_2d(&s, whole(&dst), 4, whole(&src), 10, 5, 2)
            .is_err()
    );
}

#[test]
fn enqueue_returns_while_the_stream_is_stalled() {
    let (b, d) = open();
    let s = b.stream(&d, 0).unwrap();
    let gate = stall(&b, &s);
    let m = pinned(&b, &d, 8);
    bytes(&b, &m).fill(0);
    for i in 0..10_000u64 {
        b.fill(&s, whole(&m), i, 8).unwrap();
    }
    assert!(!b.stream_query(&s).unwrap());
    assert_eq!(b.stream_sync(&s, SHORT).unwrap_err().code, Code::Timeout);
    assert_eq!(bytes(&b, &m), [0; 8]);
    drop(gate);
    b.stream_sync(&s, None).unwrap();
    assert!(b.stream_query(&s).unwrap());
    assert_eq!(bytes(&b, &m), 9999u64.to_le_bytes());
}

#[test]
fn an_event_orders_a_consumer_behind_a_stalled_producer() {
    let (b, d) = open();
    let (p, c) = (b.stream(&d, 0).unwrap(), b.stream(&d, 0).unwrap());
    let m = pinned(&b, &d, 16);
    bytes(&b, &m).fill(0);
    let half = |i: u64| Span {
        mem: &m,
        offset: 8 * i,
        bytes: 8,
    };
    let e = b.event(&d).unwrap();
    assert!(b.event_query(&e).unwrap(), "never recorded is complete");
    b.wait_event(&c, &e).unwrap();
    b.stream_sync(&c, None).unwrap();
    let gate = stall(&b, &p);
    b.fill(&p, half(0), 5, 8).unwrap();
    b.record(&e, &p).unwrap();
    b.wait_event(&c, &e).unwrap();
    b.copy(&c, half(1), half(0)).unwrap();
    assert!(!b.event_query(&e).unwrap());
    assert_eq!(b.event_sync(&e, SHORT).unwrap_err().code, Code::Timeout);
    assert_eq!(b.stream_sync(&c, SHORT).unwrap_err().code, Code::Timeout);
    drop(gate);
    b.stream_sync(&c, None).unwrap();
    assert_eq!(bytes(&b, &m)[8], 5);
    b.event_sync(&e, None).unwrap();
}

#[test]
fn recording_again_does_not_move_an_earlier_wait() {
    let (b, d) = open();
    let (slow, fast, c) = (
        b.stream(&d, 0).unwrap(),
        b.stream(&d, 0).unwrap(),
        b.stream(&d, 0).unwrap(),
    );
    let e = b.event(&d).unwrap();
    // First record behind a stall: the wait must hold although a later record on another stream is long complete.
    let gate = stall(&b, &slow);
    b.record(&e, &slow).unwrap();
    b.wait_event(&c, &e).unwrap();
    b.record(&e, &fast).unwrap();
    b.event_sync(&e, None).unwrap();
    assert_eq!(b.stream_sync(&c, SHORT).unwrap_err().code, Code::Timeout);
    drop(gate);
    b.stream_sync(&c, None).unwrap();
    // And the other way round: a complete record, then one behind a stall; the wait between them holds nobody.
    b.record(&e, &fast).unwrap();
    b.stream_sync(&fast, None).unwrap();
    let gate = stall(&b, &slow);
    b.wait_event(&c, &e).unwrap();
    b.record(&e, &slow).unwrap();
    b.stream_sync(&c, Some(Duration::from_secs(20))).unwrap();
    drop(gate);
}

#[test]
fn elapsed_between_events() {
    let (b, d) = open();
    let s = b.stream(&d, 0).unwrap();
    let (from, to) = (b.event(&d).unwrap(), b.event(&d).unwrap());
    assert_eq!(b.elapsed(&from, &to).unwrap_err().code, Code::Invalid);
    b.record(&from, &s).unwrap();
    b.host_call(
        &s,
        Box::new(|_| std::thread::sleep(Duration::from_millis(5))),
    )
    .unwrap();
    b.record(&to, &s).unwrap();
    b.stream_sync(&s, None).unwrap();
    assert!(b.elapsed(&from, &to).unwrap() >= 5_000_000);
}

#[test]
fn a_panic_is_sticky_and_host_calls_still_run_once_in_order() {
    let (b, d) = open();
    let (s, other) = (b.stream(&d, 0).unwrap(), b.stream(&d, 0).unwrap());
    let m = pinned(&b, &d, 8);
    bytes(&b, &m).fill(1);
    let (before, after) = (b.event(&d).unwrap(), b.event(&d).unwrap());
    b.record(&before, &s).unwrap();
    let gate = stall(&b, &s);
    b.host_call(&s, Box::new(|_| panic!("planted"))).unwrap();
    b.fill(&s, whole(&m), 2, 1).unwrap();
    b.record(&after, &s).unwrap();
    b.wait_event(&other, &after).unwrap();
    let (tell, told) = mpsc::channel();
    b.host_call(&s, Box::new(move |r| tell.send(r).unwrap()))
        .unwrap();
    drop(gate);
    let e = b.stream_sync(&s, None).unwrap_err();
    assert_eq!((e.code, e.sticky), (Code::Panic, true));
    assert!(e.message.contains("stream_host_call") && e.message.contains("planted"));
    assert_eq!(told.recv().unwrap().unwrap_err().code, Code::Panic);
    assert!(told.recv().is_err(), "run once");
    assert_eq!(bytes(&b, &m), [1; 8], "work after a failure is not run");
    assert_eq!(b.fill(&s, whole(&m), 3, 1).unwrap_err().code, Code::Panic);
    assert!(b.stream_query(&s).is_err() && b.stream_sync(&s, None).is_err());
    b.event_sync(&before, None).unwrap();
    assert_eq!(b.event_sync(&after, None).unwrap_err().code, Code::Panic);
    assert_eq!(b.stream_sync(&other, None).unwrap_err().code, Code::Panic);
    let (tell, told) = mpsc::channel();
    b.host_call(&s, Box::new(move |r| tell.send(r).unwrap()))
        .unwrap();
    assert!(told.recv().unwrap().is_err());
    let fresh = b.stream(&d, 0).unwrap();
    b.fill(&fresh, whole(&m), 4, 1).unwrap();
    b.stream_sync(&fresh, None).unwrap();
    assert_eq!(bytes(&b, &m), [4; 8]);
}

#[test]
fn values_order_streams() {
    let (b, d) = open();
    let (p, c) = (b.stream(&d, 0).unwrap(), b.stream(&d, 0).unwrap());
    let m = pinned(&b, &d, 24);
    bytes(&b, &m).fill(0);
    let word = |i: u64| Span {
        mem: &m,
        offset: 8 * i,
        bytes: 8,
    };
    b.wait_value(&c, word(0), 7).unwrap();
    b.copy(&c, word(2), word(1)).unwrap();
    b.write_value(&p, word(0), 6).unwrap();
    b.stream_sync(&p, None).unwrap();
    assert_eq!(b.stream_sync(&c, SHORT).unwrap_err().code, Code::Timeout);
    b.fill(&p, word(1), 9, 8).unwrap();
    b.write_value(&p, word(0), 8).unwrap();
    b.stream_sync(&c, None).unwrap();
    assert_eq!(bytes(&b, &m)[16], 9);
    let odd = Span {
        mem: &m,
        offset: 4,
        bytes: 8,
    };
    assert!(b.wait_value(&c, odd, 0).is_err());
}

#[test]
fn destroying_a_stream_finishes_its_work_and_gives_up_hopeless_waits() {
    let (b, d) = open();
    let m = pinned(&b, &d, 8 << 20);
    for round in 0..50u64 {
        let s = b.stream(&d, 0).unwrap();
        for i in 0..4 {
            b.fill(&s, whole(&m), round + i, 1).unwrap();
        }
        drop(s);
        assert!(bytes(&b, &m).iter().all(|x| u64::from(*x) == round + 3));
    }
    let word = pinned(&b, &d, 8);
    bytes(&b, &word).fill(0);
    let (s, e) = (b.stream(&d, 0).unwrap(), b.event(&d).unwrap());
    b.wait_value(&s, whole(&word), 1).unwrap();
    b.record(&e, &s).unwrap();
    drop(s);
    assert_eq!(b.event_sync(&e, None).unwrap_err().code, Code::Aborted);
}

/// A diamond of streams and many random transfers from eight threads, against the same program run in order.
#[test]
fn random_programs_equal_their_sequential_replay() {
    std::thread::scope(|scope| {
        for seed in 0..8u64 {
            scope.spawn(move || {
                let (b, d) = open();
                let streams: Vec<Stream> = (0..3).map(|_| b.stream(&d, 0).unwrap()).collect();
                let e = b.event(&d).unwrap();
                const CELLS: u64 = 16;
                let m = pinned(&b, &d, CELLS * 8);
                bytes(&b, &m).fill(0);
                let cell = |i: u64| Span {
                    mem: &m,
                    offset: i * 8,
                    bytes: 8,
                };
                let mut model = [0u64; CELLS as usize];
                let mut x = seed * 2 + 1;
                let mut rand = |n: u64| {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                    x % n
                };
                let mut last = 0usize;
                for _ in 0..1000 {
                    let at = rand(3) as usize;
                    if at != last {
                        b.record(&e, &streams[last]).unwrap();
                        b.wait_event(&streams[at], &e).unwrap();
                        last = at;
                    }
                    let (i, j) = (rand(CELLS), rand(CELLS));
                    if i == j || rand(2) == 0 {
                        let v = rand(u64::MAX);
                        b.fill(&streams[at], cell(i), v, 8).unwrap();
                        model[i as usize] = v;
                    } else {
                        b.copy(&streams[at], cell(i), cell(j)).unwrap();
                        model[i as usize] = model[j as usize];
                    }
                }
                b.stream_sync(&streams[last], None).unwrap();
                let got: Vec<u64> = bytes(&b, &m)
                    .chunks_exact(8)
                    .map(|c| u64::from_le_bytes(c.try_into().unwrap()))
                    .collect();
                assert_eq!(got, model, "seed {seed}");
            });
        }
    });
}

#[test]
fn a_host_call_may_outlive_its_streams_handle() {
    let (b, d) = open();
    let s = Arc::new(b.stream(&d, 0).unwrap());
    let (again, ran) = (s.clone(), Arc::new(AtomicU64::new(0)));
    let seen = ran.clone();
    let (go, gate) = mpsc::channel::<()>();
    b.host_call(
        &s,
        Box::new(move |_| {
            let _ = gate.recv();
            drop(again);
            seen.fetch_add(1, Ordering::SeqCst);
        }),
    )
    .unwrap();
    drop(s);
    drop(go);
    let start = std::time::Instant::now();
    while ran.load(Ordering::SeqCst) == 0 && start.elapsed() < Duration::from_secs(120) {
        std::thread::yield_now();
    }
    assert_eq!(ran.load(Ordering::SeqCst), 1);
}
