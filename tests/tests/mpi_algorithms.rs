//! Sums by the algorithms that are asked for by name, under both MPI families: within rounding of those in rank order where floats give it up, to the
//! bit where they do not, and the same on every rank; what each sends; and what is said of ranks that chose differently, or do not come.

use super::mpi::values;
use super::mpi_ranks::{OUT, Rank, SOON, every, families, launch, text};
use crossweave_hal::{Collective, Communicator, DType, Device, Reduce, Stream, Tag};
use crossweave_hosts::{Algorithm, Call, Choice, Hosts, KEY, Kind};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

/// Both kinds of sums by one algorithm, as a scene says it; a tree has no blocks.
fn both(by: Algorithm) -> String {
    let blocks = if by == Algorithm::Tree {
        Algorithm::Auto
    } else {
        by
    };
    let choice = Choice {
        all_reduce: by,
        reduce_scatter: blocks,
        axes: vec![],
    };
    choice.to_string()
}

/// What a rank of a scene chooses: in `other_choice` rank 1 another than the rest.
pub(super) fn chosen(scene: &str, rank: u32) -> String {
    let mut parts = scene.split(':').skip(2);
    match (scene.starts_with("other_choice"), rank) {
        (true, 1) => "all_reduce=ring".into(),
        (true, _) => "all_reduce=tree".into(),
        _ => parts.next().unwrap_or("").into(),
    }
}

fn number(dtype: DType, bytes: &[u8]) -> f64 {
    let two = |bytes: &[u8]| u16::from_le_bytes([bytes[0], bytes[1]]);
    match dtype {
        DType::F32 => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
        DType::F64 => f64::from_le_bytes(bytes.try_into().unwrap()),
        DType::Bf16 => f64::from(f32::from_bits(u32::from(two(bytes)) << 16)),
        DType::F16 => {
            let h = two(bytes);
            let (exponent, fraction) = (i32::from(h >> 10 & 31), f64::from(h & 1023));
            let size = match exponent {
                0 => fraction / 1024.0 * 2f64.powi(-14),
                e => (1.0 + fraction / 1024.0) * 2f64.powi(e - 15),
            };
            if h >> 15 == 1 { -size } else { size }
        }
        _ => unreachable!("only floats are compared by value"),
    }
}

/// The distance that two sums of the same values in different orders may have: each is off by n - 1 roundings of the sum of sizes at most, and a 16-bit
/// result, rounded from either, may be a step further.
fn bound(dtype: DType, sizes: f64, n: u32) -> f64 {
    let (sums, result) = match dtype {
        DType::F64 => (f64::EPSILON, 0.0),
        DType::F32 => (f64::from(f32::EPSILON), 0.0),
        DType::Bf16 => (f64::from(f32::EPSILON), 2f64.powi(-7)),
        _ => (f64::from(f32::EPSILON), 2f64.powi(-10)),
    };
    // Halves of the last bit for each addition, of both sums; and the scaling or sharing of each.
    sizes * (f64::from(n + 1) * sums + result)
}

/// Runs every kind of sum twice, in rank order and as it was chosen, and holds them against each other.
fn compared(r: &Rank, choice: &Choice, out: &mut String) {
    let device = r.device();
    let (rank, n) = (r.launch.rank, r.launch.world);
    r.carrier.configure(KEY, String::new());
    let mut ordered = r.comm(&device, "dp", SOON);
    r.carrier.configure(KEY, choice.to_string());
    let mut named = r.comm(&device, "dp2", SOON);
    let stream = device.stream("compute", 0).unwrap();
    let floats = [DType::F32, DType::Bf16, DType::F16, DType::F64];
    let ints = [DType::I32, DType::I8, DType::U64];
    let mut salt = 0;
    // The longest has more than one piece of every algorithm where it is of 8 bytes an element.
    for count in [1u64, 7, 1000, 65_536, 1_200_000] {
        for dtype in floats.into_iter().chain(ints) {
            if count > 100_000 && ![DType::F64, DType::Bf16].contains(&dtype) {
                continue;
            }
            for op in [
                Reduce::Sum,
                Reduce::Avg,
                Reduce::PremulSum(0.3),
                Reduce::Max,
            ] {
                let wants_float = matches!(op, Reduce::Avg | Reduce::PremulSum(_));
                if (wants_float && !dtype.is_float()) || (count != 1000 && op != Reduce::Sum) {
                    continue;
                }
                for blocks in [false, true] {
                    salt += 1;
                    // Long blocks are parts of such a vector.
                    let one = match count > 100_000 {
                        true => count.div_ceil(u64::from(n)),
                        false => count,
                    };
                    let len = if blocks { one * u64::from(n) } else { count };
                    let both = [&mut ordered, &mut named].map(|comm| {
                        summed((r, &device), comm, &stream, (dtype, op), len, blocks, salt)
                    });
                    let [want, got] = &both;
                    let by = if blocks {
                        choice.reduce_scatter
                    } else {
                        choice.all_reduce
                    };
                    let what = format!("{by:?}, {dtype:?} {op:?} of {count}, blocks {blocks}");
                    if op == Reduce::Max || by.keeps_order(dtype.bytes(1), dtype.is_float()) {
                        assert!(want == got, "{what}: other bits");
                    } else {
                        let own = if blocks { u64::from(rank) * one } else { 0 };
                        near(dtype, op, (&want[..], &got[..]), own, salt, len, n, &what);
                    }
                    let mut hash = DefaultHasher::new();
                    got.hash(&mut hash);
                    if !blocks {
                        *out += &format!("{what}: {:016x}\n", hash.finish());
                    }
                }
            }
        }
    }
}

/// One sum: of a whole vector, or of blocks into this rank's own, in place for every other one.
fn summed(
    (r, device): (&Rank, &Device),
    comm: &mut Communicator,
    stream: &Stream,
    (dtype, op): (DType, Reduce),
    len: u64,
    blocks: bool,
    salt: u64,
) -> Vec<u8> {
    let (rank, n) = (u64::from(r.launch.rank), u64::from(r.launch.world));
    let x = device.alloc_state(dtype.bytes(len), Tag::Staging).unwrap();
    stream
        .write(x.all(), &values(dtype, len, r.launch.rank, salt))
        .unwrap();
    let one = dtype.bytes(len / n);
    let apart = device.alloc_state(one.max(1), Tag::Staging).unwrap();
    let own = x.region(if blocks { rank * one } else { 0 }, one);
    let result = match (blocks, salt.is_multiple_of(2)) {
        (false, _) => x.all(),
        (true, true) => own,
        (true, false) => apart.region(0, one),
    };
    let call = match blocks {
        false => Collective::AllReduce {
            buf: x.all(),
            dtype,
            op,
        },
        true => Collective::ReduceScatter {
            send: x.all(),
            recv: result,
            dtype,
            op,
        },
    };
    comm.group(stream, &[call], "test").unwrap();
    let mut bytes = vec![0; result.bytes as usize];
    stream.read(result, &mut bytes).unwrap();
    bytes
}

/// Both results lie within rounding of each other. `own`: the first element of this rank's.
#[allow(clippy::too_many_arguments)]
fn near(
    dtype: DType,
    op: Reduce,
    (want, got): (&[u8], &[u8]),
    own: u64,
    salt: u64,
    len: u64,
    n: u32,
    what: &str,
) {
    let width = dtype.bytes(1) as usize;
    let all: Vec<Vec<u8>> = (0..n).map(|r| values(dtype, len, r, salt)).collect();
    let scale = match op {
        Reduce::PremulSum(f) => f.abs(),
        Reduce::Avg => 1.0 / f64::from(n),
        _ => 1.0,
    };
    let at = |bytes: &[u8], i: usize| number(dtype, &bytes[i * width..][..width]);
    for i in 0..want.len() / width {
        let sizes: f64 = all.iter().map(|v| at(v, own as usize + i).abs()).sum();
        let (a, b) = (at(want, i), at(got, i));
        let most = bound(dtype, sizes * scale, n);
        assert!(
            (a - b).abs() <= most,
            "{what}, element {i}: {a} and {b}, {most}"
        );
    }
}

pub(super) fn sums(r: Rank, choice: &str) {
    let mut out = String::new();
    compared(&r, &choice.parse().unwrap(), &mut out);
    let path = std::env::var(OUT).unwrap();
    std::fs::write(Path::new(&path).join(r.launch.rank.to_string()), out).unwrap();
    r.end();
}

fn scene(name: &str, hosts: &[u32], choice: &str) -> String {
    let words: Vec<String> = hosts.iter().map(u32::to_string).collect();
    format!("{name}:{}:{choice}", words.join(","))
}

const BY_NAME: [Algorithm; 4] = [
    Algorithm::Native,
    Algorithm::Ring,
    Algorithm::Tree,
    Algorithm::Halving,
];

/// Sums of 16-bit floats by `native` are held to the bit: no reduction of a library rounds them once (a user's operation in a non-blocking reduction,
/// ompi#1754, rounds at every hop), and 65,536 of them have the bits of one rounding.
#[test]
fn sums_by_name_are_within_rounding_of_those_in_rank_order() {
    let families = families();
    for (i, by) in BY_NAME.into_iter().chain([Algorithm::Ordered]).enumerate() {
        // Ranks of a power of two, and beside one.
        for (j, n) in [4u32, 3].into_iter().enumerate() {
            for (k, family) in families.iter().enumerate() {
                // The library's own under both; the rest under one each.
                if by != Algorithm::Native && (i + j + k) % families.len() != 0 && !every() {
                    continue;
                }
                let out = tempfile::tempdir().unwrap();
                let hosts: Vec<u32> = (0..n).map(|r| r / 2).collect();
                let o = launch(family, n, &scene("sums", &hosts, &both(by)), out.path());
                assert!(o.status.success(), "{family} {by:?} {n}: {}", text(&o));
                let said = |r: u32| std::fs::read_to_string(out.path().join(r.to_string()));
                let first = said(0).unwrap();
                assert!(first.lines().count() > 40, "{first}");
                for r in 1..n {
                    assert_eq!(said(r).unwrap(), first, "{family} {by:?}: rank {r} of {n}");
                }
            }
        }
    }
}

/// Two communicators whose sums run from two threads of each process at once, begun in another order on each rank: Open MPI 4 went wrong there
/// (ompi#2427).
pub(super) fn threads(r: Rank) {
    let device = r.device();
    let (rank, n) = (r.launch.rank, r.launch.world);
    let mut comms = [r.comm(&device, "dp", SOON), r.comm(&device, "tp", SOON)];
    let streams = ["one", "two"].map(|name| device.stream(name, 0).unwrap());
    let count = 100_000u64;
    let x = [0, 1].map(|_| device.alloc_state(4 * count, Tag::Staging).unwrap());
    for round in 1..=20u32 {
        for i in 0..2 {
            let one = f64::from(rank + 1) * f64::from(round) * f64::from(i + 1);
            let bits = (one as f32).to_bits();
            let (s, x) = (&streams[i as usize], &x[i as usize]);
            s.fill(x.all(), u64::from(bits), 4).unwrap();
        }
        let first = (rank + round) as usize % 2;
        for i in [first, 1 - first] {
            comms[i]
                .all_reduce(&streams[i], x[i].all(), DType::F32, Reduce::Sum, "t")
                .unwrap();
        }
        for i in 0..2 {
            let mut bytes = vec![0; 4 * count as usize];
            streams[i].read(x[i].all(), &mut bytes).unwrap();
            let all = n * (n + 1) / 2 * round * (i as u32 + 1);
            let want = (all as f32).to_le_bytes();
            assert!(bytes.chunks(4).all(|c| c == want), "round {round}, {i}");
        }
    }
    println!("rank {rank}: threads agree");
    drop((comms, streams, x, device));
    r.end();
}

#[test]
fn native_sums_of_two_threads_do_not_disturb_each_other() {
    for family in families() {
        let choice = both(Algorithm::Native);
        let o = launch(family, 3, &scene("threads", &[], &choice), Path::new("."));
        let t = text(&o);
        assert!(o.status.success(), "{family}: {t}");
        assert_eq!(t.matches("threads agree").count(), 3, "{family}: {t}");
    }
}

/// What the counters of every rank say of the collectives of the scene `sent`: messages and bytes to other hosts, and bytes within its own.
fn counted(out: &Path, n: u32) -> Vec<Vec<[u64; 3]>> {
    let of = |r: u32| {
        let said = std::fs::read_to_string(out.join(r.to_string())).unwrap();
        let line = |l: &str| {
            let words: Vec<u64> = l.split(' ').map(|w| w.parse().unwrap()).collect();
            [words[0], words[1], words[2]]
        };
        said.lines().map(line).collect()
    };
    (0..n).map(of).collect()
}

#[test]
fn bytes_and_messages_are_those_of_each_algorithm() {
    let families = families();
    let cases: &[&[u32]] = &[&[0, 0, 1, 1], &[0, 1, 2]];
    let by = [
        Algorithm::Ring,
        Algorithm::Tree,
        Algorithm::Halving,
        Algorithm::Ordered,
    ];
    for (i, by) in by.into_iter().enumerate() {
        for (j, hosts) in cases.iter().enumerate() {
            let Some(family) = families.get((i + j) % families.len().max(1)) else {
                return;
            };
            let n = hosts.len() as u32;
            let out = tempfile::tempdir().unwrap();
            let o = launch(family, n, &scene("sent", hosts, &both(by)), out.path());
            assert!(o.status.success(), "{family} {by:?}: {}", text(&o));
            let got = counted(out.path(), n);
            let spread = Hosts::new(hosts);
            for (v, (width, count)) in [(4, 120u64), (4, 48_000), (2, 48_000)]
                .into_iter()
                .enumerate()
            {
                for (kind, elements, at) in [
                    (Kind::AllReduce, count, 0),
                    (Kind::ReduceScatter, count * u64::from(n), 1),
                ] {
                    if by == Algorithm::Tree && at == 1 {
                        continue;
                    }
                    let call = Call {
                        kind,
                        elements,
                        width,
                        sum: 4,
                        by,
                    };
                    let line = 5 * v + at;
                    let mut sums = vec![[0; 2]; spread.count()];
                    for (r, lines) in got.iter().enumerate() {
                        let sum = &mut sums[spread.of(r)];
                        sum[0] += lines[line][2];
                        sum[1] += lines[line][1];
                    }
                    let want = spread.sent(call);
                    let want: Vec<[u64; 2]> = want.iter().map(|s| [s.within, s.between]).collect();
                    assert_eq!(sums, want, "{by:?} over {hosts:?}: {call:?}");
                    // Of short vectors each message is one of MPI's too, and on hosts of one rank all are counted.
                    if v == 0 && spread.count() == n as usize {
                        let most = got.iter().map(|lines| lines[line][0]).max();
                        assert_eq!(most, spread.messages(call), "{by:?}: {call:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_rank_that_fails_others_by_name_is_named() {
    let native = both(Algorithm::Native);
    let ring = both(Algorithm::Ring);
    let absent: &[&str] = &["timed out", "waited ", "for rank 1"];
    let killed: &[&str] = &["rank 1 died without a word"];
    let kind: &[&str] = &["rank 1 is in broadcast of 1024 f32 from rank 0 (#2 on dp)"];
    let differs: &[&str] = &[
        "rank 1 sums by all_reduce=ring reduce_scatter=auto",
        "rank 0 by all_reduce=tree",
        "give every rank the same algorithms",
    ];
    for family in families() {
        for (scene, choice, parts) in [
            ("absent", &native, absent),
            ("killed", &native, killed),
            ("other_kind", &native, kind),
            ("absent", &ring, absent),
            ("other_choice", &ring, differs),
        ] {
            let play = || {
                let out = tempfile::tempdir().unwrap();
                let o = launch(family, 3, &format!("{scene}::{choice}"), out.path());
                (o.status.success(), text(&o))
            };
            let (mut ended_well, mut t) = play();
            // As in `mpi_wrong`: a launcher that ends itself over a survivor, and one that takes no notice of a death.
            let fell = |t: &str| scene == "killed" && t.contains("[mpiexec@");
            for _ in 0..9 {
                if parts.iter().all(|p| t.contains(p)) || !fell(&t) {
                    break;
                }
                (ended_well, t) = play();
            }
            let lets = family == "openmpi" && scene == "killed";
            assert!(lets || !ended_well, "{family} {scene}: {t}");
            for p in parts {
                assert!(
                    t.contains(p),
                    "{family} {scene} {choice}: {p:?} not in: {t}"
                );
            }
        }
    }
}

/// MPI counts a process once, so ranks that are threads of one have no native sums, which is said by name.
#[test]
fn native_sums_of_ranks_that_share_a_process_are_refused() {
    let Some(family) = families().into_iter().next() else {
        return;
    };
    let choice = both(Algorithm::Native);
    let out = tempfile::tempdir().unwrap();
    let o = launch(family, 2, &scene("crowds", &[], &choice), out.path());
    let t = text(&o);
    assert!(!o.status.success(), "{family}: {t}");
    let why = "several of its ranks are threads of one process, and MPI counts a process once; choose ordered or auto";
    assert!(t.contains(why), "{family}: {t}");
}
