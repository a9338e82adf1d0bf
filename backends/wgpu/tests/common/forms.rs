//! The product and attention against the CPU back end, on few shapes: their kernels take a software driver long to compile.

use super::ops::bench::{Bench, Rng, Route, T, close, unit_of};
use crossweave_hal::DType;
use crossweave_hal::abi::op;

/// Runs on both and compares the operands that are written.
fn both(us: &Bench, cpu: &Bench, id: u32, params: &[u8], operands: &[T], written: usize) {
    let mut expected = operands.to_vec();
    cpu.run(Route::Device, id, params, &[], &mut expected, &[]);
    let want: Vec<_> = (0..written)
        .map(|i| {
            (
                i,
                expected[i].values(),
                2.0 * unit_of(operands[i].dtype) + 2e-5,
            )
        })
        .collect();
    let name = op::spec(id).expect("an op of the table").name;
    let mut got = operands.to_vec();
    us.run(Route::Device, id, params, &[], &mut got, &[]);
    for (i, values, bound) in want {
        let who = format!("{name} operand {i}");
        close(&who, operands[i].dtype, &got[i].values(), &values, bound);
    }
}

/// Products: turned operands, batches, storages, sums into what is there.
pub fn matmul(us: &Bench, cpu: &Bench, r: &mut Rng) {
    // (batch, [m, k, n], a turned, b turned, storage, storage of c, accumulates)
    for (batch, [m, k, n], ta, tb, t, out, add) in [
        (
            1u64,
            [40u64, 37, 45],
            false,
            false,
            DType::F32,
            DType::F32,
            false,
        ),
        (3, [7, 33, 41], true, true, DType::F32, DType::F32, true),
        (2, [65, 18, 70], false, true, DType::Bf16, DType::Bf16, true),
        (1, [65, 18, 70], true, false, DType::F16, DType::F32, false),
    ] {
        let mut make = |a: u64, b: u64, turned: bool| {
            let (row, col) = if turned { (1, a as i64) } else { (b as i64, 1) };
            let values = r.floats(batch * a * b, 1.0);
            T::strided(t, &[batch, a, b], &[(a * b) as i64, row, col], &values)
        };
        let (x, y) = (make(m, k, ta), make(k, n, tb));
        let c = T::random(r, out, &[batch, m, n], 1.0);
        let bias = T::random(r, t, &[n], 1.0);
        let p = op::MatmulParams {
            flags: if add { op::FLAG_ACCUM } else { 0 },
            alpha: 0.5,
            ..Default::default()
        };
        both(us, cpu, op::MATMUL, p.as_bytes(), &[c, x, y, bias], 1);
    }
}

/// Attention forward and backward: causal, groups of heads, a window, a head size that is no multiple of four.
pub fn attention(us: &Bench, cpu: &Bench, r: &mut Rng) {
    for (t, tq, tk, h, g, d, window) in [
        (DType::F32, 37u64, 37u64, 4u64, 2u64, 8u64, 0i64),
        (DType::Bf16, 4, 9, 2, 2, 5, 3),
    ] {
        let p = op::AttentionParams {
            flags: op::FLAG_CAUSAL,
            window,
            ..Default::default()
        };
        let (qs, ks) = ([2, tq, h, d], [2, tk, g, d]);
        let q = T::random(r, t, &qs, 1.0);
        let (k, v) = (T::random(r, t, &ks, 1.0), T::random(r, t, &ks, 1.0));
        let mut f = [
            T::poison(t, &qs),
            T::poison(DType::F32, &[2, h, tq]),
            q.clone(),
            k.clone(),
            v.clone(),
        ];
        both(us, cpu, op::ATTENTION_FWD, p.as_bytes(), &f, 2);
        cpu.run(
            Route::Device,
            op::ATTENTION_FWD,
            p.as_bytes(),
            &[],
            &mut f,
            &[],
        );
        let [o, lse, ..] = f;
        let (dq, dkv) = (T::poison(t, &qs), T::poison(t, &ks));
        let b = [
            dq,
            dkv.clone(),
            dkv,
            T::random(r, t, &qs, 1.0),
            o,
            q,
            k,
            v,
            lse,
        ];
        both(us, cpu, op::ATTENTION_BWD, p.as_bytes(), &b, 3);
    }
}

/// A product large enough for the widest form, with edges on all sides.
pub fn large(us: &Bench, cpu: &Bench, r: &mut Rng) {
    let [m, k, n] = [259u64, 261, 262];
    let (a, b) = (
        T::random(r, DType::F32, &[m, k], 1.0),
        T::random(r, DType::F32, &[k, n], 1.0),
    );
    let c = T::poison(DType::F32, &[m, n]);
    let p = op::MatmulParams::default();
    let operands = [c, a, b, T::absent()];
    both(us, cpu, op::MATMUL, p.as_bytes(), &operands, 1);
}
