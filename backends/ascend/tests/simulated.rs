//! The back end on a simulator of ACL and aclnn (`tests/sim`): the thread's context, copies of every direction, fills, host calls, operators whose
//! executors are used again, what they are refused for, a lost device, and nothing left behind. It is not ACL, and nothing it shows says anything of
//! an NPU.

use crossweave_backend_ascend::{
    ABOUT, Ascend, AscendOps, Device, Mem, Prepared, Settings, Stream,
};
use crossweave_plugin::abi::op::{self, DimParams, NoParams};
use crossweave_plugin::abi::{self, Layout};
use crossweave_plugin::{Backend, Code, DType, Dyn, Host, MemKind, OpRequest, Ops, Span};
use libloading::Library;
use std::sync::mpsc;
use std::time::{Duration, Instant};

pub(crate) const LONG: Option<Duration> = Some(Duration::from_secs(60));

pub(crate) struct Simulated {
    pub(crate) b: Ascend,
    sim: Library,
}

impl Simulated {
    pub(crate) fn new() -> Simulated {
        let file = crossweave_tests::sim::library("acl", "ascend");
        let name = file.display().to_string();
        let keys = ["libascendcl", "libnnopbase", "libopapi", "libhccl"];
        let settings = keys.iter().fold(Settings::new(&ABOUT), |s, k| {
            s.with(&format!("ascend.{k}"), name.clone())
        });
        Simulated {
            b: Ascend::with(Host::none(), settings),
            // SAFETY: a library of ours, whose constructor maps memory.
            sim: unsafe { Library::new(file) }.expect("the simulator opens"),
        }
    }

    /// A function of the simulator's that takes and gives integers.
    fn ask(&self, name: &str, a: i32, b: i32) -> i32 {
        // SAFETY: functions of at most two integers; one that takes fewer does not look at the rest.
        unsafe {
            let f = self
                .sim
                .get::<unsafe extern "C" fn(i32, i32) -> i32>(name.as_bytes())
                .expect(name);
            f(a, b)
        }
    }

    pub(crate) fn at(&self, d: &Device, kind: MemKind, bytes: u64) -> Mem {
        self.b.alloc(d, kind, bytes, 0).expect("memory")
    }

    /// Numbers on the device.
    pub(crate) fn put(&self, d: &Device, s: &Stream, v: &[f32]) -> Mem {
        let (m, host) = [MemKind::Device, MemKind::HostPinned]
            .map(|k| self.at(d, k, 4 * v.len() as u64))
            .into();
        // SAFETY: mapped memory of as many numbers.
        let to =
            unsafe { std::slice::from_raw_parts_mut(self.b.map(&host).unwrap().cast(), v.len()) };
        to.copy_from_slice(v);
        self.b
            .copy(s, all(&m, v.len()), all(&host, v.len()))
            .unwrap();
        self.wait(s);
        m
    }

    pub(crate) fn get(&self, d: &Device, s: &Stream, m: &Mem, n: usize) -> Vec<f32> {
        let host = self.at(d, MemKind::HostPinned, 4 * n as u64);
        self.b.copy(s, all(&host, n), all(m, n)).unwrap();
        self.wait(s);
        // SAFETY: mapped memory of as many numbers, and the stream is idle.
        unsafe { std::slice::from_raw_parts(self.b.map(&host).unwrap().cast(), n) }.to_vec()
    }

    pub(crate) fn wait(&self, s: &Stream) {
        self.b.stream_sync(s, LONG).expect("the stream ends");
    }
}

pub(crate) fn all(m: &Mem, words: usize) -> Span<'_, Mem> {
    Span {
        mem: m,
        offset: 0,
        bytes: 4 * words as u64,
    }
}

#[test]
fn the_back_end_on_the_simulator() {
    crossweave_tests::in_own_process!();
    let t = Simulated::new();
    facts(&t);
    the_threads_context_is_what_it_was(&t);
    copies_and_fills_of_every_kind_of_memory(&t);
    host_calls_and_events(&t);
    operators_run_again_and_elsewhere(&t);
    operands_of_the_host_are_refused(&t);
    fused_operators_serve_what_they_define(&t);
    let end = Instant::now() + Duration::from_secs(120);
    while t.ask("sim_live", 's' as i32, 0) > 0 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    for kind in ['d', 'h', 'r', 's', 'e'] {
        let left = t.ask("sim_live", kind as i32, 0);
        assert_eq!(left, 0, "things of kind {kind:?} are left");
    }
    assert_eq!(t.ask("sim_descriptors", 0, 0), 0, "descriptors are left");
    for d in 0..8 {
        assert_eq!(t.ask("sim_retained", d, 0), 0, "device {d} is held");
    }
    a_lost_device_says_so_to_every_call(&t);
}

fn facts(t: &Simulated) {
    assert_eq!(t.b.device_count().unwrap(), 8);
    let d = t.b.open(2).unwrap();
    let info = t.b.info(&d).unwrap();
    assert_eq!(
        (info.kind, info.arch.as_str(), info.name.as_str()),
        (3, "SIMULATED Ascend910B1", "SIMULATED Ascend910B1 2")
    );
    let driver = t.b.attr(&d, "ascend.driver").unwrap();
    assert!(driver.starts_with(b"1.17.0 ("), "{driver:?}");
    assert_eq!(t.b.attr(&d, "collective.ready").unwrap(), b"yes");
    let e = t.b.alloc(&d, MemKind::Device, 1 << 40, 0).err().unwrap();
    assert_eq!(
        (e.code, e.retryable, e.vendor_code),
        (Code::Oom, true, 207001)
    );
    let words = "aclrtMalloc: ACL_ERROR_RT_MEMORY_ALLOCATION (207001): EZ9999: simulated";
    assert!(e.message.contains(words), "{e:?}");
    let other = t.b.open(3).unwrap();
    assert_eq!(t.b.peer_access(&d, &other).unwrap(), (3, 0));
}

fn the_threads_context_is_what_it_was(t: &Simulated) {
    let d = t.b.open(1).unwrap();
    for current in [1, 5] {
        assert_eq!(t.ask("aclrtSetDevice", current, 0), 0);
        let m = t.at(&d, MemKind::Device, 4096);
        assert_eq!(t.ask("sim_current", 0, 0), current);
        // It lies on the device that was asked for.
        assert_eq!(t.b.info(&d).unwrap().mem_free, (1 << 30) - 4096);
        drop(m);
        assert!(t.b.alloc(&d, MemKind::Device, 1 << 40, 0).is_err());
        assert_eq!(t.ask("sim_current", 0, 0), current, "after a failure");
        assert_eq!(t.ask("aclrtResetDevice", current, 0), 0);
    }
}

fn copies_and_fills_of_every_kind_of_memory(t: &Simulated) {
    let d = t.b.open(0).unwrap();
    let s = t.b.stream(&d, 1).unwrap();
    let a = t.put(&d, &s, &[1.0, 2.0, 3.0, 4.0]);
    let (b, h, g) = (
        t.at(&d, MemKind::Device, 16),
        t.at(&d, MemKind::HostPinned, 16),
        t.at(&d, MemKind::HostPinned, 16),
    );
    // Device to device, device to host, within the host, host to device.
    for (to, from) in [(&b, &a), (&h, &b), (&g, &h), (&b, &g)] {
        t.b.copy(&s, all(to, 4), all(from, 4)).unwrap();
    }
    assert_eq!(t.get(&d, &s, &b, 4), [1.0, 2.0, 3.0, 4.0]);
    // Rows, of which ACL copies only those between host and device.
    for to in [&b, &g] {
        t.b.copy_2d(&s, all(to, 4), 8, all(&a, 4), 4, 4, 2).unwrap();
        assert_eq!(t.get(&d, &s, to, 3), [1.0, 2.0, 2.0]);
    }
    for m in [&b, &h] {
        t.b.fill(&s, all(m, 4), u64::from(1.5f32.to_bits()), 4)
            .unwrap();
        assert_eq!(t.get(&d, &s, m, 4), [1.5; 4]);
        // A pattern of eight bytes goes byte by byte.
        let both = u64::from(2.5f32.to_bits()) << 32 | u64::from(0.5f32.to_bits());
        t.b.fill(&s, all(m, 4), both, 8).unwrap();
        assert_eq!(t.get(&d, &s, m, 4), [0.5, 2.5, 0.5, 2.5]);
        t.b.fill(&s, all(m, 4), 0, 1).unwrap();
        assert_eq!(t.get(&d, &s, m, 4), [0.0; 4]);
    }
    let other = t.b.open(1).unwrap();
    let there = t.at(&other, MemKind::Device, 16);
    t.b.copy_peer(&s, all(&there, 4), all(&a, 4)).unwrap();
    t.b.copy_peer(&s, all(&b, 4), all(&there, 4)).unwrap();
    assert_eq!(t.get(&d, &s, &b, 4), [1.0, 2.0, 3.0, 4.0]);
}

fn host_calls_and_events(t: &Simulated) {
    let d = t.b.open(0).unwrap();
    let (s, u) = (t.b.stream(&d, 0).unwrap(), t.b.stream(&d, 0).unwrap());
    let (e, m) = (t.b.event(&d).unwrap(), t.put(&d, &s, &[0.0, 0.0]));
    assert!(t.b.event_query(&e).unwrap(), "never recorded");
    let (open, gate) = mpsc::channel::<()>();
    let wait = move |_| {
        let _ = gate.recv();
    };
    t.b.host_call(&s, Box::new(wait)).unwrap();
    t.b.fill(&s, all(&m, 1), u64::from(7f32.to_bits()), 4)
        .unwrap();
    t.b.record(&e, &s).unwrap();
    t.b.wait_event(&u, &e).unwrap();
    let second = Span {
        offset: 4,
        ..all(&m, 1)
    };
    t.b.copy(&u, second, all(&m, 1)).unwrap();
    // A call of the other stream is not kept from running.
    let (said, told) = mpsc::channel();
    let v = t.b.stream(&d, 0).unwrap();
    t.b.host_call(&v, Box::new(move |_| said.send(()).unwrap()))
        .unwrap();
    told.recv_timeout(Duration::from_secs(120))
        .expect("the other stream's call");
    assert!(!t.b.event_query(&e).unwrap() && !t.b.stream_query(&u).unwrap());
    drop(open);
    t.wait(&u);
    assert_eq!(t.get(&d, &u, &m, 2), [7.0, 7.0]);
}

fn prepared(t: &Simulated, d: &Device, id: u32, l: &[Layout], params: &[u8]) -> (Prepared, u64) {
    let o = OpRequest::new(id, l, params, abi::MATH_DETERMINISTIC);
    let (p, plan) = AscendOps::prepare(&t.b, d, &o).unwrap();
    (p, plan.workspace_bytes)
}

fn operators_run_again_and_elsewhere(t: &Simulated) {
    let d = t.b.open(0).unwrap();
    let s = t.b.stream(&d, 0).unwrap();
    let (a, b) = (
        t.put(&d, &s, &[1.0, -2.0, 3.0]),
        t.put(&d, &s, &[0.5, 0.25, 4.0]),
    );
    let c = t.at(&d, MemKind::Device, 12);
    let l = [Layout::contiguous(DType::F32, &[3]); 3];
    let kind = op::KindParams {
        kind: op::binary::ADD,
        ..op::KindParams::default()
    };
    let (add, bytes) = prepared(t, &d, op::BINARY, &l, kind.as_bytes());
    let space = t.at(&d, MemKind::Device, bytes);
    let launch = |p: &Prepared, operands: &[&Mem]| {
        let spans: Vec<_> = operands.iter().map(|m| Some(all(m, 3))).collect();
        let space = Span {
            mem: &space,
            offset: 0,
            bytes,
        };
        AscendOps::launch(&t.b, p, &s, &spans, Some(space), Dyn(&[]))
    };
    // At the same addresses, at others, and at the first again.
    for (x, y, want) in [
        (&a, &b, [1.5, -1.75, 7.0]),
        (&a, &b, [1.5, -1.75, 7.0]),
        (&b, &b, [1.0, 0.5, 8.0]),
        (&a, &b, [1.5, -1.75, 7.0]),
    ] {
        launch(&add, &[&c, x, y]).unwrap();
        assert_eq!(t.get(&d, &s, &c, 3), want);
    }
    // The simulator's sort cannot be made repeatable.
    let row = Layout::contiguous(DType::F32, &[1, 3]);
    let ids = Layout::contiguous(DType::I32, &[1, 3]);
    let p = DimParams::default();
    let (topk, bytes) = prepared(t, &d, op::TOPK, &[row, ids, row], p.as_bytes());
    let (space, order) = (
        t.at(&d, MemKind::Device, bytes),
        t.at(&d, MemKind::Device, 12),
    );
    for _ in 0..2 {
        let spans = [Some(all(&c, 3)), Some(all(&order, 3)), Some(all(&a, 3))];
        let space = Span {
            mem: &space,
            offset: 0,
            bytes,
        };
        AscendOps::launch(&t.b, &topk, &s, &spans, Some(space), Dyn(&[])).unwrap();
        assert_eq!(t.get(&d, &s, &c, 3), [3.0, 1.0, -2.0]);
        let order = t.get(&d, &s, &order, 3);
        assert_eq!(
            order.iter().map(|w| w.to_bits()).collect::<Vec<_>>(),
            [2, 0, 1]
        );
    }
}

fn operands_of_the_host_are_refused(t: &Simulated) {
    let d = t.b.open(0).unwrap();
    let s = t.b.stream(&d, 0).unwrap();
    let (a, h) = (t.put(&d, &s, &[1.0; 3]), t.at(&d, MemKind::HostPinned, 12));
    let l = [Layout::contiguous(DType::F32, &[3]); 2];
    let (copy, bytes) = prepared(t, &d, op::COPY_STRIDED, &l, NoParams::default().as_bytes());
    let space = t.at(&d, MemKind::Device, bytes);
    let space = Span {
        mem: &space,
        offset: 0,
        bytes,
    };
    let spans = [Some(all(&a, 3)), Some(all(&h, 3))];
    let e = AscendOps::launch(&t.b, &copy, &s, &spans, Some(space), Dyn(&[])).unwrap_err();
    assert_eq!(e.code, Code::Unsupported);
    assert!(e.message.contains("page-locked"), "{e:?}");
}

/// By hand: a root mean square of 5, and a query that sees the first of two keys, or both.
fn fused_operators_serve_what_they_define(t: &Simulated) {
    let d = t.b.open(0).unwrap();
    let s = t.b.stream(&d, 0).unwrap();
    let run = |(p, bytes): (Prepared, u64), operands: &[(&Mem, usize)]| {
        let space = t.at(&d, MemKind::Device, bytes);
        let spans: Vec<_> = operands.iter().map(|(m, n)| Some(all(m, *n))).collect();
        let space = Span {
            mem: &space,
            offset: 0,
            bytes,
        };
        AscendOps::launch(&t.b, &p, &s, &spans, Some(space), Dyn(&[])).unwrap();
        t.wait(&s);
    };
    let f = |shape: &[u64]| Layout::contiguous(DType::F32, shape);
    let (x, w) = (t.put(&d, &s, &[1.0, 7.0]), t.put(&d, &s, &[10.0, 0.5]));
    let (y, rstd) = (t.put(&d, &s, &[0.0; 2]), t.put(&d, &s, &[0.0]));
    let l = [f(&[1, 2]), f(&[1]), f(&[1, 2]), f(&[2])];
    let p = op::NormParams::default();
    let norm = prepared(t, &d, op::RMS_NORM_FWD, &l, p.as_bytes());
    run(norm, &[(&y, 2), (&rstd, 1), (&x, 2), (&w, 2)]);
    assert_eq!(t.get(&d, &s, &y, 2), [2.0, 0.7]);
    assert_eq!(t.get(&d, &s, &rstd, 1), [0.2]);

    // Scores of 0: weights are 1, or a half each.
    let attention = |flags, window, tq: u64, tk: u64| {
        let (q, k) = (f(&[1, tq, 1, 2]), f(&[1, tk, 1, 2]));
        let p = op::AttentionParams {
            flags,
            window,
            ..op::AttentionParams::default()
        };
        let l = [q, f(&[1, 1, tq]), q, k, k];
        let o = OpRequest::new(op::ATTENTION_FWD, &l, p.as_bytes(), abi::MATH_DETERMINISTIC);
        AscendOps::prepare(&t.b, &d, &o).map(|(p, plan)| (p, plan.workspace_bytes))
    };
    let (q, k) = (t.put(&d, &s, &[0.0; 4]), t.put(&d, &s, &[1.0; 4]));
    let v = t.put(&d, &s, &[1.0, 2.0, 3.0, 6.0]);
    let (o, lse) = (t.put(&d, &s, &[0.0; 4]), t.put(&d, &s, &[0.0; 2]));
    let operands = [(&o, 4), (&lse, 2), (&q, 4), (&k, 4), (&v, 4)];
    run(attention(op::FLAG_CAUSAL, 0, 2, 2).unwrap(), &operands);
    assert_eq!(t.get(&d, &s, &o, 4), [1.0, 2.0, 2.0, 4.0]);
    assert_eq!(t.get(&d, &s, &lse, 2), [0.0, 2f32.ln()]);
    run(attention(0, 0, 2, 2).unwrap(), &operands);
    assert_eq!(t.get(&d, &s, &o, 4), [2.0, 4.0, 2.0, 4.0]);
    for (flags, window, tq, tk, why) in [
        (op::FLAG_CAUSAL, 1, 2, 2, "a window"),
        (op::FLAG_CAUSAL, 0, 3, 2, "queries that see no key"),
    ] {
        let e = attention(flags, window, tq, tk).map(drop).unwrap_err();
        assert_eq!(e.code, Code::Unsupported);
        assert!(e.message.contains(why), "{e:?}");
    }
}

fn a_lost_device_says_so_to_every_call(t: &Simulated) {
    let d = t.b.open(7).unwrap();
    let s = t.b.stream(&d, 0).unwrap();
    t.ask("sim_kill", 7, 507015);
    for e in [
        t.b.stream_sync(&s, LONG).unwrap_err(),
        t.b.info(&d).unwrap_err(),
        t.b.stream(&d, 0).map(drop).unwrap_err(),
    ] {
        assert_eq!((e.code, e.sticky), (Code::DeviceLost, true), "{e:?}");
        assert!(
            e.message.contains("ACL_ERROR_RT_AICORE_EXCEPTION (507015)"),
            "{e:?}"
        );
    }
}
