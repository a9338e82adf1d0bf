//! `philox` and `dropout`: the generator of the op table, word for word. The known answers of the paper's authors pin the reference itself.

use super::bound::num as exact;
use super::cell::{About, Cell, FLOATS, Gen};
use super::num;
use super::tensor::{T, count};
use super::trial::{Arg, Trial, Want};
use crossweave_abi::DType;
use crossweave_abi::op::{self, DropoutParams, PhiloxDyn, PhiloxParams, philox};

/// Philox4x32-10.
pub fn block(mut c: [u32; 4], mut k: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let p = u64::from(c[0]) * 0xD251_1F53;
        let q = u64::from(c[2]) * 0xCD9E_8D57;
        c = [
            (q >> 32) as u32 ^ c[1] ^ k[0],
            q as u32,
            (p >> 32) as u32 ^ c[3] ^ k[1],
            p as u32,
        ];
        k = [
            k[0].wrapping_add(0x9E37_79B9),
            k[1].wrapping_add(0xBB67_AE85),
        ];
    }
    c
}

/// Word of element `e`.
fn word(d: &PhiloxDyn, e: usize) -> u32 {
    let c = d.offset.wrapping_add(e as u64 / 4);
    let counter = [
        c as u32,
        (c >> 32) as u32,
        d.stream as u32,
        (d.stream >> 32) as u32,
    ];
    block(counter, [d.seed as u32, (d.seed >> 32) as u32])[e % 4]
}

const UNIT: f64 = 1.0 / 16_777_216.0;

/// Standard normal of element `e`, in f32.
fn normal(d: &PhiloxDyn, e: usize) -> f32 {
    let u1 = (f64::from(word(d, e & !1) >> 8) + 1.0) * UNIT;
    let u2 = f64::from(word(d, e | 1) >> 8) * UNIT;
    let r = (-2.0 * u1.ln()).sqrt();
    let a = 2.0 * std::f64::consts::PI * u2;
    (if e.is_multiple_of(2) {
        r * a.cos()
    } else {
        r * a.sin()
    }) as f32
}

/// Every cell of these ops.
pub fn cells() -> Vec<Cell> {
    let mut all = vec![
        Cell::new(op::PHILOX, "bits.u32", |g| {
            stream(g, philox::BITS, DType::U32)
        })
        .of(&[DType::U32]),
    ];
    for t in FLOATS {
        let name = |k: &str| format!("{k}.{}", t.name());
        all.push(
            Cell::new(op::PHILOX, name("uniform"), move |g| {
                stream(g, philox::UNIFORM, t)
            })
            .of(&[t]),
        );
        all.push(
            Cell::new(op::PHILOX, name("normal"), move |g| {
                stream(g, philox::NORMAL, t)
            })
            .of(&[t]),
        );
        all.push(Cell::new(op::DROPOUT, t.name(), move |g| dropout(g, t)));
    }
    all
}

/// Seeds, offsets and streams whose halves all matter.
fn dynamics() -> Vec<PhiloxDyn> {
    let d = |seed, offset, stream| PhiloxDyn {
        seed,
        offset,
        stream,
        ..Default::default()
    };
    vec![
        d(0, 0, 0),
        d(0x1234_5678_9ABC_DEF0, 0xFFFF_FFF0, 0x0FED_CBA9_8765_4321),
        d(u64::MAX, 7, 1),
        d(42, 1 << 32, 1 << 32),
        d(42 << 32, u64::MAX - 3, 5),
    ]
}

/// A seed, an offset and a stream for each of many launches.
fn in_flight(g: &mut Gen) -> Vec<PhiloxDyn> {
    let of = |i: u64| PhiloxDyn {
        seed: 0x1234_5678_9ABC_DEF0 + i,
        offset: 3 * i,
        stream: i << 30,
        ..Default::default()
    };
    (0..g.at_once() as u64).map(of).collect()
}

fn stream(g: &mut Gen, kind: u32, t: DType) -> Vec<Trial> {
    if g.about == About::Models {
        // Uniform bounds and deviations of initial weights, and such as need all of their bits.
        let pairs = match kind {
            philox::NORMAL => [(0.0, 0.02), (0.1, 0.006_25), (-0.333_333_3, 0.123_456_79)],
            _ => [
                (-0.3, 0.7),
                (-0.088_388_35, 0.088_388_35),
                (0.012_345_679, 1.234_567_9),
            ],
        };
        let each = pairs
            .into_iter()
            .flat_map(|(lo, hi)| stream_of(g, kind, t, lo, hi));
        return each.collect();
    }
    match kind {
        philox::NORMAL => stream_of(g, kind, t, 0.25, 0.5),
        _ => stream_of(g, kind, t, -0.5, 1.5),
    }
}

/// Numbers between two bounds, or of a mean and a deviation.
fn stream_of(g: &mut Gen, kind: u32, t: DType, lo: f32, hi: f32) -> Vec<Trial> {
    let want = |d: &PhiloxDyn, n: usize| {
        let bits = (0..n).map(|e| match kind {
            philox::BITS => u64::from(word(d, e)),
            philox::UNIFORM => {
                let u = (word(d, e) >> 8) as f32 * UNIT as f32;
                num::encode(t, f64::from(lo + (hi - lo) * u))
            }
            _ => num::encode(t, f64::from(lo + hi * normal(d, e))),
        });
        Want::Exact(bits.collect())
    };
    let p = PhiloxParams {
        kind,
        lo: f64::from(lo),
        hi: f64::from(hi),
        ..Default::default()
    };
    let mut all = Vec::new();
    let mut shapes: Vec<Vec<usize>> = [0, 1, 2, 3, 5, 8, 33, 257, 1000].map(|n| vec![n]).to_vec();
    shapes.push(vec![5, 7, 3]);
    if g.sizes() {
        let n = [g.beyond(), g.grid()].concat();
        shapes = n.iter().flat_map(|n| [vec![*n], vec![3, *n]]).collect();
        let longs = g.longs().into_iter();
        shapes.extend(longs.flat_map(|n| [vec![n, 2, 3], vec![2, n, 3]]));
    }
    match g.about {
        About::Models => shapes = vec![vec![257]],
        About::Launches => shapes = vec![vec![5]],
        _ => {}
    }
    if g.big() && g.about == About::Usual {
        shapes.push(vec![(1 << 18) + 3]);
    }
    for s in shapes {
        let n = count(&s);
        // One prepare, a launch for each seed: the seed is not a part of what is prepared.
        let mut launches = dynamics();
        if g.about == About::Launches {
            launches = in_flight(g);
        } else if n != 257 {
            launches = vec![launches[n % 5]];
        }
        let mut trial: Option<Trial> = None;
        for d in launches {
            let w = vec![(0, want(&d, n))];
            trial = Some(match trial {
                None => Trial::new(
                    format!("{s:?}"),
                    p.as_bytes(),
                    vec![T::poison(t, &s).into()],
                    w,
                )
                .given(d.as_bytes()),
                Some(t) => t.then(d.as_bytes(), w),
            });
        }
        all.extend(trial);
    }
    all
}

fn dropout(g: &mut Gen, t: DType) -> Vec<Trial> {
    let want = |d: &PhiloxDyn, p: f64, x: &T, r: Option<&T>| {
        let (x, r) = (x.values(), r.map(T::values));
        let v = (0..x.len()).map(|e| {
            let keep = f64::from(word(d, e) >> 8) * UNIT >= p;
            let y = if keep {
                exact(x[e]) / exact((1.0 - p) as f32 as f64)
            } else {
                exact(0.0)
            };
            match &r {
                Some(r) => y + exact(r[e]),
                None => y,
            }
        });
        Want::Fused(v.collect())
    };
    let mut all = Vec::new();
    let d = dynamics();
    if g.about == About::Launches {
        let params = DropoutParams {
            p: 0.4,
            ..Default::default()
        };
        let (x, given) = (g.real(t, &[9], 4.0), in_flight(g));
        let w = |d: &PhiloxDyn| vec![(0, want(d, 0.4, &x, None))];
        let args = vec![T::poison(t, &[9]).into(), x.clone().into()];
        let what = format!("{} launches in flight", given.len());
        let first = Trial::new(what, params.as_bytes(), args, w(&given[0]));
        let first = first.given(given[0].as_bytes());
        let rest = given[1..].iter();
        all.push(rest.fold(first, |t, d| t.then(d.as_bytes(), w(d))));
        return all;
    }
    if g.about == About::Pairs {
        for [shape, p, residual, given, gaps] in g.covering([3, 4, 2, 5, 2]) {
            let s = [&[257][..], &[9, 33], &[5, 7, 3]][shape];
            let p = [0.1, 0.5, 1.0 / 3.0, 0.0][p];
            let params = DropoutParams {
                p,
                ..Default::default()
            };
            let (x, given) = (g.real(t, s, 4.0), &d[given]);
            let r = (residual == 1).then(|| g.real(t, s, 4.0));
            let w = vec![(0, want(given, p, &x, r.as_ref()))];
            let mut args: Vec<Arg> = vec![T::poison(t, s).into(), x.into()];
            args.extend(r.map(Arg::from));
            let what = format!("{s:?} p {p}, residual {residual}");
            let t = Trial::new(what, params.as_bytes(), args, w).given(given.as_bytes());
            let moved = (gaps == 1).then(|| t.apart(false)).flatten();
            all.push(moved.map_or(t, |m| m.1));
        }
        return all;
    }
    let mut cases = vec![
        (0, 0.5),
        (1, 0.5),
        (7, 0.1),
        (257, 0.5),
        (1000, 0.9),
        (33, 0.0),
    ];
    if g.sizes() {
        let n = [g.beyond(), g.grid()].concat();
        cases = n.into_iter().map(|n| (n, 0.4)).collect();
    }
    if g.about == About::Models {
        cases = [0.05, 0.15, 1.0 / 3.0, 0.123_456_789, 0.999]
            .map(|p| (257, p))
            .to_vec();
    }
    for (n, p) in cases {
        let params = DropoutParams {
            p,
            ..Default::default()
        };
        let x = g.real(t, &[n], 4.0);
        let w = |d: &PhiloxDyn| vec![(0, want(d, p, &x, None))];
        let args = vec![T::poison(t, &[n]).into(), x.clone().into()];
        let what = format!("[{n}] p {p}");
        let one = Trial::new(what, params.as_bytes(), args, w(&d[1])).given(d[1].as_bytes());
        all.push(match g.residues() {
            true => (d.iter().skip(2)).fold(one, |t, d| t.then(d.as_bytes(), w(d))),
            false => one,
        });
    }
    if g.about == About::Models {
        return all;
    }
    let params = DropoutParams {
        p: 0.3,
        ..Default::default()
    };
    if g.sizes() {
        for s in g.longs().into_iter().flat_map(|n| [[n, 2], [2, n]]) {
            let (x, r) = (g.real(t, &s, 4.0), g.real(t, &s, 4.0));
            let w = |d: &PhiloxDyn| vec![(0, want(d, 0.3, &x, Some(&r)))];
            let args = vec![T::poison(t, &s).into(), x.clone().into(), r.clone().into()];
            let what = format!("{s:?} with a residual");
            let one = Trial::new(what, params.as_bytes(), args, w(&d[2])).given(d[2].as_bytes());
            // An element that is dropped in one launch is kept in another.
            all.push(one.then(d[3].as_bytes(), w(&d[3])));
        }
        return all;
    }
    // Two steps of one prepared op: the mask is the launch's.
    let (x, r) = (g.real(t, &[9, 33], 4.0), g.real(t, &[9, 33], 4.0));
    let w = |d: &PhiloxDyn| vec![(0, want(d, 0.3, &x, Some(&r)))];
    let args: Vec<Arg> = vec![
        T::poison(t, &[9, 33]).into(),
        x.clone().into(),
        r.clone().into(),
    ];
    all.push(
        Trial::new(
            "[9,33] with a residual, two steps",
            params.as_bytes(),
            args,
            w(&d[2]),
        )
        .given(d[2].as_bytes())
        .then(d[3].as_bytes(), w(&d[3])),
    );
    // What is dropped is 0, whatever it was; and all of it may be.
    let mut bad = x.clone();
    let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    for (i, b) in bad.bits.iter_mut().enumerate().filter(|(i, _)| i % 4 == 1) {
        *b = super::num::encode(t, odd[i / 4 % 3]);
    }
    for p in [0.3, 1.0] {
        let params = DropoutParams {
            p,
            ..Default::default()
        };
        let w = vec![(0, want(&d[1], p, &bad, None))];
        let args = vec![T::poison(t, &[9, 33]).into(), bad.clone().into()];
        let what = format!("what is no number, p {p}");
        all.push(Trial::new(what, params.as_bytes(), args, w).given(d[1].as_bytes()));
        let w = vec![(0, want(&d[1], p, &bad, Some(&r)))];
        let y = T::poison(t, &[9, 33]);
        let args = vec![y.into(), bad.clone().into(), r.clone().into()];
        let what = format!("what is no number and a residual, p {p}");
        all.push(Trial::new(what, params.as_bytes(), args, w).given(d[1].as_bytes()));
    }
    let w = vec![(0, want(&d[4], 0.3, &x, None))];
    let args = vec![x.clone().into(), Arg::Alias(x, 0)];
    all.push(Trial::new("in place", params.as_bytes(), args, w).given(d[4].as_bytes()));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the known-answer file of Random123 (philox4x32 10).
    #[test]
    fn known_answers() {
        let f = u32::MAX;
        for (c, k, want) in [
            (
                [0; 4],
                [0; 2],
                [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8],
            ),
            (
                [f; 4],
                [f; 2],
                [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD],
            ),
            (
                [0x243F_6A88, 0x85A3_08D3, 0x1319_8A2E, 0x0370_7344],
                [0xA409_3822, 0x299F_31D0],
                [0xD16C_FE09, 0x94FD_CCEB, 0x5001_E420, 0x2412_6EA1],
            ),
        ] {
            assert_eq!(block(c, k), want);
        }
    }

    #[test]
    fn normals_are_normal() {
        let d = PhiloxDyn {
            seed: 3,
            ..Default::default()
        };
        let n = 20_000;
        let v: Vec<f64> = (0..n).map(|e| f64::from(normal(&d, e))).collect();
        let mean = v.iter().sum::<f64>() / n as f64;
        let var = v.iter().map(|v| v * v).sum::<f64>() / n as f64;
        assert!(
            mean.abs() < 5.0 / (n as f64).sqrt() && (var - 1.0).abs() < 0.05,
            "{mean} {var}"
        );
    }
}
