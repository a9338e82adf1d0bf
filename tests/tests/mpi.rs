//! Collectives between processes, under the launchers of both MPI families: this binary starts itself under `mpirun`, and the test
//! `worker` is then one rank. A family that is not installed is skipped with a line that says so; CI installs both.

use crossweave_backend_cpu::CpuBackend;
use crossweave_backend_mpi::MpiBackend;
use crossweave_hal::{
    Bootstrap, Buffer, Carrier, Collective, CommOptions, Communicator, Counts, DType, Device,
    HostServices, KvStore, Plugin, RawPlugin, Reduce, Result, Stream, Tag, crash,
};
use crossweave_mesh::{
    JobStore, LateStore, Launch, ProcessMap, checker_state, detect, rendezvous, this_host,
};
use crossweave_tests::system::{Signal, send_to_self};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Which role a worker plays.
const SCENE: &str = "CW_TEST_MPI_SCENE";
/// The folder where workers leave their results.
const OUT: &str = "CW_TEST_MPI_OUT";
const SOON: Duration = Duration::from_secs(60);

fn families() -> Vec<&'static str> {
    crossweave_tests::tools::mpi_families()
}

/// Is the whole matrix asked for?
fn every() -> bool {
    std::env::var("CROSSWEAVE_MATRIX").is_ok_and(|v| v == "all")
}

/// Runs a scene on `n` ranks.
fn launch(family: &str, n: u32, scene: &str, out: &Path) -> Output {
    // MPICH's launcher sometimes ends all ranks the moment one is killed (or, of those that it ends, names another), whatever its options, or
    // ends itself when it writes to the one that is gone: then nobody has spoken.
    let ended = [
        "Killed (signal 9)",
        "Terminated (signal 15)",
        "signal: 13 (SIGPIPE)",
    ];
    let silenced =
        |t: &str| ended.iter().any(|e| t.contains(e)) && !t.contains("died without a word");
    let mut o = once(family, n, scene, out);
    for _ in 0..9 {
        if family != "mpich" || !silenced(&text(&o)) {
            break;
        }
        o = once(family, n, scene, out);
    }
    o
}

fn once(family: &str, n: u32, scene: &str, out: &Path) -> Output {
    let mut c = Command::new(format!("mpirun.{family}"));
    c.env_clear();
    for name in ["PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH"] {
        if let Some(v) = std::env::var_os(name) {
            c.env(name, v);
        }
    }
    if family == "openmpi" {
        c.args(["--allow-run-as-root", "--oversubscribe"]);
        // No network is asked for, and waiting ranks leave the cores to the others.
        c.env("OMPI_MCA_btl", "self,vader")
            .env("OMPI_MCA_mpi_yield_when_idle", "1");
    }
    if family == "mpich" && scene.starts_with("killed") {
        // Else the launcher may end the survivors before they have said who died.
        c.arg("-disable-auto-cleanup");
    }
    c.env(SCENE, scene)
        .env(OUT, out)
        .args(["-n", &n.to_string()]);
    c.arg(std::env::current_exe().expect("this program"));
    c.args([
        "tests::mpi::worker",
        "--exact",
        "--nocapture",
        "--test-threads=1",
    ]);
    c.output().expect("mpirun starts")
}

fn text(o: &Output) -> String {
    let out = String::from_utf8_lossy(&o.stdout);
    format!(
        "{}\n{out}\n{}",
        o.status,
        String::from_utf8_lossy(&o.stderr)
    )
}

struct Rank {
    launch: Launch,
    carrier: Carrier,
    mpi: Plugin,
    store: JobStore,
}

impl Bootstrap for Rank {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.store.set(key, value)
    }
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        self.store.get(key, Some(timeout))
    }
}

impl Rank {
    fn join() -> Rank {
        let launch = detect(|k| std::env::var(k).ok()).unwrap().unwrap();
        let late = LateStore::default();
        let host = HostServices::builder()
            .kv(Arc::new(late.clone()))
            .config("mpi.family", launch.launcher.family().unwrap())
            // Short messages, so that long vectors go as several.
            .config("mpi.longest_message", "50000")
            .build();
        let mpi = Plugin::new(RawPlugin::from_static::<MpiBackend>(&host).unwrap());
        let carrier = Carrier::open(&mpi).unwrap();
        let store = rendezvous(&carrier, &launch, "localhost", SOON, |_| {}).unwrap();
        late.bind(store.clone());
        Rank {
            launch,
            carrier,
            mpi,
            store,
        }
    }
    fn device(&self) -> Device {
        let d = cpu().open(0).unwrap();
        d.carry(&self.carrier);
        d
    }
    fn comm(&self, device: &Device, name: &str, timeout: Duration) -> Communicator {
        let options = CommOptions {
            name: name.into(),
            timeout: Some(timeout),
        };
        Communicator::new(device, self, self.launch.rank, self.launch.world, &options).unwrap()
    }
    fn end(self) {
        self.store.farewell(SOON).unwrap();
        self.mpi.shutdown().unwrap();
    }
}

fn cpu() -> Plugin {
    let host = HostServices::builder().config("cpu.threads", "1").build();
    Plugin::new(RawPlugin::from_static::<CpuBackend>(&host).unwrap())
}

/// `count` values of `rank` as bytes: finite floats of all signs, sizes and fractions, or any integers.
fn values(dtype: DType, count: u64, rank: u32, salt: u64) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(u64::from(rank) + 1) ^ (salt << 32);
    let mut out = vec![];
    for _ in 0..count {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let bits = state >> 16;
        let x = (bits % 20011) as f64 / 7.0 - 1400.0;
        match dtype {
            DType::F32 => out.extend((x as f32).to_le_bytes()),
            DType::F64 => out.extend(x.to_le_bytes()),
            DType::Bf16 => out.extend(((x as f32).to_bits() >> 16).to_le_bytes()[..2].to_vec()),
            // Exponents below 2^1.
            DType::F16 => out.extend((bits as u16 & 0xbfff).to_le_bytes()),
            _ => out.extend(&bits.to_le_bytes()[..dtype.bytes(1) as usize]),
        }
    }
    out
}

struct Bench<'a> {
    device: &'a Device,
    stream: Stream,
    comm: Communicator,
    rank: u32,
    n: u64,
    salt: u64,
    /// Everything this rank got, as a line each.
    seen: Vec<String>,
}

impl Bench<'_> {
    fn filled(&mut self, dtype: DType, count: u64) -> Buffer {
        self.salt += 1;
        let bytes = values(dtype, count, self.rank, self.salt);
        let b = self
            .device
            .alloc_state(bytes.len() as u64, Tag::Staging)
            .unwrap();
        self.stream.write(b.all(), &bytes).unwrap();
        b
    }
    fn run(&mut self, c: &[Collective<'_>], out: &Buffer) {
        if !c.is_empty() {
            self.comm.group(&self.stream, c, "test").unwrap();
        }
        let mut bytes = vec![0; out.bytes() as usize];
        self.stream.read(out.all(), &mut bytes).unwrap();
        let mut hash = DefaultHasher::new();
        bytes.hash(&mut hash);
        let name = c.first().map_or("more", Collective::name);
        let (i, hash) = (self.seen.len(), hash.finish());
        self.seen
            .push(format!("#{i} {name}, {} bytes: {hash:016x}", bytes.len()));
    }
}

/// Every kind in and out of place, with many types and lengths; what a rank sees at each.
fn program(device: &Device, comm: Communicator) -> Vec<String> {
    let (rank, n) = (comm.rank(), u64::from(comm.size()));
    let stream = device.stream("compute", 0).unwrap();
    let mut b = Bench {
        device,
        stream,
        comm,
        rank,
        n,
        salt: 0,
        seen: vec![],
    };
    let floats = [DType::F32, DType::Bf16, DType::F16, DType::F64];
    let ints = [DType::I32, DType::I8, DType::U64];
    for (i, count) in [1u64, 7, 1000, 30_011, 1_200_000].into_iter().enumerate() {
        for (j, dtype) in floats.into_iter().chain(ints).enumerate() {
            let long = matches!(dtype, DType::F32 | DType::Bf16);
            if (count > 1000 && !long) || (count > 100_000 && dtype != DType::F32) {
                continue;
            }
            let float = dtype.is_float();
            let ops = [
                Reduce::Sum,
                Reduce::Max,
                Reduce::Avg,
                Reduce::PremulSum(0.3),
                Reduce::Min,
                Reduce::Prod,
            ];
            for op in ops {
                let wants_float = matches!(op, Reduce::Avg | Reduce::PremulSum(_));
                if (wants_float && !float) || (count != 1000 && op != Reduce::Sum) {
                    continue;
                }
                let x = b.filled(dtype, count);
                let buf = x.all();
                b.run(&[Collective::AllReduce { buf, dtype, op }], &x);
                let send = b.filled(dtype, count * n);
                let recv = b.filled(dtype, count);
                let (s, r) = (send.all(), recv.all());
                b.run(
                    &[Collective::ReduceScatter {
                        send: s,
                        recv: r,
                        dtype,
                        op,
                    }],
                    &recv,
                );
                let one = dtype.bytes(count);
                let r = send.region(one * u64::from(rank), one);
                b.run(
                    &[Collective::ReduceScatter {
                        send: s,
                        recv: r,
                        dtype,
                        op,
                    }],
                    &send,
                );
                if op == Reduce::Sum {
                    let root = (i + j) as u32 % n as u32;
                    let x = b.filled(dtype, count);
                    let buf = x.all();
                    b.comm
                        .group(
                            &b.stream,
                            &[Collective::Reduce {
                                buf,
                                dtype,
                                op,
                                root,
                            }],
                            "test",
                        )
                        .unwrap();
                    if rank == root {
                        // Off the root the buffer is nobody's promise.
                        b.run(&[], &x);
                    }
                }
            }
            moves(&mut b, dtype, count, (i + j) as u32);
        }
    }
    b.seen
}

/// The kinds that only move.
fn moves(b: &mut Bench<'_>, dtype: DType, count: u64, salt: u32) {
    let (rank, n) = (b.rank, b.n);
    let one = dtype.bytes(count);
    let x = b.filled(dtype, count);
    let (buf, root) = (x.all(), salt % n as u32);
    b.run(&[Collective::Broadcast { buf, dtype, root }], &x);
    let (send, recv) = (b.filled(dtype, count), b.filled(dtype, count * n));
    let (s, r) = (send.all(), recv.all());
    b.run(
        &[Collective::AllGather {
            send: s,
            recv: r,
            dtype,
        }],
        &recv,
    );
    let s = recv.region(one * u64::from(rank), one);
    b.run(
        &[Collective::AllGather {
            send: s,
            recv: r,
            dtype,
        }],
        &recv,
    );
    let (send, recv) = (b.filled(dtype, count * n), b.filled(dtype, count * n));
    let (s, r) = (send.all(), recv.all());
    b.run(
        &[Collective::AllToAll {
            send: s,
            recv: r,
            dtype,
        }],
        &recv,
    );
    b.run(
        &[Collective::AllToAll {
            send: r,
            recv: r,
            dtype,
        }],
        &recv,
    );
    // Rank a sends (a + b) % 3 times `count` to rank b, with gaps between what arrives.
    let amount = |from: u64, to: u64| (from + to) % 3 * count;
    let me = u64::from(rank);
    let mut counts = Counts::default();
    let (mut to, mut from) = (0, 2);
    for r in 0..n {
        counts.send.push(amount(me, r));
        counts.send_at.push(to);
        counts.recv.push(amount(r, me));
        counts.recv_at.push(from);
        to += amount(me, r);
        from += amount(r, me) + 3;
    }
    let (send, recv) = (b.filled(dtype, to.max(1)), b.filled(dtype, from));
    let (s, r) = (send.all(), recv.all());
    b.run(
        &[Collective::AllToAllV {
            send: s,
            recv: r,
            dtype,
            counts: &counts,
        }],
        &recv,
    );
    // Rank r gives r % 3 times `count`.
    let given: Vec<u64> = (0..n).map(|r| r % 3 * count).collect();
    let mut at = vec![];
    let mut end = 1;
    for g in &given {
        at.push(end);
        end += g + 1;
    }
    let counts = Counts {
        recv: given.clone(),
        recv_at: at,
        ..Counts::default()
    };
    let (send, recv) = (b.filled(dtype, given[rank as usize]), b.filled(dtype, end));
    let (s, r) = (send.all(), recv.all());
    b.run(
        &[Collective::AllGatherV {
            send: s,
            recv: r,
            dtype,
            counts: &counts,
        }],
        &recv,
    );
    // A ring both ways at once, sends named before receives.
    let (next, before) = ((rank + 1) % n as u32, (rank + n as u32 - 1) % n as u32);
    let (x, y) = (b.filled(dtype, count), b.filled(dtype, count));
    let (to, fro) = (b.filled(dtype, count), b.filled(dtype, count));
    let ring = [
        Collective::Send {
            buf: x.all(),
            dtype,
            peer: next,
        },
        Collective::Send {
            buf: y.all(),
            dtype,
            peer: before,
        },
        Collective::Recv {
            buf: to.all(),
            dtype,
            peer: before,
        },
        Collective::Recv {
            buf: fro.all(),
            dtype,
            peer: next,
        },
    ];
    b.run(&ring, &to);
    b.run(&[], &fro);
    b.run(&[Collective::Barrier], &fro);
}

/// The same program on threads of this process.
fn in_process(n: u32) -> Vec<Vec<String>> {
    struct Local(HostServices);
    impl Bootstrap for Local {
        fn set(&self, key: &str, value: &[u8]) -> Result<()> {
            self.0.kv().set(key, value)
        }
        fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
            self.0.kv().get(key, Some(timeout))
        }
    }
    let host = HostServices::builder().config("cpu.threads", "1").build();
    let plugin = Plugin::new(RawPlugin::from_static::<CpuBackend>(&host).unwrap());
    std::thread::scope(|scope| {
        let one = |rank: u32| {
            let (plugin, host) = (&plugin, &host);
            scope.spawn(move || {
                let device = plugin.open(0).unwrap();
                let options = CommOptions {
                    name: "dp".into(),
                    timeout: Some(SOON),
                };
                let boot = Local(host.clone());
                let comm = Communicator::new(&device, &boot, rank, n, &options).unwrap();
                program(&device, comm)
            })
        };
        let threads: Vec<_> = (0..n).map(one).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn same_bits(r: Rank) {
    let device = r.device();
    let comm = r.comm(&device, "dp", SOON);
    let got = program(&device, comm).join("\n");
    let out = std::env::var(OUT).unwrap();
    std::fs::write(Path::new(&out).join(r.launch.rank.to_string()), got).unwrap();
    drop(device);
    r.end();
}

/// Several ranks in each process, as threads: process `p` of `n` has `p + 1` of them.
fn crowds(r: Rank) {
    let (p, n) = (r.launch.rank, r.launch.world);
    let (first, world) = (p * (p + 1) / 2, n * (n + 1) / 2);
    let out = std::env::var(OUT).unwrap();
    std::thread::scope(|scope| {
        for rank in first..=first + p {
            let (r, out) = (&r, &out);
            scope.spawn(move || {
                let device = r.device();
                device.set_rank(rank);
                let options = |name: &str| CommOptions {
                    name: name.into(),
                    timeout: Some(SOON),
                };
                let all = Communicator::new(&device, r, rank, world, &options("dp")).unwrap();
                // A group of its own with each neighbour, in the same process or another, while the others compute theirs.
                let (low, index) = (rank & !1, rank & 1);
                if low + 1 < world {
                    let scope = format!("pair.{low}");
                    let pair = options("pair");
                    let mut pair =
                        Communicator::in_scope(&device, r, &scope, index, 2, &pair).unwrap();
                    let s = device.stream("pair", 0).unwrap();
                    let x = device.alloc_state(4, Tag::Staging).unwrap();
                    s.fill(x.all(), u64::from((rank as f32).to_bits()), 4)
                        .unwrap();
                    pair.all_reduce(&s, x.all(), DType::F32, Reduce::Sum, "t")
                        .unwrap();
                    let mut sum = [0; 4];
                    s.read(x.all(), &mut sum).unwrap();
                    assert_eq!(f32::from_le_bytes(sum), (2 * low + 1) as f32);
                }
                let got = program(&device, all).join("\n");
                std::fs::write(Path::new(out).join(rank.to_string()), got).unwrap();
            });
        }
    });
    r.end();
}

/// Two groups of one world, and two communicators used from two streams at once.
fn groups(r: Rank) {
    let device = r.device();
    let half = (r.launch.rank % 2, r.launch.rank / 2, r.launch.world / 2);
    let options = CommOptions {
        name: "tp".into(),
        timeout: Some(SOON),
    };
    let scope = format!("tp.{}", half.0);
    let mut pair = Communicator::in_scope(&device, &r, &scope, half.1, half.2, &options).unwrap();
    let mut all = r.comm(&device, "dp", SOON);
    let (one, two) = (
        device.stream("one", 0).unwrap(),
        device.stream("two", 0).unwrap(),
    );
    let x = device.alloc_state(40_000, Tag::Staging).unwrap();
    let y = device.alloc_state(40_000, Tag::Staging).unwrap();
    one.fill(x.all(), u64::from((r.launch.rank as f32).to_bits()), 4)
        .unwrap();
    two.fill(y.all(), u64::from(1f32.to_bits()), 4).unwrap();
    for _ in 0..20 {
        // The order between the two differs from rank to rank.
        if half.0 == 0 {
            pair.all_reduce(&one, x.all(), DType::F32, Reduce::Max, "t")
                .unwrap();
            all.all_reduce(&two, y.all(), DType::F32, Reduce::Avg, "t")
                .unwrap();
        } else {
            all.all_reduce(&two, y.all(), DType::F32, Reduce::Avg, "t")
                .unwrap();
            pair.all_reduce(&one, x.all(), DType::F32, Reduce::Max, "t")
                .unwrap();
        }
    }
    let mut bytes = vec![0; 40_000];
    let highest = (half.2 - 1) * 2 + half.0;
    for (s, b, want) in [(&one, &x, highest as f32), (&two, &y, 1.0)] {
        s.read(b.all(), &mut bytes).unwrap();
        assert!(bytes.chunks(4).all(|c| c == want.to_le_bytes()));
    }
    println!("rank {}: groups agree", r.launch.rank);
    drop((pair, all, x, y));
    drop((one, two, device));
    r.end();
}

/// Rank 1 does something else; the others must say so.
fn wrong(r: Rank, scene: &str) {
    let device = r.device();
    let timeout = Duration::from_secs(if scene == "absent" { 5 } else { 600 });
    let mut comm = r.comm(&device, "dp", timeout);
    let abort = comm.abort_handle();
    r.store.on_failure(move |f| {
        println!("reported: {f}");
        abort.abort().unwrap();
    });
    let s = device.stream("compute", 0).unwrap();
    let x = device.alloc_state(4096, Tag::Staging).unwrap();
    s.fill(x.all(), 0, 4).unwrap();
    comm.all_reduce(&s, x.all(), DType::F32, Reduce::Sum, "t")
        .unwrap();
    s.sync(None).unwrap();
    let one = r.launch.rank == 1;
    let began = Instant::now();
    match scene {
        "other_kind" if one => comm.broadcast(&s, x.all(), DType::F32, 0, "t").unwrap(),
        "other_count" if one => {
            comm.all_reduce(&s, x.region(0, 2048), DType::F32, Reduce::Sum, "t")
                .unwrap();
        }
        "short" => {
            // Rank 0 expects more than rank 1 sends.
            let c = match r.launch.rank {
                0 => Collective::Recv {
                    buf: x.all(),
                    dtype: DType::F32,
                    peer: 1,
                },
                _ => Collective::Send {
                    buf: x.region(0, 64),
                    dtype: DType::F32,
                    peer: 0,
                },
            };
            if r.launch.rank < 2 {
                comm.group(&s, &[c], "t").unwrap();
            }
        }
        "absent" if one => std::thread::sleep(SOON),
        "killed" if one => send_to_self(Signal::SIGKILL),
        "killed_amid" => killed_amid(&r, &device, &s, &mut comm),
        _ => comm
            .all_reduce(&s, x.all(), DType::F32, Reduce::Sum, "t")
            .unwrap(),
    }
    let end = s.sync(None);
    if let Err(e) = &end {
        println!(
            "rank {} after {:.1} s: {e}",
            r.launch.rank,
            began.elapsed().as_secs_f64()
        );
        // Neither does the device give out what the failed collective left.
        assert!(s.read(x.all(), &mut [0; 4096]).is_err());
        assert!(comm.barrier(&s).is_err());
    }
    if end.is_err() {
        // A death breaks the collective before the news of it comes.
        let began = Instant::now();
        while scene.starts_with("killed") && r.store.failure().is_none() && began.elapsed() < SOON {
            std::thread::sleep(Duration::from_millis(5));
        }
        r.store.report(r.launch.rank, "it saw a failure");
    }
    // Who has seen nothing stays, so that it is no second death.
    while end.is_ok() && r.store.failure().is_none() && began.elapsed() < SOON {
        std::thread::sleep(Duration::from_millis(10));
    }
    // No orderly end: the job has failed, and a rank that was notified reports it too; a launcher takes the code of the first that ends.
    let failed = end.is_err() || r.store.failure().is_some();
    std::process::exit(i32::from(failed) * 7);
}

/// Rank 1 is killed while all move large vectors. An MPI library that reads a dead process's memory may abort its own: what counts is that
/// the news of the death comes out before.
fn killed_amid(r: &Rank, device: &Device, s: &Stream, comm: &mut Communicator) {
    let me = r.launch.rank;
    // As a run does it: the processes of a host watch each other, and one that its library aborts leaves a moment for the news.
    let map = ProcessMap::single(me, r.launch.world);
    checker_state(&r.store, &map, &this_host(), SOON).unwrap();
    crash::guard(&format!("rank {me}"), "more memory");
    // A rank that waits for the dead one in its library learns of it only by this.
    let abort = comm.abort_handle();
    r.store.on_failure(move |f| {
        println!("rank {me} hears: {f}");
        let _ = abort.release();
    });
    if me == 1 {
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            send_to_self(Signal::SIGKILL);
        });
    }
    let x = device.alloc_state(32 << 20, Tag::Staging).unwrap();
    s.fill(x.all(), 0, 4).unwrap();
    let began = Instant::now();
    while began.elapsed() < SOON && r.store.failure().is_none() {
        let done = comm
            .all_reduce(s, x.all(), DType::F32, Reduce::Sum, "t")
            .and_then(|()| s.sync(None));
        if done.is_err() {
            break;
        }
    }
}

#[test]
fn worker() {
    let Ok(scene) = std::env::var(SCENE) else {
        // The ordinary test run: the others start this one under mpirun.
        return;
    };
    let r = Rank::join();
    match scene.as_str() {
        "same_bits" => same_bits(r),
        "groups" => groups(r),
        "crowds" => crowds(r),
        other => wrong(r, other),
    }
}

/// Every rank of a scene has seen what `want` has.
fn as_in_process(family: &str, want: &[Vec<String>], out: &Path) {
    let n = want.len();
    for (rank, want) in want.iter().enumerate() {
        let got = std::fs::read_to_string(out.join(rank.to_string())).unwrap();
        let got: Vec<&str> = got.lines().collect();
        let differ = got.iter().zip(want).find(|(g, w)| **g != w.as_str());
        assert!(differ.is_none(), "{family}, rank {rank} of {n}: {differ:?}");
        assert_eq!(got.len(), want.len(), "{family}, rank {rank} of {n}");
        assert!(got.len() > 300);
    }
}

#[test]
fn every_collective_has_the_bits_of_the_in_process_ones() {
    let families = families();
    // Four processes under one family; with `CROSSWEAVE_MATRIX=all` four and eight under all.
    let sizes: &[u32] = if every() { &[2, 3, 4, 8] } else { &[2, 3, 4] };
    for &n in sizes {
        let want = in_process(n);
        for (i, family) in families.iter().enumerate() {
            if n > 3 && i > 0 && !every() {
                continue;
            }
            let out = tempfile::tempdir().unwrap();
            let o = launch(family, n, "same_bits", out.path());
            assert!(o.status.success(), "{family} {n}: {}", text(&o));
            as_in_process(family, &want, out.path());
        }
    }
}

#[test]
fn threads_of_several_processes_have_the_bits_of_threads_of_one() {
    let want = in_process(6);
    let families = families();
    // The one that four processes of one thread are not tried under.
    let from = if every() {
        0
    } else {
        families.len().saturating_sub(1)
    };
    for family in &families[from..] {
        let out = tempfile::tempdir().unwrap();
        let o = launch(family, 3, "crowds", out.path());
        assert!(o.status.success(), "{family}: {}", text(&o));
        as_in_process(family, &want, out.path());
    }
}

#[test]
fn groups_and_streams_do_not_disturb_each_other() {
    for family in families() {
        let o = launch(family, 4, "groups", Path::new("."));
        let t = text(&o);
        assert!(o.status.success(), "{family}: {t}");
        assert_eq!(t.matches("groups agree").count(), 4, "{family}: {t}");
    }
}

#[test]
fn mistakes_and_deaths_end_in_a_sentence_that_names_the_rank() {
    let scenes: [(&str, &[&str]); 6] = [
        (
            "other_kind",
            &[
                "rank 1 is in broadcast of 1024 f32 from rank 0 (#2 on dp)",
                "all_reduce sum of 1024 f32",
            ],
        ),
        (
            "other_count",
            &[
                "rank 1 is in all_reduce sum of 512 f32 (#2 on dp)",
                "all_reduce sum of 1024 f32",
            ],
        ),
        ("short", &["rank 1", "64 bytes", "4096"]),
        ("absent", &["timed out", "waited ", "for rank 1"]),
        ("killed", &["rank 1 died without a word"]),
        ("killed_amid", &["hears: rank 1 died without a word"]),
    ];
    for family in families() {
        for (scene, parts) in scenes {
            let play = || {
                let o = launch(family, 3, scene, Path::new("."));
                (o.status.success(), text(&o))
            };
            let (mut ended_well, mut t) = play();
            // MPICH's launcher sometimes ends itself over a survivor that it was answering; then the scene is played again.
            let fell = |t: &str| scene.starts_with("killed") && t.contains("[mpiexec@");
            for _ in 0..9 {
                if parts.iter().all(|p| t.contains(p)) || !fell(&t) {
                    break;
                }
                (ended_well, t) = play();
            }
            assert!(!ended_well, "{family} {scene}: {t}");
            for p in parts {
                assert!(t.contains(p), "{family} {scene}: {p:?} not in: {t}");
            }
        }
    }
}

#[test]
fn the_wrong_launcher_is_told_from_the_right_one() {
    let Some(family) = families().into_iter().find(|f| *f == "mpich") else {
        return;
    };
    // One process whose environment states that it is one of two: its MPI says otherwise.
    let mut c = Command::new(std::env::current_exe().unwrap());
    c.args(["tests::mpi::worker", "--exact", "--nocapture"]);
    c.env(SCENE, "groups")
        .env("RANK", "0")
        .env("WORLD_SIZE", "2");
    c.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", "1");
    let o = c.output().unwrap();
    let t = text(&o);
    assert!(!o.status.success(), "{family}: {t}");
    assert!(
        t.contains("process 0 of 2 for its launcher and process 0 of 1"),
        "{t}"
    );
}
