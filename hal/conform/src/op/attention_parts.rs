//! `attention_ext_*` over parts of a row: queries that stand elsewhere than at the last keys, keys of which some are ahead of every query, results
//! in f32 over 16-bit operands, and parts that, put together by their log-sum-exp, are the whole.

use super::attention_reference::{Inputs, KEY, Shape, Wide, backward, forward};
use super::bound::{Num, num as exact};
use super::cell::{FLOATS, Gen};
use super::num::{self, MIN_NORMAL};
use super::rig::{Answer, Place, Rig, row};
use super::tensor::T;
use super::trial::{Arg, Trial, Want};
use crate::case::{Check, pass_with, refused};
use crossweave_abi::DType;
use crossweave_abi::op;
use std::ops::Range;

const F: DType = DType::F32;

/// What the trials of parts are of.
pub fn shapes() -> Vec<Shape> {
    let s = |b, tq, tk, h, hkv, shift| Shape {
        b,
        tq,
        tk,
        h,
        hkv,
        shift,
        d: 8,
        causal: true,
        ..Shape::default()
    };
    let wide = |wide, s: Shape| Shape { wide, ..s };
    let window = |window, s: Shape| Shape { window, ..s };
    let bias = |s: Shape| Shape { bias: true, ..s };
    let sinks = |s: Shape| Shape { sinks: true, ..s };
    let cap = |s: Shape| Shape { cap: 1.7, ..s };
    // Of a row of 50 keys, from one on.
    let drop = |first_key, s: Shape| Shape {
        dropout: 0.3,
        whole: [5, 95, 50],
        first_key,
        ..s
    };
    let cu = |q: &'static [i32], k: &'static [i32], s: Shape| Shape {
        cu: [Some(q.into()), Some(k.into())],
        ..s
    };
    let in_row = |s: Shape| Shape { in_row: true, ..s };
    let both = |s: Shape| Shape { causal: false, ..s };
    let docs = [&[0, 4, 4, 11, 19][..], &[0, 9, 13, 13, 21]];
    vec![
        // Keys of the past, and keys ahead: of some queries, of all of them, and by one.
        s(1, 20, 20, 2, 1, 20),
        s(2, 17, 23, 2, 2, 5),
        s(1, 90, 100, 1, 1, -33),
        s(1, 20, 24, 2, 1, -24),
        s(1, 20, 24, 2, 1, -23),
        s(1, 9, 9, 2, 1, 1 << 40),
        s(1, 9, 9, 2, 1, -(1 << 40)),
        // A window whose end lies in the part, before it and behind it.
        window(12, s(1, 20, 20, 2, 1, 20)),
        window(3, s(1, 20, 20, 2, 1, 20)),
        window(30, s(1, 20, 20, 2, 1, 20)),
        window(6, both(s(1, 40, 41, 2, 2, -9))),
        window(i64::MAX, s(1, 9, 11, 2, 1, 4)),
        bias(s(2, 7, 12, 2, 1, 6)),
        bias(both(s(1, 12, 7, 2, 2, -5))),
        // A sink where no key is seen.
        sinks(s(1, 10, 10, 4, 2, -10)),
        cap(sinks(bias(s(1, 19, 21, 4, 2, 8)))),
        drop(0, s(2, 9, 9, 2, 1, 9)),
        drop(13, s(2, 9, 11, 2, 2, 4)),
        drop(39, both(s(1, 21, 11, 4, 1, 0))),
        // A number of more than 32 bits.
        Shape {
            whole: [2, 9, 1 << 33],
            ..drop((1 << 32) + 70_001, s(1, 9, 9, 2, 1, 9))
        },
        // In every segment, and in the row.
        cu(docs[0], docs[1], s(1, 20, 22, 2, 1, 3)),
        cu(docs[0], docs[1], window(4, bias(s(1, 20, 22, 2, 1, -2)))),
        in_row(cu(docs[0], docs[1], s(1, 20, 22, 2, 1, 3))),
        in_row(cu(
            docs[0],
            docs[1],
            window(9, bias(s(1, 20, 22, 2, 2, 11))),
        )),
        in_row(cu(docs[0], docs[0], bias(s(1, 19, 19, 2, 1, 0)))),
        in_row(drop(
            7,
            sinks(cap(bias(cu(
                &[2, 40, 90, 0, 33, 33],
                &[0, 5, 40, 0, 1, 38],
                s(2, 90, 40, 2, 1, 29),
            )))),
        )),
        // Without segments the flag says nothing.
        in_row(bias(s(1, 8, 11, 2, 1, 2))),
        wide(Wide::Written, s(2, 33, 33, 2, 1, 0)),
        wide(Wide::All, cap(s(1, 20, 37, 4, 2, 17))),
        wide(Wide::Written, drop(3, bias(sinks(s(1, 18, 30, 2, 2, 0))))),
        wide(
            Wide::All,
            in_row(cu(docs[0], docs[1], s(1, 20, 22, 2, 1, 3))),
        ),
        wide(
            Wide::Written,
            Shape {
                d: 64,
                ..s(1, 70, 70, 2, 1, 70)
            },
        ),
        wide(
            Wide::Written,
            window(
                9,
                Shape {
                    d: 64,
                    ..s(1, 70, 90, 2, 1, -30)
                },
            ),
        ),
        wide(
            Wide::Written,
            in_row(cu(
                docs[0],
                docs[1],
                Shape {
                    d: 32,
                    ..s(1, 20, 22, 2, 1, 3)
                },
            )),
        ),
        wide(
            Wide::All,
            Shape {
                d: 128,
                ..s(1, 65, 80, 2, 2, -8)
            },
        ),
        wide(Wide::All, s(1, 0, 5, 2, 2, 3)),
    ]
}

/// A row and how its queries and its keys are cut.
struct Cut {
    whole: Shape,
    t: DType,
    queries: Vec<usize>,
    keys: Vec<usize>,
    /// Where the documents of each row end, with the 0 in front.
    ends: Option<Vec<i32>>,
}

fn cuts(t: DType) -> Vec<Cut> {
    let n = 45;
    let plain = Shape {
        b: 2,
        tq: n,
        tk: n,
        h: 4,
        hkv: 2,
        d: 8,
        causal: true,
        wide: Wide::Written,
        ..Shape::default()
    };
    let dropped = Shape {
        dropout: 0.25,
        whole: [4, n as i64, n as i64],
        ..plain.clone()
    };
    let cut = |whole: Shape, at: [&[usize]; 2], ends: Option<&[i32]>| Cut {
        whole,
        t,
        queries: at[0].to_vec(),
        keys: at[1].to_vec(),
        ends: ends.map(<[i32]>::to_vec),
    };
    let even: &[usize] = &[0, 15, 30, 45];
    let odd: &[usize] = &[0, 7, 8, 29, 45];
    let docs: &[i32] = &[0, 3, 20, 20, 37, 45, 0, 9, 9, 10, 44, 45];
    vec![
        cut(plain.clone(), [even, even], None),
        cut(
            Shape {
                window: 11,
                cap: 2.0,
                sinks: true,
                bias: true,
                ..dropped.clone()
            },
            [odd, even],
            None,
        ),
        cut(
            Shape {
                causal: false,
                bias: true,
                ..dropped.clone()
            },
            [even, odd],
            None,
        ),
        cut(
            Shape {
                bias: true,
                ..plain
            },
            [even, even],
            Some(docs),
        ),
        cut(
            Shape {
                window: 9,
                sinks: true,
                ..dropped
            },
            [odd, odd],
            Some(docs),
        ),
    ]
}

/// A part: its queries and its keys in the row.
type Of = [Range<usize>; 2];

impl Cut {
    fn parts(&self) -> Vec<Of> {
        let each = |at: &[usize]| at.windows(2).map(|w| w[0]..w[1]).collect::<Vec<_>>();
        let keys = each(&self.keys);
        let queries = each(&self.queries).into_iter();
        queries
            .flat_map(|q| keys.iter().map(move |k| [q.clone(), k.clone()]))
            .collect()
    }

    /// The row with its documents.
    fn whole(&self) -> Shape {
        Shape {
            cu: [self.ends.clone().map(Into::into), None],
            ..self.whole.clone()
        }
    }

    fn shape(&self, of: &Of) -> Shape {
        let [q, k] = of;
        let ends = |at: &Range<usize>| {
            let within = |e: &i32| (*e).clamp(at.start as i32, at.end as i32) - at.start as i32;
            let all = self.ends.as_ref()?;
            Some(all.iter().map(within).collect::<Vec<_>>().into())
        };
        let w = &self.whole;
        Shape {
            tq: q.len(),
            tk: k.len(),
            shift: q.end as i64 - k.end as i64,
            first_key: if w.dropout > 0.0 { k.start as i64 } else { 0 },
            in_row: self.ends.is_some(),
            cu: [ends(q), ends(k)],
            // Counted once.
            sinks: w.sinks && k.start == 0,
            ..w.clone()
        }
    }

    /// The bias of the part within that of the row, of each head.
    fn line(&self, of: &Of) -> Range<usize> {
        let [q, k] = of;
        let from = k.start + self.whole.tq - q.end;
        from..from + q.len() + k.len() - 1
    }

    /// The part of the inputs of the row.
    fn inputs(&self, of: &Of, x: &Inputs) -> Inputs {
        let w = &self.whole;
        let blocks = (w.tk as u64).div_ceil(4) * of[0].start as u64;
        let mut key = x.key;
        if w.dropout > 0.0 {
            key.offset = key.offset.wrapping_add(blocks);
        }
        let bias = x.bias.chunks(w.distances());
        Inputs {
            q: rows(&x.q, w.b, w.tq, &of[0]),
            k: rows(&x.k, w.b, w.tk, &of[1]),
            v: rows(&x.v, w.b, w.tk, &of[1]),
            bias: bias.flat_map(|b| b[self.line(of)].to_vec()).collect(),
            sinks: x.sinks.clone(),
            key,
        }
    }
}

/// The elements at some positions of `[outer, T, ..]`.
fn rows<X: Clone>(x: &[X], outer: usize, t: usize, at: &Range<usize>) -> Vec<X> {
    let one = x.len() / outer / t;
    let each = x.chunks(t * one);
    each.flat_map(|r| r[at.start * one..at.end * one].to_vec())
        .collect()
}

/// Calls `f` with the place of each of those elements in the whole, in order.
fn placed(len: usize, outer: usize, t: usize, at: &Range<usize>, mut f: impl FnMut(usize, usize)) {
    let one = len / outer / t;
    for (i, n) in (0..outer * at.len() * one).enumerate() {
        let (o, rest) = (n / (at.len() * one), n % (at.len() * one));
        f(i, (o * t + at.start) * one + rest);
    }
}

/// What the rule of fused ops allows of an f32 result.
fn allowed(n: Num) -> f64 {
    2.0 * (n.e + num::ulp(F, n.v.abs() + n.e) / 2.0) + 2.0 * MIN_NORMAL
}

fn decoded(bits: &[u64]) -> Vec<f64> {
    bits.iter().map(|b| num::decode(F, *b)).collect()
}

fn within(what: &str, got: &[f64], want: &[Num], room: &[f64]) -> Result<f64, String> {
    let mut worst = 0.0f64;
    for (i, ((g, w), room)) in got.iter().zip(want).zip(room).enumerate() {
        // The reference itself is in f64.
        let room = room + 1e-12 * w.v.abs();
        let off = if *g == w.v { 0.0 } else { (g - w.v).abs() };
        if off.is_nan() || off > room {
            return Err(format!(
                "{what}: element {i} of the parts together is {g:e}, of the whole {:e}, allowed {room:e}",
                w.v
            ));
        }
        worst = worst.max(if room > 0.0 { off / room } else { 0.0 });
    }
    Ok(worst)
}

/// One part on the device: its outputs, `None` where it is not claimed.
fn outputs(
    rig: &mut Rig,
    id: u32,
    what: String,
    s: &Shape,
    x: &Inputs,
    args: Vec<Arg>,
    want: Vec<(usize, Want)>,
) -> Result<Option<Vec<Vec<f64>>>, String> {
    let p = s.params();
    let trial = Trial::new(what, p.as_bytes(), args, want).given(x.key.as_bytes());
    match rig.run(row(id), &trial, Place::Aligned, 0)? {
        Answer::Refused(_) => Ok(None),
        Answer::Held { bits, .. } => Ok(Some(bits.iter().map(|b| decoded(b)).collect())),
    }
}

/// Queries, keys, values and what follows them in both directions' operands.
fn operands(t: DType, s: &Shape, x: &Inputs) -> [Arg; 7] {
    let (qs, ks) = ([s.b, s.tq, s.h, s.d], [s.b, s.tk, s.hkv, s.d]);
    let given = |on: bool, shape: &[usize], v: &[f64]| Arg::from(on.then(|| T::new(t, shape, v)));
    [
        T::new(t, &qs, &x.q).into(),
        T::new(t, &ks, &x.k).into(),
        T::new(t, &ks, &x.v).into(),
        given(s.bias, &[s.h, s.distances()], &x.bias),
        given(s.sinks, &[s.h], &x.sinks),
        s.lengths(0).into(),
        s.lengths(1).into(),
    ]
}

/// Whether the parts of rows, each computed by the device, are the whole once they are put together.
pub fn merged(rig: &mut Rig, g: &mut Gen, back: bool) -> Check {
    let mut worst = 0.0f64;
    let mut held = 0;
    for t in FLOATS {
        for cut in cuts(t) {
            let s = cut.whole();
            let real = |g: &mut Gen, shape: &[usize], most| g.real(t, shape, most).values();
            let x = Inputs {
                q: real(g, &[s.b, s.tq, s.h, s.d], 2.0),
                k: real(g, &[s.b, s.tk, s.hkv, s.d], 2.0),
                v: real(g, &[s.b, s.tk, s.hkv, s.d], 2.0),
                bias: match s.bias {
                    true => real(g, &[s.h, s.distances()], 1.0),
                    false => vec![],
                },
                sinks: if s.sinks {
                    real(g, &[s.h], 1.5)
                } else {
                    vec![]
                },
                key: KEY,
            };
            let what = format!("{} {}, keys cut at {:?}", t.name(), s.what(), cut.keys);
            let one = match back {
                false => joined(rig, &cut, &x),
                true => {
                    let d_out = real(g, &[s.b, s.tq, s.h, s.d], 2.0);
                    added(rig, &cut, &x, &d_out)
                }
            };
            if let Some(off) = one.map_err(|e| format!("{what}: {e}"))? {
                worst = worst.max(off);
                held += 1;
            }
        }
    }
    match held {
        0 => refused("f32 results of parts are not claimed"),
        n => Ok(pass_with(format!("{n} rows"))?.within("sums of parts", worst)),
    }
}

/// The forward: outputs weighed by the exponentials of their log-sum-exp.
fn joined(rig: &mut Rig, cut: &Cut, x: &Inputs) -> Result<Option<f64>, String> {
    let (w, t) = (cut.whole(), cut.t);
    // Of each row and head of a query the parts' outputs and log-sum-exps: as they came, and as numbers with what they may be off by.
    let lines = w.b * w.h * w.tq;
    let mut of: Vec<Vec<(Vec<f64>, f64, Vec<Num>, Num)>> = vec![vec![]; lines];
    for part in cut.parts() {
        let (s, own) = (cut.shape(&part), cut.inputs(&part, x));
        let (o, lse) = forward(t, &s, &own);
        let [q, k, v, rest @ ..] = operands(t, &s, &own);
        let mut args: Vec<Arg> = vec![
            T::poison(F, &[s.b, s.tq, s.h, s.d]).into(),
            T::poison(F, &[s.b, s.h, s.tq]).into(),
            q,
            k,
            v,
        ];
        args.extend(rest);
        let want = vec![(0, Want::Fused(o.clone())), (1, Want::Fused(lse.clone()))];
        let id = op::ATTENTION_EXT_FWD;
        let Some(got) = outputs(rig, id, format!("{part:?}"), &s, &own, args, want)? else {
            return Ok(None);
        };
        for b in 0..s.b {
            for (h, i) in (0..s.h).flat_map(|h| (0..s.tq).map(move |i| (h, i))) {
                let at = ((b * s.tq + i) * s.h + h) * s.d;
                let of_lse = (b * s.h + h) * s.tq + i;
                let room = |n: &Num| Num {
                    v: n.v,
                    e: if n.v.is_finite() { allowed(*n) } else { 0.0 },
                };
                of[(b * w.h + h) * w.tq + part[0].start + i].push((
                    got[0][at..at + s.d].to_vec(),
                    got[1][of_lse],
                    o[at..at + s.d].iter().map(room).collect(),
                    room(&lse[of_lse]),
                ));
            }
        }
    }
    let (o, lse) = forward(t, &w, x);
    let mut worst = 0.0f64;
    for (line, parts) in of.iter().enumerate() {
        let (b, h, i) = (line / (w.h * w.tq), line / w.tq % w.h, line % w.tq);
        let at = ((b * w.tq + i) * w.h + h) * w.d;
        let (got, got_lse) = join(parts.iter().map(|p| (&p.0, p.1)).collect(), w.d);
        let mut room: Vec<f64> = vec![0.0; w.d];
        let mut room_lse = 0.0;
        let top = parts
            .iter()
            .map(|p| p.3.v)
            .fold(f64::NEG_INFINITY, f64::max);
        if top.is_finite() {
            let seen: Vec<_> = parts.iter().filter(|p| p.3.v.is_finite()).collect();
            let weight = |l: Num| (l - exact(top)).exp();
            let sum = super::bound::sum(seen.iter().map(|p| weight(p.3)));
            room_lse = (sum.ln() + exact(top)).e;
            for (c, room) in room.iter_mut().enumerate() {
                let all = super::bound::sum(seen.iter().map(|p| weight(p.3) * p.2[c]));
                *room = (all / sum).e;
            }
        }
        // The whole has errors of its own where weights go through the storage, which `forward` counts.
        let own = |n: &Num, room: f64| room + if n.v.is_finite() { 2.0 * n.e } else { 0.0 };
        let each: Vec<f64> = o[at..at + w.d]
            .iter()
            .zip(&room)
            .map(|(n, r)| own(n, *r))
            .collect();
        let of_o = within("o", &got, &o[at..at + w.d], &each)?;
        let of_lse = within(
            "lse",
            &[got_lse],
            &lse[line..=line],
            &[own(&lse[line], room_lse)],
        )?;
        worst = worst.max(of_o).max(of_lse);
    }
    Ok(Some(worst))
}

/// Outputs and log-sum-exps of the parts of one query as those of the whole.
fn join(parts: Vec<(&Vec<f64>, f64)>, d: usize) -> (Vec<f64>, f64) {
    let top = parts.iter().map(|p| p.1).fold(f64::NEG_INFINITY, f64::max);
    let mut o = vec![0.0; d];
    if top == f64::NEG_INFINITY {
        // What sees nothing adds nothing, whatever it is.
        let all = parts.iter().flat_map(|p| p.0);
        return match all.into_iter().all(|x| *x == 0.0) {
            true => (o, top),
            false => (vec![f64::NAN; d], top),
        };
    }
    let l = top + parts.iter().map(|p| (p.1 - top).exp()).sum::<f64>().ln();
    for (own, lse) in parts {
        let weight = (lse - l).exp();
        o.iter_mut().zip(own).for_each(|(a, x)| *a += weight * x);
    }
    (o, l)
}

/// The backward: gradients of parts, with o and the log-sum-exp of the whole, added up.
fn added(rig: &mut Rig, cut: &Cut, x: &Inputs, d_out: &[f64]) -> Result<Option<f64>, String> {
    let (w, t) = (cut.whole(), cut.t);
    let of = |n: &[Num]| n.iter().map(|n| n.v).collect::<Vec<_>>();
    let (o, lse) = forward(t, &w, x);
    let (qs, ls) = ([w.b, w.tq, w.h, w.d], [w.b, w.h, w.tq]);
    // As they were stored: the sum of the parts in f32, and rounded where the model goes on in 16 bits.
    let o = T::new(t, &qs, &of(&o)).values();
    let lse = T::new(F, &ls, &of(&lse)).values();
    let whole = backward(t, &w, x, d_out, &o, &lse);
    let mut got: [Vec<f64>; 5] = [0, 1, 2, 3, 4].map(|i: usize| vec![0.0; whole[i].len()]);
    let mut room = got.clone();
    for part in cut.parts() {
        let (s, own) = (cut.shape(&part), cut.inputs(&part, x));
        let own_d = rows(d_out, w.b, w.tq, &part[0]);
        let own_o = rows(&o, w.b, w.tq, &part[0]);
        let own_lse = rows(&lse, w.b * w.h, w.tq, &part[0]);
        let wants = backward(t, &s, &own, &own_d, &own_o, &own_lse);
        let (qs, ks) = ([s.b, s.tq, s.h, s.d], [s.b, s.tk, s.hkv, s.d]);
        let [q, k, v, rest @ ..] = operands(t, &s, &own);
        let zeros = |on: bool, shape: &[usize]| Arg::from(on.then(|| T::full(F, shape, 0.0)));
        let mut args: Vec<Arg> = vec![
            T::poison(F, &qs).into(),
            T::poison(F, &ks).into(),
            T::poison(F, &ks).into(),
            zeros(s.bias, &[s.h, s.distances()]),
            zeros(s.sinks, &[s.h]),
            T::new(t, &qs, &own_d).into(),
            T::new(t, &qs, &own_o).into(),
            q,
            k,
            v,
            T::new(F, &[s.b, s.h, s.tq], &own_lse).into(),
        ];
        args.extend(rest);
        let there = [true, true, true, s.bias, s.sinks];
        let want = (0..5).filter(|i| there[*i]);
        let want: Vec<_> = want.map(|i| (i, Want::Fused(wants[i].clone()))).collect();
        let id = op::ATTENTION_EXT_BWD;
        let Some(outs) = outputs(rig, id, format!("{part:?}"), &s, &own, args, want)? else {
            return Ok(None);
        };
        let mut outs = outs.into_iter();
        for i in (0..5).filter(|i| there[*i]) {
            let Some(out) = outs.next() else { continue };
            let (outer, t, at) = match i {
                0 => (w.b, w.tq, part[0].clone()),
                1 | 2 => (w.b, w.tk, part[1].clone()),
                3 => (w.h, w.distances(), cut.line(&part)),
                _ => (1, w.h, 0..w.h),
            };
            let len = whole[i].len();
            placed(len, outer, t, &at, |n, to| {
                got[i][to] += out[n];
                room[i][to] += allowed(wants[i][n]);
            });
        }
    }
    let mut worst = 0.0f64;
    for (i, name) in ["dq", "dk", "dv", "dbias", "dsinks"].iter().enumerate() {
        worst = worst.max(within(name, &got[i], &whole[i], &room[i])?);
    }
    Ok(Some(worst))
}
