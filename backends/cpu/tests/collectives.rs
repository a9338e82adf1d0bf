//! Every collective against exact references in rank order, and what is refused.

use crate::common;
use common::*;
use crossweave_backend_cpu::{CpuBackend, CpuCollectives};
use crossweave_plugin::abi::*;
use crossweave_plugin::{Backend, Code, Collectives};
use half::{bf16, f16};
use std::time::Duration;

const RANKS: [usize; 5] = [1, 2, 3, 4, 8];
const COUNTS: [u64; 5] = [0, 1, 7, 1001, (1 << 16) + 1];

/// An element type of the tests: values that make a wrong order of sums visible.
trait Value: Copy + PartialEq + std::fmt::Debug + Send + Sync + 'static {
    const DTYPE: DType;
    fn make(seed: u64) -> Self;
    /// The exact reduction in rank order.
    fn fold(xs: &[Self], reduce: u32, scales: &[f64]) -> Self;
}

macro_rules! float_value {
    ($t:ty, $acc:ty, $dt:expr, $up:expr, $down:expr) => {
        impl Value for $t {
            const DTYPE: DType = $dt;
            fn make(seed: u64) -> Self {
                let big = [1.0, 1.0, 1e3, -1e3][(seed >> 8) as usize % 4];
                #[allow(clippy::redundant_closure_call)]
                ($down)((((seed % 2001) as f64 - 1000.0) / 1024.0 * big) as $acc)
            }
            #[allow(clippy::redundant_closure_call)]
            fn fold(xs: &[Self], reduce: u32, scales: &[f64]) -> Self {
                let up = |j: usize| -> $acc {
                    let x: $acc = ($up)(xs[j]);
                    if reduce == RED_PREMUL_SUM {
                        x * scales[j] as $acc
                    } else {
                        x
                    }
                };
                let mut a = up(0);
                for j in 1..xs.len() {
                    let b = up(j);
                    a = match reduce {
                        RED_PROD => a * b,
                        RED_MIN => a.min(b),
                        RED_MAX => a.max(b),
                        _ => a + b,
                    };
                }
                if reduce == RED_AVG {
                    a /= xs.len() as $acc;
                }
                ($down)(a)
            }
        }
    };
}
float_value!(f32, f32, DType::F32, |x| x, |a| a);
float_value!(f64, f64, DType::F64, |x| x, |a| a);
float_value!(bf16, f32, DType::Bf16, bf16::to_f32, bf16::from_f32);
float_value!(f16, f32, DType::F16, f16::to_f32, f16::from_f32);

macro_rules! int_value {
    ($($t:ty: $dt:expr),*) => {$(
        impl Value for $t {
            const DTYPE: DType = $dt;
            fn make(seed: u64) -> Self {
                seed as $t
            }
            fn fold(xs: &[Self], reduce: u32, _: &[f64]) -> Self {
                let f = |a: $t, b: $t| match reduce {
                    RED_PROD => a.wrapping_mul(b),
                    RED_MIN => a.min(b),
                    RED_MAX => a.max(b),
                    _ => a.wrapping_add(b),
                };
                xs[1..].iter().fold(xs[0], |a, b| f(a, *b))
            }
        }
    )*};
}
int_value!(i8: DType::I8, u8: DType::U8, i32: DType::I32, u32: DType::U32, i64: DType::I64, u64: DType::U64);

fn input<T: Value>(rank: usize, n: u64) -> Vec<T> {
    (0..n)
        .map(|i| {
            let x = ((i + 1) * 0x9e37_79b9_7f4a_7c15) ^ ((rank as u64 + 1) * 0xd1b5_4a32_d192_ed03);
            T::make((x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16)
        })
        .collect()
}

/// One kind on one type at every count, in place and out of place, at every root; all ranks at once.
fn check_kind<T: Value>(b: &CpuBackend, n: usize, kind: u32, reduces: &[u32]) {
    ranks(b, n, |r| {
        for &count in &COUNTS {
            for &reduce in reduces {
                for in_place in [false, true] {
                    one::<T>(r, kind, reduce, count, in_place);
                }
            }
        }
    });
}

fn one<T: Value>(r: &Rank<'_>, kind: u32, reduce: u32, count: u64, in_place: bool) {
    let (me, n) = (r.rank, r.n);
    let k = count as usize;
    let root = (k + reduce as usize) % n;
    let scales: Vec<f64> = (0..n).map(|j| 0.5 + j as f64 / 3.0).collect();
    let wide = matches!(kind, COLL_REDUCE_SCATTER | COLL_ALL_TO_ALL);
    let of = |j: usize| input::<T>(j, if wide { count * n as u64 } else { count });
    let inputs: Vec<Vec<T>> = (0..n).map(of).collect();
    let folded = |i: usize| -> T {
        let xs: Vec<T> = inputs.iter().map(|x| x[i]).collect();
        T::fold(&xs, reduce, &scales)
    };
    // `None`: this rank's output is not written.
    let want: Option<Vec<T>> = match kind {
        COLL_ALL_REDUCE => Some((0..k).map(folded).collect()),
        COLL_REDUCE => (me == root).then(|| (0..k).map(folded).collect()),
        COLL_REDUCE_SCATTER => Some((me * k..(me + 1) * k).map(folded).collect()),
        COLL_ALL_GATHER => Some(inputs.concat()),
        COLL_BROADCAST => Some(inputs[root].clone()),
        COLL_ALL_TO_ALL => Some(
            (0..n)
                .flat_map(|j| inputs[j][me * k..(me + 1) * k].to_vec())
                .collect(),
        ),
        _ => unreachable!(),
    };
    let sends = inputs[me].len();
    let gets = match kind {
        COLL_ALL_GATHER | COLL_ALL_TO_ALL => k * n,
        _ => k,
    };
    let poison = vec![T::make(77); gets];
    // In place: the smaller side lies inside the larger, at its own block.
    let (send, recv, buffers);
    if in_place {
        let all = sends.max(gets);
        let m = r.memory::<T>(all);
        let at = |len: usize| if len < all { me * len } else { 0 };
        r.write(&m, at(sends), &inputs[me]);
        buffers = vec![m];
        send = r.part::<T>(&buffers[0], at(sends), sends);
        recv = r.part::<T>(&buffers[0], at(gets), gets);
    } else {
        buffers = vec![r.memory::<T>(sends), r.memory::<T>(gets)];
        r.write(&buffers[0], 0, &inputs[me]);
        r.write(&buffers[1], 0, &poison);
        send = r.part::<T>(&buffers[0], 0, sends);
        recv = r.part::<T>(&buffers[1], 0, gets);
    }
    let mut c = coll(kind, T::DTYPE, count);
    c.reduce = reduce;
    c.root = root as i32;
    c.scale = scales[me];
    (c.send, c.recv) = (Some(send), Some(recv));
    r.launch(&[c]).unwrap();
    r.sync().unwrap();
    let what = format!(
        "kind {kind} {} reduce {reduce} count {count} ranks {n} rank {me} in place {in_place}",
        T::DTYPE.name()
    );
    let got = r.read::<T>(&recv);
    match want {
        Some(want) => assert!(same_bits(&got, &want), "{what}"),
        None if !in_place => assert!(same_bits(&got, &poison), "{what}: off-root output written"),
        None => {}
    }
    if !in_place {
        assert!(same_bits(&r.read::<T>(&send), &inputs[me]), "{what}: input");
    }
}

const MOVES: [u32; 3] = [COLL_ALL_GATHER, COLL_BROADCAST, COLL_ALL_TO_ALL];
const REDUCES: [u32; 3] = [COLL_ALL_REDUCE, COLL_REDUCE_SCATTER, COLL_REDUCE];

fn floats<T: Value>() {
    let b = backend();
    let all = [RED_SUM, RED_PROD, RED_MIN, RED_MAX, RED_AVG, RED_PREMUL_SUM];
    for n in RANKS {
        let some = if n == 8 { &all[..1] } else { &all[..] };
        for kind in REDUCES {
            check_kind::<T>(&b, n, kind, some);
        }
    }
}

fn integers<T: Value>() {
    let b = backend();
    for n in [1, 3, 4] {
        for kind in REDUCES {
            check_kind::<T>(&b, n, kind, &[RED_SUM, RED_PROD, RED_MIN, RED_MAX]);
        }
    }
}

#[test]
fn reductions_f32() {
    floats::<f32>();
}
#[test]
fn reductions_f64() {
    floats::<f64>();
}
#[test]
fn reductions_bf16() {
    floats::<bf16>();
}
#[test]
fn reductions_f16() {
    floats::<f16>();
}
#[test]
fn reductions_of_integers() {
    integers::<i8>();
    integers::<u8>();
    integers::<i32>();
    integers::<u32>();
    integers::<i64>();
    integers::<u64>();
}

#[test]
fn data_movement() {
    let b = backend();
    for n in RANKS {
        for kind in MOVES {
            check_kind::<f32>(&b, n, kind, &[0]);
            check_kind::<u8>(&b, n, kind, &[0]);
            check_kind::<bf16>(&b, n, kind, &[0]);
        }
    }
}

#[test]
fn large_counts_take_the_streaming_stores() {
    let b = backend();
    ranks(&b, 2, |r| {
        for kind in [COLL_ALL_REDUCE, COLL_ALL_GATHER, COLL_REDUCE_SCATTER] {
            one::<f32>(r, kind, RED_SUM, (5 << 20) + 3, false);
        }
        one::<bf16>(r, COLL_ALL_REDUCE, RED_AVG, (5 << 20) + 1, true);
    });
    ranks(&b, 4, |r| {
        one::<f32>(r, COLL_ALL_REDUCE, RED_AVG, (5 << 18) + 9, false);
        one::<bf16>(r, COLL_REDUCE_SCATTER, RED_SUM, (5 << 18) + 17, false);
    });
}

/// Whole vectors past the caches need aligned outputs; one element off, the sums are the same.
#[test]
fn large_sums_into_unaligned_outputs() {
    let b = backend();
    let count = 5 << 20;
    ranks(&b, 2, |r| {
        let inputs = [0, 1].map(|rank| input::<f32>(rank, count as u64));
        let (send, recv) = (r.memory::<f32>(count + 1), r.memory::<f32>(count + 1));
        r.write(&send, 1, &inputs[r.rank]);
        r.write(&recv, 0, &[7f32]);
        let mut c = coll(COLL_ALL_REDUCE, DType::F32, count as u64);
        c.reduce = RED_SUM;
        c.send = Some(r.part::<f32>(&send, 1, count));
        c.recv = Some(r.part::<f32>(&recv, 1, count));
        r.launch(&[c]).unwrap();
        r.sync().unwrap();
        let want: Vec<f32> = inputs[0]
            .iter()
            .zip(&inputs[1])
            .map(|(a, b)| a + b)
            .collect();
        let got = r.read::<f32>(&r.part::<f32>(&recv, 0, count + 1));
        assert!(same_bits(&got[1..], &want) && got[0] == 7.0);
    });
}

#[test]
fn nan_propagates_through_every_reduction() {
    let b = backend();
    ranks(&b, 3, |r| {
        for reduce in [RED_SUM, RED_PROD, RED_MIN, RED_MAX, RED_AVG] {
            for sick in 0..3 {
                for count in [3usize, 5000] {
                    let x = if r.rank == sick { f32::NAN } else { 1.0 };
                    let m = r.memory::<f32>(count);
                    r.write(&m, 0, &vec![x; count]);
                    let mut c = coll(COLL_ALL_REDUCE, DType::F32, count as u64);
                    c.reduce = reduce;
                    c.recv = Some(r.part::<f32>(&m, 0, count));
                    c.send = c.recv;
                    r.launch(&[c]).unwrap();
                    r.sync().unwrap();
                    let got = r.read::<f32>(&r.part::<f32>(&m, 0, count));
                    assert!(
                        got.iter().all(|x| x.is_nan()),
                        "reduce {reduce} rank {sick}"
                    );
                }
            }
        }
    });
}

#[test]
fn a_factor_in_memory_is_read_in_stream_order() {
    let b = backend();
    ranks(&b, 2, |r| {
        let (x, f) = (r.memory::<f32>(4), r.memory::<f32>(1));
        r.write(&x, 0, &[1.0f32, 2.0, 3.0, 4.0]);
        r.write(&f, 0, &[0.0f32]);
        let gate = r.stall();
        r.b.fill(
            &r.stream,
            r.part::<f32>(&f, 0, 1),
            u64::from(2.5f32.to_bits()),
            4,
        )
        .unwrap();
        let mut c = coll(COLL_ALL_REDUCE, DType::F32, 4);
        c.reduce = RED_PREMUL_SUM;
        c.scale_dev = Some(r.part::<f32>(&f, 0, 1));
        c.recv = Some(r.part::<f32>(&x, 0, 4));
        r.launch(&[c]).unwrap();
        drop(gate);
        r.sync().unwrap();
        let got = r.read::<f32>(&r.part::<f32>(&x, 0, 4));
        assert_eq!(got, [5.0, 10.0, 15.0, 20.0]);
    });
}

/// How many elements rank `from` has for rank `to`; some pairs exchange nothing.
fn uneven(from: usize, to: usize) -> u64 {
    [0, 5, 1, 4097][(from * 3 + to) % 4]
}

#[test]
fn uneven_exchanges() {
    let b = backend();
    for n in RANKS {
        ranks(&b, n, |r| {
            let me = r.rank;
            let value =
                |from: usize, to: usize, i: u64| (from * 1000 + to) as u32 ^ (i as u32) << 12;
            let row = |f: &dyn Fn(usize) -> u64| (0..n).map(f).collect::<Vec<u64>>();
            let (sc, rc) = (row(&|j| uneven(me, j)), row(&|j| uneven(j, me)));
            let gaps = |c: &[u64], gap: u64| {
                let mut at = 0;
                c.iter()
                    .map(|c| {
                        let a = at;
                        at += c + gap;
                        a
                    })
                    .collect::<Vec<u64>>()
            };
            let (so, ro) = (gaps(&sc, 3), gaps(&rc, 2));
            let (s_len, r_len) = (so[n - 1] + sc[n - 1], ro[n - 1] + rc[n - 1]);
            let (s, d) = (
                r.memory::<u32>(s_len as usize),
                r.memory::<u32>(r_len as usize),
            );
            for j in 0..n {
                let part: Vec<u32> = (0..sc[j]).map(|i| value(me, j, i)).collect();
                r.write(&s, so[j] as usize, &part);
            }
            let mut c = coll(COLL_ALL_TO_ALL_V, DType::U32, 0);
            (c.send_counts, c.send_offsets) = (&sc, &so);
            (c.recv_counts, c.recv_offsets) = (&rc, &ro);
            c.send = Some(r.part::<u32>(&s, 0, s_len as usize));
            c.recv = Some(r.part::<u32>(&d, 0, r_len as usize));
            r.launch(&[c]).unwrap();
            r.sync().unwrap();
            for j in 0..n {
                let got = r.read::<u32>(&r.part::<u32>(&d, ro[j] as usize, rc[j] as usize));
                let want: Vec<u32> = (0..rc[j]).map(|i| value(j, me, i)).collect();
                assert_eq!(got, want, "rank {me} from {j}");
            }
            // All-gather-v, in place and dense.
            let counts = row(&|j| uneven(j, j));
            let at = gaps(&counts, 0);
            let total: u64 = counts.iter().sum();
            let g = r.memory::<u32>(total as usize);
            let mine: Vec<u32> = (0..counts[me]).map(|i| value(me, 99, i)).collect();
            r.write(&g, at[me] as usize, &mine);
            let mut c = coll(COLL_ALL_GATHER_V, DType::U32, counts[me]);
            c.recv_counts = &counts;
            c.send = Some(r.part::<u32>(&g, at[me] as usize, counts[me] as usize));
            c.recv = Some(r.part::<u32>(&g, 0, total as usize));
            r.launch(&[c]).unwrap();
            r.sync().unwrap();
            let got = r.read::<u32>(&r.part::<u32>(&g, 0, total as usize));
            let want: Vec<u32> = (0..n)
                .flat_map(|j| (0..counts[j]).map(move |i| value(j, 99, i)))
                .collect();
            assert_eq!(got, want);
        });
    }
}

#[test]
fn crossing_sends_and_receives_and_mixed_groups() {
    let b = backend();
    for n in [1, 2, 4] {
        ranks(&b, n, |r| {
            let me = r.rank;
            for count in [0usize, 1, 300, 100_000] {
                // Everyone sends to everyone (itself too), receives first in the list, and sums in the middle.
                let out = r.memory::<u32>(count * n);
                let back = r.memory::<u32>(count * n);
                let sum = r.memory::<f32>(600);
                r.write(&sum, 0, &vec![me as f32; 600]);
                for to in 0..n {
                    r.write(&out, to * count, &vec![(me * 10 + to) as u32; count]);
                }
                let mut group = Vec::new();
                for j in (0..n).rev() {
                    let mut c = coll(COLL_RECV, DType::U32, count as u64);
                    c.peer = j as i32;
                    c.recv = Some(r.part::<u32>(&back, j * count, count));
                    group.push(c);
                }
                let mut c = coll(COLL_ALL_REDUCE, DType::F32, 600);
                c.reduce = RED_SUM;
                c.recv = Some(r.part::<f32>(&sum, 0, 600));
                group.push(c);
                for j in 0..n {
                    let mut c = coll(COLL_SEND, DType::U32, count as u64);
                    c.peer = j as i32;
                    c.send = Some(r.part::<u32>(&out, j * count, count));
                    group.push(c);
                }
                r.launch(&group).unwrap();
                r.sync().unwrap();
                let got = r.read::<u32>(&r.part::<u32>(&back, 0, count * n));
                let want: Vec<u32> = (0..n)
                    .flat_map(|j| vec![(j * 10 + me) as u32; count])
                    .collect();
                assert_eq!(got, want);
                let total = (0..n).sum::<usize>() as f32;
                assert_eq!(
                    r.read::<f32>(&r.part::<f32>(&sum, 0, 600)),
                    vec![total; 600]
                );
            }
        });
    }
}

#[test]
fn a_pipeline_of_sends_leaves_other_ranks_alone() {
    let b = backend();
    ranks(&b, 4, |r| {
        let m = r.memory::<u64>(1);
        r.write(&m, 0, &[1u64]);
        let whole = r.part::<u64>(&m, 0, 1);
        if r.rank > 0 {
            let mut c = coll(COLL_RECV, DType::U64, 1);
            (c.peer, c.recv) = (r.rank as i32 - 1, Some(whole));
            r.launch(&[c]).unwrap();
            r.sync().unwrap();
            let x = r.read::<u64>(&whole)[0];
            r.write(&m, 0, &[x * 10 + r.rank as u64]);
        }
        if r.rank < 3 {
            let mut c = coll(COLL_SEND, DType::U64, 1);
            (c.peer, c.send) = (r.rank as i32 + 1, Some(whole));
            r.launch(&[c]).unwrap();
            r.sync().unwrap();
        } else {
            assert_eq!(r.read::<u64>(&whole)[0], 1123);
        }
    });
}

#[test]
fn collectives_obey_stream_order_behind_a_stalled_producer() {
    let b = backend();
    for n in [2, 3] {
        ranks(&b, n, |r| {
            let m = r.memory::<f32>(5000);
            r.write(&m, 0, &vec![0f32; 5000]);
            let all = r.part::<f32>(&m, 0, 5000);
            for round in 1..30u32 {
                let gate = (round as usize % n == r.rank).then(|| r.stall());
                let one = (round as f32).to_bits();
                r.b.fill(&r.stream, all, u64::from(one), 4).unwrap();
                let mut c = coll(COLL_ALL_REDUCE, DType::F32, 5000);
                (c.reduce, c.recv) = (RED_SUM, Some(all));
                r.launch(&[c]).unwrap();
                let copy = r.memory::<f32>(5000);
                r.b.copy(&r.stream, r.part::<f32>(&copy, 0, 5000), all)
                    .unwrap();
                drop(gate);
                r.sync().unwrap();
                let want = vec![(round as usize * n) as f32; 5000];
                assert_eq!(r.read::<f32>(&r.part::<f32>(&copy, 0, 5000)), want);
            }
        });
    }
}

#[test]
fn two_communicators_on_two_streams_do_not_wait_for_each_other() {
    let b = backend();
    let other = CpuCollectives::unique_id(&b, &b.open(0).unwrap()).unwrap();
    ranks(&b, 2, |r| {
        let cfg = config(r.rank, 2, "second", Duration::from_secs(60));
        let second = CpuCollectives::init(r.b, &r.d, &other, cfg).unwrap();
        let stream = r.b.stream(&r.d, 0).unwrap();
        let (x, y) = (r.memory::<f32>(2000), r.memory::<f32>(2000));
        let make = |m| {
            let mut c = coll(COLL_ALL_REDUCE, DType::F32, 2000);
            (c.reduce, c.recv) = (RED_MAX, Some(r.part::<f32>(m, 0, 2000)));
            c
        };
        for i in 0..200 {
            // The ranks take the two communicators in opposite order.
            if (i + r.rank) % 2 == 0 {
                r.launch(&[make(&x)]).unwrap();
                CpuCollectives::launch(r.b, &second, &stream, &[make(&y)]).unwrap();
            } else {
                CpuCollectives::launch(r.b, &second, &stream, &[make(&y)]).unwrap();
                r.launch(&[make(&x)]).unwrap();
            }
        }
        r.sync().unwrap();
        r.b.stream_sync(&stream, Some(Duration::from_secs(60)))
            .unwrap();
    });
}

#[test]
fn one_communicator_on_two_streams_keeps_its_order() {
    let b = backend();
    ranks(&b, 2, |r| {
        let stream = r.b.stream(&r.d, 0).unwrap();
        let m = r.memory::<u32>(100);
        r.write(&m, 0, &vec![r.rank as u32; 100]);
        for i in 0..100 {
            let mut c = coll(COLL_BARRIER, DType::U8, 0);
            if i % 3 == 0 {
                c = coll(COLL_BROADCAST, DType::U32, 100);
                (c.root, c.recv) = (1, Some(r.part::<u32>(&m, 0, 100)));
            }
            let on = if i % 2 == 0 { &r.stream } else { &stream };
            CpuCollectives::launch(r.b, &r.comm, on, &[c]).unwrap();
        }
        r.b.stream_sync(&stream, Some(Duration::from_secs(60)))
            .unwrap();
        r.sync().unwrap();
        assert_eq!(r.read::<u32>(&r.part::<u32>(&m, 0, 100)), vec![1; 100]);
    });
}

#[test]
fn split_by_colour_and_key() {
    let b = backend();
    ranks(&b, 5, |r| {
        // Colours 0 and 1 by parity, rank 4 in none; keys reverse the order.
        let color = (r.rank < 4).then_some((r.rank % 2) as i32);
        let (child, n) = (1 - (r.rank / 2).min(1), 2);
        let cfg = config(child, n, "", Duration::from_secs(60));
        let made = CpuCollectives::split(r.b, &r.comm, color, -(r.rank as i32), cfg).unwrap();
        assert_eq!(made.is_some(), r.rank < 4);
        if let Some(c) = made {
            let m = r.memory::<u32>(2);
            r.write(&m, child, &[r.rank as u32]);
            let mut g = coll(COLL_ALL_GATHER, DType::U32, 1);
            g.send = Some(r.part::<u32>(&m, child, 1));
            g.recv = Some(r.part::<u32>(&m, 0, 2));
            CpuCollectives::launch(r.b, &c, &r.stream, &[g]).unwrap();
            r.sync().unwrap();
            let p = r.rank as u32 % 2;
            assert_eq!(r.read::<u32>(&r.part::<u32>(&m, 0, 2)), [p + 2, p]);
        }
        let cfg = config(r.rank, 5, "", Duration::from_secs(60));
        assert!(
            CpuCollectives::split(r.b, &r.comm, Some(3), 0, cfg)
                .unwrap()
                .is_some()
        );
    });
}

#[test]
fn what_is_refused() {
    let b = backend();
    ranks(&b, 2, |r| {
        let m = r.memory::<f32>(8);
        let all = r.part::<f32>(&m, 0, 8);
        let code =
            |change: &dyn Fn(&mut crossweave_plugin::Coll<'_, crossweave_backend_cpu::Mem>)| {
                let mut c = coll(COLL_ALL_REDUCE, DType::F32, 8);
                (c.reduce, c.recv) = (RED_SUM, Some(all));
                change(&mut c);
                r.launch(&[c]).unwrap_err().code
            };
        assert_eq!(code(&|c| c.count = 9), Code::Invalid);
        assert_eq!(code(&|c| c.count = u64::MAX), Code::Invalid);
        assert_eq!(code(&|c| c.reduce = 99), Code::Unsupported);
        assert_eq!(code(&|c| c.kind = 99), Code::Unsupported);
        assert_eq!(code(&|c| c.flags = 8), Code::Unsupported);
        assert_eq!(
            code(&|c| (c.dtype, c.reduce) = (DType::I32, RED_AVG)),
            Code::Unsupported
        );
        assert_eq!(code(&|c| c.dtype = DType::F8E4M3), Code::Unsupported);
        assert_eq!(
            code(&|c| (c.kind, c.root) = (COLL_BROADCAST, 2)),
            Code::Invalid
        );
        assert_eq!(code(&|c| (c.kind, c.peer) = (COLL_SEND, -1)), Code::Invalid);
        assert_eq!(
            code(&|c| (c.kind, c.count) = (COLL_REDUCE_SCATTER, 8)),
            Code::Invalid
        );
        assert_eq!(code(&|c| c.kind = COLL_ALL_TO_ALL_V), Code::Invalid);
        // A refused member refuses its group, and nothing was queued: the next collective is the first.
        let mut good = coll(COLL_ALL_REDUCE, DType::F32, 8);
        (good.reduce, good.recv) = (RED_SUM, Some(all));
        let mut bad = coll(COLL_ALL_REDUCE, DType::F32, 9);
        (bad.reduce, bad.recv) = (RED_SUM, Some(all));
        if r.rank == 0 {
            assert!(r.launch(&[good, bad]).is_err());
        }
        r.launch(&[coll(COLL_BARRIER, DType::U8, 0)]).unwrap();
        r.sync().unwrap();
    });
    let d = b.open(0).unwrap();
    let id = CpuCollectives::unique_id(&b, &d).unwrap();
    assert_ne!(id, CpuCollectives::unique_id(&b, &d).unwrap());
    let init =
        |rank, n| CpuCollectives::init(&b, &d, &id, config(rank, n, "x", Duration::from_secs(1)));
    let _one = init(0, 2).unwrap();
    assert_eq!(init(0, 2).err().unwrap().code, Code::Invalid);
    assert_eq!(init(1, 3).err().unwrap().code, Code::Invalid);
    let mut foreign = id.clone();
    foreign[8] ^= 1;
    let e = CpuCollectives::init(&b, &d, &foreign, config(0, 1, "x", Duration::from_secs(1)));
    assert_eq!(e.err().unwrap().code, Code::Unsupported);
}

#[test]
fn queries_agree_with_launches() {
    let b = backend();
    ranks(&b, 1, |r| {
        for kind in 0..13 {
            for dtype in DType::ALL {
                for reduce in 0..8 {
                    let shape = crossweave_plugin::CollShape {
                        kind,
                        dtype,
                        reduce,
                        count: 2,
                        flags: 0,
                        in_place: false,
                    };
                    let says = CpuCollectives::supports(r.b, &r.comm, &shape).is_ok();
                    let (m, o) = (r.memory::<u64>(4), r.memory::<u64>(4));
                    let mut c = coll(kind, dtype, 2);
                    c.reduce = reduce;
                    c.send = Some(r.part::<u64>(&m, 0, 4));
                    c.recv = Some(r.part::<u64>(&o, 0, 4));
                    let counts = [2u64];
                    (c.send_counts, c.recv_counts) = (&counts, &counts);
                    // A send to oneself needs its receive in the group.
                    let group = match kind {
                        COLL_SEND | COLL_RECV => {
                            let mut twin = c_like(&c);
                            twin.kind = COLL_SEND + COLL_RECV - kind;
                            vec![c, twin]
                        }
                        _ => vec![c],
                    };
                    let does = r.launch(&group).is_ok();
                    r.sync().unwrap();
                    assert_eq!(says, does, "kind {kind} {} reduce {reduce}", dtype.name());
                }
            }
        }
    });
}
