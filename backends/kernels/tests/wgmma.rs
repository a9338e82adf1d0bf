//! Attention by products of warpgroups, in an emulation that decodes descriptors, swizzles and fragments as the PTX ISA has them and is as
//! asynchronous as it may be (`cu/wgmma_host.h`): against the CPU back end, and with every rule of it broken in turn.

use crate::common;
use common::*;
use crossweave_abi::DType::{self, *};
use crossweave_abi::Layout;
use crossweave_abi::op::{self, *};
use crossweave_kernels::{Dialect, Facts, Family, Prepared, prepare};
use crossweave_plugin::OpRequest;
use std::sync::atomic::{AtomicUsize, Ordering};

fn hopper() -> Facts {
    Facts {
        arch: 90,
        shared: 227 << 10,
        wgmma: true,
        ..facts(32)
    }
}

/// Heads in rows of `w` elements, as slices of a wider projection are.
fn head(rng: &mut Rng, t: DType, [b, s, h, d]: [u64; 4], w: u64, most: f64) -> Tensor {
    let stride = [(s * w) as i64, w as i64, d as i64, 1];
    Tensor::strided(t, &[b, s, h, d], &stride, || most * rng.unit())
}

struct Shape {
    t: DType,
    b: u64,
    tq: u64,
    tk: u64,
    h: u64,
    hkv: u64,
    d: u64,
    causal: bool,
    window: i64,
    scale: f64,
    /// Elements from an aligned address.
    skew: usize,
}

const PLAIN: Shape = Shape {
    t: Bf16,
    b: 1,
    tq: 65,
    tk: 65,
    h: 1,
    hkv: 1,
    d: 128,
    causal: false,
    window: 0,
    scale: 0.0,
    skew: 0,
};

fn forward(rng: &mut Rng, s: &Shape) -> Case {
    let (t, d) = (s.t, s.d);
    let p = AttentionParams {
        flags: if s.causal { FLAG_CAUSAL } else { 0 },
        window: s.window,
        scale: s.scale,
        ..Default::default()
    };
    let q = head(rng, t, [s.b, s.tq, s.h, d], s.h * d + 8, 6.0).skewed(s.skew);
    let k = head(rng, t, [s.b, s.tk, s.hkv, d], 2 * s.hkv * d, 1.0).skewed(s.skew);
    let v = head(rng, t, [s.b, s.tk, s.hkv, d], 2 * s.hkv * d, 1.0).skewed(s.skew);
    Case {
        name: format!(
            "{t:?} {} {} {} {}/{} {d} causal {} window {} scale {} skew {}",
            s.b, s.tq, s.tk, s.h, s.hkv, s.causal, s.window, s.scale, s.skew
        ),
        id: op::ATTENTION_FWD,
        params: p.as_bytes().to_vec(),
        dynamic: Vec::new(),
        operands: vec![
            Tensor::poison(t, &[s.b, s.tq, s.h, d]).skewed(s.skew),
            Tensor::poison(F32, &[s.b, s.h, s.tq]),
            q,
            k,
            v,
        ],
        alias: Vec::new(),
        relative: 4e-6,
        // Probabilities are rounded to the storage, values are below 1: half a unit in the last place of all that a row sums.
        flat: if t == Bf16 { 2.5e-3 } else { 3e-4 },
    }
}

fn prepared(c: &Case, f: &Facts) -> Prepared {
    let layouts: Vec<Layout> = c.operands.iter().map(|t| t.layout).collect();
    prepare(&OpRequest::new(c.id, &layouts, &c.params, 0), f).unwrap()
}
fn family(c: &Case, f: &Facts) -> Family {
    prepared(c, f).launches[0].kernel.family
}

#[test]
fn attention() {
    let mut rng = Rng(11);
    let cases: Vec<Case> = [
        // One tile of keys; two; three, with the stages of both parities used again.
        PLAIN,
        Shape {
            t: F16,
            tq: 130,
            tk: 200,
            h: 2,
            ..PLAIN
        },
        Shape {
            tq: 300,
            tk: 300,
            causal: true,
            ..PLAIN
        },
        Shape {
            d: 64,
            b: 2,
            tq: 200,
            tk: 330,
            h: 2,
            causal: true,
            ..PLAIN
        },
        // More queries than keys: rows, and a whole block, that see nothing.
        Shape {
            t: F16,
            d: 64,
            tq: 300,
            tk: 40,
            causal: true,
            ..PLAIN
        },
        // Windows shorter and longer than a tile, with tiles that nobody sees left out.
        Shape {
            d: 64,
            tq: 400,
            tk: 400,
            causal: true,
            window: 50,
            ..PLAIN
        },
        Shape {
            t: F16,
            tq: 70,
            tk: 600,
            window: 300,
            ..PLAIN
        },
        Shape {
            tq: 129,
            tk: 129,
            window: i64::MAX,
            scale: 3.0,
            ..PLAIN
        },
        // Groups of heads; addresses that 16-byte accesses do not take, and outputs that pairs do not take.
        Shape {
            d: 64,
            tq: 66,
            tk: 130,
            h: 4,
            hkv: 2,
            skew: 3,
            ..PLAIN
        },
        Shape {
            t: F16,
            tq: 70,
            tk: 140,
            h: 2,
            causal: true,
            skew: 8,
            ..PLAIN
        },
    ]
    .iter()
    .map(|s| forward(&mut rng, s))
    .collect();
    for c in &cases {
        assert_eq!(family(c, &hopper()), Family::AttentionWgmma, "{}", c.name);
    }
    run_on("wgmma", &cases, &[hopper()]);
}

#[test]
fn what_it_does_not_take_goes_to_the_other_kernels() {
    let mut rng = Rng(12);
    let mut of = |s: Shape, f: &Facts| family(&forward(&mut rng, &s), f);
    let here = hopper();
    assert_eq!(of(PLAIN, &here), Family::AttentionWgmma);
    for f in [
        Facts {
            wgmma: false,
            ..here
        },
        Facts {
            shared: 160 << 10,
            ..here
        },
    ] {
        assert_eq!(of(PLAIN, &f), Family::AttentionMma);
    }
    for s in [
        Shape { d: 96, ..PLAIN },
        Shape { tq: 64, ..PLAIN },
        Shape {
            scale: -1.0,
            ..PLAIN
        },
    ] {
        assert_eq!(of(s, &here), Family::AttentionMma);
    }
    let wide = Shape { t: F32, ..PLAIN };
    assert_eq!(of(wide, &here), Family::Attention);
    let hip = Facts {
        dialect: Dialect::Hip,
        ..here
    };
    assert_eq!(of(PLAIN, &hip), Family::Attention);
}

/// Each of these makes a kernel that a device would compute wrongly with, now or then.
const BROKEN: &[(&str, &str, &str)] = &[
    ("no swizzle", "((c ^ r) & 7) * 8", "c % 8 * 8"),
    (
        "tiles at any address",
        "(1024 - cw_shared_at(mem) % 1024) % 1024 / 2",
        "0",
    ),
    (
        "eight rows on",
        "(u64)(1024 >> 4) << 32",
        "(u64)(2048 >> 4) << 32",
    ),
    (
        "sixteen columns on",
        "i % 4 * 32, 16), cw",
        "i % 4 * 16, 16), cw",
    ),
    (
        "the next panel",
        "i * 16 * 128, CW_KEYS * 128",
        "i * 16 * 128, 128",
    ),
    ("swizzle of 64 bytes", "(u64)1 << 62", "(u64)2 << 62"),
    ("fragments", "s[i * 8 + k * 2]", "s[i * 8 + (k ^ 3) * 2]"),
    (
        "no fence of the asynchronous proxy",
        "      cw_fence_async();\n",
        "",
    ),
    ("no barrier", "      CW_SYNC();\n", ""),
    ("copies are not awaited", "      cw_copy_wait<0>();\n", ""),
    (
        "scores are not awaited",
        "cw_wgmma_wait<1>()",
        "cw_wgmma_wait<2>()",
    ),
    (
        "values are not awaited",
        "cw_wgmma_wait<0>();\n      cw_hold(o);",
        "cw_wgmma_wait<1>();\n      cw_hold(o);",
    ),
    ("no wgmma.fence", "      cw_wgmma_fence();\n", ""),
    (
        "probabilities move while they are read",
        "      cw_wgmma_wait<0>();\n      cw_hold(o);",
        "      cw_pack<T>(p, s);\n      cw_wgmma_wait<0>();\n      cw_hold(o);",
    ),
    (
        "results are not taken",
        "      cw_wgmma_wait<0>();\n      cw_hold(o);\n",
        "      cw_wgmma_wait<0>();\n",
    ),
    (
        "keys are overwritten while they are read",
        "cw_tile<D, CW_KEYS>(sk + now",
        "cw_tile<D, CW_KEYS>(sk + next",
    ),
];

#[test]
fn the_emulation_sees_every_broken_rule() {
    let Some(cxx) = compiler() else {
        println!("skipped: no C++ compiler");
        return;
    };
    // Several tiles, so that every stage is used again, and two warpgroups.
    let shape = Shape {
        tq: 80,
        tk: 500,
        ..PLAIN
    };
    let c = forward(&mut Rng(13), &shape);
    let (p, want, next) = (prepared(&c, &hopper()), oracle(&c), AtomicUsize::new(0));
    let judge = |(what, from, to): &(&str, &str, &str)| -> Option<String> {
        let name = format!("wgmma-{}", what.replace(' ', "-"));
        let e = Emulation::altered(&cxx, &name, &[&p], |text| {
            assert_eq!(text.matches(from).count(), 1, "{what}: {from}");
            text.replace(from, to)
        });
        // In one order of threads or the other.
        [0, 7]
            .into_iter()
            .find_map(|seed| match e.attempt(&c, &p, 32, seed) {
                Ok(got) => difference(&c, &got, &want),
                Err(why) => Some(why),
            })
    };
    assert_eq!(
        judge(&(
            "as it is",
            "cw_fence_async();\n    CW_SYNC();\n    cw_tile",
            "cw_fence_async();\n    CW_SYNC();\n    cw_tile"
        )),
        None
    );
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while let Some(b) = BROKEN.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let seen = judge(b);
                    println!("{}: {}", b.0, seen.as_deref().unwrap_or("not seen"));
                    assert!(seen.is_some(), "{}: the emulation takes it for right", b.0);
                }
            });
        }
    });
}
