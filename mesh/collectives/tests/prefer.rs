//! Every algorithm on real devices: results as the reference says, the same bits on every rank, inputs left alone.

use crate::common;
use common::*;
use crossweave_collectives::Prefer;
use crossweave_collectives::comm_plan::{Algorithm, Nodes};
use crossweave_hal::{DType, Reduce};

fn ways(n: u32) -> Vec<Prefer> {
    let mut all: Vec<Prefer> = Algorithm::ALL.into_iter().map(Prefer::Algorithm).collect();
    let odd: Vec<u32> = (0..n).filter(|r| r % 2 == 1).collect();
    let even: Vec<u32> = (0..n).filter(|r| r % 2 == 0).collect();
    let nodes = [even, odd].into_iter().filter(|v| !v.is_empty()).collect();
    all.push(Prefer::Nodes(Nodes::new(nodes).unwrap()));
    all
}

/// f32 value of element `i` of an encoded vector.
fn decode(dtype: DType, v: &[u8], i: usize) -> f64 {
    let b = dtype.bytes(1) as usize;
    let v = &v[i * b..][..b];
    match dtype {
        DType::F32 => f64::from(f32::from_le_bytes(v.try_into().unwrap())),
        DType::Bf16 => f64::from(half::bf16::from_le_bytes(v.try_into().unwrap())),
        DType::F16 => f64::from(half::f16::from_le_bytes(v.try_into().unwrap())),
        DType::I32 => f64::from(i32::from_le_bytes(v.try_into().unwrap())),
        _ => panic!("no test of {dtype:?}"),
    }
}

fn close(dtype: DType, op: Reduce, n: u32, first: u64, got: &[u8], exact: bool, at: &str) {
    let count = got.len() / dtype.bytes(1) as usize;
    for i in 0..count {
        let want = folded(dtype, op, n, first + i as u64);
        let (g, w) = (decode(dtype, got, i), decode(dtype, &want, 0));
        // Another order of the same sum: a few roundings of its largest partial sum, then one of the type.
        let size: f64 = (0..n).map(|r| value(r, first + i as u64).abs()).sum();
        let unit = match dtype {
            DType::Bf16 => 2f64.powi(-8),
            DType::F16 => 2f64.powi(-11),
            _ => 2f64.powi(-24),
        };
        let wide = match op {
            // n - 1 roundings on either side.
            Reduce::Prod => w.abs() * 2.0 * f64::from(n.max(2) - 1) * 2f64.powi(-24),
            _ => size * 4.0 * 2f64.powi(-22),
        };
        let allowed = if exact {
            0.0
        } else {
            wide + w.abs() * unit * 2.0
        };
        let same = g == w || (g.is_infinite() && w.is_infinite()) || (g - w).abs() <= allowed;
        assert!(same, "{at}: element {i} is {g}, expected {w} ± {allowed}");
    }
}

#[test]
fn reductions_by_every_algorithm() {
    let (_, bare) = masks().pop().unwrap();
    for n in [1u32, 2, 3, 5, 8] {
        for way in ways(n) {
            let ends = ranks(&bare, n, |r| {
                r.comm.prefer(way.clone());
                let mut bits = vec![];
                for dtype in [DType::F32, DType::Bf16, DType::F16, DType::I32] {
                    let mut ops = vec![Reduce::Sum, Reduce::Prod, Reduce::Min, Reduce::Max];
                    if dtype.is_float() {
                        ops.extend([Reduce::Avg, Reduce::PremulSum(factor(r.rank))]);
                    }
                    for op in ops {
                        for count in [1, 7, 130] {
                            bits.extend(reductions(r, &way, dtype, op, count));
                        }
                    }
                }
                bits
            });
            assert!(
                ends.windows(2).all(|w| w[0] == w[1]),
                "{way:?}, {n} ranks: bits differ"
            );
        }
    }
}

/// Gives the bits every rank must share.
fn reductions(r: &mut Rank, way: &Prefer, dtype: DType, op: Reduce, count: u64) -> Vec<u8> {
    let (me, n) = (r.rank, r.n);
    let exact = !dtype.is_float()
        || matches!(op, Reduce::Min | Reduce::Max)
        || *way == Prefer::Algorithm(Algorithm::Direct) && op == Reduce::Sum;
    let at = |what: &str| format!("{what} {dtype:?} {op:?}, {count} on rank {me} of {n}, {way:?}");
    let b = r.upload(&vector(dtype, me, count));
    r.comm.all_reduce(&r.s, b.all(), dtype, op, "grad").unwrap();
    let shared = r.download(&b);
    close(dtype, op, n, 0, &shared, exact, &at("all_reduce"));

    let root = count as u32 % n;
    let mine = vector(dtype, me, count);
    let b = r.upload(&mine);
    r.comm
        .reduce(&r.s, b.all(), dtype, op, root, "grad")
        .unwrap();
    match me == root {
        true => close(dtype, op, n, 0, &r.download(&b), exact, &at("reduce")),
        false => assert!(r.download(&b) == mine, "{}", at("off the root")),
    }

    let full = count * u64::from(n);
    let input = vector(dtype, me, full);
    let (b, out) = (r.upload(&input), r.poisoned(dtype.bytes(count)));
    r.comm
        .reduce_scatter(&r.s, b.all(), out.all(), dtype, op, "grad")
        .unwrap();
    let first = u64::from(me) * count;
    close(
        dtype,
        op,
        n,
        first,
        &r.download(&out),
        exact,
        &at("reduce_scatter"),
    );
    assert!(r.download(&b) == input, "{}", at("input of reduce_scatter"));
    shared
}

#[test]
fn movements_by_every_algorithm_are_exact() {
    let (_, bare) = masks().pop().unwrap();
    for n in [1u32, 2, 3, 5, 8] {
        for way in ways(n) {
            ranks(&bare, n, |r| {
                r.comm.prefer(way.clone());
                for dtype in [DType::F32, DType::Bf16, DType::F8E4M3] {
                    for count in [1, 7, 130] {
                        movements(r, &way, dtype, count);
                    }
                }
            });
        }
    }
}

fn movements(r: &mut Rank, way: &Prefer, dtype: DType, count: u64) {
    let (me, n) = (r.rank, r.n);
    let full = count * u64::from(n);
    for root in 0..n {
        let b = r.upload(&vector(dtype, me, count));
        r.comm
            .broadcast(&r.s, b.all(), dtype, root, "param")
            .unwrap();
        assert!(
            r.download(&b) == vector(dtype, root, count),
            "{way:?}: root {root}"
        );
    }
    let b = r.upload(&vector(dtype, me, count));
    let out = r.poisoned(dtype.bytes(full));
    r.comm
        .all_gather(&r.s, b.all(), out.all(), dtype, "param")
        .unwrap();
    let want: Vec<u8> = (0..n).flat_map(|k| vector(dtype, k, count)).collect();
    assert!(r.download(&out) == want, "{way:?}: all_gather");

    let b = r.upload(&vector(dtype, me, full));
    let out = r.poisoned(dtype.bytes(full));
    r.comm
        .all_to_all(&r.s, b.all(), out.all(), dtype, "param")
        .unwrap();
    let bytes = dtype.bytes(count) as usize;
    let piece = |k: u32| vector(dtype, k, full)[me as usize * bytes..][..bytes].to_vec();
    let want: Vec<u8> = (0..n).flat_map(piece).collect();
    assert!(r.download(&out) == want, "{way:?}: all_to_all");
}
