//! Collectives between processes, under the launchers of both MPI families: this binary starts itself under `mpirun`, and the test
//! `worker` is then one rank. A family that is not installed is skipped with a line that says so; CI installs both.

use super::mpi_algorithms::{sums, threads};
use super::mpi_hosts::sent;
use super::mpi_ranks::{OUT, Rank, SCENE, SOON, every, families, launch, text};
use super::mpi_wrong::wrong;
use crossweave_backend_cpu::CpuBackend;
use crossweave_hal::{
    Bootstrap, Buffer, Collective, CommOptions, Communicator, Counts, DType, Device, HostServices,
    Plugin, RawPlugin, Reduce, Result, Stream, Tag,
};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// `count` values of `rank` as bytes: finite floats of all signs, sizes and fractions, or any integers.
pub(super) fn values(dtype: DType, count: u64, rank: u32, salt: u64) -> Vec<u8> {
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
pub(super) fn in_process(n: u32) -> Vec<Vec<String>> {
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

#[test]
fn worker() {
    let Ok(scene) = std::env::var(SCENE) else {
        // The ordinary test run: the others start this one under mpirun.
        return;
    };
    let r = Rank::join();
    match scene.split(':').next().unwrap_or_default() {
        "same_bits" => same_bits(r),
        "sent" => sent(r),
        "groups" => groups(r),
        "crowds" => crowds(r),
        "sums" => sums(r, scene.splitn(3, ':').nth(2).unwrap_or_default()),
        "threads" => threads(r),
        other => wrong(r, other),
    }
}

/// Every rank of a scene has seen what `want` has.
pub(super) fn as_in_process(family: &str, want: &[Vec<String>], out: &Path) {
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
