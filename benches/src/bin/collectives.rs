//! Collectives in the process and between processes, beside `memcpy` on all cores (which moves the same bytes and is therefore the bound) and beside the
//! libraries themselves: Open MPI, MPICH, gloo.
//!
//! `cargo run --release -p crossweave-benches --bin collectives -- --ranks 2 --bytes 1K,64K,1M,4M,16M,64M --peers benches/peers --peer-python PYTHON --peer-gloo collectives.py`
//!
//! `--peers` compiles `mpi_collectives.c` of that folder with the `mpicc` of each family that is installed and runs it with its `mpirun`: Open MPI as it comes
//! and in four tunings, of which the best counts. `--plugin` also runs this bench itself under each `mpirun`: our plugin `mpi` on the same memory. What that takes
//! over the raw library is the median of `--rounds` (3) rounds, in each of which both run one after the other, since where a process finds its memory costs more
//! than the plugin does; over the library as it comes, and (`threads`) as it is for a program whose threads all may call it, which ours is.
//!
//! A figure is the time of one call in a window of calls in a row on one stream, the least of many windows, by the slowest rank. In the process it is the
//! stream's own time, between two events, of a window that was enqueued before it began: what the calls cost a device that is kept busy. Between processes it is
//! wall time from the first call to the end of the last, on a stream of the lowest priority: its work is done by the thread that waits, as when a device's
//! stream carries its collectives over MPI in training.
//!
//! The first line says how near the cores are to each other: threads that only meet, each by a flag on a line of its own, and threads that take 1 KB
//! from each other as they do (one word of each cache line), by plain loads and stores. A peer that has not ended after `--limit` seconds (60) is stopped; what it has said counts.

use crossweave_backend_mpi::MpiBackend;
use crossweave_benches::options::{Options, Usage, program};
use crossweave_benches::{Fallible, process::load};
use crossweave_hal::{
    Bootstrap, Carrier, Collective, CommOptions, Communicator, DType, Device, HostServices,
    KvStore, LocalKv, Plugin, RawPlugin, Reduce, Stream, Tag,
};
use crossweave_mesh::{JobStore, LateStore, Launch, detect, rendezvous};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(60);
/// Bytes whose filling takes longer than to enqueue a window.
const GATE: u64 = 64 << 20;
/// Below it a window is enqueued behind that; longer calls keep a stream busy by themselves.
const GATED: u64 = 1 << 20;
/// One call on a stream.
type Call<'a> = dyn FnMut(&mut Communicator, &Stream) -> crossweave_hal::Result<()> + 'a;
/// Operations by the names of the peers' scripts.
const OPS: [&str; 6] = [
    "allreduce",
    "reduce_scatter",
    "allgather",
    "alltoall",
    "broadcast",
    "pingpong",
];
/// Open MPI's tunings: what to add to its command line.
const TUNINGS: [(&str, &[&str]); 5] = [
    ("openmpi", &[]),
    (
        "openmpi-nocma",
        &["--mca", "btl_vader_single_copy_mechanism", "none"],
    ),
    ("openmpi-sm", &["--mca", "coll_sm_priority", "100"]),
    (
        "openmpi-ring",
        &[
            "--mca",
            "coll_tuned_use_dynamic_rules",
            "1",
            "--mca",
            "coll_tuned_allreduce_algorithm",
            "4",
        ],
    ),
    (
        "openmpi-rabenseifner",
        &[
            "--mca",
            "coll_tuned_use_dynamic_rules",
            "1",
            "--mca",
            "coll_tuned_allreduce_algorithm",
            "6",
        ],
    ),
];

struct Boot(Arc<dyn KvStore>);
impl Bootstrap for Boot {
    fn set(&self, key: &str, value: &[u8]) -> crossweave_hal::Result<()> {
        self.0.set(key, value)
    }
    fn get(&self, key: &str, timeout: Duration) -> crossweave_hal::Result<Vec<u8>> {
        self.0.get(key, Some(timeout))
    }
}

/// Microseconds by (operation, bytes, who).
type Table = BTreeMap<(String, u64, String), f64>;
/// What the plugin takes over its library, a figure a round, by (operation, bytes, family): over the library as it comes, and for many threads.
type Pairs = BTreeMap<(String, u64, String), [Vec<f64>; 2]>;
const FAMILIES: [&str; 2] = ["openmpi", "mpich"];

const HELP: &str = "\
Collectives between threads of this process, beside memcpy and beside MPI and gloo between processes; microseconds a call.

  --ranks 2                        ranks
  --bytes 1K,4K,16K,64K,256K,1M,4M,16M,64M    sizes
  --peers DIR                      folder of mpi_collectives.c, compiled and run with each MPI that is installed
  --plugin                         run our plugin mpi under each mpirun too
  --peer-python PATH               a Python with PyTorch, with
  --peer-gloo PATH                 the script that runs gloo
  --rounds 3                       rounds in which the plugin and its library take turns
  --limit 60                       seconds after which a peer is stopped

Example: collectives --ranks 2 --bytes 1K,64K,1M --peers benches/peers";

fn main() -> ExitCode {
    program(HELP, 0, |o| {
        match detect(|name| std::env::var(name).ok())? {
            Some(launch) if launch.world > 1 => worker(o, launch),
            _ => run(o),
        }
    })
}

/// `1K`, `4M`, or a number.
fn bytes(text: &str) -> Fallible<u64> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        _ => (text, 0),
    };
    let n = digits
        .parse::<u64>()
        .ok()
        .filter(|n| *n <= 1 << 40 >> shift);
    let n = n.ok_or_else(|| Usage(format!("--bytes {text:?}: wanted 1K, 4M or a number")))?;
    Ok(n << shift)
}

/// The size cut to whole elements of every rank.
fn whole(n: u64, ranks: u32) -> Fallible<u64> {
    let unit = 4 * u64::from(ranks);
    match n / unit * unit {
        0 => Err(Usage(format!(
            "--bytes {n}: wanted at least {unit} for {ranks} ranks"
        ))
        .into()),
        n => Ok(n),
    }
}

fn run(mut o: Options) -> Fallible<()> {
    let ranks = o.number("ranks", 2, 1)? as u32;
    let sizes = o.list("bytes", "1K,4K,16K,64K,256K,1M,4M,16M,64M");
    let sizes = sizes
        .iter()
        .map(|s| whole(bytes(s)?, ranks))
        .collect::<Fallible<Vec<_>>>()?;
    let (peers, plugin) = (o.text("peers"), o.text("plugin").is_some());
    let gloo = o.text("peer-python").zip(o.text("peer-gloo"));
    let limit = o.number("limit", 60, 1)? as u32;
    let rounds = o.number("rounds", 3, 1)?;
    // Without the plugin there is nothing to pair.
    let rounds = if plugin { rounds } else { 1 };
    o.done()?;
    println!(
        "{ranks} ranks, f32, microseconds a call; load {:.1}; {ranks} threads meet in {:.3}, and take 1 KB from each other in {:.3}",
        load(),
        floor(ranks as usize, 0),
        floor(ranks as usize, 16),
    );
    let mut table = in_process(ranks, &sizes)?;
    let peers = peers.map(|folder| Peers::build(Path::new(&folder)));
    let job = Job {
        ranks,
        sizes: &sizes,
        limit,
    };
    if let Some(p) = &peers {
        for (name, extra) in &TUNINGS[1..] {
            least(&mut table, p.run(&job, "openmpi", name, extra)?);
        }
    }
    let mut pairs = Pairs::new();
    for _ in 0..rounds {
        for family in FAMILIES {
            let raw = |name: &str| match &peers {
                Some(p) => p.run(&job, family, name, &[]),
                None => Ok(Table::new()),
            };
            let mut all = vec![raw(family)?];
            if plugin {
                all.push(job.plugin(family)?);
                all.push(raw(&format!("{family}-threads"))?);
                pair(&mut pairs, family, &all);
            }
            all.into_iter().for_each(|t| least(&mut table, t));
        }
    }
    if let Some((python, script)) = gloo {
        let python = Path::new(&python);
        let mut c = Command::new("timeout");
        c.args(["--kill-after=5", &limit.to_string()]);
        c.arg(python.with_file_name("torchrun"));
        c.env("OMP_NUM_THREADS", "1");
        c.args([
            "--standalone",
            "--nproc-per-node",
            &ranks.to_string(),
            &script,
            "--sizes",
        ]);
        c.args(sizes.iter().map(u64::to_string));
        table.extend(lines(c, "gloo")?);
    }
    show(&table, &pairs, &sizes);
    Ok(())
}

/// A row an operation and size: ours, the bound, and every peer with its time over ours.
fn show(table: &Table, pairs: &Pairs, sizes: &[u64]) {
    let get =
        |op: &str, n: u64, who: &str| table.get(&(op.to_string(), n, who.to_string())).copied();
    for op in OPS {
        println!("\n{op}");
        for n in sizes {
            let Some(ours) = get(op, *n, "in process") else {
                continue;
            };
            let mut row = format!(
                "{:>10}  in process {ours:>10.2}",
                crossweave_words::Size(*n)
            );
            if let Some(copy) = get("memcpy", *n, "in process") {
                row += &format!("  {:>4.0} % of memcpy ({copy:.2})", 100.0 * copy / ours);
            }
            let mut best: Option<(f64, &str)> = None;
            for ((o, b, who), us) in table {
                if o != op || b != n || who == "in process" {
                    continue;
                }
                if who.ends_with("-threads") {
                    continue;
                }
                if who.starts_with("openmpi") {
                    if best.is_none_or(|(t, _)| *us < t) {
                        best = Some((*us, who));
                    }
                    if who != "openmpi" {
                        continue;
                    }
                }
                row += &format!("  {who} {us:.2} (x{:.1})", us / ours);
                let over = who
                    .strip_prefix("plugin mpi, ")
                    .and_then(|family| Some((family, pairs.get(&(op.into(), *n, family.into()))?)));
                if let Some((family, [plain, threads])) = over {
                    let (plain, threads) = (median(plain), median(threads));
                    row += &format!(" [{plain:.2} of {family}, {threads:.2} threads]");
                }
            }
            if let Some((us, who)) = best {
                row += &format!("  best {who} {us:.2} (x{:.1})", us / ours);
            }
            println!("{row}");
        }
    }
}

/// Something on cache lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct Line<T>(T);

/// One thread of [`floor`]: its flag, and a slot for each parity, as many lines of a word each.
#[derive(Default)]
struct Spot {
    flag: Line<AtomicU64>,
    slots: [Vec<[AtomicU64; 8]>; 2],
}

/// Microseconds in which threads meet and each takes `lines` cache lines from every other: the least of many windows.
fn floor(threads: usize, lines: usize) -> f64 {
    // More threads than cores meet at the pace of the scheduler.
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let (calls, patience) = match threads > cores {
        true => (100, 50),
        false => (1000, 10_000),
    };
    let slot = || (0..lines).map(|_| Default::default()).collect();
    let spot = |_| Spot {
        slots: [slot(), slot()],
        ..Spot::default()
    };
    let spots: Vec<Spot> = (0..threads).map(spot).collect();
    let one = |mine: &Spot| {
        let (mut now, mut best) = (0, f64::INFINITY);
        for _ in 0..100 {
            let start = Instant::now();
            for _ in 0..calls {
                now += 1;
                let parity = (now & 1) as usize;
                for line in &mine.slots[parity] {
                    line[0].store(now, Ordering::Relaxed);
                }
                mine.flag.0.store(now, Ordering::Release);
                let mut looks = 0u32;
                for other in &spots {
                    while other.flag.0.load(Ordering::Acquire) < now {
                        std::hint::spin_loop();
                        looks += 1;
                        if looks > patience {
                            std::thread::yield_now();
                        }
                    }
                    let words = other.slots[parity].iter();
                    let sum =
                        words.fold(0, |s: u64, w| s.wrapping_add(w[0].load(Ordering::Relaxed)));
                    std::hint::black_box(sum);
                }
            }
            best = start.elapsed().as_secs_f64().min(best);
        }
        best * 1e6 / f64::from(calls)
    };
    std::thread::scope(|s| {
        let all: Vec<_> = spots.iter().map(|m| s.spawn(move || one(m))).collect();
        let all = all.into_iter().filter_map(|h| h.join().ok());
        all.fold(0.0, f64::max)
    })
}

/// Runs a command whose lines of JSON are figures.
fn lines(mut c: Command, who: &str) -> Fallible<Table> {
    let out = c
        .output()
        .map_err(|e| format!("{:?}: {e}", c.get_program()))?;
    if !out.status.success() {
        // 124: stopped at the limit.
        let text = String::from_utf8_lossy(&out.stderr);
        println!("{who}: {}; what it said before counts\n{text}", out.status);
    }
    let mut table = Table::new();
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        let Ok(v) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        if let (Some(op), Some(n), Some(us)) =
            (v["op"].as_str(), v["bytes"].as_u64(), v["us_min"].as_f64())
        {
            table.insert((op.into(), n, who.into()), us);
        }
    }
    Ok(table)
}

/// The launcher of a family, if it is installed.
fn launcher(family: &str, ranks: u32, limit: u32) -> Option<Command> {
    let program = format!("mpirun.{family}");
    Command::new(&program).arg("--version").output().ok()?;
    // A launcher that is asked to end takes its ranks with it.
    let mut c = Command::new("timeout");
    c.args(["--kill-after=5", &limit.to_string(), &program]);
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    // As ours, each rank keeps to a core where there are enough.
    let bind = if ranks as usize > cores {
        "none"
    } else {
        "core"
    };
    if family == "openmpi" && ranks as usize > cores {
        c.args(["--mca", "mpi_yield_when_idle", "1"]);
    }
    match family {
        "openmpi" => c.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", bind]),
        _ => c.args(["-bind-to", bind]),
    };
    c.args(["-n", &ranks.to_string()]);
    Some(c)
}

/// Which ranks and vectors a run is about.
struct Job<'a> {
    ranks: u32,
    sizes: &'a [u64],
    /// Seconds a program may take.
    limit: u32,
}

impl Job<'_> {
    /// This bench as the ranks of an MPI job.
    fn plugin(&self, family: &str) -> Fallible<Table> {
        let Some(mut c) = launcher(family, self.ranks, self.limit) else {
            return Ok(Table::new());
        };
        let sizes: Vec<String> = self.sizes.iter().map(u64::to_string).collect();
        c.arg(std::env::current_exe()?)
            .args(["--bytes", &sizes.join(",")]);
        lines(c, &format!("plugin mpi, {family}"))
    }
}

/// The raw programs, one a family that can be compiled for.
struct Peers(Vec<(&'static str, PathBuf)>);

impl Peers {
    fn build(folder: &Path) -> Peers {
        let build = |family: &'static str| {
            let name = format!("crossweave-peer-{family}-{}", std::process::id());
            let program = std::env::temp_dir().join(name);
            let built = Command::new(format!("mpicc.{family}"))
                .arg("-O2")
                .arg("-o")
                .arg(&program)
                .arg(folder.join("mpi_collectives.c"))
                .status();
            let built = built.is_ok_and(|s| s.success());
            if !built {
                println!("skipped: mpicc.{family} does not compile the peer");
            }
            built.then_some((family, program))
        };
        Peers(FAMILIES.into_iter().filter_map(build).collect())
    }

    /// What the raw library takes; nothing where it is not there.
    fn run(&self, job: &Job<'_>, family: &str, name: &str, extra: &[&str]) -> Fallible<Table> {
        let program = self.0.iter().find(|(f, _)| *f == family);
        let Some(((_, program), mut c)) = program.zip(launcher(family, job.ranks, job.limit))
        else {
            return Ok(Table::new());
        };
        c.args(extra).arg(program).arg(name);
        c.args(job.sizes.iter().map(u64::to_string));
        lines(c, name)
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        for (_, program) in &self.0 {
            let _ = std::fs::remove_file(program);
        }
    }
}

/// Keeps the least of each figure.
fn least(table: &mut Table, more: Table) {
    for (key, us) in more {
        let slot = table.entry(key).or_insert(us);
        *slot = slot.min(us);
    }
}

/// Notes what the plugin takes over the raw library in one round: `all` are raw, plugin, and raw for many threads.
fn pair(pairs: &mut Pairs, family: &str, all: &[Table]) {
    let [raw, plugin, threads] = all else {
        return;
    };
    for ((op, n, _), us) in plugin {
        let both = [
            (raw, family.to_string()),
            (threads, format!("{family}-threads")),
        ];
        let slot = pairs.entry((op.clone(), *n, family.into())).or_default();
        for (slot, (table, who)) in slot.iter_mut().zip(both) {
            let raw = table.get(&(op.clone(), *n, who));
            slot.extend(raw.map(|raw| us / raw));
        }
    }
}

fn median(all: &[f64]) -> f64 {
    let mut all = all.to_vec();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

fn in_process(ranks: u32, sizes: &[u64]) -> Fallible<Table> {
    let kv: Arc<dyn KvStore> = Arc::new(LocalKv::default());
    let host = HostServices::builder()
        .config("cpu.devices", ranks.to_string())
        .config("cpu.threads", "1")
        .config("cpu.pin", "on")
        .kv(kv.clone())
        .build();
    let plugin = Plugin::new(RawPlugin::from_static::<crossweave_backend_cpu::CpuBackend>(&host)?);
    let (barrier, table) = (Barrier::new(ranks as usize), Mutex::new(Table::new()));
    let (barrier, table, plugin, kv) = (&barrier, &table, &plugin, &kv);
    std::thread::scope(|s| {
        let rank = |r| -> Fallible<()> {
            let device = plugin.open(r)?;
            let options = CommOptions {
                name: "bench".into(),
                timeout: Some(SOON),
            };
            let comm = Communicator::new(&device, &Boot(kv.clone()), r, ranks, &options)?;
            let mut meet = || {
                barrier.wait();
            };
            measure(&device, comm, sizes, true, &mut meet, &mut |op, n, us| {
                // The slowest rank counts.
                if let Ok(mut t) = table.lock() {
                    let slot = t.entry((op.into(), n, "in process".into())).or_insert(us);
                    *slot = slot.max(us);
                }
            })
        };
        let all: Vec<_> = (0..ranks).map(|r| s.spawn(move || rank(r))).collect();
        all.into_iter()
            .try_for_each(|h| h.join().map_err(|_| "a rank panicked")?)
    })?;
    let table = table.lock().map_err(|_| "a rank panicked")?;
    Ok(table.clone())
}

/// One rank of an MPI job: the plugin on its own memory, which is the host's.
fn worker(mut o: Options, launch: Launch) -> Fallible<()> {
    let sizes = o.list("bytes", "1M");
    let sizes = sizes
        .iter()
        .map(|s| bytes(s))
        .collect::<Fallible<Vec<_>>>()?;
    o.done()?;
    let late = LateStore::default();
    let mut host = HostServices::builder().kv(Arc::new(late.clone()));
    if let Some(family) = launch.launcher.family() {
        host = host.config("mpi.family", family);
    }
    let mpi = Plugin::new(RawPlugin::from_static::<MpiBackend>(&host.build())?);
    let carrier = Carrier::open(&mpi)?;
    let store: JobStore = rendezvous(&carrier, &launch, "bench", SOON, |_| {})?;
    late.bind(store.clone());
    let device = carrier.device();
    let options = CommOptions {
        name: "bench".into(),
        timeout: Some(SOON),
    };
    let boot = Boot(Arc::new(store.clone()));
    let (rank, world) = (launch.rank, launch.world);
    let comm = Communicator::new(device, &boot, rank, world, &options)?;
    let mut gate = Communicator::new(
        device,
        &boot,
        rank,
        world,
        &CommOptions {
            name: "gate".into(),
            ..options
        },
    )?;
    // Also on the waiting thread: ranks that are woken one after the other would begin apart.
    let s = device.stream("gate", i32::MIN)?;
    let mut meet = || {
        let _ = gate.barrier(&s).and_then(|()| s.sync(None));
    };
    let mut all = vec![];
    measure(device, comm, &sizes, false, &mut meet, &mut |op, n, us| {
        all.push((op.to_string(), n, us));
    })?;
    // The slowest rank counts.
    let b = device.alloc_state(8 * all.len() as u64, Tag::Comm)?;
    let mine: Vec<u8> = all.iter().flat_map(|(.., us)| us.to_le_bytes()).collect();
    s.write(b.all(), &mine)?;
    gate.all_reduce(&s, b.all(), DType::F64, Reduce::Max, "bench")?;
    let mut out = mine;
    s.read(b.all(), &mut out)?;
    for ((op, n, _), us) in all.iter().zip(out.as_chunks::<8>().0) {
        let us = f64::from_le_bytes(*us);
        if rank == 0 {
            println!("{}", json!({"op": op, "bytes": n, "us_min": us}));
        }
    }
    // MPI frees no communicator after its end.
    drop(gate);
    store.farewell(SOON)?;
    Ok(mpi.shutdown()?)
}

/// Every operation at every size on this rank.
fn measure(
    device: &Device,
    mut comm: Communicator,
    sizes: &[u64],
    copies: bool,
    meet: &mut dyn FnMut(),
    say: &mut dyn FnMut(&str, u64, f64),
) -> Fallible<()> {
    // Between processes as training uses it, under a stream of another device: the lowest priority, whose work is done by the thread that waits.
    let priority = if copies { 0 } else { i32::MIN };
    let s = device.stream("bench", priority)?;
    let gate = match copies {
        true => Some(device.alloc_state(GATE, Tag::Comm)?),
        false => None,
    };
    let (rank, ranks) = (comm.rank(), comm.size());
    for &n in sizes {
        let part = n / u64::from(ranks);
        let a = device.alloc_state(n, Tag::Comm)?;
        let b = device.alloc_state(n, Tag::Comm)?;
        for m in [&a, &b] {
            s.fill(m.all(), 0, 4)?;
        }
        let calls = (16_000_000 / (n + 2000)).clamp(2, 400);
        let mut least = |comm: &mut Communicator, f: &mut Call<'_>| -> Fallible<f64> {
            let mut best = f64::INFINITY;
            // As many windows on every rank, whatever its clock says, and about as many as the peers take.
            let windows = (2_500_000_000 / (n * calls)).clamp(20, 150);
            for w in 0..windows {
                meet();
                // The ranks' streams start together, behind work that takes longer than to enqueue the window.
                if let Some(gate) = &gate {
                    if n < GATED {
                        s.fill(gate.all(), 0, 4)?;
                    }
                    // Leaves the caches as a row of calls finds them.
                    f(comm, &s)?;
                    comm.barrier(&s)?;
                }
                let events = gate.is_some();
                let record = || events.then(|| s.record()).transpose();
                let (start, first) = (Instant::now(), record()?);
                for _ in 0..calls {
                    f(comm, &s)?;
                }
                let last = record()?;
                s.sync(None)?;
                let wall = start.elapsed();
                let took = match first.zip(last) {
                    Some((first, last)) => first.elapsed(&last)?.unwrap_or(wall),
                    None => wall,
                };
                if w > 1 {
                    best = best.min(took.as_secs_f64() * 1e6 / calls as f64);
                }
            }
            Ok(best)
        };
        if copies {
            say(
                "memcpy",
                n,
                least(&mut comm, &mut |_, s| s.copy(a.all(), b.all()))?,
            );
        }
        let dtype = DType::F32;
        let (all, half) = (a.all(), b.region(0, part));
        for op in OPS {
            if op == "pingpong" && ranks != 2 {
                continue;
            }
            let us = least(&mut comm, &mut |comm, s| {
                let c = match op {
                    "allreduce" => Collective::AllReduce {
                        buf: all,
                        dtype,
                        op: Reduce::Sum,
                    },
                    "reduce_scatter" => Collective::ReduceScatter {
                        send: all,
                        recv: half,
                        dtype,
                        op: Reduce::Sum,
                    },
                    "allgather" => Collective::AllGather {
                        send: half,
                        recv: all,
                        dtype,
                    },
                    "alltoall" => Collective::AllToAll {
                        send: all,
                        recv: b.all(),
                        dtype,
                    },
                    "broadcast" => Collective::Broadcast {
                        buf: all,
                        dtype,
                        root: 0,
                    },
                    _ => {
                        let to = Collective::Send {
                            buf: all,
                            dtype,
                            peer: 1 - rank,
                        };
                        let from = Collective::Recv {
                            buf: b.all(),
                            dtype,
                            peer: 1 - rank,
                        };
                        let order = if rank == 0 { [to, from] } else { [from, to] };
                        return order.iter().try_for_each(|c| comm.group(s, &[*c], "bench"));
                    }
                };
                comm.group(s, &[c], "bench")
            })?;
            say(op, n, if op == "pingpong" { us / 2.0 } else { us });
        }
    }
    Ok(())
}
