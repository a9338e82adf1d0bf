//! The kernels of `attention_ext_*` in emulation, against the CPU back end: what stands on top of attention, segments, parts of a row, and
//! results in f32 over 16-bit operands.

use crate::common::*;
use crossweave_abi::DType::{self, *};
use crossweave_abi::Layout;
use crossweave_abi::op::{self, AttentionExtParams, FLAG_CAUSAL, FLAG_IN_ROW, PhiloxDyn};
use crossweave_plugin::OpRequest;

/// A case of both directions: storage, rows, queries, keys, heads and key heads, size of heads.
#[derive(Clone, Default)]
struct Of {
    t: Option<DType>,
    wide: bool,
    sizes: [u64; 6],
    p: AttentionExtParams,
    bias: bool,
    sinks: bool,
    cu: [&'static [u32]; 2],
}

fn all() -> Vec<Of> {
    let causal = AttentionExtParams {
        flags: FLAG_CAUSAL,
        ..Default::default()
    };
    let of = |t, sizes, p| Of {
        t: Some(t),
        sizes,
        p,
        ..Of::default()
    };
    let on_top = |p: AttentionExtParams| AttentionExtParams {
        cap: 1.3,
        dropout: 0.3,
        ..p
    };
    let shifted = |shift, p: AttentionExtParams| AttentionExtParams { shift, ..p };
    let in_row = |p: AttentionExtParams| AttentionExtParams {
        flags: p.flags | FLAG_IN_ROW,
        ..p
    };
    let docs: [&[u32]; 2] = [&[0, 4, 4, 31, 50], &[0, 9, 13, 13, 41]];
    vec![
        of(F32, [2, 20, 37, 2, 1, 8], causal),
        Of {
            bias: true,
            sinks: true,
            ..of(F32, [1, 33, 50, 4, 2, 40], on_top(causal))
        },
        // Keys of the past with a window, and keys ahead of some queries and of all.
        of(
            F32,
            [1, 40, 40, 2, 1, 72],
            AttentionExtParams {
                window: 21,
                ..shifted(40, causal)
            },
        ),
        of(F32, [1, 40, 50, 2, 2, 24], shifted(-25, causal)),
        Of {
            sinks: true,
            ..of(F32, [1, 18, 20, 2, 1, 8], shifted(-20, causal))
        },
        of(
            F32,
            [1, 30, 44, 2, 1, 16],
            AttentionExtParams {
                window: 9,
                ..shifted(-4, Default::default())
            },
        ),
        // Some keys of a longer row, of which some heads are here.
        of(
            F32,
            [2, 21, 19, 2, 2, 8],
            AttentionExtParams {
                heads: 5,
                queries: 60,
                keys: 50,
                first_key: 13,
                ..shifted(6, on_top(causal))
            },
        ),
        // Segments of their own, and in the row.
        Of {
            cu: docs,
            bias: true,
            sinks: true,
            ..of(F32, [1, 55, 44, 2, 1, 136], shifted(2, on_top(causal)))
        },
        Of {
            cu: docs,
            bias: true,
            ..of(
                F32,
                [1, 55, 44, 4, 2, 8],
                in_row(shifted(13, on_top(causal))),
            )
        },
        Of {
            cu: [&[3, 20, 40, 0, 0, 40], &[]],
            ..of(F32, [2, 40, 40, 2, 1, 8], causal)
        },
        Of {
            wide: true,
            sinks: true,
            bias: true,
            ..of(Bf16, [1, 35, 40, 2, 1, 64], shifted(10, causal))
        },
        Of {
            wide: true,
            ..of(F16, [1, 35, 40, 4, 2, 20], shifted(-7, on_top(causal)))
        },
        of(Bf16, [1, 35, 40, 2, 1, 32], on_top(causal)),
        // On tensor cores where warps have 32 threads.
        of(Bf16, [2, 70, 70, 4, 2, 64], causal),
        Of {
            wide: true,
            ..of(F16, [1, 100, 150, 2, 1, 32], shifted(70, causal))
        },
        Of {
            wide: true,
            ..of(Bf16, [1, 150, 90, 2, 2, 128], shifted(-40, causal))
        },
        of(Bf16, [1, 64, 64, 2, 1, 64], shifted(-64, causal)),
        Of {
            wide: true,
            ..of(
                F16,
                [1, 90, 130, 2, 1, 96],
                AttentionExtParams {
                    window: 50,
                    ..shifted(33, causal)
                },
            )
        },
        of(
            Bf16,
            [1, 90, 130, 2, 1, 64],
            AttentionExtParams {
                window: 20,
                ..shifted(-60, Default::default())
            },
        ),
        Of {
            wide: true,
            cu: [&[0, 30, 30, 141], &[0, 0, 64, 100]],
            ..of(Bf16, [1, 150, 110, 4, 2, 64], in_row(shifted(17, causal)))
        },
        Of {
            cu: [
                &[10, 74, 128, 130, 0, 1, 1, 99],
                &[0, 5, 130, 140, 3, 9, 50, 139],
            ],
            ..of(
                F16,
                [2, 130, 140, 2, 1, 32],
                in_row(shifted(-5, Default::default())),
            )
        },
        of(F16, [1, 0, 5, 2, 1, 8], causal),
        of(F32, [1, 5, 0, 2, 1, 8], causal),
    ]
}

#[test]
fn attention_with_everything_on_top_and_parts_of_rows() {
    let mut rng = Rng(11);
    let mut cases = Vec::new();
    let key = PhiloxDyn {
        seed: 0x1234_5678_9ABC_DEF0,
        offset: 0xFFFF_FFF0,
        stream: 0x0FED_CBA9_8765_4321,
        ..Default::default()
    };
    for of in all() {
        let (t, [b, tq, tk, h, hkv, d]) = (of.t.expect("a storage"), of.sizes);
        let results = if of.wide { F32 } else { t };
        // Slices of one fused tensor.
        let mut head = |n: u64, h: u64| {
            let w = (3 * h * d) as i64;
            let stride = [n as i64 * w, w, d as i64, 1];
            Tensor::strided(t, &[b, n, h, d], &stride, || rng.unit() * 2.0)
        };
        let (q, k, v, go) = (head(tq, h), head(tk, hkv), head(tk, hkv), head(tq, h));
        let mut line = |on: bool, shape: &[u64]| match on {
            true => Tensor::random(&mut rng, F32, shape, 1.0),
            false => ABSENT,
        };
        let (bias, sinks) = (line(of.bias, &[h, tq + tk - 1]), line(of.sinks, &[h]));
        let dsinks = line(of.sinks, &[h]);
        let lengths = |cu: &[u32]| {
            let mut each = cu.iter().map(|x| f64::from(*x));
            let shape = [b, cu.len() as u64 / b];
            match cu.is_empty() {
                true => ABSENT,
                false => Tensor::new(I32, &shape, || each.next().expect("as many")),
            }
        };
        let tail = [bias, sinks, lengths(of.cu[0]), lengths(of.cu[1])];
        // Weights go through the storage where tensor cores take them.
        let flat = match t {
            F32 => 2e-5,
            Bf16 => 1.6e-2,
            _ => 2e-3,
        };
        let name = format!(
            "{t:?} {results:?} {:?} {:?} bias {} sinks {} {:?}",
            of.sizes, of.p, of.bias, of.sinks, of.cu
        );
        let case = |what: &str, id: u32, operands: Vec<Tensor>| Case {
            name: format!("{what} {name}"),
            id,
            params: of.p.as_bytes().to_vec(),
            dynamic: key.as_bytes().to_vec(),
            operands,
            alias: Vec::new(),
            relative: 4e-6,
            flat,
        };
        let lse = Tensor::poison(F32, &[b, h, tq]);
        let mut operands = vec![
            Tensor::poison(results, &[b, tq, h, d]),
            lse,
            q.clone(),
            k.clone(),
            v.clone(),
        ];
        operands.extend(tail.iter().cloned());
        let forward = case("forward", op::ATTENTION_EXT_FWD, operands);
        let done = oracle(&forward);
        cases.push(forward);
        let out = |n: u64, h: u64| Tensor::poison(results, &[b, n, h, d]);
        let mut operands = vec![
            out(tq, h),
            out(tk, hkv),
            out(tk, hkv),
            ABSENT,
            dsinks,
            go,
            done[0].clone(),
            q,
            k,
            v,
            done[1].clone(),
        ];
        operands.extend(tail);
        cases.push(case("backward", op::ATTENTION_EXT_BWD, operands));
    }
    let cores = |c: &&Case| {
        let layouts: Vec<Layout> = c.operands.iter().map(|t| t.layout).collect();
        let o = OpRequest::new(c.id, &layouts, &c.params, 0);
        let p = crossweave_kernels::prepare(&o, &facts(32)).expect("a launch");
        p.plan.tier == 2
    };
    assert_eq!(
        cases.iter().filter(cores).count(),
        16,
        "eight requests go to tensor cores, both ways"
    );
    run_all("ext", &cases);
}

/// Requests that are decomposed are refused by the kernels, and malformed requests are errors of the caller.
#[test]
fn what_is_not_computed_is_refused() {
    use crossweave_plugin::Code;
    let of = |t: DType, shape: &[u64]| Layout::contiguous(t, shape);
    let (x, lse, line) = (
        of(Bf16, &[1, 4, 2, 8]),
        of(F32, &[1, 2, 4]),
        of(F32, &[2, 7]),
    );
    let ask = |id: u32, p: AttentionExtParams, operands: &[Layout]| {
        let o = OpRequest::new(id, operands, p.as_bytes(), 0);
        crossweave_kernels::prepare(&o, &facts(32))
            .map(|_| ())
            .map_err(|e| e.code)
    };
    let none = AttentionExtParams::default();
    let fwd = [x, lse, x, x, x];
    let (f, b) = (op::ATTENTION_EXT_FWD, op::ATTENTION_EXT_BWD);
    assert_eq!(ask(f, none, &fwd), Ok(()));
    let mixed = [x, lse, x, of(F32, &[1, 4, 2, 8]), x];
    assert_eq!(ask(f, none, &mixed), Err(Code::Unsupported));
    let dbias = [x, x, x, line, Layout::ABSENT, x, x, x, x, x, lse, line];
    assert_eq!(ask(b, none, &dbias), Err(Code::Unsupported));
    let unknown = AttentionExtParams {
        flags: 1 << 30,
        ..none
    };
    assert_eq!(ask(f, unknown, &fwd), Err(Code::Unsupported));
    for p in [
        AttentionExtParams {
            shift: i64::MIN,
            ..none
        },
        AttentionExtParams {
            shift: (1 << 40) + 1,
            ..none
        },
        AttentionExtParams {
            first_key: 1,
            ..none
        },
        AttentionExtParams {
            first_key: -1,
            keys: 9,
            ..none
        },
        AttentionExtParams {
            first_key: 6,
            keys: 9,
            ..none
        },
        AttentionExtParams { keys: 3, ..none },
        AttentionExtParams {
            dropout: 1.0,
            ..none
        },
    ] {
        assert_eq!(ask(f, p, &fwd), Err(Code::Invalid), "{p:?}");
    }
}
