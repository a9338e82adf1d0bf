//! The back end on a simulator of the HIP run time (`tests/sim`): order, copies, host calls, the thread's device, lost devices, computed kernels, and
//! nothing left behind. It is not HIP, and nothing it shows says anything of a GPU.

use crossweave_backend_rocm::{ABOUT, Device, Mem, Rocm, RocmOps, Settings, Stream};
use crossweave_plugin::abi::op::{self, MatmulParams, NoParams};
use crossweave_plugin::abi::{self, Layout};
use crossweave_plugin::{Backend, Code, DType, Dyn, Host, MemKind, OpRequest, Ops, Span};
use libloading::Library;
use std::sync::mpsc;
use std::time::{Duration, Instant};

const LONG: Option<Duration> = Some(Duration::from_secs(60));

struct Simulated {
    b: Rocm,
    sim: Library,
}

impl Simulated {
    fn new() -> Simulated {
        let file = crossweave_tests::sim::library("hip", "rocm");
        let name = file.display().to_string();
        let settings = Settings::new(&ABOUT)
            .with("rocm.libamdhip64", name.clone())
            .with("rocm.libhipblaslt", name.clone())
            .with("rocm.librccl", name);
        Simulated {
            // HIPRTC is found within the run time, as in HIP 5.
            b: Rocm::with(Host::none(), settings),
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

    fn memory(&self, d: &Device, kind: MemKind, bytes: u64) -> Mem {
        self.b.alloc(d, kind, bytes, 0).expect("memory")
    }

    /// The bytes of pinned memory; touched only while streams are idle.
    #[allow(clippy::mut_from_ref)]
    fn bytes<'a>(&self, m: &'a Mem, n: usize) -> &'a mut [u8] {
        // SAFETY: mapped memory of at least that many bytes.
        unsafe { std::slice::from_raw_parts_mut(self.b.map(m).expect("mapped"), n) }
    }

    fn wait(&self, s: &Stream) {
        self.b.stream_sync(s, LONG).expect("the stream ends");
    }
}

fn span(m: &Mem, offset: u64, bytes: u64) -> Span<'_, Mem> {
    Span {
        mem: m,
        offset,
        bytes,
    }
}

#[test]
fn the_back_end_on_the_simulator() {
    let t = Simulated::new();
    facts(&t);
    the_threads_device_is_what_it_was(&t);
    copies_and_fills(&t);
    host_calls_and_events(&t);
    kernels_compute(&t);
    products(&t);
    let end = Instant::now() + Duration::from_secs(120);
    while t.ask("sim_live", 's' as i32, 0) > 0 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    for kind in ['d', 'h', 'r', 's', 'e', 'm'] {
        let left = t.ask("sim_live", kind as i32, 0);
        assert_eq!(left, 0, "things of kind {kind:?} are left");
    }
    assert_eq!(t.ask("sim_lt_live", 0, 0), 0, "of hipBLASLt");
    a_lost_device_says_so_to_every_call(&t);
}

fn facts(t: &Simulated) {
    assert_eq!(t.b.device_count().unwrap(), 8);
    let d = t.b.open(2).unwrap();
    let info = t.b.info(&d).unwrap();
    assert_eq!(
        (info.kind, info.arch.as_str(), info.name.as_str()),
        (2, "gfx90a:sramecc+:xnack-", "SIMULATED AMD GPU 2")
    );
    let driver = t.b.attr(&d, "rocm.driver").unwrap();
    assert!(driver.starts_with(b"5.2.21153 ("), "{driver:?}");
    assert!(t.b.attr(&d, "rocm.rccl").unwrap().starts_with(b"2.23.4 ("));
    // As MI200 does it in products of 16 bits.
    assert_eq!(t.b.attr(&d, "flush_subnormals").unwrap(), b"1");
    an_old_hipblaslt_is_refused(t);
    let e = t.b.alloc(&d, MemKind::Device, 1 << 40, 0).err().unwrap();
    assert_eq!((e.code, e.retryable, e.vendor_code), (Code::Oom, true, 2));
    assert!(
        e.message.contains("hipMalloc: hipErrorOutOfMemory (2)"),
        "{e:?}"
    );
    let other = t.b.open(3).unwrap();
    assert_eq!(t.b.peer_access(&d, &other).unwrap(), (3, 0));
    assert_eq!(t.b.peer_access(&d, &other).unwrap(), (3, 0));
}

/// Before ROCm 6 its types had other numbers.
fn an_old_hipblaslt_is_refused(t: &Simulated) {
    let said = |version: i32| {
        t.ask("sim_lt_version", version, 0);
        let d = t.b.open(4).unwrap();
        String::from_utf8(t.b.attr(&d, "rocm.hipblaslt").unwrap()).unwrap()
    };
    for (version, spelled) in [(300, "0.3.0"), (501, "0.5.1")] {
        let e = said(version);
        let why = format!("hipblasLt {spelled} (");
        assert!(e.starts_with(&why) && e.contains("ROCm 6"), "{e}");
        assert_eq!(t.ask("sim_lt_live", 0, 0), 0, "its handle");
    }
    assert!(said(600).starts_with("0.6.0 ("));
    assert!(said(100_100).starts_with("1.1.0 ("));
}

fn the_threads_device_is_what_it_was(t: &Simulated) {
    let d = t.b.open(1).unwrap();
    for current in [1, 5] {
        assert_eq!(t.ask("hipSetDevice", current, 0), 0);
        let m = t.memory(&d, MemKind::Device, 4096);
        assert_eq!(t.ask("sim_current", 0, 0), current);
        // It lies on the device that was asked for.
        assert_eq!(t.b.info(&d).unwrap().mem_free, (1 << 30) - 4096);
        drop(m);
        assert_eq!(t.ask("sim_current", 0, 0), current);
        assert!(t.b.alloc(&d, MemKind::Device, 1 << 40, 0).is_err());
        assert_eq!(t.ask("sim_current", 0, 0), current, "after a failure");
    }
}

fn copies_and_fills(t: &Simulated) {
    let d = t.b.open(0).unwrap();
    let s = t.b.stream(&d, 1).unwrap();
    let m = t.memory(&d, MemKind::Device, 64);
    let (a, b) = [(); 2]
        .map(|()| t.memory(&d, MemKind::HostPinned, 64))
        .into();
    for (k, x) in t.bytes(&a, 64).iter_mut().enumerate() {
        *x = k as u8;
    }
    t.b.copy(&s, span(&m, 0, 64), span(&a, 0, 64)).unwrap();
    t.b.copy_2d(&s, span(&b, 0, 64), 5, span(&m, 1, 63), 16, 3, 4)
        .unwrap();
    // A pattern of eight bytes, which HIP fills byte by byte.
    t.b.fill(&s, span(&b, 24, 16), 0x0807_0605_0403_0201, 8)
        .unwrap();
    t.b.fill(&s, span(&b, 40, 8), 0x3f80_0000, 4).unwrap();
    t.wait(&s);
    let got = t.bytes(&b, 64);
    assert_eq!([got[0], got[1], got[5], got[15]], [1, 2, 17, 49]);
    assert_eq!(
        got[24..40],
        [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8]
    );
    assert_eq!(got[40..48], [0, 0, 128, 63, 0, 0, 128, 63]);
    let other = t.b.open(1).unwrap();
    let there = t.memory(&other, MemKind::Device, 64);
    t.b.copy_peer(&s, span(&there, 0, 64), span(&m, 0, 64))
        .unwrap();
    t.b.copy_peer(&s, span(&b, 0, 64), span(&there, 0, 64))
        .unwrap();
    t.wait(&s);
    assert_eq!(t.bytes(&b, 64), t.bytes(&a, 64));
}

fn host_calls_and_events(t: &Simulated) {
    let d = t.b.open(0).unwrap();
    let (s, u) = (t.b.stream(&d, 0).unwrap(), t.b.stream(&d, 0).unwrap());
    let (e, m) = (t.b.event(&d).unwrap(), t.memory(&d, MemKind::HostPinned, 8));
    t.bytes(&m, 8).fill(0);
    let (open, gate) = mpsc::channel::<()>();
    let wait = move |_| {
        let _ = gate.recv();
    };
    t.b.host_call(&s, Box::new(wait)).unwrap();
    t.b.fill(&s, span(&m, 0, 4), 7, 4).unwrap();
    t.b.record(&e, &s).unwrap();
    t.b.wait_event(&u, &e).unwrap();
    t.b.copy(&u, span(&m, 4, 4), span(&m, 0, 4)).unwrap();
    assert!(!t.b.event_query(&e).unwrap() && !t.b.stream_query(&u).unwrap());
    drop(open);
    t.wait(&u);
    assert_eq!(t.bytes(&m, 8), [7, 0, 0, 0, 7, 0, 0, 0]);
}

fn kernels_compute(t: &Simulated) {
    let d = t.b.open(0).unwrap();
    let s = t.b.stream(&d, 0).unwrap();
    let n = 1000u64;
    let l = [Layout::contiguous(DType::F32, &[n]); 3];
    let none = NoParams::default();
    let prepare = |id: u32| {
        let o = OpRequest::new(id, &l, none.as_bytes(), abi::MATH_DETERMINISTIC);
        RocmOps::prepare(&t.b, &d, &o).unwrap().0
    };
    // Two modules at once.
    let (add, swiglu) = (prepare(op::ADD), prepare(op::SWIGLU_FWD));
    let on_device = t.memory(&d, MemKind::Device, 3 * 4096);
    let host = t.memory(&d, MemKind::HostPinned, 4 * n);
    let words = |f: &dyn Fn(u64) -> f32| {
        for (i, w) in t
            .bytes(&host, 4 * n as usize)
            .chunks_exact_mut(4)
            .enumerate()
        {
            w.copy_from_slice(&f(i as u64).to_ne_bytes());
        }
    };
    let at = |i: u64| span(&on_device, 4096 * i, 4 * n);
    for (i, f) in [(1, 0.5f32), (2, 3.0)] {
        words(&|k| k as f32 * f);
        t.b.copy(&s, at(i), span(&host, 0, 4 * n)).unwrap();
        t.wait(&s);
    }
    let operands = [Some(at(0)), Some(at(1)), Some(at(2))];
    RocmOps::launch(&t.b, &add, &s, &operands, None, Dyn(&[])).unwrap();
    let again = [Some(at(0)), Some(at(0)), Some(at(0))];
    RocmOps::launch(&t.b, &swiglu, &s, &again, None, Dyn(&[])).unwrap();
    t.b.copy(&s, span(&host, 0, 4 * n), at(0)).unwrap();
    t.wait(&s);
    for (i, w) in t.bytes(&host, 4 * n as usize).chunks_exact(4).enumerate() {
        let (x, got) = (i as f64 * 3.5, f32::from_ne_bytes([w[0], w[1], w[2], w[3]]));
        let want = x * x / (1.0 + (-x).exp());
        assert!((f64::from(got) - want).abs() <= 1e-6 * want, "{got} at {i}");
    }
}

/// By the library, and by our own kernel where an address is none that it takes.
fn products(t: &Simulated) {
    let d = t.b.open(0).unwrap();
    let s = t.b.stream(&d, 0).unwrap();
    let said = t.b.attr(&d, "rocm.hipblaslt").unwrap();
    assert!(said.starts_with(b"1.1.0 ("), "{said:?}");
    let l = [[2u64, 3], [2, 4], [4, 3]].map(|shape| Layout::contiguous(DType::F32, &shape));
    let params = MatmulParams::default();
    let o = OpRequest::new(op::MATMUL, &l, params.as_bytes(), abi::MATH_DETERMINISTIC);
    let (product, plan) = RocmOps::prepare(&t.b, &d, &o).unwrap();
    assert_eq!((plan.tier, plan.workspace_bytes), (2, 4096));
    let m = t.memory(&d, MemKind::HostPinned, 1024);
    let scratch = t.memory(&d, MemKind::Device, 4096);
    for shift in [0usize, 4] {
        let words = t.bytes(&m, 1024);
        for i in 0..12 {
            let at = |k: usize| 256 * k + shift + 4 * i;
            words[at(1)..][..4].copy_from_slice(&(i as f32).to_ne_bytes());
            words[at(2)..][..4].copy_from_slice(&(i as f32 - 3.0).to_ne_bytes());
        }
        let at = |k: usize, n: u64| Some(span(&m, (256 * k + shift) as u64, 4 * n));
        let operands = [at(0, 6), at(1, 8), at(2, 12)];
        let workspace = Some(span(&scratch, 0, 4096));
        RocmOps::launch(&t.b, &product, &s, &operands, workspace, Dyn(&[])).unwrap();
        t.wait(&s);
        for (i, w) in t.bytes(&m, 1024)[shift..][..24].chunks_exact(4).enumerate() {
            let (row, col) = (i / 3, i % 3);
            let term = |k: usize| (4 * row + k) as f32 * ((3 * k + col) as f32 - 3.0);
            let want: f32 = (0..4).map(term).sum();
            let got = f32::from_ne_bytes([w[0], w[1], w[2], w[3]]);
            assert_eq!(got, want, "at {i}, {shift} bytes on");
        }
    }
}

fn a_lost_device_says_so_to_every_call(t: &Simulated) {
    let d = t.b.open(7).unwrap();
    let s = t.b.stream(&d, 0).unwrap();
    t.ask("sim_kill", 7, 719);
    for e in [
        t.b.stream_sync(&s, LONG).unwrap_err(),
        t.b.info(&d).unwrap_err(),
        t.b.stream(&d, 0).map(drop).unwrap_err(),
    ] {
        assert_eq!((e.code, e.sticky), (Code::DeviceLost, true), "{e:?}");
        assert!(e.message.contains("hipErrorLaunchFailure (719)"), "{e:?}");
    }
}
