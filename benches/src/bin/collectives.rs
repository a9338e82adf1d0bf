//! In-process all-reduce and reduce-scatter against `memcpy` on all cores at once, which moves the same bytes and is therefore the bound.
//!
//! `cargo run --release -p crossweave-benches --bin collectives -- --ranks 2 --mib 4,64`
//!
//! `--peer FILE` names a file of JSON lines from the peers' `collectives.py` run on the same machine (for instance under Open MPI); its
//! least times are printed beside ours. Each line is the least of many rounds, each begun by all ranks together.

use crossweave_benches::options::Options;
use crossweave_hal::{
    Bootstrap, CommOptions, Communicator, DType, HostServices, KvStore, LocalKv, Plugin, RawPlugin,
    Reduce, Tag,
};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

struct Boot(Arc<dyn KvStore>);
impl Bootstrap for Boot {
    fn set(&self, key: &str, value: &[u8]) -> crossweave_hal::Result<()> {
        self.0.set(key, value)
    }
    fn get(&self, key: &str, timeout: Duration) -> crossweave_hal::Result<Vec<u8>> {
        self.0.get(key, Some(timeout))
    }
}

fn main() {
    if let Err(e) = run() {
        eprintln!("{e}");
        std::process::exit(1);
    }
}

/// Least microseconds of `peer` for (operation, bytes).
type Peers = Vec<(String, u64, String, f64)>;

fn peers(path: Option<String>) -> Fallible<Peers> {
    let Some(path) = path else { return Ok(vec![]) };
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
    let mut all = vec![];
    for line in text.lines().filter(|l| l.starts_with('{')) {
        let v: serde_json::Value = serde_json::from_str(line)?;
        let word = |k: &str| v[k].as_str().unwrap_or("?").to_string();
        if let (Some(bytes), Some(us)) = (v["bytes"].as_u64(), v["us_min"].as_f64()) {
            all.push((word("op"), bytes, word("backend"), us));
        }
    }
    Ok(all)
}

fn run() -> Fallible<()> {
    let mut o = Options::from_args()?;
    let ranks = o.number("ranks", 2)? as u32;
    let sizes = o.list("mib", "1,4,64");
    let peers = peers(o.text("peer"))?;
    o.done()?;
    let sizes = sizes
        .iter()
        .map(|s| s.parse::<u64>().map(|m| m << 20))
        .collect::<Result<Vec<_>, _>>()?;
    let kv: Arc<dyn KvStore> = Arc::new(LocalKv::default());
    let host = HostServices::builder()
        .config("cpu.devices", ranks.to_string())
        .config("cpu.threads", "1")
        .kv(kv.clone())
        .build();
    let plugin = Plugin::new(RawPlugin::from_static::<crossweave_backend_cpu::CpuBackend>(&host)?);
    let barrier = Barrier::new(ranks as usize);
    let (sizes, peers, barrier, plugin, kv) = (&sizes, &peers, &barrier, &plugin, &kv);
    std::thread::scope(|s| {
        let all: Vec<_> = (0..ranks)
            .map(|r| s.spawn(move || rank(r, ranks, plugin, kv, barrier, sizes, peers)))
            .collect();
        all.into_iter()
            .try_for_each(|h| h.join().map_err(|_| "a rank panicked")?)
    })
}

fn rank(
    rank: u32,
    ranks: u32,
    plugin: &Plugin,
    kv: &Arc<dyn KvStore>,
    barrier: &Barrier,
    sizes: &[u64],
    peers: &Peers,
) -> Fallible<()> {
    let device = plugin.open(rank)?;
    let s = device.stream("bench", 0)?;
    let options = CommOptions {
        name: "bench".into(),
        timeout: Some(Duration::from_secs(60)),
    };
    let mut comm = Communicator::new(&device, &Boot(kv.clone()), rank, ranks, &options)?;
    for bytes in sizes {
        let rounds = (2_000_000_000 / bytes).clamp(20, 500) as usize;
        let a = device.alloc_state(*bytes, Tag::Comm)?;
        let b = device.alloc_state(*bytes, Tag::Comm)?;
        let part = bytes / ranks as u64;
        for m in [&a, &b] {
            s.fill(m.all(), 0, 4)?;
        }
        let least = |f: &mut dyn FnMut() -> crossweave_hal::Result<()>| -> Fallible<f64> {
            let mut best = f64::INFINITY;
            for _ in 0..rounds {
                barrier.wait();
                let start = Instant::now();
                f()?;
                s.sync(None)?;
                barrier.wait();
                best = best.min(start.elapsed().as_secs_f64() * 1e6);
            }
            Ok(best)
        };
        let copy = least(&mut || s.copy(a.all(), b.all()))?;
        let all = least(&mut || comm.all_reduce(&s, a.all(), DType::F32, Reduce::Sum, "bench"))?;
        let scatter = least(&mut || {
            comm.reduce_scatter(
                &s,
                a.all(),
                b.region(0, part),
                DType::F32,
                Reduce::Sum,
                "bench",
            )
        })?;
        if rank == 0 {
            let mib = bytes >> 20;
            println!(
                "{ranks} ranks, {mib} MiB f32: memcpy on all cores {copy:.0} us ({:.1} GB/s a rank)",
                *bytes as f64 / copy / 1e3
            );
            for (name, key, us) in [
                ("all-reduce", "allreduce", all),
                ("reduce-scatter", "reduce_scatter", scatter),
            ] {
                let theirs = peers
                    .iter()
                    .filter(|(op, n, ..)| op == key && n == bytes)
                    .map(|(_, _, who, t)| format!(", {who} {t:.0} us ({:.1} x ours)", t / us));
                println!(
                    "  {name:<15} {us:>8.0} us, {:>3.0} % of the memcpy limit{}",
                    100.0 * copy / us,
                    theirs.collect::<String>()
                );
            }
        }
    }
    Ok(())
}
