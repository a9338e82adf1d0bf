//! Groups of several islands on real devices: separate instances of the cpu plugin stand for back ends that cannot reach each other, one more
//! carries the bridge, and cells hidden from some of them stand for vendors that lack collectives.

use crate::common;
use common::{Boot, factor, folded, masks, value, vector};
use crossweave_backend_cpu::CpuBackend;
use crossweave_collectives::comm_plan::{Nodes, across, hierarchical, hierarchical_scatter};
use crossweave_collectives::{Collectives, FaultKind, FaultRule, Faults, Prefer};
use crossweave_hal::{
    BridgeLine, Buffer, Carrier, CheckerState, CollectiveCell, CommOptions, Communicator, Counts,
    DType, Device, HostServices, KvStore, LocalKv, Plugin, RawPlugin, Reduce, Stream, Tag,
};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

struct Rank {
    device: Device,
    s: Stream,
    comm: Collectives,
    rank: u32,
    n: u32,
}

/// The islands of a layout, `layout[rank]` being the island of a rank.
fn nodes(layout: &[usize]) -> Nodes {
    let islands = layout.iter().max().map_or(0, |k| k + 1);
    let members = |k: usize| {
        let all = layout.iter().enumerate().filter(|(_, i)| **i == k);
        all.map(|(r, _)| r as u32).collect::<Vec<u32>>()
    };
    Nodes::new((0..islands).map(members).collect()).unwrap()
}

/// Runs `body` on a thread a rank. `hidden[k]`: what island k's plugin lacks.
fn ranks<T: Send>(
    layout: &[usize],
    hidden: &[Vec<CollectiveCell>],
    body: impl Fn(&mut Rank) -> T + Sync,
) -> Vec<T> {
    let kv: Arc<dyn KvStore> = Arc::new(LocalKv::default());
    let host = HostServices::builder()
        .config("cpu.threads", "1")
        .kv(kv.clone())
        .build();
    let plugin = || Plugin::new(RawPlugin::from_static::<CpuBackend>(&host).unwrap());
    let carrier = Carrier::open(&plugin()).unwrap();
    let nodes = nodes(layout);
    let board = CheckerState::default();
    let plugins: Vec<Plugin> = (0..nodes.iter().count())
        .map(|k| match hidden.get(k) {
            Some(cells) => plugin().without_collectives(cells),
            None => plugin(),
        })
        .map(|p| p.with_checker(&board))
        .collect();
    let one = |rank: u32| {
        let island = layout[rank as usize];
        let device = plugins[island].open(0).unwrap();
        device.carry(&carrier);
        let options = |name: &str| CommOptions {
            name: name.into(),
            timeout: Some(Duration::from_secs(60)),
        };
        let boot = Boot(kv.clone());
        let n = layout.len() as u32;
        let bridge = Communicator::new(&device, &boot, rank, n, &options("dp")).unwrap();
        let members = nodes.iter().nth(island).unwrap();
        let at = members.iter().position(|r| *r == rank).unwrap() as u32;
        let near = (members.len() > 1).then(|| {
            let scope = format!("island{island}");
            let size = members.len() as u32;
            Communicator::of_island(&device, &boot, &scope, at, size, &options(&scope)).unwrap()
        });
        let comm = Collectives::of_islands(bridge, nodes.clone(), near).unwrap();
        let s = device.stream("test", 0).unwrap();
        body(&mut Rank {
            device,
            s,
            comm,
            rank,
            n,
        })
    };
    let one = &one;
    std::thread::scope(|t| {
        let all: Vec<_> = (0..layout.len() as u32)
            .map(|r| t.spawn(move || one(r)))
            .collect();
        all.into_iter().map(|h| h.join().unwrap()).collect()
    })
}

impl Rank {
    fn upload(&self, bytes: &[u8]) -> Buffer {
        let b = self.poisoned(bytes.len() as u64);
        self.s.write(b.all(), bytes).unwrap();
        b
    }
    fn poisoned(&self, bytes: u64) -> Buffer {
        let b = self.device.alloc(&self.s, bytes, Tag::Grad).unwrap();
        if bytes > 0 {
            self.s.fill(b.all(), 0xff, 1).unwrap();
        }
        b
    }
    fn download(&self, b: &Buffer) -> Vec<u8> {
        let mut v = vec![0; b.bytes() as usize];
        self.s.read(b.all(), &mut v).unwrap();
        v
    }
}

/// One to four islands: alone, even, uneven, interleaved.
const LAYOUTS: [&[usize]; 8] = [
    &[0, 0, 0],
    &[0, 0, 1],
    &[0, 1, 0, 1],
    &[0, 1, 1, 0, 1],
    &[0, 1, 2],
    &[2, 0, 1, 0, 2],
    &[0, 1, 2, 3, 0],
    &[1, 0, 1, 1, 0, 0],
];

/// What the islands lack: nothing; the second all but messages; both everything optional.
fn vendors() -> Vec<Vec<Vec<CollectiveCell>>> {
    let [_, mandatory, bare] = masks().try_into().expect("three masks");
    vec![
        vec![],
        vec![vec![], bare.1],
        vec![mandatory.1.clone(), mandatory.1],
    ]
}

fn reductions(dtype: DType, rank: u32) -> Vec<Reduce> {
    let mut ops = vec![Reduce::Sum, Reduce::Max];
    if dtype.is_float() {
        ops.extend([Reduce::Prod, Reduce::Avg, Reduce::PremulSum(factor(rank))]);
    }
    ops
}

#[test]
fn rank_order_gives_the_bits_of_one_back_end_on_every_layout() {
    for layout in LAYOUTS {
        // Uneven and interleaved islands of vendors that lack something stand for all.
        let uneven = layout == LAYOUTS[1] || layout == LAYOUTS[3];
        for hidden in vendors().into_iter().take(if uneven { 3 } else { 1 }) {
            ranks(layout, &hidden, |r| {
                let n = u64::from(r.n);
                for dtype in [DType::F32, DType::Bf16, DType::I32, DType::I64] {
                    for op in reductions(dtype, r.rank) {
                        let counts: &[u64] = match op {
                            Reduce::Sum => &[1, 2 * n, 67],
                            _ => &[67],
                        };
                        for &count in counts {
                            let want: Vec<u8> =
                                (0..count).flat_map(|i| folded(dtype, op, r.n, i)).collect();
                            let at = format!("{layout:?} {dtype:?} {op:?} {count} rank {}", r.rank);
                            let b = r.upload(&vector(dtype, r.rank, count));
                            r.comm.all_reduce(&r.s, b.all(), dtype, op, "grad").unwrap();
                            assert!(r.download(&b) == want, "all_reduce {at}");
                            let whole = vector(dtype, r.rank, count * n);
                            let send = r.upload(&whole);
                            let recv = r.poisoned(dtype.bytes(count));
                            r.comm
                                .reduce_scatter(&r.s, send.all(), recv.all(), dtype, op, "grad")
                                .unwrap();
                            let first = u64::from(r.rank) * count;
                            let piece: Vec<u8> = (first..first + count)
                                .flat_map(|i| folded(dtype, op, r.n, i))
                                .collect();
                            assert!(r.download(&recv) == piece, "reduce_scatter {at}");
                            assert!(r.download(&send) == whole, "input of reduce_scatter {at}");
                            let root = (r.n - 1).min(1);
                            let b = r.upload(&vector(dtype, r.rank, count));
                            r.comm
                                .reduce(&r.s, b.all(), dtype, op, root, "grad")
                                .unwrap();
                            let kept = vector(dtype, r.rank, count);
                            let want = if r.rank == root { &want } else { &kept };
                            assert!(&r.download(&b) == want, "reduce {at}");
                        }
                    }
                }
            });
        }
    }
}

#[test]
fn what_only_moves_arrives_everywhere() {
    let bytes = |rank: u32, n: u64| vector(DType::I64, rank, n);
    for layout in LAYOUTS {
        for hidden in vendors() {
            ranks(layout, &hidden, |r| {
                let n = u64::from(r.n);
                let at = format!("{layout:?} rank {}", r.rank);
                let all: Vec<u8> = (0..r.n).flat_map(|k| bytes(k, 5)).collect();
                let (send, recv) = (r.upload(&bytes(r.rank, 5)), r.poisoned(40 * n));
                let d = DType::I64;
                r.comm
                    .all_gather(&r.s, send.all(), recv.all(), d, "param")
                    .unwrap();
                assert!(r.download(&recv) == all, "all_gather {at}");
                // In place, and with a length for each rank, one of them nothing.
                let len = |k: u64| (k * 3) % 7;
                let starts: Vec<u64> = (0..n).map(|k| (0..k).map(len).sum::<u64>() + k).collect();
                let counts = Counts {
                    recv: (0..n).map(len).collect(),
                    recv_at: starts.clone(),
                    ..Counts::default()
                };
                let me = u64::from(r.rank);
                let recv = r.poisoned(8 * (starts[n as usize - 1] + 7));
                let mine = recv.region(8 * starts[me as usize], 8 * len(me));
                if mine.bytes > 0 {
                    r.s.write(mine, &bytes(r.rank, len(me))).unwrap();
                }
                r.comm
                    .all_gather_v(&r.s, mine, recv.all(), d, &counts, "param")
                    .unwrap();
                let got = r.download(&recv);
                for k in 0..n {
                    let from = 8 * starts[k as usize] as usize;
                    let piece = &got[from..from + 8 * len(k) as usize];
                    assert!(piece == bytes(k as u32, len(k)), "all_gather_v {at}: {k}");
                    let gap = &got[from + piece.len()..from + piece.len() + 8];
                    assert!(gap == [0xff; 8], "all_gather_v {at}: behind {k}");
                }
                for root in 0..r.n {
                    let b = r.upload(&bytes(r.rank, 9));
                    r.comm.broadcast(&r.s, b.all(), d, root, "param").unwrap();
                    assert!(
                        r.download(&b) == bytes(root, 9),
                        "broadcast {at} from {root}"
                    );
                }
                let (send, recv) = (r.upload(&bytes(r.rank, 2 * n)), r.poisoned(16 * n));
                r.comm
                    .all_to_all(&r.s, send.all(), recv.all(), d, "token")
                    .unwrap();
                let mine = |k: u32| bytes(k, 2 * n)[16 * r.rank as usize..][..16].to_vec();
                let want: Vec<u8> = (0..r.n).flat_map(mine).collect();
                assert!(r.download(&recv) == want, "all_to_all {at}");
                // Rank a sends (a + b) % 3 elements to rank b.
                let size = |a: u64, b: u64| (a + b) % 3;
                let at_of = |k: u64, f: &dyn Fn(u64) -> u64| (0..k).map(f).sum::<u64>();
                let (out, into) = (|b| size(me, b), |a| size(a, me));
                let counts = Counts {
                    send: (0..n).map(out).collect(),
                    send_at: (0..n).map(|b| at_of(b, &out)).collect(),
                    recv: (0..n).map(into).collect(),
                    recv_at: (0..n).map(|a| at_of(a, &into)).collect(),
                };
                let send = r.upload(&bytes(r.rank, 3 * n));
                let recv = r.poisoned(24 * n);
                r.comm
                    .all_to_all_v(&r.s, send.all(), recv.all(), d, &counts, "token")
                    .unwrap();
                let got = r.download(&recv);
                for a in 0..n {
                    let there = 8 * at_of(me, &|b| size(a, b)) as usize;
                    let len = 8 * into(a) as usize;
                    let want = &bytes(a as u32, 3 * n)[there..there + len];
                    let here = 8 * counts.recv_at[a as usize] as usize;
                    assert!(&got[here..here + len] == want, "all_to_all_v {at} from {a}");
                }
                r.comm.barrier(&r.s).unwrap();
                // A ring of messages in one group.
                let (next, last) = ((r.rank + 1) % r.n, (r.rank + r.n - 1) % r.n);
                let (send, recv) = (r.upload(&bytes(r.rank, 4)), r.poisoned(32));
                let (buf, dtype) = (send.all(), d);
                let ring = [
                    crossweave_hal::Collective::Send {
                        buf,
                        dtype,
                        peer: next,
                    },
                    crossweave_hal::Collective::Recv {
                        buf: recv.all(),
                        dtype,
                        peer: last,
                    },
                ];
                if r.n > 1 {
                    r.comm.group(&r.s, &ring, "act").unwrap();
                    assert!(r.download(&recv) == bytes(last, 4), "ring {at}");
                }
            });
        }
    }
}

/// Bytes a rank put on the bridge for a kind.
fn sent(lines: &[BridgeLine], kind: &str) -> u64 {
    let of_kind = lines.iter().filter(|l| l.kind == kind);
    of_kind.map(|l| l.sent_bytes).sum()
}

#[test]
fn plan_order_gives_all_ranks_the_same_bits_and_crosses_as_little_as_the_formula_says() {
    for layout in LAYOUTS {
        let islands = nodes(layout);
        let (n, k) = (layout.len() as u64, islands.iter().count() as u64);
        // Divides by ranks, islands and lanes.
        let count = 120 * n;
        for hidden in vendors() {
            for dtype in [DType::F32, DType::Bf16] {
                let ends = ranks(layout, &hidden, |r| {
                    r.comm.prefer(Prefer::Nodes(nodes(layout)));
                    let mut bits = vec![];
                    for op in [Reduce::Sum, Reduce::Avg, Reduce::Max] {
                        let b = r.upload(&vector(dtype, r.rank, count));
                        r.comm.all_reduce(&r.s, b.all(), dtype, op, "grad").unwrap();
                        let got = r.download(&b);
                        close(dtype, op, r.n, &got, layout);
                        let send = r.upload(&vector(dtype, r.rank, count));
                        let recv = r.poisoned(dtype.bytes(count / n));
                        r.comm
                            .reduce_scatter(&r.s, send.all(), recv.all(), dtype, op, "grad")
                            .unwrap();
                        // The piece of the all-reduce, bit by bit: stages of ZeRO differ in nothing else.
                        let piece = got.len() / n as usize;
                        let mine = &got[piece * r.rank as usize..][..piece];
                        assert!(r.download(&recv) == mine, "{layout:?} {dtype:?} {op:?}");
                        assert!(r.download(&send) == vector(dtype, r.rank, count));
                        bits.push(got);
                    }
                    (bits, r.device.bridged())
                });
                assert!(
                    ends.windows(2).all(|w| w[0].0 == w[1].0),
                    "{layout:?}: bits differ"
                );
                // Sums of 16-bit floats travel in f32; three reductions were made of each kind.
                let vectors = 3 * 4 * count;
                for members in islands.iter() {
                    let of = |kind| -> u64 {
                        let each = members.iter().map(|r| sent(&ends[*r as usize].1, kind));
                        each.sum()
                    };
                    assert_eq!(of("all_reduce"), 2 * (k - 1) * vectors / k, "{layout:?}");
                    let out = n - members.len() as u64;
                    assert_eq!(of("reduce_scatter"), out * vectors / n, "{layout:?}");
                }
                let plan = hierarchical(count, &islands);
                assert_eq!(across(&plan, &islands)[0], 2 * (k - 1) * count / k);
                let plan = hierarchical_scatter(count / n, &islands);
                let out = n - islands.iter().next().unwrap().len() as u64;
                assert_eq!(across(&plan, &islands)[0], out * count / n);
            }
        }
    }
}

#[test]
fn rank_order_crosses_as_much_as_its_formula_says() {
    for layout in LAYOUTS {
        let islands = nodes(layout);
        let (n, k) = (layout.len() as u64, islands.iter().count() as u64);
        let count = 60 * n;
        let lines = ranks(layout, &[], |r| {
            let b = r.upload(&vector(DType::F32, r.rank, count));
            r.comm
                .all_reduce(&r.s, b.all(), DType::F32, Reduce::Sum, "grad")
                .unwrap();
            let (send, recv) = (
                r.upload(&vector(DType::F32, r.rank, 60)),
                r.poisoned(4 * count),
            );
            r.comm
                .all_gather(&r.s, send.all(), recv.all(), DType::F32, "param")
                .unwrap();
            r.device.bridged()
        });
        let (whole, piece) = (4 * count, 4 * 60);
        for members in islands.iter() {
            for r in members {
                // Raw pieces to owners outside; the finished piece once to each other island.
                let out = n - members.len() as u64;
                let raw = out * whole / n;
                let once = (k - 1) * piece;
                let has = &lines[*r as usize];
                assert_eq!(sent(has, "all_reduce"), raw + once, "{layout:?} rank {r}");
                assert_eq!(sent(has, "all_gather"), once, "{layout:?} rank {r}");
            }
        }
        let total = |f: fn(&BridgeLine) -> u64| -> u64 { lines.iter().flatten().map(f).sum() };
        assert_eq!(
            total(|l| l.sent_bytes),
            total(|l| l.received_bytes),
            "{layout:?}"
        );
    }
}

/// Another order of the same sum.
fn close(dtype: DType, op: Reduce, n: u32, got: &[u8], layout: &[usize]) {
    let unit = dtype.bytes(1) as usize;
    let read = |b: &[u8]| match dtype {
        DType::F32 => f32::from_le_bytes(b.try_into().unwrap()),
        _ => half::bf16::from_le_bytes(b.try_into().unwrap()).to_f32(),
    };
    for (i, b) in got.chunks_exact(unit).enumerate() {
        let (g, w) = (read(b), read(&folded(dtype, op, n, i as u64)));
        let size: f64 = (0..n).map(|r| value(r, i as u64).abs()).sum();
        let round = if dtype == DType::F32 {
            2f64.powi(-20)
        } else {
            2f64.powi(-7)
        };
        let off = f64::from((g - w).abs());
        assert!(
            off <= size * 2f64.powi(-20) + f64::from(w.abs()) * round,
            "{layout:?} {op:?} {i}: {g} {w}"
        );
    }
}

#[test]
fn a_bit_that_flips_on_its_way_is_found_by_all_islands_where_values_are_checked() {
    let e = ranks(&[0, 0, 1, 0], &[], |r| {
        r.comm.check_values();
        if r.rank == 2 {
            let rule = FaultRule {
                kind: FaultKind::Corrupt(77),
                step: None,
                call: Some(2),
                op: None,
                group: None,
                name: "faults[0]".into(),
            };
            r.comm.inject(&Faults::new(r.rank, vec![rule], || ()));
        }
        let b = r.upload(&vector(DType::F32, r.rank, 33));
        let mut sum = || {
            r.comm
                .all_reduce(&r.s, b.all(), DType::F32, Reduce::Sum, "grad")
        };
        sum().unwrap();
        sum().unwrap_err().to_string()
    });
    for part in [
        "rank 2 got other bits than ranks 0, 1, 3",
        "all_reduce",
        "grad",
    ] {
        assert!(e[0].contains(part), "{part:?} not in {e:?}");
    }
    assert!(e.iter().all(|x| *x == e[0]), "{e:?}");
}

#[test]
fn a_rank_of_another_island_that_asks_for_something_else_is_named_by_all() {
    let said = ranks(&[0, 0, 1, 1], &[], |r| {
        let count = if r.rank == 2 { 8 } else { 16 };
        let b = r.upload(&vector(DType::F32, r.rank, count));
        let asked = r
            .comm
            .all_reduce(&r.s, b.all(), DType::F32, Reduce::Sum, "grad");
        let mut bytes = vec![0; b.bytes() as usize];
        let done = asked.and_then(|()| r.s.read(b.all(), &mut bytes));
        done.unwrap_err().to_string()
    });
    for e in &said {
        assert!(e.contains("rank 2"), "{said:?}");
        assert!(e.contains("all_reduce"), "{said:?}");
    }
}

/// The end of a communicator in flight waits for the others and not for the stream it is on, which in turn would wait for it.
#[test]
fn a_communicator_that_ends_in_flight_ends_when_the_others_come_or_abort() {
    for aborts in [false, true] {
        let kv: Arc<dyn KvStore> = Arc::new(LocalKv::default());
        let host = HostServices::builder()
            .config("cpu.threads", "1")
            .kv(kv.clone())
            .build();
        let plugin = || Plugin::new(RawPlugin::from_static::<CpuBackend>(&host).unwrap());
        let carrier = Carrier::open(&plugin()).unwrap();
        let (tell, told) = channel();
        for rank in 0..2 {
            let (device, boot) = (plugin().open(0).unwrap(), Boot(kv.clone()));
            device.carry(&carrier);
            let tell = tell.clone();
            // Not waited for: who hangs must not take the test along.
            std::thread::spawn(move || {
                let options = CommOptions {
                    name: "dp".into(),
                    timeout: Some(Duration::from_secs(60)),
                };
                let mut comm = Communicator::new(&device, &boot, rank, 2, &options).unwrap();
                let s = device.stream("test", 0).unwrap();
                let b = device.alloc(&s, 64, Tag::Grad).unwrap();
                s.fill(b.all(), 0, 4).unwrap();
                if rank == 1 {
                    std::thread::sleep(Duration::from_millis(200));
                }
                if rank == 1 && aborts {
                    comm.abort_handle().abort().unwrap();
                } else {
                    let (f32, sum) = (DType::F32, Reduce::Sum);
                    comm.all_reduce(&s, b.all(), f32, sum, "grad").unwrap();
                }
                drop(comm);
                let done = device.sync();
                drop((b, s, device));
                tell.send((rank, done.is_ok())).unwrap();
            });
        }
        let wait = || {
            told.recv_timeout(Duration::from_secs(120))
                .expect("it hangs")
        };
        let mut ends = [wait(), wait()];
        ends.sort_unstable();
        // A rank that has aborted and asked for nothing has no error to receive.
        assert_eq!(ends, [(0, !aborts), (1, true)]);
    }
}

#[test]
fn islands_that_are_not_the_groups_are_refused() {
    let kv: Arc<dyn KvStore> = Arc::new(LocalKv::default());
    let host = HostServices::builder()
        .config("cpu.threads", "1")
        .kv(kv.clone())
        .build();
    let plugin = Plugin::new(RawPlugin::from_static::<CpuBackend>(&host).unwrap());
    let device = plugin.open(0).unwrap();
    let group = |layout: &[usize]| {
        let options = CommOptions {
            name: "dp".into(),
            timeout: Some(Duration::from_secs(60)),
        };
        let comm = Communicator::new(&device, &Boot(kv.clone()), 0, 1, &options).unwrap();
        Collectives::of_islands(comm, nodes(layout), None)
            .err()
            .map(|e| e.to_string())
    };
    let e = group(&[0, 1]).unwrap();
    assert!(e.contains("they have 2 ranks, the group 1"), "{e}");
    assert_eq!(group(&[0]), None);
}
