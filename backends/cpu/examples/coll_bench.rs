//! How near the collectives come to `memcpy`, and what an enqueue and an empty launch cost. `cargo run --release --example coll_bench`.

use crossweave_backend_cpu::{CpuBackend, CpuCollectives, Mem};
use crossweave_plugin::abi::*;
use crossweave_plugin::{Backend, Coll, Collectives, CommConfig, Host, MemKind, Result, Span};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Elements of rank `me` of `n`: what it sends, what it receives, for a full vector of `bytes`.
const KINDS: [(&str, u32); 4] = [
    ("all_reduce", COLL_ALL_REDUCE),
    ("reduce_scatter", COLL_REDUCE_SCATTER),
    ("all_gather", COLL_ALL_GATHER),
    ("all_to_all", COLL_ALL_TO_ALL),
];

fn span(m: &Mem, bytes: u64) -> Span<'_, Mem> {
    Span {
        mem: m,
        offset: 0,
        bytes,
    }
}

fn coll<'a>(kind: u32, dtype: DType, count: u64, send: &'a Mem, recv: &'a Mem) -> Coll<'a, Mem> {
    Coll {
        kind,
        dtype,
        reduce: RED_SUM,
        root: 0,
        peer: 0,
        count,
        send: Some(span(send, send.bytes())),
        recv: Some(span(recv, recv.bytes())),
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

/// Best of `rounds`, each begun by all ranks together; per-round wall time in µs as rank 0 sees it.
fn best(barrier: &Barrier, rounds: usize, mut body: impl FnMut()) -> f64 {
    let mut least = f64::INFINITY;
    for _ in 0..rounds {
        barrier.wait();
        let start = Instant::now();
        body();
        barrier.wait();
        least = least.min(start.elapsed().as_secs_f64() * 1e6);
    }
    least
}

fn main() -> Result<()> {
    let b = CpuBackend::init(Host::none())?;
    for n in [2usize, 4] {
        let id = CpuCollectives::unique_id(&b, &b.open(0)?)?;
        let barrier = Barrier::new(n);
        std::thread::scope(|s| {
            for rank in 0..n {
                let (b, id, barrier) = (&b, &id, &barrier);
                s.spawn(move || rank_main(b, id, barrier, rank, n).unwrap());
            }
        });
    }
    enqueue(&b)
}

fn rank_main(b: &CpuBackend, id: &[u8], barrier: &Barrier, rank: usize, n: usize) -> Result<()> {
    let d = b.open(0)?;
    let cfg = CommConfig {
        rank: rank as u32,
        nranks: n as u32,
        timeout: Some(Duration::from_secs(60)),
        members: Default::default(),
        kv_prefix: String::new(),
        name: "bench".into(),
    };
    let comm = CpuCollectives::init(b, &d, id, cfg)?;
    let s = b.stream(&d, 0)?;
    for bytes in [1u64 << 10, 64 << 10, 1 << 20, 4 << 20, 64 << 20] {
        let rounds = (200_000_000 / bytes).clamp(8, 300) as usize;
        let (x, y) = (
            b.alloc(&d, MemKind::Device, bytes, 0)?,
            b.alloc(&d, MemKind::Device, bytes, 0)?,
        );
        b.fill(&s, span(&x, bytes), 0, 4)?;
        b.fill(&s, span(&y, bytes), 0, 4)?;
        b.stream_sync(&s, None)?;
        // One thread per rank copying `bytes`, all at once: the bound of section 3.1 of the collectives study.
        let copy = best(barrier, rounds, || {
            b.copy_2d(&s, span(&y, bytes), 0, span(&x, bytes), 0, bytes, 1)
                .and_then(|()| b.stream_sync(&s, None))
                .unwrap()
        });
        if rank == 0 {
            println!("{n} ranks {bytes:>9} B  memcpy {copy:9.1} us");
        }
        for (name, kind) in KINDS {
            for dtype in [DType::F32, DType::Bf16] {
                let elements = bytes / (dtype.bits() / 8);
                let count = match kind {
                    COLL_ALL_REDUCE => elements,
                    _ => elements / n as u64,
                };
                let t = best(barrier, rounds, || {
                    let c = coll(kind, dtype, count, &x, &y);
                    CpuCollectives::launch(b, &comm, &s, &[c])
                        .and_then(|()| b.stream_sync(&s, None))
                        .unwrap()
                });
                if rank == 0 {
                    println!(
                        "    {name:14} {:4} {t:9.1} us  {:5.2} GB/s  {:3.0} % of memcpy",
                        dtype.name(),
                        bytes as f64 / t / 1e3,
                        100.0 * copy / t
                    );
                }
            }
        }
    }
    Ok(())
}

/// Host cost of an enqueue while the stream is busy, cost of an empty launch end to end, and of a round trip.
fn enqueue(b: &CpuBackend) -> Result<()> {
    let d = b.open(0)?;
    let s = b.stream(&d, 0)?;
    let m = b.alloc(&d, MemKind::Device, 64, 0)?;
    const N: u32 = 20_000;
    let (mut host, mut whole, mut trip) = (f64::MAX, f64::MAX, f64::MAX);
    for _ in 0..20 {
        let start = Instant::now();
        for _ in 0..N {
            b.fill(&s, span(&m, 8), 1, 8)?;
        }
        host = host.min(start.elapsed().as_nanos() as f64 / f64::from(N));
        b.stream_sync(&s, None)?;
        whole = whole.min(start.elapsed().as_nanos() as f64 / f64::from(N));
        let start = Instant::now();
        for _ in 0..1000 {
            b.fill(&s, span(&m, 8), 1, 8)?;
            b.stream_sync(&s, None)?;
        }
        trip = trip.min(start.elapsed().as_nanos() as f64 / 1000.0);
    }
    println!("enqueue {host:.0} ns, enqueue and run {whole:.0} ns, launch and sync {trip:.0} ns");
    Ok(())
}
