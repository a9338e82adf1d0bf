//! Every collective on plugins that lack it, held to exact references in rank order: same bits by every route and on every rank.

use crate::common;
use common::*;
use crossweave_collectives::Route;
use crossweave_hal::abi::COLL_ALL_REDUCE;
use crossweave_hal::{Code, Collective, CollectiveCell, Counts, DType, Reduce};

const FLOATS: [DType; 3] = [DType::F32, DType::Bf16, DType::F16];
const INTS: [DType; 3] = [DType::I32, DType::I64, DType::U8];
const RANKS: [u32; 5] = [1, 2, 3, 4, 8];
const COUNTS: [u64; 4] = [1, 7, 192, 1001];

fn cases(rank: u32) -> Vec<(DType, Reduce)> {
    let plain = [Reduce::Sum, Reduce::Prod, Reduce::Min, Reduce::Max];
    let scaled = [Reduce::Avg, Reduce::PremulSum(factor(rank))];
    let mut v = vec![];
    for d in FLOATS {
        v.extend(plain.iter().chain(&scaled).map(|r| (d, *r)));
    }
    for d in INTS {
        v.extend(plain.iter().map(|r| (d, *r)));
    }
    v
}

#[test]
fn reductions_equal_the_rank_order_fold_by_every_route() {
    for (name, hidden) in masks() {
        for n in RANKS {
            ranks(&hidden, n, |r| {
                for (dtype, op) in cases(r.rank) {
                    for count in COUNTS {
                        reductions(r, name, dtype, op, count);
                    }
                }
            });
        }
    }
}

fn reductions(r: &mut Rank, name: &str, dtype: DType, op: Reduce, count: u64) {
    let (me, n) = (r.rank, r.n);
    let at = |what: &str| format!("{what} {dtype:?} {op:?}, {count} on rank {me} of {n}, {name}");
    let whole: Vec<u8> = (0..count).flat_map(|i| folded(dtype, op, n, i)).collect();

    let b = r.upload(&vector(dtype, me, count));
    r.comm.all_reduce(&r.s, b.all(), dtype, op, "grad").unwrap();
    assert!(r.download(&b) == whole, "{}", at("all_reduce"));

    let root = count as u32 % n;
    let mine = vector(dtype, me, count);
    let b = r.upload(&mine);
    r.comm
        .reduce(&r.s, b.all(), dtype, op, root, "grad")
        .unwrap();
    let want = if me == root { &whole } else { &mine };
    assert!(&r.download(&b) == want, "{}", at("reduce"));

    let full = count * u64::from(n);
    let from = u64::from(me) * count;
    let piece: Vec<u8> = (from..from + count)
        .flat_map(|i| folded(dtype, op, n, i))
        .collect();
    let b = r.upload(&vector(dtype, me, full));
    let out = r.poisoned(dtype.bytes(count));
    r.comm
        .reduce_scatter(&r.s, b.all(), out.all(), dtype, op, "grad")
        .unwrap();
    assert!(r.download(&out) == piece, "{}", at("reduce_scatter"));
    assert!(
        r.download(&b) == vector(dtype, me, full),
        "{}",
        at("input of reduce_scatter")
    );
    let own = b.region(dtype.bytes(from), dtype.bytes(count));
    r.comm
        .reduce_scatter(&r.s, b.all(), own, dtype, op, "grad")
        .unwrap();
    let got = r.download(&b)[dtype.bytes(from) as usize..][..piece.len()].to_vec();
    assert!(got == piece, "{}", at("reduce_scatter in place"));
}

#[test]
fn movements_are_exact_by_every_route() {
    for (name, hidden) in masks() {
        for n in RANKS {
            ranks(&hidden, n, |r| {
                for dtype in [DType::F32, DType::Bf16, DType::I64, DType::F8E4M3] {
                    for count in COUNTS {
                        movements(r, name, dtype, count);
                    }
                }
                r.comm.barrier(&r.s).unwrap();
                r.s.sync(None).unwrap();
            });
        }
    }
}

fn movements(r: &mut Rank, name: &str, dtype: DType, count: u64) {
    let (me, n) = (r.rank, r.n);
    let at = |what: &str| format!("{what} {dtype:?}, {count} on rank {me} of {n}, {name}");
    let b = |x: u64| dtype.bytes(x);

    let root = (count as u32 + 1) % n;
    let buf = r.upload(&vector(dtype, me, count));
    r.comm
        .broadcast(&r.s, buf.all(), dtype, root, "param")
        .unwrap();
    assert!(
        r.download(&buf) == vector(dtype, root, count),
        "{}",
        at("broadcast")
    );

    let all: Vec<u8> = (0..n).flat_map(|j| vector(dtype, j, count)).collect();
    let (send, recv) = (
        r.upload(&vector(dtype, me, count)),
        r.poisoned(b(count * u64::from(n))),
    );
    r.comm
        .all_gather(&r.s, send.all(), recv.all(), dtype, "param")
        .unwrap();
    assert!(r.download(&recv) == all, "{}", at("all_gather"));
    let recv = r.poisoned(b(count * u64::from(n)));
    let own = recv.region(b(count * u64::from(me)), b(count));
    r.s.copy(own, send.all()).unwrap();
    r.comm
        .all_gather(&r.s, own, recv.all(), dtype, "param")
        .unwrap();
    assert!(r.download(&recv) == all, "{}", at("all_gather in place"));

    let full = count * u64::from(n);
    let piece = |j: u32| {
        let v = vector(dtype, j, full);
        v[b(u64::from(me) * count) as usize..][..b(count) as usize].to_vec()
    };
    let want: Vec<u8> = (0..n).flat_map(piece).collect();
    let (send, recv) = (r.upload(&vector(dtype, me, full)), r.poisoned(b(full)));
    r.comm
        .all_to_all(&r.s, send.all(), recv.all(), dtype, "param")
        .unwrap();
    assert!(r.download(&recv) == want, "{}", at("all_to_all"));
    r.comm
        .all_to_all(&r.s, send.all(), send.all(), dtype, "param")
        .unwrap();
    assert!(r.download(&send) == want, "{}", at("all_to_all in place"));

    // Rank i sends (i + 2j) % 3 + (count of them) elements to j, sometimes none at all.
    let len = |i: u32, j: u32| u64::from((i + 2 * j) % 3) * count;
    let dense = |lens: &[u64]| -> Vec<u64> {
        lens.iter()
            .scan(0, |at, l| Some(std::mem::replace(at, *at + l)))
            .collect()
    };
    let (out, into): (Vec<u64>, Vec<u64>) = (0..n).map(|j| (len(me, j), len(j, me))).unzip();
    let counts = Counts {
        send_at: dense(&out),
        recv_at: dense(&into),
        send: out.clone(),
        recv: into.clone(),
    };
    let want: Vec<u8> = (0..n)
        .flat_map(|j| {
            let from: u64 = (0..me).map(|k| len(j, k)).sum();
            let v = vector(dtype, j, from + len(j, me));
            v[b(from) as usize..].to_vec()
        })
        .collect();
    let (send, recv) = (
        r.upload(&vector(dtype, me, out.iter().sum())),
        r.poisoned(b(into.iter().sum())),
    );
    r.comm
        .all_to_all_v(&r.s, send.all(), recv.all(), dtype, &counts, "param")
        .unwrap();
    assert!(r.download(&recv) == want, "{}", at("all_to_all_v"));

    for lens in [
        (0..n).map(|j| len(j, 0)).collect::<Vec<_>>(),
        vec![count; n as usize],
    ] {
        let counts = Counts {
            recv_at: dense(&lens),
            recv: lens.clone(),
            ..Counts::default()
        };
        let want: Vec<u8> = (0..n)
            .flat_map(|j| vector(dtype, j, lens[j as usize]))
            .collect();
        let (send, recv) = (
            r.upload(&vector(dtype, me, lens[me as usize])),
            r.poisoned(want.len() as u64),
        );
        r.comm
            .all_gather_v(&r.s, send.all(), recv.all(), dtype, &counts, "param")
            .unwrap();
        assert!(r.download(&recv) == want, "{}", at("all_gather_v"));
    }
}

#[test]
fn the_ledger_counts_what_was_asked_for_whatever_the_route() {
    let books: Vec<_> = masks()
        .into_iter()
        .map(|(_, hidden)| {
            ranks(&hidden, 3, |r| {
                let b = r.upload(&vector(DType::Bf16, r.rank, 1001));
                for op in [Reduce::Sum, Reduce::Avg] {
                    r.comm
                        .all_reduce(&r.s, b.all(), DType::Bf16, op, "grad")
                        .unwrap();
                }
                let x = r.upload(&vector(DType::F32, r.rank, 300));
                let own = x.region(u64::from(r.rank) * 400, 400);
                r.comm
                    .reduce_scatter(&r.s, x.all(), own, DType::F32, Reduce::Sum, "grad")
                    .unwrap();
                r.comm
                    .all_gather(&r.s, own, x.all(), DType::F32, "param")
                    .unwrap();
                r.comm
                    .broadcast(&r.s, x.all(), DType::F32, 1, "param")
                    .unwrap();
                r.comm.barrier(&r.s).unwrap();
                r.s.sync(None).unwrap();
                r.device.collectives()
            })
        })
        .collect();
    for lines in books.iter().flatten() {
        assert_eq!(lines, &books[0][0]);
    }
    let line = books[0][0]
        .iter()
        .find(|l| l.kind == "all_reduce")
        .expect("an all_reduce line");
    assert_eq!(
        (line.calls, line.elements, line.bytes, line.ranks),
        (2, 2002, 4004, 3)
    );
    assert_eq!((line.group.as_str(), line.tag.as_str()), ("dp", "grad"));
}

#[test]
fn routes_are_chosen_once_and_said() {
    let (_, mandatory) = masks().swap_remove(1);
    let said = ranks(&mandatory, 2, |r| {
        let b = r.upload(&vector(DType::F32, r.rank, 64));
        let c = |dtype, op| Collective::AllReduce {
            buf: b.all(),
            dtype,
            op,
        };
        assert_eq!(
            r.comm.route(&c(DType::F32, Reduce::Sum)).unwrap(),
            Route::Native
        );
        assert_eq!(
            r.comm.route(&c(DType::F32, Reduce::Avg)).unwrap(),
            Route::SumThenDivide
        );
        // The sum of 16-bit floats would be rounded, and may overflow, before the division.
        assert_eq!(
            r.comm.route(&c(DType::F16, Reduce::Avg)).unwrap(),
            Route::Fold
        );
        let rs = Collective::ReduceScatter {
            send: b.all(),
            recv: b.region(128 * u64::from(r.rank), 128),
            dtype: DType::F32,
            op: Reduce::Sum,
        };
        assert_eq!(r.comm.route(&rs).unwrap(), Route::AllReduceSlice);
        r.comm.explain().iter().map(|l| l.to_string()).collect()
    });
    let lines: &Vec<String> = &said[0];
    assert_eq!(said[0], said[1]);
    assert_eq!(lines.len(), 4);
    assert!(
        lines
            .iter()
            .any(|l| l.starts_with("all_reduce f32 avg") && l.ends_with("sum + divide"))
    );
}

#[test]
fn what_cannot_be_done_is_refused_before_anything_happens() {
    for (name, hidden) in masks() {
        ranks(&hidden, 2, |r| {
            let before = vector(DType::I32, r.rank, 16);
            let b = r.upload(&before);
            let members = [Reduce::Sum, Reduce::Avg].map(|op| Collective::AllReduce {
                buf: b.all(),
                dtype: DType::I32,
                op,
            });
            let e = r.comm.group(&r.s, &members, "grad").unwrap_err();
            assert_eq!(e.code, Code::Unsupported, "{name}: {e}");
            assert!(e.message.contains("integers"), "{name}: {e}");
            assert!(
                r.download(&b) == before,
                "{name}: the sum before it has run"
            );
            let e = r
                .comm
                .all_reduce(&r.s, b.all(), DType::F8E4M3, Reduce::Sum, "grad")
                .unwrap_err();
            assert!(e.message.contains("dequantise"), "{name}: {e}");
            let e = r
                .comm
                .all_gather(&r.s, b.all(), b.all(), DType::I32, "x")
                .unwrap_err();
            assert_eq!(e.code, Code::Invalid, "{name}: {e}");
            assert!(r.device.collectives().is_empty());
        });
    }
}

#[test]
fn a_group_mixes_native_composed_and_point_to_point() {
    let hide = [CollectiveCell {
        dtype: Some(DType::Bf16),
        ..CollectiveCell::kind(COLL_ALL_REDUCE)
    }];
    ranks(&hide, 3, |r| {
        let (me, n) = (r.rank, r.n);
        let wide = r.upload(&vector(DType::F32, me, 50));
        let narrow = r.upload(&vector(DType::Bf16, me, 50));
        let out = r.upload(&vector(DType::I32, me, 5));
        let from = r.poisoned(20);
        let sum = |buf, dtype| Collective::AllReduce {
            buf,
            dtype,
            op: Reduce::Sum,
        };
        let members = [
            sum(narrow.all(), DType::Bf16),
            Collective::Recv {
                buf: from.all(),
                dtype: DType::I32,
                peer: (me + n - 1) % n,
            },
            sum(wide.all(), DType::F32),
            Collective::Send {
                buf: out.all(),
                dtype: DType::I32,
                peer: (me + 1) % n,
            },
        ];
        r.comm.group(&r.s, &members, "grad").unwrap();
        for (b, d) in [(&wide, DType::F32), (&narrow, DType::Bf16)] {
            let want: Vec<u8> = (0..50).flat_map(|i| folded(d, Reduce::Sum, n, i)).collect();
            assert!(r.download(b) == want, "{d:?} on rank {me}");
        }
        assert!(r.download(&from) == vector(DType::I32, (me + n - 1) % n, 5));
    });
}

#[test]
fn the_steady_state_takes_no_device_memory() {
    for (name, hidden) in masks() {
        ranks(&hidden, 2, |r| {
            let b = r.upload(&vector(DType::Bf16, r.rank, 5003));
            let mut step = || {
                for op in [Reduce::Sum, Reduce::Avg, Reduce::PremulSum(0.5)] {
                    r.comm
                        .all_reduce(&r.s, b.all(), DType::Bf16, op, "grad")
                        .unwrap();
                }
                r.comm.barrier(&r.s).unwrap();
                r.s.sync(None).unwrap();
                r.device.device_allocs()
            };
            let first = step();
            for _ in 0..3 {
                assert_eq!(step(), first, "{name}");
            }
            assert_eq!(r.device.memory().tags["comm"].now, 0, "{name}");
        });
    }
}

#[test]
fn a_hidden_cell_is_answered_and_refused_as_if_it_had_never_been_there() {
    ranks(&[CollectiveCell::kind(COLL_ALL_REDUCE)], 1, |r| {
        let b = r.upload(&vector(DType::F32, 0, 4));
        let comm = crossweave_hal::CommOptions {
            name: "raw".into(),
            timeout: None,
        };
        let kv = std::sync::Arc::new(crossweave_hal::LocalKv::default());
        let mut raw = crossweave_hal::Communicator::new(&r.device, &Boot(kv), 0, 1, &comm).unwrap();
        let c = Collective::AllReduce {
            buf: b.all(),
            dtype: DType::F32,
            op: Reduce::Sum,
        };
        assert!(!raw.supports(&c).unwrap());
        let e = raw.group(&r.s, &[c], "grad").unwrap_err();
        assert_eq!(e.code, Code::Unsupported);
        assert!(e.message.contains("all_reduce f32"), "{e}");
        assert!(raw.supports(&Collective::Barrier).unwrap());
    });
}
