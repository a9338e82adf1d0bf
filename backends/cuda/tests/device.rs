//! The device half on the simulator: order, copies, host calls, contexts, lost devices, and nothing left behind. One device per test.

use crate::common;
use common::{Simulated, span};
use crossweave_backend_cuda::native;
use crossweave_plugin::{Backend, Code, MemKind, abi};
use std::os::fd::FromRawFd;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::Duration;

const SHORT: Option<Duration> = Some(Duration::from_millis(20));
const LONG: Option<Duration> = Some(Duration::from_secs(60));

#[test]
fn the_host_side_on_the_simulator() {
    // One after another: what is alive is counted for the whole process.
    let t = Simulated::new("device", &[]);
    for (device, test) in [
        facts as fn(&Simulated, u32),
        copies_and_fills,
        order,
        host_calls,
        words,
        imports_and_exports,
        descriptors,
    ]
    .into_iter()
    .enumerate()
    {
        test(&t, device as u32);
        assert_eq!(t.depth(), 0, "test {device} leaves a context on the thread");
        assert_eq!(
            t.ask("sim_retained", device as i64) as i32,
            0,
            "test {device} keeps its context"
        );
        // A destroyed stream of the simulator ends a moment later.
        let end = std::time::Instant::now() + Duration::from_secs(120);
        while t.live('s') > 0 && std::time::Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        for kind in ['d', 'h', 'r', 's', 'e'] {
            assert_eq!(
                t.live(kind),
                0,
                "test {device} leaves things of kind {kind:?}"
            );
        }
    }
    host_calls_that_wait_for_each_other(&t, 5);
    a_lost_device(&t, 7);
    host_calls_without_words(&t, 6);
}

fn facts(t: &Simulated, i: u32) {
    assert_eq!(t.b.device_count().unwrap(), 8);
    let d = t.b.open(i).unwrap();
    let again = t.b.open(i).unwrap();
    let info = t.b.info(&d).unwrap();
    assert_eq!(
        (info.kind, info.arch.as_str(), info.name.as_str()),
        (2, "sm_90", "SIMULATED GPU 0")
    );
    assert_eq!(
        (info.uuid, info.pci_bus_id.as_str()),
        ([0xA0; 16], "0000:01:00.0")
    );
    assert_eq!((info.mem_total, info.mem_free), (1 << 30, 1 << 30));
    let m = t.device_memory(&again, 4096);
    assert_eq!(t.b.info(&d).unwrap().mem_free, (1 << 30) - 4096);
    assert!(
        String::from_utf8(t.b.attr(&d, "cuda.driver").unwrap())
            .unwrap()
            .starts_with("12.8 (")
    );
    assert_eq!(
        t.b.attr(&d, "cuda.nonsense").unwrap_err().code,
        Code::Unsupported
    );
    let e = t.b.open(99).err().unwrap();
    assert_eq!(
        (e.code, e.message.as_str()),
        (Code::Invalid, "device 99: there are 8")
    );
    drop(m);
    let other = t.b.open(i + 1).unwrap();
    assert_eq!(t.b.peer_access(&d, &other).unwrap(), (3, 0));
    assert_eq!(t.b.peer_access(&d, &other).unwrap(), (3, 0));
    // More than there is, at once and with the numbers.
    let e = t.b.alloc(&d, MemKind::Device, 1 << 40, 0).err().unwrap();
    assert_eq!(
        (e.code, e.retryable, e.sticky, e.vendor_code),
        (Code::Oom, true, false, 2)
    );
    for part in [
        "1.10 TB on device 0",
        "1.07 GB of 1.07 GB free",
        "CUDA_ERROR_OUT_OF_MEMORY",
    ] {
        assert!(e.message.contains(part), "{}", e.message);
    }
    assert_eq!(
        t.b.alloc(&d, MemKind::Device, 8, 24).err().unwrap().code,
        Code::Invalid
    );
    for (kind, bytes, align) in [
        (MemKind::Device, 0, 0),
        (MemKind::Device, 1, 4096),
        (MemKind::HostPinned, 5, 1 << 16),
    ] {
        let m = t.b.alloc(&d, kind, bytes, align).unwrap();
        assert_eq!(t.b.map(&m).is_ok(), kind == MemKind::HostPinned);
        let at = t.b.export(&m, native::DEVICE_POINTER).unwrap().value[0];
        assert_eq!(at % align.max(1), 0, "{bytes} bytes at {align}");
    }
    // Priorities: larger is more urgent here, smaller there; out of range is clamped.
    for p in [i32::MIN, -1, 0, 3, i32::MAX] {
        drop(t.b.stream(&d, p).unwrap());
    }
}

fn copies_and_fills(t: &Simulated, i: u32) {
    let d = t.b.open(i).unwrap();
    let s = t.b.stream(&d, 0).unwrap();
    let (n, m) = (64usize, t.device_memory(&d, 64));
    let (a, b) = (t.pinned(&d, 64), t.pinned(&d, 64));
    for (k, x) in t.bytes(&a, n).iter_mut().enumerate() {
        *x = k as u8;
    }
    t.b.copy(&s, span(&m, 0, 64), span(&a, 0, 64)).unwrap();
    t.b.copy(&s, span(&b, 0, 32), span(&m, 16, 32)).unwrap();
    t.b.stream_sync(&s, LONG).unwrap();
    assert_eq!(t.bytes(&b, n)[..32], t.bytes(&a, n)[16..48]);
    assert_eq!(
        t.b.copy(&s, span(&b, 0, 8), span(&m, 0, 4))
            .unwrap_err()
            .code,
        Code::Invalid
    );
    t.b.copy(&s, span(&b, 0, 0), span(&m, 0, 0)).unwrap();

    // Four rows of three bytes, 16 apart there and 5 apart here.
    t.b.fill(&s, span(&b, 0, 64), 0xEE, 1).unwrap();
    t.b.copy_2d(&s, span(&b, 0, 64), 5, span(&m, 1, 63), 16, 3, 4)
        .unwrap();
    t.b.stream_sync(&s, LONG).unwrap();
    assert_eq!(
        t.bytes(&b, n)[..10],
        [1, 2, 3, 0xEE, 0xEE, 17, 18, 19, 0xEE, 0xEE]
    );
    assert_eq!(t.bytes(&b, n)[15..19], [49, 50, 51, 0xEE]);
    let e =
        t.b.copy_2d(&s, span(&b, 0, 17), 5, span(&m, 1, 63), 16, 3, 4)
            .unwrap_err();
    assert_eq!(e.code, Code::Invalid);

    t.b.fill(&s, span(&b, 1, 8), 0x0102_0304, 4).unwrap();
    t.b.fill(&s, span(&b, 16, 16), 0x0807_0605_0403_0201, 8)
        .unwrap();
    t.b.stream_sync(&s, LONG).unwrap();
    assert_eq!(t.bytes(&b, n)[1..9], [4, 3, 2, 1, 4, 3, 2, 1]);
    assert_eq!(
        t.bytes(&b, n)[16..32],
        [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8]
    );
    assert_eq!(
        t.b.fill(&s, span(&b, 0, 6), 0, 4).unwrap_err().code,
        Code::Invalid
    );

    let other = t.b.open(i + 1).unwrap();
    let there = t.device_memory(&other, 64);
    t.b.copy_peer(&s, span(&there, 0, 64), span(&m, 0, 64))
        .unwrap();
    t.b.copy_peer(&s, span(&b, 0, 64), span(&there, 0, 64))
        .unwrap();
    t.b.stream_sync(&s, LONG).unwrap();
    assert_eq!(t.bytes(&b, n), t.bytes(&a, n));
}

fn order(t: &Simulated, i: u32) {
    let d = t.b.open(i).unwrap();
    let (s, u) = (t.b.stream(&d, 0).unwrap(), t.b.stream(&d, 1).unwrap());
    let (e, later) = (t.b.event(&d).unwrap(), t.b.event(&d).unwrap());
    assert!(
        t.b.event_query(&e).unwrap(),
        "an event never recorded is complete"
    );
    t.b.wait_event(&u, &e).unwrap();
    let m = t.pinned(&d, 8);
    t.bytes(&m, 8).fill(0);

    let gate = t.stall(&s);
    t.b.fill(&s, span(&m, 0, 4), 7, 4).unwrap();
    t.b.record(&e, &s).unwrap();
    // Returns although the stream is held.
    assert!(!t.b.event_query(&e).unwrap() && !t.b.stream_query(&s).unwrap());
    let late = t.b.event_sync(&e, SHORT).unwrap_err();
    assert_eq!(late.code, Code::Timeout);
    assert_eq!(
        t.b.stream_sync(&s, Some(Duration::ZERO)).unwrap_err().code,
        Code::Timeout
    );
    assert_eq!(t.b.elapsed(&e, &e).unwrap_err().code, Code::Invalid);
    t.b.wait_event(&u, &e).unwrap();
    t.b.copy(&u, span(&m, 4, 4), span(&m, 0, 4)).unwrap();
    // A later record of the event does not move the wait.
    let second = t.stall(&s);
    t.b.record(&e, &s).unwrap();
    drop(gate);
    t.b.stream_sync(&u, LONG).unwrap();
    assert_eq!(t.bytes(&m, 8), [7, 0, 0, 0, 7, 0, 0, 0]);
    assert!(!t.b.event_query(&e).unwrap());
    drop(second);
    t.b.event_sync(&e, LONG).unwrap();
    t.b.record(&later, &s).unwrap();
    t.b.stream_sync(&s, None).unwrap();
    assert!(t.b.elapsed(&e, &later).unwrap() < 60_000_000_000);
    let other = t.b.open(i + 1).unwrap();
    let foreign = t.b.event(&other).unwrap();
    assert_eq!(t.b.record(&foreign, &s).unwrap_err().code, Code::Invalid);
    // Across devices a wait is allowed.
    t.b.wait_event(&s, &foreign).unwrap();
    t.b.stream_sync(&s, LONG).unwrap();
}

fn host_calls(t: &Simulated, i: u32) {
    let d = t.b.open(i).unwrap();
    let s = t.b.stream(&d, 0).unwrap();
    let m = t.pinned(&d, 4);
    t.bytes(&m, 4).fill(0);
    let (send, seen) = mpsc::channel();
    for k in 0..50u32 {
        t.b.fill(&s, span(&m, 0, 4), u64::from(k), 4).unwrap();
        let (send, at) = (send.clone(), t.b.map(&m).unwrap() as usize);
        let call = move |r: crossweave_plugin::Result<()>| {
            // SAFETY: the stream waits for this call, so nobody writes meanwhile.
            let v = unsafe { (at as *const u32).read() };
            let _ = send.send((k, v, r.is_ok()));
        };
        t.b.host_call(&s, Box::new(call)).unwrap();
    }
    // One that panics is over like any other.
    t.b.host_call(&s, Box::new(|_| panic!("a panic of the host's")))
        .unwrap();
    t.b.stream_sync(&s, LONG).unwrap();
    drop(send);
    let all: Vec<_> = seen.iter().collect();
    assert_eq!(all, (0..50).map(|k| (k, k, true)).collect::<Vec<_>>());
    // A stream that is destroyed with a call that has not come to its turn runs it, with a failure.
    let (gate, held) = (t.stall(&s), Arc::new(AtomicU32::new(0)));
    let code = held.clone();
    let call = move |r: crossweave_plugin::Result<()>| {
        code.store(
            if r.is_err_and(|e| e.code == Code::Aborted) {
                2
            } else {
                1
            },
            SeqCst,
        );
    };
    let u = t.b.stream(&d, 0).unwrap();
    let e = t.b.event(&d).unwrap();
    t.b.record(&e, &s).unwrap();
    t.b.wait_event(&u, &e).unwrap();
    t.b.host_call(&u, Box::new(call)).unwrap();
    // The other stream is let go only when the call has been run.
    let told = held.clone();
    let ender = std::thread::spawn(move || {
        let end = std::time::Instant::now() + Duration::from_secs(60);
        while told.load(SeqCst) == 0 && std::time::Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(gate);
    });
    drop(u);
    assert_eq!(held.load(SeqCst), 2);
    ender.join().unwrap();
    t.b.stream_sync(&s, LONG).unwrap();
}

fn host_calls_that_wait_for_each_other(t: &Simulated, i: u32) {
    let d = t.b.open(i).unwrap();
    let (s, u) = (t.b.stream(&d, 0).unwrap(), t.b.stream(&d, 0).unwrap());
    let (to_u, from_s) = mpsc::channel();
    let (to_s, from_u) = mpsc::channel();
    t.b.host_call(
        &s,
        Box::new(move |_| {
            to_u.send(()).unwrap();
            from_u.recv().unwrap();
        }),
    )
    .unwrap();
    t.b.host_call(
        &u,
        Box::new(move |_| {
            to_s.send(()).unwrap();
            from_s.recv().unwrap();
        }),
    )
    .unwrap();
    t.b.stream_sync(&s, LONG).unwrap();
    t.b.stream_sync(&u, LONG).unwrap();
}

fn words(t: &Simulated, i: u32) {
    let d = t.b.open(i).unwrap();
    let (s, u) = (t.b.stream(&d, 0).unwrap(), t.b.stream(&d, 0).unwrap());
    let w = t.pinned(&d, 16);
    t.bytes(&w, 16).fill(0);
    t.b.wait_value(&s, span(&w, 8, 8), 3).unwrap();
    assert_eq!(t.b.stream_sync(&s, SHORT).unwrap_err().code, Code::Timeout);
    t.b.write_value(&u, span(&w, 8, 8), 5).unwrap();
    t.b.stream_sync(&s, LONG).unwrap();
    for (offset, bytes) in [(4, 8), (8, 4)] {
        assert_eq!(
            t.b.wait_value(&s, span(&w, offset, bytes), 1)
                .unwrap_err()
                .code,
            Code::Invalid
        );
    }
    t.b.stream_sync(&u, LONG).unwrap();
    // The device compares in a circle: there 2^63 is less than 0.
    for r in [
        t.b.wait_value(&s, span(&w, 8, 8), 1 << 63),
        t.b.write_value(&s, span(&w, 8, 8), u64::MAX),
    ] {
        assert_eq!(r.unwrap_err().code, Code::Unsupported);
    }
}

fn imports_and_exports(t: &Simulated, i: u32) {
    let d = t.b.open(i).unwrap();
    let s = t.b.stream(&d, 0).unwrap();
    let mut ours = vec![0u8; 8192];
    let native = |type_: u32, at: u64, bytes: u64| abi::Native {
        size: size_of::<abi::Native>() as u32,
        type_,
        value: [at, 0, 0, 0],
        bytes,
    };
    let n = native(abi::NATIVE_HOST_POINTER, ours.as_mut_ptr() as u64, 8192);
    let m = t.b.import(&d, &n).unwrap();
    assert_eq!(t.live('r'), 1);
    // Registered already: usable, and left registered by the code that did it.
    let twice = t.b.import(&d, &n).unwrap();
    t.b.fill(&s, span(&twice, 0, 8192), 0x55, 1).unwrap();
    t.b.stream_sync(&s, LONG).unwrap();
    drop(twice);
    assert_eq!(t.live('r'), 1);
    assert_eq!(t.b.map(&m).unwrap() as u64, ours.as_ptr() as u64);
    drop(m);
    assert_eq!(t.live('r'), 0);
    assert!(ours.iter().all(|b| *b == 0x55));
    let m = t.device_memory(&d, 64);
    let out = t.b.export(&m, native::DEVICE_POINTER).unwrap();
    let seen = t.b.import(&d, &out).unwrap();
    t.b.fill(&s, span(&seen, 0, 64), 1, 1).unwrap();
    t.b.stream_sync(&s, LONG).unwrap();
    for (type_, at, code) in [
        (77, 1, Code::Unsupported),
        (abi::NATIVE_HOST_POINTER, 0, Code::Invalid),
        (native::DEVICE_POINTER, 0, Code::Invalid),
    ] {
        assert_eq!(
            t.b.import(&d, &native(type_, at, 64)).err().unwrap().code,
            code
        );
    }
    assert_eq!(t.b.export(&m, 77).unwrap_err().code, Code::Unsupported);
    assert_eq!(
        t.b.export(&m, native::POSIX_FD).unwrap_err().code,
        Code::Unsupported
    );
}

/// Physical memory as a descriptor, mapped a second time: both see the same bytes, and it lives as long as the last of them.
fn descriptors(t: &Simulated, i: u32) {
    let d = t.b.open(i).unwrap();
    let s = t.b.stream(&d, 0).unwrap();
    let m = t.b.alloc(&d, MemKind::Symmetric, (2 << 20) + 5, 0).unwrap();
    let out = t.b.export(&m, native::POSIX_FD).unwrap();
    assert_eq!(
        (out.bytes, t.live('p')),
        (4 << 20, 0),
        "whole granules; the handle is given back"
    );
    let again = t.b.import(&d, &out).unwrap();
    // SAFETY: the descriptor is ours since the export.
    drop(unsafe { std::fs::File::from_raw_fd(out.value[0] as i32) });
    t.b.fill(&s, span(&m, 0, 64), 0x5A, 1).unwrap();
    t.b.stream_sync(&s, LONG).unwrap();
    drop(m);
    let p = t.pinned(&d, 64);
    t.b.copy(&s, span(&p, 0, 64), span(&again, 0, 64)).unwrap();
    t.b.stream_sync(&s, LONG).unwrap();
    assert!(t.bytes(&p, 64).iter().all(|b| *b == 0x5A));
    let odd = abi::Native { bytes: 4096, ..out };
    assert_eq!(t.b.import(&d, &odd).err().unwrap().code, Code::Invalid);
    let small = t.b.alloc(&d, MemKind::Symmetric, 4096, 0).unwrap();
    assert_eq!(
        t.b.export(&small, native::POSIX_FD).unwrap_err().code,
        Code::Unsupported
    );
    drop((again, small));
    assert_eq!((t.live('v'), t.live('p')), (0, 0));
}

/// A kernel that goes astray ends the device: every later call says so, what is pending gets the error, and all is given back.
fn a_lost_device(t: &Simulated, i: u32) {
    let d = t.b.open(i).unwrap();
    let s = t.b.stream(&d, 0).unwrap();
    let e = t.b.event(&d).unwrap();
    let m = t.device_memory(&d, 64);
    let p = t.pinned(&d, 64);
    let gate = t.stall(&s);
    let (send, seen) = mpsc::channel();
    t.b.host_call(&s, Box::new(move |r| send.send(r).unwrap()))
        .unwrap();
    t.kill(i, 700);
    drop(gate);
    let told = seen
        .recv_timeout(Duration::from_secs(60))
        .unwrap()
        .unwrap_err();
    assert_eq!(
        (told.code, told.sticky, told.vendor_code),
        (Code::DeviceLost, true, 700)
    );
    for r in [
        t.b.stream_query(&s).map(drop),
        t.b.stream_sync(&s, None),
        t.b.event_query(&e).map(drop),
        t.b.record(&e, &s),
        t.b.copy(&s, span(&m, 0, 8), span(&p, 0, 8)),
        t.b.fill(&s, span(&m, 0, 8), 0, 1),
        t.b.info(&d).map(drop),
        t.b.alloc(&d, MemKind::Device, 8, 0).map(drop),
        t.b.host_call(&s, Box::new(|_| {})),
        t.b.stream(&d, 0).map(drop),
    ] {
        let e = r.unwrap_err();
        assert_eq!(
            (e.code, e.sticky, e.vendor_code),
            (Code::DeviceLost, true, 700),
            "{e}"
        );
        assert!(
            e.message.contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)"),
            "{e}"
        );
    }
    // Others live on.
    let other = t.b.open(0).unwrap();
    drop(t.device_memory(&other, 64));
    drop((s, e, m, p, d));
    assert_eq!(t.depth(), 0);
}

/// Where streams cannot wait for words, host calls hold the stream by a host function.
fn host_calls_without_words(t: &Simulated, i: u32) {
    t.ask("sim_mem_ops", 0);
    let d = t.b.open(i).unwrap();
    host_calls(t, i);
    let s = t.b.stream(&d, 0).unwrap();
    let w = t.pinned(&d, 8);
    assert_eq!(
        t.b.wait_value(&s, span(&w, 0, 8), 1).unwrap_err().code,
        Code::Unsupported
    );
    t.ask("sim_mem_ops", 1);
}
