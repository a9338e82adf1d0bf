//! The safe layer over a real backend: order, lifetimes, pools, ledgers, groups and aborts. Every body runs on the backend linked in and on the
//! same backend loaded as a plugin, and the bytes it computes must be the same.

use crossweave_backend_cpu::CpuBackend;
use crossweave_hal::abi::{Layout, op};
use crossweave_hal::loader::load;
use crossweave_hal::{
    Code, CommOptions, Communicator, DType, Device, HostServices, KvStore, LocalKv, NoDecompose,
    OpRequest, Plugin, RawPlugin, Reduce, Stream, Tag,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The CPU back end as a plugin file.
fn cdylib() -> PathBuf {
    crossweave_tests::built::plugin("crossweave_cpu")
}

/// Runs `body` linked and dlopened; both give the same bytes.
fn both(body: fn(&Plugin) -> Vec<u8>) {
    let host = HostServices::builder().threads(2).build();
    let linked = Plugin::new(RawPlugin::from_static::<CpuBackend>(&host).expect("linked"));
    let path = cdylib();
    let loaded = Plugin::new(load(&path, &host).unwrap_or_else(|e| panic!("{e}")));
    assert!(linked.path().is_none() && loaded.path() == Some(&path));
    let (a, b) = (body(&linked), body(&loaded));
    assert!(a == b, "linked and dlopened computed different bytes");
}

struct Boot(Arc<LocalKv>);
impl crossweave_hal::Bootstrap for Boot {
    fn set(&self, key: &str, value: &[u8]) -> crossweave_hal::Result<()> {
        self.0.set(key, value)
    }
    fn get(&self, key: &str, timeout: Duration) -> crossweave_hal::Result<Vec<u8>> {
        self.0.get(key, Some(timeout))
    }
}

/// Runs `f(rank, device, communicator)` on one thread per rank; results by rank.
fn ranks<T: Send>(
    plugin: &Plugin,
    n: u32,
    name: &str,
    f: impl Fn(u32, Device, Communicator) -> T + Sync,
) -> Vec<T> {
    let kv = Arc::new(LocalKv::default());
    thread::scope(|s| {
        let all: Vec<_> = (0..n)
            .map(|r| {
                let (kv, f) = (kv.clone(), &f);
                s.spawn(move || {
                    let device = plugin.open(0).unwrap();
                    let options = CommOptions {
                        name: name.into(),
                        timeout: Some(Duration::from_secs(60)),
                    };
                    let c = Communicator::new(&device, &Boot(kv), r, n, &options).unwrap();
                    f(r, device, c)
                })
            })
            .collect();
        all.into_iter()
            .map(|t| t.join().unwrap_or_else(|e| std::panic::resume_unwind(e)))
            .collect()
    })
}

/// Holds a stream until it is opened: a barrier of a group of two whose other rank is ours.
struct Gate {
    device: Device,
    shut: Communicator,
    open: (Communicator, Stream),
}

impl Gate {
    fn new(plugin: &Plugin) -> Gate {
        let mut made = ranks(plugin, 2, "gate", |_, d, c| (d, c));
        let (other, opener) = made.pop().unwrap();
        let (device, shut) = made.pop().unwrap();
        let open = (opener, other.stream("gate", 0).unwrap());
        Gate { device, shut, open }
    }
    fn shut(&mut self, s: &Stream) {
        self.shut.barrier(s).unwrap();
    }
    fn open(&mut self) {
        self.open.0.barrier(&self.open.1).unwrap();
    }
}

fn read(s: &Stream, b: &crossweave_hal::Buffer) -> Vec<u8> {
    let mut out = vec![0; b.bytes() as usize];
    s.read(b.all(), &mut out).unwrap();
    out
}

#[test]
fn a_consumer_never_sees_what_a_stalled_producer_has_not_written() {
    both(|plugin| {
        let mut gate = Gate::new(plugin);
        let device = gate.device.clone();
        let (p, c) = (
            device.stream("producer", 0).unwrap(),
            device.stream("consumer", 1).unwrap(),
        );
        let n = 64 << 10;
        let x = device.alloc_state(n, Tag::Param).unwrap();
        let y = device.alloc(&c, n, Tag::Activation).unwrap();
        let mut all = vec![];
        let mut corrupted = 0;
        for run in 0..200u64 {
            gate.shut(&p);
            p.fill(x.all(), run, 8).unwrap();
            c.copy(y.all(), x.all()).unwrap();
            // The producer may not overwrite what the consumer still reads.
            p.fill(x.all(), u64::MAX, 8).unwrap();
            if run % 2 == 0 {
                gate.open();
            } else {
                thread::scope(|s| s.spawn(|| gate.open()).join().unwrap());
            }
            let got = read(&c, &y);
            corrupted += got.chunks(8).any(|w| w != run.to_ne_bytes()) as u32;
            all.extend_from_slice(&got[..8]);
        }
        assert_eq!(corrupted, 0, "of 200 runs");
        assert!(
            c.waits() >= 200 && p.waits() >= 199,
            "{} {}",
            c.waits(),
            p.waits()
        );
        // One stream alone orders itself: no wait is ever inserted.
        let before = c.waits();
        (0..50).for_each(|i| c.fill(y.all(), i, 8).unwrap());
        assert_eq!(c.waits(), before);
        all
    });
}

#[test]
fn buffers_may_be_dropped_while_work_on_them_is_queued() {
    both(|plugin| {
        let mut gate = Gate::new(plugin);
        let device = gate.device.clone();
        let (a, b) = (
            device.stream("a", 0).unwrap(),
            device.stream("b", 0).unwrap(),
        );
        let out = device.alloc_state(4096, Tag::Activation).unwrap();
        let mut all = vec![];
        for run in 0..50u64 {
            gate.shut(&a);
            let t = device.alloc(&a, 4096, Tag::Activation).unwrap();
            a.fill(t.all(), run, 8).unwrap();
            a.copy(out.all(), t.all()).unwrap();
            drop(t);
            // The pool may hand the same block to the other stream at once; its write waits for the copy.
            let u = device.alloc(&b, 4096, Tag::Activation).unwrap();
            b.fill(u.all(), 0xdead, 8).unwrap();
            drop(u);
            gate.open();
            let got = read(&a, &out);
            assert!(got.chunks(8).all(|w| w == run.to_ne_bytes()), "run {run}");
            all.extend_from_slice(&got[..8]);
        }
        // Memory of its own is given back to the plugin only after its last use.
        let t = device.alloc_state(4096, Tag::Activation).unwrap();
        gate.shut(&a);
        a.fill(t.all(), 7, 8).unwrap();
        a.copy(out.all(), t.all()).unwrap();
        thread::scope(|s| {
            let dropping = s.spawn(move || drop(t));
            gate.open();
            dropping.join().unwrap();
        });
        all.extend(read(&a, &out));
        all
    });
}

#[test]
fn bytes_go_up_and_come_back() {
    both(|plugin| {
        let device = plugin.open(0).unwrap();
        let s = device.stream("s", 0).unwrap();
        let mut sum = vec![];
        // Across the staging size too.
        for n in [1usize, 7, 4096, (8 << 20) + 13] {
            let bytes: Vec<u8> = (0..n).map(|i| (i * 31 + i / 251) as u8).collect();
            let b = device.alloc(&s, n as u64, Tag::Activation).unwrap();
            s.write(b.all(), &bytes).unwrap();
            assert!(read(&s, &b) == bytes, "{n} bytes");
            let mut staging = device.alloc_host(n as u64, Tag::Staging).unwrap();
            let back: Vec<u8> = bytes.iter().rev().copied().collect();
            s.upload(b.all(), &back, &mut staging).unwrap();
            assert!(read(&s, &b) == back, "{n} bytes by upload");
            sum.extend_from_slice(&back[..n.min(64)]);
        }
        let b = device.alloc(&s, 16, Tag::Activation).unwrap();
        let mut short = [0; 8];
        assert_eq!(s.read(b.all(), &mut short).unwrap_err().code, Code::Invalid);
        assert_eq!(
            s.write(b.region(8, 16), &[0; 16]).unwrap_err().code,
            Code::Invalid
        );
        let e = s.copy(b.region(0, 8), b.region(0, 4)).unwrap_err();
        assert_eq!(e.code, Code::Invalid, "{e}");
        let e = s.fill(b.region(u64::MAX, 8), 0, 8).unwrap_err();
        assert_eq!(e.code, Code::Invalid, "{e}");
        // A buffer of another device is not this stream's business.
        let other = plugin.open(0).unwrap();
        let foreign = other.alloc_state(16, Tag::Activation).unwrap();
        assert_eq!(
            s.copy(b.all(), foreign.all()).unwrap_err().code,
            Code::Invalid
        );
        sum
    });
}

#[test]
fn the_host_waits_for_pinned_memory_before_it_looks() {
    both(|plugin| {
        let mut gate = Gate::new(plugin);
        let device = gate.device.clone();
        let s = device.stream("s", 0).unwrap();
        let b = device.alloc_state(4096, Tag::Activation).unwrap();
        let mut pinned = device.alloc_host(4096, Tag::Staging).unwrap();
        let mut all = vec![];
        for run in 1..30u8 {
            gate.shut(&s);
            s.fill(b.all(), run as u64, 1).unwrap();
            s.copy(pinned.buffer().all(), b.all()).unwrap();
            assert!(!s.query().unwrap(), "a stalled stream is not done");
            let e = s.sync(Some(Duration::from_millis(1))).unwrap_err();
            assert_eq!(e.code, Code::Timeout, "{e}");
            let event = s.record().unwrap();
            assert!(!event.query().unwrap());
            gate.open();
            assert!(
                pinned.read().unwrap().iter().all(|v| *v == run),
                "run {run}"
            );
            event.sync(None).unwrap();
            // And before it writes: the transfer out of it must have read the old bytes.
            gate.shut(&s);
            s.copy(b.all(), pinned.buffer().all()).unwrap();
            thread::scope(|t| {
                let write = t.spawn(|| pinned.write().unwrap().fill(0xff));
                gate.open();
                write.join().unwrap();
            });
            let got = read(&s, &b);
            assert!(got.iter().all(|v| *v == run), "run {run}");
            all.push(got[0]);
        }
        all
    });
}

#[test]
fn the_steady_state_allocates_nothing_and_the_ledger_says_so() {
    both(|plugin| {
        let device = plugin.open(0).unwrap();
        let (s, t) = (
            device.stream("s", 0).unwrap(),
            device.stream("t", 0).unwrap(),
        );
        let param = device.alloc_state(1000, Tag::Param).unwrap();
        let step = || {
            // Sizes that split and rejoin, freed in another order than taken, on both streams.
            let a: Vec<_> = [70_000u64, 300, 5 << 20, 4096, 1 << 20]
                .iter()
                .map(|n| device.alloc(&s, *n, Tag::Activation).unwrap())
                .collect();
            let b = device.alloc(&t, 3 << 20, Tag::Workspace).unwrap();
            for x in a.iter().rev() {
                s.fill(x.all(), 1, 1).unwrap();
            }
            t.fill(b.all(), 2, 1).unwrap();
            device.memory()
        };
        step();
        let second = step();
        let allocs = device.device_allocs();
        for _ in 0..50 {
            step();
        }
        assert_eq!(
            device.device_allocs(),
            allocs,
            "mem_alloc calls after the second step"
        );
        let live =
            |m: &crossweave_hal::MemoryReport, tag: &str| (m.tags[tag].now, m.tags[tag].peak);
        let activation = 70_000 + 300 + (5 << 20) + 4096 + (1 << 20);
        assert_eq!(live(&second, "activation"), (activation, activation));
        let after = device.memory();
        assert_eq!(live(&after, "activation"), (0, activation));
        assert_eq!(live(&after, "workspace"), (0, 3 << 20));
        assert_eq!(live(&after, "param"), (1000, 1000));
        assert_eq!(after.total.now, 1000);
        assert!(after.reserved.now >= after.total.peak, "{after:?}");
        assert!((0.0..1.0).contains(&after.fragmentation), "{after:?}");
        device.trim().unwrap();
        let bare = device.memory();
        assert_eq!(
            (bare.reserved.now, bare.fragmentation),
            (1000, 0.0),
            "idle slabs went back"
        );
        drop(param);
        assert_eq!(device.memory().reserved.now, 0);
        assert_eq!(device.memory().device_allocs, device.memory().device_frees);
        vec![]
    });
}

#[test]
fn groups_compute_the_same_everywhere_and_the_ledger_counts_by_formula() {
    both(|plugin| {
        let mut all = vec![];
        for n in [1u32, 2, 3, 4] {
            let per = 251u64;
            let p = per * n as u64;
            let got = ranks(plugin, n, "dp", |r, device, mut c| {
                let s = device.stream("compute", 0).unwrap();
                let floats = |k: u64| -> Vec<u8> {
                    (0..k)
                        .flat_map(|i| ((i * 7 % 13) as f32 + r as f32).to_ne_bytes())
                        .collect()
                };
                let whole = device.alloc_slot(4 * p, Tag::Grad).unwrap();
                let part = device.alloc_slot(4 * per, Tag::Param).unwrap();
                s.write(whole.all(), &floats(p)).unwrap();
                c.all_reduce(&s, whole.all(), DType::F32, Reduce::Sum, "grad")
                    .unwrap();
                let reduced = read(&s, &whole);
                s.write(whole.all(), &floats(p)).unwrap();
                c.reduce_scatter(&s, whole.all(), part.all(), DType::F32, Reduce::Sum, "grad")
                    .unwrap();
                let mine = read(&s, &part);
                c.all_gather(&s, part.all(), whole.all(), DType::F32, "param")
                    .unwrap();
                c.all_gather(&s, part.all(), whole.all(), DType::F32, "param")
                    .unwrap();
                let gathered = read(&s, &whole);
                s.write(part.all(), &floats(per)).unwrap();
                c.broadcast(&s, part.all(), DType::F32, n - 1, "param")
                    .unwrap();
                let sent = read(&s, &part);
                c.barrier(&s).unwrap();
                s.sync(None).unwrap();
                let at = 4 * (per * r as u64) as usize;
                assert_eq!(
                    mine,
                    reduced[at..at + 4 * per as usize],
                    "a piece of the sum is the piece of the sum"
                );
                assert_eq!(
                    gathered, reduced,
                    "all-gather after reduce-scatter is all-reduce, bit for bit"
                );
                (reduced, sent, device.collectives())
            });
            let last: Vec<u8> = (0..per)
                .flat_map(|i| ((i * 7 % 13) as f32 + (n - 1) as f32).to_ne_bytes())
                .collect();
            for (reduced, sent, lines) in &got {
                assert_eq!((reduced, sent), (&got[0].0, &last), "ranks agree");
                let line = |kind: &str, tag: &str| {
                    let l = lines.iter().find(|l| l.kind == kind && l.tag == tag);
                    let l = l.unwrap_or_else(|| panic!("no line {kind} {tag} in {lines:?}"));
                    assert_eq!((l.group.as_str(), l.ranks), ("dp", n));
                    (l.calls, l.elements, l.bytes, l.wire_elements)
                };
                let m = n as u64;
                assert_eq!(
                    line("all_reduce", "grad"),
                    (1, p, 4 * p, 2 * p * (m - 1) / m)
                );
                assert_eq!(
                    line("reduce_scatter", "grad"),
                    (1, p, 4 * p, p * (m - 1) / m)
                );
                assert_eq!(
                    line("all_gather", "param"),
                    (2, 2 * p, 8 * p, 2 * (p * (m - 1) / m))
                );
                assert_eq!(line("broadcast", "param").0, 1);
                assert_eq!(line("barrier", "barrier").3, 0);
            }
            all.extend_from_slice(&got[0].0);
        }
        all
    });
}

#[test]
fn an_abort_from_another_thread_ends_a_wait_that_would_never_end() {
    both(|plugin| {
        let mut two = ranks(plugin, 2, "dp", |_, d, c| (d, c));
        let (_absent, (device, mut c)) = (two.pop().unwrap(), two.pop().unwrap());
        let s = device.stream("s", 0).unwrap();
        let b = device.alloc_state(64, Tag::Grad).unwrap();
        let handle = c.abort_handle();
        c.all_reduce(&s, b.all(), DType::F32, Reduce::Sum, "grad")
            .unwrap();
        assert!(!s.query().unwrap(), "rank 1 has not come");
        let e = thread::scope(|t| {
            let abort = t.spawn(|| handle.abort());
            let e = s.sync(Some(Duration::from_secs(60))).unwrap_err();
            abort.join().unwrap().unwrap();
            e
        });
        assert_ne!(e.code, Code::Timeout, "{e}");
        assert!(e.to_string().contains("dp"), "the group is named: {e}");
        let again = c.all_reduce(&s, b.all(), DType::F32, Reduce::Sum, "grad");
        assert!(again.is_err(), "an aborted communicator takes no more work");
        vec![]
    });
}

#[test]
fn a_chain_of_ops_over_two_streams_gives_the_same_bits_every_time() {
    both(|plugin| {
        let device = plugin.open(0).unwrap();
        let (s, t) = (
            device.stream("s", 0).unwrap(),
            device.stream("t", 0).unwrap(),
        );
        let (m, k) = (65u64, 130u64);
        let f32s = |n: u64, scale: f32| -> Vec<u8> {
            (0..n)
                .flat_map(|i| (((i * 37 % 101) as f32 / 50.0 - 1.0) * scale).to_ne_bytes())
                .collect()
        };
        let mat = |a: u64, b: u64| Layout::contiguous(DType::F32, &[a, b]);
        let matmul = OpRequest::new(
            op::MATMUL,
            &[mat(m, m), mat(m, k), mat(k, m), Layout::ABSENT],
            op::MatmulParams::default().as_bytes(),
        );
        let softmax = OpRequest::new(
            op::SOFTMAX_FWD,
            &[mat(m, m), mat(m, m)],
            op::NoParams::default().as_bytes(),
        );
        let matmul = device.prepare(&matmul, &NoDecompose).unwrap();
        let softmax = device.prepare(&softmax, &NoDecompose).unwrap();
        let run = || {
            let alloc = |s: &Stream, n: u64| device.alloc(s, 4 * n, Tag::Activation).unwrap();
            let (a, b) = (alloc(&s, m * k), alloc(&t, k * m));
            s.write(a.all(), &f32s(m * k, 0.3)).unwrap();
            t.write(b.all(), &f32s(k * m, 0.7)).unwrap();
            let (c, y) = (alloc(&t, m * m), alloc(&s, m * m));
            t.launch(
                &matmul,
                &[Some(c.all()), Some(a.all()), Some(b.all()), None],
                &[],
            )
            .unwrap();
            s.launch(&softmax, &[Some(y.all()), Some(c.all())], &[])
                .unwrap();
            drop((a, b, c));
            read(&s, &y)
        };
        let first = run();
        assert!((0..20).all(|_| run() == first));
        first
    });
}

#[test]
fn pinned_memory_is_lent_to_another_device_and_back_and_both_ledgers_say_so() {
    both(|plugin| {
        let (device, host) = (plugin.open(0).unwrap(), plugin.open(0).unwrap());
        let (s, h) = (device.stream("s", 0).unwrap(), host.stream("h", 0).unwrap());
        let on_device = device.alloc_state(4096, Tag::Grad).unwrap();
        s.fill(on_device.all(), 3, 1).unwrap();
        let pinned = device.alloc_host(4096, Tag::Grad).unwrap();
        s.copy(pinned.buffer().all(), on_device.all()).unwrap();
        // Lending waits for the copy; the other device then writes the same bytes.
        let lent = host.borrow_host(pinned).unwrap();
        let other = host.alloc_state(4096, Tag::Master).unwrap();
        h.copy(other.all(), lent.all()).unwrap();
        h.fill(lent.region(0, 100), 9, 1).unwrap();
        assert!(
            s.fill(lent.all(), 0, 1).is_err(),
            "a lent buffer is the borrower's"
        );
        let mut back = lent.take_back().unwrap();
        let bytes = back.read().unwrap().to_vec();
        assert!(bytes[..100].iter().all(|b| *b == 9) && bytes[100..].iter().all(|b| *b == 3));
        s.copy(on_device.all(), back.buffer().all()).unwrap();
        let m = device.memory();
        assert_eq!((m.tags["grad"].now, m.host["grad"].now), (4096, 4096));
        assert_eq!((m.to_host["grad"], m.from_host["grad"]), (4096, 4096));
        let m = host.memory();
        assert_eq!((m.tags["master"].now, m.host.len()), (4096, 0));
        assert_eq!((m.to_host.len(), m.from_host["grad"]), (0, 4096));
        // To itself, without an import.
        let lent = device.borrow_host(back).unwrap();
        s.fill(lent.all(), 1, 1).unwrap();
        drop(lent);
        s.sync(None).unwrap();
        assert!(!device.memory().host.is_empty());
        assert_eq!(device.memory().host["grad"].now, 0);
        assert!(
            device
                .alloc_state(8, Tag::Grad)
                .unwrap()
                .take_back()
                .is_err()
        );
        bytes
    });
}

/// An allocator with one heap that takes the smallest free block that fits: what a trace would meet without homes for long and
/// short lives. `None` when no block fits.
struct BestFit {
    /// Free blocks (offset, bytes), joined with their neighbours.
    free: std::collections::BTreeMap<u64, u64>,
}

impl BestFit {
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let (&at, &len) = self
            .free
            .iter()
            .filter(|(_, len)| **len >= bytes)
            .min_by_key(|(_, len)| **len)?;
        self.free.remove(&at);
        if len > bytes {
            self.free.insert(at + bytes, len - bytes);
        }
        Some(at)
    }
    fn give(&mut self, mut at: u64, mut bytes: u64) {
        if let Some((&before, &len)) = self.free.range(..at).next_back()
            && before + len == at
        {
            self.free.remove(&before);
            (at, bytes) = (before, len + bytes);
        }
        if let Some(len) = self.free.remove(&(at + bytes)) {
            bytes += len;
        }
        self.free.insert(at, bytes);
    }
}

/// Blocks that stay among blocks that go: what the latter leave are holes, each too small for what comes next.
#[test]
fn long_lives_apart_from_short_ones_survive_the_trace_that_breaks_best_fit() {
    crossweave_tests::in_own_process!();
    const MIB: u64 = 1 << 20;
    const TOTAL: u64 = 64 * MIB;
    const PAIRS: usize = 30;
    let mut heap = BestFit {
        free: [(0, TOTAL)].into(),
    };
    let mut short = vec![];
    for _ in 0..PAIRS {
        short.push(heap.take(MIB).expect("room"));
        heap.take(MIB).expect("room");
    }
    short.into_iter().for_each(|at| heap.give(at, MIB));
    let free: u64 = heap.free.values().sum();
    assert!(
        free >= 30 * MIB && heap.take(5 * MIB).is_none(),
        "the trace must break best fit"
    );

    let host = HostServices::builder()
        .config("null.mem_total", TOTAL.to_string())
        .build();
    let raw = RawPlugin::from_static::<crossweave_backend_null::Null>(&host).expect("linked");
    let device = Plugin::new(raw).open(0).unwrap();
    let s = device.stream("s", 0).unwrap();
    let (mut short, mut long) = (vec![], vec![]);
    for _ in 0..PAIRS {
        short.push(device.alloc(&s, MIB, Tag::Activation).unwrap());
        long.push(device.alloc_state(MIB, Tag::Grad).unwrap());
    }
    short.clear();
    let report = device.memory();
    assert!(report.fragmentation <= 0.05, "{report:?}");
    for bytes in [5 * MIB, 20 * MIB, 30 * MIB] {
        let next = device.alloc(&s, bytes, Tag::Activation);
        assert!(next.is_ok(), "{bytes}: {next:?}");
    }
    assert!(device.memory().reserved.peak <= TOTAL);
    // Only what really does not fit is refused.
    assert_eq!(
        device
            .alloc(&s, 40 * MIB, Tag::Activation)
            .unwrap_err()
            .code,
        Code::Oom
    );
}

#[test]
fn an_idle_pool_of_several_slabs_becomes_one_piece() {
    both(|plugin| {
        let device = plugin.open(0).unwrap();
        let s = device.stream("s", 0).unwrap();
        let step = || {
            let blocks: Vec<_> = (0..5)
                .map(|_| device.alloc(&s, 20 << 20, Tag::Activation).unwrap())
                .collect();
            blocks.iter().for_each(|b| s.fill(b.all(), 7, 1).unwrap());
        };
        step();
        let apart = device.memory();
        assert!(apart.fragmentation > 0.5, "{apart:?}");
        // Not while something in it is live.
        let live = device.alloc(&s, 1, Tag::Activation).unwrap();
        device.settle();
        assert_eq!(device.device_allocs(), apart.device_allocs);
        drop(live);
        device.settle();
        let one = device.memory();
        assert_eq!(one.fragmentation, 0.0, "{one:?}");
        assert_eq!(one.reserved.now, apart.reserved.now);
        assert!(one.reserved.peak <= apart.reserved.peak, "{one:?}");
        for _ in 0..5 {
            step();
            device.settle();
        }
        assert_eq!(device.device_allocs(), one.device_allocs);
        // What no slab could hold fits now.
        let whole = device.alloc(&s, one.reserved.now, Tag::Activation).unwrap();
        s.fill(whole.all(), 9, 1).unwrap();
        let mut bytes = vec![0u8; 16];
        s.read(whole.region(whole.bytes() - 16, 16), &mut bytes)
            .unwrap();
        bytes
    });
}
